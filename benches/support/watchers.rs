//! Many watch clients on one thread. They find the marks of the writer by their bytes and parse nothing. Each has its own
//! connection, or many share one over HTTP/2 as the clients of one process do.

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

/// The prefix of a mark, which is followed by the number of the write and its time.
pub const MARK: &[u8] = b"@@mark@@";
/// A whole mark: ten digits, a dash, twenty digits.
pub const MARK_BYTES: usize = 8 + 10 + 1 + 20;
const TIMEOUT: Duration = Duration::from_secs(180);

fn since_start() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// The mark of a write that is made now.
pub fn mark(number: u64) -> String {
    format!("@@mark@@{number:010}-{:020}", since_start().as_nanos())
}

/// How a client reads its events.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReadPattern {
    /// Reads at once.
    Reads,
    /// Reads nothing until all others are done.
    Stalls,
    /// Reads at once, and reconnects when the connection breaks.
    Returns,
}

/// A watch client.
pub struct Watcher {
    /// The path with its query, without the version.
    pub path: String,
    /// The version to start at.
    pub from: u64,
    /// How it reads.
    pub pattern: ReadPattern,
    /// The first write whose delay counts; earlier ones are warm-up.
    pub measured_from: u64,
}

/// Clients and how they connect.
pub struct WatcherGroup {
    /// The clients.
    pub watchers: Vec<Watcher>,
    /// Clients per HTTP/2 connection; with one, each has its own HTTP/1.1 connection.
    pub per_connection: usize,
}

impl From<Vec<Watcher>> for WatcherGroup {
    fn from(watchers: Vec<Watcher>) -> WatcherGroup {
        WatcherGroup { watchers, per_connection: 1 }
    }
}

/// The source of events.
enum Source {
    Socket(SslStream<TcpStream>),
    Stream(RecvStream),
}

/// The result of a run.
pub struct WatchResult {
    /// Number of received events.
    pub events: u64,
    /// Time from the start of the writes to the last event of the clients that read at once.
    pub elapsed: Duration,
    /// The CPU time of the server at that moment.
    pub cpu: Duration,
    /// Watches that ended.
    pub cut: usize,
    /// Number of writes that were skipped or received twice.
    pub out_of_order: u64,
    latencies: Vec<Duration>,
}

impl WatchResult {
    /// The delay that this share of the events did not exceed.
    pub fn percentile(&mut self, share: f64) -> Duration {
        self.latencies.sort_unstable();
        let index =
            ((self.latencies.len() as f64 * share) as usize).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(index).copied().unwrap_or_default()
    }
}

#[derive(Default)]
struct Progress {
    events: Cell<u64>,
    stalled_events: Cell<u64>,
    cut: Cell<usize>,
    out_of_order: Cell<u64>,
    latencies: RefCell<Vec<Duration>>,
    changed: Notify,
    read_now: Notify,
}

/// Opens all watches, then lets `write` write, and reads until `expected` events came to those who read and `stalled_expected` to those
/// who did not. `in_order`: every watcher sees every number. `server`: the process whose CPU is read at the end.
pub fn follow<T: Send + 'static>(
    port: u16,
    group: impl Into<WatcherGroup>,
    (expected, stalled_expected): (u64, u64),
    in_order: bool,
    server: Option<u32>,
    write: impl FnOnce() -> T + Send + 'static,
) -> (WatchResult, T) {
    let WatcherGroup { watchers, per_connection } = group.into();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let progress = Rc::new(Progress::default());
        let (mut open, mut connection) = (Vec::new(), None);
        for (number, watcher) in watchers.into_iter().enumerate() {
            let Watcher { path, from, .. } = &watcher;
            let source = if per_connection == 1 {
                Source::Socket(open_watch(port, path, *from).await.unwrap())
            } else {
                if number % per_connection == 0 {
                    connection = Some(connect_shared(port).await);
                }
                Source::Stream(open_stream(connection.as_ref().unwrap(), port, path, *from).await)
            };
            open.push((source, watcher));
        }
        for (source, watcher) in open {
            tokio::task::spawn_local(run_watcher(port, source, watcher, in_order, Rc::clone(&progress)));
        }
        let start = Instant::now();
        let writer = std::thread::spawn(write);
        let wait_for = async |is_reached: &dyn Fn() -> bool| {
            while !is_reached() {
                tokio::time::timeout(TIMEOUT, progress.changed.notified()).await.expect("events come");
            }
        };
        wait_for(&|| progress.events.get() >= expected).await;
        let elapsed = start.elapsed();
        // Read before any client disconnects: closing a connection costs as much as many events.
        let cpu = server.map(cpu_of).unwrap_or_default();
        progress.read_now.notify_waiters();
        wait_for(&|| progress.stalled_events.get() >= stalled_expected).await;
        let result = WatchResult {
            events: progress.events.get(),
            elapsed,
            cpu,
            cut: progress.cut.get(),
            out_of_order: progress.out_of_order.get(),
            latencies: progress.latencies.take(),
        };
        (result, writer.join().unwrap())
    })
}

