//! Coordinated leader election by one of the servers.

use std::time::Duration;

use pilothouse_apimachinery::time;
use pilothouse_types::clock::Clock;
use serde_json::{Value, json};

use super::Replicas;
use crate::support::client::Client;
use crate::support::wait::{TIMEOUT, poll};

const FLAGS: [&str; 5] = [
    "--feature-gates=CoordinatedLeaderElection=true",
    "--runtime-config=coordination.k8s.io/v1beta1=true",
    "--coordinated-leadership-lease-duration=3s",
    "--coordinated-leadership-renew-deadline=2s",
    "--coordinated-leadership-retry-period=200ms",
];
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const CANDIDATES: &str = "/apis/coordination.k8s.io/v1beta1/namespaces/default/leasecandidates";
const OWN_LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/leader-election-controller";

fn holder(admin: &mut Client, lease: &str) -> Option<String> {
    let lease = admin.get(lease).json();
    lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty()).map(str::to_owned)
}

fn now() -> String {
    let now = Clock::system().now();
    time::format_micros(now.unix_seconds(), now.subsec_micros())
}

fn candidate(lease: &str, name: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1beta1", "kind": "LeaseCandidate", "metadata": {"name": name},
        "spec": {"leaseName": lease, "strategy": "OldestEmulationVersion", "binaryVersion": "1.33.0",
            "emulationVersion": "1.33.0", "renewTime": now()}})
}

/// Adds a candidate that keeps answering, and returns the holder of the lease once it has one.
fn elect(admin: &mut Client, lease: &str, name: &str) -> String {
    admin.post(CANDIDATES, &candidate(lease, name)).ok();
    let elected = poll(TIMEOUT, || {
        admin.patch(&format!("{CANDIDATES}/{name}"), "merge", &json!({"spec": {"renewTime": now()}})).ok();
        holder(admin, &format!("{LEASES}/{lease}"))
    });
    elected.expect("a leader")
}

#[test]
fn another_server_elects_when_the_one_that_did_is_killed() {
    let replicas = Replicas::new(1);
    let one = replicas.start_with("one", &FLAGS);
    let mut admin = one.admin();
    let first = poll(TIMEOUT, || holder(&mut admin, OWN_LEASE)).expect("the first server elects");
    let other = replicas.start_with("other", &FLAGS);
    let mut admin = other.admin();
    assert_eq!(elect(&mut admin, "a", "x"), "x");
    assert_eq!(holder(&mut admin, OWN_LEASE).as_ref(), Some(&first), "a lease that is renewed is kept");

    one.kill();
    let next = || holder(&mut admin, OWN_LEASE).filter(|holder| *holder != first);
    poll(Duration::from_secs(60), next).expect("the other server takes over");
    assert_eq!(elect(&mut admin, "b", "y"), "y");
}
