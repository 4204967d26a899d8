//! Owners and names that are taken, with the garbage collector running.

use serde_json::{Value, json};

use super::{MAPS, config_map, export, import, import_text, reference};
use crate::support::server::temp_directory;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

fn server() -> Server {
    Server::with_flags(&[
        "--engine=memory",
        "--controllers=garbagecollector",
        "--disable-admission-plugins=ServiceAccount",
    ])
}

fn template(name: &str) -> Value {
    json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// A Deployment, a ReplicaSet and pods, as the controllers make them.
fn create_chain(client: &mut Client) {
    let apps = "/apis/apps/v1/namespaces/default";
    let spec =
        json!({"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template("web")});
    let deployment =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec});
    let deployment = client.post(&format!("{apps}/deployments"), &deployment).ok();
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": spec,
        "metadata": {"name": "web-1", "ownerReferences": [reference(&deployment)]}});
    let set = client.post(&format!("{apps}/replicasets"), &set).ok();
    for name in ["web-1-a", "web-1-b"] {
        let mut pod = template("web");
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["ownerReferences"] = json!([reference(&set)]);
        client.post("/api/v1/namespaces/default/pods", &pod).ok();
    }
}

/// Waits until the garbage collector has seen everything before this: it deletes an object whose owner is not there.
fn wait_for_garbage_collector(client: &mut Client) {
    let owner =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nobody", "uid": "not-there"}});
    client.post(MAPS, &config_map("garbage", &[reference(&owner)])).ok();
    let is_deleted = poll(TIMEOUT, || (client.get(&format!("{MAPS}/garbage")).status == 404).then_some(()));
    is_deleted.expect("the garbage collector runs");
}

#[test]
fn owned_objects_outlive_the_import() {
    let (from, into) = (server(), server());
    create_chain(&mut from.admin());
    let directory = temp_directory();
    let path = directory.path().join("export");
    // Alphabetically: pods come long before what owns them.
    export(&from, &path, &["--resource=pods,replicasets,deployments"]);
    let lines = std::fs::read_to_string(&path).unwrap();
    let reversed: Vec<&str> = lines.lines().rev().collect();
    let (success, stderr) = import_text(&into, &reversed.join("\n"), &[]);
    assert!(success && stderr.contains("4 objects created, 0 failed"), "{stderr}");
    let mut client = into.admin();
    wait_for_garbage_collector(&mut client);
    let pods = client.get("/api/v1/namespaces/default/pods").ok();
    assert_eq!(pods["items"].as_array().unwrap().len(), 2, "{pods}");
    // The new owners are the real ones.
    client.delete_background("/apis/apps/v1/namespaces/default/deployments/web").ok();
    let is_empty = || {
        let pods = client.get("/api/v1/namespaces/default/pods").ok();
        pods["items"].as_array().unwrap().is_empty().then_some(())
    };
    poll(TIMEOUT, is_empty).expect("the pods are deleted with their Deployment");
}

#[test]
fn object_without_its_owner_is_kept_and_reported() {
    let (from, into) = (server(), server());
    create_chain(&mut from.admin());
    let directory = temp_directory();
    let path = directory.path().join("export");
    export(&from, &path, &["--resource=pods"]);
    let (success, stderr) = import(&into, &path, &[]);
    assert!(success, "{stderr}");
    let note = "note: Pod default/web-1-a: its owner ReplicaSet.apps web-1 is neither in the stream nor in the cluster";
    assert!(stderr.contains(note), "{stderr}");
    let mut client = into.admin();
    wait_for_garbage_collector(&mut client);
    let pod = client.get("/api/v1/namespaces/default/pods/web-1-a").ok();
    assert!(pod["metadata"]["ownerReferences"].is_null(), "{pod}");
    // In the cluster that the stream came from, the owner is still there.
    let mut client = from.admin();
    client.delete_background("/api/v1/namespaces/default/pods/web-1-a").ok();
    let (success, stderr) = import(&from, &path, &[]);
    assert!(success && !stderr.contains("note:"), "{stderr}");
    let pod = client.get("/api/v1/namespaces/default/pods/web-1-a").ok();
    assert_eq!(pod["metadata"]["ownerReferences"][0]["name"], "web-1", "{pod}");
}

