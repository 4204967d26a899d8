//! What the cluster has to say about writes: each plug-in's effect and its refusal, and what exists from the first start.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "admission/quota.rs"]
mod quota;
mod support;

#[path = "admission/changing_policies.rs"]
mod changing_policies;
#[path = "admission/hook_server.rs"]
mod hook_server;
#[path = "admission/operator.rs"]
mod operator;
#[path = "admission/pod_security.rs"]
mod pod_security;
#[path = "admission/policies.rs"]
mod policies;
#[path = "admission/webhooks.rs"]
mod webhooks;

use serde_json::{Value, json};
use support::client::JSON;
use support::compare::text;
use support::server::{ADMIN_TOKEN, directory};
use support::{Client, Server};

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

fn class(name: &str, value: i64) -> Value {
    json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value})
}

fn claim(name: &str, size: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
}

fn forbidden(client: &mut Client, path: &str, object: &Value, why: &str) {
    let status = client.post(path, object).refused(403, "Forbidden");
    assert!(text(&status, "/message").ends_with(why), "{status}");
    assert_eq!(status["details"]["name"], object["metadata"]["name"], "{status}");
}

#[test]
fn pods_get_a_priority_and_tolerations() {
    let server = Server::start();
    let mut admin = server.admin();
    let plain = admin.post(PODS, &pod("plain", &json!({}))).ok();
    assert_eq!(plain["spec"]["priority"], 0);
    assert_eq!(plain["spec"]["preemptionPolicy"], "PreemptLowerPriority");
    let tolerations = plain["spec"]["tolerations"].as_array().unwrap();
    assert_eq!(tolerations.len(), 2);
    assert_eq!(tolerations[0]["key"], "node.kubernetes.io/not-ready");
    assert_eq!(tolerations[1]["tolerationSeconds"], 300);

    forbidden(
        &mut admin,
        PODS,
        &pod("a", &json!({"priorityClassName": "none"})),
        "pods \"a\" is forbidden: no PriorityClass with name none was found",
    );
    forbidden(
        &mut admin,
        PODS,
        &pod("a", &json!({"priority": 5})),
        "the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 0 \
         from the given PriorityClass name",
    );
    let critical =
        admin.post(PODS, &pod("critical", &json!({"priorityClassName": "system-node-critical"}))).ok();
    assert_eq!(critical["spec"]["priority"], 2_000_001_000);

    // A pod that does not have its name yet is called by what the name will begin with.
    let mut unnamed = pod("", &json!({"priorityClassName": "none"}));
    unnamed["metadata"] = json!({"generateName": "some-"});
    let status = admin.post(PODS, &unnamed).refused(403, "Forbidden");
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
fn one_priority_class_is_the_default() {
    let server = Server::start();
    let mut admin = server.admin();
    let mut first = class("first", 7);
    first["globalDefault"] = json!(true);
    first["preemptionPolicy"] = json!("Never");
    let first = admin.post(CLASSES, &first).ok();
    let made = admin.post(PODS, &pod("a", &json!({}))).ok();
    assert_eq!(made["spec"]["priorityClassName"], "first");
    assert_eq!(made["spec"]["priority"], 7);
    assert_eq!(made["spec"]["preemptionPolicy"], "Never");
    let mut second = class("second", 8);
    second["globalDefault"] = json!(true);
    forbidden(
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
fn limit_ranges_fill_in_and_refuse() {
    let server = Server::start();
    let mut admin = server.admin();
    let ranges = "/api/v1/namespaces/default/limitranges";
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [
        {"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "1"}},
        {"type": "Pod", "max": {"cpu": "1500m"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]}});
    admin.post(ranges, &range).ok();
    let made = admin.post(PODS, &pod("a", &json!({}))).ok();
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}})
    );
    assert_eq!(
        made["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    );
    assert_eq!(made["status"]["qosClass"], "Burstable", "what was filled in counts");
    let asks = |amount: &str| json!([{"name": "c", "image": "i", "resources": {"limits": {"cpu": amount}}}]);
    let greedy = pod("b", &json!({"containers": asks("2")}));
    forbidden(
        &mut admin,
        PODS,
        &greedy,
        "pods \"b\" is forbidden: [maximum cpu usage per Container is 1, but limit is 2, maximum cpu usage per Pod is \
         1500m, but limit is 2]",
    );
    let two = json!([{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}},
        {"name": "d", "image": "i", "resources": {"limits": {"cpu": "700m"}}}]);
    forbidden(
        &mut admin,
        PODS,
        &pod("b", &json!({"containers": two})),
        "maximum cpu usage per Pod is 1500m, but limit is 1700m",
    );
    forbidden(
        &mut admin,
        CLAIMS,
        &claim("big", "2Gi"),
        "maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi",
    );
    admin.post(CLAIMS, &claim("small", "1Gi")).ok();
}

