//! The flags about etcd: where it is, and how objects are stored in it. [`Config::etcd`] says whether it is used.

mod access;

use std::str::FromStr;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command};
use pilothouse_etcd::Settings;
use pilothouse_etcd_layout::expiry_leases::DEFAULT_REUSE;
use pilothouse_etcd_layout::prefix::EtcdPrefix;

pub use self::access::{EtcdAccess, check_server};
use super::values::{go_duration, non_empty_list};
use super::{Backend, Config, ConfigError, Engine};
use crate::limits::STORAGE_PROBE_TIMEOUT;

/// The flags about etcd.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "etcd")]
pub struct EtcdFlags {
    /// Servers of etcd, such as https://10.0.0.1:2379. With them, objects are stored in etcd, unless --engine is given.
    #[arg(long, value_delimiter = ',', value_name = "URL,...")]
    pub etcd_servers: Vec<String>,
    /// Other servers of etcd for single resources: GROUP/RESOURCE#URL;URL, as in /events#http://10.0.0.2:2379.
    #[arg(long, value_delimiter = ',', value_name = "OVERRIDE,...")]
    pub etcd_servers_overrides: Vec<String>,
    /// How it is reached, and how objects are stored in it.
    #[command(flatten)]
    pub access: EtcdAccess,
    /// How long the health check of etcd may take; 0 means 2s.
    #[arg(long, default_value = "2s", value_parser = go_duration, value_name = "DURATION")]
    pub etcd_healthcheck_timeout: Duration,
    /// How long the readiness check of etcd may take; 0 means 2s.
    #[arg(long, default_value = "2s", value_parser = go_duration, value_name = "DURATION")]
    pub etcd_readycheck_timeout: Duration,
    /// How often the objects of each resource are counted for metrics; 0 disables it.
    #[arg(long, default_value = "1m0s", value_parser = go_duration, value_name = "DURATION")]
    pub etcd_count_metric_poll_period: Duration,
    /// How often the members of etcd are asked for the sizes of their databases, for metrics; 0 disables it.
    #[arg(long, default_value = "30s", value_parser = go_duration, value_name = "DURATION")]
    pub etcd_db_metric_poll_interval: Duration,
    /// How long new events may share the lease of an earlier one.
    #[arg(long, default_value_t = DEFAULT_REUSE.as_secs(), value_name = "SECONDS")]
    pub lease_reuse_duration_seconds: u64,
    /// How long a start tries to read etcd before it is given up.
    #[arg(long, default_value = "1m0s", value_parser = go_duration, value_name = "DURATION")]
    pub storage_initialization_timeout: Duration,
}

impl EtcdFlags {
    /// The servers of all resources without an override.
    pub fn servers(&self) -> Vec<String> {
        non_empty_list(&self.etcd_servers)
    }

    /// The resources with servers of their own. Of several entries for one resource the last counts.
    pub fn overrides(&self) -> Result<Vec<ServersOverride>, String> {
        let overrides = non_empty_list(&self.etcd_servers_overrides);
        overrides.iter().map(|text| text.parse::<ServersOverride>()).collect()
    }

    /// What all keys begin with.
    pub fn prefix(&self) -> EtcdPrefix {
        self.access.prefix()
    }

    /// How long new events may share the lease of an earlier one.
    pub fn lease_reuse(&self) -> Duration {
        Duration::from_secs(self.lease_reuse_duration_seconds)
    }

    /// How long the checks `etcd` and `etcd-readiness` may take. As in the reference, zero means the default.
    pub fn check_timeouts(&self) -> [Duration; 2] {
        [self.etcd_healthcheck_timeout, self.etcd_readycheck_timeout].map(|timeout| match timeout {
            Duration::ZERO => STORAGE_PROBE_TIMEOUT,
            timeout => timeout,
        })
    }

    /// How often something is done, unless it is turned off.
    pub fn interval(duration: Duration) -> Option<Duration> {
        Some(duration).filter(|duration| !duration.is_zero())
    }

    /// The settings of a client for [`EtcdFlags::servers`].
    pub fn client_settings(&self) -> Settings {
        self.settings_for(self.servers())
    }

    /// The settings of a client for other servers: those of an override.
    pub fn settings_for(&self, servers: Vec<String>) -> Settings {
        self.access.settings_for(servers)
    }

