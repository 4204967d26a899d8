//! A crowd of clients that watch, on one thread. They find the marks of the writer by their bytes and parse nothing. Each has a
//! connection, or many share one over HTTP/2 as the clients in one program do.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::{Duration, Instant};

use h2::RecvStream;
use h2::client::SendRequest;
use tokio::io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_openssl::SslStream;

use super::load::{try_connect, try_connect_h2};
use super::process::cpu_of;

/// What a mark begins with. Behind it stand the number of the write and its moment.
pub const MARK: &[u8] = b"@@mark@@";
/// A whole mark: ten digits, a dash, twenty digits.
pub const MARK_BYTES: usize = 8 + 10 + 1 + 20;
const PATIENCE: Duration = Duration::from_secs(180);

fn since_start() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// The mark of a write that is made now.
pub fn mark(number: u64) -> String {
    format!("@@mark@@{number:010}-{:020}", since_start().as_nanos())
}

/// What a client does with what it is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// Reads it.
    Reads,
    /// Reads nothing until everybody else is done.
    Stalls,
    /// Reads it, and comes back when the connection breaks.
    Returns,
}

/// One client.
pub struct Watcher {
    /// The path with its query, but for the version.
    pub path: String,
    /// The version it begins at.
    pub from: u64,
    /// What it does.
    pub habit: Habit,
    /// The first number whose delay counts: what comes before it brings the server where it shall be measured.
    pub measured_from: u64,
}

/// Who watches, and how.
pub struct Crowd {
    /// The clients.
    pub watchers: Vec<Watcher>,
    /// How many of them have a connection together, over HTTP/2; one: each has its own, over HTTP/1.1.
    pub sharing: usize,
}

impl From<Vec<Watcher>> for Crowd {
    fn from(watchers: Vec<Watcher>) -> Crowd {
        Crowd { watchers, sharing: 1 }
    }
}

/// Where events come from.
enum Source {
    Socket(SslStream<TcpStream>),
    Stream(RecvStream),
}

/// What the crowd saw.
pub struct Followed {
    /// Events that were told.
    pub events: u64,
    /// From the start of the writes to the last event of those who read.
    pub taken: Duration,
    /// The CPU that the server had used then, of all its time.
    pub cpu: Duration,
    /// Watches that ended.
    pub cut: usize,
    /// Numbers that were skipped or told twice.
    pub wrong: u64,
    latencies: Vec<Duration>,
}

impl Followed {
    /// The delay that this share of the events kept.
    pub fn percentile(&mut self, share: f64) -> Duration {
        self.latencies.sort_unstable();
        let at = ((self.latencies.len() as f64 * share) as usize).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(at).copied().unwrap_or_default()
    }
}

#[derive(Default)]
struct Board {
    events: Cell<u64>,
    stalled_events: Cell<u64>,
    cut: Cell<usize>,
    wrong: Cell<u64>,
    latencies: RefCell<Vec<Duration>>,
    changed: Notify,
    read_now: Notify,
}

