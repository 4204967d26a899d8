//! Garbage collection of dependents.

use serde_json::{Value, json};

use super::{config_map, reference, server, wait_until, wait_until_gone};
use crate::support::Client;
use crate::support::client::JSON;
use crate::support::compare::revision;
use crate::support::wait::{TIMEOUT, poll};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map_path(name: &str) -> String {
    format!("{MAPS}/{name}")
}

fn create_map(client: &mut Client, name: &str, owners: &[Value]) -> Value {
    client.post(MAPS, &config_map(name, owners)).ok()
}

fn delete_map(client: &mut Client, name: &str, policy: &str) {
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy});
    let response = client.request("DELETE", &map_path(name), &JSON, options.to_string().as_bytes());
    assert!(response.status < 300, "{}", String::from_utf8_lossy(&response.body));
}

#[test]
fn background_deletion_cascades_through_generations() {
    let mut server = server(&[]);
    let mut client = server.admin();
    let owner = create_map(&mut client, "owner", &[]);
    let child = create_map(&mut client, "child", &[reference(&owner, false)]);
    create_map(&mut client, "grandchild", &[reference(&child, true)]);
    let second_owner = create_map(&mut client, "other", &[]);
    create_map(&mut client, "shared", &[reference(&owner, false), reference(&second_owner, false)]);
    delete_map(&mut client, "owner", "Background");
    wait_until_gone(&mut client, &map_path("child"));
    wait_until_gone(&mut client, &map_path("grandchild"));
    let shared = wait_until(&mut client, &map_path("shared"), |map| {
        map["metadata"]["ownerReferences"].as_array().unwrap().len() == 1
    });
    assert_eq!(shared["metadata"]["ownerReferences"][0]["name"], "other");
    assert!(shared["metadata"]["deletionTimestamp"].is_null());
    server.assert_healthy();
}

#[test]
fn foreground_deletion_removes_owner_last() {
    let server = server(&[]);
    let mut client = server.admin();
    let owner = create_map(&mut client, "owner", &[]);
    let mut held = config_map("held", &[reference(&owner, true)]);
    held["metadata"]["finalizers"] = json!(["example.com/wait"]);
    client.post(MAPS, &held).ok();
    create_map(&mut client, "blocking", &[reference(&owner, true)]);
    create_map(&mut client, "careless", &[reference(&owner, false)]);
    delete_map(&mut client, "owner", "Foreground");
    wait_until_gone(&mut client, &map_path("blocking"));
    wait_until_gone(&mut client, &map_path("careless"));
    wait_until(&mut client, &map_path("held"), |map| !map["metadata"]["deletionTimestamp"].is_null());
    let owner_object = client.get(&map_path("owner")).ok();
    assert_eq!(owner_object["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    client.patch(&map_path("held"), "merge", &json!({"metadata": {"finalizers": null}})).ok();
    wait_until_gone(&mut client, &map_path("owner"));
}

#[test]
fn orphan_deletion_keeps_dependents_without_owner_reference() {
    let server = server(&[]);
    let mut client = server.admin();
    let owner = create_map(&mut client, "owner", &[]);
    for number in 0..20 {
        create_map(&mut client, &format!("child{number}"), &[reference(&owner, true)]);
    }
    delete_map(&mut client, "owner", "Orphan");
    wait_until_gone(&mut client, &map_path("owner"));
    for number in 0..20 {
        let child = client.get(&map_path(&format!("child{number}"))).ok();
        assert!(child["metadata"]["ownerReferences"].is_null(), "{child}");
        assert!(child["metadata"]["deletionTimestamp"].is_null());
    }
}

#[test]
fn object_with_absent_owner_is_collected() {
    let server = server(&[]);
    let mut client = server.admin();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}});
    client.post("/api/v1/namespaces", &namespace).ok();
    let owner = create_map(&mut client, "owner", &[]);
    let mut with_absent_owner = reference(&owner, false);
    with_absent_owner["uid"] = json!("no-such-uid");
    create_map(&mut client, "absent", &[with_absent_owner]);
    let mut with_renamed_owner = reference(&owner, false);
    with_renamed_owner["name"] = json!("another-name");
    create_map(&mut client, "renamed", &[with_renamed_owner]);
    create_map(&mut client, "stays", &[reference(&owner, false)]);
    wait_until_gone(&mut client, &map_path("absent"));
    wait_until_gone(&mut client, &map_path("renamed"));
    assert_eq!(client.get(&map_path("stays")).status, 200);

    let other_namespace = "/api/v1/namespaces/elsewhere/configmaps";
    client.post(other_namespace, &config_map("stranger", &[reference(&owner, false)])).ok();
    wait_until_gone(&mut client, &format!("{other_namespace}/stranger"));
    let mut event_message = |namespace: &str| {
        let event = poll(TIMEOUT, || {
            let events = client.get(&format!("/api/v1/namespaces/{namespace}/events")).ok();
            let events = events["items"].as_array().unwrap().clone();
            events.into_iter().find(|event| event["reason"] == "OwnerRefInvalidNamespace")
        });
        event.expect("an event")["message"].clone()
    };
    let uid = owner["metadata"]["uid"].as_str().unwrap();
    let message = |namespace: &str| {
        format!(
            "ownerRef [v1/ConfigMap, namespace: {namespace}, name: owner, uid: {uid}] does not exist in namespace \"{namespace}\""
        )
    };
    assert_eq!(event_message("elsewhere"), message("elsewhere"));
    // A cluster-scoped object cannot have a namespaced owner: it stays, with an event.
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "wide", "ownerReferences": [reference(&owner, false)]}});
    server.admin().post(roles, &role).ok();
    assert_eq!(event_message("default"), message(""));
    assert_eq!(client.get(&format!("{roles}/wide")).status, 200);

    // An owner of an unknown kind cannot be resolved: the object stays.
    let unknown_owner = json!({"apiVersion": "example.com/v1", "kind": "Nothing", "name": "n", "uid": "u"});
    create_map(&mut client, "unknown", &[unknown_owner]);
    // The collection of a later object proves that this one was processed.
    let mut with_absent_owner = reference(&owner, false);
    with_absent_owner["uid"] = json!("no-such-uid-2");
    create_map(&mut client, "later", &[with_absent_owner]);
    wait_until_gone(&mut client, &map_path("later"));
    assert_eq!(client.get(&map_path("unknown")).status, 200);
}

