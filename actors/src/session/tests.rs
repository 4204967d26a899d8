//! Tests of a watch's course without its session actor: most run turns and read the feed.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use actix::Actor as _;
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use pilothouse_types::clock::Timestamp;
use pilothouse_types::object::{Draft, Key, Pairs, Variant};

use super::*;
use crate::archive::{Archive, ArchiveError, ArchiveReader, Span};
use crate::event::Change;
use crate::fatal::Fatal;
use crate::limits::{ENCODED_ASIDE_BYTES, SESSION_BYTES};
use crate::notifier::ChangeNotifiers;
use crate::session::Session;
use crate::session_waker::Close;
use crate::session_waker::tests::Counter;
use crate::watch_memory::WatchMemory;

/// Encodes each frame as a word, and pads the frames of events.
struct Words {
    padding: usize,
    encoded: Cell<usize>,
    /// How often something has to be done before events can be written.
    unready: Cell<usize>,
    /// Whether other threads write the frames of large objects.
    is_slow: Cell<bool>,
    /// How many they have written.
    written_aside: Cell<usize>,
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

    fn bookmark(&self, at: Revision, initial_end: bool) -> Bytes {
        Bytes::from(format!("{}@{at} ", if initial_end { "InitialEnd" } else { "Bookmark" }))
    }

