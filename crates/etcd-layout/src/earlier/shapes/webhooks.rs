//! Configurations of admission webhooks.

use pilothouse_apimachinery::value::Value;

use super::{each_item, fill};

/// The timeout of a webhook of v1beta1 that names none.
const TIMEOUT_SECONDS: i64 = 30;

/// A configuration of v1beta1, whose defaults are others than those of v1.
pub(super) fn with_defaults_of_v1beta1(mut configuration: Value) -> Value {
    each_item(&mut configuration, &["webhooks"], |webhook| {
        fill(webhook, "failurePolicy", "Ignore");
        fill(webhook, "matchPolicy", "Exact");
        fill(webhook, "sideEffects", "Unknown");
        if webhook.get("timeoutSeconds").is_none() {
            webhook.set("timeoutSeconds", TIMEOUT_SECONDS);
        }
        if webhook.get("admissionReviewVersions").is_none_or(|versions| versions.items().is_empty()) {
            webhook.set("admissionReviewVersions", vec![Value::from("v1beta1")]);
        }
    });
    configuration
}
