//! Encodings and representations of objects over HTTP.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use flate2::read::GzDecoder;
use pilothouse_apimachinery::codec;
use regex::bytes::Regex;
use serde_json::{Value, json};

use crate::support::wait::{Deadline, TIMEOUT};
use crate::support::wire::{Connection, Framing};
use crate::support::{Client, Response, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const MAGIC: &[u8] = b"k8s\0";
const YAML: &str = "application/yaml";

fn get(client: &mut Client, path: &str, accept: &str) -> Response {
    client.request("GET", path, &[("Accept", accept)], b"")
}

fn map(name: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"k": "v"}})
}

/// Converts with `pilothouse convert`, as a client would.
fn convert(source: &str, target: &str, body: &[u8]) -> Vec<u8> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pilothouse"))
        .args(["convert", "--from", source, "--to", target])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the converter");
    child.stdin.take().unwrap().write_all(body).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    output.stdout
}

fn to_json(source: &str, body: &[u8]) -> Value {
    serde_json::from_slice(&convert(source, "json", body)).expect("JSON")
}

#[test]
fn object_is_equal_in_every_encoding() {
    let server = Server::with_flags(&["--engine=memory", "--feature-gates=CBORServingAndStorage=true"]);
    let mut client = server.admin();
    for (encoding, media) in [
        ("json", "application/json"),
        ("yaml", "application/yaml"),
        ("protobuf", PROTOBUF),
        ("cbor", "application/cbor"),
    ] {
        let name = format!("in-{encoding}");
        let body = convert("json", encoding, map(&name).to_string().as_bytes());
        let headers = [("Content-Type", media), ("Accept", media)];
        let created = client.request("POST", MAPS, &headers, &body);
        assert_eq!(
            (created.status, created.header("content-type")),
            (201, Some(media)),
            "{}",
            created.text()
        );
        let plain = client.get(&format!("{MAPS}/{name}")).ok();
        assert_eq!(to_json(encoding, &created.body), plain);
        let response = get(&mut client, &format!("{MAPS}/{name}"), media);
        assert_eq!(to_json(encoding, &response.body), plain);
        let list = get(&mut client, &format!("{MAPS}?fieldSelector=metadata.name={name}"), media);
        let list = to_json(encoding, &list.body);
        assert_eq!(list["kind"], "ConfigMapList");
        assert_eq!(list["items"][0]["metadata"], plain["metadata"]);
        let missing = get(&mut client, &format!("{MAPS}/missing"), media);
        assert_eq!((missing.status, missing.header("content-type")), (404, Some(media)));
        assert_eq!(to_json(encoding, &missing.body)["reason"], "NotFound");
    }
}

/// The trailing newline is visible to tools that print responses.
#[test]
fn pretty_json_ends_without_newline_and_compact_json_with_one() {
    let server = Server::start();
    let mut client = server.admin();
    client.post(MAPS, &map("lines")).ok();
    let object = format!("{MAPS}/lines");
    for path in ["/api", "/apis/apps/v1", MAPS, object.as_str(), "/api/v1/namespaces/none"] {
        let line = client.get(path).text();
        assert!(line.ends_with("}\n") && line.lines().count() == 1, "{path}: {line}");
        let indented = client.get(&format!("{path}?pretty=true")).text();
        assert!(indented.ends_with("\n}"), "{path}: {indented}");
    }
    for path in ["/version", "/version?pretty=false", "/version?pretty=true"] {
        assert!(client.get(path).text().ends_with("\"\n}"), "{path}");
    }
}

#[test]
fn cbor_is_refused_without_feature_gate() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    assert_eq!(get(&mut client, MAPS, "application/cbor").status, 406);
    let body = client.request("POST", MAPS, &[("Content-Type", "application/cbor")], b"\xa0");
    assert_eq!(body.status, 415);
    assert_eq!(get(&mut client, MAPS, "application/cbor,application/json").status, 200);
}

