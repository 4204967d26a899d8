//! `pilothouse healthcheck`: checks whether a running server is ready, and reports it by its exit code.
//!
//! For images without a shell or an HTTP client. Only the CA that the server created is trusted, not those of the system:
//! another process on the same port is not healthy.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Parser;
use http::Uri;
use openssl::error::ErrorStack;
use openssl::ssl::{SslConnector, SslFiletype, SslMethod};
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;

use crate::limits;

/// Check whether a running server is ready: exit code 0 if it is, 1 if not.
#[derive(Debug, Parser)]
#[command(bin_name = "pilothouse healthcheck", no_binary_name = true)]
pub(super) struct Options {
    /// The URL to check; without a path /readyz is used.
    #[arg(long, default_value = "https://127.0.0.1:6443")]
    url: Target,
    /// The server's data directory.
    #[arg(long, default_value = "./pilothouse-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// The CA of the serving certificate [default: pki/ca.crt in the data directory].
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Client certificate, for a server that requires one; needs --client-key.
    #[arg(long, requires = "client_key", value_name = "FILE")]
    client_certificate: Option<PathBuf>,
    /// Private key of --client-certificate.
    #[arg(long, requires = "client_certificate", value_name = "FILE")]
    client_key: Option<PathBuf>,
}

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    host: String,
    port: u16,
    /// Host and port as given.
    authority: String,
    path: String,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let uri: Uri = text.parse().map_err(|reason| format!("\"{text}\" is not a URL: {reason}"))?;
        let (Some("https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(format!("\"{text}\" is not a URL such as https://127.0.0.1:6443/readyz"));
        };
        let path = match uri.path_and_query().map(|path| path.as_str()) {
            None | Some("/") => "/readyz",
            Some(path) => path,
        };
        Ok(Target {
            // An IPv6 address has brackets only in a URL.
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(443),
            authority: authority.to_string(),
            path: path.to_owned(),
        })
    }
}

