//! Admission plug-ins: the changes and refusals of each, and the objects of a fresh cluster.

mod image_policy;
mod mutating_policies;
mod optional_plugins;
mod pod_security;
mod quota;
mod validating_policies;
mod webhooks;

use serde_json::{Value, json};

use crate::support::client::JSON;
use crate::support::compare::text;
use crate::support::server::{ADMIN_TOKEN, temp_directory};
use crate::support::{Client, Server};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";

/// A pod with further fields of its spec.
fn pod(name: &str, fields: &Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    for (field, value) in fields.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn priority_class(name: &str, value: i64) -> Value {
    json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value})
}

fn claim(name: &str, size: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
}

fn expect_forbidden(client: &mut Client, path: &str, object: &Value, reason: &str) {
    let status = client.post(path, object).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").ends_with(reason), "{status}");
    assert_eq!(status["details"]["name"], object["metadata"]["name"], "{status}");
}

#[test]
fn priority_and_default_tolerations_are_set_on_pods() {
    let server = Server::start();
    let mut admin = server.admin();
    let plain = admin.post(PODS, &pod("plain", &json!({}))).ok();
    assert_eq!(plain["spec"]["priority"], 0);
    assert_eq!(plain["spec"]["preemptionPolicy"], "PreemptLowerPriority");
    let tolerations = plain["spec"]["tolerations"].as_array().unwrap();
    assert_eq!(tolerations.len(), 2);
    assert_eq!(tolerations[0]["key"], "node.kubernetes.io/not-ready");
    assert_eq!(tolerations[1]["tolerationSeconds"], 300);

    expect_forbidden(
        &mut admin,
        PODS,
        &pod("a", &json!({"priorityClassName": "none"})),
        "pods \"a\" is forbidden: no PriorityClass with name none was found",
    );
    expect_forbidden(
        &mut admin,
        PODS,
        &pod("a", &json!({"priority": 5})),
        "the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 0 \
         from the given PriorityClass name",
    );
    let critical =
        admin.post(PODS, &pod("critical", &json!({"priorityClassName": "system-node-critical"}))).ok();
    assert_eq!(critical["spec"]["priority"], 2_000_001_000);

    // A pod without a name yet is named by its generateName.
    let mut pod_with_generate_name = pod("", &json!({"priorityClassName": "none"}));
    pod_with_generate_name["metadata"] = json!({"generateName": "some-"});
    let status = admin.post(PODS, &pod_with_generate_name).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").starts_with("pods \"some-\" is forbidden"), "{status}");

    // An update that leaves the priority out keeps it.
    let mut changed = plain;
    let spec = changed["spec"].as_object_mut().unwrap();
    spec.remove("priority");
    spec.remove("tolerations");
    changed["metadata"]["labels"] = json!({"a": "b"});
    let changed = admin.put(&format!("{PODS}/plain"), &changed).ok();
    assert_eq!((&changed["spec"]["priority"], &changed["metadata"]["labels"]["a"]), (&json!(0), &json!("b")));
    assert_eq!(changed["spec"]["tolerations"].as_array().map(Vec::len), Some(2));
}

#[test]
fn priority_refuses_second_global_default_class() {
    let server = Server::start();
    let mut admin = server.admin();
    let mut first = priority_class("first", 7);
    first["globalDefault"] = json!(true);
    first["preemptionPolicy"] = json!("Never");
    let first = admin.post(CLASSES, &first).ok();
    let created = admin.post(PODS, &pod("a", &json!({}))).ok();
    assert_eq!(created["spec"]["priorityClassName"], "first");
    assert_eq!(created["spec"]["priority"], 7);
    assert_eq!(created["spec"]["preemptionPolicy"], "Never");
    let mut second = priority_class("second", 8);
    second["globalDefault"] = json!(true);
    expect_forbidden(
        &mut admin,
        CLASSES,
        &second,
        "PriorityClass first is already marked as default. Only one default can exist",
    );
    // The default may stay the default.
    let mut same = first;
    same["description"] = json!("still");
    admin.put(&format!("{CLASSES}/first"), &same).ok();
    // And once it is gone, the next pod is plain again.
    admin.delete(&format!("{CLASSES}/first")).ok();
    assert_eq!(admin.post(PODS, &pod("b", &json!({}))).ok()["spec"]["priority"], 0);
    admin.post(CLASSES, &second).ok();
}

