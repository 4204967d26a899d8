//! Bodies made to do harm, and bodies that are wrong in the ways that clients get things wrong: each is refused in
//! words that say why, soon and without much memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "how long a refusal takes is real time")]

mod support;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use pilothouse_apimachinery::codec::{
    DecodeError, Decoded, SET_ITEM_BYTES, cbor, decode_object, decoded_bytes_bound, protobuf, yaml,
};
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry};
use pilothouse_apimachinery::value::Value;
use support::Server;
use support::client::JSON;
use support::wait::{CAP, poll};

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

type Decode = fn(&[u8], &GroupVersionKind, &Registry) -> Result<Decoded, DecodeError>;

fn kind() -> GroupVersionKind {
    GroupVersionKind::new("", "v1", "ConfigMap")
}

/// How soon a refusal must come.
const SOON: Duration = Duration::from_secs(5);

/// The refusal of a body, which must come soon.
fn refusal(decode: Decode, body: &[u8]) -> String {
    let (mut message, mut took) = (String::new(), Duration::MAX);
    // A machine may be busy once; a reader that does too much is slow each time.
    for _ in 0..3 {
        let begun = Instant::now();
        message = match decode(body, &kind(), &REGISTRY) {
            Ok(decoded) => panic!("accepted as {decoded:?}"),
            Err(error) => error.message,
        };
        took = took.min(begun.elapsed());
        if took < SOON {
            break;
        }
    }
    assert!(took < SOON, "took {took:?}: {message}");
    assert!(message.contains("ConfigMap"), "{message}");
    message
}

#[track_caller]
fn says(message: &str, part: &str) {
    assert!(message.contains(part), "{message}\nshould say\n{part}");
}

#[test]
fn yaml_that_grows_is_refused() {
    let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..12 {
        let before = level - 1;
        let many = vec![format!("*a{before}"); 10].join(",");
        laughs.push_str(&format!("a{level}: &a{level} [{many}]\n"));
    }
    refusal(yaml::decode_object, laughs.as_bytes());
    // The same by merging maps.
    let mut merges = "a0: &a0 {k0: v}\n".to_owned();
    for level in 1..40 {
        let before = level - 1;
        merges.push_str(&format!(
            "a{level}: &a{level}\n  <<: [*a{before}, *a{before}]\n  k{level}: *a{before}\n"
        ));
    }
    refusal(yaml::decode_object, merges.as_bytes());
    refusal(yaml::decode_object, b"a: &a\n  <<: *a\n");
    refusal(yaml::decode_object, b"a: &a [*a]\n");
    let text = "x".repeat(100_000);
    let mut long = format!("a: &a {text}\nb: [");
    long.push_str(&"*a,".repeat(5_000));
    long.push(']');
    refusal(yaml::decode_object, long.as_bytes());
}

#[test]
fn yaml_that_is_deep_or_large_is_refused() {
    refusal(yaml::decode_object, "[".repeat(100_000).as_bytes());
    refusal(yaml::decode_object, "{a: ".repeat(100_000).as_bytes());
    refusal(yaml::decode_object, "- ".repeat(100_000).as_bytes());
    refusal(yaml::decode_object, "? ".repeat(100_000).as_bytes());
    let steps: String = (0..2_000).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    refusal(yaml::decode_object, steps.as_bytes());
    refusal(yaml::decode_object, format!("data: {{a: {}}}", "x".repeat(4 << 20)).as_bytes());
    refusal(yaml::decode_object, format!("data:\n{}", "  a: b\n".repeat(600_000)).as_bytes());
}

