//! Defaulting, validation and storage of writes.

use super::*;

/// Comparing every owner with every other held a worker for minutes.
#[test]
fn twenty_thousand_owner_references_are_compared_quickly() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let owners: Vec<Value> = (0..20_000)
        .map(|n| json!({"apiVersion": "v1", "kind": "Pod", "name": format!("p{n}"), "uid": format!("u{n}")}))
        .collect();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "ownerReferences": owners}});
    let created = client.post(MAPS, &object).ok();
    assert_eq!(created["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(20_000));
    server.assert_healthy();
}

/// A body that was wrong in many places made an answer a hundred times its size.
#[test]
fn validation_causes_are_limited() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let finalizers: Vec<String> = (0..20_000).map(|n| format!("bad {n}")).collect();
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": finalizers}});
    let status = client.post(MAPS, &object).expect_error(422, "Invalid");
    assert_eq!(status["details"]["causes"].as_array().map(Vec::len), Some(1_000));
}

/// An update that wrote a zero default counted as a change of the spec.
#[test]
fn label_update_keeps_generation() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let path = "/api/v1/namespaces/default/replicationcontrollers";
    let object = json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "r"}, "spec": {
        "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}});
    let mut created = client.post(path, &object).ok();
    created["metadata"]["labels"]["new"] = json!("yes");
    let updated = client.put(&format!("{path}/r"), &created).ok();
    assert_eq!(updated["metadata"]["generation"], 1);
}

/// A status without labels took those away that a controller has from its template.
#[test]
fn status_update_keeps_template_labels() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}});
    let mut pods = template.clone();
    pods["spec"]["restartPolicy"] = json!("Always");
    let controllers = "/api/v1/namespaces/default/replicationcontrollers";
    let controller = json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "r"}, "spec": {"template": pods}});
    client.post(controllers, &controller).ok();
    let status_update =
        json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "r"}});
    for query in ["?dryRun=All", ""] {
        let response = client.put(&format!("{controllers}/r/status{query}"), &status_update).ok();
        assert_eq!(response["metadata"]["labels"], json!({"app": "a"}));
    }
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let job = |meta: serde_json::Value| json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": template}});
    // A Job shares the label map of its template, unless its name is generated.
    let named = client.post(jobs, &job(json!({"name": "j"}))).ok();
    assert_eq!(named["metadata"]["labels"]["job-name"], "j");
    let created = client.post(jobs, &job(json!({"generateName": "j-"}))).ok();
    assert_eq!(created["metadata"]["labels"], json!({"app": "a"}));
    let status_update = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}});
    let response = client.put(&format!("{jobs}/j/status"), &status_update).ok();
    assert_eq!(response["metadata"]["labels"]["job-name"], "j", "{response}");
}

/// An overhead without amounts counted as none.
#[test]
fn empty_overhead_requires_runtime_class() {
    let server = Server::with_flags(&["--engine=memory", "--disable-admission-plugins=ServiceAccount"]);
    let mut client = server.admin();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"overhead": {}, "containers": [{"name": "c", "image": "i:1"}]}});
    let status = client.post(pods, &pod).expect_error(403, "Forbidden");
    assert!(
        status["message"].as_str().is_some_and(|reason| reason.contains("Pod Overhead set without")),
        "{status}"
    );
    // An update may set it, because that changes nothing.
    let mut plain = pod.clone();
    plain["spec"].as_object_mut().expect("a spec").remove("overhead");
    client.post(pods, &plain).ok();
    let updated = client.put(&format!("{pods}/p"), &pod).ok();
    assert_eq!(updated["metadata"]["generation"], 1);
}

/// A manifest with the version 0, which means none, could not be created.
#[test]
fn create_accepts_resource_version_zero() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let object = |name: &str, version: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "resourceVersion": version}})
    };
    let created = client.post(MAPS, &object("a", "0")).ok();
    assert_ne!(created["metadata"]["resourceVersion"], "0");
    assert_eq!(client.get(&format!("{MAPS}/a")).ok(), created);
    client.post(MAPS, &object("b", "1")).expect_error(400, "BadRequest");
}

/// The priority classes of the system could be deleted, and were back only after a restart.
#[test]
fn system_priority_classes_are_undeletable() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let path = "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical";
    let refused = client.delete(path).expect_error(403, "Forbidden");
    let message = refused["message"].as_str().unwrap();
    assert!(message.ends_with("this is a system priority class and cannot be deleted"), "{message}");
    client.get(path).ok();
}

/// Selectors with empty parts counted as those without.
#[test]
fn empty_selector_part_increases_network_policy_generation() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a"},
        "spec": {"podSelector": {}}});
    client.post(policies, &policy).ok();
    for (selector, generation) in
        [(json!({"matchExpressions": []}), 2), (json!({"matchLabels": {}}), 3), (json!({}), 3)]
    {
        let patch = json!({"spec": {"podSelector": selector}});
        let patched = client.patch(&format!("{policies}/a"), "merge", &patch).ok();
        assert_eq!(patched["metadata"]["generation"], generation, "{selector}");
        assert_eq!(patched["spec"]["podSelector"], json!({}));
    }
}

