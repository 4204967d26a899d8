//! Tests of the turns of a watch: most run them without the actor and read the queue.

#[path = "tests/feed.rs"]
mod feed;

use std::cell::Cell;

use bytes::Bytes;
use futures::FutureExt;
use pilothouse_types::object::{Draft, Key, Pairs, UnreadableReason, Variant};

use super::*;
use crate::event::Change;
use crate::fatal::Fatal;
use crate::limits::{ENCODED_ASYNC_BYTES, SESSION_BYTES, STALLED_AFTER_EVENTS};
use crate::log_time::WriteTime;
use crate::notifier::ChangeNotifiers;
use crate::session_waker::Close;
use crate::watch_memory::WatchMemory;

/// Encodes each frame as a word, and pads the frames of events.
struct Words {
    padding: usize,
    encoded: Cell<usize>,
    /// How often events have to be prepared before they are encoded.
    unready: Cell<usize>,
    /// Whether other threads encode the frames of large objects.
    is_slow: Cell<bool>,
    /// How many they have encoded.
    encoded_async: Cell<usize>,
}

impl EventEncoder for Words {
    fn variant(&self) -> Variant {
        Variant(1)
    }

    fn frame(&self, event_type: WatchEventType, object: &Object) -> Bytes {
        self.encoded.set(self.encoded.get() + 1);
        Bytes::from(format!(
            "{event_type:?}:{}@{}{} ",
            object.key.name(),
            object.revision,
            ".".repeat(self.padding)
        ))
    }

    fn bookmark_frame(&self, revision: Revision, initial_end: bool) -> Bytes {
        Bytes::from(format!("{}@{revision} ", if initial_end { "InitialEnd" } else { "Bookmark" }))
    }

    fn expired_frame(&self, _: Revision, floor: Revision) -> Bytes {
        Bytes::from(format!("Expired@{floor} "))
    }

    fn prepare(&self, _: &[Arc<Event>]) -> Option<Preparation> {
        let left = self.unready.get().checked_sub(1)?;
        self.unready.set(left);
        Some(Box::pin(std::future::ready(Ok(()))))
    }

    fn is_slow(&self) -> bool {
        self.is_slow.get()
    }

    fn frame_async(&self, event_type: WatchEventType, object: Arc<Object>) -> PendingFrame {
        self.encoded_async.set(self.encoded_async.get() + 1);
        Box::pin(std::future::ready(self.frame(event_type, &object)))
    }

    fn unreadable_frame(&self, object: &Object, is_gone: bool) -> Bytes {
        Bytes::from(format!("Unreadable:{}{} ", object.key.name(), if is_gone { "(gone)" } else { "" }))
    }
}

fn object(namespace: &str, name: &str, revision: u64) -> Arc<Object> {
    object_of(Bytes::from_static(b"{}"), namespace, name, revision)
}

fn object_of(bytes: Bytes, namespace: &str, name: &str, revision: u64) -> Arc<Object> {
    let draft = Draft {
        key: Key::namespaced(namespace, name),
        bytes,
        revision_offset: 1,
        item_offset: 1,
        labels: Pairs::default(),
        fields: Pairs::default(),
    };
    Arc::new(Object::new(draft, Revision(revision)))
}

fn append(window: &Window, namespace: &str, revision: u64) {
    let event = Event::new(Change::Created, object(namespace, "a", revision), None, WriteTime::default());
    window.append(Arc::new(event));
}

fn window() -> Arc<Window> {
    Arc::new(Window::new(Revision(1), 1 << 30))
}

fn words(padding: usize) -> Rc<Words> {
    Rc::new(Words {
        padding,
        encoded: Cell::new(0),
        unready: Cell::new(0),
        is_slow: Cell::new(false),
        encoded_async: Cell::new(0),
    })
}

fn watch(window: &Arc<Window>, encoder: &Rc<Words>) -> Watch {
    Watch {
        type_name: TypeName::new("pods"),
        window: Arc::clone(window),
        initial: Box::new(std::iter::empty()),
        cursor: Revision(1),
        filter: Filter { namespace: Some("n".into()), ..Filter::default() },
        encoder: Rc::clone(encoder) as Rc<dyn EventEncoder>,
        broadcaster: Broadcaster::spawn(&ChangeNotifiers::default(), &Fatal::new()),
        deadline: None,
        bookmarks: true,
        initial_end_bookmark: false,
        live: LiveSessions::default(),
        account: WatchMemory::unbounded().open("user").unwrap(),
        is_current: Box::new(|| true),
    }
}

