//! A model of the writes of clients and of the events that watchers received, and the check that both agree.
//!
//! An unfiltered watcher receives every write once and in order: that is the history. Every acknowledged write must be in it as it was
//! answered, no other write may be in it, and the events of every other watcher must be those of the history that match its selector.
//! In a file the versions of a type rise by one with every write; in etcd they rise with those of all types.
//!
//! A write whose outcome nobody told may take effect later, where it goes through several processes: then it is looked for in the
//! history up to the next write of the object that was acknowledged.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Client, Failure, JSON};
use super::compare::{revision, text};
use super::etcd;
use super::random::Random;
use super::wait::{Deadline, TIMEOUT};

/// The collection that writers write and watchers follow. No other client may write ConfigMaps.
pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// The object that every selector matches: its last state ends a test.
pub const PINNED: &str = "writer-0-key-0";
const COLORS: [&str; 3] = ["red", "green", "blue"];
const KEYS_PER_WRITER: u64 = 5;
/// How often a normal client repeats a request that was refused with 429 or 503, and the pause in between.
const RETRIES: usize = 600;
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The part of an object that writers change and selectors see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub payload: String,
    pub color: String,
}

impl State {
    /// A state that every selector matches.
    pub fn red(payload: &str) -> State {
        State { payload: payload.to_owned(), color: "red".to_owned() }
    }

    pub fn read(object: &Value) -> State {
        State {
            payload: text(object, "/data/payload").to_owned(),
            color: text(object, "/metadata/labels/color").to_owned(),
        }
    }

    fn object(&self, name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"color": self.color}},
            "data": {"payload": self.payload}})
    }
}

/// A write that was sent.
#[derive(Clone, Debug)]
struct SentWrite {
    /// The written state; `None` for a delete.
    state: Option<State>,
    /// The version of the response; unknown for a delete and for an unanswered write.
    revision: Option<u64>,
    /// Whether the write took effect; `None` until that is known, or if only the history tells.
    done: Option<bool>,
}

/// An event that a watch received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    pub kind: String,
    pub name: String,
    pub revision: u64,
    pub state: State,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Done,
    /// Refused with 429 or 503: nothing was written.
    Busy,
    /// Unanswered: the server or the connection is gone.
    Gone,
}

/// The writes of one key.
#[derive(Default)]
struct Key {
    /// The state at the start of the history.
    base: Option<State>,
    /// The writes since then, in order.
    sent: Vec<SentWrite>,
    /// The current state as far as the writer knows.
    now: Option<State>,
    /// Whether a write may take effect yet that was not answered.
    is_uncertain: bool,
}

/// A client that writes its own keys and records every response.
pub struct Writer {
    number: u64,
    count: u64,
    random: Random,
    keys: BTreeMap<String, Key>,
    /// Number of requests that were refused for the moment.
    pub refusals: usize,
}

impl Writer {
    pub fn new(number: u64, seed: u64) -> Writer {
        let name = |key: u64| format!("writer-{number}-key-{key}");
        let keys = (0..KEYS_PER_WRITER).map(|key| (name(key), Key::default())).collect();
        Writer { number, count: 0, random: Random::new(seed ^ number << 40), keys, refusals: 0 }
    }

    /// The next write: a name, and a state unless it is deleted.
    pub fn choose(&mut self) -> (String, Option<State>) {
        self.count += 1;
        let padding = "x".repeat(self.random.below(400) as usize);
        let payload = format!("{}-{}-{padding}", self.number, self.count);
        let color = COLORS[self.random.below(COLORS.len() as u64) as usize].to_owned();
        let name = format!("writer-{}-key-{}", self.number, self.random.below(KEYS_PER_WRITER));
        let deletes = self.random.below(6) == 0;
        (name, (!deletes).then_some(State { payload, color }))
    }

