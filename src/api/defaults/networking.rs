//! The group `networking.k8s.io`.

use crate::api::value::Value;

pub(super) fn policy(policy: &mut Value) {
    let spec = policy.entry("spec");
    if spec.get("policyTypes").is_some_and(|types| !types.items().is_empty()) {
        return;
    }
    let mut types = vec!["Ingress"];
    if spec.get("egress").is_some_and(|rules| !rules.items().is_empty()) {
        types.push("Egress");
    }
    spec.set("policyTypes", types);
}

#[cfg(test)]
mod tests {
    use super::super::tests::defaulted;

    #[test]
    fn what_has_rules_is_ruled() {
        let types = |body| {
            defaulted("networking.k8s.io", "v1", "NetworkPolicy", body).at(&["spec", "policyTypes"]).cloned()
        };
        assert_eq!(types(r#"{"spec":{}}"#), Some(vec!["Ingress"].into()));
        assert_eq!(types(r#"{"spec":{"egress":[{}]}}"#), Some(vec!["Ingress", "Egress"].into()));
        assert_eq!(types(r#"{"spec":{"policyTypes":["Egress"]}}"#), Some(vec!["Egress"].into()));
    }
}
