//! The settings that have an effect, by theme. Each field is a flag of the same name, its comment is the flag's help,
//! and its default stands beside it and nowhere else.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use pilothouse_api::release::Release;

use super::gates::GateSetting;
use super::memory_limit::MemoryLimit;
use super::tls_values::{NamedCertificate, transport_directive};
use super::values::{IpRange, PortRange, RuntimeSetting, go_duration};
use crate::limits;

/// Where and how the server listens.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Secure serving")]
pub struct Serving {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    pub bind_address: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 6443, value_name = "PORT")]
    pub secure_port: u16,
    /// Address that other members of the cluster reach this server at; by default the one it listens on.
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<IpAddr>,
    /// Host name under which clients outside the cluster reach this server; the serving certificate covers it.
    #[arg(long, value_name = "NAME")]
    pub external_hostname: Option<String>,
    /// Directory of keys and certificates; what is missing is made there [default: pki in the data directory].
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,
    /// Serving certificate, followed by its intermediates; needs --tls-private-key-file.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of --tls-cert-file.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Oldest TLS version that clients may use.
    #[arg(long, default_value = "VersionTLS12", value_enum, value_name = "VERSION")]
    pub tls_min_version: TlsVersion,
    /// Cipher suites by their IANA names [default: a list that is good today].
    #[arg(long, value_delimiter = ',', value_name = "SUITE,...")]
    pub tls_cipher_suites: Vec<String>,
    /// Another certificate, for clients that ask for one of its names: CERT,KEY or CERT,KEY:NAME,...; may be given often.
    #[arg(long, value_name = "CERT,KEY[:NAME,...]")]
    pub tls_sni_cert_key: Vec<NamedCertificate>,
    /// What browsers are told about speaking HTTPS alone: max-age=SECONDS, includeSubDomains, preload.
    #[arg(long, value_delimiter = ',', value_parser = transport_directive, value_name = "DIRECTIVE,...")]
    pub strict_transport_security_directives: Vec<String>,
    /// Streams that one HTTP/2 connection may have open; 0 stands for 250.
    #[arg(long, default_value_t = limits::STREAMS_PER_CONNECTION, value_name = "N")]
    pub http2_max_streams_per_connection: u32,
    /// Connections that may be open; 0 stands for 25000 per worker, or fewer if not so many files may be open. At the bound, idle
    /// connections without an authenticated request make room.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub max_connections: usize,
    /// Connections that one address may have open (of IPv6 addresses, one /64 network); 0 stands for half of all. The loopback
    /// addresses 127.0.0.1 and ::1 have no bound of their own.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub max_connections_per_source: usize,
    /// Speak HTTP/1.1 only.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub disable_http2_serving: bool,
    /// Chance that a request makes the server ask its connection to reconnect elsewhere; at most 0.02.
    #[arg(long, default_value_t = 0.0, value_name = "CHANCE")]
    pub goaway_chance: f64,
    /// Threads that serve connections; 0 takes one per core.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub workers: usize,
}

/// Where objects are kept.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Storage")]
pub struct Storage {
    /// Directory of everything this server keeps. An embedder may leave it out with the memory engine: then nothing
    /// is written at all.
    #[arg(long, default_value = "./pilothouse-data", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// What keeps the objects: redb is durable, memory forgets.
    #[arg(long, default_value = "redb", value_enum)]
    pub engine: Engine,
    /// The reference server's name of --engine; etcd3 is accepted and means redb.
    #[arg(long, value_enum)]
    pub storage_backend: Option<Backend>,
    /// How long superseded versions stay: watches and lists reach back that far.
    #[arg(long, default_value = "5m0s", value_parser = go_duration, value_name = "DURATION")]
    pub etcd_compaction_interval: Duration,
    /// How long events are kept after they were last written; 0 is for ever.
    #[arg(long, default_value = "1h0m0s", value_parser = go_duration, value_name = "DURATION")]
    pub event_ttl: Duration,
}

