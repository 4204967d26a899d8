//! Pod-level resources, and resource claims of pods.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, fill};
use pilothouse_apimachinery::resource_list::{self, ResourceList};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::resources;
use crate::messages;

/// The defaults of pod-level requests: the sum of container requests, or else the limits.
pub fn default(pod: &mut Value, features: EnabledFeatures) {
    if !features.has(Feature::PodLevelResources) {
        return;
    }
    let amounts_of = |field: &str| resource_list::read(pod.get_path(&["spec", "resources", field]));
    let (limits, requests) = (amounts_of("limits"), amounts_of("requests"));
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    let sum_of = |field: &str| {
        resource_list::total_by(pod, |container, _| {
            resource_list::read(container.get_path(&["resources", field]))
        })
    };
    // Huge pages cannot be overcommitted: pod-level limits and requests default to the sum of container limits.
    let mut huge_page_limits = sum_of("limits");
    huge_page_limits.retain(|name, _| resources::is_huge_page(name));
    let mut default_requests = ResourceList::new();
    if !limits.is_empty() || !huge_page_limits.is_empty() {
        default_requests = sum_of("requests");
        default_requests
            .retain(|name, _| resource_list::is_pod_level_resource(name) && !resources::is_huge_page(name));
        for (name, limit) in limits
            .iter()
            .chain(&huge_page_limits)
            .filter(|(name, _)| resource_list::is_pod_level_resource(name))
        {
            default_requests.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
    let pod_level = pod.entry("spec").entry("resources");
    for (field, amounts) in [("limits", huge_page_limits), ("requests", default_requests)] {
        for (name, amount) in amounts {
            fill(pod_level.entry(field), &name, amount.to_string());
        }
    }
}

/// Checks pod-level resources.
pub fn validate(spec: &FieldValue<'_>, claims: &BTreeSet<&str>, errors: &mut ErrorList) {
    let is_enabled = errors.features().has(Feature::PodLevelResources);
    let Some(pod_level) = spec.opt("resources").filter(|_| is_enabled) else { return };
    if pod_level.has("claims") {
        pod_level.child("claims").forbidden(errors, "claims cannot be set for Resources at pod-level");
    }
    resources::validate_pod(&pod_level, claims, errors);
    let mut pod = Value::object();
    pod.set("spec", spec.value.clone());
    let container_requests = resource_list::total_by(&pod, |container, _| {
        resource_list::read(container.get_path(&["resources", "requests"]))
    });
    let (requests, limits) = (
        resource_list::read(pod_level.value.get("requests")),
        resource_list::read(pod_level.value.get("limits")),
    );
    for (name, total) in container_requests {
        let request = requests.get(&name);
        if request.map_or(!total.is_zero(), |request| total > *request) {
            let detail = format!("must be greater than or equal to aggregate container requests of {total}");
            let path = pod_level.path.child("requests").key(&name);
            let rendered = request.map_or_else(|| "0".to_owned(), ToString::to_string);
            errors.push(FieldError::invalid(&path, &quoted(&rendered), &detail));
        }
    }
    for (index, container) in spec.read("containers").items().iter().enumerate() {
        for (name, limit) in resource_list::read(container.get_path(&["resources", "limits"])) {
            if let Some(pod_limit) = limits.get(&name).filter(|pod_limit| limit > **pod_limit) {
                let detail = format!("must be less than or equal to pod limits of {pod_limit}");
                let path = pod_level.path.child("containers").index(index).key(&name).child("limits");
                errors.push(FieldError::invalid(&path, &quoted(&limit.to_string()), &detail));
            }
        }
    }
}

/// The names of the claims of a pod.
pub fn claim_names<'a>(spec: &FieldValue<'a>) -> BTreeSet<&'a str> {
    let claims = spec.read("resourceClaims").items().iter();
    claims.map(|claim| claim.str("name")).filter(|name| !name.is_empty()).collect()
}

