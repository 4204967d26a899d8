//! `pilothouse copy`: a data directory and etcd, in both directions.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use pilothouse_etcd::Client as EtcdClient;
use pilothouse_etcd::messages::{KeyValue, LeaseGrantRequest, PutRequest, RangeRequest};
use pilothouse_etcd::testing::{Cluster, Options};
use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::compare::revision;
use crate::support::etcd::cluster;
use crate::support::server::{Server, temp_directory};
use crate::support::wait::{TIMEOUT, poll};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const KITES: &str = "/apis/toys.example/v1/namespaces/default/kites";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const MARK: &str = "/registry/pilothouse/copy";
/// What a test compares before and after a copy.
const COLLECTIONS: [&str; 7] = [
    MAPS,
    SECRETS,
    KITES,
    DEFINITIONS,
    "/api/v1/namespaces/default/services",
    "/api/v1/namespaces/default/events",
    "/apis/apps/v1/namespaces/default/deployments",
];
/// Keys of 32 bytes.
const KEYS: [&str; 2] =
    ["MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="];

/// Runs the command.
fn copy(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilothouse"));
    command.arg("copy").args(arguments).output().expect("the binary")
}

/// Runs the command, which succeeds, and returns what it prints.
fn copy_all(arguments: &[&str]) -> String {
    let output = copy(arguments);
    assert!(output.status.success(), "{output:?}");
    text(&output)
}

/// Runs the command, which fails, and returns what it prints.
fn copy_refusal(arguments: &[&str]) -> String {
    let output = copy(arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    text(&output)
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// A flag for a configuration in which this key encrypts secrets.
fn encryption(directory: &Path, key: usize) -> String {
    let path = directory.join(format!("encryption-{key}.json"));
    let keys = json!([{"name": format!("key-{key}"), "secret": KEYS[key]}]);
    let resources = json!([{"resources": ["secrets"], "providers": [{"aesgcm": {"keys": keys}}]}]);
    let file = json!({"kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1",
        "resources": resources});
    std::fs::write(&path, file.to_string()).unwrap();
    format!("--encryption-provider-config={}", path.display())
}

/// Works with what is in etcd, past all servers.
fn in_etcd<T>(etcd: &Cluster, work: impl AsyncFnOnce(EtcdClient) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { work(etcd.client()).await })
}

fn key(etcd: &Cluster, key: &str) -> Option<KeyValue> {
    let request = RangeRequest::key(key.to_owned());
    in_etcd(etcd, async |client| client.range(request).await.unwrap().kvs.pop())
}

fn put(etcd: &Cluster, key: &str, value: &str) {
    let request = PutRequest::new(key.to_owned(), value.to_owned());
    in_etcd(etcd, async |client| client.put(request).await.unwrap());
}

fn in_file(data: &Path, flags: &[&str]) -> Server {
    Server::start_in(data, &[flags, &["--engine=redb"]].concat())
}

fn on_etcd(data: &Path, etcd: &Cluster, flags: &[&str]) -> Server {
    let servers = format!("--etcd-servers={}", etcd.members[0].url());
    Server::start_in(data, &[flags, &[servers.as_str()]].concat())
}

fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"value": value}})
}

