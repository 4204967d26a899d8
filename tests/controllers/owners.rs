//! Owners and their dependents.

use serde_json::{Value, json};

use super::support::Client;
use super::support::client::JSON;
use super::support::wait::{CAP, poll};
use super::{becomes, config_map, gone, reference, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn at(name: &str) -> String {
    format!("{MAPS}/{name}")
}

fn make(client: &mut Client, name: &str, owners: &[Value]) -> Value {
    client.post(MAPS, &config_map(name, owners)).ok()
}

fn delete(client: &mut Client, name: &str, policy: &str) {
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy});
    let answer = client.request("DELETE", &at(name), &JSON, options.to_string().as_bytes());
    assert!(answer.status < 300, "{}", String::from_utf8_lossy(&answer.body));
}

#[test]
fn dependents_go_with_their_owner_through_generations() {
    let mut server = server(&[]);
    let mut client = server.admin();
    let owner = make(&mut client, "owner", &[]);
    let child = make(&mut client, "child", &[reference(&owner, false)]);
    make(&mut client, "grandchild", &[reference(&child, true)]);
    let other = make(&mut client, "other", &[]);
    make(&mut client, "shared", &[reference(&owner, false), reference(&other, false)]);
    delete(&mut client, "owner", "Background");
    gone(&mut client, &at("child"));
    gone(&mut client, &at("grandchild"));
    let shared = becomes(&mut client, &at("shared"), |map| {
        map["metadata"]["ownerReferences"].as_array().unwrap().len() == 1
    });
    assert_eq!(shared["metadata"]["ownerReferences"][0]["name"], "other");
    assert!(shared["metadata"]["deletionTimestamp"].is_null());
    server.unharmed();
}

#[test]
fn in_the_foreground_the_owner_goes_last() {
    let server = server(&[]);
    let mut client = server.admin();
    let owner = make(&mut client, "owner", &[]);
    let mut held = config_map("held", &[reference(&owner, true)]);
    held["metadata"]["finalizers"] = json!(["example.com/wait"]);
    client.post(MAPS, &held).ok();
    make(&mut client, "blocking", &[reference(&owner, true)]);
    make(&mut client, "careless", &[reference(&owner, false)]);
    delete(&mut client, "owner", "Foreground");
    gone(&mut client, &at("blocking"));
    gone(&mut client, &at("careless"));
    becomes(&mut client, &at("held"), |map| !map["metadata"]["deletionTimestamp"].is_null());
    let waiting = client.get(&at("owner")).ok();
    assert_eq!(waiting["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    client.patch(&at("held"), "merge", &json!({"metadata": {"finalizers": null}})).ok();
    gone(&mut client, &at("owner"));
}

#[test]
fn orphans_stay_without_their_owner() {
    let server = server(&[]);
    let mut client = server.admin();
    let owner = make(&mut client, "owner", &[]);
    for number in 0..20 {
        make(&mut client, &format!("child{number}"), &[reference(&owner, true)]);
    }
    delete(&mut client, "owner", "Orphan");
    gone(&mut client, &at("owner"));
    for number in 0..20 {
        let child = client.get(&at(&format!("child{number}"))).ok();
        assert!(child["metadata"]["ownerReferences"].is_null(), "{child}");
        assert!(child["metadata"]["deletionTimestamp"].is_null());
    }
}

#[test]
fn what_names_an_owner_that_is_not_there_goes() {
    let server = server(&[]);
    let mut client = server.admin();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}});
    client.post("/api/v1/namespaces", &namespace).ok();
    let owner = make(&mut client, "owner", &[]);
    let mut absent = reference(&owner, false);
    absent["uid"] = json!("no-such-uid");
    make(&mut client, "absent", &[absent]);
    let mut renamed = reference(&owner, false);
    renamed["name"] = json!("another-name");
    make(&mut client, "renamed", &[renamed]);
    make(&mut client, "stays", &[reference(&owner, false)]);
    gone(&mut client, &at("absent"));
    gone(&mut client, &at("renamed"));
    assert_eq!(client.get(&at("stays")).status, 200);

    let elsewhere = "/api/v1/namespaces/elsewhere/configmaps";
    client.post(elsewhere, &config_map("stranger", &[reference(&owner, false)])).ok();
    gone(&mut client, &format!("{elsewhere}/stranger"));
    let mut told = |namespace: &str| {
        let found = poll(CAP, || {
            let events = client.get(&format!("/api/v1/namespaces/{namespace}/events")).ok();
            let all = events["items"].as_array().unwrap().clone();
            all.into_iter().find(|event| event["reason"] == "OwnerRefInvalidNamespace")
        });
        found.expect("an event")["message"].clone()
    };
    let uid = owner["metadata"]["uid"].as_str().unwrap();
    let message = |namespace: &str| {
        format!(
            "ownerRef [v1/ConfigMap, namespace: {namespace}, name: owner, uid: {uid}] does not exist in namespace \"{namespace}\""
        )
    };
    assert_eq!(told("elsewhere"), message("elsewhere"));
    // What stands in no namespace cannot belong to what does; it stays, and somebody says so.
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "wide", "ownerReferences": [reference(&owner, false)]}});
    server.admin().post(roles, &role).ok();
    assert_eq!(told("default"), message(""));
    assert_eq!(client.get(&format!("{roles}/wide")).status, 200);

    // Whose kind nobody serves cannot be judged.
    let unknown = json!({"apiVersion": "example.com/v1", "kind": "Nothing", "name": "n", "uid": "u"});
    make(&mut client, "unknown", &[unknown]);
    // Something later that goes proves that it was looked at.
    let mut absent = reference(&owner, false);
    absent["uid"] = json!("no-such-uid-2");
    make(&mut client, "later", &[absent]);
    gone(&mut client, &at("later"));
    assert_eq!(client.get(&at("unknown")).status, 200);
}

