//! Metadata: names, namespaces, versions, generations, finalizers and deletion.

use serde_json::{Value, json};

use crate::support::client::JSON;
use crate::support::compare::{revision, text};
use crate::support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

fn start_server() -> (Server, Client) {
    let server = Server::with_flags(&["--engine=memory"]);
    let client = server.admin();
    (server, client)
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

fn deployment(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "selector": {"matchLabels": {"app": "a"}},
        "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}})
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn expect_invalid(client: &mut Client, path: &str, object: &Value, field: &str) {
    let status = client.post(path, object).expect_error(422, "Invalid");
    let causes = status["details"]["causes"].as_array().expect("causes");
    let is_named = causes.iter().any(|cause| text(cause, "/field") == field);
    assert!(is_named, "no cause names {field}: {status}");
}

#[test]
fn generate_name_adds_random_suffix() {
    let (_server, mut client) = start_server();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}});
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let created = client.post(MAPS, &object).ok();
        let name = text(&created, "/metadata/name").to_owned();
        let suffix = name.strip_prefix("made-").expect("the prefix");
        assert_eq!(suffix.len(), 5, "{name}");
        assert!(suffix.chars().all(|letter| "bcdfghjklmnpqrstvwxz2456789".contains(letter)), "{name}");
        assert_eq!(text(&created, "/metadata/generateName"), "made-");
        names.insert(name);
    }
    assert_eq!(names.len(), 20, "{names:?}");

    let object_with_both_names = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "given", "generateName": "made-"}});
    assert_eq!(text(&client.post(MAPS, &object_with_both_names).ok(), "/metadata/name"), "given");
    let status = client.post(MAPS, &object_with_both_names).expect_error(409, "AlreadyExists");
    assert_eq!(
        text(&status, "/message"),
        "configmaps \"given\" already exists, the server was not able to generate a unique name for the object"
    );

    assert_eq!(status["details"]["retryAfterSeconds"], 1, "{status}");

    let prefix = "p".repeat(300);
    let long = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": prefix}});
    expect_invalid(&mut client, MAPS, &long, "metadata.generateName");
}

#[test]
fn names_are_validated_by_kind() {
    let (_server, mut client) = start_server();
    for invalid_name in
        ["Upper", "under_score", "-dash", "dash-", "dot..dot", "a/b", "ü", " ", &"n".repeat(254)]
    {
        expect_invalid(&mut client, MAPS, &map(invalid_name), "metadata.name");
    }
    for valid_name in ["a", "a.b-c.9", &"n".repeat(253)] {
        client.post(MAPS, &map(valid_name)).ok();
    }
    for object_without_name in
        [json!({}), json!({"metadata": {}}), json!({"metadata": {"name": ""}}), json!({"metadata": null})]
    {
        expect_invalid(&mut client, MAPS, &object_without_name, "metadata.name");
    }
    // A DNS label, not a subdomain.
    expect_invalid(&mut client, "/api/v1/namespaces", &namespace("a.b"), "metadata.name");
    expect_invalid(&mut client, "/api/v1/namespaces", &namespace(&"n".repeat(64)), "metadata.name");
    // A DNS label that starts with a letter.
    let service = |name: &str| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    expect_invalid(&mut client, "/api/v1/namespaces/default/services", &service("1st"), "metadata.name");
    client.post("/api/v1/namespaces/default/services", &service("first")).ok();
    // A path segment: nearly anything.
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let role = |name: &str| json!({"metadata": {"name": name}, "rules": []});
    client.post(roles, &role("system:Weird_Name")).ok();
    expect_invalid(&mut client, roles, &role("a%b"), "metadata.name");
    expect_invalid(&mut client, roles, &role(".."), "metadata.name");
}