/// What keeps the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// One file, durable.
    Redb,
    /// Nothing outlives the process.
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
    /// As `--engine redb`.
    Redb,
    /// As `--engine memory`.
    Memory,
    /// What start scripts of the reference server say.
    Etcd3,
}

/// The oldest TLS version a client may use, spelled as the reference server spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[value(name = "VersionTLS12")]
    Tls12,
    /// TLS 1.3.
    #[value(name = "VersionTLS13")]
    Tls13,
}

/// Who is asking.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Authentication")]
pub struct Authentication {
    /// Certificate authorities whose client certificates are accepted, besides the server's own.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// CSV file of static tokens: token,user,uid,"group,...".
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Let requests without credentials in, as system:anonymous.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub anonymous_auth: bool,
    /// Whether somebody said so: then no file may.
    #[arg(skip)]
    pub anonymous_auth_given: bool,
    /// File that says whose OpenID Connect tokens are accepted, and where requests without credentials get in.
    #[arg(long, value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,
    /// Accept the bootstrap tokens that lie as secrets in kube-system.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub enable_bootstrap_token_auth: bool,
    /// What tokens must be meant for [default: the issuers].
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub api_audiences: Vec<String>,
}

/// The tokens of service accounts.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Service accounts")]
pub struct ServiceAccounts {
    /// Issuer of service account tokens; the first makes new tokens, the others are still accepted.
    #[arg(long, default_value = "https://kubernetes.default.svc", value_name = "URL")]
    pub service_account_issuer: Vec<String>,
    /// Keys that verify service account tokens, besides the signing key [default: that of --tls-private-key-file].
    #[arg(long, value_name = "FILE")]
    pub service_account_key_file: Vec<PathBuf>,
    /// Key that signs service account tokens [default: sa.key in the certificate directory].
    #[arg(long, value_name = "FILE")]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// Refuse tokens that lie in a secret when that secret or its service account is gone. Other tokens are always looked
    /// after.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub service_account_lookup: bool,
    /// Longest life of a new service account token; 0 sets no limit.
    #[arg(long, default_value = "0s", value_parser = go_duration, value_name = "DURATION")]
    pub service_account_max_token_expiration: Duration,
    /// Let the tokens that pods are given by default live for a year, so that old clients that never read them again
    /// still work.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub service_account_extend_token_expiration: bool,
    /// Where others find the keys that verify tokens [default: this server].
    #[arg(long, value_name = "URL")]
    pub service_account_jwks_uri: Option<String>,
}

/// May they.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Authorization")]
pub struct Authorization {
    /// File that says who decides, in order, and how servers that are asked are asked. Takes the place of the mode and
    /// webhook flags; changes are taken while the server runs.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "authorization_mode",
        "authorization_webhook_config_file",
        "authorization_webhook_version",
        "authorization_webhook_cache_authorized_ttl",
        "authorization_webhook_cache_unauthorized_ttl",
    ])]
    pub authorization_config: Option<PathBuf>,
    /// Who decides, in order.
    #[arg(long, default_value = "RBAC", value_enum, value_delimiter = ',', value_name = "MODE,...")]
    pub authorization_mode: Vec<AuthorizationMode>,
    /// File of rules, one JSON object a line; for the mode ABAC.
    #[arg(long, value_name = "FILE")]
    pub authorization_policy_file: Option<PathBuf>,
    /// Kubeconfig that says which server the mode Webhook asks.
    #[arg(long, value_name = "FILE")]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// Version of the reviews that are sent to it: v1 or v1beta1.
    #[arg(long, default_value = "v1beta1", value_parser = ["v1", "v1beta1"], value_name = "VERSION")]
    pub authorization_webhook_version: String,
    /// How long its permissions are remembered.
    #[arg(long, default_value = "5m0s", value_parser = go_duration, value_name = "DURATION")]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// How long its refusals are remembered.
    #[arg(long, default_value = "30s", value_parser = go_duration, value_name = "DURATION")]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

