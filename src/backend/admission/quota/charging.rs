//! Charges quotas: one round at a time per namespace, for the writes of all workers.
//!
//! A round reads the quotas, checks the writes one after the other against the remaining amounts, and stores each changed quota
//! once, against the version it read. Only clients and the quota controller can cause a conflict. Quotas with a conflict are read
//! again, this time in their turn ([`WriteTurn`]), so that the round does not lose repeatedly.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use futures::future::join_all;
use pilothouse_actors::batcher::BatchHandler;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::write_turns::WriteTurn;
use pilothouse_api::quota::usage::Change;
use pilothouse_api::quota::{self, Features, Limited, Quota, Refusal, Request};
use pilothouse_api::select;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::managed_fields::{self, Versions};
use pilothouse_apimachinery::resource_list::ResourceList;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::SERVER_NAME;
use pilothouse_apimachinery::well_known::stores::RESOURCE_QUOTAS;
use pilothouse_types::clock::Clock;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Key, Object, TypeName};
use tokio::sync::oneshot;

use crate::limits::CONFLICT_ATTEMPTS;

use super::super::super::Warnings;
use super::super::super::loopback::{Admitted, Loopback, LoopbackRequest, Response, own_identity};
use super::super::super::stores::{StoreResult, Stores};
use super::super::lookup::QUOTAS;

const KIND: &str = "ResourceQuota";
const OF: GroupResource<'_> = GroupResource { group: "", resource: RESOURCE_QUOTAS };

/// Why a write was not charged.
#[derive(Clone, Debug)]
pub enum Failure {
    /// A quota is exceeded.
    Refused(Refusal),
    /// The quotas could not be read or stored.
    Status(Box<Status>),
}

/// A write that waits for its charge.
pub struct Charge {
    group: String,
    resource: String,
    subresource: String,
    change: Change,
    new: Value,
    old: Value,
    now: i64,
    answer: oneshot::Sender<std::result::Result<(), Failure>>,
    /// The seat of the request: it counts as in flight while it waits.
    _permit: Permit,
}

impl Charge {
    /// The write, its permit, and the channel for the outcome.
    pub fn new(
        request: &Request<'_>,
        permit: Permit,
        answer: oneshot::Sender<std::result::Result<(), Failure>>,
    ) -> Charge {
        Charge {
            group: request.of.group.to_owned(),
            resource: request.of.resource.to_owned(),
            subresource: request.subresource.to_owned(),
            change: request.change,
            new: request.new.clone(),
            old: request.old.clone(),
            now: request.now,
            answer,
            _permit: permit,
        }
    }

    fn request(&self) -> Request<'_> {
        Request {
            of: GroupResource { group: &self.group, resource: &self.resource },
            subresource: &self.subresource,
            change: self.change,
            new: &self.new,
            old: &self.old,
            now: self.now,
        }
    }

    /// The requester may have gone; then the outcome does not matter.
    fn end(self, outcome: std::result::Result<(), Failure>) {
        drop(self.answer.send(outcome));
    }
}

/// The dependencies of charging. See the module documentation.
pub struct QuotaCharger {
    /// Reads and writes the quotas.
    pub stores: Stores,
    /// The schemas of all built-in kinds.
    pub registry: Arc<Registry>,
    /// The time of changes, for managedFields.
    pub clock: Clock,
    /// Resources that may be used only if a quota covers them.
    pub limited: Vec<Limited>,
    /// Feature gates that change how usage is counted.
    pub features: Features,
    /// Audits the writes, if there is an audit policy.
    pub loopback: Option<Arc<Loopback>>,
}

/// A quota as it was read. Its usage after the round is kept beside it.
struct QuotaState {
    object: Arc<Object>,
    value: Value,
    charged: bool,
    /// The turn in which it was read, after a conflict.
    turn: Option<WriteTurn>,
}

