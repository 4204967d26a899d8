//! The flags about etcd, and the metrics about it.

use pilothouse_etcd::messages::{PutRequest, RangeRequest};
use pilothouse_etcd::testing::Cluster;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::support::client::Client;
use crate::support::etcd::cluster;
use crate::support::server::{Server, temp_directory};
use crate::support::wait::{TIMEOUT, poll};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const OBJECTS: &str = "apiserver_storage_objects";
const MEMBER_BYTES: &str = "apiserver_storage_db_total_size_in_bytes";
/// The address that a server advertises.
const OWN: &str = "--advertise-address=10.9.9.1";

/// A cluster of etcd, and a folder for its servers.
struct Setup {
    etcd: Cluster,
    directory: TempDir,
    runtime: Runtime,
}

impl Setup {
    fn new() -> Setup {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        Setup { etcd: cluster(1), directory: temp_directory(), runtime }
    }

    fn start(&self, name: &str, flags: &[&str]) -> Server {
        let servers = format!("--etcd-servers={}", self.etcd.members[0].url());
        let flags: Vec<&str> = flags.iter().copied().chain([servers.as_str()]).collect();
        Server::start_in(&self.directory.path().join(name), &flags)
    }

    /// The keys of a cluster that begin like this.
    fn keys(&self, etcd: &Cluster, prefix: &str) -> Vec<String> {
        let read = async { etcd.client().range(RangeRequest::prefix(prefix.to_owned())).await };
        let entries = self.runtime.block_on(read).unwrap().kvs;
        entries.iter().map(|entry| String::from_utf8_lossy(&entry.key).into_owned()).collect()
    }
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

fn event(name: &str) -> Value {
    json!({"metadata": {"name": name}, "reason": "R", "type": "Normal", "message": "m",
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}})
}

fn page(client: &mut Client) -> String {
    let response = client.get("/metrics");
    assert_eq!(response.status, 200, "{}", response.text());
    response.text()
}

/// The value of the series of this name with all of these labels, if there is one.
fn value(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let mut lines = page.lines().filter(|line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '{']));
        rest.is_some_and(|rest| labels.iter().all(|label| rest.contains(label)))
    });
    let value = lines.next()?.rsplit_once(' ').unwrap().1.parse().unwrap();
    assert_eq!(lines.next(), None, "{name} {labels:?} is one series");
    Some(value)
}

fn wait_for_value(client: &mut Client, name: &str, labels: &[&str], is_wanted: impl Fn(f64) -> bool) {
    let wanted = || value(&page(client), name, labels).filter(|value| is_wanted(*value));
    let found = poll(TIMEOUT, wanted);
    assert!(found.is_some(), "{name} {labels:?} in\n{}", page(client));
}

/// The addresses of the endpoints of the `kubernetes` service, in both forms; `None` if there are none.
fn addresses(admin: &mut Client) -> Option<Vec<String>> {
    let endpoints = admin.get(&format!("{ENDPOINTS}/kubernetes"));
    let slice = admin.get(&format!("{SLICES}/kubernetes"));
    if endpoints.status == 404 {
        assert_eq!(slice.status, 404);
        return None;
    }
    let subset = endpoints.ok()["subsets"][0]["addresses"].clone();
    let texts = subset.as_array().into_iter().flatten().map(|address| address["ip"].clone());
    Some(texts.map(|text| text.as_str().unwrap().to_owned()).collect())
}

/// A member that is paused keeps its connections, so only the timeout tells.
#[test]
fn checks_of_etcd_take_as_long_as_their_flags_say() {
    let setup = Setup::new();
    let flags = ["--etcd-healthcheck-timeout=300ms", "--etcd-readycheck-timeout=700ms"];
    let server = setup.start("one", &flags);
    let mut admin = server.admin();
    let checks = [("/healthz/etcd", "300ms"), ("/livez/etcd", "300ms"), ("/readyz/etcd-readiness", "700ms")];
    for (path, _) in checks {
        poll(TIMEOUT, || (admin.get(path).text() == "ok").then_some(())).expect(path);
    }
    setup.etcd.members[0].pause();
    for (path, timeout) in checks {
        let response = poll(TIMEOUT, || {
            let response = admin.get(path);
            (response.status == 500 && response.text().contains(timeout)).then_some(())
        });
        assert!(response.is_some(), "{path}: {}", admin.get(path).text());
    }
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(admin.get(path).status, 500, "{path}");
        let excluded = format!("{path}?exclude=etcd&exclude=etcd-readiness");
        assert_eq!(admin.get(&excluded).status, 200, "{path}");
    }
    setup.etcd.members[0].resume();
    poll(TIMEOUT, || (admin.get("/readyz").status == 200).then_some(())).expect("it comes back");
    let failures = ["operation=\"get\"", "type=\"\""];
    wait_for_value(&mut admin, "etcd_request_errors_total", &failures, |count| count >= 1.0);
}