/// Who decides whether a request may pass, spelled as the reference server spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuthorizationMode {
    /// Everybody may do everything.
    #[value(name = "AlwaysAllow")]
    AlwaysAllow,
    /// Nobody may do anything.
    #[value(name = "AlwaysDeny")]
    AlwaysDeny,
    /// A file of rules.
    #[value(name = "ABAC")]
    Abac,
    /// Another server is asked.
    #[value(name = "Webhook")]
    Webhook,
    /// Roles and bindings.
    #[value(name = "RBAC")]
    Rbac,
    /// Kubelets see what their pods need.
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

/// What is served, and what is checked and changed on the way in.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "API and admission")]
pub struct Api {
    /// API versions to serve or not: batch/v1=false, api/beta=true.
    #[arg(long, value_delimiter = ',', value_name = "KEY=BOOL,...")]
    pub runtime_config: Vec<RuntimeSetting>,
    /// Features to switch: Name=true, AllAlpha=true.
    #[arg(long, value_delimiter = ',', value_name = "NAME=BOOL,...")]
    pub feature_gates: Vec<GateSetting>,
    /// Control loops to run: * for the usual ones, NAME for one, -NAME for all but one, -* for none.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true,
        value_name = "NAME,..."
    )]
    pub controllers: Vec<String>,
    /// Addresses that services get; one range per address family.
    #[arg(long, value_delimiter = ',', default_value = "10.0.0.0/24", value_name = "CIDR,...")]
    pub service_cluster_ip_range: Vec<IpRange>,
    /// Ports that services of type NodePort get.
    #[arg(long, default_value = "30000-32767", value_name = "FIRST-LAST")]
    pub service_node_port_range: PortRange,
    /// Admission components to add to the usual ones.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub enable_admission_plugins: Vec<String>,
    /// Admission components to leave out.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub disable_admission_plugins: Vec<String>,
    /// The admission components that run, and no others. Deprecated: use the two flags above, which do not go with it.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub admission_control: Vec<String>,
    /// A file with the settings of admission components.
    #[arg(long, value_name = "FILE")]
    pub admission_control_config_file: Option<PathBuf>,
    /// How long a pod that does not say otherwise stays on a node that is not ready.
    #[arg(long, default_value_t = 300, allow_negative_numbers = true, value_name = "SECONDS")]
    pub default_not_ready_toleration_seconds: i64,
    /// How long a pod that does not say otherwise stays on a node that cannot be reached.
    #[arg(long, default_value_t = 300, allow_negative_numbers = true, value_name = "SECONDS")]
    pub default_unreachable_toleration_seconds: i64,
    /// Let pods have privileged containers.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub allow_privileged: bool,
    /// The release that clients are told of.
    #[arg(skip)]
    pub release: Release,
}

/// How the agents on the nodes are reached, for logs, commands and proxies.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Kubelets")]
pub struct Kubelets {
    /// Which address of a node to use, the best kind first.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "Hostname,InternalDNS,InternalIP,ExternalDNS,ExternalIP",
        value_name = "TYPE,..."
    )]
    pub kubelet_preferred_address_types: Vec<String>,
    /// Port of kubelets that do not say where they listen.
    #[arg(long, default_value_t = 10_250, value_name = "PORT")]
    pub kubelet_port: u16,
    /// Certificate authorities of the kubelets' serving certificates; without it these are not verified.
    #[arg(long, value_name = "FILE")]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// Certificate that this server shows to kubelets; needs --kubelet-client-key.
    #[arg(long, value_name = "FILE")]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// Private key of --kubelet-client-certificate.
    #[arg(long, value_name = "FILE")]
    pub kubelet_client_key: Option<PathBuf>,
    /// How long it may take to connect to a kubelet, a pod or a service.
    #[arg(long, default_value = "5s", value_parser = go_duration, value_name = "DURATION")]
    pub kubelet_timeout: Duration,
    /// Reach webhooks and extension servers that are services at one of their endpoints instead of the address of the service.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub enable_aggregator_routing: bool,
}

