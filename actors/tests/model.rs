//! Random histories against a plain map, the same over every engine: what is answered, what is read, what a window
//! holds, what is left on disk, before and after restarts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test they are how it fails")]

mod common;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use actix::{Actor, Context, Handler};
use common::*;
use pilothouse_actors::committer::{Check, Tidy};
use pilothouse_actors::directory::{Options, Stop, Stores, Types};
use pilothouse_actors::engine::Engine;
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::engine::redb::Redb;
use pilothouse_actors::event::Change;
use pilothouse_actors::limits::WINDOW_BYTES;
use pilothouse_actors::notifier::{ChangeNotifier, Published};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::point_in_time::{PointInTimeError, state_at};
use pilothouse_actors::store::{self, Expire, Get, ObjectResult, Position};
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Revision, TypeName};
use proptest::prelude::*;

const HISTORY: Duration = Duration::from_secs(100);
const TYPES: [&str; 3] = ["nodes", "pods", "deployments.apps"];
const KEYS: [&str; 4] = ["a/x", "a/y", "b/x", "solo"];

/// Which revision a writer expects.
#[derive(Clone, Copy, Debug)]
enum Expect {
    Current,
    Stale,
}

#[derive(Clone, Debug)]
enum Step {
    Create(usize, usize, String),
    Replace(usize, usize, String, Expect),
    Remove(usize, usize, Expect),
    Advance(usize),
    Pass(u64),
    Tidy,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let expect = prop_oneof![4 => Just(Expect::Current), 1 => Just(Expect::Stale)];
    let (types, keys, body) = (0..TYPES.len(), 0..KEYS.len(), "[a-z]{0,12}");
    let step = prop_oneof![
        6 => (types.clone(), keys.clone(), body).prop_map(|(t, k, b)| Step::Create(t, k, b)),
        8 => (types.clone(), keys.clone(), body, expect.clone()).prop_map(|(t, k, b, e)| Step::Replace(t, k, b, e)),
        5 => (types.clone(), keys, expect).prop_map(|(t, k, e)| Step::Remove(t, k, e)),
        3 => types.prop_map(Step::Advance),
        3 => (1u64..120).prop_map(Step::Pass),
        2 => Just(Step::Tidy),
        2 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

/// One event as the model remembers it: what it did, to which key, the text it carries, what was there before.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Happened {
    revision: u64,
    change: Change,
    key: &'static str,
    text: String,
    previous: Option<u64>,
    at: Timestamp,
}

#[derive(Default)]
struct TypeModel {
    /// Zero until the first write, which gets 2.
    writes: u64,
    /// When the last one was, since the last start.
    last_at: Option<Timestamp>,
    live: BTreeMap<&'static str, (u64, String)>,
    history: VecDeque<Happened>,
    /// Revisions at which nothing happened.
    steps: VecDeque<(u64, Timestamp)>,
    floor: Option<u64>,
}

impl TypeModel {
    fn counter(&self) -> u64 {
        self.writes + 1
    }

    fn happen(&mut self, change: Change, key: &'static str, body: &str, at: Timestamp) -> u64 {
        let revision = self.advance(at);
        let previous = match change {
            Change::Removed => self.live.remove(key),
            _ => self.live.insert(key, (revision, body.to_owned())),
        };
        let previous = previous.map(|(revision, _)| revision);
        self.history.push_back(Happened { revision, change, key, text: text(body, revision), previous, at });
        revision
    }

    fn advance(&mut self, at: Timestamp) -> u64 {
        self.writes += 1;
        self.last_at = Some(at);
        self.counter()
    }

    fn forget(&mut self, horizon: Timestamp) {
        while self.history.front().is_some_and(|oldest| oldest.at < horizon) {
            self.floor = self.history.pop_front().map(|oldest| oldest.revision);
        }
        while self.steps.front().is_some_and(|(_, at)| *at < horizon) {
            self.floor = self.floor.max(self.steps.pop_front().map(|(revision, _)| revision));
        }
    }

