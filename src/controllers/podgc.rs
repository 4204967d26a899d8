//! pod-garbage-collector-controller: deletes pods of removed nodes, terminating pods that were never scheduled, and finished pods
//! above the threshold.
//!
//! This is all of the node lifecycle that is needed without nodes. Whether an existing node works is left to a node lifecycle
//! controller.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::stores::PODS;
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::object::{Key, Object, TypeName};

use crate::limits::DELETIONS_IN_FLIGHT;

use super::attempts::{self, Attempts};
use super::client::{At, Client};
use super::object_meta::ObjectMeta;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

const NODES: &str = "nodes";
/// How long a node may be missing before its pods are deleted: it may be about to register.
const QUARANTINE: Duration = Duration::from_secs(40);
/// When a node is checked again whose state is unknown, or whose pods could not be deleted; the reference's interval.
const AGAIN: Duration = Duration::from_secs(20);
/// How long finished pods are gathered before they are counted.
const GATHERED: Duration = Duration::from_secs(1);
/// The taint of a node that is gone for good though its object exists.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// The pods of all doubtful nodes. One key for all: finding the pods means scanning every pod, which costs the same for a
    /// hundred nodes as for one.
    Nodes,
    /// A terminating pod without a node.
    Pod(Key),
    /// All finished pods.
    Over,
}

/// Deletes orphaned and finished pods.
pub struct PodCollector {
    client: Client,
    clock: Clock,
    /// The maximum number of finished pods; zero for no limit.
    threshold: usize,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// The existing nodes.
    nodes: HashSet<String>,
    /// Nodes that are out of service.
    lost: HashSet<String>,
    /// The nodes whose pods are to be checked, and when.
    doubted: HashMap<String, Timestamp>,
    /// The finished pods, as far as they are counted.
    over: HashSet<Key>,
}

impl PodCollector {
    /// A loop that acts as `client`.
    pub fn new(client: Client, clock: Clock, threshold: u32) -> PodCollector {
        let threshold = usize::try_from(threshold).unwrap_or(usize::MAX);
        PodCollector { client, clock, threshold, state: RefCell::default() }
    }

    async fn sync(&self, work: &Work) -> Result<Outcome> {
        let resource = self.client.resource(PODS)?;
        match work {
            Work::Nodes => self.nodes(&resource).await,
            Work::Pod(key) => {
                let Some(object) = self.client.cached(At::of(&resource, key)).await? else {
                    return Ok(Outcome::Done);
                };
                if node_of(&object).is_empty() && ObjectMeta::of(&object).is_terminating() {
                    self.end(&resource, object, None).await?;
                }
                Ok(Outcome::Done)
            }
            Work::Over => {
                let snapshot = self.client.snapshot(&TypeName::new(PODS)).await?;
                let over: Vec<_> = snapshot.iter().filter(|pod| is_over(pod)).cloned().collect();
                let many = over.len().saturating_sub(self.threshold);
                if self.threshold == 0 || many == 0 {
                    return Ok(Outcome::Done);
                }
                let mut aged: Vec<(bool, String, Arc<Object>)> = Vec::with_capacity(over.len());
                let mut attempts = Attempts::default();
                for object in over {
                    let Some(pod) = attempts.take(self.client.load(&resource, &object)) else { continue };
                    let evicted = pod.at(&["status", "reason"]).and_then(Value::as_str) == Some("Evicted");
                    aged.push((!evicted, meta::of(&pod).str("creationTimestamp").to_owned(), object));
                }
                aged.sort_by(|a, b| (a.0, &a.1, a.2.key.name()).cmp(&(b.0, &b.1, b.2.key.name())));
                let oldest = aged.into_iter().take(many).map(|(.., object)| object);
                attempts.take(self.end_all(&resource, oldest.collect(), None).await);
                attempts.end().map(|()| Outcome::Done)
            }
        }
    }

