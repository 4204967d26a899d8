//! Every built-in kind that is served by default is created, read, listed, watched, updated and deleted.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Value, json};

use crate::support::client::Watch;
use crate::support::compare::{missing_fields, revision, text};
use crate::support::manifests::{Resource, discover, root};
use crate::support::{Client, Manifest, Server};

/// Group/versions that earlier releases served and 1.33 does not, each with a resource that it had.
const REMOVED_VERSIONS: [(&str, &str); 33] = [
    ("flowcontrol.apiserver.k8s.io/v1beta3", "flowschemas"),
    ("flowcontrol.apiserver.k8s.io/v1beta2", "flowschemas"),
    ("flowcontrol.apiserver.k8s.io/v1beta1", "flowschemas"),
    ("flowcontrol.apiserver.k8s.io/v1alpha1", "flowschemas"),
    ("storage.k8s.io/v1beta1", "csistoragecapacities"),
    ("storage.k8s.io/v1beta1", "storageclasses"),
    ("storage.k8s.io/v1beta1", "csidrivers"),
    ("autoscaling/v2beta2", "horizontalpodautoscalers"),
    ("autoscaling/v2beta1", "horizontalpodautoscalers"),
    ("batch/v1beta1", "cronjobs"),
    ("discovery.k8s.io/v1beta1", "endpointslices"),
    ("events.k8s.io/v1beta1", "events"),
    ("policy/v1beta1", "poddisruptionbudgets"),
    ("policy/v1beta1", "podsecuritypolicies"),
    ("node.k8s.io/v1beta1", "runtimeclasses"),
    ("admissionregistration.k8s.io/v1beta1", "validatingwebhookconfigurations"),
    ("apiextensions.k8s.io/v1beta1", "customresourcedefinitions"),
    ("apiregistration.k8s.io/v1beta1", "apiservices"),
    ("authentication.k8s.io/v1beta1", "tokenreviews"),
    ("authorization.k8s.io/v1beta1", "subjectaccessreviews"),
    ("certificates.k8s.io/v1beta1", "certificatesigningrequests"),
    ("coordination.k8s.io/v1beta1", "leases"),
    ("extensions/v1beta1", "ingresses"),
    ("networking.k8s.io/v1beta1", "ingresses"),
    ("networking.k8s.io/v1beta1", "ingressclasses"),
    ("rbac.authorization.k8s.io/v1beta1", "clusterroles"),
    ("scheduling.k8s.io/v1beta1", "priorityclasses"),
    ("extensions/v1beta1", "deployments"),
    ("extensions/v1beta1", "networkpolicies"),
    ("extensions/v1beta1", "podsecuritypolicies"),
    ("apps/v1beta1", "deployments"),
    ("apps/v1beta2", "statefulsets"),
    ("apps/v1beta2", "daemonsets"),
];

/// Runs a check for every manifest and fails with the list of the kinds that it failed for.
fn for_every_kind(check: impl Fn(&Server, &Manifest, &Resource)) {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let resources = discover(&mut server.admin());
    let mut failed = Vec::new();
    for manifest in Manifest::all() {
        let outcome =
            catch_unwind(AssertUnwindSafe(|| check(&server, &manifest, &manifest.resource(&resources))));
        if outcome.is_err() {
            failed.push(manifest.title());
        }
    }
    server.assert_healthy();
    assert!(failed.is_empty(), "{} kinds failed (see above): {failed:?}", failed.len());
}

#[test]
fn every_kind_supports_create_read_list_watch_update_and_delete() {
    for_every_kind(|server, manifest, resource| {
        let mut client = server.admin();
        let collection = resource.collection();
        let path = format!("{collection}/{}", manifest.name());

        let before = client.get(&collection).ok();
        assert_eq!(text(&before, "/kind"), format!("{}List", manifest.kind()));
        assert_eq!(text(&before, "/apiVersion"), manifest.group_version());
        let mut watch = client
            .watch(&collection, &format!("resourceVersion={}", text(&before, "/metadata/resourceVersion")));

        let created = client.post(&collection, &manifest.object);
        assert_eq!(created.status, 201, "{}", created.text());
        let created = created.json();
        check_server_fields(&created, resource);
        assert_eq!(
            missing_fields(&manifest.object, &created),
            [""; 0],
            "fields that the response to POST lacks"
        );

        let added = watch.next_for(manifest.name());
        assert_eq!((&added["type"], &added["object"]), (&json!("ADDED"), &created));
        let read = match manifest.kind() {
            // The server itself writes to these until it has set their condition.
            "CustomResourceDefinition" => wait_for_condition(&mut watch, manifest.name(), "Established"),
            "FlowSchema" => wait_for_condition(&mut watch, manifest.name(), "Dangling"),
            _ => created.clone(),
        };
        assert_eq!(client.get(&path).ok(), read, "GET returns the last state");
        assert!(revision(&read) > revision(&before), "the list's version is older than the object's");
        check_listed(&mut client, &collection, &read);

        let updated = update_and_check_conflict(&mut client, &path, &read);
        let modified = watch.next_for(manifest.name());
        assert_eq!((&modified["type"], &modified["object"]), (&json!("MODIFIED"), &updated));

        client.delete_background(&path).ok();
        if manifest.kind() == "Namespace" {
            // The namespace controller does not run here.
            let terminating = client.get(&path).ok();
            assert_eq!(text(&terminating, "/status/phase"), "Terminating", "{terminating}");
            assert!(terminating["metadata"]["deletionTimestamp"].is_string(), "{terminating}");
            return;
        }
        if manifest.kind() != "CustomResourceDefinition" {
            remove_finalizers(&mut client, &path);
            client.get(&path).expect_error(404, "NotFound");
        }
        let mut last = watch.next_for(manifest.name());
        while last["type"] == "MODIFIED" {
            last = watch.next_for(manifest.name());
        }
        assert_eq!(last["type"], "DELETED", "{last}");
        client.get(&path).expect_error(404, "NotFound");
        assert_eq!(last["object"]["metadata"]["uid"], created["metadata"]["uid"]);
        assert!(
            revision(&last["object"]) > revision(&updated),
            "a deletion has a version of its own: {last}"
        );
    });
}

