//! A server on etcd, each figure beside its floor in the same run: a bare client of the same etcd, or the same server on a file.
//!
//! `cargo bench --bench etcd` runs all of it; `-- create`, `-- get`, `-- list`, `-- fanout`, `-- memory`, `-- start` run a part.
//! etcd has one member and its data on the same disk as everything else; which etcd, says `pilothouse_etcd::testing::etcd`. It
//! shares the processors with the server and the load. docs/numbers.md keeps what was printed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

mod support;

use std::time::Duration;

use bytes::Bytes;
use support::config_maps::{COLLECTION, config_map, fill, get_request};
use support::etcd::{CpuTimes, Creation, Etcd, Handling, read_with_history, run_creates, run_gets};
use support::hot_object::{PacedWatchers, collection_version, create_object, run_paced};
use support::load::{Measured, Until, drain, fetch, request, run};
use support::process::{Process, raise_file_limit, scratch};

fn main() {
    // cargo passes flags of its own (--bench): only bare words are ours.
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if let [first, url] = arguments.as_slice()
        && let Some(handling) = Handling::from_argument(first)
    {
        return support::etcd::serve_creates(url, handling);
    }
    raise_file_limit();
    let parts: [(&str, fn()); 6] = [
        ("create", create),
        ("get", get),
        ("list", list),
        ("fanout", fanout),
        ("memory", memory),
        ("start", start),
    ];
    for (part, bench) in parts {
        if arguments.is_empty() || arguments.iter().any(|argument| argument == part) {
            bench();
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs a load and prints what it costs whom. The load generator and the bare client are this process.
fn measure(
    what: &str,
    etcd: &Etcd,
    server: Option<&Process>,
    once: impl FnOnce() -> Measured,
) -> (f64, Duration) {
    let this = if server.is_some() { "load generator" } else { "client" };
    let server = server.map(|server| ("server", server.id()));
    let processes = [Some(("etcd", etcd.id())), server, Some((this, std::process::id()))];
    let processes: Vec<(&str, u32)> = processes.into_iter().flatten().collect();
    let before = CpuTimes::read(&processes);
    let mut measured = once();
    println!(
        "  {what}: {:.0}/s, p50 {:?}, p99 {:?}; CPU each: {}",
        measured.rate(),
        measured.percentile(0.5),
        measured.percentile(0.99),
        before.for_each_of(measured.responses)
    );
    (measured.rate(), measured.percentile(0.99))
}

/// Durable creates against a bare client that does the same transactions. Each run has an etcd of its own, because a server follows
/// all keys, those of the bare client as well, and because a larger database is slower.
fn create() {
    const IN_FLIGHT: usize = 64;
    const TIME: Duration = Duration::from_secs(2);
    const ROUNDS: usize = 5;
    let value = {
        let etcd = Etcd::start();
        let (server, _) = etcd.server(&scratch("etcd-value"));
        fill(server.port, 1);
        etcd.value("c-0")
    };
    let bare = |what: &str, creation: Creation| {
        let etcd = Etcd::start();
        measure(what, &etcd, None, || run_creates(&etcd, IN_FLIGHT, TIME, creation, &value)).0
    };
    let posted = |what: &str, etcd: &Etcd, server: &Process| {
        let load = || {
            run(server.port, IN_FLIGHT, Until::Time(TIME), 201, |number| {
                request("POST", COLLECTION, &config_map(number, 1_024))
            })
        };
        measure(what, etcd, Some(server), load).0
    };
    let handled = |what: &str, handling: Handling| {
        let etcd = Etcd::start();
        posted(what, &etcd, &etcd.floor(handling))
    };
    let mut all_shares = [const { Vec::new() }; 5];
    for round in 1..=ROUNDS {
        let floor = bare("bare client", Creation::WithRange);
        let rates = [
            bare("bare client, transactions of the reference", Creation::WithoutRange),
            bare("bare client that follows all keys", Creation::Followed),
            handled("bare handler", Handling::Bytes),
            handled("bare handler that follows all keys", Handling::Objects),
            {
                let etcd = Etcd::start();
                let (server, _) = etcd.server(&scratch("etcd-create"));
                posted("create 1 KiB", &etcd, &server)
            },
        ];
        let shares = rates.map(|rate| rate / floor);
        println!("create, round {round}: {:.2} of the bare client", shares[4]);
        all_shares.iter_mut().zip(shares).for_each(|(all, share)| all.push(share));
    }
    let [reference, followed, handler, objects, server] = all_shares.map(median);
    println!(
        "create, {IN_FLIGHT} connections, values of {} bytes: median {server:.2} of the bare client (goal 0.7). What others have of it: \
         {reference:.2} with the transactions of the reference, {followed:.2} if it follows all keys, {handler:.2} a bare handler, \
         {objects:.2} one that parses the body, renders it and follows all keys",
        value.len()
    );
}

/// GETs of the latest state against linearizable reads of a bare client; and GETs of any state, for which etcd is not asked.
fn get() {
    const CONNECTIONS: usize = 32;
    const OBJECTS: u64 = 1_000;
    const TIME: Duration = Duration::from_secs(3);
    const ROUNDS: usize = 3;
    let etcd = Etcd::start();
    let (server, _) = etcd.server(&scratch("etcd-get"));
    fill(server.port, OBJECTS);
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (floor, floor_p99) =
            measure("bare client", &etcd, None, || run_gets(&etcd, CONNECTIONS, TIME, OBJECTS));
        let time = Until::Time(TIME);
        let (rate, p99) = measure("GET 1 KiB", &etcd, Some(&server), || {
            run(server.port, CONNECTIONS, time, 200, |number| get_request(number, OBJECTS))
        });
        measure("GET 1 KiB, resourceVersion=0", &etcd, Some(&server), || {
            run(server.port, CONNECTIONS, time, 200, |number| {
                let path = format!("{COLLECTION}/c-{}?resourceVersion=0", number % OBJECTS);
                request("GET", &path, "")
            })
        });
        println!("get: {:.2} of the bare client; p99 {p99:?} against {floor_p99:?}", rate / floor);
        rates.push(rate);
        ratios.push(rate / floor);
    }
    println!(
        "get, {CONNECTIONS} connections: median {:.0}/s (goal 10,000), {:.2} of a bare client",
        median(rates),
        median(ratios)
    );
}

/// A list of the latest state against the same on a file.
fn list() {
    const OBJECTS: u64 = 5_000;
    const TIMES: usize = 10;
    const ROUNDS: usize = 7;
    let etcd = Etcd::start();
    let (on_etcd, _) = etcd.server(&scratch("etcd-list"));
    let (on_file, _) = Process::server(&scratch("file-list"), "redb");
    let request = request("GET", COLLECTION, "");
    for server in [&on_etcd, &on_file] {
        fill(server.port, OBJECTS);
        drain(server.port, 1, 1, &request);
    }
    let milliseconds =
        |server: &Process| drain(server.port, 1, TIMES, &request).1.as_secs_f64() * 1e3 / TIMES as f64;
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let (file_time, etcd_time) = (milliseconds(&on_file), milliseconds(&on_etcd));
        println!("  list, round {round}: redb {file_time:.1} ms, etcd {etcd_time:.1} ms");
        ratios.push(etcd_time / file_time);
    }
    println!("list, 5,000 of 1 KiB: median {:.2} of the time on redb (goal 1.2)", median(ratios));
}

/// The server's CPU for an event of a paced writer against the same on a file.
fn fanout() {
    const ROUNDS: usize = 3;
    const WATCHERS: PacedWatchers = PacedWatchers { count: 1_000, per_connection: 1 };
    let etcd = Etcd::start();
    let (on_etcd, _) = etcd.server(&scratch("etcd-fanout"));
    let (on_file, _) = Process::server(&scratch("file-fanout"), "redb");
    for server in [&on_etcd, &on_file] {
        create_object(server.port, "hot");
    }
    let cpu =
        |name: &str, server: &Process| run_paced(name, server, collection_version(server.port), WATCHERS).1;
    let (mut costs, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (file_cost, etcd_cost) = (cpu("redb", &on_file), cpu("etcd", &on_etcd));
        costs.push(etcd_cost);
        ratios.push(etcd_cost / file_cost);
    }
    println!(
        "fanout, {} watchers, an update every {:?}: median {:.2} µs CPU per event, {:.2} of that on redb (goal 1.3)",
        WATCHERS.count,
        WATCHERS.interval(),
        median(costs),
        median(ratios)
    );
}

/// Resident memory with many objects, and after lists of them, against the same on a file.
fn memory() {
    const OBJECTS: u64 = 50_000;
    let etcd = Etcd::start();
    let resident = |server: &Process| {
        let filled = fill(server.port, OBJECTS);
        println!("  filled 50,000 objects at {:.0}/s", filled.rate());
        let before = server.resident_mib();
        drain(server.port, 4, 2, &request("GET", COLLECTION, ""));
        (before, server.resident_mib())
    };
    let (on_file, _) = Process::server(&scratch("file-memory"), "redb");
    let (file_resident, file_listed) = resident(&on_file);
    drop(on_file);
    let (on_etcd, _) = etcd.server(&scratch("etcd-memory"));
    let (etcd_resident, etcd_listed) = resident(&on_etcd);
    println!(
        "memory, 50,000 objects of 1 KiB: {etcd_resident:.0} MiB resident, {etcd_listed:.0} MiB after lists of them; on redb \
         {file_resident:.0} and {file_listed:.0} MiB; etcd itself has {:.0} MiB (the reference and its etcd together: 811 and 913 MiB, \
         a quarter of which is 203 and 228)",
        etcd.resident_mib()
    );
}

/// Start to ready with many objects and a full history, against a bare client that reads as much.
fn start() {
    const OBJECTS: u64 = 100_000;
    /// As many as a server reads at its start.
    const HISTORY: u64 = 25_000;
    /// Some that it still has after that: a type may keep 64 MiB, which are about 11,000 of these.
    const KEPT: i64 = 8_000;
    const TIMES: usize = 3;
    let etcd = Etcd::start();
    let data = scratch("etcd-start");
    let (server, _) = etcd.server(&data);
    let copy = copies_of_first(&etcd, server.port);
    server.stop();
    support::etcd::fill(&etcd, OBJECTS, HISTORY, copy);
    let (mut floors, mut times) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let (objects, changes, elapsed) = read_with_history(&etcd, HISTORY as i64);
        println!(
            "  bare client: {objects} objects and {changes} changes in {:.0} ms",
            elapsed.as_secs_f64() * 1e3
        );
        floors.push(elapsed.as_secs_f64() * 1e3);
        let newest = etcd.revision();
        let (server, elapsed) = etcd.server(&data);
        println!("  start: {:.0} ms, {:.0} MiB resident", elapsed.as_secs_f64() * 1e3, server.resident_mib());
        times.push(elapsed.as_secs_f64() * 1e3);
        // It has the history, and all objects.
        let past =
            format!("{COLLECTION}?limit=1&resourceVersionMatch=Exact&resourceVersion={}", newest - KEPT);
        fetch(server.port, &request("GET", &past, ""));
        fetch(server.port, &request("GET", &format!("{COLLECTION}/{}", copy_name(OBJECTS - 1)), ""));
        server.stop();
    }
    println!(
        "start, 100,000 objects of 1 KiB and 25,000 changes: median {:.0} ms (goal 3,000), a bare client reads them in {:.0} ms",
        median(times),
        median(floors)
    );
}