#[test]
fn limit_ranger_sets_defaults_and_refuses_over_max() {
    let server = Server::start();
    let mut admin = server.admin();
    let ranges = "/api/v1/namespaces/default/limitranges";
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [
        {"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "1"}},
        {"type": "Pod", "max": {"cpu": "1500m"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]}});
    admin.post(ranges, &range).ok();
    let created = admin.post(PODS, &pod("a", &json!({}))).ok();
    assert_eq!(
        created["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}})
    );
    assert_eq!(
        created["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    );
    assert_eq!(created["status"]["qosClass"], "Burstable", "defaulted resources count");
    let containers_with_limit =
        |amount: &str| json!([{"name": "c", "image": "i", "resources": {"limits": {"cpu": amount}}}]);
    let over_limit = pod("b", &json!({"containers": containers_with_limit("2")}));
    expect_forbidden(
        &mut admin,
        PODS,
        &over_limit,
        "pods \"b\" is forbidden: [maximum cpu usage per Container is 1, but limit is 2, maximum cpu usage per Pod is \
         1500m, but limit is 2]",
    );
    let two_containers = json!([{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}},
        {"name": "d", "image": "i", "resources": {"limits": {"cpu": "700m"}}}]);
    expect_forbidden(
        &mut admin,
        PODS,
        &pod("b", &json!({"containers": two_containers})),
        "maximum cpu usage per Pod is 1500m, but limit is 1700m",
    );
    expect_forbidden(
        &mut admin,
        CLAIMS,
        &claim("big", "2Gi"),
        "maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi",
    );
    admin.post(CLAIMS, &claim("small", "1Gi")).ok();
}

#[test]
fn claims_get_finalizer_and_default_class_and_resize_needs_class_support() {
    let server = Server::start();
    let mut admin = server.admin();
    let classless = admin.post(CLAIMS, &claim("early", "1Gi")).ok();
    assert_eq!(classless["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    assert_eq!(classless["spec"].get("storageClassName"), None);
    let storage = |name: &str, grows: bool| {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "a.b/c",
            "metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "allowVolumeExpansion": grows})
    };
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    admin.post(classes, &storage("fixed", false)).ok();
    let fixed = admin.post(CLAIMS, &claim("a", "1Gi")).ok();
    assert_eq!(fixed["spec"]["storageClassName"], "fixed");
    admin.delete(&format!("{classes}/fixed")).ok();
    admin.post(classes, &storage("elastic", true)).ok();
    let elastic = admin.post(CLAIMS, &claim("b", "1Gi")).ok();
    assert_eq!(elastic["spec"]["storageClassName"], "elastic");

    for (claim, grows) in [(fixed, false), (elastic, true)] {
        let path = format!("{CLAIMS}/{}", text(&claim, "/metadata/name"));
        let mut larger = claim.clone();
        larger["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
        // Validation of the kind comes before admission.
        assert_eq!(admin.put(&path, &larger).status, 422);
        let mut bound = claim;
        bound["spec"]["volumeName"] = json!("v");
        let mut bound = admin.put(&path, &bound).ok();
        bound["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
        let mut bound = admin.put(&format!("{path}/status"), &bound).ok();
        bound["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
        let response = admin.put(&path, &bound);
        if grows {
            response.ok();
        } else {
            let status = response.expect_error(403, "Forbidden");
            assert!(text(&status, "/message").contains("must support resize"), "{status}");
        }
    }
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/p"}}});
    let volume = admin.post("/api/v1/persistentvolumes", &volume).ok();
    assert_eq!(volume["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
}

#[test]
fn default_ingress_class_and_not_ready_taint_are_set_on_create() {
    let server = Server::start();
    let mut admin = server.admin();
    let class = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "web",
        "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}}, "spec": {"controller": "a.b/c"}});
    admin.post("/apis/networking.k8s.io/v1/ingressclasses", &class).ok();
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    let mut ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "a"},
        "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}});
    assert_eq!(admin.post(ingresses, &ingress).ok()["spec"]["ingressClassName"], "web");
    ingress["metadata"] = json!({"name": "b", "annotations": {"kubernetes.io/ingress.class": "old"}});
    assert_eq!(admin.post(ingresses, &ingress).ok()["spec"].get("ingressClassName"), None);

    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let node = admin.post("/api/v1/nodes", &node).ok();
    assert_eq!(
        node["spec"]["taints"],
        json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
    );
}

#[test]
fn runtime_class_sets_overhead_and_scheduling() {
    let server = Server::start();
    let mut admin = server.admin();
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "vm"},
        "handler": "vm", "overhead": {"podFixed": {"memory": "10Mi"}},
        "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]}});
    admin.post("/apis/node.k8s.io/v1/runtimeclasses", &class).ok();
    let created = admin.post(PODS, &pod("a", &json!({"runtimeClassName": "vm"}))).ok();
    assert_eq!(created["spec"]["overhead"], json!({"memory": "10Mi"}));
    assert_eq!(created["spec"]["nodeSelector"], json!({"vm": "yes"}));
    assert!(
        created["spec"]["tolerations"]
            .as_array()
            .unwrap()
            .contains(&json!({"key": "vm", "operator": "Exists"}))
    );
    for (fields, reason) in [
        (json!({"runtimeClassName": "none"}), "pod rejected: RuntimeClass \"none\" not found"),
        (
            json!({"runtimeClassName": "vm", "overhead": {"memory": "1Mi"}}),
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        ),
        (
            json!({"overhead": {"memory": "1Mi"}}),
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
        (
            json!({"runtimeClassName": "vm", "nodeSelector": {"vm": "no"}}),
            "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no",
        ),
    ] {
        expect_forbidden(&mut admin, PODS, &pod("b", &fields), reason);
    }
}

#[test]
fn namespace_lifecycle_refuses_missing_and_immortal_namespaces() {
    let server = Server::start();
    let mut admin = server.admin();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    let status = admin.post("/api/v1/namespaces/none/configmaps", &map).expect_error(404, "NotFound");
    assert_eq!(text(&status, "/message"), "namespaces \"none\" not found");
    for name in ["default", "kube-system", "kube-public"] {
        let status = admin.delete(&format!("/api/v1/namespaces/{name}")).expect_error(403, "Forbidden");
        assert!(text(&status, "/message").ends_with("this namespace may not be deleted"), "{status}");
    }
    // Preconditions are checked first.
    let options = br#"{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"other"}}"#;
    admin.request("DELETE", "/api/v1/namespaces/default", &JSON, options).expect_error(409, "Conflict");
}

#[test]
fn csr_for_system_masters_is_forbidden() {
    use openssl::hash::MessageDigest;
    use openssl::nid::Nid;
    use openssl::pkey::PKey;
    use openssl::x509::{X509NameBuilder, X509ReqBuilder};

    let server = Server::start();
    let mut admin = server.admin();
    let request = |name: &str, group: &str| {
        let key = PKey::generate_ed25519().unwrap();
        let mut subject = X509NameBuilder::new().unwrap();
        subject.append_entry_by_nid(Nid::ORGANIZATIONNAME, group).unwrap();
        subject.append_entry_by_nid(Nid::COMMONNAME, "someone").unwrap();
        let mut builder = X509ReqBuilder::new().unwrap();
        builder.set_subject_name(&subject.build()).unwrap();
        builder.set_pubkey(&key).unwrap();
        builder.sign(&key, MessageDigest::null()).unwrap();
        let pem = openssl::base64::encode_block(&builder.build().to_pem().unwrap());
        json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": name}, "spec": {"request": pem, "usages": ["client auth"],
            "signerName": "kubernetes.io/kube-apiserver-client"}})
    };
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    admin.post(requests, &request("good", "devs")).ok();
    expect_forbidden(
        &mut admin,
        requests,
        &request("bad", "system:masters"),
        "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
    );
}

#[test]
fn plugin_flags_enable_and_disable_plugins() {
    let server = Server::with_flags(&[
        "--disable-admission-plugins=Priority,StorageObjectInUseProtection",
        "--enable-admission-plugins=AlwaysPullImages,DenyServiceExternalIPs",
        "--default-not-ready-toleration-seconds=7",
    ]);
    let mut admin = server.admin();
    let mut created = pod("a", &json!({"priorityClassName": "none"}));
    created["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    let created = admin.post(PODS, &created).ok();
    assert_eq!(created["spec"].get("priority"), None);
    assert_eq!(created["spec"]["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(created["spec"]["tolerations"][0]["tolerationSeconds"], 7);
    assert_eq!(admin.post(CLAIMS, &claim("a", "1Gi")).ok()["metadata"].get("finalizers"), None);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80}], "externalIPs": ["1.2.3.4"]}});
    expect_forbidden(
        &mut admin,
        "/api/v1/namespaces/default/services",
        &service,
        "Use of external IPs is denied by admission control",
    );
}

#[test]
fn admission_control_flag_disables_unlisted_plugins() {
    // With a --controllers flag the test server sets no plug-in flag of its own, which would conflict with this one.
    let server =
        Server::with_flags(&["--controllers=-*", "--admission-control=AlwaysPullImages,NamespaceLifecycle"]);
    let mut admin = server.admin();
    let mut created = pod("a", &json!({"priorityClassName": "none"}));
    created["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    let created = admin.post(PODS, &created).ok();
    assert_eq!(created["spec"]["containers"][0]["imagePullPolicy"], "Always");
    for field in ["priority", "tolerations", "serviceAccountName"] {
        assert_eq!(created["spec"].get(field), None, "{field}");
    }
}

#[test]
fn start_refuses_unknown_or_conflicting_plugins() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    for (flags, expected) in [
        (vec!["--enable-admission-plugins=Nope"], "enable-admission-plugins plugin \"Nope\" is unknown"),
        (
            vec!["--enable-admission-plugins=Priority", "--disable-admission-plugins=Priority"],
            "[Priority] in enable-admission-plugins and disable-admission-plugins overlapped",
        ),
        (vec!["--enable-admission-plugins=ImagePolicyWebhook"], "ImagePolicyWebhook: no config specified"),
        (
            vec!["--controllers=-*", "--admission-control=Nope"],
            "admission-control plugin \"Nope\" is unknown",
        ),
        (
            vec!["--admission-control=Priority", "--disable-admission-plugins=LimitRanger"],
            "admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive",
        ),
        (
            vec!["--enable-admission-plugins=EventRateLimit"],
            "EventRateLimit: limits: Invalid value: []: must not be empty",
        ),
        (
            vec!["--admission-control-config-file=/nowhere/at/all"],
            "unable to read admission control configuration from \"/nowhere/at/all\"",
        ),
    ] {
        match Server::try_start_in(&data, &flags) {
            Ok(_) => panic!("the server started with {flags:?}"),
            Err(failure) => assert!(failure.stderr.contains(expected), "{failure:?}"),
        }
    }
}

#[test]
fn bootstrap_objects_exist_and_keep_opted_out_changes() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let first = Server::start_in(&data, &[]);
    let mut admin = first.admin();
    let critical = admin.get(&format!("{CLASSES}/system-cluster-critical")).ok();
    let status = admin.delete(&format!("{CLASSES}/system-cluster-critical")).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").ends_with("this is a system priority class and cannot be deleted"));
    assert_eq!(critical["value"], 2_000_000_000);
    assert!(text(&critical, "/description").starts_with("Used for system critical pods that must run"));
    let schemas = admin.get(SCHEMAS).ok();
    assert_eq!(schemas["items"].as_array().map(Vec::len), Some(13));
    for schema in schemas["items"].as_array().unwrap() {
        assert_eq!(
            schema["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"], "true",
            "{schema}"
        );
        assert_eq!(schema["metadata"]["generation"], 1, "{schema}");
        let condition = &schema["status"]["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["status"]),
            (&json!("Dangling"), &json!("False")),
            "{schema}"
        );
    }
    let levels = admin.get("/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations").ok();
    assert_eq!(levels["items"].as_array().map(Vec::len), Some(8));
    let set_precedence = |admin: &mut Client, name: &str, annotation: &str| {
        let mut schema = admin.get(&format!("{SCHEMAS}/{name}")).ok();
        schema["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"] = json!(annotation);
        schema["spec"]["matchingPrecedence"] = json!(77);
        admin.put(&format!("{SCHEMAS}/{name}"), &schema).ok()
    };
    let opted_out = set_precedence(&mut admin, "probes", "false");
    set_precedence(&mut admin, "service-accounts", "true");
    let address = admin.address;
    first.stop();

    let second = Server::start_in(&data, &[]);
    let mut admin = second.anonymous().with_token(Some(ADMIN_TOKEN));
    assert_ne!(admin.address, address);
    assert_eq!(admin.get(&format!("{SCHEMAS}/probes")).ok(), opted_out, "autoupdate is off");
    let reconciled = admin.get(&format!("{SCHEMAS}/service-accounts")).ok();
    assert_eq!(reconciled["spec"]["matchingPrecedence"], 9_000, "autoupdate is on");
    assert_eq!(admin.get(SCHEMAS).ok()["items"].as_array().map(Vec::len), Some(13));
    second.stop();
}

#[test]
fn component_statuses_are_listed_and_read_only() {
    let server = Server::start();
    let mut admin = server.admin();
    let path = "/api/v1/componentstatuses";
    let list = admin.get(path);
    assert_eq!(list.header("warning"), Some("299 - \"v1 ComponentStatus is deprecated in v1.19+\""));
    let list = list.ok();
    assert_eq!((&list["kind"], &list["metadata"]), (&json!("ComponentStatusList"), &json!({})));
    let names: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|component| text(component, "/metadata/name")).collect();
    assert_eq!(names, ["controller-manager", "etcd-0", "scheduler"]);
    let storage = admin.get(&format!("{path}/etcd-0")).ok();
    assert_eq!(storage["conditions"], json!([{"type": "Healthy", "status": "True", "message": "ok"}]));
    assert_eq!(storage["kind"], "ComponentStatus");
    let filtered = admin.get(&format!("{path}?fieldSelector=metadata.name%3Detcd-0")).ok();
    assert_eq!(filtered["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(admin.get(&format!("{path}?labelSelector=a%3Db")).ok()["items"], json!([]));
    let status = admin.get(&format!("{path}/none")).expect_error(404, "NotFound");
    assert_eq!(text(&status, "/message"), "componentstatus \"none\" not found");
    admin.post(path, &storage).expect_error(405, "MethodNotAllowed");
}
