//! Everything that clients were told, held against a model: writers that keep every answer, watchers that keep every
//! event, and a server that is killed, stopped and started again under their load.
//!
//! The versions of a type rise by one with every write, so a watcher of everything must be told every number once and
//! in order: that is the history. Every acknowledged write must be in it as it was answered, nothing may be in it that
//! nobody wrote, and what each other watcher was told must be what its selector sees of that history, however often it
//! was cut off, did not read, or was sent on with a bookmark.
//!
//! `PILOTHOUSE_LONG=1` goes on for longer; `PILOTHOUSE_SEED=n` repeats a choice of writes and moments.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the seed belongs to the report of a failure")]

mod support;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use support::client::{Failure, JSON};
use support::compare::{revision, text};
use support::random::Random;
use support::wait::{CAP, Deadline, is_long};
use support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WRITERS: u64 = 4;
const KEYS_PER_WRITER: u64 = 5;
const COLORS: [&str; 3] = ["red", "green", "blue"];
/// The object that every watcher follows: its last state ends the test.
const PINNED: &str = "writer-0-key-0";
const BURSTS: u64 = 12;
const BURSTS_LONG: u64 = 600;

/// What was written, or shown.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    payload: String,
    color: String,
}

/// One write that was sent.
#[derive(Clone, Debug)]
struct Sent {
    /// `None` deletes.
    state: Option<State>,
    /// The version of the answer; unknown for a delete and for what was not answered.
    revision: Option<u64>,
    /// Whether it is known to have been done; `None` until that is known.
    done: Option<bool>,
}

/// One event of one watch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    kind: String,
    name: String,
    revision: u64,
    state: State,
}

fn object(name: &str, state: &State) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"color": state.color}},
        "data": {"payload": state.payload}})
}

fn state(object: &Value) -> State {
    State {
        payload: text(object, "/data/payload").to_owned(),
        color: text(object, "/metadata/labels/color").to_owned(),
    }
}

struct Writer {
    number: u64,
    count: u64,
    random: Random,
    /// What was sent for each key, in order, and what is there now as far as the writer knows.
    keys: BTreeMap<String, (Vec<Sent>, Option<State>)>,
}

impl Writer {
    fn new(number: u64, seed: u64) -> Writer {
        let name = |key: u64| format!("writer-{number}-key-{key}");
        let keys = (0..KEYS_PER_WRITER).map(|key| (name(key), (Vec::new(), None))).collect();
        Writer { number, count: 0, random: Random::new(seed ^ number << 40), keys }
    }

    fn run(&mut self, mut client: Client, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.count += 1;
            let padding = "x".repeat(self.random.below(400) as usize);
            let payload = format!("{}-{}-{padding}", self.number, self.count);
            let color = COLORS[self.random.below(COLORS.len() as u64) as usize].to_owned();
            let name = format!("writer-{}-key-{}", self.number, self.random.below(KEYS_PER_WRITER));
            let deletes = self.random.below(6) == 0;
            if !self.write(&mut client, &name, (!deletes).then_some(State { payload, color })) {
                return;
            }
        }
    }

    /// One write; `false` if the server is gone.
    fn write(&mut self, client: &mut Client, name: &str, wanted: Option<State>) -> bool {
        let (sent, now) = self.keys.get_mut(name).expect("a key of this writer");
        let path = format!("{MAPS}/{name}");
        let body = wanted.as_ref().map(|state| object(name, state).to_string()).unwrap_or_default();
        let (method, target) = match (&now, &wanted) {
            (None, None) => return true,
            (None, Some(_)) => ("POST", MAPS),
            (Some(_), Some(_)) => ("PUT", path.as_str()),
            (Some(_), None) => ("DELETE", path.as_str()),
        };
        match client.attempt(method, target, &JSON, body.as_bytes()) {
            Err(Failure::Unsent(_)) => return false,
            Err(Failure::Doubt(_)) => {
                sent.push(Sent { state: wanted, revision: None, done: None });
                return false;
            }
            // A server that is about to stop refuses, and says so.
            Ok(answer) if matches!(answer.status, 429 | 503) => return false,
            Ok(answer) => {
                let answer = answer.ok();
                let revision = wanted.as_ref().map(|_| revision(&answer));
                if let Some(wanted) = &wanted {
                    assert_eq!(state(&answer), *wanted, "the answer shows what was written");
                }
                sent.push(Sent { state: wanted.clone(), revision, done: Some(true) });
                *now = wanted;
            }
        }
        true
    }

    /// Learns what became of what was not answered.
    fn settle(&mut self, client: &mut Client) {
        for (name, (sent, now)) in &mut self.keys {
            let Some(last) = sent.last_mut().filter(|last| last.done.is_none()) else { continue };
            let answer = client.get(&format!("{MAPS}/{name}"));
            let found = (answer.status == 200).then(|| state(&answer.ok()));
            last.done = Some(found == last.state);
            let wanted = if last.done == Some(true) { &last.state } else { &*now };
            assert_eq!(found, *wanted, "{name}: neither what was acknowledged nor what was in doubt");
            *now = found;
        }
    }
}