    /// The records that something still needs.
    fn needed(&self) -> usize {
        let mut needed: BTreeSet<u64> = self.live.values().map(|(revision, _)| *revision).collect();
        for event in &self.history {
            needed.extend(event.previous);
            needed.insert(event.revision);
        }
        needed.len() + self.steps.len()
    }
}

struct World {
    open: Box<dyn Fn() -> Box<dyn Engine>>,
    options: Options,
    stores: Stores,
    model: BTreeMap<&'static str, TypeModel>,
}

impl World {
    fn new(open: Box<dyn Fn() -> Box<dyn Engine>>, window_bytes: usize) -> World {
        let clock = Clock::manual(Timestamp(1_000_000_000));
        let options = Options {
            clock,
            history: HISTORY,
            store_threads: 2,
            window_bounds: window_bytes.into(),
            ..quiet()
        };
        let stores = run(open(), &options);
        World { open, options, stores, model: BTreeMap::new() }
    }

    async fn step(&mut self, step: Step) {
        let now = self.options.clock.now();
        match step {
            Step::Create(at, key, body) => {
                let (name, key) = (TYPES[at], KEYS[key]);
                let answer = create(&find(&self.stores, name).await, key, &body).await;
                let model = self.model.entry(name).or_default();
                if model.live.contains_key(key) {
                    assert!(matches!(answer, Err(StoreError::Exists)), "{answer:?}");
                } else {
                    let revision = model.happen(Change::Created, key, &body, now);
                    written(answer, revision, &body);
                }
            }
            Step::Replace(at, key, body, expect) => {
                let (name, key) = (TYPES[at], KEYS[key]);
                let expected = self.expected(name, key, expect);
                let answer = replace(&find(&self.stores, name).await, key, &body, expected).await;
                let model = self.model.entry(name).or_default();
                if may(model, key, expected, &answer) {
                    let revision = model.happen(Change::Replaced, key, &body, now);
                    written(answer, revision, &body);
                }
            }
            Step::Remove(at, key, expect) => {
                let (name, key) = (TYPES[at], KEYS[key]);
                let expected = self.expected(name, key, expect);
                let answer = remove(&find(&self.stores, name).await, key, expected).await;
                let model = self.model.entry(name).or_default();
                if may(model, key, expected, &answer) {
                    let body = model.live[key].1.clone();
                    let revision = model.happen(Change::Removed, key, &body, now);
                    written(answer, revision, &body);
                }
            }
            Step::Advance(at) => {
                let name = TYPES[at];
                let model = self.model.entry(name).or_default();
                let above = Revision(model.counter());
                let step = store::AdvanceRevision { above, permit: Permit::none() };
                find(&self.stores, name).await.send(step).await.unwrap().unwrap();
                if model.last_at.is_none_or(|last| last < now.minus(HISTORY)) {
                    let revision = model.advance(now);
                    model.steps.push_back((revision, now));
                }
            }
            Step::Pass(seconds) => self.options.clock.advance(Duration::from_secs(seconds)),
            Step::Tidy => self.tidy().await,
            Step::Restart => {
                self.stores.directory.send(Stop).await.unwrap().unwrap();
                self.stores = run((self.open)(), &self.options);
                let horizon = now.minus(HISTORY);
                for model in self.model.values_mut() {
                    model.forget(horizon);
                    model.last_at = None;
                }
                self.compare().await;
            }
        }
    }

    fn expected(&self, name: &str, key: &str, expect: Expect) -> Revision {
        let current = self.model.get(name).and_then(|model| model.live.get(key)).map_or(7, |live| live.0);
        match expect {
            Expect::Current => Revision(current),
            Expect::Stale => Revision(current + 1),
        }
    }

