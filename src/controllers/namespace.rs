//! namespace-controller: deletes everything in a terminating namespace, then the namespace.
//!
//! Pods go first, then every type that the catalog serves at that moment, then objects of extension API servers (`aggregated.rs`).
//! An object with finalizers blocks the namespace, and so does an extension server that does not answer; the conditions say so.
//! All progress is in the store: a killed server continues after its next start.

mod aggregated;
mod conditions;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use crate::aggregation::Extensions;
use crate::limits::DELETIONS_IN_FLIGHT;

use aggregated::AggregatedResources;
use conditions::DeletionFindings;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom::definition::store_named;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::{DeleteOptions, Propagation};
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::{NAMESPACE_FINALIZER, NAMESPACES};
use pilothouse_types::clock::Clock;
use pilothouse_types::object::{Object, TypeName};

use super::attempts;
use super::client::{Client, ObjectRef};
use super::object_meta::ObjectMeta;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// Seconds until the next check if only finalizers are left.
const FINALIZER_CHECK_SECONDS: i64 = 15;
/// How long removals in a namespace are gathered before the next check whether it is empty.
const REMOVAL_DELAY: Duration = Duration::from_millis(20);

/// How namespaces are deleted.
#[derive(Clone, Copy, Debug)]
pub struct DeletionRules {
    /// Whether pods are deleted before everything else.
    pub pods_first: bool,
    /// Whether objects in missing namespaces are deleted: those that were admitted before the namespace was removed and stored
    /// afterwards.
    pub require_namespaces: bool,
}

/// Deletes terminating namespaces.
pub struct NamespaceController {
    client: Client,
    clock: Clock,
    rules: DeletionRules,
    aggregated: AggregatedResources,
    /// The existing namespaces.
    existing: RefCell<HashSet<String>>,
    /// Terminating namespaces that are not empty: a removal in them triggers another check.
    waiting: RefCell<HashSet<String>>,
}

/// The objects that a terminating namespace still waits for.
#[derive(Default)]
struct Progress {
    findings: DeletionFindings,
    /// Seconds until the next check; zero if nothing left is known to take time.
    estimate: i64,
    /// Errors, which make the controller retry.
    errors: Vec<String>,
}

/// The objects of one resource that are left in a terminating namespace.
struct RemainingObjects<'a> {
    gv: &'a GroupVersion,
    plural: &'a str,
    count: usize,
    /// How many of them have each finalizer.
    finalizers: BTreeMap<String, usize>,
    /// How many seconds they may take.
    estimate: i64,
}

impl Progress {
    /// Notes an error of one resource.
    fn fail(&mut self, error: String) {
        self.errors.push(error.clone());
        self.findings.failures.push(error);
    }

