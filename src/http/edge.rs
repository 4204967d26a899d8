//! The edge as a whole: workers accept connections from the listening socket and drive them.

use std::fmt::Debug;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use actix_http::body::{BoxBody, MessageBody};
use actix_http::{Request, Response};
use actix_rt::net::TcpStream;
use actix_service::{IntoServiceFactory, Service, ServiceFactory, fn_factory, fn_service};
use actix_web::dev::AppConfig;
use pilothouse_client::socket;
use pilothouse_types::clock::Clock;
use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::app::App;
use super::connections::{Bounds, ConnectionEnd, ConnectionState, Connections};
use super::drain::{Counted, Drain, Tally};
use super::h1::H1;
use super::h2::H2;
use super::h2_stream::Dates;
use super::tls::Tls;
use crate::config::Config;
use crate::limits;

/// A bound socket and everything needed to serve it, except the application.
pub struct Edge {
    listener: TcpListener,
    workers: usize,
    worker_config: WorkerConfig,
}

/// The settings from which every worker is made.
#[derive(Clone)]
struct WorkerConfig {
    tls: Tls,
    clock: Clock,
    max_streams: u32,
    goaway_chance: f64,
    /// The deadline of a request body: the request timeout.
    body_timeout: Duration,
    drain: Drain,
    bounds: Bounds,
    connections: Connections,
    open: Tally,
    started: Tally,
}

/// State that the connections of one worker share. Cheap to clone.
#[derive(Clone)]
struct Worker {
    tls: Tls,
    h1: H1,
    h2: H2,
    connections: Connections,
    open: Tally,
    /// Counts the worker until its last connection and its service are gone.
    _alive: Rc<Counted>,
}

impl Edge {
    /// An edge that serves `listener` as `config` says.
    pub fn new(listener: TcpListener, tls: Tls, config: &Config, clock: Clock) -> Edge {
        let bounds = Bounds::new(config);
        let worker_config = WorkerConfig {
            tls,
            bounds,
            connections: Connections::new(bounds, clock.clone()),
            clock,
            max_streams: config.streams_per_connection(),
            goaway_chance: config.serving.goaway_chance,
            body_timeout: config.limits.request_timeout,
            drain: Drain::default(),
            open: Tally::default(),
            started: Tally::default(),
        };
        Edge { listener, workers: config.workers(), worker_config }
    }

    /// The number of workers: `factory` of [`Edge::serve`] runs once on the thread of each, all at the same time.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The open connections of all workers.
    pub fn connections(&self) -> Connections {
        self.worker_config.connections.clone()
    }

    /// Starts the workers, each with an application that `factory` makes on its thread. Must be called inside an
    /// actix System. The application finds the other end of the connection as [`super::peer::Peer`] in the extensions
    /// of each request.
    pub fn serve<F, I, S, B>(self, factory: F) -> io::Result<Serving>
    where
        F: Fn() -> I + Send + Clone + 'static,
        I: IntoServiceFactory<S, Request>,
        S: ServiceFactory<Request, Config = AppConfig> + 'static,
        S::Service: 'static,
        S::Response: Into<Response<B>>,
        S::Error: Into<Response<BoxBody>>,
        S::InitError: Debug,
        <S::Service as Service<Request>>::Future: 'static,
        B: MessageBody + 'static,
    {
        let Edge { listener, workers, worker_config } = self;
        let (address, listening) = (listener.local_addr()?, listener.try_clone()?);
        let shared_config = worker_config.clone();
        let server = actix_server::Server::build()
            .workers(workers)
            // The table of connections refuses earlier. At this bound the acceptor would let clients wait, also those on this host.
            .max_concurrent_connections(
                worker_config.bounds.total.saturating_add(limits::CONNECTIONS_CLOSING),
            )
            .disable_signals()
            .listen("api", listener, move || {
                let (factory, worker_config) = (factory.clone(), shared_config.clone());
                fn_factory(move || {
                    let (application, worker_config) = (factory().into_factory(), worker_config.clone());
                    async move {
                        let result = application.new_service(AppConfig::default()).await;
                        let service = result.map_err(|error| {
                            tracing::error!(?error, "a worker cannot start");
                        })?;
                        let app = App::new(service, worker_config.body_timeout);
                        let worker = worker_config.worker(app).await?;
                        Ok::<_, ()>(fn_service(move |io: TcpStream| worker.clone().connection(io)))
                    }
                })
            })?
            .run();
        let handle = server.handle();
        let ended = run(server)?;
        let WorkerConfig { drain, open, started, .. } = worker_config;
        Ok(Serving { address, listening, workers, handle, ended: Some(ended), drain, open, started })
    }
}

/// Runs the server on a thread of its own: its first poll blocks until every worker has made its application, and
/// applications may talk to actors of the System's own thread meanwhile.
fn run(server: actix_server::Server) -> io::Result<oneshot::Receiver<io::Result<()>>> {
    let (sender, receiver) = oneshot::channel();
    let is_spawned = actix_rt::Arbiter::new().spawn(async move {
        let _ = sender.send(server.await);
        actix_rt::Arbiter::current().stop();
    });
    if is_spawned { Ok(receiver) } else { Err(io::Error::other("the thread of the server has ended")) }
}

