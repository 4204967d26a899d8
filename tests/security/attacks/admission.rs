//! Attacks on admission: writes of which admission sees only a part.

use serde_json::{Value, json};

use crate::support::client::Response;
use crate::support::compare::text;
use crate::support::{Client, Server};

const DEFAULT: &str = "/api/v1/namespaces/default";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1";

fn expect_forbidden(response: &Response, subresource: &str) {
    let status = response.expect_error(403, "Forbidden");
    assert!(text(&status, "/message").contains(subresource), "{status}");
}

/// CVE-2020-8554: a service with an external address takes the traffic that others send to that address.
#[test]
fn deny_service_external_ips_refuses_every_write_path() {
    let server =
        Server::with_flags(&["--engine=memory", "--enable-admission-plugins=DenyServiceExternalIPs"]);
    let mut admin = server.admin();
    let services = format!("{DEFAULT}/services");
    let service = |name: &str, addresses: &[&str]| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"ports": [{"port": 80}], "externalIPs": addresses}})
    };
    expect_forbidden(&admin.post(&services, &service("a", &["1.2.3.4"])), "external IPs");
    let mut created = admin.post(&services, &service("a", &[])).ok();
    created["spec"]["externalIPs"] = json!(["1.2.3.4"]);
    expect_forbidden(&admin.put(&format!("{services}/a"), &created), "external IPs");
    let patch = json!({"spec": {"externalIPs": ["1.2.3.4"]}});
    for language in ["merge", "strategic-merge"] {
        expect_forbidden(&admin.patch(&format!("{services}/a"), language, &patch), "external IPs");
    }
    let apply = [("Content-Type", "application/apply-patch+yaml")];
    let body = service("a", &["1.2.3.4"]).to_string();
    expect_forbidden(
        &admin.request("PATCH", &format!("{services}/a?fieldManager=m&force=true"), &apply, body.as_bytes()),
        "external IPs",
    );
    // The status subresource does not set them either.
    admin.patch(&format!("{services}/a/status"), "merge", &patch);
    assert_eq!(admin.get(&format!("{services}/a")).ok()["spec"].get("externalIPs"), None);
}

/// CVE-2021-25735: validating admission was shown an old Node that had some fields of the new one.
#[test]
fn admission_receives_unchanged_old_node() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {"a": "b"}},
        "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "taints": [{"key": "k", "effect": "NoSchedule"}]}});
    admin.post("/api/v1/nodes", &node).ok();
    let capacity = json!({"status": {"capacity": {"cpu": "1"}, "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}});
    admin.patch("/api/v1/nodes/n/status", "merge", &capacity).ok();
    let fields = ["metadata.labels", "metadata.annotations", "spec", "status"];
    let rules: Vec<Value> = fields.iter().map(|path| {
        json!({"expression": format!("object.{path} == oldObject.{path}"), "message": format!("{path} has changed")})
    }).collect();
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "fixed"}, "spec": {"validations": rules, "matchConstraints": {"resourceRules": [
            {"operations": ["UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["nodes", "nodes/status"]}]}}});
    admin.post(&format!("{POLICIES}/validatingadmissionpolicies"), &policy).ok();
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "fixed"}, "spec": {"policyName": "fixed", "validationActions": ["Deny"]}});
    admin.post(&format!("{POLICIES}/validatingadmissionpolicybindings"), &binding).ok();
    for (subresource, patch) in [
        ("", json!({"metadata": {"labels": {"a": "c"}}})),
        ("", json!({"metadata": {"labels": {"new": "c"}}})),
        ("", json!({"metadata": {"annotations": {"a": "c"}}})),
        ("", json!({"spec": {"unschedulable": true}})),
        ("", json!({"spec": {"taints": []}})),
        ("", json!({"spec": {"providerID": "x://y"}})),
        ("/status", json!({"status": {"capacity": {"cpu": "2"}}})),
        ("/status", json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.2"}]}})),
        ("/status", json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}})),
        ("/status", json!({"status": {"nodeInfo": {"machineID": "x"}}})),
    ] {
        let path = format!("/api/v1/nodes/n{subresource}");
        let response = admin.patch(&path, "merge", &patch);
        assert_eq!(response.status, 422, "{patch}: {}", response.text());
        assert!(response.text().contains("has changed"), "{patch}: {}", response.text());
        // The same as an update.
        let mut object = admin.get("/api/v1/nodes/n").ok();
        merge(&mut object, &patch);
        assert_eq!(admin.put(&path, &object).status, 422, "{patch}");
    }
}

fn merge(object: &mut Value, patch: &Value) {
    match patch.as_object() {
        Some(fields) => fields.iter().for_each(|(field, value)| merge(&mut object[field], value)),
        None => *object = patch.clone(),
    }
}

/// CVE-2021-25737: endpoints that lead to the machine of whoever uses them, or to its link.
#[test]
fn endpoints_refuse_loopback_and_link_local_addresses() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    for (family, address) in [
        ("IPv4", "127.0.0.1"),
        ("IPv4", "127.9.9.9"),
        ("IPv4", "169.254.169.254"),
        ("IPv4", "224.0.0.1"),
        ("IPv4", "0.0.0.0"),
        ("IPv6", "::1"),
        ("IPv6", "fe80::1"),
        ("IPv6", "ff02::1"),
        ("IPv6", "::ffff:127.0.0.1"),
    ] {
        let slice = |address: &str| {
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "s"},
            "addressType": family, "endpoints": [{"addresses": [address]}], "ports": []})
        };
        admin.post(slices, &slice(address)).expect_error(422, "Invalid");
        let valid_address = if family == "IPv4" { "10.0.0.1" } else { "fd00::1" };
        admin.post(slices, &slice(valid_address)).ok();
        let patch = json!({"endpoints": [{"addresses": [address]}]});
        admin.patch(&format!("{slices}/s"), "merge", &patch).expect_error(422, "Invalid");
        admin.delete(&format!("{slices}/s")).ok();
        let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "e"},
            "subsets": [{"addresses": [{"ip": address}], "ports": [{"port": 1}]}]});
        admin.post(&format!("{DEFAULT}/endpoints"), &endpoints).expect_error(422, "Invalid");
    }
}

