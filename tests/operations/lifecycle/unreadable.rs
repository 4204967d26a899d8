//! Objects whose records are damaged.

use super::*;

/// Creates three objects and damages the record of the second, which has a finalizer. Returns the last version.
fn create_damaged_map(data: &Path) -> u64 {
    let server = Server::start_on_file(data, &[]);
    let mut client = server.admin();
    client.post(MAPS, &map("a")).ok();
    let mut held = map("b");
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    client.post(MAPS, &held).ok();
    let last = client.post(MAPS, &map("c")).ok();
    server.stop();
    let mut engine = Redb::open(&data.join("pilothouse.redb")).expect("the store");
    assert!(engine.damage(&TypeName::new("configmaps"), "default/b").expect("a store that can be written"));
    crate::support::compare::revision(&last)
}

/// A damaged record is not an object without labels or with another UID.
#[test]
fn unreadable_object_is_not_treated_as_empty() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let server = Server::start_on_file(&data, &[]);
    let mut client = server.admin();
    let restricted_namespace = json!({"metadata": {"name": "guarded", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    client.post("/api/v1/namespaces", &restricted_namespace).ok();
    let owner = client.post(MAPS, &map("owner")).ok();
    let mut dependent = map("dependent");
    dependent["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    ]);
    client.post(MAPS, &dependent).ok();
    let mut orphan = dependent.clone();
    orphan["metadata"]["name"] = json!("orphan");
    orphan["metadata"]["ownerReferences"][0]["name"] = json!("nobody");
    orphan["metadata"]["ownerReferences"][0]["uid"] = json!("none");
    client.post(MAPS, &orphan).ok();
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "counted"}})).ok();
    for name in ["broken", "whole"] {
        let resources = json!({"requests": {"cpu": "1"}});
        let pod = json!({"metadata": {"name": name}, "spec": {
            "containers": [{"name": "c", "image": "i", "resources": resources}]}});
        client.post("/api/v1/namespaces/counted/pods", &pod).ok();
    }
    server.stop();
    let mut engine = Redb::open(&data.join("pilothouse.redb")).expect("the store");
    for (type_name, key) in
        [("namespaces", "guarded"), ("configmaps", "default/owner"), ("pods", "counted/broken")]
    {
        assert!(engine.damage(&TypeName::new(type_name), key).expect("a store that can be written"), "{key}");
    }
    drop(engine);

    let server = Server::start_on_file(&data, &["--controllers=*"]);
    let mut client = server.admin();
    // The garbage collector has processed both: the one whose owner is absent is deleted.
    crate::support::wait::poll(crate::support::wait::TIMEOUT, || {
        (client.get(&format!("{MAPS}/orphan")).status == 404).then_some(())
    })
    .expect("it goes");
    client.get(&format!("{MAPS}/dependent")).ok();
    // An unreadable pod counts as a pod, and does not block the usage of the others.
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "5", "requests.cpu": "5"}}});
    client.post("/api/v1/namespaces/counted/resourcequotas", &quota).ok();
    let used = crate::support::wait::poll(crate::support::wait::TIMEOUT, || {
        let quota = client.get("/api/v1/namespaces/counted/resourcequotas/q").ok();
        Some(quota["status"]["used"].clone()).filter(|used| !used.is_null())
    });
    assert_eq!(used.expect("it is counted"), json!({"pods": "2", "requests.cpu": "1"}));
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true}}]}});
    let refused = client.post("/api/v1/namespaces/guarded/pods", &pod);
    assert!(refused.status >= 400, "{}", refused.text());
    assert_eq!(client.get("/api/v1/namespaces/guarded/pods/p").status, 404);
}

