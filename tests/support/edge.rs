//! A small application behind the HTTP edge, and clients for it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix_web::{App, HttpMessage as _, HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use openssl::pkey::PKey;
use openssl::x509::X509;
use pilothouse::config::Config;
use pilothouse::http::connections::{ClientTrust, Connections, Counts};
use pilothouse::http::drain::Drain;
use pilothouse::http::edge::Edge;
use pilothouse::http::peer::Peer;
use pilothouse::pki::Identity;
use pilothouse::server::application::{Application, Assemble, Assembled, StartContext};
use pilothouse::server::{Handle, Server, StartError};
use pilothouse_types::clock::Clock;
use pilothouse_types::lock::Lock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_openssl::SslStream;

use super::tls;

/// The timeout of a step: more than any takes on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The small application behind the edge, whose state tests observe and control.
#[derive(Clone, Default)]
pub struct TestApplication(Arc<State>);

#[derive(Default)]
struct State {
    guards: AtomicUsize,
    flushes: AtomicUsize,
    hangs_on_flush: AtomicBool,
    give_up_count: AtomicUsize,
    stopping: Drain,
    watches: Drain,
    gate: Drain,
    failure: Lock<String>,
    failed: Drain,
    connections: OnceLock<Connections>,
}

impl TestApplication {
    /// The number of running handlers and open bodies.
    pub fn count(&self) -> usize {
        self.0.guards.load(Ordering::SeqCst)
    }

    pub fn flushes(&self) -> usize {
        self.0.flushes.load(Ordering::SeqCst)
    }

    /// Makes every later flush hang.
    pub fn hang(&self) {
        self.0.hangs_on_flush.store(true, Ordering::SeqCst);
    }

    /// The number of calls of `give_up`, which follow a failure.
    pub fn give_up_count(&self) -> usize {
        self.0.give_up_count.load(Ordering::SeqCst)
    }

    /// Whether readiness was refused.
    pub fn stopping(&self) -> bool {
        self.0.stopping.begun().now_or_never().is_some()
    }

    /// Lets /gated answer.
    pub fn open_gate(&self) {
        self.0.gate.begin();
    }

    pub fn fail(&self, message: &str) {
        *self.0.failure.lock() = message.to_owned();
        self.0.failed.begin();
    }

    /// The open connections.
    pub fn connections(&self) -> Counts {
        self.0.connections.get().expect("it has started").counts()
    }

    fn guard(&self) -> Guard {
        self.0.guards.fetch_add(1, Ordering::SeqCst);
        Guard(self.clone())
    }
}

struct Guard(TestApplication);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.guards.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The wiring of the small application.
pub struct TestAssembly {
    pub application: TestApplication,
    pub refuse: bool,
}

impl Assemble for TestAssembly {
    async fn start(self, _boot: StartContext, edge: Edge) -> Result<Assembled, StartError> {
        if self.refuse {
            return Err(StartError::Store("refused".to_owned()));
        }
        let application = self.application.clone();
        assert!(application.0.connections.set(edge.connections()).is_ok(), "it starts once");
        let serving = edge.serve(move || {
            App::new()
                .app_data(web::Data::new(application.clone()))
                .app_data(web::PayloadConfig::new(3 << 20))
                .route("/hello", web::get().to(|| async { "hello" }))
                .route("/watch", web::get().to(watch))
                .route("/never", web::get().to(never))
                .route("/gated", web::get().to(gated))
                .route("/large", web::to(|| async { vec![b'x'; 4 << 20] }))
                .route("/length", web::post().to(|body: Bytes| async move { body.len().to_string() }))
                .route("/broken", web::get().to(broken))
                .route("/panic", web::get().to(panics))
                .route("/peer", web::get().to(peer))
                .route(
                    "/login",
                    web::get().to(|request: HttpRequest| login(request, ClientTrust::Authenticated)),
                )
                .route("/exempt", web::get().to(|request: HttpRequest| login(request, ClientTrust::Exempt)))
        })?;
        Ok(Assembled { serving, application: Rc::new(self.application) })
    }
}

