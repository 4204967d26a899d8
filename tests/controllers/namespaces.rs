//! The deletion of namespaces.

use serde_json::{Value, json};

use super::support::compare::text;
use super::support::manifests::{discover, root};
use super::support::{Client, Manifest, Server};
use super::{becomes, config_map, gone, server};

fn make(client: &mut Client, name: &str) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    client.post("/api/v1/namespaces", &namespace).ok();
}

/// What a condition says: its status, reason and message.
fn condition(namespace: &Value, name: &str) -> [String; 3] {
    let all = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|condition| condition["type"] == name).cloned().unwrap_or_default();
    ["status", "reason", "message"].map(|field| found[field].as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_namespace_with_every_kind_goes() {
    let mut server = server(&[]);
    let mut client = server.admin();
    let resources = discover(&mut client);
    make(&mut client, "full");
    let mut collections = Vec::new();
    for manifest in Manifest::all() {
        let resource = manifest.resource(&resources);
        if !resource.namespaced || !resource.has("delete") {
            continue;
        }
        let collection = format!("{}/namespaces/full/{}", root(manifest.group_version()), resource.plural);
        let mut object = manifest.object.clone();
        object["metadata"]["namespace"] = json!("full");
        let text = object.to_string().replace("\"namespace\":\"default\"", "\"namespace\":\"full\"");
        let answer = client.post(&collection, &serde_json::from_str(&text).unwrap());
        assert!(answer.status < 300, "{}: {}", manifest.title(), String::from_utf8_lossy(&answer.body));
        collections.push(collection);
    }
    assert!(collections.len() > 25, "{}", collections.len());
    let mut watch = client.watch("/api/v1/namespaces", "fieldSelector=metadata.name=full");
    assert_eq!(watch.next()["type"], "ADDED");
    client.delete("/api/v1/namespaces/full").ok();
    let mut seen = Vec::new();
    loop {
        let event = watch.next();
        assert_eq!(event["object"]["status"]["phase"], "Terminating");
        seen.push(event["type"].as_str().unwrap().to_owned());
        if event["type"] == "DELETED" {
            let object = &event["object"];
            let well = ["False", "ContentRemoved", "All content successfully removed"].map(str::to_owned);
            assert_eq!(condition(object, "NamespaceContentRemaining"), well);
            break;
        }
    }
    assert_eq!(seen.first().map(String::as_str), Some("MODIFIED"));
    for collection in collections {
        let left = client.get(&collection).ok();
        assert_eq!(left["items"], json!([]), "{collection}");
    }
    server.unharmed();
}

#[test]
fn a_finalizer_holds_the_namespace_which_says_so() {
    let server = server(&[]);
    let mut client = server.admin();
    make(&mut client, "held");
    let maps = "/api/v1/namespaces/held/configmaps";
    let mut held = config_map("held", &[]);
    held["metadata"]["finalizers"] = json!(["example.com/wait"]);
    client.post(maps, &held).ok();
    client.post(maps, &config_map("free", &[])).ok();
    client.delete("/api/v1/namespaces/held").ok();
    let namespace = becomes(&mut client, "/api/v1/namespaces/held", |namespace| {
        condition(namespace, "NamespaceFinalizersRemaining")[0] == "True"
    });
    assert_eq!(
        condition(&namespace, "NamespaceFinalizersRemaining"),
        [
            "True",
            "SomeFinalizersRemain",
            "Some content in the namespace has finalizers remaining: example.com/wait in 1 resource instances"
        ]
    );
    assert_eq!(
        condition(&namespace, "NamespaceContentRemaining"),
        ["True", "SomeResourcesRemain", "Some resources are remaining: configmaps. has 1 resource instances"]
    );
    assert_eq!(
        condition(&namespace, "NamespaceDeletionContentFailure"),
        ["False", "ContentDeleted", "All content successfully deleted, may be waiting on finalization"]
    );
    assert_eq!(client.get(&format!("{maps}/free")).status, 404);
    let refused = client.post(maps, &config_map("late", &[]));
    assert_eq!(refused.status, 403);
    client.patch(&format!("{maps}/held"), "merge", &json!({"metadata": {"finalizers": null}})).ok();
    gone(&mut client, "/api/v1/namespaces/held");
}

#[test]
fn another_finalizer_of_the_namespace_itself_is_respected() {
    let server = server(&[]);
    let mut client = server.admin();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "twice"},
        "spec": {"finalizers": ["example.com/other"]}});
    client.post("/api/v1/namespaces", &namespace).ok();
    client.delete("/api/v1/namespaces/twice").ok();
    let mut namespace = becomes(&mut client, "/api/v1/namespaces/twice", |namespace| {
        namespace["spec"]["finalizers"] == json!(["example.com/other"])
    });
    namespace["spec"]["finalizers"] = json!([]);
    // Without a version: the loop writes the conditions whenever it has looked.
    namespace["metadata"]["resourceVersion"] = json!("");
    client.put("/api/v1/namespaces/twice/finalize", &namespace).ok();
    gone(&mut client, "/api/v1/namespaces/twice");
}

