use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::rc::Rc;

use bytes::Bytes;
use futures::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::Semaphore;

use super::*;
use crate::client_tls::{authority, identity_digest};
use crate::limits::HTTP2_CONNECTIONS_PER_DESTINATION;

/// In these tests, whatever is connected to speaks HTTP/2.
impl Negotiated for DuplexStream {
    fn speaks_http2(&self) -> bool {
        true
    }
}

/// What a connection of the server does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behavior {
    /// Answers every request.
    Answer,
    /// Says after so many requests that it takes no more.
    GoAwayAfter(usize),
    /// Does not read.
    Hang,
    /// Takes two requests, and says then that it has processed the first alone.
    ProcessFirst,
}

/// A server, and what it has seen.
struct Server {
    behavior: fn(usize) -> Behavior,
    max_streams: u32,
    /// A response takes one permit.
    responses: Rc<Semaphore>,
    /// The requests in flight, of each connection.
    active: Rc<RefCell<Vec<usize>>>,
    /// The most of them at a time.
    peak: Rc<Cell<usize>>,
    resets: Rc<Cell<usize>>,
    served: Rc<Cell<usize>>,
    hanging: RefCell<Vec<DuplexStream>>,
}

impl Server {
    fn new(max_streams: u32, responses: usize, behavior: fn(usize) -> Behavior) -> Server {
        Server {
            behavior,
            max_streams,
            responses: Rc::new(Semaphore::new(responses)),
            active: Rc::default(),
            peak: Rc::default(),
            resets: Rc::default(),
            served: Rc::default(),
            hanging: RefCell::default(),
        }
    }

    fn connections(&self) -> usize {
        self.active.borrow().len()
    }

    fn in_flight(&self) -> usize {
        self.active.borrow().iter().sum()
    }

    async fn connect(&self) -> Result<DuplexStream, Infallible> {
        // As long as a handshake, in which others come.
        tokio::task::yield_now().await;
        let (near, far) = duplex(64 << 10);
        let number = self.connections();
        self.active.borrow_mut().push(0);
        match (self.behavior)(number) {
            Behavior::Hang => self.hanging.borrow_mut().push(far),
            Behavior::ProcessFirst => drop(actix_rt::spawn(process_first(far))),
            behavior => self.serve(number, far, behavior),
        }
        Ok(near)
    }

    fn serve(&self, number: usize, io: DuplexStream, behavior: Behavior) {
        let (responses, active, peak) = (self.responses.clone(), self.active.clone(), self.peak.clone());
        let (resets, served, max_streams) = (self.resets.clone(), self.served.clone(), self.max_streams);
        actix_rt::spawn(async move {
            let mut builder = h2::server::Builder::new();
            let mut connection =
                builder.max_concurrent_streams(max_streams).handshake::<_, Bytes>(io).await.unwrap();
            let mut count = 0;
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                count += 1;
                if behavior == Behavior::GoAwayAfter(count) {
                    connection.graceful_shutdown();
                }
                active.borrow_mut()[number] += 1;
                peak.set(peak.get().max(active.borrow()[number]));
                let (responses, active, resets, served) =
                    (responses.clone(), active.clone(), resets.clone(), served.clone());
                actix_rt::spawn(async move {
                    tokio::select! {
                        permit = responses.acquire() => {
                            permit.unwrap().forget();
                            served.set(served.get() + 1);
                            active.borrow_mut()[number] -= 1;
                            let mut body = respond.send_response(Response::new(()), false).unwrap();
                            body.send_data("ok".into(), true).unwrap();
                        }
                        _ = poll_fn(|cx| respond.poll_reset(cx)) => {
                            active.borrow_mut()[number] -= 1;
                            resets.set(resets.get() + 1);
                        }
                    }
                });
            }
        });
    }

    async fn send(&self, pool: &Arc<Pool>, purpose: Purpose) -> Result<Vec<u8>, String> {
        let request =
            Request::post("/").header(HOST, "h").body(RequestBody::Whole(Some("{}".into()))).unwrap();
        let response = pool.send(&origin(purpose), request, 1_000, async || self.connect().await).await;
        response.map(|response| response.body).map_err(|error| format!("{error:?}"))
    }

    async fn wait_for_requests(&self, count: usize) {
        wait(|| self.in_flight() == count).await;
    }
}