    /// One attempt to write.
    pub fn write(&mut self, client: &mut Client, name: &str, desired: Option<State>) -> WriteOutcome {
        let key = self.keys.get_mut(name).expect("a key of this writer");
        let path = format!("{MAPS}/{name}");
        let body = desired.as_ref().map(|state| state.object(name).to_string()).unwrap_or_default();
        let (method, target) = match (&key.now, &desired) {
            (None, None) => return WriteOutcome::Done,
            (None, Some(_)) => ("POST", MAPS),
            (Some(_), Some(_)) => ("PUT", path.as_str()),
            (Some(_), None) => ("DELETE", path.as_str()),
        };
        match client.attempt(method, target, &JSON, body.as_bytes()) {
            Err(Failure::Unsent(_)) => WriteOutcome::Gone,
            Err(Failure::Unanswered(_)) => {
                key.sent.push(SentWrite { state: desired, revision: None, done: None });
                WriteOutcome::Gone
            }
            Ok(response) if matches!(response.status, 429 | 503) => WriteOutcome::Busy,
            // Nobody knows whether the storage has it.
            Ok(response) if response.status == 504 => {
                key.sent.push(SentWrite { state: desired, revision: None, done: None });
                WriteOutcome::Gone
            }
            // The state is another one than it was when it was read: an earlier write has taken effect since.
            Ok(response) if key.is_uncertain && matches!(response.status, 404 | 409) => WriteOutcome::Gone,
            Ok(response) => {
                let object = response.ok();
                let revision = desired.as_ref().map(|_| revision(&object));
                if let Some(desired) = &desired {
                    assert_eq!(State::read(&object), *desired, "the response has the written state");
                }
                key.sent.push(SentWrite { state: desired.clone(), revision, done: Some(true) });
                (key.now, key.is_uncertain) = (desired, false);
                WriteOutcome::Done
            }
        }
    }

    /// Writes, and repeats a refused or unanswered write until it took effect.
    pub fn write_with_retries(&mut self, client: &mut Client, name: &str, desired: Option<&State>) {
        for _ in 0..RETRIES {
            match self.write(client, name, desired.cloned()) {
                WriteOutcome::Done => return,
                WriteOutcome::Busy => thread::sleep(RETRY_PAUSE),
                WriteOutcome::Gone => {
                    self.resolve_unanswered(client);
                    if self.keys[name].now.as_ref() == desired {
                        return;
                    }
                }
            }
            self.refusals += 1;
        }
        panic!("{name} could not be written: this client starves");
    }

    /// Reads the objects of unanswered writes to learn whether they took effect.
    pub fn resolve_unanswered(&mut self, client: &mut Client) {
        for (name, key) in &mut self.keys {
            let Some(last) = key.sent.last_mut().filter(|last| last.done.is_none()) else { continue };
            let actual =
                read_with_retries(client, &format!("{MAPS}/{name}")).map(|object| State::read(&object));
            last.done = Some(actual == last.state);
            let expected = if last.done == Some(true) { &last.state } else { &key.now };
            assert_eq!(actual, *expected, "{name}: neither the acknowledged nor the unanswered state");
            key.now = actual;
        }
    }

    /// Reads the objects of writes that may take effect yet, to go on from there. Whether they have is left to the history.
    pub fn read_uncertain(&mut self, client: &mut Client) {
        for (name, key) in &mut self.keys {
            key.is_uncertain |= key.sent.last().is_some_and(|last| last.done.is_none());
            if key.is_uncertain {
                let object = read_with_retries(client, &format!("{MAPS}/{name}"));
                key.now = object.map(|object| State::read(&object));
            }
        }
    }

    /// The current states as far as the writer knows.
    pub fn states(&self) -> impl Iterator<Item = (&str, Option<&State>)> {
        self.keys.iter().map(|(name, key)| (name.as_str(), key.now.as_ref()))
    }

    /// Starts a new history at the current states.
    pub fn reset_history(&mut self) {
        for key in self.keys.values_mut() {
            key.base = key.now.clone();
            key.sent.clear();
        }
    }
}

/// The object at a path, if any; repeated as long as the server refuses with 429 or 503.
pub fn read_with_retries(client: &mut Client, path: &str) -> Option<Value> {
    for _ in 0..RETRIES {
        match client.attempt("GET", path, &[], b"") {
            Ok(response) if response.status == 404 => return None,
            Ok(response) if response.status == 200 => return Some(response.json()),
            Ok(response) => {
                assert!(matches!(response.status, 429 | 503 | 504), "{path}: {}", response.text());
            }
            Err(_) => {}
        }
        thread::sleep(RETRY_PAUSE);
    }
    panic!("{path} could not be read: this client starves");
}

/// How a watcher reads its events.
#[derive(Clone, Copy, Debug)]
pub enum ReadPattern {
    /// Reads all the time.
    Eager,
    /// Reads nothing at first.
    Stalls,
    /// Drops its connection after so many events.
    Drops(usize),
}

