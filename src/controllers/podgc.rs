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
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::object::{Key, Object, TypeName};

use crate::limits::DELETIONS_IN_FLIGHT;

use super::attempts::{self, Attempts};
use super::client::{Client, ObjectRef};
use super::object_meta::ObjectMeta;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

const NODES: &str = "nodes";
/// How long a node may be missing before its pods are deleted: it may be about to register.
const QUARANTINE: Duration = Duration::from_secs(40);
/// When a node is checked again whose state is unknown, or whose pods could not be deleted; the reference's interval.
const RECHECK_INTERVAL: Duration = Duration::from_secs(20);
/// How long finished pods are gathered before they are counted.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// The taint of a node that is gone for good though its object exists.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// The pods of all suspected nodes. One key for all: finding the pods means scanning every pod, which costs the same for a
    /// hundred nodes as for one.
    Nodes,
    /// A terminating pod without a node.
    Pod(Key),
    /// All finished pods.
    Finished,
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
    out_of_service: HashSet<String>,
    /// The nodes whose pods are to be checked, and when.
    suspects: HashMap<String, Moment>,
    /// The finished pods, as far as they are counted.
    finished: HashSet<Key>,
}

impl PodCollector {
    /// A controller that acts as `client`.
    pub fn new(client: Client, clock: Clock, threshold: u32) -> PodCollector {
        let threshold = usize::try_from(threshold).unwrap_or(usize::MAX);
        PodCollector { client, clock, threshold, state: RefCell::default() }
    }

    async fn sync(&self, work: &Work) -> Result<Outcome> {
        let resource = self.client.resource(PODS)?;
        match work {
            Work::Nodes => self.nodes(&resource).await,
            Work::Pod(key) => {
                let Some(object) = self.client.cached(ObjectRef::new(&resource, key)).await? else {
                    return Ok(Outcome::Done);
                };
                if node_name(&object).is_empty() && ObjectMeta::from_object(&object).is_terminating() {
                    self.delete_pod(&resource, object, None).await?;
                }
                Ok(Outcome::Done)
            }
            Work::Finished => {
                let snapshot = self.client.snapshot(&TypeName::new(PODS)).await?;
                let finished: Vec<_> = snapshot.iter().filter(|pod| is_finished(pod)).cloned().collect();
                let excess = finished.len().saturating_sub(self.threshold);
                if self.threshold == 0 || excess == 0 {
                    return Ok(Outcome::Done);
                }
                let mut by_age: Vec<(bool, String, Arc<Object>)> = Vec::with_capacity(finished.len());
                let mut attempts = Attempts::default();
                for object in finished {
                    let Some(pod) = attempts.take(self.client.load(&resource, &object)) else { continue };
                    let is_evicted =
                        pod.get_path(&["status", "reason"]).and_then(Value::as_str) == Some("Evicted");
                    by_age.push((
                        !is_evicted,
                        meta::metadata(&pod).str("creationTimestamp").to_owned(),
                        object,
                    ));
                }
                by_age.sort_by(|a, b| (a.0, &a.1, a.2.key.name()).cmp(&(b.0, &b.1, b.2.key.name())));
                let oldest = by_age.into_iter().take(excess).map(|(.., object)| object);
                attempts.take(self.delete_pods(&resource, oldest.collect(), None).await);
                attempts.end().map(|()| Outcome::Done)
            }
        }
    }

    async fn nodes(&self, resource: &Arc<Resource>) -> Result<Outcome> {
        let now = self.clock.moment();
        // Taken out before the check: a pod that comes meanwhile makes its node suspected again.
        let due = self.state.borrow_mut().due(now);
        if let Err(status) = self.check_nodes(resource, due).await {
            // Not retried as a whole: the pause would grow, also for the other nodes.
            tracing::debug!(%status, "pod garbage collection is retried");
        }
        let next_due = self.state.borrow().suspects.values().min().copied();
        // Nodes that become suspected shortly after each other share one scan.
        let remaining = |due: Moment| due.since(self.clock.moment());
        Ok(next_due.map_or(Outcome::Done, |due| Outcome::RequeueAfter(remaining(due).max(BATCH_DELAY))))
    }

    /// Deletes the pods of missing and out-of-service nodes. Nodes whose state is unknown, or whose pods could not be deleted, stay
    /// suspected.
    async fn check_nodes(&self, resource: &Arc<Resource>, names: Vec<String>) -> Result<()> {
        let mut states = NodeStates::default();
        let nodes = self.client.resource(NODES);
        for name in names {
            let node = match &nodes {
                Ok(nodes) => {
                    self.client.read(ObjectRef { resource: nodes, namespace: "", name: &name }).await
                }
                Err(status) => Err(status.clone()),
            };
            states.sort(name, node);
        }
        if let Err(status) = self.delete_pods_of(resource, &states).await {
            states.attempts.take(Err::<(), _>(status));
            states.unknown.extend(states.missing.drain().chain(states.out_of_service.drain()));
        }
        let (mut state, recheck) = (self.state.borrow_mut(), self.clock.moment().plus(RECHECK_INTERVAL));
        states.unknown.into_iter().for_each(|node| state.suspect(node, recheck));
        states.attempts.end()
    }

