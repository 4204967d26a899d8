//! The flags that have an effect, by topic. Each field is a flag of the same name, its comment is the help text, and its default
//! is stated only here.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use pilothouse_api::release::Release;

use super::allowed_origin::AllowedOrigin;
use super::gates::GateSetting;
use super::memory_limit::MemoryLimit;
use super::tls_values::{NamedCertificate, transport_directive};
use super::values::{IpRange, PortRange, RuntimeSetting, byte_quantity, go_duration, store_quota};
use crate::limits;

/// Secure serving.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Secure serving")]
pub struct Serving {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    pub bind_address: IpAddr,
    /// Let other servers of the same user listen on the same port (SO_REUSEPORT); the system gives each some of the connections.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub permit_port_sharing: bool,
    /// Port to listen on; 0 picks a free one.
    #[arg(long, default_value_t = 6443, value_name = "PORT")]
    pub secure_port: u16,
    /// IP address on which to advertise the server to members of the cluster, by the endpoints of the service kubernetes. By default the
    /// bind address, or if that is a loopback address or none, the first address of this host: endpoints cannot be loopback addresses.
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<IpAddr>,
    /// Host name for clients outside of the cluster; the serving certificate covers it.
    #[arg(long, value_name = "NAME")]
    pub external_hostname: Option<String>,
    /// Directory of keys and certificates; missing ones are created there [default: pki in the data directory].
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,
    /// Serving certificate, followed by its intermediates; needs --tls-private-key-file.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of --tls-cert-file.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Minimum TLS version.
    #[arg(long, default_value = "VersionTLS12", value_enum, value_name = "VERSION")]
    pub tls_min_version: TlsVersion,
    /// Cipher suites by their IANA names [default: a list of secure suites].
    #[arg(long, value_delimiter = ',', value_name = "SUITE,...")]
    pub tls_cipher_suites: Vec<String>,
    /// Serving certificate for certain names (SNI): CERT,KEY or CERT,KEY:NAME,...; may be repeated.
    #[arg(long, value_name = "CERT,KEY[:NAME,...]")]
    pub tls_sni_cert_key: Vec<NamedCertificate>,
    /// Directives of the Strict-Transport-Security header: max-age=SECONDS, includeSubDomains, preload.
    #[arg(long, value_delimiter = ',', value_parser = transport_directive, value_name = "DIRECTIVE,...")]
    pub strict_transport_security_directives: Vec<String>,
    /// Origins whose pages in browsers may call, as regular expressions that are bound to both ends of the host, such as
    /// `//example\.com(:|$)`. Without it, browsers keep pages of other origins from reading responses.
    #[arg(long, value_delimiter = ',', value_name = "PATTERN,...")]
    pub cors_allowed_origins: Vec<AllowedOrigin>,
    /// Maximum number of concurrent streams per HTTP/2 connection; 0 means 250.
    #[arg(long, default_value_t = limits::STREAMS_PER_CONNECTION, value_name = "N")]
    pub http2_max_streams_per_connection: u32,
    /// Maximum number of open connections; 0 means 25000 per worker, or fewer if the limit of open files is lower. At the limit, idle
    /// connections without an authenticated request are closed.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub max_connections: usize,
    /// Maximum number of open connections per source address (for IPv6, per /64 network); 0 means half of all. The loopback
    /// addresses 127.0.0.1 and ::1 have no limit of their own.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub max_connections_per_source: usize,
    /// Disable HTTP/2, so that only HTTP/1.1 is served.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub disable_http2_serving: bool,
    /// Probability that a request closes its HTTP/2 connection with GOAWAY, so that the client reconnects; at most 0.02.
    #[arg(long, default_value_t = 0.0, value_name = "CHANCE")]
    pub goaway_chance: f64,
    /// Number of threads that serve connections; 0 means one per core.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub workers: usize,
}

