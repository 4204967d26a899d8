//! One object that is updated all the time, and those who watch it.

use std::time::Duration;

use super::config_maps::COLLECTION;
use super::load::{Until, fetch, request, run};
use super::process::{Process, cpu_of};
use super::watchers::{ReadPattern, WatchResult, Watcher, WatcherGroup, follow, mark};

/// An object of about 1 KiB with the mark of this moment.
pub fn marked_object(name: &str, number: u64) -> String {
    let filling = "x".repeat(900);
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}"}},"data":{{"k":"{}{filling}"}}}}"#,
        mark(number)
    )
}

/// Creates the object.
pub fn create_object(port: u16, name: &str) {
    let body = format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}"}}}}"#);
    fetch(port, &request("POST", COLLECTION, &body));
}

/// The current version of the collection.
pub fn collection_version(port: u16) -> u64 {
    let list = fetch(port, &request("GET", &format!("{COLLECTION}?limit=1"), ""));
    let (_, after) = list.split_once(r#""resourceVersion":""#).expect("a version");
    after.split('"').next().unwrap().parse().unwrap()
}

/// Updates one object `count` times over one connection. Returns the CPU time of the server before.
pub fn updates(port: u16, pid: u32, from: u64, count: u64) -> impl FnOnce() -> Duration + Send + 'static {
    move || {
        let before = cpu_of(pid);
        run(port, 1, Until::Count(count), 200, move |number| {
            request("PUT", &format!("{COLLECTION}/hot"), &marked_object("hot", from + number))
        });
        before
    }
}

/// So many watchers of the collection, of which some do not read.
pub fn watcher_group(count: usize, stalled: usize, (from, measured_from): (u64, u64)) -> Vec<Watcher> {
    let pattern = |number| if number < stalled { ReadPattern::Stalls } else { ReadPattern::Reads };
    let path = || format!("{COLLECTION}?watch=1");
    (0..count).map(|number| Watcher { path: path(), from, pattern: pattern(number), measured_from }).collect()
}

/// Prints a result. Returns the events per second, and the CPU of the server for each in µs.
pub fn report(name: &str, before: Duration, result: &mut WatchResult) -> (f64, f64) {
    let cpu = result.cpu.saturating_sub(before).as_secs_f64() * 1e6 / result.events.max(1) as f64;
    let rate = result.events as f64 / result.elapsed.as_secs_f64();
    println!(
        "  {name}: {rate:.0} events/s, {cpu:.2} µs CPU each, p50 {:?}, p99 {:?}, {} cut, {} wrong",
        result.percentile(0.5),
        result.percentile(0.99),
        result.cut,
        result.out_of_order
    );
    (rate, cpu)
}

/// The watchers of a paced run.
#[derive(Clone, Copy)]
pub struct PacedWatchers {
    /// How many there are.
    pub count: usize,
    /// How many of them share an HTTP/2 connection; with one, each has its own HTTP/1.1 connection.
    pub per_connection: usize,
}

impl PacedWatchers {
    /// The pause between two updates: about 20,000 events a second.
    pub fn interval(self) -> Duration {
        Duration::from_micros(50) * u32::try_from(self.count).unwrap()
    }
}

/// Updates the object at a rate that leaves slack. Returns the 99th percentile of the delay, and the CPU of the process for each event
/// in µs.
pub fn run_paced(name: &str, process: &Process, from: u64, watchers: PacedWatchers) -> (Duration, f64) {
    const UPDATES: u64 = 100;
    let (port, pid, PacedWatchers { count, per_connection }) = (process.port, process.id(), watchers);
    let write = move || {
        let before = cpu_of(pid);
        for number in 0..UPDATES {
            std::thread::sleep(watchers.interval());
            updates(port, pid, number, 1)();
        }
        before
    };
    let expected = (count as u64 * UPDATES, 0);
    let group = WatcherGroup { watchers: watcher_group(count, 0, (from, 0)), per_connection };
    let (mut result, before) = follow(port, group, expected, true, Some(pid), write);
    let (_, cpu) = report(&format!("{name}, {count} watchers"), before, &mut result);
    (result.percentile(0.99), cpu)
}
