//! Who hears of a change: one broadcaster per HTTP worker thread knows the sessions of that thread and wakes those that
//! an event may interest.
//!
//! It holds no event and sends none. A store rings its [`Bell`]; it reads the window from a cursor of its own, looks the
//! event up in the [`Index`] and calls the sessions it finds; they read the window themselves. Sessions talk to it
//! ([`Subscribe`], [`Unsubscribe`]), and whoever stops the server ([`CloseAll`]) or changes what a type means ([`CloseType`]).
//!
//! Sessions are called a few at a time, and the other tasks of the thread have their turn in between. So a write is answered while
//! thousands still wait to hear of the last one, and who is called late finds more to tell at once: the busier the server, the
//! less each event costs. For the same reason a type whose news call a crowd rests after them if there are more by then, for as long
//! as its share of the thread asks: what happens meanwhile is one call with more to tell. Other types do not wait for it.
//!
//! Invariants: events of one type are looked up in order, none is left out, and a session is called for each that its
//! place in the index matches, before or after the change. Each message drains the bell first, so a ring that found the
//! mailbox full is not lost. A session waits at most once to be called.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::prelude::*;

use crate::bell::{Bell, Bells, Published};
use crate::fatal::Fatal;
use crate::interest::{Index, Interest};
use crate::limits::{
    BOOKMARK_EVERY, BOOKMARK_SLOTS, BROADCAST_EVENTS_PER_TURN, BROADCASTER_MAILBOX, CALLS_PER_TURN,
    LONGEST_REST, REST_PER_CALL,
};
use crate::object::{Revision, TypeName};
use crate::summons::Summons;
use crate::telling;
use crate::window::{Event, Read, Window};

/// Names a subscription. The session picks it, so that it can unsubscribe even when it ends before it was subscribed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionId(u64);

impl SubscriptionId {
    /// A name that no other subscription of this process has.
    pub fn fresh() -> SubscriptionId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SubscriptionId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Call me when something of interest happens. Answers nothing; the session is called at once if the type has moved past
/// its cursor. On Full the sender uses an address of its own, which has a slot of its own; on Closed the watch ends.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Subscribe {
    /// The name of the subscription.
    pub id: SubscriptionId,
    /// The type to hear of.
    pub type_name: TypeName,
    /// Its history.
    pub window: Arc<Window>,
    /// The session knows everything up to here.
    pub cursor: Revision,
    /// Where the session stands in the index.
    pub interest: Interest,
    /// How the session is called.
    pub summons: Arc<Summons>,
    /// Whether the session wants bookmarks.
    pub bookmarks: bool,
}

/// Call me no more. Answers nothing; unknown names are ignored. On Full as for [`Subscribe`]; on Closed nothing is left
/// to end.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Unsubscribe {
    /// The type of the subscription.
    pub type_name: TypeName,
    /// Its name.
    pub id: SubscriptionId,
}

/// The server stops: end all watches cleanly, and those that still come. Answers when all have been told. On Full the
/// sender waits; on Closed there is no watch.
#[derive(Message)]
#[rtype(result = "()")]
pub struct CloseAll;

/// What a type means has changed: end its watches cleanly, so that whoever still wants one begins anew. Answers nothing. On Full
/// the sender waits; on Closed there is no watch.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct CloseType(pub TypeName);

/// Finds and wakes the sessions of one thread. See the module text.
pub struct Broadcaster {
    bell: Arc<Bell>,
    /// Where the bell hangs, to take it down at the end.
    bells: Bells,
    fatal: Fatal,
    audiences: HashMap<TypeName, Audience>,
    /// Those who have news and were not called yet.
    to_call: Calls,
    /// Whether the next turn of calls is under way.
    is_calling: bool,
    phase: Phase,
    /// Whose turn it is to get a bookmark.
    slot: u32,
}

/// What is to be done, in the order in which the news came.
type Calls = VecDeque<Call>;

/// One entry of the calls.
enum Call {
    /// A session has news.
    Session(Arc<Summons>),
    /// All whom the news of this type concerned were called, and it may rest.
    Rest(TypeName, Duration),
}