    async fn nodes(&self, resource: &Arc<Resource>) -> Result<Outcome> {
        let now = self.clock.now();
        // Taken out before the check: a pod that comes meanwhile makes its node doubtful again.
        let due = self.state.borrow_mut().due(now);
        if let Err(status) = self.look_at(resource, due).await {
            // Not retried as a whole: the pause would grow, also for the other nodes.
            tracing::debug!(%status, "pod garbage collection is retried");
        }
        let next = self.state.borrow().doubted.values().min().copied();
        // Nodes that become doubtful shortly after each other share one scan.
        let left = |at: Timestamp| at.since(self.clock.now());
        Ok(next.map_or(Outcome::Done, |at| Outcome::After(left(at).max(GATHERED))))
    }

    /// Deletes the pods of missing and lost nodes. Nodes whose state is unknown, or whose pods could not be deleted, stay
    /// doubtful.
    async fn look_at(&self, resource: &Arc<Resource>, doubted: Vec<String>) -> Result<()> {
        let mut found = Found::default();
        let nodes = self.client.resource(NODES);
        for name in doubted {
            let node = match &nodes {
                Ok(nodes) => self.client.read(At { resource: nodes, namespace: "", name: &name }).await,
                Err(status) => Err(status.clone()),
            };
            found.sort(name, node);
        }
        if let Err(status) = self.end_pods_of(resource, &found).await {
            found.attempts.take(Err::<(), _>(status));
            found.in_doubt.extend(found.gone.drain().chain(found.lost.drain()));
        }
        let (mut state, again) = (self.state.borrow_mut(), self.clock.now().plus(AGAIN));
        found.in_doubt.into_iter().for_each(|node| state.doubt(node, again));
        found.attempts.end()
    }

    async fn end_pods_of(&self, resource: &Arc<Resource>, found: &Found) -> Result<()> {
        if found.gone.is_empty() && found.lost.is_empty() {
            return Ok(());
        }
        let snapshot = self.client.snapshot(&TypeName::new(PODS)).await?;
        let (mut orphans, mut going) = (Vec::new(), Vec::new());
        for pod in snapshot.iter() {
            let node = node_of(pod);
            if found.gone.contains(node) {
                orphans.push(pod.clone());
            } else if found.lost.contains(node) && ObjectMeta::of(pod).is_terminating() {
                going.push(pod.clone());
            }
        }
        let orphans = self.end_all(resource, orphans, Some("PodGC: node no longer exists")).await;
        orphans.and(self.end_all(resource, going, None).await)
    }

    async fn end_all(
        &self,
        resource: &Arc<Resource>,
        pods: Vec<Arc<Object>>,
        because: Option<&str>,
    ) -> Result<()> {
        attempts::all(pods.into_iter().map(|pod| self.end(resource, pod, because)), DELETIONS_IN_FLIGHT).await
    }

    /// Marks a pod as failed, because no kubelet will, and removes it.
    async fn end(&self, resource: &Arc<Resource>, object: Arc<Object>, because: Option<&str>) -> Result<()> {
        let head = ObjectMeta::of(&object);
        let uid = head.uid.to_string();
        if !is_over(&object) {
            let now = self.client.now();
            let failed = self.client.patch(At::of(resource, &object.key), "status", |pod| {
                if meta::of(pod).str("uid") != uid {
                    return Err(Status::not_found(resource.name(), object.key.name()));
                }
                Ok(fail(pod, because, &now))
            });
            if failed.await.ignore_not_found()?.is_none() {
                return Ok(());
            }
        }
        let options =
            DeleteOptions { uid: Some(uid), grace_period_seconds: Some(0), ..DeleteOptions::default() };
        let Some(object) = self.client.cached(At::of(resource, &object.key)).await? else { return Ok(()) };
        self.client.delete(resource, object, &options).await.ignore_not_found_or_conflict()?;
        Ok(())
    }