    /// Expires and trims until nothing more goes; then the log holds what is needed and nothing else.
    async fn tidy(&mut self) {
        let horizon = self.options.clock.now().minus(HISTORY);
        for (name, model) in &mut self.model {
            find(&self.stores, name).await.send(Expire).await.unwrap();
            model.forget(horizon);
        }
        while self.stores.committer.send(Tidy).await.unwrap().unwrap() > 0 {}
        let stats = self.stores.committer.send(Check).await.unwrap().unwrap();
        assert_eq!(stats.records, self.model.values().map(|model| model.needed() as u64).sum::<u64>());
        self.compare().await;
    }

    async fn compare(&self) {
        let types = self.stores.directory.send(Types).await.unwrap();
        for name in self.model.keys() {
            let model = &self.model[name];
            if model.writes > 0 {
                assert!(types.iter().any(|known| known.as_str() == *name));
            }
            let store = find(&self.stores, name).await;
            let position = position(&store).await;
            assert_eq!(position.snapshot.revision, Revision(model.counter()));
            let live = position.snapshot.iter().map(|object| (object.key.as_str(), text_of(object)));
            let wanted = model.live.iter().map(|(key, (revision, body))| (*key, text(body, *revision)));
            assert_eq!(live.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
            self.compare_window(model, &position).await;
            compare_past(model, &position).await;
            for key in KEYS {
                let got = store.send(Get { key: Key::from_path(key), permit: Permit::none() }).await.unwrap();
                assert_eq!(got.ok().map(|object| object.revision.0), model.live.get(key).map(|live| live.0));
            }
        }
    }

    async fn compare_window(&self, model: &TypeModel, position: &Position) {
        assert_eq!(position.window.head(), Revision(model.counter()));
        assert_eq!(position.window.floor(), Revision(model.floor.unwrap_or(1)));
        let found: Vec<Happened> = events(position)
            .await
            .iter()
            .map(|event| Happened {
                revision: event.revision().0,
                change: event.change,
                key: KEYS.iter().find(|key| **key == event.object.key.as_str()).unwrap(),
                text: text_of(&event.object),
                previous: event.previous.as_ref().map(|previous| previous.revision.0),
                at: event.at,
            })
            .collect();
        assert_eq!(found, Vec::from_iter(model.history.iter().cloned()));
    }
}

/// Every state that the history reaches back to is what it was; what is older is gone.
async fn compare_past(model: &TypeModel, position: &Position) {
    let mut was: BTreeMap<&str, u64> = model.live.iter().map(|(key, live)| (*key, live.0)).collect();
    let mut revision = model.counter();
    let mut history = model.history.iter().rev();
    loop {
        let state = state_at(position, Revision(revision), |_| true).await.unwrap();
        assert_eq!(state.revision, Revision(revision));
        let found = state.iter().map(|object| (object.key.as_str(), object.revision.0));
        assert_eq!(found.collect::<Vec<_>>(), was.iter().map(|(key, at)| (*key, *at)).collect::<Vec<_>>());
        let Some(event) = history.next() else { break };
        match event.previous {
            Some(previous) => was.insert(event.key, previous),
            None => was.remove(event.key),
        };
        revision = event.revision - 1;
    }
    assert_eq!(
        state_at(position, Revision(model.counter() + 1), |_| true).await.unwrap_err(),
        PointInTimeError::Gone
    );
    if let Some(floor) = model.floor {
        assert_eq!(
            state_at(position, Revision(floor - 1), |_| true).await.unwrap_err(),
            PointInTimeError::Gone
        );
    }
}

/// Whether the model lets a Replace or Remove happen; if not, the answer must say why.
fn may(model: &TypeModel, key: &str, expected: Revision, answer: &ObjectResult) -> bool {
    match model.live.get(key) {
        None => assert!(matches!(answer, Err(StoreError::NotFound)), "{answer:?}"),
        Some((revision, _)) if Revision(*revision) != expected => match answer {
            Err(StoreError::Conflict(current)) => assert_eq!(current.revision.0, *revision),
            other => panic!("{other:?}"),
        },
        Some(_) => return true,
    }
    false
}

fn written(answer: ObjectResult, revision: u64, body: &str) {
    let object = answer.unwrap();
    assert_eq!((object.revision.0, text_of(&object)), (revision, text(body, revision)));
    assert_eq!(object.labels.get("body"), Some(body));
}

fn play(open: Box<dyn Fn() -> Box<dyn Engine>>, window_bytes: usize, steps: Vec<Step>) {
    actix_rt::System::new().block_on(async move {
        let mut world = World::new(open, window_bytes);
        for step in steps {
            world.step(step).await;
        }
        world.compare().await;
        // At last everything goes, and the counters must not go back for it.
        for (at, name) in TYPES.iter().enumerate() {
            for (key, path) in KEYS.iter().enumerate() {
                if world.model.get(name).is_some_and(|model| model.live.contains_key(path)) {
                    world.step(Step::Remove(at, key, Expect::Current)).await;
                }
            }
        }
        world.step(Step::Pass(HISTORY.as_secs() + 1)).await;
        world.step(Step::Tidy).await;
        assert_eq!(world.stores.committer.send(Check).await.unwrap().unwrap().records, 0);
        world.step(Step::Restart).await;
        world.step(Step::Create(0, 0, "again".into())).await;
        world.compare().await;
        world.stores.directory.send(Stop).await.unwrap().unwrap();
    });
}

fn memory() -> Box<dyn Fn() -> Box<dyn Engine>> {
    let log = Memory::new();
    Box::new(move || Box::new(log.clone()))
}

fn redb(path: PathBuf) -> Box<dyn Fn() -> Box<dyn Engine>> {
    Box::new(move || Box::new(Redb::open(&path).unwrap()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn memory_behaves_like_a_map(steps in steps()) {
        play(memory(), WINDOW_BYTES, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn redb_behaves_like_a_map(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        play(redb(folder.path().join("log.redb")), WINDOW_BYTES, steps);
    }

    /// Memory has room for two or three events; the rest of the history is read from the log.
    #[test]
    fn redb_with_little_memory_behaves_the_same(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        play(redb(folder.path().join("log.redb")), 2_000, steps);
    }
}

/// The state at the step becomes the base from which the one before it is computed, with nothing to read in between.
#[test]
fn a_state_from_before_a_step_is_found_in_the_log() {
    let pods = 1;
    let replace = |body: &str| Step::Replace(pods, 0, body.to_owned(), Expect::Current);
    let create = |key| Step::Create(pods, key, String::new());
    let steps = vec![
        create(0),
        Step::Restart,
        Step::Advance(pods),
        replace(""),
        create(2),
        create(3),
        create(1),
        replace("ta"),
    ];
    let folder = tempfile::tempdir().unwrap();
    play(redb(folder.path().join("log.redb")), 2_000, steps);
}

/// Hears of news and does nothing about it.
struct Listener;

impl Actor for Listener {
    type Context = Context<Listener>;
}

impl Handler<Published> for Listener {
    type Result = ();

    fn handle(&mut self, _: Published, _: &mut Self::Context) {}
}

#[actix_rt::test]
async fn an_answered_write_is_readable_and_announced() {
    let stores = run(Box::new(Memory::new()), &quiet());
    let notifier = stores.notifiers.add(ChangeNotifier::new(Listener.start().recipient()));
    let pods = find(&stores, "pods").await;
    let before = position(&pods).await;
    let made = create(&pods, "a", "1").await.unwrap();
    // The window is shared: whoever watches needs no further message to read what was answered.
    assert_eq!(events(&before).await.last().unwrap().revision(), made.revision);
    assert_eq!(notifier.drain(), [TypeName::new("pods")]);
    assert!(before.snapshot.is_empty());
    assert_eq!(position(&pods).await.snapshot.revision, made.revision);
    assert!(create(&pods, "a", "2").await.is_err());
    assert!(notifier.drain().is_empty(), "a refused write is no news");
}