/// The object of the first watch event in which a condition is true.
fn wait_for_condition(watch: &mut Watch, name: &str, condition: &str) -> Value {
    loop {
        let event = watch.next_for(name);
        assert_eq!(event["type"], "MODIFIED", "{event}");
        let conditions = event["object"]["status"]["conditions"].as_array().expect("conditions");
        if conditions.iter().any(|condition_object| {
            condition_object["type"] == condition && condition_object["status"] == "True"
        }) {
            return event["object"].clone();
        }
    }
}

/// Checks the fields that only the server sets.
fn check_server_fields(object: &Value, resource: &Resource) {
    let metadata = &object["metadata"];
    let uid = text(object, "/metadata/uid");
    assert_eq!((uid.len(), uid.matches('-').count()), (36, 4), "uid {uid:?}");
    let time = text(object, "/metadata/creationTimestamp");
    assert!(time.len() == 20 && time.ends_with('Z') && time.contains('T'), "creationTimestamp {time:?}");
    assert!(revision(object) > 0);
    assert!(metadata["deletionTimestamp"].is_null(), "{metadata}");
    assert_eq!(text(object, "/kind"), resource.kind);
    assert_eq!(text(object, "/apiVersion"), resource.group_version);
    if resource.namespaced {
        assert_eq!(text(object, "/metadata/namespace"), "default");
    } else {
        assert!(metadata["namespace"].is_null(), "{metadata}");
    }
}

/// Checks that the list has the object, without kind and apiVersion as items of built-in lists are.
fn check_listed(client: &mut Client, collection: &str, object: &Value) {
    let list = client.get(collection).ok();
    let items = list["items"].as_array().expect("items");
    let mut item = object.clone();
    let item_fields = item.as_object_mut().expect("an object");
    item_fields.remove("kind");
    item_fields.remove("apiVersion");
    assert!(items.contains(&item), "the list lacks {item}: {list}");
    assert!(items.iter().all(|item| item["kind"].is_null() && item["apiVersion"].is_null()), "{list}");
    assert!(revision(&list) >= revision(object), "a list older than its item: {list}");
}

/// Updates a label with the current version, then again with that version, which is stale by then.
fn update_and_check_conflict(client: &mut Client, path: &str, read: &Value) -> Value {
    let mut changed = read.clone();
    changed["metadata"]["labels"]["purpose"] = json!("update");
    let response = client.put(path, &changed);
    assert_eq!(response.status, 200, "{}", response.text());
    let updated = response.json();
    assert!(revision(&updated) > revision(read), "the version moves: {updated}");
    assert_eq!(text(&updated, "/metadata/labels/purpose"), "update");
    assert_eq!(updated["metadata"]["uid"], read["metadata"]["uid"]);
    assert_eq!(updated["metadata"]["creationTimestamp"], read["metadata"]["creationTimestamp"]);

    changed["metadata"]["labels"]["purpose"] = json!("stale");
    let status = client.put(path, &changed).expect_error(409, "Conflict");
    assert!(text(&status, "/message").contains("the object has been modified"), "{status}");
    assert_eq!(client.get(path).ok(), updated, "a refused write changes nothing");
    updated
}

/// Removes the finalizers of a terminating object.
fn remove_finalizers(client: &mut Client, path: &str) {
    let response = client.get(path);
    if response.status == 404 {
        return;
    }
    let mut terminating = response.ok();
    assert!(terminating["metadata"]["deletionTimestamp"].is_string(), "deleted, but {terminating}");
    assert!(
        !terminating["metadata"]["finalizers"].is_null(),
        "deleted and without finalizers, but still there: {terminating}"
    );
    terminating["metadata"].as_object_mut().expect("metadata").remove("finalizers");
    client.put(path, &terminating).ok();
}