#[test]
fn foreground_deletion_breaks_owner_cycle() {
    let server = server(&[]);
    let mut client = server.admin();
    // Repeated, because a cycle was missed when its deletion was read before its event.
    let names = |number: usize| (format!("first{number}"), format!("second{number}"));
    for (first, second) in (0..20).map(names) {
        let first_object = create_map(&mut client, &first, &[]);
        let second_object = create_map(&mut client, &second, &[reference(&first_object, true)]);
        let circle = json!({"metadata": {"ownerReferences": [reference(&second_object, true)]}});
        client.patch(&map_path(&first), "merge", &circle).ok();
        delete_map(&mut client, &first, "Foreground");
    }
    for (first, second) in (0..20).map(names) {
        wait_until_gone(&mut client, &map_path(&first));
        wait_until_gone(&mut client, &map_path(&second));
    }
}

#[test]
fn a_thousand_dependents_take_one_write_each() {
    // No other controller writes ConfigMaps, so that their events count the writes of this one.
    let server = crate::support::Server::with_flags(&["--engine=memory", "--controllers=garbagecollector"]);
    let mut client = server.admin();
    let owner = create_map(&mut client, "owner", &[]);
    let count = 1_000;
    for number in 0..count {
        create_map(&mut client, &format!("child{number}"), &[reference(&owner, true)]);
    }
    let before = revision(&client.get(MAPS).ok());
    let mut watch = client.watch(MAPS, &format!("resourceVersion={before}"));
    delete_map(&mut client, "owner", "Background");
    let is_empty =
        poll(TIMEOUT, || (client.get(MAPS).ok()["items"].as_array().unwrap().is_empty()).then_some(()));
    assert!(is_empty.is_some());
    // A write for each, and one for the owner.
    for _ in 0..=count {
        let event = watch.next();
        assert_eq!(event["type"], "DELETED", "{event}");
    }
}

#[test]
fn garbage_of_stopped_controllers_is_collected_on_start() {
    let directory = crate::support::server::temp_directory();
    let data = directory.path().join("data");
    let without_controllers = crate::support::Server::start_in(&data, &[]);
    let mut client = without_controllers.admin();
    let owner = create_map(&mut client, "owner", &[]);
    create_map(&mut client, "child", &[reference(&owner, true)]);
    let waits = create_map(&mut client, "waits", &[]);
    create_map(&mut client, "waited-for", &[reference(&waits, true)]);
    delete_map(&mut client, "owner", "Background");
    delete_map(&mut client, "waits", "Foreground");
    without_controllers.stop();
    let with_controllers = crate::support::Server::start_in(&data, &["--controllers=*"]);
    let mut client = with_controllers.admin();
    for name in ["child", "waited-for", "waits"] {
        wait_until_gone(&mut client, &map_path(name));
    }
}

/// Controllers start one after the other while clients write, and types are synced one after the other: foreground deletion must
/// still see all dependents.
#[test]
fn foreground_deletion_right_after_start_sees_all_dependents() {
    const SECRETS: &str = "/api/v1/namespaces/default/secrets";
    for _ in 0..3 {
        let server = server(&[]);
        let mut client = server.admin();
        for round in 0..10 {
            let owner = create_map(&mut client, &format!("owner{round}"), &[]);
            for number in 0..3 {
                let secret = json!({"apiVersion": "v1", "kind": "Secret",
                    "metadata": {"name": format!("s{round}-{number}"), "ownerReferences": [reference(&owner, true)]}});
                client.post(SECRETS, &secret).ok();
            }
            delete_map(&mut client, &format!("owner{round}"), "Foreground");
            wait_until_gone(&mut client, &map_path(&format!("owner{round}")));
            assert_eq!(client.get(SECRETS).ok()["items"], json!([]), "the owner goes last");
        }
    }
}
