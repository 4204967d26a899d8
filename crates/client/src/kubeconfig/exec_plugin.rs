//! Credential plug-ins: programs that get their input in the environment and print credentials.
//!
//! Credentials are cached until they expire or are rejected. One instance runs at a time, with a timeout, because requests wait
//! for it. An instance is killed together with its child processes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use openssl::pkey::PKey;
use openssl::x509::X509;
use pilothouse_apimachinery::codec::{self, yaml};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::clock::{Clock, Timestamp};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::IdentityPem;
use super::file::strings;
use crate::limits::{EXEC_OUTPUT_BYTES, EXEC_PLUGIN_TIMEOUT};

const GROUP: &str = "client.authentication.k8s.io";
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// The environment variable with the ExecCredential.
const INFO: &str = "KUBERNETES_EXEC_INFO";

/// The configuration of a plug-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    version: String,
    command: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    hint: String,
    provides_cluster_info: bool,
    /// Whether it requires a terminal.
    requires_terminal: bool,
}

/// The server of the credentials, as passed to plug-ins.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// The URL of the server.
    pub server: String,
    /// The name that its certificate must contain.
    pub server_name: Option<String>,
    /// Whether its certificate is not verified.
    pub insecure: bool,
    /// The CA bundle of the server.
    pub authority_pem: Option<Vec<u8>>,
    /// The URL of the proxy.
    pub proxy: Option<String>,
    /// Whether responses must not be compressed.
    pub disable_compression: bool,
    /// The plug-in configuration of the kubeconfig.
    pub config: Option<Value>,
}

impl Exec {
    /// Parses the `exec` part of a user. A command with a slash is relative to the file.
    pub fn parse(exec: &Value, directory: &Path) -> Result<Exec, String> {
        let command = match exec.str("command") {
            "" => return Err("exec: the command is missing".to_owned()),
            name if name.contains('/') => directory.join(name),
            name => PathBuf::from(name),
        };
        let version = match exec.str("apiVersion") {
            "" => return Err("exec: the apiVersion is missing".to_owned()),
            version if VERSIONS.contains(&version) => version.to_owned(),
            other => return Err(format!("exec plugin: invalid apiVersion {other:?}")),
        };
        let variables = exec.get("env").map(Value::items).unwrap_or_default();
        let environment: Vec<_> = variables
            .iter()
            .map(|variable| (variable.str("name").to_owned(), variable.str("value").to_owned()))
            .collect();
        if environment.iter().any(|(name, _)| name.is_empty() || name.contains(['=', '\0'])) {
            return Err("exec: the name of a variable is missing".to_owned());
        }
        let requires_terminal = match exec.str("interactiveMode") {
            "Never" | "IfAvailable" => false,
            "Always" => true,
            // Only the older version has a default.
            "" if version.ends_with("/v1beta1") => false,
            "" => return Err("exec: the interactiveMode is missing".to_owned()),
            other => return Err(format!("exec: invalid interactiveMode {other:?}")),
        };
        Ok(Exec {
            version,
            command,
            arguments: strings(exec, "args"),
            environment,
            hint: exec.str("installHint").to_owned(),
            provides_cluster_info: exec.get("provideClusterInfo").and_then(Value::as_bool) == Some(true),
            requires_terminal,
        })
    }

    /// The ExecCredential for the plug-in.
    fn info(&self, cluster: &Cluster) -> String {
        let mut info = Value::object();
        info.set("kind", "ExecCredential");
        info.set("apiVersion", self.version.as_str());
        // A server has no terminal.
        info.entry("spec").set("interactive", false);
        if self.provides_cluster_info {
            info.entry("spec").set("cluster", cluster.value());
        }
        String::from_utf8_lossy(&codec::to_json(&info)).into_owned()
    }
}

impl Cluster {
    fn value(&self) -> Value {
        let mut cluster = Value::object();
        cluster.set("server", self.server.as_str());
        if let Some(name) = &self.server_name {
            cluster.set("tls-server-name", name.as_str());
        }
        if self.insecure {
            cluster.set("insecure-skip-tls-verify", true);
        }
        if let Some(pem) = &self.authority_pem {
            cluster.set("certificate-authority-data", STANDARD.encode(pem));
        }
        if let Some(proxy) = &self.proxy {
            cluster.set("proxy-url", proxy.as_str());
        }
        if self.disable_compression {
            cluster.set("disable-compression", true);
        }
        cluster.set("config", self.config.clone().unwrap_or(Value::Null));
        cluster
    }
}

/// The credentials of a plug-in.
#[derive(Debug, PartialEq, Eq)]
pub struct ExecCredentials {
    /// A bearer token.
    pub token: Option<String>,
    /// A certificate and its key, as PEM, for all later connections.
    pub identity_pem: Option<IdentityPem>,
    /// The expiry; `None` if unknown.
    expires: Option<Timestamp>,
}

/// A plug-in, and its last credentials.
pub struct ExecPlugin {
    exec: Exec,
    info: String,
    clock: Clock,
    /// Held while the program runs, so that it runs once for all waiters.
    cache: Mutex<Option<Arc<ExecCredentials>>>,
}

impl ExecPlugin {
    /// A plug-in for this cluster.
    pub fn new(exec: Exec, cluster: &Cluster, clock: Clock) -> ExecPlugin {
        ExecPlugin { info: exec.info(cluster), exec, clock, cache: Mutex::default() }
    }

