//! Properties that hold for the rules of every kind.

use std::collections::BTreeSet;

use pilothouse_apimachinery::schema::{GroupVersionKind, TypeId, arbitrary, decode, default, encode};
use pilothouse_apimachinery::testing::REGISTRY;
use pilothouse_apimachinery::value::Value;
use proptest::prelude::*;

use super::rules;
use super::table::TABLE;
use super::testing::context;

/// All versions of the kinds that have rules.
fn kinds() -> Vec<(GroupVersionKind, TypeId)> {
    let has_rules = |kind: &GroupVersionKind| {
        TABLE.iter().any(|(group, name, _)| *group == kind.group && *name == kind.kind)
    };
    let mut kinds: Vec<_> = REGISTRY.kinds().filter(|(kind, _)| has_rules(kind)).collect();
    kinds.sort();
    kinds
}

/// The paths of empty objects.
fn empty_objects(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) if fields.is_empty() => vec![String::new()],
        Value::Object(fields) => {
            let prefixed = |(name, value): (&String, &Value)| -> Vec<String> {
                empty_objects(value).into_iter().map(|rest| format!(".{name}{rest}")).collect()
            };
            fields.iter().flat_map(prefixed).collect()
        }
        Value::Array(items) => {
            let prefixed = |(index, value): (usize, &Value)| -> Vec<String> {
                empty_objects(value).into_iter().map(|rest| format!("[{index}]{rest}")).collect()
            };
            items.iter().enumerate().flat_map(prefixed).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn empty_collections_are_kept_until_the_object_is_stored() {
    let table = [
        (
            "autoscaling",
            "v2",
            "HorizontalPodAutoscaler",
            r#"{"spec":{"behavior":{"scaleUp":{"policies":[]}}}}"#,
        ),
        ("", "v1", "Secret", r#"{"data":{}}"#),
        ("", "v1", "Pod", r#"{"spec":{"overhead":{}}}"#),
        ("", "v1", "PersistentVolume", r#"{"spec":{"capacity":{}}}"#),
        ("networking.k8s.io", "v1", "ServiceCIDR", r#"{"spec":{"cidrs":[]}}"#),
        ("storage.k8s.io", "v1", "StorageClass", r#"{"parameters":{}}"#),
        ("networking.k8s.io", "v1", "NetworkPolicy", r#"{"spec":{"ingress":[{"from":[]}]}}"#),
        ("networking.k8s.io", "v1", "NetworkPolicy", r#"{"spec":{"podSelector":{"matchExpressions":[]}}}"#),
        (
            "networking.k8s.io",
            "v1",
            "NetworkPolicy",
            r#"{"spec":{"egress":[{"to":[{"podSelector":{"matchLabels":{}}}]}]}}"#,
        ),
    ];
    for (group, version, kind, body) in table {
        let ty = REGISTRY.kind(group, version, kind).unwrap();
        let decoded = decode::decode(&REGISTRY, ty, body.as_bytes()).unwrap().value;
        assert_eq!(decoded, pilothouse_apimachinery::testing::object(body), "{kind}");
        let stored = encode::encode(&REGISTRY, ty, &decoded);
        let reread = decode::decode(&REGISTRY, ty, &stored).unwrap().value;
        assert_ne!(reread, decoded, "{kind}");
        assert_eq!(encode::encode(&REGISTRY, ty, &reread), stored, "{kind}");
    }
}

/// Defaults that both a function of the kind and the schema table set, because the function depends on them.
const DEFAULTED_TWICE: [(&str, &str); 9] = [
    ("DaemonSet", "spec.updateStrategy.type"),
    ("Deployment", "spec.strategy.type"),
    ("ResourceClaim", "spec.devices.requests.exactly.allocationMode"),
    ("ResourceClaim", "spec.devices.requests.firstAvailable.allocationMode"),
    ("ResourceClaimTemplate", "spec.spec.devices.requests.exactly.allocationMode"),
    ("ResourceClaimTemplate", "spec.spec.devices.requests.firstAvailable.allocationMode"),
    ("Service", "spec.sessionAffinity"),
    ("Service", "spec.type"),
    ("StatefulSet", "spec.updateStrategy.type"),
];

/// Calls `visit` for each scalar with its path.
fn leaves(value: &Value, path: &str, visit: &mut impl FnMut(String, &Value)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(value, &format!("{path}.{name}"), visit);
            }
        }
        Value::Array(items) => items.iter().enumerate().for_each(|(index, item)| {
            leaves(item, &format!("{path}.{index}"), visit);
        }),
        leaf => visit(path.to_owned(), leaf),
    }
}

/// The value at a path of [`leaves`].
fn value_at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').skip(1).try_fold(value, |value, element| match value {
        Value::Array(items) => items.get(element.parse::<usize>().ok()?),
        _ => value.get(element),
    })
}

#[test]
fn functions_do_not_repeat_defaults_of_the_table() {
    const SEEDS: u64 = 60;
    let mut repeated = BTreeSet::new();
    for (kind, ty) in kinds() {
        for seed in 0..SEEDS {
            let original = arbitrary::of_kind(&REGISTRY, &kind, ty, seed);
            let (mut by_function, mut by_table) = (original.clone(), original.clone());
            (rules(&kind.group, &kind.kind).defaulting.default)(&mut by_function);
            default::apply(&REGISTRY, ty, &mut by_table);
            leaves(&by_function, "", &mut |path, value| {
                if value_at(&original, &path).is_none() && value_at(&by_table, &path) == Some(value) {
                    let names = path.split('.').skip(1).filter(|element| element.parse::<usize>().is_err());
                    repeated.insert((kind.kind.clone(), names.collect::<Vec<_>>().join(".")));
                }
            });
        }
    }
    let repeated: Vec<(&str, &str)> =
        repeated.iter().map(|(kind, path)| (kind.as_str(), path.as_str())).collect();
    assert_eq!(repeated, DEFAULTED_TWICE);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Defaulting and preparation leave empty objects only where Go has a pointer. Otherwise an object would differ from its
    /// stored form, and each update would count as a change.
    #[test]
    fn defaulting_leaves_no_empty_objects(
        (kind, ty) in proptest::sample::select(kinds()),
        seed in any::<u64>(),
    ) {
        let rules = rules(&kind.group, &kind.kind);
        let mut value = arbitrary::of_kind(&REGISTRY, &kind, ty, seed);
        value.entry("metadata").set("name", "a");
        value.entry("metadata").set("uid", "u");
        crate::apply_defaults(rules, &mut value, pilothouse_apimachinery::features::EnabledFeatures::RELEASE);
        default::apply(&REGISTRY, ty, &mut value);
        (rules.preparation.prepare_create)(&mut value, &context("2024-01-01T00:00:00Z"));
        let stored = encode::encode(&REGISTRY, ty, &value);
        let reread = decode::decode(&REGISTRY, ty, &stored).unwrap().value;
        // The reference cannot tell an empty spec or status from an absent one, so functions may leave them empty.
        for field in ["spec", "status"] {
            if value.get(field).and_then(Value::fields).is_some_and(|fields| fields.is_empty()) {
                value.remove(field);
            }
        }
        prop_assert_eq!(empty_objects(&reread), empty_objects(&value), "{}", kind);
    }
}
