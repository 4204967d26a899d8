//! The actor that tells all loops of changes: one notifier for the thread, one cursor per type, no HTTP.
//!
//! It reads windows like a watch session and passes events on, type by type. After each round it announces that it has caught up.
//! If it falls behind the events in memory, it reads the log; if it falls behind the log too, every loop is told all objects. A
//! type is followed from its first write on, so unused types cost nothing. A loop that joins is told all objects. A type whose
//! store does not answer is tried again soon. If the informer panics, [`InformerHandle`] starts another one and the loops join
//! that.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures::future::join_all;
use pilothouse_actors::event::Event;
use pilothouse_actors::notifier::{ChangeNotifier, ChangeNotifiers, Published};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::window::{Read, Window};
use pilothouse_types::object::{Revision, TypeName};
use tokio::sync::watch;

use crate::backend::stores::{StoreResult, Stores};
use crate::limits::{CONTROLLER_EVENTS_PER_TURN, INFORMER_MAILBOX};

use super::runner::{CaughtUp, Changed, Follows, Listed};

/// When a type is tried again whose store did not answer.
const ASKED_AGAIN: Duration = Duration::from_millis(200);

/// Adds a loop. Answers when it was told everything; on an error the loop is not added. On Full the sender waits; on Closed it
/// asks for another informer.
#[derive(Message)]
#[rtype(result = "StoreResult<()>")]
pub struct AddSubscriber(pub Subscriber);

/// Tells all loops everything up to now. Answers whether that succeeded: then every loop knows all writes that were acknowledged
/// before. On Full the sender waits; on Closed it asks again later.
#[derive(Clone, Copy, Message)]
#[rtype(result = "bool")]
pub struct CatchUp;

/// A loop that receives events.
#[derive(Clone)]
pub struct Subscriber {
    /// The types that it follows.
    pub follows: Follows,
    /// Receives snapshots.
    pub listed: Recipient<Listed>,
    /// Receives events.
    pub changed: Recipient<Changed>,
    /// Receives the end of each round.
    pub caught_up: Recipient<CaughtUp>,
}

/// One followed type.
struct Followed {
    window: Arc<Window>,
    cursor: Revision,
}

impl Followed {
    /// What comes after the cursor, also if only the log still has it: a list would say nothing of what has gone meanwhile, and
    /// some loops act on just that. `None` if nobody has it any more.
    async fn next(&self) -> Option<Vec<Arc<Event>>> {
        match self.window.read(self.cursor, CONTROLLER_EVENTS_PER_TURN) {
            Read::Events(events) => Some(events),
            Read::Archived(archive_reader, through) => {
                let read = archive_reader.read(self.cursor, through, CONTROLLER_EVENTS_PER_TURN).await;
                read.inspect_err(
                    |error| tracing::warn!(%error, "controllers lost their watch history and list again"),
                )
                .ok()
            }
            Read::Expired(_) => None,
        }
    }
}

/// The followed types and the loops. It moves into each round and back.
#[derive(Default)]
struct Subscriptions {
    followed: HashMap<TypeName, Followed>,
    subscribers: Vec<Subscriber>,
    /// Types that could not be read in the last round: their notifiers will not fire again for that.
    behind: BTreeSet<TypeName>,
}

/// The actor. See the module documentation.
pub struct Informer {
    notifier: Arc<ChangeNotifier>,
    notifiers: ChangeNotifiers,
    stores: Arc<dyn Fn() -> Stores + Send + Sync>,
    subscriptions: Subscriptions,
    /// Dropped with the informer: that signals its end.
    _lives: watch::Sender<()>,
}

/// Fails when the informer has ended.
pub type Lives = watch::Receiver<()>;

/// Finds the living informer of this thread, or starts a new one.
pub struct InformerHandle {
    notifiers: ChangeNotifiers,
    stores: Arc<dyn Fn() -> Stores + Send + Sync>,
    current: RefCell<Option<(Addr<Informer>, Lives)>>,
}

