use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;

use pilothouse_types::clock::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// What a server does with a request of a connection; the first is 0. `false`: it hangs up.
type Deed = dyn Fn(usize, usize) -> (&'static [u8], bool);

/// A server that counts its connections and what is asked over each.
struct Server {
    address: std::net::SocketAddr,
    asked: Rc<RefCell<Vec<usize>>>,
    open: Rc<Cell<usize>>,
    /// Hangs up on all that wait.
    hang_up: Rc<tokio::sync::Notify>,
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
    async fn start(deed: impl Fn(usize, usize) -> (&'static [u8], bool) + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server {
            address: listener.local_addr().unwrap(),
            asked: Rc::default(),
            open: Rc::default(),
            hang_up: Rc::default(),
        };
        let (asked, open, hang_up) = (server.asked.clone(), server.open.clone(), server.hang_up.clone());
        let deed: Rc<Deed> = Rc::new(deed);
        actix_rt::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (asked, open, hang_up, deed) =
                    (asked.clone(), open.clone(), hang_up.clone(), deed.clone());
                let number = asked.borrow().len();
                asked.borrow_mut().push(0);
                open.set(open.get() + 1);
                actix_rt::spawn(async move {
                    for turn in 0.. {
                        let read = tokio::select! {
                            read = head(&mut stream) => read,
                            () = hang_up.notified() => None,
                        };
                        if read.is_none() {
                            break;
                        }
                        asked.borrow_mut()[number] += 1;
                        let (answer, goes_on) = deed(number, turn);
                        let _ = stream.write_all(answer).await;
                        if !goes_on {
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
            shown: shown(None),
        });
        let (host, port) = (self.address.ip().to_string(), self.address.port());
        Arc::new(Origin { purpose, host, port, private, proxy: None })
    }

    async fn ask(&self, pool: &Arc<Pool>, origin: &Arc<Origin>, method: Method) -> Option<Vec<u8>> {
        let dial = async { Ok::<_, Infallible>(TcpStream::connect(self.address).await.unwrap()) };
        let body = match method {
            Method::GET => RequestBody::Empty,
            _ => RequestBody::Whole(Some("{}".into())),
        };
        let request = Request::builder().method(method).uri("/").body(body).unwrap();
        pool.ask(origin, request, 1_000, dial).await.ok().map(|whole| whole.body)
    }

    /// Waits until only so many connections are open.
    async fn settles(&self, open: usize) {
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
async fn many_questions_go_over_one_connection() {
    let server = Server::start(|_, _| (ANSWER, true)).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Service));
    for turn in 0..100 {
        let method = if turn % 2 == 0 { Method::POST } else { Method::GET };
        assert_eq!(server.ask(&pool, &origin, method).await.unwrap(), b"ok");
        assert_eq!(pool.waiting(), 1);
    }
    assert_eq!(*server.asked.borrow(), [100]);
}

#[actix_rt::test]
async fn whoever_is_known_otherwise_is_somebody_else() {
    let server = Server::start(|_, _| (ANSWER, true)).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Service));
    let mut others = vec![origin.clone(), server.origin(Purpose::Kubelet)];
    let mut other = |change: &dyn Fn(&mut Origin)| {
        let mut changed = Origin::clone(&origin);
        change(&mut changed);
        others.push(Arc::new(changed));
    };
    other(&|one| one.private.as_mut().unwrap().authority = authority(Some(b"two"), true));
    other(&|one| one.private.as_mut().unwrap().authority = authority(None, true));
    other(&|one| one.private.as_mut().unwrap().authority = authority(Some(b"one"), false));
    other(&|one| one.private.as_mut().unwrap().shown = shown(Some((b"c", b"k"))));
    other(&|one| one.private.as_mut().unwrap().server_name = "t".to_owned());
    other(&|one| one.private = None);
    other(&|one| one.host = "localhost".to_owned());
    other(&|one| one.port += 1);
    other(&|one| one.proxy = Some(Proxy::parse("http://a:b@p").unwrap()));
    for one in &others {
        server.ask(&pool, one, Method::GET).await.unwrap();
    }
    assert_eq!(*server.asked.borrow(), vec![1; others.len()]);
    for one in &others {
        server.ask(&pool, one, Method::GET).await.unwrap();
    }
    assert_eq!(*server.asked.borrow(), vec![2; others.len()]);
}

#[actix_rt::test]
async fn a_connection_that_was_closed_meanwhile_goes_unnoticed() {
    let server = Server::start(|_, _| (ANSWER, true)).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Service));
    for _ in 0..20 {
        for method in [Method::POST, Method::GET] {
            assert_eq!(server.ask(&pool, &origin, method).await.unwrap(), b"ok");
            server.hang_up.notify_waiters();
            server.settles(0).await;
        }
    }
    tokio::task::yield_now().await;
    assert_eq!(pool.waiting(), 0, "it leaves by itself");
}

