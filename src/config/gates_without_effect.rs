//! The feature gates that switch nothing here, with the reason. Whoever sets one is told. A test compares this list with the gates that
//! have an effect: each gate that can be set is in one of the two.

use pilothouse_apimachinery::version::MinorVersion;

use super::gates::Gate;

/// Why a gate switches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// It belongs to another component.
    OtherComponent,
    /// It belongs to the way in which the reference stores and caches objects.
    OtherStorage,
    /// It belongs to how the reference is built, and nobody sees it from outside.
    Internal,
    /// It is left over: nothing in the reference depends on it either.
    LeftOver,
}
use Reason::{Internal, LeftOver, OtherComponent, OtherStorage};

impl Reason {
    fn text(self) -> &'static str {
        match self {
            OtherComponent => "it is about other components of a cluster",
            OtherStorage => "it is about a storage that this server does not have",
            Internal => "it changes nothing that can be seen",
            LeftOver => "nothing depends on it any more",
        }
    }
}

#[rustfmt::skip]
const WITHOUT_EFFECT: &[(Reason, &[&str])] = &[
    (Internal, &[
        "APIServingWithRoutine",
        "ClientsAllowCBOR",
        "ClientsPreferCBOR",
        "ContextualLogging",
        "InOrderInformers",
        "InformerResourceVersion",
        "StreamingCollectionEncodingToJSON",
        "StreamingCollectionEncodingToProtobuf",
        "WatchListClient",
    ]),
    (OtherStorage, &[
        "BtreeWatchCache",
        "ConcurrentWatchObjectDecode",
        "ConsistentListFromCache",
        "ListFromCacheSnapshot",
        "ResilientWatchCacheInitialization",
        "SeparateCacheWatchRPC",
        "StorageNamespaceIndex",
        "WatchFromStorageWithoutResourceVersion",
    ]),
    (LeftOver, &[
        "ComponentSLIs",
        "ElasticIndexedJob",
        "InPlacePodVerticalScalingAllocatedStatus",
        "NFTablesProxyMode",
        "PodDisruptionConditions",
        "PodSchedulingReadiness",
        "RuntimeClassInImageCriApi",
        "WindowsHostNetwork",
    ]),
    (OtherComponent, &[
        "AllowDNSOnlyNodeCSR",
        "AllowOverwriteTerminationGracePeriodSeconds",
        "CPUManagerPolicyAlphaOptions",
        "CPUManagerPolicyBetaOptions",
        "CPUManagerPolicyOptions",
        "CSIMigrationPortworx",
        "CSIVolumeHealth",
        "CronJobsScheduledAnnotation",
        "CloudControllerManagerWebhook",
        "ContainerCheckpoint",
        "CustomCPUCFSQuotaPeriod",
        "DisableCPUQuotaWithExclusiveCPUs",
        "DisableNodeKubeProxyVersion",
        "EventedPLEG",
        "ExecProbeTimeout",
        "GracefulNodeShutdown",
        "GracefulNodeShutdownBasedOnPodPriority",
        "HonorPVReclaimPolicy",
        "ImageMaximumGCAge",
        "InPlacePodVerticalScalingExclusiveCPUs",
        "InTreePluginPortworxUnregister",
        "KubeletCgroupDriverFromCRI",
        "KubeletCrashLoopBackOffMax",
        "KubeletEnsureSecretPulledImages",
        "KubeletInUserNamespace",
        "KubeletPSI",
        "KubeletPodResourcesDynamicResources",
        "KubeletPodResourcesGet",
        "KubeletRegistrationGetOnExistsOnly",
        "KubeletSeparateDiskGC",
        "KubeletTracing",
        "LegacySidecarContainers",
        "LocalStorageCapacityIsolationFSQuotaMonitoring",
        "LogarithmicScaleDown",
        "MemoryManager",
        "MemoryQoS",
        "NodeLogQuery",
        "NodeSwap",
        "PodAndContainerStatsFromCRI",
        "PodIndexLabel",
        "PodReadyToStartContainersCondition",
        "QOSReserved",
        "ReduceDefaultCrashLoopBackOffDecay",
        "ReloadKubeletServerCertificateFile",
        "RotateKubeletServerCertificate",
        "SchedulerAsyncPreemption",
        "SchedulerPopFromBackoffQ",
        "SchedulerQueueingHints",
        "SeparateTaintEvictionController",
        "SizeMemoryBackedVolumes",
        "StorageCapacityScoring",
        "SystemdWatchdog",
        "TopologyManagerPolicyAlphaOptions",
        "TopologyManagerPolicyBetaOptions",
        "TopologyManagerPolicyOptions",
        "WinDSR",
        "WinOverlay",
        "WindowsCPUAndMemoryAffinity",
        "WindowsGracefulNodeShutdown",
    ]),
];

