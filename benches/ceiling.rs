//! The memory ceiling: memory of a limited server under hostile and heavy load, and latency of the requests of other clients.
//!
//! `cargo bench --bench ceiling` runs all of it; `-- lists`, `-- watches`, `-- bodies`, `-- definitions` run a part; a number is the
//! size of the stored objects in MB (1,000). The server may use 256 MiB more than its objects take. The load and the others share the
//! processors, so the floor of the others' latency is that of a bare handler, which asks one actor, under the same load in the same
//! run. docs/numbers.md keeps what it printed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

mod support;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::load::{Until, fetch_body, request, run, try_connect};
use support::process::{Process, scratch};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};

const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";
const SMALL: &str = "/api/v1/namespaces/default";
/// Memory that the server may use besides its objects.
const SLACK_BYTES: usize = 256 << 20;
const MEGABYTE: usize = 1_000_000;

/// The minimum time of each load: a 99th percentile needs some hundred responses.
const MIN_LOAD_TIME: Duration = Duration::from_secs(5);

fn main() {
    let mut all_arguments = std::env::args().skip(1);
    if let (Some("serve-ceiling"), Some(bytes)) = (all_arguments.next().as_deref(), all_arguments.next()) {
        support::floor::serve_ceiling(bytes.parse().expect("a number of bytes"));
        return;
    }
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let objects = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(1_000_u64);
    let parts: Vec<&String> = arguments.iter().filter(|argument| argument.parse::<u64>().is_err()).collect();
    let is_selected = |part: &str| parts.is_empty() || parts.iter().any(|argument| *argument == part);

    let data = scratch("ceiling");
    let (server, _) = Process::server(&data, "redb");
    run(server.port, 4, Until::Count(objects), 201, |number| {
        request("POST", COLLECTION, &config_map(&format!("large-{number}"), MEGABYTE))
    });
    server.stop();
    let (server, _) = Process::server(&data, "redb");
    let resident = server.resident_mib();
    server.stop();
    let limit = (resident as usize + (SLACK_BYTES >> 20)) << 20;
    println!("{objects} objects of 1 MB: {resident:.0} MiB resident, limit {} MiB", limit >> 20);
    let (server, _) = Process::server_with(
        &data,
        "redb",
        &[&format!("--memory-limit={limit}"), "--authorization-mode=AlwaysAllow"],
    );
    let floor = Process::of_bench("serve-ceiling", &(objects as usize * MEGABYTE).to_string());
    let bench = Ceiling { server, floor, limit };
    bench.measure_idle();
    if is_selected("lists") {
        bench.measure("ten plain lists at once", |port| drain_all(port, 10, COLLECTION));
        bench.measure("ten pretty lists at once", |port| {
            drain_all(port, 10, &format!("{COLLECTION}?pretty=true"))
        });
    }
    if is_selected("watches") {
        bench.measure("2,000 stalled watches", |port| stalled_watches(port, 2_000));
    }
    if is_selected("bodies") {
        bench.measure("100 bodies of 3 MB, a webhook that hangs", |port| {
            bodies_behind_a_dead_webhook(port, 100)
        });
    }
    if is_selected("definitions") {
        bench.measure("1,000 definitions of 100 KB", |port| definitions(port, 1_000));
    }
    bench.print_memory_metrics();
}

/// Statuses and how often each was answered; 0 for a connection that was closed.
type Statuses = BTreeMap<u16, usize>;

/// A limited server, and a bare handler that gets the same load.
struct Ceiling {
    server: Process,
    floor: Process,
    limit: usize,
}

impl Ceiling {
    /// Measures a small GET without load.
    fn measure_idle(&self) {
        let mut floor_latencies = Prober::start(self.floor.port).stop_after(MIN_LOAD_TIME);
        let mut server_latencies = Prober::start(self.server.port).stop_after(MIN_LOAD_TIME);
        println!(
            "a small GET, nothing else: {}",
            format_latencies(&mut server_latencies, &mut floor_latencies)
        );
    }