#[actix_rt::test]
async fn what_was_sent_is_sent_again_only_if_it_may_be_and_nothing_came_back() {
    // Each connection answers once, then reads a question and hangs up.
    let server = Server::start(|_, turn| if turn == 0 { (ANSWER, true) } else { (b"", false) }).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Kubelet));
    server.ask(&pool, &origin, Method::GET).await.unwrap();
    assert_eq!(server.ask(&pool, &origin, Method::GET).await.unwrap(), b"ok");
    assert_eq!(*server.asked.borrow(), [2, 1]);
    assert!(server.ask(&pool, &origin, Method::POST).await.is_none());
    assert_eq!(*server.asked.borrow(), [2, 2], "nobody knows whether it was done");
    let review = server.origin(Purpose::Service);
    server.ask(&pool, &review, Method::POST).await.unwrap();
    assert_eq!(
        server.ask(&pool, &review, Method::POST).await.unwrap(),
        b"ok",
        "who may do what can be asked twice"
    );
    assert_eq!(*server.asked.borrow(), [2, 2, 2, 1]);
    let server = Server::start(|_, turn| if turn == 0 { (ANSWER, true) } else { (b"HTTP/", false) }).await;
    let origin = server.origin(Purpose::Service);
    server.ask(&pool, &origin, Method::GET).await.unwrap();
    assert!(server.ask(&pool, &origin, Method::GET).await.is_none());
    assert_eq!(*server.asked.borrow(), [2], "an answer had begun");
    // On a fresh one nothing is asked twice.
    let server = Server::start(|_, _| (b"", false)).await;
    assert!(server.ask(&pool, &server.origin(Purpose::Service), Method::GET).await.is_none());
    assert_eq!(*server.asked.borrow(), [1]);
}

#[actix_rt::test]
async fn nothing_is_kept_that_was_not_read_to_its_end_or_does_not_want_to_be() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"[..],
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
    ] {
        let server = Server::start(move |_, _| (answer, true)).await;
        let (pool, origin) = (pool(), server.origin(Purpose::Service));
        let asked = server.ask(&pool, &origin, Method::GET);
        let _ = tokio::time::timeout(Duration::from_millis(100), asked).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(pool.waiting(), 0, "{}", String::from_utf8_lossy(answer));
        server.settles(0).await;
    }
}

#[actix_rt::test]
async fn many_at_once_have_a_connection_each_and_few_of_them_stay() {
    let server = Server::start(|_, _| (ANSWER, true)).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Service));
    let many = CONNECTIONS_KEPT_EACH + 15;
    let asked = futures::future::join_all((0..many).map(|_| server.ask(&pool, &origin, Method::POST))).await;
    assert!(asked.into_iter().all(|answer| answer.unwrap() == b"ok"));
    assert_eq!(pool.waiting(), CONNECTIONS_KEPT_EACH);
    server.settles(CONNECTIONS_KEPT_EACH).await;
    let numbers: Vec<u64> =
        pool.idle_connections.lock().waiting[&origin].iter().map(|waiting| waiting.line.number).collect();
    assert!(numbers.contains(&(many as u64)), "the newest is kept, whoever waits: {numbers:?}");
    drop(pool);
    server.settles(0).await;
}

