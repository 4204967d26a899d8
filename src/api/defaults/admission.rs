//! The group `admissionregistration.k8s.io`.

use super::{items_mut, set_if_absent};
use crate::api::value::Value;

/// No selector and a selector without conditions mean the same; the API shows the second.
fn selectors(value: &mut Value) {
    set_if_absent(value, "namespaceSelector", Value::object());
    set_if_absent(value, "objectSelector", Value::object());
}

pub(super) fn webhooks(configuration: &mut Value) {
    items_mut(configuration, "webhooks").for_each(selectors);
}

pub(super) fn policy(policy: &mut Value) {
    let Some(spec) = policy.get_mut("spec") else { return };
    for field in ["matchConstraints", "matchResources"] {
        if let Some(resources) = spec.get_mut(field).filter(|resources| !resources.is_null()) {
            selectors(resources);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::defaulted;
    use super::*;

    #[test]
    fn selectors_are_shown() {
        let group = "admissionregistration.k8s.io";
        let value =
            defaulted(group, "v1", "ValidatingWebhookConfiguration", r#"{"webhooks":[{"name":"w"}]}"#);
        let hook = &value.get("webhooks").unwrap().items()[0];
        assert_eq!((hook.get("objectSelector"), hook.str("failurePolicy")), (Some(&Value::object()), "Fail"));
        let value =
            defaulted(group, "v1", "ValidatingAdmissionPolicy", r#"{"spec":{"matchConstraints":{}}}"#);
        assert_eq!(value.at(&["spec", "matchConstraints", "namespaceSelector"]), Some(&Value::object()));
    }
}
