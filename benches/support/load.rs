//! A closed loop of HTTP/1.1 connections over TLS on one thread: each sends its next request after the response.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

use openssl::ssl::{Ssl, SslContext, SslMethod, SslVerifyMode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

/// The result of a run.
pub struct Measured {
    /// Number of responses with the expected status.
    pub responses: u64,
    /// Time from the first request to the last response.
    pub elapsed: Duration,
    latencies: Vec<Duration>,
}

impl Measured {
    /// Calls that took so long each, and `elapsed` together.
    pub fn new(latencies: Vec<Duration>, elapsed: Duration) -> Measured {
        Measured { responses: latencies.len() as u64, elapsed, latencies }
    }

    /// Responses per second.
    pub fn rate(&self) -> f64 {
        self.responses as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency that this share of the responses did not exceed.
    pub fn percentile(&mut self, share: f64) -> Duration {
        self.latencies.sort_unstable();
        let index =
            ((self.latencies.len() as f64 * share) as usize).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(index).copied().unwrap_or_default()
    }
}

/// When a run ends.
#[derive(Clone, Copy)]
pub enum Until {
    /// After this time.
    Time(Duration),
    /// After this many requests.
    Count(u64),
}

/// Runs `connections` closed loops. `request` writes the text of the request with this number.
pub fn run(
    port: u16,
    connections: usize,
    until: Until,
    status: u16,
    request: impl Fn(u64) -> Vec<u8> + Clone + 'static,
) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let mut streams = Vec::new();
        for _ in 0..connections {
            streams.push(connect(port).await);
        }
        let start = Instant::now();
        let next = std::rc::Rc::new(std::cell::Cell::new(0_u64));
        let tasks = streams.into_iter().map(|stream| {
            let (request, next) = (request.clone(), next.clone());
            tokio::task::spawn_local(run_loop(stream, start, until, status, next, request))
        });
        let mut latencies = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            latencies.extend(task.await.unwrap());
        }
        Measured::new(latencies, start.elapsed())
    })
}

/// Sends `rate` requests a second for some time, each when it is due if one of the connections is free. A latency counts from that
/// moment, so a server that stalls delays all requests that were due meanwhile.
pub fn run_open_loop(
    port: u16,
    connections: usize,
    rate: u32,
    time: Duration,
    status: u16,
    request: impl Fn(u64) -> Vec<u8> + Clone + 'static,
) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let mut streams = Vec::new();
        for _ in 0..connections {
            streams.push(connect(port).await);
        }
        let (start, expected) = (Instant::now(), format!("HTTP/1.1 {status} "));
        let next = std::rc::Rc::new(std::cell::Cell::new(0_u32));
        let tasks = streams.into_iter().map(|mut stream| {
            let (request, next, expected) = (request.clone(), next.clone(), expected.clone());
            tokio::task::spawn_local(async move {
                let (mut latencies, mut buffer) = (Vec::new(), Vec::with_capacity(64 << 10));
                loop {
                    let number = next.replace(next.get() + 1);
                    let due = start + Duration::from_secs(1) / rate * number;
                    if due >= start + time {
                        return latencies;
                    }
                    tokio::time::sleep_until(due.into()).await;
                    stream.write_all(&request(number.into())).await.unwrap();
                    let head = read_response(&mut stream, &mut buffer).await;
                    assert!(head.starts_with(&expected), "unexpected answer: {head}");
                    latencies.push(due.elapsed());
                }
            })
        });
        let mut latencies = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            latencies.extend(task.await.unwrap());
        }
        Measured::new(latencies, start.elapsed())
    })
}

/// Sends a request every few milliseconds on one connection, as a health check does, and measures the answers.
pub fn probe(port: u16, time: Duration, request: &[u8]) -> Measured {
    const PAUSE: Duration = Duration::from_millis(5);
    let request = request.to_vec();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let mut stream = connect(port).await;
        let (start, mut latencies, mut buffer) = (Instant::now(), Vec::new(), Vec::new());
        while start.elapsed() < time {
            let sent_at = Instant::now();
            stream.write_all(&request).await.unwrap();
            let head = read_response(&mut stream, &mut buffer).await;
            assert!(head.starts_with("HTTP/1.1 200 "), "unexpected answer: {head}");
            latencies.push(sent_at.elapsed());
            tokio::time::sleep(PAUSE).await;
        }
        Measured::new(latencies, start.elapsed())
    })
}

/// Sends each request repeatedly for some time, on its own connection. Returns the number of responses by status.
pub fn send_repeatedly(port: u16, time: Duration, requests: Vec<Vec<u8>>) -> BTreeMap<String, u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let start = Instant::now();
        let tasks = requests.into_iter().map(|request| {
            tokio::task::spawn_local(async move {
                let (mut stream, mut buffer, mut statuses) = (connect(port).await, Vec::new(), Vec::new());
                while start.elapsed() < time {
                    stream.write_all(&request).await.unwrap();
                    let head = read_response(&mut stream, &mut buffer).await;
                    statuses.push(head.split(' ').nth(1).unwrap_or_default().to_owned());
                }
                statuses
            })
        });
        let mut counts = BTreeMap::new();
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap().into_iter().for_each(|status| *counts.entry(status).or_default() += 1);
        }
        counts
    })
}

/// Sends one request and returns its successful response as text.
pub fn fetch(port: u16, request: &[u8]) -> String {
    let request = request.to_vec();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let mut stream = connect(port).await;
        stream.write_all(&request).await.unwrap();
        let mut buffer = Vec::new();
        let head = read_response(&mut stream, &mut buffer).await;
        assert!(head.starts_with("HTTP/1.1 2"), "unexpected answer: {head}");
        String::from_utf8_lossy(&buffer).into_owned()
    })
}