impl Application for TestApplication {
    fn ready(&self) -> LocalBoxFuture<'_, Result<(), StartError>> {
        async { Ok(()) }.boxed_local()
    }

    fn refuse_readiness(&self) {
        self.0.stopping.begin();
    }

    fn refuse_requests(&self) -> LocalBoxFuture<'_, ()> {
        async {}.boxed_local()
    }

    fn end_watches(&self, _within: Duration) -> LocalBoxFuture<'_, ()> {
        self.0.watches.begin();
        async {}.boxed_local()
    }

    fn flush(&self) -> LocalBoxFuture<'_, Result<(), String>> {
        self.0.flushes.fetch_add(1, Ordering::SeqCst);
        match self.0.hangs_on_flush.load(Ordering::SeqCst) {
            true => std::future::pending().boxed_local(),
            false => async { Ok(()) }.boxed_local(),
        }
    }

    fn failed(&self) -> LocalBoxFuture<'_, String> {
        async {
            self.0.failed.begun().await;
            self.0.failure.lock().clone()
        }
        .boxed_local()
    }

    fn give_up(&self) -> LocalBoxFuture<'_, ()> {
        self.0.give_up_count.fetch_add(1, Ordering::SeqCst);
        async {}.boxed_local()
    }
}

/// Sends one line and then nothing until the server stops.
async fn watch(application: web::Data<TestApplication>) -> HttpResponse {
    let application = application.as_ref().clone();
    let guard = application.guard();
    let silence = stream::once(async move {
        application.0.watches.begun().await;
        drop(guard);
    })
    .filter_map(|()| async { None });
    let line = stream::once(async { Ok::<_, actix_web::Error>(Bytes::from_static(b"{}\n")) });
    // An empty chunk must neither end nor stall the stream.
    let nothing = stream::once(async { Ok(Bytes::new()) });
    HttpResponse::Ok().streaming(line.chain(nothing).chain(silence))
}

async fn never(application: web::Data<TestApplication>) -> HttpResponse {
    let _guard = application.guard();
    std::future::pending().await
}

async fn gated(application: web::Data<TestApplication>) -> &'static str {
    let _guard = application.guard();
    application.0.gate.begun().await;
    "gated"
}

async fn broken() -> HttpResponse {
    let start = stream::once(async { Ok(Bytes::from_static(b"start")) });
    let end = stream::once(async { Err(actix_web::error::ErrorInternalServerError("broken")) });
    HttpResponse::Ok().streaming(start.chain(end))
}

async fn panics() -> HttpResponse {
    panic!("on purpose")
}

async fn peer(request: HttpRequest) -> String {
    let peer = request.extensions().get::<Peer>().cloned().unwrap();
    let subject = peer.certificates.0.first().map_or_else(
        || "none".to_owned(),
        |der| {
            let certificate = X509::from_der(der).unwrap();
            let name = certificate.subject_name().entries_by_nid(openssl::nid::Nid::COMMONNAME).next();
            String::from_utf8_lossy(name.unwrap().data().as_slice()).into_owned()
        },
    );
    assert_eq!(request.peer_addr(), peer.address);
    format!("{} {subject}", peer.address.unwrap().ip())
}

/// Notes how far the client of the connection is trusted.
async fn login(request: HttpRequest, trust: ClientTrust) -> HttpResponse {
    let peer = request.extensions().get::<Peer>().cloned().unwrap();
    match peer.connection.unwrap().note_caller(trust) {
        true => HttpResponse::Ok().body("welcome"),
        false => HttpResponse::TooManyRequests().force_close().body("too many connections"),
    }
}

/// As [`start`], with a given clock.
pub fn start_with_clock(config: Config, clock: Clock) -> (Handle, TestApplication) {
    let application = TestApplication::default();
    let assembly = TestAssembly { application: application.clone(), refuse: false };
    (Server::start_with(config, clock, assembly).unwrap(), application)
}

