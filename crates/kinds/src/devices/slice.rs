//! ResourceSlices: the available devices.

use super::super::core::affinity;
use super::super::{COUNTED, Generation, KindRules, gated, messages};
use super::common::{at_most, driver_name, pool_name, qualified_name, unique, validate_taint};
use std::collections::BTreeMap;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

/// The rules of a ResourceSlice.
pub const RULES: KindRules = KindRules {
    gated: gated::rows::DEVICES,
    generation: Generation { dropped_count: true, ..Generation::SPEC },
    validate: validate_slice,
    validate_update: validate_slice_update,
    ..COUNTED
};

/// Validates a ResourceSlice.
pub(super) fn validate_slice(slice: &Value, errors: &mut ErrorList) {
    slice_head(slice, errors);
    slice_body(slice, errors);
}

/// Validates an update: node, pool and driver are immutable.
pub(super) fn validate_slice_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    slice_head(new, errors);
    let (spec, was) = (FieldValue::of(new, "spec"), FieldValue::of(old, "spec"));
    let table = [
        (spec.child("pool").child("name"), was.child("pool").child("name")),
        (spec.child("driver"), was.child("driver")),
        (spec.child("nodeName"), was.child("nodeName")),
    ];
    for (now, before) in table {
        if same(Some(now.value), Some(before.value)) {
            continue;
        }
        // The other two are required.
        if now.path.to_string().ends_with("nodeName") {
            now.invalid(errors, meta::IMMUTABLE);
        } else {
            now.invalid_text(errors, meta::IMMUTABLE);
        }
    }
    slice_body(new, errors);
}

fn slice_head(slice: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(slice, "spec");
    let pool = spec.child("pool");
    driver_name(&spec.child("driver"), errors);
    pool_name(&pool.child("name"), errors);
    let count = pool.child("resourceSliceCount");
    if count.number() <= 0 {
        let shown = count.number().to_string();
        errors.push(FieldError::invalid(&count.path, &shown, "must be greater than zero"));
    }
    if pool.child("generation").number() < 0 {
        pool.child("generation").invalid(errors, "must be greater than or equal to zero");
    }
}

