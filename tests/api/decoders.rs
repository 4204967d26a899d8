//! Hostile and malformed bodies: each is refused quickly, with a clear message and little memory.

#![allow(clippy::disallowed_methods, reason = "how long a refusal takes is real time")]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use pilothouse_apimachinery::codec::{
    DecodeError, Decoded, SET_ITEM_BYTES, cbor, decode_object, decoded_bytes_bound, protobuf, yaml,
};
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry};
use pilothouse_apimachinery::value::Value;

use crate::support::Server;
use crate::support::client::JSON;
use crate::support::wait::{TIMEOUT, poll};

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

type Decode = fn(&[u8], &GroupVersionKind, &Registry) -> Result<Decoded, DecodeError>;

fn kind() -> GroupVersionKind {
    GroupVersionKind::new("", "v1", "ConfigMap")
}

/// The time limit of a refusal.
const SOON: Duration = Duration::from_secs(5);

/// The error of decoding a body, which must come quickly.
fn decode_error(decode: Decode, body: &[u8]) -> String {
    let (mut message, mut elapsed) = (String::new(), Duration::MAX);
    // A machine may be busy once; a slow decoder is slow each time.
    for _ in 0..3 {
        let start = Instant::now();
        message = match decode(body, &kind(), &REGISTRY) {
            Ok(decoded) => panic!("accepted as {decoded:?}"),
            Err(error) => error.message,
        };
        elapsed = elapsed.min(start.elapsed());
        if elapsed < SOON {
            break;
        }
    }
    assert!(elapsed < SOON, "took {elapsed:?}: {message}");
    assert!(message.contains("ConfigMap"), "{message}");
    message
}

#[track_caller]
fn assert_contains(message: &str, part: &str) {
    assert!(message.contains(part), "{message}\nshould say\n{part}");
}

#[test]
fn yaml_expansion_bomb_is_refused() {
    let mut billion_laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..12 {
        let before = level - 1;
        let many = vec![format!("*a{before}"); 10].join(",");
        billion_laughs.push_str(&format!("a{level}: &a{level} [{many}]\n"));
    }
    decode_error(yaml::decode_object, billion_laughs.as_bytes());
    // The same by merging maps.
    let mut merges = "a0: &a0 {k0: v}\n".to_owned();
    for level in 1..40 {
        let before = level - 1;
        merges.push_str(&format!(
            "a{level}: &a{level}\n  <<: [*a{before}, *a{before}]\n  k{level}: *a{before}\n"
        ));
    }
    decode_error(yaml::decode_object, merges.as_bytes());
    decode_error(yaml::decode_object, b"a: &a\n  <<: *a\n");
    decode_error(yaml::decode_object, b"a: &a [*a]\n");
    let text = "x".repeat(100_000);
    let mut long = format!("a: &a {text}\nb: [");
    long.push_str(&"*a,".repeat(5_000));
    long.push(']');
    decode_error(yaml::decode_object, long.as_bytes());
}

#[test]
fn deep_or_large_yaml_is_refused() {
    decode_error(yaml::decode_object, "[".repeat(100_000).as_bytes());
    decode_error(yaml::decode_object, "{a: ".repeat(100_000).as_bytes());
    decode_error(yaml::decode_object, "- ".repeat(100_000).as_bytes());
    decode_error(yaml::decode_object, "? ".repeat(100_000).as_bytes());
    let steps: String = (0..2_000).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    decode_error(yaml::decode_object, steps.as_bytes());
    decode_error(yaml::decode_object, format!("data: {{a: {}}}", "x".repeat(4 << 20)).as_bytes());
    decode_error(yaml::decode_object, format!("data:\n{}", "  a: b\n".repeat(600_000)).as_bytes());
}

