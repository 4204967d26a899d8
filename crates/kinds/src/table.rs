//! The built-in kinds that differ from [`GENERIC`](super::GENERIC). Each kind's file begins with its [`KindRules`].

use super::core::{
    config_map, endpoints, event, limit_range, namespace, node, persistent_volume, pod, replication,
    resource_quota, secret, service, service_account, template, volume_claim,
};
use super::{
    KindRules, admission, admission_policy, api_service, apps, autoscaling, batch, certificates,
    coordination, definition, devices, discovery, flowcontrol, migration, networking, policy, rbac,
    scheduling, storage,
};

/// Group, kind, rules.
pub static TABLE: &[(&str, &str, KindRules)] = &[
    ("", "Pod", pod::RULES),
    ("", "PodTemplate", template::RULES),
    ("", "ConfigMap", config_map::RULES),
    ("", "Secret", secret::RULES),
    ("", "Service", service::RULES),
    ("", "ServiceAccount", service_account::RULES),
    ("", "Namespace", namespace::RULES),
    ("", "Node", node::RULES),
    ("", "PersistentVolume", persistent_volume::RULES),
    ("", "PersistentVolumeClaim", volume_claim::RULES),
    ("", "Endpoints", endpoints::RULES),
    ("", "Event", event::RULES),
    ("events.k8s.io", "Event", event::EVENTS_V1_RULES),
    ("", "LimitRange", limit_range::RULES),
    ("", "ResourceQuota", resource_quota::RULES),
    ("", "ReplicationController", replication::RULES),
    ("apps", "Deployment", apps::deployment::DEPLOYMENT),
    ("apps", "ReplicaSet", apps::deployment::REPLICA_SET),
    ("apps", "StatefulSet", apps::stateful_set::RULES),
    ("apps", "DaemonSet", apps::daemon_set::DAEMON_SET),
    ("apps", "ControllerRevision", apps::daemon_set::CONTROLLER_REVISION),
    ("batch", "Job", batch::job::RULES),
    ("batch", "CronJob", batch::cron_job::RULES),
    ("autoscaling", "HorizontalPodAutoscaler", autoscaling::RULES),
    ("policy", "PodDisruptionBudget", policy::RULES),
    ("networking.k8s.io", "Ingress", networking::ingress::INGRESS),
    ("networking.k8s.io", "IngressClass", networking::ingress::INGRESS_CLASS),
    ("networking.k8s.io", "NetworkPolicy", networking::policy::RULES),
    ("networking.k8s.io", "IPAddress", networking::service_cidr::IP_ADDRESS),
    ("networking.k8s.io", "ServiceCIDR", networking::service_cidr::SERVICE_CIDR),
    ("discovery.k8s.io", "EndpointSlice", discovery::RULES),
    ("rbac.authorization.k8s.io", "Role", rbac::ROLE),
    ("rbac.authorization.k8s.io", "ClusterRole", rbac::CLUSTER_ROLE),
    ("rbac.authorization.k8s.io", "RoleBinding", rbac::ROLE_BINDING),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding", rbac::CLUSTER_ROLE_BINDING),
    ("coordination.k8s.io", "Lease", coordination::LEASE),
    ("coordination.k8s.io", "LeaseCandidate", coordination::LEASE_CANDIDATE),
    ("scheduling.k8s.io", "PriorityClass", scheduling::PRIORITY_CLASS),
    ("node.k8s.io", "RuntimeClass", super::node::RUNTIME_CLASS),
    ("storage.k8s.io", "StorageClass", storage::STORAGE_CLASS),
    ("storage.k8s.io", "CSIDriver", storage::CSI_DRIVER),
    ("storage.k8s.io", "CSINode", storage::CSI_NODE),
    ("storage.k8s.io", "CSIStorageCapacity", storage::CSI_STORAGE_CAPACITY),
    ("storage.k8s.io", "VolumeAttachment", storage::VOLUME_ATTACHMENT),
    ("storage.k8s.io", "VolumeAttributesClass", storage::VOLUME_ATTRIBUTES_CLASS),
    ("storagemigration.k8s.io", "StorageVersionMigration", migration::STORAGE_VERSION_MIGRATION),
    ("internal.apiserver.k8s.io", "StorageVersion", migration::STORAGE_VERSION),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema", flowcontrol::FLOW_SCHEMA),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", flowcontrol::PRIORITY_LEVEL_CONFIGURATION),
    ("certificates.k8s.io", "CertificateSigningRequest", certificates::CERTIFICATE_SIGNING_REQUEST),
    ("certificates.k8s.io", "ClusterTrustBundle", certificates::CLUSTER_TRUST_BUNDLE),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", admission::WEBHOOKS),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", admission::WEBHOOKS),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicy",
        admission_policy::VALIDATING_ADMISSION_POLICY,
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicyBinding",
        admission_policy::VALIDATING_ADMISSION_POLICY_BINDING,
    ),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy", admission_policy::MUTATING_ADMISSION_POLICY),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicyBinding",
        admission_policy::MUTATING_ADMISSION_POLICY_BINDING,
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition", definition::RULES),
    ("apiregistration.k8s.io", "APIService", api_service::RULES),
    ("resource.k8s.io", "ResourceClaim", devices::claim::RESOURCE_CLAIM),
    ("resource.k8s.io", "ResourceClaimTemplate", devices::claim::RESOURCE_CLAIM_TEMPLATE),
    ("resource.k8s.io", "ResourceSlice", devices::slice::RULES),
    ("resource.k8s.io", "DeviceClass", devices::class::DEVICE_CLASS),
    ("resource.k8s.io", "DeviceTaintRule", devices::class::DEVICE_TAINT_RULE),
];

#[cfg(test)]
mod tests {
    use super::super::rules;
    use super::TABLE;

    #[test]
    fn table_has_each_kind_once() {
        for (index, row) in TABLE.iter().enumerate() {
            let is_duplicate = TABLE.iter().skip(index + 1).any(|other| (row.0, row.1) == (other.0, other.1));
            assert!(!is_duplicate, "{}/{} is listed twice", row.0, row.1);
        }
    }

    #[test]
    fn put_creates_and_overwrites_as_kind_rules_allow() {
        let table = [
            ("", "ConfigMap", false, true),
            ("", "Service", true, true),
            ("", "Endpoints", true, true),
            ("", "Event", true, true),
            ("", "LimitRange", true, true),
            ("coordination.k8s.io", "Lease", true, false),
            ("rbac.authorization.k8s.io", "Role", true, true),
            ("node.k8s.io", "RuntimeClass", true, false),
            ("policy", "PodDisruptionBudget", false, false),
            ("apiextensions.k8s.io", "CustomResourceDefinition", false, false),
            ("unknown.example", "Kite", false, false),
        ];
        for (group, kind, creates, overwrites) in table {
            let rules = rules(group, kind);
            assert_eq!(
                (rules.update.allows_create, rules.update.allows_unconditional),
                (creates, overwrites),
                "{kind}"
            );
        }
    }
}
