//! Delivery of events from the window to watch clients: in any interleaving, each watch sends exactly the events of its filter,
//! in order, without gap or repeat.
//!
//! Everything runs on one thread, which yields until no actor makes progress, so no test depends on time.

mod harness;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use actix::Addr;
use bytes::Bytes;
use futures::StreamExt;
use harness::*;
use pilothouse_actors::archive::{Archive, ArchiveError, ArchiveReader, Span};
use pilothouse_actors::broadcaster::{Broadcaster, CloseAll};
use pilothouse_actors::event::{Change, Event};
use pilothouse_actors::fatal::Fatal;
use pilothouse_actors::limits::CLOSING_PAUSE;
use pilothouse_actors::log_time::{LogTime, WriteTime};
use pilothouse_actors::notifier::ChangeNotifiers;
use pilothouse_actors::point_in_time::{PointInTimeError, snapshot_at};
use pilothouse_actors::session::feed::Feed;
use pilothouse_actors::session::{EventEncoder, LiveSessions, Session, Watch};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::Position;
use pilothouse_actors::watch_event::WatchEventType;
use pilothouse_actors::watch_memory::{WatchAccount, WatchMemory};
use pilothouse_actors::window::{Read, Window};
use pilothouse_types::clock::Clock;
use pilothouse_types::filter::{FieldRule, Filter, LabelRule};
use pilothouse_types::lock::Lock;
use pilothouse_types::object::{Draft, Key, Object, Pairs, Revision, TypeName, Variant};
use proptest::prelude::*;

fn in_system<T>(test: impl Future<Output = T>) -> T {
    actix::System::new().block_on(test)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn watch_delivers_exactly_the_events_of_its_filter(steps in steps()) {
        in_system(async {
            let mut harness = Harness::new(64 << 20);
            harness.run(steps).await;
            // The first client does not read until all others have received everything.
            harness.drain(|index| index != 0).await;
            for client in harness.clients.iter().skip(1).filter(|client| client.feed.is_some()) {
                assert_eq!(client.lines(), client.expected);
            }
            harness.drain(|index| index == 0).await;
            for client in &harness.clients {
                let received = client.lines();
                let known = if client.feed.is_some() { client.expected.len() } else { received.len() };
                // A client that disconnected may have read a part of its lines.
                assert_eq!(received[..], client.expected[..known]);
                assert!(!client.ended);
            }
            assert_eq!(harness.live.count(), harness.watching());
        });
    }

    #[test]
    fn watch_behind_the_window_expires_without_later_events(steps in steps()) {
        in_system(async {
            let mut harness = Harness::new(2_000);
            harness.run(steps).await;
            harness.drain(|_| true).await;
            for client in harness.clients.iter().filter(|client| client.feed.is_some()) {
                let mut received = client.lines();
                if client.ended {
                    assert_eq!(received.pop(), Some(EXPIRED));
                    assert_eq!(received[..], client.expected[..received.len()]);
                } else {
                    assert_eq!(received, client.expected);
                }
            }
            assert_eq!(harness.live.count(), harness.watching());
        });
    }
}

fn in_namespace(namespace: &str) -> Filter {
    Filter { namespace: Some(namespace.into()), ..Filter::default() }
}

#[test]
fn dropped_feed_ends_session_immediately() {
    in_system(async {
        let mut harness = Harness::new(1 << 20);
        for _ in 0..100 {
            harness.open(Filter::everything(), 0);
        }
        harness.drain(|_| true).await;
        assert_eq!(harness.live.count(), 100);
        harness.clients.truncate(1);
        settle().await;
        assert_eq!(harness.live.count(), 1);
        assert_eq!(harness.holders(), 2);
        harness.clients.clear();
        settle().await;
        assert_eq!(harness.live.count(), 0);
        assert_eq!(harness.holders(), 0, "the broadcaster has forgotten the type");
    });
}

#[test]
fn feed_dropped_before_session_start_leaves_no_session() {
    in_system(async {
        let mut harness = Harness::new(1 << 20);
        harness.open(Filter::everything(), 0);
        harness.clients.clear();
        settle().await;
        assert_eq!((harness.live.count(), harness.holders()), (0, 0));
    });
}

