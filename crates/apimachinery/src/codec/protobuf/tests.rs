//! What is easily done wrong on this wire, one by one.

use std::sync::LazyLock;

use prost::Message as _;

use super::envelope::{Unknown, WatchEvent};
use super::*;
use crate::codec;
use crate::json;
use crate::schema::WireContent;

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

/// Whether a list of this type has its metadata first and its items second. All do but the list of partial objects in the first
/// beta of the meta group, whose numbers stand the other way round.
fn is_metadata_first(registry: &Registry, list: TypeId) -> bool {
    let is = |number: u32, name: &str| {
        let structure = registry.structure(list)?;
        match structure.slot(number)? {
            WireContent::Field(at) => Some(&*structure.fields.get(usize::from(at))?.name == name),
            WireContent::Inlined(..) => None,
        }
    };
    is(1, "metadata") == Some(true) && is(2, "items") == Some(true)
}

#[test]
fn the_envelope_names_the_kind_and_ends_with_two_empty_texts() {
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
    let text = r#"{"renewTime":"1970-01-01T00:00:01.000002Z"}"#;
    let bytes = written("LeaseSpec", text);
    assert!(bytes.contains("080110d00f"), "{bytes}");
    let cut = [0x22, 5, 0x08, 1, 0x10, 0xb7, 0x17];
    assert_eq!(read("LeaseSpec", &cut), r#"{"renewTime":"1970-01-01T00:00:01.000002Z"}"#);
}

#[test]
fn quantities_are_canonical_texts() {
    let limits = r#"{"limits":{"cpu":"0.5"}}"#;
    assert_eq!(written("ResourceRequirements", limits), "0a0d0a0363707512060a043530306d");
    let bare = [0x0a, 10, 0x0a, 1, b'm', 0x12, 5, 0x0a, 3, b'1', b'e', b'3'];
    assert_eq!(read("ResourceRequirements", &bare), r#"{"limits":{"m":"1e3"}}"#);
    let half = [0x0a, 10, 0x0a, 1, b'm', 0x12, 5, 0x0a, 3, b'0', b'.', b'5'];
    assert_eq!(read("ResourceRequirements", &half), r#"{"limits":{"m":"500m"}}"#);
    assert_eq!(read("ResourceRequirements", &[0x0a, 3, 0x0a, 1, b'm']), r#"{"limits":{"m":"0"}}"#);
    let empty = [0x0a, 7, 0x0a, 1, b'm', 0x12, 2, 0x0a, 0];
    assert!(read("ResourceRequirements", &empty).starts_with("quantities must match"));
    // A value that is absent is zero, and written.
    assert_eq!(written("ResourceMetricSource", "{}"), "0a00");
    assert_eq!(written("DeviceCapacity", "{}"), "0a030a0130");
}

#[test]
fn integers_that_may_be_texts_are_written_whole() {
    // 4 of a service's port is its target.
    assert!(written("ServicePort", "{}").contains("2206080010001a00"));
    assert!(written("ServicePort", r#"{"targetPort":80}"#).contains("2206080010501a00"));
    assert!(written("ServicePort", r#"{"targetPort":"web"}"#).contains("2209080110001a03776562"));
    let both = [0x22, 9, 0x08, 0, 0x10, 80, 0x1a, 3, b'w', b'e', b'b'];
    assert_eq!(read("ServicePort", &both), r#"{"targetPort":80}"#);
    let neither = [0x22, 2, 0x08, 2];
    assert_eq!(read("ServicePort", &neither), "impossible IntOrString.Type");
    let twice = [0x22, 4, 0x08, 1, 0x10, 9, 0x22, 5, 0x1a, 3, b'w', b'e', b'b'];
    assert_eq!(read("ServicePort", &twice), r#"{"targetPort":"web"}"#);
}

#[test]
fn values_without_a_type_are_json_in_bytes() {
    // A value is always written, a pointer is not; nothing at all is no bytes.
    assert!(written("ControllerRevision", "{}").ends_with("12001800"));
    assert!(written("ControllerRevision", r#"{"data":{"b":1,"a":2}}"#).contains(&hex(br#"{"a":2,"b":1}"#)));
    assert_eq!(read("ControllerRevision", &[0x12, 0]), "{}");
    assert_eq!(read("ControllerRevision", &[0x12, 6, 0x0a, 4, b'n', b'u', b'l', b'l']), "{}");
    assert!(read("ControllerRevision", &[0x12, 3, 0x0a, 1, b'{']).contains("field Data holds no JSON"));
    assert!(!written("ManagedFieldsEntry", "{}").contains("3a"));
}

#[test]
fn a_schema_may_be_something_simpler() {
    let of = |text: &str| written("JSONSchemaProps", text);
    assert!(of(r#"{"additionalProperties":false}"#).contains("f201020800"));
    assert!(of(r#"{"additionalProperties":true}"#).contains("f201020801"));
    assert!(of(r#"{"additionalProperties":{}}"#).contains("080112"), "both are written");
    for text in [
        r#"{"additionalProperties":false}"#,
        r#"{"additionalProperties":{"type":"string"}}"#,
        r#"{"items":{"type":"string"}}"#,
        r#"{"items":[{"type":"string"},{}]}"#,
        r#"{"dependencies":{"a":["b","c"],"d":{"type":"object"}}}"#,
        r#"{"default":{"a":1},"enum":["a",1,null]}"#,
    ] {
        let value = codec::decode_stored(text.as_bytes(), ty("JSONSchemaProps"), &REGISTRY).unwrap();
        assert_eq!(read("JSONSchemaProps", &message(&REGISTRY, ty("JSONSchemaProps"), &value)), text);
    }
    // Where both are said, the list counts.
    let both = [0xc2, 0x01, 6, 0x0a, 0, 0x12, 2, 0x2a, 0];
    assert_eq!(read("JSONSchemaProps", &both), r#"{"items":[{}]}"#);
}

#[test]
fn presence_follows_the_type() {
    // Values are written also when zero, pointers only when set.
    assert_eq!(written("OwnerReference", "{}"), "0a001a0022002a00");
    assert_eq!(written("OwnerReference", r#"{"controller":false}"#), "0a001a0022002a003000");
    let zeros = [0x0a, 0, 0x1a, 0, 0x22, 0, 0x2a, 0, 0x30, 0];
    assert_eq!(read("OwnerReference", &zeros), r#"{"controller":false}"#);
    // A value struct that says nothing is nothing; behind a pointer it is something.
    assert_eq!(read("Pod", &[0x0a, 0, 0x12, 0]), "{}");
    assert_eq!(read("DeleteOptions", &[0x12, 0]), r#"{"preconditions":{}}"#);
    // Zero after a number takes it back.
    assert_eq!(read("ObjectMeta", &[0x38, 7, 0x38, 0]), "{}");
}

#[test]
fn bytes_may_be_empty_or_absent() {
    assert_eq!(
        written("ConfigMap", r#"{"binaryData":{"a":"","b":null,"c":"aGk="}}"#)
            .split_at(written("ConfigMap", "{}").len())
            .1,
        "1a050a016112001a030a01621a070a016312026869"
    );
    assert_eq!(read("ConfigMap", &[0x1a, 3, 0x0a, 1, b'b']), r#"{"binaryData":{"b":""}}"#);
    // The request of a certificate is printed in any case, so that it is empty is kept.
    assert_eq!(read("CertificateSigningRequestSpec", &[0x0a, 0]), r#"{"request":""}"#);
}

#[test]
fn entries_of_maps_are_sorted_and_have_both_parts() {
    let end = written("ConfigMap", "{}").len();
    let entries = written("ConfigMap", r#"{"data":{"b":"","a":"1"}}"#);
    assert_eq!(&entries[end..], "12060a016112013112050a01621200");
    assert_eq!(read("ConfigMap", &[0x12, 3, 0x12, 1, b'x']), r#"{"data":{"":"x"}}"#);
    let again = [0x12, 6, 0x0a, 1, b'a', 0x12, 1, b'1', 0x12, 6, 0x12, 1, b'2', 0x0a, 1, b'a'];
    assert_eq!(read("ConfigMap", &again), r#"{"data":{"a":"2"}}"#);
}

#[test]
fn wrappers_are_messages() {
    assert_eq!(written("UserInfo", r#"{"extra":{"k":["a"]}}"#), "0a00120022080a016b12030a0161");
    assert_eq!(read("UserInfo", &[0x22, 3, 0x0a, 1, b'k']), r#"{"extra":{"k":[]}}"#);
    assert!(!written("APIResource", "{}").contains("22"));
    assert!(written("APIResource", r#"{"verbs":["get"]}"#).contains("22050a03676574"));
}

#[test]
fn numbers_are_written_apart_and_read_packed_too() {
    assert!(written("PodSecurityContext", r#"{"supplementalGroups":[1,300]}"#).contains("200120ac02"));
    let packed = [0x22, 3, 1, 0xac, 2, 0x20, 7];
    assert_eq!(read("PodSecurityContext", &packed), r#"{"supplementalGroups":[1,300,7]}"#);
    assert_eq!(read("PodSecurityContext", &[0x22, 0]), "{}");
    assert_eq!(read("PodSecurityContext", &[0x22, 1, 0x80]), "unexpected EOF");
    // A negative number has ten bytes, also one of 32 bits.
    let negative = written("ServicePort", r#"{"nodePort":-1}"#);
    assert!(negative.contains("28ffffffffffffffffff01"), "{negative}");
}

#[test]
fn a_message_that_stands_twice_is_merged() {
    let twice = [0x0a, 3, 0x0a, 1, b'a', 0x0a, 3, 0x1a, 1, b'b'];
    assert_eq!(read("ConfigMap", &twice), r#"{"metadata":{"name":"a","namespace":"b"}}"#);
}

#[test]
fn numbers_nobody_knows_are_dropped() {
    let strange = [0xf8, 0x7f, 1, 0xfa, 0x7f, 1, 9, 0xfb, 0x7f, 0x08, 1, 0xfc, 0x7f, 0x12, 0];
    assert_eq!(read("Pod", &strange), "{}");
}

#[test]
fn what_is_malformed_is_refused() {
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
        assert_eq!(read("ConfigMap", message), fault, "{message:x?}");
    }
}

#[test]
fn what_holds_itself_is_bounded() {
    // `not` of a schema, within itself a million times, the lengths written from the inside.
    let mut out = writer::Writer::with_room(0);
    for _ in 0..1_000_000 {
        out.close(28, 0);
    }
    assert_eq!(read("JSONSchemaProps", &out.finish()), "exceeded max depth");
    let deep = format!("{}{}", "[".repeat(99), "]".repeat(99));
    let mut out = writer::Writer::with_room(0);
    out.bytes(1, deep.as_bytes());
    out.close(2, 0);
    assert_eq!(read("ControllerRevision", &out.finish()).len(), deep.len() + r#"{"data":}"#.len());
    let deeper = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let mut out = writer::Writer::with_room(0);
    out.bytes(1, deeper.as_bytes());
    out.close(2, 0);
    assert_eq!(read("ControllerRevision", &out.finish()), "exceeded max depth");
}

#[test]
fn a_list_in_pieces_is_the_list_in_one() {
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
fn the_list_with_its_items_first_in_pieces_is_the_list_in_one() {
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
fn every_list_but_one_has_its_metadata_first() {
    let lists = REGISTRY.kinds().filter(|(_, ty)| {
        let structure = REGISTRY.structure(*ty).unwrap();
        structure.field("items").is_some() && structure.field("metadata").is_some()
    });
    let not: Vec<String> = lists
        .filter(|(_, ty)| !is_metadata_first(&REGISTRY, *ty))
        .map(|(kind, _)| kind.to_string())
        .collect();
    assert_eq!(not, ["meta.k8s.io/v1beta1, Kind=PartialObjectMetadataList"]);
}

#[test]
fn a_frame_of_a_watch_has_a_length_and_no_magic_of_its_own() {
    let frame = watch_frame("ADDED", b"k8s\0object");
    assert_eq!(frame[..4], [0, 0, 0, (frame.len() - 4) as u8]);
    let event = WatchEvent::decode(&frame[4..]).unwrap();
    assert_eq!(event.kind.as_deref(), Some("ADDED"));
    assert_eq!(event.object.unwrap().raw.unwrap(), b"k8s\0object");
}

#[test]
fn kinds_of_earlier_releases_are_unknown_to_a_server() {
    assert!(REGISTRY.kind("extensions", "v1beta1", "Ingress").is_none());
    let complete = Registry::complete().unwrap();
    assert!(complete.kind("extensions", "v1beta1", "Ingress").is_some());
}