/// Opens all watches, then lets `act` write, and reads until `expected` events came to those who read and `late` to those
/// who did not. `in_order`: every watcher sees every number. `server`: the process whose CPU is read at the end.
pub fn follow<T: Send + 'static>(
    port: u16,
    crowd: impl Into<Crowd>,
    (expected, late): (u64, u64),
    in_order: bool,
    server: Option<u32>,
    act: impl FnOnce() -> T + Send + 'static,
) -> (Followed, T) {
    let Crowd { watchers, sharing } = crowd.into();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let board = Rc::new(Board::default());
        let (mut open, mut connection) = (Vec::new(), None);
        for (number, watcher) in watchers.into_iter().enumerate() {
            let Watcher { path, from, .. } = &watcher;
            let source = if sharing == 1 {
                Source::Socket(open_watch(port, path, *from).await.unwrap())
            } else {
                if number % sharing == 0 {
                    connection = Some(share(port).await);
                }
                Source::Stream(open_stream(connection.as_ref().unwrap(), port, path, *from).await)
            };
            open.push((source, watcher));
        }
        for (source, watcher) in open {
            tokio::task::spawn_local(one(port, source, watcher, in_order, Rc::clone(&board)));
        }
        let begun = Instant::now();
        let acting = std::thread::spawn(act);
        let done = async |reached: &dyn Fn() -> bool| {
            while !reached() {
                tokio::time::timeout(PATIENCE, board.changed.notified()).await.expect("events come");
            }
        };
        done(&|| board.events.get() >= expected).await;
        let taken = begun.elapsed();
        // Before anybody leaves: the end of a connection costs as much as many events.
        let cpu = server.map(cpu_of).unwrap_or_default();
        board.read_now.notify_waiters();
        done(&|| board.stalled_events.get() >= late).await;
        let followed = Followed {
            events: board.events.get(),
            taken,
            cpu,
            cut: board.cut.get(),
            wrong: board.wrong.get(),
            latencies: board.latencies.take(),
        };
        (followed, acting.join().unwrap())
    })
}

async fn open_watch(port: u16, path: &str, from: u64) -> std::io::Result<SslStream<TcpStream>> {
    let mut stream = try_connect(port).await?;
    let request = super::load::request("GET", &format!("{path}&resourceVersion={from}"), "");
    stream.write_all(&request).await?;
    // Byte by byte up to the end of the head: what follows belongs to the events.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if tokio::io::AsyncReadExt::read(&mut stream, &mut byte).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    Ok(stream)
}

/// A connection that many share. What they need of it while they read is done on this thread.
async fn share(port: u16) -> SendRequest<bytes::Bytes> {
    let io = try_connect_h2(port).await.unwrap();
    let mut builder = h2::client::Builder::new();
    // As Go's clients have it: 4 MiB for a stream, 1 GiB for all.
    builder.initial_window_size(4 << 20).initial_connection_window_size(1 << 30);
    let (requests, connection) = builder.handshake(io).await.unwrap();
    tokio::task::spawn_local(async move {
        // It ends with the process that is measured.
        let _ = connection.await;
    });
    requests
}

async fn open_stream(connection: &SendRequest<bytes::Bytes>, port: u16, path: &str, from: u64) -> RecvStream {
    let request = http::Request::get(format!("https://localhost:{port}{path}&resourceVersion={from}"))
        .header("authorization", "Bearer bench")
        .body(())
        .unwrap();
    let mut ready = connection.clone().ready().await.unwrap();
    let (answer, _) = ready.send_request(request, true).unwrap();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.into_body()
}