/// An encoder that panics.
struct Broken;

impl EventEncoder for Broken {
    fn variant(&self) -> Variant {
        Variant(9)
    }

    #[expect(clippy::panic, reason = "the bug that the test is about")]
    fn frame(&self, _: WatchEventType, object: &Object) -> Bytes {
        panic!("cannot write {object:?}")
    }

    fn bookmark_frame(&self, _: Revision, _: bool) -> Bytes {
        Bytes::new()
    }

    fn expired_frame(&self, _: Revision, _: Revision) -> Bytes {
        Bytes::new()
    }

    fn unreadable_frame(&self, _: &Object, _: bool) -> Bytes {
        Bytes::new()
    }
}

#[test]
fn session_panic_ends_only_its_own_watch() {
    in_system(async {
        let mut harness = Harness::new(1 << 20);
        harness.open_as(Filter::everything(), 0, Rc::new(Broken));
        harness.open(Filter::everything(), 0);
        harness.drain(|_| true).await;
        harness.write(0, Some(ObjectState { app: "web", node: "1" }));
        harness.notifiers.notify(&harness.type_name);
        harness.drain(|_| true).await;
        assert!(harness.clients[0].ended && harness.clients[0].received.is_empty());
        assert_eq!(harness.clients[1].lines(), harness.clients[1].expected);
        assert_eq!((harness.live.count(), harness.holders()), (1, 2));
    });
}

#[test]
fn filtered_watch_survives_window_overflow_by_other_events() {
    in_system(async {
        let mut harness = Harness::new(2_000);
        harness.open(in_namespace("x"), 0);
        harness.drain(|_| true).await;
        settle().await;
        let state = || Some(ObjectState { app: "web", node: "1" });
        for _ in 0..500 {
            harness.write(3, state());
            harness.notifiers.notify(&harness.type_name);
            settle().await;
        }
        assert!(harness.window.floor() > Revision(400));
        harness.write(0, state());
        harness.notifiers.notify(&harness.type_name);
        harness.drain(|_| true).await;
        assert_eq!(harness.clients[0].lines(), ["Added x/a@502 on 1."]);
    });
}

/// An archive with all events that returns two at a time.
#[derive(Default)]
struct MemoryArchive(Lock<Vec<ArchivedEvent>>);

/// Change, object and previous object of an event.
type ArchivedEvent = (Change, Arc<Object>, Option<Arc<Object>>);

impl Archive for MemoryArchive {
    fn read(&self, _: &TypeName, span: Span) -> Result<Vec<Event>, ArchiveError> {
        let archive = self.0.lock();
        let is_within = |object: &Object| object.revision > span.after && object.revision <= span.through;
        let events = archive.iter().filter(|(_, object, _)| is_within(object)).take(2);
        let event = |(change, object, previous): &ArchivedEvent| {
            Event::new(*change, Arc::clone(object), previous.clone(), WriteTime::default())
        };
        Ok(events.map(event).collect())
    }
}

