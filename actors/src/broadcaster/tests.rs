use bytes::Bytes;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::object::{Draft, Key, Object, Pairs, Revision};

use super::*;
use crate::event::{Change, Event};
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
    Arc::new(Event::new(Change::Replaced, object("a", to, revision), previous, Timestamp(0)))
}

fn waker() -> Arc<SessionWaker> {
    SessionWaker::new(LiveSessions::default())
}

fn reasons(waker: &SessionWaker) -> WakeReasons {
    waker.take_reasons().unwrap_or_default()
}

fn broadcaster() -> Broadcaster {
    struct Deaf;
    impl Actor for Deaf {
        type Context = Context<Self>;
    }
    impl Handler<Published> for Deaf {
        type Result = ();
        fn handle(&mut self, _: Published, _: &mut Self::Context) {}
    }
    Broadcaster::new(
        Arc::new(ChangeNotifier::new(Deaf.start().recipient())),
        ChangeNotifiers::default(),
        Fatal::new(),
    )
}

fn pods() -> TypeName {
    TypeName::new("pods")
}

/// Subscribes a session at revision 1 and returns its waker.
fn join(
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
async fn only_who_is_concerned_is_called_also_by_what_the_object_was() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    let [(_, one), (_, two), (_, three)] =
        ["1", "2", "3"].map(|value| join(&mut broadcaster, &window, node(value)));
    window.append(replaced("3", "3", 2));
    window.append(replaced("1", "2", 5));
    broadcaster.notifier.notify(&pods());
    assert!(broadcaster.find_concerned().is_empty());
    assert_eq!(reasons(&one).news_after, Some(Revision(4)));
    assert_eq!(reasons(&two).news_after, Some(Revision(4)));
    assert_eq!(reasons(&three).news_after, Some(Revision(1)));
    broadcaster.notifier.notify(&pods());
    broadcaster.find_concerned();
    assert_eq!(reasons(&one).news_after, None, "an event is announced once");
}

#[actix::test]
async fn who_joins_late_is_called_at_once() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    window.append(replaced("1", "1", 2));
    let (_, late) = join(&mut broadcaster, &window, node("1"));
    assert_eq!(reasons(&late).news_after, Some(Revision(1)));
}

#[actix::test]
async fn a_burst_is_handled_in_turns() {
    let window = Arc::new(Window::new(Revision(1), 1 << 30));
    let mut broadcaster = broadcaster();
    let (_, last) = join(&mut broadcaster, &window, node("last"));
    for revision in 0..BROADCAST_EVENTS_PER_TURN as u64 {
        window.append(replaced("1", "1", revision + 2));
    }
    let newest = BROADCAST_EVENTS_PER_TURN as u64 + 2;
    window.append(replaced("1", "last", newest));
    broadcaster.notifier.notify(&pods());
    let unfinished = broadcaster.find_concerned();
    assert_eq!(unfinished, [pods()]);
    assert_eq!(reasons(&last).news_after, None);
    broadcaster.notifier.notify(&pods());
    assert!(broadcaster.find_concerned().is_empty());
    assert_eq!(reasons(&last).news_after, Some(Revision(newest - 1)));
}

#[actix::test]
async fn a_crowd_is_called_in_turns_and_nobody_twice() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let notifiers = ChangeNotifiers::default();
    let broadcaster = Broadcaster::begin(&notifiers, &Fatal::new());
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
        // Events that come meanwhile wait until the rest is over.
        window.append(replaced("1", "1", 2 + seen.len() as u64));
        notifiers.notify(&pods());
    }
    assert!(seen.iter().any(|woken| (1..3 * WAKES_PER_TURN).contains(woken)), "{seen:?}");
    tokio::time::sleep(3 * LONGEST_PAUSE).await;
    assert_eq!(task.count(), 3 * WAKES_PER_TURN, "nobody has read the note yet");
}

