//! Requests for resources that only another server on the same etcd serves.
//!
//! Servers on one host have one identity, as in the reference: these believe that they are on several.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_etcd::messages::RangeRequest;
use pilothouse_etcd_layout::endpoint_lease::{EndpointLease, Peer};
use pilothouse_etcd_layout::values::{ValueCodec, ValueOptions};
use serde_json::{Value, json};
use tokio::runtime::Builder;

use super::Replicas;
use crate::support::client::{Client, Response};
use crate::support::kubelet::TlsIdentity;
use crate::support::server::{Server, USER_TOKEN, lasting_port};
use crate::support::wait::{Deadline, TIMEOUT, poll};

const GATE: &str = "--feature-gates=UnknownVersionInteroperabilityProxy=true";
const WITHOUT_BATCH: &str = "--runtime-config=batch/v1=false";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases\
    ?labelSelector=apiserver.kubernetes.io/identity%3Dkube-apiserver";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const PROXIED: &str = "X-Kubernetes-Peer-Proxied";
const NO_ADDRESS: &str = "Error getting ip and port info of the remote server while proxying";

/// Servers with the same keys, each on a host of its own, which trust each other as front proxies.
struct Hosts {
    replicas: Replicas,
}

/// One of them, and how it is started.
struct Host<'a> {
    hosts: &'a Hosts,
    name: &'static str,
    port: String,
}

impl Hosts {
    fn new(names: &[&str]) -> Hosts {
        let hosts = Hosts { replicas: Replicas::new(1) };
        TlsIdentity::new("front-proxy-client", &[]).write(hosts.replicas.directory.path(), "proxy");
        let directories = names.iter().map(|name| hosts.data(name).join("pki"));
        let mut share = Command::new(env!("CARGO_BIN_EXE_pilothouse"));
        assert!(share.arg("share-keys").args(directories).status().unwrap().success());
        hosts
    }

    fn data(&self, name: &str) -> PathBuf {
        self.replicas.directory.path().join(name)
    }

    fn host(&self, name: &'static str) -> Host<'_> {
        Host { hosts: self, name, port: lasting_port() }
    }
}

impl Host<'_> {
    fn start(&self, flags: &[&str]) -> Server {
        let directory = self.hosts.replicas.directory.path();
        let file = |name: &str| directory.join(name).display().to_string();
        let number = self.port.rsplit_once('=').unwrap().1;
        let own = [
            self.port.clone(),
            self.hosts.replicas.servers(),
            format!("--peer-ca-file={}", file(&format!("{}/pki/ca.crt", self.name))),
            "--peer-advertise-ip=127.0.0.1".to_owned(),
            format!("--peer-advertise-port={number}"),
            format!("--proxy-client-cert-file={}", file("proxy.crt")),
            format!("--proxy-client-key-file={}", file("proxy.key")),
            format!("--requestheader-client-ca-file={}", file("proxy.crt")),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            GATE.to_owned(),
        ];
        let flags: Vec<&str> = own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        Server::start_on_host(self.name, &self.hosts.data(self.name), &flags)
    }
}

fn job(name: &str) -> Value {
    let container = json!({"name": "c", "image": "i"});
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
    json!({"metadata": {"name": name}, "spec": {"template": template}})
}

fn alice(server: &Server) -> Client {
    server.anonymous().with_token(Some(USER_TOKEN))
}

/// Waits until a server passes on requests for jobs.
fn wait_until_passed_on(server: &Server) {
    let mut admin = server.admin();
    let mut last = String::new();
    let is_served = || {
        let response = admin.get(JOBS);
        last = response.text();
        (response.status == 200).then_some(())
    };
    poll(TIMEOUT, is_served).unwrap_or_else(|| panic!("{last}\n{}", server.log()));
}