    /// Runs a load; prints its peak memory, the statuses of its responses, and the latency of a small GET of another client.
    fn measure(&self, name: &str, load: impl Fn(u16) -> Statuses) {
        let (_, mut floor_latencies) = run_with_probe(self.floor.port, &load);
        let start = Instant::now();
        let before = self.server.resident_mib();
        let (mut statuses, mut server_latencies) = Default::default();
        let peak = before
            + self.server.peak_mib(|| (statuses, server_latencies) = run_with_probe(self.server.port, &load));
        println!(
            "{name}: {:.1} s, at most {peak:.0} MiB of {} MiB; answered {statuses:?}; a small GET: {}",
            start.elapsed().as_secs_f64(),
            self.limit >> 20,
            format_latencies(&mut server_latencies, &mut floor_latencies),
        );
    }

    fn print_memory_metrics(&self) {
        let metrics = fetch_body(self.server.port, &request("GET", "/metrics", ""));
        let is_of_memory =
            |line: &&str| line.starts_with("pilothouse_memory") || line.starts_with("pilothouse_watches_cut");
        metrics.lines().filter(is_of_memory).for_each(|line| println!("  {line}"));
    }
}

/// Repeats a load for a while. Returns its statuses and the latencies of a small GET of another client meanwhile.
fn run_with_probe(port: u16, load: &impl Fn(u16) -> Statuses) -> (Statuses, Vec<Duration>) {
    let prober = Prober::start(port);
    let (start, mut statuses) = (Instant::now(), Statuses::new());
    while start.elapsed() < MIN_LOAD_TIME {
        for (status, count) in load(port) {
            *statuses.entry(status).or_default() += count;
        }
    }
    (statuses, prober.stop())
}

fn format_latencies(server_latencies: &mut [Duration], floor_latencies: &mut [Duration]) -> String {
    format!(
        "p50 {:.1} ms, p99 {:.1} ms of {}; bare handler {:.1} ms, {:.1} ms of {}",
        ms(server_latencies, 0.5),
        ms(server_latencies, 0.99),
        server_latencies.len(),
        ms(floor_latencies, 0.5),
        ms(floor_latencies, 0.99),
        floor_latencies.len(),
    )
}

fn ms(latencies: &mut [Duration], share: f64) -> f64 {
    latencies.sort_unstable();
    let index = ((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1));
    latencies.get(index).copied().unwrap_or_default().as_secs_f64() * 1e3
}

/// Another client, which reads a small object a hundred times a second.
struct Prober {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<Duration>>,
}

impl Prober {
    fn start(port: u16) -> Prober {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            block_on(async move {
                let mut stream = try_connect(port).await.unwrap();
                let (mut latencies, mut buffer) = (Vec::new(), Vec::new());
                while !is_stopped.load(Ordering::Relaxed) {
                    let sent = Instant::now();
                    stream.write_all(&request("GET", SMALL, "")).await.unwrap();
                    buffer.clear();
                    while !buffer.ends_with(b"}\n") {
                        assert!(stream.read_buf(&mut buffer).await.unwrap() > 0, "the server hung up");
                    }
                    latencies.push(sent.elapsed());
                    assert!(buffer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&buffer));
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                latencies
            })
        });
        Prober { stop, thread }
    }

    fn stop(self) -> Vec<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }

    fn stop_after(self, time: Duration) -> Vec<Duration> {
        std::thread::sleep(time);
        self.stop()
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, work)
}

/// Sends `count` requests at once, each on its own connection, and reads the responses as `read` says.
fn send_concurrently(port: u16, count: usize, text: impl Fn(usize) -> Vec<u8>, read: ReadMode) -> Statuses {
    block_on(async move {
        let mut all = JoinSet::new();
        // More at once would time out in the handshake: client and server share the processors.
        let handshakes = Rc::new(Semaphore::new(32));
        for number in 0..count {
            let (text, handshakes) = (text(number), handshakes.clone());
            all.spawn_local(async move { send_one(port, text, read, &handshakes).await.unwrap_or(0) });
        }
        let mut statuses = Statuses::new();
        while let Some(status) = all.join_next().await {
            *statuses.entry(status.unwrap()).or_default() += 1;
        }
        statuses
    })
}

/// How much of a response is read.
#[derive(Clone, Copy)]
enum ReadMode {
    /// All of it.
    Everything,
    /// Its head; then the connection stays open for this long.
    OnlyTheHead(Duration),
}