/// Why a server is not healthy.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unhealthy {
    #[error("cannot read {path}: {source}")]
    File { path: String, source: io::Error },
    #[error("cannot use {path}: {source}")]
    Content { path: String, source: ErrorStack },
    #[error(transparent)]
    Crypto(#[from] ErrorStack),
    #[error("cannot connect to {authority}: {source}")]
    Connect { authority: String, source: io::Error },
    #[error("TLS handshake with {authority} failed: {reason}")]
    Handshake { authority: String, reason: String },
    #[error("connection error: {0}")]
    Broken(#[from] io::Error),
    #[error("the response is not HTTP")]
    NotHttp,
    #[error("the server answered {code}\n{body}")]
    Refused { code: u16, body: String },
}

impl super::Command for Options {
    const NAME: &str = "healthcheck";
    type Failure = Unhealthy;

    fn run(&self) -> Result<(), Unhealthy> {
        check(self)
    }
}

fn check(options: &Options) -> Result<(), Unhealthy> {
    let Target { host, authority, .. } = &options.url;
    let connector = connector(options)?;
    let stream =
        dial(&options.url).map_err(|source| Unhealthy::Connect { authority: authority.clone(), source })?;
    let mut stream = connector.connect(host, stream).map_err(|reason| Unhealthy::Handshake {
        authority: authority.clone(),
        reason: reason.to_string(),
    })?;
    request_readiness(&mut stream, &options.url)
}

fn connector(options: &Options) -> Result<SslConnector, Unhealthy> {
    let ca_file = options.ca_file.clone().unwrap_or_else(|| options.data_dir.join("pki").join("ca.crt"));
    let pem = fs::read(&ca_file)
        .map_err(|source| Unhealthy::File { path: ca_file.display().to_string(), source })?;
    let mut trusted = X509StoreBuilder::new()?;
    for certificate in X509::stack_from_pem(&pem).map_err(|source| content(&ca_file, source))? {
        trusted.add_cert(certificate)?;
    }
    let mut builder = SslConnector::builder(SslMethod::tls_client())?;
    builder.set_cert_store(trusted.build());
    builder.set_alpn_protos(b"\x08http/1.1")?;
    if let (Some(certificate), Some(key)) = (&options.client_certificate, &options.client_key) {
        builder.set_certificate_chain_file(certificate).map_err(|source| content(certificate, source))?;
        builder.set_private_key_file(key, SslFiletype::PEM).map_err(|source| content(key, source))?;
    }
    Ok(builder.build())
}

fn content(path: &Path, source: ErrorStack) -> Unhealthy {
    Unhealthy::Content { path: path.display().to_string(), source }
}

/// Connects to the first address of the host that accepts.
fn dial(target: &Target) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in (target.host.as_str(), target.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limits::HEALTHCHECK_STEP) {
            Ok(stream) => {
                stream.set_read_timeout(Some(limits::HEALTHCHECK_STEP))?;
                stream.set_write_timeout(Some(limits::HEALTHCHECK_STEP))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn request_readiness(stream: &mut (impl Read + Write), target: &Target) -> Result<(), Unhealthy> {
    let Target { authority, path, .. } = target;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: pilothouse-healthcheck\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut response = Vec::new();
    let end = stream.take(limits::HEALTHCHECK_RESPONSE_BYTES).read_to_end(&mut response);
    // A complete response is accepted, however the connection ended.
    match parse(&response) {
        Some((200, _)) => Ok(()),
        Some((code, body)) => Err(Unhealthy::Refused { code, body }),
        None => Err(end.map_or_else(Unhealthy::Broken, |_| Unhealthy::NotHttp)),
    }
}

/// The status and the body of a response with complete headers.
fn parse(response: &[u8]) -> Option<(u16, String)> {
    let response = String::from_utf8_lossy(response);
    let (head, body) = response.split_once("\r\n\r\n")?;
    let code = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((code, body.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::thread;

    use openssl::ssl::{SslAcceptor, SslVerifyMode};
    use socket2::{Domain, Socket, Type};

    use super::*;
    use pilothouse_client::testing::self_signed;

    const READY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    const UNREADY: &str = "HTTP/1.1 500 Internal Server Error\r\n\r\n[-]shutdown failed: reason withheld\n";

    /// A server for one connection, the options that reach it, and its data directory. The thread returns the received request, or
    /// `None` if the handshake failed.
    struct Fixture {
        options: Options,
        server: thread::JoinHandle<Option<String>>,
        _data: tempfile::TempDir,
    }

    fn fixture(response: &'static str, trusted: Option<&X509>, needs_client_certificate: bool) -> Fixture {
        let (certificate, key) = self_signed("127.0.0.1");
        let data = tempfile::tempdir().unwrap();
        let pki = data.path().join("pki");
        fs::create_dir(&pki).unwrap();
        fs::write(pki.join("ca.crt"), trusted.unwrap_or(&certificate).to_pem().unwrap()).unwrap();
        fs::write(pki.join("admin.crt"), certificate.to_pem().unwrap()).unwrap();
        fs::write(pki.join("admin.key"), key.private_key_to_pem_pkcs8().unwrap()).unwrap();

        let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
        acceptor.set_certificate(&certificate).unwrap();
        acceptor.set_private_key(&key).unwrap();
        if needs_client_certificate {
            acceptor
                .set_verify_callback(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT, |_, _| true);
        }
        let acceptor = acceptor.build();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("--url=https://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let mut stream = acceptor.accept(listener.accept().unwrap().0).ok()?;
            let mut request = String::new();
            let mut byte = [0];
            while !request.ends_with("\r\n\r\n") {
                stream.read_exact(&mut byte).ok()?;
                request.push(char::from(byte[0]));
            }
            stream.write_all(response.as_bytes()).unwrap();
            // No close_notify: a server that stops at once must not invalidate its response.
            Some(request)
        });
        let data_dir = format!("--data-dir={}", data.path().display());
        let mut line = vec![url, data_dir];
        if needs_client_certificate {
            line.push(format!("--client-certificate={}", pki.join("admin.crt").display()));
            line.push(format!("--client-key={}", pki.join("admin.key").display()));
        }
        Fixture { options: Options::try_parse_from(line).unwrap(), server, _data: data }
    }

    #[test]
    fn healthcheck_succeeds_for_ready_server() {
        let fixture = fixture(READY, None, false);
        check(&fixture.options).unwrap();
        let request = fixture.server.join().unwrap().unwrap();
        assert!(request.starts_with("GET /readyz HTTP/1.1\r\nHost: 127.0.0.1:"), "{request}");
    }

    #[test]
    fn healthcheck_presents_client_certificate() {
        let fixture = fixture(READY, None, true);
        check(&fixture.options).unwrap();
        assert!(fixture.server.join().unwrap().is_some());
    }

    #[test]
    fn healthcheck_reports_body_of_unready_server() {
        let fixture = fixture(UNREADY, None, false);
        let error = check(&fixture.options).unwrap_err().to_string();
        assert_eq!(error, "the server answered 500\n[-]shutdown failed: reason withheld");
    }

    #[test]
    fn healthcheck_fails_for_untrusted_certificate() {
        let fixture = fixture(READY, Some(&self_signed("127.0.0.1").0), false);
        assert!(matches!(check(&fixture.options), Err(Unhealthy::Handshake { .. })));
        assert_eq!(fixture.server.join().unwrap(), None);
    }

    #[test]
    fn healthcheck_fails_for_non_http_server() {
        assert!(matches!(check(&fixture("220 mail\r\n\r\n", None, false).options), Err(Unhealthy::NotHttp)));
    }

    #[test]
    fn healthcheck_fails_without_server_or_ca_file() {
        let (certificate, _) = self_signed("127.0.0.1");
        let data = tempfile::tempdir().unwrap();
        let ca_file = data.path().join("some.crt");
        fs::write(&ca_file, certificate.to_pem().unwrap()).unwrap();
        // Bound but not listening, so that no other process can take the port.
        let unlistened = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        unlistened.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let url = format!("--url=https://{}", unlistened.local_addr().unwrap().as_socket().unwrap());
        let mut options = Options::try_parse_from([url, format!("--ca-file={}", ca_file.display())]).unwrap();
        assert!(matches!(check(&options), Err(Unhealthy::Connect { .. })));
        options.ca_file = None;
        options.data_dir = data.path().to_owned();
        assert!(matches!(check(&options), Err(Unhealthy::File { .. })));
    }

    #[test]
    fn healthcheck_url_is_parsed() {
        for (text, host, port, path) in [
            ("https://127.0.0.1:6443", "127.0.0.1", 6443, "/readyz"),
            ("https://localhost/", "localhost", 443, "/readyz"),
            ("https://[::1]:7/livez?verbose", "::1", 7, "/livez?verbose"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(
                (target.host.as_str(), target.port, target.path.as_str()),
                (host, port, path),
                "{text}"
            );
        }
        for text in ["", "/readyz", "http://127.0.0.1:80", "https://", "https://a b/"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
