//! Random histories compared with a model, over every engine: results of writes, reads, the window, states of the past and the
//! records on disk, before and after restarts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::{Actor, Context, Handler};
use pilothouse_actors::committer::{Check, Tidy};
use pilothouse_actors::directory::{Options, Stop, Stores, Types};
use pilothouse_actors::engine::Engine;
use pilothouse_actors::engine::faulty::{Fault, Faults, Faulty};
use pilothouse_actors::engine::masking::MaskingEncryption;
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::engine::redb::Redb;
use pilothouse_actors::event::Change;
use pilothouse_actors::limits::WINDOW_BYTES;
use pilothouse_actors::log_time::LogTime;
use pilothouse_actors::notifier::{ChangeNotifier, Published};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::point_in_time::{PointInTimeError, snapshot_at};
use pilothouse_actors::store::{self, Expire, Freshness, Get, ObjectResult, Position};
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Revision, TypeName};
use proptest::prelude::*;

use crate::common::*;

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
    /// A write for which the disk has no space.
    DiskFull(usize, usize),
    Pass(u64),
    /// The wall clock is set, by hours.
    SetClock(u64),
    Tidy,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let expect = prop_oneof![4 => Just(Expect::Current), 1 => Just(Expect::Stale)];
    let (types, keys, body) = (0..TYPES.len(), 0..KEYS.len(), "[a-z]{0,12}");
    let step = prop_oneof![
        6 => (types.clone(), keys.clone(), body).prop_map(|(ty, key, body)| Step::Create(ty, key, body)),
        8 => (types.clone(), keys.clone(), body, expect.clone()).prop_map(|(ty, key, body, expect)| Step::Replace(ty, key, body, expect)),
        5 => (types.clone(), keys, expect).prop_map(|(ty, key, expect)| Step::Remove(ty, key, expect)),
        3 => types.clone().prop_map(Step::Advance),
        1 => (types, 0..KEYS.len()).prop_map(|(ty, key)| Step::DiskFull(ty, key)),
        3 => (1u64..120).prop_map(Step::Pass),
        1 => (0u64..48).prop_map(Step::SetClock),
        2 => Just(Step::Tidy),
        2 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

/// An event of the model: the change, its key, the rendered object and the revision of the previous one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ModelEvent {
    revision: u64,
    change: Change,
    key: &'static str,
    text: String,
    previous: Option<u64>,
    at: LogTime,
}

struct TypeModel {
    /// The revision of the type. The first write gets 2.
    counter: u64,
    /// The last revision that a write got, also if it failed.
    given: u64,
    /// The time of the last write since the last start.
    last_at: Option<LogTime>,
    live: BTreeMap<&'static str, (u64, String)>,
    history: VecDeque<ModelEvent>,
    /// Revisions that were advanced without a write.
    steps: VecDeque<(u64, LogTime)>,
    floor: Option<u64>,
}

impl Default for TypeModel {
    fn default() -> TypeModel {
        let (live, history, steps) = Default::default();
        TypeModel { counter: 1, given: 1, last_at: None, live, history, steps, floor: None }
    }
}

impl TypeModel {
    fn record(&mut self, change: Change, key: &'static str, body: &str, at: LogTime) -> u64 {
        // Failed writes leave a gap, which a revision without an event closes.
        if self.given != self.counter {
            let revision = self.advance(at);
            self.steps.push_back((revision, at));
        }
        let revision = self.advance(at);
        let previous = match change {
            Change::Removed => self.live.remove(key),
            _ => self.live.insert(key, (revision, body.to_owned())),
        };
        let previous = previous.map(|(revision, _)| revision);
        self.history.push_back(ModelEvent {
            revision,
            change,
            key,
            text: rendered_object(body, revision),
            previous,
            at,
        });
        revision
    }

    fn advance(&mut self, at: LogTime) -> u64 {
        self.given += 1;
        self.counter = self.given;
        self.last_at = Some(at);
        self.counter
    }

    /// A write failed: its revision is not given again, nor the one that closes the gap of an earlier failure.
    fn fail(&mut self) {
        self.given += if self.given == self.counter { 1 } else { 2 };
        self.last_at = None;
    }

    fn forget(&mut self, horizon: LogTime) {
        while self.history.front().is_some_and(|oldest| oldest.at < horizon) {
            self.floor = self.history.pop_front().map(|oldest| oldest.revision);
        }
        while self.steps.front().is_some_and(|(_, at)| *at < horizon) {
            self.floor = self.floor.max(self.steps.pop_front().map(|(revision, _)| revision));
        }
    }