/// How many requests a server has passed on that got this status code.
fn passed_on(server: &Server, code: u16) -> u64 {
    let page = server.admin().get("/metrics").text();
    let series = format!("apiserver_rerouted_request_total{{code=\"{code}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&series)).map_or(0, |count| count.parse().unwrap())
}

/// Lets a group or user read jobs.
fn allow_reading_jobs(admin: &mut Client, kind: &str, name: &str) {
    let rule = json!({"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch"]});
    let role = json!({"metadata": {"name": "job-reader"}, "rules": [rule]});
    admin.post(&format!("{RBAC}/clusterroles"), &role).ok();
    let subject = json!({"kind": kind, "apiGroup": "rbac.authorization.k8s.io", "name": name});
    let role = json!({"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "job-reader"});
    let binding = json!({"metadata": {"name": "job-readers"}, "subjects": [subject], "roleRef": role});
    admin.post(&format!("{RBAC}/clusterrolebindings"), &binding).ok();
}

#[test]
#[cfg_attr(not(has_host_namespaces), ignore = "needs a namespace of its own (unshare -ru hostname)")]
fn server_passes_on_requests_for_what_only_another_one_serves() {
    let hosts = Hosts::new(&["full", "lacking"]);
    let full = hosts.host("full").start(&[]);
    let lacking = hosts.host("lacking").start(&[WITHOUT_BATCH]);
    wait_until_passed_on(&lacking);
    let (mut admin, mut other) = (lacking.admin(), full.admin());
    let list = admin.get(JOBS).ok();
    assert_eq!(list["kind"], "JobList");
    let query = format!("resourceVersion={}", super::version(&list));
    let mut watch = admin.watch(JOBS, &query);
    let mut socket = open_socket(&admin, &format!("{JOBS}?watch=true&{query}"));

    let created = admin.post(JOBS, &job("a"));
    assert_eq!((created.status, passed_on(&lacking, 201)), (201, 1));
    let path = format!("{JOBS}/a");
    assert_eq!(other.get(&path).ok(), created.json());
    assert_eq!(admin.get(&path).ok(), created.json());
    let patch = json!({"metadata": {"labels": {"patched": "yes"}}});
    assert_eq!(admin.patch(&path, "merge", &patch).ok()["metadata"]["labels"]["patched"], "yes");
    admin.post(JOBS, &job("a")).expect_error(409, "AlreadyExists");
    admin.get(&format!("{JOBS}/b")).expect_error(404, "NotFound");
    let counted = passed_on(&lacking, 404);
    assert_eq!(admin.delete(&format!("{path}?propagationPolicy=Background")).status, 200);
    for expected in ["ADDED", "MODIFIED", "DELETED"] {
        let event = watch.next();
        assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!(expected), &json!("a")));
    }
    let message = read_message(&mut socket);
    assert!(message.starts_with(r#"{"type":"ADDED""#), "{message}");

    // It is not mentioned in discovery, which is about this server alone.
    assert_eq!(admin.get("/apis/batch/v1").status, 404);
    assert_eq!(admin.get("/apis/batch/v7/namespaces/default/jobs").status, 404);
    assert_eq!(admin.get("/apis/batch/v1/namespaces/default/others").status, 404);
    assert_eq!(passed_on(&lacking, 404), counted);
    // What both serve is not passed on.
    admin.get(super::MAPS).ok();
    assert_eq!(passed_on(&full, 200), 0);
    for hook in ["peer-endpoint-reconciler-controller", "mixed-version-proxy-handler"] {
        assert_eq!(admin.get(&format!("/readyz/poststarthook/{hook}")).text(), "ok");
    }
}

/// Opens a WebSocket.
fn open_socket(client: &Client, path: &str) -> crate::support::wire::Connection {
    let mut connection = client.raw();
    let headers = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    connection.send(format!("{}\r\n", client.head("GET", path, &headers)).as_bytes()).unwrap();
    assert_eq!(connection.head(Deadline::after(TIMEOUT)).unwrap().status, 101);
    connection
}

/// A message of more than 125 bytes.
fn read_message(connection: &mut crate::support::wire::Connection) -> String {
    let mut read = |count| connection.read_bytes(count, Deadline::after(TIMEOUT)).unwrap();
    let head = read(4);
    assert_eq!(head[..2], [0x81, 126], "a text of middle size");
    String::from_utf8(read(usize::from(u16::from_be_bytes([head[2], head[3]])))).unwrap()
}

/// The first server admits everybody, so the second one decides: about the user of the request, and nobody else.
#[test]
#[cfg_attr(not(has_host_namespaces), ignore = "needs a namespace of its own (unshare -ru hostname)")]
fn other_server_decides_about_the_user_of_the_request() {
    let hosts = Hosts::new(&["full", "lacking"]);
    let policy = hosts.replicas.directory.path().join("policy");
    let line = |group: &str| {
        let spec = json!({"group": group, "namespace": "*", "resource": "*", "apiGroup": "*", "nonResourcePath": "*"});
        json!({"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": spec})
            .to_string()
    };
    let lines = ["system:authenticated", "system:unauthenticated"].map(line);
    fs::write(&policy, lines.join("\n")).unwrap();
    let full = hosts.host("full").start(&[]);
    let policy = format!("--authorization-policy-file={}", policy.display());
    let lacking =
        hosts.host("lacking").start(&[WITHOUT_BATCH, "--authorization-mode=RBAC,ABAC", policy.as_str()]);
    wait_until_passed_on(&lacking);

    let forged = [
        ("X-Remote-User", "admin"),
        ("X-Remote-Group", "system:masters"),
        ("X-Remote-Uid", "uid-admin"),
        ("X-Remote-Extra-Scopes", "all"),
    ];
    let refused = |response: &Response, user: &str| {
        let status = response.expect_error(403, "Forbidden");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains(&format!("User \"{user}\" cannot")), "{message}");
    };
    let (mut alice, mut anonymous) = (alice(&lacking), lacking.anonymous());
    for headers in [&[][..], &forged] {
        refused(&alice.request("GET", JOBS, headers, b""), "alice");
        refused(&anonymous.request("GET", JOBS, headers, b""), "system:anonymous");
        let watch = format!("{JOBS}?watch=true");
        refused(&alice.request("GET", &watch, headers, b""), "alice");
    }
    let upgrade = [("Connection", "Upgrade"), ("Upgrade", "websocket"), forged[0], forged[1]];
    refused(&alice.request("GET", &format!("{JOBS}?watch=true"), &upgrade, b""), "alice");
    // Nor does this server's own right to impersonate count at the other one.
    let as_bob = [("Impersonate-User", "bob"), ("Impersonate-Group", "system:masters")];
    let as_bob_alone = &as_bob[..1];
    refused(&lacking.admin().request("GET", JOBS, as_bob_alone, b""), "bob");
    assert_eq!(lacking.admin().request("GET", JOBS, &as_bob, b"").status, 200);
    assert!(passed_on(&lacking, 403) >= 7);

    allow_reading_jobs(&mut full.admin(), "Group", "system:authenticated");
    alice.get(JOBS).ok();
    refused(&anonymous.get(JOBS), "system:anonymous");
    refused(&alice.post(JOBS, &job("a")), "alice");
}

#[test]
#[cfg_attr(not(has_host_namespaces), ignore = "needs a namespace of its own (unshare -ru hostname)")]
fn refused_or_marked_request_is_not_passed_on() {
    let hosts = Hosts::new(&["full", "lacking"]);
    let full = hosts.host("full").start(&[]);
    let lacking = hosts.host("lacking").start(&[WITHOUT_BATCH]);
    wait_until_passed_on(&lacking);
    let mut alice = alice(&lacking);
    alice.get(JOBS).expect_error(403, "Forbidden");
    assert_eq!(passed_on(&lacking, 403), 0, "it was refused here");
    allow_reading_jobs(&mut full.admin(), "User", "alice");
    poll(TIMEOUT, || (alice.get(JOBS).status == 200).then_some(())).expect("both let her read");

    // What another server has passed on is served here or not at all.
    let before = passed_on(&lacking, 200);
    let mut admin = lacking.admin();
    assert_eq!(admin.request("GET", JOBS, &[(PROXIED, "true")], b"").status, 404);
    assert_eq!(passed_on(&lacking, 200), before);
    assert_eq!(admin.request("GET", JOBS, &[(PROXIED, "false")], b"").status, 200);
    assert_eq!(passed_on(&lacking, 200), before + 1);
}

/// The lease under which servers know of each other outlives a restart, and its holder stays the same.
#[test]
#[cfg_attr(not(has_host_namespaces), ignore = "needs a namespace of its own (unshare -ru hostname)")]
fn server_that_has_started_again_is_asked_again() {
    let hosts = Hosts::new(&["changing", "lacking"]);
    let host = hosts.host("changing");
    let changing = host.start(&[WITHOUT_BATCH]);
    let lacking = hosts.host("lacking").start(&[WITHOUT_BATCH]);
    let mut admin = lacking.admin();
    let has_both = || (admin.get(LEASES).ok()["items"].as_array()?.len() == 2).then_some(());
    poll(TIMEOUT, has_both).expect("both keep a lease");
    assert_eq!(admin.get(JOBS).status, 404);
    changing.stop();
    let changing = host.start(&[]);
    wait_until_passed_on(&lacking);
    // A server that does not serve it any more does not pass it back.
    changing.stop();
    let _changing = host.start(&[WITHOUT_BATCH]);
    poll(TIMEOUT, || (admin.get(JOBS).status == 404).then_some(())).expect("nobody serves it");
}

#[test]
#[cfg_attr(not(has_host_namespaces), ignore = "needs a namespace of its own (unshare -ru hostname)")]
fn request_for_what_only_a_dead_server_has_gets_503() {
    let hosts = Hosts::new(&["full", "lacking"]);
    let host = hosts.host("full");
    let full = host.start(&[]);
    let lacking = hosts.host("lacking").start(&[WITHOUT_BATCH]);
    wait_until_passed_on(&lacking);
    let mut admin = lacking.admin();
    let mut is_known = || {
        let response = admin.get(JOBS);
        assert_eq!(response.status, 503, "{}", response.text());
        if !response.text().contains(NO_ADDRESS) {
            return None;
        }
        let status = response.expect_error(503, "ServiceUnavailable");
        assert_eq!(status["message"], NO_ADDRESS);
        Some(())
    };
    // One that ends says so.
    full.stop();
    poll(TIMEOUT, &mut is_known).expect("its record is removed");
    let full = host.start(&[]);
    wait_until_passed_on(&lacking);
    // One that has died is found to be dead when its record has expired.
    full.kill();
    poll(TIMEOUT, is_known).expect("its record expires");
    assert!(passed_on(&lacking, 503) >= 1);
}

#[test]
#[cfg_attr(not(has_host_namespaces), ignore = "needs a namespace of its own (unshare -ru hostname)")]
fn record_says_where_a_server_is_reached() {
    let hosts = Hosts::new(&["one", "other"]);
    let host = hosts.host("one");
    let (one, other) = (host.start(&[]), hosts.host("other").start(&[]));
    let mut admin = other.admin();
    let port = one.address().port();
    let address = format!("127.0.0.1:{port}");
    let annotation =
        |lease: &Value| lease["metadata"]["annotations"]["kubernetes.io/peer-advertise-address"].clone();
    let lease = poll(TIMEOUT, || {
        let leases = admin.get(LEASES).ok();
        leases["items"].as_array()?.iter().find(|lease| annotation(lease) == address.as_str()).cloned()
    });
    let server = lease.expect("its lease")["metadata"]["name"].as_str().unwrap().to_owned();
    let record = || read_record(&hosts.replicas, &server);
    let first = poll(TIMEOUT, record).expect("a record");
    let peer = Peer { server: server.clone(), port };
    assert_eq!(first, EndpointLease { address: "127.0.0.1".to_owned(), peer: Some(peer), ..first.clone() });
    poll(TIMEOUT, || (record()?.generation > first.generation).then_some(())).expect("it is renewed");
    one.stop();
    assert_eq!(record(), None, "it ends with the server");
}

/// The record of a server; it must expire by itself.
fn read_record(replicas: &Replicas, server: &str) -> Option<EndpointLease> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let request = RangeRequest::key(format!("/registry/peerserverleases/{server}"));
    let stored = runtime.block_on(async { replicas.etcd.client().range(request).await }).unwrap();
    let entry = stored.kvs.into_iter().next()?;
    assert_ne!(entry.lease, 0);
    let registry = Arc::new(Registry::builtin().unwrap());
    let codec = ValueCodec::new(registry, ValueOptions::default(), EnabledFeatures::new(|_| false, false));
    EndpointLease::decode(&codec, &entry.value).unwrap()
}

#[test]
#[cfg_attr(not(has_host_namespaces), ignore = "needs a namespace of its own (unshare -ru hostname)")]
fn nothing_is_passed_on_without_the_gate() {
    let hosts = Hosts::new(&["full", "lacking"]);
    let _full = hosts.host("full").start(&[]);
    let data = hosts.data("lacking");
    let flags = [hosts.replicas.servers(), WITHOUT_BATCH.to_owned()];
    let lacking = Server::start_on_host("lacking", &data, &flags.each_ref().map(String::as_str));
    let mut admin = lacking.admin();
    let has_both = || (admin.get(LEASES).ok()["items"].as_array()?.len() == 2).then_some(());
    poll(TIMEOUT, has_both).expect("both keep a lease");
    assert_eq!(admin.get(JOBS).status, 404);
    assert_eq!(admin.get("/readyz/poststarthook/mixed-version-proxy-handler").status, 404);
}
