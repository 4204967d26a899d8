//! Coordinated leader election, with candidates that the tests play.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pilothouse_apimachinery::time;
use pilothouse_types::clock::{Clock, Timestamp};
use serde_json::{Value, json};

use super::{wait_until, wait_until_gone};
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

const GATE: &str = "--feature-gates=CoordinatedLeaderElection=true";
const SERVED: &str = "--runtime-config=coordination.k8s.io/v1beta1=true";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const CANDIDATES: &str = "/apis/coordination.k8s.io/v1beta1/namespaces/default/leasecandidates";
const OLDEST: &str = "OldestEmulationVersion";
const HOOK: &str = "/readyz/poststarthook/start-kube-apiserver-coordinated-leader-election-controller";

/// A server that elects, and runs no other controllers.
fn server() -> Server {
    Server::with_flags(&["--engine=memory", "--controllers=-*", GATE, SERVED])
}

fn micro_time(time: Timestamp) -> String {
    time::format_micros(time.unix_seconds(), time.subsec_micros())
}

fn now() -> String {
    micro_time(Clock::system().now())
}

fn ago(seconds: u64) -> String {
    micro_time(Clock::system().now().minus(Duration::from_secs(seconds)))
}

fn candidate(lease: &str, name: &str, emulation_version: &str, renewed: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1beta1", "kind": "LeaseCandidate", "metadata": {"name": name},
        "spec": {"leaseName": lease, "strategy": OLDEST, "binaryVersion": "1.33.0",
            "emulationVersion": emulation_version, "renewTime": renewed}})
}

fn lease(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec})
}

