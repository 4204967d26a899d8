//! resourcequota-controller: writes the status of quotas, and recalculates their usage.
//!
//! Admission only adds usage (`admission/quota.rs`) and never subtracts it. This controller recalculates the usage of a
//! namespace when an object is removed or uses less, when a quota is created or changed, and periodically. A count costs as much
//! as the namespace has objects, so a large one is counted less often: see [`NamespaceQuotas`].

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::yield_every::YieldEvery;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::quota::usage::Change;
use pilothouse_api::quota::{Features, Tally, UsageEvaluator};
use pilothouse_apimachinery::resource_list::{self, ResourceList};
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::stores::RESOURCE_QUOTAS;
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::object::{Key, Object, TypeName};

use crate::limits::MAX_QUOTA_REST;

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// How long changes are gathered before a namespace is counted: a thousand deletions cost a few counts.
const BATCH_DELAY: Duration = Duration::from_millis(200);
/// When a written status is verified once more: it finds an object that was charged but not yet stored during the count.
const VERIFY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// How many times the duration of a count the namespace rests afterwards: counting one namespace takes at most a tenth of the
/// thread's time, however busy it is.
const REST_FACTOR: u32 = 9;
/// Objects that are counted before other tasks of the thread run.
const OBJECTS_PER_TURN: usize = 256;

/// Maintains the status of quotas.
pub struct QuotaStatus {
    client: Client,
    clock: Clock,
    features: Features,
    /// How often each quota is counted without an event; zero for never.
    sync_period: Duration,
    /// The namespaces with quotas.
    namespaces: RefCell<HashMap<String, NamespaceQuotas>>,
}

/// A namespace with quotas.
#[derive(Debug, Default)]
struct NamespaceQuotas {
    /// The resource names of each quota.
    quotas: BTreeMap<String, Vec<String>>,
    /// When it may be counted again.
    rests_until: Moment,
}

impl NamespaceQuotas {
    /// The remaining rest.
    fn rest(&self, now: Moment) -> Duration {
        self.rests_until.since(now)
    }

    /// Notes a count from `started` until `now`. The rests of several quotas add up.
    fn counted(&mut self, started: Moment, now: Moment) {
        let elapsed = now.since(started);
        let rest = self.rest(now).saturating_add(elapsed.saturating_mul(REST_FACTOR));
        self.rests_until = now.plus(rest.min(MAX_QUOTA_REST));
    }
}