impl QuotaCharger {
    /// The handler for the batching actor.
    pub fn work(self) -> BatchHandler<Charge> {
        let ledger = Rc::new(self);
        Box::new(move |namespace, charges| {
            let ledger = ledger.clone();
            Box::pin(async move { ledger.round(&namespace, charges).await })
        })
    }

    async fn round(&self, namespace: &str, mut open: Vec<Charge>) {
        // All quotas at first. After conflicts only those, because the others are charged already.
        let mut only: Option<BTreeSet<String>> = None;
        for _ in 0..CONFLICT_ATTEMPTS {
            // Writes whose requester no longer waits will not be stored.
            open.retain(|charge| !charge.answer.is_closed());
            let (mut pages, mut quotas) = match self.read(namespace, only.as_ref()).await {
                Ok(read) => read,
                Err(status) => return fail(open, &status),
            };
            // The first pass has checked that limited resources are covered.
            let limited = if only.is_none() { self.limited.as_slice() } else { &[] };
            open = self.check(open, &mut pages, &mut quotas, limited);
            match self.store(pages, &quotas).await {
                Ok(late) if late.is_empty() => return open.into_iter().for_each(|charge| charge.end(Ok(()))),
                Ok(late) => only = Some(late),
                Err(status) => return fail(open, &status),
            }
        }
        let name = only.and_then(|mut names| names.pop_first()).unwrap_or_default();
        fail(open, &Status::stale(OF, &name));
    }

    /// Reads all quotas of a namespace, or the named ones.
    async fn read(
        &self,
        namespace: &str,
        only: Option<&BTreeSet<String>>,
    ) -> Result<(Vec<QuotaState>, Vec<Quota>)> {
        let found = match only {
            None => self.all(namespace).await,
            Some(names) => self.in_turn(namespace, names).await,
        };
        let (mut pages, mut quotas) = (Vec::new(), Vec::new());
        for (object, turn) in found.map_err(|error| Status::from_store(&error, OF, ""))? {
            let value = QUOTAS.decode(&self.registry, &object)?;
            quotas.push(Quota::read(&value));
            pages.push(QuotaState { object, value, charged: false, turn });
        }
        Ok((pages, quotas))
    }

    async fn all(&self, namespace: &str) -> StoreResult<Vec<(Arc<Object>, Option<WriteTurn>)>> {
        let snapshot = self.stores.snapshot(&TypeName::new(RESOURCE_QUOTAS), &Permit::none()).await?;
        Ok(snapshot.scan(Some(namespace), Bound::Unbounded).map(|object| (object.clone(), None)).collect())
    }

