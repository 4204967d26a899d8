//! The three patch types on whole objects, and their reports of unknown and duplicate fields.

use super::*;
use crate::value::Value;

const OBJECT: &str =
    r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"n"},"data":{"x":"1"}}"#;

fn patched(
    language: PatchType,
    patch: &str,
    validation: FieldValidation,
) -> std::result::Result<(String, Vec<String>), (u16, String)> {
    let registry = Registry::builtin().unwrap();
    let kind = GroupVersionKind::new("", "v1", "ConfigMap");
    let target = Target { registry: &registry, kind: &kind, custom: None };
    let current: Value = codec::decode_object(OBJECT.as_bytes(), &kind, &registry).unwrap().value;
    apply(language, patch.as_bytes(), validation, target, &current)
        .map(|patched| {
            let ty = registry.lookup(&kind).unwrap();
            let text = String::from_utf8(codec::encode(&registry, ty, &patched.value)).unwrap();
            (text.replace(r#","creationTimestamp":null"#, ""), patched.warnings)
        })
        .map_err(|status| (status.code, status.message))
}

use FieldValidation::{Ignore, Strict, Warn};
use PatchType::{Json, Merge, Strategic};

#[test]
fn malformed_patch_bodies_have_the_reference_message() {
    let into = |actual: &str, ty: &str| format!("json: cannot unmarshal {actual} into Go value of type {ty}");
    let decoding = |error: String| format!("error decoding patch: {error}");
    let map = "map[string]interface {}";
    for (language, validation, patch, message) in [
        (Json, Warn, "{}", decoding(into("object", "[]handlers.jsonPatchOp"))),
        (Json, Ignore, "{}", into("object", "jsonpatch.Patch")),
        (Json, Warn, "[1]", decoding(into("number", "handlers.jsonPatchOp"))),
        (Json, Ignore, "[1]", into("number", "jsonpatch.Operation")),
        (Json, Strict, "[", decoding("unexpected end of JSON input".to_owned())),
        (
            Json,
            Warn,
            r#"[{"op":1}]"#,
            decoding(
                "json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string".into(),
            ),
        ),
        (Merge, Warn, "[]", decoding(into("array", map))),
        (Merge, Warn, "{", decoding("unexpected end of JSON input".to_owned())),
        (Merge, Warn, "null", "Invalid JSON Patch".to_owned()),
        (Merge, Ignore, "null", "Invalid JSON Patch".to_owned()),
        (Merge, Ignore, "7", "Invalid JSON Patch".to_owned()),
        (Merge, Ignore, "{", "Invalid JSON Patch".to_owned()),
        (Strategic, Warn, "[]", into("array", map)),
        (Strategic, Ignore, "{", "unexpected end of JSON input".to_owned()),
    ] {
        assert_eq!(patched(language, patch, validation).unwrap_err(), (400, message), "{patch}");
    }
}

#[test]
fn patch_result_must_be_an_object_of_the_kind() {
    let prefix = r#" "" is invalid: patch: Invalid value: "#;
    for (language, patch, message) in [
        (
            Merge,
            r#"{"data":{"x":1}}"#,
            r#""{\"apiVersion\":\"v1\",\"data\":{\"x\":1},\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"creationTimestamp\":null}}": json: cannot unmarshal number into Go struct field ConfigMap.data of type string"#,
        ),
        (
            Merge,
            r#"{"kind":"Secret","data":null,"metadata":null}"#,
            r#""{\"apiVersion\":\"v1\",\"kind\":\"Secret\"}": converting (v1.Secret) to (core.ConfigMap): unknown conversion"#,
        ),
        (Strategic, r#"{"data":{"x":1}}"#, r#""map[data:map[x:1]]": cannot convert int64 to string"#),
    ] {
        assert_eq!(
            patched(language, patch, Warn).unwrap_err(),
            (422, format!("{prefix}{message}")),
            "{patch}"
        );
    }
}

#[test]
fn errors_print_strategic_patch_without_executed_directives() {
    for (patch, expected) in [
        (r#"{"metadata":{"$retainKeys":["name"],"name":"a"},"nope":1}"#, "map[metadata:map[name:a] nope:1]"),
        (r#"{"data":{"$patch":"replace","y":"2"},"nope":1}"#, "map[data:map[y:2] nope:1]"),
        (
            r#"{"metadata":{"$setElementOrder/finalizers":["b/c"],"finalizers":["b/c"]},"nope":1}"#,
            "map[metadata:map[] nope:1]",
        ),
        (
            r#"{"binaryData":{"a":null,"b":{"$patch":"delete"}},"nope":[{"$patch":"delete"},{"a":null}]}"#,
            "map[binaryData:map[] nope:[map[$patch:delete] map[]]]",
        ),
    ] {
        let (_, message) = patched(Strategic, patch, Strict).unwrap_err();
        assert!(message.contains(&format!("Invalid value: \"{expected}\": ")), "{message}");
    }
}

#[test]
fn unknown_and_duplicate_fields_follow_field_validation() {
    for (language, patch, findings) in [
        (
            Json,
            r#"[{"op":"add","path":"/nope","value":1,"x":1}]"#,
            r#"json patch unknown field "[0].x"|unknown field "nope""#,
        ),
        (Merge, r#"{"nope":1,"data":{"y":"1","y":"2"}}"#, r#"duplicate field "data.y"|unknown field "nope""#),
        (
            Strategic,
            r#"{"nope":1,"metadata":{"no":1,"no":1}}"#,
            r#"duplicate field "metadata.no"|unknown field "metadata.no"|unknown field "nope""#,
        ),
    ] {
        let findings: Vec<&str> = findings.split('|').collect();
        assert_eq!(patched(language, patch, Ignore).unwrap().1, [""; 0], "{patch}");
        assert_eq!(patched(language, patch, Warn).unwrap().1, findings, "{patch}");
        let (code, message) = patched(language, patch, Strict).unwrap_err();
        assert_eq!(code, 422);
        assert!(message.ends_with(&format!(": strict decoding error: {}", findings.join(", "))), "{message}");
    }
}

#[test]
fn each_patch_type_changes_the_object() {
    let expected = OBJECT.replace(r#""x":"1""#, r#""y":"2""#);
    for (language, patch) in [
        (Json, r#"[{"op":"remove","path":"/data/x"},{"op":"add","path":"/data/y","value":"2"}]"#),
        (Merge, r#"{"data":{"x":null,"y":"2"}}"#),
        (Strategic, r#"{"data":{"$patch":"replace","y":"2"},"kind":"Other"}"#),
    ] {
        assert_eq!(patched(language, patch, Strict).unwrap(), (expected.clone(), Vec::new()), "{patch}");
    }
    let (code, message) = patched(Json, r#"[{"op":"test","path":"/data/x","value":"2"}]"#, Warn).unwrap_err();
    assert_eq!(
        (code, message.as_str()),
        (422, "the server rejected our request due to an error in our request")
    );
}

#[test]
fn number_of_json_patch_operations_is_bounded() {
    let operation = r#"{"op":"test","path":"/kind","value":"ConfigMap"}"#;
    let patch = |count| format!("[{}]", vec![operation; count].join(","));
    assert!(patched(Json, &patch(10_000), Warn).is_ok());
    let (code, message) = patched(Json, &patch(10_001), Warn).unwrap_err();
    assert_eq!(
        (code, message.as_str()),
        (413, "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001")
    );
}