#[test]
fn objects_are_counted_as_often_as_the_flag_says() {
    let setup = Setup::new();
    let labels = ["resource=\"configmaps\""];
    let seldom = setup.start("seldom", &["--etcd-count-metric-poll-period=1h"]);
    let never = setup.start("never", &["--etcd-count-metric-poll-period=0"]);
    let mut admin = seldom.admin();
    let often = setup.start("often", &["--etcd-count-metric-poll-period=50ms"]);
    wait_for_value(&mut admin, OBJECTS, &labels, |count| count >= 0.0);
    let before = value(&page(&mut admin), OBJECTS, &labels).unwrap();
    let stored = admin.get("/api/v1/configmaps").ok()["items"].as_array().unwrap().len();
    for number in 0..3 {
        admin.post(MAPS, &map(&format!("m{number}"))).ok();
    }
    let expected = f64::from(u32::try_from(stored + 3).unwrap());
    wait_for_value(&mut often.admin(), OBJECTS, &labels, |count| count == expected);
    assert_eq!(value(&page(&mut admin), OBJECTS, &labels), Some(before), "it counts once in an hour");
    assert_eq!(value(&page(&mut never.admin()), OBJECTS, &labels), None, "it does not count");
    // What nobody can count now.
    setup.etcd.members[0].pause();
    wait_for_value(&mut often.admin(), OBJECTS, &labels, |count| count == -1.0);
    setup.etcd.members[0].resume();
    wait_for_value(&mut often.admin(), OBJECTS, &labels, |count| count == expected);
}

#[test]
fn sizes_of_databases_are_measured() {
    let setup = Setup::new();
    // The reference hides the sizes of members.
    let hidden = "--show-hidden-metrics-for-version=1.32";
    let (often, never) = (
        setup.start("often", &[hidden]),
        setup.start("never", &["--etcd-db-metric-poll-interval=0", hidden]),
    );
    let endpoint = format!("endpoint=\"{}\"", setup.etcd.members[0].url());
    wait_for_value(&mut often.admin(), MEMBER_BYTES, &[&endpoint], |bytes| bytes > 1e3);
    for server in [&often, &never] {
        let bytes = value(&page(&mut server.admin()), "apiserver_storage_size_bytes", &["\"etcd-0\""]);
        assert!(bytes.unwrap() > 1e3, "{bytes:?}");
    }
    assert_eq!(value(&page(&mut never.admin()), MEMBER_BYTES, &[]), None);
    // A member that does not answer has no size, as in the reference.
    setup.etcd.members[0].pause();
    let is_gone =
        || value(&page(&mut never.admin()), "apiserver_storage_size_bytes", &[]).is_none().then_some(());
    poll(TIMEOUT, is_gone).expect("it is gone");
}