impl InformerHandle {
    /// Informers add their notifier there and read these stores.
    pub fn new(notifiers: ChangeNotifiers, stores: Arc<dyn Fn() -> Stores + Send + Sync>) -> InformerHandle {
        InformerHandle { notifiers, stores, current: RefCell::default() }
    }

    /// The informer, and the signal of its end.
    pub fn informer(&self) -> (Addr<Informer>, Lives) {
        let mut current = self.current.borrow_mut();
        match &*current {
            Some((informer, lives)) if informer.connected() => (informer.clone(), lives.clone()),
            _ => current.insert(Informer::begin(&self.notifiers, self.stores.clone())).clone(),
        }
    }
}

impl Informer {
    /// Starts the informer of this thread and adds its notifier.
    fn begin(
        notifiers: &ChangeNotifiers,
        stores: Arc<dyn Fn() -> Stores + Send + Sync>,
    ) -> (Addr<Informer>, Lives) {
        let (lives, told) = watch::channel(());
        let informer = Informer::create(|context| {
            let notifier = notifiers.add(ChangeNotifier::new(context.address().recipient()));
            Informer {
                notifier,
                notifiers: notifiers.clone(),
                stores,
                subscriptions: Subscriptions::default(),
                _lives: lives,
            }
        });
        (informer, told)
    }

    /// A round over the types that were announced; whether all of them could be read.
    fn deliver() -> impl ActorFuture<Self, Output = bool> {
        Informer::round(|informer| {
            let notified = informer.notifier.drain();
            async move |subscriptions, stores| subscriptions.deliver(&notified, &stores).await
        })
    }

    /// Work on the ear as a future that takes it along and brings it back. What could not be read is asked for again.
    ///
    /// The subscriptions and the marks of the notifier are taken when the future is polled and not before: until an actor waits for
    /// a future, those that it has spawned may still run once, and would find an empty ear and lose what they drain.
    fn round<T, W>(begin: impl FnOnce(&mut Informer) -> W) -> impl ActorFuture<Self, Output = T>
    where
        W: AsyncFnOnce(&mut Subscriptions, Stores) -> T,
    {
        let round = actix::fut::ready(()).then(move |(), informer: &mut Informer, _| {
            let (work, stores) = (begin(informer), (informer.stores)());
            let mut subscriptions = std::mem::take(&mut informer.subscriptions);
            let round = async move {
                let done = work(&mut subscriptions, stores).await;
                (subscriptions, done)
            };
            round.into_actor(informer)
        });
        round.map(|(subscriptions, done), informer: &mut Informer, context: &mut Context<Informer>| {
            if !subscriptions.behind.is_empty() {
                context.notify_later(Published, ASKED_AGAIN);
            }
            informer.subscriptions = subscriptions;
            done
        })
    }
}

impl Drop for Informer {
    fn drop(&mut self) {
        // Also after a panic, when `stopped` is not called: nothing may use this notifier any more.
        self.notifiers.remove(&self.notifier);
    }
}

impl Actor for Informer {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(INFORMER_MAILBOX);
    }
}

impl Handler<Published> for Informer {
    type Result = ();

    fn handle(&mut self, _: Published, context: &mut Self::Context) {
        // No other message is handled meanwhile: notifications are found by the next round.
        context.wait(Informer::deliver().map(|_, _, _| ()));
    }
}

impl Handler<CatchUp> for Informer {
    type Result = AtomicResponse<Self, bool>;

    fn handle(&mut self, _: CatchUp, _: &mut Self::Context) -> Self::Result {
        AtomicResponse::new(Box::pin(Informer::deliver()))
    }
}

impl Handler<AddSubscriber> for Informer {
    type Result = AtomicResponse<Self, StoreResult<()>>;

    fn handle(&mut self, AddSubscriber(subscriber): AddSubscriber, _: &mut Self::Context) -> Self::Result {
        AtomicResponse::new(Box::pin(Informer::round(|_| {
            async move |subscriptions, stores| subscriptions.join(subscriber, &stores).await
        })))
    }
}

