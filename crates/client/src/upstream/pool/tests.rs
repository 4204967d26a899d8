use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;

use pilothouse_types::clock::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::client_tls::{self, TlsPeer, TrustedCas, authority, identity_digest};
use crate::kubeconfig::Proxy;
use crate::routes::ProxyHop;

impl Negotiated for TcpStream {}

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The response to a request by the numbers of connection and request, and whether the connection stays open.
type Behavior = dyn Fn(usize, usize) -> (&'static [u8], bool);

/// A server that counts its connections and the requests on each.
struct Server {
    address: std::net::SocketAddr,
    requests: Rc<RefCell<Vec<usize>>>,
    open: Rc<Cell<usize>>,
    /// Closes all idle connections.
    close_all: Rc<tokio::sync::Notify>,
}

async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head
        .to_lowercase()
        .split("content-length: ")
        .nth(1)
        .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse::<usize>().unwrap());
    stream.read_exact(&mut vec![0; length]).await.ok()?;
    Some(head)
}

impl Server {
    async fn start(behavior: impl Fn(usize, usize) -> (&'static [u8], bool) + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server {
            address: listener.local_addr().unwrap(),
            requests: Rc::default(),
            open: Rc::default(),
            close_all: Rc::default(),
        };
        let (requests, open, close_all) =
            (server.requests.clone(), server.open.clone(), server.close_all.clone());
        let behavior: Rc<Behavior> = Rc::new(behavior);
        actix_rt::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (requests, open, close_all, behavior) =
                    (requests.clone(), open.clone(), close_all.clone(), behavior.clone());
                let number = requests.borrow().len();
                requests.borrow_mut().push(0);
                open.set(open.get() + 1);
                actix_rt::spawn(async move {
                    for turn in 0.. {
                        let read = tokio::select! {
                            read = head(&mut stream) => read,
                            () = close_all.notified() => None,
                        };
                        if read.is_none() {
                            break;
                        }
                        requests.borrow_mut()[number] += 1;
                        let (response, stays_open) = behavior(number, turn);
                        let _ = stream.write_all(response).await;
                        if !stays_open {
                            break;
                        }
                    }
                    drop(stream);
                    open.set(open.get() - 1);
                });
            }
        });
        server
    }

    fn origin(&self, purpose: Purpose) -> Arc<Origin> {
        let private = Some(TlsIdentity {
            server_name: "s".to_owned(),
            authority: authority(Some(b"one"), true),
            identity: identity_digest(None),
        });
        let server = HostPort::new(&self.address.ip().to_string(), self.address.port());
        Arc::new(Origin { purpose, server, private, route: Route::default(), offers_http2: false })
    }

    async fn send(&self, pool: &Arc<Pool>, origin: &Arc<Origin>, method: Method) -> Option<Vec<u8>> {
        let dial = async || Ok::<_, Infallible>(TcpStream::connect(self.address).await.unwrap());
        let body = match method {
            Method::GET => RequestBody::Empty,
            _ => RequestBody::Whole(Some("{}".into())),
        };
        let request = Request::builder().method(method).uri("/").body(body).unwrap();
        pool.send(origin, request, 1_000, dial).await.ok().map(|response| response.body)
    }

    /// Waits until exactly `open` connections are open.
    async fn wait_for_open(&self, open: usize) {
        for _ in 0..1_000 {
            if self.open.get() == open {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("{} connections are open, not {open}", self.open.get());
    }
}

fn pool() -> Arc<Pool> {
    Pool::new(Clock::system())
}

#[actix_rt::test]
async fn requests_share_one_pooled_connection() {
    let server = Server::start(|_, _| (RESPONSE, true)).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Service));
    for turn in 0..100 {
        let method = if turn % 2 == 0 { Method::POST } else { Method::GET };
        assert_eq!(server.send(&pool, &origin, method).await.unwrap(), b"ok");
        assert_eq!(pool.idle_count(), 1);
    }
    assert_eq!(*server.requests.borrow(), [100]);
}

#[actix_rt::test]
async fn requests_to_a_server_that_chooses_http1_do_not_wait_for_each_other() {
    let server = Server::start(|_, turn| if turn == 0 { (RESPONSE, true) } else { (b"", true) }).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Service));
    let origin = Arc::new(Origin { offers_http2: true, ..Origin::clone(&origin) });
    let responses =
        futures::future::join_all((0..20).map(|_| server.send(&pool, &origin, Method::POST))).await;
    assert!(responses.into_iter().all(|response| response.unwrap() == b"ok"));
    assert_eq!(*server.requests.borrow(), [1; 20]);
    assert!(pool.state.lock().shared.is_empty());
}

