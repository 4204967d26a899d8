//! certificatesigningrequest-cleaner-controller: deletes certificate requests some time after they were signed or
//! denied, and undecided ones after a day.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::asn1::Asn1Time;
use openssl::x509::X509;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::stores::SIGNING_REQUESTS;
use pilothouse_types::object::Key;

use super::client::{Client, ObjectRef};
use super::per_object::PerObject;
use super::queue::Outcome;

/// Seconds that a decided request stays.
const DECIDED_TTL: i64 = 3_600;
/// Seconds that an undecided request stays.
const PENDING_TTL: i64 = 24 * 3_600;

/// Deletes old certificate requests.
pub struct CertificateCleaner {
    /// Reads and deletes objects.
    pub client: Client,
}

/// When a request is deleted, in Unix seconds; `None` while it waits for its certificate.
fn deletion_time(request: &Value) -> Option<i64> {
    let conditions = request.get_path(&["status", "conditions"]).map(Value::items).unwrap_or_default();
    if conditions.is_empty() {
        let created = time::parse_seconds(meta::metadata(request).str("creationTimestamp")).ok()?;
        return Some(created.saturating_add(PENDING_TTL));
    }
    let certificate =
        request.get_path(&["status", "certificate"]).and_then(Value::as_str).unwrap_or_default();
    let condition_deadline = |condition: &Value| {
        let is_decided = match condition.str("type") {
            "Denied" | "Failed" => true,
            "Approved" => !certificate.is_empty(),
            _ => false,
        };
        let updated = time::parse_seconds(condition.str("lastUpdateTime")).ok();
        updated.filter(|_| is_decided).map(|time| time.saturating_add(DECIDED_TTL))
    };
    let is_approved = conditions.iter().any(|condition| condition.str("type") == "Approved");
    let expires = if is_approved { certificate_expiry(certificate) } else { None };
    conditions.iter().filter_map(condition_deadline).chain(expires).min()
}

/// When a certificate expires.
fn certificate_expiry(certificate: &str) -> Option<i64> {
    let pem = STANDARD.decode(certificate).ok().filter(|pem| !pem.is_empty())?;
    let certificate = X509::from_pem(&pem).ok()?;
    let since_epoch = Asn1Time::from_unix(0).ok()?.diff(certificate.not_after()).ok()?;
    Some(i64::from(since_epoch.days) * 86_400 + i64::from(since_epoch.secs))
}

impl PerObject for CertificateCleaner {
    const WATCHED_TYPES: &'static [&'static str] = &[SIGNING_REQUESTS];

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(SIGNING_REQUESTS)?;
        let Some(object) = self.client.cached(ObjectRef::new(&resource, key)).await? else {
            return Ok(Outcome::Done);
        };
        let request = self.client.load(&resource, &object)?;
        let Some(due) = deletion_time(&request) else { return Ok(Outcome::Done) };
        let remaining = u64::try_from(due - self.client.seconds()).unwrap_or(0);
        if remaining > 0 {
            return Ok(Outcome::RequeueAfter(Duration::from_secs(remaining)));
        }
        let uid = Some(meta::metadata(&request).str("uid").to_owned());
        let options = DeleteOptions { uid, ..DeleteOptions::default() };
        self.client.delete(&resource, object, &options).await.ignore_not_found_or_conflict()?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn csrs_are_deleted_when_decided_or_long_pending() {
        let request = |status: &str| {
            deletion_time(&object(&format!(
                r#"{{"metadata":{{"creationTimestamp":"1970-01-01T00:00:00Z"}},"status":{status}}}"#
            )))
        };
        let condition = |kind: &str| {
            format!(r#""conditions":[{{"type":"{kind}","lastUpdateTime":"1970-01-01T00:00:10Z"}}]"#)
        };
        assert_eq!(request("{}"), Some(86_400));
        assert_eq!(request(&format!("{{{}}}", condition("Denied"))), Some(3_610));
        assert_eq!(request(&format!("{{{}}}", condition("Failed"))), Some(3_610));
        assert_eq!(request(&format!("{{{}}}", condition("Approved"))), None);
        assert_eq!(request(&format!(r#"{{"certificate":"eA==",{}}}"#, condition("Approved"))), Some(3_610));
    }
}