    async fn delete_pods_of(&self, resource: &Arc<Resource>, states: &NodeStates) -> Result<()> {
        if states.missing.is_empty() && states.out_of_service.is_empty() {
            return Ok(());
        }
        let snapshot = self.client.snapshot(&TypeName::new(PODS)).await?;
        let (mut orphans, mut terminating) = (Vec::new(), Vec::new());
        for pod in snapshot.iter() {
            let node = node_name(pod);
            if states.missing.contains(node) {
                orphans.push(pod.clone());
            } else if states.out_of_service.contains(node) && ObjectMeta::from_object(pod).is_terminating() {
                terminating.push(pod.clone());
            }
        }
        let orphans = self.delete_pods(resource, orphans, Some("PodGC: node no longer exists")).await;
        orphans.and(self.delete_pods(resource, terminating, None).await)
    }

    async fn delete_pods(
        &self,
        resource: &Arc<Resource>,
        pods: Vec<Arc<Object>>,
        message: Option<&str>,
    ) -> Result<()> {
        attempts::all(
            pods.into_iter().map(|pod| self.delete_pod(resource, pod, message)),
            DELETIONS_IN_FLIGHT,
        )
        .await
    }

    /// Marks a pod as failed, because no kubelet will, and removes it.
    async fn delete_pod(
        &self,
        resource: &Arc<Resource>,
        object: Arc<Object>,
        message: Option<&str>,
    ) -> Result<()> {
        let metadata = ObjectMeta::from_object(&object);
        let uid = metadata.uid.to_string();
        if !is_finished(&object) {
            let now = self.client.now();
            let update = self.client.patch(ObjectRef::new(resource, &object.key), "status", |pod| {
                if meta::metadata(pod).str("uid") != uid {
                    return Err(Status::not_found(resource.name(), object.key.name()));
                }
                Ok(mark_failed(pod, message, &now))
            });
            if update.await.ignore_not_found()?.is_none() {
                return Ok(());
            }
        }
        let options =
            DeleteOptions { uid: Some(uid), grace_period_seconds: Some(0), ..DeleteOptions::default() };
        let Some(object) = self.client.cached(ObjectRef::new(resource, &object.key)).await? else {
            return Ok(());
        };
        self.client.delete(resource, object, &options).await.ignore_not_found_or_conflict()?;
        Ok(())
    }

    fn on_node_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        let name = change.object.key.name();
        let mut state = self.state.borrow_mut();
        if change.is_deleted {
            state.nodes.remove(name);
            state.out_of_service.remove(name);
            self.suspect(&mut state, queue, name, QUARANTINE);
            return;
        }
        state.nodes.insert(name.to_owned());
        if memchr::memmem::find(&change.object.bytes, OUT_OF_SERVICE.as_bytes()).is_some() {
            state.out_of_service.insert(name.to_owned());
            self.suspect(&mut state, queue, name, BATCH_DELAY);
        } else {
            state.out_of_service.remove(name);
        }
    }

    fn on_pod_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        let (key, node) = (&change.object.key, node_name(change.object));
        let mut state = self.state.borrow_mut();
        if change.is_deleted {
            state.finished.remove(key);
            return;
        }
        if is_finished(change.object) && self.threshold > 0 {
            state.finished.insert(key.clone());
            if state.finished.len() > self.threshold {
                queue.add_at(Work::Finished, self.clock.moment().plus(BATCH_DELAY));
            }
        }
        if node.is_empty() {
            if ObjectMeta::from_object(change.object).is_terminating() {
                queue.add(Work::Pod(key.clone()));
            }
        } else if !state.nodes.contains(node) {
            self.suspect(&mut state, queue, node, QUARANTINE);
        } else if state.out_of_service.contains(node)
            && ObjectMeta::from_object(change.object).is_terminating()
        {
            self.suspect(&mut state, queue, node, BATCH_DELAY);
        }
    }

    /// Schedules a check of a node's pods.
    fn suspect(&self, state: &mut State, queue: &mut Queue<Work>, node: &str, after: Duration) {
        let at = self.clock.moment().plus(after);
        state.suspect(node.to_owned(), at);
        queue.add_at(Work::Nodes, at);
    }
}

/// The states of suspected nodes.
#[derive(Default)]
struct NodeStates {
    missing: HashSet<String>,
    out_of_service: HashSet<String>,
    /// Nodes whose state is unknown.
    unknown: Vec<String>,
    attempts: Attempts,
}

impl NodeStates {
    fn sort(&mut self, name: String, node: Result<Option<Value>>) {
        match self.attempts.take(node) {
            None => self.unknown.push(name),
            Some(None) => drop(self.missing.insert(name)),
            Some(Some(node)) if is_out_of_service(&node) => drop(self.out_of_service.insert(name)),
            Some(Some(_)) => {}
        }
    }
}

impl State {
    /// The earlier time counts.
    fn suspect(&mut self, node: String, at: Moment) {
        self.suspects.entry(node).and_modify(|due| *due = at.min(*due)).or_insert(at);
    }