/// Validates the node of a slice or device, which is given in one of several fields. Answers which fields are set.
fn places(holder: &FieldValue<'_>, empty: &str, errors: &mut ErrorList) -> Vec<&'static str> {
    let mut used = Vec::new();
    let (node, chosen) = (holder.child("nodeName"), holder.child("nodeSelector"));
    if node.is_set() && node.is_empty() {
        node.invalid_text(errors, empty);
    } else if node.is_set() {
        used.push("`nodeName`");
        node.syntax(errors, names::dns_subdomain);
    }
    if chosen.is_set() {
        used.push("`nodeSelector`");
        affinity::node_selector(&chosen, errors);
    }
    for (field, shown) in [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")]
    {
        match holder.child(field).value.as_bool() {
            Some(true) => used.push(shown),
            Some(false) => holder.child(field).invalid(errors, "must be either unset or set to true"),
            None => {}
        }
    }
    used
}

fn slice_body(slice: &Value, errors: &mut ErrorList) {
    const MOST_DEVICES: usize = 128;
    const MOST_SHARED: usize = 32;
    const MOST_DEVICE_COUNTERS: usize = 1_024;
    const ONE: &str =
        "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let spec = FieldValue::of(slice, "spec");
    let used = places(&spec, "must be either unset or set to a non-empty string", errors);
    let features = spec.child("nodeSelector").child("nodeSelectorTerms");
    if spec.child("nodeSelector").is_set() && features.len() != 1 {
        let why = "must have exactly one node selector term";
        messages::structure(&features.path, "[]core.NodeSelectorTerm", errors, why);
    }
    match used.len() {
        0 => spec.required(errors, ONE),
        1 => {}
        _ => {
            let shown = quoted(&format!("{{{}}}", used.join(", ")));
            let why = format!("{ONE}, but multiple fields are set");
            errors.push(FieldError::invalid(&spec.path, &shown, &why));
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
    at_most(&devices, MOST_DEVICES, errors);
    unique(&devices, "name", errors);
    let count = |list: &FieldValue<'_>| list.items().map(|set| set.child("counters").len()).sum::<usize>();
    let in_devices: usize =
        devices.items().map(|device| count(&basic(&device).child("consumesCounters"))).sum();
    if in_devices > MOST_DEVICE_COUNTERS {
        let why = format!("the total number of counters in devices must not exceed {MOST_DEVICE_COUNTERS}");
        errors.push(FieldError::invalid(&devices.path, &in_devices.to_string(), &why));
    }
    if count(&shared) > MOST_SHARED {
        let why = format!("the total number of shared counters must not exceed {MOST_SHARED}");
        errors.push(FieldError::invalid(&shared.path, &count(&shared).to_string(), &why));
    }
    for set in shared.items() {
        set.child("name").need_syntax(errors, names::dns_label);
        counters(&set.child("counters"), errors);
    }
    unique(&shared, "name", errors);
}

pub(super) fn counters(map: &FieldValue<'_>, errors: &mut ErrorList) {
    map.need(errors);
    for (name, entry) in map.entries() {
        meta::texts(errors, &entry.path, name, names::dns_label(name));
    }
}

/// The fields of a device, which are one level deeper in an older version.
fn basic<'a>(device: &FieldValue<'a>) -> FieldValue<'a> {
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
    const MOST_ATTRIBUTES: usize = 32;
    const MOST_TAINTS: usize = 4;
    const MOST_COUNTERS: usize = 32;
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
                       `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    device.child("name").syntax(errors, names::dns_label);
    let device = basic(device);
    let (attributes, capacity) = (device.child("attributes"), device.child("capacity"));
    let total = attributes.len() + capacity.len();
    if total > MOST_ATTRIBUTES {
        let why = format!("the total number of attributes and capacities must not exceed {MOST_ATTRIBUTES}");
        errors.push(FieldError::invalid(&device.path, &total.to_string(), &why));
    }
    for (name, attribute) in attributes.entries() {
        qualified_name(name, &attribute.path, errors);
        validate_attribute(&attribute, errors);
    }
    for (name, entry) in capacity.entries() {
        qualified_name(name, &entry.path, errors);
    }
    for taint in device.child("taints").items() {
        validate_taint(&taint, errors);
    }
    at_most(&device.child("taints"), MOST_TAINTS, errors);
    let consumed = device.child("consumesCounters");
    for set in consumed.items() {
        set.child("counterSet").need(errors);
        counters(&set.child("counters"), errors);
    }
    unique(&consumed, "counterSet", errors);
    let used: usize = consumed.items().map(|set| set.child("counters").len()).sum();
    if used > MOST_COUNTERS {
        let why = format!("the total number of counters must not exceed {MOST_COUNTERS}");
        errors.push(FieldError::invalid(&device.path, &used.to_string(), &why));
    }
    for set in consumed.items() {
        consumes(&set, shared, errors);
    }
    if spec.child("perDeviceNodeSelection").is_true() {
        let used = places(&device, "must not be empty", errors);
        match used.len() {
            0 => device.required(errors, ONE),
            1 => {}
            _ => {
                let shown = quoted(&format!("{{{}}}", used.join(", ")));
                errors.push(FieldError::invalid(&device.path, &shown, ONE));
            }
        }
    } else if ["nodeName", "nodeSelector", "allNodes"].iter().any(|field| device.child(field).is_set()) {
        let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to \
                   true in the ResourceSlice spec";
        errors.push(FieldError::invalid(&device.path, "\"null\"", why));
    }
}

fn consumes(set: &FieldValue<'_>, shared: &BTreeMap<&str, &Value>, errors: &mut ErrorList) {
    let name = set.child("counterSet");
    let Some(known) = shared.get(name.text()) else {
        name.invalid_text(errors, "must reference a counterSet defined in the ResourceSlice sharedCounters");
        return;
    };
    for (counter, _) in set.child("counters").entries() {
        if known.at(&["counters", counter]).is_none() {
            let why = "must reference a counter defined in the ResourceSlice sharedCounters";
            errors.push(FieldError::invalid(&set.child("counters").path, &quoted(counter), why));
        }
    }
}

fn validate_attribute(attribute: &FieldValue<'_>, errors: &mut ErrorList) {
    const LONGEST: usize = 64;
    let fields = ["bool", "int", "string", "version"];
    for field in ["string", "version"] {
        let value = attribute.child(field);
        if field == "version" && value.is_set() && crate::misc::version(value.text()).is_none() {
            value.invalid_text(errors, "must be a string compatible with semver.org spec 2.0.0");
        }
        if value.text().len() > LONGEST {
            errors.push(FieldError::too_long(&value.path, LONGEST));
        }
    }
    match fields.iter().filter(|field| attribute.child(field).is_set()).count() {
        0 => attribute.required(errors, "exactly one value must be specified"),
        1 => {}
        _ => messages::structure(
            &attribute.path,
            "resource.DeviceAttribute",
            errors,
            "exactly one value must be specified",
        ),
    }
}
