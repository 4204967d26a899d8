//! persistentvolumeclaim-protection-controller and persistentvolume-protection-controller: a claim or volume in use is kept until
//! it is unused, even if it is deleted.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::stores::PODS;
use pilothouse_apimachinery::well_known::{CLAIM_PROTECTION, VOLUME_PROTECTION};
use pilothouse_types::object::{Key, Object, TypeName};

use super::client::{Client, ObjectRef};
use super::object_meta::ObjectMeta;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

const CLAIMS: &str = "persistentvolumeclaims";

/// The kind of protected objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protected {
    /// Claims, while a scheduled pod uses them.
    Claims,
    /// Volumes, while they are bound to a claim.
    Volumes,
}

impl Protected {
    fn store(self) -> &'static str {
        match self {
            Protected::Claims => CLAIMS,
            Protected::Volumes => "persistentvolumes",
        }
    }

    fn finalizer(self) -> &'static str {
        match self {
            Protected::Claims => CLAIM_PROTECTION,
            Protected::Volumes => VOLUME_PROTECTION,
        }
    }
}

/// The result of checking an object.
enum CheckResult {
    /// Nothing is to be done.
    Done,
    /// It is being deleted, but in use.
    InUse,
}

/// Adds and removes protection finalizers.
pub struct Protection {
    client: Client,
    protected: Protected,
    /// Claims that are being deleted and in use: a pod that ends triggers another check.
    waiting: RefCell<HashSet<Key>>,
}