/// What a watcher is like.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// Reads all the time.
    Eager,
    /// Reads nothing at first.
    Stalls,
    /// Drops its connection after so many events.
    Drops(usize),
}

struct Watcher {
    selector: &'static str,
    sees: fn(&str, &State) -> bool,
    habit: Habit,
    /// The version it goes on from: of the last event or bookmark.
    last: u64,
    told: Vec<Told>,
    bookmarks: usize,
}

impl Watcher {
    /// Follows until the connection breaks or ends, or until the end of all was told.
    fn run(&mut self, client: &Client, pause: Duration, end: Option<u64>) {
        let query = format!("allowWatchBookmarks=true&resourceVersion={}{}", self.last, self.selector);
        let mut watch = match client.try_watch(MAPS, &query) {
            Ok(watch) => watch,
            Err(error) if end.is_some() => panic!("{query}: {error}"),
            // The kill may come before the answer; an answer that refuses is told by its text.
            Err(error) => return assert!(!error.to_string().contains("resourceVersion="), "{error}"),
        };
        if matches!(self.habit, Habit::Stalls) && end.is_none() {
            thread::sleep(pause);
        }
        let mut events = 0;
        while end.is_none_or(|end| self.last < end) {
            match watch.attempt(Deadline::after(CAP)) {
                Ok(Some(event)) => self.hear(&event),
                Ok(None) => return,
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => panic!("{query}: silent"),
                Err(_) => return,
            }
            events += 1;
            if matches!(self.habit, Habit::Drops(after) if events >= after) && end.is_none() {
                return self.run(client, pause, end);
            }
        }
    }

    fn hear(&mut self, event: &Value) {
        let at = revision(&event["object"]);
        let kind = text(event, "/type").to_owned();
        if kind == "BOOKMARK" {
            assert!(at >= self.last, "a bookmark goes back: {at} after {}", self.last);
            self.bookmarks += 1;
        } else {
            assert_ne!(kind, "ERROR", "{event}");
            assert!(at > self.last, "versions go up in a watch: {at} after {}", self.last);
            let name = text(event, "/object/metadata/name").to_owned();
            self.told.push(Told { kind, name, revision: at, state: state(&event["object"]) });
        }
        self.last = at;
    }
}

fn watchers(start: u64) -> Vec<Watcher> {
    let everything: fn(&str, &State) -> bool = |_, _| true;
    let red: fn(&str, &State) -> bool = |_, state| state.color == "red";
    let not_blue: fn(&str, &State) -> bool = |_, state| state.color != "blue";
    let pinned: fn(&str, &State) -> bool = |name, _| name == PINNED;
    let make = |selector, sees, habit| Watcher {
        selector,
        sees,
        habit,
        last: start,
        told: Vec::new(),
        bookmarks: 0,
    };
    vec![
        make("", everything, Habit::Eager),
        make("", everything, Habit::Stalls),
        make("", everything, Habit::Drops(7)),
        make("&labelSelector=color%3Dred", red, Habit::Eager),
        make("&labelSelector=color%3Dred", red, Habit::Stalls),
        make("&labelSelector=color%21%3Dblue&timeoutSeconds=1", not_blue, Habit::Drops(3)),
        make("&fieldSelector=metadata.name%3Dwriter-0-key-0", pinned, Habit::Eager),
    ]
}