/// Objects of several kinds.
fn fill(admin: &mut Client) {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
    let names = json!({"plural": "kites", "singular": "kite", "kind": "Kite"});
    let spec = json!({"group": "toys.example", "names": names, "scope": "Namespaced", "versions": [version]});
    let definition = json!({"metadata": {"name": "kites.toys.example"}, "spec": spec});
    admin.post(DEFINITIONS, &definition).ok();
    wait_until_served(admin);
    for number in 0..20 {
        admin.post(MAPS, &map(&format!("map-{number}"), "first")).ok();
        let kite = json!({"apiVersion": "toys.example/v1", "kind": "Kite",
            "metadata": {"name": format!("kite-{number}")}, "length": number});
        admin.post(KITES, &kite).ok();
    }
    for number in 0..5 {
        admin.put(&format!("{MAPS}/map-{number}"), &map(&format!("map-{number}"), "second")).ok();
    }
    admin.delete(&format!("{MAPS}/map-19")).ok();
    let secret =
        json!({"metadata": {"name": "map-of-treasure"}, "stringData": {"place": "x-marks-the-spot"}});
    admin.post(SECRETS, &secret).ok();
    let port = json!({"port": 80, "nodePort": 30_123});
    let service = json!({"metadata": {"name": "web"}, "spec": {"type": "NodePort", "ports": [port]}});
    admin.post(COLLECTIONS[4], &service).ok();
    let event =
        json!({"metadata": {"name": "seen"}, "involvedObject": {"namespace": "default"}, "reason": "Seen"});
    admin.post(COLLECTIONS[5], &event).ok();
    let template = json!({"metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let spec = json!({"selector": {"matchLabels": {"app": "a"}}, "template": template});
    admin.post(COLLECTIONS[6], &json!({"metadata": {"name": "web"}, "spec": spec})).ok();
}

fn wait_until_served(admin: &mut Client) {
    poll(TIMEOUT, || (admin.get(KITES).status == 200).then_some(())).expect("kites are served");
}

/// The objects of all collections, without their versions.
fn contents(admin: &mut Client) -> Vec<Value> {
    wait_until_served(admin);
    let mut all = Vec::new();
    for collection in COLLECTIONS {
        for item in admin.get(collection).ok()["items"].as_array().unwrap() {
            let mut item = item.clone();
            item["metadata"].as_object_mut().unwrap().remove("resourceVersion");
            all.push(item);
        }
    }
    all
}

fn assert_expired(server: &Server, collection: &str, version: u64) {
    let event = server.admin().watch(collection, &format!("resourceVersion={version}")).next();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)), "{event}");
}

#[test]
fn store_moves_into_etcd_and_back() {
    let (directory, etcd) = (temp_directory(), cluster(1));
    let [one, other, two] = ["one", "other", "two"].map(|name| directory.path().join(name));
    let (flag, url) = (encryption(directory.path(), 0), etcd.members[0].url());
    let server = in_file(&one, &[&flag]);
    let mut admin = server.admin();
    fill(&mut admin);
    let expected = contents(&mut admin);
    let old_versions = COLLECTIONS.map(|collection| revision(&admin.get(collection).ok()));
    let to_etcd = ["--from-data-dir", one.to_str().unwrap(), "--to-etcd", &url, &flag];
    assert!(copy_refusal(&to_etcd).contains("is in use by another process"));
    assert_eq!(key(&etcd, MARK), None);
    server.stop();

    let output = copy_all(&to_etcd);
    assert!(output.contains("into etcd") && !output.contains("not copied"), "{output}");
    assert_eq!(key(&etcd, MARK), None);
    let secret = key(&etcd, "/registry/secrets/default/map-of-treasure").unwrap();
    assert!(secret.value.starts_with(b"k8s:enc:aesgcm:v1:key-0:"));
    assert_ne!(key(&etcd, "/registry/events/default/seen").unwrap().lease, 0, "it expires");
    assert!(copy_refusal(&to_etcd).contains("etcd is not empty"));
    let server = on_etcd(&other, &etcd, &[&flag]);
    let mut admin = server.admin();
    assert_eq!(contents(&mut admin), expected);
    for (collection, version) in COLLECTIONS.into_iter().zip(old_versions) {
        assert_expired(&server, collection, version);
    }
    admin.post(MAPS, &map("later", "")).ok();
    let expected = contents(&mut admin);
    let old_versions = COLLECTIONS.map(|collection| revision(&admin.get(collection).ok()));

    // The server goes on.
    let to_directory = ["--from-etcd", &url, "--to-data-dir", two.to_str().unwrap(), &flag];
    let output = copy_all(&to_directory);
    assert!(output.contains("Revisions go on from"), "{output}");
    assert!(copy_refusal(&to_directory).contains("exists: move it away"));
    assert_eq!(contents(&mut admin), expected);
    server.stop();
    let store = std::fs::read(two.join("pilothouse.redb")).unwrap();
    let holds = |text: &str| store.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(holds("kite-7") && !holds("map-of-treasure") && holds("k8s:enc:aesgcm:v1:key-0:"));
    let server = in_file(&two, &[&flag]);
    let mut admin = server.admin();
    assert_eq!(contents(&mut admin), expected);
    for (collection, version) in COLLECTIONS.into_iter().zip(old_versions) {
        assert!(revision(&admin.get(collection).ok()) > version);
        assert_expired(&server, collection, version);
    }
    let created = admin.post(MAPS, &map("last", "")).ok();
    assert!(revision(&created) > old_versions[0]);
    // An object keeps the version that it had in etcd until it is written.
    let listed = admin.get(&format!("{MAPS}/later")).ok();
    assert!(revision(&listed) <= old_versions[0]);
    let mut changed = listed;
    changed["data"]["value"] = json!("changed");
    assert!(revision(&admin.put(&format!("{MAPS}/later"), &changed).ok()) > old_versions[0]);
}