async fn one(port: u16, mut source: Source, watcher: Watcher, in_order: bool, board: Rc<Board>) {
    let Watcher { path, mut from, habit, measured_from } = watcher;
    if habit == Habit::Stalls {
        board.read_now.notified().await;
    }
    let (mut rest, mut last) = (Vec::new(), None);
    loop {
        let mut take = |bytes: &[u8]| {
            rest.extend_from_slice(bytes);
            let now = since_start();
            let mut used = 0;
            while let Some(found) = memchr::memmem::find(&rest[used..], MARK) {
                let Some(whole) = rest.get(used + found..used + found + MARK_BYTES) else { break };
                let text = String::from_utf8_lossy(&whole[MARK.len()..]).into_owned();
                let (number, moment) = text.split_once('-').unwrap();
                let (number, moment): (u64, u64) = (number.parse().unwrap(), moment.parse().unwrap());
                if in_order && last.is_some_and(|last| number != last + 1) {
                    board.wrong.set(board.wrong.get() + 1);
                }
                last = Some(number);
                if let Some(version) = version_before(&rest[used..used + found]) {
                    from = version;
                }
                if habit == Habit::Stalls {
                    board.stalled_events.set(board.stalled_events.get() + 1);
                } else {
                    board.events.set(board.events.get() + 1);
                    if number >= measured_from {
                        board.latencies.borrow_mut().push(now.saturating_sub(Duration::from_nanos(moment)));
                    }
                }
                board.changed.notify_one();
                used += found + MARK_BYTES;
            }
            // A version may stand before a mark that has not come yet.
            let keep = rest.len().saturating_sub(used).min(4 << 10);
            let drop_to = rest.len() - keep;
            rest.drain(..drop_to);
        };
        let is_open = match &mut source {
            Source::Socket(stream) => read(stream, &mut take).await,
            Source::Stream(stream) => read_stream(stream, &mut take).await,
        };
        if is_open {
            continue;
        }
        if habit != Habit::Returns {
            board.cut.set(board.cut.get() + 1);
            return board.changed.notify_one();
        }
        rest.clear();
        source = loop {
            match open_watch(port, &path, from).await {
                Ok(stream) => break Source::Socket(stream),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
    }
}

/// The version of the object in front of a mark: the last that is written there.
fn version_before(bytes: &[u8]) -> Option<u64> {
    const KEY: &[u8] = b"\"resourceVersion\":\"";
    let at = memchr::memmem::rfind(bytes, KEY)? + KEY.len();
    let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&bytes[at..at + digits]).ok()?.parse().ok()
}

/// Reads once, into a buffer that all watchers share; `false` at the end.
async fn read(stream: &mut SslStream<TcpStream>, take: &mut impl FnMut(&[u8])) -> bool {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; 64 << 10]);
    }
    poll_fn(|context| {
        SCRATCH.with(|scratch| {
            let mut scratch = scratch.borrow_mut();
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    take(buffer.filled());
                    Poll::Ready(true)
                }
                Poll::Ready(_) => Poll::Ready(false),
            }
        })
    })
    .await
}

/// Reads once from a connection that is shared; `false` at the end.
async fn read_stream(stream: &mut RecvStream, take: &mut impl FnMut(&[u8])) -> bool {
    let Some(Ok(bytes)) = stream.data().await else { return false };
    take(&bytes);
    stream.flow_control().release_capacity(bytes.len()).is_ok()
}

/// How far a client goes that sends no request.
#[derive(Clone, Copy)]
pub enum Silence {
    /// After the TLS handshake, having agreed on HTTP/1.1.
    Http1,
    /// The same for HTTP/2.
    Http2,
    /// After the preface and the settings of HTTP/2.
    Http2Settled,
}

/// Holds `count` connections on which nothing was asked while `measure` runs.
pub fn hold_silent<T>(port: u16, count: usize, silence: Silence, measure: impl FnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut streams, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..count {
            match silence {
                Silence::Http1 => streams.push(try_connect(port).await.unwrap()),
                Silence::Http2 => streams.push(try_connect_h2(port).await.unwrap()),
                Silence::Http2Settled => {
                    let stream = try_connect_h2(port).await.unwrap();
                    let (client, connection) = h2::client::handshake(stream).await.unwrap();
                    tokio::spawn(connection);
                    clients.push(client.ready().await.unwrap());
                }
            }
        }
        // The server has heard the last one, too.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let measured = measure();
        drop((streams, clients));
        measured
    })
}

/// Holds `count` connections while `measure` runs: each has been answered once, and watches if it is given a path.
pub fn hold<T>(port: u16, count: usize, watch: Option<(&str, u64)>, measure: impl FnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut held = Vec::with_capacity(count);
        for _ in 0..count {
            held.push(match watch {
                Some((path, from)) => open_watch(port, path, from).await.unwrap(),
                None => {
                    let mut stream = try_connect(port).await.unwrap();
                    stream.write_all(&super::load::request("GET", "/version", "")).await.unwrap();
                    let mut answer = vec![0; 4 << 10];
                    tokio::io::AsyncReadExt::read(&mut stream, &mut answer).await.unwrap();
                    stream
                }
            });
        }
        let measured = measure();
        drop(held);
        measured
    })
}
