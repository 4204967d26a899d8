//! The names of feature gates that affect the server itself. Those that affect objects are in `features.rs` of apimachinery.

macro_rules! gates {
    ($($(#[$doc:meta])+ $constant:ident = $name:literal;)+) => {
        $($(#[$doc])+ pub const $constant: &str = $name;)+

        /// The names of all these gates.
        pub const ALL: &[&str] = &[$($constant,)+];
    };
}

gates! {
    /// Aggregated discovery is not served in its beta version.
    AGGREGATED_DISCOVERY_REMOVE_BETA_TYPE = "AggregatedDiscoveryRemoveBetaType";
    /// Kubelets may request certificates for other nodes.
    ALLOW_INSECURE_KUBELET_CERTIFICATE_SIGNING_REQUESTS = "AllowInsecureKubeletCertificateSigningRequests";
    /// The uid of a user may come from a certificate.
    ALLOW_PARSING_USER_UID_FROM_CERT_AUTH = "AllowParsingUserUIDFromCertAuth";
    /// Objects that cannot be read may be deleted.
    ALLOW_UNSAFE_MALFORMED_OBJECT_DELETION = "AllowUnsafeMalformedObjectDeletion";
    /// Anonymous access may be limited to some paths.
    ANONYMOUS_AUTH_CONFIGURABLE_ENDPOINTS = "AnonymousAuthConfigurableEndpoints";
    /// Large responses are compressed.
    API_RESPONSE_COMPRESSION = "APIResponseCompression";
    /// API servers have identities, under which they keep leases and publish their storage versions.
    API_SERVER_IDENTITY = "APIServerIdentity";
    /// Requests are traced, if there is a configuration for it.
    API_SERVER_TRACING = "APIServerTracing";
    /// Nodes may list and watch only their own pods.
    AUTHORIZE_NODE_WITH_SELECTORS = "AuthorizeNodeWithSelectors";
    /// Authorization takes label and field selectors into account.
    AUTHORIZE_WITH_SELECTORS = "AuthorizeWithSelectors";
    /// CBOR is served and accepted.
    CBOR_SERVING_AND_STORAGE = "CBORServingAndStorage";
    /// `/flagz` is served.
    COMPONENT_FLAGZ = "ComponentFlagz";
    /// `/statusz` is served.
    COMPONENT_STATUSZ = "ComponentStatusz";
    /// The leaders of other components are elected among LeaseCandidates.
    COORDINATED_LEADER_ELECTION = "CoordinatedLeaderElection";
    /// The rules of the schema validate beside the functions of a kind.
    DECLARATIVE_VALIDATION = "DeclarativeValidation";
    /// Where both validate, the rules of the schema decide.
    DECLARATIVE_VALIDATION_TAKEOVER = "DeclarativeValidationTakeover";
    /// Cluster IPs are not kept in the records that earlier releases read.
    DISABLE_ALLOCATOR_DUAL_WRITE = "DisableAllocatorDualWrite";
    /// A signer outside of the server may sign the tokens of service accounts.
    EXTERNAL_SERVICE_ACCOUNT_TOKEN_SIGNER = "ExternalServiceAccountTokenSigner";
    /// The first version of the protocol of KMS plugins may be configured.
    KMS_V1 = "KMSv1";
    /// The log may be divided into two streams, of which one may be buffered.
    LOGGING_ALPHA_OPTIONS = "LoggingAlphaOptions";
    /// Log lines may be JSON.
    LOGGING_BETA_OPTIONS = "LoggingBetaOptions";
    /// Nodes may read the service accounts of their pods.
    KUBELET_SERVICE_ACCOUNT_TOKEN_FOR_CREDENTIAL_PROVIDERS = "KubeletServiceAccountTokenForCredentialProviders";
    /// Cluster IPs have IPAddress objects, and ServiceCIDR objects may add ranges.
    MULTI_CIDR_SERVICE_ALLOCATOR = "MultiCIDRServiceAllocator";
    /// Policies of the cluster may change objects.
    MUTATING_ADMISSION_POLICY = "MutatingAdmissionPolicy";
    /// OpenAPI lists the allowed values of fields.
    OPENAPI_ENUMS = "OpenAPIEnums";
    /// A deleted namespace loses its pods first.
    ORDERED_NAMESPACE_DELETION = "OrderedNamespaceDeletion";
    /// Pods get the topology labels of their node.
    POD_TOPOLOGY_LABELS_ADMISSION = "PodTopologyLabelsAdmission";
    /// Ports are forwarded over WebSocket.
    PORT_FORWARD_WEBSOCKETS = "PortForwardWebsockets";
    /// A front proxy passes the uid of a user in a header.
    REMOTE_REQUEST_HEADER_UID = "RemoteRequestHeaderUID";
    /// Nodes get tokens only for the audiences of their pods.
    SERVICE_ACCOUNT_NODE_AUDIENCE_RESTRICTION = "ServiceAccountNodeAudienceRestriction";
    /// API servers publish the versions in which they store resources.
    STORAGE_VERSION_API = "StorageVersionAPI";
    /// Discovery names a hash of the version in which a resource is stored.
    STORAGE_VERSION_HASH = "StorageVersionHash";
    /// StorageVersionMigrations are served and carried out.
    STORAGE_VERSION_MIGRATOR = "StorageVersionMigrator";
    /// Authentication may be configured by a file.
    STRUCTURED_AUTHENTICATION_CONFIGURATION = "StructuredAuthenticationConfiguration";
    /// Commands over WebSocket are translated for kubelets.
    TRANSLATE_STREAM_CLOSE_WEBSOCKET_REQUESTS = "TranslateStreamCloseWebsocketRequests";
    /// HTTP/2 connections of unauthenticated clients end after one request.
    UNAUTHENTICATED_HTTP2_DOS_MITIGATION = "UnauthenticatedHTTP2DOSMitigation";
    /// Requests for resources that this server does not serve are passed on to a server on the same etcd that does.
    UNKNOWN_VERSION_INTEROPERABILITY_PROXY = "UnknownVersionInteroperabilityProxy";
    /// Pods with users of their own need fewer restrictions.
    USER_NAMESPACES_POD_SECURITY_STANDARDS = "UserNamespacesPodSecurityStandards";
    /// A health check tells whether objects are served from memory.
    WATCH_CACHE_INITIALIZATION_POST_START_HOOK = "WatchCacheInitializationPostStartHook";
    /// A watch may begin with the list.
    WATCH_LIST = "WatchList";
}