#[actix_rt::test]
async fn connections_of_different_origins_are_not_shared() {
    let server = Server::start(|_, _| (RESPONSE, true)).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Service));
    let mut origins = vec![origin.clone(), server.origin(Purpose::Kubelet)];
    let mut add_variant = |change: &dyn Fn(&mut Origin)| {
        let mut variant = Origin::clone(&origin);
        change(&mut variant);
        origins.push(Arc::new(variant));
    };
    add_variant(&|origin| origin.private.as_mut().unwrap().authority = authority(Some(b"two"), true));
    add_variant(&|origin| origin.private.as_mut().unwrap().authority = authority(None, true));
    add_variant(&|origin| origin.private.as_mut().unwrap().authority = authority(Some(b"one"), false));
    add_variant(&|origin| origin.private.as_mut().unwrap().identity = identity_digest(Some((b"c", b"k"))));
    add_variant(&|origin| origin.private.as_mut().unwrap().server_name = "t".to_owned());
    add_variant(&|origin| origin.private = None);
    add_variant(&|origin| origin.server.host = "localhost".to_owned());
    add_variant(&|origin| origin.server.port += 1);
    let hop = |tls: Option<&TlsIdentity>| ProxyHop {
        proxy: Proxy::parse("https://a:b@p").unwrap(),
        tls: tls.map(|identity| TlsPeer {
            context: client_tls::context(TrustedCas::Anybody, None).unwrap(),
            verifies: true,
            identity: identity.clone(),
        }),
    };
    add_variant(&|origin| origin.route.proxy = Some(hop(None)));
    add_variant(&|origin| origin.route.proxy = Some(hop(origin.private.as_ref())));
    add_variant(&|origin| origin.route.egress = Some(Egress::Cluster));
    for origin in &origins {
        server.send(&pool, origin, Method::GET).await.unwrap();
    }
    assert_eq!(*server.requests.borrow(), vec![1; origins.len()]);
    for origin in &origins {
        server.send(&pool, origin, Method::GET).await.unwrap();
    }
    assert_eq!(*server.requests.borrow(), vec![2; origins.len()]);
}

#[actix_rt::test]
async fn closed_idle_connection_is_replaced() {
    let server = Server::start(|_, _| (RESPONSE, true)).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Service));
    for _ in 0..20 {
        for method in [Method::POST, Method::GET] {
            assert_eq!(server.send(&pool, &origin, method).await.unwrap(), b"ok");
            server.close_all.notify_waiters();
            server.wait_for_open(0).await;
        }
    }
    tokio::task::yield_now().await;
    assert_eq!(pool.idle_count(), 0, "the pool removes it");
}

#[actix_rt::test]
async fn request_is_repeated_only_if_repeatable_and_without_response() {
    // Each connection answers one request, then reads another and closes.
    let server = Server::start(|_, turn| if turn == 0 { (RESPONSE, true) } else { (b"", false) }).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Kubelet));
    server.send(&pool, &origin, Method::GET).await.unwrap();
    assert_eq!(server.send(&pool, &origin, Method::GET).await.unwrap(), b"ok");
    assert_eq!(*server.requests.borrow(), [2, 1]);
    assert!(server.send(&pool, &origin, Method::POST).await.is_none());
    assert_eq!(*server.requests.borrow(), [2, 2], "it may have been processed");
    let review = server.origin(Purpose::Service);
    server.send(&pool, &review, Method::POST).await.unwrap();
    assert_eq!(
        server.send(&pool, &review, Method::POST).await.unwrap(),
        b"ok",
        "an access review can be repeated"
    );
    assert_eq!(*server.requests.borrow(), [2, 2, 2, 1]);
    let server = Server::start(|_, turn| if turn == 0 { (RESPONSE, true) } else { (b"HTTP/", false) }).await;
    let origin = server.origin(Purpose::Service);
    server.send(&pool, &origin, Method::GET).await.unwrap();
    assert!(server.send(&pool, &origin, Method::GET).await.is_none());
    assert_eq!(*server.requests.borrow(), [2], "a response had begun");
    // A request on a new connection is not repeated.
    let server = Server::start(|_, _| (b"", false)).await;
    assert!(server.send(&pool, &server.origin(Purpose::Service), Method::GET).await.is_none());
    assert_eq!(*server.requests.borrow(), [1]);
}

#[actix_rt::test]
async fn unfinished_or_closing_connections_are_not_pooled() {
    for response in [
        &b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"[..],
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
    ] {
        let server = Server::start(move |_, _| (response, true)).await;
        let (pool, origin) = (pool(), server.origin(Purpose::Service));
        let request = server.send(&pool, &origin, Method::GET);
        let _ = tokio::time::timeout(Duration::from_millis(100), request).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(pool.idle_count(), 0, "{}", String::from_utf8_lossy(response));
        server.wait_for_open(0).await;
    }
}