/// A pod with ignored device claims could not be updated.
#[test]
fn ignored_device_claims_do_not_block_update() {
    let server = Server::with_flags(&["--engine=memory", "--disable-admission-plugins=ServiceAccount"]);
    let mut client = server.admin();
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    client.post("/api/v1/namespaces/default/pods", &pod).ok();
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "x"}]});
    client.put("/api/v1/namespaces/default/pods/a", &pod).ok();
}

/// The data source of a stored claim was validated again, and reported twice.
#[test]
fn stored_claim_sources_are_not_revalidated() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = |group: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "dataSourceRef": {"apiGroup": group, "kind": "K", "name": "n"}}})
    };
    client.post(claims, &claim("g.example")).ok();
    let refused = client.put(&format!("{claims}/a"), &claim("Bad!")).expect_error(422, "Invalid");
    let causes = refused["details"]["causes"].as_array().unwrap();
    assert_eq!((causes.len(), &causes[0]["field"]), (1, &json!("spec")), "{refused}");
}

/// Versions that later releases deprecate had warnings, and device claims had no default count.
#[test]
fn versions_deprecated_later_have_no_warnings() {
    let server = Server::with_flags(&["--engine=memory", "--runtime-config=resource.k8s.io/v1beta1=true"]);
    let mut client = server.admin();
    let claim = json!({"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim", "metadata": {"name": "a"},
        "spec": {"devices": {"requests": [{"name": "one", "deviceClassName": "c"},
            {"name": "all", "deviceClassName": "c", "allocationMode": "All"}]}}});
    let created = client.post("/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaims", &claim);
    assert_eq!(created.warnings(), [""; 0]);
    let requests = &created.ok()["spec"]["devices"]["requests"];
    assert_eq!((&requests[0]["allocationMode"], &requests[0]["count"]), (&json!("ExactCount"), &json!(1)));
    assert_eq!(requests[1].get("count"), None);
}

/// Duplicate owner references of a patch had the warning of a create.
#[test]
fn duplicate_owner_references_in_patch_have_their_own_warning() {
    let server = Server::with_flags(&["--engine=memory", "--controllers=-*"]);
    let mut client = server.admin();
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
    let twice = json!({"metadata": {"name": "a", "ownerReferences": [owner, owner]}});
    let created = client.post(MAPS, &twice).warnings();
    assert!(created[0].contains("contains duplicate entries; API server"), "{created:?}");
    let patched = client.patch(&format!("{MAPS}/a"), "merge", &twice).warnings();
    assert!(
        patched[0].contains("duplicate entries after mutating admission happens; API server"),
        "{patched:?}"
    );
}

/// The status of the default ServiceCIDR was an update of the server instead of an apply of its controller.
#[test]
fn service_cidr_status_is_applied_by_its_controller() {
    let server = Server::with_flags(&["--engine=memory"]);
    let range = server.admin().get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").ok();
    let managers = range["metadata"]["managedFields"].as_array().unwrap();
    let status = managers.iter().find(|manager| manager["subresource"] == "status").unwrap();
    assert_eq!(
        (&status["manager"], &status["operation"]),
        (&json!("kubernetes-service-cidr-controller"), &json!("Apply"))
    );
    assert_eq!(range["status"]["conditions"][0]["status"], "True");
}

/// Any user who could create claims could request admin access to devices.
#[test]
fn device_admin_access_requires_labelled_namespace() {
    let server = Server::with_flags(&[
        "--engine=memory",
        "--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true",
        "--feature-gates=DynamicResourceAllocation=true,DRAAdminAccess=true",
    ]);
    let mut client = server.admin();
    let admin_request =
        json!({"name": "a", "deviceClassName": "c", "allocationMode": "All", "adminAccess": true});
    let v1beta1_spec =
        json!({"devices": {"requests": [{"name": "b", "deviceClassName": "c"}, admin_request]}});
    let exactly = json!({"deviceClassName": "c", "allocationMode": "All", "adminAccess": true});
    let v1beta2_spec = json!({"devices": {"requests": [{"name": "a", "exactly": exactly}]}});
    let collection = |namespace: &str, version: &str, plural: &str| {
        format!("/apis/resource.k8s.io/{version}/namespaces/{namespace}/{plural}")
    };
    let claims = collection("default", "v1beta1", "resourceclaims");
    for (version, plural, kind, spec, index) in [
        ("v1beta1", "resourceclaims", "ResourceClaim", v1beta1_spec.clone(), 1),
        ("v1beta1", "resourceclaimtemplates", "ResourceClaimTemplate", json!({"spec": v1beta1_spec}), 1),
        ("v1beta2", "resourceclaims", "ResourceClaim", v1beta2_spec, 0),
    ] {
        let object = json!({"apiVersion": format!("resource.k8s.io/{version}"), "kind": kind,
            "metadata": {"name": version}, "spec": spec});
        let refused =
            client.post(&collection("default", version, plural), &object).expect_error(422, "Invalid");
        let reason = format!(
            "spec.devices.requests[{index}].adminAccess: Forbidden: admin access to devices requires the \
             `resource.k8s.io/admin-access: true` label on the containing namespace"
        );
        assert!(refused["message"].as_str().unwrap().ends_with(&reason), "{refused}");
        client
            .patch(
                "/api/v1/namespaces/kube-system",
                "merge",
                &json!({"metadata": {"labels": {"resource.k8s.io/admin-access": "true"}}}),
            )
            .ok();
        client.post(&collection("kube-system", version, plural), &object).ok();
    }
    // Allocations in the status are checked, too.
    let plain = json!({"metadata": {"name": "plain"},
        "spec": {"devices": {"requests": [{"name": "a", "deviceClassName": "c"}]}}});
    client.post(&claims, &plain).ok();
    let status = |admin: bool| {
        json!({"status": {"allocation": {"devices": {"results": [
            {"request": "a", "driver": "d.example", "pool": "p", "device": "x", "adminAccess": admin}]}}}})
    };
    let refused =
        client.patch(&format!("{claims}/plain/status"), "merge", &status(true)).expect_error(422, "Invalid");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("status.allocation.devices.results[0].adminAccess: Forbidden"), "{message}");
    client.patch(&format!("{claims}/plain/status"), "merge", &status(false)).ok();
}

