//! The configuration of a server: parsed once from flags, or built by an embedder, then validated as a whole.
//!
//! [`flag_groups`] has the flags, [`values`] their types, [`gates`] the feature gates; `compat` has the flags of kube-apiserver
//! that are accepted without effect.

pub mod admission_file;
pub mod allowed_origin;
pub mod audit;
pub mod authentication_file;
pub mod authorization_file;
mod compat;
mod coordinated_leadership;
mod document;
pub mod egress;
mod emulation;
pub mod etcd;
pub mod external_authenticators;
pub mod flag_groups;
pub mod gates;
mod gates_table;
mod gates_without_effect;
mod log_files;
pub mod logging;
mod memory_limit;
pub mod metrics;
pub mod oidc;
mod peers;
pub mod plugins;
mod service_account_tokens;
pub mod signing;
pub mod tls_values;
pub mod values;
mod version;
pub mod watch_cache;

use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser as _, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

pub use admission_file::AdmissionFile;
pub use audit::Audit;
pub use authentication_file::AuthenticationFile;
pub use coordinated_leadership::CoordinatedLeadership;
pub use egress::EgressFlags;
pub use emulation::EmulationFlags;
pub use etcd::EtcdFlags;
pub use external_authenticators::{FrontProxy, TokenWebhook};
pub use flag_groups::{
    Aggregation, Api, Authentication, Authorization, AuthorizationMode, Backend, Controllers,
    EndpointReconcilerType, Engine, Kubelets, Lifecycle, RequestLimits, ServiceAccounts, Serving,
    SigningKeyPart, Storage, TlsVersion, Traces,
};
pub use gates::FeatureGates;
pub use log_files::LogFiles;
pub use logging::{InfoStream, LogFormat, Logging};
pub use memory_limit::MemoryLimit;
pub use metrics::MetricFlags;
pub use oidc::OpenId;
pub use peers::Peers;
pub use signing::Signing;
pub use tls_values::NamedCertificate;
pub use watch_cache::WatchCache;

use pilothouse_api::admission_plugins::PluginName;
use pilothouse_api::gates::{
    ANONYMOUS_AUTH_CONFIGURABLE_ENDPOINTS, MULTI_CIDR_SERVICE_ALLOCATOR,
    STRUCTURED_AUTHENTICATION_CONFIGURATION,
};

use self::plugins::PluginFlags;
use crate::limits;

/// The configuration of a server.
#[derive(Args, Clone, Debug)]
pub struct Config {
    /// Secure serving.
    #[command(flatten)]
    pub serving: Serving,
    /// The storage of objects.
    #[command(flatten)]
    pub storage: Storage,
    /// Recent events in memory.
    #[command(flatten)]
    pub watch_cache: WatchCache,
    /// etcd. [`Config::etcd`] has these flags only if it is used.
    #[command(flatten)]
    pub etcd_flags: EtcdFlags,
    /// Authentication.
    #[command(flatten)]
    pub authentication: Authentication,
    /// The OpenID Connect provider.
    #[command(flatten)]
    pub openid: OpenId,
    /// The authenticating front proxy.
    #[command(flatten)]
    pub front_proxy: FrontProxy,
    /// The token webhook.
    #[command(flatten)]
    pub token_webhook: TokenWebhook,
    /// The tokens of service accounts.
    #[command(flatten)]
    pub service_accounts: ServiceAccounts,
    /// Authorization.
    #[command(flatten)]
    pub authorization: Authorization,
    /// The served APIs and admission.
    #[command(flatten)]
    pub api: Api,
    /// The emulation of an earlier release.
    #[command(flatten)]
    pub emulation: EmulationFlags,
    /// Connections to kubelets.
    #[command(flatten)]
    pub kubelets: Kubelets,
    /// Proxying to aggregated API servers.
    #[command(flatten)]
    pub aggregation: Aggregation,
    /// The proxies of outgoing connections.
    #[command(flatten)]
    pub egress: EgressFlags,
    /// The other API servers on the same etcd.
    #[command(flatten)]
    pub peers: Peers,
    /// The settings of controllers.
    #[command(flatten)]
    pub controllers: Controllers,
    /// Coordinated leader election.
    #[command(flatten)]
    pub coordinated_leadership: CoordinatedLeadership,
    /// The signers of certificate requests.
    #[command(flatten)]
    pub signing: Signing,
    /// Limits of requests and memory.
    #[command(flatten)]
    pub limits: RequestLimits,
    /// Start and shutdown.
    #[command(flatten)]
    pub lifecycle: Lifecycle,
    /// Auditing.
    #[command(flatten)]
    pub audit: Audit,
    /// Metrics.
    #[command(flatten)]
    pub metrics: MetricFlags,
    /// Logging.
    #[command(flatten)]
    pub logging: Logging,
    /// The log files that clients may read.
    #[command(flatten)]
    pub log_files: LogFiles,
    /// Traces.
    #[command(flatten)]
    pub tracing: Traces,
    /// The value of every flag, as text.
    #[arg(skip)]
    pub flags: BTreeMap<String, String>,
    /// Warnings about the given flags; logged at start.
    #[arg(skip)]
    pub warnings: Vec<String>,
}

