//! One type, its objects, and the clients that watch it; and random steps for them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

pub const EXPIRED: &str = "expired";

/// One line per event. Every third revision is large, so that a few of them fill the queue of a session.
pub struct Lines;

impl EventEncoder for Lines {
    fn variant(&self) -> Variant {
        Variant(0)
    }

    fn frame(&self, event_type: WatchEventType, object: &Object) -> Bytes {
        let padding = if object.revision.0.is_multiple_of(3) { 60 << 10 } else { 0 };
        Bytes::from(format!("{}{:padding$}\n", line(event_type, object), ""))
    }

    fn bookmark_frame(&self, revision: Revision, _: bool) -> Bytes {
        Bytes::from(format!("bookmark {revision}\n"))
    }

    fn expired_frame(&self, _: Revision, _: Revision) -> Bytes {
        Bytes::from(format!("{EXPIRED}\n"))
    }

    fn unreadable_frame(&self, object: &Object, _: bool) -> Bytes {
        Bytes::from(format!("unreadable {}\n", object.key.as_str()))
    }
}

pub fn line(event_type: WatchEventType, object: &Object) -> String {
    let node = object.fields.get("node").unwrap_or_default();
    format!("{event_type:?} {}@{} on {node}.", object.key.as_str(), object.revision)
}

/// The fields of an object that filters select by.
#[derive(Clone, Debug)]
pub struct ObjectState {
    pub app: &'static str,
    pub node: &'static str,
}

#[derive(Clone, Debug)]
pub enum Step {
    /// Creates or replaces the object with this index; `None` removes it.
    Write(usize, Option<ObjectState>),
    /// Notifies the broadcaster of changes. Earlier writes may have been delivered already.
    Notify,
    /// Runs every actor until it waits.
    Settle,
    /// Opens a watch at a revision up to this many events ago.
    Open(Filter, usize),
    /// A client reads at most this many chunks.
    Read(usize, usize),
    /// A client disconnects.
    Disconnect(usize),
}

pub const KEYS: [(&str, &str); 5] = [("x", "a"), ("x", "b"), ("y", "a"), ("y", "b"), ("y", "c")];

pub fn filters() -> impl Strategy<Value = Filter> {
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

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let state = (prop::sample::select(&["web", "db"][..]), prop::sample::select(&["", "1", "2"][..]))
        .prop_map(|(app, node)| ObjectState { app, node });
    let write = (0..KEYS.len(), prop::option::weighted(0.8, state))
        .prop_map(|(index, state)| Step::Write(index, state));
    let step = prop_oneof![
        10 => write,
        3 => Just(Step::Notify),
        3 => Just(Step::Settle),
        2 => (filters(), 0..20_usize).prop_map(|(filter, ago)| Step::Open(filter, ago)),
        4 => (any::<usize>(), 1..4_usize).prop_map(|(client, chunks)| Step::Read(client, chunks)),
        1 => any::<usize>().prop_map(Step::Disconnect),
    ];
    prop::collection::vec(step, 1..150)
}

pub struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A watch client with the lines that it must receive and has received.
pub struct Client {
    pub feed: Option<Feed>,
    /// Whether the feed was woken: it is polled only then, as a task is.
    pub is_woken: Arc<WakeFlag>,
    pub filter: Filter,
    pub expected: Vec<String>,
    pub received: String,
    pub ended: bool,
}

impl Client {
    /// Reads what is ready, at most `limit` chunks. Returns whether there was anything.
    pub fn read(&mut self, limit: usize) -> bool {
        let Some(feed) = &mut self.feed else { return false };
        if !self.is_woken.0.swap(false, Ordering::SeqCst) {
            return false;
        }
        let waker = Waker::from(Arc::clone(&self.is_woken));
        for count in 0..limit {
            let mut cx = TaskContext::from_waker(&waker);
            match catch_unwind(AssertUnwindSafe(|| feed.poll_next_unpin(&mut cx))) {
                Ok(Poll::Ready(Some(chunk))) => {
                    assert!(!chunk.is_empty());
                    self.received.push_str(&String::from_utf8_lossy(&chunk));
                }
                Ok(Poll::Ready(None)) => self.ended = true,
                Ok(Poll::Pending) => return count > 0,
                // As in a server: the task of the connection ends and drops the body.
                Err(_) => {
                    (self.feed, self.ended) = (None, true);
                    return true;
                }
            }
        }
        self.is_woken.0.store(true, Ordering::SeqCst);
        true
    }

    pub fn lines(&self) -> Vec<&str> {
        self.received.lines().map(str::trim_end).collect()
    }
}

/// One type, its objects, and the clients that watch it.
pub struct Harness {
    pub notifiers: ChangeNotifiers,
    pub broadcaster: Addr<Broadcaster>,
    pub type_name: TypeName,
    pub window: Arc<Window>,
    pub objects: Vec<Option<Arc<Object>>>,
    /// The state at each revision, for watches that begin in the past.
    pub past: Vec<(Revision, Vec<Option<Arc<Object>>>)>,
    pub clients: Vec<Client>,
    pub live: LiveSessions,
}

pub fn account() -> WatchAccount {
    let Ok(account) = WatchMemory::unbounded().open("user") else { unreachable!("there are no bounds") };
    account
}

