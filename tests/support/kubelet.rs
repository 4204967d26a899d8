//! A fake kubelet or backend with a programmable handler, which records all requests.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, thread};

use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{SslAcceptor, SslMethod, SslStream, SslVerifyMode};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509Name};
use pilothouse_types::lock::Lock;

use super::wait::TIMEOUT;

/// One received request.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    /// The common name of the server's client certificate.
    pub client: Option<String>,
    /// The index of its connection.
    pub connection: usize,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        header.map(|(_, value)| value.as_str())
    }

    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub fn query(&self) -> &str {
        self.target.split_once('?').map(|(_, query)| query).unwrap_or_default()
    }
}

/// A connection to the kubelet, with or without TLS.
pub enum Wire {
    Tls(Box<SslStream<TcpStream>>),
    Plain(TcpStream),
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Tls(stream) => stream.read(buffer),
            Wire::Plain(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Tls(stream) => stream.write(bytes),
            Wire::Plain(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Tls(stream) => stream.flush(),
            Wire::Plain(stream) => stream.flush(),
        }
    }
}

impl Wire {
    /// Waits until the peer disconnects, ignoring its data.
    pub fn wait_for_disconnect(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(1..) = self.read(&mut buffer) {}
    }

    /// Sends a response with a body of known length.
    pub fn respond(&mut self, status: &str, headers: &str, body: &[u8]) {
        let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
        // The client may have disconnected.
        let _ =
            self.write_all(head.as_bytes()).and_then(|()| self.write_all(body)).and_then(|()| self.flush());
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)?;
        self.flush()
    }

    pub fn read_bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn head(&mut self) -> io::Result<Vec<String>> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.read_bytes(1)?[0]);
        }
        Ok(String::from_utf8_lossy(&head).split("\r\n").map(str::to_owned).collect())
    }
}

/// Receives a request and its connection, and responds.
pub type RequestHandler = dyn Fn(&ReceivedRequest, &mut Wire) + Send + Sync;

/// A running kubelet.
pub struct Kubelet {
    pub address: SocketAddr,
    requests: Arc<Lock<Vec<ReceivedRequest>>>,
    connections: Arc<Connections>,
}

/// The connections of a kubelet.
#[derive(Default)]
struct Connections {
    /// Whether connections are kept alive.
    keep_alive: AtomicBool,
    /// The open connections.
    streams: Lock<Vec<Option<TcpStream>>>,
}

impl Kubelet {
    /// A kubelet with TLS and this certificate.
    pub fn start(
        address: IpAddr,
        identity: &TlsIdentity,
        handler: impl Fn(&ReceivedRequest, &mut Wire) + Send + Sync + 'static,
    ) -> Kubelet {
        let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).expect("TLS");
        acceptor.set_certificate(&identity.certificate).expect("a certificate");
        acceptor.set_private_key(&identity.key).expect("a key");
        acceptor.set_verify_callback(SslVerifyMode::PEER, |_, _| true);
        Kubelet::listen(address, Some(acceptor.build()), handler)
    }

    /// A kubelet with plain HTTP, like a pod.
    pub fn plain(
        address: IpAddr,
        handler: impl Fn(&ReceivedRequest, &mut Wire) + Send + Sync + 'static,
    ) -> Kubelet {
        Kubelet::listen(address, None, handler)
    }

    fn listen(
        address: IpAddr,
        acceptor: Option<SslAcceptor>,
        handler: impl Fn(&ReceivedRequest, &mut Wire) + Send + Sync + 'static,
    ) -> Kubelet {
        let listener = TcpListener::bind((address, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::<Lock<Vec<ReceivedRequest>>>::default();
        let (recorded, handler): (_, Arc<RequestHandler>) = (Arc::clone(&requests), Arc::new(handler));
        let connections = Arc::<Connections>::default();
        let registry = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let (acceptor, recorded, handler, connections) =
                    (acceptor.clone(), Arc::clone(&recorded), Arc::clone(&handler), Arc::clone(&registry));
                thread::spawn(move || {
                    let number = {
                        let mut streams = connections.streams.lock();
                        streams.push(stream.try_clone().ok());
                        streams.len() - 1
                    };
                    serve(stream, acceptor.as_ref(), &recorded, (&*handler, &connections.keep_alive, number));
                    connections.streams.lock()[number] = None;
                });
            }
        });
        Kubelet { address, requests, connections }
    }

    /// Keeps connections alive from now on.
    pub fn enable_keep_alive(&self) {
        self.connections.keep_alive.store(true, Ordering::Relaxed);
    }

    /// The number of open connections.
    pub fn open_connections(&self) -> usize {
        self.connections.streams.lock().iter().flatten().count()
    }

    /// Closes all connections.
    pub fn close_connections(&self) {
        for stream in self.connections.streams.lock().iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().clone()
    }

    /// The last request.
    pub fn last_request(&self) -> ReceivedRequest {
        self.requests().pop().expect("a request to the kubelet")
    }
}

