//! etcd as the log that several servers share, in the layout of the reference: so servers of both kinds may share it.
//!
//! The whole keyspace is followed by one watch. Every revision of etcd changes some key, so "everything up to revision R was seen" needs
//! no notices of progress, whose behaviour differs between releases. Keys of other programs cost a lookup.

mod convert;
mod types;

use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{self, BoxStream, StreamExt as _};
use pilothouse_actors::shared_log::{
    ChangeBatch, Decoded, FollowError, Loaded, Proposal, ProposalOutcome, ProposedChange, SharedEntry,
    SharedLog, SharedLogError,
};
use pilothouse_etcd::messages::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, ResponseHeader, TxnRequest, TxnResponse,
    WatchCreateRequest,
};
use pilothouse_etcd::{Client, Error, ResumableWatch, WatchItem};
use pilothouse_etcd_layout::keys::COMPACTION_KEY;
use pilothouse_etcd_layout::values::{ValueCodec, ValueError};
use pilothouse_types::object::{Draft, Key, Revision, StoredDraft, TypeName, UnreadableReason};

use self::convert::{from_etcd, refusal, to_etcd};
pub use self::types::Types;

/// The most revisions that are handed on at once.
const BATCH_REVISIONS: usize = 256;

/// One etcd cluster. Cheap to clone.
#[derive(Clone)]
pub struct EtcdLog {
    client: Client,
    types: Arc<Types>,
    codec: Arc<ValueCodec>,
}

impl EtcdLog {
    /// The objects of these types in this cluster.
    pub fn new(client: Client, types: Arc<Types>, codec: ValueCodec) -> EtcdLog {
        EtcdLog { client, types, codec: Arc::new(codec) }
    }

    /// The form in which etcd gets a draft; `None` if the type is not known, and then a store refuses the write. Any thread may call
    /// this, so that stores have nothing to encode.
    pub fn encode(&self, type_name: &TypeName, draft: &Draft) -> Result<Option<StoredDraft>, ValueError> {
        let Some(resource) = self.types.resource(type_name) else { return Ok(None) };
        let bytes = self.codec.encode(&resource, draft)?;
        Ok(Some(StoredDraft { bytes: bytes.into(), key_id: None }))
    }

    async fn load_all(self) -> Result<Loaded, SharedLogError> {
        let mut loaded = Loaded::default();
        let prefix = self.types.prefix();
        let mut pages = self.client.pages(RangeRequest::prefix(prefix));
        while let Some(page) = pages.next().await.map_err(|error| refusal(&error))? {
            loaded.revision = from_etcd(page.revision);
            let entries = page.kvs.into_iter().filter_map(|entry| {
                let (type_name, key) = self.types.locate(&entry.key)?;
                let revision = from_etcd(entry.mod_revision);
                Some(SharedEntry { type_name, key, revision, value: entry.value })
            });
            loaded.entries.extend(entries);
        }
        Ok(loaded)
    }

    async fn transact(self, transaction: Option<TxnRequest>) -> ProposalOutcome {
        let Some(transaction) = transaction else {
            let reason = "nothing is known of this type".into();
            return ProposalOutcome::Failed(SharedLogError::Unavailable(reason));
        };
        match self.client.txn(transaction).await {
            Ok(response) => outcome(&response),
            Err(error) if error.is_unknown_outcome() => ProposalOutcome::Unknown,
            Err(error) => ProposalOutcome::Failed(refusal(&error)),
        }
    }

    /// The transaction of a proposal; `None` if there is no such type.
    fn transaction(&self, proposal: Proposal) -> Option<TxnRequest> {
        let Proposal { type_name, key, expected, change } = proposal;
        let key = Bytes::from(self.types.etcd_key(&type_name, &key)?);
        let condition = match expected {
            Some(revision) => Compare::mod_revision_is(key.clone(), to_etcd(revision)),
            None => Compare::is_absent(key.clone()),
        };
        let transaction = TxnRequest::when([condition]);
        let transaction = match change {
            ProposedChange::Put(value) => transaction.and_then(PutRequest::new(key.clone(), value)),
            ProposedChange::Remove => transaction.and_then(DeleteRangeRequest::key(key.clone())),
        };
        Some(transaction.or_else(RangeRequest { keys_only: true, ..RangeRequest::key(key) }))
    }
}

