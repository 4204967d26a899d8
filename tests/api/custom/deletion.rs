//! Deletion of CRDs and their objects.

use super::*;

#[test]
fn crd_deletion_waits_for_finalizers_of_objects() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let mut held = kite("held");
    held["metadata"]["finalizers"] = json!(["toys.example/hand"]);
    admin.post(KITES, &held).ok();
    admin.post(KITES, &kite("free")).ok();
    let mut watch = server.admin().watch(KITES, "");
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let terminating = admin.delete(&path).ok();
    assert_eq!(terminating["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    assert_eq!(text(condition(&terminating, "Terminating").unwrap(), "/reason"), "InstanceDeletionPending");
    loop {
        let event = watch.next_for("free");
        if event["type"] == "DELETED" {
            break;
        }
    }
    let create_while_terminating =
        poll(TIMEOUT, || Some(admin.post(KITES, &kite("late"))).filter(|response| response.status == 405));
    let status = create_while_terminating.expect("nothing new is made").expect_error(405, "MethodNotAllowed");
    assert_eq!(
        text(&status, "/message"),
        "create not allowed while custom resource definition is terminating"
    );
    let remaining = admin.get(KITES).ok();
    assert_eq!(
        remaining["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| text(item, "/metadata/name"))
            .collect::<Vec<_>>(),
        ["held"]
    );
    let is_marked = || {
        admin.get(&format!("{KITES}/held")).ok()["metadata"]["deletionTimestamp"].is_string().then_some(())
    };
    poll(TIMEOUT, is_marked).expect("what is held is told to go");
    let condition = condition(&admin.get(&path).ok(), "Terminating").cloned().unwrap();
    assert_eq!(text(&condition, "/reason"), "InstanceDeletionInProgress");
    admin.patch(&format!("{KITES}/held"), MERGE, &json!({"metadata": {"finalizers": null}})).ok();
    wait_until_gone(&mut admin, &path);
    let end = Deadline::after(TIMEOUT);
    while watch.attempt(end).expect("a clean end").is_some() {}
    assert_eq!(admin.get(KITES).text(), "404 page not found\n");
    // A new CRD of the same name has none of the old objects.
    define(&mut admin, &kites());
    assert_eq!(admin.get(KITES).ok()["items"], json!([]));
}

#[test]
fn watch_reports_every_object_deleted_with_crd() {
    const MANY: usize = 300;
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    for number in 0..MANY {
        admin.post(KITES, &kite(&format!("k{number}"))).ok();
    }
    let version = text(&admin.get(KITES).ok(), "/metadata/resourceVersion").to_owned();
    let mut watch = server.admin().watch(KITES, &format!("resourceVersion={version}"));
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    admin.delete(&path).ok();
    wait_until_gone(&mut admin, &path);
    // The kind cannot be watched again, so the watch must report all deletions.
    let end = Deadline::after(TIMEOUT);
    let mut deleted_count = 0;
    while let Some(event) = watch.attempt(end).expect("a clean end") {
        deleted_count += usize::from(event["type"] == "DELETED");
    }
    assert_eq!(deleted_count, MANY);
}

#[test]
fn crd_deletion_does_not_block_other_crds() {
    const MANY: usize = 400;
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    std::thread::scope(|scope| {
        for part in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let mut admin = server.admin();
                for number in 0..MANY / 4 {
                    admin.post(KITES, &kite(&format!("k{part}-{number}"))).ok();
                }
            });
        }
    });
    let mut held = kite("held");
    held["metadata"]["finalizers"] = json!(["toys.example/hand"]);
    admin.post(KITES, &held).ok();
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    admin.delete(&path).ok();
    define(&mut admin, &definition("suns", "Sun", "Cluster", &[version("v1", true)]));
    let all_but_one = || (admin.get(KITES).ok()["items"].as_array().unwrap().len() == 1).then_some(());
    poll(TIMEOUT, all_but_one).expect("they go");
    define(&mut admin, &definition("moons", "Moon", "Cluster", &[version("v1", true)]));
    // The last object goes as soon as its finalizer is removed.
    admin.patch(&format!("{KITES}/held"), MERGE, &json!({"metadata": {"finalizers": null}})).ok();
    wait_until_gone(&mut admin, &path);
}

