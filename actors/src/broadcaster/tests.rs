use bytes::Bytes;
use pilothouse_types::object::{Draft, Key, Object, Pairs, Revision};

use super::*;
use crate::event::{Change, Event};
use crate::log_time::WriteTime;
use crate::session::LiveSessions;
use crate::session_waker::tests::WakeCounter;
use crate::session_waker::{Close, SessionWaker, WakeReasons};
use crate::watch_index::IndexKey;
use crate::window::Window;

fn object(name: &str, node: &str, revision: u64) -> Arc<Object> {
    let draft = Draft {
        key: Key::namespaced("n", name),
        bytes: Bytes::from_static(b"{}"),
        revision_offset: 1,
        item_offset: 1,
        labels: Pairs::default(),
        fields: Pairs::from_iter([("node", node)]),
    };
    Arc::new(Object::new(draft, Revision(revision)))
}

fn replaced(from: &str, to: &str, revision: u64) -> Arc<Event> {
    let previous = Some(object("a", from, revision - 1));
    Arc::new(Event::new(Change::Replaced, object("a", to, revision), previous, WriteTime::default()))
}

fn waker() -> Arc<SessionWaker> {
    SessionWaker::new(LiveSessions::default())
}

fn reasons(waker: &SessionWaker) -> WakeReasons {
    waker.take_reasons().unwrap_or_default()
}

fn broadcaster() -> Broadcaster {
    struct NullActor;
    impl Actor for NullActor {
        type Context = Context<Self>;
    }
    impl Handler<Published> for NullActor {
        type Result = ();
        fn handle(&mut self, _: Published, _: &mut Self::Context) {}
    }
    Broadcaster::new(
        Arc::new(ChangeNotifier::new(NullActor.start().recipient())),
        ChangeNotifiers::default(),
        Fatal::new(),
    )
}

fn pods() -> TypeName {
    TypeName::new("pods")
}

/// Subscribes a session at revision 1 and returns its waker.
fn subscribe(
    broadcaster: &mut Broadcaster,
    window: &Arc<Window>,
    interest: IndexKey,
) -> (SubscriptionId, Arc<SessionWaker>) {
    let (id, waker) = (SubscriptionId::fresh(), waker());
    broadcaster.subscribe(Subscribe {
        id,
        type_name: pods(),
        window: Arc::clone(window),
        cursor: Revision(1),
        interest,
        waker: Arc::clone(&waker),
        bookmarks: true,
    });
    (id, waker)
}

fn node(value: &str) -> IndexKey {
    IndexKey::Field((None, "node".into()), value.into())
}

#[actix::test]
async fn event_wakes_sessions_that_match_before_or_after_the_change() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    let [(_, one), (_, two), (_, three)] =
        ["1", "2", "3"].map(|value| subscribe(&mut broadcaster, &window, node(value)));
    window.append(replaced("3", "3", 2));
    window.append(replaced("1", "2", 5));
    broadcaster.notifier.notify(&pods());
    assert!(broadcaster.find_sessions().is_empty());
    assert_eq!(reasons(&one).events_after, Some(Revision(4)));
    assert_eq!(reasons(&two).events_after, Some(Revision(4)));
    assert_eq!(reasons(&three).events_after, Some(Revision(1)));
    broadcaster.notifier.notify(&pods());
    broadcaster.find_sessions();
    assert_eq!(reasons(&one).events_after, None, "an event is announced once");
}

#[actix::test]
async fn session_behind_the_broadcaster_is_woken_on_subscribe() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    window.append(replaced("1", "1", 2));
    let (_, late) = subscribe(&mut broadcaster, &window, node("1"));
    assert_eq!(reasons(&late).events_after, Some(Revision(1)));
}

#[actix::test]
async fn burst_of_events_is_dispatched_in_turns() {
    let window = Arc::new(Window::new(Revision(1), 1 << 30));
    let mut broadcaster = broadcaster();
    let (_, last) = subscribe(&mut broadcaster, &window, node("last"));
    for revision in 0..BROADCAST_EVENTS_PER_TURN as u64 {
        window.append(replaced("1", "1", revision + 2));
    }
    let newest = BROADCAST_EVENTS_PER_TURN as u64 + 2;
    window.append(replaced("1", "last", newest));
    broadcaster.notifier.notify(&pods());
    let unfinished = broadcaster.find_sessions();
    assert_eq!(unfinished, [pods()]);
    assert_eq!(reasons(&last).events_after, None);
    broadcaster.notifier.notify(&pods());
    assert!(broadcaster.find_sessions().is_empty());
    assert_eq!(reasons(&last).events_after, Some(Revision(newest - 1)));
}

#[actix::test]
async fn many_sessions_are_woken_in_turns_and_each_once() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let notifiers = ChangeNotifiers::default();
    let broadcaster = Broadcaster::spawn(&notifiers, &Fatal::new());
    let task = Arc::new(WakeCounter::default());
    let mut crowd = Vec::new();
    for _ in 0..3 * WAKES_PER_TURN {
        let waker = waker();
        task.wait_for(&waker);
        let subscribe = Subscribe {
            id: SubscriptionId::fresh(),
            type_name: pods(),
            window: Arc::clone(&window),
            cursor: Revision(1),
            interest: IndexKey::All,
            waker: Arc::clone(&waker),
            bookmarks: false,
        };
        broadcaster.send(subscribe).await.unwrap();
        crowd.push(waker);
    }
    window.append(replaced("1", "1", 2));
    notifiers.notify(&pods());
    let mut seen = Vec::new();
    while task.count() < 3 * WAKES_PER_TURN {
        tokio::task::yield_now().await;
        seen.push(task.count());
        // Events that come meanwhile wait until the pause is over.
        window.append(replaced("1", "1", 2 + seen.len() as u64));
        notifiers.notify(&pods());
    }
    assert!(seen.iter().any(|woken| (1..3 * WAKES_PER_TURN).contains(woken)), "{seen:?}");
    tokio::time::sleep(3 * LONGEST_PAUSE).await;
    assert_eq!(task.count(), 3 * WAKES_PER_TURN, "nobody has read the note yet");
}

