//! The features for validating an updated pod: those that the old pod used stay enabled.

use std::collections::BTreeSet;

use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::value::Value;

use super::{env, pod_meta};

const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The features for validating an updated pod or template: `new` and `old` have a spec and metadata.
pub fn relaxed(features: EnabledFeatures, new: &Value, old: &Value) -> EnabledFeatures {
    let Some((spec, was)) = new.get("spec").zip(old.get("spec")) else { return features };
    let mut relaxed = features;
    let mut open = |feature: Feature, used: &dyn Fn() -> bool| {
        if !features.has(feature) && used() {
            relaxed = relaxed.with(feature);
        }
    };
    open(Feature::SELinuxMount, &|| was.at(&["securityContext", "seLinuxChangePolicy"]).is_some());
    open(Feature::PodLifecycleSleepActionAllowZero, &|| containers(was).any(sleeps_no_time));
    open(Feature::RelaxedDNSSearchValidation, &|| has_relaxed_search(was));
    open(Feature::RelaxedEnvironmentVariableValidation, &|| keeps_relaxed_names(spec, was));
    // An invalid annotation that was accepted before stays accepted.
    if old.at(&["metadata", "annotations"]).is_some_and(pod_meta::has_bad_cost) {
        relaxed = relaxed.without(Feature::PodDeletionCost);
    }
    relaxed
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    CONTAINER_LISTS.iter().filter_map(|list| spec.get(list)).flat_map(|list| list.items())
}

fn sleeps_no_time(container: &Value) -> bool {
    ["preStop", "postStart"].iter().any(|hook| {
        let sleep = container.at(&["lifecycle", hook, "sleep"]);
        sleep.is_some_and(|sleep| sleep.get("seconds").and_then(Value::as_int).unwrap_or_default() == 0)
    })
}

fn has_relaxed_search(spec: &Value) -> bool {
    let searches = spec.at(&["dnsConfig", "searches"]).map(Value::items).unwrap_or_default();
    searches.iter().filter_map(Value::as_str).any(|search| search == "." || search.contains('_'))
}

/// Whether the old spec had a name that only the relaxed rules allow.
fn keeps_relaxed_names(spec: &Value, was: &Value) -> bool {
    let known: BTreeSet<&str> = variables(was).collect();
    variables(spec).any(|name| known.contains(name) && env::is_relaxed_name(name))
}

fn variables(spec: &Value) -> impl Iterator<Item = &str> {
    containers(spec).flat_map(|container| {
        let of = |list: &str, field: &'static str| {
            let items = container.get(list).map(Value::items).unwrap_or_default();
            items.iter().map(move |item| item.str(field))
        };
        of("env", "name").chain(of("envFrom", "prefix"))
    })
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn what_was_said_before_may_be_said_again() {
        let strict = EnabledFeatures::NONE.with(Feature::PodDeletionCost);
        for (feature, body) in [
            (Feature::SELinuxMount, r#"{"spec":{"securityContext":{"seLinuxChangePolicy":"Recursive"}}}"#),
            (
                Feature::PodLifecycleSleepActionAllowZero,
                r#"{"spec":{"containers":[{"lifecycle":{"preStop":{"sleep":{"seconds":0}}}}]}}"#,
            ),
            (Feature::RelaxedDNSSearchValidation, r#"{"spec":{"dnsConfig":{"searches":["a","b_c"]}}}"#),
            (
                Feature::RelaxedEnvironmentVariableValidation,
                r#"{"spec":{"initContainers":[{"env":[{"name":"A"},{"name":"1 b"}]}]}}"#,
            ),
        ] {
            let used = object(body);
            assert!(relaxed(strict, &used, &used).has(feature), "{feature:?}");
            assert!(!relaxed(strict, &used, &object(r#"{"spec":{}}"#)).has(feature), "{feature:?}");
        }
        let costly = object(
            r#"{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"x"}},"spec":{}}"#,
        );
        assert!(!relaxed(strict, &costly, &costly).has(Feature::PodDeletionCost));
        assert!(relaxed(strict, &costly, &object(r#"{"spec":{}}"#)).has(Feature::PodDeletionCost));
    }
}
