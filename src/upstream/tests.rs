use std::net::SocketAddr;

use futures::StreamExt as _;
use pilothouse_api::connect::Location;
use pilothouse_types::clock::Clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

fn upstream() -> Upstream {
    Upstream::new(&TlsFiles::default(), Duration::from_secs(10), Pool::new(Clock::system())).unwrap()
}

fn to(address: SocketAddr) -> Destination {
    Destination {
        location: Location {
            host: address.ip().to_string(),
            port: address.port(),
            path: "/x y".to_owned(),
            ..Location::default()
        },
        trust: Trust::Nobody,
        reach: AllowedAddresses::Any,
        is_patient: false,
        asker: String::new(),
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
async fn an_answer_comes_piece_by_piece_and_its_end_cuts_the_connection() {
    let (listener, address) = listen().await;
    let there = actix_rt::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n").await.unwrap();
        // The client drops the rest: this end sees that.
        let mut rest = [0; 1];
        (head, stream.read(&mut rest).await.unwrap_or(0))
    });
    let mut answer = upstream().ask(&to(address), get()).await.unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body.next().await.unwrap().unwrap(), "ab");
    drop(answer);
    let (head, rest) = there.await.unwrap();
    assert!(head.starts_with("GET /x%20y HTTP/1.1\r\n"), "{head}");
    assert_eq!(rest, 0);
}

#[actix_rt::test]
async fn somebody_who_does_not_answer_is_not_waited_for() {
    let (listener, address) = listen().await;
    let mut upstream = upstream();
    upstream.proxy_head_within = Duration::from_millis(20);
    let there = actix_rt::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        stream.read(&mut [0]).await.unwrap_or(0)
    });
    assert!(matches!(upstream.ask(&to(address), get()).await, Err(Failure::SlowAnswer)));
    assert_eq!(there.await.unwrap(), 0, "and is hung up on");
    let mut private = to(address);
    private.location.secure = true;
    let (_silent, address) = listen().await;
    private.location.port = address.port();
    upstream.connect_within = Duration::from_millis(20);
    assert!(matches!(upstream.ask(&private, get()).await, Err(Failure::SlowTls)));
}

#[actix_rt::test]
async fn failures_are_told_apart() {
    let (listener, address) = listen().await;
    drop(listener);
    let upstream = upstream();
    let refused = upstream.ask(&to(address), get()).await.err().unwrap();
    assert_eq!(refused.to_string(), format!("dial tcp {address}: connect: connection refused"));
    let mut hidden = to(address);
    hidden.reach = AllowedAddresses::GlobalUnicast;
    assert!(matches!(upstream.ask(&hidden, get()).await, Err(Failure::NotAllowed)));
    hidden.location.host = "localhost".to_owned();
    assert!(matches!(upstream.ask(&hidden, get()).await, Err(Failure::NotAllowed | Failure::Lookup(_))));
    let (listener, address) = listen().await;
    let there = actix_rt::spawn(async move { drop(listener.accept().await.unwrap()) });
    assert!(matches!(upstream.ask(&to(address), get()).await, Err(Failure::Broken(_))));
    there.await.unwrap();
}

#[actix_rt::test]
async fn what_is_wrong_with_a_handshake_is_told_in_words() {
    let (listener, address) = listen().await;
    let there = actix_rt::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        stream
    });
    let mut private = to(address);
    private.location.secure = true;
    let refused = upstream().ask(&private, get()).await.err().unwrap();
    assert!(
        refused.to_string().ends_with("tls: first record does not look like a TLS handshake"),
        "{refused}"
    );
    there.await.unwrap();
}

#[actix_rt::test]
async fn there_are_only_so_many_connections() {
    let (_listener, address) = listen().await;
    let mut upstream = upstream();
    upstream.places = ConnectionLimits::new(0);
    assert!(matches!(upstream.ask(&to(address), get()).await, Err(Failure::Busy)));
    // Extension servers and all others do not take each other's.
    let peer = ServerVerification { server_name: "x".to_owned(), authority_pem: Vec::new(), verifies: false };
    let extension = Destination { trust: Trust::Extension(Arc::new(peer)), ..to(address) };
    upstream.proxy_head_within = Duration::from_millis(20);
    assert!(matches!(upstream.ask(&extension, get()).await, Err(Failure::SlowAnswer)));
    upstream.extension_places = ConnectionLimits::new(0);
    assert!(matches!(upstream.ask(&extension, get()).await, Err(Failure::Busy)));
}

#[actix_rt::test]
async fn nobody_switches_who_was_not_asked_to() {
    let (listener, address) = listen().await;
    let there = actix_rt::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        let odd = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
        stream.write_all(odd).await.unwrap();
        stream.read(&mut [0]).await.unwrap_or(0)
    });
    assert!(matches!(upstream().ask(&to(address), get()).await, Err(Failure::Broken(_))));
    assert_eq!(there.await.unwrap(), 0, "and is hung up on");
}

#[actix_rt::test]
async fn after_a_switch_both_ends_say_what_they_like() {
    let (listener, address) = listen().await;
    let there = actix_rt::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = head(&mut stream).await;
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: X\r\nConnection: Upgrade\r\n\r\nfirst";
        stream.write_all(answer).await.unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        (head, said)
    });
    let mut ask = get();
    ask.headers.extend([header("upgrade", b"X").unwrap(), header("connection", b"Upgrade").unwrap()]);
    let Switched::Channel(mut channel) = upstream().switch(&to(address), ask).await.unwrap() else {
        panic!("no switch")
    };
    let mut first = [0; 5];
    channel.io().read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"first");
    channel.io().write_all(b"hello").await.unwrap();
    channel.io().flush().await.unwrap();
    drop(channel);
    let (head, said) = there.await.unwrap();
    assert!(head.contains("Upgrade: X\r\n"), "{head}");
    assert_eq!(said, "hello");
}

#[test]
fn what_extensions_are_shown_must_be_a_certificate_and_its_key() {
    let upstream = upstream();
    let nonsense = (b"nonsense".to_vec(), b"nonsense".to_vec());
    assert!(upstream.show_to_extensions(Some(nonsense)).is_err());
    assert!(upstream.show_to_extensions(None).is_ok());
}

#[actix_rt::test]
async fn an_extension_without_anybody_to_be_known_to_is_not_asked() {
    let (listener, address) = listen().await;
    let _there = actix_rt::spawn(async move { listener.accept().await.map(drop) });
    let peer = ServerVerification {
        server_name: "s.n.svc".to_owned(),
        authority_pem: b"nonsense".to_vec(),
        verifies: true,
    };
    let mut extension = to(address);
    extension.location.secure = true;
    extension.trust = Trust::Extension(Arc::new(peer));
    assert!(matches!(upstream().ask(&extension, get()).await, Err(Failure::NoAuthorities)));
}
