//! The fields of each feature gate, as tables.

use pilothouse_apimachinery::features::Feature::*;

use super::Gated;

const fn by(feature: crate::gated::Feature, fields: &'static [&'static str]) -> Gated {
    Gated::by(feature, fields)
}

/// PodSpecs of pods and pod templates.
pub const POD_SPEC: &[Gated] = &[
    by(UserNamespacesSupport, &["hostUsers"]),
    by(SupplementalGroupsPolicy, &["securityContext.supplementalGroupsPolicy"]),
    by(PodLevelResources, &["resources"]).used_at(&["resources.requests", "resources.limits"]),
    by(ProcMountType, &["containers*.securityContext.procMount"]).becoming("Default"),
    by(MatchLabelKeysInPodTopologySpread, &["topologySpreadConstraints[].matchLabelKeys"]),
    by(DynamicResourceAllocation, &["resourceClaims", "containers*.resources?.claims"])
        .used_at(&["resourceClaims"]),
    by(ClusterTrustBundleProjection, &["volumes[].projected.sources[].clusterTrustBundle"]),
    by(InPlacePodVerticalScaling, &["containers*.resizePolicy"]),
    by(
        PodLifecycleSleepAction,
        &["containers*.lifecycle?.preStop?.sleep", "containers*.lifecycle?.postStart?.sleep"],
    ),
    by(SELinuxChangePolicy, &["securityContext.seLinuxChangePolicy"]),
    by(ContainerStopSignals, &["containers*.lifecycle?.stopSignal"]),
];

/// The status of pods. For some fields, the spec tells whether the feature is in use.
pub const POD: &[Gated] = &[
    by(InPlacePodVerticalScaling, &["status.statuses*.resources", "status.statuses*.allocatedResources"])
        .used_at(&["spec.containers*.resizePolicy"]),
    by(DynamicResourceAllocation, &["status.resourceClaimStatuses"]).used_at(&["spec.resourceClaims"]),
    by(ResourceHealthStatus, &["status.statuses*.allocatedResourcesStatus"]).used_at(&[]),
    by(SupplementalGroupsPolicy, &["status.statuses*.user"])
        .used_at(&["spec.securityContext.supplementalGroupsPolicy"]),
    by(
        PodObservedGenerationTracking,
        &["status.observedGeneration", "status.conditions[].observedGeneration"],
    ),
];

/// Deployments and ReplicaSets.
pub const REPLICAS: &[Gated] =
    &[by(DeploymentReplicaSetTerminatingReplicas, &["status.terminatingReplicas"])];

/// StatefulSets.
pub const STATEFUL_SET: &[Gated] =
    &[by(MaxUnavailableStatefulSet, &["spec.updateStrategy.rollingUpdate.maxUnavailable"])];

/// HorizontalPodAutoscalers.
pub const AUTOSCALER: &[Gated] = &[by(
    HPAConfigurableTolerance,
    &["spec.behavior.scaleUp.tolerance", "spec.behavior.scaleDown.tolerance"],
)];

/// Leases. Each field is gated by its own previous value.
pub const LEASE: &[Gated] = &[
    by(CoordinatedLeaderElection, &["spec.strategy"]),
    by(CoordinatedLeaderElection, &["spec.preferredHolder"]),
];

/// EndpointSlices.
pub const ENDPOINT_SLICE: &[Gated] = &[by(PreferSameTrafficDistribution, &["endpoints[].hints.forNodes"])];

/// PersistentVolumes.
pub const VOLUME: &[Gated] = &[by(VolumeAttributesClass, &["spec.volumeAttributesClassName"])];

/// PersistentVolumeClaims, but not the templates in other kinds.
pub const VOLUME_CLAIM: &[Gated] = &[
    by(VolumeAttributesClass, &["spec.volumeAttributesClassName"]),
    by(VolumeAttributesClass, &["status.currentVolumeAttributesClassName"]),
    by(VolumeAttributesClass, &["status.modifyVolumeStatus"]),
    by(RecoverVolumeExpansionFailure, &["status.allocatedResources"]),
    by(RecoverVolumeExpansionFailure, &["status.allocatedResourceStatuses"]),
];

/// CSIDrivers.
pub const DRIVER: &[Gated] = &[
    by(SELinuxMountReadWriteOncePod, &["spec.seLinuxMount"]),
    by(MutableCSINodeAllocatableCount, &["spec.nodeAllocatableUpdatePeriodSeconds"]),
];

/// VolumeAttachments.
pub const ATTACHMENT: &[Gated] = &[
    by(MutableCSINodeAllocatableCount, &["status.attachError.errorCode"]),
    by(MutableCSINodeAllocatableCount, &["status.detachError.errorCode"]),
];

/// ResourceClaims in the storage version, where an exact request has no level of its own.
pub const DEVICE_CLAIM: &[Gated] = &[
    by(DRAPrioritizedList, &["spec.devices.requests[].firstAvailable"]),
    by(
        DRAAdminAccess,
        &["spec.devices.requests[].adminAccess", "status.allocation.devices.results[].adminAccess"],
    ),
    by(DRAResourceClaimDeviceStatus, &["status.devices"]),
];

/// ResourceClaimTemplates.
pub const DEVICE_CLAIM_TEMPLATE: &[Gated] = &[
    by(DRAPrioritizedList, &["spec.spec.devices.requests[].firstAvailable"]),
    by(DRAAdminAccess, &["spec.spec.devices.requests[].adminAccess"]),
];

/// ResourceSlices in the storage version.
pub const DEVICES: &[Gated] = &[
    by(DRADeviceTaints, &["spec.devices[].basic.taints"]),
    by(
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
