//! A model of what clients wrote, what watchers were told of it, and the check that both agree.
//!
//! The versions of a type rise by one with every write, so a watcher of everything must be told every number once and
//! in order: that is the history. Every acknowledged write must be in it as it was answered, nothing may be in it that
//! nobody wrote, and what each other watcher was told must be what its selector sees of that history.

use std::collections::{BTreeMap, HashMap};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Client, Failure, JSON};
use super::compare::{revision, text};
use super::random::Random;
use super::wait::{CAP, Deadline};

/// The objects that writers write and watchers follow. Nobody else may write ConfigMaps.
pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// The object that every watcher follows: its last state ends a test.
pub const PINNED: &str = "writer-0-key-0";
const COLORS: [&str; 3] = ["red", "green", "blue"];
const KEYS_PER_WRITER: u64 = 5;
/// How often a normal client repeats what was refused for lack of room, and the pause in between.
const RETRIES: usize = 600;
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// What was written, or shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub payload: String,
    pub color: String,
}

impl State {
    /// A state that every selector sees.
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
pub struct Told {
    pub kind: String,
    pub name: String,
    pub revision: u64,
    pub state: State,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Done,
    /// Refused for lack of room: nothing was written.
    Busy,
    /// Not answered: the server or the connection is gone.
    Gone,
}

/// The writes of one key.
#[derive(Default)]
struct Key {
    /// What was there when the history began.
    base: Option<State>,
    /// What was sent since, in order.
    sent: Vec<Sent>,
    /// What is there now as far as the writer knows.
    now: Option<State>,
}

/// A client that writes keys of its own and keeps every answer.
pub struct Writer {
    number: u64,
    count: u64,
    random: Random,
    keys: BTreeMap<String, Key>,
    /// How often it was asked to come back later.
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
    pub fn write(&mut self, client: &mut Client, name: &str, wanted: Option<State>) -> Written {
        let key = self.keys.get_mut(name).expect("a key of this writer");
        let path = format!("{MAPS}/{name}");
        let body = wanted.as_ref().map(|state| state.object(name).to_string()).unwrap_or_default();
        let (method, target) = match (&key.now, &wanted) {
            (None, None) => return Written::Done,
            (None, Some(_)) => ("POST", MAPS),
            (Some(_), Some(_)) => ("PUT", path.as_str()),
            (Some(_), None) => ("DELETE", path.as_str()),
        };
        match client.attempt(method, target, &JSON, body.as_bytes()) {
            Err(Failure::Unsent(_)) => Written::Gone,
            Err(Failure::Doubt(_)) => {
                key.sent.push(Sent { state: wanted, revision: None, done: None });
                Written::Gone
            }
            Ok(answer) if matches!(answer.status, 429 | 503) => Written::Busy,
            Ok(answer) => {
                let answer = answer.ok();
                let revision = wanted.as_ref().map(|_| revision(&answer));
                if let Some(wanted) = &wanted {
                    assert_eq!(State::read(&answer), *wanted, "the answer shows what was written");
                }
                key.sent.push(Sent { state: wanted.clone(), revision, done: Some(true) });
                key.now = wanted;
                Written::Done
            }
        }
    }

    /// Writes, and repeats what was refused or not answered until it is done.
    pub fn write_patiently(&mut self, client: &mut Client, name: &str, wanted: Option<&State>) {
        for _ in 0..RETRIES {
            match self.write(client, name, wanted.cloned()) {
                Written::Done => return,
                Written::Busy => thread::sleep(RETRY_PAUSE),
                Written::Gone => {
                    self.settle(client);
                    if self.keys[name].now.as_ref() == wanted {
                        return;
                    }
                }
            }
            self.refusals += 1;
        }
        panic!("{name} could not be written: this client starves");
    }

    /// Learns what became of what was not answered.
    pub fn settle(&mut self, client: &mut Client) {
        for (name, key) in &mut self.keys {
            let Some(last) = key.sent.last_mut().filter(|last| last.done.is_none()) else { continue };
            let found = read_patiently(client, &format!("{MAPS}/{name}")).map(|object| State::read(&object));
            last.done = Some(found == last.state);
            let wanted = if last.done == Some(true) { &last.state } else { &key.now };
            assert_eq!(found, *wanted, "{name}: neither what was acknowledged nor what was in doubt");
            key.now = found;
        }
    }

    /// What is there, as far as the writer knows.
    pub fn states(&self) -> impl Iterator<Item = (&str, Option<&State>)> {
        self.keys.iter().map(|(name, key)| (name.as_str(), key.now.as_ref()))
    }

