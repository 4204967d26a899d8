//! resourcequota-controller: writes the status of quotas, and recalculates their usage.
//!
//! Admission only adds usage (`backend/admission/quota.rs`) and never subtracts it. This loop recalculates the usage of a namespace
//! when an object is removed or uses less, when a quota is created or changed, and periodically. A count costs as much as the
//! namespace has objects, so a large one is counted less often: see [`Watched`].

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

use crate::limits::QUOTA_REST;

use super::client::{At, Client};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

/// How long changes are gathered before a namespace is counted: a thousand deletions cost a few counts.
const GATHERED: Duration = Duration::from_millis(200);
/// When a written status is verified once more: it finds an object that was charged but not yet stored during the count.
const CHECKED_AGAIN: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// How many times the duration of a count the namespace rests afterwards: counting one namespace takes at most a tenth of the
/// thread's time, however busy it is.
const RESTS: u32 = 9;
/// Objects that are counted before other tasks of the thread run.
const COUNTED_PER_TURN: usize = 256;

/// Maintains the status of quotas.
pub struct QuotaStatus {
    client: Client,
    clock: Clock,
    features: Features,
    /// How often each quota is counted without an event; zero for never.
    every: Duration,
    /// The namespaces with quotas.
    watched: RefCell<HashMap<String, Watched>>,
}

/// A namespace with quotas.
#[derive(Debug, Default)]
struct Watched {
    /// The resource names of each quota.
    quotas: BTreeMap<String, Vec<String>>,
    /// When it may be counted again.
    rests_until: Moment,
}

impl Watched {
    /// The remaining rest.
    fn rest(&self, now: Moment) -> Duration {
        self.rests_until.since(now)
    }

    /// Notes a count from `began` until `now`. The rests of several quotas add up.
    fn counted(&mut self, began: Moment, now: Moment) {
        let took = now.since(began);
        let rest = self.rest(now).saturating_add(took.saturating_mul(RESTS));
        self.rests_until = now.plus(rest.min(QUOTA_REST));
    }
}

