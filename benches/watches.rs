//! The cost of watches, each figure beside its floor in the same run.
//!
//! `cargo bench --bench watches` runs all of it; `-- fanout`, `-- paced`, `-- shared`, `-- filtered`, `-- slow`, `-- restart`,
//! `-- idle`, `-- silent` run a part.
//! docs/numbers.md keeps what it printed. Lists are in the bench `server`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]
#![allow(dead_code, reason = "this bench uses its own part of what they share")]

mod support;

use std::time::Instant;

use support::config_maps::COLLECTION;
use support::hot_object::{
    PacedWatchers, collection_version, create_object, marked_object, report, run_paced, updates,
    watcher_group,
};
use support::load::{Until, fetch, request, run};
use support::process::{Process, cpu_of, raise_file_limit, scratch};
use support::watchers::{ReadPattern, Silence, Watcher, follow, hold, hold_silent};

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if let [first, bytes] = arguments.as_slice()
        && first == "serve-fanout"
    {
        support::fanout::serve(bytes.parse().expect("a number of bytes"));
        return;
    }
    raise_file_limit();
    let parts: [(&str, fn()); 8] = [
        ("fanout", fanout),
        ("paced", paced),
        ("shared", shared),
        ("filtered", filtered),
        ("slow", slow),
        ("restart", restart),
        ("idle", idle),
        ("silent", silent),
    ];
    for (part, bench) in parts {
        if arguments.is_empty() || arguments.iter().any(|argument| argument == part) {
            bench();
        }
    }
}

/// Every watcher gets every event. The floor writes the same bytes to the same number of TLS sockets of the same client.
fn fanout() {
    for (watchers, count) in [(1_000_usize, 200_u64), (5_000, 60)] {
        let (server, _) = Process::server(&scratch("fanout"), "redb");
        create_object(server.port, "hot");
        let expected = (watchers as u64 * count, 0);
        let bytes = marked_object("hot", 0).len() + 420;
        let floor = Process::of_bench("serve-fanout", &bytes.to_string());
        let (mut floor_run, before) = follow(
            floor.port,
            watcher_group(watchers, 0, (0, 0)),
            expected,
            true,
            Some(floor.id()),
            updates(floor.port, floor.id(), 0, count),
        );
        let (floor_rate, floor_cpu) = report(&format!("floor, {watchers} watchers"), before, &mut floor_run);
        let from = collection_version(server.port);
        let (mut server_run, before) = follow(
            server.port,
            watcher_group(watchers, 0, (from, 0)),
            expected,
            true,
            Some(server.id()),
            updates(server.port, server.id(), 0, count),
        );
        let (rate, cpu) = report(&format!("fan-out, {watchers} watchers"), before, &mut server_run);
        println!(
            "fan-out, {watchers} watchers: {:.2} of the floor's events per second (goal 0.5), {cpu:.2} µs CPU per event \
             against {floor_cpu:.2} (goal 5)",
            rate / floor_rate
        );
    }
}

/// Every watcher gets every event, at a rate that leaves slack: then the delay is the server's and not that of a client that cannot
/// keep up. The floor gets the same updates.
fn paced() {
    for (watchers, goal_ms) in [(1_000, 10), (5_000, 48)] {
        paced_for("paced", watchers, 1, goal_ms);
    }
}

/// The same for clients that share connections over HTTP/2, as those of one process do.
fn shared() {
    for (watchers, goal_ms) in [(1_000, 10), (5_000, 48)] {
        paced_for("shared", watchers, 100, goal_ms);
    }
}

fn paced_for(name: &str, count: usize, per_connection: usize, goal_ms: u32) {
    let watchers = PacedWatchers { count, per_connection };
    let floor = Process::of_bench("serve-fanout", &(marked_object("hot", 0).len() + 420).to_string());
    let (floor_p99, floor_cpu) = run_paced(&format!("{name} floor"), &floor, 0, watchers);
    let (server, _) = Process::server(&scratch(name), "redb");
    create_object(server.port, "hot");
    let (server_p99, cpu) = run_paced(name, &server, collection_version(server.port), watchers);
    println!(
        "{name}, {count} watchers, an update every {:?}: p99 {server_p99:?} against {floor_p99:?} of the floor (goal {goal_ms} ms), \
         {cpu:.2} µs CPU per event against {floor_cpu:.2}",
        watchers.interval()
    );
}

