//! Calls with failover.

mod key_value;
mod lease;
mod maintenance;

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

pub use self::lease::LeaseKeepAlive;
pub use self::maintenance::Snapshot;
use crate::error::Error;
use crate::failure::{Attempt, Failure};
use crate::limits::RETRY_PAUSES;
use crate::methods::Method;
use crate::settings::Settings;
use crate::transport::{Connection, Endpoint, Pool};

/// A client of one etcd cluster. Clones share their connections.
///
/// A call that only reads, or that was certainly not sent or not accepted, is repeated at the next member until its time is over. A
/// call that writes is sent once; if its answer is missing, the error is [`Error::UnknownOutcome`].
#[derive(Clone)]
pub struct Client {
    pool: Arc<Pool>,
    /// Slots for calls in flight, so that calls to a slow cluster do not pile up.
    slots: Arc<Semaphore>,
    request_timeout: Duration,
}

/// How far a call has come, for the error if its time is over.
enum Progress {
    WaitsForSlot,
    /// It is not at any member. The error is why the last attempt has failed.
    WaitsForMember(Option<Error>),
    Sent(Arc<Endpoint>),
}

/// The pauses between attempts.
pub struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// No attempt was made yet.
    pub fn new() -> Backoff {
        Backoff { attempts: 0 }
    }

    /// Waits before the next attempt. The first repetition follows at once: most often another member is well.
    pub async fn pause(&mut self) {
        let (first, longest) = RETRY_PAUSES;
        if self.attempts > 0 {
            let factor = 1_u32.checked_shl(self.attempts - 1).unwrap_or(u32::MAX);
            sleep(first.saturating_mul(factor).min(longest)).await;
        }
        self.attempts = self.attempts.saturating_add(1);
    }

    /// An attempt has succeeded.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

impl Client {
    /// A client that connects when it is used. Its connections live on this runtime; calls may come from any.
    pub fn new(settings: Settings, runtime: Handle) -> Result<Client, Error> {
        let slots = Arc::new(Semaphore::new(settings.max_calls_in_flight.clamp(1, Semaphore::MAX_PERMITS)));
        let request_timeout = settings.request_timeout;
        Ok(Client { pool: Pool::new(settings, runtime)?, slots, request_timeout })
    }

    /// The same client with another limit for how long a call may take, with all its attempts.
    pub fn with_timeout(&self, request_timeout: Duration) -> Client {
        Client { request_timeout, ..self.clone() }
    }

    /// The addresses of the members, as in the settings.
    pub fn endpoints(&self) -> impl Iterator<Item = &str> {
        self.pool.endpoints().iter().map(|endpoint| endpoint.url.as_str())
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// How long a call may take.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    pub(crate) async fn call<Q, R>(&self, method: &Method, request: Q) -> Result<R, Error>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let limit = self.pool.settings().max_request_bytes;
        let length = request.encoded_len();
        if length > limit {
            return Err(Error::RequestTooLarge(format!("{length} bytes, and the limit is {limit}")));
        }
        let mut progress = Progress::WaitsForSlot;
        match timeout(self.request_timeout, self.attempts(method, request, &mut progress)).await {
            Ok(result) => result,
            Err(_) => Err(self.timeout_error(method, progress)),
        }
    }

    fn timeout_error(&self, method: &Method, progress: Progress) -> Error {
        match progress {
            Progress::WaitsForSlot => {
                let limit = self.pool.settings().max_calls_in_flight;
                Error::TooManyRequests(format!("{limit} calls to etcd wait for their answers"))
            }
            Progress::WaitsForMember(Some(error)) => error,
            Progress::WaitsForMember(None) => {
                let reason = format!("no connection within {:?}", self.request_timeout);
                let endpoints: Vec<&str> = self.endpoints().collect();
                Error::not_reachable(&endpoints.join(", "), reason)
            }
            Progress::Sent(endpoint) if method.is_repeatable => Error::Deadline {
                endpoint: endpoint.url.clone(),
                method: method.name,
                timeout: self.request_timeout,
            },
            Progress::Sent(endpoint) => Error::UnknownOutcome {
                endpoint: endpoint.url.clone(),
                method: method.name,
                reason: format!("no answer within {:?}", self.request_timeout),
            },
        }
    }

    async fn attempts<Q, R>(&self, method: &Method, request: Q, progress: &mut Progress) -> Result<R, Error>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        // The slots are never closed.
        let _slot = self.slots.acquire().await;
        *progress = Progress::WaitsForMember(None);
        let mut backoff = Backoff::new();
        loop {
            backoff.pause().await;
            let active = match self.pool.active().await {
                Ok(active) => active,
                Err(error) => {
                    *progress = Progress::WaitsForMember(Some(error));
                    continue;
                }
            };
            let connection = active.connection();
            *progress = Progress::Sent(connection.endpoint.clone());
            let response = connection.unary(method, request.clone(), self.request_timeout).await;
            let attempt = self.describe_attempt(connection, method);
            match response.map_err(|status| attempt.failure(&status)) {
                Ok(response) => return Ok(response),
                Err(Failure::Final(error)) => {
                    if !connection.is_usable() {
                        self.pool.discard(&active);
                    }
                    return Err(error);
                }
                Err(Failure::Repeat(error)) => {
                    *progress = Progress::WaitsForMember(Some(error));
                    // Another member may be better off. A new connection to the only one would not help.
                    if self.pool.endpoints().len() > 1 || !connection.is_usable() {
                        self.pool.discard(&active);
                    }
                }
            }
        }
    }

    /// What errors say of a call over this connection.
    pub(crate) fn describe_attempt<'a>(&self, connection: &'a Connection, method: &'a Method) -> Attempt<'a> {
        let max_response_bytes = self.pool.settings().max_response_bytes;
        Attempt { method, endpoint: connection.url(), max_response_bytes }
    }
}
