//! The flags that say how etcd is reached, and in which form objects are stored in it: those of servers and of `pilothouse copy`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use http::uri::Authority;
use pilothouse_apimachinery::well_known::PROTOBUF;
use pilothouse_etcd::{Settings, TlsFiles};
use pilothouse_etcd_layout::media::MediaType;
use pilothouse_etcd_layout::prefix::{DEFAULT_PREFIX, EtcdPrefix};

/// Flags for an etcd whose servers are named elsewhere.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "etcd")]
pub struct EtcdAccess {
    /// What all keys in etcd begin with.
    #[arg(long, default_value = DEFAULT_PREFIX, value_name = "PREFIX")]
    pub etcd_prefix: String,
    /// CA bundle for the certificates of etcd [default: the CAs of the system].
    #[arg(long, value_parser = file_name(), value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd; needs --etcd-keyfile.
    #[arg(long, value_parser = file_name(), value_name = "FILE")]
    pub etcd_certfile: Option<PathBuf>,
    /// Private key of --etcd-certfile.
    #[arg(long, value_parser = file_name(), value_name = "FILE")]
    pub etcd_keyfile: Option<PathBuf>,
    /// Encoding of new values in etcd: application/json, application/yaml or application/vnd.kubernetes.protobuf.
    #[arg(long, default_value = PROTOBUF, value_parser = MediaType::parse, value_name = "TYPE")]
    pub storage_media_type: MediaType,
}

/// The name of a file. An empty one counts as none, because scripts for the reference give such flags.
fn file_name() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn non_empty_file(file: Option<&PathBuf>) -> Option<PathBuf> {
    file.filter(|file| !file.as_os_str().is_empty()).cloned()
}

impl EtcdAccess {
    /// What all keys begin with.
    pub fn prefix(&self) -> EtcdPrefix {
        EtcdPrefix::new(&self.etcd_prefix)
    }

    /// The settings of a client for these servers.
    pub fn settings_for(&self, servers: Vec<String>) -> Settings {
        let identity = self.certificate().zip(self.key());
        let authority = non_empty_file(self.etcd_cafile.as_ref());
        Settings { tls: TlsFiles { authority, identity, server_name: None }, ..Settings::new(servers) }
    }

    fn certificate(&self) -> Option<PathBuf> {
        non_empty_file(self.etcd_certfile.as_ref())
    }

    fn key(&self) -> Option<PathBuf> {
        non_empty_file(self.etcd_keyfile.as_ref())
    }

    /// Checks what would else fail at the first request to etcd.
    pub fn validate(&self) -> Result<(), String> {
        let (certificate, key) = (self.certificate(), self.key());
        if certificate.is_some() == key.is_some() {
            return Ok(());
        }
        let (certificate, key) = (certificate.unwrap_or_default(), key.unwrap_or_default());
        let (certificate, key) = (certificate.display(), key.display());
        // The words of the reference, after the names of the flags.
        Err(format!(
            "--etcd-certfile, --etcd-keyfile: KeyFile and CertFile must both be present[key: {key}, \
             cert: {certificate}]"
        ))
    }
}

/// Refuses what is no address of a server, by the rules of the client of etcd.
pub fn check_server(flag: &str, url: &str) -> Result<(), String> {
    let invalid = |reason: &str| format!("{flag} {url:?} invalid: {reason}");
    let (scheme, address) = url.split_once("://").ok_or_else(|| invalid("it has no scheme"))?;
    match scheme {
        "unix" | "unixs" if address.is_empty() => Err(invalid("it has no path")),
        "unix" | "unixs" => Ok(()),
        "http" | "https" if is_host_and_port(address) => Ok(()),
        "http" | "https" => Err(invalid("it is not a host and a port")),
        _ => Err(invalid("its scheme is none of http, https, unix, unixs")),
    }
}

fn is_host_and_port(address: &str) -> bool {
    let authority = address.strip_suffix('/').unwrap_or(address).parse::<Authority>();
    authority.is_ok_and(|authority| {
        !authority.as_str().contains('@') && !authority.host().is_empty() && authority.port_u16().is_some()
    })
}