/// Whether watches may still begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// They may.
    Serving,
    /// The server stops; a watch that begins now is closed at once.
    Closing,
}

impl Broadcaster {
    /// Starts the broadcaster of this thread and hangs up its bell. `fatal` is raised if it dies: without it the watches
    /// of the thread would stay open and hear of nothing.
    pub fn begin(bells: &Bells, fatal: &Fatal) -> Addr<Broadcaster> {
        Broadcaster::create(|context| {
            let bell = bells.add(Bell::new(context.address().recipient()));
            Broadcaster::new(bell, bells.clone(), fatal.clone())
        })
    }

    fn new(bell: Arc<Bell>, bells: Bells, fatal: Fatal) -> Broadcaster {
        Broadcaster {
            bell,
            bells,
            fatal,
            audiences: HashMap::new(),
            to_call: Calls::new(),
            is_calling: false,
            phase: Phase::Serving,
            slot: 0,
        }
    }
}

impl Drop for Broadcaster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fatal.raise("a broadcaster panicked".to_owned());
        }
    }
}

impl Actor for Broadcaster {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(BROADCASTER_MAILBOX);
        context.run_interval(BOOKMARK_EVERY / BOOKMARK_SLOTS, |broadcaster, context| {
            broadcaster.hear(context);
            broadcaster.ask_for_bookmarks();
        });
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.bells.remove(&self.bell);
        self.close_all();
        // Whoever waits to be called would not be called for that.
        for call in self.to_call.drain(..) {
            if let Call::Session(summons) = call {
                summons.call();
            }
        }
    }
}

impl Handler<Published> for Broadcaster {
    type Result = ();

    fn handle(&mut self, _: Published, context: &mut Self::Context) {
        self.hear(context);
    }
}

impl Handler<Subscribe> for Broadcaster {
    type Result = ();

    fn handle(&mut self, subscribe: Subscribe, context: &mut Self::Context) {
        self.hear(context);
        self.subscribe(subscribe);
    }
}

impl Handler<Unsubscribe> for Broadcaster {
    type Result = ();

    fn handle(&mut self, unsubscribe: Unsubscribe, context: &mut Self::Context) {
        self.hear(context);
        self.unsubscribe(&unsubscribe);
    }
}

impl Handler<CloseAll> for Broadcaster {
    type Result = ();

    fn handle(&mut self, _: CloseAll, context: &mut Self::Context) {
        self.hear(context);
        self.close_all();
    }
}

impl Handler<CloseType> for Broadcaster {
    type Result = ();

    fn handle(&mut self, CloseType(type_name): CloseType, context: &mut Self::Context) {
        self.hear(context);
        if let Some(audience) = self.audiences.get(&type_name) {
            audience.each(|member| member.summons.close());
        }
    }
}

impl Broadcaster {
    /// Drains the bell. What is more than a turn may do is rung again, after the thread's other tasks had theirs.
    fn hear(&mut self, context: &mut Context<Self>) {
        let unfinished = self.find_interested();
        self.call_some(context);
        if !unfinished.is_empty() {
            let later = tokio::task::yield_now().into_actor(self).map(move |(), broadcaster, _| {
                for type_name in &unfinished {
                    broadcaster.bell.ring(type_name);
                }
            });
            context.spawn(later);
        }
    }

    /// Calls some of those who have news, and the others in turns to come.
    fn call_some(&mut self, context: &mut Context<Self>) {
        if self.is_calling {
            return;
        }
        for _ in 0..CALLS_PER_TURN {
            match self.to_call.pop_front() {
                None => break,
                Some(Call::Session(summons)) => summons.call(),
                Some(Call::Rest(type_name, _)) if !self.begin_rest(&type_name) => {}
                Some(Call::Rest(type_name, rest)) => {
                    context.run_later(rest, move |broadcaster, context| {
                        broadcaster.end_rest(&type_name);
                        broadcaster.hear(context);
                    });
                }
            }
        }
        if !self.to_call.is_empty() {
            self.is_calling = true;
            let later = tokio::task::yield_now().into_actor(self).map(|(), broadcaster, context| {
                broadcaster.is_calling = false;
                broadcaster.call_some(context);
            });
            context.spawn(later);
        }
    }

