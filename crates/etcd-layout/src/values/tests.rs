use pilothouse_apimachinery::testing::object;
use pilothouse_types::object::{Object, Revision};

use super::testing::{builtin, codec, custom};
use super::*;

/// The canonical text of a draft.
fn text(draft: &Draft) -> &str {
    std::str::from_utf8(&draft.bytes).unwrap()
}

fn decode_text(store: &str, value: &str) -> Result<DecodedObject, ValueError> {
    codec(MediaType::Protobuf).decode(&builtin(store), &Key::namespaced("ns", "a"), value.as_bytes())
}

/// The JSON that a value of this type has.
fn reencoded(store: &str, value: &str) -> String {
    let codec = codec(MediaType::Json);
    let decoded = codec.decode(&builtin(store), &Key::namespaced("ns", "a"), value.as_bytes()).unwrap();
    String::from_utf8(codec.encode(&builtin(store), &decoded.draft).unwrap()).unwrap()
}

const CONFIG_MAP: &str = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"ns","uid":"u","creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"x"}},"data":{"k":"<v>"}}"#;

#[test]
fn value_is_what_a_store_holds_without_the_revision() {
    let decoded = decode_text("configmaps", CONFIG_MAP).unwrap();
    let draft = &decoded.draft;
    assert_eq!(
        text(draft),
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"","creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"x"}},"data":{"k":"\u003cv\u003e"}}"#
    );
    assert_eq!((draft.key.as_str(), draft.labels.get("app")), ("ns/a", Some("x")));
    let stored = Object::new(draft.clone(), Revision(42));
    assert!(std::str::from_utf8(&stored.bytes).unwrap().contains(r#""resourceVersion":"42""#));
    assert!(std::str::from_utf8(&stored.item()).unwrap().starts_with(r#""metadata":"#));
}

#[test]
fn protobuf_value_has_the_bytes_of_the_reference() {
    let codec = codec(MediaType::Protobuf);
    let draft = decode_text("configmaps", CONFIG_MAP).unwrap().draft;
    let value = codec.encode(&builtin("configmaps"), &draft).unwrap();
    // Name, generateName, namespace, selfLink, uid, resourceVersion, generation, creationTimestamp, labels.
    let metadata = b"\x0a\x01a\x12\x00\x1a\x02ns\x22\x00\x2a\x01u\x32\x00\x38\x00\x42\x08\x08\x80\x81\xc8\xac\x06\x10\x00\x5a\x08\x0a\x03app\x12\x01x";
    let data = b"\x12\x08\x0a\x01k\x12\x03<v>";
    let raw = [&[0x0a, metadata.len() as u8], &metadata[..], data].concat();
    let expected =
        [b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12", &[raw.len() as u8][..], &raw, b"\x1a\x00\x22\x00"];
    assert_eq!(value, expected.concat());
    let again = codec.decode(&builtin("configmaps"), &Key::namespaced("ns", "a"), &value).unwrap();
    assert_eq!(again, DecodedObject { draft: again.draft.clone(), is_stale: false });
    assert_eq!(again.draft.bytes, draft.bytes);
}

#[test]
fn json_value_ends_with_a_line_break_and_yaml_is_sorted() {
    let draft = decode_text("configmaps", CONFIG_MAP).unwrap().draft;
    let value = |media| codec(media).encode(&builtin("configmaps"), &draft).unwrap();
    let json = CONFIG_MAP.replace('<', r"\u003c").replace('>', r"\u003e");
    assert_eq!(String::from_utf8(value(MediaType::Json)).unwrap(), format!("{json}\n"));
    assert_eq!(
        String::from_utf8(value(MediaType::Yaml)).unwrap(),
        "apiVersion: v1\ndata:\n  k: <v>\nkind: ConfigMap\nmetadata:\n  creationTimestamp: \"2024-01-01T00:00:00Z\"\n  \
         labels:\n    app: x\n  name: a\n  namespace: ns\n  uid: u\n"
    );
}

#[test]
fn values_in_every_encoding_are_read() {
    let draft = decode_text("configmaps", CONFIG_MAP).unwrap().draft;
    for written in MediaType::ALL {
        let value = codec(written).encode(&builtin("configmaps"), &draft).unwrap();
        for read in MediaType::ALL {
            let decoded = codec(read).decode(&builtin("configmaps"), &draft.key, &value).unwrap();
            assert_eq!(decoded.draft.bytes, draft.bytes, "{written:?}");
            assert_eq!(decoded.is_stale, read != written, "{written:?} {read:?}");
        }
    }
    let cbor = cbor::encode(&object(CONFIG_MAP));
    let decoded = codec(MediaType::Protobuf).decode(&builtin("configmaps"), &draft.key, &cbor).unwrap();
    assert_eq!(decoded.draft.bytes, draft.bytes);
}

#[test]
fn resource_version_and_self_link_of_a_value_are_ignored() {
    let value = CONFIG_MAP.replace(r#""uid":"u""#, r#""uid":"u","selfLink":"/x","resourceVersion":"7""#);
    let decoded = decode_text("configmaps", &value).unwrap();
    assert_eq!(decoded.draft, decode_text("configmaps", CONFIG_MAP).unwrap().draft);
}

#[test]
fn definitions_and_api_services_are_always_json() {
    let service = r#"{"kind":"APIService","apiVersion":"apiregistration.k8s.io/v1","metadata":{"name":"v1.x","creationTimestamp":null},"spec":{"group":"x","version":"v1","groupPriorityMinimum":1,"versionPriority":1},"status":{}}
"#;
    for media in MediaType::ALL {
        let (codec, resource) = (codec(media), builtin("apiservices.apiregistration.k8s.io"));
        let decoded = codec.decode(&resource, &Key::cluster("v1.x"), service.as_bytes()).unwrap();
        assert!(!decoded.is_stale);
        let value = codec.encode(&resource, &decoded.draft).unwrap();
        assert_eq!(String::from_utf8(value).unwrap(), service);
    }
}

const DEFINITION: &str = r#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","metadata":{"name":"kites.toys.example","creationTimestamp":null},"spec":{"group":"toys.example","version":"v1","names":{"plural":"kites","singular":"kite","kind":"Kite","listKind":"KiteList"},"scope":"Namespaced","validation":{"openAPIV3Schema":{"type":"object"}},"versions":[{"name":"v1","served":true,"storage":true},{"name":"v2","served":true,"storage":false}],"conversion":{"strategy":"None"},"preserveUnknownFields":false},"status":{"conditions":null,"acceptedNames":{"plural":"","kind":""},"storedVersions":["v1"]}}
"#;

#[test]
fn definitions_are_stored_in_v1beta1() {
    let store = "customresourcedefinitions.apiextensions.k8s.io";
    let codec = codec(MediaType::Protobuf);
    let decoded =
        codec.decode(&builtin(store), &Key::cluster("kites.toys.example"), DEFINITION.as_bytes()).unwrap();
    assert!(!decoded.is_stale, "{}", text(&decoded.draft));
    assert!(text(&decoded.draft).contains(concat!(
        r#""versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},"#,
        r#"{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}]"#
    )));
    let value = codec.encode(&builtin(store), &decoded.draft).unwrap();
    assert_eq!(String::from_utf8(value).unwrap(), DEFINITION);
}

#[test]
fn addresses_are_stored_in_the_beta_version() {
    let store = "ipaddresses.networking.k8s.io";
    let value = r#"{"kind":"IPAddress","apiVersion":"networking.k8s.io/v1beta1","metadata":{"name":"10.0.0.1","creationTimestamp":null},"spec":{"parentRef":{"resource":"services","namespace":"ns","name":"s"}}}"#;
    let decoded = decode_text(store, value).unwrap();
    assert!(text(&decoded.draft).starts_with(r#"{"kind":"IPAddress","apiVersion":"networking.k8s.io/v1","#));
    assert_eq!(reencoded(store, value), format!("{value}\n"));
    assert_eq!(reencoded(store, &value.replace("v1beta1", "v1")), format!("{value}\n"));
    let protobuf = codec(MediaType::Protobuf).encode(&builtin(store), &decoded.draft).unwrap();
    assert!(protobuf.starts_with(b"k8s\0\x0a\x26\x0a\x19networking.k8s.io/v1beta1\x12\x09IPAddress\x12"));
    assert!(
        !codec(MediaType::Protobuf)
            .decode(&builtin(store), &Key::cluster("10.0.0.1"), &protobuf)
            .unwrap()
            .is_stale
    );
}

#[test]
fn defaults_that_a_value_lacks_are_set_and_marked() {
    let value = r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"a","namespace":"ns"},"spec":{"ports":[{"port":80}]}}"#;
    let decoded = codec(MediaType::Json)
        .decode(&builtin("services"), &Key::namespaced("ns", "a"), value.as_bytes())
        .unwrap();
    assert!(text(&decoded.draft).contains(r#""sessionAffinity":"None""#));
    assert!(decoded.is_stale && decoded.draft.fields.get("~filled-in").is_some());
    let codec = codec(MediaType::Json);
    let value = codec.encode(&builtin("services"), &decoded.draft).unwrap();
    let again = codec.decode(&builtin("services"), &Key::namespaced("ns", "a"), &value).unwrap();
    assert!(!again.is_stale && again.draft.fields.get("~filled-in").is_none());
    assert_eq!(again.draft.bytes, decoded.draft.bytes);
}

#[test]
fn value_with_a_field_that_is_gone_is_stale() {
    // The name of the cluster, which releases before 1.24 have in all metadata.
    let metadata = b"\x0a\x01a\x12\x00\x1a\x02ns\x22\x00\x2a\x00\x32\x00\x38\x00\x42\x00\x7a\x00";
    let message = [&[0x0a, metadata.len() as u8], &metadata[..]].concat();
    let value = protobuf::envelope("v1", "ConfigMap", &message);
    let (codec, key) = (codec(MediaType::Protobuf), Key::namespaced("ns", "a"));
    let decoded = codec.decode(&builtin("configmaps"), &key, &value).unwrap();
    assert!(decoded.is_stale);
    let written = codec.encode(&builtin("configmaps"), &decoded.draft).unwrap();
    assert_eq!(written.len(), value.len() - 2);
    assert!(!codec.decode(&builtin("configmaps"), &key, &written).unwrap().is_stale);
}

#[test]
fn selectable_fields_are_those_of_a_write() {
    let value = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"ns"},"spec":{"nodeName":"n1","containers":[]},"status":{"phase":"Running"}}"#;
    let draft = decode_text("pods", value).unwrap().draft;
    assert_eq!(
        (draft.fields.get("spec.nodeName"), draft.fields.get("status.phase")),
        (Some("n1"), Some("Running"))
    );
}

#[test]
fn values_of_other_kinds_and_versions_are_refused_by_name() {
    let error = |store: &str, value: &str| decode_text(store, value).unwrap_err().to_string();
    assert_eq!(error("secrets", CONFIG_MAP), "secrets ns/a: the value is a v1 ConfigMap and no Secret");
    assert_eq!(
        error("configmaps", r#"{"kind":"ConfigMap","apiVersion":"v9"}"#),
        "configmaps ns/a: the value is in version v9 of ConfigMap, which cannot be converted: store it again with a server \
         that can read it"
    );
    for (value, reason) in [
        ("", "kind or apiVersion is missing"),
        ("{}", "kind or apiVersion is missing"),
        (r#"{"kind":"ConfigMap"}"#, "kind or apiVersion is missing"),
        (r#"{"kind":"ConfigMap","apiVersion":"a/b/c"}"#, "kind or apiVersion is missing"),
        (r#"{"kind":"ConfigMap","#, "it is no JSON object"),
        ("k8s\0", "bad envelope"),
        ("k8s\0\u{1}", "bad envelope"),
    ] {
        assert_eq!(
            error("configmaps", value),
            format!("configmaps ns/a: the value is malformed: {reason}"),
            "{value}"
        );
    }
}

#[test]
fn hostile_values_are_refused_before_they_take_memory() {
    let codec = codec(MediaType::Protobuf);
    let refused =
        |value: &[u8]| codec.decode(&builtin("configmaps"), &Key::namespaced("ns", "a"), value).unwrap_err();
    let too_large = |value: &[u8]| matches!(refused(value).reason, ValueErrorReason::TooLarge { .. });
    assert!(too_large(&vec![b'a'; VALUE_BYTES + 1]));
    let begin = r#"{"kind":"ConfigMap","apiVersion":"v1","x":"#;
    let many = format!("{begin}{}1]}}", "[".to_owned() + &r#"{"":1},"#.repeat(VALUE_BYTES / 8));
    assert!(too_large(many.as_bytes()));
    for nested in ["[".repeat(1 << 20), r#"{"a":"#.repeat(1 << 20)] {
        let value = format!("{begin}{nested}");
        assert!(matches!(
            refused(value.as_bytes()).reason,
            ValueErrorReason::Malformed(_) | ValueErrorReason::TooLarge { .. }
        ));
    }
    let aliases = "a: &a [x,x,x,x,x,x,x,x]\n".to_owned()
        + &(b'b'..=b'i')
            .map(|name| {
                let (name, before) = (name as char, (name - 1) as char);
                format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 8].join(","))
            })
            .collect::<String>();
    assert!(matches!(refused(aliases.as_bytes()).reason, ValueErrorReason::Malformed(_)));
    // An envelope that says that its message is longer than it is.
    assert!(matches!(
        refused(b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\xff\xff\xff\xff\x0f").reason,
        ValueErrorReason::Malformed(_)
    ));
}

const KITE: &str = r#"{"apiVersion":"toys.example/v2","kind":"Kite","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"b":"2"},"name":"a","namespace":"ns","uid":"u"},"spec":{"color":"red","size":2.5,"tail":{"b":[null],"z":1}},"zebra":1}
"#;

#[test]
fn custom_objects_are_json_with_sorted_fields() {
    let kites = custom("kites", "toys.example", "Namespaced");
    for media in MediaType::ALL {
        let codec = codec(media);
        let decoded = codec.decode(&kites, &Key::namespaced("ns", "a"), KITE.as_bytes()).unwrap();
        let draft = &decoded.draft;
        assert!(
            text(draft)
                .starts_with(r#"{"kind":"Kite","apiVersion":"toys.example/v2","metadata":{"name":"a","#)
        );
        assert!(text(draft).contains(r#""resourceVersion":"""#) && !decoded.is_stale);
        assert_eq!((draft.labels.get("b"), draft.fields.get("spec.color")), (Some("2"), Some("red")));
        let unsorted = KITE.replace(r#"{"b":[null],"z":1}"#, r#"{"z":1,"b":[null]}"#);
        let key = Key::namespaced("ns", "a");
        let unsorted = codec.decode(&kites, &key, unsorted.as_bytes()).unwrap();
        assert!(unsorted.is_stale && unsorted.draft.bytes == draft.bytes);
        assert_eq!(String::from_utf8(codec.encode(&kites, draft).unwrap()).unwrap(), KITE);
    }
}

#[test]
fn custom_objects_may_be_cbor_and_of_any_version() {
    let kites = custom("kites", "toys.example", "Namespaced");
    let key = Key::namespaced("ns", "a");
    let json_codec = codec(MediaType::Protobuf);
    let options = ValueOptions { custom_cbor: true, ..ValueOptions::default() };
    let cbor_codec =
        ValueCodec::new(Arc::new(Registry::builtin().unwrap()), options, EnabledFeatures::RELEASE);
    let draft = json_codec.decode(&kites, &key, KITE.as_bytes()).unwrap().draft;
    let value = cbor_codec.encode(&kites, &draft).unwrap();
    assert!(value.starts_with(&cbor::PREFIX));
    assert_eq!(
        cbor_codec.decode(&kites, &key, &value).unwrap(),
        DecodedObject { draft: draft.clone(), is_stale: false }
    );
    let decoded = json_codec.decode(&kites, &key, &value).unwrap();
    assert!(decoded.is_stale && decoded.draft.bytes == draft.bytes);

    let earlier = KITE.replace("toys.example/v2", "toys.example/v1");
    let decoded = json_codec.decode(&kites, &key, earlier.as_bytes()).unwrap();
    assert!(!decoded.is_stale && text(&decoded.draft).contains("toys.example/v1"));
    assert_eq!(decoded.draft.fields.get("spec.color"), Some("red"));

    for refused in [
        KITE.replace("Kite", "Hawk"),
        KITE.replace("toys.example", "other.example"),
        "kind: Kite\napiVersion: toys.example/v2\n".to_owned(),
        String::from_utf8(protobuf::envelope("toys.example/v2", "Kite", b"")).unwrap(),
    ] {
        let error = json_codec.decode(&kites, &key, refused.as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with("kites.toys.example ns/a: the value is "), "{error}");
    }
}

#[test]
fn draft_without_a_gap_is_corrupt() {
    let mut draft = decode_text("configmaps", CONFIG_MAP).unwrap().draft;
    draft.revision_offset += 1;
    let error = codec(MediaType::Json).encode(&builtin("configmaps"), &draft).unwrap_err();
    assert_eq!(error.to_string(), "configmaps ns/a: the stored object is corrupt");
    draft.bytes = b"{".to_vec().into();
    assert!(codec(MediaType::Protobuf).encode(&builtin("configmaps"), &draft).is_err());
}
