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

impl PluginName {
    /// Whether the reference runs it when objects are changed, for metrics.
    pub const fn admits(self) -> bool {
        use PluginName::{
            CertificateApproval, CertificateSigning, CertificateSubjectRestriction, ClusterTrustBundleAttest,
            DenyServiceExternalIPs, EventRateLimit, ImagePolicyWebhook, LimitPodHardAntiAffinityTopology,
            NamespaceExists, OwnerReferencesPermissionEnforcement, PersistentVolumeClaimResize, PodSecurity,
            ResourceQuota, ValidatingAdmissionPolicy, ValidatingAdmissionWebhook,
        };
        !matches!(
            self,
            CertificateApproval
                | CertificateSigning
                | CertificateSubjectRestriction
                | ClusterTrustBundleAttest
                | DenyServiceExternalIPs
                | EventRateLimit
                | ImagePolicyWebhook
                | LimitPodHardAntiAffinityTopology
                | NamespaceExists
                | OwnerReferencesPermissionEnforcement
                | PersistentVolumeClaimResize
                | PodSecurity
                | ResourceQuota
                | ValidatingAdmissionPolicy
                | ValidatingAdmissionWebhook
        )
    }

    /// Whether the reference runs it when objects are checked, for metrics.
    pub const fn validates(self) -> bool {
        use PluginName::{
            AlwaysAdmit, AlwaysDeny, AlwaysPullImages, LimitRanger, PodNodeSelector,
            PodTolerationRestriction, Priority, RuntimeClass, ServiceAccount,
        };
        !self.admits()
            || matches!(
                self,
                AlwaysAdmit
                    | AlwaysDeny
                    | AlwaysPullImages
                    | LimitRanger
                    | PodNodeSelector
                    | PodTolerationRestriction
                    | Priority
                    | RuntimeClass
                    | ServiceAccount
            )
    }
}
