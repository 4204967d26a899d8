//! Priority levels.

use pilothouse_apimachinery::value::Value;

use super::rename;

/// Marks a level of v1beta3 that has no shares: the version cannot tell that from the default.
const ZERO_SHARES: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

/// v1beta1 and v1beta2 have the shares under another name.
pub(super) fn with_assured_shares(mut level: Value) -> Value {
    if let Some(limited) = level.get_mut("spec").and_then(|spec| spec.get_mut("limited")) {
        rename(limited, "assuredConcurrencyShares", "nominalConcurrencyShares");
    }
    level
}

/// v1beta3 cannot tell zero shares from the default, and has an annotation for that.
pub(super) fn with_marked_zero(mut level: Value) -> Value {
    let annotations = level.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"));
    let is_marked = annotations.is_some_and(|annotations| annotations.remove(ZERO_SHARES).is_some());
    if is_marked
        && let Some(limited) = level.get_mut("spec").and_then(|spec| spec.get_mut("limited"))
        && limited.get("nominalConcurrencyShares").is_none()
    {
        limited.set("nominalConcurrencyShares", 0);
    }
    level
}
