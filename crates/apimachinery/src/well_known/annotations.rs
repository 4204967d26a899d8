//! Annotations with a meaning for the server.

/// On a CustomResourceDefinition in a protected group (`*.k8s.io`): the URL of its API review.
pub const APPROVED: &str = "api-approved.kubernetes.io";
/// On a pod, followed by the name of a container: its AppArmor profile.
pub const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// On a pod: its seccomp profile.
pub const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
/// On a pod, followed by the name of a container: its seccomp profile.
pub const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// On the mirror pod of a static pod.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// On a service account: its pods may use the Secrets that it lists and no others.
pub const ENFORCE_MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
/// On a Secret with a token: the name of the service account.
pub const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
/// On a Secret with a token: the uid of the service account.
pub const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// On the lease of an API server: where other API servers reach it.
pub const PEER_ADDRESS: &str = "kubernetes.io/peer-advertise-address";
/// On any object: its manifest when `kubectl apply` last applied it.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// On a flow schema or priority level: the server keeps its spec up to date.
pub const FLOW_AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
/// On an ingress: its class, before there was a field for it.
pub const INGRESS_CLASS: &str = "kubernetes.io/ingress.class";
/// On a volume or a claim: its class, before there was a field for it.
pub const STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// On a storage class: it is the default. The second is the former name of the annotation.
pub const DEFAULT_STORAGE_CLASS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