    /// The number of records that live objects or the history still need.
    fn needed(&self) -> usize {
        let mut needed: BTreeSet<u64> = self.live.values().map(|(revision, _)| *revision).collect();
        for event in &self.history {
            needed.extend(event.previous);
            needed.insert(event.revision);
        }
        needed.len() + self.steps.len()
    }
}

struct Harness {
    open: Box<dyn Fn() -> Box<dyn Engine>>,
    options: Options,
    faults: Faults,
    stores: Stores,
    model: BTreeMap<&'static str, TypeModel>,
}

impl Harness {
    fn new(open: Box<dyn Fn() -> Box<dyn Engine>>, window_bytes: usize) -> Harness {
        let clock = Clock::manual(Timestamp(1_000_000_000));
        let options = Options {
            clock,
            history: HISTORY,
            store_threads: 2,
            window_bounds: window_bytes.into(),
            ..manual_options()
        };
        let faults = Faults::default();
        let stores = start_stores(Box::new(Faulty::new(open(), faults.clone())), &options);
        Harness { open, options, faults, stores, model: BTreeMap::new() }
    }

    async fn step(&mut self, step: Step) {
        let now = self.stores.clock.now();
        match step {
            Step::Create(type_index, key, body) => {
                let (name, key) = (TYPES[type_index], KEYS[key]);
                let result = create(&find(&self.stores, name).await, key, &body).await;
                let model = self.model.entry(name).or_default();
                if model.live.contains_key(key) {
                    assert!(matches!(result, Err(StoreError::Exists)), "{result:?}");
                } else {
                    let revision = model.record(Change::Created, key, &body, now);
                    check_write(result, revision, &body);
                }
            }
            Step::Replace(type_index, key, body, expect) => {
                let (name, key) = (TYPES[type_index], KEYS[key]);
                let expected = self.expected(name, key, expect);
                let result = replace(&find(&self.stores, name).await, key, &body, expected).await;
                let model = self.model.entry(name).or_default();
                if check_precondition(model, key, expected, &result) {
                    let revision = model.record(Change::Replaced, key, &body, now);
                    check_write(result, revision, &body);
                }
            }
            Step::Remove(type_index, key, expect) => {
                let (name, key) = (TYPES[type_index], KEYS[key]);
                let expected = self.expected(name, key, expect);
                let result = remove(&find(&self.stores, name).await, key, expected).await;
                let model = self.model.entry(name).or_default();
                if check_precondition(model, key, expected, &result) {
                    let body = model.live[key].1.clone();
                    let revision = model.record(Change::Removed, key, &body, now);
                    check_write(result, revision, &body);
                }
            }
            Step::Advance(type_index) => {
                let name = TYPES[type_index];
                let model = self.model.entry(name).or_default();
                let above = Revision(model.counter);
                let step = store::AdvanceRevision { above, permit: Permit::none() };
                find(&self.stores, name).await.send(step).await.unwrap().unwrap();
                if model.last_at.is_none_or(|last| last < now.minus(HISTORY)) {
                    let revision = model.advance(now);
                    model.steps.push_back((revision, now));
                }
            }
            Step::DiskFull(type_index, key) => self.fail_write(TYPES[type_index], KEYS[key]).await,
            Step::SetClock(hours) => self.options.clock.set_wall(Timestamp(hours * 3_600_000_000)),
            Step::Pass(seconds) => self.options.clock.advance(Duration::from_secs(seconds)),
            Step::Tidy => self.tidy().await,
            Step::Restart => {
                self.stores.directory.send(Stop).await.unwrap().unwrap();
                let engine = Faulty::new((self.open)(), self.faults.clone());
                self.stores = start_stores(Box::new(engine), &self.options);
                // From the newest record on: the time without a server makes nothing older.
                let horizon = self.stores.clock.now().minus(HISTORY);
                for model in self.model.values_mut() {
                    model.forget(horizon);
                    (model.last_at, model.given) = (None, model.counter);
                }
                self.compare().await;
            }
        }
    }

    /// A commit finds the disk full, and the server goes on. A creation fails; a removal, which needs no space, is made all the same.
    async fn fail_write(&mut self, name: &'static str, key: &'static str) {
        let now = self.stores.clock.now();
        self.faults.fail_after(0, Fault::NoSpace);
        let store = find(&self.stores, name).await;
        let model = self.model.entry(name).or_default();
        let live = model.live.get(key).cloned();
        model.fail();
        match live {
            Some((revision, body)) => {
                let result = remove(&store, key, Revision(revision)).await;
                let revision = model.record(Change::Removed, key, &body, now);
                check_write(result, revision, &body);
            }
            None => {
                let result = create(&store, key, "lost").await;
                assert!(matches!(result, Err(StoreError::NoSpace)), "{result:?}");
            }
        }
        self.tidy().await;
    }