/// The storage of objects.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Storage")]
pub struct Storage {
    /// Directory of all files of this server. An embedder may omit it with the memory engine: then no files are written.
    #[arg(long, default_value = "./pilothouse-data", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Storage engine: redb is durable, memory loses all objects when the server stops. If given, --etcd-servers is not used.
    #[arg(long, default_value = "redb", value_enum)]
    pub engine: Engine,
    /// Whether an engine is requested: then objects are not stored in etcd.
    #[arg(skip)]
    pub engine_given: bool,
    /// kube-apiserver's name of --engine; etcd3 means the servers of --etcd-servers, and without them redb.
    #[arg(long, value_enum)]
    pub storage_backend: Option<Backend>,
    /// How long old revisions are retained for watches and lists.
    #[arg(long, default_value = "5m0s", value_parser = go_duration, value_name = "DURATION")]
    pub etcd_compaction_interval: Duration,
    /// Bytes of superseded revisions that are retained at most; one resource may have an eighth of them. Not used with etcd.
    #[arg(long, default_value = "1Gi", value_parser = byte_quantity, value_name = "QUANTITY")]
    pub history_bytes: u64,
    /// Bytes that all stored objects with their history may take; beyond that only deletions and small updates are accepted. 0 means
    /// no limit but the disk. Not used with etcd.
    #[arg(long, default_value = "0", value_parser = store_quota, value_name = "QUANTITY")]
    pub quota_backend_bytes: u64,
    /// File with an EncryptionConfiguration of apiserver.config.k8s.io/v1: which resources are encrypted in storage, and how.
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
    /// Use a changed --encryption-provider-config without a restart.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub encryption_provider_config_automatic_reload: bool,
    /// Directory in which the server keeps backups of itself; none are made without it. Not possible with etcd.
    #[arg(long, value_name = "DIR")]
    pub backup_dir: Option<PathBuf>,
    /// How often the server makes a backup.
    #[arg(long, default_value = "1h0m0s", value_parser = go_duration, value_name = "DURATION")]
    pub backup_interval: Duration,
    /// How many of these backups are kept; the oldest are removed.
    #[arg(long, default_value_t = 24, value_name = "COUNT")]
    pub backup_retention: usize,
    /// How long events are retained after they were last written; 0 means forever.
    #[arg(long, default_value = "1h0m0s", value_parser = go_duration, value_name = "DURATION")]
    pub event_ttl: Duration,
}

/// The storage engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// A database file; durable.
    Redb,
    /// In memory; lost when the server stops.
    Memory,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Redb => "redb",
            Engine::Memory => "memory",
        })
    }
}

/// A value of `--storage-backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// Like `--engine redb`.
    Redb,
    /// Like `--engine memory`.
    Memory,
    /// The servers of --etcd-servers, or redb without them.
    Etcd3,
}

/// The minimum TLS version, spelled as in kube-apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[value(name = "VersionTLS12")]
    Tls12,
    /// TLS 1.3.
    #[value(name = "VersionTLS13")]
    Tls13,
}

/// Authentication.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Authentication")]
pub struct Authentication {
    /// CA bundle for client certificates, besides the server's own CA.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// CSV file of static tokens: token,user,uid,"group,...".
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Accept requests without credentials, as system:anonymous.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub anonymous_auth: bool,
    /// Whether the flag is set: then the authentication file must not configure anonymous access.
    #[arg(skip)]
    pub anonymous_auth_given: bool,
    /// File with an AuthenticationConfiguration: accepted OpenID Connect providers, and paths of anonymous access.
    #[arg(long, value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,
    /// Accept bootstrap tokens, which are stored as Secrets in kube-system.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub enable_bootstrap_token_auth: bool,
    /// Audiences of the API: tokens must be bound to at least one of them [default: the issuers].
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub api_audiences: Vec<String>,
}

