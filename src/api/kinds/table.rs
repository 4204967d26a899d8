//! Every built-in kind that differs from the generic one, and how.

use super::core::{
    address, config, endpoints, event, limits, namespace, node, persistent_volume, pod, pod_default,
    pod_status, pod_warn, replication, service, service_account, service_change, template, volume_claim,
};
use super::{
    Again, BASE, FirstDeletion, Generation, KindRules, MetaAgain, StatusMeta, admission, admission_policy,
    apps, autoscaling, batch, certificates, definition, devices, discovery, flowcontrol, migration,
    networking, policy, rbac, registration, small, storage,
};
use crate::api::names;

const BOTH: MetaAgain = MetaAgain::WholeAndChange;
/// A kind whose spec moves the generation.
const COUNTED: KindRules = KindRules { generation: Generation::SPEC, meta_again: BOTH, ..BASE };
/// Where a controller says what its pods are like.
const TEMPLATE: &[&str] = &["spec", "template", "spec"];
/// A kind without a generation.
const PLAIN: KindRules = KindRules { meta_again: BOTH, ..BASE };
/// A kind that must be read before it is written.
const GUARDED: KindRules = KindRules { unconditional_update: false, ..PLAIN };
/// A kind of the admission group.
const ADMISSION: KindRules = KindRules {
    unconditional_update: false,
    known_finalizers: false,
    generation: Generation::SPEC,
    default: admission::default_policy,
    meta_again: MetaAgain::Whole,
    ..BASE
};
/// Webhooks are counted as a whole.
const WEBHOOKS: KindRules = KindRules {
    generation: Generation { moves_with: &[&["webhooks"]], empty_lists_count: true, ..Generation::FIRST },
    default: admission::default_webhooks,
    validate: admission::validate_webhooks,
    validate_update: admission::validate_webhooks_update,
    ..ADMISSION
};
/// Roles and bindings. All of this group is checked as new and as changed.
const RBAC: KindRules = KindRules {
    name: rbac::name,
    create_on_update: true,
    meta_again: MetaAgain::WholeTwiceAndChange,
    ..PLAIN
};
/// Events of the core have any name, and hardly anything is said about their metadata.
const EVENT: KindRules = KindRules {
    name: names::path_segment,
    known_finalizers: false,
    create_on_update: true,
    meta_again: MetaAgain::No,
    collected: false,
    validate: event::validate,
    again: Again::Once,
    ..BASE
};
/// Events of their own group are looked at more closely.
const NEW_EVENT: KindRules = KindRules {
    create_on_update: true,
    collected: false,
    validate: event::validate_new,
    validate_update: event::validate_new_update,
    ..BASE
};