/// A dry run of a binding named the storage key, and a log was sent to clients that do not accept text.
#[test]
fn dry_run_binding_conflict_names_dry_run_key() {
    let server = Server::with_flags(&["--engine=memory", "--disable-admission-plugins=ServiceAccount"]);
    let mut client = server.admin();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    client.post(pods, &pod).ok();
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p", "uid": "x"},
        "target": {"kind": "Node", "name": "n"}});
    // A log is plain text, also for clients that accept JSON.
    let refused = client.request("GET", &format!("{pods}/p/log"), &[("accept", "text/html")], b"");
    let status = refused.expect_error(406, "NotAcceptable");
    assert!(status["message"].as_str().unwrap().contains("representations: text/plain, "), "{status}");
    for accept in ["text/plain", "application/json", "*/*"] {
        assert_eq!(client.request("GET", &format!("{pods}/p/log"), &[("accept", accept)], b"").status, 204);
    }
    for (query, key) in [("", "/registry/pods/default/p"), ("?dryRun=All", "/pods/default/p")] {
        let status = client.post(&format!("{pods}/p/binding{query}"), &binding).expect_error(409, "Conflict");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(message.contains(&format!("Key: {key},")), "{message}");
    }
}

/// A create was refused for an invalid resourceVersion, and a collection delete for its body before its selector.
#[test]
fn create_ignores_invalid_resource_version() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let object = |version: &str| json!({"metadata": {"name": "a", "resourceVersion": version}});
    client.post(MAPS, &object("5")).expect_error(400, "BadRequest");
    let created = client.post(MAPS, &object("x")).ok();
    assert!(created["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().is_ok(), "{created}");
    client.post(MAPS, &object("x")).expect_error(409, "AlreadyExists");
    let json = [("content-type", "application/json")];
    let refused = client.request("DELETE", &format!("{MAPS}?fieldSelector=nope=1"), &json, b",{}");
    let status = refused.expect_error(400, "BadRequest");
    assert!(status["message"].as_str().unwrap().contains("nope"), "{status}");
}

/// The errors of an event's metadata came before those that both groups check first.
#[test]
fn event_fields_are_validated_before_metadata() {
    let server = Server::with_flags(&["--engine=memory"]);
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "finalizers": ["bad"]},
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "R", "type": "Normal",
        "eventTime": "2020-01-01T00:00:00.000000Z", "reportingController": "a.b/c", "reportingInstance": "i"});
    let status = server
        .admin()
        .post("/apis/events.k8s.io/v1/namespaces/default/events", &event)
        .expect_error(422, "Invalid");
    let fields: Vec<&Value> =
        status["details"]["causes"].as_array().unwrap().iter().map(|c| &c["field"]).collect();
    assert_eq!(fields, ["action", "metadata.finalizers[0]"]);
}

/// A grace period in an apply that creates was dropped.
#[test]
fn apply_create_keeps_deletion_grace_period() {
    let server = Server::with_flags(&["--engine=memory"]);
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "deletionGracePeriodSeconds": 5}});
    let headers = [("Content-Type", "application/apply-patch+yaml")];
    let body = object.to_string();
    let mut client = server.admin();
    let created =
        client.request("PATCH", &format!("{MAPS}/a?fieldManager=m"), &headers, body.as_bytes()).ok();
    assert_eq!(created["metadata"]["deletionGracePeriodSeconds"], 5);
    assert_eq!(created["metadata"]["deletionTimestamp"], Value::Null);
}