/// The lines of metrics about the history of stores. What was done with etcd for a type stays counted when it is gone.
fn histories_of_stores(server: &Server) -> String {
    let metrics = server.admin().get("/metrics").text();
    let lines = metrics.lines().filter(|line| line.starts_with("pilothouse_watch_window_events"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn deleted_crd_releases_store_and_expires_old_versions() {
    let folder = temp_directory();
    let data = folder.path().join("data");
    let server = Server::start_in(&data, &[]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let version_of = |value: &Value| text(value, "/metadata/resourceVersion").parse::<u64>().unwrap();
    let first = version_of(&admin.post(KITES, &kite("a")).ok());
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    admin.delete(&path).ok();
    wait_until_gone(&mut admin, &path);
    define(&mut admin, &definition("suns", "Sun", "Cluster", &[version("v1", true)]));
    admin.get(&format!("/apis/{GROUP}/v1/suns")).ok();
    // The history stays for a while for the watches that end, and a late reader may start the store again.
    let is_released = || {
        let metrics = histories_of_stores(&server);
        assert!(metrics.contains("suns.toys.example"), "an existing store is counted");
        (!metrics.contains("kites.toys.example")).then_some(())
    };
    // A store that was started again is released by the next housekeeping.
    poll(3 * TIMEOUT, is_released)
        .unwrap_or_else(|| panic!("the store is still counted:\n{}", histories_of_stores(&server)));
    let check = |server: &Server, after: u64| {
        let mut admin = server.admin();
        let list = admin.get(KITES).ok();
        assert_eq!(list["items"], json!([]));
        assert!(version_of(&list) > after, "versions go on");
        let mut watch = server.admin().watch(KITES, &format!("resourceVersion={after}"));
        let event = watch.next();
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)), "{event}");
    };
    define(&mut admin, &kites());
    check(&server, first);
    let second = version_of(&admin.post(KITES, &kite("a")).ok());
    assert!(second > first + 1);
    admin.delete(&path).ok();
    wait_until_gone(&mut admin, &path);
    poll(TIMEOUT, is_released).expect("it is let go again");
    // The second CRD is written after the release of the store, so the release is durable, too.
    define(&mut admin, &definition("stars", "Star", "Cluster", &[version("v1", true)]));
    define(&mut admin, &definition("hills", "Hill", "Cluster", &[version("v1", true)]));
    server.kill();
    let server = Server::start_in(&data, &[]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    check(&server, second);
    admin.post(KITES, &kite("a")).ok();
}

#[test]
fn objects_of_unserved_version_are_deleted_with_crd() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    admin.post(KITES, &kite("hidden")).ok();
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let hide = json!([{"op": "replace", "path": "/spec/versions/0/served", "value": false}]);
    admin.patch(&path, "json", &hide).ok();
    poll(TIMEOUT, || (admin.get(KITES).status == 404).then_some(())).expect("it is served no more");
    admin.delete(&path).ok();
    wait_until_gone(&mut admin, &path);
    define(&mut admin, &kites());
    assert_eq!(admin.get(KITES).ok()["items"], json!([]));
}

#[test]
fn controllers_handle_crds_defined_at_runtime() {
    let server = Server::with_flags(&["--controllers=*", "--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "sky"}})).ok();
    let sky = format!("/apis/{GROUP}/v1/namespaces/sky/kites");
    let owner = admin.post(&sky, &kite("owner")).ok();
    let owned_by = |uid: &Value, api: &str, kind: &str, name: &str| json!([{"apiVersion": api, "kind": kind, "name": name, "uid": uid}]);
    let map = json!({"metadata": {"name": "m", "ownerReferences":
        owned_by(&owner["metadata"]["uid"], "toys.example/v1", "Kite", "owner")}});
    let map = admin.post("/api/v1/namespaces/sky/configmaps", &map).ok();
    let mut dependent = kite("below");
    dependent["metadata"]["ownerReferences"] = owned_by(&map["metadata"]["uid"], "v1", "ConfigMap", "m");
    admin.post(&sky, &dependent).ok();
    admin.delete(&format!("{sky}/owner")).ok();
    wait_until_gone(&mut admin, "/api/v1/namespaces/sky/configmaps/m");
    wait_until_gone(&mut admin, &format!("{sky}/below"));
    // The namespace is deleted with its objects, and waits for their finalizers.
    let mut held = kite("held");
    held["metadata"]["finalizers"] = json!(["toys.example/hand"]);
    admin.post(&sky, &held).ok();
    admin.post(&sky, &kite("plain")).ok();
    admin.delete("/api/v1/namespaces/sky").ok();
    wait_until_gone(&mut admin, &format!("{sky}/plain"));
    // The CRD is deleted as well, and waits for the same object.
    admin.delete(&format!("{DEFINITIONS}/kites.{GROUP}")).ok();
    let finalizer_condition = || {
        let namespace = admin.get("/api/v1/namespaces/sky").ok();
        let conditions = namespace["status"]["conditions"].as_array()?.clone();
        conditions.into_iter().find(|condition_object| {
            condition_object["type"] == "NamespaceFinalizersRemaining" && condition_object["status"] == "True"
        })
    };
    let finalizer_condition =
        poll(TIMEOUT, finalizer_condition).expect("it is said what the namespace waits for");
    assert!(
        text(&finalizer_condition, "/message").contains("toys.example/hand in 1 resource instances"),
        "{finalizer_condition}"
    );
    admin.patch(&format!("{sky}/held"), MERGE, &json!({"metadata": {"finalizers": null}})).ok();
    wait_until_gone(&mut admin, "/api/v1/namespaces/sky");
    wait_until_gone(&mut admin, &format!("{DEFINITIONS}/kites.{GROUP}"));
}
