//! Speed and memory of the whole server, each figure beside the floor it is compared to.
//!
//! `cargo bench --bench server` runs all of it; `-- start`, `-- get`, `-- create`, `-- status`, `-- contend`, `-- list`, `-- many`,
//! `-- rights`, `-- hostile`, `-- backup` run a part.
//! docs/numbers.md keeps what it printed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::config_maps::{COLLECTION, config_map, fill, get_request};
use support::load::{
    Measured, Until, drain, fetch_body, merge_patch, probe, request, request_for, run, run_open_loop,
    send_repeatedly,
};
use support::process::{Process, scratch};

fn main() {
    // cargo passes flags of its own (--bench): only bare words are ours.
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if let [first, bytes] = arguments.as_slice()
        && first == "serve-floor"
    {
        support::floor::serve(bytes.parse().expect("a number of bytes"));
        return;
    }
    let is_selected = |part: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == part);
    if is_selected("start") {
        start();
    }
    if is_selected("get") {
        get();
    }
    if is_selected("create") {
        create();
    }
    if is_selected("status") {
        status();
    }
    if is_selected("contend") {
        contend();
    }
    if is_selected("list") {
        list();
    }
    if is_selected("many") {
        many();
    }
    if is_selected("rights") {
        rights();
    }
    if is_selected("hostile") {
        hostile();
    }
    if is_selected("backup") {
        backup();
    }
}

/// How long writes wait while backups are made one after the other, and how much memory that takes.
fn backup() {
    const OBJECTS: u64 = 100_000;
    const ROUNDS: usize = 5;
    const TIME: Duration = Duration::from_secs(10);
    let (server, _) = Process::server(&scratch("backup"), "redb");
    fill(server.port, OBJECTS);
    let whole = request("GET", "/backup", "");
    // Once before anything is measured: the pages of the file are in memory then.
    drain(server.port, 1, 1, &whole);
    let peak = server.peak_mib(|| {
        let (bytes, elapsed) = drain(server.port, 1, 1, &whole);
        println!("  backup of {:.0} MB alone: {:.2} s", bytes as f64 / 1e6, elapsed.as_secs_f64());
    });
    println!("backup, 100,000 objects, no writes: {peak:.1} MiB more than before at the most (goal: a few)");
    let updates = |port: u16| {
        run_open_loop(port, 64, 1_000, TIME, 200, |number| {
            // The steps visit all objects in an order of their own.
            let number = number * 7_919 % OBJECTS;
            request("PUT", &format!("{COLLECTION}/c-{number}"), &config_map(number, 1_024))
        })
    };
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let mut alone = updates(server.port);
        let (port, before) = (server.port, server.resident_mib());
        let is_over = Arc::new(AtomicBool::new(false));
        let backups = std::thread::spawn({
            let (is_over, whole) = (Arc::clone(&is_over), whole.clone());
            move || {
                let mut elapsed = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    elapsed.push(drain(port, 1, 1, &whole).1.as_secs_f64());
                }
                elapsed
            }
        });
        let mut beside = updates(server.port);
        is_over.store(true, Ordering::Relaxed);
        let elapsed = backups.join().unwrap();
        let [p50, p99] = [0.5, 0.99].map(|share| (alone.percentile(share), beside.percentile(share)));
        let ratio = p99.1.as_secs_f64() / p99.0.as_secs_f64();
        println!(
            "backup, round {round}: {} backups of {:.1} s; writes p50 {:?}, {:?} with backups; p99 {:?}, {:?}: \
             {ratio:.2} times; {:.0} MiB more resident",
            elapsed.len(),
            elapsed.iter().sum::<f64>() / elapsed.len() as f64,
            p50.0,
            p50.1,
            p99.0,
            p99.1,
            server.resident_mib() - before,
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!("backup: median {:.2} times the p99 of writes without (goal 1.5)", ratios[ROUNDS / 2]);
}

