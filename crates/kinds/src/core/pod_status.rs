//! Preparation and validation of the status of pods.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::{FieldValue, fill, items_mut, present_mut};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::pod_change::validate_annotations;
use super::pod_resources;
use crate::WriteContext;
use crate::address;

const STATUSES: [&str; 3] = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
const MAX_ID: i64 = i32::MAX as i64;

/// A status update keeps the QoS class and the observed generations.
pub fn prepare(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    // A status update does not change the deletion fields.
    if let Some(metadata) = present_mut(new, "metadata") {
        metadata.remove("deletionTimestamp");
    }
    if let Some(class) = old.get_path(&["status", "qosClass"]) {
        fill(new.entry("status"), "qosClass", class.clone());
    }
    if let Some((status, old_status)) = present_mut(new, "status").zip(old.get("status")) {
        keep_generations(status, old_status);
    }
}

/// Keeps observedGeneration of the status and its conditions where the update lacks it. With several conditions of one type,
/// the first is used.
fn keep_generations(status: &mut Value, old_status: &Value) {
    const FIELD: &str = "observedGeneration";
    let mut old_generations: BTreeMap<&str, VecDeque<Option<&Value>>> = BTreeMap::new();
    for condition in old_status.get("conditions").map(Value::items).unwrap_or_default() {
        old_generations.entry(condition.str("type")).or_default().push_back(condition.get(FIELD));
    }
    if let Some(generation) = old_status.get(FIELD) {
        fill(status, FIELD, generation.clone());
    }
    if !old_generations.values().flatten().any(Option::is_some) {
        return;
    }
    for condition in items_mut(status, "conditions") {
        let generation = old_generations.get_mut(condition.str("type")).and_then(VecDeque::pop_front);
        if let Some(generation) = generation.flatten() {
            fill(condition, FIELD, generation.clone());
        }
    }
}

/// Validates a status update.
pub fn validate(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_annotations(new, old, errors);
    let (status, old_status) = (FieldValue::top_level(new, "status"), FieldValue::top_level(old, "status"));
    for condition in status.child("conditions").items() {
        validate_observed_generation(&condition, errors);
        let kind = condition.child("type");
        if !matches!(kind.text(), "PodScheduled" | "Ready" | "Initialized") {
            kind.named(condition.path.child("Type")).syntax(errors, names::qualified_name);
        }
    }
    let nominated = status.child("nominatedNodeName");
    if nominated.text() != old_status.str("nominatedNodeName") {
        nominated.syntax_if_set(errors, names::dns_subdomain);
    }
    validate_observed_generation(&status, errors);
    status.child("qosClass").unchanged(&old_status.child("qosClass"), errors);
    let spec = FieldValue::top_level(old, "spec");
    let policy = spec.str("restartPolicy");
    for (list, policy) in STATUSES.iter().zip([policy, policy, "Never"]) {
        validate_terminated_stay(&status.child(list), old_status.read(list), policy, &spec, errors);
    }
    let claims = status.child("resourceClaimStatuses");
    pod_resources::validate_claim_statuses(&claims, &FieldValue::top_level(new, "spec"), errors);
    validate_addresses(&status, &old_status, "podIPs", errors);
    if let Some(first) = status.child("hostIPs").items().next()
        && first.str("ip") != status.str("hostIP")
    {
        first.child("ip").invalid_text(errors, "must be equal to `hostIP`");
    }
    validate_addresses(&status, &old_status, "hostIPs", errors);
    for list in STATUSES {
        validate_users(
            &status.child(list),
            FieldValue::top_level(new, "spec").child("os").str("name"),
            errors,
        );
    }
}

/// Checks observedGeneration.
fn validate_observed_generation(node: &FieldValue<'_>, errors: &mut ErrorList) {
    let generation = node.child("observedGeneration");
    if generation.number() < 0 {
        generation.invalid(errors, "must be a non-negative integer");
    }
}

fn validate_terminated_stay(
    list: &FieldValue<'_>,
    old_list: &Value,
    policy: &str,
    spec: &FieldValue<'_>,
    errors: &mut ErrorList,
) {
    if policy == "Always" {
        return;
    }
    let mut restartable = BTreeSet::new();
    let mut init_names = BTreeSet::new();
    for container in spec.read("initContainers").items() {
        // Only the first of each name counts.
        if init_names.insert(container.str("name")) && container.str("restartPolicy") == "Always" {
            restartable.insert(container.str("name"));
        }
    }
    let mut running: BTreeMap<&str, usize> = BTreeMap::new();
    for new in list.value.items().iter().filter(|new| new.get_path(&["state", "terminated"]).is_none()) {
        *running.entry(new.str("name")).or_default() += 1;
    }
    for (index, old) in old_list.items().iter().enumerate() {
        let Some(end) = old.get_path(&["state", "terminated"]) else { continue };
        let failed = end.get("exitCode").and_then(Value::as_int).unwrap_or_default() != 0;
        let name = old.str("name");
        if (failed && policy == "OnFailure") || restartable.contains(name) {
            continue;
        }
        for _ in 0..running.get(name).copied().unwrap_or_default() {
            if errors.is_full() {
                return;
            }
            let path = list.path.index(index).child("state");
            errors.push(FieldError::forbidden(&path, "may not be transitioned to non-terminated state"));
        }
    }
}