    /// Looks up the events of the types that were rung; returns those types that have more of them.
    fn find_interested(&mut self) -> Vec<TypeName> {
        let mut rung = self.bell.drain();
        rung.retain(|type_name| {
            let Some(audience) = self.audiences.get_mut(type_name) else { return false };
            if audience.is_resting {
                audience.is_rung = true;
                return false;
            }
            let before = self.to_call.len();
            let is_all = audience.advance(BROADCAST_EVENTS_PER_TURN, &mut self.to_call);
            if let Some(rest) = rest_after(self.to_call.len() - before) {
                self.to_call.push_back(Call::Rest(type_name.clone(), rest));
                (audience.is_resting, audience.is_rung) = (true, !is_all);
                return false;
            }
            !is_all
        });
        rung
    }

    /// Whether a type rests whose crowd was called: only if there are news already. Else those that come next need not wait.
    fn begin_rest(&mut self, type_name: &TypeName) -> bool {
        let Some(audience) = self.audiences.get_mut(type_name) else { return false };
        audience.is_resting = audience.is_rung;
        audience.is_rung
    }

    fn end_rest(&mut self, type_name: &TypeName) {
        let Some(audience) = self.audiences.get_mut(type_name) else { return };
        audience.is_resting = false;
        if std::mem::take(&mut audience.is_rung) {
            self.bell.ring(type_name);
        }
    }

    fn subscribe(&mut self, subscribe: Subscribe) {
        if self.phase == Phase::Closing {
            subscribe.summons.close();
            return;
        }
        let Subscribe { id, type_name, window, cursor, interest, summons, bookmarks } = subscribe;
        let audience = self.audiences.entry(type_name).or_insert_with(|| Audience::new(Arc::clone(&window)));
        if !Arc::ptr_eq(&audience.window, &window) {
            // The type went and came again: nothing will ever be appended to the window of those who are here.
            audience.each(|member| member.summons.close());
            *audience = Audience::new(window);
        }
        if cursor < audience.cursor {
            // Those events were looked up before this session stood in the index.
            summons.announce(cursor);
        }
        audience.index.insert(id.0, &interest, Arc::clone(&summons));
        audience.members.insert(id, Member { interest, summons, bookmarks });
    }

    fn unsubscribe(&mut self, unsubscribe: &Unsubscribe) {
        let Some(audience) = self.audiences.get_mut(&unsubscribe.type_name) else { return };
        if let Some(member) = audience.members.remove(&unsubscribe.id) {
            audience.index.remove(unsubscribe.id.0, &member.interest);
        }
        if audience.members.is_empty() {
            self.audiences.remove(&unsubscribe.type_name);
        }
    }

    fn close_all(&mut self) {
        self.phase = Phase::Closing;
        for audience in self.audiences.values() {
            audience.each(|member| member.summons.close());
        }
    }

    fn ask_for_bookmarks(&mut self) {
        self.slot = (self.slot + 1) % BOOKMARK_SLOTS;
        let slot = u64::from(self.slot);
        for audience in self.audiences.values() {
            let due = |id: &SubscriptionId| id.0 % u64::from(BOOKMARK_SLOTS) == slot;
            for member in audience.members.iter().filter(|(id, m)| m.bookmarks && due(id)).map(|(_, m)| m) {
                member.summons.ask_for_bookmark(audience.cursor);
            }
        }
    }
}

/// How long a type rests whose news call so many. Those who are called in one turn are no crowd.
fn rest_after(calls: usize) -> Option<Duration> {
    let rest = REST_PER_CALL.saturating_mul(u32::try_from(calls).unwrap_or(u32::MAX));
    (calls > CALLS_PER_TURN).then_some(rest.min(LONGEST_REST))
}

/// The sessions that follow one type. It goes when the last of them leaves.
struct Audience {
    window: Arc<Window>,
    /// All events up to here have been looked up.
    cursor: Revision,
    index: Index<Arc<Summons>>,
    members: HashMap<SubscriptionId, Member>,
    /// Whether a crowd is being called, or was a moment ago: news wait.
    is_resting: bool,
    /// Whether there are such news.
    is_rung: bool,
}