/// The tokens of service accounts.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Service accounts")]
pub struct ServiceAccounts {
    /// Issuer of service account tokens; the first is used for new tokens, all are accepted.
    #[arg(long, default_value = "https://kubernetes.default.svc", value_name = "URL")]
    pub service_account_issuer: Vec<String>,
    /// Keys that verify service account tokens, besides the signing key [default: that of --tls-private-key-file].
    #[arg(long, value_name = "FILE")]
    pub service_account_key_file: Vec<PathBuf>,
    /// Key that signs service account tokens [default: sa.key in the certificate directory].
    #[arg(long, value_name = "FILE")]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// Socket of an external signer of service account tokens, a path or @name for an abstract one. Excludes the two flags above; needs
    /// the gate ExternalServiceAccountTokenSigner.
    #[arg(long, value_name = "SOCKET")]
    pub service_account_signing_endpoint: Option<String>,
    /// Refuse legacy tokens if their Secret or service account no longer exists. The objects of other tokens are always checked.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub service_account_lookup: bool,
    /// Maximum lifetime of new service account tokens; 0 means no limit.
    #[arg(long, default_value = "0s", value_parser = go_duration, value_name = "DURATION")]
    pub service_account_max_token_expiration: Duration,
    /// Extend the default tokens of pods to a year, so that old clients that never reload them still work.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub service_account_extend_token_expiration: bool,
    /// URI of the JSON Web Key Set in the discovery document [default: this server].
    #[arg(long, value_name = "URL")]
    pub service_account_jwks_uri: Option<String>,
}

/// Authorization.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Authorization")]
pub struct Authorization {
    /// File with an AuthorizationConfiguration: the ordered authorizers and the settings of webhooks. Replaces the mode and webhook
    /// flags; changes are applied while the server runs.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "authorization_mode",
        "authorization_webhook_config_file",
        "authorization_webhook_version",
        "authorization_webhook_cache_authorized_ttl",
        "authorization_webhook_cache_unauthorized_ttl",
    ])]
    pub authorization_config: Option<PathBuf>,
    /// Ordered list of authorization modes.
    #[arg(long, default_value = "RBAC", value_enum, value_delimiter = ',', value_name = "MODE,...")]
    pub authorization_mode: Vec<AuthorizationMode>,
    /// File of ABAC policies, one JSON object per line; for the mode ABAC.
    #[arg(long, value_name = "FILE")]
    pub authorization_policy_file: Option<PathBuf>,
    /// Kubeconfig of the webhook; for the mode Webhook.
    #[arg(long, value_name = "FILE")]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// API version of the SubjectAccessReviews that are sent to it: v1 or v1beta1.
    #[arg(long, default_value = "v1beta1", value_parser = ["v1", "v1beta1"], value_name = "VERSION")]
    pub authorization_webhook_version: String,
    /// How long its allowing responses are cached.
    #[arg(long, default_value = "5m0s", value_parser = go_duration, value_name = "DURATION")]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// How long its other responses are cached.
    #[arg(long, default_value = "30s", value_parser = go_duration, value_name = "DURATION")]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

/// An authorization mode, spelled as in kube-apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuthorizationMode {
    /// Allows all requests.
    #[value(name = "AlwaysAllow")]
    AlwaysAllow,
    /// Denies all requests.
    #[value(name = "AlwaysDeny")]
    AlwaysDeny,
    /// A policy file.
    #[value(name = "ABAC")]
    Abac,
    /// A remote server.
    #[value(name = "Webhook")]
    Webhook,
    /// Roles and bindings.
    #[value(name = "RBAC")]
    Rbac,
    /// Kubelets may read what their pods need.
    #[value(name = "Node")]
    Node,
}

impl fmt::Display for AuthorizationMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AuthorizationMode::AlwaysAllow => "AlwaysAllow",
            AuthorizationMode::AlwaysDeny => "AlwaysDeny",
            AuthorizationMode::Abac => "ABAC",
            AuthorizationMode::Webhook => "Webhook",
            AuthorizationMode::Rbac => "RBAC",
            AuthorizationMode::Node => "Node",
        })
    }
}