/// Group, kind, rules.
pub static TABLE: &[(&str, &str, KindRules)] = &[
    (
        "",
        "Pod",
        KindRules {
            pods_at: &["spec"],
            warn_given: pod::warn_given,
            graceful: true,
            status_meta: StatusMeta::Without(&["ownerReferences"]),
            default: pod_default::pod,
            prepare_create: pod::prepare_create,
            prepare_status: pod_status::prepare,
            validate: pod::validate,
            validate_update: pod::validate_update,
            validate_status: pod_status::validate,
            warn: pod_warn::pod,
            warn_status: pod_warn::status,
            ..COUNTED
        },
    ),
    (
        "",
        "PodTemplate",
        KindRules {
            pods_at: &["template", "spec"],
            generation: Generation { moves_with: &[&["template"]], ..Generation::FIRST },
            default: template::default,
            validate: template::validate_object,
            again: Again::Once,
            warn: template::warn_object,
            meta_again: MetaAgain::Change,
            ..BASE
        },
    ),
    (
        "",
        "ConfigMap",
        KindRules {
            validate: config::validate_config_map,
            validate_update: config::validate_config_map_update,
            ..PLAIN
        },
    ),
    (
        "",
        "Secret",
        KindRules {
            default: config::default_secret,
            prepare_update: config::prepare_secret_update,
            validate: config::validate_secret,
            validate_update: config::validate_secret_update,
            warn: config::warn_secret,
            ..PLAIN
        },
    ),
    (
        "",
        "Service",
        KindRules {
            name: names::dns_1035_name,
            create_on_update: true,
            default: service::default,
            finish: Some(service::drop_inner_policy),
            prepare_update: service::prepare_update,
            validate: service::validate,
            validate_update: service::validate_update,
            validate_status: service_change::validate_status,
            warn: service_change::warn,
            warn_status: address::warn_balanced,
            ..PLAIN
        },
    ),
    (
        "",
        "ServiceAccount",
        KindRules {
            prepare_create: service_account::prepare_create,
            prepare_update: service_account::prepare_update,
            warn: service_account::warn,
            ..PLAIN
        },
    ),
    (
        "",
        "Namespace",
        KindRules {
            name: names::label_name,
            first_deletion: FirstDeletion::MarksWithDependents,
            holds: namespace::holds,
            terminate: namespace::terminate,
            default: namespace::default,
            prepare_create: namespace::prepare_create,
            prepare_update: namespace::prepare_update,
            validate: namespace::validate,
            again: Again::Once,
            validate_status: namespace::validate_status,
            ..PLAIN
        },
    ),
    (
        "",
        "Node",
        KindRules {
            status_on_create: true,
            default: node::default,
            prepare_create: node::prepare_create,
            prepare_update: node::prepare_update,
            prepare_status: node::prepare_status,
            validate_status: node::validate_change,
            warn: node::warn,
            validate: node::validate,
            again: Again::Once,
            validate_update: node::validate_change,
            ..PLAIN
        },
    ),
    (
        "",
        "PersistentVolume",
        KindRules {
            default: persistent_volume::default,
            prepare_create: persistent_volume::prepare,
            prepare_status: persistent_volume::prepare_status,
            validate: persistent_volume::validate,
            again: Again::Once,
            validate_update: persistent_volume::validate_update,
            prepare_update: persistent_volume::prepare_update,
            warn: persistent_volume::warn,
            meta_again: MetaAgain::WholeTwice,
            ..BASE
        },
    ),
    (
        "",
        "PersistentVolumeClaim",
        KindRules {
            prepare_create: volume_claim::prepare_claim,
            finish: Some(volume_claim::finish_claim),
            prepare_update: volume_claim::prepare_claim_update,
            prepare_status: volume_claim::prepare_claim_status,
            validate_status: volume_claim::validate_claim_status,
            validate: volume_claim::validate_claim,
            validate_update: volume_claim::validate_claim_update,
            warn: volume_claim::warn_claim,
            meta_again: MetaAgain::WholeTwiceAndChange,
            ..BASE
        },
    ),
    (
        "",
        "Endpoints",
        KindRules {
            create_on_update: true,
            validate: endpoints::validate,
            validate_update: endpoints::validate_update,
            warn: endpoints::warn,
            ..PLAIN
        },
    ),
    ("", "Event", EVENT),
    ("events.k8s.io", "Event", NEW_EVENT),
    (
        "",
        "LimitRange",
        KindRules {
            create_on_update: true,
            default: limits::default_range,
            prepare_create: limits::prepare_range,
            validate: limits::validate_range,
            again: Again::Once,
            meta_again: MetaAgain::Whole,
            ..BASE
        },
    ),
    (
        "",
        "ResourceQuota",
        KindRules {
            meta_again: MetaAgain::Change,
            validate: limits::validate_quota,
            validate_update: limits::validate_quota_update,
            validate_status: limits::validate_quota_status,
            ..BASE
        },
    ),
    (
        "",
        "ReplicationController",
        KindRules {
            pods_at: TEMPLATE,
            orphans: true,
            default: replication::default,
            finish: Some(replication::default),
            validate: replication::validate,
            again: Again::Twice,
            validate_status: replication::validate_status,
            warn: replication::warn,
            ..COUNTED
        },
    ),
    (
        "apps",
        "Deployment",
        KindRules {
            pods_at: TEMPLATE,
            generation: Generation {
                moves_with: &[&["spec"], &["metadata", "annotations"]],
                ..Generation::FIRST
            },
            status_meta: StatusMeta::Without(&["labels"]),
            default: apps::default_deployment,
            prepare_status: apps::prepare_replicas_status,
            validate: apps::validate_deployment,
            again: Again::Once,
            validate_update: apps::same_selector,
            validate_status: apps::validate_deployment_status,
            warn: apps::warn_named,
            meta_again: MetaAgain::Change,
            ..BASE
        },
    ),
    (
        "apps",
        "ReplicaSet",
        KindRules {
            pods_at: TEMPLATE,
            default: apps::default_replica_set,
            prepare_status: apps::prepare_replicas_status,
            validate: apps::validate_replica_set,
            again: Again::Twice,
            validate_update: apps::same_selector,
            validate_status: apps::validate_replica_set_status,
            warn: apps::warn_named,
            ..COUNTED
        },
    ),
    (
        "apps",
        "StatefulSet",
        KindRules {
            pods_at: TEMPLATE,
            name: names::label_name,
            default: apps::default_stateful_set,
            prepare_create: apps::prepare_stateful_set,
            prepare_update: apps::prepare_stateful_set_update,
            validate: apps::validate_stateful_set,
            validate_update: apps::validate_stateful_set_update,
            validate_status: apps::validate_stateful_set_status,
            warn: apps::warn_stateful_set,
            meta_again: MetaAgain::Change,
            ..COUNTED
        },
    ),
    (
        "apps",
        "DaemonSet",
        KindRules {
            pods_at: TEMPLATE,
            default: apps::default_daemon_set,
            prepare_create: apps::prepare_daemon_set,
            prepare_update: apps::prepare_daemon_set_update,
            prepare_status: apps::prepare_daemon_set_status,
            validate: apps::validate_daemon_set,
            again: Again::Twice,
            validate_update: apps::same_selector,
            validate_status: apps::validate_daemon_set_status,
            warn: apps::warn_daemon_set,
            ..COUNTED
        },
    ),
    (
        "apps",
        "ControllerRevision",
        KindRules {
            validate: apps::validate_revision,
            validate_update: apps::validate_revision_update,
            ..PLAIN
        },
    ),
    (
        "batch",
        "Job",
        KindRules {
            pods_at: TEMPLATE,
            finish: Some(batch::job::take_labels),
            orphans: true,
            warn_on_delete: Some(batch::job::WARN_ON_DELETE),
            default: batch::job::default,
            prepare_create: batch::job::prepare_create,
            validate: batch::job::validate,
            validate_update: batch::job::validate_update,
            validate_status: batch::job_status::validate,
            warn: batch::job::warn,
            ..COUNTED
        },
    ),
    (
        "batch",
        "CronJob",
        KindRules {
            pods_at: &["spec", "jobTemplate", "spec", "template", "spec"],
            status_again: MetaAgain::No,
            default: batch::cron_job::default,
            validate: batch::cron_job::validate,
            validate_update: batch::cron_job::validate_update,
            warn: batch::cron_job::warn,
            meta_again: MetaAgain::Change,
            ..COUNTED
        },
    ),
    (
        "autoscaling",
        "HorizontalPodAutoscaler",
        KindRules {
            default: autoscaling::default,
            prepare_create: autoscaling::prepare_create,
            prepare_update: autoscaling::prepare_update,
            validate: autoscaling::validate,
            validate_update: autoscaling::validate_update,
            validate_status: autoscaling::validate_status,
            meta_again: MetaAgain::Change,
            ..BASE
        },
    ),
    (
        "policy",
        "PodDisruptionBudget",
        KindRules {
            status_again: MetaAgain::No,
            name: names::path_segment,
            known_finalizers: false,
            unconditional_update: false,
            validate: policy::validate,
            again: Again::Once,
            validate_status: policy::validate_status,
            meta_again: MetaAgain::No,
            ..COUNTED
        },
    ),
    (
        "networking.k8s.io",
        "Ingress",
        KindRules {
            validate: networking::validate_ingress,
            validate_update: networking::validate_ingress_update,
            validate_status: networking::validate_ingress_status,
            warn: networking::warn_ingress,
            warn_status: address::warn_balanced,
            ..COUNTED
        },
    ),
    (
        "networking.k8s.io",
        "IngressClass",
        KindRules {
            validate: networking::validate_ingress_class,
            validate_update: networking::validate_ingress_class_update,
            ..COUNTED
        },
    ),
    (
        "networking.k8s.io",
        "NetworkPolicy",
        KindRules {
            generation: Generation { empty_lists_count: true, ..Generation::SPEC },
            default: networking::default_policy,
            validate: networking::validate_policy,
            again: Again::Twice,
            warn: networking::warn_policy,
            ..COUNTED
        },
    ),
    (
        "networking.k8s.io",
        "IPAddress",
        KindRules {
            prefix_is_name: true,
            name: names::ip_name,
            validate: networking::validate_address,
            again: Again::Once,
            validate_update: networking::validate_address_update,
            ..PLAIN
        },
    ),
    (
        "networking.k8s.io",
        "ServiceCIDR",
        KindRules {
            status_meta: StatusMeta::Fixed,
            validate: networking::validate_service_cidr,
            validate_update: networking::validate_service_cidr_update,
            // Nothing of it is put back, neither for who makes one nor for who changes it.
            status_on_create: true,
            status_on_update: true,
            meta_again: MetaAgain::Change,
            ..BASE
        },
    ),
    (
        "discovery.k8s.io",
        "EndpointSlice",
        KindRules {
            generation: Generation::FIRST,
            prepare_create: discovery::prepare_create,
            prepare_update: discovery::prepare_update,
            validate: discovery::validate,
            validate_update: discovery::validate_update,
            warn: discovery::warn,
            meta_again: MetaAgain::Whole,
            ..BASE
        },
    ),
    (
        "rbac.authorization.k8s.io",
        "Role",
        KindRules { validate: rbac::validate_role, again: Again::Twice, ..RBAC },
    ),
    (
        "rbac.authorization.k8s.io",
        "ClusterRole",
        KindRules { validate: rbac::validate_cluster_role, again: Again::Twice, ..RBAC },
    ),
    (
        "rbac.authorization.k8s.io",
        "RoleBinding",
        KindRules {
            default: rbac::default_binding,
            validate: rbac::validate_binding,
            again: Again::Twice,
            validate_update: rbac::same_role,
            ..RBAC
        },
    ),
    (
        "rbac.authorization.k8s.io",
        "ClusterRoleBinding",
        KindRules {
            default: rbac::default_binding,
            validate: rbac::validate_cluster_binding,
            again: Again::Twice,
            validate_update: rbac::same_role,
            ..RBAC
        },
    ),
    (
        "coordination.k8s.io",
        "Lease",
        KindRules {
            create_on_update: true,
            known_finalizers: false,
            prepare_create: small::prepare_lease,
            prepare_update: small::prepare_lease_update,
            validate: small::validate_lease,
            again: Again::Once,
            meta_again: MetaAgain::Change,
            ..GUARDED
        },
    ),
    (
        "coordination.k8s.io",
        "LeaseCandidate",
        KindRules {
            name: small::candidate_name,
            create_on_update: true,
            known_finalizers: false,
            validate: small::validate_candidate,
            again: Again::Once,
            validate_update: small::validate_candidate_update,
            meta_again: MetaAgain::Change,
            ..GUARDED
        },
    ),
    (
        "scheduling.k8s.io",
        "PriorityClass",
        KindRules {
            generation: Generation::FIRST,
            validate: small::validate_priority,
            validate_update: small::validate_priority_update,
            keep: small::keep_priority,
            meta_again: MetaAgain::Change,
            ..BASE
        },
    ),
    (
        "node.k8s.io",
        "RuntimeClass",
        KindRules {
            create_on_update: true,
            known_finalizers: false,
            validate: small::validate_runtime,
            again: Again::Once,
            validate_update: small::validate_runtime_update,
            warn: small::warn_runtime,
            ..GUARDED
        },
    ),
    (
        "storage.k8s.io",
        "StorageClass",
        KindRules {
            validate: storage::validate_class,
            again: Again::Once,
            validate_update: storage::validate_class_update,
            warn: storage::warn_class,
            ..PLAIN
        },
    ),
    (
        "storage.k8s.io",
        "CSIDriver",
        KindRules {
            generation: Generation { starts: false, ..Generation::SPEC },
            prepare_create: storage::prepare_driver,
            prepare_update: storage::prepare_driver_update,
            validate: storage::validate_driver,
            again: Again::Once,
            validate_update: storage::validate_driver_update,
            meta_again: MetaAgain::Change,
            ..GUARDED
        },
    ),
    (
        "storage.k8s.io",
        "CSINode",
        KindRules {
            validate: storage::validate_csi_node,
            again: Again::Twice,
            validate_update: storage::validate_csi_node_update,
            meta_again: MetaAgain::WholeTwice,
            ..GUARDED
        },
    ),
    (
        "storage.k8s.io",
        "CSIStorageCapacity",
        KindRules {
            validate: storage::validate_capacity,
            again: Again::Once,
            validate_update: storage::validate_capacity_update,
            warn: storage::warn_capacity,
            ..GUARDED
        },
    ),
    (
        "storage.k8s.io",
        "VolumeAttachment",
        KindRules {
            status_meta: StatusMeta::Fixed,
            validate: storage::validate_attachment,
            validate_update: storage::validate_attachment_update,
            prepare_status: storage::prepare_attachment_status,
            validate_status: storage::validate_attachment_update,
            status_again: MetaAgain::WholeTwice,
            meta_again: MetaAgain::WholeTwice,
            ..GUARDED
        },
    ),
    (
        "storage.k8s.io",
        "VolumeAttributesClass",
        KindRules {
            validate: storage::validate_attributes_class,
            validate_update: storage::validate_attributes_class_update,
            ..PLAIN
        },
    ),
    (
        "storagemigration.k8s.io",
        "StorageVersionMigration",
        KindRules {
            status_meta: StatusMeta::Fixed,
            validate: migration::validate,
            again: Again::Once,
            validate_update: migration::validate_update,
            validate_status: migration::validate_status,
            ..GUARDED
        },
    ),
    (
        "internal.apiserver.k8s.io",
        "StorageVersion",
        KindRules {
            name: names::group_resource_name,
            status_meta: StatusMeta::Fixed,
            validate_status: migration::validate_stored_status,
            status_again: MetaAgain::No,
            meta_again: MetaAgain::No,
            ..GUARDED
        },
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        "FlowSchema",
        KindRules {
            status_meta: StatusMeta::Kept,
            validate: flowcontrol::validate_schema,
            again: Again::Once,
            validate_status: flowcontrol::validate_status,
            meta_again: MetaAgain::Whole,
            ..COUNTED
        },
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        "PriorityLevelConfiguration",
        KindRules {
            status_meta: StatusMeta::Kept,
            validate: flowcontrol::validate_level,
            again: Again::Once,
            validate_status: flowcontrol::validate_status,
            meta_again: MetaAgain::Whole,
            ..COUNTED
        },
    ),
    (
        "certificates.k8s.io",
        "CertificateSigningRequest",
        KindRules {
            name: names::path_segment,
            prepare_create: certificates::prepare_create,
            prepare_update: certificates::prepare_update,
            prepare_status: certificates::prepare_status,
            validate: certificates::validate,
            validate_update: certificates::validate_update,
            validate_status: certificates::validate_status,
            status_again: BOTH,
            ..PLAIN
        },
    ),
    (
        "certificates.k8s.io",
        "ClusterTrustBundle",
        KindRules {
            name: names::path_segment,
            validate: certificates::validate_bundle,
            validate_update: certificates::validate_bundle_update,
            ..GUARDED
        },
    ),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", WEBHOOKS),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", WEBHOOKS),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicy",
        KindRules {
            status_again: MetaAgain::No,
            status_meta: StatusMeta::Fixed,
            validate: admission_policy::validate_validating,
            validate_update: admission_policy::validate_validating_update,
            validate_status: admission_policy::validate_status,
            ..ADMISSION
        },
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicyBinding",
        KindRules {
            validate: admission_policy::validate_validating_binding,
            again: Again::Once,
            ..ADMISSION
        },
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicy",
        KindRules {
            validate: admission_policy::validate_mutating,
            validate_update: admission_policy::validate_mutating_update,
            ..ADMISSION
        },
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicyBinding",
        KindRules { validate: admission_policy::validate_mutating_binding, again: Again::Once, ..ADMISSION },
    ),
    (
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        KindRules {
            own_name: definition::own_name,
            known_finalizers: false,
            unconditional_update: false,
            default: definition::default,
            finish: Some(definition::default),
            prepare_create: definition::prepare_create,
            prepare_update: definition::prepare_update,
            first_deletion: FirstDeletion::Marks,
            terminate: definition::terminate,
            validate: definition::validate,
            validate_update: definition::validate_update,
            validate_status: definition::validate_status,
            meta_again: MetaAgain::Change,
            ..COUNTED
        },
    ),
    (
        "apiregistration.k8s.io",
        "APIService",
        KindRules {
            own_name: registration::own_name,
            name: names::path_segment,
            known_finalizers: false,
            unconditional_update: false,
            status_meta: StatusMeta::Without(&["labels", "annotations", "finalizers", "ownerReferences"]),
            prepare_create: registration::prepare_service,
            validate: registration::validate_service,
            again: Again::Once,
            validate_status: registration::validate_service_status,
            ..PLAIN
        },
    ),
    (
        "resource.k8s.io",
        "ResourceClaim",
        KindRules {
            status_meta: StatusMeta::Fixed,
            default: devices::default_claim,
            validate: devices::validate_claim,
            validate_update: devices::validate_claim_update,
            validate_status: devices::validate_claim_status,
            ..PLAIN
        },
    ),
    (
        "resource.k8s.io",
        "ResourceClaimTemplate",
        KindRules {
            default: devices::default_template,
            validate: devices::validate_template,
            validate_update: devices::validate_template_update,
            ..PLAIN
        },
    ),
    (
        "resource.k8s.io",
        "ResourceSlice",
        KindRules {
            validate: devices::validate_slice,
            validate_update: devices::validate_slice_update,
            ..COUNTED
        },
    ),
    (
        "resource.k8s.io",
        "DeviceClass",
        KindRules { validate: devices::validate_class, again: Again::Twice, ..COUNTED },
    ),
    (
        "resource.k8s.io",
        "DeviceTaintRule",
        KindRules { validate: devices::validate_taint_rule, again: Again::Once, ..COUNTED },
    ),
];

