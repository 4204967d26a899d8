//! The actor that makes definitions true: it gives them their names, publishes what they define, and takes their objects away
//! with them.
//!
//! It belongs to the server and not to the control loops: whatever those are told, definitions work. It owns the list of what is
//! defined. Nobody sends it anything but notifications, and whoever starts the server its first [`Synchronize`]. Each round reads
//! the definitions that changed, settles them, publishes the resources of all that are served, and only then writes down that they
//! are: whoever reads that a kind is established finds it served. Discovery waits for that write, so that whoever finds a kind
//! there does not meet it when changing the definition. The objects of definitions that go are deleted beside the rounds.

mod definition_set;
mod deletion;
mod reconcile;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use pilothouse_actors::fatal::Fatal;
use pilothouse_actors::notifier::{ChangeNotifier, ChangeNotifiers, Published};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinError;

use definition_set::DefinitionSet;
use deletion::{Ended, Progress};
use pilothouse_api::catalog::Catalog;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom::definition::store_named;
use pilothouse_api::openapi;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::object::TypeName;
use reconcile::Reconciler;

use crate::backend::{Backend, loopback};
use crate::limits::{DEFINITIONS_MAILBOX, DELETIONS_AT_ONCE};

/// How soon something is repeated that could not be finished.
const AGAIN: Duration = Duration::from_millis(500);
/// How often that pause doubles.
const LONGEST_PAUSE: u32 = 6;
/// How long the objects of a definition may take to go before it is said that they stay.
const PATIENCE: Duration = Duration::from_secs(60);
/// How soon a store is asked again to end that was busy, or that somebody may have started again. A removed definition's store is
/// first asked after one to two such pauses.
const RELEASED_AGAIN: Duration = Duration::from_secs(10);

/// What is defined now.
pub struct Defined {
    /// The resources of all definitions that are served.
    pub resources: Vec<Arc<Resource>>,
    /// How their kinds are described.
    pub described: Vec<Arc<openapi::Custom>>,
    /// The definitions that cannot be read, and of which nothing can be served.
    pub unreadable: Arc<BTreeSet<String>>,
    /// The stores whose objects mean something else than before: watches of them end.
    pub changed: Vec<TypeName>,
    /// Closed once the definitions themselves say so.
    pub written: Pending,
}

/// A channel that nothing is sent through: it closes when what it stands for is done, or given up.
pub type Pending = watch::Receiver<()>;

/// What the actor is made from.
pub struct DefinitionsDeps {
    /// Where its notifier is registered.
    pub notifiers: ChangeNotifiers,
    /// What it uses to read and write.
    pub backend: Backend,
    /// The resource that definitions are.
    pub resource: Arc<Resource>,
    /// What is built in.
    pub catalog: Catalog,
    /// The first number that no built-in resource has.
    pub first_ordinal: u32,
    /// Makes known what is defined.
    pub publish: Box<dyn Fn(Defined)>,
    /// Where it is told that the actor has died: nobody would follow definitions any more.
    pub fatal: Fatal,
}

/// Do a round now. Answers when all definitions there are have been settled and published. On Full or Closed the sender gives up:
/// it is sent once, at the start.
#[derive(Clone, Copy, Message)]
#[rtype(result = "std::result::Result<(), String>")]
pub struct Synchronize;

/// The actor. See the module text.
pub struct Definitions {
    notifier: Arc<ChangeNotifier>,
    notifiers: ChangeNotifiers,
    reconciler: Rc<Reconciler>,
    definition_set: DefinitionSet,
    /// The definitions that go.
    terminating: BTreeMap<String, Terminating>,
    /// How many rounds have failed since one did not.
    failures: u32,
    /// Whether stores are asked again to end, later.
    releases_again: bool,
    fatal: Fatal,
}

/// A definition that goes.
#[derive(Default)]
struct Terminating {
    progress: Progress,
    /// Whether a task is at it.
    is_under_way: bool,
    /// Whether something happened to its objects since that one began.
    is_notified: bool,
    /// What ends the patience with its objects.
    timer: Option<SpawnHandle>,
    /// How often it has failed since it did not.
    failures: u32,
}

fn pause(failures: u32) -> Duration {
    AGAIN * (1 << failures.min(LONGEST_PAUSE))
}

impl Definitions {
    /// Starts the actor on this thread and registers its notifier.
    pub fn begin(deps: DefinitionsDeps) -> Addr<Definitions> {
        let DefinitionsDeps { notifiers, backend, resource, catalog, first_ordinal, publish, fatal } = deps;
        let user = loopback::own_identity();
        Definitions::create(|context| {
            let notifier = notifiers.add(ChangeNotifier::new(context.address().recipient()));
            let deletions = Semaphore::new(DELETIONS_AT_ONCE);
            let reconciler = Rc::new(Reconciler { backend, resource, catalog, publish, user, deletions });
            Definitions {
                notifier,
                notifiers,
                reconciler,
                definition_set: DefinitionSet::new(first_ordinal),
                terminating: BTreeMap::new(),
                failures: 0,
                releases_again: false,
                fatal,
            }
        })
    }