pub fn start(config: Config) -> (Handle, TestApplication) {
    start_with_clock(config, Clock::system())
}

/// Waits until a condition holds.
pub async fn wait_until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect("the condition becomes true in time");
}

/// A client certificate that no CA of the server issued.
pub fn unknown_client_identity() -> Identity {
    let group = openssl::ec::EcGroup::from_curve_name(openssl::nid::Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(openssl::ec::EcKey::generate(&group).unwrap()).unwrap();
    let mut name = openssl::x509::X509Name::builder().unwrap();
    name.append_entry_by_text("CN", "nobody").unwrap();
    let name = name.build();
    let mut builder = X509::builder().unwrap();
    builder.set_subject_name(&name).unwrap();
    builder.set_issuer_name(&name).unwrap();
    builder.set_not_before(&openssl::asn1::Asn1Time::from_unix(0).unwrap()).unwrap();
    builder.set_not_after(&openssl::asn1::Asn1Time::from_unix(1).unwrap()).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.sign(&key, openssl::hash::MessageDigest::sha256()).unwrap();
    Identity {
        certificates_pem: builder.build().to_pem().unwrap(),
        key_pem: key.private_key_to_pem_pkcs8().unwrap(),
    }
}

async fn dial(server: &Handle, identity: Option<&Identity>, protocols: &[u8]) -> SslStream<TcpStream> {
    try_dial(server, Ipv4Addr::LOCALHOST, identity, protocols).await.expect("it is admitted")
}

/// A TCP connection from one of the many addresses that this host has.
pub async fn tcp(server: &Handle, source: Ipv4Addr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(source), 0)).unwrap();
    socket.connect(server.address()).await.unwrap()
}

/// Connects from an address; `None` if the server closes the connection before the handshake is complete.
async fn try_dial(
    server: &Handle,
    source: Ipv4Addr,
    identity: Option<&Identity>,
    protocols: &[u8],
) -> Option<SslStream<TcpStream>> {
    let identity = identity.map(|identity| (&identity.certificates_pem[..], &identity.key_pem[..]));
    let ssl = tls::session(&tls::context(Some(server.ca_pem()), identity, protocols), "localhost");
    let tcp = tcp(server, source).await;
    tcp.set_nodelay(true).unwrap();
    let mut stream = SslStream::new(ssl, tcp).unwrap();
    Pin::new(&mut stream).connect().await.ok()?;
    Some(stream)
}

/// The protocol that is negotiated with a client that supports both.
pub async fn negotiated_protocol(server: &Handle) -> Option<Vec<u8>> {
    let stream = dial(server, None, b"\x02h2\x08http/1.1").await;
    stream.ssl().selected_alpn_protocol().map(<[u8]>::to_vec)
}

/// The response to bytes without TLS.
pub async fn send_plain(address: SocketAddr, bytes: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await?;
    let mut response = Vec::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut response)).await.expect("it is closed")?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}

pub fn get(path: &str) -> http::Request<()> {
    http::Request::get(format!("https://localhost{path}")).body(()).unwrap()
}

/// A whole body as text.
pub async fn text(mut body: RecvStream) -> String {
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        bytes.extend_from_slice(&chunk);
    }
    String::from_utf8(bytes).unwrap()
}

/// An HTTP/2 client with one connection.
pub struct Client {
    requests: SendRequest<Bytes>,
    connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
    max_streams: Arc<AtomicUsize>,
}

impl Client {
    pub async fn connect(server: &Handle, identity: Option<&Identity>) -> Client {
        let stream = dial(server, identity, b"\x02h2").await;
        let (requests, mut connection) = h2::client::handshake::<_>(stream).await.unwrap();
        let max_streams = Arc::new(AtomicUsize::new(0));
        let limit = Arc::clone(&max_streams);
        let connection = tokio::spawn(std::future::poll_fn(move |cx| {
            let poll = connection.poll_unpin(cx);
            limit.store(connection.max_concurrent_send_streams(), Ordering::SeqCst);
            poll
        }));
        Client { requests, connection, max_streams }
    }

