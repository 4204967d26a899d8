//! Plug-ins that are off until the operator turns them on.

use super::*;

/// A server with these documents for its plug-ins.
fn server_with(plugins: &str, flags: &[&str]) -> Server {
    let directory = directory();
    let file = directory.path().join("admission.yaml");
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n";
    std::fs::write(&file, format!("{head}{plugins}")).unwrap();
    let flag = format!("--admission-control-config-file={}", file.display());
    let flags: Vec<&str> = flags.iter().copied().chain([flag.as_str()]).collect();
    // The file is read before the server answers, so it may go with its directory.
    Server::with(&flags)
}

fn event(name: &str, object: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": object}, "source": {"component": "c"}})
}

#[test]
fn events_come_no_faster_than_they_may_whatever_worker_takes_them() {
    let limits = "- name: EventRateLimit\n  configuration:\n    apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n    \
         kind: Configuration\n    limits:\n    - {type: SourceAndObject, qps: 1, burst: 2}\n    \
         - {type: Server, qps: 1, burst: 1000}\n";
    let server = server_with(limits, &["--enable-admission-plugins=EventRateLimit", "--workers=4"]);
    let events = "/api/v1/namespaces/default/events";
    let mut taken = 0;
    let mut refusals = Vec::new();
    for index in 0..24 {
        // A connection each: they spread over the workers.
        let answer = server.admin().post(events, &event(&format!("e{index}"), "a"));
        if answer.status == 201 {
            taken += 1;
        } else {
            refusals.push(answer.refused(429, "TooManyRequests"));
        }
    }
    assert!((2..20).contains(&taken), "{taken} of 24, of which 2 at once and then one a second");
    assert_eq!(
        text(&refusals[0], "/message"),
        "Too many requests: limit reached on type SourceAndObject for key cPoddefaulta"
    );
    let mut admin = server.admin();
    let dry = admin.post(&format!("{events}?dryRun=All"), &event("dry", "a"));
    assert_eq!(dry.status, 201, "what is not stored does not count");
    admin.post(events, &event("other", "b")).ok();
    let modern = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "modern"},
        "eventTime": "2030-01-01T00:00:00.000000Z", "reportingController": "k8s.io/c", "reportingInstance": "i",
        "action": "a", "reason": "r", "type": "Normal", "regarding": {"kind": "Pod", "namespace": "default", "name": "a"}});
    admin.post("/apis/events.k8s.io/v1/namespaces/default/events", &modern).ok();
}

#[test]
fn owners_are_set_by_those_who_may() {
    let server = Server::with(&[
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        "--authorization-mode=RBAC",
    ]);
    let mut admin = server.admin();
    let owner = |kind: &str, version: &str| json!([{"apiVersion": version, "kind": kind, "name": "o", "uid": "u", "blockOwnerDeletion": true}]);
    let map = |name: &str, owners: &Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}});
    let maps = "/api/v1/namespaces/default/configmaps";
    // Whoever may do everything may do this too, and nobody looks the kind up.
    admin.post(maps, &map("a", &owner("Nothing", "none/v1"))).ok();
}

#[test]
fn namespaces_come_with_their_first_object() {
    let server = Server::with(&["--enable-admission-plugins=NamespaceAutoProvision"]);
    let mut admin = server.admin();
    let maps = "/api/v1/namespaces/new/configmaps";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    admin.post(&format!("{maps}?dryRun=All"), &map).refused(404, "NotFound");
    admin.post(maps, &map).ok();
    let namespace = admin.get("/api/v1/namespaces/new").ok();
    assert_eq!(namespace["status"]["phase"], "Active");
    assert_eq!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], "new");
    let wrong = admin.post("/api/v1/namespaces/Wrong/configmaps", &map).refused(403, "Forbidden");
    assert!(text(&wrong, "/message").contains("Namespace \"Wrong\" is invalid"), "{wrong}");
}

