//! The actor of CustomResourceDefinitions: it accepts their names, publishes the resources that they define, and deletes their
//! objects with them.
//!
//! It belongs to the server and not to the controllers: definitions work whichever controllers are enabled. It owns the set of
//! definitions. It receives only notifications, and one [`Synchronize`] at the start. Each round reads the definitions that
//! changed, settles their names, publishes the resources of all that are served, and only then writes their status: a client that
//! reads that a kind is established finds it served. Discovery waits for that write, so that a client that finds a kind there can
//! update its definition without a conflict. The objects of terminating definitions are deleted beside the rounds.

mod definition_set;
mod deletion;
mod reconcile;
pub mod served_revision;
pub mod shared_types;

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
use deletion::{Deletion, Progress};
use pilothouse_api::catalog::Catalog;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom::definition::store_named;
use pilothouse_api::openapi;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::object::TypeName;
use reconcile::Reconciler;
use served_revision::ServedRevision;
use shared_types::SharedTypes;

use crate::limits::{DEFINITION_DELETIONS_IN_FLIGHT, DEFINITIONS_MAILBOX};
use crate::registry::{Backend, loopback};

/// The delay before a failed round or deletion is retried.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How often that delay doubles.
const MAX_DOUBLINGS: u32 = 6;
/// How long the deletion of a definition's objects may take before its status reports that it is stuck.
const DELETION_TIMEOUT: Duration = Duration::from_secs(60);
/// How often stores of removed definitions are released: those that were busy, or may have been started again. The first attempt
/// is made after one to two such intervals.
const RELEASE_INTERVAL: Duration = Duration::from_secs(10);

/// The resources that are defined now.
pub struct Defined {
    /// The resources of all definitions that are served.
    pub resources: Vec<Arc<Resource>>,
    /// The OpenAPI schemas of their kinds.
    pub described: Vec<Arc<openapi::CustomSchema>>,
    /// The definitions that cannot be read, and of which nothing can be served.
    pub unreadable: Arc<BTreeSet<String>>,
    /// The stores whose resources have changed: their watches end.
    pub changed: Vec<TypeName>,
    /// Closed once the status of the definitions is written.
    pub written: Completion,
}

/// A channel without messages: it closes when the work is done or abandoned.
pub type Completion = watch::Receiver<()>;

/// The dependencies of the actor.
pub struct DefinitionsDeps {
    /// Where its notifier is registered.
    pub notifiers: ChangeNotifiers,
    /// Reads and writes objects.
    pub backend: Backend,
    /// The resource `customresourcedefinitions`.
    pub resource: Arc<Resource>,
    /// The built-in resources.
    pub catalog: Catalog,
    /// The first ordinal that no built-in resource has.
    pub first_ordinal: u32,
    /// Publishes the defined resources.
    pub publish: Box<dyn Fn(Defined)>,
    /// Says up to which revision definitions are served.
    pub served: ServedRevision,
    /// The types of the shared log, if there is one.
    pub shared_types: Option<SharedTypes>,
    /// Raised when the actor panics: definitions would no longer be processed.
    pub fatal: Fatal,
}

/// Runs a round now. Answers when all definitions are settled and published. On Full or Closed the sender gives up:
/// it is sent once, at the start.
#[derive(Clone, Copy, Message)]
#[rtype(result = "std::result::Result<(), String>")]
pub struct Synchronize;

/// The actor. See the module documentation.
pub struct Definitions {
    notifier: Arc<ChangeNotifier>,
    notifiers: ChangeNotifiers,
    reconciler: Rc<Reconciler>,
    definition_set: DefinitionSet,
    /// The terminating definitions.
    terminating: BTreeMap<String, Terminating>,
    /// The number of consecutive failed rounds.
    failures: u32,
    /// Whether the timer of the next release is set.
    is_release_scheduled: bool,
    fatal: Fatal,
}

