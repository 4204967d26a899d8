//! API Priority and Fairness: maintains the built-in configuration, and the Dangling condition of every flow schema. Runs in
//! every server, whichever controllers are enabled.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_api::bootstrap::flow_control;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::object::{Key, TypeName};

use super::attempts::Attempts;
use super::client::{Client, ObjectRef};
use super::own_objects::Reconcile;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in health checks and metrics.
pub const NAME: &str = "priority-and-fairness-config";
const SCHEMAS: &str = "flowschemas.flowcontrol.apiserver.k8s.io";
const LEVELS: &str = "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io";
/// How often the built-in configuration is restored; the reference's value.
const RESTORE_INTERVAL: Duration = Duration::from_secs(60);
/// The maximum status writes of one schema per period, and the pause after that: another writer disagrees. The reference's
/// values.
const MAX_STATUS_WRITES: usize = 6;
const STATUS_WRITE_PERIOD: Duration = Duration::from_secs(60);
const STATUS_WRITE_PAUSE: Duration = Duration::from_secs(30);

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// The built-in configuration.
    Restore,
    /// All schemas: a level was created or deleted.
    AllSchemas,
    /// One schema.
    Schema(Key),
    /// Applies the current levels to waiting requests.
    ApplyLevels,
}

/// Maintains flow schemas and priority levels.
pub struct FlowSchemas {
    /// Reads and writes objects.
    pub client: Client,
    /// The source of time.
    pub clock: Clock,
    /// Restores the built-in configuration.
    pub restore: Reconcile,
    /// Applies the configuration, even without any request.
    pub apply: Reconcile,
    /// Whether the status of schemas is written: only if API Priority and Fairness is enabled.
    pub writes_status: bool,
    /// The times of recent status writes by schema, of the last minute only.
    pub recent_writes: RefCell<HashMap<Key, VecDeque<Timestamp>>>,
}

impl FlowSchemas {
    async fn restore_builtin(&self) -> Result<Outcome> {
        let restored = (self.restore)().await.inspect_err(|status| {
            tracing::warn!(%status, "the mandatory flow schemas and priority levels cannot be maintained; retrying");
        });
        restored.map(|()| Outcome::RequeueAfter(RESTORE_INTERVAL))
    }

    async fn sync_all(&self) -> Result<Outcome> {
        let snapshot = self.client.snapshot(&TypeName::new(SCHEMAS)).await?;
        let (mut outcome, mut attempts) = (Outcome::Done, Attempts::default());
        for object in snapshot.iter().filter(|object| object.is_readable()) {
            if let Some(Outcome::RequeueAfter(pause)) = attempts.take(self.sync(&object.key).await) {
                outcome = Outcome::RequeueAfter(pause);
            }
        }
        attempts.end().map(|()| outcome)
    }

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let (schemas, levels) = (self.client.resource(SCHEMAS)?, self.client.resource(LEVELS)?);
        let target = ObjectRef::new(&schemas, key);
        let Some(schema) = self.client.read_cached(target).await? else { return Ok(Outcome::Done) };
        let level = flow_control::level_name(&schema);
        let level_exists =
            self.client.cached(ObjectRef { resource: &levels, namespace: "", name: level }).await?.is_some();
        let status = flow_control::dangling(level, level_exists, &self.client.now());
        if has_conditions(&schema, &status) {
            return Ok(Outcome::Done);
        }
        if !self.may_write(key) {
            return Ok(Outcome::RequeueAfter(STATUS_WRITE_PAUSE));
        }
        let body = flow_control::status_configuration(&schema, status);
        self.client.apply(target, "status", flow_control::CONSUMER, &body).await.ignore_not_found()?;
        Ok(Outcome::Done)
    }

    /// Counts a write, unless there were too many.
    fn may_write(&self, key: &Key) -> bool {
        let now = self.clock.now();
        let horizon = now.minus(STATUS_WRITE_PERIOD);
        let mut recent_writes = self.recent_writes.borrow_mut();
        recent_writes.retain(|_, times| {
            times.retain(|time| *time > horizon);
            !times.is_empty()
        });
        let times = recent_writes.entry(key.clone()).or_default();
        let is_allowed = times.len() < MAX_STATUS_WRITES;
        if is_allowed {
            times.push_back(now);
        }
        is_allowed
    }
}

/// Whether a schema has these conditions already, regardless of their times.
fn has_conditions(schema: &Value, status: &Value) -> bool {
    let conditions = |object: Option<&Value>| {
        object.and_then(|status| status.get("conditions")).map(Value::items).unwrap_or_default().to_vec()
    };
    let expected = conditions(Some(status));
    let current = conditions(schema.get("status"));
    let is_same = |left: &Value, right: &Value| {
        ["type", "status", "reason", "message"].iter().all(|field| left.str(field) == right.str(field))
    };
    expected.iter().all(|expected| current.iter().any(|current| is_same(current, expected)))
}

impl Controller for FlowSchemas {
    type Key = Task;

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[SCHEMAS, LEVELS])
    }

    fn workers(&self) -> usize {
        1
    }

    fn max_retry_delay(&self) -> Duration {
        RESTORE_INTERVAL
    }

    fn initial_keys(&self) -> Vec<Task> {
        vec![Task::Restore]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Task>) {
        if !self.writes_status {
            return;
        }
        match change.type_name.as_str() {
            SCHEMAS if !change.is_deleted => queue.add(Task::Schema(change.object.key.clone())),
            LEVELS => {
                queue.add(Task::ApplyLevels);
                if change.is_deleted || change.previous.is_none() {
                    queue.add(Task::AllSchemas);
                }
            }
            _ => {}
        }
    }

    fn reconcile(self: Rc<Self>, task: Task) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move {
            match &task {
                Task::Restore => self.restore_builtin().await,
                Task::AllSchemas => self.sync_all().await,
                Task::Schema(key) => self.sync(key).await,
                Task::ApplyLevels => (self.apply)().await.map(|()| Outcome::Done),
            }
        }
        .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::meta;
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn existing_conditions_are_not_written_again() {
        let schema = object(
            r#"{"metadata":{"name":"s"},"spec":{"priorityLevelConfiguration":{"name":"l"}},"status":{"conditions":[
                {"type":"Dangling","status":"True","reason":"NotFound","lastTransitionTime":"2020-01-01T00:00:00Z",
                "message":"This FlowSchema references the PriorityLevelConfiguration object named \"l\" but there is no such object"}]}}"#,
        );
        let (level, now) = (flow_control::level_name(&schema), "2026-01-01T00:00:00Z");
        assert_eq!((level, meta::name(&schema)), ("l", "s"));
        assert!(has_conditions(&schema, &flow_control::dangling(level, false, now)));
        assert!(!has_conditions(&schema, &flow_control::dangling(level, true, now)));
        assert!(!has_conditions(&schema, &flow_control::dangling("other", false, now)));
    }
}
