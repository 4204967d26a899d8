//! Defaults of pods and pod templates.

use std::collections::BTreeSet;

use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::field_value::{fill, fill_text, items_mut, mirror_first, present_mut};
use pilothouse_apimachinery::value::Value;

use super::image;

const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The former annotations with init containers, which old kubelets would still read.
const OLD_INIT_CONTAINERS: [&str; 4] = [
    "pod.alpha.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.beta.kubernetes.io/init-containers",
];

/// Removes the annotations of [`OLD_INIT_CONTAINERS`].
fn drop_old_annotations(object: &mut Value) {
    let Some(metadata) = present_mut(object, "metadata") else { return };
    let Some(annotations) = present_mut(metadata, "annotations") else { return };
    let mut removed = false;
    for key in OLD_INIT_CONTAINERS {
        removed |= annotations.remove(key).is_some();
    }
    if removed && annotations.fields().is_some_and(|fields| fields.is_empty()) {
        metadata.remove("annotations");
    }
}

/// The defaults of a pod.
pub fn default_pod(object: &mut Value) {
    drop_old_annotations(object);
    if let Some(status) = present_mut(object, "status") {
        mirror_first(status, "podIP", "podIPs", Some("ip"));
    }
    let spec = object.entry("spec");
    default_pod_spec(spec);
    fill(spec, "enableServiceLinks", true);
    // A negative value, stored before it was validated, becomes 1. Templates keep it.
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_int).is_some_and(|seconds| seconds < 0) {
        spec.set("terminationGracePeriodSeconds", 1);
    }
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool).unwrap_or_default();
    for list in ["containers", "initContainers"] {
        for container in items_mut(spec, list) {
            default_requests(container);
            if host_network {
                default_host_ports(container);
            }
        }
    }
}

/// The defaults of a PodSpec.
pub fn default_pod_spec(spec: &mut Value) {
    fill(spec, "securityContext", Value::object());
    sync_service_account(spec);
    for list in CONTAINER_LISTS {
        for container in items_mut(spec, list) {
            if container.str("imagePullPolicy").is_empty() {
                let policy = pull_policy(container.str("image"));
                container.set("imagePullPolicy", policy);
            }
        }
    }
    for volume in items_mut(spec, "volumes") {
        default_volume(volume);
    }
}

/// The defaults of the pod template in a field of `object`.
pub fn default_template(object: &mut Value, field: &str) {
    if let Some(template) = present_mut(object, field) {
        drop_old_annotations(template);
        default_pod_spec(template.entry("spec"));
    }
}

/// Drops empty label maps from the metadata of ephemeral claim templates.
pub fn drop_empty_labels(spec: &mut Value) {
    for volume in items_mut(spec, "volumes").iter_mut().filter(|volume| volume.get("ephemeral").is_some()) {
        let template =
            present_mut(volume, "ephemeral").and_then(|source| present_mut(source, "volumeClaimTemplate"));
        let Some(metadata) = template.and_then(|template| present_mut(template, "metadata")) else {
            continue;
        };
        for field in ["labels", "annotations"] {
            if metadata.get(field).and_then(Value::fields).is_some_and(|fields| fields.is_empty()) {
                metadata.remove(field);
            }
        }
    }
}

/// If the feature is disabled, drops image volumes and their mounts, unless the old pod had image volumes.
pub fn drop_image_volumes(spec: &mut Value, old_spec: Option<&Value>, features: EnabledFeatures) {
    fn image_volumes(spec: &Value) -> impl Iterator<Item = &Value> {
        let volumes = spec.get("volumes").map(Value::items).unwrap_or_default();
        volumes.iter().filter(|volume| volume.get("image").is_some())
    }
    if features.has(Feature::ImageVolume)
        || old_spec.is_some_and(|old_spec| image_volumes(old_spec).next().is_some())
    {
        return;
    }
    let names: BTreeSet<String> = image_volumes(spec).map(|volume| volume.str("name").to_owned()).collect();
    if names.is_empty() {
        return;
    }
    let retain_others = |object: &mut Value, field: &str| {
        if let Some(Value::Array(items)) = object.get_mut(field) {
            items.retain(|item| !names.contains(item.str("name")));
            if items.is_empty() {
                object.remove(field);
            }
        }
    };
    retain_others(spec, "volumes");
    for list in CONTAINER_LISTS {
        for container in items_mut(spec, list) {
            retain_others(container, "volumeMounts");
        }
    }
}

/// serviceAccount and serviceAccountName are the same for historical reasons; both are always printed.
fn sync_service_account(spec: &mut Value) {
    let account = match (spec.str("serviceAccountName"), spec.str("serviceAccount")) {
        ("", "") => return,
        ("", old) => old.to_owned(),
        (account, _) => account.to_owned(),
    };
    spec.set("serviceAccountName", account.clone());
    spec.set("serviceAccount", account);
}

/// A volume without a source is an empty directory.
fn default_volume(volume: &mut Value) {
    let has_no_source = volume
        .fields()
        .is_none_or(|fields| fields.iter().all(|(key, value)| key == "name" || value.is_null()));
    if has_no_source {
        volume.set("emptyDir", Value::object());
    }
    if let Some(path) = present_mut(volume, "hostPath") {
        fill(path, "type", "");
    }
}

/// Sets the default pull policy of image volumes.
pub fn default_image_volumes(spec: &mut Value) {
    for image in items_mut(spec, "volumes").iter_mut().filter_map(|volume| present_mut(volume, "image")) {
        let policy = pull_policy(image.str("reference"));
        fill_text(image, "pullPolicy", policy);
    }
}