/// A terminating definition.
#[derive(Default)]
struct Terminating {
    progress: Progress,
    /// Whether a task works on it.
    is_running: bool,
    /// Whether its objects have changed since that task began.
    is_notified: bool,
    /// The timer of [`DELETION_TIMEOUT`].
    timer: Option<SpawnHandle>,
    /// The number of consecutive failures.
    failures: u32,
}

fn retry_delay(failures: u32) -> Duration {
    RETRY_DELAY * (1 << failures.min(MAX_DOUBLINGS))
}

impl Definitions {
    /// Starts the actor on this thread and registers its notifier.
    pub fn begin(deps: DefinitionsDeps) -> Addr<Definitions> {
        let DefinitionsDeps { notifiers, backend, resource, catalog, first_ordinal, publish, .. } = deps;
        let (served, shared_types, fatal) = (deps.served, deps.shared_types, deps.fatal);
        let user = loopback::own_identity();
        Definitions::create(|context| {
            let notifier = notifiers.add(ChangeNotifier::new(context.address().recipient()));
            let deletions = Semaphore::new(DEFINITION_DELETIONS_IN_FLIGHT);
            let reconciler = Rc::new(Reconciler {
                backend,
                resource,
                catalog,
                publish,
                served,
                user,
                deletions,
                shared_types,
            });
            Definitions {
                notifier,
                notifiers,
                reconciler,
                definition_set: DefinitionSet::new(first_ordinal),
                terminating: BTreeMap::new(),
                failures: 0,
                is_release_scheduled: false,
                fatal,
            }
        })
    }

    /// A round, as a future that owns the definitions while it runs. `is_ready`: the server serves requests, and deletions may
    /// begin.
    ///
    /// They are taken when the future is first polled and not before: until an actor waits for a future, those that it has spawned
    /// may still run once, and would find an empty set. A deletion would take its definition for one without objects.
    fn round(is_ready: bool) -> impl ActorFuture<Self, Output = Result<()>> + use<> {
        let round = actix::fut::ready(()).then(move |(), definitions: &mut Definitions, _| {
            let (reconciler, mut definition_set) =
                (definitions.reconciler.clone(), std::mem::take(&mut definitions.definition_set));
            let round = async move {
                let result = reconciler.round(&mut definition_set).await;
                let must_release_again = is_ready && reconciler.release(&mut definition_set).await;
                (definition_set, result, must_release_again)
            };
            round.into_actor(definitions)
        });
        round.map(
            move |(definition_set, result, must_release_again), definitions: &mut Definitions, context| {
                definitions.definition_set = definition_set;
                match &result {
                    Ok(()) => definitions.failures = 0,
                    Err(status) => {
                        tracing::warn!(%status, "CustomResourceDefinitions cannot be watched; retrying");
                        let delay = retry_delay(definitions.failures);
                        definitions.failures += 1;
                        context.run_later(delay, |definitions, _| definitions.notify());
                    }
                }
                if must_release_again && !std::mem::replace(&mut definitions.is_release_scheduled, true) {
                    context.run_later(RELEASE_INTERVAL, |definitions, _| {
                        definitions.is_release_scheduled = false;
                        definitions.definition_set.tick_releases();
                        definitions.notify();
                    });
                }
                if is_ready {
                    definitions.start_deletions(context);
                }
                result
            },
        )
    }

    /// Asks for another round.
    fn notify(&self) {
        self.notifier.notify(&self.reconciler.store());
    }

    /// Whether the deletion of a terminating definition is to be begun. Before its objects are known they would seem to be gone.
    fn may_begin_deletion(&self, name: &str) -> bool {
        !self.terminating.contains_key(name) && !self.definition_set.new_types.contains(name)
    }