#[test]
fn partial_object_metadata_is_served_in_both_versions() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    client.post(MAPS, &map("a")).ok();
    for version in ["v1", "v1beta1"] {
        for (encoding, media) in [("json", "application/json"), ("protobuf", PROTOBUF)] {
            let accept_object = format!("{media};as=PartialObjectMetadata;g=meta.k8s.io;v={version}");
            let response = get(&mut client, &format!("{MAPS}/a"), &accept_object);
            assert_eq!(response.status, 200, "{accept_object}: {}", response.text());
            if encoding == "json" || version == "v1" {
                let partial = to_json(encoding, &response.body);
                assert_eq!(partial["apiVersion"], format!("meta.k8s.io/{version}"));
                assert_eq!((&partial["metadata"]["name"], &partial["data"]), (&json!("a"), &Value::Null));
            }
            let accept_list = format!("{media};as=PartialObjectMetadataList;g=meta.k8s.io;v={version}");
            let response = get(&mut client, MAPS, &accept_list);
            assert_eq!(response.status, 200, "{accept_list}: {}", response.text());
            let list = to_json(encoding, &response.body);
            let names: Vec<&Value> =
                list["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
            assert!(names.contains(&&json!("a")), "{list}");
            assert_eq!(get(&mut client, MAPS, &accept_object).status, 406);
        }
    }
}

#[test]
fn watch_as_table_sends_column_definitions_once() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    client.post(MAPS, &map("a")).ok();
    let table = get(&mut client, &format!("{MAPS}?includeObject=None"), TABLE).ok();
    assert_eq!(table["columnDefinitions"][1]["name"], "Data");
    assert_eq!(table["rows"][0]["object"], Value::Null);
    let empty = get(&mut client, &format!("{MAPS}?labelSelector=none"), TABLE).ok();
    assert_eq!(empty["rows"], json!([]));
    assert_eq!(get(&mut client, &format!("{MAPS}?includeObject=x"), TABLE).status, 400);

    let mut watch = client.raw();
    let head = client.head("GET", &format!("{MAPS}?watch=1"), &[("Accept", TABLE)]);
    watch.send(format!("{head}\r\n").as_bytes()).unwrap();
    assert_eq!(watch.head(Deadline::after(TIMEOUT)).unwrap().status, 200);
    client.post(MAPS, &map("b")).ok();
    let mut events = Vec::new();
    let mut text = Vec::new();
    while events.len() < 2 {
        text.extend(watch.chunk(Deadline::after(TIMEOUT)).unwrap().expect("the watch goes on"));
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            events.push(serde_json::from_slice::<Value>(&line).unwrap());
        }
    }
    let names = |event: &Value| event["object"]["columnDefinitions"].is_array();
    assert_eq!(events.iter().map(names).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn protobuf_watch_is_length_delimited() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    client.post(MAPS, &map("a")).ok();
    let mut watch = client.raw();
    let head = client.head("GET", &format!("{MAPS}?watch=1"), &[("Accept", PROTOBUF)]);
    watch.send(format!("{head}\r\n").as_bytes()).unwrap();
    let head = watch.head(Deadline::after(TIMEOUT)).unwrap();
    assert_eq!(head.header("content-type"), Some("application/vnd.kubernetes.protobuf;stream=watch"));
    let mut bytes = Vec::new();
    while bytes.len() < 4 {
        bytes.extend(watch.chunk(Deadline::after(TIMEOUT)).unwrap().expect("the watch goes on"));
    }
    let length = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
    while bytes.len() < 4 + length {
        bytes.extend(watch.chunk(Deadline::after(TIMEOUT)).unwrap().expect("the watch goes on"));
    }
    let frame = &bytes[4..4 + length];
    assert!(frame.starts_with(b"\x0a\x05ADDED"), "{frame:?}");
    let offset = frame.windows(4).position(|four| four == MAGIC).expect("an object in its envelope");
    assert_eq!(to_json("protobuf", &frame[offset..])["metadata"]["name"], "a");
}