/// One session.
struct Member {
    interest: Interest,
    summons: Arc<Summons>,
    bookmarks: bool,
}

impl Audience {
    /// Begins at the newest event: a session that joins reads what came before it on its own.
    fn new(window: Arc<Window>) -> Audience {
        let cursor = window.head();
        let index = Index::default();
        Audience { window, cursor, index, members: HashMap::new(), is_resting: false, is_rung: false }
    }

    fn each(&self, act: impl FnMut(&Member)) {
        self.members.values().for_each(act);
    }

    /// Looks up at most `most` events, and adds those who have news to the calls; whether that were all events there are.
    fn advance(&mut self, most: usize, calls: &mut Calls) -> bool {
        // Before the read: every event up to this head is in what the read returns.
        let head = self.window.head();
        let Read::Events(events) = self.window.read(self.cursor, most) else {
            // Nobody can tell any more whom the lost events concerned. Each session reads from where they began and
            // finds out whether it has missed something.
            self.each(|member| note_news(&member.summons, self.cursor, calls));
            self.cursor = head;
            return true;
        };
        for event in &events {
            self.announce(event, calls);
            self.cursor = event.revision();
        }
        let all = events.len() < most;
        if all {
            self.cursor = self.cursor.max(head);
        }
        all
    }

    fn announce(&self, event: &Event, calls: &mut Calls) {
        let after = Revision(event.revision().0.saturating_sub(1));
        let (was, is) = (telling::before(event), telling::after(event));
        let mut note = |summons: &Arc<Summons>| note_news(summons, after, calls);
        if let Some(object) = is {
            self.index.find(object, &mut note);
        }
        // The key stays, so only a changed field can lead to anyone else.
        if let Some(object) = was.filter(|was| is.is_none_or(|is| is.fields != was.fields)) {
            self.index.find(object, &mut note);
        }
    }
}

