//! One watch at one member.

use std::collections::VecDeque;

use futures::stream::poll_fn;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Streaming;

use super::assembler::{Assembler, RevisionEvents};
use crate::client::Client;
use crate::error::Error;
use crate::failure::Attempt;
use crate::limits::STREAM_REQUESTS;
use crate::messages::{
    ResponseHeader, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchRequestKind, WatchResponse,
};
use crate::methods::WATCH;
use crate::transport::Connection;

/// The id in responses that concern all watches of a stream.
const ALL_WATCHES: i64 = -1;

/// What a watch reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchUpdate {
    /// All events of one revision. Revisions come in their order, each once.
    Revision(RevisionEvents),
    /// Nothing up to this revision is missing.
    Progress(i64),
    /// The answer to [`WatchStream::request_progress`]. Members before 3.4.25 and 3.5.8 may send it before older events.
    RequestedProgress(i64),
}

/// One watch at one member, over a connection of its own. It ends with the connection; see [`super::ResumableWatch`].
///
/// Its connection is its own for two reasons: a reader that does not keep up fills the windows of a connection, and some releases of
/// etcd let watches starve behind large responses on the same encrypted connection.
pub struct WatchStream {
    connection: Connection,
    max_response_bytes: usize,
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
    watch_id: i64,
    created: ResponseHeader,
    assembler: Assembler,
    /// What was received and not returned yet: the updates of one response.
    ready: VecDeque<WatchUpdate>,
}

impl Client {
    /// Begins a watch at one member.
    pub async fn watch(&self, request: WatchCreateRequest) -> Result<WatchStream, Error> {
        let (client, pool) = (self.clone(), self.pool().clone());
        let opened = self.pool().runtime().spawn(async move {
            let connection = pool.dedicated(None).await?;
            WatchStream::open(&client, connection, request).await
        });
        opened.await.unwrap_or_else(|error| Err(Error::not_reachable("etcd", error.to_string())))
    }
}

impl WatchStream {
    /// Begins a watch over this connection.
    pub(super) async fn open(
        client: &Client,
        connection: Connection,
        mut request: WatchCreateRequest,
    ) -> Result<WatchStream, Error> {
        let max_response_bytes = client.pool().settings().max_response_bytes;
        let attempt = client.describe_attempt(&connection, &WATCH);
        // The id on a stream with one watch.
        request.watch_id = 0;
        let position = request.start_revision.saturating_sub(1);
        let (requests, mut queue) = mpsc::channel(STREAM_REQUESTS);
        let queue = poll_fn(move |context| queue.poll_recv(context));
        let _first = requests.try_send(WatchRequestKind::Create(request).into());
        let limit = client.pool().settings().dial_timeout;
        let created = timeout(limit, async {
            let opened = connection.stream::<_, _, WatchResponse>(&WATCH, queue);
            let mut responses = connection.unless_silent(opened).await?;
            let first = connection.unless_silent(responses.message()).await?;
            Ok((responses, first))
        });
        let (responses, first) = match created.await {
            Ok(result) => result.map_err(|status| attempt.failure(&status).into_error())?,
            Err(_) => return Err(Error::not_reachable(connection.url(), "the watch is not created")),
        };
        let first = first.ok_or_else(|| ended(&connection, "before it began"))?;
        if first.canceled {
            return Err(cancellation(&attempt, &first));
        }
        let header = first.header.filter(|_| first.created && first.events.is_empty());
        let created = header.ok_or_else(|| attempt.invalid("the watch is not created"))?;
        Ok(WatchStream {
            connection,
            max_response_bytes,
            requests,
            responses,
            watch_id: first.watch_id,
            created,
            assembler: Assembler::new(position, max_response_bytes),
            ready: VecDeque::new(),
        })
    }

    /// The member, and its revision when the watch began, which may be behind that of others.
    pub fn created(&self) -> &ResponseHeader {
        &self.created
    }

    /// The address of the member.
    pub fn endpoint(&self) -> &str {
        self.connection.url()
    }

    /// Asks how far the watch has come, and returns whether the request fits into the queue. See [`WatchUpdate::RequestedProgress`].
    pub fn request_progress(&self) -> bool {
        let request = WatchRequestKind::Progress(WatchProgressRequest {});
        self.requests.try_send(request.into()).is_ok()
    }

    /// The next update. It may be dropped while it waits, and be called again. After an error, the watch has ended.
    pub async fn next(&mut self) -> Result<WatchUpdate, Error> {
        loop {
            if let Some(update) = self.ready.pop_front() {
                return Ok(update);
            }
            self.receive().await?;
        }
    }

    /// All updates of the next response, at least one.
    pub(super) async fn next_batch(&mut self) -> Result<VecDeque<WatchUpdate>, Error> {
        while self.ready.is_empty() {
            self.receive().await?;
        }
        Ok(std::mem::take(&mut self.ready))
    }

    async fn receive(&mut self) -> Result<(), Error> {
        // A quiet watch looks like one whose member is gone, so the member is asked now and then whether it lives.
        let message = self.connection.unless_silent(self.responses.message()).await;
        let max_response_bytes = self.max_response_bytes;
        let attempt = Attempt { method: &WATCH, endpoint: self.connection.url(), max_response_bytes };
        let response = message.map_err(|status| attempt.failure(&status).into_error())?;
        let response = response.ok_or_else(|| ended(&self.connection, "the member has closed it"))?;
        if response.watch_id != self.watch_id && response.watch_id != ALL_WATCHES {
            return Err(attempt.invalid(format!("it is about the watch {}", response.watch_id)));
        }
        if response.canceled {
            return Err(cancellation(&attempt, &response));
        }
        if response.created {
            return Err(attempt.invalid("the watch is created again"));
        }
        if response.events.is_empty() && !response.fragment {
            let revision = response.header.ok_or_else(|| attempt.invalid("it has no revision"))?.revision;
            if response.watch_id == ALL_WATCHES {
                self.ready.push_back(WatchUpdate::RequestedProgress(revision));
            } else {
                self.assembler.advance(revision).map_err(|reason| attempt.invalid(reason))?;
                self.ready.push_back(WatchUpdate::Progress(revision));
            }
            return Ok(());
        }
        let complete = self.assembler.push(response.events, response.fragment);
        let complete = complete.map_err(|reason| attempt.invalid(reason))?;
        self.ready.extend(complete.into_iter().map(WatchUpdate::Revision));
        Ok(())
    }
}

fn ended(connection: &Connection, reason: &str) -> Error {
    let (endpoint, reason) = (connection.url().to_owned(), reason.to_owned());
    Error::StreamEnded { endpoint, method: WATCH.name, reason }
}

/// Why the member has ended the watch.
fn cancellation(attempt: &Attempt<'_>, response: &WatchResponse) -> Error {
    if response.compact_revision > 0 {
        return Error::Compacted(Some(response.compact_revision));
    }
    let reason = &response.cancel_reason;
    attempt.known_refusal(reason).unwrap_or_else(|| Error::StreamEnded {
        endpoint: attempt.endpoint.to_owned(),
        method: WATCH.name,
        reason: if reason.is_empty() { "the member has canceled it".to_owned() } else { reason.clone() },
    })
}