#[test]
fn namespaces_choose_the_nodes_of_their_pods() {
    let plugins = "- name: PodNodeSelector\n  configuration: {podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: \
         env=all, own: 'env=own,disk=ssd'}}\n";
    let flag = "--enable-admission-plugins=PodNodeSelector,LimitPodHardAntiAffinityTopology,ExtendedResourceToleration,\
         PodTolerationRestriction";
    let server = server_with(plugins, &[flag]);
    let mut admin = server.admin();
    let made = admin.post(PODS, &pod("a", &json!({}))).ok();
    assert_eq!(made["spec"]["nodeSelector"], json!({"env": "all"}));
    forbidden(
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
    let made = admin.post(pods, &pod("a", &json!({"nodeSelector": {"disk": "ssd"}}))).ok();
    assert_eq!(made["spec"]["nodeSelector"], json!({"env": "own", "disk": "ssd"}));
    let keys: Vec<&Value> =
        made["spec"]["tolerations"].as_array().unwrap().iter().map(|one| &one["key"]).collect();
    assert!(keys.contains(&&json!("t")), "{keys:?}");
    forbidden(
        &mut admin,
        pods,
        &pod("b", &json!({"nodeSelector": {"disk": "hdd"}})),
        "pod node label selector labels conflict with its namespace whitelist",
    );
    forbidden(
        &mut admin,
        pods,
        &pod("b", &json!({"tolerations": [{"key": "other", "operator": "Exists"}]})),
        "pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist",
    );
    let term = json!({"topologyKey": "zone", "labelSelector": {}});
    let away = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    forbidden(
        &mut admin,
        PODS,
        &pod("b", &json!({"affinity": away})),
        "has TopologyKey zone but only key kubernetes.io/hostname is allowed",
    );
    let device = json!([{"name": "c", "image": "i", "resources": {"limits": {"example.com/device": "1"}}}]);
    let made = admin.post(PODS, &pod("device", &json!({"containers": device}))).ok();
    let all = made["spec"]["tolerations"].as_array().unwrap();
    let wanted = json!({"key": "example.com/device", "operator": "Exists", "effect": "NoSchedule"});
    assert!(all.contains(&wanted), "{all:?}");
}

#[test]
fn everything_can_be_denied() {
    let server = Server::with(&["--enable-admission-plugins=AlwaysDeny"]);
    let mut admin = server.admin();
    forbidden(
        &mut admin,
        PODS,
        &pod("a", &json!({})),
        "pods \"a\" is forbidden: admission control is denying all modifications",
    );
    // The name of the server does not make a client the server.
    let server_name = [
        ("Content-Type", "application/json"),
        ("Impersonate-User", "system:apiserver"),
        ("Impersonate-Group", "system:masters"),
    ];
    let body = pod("a", &json!({})).to_string();
    admin.request("POST", PODS, &server_name, body.as_bytes()).refused(403, "Forbidden");
    let status = admin.delete("/api/v1/namespaces/kube-node-lease").refused(403, "Forbidden");
    assert!(
        text(&status, "/message").ends_with("admission control is denying all modifications"),
        "{status}"
    );
    admin.get("/api/v1/namespaces/default").ok();
}

#[test]
fn objects_whose_namespace_is_gone_cannot_be_changed() {
    let server = Server::start();
    let mut admin = server.admin();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gone"}});
    admin.post("/api/v1/namespaces", &namespace).ok();
    let maps = "/api/v1/namespaces/gone/configmaps";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    admin.post(maps, &map).ok();
    let going = admin.delete("/api/v1/namespaces/gone").ok();
    let change = json!({"data": {"a": "b"}});
    admin.patch(&format!("{maps}/m"), "merge", &change).ok();
    let mut last = admin.get("/api/v1/namespaces/gone").ok();
    assert_eq!(going["metadata"]["uid"], last["metadata"]["uid"]);
    last["spec"]["finalizers"] = json!([]);
    admin.put("/api/v1/namespaces/gone/finalize", &last).ok();
    let change = json!({"data": {"a": "c"}});
    let status = admin.patch(&format!("{maps}/m"), "merge", &change);
    let status = status.refused(404, "NotFound");
    assert_eq!(text(&status, "/message"), "namespaces \"gone\" not found");
    admin.delete(&format!("{maps}/m")).ok();
}

#[test]
fn pods_get_the_zone_of_their_node_where_the_gate_says_so() {
    let server = Server::with(&["--feature-gates=PodTopologyLabelsAdmission=true"]);
    let mut admin = server.admin();
    let labels = json!({"topology.k8s.io/zone": "z", "topology.k8s.io/region": "r", "other": "o"});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}});
    admin.post("/api/v1/nodes", &node).ok();
    let wanted = json!({"topology.k8s.io/zone": "z", "topology.k8s.io/region": "r"});
    let placed = admin.post(PODS, &pod("placed", &json!({"nodeName": "n"}))).ok();
    assert_eq!(placed["metadata"]["labels"], wanted);
    let lost = admin.post(PODS, &pod("lost", &json!({"nodeName": "unknown"}))).ok();
    assert_eq!(lost["metadata"].get("labels"), None);
    let bound = admin.post(PODS, &pod("bound", &json!({}))).ok();
    assert_eq!(bound["metadata"].get("labels"), None);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "bound"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n"}});
    admin.post(&format!("{PODS}/bound/binding"), &binding).ok();
    let bound = admin.get(&format!("{PODS}/bound")).ok();
    assert_eq!((&bound["metadata"]["labels"], &bound["spec"]["nodeName"]), (&wanted, &json!("n")));
}