#[test]
fn the_first_of_several_yaml_documents_is_read() {
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
fn json_that_is_deep_is_refused() {
    let nested = |levels: usize| format!("{{\"x\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    says(&refusal(decode_object, nested(10_000).as_bytes()), "exceeded max depth");
    says(&refusal(decode_object, "{\"a\":".repeat(1_000_000).as_bytes()), "exceeded max depth");
    assert!(decode_object(nested(9_999).as_bytes(), &kind(), &REGISTRY).is_ok(), "nobody reads the field");
    let review = GroupVersionKind::new("admission.k8s.io", "v1", "AdmissionReview");
    let read = |levels: usize| {
        let body = format!("{{\"request\":{{\"object\":{}}}}}", nested(levels));
        decode_object(body.as_bytes(), &review, &REGISTRY).map_err(|error| error.message)
    };
    assert!(read(100).is_ok());
    says(&read(200).unwrap_err(), "exceeded max depth");
}

#[test]
fn keys_that_stand_twice_are_told_at_every_level() {
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
    assert_eq!(decoded.value.at(&["data", "x"]), Some(&Value::from("2")), "the last counts");
    let yaml = yaml::decode_object(b"data:\n  x: a\n  x: b\n", &kind(), &REGISTRY).unwrap();
    assert_eq!(yaml.strict, ["yaml: unmarshal errors:\n  line 3: key \"x\" already set in map"]);
    says(
        &refusal(cbor::decode_object, b"\xa1\x44data\xa2\x41x\x41a\x41x\x41b"),
        "cbor: found duplicate map key \"x\" at map element index 1",
    );
}

#[test]
fn text_that_is_no_utf_8_is_replaced_in_json_and_refused_in_yaml() {
    let decoded = decode_object(b"{\"data\":{\"x\":\"a\xff\xfe\"}}", &kind(), &REGISTRY).unwrap();
    assert_eq!(decoded.value.at(&["data", "x"]), Some(&Value::from("a\u{fffd}\u{fffd}")));
    let half = decode_object(br#"{"data":{"x":"\ud800"}}"#, &kind(), &REGISTRY).unwrap();
    assert_eq!(half.value.at(&["data", "x"]), Some(&Value::from("\u{fffd}")));
    says(&refusal(yaml::decode_object, b"data: {x: \"a\xff\"}"), "yaml: ");
    says(&refusal(cbor::decode_object, b"\xa1\x44data\xa1\x41x\x61\xff"), "cbor: invalid UTF-8 string");
}

#[test]
fn numbers_that_are_none_or_do_not_fit_are_refused() {
    for body in [r#"{"data":NaN}"#, r#"{"data":Infinity}"#, r#"{"data":-}"#, r#"{"data":+1}"#] {
        says(&refusal(decode_object, body.as_bytes()), "invalid character");
    }
    let generation = |number: &str| format!(r#"{{"metadata":{{"generation":{number}}}}}"#);
    for number in ["9223372036854775808", "-9223372036854775809", "1e400", "1.5", "1e2"] {
        let body = generation(number);
        says(&refusal(decode_object, body.as_bytes()), &format!("cannot unmarshal number {number} into"));
        // YAML is read before it becomes JSON, which does not tell 1e2 from 100.
        if number != "1e2" {
            refusal(yaml::decode_object, body.as_bytes());
        }
    }
    says(&refusal(yaml::decode_object, b"metadata: {generation: .nan}"), "ConfigMap");
    assert!(decode_object(generation("9223372036854775807").as_bytes(), &kind(), &REGISTRY).is_ok());
    let cbor = |number: &[u8]| [b"\xa1\x48metadata\xa1\x4ageneration", number].concat();
    says(
        &refusal(cbor::decode_object, &cbor(b"\x1b\x80\x00\x00\x00\x00\x00\x00\x00")),
        "of type int64 (9223372036854775808 overflows int64)",
    );
    says(
        &refusal(cbor::decode_object, &cbor(b"\xf9\x3c\x00")),
        "cannot unmarshal primitives into Go struct field",
    );
    says(&refusal(cbor::decode_object, &cbor(b"\xf9\x7e\x00")), "floating-point NaN");
    says(&refusal(cbor::decode_object, &cbor(b"\xc2\x49\x01\x00\x00\x00\x00\x00\x00\x00\x00")), "bignum");
}

#[test]
fn cbor_that_promises_much_is_refused() {
    let promise = 1u64 << 60;
    for (head, why) in [
        (0x5b, "unexpected EOF"),
        (0x7b, "unexpected EOF"),
        (0x9b, "cbor: exceeded max number of elements 1024 for CBOR array"),
        (0xbb, "cbor: exceeded max number of key-value pairs 1024 for CBOR map"),
    ] {
        let mut body = vec![head];
        body.extend_from_slice(&promise.to_be_bytes());
        says(&refusal(cbor::decode_object, &body), why);
        let inside = [b"\xa1\x44data\xa1\x41x", body.as_slice()].concat();
        says(&refusal(cbor::decode_object, &inside), why);
    }
    says(&refusal(cbor::decode_object, &[0x81; 3 << 20]), "cbor: exceeded max nested level 64");
    says(&refusal(cbor::decode_object, &[0x9f; 3 << 20]), "cbor: exceeded max nested level 64");
    says(&refusal(cbor::decode_object, &[0xc6; 3 << 20]), "cbor: exceeded max nested level 64");
    says(&refusal(cbor::decode_object, &[0xa1; 3 << 20]), "cbor: exceeded max nested level 64");
    let mut pieces = vec![0x5f];
    pieces.extend(std::iter::repeat_n(0x40, 3 << 20));
    says(&refusal(cbor::decode_object, &pieces), "unexpected EOF");
    let endless = b"\xbf\x44data\xbf\x41x\x7f\x61a\x61b\xff\xff\xff";
    let decoded = cbor::decode_object(endless, &kind(), &REGISTRY).unwrap();
    assert_eq!(decoded.value.at(&["data", "x"]), Some(&Value::from("ab")), "lengths need not be said");
}

#[test]
fn protobuf_that_promises_much_or_is_deep_is_refused() {
    let body = |message: &[u8]| [b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12", message].concat();
    refusal(protobuf::decode_object, b"k8s\0");
    refusal(protobuf::decode_object, b"{}");
    // A length of 2^60, then one that is longer than any number.
    refusal(protobuf::decode_object, &body(b"\x80\x80\x80\x80\x80\x80\x80\x80\x10"));
    refusal(protobuf::decode_object, &body(&[0xff; 64]));
    assert!(protobuf::decode_object(&body(b"\x00"), &kind(), &REGISTRY).is_ok());
    let mut groups = vec![0x80, 0x80, 0x40];
    groups.extend(std::iter::repeat_n(0x7b, 1 << 20));
    refusal(protobuf::decode_object, &body(&groups));
}

/// A kind whose objects keep whatever they have.
const FREE: &str = r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
    "metadata":{"name":"frees.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
    "names":{"plural":"frees","singular":"free","kind":"Free"},"versions":[{"name":"v1","served":true,"storage":true,
    "schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}"#;

/// A kind whose objects have a set.
const SET: &str = r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
    "metadata":{"name":"sets.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
    "names":{"plural":"sets","singular":"set","kind":"Set"},"versions":[{"name":"v1","served":true,"storage":true,
    "schema":{"openAPIV3Schema":{"type":"object","properties":{"x":{"type":"array","x-kubernetes-list-type":"set",
    "items":{"type":"integer"}}}}}}]}}"#;

/// About a megabyte of parts. `#` in a part is its number.
fn many(part: &str, separator: &str) -> String {
    let parts = (0..(1 << 20) / (part.len() + separator.len())).map(|at| part.replace('#', &at.to_string()));
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
fn packed() -> Vec<u8> {
    let groups = field(14, &field(4, &[1; 1 << 20]));
    let pod = [field(1, &field(1, b"a")), field(2, &groups)].concat();
    let of = field(1, &[field(1, b"v1"), field(2, b"Pod")].concat());
    [b"k8s\0".to_vec(), of, field(2, &pod)].concat()
}

/// The most memory that a server has while it handles a body, above what it had before.
fn peak(path: &str, media_type: &str, body: &[u8]) -> usize {
    let server = Server::start();
    let mut admin = server.admin();
    if path.contains("example.com") {
        let made = admin.request(
            "POST",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &JSON,
            if path.ends_with("sets") { SET } else { FREE }.as_bytes(),
        );
        assert_eq!(made.status, 201, "{}", made.text());
        poll(CAP, || (admin.get(path).status == 200).then_some(())).expect("the kind is served");
    }
    let proc = format!("/proc/{}", server.pid());
    let resident = |line: &str| {
        let status = std::fs::read_to_string(format!("{proc}/status")).unwrap();
        let line = status.lines().find(|found| found.starts_with(line)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    };
    let before = resident("VmRSS:");
    // Resets the high-water mark of the kernel.
    std::fs::write(format!("{proc}/clear_refs"), "5").unwrap();
    let answer = admin.request("POST", path, &[("Content-Type", media_type)], body);
    assert!(answer.status != 400, "{}", answer.text());
    resident("VmHWM:").saturating_sub(before)
}

/// What a server takes besides: buffers of the connection, the log, the store, the thread for heavy work that it starts for its first
/// large body, and what the allocator keeps for each thread.
const BESIDES: usize = 24 << 20;

#[test]
fn a_body_takes_no_more_memory_than_was_estimated() {
    let json = [
        ("integers", free(&format!("[{}]", many("1", ",")))),
        ("empty lists", free(&format!("[{}]", many("[]", ",")))),
        ("lists of one", free(&format!("[{}]", many("[1]", ",")))),
        ("objects of one field", free(&format!("[{}]", many(r#"{"":1}"#, ",")))),
        ("empty texts", free(&format!("[{}]", many(r#""""#, ",")))),
        ("short keys", free(&format!("{{{}}}", many(r##""#":1"##, ",")))),
        ("owned keys", config_map(&format!(r#""data":{{{}}}"#, many(r##""#":"""##, ",")))),
        ("text", config_map(&format!(r#""data":{{"a":"{}"}}"#, many("text", " ")))),
        ("escaped text", config_map(&format!(r#""data":{{"a":"{}"}}"#, "<".repeat(200_000)))),
        ("unknown fields", config_map(&many(r##""#":1"##, ","))),
    ];
    let mut cases: Vec<(&str, &str, Encoding, &str, Vec<u8>)> = Vec::new();
    for (name, (path, body)) in json {
        cases.push((name, path, Encoding::Json, "application/json", body.into_bytes()));
    }
    let head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n";
    let maps = "/api/v1/namespaces/default/configmaps";
    let lines: String = (0..60_000).map(|at| format!("  k{at}: a\n")).collect();
    let block = format!("{head}{lines}");
    let laughs = format!("{head}  a: b\nx: [&a [{}]{}]\n", "1,".repeat(4_000), ",*a".repeat(60));
    cases.push(("YAML lines", maps, Encoding::Yaml, "application/yaml", block.into_bytes()));
    cases.push(("YAML aliases", maps, Encoding::Yaml, "application/yaml", laughs.into_bytes()));
    let pods = "/api/v1/namespaces/default/pods";
    let media_type = "application/vnd.kubernetes.protobuf";
    cases.push(("packed numbers", pods, Encoding::Protobuf, media_type, packed()));
    let mut wrong = Vec::new();
    for (name, path, encoding, media_type, body) in cases {
        let (peak, bound) = (peak(path, media_type, &body), decoded_bytes_bound(encoding, &body));
        let times = |bytes: usize| bytes as f64 / body.len() as f64;
        let line = format!("{name}: {:.1} times the body, estimated {:.1}", times(peak), times(bound));
        if peak > bound + BESIDES || (name == "integers" && times(peak.saturating_sub(BESIDES)) > 30.0) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_owners_of_the_items_of_a_set_take_no_more_memory_than_was_estimated() {
    const ITEMS: usize = 100_000;
    let items: Vec<String> = (0..ITEMS).map(|item| (ITEMS + item).to_string()).collect();
    let head = r#""apiVersion":"example.com/v1","kind":"Set","metadata":{"name":"a"}"#;
    let body = format!("{{{head},\"x\":[{}]}}", items.join(","));
    let bound = decoded_bytes_bound(Encoding::Json, body.as_bytes()) + ITEMS * SET_ITEM_BYTES;
    let peak = peak("/apis/example.com/v1/namespaces/default/sets", "application/json", body.as_bytes());
    assert!(peak <= bound + BESIDES, "{peak} of {bound}");
}

#[test]
fn small_bodies_are_estimated_by_their_length() {
    for encoding in [Encoding::Json, Encoding::Yaml, Encoding::Protobuf, Encoding::Cbor] {
        assert_eq!(decoded_bytes_bound(encoding, b""), 0);
        assert_eq!(decoded_bytes_bound(encoding, &[b'{'; 10]), decoded_bytes_bound(encoding, &[b'x'; 10]));
    }
}
