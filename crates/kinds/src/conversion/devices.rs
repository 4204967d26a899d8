//! Devices and ResourceClaims. v1beta1 is the hub: v1alpha3 writes capacities as bare quantities, v1beta2 has no level for basic
//! devices and one more for exact requests.

use pilothouse_apimachinery::value::Value;

use super::items_mut;

/// The fields of a device that v1beta1 has below `basic`.
const BASIC_FIELDS: [&str; 7] =
    ["attributes", "capacity", "consumesCounters", "nodeName", "nodeSelector", "allNodes", "taints"];

/// The fields of a request that v1beta2 has below `exactly`.
const EXACT_FIELDS: [&str; 6] =
    ["deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations"];

fn devices(slice: &mut Value) -> &mut [Value] {
    items_mut(slice.get_mut("spec").and_then(|spec| spec.get_mut("devices")))
}

fn basic_capacities(slice: &mut Value, change: fn(&mut Value)) {
    for device in devices(slice) {
        let capacity = device.get_mut("basic").and_then(|basic| basic.get_mut("capacity"));
        if let Some(Value::Object(capacities)) = capacity {
            capacities.values_mut().for_each(change);
        }
    }
}

/// Wraps each bare quantity in an object with `value`.
pub(super) fn slice_from_v1alpha3(slice: &mut Value) {
    basic_capacities(slice, |capacity| {
        let value = std::mem::take(capacity);
        capacity.set("value", value);
    });
}

/// Unwraps the quantities again.
pub(super) fn slice_to_v1alpha3(slice: &mut Value) {
    basic_capacities(slice, |capacity| {
        *capacity = capacity.remove("value").unwrap_or_else(|| Value::from("0"));
    });
}

/// Moves the fields of `basic` up into the device.
pub(super) fn slice_to_v1beta2(slice: &mut Value) {
    for device in devices(slice) {
        if let Some(Value::Object(basic)) = device.remove("basic") {
            device.fields_mut().extend(basic);
        }
    }
    // Plain values became optional ones: a zero value becomes absent.
    if let Some(spec) = slice.get_mut("spec") {
        if spec.str("nodeName").is_empty() {
            spec.remove("nodeName");
        }
        if spec.get("allNodes") != Some(&Value::Bool(true)) {
            spec.remove("allNodes");
        }
    }
}

/// Moves them back below `basic`.
pub(super) fn slice_from_v1beta2(slice: &mut Value) {
    for device in devices(slice) {
        let basic = pick(device, &BASIC_FIELDS);
        device.set("basic", basic);
    }
}

/// Moves the named fields of an object into a new object.
fn pick(from: &mut Value, names: &[&str]) -> Value {
    let mut picked = Value::object();
    for name in names {
        if let Some(field) = from.remove(name) {
            picked.set(name, field);
        }
    }
    picked
}

fn requests(spec: Option<&mut Value>) -> &mut [Value] {
    let devices = spec.and_then(|spec| spec.get_mut("devices"));
    items_mut(devices.and_then(|devices| devices.get_mut("requests")))
}

/// Moves the fields of an exact request below `exactly`, if there are any.
fn request_to_v1beta2(request: &mut Value) {
    let exactly = pick(request, &EXACT_FIELDS);
    let is_set = |field: &Value| !matches!(field, Value::Null | Value::Int(0)) && *field != Value::from("");
    if exactly.fields().is_some_and(|fields| fields.values().any(is_set)) {
        request.set("exactly", exactly);
    }
}

fn request_from_v1beta2(request: &mut Value) {
    if let Some(Value::Object(exactly)) = request.remove("exactly") {
        request.fields_mut().extend(exactly);
    }
    // The class is always encoded, also for a request that lists alternatives instead.
    if request.get("deviceClassName").is_none() {
        request.set("deviceClassName", "");
    }
}

/// Moves the fields of exact requests below `exactly`.
pub(super) fn claim_to_v1beta2(claim: &mut Value) {
    requests(claim.get_mut("spec")).iter_mut().for_each(request_to_v1beta2);
}

