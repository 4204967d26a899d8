//! The interface between the server and the application behind its edge. `server` calls it, `server/assembly` implements it, and
//! neither knows the other.

mod start_error;

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use pilothouse_client::upstream::pool::Pool;
use pilothouse_types::clock::Clock;

pub use start_error::StartError;

use crate::config::Config;
use crate::http::connections::Connections;
use crate::http::edge::{Edge, Serving};
use crate::http::tls::Tls;
use crate::pki::Pki;

/// The input from which the application is assembled.
#[derive(Clone)]
pub struct StartContext {
    /// The validated configuration.
    pub config: Arc<Config>,
    /// Keys and certificates.
    pub pki: Arc<Pki>,
    /// The TLS contexts, into which a reload puts new certificates.
    pub tls: Tls,
    /// The source of time, which tests replace.
    pub clock: Clock,
    /// Idle connections to other servers, for reuse.
    pub pool: Arc<Pool>,
    /// The address on which the server listens.
    pub address: SocketAddr,
    /// The open connections of clients.
    pub connections: Connections,
}

/// Assembles the application. Runs once, on the server's own thread, inside its actix System.
pub trait Assemble: Send + 'static {
    /// Starts the actors, then hands `edge` the application with [`Edge::serve`].
    fn start(self, context: StartContext, edge: Edge) -> impl Future<Output = Result<Assembled, StartError>>;
}

/// A running application.
pub struct Assembled {
    /// The result of [`Edge::serve`].
    pub serving: Serving,
    /// The application's own lifecycle.
    pub application: Rc<dyn Application>,
}

/// The lifecycle calls that a server makes after the start. All run on the server's own thread.
pub trait Application {
    /// Waits until requests can be served: called when every worker has its application, before [`crate::Server::start`]
    /// returns.
    fn ready(&self) -> LocalBoxFuture<'_, Result<(), StartError>>;

    /// The server is about to stop: /readyz fails from now on.
    fn refuse_readiness(&self);

    /// Tells clients to try another server, from now on, and waits until all requests from before are answered.
    fn refuse_requests(&self) -> LocalBoxFuture<'_, ()>;

    /// Ends every watch as if it had timed out, so that clients reconnect elsewhere without an error: one after the other within this
    /// time, so that they do not come there all at once.
    fn end_watches(&self, within: Duration) -> LocalBoxFuture<'_, ()>;

    /// Makes every accepted write durable and closes the store's files. The last call of a clean shutdown.
    fn flush(&self) -> LocalBoxFuture<'_, Result<(), String>>;

    /// Waits until the application cannot go on, and returns the reason. The server then exits without a flush: recovery at the
    /// next start decides which writes count.
    fn failed(&self) -> LocalBoxFuture<'_, String>;

    /// Ends an application that cannot go on. Audit events are still written where possible. The last call after a failure.
    fn give_up(&self) -> LocalBoxFuture<'_, ()>;
}
