//! Several servers over one etcd.

mod agreement;
mod bad_input;
mod clocks;
mod elections;
mod faults;
mod gap;
mod identity;
mod no_space;
mod peers;
mod ports;
mod reference;

use std::time::Duration;

use pilothouse_etcd::testing::Cluster;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::client::Client;
use crate::support::etcd::cluster;
use crate::support::server::{ADMIN_TOKEN, Server, temp_directory};
use crate::support::wait::{Deadline, TIMEOUT, poll};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const KITES: &str = "/apis/toys.example/v1/namespaces/default/kites";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/pilothouse-controllers";

/// Servers that share an etcd. Each has a data directory of its own.
struct Replicas {
    etcd: Cluster,
    directory: TempDir,
}

impl Replicas {
    fn new(members: usize) -> Replicas {
        Replicas { etcd: cluster(members), directory: temp_directory() }
    }

    fn servers(&self) -> String {
        let urls: Vec<String> = self.etcd.members.iter().map(|member| member.url()).collect();
        format!("--etcd-servers={}", urls.join(","))
    }

    fn start(&self, name: &str) -> Server {
        self.start_with(name, &[])
    }

    fn start_with(&self, name: &str, flags: &[&str]) -> Server {
        let servers = self.servers();
        let flags: Vec<&str> = flags.iter().copied().chain([servers.as_str()]).collect();
        Server::start_in(&self.directory.path().join(name), &flags)
    }
}

fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"value": value}})
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn define_kites(admin: &mut Client) {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
    let names = json!({"plural": "kites", "singular": "kite", "kind": "Kite"});
    let spec = json!({"group": "toys.example", "names": names, "scope": "Namespaced", "versions": [version]});
    let kind = "CustomResourceDefinition";
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": kind,
        "metadata": {"name": "kites.toys.example"}, "spec": spec});
    admin.post(DEFINITIONS, &definition).ok();
    wait_until_served(admin);
}

fn wait_until_served(admin: &mut Client) {
    poll(TIMEOUT, || (admin.get(KITES).status == 200).then_some(())).expect("kites are served");
}

fn kite(name: &str) -> Value {
    json!({"apiVersion": "toys.example/v1", "kind": "Kite", "metadata": {"name": name}, "length": 5})
}

#[test]
fn what_one_server_answers_every_server_has() {
    let replicas = Replicas::new(1);
    let (one, other) = (replicas.start("one"), replicas.start("other"));
    let (mut first, mut second) = (one.admin(), other.admin());
    let list = second.get(MAPS).ok();
    let query = format!("resourceVersion={}", version(&list));
    let mut watch = other.admin().watch(MAPS, &query);
    for number in 0..20 {
        let path = format!("{MAPS}/m{number}");
        let created = first.post(MAPS, &map(&format!("m{number}"), "one")).ok();
        assert_eq!(second.get(&path).ok(), created);
        let mut changed = created.clone();
        changed["data"]["value"] = json!("other");
        let changed = second.put(&path, &changed).ok();
        assert_eq!(first.get(&path).ok(), changed);
        first.put(&path, &created).expect_error(409, "Conflict");
        first.delete(&path).ok();
        second.get(&path).expect_error(404, "NotFound");
        for expected in ["ADDED", "MODIFIED", "DELETED"] {
            let event = watch.next();
            assert_eq!(
                (&event["type"], &event["object"]["metadata"]["name"]),
                (&json!(expected), &json!(format!("m{number}")))
            );
        }
    }
    assert_eq!(first.get(MAPS).ok()["items"], second.get(MAPS).ok()["items"]);
}

