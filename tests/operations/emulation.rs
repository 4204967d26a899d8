//! Servers that emulate an earlier release.

use serde_json::{Value, json};

use crate::support::compare::text;
use crate::support::server::temp_directory;
use crate::support::{Client, Server};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A comprehension with two variables, which releases before 1.32 do not know.
const TWO_VARIABLES: &str = "!has(object.data) || object.data.all(k, v, v != 'bad')";

fn policy(name: &str, expression: &str) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["configmaps"]}]},
            "validations": [{"expression": expression}]}})
}

fn definition(plural: &str, rule: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "maxProperties": 5,
        "additionalProperties": {"type": "string", "maxLength": 9}, "x-kubernetes-validations": [{"rule": rule}]}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.harbour.test")}, "spec": {"group": "harbour.test", "scope": "Cluster",
            "names": {"plural": plural, "kind": plural},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": value}})
}

/// The versions of a group that discovery names.
fn versions(admin: &mut Client, group: &str) -> Vec<String> {
    let document = admin.get(&format!("/apis/{group}"));
    if document.status == 404 {
        return Vec::new();
    }
    let versions = document.json()["versions"].as_array().cloned().unwrap_or_default();
    versions.iter().map(|version| text(version, "/version").to_owned()).collect()
}

#[test]
fn emulated_release_decides_about_version_resources_and_gates() {
    for (release, minor, oldest) in [("1.31", "31", "31"), ("kube=1.32", "32", "31")] {
        let emulated = format!("--emulated-version={release}");
        let flags = [emulated.as_str(), "--runtime-config=api/beta=true"];
        let server = Server::with_flags(&flags);
        let mut admin = server.admin();
        let version = admin.get("/version").ok();
        assert_eq!((&version["minor"], &version["emulationMinor"]), (&json!("33"), &json!(minor)));
        assert_eq!(version["minCompatibilityMinor"], oldest);
        let names = admin.get("/apis/networking.k8s.io/v1").ok()["resources"].clone();
        let names: Vec<&str> = names.as_array().unwrap().iter().map(|entry| text(entry, "/name")).collect();
        assert!(names.contains(&"ingresses") && !names.contains(&"ipaddresses"), "{names:?}");
        assert_eq!(versions(&mut admin, "resource.k8s.io").contains(&"v1beta1".to_owned()), minor == "32");
        assert!(!versions(&mut admin, "resource.k8s.io").contains(&"v1beta2".to_owned()));
        let openapi = admin.get("/openapi/v3/apis/apps/v1").ok();
        assert_eq!(text(&openapi, "/info/version"), format!("1.{minor}"));
        let metrics = admin.get("/metrics").text();
        let is_known = |name: &str| metrics.contains(&format!("kubernetes_feature_enabled{{name=\"{name}\""));
        assert_eq!(is_known("MutatingAdmissionPolicy"), minor == "32");
        assert!(!is_known("DeclarativeValidation") && is_known("WatchList"));
    }
}

#[test]
fn settings_that_the_emulated_release_does_not_allow_are_refused() {
    let data = temp_directory();
    let table: [(&[&str], &str); 5] = [
        (&["--emulated-version=1.30"], "emulation version 1.30 is not between [1.31, 1.33.0]"),
        (
            &["--emulated-version=1.32", "--feature-gates=DeclarativeValidation=true"],
            "cannot set feature gate DeclarativeValidation to true, feature is PreAlpha at emulated version 1.32",
        ),
        (
            &["--emulated-version=1.32", "--feature-gates=SidecarContainers=false"],
            "cannot set feature gate SidecarContainers to false: this server always has it on",
        ),
        (
            &["--emulated-version=1.32", "--runtime-config=networking.k8s.io/v1/servicecidrs=true"],
            "cannot enable resource networking.k8s.io/v1, Resource=servicecidrs in runtime-config",
        ),
        (&["--emulation-forward-compatible"], "EmulationForwardCompatible cannot be set to true"),
    ];
    for (flags, reason) in table {
        let failure = Server::try_start_in(data.path(), flags).err().expect("the flags are refused");
        assert!(failure.stderr.contains(reason), "{}", failure.stderr);
    }
}

