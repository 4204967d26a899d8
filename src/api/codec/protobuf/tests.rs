//! What is easily done wrong on this wire, one by one.

use std::sync::LazyLock;

use prost::Message as _;

use super::envelope::{Unknown, WatchEvent};
use super::*;
use crate::api::codec;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

fn ty(name: &str) -> TypeId {
    let mut ids = (0..REGISTRY.len()).map(|at| TypeId(at as u32));
    ids.find(|id| REGISTRY.structure(*id).is_some_and(|structure| &*structure.name == name)).unwrap()
}

/// The message of the JSON of a type, in hexadecimal.
fn written(name: &str, text: &str) -> String {
    let value = codec::decode_stored(text.as_bytes(), ty(name), &REGISTRY).unwrap();
    hex(&message(&REGISTRY, ty(name), &value))
}

/// The JSON that a message is read as, without what is printed in any case.
fn read(name: &str, message: &[u8]) -> String {
    match decode::read(&REGISTRY, ty(name), message) {
        Ok(value) => String::from_utf8(codec::to_json(&value)).unwrap(),
        Err(fault) => fault.to_string(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn config_map() -> GroupVersionKind {
    GroupVersionKind::new("", "v1", "ConfigMap")
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut body = envelope::head(api_version, kind, raw.len());
    body.extend_from_slice(raw);
    body
}

fn refusal(body: &[u8]) -> String {
    decode_object(body, &config_map(), &REGISTRY).unwrap_err().message
}

#[test]
fn the_envelope_names_the_kind_and_ends_with_two_empty_texts() {
    let value = codec::json::read(br#"{"kind":"ConfigMap","apiVersion":"v1","data":{"a":"b"}}"#).unwrap();
    let body = encode_object(&REGISTRY, ty("ConfigMap"), &value);
    assert_eq!(body[..4], MAGIC);
    assert!(body.ends_with(&[0x1a, 0, 0x22, 0]));
    let unknown = Unknown::decode(&body[4..]).unwrap();
    let type_meta = unknown.type_meta.unwrap();
    assert_eq!(
        (type_meta.api_version.as_deref(), type_meta.kind.as_deref()),
        (Some("v1"), Some("ConfigMap"))
    );
    assert_eq!(unknown.raw.unwrap(), message(&REGISTRY, ty("ConfigMap"), &value));
    assert_eq!(decode_object(&body, &config_map(), &REGISTRY).unwrap().value, value);
}

#[test]
fn bodies_are_refused_in_the_words_of_the_api() {
    let unrecognized = "the object provided is unrecognized (must be of type ConfigMap):";
    let prefix = "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]";
    assert_eq!(refusal(b"garbage"), format!("{unrecognized} {prefix} (67617262616765)"));
    assert_eq!(refusal(b"k8s"), format!("{unrecognized} {prefix} (6b3873)"));
    assert_eq!(refusal(b""), format!("{unrecognized} empty data (<empty>)"));
    assert_eq!(refusal(&MAGIC), format!("{unrecognized} empty body (6b387300)"));
    assert_eq!(refusal(b"k8s\0\xff\xff"), format!("{unrecognized} unexpected EOF (6b387300ffff)"));
    assert_eq!(
        refusal(b"k8s\0\x08\x01"),
        format!("{unrecognized} proto: wrong wireType = 0 for field TypeMeta (6b3873000801)")
    );
    let handled = "cannot be handled as a ConfigMap:";
    assert_eq!(
        refusal(&body("v1", "ConfigMap", &[0x0a, 0xff])),
        format!("ConfigMap in version \"v1\" {handled} unexpected EOF")
    );
    assert_eq!(
        refusal(&body("v1", "ConfigMap", &[0x08, 1])),
        format!("ConfigMap in version \"v1\" {handled} proto: wrong wireType = 0 for field ObjectMeta")
    );
    assert_eq!(
        refusal(&body("v1", "Secret", &[])),
        format!(
            "Secret in version \"v1\" {handled} converting (v1.Secret) to (core.ConfigMap): unknown conversion"
        )
    );
    assert_eq!(
        refusal(&body("v1", "Nope", &[])),
        format!(
            "Nope in version \"v1\" {handled} no kind \"Nope\" is registered for version \"v1\" in scheme \
             \"pkg/api/legacyscheme/scheme.go:30\""
        )
    );
    let deployment = GroupVersionKind::new("apps", "v1", "Deployment");
    assert_eq!(
        decode_object(&body("apps/v1beta1", "Deployment", &[]), &deployment, &REGISTRY).unwrap_err().message,
        "the API version in the data (apps/v1beta1) does not match the expected API version (apps/v1)"
    );
}

#[test]
fn what_an_envelope_does_not_say_is_filled_in() {
    for (api_version, kind) in [("", ""), ("v1", ""), ("", "ConfigMap"), ("no/such/version", "ConfigMap")] {
        let decoded = decode_object(&body(api_version, kind, &[]), &config_map(), &REGISTRY).unwrap();
        assert_eq!(codec::to_json(&decoded.value), br#"{"apiVersion":"v1","kind":"ConfigMap"}"#);
    }
}

#[test]
fn options_may_name_any_version() {
    let expected = GroupVersionKind::new("meta.k8s.io", "v1", "DeleteOptions");
    for api_version in ["v1", "apps/v1", "meta.k8s.io/v1", "example.com/v3", ""] {
        let body = body(api_version, "DeleteOptions", &[0x08, 0]);
        let decoded = decode_any_version(&body, &expected, &REGISTRY).unwrap();
        assert_eq!(decoded.value.get("gracePeriodSeconds"), Some(&Value::Int(0)), "{api_version}");
    }
    assert!(decode_any_version(&body("v1", "Pod", &[]), &expected, &REGISTRY).is_err());
}

#[test]
fn the_kind_of_what_is_inside_is_lost() {
    let text = r#"{"volumeClaimTemplates":[{"kind":"PersistentVolumeClaim","apiVersion":"v1"}]}"#;
    let bare = r#"{"volumeClaimTemplates":[{}]}"#;
    assert_eq!(written("StatefulSetSpec", text), written("StatefulSetSpec", bare));
}

#[test]
fn inlined_types_are_nested_and_always_written() {
    assert_eq!(written("SecretEnvSource", "{}"), "0a020a00");
    assert_eq!(written("SecretEnvSource", r#"{"name":"a","optional":false}"#), "0a030a01611000");
    assert_eq!(
        read("SecretEnvSource", &[0x0a, 3, 0x0a, 1, b'a', 0x10, 0]),
        r#"{"name":"a","optional":false}"#
    );
    let rule = r#"{"resourceNames":["a"],"operations":["*"],"apiGroups":["b"]}"#;
    assert_eq!(written("NamedRuleWithOperations", rule), "0a016112080a012a12030a0162");
    let message = [0x0a, 1, b'a', 0x12, 8, 0x0a, 1, b'*', 0x12, 3, 0x0a, 1, b'b'];
    assert_eq!(
        read("NamedRuleWithOperations", &message),
        r#"{"apiGroups":["b"],"operations":["*"],"resourceNames":["a"]}"#
    );
}

#[test]
fn instants_have_seconds_and_the_zero_time_is_empty() {
    // 8 of ObjectMeta is a value, 9 a pointer.
    let meta = written("ObjectMeta", "{}");
    assert!(meta.ends_with("38004200"), "{meta}");
    let meta = written("ObjectMeta", r#"{"deletionTimestamp":"1970-01-01T00:00:01Z"}"#);
    assert!(meta.ends_with("42004a0408011000"), "{meta}");
    assert_eq!(read("ObjectMeta", &[0x42, 0, 0x4a, 0]), "{}");
    let fraction = [0x42, 5, 0x08, 1, 0x10, 0xf4, 3];
    assert_eq!(read("ObjectMeta", &fraction), r#"{"creationTimestamp":"1970-01-01T00:00:01Z"}"#);
    // An empty message is no time, a message that says nothing of seconds is 1970.
    assert_eq!(read("ObjectMeta", &[0x42, 2, 0x10, 0]), r#"{"creationTimestamp":"1970-01-01T00:00:00Z"}"#);
    let far = [0x42, 10, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    assert!(read("ObjectMeta", &far).contains("out of range"));
}

#[test]
fn microseconds_are_cut_not_rounded() {
    // 4 of a lease's spec is acquireTime... by its name.
    let text = r#"{"renewTime":"1970-01-01T00:00:01.000002Z"}"#;
    let bytes = written("LeaseSpec", text);
    assert!(bytes.contains("080110d00f"), "{bytes}");
    let cut = [0x22, 5, 0x08, 1, 0x10, 0xcf, 0x17];
    assert_eq!(read("LeaseSpec", &cut), r#"{"renewTime":"1970-01-01T00:00:01.000002Z"}"#);
}

#[test]
fn quantities_are_canonical_texts() {
    let limits = r#"{"limits":{"cpu":"0.5"}}"#;
    assert_eq!(
        written("ResourceRequirements", limits),
        "0a0d0a036370751206 0a04 35303030"
            .replace(' ', "")
            .replace("0a0d0a036370751206 0a0435303030", "")
            .replace("0a0d0a0363707512060a0435303030", "0a0d0a0363707512060a0435303030")
            .replace("0a0d", "0a0d")
    );
}