#[test]
fn custom_objects_are_served_by_every_server() {
    let replicas = Replicas::new(1);
    let (one, other) = (replicas.start("one"), replicas.start("other"));
    let (mut first, mut second) = (one.admin(), other.admin());
    define_kites(&mut first);
    let created = first.post(KITES, &kite("a")).ok();
    wait_until_served(&mut second);
    assert_eq!(second.get(&format!("{KITES}/a")).ok(), created);
    second.post(KITES, &kite("b")).ok();
    let names = |admin: &mut Client| {
        let list = admin.get(KITES).ok();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (names(&mut first), names(&mut second)),
        (vec!["a".into(), "b".into()], vec!["a".into(), "b".into()])
    );
    second.delete(&format!("{DEFINITIONS}/kites.toys.example")).ok();
    for admin in [&mut first, &mut second] {
        poll(TIMEOUT, || (admin.get(KITES).status == 404).then_some(())).expect("they are gone");
    }
    define_kites(&mut first);
    assert_eq!(names(&mut first), [""; 0]);
}

/// A client that comes back after a restart, or to another server, goes on from the version that it has.
#[test]
fn watch_goes_on_at_a_server_that_has_just_started() {
    let replicas = Replicas::new(1);
    let one = replicas.start("one");
    let mut admin = one.admin();
    define_kites(&mut admin);
    let maps = version(&admin.get(MAPS).ok());
    let kites = version(&admin.get(KITES).ok());
    admin.post(MAPS, &map("before", "")).ok();
    admin.post(KITES, &kite("before")).ok();
    one.stop();
    let other = replicas.start("other");
    wait_until_served(&mut other.admin());
    for (collection, from, object) in [(MAPS, maps, map("after", "")), (KITES, kites, kite("after"))] {
        let mut watch = other.admin().watch(collection, &format!("resourceVersion={from}"));
        other.admin().post(collection, &object).ok();
        for name in ["before", "after"] {
            let event = watch.next();
            assert_eq!(
                (&event["type"], &event["object"]["metadata"]["name"]),
                (&json!("ADDED"), &json!(name))
            );
        }
    }
}

/// As behind a load balancer, which sends nobody to a server that is not ready.
#[test]
fn watch_moves_on_from_a_server_that_is_drained() {
    let replicas = Replicas::new(1);
    let one = replicas.start_with("one", &["--shutdown-delay-duration=2s"]);
    let other = replicas.start("other");
    let mut admin = other.admin();
    let mut last = version(&admin.get(MAPS).ok()).to_string();
    let mut watch = one.admin().watch(MAPS, &format!("resourceVersion={last}"));
    let mut write = |name: &str| drop(admin.post(MAPS, &map(name, "")).ok());
    write("before");
    let mut probe = one.admin();
    one.terminate();
    let is_left = || match probe.attempt("GET", "/readyz", &[], b"") {
        Ok(ready) => (ready.status == 500).then_some(()),
        Err(_) => Some(()),
    };
    poll(TIMEOUT, is_left).expect("nobody is sent to it");
    write("drained");
    let mut names = Vec::new();
    let mut note = |event: &Value| {
        let metadata = &event["object"]["metadata"];
        names.push(metadata["name"].as_str().unwrap().to_owned());
        metadata["resourceVersion"].as_str().unwrap().to_owned()
    };
    while let Some(event) = watch.attempt(Deadline::after(TIMEOUT)).expect("the watch ends as it should") {
        last = note(&event);
    }
    let (status, log) = one.wait_for_exit();
    assert!(status.success(), "{log}");
    write("after");
    let mut watch = other.admin().watch(MAPS, &format!("resourceVersion={last}"));
    while note(&watch.next()) != version(&other.admin().get(&format!("{MAPS}/after")).ok()).to_string() {}
    assert_eq!(names, ["before", "drained", "after"]);
}

#[test]
fn server_that_lost_etcd_says_so_and_comes_back() {
    let replicas = Replicas::new(1);
    let server = replicas.start("one");
    let mut admin = server.admin();
    let created = admin.post(MAPS, &map("a", "")).ok();
    replicas.etcd.members[0].pause();
    let path = format!("{MAPS}/a");
    assert_eq!(admin.get(&format!("{path}?resourceVersion=0")).ok(), created, "what it has seen");
    let latest = admin.get(&path);
    assert!(matches!(latest.status, 503 | 504), "{}", latest.text());
    let is_unready = || (admin.get("/readyz").status == 500).then_some(());
    poll(TIMEOUT, is_unready).expect("it says that etcd is gone");
    replicas.etcd.members[0].resume();
    poll(TIMEOUT, || (admin.get("/readyz").status == 200).then_some(())).expect("it comes back");
    assert_eq!(admin.get(&path).ok(), created);
    admin.delete(&path).ok();
}