impl WorkerConfig {
    async fn worker(self, app: App) -> Result<Worker, ()> {
        let WorkerConfig {
            tls, clock, max_streams, goaway_chance, drain, connections, open, started, ..
        } = self;
        let dates = Rc::new(Dates::new(clock));
        let h1 = H1::new(app.clone(), drain.clone(), Rc::clone(&dates)).await?;
        let h2 = H2 { app, drain, dates, max_streams, goaway_chance };
        Ok(Worker { tls, h1, h2, connections, open, _alive: Rc::new(started.enter()) })
    }
}

impl Worker {
    /// Serves a connection until it ends or has to make room for another. One that is refused is closed at once.
    async fn connection(self, io: TcpStream) -> Result<(), ()> {
        let _open = self.open.enter();
        let address = io.peer_addr().ok();
        let connection = match self.connections.admit(address) {
            Ok(connection) => connection,
            Err(reason) => {
                tracing::warn!(?address, ?reason, "a connection was refused: too many connections");
                return Ok(());
            }
        };
        if connection.serve(self.drive(io, connection.state())).await == ConnectionEnd::Evicted {
            tracing::debug!(?address, "closed an idle connection to admit a new one");
        }
        Ok(())
    }

    async fn drive(&self, io: TcpStream, connection: &ConnectionState) {
        if let Err(error) = socket::prepare(&io) {
            tracing::debug!(%error, "TCP options cannot be set");
        }
        // Each future is boxed: otherwise every connection would reserve memory for the largest of these states, and most stay in
        // the smallest.
        let mut stream = match Box::pin(timeout(limits::HANDSHAKE_TIMEOUT, self.tls.accept(io))).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                self.connections.note_failed_handshake();
                return tracing::debug!(%error, "a TLS handshake failed");
            }
            Err(_) => {
                self.connections.note_failed_handshake();
                return tracing::debug!("a TLS handshake took too long");
            }
        };
        connection.note_handshake();
        stream.peer.connection = Some(connection.clone());
        let is_http2 = stream.is_http2();
        let first_byte_timeout =
            if is_http2 { limits::HANDSHAKE_TIMEOUT } else { limits::REQUEST_HEAD_TIMEOUT };
        // Both drivers allocate buffers when they begin. A client that sends nothing gets none.
        if !Box::pin(self.h1.has_next_request(&mut stream, first_byte_timeout)).await {
            let _ = timeout(limits::DISCONNECT_TIMEOUT, stream.shutdown()).await;
            return;
        }
        if is_http2 {
            Box::pin(self.h2.drive(stream)).await;
        } else {
            Box::pin(self.h1.drive(stream)).await;
        }
    }
}

/// A running edge.
pub struct Serving {
    address: SocketAddr,
    /// The socket, to end it before its workers end.
    listening: TcpListener,
    workers: usize,
    handle: actix_server::ServerHandle,
    ended: Option<oneshot::Receiver<io::Result<()>>>,
    drain: Drain,
    open: Tally,
    started: Tally,
}

impl Serving {
    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until every worker has its application. Fails if a worker cannot start.
    pub async fn started(&mut self) -> io::Result<()> {
        let (started, workers) = (self.started.clone(), self.workers);
        tokio::select! {
            () = started.until(|count| count >= workers) => Ok(()),
            ended = self.ended() => Err(ended.err().unwrap_or_else(|| io::Error::other("the server has ended"))),
        }
    }

    /// Waits until the server ends, which it does only after [`Serving::stop`] or when it breaks.
    pub async fn ended(&mut self) -> io::Result<()> {
        let Some(ended) = &mut self.ended else { return Ok(()) };
        let result = ended.await.unwrap_or_else(|_| Err(io::Error::other("the server has died")));
        self.ended = None;
        result
    }

    /// Stops accepting connections; open ones go on.
    pub async fn pause(&self) {
        self.handle.pause().await;
    }

    /// Asks every connection to finish, and waits for that up to `limit`. Returns the number of connections left. New clients are
    /// refused, so that they try another server or say so, instead of waiting in the kernel's queue until this one has ended.
    pub async fn drain(&self, limit: Duration) -> usize {
        self.drain.begin();
        let mut drained = pin!(timeout(limit, self.open.until(|count| count == 0)));
        // The acceptor receives the pause with a delay. It would log errors about a socket that ends before that.
        tokio::select! {
            _ = &mut drained => return self.open.count(),
            () = sleep(limits::ACCEPTOR_PAUSE) => {}
        }
        if let Err(error) = SockRef::from(&self.listening).shutdown(Shutdown::Both) {
            tracing::debug!(%error, "cannot shut down the listening socket");
        }
        let _ = drained.await;
        self.open.count()
    }

    /// Closes the remaining connections and stops the workers.
    pub async fn stop(self) {
        self.handle.stop(false).await;
        let _ = timeout(limits::DISCONNECT_TIMEOUT, self.started.until(|count| count == 0)).await;
    }
}
