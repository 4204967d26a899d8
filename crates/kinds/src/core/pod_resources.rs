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
    let said = |field: &str| resource_list::read(pod.at(&["spec", "resources", field]));
    let (limits, requests) = (said("limits"), said("requests"));
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    let of_containers = |field: &str| {
        resource_list::together(pod, |container, _| resource_list::read(container.at(&["resources", field])))
    };
    // Huge pages cannot be overcommitted: pod-level limits and requests default to the sum of container limits.
    let mut more = of_containers("limits");
    more.retain(|name, _| resources::is_huge_page(name));
    let mut asked = ResourceList::new();
    if !limits.is_empty() || !more.is_empty() {
        asked = of_containers("requests");
        asked.retain(|name, _| resource_list::is_for_whole_pods(name) && !resources::is_huge_page(name));
        for (name, limit) in
            limits.iter().chain(&more).filter(|(name, _)| resource_list::is_for_whole_pods(name))
        {
            asked.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
    let whole = pod.entry("spec").entry("resources");
    for (field, amounts) in [("limits", more), ("requests", asked)] {
        for (name, amount) in amounts {
            fill(whole.entry(field), &name, amount.to_string());
        }
    }
}

/// Checks pod-level resources.
pub fn validate(spec: &FieldValue<'_>, claims: &BTreeSet<&str>, errors: &mut ErrorList) {
    let on = errors.features().has(Feature::PodLevelResources);
    let Some(whole) = spec.opt("resources").filter(|_| on) else { return };
    if whole.has("claims") {
        whole.child("claims").forbidden(errors, "claims cannot be set for Resources at pod-level");
    }
    resources::of_pod(&whole, claims, errors);
    let mut pod = Value::object();
    pod.set("spec", spec.value.clone());
    let together =
        resource_list::together(&pod, |one, _| resource_list::read(one.at(&["resources", "requests"])));
    let (requests, limits) =
        (resource_list::read(whole.value.get("requests")), resource_list::read(whole.value.get("limits")));
    for (name, needed) in together {
        let asked = requests.get(&name);
        if asked.map_or(!needed.is_zero(), |asked| needed > *asked) {
            let wrong = format!("must be greater than or equal to aggregate container requests of {needed}");
            let path = whole.path.child("requests").key(&name);
            let shown = asked.map_or_else(|| "0".to_owned(), ToString::to_string);
            errors.push(FieldError::invalid(&path, &quoted(&shown), &wrong));
        }
    }
    for (index, container) in spec.read("containers").items().iter().enumerate() {
        for (name, limit) in resource_list::read(container.at(&["resources", "limits"])) {
            if let Some(most) = limits.get(&name).filter(|most| limit > **most) {
                let wrong = format!("must be less than or equal to pod limits of {most}");
                let path = whole.path.child("containers").index(index).key(&name).child("limits");
                errors.push(FieldError::invalid(&path, &quoted(&limit.to_string()), &wrong));
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
pub fn claims(list: &FieldValue<'_>, errors: &mut ErrorList) {
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
        let wrong = match sources.iter().filter(|source| claim.has(source)).count() {
            0 => Some("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
            1 => None,
            _ => Some("at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"),
        };
        if let Some(wrong) = wrong {
            messages::structure(&claim.path, "core.PodResourceClaim", errors, wrong);
        }
        for source in sources.iter().filter_map(|source| claim.opt(source)) {
            source.syntax(errors, names::dns_subdomain);
        }
    }
}

/// Checks the resource claims that a container uses.
pub fn used_claims(list: &FieldValue<'_>, known: &BTreeSet<&str>, errors: &mut ErrorList) {
    let (mut whole, mut parts) = (BTreeSet::new(), BTreeSet::new());
    for claim in list.items() {
        let (name, request) = (claim.str("name"), claim.str("request"));
        if name.is_empty() {
            claim.required(errors, "");
            continue;
        }
        let twice = |text: &str| FieldError::duplicate(&claim.path, &quoted(text));
        if whole.contains(name) {
            errors.push(twice(name));
        } else if request.is_empty() {
            // One error for each earlier request of the same claim.
            parts.iter().filter(|(of, _)| *of == name).for_each(|_| errors.push(twice(name)));
            whole.insert(name);
        } else {
            claim.child("request").syntax(errors, names::dns_label);
            if !parts.insert((name, request)) {
                errors.push(twice(&format!("{name}/{request}")));
            }
        }
        if !known.contains(name) {
            let mut why = "must be one of the names in pod.spec.resourceClaims".to_owned();
            match known.is_empty() {
                true => why.push_str(" which is empty"),
                false => why.push_str(&format!(": {}", known.iter().copied().collect::<Vec<_>>().join(", "))),
            }
            errors.push(FieldError::not_found(&claim.path, &quoted(name)).because(&why));
        }
    }
}

/// Checks resourceClaimStatuses.
pub fn claim_statuses(list: &FieldValue<'_>, spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let (known, mut seen) = (claim_names(spec), BTreeSet::new());
    for status in list.items() {
        let name = status.child("name");
        if !known.contains(name.text()) {
            name.invalid_text(errors, "must match the name of an entry in `spec.resourceClaims`");
        }
        if !seen.insert(name.text()) {
            errors.push(FieldError::duplicate(&name.path, &quoted(name.text())));
        }
        if let Some(made) = status.opt("resourceClaimName") {
            meta::texts(errors, &name.path, made.text(), names::dns_subdomain(made.text()));
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{object, said};

    use super::*;

    const ON: EnabledFeatures = EnabledFeatures::RELEASE.with(Feature::PodLevelResources);

    fn defaulted(spec: &str) -> Value {
        let mut pod = object(&format!(r#"{{"spec":{spec}}}"#));
        default(&mut pod, ON);
        pod.at(&["spec", "resources"]).cloned().unwrap_or_default()
    }

    #[test]
    fn pods_ask_for_what_their_containers_need() {
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
        let mut closed = object(r#"{"spec":{"resources":{"limits":{"cpu":"2"}}}}"#);
        let before = closed.clone();
        default(&mut closed, EnabledFeatures::RELEASE);
        assert_eq!(closed, before);
    }

    fn found(spec: &str, features: EnabledFeatures) -> Vec<String> {
        let (object, mut errors) = (object(&format!(r#"{{"spec":{spec}}}"#)), ErrorList::under(features));
        let spec = FieldValue::of(&object, "spec");
        claims(&spec.child("resourceClaims"), &mut errors);
        validate(&spec, &claim_names(&spec), &mut errors);
        for container in spec.child("containers").items() {
            used_claims(&container.child("resources").child("claims"), &claim_names(&spec), &mut errors);
        }
        said(&errors)
    }

    #[test]
    fn each_rule_of_whole_pods_refuses() {
        for (spec, wanted) in [
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
            assert_eq!(found(spec, ON), [wanted]);
            assert_eq!(found(spec, EnabledFeatures::RELEASE), [""; 0], "{spec}");
        }
    }

    #[test]
    fn each_rule_of_claims_refuses() {
        for (spec, wanted) in [
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
            let found = found(spec, EnabledFeatures::RELEASE);
            assert!(found.len() == 1 && found[0].contains(wanted), "{found:?}");
        }
    }

    #[test]
    fn statuses_are_those_of_claims() {
        let pod = object(
            r#"{"spec":{"resourceClaims":[{"name":"a"}]},
                "status":{"c":[{"name":"a","resourceClaimName":"-"},{"name":"a"},{"name":"b"}]}}"#,
        );
        let mut errors = ErrorList::new();
        claim_statuses(
            &FieldValue::of(&pod, "status").child("c"),
            &FieldValue::of(&pod, "spec"),
            &mut errors,
        );
        let found = said(&errors);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("status.c[0].name: Invalid value: \"-\""), "{found:?}");
        assert_eq!(found[1], "status.c[1].name: Duplicate value: \"a\"");
        assert!(found[2].ends_with("must match the name of an entry in `spec.resourceClaims`"), "{found:?}");
    }
}
