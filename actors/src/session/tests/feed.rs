//! Tests of feeds: sessions with their actor and a broadcaster.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::StreamExt;

use super::*;
use crate::archive::{Archive, ArchiveError, ArchiveReader, Span};
use crate::notifier::ChangeNotifiers;
use crate::session::Session;
use crate::session::feed::Feed;
use crate::session_waker::tests::WakeCounter;

async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// Everything that can be read now; `END` if the stream has ended.
fn read(feed: &mut Feed) -> String {
    let mut text = String::new();
    loop {
        match feed.next().now_or_never() {
            None => return text.trim_end().to_owned(),
            Some(None) => return format!("{text}END"),
            Some(Some(chunk)) => text.push_str(std::str::from_utf8(&chunk).unwrap()),
        }
    }
}

/// A type with a broadcaster, and a watch of it.
struct Live {
    window: Arc<Window>,
    notifiers: ChangeNotifiers,
    feed: Feed,
    sessions: LiveSessions,
}

impl Live {
    fn open(encoder: &Rc<Words>) -> Live {
        let (window, notifiers, sessions) = (window(), ChangeNotifiers::default(), LiveSessions::default());
        let broadcaster = Broadcaster::spawn(&notifiers, &Fatal::new());
        let feed = Session::open(Watch { broadcaster, live: sessions.clone(), ..watch(&window, encoder) });
        Live { window, notifiers, feed, sessions }
    }

    /// Appends an event and lets all tasks run.
    async fn append(&self, revision: u64) {
        append(&self.window, "n", revision);
        self.notifiers.notify(&TypeName::new("pods"));
        settle().await;
    }
}

#[actix::test]
async fn feed_wakes_its_task_once_per_burst_and_reads_everything() {
    let mut live = Live::open(&words(0));
    let task = Arc::new(WakeCounter::default());
    let waker = Waker::from(Arc::clone(&task));
    let mut context = Context::from_waker(&waker);
    assert!(live.feed.poll_next_unpin(&mut context).is_pending());
    settle().await;
    for revision in 2..5 {
        live.append(revision).await;
    }
    assert_eq!(task.count(), 1);
    let chunk = live.feed.poll_next_unpin(&mut context);
    assert_eq!(chunk, Poll::Ready(Some(Bytes::from_static(b"Added:a@2 Added:a@3 Added:a@4 "))));
    assert!(live.feed.poll_next_unpin(&mut context).is_pending());
    live.append(5).await;
    assert_eq!(task.count(), 2);
}

#[actix::test]
async fn stalled_feed_resumes_from_its_cursor() {
    let mut live = Live::open(&words(0));
    assert_eq!(read(&mut live.feed), "");
    settle().await;
    // The first one wakes the task, the others count.
    let events = STALLED_AFTER_EVENTS as u64 + 1;
    for revision in 2..2 + events {
        live.append(revision).await;
    }
    assert_eq!(live.sessions.stalled(), 1);
    assert_eq!(read(&mut live.feed).matches("Added").count(), STALLED_AFTER_EVENTS + 1);
    assert_eq!(live.sessions.stalled(), 0);
}

#[actix::test]
async fn dropped_feed_ends_its_session_and_its_subscription() {
    for is_started in [false, true] {
        let mut live = Live::open(&words(0));
        if is_started {
            assert_eq!(read(&mut live.feed), "");
        }
        assert_eq!(live.sessions.count(), 1);
        drop(live.feed);
        settle().await;
        assert_eq!((live.sessions.count(), Arc::strong_count(&live.window)), (0, 1));
    }
}

#[actix::test]
async fn feed_larger_than_its_queue_is_read_to_the_end() {
    let encoder = words(SESSION_BYTES / 2);
    let mut live = Live::open(&encoder);
    for revision in 2..12 {
        append(&live.window, "n", revision);
    }
    let mut bytes = 0;
    while bytes < 5 * SESSION_BYTES {
        bytes += live.feed.next().await.unwrap().len();
    }
    assert_eq!(encoder.encoded.get(), 10);
}

#[actix::test]
async fn watch_of_a_replaced_resource_ends_immediately() {
    let window = window();
    append(&window, "n", 2);
    for (is_current, expected) in [(true, "Added:a@2"), (false, "END")] {
        let mut feed = Session::open(Watch {
            is_current: Box::new(move || is_current),
            bookmarks: false,
            ..watch(&window, &words(0))
        });
        assert_eq!(read(&mut feed), expected);
    }
}

/// A log of everything that `append` makes.
struct Log;

impl Archive for Log {
    fn read(&self, _: &TypeName, span: Span) -> Result<Vec<Event>, ArchiveError> {
        let revisions = span.after.next().0..=span.through.0;
        let event =
            |revision| Event::new(Change::Created, object("n", "a", revision), None, WriteTime::default());
        Ok(revisions.map(event).collect())
    }
}

#[actix::test]
async fn archived_events_are_prepared_before_they_are_sent() {
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