impl QuotaStatus {
    /// A loop that acts as `client` and counts every quota at least so often.
    pub fn new(client: Client, clock: Clock, features: Features, every: Duration) -> QuotaStatus {
        QuotaStatus { client, clock, features, every, watched: RefCell::default() }
    }

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(RESOURCE_QUOTAS)?;
        let at = At::of(&resource, key);
        let Some(object) = self.client.cached(at).await? else { return Ok(Outcome::Done) };
        let quota = self.client.load(&resource, &object)?;
        let namespace = key.namespace();
        // A new or changed quota is counted without a rest: nothing can be created before.
        if says_what_is_allowed(&quota) {
            let rest = self
                .watched
                .borrow()
                .get(namespace)
                .map(|watched| watched.rest(self.clock.moment()))
                .unwrap_or_default();
            if !rest.is_zero() {
                return Ok(Outcome::After(rest));
            }
        }
        let began = self.clock.moment();
        let used = self.count(namespace, &quota).await?;
        if let Some(watched) = self.watched.borrow_mut().get_mut(namespace) {
            watched.counted(began, self.clock.moment());
        }
        if is_right(&quota, &used) {
            return Ok(if self.every.is_zero() { Outcome::Done } else { Outcome::After(self.every) });
        }
        // Only onto the version that was read: a concurrent charge is not in the count.
        let revision = object.revision.0.to_string();
        let written = self.client.edit(at, "status", |quota| {
            quota.entry("metadata").set("resourceVersion", revision.as_str());
            write(quota, &used);
            Ok(true)
        });
        let written = written.await.ignore_not_found()?;
        Ok(written.map_or(Outcome::Done, |()| Outcome::After(CHECKED_AGAIN)))
    }

    /// The usage of a namespace for the resources of a quota.
    async fn count(&self, namespace: &str, quota: &Value) -> Result<ResourceList> {
        let (known, written) = (self.client.known(), self.client.written().await?);
        let spec = quota.get("spec").unwrap_or(&Value::Null);
        let all = known.deletable.iter().map(|resource| resource.name());
        let mut tally = Tally::begin(spec, all, self.features);
        let now = self.client.seconds();
        let mut turn = YieldEvery::new(COUNTED_PER_TURN);
        for resource in &known.deletable {
            let stored = resource.stored.as_ref().filter(|stored| written.contains(&stored.store));
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
        Ok(tally.end())
    }

    fn depends_on_content(&self, resource: &Resource) -> bool {
        let meter = UsageEvaluator::of(resource.name(), self.features);
        meter.is_some_and(|meter| meter.may_charge(Change::Update, ""))
    }

    /// Whether an update may have changed the usage of an object, or which quotas cover it.
    fn uses_otherwise(
        &self,
        resource: &Resource,
        meter: &UsageEvaluator<'_>,
        old: &Object,
        new: &Object,
    ) -> bool {
        let (Ok(old), Ok(new)) = (self.client.load(resource, old), self.client.load(resource, new)) else {
            return true;
        };
        let now = self.client.seconds();
        let deadline = |object: &Value| object.at(&["spec", "activeDeadlineSeconds"]).is_some();
        meter.usage(&old, now) != meter.usage(&new, now) || deadline(&old) != deadline(&new)
    }

    fn hear_quota(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        let key = &change.object.key;
        let mut watched = self.watched.borrow_mut();
        if change.gone {
            queue.forget(key);
            if let Some(all) = watched.get_mut(key.namespace()) {
                all.quotas.remove(key.name());
                if all.quotas.is_empty() {
                    watched.remove(key.namespace());
                }
            }
            return;
        }
        let Ok(resource) = self.client.resource(RESOURCE_QUOTAS) else { return };
        let read = |object: &Object| self.client.load(&resource, object).ok();
        let Some(now) = read(change.object) else { return };
        let names = now.at(&["spec", "hard"]).and_then(Value::fields).into_iter().flatten();
        let names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
        let all = &mut watched.entry(key.namespace().to_owned()).or_default().quotas;
        all.insert(key.name().to_owned(), names);
        let before = change.previous.and_then(|previous| read(previous));
        // The status changes with every charge, so it causes no count; the periodic count finds a wrong one.
        let same = before.is_some_and(|before| before.get("spec") == now.get("spec"));
        if !same || !says_what_is_allowed(&now) {
            queue.add(key.clone());
        }
    }

    fn hear_other(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        let namespace = change.object.key.namespace();
        let watched = self.watched.borrow();
        let Some(Watched { quotas, .. }) = watched.get(namespace) else { return };
        let known = self.client.known();
        let Some(resource) = known.of_store(change.of) else { return };
        let Some(meter) = UsageEvaluator::of(resource.name(), self.features) else { return };
        if !change.gone {
            let Some(previous) = change.previous.filter(|_| self.depends_on_content(resource)) else {
                return;
            };
            if !self.uses_otherwise(resource, &meter, previous, change.object) {
                return;
            }
        }
        let concerned = quotas.iter().filter(|(_, names)| names.iter().any(|name| meter.measures(name)));
        for (name, _) in concerned {
            queue.add_at(Key::namespaced(namespace, name), self.clock.now().plus(GATHERED));
        }
    }
}

/// Whether `status.hard` equals `spec.hard`.
fn says_what_is_allowed(quota: &Value) -> bool {
    resource_list::read(quota.at(&["spec", "hard"])) == resource_list::read(quota.at(&["status", "hard"]))
}

/// Whether the status equals the spec and the count.
fn is_right(quota: &Value, used: &ResourceList) -> bool {
    // An empty map is not stored, so a quota without limits is right without one.
    says_what_is_allowed(quota) && resource_list::read(quota.at(&["status", "used"])) == wanted(quota, used)
}

/// The counted usage; resources we do not count keep their previous value.
fn wanted(quota: &Value, used: &ResourceList) -> ResourceList {
    let mut all = resource_list::read(quota.at(&["status", "used"]));
    all.extend(used.clone());
    let hard = quota.at(&["spec", "hard"]).and_then(Value::fields);
    all.retain(|name, _| hard.is_some_and(|hard| hard.contains_key(name)));
    all
}

