//! Objects that belong to the cluster they are in, and are made anew in another one.

use pilothouse_api::bootstrap::api_services::MANAGED as API_SERVICE_MANAGED;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::{FLOW_AUTO_UPDATE, MIRROR};
use pilothouse_apimachinery::well_known::labels::{ADDRESS_MANAGED_BY, BOOTSTRAPPING, SERVER_IDENTITY};
use pilothouse_apimachinery::well_known::{
    ACCOUNT_TOKEN_TYPE, API_REGISTRATION_GROUP, NETWORKING_GROUP, ROOT_CERTIFICATE, SYSTEM_NAMESPACE,
    SYSTEM_NAMESPACES,
};

use super::resource::{annotation, label, namespace, split_api_version};

/// Why an object cannot be taken to another cluster; `None` if it can.
pub(crate) fn reason_to_leave(object: &Value) -> Option<&'static str> {
    let (group, _) = split_api_version(object.str("apiVersion"));
    let (namespace, name) = (namespace(object), meta::name(object));
    match (group, object.str("kind")) {
        ("", "ConfigMap") if name == ROOT_CERTIFICATE => Some("the CA of a cluster"),
        ("", "ConfigMap")
            if (namespace, name) == (SYSTEM_NAMESPACE, "extension-apiserver-authentication") =>
        {
            Some("the CAs of a cluster")
        }
        ("", "ConfigMap")
            if (namespace, name)
                == (SYSTEM_NAMESPACE, "kube-apiserver-legacy-service-account-token-tracking") =>
        {
            Some("since when a server has recorded the use of tokens")
        }
        ("", "Service" | "Endpoints") | ("discovery.k8s.io", "EndpointSlice")
            if (namespace, name) == ("default", "kubernetes") =>
        {
            Some("the address of an API server")
        }
        ("", "Pod") if !annotation(object, MIRROR).is_empty() => Some("mirrors of static pods"),
        ("coordination.k8s.io", "Lease") if !label(object, SERVER_IDENTITY).is_empty() => {
            Some("leases of API servers")
        }
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            Some("certificate signing requests, which are in the name of whoever creates them")
        }
        (API_REGISTRATION_GROUP, "APIService") if !label(object, API_SERVICE_MANAGED).is_empty() => {
            Some("APIServices that every server makes for itself")
        }
        (NETWORKING_GROUP, "IPAddress") if !label(object, ADDRESS_MANAGED_BY).is_empty() => {
            Some("addresses that are allocated again for their Services")
        }
        (NETWORKING_GROUP, "ServiceCIDR") if name == "kubernetes" => {
            Some("the address range of a server's flags")
        }
        _ => None,
    }
}

/// Why an object is no part of a manifest; `None` if it is one that a user has made.
pub(crate) fn reason_to_omit(object: &Value) -> Option<&'static str> {
    let (group, _) = split_api_version(object.str("apiVersion"));
    let owners = meta::metadata(object).get("ownerReferences").map(Value::items).unwrap_or_default();
    let is_controller = |owner: &Value| owner.get("controller").and_then(Value::as_bool) == Some(true);
    if owners.iter().any(is_controller) {
        return Some("made by a controller for another object");
    }
    if meta::is_terminating(object) {
        return Some("being deleted");
    }
    let is_own = match (group, object.str("kind"), meta::name(object)) {
        ("", "Namespace", name) => SYSTEM_NAMESPACES.contains(&name),
        ("", "ServiceAccount", name) => name == "default",
        ("", "Secret", _) => object.str("type") == ACCOUNT_TOKEN_TYPE,
        ("", "Event", _) | ("events.k8s.io", "Event", _) | ("coordination.k8s.io", "Lease", _) => true,
        ("scheduling.k8s.io", "PriorityClass", name) => name.starts_with("system-"),
        _ => !label(object, BOOTSTRAPPING).is_empty() || annotation(object, FLOW_AUTO_UPDATE) == "true",
    };
    if is_own { Some("made by the cluster itself") } else { reason_to_leave(object) }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    fn object(text: &str) -> Value {
        yaml::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn objects_of_the_cluster_are_left_behind() {
        for text in [
            "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: a, name: kube-root-ca.crt}}",
            "{apiVersion: v1, kind: Service, metadata: {namespace: default, name: kubernetes}}",
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: default, name: kubernetes}}",
            "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}}",
            "{apiVersion: v1, kind: Pod, metadata: {namespace: a, name: b, annotations: {kubernetes.io/config.mirror: x}}}",
        ] {
            assert!(reason_to_leave(&object(text)).is_some(), "{text}");
        }
        for text in [
            "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: a, name: b}}",
            "{apiVersion: v1, kind: Service, metadata: {namespace: a, name: kubernetes}}",
            "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: kube-node-lease, name: n}}",
            "{apiVersion: networking.k8s.io/v1, kind: IPAddress, metadata: {name: 10.0.0.1}}",
        ] {
            assert_eq!(reason_to_leave(&object(text)), None, "{text}");
        }
    }

    #[test]
    fn manifests_contain_what_users_made() {
        for text in [
            "{apiVersion: v1, kind: Pod, metadata: {name: a, ownerReferences: [{controller: true}]}}",
            "{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}",
            "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: view, labels: {kubernetes.io/bootstrapping: rbac-defaults}}}",
            "{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: a}}",
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, deletionTimestamp: \"2026-01-01T00:00:00Z\"}}",
        ] {
            assert!(reason_to_omit(&object(text)).is_some(), "{text}");
        }
        for text in [
            "{apiVersion: v1, kind: Pod, metadata: {name: a, ownerReferences: [{controller: false}]}}",
            "{apiVersion: v1, kind: Namespace, metadata: {name: a}}",
            "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: mine}}",
        ] {
            assert_eq!(reason_to_omit(&object(text)), None, "{text}");
        }
    }
}
