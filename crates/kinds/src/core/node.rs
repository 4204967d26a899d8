//! Nodes.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, mirror_first, present_mut};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::resources;
use crate::address;
use crate::allowed::core_v1;
use crate::{
    DefaultingRules, KindRules, PreparationRules, Revalidation, StatusRules, ValidationRules, WarningRules,
    WriteContext,
};

/// The rules of a Node.
pub const RULES: KindRules = KindRules {
    defaulting: DefaultingRules { default, ..DefaultingRules::DEFAULT },
    preparation: PreparationRules { prepare_create, prepare_update },
    validation: ValidationRules {
        validate,
        revalidation: Revalidation::Once,
        validate_update: validate_change,
    },
    warnings: WarningRules { warn, ..WarningRules::DEFAULT },
    status: StatusRules {
        writable_on_create: true,
        prepare: prepare_status,
        validate: validate_change,
        ..StatusRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

/// allocatable defaults to capacity.
fn default(node: &mut Value) {
    if let Some(spec) = present_mut(node, "spec") {
        mirror_first(spec, "podCIDR", "podCIDRs", None);
    }
    let Some(status) = present_mut(node, "status") else { return };
    if let (None, Some(capacity)) = (status.get("allocatable"), status.get("capacity").cloned()) {
        status.set("allocatable", capacity);
    }
}

/// The removed dynamic kubelet configuration is dropped.
fn prepare_create(node: &mut Value, context: &WriteContext<'_>) {
    if let Some(spec) = present_mut(node, "spec") {
        spec.remove("configSource");
    }
    if let Some(status) = present_mut(node, "status") {
        status.remove("config");
        // Not by the table, because status updates may still set it.
        if !context.features.has(Feature::SupplementalGroupsPolicy) {
            status.remove("features");
        }
    }
}

/// The same in an update, unless the old node had it.
fn prepare_update(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    if old.get_path(&["spec", "configSource"]).is_none()
        && let Some(spec) = present_mut(new, "spec")
    {
        spec.remove("configSource");
    }
}

/// The same in a status update.
fn prepare_status(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    if old.get_path(&["status", "config"]).is_none()
        && let Some(status) = present_mut(new, "status")
    {
        status.remove("config");
    }
}

/// Checks a node.
fn validate(node: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(node, "spec");
    validate_taints(&spec, errors);
    validate_amounts(node, errors);
    if let Some(swap) = node.get_path(&["status", "nodeInfo", "swap", "capacity"]).and_then(Value::as_int)
        && swap <= 0
    {
        let path = FieldPath::new("metadata").child("nodeSwapStatus").child("capacity");
        errors.push(FieldError::invalid(&path, &swap.to_string(), "must be greater than zero"));
    }
    let Some(ranges) = spec.opt("podCIDRs") else { return };
    for range in ranges.items() {
        address::validate_cidr(&range.path, range.text(), address::NOTHING_KNOWN, errors);
    }
    if ranges.len() > 1 {
        let texts = || ranges.value.items().iter().filter_map(Value::as_str);
        let invalid = texts().enumerate().find(|(_, text)| names::parse_cidr(text).is_none());
        if let Some((index, text)) = invalid {
            let detail = format!(
                "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{index}]: <nil> \
                 (invalid CIDR address: {text})"
            );
            errors.push(FieldError::internal(&ranges.path, &detail));
        }
        if invalid.is_some() || !address::is_dual_stack(texts()) || ranges.len() > 2 {
            ranges.invalid(errors, "may specify no more than one CIDR for each IP family");
        }
    }
}

fn validate_taints(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(list) = spec.opt("taints") else { return };
    let mut seen = BTreeSet::new();
    for taint in list.named(FieldPath::new("metadata").child("taints")).items() {
        taint.child("key").syntax(errors, names::qualified_name);
        let details = names::label_value(taint.str("value"));
        if !details.is_empty() {
            taint.child("value").invalid_text(errors, &details.join(";"));
        }
        taint.child("effect").need_one_of(errors, core_v1::Taint::EFFECT);
        if !seen.insert((taint.str("effect"), taint.str("key"))) {
            let rendered = format!(
                "core.Taint{{Key:{}, Value:{}, Effect:{}, TimeAdded:<nil>}}",
                quoted(taint.str("key")),
                quoted(taint.str("value")),
                quoted(taint.str("effect"))
            );
            let duplicate = FieldError::duplicate(&taint.path, &rendered);
            errors.push(duplicate.because("taints must be unique by key and effect pair"));
        }
    }
}

/// Validates capacity and allocatable.
fn validate_amounts(node: &Value, errors: &mut ErrorList) {
    let status = FieldValue::top_level(node, "status");
    for part in ["capacity", "allocatable"] {
        for (name, value) in status.read(part).fields().into_iter().flatten() {
            let entry = FieldValue { value, path: status.path.child(part).child(name) };
            resources::validate_amount(name, &entry, errors);
        }
    }
}

/// Checks an updated node, also its status: podCIDRs and providerID are immutable once set.
pub fn validate_change(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_amounts(new, errors);
    let (spec, old_spec, status) = (
        FieldValue::top_level(new, "spec"),
        FieldValue::top_level(old, "spec"),
        FieldValue::top_level(new, "status"),
    );
    let mut seen = BTreeSet::new();
    for entry in status.child("addresses").items() {
        let (kind, address) = (entry.str("type"), entry.str("address"));
        if !seen.insert((kind, address)) {
            let rendered = format!("core.NodeAddress{{Type:{}, Address:{}}}", quoted(kind), quoted(address));
            errors.push(FieldError::duplicate(&entry.path, &rendered));
        }
    }
    let (ranges, old_ranges) = (spec.child("podCIDRs"), old_spec.read("podCIDRs").items());
    let detail = "node updates may not change podCIDR except from \"\" to valid";
    if !old_ranges.is_empty() && ranges.len() != old_ranges.len() {
        ranges.forbidden(errors, detail);
    } else {
        for _ in ranges.value.items().iter().zip(old_ranges).filter(|(new, old)| new != old) {
            ranges.forbidden(errors, detail);
        }
    }
    let provider = spec.child("providerID");
    if !old_spec.str("providerID").is_empty() && provider.text() != old_spec.str("providerID") {
        provider.forbidden(errors, "node updates may not change providerID except from \"\" to valid");
    }
    if let Some(source) = spec.opt("configSource") {
        validate_config_source(&source, false, errors);
    }
    if let Some(config) = status.opt("config") {
        for source in ["assigned", "active", "lastKnownGood"].iter().filter_map(|field| config.opt(field)) {
            validate_config_source(&source, true, errors);
        }
    }
    validate_taints(&spec, errors);
    if spec.str("externalID") != old_spec.str("externalID") {
        spec.child("externalID").forbidden(errors, "may not be updated");
    }
}

/// Checks a config source of the spec or the status.
fn validate_config_source(source: &FieldValue<'_>, in_status: bool, errors: &mut ErrorList) {
    let Some(map) = source.opt("configMap") else {
        source.invalid(errors, "exactly one reference subfield must be non-nil");
        return;
    };
    for field in ["uid", "resourceVersion"] {
        let node = map.child(field);
        if in_status && node.is_empty() {
            node.required(errors, &format!("{field} must be set in status"));
        } else if !in_status && !node.is_empty() {
            node.forbidden(errors, &format!("{field} must not be set in spec"));
        }
    }
    let fields: [(&str, names::Check); 3] = [
        ("namespace", names::dns_label),
        ("name", names::dns_subdomain),
        ("kubeletConfigKey", names::config_key),
    ];
    for (field, check) in fields {
        let node = map.child(field);
        if node.is_empty() {
            node.required(errors, &format!("{field} must be set"));
        } else {
            node.syntax(errors, check);
        }
    }
}

/// Warns about a node.
fn warn(node: &Value, _old: Option<&Value>, warnings: &mut WarningList) {
    let Some(spec) = node.get("spec") else { return };
    if spec.get("configSource").is_some() {
        warnings.push("spec.configSource: the feature is removed".to_owned());
    }
    if !spec.str("externalID").is_empty() {
        warnings.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
    }
    for (index, range) in spec.get("podCIDRs").map(Value::items).unwrap_or_default().iter().enumerate() {
        let path = FieldPath::new("spec").child("podCIDRs").index(index);
        address::warn_cidr(&path, range.as_str().unwrap_or_default(), warnings);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::*;

    #[test]
    fn node_validation_refuses_each_violation() {
        let base = object(
            r#"{"spec":{"taints":[{"key":"k","value":"v","effect":"NoSchedule"}],"podCIDRs":["10.0.0.0/24"],
                "providerID":"p"}}"#,
        );
        each_refused(
            &base,
            validate,
            &[
                ("spec.taints.0.key", r#""-""#, "metadata.taints[0].key: Invalid value"),
                ("spec.taints.0.value", r#""-""#, "metadata.taints[0].value: Invalid value"),
                ("spec.taints.0.effect", r#""X""#, "metadata.taints[0].effect: Unsupported value: \"X\""),
                (
                    "spec.taints",
                    r#"[{"key":"k","effect":"NoSchedule"},{"key":"k","effect":"NoSchedule"}]"#,
                    "taints must be unique by key and effect pair",
                ),
                (
                    "spec.podCIDRs",
                    r#"["x"]"#,
                    "spec.podCIDRs[0]: Invalid value: \"x\": must be a valid CIDR value",
                ),
                (
                    "spec.podCIDRs",
                    r#"["10.0.0.0/24","10.0.1.0/24"]"#,
                    "no more than one CIDR for each IP family",
                ),
                (
                    "status.capacity",
                    r#"{"pods":"-1"}"#,
                    "status.capacity.pods: Invalid value: \"-1\": must be greater",
                ),
                (
                    "status.nodeInfo",
                    r#"{"swap":{"capacity":0}}"#,
                    "metadata.nodeSwapStatus.capacity: Invalid value: 0: must be greater than zero",
                ),
            ],
        );
        each_change_refused(
            &base,
            validate_change,
            &[
                (
                    "spec.providerID",
                    r#""q""#,
                    "spec.providerID: Forbidden: node updates may not change providerID",
                ),
                ("spec.podCIDRs", r#"["10.0.1.0/24"]"#, "spec.podCIDRs: Forbidden"),
                ("spec.externalID", r#""x""#, "spec.externalID: Forbidden: may not be updated"),
                (
                    "status.addresses",
                    r#"[{"type":"a","address":"b"},{"type":"a","address":"b"}]"#,
                    "status.addresses[1]: Duplicate value: core.NodeAddress{Type:\"a\", Address:\"b\"}",
                ),
                (
                    "spec.configSource",
                    r#"{"x":1}"#,
                    "spec.configSource: Invalid value: {x:1}: exactly one reference subfield must be non-nil",
                ),
                (
                    "spec.configSource",
                    r#"{"configMap":{"namespace":"n","name":"m","kubeletConfigKey":"k","uid":"u"}}"#,
                    "spec.configSource.configMap.uid: Forbidden: uid must not be set in spec",
                ),
                (
                    "status.config",
                    r#"{"active":{"configMap":{"namespace":"n","name":"m","kubeletConfigKey":"k","uid":"u"}}}"#,
                    "status.config.active.configMap.resourceVersion: Required value: resourceVersion must be set in status",
                ),
            ],
        );
    }

    #[test]
    fn allocatable_defaults_to_capacity() {
        let mut node = object(r#"{"status":{"capacity":{"cpu":"1"}}}"#);
        default(&mut node);
        assert_eq!(node.get_path(&["status", "allocatable", "cpu"]), Some(&Value::from("1")));
    }

    #[test]
    fn node_warnings_name_deprecated_fields() {
        let mut warnings = WarningList::new();
        let node = object(r#"{"spec":{"externalID":"x","configSource":{},"podCIDRs":["10.0.0.1/24"]}}"#);
        warn(&node, None, &mut warnings);
        assert_eq!(warnings[0], "spec.configSource: the feature is removed");
        assert_eq!(warnings[1], "spec.externalID: this field is deprecated, and is unused by Kubernetes");
        assert!(warnings[2].starts_with("spec.podCIDRs[0]: CIDR value \"10.0.0.1/24\" is ambiguous"));
        let mut created = node;
        prepare_create(&mut created, &crate::testing::context(""));
        assert_eq!(created.get_path(&["spec", "configSource"]), None);
    }
}
