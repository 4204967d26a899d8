//! The log: what is read, and what is written.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{self, BoxStream, StreamExt as _};
use pilothouse_actors::shared_log::scope::TypeScope;
use pilothouse_actors::shared_log::{
    Decoded, FollowError, Followed, Loaded, PastError, Proposal, ProposalOutcome, ProposedChange,
    SharedEntry, SharedLog, SharedLogError,
};
use pilothouse_api::custom::definition::resource_of_store;
use pilothouse_encryption::Encryption;
use pilothouse_etcd::messages::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest, TxnResponse, WatchCreateRequest,
};
use pilothouse_etcd::{Client, Error, Page, Pages, WatchItem};
use pilothouse_etcd_layout::expiry_leases::DEFAULT_REUSE;
use pilothouse_etcd_layout::keys::{COMPACTION_KEY, Record};
use pilothouse_etcd_layout::values::ValueCodec;
use pilothouse_types::clock::Clock;
use pilothouse_types::object::{Draft, Key, Revision, StoredDraft, TypeName, UnreadableReason};
use tokio::time::timeout;

use crate::compactor;
use crate::convert::{from_etcd, refusal, to_etcd, unavailable, unknown_type};
use crate::decoding::decode_all;
use crate::endpoint_leases::{self, EndpointLeases};
use crate::event_leases::EventLeases;
use crate::follow::{self, FollowDeps};
use crate::leased_records::LeasedRecords;
use crate::limits::{HISTORY_REVISIONS, PAST_ATTEMPTS, PAST_TIMEOUT};
use crate::meter::{Meter, NO_RESOURCE, Observer, Operation};
use crate::peer_leases::{self, PeerEndpoint, PeerLeases};
use crate::range_records::RangeAllocations;
use crate::types::Types;
use crate::values::{EncodeError, Values, may_need_plugin};

/// What is wrong with an answer that etcd does not give.
const WITHOUT_REVISION: &str = "the answer of etcd has no revision";

/// The revision of a read that wants the newest state.
const NEWEST: i64 = 0;

/// How objects are stored.
pub struct EtcdLogOptions {
    /// Encodes and decodes objects.
    pub codec: ValueCodec,
    /// Which types are encrypted, and how; `None` if none is.
    pub encryption: Option<Arc<Encryption>>,
    /// How long events live after they were written last: `--event-ttl`, of which whole seconds count. `None` and zero mean forever.
    pub event_ttl: Option<Duration>,
    /// How long events share a lease at most: `--lease-reuse-duration-seconds`.
    pub lease_reuse: Duration,
    /// The source of time.
    pub clock: Clock,
    /// Counts what is done with etcd; `None` if nobody does.
    pub observer: Option<Arc<dyn Observer>>,
}

impl EtcdLogOptions {
    /// Nothing is encrypted, nothing expires, and nothing is counted.
    pub fn new(codec: ValueCodec, clock: Clock) -> EtcdLogOptions {
        let (encryption, event_ttl, observer) = (None, None, None);
        EtcdLogOptions { codec, encryption, event_ttl, lease_reuse: DEFAULT_REUSE, clock, observer }
    }
}

/// One etcd cluster. Cheap to clone.
#[derive(Clone)]
pub struct EtcdLog {
    client: Client,
    types: Arc<Types>,
    /// The types whose objects are in this cluster.
    scope: TypeScope,
    values: Arc<Values>,
    /// `None` if events live forever.
    event_leases: Option<Arc<EventLeases>>,
    meter: Meter,
}

impl EtcdLog {
    /// The objects of these types in this cluster.
    pub fn new(client: Client, types: Arc<Types>, options: EtcdLogOptions) -> EtcdLog {
        let EtcdLogOptions { codec, encryption, event_ttl, lease_reuse, clock, observer } = options;
        let values = Arc::new(Values::new(Arc::clone(&types), codec, encryption));
        let meter = Meter::new(clock.clone(), observer);
        let event_leases = EventLeases::new(event_ttl, lease_reuse, clock, meter.clone()).map(Arc::new);
        EtcdLog { client, types, scope: TypeScope::all(), values, event_leases, meter }
    }

    /// The same for certain types only.
    #[must_use]
    pub fn with_scope(self, scope: TypeScope) -> EtcdLog {
        EtcdLog { scope, ..self }
    }

    /// The objects of certain types in another cluster, stored in the same way. Both may have the leases of events: only one of them
    /// has events.
    #[must_use]
    pub fn in_cluster(&self, client: Client, scope: TypeScope) -> EtcdLog {
        EtcdLog { client, scope, ..self.clone() }
    }