#[test]
fn taken_names_follow_the_policy() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let mut map = config_map("a", &[]);
    client.post(MAPS, &map).ok();
    map["data"]["name"] = json!("new");
    let stream = format!("{map}\n{}\n", config_map("b", &[]));
    let data = |client: &mut Client| client.get(&format!("{MAPS}/a")).ok()["data"]["name"].clone();

    let (success, stderr) = import_text(&server, &stream, &["--on-conflict=fail", "--fail-fast"]);
    assert!(!success, "{stderr}");
    let message = "failed: ConfigMap default/a: configmaps \"a\" already exists";
    assert!(stderr.contains(message) && stderr.contains("was not imported"), "{stderr}");
    let (success, stderr) = import_text(&server, &stream, &["--dry-run", "--on-conflict=replace"]);
    assert!(success && stderr.contains("would be replaced"), "{stderr}");
    assert_eq!(data(&mut client), "a");
    let (success, stderr) = import_text(&server, &stream, &[]);
    assert!(success && stderr.contains("existed and stay as they are"), "{stderr}");
    assert_eq!(data(&mut client), "a");
    let (success, stderr) = import_text(&server, &stream, &["--on-conflict=replace"]);
    assert!(success && stderr.contains("2 replaced"), "{stderr}");
    assert_eq!(data(&mut client), "new");
}

#[test]
fn taken_cluster_address_is_reported() {
    let (from, into) = (Server::with_flags(&["--engine=memory"]), Server::with_flags(&["--engine=memory"]));
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, address: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
    };
    let created = from.admin().post(services, &service("a", "")).ok();
    let address = created["spec"]["clusterIP"].as_str().unwrap();
    into.admin().post(services, &service("b", address)).ok();
    let directory = temp_directory();
    let path = directory.path().join("export");
    export(&from, &path, &["--resource=services"]);
    let (success, stderr) = import(&into, &path, &[]);
    assert!(!success && stderr.contains("failed: Service default/a"), "{stderr}");
    assert!(stderr.contains(&format!("\"{address}\"")) && stderr.contains("already allocated"), "{stderr}");
}

#[test]
fn token_secrets_get_tokens_of_the_new_cluster() {
    let flags = ["--engine=memory", "--controllers=*"];
    let (from, into) = (Server::with_flags(&flags), Server::with_flags(&flags));
    let secrets = "/api/v1/namespaces/port/secrets";
    let token = |client: &mut Client| {
        let secret = poll(TIMEOUT, || {
            let secret = client.get(&format!("{secrets}/t")).json();
            secret["data"]["token"].is_string().then_some(secret)
        });
        secret.expect("a token")["data"]["token"].clone()
    };
    let mut client = from.admin();
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "port"}})).ok();
    client.post("/api/v1/namespaces/port/serviceaccounts", &json!({"metadata": {"name": "captain"}})).ok();
    let secret = json!({"metadata": {"name": "t", "annotations": {"kubernetes.io/service-account.name": "captain"}},
        "type": "kubernetes.io/service-account-token"});
    client.post(secrets, &secret).ok();
    let old = token(&mut client);
    let directory = temp_directory();
    let path = directory.path().join("export");
    export(&from, &path, &["-n", "port"]);
    let (success, stderr) = import(&into, &path, &[]);
    assert!(success, "{stderr}");
    let mut client = into.admin();
    assert_ne!(token(&mut client), old);
    let account = client.get("/api/v1/namespaces/port/serviceaccounts/captain").ok();
    let secret = client.get(&format!("{secrets}/t")).ok();
    assert_eq!(
        secret["metadata"]["annotations"]["kubernetes.io/service-account.uid"],
        account["metadata"]["uid"]
    );
}