    /// Reads the quotas that had a conflict, sorted by name: everybody who takes several turns takes them in this order, which
    /// avoids deadlocks.
    async fn in_turn(
        &self,
        namespace: &str,
        names: &BTreeSet<String>,
    ) -> StoreResult<Vec<(Arc<Object>, Option<WriteTurn>)>> {
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            let key = Key::namespaced(namespace, name);
            match self.stores.alone(&TypeName::new(RESOURCE_QUOTAS), key, &Permit::none()).await {
                Ok(alone) => found.push(alone),
                // A deleted quota limits nothing.
                Err(StoreError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Charges each write that the quotas allow. Answers the writes that wait for the charge to be stored; the others are refused
    /// here.
    fn check(
        &self,
        open: Vec<Charge>,
        pages: &mut [QuotaState],
        quotas: &mut [Quota],
        limited: &[Limited],
    ) -> Vec<Charge> {
        let mut charged = Vec::new();
        for charge in open {
            match quota::check(quotas, &charge.request(), limited, self.features) {
                Err(refusal) => charge.end(Err(Failure::Refused(refusal))),
                Ok(charges) if charges.is_empty() => charge.end(Ok(())),
                Ok(charges) => {
                    for (index, used) in charges {
                        if let (Some(page), Some(quota)) = (pages.get_mut(index), quotas.get_mut(index)) {
                            (page.charged, quota.used) = (true, used);
                        }
                    }
                    charged.push(charge);
                }
            }
        }
        charged
    }

    /// Stores the changed quotas concurrently. Answers the names of those with a conflict.
    async fn store(&self, pages: Vec<QuotaState>, quotas: &[Quota]) -> Result<BTreeSet<String>> {
        let changed = pages.into_iter().zip(quotas).filter(|(page, _)| page.charged);
        let stored = join_all(changed.map(|(page, quota)| self.store_one(page, &quota.used))).await;
        let mut late = BTreeSet::new();
        for outcome in stored {
            late.extend(outcome?);
        }
        Ok(late)
    }

    async fn store_one(&self, page: QuotaState, used: &ResourceList) -> Result<Option<String>> {
        let (value, draft) = self.draft(&page, used)?;
        let QuotaState { object, turn, .. } = page;
        let (store, name) = (TypeName::new(RESOURCE_QUOTAS), object.key.name());
        let warnings = Warnings::default();
        let admitted = self.audit(&object.key, &value, &warnings).await?;
        let stored = self.stores.replace_in_turn(&store, draft, object.revision, &Permit::none(), turn).await;
        if let Some(admitted) = admitted {
            let refused = |error| Status::from_store(error, OF, name);
            match &stored {
                Ok(object) => admitted.end(&warnings, Response::Object(200, &object.bytes)).await,
                Err(error) => admitted.end(&warnings, Response::Status(&refused(error))).await,
            }
        }
        match stored {
            Ok(_) => Ok(None),
            Err(StoreError::Conflict(_) | StoreError::NotFound) => Ok(Some(name.to_owned())),
            Err(error) => Err(Status::from_store(&error, OF, name)),
        }
    }

    /// Begins to audit the write of a quota, which the reference makes as a request to itself.
    async fn audit(&self, key: &Key, value: &Value, warnings: &Warnings) -> Result<Option<Admitted>> {
        let Some(loopback) = &self.loopback else { return Ok(None) };
        let path = format!("/api/v1/namespaces/{}/{RESOURCE_QUOTAS}/{}/status", key.namespace(), key.name());
        let (user, path) = (&own_identity(), &path);
        let (user_agent, method, query) = (SERVER_NAME, "PUT", "");
        let request = LoopbackRequest { user, user_agent, method, path, query, warnings };
        let admitted = loopback.audit(&request).await?;
        let ty = self.registry.kind("", "v1", KIND);
        warnings.received.note_object(value, |value| Some(codec::encode(&self.registry, ty?, &value)));
        Ok(Some(admitted))
    }

    /// The quota with its new usage, as a value and for the store.
    fn draft(&self, page: &QuotaState, used: &ResourceList) -> Result<(Value, Draft)> {
        let version = GroupVersion::new("", "v1");
        let mut value = page.value.clone();
        for (name, amount) in used {
            value.entry("status").entry("used").set(name, amount.to_string());
        }
        let now = time::format_seconds(self.clock.now().unix_seconds());
        let reset = managed_fields::reset_fields("", KIND, "status", true);
        let write = managed_fields::Write {
            manager: SERVER_NAME,
            version: &version,
            subresource: "status",
            now: &now,
            reset,
        };
        let versions = Versions {
            registry: &self.registry,
            kind: KIND,
            stored: &version,
            elsewhere: None,
            is_custom: false,
        };
        managed_fields::record(&versions, &write, Some(&page.value), &mut value);
        let ty =
            self.registry.kind("", "v1", KIND).ok_or_else(|| Status::internal("no schema for quotas"))?;
        let encoded = codec::encode_draft(&self.registry, ty, &value);
        let (key, labels) = (page.object.key.clone(), page.object.labels.clone());
        let draft = encoded.into_draft(key, labels, select::fields_of("", KIND, &value));
        Ok((value, draft))
    }
}

fn fail(open: Vec<Charge>, status: &Status) {
    for charge in open {
        charge.end(Err(Failure::Status(Box::new(status.clone()))));
    }
}

#[cfg(test)]
mod tests;