    /// Whether the objects of this type are in this cluster.
    pub fn has(&self, type_name: &TypeName) -> bool {
        self.scope.has(type_name)
    }

    /// The form in which etcd gets a draft; `None` if its type is not known, or has no objects with such a key, and then a store
    /// refuses the write. Any thread may call this, so that stores have nothing to encode. Never waits.
    pub fn encode(&self, type_name: &TypeName, draft: &Draft) -> Result<Option<StoredDraft>, EncodeError> {
        self.values.encode(type_name, draft)
    }

    /// What copies of everything in it work with.
    pub(crate) fn copy_parts(&self) -> (Client, Arc<Types>, Arc<Values>) {
        (self.client.clone(), Arc::clone(&self.types), Arc::clone(&self.values))
    }

    /// What encodes and decodes.
    pub(crate) fn into_values(self) -> Arc<Values> {
        self.values
    }

    /// Whether etcd answers within this time, and why not.
    pub async fn check(&self, max_wait: Duration) -> Result<(), SharedLogError> {
        let read = self.client.with_timeout(max_wait).range(RangeRequest::key(COMPACTION_KEY)).await;
        read.map(drop).map_err(|error| refusal(&error))
    }

    /// The record by which others know that the server with this address is alive.
    pub fn endpoint_leases(&self, address: String) -> EndpointLeases {
        let records = self.leased_records(endpoint_leases::RECORDS);
        EndpointLeases::new(records, self.types.endpoint_leases_prefix(), address)
    }

    /// The record by which others know where they reach this server.
    pub fn peer_leases(&self, own: PeerEndpoint) -> PeerLeases {
        PeerLeases::new(self.leased_records(peer_leases::RECORDS), own)
    }

    fn leased_records(&self, resource: &'static str) -> LeasedRecords {
        let (client, types, values) =
            (self.client.clone(), Arc::clone(&self.types), Arc::clone(&self.values));
        LeasedRecords::new(client, types, values, self.meter.clone(), resource)
    }

    /// The size of the database of the member in use, in bytes.
    pub async fn database_bytes(&self, max_wait: Duration) -> Result<i64, SharedLogError> {
        let status = self.client.with_timeout(max_wait).status().await;
        status.map(|status| status.db_size).map_err(|error| unavailable(&error.to_string()))
    }

    /// The size of the database of each member, in bytes, by the address of the member. `None` if it does not tell.
    pub async fn member_bytes(&self) -> Vec<(String, Option<i64>)> {
        let statuses = self.client.statuses().await;
        let sizes = statuses.into_iter().map(|status| status.ok().map(|status| status.db_size));
        self.client.endpoints().map(str::to_owned).zip(sizes).collect()
    }

    /// The record of which node ports or cluster IPs are taken.
    pub fn range_allocations(&self, record: &Record) -> RangeAllocations {
        RangeAllocations::new(&self.client, &self.types, Arc::clone(&self.values), record)
    }

    /// Takes turns with other servers at compacting etcd, once in every interval, for ever.
    pub async fn compact_every(self, interval: Duration) {
        compactor::run(self.client, interval).await;
    }

    /// Reads all objects whose etcd keys begin like this.
    async fn read(&self, resource: &str, prefix: String) -> Result<Loaded, SharedLogError> {
        self.read_at(resource, prefix, NEWEST).await.map_err(|error| refusal(&error))
    }

    /// The same at a revision.
    async fn read_at(&self, resource: &str, prefix: String, revision: i64) -> Result<Loaded, Error> {
        let mut loaded = Loaded::default();
        let mut pages = self.client.pages(RangeRequest { revision, ..RangeRequest::prefix(prefix) });
        while pages.has_next() {
            let page = self.meter.measure(Operation::List, resource, pages.next()).await?;
            let Some(page) = page else { break };
            loaded.revision = from_etcd(page.revision);
            loaded.entries.extend(self.entries(page));
        }
        Ok(loaded)
    }

    /// The objects of a page.
    fn entries(&self, page: Page) -> impl Iterator<Item = SharedEntry> {
        page.kvs.into_iter().filter_map(|entry| {
            let located = self.types.locate_object(&entry.key);
            let (type_name, key) = located.filter(|(type_name, _)| self.scope.has(type_name))?;
            let (revision, created) = (from_etcd(entry.mod_revision), from_etcd(entry.create_revision));
            Some(SharedEntry { type_name, key, revision, created, value: entry.value })
        })
    }