    /// A round as a future that takes the definitions along and brings them back. `is_ready`: the server serves, and what goes may go.
    ///
    /// They leave when the round begins and not before: until an actor waits for a future, those that it has spawned may still
    /// run once, and would find nothing in its place. The end of a definition would take it for one that never had objects.
    fn round(is_ready: bool) -> impl ActorFuture<Self, Output = Result<()>> + use<> {
        let round = actix::fut::ready(()).then(move |(), definitions: &mut Definitions, _| {
            let (reconciler, mut definition_set) =
                (definitions.reconciler.clone(), std::mem::take(&mut definitions.definition_set));
            let round = async move {
                let done = reconciler.round(&mut definition_set).await;
                let releases_again = is_ready && reconciler.release(&mut definition_set).await;
                (definition_set, done, releases_again)
            };
            round.into_actor(definitions)
        });
        round.map(move |(definition_set, done, releases_again), definitions: &mut Definitions, context| {
            definitions.definition_set = definition_set;
            match &done {
                Ok(()) => definitions.failures = 0,
                Err(status) => {
                    tracing::warn!(%status, "CustomResourceDefinitions cannot be watched; retrying");
                    let pause = pause(definitions.failures);
                    definitions.failures += 1;
                    context.run_later(pause, |definitions, _| definitions.notify());
                }
            }
            if releases_again && !std::mem::replace(&mut definitions.releases_again, true) {
                context.run_later(RELEASED_AGAIN, |definitions, _| {
                    definitions.releases_again = false;
                    definitions.definition_set.tick_releases();
                    definitions.notify();
                });
            }
            if is_ready {
                definitions.see_off(context);
            }
            done
        })
    }

    /// Asks for another round.
    fn notify(&self) {
        self.notifier.notify(&self.reconciler.store());
    }

    /// Sees to the definitions that go, and forgets those that have gone.
    fn see_off(&mut self, context: &mut Context<Self>) {
        let going = self.definition_set.going();
        self.terminating.retain(|name, terminating| {
            let stays = going.contains(name);
            if let Some(timer) = terminating.timer.take_if(|_| !stays) {
                context.cancel_future(timer);
            }
            stays
        });
        let new: Vec<String> =
            going.iter().filter(|name| !self.terminating.contains_key(*name)).cloned().collect();
        for name in new {
            self.terminating.insert(name.clone(), Terminating::default());
            self.end(&name, context);
        }
    }

    /// Begins a task that goes on with the end of a definition, or lets the one that is at it look once more.
    fn end(&mut self, name: &str, context: &mut Context<Self>) {
        let Some(terminating) = self.terminating.get_mut(name) else { return };
        if terminating.is_under_way {
            terminating.is_notified = true;
            return;
        }
        (terminating.is_under_way, terminating.is_notified) = (true, false);
        let task = self.reconciler.clone().end(
            name.to_owned(),
            self.definition_set.stored(name),
            terminating.progress,
        );
        // Not within the actor: a round, in which nothing else of the actor goes on, may want the turn that a task has.
        let task = actix::spawn(task);
        let name = name.to_owned();
        context.spawn(task.into_actor(self).map(move |ended, definitions, context| {
            let died = |error: JoinError| Err(Status::internal(error.to_string()));
            definitions.ended(&name, ended.unwrap_or_else(died), context);
        }));
    }

    fn ended(&mut self, name: &str, ended: Result<Ended>, context: &mut Context<Self>) {
        let Some(terminating) = self.terminating.get_mut(name) else { return };
        terminating.is_under_way = false;
        match ended {
            Ok(Ended::Gone) => {
                terminating.failures = 0;
                // If it is still there, somebody else changed it: the next round begins anew with it.
                if let Some(timer) = self.terminating.remove(name).and_then(|terminating| terminating.timer) {
                    context.cancel_future(timer);
                }
                self.definition_set.unsure.insert(name.to_owned());
                self.notify();
            }
            Ok(Ended::Waits(progress)) => {
                let is_late = terminating.progress.is_late;
                terminating.progress = progress;
                terminating.progress.is_late = is_late;
                terminating.failures = 0;
                if terminating.timer.is_none() && !is_late {
                    let of = name.to_owned();
                    terminating.timer = Some(context.run_later(PATIENCE, move |definitions, context| {
                        if let Some(terminating) = definitions.terminating.get_mut(&of) {
                            (terminating.timer, terminating.progress.is_late) = (None, true);
                            definitions.end(&of, context);
                        }
                    }));
                }
                if terminating.is_notified {
                    self.end(name, context);
                }
            }
            Err(status) => {
                tracing::warn!(name, %status, "the objects of a CustomResourceDefinition cannot be deleted; retrying");
                let pause = pause(terminating.failures);
                terminating.failures += 1;
                let name = name.to_owned();
                context.run_later(pause, move |definitions, context| definitions.end(&name, context));
            }
        }
    }
}

impl Drop for Definitions {
    fn drop(&mut self) {
        self.notifiers.remove(&self.notifier);
        if std::thread::panicking() {
            self.fatal.raise("who follows definitions has died".to_owned());
        }
    }
}

impl Actor for Definitions {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(DEFINITIONS_MAILBOX);
    }
}

impl Handler<Published> for Definitions {
    type Result = ();

    fn handle(&mut self, _: Published, context: &mut Self::Context) {
        let own = self.reconciler.store();
        let notified = self.notifier.drain();
        let concerned: Vec<String> =
            self.terminating.keys().filter(|name| notified.contains(&store_named(name))).cloned().collect();
        for name in concerned {
            self.end(&name, context);
        }
        if notified.contains(&own) {
            let round = Definitions::round(true).map(|_, _, _| ());
            context.wait(round);
        }
    }
}

impl Handler<Synchronize> for Definitions {
    type Result = AtomicResponse<Self, std::result::Result<(), String>>;

    fn handle(&mut self, _: Synchronize, _: &mut Self::Context) -> Self::Result {
        self.notifier.drain();
        AtomicResponse::new(Box::pin(
            // What could not be written is tried again; what is defined is known.
            Definitions::round(false).map(|done, definitions, _| {
                // Those that go are seen to once the server is ready.
                definitions.notify();
                match done {
                    Err(status) if definitions.definition_set.is_empty() => Err(status.to_string()),
                    _ => Ok(()),
                }
            }),
        ))
    }
}
