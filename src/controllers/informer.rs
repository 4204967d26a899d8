//! The actor through which all loops hear of changes: one bell for the thread, one cursor per type, no HTTP.
//!
//! It reads the windows as watch sessions do and passes the events on, type by type; after each round it says that it has
//! caught up. A type begins to be followed when it is first written to, so types that nobody uses cost nothing. Loops join
//! and leave it; a loop that joins is told all there is.

use std::collections::HashMap;
use std::sync::Arc;

use actix::prelude::*;
use futures::future::join_all;
use pilothouse_actors::bell::{Bell, Bells, Published};
use pilothouse_actors::object::{Revision, TypeName};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::window::{Read, Window};

use crate::limits::{CONTROLLER_EVENTS_PER_TURN, INFORMER_MAILBOX};
use crate::verbs::stores::{StoreResult, Stores};

use super::runner::{CaughtUp, Follows, Heard, Listed};

/// Tell me what happens. Answers when all there is has been told. On Full the sender waits; on Closed the server ends.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Join(pub Member);

/// Tell everybody what has happened until now. Answers when that is done: then every loop knows all that was acknowledged
/// before this was asked. On Full the sender waits; on Closed the server ends.
#[derive(Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Hear;

/// A loop that wants to hear.
#[derive(Clone)]
pub struct Member {
    /// Of which types.
    pub follows: Follows,
    /// Where it hears of everything.
    pub listed: Recipient<Listed>,
    /// Where it hears of changes.
    pub heard: Recipient<Heard>,
    /// Where it hears that this was all.
    pub caught_up: Recipient<CaughtUp>,
}

/// One type that is followed.
struct Followed {
    window: Arc<Window>,
    cursor: Revision,
}

/// What is followed and who hears of it. It moves into each round and back.
#[derive(Default)]
struct Ear {
    followed: HashMap<TypeName, Followed>,
    members: Vec<Member>,
}

/// The actor. See the module text.
pub struct Informer {
    bell: Arc<Bell>,
    bells: Bells,
    stores: Arc<dyn Fn() -> Stores + Send + Sync>,
    ear: Ear,
}

impl Informer {
    /// Starts the informer of this thread and hangs up its bell.
    pub fn begin(bells: &Bells, stores: Arc<dyn Fn() -> Stores + Send + Sync>) -> Addr<Informer> {
        Informer::create(|context| {
            let bell = bells.add(Bell::new(context.address().recipient()));
            Informer { bell, bells: bells.clone(), stores, ear: Ear::default() }
        })
    }
}

impl Actor for Informer {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(INFORMER_MAILBOX);
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.bells.remove(&self.bell);
    }
}

impl Handler<Published> for Informer {
    type Result = ();

    fn handle(&mut self, _: Published, context: &mut Self::Context) {
        let (mut ear, rung, stores) = (std::mem::take(&mut self.ear), self.bell.drain(), (self.stores)());
        let round = async move {
            ear.hear(&rung, &stores).await;
            ear
        };
        // Nothing else is handled meanwhile: what rings is found by the next round.
        context.wait(round.into_actor(self).map(|ear, informer, _| informer.ear = ear));
    }
}

impl Handler<Hear> for Informer {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, _: Hear, _: &mut Self::Context) -> Self::Result {
        let (mut ear, rung, stores) = (std::mem::take(&mut self.ear), self.bell.drain(), (self.stores)());
        let round = async move {
            ear.hear(&rung, &stores).await;
            ear
        };
        AtomicResponse::new(Box::pin(round.into_actor(self).map(|ear, informer, _| informer.ear = ear)))
    }
}

impl Handler<Join> for Informer {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, Join(member): Join, _: &mut Self::Context) -> Self::Result {
        let (mut ear, stores) = (std::mem::take(&mut self.ear), (self.stores)());
        let round = async move {
            ear.join(member, &stores).await;
            ear
        };
        AtomicResponse::new(Box::pin(round.into_actor(self).map(|ear, informer, _| informer.ear = ear)))
    }
}

impl Ear {
    /// Tells everyone what is new of the types that were rung.
    async fn hear(&mut self, rung: &[TypeName], stores: &Stores) {
        for of in rung {
            if let Err(error) = self.advance(of, stores).await {
                // The server is ending: a store that lives answers.
                tracing::debug!(%of, %error, "cannot be followed");
            }
        }
        self.say_caught_up().await;
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
        // What comes while this goes on rings again.
        let head = followed.window.head();
        while followed.cursor < head {
            let Read::Events(events) = followed.window.read(followed.cursor, CONTROLLER_EVENTS_PER_TURN)
            else {
                return self.list(of, stores).await;
            };
            let Some(last) = events.last() else { break };
            followed.cursor = last.revision();
            let heard = Heard { of: of.clone(), events: events.into() };
            let following = self.members.iter().filter(|member| member.follows.includes(of));
            join_all(following.map(|member| member.heard.send(heard.clone()))).await;
        }
        Ok(())
    }

    /// Begins to follow a type, or begins again after something was missed: everyone is told all there is.
    async fn list(&mut self, of: &TypeName, stores: &Stores) -> StoreResult<()> {
        let position = stores.open_watch(of, &Permit::none()).await?;
        let followed = Followed { window: position.window, cursor: position.snapshot.revision };
        self.followed.insert(of.clone(), followed);
        let listed = Listed { of: of.clone(), snapshot: position.snapshot };
        let following = self.members.iter().filter(|member| member.follows.includes(of));
        join_all(following.map(|member| member.listed.send(listed.clone()))).await;
        Ok(())
    }

    /// Takes a loop in. What was told to the others and not yet to it stands in the snapshot that it gets.
    async fn join(&mut self, member: Member, stores: &Stores) {
        let types = stores.types().await.unwrap_or_default();
        for of in types.iter().filter(|of| member.follows.includes(of)) {
            // The others hear of a type that is new since the last round now: afterwards it counts as told.
            if self.advance(of, stores).await.is_err() {
                return;
            }
            let Ok(position) = stores.open_watch(of, &Permit::none()).await else { return };
            let cursor = position.snapshot.revision;
            self.followed.entry(of.clone()).or_insert_with(|| Followed { window: position.window, cursor });
            let _ended = member.listed.send(Listed { of: of.clone(), snapshot: position.snapshot }).await;
        }
        self.members.push(member);
        self.say_caught_up().await;
    }
}
