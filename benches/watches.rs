//! What watches cost, each figure beside the floor it is compared to in the same run.
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

use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::load::{Until, fetch, request, run};
use support::process::{Process, cpu_of, scratch};
use support::watchers::{Crowd, Followed, Habit, Silence, Watcher, follow, hold, hold_silent, mark};

const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if let [first, bytes] = words.as_slice()
        && first == "serve-fanout"
    {
        support::fanout::serve(bytes.parse().expect("a number of bytes"));
        return;
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
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
        if words.is_empty() || words.iter().any(|word| word == part) {
            bench();
        }
    }
}

/// An object of about 1 KiB with the mark of this moment.
fn marked(name: &str, number: u64) -> String {
    let filling = "x".repeat(900);
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}"}},"data":{{"k":"{}{filling}"}}}}"#,
        mark(number)
    )
}

fn make(port: u16, name: &str) {
    let body = format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}"}}}}"#);
    fetch(port, &request("POST", COLLECTION, &body));
}

/// The version of the collection, and the bytes of one event about an object that [`marked`] makes.
fn head(port: u16) -> u64 {
    let list = fetch(port, &request("GET", &format!("{COLLECTION}?limit=1"), ""));
    let (_, after) = list.split_once(r#""resourceVersion":""#).expect("a version");
    after.split('"').next().unwrap().parse().unwrap()
}

/// Updates one object so many times from one connection. Returns the CPU that the server had used before.
fn updates(port: u16, pid: u32, from: u64, count: u64) -> impl FnOnce() -> Duration + Send + 'static {
    move || {
        let before = cpu_of(pid);
        run(port, 1, Until::Count(count), 200, move |number| {
            request("PUT", &format!("{COLLECTION}/hot"), &marked("hot", from + number))
        });
        before
    }
}

fn crowd(count: usize, stalled: usize, (from, measured_from): (u64, u64)) -> Vec<Watcher> {
    let habit = |number| if number < stalled { Habit::Stalls } else { Habit::Reads };
    let path = || format!("{COLLECTION}?watch=1");
    (0..count).map(|number| Watcher { path: path(), from, habit: habit(number), measured_from }).collect()
}

fn report(what: &str, before: Duration, followed: &mut Followed) -> (f64, f64) {
    let cpu = followed.cpu.saturating_sub(before).as_secs_f64() * 1e6 / followed.events.max(1) as f64;
    let rate = followed.events as f64 / followed.taken.as_secs_f64();
    println!(
        "  {what}: {rate:.0} events/s, {cpu:.2} µs CPU each, p50 {:?}, p99 {:?}, {} cut, {} wrong",
        followed.percentile(0.5),
        followed.percentile(0.99),
        followed.cut,
        followed.wrong
    );
    (rate, cpu)
}

/// Everybody gets everything. The floor writes the same bytes to the same number of TLS sockets under the same client.
fn fanout() {
    for (watchers, count) in [(1_000_usize, 200_u64), (5_000, 60)] {
        let (server, _) = Process::server(&scratch("fanout"), "redb");
        make(server.port, "hot");
        let expected = (watchers as u64 * count, 0);
        let bytes = marked("hot", 0).len() + 420;
        let floor = Process::of_bench("serve-fanout", bytes);
        let (mut bare, before) = follow(
            floor.port,
            crowd(watchers, 0, (0, 0)),
            expected,
            true,
            Some(floor.id()),
            updates(floor.port, floor.id(), 0, count),
        );
        let (floor_rate, floor_cpu) = report(&format!("floor, {watchers} watchers"), before, &mut bare);
        let from = head(server.port);
        let (mut ours, before) = follow(
            server.port,
            crowd(watchers, 0, (from, 0)),
            expected,
            true,
            Some(server.id()),
            updates(server.port, server.id(), 0, count),
        );
        let (rate, cpu) = report(&format!("fan-out, {watchers} watchers"), before, &mut ours);
        println!(
            "fan-out, {watchers} watchers: {:.2} of the floor's events per second (goal 0.5), {cpu:.2} µs CPU per event \
             against {floor_cpu:.2} (goal 5)",
            rate / floor_rate
        );
    }
}

