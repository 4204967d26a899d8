//! The names of stores that several parts of the server use: the resource, and its group unless it is the core group.

/// ConfigMaps.
pub const CONFIG_MAPS: &str = "configmaps";
/// CustomResourceDefinitions.
pub const CUSTOM_RESOURCE_DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
/// Leases.
pub const LEASES: &str = "leases.coordination.k8s.io";
/// LeaseCandidates.
pub const LEASE_CANDIDATES: &str = "leasecandidates.coordination.k8s.io";
/// Pods.
pub const PODS: &str = "pods";
/// ResourceQuotas.
pub const RESOURCE_QUOTAS: &str = "resourcequotas";
/// Secrets.
pub const SECRETS: &str = "secrets";
/// CertificateSigningRequests.
pub const SIGNING_REQUESTS: &str = "certificatesigningrequests.certificates.k8s.io";
/// StorageVersions.
pub const STORAGE_VERSIONS: &str = "storageversions.internal.apiserver.k8s.io";
/// StorageVersionMigrations.
pub const STORAGE_VERSION_MIGRATIONS: &str = "storageversionmigrations.storagemigration.k8s.io";
