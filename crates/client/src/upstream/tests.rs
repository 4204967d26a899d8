use std::net::SocketAddr;

use futures::StreamExt as _;
use pilothouse_api::connect::Location;
use pilothouse_types::clock::Clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::egress::testing::{ProxyForm, TestProxy};
use crate::egress::{Egress, EgressSelector};
use crate::routes::Routes;

fn upstream() -> Upstream {
    Upstream::new(&TlsFiles::default(), Duration::from_secs(10), Pool::new(Clock::system())).unwrap()
}

fn destination(address: SocketAddr) -> Destination {
    Destination {
        location: Location {
            host: address.ip().to_string(),
            port: address.port(),
            path: "/x y".to_owned(),
            ..Location::default()
        },
        trust: Trust::Unverified,
        reach: AllowedAddresses::Any,
        egress: None,
        has_no_deadline: false,
        user: String::new(),
    }
}

fn get() -> UpstreamRequest {
    UpstreamRequest { method: Method::GET, headers: HeaderMap::new(), body: RequestBody::Empty }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[actix_rt::test]
async fn dropped_response_closes_the_connection() {
    let (listener, address) = listen().await;
    let server = actix_rt::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n").await.unwrap();
        // The client drops the rest: this end sees that.
        let mut rest = [0; 1];
        (head, stream.read(&mut rest).await.unwrap_or(0))
    });
    let mut response = upstream().send(&destination(address), get()).await.unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(response.body.next().await.unwrap().unwrap(), "ab");
    drop(response);
    let (head, rest) = server.await.unwrap();
    assert!(head.starts_with("GET /x%20y HTTP/1.1\r\n"), "{head}");
    assert_eq!(rest, 0);
}

#[actix_rt::test]
async fn unresponsive_server_times_out() {
    let (listener, address) = listen().await;
    let mut upstream = upstream();
    upstream.proxy_head_timeout = Duration::from_millis(20);
    let server = actix_rt::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        stream.read(&mut [0]).await.unwrap_or(0)
    });
    assert!(matches!(upstream.send(&destination(address), get()).await, Err(Failure::SlowResponse)));
    assert_eq!(server.await.unwrap(), 0, "the connection is closed");
    let mut private = destination(address);
    private.location.secure = true;
    let (_silent, address) = listen().await;
    private.location.port = address.port();
    upstream.connect_timeout = Duration::from_millis(20);
    assert!(matches!(upstream.send(&private, get()).await, Err(Failure::SlowTls)));
}

#[actix_rt::test]
async fn dial_failures_are_distinguished() {
    let (listener, address) = listen().await;
    drop(listener);
    let upstream = upstream();
    let error = upstream.send(&destination(address), get()).await.err().unwrap();
    assert_eq!(error.to_string(), format!("dial tcp {address}: connect: connection refused"));
    let mut hidden = destination(address);
    hidden.reach = AllowedAddresses::GlobalUnicast;
    assert!(matches!(upstream.send(&hidden, get()).await, Err(Failure::NotAllowed)));
    hidden.location.host = "localhost".to_owned();
    assert!(matches!(upstream.send(&hidden, get()).await, Err(Failure::NotAllowed | Failure::Lookup(_))));
    let (listener, address) = listen().await;
    let server = actix_rt::spawn(async move { drop(listener.accept().await.unwrap()) });
    assert!(matches!(upstream.send(&destination(address), get()).await, Err(Failure::Broken(_))));
    server.await.unwrap();
}

#[actix_rt::test]
async fn failed_tls_handshake_has_a_readable_error() {
    let (listener, address) = listen().await;
    let server = actix_rt::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        stream
    });
    let mut private = destination(address);
    private.location.secure = true;
    let error = upstream().send(&private, get()).await.err().unwrap();
    assert!(error.to_string().ends_with("tls: first record does not look like a TLS handshake"), "{error}");
    server.await.unwrap();
}

#[actix_rt::test]
async fn outgoing_connections_are_limited() {
    let (_listener, address) = listen().await;
    let mut upstream = upstream();
    upstream.slots = ConnectionLimits::new(0);
    assert!(matches!(upstream.send(&destination(address), get()).await, Err(Failure::Busy)));
    // Extension servers and all others do not take each other's.
    let peer = ServerVerification { server_name: "x".to_owned(), authority_pem: Vec::new(), verifies: false };
    let extension = Destination { trust: Trust::Extension(Arc::new(peer)), ..destination(address) };
    upstream.proxy_head_timeout = Duration::from_millis(20);
    assert!(matches!(upstream.send(&extension, get()).await, Err(Failure::SlowResponse)));
    upstream.extension_slots = ConnectionLimits::new(0);
    assert!(matches!(upstream.send(&extension, get()).await, Err(Failure::Busy)));
}

