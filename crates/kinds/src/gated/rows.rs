//! The fields of each feature gate, as tables.

use pilothouse_apimachinery::features::Feature::*;

use super::Gated;

const fn gate(feature: crate::gated::Feature, fields: &'static [&'static str]) -> Gated {
    Gated::new(feature, fields)
}

/// PodSpecs of pods and pod templates.
pub const POD_SPEC: &[Gated] = &[
    gate(UserNamespacesSupport, &["hostUsers"]),
    gate(SupplementalGroupsPolicy, &["securityContext.supplementalGroupsPolicy"]),
    gate(PodLevelResources, &["resources"]).used_at(&["resources.requests", "resources.limits"]),
    gate(ProcMountType, &["containers*.securityContext.procMount"]).replaced_with("Default"),
    gate(MatchLabelKeysInPodTopologySpread, &["topologySpreadConstraints[].matchLabelKeys"]),
    gate(DynamicResourceAllocation, &["resourceClaims", "containers*.resources?.claims"])
        .used_at(&["resourceClaims"]),
    gate(ClusterTrustBundleProjection, &["volumes[].projected.sources[].clusterTrustBundle"]),
    gate(InPlacePodVerticalScaling, &["containers*.resizePolicy"]),
    gate(
        PodLifecycleSleepAction,
        &["containers*.lifecycle?.preStop?.sleep", "containers*.lifecycle?.postStart?.sleep"],
    ),
    gate(SELinuxChangePolicy, &["securityContext.seLinuxChangePolicy"]),
    gate(ContainerStopSignals, &["containers*.lifecycle?.stopSignal"]),
];

/// The status of pods. For some fields, the spec tells whether the feature is in use.
pub const POD: &[Gated] = &[
    gate(InPlacePodVerticalScaling, &["status.statuses*.resources", "status.statuses*.allocatedResources"])
        .used_at(&["spec.containers*.resizePolicy"]),
    gate(DynamicResourceAllocation, &["status.resourceClaimStatuses"]).used_at(&["spec.resourceClaims"]),
    gate(ResourceHealthStatus, &["status.statuses*.allocatedResourcesStatus"]).used_at(&[]),
    gate(SupplementalGroupsPolicy, &["status.statuses*.user"])
        .used_at(&["spec.securityContext.supplementalGroupsPolicy"]),
    gate(
        PodObservedGenerationTracking,
        &["status.observedGeneration", "status.conditions[].observedGeneration"],
    ),
];

/// Deployments and ReplicaSets.
pub const REPLICAS: &[Gated] =
    &[gate(DeploymentReplicaSetTerminatingReplicas, &["status.terminatingReplicas"])];

/// StatefulSets.
pub const STATEFUL_SET: &[Gated] =
    &[gate(MaxUnavailableStatefulSet, &["spec.updateStrategy.rollingUpdate.maxUnavailable"])];

/// HorizontalPodAutoscalers.
pub const AUTOSCALER: &[Gated] = &[gate(
    HPAConfigurableTolerance,
    &["spec.behavior.scaleUp.tolerance", "spec.behavior.scaleDown.tolerance"],
)];

/// Leases. Each field is gated by its own previous value.
pub const LEASE: &[Gated] = &[
    gate(CoordinatedLeaderElection, &["spec.strategy"]),
    gate(CoordinatedLeaderElection, &["spec.preferredHolder"]),
];

/// EndpointSlices.
pub const ENDPOINT_SLICE: &[Gated] = &[gate(PreferSameTrafficDistribution, &["endpoints[].hints.forNodes"])];

/// PersistentVolumes.
pub const VOLUME: &[Gated] = &[gate(VolumeAttributesClass, &["spec.volumeAttributesClassName"])];

/// PersistentVolumeClaims, but not the templates in other kinds.
pub const VOLUME_CLAIM: &[Gated] = &[
    gate(VolumeAttributesClass, &["spec.volumeAttributesClassName"]),
    gate(VolumeAttributesClass, &["status.currentVolumeAttributesClassName"]),
    gate(VolumeAttributesClass, &["status.modifyVolumeStatus"]),
    gate(RecoverVolumeExpansionFailure, &["status.allocatedResources"]),
    gate(RecoverVolumeExpansionFailure, &["status.allocatedResourceStatuses"]),
];

/// CSIDrivers.
pub const DRIVER: &[Gated] = &[
    gate(SELinuxMountReadWriteOncePod, &["spec.seLinuxMount"]),
    gate(MutableCSINodeAllocatableCount, &["spec.nodeAllocatableUpdatePeriodSeconds"]),
];

/// VolumeAttachments.
pub const ATTACHMENT: &[Gated] = &[
    gate(MutableCSINodeAllocatableCount, &["status.attachError.errorCode"]),
    gate(MutableCSINodeAllocatableCount, &["status.detachError.errorCode"]),
];

/// ResourceClaims in the storage version, where an exact request has no level of its own.
pub const DEVICE_CLAIM: &[Gated] = &[
    gate(DRAPrioritizedList, &["spec.devices.requests[].firstAvailable"]),
    gate(
        DRAAdminAccess,
        &["spec.devices.requests[].adminAccess", "status.allocation.devices.results[].adminAccess"],
    ),
    gate(DRAResourceClaimDeviceStatus, &["status.devices"]),
];

/// ResourceClaimTemplates.
pub const DEVICE_CLAIM_TEMPLATE: &[Gated] = &[
    gate(DRAPrioritizedList, &["spec.spec.devices.requests[].firstAvailable"]),
    gate(DRAAdminAccess, &["spec.spec.devices.requests[].adminAccess"]),
];

/// ResourceSlices in the storage version.
pub const DEVICES: &[Gated] = &[
    gate(DRADeviceTaints, &["spec.devices[].basic.taints"]),
    gate(
        DRAPartitionableDevices,
        &[
            "spec.sharedCounters",
            "spec.perDeviceNodeSelection",
            "spec.devices[].basic.consumesCounters",
            "spec.devices[].basic.nodeName",
            "spec.devices[].basic.nodeSelector",
            "spec.devices[].basic.allNodes",
        ],
    ),
];