impl Harness {
    pub fn new(window_bytes: usize) -> Harness {
        let notifiers = ChangeNotifiers::default();
        let objects = vec![None; KEYS.len()];
        Harness {
            broadcaster: Broadcaster::spawn(&notifiers, &Fatal::new()),
            notifiers,
            type_name: TypeName::new("pods"),
            window: Arc::new(Window::new(Revision(1), window_bytes)),
            past: vec![(Revision(1), objects.clone())],
            objects,
            clients: Vec::new(),
            live: LiveSessions::default(),
        }
    }

    pub fn write(&mut self, index: usize, state: Option<ObjectState>) {
        let revision = self.window.head().next();
        let previous = self.objects[index].clone();
        let object = state.map(|state| {
            let (namespace, name) = KEYS[index];
            let draft = Draft {
                key: Key::namespaced(namespace, name),
                bytes: Bytes::from_static(b"{}"),
                revision_offset: 1,
                item_offset: 1,
                labels: Pairs::from_iter([("app", state.app)]),
                fields: Pairs::from_iter(Some(("node", state.node)).filter(|(_, node)| !node.is_empty())),
            };
            Arc::new(Object::new(draft, revision))
        });
        let (change, event_type) = match (&previous, &object) {
            (None, None) => return,
            (None, Some(object)) => (Change::Created, Arc::clone(object)),
            (Some(_), Some(object)) => (Change::Replaced, Arc::clone(object)),
            (Some(previous), None) => (Change::Removed, Arc::new(previous.at_revision(revision))),
        };
        let event = Arc::new(Event::new(change, event_type, previous.clone(), WriteTime::default()));
        self.objects[index] = object.clone();
        self.past.push((revision, self.objects.clone()));
        for client in &mut self.clients {
            client.expected.extend(expected_line(
                &client.filter,
                previous.as_deref(),
                object.as_deref(),
                revision,
            ));
        }
        self.window.append(event);
    }

    pub fn open(&mut self, filter: Filter, ago: usize) {
        self.open_as(filter, ago, Rc::new(Lines));
    }

    /// Begins a watch at an earlier state, with the objects of that state as initial ones.
    pub fn open_as(&mut self, filter: Filter, ago: usize, encoder: Rc<dyn EventEncoder>) {
        let index = self.past.len().saturating_sub(1 + ago);
        let (cursor, objects) = self.past[index].clone();
        let initial: Vec<Arc<Object>> = objects.into_iter().flatten().collect();
        let mut lines: Vec<String> = initial
            .iter()
            .filter(|object| filter.matches(object))
            .map(|object| line(WatchEventType::Added, object))
            .collect();
        for (state, next) in self.past[index..].iter().zip(&self.past[index + 1..]) {
            for (before, after) in state.1.iter().zip(&next.1) {
                let is_unchanged = before.as_ref().map(|object| object.revision)
                    == after.as_ref().map(|object| object.revision);
                if !is_unchanged {
                    lines.extend(expected_line(&filter, before.as_deref(), after.as_deref(), next.0));
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
        let is_woken = Arc::new(WakeFlag(AtomicBool::new(true)));
        let (feed, received) = (Some(feed), String::new());
        let client = Client { feed, is_woken, filter, expected: lines, received, ended: false };
        self.clients.push(client);
    }

    pub async fn run(&mut self, steps: Vec<Step>) {
        for step in steps {
            let clients = self.clients.len().max(1);
            match step {
                Step::Write(index, state) => self.write(index, state),
                Step::Notify => self.notifiers.notify(&self.type_name),
                Step::Settle => settle().await,
                Step::Open(filter, ago) => self.open(filter, ago),
                Step::Read(client, chunks) => {
                    if let Some(client) = self.clients.get_mut(client % clients) {
                        client.read(chunks);
                    }
                }
                Step::Disconnect(client) => {
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
    pub async fn drain(&mut self, clients: impl Fn(usize) -> bool) {
        loop {
            settle().await;
            let mut progressed = false;
            for (_, client) in self.clients.iter_mut().enumerate().filter(|(index, _)| clients(*index)) {
                progressed |= !client.ended && client.read(1);
            }
            if !progressed {
                return;
            }
        }
    }

    /// The number of holders of the window besides this harness: each session, and the broadcaster while there is one.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.window) - 1
    }

    pub fn watching(&self) -> usize {
        self.clients.iter().filter(|client| client.feed.is_some() && !client.ended).count()
    }
}

/// The line that a filter must yield for a change. A second implementation, independent of the code under test.
pub fn expected_line(
    filter: &Filter,
    before: Option<&Object>,
    after: Option<&Object>,
    revision: Revision,
) -> Option<String> {
    let before = before.filter(|object| filter.matches(object));
    let after = after.filter(|object| filter.matches(object));
    match (before, after) {
        (None, Some(object)) => Some(line(WatchEventType::Added, object)),
        (Some(_), Some(object)) => Some(line(WatchEventType::Modified, object)),
        (Some(object), None) => Some(line(WatchEventType::Deleted, &object.at_revision(revision))),
        (None, None) => None,
    }
}

/// Enough turns for every actor here to finish what it can do: a change takes three (notifier, broadcaster, session), and
/// the longest backlog of a test fits into a single turn of a session.
pub async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}
