//! PersistentVolumeClaimResize: a claim grows only if its storage class allows expansion.

use pilothouse_apimachinery::quantity::Quantity;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::STORAGE_CLASS;

use super::lookup::STORAGE_CLASSES;
use super::{Operation, Outcome, Plugin, Write, done};

/// Refuses to enlarge claims whose storage class does not allow expansion.
pub struct PersistentVolumeClaimResize;

impl Plugin for PersistentVolumeClaimResize {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Update && write.is_of("", "persistentvolumeclaims")
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, claim: &'a Value) -> Outcome<'a> {
        match write.old {
            Some(old) if grows(claim, old) => Box::pin(check_expansion(write, claim, old)),
            _ => done(Ok(())),
        }
    }
}

fn requested_size(claim: &Value) -> Option<Quantity> {
    let size = claim.get_path(&["spec", "resources", "requests", "storage"])?;
    Quantity::parse(size.as_str()?).ok()
}

fn grows(new: &Value, old: &Value) -> bool {
    match (requested_size(new), requested_size(old)) {
        (Some(new), Some(old)) => new > old,
        (Some(new), None) => !new.is_zero() && !new.is_negative(),
        _ => false,
    }
}

fn class_name(claim: &Value) -> &str {
    let annotation = claim.get_path(&["metadata", "annotations", STORAGE_CLASS]);
    annotation
        .or_else(|| claim.get_path(&["spec", "storageClassName"]))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

async fn check_expansion(write: &Write<'_>, claim: &Value, old: &Value) -> Result<()> {
    if old.get_path(&["status", "phase"]).and_then(Value::as_str) != Some("Bound") {
        return Err(write.forbidden(claim, "Only bound persistent volume claims can be expanded"));
    }
    let name = class_name(claim);
    let class = match name {
        "" => None,
        name if name != class_name(old) => None,
        name => STORAGE_CLASSES.get(write, name).await?,
    };
    let is_allowed =
        class.and_then(|storage_class| storage_class.get("allowVolumeExpansion").and_then(Value::as_bool));
    if is_allowed == Some(true) {
        return Ok(());
    }
    let reason = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
               support resize";
    Err(write.forbidden(claim, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_grows_only_if_request_is_larger() {
        let claim = |storage: &str| {
            let mut claim = Value::object();
            claim.entry("spec").entry("resources").entry("requests").set("storage", storage);
            claim
        };
        assert!(grows(&claim("2Gi"), &claim("1Gi")) && !grows(&claim("1Gi"), &claim("1024Mi")));
        assert!(!grows(&claim("1Gi"), &claim("2Gi")) && !grows(&Value::object(), &claim("1Gi")));
    }
}