/// The served APIs and admission.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "API and admission")]
pub struct Api {
    /// API versions to enable or disable: batch/v1=false, api/beta=true.
    #[arg(long, value_delimiter = ',', value_name = "KEY=BOOL,...")]
    pub runtime_config: Vec<RuntimeSetting>,
    /// Feature gates: Name=true, AllAlpha=true.
    #[arg(long, value_delimiter = ',', value_name = "NAME=BOOL,...")]
    pub feature_gates: Vec<GateSetting>,
    /// IP ranges for services; one per address family.
    #[arg(long, value_delimiter = ',', default_value = "10.0.0.0/24", value_name = "CIDR,...")]
    pub service_cluster_ip_range: Vec<IpRange>,
    /// Port range for services of type NodePort.
    #[arg(long, default_value = "30000-32767", value_name = "FIRST-LAST")]
    pub service_node_port_range: PortRange,
    /// Node port of the service kubernetes, if this server creates it: it is of type NodePort then; 0 for ClusterIP.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_name = "PORT")]
    pub kubernetes_service_node_port: i64,
    /// Who maintains the endpoints of the service kubernetes: the servers that are alive (lease), each server for itself, up to
    /// --apiserver-count of them (master-count, deprecated), or none of them.
    #[arg(long, default_value = "lease", value_enum, hide_possible_values = true, value_name = "TYPE")]
    pub endpoint_reconciler_type: EndpointReconcilerType,
    /// Number of servers, for --endpoint-reconciler-type=master-count. Deprecated.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_name = "N")]
    pub apiserver_count: i64,
    /// Admission plug-ins to enable in addition to the default ones.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub enable_admission_plugins: Vec<String>,
    /// Admission plug-ins to disable.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub disable_admission_plugins: Vec<String>,
    /// The exact list of admission plug-ins. Deprecated: use the two flags above, which exclude it.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub admission_control: Vec<String>,
    /// File with the configurations of admission plug-ins.
    #[arg(long, value_name = "FILE")]
    pub admission_control_config_file: Option<PathBuf>,
    /// Default tolerationSeconds of the not-ready:NoExecute toleration.
    #[arg(long, default_value_t = 300, allow_negative_numbers = true, value_name = "SECONDS")]
    pub default_not_ready_toleration_seconds: i64,
    /// Default tolerationSeconds of the unreachable:NoExecute toleration.
    #[arg(long, default_value_t = 300, allow_negative_numbers = true, value_name = "SECONDS")]
    pub default_unreachable_toleration_seconds: i64,
    /// Allow privileged containers.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub allow_privileged: bool,
    /// The release that /version reports.
    #[arg(skip)]
    pub release: Release,
}

impl Api {
    /// Checks `--kubernetes-service-node-port`, in the words of the reference.
    pub fn validate_kubernetes_node_port(&self) -> Result<(), String> {
        let (port, range) = (self.kubernetes_service_node_port, &self.service_node_port_range);
        let mut errors = Vec::new();
        if !(0..=i64::from(u16::MAX)).contains(&port) {
            errors.push(format!(
                "--kubernetes-service-node-port {port} must be between 0 and 65535, inclusive. If 0, the Kubernetes master \
                 service will be of type ClusterIP"
            ));
        }
        if port > 0 && self.kubernetes_node_port().is_none_or(|port| !range.contains(port)) {
            errors.push(format!("kubernetes service node port range {range} doesn't contain {port}"));
        }
        match errors.as_slice() {
            [] => Ok(()),
            [error] => Err(error.clone()),
            errors => Err(format!("[{}]", errors.join(", "))),
        }
    }

    /// The node port of the service `kubernetes`; `None` if it has none.
    pub fn kubernetes_node_port(&self) -> Option<u16> {
        u16::try_from(self.kubernetes_service_node_port).ok().filter(|port| *port > 0)
    }
}

/// Who maintains the endpoints of the service `kubernetes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EndpointReconcilerType {
    /// The servers that are alive: each keeps a record under a lease. An empty text means this, as in kube-apiserver.
    #[value(alias = "")]
    Lease,
    /// Each server adds itself, and removes others if there are more than `--apiserver-count`.
    MasterCount,
    /// Somebody else.
    None,
}

