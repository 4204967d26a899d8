//! The real server, killed without warning while clients write, again and again on one data directory.
//!
//! Each writer has keys of its own and knows what it was told about each of them. After every kill the server starts
//! again and is compared with what it had acknowledged: nothing is lost, nothing is there that nobody wrote, versions
//! never go back, and a watch that goes on from the last event it saw tells every change exactly once, in order.
//!
//! `PILOTHOUSE_LONG=1` kills more often; `PILOTHOUSE_SEED=n` repeats a choice of writes and moments.

#![allow(clippy::print_stdout, reason = "the seed belongs to the report of a failure")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::{Failure, JSON};
use crate::support::compare::{revision, text};
use crate::support::random::Random;
use crate::support::wait::{Deadline, TIMEOUT, long_tests_enabled};
use crate::support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WRITERS: u64 = 6;
const KEYS_PER_WRITER: u64 = 6;
const KILLS: u64 = 50;
const KILLS_LONG: u64 = 1_000;

/// The stored value of a key: the unique payload of a write, and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StoredValue {
    payload: String,
    revision: u64,
}

/// A change of a key, as a watcher must receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    kind: &'static str,
    payload: String,
    /// Unknown for a delete, whose response does not have it.
    revision: Option<u64>,
}

/// A write that was sent but not answered before the kill.
#[derive(Clone, Debug)]
enum UnansweredWrite {
    Create(String),
    Update(String),
    Delete,
}

/// The known state of a key.
#[derive(Debug, Default)]
struct Key {
    stored: Option<StoredValue>,
    unanswered: Option<UnansweredWrite>,
    changes: Vec<Change>,
}

impl Key {
    fn record_write(&mut self, kind: &'static str, stored: StoredValue) {
        self.changes.push(Change { kind, payload: stored.payload.clone(), revision: Some(stored.revision) });
        self.stored = Some(stored);
    }

    fn record_delete(&mut self) {
        let stored = self.stored.take().expect("only what is stored is deleted");
        self.changes.push(Change { kind: "DELETED", payload: stored.payload, revision: None });
    }

    /// Compares with the stored value after a restart, and resolves an unanswered write.
    fn resolve(&mut self, name: &str, actual: Option<StoredValue>) {
        let unanswered = self.unanswered.take();
        if actual == self.stored {
            return;
        }
        match (unanswered, actual) {
            (Some(UnansweredWrite::Create(payload)), Some(actual))
                if self.stored.is_none() && actual.payload == payload =>
            {
                self.record_write("ADDED", actual);
            }
            (Some(UnansweredWrite::Update(payload)), Some(actual))
                if self.stored.is_some() && actual.payload == payload =>
            {
                self.record_write("MODIFIED", actual);
            }
            (Some(UnansweredWrite::Delete), None) => self.record_delete(),
            (unanswered, actual) => {
                panic!(
                    "{name}: acknowledged {:?}, in doubt {unanswered:?}, but there is {actual:?}",
                    self.stored
                )
            }
        }
    }
}

/// A client that writes its own keys.
struct Writer {
    keys: BTreeMap<String, Key>,
    random: Random,
    number: u64,
    count: u64,
}

fn object(name: &str, payload: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"test": "crash"}},
        "data": {"payload": payload}})
}

fn read_stored(object: &Value) -> StoredValue {
    StoredValue { payload: text(object, "/data/payload").to_owned(), revision: revision(object) }
}

impl Writer {
    fn new(number: u64, seed: u64) -> Writer {
        let name = |key: u64| format!("writer-{number}-key-{key}");
        let keys = (0..KEYS_PER_WRITER).map(|key| (name(key), Key::default())).collect();
        Writer { keys, random: Random::new(seed ^ (number << 32)), number, count: 0 }
    }

    /// Writes until the connection breaks or the test stops it.
    fn run(&mut self, mut client: Client, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) && self.write(&mut client) {}
    }

    /// One write; `false` if the server is gone.
    fn write(&mut self, client: &mut Client) -> bool {
        self.count += 1;
        // Lengths vary, so that records and batches do.
        let padding = "x".repeat(self.random.below(600) as usize);
        let payload = format!("{}-{}-{padding}", self.number, self.count);
        let name = format!("writer-{}-key-{}", self.number, self.random.below(KEYS_PER_WRITER));
        let choice = self.random.below(10);
        let key = self.keys.get_mut(&name).expect("a key of this writer");
        let path = format!("{MAPS}/{name}");
        let (method, target, body, unanswered) = match &key.stored {
            None => ("POST", MAPS, object(&name, &payload), UnansweredWrite::Create(payload)),
            Some(_) if choice < 2 => ("DELETE", path.as_str(), Value::Null, UnansweredWrite::Delete),
            Some(stored) => {
                let mut object = object(&name, &payload);
                if choice < 7 {
                    object["metadata"]["resourceVersion"] = json!(stored.revision.to_string());
                }
                ("PUT", path.as_str(), object, UnansweredWrite::Update(payload))
            }
        };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let response = match client.attempt(method, target, &JSON, &body) {
            Ok(response) => response,
            Err(Failure::Unsent(_)) => return false,
            Err(Failure::Unanswered(_)) => {
                key.unanswered = Some(unanswered);
                return false;
            }
        };
        match unanswered {
            UnansweredWrite::Delete => {
                response.ok();
                key.record_delete();
            }
            UnansweredWrite::Create(payload) | UnansweredWrite::Update(payload) => {
                let kind = if response.status == 201 { "ADDED" } else { "MODIFIED" };
                let stored = read_stored(&response.ok());
                assert_eq!(stored.payload, payload, "{method} {target} answers what was written");
                assert!(
                    key.stored.as_ref().is_none_or(|old| old.revision < stored.revision),
                    "{name}: {stored:?}"
                );
                key.record_write(kind, stored);
            }
        }
        true
    }
}