/// A server whose account `server_with_limited_account` may mount only the secret `valid_address`.
fn server_with_limited_account() -> (Server, Client) {
    let server = Server::with_flags(&["--engine=memory", "--enable-admission-plugins=ServiceAccount"]);
    let mut admin = server.admin();
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "limited",
        "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}, "secrets": [{"name": "good"}]});
    admin.post(&format!("{DEFAULT}/serviceaccounts"), &account).ok();
    for name in ["good", "bad"] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
        admin.post(&format!("{DEFAULT}/secrets"), &secret).ok();
    }
    (server, admin)
}

/// The ways in which a container takes a secret into its environment.
fn environments(secret: &str) -> [(&'static str, Value); 2] {
    [
        ("env", json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}])),
        ("envFrom", json!([{"secretRef": {"name": secret}}])),
    ]
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"serviceAccountName": "limited",
        "containers": [{"name": "c", "image": "i"}], "initContainers": [{"name": "i", "image": "i"}]}})
}

/// CVE-2024-3177: an account whose secrets are limited, and a container that takes all of a secret with `envFrom`.
#[test]
fn mountable_secrets_limit_env_of_every_container() {
    let (server, mut admin) = server_with_limited_account();
    let pods = format!("{DEFAULT}/pods");
    for (secret, status) in [("good", 201), ("bad", 403)] {
        for (field, value) in environments(secret) {
            for list in ["containers", "initContainers"] {
                let mut pod = pod(&format!("{secret}-{}-{}", field.to_lowercase(), list.to_lowercase()));
                pod["spec"][list][0][field] = value.clone();
                let response = admin.post(&pods, &pod);
                assert_eq!(response.status, status, "{secret} {field} {list}: {}", response.text());
            }
        }
        let mut mounted = pod(&format!("{secret}-volume"));
        mounted["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": secret}}]);
        assert_eq!(admin.post(&pods, &mounted).status, status, "{secret}");
    }
    drop(server);
}

/// CVE-2023-2728: the same, by an ephemeral container that comes later.
#[test]
fn mountable_secrets_limit_ephemeral_containers() {
    let (server, mut admin) = server_with_limited_account();
    let path = format!("{DEFAULT}/pods/p/ephemeralcontainers");
    admin.post(&format!("{DEFAULT}/pods"), &pod("p")).ok();
    for (secret, status) in [("bad", 403), ("good", 200)] {
        for (index, (field, value)) in environments(secret).into_iter().enumerate() {
            let mut container = json!({"name": format!("{secret}-{index}"), "image": "i"});
            container[field] = value;
            let patch = json!({"spec": {"ephemeralContainers": [container]}});
            let response = admin.patch(&path, "strategic-merge", &patch);
            assert_eq!(response.status, status, "{secret} {field}: {}", response.text());
            let mut object = admin.get(&path).ok();
            let list = object["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
            let mut other_container = container.clone();
            other_container["name"] = json!(format!("{secret}-{index}-put"));
            object["spec"]["ephemeralContainers"] = [list, vec![other_container]].concat().into();
            assert_eq!(admin.put(&path, &object).status, status, "{secret} {field}");
        }
    }
    drop(server);
}

/// CVE-2023-2727: a policy about images that ephemeral containers evade. ImagePolicyWebhook is tested with the other plug-ins.
#[test]
fn image_policies_see_ephemeral_containers() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "images"}, "spec": {
            "validations": [{"expression": "!has(object.spec.ephemeralContainers) || object.spec.ephemeralContainers.all(c, c.image != 'bad')", "message": "no such image"}],
            "matchConstraints": {"resourceRules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["pods", "pods/ephemeralcontainers"]}]}}});
    admin.post(&format!("{POLICIES}/validatingadmissionpolicies"), &policy).ok();
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "images"}, "spec": {"policyName": "images", "validationActions": ["Deny"]}});
    admin.post(&format!("{POLICIES}/validatingadmissionpolicybindings"), &binding).ok();
    let mut plain_pod = pod("p");
    plain_pod["spec"].as_object_mut().unwrap().remove("serviceAccountName");
    admin.post(&format!("{DEFAULT}/pods"), &plain_pod).ok();
    let path = format!("{DEFAULT}/pods/p/ephemeralcontainers");
    let add = |image: &str, capabilities: &[&str]| {
        let context = json!({"capabilities": {"add": capabilities}});
        json!({"spec": {"ephemeralContainers": [{"name": image, "image": image, "securityContext": context}]}})
    };
    let response = admin.patch(&path, "strategic-merge", &add("bad", &[]));
    assert!(response.status == 422 && response.text().contains("no such image"), "{}", response.text());
    // Pod security sees them, too.
    let level = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    admin.patch("/api/v1/namespaces/default", "merge", &level).ok();
    expect_forbidden(
        &admin.patch(&path, "strategic-merge", &add("good", &["SYS_ADMIN"])),
        "violates PodSecurity",
    );
    admin.patch(&path, "strategic-merge", &add("good", &[])).ok();
    // A pod cannot be created with them.
    let mut pod_with_ephemeral = plain_pod.clone();
    pod_with_ephemeral["metadata"]["name"] = json!("early");
    pod_with_ephemeral["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "good"}]);
    assert!((400..500).contains(&admin.post(&format!("{DEFAULT}/pods"), &pod_with_ephemeral).status));
}