/// Connections to kubelets, for logs, exec, port forwarding and proxies.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Kubelets")]
pub struct Kubelets {
    /// Preferred types of node addresses, best first.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "Hostname,InternalDNS,InternalIP,ExternalDNS,ExternalIP",
        value_name = "TYPE,..."
    )]
    pub kubelet_preferred_address_types: Vec<String>,
    /// Port of kubelets whose Node does not state one.
    #[arg(long, default_value_t = 10_250, value_name = "PORT")]
    pub kubelet_port: u16,
    /// CA bundle for the serving certificates of kubelets; without it these are not verified.
    #[arg(long, value_name = "FILE")]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// Client certificate for kubelets; needs --kubelet-client-key.
    #[arg(long, value_name = "FILE")]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// Private key of --kubelet-client-certificate.
    #[arg(long, value_name = "FILE")]
    pub kubelet_client_key: Option<PathBuf>,
    /// Timeout for connecting to a kubelet, a pod or a service.
    #[arg(long, default_value = "5s", value_parser = go_duration, value_name = "DURATION")]
    pub kubelet_timeout: Duration,
}

impl Kubelets {
    /// A warning if kubelets are not verified. A server on the loopback interface without a client certificate for kubelets has no
    /// kubelets to connect to.
    pub(super) fn warning(&self, bind_address: IpAddr) -> Option<String> {
        let has_kubelets = !bind_address.is_loopback() || self.kubelet_client_certificate.is_some();
        (has_kubelets && self.kubelet_certificate_authority.is_none()).then(|| {
            "--kubelet-certificate-authority is not set: kubelets are not verified, and an attacker at the address of a node \
             can read and change logs, commands and forwarded connections"
                .to_owned()
        })
    }
}

/// Proxying to aggregated API servers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "API aggregation")]
pub struct Aggregation {
    /// Client certificate of this server as the front proxy of aggregated API servers; needs --proxy-client-key-file.
    #[arg(long, value_name = "FILE")]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Private key of --proxy-client-cert-file.
    #[arg(long, value_name = "FILE")]
    pub proxy_client_key_file: Option<PathBuf>,
    /// Refuse redirects of aggregated API servers.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub aggregator_reject_forwarding_redirect: bool,
    /// Connect to webhooks and aggregated API servers at an endpoint of their service instead of its cluster IP.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub enable_aggregator_routing: bool,
}

/// The settings of controllers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Controllers")]
pub struct Controllers {
    /// Controllers to enable: * for all that are on by default, NAME enables one, -NAME disables one, -* disables all.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true,
        value_name = "NAME,..."
    )]
    pub controllers: Vec<String>,
    /// Period for recalculating the usage of all resource quotas; 0 disables it.
    #[arg(long, default_value = "5m0s", value_parser = go_duration, value_name = "DURATION")]
    pub resource_quota_sync_period: Duration,
    /// How long a legacy token must be unused before it is marked invalid, and then before it is deleted.
    #[arg(long, default_value = "8760h0m0s", value_parser = go_duration, value_name = "DURATION")]
    pub legacy_service_account_token_clean_up_period: Duration,
    /// Which part of a bootstrap token is the key of its signature of the ConfigMap cluster-info: the whole `token`, as documented, or its
    /// `secret` part, with which `kubeadm join --token` verifies. Not a flag of kube-apiserver.
    #[arg(long, default_value = "token", value_enum, value_name = "PART")]
    pub cluster_info_signing_key: SigningKeyPart,
    /// Mark deleted objects with the finalizers by which a garbage collector knows what to do with their dependents. The collector itself
    /// is one of --controllers.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub enable_garbage_collector: bool,
    /// Number of terminated pods that may exist before the oldest are deleted; 0 disables it.
    #[arg(long, default_value_t = 12_500, value_name = "N")]
    pub terminated_pod_gc_threshold: u32,
}

