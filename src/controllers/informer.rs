//! The actor that notifies all controllers of changes: one notifier for the thread, one cursor per type, no HTTP.
//!
//! It reads windows like a watch session and passes events on, type by type. After each round it announces that it has caught up.
//! If it falls behind the events in memory, it reads the log; if it falls behind the log too, every controller gets a new list. A
//! type is read from its first write on, so unused types cost nothing. A controller that joins gets a list of all objects. A type
//! whose store does not answer is retried soon. If the informer panics, [`InformerHandle`] starts another one and the controllers
//! join that.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures::future::join_all;
use pilothouse_actors::event::Event;
use pilothouse_actors::notifier::{ChangeNotifier, ChangeNotifiers, Published};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::Freshness;
use pilothouse_actors::window::{Read, Window};
use pilothouse_types::object::{Revision, TypeName};
use tokio::sync::watch;

use crate::limits::{CONTROLLER_EVENTS_PER_TURN, INFORMER_MAILBOX};
use crate::registry::stores::{StoreResult, Stores};

use super::runner::{CaughtUp, Changed, Listed, WatchedTypes};

/// When a type whose store did not answer is retried.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Adds a controller. Answers when it got the lists of all its types; on an error the controller is not added. On Full the sender
/// waits; on Closed it asks for another informer.
#[derive(Message)]
#[rtype(result = "StoreResult<()>")]
pub struct AddSubscriber(pub Subscriber);

/// Sends all events up to now to all controllers. Answers whether that succeeded: then every controller knows all writes that were
/// acknowledged before. On Full the sender waits; on Closed it asks again later.
#[derive(Clone, Copy, Message)]
#[rtype(result = "bool")]
pub struct CatchUp;

/// A controller that receives events.
#[derive(Clone)]
pub struct Subscriber {
    /// The types that it watches.
    pub watched_types: WatchedTypes,
    /// Receives snapshots.
    pub listed: Recipient<Listed>,
    /// Receives events.
    pub changed: Recipient<Changed>,
    /// Receives the end of each round.
    pub caught_up: Recipient<CaughtUp>,
}

/// The position in the events of one type.
struct Cursor {
    window: Arc<Window>,
    revision: Revision,
}

impl Cursor {
    /// The next events, also if only the log still has them: a list would not contain deletions, and some controllers act on
    /// those. `None` if the log no longer has them.
    async fn next(&self) -> Option<Vec<Arc<Event>>> {
        match self.window.read(self.revision, CONTROLLER_EVENTS_PER_TURN) {
            Read::Events(events) => Some(events),
            Read::Archived(archive_reader, through) => {
                let read = archive_reader.read(self.revision, through, CONTROLLER_EVENTS_PER_TURN).await;
                read.inspect_err(|error| tracing::warn!(%error, "cannot read the watch history; relisting"))
                    .ok()
            }
            Read::Expired(_) => None,
        }
    }
}

/// The cursors and the controllers. It moves into each round and back.
#[derive(Default)]
struct Subscriptions {
    cursors: HashMap<TypeName, Cursor>,
    subscribers: Vec<Subscriber>,
    /// Types that could not be read in the last round. They are retried by a timer, because no notification follows.
    lagging: BTreeSet<TypeName>,
}

/// The actor. See the module documentation.
pub struct Informer {
    notifier: Arc<ChangeNotifier>,
    notifiers: ChangeNotifiers,
    stores: Arc<dyn Fn() -> Stores + Send + Sync>,
    subscriptions: Subscriptions,
    /// Dropped with the informer: that signals its end.
    _liveness: watch::Sender<()>,
}

/// Fails when the informer has ended.
pub type Liveness = watch::Receiver<()>;

/// Finds the living informer of this thread, or starts a new one.
pub struct InformerHandle {
    notifiers: ChangeNotifiers,
    stores: Arc<dyn Fn() -> Stores + Send + Sync>,
    current: RefCell<Option<(Addr<Informer>, Liveness)>>,
}

impl InformerHandle {
    /// A handle whose informers register with `notifiers` and read `stores`.
    pub fn new(notifiers: ChangeNotifiers, stores: Arc<dyn Fn() -> Stores + Send + Sync>) -> InformerHandle {
        InformerHandle { notifiers, stores, current: RefCell::default() }
    }

    /// The informer, and the signal of its end.
    pub fn informer(&self) -> (Addr<Informer>, Liveness) {
        let mut current = self.current.borrow_mut();
        match &*current {
            Some((informer, liveness)) if informer.connected() => (informer.clone(), liveness.clone()),
            _ => current.insert(Informer::start_new(&self.notifiers, self.stores.clone())).clone(),
        }
    }
}

impl Informer {
    /// Starts the informer of this thread and adds its notifier.
    fn start_new(
        notifiers: &ChangeNotifiers,
        stores: Arc<dyn Fn() -> Stores + Send + Sync>,
    ) -> (Addr<Informer>, Liveness) {
        let (sender, liveness) = watch::channel(());
        let informer = Informer::create(|context| {
            let notifier = notifiers.add(ChangeNotifier::new(context.address().recipient()));
            Informer {
                notifier,
                notifiers: notifiers.clone(),
                stores,
                subscriptions: Subscriptions::default(),
                _liveness: sender,
            }
        });
        (informer, liveness)
    }