    /// The cached credentials, or new ones.
    pub async fn credentials(&self) -> Result<Arc<ExecCredentials>, String> {
        let mut cached = self.cache.lock().await;
        let now = self.clock.now();
        if let Some(valid) = cached.as_ref().filter(|valid| valid.expires.is_none_or(|expiry| now <= expiry))
        {
            return Ok(Arc::clone(valid));
        }
        let credentials = Arc::new(self.run().await?);
        *cached = Some(Arc::clone(&credentials));
        Ok(credentials)
    }

    /// Drops rejected credentials, unless they were replaced already.
    pub async fn invalidate(&self, rejected: &Arc<ExecCredentials>) {
        let mut cached = self.cache.lock().await;
        if cached.as_ref().is_some_and(|credentials| Arc::ptr_eq(credentials, rejected)) {
            *cached = None;
        }
    }

    async fn run(&self) -> Result<ExecCredentials, String> {
        if self.exec.requires_terminal {
            let reason = "exec plugin cannot support interactive mode: standard input is not a terminal";
            return Err(reason.to_owned());
        }
        let run = tokio::time::timeout(EXEC_PLUGIN_TIMEOUT, self.output());
        let name = self.exec.command.display();
        let output =
            run.await.map_err(|_| format!("exec: {name} has not ended within {EXEC_PLUGIN_TIMEOUT:?}"))??;
        parse_output(&output, &self.exec.version)
    }

    /// Runs the program. If the future is dropped, it is killed with its children.
    async fn output(&self) -> Result<Vec<u8>, String> {
        let Exec { command, arguments, environment, hint, .. } = &self.exec;
        let name = command.display();
        let child = Command::new(command)
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .env(INFO, &self.info)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .process_group(0)
            .spawn();
        let mut child = child.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound if hint.is_empty() => format!("exec: executable {name} not found"),
            std::io::ErrorKind::NotFound => format!("exec: executable {name} not found: {hint}"),
            _ => format!("exec: {name}: {error}"),
        })?;
        // Dropped before the child: its process id stays reserved until its exit status is read.
        let group = ProcessGroup::for_child(&child);
        let describe = |error: std::io::Error| format!("exec: {name}: {error}");
        let mut output = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(EXEC_OUTPUT_BYTES + 1).read_to_end(&mut output).await.map_err(describe)?;
        }
        if output.len() as u64 > EXEC_OUTPUT_BYTES {
            return Err(format!("exec: {name} prints more than {EXEC_OUTPUT_BYTES} bytes"));
        }
        let status = child.wait().await.map_err(describe)?;
        group.disarm();
        match (status.success(), status.code()) {
            (true, _) => Ok(output),
            (false, Some(code)) => Err(format!("exec: executable {name} failed with exit code {code}")),
            (false, None) => Err(format!("exec: executable {name} was killed")),
        }
    }
}

/// A program and its children, killed on drop: a killed shell would leave its commands running.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// The process group of a child.
    fn for_child(child: &Child) -> ProcessGroup {
        ProcessGroup(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }

    /// The program has exited by itself: processes that it left running are not killed.
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _already_gone = killpg(group, Signal::SIGKILL);
        }
    }
}

/// Parses the output of a plug-in.
fn parse_output(output: &[u8], version: &str) -> Result<ExecCredentials, String> {
    let credential = yaml::read(output).map_err(|error| format!("decoding stdout: {error}"))?;
    let (kind, api_version) = (credential.str("kind"), credential.str("apiVersion"));
    if kind != "ExecCredential" || !api_version.starts_with(GROUP) {
        return Err(format!("decoding stdout: {kind:?} of {api_version:?} is not an ExecCredential"));
    }
    if api_version != version {
        return Err(format!(
            "exec plugin is configured to use API version {version}, plugin returned version {api_version}"
        ));
    }
    let status = credential.get("status").filter(|status| !status.is_null());
    let status = status.ok_or("exec plugin didn't return a status field")?;
    let text = |field: &str| Some(status.str(field)).filter(|text| !text.is_empty());
    let identity_pem = match (text("clientCertificateData"), text("clientKeyData")) {
        (Some(certificate), Some(key)) => {
            let invalid = |error| format!("failed parsing client key/certificate: {error}");
            let chain = X509::stack_from_pem(certificate.as_bytes()).map_err(invalid)?;
            let private = PKey::private_key_from_pem(key.as_bytes()).map_err(invalid)?;
            let leaf =
                chain.first().ok_or("failed parsing client key/certificate: there is no certificate")?;
            if !leaf.public_key().is_ok_and(|public| public.public_eq(&private)) {
                return Err("failed parsing client key/certificate: they do not belong together".to_owned());
            }
            Some((certificate.as_bytes().to_vec(), key.as_bytes().to_vec()))
        }
        (None, None) => None,
        _ => return Err("exec plugin returned only certificate or key, not both".to_owned()),
    };
    let token = text("token").map(str::to_owned);
    if token.is_none() && identity_pem.is_none() {
        return Err("exec plugin didn't return a token or cert/key pair".to_owned());
    }
    let expires = text("expirationTimestamp").map(time::parse_seconds).transpose();
    let expires = expires.map_err(|error| format!("decoding stdout: expirationTimestamp: {error}"))?;
    Ok(ExecCredentials { token, identity_pem, expires: expires.map(Timestamp::from_unix) })
}

#[cfg(test)]
mod tests;