/// Each event interests one watcher. The floor is an update that nobody watches; the goal is that ten times the watchers
/// cost no more.
fn filtered() {
    const UPDATES: u64 = 3_000;
    const ROUNDS: u64 = 5;
    let mut costs = Vec::new();
    for watchers in [0_u64, 1_000, 10_000] {
        let (server, _) = Process::server(&scratch("filtered"), "memory");
        let (port, pid, names) = (server.port, server.id(), watchers.max(1_000));
        run(port, 16, Until::Count(names), 201, |number| {
            let body =
                format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"w-{number}"}}}}"#);
            request("POST", COLLECTION, &body)
        });
        let from = collection_version(port);
        let path = |number| format!("{COLLECTION}?watch=1&fieldSelector=metadata.name%3Dw-{number}");
        let all = (0..watchers).map(|number| Watcher {
            path: path(number),
            from,
            pattern: ReadPattern::Reads,
            measured_from: 0,
        });
        let expected = if watchers == 0 { 0 } else { UPDATES * ROUNDS };
        let (mut result, mut rounds) =
            follow(port, all.collect::<Vec<_>>(), (expected, 0), false, Some(pid), move || {
                let round = |round: u64| {
                    let before = cpu_of(pid);
                    run(port, 16, Until::Count(UPDATES), 200, move |number| {
                        let number = round * UPDATES + number;
                        let name = format!("w-{}", number % names);
                        request("PUT", &format!("{COLLECTION}/{name}"), &marked_object(&name, number))
                    });
                    cpu_of(pid).saturating_sub(before).as_secs_f64() * 1e6 / UPDATES as f64
                };
                (0..ROUNDS).map(round).collect::<Vec<f64>>()
            });
        rounds.sort_by(f64::total_cmp);
        let cpu = rounds[rounds.len() / 2];
        println!(
            "  filtered, {watchers} watchers: {cpu:.1} µs CPU per update, the middle of {rounds:.0?}, p99 {:?}",
            result.percentile(0.99)
        );
        costs.push(cpu);
    }
    println!(
        "filtered: an update that interests one of 1,000 costs {:.2}, of 10,000 {:.2} of one that nobody watches; \
         10,000 against 1,000: {:.2} (goal 1.2)",
        costs[1] / costs[0],
        costs[2] / costs[0],
        costs[2] / costs[1]
    );
}

/// A tenth of the watchers does not read. The floor is the same run without them. Both in turn, and the median of each: client and
/// server share the machine, so the 99th percentile of one run varies much.
fn slow() {
    // The first updates fill the socket buffers of the unread connections: only then do they stall.
    const FILLING: u64 = 3_000;
    const UPDATES: u64 = FILLING + 2_000;
    const ROUNDS: usize = 5;
    let mut p99s = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (p99s_of_case, stalled) in p99s.iter_mut().zip([0_usize, 100]) {
            let (server, _) = Process::server(&scratch("slow"), "redb");
            create_object(server.port, "hot");
            let watchers = watcher_group(900 + stalled, stalled, (collection_version(server.port), FILLING));
            let expected = (900 * UPDATES, stalled as u64 * UPDATES);
            let write = updates(server.port, server.id(), 0, UPDATES);
            let (mut result, before) =
                follow(server.port, watchers, expected, true, Some(server.id()), write);
            report(&format!("900 that read, {stalled} that do not"), before, &mut result);
            assert_eq!(
                (result.cut, result.out_of_order),
                (0, 0),
                "no watch is cut, and all get every event in order"
            );
            p99s_of_case.push(result.percentile(0.99).as_secs_f64());
        }
    }
    let [without_stalled, with_stalled] = p99s.map(|mut p99s_of_case| {
        p99s_of_case.sort_by(f64::total_cmp);
        p99s_of_case[ROUNDS / 2]
    });
    println!(
        "slow watchers: p99 of the others {:.2} of the runs without them (goal 1.1), {:.0} ms against {:.0} ms, the middle of \
         {ROUNDS} each",
        with_stalled / without_stalled,
        with_stalled * 1e3,
        without_stalled * 1e3
    );
}