/// Checks that addresses are valid, and at most one of each IP family.
fn validate_addresses(
    status: &FieldValue<'_>,
    old_status: &FieldValue<'_>,
    field: &str,
    errors: &mut ErrorList,
) {
    let list = status.child(field);
    let old_addresses = address::collect_strings(old_status.read(field), "ip");
    for address in list.items() {
        address::validate_ip(&address.path, address.str("ip"), &old_addresses, errors);
    }
    if list.len() > 1 {
        let texts = || list.value.items().iter().map(|entry| entry.str("ip"));
        let invalid = texts().enumerate().find(|(_, text)| names::parse_ip(text).is_none());
        if let Some((index, text)) = invalid {
            let detail = format!("failed to check for dual stack with error:invalid IP[{index}]: {text}");
            errors.push(FieldError::internal(&list.path, &detail));
        }
        if invalid.is_some() || !address::is_dual_stack(texts()) || list.len() > 2 {
            list.invalid(errors, "may specify no more than one IP for each IP family");
        }
    }
}

fn validate_users(list: &FieldValue<'_>, os: &str, errors: &mut ErrorList) {
    for linux in list.items().filter_map(|status| status.opt("user").and_then(|user| user.opt("linux"))) {
        if os == "windows" {
            linux.forbidden(errors, "cannot be set for a windows pod");
            continue;
        }
        for id in ["uid", "gid"] {
            linux.child(id).in_range(errors, 0, MAX_ID);
        }
        for group in linux.child("supplementalGroups").items() {
            group.in_range(errors, 0, MAX_ID);
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, object};

    use super::super::super::testing::context;
    use super::*;

    #[test]
    fn status_update_keeps_observed_generations() {
        let old = object(
            r#"{"status":{"observedGeneration":3,"conditions":[{"type":"A","observedGeneration":1},{"type":"A"},
                {"type":"B","observedGeneration":2}]}}"#,
        );
        let mut new = object(
            r#"{"status":{"conditions":[{"type":"B"},{"type":"A","observedGeneration":9},{"type":"A"}]}}"#,
        );
        prepare(&mut new, &old, &context(""));
        let expected = object(
            r#"{"status":{"observedGeneration":3,"conditions":[{"type":"B","observedGeneration":2},
                {"type":"A","observedGeneration":9},{"type":"A"}]}}"#,
        );
        assert_eq!(new, expected);
    }

    #[test]
    fn pod_status_validation_refuses_each_violation() {
        let base = object(
            r#"{"spec":{"restartPolicy":"OnFailure","initContainers":[{"name":"s","restartPolicy":"Always"}]},
                "status":{"qosClass":"BestEffort","hostIP":"10.0.0.9","hostIPs":[{"ip":"10.0.0.9"}],"podIPs":[{"ip":"10.0.0.1"}],
                "conditions":[{"type":"Ready"}],
                "containerStatuses":[{"name":"c","state":{"terminated":{}},"user":{"linux":{"uid":1,"gid":1}}}],
                "initContainerStatuses":[{"name":"s","state":{"terminated":{}}}]}}"#,
        );
        each_change_refused(
            &base,
            validate,
            &[
                ("status.conditions.0.type", r#""-""#, "status.conditions[0].Type: Invalid value: \"-\""),
                ("status.nominatedNodeName", r#""A""#, "status.nominatedNodeName: Invalid value: \"A\""),
                (
                    "status.qosClass",
                    r#""Burstable""#,
                    "status.qosClass: Invalid value: \"Burstable\": field is immutable",
                ),
                (
                    "status.containerStatuses.0.state",
                    r#"{"running":{}}"#,
                    "status.containerStatuses[0].state: Forbidden: may not be transitioned",
                ),
                (
                    "status.podIPs",
                    r#"[{"ip":"x"}]"#,
                    "status.podIPs[0]: Invalid value: \"x\": must be a valid IP address",
                ),
                (
                    "status.podIPs",
                    r#"[{"ip":"10.0.0.1"},{"ip":"10.0.0.2"}]"#,
                    "no more than one IP for each IP family",
                ),
                (
                    "status.hostIP",
                    r#""10.0.0.8""#,
                    "status.hostIPs[0].ip: Invalid value: \"10.0.0.9\": must be equal to `hostIP`",
                ),
                ("status.containerStatuses.0.user.linux.uid", "-1", "user.linux.uid: Invalid value: -1"),
            ],
        );
        let mut sidecar = base.clone();
        sidecar
            .entry("status")
            .set("initContainerStatuses", object(r#"[{"name":"s","state":{"running":{}}}]"#));
        let mut errors = ErrorList::new();
        validate(&sidecar, &base, &mut errors);
        assert_eq!(errors, []);
        let mut new = object(
            r#"{"metadata":{"name":"p","deletionTimestamp":"2024-01-01T00:00:00Z"},
                "status":{"conditions":[{"type":"Ready"}]}}"#,
        );
        prepare(&mut new, &base, &context(""));
        let expected =
            r#"{"metadata":{"name":"p"},"status":{"qosClass":"BestEffort","conditions":[{"type":"Ready"}]}}"#;
        assert_eq!(new, object(expected));
        new.entry("status").set("hostIPs", object(r#"[{"ip":"10.0.0.9"},{"ip":"x"}]"#));
        let mut errors = ErrorList::new();
        validate_addresses(
            &FieldValue::top_level(&new, "status"),
            &FieldValue::top_level(&base, "status"),
            "hostIPs",
            &mut errors,
        );
        let expected =
            "status.hostIPs: Internal error: failed to check for dual stack with error:invalid IP[1]: x";
        assert!(errors.iter().any(|error| error.to_string() == expected), "{errors:?}");
    }
}
