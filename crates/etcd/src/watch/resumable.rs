//! A watch that goes on at another member when its connection fails: without gap, repetition or reordering, or with an error.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::assembler::RevisionEvents;
use super::stream::{WatchStream, WatchUpdate};
use crate::client::{Backoff, Client};
use crate::error::Error;
use crate::limits::WATCH_RESPONSES;
use crate::messages::{RangeRequest, RangeResponse, ResponseHeader, WatchCreateRequest};
use crate::methods::RANGE;
use crate::transport::Connection;

/// What a watch that resumes reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchItem {
    /// A member has accepted the watch. `revision` is the newest one of the cluster at that time: what is not newer than that comes
    /// next.
    Connected {
        /// The member.
        endpoint: String,
        /// The newest revision.
        revision: i64,
    },
    /// All events of one revision. Revisions come in their order, each once.
    Revision(RevisionEvents),
    /// Nothing up to this revision is missing.
    Progress(i64),
    /// The connection has failed, or none could be made. The watch goes on by itself.
    Disconnected(Error),
}

/// A watch that goes on at another member when its connection fails.
///
/// It ends with an error if it cannot go on: the next revision was compacted, the cluster went back to an older state or is another
/// one, or etcd breaks its promises. Whoever reads it then has to read the current state and begin anew.
pub struct ResumableWatch {
    items: mpsc::Receiver<Result<Vec<WatchItem>, Error>>,
    ready: VecDeque<WatchItem>,
    /// Why the watch has ended.
    error: Option<Error>,
    _follower: AbortOnDropHandle<()>,
}

impl Client {
    /// Begins a watch that resumes, at the revision of the request or, if it has none, after the newest one. It connects and decodes
    /// on the runtime of the connections, a few responses ahead of its reader.
    pub fn resumable_watch(&self, request: WatchCreateRequest) -> ResumableWatch {
        self.resumable_watch_until(request, None, Arc::default())
    }

    /// The same up to a revision. What comes after it may be missing, and whoever reads on finds that the watch has ended. Watches with
    /// one `cluster_id` must have the same cluster.
    pub(super) fn resumable_watch_until(
        &self,
        request: WatchCreateRequest,
        last: Option<i64>,
        cluster_id: Arc<OnceLock<u64>>,
    ) -> ResumableWatch {
        let (sender, items) = mpsc::channel(WATCH_RESPONSES);
        let position = Some(request.start_revision.saturating_sub(1)).filter(|position| *position >= 0);
        let follower = Follower {
            client: self.clone(),
            request,
            position,
            last,
            cluster_id,
            first: None,
            backoff: Backoff::new(),
            sender,
        };
        let task = self.pool().runtime().spawn(follower.run());
        let _follower = AbortOnDropHandle::new(task);
        ResumableWatch { items, ready: VecDeque::new(), error: None, _follower }
    }
}

impl ResumableWatch {
    /// The next item. It may be dropped while it waits, and be called again. After an error, the watch has ended, and the error is
    /// returned again.
    pub async fn next(&mut self) -> Result<WatchItem, Error> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(item);
            }
            if let Some(error) = &self.error {
                return Err(error.clone());
            }
            match self.items.recv().await {
                Some(Ok(items)) => self.ready.extend(items),
                Some(Err(error)) => self.error = Some(error),
                None => self.error = Some(Error::ShutDown),
            }
        }
    }
}

/// Whether no other member would serve the watch better.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::Compacted(_)
            | Error::RevisionRegressed { .. }
            | Error::ClusterChanged { .. }
            | Error::InvalidAnswer { .. }
            | Error::ResponseTooLarge { .. }
    )
}

/// The reader is gone.
struct ReaderGone;

/// Why following a member has ended.
enum End {
    Failed(Error),
    /// The reader wants no more.
    Finished,
}

impl From<Error> for End {
    fn from(error: Error) -> End {
        End::Failed(error)
    }
}

impl From<ReaderGone> for End {
    fn from(ReaderGone: ReaderGone) -> End {
        End::Finished
    }
}

