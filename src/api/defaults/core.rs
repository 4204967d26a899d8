//! The core group.

use super::{add_missing, items_mut, set_if_absent};
use crate::api::value::Value;
use crate::api::words;

/// How long a client keeps its endpoint, in seconds.
const AFFINITY_SECONDS: i64 = 10_800;

pub(super) fn pod(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec") else { return };
    pod_spec(spec);
    set_if_absent(spec, "enableServiceLinks", true);
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool) == Some(true);
    for list in ["containers", "initContainers"] {
        for container in items_mut(spec, list) {
            if let Some(resources) = container.get_mut("resources") {
                add_missing(resources, "limits", "requests");
            }
            if !host_network {
                continue;
            }
            for port in items_mut(container, "ports") {
                if let Some(number) = port.get("containerPort").and_then(Value::as_int) {
                    set_if_absent(port, "hostPort", number);
                }
            }
        }
    }
}

/// What every pod spec gets, also inside a template.
pub(super) fn pod_spec(spec: &mut Value) {
    set_if_absent(spec, "securityContext", Value::object());
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in items_mut(spec, list) {
            let policy = pull_policy(container.str("image"));
            set_if_absent(container, "imagePullPolicy", policy);
        }
    }
    for volume in items_mut(spec, "volumes") {
        let has_source = volume
            .fields()
            .is_some_and(|fields| fields.iter().any(|(key, source)| key != "name" && !source.is_null()));
        if !has_source {
            volume.set("emptyDir", Value::object());
        }
        host_path(volume);
        if let Some(image) = volume.get_mut("image") {
            let policy = pull_policy(image.str("reference"));
            set_if_absent(image, "pullPolicy", policy);
        }
    }
}

fn host_path(volume: &mut Value) {
    if let Some(path) = volume.get_mut("hostPath").filter(|path| !path.is_null()) {
        set_if_absent(path, "type", "");
    }
}

/// The pod spec of a template under `template`.
pub(super) fn template(owner: Option<&mut Value>) {
    let spec =
        owner.and_then(|owner| owner.get_mut("template")).and_then(|template| template.get_mut("spec"));
    if let Some(spec) = spec {
        pod_spec(spec);
    }
}

pub(super) fn pod_template(object: &mut Value) {
    template(Some(object));
}

/// An image that may change under its name is pulled every time.
fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let (name, tag) = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (name, None),
    };
    let path = match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => path,
        _ => name,
    };
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-/".contains(&byte);
    let readable = !path.is_empty() && path.bytes().all(good);
    let newest = tag == Some("latest") || (tag.is_none() && digest.is_none());
    if readable && newest { "Always" } else { "IfNotPresent" }
}