/// Kill -9 and a new start with a thousand clients that watch. The floor is the start alone and a thousand connections.
fn restart() {
    const WATCHERS: usize = 1_000;
    const UPDATES: u64 = 200;
    let data = scratch("restart");
    let (server, _) = Process::server(&data, "redb");
    let port = server.port;
    create_object(port, "hot");
    let from = collection_version(port);
    let path = || format!("{COLLECTION}?watch=1");
    let watchers: Vec<Watcher> = (0..WATCHERS)
        .map(|_| Watcher { path: path(), from, pattern: ReadPattern::Returns, measured_from: 0 })
        .collect();
    let expected = 2 * UPDATES * WATCHERS as u64;
    let (mut result, (_server, ready)) = follow(port, watchers, (expected, 0), true, None, move || {
        updates(port, server.id(), 0, UPDATES)();
        // Dropping the process kills it.
        drop(server);
        let start = Instant::now();
        let (server, _) = Process::server_at(&data, "redb", port);
        let ready = start.elapsed();
        updates(port, server.id(), UPDATES, UPDATES)();
        (server, ready)
    });
    let connecting = Instant::now();
    hold(port, WATCHERS, None, || ());
    let connecting = connecting.elapsed();
    let page = fetch(port, &request("GET", "/metrics", ""));
    let lists = page
        .lines()
        .filter(|line| line.contains(r#"resource="configmaps""#) && line.contains(r#"verb="LIST""#));
    let worst = result.percentile(1.0);
    println!(
        "restart with {WATCHERS} watchers: {} wrong of {} events, {} LIST requests (goal 0 and 0); worst delay {worst:?} \
         against {ready:?} for the start and {connecting:?} for as many connections",
        result.out_of_order,
        result.events,
        lists.filter(|line| line.starts_with("apiserver_request_total")).count()
    );
}

/// Memory of an idle watch. The floor is a connection that had one response, to another server: the memory that closed connections
/// leave behind would be counted among the watches.
fn idle() {
    const COUNT: usize = 9_500;
    let measure = |name: &str, path: Option<&str>| {
        let (server, _) = Process::server(&scratch(name), "memory");
        let from = collection_version(server.port);
        let before = server.resident_mib();
        hold(server.port, COUNT, path.map(|path| (path, from)), || {
            (server.resident_mib() - before, server.resident_mib())
        })
    };
    let (connected, _) = measure("idle-connections", None);
    let (watching, total) = measure("idle-watches", Some(&format!("{COLLECTION}?watch=1")));
    let kib_per_connection = |mb: f64| mb * 1024.0 / COUNT as f64;
    println!(
        "idle, {COUNT} watches: {:.1} KiB each beyond the connection (goal 8), which has {:.1} KiB; {total:.0} MiB in all",
        kib_per_connection(watching - connected),
        kib_per_connection(connected)
    );
}

/// Memory of a connection that has completed its TLS handshake and sends no request, for which a client needs no credentials. Fewer
/// than idle ones, because the server does not wait long for the first byte.
fn silent() {
    const COUNT: usize = 4_000;
    let states = [
        ("HTTP/1.1", Silence::Http1),
        ("HTTP/2", Silence::Http2),
        ("HTTP/2 after the preface", Silence::Http2Settled),
    ];
    for (name, state) in states {
        let (server, _) = Process::server(&scratch("silent"), "memory");
        // The one-time allocations of the first connections do not count.
        hold_silent(server.port, 100, state, || ());
        let before = server.resident_mib();
        let resident = hold_silent(server.port, COUNT, state, || server.resident_mib() - before);
        let bytes = resident * 1024.0 * 1024.0 / COUNT as f64;
        println!("silent, {COUNT} connections over {name}: {bytes:.0} bytes each");
    }
}
