//! The admission plug-ins of the reference, by name. `config/plugins.rs` has their order and defaults, `src/admission.rs`
//! builds them.

macro_rules! plugins {
    ($($name:ident,)+) => {
        /// The name of an admission plug-in.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names are those of the reference")]
        pub enum PluginName {
            $($name,)+
        }

        impl PluginName {
            /// The name on the command line.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(PluginName::$name => stringify!($name),)+
                }
            }
        }
    };
}

plugins! {
    AlwaysAdmit,
    AlwaysDeny,
    AlwaysPullImages,
    CertificateApproval,
    CertificateSigning,
    CertificateSubjectRestriction,
    ClusterTrustBundleAttest,
    DefaultIngressClass,
    DefaultStorageClass,
    DefaultTolerationSeconds,
    DenyServiceExternalIPs,
    EventRateLimit,
    ExtendedResourceToleration,
    ImagePolicyWebhook,
    LimitPodHardAntiAffinityTopology,
    LimitRanger,
    MutatingAdmissionPolicy,
    MutatingAdmissionWebhook,
    NamespaceAutoProvision,
    NamespaceExists,
    NamespaceLifecycle,
    NodeRestriction,
    OwnerReferencesPermissionEnforcement,
    PersistentVolumeClaimResize,
    PodNodeSelector,
    PodSecurity,
    PodTolerationRestriction,
    PodTopologyLabels,
    Priority,
    ResourceQuota,
    RuntimeClass,
    ServiceAccount,
    StorageObjectInUseProtection,
    TaintNodesByCondition,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionWebhook,
}
