//! Which member is used: the first that answers, until it fails.
//!
//! Calls stay at one member instead of being spread over all, so that a member that is slow or gone is met by nobody who need not
//! meet it, and an operator can name the nearest one first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use futures::future::{BoxFuture, FutureExt as _, Shared};
use futures::stream::{FuturesUnordered, StreamExt as _};
use pilothouse_types::lock::Lock;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::tls;
use crate::error::{EndpointFailure, Error};
use crate::limits::DIAL_STAGGER;
use crate::settings::Settings;

/// The connections to the member in use.
pub struct Active {
    number: u64,
    connections: Vec<Connection>,
    next: AtomicUsize,
}

impl Active {
    /// One of the connections, in turn.
    pub fn connection(&self) -> &Connection {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        &self.connections[next % self.connections.len()]
    }

    fn is_usable(&self) -> bool {
        self.connections.iter().all(Connection::is_usable)
    }
}

type Dialing = Shared<BoxFuture<'static, Result<Arc<Active>, Arc<Error>>>>;

/// The members, and the connections to the one in use.
pub struct Pool {
    endpoints: Vec<Arc<Endpoint>>,
    settings: Settings,
    /// Where connections live. Callers may be on other runtimes that end before.
    runtime: Handle,
    active: ArcSwapOption<Active>,
    /// The attempt to connect that is under way, for all who need a connection. A std lock: it is held for a look.
    dialing: Lock<Option<Dialing>>,
    /// The member that is tried first.
    first: AtomicUsize,
    number: AtomicU64,
}

impl Pool {
    /// A pool that connects when it is used. Settings that can never work are refused now.
    pub fn new(settings: Settings, runtime: Handle) -> Result<Arc<Pool>, Error> {
        let endpoints = settings.endpoints.iter().map(|url| Endpoint::parse(url).map(Arc::new));
        let endpoints: Vec<_> = endpoints.collect::<Result<_, _>>().map_err(Error::Settings)?;
        if endpoints.is_empty() {
            return Err(Error::Settings("there is no endpoint".to_owned()));
        }
        settings.validate().map_err(Error::Settings)?;
        if endpoints.iter().any(|endpoint| endpoint.is_secure) {
            tls::context(&settings.tls).map_err(Error::Settings)?;
        }
        Ok(Arc::new(Pool {
            endpoints,
            settings,
            runtime,
            active: ArcSwapOption::empty(),
            dialing: Lock::default(),
            first: AtomicUsize::new(0),
            number: AtomicU64::new(0),
        }))
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The members.
    pub fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.endpoints
    }

    /// The runtime of the connections.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The connections to the member in use, made if there are none.
    pub async fn active(self: &Arc<Self>) -> Result<Arc<Active>, Error> {
        if let Some(active) = self.usable() {
            return Ok(active);
        }
        self.dialing().await.map_err(|error| Error::clone(&error))
    }

    fn usable(&self) -> Option<Arc<Active>> {
        let active = self.active.load_full()?;
        if active.is_usable() {
            return Some(active);
        }
        self.discard(&active);
        None
    }

    /// The attempt to connect that is under way, or a new one.
    fn dialing(self: &Arc<Self>) -> Dialing {
        let mut dialing = self.dialing.lock();
        if let Some(active) = self.usable() {
            return std::future::ready(Ok(active)).boxed().shared();
        }
        if let Some(dialing) = dialing.as_ref().filter(|dialing| dialing.peek().is_none()) {
            return dialing.clone();
        }
        let pool = self.clone();
        let task = self.runtime.spawn(async move { pool.connect_active().await });
        let result = async move {
            match task.await {
                Ok(result) => result.map_err(Arc::new),
                // The runtime is ending.
                Err(error) => Err(Arc::new(Error::NotReachable(vec![EndpointFailure {
                    endpoint: "etcd".to_owned(),
                    reason: error.to_string(),
                }]))),
            }
        };
        dialing.insert(result.boxed().shared()).clone()
    }

    async fn connect_active(&self) -> Result<Arc<Active>, Error> {
        let connection = self.connect_any(self.first.load(Ordering::Relaxed)).await?;
        let (endpoint, index) = (connection.endpoint.clone(), connection.index);
        let mut connections = vec![connection];
        while connections.len() < self.settings.connections {
            let opened = Connection::open(endpoint.clone(), index, &self.settings).await;
            connections.push(opened.map_err(|reason| Error::not_reachable(&endpoint.url, reason))?);
        }
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let active = Arc::new(Active { number, connections, next: AtomicUsize::new(0) });
        tracing::debug!(endpoint = endpoint.url, "connected to etcd");
        self.first.store(index, Ordering::Relaxed);
        self.active.store(Some(active.clone()));
        Ok(active)
    }

    /// A connection for one stream alone, so that a reader that does not keep up holds up nobody else; `first` is tried first. Must
    /// be called on the runtime of the connections.
    pub async fn dedicated(&self, first: Option<usize>) -> Result<Connection, Error> {
        self.connect_any(first.unwrap_or_else(|| self.first.load(Ordering::Relaxed))).await
    }

    /// Connects to the first member that answers. One that has not answered for a while is joined by the next.
    async fn connect_any(&self, first: usize) -> Result<Connection, Error> {
        let count = self.endpoints.len();
        let mut waiting = (0..count).map(|offset| (first + offset) % count);
        let mut dials = FuturesUnordered::new();
        let mut failures = Vec::new();
        loop {
            let next = waiting.next();
            if let Some(index) = next {
                let endpoint = self.endpoints[index].clone();
                dials.push(async move {
                    let opened = Connection::open(endpoint.clone(), index, &self.settings).await;
                    opened.map_err(|reason| EndpointFailure { endpoint: endpoint.url.clone(), reason })
                });
            }
            let result = tokio::select! {
                result = dials.next() => result,
                () = sleep(DIAL_STAGGER), if next.is_some() => continue,
            };
            match result {
                Some(Ok(connection)) if connection.is_learner() => {
                    let reason = "it is a learner, which serves no clients".to_owned();
                    failures.push(EndpointFailure { endpoint: connection.url().to_owned(), reason });
                }
                Some(Ok(connection)) => return Ok(connection),
                Some(Err(failure)) => failures.push(failure),
                None => return Err(Error::NotReachable(failures)),
            }
        }
    }

    /// Gives up connections over which a call has failed; the next member is tried first. Others may have been made since. Calls
    /// that wait for answers over them go on waiting.
    pub fn discard(&self, failed: &Arc<Active>) {
        let current = self.active.load();
        if current.as_ref().is_none_or(|current| current.number != failed.number) {
            return;
        }
        let replaced = self.active.compare_and_swap(&*current, None);
        if replaced.as_ref().is_some_and(|replaced| replaced.number == failed.number) {
            let index = failed.connections.first().map_or(0, |connection| connection.index);
            self.first.store((index + 1) % self.endpoints.len(), Ordering::Relaxed);
        }
    }
}
