//! The actor that tells all loops of changes: one bell for the thread, one cursor per type, no HTTP.
//!
//! It reads windows like a watch session and passes events on, type by type. After each round it announces that it has caught up.
//! If it falls behind the events in memory, it reads the log; if it falls behind the log too, every loop is told all objects. A
//! type is followed from its first write on, so unused types cost nothing. A loop that joins is told all objects. A type whose
//! store does not answer is tried again soon. If the informer panics, [`Hearing`] starts another one and the loops join that.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures::future::join_all;
use pilothouse_actors::bell::{Bell, Bells, Published};
use pilothouse_actors::object::{Revision, TypeName};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::window::{Event, Read, Window};
use tokio::sync::watch;

use crate::limits::{CONTROLLER_EVENTS_PER_TURN, INFORMER_MAILBOX};
use crate::verbs::stores::{StoreResult, Stores};

use super::runner::{CaughtUp, Follows, Heard, Listed};

/// When a type is tried again whose store did not answer.
const ASKED_AGAIN: Duration = Duration::from_millis(200);

/// Adds a loop. Answers when it was told everything; on an error the loop is not added. On Full the sender waits; on Closed it
/// asks for another informer.
#[derive(Message)]
#[rtype(result = "StoreResult<()>")]
pub struct Join(pub Member);

/// Tells all loops everything up to now. Answers whether that succeeded: then every loop knows all writes that were acknowledged
/// before. On Full the sender waits; on Closed it asks again later.
#[derive(Clone, Copy, Message)]
#[rtype(result = "bool")]
pub struct Hear;

/// A loop that receives events.
#[derive(Clone)]
pub struct Member {
    /// The types that it follows.
    pub follows: Follows,
    /// Receives snapshots.
    pub listed: Recipient<Listed>,
    /// Receives events.
    pub heard: Recipient<Heard>,
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
            Read::Shelved(shelf, through) => {
                let read = shelf.read(self.cursor, through, CONTROLLER_EVENTS_PER_TURN).await;
                read.inspect_err(|error| tracing::warn!(%error, "loops have missed something")).ok()
            }
            Read::Expired(_) => None,
        }
    }
}

/// The followed types and the loops. It moves into each round and back.
#[derive(Default)]
struct Ear {
    followed: HashMap<TypeName, Followed>,
    members: Vec<Member>,
    /// Types that could not be read in the last round: their bells will not ring again for that.
    behind: BTreeSet<TypeName>,
}

/// The actor. See the module documentation.
pub struct Informer {
    bell: Arc<Bell>,
    bells: Bells,
    stores: Arc<dyn Fn() -> Stores + Send + Sync>,
    ear: Ear,
    /// Dropped with the informer: that signals its end.
    _lives: watch::Sender<()>,
}

/// Fails when the informer has ended.
pub type Lives = watch::Receiver<()>;

/// Finds the living informer of this thread, or starts a new one.
pub struct Hearing {
    bells: Bells,
    stores: Arc<dyn Fn() -> Stores + Send + Sync>,
    current: RefCell<Option<(Addr<Informer>, Lives)>>,
}

impl Hearing {
    /// Informers add their bell there and read these stores.
    pub fn new(bells: Bells, stores: Arc<dyn Fn() -> Stores + Send + Sync>) -> Hearing {
        Hearing { bells, stores, current: RefCell::default() }
    }

    /// The informer, and the signal of its end.
    pub fn informer(&self) -> (Addr<Informer>, Lives) {
        let mut current = self.current.borrow_mut();
        match &*current {
            Some((informer, lives)) if informer.connected() => (informer.clone(), lives.clone()),
            _ => current.insert(Informer::begin(&self.bells, self.stores.clone())).clone(),
        }
    }
}

impl Informer {
    /// Starts the informer of this thread and adds its bell.
    fn begin(bells: &Bells, stores: Arc<dyn Fn() -> Stores + Send + Sync>) -> (Addr<Informer>, Lives) {
        let (lives, told) = watch::channel(());
        let informer = Informer::create(|context| {
            let bell = bells.add(Bell::new(context.address().recipient()));
            Informer { bell, bells: bells.clone(), stores, ear: Ear::default(), _lives: lives }
        });
        (informer, told)
    }

    /// A round over the types that were rung; whether all of them could be read.
    fn hear() -> impl ActorFuture<Self, Output = bool> {
        Informer::round(|informer| {
            let rung = informer.bell.drain();
            async move |ear, stores| ear.hear(&rung, &stores).await
        })
    }