/// A component that is a candidate for the lease `lease`: it answers pings, renews the lease while it holds it, and hands it over when
/// it is asked to. When it is dropped, it has crashed.
struct Component {
    has_crashed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Component {
    fn start(client: &Client, name: &'static str, emulation_version: &'static str) -> Component {
        let (mut client, has_crashed) = (client.new_connection(), Arc::new(AtomicBool::new(false)));
        let crashed = has_crashed.clone();
        let thread = thread::spawn(move || {
            client.post(CANDIDATES, &candidate("lease", name, emulation_version, &now())).ok();
            while !crashed.load(Ordering::SeqCst) {
                answer_ping(&mut client, name);
                renew_lease(&mut client, name);
                thread::sleep(Duration::from_millis(20));
            }
        });
        Component { has_crashed, thread: Some(thread) }
    }
}

impl Drop for Component {
    fn drop(&mut self) {
        self.has_crashed.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn answer_ping(client: &mut Client, name: &str) {
    let path = format!("{CANDIDATES}/{name}");
    let candidate = client.get(&path).ok();
    let time = |field: &str| candidate["spec"][field].as_str().unwrap_or_default().to_owned();
    if time("pingTime") > time("renewTime") {
        client.patch(&path, "merge", &json!({"spec": {"renewTime": now()}})).ok();
    }
}

fn renew_lease(client: &mut Client, name: &str) {
    let path = format!("{LEASES}/lease");
    let lease = client.get(&path).json();
    if lease["spec"]["holderIdentity"] != name {
        return;
    }
    let is_asked = lease["spec"]["preferredHolder"].as_str().is_some_and(|other| other != name);
    let spec = match is_asked {
        true => json!({"holderIdentity": "", "preferredHolder": null}),
        false => json!({"renewTime": now(), "leaseDurationSeconds": 2}),
    };
    // Only this version: the election writes it as well.
    let version = &lease["metadata"]["resourceVersion"];
    client.patch(&path, "merge", &json!({"metadata": {"resourceVersion": version}, "spec": spec}));
}

fn wait_for_holder(client: &mut Client, name: &str) -> Value {
    wait_until(client, &format!("{LEASES}/lease"), |lease| lease["spec"]["holderIdentity"] == name)
}

#[test]
fn oldest_component_leads_and_is_succeeded_when_it_crashes() {
    let server = server();
    let mut client = server.admin();
    assert_eq!(client.get(HOOK).text(), "ok");
    let new = Component::start(&client, "new", "1.33.0");
    let lease = wait_for_holder(&mut client, "new");
    assert_eq!(
        (&lease["spec"]["strategy"], &lease["spec"]["preferredHolder"]),
        (&json!(OLDEST), &Value::Null)
    );

    // An older component gets the lease from a leader that works.
    let old = Component::start(&client, "old", "1.32.0");
    wait_for_holder(&mut client, "old");
    drop(old);
    wait_for_holder(&mut client, "new");
    drop(new);
    let restarted = Component::start(&client, "restarted", "1.33.0");
    wait_for_holder(&mut client, "restarted");
    drop(restarted);
}

#[test]
fn holder_that_no_candidate_is_must_be_asked_and_may_stay() {
    let server = server();
    let mut client = server.admin();
    let legacy = json!({"holderIdentity": "legacy", "leaseDurationSeconds": 3600, "renewTime": now()});
    client.post(LEASES, &lease("lease", &legacy)).ok();
    let _component = Component::start(&client, "component", "1.33.0");
    let is_preferred = |lease: &Value| lease["spec"]["preferredHolder"] == "component";
    let lease = wait_until(&mut client, &format!("{LEASES}/lease"), is_preferred);
    assert_eq!(lease["spec"]["holderIdentity"], "legacy");
    assert_eq!(
        (&lease["spec"]["strategy"], &lease["spec"]["leaseDurationSeconds"]),
        (&json!(OLDEST), &json!(3600))
    );

    client.patch(&format!("{LEASES}/lease"), "merge", &json!({"spec": {"holderIdentity": ""}})).ok();
    let lease = wait_for_holder(&mut client, "component");
    assert_eq!(lease["spec"]["preferredHolder"], Value::Null);
}

#[test]
fn component_that_does_not_answer_is_not_elected() {
    let server = server();
    let mut client = server.admin();
    client.post(CANDIDATES, &candidate("lease", "silent", "1.30.0", &ago(60))).ok();
    let pinged = |candidate: &Value| candidate["spec"]["pingTime"].is_string();
    wait_until(&mut client, &format!("{CANDIDATES}/silent"), pinged);
    assert_eq!(client.get(&format!("{LEASES}/lease")).status, 404);
    let _component = Component::start(&client, "component", "1.33.0");
    wait_until(&mut client, &format!("{LEASES}/lease"), |lease| {
        let holder = &lease["spec"]["holderIdentity"];
        assert_ne!(holder, "silent");
        holder == "component"
    });

    // When it is back, it leads.
    let leads = poll(TIMEOUT, || {
        client.patch(&format!("{CANDIDATES}/silent"), "merge", &json!({"spec": {"renewTime": now()}})).ok();
        let lease = client.get(&format!("{LEASES}/lease")).ok();
        (lease["spec"]["holderIdentity"] == "silent").then_some(())
    });
    assert!(leads.is_some());
}

#[test]
fn leases_of_others_are_left_alone() {
    let server = server();
    let mut client = server.admin();
    let spec = json!({"holderIdentity": "x", "leaseDurationSeconds": 1, "renewTime": ago(60)});
    let alone = client.post(LEASES, &lease("alone", &spec)).ok();
    let mut fair = candidate("fair", "other", "1.33.0", &now());
    fair["spec"]["strategy"] = json!("example.com/fair");
    client.post(CANDIDATES, &fair).ok();
    let created = wait_until(&mut client, &format!("{LEASES}/fair"), |lease| lease["kind"] == "Lease");
    assert_eq!(created["spec"]["strategy"], "example.com/fair");
    assert_eq!(created["spec"]["holderIdentity"], Value::Null);

    // What is done about another lease comes after what would have been done about these.
    let component = Component::start(&client, "component", "1.33.0");
    wait_for_holder(&mut client, "component");
    drop(component);
    assert_eq!(client.get(&format!("{LEASES}/alone")).ok(), alone);
    assert_eq!(client.get(&format!("{LEASES}/fair")).ok(), created);
}

#[test]
fn forgotten_candidates_are_deleted() {
    let server = server();
    let mut client = server.admin();
    client.post(CANDIDATES, &candidate("a", "forgotten", "1.33.0", &ago(1_801))).ok();
    client.post(CANDIDATES, &candidate("b", "kept", "1.33.0", &ago(1_700))).ok();
    wait_until_gone(&mut client, &format!("{CANDIDATES}/forgotten"));
    assert_eq!(client.get(&format!("{CANDIDATES}/kept")).status, 200);
    assert_eq!(client.get(&format!("{LEASES}/a")).status, 404);
}

/// As in the reference, which keeps it to agree with other servers.
#[test]
fn server_that_elects_holds_a_lease_of_its_own() {
    let server = Server::with_flags(&[
        "--engine=memory",
        GATE,
        SERVED,
        "--coordinated-leadership-lease-duration=40s",
        "--coordinated-leadership-renew-deadline=300ms",
        "--coordinated-leadership-retry-period=100ms",
    ]);
    let mut client = server.admin();
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/leader-election-controller";
    let first = wait_until(&mut client, path, |lease| lease["spec"]["holderIdentity"].is_string());
    assert_eq!(first["spec"]["leaseDurationSeconds"], 40);
    wait_until(&mut client, path, |lease| lease["spec"]["renewTime"] != first["spec"]["renewTime"]);
}

#[test]
fn nobody_is_elected_without_the_gate() {
    let server = Server::with_flags(&["--engine=memory", "--controllers=*", SERVED]);
    let mut client = server.admin();
    assert_eq!(client.get(HOOK).status, 404);
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    // The lease of the other controllers comes after it.
    wait_until(&mut client, &format!("{path}/pilothouse-controllers"), |lease| lease["kind"] == "Lease");
    assert_eq!(client.get(&format!("{path}/leader-election-controller")).status, 404);
}

#[test]
fn gate_without_candidates_is_noted_in_the_log() {
    let server = Server::with_flags(&["--engine=memory", GATE]);
    let is_noted = || server.log().contains("elects nobody: LeaseCandidates are not served").then_some(());
    assert!(poll(TIMEOUT, is_noted).is_some(), "{}", server.log());
}
