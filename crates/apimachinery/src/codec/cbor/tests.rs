use proptest::prelude::*;

use super::*;

fn kind(group: &str, version: &str, kind: &str) -> GroupVersionKind {
    GroupVersionKind::new(group, version, kind)
}

/// The CBOR of JSON text.
fn cbor(text: &str) -> Vec<u8> {
    from_json(text.as_bytes()).unwrap()
}

fn decode(name: &str, body: &[u8]) -> Result<Decoded, DecodeError> {
    decode_object(body, &kind("", "v1", name), &Registry::builtin().unwrap())
}

fn refusal(name: &str, body: &[u8]) -> String {
    decode(name, body).unwrap_err().message
}

fn to_json_text(value: &Value) -> String {
    String::from_utf8(json::to_json(value)).unwrap()
}

#[test]
fn encoding_is_deterministic() {
    for (text, bytes) in [
        ("null", "f6"),
        ("true", "f5"),
        ("0", "00"),
        ("-1", "20"),
        ("500", "1901f4"),
        ("9223372036854775807", "1b7fffffffffffffff"),
        ("-9223372036854775808", "3b7fffffffffffffff"),
        ("1.5", "f93e00"),
        ("100000.5", "fa47c35040"),
        ("0.1", "fb3fb999999999999a"),
        ("5.960464477539063e-8", "f90001"),
        (r#""a""#, "4161"),
        ("[]", "80"),
        (r#"{"bb":1,"a":2,"c":3}"#, "a341610241630342626201"),
    ] {
        assert_eq!(hex(&cbor(text)), format!("d9d9f7{bytes}"), "{text}");
    }
}

#[test]
fn bytes_are_encoded_with_tag_and_decoded_from_text() {
    let registry = Registry::builtin().unwrap();
    let secret = registry.kind("", "v1", "Secret").unwrap();
    let decoded = decode("Secret", &cbor(r#"{"data":{"k":"AQI="}}"#)).unwrap().value;
    assert_eq!(decoded.get_path(&["data", "k"]).and_then(Value::as_str), Some("AQI="));
    let bytes = encode_object(&registry, secret, &decoded, EmptyLists::AsStored);
    assert!(hex(&bytes).contains("416bd6420102"), "key k, tag 22, two bytes: {}", hex(&bytes));
    assert_eq!(decode("Secret", &bytes).unwrap().value, decoded);
    assert_eq!(read(&bytes).unwrap().get_path(&["data", "k"]).and_then(Value::as_str), Some("AQI="));
    assert_eq!(
        refusal("Secret", &cbor(r#"{"data":{"k":"A?"}}"#)),
        "Secret in version \"v1\" cannot be handled as a Secret: cbor: failed to decode base64 from byte string: illegal base64 data at input byte 1"
    );
    // A list of numbers is bytes too.
    let list = b"\xa1\x44data\xa1\x41k\x82\x01\x02";
    assert_eq!(decode("Secret", list).unwrap().value.get_path(&["data"]), decoded.get_path(&["data"]));
}

#[test]
fn tags_determine_the_text_of_bytes() {
    for (bytes, text) in [
        (&b"\x41a"[..], "a"),
        (b"\x61a", "a"),
        (b"\xd5\x43\xfb\xff\xfe", "-__-"),
        (b"\xd6\x43\xfb\xff\xfe", "+//+"),
        (b"\xd7\x42\x01\xff", "01ff"),
        (b"\xd6\xd7\x42\x01\xff", "01ff"),
        (b"\x42a\xff", "a\u{fffd}"),
        (b"\x5f\x41a\x41b\xff", "ab"),
        (b"\xc0\x74\x32\x30\x32\x34-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
        (b"\xc1\x00", "1970-01-01T00:00:00Z"),
        (b"\xc1\xf9\x3e\x00", "1970-01-01T00:00:01.5Z"),
        (b"\xc1\x20", "1969-12-31T23:59:59Z"),
    ] {
        assert_eq!(read(bytes).unwrap(), Value::from(text), "{bytes:02x?}");
    }
    assert_eq!(to_json_text(&read(b"\xd6\xa1\x41a\x81\x41b").unwrap()), r#"{"YQ==":["Yg=="]}"#);
}

#[test]
fn values_without_json_equivalent_are_refused() {
    for (bytes, message) in [
        (
            &b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff"[..],
            "cbor: cannot unmarshal positive integer into Go value of type int64 (18446744073709551615 overflows Go's int64)",
        ),
        (
            b"\x3b\xff\xff\xff\xff\xff\xff\xff\xff",
            "cbor: cannot unmarshal negative integer into Go value of type int64 (-18446744073709551616 overflows Go's int64)",
        ),
        (
            b"\xf7",
            "cbor: data item of cbor type primitives is not accepted by protocol: simple value 23 is not recognized",
        ),
        (
            b"\xf0",
            "cbor: data item of cbor type primitives is not accepted by protocol: simple value 16 is not recognized",
        ),
        (b"\x61\xff", "cbor: invalid UTF-8 string"),
        (b"\x7f\x61\xc3\x61\xa9\xff", "cbor: invalid UTF-8 string"),
        (b"\xa2\x41a\x01\x61a\x02", "cbor: found duplicate map key \"a\" at map element index 1"),
        (b"\xa1\x01\x02", "cbor: cannot unmarshal positive integer into Go value of type string"),
        (b"\xc0\x41a", "cbor: tag number 0 must be followed by text string, got byte string"),
        (
            b"\xc1\x61a",
            "cbor: tag number 1 must be followed by integer or floating-point number, got UTF-8 text string",
        ),
    ] {
        assert_eq!(read(bytes).unwrap_err(), message, "{bytes:02x?}");
    }
}

#[test]
fn cbor_objects_are_decoded_or_refused_with_the_reference_message() {
    let good = b"\xd9\xd9\xf7\xa4JapiVersionBv1DkindIConfigMapHmetadata\xa1DnameAaDdata\xa1AxA1";
    let decoded = decode("ConfigMap", good).unwrap();
    assert_eq!(
        to_json_text(&decoded.value),
        r#"{"apiVersion":"v1","data":{"x":"1"},"kind":"ConfigMap","metadata":{"name":"a"}}"#
    );
    assert_eq!(decoded, decode("ConfigMap", &good[3..]).unwrap(), "the tag may be missing");
    let unknown = b"\xd9\xd9\xf7\xa4JapiVersionBv1DkindIConfigMapHmetadata\xa1DnameAdEbogus\x01";
    assert_eq!(
        decode("ConfigMap", unknown).unwrap().strict,
        ["cbor: found unknown field at map element index 3"]
    );
    assert_eq!(
        refusal("ConfigMap", b"\xff"),
        "the object provided is unrecognized (must be of type ConfigMap): unable to determine group/version/kind: cbor: unexpected \"break\" code (ff)"
    );
    let error_detail = |text: &str| {
        let message = refusal("ConfigMap", &cbor(text));
        message
            .strip_prefix("ConfigMap in version \"v1\" cannot be handled as a ConfigMap: ")
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        error_detail(r#"{"data":{"a":1}}"#),
        "cbor: cannot unmarshal positive integer into Go struct field v1.ConfigMap.data of type string"
    );
    assert_eq!(
        error_detail(r#"{"metadata":{"generation":"a"}}"#),
        "cbor: cannot unmarshal byte string into Go struct field v1.ConfigMap.metadata of type int64"
    );
    assert_eq!(
        error_detail(r#"{"metadata":[]}"#),
        "cbor: cannot unmarshal array into Go struct field v1.ConfigMap.metadata of type v1.ObjectMeta (cannot decode CBOR array to struct without toarray option)"
    );
    assert!(refusal("ConfigMap", &cbor(r#"{"kind":7}"#)).contains(
        "kind: cbor: cannot unmarshal positive integer into Go struct field v1.TypeMeta.kind of type string"
    ));
    assert!(refusal("ConfigMap", &cbor(r#"{"kind":"Nope","apiVersion":"v1"}"#)).contains("no kind \"Nope\""));
    assert_eq!(
        error_detail(r#"{"metadata":{"creationTimestamp":"x"}}"#),
        "parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\""
    );
    // A duplicate key is reported as soon as the kind is detected.
    for (body, key) in [(b"\xa2\x44data\xa0\x64data\xa0", "data"), (b"\xa2\x44zzzz\xa0\x64zzzz\xa0", "zzzz")]
    {
        let message = refusal("ConfigMap", body);
        let expected = format!("cbor: found duplicate map key \"{key}\" at map element index 1 (");
        assert!(message.contains(&expected), "{message}");
    }
    let deep = b"\xa1\x48metadata\xa2\x44name\x41a\x44name\x41b";
    assert!(
        refusal("ConfigMap", deep)
            .ends_with(": cbor: found duplicate map key \"name\" at map element index 1")
    );
    assert_eq!(decode("ConfigMap", b"\xf6").unwrap().value.str("kind"), "ConfigMap");
}

#[test]
fn outermost_unknown_field_is_reported() {
    let strict = |text: &str| decode("ConfigMap", &cbor(text)).unwrap().strict;
    let index = |index: usize| [format!("cbor: found unknown field at map element index {index}")];
    assert_eq!(strict(r#"{"metadata":{"name":"a","zzzzz":1}}"#), index(1));
    assert_eq!(strict(r#"{"metadata":{"name":"a","zzzzz":1},"zzzzzzzzzz":1}"#), index(1));
    assert_eq!(strict(r#"{"data":{},"metadata":{"qq":1},"zzzzzzzzzz":1}"#), index(2));
}

#[test]
fn quantities_times_and_raw_values_are_canonical() {
    let registry = Registry::builtin().unwrap();
    let pod = r#"{"spec":{"containers":[{"name":"a","resources":{"limits":{"cpu":"0.5"}},"ports":null,
        "livenessProbe":{"httpGet":{"port":"http"}}}]},"metadata":{"creationTimestamp":null}}"#;
    let from_cbor = decode("Pod", &cbor(pod)).unwrap();
    let from_json = super::super::decode_object(pod.as_bytes(), &kind("", "v1", "Pod"), &registry).unwrap();
    assert_eq!(from_cbor, from_json);
    let review = b"\xa1Grequest\xa1Fobject\xa1Aa\xfb\x3f\xf0\x00\x00\x00\x00\x00\x00";
    let expected = kind("admission.k8s.io", "v1", "AdmissionReview");
    let decoded = decode_object(review, &expected, &registry).unwrap().value;
    assert_eq!(
        decoded.get_path(&["request", "object", "a"]),
        Some(&Value::Int(1)),
        "JSON does not distinguish 1.0 from 1"
    );
}

#[test]
fn lists_and_watch_events_are_assembled_from_encoded_objects() {
    let registry = Registry::builtin().unwrap();
    let map = registry.kind("", "v1", "ConfigMap").unwrap();
    let value = json::read(br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#).unwrap();
    let metadata = json::read(br#"{"resourceVersion":"5"}"#).unwrap();
    let ListFrame { head, tail } = list_frame("ConfigMapList", "v1", &metadata, 2);
    let item = encode_item(&registry, map, &value);
    let list = [head, item.clone(), item, tail].concat();
    assert_eq!(
        to_json_text(&read(&list).unwrap()),
        r#"{"apiVersion":"v1","items":[{"metadata":{"creationTimestamp":null,"name":"a"}},{"metadata":{"creationTimestamp":null,"name":"a"}}],"kind":"ConfigMapList","metadata":{"resourceVersion":"5"}}"#
    );
    assert_eq!(list, encode(&read(&list).unwrap()), "the frame has the order of keys that the encoder has");
    let event = watch_event("ADDED", &encode(&Value::object()));
    assert_eq!(hex(&event), "d9d9f7a24474797065454144444544466f626a656374d9d9f7a0");
    assert_eq!(event, watch_event("ADDED", b"\xa0"));
}

#[test]
fn delete_options_may_have_any_api_version() {
    let registry = Registry::builtin().unwrap();
    let options = kind("meta.k8s.io", "v1", "DeleteOptions");
    let body = cbor(r#"{"kind":"DeleteOptions","apiVersion":"apps/v1","gracePeriodSeconds":5}"#);
    let decoded = decode_any_version(&body, &options, &registry).unwrap();
    assert_eq!(decoded.value.get("gracePeriodSeconds"), Some(&Value::Int(5)));
    assert!(decode_any_version(b"\x80", &options, &registry).is_err());
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::Float),
        any::<f32>()
            .prop_filter("finite", |number| number.is_finite())
            .prop_map(|number| Value::Float(number.into())),
        "\\PC{0,8}".prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("\\PC{0,6}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn cbor_output_round_trips(value in any_value()) {
        let bytes = encode(&value);
        prop_assert_eq!(&read(&bytes).unwrap(), &value);
        prop_assert_eq!(encode(&read(&bytes).unwrap()), bytes);
    }
}