fn note_news(summons: &Arc<Summons>, after: Revision, calls: &mut Calls) {
    if summons.note_news(after) {
        calls.push_back(Call::Session(Arc::clone(summons)));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use bytes::Bytes;

    use super::*;
    use crate::clock::Timestamp;
    use crate::object::{Draft, Key, Object, Pairs};
    use crate::summons::tests::Counter;
    use crate::window::Change;

    fn object(name: &str, node: &str, revision: u64) -> Arc<Object> {
        let draft = Draft {
            key: Key::namespaced("n", name),
            bytes: Bytes::from_static(b"{}"),
            revision_at: 1,
            item_at: 1,
            labels: Pairs::default(),
            fields: Pairs::from_iter([("node", node)]),
        };
        Arc::new(Object::new(draft, Revision(revision)))
    }

    fn replaced(from: &str, to: &str, revision: u64) -> Arc<Event> {
        let previous = Some(object("a", from, revision - 1));
        Arc::new(Event::new(Change::Replaced, object("a", to, revision), previous, Timestamp(0)))
    }

    fn summons() -> Arc<Summons> {
        Summons::new(Counter(Rc::new(Cell::new(0))).start().recipient())
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
        Broadcaster::new(Arc::new(Bell::new(Deaf.start().recipient())), Bells::default(), Fatal::new())
    }

    fn pods() -> TypeName {
        TypeName::new("pods")
    }

    /// Subscribes someone at revision 1 and returns how it is called.
    fn join(
        broadcaster: &mut Broadcaster,
        window: &Arc<Window>,
        interest: Interest,
    ) -> (SubscriptionId, Arc<Summons>) {
        let (id, summons) = (SubscriptionId::fresh(), summons());
        broadcaster.subscribe(Subscribe {
            id,
            type_name: pods(),
            window: Arc::clone(window),
            cursor: Revision(1),
            interest,
            summons: Arc::clone(&summons),
            bookmarks: true,
        });
        (id, summons)
    }

    fn node(value: &str) -> Interest {
        Interest::Field((None, "node".into()), value.into())
    }

    #[actix::test]
    async fn only_who_is_concerned_is_called_also_by_what_the_object_was() {
        let window = Arc::new(Window::new(Revision(1), 1 << 20));
        let mut broadcaster = broadcaster();
        let [(_, one), (_, two), (_, three)] =
            ["1", "2", "3"].map(|value| join(&mut broadcaster, &window, node(value)));
        window.append(replaced("3", "3", 2));
        window.append(replaced("1", "2", 5));
        broadcaster.bell.ring(&pods());
        assert!(broadcaster.find_interested().is_empty());
        assert_eq!(one.answer().news_after, Some(Revision(4)));
        assert_eq!(two.answer().news_after, Some(Revision(4)));
        assert_eq!(three.answer().news_after, Some(Revision(1)));
        broadcaster.bell.ring(&pods());
        broadcaster.find_interested();
        assert_eq!(one.answer().news_after, None, "an event is announced once");
    }

    #[actix::test]
    async fn who_joins_late_is_called_at_once() {
        let window = Arc::new(Window::new(Revision(1), 1 << 20));
        let mut broadcaster = broadcaster();
        window.append(replaced("1", "1", 2));
        let (_, late) = join(&mut broadcaster, &window, node("1"));
        assert_eq!(late.answer().news_after, Some(Revision(1)));
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
        broadcaster.bell.ring(&pods());
        let unfinished = broadcaster.find_interested();
        assert_eq!(unfinished, [pods()]);
        assert_eq!(last.answer().news_after, None);
        broadcaster.bell.ring(&pods());
        assert!(broadcaster.find_interested().is_empty());
        assert_eq!(last.answer().news_after, Some(Revision(newest - 1)));
    }

    #[actix::test]
    async fn a_crowd_is_called_in_turns_and_nobody_twice() {
        let window = Arc::new(Window::new(Revision(1), 1 << 20));
        let bells = Bells::default();
        let broadcaster = Broadcaster::begin(&bells, &Fatal::new());
        let woken = Rc::new(Cell::new(0));
        for _ in 0..3 * CALLS_PER_TURN {
            let subscribe = Subscribe {
                id: SubscriptionId::fresh(),
                type_name: pods(),
                window: Arc::clone(&window),
                cursor: Revision(1),
                interest: Interest::All,
                summons: Summons::new(Counter(Rc::clone(&woken)).start().recipient()),
                bookmarks: false,
            };
            broadcaster.send(subscribe).await.unwrap();
        }
        window.append(replaced("1", "1", 2));
        bells.ring(&pods());
        let mut seen = Vec::new();
        while woken.get() < 3 * CALLS_PER_TURN {
            tokio::task::yield_now().await;
            seen.push(woken.get());
            // News that come meanwhile wait until the crowd has rested.
            window.append(replaced("1", "1", 2 + seen.len() as u64));
            bells.ring(&pods());
        }
        assert!(seen.iter().any(|woken| (1..3 * CALLS_PER_TURN).contains(woken)), "{seen:?}");
        tokio::time::sleep(3 * LONGEST_REST).await;
        assert_eq!(woken.get(), 3 * CALLS_PER_TURN, "nobody has read the note yet");
    }

    #[actix::test]
    async fn a_crowd_rests_and_hears_of_everything_then_and_a_few_do_not() {
        let window = Arc::new(Window::new(Revision(1), 1 << 20));
        let mut broadcaster = broadcaster();
        let crowd: Vec<_> =
            (0..=CALLS_PER_TURN).map(|_| join(&mut broadcaster, &window, node("1")).1).collect();
        let (_, lonely) = join(&mut broadcaster, &window, node("2"));
        let hear = |broadcaster: &mut Broadcaster, from, to, revision| {
            window.append(replaced(from, to, revision));
            broadcaster.bell.ring(&pods());
            assert!(broadcaster.find_interested().is_empty());
        };
        let news = |crowd: &[Arc<Summons>]| {
            let mut news: Vec<_> = crowd.iter().map(|one| one.answer().news_after).collect();
            news.dedup();
            news
        };
        hear(&mut broadcaster, "2", "2", 2);
        assert_eq!(lonely.answer().news_after, Some(Revision(1)));
        hear(&mut broadcaster, "1", "1", 3);
        assert_eq!(news(&crowd), [Some(Revision(2))]);
        for revision in 4..6 {
            hear(&mut broadcaster, "1", "1", revision);
            assert_eq!(news(&crowd), [None]);
        }
        broadcaster.to_call.clear();
        assert!(broadcaster.begin_rest(&pods()));
        broadcaster.end_rest(&pods());
        assert!(broadcaster.find_interested().is_empty());
        assert_eq!(news(&crowd), [Some(Revision(3))]);
        broadcaster.to_call.clear();
        assert!(!broadcaster.begin_rest(&pods()), "nothing has happened since");
        hear(&mut broadcaster, "1", "1", 6);
        assert_eq!(news(&crowd), [Some(Revision(5))]);
        assert_eq!(rest_after(CALLS_PER_TURN), None);
        assert_eq!(rest_after(usize::MAX), Some(LONGEST_REST));
    }

    #[actix::test]
    async fn when_events_are_lost_everyone_is_called() {
        let window = Arc::new(Window::new(Revision(1), 1));
        let mut broadcaster = broadcaster();
        let (_, idle) = join(&mut broadcaster, &window, node("other"));
        window.append(replaced("1", "1", 2));
        window.append(replaced("1", "1", 3));
        broadcaster.bell.ring(&pods());
        assert!(broadcaster.find_interested().is_empty());
        assert_eq!(idle.answer().news_after, Some(Revision(1)));
        window.append(replaced("1", "1", 4));
        broadcaster.bell.ring(&pods());
        broadcaster.find_interested();
        assert_eq!(idle.answer().news_after, None, "and only once");
    }

    #[actix::test]
    async fn nothing_is_kept_for_a_type_that_nobody_follows() {
        let window = Arc::new(Window::new(Revision(1), 1 << 20));
        let mut broadcaster = broadcaster();
        let (id, gone) = join(&mut broadcaster, &window, Interest::All);
        broadcaster.unsubscribe(&Unsubscribe { type_name: pods(), id });
        broadcaster.unsubscribe(&Unsubscribe { type_name: pods(), id });
        assert!(broadcaster.audiences.is_empty());
        window.append(replaced("1", "1", 2));
        broadcaster.bell.ring(&pods());
        assert!(broadcaster.find_interested().is_empty());
        assert_eq!(gone.answer().news_after, None);
    }

    #[actix::test]
    async fn bookmarks_come_once_a_round_at_what_was_looked_up() {
        let window = Arc::new(Window::new(Revision(1), 1 << 20));
        let mut broadcaster = broadcaster();
        let (_, reader) = join(&mut broadcaster, &window, node("other"));
        window.append(replaced("1", "1", 9));
        broadcaster.bell.ring(&pods());
        broadcaster.find_interested();
        let asked: Vec<Revision> = (0..BOOKMARK_SLOTS)
            .filter_map(|_| {
                broadcaster.ask_for_bookmarks();
                reader.answer().bookmark
            })
            .collect();
        assert_eq!(asked, [Revision(9)]);
    }

    #[actix::test]
    async fn closing_ends_those_who_are_here_and_those_who_come() {
        let window = Arc::new(Window::new(Revision(1), 1 << 20));
        let mut broadcaster = broadcaster();
        let (_, here) = join(&mut broadcaster, &window, Interest::All);
        broadcaster.close_all();
        let (_, late) = join(&mut broadcaster, &window, Interest::All);
        assert!(here.answer().close && late.answer().close);
        assert_eq!(broadcaster.audiences.values().map(|audience| audience.members.len()).sum::<usize>(), 1);
    }

    #[actix::test]
    async fn a_type_that_comes_again_closes_the_watches_of_its_former_life() {
        let former = Arc::new(Window::new(Revision(1), 1 << 20));
        let mut broadcaster = broadcaster();
        let (_, old) = join(&mut broadcaster, &former, Interest::All);
        let (_, new) = join(&mut broadcaster, &Arc::new(Window::new(Revision(1), 1 << 20)), Interest::All);
        assert!(old.answer().close);
        assert!(!new.answer().close);
    }
}
