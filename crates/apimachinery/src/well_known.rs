//! Identifiers of the Kubernetes API that several parts of the server use.

pub mod annotations;
pub mod flows;
pub mod labels;
pub mod signers;
pub mod stores;

/// The group of shared types: Table, PartialObjectMetadata, options.
pub const META_GROUP: &str = "meta.k8s.io";
/// The group of aggregated discovery documents.
pub const DISCOVERY_GROUP: &str = "apidiscovery.k8s.io";
/// The group of admission webhooks and policies.
pub const ADMISSION_REGISTRATION_GROUP: &str = "admissionregistration.k8s.io";
/// The group of CustomResourceDefinitions.
pub const API_EXTENSIONS_GROUP: &str = "apiextensions.k8s.io";
/// The group of APIServices.
pub const API_REGISTRATION_GROUP: &str = "apiregistration.k8s.io";
/// The group of access reviews.
pub const AUTHORIZATION_GROUP: &str = "authorization.k8s.io";
/// The group of ingresses, network policies and ServiceCIDRs.
pub const NETWORKING_GROUP: &str = "networking.k8s.io";
/// The group of roles and bindings.
pub const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// The name of this server for clients: that of the reference.
pub const SERVER_NAME: &str = "kube-apiserver";
/// The name of this server in traces: that of the reference.
pub const SERVICE_OF_TRACES: &str = "apiserver";
/// The ConfigMap of each namespace with the cluster's CA bundle.
pub const ROOT_CERTIFICATE: &str = "kube-root-ca.crt";
/// Where clients in a container expect the credentials of its service account.
pub const POD_CREDENTIALS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The type of token Secrets.
pub const ACCOUNT_TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
/// The type of bootstrap token Secrets.
pub const BOOTSTRAP_TOKEN_TYPE: &str = "bootstrap.kubernetes.io/token";
/// The extra attribute with the ID of the credential.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The finalizer of a claim in use.
pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// The finalizer of a volume in use.
pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
/// The finalizer of every namespace.
pub const NAMESPACE_FINALIZER: &str = "kubernetes";
/// The label with a namespace's own name.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// The label with the name of a host.
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

/// The media type of JSON.
pub const JSON: &str = "application/json";
/// The media type of YAML.
pub const YAML: &str = "application/yaml";
/// The media type of the Protobuf envelope.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// The media type of CBOR.
pub const CBOR: &str = "application/cbor";
/// The media type of CBOR watches: a sequence of CBOR items.
pub const CBOR_SEQUENCE: &str = "application/cbor-seq";

/// Asks for the metadata of listed objects, and for whole objects of servers that cannot give that.
pub const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// The media type of aggregated discovery. Its parameters are part of the response's Content-Type.
pub const AGGREGATED_DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The media type of a JSON Patch.
pub const JSON_PATCH: &str = "application/json-patch+json";
/// The media type of a JSON merge patch.
pub const MERGE_PATCH: &str = "application/merge-patch+json";
/// The media type of a strategic merge patch.
pub const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
/// The media type of server-side apply in YAML.
pub const APPLY_PATCH: &str = "application/apply-patch+yaml";
/// The media type of server-side apply in CBOR.
pub const CBOR_APPLY_PATCH: &str = "application/apply-patch+cbor";

/// The user of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// An API server as a client of itself and of other API servers. Others may have the name, too.
pub const API_SERVER_USER: &str = "system:apiserver";
/// The group of unauthenticated users.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group with unrestricted access.
pub const MASTERS: &str = "system:masters";
/// The group of those that monitor the server.
pub const MONITORING: &str = "system:monitoring";
/// The prefix of service accounts' user names.
pub const ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// The group of all service accounts; with a colon and a namespace, of those in it.
pub const ALL_ACCOUNTS: &str = "system:serviceaccounts";
/// The group of nodes.
pub const NODES: &str = "system:nodes";
/// The prefix of nodes' user names.
pub const NODE_PREFIX: &str = "system:node:";

/// The namespace of system components.
pub const SYSTEM_NAMESPACE: &str = "kube-system";
/// The namespace that all users may read.
pub const PUBLIC_NAMESPACE: &str = "kube-public";
/// The namespace of node leases.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// The namespaces that exist from the first start.
pub const SYSTEM_NAMESPACES: [&str; 4] = ["default", SYSTEM_NAMESPACE, PUBLIC_NAMESPACE, LEASE_NAMESPACE];
/// The resource of namespaces, and the store they are in.
pub const NAMESPACES: &str = "namespaces";
/// The namespaces that cannot be deleted.
pub const IMMORTAL_NAMESPACES: [&str; 3] = ["default", SYSTEM_NAMESPACE, PUBLIC_NAMESPACE];
/// The path of the registrations of API groups.
pub const API_SERVICES_PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// The annotation of the bookmark after the initial events of a watch.
pub const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
/// The annotation beside it with an empty list in base64, for clients that build a list of the events.
pub const INITIAL_EVENTS_BLUEPRINT: &str = "kubernetes.io/initial-events-list-blueprint";
