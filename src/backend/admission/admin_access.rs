//! Devices that are in use can be had for administration only in namespaces that are marked for it. Always on: whoever may make
//! claims could look into the devices of others otherwise.

use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;

use super::{Operation, Outcome, Plugin, Write, lookup};

const GROUP: &str = "resource.k8s.io";
/// The label of namespaces that are marked, with the value `true`.
const MARK: &str = "resource.k8s.io/admin-access";

/// Looks at claims, at what they are made from, and at what was given to them.
pub struct AdminAccess;

impl Plugin for AdminAccess {
    fn handles(&self, write: &Write<'_>) -> bool {
        match write.operation {
            // What a claim asks for cannot be changed later.
            Operation::Create => {
                write.is_of(GROUP, "resourceclaims") || write.is_of(GROUP, "resourceclaimtemplates")
            }
            Operation::Update => write.is_of_part(GROUP, "resourceclaims", "status"),
            Operation::Delete | Operation::Connect => false,
        }
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        Box::pin(async move {
            let found = match write.operation {
                Operation::Create => asked_for(object),
                _ if write.old.and_then(given).is_some() => None,
                _ => given(object),
            };
            match found {
                Some(path) => check(write, object, &path).await,
                None => Ok(()),
            }
        })
    }
}

/// The first request for administration in a claim, or in what claims are made from. The path is that of the claim in both, in the
/// form of the oldest version.
fn asked_for(object: &Value) -> Option<FieldPath> {
    let spec = object.get("spec")?;
    let devices = spec.get("devices").or_else(|| spec.at(&["spec", "devices"]))?;
    let asks = |request: &Value| is_set(request) || request.get("exactly").is_some_and(is_set);
    let at = devices.get("requests")?.items().iter().position(asks)?;
    Some(FieldPath::new("spec").child("devices").child("requests").index(at).child("adminAccess"))
}

/// The first device of a claim that was given for administration.
fn given(claim: &Value) -> Option<FieldPath> {
    let at = claim.at(&["status", "allocation", "devices", "results"])?.items().iter().position(is_set)?;
    let devices = FieldPath::new("status").child("allocation").child("devices");
    Some(devices.child("results").index(at).child("adminAccess"))
}

fn is_set(of: &Value) -> bool {
    of.get("adminAccess").and_then(Value::as_bool) == Some(true)
}

async fn check(write: &Write<'_>, object: &Value, path: &FieldPath) -> Result<()> {
    let namespace = lookup::namespace(write).await?;
    let mark = meta::of(&namespace).get("labels").map_or("", |labels| labels.str(MARK)).to_owned();
    if mark == "true" {
        return Ok(());
    }
    let why =
        format!("admin access to devices requires the `{MARK}: true` label on the containing namespace");
    Err(write.call.invalid(meta::name(object), &[FieldError::forbidden(path, &why)]))
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn the_first_that_asks_is_found_in_every_form() {
        let path = |text: &str| asked_for(&object(text)).map(|path| path.to_string());
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
        let found = given(&object(claim)).map(|path| path.to_string());
        assert_eq!(found.as_deref(), Some("status.allocation.devices.results[0].adminAccess"));
    }
}
