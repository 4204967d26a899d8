//! ttl-after-finished-controller: deletes finished jobs after their TTL.

use std::time::Duration;

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::{DeleteOptions, Propagation};
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Key;

use super::client::{Client, ObjectRef};
use super::per_object::PerObject;
use super::queue::Outcome;

const STORE: &str = "jobs.batch";

/// Deletes finished jobs.
pub struct TtlAfterFinished {
    /// Reads and deletes objects.
    pub client: Client,
}

/// When a job is deleted, in Unix seconds; `None` if it is not finished or has no TTL.
fn deletion_time(job: &Value) -> Option<i64> {
    let ttl = job.get_path(&["spec", "ttlSecondsAfterFinished"]).and_then(Value::as_int)?;
    if meta::is_terminating(job) {
        return None;
    }
    let conditions = job.get_path(&["status", "conditions"]).map(Value::items).unwrap_or_default();
    let finished = conditions.iter().find(|condition| {
        matches!(condition.str("type"), "Complete" | "Failed") && condition.str("status") == "True"
    })?;
    Some(time::parse_seconds(finished.str("lastTransitionTime")).ok()?.saturating_add(ttl))
}

impl TtlAfterFinished {
    /// The outcome for a job that is not deleted now; `None` if it is due.
    fn outcome_unless_due(&self, job: Option<&Value>) -> Option<Outcome> {
        let Some(due) = job.and_then(deletion_time) else { return Some(Outcome::Done) };
        let remaining = u64::try_from(due - self.client.seconds()).unwrap_or(0);
        (remaining > 0).then(|| Outcome::RequeueAfter(Duration::from_secs(remaining)))
    }
}

impl PerObject for TtlAfterFinished {
    const WATCHED_TYPES: &'static [&'static str] = &[STORE];

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(STORE)?;
        let target = ObjectRef::new(&resource, key);
        let cached = self.client.read_cached(target).await?;
        if let Some(outcome) = self.outcome_unless_due(cached.as_ref()) {
            return Ok(outcome);
        }
        // Its end is checked once more, as in the reference: a later TTL saves it.
        let Some(object) = self.client.get(target).await? else { return Ok(Outcome::Done) };
        let job = self.client.load(&resource, &object)?;
        if let Some(outcome) = self.outcome_unless_due(Some(&job)) {
            return Ok(outcome);
        }
        let uid = Some(meta::metadata(&job).str("uid").to_owned());
        let options =
            DeleteOptions { uid, propagation: Some(Propagation::Foreground), ..DeleteOptions::default() };
        self.client.delete(&resource, object, &options).await.ignore_not_found()?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn finished_job_is_deleted_after_its_ttl() {
        let finished = r#""status":{"conditions":[{"type":"Suspended","status":"True","lastTransitionTime":"1970-01-01T00:00:01Z"},
            {"type":"Complete","status":"True","lastTransitionTime":"1970-01-01T00:01:00Z"}]}"#;
        let job =
            |spec: &str, status: &str| deletion_time(&object(&format!(r#"{{"spec":{spec},{status}}}"#)));
        assert_eq!(job(r#"{"ttlSecondsAfterFinished":10}"#, finished), Some(70));
        assert_eq!(job(r#"{"ttlSecondsAfterFinished":0}"#, finished), Some(60));
        assert_eq!(job("{}", finished), None);
        assert_eq!(job(r#"{"ttlSecondsAfterFinished":10}"#, r#""status":{}"#), None);
        assert_eq!(
            job(r#"{"ttlSecondsAfterFinished":10}"#, &finished.replace("Complete", "FailureTarget")),
            None
        );
    }
}