    /// The objects of the next page of a type; `None` after the last.
    async fn next_entries(
        &self,
        type_name: &TypeName,
        pages: &mut Pages,
    ) -> Result<Option<Vec<SharedEntry>>, PastError> {
        let page = self.meter.measure(Operation::List, resource_of_store(type_name), pages.next()).await;
        match page {
            // A definition may have replaced another one meanwhile.
            Ok(page) => {
                Ok(page
                    .map(|page| self.entries(page).filter(|entry| entry.type_name == *type_name).collect()))
            }
            Err(Error::Compacted(_)) => Err(PastError::Compacted),
            Err(error) => Err(refusal(&error).into()),
        }
    }

    /// Reads all objects as they were so many revisions ago, or at the oldest revision that is still known.
    async fn read_past(&self) -> Result<Loaded, SharedLogError> {
        let newest = to_etcd(self.current_revision().await?);
        let mut revision = newest.saturating_sub(HISTORY_REVISIONS).max(1);
        for _attempt in 0..PAST_ATTEMPTS {
            match self.read_at(NO_RESOURCE, self.types.prefix(), revision).await {
                Err(Error::Compacted(_)) => {}
                read => return read.map_err(|error| refusal(&error)),
            }
            // Only a watch is told how far etcd is compacted.
            let Some(compacted) = self.compacted_after(revision).await else { break };
            revision = compacted;
        }
        self.read(NO_RESOURCE, self.types.prefix()).await
    }

    /// Up to which revision etcd is compacted, if that is more than this one.
    async fn compacted_after(&self, revision: i64) -> Option<i64> {
        let mut watch = self.client.resumable_watch(WatchCreateRequest::key(COMPACTION_KEY, revision));
        let compacted = async {
            loop {
                match watch.next().await {
                    Ok(WatchItem::Connected { .. } | WatchItem::Disconnected(_)) => {}
                    Err(Error::Compacted(compacted)) => return compacted,
                    Ok(_) | Err(_) => return None,
                }
            }
        };
        timeout(PAST_TIMEOUT, compacted).await.ok().flatten()
    }

    async fn write(self, proposal: Proposal) -> ProposalOutcome {
        let lease = match self.lease(&proposal).await {
            Ok(lease) => lease,
            // Whatever became of the lease: the object was not written.
            Err(error) => return ProposalOutcome::Failed(refusal(&error)),
        };
        let (operation, type_name) = (operation(&proposal), proposal.type_name.clone());
        let Some(transaction) = self.transaction(proposal, lease) else {
            return ProposalOutcome::Failed(unknown_type());
        };
        let written = self.client.txn(transaction);
        match self.meter.measure(operation, resource_of_store(&type_name), written).await {
            Ok(response) => outcome(&response),
            Err(error) if error.is_unknown_outcome() => ProposalOutcome::Unknown,
            Err(error) => {
                if let (Error::LeaseNotFound, Some(leases)) = (&error, &self.event_leases) {
                    leases.lost(lease).await;
                }
                ProposalOutcome::Failed(refusal(&error))
            }
        }
    }

    /// The lease under which the object of a proposal is put; 0 for none.
    async fn lease(&self, proposal: &Proposal) -> Result<i64, Error> {
        let is_put = matches!(proposal.change, ProposedChange::Put(_));
        match &self.event_leases {
            Some(leases) if is_put && EventLeases::is_of_events(&proposal.type_name) => {
                leases.lease(&self.client).await
            }
            _ => Ok(0),
        }
    }

    /// The transaction of a proposal; `None` if there is no such type.
    fn transaction(&self, proposal: Proposal, lease: i64) -> Option<TxnRequest> {
        let Proposal { type_name, key, expected, change } = proposal;
        let key = Bytes::from(self.types.etcd_key(&type_name, &key)?);
        let condition = match expected {
            Some(revision) => Compare::mod_revision_is(key.clone(), to_etcd(revision)),
            None => Compare::is_absent(key.clone()),
        };
        let transaction = TxnRequest::when([condition]);
        let transaction = match change {
            ProposedChange::Put(value) => {
                transaction.and_then(PutRequest { lease, ..PutRequest::new(key.clone(), value) })
            }
            ProposedChange::Remove => transaction.and_then(DeleteRangeRequest::key(key.clone())),
        };
        Some(transaction.or_else(RangeRequest { keys_only: true, ..RangeRequest::key(key) }))
    }
}

/// The revision of etcd: any linearizable read tells it.
async fn revision_of(client: Client, meter: Meter) -> Result<Revision, SharedLogError> {
    let read = client.range(RangeRequest { keys_only: true, ..RangeRequest::key(COMPACTION_KEY) });
    let read = meter.measure(Operation::Get, NO_RESOURCE, read).await;
    let header = read.map_err(|error| refusal(&error))?.header;
    header.map(|header| from_etcd(header.revision)).ok_or_else(|| unavailable(WITHOUT_REVISION))
}