/// A watch without its actor.
struct Run {
    progress: WatchProgress,
    queue: Queue,
    waker: Arc<SessionWaker>,
    /// The frame that another thread encodes.
    frame_async: Option<PendingFrame>,
}

fn run(watch: Watch) -> Run {
    let waker = SessionWaker::new(watch.live.clone());
    let (progress, queue) = WatchProgress::new(watch, Arc::clone(&waker));
    Run { progress, queue, waker, frame_async: None }
}

/// What a session does after a turn, without the futures that it waits for.
#[derive(Debug, PartialEq)]
enum Next {
    Wait,
    Again,
    Fetch,
    Prepare,
    Encode,
    Pause,
    Stop,
}

impl Run {
    fn turn(&mut self) -> Next {
        let reasons = self.waker.take_reasons().unwrap_or_default();
        match self.progress.turn(reasons, &mut self.queue) {
            AfterTurn::Wait => Next::Wait,
            AfterTurn::Again => Next::Again,
            AfterTurn::Fetch(..) => Next::Fetch,
            AfterTurn::Prepare(_) => Next::Prepare,
            AfterTurn::Encode(frame) => {
                self.frame_async = Some(frame);
                Next::Encode
            }
            AfterTurn::Pause => Next::Pause,
            AfterTurn::Stop => Next::Stop,
        }
    }

    /// Everything that is queued, without the padding; `END` if the watch has ended.
    fn read(&mut self) -> String {
        let chunks: Vec<Bytes> = std::iter::from_fn(|| self.queue.chunk()).collect();
        let text = String::from_utf8(chunks.concat()).unwrap().replace('.', "");
        if matches!(self.progress.state, State::Ended) { text + "END" } else { text.trim_end().to_owned() }
    }

    /// Queues the frame that the session would wait for.
    fn finish_encoding(&mut self) {
        let frame = self.frame_async.take().and_then(FutureExt::now_or_never).unwrap();
        self.progress.on_encoded(frame, &mut self.queue);
    }
}

#[actix::test]
async fn watch_sends_initial_objects_then_announced_events() {
    let window = window();
    append(&window, "n", 2);
    append(&window, "elsewhere", 3);
    let initial = [object("n", "x", 1), object("elsewhere", "y", 1)];
    let mut session = run(Watch {
        initial: Box::new(initial.into_iter()),
        initial_end_bookmark: true,
        ..watch(&window, &words(0))
    });
    assert_eq!(session.turn(), Next::Wait);
    assert_eq!(session.read(), "Added:x@1 InitialEnd@1 Added:a@2");
    append(&window, "n", 4);
    assert_eq!(session.turn(), Next::Wait);
    assert_eq!(session.read(), "", "nobody announced it");
    session.waker.announce(Revision(3));
    assert_eq!(session.turn(), Next::Wait);
    assert_eq!(session.read(), "Added:a@4");
}

#[actix::test]
async fn events_of_one_revision_are_sent_once_each_however_small_the_queue() {
    let window = window();
    let created = |name, revision| {
        Arc::new(Event::new(Change::Created, object("n", name, revision), None, WriteTime::default()))
    };
    window.append_all(["a", "b", "c", "d", "e"].map(|name| created(name, 2)));
    window.append_all([created("f", 3)]);
    // The queue has room for two of them.
    let mut session = run(watch(&window, &words(SESSION_BYTES / 2)));
    let mut sent = String::new();
    for _ in 0..8 {
        session.turn();
        sent += &session.read();
    }
    assert_eq!(sent, "Added:a@2 Added:b@2Added:c@2 Added:d@2Added:e@2 Added:f@3");
}

