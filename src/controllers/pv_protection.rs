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

use super::client::{At, Client};
use super::object_meta::ObjectMeta;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

const CLAIMS: &str = "persistentvolumeclaims";

/// What is protected.
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
enum Looked {
    /// Nothing is to be done.
    Settled,
    /// It is being deleted, but in use.
    InUse,
}

/// Adds and removes protection finalizers.
pub struct Protection {
    client: Client,
    what: Protected,
    /// Claims that are being deleted and in use: a pod that ends triggers another check.
    waiting: RefCell<HashSet<Key>>,
}

impl Protection {
    /// A loop that protects `what`, acting as `client`.
    pub fn new(client: Client, what: Protected) -> Protection {
        Protection { client, what, waiting: RefCell::default() }
    }

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        // Before the check, so that a pod that ends during it is not missed.
        self.waiting.borrow_mut().insert(key.clone());
        let outcome = self.look(key).await;
        if !matches!(outcome, Ok(Looked::InUse)) {
            self.waiting.borrow_mut().remove(key);
        }
        outcome.map(|_| Outcome::Done)
    }

    async fn look(&self, key: &Key) -> Result<Looked> {
        let resource = self.client.resource(self.what.store())?;
        let at = At::of(&resource, key);
        let Some(object) = self.client.read_cached(at).await? else { return Ok(Looked::Settled) };
        let (going, finalizer) = (meta::is_terminating(&object), self.what.finalizer());
        let finalizers = meta::of(&object).get("finalizers").map(Value::items).unwrap_or_default();
        let held = finalizers.iter().any(|one| one.as_str() == Some(finalizer));
        // Nothing to do for a terminating object without our finalizer, or a living one with it.
        if going != held {
            return Ok(Looked::Settled);
        }
        if going && self.is_used(&object, key).await? {
            return Ok(Looked::InUse);
        }
        let changed = self.client.edit(at, "", |object| {
            if meta::is_terminating(object) != going {
                return Ok(false);
            }
            let mut all = meta::of(object).get("finalizers").map(Value::items).unwrap_or_default().to_vec();
            all.retain(|one| one.as_str() != Some(finalizer));
            if !going {
                all.push(finalizer.into());
            }
            object.entry("metadata").set("finalizers", all);
            Ok(true)
        });
        changed.await.ignore_not_found()?;
        Ok(Looked::Settled)
    }

    async fn is_used(&self, object: &Value, key: &Key) -> Result<bool> {
        if self.what == Protected::Volumes {
            return Ok(object.at(&["status", "phase"]).and_then(Value::as_str) == Some("Bound"));
        }
        let pods: Arc<Resource> = self.client.resource(PODS)?;
        // A pod that the informer has not told of yet may use the claim: so they are listed, as in the reference.
        let all = self.client.list(At { resource: &pods, namespace: key.namespace(), name: "" }).await?;
        let named = format!("\"{}\"", key.name());
        // Most pods can be excluded without parsing: they neither name the claim nor can have a generated claim of that name.
        let may_use = |pod: &&Arc<Object>| {
            memchr::memmem::find(&pod.bytes, named.as_bytes()).is_some()
                || key.name().strip_prefix(pod.key.name()).is_some_and(|rest| rest.starts_with('-'))
        };
        for pod in all.iter().filter(may_use) {
            if uses(&self.client.load(&pods, pod)?, object) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether a scheduled pod uses a claim.
fn uses(pod: &Value, claim: &Value) -> bool {
    if pod.at(&["spec", "nodeName"]).and_then(Value::as_str).is_none_or(str::is_empty) {
        return false;
    }
    let grace = meta::of(pod).get("deletionGracePeriodSeconds").and_then(Value::as_int);
    let shut_down = meta::is_terminating(pod) && grace == Some(0);
    let uid = meta::of(pod).str("uid");
    let owners = meta::of(claim).get("ownerReferences").map(Value::items).unwrap_or_default();
    let of_pod = owners.iter().any(|owner| {
        owner.str("uid") == uid && owner.get("controller").and_then(Value::as_bool) == Some(true)
    });
    let volumes = pod.at(&["spec", "volumes"]).map(Value::items).unwrap_or_default();
    volumes.iter().any(|volume| {
        let named = volume.at(&["persistentVolumeClaim", "claimName"]).and_then(Value::as_str);
        let made = || format!("{}-{}", meta::name(pod), volume.str("name"));
        named == Some(meta::name(claim))
            || (!shut_down && of_pod && volume.get("ephemeral").is_some() && made() == meta::name(claim))
    })
}

impl Controller for Protection {
    type Key = Key;

    fn follows(&self) -> Follows {
        match self.what {
            Protected::Claims => Follows::These(&[CLAIMS, PODS]),
            Protected::Volumes => Follows::These(&["persistentvolumes"]),
        }
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        if change.of.as_str() == PODS {
            let waiting = self.waiting.borrow();
            let namespace = change.object.key.namespace();
            waiting
                .iter()
                .filter(|claim| claim.namespace() == namespace)
                .for_each(|claim| queue.add(claim.clone()));
            return;
        }
        let head = ObjectMeta::of(change.object);
        if !change.gone && head.is_terminating() == head.has_finalizer(self.what.finalizer()) {
            queue.add(change.object.key.clone());
        }
    }

    fn on_list(&self, of: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Key>) {
        if of.as_str() == PODS {
            // The last pod that used a claim may have gone unheard, wherever the others are.
            return self.waiting.borrow().iter().for_each(|claim| queue.add(claim.clone()));
        }
        self.on_each(of, snapshot, queue);
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

    #[test]
    fn a_pod_uses_a_claim_once_it_is_on_a_node() {
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