    /// Takes out the nodes whose time has come.
    fn due(&mut self, now: Moment) -> Vec<String> {
        self.suspects.extract_if(|_, due| *due <= now).map(|(node, _)| node).collect()
    }
}

fn node_name(pod: &Object) -> &str {
    pod.fields.get("spec.nodeName").unwrap_or_default()
}

fn is_finished(pod: &Object) -> bool {
    matches!(pod.fields.get("status.phase"), Some("Succeeded" | "Failed"))
}

/// Whether a node is out of service and not ready.
fn is_out_of_service(node: &Value) -> bool {
    let items = |path: &[&str]| node.get_path(path).map(Value::items).unwrap_or_default();
    let is_ready = |condition: &Value| condition.str("type") == "Ready" && condition.str("status") == "True";
    items(&["spec", "taints"]).iter().any(|taint| taint.str("key") == OUT_OF_SERVICE)
        && !items(&["status", "conditions"]).iter().any(is_ready)
}

/// Marks a pod as failed, with the reason of its disruption.
fn mark_failed(pod: &mut Value, message: Option<&str>, now: &str) -> bool {
    let status = pod.entry("status");
    if matches!(status.str("phase"), "Succeeded" | "Failed") {
        return false;
    }
    status.set("phase", "Failed");
    let Some(message) = message else { return true };
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

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[NODES, PODS])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        match change.type_name.as_str() {
            NODES => self.on_node_change(change, queue),
            _ => self.on_pod_change(change, queue),
        }
    }

    fn on_list(&self, type_name: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Work>) {
        if type_name.as_str() == NODES {
            // Some may have been removed unnoticed.
            let mut state = self.state.borrow_mut();
            for missing in std::mem::take(&mut state.nodes) {
                self.suspect(&mut state, queue, &missing, QUARANTINE);
            }
            state.out_of_service.clear();
        } else {
            self.state.borrow_mut().finished.clear();
        }
        for object in snapshot.iter().filter(|object| object.is_readable()) {
            self.on_change(&ObjectChange::listed(type_name, snapshot, object), queue);
        }
    }

    fn reconcile(self: Rc<Self>, work: Work) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.sync(&work).await }.boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn podgc_marks_pod_failed_once_with_reason() {
        let mut pod = object(
            r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"},{"type":"DisruptionTarget","status":"False"}]}}"#,
        );
        assert!(mark_failed(&mut pod, Some("m"), "t"));
        let expected = object(
            r#"{"status":{"phase":"Failed","conditions":[{"type":"Ready","status":"True"},{"type":"DisruptionTarget",
                "status":"True","reason":"DeletionByPodGC","message":"m","lastTransitionTime":"t"}]}}"#,
        );
        assert_eq!(pod, expected);
        assert!(!mark_failed(&mut pod, Some("other"), "t2"));
        let mut terminating = object("{}");
        assert!(mark_failed(&mut terminating, None, "t"));
        assert_eq!(terminating, object(r#"{"status":{"phase":"Failed"}}"#));
    }

    #[test]
    fn suspected_nodes_are_due_at_the_earlier_time() {
        let at = |seconds| Moment::default().plus(Duration::from_secs(seconds));
        let mut state = State::default();
        for (node, due) in [("a", 40), ("b", 50), ("a", 60), ("b", 10)] {
            state.suspect(node.to_owned(), at(due));
        }
        assert_eq!(state.due(at(9)), [""; 0]);
        assert_eq!(state.due(at(10)), ["b"]);
        assert_eq!((state.due(at(60)), state.suspects.len()), (vec!["a".to_owned()], 0));
    }

    #[test]
    fn unreadable_node_stays_unknown_without_blocking_others() {
        let out_of_service = object(r#"{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service"}]}}"#);
        let mut states = NodeStates::default();
        for (name, node) in [
            ("broken", Err(Status::internal("it cannot be read"))),
            ("gone", Ok(None)),
            ("lost", Ok(Some(out_of_service))),
            ("there", Ok(Some(object("{}")))),
        ] {
            states.sort(name.to_owned(), node);
        }
        let NodeStates { missing, out_of_service, unknown, attempts } = states;
        assert_eq!(
            (missing, out_of_service),
            (HashSet::from(["gone".to_owned()]), HashSet::from(["lost".to_owned()]))
        );
        assert_eq!(unknown, ["broken"]);
        assert!(attempts.end().is_err());
    }

    #[test]
    fn node_is_out_of_service_if_tainted_and_not_ready() {
        let node = |ready: &str| {
            object(&format!(
                r#"{{"spec":{{"taints":[{{"key":"node.kubernetes.io/out-of-service"}}]}},
                    "status":{{"conditions":[{{"type":"Ready","status":"{ready}"}}]}}}}"#
            ))
        };
        assert!(
            is_out_of_service(&node("Unknown"))
                && is_out_of_service(&node("False"))
                && !is_out_of_service(&node("True"))
        );
        assert!(!is_out_of_service(&object("{}")));
    }
}