/// Why a gate switches nothing, as the end of a sentence; `None` if it switches something, or cannot be set in a release.
pub(super) fn reason(gate: &Gate, release: MinorVersion) -> Option<&'static str> {
    gate.at(release).filter(|form| !form.locked)?;
    entry(gate.name).map(|(reason, _)| reason.text())
}

/// Whether a gate is known to switch nothing here, in any release.
pub(super) fn is_listed(name: &str) -> bool {
    entry(name).is_some()
}

fn entry(name: &str) -> Option<&'static (Reason, &'static [&'static str])> {
    WITHOUT_EFFECT.iter().find(|(_, names)| names.contains(&name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pilothouse_api::catalog::build::Builtin;
    use pilothouse_api::catalog::runtime_config::RuntimeConfig;
    use pilothouse_api::emulation::Emulation;
    use pilothouse_apimachinery::features::Feature;
    use pilothouse_apimachinery::version::RELEASE;

    use super::super::gates_table::GATES;
    use super::*;

    /// Gates that only tables name: those of resources, and of the rules of roles.
    const IN_TABLES: [&str; 3] =
        ["ClusterTrustBundle", "KubeletFineGrainedAuthz", "MultiCIDRServiceAllocator"];

    #[test]
    fn gates_in_tables_are_named_there() {
        let roles = include_str!("../../crates/api/src/bootstrap/roles.txt");
        let default_catalog = |is_open: bool| {
            let resources = Builtin::load().unwrap();
            let config = RuntimeConfig::parse("api/all=true").unwrap();
            resources
                .serve_where(&config, &Emulation::default(), |gate| is_open || gate != IN_TABLES[0])
                .unwrap()
        };
        let is_served = |is_open| {
            default_catalog(is_open).find("certificates.k8s.io", "v1beta1", "clustertrustbundles").is_some()
        };
        assert!(is_served(true) && !is_served(false));
        assert!(IN_TABLES[1..].iter().all(|gate| roles.contains(gate)));
    }

    #[test]
    fn every_gate_that_can_be_set_has_an_effect_or_a_reason_why_not() {
        let features: Vec<String> = Feature::all().map(|(feature, _)| format!("{feature:?}")).collect();
        let has_effect = |name: &str| {
            pilothouse_api::gates::ALL.contains(&name)
                || IN_TABLES.contains(&name)
                || features.iter().any(|feature| feature == name)
        };
        let listed: Vec<&str> = WITHOUT_EFFECT.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(listed.iter().collect::<BTreeSet<_>>().len(), listed.len(), "each is listed once");
        let settable = GATES.iter().filter(|gate| gate.at(RELEASE).is_some_and(|form| !form.locked));
        let wrong: Vec<&str> =
            settable.map(|gate| gate.name).filter(|name| has_effect(name) == listed.contains(name)).collect();
        assert_eq!(wrong, [""; 0], "either has an effect or is listed, and not both");
        let unknown: Vec<&&str> =
            listed.iter().filter(|name| !GATES.iter().any(|gate| gate.name == **name)).collect();
        assert_eq!(unknown, [&""; 0]);
    }
}