/// Follows one member after another.
struct Follower {
    client: Client,
    request: WatchCreateRequest,
    /// The revision up to which everything was sent to the reader; `None` until a watch without a start has begun.
    position: Option<i64>,
    /// The last revision that the reader wants; `None` if there is none.
    last: Option<i64>,
    /// The cluster that answered first.
    cluster_id: Arc<OnceLock<u64>>,
    /// The member that is tried first.
    first: Option<usize>,
    backoff: Backoff,
    sender: mpsc::Sender<Result<Vec<WatchItem>, Error>>,
}

impl Follower {
    async fn run(mut self) {
        loop {
            self.backoff.pause().await;
            let error = match self.follow().await {
                Ok(never) => match never {},
                Err(End::Finished) => return,
                Err(End::Failed(error)) => error,
            };
            if is_final(&error) {
                let _reader_gone = self.sender.send(Err(error)).await;
                return;
            }
            tracing::debug!(%error, position = self.position, "a watch of etcd is interrupted");
            if self.send(vec![WatchItem::Disconnected(error)]).await.is_err() {
                return;
            }
        }
    }

    async fn send(&self, items: Vec<WatchItem>) -> Result<(), ReaderGone> {
        self.sender.send(Ok(items)).await.map_err(|_| ReaderGone)
    }

    /// Follows one member until that fails.
    async fn follow(&mut self) -> Result<std::convert::Infallible, End> {
        let connection = self.client.pool().dedicated(self.first).await?;
        // If this member fails, the next one is tried first.
        self.first = Some((connection.index + 1) % self.client.pool().endpoints().len());
        let endpoint = connection.url().to_owned();
        let header = self.newest(&connection).await?;
        self.check_cluster(&endpoint, &header)?;
        let position = *self.position.get_or_insert(header.revision);
        if header.revision < position {
            return Err(Error::RevisionRegressed { seen: position, current: header.revision }.into());
        }
        let request = WatchCreateRequest { start_revision: position + 1, ..self.request.clone() };
        let mut stream = WatchStream::open(&self.client, connection, request).await?;
        self.check_cluster(&endpoint, stream.created())?;
        self.send(vec![WatchItem::Connected { endpoint, revision: header.revision }]).await?;
        loop {
            let updates = stream.next_batch().await?;
            self.backoff.reset();
            let mut items = Vec::with_capacity(updates.len());
            for update in updates {
                match update {
                    WatchUpdate::Revision(events) => {
                        self.position = Some(events.revision);
                        items.push(WatchItem::Revision(events));
                    }
                    WatchUpdate::Progress(revision) => {
                        self.position = self.position.max(Some(revision));
                        items.push(WatchItem::Progress(revision));
                    }
                    // Nobody asks for it here, because it cannot be relied upon.
                    WatchUpdate::RequestedProgress(_) => {}
                }
            }
            self.send(items).await?;
            if self.last.is_some_and(|last| self.position >= Some(last)) {
                return Err(End::Finished);
            }
        }
    }

    /// The newest revision of the cluster, by a read that a majority has confirmed. The member alone may be behind, and that would
    /// look as if the cluster had gone back.
    async fn newest(&self, connection: &Connection) -> Result<ResponseHeader, Error> {
        // A key that whoever may watch may also read.
        let key = match self.request.key.is_empty() {
            true => Bytes::from_static(&[0]),
            false => self.request.key.clone(),
        };
        let request = RangeRequest { keys_only: true, ..RangeRequest::key(key) };
        let limit: Duration = self.client.request_timeout();
        let attempt = self.client.describe_attempt(connection, &RANGE);
        let response = timeout(limit, connection.unary::<_, RangeResponse>(&RANGE, request, limit));
        let response = match response.await {
            Ok(response) => response.map_err(|status| attempt.failure(&status).into_error())?,
            Err(_) => return Err(attempt.unanswered(&format!("no answer within {limit:?}")).into_error()),
        };
        response.header.ok_or_else(|| attempt.invalid("it has no revision"))
    }

    fn check_cluster(&self, endpoint: &str, header: &ResponseHeader) -> Result<(), Error> {
        let expected = *self.cluster_id.get_or_init(|| header.cluster_id);
        match expected == header.cluster_id {
            true => Ok(()),
            false => Err(Error::ClusterChanged {
                endpoint: endpoint.to_owned(),
                expected,
                actual: header.cluster_id,
            }),
        }
    }
}