    /// Begins the history anew: what is there now is where it starts.
    pub fn begin_anew(&mut self) {
        for key in self.keys.values_mut() {
            key.base = key.now.clone();
            key.sent.clear();
        }
    }
}

/// What is at a path, or nothing; asked again as long as the server has no room for the question.
pub fn read_patiently(client: &mut Client, path: &str) -> Option<Value> {
    for _ in 0..RETRIES {
        match client.attempt("GET", path, &[], b"") {
            Ok(answer) if answer.status == 404 => return None,
            Ok(answer) if answer.status == 200 => return Some(answer.json()),
            Ok(answer) => assert!(matches!(answer.status, 429 | 503), "{path}: {}", answer.text()),
            Err(_) => {}
        }
        thread::sleep(RETRY_PAUSE);
    }
    panic!("{path} could not be read: this client starves");
}

/// What a watcher is like.
#[derive(Clone, Copy, Debug)]
pub enum Habit {
    /// Reads all the time.
    Eager,
    /// Reads nothing at first.
    Stalls,
    /// Drops its connection after so many events.
    Drops(usize),
}

/// A client that keeps every event.
pub struct Watcher {
    pub selector: &'static str,
    sees: fn(&str, &State) -> bool,
    pub habit: Habit,
    /// The version it goes on from: of the last event or bookmark.
    pub last: u64,
    pub told: Vec<Told>,
    pub bookmarks: usize,
}

impl Watcher {
    fn query(&self) -> String {
        format!("allowWatchBookmarks=true&resourceVersion={}{}", self.last, self.selector)
    }

    /// Follows until the connection breaks or ends, or until the end of all was told.
    pub fn run(&mut self, client: &Client, pause: Duration, end: Option<u64>) {
        let query = self.query();
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

    /// Follows until the pinned object has this payload, over as many connections as that takes. Says how often it was
    /// asked to come back later.
    pub fn follow(&mut self, client: &Client, payload: &str) -> usize {
        let mut refusals = 0;
        while !self.told.last().is_some_and(|told| told.name == PINNED && told.state.payload == payload) {
            let Ok(mut watch) = client.try_watch(MAPS, &self.query()) else {
                refusals += 1;
                assert!(refusals < RETRIES, "{} could not be watched: this client starves", self.selector);
                thread::sleep(RETRY_PAUSE);
                continue;
            };
            if matches!(self.habit, Habit::Stalls) {
                thread::sleep(RETRY_PAUSE);
            }
            let most = if let Habit::Drops(after) = self.habit { after } else { usize::MAX };
            for _ in 0..most {
                match watch.attempt(Deadline::after(CAP)) {
                    Ok(Some(event)) => self.hear(&event),
                    Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                        panic!("{}: silent", self.selector)
                    }
                    Ok(None) | Err(_) => break,
                }
                if self.told.last().is_some_and(|told| told.state.payload == payload) {
                    break;
                }
            }
        }
        refusals
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
            self.told.push(Told { kind, name, revision: at, state: State::read(&event["object"]) });
        }
        self.last = at;
    }
}

/// Watchers of several selectors and habits. The first one reads everything.
pub fn watchers(start: u64) -> Vec<Watcher> {
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

/// What the history must say of one key: every write that was done, in order.
fn retell(name: &str, key: &Key, history: &[Told]) {
    let mut events = history.iter().filter(|told| told.name == name);
    let mut before: Option<&State> = key.base.as_ref();
    for (at, write) in key.sent.iter().filter(|write| write.done == Some(true)).enumerate() {
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
fn seen<'a>(
    history: &'a [Told],
    mut live: HashMap<&'a str, &'a State>,
    sees: fn(&str, &State) -> bool,
) -> Vec<Told> {
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

/// Holds what all watchers were told between two versions against what all writers wrote. The first watcher must see
/// everything. Says how many events there were.
pub fn check(writers: &[Writer], watchers: &[Watcher], start: u64, end: u64) -> usize {
    let history = &watchers[0].told;
    let revisions: Vec<u64> = history.iter().map(|told| told.revision).collect();
    assert_eq!(revisions, Vec::from_iter(start + 1..=end), "every version is told once and in order");
    for (name, key) in writers.iter().flat_map(|writer| &writer.keys) {
        retell(name, key, history);
    }
    let keys = || writers.iter().flat_map(|writer| &writer.keys);
    let base = || keys().filter_map(|(name, key)| Some((name.as_str(), key.base.as_ref()?)));
    for watcher in watchers {
        let view = seen(history, base().collect(), watcher.sees);
        for (told, wanted) in watcher.told.iter().zip(&view) {
            assert_eq!(told, wanted, "{:?} {}", watcher.habit, watcher.selector);
        }
        assert_eq!(watcher.told.len(), view.len(), "{:?} {}", watcher.habit, watcher.selector);
    }
    history.len()
}