    fn expected(&self, name: &str, key: &str, expect: Expect) -> Revision {
        let current = self.model.get(name).and_then(|model| model.live.get(key)).map_or(7, |live| live.0);
        match expect {
            Expect::Current => Revision(current),
            Expect::Stale => Revision(current + 1),
        }
    }

    /// Expires and trims as much as possible; then the log must hold the needed records and no others.
    async fn tidy(&mut self) {
        let horizon = self.stores.clock.now().minus(HISTORY);
        for (name, model) in &mut self.model {
            find(&self.stores, name).await.send(Expire).await.unwrap();
            model.forget(horizon);
        }
        while committer(&self.stores).send(Tidy).await.unwrap().unwrap() > 0 {}
        let stats = committer(&self.stores).send(Check).await.unwrap().unwrap();
        assert_eq!(stats.records, self.model.values().map(|model| model.needed() as u64).sum::<u64>());
        self.compare().await;
    }

    async fn compare(&self) {
        let types = self.stores.directory.send(Types).await.unwrap();
        for name in self.model.keys() {
            let model = &self.model[name];
            if model.counter > 1 {
                assert!(types.iter().any(|name_of_type| name_of_type.as_str() == *name));
            }
            let store = find(&self.stores, name).await;
            let position = open_watch(&store).await;
            assert_eq!(position.snapshot.revision, Revision(model.counter));
            let live = position.snapshot.iter().map(|object| (object.key.as_str(), object_text(object)));
            let expected =
                model.live.iter().map(|(key, (revision, body))| (*key, rendered_object(body, *revision)));
            assert_eq!(live.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            self.compare_window(model, &position).await;
            compare_past(model, &position).await;
            for key in KEYS {
                let object = store
                    .send(Get {
                        freshness: Freshness::Latest,
                        key: Key::from_path(key),
                        permit: Permit::none(),
                    })
                    .await
                    .unwrap();
                assert_eq!(
                    object.ok().map(|object| object.revision.0),
                    model.live.get(key).map(|live| live.0)
                );
            }
        }
    }

    async fn compare_window(&self, model: &TypeModel, position: &Position) {
        assert_eq!(position.window.head(), Revision(model.counter));
        assert_eq!(position.window.floor(), Revision(model.floor.unwrap_or(1)));
        let actual: Vec<ModelEvent> = window_events(position)
            .await
            .iter()
            .map(|event| ModelEvent {
                revision: event.revision().0,
                change: event.change,
                key: KEYS.iter().find(|key| **key == event.object.key.as_str()).unwrap(),
                text: object_text(&event.object),
                previous: event.previous.as_ref().map(|previous| previous.revision.0),
                at: event.accepted_at.log,
            })
            .collect();
        assert_eq!(actual, Vec::from_iter(model.history.iter().cloned()));
    }
}

/// Checks every state within the history; older and future ones must be gone.
async fn compare_past(model: &TypeModel, position: &Position) {
    let mut expected: BTreeMap<&str, u64> = model.live.iter().map(|(key, live)| (*key, live.0)).collect();
    let mut revision = model.counter;
    let mut history = model.history.iter().rev();
    loop {
        let state = snapshot_at(position, Revision(revision), |_| true).await.unwrap();
        assert_eq!(state.revision, Revision(revision));
        let actual = state.iter().map(|object| (object.key.as_str(), object.revision.0));
        assert_eq!(
            actual.collect::<Vec<_>>(),
            expected.iter().map(|(key, revision_of_key)| (*key, *revision_of_key)).collect::<Vec<_>>()
        );
        let Some(event) = history.next() else { break };
        match event.previous {
            Some(previous) => expected.insert(event.key, previous),
            None => expected.remove(event.key),
        };
        revision = event.revision - 1;
    }
    assert_eq!(
        snapshot_at(position, Revision(model.counter + 1), |_| true).await.unwrap_err(),
        PointInTimeError::Gone
    );
    if let Some(floor) = model.floor {
        assert_eq!(
            snapshot_at(position, Revision(floor - 1), |_| true).await.unwrap_err(),
            PointInTimeError::Gone
        );
    }
}

/// Whether the model allows a Replace or Remove; if not, the result must be the right error.
fn check_precondition(model: &TypeModel, key: &str, expected: Revision, result: &ObjectResult) -> bool {
    match model.live.get(key) {
        None => assert!(matches!(result, Err(StoreError::NotFound)), "{result:?}"),
        Some((revision, _)) if Revision(*revision) != expected => match result {
            Err(StoreError::Conflict(current)) => assert_eq!(current.revision.0, *revision),
            other => panic!("{other:?}"),
        },
        Some(_) => return true,
    }
    false
}

fn check_write(result: ObjectResult, revision: u64, body: &str) {
    let object = result.unwrap();
    assert_eq!((object.revision.0, object_text(&object)), (revision, rendered_object(body, revision)));
    assert_eq!(object.labels.get("body"), Some(body));
}

fn run_steps(open: Box<dyn Fn() -> Box<dyn Engine>>, window_bytes: usize, steps: Vec<Step>) {
    actix_rt::System::new().block_on(async move {
        let mut harness = Harness::new(open, window_bytes);
        for step in steps {
            harness.step(step).await;
        }
        harness.compare().await;
        // Removing all objects must not lower the revisions.
        for (type_index, name) in TYPES.iter().enumerate() {
            for (key, path) in KEYS.iter().enumerate() {
                if harness.model.get(name).is_some_and(|model| model.live.contains_key(path)) {
                    harness.step(Step::Remove(type_index, key, Expect::Current)).await;
                }
            }
        }
        harness.step(Step::Pass(HISTORY.as_secs() + 1)).await;
        harness.step(Step::Tidy).await;
        assert_eq!(committer(&harness.stores).send(Check).await.unwrap().unwrap().records, 0);
        harness.step(Step::Restart).await;
        harness.step(Step::Create(0, 0, "again".into())).await;
        harness.compare().await;
        harness.stores.directory.send(Stop).await.unwrap().unwrap();
    });
}

fn memory() -> Box<dyn Fn() -> Box<dyn Engine>> {
    let log = Memory::new();
    Box::new(move || Box::new(log.clone()))
}

fn redb(path: PathBuf) -> Box<dyn Fn() -> Box<dyn Engine>> {
    Box::new(move || Box::new(Redb::open(&path).unwrap()))
}

/// Each step to a smaller history runs whole stores: enough of them to see what matters, few enough to wait for.
fn bounded() -> ProptestConfig {
    ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..bounded() })]

    #[test]
    fn memory_engine_matches_model(steps in steps()) {
        run_steps(memory(), WINDOW_BYTES, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..bounded() })]

    #[test]
    fn redb_engine_matches_model(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        run_steps(redb(folder.path().join("log.redb")), WINDOW_BYTES, steps);
    }

    /// Every start turns encryption off or on for the writes that follow.
    #[test]
    fn encrypted_log_matches_model(steps in steps(), window in prop_oneof![Just(2_000), Just(WINDOW_BYTES)]) {
        let folder = tempfile::tempdir().unwrap();
        let (path, encryption) = (folder.path().join("log.redb"), Arc::new(MaskingEncryption::default()));
        encrypt_writes(encryption.clone());
        let open = move || -> Box<dyn Engine> {
            encryption.is_off.fetch_xor(true, Ordering::Relaxed);
            Box::new(Redb::open(&path).unwrap().with_encryption(encryption.clone()))
        };
        run_steps(Box::new(open), window, steps);
    }

    /// The window holds two or three events; the rest of the history is read from the log.
    #[test]
    fn redb_engine_with_small_window_matches_model(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        run_steps(redb(folder.path().join("log.redb")), 2_000, steps);
    }
}

