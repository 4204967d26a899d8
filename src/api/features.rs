//! What the operator of a server has decided about objects. Each server has its own [`Terms`]: there may be several in a process.

/// A feature that decides about fields, defaults or rules of kinds, by the name of its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Trust bundles among the files of a projected volume.
    ClusterTrustBundleProjection,
    /// Containers say which signal ends them.
    ContainerStopSignals,
    /// Leaders that are elected by all servers together.
    CoordinatedLeaderElection,
    /// Claims that are filled from what lies in another namespace.
    CrossNamespaceVolumeDataSource,
    /// Claims of devices that others use.
    DRAAdminAccess,
    /// Taints of devices.
    DRADeviceTaints,
    /// Devices that are parts of others.
    DRAPartitionableDevices,
    /// Claims with several choices.
    DRAPrioritizedList,
    /// What drivers say of devices that were given.
    DRAResourceClaimDeviceStatus,
    /// Counts of pods that are going away.
    DeploymentReplicaSetTerminatingReplicas,
    /// Pods that claim devices.
    DynamicResourceAllocation,
    /// Volumes that are cloned from a repository, in nodes.
    GitRepoVolumeDriver,
    /// How much an autoscaler lets pass.
    HPAConfigurableTolerance,
    /// Autoscalers that go down to no pods.
    HPAScaleToZero,
    /// Volumes that are images.
    ImageVolume,
    /// Pods whose amounts change while they run.
    InPlacePodVerticalScaling,
    /// Jobs that somebody else runs.
    JobManagedBy,
    /// When pods of a Job are replaced.
    JobPodReplacementPolicy,
    /// Pods that are spread among those with the same values of labels.
    MatchLabelKeysInPodTopologySpread,
    /// How many pods of a StatefulSet may be missing during an update.
    MaxUnavailableStatefulSet,
    /// How much a node can attach may change.
    MutableCSINodeAllocatableCount,
    /// The annotation that says what deleting a pod costs is checked.
    PodDeletionCost,
    /// Amounts of pods as a whole.
    PodLevelResources,
    /// Hooks of containers that sleep.
    PodLifecycleSleepAction,
    /// Such hooks may take no time.
    PodLifecycleSleepActionAllowZero,
    /// Which generation of a pod its status is about.
    PodObservedGenerationTracking,
    /// Services that prefer endpoints of the same zone or node.
    PreferSameTrafficDistribution,
    /// How /proc is mounted in containers.
    ProcMountType,
    /// Claims whose growth failed may ask for less.
    RecoverVolumeExpansionFailure,
    /// Search paths for names with underscores, or of one dot.
    RelaxedDNSSearchValidation,
    /// Names of environment variables of nearly any signs.
    RelaxedEnvironmentVariableValidation,
    /// How healthy the devices of containers are.
    ResourceHealthStatus,
    /// How labels of volumes are changed.
    SELinuxChangePolicy,
    /// They may be changed by mounting, for all volumes.
    SELinuxMount,
    /// Drivers say whether they can mount with labels.
    SELinuxMountReadWriteOncePod,
    /// Which groups of an image count.
    SupplementalGroupsPolicy,
    /// Pods with users of their own.
    UserNamespacesSupport,
    /// Classes of attributes that volumes can change to.
    VolumeAttributesClass,
}

use Feature::*;

/// Those that are on unless somebody closes their gate.
const ON: [Feature; 16] = [
    DRAResourceClaimDeviceStatus,
    InPlacePodVerticalScaling,
    JobManagedBy,
    JobPodReplacementPolicy,
    MatchLabelKeysInPodTopologySpread,
    PodDeletionCost,
    PodLifecycleSleepAction,
    PodLifecycleSleepActionAllowZero,
    ProcMountType,
    RecoverVolumeExpansionFailure,
    RelaxedDNSSearchValidation,
    RelaxedEnvironmentVariableValidation,
    SELinuxChangePolicy,
    SELinuxMountReadWriteOncePod,
    SupplementalGroupsPolicy,
    UserNamespacesSupport,
];

