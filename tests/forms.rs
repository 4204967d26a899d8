//! One object in every form that a client can ask for, over HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use flate2::read::GzDecoder;
use pilothouse_apimachinery::codec;
use serde_json::{Value, json};
use support::wait::{CAP, Deadline};
use support::wire::{Connection, Framing};
use support::{Answer, Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const MAGIC: &[u8] = b"k8s\0";
const YAML: &str = "application/yaml";

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
    let plain = client.get(MAPS).body;
    for (path, accept, expected) in [
        (MAPS.to_owned(), "application/json", plain.clone()),
        (format!("{MAPS}?pretty=1"), "application/json", codec::pretty(&plain)),
        (MAPS.to_owned(), YAML, yaml_of(&plain)),
    ] {
        let headers = [("Accept-Encoding", "gzip"), ("Accept", accept)];
        let zipped = client.request("GET", &path, &headers, b"");
        assert_eq!(zipped.header("content-encoding"), Some("gzip"), "{path} {accept}");
        let mut text = Vec::new();
        GzDecoder::new(&*zipped.body).read_to_end(&mut text).unwrap();
        assert!(text == expected, "{path} {accept}");
    }
    let small = client.request("GET", &format!("{MAPS}/m1"), &[("Accept-Encoding", "gzip")], b"");
    assert_eq!(small.header("content-encoding"), None);
    let plain = client.get(MAPS);
    assert_eq!(plain.header("content-encoding"), None);
    assert_eq!(plain.ok()["items"].as_array().unwrap().len(), 40);
}

/// A JSON document as YAML.
fn yaml_of(json: &[u8]) -> Vec<u8> {
    codec::yaml::to_yaml(pilothouse_apimachinery::json::read(json).unwrap())
}

/// Lists are laid out piece by piece; what comes out is what laying out the whole would give.
#[test]
fn a_list_that_is_laid_out_in_pieces_is_the_list_as_a_whole() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let text = "\u{e9}\u{20ac} \"{[:,]}\" \\ \u{1f600}\n- x: # ";
    for number in 0..40 {
        let mut small = map(&format!("small-{number}"));
        small["data"] = json!({"k": text.repeat(number), "empty": "", "n": number.to_string()});
        client.post(MAPS, &small).ok();
    }
    // One object is larger than many pieces, by one long text and by many short ones.
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
        // Tables have ages: what is compared must have been sent within one second.
        let compared = (0..20).any(|_| {
            let before = get(&mut client, &path, &json).body;
            let indented = get(&mut client, &format!("{path}&pretty=true"), &json).body;
            let in_yaml = get(&mut client, &path, &yaml).body;
            if get(&mut client, &path, &json).body != before {
                return false;
            }
            assert!(indented == codec::pretty(&before), "{path} {form}: indented");
            assert!(in_yaml == yaml_of(&before), "{path} {form}: YAML");
            true
        });
        assert!(compared, "{path} {form}");
    }
}

/// The resident memory of a process in MiB.
fn resident(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() >> 10
}

/// A response of which only the head is read so far.
fn begun(client: &Client, path: &str, accept: &str) -> (Connection, Framing) {
    let mut connection = client.raw();
    let head = client.head("GET", path, &[("Accept", accept)]);
    connection.send(format!("{head}\r\n").as_bytes()).unwrap();
    let head = connection.head(Deadline::after(CAP)).unwrap();
    assert_eq!(head.status, 200, "{path} {accept}");
    (connection, Connection::framing(&head, "GET"))
}

/// Each of these lists is a tenth of what all lists in flight may hold, and none is read: they are made as their clients read, so
/// neither is one of them refused, nor do they take the memory of what is still to be sent.
#[test]
fn lists_that_nobody_reads_are_not_held_in_memory_in_any_encoding() {
    const LISTS: usize = 10;
    const OBJECTS: usize = 20;
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    for number in 0..OBJECTS {
        let mut large = map(&format!("m{number}"));
        large["data"]["k"] = json!("\u{e9} \"\\".repeat(200_000));
        client.post(MAPS, &large).ok();
    }
    let plain = client.get(MAPS).body;
    assert!(plain.len() > OBJECTS << 20, "{}", plain.len());
    for (query, accept) in [("?pretty=true", "application/json"), ("", YAML), ("", PROTOBUF)] {
        let before = resident(&server);
        let path = format!("{MAPS}{query}");
        let mut lists: Vec<_> = (0..LISTS).map(|_| begun(&client, &path, accept)).collect();
        let after = resident(&server);
        assert!(after < before + LISTS * OBJECTS / 2, "{accept}{query}: {before} MiB, then {after} MiB");
        assert_eq!(client.again().get(&format!("{MAPS}?limit=1")).status, 200, "{accept}{query}");
        let mut whole = |at: usize| {
            let (list, framing) = lists.get_mut(at).unwrap();
            list.body(*framing, Deadline::after(CAP)).unwrap()
        };
        match accept {
            PROTOBUF => {
                // The first ones keep their messages, and the last finds no room for them and is encoded twice.
                let (first, last) = (whole(0), whole(LISTS - 1));
                assert!(first.starts_with(MAGIC) && first == last);
            }
            YAML => {}
            _ => assert!(whole(LISTS - 1) == codec::pretty(&plain)),
        }
    }
}

/// Deep in an object, two bytes of JSON become a line of two hundred.
#[test]
fn an_object_that_grows_when_it_is_indented_is_not_held_in_memory() {
    const TIMES: usize = 10;
    const PATH: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let data = format!("{}{}1{}", "[".repeat(80), "1,".repeat(150_000), "]".repeat(80));
    let body = format!(
        r#"{{"kind":"ControllerRevision","apiVersion":"apps/v1","metadata":{{"name":"deep"}},"revision":1,"data":{{"k":{data}}}}}"#
    );
    let made = client.request("POST", PATH, &[("Content-Type", "application/json")], body.as_bytes());
    assert_eq!(made.status, 201, "{}", made.text());
    let path = format!("{PATH}/deep");
    let plain = client.get(&path).body;
    for (query, accept, expected) in
        [("?pretty=true", "application/json", codec::pretty(&plain)), ("", YAML, yaml_of(&plain))]
    {
        let (before, path) = (resident(&server), format!("{path}{query}"));
        let mut unread: Vec<_> = (0..TIMES).map(|_| begun(&client, &path, accept)).collect();
        let (after, all) = (resident(&server), (TIMES * expected.len()) >> 20);
        assert!(
            all > 200 && after < before + all * 2 / 3,
            "{accept}: {before} MiB, then {after} of {all} MiB"
        );
        let (connection, framing) = unread.last_mut().unwrap();
        assert!(connection.body(*framing, Deadline::after(CAP)).unwrap() == expected, "{accept}");
    }
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