#[test]
fn watch_behind_the_window_reads_archive_then_window() {
    in_system(async {
        let archive = Arc::new(MemoryArchive::default());
        let mut harness = Harness::new(2_000);
        let archive_reader =
            ArchiveReader::new(Arc::clone(&archive) as Arc<dyn Archive>, harness.type_name.clone());
        harness.window = Arc::new(Window::new(Revision(1), 2_000).with_archive(Some(archive_reader)));
        for number in 0..60 {
            harness.write(
                number % KEYS.len(),
                (number % 7 != 0).then_some(ObjectState { app: "web", node: "1" }),
            );
            if let Read::Events(events) = harness.window.read(Revision(harness.window.head().0 - 1), 1) {
                let events = events.iter();
                let copies = events.map(|event| (event.change, event.object.clone(), event.previous.clone()));
                archive.0.lock().extend(copies);
            }
        }
        assert_eq!(harness.window.floor(), Revision(1));
        assert!(harness.window.extent().archived > 30);
        let present = harness.objects.iter().flatten().map(|object| (object.key.clone(), Arc::clone(object)));
        let snapshot = Snapshot { objects: present.collect(), ..Snapshot::empty(harness.window.head()) };
        let (window, now) = (Arc::clone(&harness.window), LogTime::ZERO);
        let position = Position { window, snapshot, past: None, history: std::time::Duration::MAX, now };
        // The bytes that are read from the log for an old state are reserved first.
        assert_eq!(
            snapshot_at(&position, Revision(4), |_| false).await.unwrap_err(),
            PointInTimeError::TooLarge
        );
        let mut bytes = 0;
        let counted = |added| {
            bytes += added;
            true
        };
        let past_state = snapshot_at(&position, Revision(4), counted).await.unwrap();
        let (_, past_objects) = harness.past.iter().find(|(revision, _)| *revision == Revision(4)).unwrap();
        let actual: Vec<_> = past_state.iter().map(|object| object.revision).collect();
        let mut expected: Vec<_> = past_objects.iter().flatten().collect();
        expected.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(actual, expected.iter().map(|object| object.revision).collect::<Vec<_>>());
        assert!(bytes >= expected.iter().map(|object| object.bytes.len()).sum());
        harness.open(Filter::everything(), harness.past.len());
        let client = &mut harness.clients[0];
        let mut feed = client.feed.take().unwrap();
        while client.received.lines().count() < client.expected.len() {
            client.received.push_str(&String::from_utf8_lossy(&feed.next().await.unwrap()));
        }
        assert_eq!(client.lines(), client.expected);
        // Later events come from memory.
        harness.write(0, Some(ObjectState { app: "db", node: "2" }));
        harness.notifiers.notify(&harness.type_name);
        assert!(feed.next().await.is_some());
        assert_eq!(harness.live.stalled(), 0);
    });
}

#[test]
fn close_all_ends_watches_after_pending_events() {
    in_system(async {
        let mut harness = Harness::new(1 << 20);
        harness.write(0, Some(ObjectState { app: "web", node: "1" }));
        harness.open(Filter::everything(), 1);
        settle().await;
        harness.broadcaster.send(CloseAll { within: std::time::Duration::ZERO }).await.unwrap();
        harness.open(Filter::everything(), 0);
        harness.drain(|_| true).await;
        for client in &harness.clients {
            assert!(client.ended);
            assert_eq!(client.lines(), client.expected);
        }
        assert_eq!(harness.live.count(), 0);
    });
}

#[test]
fn close_all_within_a_time_ends_some_watches_after_others() {
    in_system(async {
        let mut harness = Harness::new(1 << 20);
        // More than are closed at once.
        for _ in 0..25 {
            harness.open(Filter::everything(), 0);
        }
        // They subscribe when they are read for the first time.
        harness.drain(|_| true).await;
        settle().await;
        let (clock, within) = (Clock::system(), std::time::Duration::from_millis(200));
        let begun = clock.moment();
        harness.broadcaster.send(CloseAll { within }).await.unwrap();
        assert!(clock.elapsed(begun) >= CLOSING_PAUSE * 2, "10, 10 and 5 of them, with pauses");
        harness.drain(|_| true).await;
        assert!(harness.clients.iter().all(|client| client.ended));
        assert_eq!(harness.live.count(), 0);
    });
}

#[test]
fn watch_deadline_sends_bookmark_and_ends() {
    in_system(async {
        let harness = Harness::new(1 << 20);
        let mut feed = Session::open(Watch {
            type_name: harness.type_name.clone(),
            window: Arc::clone(&harness.window),
            initial: Box::new(std::iter::empty()),
            cursor: Revision(1),
            filter: Filter::everything(),
            encoder: Rc::new(Lines),
            broadcaster: harness.broadcaster.clone(),
            deadline: Some(std::time::Duration::from_millis(1)),
            bookmarks: true,
            initial_end_bookmark: false,
            live: harness.live.clone(),
            account: account(),
            is_current: Box::new(|| true),
        });
        assert_eq!(feed.next().await, Some(Bytes::from_static(b"bookmark 1\n")));
        assert_eq!(feed.next().await, None);
    });
}
