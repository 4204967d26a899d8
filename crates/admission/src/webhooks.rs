//! Admission webhooks: configurations, matching, AdmissionReview requests and responses. `admission/webhooks.rs` makes the
//! calls.

pub mod response;
pub mod webhook;

use pilothouse_apimachinery::well_known::ADMISSION_REGISTRATION_GROUP;

pub use webhook::{ClientConfig, ReviewVersion, Webhook};

/// The group of AdmissionReview.
pub const REVIEW_GROUP: &str = "admission.k8s.io";
/// The kind of AdmissionReview.
pub const REVIEW_KIND: &str = "AdmissionReview";

/// Kinds that no webhook sees: otherwise a faulty configuration could not be repaired.
const EXEMPT: [&str; 6] = [
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

/// Whether no webhook sees objects of this kind.
pub fn is_exempt(group: &str, kind: &str) -> bool {
    group == ADMISSION_REGISTRATION_GROUP && EXEMPT.contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admission_configuration_is_exempt_from_webhooks() {
        assert!(is_exempt(ADMISSION_REGISTRATION_GROUP, "MutatingWebhookConfiguration"));
        assert!(!is_exempt("example.com", "MutatingWebhookConfiguration"));
        assert!(!is_exempt("authentication.k8s.io", "TokenReview"));
    }
}
