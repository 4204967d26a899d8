//! The actor that makes definitions true: it gives them their names, publishes what they define, and takes their objects away
//! with them.
//!
//! It belongs to the server and not to the control loops: whatever those are told, definitions work. It owns the list of what is
//! defined. Nobody sends it anything but bells, and whoever starts the server its first [`Follow`]. Each round reads the
//! definitions as they are now, settles them one after the other, publishes the resources of all that are served, and only then
//! writes down that they are: whoever reads that a kind is established finds it served.

mod round;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use pilothouse_actors::bell::{Bell, Bells, Published};
use pilothouse_actors::fatal::Fatal;
use pilothouse_actors::identity::Identity;
use pilothouse_actors::object::TypeName;

use crate::api::catalog::Catalog;
use crate::api::catalog::resource::Resource;
use crate::api::status::Result;
use crate::api::value::Value;
use crate::api::words::MASTERS;
use crate::limits::DEFINITIONS_MAILBOX;
use crate::verbs::Backend;
use crate::verbs::bootstrap::OWN_NAME;
use round::{Book, Tools};

/// How soon a round is repeated that could not be finished.
const AGAIN: Duration = Duration::from_millis(500);
/// How often that pause doubles.
const LONGEST_PAUSE: u32 = 6;
/// How long the objects of a definition may take to go before it is said that they stay.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is defined now.
pub struct Defined {
    /// The resources of all definitions that are served.
    pub resources: Vec<Arc<Resource>>,
    /// The definitions that they are of, for those who describe them.
    pub definitions: Vec<Arc<Value>>,
    /// The stores whose objects mean something else than before: watches of them end.
    pub changed: Vec<TypeName>,
}

/// What the actor is made from.
pub struct Outside {
    /// Where its bell hangs.
    pub bells: Bells,
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
pub struct Follow;

/// The actor. See the module text.
pub struct Definitions {
    bell: Arc<Bell>,
    bells: Bells,
    tools: Rc<Tools>,
    book: Book,
    /// How many rounds have failed since one did not.
    failures: u32,
    fatal: Fatal,
}

impl Definitions {
    /// Starts the actor on this thread and hangs up its bell.
    pub fn begin(outside: Outside) -> Addr<Definitions> {
        let Outside { bells, backend, resource, catalog, first_ordinal, publish, fatal } = outside;
        let user =
            Identity { name: OWN_NAME.to_owned(), groups: vec![MASTERS.to_owned()], ..Identity::default() };
        Definitions::create(|context| {
            let bell = bells.add(Bell::new(context.address().recipient()));
            let tools = Rc::new(Tools { backend, resource, catalog, publish, user });
            let book = Book { first_ordinal, next_ordinal: first_ordinal, ..Book::default() };
            Definitions { bell, bells, tools, book, failures: 0, fatal }
        })
    }

    /// A round as a future that takes the book along and brings it back.
    fn round(&mut self, ends: bool) -> impl ActorFuture<Self, Output = Result<()>> + use<> {
        let (tools, mut book) = (self.tools.clone(), std::mem::take(&mut self.book));
        let round = async move {
            let done = tools.round(&mut book, ends).await;
            (book, done)
        };
        round.into_actor(self).map(|(book, done), definitions: &mut Definitions, context| {
            let waits = !book.waited_for.is_subset(&book.told);
            definitions.book = book;
            match &done {
                Ok(()) => definitions.failures = 0,
                Err(status) => {
                    tracing::warn!(%status, "definitions could not be followed; it is tried again");
                    let pause = AGAIN * (1 << definitions.failures.min(LONGEST_PAUSE));
                    definitions.failures += 1;
                    context.run_later(pause, |definitions, _| {
                        definitions.bell.ring(&definitions.tools.store());
                    });
                }
            }
            if waits {
                context.run_later(PATIENCE, |definitions, _| {
                    let waited_for = definitions.book.waited_for.clone();
                    definitions.book.told.extend(waited_for);
                    definitions.bell.ring(&definitions.tools.store());
                });
            }
            done
        })
    }
}

impl Drop for Definitions {
    fn drop(&mut self) {
        self.bells.remove(&self.bell);
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
        let own = self.tools.store();
        let concerns = |of: &TypeName| *of == own || self.book.waited_for.contains(of);
        if self.bell.drain().iter().any(concerns) {
            let round = self.round(true).map(|_, _, _| ());
            context.wait(round);
        }
    }
}

impl Handler<Follow> for Definitions {
    type Result = AtomicResponse<Self, std::result::Result<(), String>>;

    fn handle(&mut self, _: Follow, _: &mut Self::Context) -> Self::Result {
        self.bell.drain();
        AtomicResponse::new(Box::pin(
            // What could not be written is tried again; what is defined is known.
            self.round(false).map(|done, definitions, _| {
                // Those that go are seen to once the server is ready.
                definitions.bell.ring(&definitions.tools.store());
                match done {
                    Err(status) if definitions.book.definitions.is_empty() => Err(status.to_string()),
                    _ => Ok(()),
                }
            }),
        ))
    }
}
