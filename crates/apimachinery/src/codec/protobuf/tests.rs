//! The details of the wire format that are easily done wrong.

use std::sync::LazyLock;

use prost::Message as _;

use super::envelope::{Unknown, WatchEvent};
use super::*;
use crate::codec;
use crate::json;
use crate::schema::WireContent;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

fn ty(name: &str) -> TypeId {
    let mut ids = (0..REGISTRY.len()).map(|index| TypeId(index as u32));
    ids.find(|id| REGISTRY.structure(*id).is_some_and(|structure| &*structure.name == name)).unwrap()
}

/// The message for the JSON of a type, in hexadecimal.
fn encode_hex(name: &str, text: &str) -> String {
    let value = codec::decode_stored(text.as_bytes(), ty(name), &REGISTRY).unwrap();
    hex(&message(&REGISTRY, ty(name), &value))
}

/// The JSON of a decoded message, or the error.
fn decode_json(name: &str, message: &[u8]) -> String {
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

/// Whether a list of this type has its metadata first and its items second. All do except PartialObjectMetadataList in
/// meta.k8s.io/v1beta1, whose field numbers are swapped.
fn is_metadata_first(registry: &Registry, list: TypeId) -> bool {
    let has_name = |number: u32, name: &str| {
        let structure = registry.structure(list)?;
        match structure.slot(number)? {
            WireContent::Field(index) => Some(&*structure.fields.get(usize::from(index))?.name == name),
            WireContent::Inlined(..) => None,
        }
    };
    has_name(1, "metadata") == Some(true) && has_name(2, "items") == Some(true)
}

#[test]
fn envelope_has_type_meta_and_empty_content_fields() {
    let value = json::read(br#"{"kind":"ConfigMap","apiVersion":"v1","data":{"a":"b"}}"#).unwrap();
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
fn invalid_bodies_have_the_reference_message() {
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
fn missing_kind_and_api_version_of_envelope_are_set() {
    for (api_version, kind) in [("", ""), ("v1", ""), ("", "ConfigMap"), ("no/such/version", "ConfigMap")] {
        let decoded = decode_object(&body(api_version, kind, &[]), &config_map(), &REGISTRY).unwrap();
        assert_eq!(codec::to_json(&decoded.value), br#"{"apiVersion":"v1","kind":"ConfigMap"}"#);
    }
}

#[test]
fn delete_options_may_have_any_api_version() {
    let expected = GroupVersionKind::new("meta.k8s.io", "v1", "DeleteOptions");
    for api_version in ["v1", "apps/v1", "meta.k8s.io/v1", "example.com/v3", ""] {
        let body = body(api_version, "DeleteOptions", &[0x08, 0]);
        let decoded = decode_any_version(&body, &expected, &REGISTRY).unwrap();
        assert_eq!(decoded.value.get("gracePeriodSeconds"), Some(&Value::Int(0)), "{api_version}");
    }
    assert!(decode_any_version(&body("v1", "Pod", &[]), &expected, &REGISTRY).is_err());
}

#[test]
fn kind_of_nested_objects_is_not_encoded() {
    let text = r#"{"volumeClaimTemplates":[{"kind":"PersistentVolumeClaim","apiVersion":"v1"}]}"#;
    let bare = r#"{"volumeClaimTemplates":[{}]}"#;
    assert_eq!(encode_hex("StatefulSetSpec", text), encode_hex("StatefulSetSpec", bare));
}

#[test]
fn inlined_types_are_nested_and_always_written() {
    assert_eq!(encode_hex("SecretEnvSource", "{}"), "0a020a00");
    assert_eq!(encode_hex("SecretEnvSource", r#"{"name":"a","optional":false}"#), "0a030a01611000");
    assert_eq!(
        decode_json("SecretEnvSource", &[0x0a, 3, 0x0a, 1, b'a', 0x10, 0]),
        r#"{"name":"a","optional":false}"#
    );
    let rule = r#"{"resourceNames":["a"],"operations":["*"],"apiGroups":["b"]}"#;
    assert_eq!(encode_hex("NamedRuleWithOperations", rule), "0a016112080a012a12030a0162");
    let message = [0x0a, 1, b'a', 0x12, 8, 0x0a, 1, b'*', 0x12, 3, 0x0a, 1, b'b'];
    assert_eq!(
        decode_json("NamedRuleWithOperations", &message),
        r#"{"apiGroups":["b"],"operations":["*"],"resourceNames":["a"]}"#
    );
}

#[test]
fn times_have_seconds_and_zero_time_is_empty() {
    // 8 of ObjectMeta is a value, 9 a pointer.
    let meta = encode_hex("ObjectMeta", "{}");
    assert!(meta.ends_with("38004200"), "{meta}");
    let meta = encode_hex("ObjectMeta", r#"{"deletionTimestamp":"1970-01-01T00:00:01Z"}"#);
    assert!(meta.ends_with("42004a0408011000"), "{meta}");
    assert_eq!(decode_json("ObjectMeta", &[0x42, 0, 0x4a, 0]), "{}");
    let fraction = [0x42, 5, 0x08, 1, 0x10, 0xf4, 3];
    assert_eq!(decode_json("ObjectMeta", &fraction), r#"{"creationTimestamp":"1970-01-01T00:00:01Z"}"#);
    // An empty message is the zero time, a message without seconds is 1970.
    assert_eq!(
        decode_json("ObjectMeta", &[0x42, 2, 0x10, 0]),
        r#"{"creationTimestamp":"1970-01-01T00:00:00Z"}"#
    );
    let far = [0x42, 10, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    assert!(decode_json("ObjectMeta", &far).contains("out of range"));
}

#[test]
fn microseconds_are_truncated() {
    let text = r#"{"renewTime":"1970-01-01T00:00:01.000002Z"}"#;
    let bytes = encode_hex("LeaseSpec", text);
    assert!(bytes.contains("080110d00f"), "{bytes}");
    let cut = [0x22, 5, 0x08, 1, 0x10, 0xb7, 0x17];
    assert_eq!(decode_json("LeaseSpec", &cut), r#"{"renewTime":"1970-01-01T00:00:01.000002Z"}"#);
}

#[test]
fn quantities_are_canonical_texts() {
    let limits = r#"{"limits":{"cpu":"0.5"}}"#;
    assert_eq!(encode_hex("ResourceRequirements", limits), "0a0d0a0363707512060a043530306d");
    let bare = [0x0a, 10, 0x0a, 1, b'm', 0x12, 5, 0x0a, 3, b'1', b'e', b'3'];
    assert_eq!(decode_json("ResourceRequirements", &bare), r#"{"limits":{"m":"1e3"}}"#);
    let half = [0x0a, 10, 0x0a, 1, b'm', 0x12, 5, 0x0a, 3, b'0', b'.', b'5'];
    assert_eq!(decode_json("ResourceRequirements", &half), r#"{"limits":{"m":"500m"}}"#);
    assert_eq!(decode_json("ResourceRequirements", &[0x0a, 3, 0x0a, 1, b'm']), r#"{"limits":{"m":"0"}}"#);
    let empty = [0x0a, 7, 0x0a, 1, b'm', 0x12, 2, 0x0a, 0];
    assert!(decode_json("ResourceRequirements", &empty).starts_with("quantities must match"));
    // An absent value is encoded as zero.
    assert_eq!(encode_hex("ResourceMetricSource", "{}"), "0a00");
    assert_eq!(encode_hex("DeviceCapacity", "{}"), "0a030a0130");
}

#[test]
fn int_or_string_is_encoded_with_all_fields() {
    // 4 of a service's port is its target.
    assert!(encode_hex("ServicePort", "{}").contains("2206080010001a00"));
    assert!(encode_hex("ServicePort", r#"{"targetPort":80}"#).contains("2206080010501a00"));
    assert!(encode_hex("ServicePort", r#"{"targetPort":"web"}"#).contains("2209080110001a03776562"));
    let both = [0x22, 9, 0x08, 0, 0x10, 80, 0x1a, 3, b'w', b'e', b'b'];
    assert_eq!(decode_json("ServicePort", &both), r#"{"targetPort":80}"#);
    let neither = [0x22, 2, 0x08, 2];
    assert_eq!(decode_json("ServicePort", &neither), "impossible IntOrString.Type");
    let twice = [0x22, 4, 0x08, 1, 0x10, 9, 0x22, 5, 0x1a, 3, b'w', b'e', b'b'];
    assert_eq!(decode_json("ServicePort", &twice), r#"{"targetPort":"web"}"#);
}

#[test]
fn raw_extensions_are_json_in_bytes() {
    // A value is always encoded, a pointer is not; an absent value has no bytes.
    assert!(encode_hex("ControllerRevision", "{}").ends_with("12001800"));
    assert!(
        encode_hex("ControllerRevision", r#"{"data":{"b":1,"a":2}}"#).contains(&hex(br#"{"a":2,"b":1}"#))
    );
    assert_eq!(decode_json("ControllerRevision", &[0x12, 0]), "{}");
    assert_eq!(decode_json("ControllerRevision", &[0x12, 6, 0x0a, 4, b'n', b'u', b'l', b'l']), "{}");
    assert!(
        decode_json("ControllerRevision", &[0x12, 3, 0x0a, 1, b'{']).contains("field Data holds no JSON")
    );
    assert!(!encode_hex("ManagedFieldsEntry", "{}").contains("3a"));
}

#[test]
fn json_schema_unions_are_encoded() {
    let schema = |text: &str| encode_hex("JSONSchemaProps", text);
    assert!(schema(r#"{"additionalProperties":false}"#).contains("f201020800"));
    assert!(schema(r#"{"additionalProperties":true}"#).contains("f201020801"));
    assert!(schema(r#"{"additionalProperties":{}}"#).contains("080112"), "both are written");
    for text in [
        r#"{"additionalProperties":false}"#,
        r#"{"additionalProperties":{"type":"string"}}"#,
        r#"{"items":{"type":"string"}}"#,
        r#"{"items":[{"type":"string"},{}]}"#,
        r#"{"dependencies":{"a":["b","c"],"d":{"type":"object"}}}"#,
        r#"{"default":{"a":1},"enum":["a",1,null]}"#,
    ] {
        let value = codec::decode_stored(text.as_bytes(), ty("JSONSchemaProps"), &REGISTRY).unwrap();
        assert_eq!(decode_json("JSONSchemaProps", &message(&REGISTRY, ty("JSONSchemaProps"), &value)), text);
    }
    // If both are set, the list wins.
    let both = [0xc2, 0x01, 6, 0x0a, 0, 0x12, 2, 0x2a, 0];
    assert_eq!(decode_json("JSONSchemaProps", &both), r#"{"items":[{}]}"#);
}

#[test]
fn presence_follows_the_pointer_of_the_type() {
    // Values are encoded also when zero, pointers only when set.
    assert_eq!(encode_hex("OwnerReference", "{}"), "0a001a0022002a00");
    assert_eq!(encode_hex("OwnerReference", r#"{"controller":false}"#), "0a001a0022002a003000");
    let zeros = [0x0a, 0, 0x1a, 0, 0x22, 0, 0x2a, 0, 0x30, 0];
    assert_eq!(decode_json("OwnerReference", &zeros), r#"{"controller":false}"#);
    // An empty struct is absent as a value, but present behind a pointer.
    assert_eq!(decode_json("Pod", &[0x0a, 0, 0x12, 0]), "{}");
    assert_eq!(decode_json("DeleteOptions", &[0x12, 0]), r#"{"preconditions":{}}"#);
    // A zero after a number replaces it.
    assert_eq!(decode_json("ObjectMeta", &[0x38, 7, 0x38, 0]), "{}");
}

#[test]
fn empty_and_absent_bytes_differ() {
    assert_eq!(
        encode_hex("ConfigMap", r#"{"binaryData":{"a":"","b":null,"c":"aGk="}}"#)
            .split_at(encode_hex("ConfigMap", "{}").len())
            .1,
        "1a050a016112001a030a01621a070a016312026869"
    );
    assert_eq!(decode_json("ConfigMap", &[0x1a, 3, 0x0a, 1, b'b']), r#"{"binaryData":{"b":""}}"#);
    // The request of a certificate is always encoded, so an empty one is kept.
    assert_eq!(decode_json("CertificateSigningRequestSpec", &[0x0a, 0]), r#"{"request":""}"#);
}

#[test]
fn map_entries_are_sorted_and_have_key_and_value() {
    let end = encode_hex("ConfigMap", "{}").len();
    let entries = encode_hex("ConfigMap", r#"{"data":{"b":"","a":"1"}}"#);
    assert_eq!(&entries[end..], "12060a016112013112050a01621200");
    assert_eq!(decode_json("ConfigMap", &[0x12, 3, 0x12, 1, b'x']), r#"{"data":{"":"x"}}"#);
    let again = [0x12, 6, 0x0a, 1, b'a', 0x12, 1, b'1', 0x12, 6, 0x12, 1, b'2', 0x0a, 1, b'a'];
    assert_eq!(decode_json("ConfigMap", &again), r#"{"data":{"a":"2"}}"#);
}

#[test]
fn named_lists_are_messages() {
    assert_eq!(encode_hex("UserInfo", r#"{"extra":{"k":["a"]}}"#), "0a00120022080a016b12030a0161");
    assert_eq!(decode_json("UserInfo", &[0x22, 3, 0x0a, 1, b'k']), r#"{"extra":{"k":[]}}"#);
    assert!(!encode_hex("APIResource", "{}").contains("22"));
    assert!(encode_hex("APIResource", r#"{"verbs":["get"]}"#).contains("22050a03676574"));
}

#[test]
fn number_lists_are_encoded_unpacked_and_decoded_packed_too() {
    assert!(encode_hex("PodSecurityContext", r#"{"supplementalGroups":[1,300]}"#).contains("200120ac02"));
    let packed = [0x22, 3, 1, 0xac, 2, 0x20, 7];
    assert_eq!(decode_json("PodSecurityContext", &packed), r#"{"supplementalGroups":[1,300,7]}"#);
    assert_eq!(decode_json("PodSecurityContext", &[0x22, 0]), "{}");
    assert_eq!(decode_json("PodSecurityContext", &[0x22, 1, 0x80]), "unexpected EOF");
    // A negative number has ten bytes, also one of 32 bits.
    let negative = encode_hex("ServicePort", r#"{"nodePort":-1}"#);
    assert!(negative.contains("28ffffffffffffffffff01"), "{negative}");
}

#[test]
fn repeated_message_is_merged() {
    let twice = [0x0a, 3, 0x0a, 1, b'a', 0x0a, 3, 0x1a, 1, b'b'];
    assert_eq!(decode_json("ConfigMap", &twice), r#"{"metadata":{"name":"a","namespace":"b"}}"#);
}

#[test]
fn unknown_field_numbers_are_dropped() {
    let strange = [0xf8, 0x7f, 1, 0xfa, 0x7f, 1, 9, 0xfb, 0x7f, 0x08, 1, 0xfc, 0x7f, 0x12, 0];
    assert_eq!(decode_json("Pod", &strange), "{}");
}

#[test]
fn malformed_messages_are_refused() {
    for (message, fault) in [
        (&[0x0a, 2, 0x0a][..], "unexpected EOF"),
        (&[0x0b], "proto: wrong wireType = 3 for field ObjectMeta"),
        (&[0x0c], "proto: ConfigMap: wiretype end group for non-group"),
        (&[0x00], "proto: ConfigMap: illegal tag 0 (wire type 0)"),
        (&[0x0e], "proto: wrong wireType = 6 for field ObjectMeta"),
        (&[0x7e], "proto: illegal wireType 6"),
        (&[0x0a, 3, 0x0a, 1, 0xff], "proto: field Name contains invalid UTF-8"),
        (&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], "unexpected EOF"),
        (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], "proto: integer overflow"),
        (&[0x0a, 2, 0x2d, 1], "proto: wrong wireType = 5 for field UID"),
    ] {
        assert_eq!(decode_json("ConfigMap", message), fault, "{message:x?}");
    }
}

#[test]
fn recursion_of_messages_is_bounded() {
    // `not` of a schema, nested in itself a million times, written from the inside.
    let mut out = writer::Writer::with_capacity(0);
    for _ in 0..1_000_000 {
        out.close(28, 0);
    }
    assert_eq!(decode_json("JSONSchemaProps", &out.finish()), "exceeded max depth");
    let deep = format!("{}{}", "[".repeat(99), "]".repeat(99));
    let mut out = writer::Writer::with_capacity(0);
    out.bytes(1, deep.as_bytes());
    out.close(2, 0);
    assert_eq!(decode_json("ControllerRevision", &out.finish()).len(), deep.len() + r#"{"data":}"#.len());
    let deeper = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let mut out = writer::Writer::with_capacity(0);
    out.bytes(1, deeper.as_bytes());
    out.close(2, 0);
    assert_eq!(decode_json("ControllerRevision", &out.finish()), "exceeded max depth");
}

#[test]
fn list_assembled_from_items_equals_encoded_list() {
    let text = br#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},
        "items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"data":{"k":"v"}}]}"#;
    let kind = GroupVersionKind::new("", "v1", "ConfigMapList");
    let list = codec::decode_object(text, &kind, &REGISTRY).unwrap().value;
    let whole = encode_object(&REGISTRY, ty("ConfigMapList"), &list);

    let mut items = Vec::new();
    for item in list.get("items").unwrap().items() {
        let item = message(&REGISTRY, ty("ConfigMap"), item);
        items.extend_from_slice(&ListFields::MetadataFirst.item_header(item.len()));
        items.extend_from_slice(&item);
    }
    let (meta, fields) = (list.get("metadata").unwrap(), ListFields::MetadataFirst);
    let (prefix, suffix) = list_envelope("v1", "ConfigMapList", fields, meta, &REGISTRY, items.len());
    assert_eq!([prefix, items, suffix].concat(), whole);
    assert_eq!(decode_object(&whole, &kind, &REGISTRY).unwrap().value, list);
}

#[test]
fn list_with_items_first_assembled_equals_encoded_list() {
    let text = br#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1beta1",
        "metadata":{"resourceVersion":"7","continue":"c"},
        "items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b","labels":{"k":"v"}}}]}"#;
    let kind = GroupVersionKind::new("meta.k8s.io", "v1beta1", "PartialObjectMetadataList");
    let list = json::read(text).unwrap();
    let whole = encode_object(&REGISTRY, REGISTRY.lookup(&kind).unwrap(), &list);
    let (mut items, item_type) = (Vec::new(), REGISTRY.meta("PartialObjectMetadata").unwrap());
    for item in list.get("items").unwrap().items() {
        let item = message(&REGISTRY, item_type, item);
        items.extend_from_slice(&ListFields::ItemsFirst.item_header(item.len()));
        items.extend_from_slice(&item);
    }
    let (meta, fields) = (list.get("metadata").unwrap(), ListFields::ItemsFirst);
    let (prefix, suffix) =
        list_envelope(&kind.api_version(), &kind.kind, fields, meta, &REGISTRY, items.len());
    assert_eq!([prefix, items, suffix].concat(), whole);
}

#[test]
fn all_lists_except_one_have_metadata_first() {
    let lists = REGISTRY.kinds().filter(|(_, ty)| {
        let structure = REGISTRY.structure(*ty).unwrap();
        structure.field("items").is_some() && structure.field("metadata").is_some()
    });
    let others: Vec<String> = lists
        .filter(|(_, ty)| !is_metadata_first(&REGISTRY, *ty))
        .map(|(kind, _)| kind.to_string())
        .collect();
    assert_eq!(others, ["meta.k8s.io/v1beta1, Kind=PartialObjectMetadataList"]);
}

#[test]
fn watch_frame_has_length_and_no_magic_of_its_own() {
    let frame = watch_frame("ADDED", b"k8s\0object");
    assert_eq!(frame[..4], [0, 0, 0, (frame.len() - 4) as u8]);
    let event = WatchEvent::decode(&frame[4..]).unwrap();
    assert_eq!(event.kind.as_deref(), Some("ADDED"));
    assert_eq!(event.object.unwrap().raw.unwrap(), b"k8s\0object");
}

#[test]
fn removed_kinds_are_only_in_the_complete_registry() {
    assert!(REGISTRY.kind("extensions", "v1beta1", "Ingress").is_none());
    let complete = Registry::complete().unwrap();
    assert!(complete.kind("extensions", "v1beta1", "Ingress").is_some());
}
