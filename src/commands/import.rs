//! `pilothouse import`: creates the objects of a stream in a cluster.
//!
//! The stream is first copied into a temporary file (`intake`), because its objects may have to be created in another order: owners,
//! namespaces and definitions before what needs them (`plan`). Then each object is freed of what belongs to its old cluster
//! (`prepare`), gets the UIDs that its owners have in the new one (`owners`), and is created (`executor`). In the end, volumes and
//! claims are bound to each other (`bindings`). Only a few hundred bytes of each object are held in memory, besides those that are
//! being created.

mod bindings;
mod executor;
mod intake;
mod owners;
mod plan;
mod prepare;
mod report;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use self::executor::{Executor, Settings};
use self::intake::Intake;
use self::plan::Plan;
use self::report::Report;
use super::api_objects::ApiObjects;
use super::connection::{ConnectionFlags, run_until_interrupted};
use super::object_stream::Destination;
use super::object_stream::reader::ObjectReader;
use super::object_stream::resource::Resource;
use super::object_stream::selection::Selection;

const BUFFER_BYTES: usize = 256 << 10;

/// Create the objects of a stream in a cluster: one that `pilothouse export` wrote, or the output of `kubectl get -o yaml` or
/// `-o json`, or any manifests.
///
/// Owners are created before what they own, and owner references get the UIDs of the new cluster. A reference to an owner that is
/// neither in the stream nor in the cluster is dropped, and reported: the garbage collector would delete the object. Objects that
/// belong to their cluster are left out, such as its CA and the leases of its servers, and so are objects that were being deleted.
///
/// A copy of the stream is kept in a temporary file without a name while the import runs; TMPDIR says where.
///
/// Exit code 0 if everything is in the cluster, 1 if not. Each object that failed has a line on standard error.
#[derive(Debug, Parser)]
#[command(bin_name = "pilothouse import", no_binary_name = true)]
pub(super) struct Options {
    /// The file to read; - for standard input.
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// What to do about an object whose name is taken.
    #[arg(long, value_enum, default_value = "skip")]
    on_conflict: ConflictPolicy,
    /// Let the server check everything, and create nothing.
    #[arg(long)]
    dry_run: bool,
    /// Import the status of objects, too.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    keep_status: bool,
    /// Stop at the first object that fails.
    #[arg(long)]
    fail_fast: bool,
    // Last, because their headings in the help apply to all flags after them.
    #[command(flatten)]
    connection: ConnectionFlags,
    #[command(flatten)]
    selection: Selection,
}

/// What to do about an object whose name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ConflictPolicy {
    /// Leave the object in the cluster as it is.
    Skip,
    /// Replace it by that of the stream.
    Replace,
    /// Count it as failed.
    Fail,
}

impl super::Command for Options {
    const NAME: &str = "import";
    type Failure = String;

    fn run(&self) -> Result<(), String> {
        // Settings that cannot be used are reported before anything is read.
        let destination = ApiObjects::new(self.connection.api_server()?, self.dry_run);
        let describe = |error: io::Error| format!("{}: {error}", self.file.display());
        let mut report = Report::new(self.dry_run);
        let intake = match self.file.as_os_str() == "-" {
            true => self.read(io::stdin().lock(), &mut report),
            false => {
                let file = File::open(&self.file).map_err(describe)?;
                self.read(BufReader::with_capacity(BUFFER_BYTES, file), &mut report)
            }
        };
        let report = run_until_interrupted(self.import(&destination, intake?, report))?;
        match report.failures() {
            0 => Ok(()),
            1 => Err("1 object was not imported".to_owned()),
            number => Err(format!("{number} objects were not imported")),
        }
    }
}

impl Options {
    fn read(&self, input: impl BufRead, report: &mut Report) -> Result<Intake, String> {
        let reader = ObjectReader::new(input);
        Intake::read(reader, &self.selection, report, self.fail_fast)
            .map_err(|error| format!("{}: {error}", self.file.display()))
    }

    async fn import(
        &self,
        destination: &impl Destination,
        intake: Intake,
        mut report: Report,
    ) -> Result<Report, String> {
        if !(self.fail_fast && report.failures() > 0) {
            let resources = destination.resources().await?;
            let defined = intake.definitions.iter().flat_map(|(_, defined)| defined);
            let all: Vec<Resource> = resources.iter().chain(defined).cloned().collect();
            if let [first, ..] = self.selection.unmatched(&all).as_slice() {
                return Err(format!("no resource of the server or the stream is {first}"));
            }
            let plan = Plan::new(intake, resources, &self.selection, &mut report);
            let settings = Settings {
                on_conflict: self.on_conflict,
                is_dry_run: self.dry_run,
                keeps_status: self.keep_status,
                fails_fast: self.fail_fast,
            };
            report = Executor::new(destination, &plan, settings, report).run().await;
        }
        report.summarize();
        Ok(report)
    }
}

#[cfg(test)]
mod tests;