/// Lets all of them work for a while, then ends the server one way or the other.
fn burst(server: Server, writers: &mut [Writer], watchers: &mut [Watcher], pause: Duration, kill: bool) {
    let stop = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        for watcher in watchers {
            let client = server.admin();
            scope.spawn(move || watcher.run(&client, pause / 2, None));
        }
        for writer in writers {
            let (client, stop) = (server.admin(), Arc::clone(&stop));
            scope.spawn(move || writer.run(client, &stop));
        }
        thread::sleep(pause);
        if kill {
            server.kill();
        } else {
            server.stop();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// What the history must say of one key: every write that was done, in order.
fn retell(name: &str, sent: &[Sent], history: &[Told]) {
    let mut events = history.iter().filter(|told| told.name == name);
    let mut before: Option<&State> = None;
    for (at, write) in sent.iter().filter(|write| write.done == Some(true)).enumerate() {
        let event = events.next().unwrap_or_else(|| panic!("{name}: write {at} was not told: {write:?}"));
        let kind = match (before, &write.state) {
            (None, _) => "ADDED",
            (Some(_), Some(_)) => "MODIFIED",
            (Some(_), None) => "DELETED",
        };
        let shown = write.state.as_ref().or(before);
        assert_eq!((event.kind.as_str(), Some(&event.state)), (kind, shown), "{name}, write {at}");
        assert!(write.revision.is_none_or(|known| known == event.revision), "{name}: {write:?} {event:?}");
        before = write.state.as_ref();
    }
    assert_eq!(events.next(), None, "{name}: nobody wrote that");
}

/// What a selector sees of the history.
fn seen(history: &[Told], sees: fn(&str, &State) -> bool) -> Vec<Told> {
    let mut live: HashMap<&str, &State> = HashMap::new();
    let mut view = Vec::new();
    for told in history {
        let before = live.get(told.name.as_str()).copied().filter(|state| sees(&told.name, state));
        let removed = told.kind == "DELETED";
        let after = (!removed && sees(&told.name, &told.state)).then_some(&told.state);
        match removed {
            true => live.remove(told.name.as_str()),
            false => live.insert(&told.name, &told.state),
        };
        let (kind, state) = match (before, after) {
            (None, None) => continue,
            (None, Some(state)) => ("ADDED", state),
            (Some(_), Some(state)) => ("MODIFIED", state),
            (Some(state), None) => ("DELETED", state),
        };
        view.push(Told { kind: kind.to_owned(), state: state.clone(), ..told.clone() });
    }
    view
}

#[test]
fn every_watcher_is_told_exactly_what_was_written() {
    let seed = Random::seed();
    let long = is_long();
    let bursts = if long { BURSTS_LONG } else { BURSTS };
    println!("seed {seed}: repeat with PILOTHOUSE_SEED={seed}");
    let directory = support::server::directory();
    let data = directory.path().join("data");
    let mut random = Random::new(seed);
    let mut server = Server::on(&data, &[]);
    let start = revision(&server.admin().get(MAPS).ok());
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, seed)).collect();
    let mut watchers = watchers(start);
    for _ in 0..bursts {
        let (pause, kill) = (Duration::from_millis(100 + random.below(300)), random.below(3) > 0);
        burst(server, &mut writers, &mut watchers, pause, kill);
        server = Server::on(&data, &[]);
        let mut client = server.admin();
        writers.iter_mut().for_each(|writer| writer.settle(&mut client));
    }
    // The last word is one that every selector sees.
    let mut client = server.admin();
    let last = State { payload: "the end".to_owned(), color: "red".to_owned() };
    assert!(writers[0].write(&mut client, PINNED, Some(last)));
    let end = revision(&client.get(&format!("{MAPS}/{PINNED}")).ok());
    thread::scope(|scope| {
        for watcher in &mut watchers {
            let client = server.admin();
            scope.spawn(move || {
                while watcher.last < end {
                    watcher.run(&client, Duration::ZERO, Some(end));
                }
            });
        }
    });
    let history = watchers[0].told.clone();
    let revisions: Vec<u64> = history.iter().map(|told| told.revision).collect();
    assert_eq!(revisions, Vec::from_iter(start + 1..=end), "every version is told once and in order");
    for (name, (sent, _)) in writers.iter().flat_map(|writer| &writer.keys) {
        retell(name, sent, &history);
    }
    for watcher in &watchers {
        let view = seen(&history, watcher.sees);
        for (told, wanted) in watcher.told.iter().zip(&view) {
            assert_eq!(told, wanted, "{:?} {}", watcher.habit, watcher.selector);
        }
        assert_eq!(watcher.told.len(), view.len(), "{:?} {}", watcher.habit, watcher.selector);
    }
    let bookmarks: usize = watchers.iter().map(|watcher| watcher.bookmarks).sum();
    println!("{bursts} bursts, {} events, {bookmarks} bookmarks", history.len());
    assert!(history.len() as u64 > bursts, "the writers hardly wrote");
    server.stop();
}