#[test]
fn labels_annotations_and_finalizers_are_validated() {
    let (_server, mut client) = start_server();
    let object_with = |field: &str, value: Value| {
        let mut object = map("labelled");
        object["metadata"][field] = value;
        object
    };
    expect_invalid(&mut client, MAPS, &object_with("labels", json!({"bad key": "x"})), "metadata.labels");
    expect_invalid(&mut client, MAPS, &object_with("labels", json!({"key": "bad value"})), "metadata.labels");
    expect_invalid(
        &mut client,
        MAPS,
        &object_with("labels", json!({"key": "v".repeat(64)})),
        "metadata.labels",
    );
    expect_invalid(
        &mut client,
        MAPS,
        &object_with("annotations", json!({"a/b/c": "x"})),
        "metadata.annotations",
    );
    expect_invalid(
        &mut client,
        MAPS,
        &object_with("annotations", json!({"big": "x".repeat(256 << 10)})),
        "metadata.annotations",
    );
    expect_invalid(
        &mut client,
        MAPS,
        &object_with("finalizers", json!(["nodomain"])),
        "metadata.finalizers[0]",
    );
    client.post(MAPS, &object_with("annotations", json!({"big": "x".repeat((256 << 10) - 3)}))).ok();
}

#[test]
fn server_owned_metadata_ignores_client_values() {
    let (_server, mut client) = start_server();
    let mut object = map("mine");
    object["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    object["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    object["metadata"]["deletionTimestamp"] = json!("2001-01-01T00:00:00Z");
    object["metadata"]["selfLink"] = json!("/nowhere");
    let created = client.post(MAPS, &object).ok();
    assert_ne!(created["metadata"]["uid"], object["metadata"]["uid"]);
    assert_ne!(created["metadata"]["creationTimestamp"], object["metadata"]["creationTimestamp"]);
    assert!(created["metadata"]["deletionTimestamp"].is_null(), "{created}");

    assert!(created["metadata"]["selfLink"].is_null(), "{created}");
    // A dry run keeps selfLink, because only storage drops it.
    let path = format!("{MAPS}/mine");
    let with_self_link =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine", "selfLink": "/here"}});
    assert_eq!(
        text(&client.put(&format!("{path}?dryRun=All"), &with_self_link).ok(), "/metadata/selfLink"),
        "/here"
    );
    assert!(client.put(&path, &with_self_link).ok()["metadata"]["selfLink"].is_null());
    assert!(
        client
            .post(&format!("{MAPS}?dryRun=All"), &{
                let mut new = with_self_link.clone();
                new["metadata"]["name"] = json!("new");
                new
            })
            .ok()["metadata"]["selfLink"]
            .is_null()
    );
    let created = client.get(&path).ok();
    assert!(created["metadata"]["selfLink"].is_null(), "{created}");

    let mut with_other_uid = created.clone();
    with_other_uid["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    client.put(&format!("{MAPS}/mine"), &with_other_uid).expect_error(409, "Conflict");
    let mut renamed = created;
    renamed["metadata"]["name"] = json!("yours");
    client.put(&format!("{MAPS}/mine"), &renamed).expect_error(400, "BadRequest");

    let mut versioned = map("versioned");
    versioned["metadata"]["resourceVersion"] = json!("5");
    let refused = client.post(MAPS, &versioned);
    assert!((400..500).contains(&refused.status), "{}", refused.text());
    assert!(refused.text().contains("resourceVersion should not be set"), "{}", refused.text());
}

/// The tests of kubernetes_asyncio create a Service with the resourceVersion `v1`.
#[test]
fn create_ignores_unparsable_resource_version() {
    let server = Server::start();
    let mut client = server.admin();
    let mut versioned = map("versioned");
    versioned["metadata"]["resourceVersion"] = json!("v1");
    let created = client.post(MAPS, &versioned).ok();
    let version = created["metadata"]["resourceVersion"].as_str().expect("a version");
    assert!(version.parse::<u64>().is_ok(), "{created}");
    assert_eq!(client.get(&format!("{MAPS}/versioned")).ok(), created);
}

#[test]
fn unchanged_update_keeps_resource_version() {
    let (_server, mut client) = start_server();
    let created = client.post(MAPS, &map("calm")).ok();
    let second_response = client.put(&format!("{MAPS}/calm"), &created).ok();
    assert_eq!(second_response["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
    // Without a version a PUT is unconditional.
    let mut unconditional = map("calm");
    unconditional["data"] = json!({"a": "b"});
    let updated = client.put(&format!("{MAPS}/calm"), &unconditional).ok();
    assert!(revision(&updated) > revision(&created));
}

#[test]
fn namespace_of_path_and_body_must_match() {
    let (_server, mut client) = start_server();
    let mut object = map("placed");
    object["metadata"]["namespace"] = json!("kube-system");
    let status = client.post(MAPS, &object).expect_error(400, "BadRequest");
    assert!(
        text(&status, "/message").contains("namespace of the provided object does not match"),
        "{status}"
    );
    object["metadata"]["namespace"] = json!("default");
    client.post(MAPS, &object).ok();
    object["metadata"]["namespace"] = json!("kube-system");
    client.put(&format!("{MAPS}/placed"), &object).expect_error(400, "BadRequest");
    // A kind without namespaces does not keep one.
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "namespace": "default"}});
    assert!(client.post("/api/v1/nodes", &node).ok()["metadata"]["namespace"].is_null());
}

#[test]
fn create_needs_active_namespace() {
    let (_server, mut client) = start_server();
    let status =
        client.post("/api/v1/namespaces/nowhere/configmaps", &map("a")).expect_error(404, "NotFound");
    assert_eq!(text(&status, "/message"), "namespaces \"nowhere\" not found");
    assert_eq!(client.get("/api/v1/namespaces/nowhere/configmaps").ok()["items"], json!([]));

    let created = client.post("/api/v1/namespaces", &namespace("leaving")).ok();
    assert_eq!(text(&created, "/status/phase"), "Active");
    assert_eq!(created["spec"]["finalizers"], json!(["kubernetes"]));
    client.post("/api/v1/namespaces/leaving/configmaps", &map("a")).ok();
    let deleted = client.delete("/api/v1/namespaces/leaving").ok();
    assert_eq!(text(&deleted, "/status/phase"), "Terminating", "{deleted}");
    let status =
        client.post("/api/v1/namespaces/leaving/configmaps", &map("b")).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").contains("because it is being terminated"), "{status}");
    assert_eq!(text(&status, "/details/causes/0/reason"), "NamespaceTerminating", "{status}");
    // Existing objects may still be updated and deleted.
    client.put("/api/v1/namespaces/leaving/configmaps/a", &map("a")).ok();
    client.delete("/api/v1/namespaces/leaving/configmaps/a").ok();
}

/// A namespace without finalizers was removed by its first deletion.
#[test]
fn first_namespace_delete_only_marks_terminating() {
    let server = Server::with_flags(&["--engine=memory", "--controllers=-*"]);
    let mut client = server.admin();
    let path = "/api/v1/namespaces/leaving";
    client.post("/api/v1/namespaces", &namespace("leaving")).ok();
    let mut without_finalizers = namespace("leaving");
    without_finalizers["spec"] = json!({"finalizers": []});
    client.put(&format!("{path}/finalize"), &without_finalizers).ok();
    for query in ["?dryRun=All", ""] {
        let marked = client.delete(&format!("{path}{query}")).ok();
        assert_eq!(text(&marked, "/status/phase"), "Terminating", "{marked}");
        assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    }
    client.delete(path).ok();
    client.get(path).expect_error(404, "NotFound");
}

#[test]
fn system_namespaces_exist_and_are_undeletable() {
    let (_server, mut client) = start_server();
    let list = client.get("/api/v1/namespaces").ok();
    let names: Vec<&str> =
        list["items"].as_array().expect("items").iter().map(|item| text(item, "/metadata/name")).collect();
    assert_eq!(names, ["default", "kube-node-lease", "kube-public", "kube-system"]);
    for name in ["default", "kube-system", "kube-public"] {
        let status = client.delete(&format!("/api/v1/namespaces/{name}")).expect_error(403, "Forbidden");
        assert!(text(&status, "/message").contains("this namespace may not be deleted"), "{status}");
    }
}

#[test]
fn status_is_ignored_outside_status_subresource() {
    let (_server, mut client) = start_server();
    let mut object = deployment("web");
    object["status"] = json!({"replicas": 7});
    let mut created = client.post(DEPLOYMENTS, &object).ok();
    assert!(created["status"]["replicas"].is_null(), "{created}");
    created["status"] = json!({"replicas": 7});
    let updated = client.put(&format!("{DEPLOYMENTS}/web"), &created).ok();
    assert!(updated["status"]["replicas"].is_null(), "{updated}");
}

#[test]
fn generation_increases_only_with_spec() {
    let (_server, mut client) = start_server();
    let path = format!("{DEPLOYMENTS}/web");
    let mut object = client.post(DEPLOYMENTS, &deployment("web")).ok();
    assert_eq!(object["metadata"]["generation"], 1);
    object["metadata"]["labels"] = json!({"a": "b"});
    object["metadata"]["generation"] = json!(99);
    let mut object = client.put(&path, &object).ok();
    assert_eq!(object["metadata"]["generation"], 1);
    object["spec"]["replicas"] = json!(3);
    let object = client.put(&path, &object).ok();
    assert_eq!(object["metadata"]["generation"], 2);
}

#[test]
fn finalizers_defer_deletion() {
    let (_server, mut client) = start_server();
    let path = format!("{MAPS}/held");
    let mut object = map("held");
    object["metadata"]["finalizers"] = json!(["example.com/first", "example.com/second"]);
    let created = client.post(MAPS, &object).ok();
    let version = text(&created, "/metadata/resourceVersion").to_owned();
    let mut watch = client.watch(MAPS, &format!("resourceVersion={version}"));

    let deleting = client.delete(&path).ok();
    assert_eq!(text(&deleting, "/kind"), "ConfigMap");
    let since = text(&deleting, "/metadata/deletionTimestamp").to_owned();
    assert!(!since.is_empty(), "{deleting}");
    assert_eq!(watch.next()["type"], "MODIFIED");
    let second_response = client.delete(&path).ok();
    assert_eq!(text(&second_response, "/metadata/deletionTimestamp"), since, "a second delete moves nothing");
    client.post(MAPS, &map("held")).expect_error(409, "AlreadyExists");

    let mut with_third_finalizer = client.get(&path).ok();
    with_third_finalizer["metadata"]["finalizers"] =
        json!(["example.com/first", "example.com/second", "example.com/third"]);
    client.put(&path, &with_third_finalizer).expect_error(422, "Invalid");
    let mut without_timestamp = client.get(&path).ok();
    without_timestamp["metadata"].as_object_mut().expect("metadata").remove("deletionTimestamp");
    without_timestamp["metadata"]["finalizers"] = json!(["example.com/second"]);
    let remaining = client.put(&path, &without_timestamp).ok();
    assert_eq!(text(&remaining, "/metadata/deletionTimestamp"), since, "a delete cannot be taken back");
    assert_eq!(watch.next()["type"], "MODIFIED");

    let mut without_finalizers = remaining;
    without_finalizers["metadata"]["finalizers"] = json!([]);
    client.put(&path, &without_finalizers).ok();
    client.get(&path).expect_error(404, "NotFound");
    assert_eq!(watch.next()["type"], "DELETED");
    let recreated = client.post(MAPS, &map("held")).ok();
    assert_ne!(recreated["metadata"]["uid"], created["metadata"]["uid"]);
}

#[test]
fn delete_preconditions_are_checked() {
    let (_server, mut client) = start_server();
    let created = client.post(MAPS, &map("guarded")).ok();
    let path = format!("{MAPS}/guarded");
    let delete_with = |client: &mut Client, preconditions: Value| {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
        client.request("DELETE", &path, &crate::support::client::JSON, options.to_string().as_bytes())
    };
    delete_with(&mut client, json!({"uid": "another"})).expect_error(409, "Conflict");
    delete_with(&mut client, json!({"resourceVersion": "1"})).expect_error(409, "Conflict");
    let status = delete_with(&mut client, json!({"uid": created["metadata"]["uid"]})).ok();
    assert_eq!(text(&status, "/status"), "Success");
    assert_eq!(status["details"]["uid"], created["metadata"]["uid"]);
    client.delete(&path).expect_error(404, "NotFound");
}

#[test]
fn delete_collection_honours_label_selector() {
    let (_server, mut client) = start_server();
    for (name, color) in [("a", "red"), ("b", "green"), ("c", "red")] {
        let mut object = map(name);
        object["metadata"]["labels"] = json!({"colour": color});
        client.post(MAPS, &object).ok();
    }
    client.post("/api/v1/namespaces/kube-public/configmaps", &map("elsewhere")).ok();
    let deleted = client.delete(&format!("{MAPS}?labelSelector=colour%3Dred")).ok();
    assert_eq!(text(&deleted, "/kind"), "ConfigMapList");
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().expect("items");
        items.iter().map(|item| text(item, "/metadata/name").to_owned()).collect()
    };
    assert_eq!(names(&deleted), ["a", "c"]);
    assert_eq!(names(&client.get(MAPS).ok()), ["b"]);
    client.delete(MAPS).ok();
    assert_eq!(names(&client.get(MAPS).ok()), [""; 0]);
    assert!(names(&client.get("/api/v1/configmaps").ok()).contains(&"elsewhere".to_owned()));
}

