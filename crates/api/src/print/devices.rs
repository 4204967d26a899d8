//! Devices that pods can claim.

use pilothouse_apimachinery::value::Value;

use super::Printer;
use super::cells::{PrintedObject, cells};

/// The printer of a kind.
pub fn printer(kind: &str) -> Option<Printer> {
    Some(match kind {
        "DeviceClass" | "ResourceClaimTemplate" => |it| cells![it.name(), it.age()],
        "DeviceTaintRule" => taint_rule,
        "ResourceClaim" => claim,
        "ResourceSlice" => slice,
        _ => return None,
    })
}

fn claim(it: &PrintedObject<'_>) -> Vec<Value> {
    let is_allocated = it.at("status.allocation").is_some();
    let is_reserved = is_allocated && !it.items("status.reservedFor").is_empty();
    let states = [
        (it.is_terminating(), "deleted"),
        (!it.is_terminating() && !is_allocated, "pending"),
        (is_allocated, "allocated"),
        (is_reserved, "reserved"),
    ];
    let states: Vec<&str> = states.iter().filter(|(holds, _)| *holds).map(|(_, state)| *state).collect();
    cells![it.name(), states.join(","), it.age()]
}

fn slice(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), it.text("spec.nodeName"), it.text("spec.driver"), it.text("spec.pool.name"), it.age()]
}

fn taint_rule(it: &PrintedObject<'_>) -> Vec<Value> {
    let added = it.at("spec.taint.timeAdded").map(|_| it.since("spec.taint.timeAdded"));
    cells![
        it.name(),
        it.text("spec.taint.key"),
        it.text("spec.taint.value"),
        it.text("spec.taint.effect"),
        added.unwrap_or_default(),
        it.age()
    ]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::shows;

    const GROUP: &str = "resource.k8s.io";

    #[test]
    fn claims_tell_their_state() {
        let going = r#","deletionTimestamp":"2024-05-01T12:09:00Z""#;
        for (meta, status, states) in [
            ("", "{}", "pending"),
            ("", r#"{"reservedFor":[{}]}"#, "pending"),
            ("", r#"{"allocation":{}}"#, "allocated"),
            ("", r#"{"allocation":{},"reservedFor":[{}]}"#, "allocated,reserved"),
            (going, "{}", "deleted"),
            (going, r#"{"allocation":{},"reservedFor":[{}]}"#, "deleted,allocated,reserved"),
        ] {
            let object = format!(r#"{{"metadata":{{"name":"c"{meta}}},"status":{status}}}"#);
            shows(GROUP, "ResourceClaim", &object, &format!(r#"["c","{states}","<unknown>"]"#));
        }
    }

    #[test]
    fn the_rest_of_the_devices() {
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
            shows(GROUP, kind, &object(spec), row);
        }
    }
}
