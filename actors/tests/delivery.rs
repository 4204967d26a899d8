//! From window to client: whatever happens in whatever order, each watch tells exactly what its filter says, in order,
//! without gap or repeat.
//!
//! Everything runs on one thread and is driven by yielding until nothing moves, so no test depends on time.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use actix::Addr;
use bytes::Bytes;
use futures::StreamExt;
use pilothouse_actors::archive::{Archive, ArchiveError, ArchiveReader, Span};
use pilothouse_actors::broadcaster::{Broadcaster, CloseAll};
use pilothouse_actors::event::{Change, Event};
use pilothouse_actors::fatal::Fatal;
use pilothouse_actors::notifier::ChangeNotifiers;
use pilothouse_actors::point_in_time::{PointInTimeError, state_at};
use pilothouse_actors::session::feed::Feed;
use pilothouse_actors::session::{EventEncoder, LiveSessions, Session, Watch};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::Position;
use pilothouse_actors::watch_event::WatchEventType;
use pilothouse_actors::watch_memory::{WatchAccount, WatchMemory};
use pilothouse_actors::window::{Read, Window};
use pilothouse_types::clock::Timestamp;
use pilothouse_types::filter::{FieldRule, Filter, LabelRule};
use pilothouse_types::lock::Lock;
use pilothouse_types::object::{Draft, Key, Object, Pairs, Revision, TypeName, Variant};
use proptest::prelude::*;

const EXPIRED: &str = "expired";

/// One line per event. Every third revision is large, so that a few of them fill the queue of a session.
struct Lines;

impl EventEncoder for Lines {
    fn variant(&self) -> Variant {
        Variant(0)
    }

    fn frame(&self, event_type: WatchEventType, object: &Object) -> Bytes {
        let padding = if object.revision.0.is_multiple_of(3) { 60 << 10 } else { 0 };
        Bytes::from(format!("{}{:padding$}\n", line(event_type, object), ""))
    }

    fn bookmark(&self, at: Revision, _: bool) -> Bytes {
        Bytes::from(format!("bookmark {at}\n"))
    }

    fn expired(&self, _: Revision, _: Revision) -> Bytes {
        Bytes::from(format!("{EXPIRED}\n"))
    }

    fn unreadable(&self, object: &Object, _: bool) -> Bytes {
        Bytes::from(format!("unreadable {}\n", object.key.as_str()))
    }
}

fn line(event_type: WatchEventType, object: &Object) -> String {
    let node = object.fields.get("node").unwrap_or_default();
    format!("{event_type:?} {}@{} on {node}.", object.key.as_str(), object.revision)
}

/// What an object looks like at one moment.
#[derive(Clone, Debug)]
struct Look {
    app: &'static str,
    node: &'static str,
}

#[derive(Clone, Debug)]
enum Step {
    /// Something becomes of the object with this number; `None`: it is removed.
    Write(usize, Option<Look>),
    /// The store says that there is news. Writes before it may have been seen by accident already.
    Ring,
    /// Lets every actor do what it can.
    Settle,
    /// A watch begins, at a revision up to this many events ago.
    Open(Filter, usize),
    /// A client takes at most this many chunks.
    Take(usize, usize),
    /// A client goes.
    Leave(usize),
}

const KEYS: [(&str, &str); 5] = [("x", "a"), ("x", "b"), ("y", "a"), ("y", "b"), ("y", "c")];