    fn hear_node(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        let name = change.object.key.name();
        let mut state = self.state.borrow_mut();
        if change.gone {
            state.nodes.remove(name);
            state.lost.remove(name);
            self.doubt(&mut state, queue, name, QUARANTINE);
            return;
        }
        state.nodes.insert(name.to_owned());
        if memchr::memmem::find(&change.object.bytes, OUT_OF_SERVICE.as_bytes()).is_some() {
            state.lost.insert(name.to_owned());
            self.doubt(&mut state, queue, name, GATHERED);
        } else {
            state.lost.remove(name);
        }
    }

    fn hear_pod(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        let (key, node) = (&change.object.key, node_of(change.object));
        let mut state = self.state.borrow_mut();
        if change.gone {
            state.over.remove(key);
            return;
        }
        if is_over(change.object) && self.threshold > 0 {
            state.over.insert(key.clone());
            if state.over.len() > self.threshold {
                queue.add_at(Work::Over, self.clock.now().plus(GATHERED));
            }
        }
        if node.is_empty() {
            if ObjectMeta::of(change.object).is_terminating() {
                queue.add(Work::Pod(key.clone()));
            }
        } else if !state.nodes.contains(node) {
            self.doubt(&mut state, queue, node, QUARANTINE);
        } else if state.lost.contains(node) && ObjectMeta::of(change.object).is_terminating() {
            self.doubt(&mut state, queue, node, GATHERED);
        }
    }

    /// Schedules a check of a node's pods.
    fn doubt(&self, state: &mut State, queue: &mut Queue<Work>, node: &str, after: Duration) {
        let at = self.clock.now().plus(after);
        state.doubt(node.to_owned(), at);
        queue.add_at(Work::Nodes, at);
    }
}

/// The state of doubtful nodes.
#[derive(Default)]
struct Found {
    gone: HashSet<String>,
    lost: HashSet<String>,
    /// Nodes whose state is unknown.
    in_doubt: Vec<String>,
    attempts: Attempts,
}

impl Found {
    fn sort(&mut self, name: String, node: Result<Option<Value>>) {
        match self.attempts.take(node) {
            None => self.in_doubt.push(name),
            Some(None) => drop(self.gone.insert(name)),
            Some(Some(node)) if is_lost(&node) => drop(self.lost.insert(name)),
            Some(Some(_)) => {}
        }
    }
}

impl State {
    /// The earlier time counts.
    fn doubt(&mut self, node: String, at: Timestamp) {
        self.doubted.entry(node).and_modify(|due| *due = at.min(*due)).or_insert(at);
    }

    /// Takes out the nodes whose time has come.
    fn due(&mut self, now: Timestamp) -> Vec<String> {
        self.doubted.extract_if(|_, at| *at <= now).map(|(node, _)| node).collect()
    }
}

fn node_of(pod: &Object) -> &str {
    pod.fields.get("spec.nodeName").unwrap_or_default()
}

fn is_over(pod: &Object) -> bool {
    matches!(pod.fields.get("status.phase"), Some("Succeeded" | "Failed"))
}

/// Whether a node is out of service and not ready.
fn is_lost(node: &Value) -> bool {
    let items = |path: &[&str]| node.at(path).map(Value::items).unwrap_or_default();
    let ready = |condition: &Value| condition.str("type") == "Ready" && condition.str("status") == "True";
    items(&["spec", "taints"]).iter().any(|taint| taint.str("key") == OUT_OF_SERVICE)
        && !items(&["status", "conditions"]).iter().any(ready)
}

/// Marks a pod as failed, with the reason of its disruption.
fn fail(pod: &mut Value, because: Option<&str>, now: &str) -> bool {
    let status = pod.entry("status");
    if matches!(status.str("phase"), "Succeeded" | "Failed") {
        return false;
    }
    status.set("phase", "Failed");
    let Some(message) = because else { return true };
    let mut conditions = status.get("conditions").map(Value::items).unwrap_or_default().to_vec();
    conditions.retain(|condition| condition.str("type") != "DisruptionTarget");
    let mut condition = Value::object();
    for (field, text) in [
        ("type", "DisruptionTarget"),
        ("status", "True"),
        ("reason", "DeletionByPodGC"),
        ("message", message),
        ("lastTransitionTime", now),
    ] {
        condition.set(field, text);
    }
    conditions.push(condition);
    status.set("conditions", conditions);
    true
}