/// An invalid or inconsistent configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    /// An error that is detected where a setting is used.
    pub fn new(message: impl Into<String>) -> ConfigError {
        ConfigError(message.into())
    }
}

impl Default for Config {
    /// The configuration without any flags.
    #[expect(clippy::expect_used, reason = "the defaults are constants, and a test parses them")]
    fn default() -> Config {
        Config::parse(["pilothouse"]).expect("the defaults parse")
    }
}

impl Config {
    /// A server for tests and embedders: a free port on the loopback interface, objects in memory, no files.
    pub fn ephemeral() -> Config {
        let mut config = Config::default();
        config.serving.secure_port = 0;
        config.storage.engine = Engine::Memory;
        config.storage.data_dir = None;
        config
    }

    /// Parses a command line, including the program's name. `--help` and `--version` are errors, too, which print the text.
    pub fn parse<I, T>(arguments: I) -> Result<Config, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString>,
    {
        let arguments: Vec<OsString> =
            arguments.into_iter().map(|argument| normalize_flag(argument.into())).collect();
        let runs_as_kube_apiserver = arguments.first().is_some_and(|name| is_named_kube_apiserver(name));
        let mut command = command();
        if runs_as_kube_apiserver {
            command = command.mut_arg("controllers", |controllers| controllers.default_value("-*"));
        }
        let mut matches = command.try_get_matches_from_mut(arguments)?;
        clear_empty_paths(&command, &mut matches);
        let mut config = Config::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        let release = version::requested_release(&matches)?;
        config.api.release = release.emulating(config.emulation.release());
        if runs_as_kube_apiserver
            && matches.value_source("data_dir") == Some(clap::parser::ValueSource::DefaultValue)
        {
            config.storage.data_dir = kube_apiserver_data_dir(config.serving.cert_dir.as_deref());
        }
        config.authentication.anonymous_auth_given =
            matches.value_source("anonymous_auth") == Some(clap::parser::ValueSource::CommandLine);
        config.flags = flag_values(&command, &matches);
        config.warnings = compat::ignored_flags(&matches);
        config.choose_storage(&matches);
        config.warnings.extend(config.gate_warnings());
        config.warnings.extend(config.service_accounts.warning());
        config.warnings.extend(config.front_proxy.warnings());
        config.warnings.extend(config.audit.warnings());
        config.warnings.extend(config.log_files.warning());
        let has_authentication_file = config.authentication.authentication_config.is_some();
        if config.authentication.anonymous_auth && !has_authentication_file && !config.admits_anonymous() {
            let warning =
                "--anonymous-auth is off: it is not allowed with the authorization mode AlwaysAllow";
            config.warnings.push(warning.to_owned());
        }
        config.warnings.extend(PluginFlags::new(&config.api).warnings());
        config.warnings.extend(config.kubelets.warning(config.serving.bind_address));
        Ok(config)
    }