fn filters() -> impl Strategy<Value = Filter> {
    let text = |choices: &'static [&'static str]| prop::sample::select(choices).prop_map(Box::<str>::from);
    let namespace = prop::option::of(text(&["x", "y"]));
    let name = prop::option::weighted(0.3, text(&["a", "b"]));
    let label = prop::option::weighted(0.3, text(&["web", "db"]));
    let node = prop::option::of((text(&["", "1", "2"]), prop::bool::weighted(0.8)));
    (namespace, name, label, node).prop_map(|(namespace, name, label, node)| Filter {
        namespace,
        name,
        labels: label.map(|app| LabelRule::In("app".into(), [app].into())).into_iter().collect(),
        fields: node
            .map(|(value, equal)| match equal {
                true => FieldRule::Equals("node".into(), value),
                false => FieldRule::Differs("node".into(), value),
            })
            .into_iter()
            .collect(),
        reader: None,
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let look = (prop::sample::select(&["web", "db"][..]), prop::sample::select(&["", "1", "2"][..]))
        .prop_map(|(app, node)| Look { app, node });
    let write =
        (0..KEYS.len(), prop::option::weighted(0.8, look)).prop_map(|(at, look)| Step::Write(at, look));
    let step = prop_oneof![
        10 => write,
        3 => Just(Step::Ring),
        3 => Just(Step::Settle),
        2 => (filters(), 0..20_usize).prop_map(|(filter, ago)| Step::Open(filter, ago)),
        4 => (any::<usize>(), 1..4_usize).prop_map(|(client, chunks)| Step::Take(client, chunks)),
        1 => any::<usize>().prop_map(Step::Leave),
    ];
    prop::collection::vec(step, 1..150)
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A client and what it must hear and has heard.
struct Client {
    feed: Option<Feed>,
    /// Whether it has something to do: it looks only when it was woken, as a task does.
    is_woken: Arc<Woken>,
    filter: Filter,
    expected: Vec<String>,
    heard: String,
    ended: bool,
}

impl Client {
    /// Takes what is ready, at most `most` chunks; whether there was anything.
    fn take(&mut self, most: usize) -> bool {
        let Some(feed) = &mut self.feed else { return false };
        if !self.is_woken.0.swap(false, Ordering::SeqCst) {
            return false;
        }
        let waker = Waker::from(Arc::clone(&self.is_woken));
        for taken in 0..most {
            match feed.poll_next_unpin(&mut TaskContext::from_waker(&waker)) {
                Poll::Ready(Some(chunk)) => {
                    assert!(!chunk.is_empty());
                    self.heard.push_str(&String::from_utf8_lossy(&chunk));
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => return taken > 0,
            }
        }
        self.is_woken.0.store(true, Ordering::SeqCst);
        true
    }

    fn lines(&self) -> Vec<&str> {
        self.heard.lines().map(str::trim_end).collect()
    }
}

/// One type, its objects, and the clients that watch it.
struct World {
    notifiers: ChangeNotifiers,
    broadcaster: Addr<Broadcaster>,
    type_name: TypeName,
    window: Arc<Window>,
    objects: Vec<Option<Arc<Object>>>,
    /// The state at each revision, for watches that begin in the past.
    past: Vec<(Revision, Vec<Option<Arc<Object>>>)>,
    clients: Vec<Client>,
    live: LiveSessions,
}

fn account() -> WatchAccount {
    let Ok(account) = WatchMemory::unbounded().open("user") else { unreachable!("there are no bounds") };
    account
}

impl World {
    fn new(window_bytes: usize) -> World {
        let notifiers = ChangeNotifiers::default();
        let objects = vec![None; KEYS.len()];
        World {
            broadcaster: Broadcaster::begin(&notifiers, &Fatal::new()),
            notifiers,
            type_name: TypeName::new("pods"),
            window: Arc::new(Window::new(Revision(1), window_bytes)),
            past: vec![(Revision(1), objects.clone())],
            objects,
            clients: Vec::new(),
            live: LiveSessions::default(),
        }
    }

    fn write(&mut self, at: usize, look: Option<Look>) {
        let revision = self.window.head().next();
        let previous = self.objects[at].clone();
        let object = look.map(|look| {
            let (namespace, name) = KEYS[at];
            let draft = Draft {
                key: Key::namespaced(namespace, name),
                bytes: Bytes::from_static(b"{}"),
                revision_at: 1,
                item_at: 1,
                labels: Pairs::from_iter([("app", look.app)]),
                fields: Pairs::from_iter(Some(("node", look.node)).filter(|(_, node)| !node.is_empty())),
            };
            Arc::new(Object::new(draft, revision))
        });
        let (change, event_type) = match (&previous, &object) {
            (None, None) => return,
            (None, Some(object)) => (Change::Created, Arc::clone(object)),
            (Some(_), Some(object)) => (Change::Replaced, Arc::clone(object)),
            (Some(previous), None) => (Change::Removed, Arc::new(previous.at(revision))),
        };
        let event = Arc::new(Event::new(change, event_type, previous.clone(), Timestamp(revision.0)));
        self.objects[at] = object.clone();
        self.past.push((revision, self.objects.clone()));
        for client in &mut self.clients {
            client.expected.extend(expected(
                &client.filter,
                previous.as_deref(),
                object.as_deref(),
                revision,
            ));
        }
        self.window.append(event);
    }

    fn open(&mut self, filter: Filter, ago: usize) {
        self.open_as(filter, ago, Rc::new(Lines));
    }

    /// Begins a watch at an earlier state, with the objects of that state as initial ones.
    fn open_as(&mut self, filter: Filter, ago: usize, encoder: Rc<dyn EventEncoder>) {
        let at = self.past.len().saturating_sub(1 + ago);
        let (cursor, objects) = self.past[at].clone();
        let initial: Vec<Arc<Object>> = objects.into_iter().flatten().collect();
        let mut lines: Vec<String> = initial
            .iter()
            .filter(|object| filter.matches(object))
            .map(|object| line(WatchEventType::Added, object))
            .collect();
        for (state, next) in self.past[at..].iter().zip(&self.past[at + 1..]) {
            for (was, is) in state.1.iter().zip(&next.1) {
                let same =
                    was.as_ref().map(|object| object.revision) == is.as_ref().map(|object| object.revision);
                if !same {
                    lines.extend(expected(&filter, was.as_deref(), is.as_deref(), next.0));
                }
            }
        }
        let feed = Session::open(Watch {
            type_name: self.type_name.clone(),
            window: Arc::clone(&self.window),
            initial: Box::new(initial.into_iter()),
            cursor,
            filter: filter.clone(),
            encoder,
            broadcaster: self.broadcaster.clone(),
            deadline: None,
            bookmarks: false,
            initial_end_bookmark: false,
            live: self.live.clone(),
            account: account(),
            is_current: Box::new(|| true),
        });
        let is_woken = Arc::new(Woken(AtomicBool::new(true)));
        let (feed, heard) = (Some(feed), String::new());
        let client = Client { feed, is_woken, filter, expected: lines, heard, ended: false };
        self.clients.push(client);
    }

    async fn run(&mut self, steps: Vec<Step>) {
        for step in steps {
            let clients = self.clients.len().max(1);
            match step {
                Step::Write(at, look) => self.write(at, look),
                Step::Ring => self.notifiers.notify(&self.type_name),
                Step::Settle => settle().await,
                Step::Open(filter, ago) => self.open(filter, ago),
                Step::Take(client, chunks) => {
                    if let Some(client) = self.clients.get_mut(client % clients) {
                        client.take(chunks);
                    }
                }
                Step::Leave(client) => {
                    if let Some(client) = self.clients.get_mut(client % clients) {
                        client.feed = None;
                    }
                }
            }
        }
        self.notifiers.notify(&self.type_name);
        settle().await;
    }

    /// Lets these clients read until nothing more comes.
    async fn drain(&mut self, clients: impl Fn(usize) -> bool) {
        loop {
            settle().await;
            let mut moved = false;
            for (_, client) in self.clients.iter_mut().enumerate().filter(|(at, _)| clients(*at)) {
                moved |= !client.ended && client.take(1);
            }
            if !moved {
                return;
            }
        }
    }

    /// Who holds the window besides this world: each session, and the broadcaster while there is one.
    fn holders(&self) -> usize {
        Arc::strong_count(&self.window) - 1
    }

    fn watching(&self) -> usize {
        self.clients.iter().filter(|client| client.feed.is_some() && !client.ended).count()
    }
}

/// What a change must be told as: written anew here, so that the code under test is not its own judge.
fn expected(
    filter: &Filter,
    was: Option<&Object>,
    is: Option<&Object>,
    revision: Revision,
) -> Option<String> {
    let was = was.filter(|object| filter.matches(object));
    let is = is.filter(|object| filter.matches(object));
    match (was, is) {
        (None, Some(object)) => Some(line(WatchEventType::Added, object)),
        (Some(_), Some(object)) => Some(line(WatchEventType::Modified, object)),
        (Some(object), None) => Some(line(WatchEventType::Deleted, &object.at(revision))),
        (None, None) => None,
    }
}

/// Enough turns for every actor here to finish what it can do: a change takes three (notifier, broadcaster, session), and
/// the longest backlog of a test fits into a single turn of a session.
async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

fn in_system<T>(test: impl Future<Output = T>) -> T {
    actix::System::new().block_on(test)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_watch_tells_exactly_what_its_filter_says(steps in steps()) {
        in_system(async {
            let mut world = World::new(64 << 20);
            world.run(steps).await;
            // The first client does not read until all others have heard everything.
            world.drain(|at| at != 0).await;
            for client in world.clients.iter().skip(1).filter(|client| client.feed.is_some()) {
                assert_eq!(client.lines(), client.expected);
            }
            world.drain(|at| at == 0).await;
            for client in &world.clients {
                let heard = client.lines();
                let known = if client.feed.is_some() { client.expected.len() } else { heard.len() };
                // A client that left may have taken the beginning of a line.
                assert_eq!(heard[..], client.expected[..known]);
                assert!(!client.ended);
            }
            assert_eq!(world.live.count(), world.watching());
        });
    }

    #[test]
    fn a_watch_that_lost_events_says_so_and_tells_nothing_after_the_gap(steps in steps()) {
        in_system(async {
            let mut world = World::new(2_000);
            world.run(steps).await;
            world.drain(|_| true).await;
            for client in world.clients.iter().filter(|client| client.feed.is_some()) {
                let mut heard = client.lines();
                if client.ended {
                    assert_eq!(heard.pop(), Some(EXPIRED));
                    assert_eq!(heard[..], client.expected[..heard.len()]);
                } else {
                    assert_eq!(heard, client.expected);
                }
            }
            assert_eq!(world.live.count(), world.watching());
        });
    }
}

fn in_namespace(namespace: &str) -> Filter {
    Filter { namespace: Some(namespace.into()), ..Filter::default() }
}

#[test]
fn a_dropped_body_ends_its_session_at_once() {
    in_system(async {
        let mut world = World::new(1 << 20);
        for _ in 0..100 {
            world.open(Filter::everything(), 0);
        }
        settle().await;
        assert_eq!(world.live.count(), 100);
        world.clients.truncate(1);
        settle().await;
        assert_eq!(world.live.count(), 1);
        assert_eq!(world.holders(), 2);
        world.clients.clear();
        settle().await;
        assert_eq!(world.live.count(), 0);
        assert_eq!(world.holders(), 0, "the broadcaster has forgotten the type");
    });
}

#[test]
fn a_body_dropped_before_its_session_began_leaves_nothing() {
    in_system(async {
        let mut world = World::new(1 << 20);
        world.open(Filter::everything(), 0);
        world.clients.clear();
        settle().await;
        assert_eq!((world.live.count(), world.holders()), (0, 0));
    });
}

/// A way of writing that has a bug.
struct Broken;

impl EventEncoder for Broken {
    fn variant(&self) -> Variant {
        Variant(9)
    }

    #[expect(clippy::panic, reason = "the bug that the test is about")]
    fn frame(&self, _: WatchEventType, object: &Object) -> Bytes {
        panic!("cannot write {object:?}")
    }

    fn bookmark(&self, _: Revision, _: bool) -> Bytes {
        Bytes::new()
    }

    fn expired(&self, _: Revision, _: Revision) -> Bytes {
        Bytes::new()
    }

    fn unreadable(&self, _: &Object, _: bool) -> Bytes {
        Bytes::new()
    }
}

#[test]
fn a_session_that_panics_ends_its_own_watch_and_no_other() {
    in_system(async {
        let mut world = World::new(1 << 20);
        world.open_as(Filter::everything(), 0, Rc::new(Broken));
        world.open(Filter::everything(), 0);
        settle().await;
        world.write(0, Some(Look { app: "web", node: "1" }));
        world.notifiers.notify(&world.type_name);
        world.drain(|_| true).await;
        assert!(world.clients[0].ended && world.clients[0].heard.is_empty());
        assert_eq!(world.clients[1].lines(), world.clients[1].expected);
        assert_eq!((world.live.count(), world.holders()), (1, 2));
    });
}

#[test]
fn a_quiet_watch_survives_a_busy_type_whose_window_is_small() {
    in_system(async {
        let mut world = World::new(2_000);
        world.open(in_namespace("x"), 0);
        settle().await;
        let look = || Some(Look { app: "web", node: "1" });
        for _ in 0..500 {
            world.write(3, look());
            world.notifiers.notify(&world.type_name);
            settle().await;
        }
        assert!(world.window.floor() > Revision(400));
        world.write(0, look());
        world.notifiers.notify(&world.type_name);
        world.drain(|_| true).await;
        assert_eq!(world.clients[0].lines(), ["Added x/a@502 on 1."]);
    });
}

/// A log that has everything, two events at a time.
#[derive(Default)]
struct Kept(Lock<Vec<Copied>>);

/// What an event is made of.
type Copied = (Change, Arc<Object>, Option<Arc<Object>>);

impl Archive for Kept {
    fn read(&self, _: &TypeName, span: Span) -> Result<Vec<Event>, ArchiveError> {
        let kept = self.0.lock();
        let within = |object: &Object| object.revision > span.after && object.revision <= span.through;
        let found = kept.iter().filter(|(_, object, _)| within(object)).take(2);
        let event = |(change, object, previous): &Copied| {
            Event::new(*change, Arc::clone(object), previous.clone(), Timestamp(object.revision.0))
        };
        Ok(found.map(event).collect())
    }
}

#[test]
fn a_watch_that_is_far_behind_reads_the_log_and_goes_on_in_memory() {
    in_system(async {
        let kept = Arc::new(Kept::default());
        let mut world = World::new(2_000);
        let archive_reader =
            ArchiveReader::new(Arc::clone(&kept) as Arc<dyn Archive>, world.type_name.clone());
        world.window = Arc::new(Window::new(Revision(1), 2_000).with_archive(Some(archive_reader)));
        for turn in 0..60 {
            world.write(turn % KEYS.len(), (turn % 7 != 0).then_some(Look { app: "web", node: "1" }));
            if let Read::Events(events) = world.window.read(Revision(world.window.head().0 - 1), 1) {
                let events = events.iter();
                let copies = events.map(|event| (event.change, event.object.clone(), event.previous.clone()));
                kept.0.lock().extend(copies);
            }
        }
        assert_eq!(world.window.floor(), Revision(1));
        assert!(world.window.extent().archived > 30);
        let present = world.objects.iter().flatten().map(|object| (object.key.clone(), Arc::clone(object)));
        let snapshot = Snapshot { revision: world.window.head(), objects: present.collect() };
        let position =
            Position { window: Arc::clone(&world.window), snapshot, history: std::time::Duration::MAX };
        // What is read from the log to show an old state is asked for first, by its bytes.
        assert_eq!(
            state_at(&position, Revision(4), |_| false).await.unwrap_err(),
            PointInTimeError::TooLarge
        );
        let mut bytes = 0;
        let counted = |more| {
            bytes += more;
            true
        };
        let old = state_at(&position, Revision(4), counted).await.unwrap();
        let (_, was) = world.past.iter().find(|(revision, _)| *revision == Revision(4)).unwrap();
        let found: Vec<_> = old.iter().map(|object| object.revision).collect();
        let mut expected: Vec<_> = was.iter().flatten().collect();
        expected.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(found, expected.iter().map(|object| object.revision).collect::<Vec<_>>());
        assert!(bytes >= expected.iter().map(|object| object.bytes.len()).sum());
        world.open(Filter::everything(), world.past.len());
        let client = &mut world.clients[0];
        let mut feed = client.feed.take().unwrap();
        while client.heard.lines().count() < client.expected.len() {
            client.heard.push_str(&String::from_utf8_lossy(&feed.next().await.unwrap()));
        }
        assert_eq!(client.lines(), client.expected);
        // And what comes now is told as ever.
        world.write(0, Some(Look { app: "db", node: "2" }));
        world.notifiers.notify(&world.type_name);
        assert!(feed.next().await.is_some());
        assert_eq!(world.live.stalled(), 0);
    });
}

#[test]
fn closing_ends_all_watches_cleanly() {
    in_system(async {
        let mut world = World::new(1 << 20);
        world.write(0, Some(Look { app: "web", node: "1" }));
        world.open(Filter::everything(), 1);
        settle().await;
        world.broadcaster.send(CloseAll).await.unwrap();
        world.open(Filter::everything(), 0);
        world.drain(|_| true).await;
        for client in &world.clients {
            assert!(client.ended);
            assert_eq!(client.lines(), client.expected);
        }
        assert_eq!(world.live.count(), 0);
    });
}

#[test]
fn a_deadline_ends_the_watch() {
    in_system(async {
        let world = World::new(1 << 20);
        let mut feed = Session::open(Watch {
            type_name: world.type_name.clone(),
            window: Arc::clone(&world.window),
            initial: Box::new(std::iter::empty()),
            cursor: Revision(1),
            filter: Filter::everything(),
            encoder: Rc::new(Lines),
            broadcaster: world.broadcaster.clone(),
            deadline: Some(std::time::Duration::from_millis(1)),
            bookmarks: true,
            initial_end_bookmark: false,
            live: world.live.clone(),
            account: account(),
            is_current: Box::new(|| true),
        });
        assert_eq!(feed.next().await, Some(Bytes::from_static(b"bookmark 1\n")));
        assert_eq!(feed.next().await, None);
    });
}
