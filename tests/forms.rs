//! One object in every form that a client can ask for, over HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::wait::{CAP, Deadline};
use support::{Answer, Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const MAGIC: &[u8] = b"k8s\0";

fn get(client: &mut Client, path: &str, accept: &str) -> Answer {
    client.request("GET", path, &[("Accept", accept)], b"")
}

fn map(name: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"k": "v"}})
}

/// The converter of the server's own binary: the other end of the wire.
fn convert(from: &str, to: &str, body: &[u8]) -> Vec<u8> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pilothouse"))
        .args(["convert", "--from", from, "--to", to])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the converter");
    child.stdin.take().unwrap().write_all(body).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    output.stdout
}

fn read(from: &str, body: &[u8]) -> Value {
    serde_json::from_slice(&convert(from, "json", body)).expect("JSON")
}

#[test]
fn the_same_object_in_every_encoding() {
    let server = Server::with(&["--engine=memory", "--feature-gates=CBORServingAndStorage=true"]);
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
        let made = client.request("POST", MAPS, &headers, &body);
        assert_eq!((made.status, made.header("content-type")), (201, Some(media)), "{}", made.text());
        let plain = client.get(&format!("{MAPS}/{name}")).ok();
        assert_eq!(read(encoding, &made.body), plain);
        let got = get(&mut client, &format!("{MAPS}/{name}"), media);
        assert_eq!(read(encoding, &got.body), plain);
        let list = get(&mut client, &format!("{MAPS}?fieldSelector=metadata.name={name}"), media);
        let list = read(encoding, &list.body);
        assert_eq!(list["kind"], "ConfigMapList");
        assert_eq!(list["items"][0]["metadata"], plain["metadata"]);
        let missing = get(&mut client, &format!("{MAPS}/missing"), media);
        assert_eq!((missing.status, missing.header("content-type")), (404, Some(media)));
        assert_eq!(read(encoding, &missing.body)["reason"], "NotFound");
    }
}

/// Tools that print a response and go on in the same line see whether one ends.
#[test]
fn indented_json_ends_without_a_line_break_and_other_json_with_one() {
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
fn cbor_is_refused_while_its_gate_is_closed() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    assert_eq!(get(&mut client, MAPS, "application/cbor").status, 406);
    let body = client.request("POST", MAPS, &[("Content-Type", "application/cbor")], b"\xa0");
    assert_eq!(body.status, 415);
    assert_eq!(get(&mut client, MAPS, "application/cbor,application/json").status, 200);
}

#[test]
fn metadata_alone_in_both_versions() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    client.post(MAPS, &map("a")).ok();
    for version in ["v1", "v1beta1"] {
        for (encoding, media) in [("json", "application/json"), ("protobuf", PROTOBUF)] {
            let one = format!("{media};as=PartialObjectMetadata;g=meta.k8s.io;v={version}");
            let answer = get(&mut client, &format!("{MAPS}/a"), &one);
            assert_eq!(answer.status, 200, "{one}: {}", answer.text());
            if encoding == "json" || version == "v1" {
                let partial = read(encoding, &answer.body);
                assert_eq!(partial["apiVersion"], format!("meta.k8s.io/{version}"));
                assert_eq!((&partial["metadata"]["name"], &partial["data"]), (&json!("a"), &Value::Null));
            }
            let many = format!("{media};as=PartialObjectMetadataList;g=meta.k8s.io;v={version}");
            let answer = get(&mut client, MAPS, &many);
            assert_eq!(answer.status, 200, "{many}: {}", answer.text());
            let list = read(encoding, &answer.body);
            let names: Vec<&Value> =
                list["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
            assert!(names.contains(&&json!("a")), "{list}");
            assert_eq!(get(&mut client, MAPS, &one).status, 406);
        }
    }
}

#[test]
fn a_table_names_its_columns_once() {
    let server = Server::with(&["--engine=memory"]);
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
    assert_eq!(watch.head(Deadline::after(CAP)).unwrap().status, 200);
    client.post(MAPS, &map("b")).ok();
    let mut events = Vec::new();
    let mut text = Vec::new();
    while events.len() < 2 {
        text.extend(watch.chunk(Deadline::after(CAP)).unwrap().expect("the watch goes on"));
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            events.push(serde_json::from_slice::<Value>(&line).unwrap());
        }
    }
    let names = |event: &Value| event["object"]["columnDefinitions"].is_array();
    assert_eq!(events.iter().map(names).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_watch_in_protobuf_is_a_row_of_frames() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    client.post(MAPS, &map("a")).ok();
    let mut watch = client.raw();
    let head = client.head("GET", &format!("{MAPS}?watch=1"), &[("Accept", PROTOBUF)]);
    watch.send(format!("{head}\r\n").as_bytes()).unwrap();
    let head = watch.head(Deadline::after(CAP)).unwrap();
    assert_eq!(head.header("content-type"), Some("application/vnd.kubernetes.protobuf;stream=watch"));
    let mut bytes = Vec::new();
    while bytes.len() < 4 {
        bytes.extend(watch.chunk(Deadline::after(CAP)).unwrap().expect("the watch goes on"));
    }
    let length = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
    while bytes.len() < 4 + length {
        bytes.extend(watch.chunk(Deadline::after(CAP)).unwrap().expect("the watch goes on"));
    }
    let frame = &bytes[4..4 + length];
    assert!(frame.starts_with(b"\x0a\x05ADDED"), "{frame:?}");
    let at = frame.windows(4).position(|four| four == MAGIC).expect("an object in its envelope");
    assert_eq!(read("protobuf", &frame[at..])["metadata"]["name"], "a");
}

#[test]
fn large_answers_are_compressed_for_those_who_take_it() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    for number in 0..40 {
        let mut large = map(&format!("m{number}"));
        large["data"]["k"] = json!("x".repeat(8 << 10));
        client.post(MAPS, &large).ok();
    }
    let zipped = client.request("GET", MAPS, &[("Accept-Encoding", "gzip")], b"");
    assert_eq!(
        (zipped.header("content-encoding"), zipped.header("vary")),
        (Some("gzip"), Some("Accept-Encoding"))
    );
    assert!(zipped.body.starts_with(&[0x1f, 0x8b]) && zipped.body.len() < 64 << 10);
    let small = client.request("GET", &format!("{MAPS}/m1"), &[("Accept-Encoding", "gzip")], b"");
    assert_eq!(small.header("content-encoding"), None);
    let plain = client.get(MAPS);
    assert_eq!(plain.header("content-encoding"), None);
    assert_eq!(plain.ok()["items"].as_array().unwrap().len(), 40);
}

#[test]
fn the_status_of_components_is_no_exception() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let path = "/api/v1/componentstatuses";
    let list = get(&mut client, path, PROTOBUF);
    assert_eq!(read("protobuf", &list.body)["items"][1]["metadata"]["name"], "etcd-0");
    let one = get(&mut client, &format!("{path}/etcd-0"), PROTOBUF);
    assert_eq!(read("protobuf", &one.body)["conditions"][0]["status"], "True");
    let table = get(&mut client, path, TABLE).ok();
    assert_eq!(table["rows"][1]["cells"][0], "etcd-0");
}