    /// Work on the ear as a future that takes it along and brings it back. What could not be read is asked for again.
    ///
    /// The ear and the note of the bell are taken when the future is polled and not before: until an actor waits for a future,
    /// those that it has spawned may still run once, and would find an empty ear and lose what they drain.
    fn round<T, W>(begin: impl FnOnce(&mut Informer) -> W) -> impl ActorFuture<Self, Output = T>
    where
        W: AsyncFnOnce(&mut Ear, Stores) -> T,
    {
        let round = actix::fut::ready(()).then(move |(), informer: &mut Informer, _| {
            let (work, stores) = (begin(informer), (informer.stores)());
            let mut ear = std::mem::take(&mut informer.ear);
            let round = async move {
                let done = work(&mut ear, stores).await;
                (ear, done)
            };
            round.into_actor(informer)
        });
        round.map(|(ear, done), informer: &mut Informer, context: &mut Context<Informer>| {
            if !ear.behind.is_empty() {
                context.notify_later(Published, ASKED_AGAIN);
            }
            informer.ear = ear;
            done
        })
    }
}

impl Drop for Informer {
    fn drop(&mut self) {
        // Also after a panic, when `stopped` is not called: nothing may ring this bell any more.
        self.bells.remove(&self.bell);
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
        // No other message is handled meanwhile: rings are found by the next round.
        context.wait(Informer::hear().map(|_, _, _| ()));
    }
}

impl Handler<Hear> for Informer {
    type Result = AtomicResponse<Self, bool>;

    fn handle(&mut self, _: Hear, _: &mut Self::Context) -> Self::Result {
        AtomicResponse::new(Box::pin(Informer::hear()))
    }
}

impl Handler<Join> for Informer {
    type Result = AtomicResponse<Self, StoreResult<()>>;

    fn handle(&mut self, Join(member): Join, _: &mut Self::Context) -> Self::Result {
        AtomicResponse::new(Box::pin(Informer::round(|_| {
            async move |ear, stores| ear.join(member, &stores).await
        })))
    }
}

impl Ear {
    /// Tells the loops the new events of the types that rang. Answers whether all could be read.
    async fn hear(&mut self, rung: &[TypeName], stores: &Stores) -> bool {
        let mut due = std::mem::take(&mut self.behind);
        due.extend(rung.iter().cloned());
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
        join_all(self.members.iter().map(|member| member.caught_up.send(CaughtUp))).await;
        self.members.retain(|member| member.heard.connected());
    }

    async fn advance(&mut self, of: &TypeName, stores: &Stores) -> StoreResult<()> {
        if !self.members.iter().any(|member| member.follows.includes(of)) {
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
        // Events that come meanwhile ring again.
        let head = followed.window.head();
        while followed.cursor < head {
            let Some(events) = followed.next().await else { return self.list(of, stores).await };
            let Some(last) = events.last() else { break };
            followed.cursor = last.revision();
            let heard = Heard { of: of.clone(), events: events.into() };
            let following = self.members.iter().filter(|member| member.follows.includes(of));
            join_all(following.map(|member| member.heard.send(heard.clone()))).await;
        }
        Ok(())
    }

    /// Starts to follow a type, or starts over after events were missed: the loops get a snapshot.
    async fn list(&mut self, of: &TypeName, stores: &Stores) -> StoreResult<()> {
        let position = stores.open_watch(of, &Permit::none()).await?;
        let followed = Followed { window: position.window, cursor: position.snapshot.revision };
        self.followed.insert(of.clone(), followed);
        let listed = Listed { of: of.clone(), snapshot: position.snapshot };
        let following = self.members.iter().filter(|member| member.follows.includes(of));
        join_all(following.map(|member| member.listed.send(listed.clone()))).await;
        Ok(())
    }

    /// Adds a loop. Its snapshot contains everything that the others were told before.
    async fn join(&mut self, member: Member, stores: &Stores) -> StoreResult<()> {
        for of in stores.types().await?.iter().filter(|of| member.follows.includes(of)) {
            // A type that is new since the last round is told to the other loops now: afterwards it counts as told.
            self.advance(of, stores).await?;
            let position = stores.open_watch(of, &Permit::none()).await?;
            let cursor = position.snapshot.revision;
            self.followed.entry(of.clone()).or_insert_with(|| Followed { window: position.window, cursor });
            let _ended = member.listed.send(Listed { of: of.clone(), snapshot: position.snapshot }).await;
        }
        self.members.push(member);
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
