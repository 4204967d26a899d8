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

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use pilothouse_client::api_server::ApiServer;

use self::api::{Api, Failure};
use self::definition::Definition;
use self::discovery::{Discovery, MigratedResource};
use super::connection::{ConnectionFlags, run_until_interrupted};

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
    /// Use admin.kubeconfig in this data directory of a running server.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "context", "server"])]
    data_dir: Option<PathBuf>,
    /// Rewrite the objects through the API, even if the server serves StorageVersionMigrations.
    #[arg(long)]
    direct: bool,
    /// How long a controller may take to begin a StorageVersionMigration.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    start_timeout: u64,
    #[command(flatten)]
    connection: ConnectionFlags,
}

impl super::Command for Options {
    const NAME: &str = "migrate";
    type Failure = Failure;

    fn run(&self) -> Result<(), Failure> {
        let server = self.server().map_err(Failure::Settings)?;
        run_until_interrupted(async { Ok(self.migrate(server).await) }).map_err(Failure::Settings)?
    }
}

impl Options {
    /// The server that the flags name.
    fn server(&self) -> Result<ApiServer, String> {
        match &self.data_dir {
            Some(directory) => {
                ConnectionFlags::with_kubeconfig(directory.join("admin.kubeconfig")).api_server()
            }
            None => self.connection.api_server(),
        }
    }

    async fn migrate(&self, server: ApiServer) -> Result<(), Failure> {
        let api = Api::new(server);
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
            "secrets --server=https://h --token-file=t --certificate-authority=c",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
        for line in [
            "",
            "--all secrets",
            "secrets --data-dir=d --kubeconfig=x",
            "secrets --server=https://h --client-key=k",
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn missing_kubeconfig_is_reported() {
        let options = Options::try_parse_from(["--all", "--data-dir=/no-such-folder"]).unwrap();
        let error = options.server().err().unwrap();
        assert!(error.contains("/no-such-folder/admin.kubeconfig"), "{error}");
    }
}
