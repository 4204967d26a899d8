//! Valid and invalid JSON bodies, through [`decode_object`].

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

fn kind(name: &str) -> GroupVersionKind {
    match name {
        "Deployment" => GroupVersionKind::new("apps", "v1", name),
        "DeleteOptions" => GroupVersionKind::new("meta.k8s.io", "v1", name),
        "CustomResourceDefinition" => GroupVersionKind::new("apiextensions.k8s.io", "v1", name),
        _ => GroupVersionKind::new("", "v1", name),
    }
}

fn read(name: &str, body: &str) -> Result<Decoded, String> {
    decode_object(body.as_bytes(), &kind(name), &REGISTRY).map_err(|error| error.message)
}

fn encoded(name: &str, body: &str) -> String {
    let ty = REGISTRY.lookup(&kind(name)).unwrap();
    String::from_utf8(encode(&REGISTRY, ty, &read(name, body).unwrap().value)).unwrap()
}

fn error_detail(name: &str, body: &str) -> String {
    let message = read(name, body).unwrap_err();
    let prefix = format!("{name} in version \"v1\" cannot be handled as a {name}: ");
    message.strip_prefix(&prefix).unwrap_or(&message).to_owned()
}

#[test]
fn kind_and_api_version_are_detected_in_any_case() {
    let decoded =
        read("ConfigMap", r#"{"ApiVersion":"v1","KIND":"ConfigMap","metadata":{"name":"a"}}"#).unwrap();
    assert_eq!(decoded.strict, [r#"unknown field "ApiVersion""#, r#"unknown field "KIND""#]);
    assert_eq!(decoded.value.str("kind"), "ConfigMap");
    for (body, expected) in [
        (r#"{"Kind":"Secret"}"#, "converting (v1.Secret) to (core.ConfigMap): unknown conversion"),
        (r#"{"APIVERSION":"v9"}"#, "no kind \"ConfigMap\" is registered for version \"v9\""),
        (
            r#"{"apiVersion":"apps/v1beta1","kind":"Deployment"}"#,
            "converting (v1beta1.Deployment) to (core.ConfigMap): unknown conversion",
        ),
    ] {
        let message = read("ConfigMap", body).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn type_errors_have_the_reference_message() {
    let field = |actual: &str, field: &str, ty: &str| {
        format!("json: cannot unmarshal {actual} into Go struct field {field} of type {ty}")
    };
    let config = |body: &str| error_detail("ConfigMap", body);
    assert_eq!(config(r#"{"data":{"x":1}}"#), field("number", "ConfigMap.data", "string"));
    assert_eq!(config(r#"{"data":[]}"#), field("array", "ConfigMap.data", "map[string]string"));
    assert_eq!(config(r#"{"metadata":[]}"#), field("array", "ConfigMap.metadata", "v1.ObjectMeta"));
    assert_eq!(config(r#"{"metadata":{"name":5}}"#), field("number", "ObjectMeta.metadata.name", "string"));
    assert_eq!(config(r#"{"immutable":"yes"}"#), field("string", "ConfigMap.immutable", "bool"));
    assert_eq!(config(r#"{"binaryData":{"x":"not base64!"}}"#), "illegal base64 data at input byte 3");
    let replicas = |value: &str| error_detail("Deployment", &format!(r#"{{"spec":{{"replicas":{value}}}}}"#));
    let int = |actual: &str| field(actual, "DeploymentSpec.spec.replicas", "int32");
    assert_eq!(replicas("\"3\""), int("string"));
    assert_eq!(replicas("1.5"), int("number 1.5"));
    assert_eq!(replicas("1e3"), int("number 1e3"));
    assert_eq!(replicas("3000000000"), int("number 3000000000"));
    assert_eq!(replicas("{}"), int("object"));
    assert_eq!(
        error_detail("Service", r#"{"spec":{"ports":[{"port":80,"targetPort":{"a":1}}]}}"#),
        field("object", "ServicePort.spec.ports.targetPort", "int32")
    );
    assert_eq!(
        error_detail("Pod", r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"abc"}}}]}}"#),
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    );
    assert_eq!(
        config(r#"{"metadata":{"creationTimestamp":"x"}}"#),
        r#"parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006""#
    );
    assert_eq!(
        config(r#"{"metadata":{"creationTimestamp":1}}"#),
        field("number", "ObjectMeta.metadata.creationTimestamp", "string")
    );
}

#[test]
fn first_type_error_is_reported_unless_decoding_stops() {
    let name = "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string";
    assert_eq!(error_detail("Pod", r#"{"metadata":{"name":1},"spec":{"hostname":2}}"#), name);
    assert_eq!(
        error_detail("Pod", r#"{"metadata":{"name":1,"creationTimestamp":"2024-13-01T00:00:00Z"}}"#),
        r#"parsing time "2024-13-01T00:00:00Z": month out of range"#
    );
    assert!(
        error_detail("Pod", r#"{"metadata":{"name":1},"spec":}"#)
            .contains("invalid character '}' looking for")
    );
    assert!(
        error_detail("Pod", r#"{"metadata":{"creationTimestamp":"x"}"#)
            .contains("unexpected end of JSON input")
    );
}

#[test]
fn unrecognized_bodies_have_the_reference_message() {
    let prefix = "the object provided is unrecognized (must be of type ConfigMap): ";
    for (body, message) in [
        (
            r#"{"apiVersion":1,"kind":"ConfigMap"}"#,
            r#"couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .apiVersion of type string ({"apiVersion":1,"kind":"Config ...)"#,
        ),
        (r#"{"a"#, r#"couldn't get version/kind; json parse error: unexpected end of JSON input ({"a)"#),
        ("", "couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)"),
        (
            "hello",
            "couldn't get version/kind; json parse error: invalid character 'h' looking for beginning of value (68656c6c6f)",
        ),
        (
            "[]",
            r#"couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" } (5b5d)"#,
        ),
        (
            r#"{"apiVersion":"a/b/c","kind":"ConfigMap"}"#,
            r#"unexpected GroupVersion string: a/b/c ({"apiVersion":"a/b/c","kind":" ...)"#,
        ),
    ] {
        assert_eq!(read("ConfigMap", body).unwrap_err(), format!("{prefix}{message}"));
    }
}

#[test]
fn delete_options_may_have_any_api_version() {
    for api_version in ["", "v1", "meta.k8s.io/v1", "apps/v1", "widgets.example.com/v1beta1"] {
        let body =
            format!(r#"{{"apiVersion":"{api_version}","kind":"DeleteOptions","gracePeriodSeconds":0}}"#);
        let options = read("DeleteOptions", &body).unwrap().value;
        assert_eq!(options.str("apiVersion"), "meta.k8s.io/v1");
        assert_eq!(options.get("gracePeriodSeconds").and_then(Value::as_int), Some(0));
    }
    assert!(read("DeleteOptions", r#"{"apiVersion":"v1","kind":"ConfigMap"}"#).is_err());
    assert!(read("DeleteOptions", r#"{"apiVersion":"apps/v1","gracePeriodSeconds":"x"}"#).is_err());
}

#[test]
fn body_of_another_kind_is_refused() {
    for (body, message) in [
        (
            r#"{"apiVersion":"v1","kind":"Secret"}"#,
            r#"Secret in version "v1" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion"#,
        ),
        (
            r#"{"apiVersion":"v1","kind":"List","items":[]}"#,
            r#"List in version "v1" cannot be handled as a ConfigMap: converting (v1.List) to (core.ConfigMap): unknown conversion"#,
        ),
        (
            r#"{"apiVersion":"v2","kind":"ConfigMap"}"#,
            r#"ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "v2" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            r#"{"apiVersion":"apps/v1","kind":"ConfigMap"}"#,
            r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "apps/v1" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            r#"{"apiVersion":"v\"","kind":"ConfigMap"}"#,
            r#"ConfigMap in version "v\"" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "v\"" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            r#"{"kind":"configmap"}"#,
            r#"configmap in version "v1" cannot be handled as a ConfigMap: no kind "configmap" is registered for version "v1" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
    ] {
        assert_eq!(read("ConfigMap", body).unwrap_err(), message);
    }
    for version in ["extensions/v1beta1", "apps/v1beta2"] {
        assert_eq!(
            read("Deployment", &format!(r#"{{"apiVersion":"{version}","kind":"Deployment"}}"#)).unwrap_err(),
            format!(
                "the API version in the data ({version}) does not match the expected API version (apps/v1)"
            )
        );
    }
}

#[test]
fn missing_kind_and_api_version_are_set() {
    let expected = read("ConfigMap", r#"{"kind":"ConfigMap","apiVersion":"v1"}"#).unwrap();
    assert_eq!(expected.value.str("kind"), "ConfigMap");
    for body in
        ["{}", "null", r#"{"kind":"ConfigMap"}"#, r#"{"apiVersion":"v1"}"#, " {} ", r#"{"kind":null}"#]
    {
        assert_eq!(read("ConfigMap", body).unwrap(), expected, "{body}");
    }
}

#[test]
fn unknown_and_duplicate_fields_are_reported_in_order() {
    let body = r#"{"foo":1,"metadata":{"name":"a","labels":{"x":"1","x":"2"},"name":"b","Name":"c"},
        "spec":{"containers":[{"name":"c"},{"bar":{"x":[1]},"env":[{"nAme":1}]}],"foo":1,"foo":2}}"#;
    let decoded = read("Pod", body).unwrap();
    assert_eq!(
        decoded.strict,
        [
            r#"unknown field "foo""#,
            r#"duplicate field "metadata.labels.x""#,
            r#"duplicate field "metadata.name""#,
            r#"unknown field "metadata.Name""#,
            r#"unknown field "spec.containers[1].bar""#,
            r#"unknown field "spec.containers[1].env[0].nAme""#,
            r#"unknown field "spec.foo""#,
        ]
    );
    assert_eq!(decoded.value.get_path(&["metadata", "name"]).and_then(Value::as_str), Some("b"));
    assert_eq!(
        strict_refusal(&kind("Pod"), &decoded.strict[..2]).message,
        r#"Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "foo", duplicate field "metadata.labels.x""#
    );
    let many: Vec<String> = (0..500).map(|index| format!("\"k{index}\":0")).collect();
    assert_eq!(read("Pod", &format!("{{{}}}", many.join(","))).unwrap().strict.len(), 100);
}

#[test]
fn duplicate_struct_field_is_merged_into_the_first() {
    let body = r#"{"metadata":{"name":"a","labels":{"x":"1"}},"metadata":{"labels":{"y":"2"}}}"#;
    assert_eq!(
        encoded("ConfigMap", body),
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","creationTimestamp":null,"labels":{"x":"1","y":"2"}}}"#
    );
}

#[test]
fn api_version_of_core_group_may_begin_with_a_slash() {
    for api_version in ["v1", "/v1", "/", ""] {
        let body = format!(r#"{{"apiVersion":"{api_version}","kind":"ConfigMap"}}"#);
        assert_eq!(read("ConfigMap", &body).unwrap().value.str("apiVersion"), "v1");
    }
    assert_eq!(
        read("ConfigMap", r#"{"apiVersion":"v1/","kind":"ConfigMap"}"#).unwrap_err(),
        r#"ConfigMap in version "" cannot be handled as a ConfigMap: Object 'apiVersion' is missing in '{"apiVersion":"v1/","kind":"ConfigMap"}'"#
    );
}

#[test]
fn byte_fields_accept_a_list_of_numbers() {
    let data = |value: &str| {
        let decoded = read("Secret", &format!(r#"{{"data":{{"a":{value}}}}}"#))?;
        Ok::<_, String>(decoded.value.get_path(&["data", "a"]).cloned())
    };
    assert_eq!(data("[104,105]"), Ok(Some("aGk=".into())));
    assert_eq!(data("[]"), Ok(Some("".into())));
    assert_eq!(data("[null,5]"), Ok(Some("AAU=".into())));
    for (value, actual) in [
        ("[300]", "number 300"),
        ("[-1]", "number -1"),
        ("[1.0]", "number 1.0"),
        (r#"["x"]"#, "string"),
        ("[[1]]", "array"),
        ("[true]", "bool"),
    ] {
        let detail =
            format!("json: cannot unmarshal {actual} into Go struct field Secret.data of type uint8");
        assert!(data(value).unwrap_err().ends_with(&detail), "{value}");
    }
}

#[test]
fn zero_time_is_encoded_as_null() {
    let lease = |renewed: &str| {
        let body = format!(r#"{{"spec":{{"renewTime":{renewed}}}}}"#);
        let registry = Registry::builtin().unwrap();
        let ty = registry.kind("coordination.k8s.io", "v1", "Lease").unwrap();
        let value = crate::schema::decode::decode(&registry, ty, body.as_bytes()).unwrap().value;
        String::from_utf8(encode(&registry, ty, &value)).unwrap()
    };
    assert!(lease(r#""0001-01-01T00:00:00.000000Z""#).ends_with(r#""spec":{"renewTime":null}}"#));
    assert!(lease(r#""0001-01-01T01:00:00.000000+01:00""#).ends_with(r#""spec":{"renewTime":null}}"#));
    assert!(lease("null").ends_with(r#""spec":{}}"#));
}

#[test]
fn objects_are_encoded_in_the_field_order_of_their_type() {
    assert_eq!(
        encoded(
            "Pod",
            r#"{"spec":{"containers":[{"image":"i","stdin":false,"env":[]}],"hostNetwork":false}}"#
        ),
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"creationTimestamp":null},"spec":{"containers":[{"name":"","image":"i","resources":{}}]},"status":{}}"#
    );
    assert_eq!(
        encoded("Pod", r#"{"spec":{}}"#),
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"creationTimestamp":null},"spec":{"containers":null},"status":{}}"#
    );
    assert_eq!(
        encoded("Secret", r#"{"data":{"a":"aGk=\n","b":null},"metadata":{"finalizers":[null]}}"#),
        r#"{"kind":"Secret","apiVersion":"v1","metadata":{"creationTimestamp":null,"finalizers":[""]},"data":{"a":"aGk=","b":""}}"#
    );
    assert_eq!(
        encoded("Service", r#"{"spec":{"ports":[{"port":80,"targetPort":"http"},{"port":81}]}}"#),
        r#"{"kind":"Service","apiVersion":"v1","metadata":{"creationTimestamp":null},"spec":{"ports":[{"port":80,"targetPort":"http"},{"port":81,"targetPort":0}]},"status":{"loadBalancer":{}}}"#
    );
}

#[test]
fn json_schema_unions_are_decoded() {
    let body = |schema: &str| {
        format!(
            r#"{{"spec":{{"versions":[{{"name":"v1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{schema}}}}}]}}}}"#
        )
    };
    let schema = r#"{"properties":{"a":{"items":{"type":"string","foo":1},"additionalProperties":true},"b":{"items":[{"maximum":1.50}]}}}"#;
    let text = encoded("CustomResourceDefinition", &body(schema));
    assert!(text.contains(
        r#""a":{"items":{"type":"string"},"additionalProperties":true},"b":{"items":[{"maximum":1.5}]}"#
    ));
    assert_eq!(
        error_detail("CustomResourceDefinition", &body(r#"{"additionalProperties":1}"#)),
        "boolean or JSON schema expected"
    );
    assert_eq!(
        error_detail("CustomResourceDefinition", &body(r#"{"items":{"type":1}}"#)),
        "json: cannot unmarshal number into Go struct field JSONSchemaProps.spec.versions.schema.openAPIV3Schema.items of type string"
    );
}

#[test]
fn revision_gap_of_draft_is_in_the_object_metadata() {
    let body = r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"7"},
        "spec":{"selector":{},"template":{"metadata":{"resourceVersion":"8"}}}}"#;
    let value = read("Deployment", body).unwrap().value;
    let draft = encode_draft(&REGISTRY, REGISTRY.lookup(&kind("Deployment")).unwrap(), &value);
    let text = String::from_utf8(draft.bytes).unwrap();
    assert!(text[draft.item_offset..].starts_with(r#""metadata":{"name":"a""#));
    assert!(text[..draft.revision_offset].ends_with(r#""uid":"u","resourceVersion":""#));
    assert!(text[draft.revision_offset..].starts_with(r#"","creationTimestamp""#));
    assert!(text.contains(r#""resourceVersion":"8""#));
}

#[test]
fn deeply_nested_bodies_are_refused_and_invalid_utf8_is_replaced() {
    let deep = |depth: usize| format!("{{\"foo\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(read("ConfigMap", &deep(9_000)).is_ok(), "an unknown field is dropped however deep it is");
    assert!(error_detail("ConfigMap", &deep(10_000)).contains("exceeded max depth"));
    let raw = format!("{{\"data\":{}{}}}", "[".repeat(5_000), "]".repeat(5_000));
    let revision = GroupVersionKind::new("apps", "v1", "ControllerRevision");
    assert!(decode_object(raw.as_bytes(), &revision, &REGISTRY).unwrap_err().message.contains("max depth"));
    let items = format!("{}1{}", r#"{"items":"#.repeat(5_000), "}".repeat(5_000));
    let schema = format!(r#"{{"spec":{{"versions":[{{"schema":{{"openAPIV3Schema":{items}}}}}]}}}}"#);
    assert!(read("CustomResourceDefinition", &schema).is_err());
    let lossy = decode_object(b"{\"data\":{\"a\":\"x\xff\\ud800\"}}", &kind("ConfigMap"), &REGISTRY).unwrap();
    assert_eq!(lossy.value.get_path(&["data", "a"]).and_then(Value::as_str), Some("x\u{fffd}\u{fffd}"));
    assert!(error_detail("Deployment", r#"{"spec":{"replicas":1e999}}"#).contains("number 1e999"));
    assert!(read("ConfigMap", r#"{"data":{"a":1e999}}"#).is_err());
}

#[test]
fn stored_objects_round_trip() {
    let body = r#"{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"0.5"}}}]}}"#;
    let value = read("Pod", body).unwrap().value;
    let ty = REGISTRY.lookup(&kind("Pod")).unwrap();
    assert_eq!(decode_stored(&encode(&REGISTRY, ty, &value), ty, &REGISTRY), Some(value));
    assert_eq!(decode_stored(b"{", ty, &REGISTRY), None);
}

/// Objects that look a little like a Pod.
fn almost_pod() -> impl Strategy<Value = String> {
    let word = prop_oneof!["[a-z]{1,3}", Just("spec".into()), Just("metadata".into()), Just("name".into())];
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        any::<i32>().prop_map(|number| number.to_string()),
        Just("1.50".to_owned()),
        "[a-z0-9]{0,4}".prop_map(|text| format!("\"{text}\"")),
    ];
    let value = leaf.prop_recursive(5, 64, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            proptest::collection::vec((known_field(), inner), 0..6).prop_map(|fields| {
                let fields: Vec<String> =
                    fields.into_iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
                format!("{{{}}}", fields.join(","))
            }),
        ]
    });
    (word, value).prop_map(|(word, value)| format!("{{\"{word}\":{value},\"spec\":{value}}}"))
}

fn known_field() -> impl Strategy<Value = String> {
    proptest::sample::select(vec![
        "containers",
        "resources",
        "limits",
        "cpu",
        "ports",
        "hostPort",
        "env",
        "value",
        "volumes",
        "emptyDir",
        "sizeLimit",
        "tolerations",
        "activeDeadlineSeconds",
        "labels",
        "metadata",
        "name",
        "image",
        "stdin",
        "zzz",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #[test]
    fn decode_object_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
        let _ = decode_object(&bytes, &kind("Pod"), &REGISTRY);
    }

    #[test]
    fn encoding_is_stable_after_decoding(body in almost_pod()) {
        let ty = REGISTRY.lookup(&kind("Pod")).unwrap();
        if let Ok(decoded) = decode_object(body.as_bytes(), &kind("Pod"), &REGISTRY) {
            let bytes = encode(&REGISTRY, ty, &decoded.value);
            let again = decode_object(&bytes, &kind("Pod"), &REGISTRY).unwrap();
            // Not the values: an empty list is encoded as absent.
            prop_assert!(again.strict.is_empty());
            prop_assert_eq!(encode(&REGISTRY, ty, &again.value), bytes);
        }
    }
}