    /// Checks that the settings are consistent.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |message: &str| Err(ConfigError(message.to_owned()));
        let serving = &self.serving;
        match (&serving.tls_cert_file, &serving.tls_private_key_file) {
            (Some(_), None) => return invalid("--tls-cert-file needs --tls-private-key-file"),
            (None, Some(_)) => return invalid("--tls-private-key-file needs --tls-cert-file"),
            _ => {}
        }
        match (&self.kubelets.kubelet_client_certificate, &self.kubelets.kubelet_client_key) {
            (Some(_), None) => return invalid("--kubelet-client-certificate needs --kubelet-client-key"),
            (None, Some(_)) => return invalid("--kubelet-client-key needs --kubelet-client-certificate"),
            _ => {}
        }
        if self.kubelets.kubelet_timeout.is_zero() {
            return invalid("--kubelet-timeout must be greater than zero");
        }
        if self.storage.encryption_provider_config_automatic_reload
            && self.storage.encryption_provider_config.is_none()
        {
            return invalid(
                "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config",
            );
        }
        if self.etcd().is_none() && self.storage.engine == Engine::Redb && self.storage.data_dir.is_none() {
            return invalid("the redb engine needs a data directory");
        }
        self.validate_etcd()?;
        if serving.advertise_address.is_some_and(|address| address.is_unspecified() || address.is_loopback())
            && !serving.bind_address.is_loopback()
        {
            return invalid("--advertise-address must be an address that clients can reach");
        }
        if !(0.0..=limits::MAX_GOAWAY_CHANCE).contains(&serving.goaway_chance) {
            return invalid("--goaway-chance can not be less than 0 or greater than 0.02");
        }
        if self.limits.request_timeout.is_zero() {
            return invalid("--request-timeout must be greater than zero");
        }
        if self.limits.enable_priority_and_fairness
            && self.limits.max_requests_inflight == 0
            && self.limits.max_mutating_requests_inflight == 0
        {
            return invalid(
                "--max-requests-inflight and --max-mutating-requests-inflight must not both be 0, unless \
                 --enable-priority-and-fairness=false is set",
            );
        }
        if serving.workers > limits::WORKERS {
            return invalid("--workers can not be greater than 512");
        }
        self.service_accounts.validate().map_err(ConfigError)?;
        self.openid.validate(&self.service_accounts.service_account_issuer).map_err(ConfigError)?;
        self.emulation.validate().map_err(ConfigError)?;
        let gates = self.gates();
        gates.validate(&self.api.feature_gates).map_err(ConfigError)?;
        self.logging.validate(&gates).map_err(ConfigError)?;
        self.service_accounts.validate_signing_endpoint(&gates).map_err(ConfigError)?;
        self.front_proxy.validate(&gates).map_err(ConfigError)?;
        self.peers.validate(&gates, &self.aggregation).map_err(ConfigError)?;
        self.coordinated_leadership.validate().map_err(ConfigError)?;
        PluginFlags::new(&self.api).validate().map_err(ConfigError)?;
        self.signing.signing_authority().map_err(ConfigError)?;
        self.audit.validate().map_err(ConfigError)?;
        self.metrics.validate()?;
        self.validate_ranges()?;
        self.validate_modes()
    }

    fn validate_ranges(&self) -> Result<(), ConfigError> {
        let count = self.api.apiserver_count;
        if count <= 0 {
            // The words of the reference.
            let message =
                format!("--apiserver-count should be a positive number, but value '{count}' provided");
            return Err(ConfigError(message));
        }
        self.api.validate_kubernetes_node_port().map_err(ConfigError)?;
        if !self.gates().enabled(MULTI_CIDR_SERVICE_ALLOCATOR) {
            let mut ranges = self.api.service_cluster_ip_range.iter().enumerate();
            ranges.try_for_each(|(index, range)| range.validate_size(index)).map_err(ConfigError)?;
        }
        match self.api.service_cluster_ip_range.as_slice() {
            [_] => Ok(()),
            [first, second] if first.0.addr().is_ipv4() != second.0.addr().is_ipv4() => Ok(()),
            _ => Err(ConfigError(
                "--service-cluster-ip-range takes one range, or one of each address family".to_owned(),
            )),
        }
    }

    fn validate_modes(&self) -> Result<(), ConfigError> {
        let mut seen = BTreeSet::new();
        for mode in &self.authorization.authorization_mode {
            if !seen.insert(format!("{mode:?}")) {
                return Err(ConfigError(format!("--authorization-mode names {mode:?} more than once")));
            }
        }
        if seen.is_empty() {
            return Err(ConfigError("at least one authorization mode must be given".to_owned()));
        }
        let flags = &self.authorization;
        // The modes are in a file, which is read later.
        if flags.authorization_config.is_some() {
            return Ok(());
        }
        let is_unused =
            |file: &Option<PathBuf>, mode| file.is_some() && !flags.authorization_mode.contains(&mode);
        if is_unused(&flags.authorization_policy_file, AuthorizationMode::Abac) {
            return Err(ConfigError(
                "--authorization-policy-file needs --authorization-mode=ABAC".to_owned(),
            ));
        }
        if is_unused(&flags.authorization_webhook_config_file, AuthorizationMode::Webhook) {
            let message = "--authorization-webhook-config-file needs --authorization-mode=Webhook";
            return Err(ConfigError(message.to_owned()));
        }
        Ok(())
    }

    /// The feature gates of the server.
    pub fn gates(&self) -> FeatureGates {
        FeatureGates::new(&self.api.feature_gates, self.emulation.release())
    }

    fn gate_warnings(&self) -> Vec<String> {
        let release = self.emulation.release();
        self.api.feature_gates.iter().filter_map(|setting| setting.warning(release)).collect()
    }

    /// The enabled admission plug-ins, in the order in which they run.
    pub fn admission_plugins(&self) -> Vec<PluginName> {
        PluginFlags::new(&self.api).enabled()
    }

    /// The configurations of the admission plug-ins. Reads files: called once, at start.
    pub fn admission_file(&self) -> Result<AdmissionFile, ConfigError> {
        AdmissionFile::read(self.api.admission_control_config_file.as_deref())
    }

    /// Parses the authentication configuration, and checks it against the other settings.
    pub fn authentication_file(&self, text: &[u8]) -> Result<AuthenticationFile, String> {
        let gates = self.gates();
        let required_gate = STRUCTURED_AUTHENTICATION_CONFIGURATION;
        if !gates.enabled(required_gate) {
            return Err(format!(
                "set --feature-gates={required_gate}=true to use authentication-config file"
            ));
        }
        let file = AuthenticationFile::parse(text, &self.service_accounts.service_account_issuer)?;
        if file.anonymous.is_some() && self.authentication.anonymous_auth_given {
            return Err("anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is configured in \
                        authentication configuration file"
                .to_owned());
        }
        if file.anonymous.is_some() && !gates.enabled(ANONYMOUS_AUTH_CONFIGURABLE_ENDPOINTS) {
            return Err("anonymous: Forbidden: anonymous is not supported when AnonymousAuthConfigurableEnpoints feature \
                        gate is disabled"
                .to_owned());
        }
        Ok(file)
    }

    /// The directory of keys and certificates; `None` keeps them in memory.
    pub fn cert_dir(&self) -> Option<PathBuf> {
        let default_dir = || self.storage.data_dir.as_ref().map(|data| data.join("pki"));
        self.serving.cert_dir.clone().or_else(default_dir)
    }

    /// The number of threads that serve connections.
    pub fn workers(&self) -> usize {
        match self.serving.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(limits::WORKERS),
            count => count,
        }
    }

    /// The number of threads for heavy work of priority levels that are not exempt: one less than the workers, whose cores they
    /// share.
    pub fn heavy_threads(&self) -> usize {
        self.workers().saturating_sub(1).max(1)
    }

    /// The maximum number of open streams per connection.
    pub fn streams_per_connection(&self) -> u32 {
        match self.serving.http2_max_streams_per_connection {
            0 => limits::STREAMS_PER_CONNECTION_IF_ZERO,
            count => count,
        }
    }

    /// The address that is advertised to the cluster.
    pub fn advertised(&self) -> IpAddr {
        self.serving.advertise_address.unwrap_or(self.serving.bind_address)
    }

    /// Whether flags allow anonymous requests. Not with AlwaysAllow: then anonymous users could do everything.
    pub fn admits_anonymous(&self) -> bool {
        let modes = &self.authorization.authorization_mode;
        self.authentication.anonymous_auth && !modes.contains(&AuthorizationMode::AlwaysAllow)
    }

    /// The audiences of tokens. An empty flag counts as unset: a token for the empty audience is not for this server.
    pub fn audiences(&self) -> &[String] {
        match self.authentication.api_audiences.as_slice() {
            [] => &self.service_accounts.service_account_issuer,
            [audience] if audience.is_empty() => &self.service_accounts.service_account_issuer,
            audiences => audiences,
        }
    }
}