/// What a proposal does.
fn operation(proposal: &Proposal) -> Operation {
    match (&proposal.change, proposal.expected) {
        (ProposedChange::Put(_), None) => Operation::Create,
        (ProposedChange::Put(_), Some(_)) => Operation::Update,
        (ProposedChange::Remove, _) => Operation::Delete,
    }
}

/// What a transaction has done.
fn outcome(response: &TxnResponse) -> ProposalOutcome {
    let revision = response.header.as_ref().map(|header| from_etcd(header.revision));
    match (response.succeeded, revision) {
        (true, Some(revision)) => ProposalOutcome::Accepted(revision),
        // Nobody knows when its change arrives.
        (true, None) => ProposalOutcome::Unknown,
        (false, Some(at)) => {
            let present = response.range(0).and_then(|range| range.kvs.first());
            ProposalOutcome::Refused { current: present.map(|entry| from_etcd(entry.mod_revision)), at }
        }
        (false, None) => ProposalOutcome::Failed(unavailable(WITHOUT_REVISION)),
    }
}

impl SharedLog for EtcdLog {
    fn load(&self) -> BoxFuture<'static, Result<Loaded, SharedLogError>> {
        let log = self.clone();
        async move { log.read(NO_RESOURCE, log.types.prefix()).await }.boxed()
    }

    fn load_past(&self) -> BoxFuture<'static, Result<Loaded, SharedLogError>> {
        let log = self.clone();
        async move { log.read_past().await }.boxed()
    }

    fn load_type(&self, type_name: &TypeName) -> BoxFuture<'static, Result<Loaded, SharedLogError>> {
        let (log, type_name) = (self.clone(), type_name.clone());
        async move {
            let prefix = log.types.type_prefix(&type_name).ok_or_else(unknown_type)?;
            let mut loaded = log.read(resource_of_store(&type_name), prefix).await?;
            // A definition may have replaced another one meanwhile.
            loaded.entries.retain(|entry| entry.type_name == type_name);
            Ok(loaded)
        }
        .boxed()
    }

    fn load_type_at(
        &self,
        type_name: &TypeName,
        revision: Revision,
    ) -> BoxStream<'static, Result<Vec<SharedEntry>, PastError>> {
        let Some(prefix) = self.types.type_prefix(type_name) else {
            return stream::iter([Err(unknown_type().into())]).boxed();
        };
        let range = RangeRequest { revision: to_etcd(revision), ..RangeRequest::prefix(prefix) };
        let (log, type_name, pages) = (self.clone(), type_name.clone(), self.client.pages(range));
        let parts = stream::try_unfold((log, type_name, pages), async |(log, type_name, mut pages)| {
            let entries = log.next_entries(&type_name, &mut pages).await?;
            Ok(entries.map(|entries| (entries, (log, type_name, pages))))
        });
        parts.boxed()
    }

    fn follow(&self, after: Revision) -> BoxStream<'static, Result<Followed, FollowError>> {
        let (types, scope, meter) = (Arc::clone(&self.types), self.scope.clone(), self.meter.clone());
        follow::follow(&self.client, FollowDeps { types, scope, meter }, after)
    }

    fn current_revision(&self) -> BoxFuture<'static, Result<Revision, SharedLogError>> {
        revision_of(self.client.clone(), self.meter.clone()).boxed()
    }

    fn probe(&self, max_wait: Duration) -> BoxFuture<'static, Result<Revision, SharedLogError>> {
        revision_of(self.client.with_timeout(max_wait), self.meter.clone()).boxed()
    }

    fn propose(&self, proposal: Proposal) -> BoxFuture<'static, ProposalOutcome> {
        self.clone().write(proposal).boxed()
    }

    /// The thread waits if a KMS plugin has to decrypt the data key.
    fn decode(&self, type_name: &TypeName, key: &Key, value: &Bytes) -> Result<Decoded, UnreadableReason> {
        let decoded = self.values.decode(type_name, key, value).map_err(UnreadableReason::from);
        self.meter.count_decoded(type_name, &decoded);
        decoded
    }

    fn may_wait(&self, value: &[u8]) -> bool {
        may_need_plugin(value)
    }

    fn decode_all(
        &self,
        type_name: &TypeName,
        values: Vec<(Key, Bytes)>,
    ) -> BoxFuture<'static, Vec<Result<Decoded, UnreadableReason>>> {
        let (meter, type_name) = (self.meter.clone(), type_name.clone());
        let decoded = decode_all(Arc::clone(&self.values), type_name.clone(), values);
        let count =
            move |all: &Vec<_>| all.iter().for_each(|decoded| meter.count_decoded(&type_name, decoded));
        decoded.inspect(count).boxed()
    }
}