#[test]
fn claims_are_protected_classed_and_grow_only_where_they_can() {
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
        // The rules of the kind are asked first.
        assert_eq!(admin.put(&path, &larger).status, 422);
        let mut bound = claim;
        bound["spec"]["volumeName"] = json!("v");
        let mut bound = admin.put(&path, &bound).ok();
        bound["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
        let mut bound = admin.put(&format!("{path}/status"), &bound).ok();
        bound["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
        let answer = admin.put(&path, &bound);
        if grows {
            answer.ok();
        } else {
            let status = answer.refused(403, "Forbidden");
            assert!(text(&status, "/message").contains("must support resize"), "{status}");
        }
    }
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/p"}}});
    let volume = admin.post("/api/v1/persistentvolumes", &volume).ok();
    assert_eq!(volume["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
}

#[test]
fn ingresses_and_nodes_get_what_clusters_give_them() {
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
fn runtime_classes_decide_overhead_and_place() {
    let server = Server::start();
    let mut admin = server.admin();
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "vm"},
        "handler": "vm", "overhead": {"podFixed": {"memory": "10Mi"}},
        "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]}});
    admin.post("/apis/node.k8s.io/v1/runtimeclasses", &class).ok();
    let made = admin.post(PODS, &pod("a", &json!({"runtimeClassName": "vm"}))).ok();
    assert_eq!(made["spec"]["overhead"], json!({"memory": "10Mi"}));
    assert_eq!(made["spec"]["nodeSelector"], json!({"vm": "yes"}));
    assert!(
        made["spec"]["tolerations"].as_array().unwrap().contains(&json!({"key": "vm", "operator": "Exists"}))
    );
    for (fields, why) in [
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
        forbidden(&mut admin, PODS, &pod("b", &fields), why);
    }
}

#[test]
fn namespaces_must_live_and_some_cannot_die() {
    let server = Server::start();
    let mut admin = server.admin();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    let status = admin.post("/api/v1/namespaces/none/configmaps", &map).refused(404, "NotFound");
    assert_eq!(text(&status, "/message"), "namespaces \"none\" not found");
    for name in ["default", "kube-system", "kube-public"] {
        let status = admin.delete(&format!("/api/v1/namespaces/{name}")).refused(403, "Forbidden");
        assert!(text(&status, "/message").ends_with("this namespace may not be deleted"), "{status}");
    }
    // Whoever means another object of the same name is told that first.
    let options = br#"{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"other"}}"#;
    admin.request("DELETE", "/api/v1/namespaces/default", &JSON, options).refused(409, "Conflict");
}

#[test]
fn nobody_asks_for_a_certificate_of_the_all_powerful_group() {
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
    forbidden(
        &mut admin,
        requests,
        &request("bad", "system:masters"),
        "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
    );
}

#[test]
fn plugins_can_be_turned_on_and_off() {
    let server = Server::with(&[
        "--disable-admission-plugins=Priority,StorageObjectInUseProtection",
        "--enable-admission-plugins=AlwaysPullImages,DenyServiceExternalIPs",
        "--default-not-ready-toleration-seconds=7",
    ]);
    let mut admin = server.admin();
    let mut made = pod("a", &json!({"priorityClassName": "none"}));
    made["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    let made = admin.post(PODS, &made).ok();
    assert_eq!(made["spec"].get("priority"), None);
    assert_eq!(made["spec"]["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(made["spec"]["tolerations"][0]["tolerationSeconds"], 7);
    assert_eq!(admin.post(CLAIMS, &claim("a", "1Gi")).ok()["metadata"].get("finalizers"), None);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80}], "externalIPs": ["1.2.3.4"]}});
    forbidden(
        &mut admin,
        "/api/v1/namespaces/default/services",
        &service,
        "Use of external IPs is denied by admission control",
    );
}

#[test]
fn admission_control_turns_all_plugins_off_that_it_does_not_name() {
    // With controllers named, the tests' own flag about plug-ins is left out: it does not go with this one.
    let server =
        Server::with(&["--controllers=-*", "--admission-control=AlwaysPullImages,NamespaceLifecycle"]);
    let mut admin = server.admin();
    let mut made = pod("a", &json!({"priorityClassName": "none"}));
    made["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    let made = admin.post(PODS, &made).ok();
    assert_eq!(made["spec"]["containers"][0]["imagePullPolicy"], "Always");
    for field in ["priority", "tolerations", "serviceAccountName"] {
        assert_eq!(made["spec"].get(field), None, "{field}");
    }
}

#[test]
fn unknown_plugins_are_refused_at_the_start() {
    let directory = directory();
    let data = directory.path().join("data");
    for (flags, wanted) in [
        (vec!["--enable-admission-plugins=Nope"], "enable-admission-plugins plugin \"Nope\" is unknown"),
        (
            vec!["--enable-admission-plugins=Priority", "--disable-admission-plugins=Priority"],
            "[Priority] in enable-admission-plugins and disable-admission-plugins overlapped",
        ),
        (
            vec!["--enable-admission-plugins=ImagePolicyWebhook"],
            "enable-admission-plugins plugin \"ImagePolicyWebhook\" is not supported by this server",
        ),
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
        match Server::try_on(&data, &flags) {
            Ok(_) => panic!("the server started with {flags:?}"),
            Err(refusal) => assert!(refusal.stderr.contains(wanted), "{refusal:?}"),
        }
    }
}

#[test]
fn a_fresh_cluster_has_what_clients_look_for_and_keeps_what_users_made_of_it() {
    let directory = directory();
    let data = directory.path().join("data");
    let first = Server::on(&data, &[]);
    let mut admin = first.admin();
    let critical = admin.get(&format!("{CLASSES}/system-cluster-critical")).ok();
    let refused = admin.delete(&format!("{CLASSES}/system-cluster-critical")).refused(403, "Forbidden");
    assert!(text(&refused, "/message").ends_with("this is a system priority class and cannot be deleted"));
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
    let precedes = |admin: &mut Client, name: &str, annotation: &str| {
        let mut schema = admin.get(&format!("{SCHEMAS}/{name}")).ok();
        schema["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"] = json!(annotation);
        schema["spec"]["matchingPrecedence"] = json!(77);
        admin.put(&format!("{SCHEMAS}/{name}"), &schema).ok()
    };
    let probes = precedes(&mut admin, "probes", "false");
    precedes(&mut admin, "service-accounts", "true");
    let address = admin.address;
    first.stop();

    let second = Server::on(&data, &[]);
    let mut admin = second.anonymous().with_token(Some(ADMIN_TOKEN));
    assert_ne!(admin.address, address);
    assert_eq!(
        admin.get(&format!("{SCHEMAS}/probes")).ok(),
        probes,
        "it says that it is looked after by somebody"
    );
    let restored = admin.get(&format!("{SCHEMAS}/service-accounts")).ok();
    assert_eq!(restored["spec"]["matchingPrecedence"], 9_000, "and this one that nobody does");
    assert_eq!(admin.get(SCHEMAS).ok()["items"].as_array().map(Vec::len), Some(13));
    second.stop();
}

#[test]
fn the_parts_of_the_control_plane_say_how_they_are() {
    let server = Server::start();
    let mut admin = server.admin();
    let path = "/api/v1/componentstatuses";
    let list = admin.get(path);
    assert_eq!(list.header("warning"), Some("299 - \"v1 ComponentStatus is deprecated in v1.19+\""));
    let list = list.ok();
    assert_eq!((&list["kind"], &list["metadata"]), (&json!("ComponentStatusList"), &json!({})));
    let names: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|part| text(part, "/metadata/name")).collect();
    assert_eq!(names, ["controller-manager", "etcd-0", "scheduler"]);
    let storage = admin.get(&format!("{path}/etcd-0")).ok();
    assert_eq!(storage["conditions"], json!([{"type": "Healthy", "status": "True", "message": "ok"}]));
    assert_eq!(storage["kind"], "ComponentStatus");
    let one = admin.get(&format!("{path}?fieldSelector=metadata.name%3Detcd-0")).ok();
    assert_eq!(one["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(admin.get(&format!("{path}?labelSelector=a%3Db")).ok()["items"], json!([]));
    let status = admin.get(&format!("{path}/none")).refused(404, "NotFound");
    assert_eq!(text(&status, "/message"), "componentstatus \"none\" not found");
    admin.post(path, &storage).refused(405, "MethodNotAllowed");
}