/// A client that records every event.
pub struct Watcher {
    pub selector: &'static str,
    matches: fn(&str, &State) -> bool,
    pub pattern: ReadPattern,
    /// The version to resume from: that of the last event or bookmark.
    pub last: u64,
    pub events: Vec<WatchEvent>,
    pub bookmarks: usize,
}

impl Watcher {
    fn query(&self) -> String {
        format!("allowWatchBookmarks=true&resourceVersion={}{}", self.last, self.selector)
    }

    /// Watches until the connection breaks or ends, or until the version `end` was received.
    pub fn run(&mut self, client: &Client, pause: Duration, end: Option<u64>) {
        let query = self.query();
        let mut watch = match client.try_watch(MAPS, &query) {
            Ok(watch) => watch,
            Err(error) if end.is_some() => panic!("{query}: {error}"),
            // The kill may come before the response; a response that refuses has the query in its text.
            Err(error) => return assert!(!error.to_string().contains("resourceVersion="), "{error}"),
        };
        if matches!(self.pattern, ReadPattern::Stalls) && end.is_none() {
            thread::sleep(pause);
        }
        let mut count = 0;
        while end.is_none_or(|end| self.last < end) {
            match watch.attempt(Deadline::after(TIMEOUT)) {
                Ok(Some(event)) => self.record(&event),
                Ok(None) => return,
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => panic!("{query}: silent"),
                Err(_) => return,
            }
            count += 1;
            if matches!(self.pattern, ReadPattern::Drops(after) if count >= after) && end.is_none() {
                return self.run(client, pause, end);
            }
        }
    }

    /// Watches until the pinned object has this payload, over as many connections as that takes, each to the next of these servers.
    /// Returns the number of refused requests.
    pub fn follow(&mut self, clients: &[Client], payload: &str) -> usize {
        let mut refusals = 0;
        let mut clients = clients.iter().cycle();
        while !self.events.last().is_some_and(|event| event.name == PINNED && event.state.payload == payload)
        {
            let client = clients.next().expect("a server");
            let Ok(mut watch) = client.try_watch(MAPS, &self.query()) else {
                refusals += 1;
                assert!(refusals < RETRIES, "{} could not be watched: this client starves", self.selector);
                thread::sleep(RETRY_PAUSE);
                continue;
            };
            if matches!(self.pattern, ReadPattern::Stalls) {
                thread::sleep(RETRY_PAUSE);
            }
            let limit = if let ReadPattern::Drops(after) = self.pattern { after } else { usize::MAX };
            for _ in 0..limit {
                match watch.attempt(Deadline::after(TIMEOUT)) {
                    Ok(Some(event)) => self.record(&event),
                    Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                        panic!("{}: silent", self.selector)
                    }
                    Ok(None) | Err(_) => break,
                }
                if self.events.last().is_some_and(|event| event.state.payload == payload) {
                    break;
                }
            }
        }
        refusals
    }

    fn record(&mut self, event: &Value) {
        let version = revision(&event["object"]);
        let kind = text(event, "/type").to_owned();
        if kind == "BOOKMARK" {
            assert!(version >= self.last, "a bookmark goes back: {version} after {}", self.last);
            self.bookmarks += 1;
        } else {
            assert_ne!(kind, "ERROR", "{event}");
            assert!(version > self.last, "versions must rise in a watch: {version} after {}", self.last);
            let name = text(event, "/object/metadata/name").to_owned();
            self.events.push(WatchEvent {
                kind,
                name,
                revision: version,
                state: State::read(&event["object"]),
            });
        }
        self.last = version;
    }
}

/// Watchers with several selectors and read patterns. The first one has no selector.
pub fn watchers(start: u64) -> Vec<Watcher> {
    let everything: fn(&str, &State) -> bool = |_, _| true;
    let red: fn(&str, &State) -> bool = |_, state| state.color == "red";
    let not_blue: fn(&str, &State) -> bool = |_, state| state.color != "blue";
    let pinned: fn(&str, &State) -> bool = |name, _| name == PINNED;
    let make = |selector, matches, pattern| Watcher {
        selector,
        matches,
        pattern,
        last: start,
        events: Vec::new(),
        bookmarks: 0,
    };
    vec![
        make("", everything, ReadPattern::Eager),
        make("", everything, ReadPattern::Stalls),
        make("", everything, ReadPattern::Drops(7)),
        make("&labelSelector=color%3Dred", red, ReadPattern::Eager),
        make("&labelSelector=color%3Dred", red, ReadPattern::Stalls),
        make("&labelSelector=color%21%3Dblue&timeoutSeconds=1", not_blue, ReadPattern::Drops(3)),
        make("&fieldSelector=metadata.name%3Dwriter-0-key-0", pinned, ReadPattern::Eager),
    ]
}

