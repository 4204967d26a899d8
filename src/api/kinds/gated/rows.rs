//! Which fields go with which feature. Tables and nothing else.

use super::super::Feature::*;
use super::Gated;

const fn by(feature: super::Feature, fields: &'static [&'static str]) -> Gated {
    Gated::by(feature, fields)
}

/// What pods are made from, here and in templates.
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

/// What is said of pods. What their spec uses decides about some of it.
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

/// Autoscalers.
pub const AUTOSCALER: &[Gated] = &[by(
    HPAConfigurableTolerance,
    &["spec.behavior.scaleUp.tolerance", "spec.behavior.scaleDown.tolerance"],
)];

/// Leases. What each of them had counts for itself.
pub const LEASE: &[Gated] = &[
    by(CoordinatedLeaderElection, &["spec.strategy"]),
    by(CoordinatedLeaderElection, &["spec.preferredHolder"]),
];

/// EndpointSlices.
pub const ENDPOINT_SLICE: &[Gated] = &[by(PreferSameTrafficDistribution, &["endpoints[].hints.forNodes"])];

/// Volumes.
pub const VOLUME: &[Gated] = &[by(VolumeAttributesClass, &["spec.volumeAttributesClassName"])];

/// Claims to volumes, but not what they are made from in other kinds.
pub const VOLUME_CLAIM: &[Gated] = &[
    by(VolumeAttributesClass, &["spec.volumeAttributesClassName"]),
    by(VolumeAttributesClass, &["status.currentVolumeAttributesClassName"]),
    by(VolumeAttributesClass, &["status.modifyVolumeStatus"]),
    by(RecoverVolumeExpansionFailure, &["status.allocatedResources"]),
    by(RecoverVolumeExpansionFailure, &["status.allocatedResourceStatuses"]),
];

/// Drivers of volumes.
pub const DRIVER: &[Gated] = &[
    by(SELinuxMountReadWriteOncePod, &["spec.seLinuxMount"]),
    by(MutableCSINodeAllocatableCount, &["spec.nodeAllocatableUpdatePeriodSeconds"]),
];

/// Attached volumes.
pub const ATTACHMENT: &[Gated] = &[
    by(MutableCSINodeAllocatableCount, &["status.attachError.errorCode"]),
    by(MutableCSINodeAllocatableCount, &["status.detachError.errorCode"]),
];

/// Claims of devices, as they are stored: the only choice stands in the request itself.
pub const DEVICE_CLAIM: &[Gated] = &[
    by(DRAPrioritizedList, &["spec.devices.requests[].firstAvailable"]),
    by(
        DRAAdminAccess,
        &["spec.devices.requests[].adminAccess", "status.allocation.devices.results[].adminAccess"],
    ),
    by(DRAResourceClaimDeviceStatus, &["status.devices"]),
];

/// What claims of devices are made from.
pub const DEVICE_CLAIM_TEMPLATE: &[Gated] = &[
    by(DRAPrioritizedList, &["spec.spec.devices.requests[].firstAvailable"]),
    by(DRAAdminAccess, &["spec.spec.devices.requests[].adminAccess"]),
];

/// Devices of nodes, as they are stored.
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