/// How long health checks and small reads wait while requests come that are as heavy as the server takes them.
fn hostile() {
    const TIME: Duration = Duration::from_secs(20);
    let (server, _) = Process::server(&scratch("hostile"), "redb");
    let port = server.port;
    run(port, 1, Until::Count(1), 201, |number| request("POST", COLLECTION, &config_map(number, 1_024)));
    support::hostile::prepare(port);
    let probes = || {
        let probe = |name: &'static str, path: &str| {
            let request = support::hostile::sent_by("reader", request("GET", path, ""));
            std::thread::spawn(move || (name, probe(port, TIME, &request)))
        };
        let probes = [probe("/livez", "/livez"), probe("GET 1 KiB", &format!("{COLLECTION}/c-0"))];
        for (name, mut measured) in probes.map(|probe| probe.join().unwrap()) {
            let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|share| measured.percentile(share));
            println!("  {name}: p50 {p50:?}, p99 {p99:?}, longest {longest:?} of {}", measured.responses);
        }
    };
    println!("hostile, otherwise idle:");
    probes();
    let load = std::thread::spawn(move || send_repeatedly(port, TIME, support::hostile::requests()));
    println!("hostile, with heavy requests of four users on 32 connections (goal: p99 10 ms):");
    probes();
    println!("  heavy requests by status: {:?}", load.join().unwrap());
}

/// Memory of 10,000 roles and 10,000 bindings in 1,000 namespaces.
fn rights() {
    const GROUP: &str = "/apis/rbac.authorization.k8s.io/v1";
    let (server, _) = Process::server(&scratch("rights"), "redb");
    run(server.port, 64, Until::Count(1_000), 201, |number| {
        let body = format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"n-{number}"}}}}"#);
        request("POST", "/api/v1/namespaces", &body)
    });
    let before = server.resident_mib();
    run(server.port, 64, Until::Count(10_000), 201, |number| {
        let rule = r#"{"verbs":["get","list","watch"],"apiGroups":[""],"resources":["pods","configmaps"]}"#;
        let body = format!(
            r#"{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{{"name":"r-{number}"}},"rules":[{rule}]}}"#
        );
        request("POST", &format!("{GROUP}/namespaces/n-{}/roles", number % 1_000), &body)
    });
    run(server.port, 64, Until::Count(10_000), 201, |number| {
        let body = format!(
            r#"{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{{"name":"b-{number}"}},"roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r-{number}"}},"subjects":[{{"kind":"User","name":"u-{number}","apiGroup":"rbac.authorization.k8s.io"}}]}}"#
        );
        request("POST", &format!("{GROUP}/namespaces/n-{}/rolebindings", number % 1_000), &body)
    });
    // The first decision about a user who is not exempt brings the RBAC index up to date.
    let review = r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"u-7","resourceAttributes":{"verb":"get","resource":"pods","namespace":"n-7"}}}"#;
    let request = request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review);
    assert!(fetch_body(server.port, &request).contains("\"allowed\":true"));
    println!(
        "10,000 roles and bindings in 1,000 namespaces: {:.0} MiB more resident, objects and history included",
        server.resident_mib() - before
    );
}

fn best_of(times: usize, mut once: impl FnMut() -> Duration) -> Duration {
    (0..times).map(|_| once()).min().unwrap_or_default()
}

/// Start to ready and idle memory. No floor: the goal is 100 ms and 40 MiB.
fn start() {
    for engine in ["redb", "memory"] {
        let first = best_of(5, || {
            let (server, elapsed) = Process::server(&scratch("first-start"), engine);
            server.stop();
            elapsed
        });
        println!("start, first, {engine}: {:.1} ms (goal 100)", first.as_secs_f64() * 1e3);
    }
    let data = scratch("start-1000");
    let (server, _) = Process::server(&data, "redb");
    fill(server.port, 1_000);
    server.stop();
    let warm = best_of(5, || {
        let (server, elapsed) = Process::server(&data, "redb");
        server.stop();
        elapsed
    });
    println!("start, 1,000 objects, redb: {:.1} ms (goal 100)", warm.as_secs_f64() * 1e3);
    let (server, _) = Process::server(&scratch("idle"), "redb");
    std::thread::sleep(Duration::from_secs(2));
    println!("idle resident: {:.1} MiB (goal 40)", server.resident_mib());
}

