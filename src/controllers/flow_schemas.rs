//! API Priority and Fairness: maintains the built-in configuration, and the Dangling condition of every flow schema. Runs in
//! every server, whichever loops are enabled.

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
use super::client::{At, Client};
use super::own_objects::Reconcile;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

/// The name in health checks and metrics.
pub const NAME: &str = "priority-and-fairness-config";
const SCHEMAS: &str = "flowschemas.flowcontrol.apiserver.k8s.io";
const LEVELS: &str = "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io";
/// How often the built-in configuration is restored; the reference's value.
const EVERY: Duration = Duration::from_secs(60);
/// The maximum writes of one schema's status per period, and the pause after that: another writer disagrees. The reference's
/// values.
const MOST_WRITES: usize = 6;
const WRITES_COUNTED: Duration = Duration::from_secs(60);
const NEXT_LOOK: Duration = Duration::from_secs(30);

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// The built-in configuration.
    Own,
    /// All schemas: a level was created or deleted.
    All,
    /// One schema.
    One(Key),
    /// Applies the current levels to waiting requests.
    Count,
}

/// Maintains flow schemas and priority levels.
pub struct FlowSchemas {
    /// Reads and writes objects.
    pub client: Client,
    /// The source of time.
    pub clock: Clock,
    /// Restores the built-in configuration.
    pub settle: Reconcile,
    /// Applies the configuration, even without any request.
    pub count: Reconcile,
    /// Whether the status of schemas is written: only if API Priority and Fairness is enabled.
    pub tells: bool,
    /// The times of recent status writes by schema, of the last minute only.
    pub written: RefCell<HashMap<Key, VecDeque<Timestamp>>>,
}

impl FlowSchemas {
    async fn own(&self) -> Outcome {
        match (self.settle)().await {
            Ok(()) => Outcome::After(EVERY),
            Err(status) => {
                tracing::warn!(%status, "the mandatory flow schemas and priority levels cannot be maintained; retrying");
                Outcome::Again(status.to_string())
            }
        }
    }

    async fn all(&self) -> Result<Outcome> {
        let snapshot = self.client.snapshot(&TypeName::new(SCHEMAS)).await?;
        let (mut outcome, mut attempts) = (Outcome::Done, Attempts::default());
        for object in snapshot.iter().filter(|object| object.is_readable()) {
            if let Some(Outcome::After(pause)) = attempts.take(self.one(&object.key).await) {
                outcome = Outcome::After(pause);
            }
        }
        attempts.end().map(|()| outcome)
    }

    async fn one(&self, key: &Key) -> Result<Outcome> {
        let (schemas, levels) = (self.client.resource(SCHEMAS)?, self.client.resource(LEVELS)?);
        let at = At::of(&schemas, key);
        let Some(schema) = self.client.read_cached(at).await? else { return Ok(Outcome::Done) };
        let level = flow_control::level_of(&schema);
        let found = self.client.cached(At { resource: &levels, namespace: "", name: level }).await?.is_some();
        let status = flow_control::dangling(level, found, &self.client.now());
        if says(&schema, &status) {
            return Ok(Outcome::Done);
        }
        if !self.may_write(key) {
            return Ok(Outcome::After(NEXT_LOOK));
        }
        let body = flow_control::stated(&schema, status);
        self.client.apply(at, "status", flow_control::CONSUMER, &body).await.ignore_not_found()?;
        Ok(Outcome::Done)
    }

    /// Counts a write, unless there were too many.
    fn may_write(&self, key: &Key) -> bool {
        let now = self.clock.now();
        let horizon = now.minus(WRITES_COUNTED);
        let mut written = self.written.borrow_mut();
        written.retain(|_, times| {
            times.retain(|at| *at > horizon);
            !times.is_empty()
        });
        let times = written.entry(key.clone()).or_default();
        let may = times.len() < MOST_WRITES;
        if may {
            times.push_back(now);
        }
        may
    }
}

/// Whether a schema has these conditions already, regardless of their times.
fn says(schema: &Value, status: &Value) -> bool {
    let conditions = |of: Option<&Value>| {
        of.and_then(|status| status.get("conditions")).map(Value::items).unwrap_or_default().to_vec()
    };
    let wanted = conditions(Some(status));
    let told = conditions(schema.get("status"));
    let same = |one: &Value, other: &Value| {
        ["type", "status", "reason", "message"].iter().all(|field| one.str(field) == other.str(field))
    };
    wanted.iter().all(|wanted| told.iter().any(|told| same(told, wanted)))
}

impl Controller for FlowSchemas {
    type Key = Task;

    fn follows(&self) -> Follows {
        Follows::These(&[SCHEMAS, LEVELS])
    }

    fn workers(&self) -> usize {
        1
    }

    fn longest_retry(&self) -> Duration {
        EVERY
    }

    fn begins_with(&self) -> Vec<Task> {
        vec![Task::Own]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Task>) {
        if !self.tells {
            return;
        }
        match change.of.as_str() {
            SCHEMAS if !change.gone => queue.add(Task::One(change.object.key.clone())),
            LEVELS => {
                queue.add(Task::Count);
                if change.gone || change.previous.is_none() {
                    queue.add(Task::All);
                }
            }
            _ => {}
        }
    }

    fn work(self: Rc<Self>, task: Task) -> LocalBoxFuture<'static, Outcome> {
        async move {
            let done = match &task {
                Task::Own => return self.own().await,
                Task::All => self.all().await,
                Task::One(key) => self.one(key).await,
                Task::Count => (self.count)().await.map(|()| Outcome::Done),
            };
            done.unwrap_or_else(|status| Outcome::Again(status.to_string()))
        }
        .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::meta;

    use super::super::testing::object;
    use super::*;

    #[test]
    fn what_is_said_already_is_not_said_again() {
        let schema = object(
            r#"{"metadata":{"name":"s"},"spec":{"priorityLevelConfiguration":{"name":"l"}},"status":{"conditions":[
                {"type":"Dangling","status":"True","reason":"NotFound","lastTransitionTime":"2020-01-01T00:00:00Z",
                "message":"This FlowSchema references the PriorityLevelConfiguration object named \"l\" but there is no such object"}]}}"#,
        );
        let (level, now) = (flow_control::level_of(&schema), "2026-01-01T00:00:00Z");
        assert_eq!((level, meta::name(&schema)), ("l", "s"));
        assert!(says(&schema, &flow_control::dangling(level, false, now)));
        assert!(!says(&schema, &flow_control::dangling(level, true, now)));
        assert!(!says(&schema, &flow_control::dangling("other", false, now)));
    }
}