    /// A round over the types that changed; returns whether all of them could be read.
    fn deliver() -> impl ActorFuture<Self, Output = bool> {
        Informer::round(|informer| {
            let notified = informer.notifier.drain();
            async move |subscriptions, stores| subscriptions.deliver(&notified, &stores).await
        })
    }

    /// Work on the subscriptions, as a future that owns them while it runs. Types that could not be read are retried.
    ///
    /// The subscriptions and the notifications are taken when the future is first polled and not before: until an actor waits for
    /// a future, those that it has spawned may still run once, and would find no subscriptions and lose what they drain.
    fn round<T, W>(prepare: impl FnOnce(&mut Informer) -> W) -> impl ActorFuture<Self, Output = T>
    where
        W: AsyncFnOnce(&mut Subscriptions, Stores) -> T,
    {
        let round = actix::fut::ready(()).then(move |(), informer: &mut Informer, _| {
            let (work, stores) = (prepare(informer), (informer.stores)());
            let mut subscriptions = std::mem::take(&mut informer.subscriptions);
            let round = async move {
                let result = work(&mut subscriptions, stores).await;
                (subscriptions, result)
            };
            round.into_actor(informer)
        });
        round.map(|(subscriptions, result), informer: &mut Informer, context: &mut Context<Informer>| {
            if !subscriptions.lagging.is_empty() {
                context.notify_later(Published, RETRY_DELAY);
            }
            informer.subscriptions = subscriptions;
            result
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
    /// Sends the new events of the types that changed. Returns whether all could be read.
    async fn deliver(&mut self, notified: &[TypeName], stores: &Stores) -> bool {
        let mut due = std::mem::take(&mut self.lagging);
        due.extend(notified.iter().cloned());
        for type_name in due {
            if let Err(error) = self.advance(&type_name, stores).await {
                tracing::debug!(%type_name, %error, "the events of a type cannot be read; retrying");
                self.lagging.insert(type_name);
            }
        }
        self.announce_caught_up().await;
        self.lagging.is_empty()
    }

    async fn announce_caught_up(&mut self) {
        join_all(self.subscribers.iter().map(|subscriber| subscriber.caught_up.send(CaughtUp))).await;
        self.subscribers.retain(|subscriber| subscriber.changed.connected());
    }

    async fn advance(&mut self, type_name: &TypeName, stores: &Stores) -> StoreResult<()> {
        if !self.subscribers.iter().any(|subscriber| subscriber.watched_types.includes(type_name)) {
            return Ok(());
        }
        if !self.cursors.contains_key(type_name) {
            let window = stores.open_watch(type_name, Freshness::Seen, &Permit::none()).await?.window;
            // The history of a new type is complete: it is sent as events, which have times.
            if window.floor() > Revision::FIRST {
                return self.list(type_name, stores).await;
            }
            self.cursors.insert(type_name.clone(), Cursor { window, revision: Revision::FIRST });
        }
        let Some(cursor) = self.cursors.get_mut(type_name) else { return Ok(()) };
        // Events that come meanwhile notify again.
        let head = cursor.window.head();
        while cursor.revision < head {
            let Some(events) = cursor.next().await else { return self.list(type_name, stores).await };
            let Some(last) = events.last() else { break };
            cursor.revision = last.revision();
            let changed = Changed { type_name: type_name.clone(), events: events.into() };
            let subscribers =
                self.subscribers.iter().filter(|subscriber| subscriber.watched_types.includes(type_name));
            join_all(subscribers.map(|subscriber| subscriber.changed.send(changed.clone()))).await;
        }
        Ok(())
    }

    /// Starts to read a type, or starts over after events were missed: the controllers get a snapshot.
    async fn list(&mut self, type_name: &TypeName, stores: &Stores) -> StoreResult<()> {
        let watch = stores.open_watch(type_name, Freshness::Seen, &Permit::none()).await?;
        let cursor = Cursor { window: watch.window, revision: watch.snapshot.revision };
        self.cursors.insert(type_name.clone(), cursor);
        let listed = Listed { type_name: type_name.clone(), snapshot: watch.snapshot };
        let subscribers =
            self.subscribers.iter().filter(|subscriber| subscriber.watched_types.includes(type_name));
        join_all(subscribers.map(|subscriber| subscriber.listed.send(listed.clone()))).await;
        Ok(())
    }

    /// Adds a controller. Its snapshot contains everything that was sent to the others before.
    async fn join(&mut self, subscriber: Subscriber, stores: &Stores) -> StoreResult<()> {
        for type_name in
            stores.types().await?.iter().filter(|type_name| subscriber.watched_types.includes(type_name))
        {
            // The other controllers get the events of a type that is new since the last round now: afterwards they count as sent.
            self.advance(type_name, stores).await?;
            let watch = stores.open_watch(type_name, Freshness::Seen, &Permit::none()).await?;
            let revision = watch.snapshot.revision;
            self.cursors
                .entry(type_name.clone())
                .or_insert_with(|| Cursor { window: watch.window, revision });
            let _ended = subscriber
                .listed
                .send(Listed { type_name: type_name.clone(), snapshot: watch.snapshot })
                .await;
        }
        self.subscribers.push(subscriber);
        self.announce_caught_up().await;
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