/// The name of a copy: all have the same length.
fn copy_name(number: u64) -> String {
    format!("c-{number:06}")
}

/// Creates an object by a server, and returns its copies as the server would store them under other names.
fn copies_of_first(etcd: &Etcd, port: u16) -> impl Fn(u64) -> (String, Bytes) + use<> {
    let first = copy_name(0);
    let body = config_map(0, 1_024).replacen("c-0", &first, 1);
    let created = fetch(port, &request("POST", COLLECTION, &body));
    let (_, uid) = created.split_once(r#""uid":""#).expect("a uid");
    let uid = uid[..36].to_owned();
    let value = etcd.value(&first);
    move |number| {
        let name = copy_name(number);
        let uid_of_copy = format!("{}{number:012}", &uid[..24]);
        let renamed = replace_all(&value, first.as_bytes(), name.as_bytes());
        let copy = replace_all(&renamed, uid.as_bytes(), uid_of_copy.as_bytes());
        (name, Bytes::from(copy))
    }
}

/// Replaces bytes by as many others, so that lengths before them stay right.
fn replace_all(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut replaced = bytes.to_vec();
    let found: Vec<usize> = memchr::memmem::find_iter(bytes, from).collect();
    assert!(!found.is_empty() && from.len() == to.len(), "the bytes are there");
    for index in found {
        replaced[index..index + to.len()].copy_from_slice(to);
    }
    replaced
}
