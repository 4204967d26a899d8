//! Charges quotas: one round at a time per namespace, for the writes of all workers.
//!
//! A round reads the quotas, checks the writes one after the other against the remaining amounts, and stores each changed quota
//! once, against the revision it read. Only clients and the quota controller can cause a conflict. Quotas with a conflict are
//! read again with a write turn ([`WriteTurn`]), so that the round does not lose repeatedly.

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
use pilothouse_apimachinery::managed_fields::{self, Conversion, Versions};
use pilothouse_apimachinery::resource_list::ResourceList;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::SERVER_NAME;
use pilothouse_apimachinery::well_known::stores::RESOURCE_QUOTAS;
use pilothouse_kinds::{self as kinds, CONVERSIONS};
use pilothouse_types::clock::Clock;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Key, Object, TypeName};
use tokio::sync::oneshot;

use crate::limits::CONFLICT_ATTEMPTS;

use super::super::lookup::QUOTAS;
use crate::registry::Warnings;
use crate::registry::loopback::{AdmittedRequest, Loopback, LoopbackRequest, Response, own_identity};
use crate::registry::stores::{StoreResult, Stores};

const KIND: &str = "ResourceQuota";
const RESOURCE: GroupResource<'_> = GroupResource { group: "", resource: RESOURCE_QUOTAS };

/// A write could not be charged.
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
    sender: oneshot::Sender<std::result::Result<(), Failure>>,
    /// The permit of the request: it counts as in flight while it waits.
    _permit: Permit,
}

impl Charge {
    /// Copies the write. `sender` gets the outcome.
    pub fn new(
        request: &Request<'_>,
        permit: Permit,
        sender: oneshot::Sender<std::result::Result<(), Failure>>,
    ) -> Charge {
        Charge {
            group: request.resource.group.to_owned(),
            resource: request.resource.resource.to_owned(),
            subresource: request.subresource.to_owned(),
            change: request.change,
            new: request.new.clone(),
            old: request.old.clone(),
            now: request.now,
            sender,
            _permit: permit,
        }
    }

