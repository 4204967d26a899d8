//! ResourceSlices: the available devices.

use super::super::core::affinity;
use super::super::{DeletionRules, Generation, KindRules, MetadataRules, ValidationRules, gated, messages};
use super::common::{
    limit_items, validate_driver_name, validate_pool_name, validate_qualified_name, validate_taint,
    validate_unique,
};
use std::collections::BTreeMap;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::semver::Semver;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

/// The rules of a ResourceSlice.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules {
        generation: Generation { counts_dropped_fields: true, ..Generation::SPEC },
        ..MetadataRules::DEFAULT
    },
    gated: gated::rows::DEVICES,
    validation: ValidationRules {
        validate: validate_slice,
        validate_update: validate_slice_update,
        ..ValidationRules::DEFAULT
    },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

/// Validates a ResourceSlice.
pub(super) fn validate_slice(slice: &Value, errors: &mut ErrorList) {
    validate_pool(slice, errors);
    validate_devices(slice, errors);
}

/// Validates an update: node, pool and driver are immutable.
pub(super) fn validate_slice_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_pool(new, errors);
    let (spec, old_spec) = (FieldValue::top_level(new, "spec"), FieldValue::top_level(old, "spec"));
    let table = [
        (spec.child("pool").child("name"), old_spec.child("pool").child("name")),
        (spec.child("driver"), old_spec.child("driver")),
        (spec.child("nodeName"), old_spec.child("nodeName")),
    ];
    for (new_field, old_field) in table {
        if same(Some(new_field.value), Some(old_field.value)) {
            continue;
        }
        // The other two are required.
        if new_field.path.to_string().ends_with("nodeName") {
            new_field.invalid(errors, meta::IMMUTABLE);
        } else {
            new_field.invalid_text(errors, meta::IMMUTABLE);
        }
    }
    validate_devices(new, errors);
}

fn validate_pool(slice: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(slice, "spec");
    let pool = spec.child("pool");
    validate_driver_name(&spec.child("driver"), errors);
    validate_pool_name(&pool.child("name"), errors);
    let count = pool.child("resourceSliceCount");
    if count.number() <= 0 {
        let rendered = count.number().to_string();
        errors.push(FieldError::invalid(&count.path, &rendered, "must be greater than zero"));
    }
    if pool.child("generation").number() < 0 {
        pool.child("generation").invalid(errors, "must be greater than or equal to zero");
    }
}

/// Validates the node of a slice or device, which is given in one of several fields. Returns the fields that are set.
fn validate_node_fields(object: &FieldValue<'_>, empty: &str, errors: &mut ErrorList) -> Vec<&'static str> {
    let mut set_fields = Vec::new();
    let (node, selector) = (object.child("nodeName"), object.child("nodeSelector"));
    if node.is_set() && node.is_empty() {
        node.invalid_text(errors, empty);
    } else if node.is_set() {
        set_fields.push("`nodeName`");
        node.syntax(errors, names::dns_subdomain);
    }
    if selector.is_set() {
        set_fields.push("`nodeSelector`");
        affinity::validate_node_selector(&selector, errors);
    }
    for (field, rendered) in
        [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")]
    {
        match object.child(field).value.as_bool() {
            Some(true) => set_fields.push(rendered),
            Some(false) => object.child(field).invalid(errors, "must be either unset or set to true"),
            None => {}
        }
    }
    set_fields
}

fn validate_devices(slice: &Value, errors: &mut ErrorList) {
    const MAX_DEVICES: usize = 128;
    const MAX_SHARED: usize = 32;
    const MAX_DEVICE_COUNTERS: usize = 1_024;
    const EXACTLY_ONE: &str =
        "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let spec = FieldValue::top_level(slice, "spec");
    let set_fields = validate_node_fields(&spec, "must be either unset or set to a non-empty string", errors);
    let terms = spec.child("nodeSelector").child("nodeSelectorTerms");
    if spec.child("nodeSelector").is_set() && terms.len() != 1 {
        let detail = "must have exactly one node selector term";
        messages::invalid_struct(&terms.path, "[]core.NodeSelectorTerm", errors, detail);
    }
    match set_fields.len() {
        0 => spec.required(errors, EXACTLY_ONE),
        1 => {}
        _ => {
            let rendered = quoted(&format!("{{{}}}", set_fields.join(", ")));
            let detail = format!("{EXACTLY_ONE}, but multiple fields are set");
            errors.push(FieldError::invalid(&spec.path, &rendered, &detail));
        }
    }
    let (devices, shared) = (spec.child("devices"), spec.child("sharedCounters"));
    let mut sets = BTreeMap::new();
    for set in shared.value.items() {
        // The first of equal names counts.
        sets.entry(set.str("name")).or_insert(set);
    }
    for device in devices.items() {
        validate_device(&device, &spec, &sets, errors);
    }
    limit_items(&devices, MAX_DEVICES, errors);
    validate_unique(&devices, "name", errors);
    let count = |list: &FieldValue<'_>| list.items().map(|set| set.child("counters").len()).sum::<usize>();
    let device_counters: usize =
        devices.items().map(|device| count(&device_fields(&device).child("consumesCounters"))).sum();
    if device_counters > MAX_DEVICE_COUNTERS {
        let detail = format!("the total number of counters in devices must not exceed {MAX_DEVICE_COUNTERS}");
        errors.push(FieldError::invalid(&devices.path, &device_counters.to_string(), &detail));
    }
    if count(&shared) > MAX_SHARED {
        let detail = format!("the total number of shared counters must not exceed {MAX_SHARED}");
        errors.push(FieldError::invalid(&shared.path, &count(&shared).to_string(), &detail));
    }
    for set in shared.items() {
        set.child("name").need_syntax(errors, names::dns_label);
        validate_counters(&set.child("counters"), errors);
    }
    validate_unique(&shared, "name", errors);
}

pub(super) fn validate_counters(map: &FieldValue<'_>, errors: &mut ErrorList) {
    map.need(errors);
    for (name, entry) in map.entries() {
        meta::add_invalid(errors, &entry.path, name, names::dns_label(name));
    }
}

/// The fields of a device, which are one level deeper in an older version.
fn device_fields<'a>(device: &FieldValue<'a>) -> FieldValue<'a> {
    match device.child("basic").value {
        Value::Null => device.clone(),
        value => FieldValue { value, path: device.path.clone() },
    }
}

