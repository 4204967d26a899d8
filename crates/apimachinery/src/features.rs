//! The feature gates that affect the fields, defaults and validation of kinds. Each server has its own [`EnabledFeatures`]: a
//! process may run several servers.

use crate::version::{MinorVersion, RELEASE};

/// Declares the features with their defaults.
macro_rules! features {
    ($($(#[$doc:meta])+ $name:ident: $on:literal,)+) => {
        /// A feature that decides about fields, defaults or rules of kinds, named like its gate.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Feature {
            $($(#[$doc])+ $name,)+
        }

        const ALL: &[(Feature, bool)] = &[$((Feature::$name, $on),)+];
    };
}

features! {
    /// Authorization takes selectors into account, and expressions can name them.
    AuthorizeWithSelectors: true,
    /// Trust bundles in projected volumes.
    ClusterTrustBundleProjection: false,
    /// Stop signals of containers.
    ContainerStopSignals: false,
    /// Leader election by LeaseCandidates.
    CoordinatedLeaderElection: false,
    /// Volume claims with a data source in another namespace.
    CrossNamespaceVolumeDataSource: false,
    /// Device claims with administrative access.
    DRAAdminAccess: false,
    /// Taints of devices.
    DRADeviceTaints: false,
    /// Devices that can be partitioned.
    DRAPartitionableDevices: false,
    /// Device requests with prioritized alternatives.
    DRAPrioritizedList: false,
    /// The status of allocated devices.
    DRAResourceClaimDeviceStatus: true,
    /// Counts of terminating pods.
    DeploymentReplicaSetTerminatingReplicas: false,
    /// Pods that claim devices.
    DynamicResourceAllocation: false,
    /// The gitRepo volume driver.
    GitRepoVolumeDriver: false,
    /// The tolerance of an autoscaler.
    HPAConfigurableTolerance: false,
    /// Autoscalers that scale to zero.
    HPAScaleToZero: false,
    /// Image volumes.
    ImageVolume: false,
    /// Resizing of running pods.
    InPlacePodVerticalScaling: true,
    /// Jobs that another controller manages.
    JobManagedBy: true,
    /// The pod replacement policy of Jobs.
    JobPodReplacementPolicy: true,
    /// `matchLabelKeys` of topology spread constraints.
    MatchLabelKeysInPodTopologySpread: true,
    /// `maxUnavailable` of StatefulSets.
    MaxUnavailableStatefulSet: false,
    /// The number of volumes that a node can attach may change.
    MutableCSINodeAllocatableCount: false,
    /// The annotation `pod-deletion-cost` is validated.
    PodDeletionCost: true,
    /// Resources of whole pods.
    PodLevelResources: false,
    /// Lifecycle hooks that sleep.
    PodLifecycleSleepAction: true,
    /// Lifecycle hooks may sleep for zero seconds.
    PodLifecycleSleepActionAllowZero: true,
    /// The log of only stdout or stderr.
    PodLogsQuerySplitStreams: false,
    /// `observedGeneration` of pods.
    PodObservedGenerationTracking: false,
    /// Traffic distribution to the same zone or node.
    PreferSameTrafficDistribution: false,
    /// `procMount` of containers.
    ProcMountType: true,
    /// Volume claims may shrink after a failed expansion.
    RecoverVolumeExpansionFailure: true,
    /// DNS search paths with underscores, or of a single dot.
    RelaxedDNSSearchValidation: true,
    /// Names of environment variables with nearly any characters.
    RelaxedEnvironmentVariableValidation: true,
    /// The health of the devices of containers.
    ResourceHealthStatus: false,
    /// How SELinux labels of volumes are changed.
    SELinuxChangePolicy: true,
    /// SELinux labels are set by mounting, for all volumes.
    SELinuxMount: false,
    /// CSI drivers state whether they can mount with SELinux labels.
    SELinuxMountReadWriteOncePod: true,
    /// Which IP addresses and CIDRs are valid: only those in a standard form.
    StrictIPCIDRValidation: false,
    /// Which supplemental groups of an image apply.
    SupplementalGroupsPolicy: true,
    /// User namespaces of pods.
    UserNamespacesSupport: true,
    /// Volume attributes classes.
    VolumeAttributesClass: false,
}

impl Feature {
    /// All features with their defaults.
    pub fn all() -> impl Iterator<Item = (Feature, bool)> {
        ALL.iter().copied()
    }

    const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// The enabled features of a server, and whether it accepts privileged containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnabledFeatures {
    on: u64,
    privileged: bool,
    /// The oldest release that must understand what is stored.
    compatibility: MinorVersion,
}

/// The release before this one.
const PREVIOUS: MinorVersion = (RELEASE.0, RELEASE.1 - 1);

impl EnabledFeatures {
    /// The defaults of the release.
    pub const RELEASE: EnabledFeatures = {
        let (mut on, mut index) = (0, 0);
        while index < ALL.len() {
            if ALL[index].1 {
                on |= ALL[index].0.bit();
            }
            index += 1;
        }
        EnabledFeatures { on, privileged: false, compatibility: PREVIOUS }
    };

    /// Every feature is enabled: for objects that are stored already.
    pub const EVERY: EnabledFeatures = {
        let (mut on, mut index) = (0, 0);
        while index < ALL.len() {
            on |= ALL[index].0.bit();
            index += 1;
        }
        EnabledFeatures { on, privileged: true, compatibility: RELEASE }
    };

    /// No feature is enabled.
    #[cfg(any(test, feature = "testing"))]
    pub const NONE: EnabledFeatures = EnabledFeatures { on: 0, privileged: false, compatibility: PREVIOUS };

    /// The features whose gates are open. `privileged`: whether privileged containers are accepted.
    pub fn new(is_open: impl Fn(&str) -> bool, privileged: bool) -> EnabledFeatures {
        let enabled = Feature::all().filter(|(feature, _)| is_open(&format!("{feature:?}")));
        let on = enabled.fold(0, |on, (feature, _)| on | feature.bit());
        EnabledFeatures { on, privileged, compatibility: PREVIOUS }
    }

    /// The same for a server after which a server of this release may read what is stored.
    #[must_use]
    pub const fn compatible_with(self, compatibility: MinorVersion) -> EnabledFeatures {
        EnabledFeatures { compatibility, ..self }
    }

    /// The oldest release that must understand what is stored.
    pub const fn compatibility(self) -> MinorVersion {
        self.compatibility
    }

    /// Whether a feature is enabled.
    pub const fn has(self, feature: Feature) -> bool {
        self.on & feature.bit() != 0
    }

    /// The same with a feature enabled: for an object that used it before.
    #[must_use]
    pub const fn with(self, feature: Feature) -> EnabledFeatures {
        EnabledFeatures { on: self.on | feature.bit(), ..self }
    }

    /// The same with a feature disabled.
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
    fn each_feature_has_a_distinct_bit() {
        let all = Feature::all().fold(0, |all, (feature, _)| all | feature.bit());
        assert_eq!(all.count_ones() as usize, ALL.len());
    }

    #[test]
    fn servers_can_enable_different_features() {
        let (custom, release) =
            (EnabledFeatures::new(|name| name == "ImageVolume", true), EnabledFeatures::RELEASE);
        assert!(custom.has(ImageVolume) && !custom.has(ProcMountType) && custom.allows_privileged());
        assert!(!release.has(ImageVolume) && release.has(ProcMountType) && !release.allows_privileged());
        assert!(release.with(ImageVolume).has(ImageVolume));
        let defaults = EnabledFeatures::new(
            |name| Feature::all().any(|(feature, on)| on && format!("{feature:?}") == name),
            false,
        );
        assert_eq!(defaults, EnabledFeatures::RELEASE);
    }
}