#[test]
fn unreadable_object_does_not_block_other_objects() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let head = create_damaged_map(&data);
    let server = Server::start_on_file(&data, &[]);
    let mut client = server.admin();
    let corrupt = "StorageError: corrupt object, Code: 7, Key: /registry/configmaps/default/b";
    assert_eq!(client.get(&format!("{MAPS}/a")).ok()["data"], json!({"kept": "yes"}));
    let unreadable_path = format!("{MAPS}/b");
    let merge = "merge";
    for response in [
        client.get(&unreadable_path),
        client.put(&unreadable_path, &map("b")),
        client.patch(&unreadable_path, merge, &json!({"data": {"x": "y"}})),
        client.delete(&unreadable_path),
    ] {
        let status = response.expect_error(500, "InternalError");
        assert!(text(&status, "/message").contains(corrupt), "{status}");
    }
    client.post(MAPS, &map("b")).expect_error(409, "AlreadyExists");
    for path in [MAPS, "/api/v1/configmaps?limit=500", &format!("{MAPS}?labelSelector=x=y")] {
        let status = client.get(path).expect_error(500, "StorageReadError");
        assert_eq!(status["message"], "failed to read one or more configmaps from the storage");
        assert_eq!(status["details"]["name"], "list");
        let causes = status["details"]["causes"].as_array().expect("causes");
        assert_eq!(causes.len(), 1, "{status}");
        assert_eq!(causes[0]["field"], "/registry/configmaps/default/b");
        assert_eq!(causes[0]["reason"], "UnexpectedServerResponse");
    }
    client.delete(MAPS).expect_error(500, "StorageReadError");
    assert_eq!(client.get("/api/v1/namespaces/kube-public/configmaps").ok()["items"], json!([]));
    assert_eq!(
        client.get(&format!("{MAPS}?fieldSelector=metadata.name%3Da")).ok()["items"][0]["data"]["kept"],
        "yes"
    );
    // A watch from the start gets an error event for it.
    let mut watch = client.watch(MAPS, "");
    assert_eq!(watch.next()["object"]["metadata"]["name"], "a");
    let error = watch.next();
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(500)));
    // Without the gate the option is ignored.
    client
        .delete(&format!("{unreadable_path}?{FORCE}&gracePeriodSeconds=1"))
        .expect_error(500, "InternalError");
    assert_eq!(client.post(MAPS, &map("d")).ok()["metadata"]["resourceVersion"], (head + 1).to_string());
    server.stop();
}

#[test]
fn unreadable_object_is_deletable_with_feature_gate() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let head = create_damaged_map(&data);
    let server = Server::start_on_file(&data, &["--feature-gates=AllowUnsafeMalformedObjectDeletion=true"]);
    let mut client = server.admin();
    let unreadable_path = format!("{MAPS}/b");
    client.delete(&unreadable_path).expect_error(500, "InternalError");
    for (path, reason) in [
        (
            format!("{MAPS}/a?{FORCE}"),
            "is exclusively used to delete corrupt object(s), try again by removing this option",
        ),
        (format!("{MAPS}/none?{FORCE}"), "is exclusively used to delete corrupt object(s)"),
        (
            format!("{unreadable_path}?{FORCE}&gracePeriodSeconds=0"),
            "cannot be set together with .gracePeriodSeconds",
        ),
        (
            format!("{MAPS}?{FORCE}"),
            "is not allowed with DELETECOLLECTION, try again after removing the option",
        ),
    ] {
        let status = client.delete(&path).expect_error(422, "Invalid");
        assert!(text(&status, "/message").contains(reason), "{path}: {status}");
    }
    client
        .with_token(Some(crate::support::server::USER_TOKEN))
        .delete(&format!("{unreadable_path}?{FORCE}"))
        .expect_error(403, "Forbidden");
    let mut label_watch = client.watch(MAPS, &format!("labelSelector=x=y&resourceVersion={head}"));
    let mut other_namespace_watch =
        client.watch("/api/v1/namespaces/kube-system/configmaps", &format!("resourceVersion={head}"));
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1",
        "ignoreStoreReadErrorWithClusterBreakingPotential": true});
    let status = client.request("DELETE", &unreadable_path, &JSON, options.to_string().as_bytes()).ok();
    assert_eq!(status["details"], json!({"name": "b", "kind": "ConfigMap"}), "{status}");
    let error = label_watch.next();
    assert_eq!(error["type"], "ERROR");
    assert_eq!(error["object"]["reason"], "StorageReadError");
    let message = text(&error, "/object/message");
    assert!(
        message.starts_with("saw a DELETED event, but object data is corrupt - object not decodable"),
        "{error}"
    );
    client.get(&unreadable_path).expect_error(404, "NotFound");
    let names = |client: &mut Client| -> Vec<Value> {
        let list = client.get(MAPS).ok();
        list["items"].as_array().expect("items").iter().map(|item| item["metadata"]["name"].clone()).collect()
    };
    assert_eq!(names(&mut client), ["a", "c"]);
    client.post("/api/v1/namespaces/kube-system/configmaps", &map("e")).ok();
    assert_eq!(other_namespace_watch.next()["object"]["metadata"]["name"], "e", "other namespaces go on");
    client.post(MAPS, &map("b")).ok();
    server.stop();
    let restarted = Server::start_on_file(&data, &[]);
    assert_eq!(names(&mut restarted.admin()), ["a", "b", "c"]);
    restarted.stop();
}