/// Clients take objects for deleted whose kind does not exist.
#[test]
fn no_kind_is_said_to_be_missing_while_nobody_knows_the_definitions() {
    let replicas = Replicas::new(1);
    let server = replicas.start("one");
    let mut admin = server.admin();
    assert_eq!(admin.get(KITES).status, 404);
    replicas.etcd.members[0].pause();
    let unknown = admin.get(KITES);
    replicas.etcd.members[0].resume();
    unknown.expect_error(503, "ServiceUnavailable");
    poll(TIMEOUT, || (admin.get(KITES).status == 404).then_some(())).expect("it is known again");
}

#[test]
fn controllers_of_another_server_take_over() {
    let replicas = Replicas::new(1);
    let flags = ["--controllers=namespace"];
    let one = replicas.start_with("one", &flags);
    let holder = |admin: &mut Client| {
        let lease = admin.get(LEASE);
        (lease.status == 200).then(|| lease.json()["spec"]["holderIdentity"].as_str().unwrap().to_owned())
    };
    // Before the other one starts: nothing else tells which of them leads.
    let leader = poll(TIMEOUT, || holder(&mut one.admin())).expect("it leads");
    let other = replicas.start_with("other", &flags);
    one.kill();
    let mut admin = other.admin();
    let next = || holder(&mut admin).filter(|next| *next != leader);
    poll(Duration::from_secs(60), next).expect("the other one takes over");
    let namespace = json!({"metadata": {"name": "short"}});
    admin.post("/api/v1/namespaces", &namespace).ok();
    admin.delete("/api/v1/namespaces/short").ok();
    let is_gone = || (admin.get("/api/v1/namespaces/short").status == 404).then_some(());
    poll(TIMEOUT, is_gone).expect("its controllers work");
}

/// Each keeps a record that it is alive.
#[test]
fn kubernetes_service_lists_the_servers_that_are_alive() {
    let replicas = Replicas::new(1);
    let start = |name, address| replicas.start_with(name, &[&format!("--advertise-address={address}")]);
    let (one, other) = (start("one", "10.9.9.1"), start("other", "10.9.9.2"));
    let addresses = |admin: &mut Client| {
        let endpoints = admin.get("/api/v1/namespaces/default/endpoints/kubernetes").ok();
        let addresses = endpoints["subsets"][0]["addresses"].as_array().unwrap().iter();
        addresses.map(|address| address["ip"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut admin = other.admin();
    let has_both = || (addresses(&mut admin) == ["10.9.9.1", "10.9.9.2"]).then_some(());
    poll(TIMEOUT, has_both).expect("both are listed");
    one.stop();
    let has_one = || (addresses(&mut admin) == ["10.9.9.2"]).then_some(());
    poll(TIMEOUT, has_one).expect("the one that has ended is not");
}

#[test]
fn backup_is_refused_with_the_way_to_make_one() {
    let replicas = Replicas::new(1);
    let refused = replicas.start("one").admin().get("/backup").expect_error(400, "BadRequest");
    assert!(refused["message"].as_str().unwrap().contains("etcdctl snapshot save"), "{refused}");
}

#[test]
fn start_without_etcd_is_given_up_with_a_reason() {
    let directory = temp_directory();
    let flags = ["--etcd-servers=http://127.0.0.1:1", "--storage-initialization-timeout=3s"];
    let Err(failure) = Server::try_start_in(&directory.path().join("data"), &flags) else {
        panic!("there is no etcd")
    };
    assert!(!failure.status.success());
    let text = format!("{}{}", failure.stdout, failure.stderr);
    assert!(text.contains("http://127.0.0.1:1") && text.contains("refused"), "{text}");
}