impl Kubelets {
    /// A remark for the operator if kubelets are not verified. A server that only its own machine reaches, and that has no
    /// certificate for kubelets, has none to talk to.
    pub(super) fn remark(&self, bind_address: IpAddr) -> Option<String> {
        let has_kubelets = !bind_address.is_loopback() || self.kubelet_client_certificate.is_some();
        (has_kubelets && self.kubelet_certificate_authority.is_none()).then(|| {
            "--kubelet-certificate-authority is not given: kubelets are not verified, and whoever answers at the address of \
             a node can read and change logs, commands and forwarded connections"
                .to_owned()
        })
    }
}

/// How requests are passed on to servers that extend this API.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Extension servers")]
pub struct Aggregation {
    /// Certificate by which extension servers know this server as the one who speaks for others; needs --proxy-client-key-file.
    #[arg(long, value_name = "FILE")]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Private key of --proxy-client-cert-file.
    #[arg(long, value_name = "FILE")]
    pub proxy_client_key_file: Option<PathBuf>,
    /// Refuse answers of extension servers that lead clients elsewhere.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub aggregator_reject_forwarding_redirect: bool,
}

/// What the control loops are told.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Control loops")]
pub struct Controllers {
    /// How often the use of every resource quota is counted though nothing happened; 0 for never.
    #[arg(long, default_value = "5m0s", value_parser = go_duration, value_name = "DURATION")]
    pub resource_quota_sync_period: Duration,
    /// How long a token that lies in a Secret must have been unused before it is marked invalid, and then before it goes.
    #[arg(long, default_value = "8760h0m0s", value_parser = go_duration, value_name = "DURATION")]
    pub legacy_service_account_token_clean_up_period: Duration,
    /// How many pods that are over may stay; 0 for all.
    #[arg(long, default_value_t = 12_500, value_name = "N")]
    pub terminated_pod_gc_threshold: u32,
}

/// How much at once, and how long.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct RequestLimits {
    /// Reading requests in flight; 0 is no limit. With priority and fairness the sum of both is shared by the priority levels.
    #[arg(long, default_value_t = 400, value_name = "N")]
    pub max_requests_inflight: u32,
    /// Writing requests in flight; 0 is no limit. With priority and fairness the sum of both is shared by the priority levels.
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub max_mutating_requests_inflight: u32,
    /// Let requests in by flow schemas and priority levels, with queues that are fair to flows, instead of by two plain limits.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub enable_priority_and_fairness: bool,
    /// How long a request may take, watches excepted.
    #[arg(long, default_value = "1m0s", value_parser = go_duration, value_name = "DURATION")]
    pub request_timeout: Duration,
    /// Memory that the server may use, such as 512Mi; requests that need more get a 429. By default what the control group (the
    /// container) allows, less a tenth; `none` for no limit. Not a flag of the reference.
    #[arg(long, default_value = "auto", value_parser = MemoryLimit::parse, value_name = "QUANTITY")]
    pub memory_limit: MemoryLimit,
    /// Watches that one user may have open; 0 for no number, but at most half of what the memory limit has room for. Not a flag of
    /// the reference.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub max_watches_per_user: usize,
    /// Seconds that a watch without a timeout of its own lasts at least; at most it lasts twice as long.
    #[arg(long, default_value_t = 1_800, value_name = "SECONDS")]
    pub min_request_timeout: u32,
}

/// How the server goes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Start and stop")]
pub struct Lifecycle {
    /// How long /readyz fails before the server stops taking connections.
    #[arg(long, default_value = "0s", value_parser = go_duration, value_name = "DURATION")]
    pub shutdown_delay_duration: Duration,
}

/// What the server tells its operator.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct Logging {
    /// How much to say: 0 the usual, 4 debugging, 6 everything. The variable RUST_LOG wins over it.
    #[arg(short = 'v', long = "v", default_value_t = 0, value_name = "LEVEL")]
    pub verbosity: u32,
    /// Let /debug/flags/v change how much is said while the server runs.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub profiling: bool,
    /// How much single modules say: http=6,pki=4.
    #[arg(long, value_delimiter = ',', value_name = "MODULE=LEVEL,...")]
    pub vmodule: Vec<String>,
    /// How log lines look.
    #[arg(long, default_value = "text", value_enum)]
    pub logging_format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}
