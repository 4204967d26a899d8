//! One APIService for every group version that this server serves itself.

use std::collections::BTreeSet;

use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::API_REGISTRATION_GROUP;

use super::{BootstrapObject, object_with_name};
use crate::aggregation::Priorities;

/// A version and its `versionPriority`.
type VersionPriority = (&'static str, i64);

/// The group, its `groupPriorityMinimum`, and its versions.
const PRIORITIES: &[(&str, i64, &[VersionPriority])] = &[
    ("", 18_000, &[("v1", 1)]),
    ("apps", 17_800, &[("v1", 15)]),
    ("events.k8s.io", 17_750, &[("v1", 15), ("v1beta1", 5)]),
    ("authentication.k8s.io", 17_700, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("authorization.k8s.io", 17_600, &[("v1", 15)]),
    ("autoscaling", 17_500, &[("v1", 15), ("v2", 30)]),
    ("batch", 17_400, &[("v1", 15)]),
    ("certificates.k8s.io", 17_300, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("networking.k8s.io", 17_200, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("policy", 17_100, &[("v1", 15)]),
    ("rbac.authorization.k8s.io", 17_000, &[("v1", 15)]),
    ("storage.k8s.io", 16_800, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("apiextensions.k8s.io", 16_700, &[("v1", 15)]),
    ("admissionregistration.k8s.io", 16_700, &[("v1", 15), ("v1beta1", 12), ("v1alpha1", 9)]),
    ("scheduling.k8s.io", 16_600, &[("v1", 15)]),
    ("coordination.k8s.io", 16_500, &[("v1", 15), ("v1beta1", 13), ("v1alpha2", 12)]),
    ("node.k8s.io", 16_300, &[("v1", 15)]),
    ("discovery.k8s.io", 16_200, &[("v1", 15)]),
    ("resource.k8s.io", 16_200, &[("v1beta2", 15), ("v1beta1", 9), ("v1alpha3", 1)]),
    ("flowcontrol.apiserver.k8s.io", 16_100, &[("v1", 21)]),
    ("internal.apiserver.k8s.io", 16_000, &[("v1alpha1", 9)]),
];

/// The label on APIServices that the server itself manages.
pub const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// The value of [`MANAGED`] for versions of custom resources.
pub const MANAGED_CUSTOM: &str = "true";

/// The value of [`MANAGED`] for built-in versions: the server writes their APIServices once, at start.
pub const ON_START: &str = "onstart";
/// The `versionPriority` of custom resources.
pub const CUSTOM_VERSION_PRIORITY: i64 = 100;

/// The APIServices for these versions. A version that is not in the table gets none.
pub fn all<'a>(versions: impl Iterator<Item = &'a GroupVersion>) -> Vec<BootstrapObject> {
    let versions: BTreeSet<(&str, &str)> =
        versions.map(|gv| (gv.group.as_ref(), gv.version.as_ref())).collect();
    versions.into_iter().filter_map(|(group, version)| builtin_service(group, version)).collect()
}

fn builtin_service(group: &str, version: &str) -> Option<BootstrapObject> {
    let (_, group_priority, versions) = PRIORITIES.iter().find(|row| row.0 == group)?;
    let (_, version_priority) = versions.iter().find(|row| row.0 == version)?;
    let priorities = Priorities { group: *group_priority, version: *version_priority };
    Some(service(group, version, ON_START, priorities))
}

/// The `versionPriority` of a built-in version; `None` for others.
pub fn version_priority(group: &str, version: &str) -> Option<i64> {
    let (.., versions) = PRIORITIES.iter().find(|row| row.0 == group)?;
    versions.iter().find(|row| row.0 == version).map(|row| row.1)
}

/// The APIService for a version of custom resources: lower in priority than all built-in groups.
pub fn custom_api_service(version: &GroupVersion) -> BootstrapObject {
    let priorities = Priorities { group: 1_000, version: CUSTOM_VERSION_PRIORITY };
    service(&version.group, &version.version, MANAGED_CUSTOM, priorities)
}

fn service(group: &str, version: &str, managed: &str, priorities: Priorities) -> BootstrapObject {
    let mut object =
        object_with_name("apiregistration.k8s.io/v1", "APIService", &format!("{version}.{group}"));
    object.entry("metadata").entry("labels").set(MANAGED, managed);
    let spec = object.entry("spec");
    if !group.is_empty() {
        spec.set("group", group);
    }
    spec.set("version", version);
    spec.set("groupPriorityMinimum", priorities.group);
    spec.set("versionPriority", priorities.version);
    BootstrapObject { group: API_REGISTRATION_GROUP, resource: "apiservices", object }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::meta;

    use super::*;
    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;

    #[test]
    fn every_served_version_except_apiregistration_has_an_api_service() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let services = all(catalog.resources().map(|resource| &resource.gv));
        let names: BTreeSet<&str> = services.iter().map(|service| meta::name(&service.object)).collect();
        assert!(names.contains("v1.") && names.contains("v2.autoscaling"));
        for resource in catalog.resources() {
            let name = format!("{}.{}", resource.gv.version, resource.gv.group);
            assert_eq!(
                names.contains(name.as_str()),
                &*resource.gv.group != API_REGISTRATION_GROUP,
                "{name}"
            );
        }
    }
}
