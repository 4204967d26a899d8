//! `pilothouse migrate`: completes a change of the storage version of resources, or of the key that they are encrypted with, by
//! rewriting their objects.
//!
//! A server that serves StorageVersionMigrations is asked to do it (`requested.rs`), otherwise the command rewrites the objects
//! itself, through the API (`direct.rs`). Afterwards the definition of a custom resource names only its storage version as stored
//! (`definition.rs`), so that the other versions can be removed.

mod api;
mod definition;
mod direct;
mod discovery;
mod requested;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use pilothouse_client::kubeconfig::{Access, Credentials};

use self::api::{Api, Failure};
use self::definition::Definition;
use self::discovery::{Discovery, MigratedResource};

/// Rewrite all objects of resources, so that they are stored in the current storage version and encrypted with the current key.
///
/// Objects that are already stored so are not changed. The definitions of custom resources then name only their storage version in
/// status.storedVersions. Other clients may go on writing meanwhile.
///
/// Exit code 0 if all resources are migrated, 1 if not.
#[derive(Debug, Parser)]
#[command(bin_name = "pilothouse migrate", no_binary_name = true)]
pub(super) struct Options {
    /// The resources, by plural and group: secrets, deployments.apps; or with a version: kites.v2.toys.example.
    #[arg(value_name = "RESOURCE", required_unless_present = "all", conflicts_with = "all")]
    resources: Vec<String>,
    /// Migrate all resources that the server stores.
    #[arg(long)]
    all: bool,
    /// The kubeconfig to use [default: admin.kubeconfig in the data directory].
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    kubeconfig: Option<PathBuf>,
    /// The server's data directory.
    #[arg(long, default_value = "./pilothouse-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// The URL of the server, instead of a kubeconfig.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// With --server: the CA of its certificate [default: those of the system].
    #[arg(long, value_name = "FILE", requires = "server")]
    ca_file: Option<PathBuf>,
    /// With --server: a file with a bearer token.
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// With --server: a client certificate; needs --client-key.
    #[arg(long, requires_all = ["client_key", "server"], value_name = "FILE")]
    client_certificate: Option<PathBuf>,
    /// Private key of --client-certificate.
    #[arg(long, requires = "client_certificate", value_name = "FILE")]
    client_key: Option<PathBuf>,
    /// Rewrite the objects through the API, even if the server serves StorageVersionMigrations.
    #[arg(long)]
    direct: bool,
    /// How long a controller may take to begin a StorageVersionMigration.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    start_timeout: u64,
}

impl super::Command for Options {
    const NAME: &str = "migrate";
    type Failure = Failure;

    fn run(&self) -> Result<(), Failure> {
        let access = self.access().map_err(Failure::Settings)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| Failure::Settings(error.to_string()))?.block_on(self.migrate(access))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

impl Options {
    /// How to reach the server.
    fn access(&self) -> Result<Access, String> {
        let Some(server) = &self.server else {
            let path = self.kubeconfig.clone().unwrap_or_else(|| self.data_dir.join("admin.kubeconfig"));
            return Access::read(&path).map_err(|error| format!("cannot use the kubeconfig: {error}"));
        };
        let mut access = Access::to_server(server.as_str());
        access.authority_pem = self.ca_file.as_deref().map(read).transpose()?;
        if let (Some(certificate), Some(key)) = (&self.client_certificate, &self.client_key) {
            access.identity_pem = Some((read(certificate)?, read(key)?));
        }
        if let Some(path) = &self.token_file {
            access.credentials = Credentials::TokenFile(path.clone());
        }
        Ok(access)
    }

    async fn migrate(&self, access: Access) -> Result<(), Failure> {
        let api = Api::new(access)?;
        let discovery = Discovery::read(&api).await?;
        let resources = match self.all {
            true => discovery.all(&api).await?,
            false => self.resources.iter().map(|name| discovery.find(name)).collect::<Result<_, _>>()?,
        };
        let total = resources.len();
        let mut failed = 0;
        for mut resource in resources {
            match self.migrate_resource(&api, &discovery, &mut resource).await {
                Ok(report) => report_line(&resource, &report),
                Err(failure) => {
                    failed += 1;
                    warn_line(&resource, &failure.to_string());
                }
            }
        }
        if failed > 0 { Err(Failure::Incomplete { failed, total }) } else { Ok(()) }
    }

    /// Migrates one resource and returns what was done.
    async fn migrate_resource(
        &self,
        api: &Api,
        discovery: &Discovery,
        resource: &mut MigratedResource,
    ) -> Result<String, Failure> {
        let definition = Definition::read(api, resource).await?;
        if let Some(definition) = &definition {
            // In the storage version, objects that are stored in it already need no conversion.
            if !resource.has_chosen_version {
                discovery.set_version(resource, definition.storage_version());
            }
            definition.wait_until_served(api, resource).await?;
        }
        let mut report = if !self.direct && discovery.serves_migrations() {
            requested::migrate(api, resource, Duration::from_secs(self.start_timeout)).await?
        } else {
            direct::migrate(api, resource).await?
        };
        if let Some(definition) = definition
            && let Some(removed) = definition.remove_unused_versions(api).await?
        {
            report.push_str(&format!("; no longer stored: {}", removed.join(", ")));
        }
        Ok(report)
    }
}

/// Reports a migrated resource. A closed standard output is ignored: the exit code says enough.
fn report_line(resource: &MigratedResource, report: &str) {
    let _ = writeln!(io::stdout(), "{resource}: {report}");
}

/// Reports progress, or what went wrong.
fn warn_line(resource: &MigratedResource, message: &str) {
    let _ = writeln!(io::stderr(), "{resource}: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_names_resources_or_all() {
        let parse = |line: &str| Options::try_parse_from(line.split(' ').filter(|word| !word.is_empty()));
        for line in [
            "secrets",
            "secrets deployments.apps --direct",
            "--all --kubeconfig=x",
            "secrets --server=https://h --token-file=t --ca-file=c",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
        for line in [
            "",
            "--all secrets",
            "secrets --token-file=t",
            "secrets --server=https://h --kubeconfig=x",
            "secrets --server=https://h --client-key=k",
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn missing_kubeconfig_is_reported() {
        let options = Options::try_parse_from(["--all", "--data-dir=/no-such-folder"]).unwrap();
        let error = options.access().err().unwrap();
        assert!(error.contains("/no-such-folder/admin.kubeconfig"), "{error}");
    }
}
