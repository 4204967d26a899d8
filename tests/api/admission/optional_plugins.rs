//! Plug-ins that are off by default.

use super::*;

/// A server with this plug-in configuration.
fn server_with_plugin_config(plugins: &str, flags: &[&str]) -> Server {
    let directory = temp_directory();
    let file = directory.path().join("admission.yaml");
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n";
    std::fs::write(&file, format!("{head}{plugins}")).unwrap();
    let flag = format!("--admission-control-config-file={}", file.display());
    let flags: Vec<&str> = flags.iter().copied().chain([flag.as_str()]).collect();
    // The file is read before the server is ready, so its directory may be deleted.
    Server::with_flags(&flags)
}

fn core_event(name: &str, object: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": object}, "source": {"component": "c"}})
}

#[test]
fn event_rate_limit_is_shared_by_workers() {
    let limits = "- name: EventRateLimit\n  configuration:\n    apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n    \
         kind: Configuration\n    limits:\n    - {type: SourceAndObject, qps: 1, burst: 2}\n    \
         - {type: Server, qps: 1, burst: 1000}\n";
    let server =
        server_with_plugin_config(limits, &["--enable-admission-plugins=EventRateLimit", "--workers=4"]);
    let events = "/api/v1/namespaces/default/events";
    let mut accepted = 0;
    let mut refusals = Vec::new();
    for index in 0..24 {
        // Separate connections are spread over the workers.
        let response = server.admin().post(events, &core_event(&format!("e{index}"), "a"));
        if response.status == 201 {
            accepted += 1;
        } else {
            refusals.push(response.expect_error(429, "TooManyRequests"));
        }
    }
    assert!((2..20).contains(&accepted), "{accepted} of 24, of which 2 at once and then one a second");
    assert_eq!(
        text(&refusals[0], "/message"),
        "Too many requests: limit reached on type SourceAndObject for key cPoddefaulta"
    );
    let mut admin = server.admin();
    let response = admin.post(&format!("{events}?dryRun=All"), &core_event("dry", "a"));
    assert_eq!(response.status, 201, "a dry run does not count");
    admin.post(events, &core_event("other", "b")).ok();
    let events_v1 = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "modern"},
        "eventTime": "2030-01-01T00:00:00.000000Z", "reportingController": "k8s.io/c", "reportingInstance": "i",
        "action": "a", "reason": "r", "type": "Normal", "regarding": {"kind": "Pod", "namespace": "default", "name": "a"}});
    admin.post("/apis/events.k8s.io/v1/namespaces/default/events", &events_v1).ok();
}

#[test]
fn owner_references_enforcement_allows_admin() {
    let server = Server::with_flags(&[
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        "--authorization-mode=RBAC",
    ]);
    let mut admin = server.admin();
    let owner = |kind: &str, version: &str| json!([{"apiVersion": version, "kind": kind, "name": "o", "uid": "u", "blockOwnerDeletion": true}]);
    let map = |name: &str, owners: &Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}});
    let maps = "/api/v1/namespaces/default/configmaps";
    // The administrator may set any owner, even of an unknown kind.
    admin.post(maps, &map("a", &owner("Nothing", "none/v1"))).ok();
}

#[test]
fn namespace_auto_provision_creates_namespace_on_first_object() {
    let server = Server::with_flags(&["--enable-admission-plugins=NamespaceAutoProvision"]);
    let mut admin = server.admin();
    let maps = "/api/v1/namespaces/new/configmaps";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    admin.post(&format!("{maps}?dryRun=All"), &map).expect_error(404, "NotFound");
    admin.post(maps, &map).ok();
    let namespace = admin.get("/api/v1/namespaces/new").ok();
    assert_eq!(namespace["status"]["phase"], "Active");
    assert_eq!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], "new");
    let status = admin.post("/api/v1/namespaces/Wrong/configmaps", &map).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").contains("Namespace \"Wrong\" is invalid"), "{status}");
}