/// Everybody gets everything, at a rate that leaves room: then the delay is the server's and not that of a client that cannot keep up.
/// The floor is told as often.
fn paced() {
    for (watchers, goal_ms) in [(1_000, 10), (5_000, 48)] {
        paced_for("paced", watchers, 1, goal_ms);
    }
}

/// The same for clients that share connections over HTTP/2, as those in one program do.
fn shared() {
    for (watchers, goal_ms) in [(1_000, 10), (5_000, 48)] {
        paced_for("shared", watchers, 100, goal_ms);
    }
}

fn paced_for(name: &str, watchers: usize, sharing: usize, goal_ms: u32) {
    const UPDATES: u64 = 100;
    let every = Duration::from_micros(50) * u32::try_from(watchers).unwrap();
    let measure = |what: &str, port: u16, pid: u32, from: u64| {
        let act = move || {
            let before = cpu_of(pid);
            for number in 0..UPDATES {
                std::thread::sleep(every);
                updates(port, pid, number, 1)();
            }
            before
        };
        let expected = (watchers as u64 * UPDATES, 0);
        let crowd = Crowd { watchers: crowd(watchers, 0, (from, 0)), sharing };
        let (mut followed, before) = follow(port, crowd, expected, true, Some(pid), act);
        let (_, cpu) = report(&format!("{what}, {watchers} watchers"), before, &mut followed);
        (followed.percentile(0.99), cpu)
    };
    let floor = Process::of_bench("serve-fanout", marked("hot", 0).len() + 420);
    let (bare, bare_cpu) = measure(&format!("{name} floor"), floor.port, floor.id(), 0);
    let (server, _) = Process::server(&scratch(name), "redb");
    make(server.port, "hot");
    let (late, cpu) = measure(name, server.port, server.id(), head(server.port));
    println!(
        "{name}, {watchers} watchers, an update every {every:?}: p99 {late:?} against {bare:?} of the floor (goal {goal_ms} ms), \
         {cpu:.2} µs CPU per event against {bare_cpu:.2}"
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
        let from = head(port);
        let path = |number| format!("{COLLECTION}?watch=1&fieldSelector=metadata.name%3Dw-{number}");
        let all = (0..watchers).map(|number| Watcher {
            path: path(number),
            from,
            habit: Habit::Reads,
            measured_from: 0,
        });
        let expected = if watchers == 0 { 0 } else { UPDATES * ROUNDS };
        let (mut followed, mut rounds) =
            follow(port, all.collect::<Vec<_>>(), (expected, 0), false, Some(pid), move || {
                let round = |round: u64| {
                    let before = cpu_of(pid);
                    run(port, 16, Until::Count(UPDATES), 200, move |number| {
                        let number = round * UPDATES + number;
                        let name = format!("w-{}", number % names);
                        request("PUT", &format!("{COLLECTION}/{name}"), &marked(&name, number))
                    });
                    cpu_of(pid).saturating_sub(before).as_secs_f64() * 1e6 / UPDATES as f64
                };
                (0..ROUNDS).map(round).collect::<Vec<f64>>()
            });
        rounds.sort_by(f64::total_cmp);
        let cpu = rounds[rounds.len() / 2];
        println!(
            "  filtered, {watchers} watchers: {cpu:.1} µs CPU per update, the middle of {rounds:.0?}, p99 {:?}",
            followed.percentile(0.99)
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

/// A tenth of the watchers does not read. The floor is the same run without them. Both by turns, and the middle of each: the
/// client and the server share the machine, and what one run says of the last hundredth is luck.
fn slow() {
    // The first of them fill what the system keeps for connections that nobody reads from: only then do they stall.
    const FILLING: u64 = 3_000;
    const UPDATES: u64 = FILLING + 2_000;
    const ROUNDS: usize = 5;
    let mut late = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (times, stalled) in late.iter_mut().zip([0_usize, 100]) {
            let (server, _) = Process::server(&scratch("slow"), "redb");
            make(server.port, "hot");
            let watchers = crowd(900 + stalled, stalled, (head(server.port), FILLING));
            let expected = (900 * UPDATES, stalled as u64 * UPDATES);
            let act = updates(server.port, server.id(), 0, UPDATES);
            let (mut followed, before) =
                follow(server.port, watchers, expected, true, Some(server.id()), act);
            report(&format!("900 that read, {stalled} that do not"), before, &mut followed);
            assert_eq!((followed.cut, followed.wrong), (0, 0), "nobody is cut, and all are told everything");
            times.push(followed.percentile(0.99).as_secs_f64());
        }
    }
    let [without, with] = late.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    println!(
        "slow watchers: p99 of the others {:.2} of the runs without them (goal 1.1), {:.0} ms against {:.0} ms, the middle of \
         {ROUNDS} each",
        with / without,
        with * 1e3,
        without * 1e3
    );
}

/// Kill -9 and a new start with a thousand clients that watch. The floor is the start alone and a thousand connections.
fn restart() {
    const WATCHERS: usize = 1_000;
    const UPDATES: u64 = 200;
    let data = scratch("restart");
    let (server, _) = Process::server(&data, "redb");
    let port = server.port;
    make(port, "hot");
    let from = head(port);
    let path = || format!("{COLLECTION}?watch=1");
    let watchers: Vec<Watcher> = (0..WATCHERS)
        .map(|_| Watcher { path: path(), from, habit: Habit::Returns, measured_from: 0 })
        .collect();
    let expected = 2 * UPDATES * WATCHERS as u64;
    let (mut followed, (_server, ready)) = follow(port, watchers, (expected, 0), true, None, move || {
        updates(port, server.id(), 0, UPDATES)();
        // A killed child: nothing of the server has a say.
        drop(server);
        let begun = Instant::now();
        let (server, _) = Process::server_at(&data, "redb", port);
        let ready = begun.elapsed();
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
    let worst = followed.percentile(1.0);
    println!(
        "restart with {WATCHERS} watchers: {} wrong of {} events, {} LIST requests (goal 0 and 0); worst delay {worst:?} \
         against {ready:?} for the start and {connecting:?} for as many connections",
        followed.wrong,
        followed.events,
        lists.filter(|line| line.starts_with("apiserver_request_total")).count()
    );
}

/// Memory of a watch that nothing happens to. The floor is a connection that was answered once, to a server of its own: what
/// connections that have ended leave behind would be counted among the watches.
fn idle() {
    const COUNT: usize = 9_500;
    let held = |name: &str, path: Option<&str>| {
        let (server, _) = Process::server(&scratch(name), "memory");
        let from = head(server.port);
        let before = server.resident_mib();
        hold(server.port, COUNT, path.map(|path| (path, from)), || {
            (server.resident_mib() - before, server.resident_mib())
        })
    };
    let (connected, _) = held("idle-connections", None);
    let (watching, all) = held("idle-watches", Some(&format!("{COLLECTION}?watch=1")));
    let each = |mb: f64| mb * 1024.0 / COUNT as f64;
    println!(
        "idle, {COUNT} watches: {:.1} KiB each beyond the connection (goal 8), which has {:.1} KiB; {all:.0} MiB in all",
        each(watching - connected),
        each(connected)
    );
}

/// Memory of a connection that has completed its TLS handshake and asks nothing: what a client gets without credentials. Fewer than
/// idle ones, because the server does not wait long for the first byte.
fn silent() {
    const COUNT: usize = 4_000;
    let states = [
        ("HTTP/1.1", Silence::Http1),
        ("HTTP/2", Silence::Http2),
        ("HTTP/2 after the preface", Silence::Http2Settled),
    ];
    for (name, silence) in states {
        let (server, _) = Process::server(&scratch("silent"), "memory");
        // What the first connections of a process need is not theirs.
        hold_silent(server.port, 100, silence, || ());
        let before = server.resident_mib();
        let held = hold_silent(server.port, COUNT, silence, || server.resident_mib() - before);
        let bytes = held * 1024.0 * 1024.0 / COUNT as f64;
        println!("silent, {COUNT} connections over {name}: {bytes:.0} bytes each");
    }
}
