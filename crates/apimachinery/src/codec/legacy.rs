//! Kinds of earlier releases, so that a body of such a version gets the error "wrong version" and not "unknown kind".

use crate::schema::GroupVersionKind;

/// Group, version and the kinds that earlier releases had in them.
const REMOVED_KINDS: [(&str, &str, &[&str]); 25] = [
    ("admission.k8s.io", "v1beta1", &["AdmissionReview"]),
    ("apiextensions.k8s.io", "v1beta1", &["ConversionReview", "CustomResourceDefinition"]),
    ("apiregistration.k8s.io", "v1beta1", &["APIService"]),
    ("apps", "v1beta1", &["ControllerRevision", "Deployment", "DeploymentRollback", "Scale", "StatefulSet"]),
    (
        "apps",
        "v1beta2",
        &["ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "Scale", "StatefulSet"],
    ),
    ("authentication.k8s.io", "v1alpha1", &["SelfSubjectReview"]),
    ("authentication.k8s.io", "v1beta1", &["SelfSubjectReview", "TokenReview"]),
    (
        "authorization.k8s.io",
        "v1beta1",
        &[
            "LocalSubjectAccessReview",
            "SelfSubjectAccessReview",
            "SelfSubjectRulesReview",
            "SubjectAccessReview",
        ],
    ),
    ("autoscaling", "v2beta1", &["HorizontalPodAutoscaler"]),
    ("autoscaling", "v2beta2", &["HorizontalPodAutoscaler"]),
    ("batch", "v1beta1", &["CronJob"]),
    ("discovery.k8s.io", "v1beta1", &["EndpointSlice"]),
    ("events.k8s.io", "v1beta1", &["Event"]),
    (
        "extensions",
        "v1beta1",
        &["DaemonSet", "Deployment", "DeploymentRollback", "Ingress", "NetworkPolicy", "ReplicaSet", "Scale"],
    ),
    ("flowcontrol.apiserver.k8s.io", "v1beta1", &["FlowSchema", "PriorityLevelConfiguration"]),
    ("flowcontrol.apiserver.k8s.io", "v1beta2", &["FlowSchema", "PriorityLevelConfiguration"]),
    ("flowcontrol.apiserver.k8s.io", "v1beta3", &["FlowSchema", "PriorityLevelConfiguration"]),
    ("networking.k8s.io", "v1alpha1", &["IPAddress", "ServiceCIDR"]),
    ("node.k8s.io", "v1alpha1", &["RuntimeClass"]),
    ("node.k8s.io", "v1beta1", &["RuntimeClass"]),
    ("policy", "v1beta1", &["Eviction", "PodDisruptionBudget"]),
    ("rbac.authorization.k8s.io", "v1alpha1", &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]),
    ("rbac.authorization.k8s.io", "v1beta1", &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]),
    ("scheduling.k8s.io", "v1alpha1", &["PriorityClass"]),
    ("scheduling.k8s.io", "v1beta1", &["PriorityClass"]),
];

/// Groups between which kinds moved: an object of one is another version of the other.
const MOVED_GROUPS: [(&str, &str); 4] = [
    ("extensions", "apps"),
    ("extensions", "networking.k8s.io"),
    ("extensions", "policy"),
    ("", "events.k8s.io"),
];

/// Whether an earlier release had this kind.
pub fn is_known(kind: &GroupVersionKind) -> bool {
    REMOVED_KINDS.iter().any(|(group, version, kinds)| {
        *group == kind.group && *version == kind.version && kinds.contains(&kind.kind.as_str())
    })
}

/// Whether this is a kind that every group and version has.
pub fn is_everywhere(kind: &str) -> bool {
    matches!(kind, "Status" | "APIVersions" | "APIGroupList" | "APIGroup" | "APIResourceList")
}

/// Whether kinds of the same name in the two groups are the same kind.
pub fn is_same_family(left: &str, right: &str) -> bool {
    left == right || MOVED_GROUPS.contains(&(left, right)) || MOVED_GROUPS.contains(&(right, left))
}

/// The name of a group's scheme in messages.
pub fn scheme(group: &str) -> &'static str {
    match group {
        "apiextensions.k8s.io" => "k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go:55",
        "apiregistration.k8s.io" => "k8s.io/kube-aggregator/pkg/apiserver/scheme/scheme.go:28",
        _ => "pkg/api/legacyscheme/scheme.go:30",
    }
}