/// Whether a server starts on this etcd.
fn starts(data: &Path, etcd: &Cluster, flags: &[&str]) -> Result<Server, String> {
    let servers = format!("--etcd-servers={}", etcd.members[0].url());
    let flags = [&[servers.as_str(), "--storage-initialization-timeout=3s"], flags].concat();
    Server::try_start_in(data, &flags).map_err(|failure| format!("{}{}", failure.stdout, failure.stderr))
}

#[test]
fn no_server_starts_on_a_copy_that_lacks_something() {
    let directory = temp_directory();
    let options = Options { flags: vec!["--max-request-bytes=100000".to_owned()], ..Options::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let etcd = runtime.block_on(Cluster::start(options));
    let (data, url) = (directory.path().join("data"), etcd.members[0].url());
    let server = in_file(&data, &[]);
    let mut admin = server.admin();
    admin.post(MAPS, &map("large", &"x".repeat(200_000))).ok();
    admin.post(MAPS, &map("small", "x")).ok();
    server.stop();
    let arguments = ["--from-data-dir", data.to_str().unwrap(), "--to-etcd", &url];
    let output = copy_refusal(&arguments);
    assert!(output.contains("configmaps default/large cannot be copied"), "{output}");
    assert!(output.contains("1 object cannot be copied") && output.contains("--drop-unreadable"), "{output}");
    assert!(key(&etcd, MARK).is_some() && key(&etcd, "/registry/configmaps/default/small").is_some());
    let failure =
        starts(&directory.path().join("early"), &etcd, &[]).err().expect("the copy is not finished");
    assert!(failure.contains("a copy into this etcd is not finished"), "{failure}");
    let back = directory.path().join("back");
    let output = copy_refusal(&["--from-etcd", &url, "--to-data-dir", back.to_str().unwrap()]);
    assert!(output.contains("a copy into this etcd was begun and is not finished"), "{output}");
    assert!(!back.join("pilothouse.redb").exists());

    let output = copy_all(&[&arguments[..], &["--drop-unreadable"]].concat());
    assert!(output.contains("of an unfinished copy") && output.contains("left out: 1 object"), "{output}");
    let server = starts(&directory.path().join("late"), &etcd, &[]).unwrap();
    let mut admin = server.admin();
    assert_eq!(admin.get(&format!("{MAPS}/small")).ok()["data"]["value"], "x");
    admin.get(&format!("{MAPS}/large")).expect_error(404, "NotFound");
}

#[test]
fn etcd_in_use_is_no_target() {
    let (directory, etcd) = (temp_directory(), cluster(1));
    let (data, url) = (directory.path().join("data"), etcd.members[0].url());
    in_file(&data, &[]).stop();
    let arguments = ["--from-data-dir", data.to_str().unwrap(), "--to-etcd", &url];
    put(&etcd, "/registry/other", "value");
    let output = copy_refusal(&arguments);
    assert!(output.contains("etcd is not empty") && output.contains("/registry/other"), "{output}");
    assert_eq!((key(&etcd, MARK), key(&etcd, "/registry/other").unwrap().value), (None, "value".into()));
    copy_all(&[&arguments[..], &["--etcd-prefix=/elsewhere"]].concat());

    // What a server has written on an unfinished copy is not removed either.
    put(&etcd, "/third/pilothouse/copy", "unfinished");
    put(&etcd, "/third/namespaces/default", "copied");
    put(&etcd, "/third/namespaces/default", "changed");
    let output = copy_refusal(&[&arguments[..], &["--etcd-prefix=/third"]].concat());
    assert!(output.contains("/third/namespaces/default does not come from it"), "{output}");
    assert_eq!(key(&etcd, "/third/namespaces/default").unwrap().value, "changed");
}

#[test]
fn copy_with_a_wrong_key_makes_no_store() {
    let (directory, etcd) = (temp_directory(), cluster(1));
    let (right, wrong) = (encryption(directory.path(), 0), encryption(directory.path(), 1));
    let server = on_etcd(&directory.path().join("server"), &etcd, &[&right]);
    let mut admin = server.admin();
    admin.post(SECRETS, &json!({"metadata": {"name": "kept"}, "stringData": {"a": "b"}})).ok();
    admin.post(MAPS, &map("clear", "")).ok();
    let (target, url) = (directory.path().join("target"), etcd.members[0].url());
    let arguments = ["--from-etcd", &url, "--to-data-dir", target.to_str().unwrap()];
    for flags in [&[wrong.as_str()][..], &[]] {
        let output = copy_refusal(&[&arguments[..], flags].concat());
        assert!(output.contains("secrets default/kept cannot be copied: "), "{output}");
        let left: Vec<_> = std::fs::read_dir(&target).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
    let output = copy_all(&[&arguments[..], &[&wrong, "--drop-unreadable"]].concat());
    assert!(output.contains("secrets default/kept left out: "), "{output}");
    drop(server);
    let server = in_file(&target, &[&wrong]);
    let mut admin = server.admin();
    admin.get(&format!("{SECRETS}/kept")).expect_error(404, "NotFound");
    admin.get(&format!("{MAPS}/clear")).ok();
}

#[test]
fn what_belongs_to_no_resource_is_named() {
    let (directory, etcd) = (temp_directory(), cluster(1));
    let (target, url) = (directory.path().join("target"), etcd.members[0].url());
    let map =
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default","uid":"u"}}"#;
    put(&etcd, "/registry/configmaps/default/a", map);
    put(&etcd, "/registry/configmaps/default/damaged", "{");
    for number in 0..3 {
        put(&etcd, &format!("/registry/toys.example/kites/default/{number}"), "{}");
    }
    put(&etcd, "/registry/alone", "");
    put(&etcd, "/registry/ranges/servicenodeports", "");
    put(&etcd, "/calico/a", "");
    let arguments = ["--from-etcd", &url, "--to-data-dir", target.to_str().unwrap()];
    assert!(
        copy_refusal(&arguments)
            .contains("configmaps default/damaged cannot be copied: its value in etcd is")
    );
    let output = copy_all(&[&arguments[..], &["--drop-unreadable"]].concat());
    for expected in [
        "not copied: 3 keys of /registry/toys.example/kites/, such as /registry/toys.example/kites/default/0",
        "not copied: 1 key of /registry/alone",
        "not copied: 1 record by which servers agree",
        "Copied 1 objects of 1 resources",
    ] {
        assert!(output.contains(expected), "{output}");
    }
    assert!(!output.contains("calico"), "{output}");
    let server = in_file(&target, &[]);
    assert_eq!(server.admin().get(&format!("{MAPS}/a")).ok()["metadata"]["uid"], "u");
}

/// An event keeps the time that it has left, in both directions.
#[test]
fn events_expire_when_they_would_have() {
    let (directory, etcd) = (temp_directory(), cluster(1));
    let (data, url) = (directory.path().join("data"), etcd.members[0].url());
    let event = r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"a","namespace":"default"},"involvedObject":{}}"#;
    let map = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default"}}"#;
    put(&etcd, "/registry/configmaps/default/a", map);
    in_etcd(&etcd, async |client| {
        let lease = client.lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await.unwrap().id;
        let request = PutRequest { lease, ..PutRequest::new("/registry/events/default/a", event) };
        client.put(request).await.unwrap();
    });
    let directory = data.to_str().unwrap();
    copy_all(&["--from-etcd", &url, "--to-data-dir", directory]);
    copy_all(&["--from-data-dir", directory, "--to-etcd", &url, "--etcd-prefix=/back"]);
    let lease = key(&etcd, "/back/events/default/a").unwrap().lease;
    let lease = in_etcd(&etcd, async |client| client.lease_time_to_live(lease, false).await.unwrap());
    // Events share leases, so they may live a twentieth longer.
    assert!((1..=630).contains(&lease.granted_ttl), "{lease:?}");
    assert_eq!(key(&etcd, "/back/configmaps/default/a").unwrap().lease, 0);
    copy_all(&["--from-data-dir", directory, "--to-etcd", &url, "--etcd-prefix=/for-ever", "--event-ttl=0"]);
    assert_eq!(key(&etcd, "/for-ever/events/default/a").unwrap().lease, 0);
}