#[test]
fn put_creates_only_kinds_that_allow_it() {
    let (_server, mut client) = start_server();
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}});
    let created = client.put(&format!("{LEASES}/l"), &lease);
    assert_eq!(created.status, 201, "{}", created.text());
    assert!(!text(&created.json(), "/metadata/uid").is_empty());
    assert_eq!(client.put(&format!("{LEASES}/l"), &created.json()).status, 200);
    let status = client.put(&format!("{LEASES}/l"), &lease).expect_error(422, "Invalid");
    assert!(text(&status, "/message").contains("must be specified for an update"), "{status}");
    client.put(&format!("{MAPS}/m"), &map("m")).expect_error(404, "NotFound");
    client.put(&format!("{DEPLOYMENTS}/d"), &deployment("d")).expect_error(404, "NotFound");
}

#[test]
fn lists_and_watches_honour_selectors() {
    let (_server, mut client) = start_server();
    let version = text(&client.get(MAPS).ok(), "/metadata/resourceVersion").to_owned();
    for (name, color) in [("a", "red"), ("b", "green")] {
        let mut object = map(name);
        object["metadata"]["labels"] = json!({"colour": color});
        client.post(MAPS, &object).ok();
    }
    let list = client.get(&format!("{MAPS}?labelSelector=colour%3Dgreen")).ok();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    let list = client.get(&format!("{MAPS}?fieldSelector=metadata.name%3Da")).ok();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    let mut watch = client.watch(MAPS, &format!("resourceVersion={version}&labelSelector=colour%3Dgreen"));
    assert_eq!(text(&watch.next(), "/object/metadata/name"), "b");
    let mut watch = client.watch(MAPS, "fieldSelector=metadata.name%3Da");
    let first = watch.next();
    assert_eq!((text(&first, "/type"), text(&first, "/object/metadata/name")), ("ADDED", "a"));
}