#[actix::test]
async fn watch_ends_at_unreadable_object() {
    let damaged = |namespace: &str| {
        Arc::new(Object::unreadable(Key::namespaced(namespace, "b"), Revision(1), UnreadableReason::Damaged))
    };
    let initial = [object("n", "a", 1), damaged("elsewhere"), damaged("n"), object("n", "c", 1)];
    let mut first = run(Watch { initial: Box::new(initial.into_iter()), ..watch(&window(), &words(0)) });
    assert_eq!(first.turn(), Next::Stop);
    assert_eq!(first.read(), "Added:a@1 Unreadable:b END");

    // The labels of a corrupt object are unknown, so its removal matches every label selector.
    let window = window();
    append(&window, "n", 2);
    let gone = Arc::new(damaged("n").at_revision(Revision(3)));
    window.append(Arc::new(Event::new(Change::Removed, gone, Some(damaged("n")), WriteTime::default())));
    append(&window, "n", 4);
    let mut second = run(watch(&window, &words(0)));
    assert_eq!(second.turn(), Next::Stop);
    assert_eq!(second.read(), "Added:a@2 Unreadable:b(gone) END");
}

#[actix::test]
async fn initial_objects_are_read_as_the_client_takes_them() {
    let window = window();
    let read_objects = Rc::new(Cell::new(0));
    let counter = Rc::clone(&read_objects);
    let initial = (0..1_000).map(move |index| {
        counter.set(index + 1);
        object("n", "x", 1)
    });
    let encoder = words(SESSION_BYTES / 8);
    let mut session = run(Watch { initial: Box::new(initial), ..watch(&window, &encoder) });
    assert_eq!(session.turn(), Next::Again);
    assert_eq!(read_objects.get(), 8, "no more than the queue holds");
    assert_eq!(session.turn(), Next::Again);
    assert_eq!(read_objects.get(), 8);
    let mut sent = 0;
    while read_objects.get() < 1_000 || sent < 1_000 {
        sent += session.read().matches("Added").count();
        session.turn();
    }
    assert_eq!((sent, read_objects.get()), (1_000, 1_000));
}

#[actix::test]
async fn turn_is_bounded_by_events() {
    let window = window();
    let events = SESSION_EVENTS_PER_TURN as u64 * 2;
    for revision in 2..2 + events {
        append(&window, "n", revision);
    }
    let mut session = run(watch(&window, &words(0)));
    assert_eq!(session.turn(), Next::Again);
    assert_eq!(session.read().matches("Added").count(), SESSION_EVENTS_PER_TURN);
    assert_eq!(session.turn(), Next::Again);
    assert_eq!(session.turn(), Next::Wait);
    assert_eq!(session.read().matches("Added").count(), SESSION_EVENTS_PER_TURN);
}

#[actix::test]
async fn turn_is_shorter_for_large_objects() {
    let (window, bytes) =
        (window(), Bytes::from(vec![b'x'; SESSION_EVENTS_PER_TURN / 2 * SESSION_BYTES_PER_EVENT]));
    for revision in 2..8 {
        let large = object_of(bytes.clone(), "n", "a", revision);
        window.append(Arc::new(Event::new(Change::Created, large, None, WriteTime::default())));
    }
    let mut session = run(watch(&window, &words(0)));
    for _ in 0..3 {
        assert_eq!(session.turn(), Next::Again);
        assert_eq!(session.read().matches("Added").count(), 2);
    }
    assert_eq!(session.turn(), Next::Wait);
    assert_eq!(session.read().matches("Added").count(), 0);
}

#[actix::test]
async fn watch_with_full_queue_skips_no_event() {
    let window = window();
    for revision in 2..8 {
        append(&window, "n", revision);
    }
    let mut session = run(watch(&window, &words(SESSION_BYTES / 2)));
    assert_eq!(session.turn(), Next::Again);
    assert_eq!(session.progress.cursor, Revision(3));
    session.waker.announce(Revision(6));
    session.waker.request_bookmark(Revision(7));
    assert_eq!(session.turn(), Next::Again);
    assert_eq!(
        session.progress.cursor,
        Revision(3),
        "no step over unread events, no bookmark into a full queue"
    );
    let mut text = String::new();
    for _ in 0..4 {
        text += &(session.read() + " ");
        session.turn();
    }
    assert_eq!(text.trim_end(), "Added:a@2 Added:a@3 Added:a@4 Added:a@5 Added:a@6 Added:a@7");
}

