//! The fields that a write cannot set, because the kind restores them: the writer does not own them.

/// Reset fields by group, kind and subresource.
type Exception = ((&'static str, &'static str, &'static str), &'static [&'static [&'static str]]);

const SPEC: &[&str] = &["spec"];
const STATUS: &[&str] = &["status"];
const METADATA: &[&str] = &["metadata"];

/// Kinds that differ from the rule "spec or status".
const EXCEPTIONS: [Exception; 17] = [
    (("", "Namespace", "finalize"), &[STATUS]),
    (("", "Pod", "status"), &[SPEC, &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]]),
    (("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", "status"), &[SPEC, METADATA]),
    (("apiextensions.k8s.io", "CustomResourceDefinition", "status"), &[SPEC, METADATA]),
    (("apiregistration.k8s.io", "APIService", "status"), &[SPEC, METADATA]),
    (("apps", "Deployment", "status"), &[SPEC, &["metadata", "labels"]]),
    (("certificates.k8s.io", "CertificateSigningRequest", ""), &[SPEC, STATUS]),
    (("certificates.k8s.io", "CertificateSigningRequest", "status"), &[SPEC, &["status", "conditions"]]),
    (("certificates.k8s.io", "CertificateSigningRequest", "approval"), &[SPEC, &["status", "certificate"]]),
    (("flowcontrol.apiserver.k8s.io", "FlowSchema", "status"), &[SPEC, METADATA]),
    (("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", "status"), &[SPEC, METADATA]),
    (("internal.apiserver.k8s.io", "StorageVersion", "status"), &[SPEC, METADATA]),
    (("networking.k8s.io", "ServiceCIDR", ""), &[]),
    (("networking.k8s.io", "ServiceCIDR", "status"), &[]),
    (("storage.k8s.io", "VolumeAttachment", "status"), &[SPEC, METADATA]),
    (("storagemigration.k8s.io", "StorageVersionMigration", "status"), &[SPEC, METADATA]),
    (("", "Pod", "ephemeralcontainers"), &[STATUS]),
];

/// The fields that a write to the object or a subresource cannot set.
pub fn reset_fields(
    group: &str,
    kind: &str,
    subresource: &str,
    has_status: bool,
) -> &'static [&'static [&'static str]] {
    let exception = EXCEPTIONS.iter().find(|(key, _)| *key == (group, kind, subresource));
    match (exception, subresource) {
        (Some((_, fields)), _) => fields,
        (None, "") if has_status => &[STATUS],
        (None, "status") => &[SPEC],
        _ => &[],
    }
}

/// [`reset_fields`] for custom resources.
pub fn custom_reset_fields(subresource: &str, has_status: bool) -> &'static [&'static [&'static str]] {
    match subresource {
        "" if has_status => &[STATUS],
        "status" => &[SPEC],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_and_status_writes_reset_the_other() {
        assert!(reset_fields("", "ConfigMap", "", false).is_empty());
        assert_eq!(reset_fields("apps", "StatefulSet", "", true), [STATUS]);
        assert_eq!(reset_fields("apps", "StatefulSet", "status", true), [SPEC]);
        assert_eq!(reset_fields("apps", "Deployment", "status", true), [SPEC, &["metadata", "labels"]]);
        assert!(reset_fields("apps", "Deployment", "scale", true).is_empty());
    }
}