async fn connect(port: u16) -> SslStream<TcpStream> {
    try_connect(port).await.unwrap()
}

/// One connection, to a server that may not be there.
pub async fn try_connect(port: u16) -> std::io::Result<SslStream<TcpStream>> {
    try_connect_as(port, b"\x08http/1.1").await
}

/// The same for HTTP/2.
pub async fn try_connect_h2(port: u16) -> std::io::Result<SslStream<TcpStream>> {
    try_connect_as(port, b"\x02h2").await
}

async fn try_connect_as(port: u16, protocol: &[u8]) -> std::io::Result<SslStream<TcpStream>> {
    let mut context = SslContext::builder(SslMethod::tls_client()).unwrap();
    context.set_alpn_protos(protocol).unwrap();
    // The floor and the server make certificates of their own: what is measured is the same either way. `SslConnector` would read all
    // authorities of the system for each connection, which takes longer than everything else here.
    context.set_verify(SslVerifyMode::NONE);
    let mut session = Ssl::new(&context.build()).unwrap();
    session.set_hostname("localhost").unwrap();
    let tcp = TcpStream::connect(("127.0.0.1", port)).await?;
    tcp.set_nodelay(true)?;
    let mut stream = SslStream::new(session, tcp)?;
    Pin::new(&mut stream).connect().await.map_err(std::io::Error::other)?;
    Ok(stream)
}

async fn run_loop(
    mut stream: SslStream<TcpStream>,
    start: Instant,
    until: Until,
    status: u16,
    next: std::rc::Rc<std::cell::Cell<u64>>,
    request: impl Fn(u64) -> Vec<u8>,
) -> Vec<Duration> {
    let expected = format!("HTTP/1.1 {status} ");
    let mut latencies = Vec::new();
    let mut buffer = Vec::with_capacity(64 << 10);
    loop {
        let number = next.get();
        let is_over = match until {
            Until::Time(time) => start.elapsed() >= time,
            Until::Count(count) => number >= count,
        };
        if is_over {
            return latencies;
        }
        next.set(number + 1);
        let sent_at = Instant::now();
        stream.write_all(&request(number)).await.unwrap();
        let head = read_response(&mut stream, &mut buffer).await;
        assert!(head.starts_with(&expected), "unexpected answer: {head}");
        latencies.push(sent_at.elapsed());
    }
}

/// Reads and drops `times` long responses on each of `connections` connections. Returns the bytes of one and the time of all.
pub fn drain(port: u16, connections: usize, times: usize, request: &[u8]) -> (u64, Duration) {
    let request = request.to_vec();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let mut streams = Vec::new();
        for _ in 0..connections {
            streams.push(connect(port).await);
        }
        let start = Instant::now();
        let tasks = streams.into_iter().map(|mut stream| {
            let request = request.clone();
            tokio::task::spawn_local(async move {
                let mut bytes = 0;
                for _ in 0..times {
                    stream.write_all(&request).await.unwrap();
                    bytes = read_chunked(&mut stream).await;
                }
                bytes
            })
        });
        let mut bytes = 0;
        for task in tasks.collect::<Vec<_>>() {
            bytes = task.await.unwrap();
        }
        (bytes, start.elapsed())
    })
}

/// Reads one answer in chunks up to its end and returns its length on the wire.
async fn read_chunked(stream: &mut SslStream<TcpStream>) -> u64 {
    const END: &[u8] = b"\r\n0\r\n\r\n";
    let (mut total, mut tail) = (0, Vec::new());
    let mut buffer = vec![0; 256 << 10];
    loop {
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the server hung up");
        if total == 0 {
            assert!(
                buffer.starts_with(b"HTTP/1.1 200 "),
                "{}",
                String::from_utf8_lossy(&buffer[..read.min(300)])
            );
        }
        total += read as u64;
        tail.extend_from_slice(&buffer[read.saturating_sub(END.len())..read]);
        let keep = tail.len().saturating_sub(END.len());
        tail.drain(..keep);
        if tail == END {
            return total;
        }
    }
}

/// Reads one answer with a Content-Length and returns its head.
async fn read_response(stream: &mut SslStream<TcpStream>, buffer: &mut Vec<u8>) -> String {
    buffer.clear();
    loop {
        let read = stream.read_buf(buffer).await.unwrap();
        assert!(read > 0, "the server hung up");
        let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        let length: usize = head
            .lines()
            .find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length:").map(|n| n.trim().parse().unwrap())
            })
            .expect("an answer with a length");
        while buffer.len() < end + 4 + length {
            let read = stream.read_buf(buffer).await.unwrap();
            assert!(read > 0, "the server hung up");
        }
        return head;
    }
}

/// Sends one request and returns the body of its answer.
pub fn fetch_body(port: u16, request: &[u8]) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut stream = connect(port).await;
        stream.write_all(request).await.unwrap();
        let mut buffer = Vec::new();
        let head = read_response(&mut stream, &mut buffer).await;
        String::from_utf8_lossy(&buffer[head.len() + 4..]).into_owned()
    })
}

/// The text of a request.
pub fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    request_for("application/json", method, path, body)
}

/// The text of a merge patch.
pub fn merge_patch(path: &str, body: &str) -> Vec<u8> {
    let text = String::from_utf8(request("PATCH", path, body)).unwrap();
    text.replacen("Content-Type: application/json", "Content-Type: application/merge-patch+json", 1)
        .into_bytes()
}

/// The same by a client that reads this media type.
pub fn request_for(accept: &str, method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer bench\r\nAccept: {accept}\r\n\
         Content-Type: application/json\r\nUser-Agent: bench/1.0\r\n{length}\r\n{body}"
    )
    .into_bytes()
}
