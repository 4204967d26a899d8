//! DRA admin access: devices in use can be claimed for administration only in namespaces with a label for it. Always on:
//! otherwise every user who may create claims could access the devices of others.

use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;

use super::{Operation, Outcome, Plugin, Write, lookup};

const GROUP: &str = "resource.k8s.io";
/// The label of such namespaces; its value is `true`.
const LABEL: &str = "resource.k8s.io/admin-access";

/// Checks ResourceClaims, their templates, and their allocations.
pub struct AdminAccess;

impl Plugin for AdminAccess {
    fn handles(&self, write: &Write<'_>) -> bool {
        match write.operation {
            // The spec of a claim is immutable.
            Operation::Create => {
                write.is_of(GROUP, "resourceclaims") || write.is_of(GROUP, "resourceclaimtemplates")
            }
            Operation::Update => write.is_of_subresource(GROUP, "resourceclaims", "status"),
            Operation::Delete | Operation::Connect => false,
        }
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        Box::pin(async move {
            let path = match write.operation {
                Operation::Create => requested_path(object),
                _ if write.old.and_then(allocated_path).is_some() => None,
                _ => allocated_path(object),
            };
            match path {
                Some(path) => check(write, object, &path).await,
                None => Ok(()),
            }
        })
    }
}

/// The first request for admin access in a claim or template. The path is that of a claim in both, as in the oldest version.
fn requested_path(object: &Value) -> Option<FieldPath> {
    let spec = object.get("spec")?;
    let devices = spec.get("devices").or_else(|| spec.get_path(&["spec", "devices"]))?;
    let is_requested = |request: &Value| is_set(request) || request.get("exactly").is_some_and(is_set);
    let index = devices.get("requests")?.items().iter().position(is_requested)?;
    Some(FieldPath::new("spec").child("devices").child("requests").index(index).child("adminAccess"))
}

/// The first device that was allocated to a claim with admin access.
fn allocated_path(claim: &Value) -> Option<FieldPath> {
    let index =
        claim.get_path(&["status", "allocation", "devices", "results"])?.items().iter().position(is_set)?;
    let devices = FieldPath::new("status").child("allocation").child("devices");
    Some(devices.child("results").index(index).child("adminAccess"))
}

fn is_set(value: &Value) -> bool {
    value.get("adminAccess").and_then(Value::as_bool) == Some(true)
}

async fn check(write: &Write<'_>, object: &Value, path: &FieldPath) -> Result<()> {
    let namespace = lookup::namespace(write).await?;
    let label = meta::metadata(&namespace).get("labels").map_or("", |labels| labels.str(LABEL)).to_owned();
    if label == "true" {
        return Ok(());
    }
    let reason =
        format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
    Err(write.call.invalid(meta::name(object), &[FieldError::forbidden(path, &reason)]))
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn admin_access_request_is_found_in_every_version() {
        let path = |text: &str| requested_path(&object(text)).map(|path| path.to_string());
        let second = Some("spec.devices.requests[1].adminAccess".to_owned());
        assert_eq!(path(r#"{"spec":{"devices":{"requests":[{},{"adminAccess":true}]}}}"#), second);
        assert_eq!(
            path(r#"{"spec":{"devices":{"requests":[{},{"exactly":{"adminAccess":true}}]}}}"#),
            second
        );
        assert_eq!(path(r#"{"spec":{"spec":{"devices":{"requests":[{},{"adminAccess":true}]}}}}"#), second);
        assert_eq!(path(r#"{"spec":{"devices":{"requests":[{"adminAccess":false}]}}}"#), None);
        assert_eq!(path("{}"), None);
        let claim = r#"{"status":{"allocation":{"devices":{"results":[{"adminAccess":true}]}}}}"#;
        let allocated = allocated_path(&object(claim)).map(|path| path.to_string());
        assert_eq!(allocated.as_deref(), Some("status.allocation.devices.results[0].adminAccess"));
    }
}