#[actix::test]
async fn type_with_many_sessions_pauses_between_dispatches() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    let crowd: Vec<_> =
        (0..=WAKES_PER_TURN).map(|_| subscribe(&mut broadcaster, &window, node("1")).1).collect();
    let (_, single) = subscribe(&mut broadcaster, &window, node("2"));
    let dispatch = |broadcaster: &mut Broadcaster, from, to, revision| {
        window.append(replaced(from, to, revision));
        broadcaster.notifier.notify(&pods());
        assert!(broadcaster.find_sessions().is_empty());
    };
    let announced = |crowd: &[Arc<SessionWaker>]| {
        let mut revisions: Vec<_> = crowd.iter().map(|waker| reasons(waker).events_after).collect();
        revisions.dedup();
        revisions
    };
    dispatch(&mut broadcaster, "2", "2", 2);
    assert_eq!(reasons(&single).events_after, Some(Revision(1)));
    dispatch(&mut broadcaster, "1", "1", 3);
    assert_eq!(announced(&crowd), [Some(Revision(2))]);
    for revision in 4..6 {
        dispatch(&mut broadcaster, "1", "1", revision);
        assert_eq!(announced(&crowd), [None]);
    }
    broadcaster.end_pause(&pods());
    assert!(broadcaster.find_sessions().is_empty());
    assert_eq!(announced(&crowd), [Some(Revision(3))], "all that came meanwhile");
    broadcaster.end_pause(&pods());
    dispatch(&mut broadcaster, "1", "1", 6);
    assert_eq!(announced(&crowd), [Some(Revision(5))], "at once after the pause");
    assert_eq!(pause_after(WAKES_PER_TURN), None);
    assert_eq!(pause_after(usize::MAX), Some(LONGEST_PAUSE));
}

#[actix::test]
async fn lost_events_wake_all_sessions_of_the_type() {
    let window = Arc::new(Window::new(Revision(1), 1));
    let mut broadcaster = broadcaster();
    let (_, idle) = subscribe(&mut broadcaster, &window, node("other"));
    window.append(replaced("1", "1", 2));
    window.append(replaced("1", "1", 3));
    broadcaster.notifier.notify(&pods());
    assert!(broadcaster.find_sessions().is_empty());
    assert_eq!(reasons(&idle).events_after, Some(Revision(1)));
    window.append(replaced("1", "1", 4));
    broadcaster.notifier.notify(&pods());
    broadcaster.find_sessions();
    assert_eq!(reasons(&idle).events_after, None, "they are announced once");
}

#[actix::test]
async fn last_unsubscribe_drops_the_type() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    let (id, gone) = subscribe(&mut broadcaster, &window, IndexKey::All);
    broadcaster.unsubscribe(&Unsubscribe { type_name: pods(), id });
    broadcaster.unsubscribe(&Unsubscribe { type_name: pods(), id });
    assert!(broadcaster.watchers_by_type.is_empty());
    window.append(replaced("1", "1", 2));
    broadcaster.notifier.notify(&pods());
    assert!(broadcaster.find_sessions().is_empty());
    assert_eq!(reasons(&gone).events_after, None);
}

#[actix::test]
async fn bookmark_is_requested_once_per_period_at_the_dispatched_revision() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    let (_, reader) = subscribe(&mut broadcaster, &window, node("other"));
    window.append(replaced("1", "1", 9));
    broadcaster.notifier.notify(&pods());
    broadcaster.find_sessions();
    let bookmarks: Vec<Revision> = (0..BOOKMARK_SLOTS)
        .filter_map(|_| {
            broadcaster.request_bookmarks();
            reasons(&reader).bookmark
        })
        .collect();
    assert_eq!(bookmarks, [Revision(9)]);
}

#[actix::test]
async fn close_all_closes_present_and_new_sessions() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    let (_, here) = subscribe(&mut broadcaster, &window, IndexKey::All);
    broadcaster.close_all();
    let (_, late) = subscribe(&mut broadcaster, &window, IndexKey::All);
    let at_once = Some(Close::AtOnce);
    assert_eq!((reasons(&here).close, reasons(&late).close), (at_once, at_once));
    assert_eq!(
        broadcaster.watchers_by_type.values().map(|watchers| watchers.members.len()).sum::<usize>(),
        1
    );
}

#[actix::test]
async fn recreated_type_closes_watches_of_the_old_window() {
    let former = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    let (_, old) = subscribe(&mut broadcaster, &former, IndexKey::All);
    let (_, new) = subscribe(&mut broadcaster, &Arc::new(Window::new(Revision(1), 1 << 20)), IndexKey::All);
    assert_eq!((reasons(&old).close, reasons(&new).close), (Some(Close::WhenCaughtUp), None));
}