/// A client that watches all objects, across the kills.
struct Watcher {
    events: Vec<Value>,
    last: u64,
}

impl Watcher {
    /// Watches until the connection breaks, or until an event about this object.
    fn run(&mut self, client: &Client, until: Option<&str>) {
        let mut watch = match client.try_watch(MAPS, &format!("resourceVersion={}", self.last)) {
            Ok(watch) => watch,
            Err(error) if until.is_some() => panic!("the watch cannot go on from {}: {error}", self.last),
            // The kill may come before the response; a response that refuses has the query in its text.
            Err(error) => return assert!(!error.to_string().contains("resourceVersion="), "{error}"),
        };
        loop {
            match watch.attempt(Deadline::after(TIMEOUT)) {
                Ok(Some(event)) => {
                    let version = revision(&event["object"]);
                    assert!(version > self.last, "versions go up in a watch: {version} after {}", self.last);
                    self.last = version;
                    let name = text(&event, "/object/metadata/name").to_owned();
                    self.events.push(event);
                    if until == Some(name.as_str()) {
                        return;
                    }
                }
                Ok(None) => panic!("the server ended the watch"),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut || until.is_some() => {
                    panic!("the watch is silent: {error}");
                }
                Err(_) => return,
            }
        }
    }
}

/// Runs writers and watcher for a while, then kills the server.
fn burst(server: Server, writers: Vec<Writer>, watcher: Watcher, pause: Duration) -> (Vec<Writer>, Watcher) {
    let stop = Arc::new(AtomicBool::new(false));
    let client = server.admin();
    let watcher_thread: JoinHandle<Watcher> = thread::spawn(move || {
        let mut watcher = watcher;
        watcher.run(&client, None);
        watcher
    });
    let writer_threads: Vec<JoinHandle<Writer>> = writers
        .into_iter()
        .map(|mut writer| {
            let (client, stop) = (server.admin(), Arc::clone(&stop));
            thread::spawn(move || {
                writer.run(client, &stop);
                writer
            })
        })
        .collect();
    thread::sleep(pause);
    server.kill();
    stop.store(true, Ordering::Relaxed);
    let writers = writer_threads.into_iter().map(|thread| thread.join().expect("a writer")).collect();
    (writers, watcher_thread.join().expect("the watcher"))
}

/// Compares the restarted server with all acknowledged writes.
fn compare(client: &mut Client, writers: &mut [Writer], watcher: &Watcher) {
    let list = client.get(&format!("{MAPS}?labelSelector=test%3Dcrash")).ok();
    let items = list["items"].as_array().expect("items");
    let mut stored_values: HashMap<String, StoredValue> =
        items.iter().map(|item| (text(item, "/metadata/name").to_owned(), read_stored(item))).collect();
    let highest = writers.iter().flat_map(|writer| writer.keys.values()).filter_map(|key| key.changes.last());
    let highest = highest.filter_map(|change| change.revision).max().unwrap_or(0).max(watcher.last);
    assert!(revision(&list) >= highest, "the counter went back: {} after {highest}", revision(&list));
    for writer in writers {
        for (name, key) in &mut writer.keys {
            key.resolve(name, stored_values.remove(name));
        }
    }
    assert!(stored_values.is_empty(), "nobody wrote {stored_values:?}");
}

/// Checks that the watcher received every change of every key, once and in order.
fn check_events(writers: &[Writer], watcher: &Watcher) {
    let mut events_by_name: HashMap<&str, Vec<&Value>> = HashMap::new();
    for event in &watcher.events {
        events_by_name.entry(text(event, "/object/metadata/name")).or_default().push(event);
    }
    for writer in writers {
        for (name, key) in &writer.keys {
            let events = events_by_name.get(name.as_str()).map_or(&[][..], Vec::as_slice);
            for (index, (change, event)) in key.changes.iter().zip(events).enumerate() {
                let stored = read_stored(&event["object"]);
                let is_equal = text(event, "/type") == change.kind
                    && stored.payload == change.payload
                    && change.revision.is_none_or(|known| known == stored.revision);
                assert!(is_equal, "{name}, change {index}: wrote {change:?}, the watch told {event}");
            }
            assert_eq!(key.changes.len(), events.len(), "{name}: changes told and made differ in number");
        }
    }
}

#[test]
fn acknowledged_writes_survive_kill_and_no_others_appear() {
    let seed = Random::seed();
    let long = long_tests_enabled();
    let kills = if long { KILLS_LONG } else { KILLS };
    println!("seed {seed}: repeat with PILOTHOUSE_SEED={seed}");
    let directory = crate::support::server::temp_directory();
    let data = directory.path().join("data");
    let mut random = Random::new(seed);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, seed)).collect();
    let mut server = Server::start_in(&data, &[]);
    let start = revision(&server.admin().get(MAPS).ok());
    let mut watcher = Watcher { events: Vec::new(), last: start };
    for _ in 0..kills {
        let pause = Duration::from_millis(100 + random.below(250));
        (writers, watcher) = burst(server, writers, watcher, pause);
        server = Server::start_in(&data, &[]);
        compare(&mut server.admin(), &mut writers, &watcher);
    }
    let mut client = server.admin();
    client.post(MAPS, &object("the-end", "")).ok();
    watcher.run(&client, Some("the-end"));
    check_events(&writers, &watcher);
    let changes: usize =
        writers.iter().flat_map(|writer| writer.keys.values()).map(|key| key.changes.len()).sum();
    println!("{kills} kills, {changes} acknowledged changes");
    assert!(changes as u64 > kills, "the writers hardly wrote: {changes} changes in {kills} bursts");
    server.stop();
}