impl QuotaStatus {
    /// A controller that acts as `client` and counts every quota at least once per `sync_period`, unless that is zero.
    pub fn new(client: Client, clock: Clock, features: Features, sync_period: Duration) -> QuotaStatus {
        QuotaStatus { client, clock, features, sync_period, namespaces: RefCell::default() }
    }

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(RESOURCE_QUOTAS)?;
        let target = ObjectRef::new(&resource, key);
        let Some(object) = self.client.cached(target).await? else { return Ok(Outcome::Done) };
        let quota = self.client.load(&resource, &object)?;
        let namespace = key.namespace();
        // A new or changed quota is counted without a rest: nothing can be created before.
        if has_current_hard_limits(&quota) {
            let rest = self
                .namespaces
                .borrow()
                .get(namespace)
                .map(|quotas| quotas.rest(self.clock.moment()))
                .unwrap_or_default();
            if !rest.is_zero() {
                return Ok(Outcome::RequeueAfter(rest));
            }
        }
        let started = self.clock.moment();
        let used = self.count(namespace, &quota).await?;
        if let Some(quotas) = self.namespaces.borrow_mut().get_mut(namespace) {
            quotas.counted(started, self.clock.moment());
        }
        if is_status_current(&quota, &used) {
            return Ok(if self.sync_period.is_zero() {
                Outcome::Done
            } else {
                Outcome::RequeueAfter(self.sync_period)
            });
        }
        // Only onto the version that was read: a concurrent charge is not in the count.
        let revision = object.revision.0.to_string();
        let result = self.client.edit(target, "status", |quota| {
            quota.entry("metadata").set("resourceVersion", revision.as_str());
            write(quota, &used);
            Ok(true)
        });
        let result = result.await.ignore_not_found()?;
        Ok(result.map_or(Outcome::Done, |()| Outcome::RequeueAfter(VERIFY_DELAY)))
    }

    /// The usage of a namespace for the resources of a quota.
    async fn count(&self, namespace: &str, quota: &Value) -> Result<ResourceList> {
        let (resources, written_types) = (self.client.resource_index(), self.client.written_types().await?);
        let spec = quota.get("spec").unwrap_or(&Value::Null);
        let names = resources.deletable.iter().map(|resource| resource.name());
        let mut tally = Tally::new(spec, names, self.features);
        let now = self.client.seconds();
        let mut turn = YieldEvery::new(OBJECTS_PER_TURN);
        for resource in &resources.deletable {
            let stored = resource.stored().filter(|stored| written_types.contains(&stored.store));
            let Some(stored) = stored.filter(|_| tally.counts(resource.name())) else { continue };
            let snapshot = self.client.snapshot(&stored.store).await?;
            for object in snapshot.scan(Some(namespace), Bound::Unbounded) {
                turn.worked(1).await;
                // For most types only the number of objects counts, whatever they contain. A corrupt object counts, too, though
                // its other usage is unknown.
                let content = match self.depends_on_content(resource) {
                    true => self.client.load(resource, object).unwrap_or_default(),
                    false => Value::Null,
                };
                tally.add(resource.name(), &content, now);
            }
        }
        Ok(tally.into_usage())
    }

    fn depends_on_content(&self, resource: &Resource) -> bool {
        let evaluator = UsageEvaluator::for_resource(resource.name(), self.features);
        evaluator.is_some_and(|evaluator| evaluator.may_charge(Change::Update, ""))
    }

    /// Whether an update may have changed the usage of an object, or which quotas cover it.
    fn changes_usage(
        &self,
        resource: &Resource,
        evaluator: &UsageEvaluator<'_>,
        old: &Object,
        new: &Object,
    ) -> bool {
        let (Ok(old), Ok(new)) = (self.client.load(resource, old), self.client.load(resource, new)) else {
            return true;
        };
        let now = self.client.seconds();
        let has_deadline = |object: &Value| object.get_path(&["spec", "activeDeadlineSeconds"]).is_some();
        evaluator.usage(&old, now) != evaluator.usage(&new, now) || has_deadline(&old) != has_deadline(&new)
    }

    fn on_quota_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        let key = &change.object.key;
        let mut namespaces = self.namespaces.borrow_mut();
        if change.is_deleted {
            queue.forget(key);
            if let Some(entry) = namespaces.get_mut(key.namespace()) {
                entry.quotas.remove(key.name());
                if entry.quotas.is_empty() {
                    namespaces.remove(key.namespace());
                }
            }
            return;
        }
        let Ok(resource) = self.client.resource(RESOURCE_QUOTAS) else { return };
        let read = |object: &Object| self.client.load(&resource, object).ok();
        let Some(quota) = read(change.object) else { return };
        let names = quota.get_path(&["spec", "hard"]).and_then(Value::fields).into_iter().flatten();
        let names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
        let entry = &mut namespaces.entry(key.namespace().to_owned()).or_default().quotas;
        entry.insert(key.name().to_owned(), names);
        let previous = change.previous.and_then(|previous| read(previous));
        // The status changes with every charge, so it causes no count; the periodic count finds a wrong one.
        let is_same_spec = previous.is_some_and(|previous| previous.get("spec") == quota.get("spec"));
        if !is_same_spec || !has_current_hard_limits(&quota) {
            queue.add(key.clone());
        }
    }

    fn on_object_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        let namespace = change.object.key.namespace();
        let namespaces = self.namespaces.borrow();
        let Some(NamespaceQuotas { quotas, .. }) = namespaces.get(namespace) else { return };
        let resources = self.client.resource_index();
        let Some(resource) = resources.for_store(change.type_name) else { return };
        let Some(evaluator) = UsageEvaluator::for_resource(resource.name(), self.features) else { return };
        if !change.is_deleted {
            let Some(previous) = change.previous.filter(|_| self.depends_on_content(resource)) else {
                return;
            };
            if !self.changes_usage(resource, &evaluator, previous, change.object) {
                return;
            }
        }
        let affected = quotas.iter().filter(|(_, names)| names.iter().any(|name| evaluator.measures(name)));
        for (name, _) in affected {
            queue.add_at(Key::namespaced(namespace, name), self.clock.moment().plus(BATCH_DELAY));
        }
    }
}

/// Whether `status.hard` equals `spec.hard`.
fn has_current_hard_limits(quota: &Value) -> bool {
    resource_list::read(quota.get_path(&["spec", "hard"]))
        == resource_list::read(quota.get_path(&["status", "hard"]))
}

/// Whether the status equals the spec and the count.
fn is_status_current(quota: &Value, used: &ResourceList) -> bool {
    // An empty map is not stored, so a quota without limits is right without one.
    has_current_hard_limits(quota)
        && resource_list::read(quota.get_path(&["status", "used"])) == expected_usage(quota, used)
}

