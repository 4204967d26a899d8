//! The stream of changes.
//!
//! The whole keyspace is followed by one watch. Every revision of etcd changes some key, so "everything up to revision R was seen" needs
//! no notices of progress, whose behaviour differs between releases. Keys of other programs cost a lookup.

use std::sync::Arc;

use futures::future::FutureExt as _;
use futures::stream::{self, BoxStream, StreamExt as _};
use pilothouse_actors::shared_log::scope::TypeScope;
use pilothouse_actors::shared_log::{ChangeBatch, FollowError, Followed, SharedChange};
use pilothouse_etcd::{AllKeysWatch, Client, Error, RevisionEvents, WatchItem};
use pilothouse_types::object::Revision;

use crate::convert::{from_etcd, refusal, to_etcd};
use crate::limits::{BATCH_BYTES, BATCH_REVISIONS};
use crate::meter::Meter;
use crate::types::Types;

/// The changes after a revision.
pub(crate) fn follow(
    client: &Client,
    deps: FollowDeps,
    after: Revision,
) -> BoxStream<'static, Result<Followed, FollowError>> {
    let watch = client.watch_all_keys(to_etcd(after.next()));
    let following = Following { watch, deps, connection: None, has_ended: false };
    stream::unfold(following, Following::next).boxed()
}

/// What the stream needs beside the watch.
pub(crate) struct FollowDeps {
    pub(crate) types: Arc<Types>,
    /// The types whose changes are wanted.
    pub(crate) scope: TypeScope,
    pub(crate) meter: Meter,
}

/// The state of the stream.
struct Following {
    watch: AllKeysWatch,
    deps: FollowDeps,
    /// What is known of the connection, and was not told yet because changes came before it.
    connection: Option<Followed>,
    has_ended: bool,
}

impl Following {
    /// The changes that have arrived, at least one revision; or what is known of the connection; or why there will be no more.
    ///
    /// A batch is made in one go once its first change is here. So a type that is added between two of them is known for all changes
    /// of the second one.
    async fn next(mut self) -> Option<(Result<Followed, FollowError>, Following)> {
        if let Some(connection) = self.connection.take() {
            return Some((Ok(connection), self));
        }
        if self.has_ended {
            return None;
        }
        let (mut batch, mut bytes) = (ChangeBatch::default(), 0);
        for _ in 0..BATCH_REVISIONS {
            let is_first = batch.revision == Revision::ZERO;
            let item = match is_first {
                true => Some(self.watch.next().await),
                false => self.watch.next().now_or_never(),
            };
            match item {
                Some(Ok(item)) => bytes += self.add(item, &mut batch),
                Some(Err(error)) if is_first => {
                    self.has_ended = true;
                    return Some((Err(follow_error(&error)?), self));
                }
                // An error is returned again by the next call.
                Some(Err(_)) | None => break,
            }
            if bytes >= BATCH_BYTES || self.connection.is_some() {
                break;
            }
        }
        if batch.revision == Revision::ZERO
            && let Some(connection) = self.connection.take()
        {
            return Some((Ok(connection), self));
        }
        self.deps.meter.count_events(batch.changes.iter().map(|change| &change.type_name));
        Some((Ok(Followed::Changes(batch)), self))
    }

    /// Adds an item to a batch, or notes what it says of the connection. Returns the bytes of its changes.
    fn add(&mut self, item: WatchItem, batch: &mut ChangeBatch) -> usize {
        match item {
            WatchItem::Revision(events) => return self.add_changes(events, batch),
            WatchItem::Progress(revision) => {
                self.deps.meter.count_progress();
                batch.revision = batch.revision.max(from_etcd(revision));
            }
            WatchItem::Connected { endpoint, revision } => {
                tracing::info!(endpoint, revision, "following etcd");
                self.connection = Some(Followed::Connected);
            }
            WatchItem::Disconnected(error) => {
                tracing::warn!(%error, "etcd cannot be followed for now");
                self.connection = Some(Followed::Disconnected(refusal(&error)));
            }
        }
        0
    }

    fn add_changes(&self, events: RevisionEvents, batch: &mut ChangeBatch) -> usize {
        let (before, FollowDeps { types, scope, .. }) = (batch.changes.len(), &self.deps);
        batch.revision = from_etcd(events.revision);
        let changes = events.events.into_iter().filter_map(|event| types.change(event));
        batch.changes.extend(changes.filter(|change| scope.has(&change.type_name)));
        batch.changes.iter().skip(before).map(SharedChange::weight).sum()
    }
}

/// Why the log cannot be followed any further; `None` if beginning again may help.
fn follow_error(error: &Error) -> Option<FollowError> {
    match error {
        // A revision that cannot be received is passed by reading everything.
        Error::Compacted(_) | Error::ResponseTooLarge { .. } | Error::InvalidAnswer { .. } => {
            tracing::warn!(%error, "etcd is read anew");
            Some(FollowError::Compacted)
        }
        Error::RevisionRegressed { current, .. } => Some(FollowError::WentBack(from_etcd(*current))),
        Error::ClusterChanged { .. } => Some(FollowError::WentBack(Revision::ZERO)),
        // The server ends.
        Error::ShutDown => None,
        other => {
            tracing::error!(error = %other, "etcd cannot be followed");
            None
        }
    }
}