impl Controller for PodCollector {
    type Key = Work;

    fn follows(&self) -> Follows {
        Follows::These(&[NODES, PODS])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        match change.of.as_str() {
            NODES => self.hear_node(change, queue),
            _ => self.hear_pod(change, queue),
        }
    }

    fn on_list(&self, of: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Work>) {
        if of.as_str() == NODES {
            // Some may have been removed unnoticed.
            let mut state = self.state.borrow_mut();
            for gone in std::mem::take(&mut state.nodes) {
                self.doubt(&mut state, queue, &gone, QUARANTINE);
            }
            state.lost.clear();
        } else {
            self.state.borrow_mut().over.clear();
        }
        for object in snapshot.iter().filter(|object| object.is_readable()) {
            self.on_change(&ObjectChange { of, object, previous: None, gone: false, at: None }, queue);
        }
    }

    fn work(self: Rc<Self>, work: Work) -> LocalBoxFuture<'static, Outcome> {
        async move { self.sync(&work).await.unwrap_or_else(|status| Outcome::Again(status.to_string())) }
            .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::testing::object;

    #[test]
    fn a_pod_fails_once_and_says_why() {
        let mut pod = object(
            r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"},{"type":"DisruptionTarget","status":"False"}]}}"#,
        );
        assert!(fail(&mut pod, Some("m"), "t"));
        let wanted = object(
            r#"{"status":{"phase":"Failed","conditions":[{"type":"Ready","status":"True"},{"type":"DisruptionTarget",
                "status":"True","reason":"DeletionByPodGC","message":"m","lastTransitionTime":"t"}]}}"#,
        );
        assert_eq!(pod, wanted);
        assert!(!fail(&mut pod, Some("other"), "t2"));
        let mut going = object("{}");
        assert!(fail(&mut going, None, "t"));
        assert_eq!(going, object(r#"{"status":{"phase":"Failed"}}"#));
    }

    #[test]
    fn nodes_wait_for_their_time_and_the_earlier_one_counts() {
        let mut state = State::default();
        for (node, at) in [("a", 40), ("b", 50), ("a", 60), ("b", 10)] {
            state.doubt(node.to_owned(), Timestamp(at));
        }
        assert_eq!(state.due(Timestamp(9)), [""; 0]);
        assert_eq!(state.due(Timestamp(10)), ["b"]);
        assert_eq!((state.due(Timestamp(60)), state.doubted.len()), (vec!["a".to_owned()], 0));
    }

    #[test]
    fn a_node_that_cannot_be_read_stays_in_doubt_and_keeps_no_other() {
        let lost = object(r#"{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service"}]}}"#);
        let mut found = Found::default();
        for (name, node) in [
            ("broken", Err(Status::internal("it cannot be read"))),
            ("gone", Ok(None)),
            ("lost", Ok(Some(lost))),
            ("there", Ok(Some(object("{}")))),
        ] {
            found.sort(name.to_owned(), node);
        }
        let Found { gone, lost, in_doubt, attempts } = found;
        assert_eq!((gone, lost), (HashSet::from(["gone".to_owned()]), HashSet::from(["lost".to_owned()])));
        assert_eq!(in_doubt, ["broken"]);
        assert!(attempts.end().is_err());
    }

    #[test]
    fn a_node_is_lost_if_somebody_says_so_and_it_does_not_work() {
        let node = |ready: &str| {
            object(&format!(
                r#"{{"spec":{{"taints":[{{"key":"node.kubernetes.io/out-of-service"}}]}},
                    "status":{{"conditions":[{{"type":"Ready","status":"{ready}"}}]}}}}"#
            ))
        };
        assert!(is_lost(&node("Unknown")) && is_lost(&node("False")) && !is_lost(&node("True")));
        assert!(!is_lost(&object("{}")));
    }
}
