//! `pilothouse copy`: copies everything that is stored from etcd into a data directory, or from a data directory into etcd.

mod etcd_side;
mod report;
mod to_data_dir;
mod to_etcd;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use pilothouse_actors::engine::EngineError;
use pilothouse_actors::engine::redb::RestoreError;
use pilothouse_etcd_log::CopyError;

use super::Command;
use super::connection::run_until_interrupted;
use super::progress::count;
use crate::config::etcd::{EtcdAccess, check_server};
use crate::config::values::{go_duration, non_empty_list};

/// Copy everything that is stored from etcd into a data directory, or from a data directory into etcd.
///
/// The source is only read. No server may use the data directory. etcd is read at one revision, so servers may go on with it; what they
/// write later is not copied. The target has nothing yet: a data directory without a store, or an etcd without keys below the
/// prefix. If the command is interrupted, run it again: it begins anew, and no server starts on half a copy.
///
/// Custom objects are copied with their definitions, events with the time that they still live. Keys that belong to no resource are
/// listed and not copied. In a data directory, all resourceVersions go on far above those of etcd, so that none is used twice, and
/// clients that continue a watch or a list from before get 410 and list again. etcd gives its own: the command says what to do if they
/// are below those of the data directory.
///
/// Exit code 0 if everything is copied, 1 if not.
#[derive(Debug, Parser)]
#[command(bin_name = "pilothouse copy", no_binary_name = true)]
#[command(group(clap::ArgGroup::new("source").required(true)))]
#[command(group(clap::ArgGroup::new("target").required(true)))]
pub(super) struct Options {
    /// Copy from these servers of etcd, such as https://10.0.0.1:2379; with --to-data-dir.
    #[arg(long, value_delimiter = ',', value_name = "URL,...", group = "source")]
    from_etcd: Vec<String>,
    /// Copy into this data directory, which has no store; it is created if it does not exist.
    #[arg(long, value_name = "DIR", group = "target", conflicts_with = "from_data_dir")]
    to_data_dir: Option<PathBuf>,
    /// Copy from the data directory of a stopped server; with --to-etcd.
    #[arg(long, value_name = "DIR", group = "source")]
    from_data_dir: Option<PathBuf>,
    /// Copy to these servers of etcd.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "URL,...",
        group = "target",
        conflicts_with = "from_etcd"
    )]
    to_etcd: Vec<String>,
    /// Leave out objects that cannot be read or have no place in the target, and list them. Otherwise nothing is copied if there are any.
    #[arg(long)]
    drop_unreadable: bool,
    /// The configuration of the server, with which objects are decrypted, and encrypted again.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    /// How long events are retained after they were last written: the flag of the server with the data directory.
    #[arg(long, default_value = "1h0m0s", value_parser = go_duration, value_name = "DURATION")]
    event_ttl: Duration,
    // Last, because its heading in the help applies to all flags after it.
    #[command(flatten)]
    etcd: EtcdAccess,
}

/// Why not everything was copied.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Settings(String),
    #[error("{0}")]
    Etcd(#[from] CopyError),
    #[error("{0}")]
    Store(#[from] EngineError),
    #[error("{0}")]
    NewStore(#[from] RestoreError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{}", unreadable(*.0))]
    Unreadable(u64),
    #[error("an object cannot be encrypted: {0}")]
    NotEncrypted(String),
    #[error("the new store was made, but it may not stay")]
    NotDurable,
    #[error("the new store cannot be written any further")]
    WriterEnded,
    #[error("{0}")]
    Interrupted(String),
}

fn unreadable(objects: u64) -> String {
    format!(
        "{} cannot be copied, so the copy is not finished, and no server starts on it. With --drop-unreadable they are left out",
        count(objects, "object")
    )
}

impl Command for Options {
    const NAME: &str = "copy";
    type Failure = Failure;

    fn run(&self) -> Result<(), Failure> {
        self.validate().map_err(Failure::Settings)?;
        run_until_interrupted(async { Ok(self.copy().await) }).map_err(Failure::Interrupted)?
    }
}

impl Options {
    fn validate(&self) -> Result<(), String> {
        for (flag, servers) in [("--from-etcd", &self.from_etcd), ("--to-etcd", &self.to_etcd)] {
            for server in &non_empty_list(servers) {
                check_server(flag, server)?;
            }
        }
        self.etcd.validate()
    }

    async fn copy(&self) -> Result<(), Failure> {
        let servers = [non_empty_list(&self.from_etcd), non_empty_list(&self.to_etcd)].concat();
        if servers.is_empty() {
            return Err(Failure::Settings("no server of etcd is named".to_owned()));
        }
        match (&self.from_data_dir, &self.to_data_dir) {
            (Some(directory), _) => to_etcd::copy(self, servers, directory).await,
            (None, Some(directory)) => to_data_dir::copy(self, servers, directory).await,
            (None, None) => Err(Failure::Settings("no data directory is named".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(line.split(' ').filter(|word| !word.is_empty()))
    }

    #[test]
    fn command_line_has_a_source_and_a_target_of_the_other_sort() {
        for line in [
            "--from-etcd http://a:1,http://b:1 --to-data-dir d",
            "--from-data-dir d --to-etcd https://a:1 --etcd-cafile ca --etcd-certfile c --etcd-keyfile k",
            "--to-etcd=http://a:1 --from-data-dir=d --etcd-prefix=/x --storage-media-type=application/json",
            "--from-data-dir d --to-etcd http://a:1 --drop-unreadable --event-ttl=2h --encryption-provider-config=f",
        ] {
            parse(line).unwrap().validate().unwrap();
        }
        for line in [
            "",
            "--from-etcd http://a:1",
            "--to-data-dir d",
            "--from-data-dir d --to-data-dir e",
            "--from-etcd http://a:1 --to-etcd http://b:1",
            "--from-etcd http://a:1 --to-data-dir d --from-data-dir e",
            "--from-etcd http://a:1 --to-data-dir d --to-etcd http://b:1",
            "--from-etcd http://a:1 --to-data-dir d --event-ttl=soon",
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn impossible_settings_are_refused_before_anything_is_done() {
        for (line, reason) in [
            ("--from-etcd a:1 --to-data-dir d", "--from-etcd \"a:1\" invalid: it has no scheme"),
            ("--from-data-dir d --to-etcd http://a", "--to-etcd \"http://a\" invalid"),
            (
                "--from-data-dir d --to-etcd http://a:1 --etcd-certfile c",
                "KeyFile and CertFile must both be present",
            ),
        ] {
            let error = parse(line).unwrap().run().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let empty = parse("--from-data-dir d --to-etcd=").unwrap().run().unwrap_err();
        assert_eq!(empty.to_string(), "no server of etcd is named");
    }
}