#[actix::test]
async fn idle_watch_is_not_expired_by_filtered_events() {
    let window = Arc::new(Window::new(Revision(1), 1));
    let mut session = run(watch(&window, &words(0)));
    session.turn();
    for revision in 2..10 {
        append(&window, "elsewhere", revision);
    }
    append(&window, "n", 10);
    session.waker.announce(Revision(9));
    assert_eq!(session.turn(), Next::Wait);
    assert_eq!(session.read(), "Added:a@10");
}

#[actix::test]
async fn cursor_behind_the_window_ends_the_watch_with_expired() {
    let window = Arc::new(Window::new(Revision(1), 1));
    append(&window, "n", 2);
    append(&window, "n", 3);
    let mut session = run(watch(&window, &words(0)));
    assert_eq!(session.turn(), Next::Stop);
    assert_eq!(session.read(), "Expired@2 END");
}

#[actix::test]
async fn bookmark_names_no_revision_beyond_what_was_announced() {
    let window = window();
    let mut session = run(watch(&window, &words(0)));
    session.turn();
    append(&window, "elsewhere", 5);
    append(&window, "n", 6);
    session.waker.request_bookmark(Revision(5));
    session.turn();
    assert_eq!(session.read(), "Bookmark@5", "revision 6 was not looked up yet");
    session.waker.announce(Revision(5));
    session.waker.request_bookmark(Revision(6));
    session.turn();
    assert_eq!(session.read(), "Added:a@6 Bookmark@6");
}

#[actix::test]
async fn no_bookmark_is_sent_before_the_initial_objects() {
    let window = window();
    let initial = std::iter::repeat_with(|| object("elsewhere", "x", 1));
    let mut session = run(Watch { initial: Box::new(initial), ..watch(&window, &words(0)) });
    session.waker.request_bookmark(Revision(1));
    assert_eq!(session.turn(), Next::Again);
    session.progress.finish(&mut session.queue);
    assert_eq!(session.read(), "END");
}

#[actix::test]
async fn closed_watch_ends_with_a_bookmark() {
    let window = window();
    append(&window, "n", 2);
    let mut session = run(watch(&window, &words(0)));
    session.turn();
    session.waker.close(Close::AtOnce);
    assert_eq!(session.turn(), Next::Stop);
    assert_eq!(session.read(), "Added:a@2 Bookmark@2 END");
}

#[actix::test]
async fn watch_of_a_removed_type_ends_after_its_last_event() {
    let window = window();
    let mut session = run(watch(&window, &words(SESSION_BYTES / 2)));
    session.turn();
    // Nothing is announced: the broadcaster may be behind when the type is removed.
    for revision in 2..6 {
        append(&window, "n", revision);
    }
    session.waker.close(Close::WhenCaughtUp);
    assert_eq!(session.turn(), Next::Again, "its client has not read yet");
    assert_eq!(session.read(), "Added:a@2 Added:a@3");
    assert_eq!(session.turn(), Next::Stop);
    assert_eq!(session.read(), "Added:a@4 Added:a@5 Bookmark@5 END");
}

#[actix::test]
async fn event_is_encoded_once_for_all_watches_of_a_variant() {
    let window = window();
    append(&window, "n", 2);
    let encoder = words(0);
    for _ in 0..50 {
        let mut session = run(watch(&window, &encoder));
        session.turn();
        assert_eq!(session.read(), "Added:a@2");
    }
    assert_eq!(encoder.encoded.get(), 1);
}