#[test]
fn kind_served_in_several_versions_is_one_object() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let (old, new) = (
        "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers",
        "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
    );
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let object = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
        "spec": {"scaleTargetRef": target, "maxReplicas": 3, "targetCPUUtilizationPercentage": 55}});
    let created = client.post(old, &object).ok();
    let read = client.get(&format!("{new}/web")).ok();
    assert_eq!(text(&read, "/apiVersion"), "autoscaling/v2");
    assert_eq!(read["metadata"]["uid"], created["metadata"]["uid"]);
    assert_eq!(read["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
    assert_eq!(read["spec"]["metrics"][0]["resource"]["name"], "cpu", "{read}");
    assert_eq!(read["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 55, "{read}");
    let mut changed = read;
    changed["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] = json!(60);
    client.put(&format!("{new}/web"), &changed).ok();
    assert_eq!(client.get(&format!("{old}/web")).ok()["spec"]["targetCPUUtilizationPercentage"], 60);

    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "web.1", "namespace": "default"},
        "involvedObject": {"kind": "ConfigMap", "name": "web", "namespace": "default"}, "reason": "Seen",
        "message": "told once", "type": "Normal", "count": 4, "source": {"component": "tests"}});
    client.post("/api/v1/namespaces/default/events", &event).ok();
    let read = client.get("/apis/events.k8s.io/v1/namespaces/default/events/web.1").ok();
    assert_eq!(text(&read, "/apiVersion"), "events.k8s.io/v1");
    assert_eq!(text(&read, "/note"), "told once", "{read}");
    assert_eq!(text(&read, "/regarding/name"), "web", "{read}");
    assert_eq!(read["deprecatedCount"], 4, "{read}");
}

#[test]
fn every_creatable_kind_has_a_manifest() {
    let server = Server::with_flags(&["--engine=memory"]);
    let resources = discover(&mut server.admin());
    let name = |group_version: &str, kind: &str| format!("{group_version} {kind}");
    // No exceptions: every kind that can be created and read is tested.
    let offered: BTreeSet<String> = resources
        .iter()
        .filter(|resource| resource.has("create") && resource.has("get"))
        .map(|resource| name(&resource.group_version, &resource.kind))
        .collect();
    let with_manifest: BTreeSet<String> = Manifest::all().iter().map(Manifest::title).collect();
    assert_eq!(offered.difference(&with_manifest).collect::<Vec<_>>(), [""; 0], "offered, not tested");
    assert_eq!(with_manifest.difference(&offered).collect::<Vec<_>>(), [""; 0], "tested, not offered");
}

#[test]
fn post_of_list_is_refused() {
    for_every_kind(|server, manifest, resource| {
        let mut client = server.admin();
        let collection = resource.collection();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [manifest.object]});
        client.post(&collection, &list).expect_error(400, "BadRequest");
        let kind = format!("{}List", manifest.kind());
        let list = json!({"apiVersion": manifest.group_version(), "kind": kind, "items": [manifest.object]});
        client.post(&collection, &list).expect_error(400, "BadRequest");
        client.get(&format!("{collection}/{}", manifest.name())).expect_error(404, "NotFound");
    });
}

#[test]
fn removed_api_versions_are_not_served() {
    // Also with all versions enabled: some of these group/versions still exist with other resources.
    for arguments in [vec!["--engine=memory"], vec!["--engine=memory", "--runtime-config=api/all=true"]] {
        let server = Server::with_flags(&arguments);
        let mut client = server.admin();
        for (group_version, plural) in REMOVED_VERSIONS {
            let path = format!("{}/{plural}", root(group_version));
            assert_eq!(client.get(&path).status, 404, "GET {path}");
            let response =
                client.post(&path, &json!({"apiVersion": group_version, "metadata": {"name": "a"}}));
            assert_eq!(response.status, 404, "POST {path}");
        }
    }
}

#[test]
fn alpha_and_beta_versions_need_runtime_config() {
    let versions = |server: &Server| -> BTreeSet<String> {
        discover(&mut server.admin()).into_iter().map(|resource| resource.group_version).collect()
    };
    let default_versions = versions(&Server::with_flags(&["--engine=memory"]));
    let unstable: Vec<&String> =
        default_versions.iter().filter(|name| name.contains("alpha") || name.contains("beta")).collect();
    assert_eq!(unstable, [""; 0]);
    let all = versions(&Server::with_flags(&["--engine=memory", "--runtime-config=api/all=true"]));
    for expected in ["resource.k8s.io/v1beta2", "resource.k8s.io/v1alpha3", "coordination.k8s.io/v1alpha2"] {
        assert!(all.contains(expected), "{expected} in {all:?}");
    }
    let custom = versions(&Server::with_flags(&[
        "--engine=memory",
        "--runtime-config=resource.k8s.io/v1beta1=true,batch/v1=false",
    ]));
    assert!(custom.contains("resource.k8s.io/v1beta1") && !custom.contains("batch/v1"), "{custom:?}");
}