/// The counted usage; resources we do not count keep their previous value.
fn expected_usage(quota: &Value, used: &ResourceList) -> ResourceList {
    let mut usage = resource_list::read(quota.get_path(&["status", "used"]));
    usage.extend(used.clone());
    let hard = quota.get_path(&["spec", "hard"]).and_then(Value::fields);
    usage.retain(|name, _| hard.is_some_and(|hard| hard.contains_key(name)));
    usage
}

fn write(quota: &mut Value, used: &ResourceList) {
    let usage = expected_usage(quota, used);
    let hard = quota.get_path(&["spec", "hard"]).cloned().unwrap_or_else(Value::object);
    let mut rendered = Value::object();
    for (name, amount) in usage {
        rendered.set(&name, amount.to_string());
    }
    let status = quota.entry("status");
    status.set("hard", hard);
    status.set("used", rendered);
}

impl Controller for QuotaStatus {
    type Key = Key;

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::All
    }

    /// Frequent charges may cause conflicts; the status must be written soon after they end.
    fn max_retry_delay(&self) -> Duration {
        MAX_RETRY_DELAY
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        if change.type_name.as_str() == RESOURCE_QUOTAS {
            self.on_quota_change(change, queue);
        }
        // Quotas may count quotas.
        self.on_object_change(change, queue);
    }

    fn on_list(
        &self,
        type_name: &TypeName,
        snapshot: &pilothouse_actors::snapshot::Snapshot,
        queue: &mut Queue<Key>,
    ) {
        if type_name.as_str() == RESOURCE_QUOTAS {
            // Some may have been removed unnoticed.
            self.namespaces.borrow_mut().clear();
            let readable = snapshot.iter().filter(|object| object.is_readable());
            for object in readable {
                self.on_quota_change(&ObjectChange::listed(type_name, snapshot, object), queue);
            }
            return;
        }
        // Missed events of another type may have been removals: all concerned quotas are counted.
        let affected: Vec<Key> = {
            let namespaces = self.namespaces.borrow();
            let resources = self.client.resource_index();
            let resource: Option<&Arc<Resource>> = resources.for_store(type_name);
            let Some(evaluator) =
                resource.and_then(|resource| UsageEvaluator::for_resource(resource.name(), self.features))
            else {
                return;
            };
            let entries = namespaces
                .iter()
                .flat_map(|(namespace, entries)| entries.quotas.iter().map(move |quota| (namespace, quota)));
            entries
                .filter(|(_, (_, names))| names.iter().any(|name| evaluator.measures(name)))
                .map(|(namespace, (name, _))| Key::namespaced(namespace, name))
                .collect()
        };
        for key in affected {
            queue.add_at(key, self.clock.moment().plus(BATCH_DELAY));
        }
    }

    fn reconcile(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.sync(&key).await }.boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    fn used(text: &str) -> ResourceList {
        resource_list::read(Some(&object(text)))
    }

    #[test]
    fn quota_count_rests_in_proportion_to_its_duration() {
        let time = |millis: u64| Moment::default().plus(Duration::from_millis(millis));
        let mut quotas = NamespaceQuotas::default();
        assert!(quotas.rest(time(0)).is_zero());
        quotas.counted(time(0), time(100));
        assert_eq!(quotas.rest(time(100)), Duration::from_millis(900));
        // Another quota of the same namespace is counted meanwhile.
        quotas.counted(time(100), time(200));
        assert_eq!(quotas.rest(time(200)), Duration::from_millis(800 + 900));
        assert!(quotas.rest(time(1_900)).is_zero());
        quotas.counted(time(2_000), time(60_000));
        assert_eq!(quotas.rest(time(60_000)), MAX_QUOTA_REST);
    }

    #[test]
    fn quota_status_has_hard_limits_and_usage() {
        let mut quota = object(
            r#"{"spec":{"hard":{"pods":"5","cpu":"1000m","strange.io/x":"3"}},"status":{"used":{"strange.io/x":"2","gone":"1"}}}"#,
        );
        let counted = used(r#"{"pods":"2","cpu":"500m"}"#);
        assert!(!is_status_current(&quota, &counted));
        write(&mut quota, &counted);
        assert!(is_status_current(&quota, &counted));
        assert_eq!(quota.get_path(&["status", "hard"]), quota.get_path(&["spec", "hard"]));
        let expected = object(r#"{"pods":"2","cpu":"500m","strange.io/x":"2"}"#);
        assert_eq!(quota.get_path(&["status", "used"]), Some(&expected));
        assert!(!is_status_current(&quota, &used(r#"{"pods":"1","cpu":"500m"}"#)));
        quota.entry("spec").entry("hard").set("cpu", "1");
        assert!(is_status_current(&quota, &counted), "the same quantity in another notation");
        quota.entry("spec").entry("hard").set("cpu", "2");
        assert!(!is_status_current(&quota, &counted));
    }
}