/// What a transaction has done.
fn outcome(response: &TxnResponse) -> ProposalOutcome {
    if response.succeeded {
        // Without a header nobody knows when its change arrives.
        let accepted = |header: &ResponseHeader| ProposalOutcome::Accepted(from_etcd(header.revision));
        return response.header.as_ref().map_or(ProposalOutcome::Unknown, accepted);
    }
    let present = response.range(0).and_then(|range| range.kvs.first());
    ProposalOutcome::Refused(present.map(|entry| from_etcd(entry.mod_revision)))
}

impl SharedLog for EtcdLog {
    fn load(&self) -> BoxFuture<'static, Result<Loaded, SharedLogError>> {
        self.clone().load_all().boxed()
    }

    fn follow(&self, after: Revision) -> BoxStream<'static, Result<ChangeBatch, FollowError>> {
        let first = to_etcd(after.next());
        // From the first possible key to the end: an empty range end would be one key, and a zero byte stands for all.
        let everything = WatchCreateRequest {
            range_end: Bytes::from_static(b"\0"),
            ..WatchCreateRequest::key(Bytes::from_static(b"\0"), first)
        };
        let watch = self.client.resumable_watch(everything);
        let followed = Followed { watch, types: Arc::clone(&self.types), has_ended: false };
        stream::unfold(followed, Followed::next).boxed()
    }

    fn current_revision(&self) -> BoxFuture<'static, Result<Revision, SharedLogError>> {
        let client = self.client.clone();
        async move {
            // Any linearizable read tells the revision.
            let read =
                client.range(RangeRequest { keys_only: true, ..RangeRequest::key(COMPACTION_KEY) }).await;
            let header = read.map_err(|error| refusal(&error))?.header;
            let without = || SharedLogError::Unavailable("the answer of etcd has no revision".into());
            header.map(|header| from_etcd(header.revision)).ok_or_else(without)
        }
        .boxed()
    }

    fn propose(&self, proposal: Proposal) -> BoxFuture<'static, ProposalOutcome> {
        let transaction = self.transaction(proposal);
        self.clone().transact(transaction).boxed()
    }

    fn decode(&self, type_name: &TypeName, key: &Key, value: &Bytes) -> Result<Decoded, UnreadableReason> {
        let resource = self.types.resource(type_name).ok_or(UnreadableReason::Damaged)?;
        match self.codec.decode(&resource, key, value) {
            Ok(decoded) => Ok(Decoded { draft: decoded.draft, key_id: None }),
            Err(error) => {
                tracing::error!(%error, "an object in etcd cannot be read");
                Err(UnreadableReason::Damaged)
            }
        }
    }
}

/// The stream of changes.
struct Followed {
    watch: ResumableWatch,
    types: Arc<Types>,
    has_ended: bool,
}

impl Followed {
    /// The changes that have arrived, at least one revision; or why there will be no more.
    async fn next(mut self) -> Option<(Result<ChangeBatch, FollowError>, Followed)> {
        if self.has_ended {
            return None;
        }
        let mut batch = ChangeBatch::default();
        // What is known of the connection is no change.
        while batch.revision == Revision::ZERO {
            match self.watch.next().await {
                Ok(item) => self.add(item, &mut batch),
                Err(error) => {
                    self.has_ended = true;
                    return Some((Err(follow_error(&error)?), self));
                }
            }
        }
        for _ in 1..BATCH_REVISIONS {
            // An error is returned again by the next call.
            let Some(Ok(item)) = self.watch.next().now_or_never() else { break };
            self.add(item, &mut batch);
        }
        Some((Ok(batch), self))
    }

    fn add(&self, item: WatchItem, batch: &mut ChangeBatch) {
        match item {
            WatchItem::Revision(events) => {
                batch.revision = from_etcd(events.revision);
                batch.changes.extend(events.events.into_iter().filter_map(|event| self.types.change(event)));
            }
            WatchItem::Progress(revision) => batch.revision = batch.revision.max(from_etcd(revision)),
            WatchItem::Connected { endpoint, revision } => {
                tracing::info!(endpoint, revision, "following etcd");
            }
            WatchItem::Disconnected(error) => tracing::warn!(%error, "etcd cannot be followed for now"),
        }
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
        other => {
            tracing::error!(error = %other, "etcd cannot be followed");
            None
        }
    }
}