#[actix_rt::test]
async fn state_per_origin_are_bounded() {
    let server = Server::start(|_, _| (RESPONSE, true)).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Service));
    let count = IDLE_CONNECTIONS_PER_DESTINATION + 15;
    let responses =
        futures::future::join_all((0..count).map(|_| server.send(&pool, &origin, Method::POST))).await;
    assert!(responses.into_iter().all(|response| response.unwrap() == b"ok"));
    assert_eq!(pool.idle_count(), IDLE_CONNECTIONS_PER_DESTINATION);
    server.wait_for_open(IDLE_CONNECTIONS_PER_DESTINATION).await;
    let numbers: Vec<u64> = pool.state.lock().idle[&origin].iter().map(|idle| idle.http.number).collect();
    assert!(numbers.contains(&(count as u64)), "the newest is kept: {numbers:?}");
    drop(pool);
    server.wait_for_open(0).await;
}

#[actix_rt::test]
async fn pool_is_bounded_and_closes_the_longest_idle_connection() {
    let server = Server::start(|_, _| (RESPONSE, true)).await;
    let (pool, origin) = (Pool::new(Clock::manual(Timestamp(1))), server.origin(Purpose::Service));
    let with_port = |port: u16| {
        let server = HostPort { port, ..origin.server.clone() };
        Arc::new(Origin { server, ..Origin::clone(&origin) })
    };
    server.send(&pool, &with_port(1), Method::GET).await.unwrap();
    pool.clock.advance(Duration::from_secs(1));
    server.send(&pool, &with_port(2), Method::GET).await.unwrap();
    pool.state.lock().count = IDLE_CONNECTIONS;
    server.send(&pool, &with_port(3), Method::GET).await.unwrap();
    assert_eq!(pool.idle_count(), IDLE_CONNECTIONS);
    let mut ports: Vec<u16> = pool.state.lock().idle.keys().map(|origin| origin.server.port).collect();
    ports.sort_unstable();
    assert_eq!(ports, [2, 3]);
    server.wait_for_open(2).await;
}

#[actix_rt::test]
async fn idle_connection_expires() {
    let server = Server::start(|_, _| (RESPONSE, true)).await;
    let (pool, origin) = (Pool::new(Clock::manual(Timestamp(1))), server.origin(Purpose::Service));
    server.send(&pool, &origin, Method::GET).await.unwrap();
    pool.clock.advance(IDLE_CONNECTION_TIMEOUT);
    server.send(&pool, &origin, Method::GET).await.unwrap();
    assert_eq!(*server.requests.borrow(), [1, 1]);
    server.wait_for_open(1).await;
    // Also without further requests: the connection has a timer.
    let (clock, idle_timeout) = (Clock::system(), Duration::from_millis(50));
    let pool = Arc::new(Pool { idle_timeout, ..Pool::unshared(clock, Routes::default()) });
    server.send(&pool, &origin, Method::GET).await.unwrap();
    assert_eq!(pool.idle_count(), 1);
    server.wait_for_open(1).await;
    assert_eq!(pool.idle_count(), 0);
}

#[actix_rt::test]
async fn connections_close_with_the_last_keep_alive_handle() {
    let server = Server::start(|_, _| (RESPONSE, true)).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Admission));
    let keep_alive = || pool.keep_alive(Purpose::Admission, "s", authority(Some(b"one"), true));
    server.send(&pool, &origin, Method::GET).await.unwrap();
    assert_eq!(pool.idle_count(), 0, "no handle keeps it");
    let (first, second) = (keep_alive(), keep_alive());
    let _another = pool.keep_alive(Purpose::Conversion, "s", authority(Some(b"one"), true));
    server.send(&pool, &origin, Method::GET).await.unwrap();
    assert_eq!(pool.idle_count(), 1);
    drop(first);
    assert_eq!(pool.idle_count(), 1);
    drop(second);
    assert_eq!(pool.idle_count(), 0);
    server.wait_for_open(0).await;
    assert!(pool.state.lock().idle.is_empty() && pool.state.lock().handles_per_peer.len() == 1);
}

#[actix_rt::test]
async fn pooled_connection_is_used_by_its_own_thread_only() {
    let server = Server::start(|_, _| (RESPONSE, true)).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Service));
    server.send(&pool, &origin, Method::GET).await.unwrap();
    let (other_pool, same_origin) = (pool.clone(), origin.clone());
    let is_taken = std::thread::spawn(move || other_pool.take(&same_origin).is_some()).join().unwrap();
    assert!(!is_taken && pool.idle_count() == 1);
    assert!(pool.take(&origin).is_some());
    // The connections of a thread end with it.
    let (other_pool, address) = (pool.clone(), server.address);
    let run = move || {
        actix_rt::System::new().block_on(async move {
            let io = TcpStream::connect(address).await.unwrap();
            let mut connection = other_pool.open(Some(origin), io).await.unwrap();
            let request = Request::new(RequestBody::Empty);
            let response = connection.send(request).await.map_err(|error| error.into_error()).unwrap();
            http_connection::read::<()>(response, 10).await.map(drop).unwrap();
            connection.done();
            other_pool.idle_count()
        })
    };
    let thread = std::thread::spawn(run);
    while !thread.is_finished() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!((thread.join().unwrap(), pool.idle_count()), (1, 0));
}