#[test]
fn traffic_with_etcd_is_counted() {
    let setup = Setup::new();
    // Each event gets a lease of its own.
    let server = setup.start("one", &["--lease-reuse-duration-seconds=0"]);
    let mut admin = server.admin();
    let mut created = admin.post(MAPS, &map("a")).ok();
    created["data"]["a"] = json!("c");
    admin.put(&format!("{MAPS}/a"), &created).ok();
    admin.delete(&format!("{MAPS}/a")).ok();
    for name in ["a", "b"] {
        admin.post(EVENTS, &event(name)).ok();
    }
    let text = page(&mut admin);
    let resource = "type=\"configmaps\"";
    for operation in ["create", "update", "delete"] {
        let labels = [&*format!("operation=\"{operation}\""), resource];
        let count = value(&text, "etcd_requests_total", &labels).unwrap();
        assert!(count >= 1.0, "{operation}: {count}");
        assert_eq!(value(&text, "etcd_request_duration_seconds_count", &labels), Some(count));
        let slow = [labels[0], labels[1], "le=\"60\""];
        assert_eq!(value(&text, "etcd_request_duration_seconds_bucket", &slow), Some(count));
        assert_eq!(value(&text, "etcd_request_errors_total", &labels), None);
    }
    assert!(value(&text, "etcd_requests_total", &["operation=\"get\"", "type=\"\""]).unwrap() >= 1.0);
    assert!(
        value(&text, "etcd_requests_total", &["operation=\"update\"", "apiServerIPInfo"]).unwrap() >= 1.0
    );
    for cache in ["apiserver_storage_events_received_total", "apiserver_watch_cache_events_received_total"] {
        assert!(value(&text, cache, &["resource=\"configmaps\""]).unwrap() >= 3.0, "{text}");
    }
    assert_eq!(value(&text, "etcd_lease_object_counts_count", &[]), Some(1.0));
    assert_eq!(value(&text, "etcd_lease_object_counts_sum", &[]), Some(1.0));
    let list = admin.get(MAPS).ok();
    let seen: f64 = list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let maps = ["resource=\"configmaps\""];
    assert!(value(&page(&mut admin), "apiserver_watch_cache_resource_version", &maps).unwrap() >= seen);
    let damaged = PutRequest::new("/registry/configmaps/default/damaged", "k8s\0nonsense");
    setup.runtime.block_on(async { setup.etcd.client().put(damaged).await }).unwrap();
    wait_for_value(&mut admin, "apiserver_storage_decode_errors_total", &maps, |count| count == 1.0);
}

#[test]
fn endpoints_are_left_alone_if_nobody_maintains_them() {
    let setup = Setup::new();
    let none = "--endpoint-reconciler-type=none";
    let server = setup.start("one", &[none, OWN]);
    let mut admin = server.admin();
    admin.get("/api/v1/namespaces/default/services/kubernetes").ok();
    assert_eq!(addresses(&mut admin), None);
    let endpoints = json!({"metadata": {"name": "kubernetes"},
        "subsets": [{"addresses": [{"ip": "10.7.7.7"}], "ports": [{"port": 6443}]}]});
    let created = admin.post(ENDPOINTS, &endpoints).ok();
    server.stop();
    let other = setup.start("other", &[none, OWN]);
    assert_eq!(other.admin().get(&format!("{ENDPOINTS}/kubernetes")).ok(), created);
    // The default does maintain them.
    other.stop();
    let server = setup.start("another", &[OWN]);
    assert_eq!(addresses(&mut server.admin()).unwrap(), ["10.9.9.1"]);
}

#[test]
fn servers_that_count_each_other_add_themselves() {
    let setup = Setup::new();
    let start = |name, address| {
        let flags = ["--endpoint-reconciler-type=master-count", "--apiserver-count=2"];
        setup.start(name, &[flags[0], flags[1], &format!("--advertise-address={address}")])
    };
    let one = start("one", "10.9.9.1");
    assert_eq!(addresses(&mut one.admin()).unwrap(), ["10.9.9.1"]);
    let two = start("two", "10.9.9.2");
    assert_eq!(addresses(&mut two.admin()).unwrap(), ["10.9.9.1", "10.9.9.2"]);
    // Nobody has a record that expires.
    one.kill();
    let leases = setup.keys(&setup.etcd, "/registry/masterleases/");
    assert_eq!(leases, [""; 0]);
    assert_eq!(addresses(&mut two.admin()).unwrap(), ["10.9.9.1", "10.9.9.2"]);
    let slice = two.admin().get(&format!("{SLICES}/kubernetes")).ok();
    assert_eq!(slice["endpoints"].as_array().unwrap().len(), 2);
    // What was there before it goes, if there are too many.
    let three = start("three", "10.9.9.3");
    assert_eq!(addresses(&mut two.admin()).unwrap().len(), 2);
    two.stop();
    assert!(!addresses(&mut three.admin()).unwrap().contains(&"10.9.9.2".to_owned()));
}

/// A server that is asked to end leaves before it has drained its clients.
#[test]
fn server_takes_itself_out_of_the_endpoints_when_it_ends() {
    let setup = Setup::new();
    let one = setup.start("one", &[OWN]);
    let other = setup.start("other", &["--advertise-address=10.9.9.2", "--shutdown-delay-duration=1h"]);
    let is = |admin: &mut Client, expected: &[&str]| {
        poll(TIMEOUT, || (addresses(admin).unwrap() == expected).then_some(()))
    };
    is(&mut one.admin(), &["10.9.9.1", "10.9.9.2"]).expect("both are listed");
    let mut admin = other.admin();
    other.terminate();
    is(&mut one.admin(), &["10.9.9.1"]).expect("the one that ends is not");
    assert_eq!(admin.get(MAPS).status, 200, "it serves on");
}