    /// Notes the remaining objects of a resource. Fails if objects are left without a reason.
    fn note(&mut self, namespace: &str, remaining: RemainingObjects<'_>) -> std::result::Result<(), String> {
        let RemainingObjects { gv, plural, count, finalizers, estimate } = remaining;
        if count == 0 {
            return Ok(());
        }
        *self.findings.remaining.entry(format!("{plural}.{}", gv.group)).or_default() += count;
        let has_finalizers = !finalizers.is_empty();
        for (finalizer, count) in finalizers {
            *self.findings.finalizers.entry(finalizer).or_default() += count;
        }
        match (estimate, has_finalizers) {
            (0, true) => self.estimate = self.estimate.max(FINALIZER_CHECK_SECONDS),
            (0, false) => {
                let (group, version) = (&gv.group, &gv.version);
                return Err(format!(
                    "unexpected items still remain in namespace: {namespace} for gvr: {group}/{version}, Resource={plural}"
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

impl NamespaceController {
    /// A controller that acts as `client`.
    pub fn new(
        client: Client,
        clock: Clock,
        rules: DeletionRules,
        extensions: Arc<Extensions>,
    ) -> NamespaceController {
        let aggregated = AggregatedResources { client: client.clone(), extensions };
        let (existing, waiting) = (RefCell::default(), RefCell::default());
        NamespaceController { client, clock, rules, aggregated, existing, waiting }
    }

    async fn sync(&self, name: &str) -> Result<Outcome> {
        self.waiting.borrow_mut().remove(name);
        let resource = self.client.resource(NAMESPACES)?;
        let target = ObjectRef { resource: &resource, namespace: "", name };
        let Some(namespace) = self.client.read(target).await? else {
            return if self.rules.require_namespaces {
                self.delete_objects_of_missing_namespace(target).await
            } else {
                Ok(Outcome::Done)
            };
        };
        if !meta::is_terminating(&namespace) {
            return Ok(Outcome::Done);
        }
        if namespace.get_path(&["status", "phase"]).and_then(Value::as_str) != Some("Terminating") {
            self.client.edit(target, "status", |namespace| Ok(set_terminating(namespace))).await?;
        }
        if finalizers(&namespace).is_empty() {
            return Ok(Outcome::Done);
        }
        let uid = meta::metadata(&namespace).str("uid").to_owned();
        let deleted_at =
            time::parse_seconds(meta::metadata(&namespace).str("deletionTimestamp")).unwrap_or_default();
        // Before anything is deleted, so that removals during the check are not missed.
        self.waiting.borrow_mut().insert(name.to_owned());
        let progress = self.clear(name, deleted_at).await?;
        let now = self.client.now();
        let update = self.client.edit(target, "status", |namespace| {
            Ok(meta::metadata(namespace).str("uid") == uid && progress.findings.write(namespace, &now))
        });
        match update.await {
            Err(status) if status.is_not_found() => return Ok(Outcome::Done),
            Err(status) => {
                tracing::warn!(namespace = name, %status, "the conditions of a namespace cannot be written");
            }
            Ok(()) => {}
        }
        if progress.findings.remaining.is_empty() {
            self.waiting.borrow_mut().remove(name);
        }
        if !progress.errors.is_empty() {
            return Ok(Outcome::Retry(progress.errors.join(", ")));
        }
        if progress.estimate > 0 {
            let seconds = u64::try_from(progress.estimate / 2 + 1).unwrap_or(1);
            return Ok(Outcome::RequeueAfter(Duration::from_secs(seconds)));
        }
        let update = self.client.edit(target, "finalize", |namespace| {
            Ok(meta::metadata(namespace).str("uid") == uid && remove_kubernetes_finalizer(namespace))
        });
        update.await.ignore_not_found()?;
        Ok(Outcome::Done)
    }

    /// Deletes everything in the namespace, and counts what is left.
    async fn clear(&self, namespace: &str, deleted_at: i64) -> Result<Progress> {
        let mut progress = Progress::default();
        let resources = self.client.resource_index();
        let written_types = self.client.written_types().await?;
        // A type that was never written to is not even started for this.
        let is_used = |resource: &Arc<Resource>| {
            resource.stored().is_some_and(|stored| written_types.contains(&stored.store))
        };
        let used: Vec<&Arc<Resource>> =
            resources.deletable.iter().filter(|resource| is_used(resource)).collect();
        let is_pods =
            |resource: &&&Arc<Resource>| resource.gv.group.is_empty() && &*resource.plural == "pods";
        if let Some(pods) = used.iter().find(is_pods).filter(|_| self.rules.pods_first) {
            if let Err(error) = self.clear_type(pods, namespace, deleted_at, &mut progress).await {
                progress
                    .errors
                    .push(format!("failed to delete pods for namespace: {namespace}, err: {error}"));
                progress.findings.failures.push(error);
            }
            if !progress.findings.remaining.is_empty() {
                return Ok(progress);
            }
        }
        for resource in used.iter().filter(|resource| !(self.rules.pods_first && is_pods(resource))) {
            if let Err(error) = self.clear_type(resource, namespace, deleted_at, &mut progress).await {
                progress.fail(error);
            }
        }
        self.wait_for_undefined(namespace, &mut progress).await;
        self.clear_aggregated(namespace, &mut progress).await;
        Ok(progress)
    }

    /// Waits for objects whose definition cannot be read: without it nobody can delete them, and they would be left behind.
    async fn wait_for_undefined(&self, namespace: &str, progress: &mut Progress) {
        for name in self.client.resource_index().unreadable.iter() {
            match self.objects(&store_named(name), namespace).await {
                Ok(objects) if objects.is_empty() => {}
                Ok(objects) => {
                    progress.findings.remaining.insert(name.clone(), objects.len());
                    let resource = "customresourcedefinitions.apiextensions.k8s.io";
                    progress.fail(format!("{resource} {} cannot be read", quoted(name)));
                }
                Err(error) => progress.fail(error),
            }
        }
    }

    /// Deletes the objects of extension API servers.
    async fn clear_aggregated(&self, namespace: &str, progress: &mut Progress) {
        let Some((resources, unknown)) = self.aggregated.resources().await else {
            progress.fail("the APIServices cannot be read".to_owned());
            return;
        };
        for resource in &resources {
            let remaining = match self.aggregated.clear(resource, namespace).await {
                Ok(remaining) => remaining,
                Err(error) => {
                    progress.fail(error);
                    continue;
                }
            };
            let remaining = RemainingObjects {
                gv: &resource.registration.gv,
                plural: &resource.resource,
                count: remaining.count,
                finalizers: remaining.finalizers,
                estimate: 0,
            };
            if let Err(error) = progress.note(namespace, remaining) {
                progress.fail(error);
            }
        }
        progress.errors.extend(conditions::undiscovered(&unknown));
        progress.findings.undiscovered = unknown;
    }

    /// Deletes the objects of one resource, in bounded batches, and counts what is left.
    async fn clear_type(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        deleted_at: i64,
        progress: &mut Progress,
    ) -> std::result::Result<(), String> {
        let Some(stored) = resource.stored() else { return Ok(()) };
        let objects = self.objects(&stored.store, namespace).await?;
        if objects.is_empty() {
            return Ok(());
        }
        let estimate = self.longest_grace_period(resource, &objects, deleted_at);
        progress.estimate = progress.estimate.max(estimate);
        let target = ObjectRef { resource, namespace, name: "" };
        let deleted = self.client.delete_collection(target, objects, Propagation::Background).await;
        deleted.map_err(|status| status.message)?;
        let remaining = self.client.list(target).await.map_err(|status| status.message)?;
        let mut finalizers: BTreeMap<String, usize> = BTreeMap::new();
        for finalizer in remaining.iter().flat_map(|object| ObjectMeta::from_object(object).finalizers) {
            *finalizers.entry(finalizer.into_owned()).or_default() += 1;
        }
        let (gv, plural, count) = (&resource.gv, &*resource.plural, remaining.len());
        progress.note(namespace, RemainingObjects { gv, plural, count, finalizers, estimate })
    }

    async fn objects(
        &self,
        store: &TypeName,
        namespace: &str,
    ) -> std::result::Result<Vec<Arc<Object>>, String> {
        let snapshot = self.client.snapshot(store).await.map_err(|status| status.message)?;
        Ok(snapshot.scan(Some(namespace), Bound::Unbounded).cloned().collect())
    }

    /// Deletes objects concurrently, so that they share disk syncs, but only a few at a time, so that others can write.
    async fn delete_all(
        &self,
        resource: &Arc<Resource>,
        objects: Vec<Arc<Object>>,
    ) -> std::result::Result<(), String> {
        let deletions = objects.into_iter().map(|object| async move {
            // Exactly this object: a new namespace of the same name may have an object of the same name.
            let options = DeleteOptions {
                uid: Some(ObjectMeta::from_object(&object).uid.into_owned()),
                propagation: Some(Propagation::Background),
                ..DeleteOptions::default()
            };
            self.client.delete(resource, object, &options).await.ignore_not_found_or_conflict()?;
            Ok(())
        });
        attempts::all(deletions, DELETIONS_IN_FLIGHT).await.map_err(|status| status.message)
    }

    /// How many seconds the pods of a namespace may take to terminate, counted from its deletion.
    fn longest_grace_period(&self, resource: &Resource, objects: &[Arc<Object>], deleted_at: i64) -> i64 {
        if !(resource.gv.group.is_empty() && &*resource.plural == "pods") {
            return 0;
        }
        let seconds = |object: &Arc<Object>| {
            let pod = self.client.load(resource, object).ok()?;
            if matches!(
                pod.get_path(&["status", "phase"]).and_then(Value::as_str),
                Some("Succeeded" | "Failed")
            ) {
                return None;
            }
            pod.get_path(&["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_int)
        };
        let longest = objects.iter().filter_map(seconds).max().unwrap_or(0);
        if self.client.seconds() - deleted_at >= longest { 0 } else { longest }
    }

    /// Queues the namespace of an object if it does not exist.
    fn check_namespace_exists(&self, namespace: &str, queue: &mut Queue<String>) {
        if self.rules.require_namespaces
            && !namespace.is_empty()
            && !self.existing.borrow().contains(namespace)
        {
            queue.add(namespace.to_owned());
        }
    }

    /// Removes objects that were admitted before their namespace was removed. Their list is taken before the namespace is seen to
    /// be missing, so no object of a new namespace of the same name is removed.
    async fn delete_objects_of_missing_namespace(&self, target: ObjectRef<'_>) -> Result<Outcome> {
        let written_types = self.client.written_types().await?;
        let (mut leftovers, mut first_error) = (Vec::new(), None);
        for resource in &self.client.resource_index().deletable {
            let Some(stored) = resource.stored().filter(|stored| written_types.contains(&stored.store))
            else {
                continue;
            };
            match self.objects(&stored.store, target.name).await {
                Ok(objects) if objects.is_empty() => {}
                Ok(objects) => leftovers.push((resource.clone(), objects)),
                // A corrupt type or object does not stop the others.
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        if !leftovers.is_empty() && self.client.cached(target).await?.is_some() {
            return Ok(Outcome::Done);
        }
        for (resource, objects) in leftovers {
            if let Err(error) = self.delete_all(&resource, objects).await {
                first_error.get_or_insert(error);
            }
        }
        Ok(first_error.map_or(Outcome::Done, Outcome::Retry))
    }
}

fn finalizers(namespace: &Value) -> &[Value] {
    namespace.get_path(&["spec", "finalizers"]).map(Value::items).unwrap_or_default()
}

fn set_terminating(namespace: &mut Value) -> bool {
    let is_terminating = meta::is_terminating(namespace);
    if is_terminating {
        namespace.entry("status").set("phase", "Terminating");
    }
    is_terminating
}

/// Removes the `kubernetes` finalizer.
fn remove_kubernetes_finalizer(namespace: &mut Value) -> bool {
    let mut remaining: Vec<String> =
        finalizers(namespace).iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let before = remaining.len();
    remaining.retain(|finalizer| finalizer != NAMESPACE_FINALIZER);
    remaining.sort();
    remaining.dedup();
    let changed = remaining.len() != before;
    namespace.entry("spec").set("finalizers", remaining);
    changed
}

impl Controller for NamespaceController {
    type Key = String;

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::All
    }

    fn workers(&self) -> usize {
        10
    }

    fn max_retry_delay(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<String>) {
        if change.type_name.as_str() == NAMESPACES {
            let name = change.object.key.name();
            if change.is_deleted {
                // Objects that are stored by now are found at once; later ones cause an event.
                self.existing.borrow_mut().remove(name);
                queue.add(name.to_owned());
                return;
            }
            self.existing.borrow_mut().insert(name.to_owned());
            if change.object.fields.get("status.phase") == Some("Terminating")
                || ObjectMeta::from_object(change.object).is_terminating()
            {
                queue.add(name.to_owned());
            }
        } else if change.is_deleted {
            let namespace = change.object.key.namespace();
            if !namespace.is_empty() && self.waiting.borrow().contains(namespace) {
                queue.add_at(namespace.to_owned(), self.clock.moment().plus(REMOVAL_DELAY));
            }
        } else if change.previous.is_none() {
            self.check_namespace_exists(change.object.key.namespace(), queue);
        }
    }

    fn on_list(
        &self,
        type_name: &TypeName,
        snapshot: &pilothouse_actors::snapshot::Snapshot,
        queue: &mut Queue<String>,
    ) {
        if type_name.as_str() == NAMESPACES {
            // Some may have been removed unnoticed.
            self.existing.borrow_mut().drain().for_each(|name| queue.add(name));
            for object in snapshot.iter() {
                self.on_change(&ObjectChange::listed(type_name, snapshot, object), queue);
            }
            return;
        }
        // The removals that they wait for may have been missed.
        self.waiting.borrow().iter().for_each(|namespace| queue.add(namespace.clone()));
        // Each namespace once: keys are sorted.
        let mut last = "";
        for namespace in snapshot.iter().map(|object| object.key.namespace()) {
            if namespace != last {
                self.check_namespace_exists(namespace, queue);
                last = namespace;
            }
        }
    }

    fn reconcile(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.sync(&name).await }.boxed_local()
    }
}
