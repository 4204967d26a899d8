//! Asks all actors, queues and threads what they do at the moment. Nothing is kept and nothing is counted while nobody asks: an actor
//! answers through its mailbox, a queue is measured when it is asked for.

mod threads;

use std::sync::Arc;
use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Handler, Recipient, WeakRecipient};
use futures::future::{join, join_all};
use pilothouse_actors::describe::Describe;
use pilothouse_actors::directory::{Directory, RunningStores};
use pilothouse_types::activity::{Activity, ActorReport, QueueDepth, ServerActivity};
use pilothouse_types::clock::Clock;
use pilothouse_types::lock::Lock;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::limits::ACTIVITY_TIMEOUT;

/// Measures queues.
type MeasureQueues = Box<dyn Fn() -> Vec<QueueDepth> + Send + Sync>;

/// The actors and queues that can be asked. Cheap to clone.
#[derive(Clone, Default)]
pub struct ActivityRegistry(Arc<Registered>);

#[derive(Default)]
struct Registered {
    actors: Lock<Vec<RegisteredActor>>,
    queues: Lock<Vec<MeasureQueues>>,
}

struct RegisteredActor {
    kind: &'static str,
    name: String,
    /// Weak: who wants to know what it does keeps no actor alive.
    actor: WeakRecipient<Describe>,
}

impl ActivityRegistry {
    /// Adds an actor; those that have ended are forgotten.
    pub fn add<A>(&self, kind: &'static str, name: impl Into<String>, actor: &Addr<A>)
    where
        A: Actor + Handler<Describe>,
        A::Context: ToEnvelope<A, Describe>,
    {
        let mut actors = self.0.actors.lock();
        actors.retain(|registered| registered.actor.upgrade().is_some_and(|actor| actor.connected()));
        actors.push(RegisteredActor { kind, name: name.into(), actor: actor.downgrade().recipient() });
    }

    /// Adds queues that belong to no actor.
    pub fn add_queues(&self, measure: impl Fn() -> Vec<QueueDepth> + Send + Sync + 'static) {
        self.0.queues.lock().push(Box::new(measure));
    }

    /// The actors that have not ended.
    fn living(&self) -> Vec<(&'static str, String, Recipient<Describe>)> {
        let actors = self.0.actors.lock();
        let living = actors.iter().filter_map(|registered| {
            let actor = registered.actor.upgrade().filter(|actor| actor.connected())?;
            Some((registered.kind, registered.name.clone(), actor))
        });
        living.collect()
    }

    /// Asks everybody at the same time, and the stores of this directory. Who does not answer in time is reported without an answer.
    pub async fn observe(&self, directory: &Addr<Directory>, clock: &Clock) -> ServerActivity {
        let stores = timeout(ACTIVITY_TIMEOUT, directory.send(RunningStores)).await;
        let stores = stores.ok().and_then(Result::ok).unwrap_or_default();
        let stores = stores.into_iter().map(|(name, store)| ("store", name.to_string(), store.recipient()));
        let questions =
            self.living().into_iter().chain(stores).map(|(kind, name, actor)| ask(kind, name, actor, clock));
        let (mut actors, threads) = join(join_all(questions), spawn_blocking(threads::list)).await;
        actors.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        let queues = self.0.queues.lock().iter().flat_map(|measure| measure()).collect();
        ServerActivity { actors, queues, threads: threads.unwrap_or_default() }
    }
}

async fn ask(kind: &'static str, name: String, actor: Recipient<Describe>, clock: &Clock) -> ActorReport {
    let begin = clock.moment();
    let answer = timeout(ACTIVITY_TIMEOUT, actor.send(Describe)).await.ok().and_then(Result::ok);
    let waited: Option<Duration> = answer.is_some().then(|| clock.elapsed(begin));
    ActorReport { kind, name, waited, activity: answer.unwrap_or_else(Activity::default) }
}

#[cfg(test)]
mod tests {
    use actix::{Context, MessageResult};
    use pilothouse_actors::directory::{Options, start};
    use pilothouse_actors::engine::memory::Memory;

    use super::*;

    struct Talker;

    impl Actor for Talker {
        type Context = Context<Self>;
    }

    impl Handler<Describe> for Talker {
        type Result = MessageResult<Describe>;

        fn handle(&mut self, _: Describe, _: &mut Self::Context) -> Self::Result {
            MessageResult(Activity::here(vec![QueueDepth::bounded("letters", 1, 2)], Vec::new()))
        }
    }

    #[actix_rt::test]
    async fn actors_and_queues_are_asked_and_those_that_ended_are_not() {
        let storage = start(Box::new(Memory::new()), Options::default()).unwrap();
        let registry = ActivityRegistry::default();
        let talker = Talker.start();
        registry.add("talker", "1", &talker);
        registry.add("talker", "gone", &Talker.start());
        registry.add_queues(|| vec![QueueDepth::unbounded("stairs", 7)]);
        // The other one ends when its turn comes.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        let seen = registry.observe(&storage.directory, &Clock::system()).await;
        assert_eq!(seen.queues, [QueueDepth::unbounded("stairs", 7)]);
        let names: Vec<&str> = seen.actors.iter().map(|actor| actor.name.as_str()).collect();
        assert_eq!(names, ["1"]);
        assert!(seen.actors[0].waited.is_some());
        assert_eq!(seen.actors[0].activity.queues, [QueueDepth::bounded("letters", 1, 2)]);
        assert!(!seen.threads.is_empty());
    }
}