#[test]
fn a_circle_is_broken() {
    let server = server(&[]);
    let mut client = server.admin();
    // Often: a circle was overlooked if its deletion was read of before it was heard of.
    let names = |number: usize| (format!("first{number}"), format!("second{number}"));
    for (first, second) in (0..20).map(names) {
        let one = make(&mut client, &first, &[]);
        let other = make(&mut client, &second, &[reference(&one, true)]);
        let circle = json!({"metadata": {"ownerReferences": [reference(&other, true)]}});
        client.patch(&at(&first), "merge", &circle).ok();
        delete(&mut client, &first, "Foreground");
    }
    for (first, second) in (0..20).map(names) {
        gone(&mut client, &at(&first));
        gone(&mut client, &at(&second));
    }
}

#[test]
fn a_thousand_dependents_go_with_one_write_each() {
    // No other loop writes ConfigMaps, so that their versions count the writes of this one.
    let server = super::support::Server::with(&["--engine=memory", "--controllers=garbagecollector"]);
    let mut client = server.admin();
    let owner = make(&mut client, "owner", &[]);
    let count = 1_000;
    for number in 0..count {
        make(&mut client, &format!("child{number}"), &[reference(&owner, true)]);
    }
    let before =
        client.get(MAPS).ok()["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    delete(&mut client, "owner", "Background");
    let left = poll(CAP, || (client.get(MAPS).ok()["items"].as_array().unwrap().is_empty()).then_some(()));
    assert!(left.is_some());
    let after =
        client.get(MAPS).ok()["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert_eq!(after - before, count + 1, "a write for each, and one for the owner");
}

#[test]
fn what_lost_its_owner_while_nobody_looked_goes_after_the_start() {
    let directory = super::support::server::directory();
    let data = directory.path().join("data");
    let quiet = super::support::Server::on(&data, &[]);
    let mut client = quiet.admin();
    let owner = make(&mut client, "owner", &[]);
    make(&mut client, "child", &[reference(&owner, true)]);
    let waits = make(&mut client, "waits", &[]);
    make(&mut client, "waited-for", &[reference(&waits, true)]);
    delete(&mut client, "owner", "Background");
    delete(&mut client, "waits", "Foreground");
    quiet.stop();
    let busy = super::support::Server::on(&data, &["--controllers=*"]);
    let mut client = busy.admin();
    for name in ["child", "waited-for", "waits"] {
        gone(&mut client, &at(name));
    }
}

/// The loops join one after the other while clients write already, and types are told one after the other: whoever waits
/// for dependents must know all of them even so.
#[test]
fn nothing_is_missed_right_after_the_start_or_between_two_types() {
    const SECRETS: &str = "/api/v1/namespaces/default/secrets";
    for _ in 0..3 {
        let server = server(&[]);
        let mut client = server.admin();
        for round in 0..10 {
            let owner = make(&mut client, &format!("owner{round}"), &[]);
            for number in 0..3 {
                let secret = json!({"apiVersion": "v1", "kind": "Secret",
                    "metadata": {"name": format!("s{round}-{number}"), "ownerReferences": [reference(&owner, true)]}});
                client.post(SECRETS, &secret).ok();
            }
            delete(&mut client, &format!("owner{round}"), "Foreground");
            gone(&mut client, &at(&format!("owner{round}")));
            assert_eq!(client.get(SECRETS).ok()["items"], json!([]), "the owner goes last");
        }
    }
}