impl Protection {
    /// A controller that protects `protected`, acting as `client`.
    pub fn new(client: Client, protected: Protected) -> Protection {
        Protection { client, protected, waiting: RefCell::default() }
    }

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        // Before the check, so that a pod that ends during it is not missed.
        self.waiting.borrow_mut().insert(key.clone());
        let outcome = self.check(key).await;
        if !matches!(outcome, Ok(CheckResult::InUse)) {
            self.waiting.borrow_mut().remove(key);
        }
        outcome.map(|_| Outcome::Done)
    }

    async fn check(&self, key: &Key) -> Result<CheckResult> {
        let resource = self.client.resource(self.protected.store())?;
        let target = ObjectRef::new(&resource, key);
        let Some(object) = self.client.read_cached(target).await? else { return Ok(CheckResult::Done) };
        let (is_terminating, finalizer) = (meta::is_terminating(&object), self.protected.finalizer());
        let finalizers = meta::metadata(&object).get("finalizers").map(Value::items).unwrap_or_default();
        let has_finalizer = finalizers.iter().any(|existing| existing.as_str() == Some(finalizer));
        // Nothing to do for a terminating object without our finalizer, or a living one with it.
        if is_terminating != has_finalizer {
            return Ok(CheckResult::Done);
        }
        if is_terminating && self.is_used(&object, key).await? {
            return Ok(CheckResult::InUse);
        }
        let changed = self.client.edit(target, "", |object| {
            if meta::is_terminating(object) != is_terminating {
                return Ok(false);
            }
            let mut finalizers =
                meta::metadata(object).get("finalizers").map(Value::items).unwrap_or_default().to_vec();
            finalizers.retain(|existing| existing.as_str() != Some(finalizer));
            if !is_terminating {
                finalizers.push(finalizer.into());
            }
            object.entry("metadata").set("finalizers", finalizers);
            Ok(true)
        });
        changed.await.ignore_not_found()?;
        Ok(CheckResult::Done)
    }

    async fn is_used(&self, object: &Value, key: &Key) -> Result<bool> {
        if self.protected == Protected::Volumes {
            return Ok(object.get_path(&["status", "phase"]).and_then(Value::as_str) == Some("Bound"));
        }
        let pods: Arc<Resource> = self.client.resource(PODS)?;
        // A pod that the informer has not reported yet may use the claim, so pods are listed, as in the reference.
        let pod_list =
            self.client.list(ObjectRef { resource: &pods, namespace: key.namespace(), name: "" }).await?;
        let quoted_name = format!("\"{}\"", key.name());
        // Most pods can be excluded without parsing: they neither name the claim nor can have a generated claim of that name.
        let may_use = |pod: &&Arc<Object>| {
            memchr::memmem::find(&pod.bytes, quoted_name.as_bytes()).is_some()
                || key.name().strip_prefix(pod.key.name()).is_some_and(|rest| rest.starts_with('-'))
        };
        for pod in pod_list.iter().filter(may_use) {
            if uses(&self.client.load(&pods, pod)?, object) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether a scheduled pod uses a claim.
fn uses(pod: &Value, claim: &Value) -> bool {
    if pod.get_path(&["spec", "nodeName"]).and_then(Value::as_str).is_none_or(str::is_empty) {
        return false;
    }
    let grace = meta::metadata(pod).get("deletionGracePeriodSeconds").and_then(Value::as_int);
    let is_shut_down = meta::is_terminating(pod) && grace == Some(0);
    let uid = meta::metadata(pod).str("uid");
    let owners = meta::metadata(claim).get("ownerReferences").map(Value::items).unwrap_or_default();
    let is_owned_by_pod = owners.iter().any(|owner| {
        owner.str("uid") == uid && owner.get("controller").and_then(Value::as_bool) == Some(true)
    });
    let volumes = pod.get_path(&["spec", "volumes"]).map(Value::items).unwrap_or_default();
    volumes.iter().any(|volume| {
        let claim_name = volume.get_path(&["persistentVolumeClaim", "claimName"]).and_then(Value::as_str);
        let generated_name = || format!("{}-{}", meta::name(pod), volume.str("name"));
        claim_name == Some(meta::name(claim))
            || (!is_shut_down
                && is_owned_by_pod
                && volume.get("ephemeral").is_some()
                && generated_name() == meta::name(claim))
    })
}

impl Controller for Protection {
    type Key = Key;

    fn watched_types(&self) -> WatchedTypes {
        match self.protected {
            Protected::Claims => WatchedTypes::Only(&[CLAIMS, PODS]),
            Protected::Volumes => WatchedTypes::Only(&["persistentvolumes"]),
        }
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        if change.type_name.as_str() == PODS {
            let waiting = self.waiting.borrow();
            let namespace = change.object.key.namespace();
            waiting
                .iter()
                .filter(|claim| claim.namespace() == namespace)
                .for_each(|claim| queue.add(claim.clone()));
            return;
        }
        let head = ObjectMeta::from_object(change.object);
        if !change.is_deleted && head.is_terminating() == head.has_finalizer(self.protected.finalizer()) {
            queue.add(change.object.key.clone());
        }
    }

    fn on_list(&self, type_name: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Key>) {
        if type_name.as_str() == PODS {
            // The deletion of the last pod that used a claim may have been missed.
            return self.waiting.borrow().iter().for_each(|claim| queue.add(claim.clone()));
        }
        self.on_each_object(type_name, snapshot, queue);
    }

    fn reconcile(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.sync(&key).await }.boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn scheduled_pod_uses_its_claims() {
        let claim = object(r#"{"metadata":{"name":"c"}}"#);
        let pod = |spec: &str| object(&format!(r#"{{"metadata":{{"name":"p","uid":"u"}},"spec":{spec}}}"#));
        let volumes = r#""volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"c"}}]"#;
        assert!(uses(&pod(&format!(r#"{{"nodeName":"n",{volumes}}}"#)), &claim));
        assert!(!uses(&pod(&format!("{{{volumes}}}")), &claim));
        assert!(!uses(&pod(r#"{"nodeName":"n"}"#), &claim));
        let ephemeral = pod(r#"{"nodeName":"n","volumes":[{"name":"v","ephemeral":{}}]}"#);
        let own = object(r#"{"metadata":{"name":"p-v","ownerReferences":[{"uid":"u","controller":true}]}}"#);
        assert!(uses(&ephemeral, &own) && !uses(&ephemeral, &object(r#"{"metadata":{"name":"p-v"}}"#)));
    }
}