fn serve(
    stream: TcpStream,
    acceptor: Option<&SslAcceptor>,
    requests: &Lock<Vec<ReceivedRequest>>,
    (handler, keep_alive, connection): (&RequestHandler, &AtomicBool, usize),
) {
    stream.set_nodelay(true).expect("TCP_NODELAY");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a read timeout");
    let mut wire = match acceptor {
        None => Wire::Plain(stream),
        Some(acceptor) => match acceptor.accept(stream) {
            Ok(stream) => Wire::Tls(Box::new(stream)),
            Err(_) => return,
        },
    };
    while handle_request(&mut wire, requests, handler, connection) && keep_alive.load(Ordering::Relaxed) {}
    if let Wire::Tls(stream) = &mut wire {
        let _ = stream.shutdown();
    }
}

/// Handles one request; `false` if there is none.
fn handle_request(
    wire: &mut Wire,
    requests: &Lock<Vec<ReceivedRequest>>,
    handler: &RequestHandler,
    connection: usize,
) -> bool {
    let Ok(lines) = wire.head() else { return false };
    let mut words = lines[0].split(' ').map(str::to_owned);
    let client = match &*wire {
        Wire::Tls(stream) => stream.ssl().peer_certificate().and_then(|certificate| {
            let name = certificate.subject_name().entries_by_nid(Nid::COMMONNAME).next()?;
            name.data().to_string().ok()
        }),
        Wire::Plain(_) => None,
    };
    let request = ReceivedRequest {
        method: words.next().unwrap_or_default(),
        target: words.next().unwrap_or_default(),
        headers: lines[1..]
            .iter()
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        client,
        connection,
    };
    requests.lock().push(request.clone());
    handler(&request, wire);
    true
}

/// A certificate and its key.
pub struct TlsIdentity {
    pub certificate: X509,
    pub key: PKey<Private>,
}

impl TlsIdentity {
    /// Self-signed, and a CA itself.
    pub fn new(name: &str, addresses: &[&str]) -> TlsIdentity {
        TlsIdentity::build(name, addresses, None)
    }

    /// Signed by a CA that is not part of it.
    pub fn by_unknown_ca(name: &str, addresses: &[&str]) -> TlsIdentity {
        TlsIdentity::build(name, addresses, Some(&TlsIdentity::new("issuer", &[])))
    }

    fn build(name: &str, addresses: &[&str], issuer: Option<&TlsIdentity>) -> TlsIdentity {
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("a curve");
        let key = PKey::from_ec_key(EcKey::generate(&group).expect("a key")).expect("a key");
        let mut subject = X509Name::builder().expect("a name");
        subject.append_entry_by_text("CN", name).expect("a name");
        let subject = subject.build();
        let mut builder = X509::builder().expect("a certificate");
        builder.set_version(2).expect("a version");
        let serial = BigNum::from_u32(1).and_then(|number| number.to_asn1_integer()).expect("a number");
        builder.set_serial_number(&serial).expect("a number");
        builder.set_subject_name(&subject).expect("a name");
        let issuer_name = issuer.map_or(&*subject, |issuer| issuer.certificate.subject_name());
        builder.set_issuer_name(issuer_name).expect("a name");
        builder.set_pubkey(&key).expect("a key");
        builder.set_not_before(&Asn1Time::days_from_now(0).expect("a day")).expect("a day");
        builder.set_not_after(&Asn1Time::days_from_now(2).expect("a day")).expect("a day");
        if issuer.is_none() {
            let authority = BasicConstraints::new().ca().build().expect("an extension");
            builder.append_extension(authority).expect("an extension");
        }
        let mut names = SubjectAlternativeName::new();
        names.dns(name);
        for address in addresses {
            names.ip(address);
        }
        let names = names.build(&builder.x509v3_context(None, None)).expect("an extension");
        builder.append_extension(names).expect("an extension");
        let signer = issuer.map_or(&key, |issuer| &issuer.key);
        builder.sign(signer, MessageDigest::sha256()).expect("a signature");
        TlsIdentity { certificate: builder.build(), key }
    }

    /// Writes both files: certificate and key.
    pub fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
        fs::write(&certificate, self.certificate.to_pem().expect("PEM")).expect("a file");
        fs::write(&key, self.key.private_key_to_pem_pkcs8().expect("PEM")).expect("a file");
        (certificate, key)
    }
}