    /// Starts the deletion of terminating definitions, and forgets those that are removed.
    fn start_deletions(&mut self, context: &mut Context<Self>) {
        let terminating_names = self.definition_set.terminating();
        self.terminating.retain(|name, terminating| {
            let is_terminating = terminating_names.contains(name);
            if let Some(timer) = terminating.timer.take_if(|_| !is_terminating) {
                context.cancel_future(timer);
            }
            is_terminating
        });
        let new: Vec<String> =
            terminating_names.iter().filter(|name| self.may_begin_deletion(name)).cloned().collect();
        for name in new {
            self.terminating.insert(name.clone(), Terminating::default());
            self.continue_deletion(&name, context);
        }
    }

    /// Spawns a task that continues the deletion of a definition, or lets the running one check once more.
    fn continue_deletion(&mut self, name: &str, context: &mut Context<Self>) {
        let Some(terminating) = self.terminating.get_mut(name) else { return };
        if terminating.is_running {
            terminating.is_notified = true;
            return;
        }
        (terminating.is_running, terminating.is_notified) = (true, false);
        let task = self.reconciler.clone().continue_deletion(
            name.to_owned(),
            self.definition_set.stored(name),
            terminating.progress,
        );
        // Not within the actor: during a round the actor polls nothing else, and the round may wait for a write turn of the task.
        let task = actix::spawn(task);
        let name = name.to_owned();
        context.spawn(task.into_actor(self).map(move |result, definitions, context| {
            let panicked = |error: JoinError| Err(Status::internal(error.to_string()));
            definitions.deletion_ended(&name, result.unwrap_or_else(panicked), context);
        }));
    }

    fn deletion_ended(&mut self, name: &str, result: Result<Deletion>, context: &mut Context<Self>) {
        let Some(terminating) = self.terminating.get_mut(name) else { return };
        terminating.is_running = false;
        match result {
            Ok(Deletion::Complete) => {
                terminating.failures = 0;
                // If it still exists, it was changed meanwhile: the next round starts over with it.
                if let Some(timer) = self.terminating.remove(name).and_then(|terminating| terminating.timer) {
                    context.cancel_future(timer);
                }
                self.definition_set.must_reread.insert(name.to_owned());
                self.notify();
            }
            Ok(Deletion::Waiting(progress)) => {
                let is_late = terminating.progress.is_late;
                terminating.progress = progress;
                terminating.progress.is_late = is_late;
                terminating.failures = 0;
                if terminating.timer.is_none() && !is_late {
                    let definition_name = name.to_owned();
                    terminating.timer =
                        Some(context.run_later(DELETION_TIMEOUT, move |definitions, context| {
                            if let Some(terminating) = definitions.terminating.get_mut(&definition_name) {
                                (terminating.timer, terminating.progress.is_late) = (None, true);
                                definitions.continue_deletion(&definition_name, context);
                            }
                        }));
                }
                if terminating.is_notified {
                    self.continue_deletion(name, context);
                }
            }
            Err(status) => {
                tracing::warn!(name, %status, "the objects of a CustomResourceDefinition cannot be deleted; retrying");
                let delay = retry_delay(terminating.failures);
                terminating.failures += 1;
                let name = name.to_owned();
                context.run_later(delay, move |definitions, context| {
                    definitions.continue_deletion(&name, context);
                });
            }
        }
    }
}

impl Drop for Definitions {
    fn drop(&mut self) {
        self.notifiers.remove(&self.notifier);
        if std::thread::panicking() {
            self.fatal.raise("the actor of CustomResourceDefinitions has panicked".to_owned());
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
        let affected: Vec<String> =
            self.terminating.keys().filter(|name| notified.contains(&store_named(name))).cloned().collect();
        for name in affected {
            self.continue_deletion(&name, context);
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
            // Failed writes are retried; the definitions are known.
            Definitions::round(false).map(|result, definitions, _| {
                // Terminating definitions are processed once the server is ready.
                definitions.notify();
                match result {
                    Err(status) if definitions.definition_set.is_empty() => Err(status.to_string()),
                    _ => Ok(()),
                }
            }),
        ))
    }
}