/// Group and kind of what a finished deletion shows as it last was. Other kinds answer with a Status.
pub static SHOWN_WHEN_DELETED: &[(&str, &str)] = &[
    ("", "Namespace"),
    ("", "PersistentVolume"),
    ("", "PersistentVolumeClaim"),
    ("", "Pod"),
    ("", "PodTemplate"),
    ("", "ResourceQuota"),
    ("", "Service"),
    ("", "ServiceAccount"),
    ("resource.k8s.io", "DeviceClass"),
    ("resource.k8s.io", "DeviceTaintRule"),
    ("resource.k8s.io", "ResourceClaim"),
    ("resource.k8s.io", "ResourceClaimTemplate"),
    ("resource.k8s.io", "ResourceSlice"),
    ("storage.k8s.io", "CSIDriver"),
    ("storage.k8s.io", "CSINode"),
    ("storage.k8s.io", "StorageClass"),
    ("storage.k8s.io", "VolumeAttachment"),
    ("storage.k8s.io", "VolumeAttributesClass"),
];

#[cfg(test)]
mod tests {
    use super::super::rules;
    use super::TABLE;

    #[test]
    fn each_kind_stands_once() {
        for (index, row) in TABLE.iter().enumerate() {
            let again = TABLE.iter().skip(index + 1).any(|other| (row.0, row.1) == (other.0, other.1));
            assert!(!again, "{}/{} stands twice", row.0, row.1);
        }
    }

    #[test]
    fn a_put_creates_and_overwrites_only_where_it_may() {
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
            assert_eq!((rules.create_on_update, rules.unconditional_update), (creates, overwrites), "{kind}");
        }
    }
}
