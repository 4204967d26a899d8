//! Labels with a meaning for the server.

/// On a role or binding: it is one of those that every cluster begins with.
pub const BOOTSTRAPPING: &str = "kubernetes.io/bootstrapping";
/// On an IPAddress: who allocated it.
pub const ADDRESS_MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// The value of [`ADDRESS_MANAGED_BY`] for addresses of Services.
pub const ADDRESS_ALLOCATOR: &str = "ipallocator.k8s.io";
/// On a Lease in kube-system: the kind of API server that it stands for.
pub const SERVER_IDENTITY: &str = "apiserver.kubernetes.io/identity";
