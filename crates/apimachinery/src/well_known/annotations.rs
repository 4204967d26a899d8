//! Annotations with a meaning for the server.

/// On a definition: where it was agreed that its group may end like the system's own.
pub const APPROVED: &str = "api-approved.kubernetes.io";
/// On a pod, with the name of a container: the profile that confines it.
pub const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// On a pod: which system calls are filtered.
pub const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
/// The same with the name of a container.
pub const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// On a pod that a node runs by itself and only shows to the server.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// On a service account: its pods may use the Secrets that it lists and no others.
pub const ENFORCE_MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
/// On a Secret with a token: the name of the service account.
pub const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
/// On a Secret with a token: the uid of the service account.
pub const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// On an ingress: its class, before there was a field for it.
pub const INGRESS_CLASS: &str = "kubernetes.io/ingress.class";
/// On a volume or a claim: its class, before there was a field for it.
pub const STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// On a storage class: it is the default. The second is how that was said before.
pub const DEFAULT_STORAGE_CLASS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
