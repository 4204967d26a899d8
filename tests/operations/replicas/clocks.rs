//! Servers whose clocks differ.

use serde_json::{Value, json};

use super::{LEASE, MAPS, Replicas, map, version};
use crate::support::client::Client;
use crate::support::server::Server;
use crate::support::wait::{TIMEOUT, poll};

const TOKENS: &str = "/api/v1/namespaces/default/serviceaccounts/robot/token";

/// The lease of the controllers, once somebody has it.
fn lease(admin: &mut Client) -> Value {
    poll(TIMEOUT, || Some(admin.get(LEASE)).filter(|lease| lease.status == 200))
        .expect("somebody leads")
        .json()
}

fn created(object: &Value) -> &str {
    object["metadata"]["creationTimestamp"].as_str().unwrap()
}

/// Creates an object, and one more at the other server after it.
fn create_at_both(first: &mut Client, second: &mut Client, names: [&str; 2]) -> (Value, Value) {
    (first.post(MAPS, &map(names[0], "")).ok(), second.post(MAPS, &map(names[1], "")).ok())
}

#[test]
fn server_whose_clock_is_ahead_changes_nothing_for_others() {
    let replicas = Replicas::new(1);
    let flags = ["--controllers=namespace"];
    let one = replicas.start_with("one", &flags);
    let mut first = one.admin();
    let before = lease(&mut first);
    let etcd = replicas.servers();
    let other =
        Server::start_ahead("10m", &replicas.directory.path().join("other"), &[flags[0], etcd.as_str()]);
    let mut second = other.admin();

    // Versions are in the order of the writes, whatever time the writers take it for.
    let mut watch = one.admin().watch(MAPS, &format!("resourceVersion={}", version(&first.get(MAPS).ok())));
    let (early, late) = create_at_both(&mut second, &mut first, ["early", "late"]);
    assert!(version(&early) < version(&late));
    assert!(created(&early) > created(&late), "the clocks differ: {early} {late}");
    for name in ["early", "late"] {
        assert_eq!(watch.next()["object"]["metadata"]["name"], name);
    }
    assert_eq!(first.get(&format!("{MAPS}/early")).ok(), early);

    // For the clock of the other server, the lease has expired ten minutes ago: it judges by its own observation.
    let mut last = before.clone();
    for _renewal in 0..4 {
        let next = || Some(lease(&mut first)).filter(|lease| version(lease) > version(&last));
        last = poll(TIMEOUT, next).expect("the lease is renewed");
        assert_eq!(last["spec"]["holderIdentity"], before["spec"]["holderIdentity"]);
    }
    assert_eq!(last["spec"]["leaseTransitions"], before["spec"]["leaseTransitions"]);
}

/// As the reference does, with a minute of grace.
#[test]
fn token_of_a_server_whose_clock_is_ahead_is_not_valid_yet() {
    let replicas = Replicas::new(1);
    let one = replicas.start("one");
    let shared = std::fs::read(one.data.join("pki/sa.key")).unwrap();
    let pki = replicas.directory.path().join("sa.key");
    std::fs::write(&pki, shared).unwrap();
    let key = pki.to_str().unwrap();
    let keys =
        [format!("--service-account-signing-key-file={key}"), format!("--service-account-key-file={key}")];
    let etcd = replicas.servers();
    let flags = [keys[0].as_str(), keys[1].as_str(), etcd.as_str()];
    let start = |offset: &str| {
        let data = replicas.directory.path().join(offset);
        Server::start_ahead(offset, &data, &flags)
    };
    let (near, far) = (start("30s"), start("10m"));
    let account = json!({"metadata": {"name": "robot"}});
    near.admin().post("/api/v1/namespaces/default/serviceaccounts", &account).ok();
    let status = |server: &Server| {
        let token = server.admin().post(TOKENS, &json!({"spec": {}})).ok();
        let token = token["status"]["token"].as_str().unwrap().to_owned();
        assert_eq!(server.anonymous().with_token(Some(&token)).get("/version").status, 200);
        one.anonymous().with_token(Some(&token)).get("/apis").status
    };
    assert_eq!(status(&near), 200, "within the grace");
    assert_eq!(status(&far), 401);
}