/// Those that are off unless somebody opens it.
const OFF: [Feature; 22] = [
    ClusterTrustBundleProjection,
    ContainerStopSignals,
    CoordinatedLeaderElection,
    CrossNamespaceVolumeDataSource,
    DRAAdminAccess,
    DRADeviceTaints,
    DRAPartitionableDevices,
    DRAPrioritizedList,
    DeploymentReplicaSetTerminatingReplicas,
    DynamicResourceAllocation,
    GitRepoVolumeDriver,
    HPAConfigurableTolerance,
    HPAScaleToZero,
    ImageVolume,
    MaxUnavailableStatefulSet,
    MutableCSINodeAllocatableCount,
    PodLevelResources,
    PodObservedGenerationTracking,
    PreferSameTrafficDistribution,
    ResourceHealthStatus,
    SELinuxMount,
    VolumeAttributesClass,
];

impl Feature {
    /// All of them, each with whether it is on when nothing is said.
    pub fn all() -> impl Iterator<Item = (Feature, bool)> {
        ON.into_iter().map(|feature| (feature, true)).chain(OFF.into_iter().map(|feature| (feature, false)))
    }

    const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// What the operator of a server has decided about the objects that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    on: u64,
    privileged: bool,
}

impl Terms {
    /// Those of the release, when nothing is said.
    pub const RELEASE: Terms = {
        let (mut on, mut at) = (0, 0);
        while at < ON.len() {
            on |= ON[at].bit();
            at += 1;
        }
        Terms { on, privileged: false }
    };

    /// Nothing is on.
    #[cfg(test)]
    pub const NONE: Terms = Terms { on: 0, privileged: false };

    /// Those of a server whose gates are known by their names. `privileged` says whether it takes privileged containers.
    pub fn new(is_open: impl Fn(&str) -> bool, privileged: bool) -> Terms {
        let open = Feature::all().filter(|(feature, _)| is_open(&format!("{feature:?}")));
        Terms { on: open.fold(0, |on, (feature, _)| on | feature.bit()), privileged }
    }

    /// Whether a feature is on.
    pub const fn has(self, feature: Feature) -> bool {
        self.on & feature.bit() != 0
    }

    /// The same with a feature on: for an object that made use of it before.
    #[must_use]
    pub const fn with(self, feature: Feature) -> Terms {
        Terms { on: self.on | feature.bit(), ..self }
    }

    /// The same with a feature off.
    #[must_use]
    pub const fn without(self, feature: Feature) -> Terms {
        Terms { on: self.on & !feature.bit(), ..self }
    }

    /// Whether containers may be privileged.
    pub const fn takes_privileged(self) -> bool {
        self.privileged
    }
}

impl Default for Terms {
    fn default() -> Terms {
        Terms::RELEASE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_stands_once_and_has_a_bit_of_its_own() {
        let bits: Vec<u64> = Feature::all().map(|(feature, _)| feature.bit()).collect();
        let all = bits.iter().fold(0, |all, bit| all | bit);
        assert_eq!(bits.len() as u32, all.count_ones());
        assert_eq!(all, (1 << bits.len()) - 1, "a feature stands in neither list");
    }

    #[test]
    fn two_servers_can_have_different_terms() {
        let (one, other) = (Terms::new(|name| name == "ImageVolume", true), Terms::RELEASE);
        assert!(one.has(ImageVolume) && !one.has(ProcMountType) && one.takes_privileged());
        assert!(!other.has(ImageVolume) && other.has(ProcMountType) && !other.takes_privileged());
        assert!(other.with(ImageVolume).has(ImageVolume));
        let release = Terms::new(
            |name| Feature::all().any(|(feature, on)| on && format!("{feature:?}") == name),
            false,
        );
        assert_eq!(release, Terms::RELEASE);
    }
}
