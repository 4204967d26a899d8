//! Each violation in a device kind is refused.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::testing::{each_change_refused, each_refused, error_messages, object};

use super::claim::*;
use super::claim_status::*;
use super::class::*;
use super::slice::*;

#[test]
fn resource_claim_validation_refuses_each_violation() {
    let base = object(
        r#"{"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c","allocationMode":"ExactCount","count":1,
            "selectors":[{"cel":{"expression":"true"}}],"tolerations":[{"operator":"Exists"}]}},
            {"name":"f","firstAvailable":[{"name":"s","deviceClassName":"c","allocationMode":"All"}]}],
            "constraints":[{"requests":["r","f/s"],"matchAttribute":"a.b/c"}],
            "config":[{"requests":["r"],"opaque":{"driver":"a.b","parameters":{"x":1}}}]}}}"#,
    );
    let request = |rest: &str| format!("spec.devices.requests.0.exactly.{rest}");
    let table: Vec<(String, &str, &str)> = vec![
        (request("deviceClassName"), "null", "requests[0].exactly.deviceClassName: Required value"),
        (request("allocationMode"), r#""X""#, "supported values: \"All\", \"ExactCount\""),
        (request("allocationMode"), r#""All""#, "must not be specified when allocationMode is 'All'"),
        (request("count"), "0", "count: Invalid value: 0: must be greater than zero"),
        (request("selectors"), "[{}]", "selectors[0].cel: Required value"),
        (request("tolerations"), r#"[{"operator":"X"}]"#, "supported values: \"Equal\", \"Exists\""),
        (
            request("tolerations"),
            r#"[{"operator":"Exists","value":"v"}]"#,
            "must be empty for operator `Exists`",
        ),
        (
            "spec.devices.constraints.0.requests".into(),
            r#"["x"]"#,
            "constraints[0].requests[0]: Invalid value: \"x\": must be the name of a request",
        ),
        ("spec.devices.constraints.0.requests".into(), r#"["r","r"]"#, "requests[1]: Duplicate value: \"r\""),
        ("spec.devices.constraints.0.matchAttribute".into(), r#""c""#, "must include a domain"),
        ("spec.devices.constraints.0.matchAttribute".into(), "null", "matchAttribute: Required value"),
        ("spec.devices.config.0.opaque".into(), "null", "config[0].opaque: Required value"),
        ("spec.devices.config.0.opaque.parameters".into(), "[1]", "parameters must be a valid JSON object"),
    ];
    for (path, json, expected) in &table {
        each_refused(&base, validate_claim, &[(path.as_str(), json, expected)]);
    }
    each_change_refused(
        &base,
        validate_claim_update,
        &[(
            "spec.devices.requests.0.exactly.count",
            "2",
            "spec: Invalid value: resource.ResourceClaimSpec{}: field is immutable",
        )],
    );
    let flat = object(
        r#"{"spec":{"devices":{"requests":[{"name":"r","deviceClassName":"c","allocationMode":"All"}]}}}"#,
    );
    each_refused(
        &flat,
        validate_claim,
        &[(
            "spec.devices.requests.0.deviceClassName",
            r#""A""#,
            "spec.devices.requests[0].exactly.deviceClassName: Invalid value: \"A\"",
        )],
    );
    each_change_refused(
        &flat,
        validate_claim_status,
        &[
            (
                "status.reservedFor",
                r#"[{"resource":"pods","name":"p","uid":"u"}]"#,
                "may not be specified when `allocated` is not set",
            ),
            (
                "status.devices",
                r#"[{"driver":"d","pool":"p","device":"x"}]"#,
                "status.devices[0]: Invalid value: d/p/x: must be an allocated device in the claim",
            ),
            (
                "status.allocation",
                r#"{"devices":{"results":[{"request":"q","driver":"d","pool":"p","device":"x"}]}}"#,
                "results[0].request: Invalid value: \"q\": must be the name of a request",
            ),
        ],
    );
}

#[test]
fn resource_slice_validation_refuses_each_violation() {
    let base = object(
        r#"{"spec":{"driver":"a.b","pool":{"name":"p","resourceSliceCount":1},"nodeName":"n","sharedCounters":[{"name":"s","counters":{"c":{"value":"1"}}}],
            "devices":[{"name":"d","attributes":{"x":{"int":1}},"capacity":{"m":{"value":"1"}},
            "consumesCounters":[{"counterSet":"s","counters":{"c":{"value":"1"}}}]}]}}"#,
    );
    each_refused(
        &base,
        validate_slice,
        &[
            ("spec.driver", r#""a_b""#, "spec.driver: Invalid value: \"a_b\""),
            ("spec.pool.resourceSliceCount", "0", "must be greater than zero"),
            ("spec.nodeName", "null", "spec: Required value: exactly one of `nodeName`"),
            ("spec.allNodes", "true", "spec: Invalid value: \"{`nodeName`, `allNodes`}\": exactly one of"),
            ("spec.allNodes", "false", "must be either unset or set to true"),
            (
                "spec.devices.0.attributes.x",
                "{}",
                "attributes[x]: Required value: exactly one value must be specified",
            ),
            (
                "spec.devices.0.attributes.x",
                r#"{"version":"1"}"#,
                "must be a string compatible with semver.org spec 2.0.0",
            ),
            (
                "spec.devices.0.attributes.1x",
                r#"{"int":1}"#,
                "attributes[1x]: Invalid value: \"1x\": a valid C identifier",
            ),
            ("spec.devices.0.taints", r#"[{"key":"k"}]"#, "taints[0].effect: Required value"),
            (
                "spec.devices.0.consumesCounters.0.counterSet",
                r#""z""#,
                "must reference a counterSet defined in the ResourceSlice sharedCounters",
            ),
            (
                "spec.devices.0.consumesCounters.0.counters",
                r#"{"z":{"value":"1"}}"#,
                "must reference a counter defined in the ResourceSlice sharedCounters",
            ),
            (
                "spec.devices.0.nodeName",
                r#""n""#,
                "can only be set if `perDeviceNodeSelection` is set to true",
            ),
        ],
    );
    each_change_refused(
        &base,
        validate_slice_update,
        &[("spec.nodeName", r#""m""#, "spec.nodeName: Invalid value: \"m\": field is immutable")],
    );
    each_refused(
        &object(r#"{"spec":{"taint":{"key":"k","effect":"NoExecute"},"deviceSelector":{"driver":"a.b"}}}"#),
        validate_taint_rule,
        &[
            ("spec.taint.effect", r#""X""#, "supported values: \"NoExecute\", \"NoSchedule\""),
            ("spec.deviceSelector.pool", r#""A""#, "spec.deviceSelector.pool: Invalid value: \"A\""),
        ],
    );
    each_refused(
        &object(r#"{"spec":{"selectors":[{"cel":{"expression":"device.driver == 'x'"}}]}}"#),
        validate_class,
        &[("spec.config", "[{}]", "spec.config[0].opaque: Required value")],
    );
    each_refused(
        &object(r#"{"spec":{"metadata":{"labels":{"a":"b"}},"spec":{}}}"#),
        validate_template,
        &[("spec.metadata.labels.a", r#""-""#, "spec.metadata.labels: Invalid value: \"-\"")],
    );
}

/// Regression: a request for all devices was refused because of a defaulted count.
#[test]
fn device_requests_default_to_one_device() {
    let mut claim = object(
        r#"{"spec":{"devices":{"requests":[{"name":"a","deviceClassName":"c"},{"name":"b","deviceClassName":"c","allocationMode":"All"},
            {"name":"c","exactly":{"deviceClassName":"c"}},
            {"name":"d","firstAvailable":[{"name":"x"},{"name":"y","allocationMode":"All"},{"name":"z","count":3}]}]}}}"#,
    );
    let mut template = object(r#"{"spec":{}}"#);
    template.entry("spec").set("spec", claim.get("spec").cloned().unwrap());
    default_claim(&mut claim);
    let expected = object(
        r#"{"spec":{"devices":{"requests":[{"name":"a","deviceClassName":"c","allocationMode":"ExactCount","count":1},
            {"name":"b","deviceClassName":"c","allocationMode":"All"},
            {"name":"c","exactly":{"deviceClassName":"c","allocationMode":"ExactCount","count":1}},
            {"name":"d","firstAvailable":[{"name":"x","allocationMode":"ExactCount","count":1},{"name":"y","allocationMode":"All"},
                {"name":"z","allocationMode":"ExactCount","count":3}]}]}}}"#,
    );
    assert_eq!(claim, expected);
    default_template(&mut template);
    assert_eq!(template.get_path(&["spec", "spec"]), expected.get("spec"));
}

#[test]
fn claim_errors_print_the_empty_spec() {
    let old = object(
        r#"{"spec":{"devices":{"requests":[{"name":"r","deviceClassName":"c","allocationMode":"All"}]}}}"#,
    );
    let mut errors = ErrorList::new();
    validate_claim_update(&object("{}"), &old, &mut errors);
    let expected = "spec: Invalid value: resource.ResourceClaimSpec{}: field is immutable";
    assert!(error_messages(&errors).contains(&expected.to_owned()), "{errors:?}");
    let mut errors = ErrorList::new();
    validate_claim(
        &object(r#"{"spec":{"devices":{"requests":[{"name":"r","deviceClassName":""}]}}}"#),
        &mut errors,
    );
    let expected =
        "spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required";
    assert_eq!(error_messages(&errors), [expected]);
}