#[actix::test]
async fn a_crowd_rests_and_hears_of_everything_then_and_a_few_do_not() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    let crowd: Vec<_> = (0..=WAKES_PER_TURN).map(|_| join(&mut broadcaster, &window, node("1")).1).collect();
    let (_, lonely) = join(&mut broadcaster, &window, node("2"));
    let hear = |broadcaster: &mut Broadcaster, from, to, revision| {
        window.append(replaced(from, to, revision));
        broadcaster.notifier.notify(&pods());
        assert!(broadcaster.find_concerned().is_empty());
    };
    let news = |crowd: &[Arc<SessionWaker>]| {
        let mut news: Vec<_> = crowd.iter().map(|one| reasons(one).news_after).collect();
        news.dedup();
        news
    };
    hear(&mut broadcaster, "2", "2", 2);
    assert_eq!(reasons(&lonely).news_after, Some(Revision(1)));
    hear(&mut broadcaster, "1", "1", 3);
    assert_eq!(news(&crowd), [Some(Revision(2))]);
    for revision in 4..6 {
        hear(&mut broadcaster, "1", "1", revision);
        assert_eq!(news(&crowd), [None]);
    }
    broadcaster.to_wake.clear();
    assert!(broadcaster.begin_pause(&pods()));
    broadcaster.end_pause(&pods());
    assert!(broadcaster.find_concerned().is_empty());
    assert_eq!(news(&crowd), [Some(Revision(3))]);
    broadcaster.to_wake.clear();
    assert!(!broadcaster.begin_pause(&pods()), "nothing has happened since");
    hear(&mut broadcaster, "1", "1", 6);
    assert_eq!(news(&crowd), [Some(Revision(5))]);
    assert_eq!(pause_after(WAKES_PER_TURN), None);
    assert_eq!(pause_after(usize::MAX), Some(LONGEST_PAUSE));
}

#[actix::test]
async fn when_events_are_lost_everyone_is_called() {
    let window = Arc::new(Window::new(Revision(1), 1));
    let mut broadcaster = broadcaster();
    let (_, idle) = join(&mut broadcaster, &window, node("other"));
    window.append(replaced("1", "1", 2));
    window.append(replaced("1", "1", 3));
    broadcaster.notifier.notify(&pods());
    assert!(broadcaster.find_concerned().is_empty());
    assert_eq!(reasons(&idle).news_after, Some(Revision(1)));
    window.append(replaced("1", "1", 4));
    broadcaster.notifier.notify(&pods());
    broadcaster.find_concerned();
    assert_eq!(reasons(&idle).news_after, None, "and only once");
}

#[actix::test]
async fn nothing_is_kept_for_a_type_that_nobody_follows() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    let (id, gone) = join(&mut broadcaster, &window, IndexKey::All);
    broadcaster.unsubscribe(&Unsubscribe { type_name: pods(), id });
    broadcaster.unsubscribe(&Unsubscribe { type_name: pods(), id });
    assert!(broadcaster.watchers_by_type.is_empty());
    window.append(replaced("1", "1", 2));
    broadcaster.notifier.notify(&pods());
    assert!(broadcaster.find_concerned().is_empty());
    assert_eq!(reasons(&gone).news_after, None);
}

#[actix::test]
async fn bookmarks_come_once_a_round_at_what_was_looked_up() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    let (_, reader) = join(&mut broadcaster, &window, node("other"));
    window.append(replaced("1", "1", 9));
    broadcaster.notifier.notify(&pods());
    broadcaster.find_concerned();
    let asked: Vec<Revision> = (0..BOOKMARK_SLOTS)
        .filter_map(|_| {
            broadcaster.ask_for_bookmarks();
            reasons(&reader).bookmark
        })
        .collect();
    assert_eq!(asked, [Revision(9)]);
}

#[actix::test]
async fn closing_ends_those_who_are_here_and_those_who_come() {
    let window = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    let (_, here) = join(&mut broadcaster, &window, IndexKey::All);
    broadcaster.close_all();
    let (_, late) = join(&mut broadcaster, &window, IndexKey::All);
    let at_once = Some(Close::AtOnce);
    assert_eq!((reasons(&here).close, reasons(&late).close), (at_once, at_once));
    assert_eq!(
        broadcaster.watchers_by_type.values().map(|watchers| watchers.members.len()).sum::<usize>(),
        1
    );
}

#[actix::test]
async fn a_type_that_comes_again_closes_the_watches_of_its_former_life() {
    let former = Arc::new(Window::new(Revision(1), 1 << 20));
    let mut broadcaster = broadcaster();
    let (_, old) = join(&mut broadcaster, &former, IndexKey::All);
    let (_, new) = join(&mut broadcaster, &Arc::new(Window::new(Revision(1), 1 << 20)), IndexKey::All);
    assert_eq!((reasons(&old).close, reasons(&new).close), (Some(Close::WhenCaughtUp), None));
}