    fn expired(&self, _: Revision, floor: Revision) -> Bytes {
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

    fn frame_aside(&self, event_type: WatchEventType, object: Arc<Object>) -> FrameAside {
        self.written_aside.set(self.written_aside.get() + 1);
        Box::pin(std::future::ready(self.frame(event_type, &object)))
    }

    fn unreadable(&self, object: &Object, is_gone: bool) -> Bytes {
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
    let event = Event::new(Change::Created, object(namespace, "a", revision), None, Timestamp(revision));
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
        written_aside: Cell::new(0),
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
        broadcaster: Broadcaster::begin(&ChangeNotifiers::default(), &Fatal::new()),
        deadline: None,
        bookmarks: true,
        initial_end_bookmark: false,
        live: LiveSessions::default(),
        account: WatchMemory::unbounded().open("user").unwrap(),
        is_current: Box::new(|| true),
    }
}

/// A watch whose body runs no turns.
fn session(watch: Watch) -> (WatchProgress, Feed) {
    WatchProgress::new(watch, SessionWaker::new(Counter(Rc::new(Cell::new(0))).start().recipient()))
}

async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// Everything that can be read now, without the padding; `END` if the stream has ended.
fn read(feed: &mut Feed) -> String {
    let mut text = String::new();
    loop {
        match feed.next().now_or_never() {
            None => return text.replace('.', "").trim_end().to_owned(),
            Some(None) => return format!("{}END", text.replace('.', "")),
            Some(Some(chunk)) => text.push_str(std::str::from_utf8(&chunk).unwrap()),
        }
    }
}

#[actix::test]
async fn a_watch_tells_what_is_there_then_what_happens() {
    let window = window();
    append(&window, "n", 2);
    append(&window, "elsewhere", 3);
    let initial = [object("n", "x", 1), object("elsewhere", "y", 1)];
    let (mut session, mut feed) = session(Watch {
        initial: Box::new(initial.into_iter()),
        initial_end_bookmark: true,
        ..watch(&window, &words(0))
    });
    assert_eq!(session.turn(), AfterTurn::Wait);
    assert_eq!(read(&mut feed), "Added:x@1 InitialEnd@1 Added:a@2");
    append(&window, "n", 4);
    assert_eq!(session.turn(), AfterTurn::Wait);
    assert_eq!(read(&mut feed), "", "nobody announced it");
    session.waker.announce(Revision(3));
    assert_eq!(session.turn(), AfterTurn::Wait);
    assert_eq!(read(&mut feed), "Added:a@4");
}

#[actix::test]
async fn a_watch_ends_at_what_cannot_be_shown() {
    let damaged =
        |namespace: &str| Arc::new(Object::unreadable(Key::namespaced(namespace, "b"), Revision(1)));
    let initial = [object("n", "a", 1), damaged("elsewhere"), damaged("n"), object("n", "c", 1)];
    let (mut first, mut feed) =
        session(Watch { initial: Box::new(initial.into_iter()), ..watch(&window(), &words(0)) });
    assert_eq!(first.turn(), AfterTurn::Stop);
    assert_eq!(read(&mut feed), "Added:a@1 Unreadable:b END");

    // The labels of a corrupt object are unknown, so its removal is told to every label selector.
    let window = window();
    append(&window, "n", 2);
    let gone = Arc::new(damaged("n").at_revision(Revision(3)));
    window.append(Arc::new(Event::new(Change::Removed, gone, Some(damaged("n")), Timestamp(3))));
    append(&window, "n", 4);
    let (mut second, mut feed) = session(watch(&window, &words(0)));
    assert_eq!(second.turn(), AfterTurn::Stop);
    assert_eq!(read(&mut feed), "Added:a@2 Unreadable:b(gone) END");
}

#[actix::test]
async fn initial_objects_are_taken_as_the_client_reads() {
    let window = window();
    let taken = Rc::new(Cell::new(0));
    let counter = Rc::clone(&taken);
    let initial = (0..1_000).map(move |at| {
        counter.set(at + 1);
        object("n", "x", 1)
    });
    let encoder = words(SESSION_BYTES / 8);
    let (mut session, mut feed) = session(Watch { initial: Box::new(initial), ..watch(&window, &encoder) });
    assert_eq!(session.turn(), AfterTurn::Wait);
    assert_eq!(taken.get(), 8, "no more than the queue holds");
    assert_eq!(session.turn(), AfterTurn::Wait);
    assert_eq!(taken.get(), 8);
    let mut event_type = 0;
    while taken.get() < 1_000 || event_type < 1_000 {
        event_type += read(&mut feed).matches("Added").count();
        session.turn();
    }
    assert_eq!((event_type, taken.get()), (1_000, 1_000));
}

#[actix::test]
async fn a_turn_is_bounded() {
    let window = window();
    let events = SESSION_EVENTS_PER_TURN as u64 * 2;
    for revision in 2..2 + events {
        append(&window, "n", revision);
    }
    let (mut session, mut feed) = session(watch(&window, &words(0)));
    assert_eq!(session.turn(), AfterTurn::Again);
    assert_eq!(read(&mut feed).matches("Added").count(), SESSION_EVENTS_PER_TURN);
    assert_eq!(session.turn(), AfterTurn::Again);
    assert_eq!(session.turn(), AfterTurn::Wait);
    assert_eq!(read(&mut feed).matches("Added").count(), SESSION_EVENTS_PER_TURN);
}

#[actix::test]
async fn a_turn_is_shorter_if_the_objects_are_large() {
    let (window, bytes) =
        (window(), Bytes::from(vec![b'x'; SESSION_EVENTS_PER_TURN / 2 * SESSION_BYTES_PER_EVENT]));
    for revision in 2..8 {
        let large = object_of(bytes.clone(), "n", "a", revision);
        window.append(Arc::new(Event::new(Change::Created, large, None, Timestamp(revision))));
    }
    let (mut session, mut feed) = session(watch(&window, &words(0)));
    for _ in 0..3 {
        assert_eq!(session.turn(), AfterTurn::Again);
        assert_eq!(read(&mut feed).matches("Added").count(), 2);
    }
    assert_eq!(session.turn(), AfterTurn::Wait);
    assert_eq!(read(&mut feed).matches("Added").count(), 0);
}

#[actix::test]
async fn a_session_that_waits_for_room_skips_nothing() {
    let window = window();
    for revision in 2..8 {
        append(&window, "n", revision);
    }
    let (mut session, mut feed) = session(watch(&window, &words(SESSION_BYTES / 2)));
    assert_eq!(session.turn(), AfterTurn::Wait);
    assert_eq!(session.cursor, Revision(3));
    session.waker.announce(Revision(6));
    session.waker.ask_for_bookmark(Revision(7));
    assert_eq!(session.turn(), AfterTurn::Wait);
    assert_eq!(session.cursor, Revision(3), "no step over unread events, no bookmark into a full queue");
    let mut text = String::new();
    for _ in 0..4 {
        text += &(read(&mut feed) + " ");
        session.turn();
    }
    assert_eq!(text.trim_end(), "Added:a@2 Added:a@3 Added:a@4 Added:a@5 Added:a@6 Added:a@7");
}

#[actix::test]
async fn an_idle_session_is_not_expired_by_what_was_of_no_interest() {
    let window = Arc::new(Window::new(Revision(1), 1));
    let (mut session, mut feed) = session(watch(&window, &words(0)));
    session.turn();
    for revision in 2..10 {
        append(&window, "elsewhere", revision);
    }
    append(&window, "n", 10);
    session.waker.announce(Revision(9));
    assert_eq!(session.turn(), AfterTurn::Wait);
    assert_eq!(read(&mut feed), "Added:a@10");
}

#[actix::test]
async fn a_cursor_behind_the_window_ends_the_watch_with_one_word() {
    let window = Arc::new(Window::new(Revision(1), 1));
    append(&window, "n", 2);
    append(&window, "n", 3);
    let (mut session, mut feed) = session(watch(&window, &words(0)));
    assert_eq!(session.turn(), AfterTurn::Stop);
    drop(session);
    assert_eq!(read(&mut feed), "Expired@2 END");
}

#[actix::test]
async fn a_bookmark_tells_no_more_than_was_told() {
    let window = window();
    let (mut session, mut feed) = session(watch(&window, &words(0)));
    session.turn();
    append(&window, "elsewhere", 5);
    append(&window, "n", 6);
    session.waker.ask_for_bookmark(Revision(5));
    session.turn();
    assert_eq!(read(&mut feed), "Bookmark@5", "revision 6 was not looked up yet");
    session.waker.announce(Revision(5));
    session.waker.ask_for_bookmark(Revision(6));
    session.turn();
    assert_eq!(read(&mut feed), "Added:a@6 Bookmark@6");
}

#[actix::test]
async fn no_bookmark_while_initial_objects_are_due() {
    let window = window();
    let initial = std::iter::repeat_with(|| object("elsewhere", "x", 1));
    let (mut session, mut feed) = session(Watch { initial: Box::new(initial), ..watch(&window, &words(0)) });
    session.waker.ask_for_bookmark(Revision(1));
    assert_eq!(session.turn(), AfterTurn::Again);
    session.finish();
    assert_eq!(read(&mut feed), "END");
}

#[actix::test]
async fn a_closed_watch_says_how_far_it_came() {
    let window = window();
    append(&window, "n", 2);
    let (mut session, mut feed) = session(watch(&window, &words(0)));
    session.turn();
    session.waker.close(Close::AtOnce);
    assert_eq!(session.turn(), AfterTurn::Stop);
    assert_eq!(read(&mut feed), "Added:a@2 Bookmark@2 END");
}

#[actix::test]
async fn a_watch_of_a_type_that_is_gone_ends_after_its_last_event() {
    let window = window();
    let (mut session, mut feed) = session(watch(&window, &words(SESSION_BYTES / 2)));
    session.turn();
    // Nothing is announced: the broadcaster may be behind when it hears that the type is gone.
    for revision in 2..6 {
        append(&window, "n", revision);
    }
    session.waker.close(Close::WhenCaughtUp);
    assert_eq!(session.turn(), AfterTurn::Wait, "its client has not read yet");
    assert_eq!(read(&mut feed), "Added:a@2 Added:a@3");
    assert_eq!(session.turn(), AfterTurn::Stop);
    assert_eq!(read(&mut feed), "Added:a@4 Added:a@5 Bookmark@5 END");
}

#[actix::test]
async fn a_session_without_a_body_stops() {
    let (mut session, feed) = session(watch(&window(), &words(0)));
    let live = session.live.clone();
    drop(feed);
    assert_eq!((session.turn(), live.count()), (AfterTurn::Stop, 1));
    drop(session);
    assert_eq!(live.count(), 0);
}

#[actix::test]
async fn an_event_is_encoded_once_for_all_who_are_told_the_same() {
    let window = window();
    append(&window, "n", 2);
    let encoder = words(0);
    let mut readers: Vec<(WatchProgress, Feed)> =
        (0..50).map(|_| session(watch(&window, &encoder))).collect();
    for (session, feed) in &mut readers {
        session.turn();
        assert_eq!(read(feed), "Added:a@2");
    }
    assert_eq!(encoder.encoded.get(), 1);
}

#[actix::test]
async fn a_body_that_waits_takes_the_turn_and_the_session_sleeps() {
    let window = window();
    let woken = Rc::new(Cell::new(0));
    let waker = SessionWaker::new(Counter(Rc::clone(&woken)).start().recipient());
    let (progress, mut feed) = WatchProgress::new(watch(&window, &words(0)), Arc::clone(&waker));
    let progress = Rc::new(RefCell::new(progress));
    feed.follow(Rc::downgrade(&progress));
    progress.borrow_mut().turn();
    for revision in 2..5 {
        assert_eq!(read(&mut feed), "");
        append(&window, "n", revision);
        waker.announce(Revision(revision - 1));
        assert_eq!(read(&mut feed), format!("Added:a@{revision}"));
    }
    tokio::task::yield_now().await;
    assert_eq!(woken.get(), 0);

    // More than one queue full is fetched while it is read.
    for revision in 5..9 {
        append(&window, "n", revision);
    }
    waker.announce(Revision(4));
    assert_eq!(read(&mut feed), "Added:a@5 Added:a@6 Added:a@7 Added:a@8");

    waker.close(Close::AtOnce);
    settle().await;
    assert_eq!(woken.get(), 1, "the end is the session's");
    drop(progress);
    assert_eq!(read(&mut feed), "END");
}

#[actix::test]
async fn a_body_that_does_not_come_is_given_up_for_the_session() {
    let window = window();
    let woken = Rc::new(Cell::new(0));
    let waker = SessionWaker::new(Counter(Rc::clone(&woken)).start().recipient());
    let (progress, mut feed) = WatchProgress::new(watch(&window, &words(0)), Arc::clone(&waker));
    let progress = Rc::new(RefCell::new(progress));
    feed.follow(Rc::downgrade(&progress));
    progress.borrow_mut().turn();
    assert_eq!(read(&mut feed), "");
    let mut seen = Vec::new();
    for revision in 2..5 {
        append(&window, "n", revision);
        waker.announce(Revision(revision - 1));
        settle().await;
        seen.push(woken.get());
    }
    assert_eq!(seen, [0, 1, 1], "the body, then the session, and nobody twice");
    assert_eq!(progress.borrow_mut().run_by_session(), AfterTurn::Wait);
    assert_eq!(read(&mut feed), "Added:a@2 Added:a@3 Added:a@4");
}

#[actix::test]
async fn nobody_is_called_for_news_that_find_no_room() {
    let window = window();
    let woken = Rc::new(Cell::new(0));
    let waker = SessionWaker::new(Counter(Rc::clone(&woken)).start().recipient());
    let (progress, mut feed) = WatchProgress::new(watch(&window, &words(SESSION_BYTES)), Arc::clone(&waker));
    let progress = Rc::new(RefCell::new(progress));
    feed.follow(Rc::downgrade(&progress));
    append(&window, "n", 2);
    append(&window, "n", 3);
    progress.borrow_mut().turn();
    for revision in 4..7 {
        append(&window, "n", revision);
        waker.announce(Revision(revision - 1));
    }
    settle().await;
    assert_eq!(woken.get(), 0);
    assert_eq!(read(&mut feed), "Added:a@2 Added:a@3 Added:a@4 Added:a@5 Added:a@6");
    append(&window, "n", 7);
    waker.announce(Revision(6));
    assert_eq!(read(&mut feed), "Added:a@7");
}

#[actix::test]
async fn what_takes_more_than_a_turn_is_left_to_the_session() {
    let window = window();
    for revision in 2..3 + SESSION_EVENTS_PER_TURN as u64 {
        append(&window, "elsewhere", revision);
    }
    let woken = Rc::new(Cell::new(0));
    let waker = SessionWaker::new(Counter(Rc::clone(&woken)).start().recipient());
    let (progress, mut feed) = WatchProgress::new(watch(&window, &words(0)), Arc::clone(&waker));
    let progress = Rc::new(RefCell::new(progress));
    feed.follow(Rc::downgrade(&progress));
    waker.announce(Revision(1));
    assert_eq!(read(&mut feed), "");
    settle().await;
    assert_eq!(woken.get(), 2, "once when nobody read, once by the body");
    assert_eq!(progress.borrow_mut().run_by_session(), AfterTurn::Again, "what is owed");
    assert_eq!(progress.borrow_mut().run_by_session(), AfterTurn::Wait);
}

#[actix::test]
async fn what_stands_on_the_note_is_read_also_where_something_is_owed() {
    let window = window();
    for revision in 2..3 + 2 * SESSION_EVENTS_PER_TURN as u64 {
        append(&window, "n", revision);
    }
    let woken = Rc::new(Cell::new(0));
    let waker = SessionWaker::new(Counter(Rc::clone(&woken)).start().recipient());
    let (progress, mut feed) = WatchProgress::new(watch(&window, &words(0)), Arc::clone(&waker));
    let progress = Rc::new(RefCell::new(progress));
    feed.follow(Rc::downgrade(&progress));
    waker.resume();
    assert!(feed.next().now_or_never().flatten().is_some(), "a turn of the body that owes the rest");
    // The body does not return, and there is another event: the session is called.
    waker.announce(Revision(9));
    progress.borrow_mut().run_by_session();
    settle().await;
    let before = woken.get();
    drop(feed);
    settle().await;
    assert_eq!(woken.get(), before + 1, "who leaves is heard");
    assert_eq!(progress.borrow_mut().run_by_session(), AfterTurn::Stop);
}

#[actix::test]
async fn a_watch_of_what_has_changed_meanwhile_ends_at_once() {
    let window = window();
    append(&window, "n", 2);
    for (is_current, wanted) in [(true, "Added:a@2"), (false, "END")] {
        let mut feed = super::super::Session::open(Watch {
            is_current: Box::new(move || is_current),
            bookmarks: false,
            ..watch(&window, &words(0))
        });
        settle().await;
        assert_eq!(read(&mut feed), wanted);
    }
}

/// A log of everything that `append` makes.
struct Log;

impl Archive for Log {
    fn read(&self, _: &TypeName, span: Span) -> Result<Vec<Event>, ArchiveError> {
        let revisions = span.after.next().0..=span.through.0;
        let event =
            |revision| Event::new(Change::Created, object("n", "a", revision), None, Timestamp(revision));
        Ok(revisions.map(event).collect())
    }
}

#[actix::test]
async fn what_the_log_had_is_made_ready_also_where_the_body_waits() {
    let window = Window::new(Revision(1), 1)
        .with_archive(Some(ArchiveReader::new(Arc::new(Log), TypeName::new("pods"))));
    let window = Arc::new(window);
    for revision in 2..=4 {
        append(&window, "n", revision);
    }
    let encoder = words(0);
    encoder.unready.set(2);
    let mut feed = Session::open(watch(&window, &encoder));
    let mut text = String::new();
    let all = async {
        while !text.contains("@4") {
            text.push_str(std::str::from_utf8(&feed.next().await.unwrap()).unwrap());
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("the watch goes on");
    assert_eq!(text.trim_end(), "Added:a@2 Added:a@3 Added:a@4");
}

#[actix::test]
async fn a_session_without_memory_waits_and_loses_nothing() {
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
            Timestamp(0),
        )));
    }
    let account = memory.open("user").unwrap();
    let encoder = words(LARGE);
    let initial = Box::new(std::iter::once(large(1)));
    let (mut session, mut feed) = session(Watch { initial, account, ..watch(&window, &encoder) });
    let mut read = Vec::new();
    for _ in 0..3 {
        let other = frames.take(LARGE).unwrap();
        assert_eq!(session.turn(), AfterTurn::Pause, "there is no memory");
        assert_eq!(feed.next().now_or_never(), None);
        drop(other);
        session.turn();
        let frame = feed.next().now_or_never().flatten().expect("a frame");
        let name = frame.split(|byte| !b":@".contains(byte) && !byte.is_ascii_alphanumeric()).next();
        read.push(String::from_utf8_lossy(name.unwrap_or_default()).into_owned());
    }
    assert_eq!(read, ["Added:a@1", "Modified:a@2", "Modified:a@3"]);
    assert_eq!(encoder.encoded.get(), 3, "each was encoded once");
}

