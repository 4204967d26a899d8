//! ttl-after-finished-controller: deletes finished jobs after their TTL.

use std::time::Duration;

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::{DeleteOptions, Propagation};
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Key;

use super::client::{At, Client};
use super::per_object::PerObject;
use super::queue::Outcome;

const STORE: &str = "jobs.batch";

/// Deletes finished jobs.
pub struct TtlAfterFinished {
    /// Reads and deletes objects.
    pub client: Client,
}

/// When a job is deleted, in Unix seconds; `None` if it is not finished or has no TTL.
fn goes_at(job: &Value) -> Option<i64> {
    let ttl = job.at(&["spec", "ttlSecondsAfterFinished"]).and_then(Value::as_int)?;
    if meta::is_terminating(job) {
        return None;
    }
    let conditions = job.at(&["status", "conditions"]).map(Value::items).unwrap_or_default();
    let over = conditions.iter().find(|condition| {
        matches!(condition.str("type"), "Complete" | "Failed") && condition.str("status") == "True"
    })?;
    Some(time::parse_seconds(over.str("lastTransitionTime")).ok()?.saturating_add(ttl))
}

impl TtlAfterFinished {
    /// How to go on with a job that is not deleted now; `None` if it is.
    fn pause(&self, job: Option<&Value>) -> Option<Outcome> {
        let Some(at) = job.and_then(goes_at) else { return Some(Outcome::Done) };
        let left = u64::try_from(at - self.client.seconds()).unwrap_or(0);
        (left > 0).then(|| Outcome::After(Duration::from_secs(left)))
    }
}

impl PerObject for TtlAfterFinished {
    const STORES: &'static [&'static str] = &[STORE];

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(STORE)?;
        let at = At::of(&resource, key);
        let seen = self.client.read_cached(at).await?;
        if let Some(pause) = self.pause(seen.as_ref()) {
            return Ok(pause);
        }
        // Its end is checked once more, as in the reference: a later TTL saves it.
        let Some(object) = self.client.get(at).await? else { return Ok(Outcome::Done) };
        let job = self.client.load(&resource, &object)?;
        if let Some(pause) = self.pause(Some(&job)) {
            return Ok(pause);
        }
        let uid = Some(meta::of(&job).str("uid").to_owned());
        let options =
            DeleteOptions { uid, propagation: Some(Propagation::Foreground), ..DeleteOptions::default() };
        self.client.delete(&resource, object, &options).await.ignore_not_found()?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::testing::object;

    #[test]
    fn a_job_goes_its_time_after_its_end() {
        let over = r#""status":{"conditions":[{"type":"Suspended","status":"True","lastTransitionTime":"1970-01-01T00:00:01Z"},
            {"type":"Complete","status":"True","lastTransitionTime":"1970-01-01T00:01:00Z"}]}"#;
        let job = |spec: &str, status: &str| goes_at(&object(&format!(r#"{{"spec":{spec},{status}}}"#)));
        assert_eq!(job(r#"{"ttlSecondsAfterFinished":10}"#, over), Some(70));
        assert_eq!(job(r#"{"ttlSecondsAfterFinished":0}"#, over), Some(60));
        assert_eq!(job("{}", over), None);
        assert_eq!(job(r#"{"ttlSecondsAfterFinished":10}"#, r#""status":{}"#), None);
        assert_eq!(
            job(r#"{"ttlSecondsAfterFinished":10}"#, &over.replace("Complete", "FailureTarget")),
            None
        );
    }
}
