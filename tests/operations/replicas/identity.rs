//! The lease by which each server says that it is alive.

use serde_json::Value;

use super::{LEASE, Replicas};
use crate::support::client::Client;
use crate::support::server::Server;
use crate::support::wait::{TIMEOUT, poll};

const IDENTITIES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases\
    ?labelSelector=apiserver.kubernetes.io/identity%3Dkube-apiserver";
const HOOK: &str = "poststarthook/start-kube-apiserver-identity-lease-controller";

fn leases(admin: &mut Client) -> Vec<Value> {
    admin.get(IDENTITIES).ok()["items"].as_array().unwrap().clone()
}

/// The only lease, once it is there.
fn lease(server: &Server) -> Value {
    let mut admin = server.admin();
    let lease = poll(TIMEOUT, || leases(&mut admin).into_iter().next()).expect("a lease");
    assert_eq!(leases(&mut admin).len(), 1);
    lease
}

fn renewed(lease: &Value) -> &str {
    lease["spec"]["renewTime"].as_str().unwrap()
}

fn wait_for_renewal(server: &Server, lease: &Value) -> Value {
    let mut admin = server.admin();
    let next = || leases(&mut admin).into_iter().find(|next| renewed(next) > renewed(lease));
    poll(TIMEOUT, next).expect("it is renewed")
}

#[test]
fn server_on_etcd_renews_its_identity_lease() {
    let replicas = Replicas::new(1);
    let one = replicas.start("one");
    let lease = lease(&one);
    let name = lease["metadata"]["name"].as_str().unwrap();
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap().to_owned();
    assert!(name.starts_with("apiserver-") && holder.starts_with(&format!("{name}_")), "{lease}");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 3_600);
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    assert_eq!(lease["metadata"]["labels"]["kubernetes.io/hostname"], host);
    assert_eq!(one.admin().get(&format!("/readyz/{HOOK}")).text(), "ok");
    wait_for_renewal(&one, &lease);
}

/// As in the reference: the id is a digest of the host, and whoever finds the lease leaves its holder as it is.
#[test]
fn servers_on_one_host_share_an_identity_lease() {
    let replicas = Replicas::new(1);
    let one = replicas.start("one");
    let first = lease(&one);
    let other = replicas.start("other");
    one.kill();
    let mut renewed = first.clone();
    for _renewal in 0..2 {
        renewed = wait_for_renewal(&other, &renewed);
    }
    assert_eq!(renewed["spec"]["holderIdentity"], first["spec"]["holderIdentity"]);
    assert_eq!(lease(&other)["metadata"]["uid"], first["metadata"]["uid"]);
}

#[test]
fn server_without_the_gate_has_no_identity_lease() {
    let replicas = Replicas::new(1);
    let flags = ["--feature-gates=APIServerIdentity=false", "--controllers=namespace"];
    let server = replicas.start_with("one", &flags);
    let mut admin = server.admin();
    // The lease of the controllers is taken after the other one would be.
    poll(TIMEOUT, || (admin.get(LEASE).status == 200).then_some(())).expect("its controllers work");
    assert_eq!(leases(&mut admin), [] as [Value; 0]);
    assert_eq!(admin.get(&format!("/readyz/{HOOK}")).status, 404);
}