#[test]
fn without_a_garbage_collector_deletions_leave_no_finalizers_for_it() {
    let server = Server::with_flags(&["--engine=memory", "--enable-garbage-collector=false"]);
    let mut client = server.admin();
    let delete = |client: &mut Client, name: &str, policy: &str| {
        let options = json!({"propagationPolicy": policy}).to_string();
        client.request("DELETE", &format!("{MAPS}/{name}"), &JSON, options.as_bytes())
    };
    for policy in ["Orphan", "Foreground"] {
        client.post(MAPS, &map("plain")).ok();
        assert_eq!(text(&delete(&mut client, "plain", policy).ok(), "/status"), "Success");
        client.get(&format!("{MAPS}/plain")).expect_error(404, "NotFound");
    }
    // One that is there already is left to whoever has set it.
    let mut kept = map("kept");
    kept["metadata"]["finalizers"] = json!(["orphan"]);
    client.post(MAPS, &kept).ok();
    let marked = delete(&mut client, "kept", "Foreground").ok();
    assert_eq!(marked["metadata"]["finalizers"], json!(["orphan"]));
    assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    delete(&mut client, "kept", "Sideways").expect_error(422, "Invalid");
    // The first deletion of a namespace does not depend on the flag.
    client.post("/api/v1/namespaces", &namespace("held")).ok();
    let options = json!({"propagationPolicy": "Foreground"}).to_string();
    let held = client.request("DELETE", "/api/v1/namespaces/held", &JSON, options.as_bytes()).ok();
    assert_eq!(held["metadata"]["finalizers"], json!(["foregroundDeletion"]));
}