fn validate_device(
    device: &FieldValue<'_>,
    spec: &FieldValue<'_>,
    shared: &BTreeMap<&str, &Value>,
    errors: &mut ErrorList,
) {
    const MAX_ATTRIBUTES: usize = 32;
    const MAX_TAINTS: usize = 4;
    const MAX_COUNTERS: usize = 32;
    const EXACTLY_ONE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
                       `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    device.child("name").syntax(errors, names::dns_label);
    let device = device_fields(device);
    let (attributes, capacity) = (device.child("attributes"), device.child("capacity"));
    let total = attributes.len() + capacity.len();
    if total > MAX_ATTRIBUTES {
        let detail =
            format!("the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES}");
        errors.push(FieldError::invalid(&device.path, &total.to_string(), &detail));
    }
    for (name, attribute) in attributes.entries() {
        validate_qualified_name(name, &attribute.path, errors);
        validate_attribute(&attribute, errors);
    }
    for (name, entry) in capacity.entries() {
        validate_qualified_name(name, &entry.path, errors);
    }
    for taint in device.child("taints").items() {
        validate_taint(&taint, errors);
    }
    limit_items(&device.child("taints"), MAX_TAINTS, errors);
    let consumed = device.child("consumesCounters");
    for set in consumed.items() {
        set.child("counterSet").need(errors);
        validate_counters(&set.child("counters"), errors);
    }
    validate_unique(&consumed, "counterSet", errors);
    let counter_count: usize = consumed.items().map(|set| set.child("counters").len()).sum();
    if counter_count > MAX_COUNTERS {
        let detail = format!("the total number of counters must not exceed {MAX_COUNTERS}");
        errors.push(FieldError::invalid(&device.path, &counter_count.to_string(), &detail));
    }
    for set in consumed.items() {
        validate_consumed_counters(&set, shared, errors);
    }
    if spec.child("perDeviceNodeSelection").is_true() {
        let set_fields = validate_node_fields(&device, "must not be empty", errors);
        match set_fields.len() {
            0 => device.required(errors, EXACTLY_ONE),
            1 => {}
            _ => {
                let rendered = quoted(&format!("{{{}}}", set_fields.join(", ")));
                errors.push(FieldError::invalid(&device.path, &rendered, EXACTLY_ONE));
            }
        }
    } else if ["nodeName", "nodeSelector", "allNodes"].iter().any(|field| device.child(field).is_set()) {
        let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to \
                   true in the ResourceSlice spec";
        errors.push(FieldError::invalid(&device.path, "\"null\"", detail));
    }
}

fn validate_consumed_counters(set: &FieldValue<'_>, shared: &BTreeMap<&str, &Value>, errors: &mut ErrorList) {
    let name = set.child("counterSet");
    let Some(counter_set) = shared.get(name.text()) else {
        name.invalid_text(errors, "must reference a counterSet defined in the ResourceSlice sharedCounters");
        return;
    };
    for (counter, _) in set.child("counters").entries() {
        if counter_set.get_path(&["counters", counter]).is_none() {
            let detail = "must reference a counter defined in the ResourceSlice sharedCounters";
            errors.push(FieldError::invalid(&set.child("counters").path, &quoted(counter), detail));
        }
    }
}

fn validate_attribute(attribute: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_LENGTH: usize = 64;
    let fields = ["bool", "int", "string", "version"];
    for field in ["string", "version"] {
        let value = attribute.child(field);
        if field == "version" && value.is_set() && Semver::parse(value.text()).is_err() {
            value.invalid_text(errors, "must be a string compatible with semver.org spec 2.0.0");
        }
        if value.text().len() > MAX_LENGTH {
            errors.push(FieldError::too_long(&value.path, MAX_LENGTH));
        }
    }
    match fields.iter().filter(|field| attribute.child(field).is_set()).count() {
        0 => attribute.required(errors, "exactly one value must be specified"),
        1 => {}
        _ => messages::invalid_struct(
            &attribute.path,
            "resource.DeviceAttribute",
            errors,
            "exactly one value must be specified",
        ),
    }
}