async fn open_watch(port: u16, path: &str, from: u64) -> std::io::Result<SslStream<TcpStream>> {
    let mut stream = try_connect(port).await?;
    let request = super::load::request("GET", &format!("{path}&resourceVersion={from}"), "");
    stream.write_all(&request).await?;
    // Byte by byte up to the end of the head: the rest are events.
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

/// A connection for many clients, driven on this thread.
async fn connect_shared(port: u16) -> SendRequest<bytes::Bytes> {
    let io = try_connect_h2(port).await.unwrap();
    let mut builder = h2::client::Builder::new();
    // The windows of Go's clients: 4 MiB for a stream, 1 GiB for the connection.
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
    let (response, _) = ready.send_request(request, true).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body()
}

async fn run_watcher(
    port: u16,
    mut source: Source,
    watcher: Watcher,
    in_order: bool,
    progress: Rc<Progress>,
) {
    let Watcher { path, mut from, pattern, measured_from } = watcher;
    if pattern == ReadPattern::Stalls {
        progress.read_now.notified().await;
    }
    let (mut unparsed, mut last) = (Vec::new(), None);
    loop {
        let mut consume = |bytes: &[u8]| {
            unparsed.extend_from_slice(bytes);
            let now = since_start();
            let mut consumed = 0;
            while let Some(offset) = memchr::memmem::find(&unparsed[consumed..], MARK) {
                let Some(mark) = unparsed.get(consumed + offset..consumed + offset + MARK_BYTES) else {
                    break;
                };
                let text = String::from_utf8_lossy(&mark[MARK.len()..]).into_owned();
                let (number, moment) = text.split_once('-').unwrap();
                let (number, moment): (u64, u64) = (number.parse().unwrap(), moment.parse().unwrap());
                if in_order && last.is_some_and(|last| number != last + 1) {
                    progress.out_of_order.set(progress.out_of_order.get() + 1);
                }
                last = Some(number);
                if let Some(version) = version_before(&unparsed[consumed..consumed + offset]) {
                    from = version;
                }
                if pattern == ReadPattern::Stalls {
                    progress.stalled_events.set(progress.stalled_events.get() + 1);
                } else {
                    progress.events.set(progress.events.get() + 1);
                    if number >= measured_from {
                        progress
                            .latencies
                            .borrow_mut()
                            .push(now.saturating_sub(Duration::from_nanos(moment)));
                    }
                }
                progress.changed.notify_one();
                consumed += offset + MARK_BYTES;
            }
            // A version may precede a mark that has not been received yet.
            let keep = unparsed.len().saturating_sub(consumed).min(4 << 10);
            let drop_to = unparsed.len() - keep;
            unparsed.drain(..drop_to);
        };
        let is_open = match &mut source {
            Source::Socket(stream) => read(stream, &mut consume).await,
            Source::Stream(stream) => read_stream(stream, &mut consume).await,
        };
        if is_open {
            continue;
        }
        if pattern != ReadPattern::Returns {
            progress.cut.set(progress.cut.get() + 1);
            return progress.changed.notify_one();
        }
        unparsed.clear();
        source = loop {
            match open_watch(port, &path, from).await {
                Ok(stream) => break Source::Socket(stream),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
    }
}

/// The last version before a mark: that of its object.
fn version_before(bytes: &[u8]) -> Option<u64> {
    const KEY: &[u8] = b"\"resourceVersion\":\"";
    let index = memchr::memmem::rfind(bytes, KEY)? + KEY.len();
    let digits = bytes[index..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&bytes[index..index + digits]).ok()?.parse().ok()
}

/// Reads once, into a buffer that all watchers share; `false` at the end.
async fn read(stream: &mut SslStream<TcpStream>, consume: &mut impl FnMut(&[u8])) -> bool {
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
                    consume(buffer.filled());
                    Poll::Ready(true)
                }
                Poll::Ready(_) => Poll::Ready(false),
            }
        })
    })
    .await
}

/// Reads once from a connection that is shared; `false` at the end.
async fn read_stream(stream: &mut RecvStream, consume: &mut impl FnMut(&[u8])) -> bool {
    let Some(Ok(bytes)) = stream.data().await else { return false };
    consume(&bytes);
    stream.flow_control().release_capacity(bytes.len()).is_ok()
}

/// How far a connection gets without a request.
#[derive(Clone, Copy)]
pub enum Silence {
    /// After the TLS handshake, having agreed on HTTP/1.1.
    Http1,
    /// The same for HTTP/2.
    Http2,
    /// After the preface and the settings of HTTP/2.
    Http2Settled,
}

/// Holds `count` connections without a request while `measure` runs.
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
        // Lets the server accept the last one, too.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let measured = measure();
        drop((streams, clients));
        measured
    })
}

/// Holds `count` connections while `measure` runs: each has had one response, or has a watch if a path is given.
pub fn hold<T>(port: u16, count: usize, watch: Option<(&str, u64)>, measure: impl FnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(match watch {
                Some((path, from)) => open_watch(port, path, from).await.unwrap(),
                None => {
                    let mut stream = try_connect(port).await.unwrap();
                    stream.write_all(&super::load::request("GET", "/version", "")).await.unwrap();
                    let mut response = vec![0; 4 << 10];
                    tokio::io::AsyncReadExt::read(&mut stream, &mut response).await.unwrap();
                    stream
                }
            });
        }
        let measured = measure();
        drop(connections);
        measured
    })
}