#[test]
fn large_responses_are_gzipped_on_request() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    for number in 0..40 {
        let mut large = map(&format!("m{number}"));
        large["data"]["k"] = json!("x".repeat(8 << 10));
        client.post(MAPS, &large).ok();
    }
    let gzipped = client.request("GET", MAPS, &[("Accept-Encoding", "gzip")], b"");
    assert_eq!(
        (gzipped.header("content-encoding"), gzipped.header("vary")),
        (Some("gzip"), Some("Accept-Encoding"))
    );
    assert!(gzipped.body.starts_with(&[0x1f, 0x8b]) && gzipped.body.len() < 64 << 10);
    let plain = without_versions(&client.get(MAPS).body);
    for (path, accept, expected) in [
        (MAPS.to_owned(), "application/json", plain.clone()),
        (format!("{MAPS}?pretty=1"), "application/json", codec::pretty(&plain)),
        (MAPS.to_owned(), YAML, to_yaml(&plain)),
    ] {
        let headers = [("Accept-Encoding", "gzip"), ("Accept", accept)];
        let gzipped = client.request("GET", &path, &headers, b"");
        assert_eq!(gzipped.header("content-encoding"), Some("gzip"), "{path} {accept}");
        let mut text = Vec::new();
        GzDecoder::new(&*gzipped.body).read_to_end(&mut text).unwrap();
        assert!(without_versions(&text) == expected, "{path} {accept}");
    }
    let small = client.request("GET", &format!("{MAPS}/m1"), &[("Accept-Encoding", "gzip")], b"");
    assert_eq!(small.header("content-encoding"), None);
    let plain = client.get(MAPS);
    assert_eq!(plain.header("content-encoding"), None);
    assert_eq!(plain.ok()["items"].as_array().unwrap().len(), 40);
}

/// A text whose versions have no digits: on etcd, the version of a list rises with what others write meanwhile.
fn without_versions(text: &[u8]) -> Vec<u8> {
    static VERSION: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"(resourceVersion"?: ?")[0-9]+"#).expect("a pattern"));
    VERSION.replace_all(text, b"$1").into_owned()
}

/// A JSON document as YAML.
fn to_yaml(json: &[u8]) -> Vec<u8> {
    codec::yaml::to_yaml(pilothouse_apimachinery::json::read(json).unwrap())
}

/// Lists are encoded in pieces; the result must equal the encoding of the whole.
#[test]
fn streamed_list_equals_whole_encoding() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let text = "\u{e9}\u{20ac} \"{[:,]}\" \\ \u{1f600}\n- x: # ";
    for number in 0..40 {
        let mut small = map(&format!("small-{number}"));
        small["data"] = json!({"k": text.repeat(number), "empty": "", "n": number.to_string()});
        client.post(MAPS, &small).ok();
    }
    // One object is larger than many pieces, with one long string and many short ones.
    let mut large = map("large");
    large["data"] = (0..4_000).map(|number| (format!("k{number}"), json!(text))).collect();
    large["data"]["long"] = json!(text.repeat(8_000));
    client.post(MAPS, &large).ok();
    let partial = |version: &str| format!("as=PartialObjectMetadataList;g=meta.k8s.io;v={version}");
    for (query, form) in [
        ("", String::new()),
        ("", partial("v1")),
        ("", partial("v1beta1")),
        ("", "as=Table;v=v1;g=meta.k8s.io".to_owned()),
        ("includeObject=Object", "as=Table;v=v1;g=meta.k8s.io".to_owned()),
        ("labelSelector=none", String::new()),
        ("labelSelector=none", partial("v1")),
        ("labelSelector=none", "as=Table;v=v1;g=meta.k8s.io".to_owned()),
    ] {
        let (json, yaml) = (format!("application/json;{form}"), format!("{YAML};{form}"));
        let path = format!("{MAPS}?{query}");
        let whole = without_ages(&get(&mut client, &path, &json).body);
        let indented = get(&mut client, &format!("{path}&pretty=true"), &json).body;
        let yaml_body = get(&mut client, &path, &yaml).body;
        let whole = without_versions(&whole);
        assert!(
            without_versions(&without_ages(&indented)) == codec::pretty(&whole),
            "{path} {form}: indented"
        );
        assert!(without_versions(&without_ages(&yaml_body)) == to_yaml(&whole), "{path} {form}: YAML");
    }
}

/// The text with zeros for the ages in a Table, such as `"12s"` or `2m5s`, which differ between two requests.
fn without_ages(text: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(text).unwrap();
    let is_age = |word: &str| {
        let number = word.strip_suffix('s').unwrap_or_default();
        !number.is_empty() && number.chars().all(|letter| letter.is_ascii_digit() || letter == 'm')
    };
    let words = text.split_inclusive(['"', '\n', ' ', ',', ']']);
    let masked = words.map(|word| {
        let (content, end) =
            word.split_at(word.len() - usize::from(word.ends_with(['"', '\n', ' ', ',', ']'])));
        format!("{}{end}", if is_age(content) { "0s" } else { content })
    });
    masked.collect::<String>().into_bytes()
}

/// The resident memory of a process in MiB.
fn resident_mib(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() >> 10
}