/// Moves them back up.
pub(super) fn claim_from_v1beta2(claim: &mut Value) {
    requests(claim.get_mut("spec")).iter_mut().for_each(request_from_v1beta2);
}

/// Converts the claim inside a template.
pub(super) fn template_to_v1beta2(template: &mut Value) {
    if let Some(claim) = template.get_mut("spec") {
        claim_to_v1beta2(claim);
    }
}

/// Converts the claim inside a template back.
pub(super) fn template_from_v1beta2(template: &mut Value) {
    if let Some(claim) = template.get_mut("spec") {
        claim_from_v1beta2(claim);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::version::GroupVersion;

    use super::super::CONVERSIONS;
    use super::super::annotation_json::read;
    use super::*;

    fn converted(text: &str, from: &str, to: &str, kind: &str) -> Value {
        let gv = |version| GroupVersion::new("resource.k8s.io", version);
        CONVERSIONS.convert(read(text).unwrap(), &gv(from), &gv(to), kind).unwrap()
    }

    #[test]
    fn resource_slice_converts_between_all_versions() {
        let alpha = r#"{"apiVersion":"resource.k8s.io/v1alpha3","spec":{"driver":"d","nodeName":"n","devices":[
            {"name":"a","basic":{"attributes":{"x":{"int":1}},"capacity":{"m":"1Gi"}}}]}}"#;
        let beta1 = r#"{"apiVersion":"resource.k8s.io/v1beta1","spec":{"driver":"d","nodeName":"n","devices":[
            {"name":"a","basic":{"attributes":{"x":{"int":1}},"capacity":{"m":{"value":"1Gi"}}}}]}}"#;
        let beta2 = r#"{"apiVersion":"resource.k8s.io/v1beta2","spec":{"driver":"d","nodeName":"n","devices":[
            {"name":"a","attributes":{"x":{"int":1}},"capacity":{"m":{"value":"1Gi"}}}]}}"#;
        let all = [("v1alpha3", alpha), ("v1beta1", beta1), ("v1beta2", beta2)];
        for (from, text) in all {
            for (to, expected) in all {
                assert_eq!(
                    converted(text, from, to, "ResourceSlice"),
                    read(expected).unwrap(),
                    "{from} to {to}"
                );
            }
        }
    }

    #[test]
    fn resource_claim_converts_exact_requests_and_alternatives() {
        let flat = r#"{"apiVersion":"resource.k8s.io/v1beta1","spec":{"devices":{"requests":[
            {"name":"a","deviceClassName":"c","allocationMode":"ExactCount","count":2},
            {"name":"b","deviceClassName":"","firstAvailable":[{"name":"s","deviceClassName":"c"}]}]}}}"#;
        let deep = r#"{"apiVersion":"resource.k8s.io/v1beta2","spec":{"devices":{"requests":[
            {"name":"a","exactly":{"deviceClassName":"c","allocationMode":"ExactCount","count":2}},
            {"name":"b","firstAvailable":[{"name":"s","deviceClassName":"c"}]}]}}}"#;
        assert_eq!(converted(flat, "v1beta1", "v1beta2", "ResourceClaim"), read(deep).unwrap());
        assert_eq!(converted(deep, "v1beta2", "v1beta1", "ResourceClaim"), read(flat).unwrap());
        let wrap = |claim: &str| {
            let mut template = Value::object();
            let mut claim = read(claim).unwrap();
            template.set("apiVersion", claim.remove("apiVersion").unwrap());
            template.set("spec", claim);
            template
        };
        let gv = |version: &str| GroupVersion::new("resource.k8s.io", version);
        let convert = |template: Value, from: &str, to: &str| {
            CONVERSIONS.convert(template, &gv(from), &gv(to), "ResourceClaimTemplate").unwrap()
        };
        let converted_template = convert(wrap(flat), "v1beta1", "v1beta2");
        assert_eq!(converted_template, wrap(deep));
        let back = convert(converted_template, "v1beta2", "v1beta1");
        assert_eq!(back, wrap(flat));
    }
}