#[test]
fn namespace_annotations_restrict_pod_node_selector_and_tolerations() {
    let plugins = "- name: PodNodeSelector\n  configuration: {podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: \
         env=all, own: 'env=own,disk=ssd'}}\n";
    let flag = "--enable-admission-plugins=PodNodeSelector,LimitPodHardAntiAffinityTopology,ExtendedResourceToleration,\
         PodTolerationRestriction";
    let server = server_with_plugin_config(plugins, &[flag]);
    let mut admin = server.admin();
    let created = admin.post(PODS, &pod("a", &json!({}))).ok();
    assert_eq!(created["spec"]["nodeSelector"], json!({"env": "all"}));
    expect_forbidden(
        &mut admin,
        PODS,
        &pod("b", &json!({"nodeSelector": {"env": "mine"}})),
        "pod node label selector conflicts with its namespace node label selector",
    );
    let annotations = json!({"scheduler.alpha.kubernetes.io/node-selector": "env=own",
        "scheduler.alpha.kubernetes.io/defaultTolerations": "[{\"key\":\"t\",\"operator\":\"Exists\"}]",
        "scheduler.alpha.kubernetes.io/tolerationsWhitelist":
            "[{\"key\":\"t\",\"operator\":\"Exists\"},{\"operator\":\"Exists\",\"effect\":\"NoExecute\"}]"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "own", "annotations": annotations}});
    admin.post("/api/v1/namespaces", &namespace).ok();
    let pods = "/api/v1/namespaces/own/pods";
    let created = admin.post(pods, &pod("a", &json!({"nodeSelector": {"disk": "ssd"}}))).ok();
    assert_eq!(created["spec"]["nodeSelector"], json!({"env": "own", "disk": "ssd"}));
    let keys: Vec<&Value> = created["spec"]["tolerations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|toleration| &toleration["key"])
        .collect();
    assert!(keys.contains(&&json!("t")), "{keys:?}");
    expect_forbidden(
        &mut admin,
        pods,
        &pod("b", &json!({"nodeSelector": {"disk": "hdd"}})),
        "pod node label selector labels conflict with its namespace whitelist",
    );
    expect_forbidden(
        &mut admin,
        pods,
        &pod("b", &json!({"tolerations": [{"key": "other", "operator": "Exists"}]})),
        "pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist",
    );
    let term = json!({"topologyKey": "zone", "labelSelector": {}});
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    expect_forbidden(
        &mut admin,
        PODS,
        &pod("b", &json!({"affinity": affinity})),
        "has TopologyKey zone but only key kubernetes.io/hostname is allowed",
    );
    let container_with_device =
        json!([{"name": "c", "image": "i", "resources": {"limits": {"example.com/device": "1"}}}]);
    let created = admin.post(PODS, &pod("device", &json!({"containers": container_with_device}))).ok();
    let tolerations = created["spec"]["tolerations"].as_array().unwrap();
    let expected = json!({"key": "example.com/device", "operator": "Exists", "effect": "NoSchedule"});
    assert!(tolerations.contains(&expected), "{tolerations:?}");
}

#[test]
fn always_deny_refuses_all_writes() {
    let server = Server::with_flags(&["--enable-admission-plugins=AlwaysDeny"]);
    let mut admin = server.admin();
    expect_forbidden(
        &mut admin,
        PODS,
        &pod("a", &json!({})),
        "pods \"a\" is forbidden: admission control is denying all modifications",
    );
    let status = admin.delete("/api/v1/namespaces/kube-node-lease").expect_error(403, "Forbidden");
    assert!(
        text(&status, "/message").ends_with("admission control is denying all modifications"),
        "{status}"
    );
    admin.get("/api/v1/namespaces/default").ok();
    // Impersonating the API server does not bypass admission.
    let as_server = [
        ("Impersonate-User", "system:apiserver"),
        ("Impersonate-Group", "system:masters"),
        ("Content-Type", "application/json"),
    ];
    let body = pod("a", &json!({})).to_string();
    admin.request("POST", PODS, &as_server, body.as_bytes()).expect_error(403, "Forbidden");
}

#[test]
fn update_in_deleted_namespace_is_not_found() {
    let server = Server::start();
    let mut admin = server.admin();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gone"}});
    admin.post("/api/v1/namespaces", &namespace).ok();
    let maps = "/api/v1/namespaces/gone/configmaps";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    admin.post(maps, &map).ok();
    let terminating = admin.delete("/api/v1/namespaces/gone").ok();
    let change = json!({"data": {"a": "b"}});
    admin.patch(&format!("{maps}/m"), "merge", &change).ok();
    let mut last = admin.get("/api/v1/namespaces/gone").ok();
    assert_eq!(terminating["metadata"]["uid"], last["metadata"]["uid"]);
    last["spec"]["finalizers"] = json!([]);
    admin.put("/api/v1/namespaces/gone/finalize", &last).ok();
    let change = json!({"data": {"a": "c"}});
    let status = admin.patch(&format!("{maps}/m"), "merge", &change);
    let status = status.expect_error(404, "NotFound");
    assert_eq!(text(&status, "/message"), "namespaces \"gone\" not found");
    admin.delete(&format!("{maps}/m")).ok();
}

#[test]
fn topology_labels_are_copied_from_node_behind_feature_gate() {
    let server = Server::with_flags(&["--feature-gates=PodTopologyLabelsAdmission=true"]);
    let mut admin = server.admin();
    let labels = json!({"topology.k8s.io/zone": "z", "topology.k8s.io/region": "r", "other": "o"});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}});
    admin.post("/api/v1/nodes", &node).ok();
    let expected = json!({"topology.k8s.io/zone": "z", "topology.k8s.io/region": "r"});
    let placed = admin.post(PODS, &pod("placed", &json!({"nodeName": "n"}))).ok();
    assert_eq!(placed["metadata"]["labels"], expected);
    let unscheduled = admin.post(PODS, &pod("lost", &json!({"nodeName": "unknown"}))).ok();
    assert_eq!(unscheduled["metadata"].get("labels"), None);
    let bound = admin.post(PODS, &pod("bound", &json!({}))).ok();
    assert_eq!(bound["metadata"].get("labels"), None);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "bound"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n"}});
    admin.post(&format!("{PODS}/bound/binding"), &binding).ok();
    let bound = admin.get(&format!("{PODS}/bound")).ok();
    assert_eq!((&bound["metadata"]["labels"], &bound["spec"]["nodeName"]), (&expected, &json!("n")));
}