/// What the help begins with, because nobody finds it behind the flags.
const HELP: &str = "\
{about-with-newline}
{usage-heading} {usage}
       pilothouse COMMAND ...

{before-help}{all-args}";

/// Selected by the first argument, before flags are parsed: `src/commands.rs`.
const COMMANDS: &str = "\
Without a command, a server is started. Commands that start none, each with its own --help:
  help         Print this text, or that of a command
  healthcheck  Check whether a running server is ready
  convert      Convert objects between JSON, YAML, Protobuf and CBOR
  export       Write the objects of a cluster as a stream
  import       Create the objects of a stream in a cluster
  backup       Copy everything that is stored, from a running or a stopped server
  inspect      Show what a backup holds
  restore      Make a new store from a backup
  copy         Copy everything that is stored from etcd into a data directory, or back
  check        Say what in a store or a backup is damaged
  repair       Make a new store of what can be read of a damaged one
  migrate      Rewrite stored objects in the current storage version and with the current key
  share-keys   Give several servers the same CA and the same key of service account tokens";

fn command() -> Command {
    let command = Command::new("pilothouse")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(true)
        .arg(version::argument())
        // The last of several equal flags wins, as in kube-apiserver: scripts append their own flags.
        .args_override_self(true);
    let command = Config::augment_args(command)
        .about("A control-plane API server that serves the Kubernetes 1.33 API")
        .help_template(HELP)
        .before_help(COMMANDS);
    compat::extend(command).mut_args(|arg| {
        if is_path(&arg) {
            // That of clap refuses an empty one.
            return arg.value_parser(OsStringValueParser::new().map(PathBuf::from));
        }
        let is_bool_flag = arg.get_value_parser().type_id() == TypeId::of::<bool>()
            && matches!(arg.get_action(), ArgAction::Set);
        if !is_bool_flag {
            return arg;
        }
        arg.num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("BOOL")
            .value_parser(ValueParser::new(values::go_bool))
    })
}