/// The state at the step becomes the base from which the one before it is computed, with nothing to read in between.
#[test]
fn point_in_time_before_revision_step_is_read_from_log() {
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
    run_steps(redb(folder.path().join("log.redb")), 2_000, steps);
}

/// A recipient that ignores its notifications.
struct Listener;

impl Actor for Listener {
    type Context = Context<Listener>;
}

impl Handler<Published> for Listener {
    type Result = ();

    fn handle(&mut self, _: Published, _: &mut Self::Context) {}
}

#[actix_rt::test]
async fn answered_write_is_in_window_and_notified() {
    let stores = start_stores(Box::new(Memory::new()), &manual_options());
    let notifier = stores.notifiers.add(ChangeNotifier::new(Listener.start().recipient()));
    let pods = find(&stores, "pods").await;
    let before = open_watch(&pods).await;
    let created = create(&pods, "a", "1").await.unwrap();
    // The window is shared: a watcher can read the answered write without another message.
    assert_eq!(window_events(&before).await.last().unwrap().revision(), created.revision);
    assert_eq!(notifier.drain(), [TypeName::new("pods")]);
    assert!(before.snapshot.is_empty());
    assert_eq!(open_watch(&pods).await.snapshot.revision, created.revision);
    assert!(create(&pods, "a", "2").await.is_err());
    assert!(notifier.drain().is_empty(), "a refused write is no news");
}