/// GET of a 1 KiB object against a bare handler that returns as many bytes.
fn get() {
    const CONNECTIONS: usize = 32;
    let time = Until::Time(Duration::from_secs(4));
    let (server, _) = Process::server(&scratch("get"), "redb");
    fill(server.port, 1_000);
    let floor = Process::floor(1_300);
    let mut ratios = Vec::new();
    for round in 1..=3 {
        let mut floor_run = measure("bare handler", &floor, || {
            run(floor.port, CONNECTIONS, time, 200, |_| request("GET", "/", ""))
        });
        let mut server_run = measure("GET 1 KiB", &server, || {
            run(server.port, CONNECTIONS, time, 200, |number| get_request(number, 1_000))
        });
        let ratio = server_run.rate() / floor_run.rate();
        println!(
            "get, round {round}: {ratio:.2} of the floor (goal 0.6); p99 {:?} against {:?}",
            server_run.percentile(0.99),
            floor_run.percentile(0.99)
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "get, {CONNECTIONS} connections: median {:.2} of the floor (goal 0.6)",
        ratios[ratios.len() / 2]
    );
}

fn measure(what: &str, process: &Process, once: impl FnOnce() -> Measured) -> Measured {
    let before = process.cpu();
    let measured = once();
    let cpu = process.cpu().saturating_sub(before);
    println!(
        "  {what}: {:.0}/s, {:.1} µs CPU each",
        measured.rate(),
        cpu.as_secs_f64() * 1e6 / measured.responses.max(1) as f64
    );
    measured
}

/// Durable creates: sixty-four writers must share the sync that one writer waits for alone.
fn create() {
    let (server, _) = Process::server(&scratch("create"), "redb");
    let alone = measure("create, 1 connection", &server, || {
        run(server.port, 1, Until::Count(2_000), 201, |number| {
            request("POST", COLLECTION, &config_map(number, 1_024))
        })
    });
    let shared = measure("create, 64 connections", &server, || {
        run(server.port, 64, Until::Count(40_000), 201, |number| {
            request("POST", COLLECTION, &config_map(10_000 + number, 1_024))
        })
    });
    println!(
        "create: 64 connections reach {:.1} times 1 connection (goal 5; CPU goal 100 µs)",
        shared.rate() / alone.rate()
    );
}

/// A Pod as a controller writes it: about 2 KiB of JSON.
const POD: &str = include_str!("support/pod.json");
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Patches of the status of Pods against their creation, in the same run.
fn status() {
    const CONNECTIONS: usize = 64;
    const COUNT: u64 = 10_000;
    let (server, _) = Process::server(&scratch("status"), "redb");
    let named = |number: u64| POD.replacen("web-7d4b9c6f5-x2x7q", &format!("p-{number}"), 1);
    let created = measure("create of a Pod of 2 KiB", &server, || {
        run(server.port, CONNECTIONS, Until::Count(COUNT), 201, move |number| {
            request("POST", PODS, &named(number))
        })
    });
    let patched = measure("merge patch of its status", &server, || {
        run(server.port, CONNECTIONS, Until::Count(COUNT), 200, |number| {
            let body = r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#;
            merge_patch(&format!("{PODS}/p-{number}/status"), body)
        })
    });
    println!("status: {:.2} of the rate of creation (goal 0.5)", patched.rate() / created.rate());
}

/// Many clients patch one object: each success is a new version, and together they are no slower than one alone.
fn contend() {
    const CLIENTS: usize = 32;
    let time = Until::Time(Duration::from_secs(4));
    let (server, _) = Process::server(&scratch("contend"), "redb");
    run(server.port, 1, Until::Count(1), 201, |_| request("POST", COLLECTION, &config_map(0, 1_024)));
    let path = format!("{COLLECTION}/c-0");
    let version = || -> u64 {
        let answer: serde_json::Value =
            serde_json::from_str(&fetch_body(server.port, &request("GET", &path, ""))).unwrap();
        answer["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    let rate = |clients: usize| {
        let before = version();
        let path = path.clone();
        let mut measured = measure(&format!("patch of one object, {clients} clients"), &server, || {
            run(server.port, clients, time, 200, move |number| {
                merge_patch(&path, &format!(r#"{{"data":{{"n":"{clients}-{number}"}}}}"#))
            })
        });
        assert_eq!(version() - before, measured.responses, "every success is a version of its own");
        println!("  p99 {:?}", measured.percentile(0.99));
        measured.rate()
    };
    let (alone, together) = (rate(1), rate(CLIENTS));
    println!("contend: {CLIENTS} clients reach {:.2} of what 1 does (goal 1)", together / alone);
}

/// LIST of 20,000 objects of 1 KiB against a bare handler that streams as many bytes, and the memory that ten at once
/// take.
fn list() {
    const TIMES: usize = 10;
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let (server, _) = Process::server(&scratch("list"), "memory");
    fill(server.port, 20_000);
    let json = request("GET", COLLECTION, "");
    let (bytes, _) = drain(server.port, 1, 1, &json);
    let floor = Process::floor(usize::try_from(bytes).unwrap());
    let rate = |port: u16, request: &[u8]| {
        let (bytes, elapsed) = drain(port, 1, TIMES, request);
        bytes as f64 * TIMES as f64 / elapsed.as_secs_f64() / 1e6
    };
    let objects = |port: u16, request: &[u8]| {
        let (_, elapsed) = drain(port, 1, TIMES, request);
        20_000.0 * TIMES as f64 / elapsed.as_secs_f64()
    };
    let mut ratios = Vec::new();
    for round in 1..=5 {
        let (floor_rate, server_rate) = (rate(floor.port, &json), rate(server.port, &json));
        println!("  list, round {round}: bare {floor_rate:.0} MB/s, JSON {server_rate:.0} MB/s");
        ratios.push(server_rate / floor_rate);
    }
    ratios.sort_by(f64::total_cmp);
    println!("list, 20,000 of 1 KiB, JSON: median {:.2} of the floor (goal 0.5)", ratios[ratios.len() / 2]);
    let peak = server.peak_mib(|| {
        drain(server.port, 10, 3, &json);
    });
    println!("list, 10 at once: {peak:.1} MiB more than before at the most (goal 32)");
    for (layout, request) in [
        ("indented JSON", request("GET", &format!("{COLLECTION}?pretty=true"), "")),
        ("YAML", request_for("application/yaml", "GET", COLLECTION, "")),
    ] {
        let start = Instant::now();
        let peak = server.peak_mib(|| {
            drain(server.port, 10, 1, &request);
        });
        let elapsed = start.elapsed().as_secs_f64() * 1e3;
        println!(
            "list in {layout}, 10 at once: {elapsed:.0} ms, {peak:.1} MiB more than before at the most (goal 32)"
        );
    }
    let protobuf = request_for(PROTOBUF, "GET", COLLECTION, "");
    let first = Instant::now();
    drain(server.port, 1, 1, &protobuf);
    println!(
        "  list, first in Protobuf: {:.0} ms, resident {:.0} MiB",
        first.elapsed().as_secs_f64() * 1e3,
        server.resident_mib()
    );
    let mut ratios: Vec<f64> =
        (0..5).map(|_| objects(server.port, &protobuf) / objects(server.port, &json)).collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "list, Protobuf: median {:.2} of the objects per second of JSON (goal 1)",
        ratios[ratios.len() / 2]
    );
}

/// Start with 100,000 objects of 1 KiB.
fn many() {
    let data = scratch("many");
    let (server, _) = Process::server(&data, "redb");
    let filled = fill(server.port, 100_000);
    println!("  filled 100,000 objects at {:.0}/s, resident {:.0} MiB", filled.rate(), server.resident_mib());
    server.stop();
    let elapsed = best_of(3, || {
        let (server, elapsed) = Process::server(&data, "redb");
        server.stop();
        elapsed
    });
    println!("start, 100,000 objects, redb: {:.0} ms (goal 1,000)", elapsed.as_secs_f64() * 1e3);
    let (server, _) = Process::server(&data, "redb");
    println!("  resident after it: {:.0} MiB", server.resident_mib());
    drop(server);
    let (_, elapsed) = Process::server(&data, "redb");
    println!("start, 100,000 objects, after kill -9: {:.0} ms", elapsed.as_secs_f64() * 1e3);
}