/// Checks that the history has exactly the effective writes of one key, in order.
fn check_key_history(name: &str, key: &Key, history: &[WatchEvent]) {
    let events: Vec<&WatchEvent> = history.iter().filter(|event| event.name == name).collect();
    // How many events the writes so far may have caused: several numbers, if the outcome of some of them is not known.
    let mut counts = BTreeSet::from([0]);
    for (index, write) in key.sent.iter().filter(|write| write.done != Some(false)).enumerate() {
        let caused = counts.iter().filter(|count| {
            let Some(event) = events.get(**count) else { return false };
            let before = match count.checked_sub(1).and_then(|last| events.get(last)) {
                None => key.base.as_ref(),
                Some(last) => (last.kind != "DELETED").then_some(&last.state),
            };
            write.caused(event, before)
        });
        let after: BTreeSet<usize> = caused.map(|count| count + 1).collect();
        let next = match write.done {
            None => counts.union(&after).copied().collect(),
            _ => after,
        };
        assert!(
            !next.is_empty(),
            "{name}: no event for write {index}: {write:?}, after {counts:?} of {events:#?}"
        );
        counts = next;
    }
    assert!(
        counts.contains(&events.len()),
        "{name}: an event without a write, after {counts:?} of {events:#?}"
    );
}

impl SentWrite {
    /// Whether this event may be that of this write, if the object was in this state before.
    fn caused(&self, event: &WatchEvent, before: Option<&State>) -> bool {
        let kind = match (before, &self.state) {
            (None, Some(_)) => "ADDED",
            (Some(_), Some(_)) => "MODIFIED",
            (Some(_), None) => "DELETED",
            (None, None) => return false,
        };
        event.kind == kind
            && Some(&event.state) == self.state.as_ref().or(before)
            && self.revision.is_none_or(|known| known == event.revision)
    }
}

/// The events of the history that a selector yields: objects that start or stop to match are added or deleted.
fn filter_history<'a>(
    history: &'a [WatchEvent],
    mut live: HashMap<&'a str, &'a State>,
    matches: fn(&str, &State) -> bool,
) -> Vec<WatchEvent> {
    let mut view = Vec::new();
    for event in history {
        let before = live.get(event.name.as_str()).copied().filter(|state| matches(&event.name, state));
        let removed = event.kind == "DELETED";
        let after = (!removed && matches(&event.name, &event.state)).then_some(&event.state);
        match removed {
            true => live.remove(event.name.as_str()),
            false => live.insert(&event.name, &event.state),
        };
        let (kind, state) = match (before, after) {
            (None, None) => continue,
            (None, Some(state)) => ("ADDED", state),
            (Some(_), Some(state)) => ("MODIFIED", state),
            (Some(state), None) => ("DELETED", state),
        };
        view.push(WatchEvent { kind: kind.to_owned(), state: state.clone(), ..event.clone() });
    }
    view
}

/// Compares the events of all watchers between two versions with the writes of all writers. The first watcher must have no
/// selector. In a file, the versions must rise by one with every write. Returns the number of events.
pub fn check(writers: &[Writer], watchers: &[Watcher], start: u64, end: u64) -> usize {
    if !etcd::is_used() {
        let revisions: Vec<u64> = watchers[0].events.iter().map(|event| event.revision).collect();
        assert_eq!(revisions, Vec::from_iter(start + 1..=end), "every version is received once and in order");
    }
    check_shared(writers, watchers)
}

/// The same where versions rise with the writes of other types, too.
pub fn check_shared(writers: &[Writer], watchers: &[Watcher]) -> usize {
    let history = &watchers[0].events;
    for (name, key) in writers.iter().flat_map(|writer| &writer.keys) {
        check_key_history(name, key, history);
    }
    let keys = || writers.iter().flat_map(|writer| &writer.keys);
    let base = || keys().filter_map(|(name, key)| Some((name.as_str(), key.base.as_ref()?)));
    for watcher in watchers {
        let view = filter_history(history, base().collect(), watcher.matches);
        for (event, expected) in watcher.events.iter().zip(&view) {
            assert_eq!(event, expected, "{:?} {}", watcher.pattern, watcher.selector);
        }
        assert_eq!(watcher.events.len(), view.len(), "{:?} {}", watcher.pattern, watcher.selector);
    }
    history.len()
}
