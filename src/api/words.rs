//! The identifiers of the ecosystem, each spelled once.

/// The group of objects that every group shares: tables, partial metadata, options.
pub const META_GROUP: &str = "meta.k8s.io";
/// The group of aggregated discovery documents.
pub const DISCOVERY_GROUP: &str = "apidiscovery.k8s.io";
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

/// The namespaces that exist from the first start.
pub const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// The resource of namespaces, and the store they are in.
pub const NAMESPACES: &str = "namespaces";
/// The namespaces that cannot be deleted.
pub const IMMORTAL_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];
/// The annotation of the bookmark behind the last object that was there when a watch began.
pub const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
/// Beside it, an empty list of the kind in base64, for clients that make a list of what they saw.
pub const INITIAL_EVENTS_BLUEPRINT: &str = "kubernetes.io/initial-events-list-blueprint";