pub(super) fn service(service: &mut Value) {
    let Some(spec) = service.get_mut("spec") else { return };
    if spec.str("sessionAffinity") == "ClientIP" {
        let timeout = spec.at(&["sessionAffinityConfig", "clientIP", "timeoutSeconds"]);
        if timeout.is_none() {
            let mut config = Value::object();
            config.entry("clientIP").set("timeoutSeconds", AFFINITY_SECONDS);
            spec.set("sessionAffinityConfig", config);
        }
    } else if spec.str("sessionAffinity") == "None" {
        spec.remove("sessionAffinityConfig");
    }
    for port in items_mut(spec, "ports") {
        let unset = matches!(port.get("targetPort"), None | Some(Value::Int(0)))
            || port.get("targetPort").and_then(Value::as_str) == Some("");
        if unset && let Some(number) = port.get("port").and_then(Value::as_int) {
            port.set("targetPort", number);
        }
    }
    let kind = spec.str("type").to_owned();
    let external = !spec.get("externalIPs").map_or(&[][..], Value::items).is_empty();
    if matches!(kind.as_str(), "LoadBalancer" | "NodePort") || (kind == "ClusterIP" && external) {
        set_if_absent(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "ExternalName" {
        spec.remove("internalTrafficPolicy");
    }
    if kind == "LoadBalancer" {
        set_if_absent(spec, "allocateLoadBalancerNodePorts", true);
        let balancer = service.get_mut("status").and_then(|status| status.get_mut("loadBalancer"));
        for ingress in balancer.map(|balancer| items_mut(balancer, "ingress")).into_iter().flatten() {
            if !ingress.str("ip").is_empty() {
                set_if_absent(ingress, "ipMode", "VIP");
            }
        }
    }
}

pub(super) fn replication_controller(controller: &mut Value) {
    let labels = controller.at(&["spec", "template", "metadata", "labels"]).cloned();
    if let Some(labels) = labels {
        set_if_absent(controller.entry("spec"), "selector", labels.clone());
        set_if_absent(controller.entry("metadata"), "labels", labels);
    }
    template(controller.get_mut("spec"));
}

pub(super) fn persistent_volume(volume: &mut Value) {
    let spec = volume.entry("spec");
    set_if_absent(spec, "persistentVolumeReclaimPolicy", "Retain");
    set_if_absent(spec, "volumeMode", "Filesystem");
    host_path(spec);
}

pub(super) fn namespace(namespace: &mut Value) {
    let name = namespace.get("metadata").map_or("", |metadata| metadata.str("name")).to_owned();
    if !name.is_empty() {
        namespace.entry("metadata").entry("labels").set(words::NAMESPACE_NAME_LABEL, name);
    }
}

pub(super) fn node(node: &mut Value) {
    if let Some(status) = node.get_mut("status")
        && status.get("allocatable").is_none()
        && let Some(capacity) = status.get("capacity").cloned()
    {
        status.set("allocatable", capacity);
    }
}

pub(super) fn limit_range(range: &mut Value) {
    let Some(spec) = range.get_mut("spec") else { return };
    for item in items_mut(spec, "limits") {
        if item.str("type") == "Container" {
            add_missing(item, "max", "default");
            add_missing(item, "default", "defaultRequest");
            add_missing(item, "min", "defaultRequest");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::defaulted;
    use super::*;

    #[test]
    fn a_small_pod_grows_to_what_people_know() {
        let body = r#"{"spec":{"hostNetwork":true,"volumes":[{"name":"v"},{"name":"h","hostPath":{"path":"/x"}}],
            "containers":[{"name":"c","image":"nginx","ports":[{"containerPort":80}],
                "resources":{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"500m"}}}]}}"#;
        let pod = defaulted("", "v1", "Pod", body);
        let spec = pod.get("spec").unwrap();
        assert_eq!(spec.get("securityContext"), Some(&Value::object()));
        assert_eq!(spec.get("enableServiceLinks"), Some(&Value::Bool(true)));
        assert_eq!(spec.str("restartPolicy"), "Always");
        let container = &spec.get("containers").unwrap().items()[0];
        assert_eq!(container.str("imagePullPolicy"), "Always");
        assert_eq!(container.get("ports").unwrap().items()[0].get("hostPort"), Some(&Value::Int(80)));
        assert_eq!(container.at(&["resources", "requests", "memory"]), Some(&Value::from("1Gi")));
        assert_eq!(container.at(&["resources", "requests", "cpu"]), Some(&Value::from("500m")));
        let volumes = spec.get("volumes").unwrap().items();
        assert_eq!(volumes[0].get("emptyDir"), Some(&Value::object()));
        assert_eq!(volumes[1].at(&["hostPath", "type"]), Some(&Value::from("")));
        assert_eq!(volumes[1].get("emptyDir"), None);
    }

    #[test]
    fn images_that_may_change_are_always_pulled() {
        for image in ["nginx", "nginx:latest", "a.b:5000/nginx", "localhost/x:latest", "x:latest@sha256:0"] {
            assert_eq!(pull_policy(image), "Always", "{image}");
        }
        for image in ["nginx:1", "nginx@sha256:0", "", "Nginx", "a.b:5000/nginx:1"] {
            assert_eq!(pull_policy(image), "IfNotPresent", "{image}");
        }
    }

    #[test]
    fn services_differ_by_type() {
        let plain = defaulted("", "v1", "Service", r#"{"spec":{"ports":[{"port":80}]}}"#);
        let spec = plain.get("spec").unwrap();
        assert_eq!((spec.str("type"), spec.str("sessionAffinity")), ("ClusterIP", "None"));
        assert_eq!(spec.str("internalTrafficPolicy"), "Cluster");
        let port = &spec.get("ports").unwrap().items()[0];
        assert_eq!((port.str("protocol"), port.get("targetPort")), ("TCP", Some(&Value::Int(80))));
        let balancer = defaulted(
            "",
            "v1",
            "Service",
            r#"{"spec":{"type":"LoadBalancer","sessionAffinity":"ClientIP"}}"#,
        );
        let spec = balancer.get("spec").unwrap();
        assert_eq!(spec.str("externalTrafficPolicy"), "Cluster");
        assert_eq!(spec.get("allocateLoadBalancerNodePorts"), Some(&Value::Bool(true)));
        let timeout = spec.at(&["sessionAffinityConfig", "clientIP", "timeoutSeconds"]);
        assert_eq!(timeout, Some(&Value::Int(AFFINITY_SECONDS)));
        let external = defaulted("", "v1", "Service", r#"{"spec":{"type":"ExternalName"}}"#);
        assert_eq!(external.at(&["spec", "internalTrafficPolicy"]), None);
    }

    #[test]
    fn labels_and_limits_are_passed_on() {
        let body = r#"{"spec":{"template":{"metadata":{"labels":{"a":"b"}}}}}"#;
        let controller = defaulted("", "v1", "ReplicationController", body);
        assert_eq!(controller.at(&["spec", "selector", "a"]), Some(&Value::from("b")));
        assert_eq!(controller.at(&["metadata", "labels", "a"]), Some(&Value::from("b")));
        let body = r#"{"spec":{"limits":[{"type":"Container","max":{"cpu":"1"},"min":{"memory":"1Mi"}}]}}"#;
        let range = defaulted("", "v1", "LimitRange", body);
        let item = &range.at(&["spec", "limits"]).unwrap().items()[0];
        assert_eq!(item.at(&["default", "cpu"]), Some(&Value::from("1")));
        assert_eq!(item.at(&["defaultRequest", "memory"]), Some(&Value::from("1Mi")));
        let namespace = defaulted("", "v1", "Namespace", r#"{"metadata":{"name":"n"}}"#);
        assert_eq!(
            namespace.at(&["metadata", "labels", words::NAMESPACE_NAME_LABEL]),
            Some(&Value::from("n"))
        );
        let node = defaulted("", "v1", "Node", r#"{"status":{"capacity":{"cpu":"1.0001"}}}"#);
        assert_eq!(node.at(&["status", "allocatable", "cpu"]), Some(&Value::from("1001m")));
        let volume = defaulted("", "v1", "PersistentVolume", r#"{"spec":{"hostPath":{"path":"/x"}}}"#);
        assert_eq!(volume.at(&["spec", "persistentVolumeReclaimPolicy"]), Some(&Value::from("Retain")));
        assert_eq!(volume.at(&["spec", "hostPath", "type"]), Some(&Value::from("")));
    }
}