/// Checks the resource claims of a pod.
pub fn validate_claims(list: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for claim in list.items() {
        let name = claim.child("name");
        if name.is_empty() {
            name.required(errors, "");
        } else if seen.insert(name.text()) {
            name.syntax(errors, names::dns_label);
        } else {
            name.duplicate(errors);
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        let detail = match sources.iter().filter(|source| claim.has(source)).count() {
            0 => Some("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
            1 => None,
            _ => Some("at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"),
        };
        if let Some(detail) = detail {
            messages::invalid_struct(&claim.path, "core.PodResourceClaim", errors, detail);
        }
        for source in sources.iter().filter_map(|source| claim.opt(source)) {
            source.syntax(errors, names::dns_subdomain);
        }
    }
}

/// Checks the resource claims that a container uses.
pub fn validate_used_claims(list: &FieldValue<'_>, known: &BTreeSet<&str>, errors: &mut ErrorList) {
    let (mut whole_claims, mut requests) = (BTreeSet::new(), BTreeSet::new());
    for claim in list.items() {
        let (name, request) = (claim.str("name"), claim.str("request"));
        if name.is_empty() {
            claim.required(errors, "");
            continue;
        }
        let duplicate = |text: &str| FieldError::duplicate(&claim.path, &quoted(text));
        if whole_claims.contains(name) {
            errors.push(duplicate(name));
        } else if request.is_empty() {
            // One error for each earlier request of the same claim.
            requests
                .iter()
                .filter(|(claim_name, _)| *claim_name == name)
                .for_each(|_| errors.push(duplicate(name)));
            whole_claims.insert(name);
        } else {
            claim.child("request").syntax(errors, names::dns_label);
            if !requests.insert((name, request)) {
                errors.push(duplicate(&format!("{name}/{request}")));
            }
        }
        if !known.contains(name) {
            let mut detail = "must be one of the names in pod.spec.resourceClaims".to_owned();
            match known.is_empty() {
                true => detail.push_str(" which is empty"),
                false => {
                    detail.push_str(&format!(": {}", known.iter().copied().collect::<Vec<_>>().join(", ")));
                }
            }
            errors.push(FieldError::not_found(&claim.path, &quoted(name)).because(&detail));
        }
    }
}

/// Checks resourceClaimStatuses.
pub fn validate_claim_statuses(list: &FieldValue<'_>, spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let (known, mut seen) = (claim_names(spec), BTreeSet::new());
    for status in list.items() {
        let name = status.child("name");
        if !known.contains(name.text()) {
            name.invalid_text(errors, "must match the name of an entry in `spec.resourceClaims`");
        }
        if !seen.insert(name.text()) {
            errors.push(FieldError::duplicate(&name.path, &quoted(name.text())));
        }
        if let Some(claim_name) = status.opt("resourceClaimName") {
            meta::add_invalid(errors, &name.path, claim_name.text(), names::dns_subdomain(claim_name.text()));
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{error_messages, object};

    use super::*;

    const ENABLED: EnabledFeatures = EnabledFeatures::RELEASE.with(Feature::PodLevelResources);

    fn defaulted(spec: &str) -> Value {
        let mut pod = object(&format!(r#"{{"spec":{spec}}}"#));
        default(&mut pod, ENABLED);
        pod.get_path(&["spec", "resources"]).cloned().unwrap_or_default()
    }

    #[test]
    fn pod_level_requests_default_to_container_sums() {
        let containers = r#""containers":[{"resources":{"requests":{"cpu":"1","x.y/z":"1"},"limits":{"hugepages-2Mi":"2Mi"}}},
            {"resources":{"requests":{"cpu":"500m"}}}]"#;
        assert_eq!(
            defaulted(&format!(r#"{{{containers},"resources":{{"limits":{{"cpu":"2","memory":"1Gi"}}}}}}"#)),
            object(
                r#"{"limits":{"cpu":"2","memory":"1Gi","hugepages-2Mi":"2Mi"},
                    "requests":{"cpu":"1500m","memory":"1Gi","hugepages-2Mi":"2Mi"}}"#
            )
        );
        assert_eq!(
            defaulted(r#"{"containers":[],"resources":{"requests":{"cpu":"2"}}}"#),
            object(r#"{"requests":{"cpu":"2"}}"#)
        );
        assert_eq!(defaulted(r#"{"containers":[]}"#), Value::Null);
        let mut pod = object(r#"{"spec":{"resources":{"limits":{"cpu":"2"}}}}"#);
        let before = pod.clone();
        default(&mut pod, EnabledFeatures::RELEASE);
        assert_eq!(pod, before);
    }

    fn validation_errors(spec: &str, features: EnabledFeatures) -> Vec<String> {
        let (object, mut errors) =
            (object(&format!(r#"{{"spec":{spec}}}"#)), ErrorList::with_features(features));
        let spec = FieldValue::top_level(&object, "spec");
        validate_claims(&spec.child("resourceClaims"), &mut errors);
        validate(&spec, &claim_names(&spec), &mut errors);
        for container in spec.child("containers").items() {
            validate_used_claims(
                &container.child("resources").child("claims"),
                &claim_names(&spec),
                &mut errors,
            );
        }
        error_messages(&errors)
    }

    #[test]
    fn pod_level_resource_validation_refuses_each_violation() {
        for (spec, expected) in [
            (
                r#"{"resources":{"limits":{"storage":"1"}}}"#,
                r#"spec.resources.limits[storage]: Unsupported value: storage: supported values: "cpu", "hugepages-", "memory""#,
            ),
            (
                r#"{"resources":{"requests":{"cpu":"1"}},"containers":[{"resources":{"requests":{"cpu":"2"}}}]}"#,
                r#"spec.resources.requests[cpu]: Invalid value: "1": must be greater than or equal to aggregate container requests of 2"#,
            ),
            (
                r#"{"resources":{"limits":{"cpu":"1"}},"containers":[{"resources":{"limits":{"cpu":"2"}}}]}"#,
                r#"spec.resources.containers[0][cpu].limits: Invalid value: "2": must be less than or equal to pod limits of 1"#,
            ),
            (
                r#"{"resources":{"claims":[{"name":"a"}]},"resourceClaims":[{"name":"a","resourceClaimName":"a"}]}"#,
                "spec.resources.claims: Forbidden: claims cannot be set for Resources at pod-level",
            ),
        ] {
            assert_eq!(validation_errors(spec, ENABLED), [expected]);
            assert_eq!(validation_errors(spec, EnabledFeatures::RELEASE), [""; 0], "{spec}");
        }
    }

    #[test]
    fn resource_claim_validation_refuses_each_violation() {
        for (spec, expected) in [
            (
                r#"{"resourceClaims":[{"resourceClaimName":"a"}]}"#,
                "spec.resourceClaims[0].name: Required value",
            ),
            (
                r#"{"resourceClaims":[{"name":"a","resourceClaimName":"a"},{"name":"a","resourceClaimName":"b"}]}"#,
                r#"spec.resourceClaims[1].name: Duplicate value: "a""#,
            ),
            (r#"{"resourceClaims":[{"name":"a"}]}"#, "must specify one of"),
            (
                r#"{"resourceClaims":[{"name":"a","resourceClaimName":"a","resourceClaimTemplateName":"b"}]}"#,
                "at most one of",
            ),
            (
                r#"{"resourceClaims":[{"name":"a","resourceClaimName":"-"}]}"#,
                "resourceClaimName: Invalid value",
            ),
            (
                r#"{"containers":[{"resources":{"claims":[{"name":"x"}]}}]}"#,
                r#"claims[0]: Not found: "x": must be one of the names in pod.spec.resourceClaims which is empty"#,
            ),
            (
                r#"{"resourceClaims":[{"name":"a","resourceClaimName":"a"}],
                    "containers":[{"resources":{"claims":[{"name":"a","request":"r"},{"name":"a"}]}}]}"#,
                r#"claims[1]: Duplicate value: "a""#,
            ),
            (
                r#"{"resourceClaims":[{"name":"a","resourceClaimName":"a"}],
                    "containers":[{"resources":{"claims":[{"name":"a","request":"r"},{"name":"a","request":"r"}]}}]}"#,
                r#"claims[1]: Duplicate value: "a/r""#,
            ),
        ] {
            let errors = validation_errors(spec, EnabledFeatures::RELEASE);
            assert!(errors.len() == 1 && errors[0].contains(expected), "{errors:?}");
        }
    }

    #[test]
    fn claim_status_validation_refuses_each_violation() {
        let pod = object(
            r#"{"spec":{"resourceClaims":[{"name":"a"}]},
                "status":{"c":[{"name":"a","resourceClaimName":"-"},{"name":"a"},{"name":"b"}]}}"#,
        );
        let mut errors = ErrorList::new();
        validate_claim_statuses(
            &FieldValue::top_level(&pod, "status").child("c"),
            &FieldValue::top_level(&pod, "spec"),
            &mut errors,
        );
        let messages = error_messages(&errors);
        assert_eq!(messages.len(), 3, "{messages:?}");
        assert!(messages[0].starts_with("status.c[0].name: Invalid value: \"-\""), "{messages:?}");
        assert_eq!(messages[1], "status.c[1].name: Duplicate value: \"a\"");
        assert!(
            messages[2].ends_with("must match the name of an entry in `spec.resourceClaims`"),
            "{messages:?}"
        );
    }
}