    /// Checks what would else fail at the first request to etcd.
    fn validate(&self, overrides: &[ServersOverride]) -> Result<(), String> {
        for server in &self.servers() {
            check_server("--etcd-servers", server)?;
        }
        for server in overrides.iter().flat_map(|entry| &entry.servers) {
            check_server("--etcd-servers-overrides", server)?;
        }
        self.access.validate()
    }
}

/// An entry of `--etcd-servers-overrides`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServersOverride {
    /// The group; empty for the core group.
    pub group: String,
    /// The plural name; `*` for the resources of the group that have no entry of their own.
    pub resource: String,
    /// Where its objects are stored.
    pub servers: Vec<String>,
}

/// The words of the reference.
const INVALID_OVERRIDE: &str = "--etcd-servers-overrides invalid, must be of format: group/resource#servers, \
                                where servers are URLs, semicolon separated";

impl FromStr for ServersOverride {
    type Err = String;

    fn from_str(text: &str) -> Result<ServersOverride, String> {
        let parse = || {
            let (target, servers) = text.split_once('#')?;
            let (group, resource) = target.split_once('/')?;
            let servers: Vec<String> = servers.split(';').map(str::to_owned).collect();
            let has_separator = resource.contains('/') || servers.iter().any(|server| server.contains('#'));
            let is_valid = !has_separator && servers.iter().all(|server| !server.is_empty());
            let (group, resource) = (group.to_owned(), resource.to_owned());
            is_valid.then_some(ServersOverride { group, resource, servers })
        };
        parse().ok_or_else(|| INVALID_OVERRIDE.to_owned())
    }
}

/// Flags about the engine without effect if objects are stored in etcd, with the reason.
const ENGINE_FLAGS: &[(&str, &str)] = &[
    ("quota_backend_bytes", "objects are stored in etcd, which has a quota of its own"),
    ("history_bytes", "objects are stored in etcd, whose history is bounded by --etcd-compaction-interval"),
];

impl Config {
    /// The flags about etcd if objects are stored there: servers are given, and no engine is.
    pub fn etcd(&self) -> Option<&EtcdFlags> {
        let is_used = !self.storage.engine_given && !self.etcd_flags.servers().is_empty();
        is_used.then_some(&self.etcd_flags)
    }

    /// Decides between etcd and an engine, and warns about flags that the decision leaves without effect.
    pub(super) fn choose_storage(&mut self, matches: &ArgMatches) {
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let backend = self.storage.storage_backend;
        let engine_flag = match backend {
            Some(Backend::Redb | Backend::Memory) => Some("--storage-backend"),
            Some(Backend::Etcd3) | None => is_given("engine").then_some("--engine"),
        };
        match backend {
            Some(Backend::Redb) => self.storage.engine = Engine::Redb,
            Some(Backend::Memory) => self.storage.engine = Engine::Memory,
            Some(Backend::Etcd3) | None => {}
        }
        self.storage.engine_given = engine_flag.is_some();
        let warning = |id: &str, reason: &str| format!("--{} is not used: {reason}", id.replace('_', "-"));
        if self.etcd().is_some() {
            let given = ENGINE_FLAGS.iter().filter(|(id, _)| is_given(id));
            self.warnings.extend(given.map(|(id, reason)| warning(id, reason)));
            return;
        }
        let engine = self.storage.engine;
        if backend == Some(Backend::Etcd3) {
            self.warnings.push(format!("--storage-backend=etcd3 is not used: the engine is {engine}"));
        }
        let reason = match engine_flag {
            Some(flag) => format!("{flag}={engine} was requested"),
            None => format!("no server of etcd is given, so objects are stored in the engine {engine}"),
        };
        let command = EtcdFlags::augment_args(Command::new("etcd"));
        let ids = command.get_arguments().map(|flag| flag.get_id().as_str());
        self.warnings.extend(ids.filter(|id| is_given(id)).map(|id| warning(id, &reason)));
    }

    /// Checks the flags about etcd, and those that exclude it.
    pub(super) fn validate_etcd(&self) -> Result<(), ConfigError> {
        // Checked in any case, as in the reference.
        let overrides = self.etcd_flags.overrides().map_err(ConfigError::new)?;
        let Some(flags) = self.etcd() else { return Ok(()) };
        // Refused, because an operator who asks for backups relies on them.
        if self.storage.backup_dir.is_some() {
            return Err(ConfigError::new(
                "--backup-dir can not be used with --etcd-servers: use `etcdctl snapshot save` for backups",
            ));
        }
        flags.validate(&overrides).map_err(ConfigError::new)
    }
}

#[cfg(test)]
mod tests;