fn fill(client: &mut Client, namespace: &str, count: usize) {
    for number in 0..count {
        let map = config_map(&format!("m{number:05}"), &[]);
        client.post(&format!("/api/v1/namespaces/{namespace}/configmaps"), &map).ok();
    }
}

#[test]
fn a_deletion_goes_on_after_a_kill_and_after_a_restart() {
    let directory = super::support::server::directory();
    let data = directory.path().join("data");
    let server = Server::on(&data, &["--controllers=*"]);
    let mut client = server.admin();
    make(&mut client, "crash");
    fill(&mut client, "crash", 400);
    client.delete("/api/v1/namespaces/crash").ok();
    server.kill();

    let server = Server::on(&data, &[]);
    let mut client = server.admin();
    let phase = client.get("/api/v1/namespaces/crash");
    assert!(phase.status == 404 || text(&phase.json(), "/status/phase") == "Terminating");
    server.stop();

    let server = Server::on(&data, &["--controllers=*"]);
    let mut client = server.admin();
    gone(&mut client, "/api/v1/namespaces/crash");
    assert_eq!(client.get("/api/v1/namespaces/crash/configmaps").ok()["items"], json!([]));
    server.stop();
}

/// As a stock controller manager beside the loops would: it deletes what they delete and finalizes what they finalize.
#[test]
fn another_controller_at_the_same_time_does_no_harm() {
    let mut server = server(&[]);
    let mut client = server.admin();
    make(&mut client, "shared");
    let maps = "/api/v1/namespaces/shared/configmaps";
    let owner = client.post(maps, &config_map("owner", &[])).ok();
    for number in 0..300 {
        let owners = if number % 2 == 0 { vec![super::reference(&owner, true)] } else { Vec::new() };
        client.post(maps, &config_map(&format!("m{number:05}"), &owners)).ok();
    }
    let mut rival = client.again();
    let rivalry = std::thread::spawn(move || {
        for _ in 0..200 {
            rival.delete(maps);
            let mut namespace = rival.get("/api/v1/namespaces/shared");
            if namespace.status == 404 {
                return;
            }
            let mut object = namespace.json();
            if rival.get(maps).ok()["items"] == json!([])
                && object["metadata"]["deletionTimestamp"].is_string()
            {
                object["spec"]["finalizers"] = json!([]);
                namespace = rival.put("/api/v1/namespaces/shared/finalize", &object);
                assert!(matches!(namespace.status, 200 | 404 | 409), "{}", namespace.text());
            }
        }
    });
    client.delete(&format!("{maps}/owner"));
    client.delete("/api/v1/namespaces/shared");
    gone(&mut client, "/api/v1/namespaces/shared");
    rivalry.join().unwrap();
    assert_eq!(client.get(maps).ok()["items"], json!([]));
    server.unharmed();
}