async fn wait(is_reached: impl Fn() -> bool) {
    for _ in 0..5_000 {
        if is_reached() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("it does not come to this");
}

/// The frames of a connection whose second request is not processed, although it has arrived.
async fn process_first(mut io: DuplexStream) {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    io.write_all(&SETTINGS).await.unwrap();
    let mut preface = [0; 24];
    io.read_exact(&mut preface).await.unwrap();
    let mut ended = 0;
    while ended < 2 {
        let mut head = [0; 9];
        io.read_exact(&mut head).await.unwrap();
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        io.read_exact(&mut vec![0; length]).await.unwrap();
        // The end of a request is in its last DATA frame.
        ended += usize::from(head[3] == 0 && head[4] & 1 == 1);
    }
    // GOAWAY with the last stream 1, then the response on that: status 200 without a body.
    let go_away = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let response = [0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88];
    io.write_all(&go_away).await.unwrap();
    io.write_all(&response).await.unwrap();
    let _ended = io.read_to_end(&mut Vec::new()).await;
}

fn origin(purpose: Purpose) -> Arc<Origin> {
    let private = Some(TlsIdentity {
        server_name: "s".to_owned(),
        authority: authority(Some(b"one"), true),
        identity: identity_digest(None),
    });
    let (server, route) = (HostPort::new("h", 443), Route::default());
    Arc::new(Origin { purpose, server, private, route, offers_http2: true })
}

fn pool() -> Arc<Pool> {
    Pool::new(Clock::system())
}

/// As an object that names the server has it.
fn keep(pool: &Arc<Pool>) -> KeepAliveHandle {
    pool.keep_alive(Purpose::Admission, "s", authority(Some(b"one"), true))
}

#[actix_rt::test]
async fn hundred_requests_at_once_use_one_connection() {
    let (server, pool) = (Server::new(1_000, 0, |_| Behavior::Answer), pool());
    let _kept = keep(&pool);
    for round in 1..=2 {
        let requests = join_all((0..100).map(|_| server.send(&pool, Purpose::Admission)));
        let release = async {
            server.wait_for_requests(100).await;
            server.responses.add_permits(100);
        };
        let (responses, ()) = tokio::join!(requests, release);
        assert!(responses.iter().all(|response| response.as_deref() == Ok(b"ok")), "{responses:?}");
        assert_eq!((server.connections(), server.served.get(), pool.idle_count()), (1, round * 100, 1));
    }
    assert!(pool.state.lock().shared.values().all(|peer| peer.idle() == 1));
}

#[actix_rt::test]
async fn further_connections_are_made_when_the_streams_of_a_server_are_used_up() {
    let (server, pool) = (Server::new(10, 0, |_| Behavior::Answer), pool());
    let requests = join_all((0..35).map(|_| server.send(&pool, Purpose::Service)));
    let release = async {
        server.wait_for_requests(35).await;
        server.responses.add_permits(35);
    };
    let (responses, ()) = tokio::join!(requests, release);
    assert!(responses.iter().all(Result::is_ok), "{responses:?}");
    assert_eq!((server.connections(), server.peak.get(), server.resets.get()), (4, 10, 0));
}

#[actix_rt::test]
async fn request_waits_for_a_stream_where_no_more_connections_may_be_made() {
    let (server, pool) = (Server::new(1, 0, |_| Behavior::Answer), pool());
    let count = HTTP2_CONNECTIONS_PER_DESTINATION + 5;
    let requests = join_all((0..count).map(|_| server.send(&pool, Purpose::Service)));
    let release = async {
        server.wait_for_requests(HTTP2_CONNECTIONS_PER_DESTINATION).await;
        server.responses.add_permits(count);
    };
    let (responses, ()) = tokio::join!(requests, release);
    assert!(responses.iter().all(Result::is_ok), "{responses:?}");
    assert_eq!(server.connections(), HTTP2_CONNECTIONS_PER_DESTINATION);
}

#[actix_rt::test]
async fn server_that_goes_away_under_load_loses_no_request() {
    let (server, pool) = (Server::new(100, 10_000, |_| Behavior::GoAwayAfter(7)), pool());
    let _kept = keep(&pool);
    for _ in 0..20 {
        let responses = join_all((0..10).map(|_| server.send(&pool, Purpose::Admission))).await;
        assert!(responses.iter().all(Result::is_ok), "{responses:?}");
    }
    assert_eq!(server.served.get(), 200, "no request is processed twice");
    assert!(server.connections() > 2);
}

#[actix_rt::test]
async fn request_that_a_server_has_not_processed_is_sent_again() {
    let behavior = |number| if number == 0 { Behavior::ProcessFirst } else { Behavior::Answer };
    let (server, pool) = (Server::new(100, 10, behavior), pool());
    let _kept = keep(&pool);
    let send = || server.send(&pool, Purpose::Admission);
    let (first, second) = tokio::join!(send(), send());
    let mut bodies = [first.unwrap(), second.unwrap()];
    bodies.sort();
    assert_eq!(bodies, [b"".to_vec(), b"ok".to_vec()], "one of each connection");
    assert_eq!((server.connections(), server.served.get()), (2, 1));
}

#[actix_rt::test]
async fn hung_connection_is_replaced() {
    let behavior = |number| if number == 0 { Behavior::Hang } else { Behavior::Answer };
    let server = Server::new(100, 10, behavior);
    // The second connection is pinged as well, and must not be taken for dead on a busy machine.
    let pings = Pings { interval: Duration::from_millis(50), timeout: Duration::from_secs(2) };
    let pool = Arc::new(Pool { pings, ..Pool::unshared(Clock::system(), Routes::default()) });
    let _kept = keep(&pool);
    let error = server.send(&pool, Purpose::Admission).await.unwrap_err();
    assert!(error.contains("KeepAlive"), "{error}");
    wait(|| pool.state.lock().shared.is_empty()).await;
    assert_eq!(server.send(&pool, Purpose::Admission).await.unwrap(), b"ok");
    assert_eq!(server.connections(), 2);
}

#[actix_rt::test]
async fn cancelled_request_resets_its_stream_alone() {
    let (server, pool) = (Server::new(100, 0, |_| Behavior::Answer), pool());
    let mut cancelled = Box::pin(server.send(&pool, Purpose::Service));
    let other = server.send(&pool, Purpose::Service);
    let cancelling = async {
        while server.in_flight() < 2 {
            assert!(futures::poll!(&mut cancelled).is_pending());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        drop(cancelled);
        wait(|| server.resets.get() == 1).await;
        server.responses.add_permits(1);
    };
    let (response, ()) = tokio::join!(other, cancelling);
    assert_eq!((response.unwrap(), server.connections()), (b"ok".to_vec(), 1));
}

#[actix_rt::test]
async fn http2_connection_ends_with_the_last_handle_or_when_it_is_idle_for_long() {
    let (server, pool) = (Server::new(100, 10, |_| Behavior::Answer), pool());
    let kept = keep(&pool);
    server.send(&pool, Purpose::Admission).await.unwrap();
    assert_eq!(pool.idle_count(), 1);
    drop(kept);
    assert!(pool.idle_count() == 0 && pool.state.lock().shared.is_empty());
    let idle_timeout = Duration::from_millis(50);
    let pool = Arc::new(Pool { idle_timeout, ..Pool::unshared(Clock::system(), Routes::default()) });
    server.send(&pool, Purpose::Service).await.unwrap();
    assert_eq!(pool.idle_count(), 1);
    wait(|| pool.state.lock().shared.is_empty()).await;
}

#[actix_rt::test]
async fn requests_to_a_server_that_no_object_names_do_not_wait_for_each_other() {
    let (server, pool) = (Server::new(100, 0, |_| Behavior::Answer), pool());
    let requests = join_all((0..20).map(|_| server.send(&pool, Purpose::Admission)));
    let release = async {
        server.wait_for_requests(20).await;
        server.responses.add_permits(20);
    };
    let (responses, ()) = tokio::join!(requests, release);
    assert!(responses.iter().all(Result::is_ok), "{responses:?}");
    assert!(pool.idle_count() == 0 && pool.state.lock().shared.is_empty());
}
