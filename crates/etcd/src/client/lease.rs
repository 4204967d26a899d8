//! Leases.

use std::sync::Arc;

use futures::stream::poll_fn;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Streaming;

use super::{Backoff, Client};
use crate::error::Error;
use crate::failure::Failure;
use crate::limits::STREAM_REQUESTS;
use crate::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use crate::methods::{self, LEASE_KEEP_ALIVE};
use crate::transport::Active;

impl Client {
    /// Makes a lease.
    pub async fn lease_grant(&self, request: LeaseGrantRequest) -> Result<LeaseGrantResponse, Error> {
        let method = &methods::LEASE_GRANT;
        let response: LeaseGrantResponse = self.call(method, request).await?;
        match response.error.as_str() {
            "" => Ok(response),
            message => Err(Error::Refused { method: method.name, message: message.to_owned() }),
        }
    }

    /// Ends a lease and deletes its keys.
    pub async fn lease_revoke(&self, id: i64) -> Result<LeaseRevokeResponse, Error> {
        self.call(&methods::LEASE_REVOKE, LeaseRevokeRequest { id }).await
    }

    /// How long a lease still lasts, and its keys if `keys`. A lease that does not exist has a time of -1.
    pub async fn lease_time_to_live(&self, id: i64, keys: bool) -> Result<LeaseTimeToLiveResponse, Error> {
        self.call(&methods::LEASE_TIME_TO_LIVE, LeaseTimeToLiveRequest { id, keys }).await
    }

    /// A stream over which leases are renewed. It is opened by the first renewal.
    pub fn lease_keep_alive(&self) -> LeaseKeepAlive {
        LeaseKeepAlive { client: self.clone(), stream: None }
    }
}

/// A stream over which leases are renewed, one after another. It is opened again, at another member if need be, when it breaks:
/// renewing twice does no harm.
pub struct LeaseKeepAlive {
    client: Client,
    stream: Option<Stream>,
}

struct Stream {
    active: Arc<Active>,
    endpoint: String,
    requests: mpsc::Sender<LeaseKeepAliveRequest>,
    responses: Streaming<LeaseKeepAliveResponse>,
}

impl LeaseKeepAlive {
    /// Renews a lease, and returns for how many seconds. [`Error::LeaseNotFound`] means that it has ended with all its keys.
    pub async fn renew(&mut self, id: i64) -> Result<i64, Error> {
        let limit = self.client.request_timeout();
        let mut last_error = None;
        let result = timeout(limit, async {
            let mut backoff = Backoff::new();
            loop {
                backoff.pause().await;
                match self.renew_once(id).await {
                    Ok(response) if response.ttl > 0 => return Ok(response.ttl),
                    Ok(_) => return Err(Error::LeaseNotFound),
                    Err(Failure::Final(error)) => return Err(error),
                    Err(Failure::Repeat(error)) => last_error = Some(error),
                }
            }
        });
        let result = result.await;
        result.unwrap_or_else(|_| {
            // An answer that comes later would be taken for that of the next renewal.
            let endpoint = self.stream.take().map(|stream| stream.endpoint);
            let method = LEASE_KEEP_ALIVE.name;
            match (last_error, endpoint) {
                (_, Some(endpoint)) => Err(Error::Deadline { endpoint, method, timeout: limit }),
                (Some(error), None) => Err(error),
                (None, None) => Err(Error::not_reachable("etcd", format!("no connection within {limit:?}"))),
            }
        })
    }

    async fn renew_once(&mut self, id: i64) -> Result<LeaseKeepAliveResponse, Failure> {
        // Taken out, so that a renewal that is given up leaves no stream with an answer under way.
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.open(id).await?,
        };
        let response = stream.exchange(&self.client, id).await;
        match response {
            Ok(response) => {
                self.stream = Some(stream);
                Ok(response)
            }
            Err(failure) => {
                self.client.pool().discard(&stream.active);
                Err(failure)
            }
        }
    }

    /// Opens the stream. etcd begins its answer with that to the first renewal, which is therefore made here, and once more by the
    /// caller.
    async fn open(&self, id: i64) -> Result<Stream, Failure> {
        let active = self.client.pool().active().await.map_err(Failure::Repeat)?;
        let connection = active.connection();
        let endpoint = connection.url().to_owned();
        let (requests, mut queue) = mpsc::channel(STREAM_REQUESTS);
        let queue = poll_fn(move |context| queue.poll_recv(context));
        let _first = requests.try_send(LeaseKeepAliveRequest { id });
        let attempt = self.client.describe_attempt(connection, &LEASE_KEEP_ALIVE);
        let opened = connection.unless_silent(connection.stream(&LEASE_KEEP_ALIVE, queue)).await;
        let responses = opened.map_err(|status| attempt.failure(&status))?;
        let mut stream = Stream { active: active.clone(), endpoint, requests, responses };
        stream.next(&self.client).await?;
        Ok(stream)
    }
}

impl Stream {
    async fn exchange(&mut self, client: &Client, id: i64) -> Result<LeaseKeepAliveResponse, Failure> {
        let ended = |stream: &Stream| Failure::Repeat(Error::not_reachable(&stream.endpoint, "it has ended"));
        self.requests.try_send(LeaseKeepAliveRequest { id }).map_err(|_| ended(self))?;
        let response = self.next(client).await?;
        let connection = self.active.connection();
        let attempt = client.describe_attempt(connection, &LEASE_KEEP_ALIVE);
        if response.id != id {
            return Err(Failure::Repeat(attempt.invalid(format!("it is about the lease {:x}", response.id))));
        }
        Ok(response)
    }

    /// The next answer.
    async fn next(&mut self, client: &Client) -> Result<LeaseKeepAliveResponse, Failure> {
        let connection = self.active.connection();
        let attempt = client.describe_attempt(connection, &LEASE_KEEP_ALIVE);
        match connection.unless_silent(self.responses.message()).await {
            Ok(Some(response)) => Ok(response),
            Ok(None) => Err(attempt.unanswered("the stream has ended")),
            Err(status) => Err(attempt.failure(&status)),
        }
    }
}
