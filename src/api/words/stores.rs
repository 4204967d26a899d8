//! The names of stores that more than one part of the server asks for: the resource, and its group if it is not of the core.

/// ConfigMaps.
pub const CONFIG_MAPS: &str = "configmaps";
/// Leases.
pub const LEASES: &str = "leases.coordination.k8s.io";
/// Pods.
pub const PODS: &str = "pods";
/// Quotas.
pub const RESOURCE_QUOTAS: &str = "resourcequotas";
/// Secrets.
pub const SECRETS: &str = "secrets";
/// Requests for certificates.
pub const SIGNING_REQUESTS: &str = "certificatesigningrequests.certificates.k8s.io";