fn write(quota: &mut Value, used: &ResourceList) {
    let wanted = wanted(quota, used);
    let hard = quota.at(&["spec", "hard"]).cloned().unwrap_or_else(Value::object);
    let mut shown = Value::object();
    for (name, amount) in wanted {
        shown.set(&name, amount.to_string());
    }
    let status = quota.entry("status");
    status.set("hard", hard);
    status.set("used", shown);
}

impl Controller for QuotaStatus {
    type Key = Key;

    fn follows(&self) -> Follows {
        Follows::Every
    }

    /// Frequent charges may cause conflicts; the status must be written soon after they end.
    fn longest_retry(&self) -> Duration {
        LONGEST_RETRY
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        if change.of.as_str() == RESOURCE_QUOTAS {
            self.hear_quota(change, queue);
        }
        // Quotas may count quotas.
        self.hear_other(change, queue);
    }

    fn on_list(
        &self,
        of: &TypeName,
        snapshot: &pilothouse_actors::snapshot::Snapshot,
        queue: &mut Queue<Key>,
    ) {
        if of.as_str() == RESOURCE_QUOTAS {
            // Some may have been removed unnoticed.
            self.watched.borrow_mut().clear();
            let readable = snapshot.iter().filter(|object| object.is_readable());
            for object in readable {
                self.hear_quota(&ObjectChange { of, object, previous: None, gone: false, at: None }, queue);
            }
            return;
        }
        // Missed events of another type may have been removals: all concerned quotas are counted.
        let concerned: Vec<Key> = {
            let watched = self.watched.borrow();
            let known = self.client.known();
            let resource: Option<&Arc<Resource>> = known.of_store(of);
            let Some(meter) =
                resource.and_then(|resource| UsageEvaluator::of(resource.name(), self.features))
            else {
                return;
            };
            let all = watched
                .iter()
                .flat_map(|(namespace, all)| all.quotas.iter().map(move |quota| (namespace, quota)));
            all.filter(|(_, (_, names))| names.iter().any(|name| meter.measures(name)))
                .map(|(namespace, (name, _))| Key::namespaced(namespace, name))
                .collect()
        };
        for key in concerned {
            queue.add_at(key, self.clock.now().plus(GATHERED));
        }
    }

    fn work(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Outcome> {
        async move { self.sync(&key).await.unwrap_or_else(|status| Outcome::Again(status.to_string())) }
            .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::testing::object;

    fn used(text: &str) -> ResourceList {
        resource_list::read(Some(&object(text)))
    }

    #[test]
    fn what_takes_long_to_count_is_counted_seldom() {
        let at = |millis: u64| Moment::default().plus(Duration::from_millis(millis));
        let mut watched = Watched::default();
        assert!(watched.rest(at(0)).is_zero());
        watched.counted(at(0), at(100));
        assert_eq!(watched.rest(at(100)), Duration::from_millis(900));
        // Another quota of the same namespace is counted meanwhile.
        watched.counted(at(100), at(200));
        assert_eq!(watched.rest(at(200)), Duration::from_millis(800 + 900));
        assert!(watched.rest(at(1_900)).is_zero());
        watched.counted(at(2_000), at(60_000));
        assert_eq!(watched.rest(at(60_000)), QUOTA_REST);
    }

    #[test]
    fn the_status_says_what_is_allowed_and_what_is_used() {
        let mut quota = object(
            r#"{"spec":{"hard":{"pods":"5","cpu":"1000m","strange.io/x":"3"}},"status":{"used":{"strange.io/x":"2","gone":"1"}}}"#,
        );
        let counted = used(r#"{"pods":"2","cpu":"500m"}"#);
        assert!(!is_right(&quota, &counted));
        write(&mut quota, &counted);
        assert!(is_right(&quota, &counted));
        assert_eq!(quota.at(&["status", "hard"]), quota.at(&["spec", "hard"]));
        let shown = object(r#"{"pods":"2","cpu":"500m","strange.io/x":"2"}"#);
        assert_eq!(quota.at(&["status", "used"]), Some(&shown));
        assert!(!is_right(&quota, &used(r#"{"pods":"1","cpu":"500m"}"#)));
        quota.entry("spec").entry("hard").set("cpu", "1");
        assert!(is_right(&quota, &counted), "the same amount in other words");
        quota.entry("spec").entry("hard").set("cpu", "2");
        assert!(!is_right(&quota, &counted));
    }
}