/// Sends a request and reads only the head of its response.
fn begin_response(client: &Client, path: &str, accept: &str) -> (Connection, Framing) {
    let mut connection = client.raw();
    let head = client.head("GET", path, &[("Accept", accept)]);
    connection.send(format!("{head}\r\n").as_bytes()).unwrap();
    let head = connection.head(Deadline::after(TIMEOUT)).unwrap();
    assert_eq!(head.status, 200, "{path} {accept}");
    (connection, Connection::framing(&head, "GET"))
}

/// Each of these lists is a tenth of the list budget, and none is read: they are encoded as clients read, so none is refused, and
/// the unsent part takes no memory.
#[test]
fn unread_lists_are_not_buffered_in_any_encoding() {
    const LISTS: usize = 10;
    const OBJECTS: usize = 20;
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    for number in 0..OBJECTS {
        let mut large = map(&format!("m{number}"));
        large["data"]["k"] = json!("\u{e9} \"\\".repeat(200_000));
        client.post(MAPS, &large).ok();
    }
    let plain = without_versions(&client.get(MAPS).body);
    assert!(plain.len() > OBJECTS << 20, "{}", plain.len());
    for (query, accept) in [("?pretty=true", "application/json"), ("", YAML), ("", PROTOBUF)] {
        let before = resident_mib(&server);
        let path = format!("{MAPS}{query}");
        let mut lists: Vec<_> = (0..LISTS).map(|_| begin_response(&client, &path, accept)).collect();
        let after = resident_mib(&server);
        assert!(after < before + LISTS * OBJECTS / 2, "{accept}{query}: {before} MiB, then {after} MiB");
        assert_eq!(client.new_connection().get(&format!("{MAPS}?limit=1")).status, 200, "{accept}{query}");
        let mut read_body = |index: usize| {
            let (list, framing) = lists.get_mut(index).unwrap();
            list.body(*framing, Deadline::after(TIMEOUT)).unwrap()
        };
        match accept {
            PROTOBUF => {
                // The first lists cache their messages; the last has no budget for that and is encoded twice.
                let (first, last) = (read_body(0), read_body(LISTS - 1));
                assert!(first.starts_with(MAGIC) && first == last);
            }
            YAML => {}
            _ => assert!(without_versions(&read_body(LISTS - 1)) == codec::pretty(&plain)),
        }
    }
}

/// Deep in an object, two bytes of JSON become a line of two hundred.
#[test]
fn unread_pretty_object_is_not_buffered() {
    const TIMES: usize = 10;
    const PATH: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let data = format!("{}{}1{}", "[".repeat(80), "1,".repeat(150_000), "]".repeat(80));
    let body = format!(
        r#"{{"kind":"ControllerRevision","apiVersion":"apps/v1","metadata":{{"name":"deep"}},"revision":1,"data":{{"k":{data}}}}}"#
    );
    let created = client.request("POST", PATH, &[("Content-Type", "application/json")], body.as_bytes());
    assert_eq!(created.status, 201, "{}", created.text());
    let path = format!("{PATH}/deep");
    let plain = client.get(&path).body;
    for (query, accept, expected) in
        [("?pretty=true", "application/json", codec::pretty(&plain)), ("", YAML, to_yaml(&plain))]
    {
        let (before, path) = (resident_mib(&server), format!("{path}{query}"));
        let mut responses: Vec<_> = (0..TIMES).map(|_| begin_response(&client, &path, accept)).collect();
        let (after, total) = (resident_mib(&server), (TIMES * expected.len()) >> 20);
        assert!(
            total > 200 && after < before + total * 2 / 3,
            "{accept}: {before} MiB, then {after} of {total} MiB"
        );
        let (connection, framing) = responses.last_mut().unwrap();
        assert!(connection.body(*framing, Deadline::after(TIMEOUT)).unwrap() == expected, "{accept}");
    }
}

#[test]
fn component_statuses_are_served_in_all_forms() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let path = "/api/v1/componentstatuses";
    let list = get(&mut client, path, PROTOBUF);
    assert_eq!(to_json("protobuf", &list.body)["items"][1]["metadata"]["name"], "etcd-0");
    let response = get(&mut client, &format!("{path}/etcd-0"), PROTOBUF);
    assert_eq!(to_json("protobuf", &response.body)["conditions"][0]["status"], "True");
    let table = get(&mut client, path, TABLE).ok();
    assert_eq!(table["rows"][1]["cells"][0], "etcd-0");
}