#[test]
fn first_of_several_yaml_documents_is_decoded() {
    for body in [
        "kind: ConfigMap\n---\nkind: Secret\n",
        "---\nkind: ConfigMap\n...\n",
        "kind: ConfigMap\n...\n---\nb: 2\n",
    ] {
        let read = yaml::decode_object(body.as_bytes(), &kind(), &REGISTRY).unwrap();
        assert_eq!((read.value.str("kind"), read.value.get("b")), ("ConfigMap", None), "{body}");
    }
}

#[test]
fn deep_json_is_refused() {
    let nested = |levels: usize| format!("{{\"x\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    assert_contains(&decode_error(decode_object, nested(10_000).as_bytes()), "exceeded max depth");
    assert_contains(
        &decode_error(decode_object, "{\"a\":".repeat(1_000_000).as_bytes()),
        "exceeded max depth",
    );
    assert!(
        decode_object(nested(9_999).as_bytes(), &kind(), &REGISTRY).is_ok(),
        "unknown fields may be deeper"
    );
    let review = GroupVersionKind::new("admission.k8s.io", "v1", "AdmissionReview");
    let read = |levels: usize| {
        let body = format!("{{\"request\":{{\"object\":{}}}}}", nested(levels));
        decode_object(body.as_bytes(), &review, &REGISTRY).map_err(|error| error.message)
    };
    assert!(read(100).is_ok());
    assert_contains(&read(200).unwrap_err(), "exceeded max depth");
}

#[test]
fn duplicate_keys_are_reported_at_every_level() {
    let body = br#"{"kind":"ConfigMap","kind":"ConfigMap","metadata":{"name":"a","name":"b","labels":{"l":"1","l":"2"},
        "ownerReferences":[{"uid":"1","uid":"2"}]},"data":{"x":"1","x":"2"}}"#;
    let decoded = decode_object(body, &kind(), &REGISTRY).unwrap();
    assert_eq!(
        decoded.strict,
        [
            r#"duplicate field "kind""#,
            r#"duplicate field "metadata.name""#,
            r#"duplicate field "metadata.labels.l""#,
            r#"duplicate field "metadata.ownerReferences[0].uid""#,
            r#"duplicate field "data.x""#,
        ]
    );
    assert_eq!(decoded.value.get_path(&["data", "x"]), Some(&Value::from("2")), "the last counts");
    let yaml = yaml::decode_object(b"data:\n  x: a\n  x: b\n", &kind(), &REGISTRY).unwrap();
    assert_eq!(yaml.strict, ["yaml: unmarshal errors:\n  line 3: key \"x\" already set in map"]);
    assert_contains(
        &decode_error(cbor::decode_object, b"\xa1\x44data\xa2\x41x\x41a\x41x\x41b"),
        "cbor: found duplicate map key \"x\" at map element index 1",
    );
}

