//! The identifiers of the ecosystem that more than one part of the server uses, each spelled once.

pub mod annotations;
pub mod signers;
pub mod stores;
#[cfg(test)]
pub(in crate::api) mod tests;

/// The group of objects that every group shares: tables, partial metadata, options.
pub const META_GROUP: &str = "meta.k8s.io";
/// The group of aggregated discovery documents.
pub const DISCOVERY_GROUP: &str = "apidiscovery.k8s.io";
/// The group of webhooks that admit, and of policies.
pub const ADMISSION_REGISTRATION_GROUP: &str = "admissionregistration.k8s.io";
/// The group in which other servers are registered.
pub const API_REGISTRATION_GROUP: &str = "apiregistration.k8s.io";
/// The group of questions about rights.
pub const AUTHORIZATION_GROUP: &str = "authorization.k8s.io";
/// The group of ingresses, network policies and ranges of addresses.
pub const NETWORKING_GROUP: &str = "networking.k8s.io";
/// The group of roles and bindings.
pub const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// The name that clients know this server by: that of the reference.
pub const SERVER_NAME: &str = "kube-apiserver";
/// The ConfigMap of each namespace with the certificate of the cluster.
pub const ROOT_CERTIFICATE: &str = "kube-root-ca.crt";
/// The type of Secrets with the token of a service account.
pub const ACCOUNT_TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
/// The type of Secrets with a token for a node that joins.
pub const BOOTSTRAP_TOKEN_TYPE: &str = "bootstrap.kubernetes.io/token";
/// What else is known of a caller: which of their credentials was shown.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The finalizer of a claim that pods may use.
pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// The finalizer of a volume that a claim may be bound to.
pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
/// The finalizer that a namespace has from its first moment.
pub const NAMESPACE_FINALIZER: &str = "kubernetes";
/// The label that names a namespace on itself.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The media type of JSON.
pub const JSON: &str = "application/json";
/// The media type of YAML.
pub const YAML: &str = "application/yaml";
/// The media type of the Protobuf envelope.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// The media type of CBOR.
pub const CBOR: &str = "application/cbor";
/// The media type of a sequence of CBOR items: how watches in CBOR are sent.
pub const CBOR_SEQUENCE: &str = "application/cbor-seq";

/// The media type of a JSON Patch.
pub const JSON_PATCH: &str = "application/json-patch+json";
/// The media type of a JSON merge patch.
pub const MERGE_PATCH: &str = "application/merge-patch+json";
/// The media type of a strategic merge patch.
pub const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
/// The media type of a configuration that is applied.
pub const APPLY_PATCH: &str = "application/apply-patch+yaml";
/// The same in CBOR.
pub const CBOR_APPLY_PATCH: &str = "application/apply-patch+cbor";

/// The user that a request without credentials is.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of those who have shown no credentials.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of those who have.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group that may do everything.
pub const MASTERS: &str = "system:masters";
/// How the names of service accounts begin as users.
pub const ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// The group of all service accounts; with a colon and a namespace, of those in it.
pub const ALL_ACCOUNTS: &str = "system:serviceaccounts";
/// The group of nodes.
pub const NODES: &str = "system:nodes";
/// How the names of nodes begin as users.
pub const NODE_PREFIX: &str = "system:node:";

/// The namespace of what the cluster itself is made of.
pub const SYSTEM_NAMESPACE: &str = "kube-system";
/// The namespace that everybody may read.
pub const PUBLIC_NAMESPACE: &str = "kube-public";
/// The namespace of the leases by which nodes say that they are there.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// The namespaces that exist from the first start.
pub const SYSTEM_NAMESPACES: [&str; 4] = ["default", SYSTEM_NAMESPACE, PUBLIC_NAMESPACE, LEASE_NAMESPACE];
/// The resource of namespaces, and the store they are in.
pub const NAMESPACES: &str = "namespaces";
/// The namespaces that cannot be deleted.
pub const IMMORTAL_NAMESPACES: [&str; 3] = ["default", SYSTEM_NAMESPACE, PUBLIC_NAMESPACE];
/// The annotation of the bookmark behind the last object that was there when a watch began.
pub const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
/// Beside it, an empty list of the kind in base64, for clients that make a list of what they saw.
pub const INITIAL_EVENTS_BLUEPRINT: &str = "kubernetes.io/initial-events-list-blueprint";