#[actix::test]
async fn watch_without_memory_pauses_and_loses_no_event() {
    use pilothouse_types::clock::Clock;
    use pilothouse_types::memory::MemoryBudget;

    const LARGE: usize = 100 << 10;
    let frames = MemoryBudget::standalone(LARGE + 1_000);
    let memory = WatchMemory::new(MemoryBudget::standalone(1 << 20), frames.clone(), 9, Clock::system());
    let window = window();
    let large = |revision: u64| {
        let padding = "x".repeat(LARGE);
        let bytes = Bytes::from(format!(r#"{{"resourceVersion":"","p":"{padding}"}}"#));
        let draft = Draft {
            key: Key::namespaced("n", "a"),
            bytes,
            revision_offset: 20,
            item_offset: 1,
            labels: Pairs::default(),
            fields: Pairs::default(),
        };
        Arc::new(Object::new(draft, Revision(revision)))
    };
    for revision in 2..=3 {
        window.append(Arc::new(Event::new(
            Change::Replaced,
            large(revision),
            Some(large(revision - 1)),
            WriteTime::default(),
        )));
    }
    let account = memory.open("user").unwrap();
    let encoder = words(LARGE);
    let initial = Box::new(std::iter::once(large(1)));
    let mut session = run(Watch { initial, account, ..watch(&window, &encoder) });
    let mut read = Vec::new();
    for _ in 0..3 {
        let other = frames.take(LARGE).unwrap();
        assert_eq!(session.turn(), Next::Pause, "there is no memory");
        assert_eq!(session.queue.chunk(), None);
        drop(other);
        session.turn();
        let frame = session.queue.chunk().expect("a frame");
        let name = frame.split(|byte| !b":@".contains(byte) && !byte.is_ascii_alphanumeric()).next();
        read.push(String::from_utf8_lossy(name.unwrap_or_default()).into_owned());
    }
    assert_eq!(read, ["Added:a@1", "Modified:a@2", "Modified:a@3"]);
    assert_eq!(encoder.encoded.get(), 3, "each was encoded once");
}

fn large(name: &str, revision: u64) -> Arc<Object> {
    object_of(Bytes::from(vec![b' '; ENCODED_ASYNC_BYTES + 1]), "n", name, revision)
}

#[actix::test]
async fn large_frames_are_encoded_in_background_and_sent_in_order() {
    let (window, words) = (window(), words(0));
    words.is_slow.set(true);
    let initial = [object("n", "small", 1), large("large", 2), object("n", "last", 3)];
    let added = |object| Arc::new(Event::new(Change::Created, object, None, WriteTime::default()));
    window.append(added(large("event", 4)));
    window.append(added(object("n", "end", 5)));
    let watch =
        Watch { initial: Box::new(initial.into_iter()), cursor: Revision(3), ..watch(&window, &words) };
    let mut session = run(watch);
    assert_eq!(session.turn(), Next::Encode);
    assert_eq!(session.read(), "Added:small@1");
    assert_eq!(session.turn(), Next::Wait, "later objects wait for the large one");
    session.progress.bookmark(&mut session.queue);
    assert_eq!(session.read(), "", "the client does not have all objects of the start");
    session.finish_encoding();
    assert_eq!(session.turn(), Next::Encode);
    assert_eq!(session.read(), "Added:large@2 Added:last@3");
    session.progress.bookmark(&mut session.queue);
    assert_eq!(session.read(), "Bookmark@3", "it has not come to the event yet");
    session.finish_encoding();
    session.progress.bookmark(&mut session.queue);
    assert_eq!(session.read(), "Added:event@4 Bookmark@4");
    assert_eq!(session.turn(), Next::Wait);
    assert_eq!(session.read(), "Added:end@5");
    assert_eq!(words.encoded_async.get(), 2);
}

#[actix::test]
async fn cached_large_frame_is_not_encoded_again() {
    let (window, words) = (window(), words(0));
    window.append(Arc::new(Event::new(Change::Created, large("a", 2), None, WriteTime::default())));
    words.is_slow.set(true);
    let start = || Watch { initial: Box::new([large("b", 1)].into_iter()), ..watch(&window, &words) };
    let [mut first, mut second] = [run(start()), run(start())];
    for session in [&mut first, &mut second] {
        assert_eq!(session.turn(), Next::Encode);
        session.finish_encoding();
    }
    assert_eq!(first.turn(), Next::Encode);
    first.finish_encoding();
    assert_eq!((first.turn(), second.turn()), (Next::Wait, Next::Wait), "the frame of the event is cached");
    for mut session in [first, second] {
        assert_eq!(session.read(), "Added:b@1 Added:a@2");
    }
    assert_eq!(words.encoded_async.get(), 3);
}

#[actix::test]
async fn ended_watch_does_not_wait_for_an_encoding() {
    let (window, words) = (window(), words(0));
    words.is_slow.set(true);
    let watch = Watch { initial: Box::new([large("a", 1)].into_iter()), ..watch(&window, &words) };
    let mut session = run(watch);
    assert_eq!(session.turn(), Next::Encode);
    session.progress.finish(&mut session.queue);
    session.finish_encoding();
    assert_eq!((session.turn(), session.read().as_str()), (Next::Stop, "END"));
}