impl Subscriptions {
    /// Tells the loops the new events of the types that changed. Answers whether all could be read.
    async fn deliver(&mut self, notified: &[TypeName], stores: &Stores) -> bool {
        let mut due = std::mem::take(&mut self.behind);
        due.extend(notified.iter().cloned());
        for of in due {
            if let Err(error) = self.advance(&of, stores).await {
                tracing::debug!(%of, %error, "cannot be followed now");
                self.behind.insert(of);
            }
        }
        self.say_caught_up().await;
        self.behind.is_empty()
    }

    async fn say_caught_up(&mut self) {
        join_all(self.subscribers.iter().map(|subscriber| subscriber.caught_up.send(CaughtUp))).await;
        self.subscribers.retain(|subscriber| subscriber.changed.connected());
    }

    async fn advance(&mut self, of: &TypeName, stores: &Stores) -> StoreResult<()> {
        if !self.subscribers.iter().any(|subscriber| subscriber.follows.includes(of)) {
            return Ok(());
        }
        if !self.followed.contains_key(of) {
            let window = stores.open_watch(of, &Permit::none()).await?.window;
            // A type that was empty until now is told event by event, with their times.
            if window.floor() > Revision::FIRST {
                return self.list(of, stores).await;
            }
            self.followed.insert(of.clone(), Followed { window, cursor: Revision::FIRST });
        }
        let Some(followed) = self.followed.get_mut(of) else { return Ok(()) };
        // Events that come meanwhile notify again.
        let head = followed.window.head();
        while followed.cursor < head {
            let Some(events) = followed.next().await else { return self.list(of, stores).await };
            let Some(last) = events.last() else { break };
            followed.cursor = last.revision();
            let changed = Changed { of: of.clone(), events: events.into() };
            let following = self.subscribers.iter().filter(|subscriber| subscriber.follows.includes(of));
            join_all(following.map(|subscriber| subscriber.changed.send(changed.clone()))).await;
        }
        Ok(())
    }

    /// Starts to follow a type, or starts over after events were missed: the loops get a snapshot.
    async fn list(&mut self, of: &TypeName, stores: &Stores) -> StoreResult<()> {
        let position = stores.open_watch(of, &Permit::none()).await?;
        let followed = Followed { window: position.window, cursor: position.snapshot.revision };
        self.followed.insert(of.clone(), followed);
        let listed = Listed { of: of.clone(), snapshot: position.snapshot };
        let following = self.subscribers.iter().filter(|subscriber| subscriber.follows.includes(of));
        join_all(following.map(|subscriber| subscriber.listed.send(listed.clone()))).await;
        Ok(())
    }

    /// Adds a loop. Its snapshot contains everything that the others were told before.
    async fn join(&mut self, subscriber: Subscriber, stores: &Stores) -> StoreResult<()> {
        for of in stores.types().await?.iter().filter(|of| subscriber.follows.includes(of)) {
            // A type that is new since the last round is told to the other loops now: afterwards it counts as told.
            self.advance(of, stores).await?;
            let position = stores.open_watch(of, &Permit::none()).await?;
            let cursor = position.snapshot.revision;
            self.followed.entry(of.clone()).or_insert_with(|| Followed { window: position.window, cursor });
            let _ended = subscriber.listed.send(Listed { of: of.clone(), snapshot: position.snapshot }).await;
        }
        self.subscribers.push(subscriber);
        self.say_caught_up().await;
        Ok(())
    }
}

/// Makes an informer panic, for tests.
#[cfg(test)]
#[derive(Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Break;

#[cfg(test)]
impl Handler<Break> for Informer {
    type Result = ();

    fn handle(&mut self, _: Break, _: &mut Self::Context) {
        panic!("an informer that fails on purpose");
    }
}

#[cfg(test)]
mod tests;
