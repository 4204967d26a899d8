//! What a server needs of the application behind its edge. `server` asks, `wire` answers, and neither has to know the other for it.

mod start_error;

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use futures::future::LocalBoxFuture;
use pilothouse_actors::clock::Clock;

pub use start_error::StartError;

use crate::config::Config;
use crate::http::edge::{Edge, Serving};
use crate::http::tls::Tls;
use crate::pki::Pki;
use crate::upstream::pool::Pool;

/// What the application is made from.
#[derive(Clone)]
pub struct Boot {
    /// What the server was told, valid.
    pub config: Arc<Config>,
    /// Keys and certificates.
    pub pki: Arc<Pki>,
    /// Where a reload puts new certificates.
    pub tls: Tls,
    /// The time.
    pub clock: Clock,
    /// Where connections to others wait for the next question.
    pub pool: Arc<Pool>,
    /// Where the server listens.
    pub address: SocketAddr,
}

/// Makes the application. Runs once, on the server's own thread, inside its actix System.
pub trait Wiring: Send + 'static {
    /// Starts the actors, then hands `edge` the application with [`Edge::serve`].
    fn start(self, boot: Boot, edge: Edge) -> impl Future<Output = Result<Wired, StartError>>;
}

/// An application that runs.
pub struct Wired {
    /// What [`Edge::serve`] gave.
    pub serving: Serving,
    /// What ends it in order.
    pub application: Rc<dyn Application>,
}

/// What a server asks of its application after the start. All run on the server's own thread.
pub trait Application {
    /// Waits until requests can be served: called when every worker has its application, before [`crate::Server::start`]
    /// returns.
    fn ready(&self) -> LocalBoxFuture<'_, Result<(), StartError>>;

    /// The server is about to stop: /readyz fails from now on.
    fn refuse_readiness(&self);

    /// Ends every watch as if its time were up, so that clients come back elsewhere without an error.
    fn end_watches(&self) -> LocalBoxFuture<'_, ()>;

    /// Makes everything durable that was accepted, and lets go of the store's files. The last thing that is called, if all goes
    /// well.
    fn flush(&self) -> LocalBoxFuture<'_, Result<(), String>>;

    /// Waits until the application cannot go on, and says why. A server that hears this exits without a flush: recovery at
    /// the next start decides what is true.
    fn failed(&self) -> LocalBoxFuture<'_, String>;

    /// Ends an application that cannot go on. What it knows besides the store is still told where it can be. The last thing that is
    /// called.
    fn give_up(&self) -> LocalBoxFuture<'_, ()>;
}