#[test]
fn expressions_of_later_releases_are_refused_when_new_and_run_when_stored() {
    let directory = temp_directory();
    let rule = "self.all(k, v, v != 'bad')";
    {
        let server = Server::start_on_file(directory.path(), &[]);
        let mut admin = server.admin();
        admin.post(POLICIES, &policy("stored", TWO_VARIABLES)).ok();
        let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "stored"},
            "spec": {"policyName": "stored", "validationActions": ["Deny"]}});
        admin.post(BINDINGS, &binding).ok();
        admin.post(DEFINITIONS, &definition("boats", rule)).ok();
        server.stop();
    }
    let server = Server::start_on_file(directory.path(), &["--emulated-version=1.32"]);
    let mut admin = server.admin();
    admin.post(MAPS, &map("good", "fine")).ok();
    let status = admin.post(MAPS, &map("bad", "bad")).expect_error(422, "Invalid");
    assert!(text(&status, "/message").contains("ValidatingAdmissionPolicy 'stored'"), "{status}");
    let status = admin.post(POLICIES, &policy("new", TWO_VARIABLES)).expect_error(422, "Invalid");
    assert!(text(&status, "/message").contains("undeclared reference"), "{status}");

    let boat = |value: &str| json!({"apiVersion": "harbour.test/v1", "kind": "boats", "metadata": {"name": "b"}, "spec": {"a": value}});
    admin.post("/apis/harbour.test/v1/boats", &boat("bad")).expect_error(422, "Invalid");
    admin.post("/apis/harbour.test/v1/boats", &boat("fine")).ok();
    let status = admin.post(DEFINITIONS, &definition("ships", rule)).expect_error(422, "Invalid");
    assert!(text(&status, "/message").contains("undeclared reference"), "{status}");
    let path = format!("{DEFINITIONS}/boats.harbour.test");
    let mut stored = admin.get(&path).ok();
    stored["metadata"]["labels"] = json!({"still": "valid"});
    admin.put(&path, &stored).ok();
}

fn service(name: &str, address: Option<&str>) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
}

/// The names of all objects of a collection.
fn names(admin: &mut Client, path: &str) -> Vec<String> {
    let items = admin.get(path).ok()["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| text(item, "/metadata/name").to_owned()).collect()
}

#[test]
fn cluster_ips_are_allocated_without_objects() {
    const SERVICES: &str = "/api/v1/namespaces/default/services";
    let flags = ["--feature-gates=MultiCIDRServiceAllocator=false", "--service-cluster-ip-range=10.0.0.0/29"];
    let directory = temp_directory();
    {
        let server = Server::start_on_file(directory.path(), &flags);
        let mut admin = server.admin();
        let created = admin.post(SERVICES, &service("a", Some("10.0.0.2"))).ok();
        assert_eq!(text(&created, "/spec/clusterIP"), "10.0.0.2");
        let status = admin.post(SERVICES, &service("b", Some("10.0.0.2"))).expect_error(422, "Invalid");
        assert!(text(&status, "/message").contains("provided IP is already allocated"), "{status}");
        let status = admin.post(SERVICES, &service("b", Some("10.9.0.2"))).expect_error(422, "Invalid");
        let reason =
            "the provided IP (10.9.0.2) is not in the valid range. The range of valid IPs is 10.0.0.0/29";
        assert!(text(&status, "/message").contains(reason), "{status}");
        assert_eq!(names(&mut admin, "/apis/networking.k8s.io/v1/ipaddresses"), [""; 0]);
        assert_eq!(names(&mut admin, "/apis/networking.k8s.io/v1/servicecidrs"), [""; 0]);
        server.stop();
    }
    let server = Server::start_on_file(directory.path(), &flags);
    let mut admin = server.admin();
    // Six addresses, of which the service kubernetes has one and `a` another.
    for name in ["c", "d", "e", "f"] {
        admin.post(SERVICES, &service(name, None)).ok();
    }
    let status = admin.post(SERVICES, &service("g", None)).expect_error(500, "InternalError");
    assert!(text(&status, "/message").contains("range is full"), "{status}");
    admin.delete(&format!("{SERVICES}/a")).ok();
    let created = admin.post(SERVICES, &service("g", None)).ok();
    assert_eq!(text(&created, "/spec/clusterIP"), "10.0.0.2");
}

#[test]
fn ranges_that_no_record_can_hold_are_refused_without_objects() {
    let data = temp_directory();
    let range = "--service-cluster-ip-range=10.0.0.0/16,fd00::/64";
    let flags = ["--feature-gates=MultiCIDRServiceAllocator=false", range];
    let failure = Server::try_start_in(data.path(), &flags).err().expect("the range is too large");
    let reason = "specified --service-cluster-ip-range[1] is too large; for 128-bit addresses, the mask must be >= 108";
    assert!(failure.stderr.contains(reason), "{}", failure.stderr);
}