/// Begins a copy below this prefix and kills it. Returns whether it was not finished.
fn copy_and_kill(data: &Path, etcd: &Cluster, prefix: &str) -> bool {
    let (_, folder) = prefix.split_once('=').unwrap();
    let mark = MARK.replace("/registry", folder);
    let mut child = Command::new(env!("CARGO_BIN_EXE_pilothouse"))
        .args([
            "copy",
            "--from-data-dir",
            data.to_str().unwrap(),
            "--to-etcd",
            &etcd.members[0].url(),
            prefix,
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let has_begun = || {
        let ended = child.try_wait().unwrap().is_some();
        (ended || key(etcd, &mark).is_some()).then_some(())
    };
    poll(TIMEOUT, has_begun).expect("it begins");
    child.kill().unwrap();
    child.wait().unwrap();
    key(etcd, &mark).is_some()
}

#[test]
fn copy_that_was_killed_is_repeated() {
    let (directory, etcd) = (temp_directory(), cluster(1));
    let (data, url) = (directory.path().join("data"), etcd.members[0].url());
    let server = in_file(&data, &[]);
    let mut admin = server.admin();
    for number in 0..500 {
        admin.post(MAPS, &map(&format!("map-{number}"), "x")).ok();
    }
    let names = |admin: &mut Client| -> Vec<Value> {
        let list = admin.get(MAPS).ok();
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].clone()).collect()
    };
    let expected = names(&mut admin);
    server.stop();
    // A kill may come too late.
    let mut prefixes = (0..20).map(|attempt| format!("--etcd-prefix=/attempt-{attempt}"));
    let interrupted = prefixes.find(|prefix| copy_and_kill(&data, &etcd, prefix));
    let prefix = interrupted.expect("some copy is killed while it works");
    let failure =
        starts(&directory.path().join("early"), &etcd, &[&prefix]).err().expect("it is not finished");
    assert!(failure.contains("a copy into this etcd is not finished"), "{failure}");
    copy_all(&["--from-data-dir", data.to_str().unwrap(), "--to-etcd", &url, &prefix]);
    let server = starts(&directory.path().join("late"), &etcd, &[&prefix]).unwrap();
    assert_eq!(names(&mut server.admin()), expected);
}

#[test]
fn copy_ends_at_a_signal() {
    let (directory, etcd) = (temp_directory(), cluster(1));
    let (data, url) = (directory.path().join("data"), etcd.members[0].url());
    in_file(&data, &[]).stop();
    etcd.members[0].pause();
    let mut child = Command::new(env!("CARGO_BIN_EXE_pilothouse"))
        .args(["copy", "--from-data-dir", data.to_str().unwrap(), "--to-etcd", &url])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains("reading"), "{line}");
    let status = Command::new("sh").arg("-c").arg(format!("kill -INT {}", child.id())).status();
    assert!(status.unwrap().success());
    let status = poll(Duration::from_secs(60), || child.try_wait().unwrap()).expect("it ends");
    assert_eq!(status.code(), Some(1));
    let last = lines.last().unwrap().unwrap();
    assert_eq!(last, "pilothouse copy: interrupted");
    etcd.members[0].resume();
    copy_all(&["--from-data-dir", data.to_str().unwrap(), "--to-etcd", &url]);
}