fn large(name: &str, revision: u64) -> Arc<Object> {
    object_of(Bytes::from(vec![b' '; ENCODED_ASIDE_BYTES + 1]), "n", name, revision)
}

/// The frame that the session would wait for.
fn finish_encoding(session: &mut WatchProgress) {
    let frame = session.frame_aside.take().and_then(FutureExt::now_or_never).unwrap();
    session.encoded(frame);
}

#[actix::test]
async fn frames_of_large_objects_are_written_aside_and_sent_in_order() {
    let (window, words) = (window(), words(0));
    words.is_slow.set(true);
    let initial = [object("n", "small", 1), large("large", 2), object("n", "last", 3)];
    let added = |object| Arc::new(Event::new(Change::Created, object, None, Timestamp(1)));
    window.append(added(large("event", 4)));
    window.append(added(object("n", "end", 5)));
    let watch =
        Watch { initial: Box::new(initial.into_iter()), cursor: Revision(3), ..watch(&window, &words) };
    let (mut session, mut feed) = session(watch);
    assert_eq!(session.turn(), AfterTurn::Encode);
    assert_eq!(read(&mut feed), "Added:small@1");
    assert_eq!(session.turn(), AfterTurn::Wait, "nothing passes the large one by");
    session.bookmark();
    assert_eq!(read(&mut feed), "", "the client does not have all objects of the start");
    finish_encoding(&mut session);
    assert_eq!(session.turn(), AfterTurn::Encode);
    assert_eq!(read(&mut feed), "Added:large@2 Added:last@3");
    session.bookmark();
    assert_eq!(read(&mut feed), "Bookmark@3", "it has not come to the event yet");
    finish_encoding(&mut session);
    assert_eq!(session.turn(), AfterTurn::Wait);
    assert_eq!(read(&mut feed), "Added:event@4 Added:end@5");
    assert_eq!(words.written_aside.get(), 2);
}

