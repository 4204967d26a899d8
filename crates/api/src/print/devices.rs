//! Rows of dynamic resource allocation.

use pilothouse_apimachinery::value::Value;

use super::Printer;
use super::cells::{PrintedObject, cells};

/// The printer of a kind.
pub fn printer(kind: &str) -> Option<Printer> {
    Some(match kind {
        "DeviceClass" | "ResourceClaimTemplate" => |object| cells![object.name(), object.age()],
        "DeviceTaintRule" => taint_rule,
        "ResourceClaim" => claim,
        "ResourceSlice" => slice,
        _ => return None,
    })
}

fn claim(object: &PrintedObject<'_>) -> Vec<Value> {
    let is_allocated = object.field("status.allocation").is_some();
    let is_reserved = is_allocated && !object.items("status.reservedFor").is_empty();
    let states = [
        (object.is_terminating(), "deleted"),
        (!object.is_terminating() && !is_allocated, "pending"),
        (is_allocated, "allocated"),
        (is_reserved, "reserved"),
    ];
    let states: Vec<&str> = states.iter().filter(|(is_true, _)| *is_true).map(|(_, state)| *state).collect();
    cells![object.name(), states.join(","), object.age()]
}

fn slice(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        object.name(),
        object.text("spec.nodeName"),
        object.text("spec.driver"),
        object.text("spec.pool.name"),
        object.age()
    ]
}

fn taint_rule(object: &PrintedObject<'_>) -> Vec<Value> {
    let added = object.field("spec.taint.timeAdded").map(|_| object.since("spec.taint.timeAdded"));
    cells![
        object.name(),
        object.text("spec.taint.key"),
        object.text("spec.taint.value"),
        object.text("spec.taint.effect"),
        added.unwrap_or_default(),
        object.age()
    ]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::assert_cells;

    const GROUP: &str = "resource.k8s.io";

    #[test]
    fn resource_claim_cells_show_state() {
        let terminating = r#","deletionTimestamp":"2024-05-01T12:09:00Z""#;
        for (meta, status, states) in [
            ("", "{}", "pending"),
            ("", r#"{"reservedFor":[{}]}"#, "pending"),
            ("", r#"{"allocation":{}}"#, "allocated"),
            ("", r#"{"allocation":{},"reservedFor":[{}]}"#, "allocated,reserved"),
            (terminating, "{}", "deleted"),
            (terminating, r#"{"allocation":{},"reservedFor":[{}]}"#, "deleted,allocated,reserved"),
        ] {
            let object = format!(r#"{{"metadata":{{"name":"c"{meta}}},"status":{status}}}"#);
            assert_cells(GROUP, "ResourceClaim", &object, &format!(r#"["c","{states}","<unknown>"]"#));
        }
    }

    #[test]
    fn device_class_slice_and_taint_rule_cells() {
        let object = |spec: &str| format!(r#"{{"metadata":{{"name":"x"}},"spec":{spec}}}"#);
        for (kind, spec, row) in [
            ("DeviceClass", "{}", r#"["x","<unknown>"]"#),
            ("ResourceClaimTemplate", "{}", r#"["x","<unknown>"]"#),
            (
                "ResourceSlice",
                r#"{"nodeName":"n","driver":"d","pool":{"name":"p"}}"#,
                r#"["x","n","d","p","<unknown>"]"#,
            ),
            ("ResourceSlice", r#"{"allNodes":true,"driver":"d"}"#, r#"["x","","d","","<unknown>"]"#),
            (
                "DeviceTaintRule",
                r#"{"taint":{"key":"k","value":"v","effect":"NoExecute","timeAdded":"2024-05-01T12:00:00Z"}}"#,
                r#"["x","k","v","NoExecute","10m","<unknown>"]"#,
            ),
            ("DeviceTaintRule", "{}", r#"["x","","","","","<unknown>"]"#),
        ] {
            assert_cells(GROUP, kind, &object(spec), row);
        }
    }
}
