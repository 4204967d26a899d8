//! The features for validating an updated pod: those that the old pod used stay enabled.

use std::collections::BTreeSet;

use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::value::Value;

use super::{env, pod_meta};

const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The features for validating an updated pod or template: `new` and `old` have a spec and metadata.
pub fn with_used_features(features: EnabledFeatures, new: &Value, old: &Value) -> EnabledFeatures {
    let Some((spec, old_spec)) = new.get("spec").zip(old.get("spec")) else { return features };
    let mut with_used_features = features;
    let mut enable_if = |feature: Feature, is_used: &dyn Fn() -> bool| {
        if !features.has(feature) && is_used() {
            with_used_features = with_used_features.with(feature);
        }
    };
    enable_if(Feature::SELinuxMount, &|| {
        old_spec.get_path(&["securityContext", "seLinuxChangePolicy"]).is_some()
    });
    enable_if(Feature::PodLifecycleSleepActionAllowZero, &|| containers(old_spec).any(has_zero_sleep));
    enable_if(Feature::RelaxedDNSSearchValidation, &|| has_relaxed_search(old_spec));
    enable_if(Feature::RelaxedEnvironmentVariableValidation, &|| keeps_relaxed_names(spec, old_spec));
    // An invalid annotation that was accepted before stays accepted.
    if old.get_path(&["metadata", "annotations"]).is_some_and(pod_meta::has_bad_cost) {
        with_used_features = with_used_features.without(Feature::PodDeletionCost);
    }
    with_used_features
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    CONTAINER_LISTS.iter().filter_map(|list| spec.get(list)).flat_map(|list| list.items())
}

fn has_zero_sleep(container: &Value) -> bool {
    ["preStop", "postStart"].iter().any(|hook| {
        let sleep = container.get_path(&["lifecycle", hook, "sleep"]);
        sleep.is_some_and(|sleep| sleep.get("seconds").and_then(Value::as_int).unwrap_or_default() == 0)
    })
}

fn has_relaxed_search(spec: &Value) -> bool {
    let searches = spec.get_path(&["dnsConfig", "searches"]).map(Value::items).unwrap_or_default();
    searches.iter().filter_map(Value::as_str).any(|search| search == "." || search.contains('_'))
}

/// Whether the old spec had a name that only the relaxed rules allow.
fn keeps_relaxed_names(spec: &Value, old_spec: &Value) -> bool {
    let old_names: BTreeSet<&str> = variables(old_spec).collect();
    variables(spec).any(|name| old_names.contains(name) && env::is_relaxed_name(name))
}

fn variables(spec: &Value) -> impl Iterator<Item = &str> {
    containers(spec).flat_map(|container| {
        let strings = |list: &str, field: &'static str| {
            let items = container.get(list).map(Value::items).unwrap_or_default();
            items.iter().map(move |item| item.str(field))
        };
        strings("env", "name").chain(strings("envFrom", "prefix"))
    })
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn features_used_by_the_old_pod_stay_enabled() {
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
            let pod = object(body);
            assert!(with_used_features(strict, &pod, &pod).has(feature), "{feature:?}");
            assert!(!with_used_features(strict, &pod, &object(r#"{"spec":{}}"#)).has(feature), "{feature:?}");
        }
        let bad_cost = object(
            r#"{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"x"}},"spec":{}}"#,
        );
        assert!(!with_used_features(strict, &bad_cost, &bad_cost).has(Feature::PodDeletionCost));
        assert!(
            with_used_features(strict, &bad_cost, &object(r#"{"spec":{}}"#)).has(Feature::PodDeletionCost)
        );
    }
}
