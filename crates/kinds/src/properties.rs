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

/// Where there are objects without fields.
fn empty_objects(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) if fields.is_empty() => vec![String::new()],
        Value::Object(fields) => {
            let below = |(name, value): (&String, &Value)| -> Vec<String> {
                empty_objects(value).into_iter().map(|rest| format!(".{name}{rest}")).collect()
            };
            fields.iter().flat_map(below).collect()
        }
        Value::Array(items) => {
            let below = |(at, value): (usize, &Value)| -> Vec<String> {
                empty_objects(value).into_iter().map(|rest| format!("[{at}]{rest}")).collect()
            };
            items.iter().enumerate().flat_map(below).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn what_was_given_empty_is_told_from_none_until_it_is_stored() {
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
        let given = decode::decode(&REGISTRY, ty, body.as_bytes()).unwrap().value;
        assert_eq!(given, pilothouse_apimachinery::testing::object(body), "{kind}");
        let stored = encode::encode(&REGISTRY, ty, &given);
        let read = decode::decode(&REGISTRY, ty, &stored).unwrap().value;
        assert_ne!(read, given, "{kind}");
        assert_eq!(encode::encode(&REGISTRY, ty, &read), stored, "{kind}");
    }
}

/// What a function of a kind fills in though the table would too: the function itself goes by it.
const FILLED_TWICE: [(&str, &str); 9] = [
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

/// Where the first value has texts, numbers or truths, and which. Items of a list are all the same place.
fn leaves(value: &Value, at: &str, see: &mut impl FnMut(String, &Value)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(value, &format!("{at}.{name}"), see);
            }
        }
        Value::Array(items) => items.iter().enumerate().for_each(|(index, item)| {
            leaves(item, &format!("{at}.{index}"), see);
        }),
        leaf => see(at.to_owned(), leaf),
    }
}

/// The value at a place that [`leaves`] named.
fn leaf<'a>(value: &'a Value, place: &str) -> Option<&'a Value> {
    place.split('.').skip(1).try_fold(value, |value, step| match value {
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        _ => value.get(step),
    })
}

#[test]
fn no_function_fills_in_what_the_table_does() {
    const SEEDS: u64 = 60;
    let mut twice = BTreeSet::new();
    for (kind, ty) in kinds() {
        for seed in 0..SEEDS {
            let given = arbitrary::of_kind(&REGISTRY, &kind, ty, seed);
            let (mut by_function, mut by_table) = (given.clone(), given.clone());
            (rules(&kind.group, &kind.kind).default)(&mut by_function);
            default::apply(&REGISTRY, ty, &mut by_table);
            leaves(&by_function, "", &mut |place, value| {
                if leaf(&given, &place).is_none() && leaf(&by_table, &place) == Some(value) {
                    let steps = place.split('.').skip(1).filter(|step| step.parse::<usize>().is_err());
                    twice.insert((kind.kind.clone(), steps.collect::<Vec<_>>().join(".")));
                }
            });
        }
    }
    let twice: Vec<(&str, &str)> =
        twice.iter().map(|(kind, place)| (kind.as_str(), place.as_str())).collect();
    assert_eq!(twice, FILLED_TWICE);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// What rules compare has an object without fields only where there is a pointer: else an object would differ from itself after
    /// it was stored, and each update of it would count as a change.
    #[test]
    fn what_fills_objects_in_leaves_no_empty_ones_behind(
        (kind, ty) in proptest::sample::select(kinds()),
        seed in any::<u64>(),
    ) {
        let rules = rules(&kind.group, &kind.kind);
        let mut value = arbitrary::of_kind(&REGISTRY, &kind, ty, seed);
        value.entry("metadata").set("name", "a");
        value.entry("metadata").set("uid", "u");
        crate::apply_defaults(rules, &mut value, pilothouse_apimachinery::features::EnabledFeatures::RELEASE);
        default::apply(&REGISTRY, ty, &mut value);
        (rules.prepare_create)(&mut value, &context("2024-01-01T00:00:00Z"));
        let stored = encode::encode(&REGISTRY, ty, &value);
        let again = decode::decode(&REGISTRY, ty, &stored).unwrap().value;
        // These are no pointers, and whoever looks for something in them may leave them empty.
        for part in ["spec", "status"] {
            if value.get(part).and_then(Value::fields).is_some_and(|fields| fields.is_empty()) {
                value.remove(part);
            }
        }
        prop_assert_eq!(empty_objects(&again), empty_objects(&value), "{}", kind);
    }
}