/// The part of a bootstrap token that signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SigningKeyPart {
    /// The whole token, `id.secret`.
    Token,
    /// What is behind the dot.
    Secret,
}

/// Limits of requests and memory.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct RequestLimits {
    /// Maximum number of non-mutating requests in flight; 0 means no limit. With priority and fairness the sum of both is shared by the priority levels.
    #[arg(long, default_value_t = 400, value_name = "N")]
    pub max_requests_inflight: u32,
    /// Maximum number of mutating requests in flight; 0 means no limit. With priority and fairness the sum of both is shared by the priority levels.
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub max_mutating_requests_inflight: u32,
    /// Use API Priority and Fairness instead of the two limits of requests in flight.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub enable_priority_and_fairness: bool,
    /// Timeout of requests, except for watches and other long-running ones.
    #[arg(long, default_value = "1m0s", value_parser = go_duration, value_name = "DURATION")]
    pub request_timeout: Duration,
    /// Memory limit of the server, such as 512Mi; requests beyond it get a 429. The default is 90% of the limit of the control group
    /// (the container); `none` for no limit. Not a flag of kube-apiserver.
    #[arg(long, default_value = "auto", value_parser = MemoryLimit::parse, value_name = "QUANTITY")]
    pub memory_limit: MemoryLimit,
    /// Maximum number of open watches per user. 0 means no fixed limit; with a memory limit, one user may use half of the memory for
    /// watches. Not a flag of kube-apiserver.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub max_watches_per_user: usize,
    /// How many objects a deletion of a collection removes at the same time, at most 32 [default: 32].
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub delete_collection_workers: Option<i64>,
    /// Bytes that an upgraded connection to a pod, service or node (exec, attach, port-forward, proxy) may carry in a second, each way;
    /// 0 for any number.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_name = "BYTES")]
    pub max_connection_bytes_per_sec: i64,
    /// Minimum duration in seconds of a watch without timeoutSeconds; the maximum is twice that.
    #[arg(long, default_value_t = 1_800, value_name = "SECONDS")]
    pub min_request_timeout: u32,
}

impl RequestLimits {
    /// How many objects a deletion of a collection removes at the same time.
    pub fn concurrent_deletions(&self) -> usize {
        let workers = self.delete_collection_workers.map(|workers| usize::try_from(workers).unwrap_or(1));
        workers.unwrap_or(limits::DELETIONS_IN_FLIGHT).clamp(1, limits::DELETIONS_IN_FLIGHT)
    }

    /// How many bytes an upgraded connection may carry in a second; `None` for any number.
    pub fn max_connection_rate(&self) -> Option<u64> {
        u64::try_from(self.max_connection_bytes_per_sec).ok().filter(|rate| *rate > 0)
    }
}

/// Start and shutdown.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Start and stop")]
pub struct Lifecycle {
    /// How long after its start /livez takes for granted that the start will be complete.
    #[arg(long, default_value = "0s", value_parser = go_duration, value_name = "DURATION")]
    pub livez_grace_period: Duration,
    /// How long /readyz fails before the server stops accepting connections.
    #[arg(long, default_value = "0s", value_parser = go_duration, value_name = "DURATION")]
    pub shutdown_delay_duration: Duration,
    /// After that delay, keep accepting connections until the last request is answered, and tell clients to try another server (429).
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub shutdown_send_retry_after: bool,
    /// How long watches may take to end after that delay. They end one after the other, so that other servers do not get them all at
    /// once; 0 ends them together.
    #[arg(long, default_value = "0s", value_parser = go_duration, value_name = "DURATION")]
    pub shutdown_watch_termination_grace_period: Duration,
}

/// Flags of traces.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Traces")]
pub struct Traces {
    /// File with the configuration of traces: where a collector is, and how many requests are traced.
    #[arg(long, value_name = "FILE")]
    pub tracing_config_file: Option<PathBuf>,
}