#[actix::test]
async fn a_frame_that_is_written_is_not_written_aside_again() {
    let (window, words) = (window(), words(0));
    window.append(Arc::new(Event::new(Change::Created, large("a", 2), None, Timestamp(1))));
    words.is_slow.set(true);
    let start = || Watch { initial: Box::new([large("b", 1)].into_iter()), ..watch(&window, &words) };
    let [(mut one, mut read_by_one), (mut other, mut read_by_other)] = [session(start()), session(start())];
    for turn in [&mut one, &mut other] {
        assert_eq!(turn.turn(), AfterTurn::Encode);
        finish_encoding(turn);
    }
    assert_eq!(one.turn(), AfterTurn::Encode);
    finish_encoding(&mut one);
    assert_eq!((one.turn(), other.turn()), (AfterTurn::Wait, AfterTurn::Wait), "the event is written");
    assert_eq!(read(&mut read_by_one), "Added:b@1 Added:a@2");
    assert_eq!(read(&mut read_by_other), "Added:b@1 Added:a@2");
    assert_eq!(words.written_aside.get(), 3);
}

#[actix::test]
async fn a_watch_that_ends_does_not_wait_for_a_frame() {
    let (window, words) = (window(), words(0));
    words.is_slow.set(true);
    let watch = Watch { initial: Box::new([large("a", 1)].into_iter()), ..watch(&window, &words) };
    let (mut session, mut feed) = session(watch);
    assert_eq!(session.turn(), AfterTurn::Encode);
    session.finish();
    finish_encoding(&mut session);
    assert_eq!((session.turn(), read(&mut feed).as_str()), (AfterTurn::Stop, "END"));
}