/// Events and leases in a cluster of their own, everything else in another one.
#[test]
fn overridden_resources_are_in_another_cluster() {
    let (setup, second) = (Setup::new(), cluster(1));
    let url = second.members[0].url();
    let overrides = format!("--etcd-servers-overrides=/events#{url},coordination.k8s.io/*#{url}");
    let server = setup.start("one", &[&overrides]);
    let other = setup.start("other", &[&overrides]);
    let (mut admin, mut second_admin) = (server.admin(), other.admin());
    // The revisions of both clusters differ.
    for number in 0..20 {
        admin.post(MAPS, &map(&format!("m{number}"))).ok();
    }
    let list = second_admin.get(EVENTS).ok();
    let from = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut watch = other.admin().watch(EVENTS, &format!("resourceVersion={from}"));
    let created = admin.post(EVENTS, &event("a")).ok();
    assert_eq!(watch.next()["object"]["metadata"], created["metadata"]);
    assert_eq!(second_admin.get(&format!("{EVENTS}/a")).ok(), created);
    let keys = |etcd: &Cluster, below: &str| setup.keys(etcd, &format!("/registry/{below}/"));
    assert_eq!(keys(&second, "events"), ["/registry/events/default/a"]);
    assert!(keys(&setup.etcd, "events").is_empty() && keys(&second, "configmaps").is_empty());
    assert!(keys(&setup.etcd, "configmaps").len() >= 20 && keys(&setup.etcd, "leases").is_empty());
    let mut changed = created.clone();
    changed["message"] = json!("changed");
    let changed = second_admin.put(&format!("{EVENTS}/a"), &changed).ok();
    admin.put(&format!("{EVENTS}/a"), &created).expect_error(409, "Conflict");
    assert_eq!(watch.next()["object"], changed);
    second_admin.delete(&format!("{EVENTS}/a")).ok();
    assert_eq!(watch.next()["type"], "DELETED");
    assert_eq!(admin.get(EVENTS).ok()["items"], json!([]));
    wait_for_value(&mut admin, "apiserver_storage_size_bytes", &["\"etcd-1\""], |bytes| bytes > 1e3);
    // A watch goes on after a restart, in the versions of the other cluster.
    other.stop();
    let other = setup.start("another", &[&overrides]);
    let mut watch = other.admin().watch(EVENTS, &format!("resourceVersion={from}"));
    for expected in ["ADDED", "MODIFIED", "DELETED"] {
        assert_eq!(watch.next()["type"], expected);
    }
    let _compacting = setup.start("compacting", &[&overrides, "--etcd-compaction-interval=1s"]);
    for etcd in [&setup.etcd, &second] {
        let is_compacted = || setup.keys(etcd, "compact_rev_key").first().cloned();
        poll(TIMEOUT, is_compacted).expect("every cluster is compacted");
    }
}

#[test]
fn resources_of_a_cluster_work_while_another_one_does_not() {
    let (setup, mut second) = (Setup::new(), cluster(1));
    let overrides = format!("--etcd-servers-overrides=/events#{}", second.members[0].url());
    let server = setup.start("one", &[&overrides]);
    let mut admin = server.admin();
    admin.post(EVENTS, &event("a")).ok();
    second.members[0].kill();
    admin.post(MAPS, &map("a")).ok();
    let refused = admin.post(EVENTS, &event("b"));
    assert!(matches!(refused.status, 503 | 504), "{}", refused.text());
    assert_eq!(admin.get("/readyz").status, 200, "as in the reference");
    assert_eq!(admin.get(&format!("{EVENTS}/a?resourceVersion=0")).status, 200);
    second.members[0].start();
    let has_both = || {
        let _exists = admin.post(EVENTS, &event("b"));
        (admin.get(EVENTS).status == 200 && admin.get(&format!("{EVENTS}/b")).status == 200).then_some(())
    };
    poll(TIMEOUT, has_both).expect("it comes back");
    assert_eq!(setup.keys(&second, "/registry/events/").len(), 2);
}
