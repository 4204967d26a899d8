//! Manifests: objects as a user would write them.

use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::LAST_APPLIED;

use crate::commands::object_stream::resource::split_api_version;

/// Fields of the metadata that a server sets. Owners are among them, because their UIDs mean nothing in another cluster: its
/// garbage collector would delete the objects at once.
const SERVER_FIELDS: [&str; 9] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
    "ownerReferences",
];

/// The manifest of an object.
pub(super) fn from_object(mut object: Value) -> Value {
    object.remove("status");
    if let Some(metadata) = object.get_mut("metadata") {
        for field in SERVER_FIELDS {
            metadata.remove(field);
        }
        if let Some(annotations) = metadata.get_mut("annotations") {
            // kubectl adds it again.
            annotations.remove(LAST_APPLIED);
            if annotations.fields().is_some_and(|fields| fields.is_empty()) {
                metadata.remove("annotations");
            }
        }
    }
    let (group, _) = split_api_version(object.str("apiVersion"));
    if (group, object.str("kind")) == ("", "Service") {
        remove_addresses(&mut object);
    }
    object
}

/// Another cluster has other addresses, except for a Service that has none on purpose.
fn remove_addresses(service: &mut Value) {
    let Some(spec) = service.get_mut("spec") else { return };
    if spec.str("clusterIP") != "None" {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    #[test]
    fn manifest_has_only_fields_of_users() {
        let manifest = |text: &str| {
            let object = from_object(yaml::read(text.as_bytes()).unwrap());
            String::from_utf8(yaml::to_yaml(object)).unwrap()
        };
        assert_eq!(
            manifest(
                "apiVersion: v1
kind: Service
metadata:
  name: a
  uid: u
  generation: 3
  ownerReferences: [{uid: x}]
  annotations: {kubectl.kubernetes.io/last-applied-configuration: '{}'}
spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], type: ClusterIP}
status: {loadBalancer: {}}
"
            ),
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\nspec:\n  type: ClusterIP\n"
        );
        let headless =
            manifest("{apiVersion: v1, kind: Service, spec: {clusterIP: None, clusterIPs: [None]}}");
        assert!(headless.contains("clusterIP: None"), "{headless}");
    }
}