#[actix_rt::test]
async fn unsolicited_protocol_switch_is_an_error() {
    let (listener, address) = listen().await;
    let server = actix_rt::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        let switching = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
        stream.write_all(switching).await.unwrap();
        stream.read(&mut [0]).await.unwrap_or(0)
    });
    assert!(matches!(upstream().send(&destination(address), get()).await, Err(Failure::Broken(_))));
    assert_eq!(server.await.unwrap(), 0, "the connection is closed");
}

#[actix_rt::test]
async fn upgraded_connection_passes_bytes_both_ways() {
    let (listener, address) = listen().await;
    let server = actix_rt::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = head(&mut stream).await;
        let response = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: X\r\nConnection: Upgrade\r\n\r\nfirst";
        stream.write_all(response).await.unwrap();
        let mut received = String::new();
        stream.read_to_string(&mut received).await.unwrap();
        (head, received)
    });
    let mut request = get();
    request.headers.extend([header("upgrade", b"X").unwrap(), header("connection", b"Upgrade").unwrap()]);
    let UpgradeOutcome::Channel(mut channel) =
        upstream().switch(&destination(address), request).await.unwrap()
    else {
        panic!("no switch")
    };
    let mut first = [0; 5];
    channel.io().read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"first");
    channel.io().write_all(b"hello").await.unwrap();
    channel.io().flush().await.unwrap();
    drop(channel);
    let (head, received) = server.await.unwrap();
    assert!(head.contains("Upgrade: X\r\n"), "{head}");
    assert_eq!(received, "hello");
}

#[test]
fn extension_identity_must_be_a_certificate_and_key() {
    let upstream = upstream();
    let nonsense = (b"nonsense".to_vec(), b"nonsense".to_vec());
    assert!(upstream.set_extension_identity(Some(nonsense)).is_err());
    assert!(upstream.set_extension_identity(None).is_ok());
}

#[actix_rt::test]
async fn extension_with_invalid_ca_bundle_is_not_contacted() {
    let (listener, address) = listen().await;
    let _server = actix_rt::spawn(async move { listener.accept().await.map(drop) });
    let peer = ServerVerification {
        server_name: "s.n.svc".to_owned(),
        authority_pem: b"nonsense".to_vec(),
        verifies: true,
    };
    let mut extension = destination(address);
    extension.location.secure = true;
    extension.trust = Trust::Extension(Arc::new(peer));
    assert!(matches!(upstream().send(&extension, get()).await, Err(Failure::NoAuthorities)));
}

#[actix_rt::test]
async fn proxies_of_the_egress_selector_are_asked_only_for_allowed_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let (file, socket) = (directory.path().join("egress.yaml"), directory.path().join("socket"));
    let text = format!(
        "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n\
         - {{name: cluster, connection: {{proxyProtocol: HTTPConnect, transport: {{uds: {{udsName: '{}'}}}}}}}}\n",
        socket.display()
    );
    std::fs::write(&file, text).unwrap();
    let proxy = TestProxy::start(ProxyForm::HttpOnUnix(&socket), |_| None);
    let egress = EgressSelector::read(&file, &Clock::system()).unwrap();
    let routes = Routes { egress, ..Routes::default() };
    let pool = Pool::with_routes(Clock::system(), routes);
    let upstream = Upstream::new(&TlsFiles::default(), Duration::from_secs(10), pool).unwrap();
    let through = |address: &str| Destination {
        reach: AllowedAddresses::GlobalUnicast,
        egress: Some(Egress::Cluster),
        ..destination(address.parse().unwrap())
    };
    let error = upstream.send(&through("127.0.0.1:80"), get()).await.err().unwrap();
    assert!(matches!(error, Failure::NotAllowed), "{error}");
    let error = upstream.send(&through("192.0.2.7:80"), get()).await.err().unwrap();
    assert!(matches!(error, Failure::Proxy(_)), "{error}");
    assert_eq!(proxy.targets(), ["192.0.2.7:80"]);
}