    pub fn begin_request(&mut self, request: http::Request<()>) -> ResponseFuture {
        self.requests.send_request(request, true).unwrap().0
    }

    /// Begins a request on a connection that may be closed.
    pub fn try_begin_request(&mut self, request: http::Request<()>) -> Option<ResponseFuture> {
        self.requests.send_request(request, true).ok().map(|stream| stream.0)
    }

    pub async fn send(&mut self, request: http::Request<()>) -> http::Response<RecvStream> {
        self.try_send(request).await.unwrap()
    }

    pub async fn try_send(
        &mut self,
        request: http::Request<()>,
    ) -> Result<http::Response<RecvStream>, h2::Error> {
        let mut ready = self.requests.clone().ready().await?;
        let response = ready.send_request(request, true)?.0;
        tokio::time::timeout(TIMEOUT, response).await.expect("it is answered")
    }

    pub async fn upload(&mut self, request: http::Request<()>, body: Bytes) -> http::Response<RecvStream> {
        let (response, mut stream) = self.requests.send_request(request, false).unwrap();
        push(&mut stream, body).await;
        response.await.unwrap()
    }

    /// Lets the begun requests reach the server.
    pub async fn flush(&mut self) {
        self.send(get("/hello")).await;
    }

    pub fn max_streams(&self) -> usize {
        self.max_streams.load(Ordering::SeqCst)
    }

    /// Closes the connection without GOAWAY.
    pub async fn abort(self) {
        self.connection.abort();
        let _ = self.connection.await;
    }

    /// Waits until the server has closed the connection.
    pub async fn wait_for_close(self) -> Result<(), h2::Error> {
        drop(self.requests);
        tokio::time::timeout(TIMEOUT, self.connection).await.expect("the connection ends").unwrap()
    }
}

async fn push(stream: &mut SendStream<Bytes>, mut body: Bytes) {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let capacity = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap().unwrap();
        let part = body.split_to(capacity.min(body.len()));
        stream.send_data(part, body.is_empty()).unwrap();
    }
}

pub mod h1 {
    //! An HTTP/1.1 client that sends the given bytes unchanged.

    use super::*;

    pub struct Client(SslStream<TcpStream>);

    impl Client {
        pub async fn connect(server: &Handle, identity: Option<&Identity>) -> Client {
            Client(dial(server, identity, b"\x08http/1.1").await)
        }

        /// Connects from another address of this host; `None` if the server refuses.
        pub async fn connect_from(server: &Handle, source: Ipv4Addr) -> Option<Client> {
            try_dial(server, source, None, b"\x08http/1.1").await.map(Client)
        }

        /// Sends a GET and reads the response up to `end`.
        pub async fn get(&mut self, path: &str, headers: &str, end: &str) -> String {
            self.write(format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n").as_bytes()).await;
            self.read_until(end).await
        }

        pub async fn write(&mut self, bytes: &[u8]) {
            // A server that refuses may close before it has read everything.
            let _ = self.0.write_all(bytes).await;
        }

        /// Reads until `end` was received.
        pub async fn read_until(&mut self, end: &str) -> String {
            let mut bytes = Vec::new();
            let reading = async {
                while !String::from_utf8_lossy(&bytes).contains(end) {
                    let byte = self.0.read_u8().await.expect("the connection is open");
                    bytes.push(byte);
                }
            };
            tokio::time::timeout(TIMEOUT, reading).await.expect("it comes");
            String::from_utf8_lossy(&bytes).into_owned()
        }

        /// Reads until the server closes.
        pub async fn read_to_end(&mut self) -> String {
            let mut bytes = Vec::new();
            let _ =
                tokio::time::timeout(TIMEOUT, self.0.read_to_end(&mut bytes)).await.expect("it is closed");
            String::from_utf8_lossy(&bytes).into_owned()
        }

        /// Closes the writing half of the TCP connection.
        pub async fn close_writing(&mut self) {
            self.0.get_mut().shutdown().await.unwrap();
        }
    }
}
