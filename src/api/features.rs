//! What the operator of a server has decided about objects. Each server has its own [`EnabledFeatures`]: there may be several in a process.

/// Declares the features, each with whether it is on when nothing is said.
macro_rules! features {
    ($($(#[$doc:meta])+ $name:ident: $on:literal,)+) => {
        /// A feature that decides about fields, defaults or rules of kinds, by the name of its gate.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Feature {
            $($(#[$doc])+ $name,)+
        }

        const ALL: &[(Feature, bool)] = &[$((Feature::$name, $on),)+];
    };
}

features! {
    /// Objects that cannot be read may be deleted.
    AllowUnsafeMalformedObjectDeletion: false,
    /// Trust bundles among the files of a projected volume.
    ClusterTrustBundleProjection: false,
    /// Containers say which signal ends them.
    ContainerStopSignals: false,
    /// Leaders that are elected by all servers together.
    CoordinatedLeaderElection: false,
    /// Claims that are filled from what lies in another namespace.
    CrossNamespaceVolumeDataSource: false,
    /// Claims of devices that others use.
    DRAAdminAccess: false,
    /// Taints of devices.
    DRADeviceTaints: false,
    /// Devices that are parts of others.
    DRAPartitionableDevices: false,
    /// Claims with several choices.
    DRAPrioritizedList: false,
    /// What drivers say of devices that were given.
    DRAResourceClaimDeviceStatus: true,
    /// Counts of pods that are going away.
    DeploymentReplicaSetTerminatingReplicas: false,
    /// Pods that claim devices.
    DynamicResourceAllocation: false,
    /// Volumes that are cloned from a repository, in nodes.
    GitRepoVolumeDriver: false,
    /// How much an autoscaler lets pass.
    HPAConfigurableTolerance: false,
    /// Autoscalers that go down to no pods.
    HPAScaleToZero: false,
    /// Volumes that are images.
    ImageVolume: false,
    /// Pods whose amounts change while they run.
    InPlacePodVerticalScaling: true,
    /// Jobs that somebody else runs.
    JobManagedBy: true,
    /// When pods of a Job are replaced.
    JobPodReplacementPolicy: true,
    /// Pods that are spread among those with the same values of labels.
    MatchLabelKeysInPodTopologySpread: true,
    /// How many pods of a StatefulSet may be missing during an update.
    MaxUnavailableStatefulSet: false,
    /// How much a node can attach may change.
    MutableCSINodeAllocatableCount: false,
    /// The annotation that says what deleting a pod costs is checked.
    PodDeletionCost: true,
    /// Amounts of pods as a whole.
    PodLevelResources: false,
    /// Hooks of containers that sleep.
    PodLifecycleSleepAction: true,
    /// Such hooks may take no time.
    PodLifecycleSleepActionAllowZero: true,
    /// The log of one of the streams of a container.
    PodLogsQuerySplitStreams: false,
    /// Which generation of a pod its status is about.
    PodObservedGenerationTracking: false,
    /// Services that prefer endpoints of the same zone or node.
    PreferSameTrafficDistribution: false,
    /// How /proc is mounted in containers.
    ProcMountType: true,
    /// Claims whose growth failed may ask for less.
    RecoverVolumeExpansionFailure: true,
    /// Search paths for names with underscores, or of one dot.
    RelaxedDNSSearchValidation: true,
    /// Names of environment variables of nearly any signs.
    RelaxedEnvironmentVariableValidation: true,
    /// How healthy the devices of containers are.
    ResourceHealthStatus: false,
    /// How labels of volumes are changed.
    SELinuxChangePolicy: true,
    /// They may be changed by mounting, for all volumes.
    SELinuxMount: false,
    /// Drivers say whether they can mount with labels.
    SELinuxMountReadWriteOncePod: true,
    /// Which groups of an image count.
    SupplementalGroupsPolicy: true,
    /// Pods with users of their own.
    UserNamespacesSupport: true,
    /// Classes of attributes that volumes can change to.
    VolumeAttributesClass: false,
}

impl Feature {
    /// All of them, each with whether it is on when nothing is said.
    pub fn all() -> impl Iterator<Item = (Feature, bool)> {
        ALL.iter().copied()
    }

    const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// What the operator of a server has decided about the objects that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnabledFeatures {
    on: u64,
    privileged: bool,
}

impl EnabledFeatures {
    /// Those of the release, when nothing is said.
    pub const RELEASE: EnabledFeatures = {
        let (mut on, mut at) = (0, 0);
        while at < ALL.len() {
            if ALL[at].1 {
                on |= ALL[at].0.bit();
            }
            at += 1;
        }
        EnabledFeatures { on, privileged: false }
    };

    /// Nothing is on.
    #[cfg(test)]
    pub const NONE: EnabledFeatures = EnabledFeatures { on: 0, privileged: false };

    /// Those of a server whose gates are known by their names. `privileged` says whether it takes privileged containers.
    pub fn new(is_open: impl Fn(&str) -> bool, privileged: bool) -> EnabledFeatures {
        let open = Feature::all().filter(|(feature, _)| is_open(&format!("{feature:?}")));
        EnabledFeatures { on: open.fold(0, |on, (feature, _)| on | feature.bit()), privileged }
    }

    /// Whether a feature is on.
    pub const fn has(self, feature: Feature) -> bool {
        self.on & feature.bit() != 0
    }

    /// The same with a feature on: for an object that made use of it before.
    #[must_use]
    pub const fn with(self, feature: Feature) -> EnabledFeatures {
        EnabledFeatures { on: self.on | feature.bit(), ..self }
    }

    /// The same with a feature off.
    #[must_use]
    pub const fn without(self, feature: Feature) -> EnabledFeatures {
        EnabledFeatures { on: self.on & !feature.bit(), ..self }
    }

    /// Whether containers may be privileged.
    pub const fn allows_privileged(self) -> bool {
        self.privileged
    }
}

impl Default for EnabledFeatures {
    fn default() -> EnabledFeatures {
        EnabledFeatures::RELEASE
    }
}

#[cfg(test)]
mod tests {
    use super::Feature::{ImageVolume, ProcMountType};
    use super::*;

    #[test]
    fn each_feature_has_a_bit_of_its_own() {
        let all = Feature::all().fold(0, |all, (feature, _)| all | feature.bit());
        assert_eq!(all.count_ones() as usize, ALL.len());
    }

    #[test]
    fn two_servers_can_have_different_terms() {
        let (one, other) =
            (EnabledFeatures::new(|name| name == "ImageVolume", true), EnabledFeatures::RELEASE);
        assert!(one.has(ImageVolume) && !one.has(ProcMountType) && one.allows_privileged());
        assert!(!other.has(ImageVolume) && other.has(ProcMountType) && !other.allows_privileged());
        assert!(other.with(ImageVolume).has(ImageVolume));
        let release = EnabledFeatures::new(
            |name| Feature::all().any(|(feature, on)| on && format!("{feature:?}") == name),
            false,
        );
        assert_eq!(release, EnabledFeatures::RELEASE);
    }
}