async fn send_one(
    port: u16,
    text: Vec<u8>,
    read_mode: ReadMode,
    handshakes: &Semaphore,
) -> std::io::Result<u16> {
    let mut stream = {
        let _turn = handshakes.acquire().await.unwrap();
        try_connect(port).await?
    };
    stream.write_all(&text).await?;
    let (mut buffer, mut begin) = (vec![0; 64 << 10], Vec::new());
    let end = loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(0);
        }
        begin.extend_from_slice(&buffer[..read]);
        if let Some(end) = begin.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = String::from_utf8_lossy(&begin[..end]).to_ascii_lowercase();
    let status = head.get(9..12).and_then(|code| code.parse().ok()).unwrap_or(0);
    if let ReadMode::OnlyTheHead(time) = read_mode {
        tokio::time::sleep(time).await;
        return Ok(status);
    }
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    let (mut total, mut tail) = (begin.len() - end, begin.split_off(end));
    // Short answers state their length; lists are sent in chunks.
    while length.map_or(!tail.ends_with(b"\r\n0\r\n\r\n"), |length| total < length) {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(0);
        }
        total += read;
        tail.extend_from_slice(&buffer[..read]);
        let keep = tail.len().saturating_sub(16);
        tail.drain(..keep);
    }
    Ok(status)
}

fn drain_all(port: u16, count: usize, path: &str) -> Statuses {
    send_concurrently(port, count, |_| request("GET", path, ""), ReadMode::Everything)
}

fn stalled_watches(port: u16, count: usize) -> Statuses {
    let path = format!("{COLLECTION}?watch=true");
    send_concurrently(
        port,
        count,
        |_| request("GET", &path, ""),
        ReadMode::OnlyTheHead(Duration::from_secs(20)),
    )
}

/// Large creates that wait for a webhook which accepts connections and never responds.
fn bodies_behind_a_dead_webhook(port: u16, count: usize) -> Statuses {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let webhook_port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        block_on(async move {
            listener.set_nonblocking(true).unwrap();
            let listener = TcpListener::from_std(listener).unwrap();
            let mut connections = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.push(stream);
            }
        });
    });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let hook = format!(
        r#"{{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{{"name":"dead"}},"webhooks":[{{"name":"dead.example.com","clientConfig":{{"url":"https://127.0.0.1:{webhook_port}/"}},"rules":[{{"operations":["CREATE"],"apiGroups":["apps"],"apiVersions":["v1"],"resources":["controllerrevisions"]}}],"sideEffects":"None","admissionReviewVersions":["v1"],"timeoutSeconds":10,"failurePolicy":"Fail"}}]}}"#
    );
    fetch_body(port, &request("POST", path, &hook));
    let value = "x".repeat(2_900_000);
    let body = |number: usize| {
        let object = format!(
            r#"{{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{{"name":"hook-{number}"}},"revision":1,"data":{{"a":"{value}"}}}}"#
        );
        request("POST", "/apis/apps/v1/namespaces/default/controllerrevisions", &object)
    };
    let statuses = send_concurrently(port, count, body, ReadMode::Everything);
    fetch_body(port, &request("DELETE", &format!("{path}/dead"), ""));
    statuses
}

/// Definitions with schemas of some 100 KB.
fn definitions(port: u16, count: usize) -> Statuses {
    let mut statuses = Statuses::new();
    for batch in 0..count / 10 {
        let text = |number: usize| {
            let group = format!("g{}.example.com", batch * 10 + number);
            let fields: Vec<String> = (0..800)
                .map(|field| format!(r#""f{field}":{{"type":"object","description":"{}","properties":{{"x":{{"type":"integer","minimum":0}}}}}}"#, "d".repeat(60)))
                .collect();
            let body = format!(
                r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"things.{group}"}},"spec":{{"group":"{group}","names":{{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"}},"scope":"Namespaced","versions":[{{"name":"v1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{{"type":"object","properties":{{"spec":{{"type":"object","properties":{{{}}}}}}}}}}}}}]}}}}"#,
                fields.join(",")
            );
            request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &body)
        };
        for (status, count) in send_concurrently(port, 10, text, ReadMode::OnlyTheHead(Duration::ZERO)) {
            *statuses.entry(status).or_default() += count;
        }
    }
    statuses
}

fn config_map(name: &str, bytes: usize) -> String {
    let value = "x".repeat(bytes);
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"a":"{value}"}}}}"#
    )
}