#[test]
fn invalid_utf8_is_replaced_in_json_and_refused_in_yaml_and_cbor() {
    let decoded = decode_object(b"{\"data\":{\"x\":\"a\xff\xfe\"}}", &kind(), &REGISTRY).unwrap();
    assert_eq!(decoded.value.get_path(&["data", "x"]), Some(&Value::from("a\u{fffd}\u{fffd}")));
    let half = decode_object(br#"{"data":{"x":"\ud800"}}"#, &kind(), &REGISTRY).unwrap();
    assert_eq!(half.value.get_path(&["data", "x"]), Some(&Value::from("\u{fffd}")));
    assert_contains(&decode_error(yaml::decode_object, b"data: {x: \"a\xff\"}"), "yaml: ");
    assert_contains(
        &decode_error(cbor::decode_object, b"\xa1\x44data\xa1\x41x\x61\xff"),
        "cbor: invalid UTF-8 string",
    );
}

#[test]
fn invalid_and_overflowing_numbers_are_refused() {
    for body in [r#"{"data":NaN}"#, r#"{"data":Infinity}"#, r#"{"data":-}"#, r#"{"data":+1}"#] {
        assert_contains(&decode_error(decode_object, body.as_bytes()), "invalid character");
    }
    let generation = |number: &str| format!(r#"{{"metadata":{{"generation":{number}}}}}"#);
    for number in ["9223372036854775808", "-9223372036854775809", "1e400", "1.5", "1e2"] {
        let body = generation(number);
        assert_contains(
            &decode_error(decode_object, body.as_bytes()),
            &format!("cannot unmarshal number {number} into"),
        );
        // YAML is read before it becomes JSON, which does not tell 1e2 from 100.
        if number != "1e2" {
            decode_error(yaml::decode_object, body.as_bytes());
        }
    }
    assert_contains(&decode_error(yaml::decode_object, b"metadata: {generation: .nan}"), "ConfigMap");
    assert!(decode_object(generation("9223372036854775807").as_bytes(), &kind(), &REGISTRY).is_ok());
    let cbor = |number: &[u8]| [b"\xa1\x48metadata\xa1\x4ageneration", number].concat();
    assert_contains(
        &decode_error(cbor::decode_object, &cbor(b"\x1b\x80\x00\x00\x00\x00\x00\x00\x00")),
        "of type int64 (9223372036854775808 overflows int64)",
    );
    assert_contains(
        &decode_error(cbor::decode_object, &cbor(b"\xf9\x3c\x00")),
        "cannot unmarshal primitives into Go struct field",
    );
    assert_contains(&decode_error(cbor::decode_object, &cbor(b"\xf9\x7e\x00")), "floating-point NaN");
    assert_contains(
        &decode_error(cbor::decode_object, &cbor(b"\xc2\x49\x01\x00\x00\x00\x00\x00\x00\x00\x00")),
        "bignum",
    );
}

#[test]
fn cbor_with_oversized_lengths_is_refused() {
    let length = 1u64 << 60;
    for (head, reason) in [
        (0x5b, "unexpected EOF"),
        (0x7b, "unexpected EOF"),
        (0x9b, "cbor: exceeded max number of elements 1024 for CBOR array"),
        (0xbb, "cbor: exceeded max number of key-value pairs 1024 for CBOR map"),
    ] {
        let mut body = vec![head];
        body.extend_from_slice(&length.to_be_bytes());
        assert_contains(&decode_error(cbor::decode_object, &body), reason);
        let inside = [b"\xa1\x44data\xa1\x41x", body.as_slice()].concat();
        assert_contains(&decode_error(cbor::decode_object, &inside), reason);
    }
    assert_contains(
        &decode_error(cbor::decode_object, &[0x81; 3 << 20]),
        "cbor: exceeded max nested level 64",
    );
    assert_contains(
        &decode_error(cbor::decode_object, &[0x9f; 3 << 20]),
        "cbor: exceeded max nested level 64",
    );
    assert_contains(
        &decode_error(cbor::decode_object, &[0xc6; 3 << 20]),
        "cbor: exceeded max nested level 64",
    );
    assert_contains(
        &decode_error(cbor::decode_object, &[0xa1; 3 << 20]),
        "cbor: exceeded max nested level 64",
    );
    let mut pieces = vec![0x5f];
    pieces.extend(std::iter::repeat_n(0x40, 3 << 20));
    assert_contains(&decode_error(cbor::decode_object, &pieces), "unexpected EOF");
    let endless = b"\xbf\x44data\xbf\x41x\x7f\x61a\x61b\xff\xff\xff";
    let decoded = cbor::decode_object(endless, &kind(), &REGISTRY).unwrap();
    assert_eq!(
        decoded.value.get_path(&["data", "x"]),
        Some(&Value::from("ab")),
        "indefinite lengths are decoded"
    );
}

#[test]
fn protobuf_with_oversized_lengths_or_deep_groups_is_refused() {
    let body = |message: &[u8]| [b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12", message].concat();
    decode_error(protobuf::decode_object, b"k8s\0");
    decode_error(protobuf::decode_object, b"{}");
    // A length of 2^60, then one that is longer than any number.
    decode_error(protobuf::decode_object, &body(b"\x80\x80\x80\x80\x80\x80\x80\x80\x10"));
    decode_error(protobuf::decode_object, &body(&[0xff; 64]));
    assert!(protobuf::decode_object(&body(b"\x00"), &kind(), &REGISTRY).is_ok());
    let mut groups = vec![0x80, 0x80, 0x40];
    groups.extend(std::iter::repeat_n(0x7b, 1 << 20));
    decode_error(protobuf::decode_object, &body(&groups));
}

/// A CRD that preserves unknown fields.
const FREE: &str = r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
    "metadata":{"name":"frees.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
    "names":{"plural":"frees","singular":"free","kind":"Free"},"versions":[{"name":"v1","served":true,"storage":true,
    "schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}"#;

/// A CRD with a set.
const SET: &str = r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
    "metadata":{"name":"sets.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
    "names":{"plural":"sets","singular":"set","kind":"Set"},"versions":[{"name":"v1","served":true,"storage":true,
    "schema":{"openAPIV3Schema":{"type":"object","properties":{"x":{"type":"array","x-kubernetes-list-type":"set",
    "items":{"type":"integer"}}}}}}]}}"#;

/// About a megabyte of parts. `#` in a part is its number.
fn repeated(part: &str, separator: &str) -> String {
    let parts =
        (0..(1 << 20) / (part.len() + separator.len())).map(|number| part.replace('#', &number.to_string()));
    parts.collect::<Vec<_>>().join(separator)
}

fn free(spec: &str) -> (&'static str, String) {
    let head = r#""apiVersion":"example.com/v1","kind":"Free","metadata":{"name":"a"}"#;
    ("/apis/example.com/v1/namespaces/default/frees", format!("{{{head},\"spec\":{{\"x\":{spec}}}}}"))
}

fn config_map(rest: &str) -> (&'static str, String) {
    let head = r#""apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}"#;
    ("/api/v1/namespaces/default/configmaps", format!("{{{head},{rest}}}"))
}

/// A field of a Protobuf message.
fn field(number: u8, contents: &[u8]) -> Vec<u8> {
    let mut message = vec![(number << 3) | 2];
    let mut length = contents.len();
    while length > 0x7f {
        message.push((length as u8) | 0x80);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend_from_slice(contents);
    message
}

/// A pod with a million packed numbers.
fn pod_with_packed_numbers() -> Vec<u8> {
    let groups = field(14, &field(4, &[1; 1 << 20]));
    let pod = [field(1, &field(1, b"a")), field(2, &groups)].concat();
    let type_meta = field(1, &[field(1, b"v1"), field(2, b"Pod")].concat());
    [b"k8s\0".to_vec(), type_meta, field(2, &pod)].concat()
}

/// The growth of a server's peak memory while it handles a body.
fn peak_memory(path: &str, media_type: &str, body: &[u8]) -> usize {
    let server = Server::start();
    let mut admin = server.admin();
    if path.contains("example.com") {
        let created = admin.request(
            "POST",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &JSON,
            if path.ends_with("sets") { SET } else { FREE }.as_bytes(),
        );
        assert_eq!(created.status, 201, "{}", created.text());
        poll(TIMEOUT, || (admin.get(path).status == 200).then_some(())).expect("the kind is served");
    }
    let proc = format!("/proc/{}", server.pid());
    let resident = |line: &str| {
        let status = std::fs::read_to_string(format!("{proc}/status")).unwrap();
        let line = status.lines().find(|text| text.starts_with(line)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    };
    let before = resident("VmRSS:");
    // Resets the high-water mark of the kernel.
    std::fs::write(format!("{proc}/clear_refs"), "5").unwrap();
    let response = admin.request("POST", path, &[("Content-Type", media_type)], body);
    assert!(response.status != 400, "{}", response.text());
    resident("VmHWM:").saturating_sub(before)
}

/// Other memory of a server: buffers of the connection, the log, the store, the heavy-pool thread that starts with the first large
/// body, and what the allocator keeps for each thread.
const SERVER_OVERHEAD: usize = 24 << 20;

#[test]
fn decoding_stays_within_estimated_memory() {
    let json = [
        ("integers", free(&format!("[{}]", repeated("1", ",")))),
        ("empty lists", free(&format!("[{}]", repeated("[]", ",")))),
        ("lists of one", free(&format!("[{}]", repeated("[1]", ",")))),
        ("objects of one field", free(&format!("[{}]", repeated(r#"{"":1}"#, ",")))),
        ("empty texts", free(&format!("[{}]", repeated(r#""""#, ",")))),
        ("short keys", free(&format!("{{{}}}", repeated(r##""#":1"##, ",")))),
        ("owned keys", config_map(&format!(r#""data":{{{}}}"#, repeated(r##""#":"""##, ",")))),
        ("text", config_map(&format!(r#""data":{{"a":"{}"}}"#, repeated("text", " ")))),
        ("escaped text", config_map(&format!(r#""data":{{"a":"{}"}}"#, "<".repeat(200_000)))),
        ("unknown fields", config_map(&repeated(r##""#":1"##, ","))),
    ];
    let mut cases: Vec<(&str, &str, Encoding, &str, Vec<u8>)> = Vec::new();
    for (name, (path, body)) in json {
        cases.push((name, path, Encoding::Json, "application/json", body.into_bytes()));
    }
    let head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n";
    let maps = "/api/v1/namespaces/default/configmaps";
    let lines: String = (0..60_000).map(|number| format!("  k{number}: a\n")).collect();
    let block = format!("{head}{lines}");
    let billion_laughs = format!("{head}  a: b\nx: [&a [{}]{}]\n", "1,".repeat(4_000), ",*a".repeat(60));
    cases.push(("YAML lines", maps, Encoding::Yaml, "application/yaml", block.into_bytes()));
    cases.push(("YAML aliases", maps, Encoding::Yaml, "application/yaml", billion_laughs.into_bytes()));
    let pods = "/api/v1/namespaces/default/pods";
    let media_type = "application/vnd.kubernetes.protobuf";
    cases.push(("packed numbers", pods, Encoding::Protobuf, media_type, pod_with_packed_numbers()));
    let mut exceeded = Vec::new();
    for (name, path, encoding, media_type, body) in cases {
        let (peak, bound) = (peak_memory(path, media_type, &body), decoded_bytes_bound(encoding, &body));
        let times = |bytes: usize| bytes as f64 / body.len() as f64;
        let line = format!("{name}: {:.1} times the body, estimated {:.1}", times(peak), times(bound));
        if peak > bound + SERVER_OVERHEAD
            || (name == "integers" && times(peak.saturating_sub(SERVER_OVERHEAD)) > 30.0)
        {
            exceeded.push(line);
        }
    }
    assert!(exceeded.is_empty(), "{exceeded:#?}");
}

#[test]
fn set_item_owners_stay_within_estimated_memory() {
    const ITEMS: usize = 100_000;
    let items: Vec<String> = (0..ITEMS).map(|item| (ITEMS + item).to_string()).collect();
    let head = r#""apiVersion":"example.com/v1","kind":"Set","metadata":{"name":"a"}"#;
    let body = format!("{{{head},\"x\":[{}]}}", items.join(","));
    let bound = decoded_bytes_bound(Encoding::Json, body.as_bytes()) + ITEMS * SET_ITEM_BYTES;
    let peak =
        peak_memory("/apis/example.com/v1/namespaces/default/sets", "application/json", body.as_bytes());
    assert!(peak <= bound + SERVER_OVERHEAD, "{peak} of {bound}");
}

#[test]
fn small_bodies_are_estimated_by_length() {
    for encoding in [Encoding::Json, Encoding::Yaml, Encoding::Protobuf, Encoding::Cbor] {
        assert_eq!(decoded_bytes_bound(encoding, b""), 0);
        assert_eq!(decoded_bytes_bound(encoding, &[b'{'; 10]), decoded_bytes_bound(encoding, &[b'x'; 10]));
    }
}