#[actix_rt::test]
async fn all_together_are_only_so_many_and_the_oldest_goes() {
    let server = Server::start(|_, _| (ANSWER, true)).await;
    let (pool, origin) = (Pool::new(Clock::manual(Timestamp(1))), server.origin(Purpose::Service));
    let other = |port: u16| Arc::new(Origin { port, ..Origin::clone(&origin) });
    server.ask(&pool, &other(1), Method::GET).await.unwrap();
    pool.clock.advance(Duration::from_secs(1));
    server.ask(&pool, &other(2), Method::GET).await.unwrap();
    pool.idle_connections.lock().count = CONNECTIONS_KEPT;
    server.ask(&pool, &other(3), Method::GET).await.unwrap();
    assert_eq!(pool.waiting(), CONNECTIONS_KEPT);
    let mut kept: Vec<u16> = pool.idle_connections.lock().waiting.keys().map(|origin| origin.port).collect();
    kept.sort_unstable();
    assert_eq!(kept, [2, 3]);
    server.settles(2).await;
}

#[actix_rt::test]
async fn one_that_nobody_uses_leaves() {
    let server = Server::start(|_, _| (ANSWER, true)).await;
    let (pool, origin) = (Pool::new(Clock::manual(Timestamp(1))), server.origin(Purpose::Service));
    server.ask(&pool, &origin, Method::GET).await.unwrap();
    pool.clock.advance(CONNECTION_KEPT);
    server.ask(&pool, &origin, Method::GET).await.unwrap();
    assert_eq!(*server.asked.borrow(), [1, 1]);
    server.settles(1).await;
    // Also if nobody asks: the connection looks after itself.
    let (clock, kept_for) = (Clock::system(), Duration::from_millis(50));
    let pool = Arc::new(Pool { clock, kept_for, idle_connections: Lock::default() });
    server.ask(&pool, &origin, Method::GET).await.unwrap();
    assert_eq!(pool.waiting(), 1);
    server.settles(1).await;
    assert_eq!(pool.waiting(), 0);
}

#[actix_rt::test]
async fn connections_go_with_the_last_object_that_names_whom_they_lead_to() {
    let server = Server::start(|_, _| (ANSWER, true)).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Admission));
    let wanted = || pool.want(Purpose::Admission, "s", authority(Some(b"one"), true));
    server.ask(&pool, &origin, Method::GET).await.unwrap();
    assert_eq!(pool.waiting(), 0, "nobody wants it");
    let (one, other) = (wanted(), wanted());
    let _another = pool.want(Purpose::Conversion, "s", authority(Some(b"one"), true));
    server.ask(&pool, &origin, Method::GET).await.unwrap();
    assert_eq!(pool.waiting(), 1);
    drop(one);
    assert_eq!(pool.waiting(), 1);
    drop(other);
    assert_eq!(pool.waiting(), 0);
    server.settles(0).await;
    assert!(
        pool.idle_connections.lock().waiting.is_empty() && pool.idle_connections.lock().wanted.len() == 1
    );
}

#[actix_rt::test]
async fn no_other_thread_uses_a_connection() {
    let server = Server::start(|_, _| (ANSWER, true)).await;
    let (pool, origin) = (pool(), server.origin(Purpose::Service));
    server.ask(&pool, &origin, Method::GET).await.unwrap();
    let (elsewhere, same) = (pool.clone(), origin.clone());
    let taken = std::thread::spawn(move || elsewhere.take(&same).is_some()).join().unwrap();
    assert!(!taken && pool.waiting() == 1);
    assert!(pool.take(&origin).is_some());
    // What a thread has made ends with it.
    let (elsewhere, address) = (pool.clone(), server.address);
    let run = move || {
        actix_rt::System::new().block_on(async move {
            let io = TcpStream::connect(address).await.unwrap();
            let mut connection = elsewhere.open(Some(origin), io).await.unwrap();
            let request = Request::new(RequestBody::Empty);
            let response = connection.send(request).await.map_err(|failed| failed.into_error()).unwrap();
            http1_connection::read::<()>(response, 10).await.map(drop).unwrap();
            connection.done();
            elsewhere.waiting()
        })
    };
    let thread = std::thread::spawn(run);
    while !thread.is_finished() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!((thread.join().unwrap(), pool.waiting()), (1, 0));
}