/// Whether the value of a flag is one path, and not a list of them.
fn is_path(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<PathBuf>() && matches!(arg.get_action(), ArgAction::Set)
}

/// An empty path means that there is none, as in kube-apiserver: the flag counts as not given.
fn clear_empty_paths(command: &Command, matches: &mut ArgMatches) {
    for flag in command.get_arguments().filter(|flag| is_path(flag)) {
        let id = flag.get_id().as_str();
        if matches.get_one::<PathBuf>(id).is_some_and(|path| path.as_os_str().is_empty()) {
            // It exists, because it was just read.
            let _exists = matches.try_clear_id(id);
        }
    }
}

/// Whether the program was started as `kube-apiserver`, for instance by a test harness. Then two defaults are kube-apiserver's: no
/// controllers run, because the harness tests its own controllers, and the working directory stays empty.
fn is_named_kube_apiserver(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "kube-apiserver")
}

/// The data directory in the certificate directory, which a test harness creates for the server and removes afterwards.
fn kube_apiserver_data_dir(cert_dir: Option<&Path>) -> Option<PathBuf> {
    Some(cert_dir.unwrap_or(Path::new(".")).join("pilothouse-data"))
}

/// The values of all flags, including defaults. Lists are joined by commas.
fn flag_values(command: &Command, matches: &ArgMatches) -> BTreeMap<String, String> {
    let flags = command.get_arguments().filter_map(|flag| Some((flag.get_long()?, flag.get_id().as_str())));
    let value = |id: &str| {
        let values = matches.try_get_raw(id).ok().flatten().into_iter().flatten();
        values.map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(",")
    };
    flags.map(|(name, id)| (name.to_owned(), value(id))).collect()
}

/// Replaces underscores in flag names, as kube-apiserver does.
fn normalize_flag(argument: OsString) -> OsString {
    let Some(text) = argument.to_str().filter(|text| text.starts_with("--")) else { return argument };
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    if !name.contains('_') {
        return argument;
    }
    let name = name.replace('_', "-");
    value.map_or_else(|| name.clone(), |value| format!("{name}={value}")).into()
}

#[cfg(test)]
mod tests;