    fn request(&self) -> Request<'_> {
        Request {
            resource: GroupResource { group: &self.group, resource: &self.resource },
            subresource: &self.subresource,
            change: self.change,
            new: &self.new,
            old: &self.old,
            now: self.now,
        }
    }

    /// Sends the outcome. The requester may have disconnected; then it does not matter.
    fn finish(self, outcome: std::result::Result<(), Failure>) {
        drop(self.sender.send(outcome));
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

/// A quota as it was read. Its new usage is in a [`Quota`] at the same index.
struct QuotaState {
    object: Arc<Object>,
    value: Value,
    charged: bool,
    /// The write turn with which it was read, after a conflict.
    turn: Option<WriteTurn>,
}

impl QuotaCharger {
    /// The handler for the batching actor.
    pub fn into_handler(self) -> BatchHandler<Charge> {
        let charger = Rc::new(self);
        Box::new(move |namespace, charges| {
            let charger = charger.clone();
            Box::pin(async move { charger.charge_all(&namespace, charges).await })
        })
    }

    async fn charge_all(&self, namespace: &str, mut pending: Vec<Charge>) {
        // All quotas at first. After conflicts only those, because the others are charged already.
        let mut conflicted: Option<BTreeSet<String>> = None;
        for _ in 0..CONFLICT_ATTEMPTS {
            // Writes whose requester no longer waits will not be stored.
            pending.retain(|charge| !charge.sender.is_closed());
            let (mut states, mut quotas) = match self.read(namespace, conflicted.as_ref()).await {
                Ok(read) => read,
                Err(status) => return fail_all(pending, &status),
            };
            // The first pass has checked that limited resources are covered.
            let limited = if conflicted.is_none() { self.limited.as_slice() } else { &[] };
            pending = self.check(pending, &mut states, &mut quotas, limited);
            match self.store(states, &quotas).await {
                Ok(conflicts) if conflicts.is_empty() => {
                    return pending.into_iter().for_each(|charge| charge.finish(Ok(())));
                }
                Ok(conflicts) => conflicted = Some(conflicts),
                Err(status) => return fail_all(pending, &status),
            }
        }
        let name = conflicted.and_then(|mut names| names.pop_first()).unwrap_or_default();
        fail_all(pending, &Status::stale(RESOURCE, &name));
    }

    /// Reads all quotas of a namespace, or the named ones.
    async fn read(
        &self,
        namespace: &str,
        conflicted: Option<&BTreeSet<String>>,
    ) -> Result<(Vec<QuotaState>, Vec<Quota>)> {
        let objects = match conflicted {
            None => self.read_all(namespace).await,
            Some(names) => self.read_in_turn(namespace, names).await,
        };
        let (mut states, mut quotas) = (Vec::new(), Vec::new());
        for (object, turn) in objects.map_err(|error| Status::from_store(&error, RESOURCE, ""))? {
            let value = QUOTAS.decode(&self.registry, &object)?;
            quotas.push(Quota::read(&value));
            states.push(QuotaState { object, value, charged: false, turn });
        }
        Ok((states, quotas))
    }

    async fn read_all(&self, namespace: &str) -> StoreResult<Vec<(Arc<Object>, Option<WriteTurn>)>> {
        let snapshot = self.stores.snapshot(&TypeName::new(RESOURCE_QUOTAS), &Permit::none()).await?;
        Ok(snapshot.scan(Some(namespace), Bound::Unbounded).map(|object| (object.clone(), None)).collect())
    }

    /// Reads the quotas that had a conflict, sorted by name: write turns are always taken in this order, which avoids deadlocks.
    async fn read_in_turn(
        &self,
        namespace: &str,
        names: &BTreeSet<String>,
    ) -> StoreResult<Vec<(Arc<Object>, Option<WriteTurn>)>> {
        let mut objects = Vec::with_capacity(names.len());
        for name in names {
            let key = Key::namespaced(namespace, name);
            match self.stores.get_with_turn(&TypeName::new(RESOURCE_QUOTAS), key, &Permit::none()).await {
                Ok(object) => objects.push(object),
                // A deleted quota limits nothing.
                Err(StoreError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(objects)
    }

    /// Charges each write that the quotas allow. Returns the writes that wait for the charge to be stored; the others are refused
    /// here.
    fn check(
        &self,
        pending: Vec<Charge>,
        states: &mut [QuotaState],
        quotas: &mut [Quota],
        limited: &[Limited],
    ) -> Vec<Charge> {
        let mut charged = Vec::new();
        for charge in pending {
            match quota::check(quotas, &charge.request(), limited, self.features) {
                Err(refusal) => charge.finish(Err(Failure::Refused(refusal))),
                Ok(charges) if charges.is_empty() => charge.finish(Ok(())),
                Ok(charges) => {
                    for (index, used) in charges {
                        if let (Some(state), Some(quota)) = (states.get_mut(index), quotas.get_mut(index)) {
                            (state.charged, quota.used) = (true, used);
                        }
                    }
                    charged.push(charge);
                }
            }
        }
        charged
    }

    /// Stores the changed quotas concurrently. Returns the names of those with a conflict.
    async fn store(&self, states: Vec<QuotaState>, quotas: &[Quota]) -> Result<BTreeSet<String>> {
        let changed = states.into_iter().zip(quotas).filter(|(state, _)| state.charged);
        let outcomes = join_all(changed.map(|(state, quota)| self.store_one(state, &quota.used))).await;
        let mut conflicts = BTreeSet::new();
        for outcome in outcomes {
            conflicts.extend(outcome?);
        }
        Ok(conflicts)
    }

    async fn store_one(&self, state: QuotaState, used: &ResourceList) -> Result<Option<String>> {
        let (value, draft) = self.draft(&state, used)?;
        let QuotaState { object, turn, .. } = state;
        let (store, name) = (TypeName::new(RESOURCE_QUOTAS), object.key.name());
        let warnings = Warnings::default();
        let admitted = self.audit(&object.key, &value, &warnings).await?;
        let stored = self.stores.replace_in_turn(&store, draft, object.revision, &Permit::none(), turn).await;
        if let Some(admitted) = admitted {
            let to_status = |error| Status::from_store(error, RESOURCE, name);
            match &stored {
                Ok(object) => admitted.end(&warnings, Response::Object(200, &object.bytes)).await,
                Err(error) => admitted.end(&warnings, Response::Status(&to_status(error))).await,
            }
        }
        match stored {
            Ok(_) => Ok(None),
            Err(StoreError::Conflict(_) | StoreError::NotFound) => Ok(Some(name.to_owned())),
            Err(error) => Err(Status::from_store(&error, RESOURCE, name)),
        }
    }

    /// Begins to audit the write of a quota, which the reference makes as a request to itself.
    async fn audit(&self, key: &Key, value: &Value, warnings: &Warnings) -> Result<Option<AdmittedRequest>> {
        let Some(loopback) = &self.loopback else { return Ok(None) };
        let path = format!("/api/v1/namespaces/{}/{RESOURCE_QUOTAS}/{}/status", key.namespace(), key.name());
        let (user, path) = (&own_identity(), &path);
        let (user_agent, method, query) = (SERVER_NAME, "PUT", "");
        let request = LoopbackRequest { user, user_agent, method, path, query, warnings };
        let admitted = loopback.audit(&request).await?;
        let ty = self.registry.kind("", "v1", KIND);
        warnings.audit_body.record_object(value, |value| Some(codec::encode(&self.registry, ty?, &value)));
        Ok(Some(admitted))
    }

    /// The quota with its new usage, as a value and for the store.
    fn draft(&self, state: &QuotaState, used: &ResourceList) -> Result<(Value, Draft)> {
        let version = GroupVersion::new("", "v1");
        let mut value = state.value.clone();
        for (name, amount) in used {
            value.entry("status").entry("used").set(name, amount.to_string());
        }
        let now = time::format_seconds(self.clock.now().unix_seconds());
        let reset = kinds::rules("", KIND).reset_fields.for_subresource("status", true);
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
            conversion: Conversion::Table(CONVERSIONS),
            is_custom: false,
        };
        managed_fields::record(&versions, &write, Some(&state.value), &mut value);
        let ty =
            self.registry.kind("", "v1", KIND).ok_or_else(|| Status::internal("no schema for quotas"))?;
        let encoded = codec::encode_draft(&self.registry, ty, &value);
        let (key, labels) = (state.object.key.clone(), state.object.labels.clone());
        let draft = encoded.into_draft(key, labels, select::selectable_fields("", KIND, &value));
        Ok((value, draft))
    }
}

fn fail_all(pending: Vec<Charge>, status: &Status) {
    for charge in pending {
        charge.finish(Err(Failure::Status(Box::new(status.clone()))));
    }
}

#[cfg(test)]
mod tests;