/// Requests default to limits.
fn default_requests(container: &mut Value) {
    let Some(resources) = present_mut(container, "resources") else { return };
    let Some(limits) = resources.get("limits").cloned() else { return };
    let requests = resources.entry("requests");
    for (name, amount) in limits.fields().into_iter().flatten() {
        fill(requests, name, amount.clone());
    }
}

/// With hostNetwork, hostPort defaults to containerPort.
fn default_host_ports(container: &mut Value) {
    for port in items_mut(container, "ports") {
        let number = port.get("containerPort").and_then(Value::as_int).unwrap_or_default();
        if port.get("hostPort").and_then(Value::as_int).unwrap_or_default() == 0 && number != 0 {
            port.set("hostPort", number);
        }
    }
}

/// The default pull policy: Always for the tag `latest`.
fn pull_policy(image: &str) -> &'static str {
    if image::is_latest(image) { "Always" } else { "IfNotPresent" }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn pull_policy_is_always_for_latest_images() {
        let table = [
            ("img", "Always"),
            ("img:latest", "Always"),
            ("reg.example:5000/a/img", "Always"),
            ("img:1", "IfNotPresent"),
            ("reg.example:5000/a/img:1", "IfNotPresent"),
            ("img@sha256:aa", "IfNotPresent"),
            ("", "IfNotPresent"),
            ("UPPER", "IfNotPresent"),
        ];
        for (image, expected) in table {
            assert_eq!(pull_policy(image), expected, "{image}");
        }
    }

    #[test]
    fn default_pod_sets_all_defaults_and_is_idempotent() {
        let mut pod = object(
            r#"{"spec":{"hostNetwork":true,"serviceAccount":"a","volumes":[{"name":"v"},{"name":"h","hostPath":{"path":"/x"}}],
                "containers":[{"name":"c","image":"i:1","ports":[{"containerPort":80}],
                    "resources":{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"500m"}}}]}}"#,
        );
        default_pod(&mut pod);
        let expected = object(
            r#"{"spec":{"hostNetwork":true,"serviceAccount":"a","serviceAccountName":"a","enableServiceLinks":true,
                "securityContext":{},
                "volumes":[{"name":"v","emptyDir":{}},{"name":"h","hostPath":{"path":"/x","type":""}}],
                "containers":[{"name":"c","image":"i:1","imagePullPolicy":"IfNotPresent",
                    "ports":[{"containerPort":80,"hostPort":80}],
                    "resources":{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"500m","memory":"1Gi"}}}]}}"#,
        );
        assert_eq!(pod, expected);
        default_pod(&mut pod);
        assert_eq!(pod, expected, "idempotent");
    }

    #[test]
    fn disabled_image_volumes_are_dropped_with_their_mounts() {
        let spec = object(
            r#"{"volumes":[{"name":"i","image":{"reference":"x"}},{"name":"e","emptyDir":{}}],
                "containers":[{"name":"c","volumeMounts":[{"name":"i"}]},{"name":"d","volumeMounts":[{"name":"e"}]}]}"#,
        );
        let dropped = |old: Option<&Value>, features| {
            let mut spec = spec.clone();
            drop_image_volumes(&mut spec, old, features);
            spec
        };
        let expected = object(
            r#"{"volumes":[{"name":"e","emptyDir":{}}],
                "containers":[{"name":"c"},{"name":"d","volumeMounts":[{"name":"e"}]}]}"#,
        );
        assert_eq!(dropped(None, EnabledFeatures::RELEASE), expected);
        assert_eq!(dropped(Some(&expected), EnabledFeatures::RELEASE), expected);
        assert_eq!(dropped(Some(&spec), EnabledFeatures::RELEASE), spec);
        assert_eq!(dropped(None, EnabledFeatures::RELEASE.with(Feature::ImageVolume)), spec);
    }

    #[test]
    fn defaults_fix_grace_period_of_pods_and_drop_init_container_annotations() {
        let old = "pod.beta.kubernetes.io/init-containers";
        for (seconds, expected) in [(-1, 1), (-9, 1), (0, 0), (7, 7)] {
            let mut pod = object(&format!(
                r#"{{"metadata":{{"annotations":{{"{old}":"[]"}}}},"spec":{{"terminationGracePeriodSeconds":{seconds}}}}}"#
            ));
            default_pod(&mut pod);
            assert_eq!(pod.get_path(&["spec", "terminationGracePeriodSeconds"]), Some(&Value::Int(expected)));
            assert_eq!(pod.get_path(&["metadata", "annotations"]), None);
        }
        let mut object_with_template = object(&format!(
            r#"{{"template":{{"metadata":{{"annotations":{{"{old}":"[]","a":"b"}}}},"spec":{{"terminationGracePeriodSeconds":-1}}}}}}"#
        ));
        default_template(&mut object_with_template, "template");
        let defaulted = object_with_template.get("template").unwrap();
        assert_eq!(defaulted.get_path(&["metadata", "annotations"]), Some(&object(r#"{"a":"b"}"#)));
        assert_eq!(defaulted.get_path(&["spec", "terminationGracePeriodSeconds"]), Some(&Value::Int(-1)));
    }

    #[test]
    fn template_gets_fewer_defaults_than_a_pod() {
        let mut object_with_template = object(
            r#"{"template":{"spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":"1"}}}]}}}"#,
        );
        default_template(&mut object_with_template, "template");
        let spec = object_with_template.get_path(&["template", "spec"]).unwrap();
        assert_eq!(spec.get("enableServiceLinks"), None);
        assert_eq!(spec.get("securityContext"), Some(&Value::object()));
        assert_eq!(spec.get("containers").unwrap().items()[0].get_path(&["resources", "requests"]), None);
    }
}
