//! `pilothouse repair`: makes a new store of everything that can be read of a damaged one.

mod owners;

use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use pilothouse_actors::engine::EngineError;
use pilothouse_actors::engine::redb::{Finding, FindingKind, Kept, RestoreError, Restored, Salvage, repair};
use pilothouse_api::custom::definition::resource_of_store;
use pilothouse_types::clock::Clock;
use pilothouse_types::object::Revision;

use self::owners::{MissingOwner, Owners};
use super::Command;
use super::check::{DAMAGED, describe};
use super::findings::{Report, print_lines, sum_up, to_json, to_text};
use super::progress::count;
use super::restore::{LEAST_RISE, print_warnings};
use crate::encryption::StoredEncryption;
use crate::limits::FINDINGS_PRINTED;
use crate::server::{STORE_FILE, create_data_directory};

/// Make a new store of everything that can be read of a damaged one, and name what is lost. Start the server on it afterwards.
///
/// The damaged store stays as it is. The new one has the live objects and no history: all resourceVersions go on far above the old ones,
/// so that none is used twice, and clients that continue a watch or a list from before get 410 and list again. An object whose last
/// state is lost does not come back in an older one. Objects that may have been changed or deleted by something that is lost are saved
/// and listed.
///
/// Exit code 0 if nothing is lost, 3 if the new store was made and something is lost or uncertain, or could not be told or completed, 1 if
/// there is no new store.
#[derive(Debug, Parser)]
#[command(bin_name = "pilothouse repair", no_binary_name = true)]
#[command(group(clap::ArgGroup::new("target").required(true)))]
pub(super) struct Options {
    /// The data directory of the damaged store.
    #[arg(long, default_value = "./pilothouse-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// The directory of the new store; it is created if it does not exist. Copy `pki` and the other files of the server there as well.
    #[arg(long, value_name = "DIR", group = "target")]
    to: Option<PathBuf>,
    /// Put the new store in the place of the damaged one, which is kept under another name.
    #[arg(long, group = "target")]
    replace: bool,
    /// Leave out objects that may be outdated or deleted.
    #[arg(long)]
    drop_uncertain: bool,
    /// Keep objects whose last state is lost and whose name is known: requests for them get an error, and what they guard stays closed,
    /// until they are removed.
    #[arg(long)]
    keep_unreadable: bool,
    /// The configuration of the server, for the names of encrypted objects.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    /// Write everything that is damaged, lost or uncertain to this file as well, as JSON lines.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Why there is no new store, or why it has not everything.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("the new store does not have everything: {0}")]
    Lost(String),
    #[error("the new store was made, but not everything could be told or completed")]
    Untold,
    #[error("{0}")]
    Store(#[from] EngineError),
    #[error("{0}")]
    Restore(#[from] RestoreError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Command for Options {
    const NAME: &str = "repair";
    type Failure = Failure;

    fn run(&self) -> Result<(), Failure> {
        let damaged = self.data_dir.join(STORE_FILE);
        let config = self.encryption_provider_config.as_deref();
        let encryption = StoredEncryption::for_reading(config).map_err(io::Error::other)?;
        let mut salvage = match self.replace {
            true => Salvage::read_alone(&damaged, &encryption)?,
            false => Salvage::read(&damaged, &encryption)?,
        };
        salvage.reveal_keys(&encryption);
        let now = Clock::system().now();
        let directory = self.to.as_ref().unwrap_or(&self.data_dir);
        create_data_directory(directory)?;
        let report = Report::create(self.report.as_deref())?;
        let aside = damaged.with_extension(format!("{}.damaged", now.0));
        let aside = Some(&*aside).filter(|_| self.replace);
        let kept = Kept { uncertain: !self.drop_uncertain, unreadable: self.keep_unreadable };
        let first_revision = Revision(now.0.max(salvage.highest.0.saturating_add(LEAST_RISE)));
        let owners = match salvage.losses.is_empty() {
            true => Owners::default(),
            false => Owners::find(&salvage, kept, &encryption),
        };
        let restored = repair(&mut salvage, kept, &directory.join(STORE_FILE), aside, first_revision)?;
        // From here on there is a new store: nothing may keep what is lost from being told.
        print_warnings(&restored);
        let outcome =
            Outcome { damaged: &damaged, salvage: &salvage, owners: &owners, restored, directory, aside };
        let is_told = outcome.tell(report);
        match sum_up(&salvage.losses) {
            Some(losses) => Err(Failure::Lost(losses)),
            None if is_told && outcome.restored.is_durable => Ok(()),
            None => Err(Failure::Untold),
        }
    }

    fn exit_code(failure: &Failure) -> ExitCode {
        match failure {
            Failure::Lost(_) | Failure::Untold => ExitCode::from(DAMAGED),
            Failure::Store(_) | Failure::Restore(_) | Failure::Io(_) => ExitCode::FAILURE,
        }
    }
}

/// What a repair has done.
struct Outcome<'a> {
    damaged: &'a Path,
    salvage: &'a Salvage,
    owners: &'a Owners,
    restored: Restored,
    directory: &'a Path,
    aside: Option<&'a Path>,
}

impl Outcome<'_> {
    /// Tells it, in the report and on standard output, or else on standard error. Returns whether everything went where it should.
    fn tell(&self, report: Option<Report>) -> bool {
        let warn = |what: &str, error: io::Error| {
            let _closed = writeln!(io::stderr(), "warning: {what} cannot be written: {error}");
            false
        };
        let has_report = report.is_some();
        let written = report.is_none_or(|report| {
            let findings = self.salvage.damage.iter().chain(&self.salvage.losses).map(to_json);
            let written = report.write(findings.chain(self.owners.missing.iter().map(MissingOwner::to_json)));
            written.map_or_else(|error| warn("the report", error), |()| true)
        });
        // What the report should have had is printed, however long it is.
        let most = if written { FINDINGS_PRINTED } else { usize::MAX };
        let printed = self.print(BufWriter::new(io::stdout().lock()), most);
        let is_printed = printed.map_or_else(|error| warn("standard output", error), |()| true);
        let is_told = is_printed || has_report && written || self.salvage.losses.is_empty();
        if !is_told {
            let _closed = self.print(BufWriter::new(io::stderr().lock()), usize::MAX);
        }
        written && is_printed
    }

    fn print(&self, mut out: impl Write, most: usize) -> io::Result<()> {
        writeln!(out, "{}", describe(self.damaged, self.salvage))?;
        self.print_losses(&mut out, most)?;
        if let Some(aside) = self.aside {
            writeln!(out, "\nThe damaged store is kept as {}.", aside.display())?;
        }
        writeln!(
            out,
            "\nSaved {} objects of {} resources into {}.\nRevisions go on from {}: clients that continue from before will list again.",
            self.restored.totals.records,
            self.restored.totals.types,
            self.directory.display(),
            self.restored.first_revision,
        )?;
        out.flush()
    }

    fn print_losses(&self, out: &mut impl Write, most: usize) -> io::Result<()> {
        let losses = &self.salvage.losses;
        let of_kind = |kind: FindingKind, is_saved: bool| -> Vec<String> {
            let of_kind = losses.iter().filter(|finding| finding.kind == kind);
            of_kind.filter(|finding| (finding.is_saved == Some(true)) == is_saved).map(to_text).collect()
        };
        let unknown = [FindingKind::LostRecords, FindingKind::LostType, FindingKind::Transaction];
        let unknown = losses.iter().filter(|finding| unknown.contains(&finding.kind)).map(to_text).collect();
        let owners = self.owners.missing.iter().map(ToString::to_string).collect();
        let lists: [(&str, Vec<String>); 7] = [
            ("Lost objects", of_kind(FindingKind::LostObject, false)),
            ("Objects that cannot be read and are kept as such", of_kind(FindingKind::LostObject, true)),
            ("Lost, and nobody knows which objects", unknown),
            ("Saved, but possibly outdated or deleted", of_kind(FindingKind::Uncertain, true)),
            ("Left out, because possibly outdated or deleted", of_kind(FindingKind::Uncertain, false)),
            ("Owners that are not there: a garbage collector would delete what they own", owners),
            ("What is lost may have refused or restricted something", guards(losses)),
        ];
        for (title, lines) in &lists {
            print_lines(out, title, lines, most)?;
        }
        match self.owners.not_considered {
            0 => Ok(()),
            objects => writeln!(
                out,
                "\n{} cannot be decrypted: owners that may be among them are not listed (--encryption-provider-config).",
                count(objects, "object"),
            ),
        }
    }
}

/// Resources whose objects refuse or restrict what others do. Without them more is allowed than before.
const GUARDS: [&str; 12] = [
    "customresourcedefinitions.apiextensions.k8s.io",
    "flowschemas.flowcontrol.apiserver.k8s.io",
    "limitranges",
    "mutatingadmissionpolicies.admissionregistration.k8s.io",
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "namespaces",
    "networkpolicies.networking.k8s.io",
    "resourcequotas",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
];

/// The resources in [`GUARDS`] of which something is lost. What is kept as unreadable goes on to refuse.
fn guards(losses: &[Finding]) -> Vec<String> {
    let lost = losses.iter().filter(|finding| match finding.kind {
        FindingKind::LostObject => finding.is_saved != Some(true),
        FindingKind::Uncertain => finding.is_saved == Some(false),
        _ => true,
    });
    let resources = lost.filter_map(|finding| finding.type_name.as_ref()).map(resource_of_store);
    let guards: BTreeSet<&str> = resources.filter(|resource| GUARDS.contains(resource)).collect();
    guards.into_iter().map(|resource| format!("{resource}: apply them again before clients write")).collect()
}

#[cfg(test)]
mod tests {
    use pilothouse_types::object::TypeName;

    use super::*;

    #[test]
    fn guards_are_those_of_which_something_is_not_saved() {
        let finding = |kind, name: &str, is_saved| {
            let finding = Finding::new(kind, "");
            Finding { type_name: Some(TypeName::new(name)), is_saved, ..finding }
        };
        let losses = [
            finding(FindingKind::LostObject, "namespaces", Some(false)),
            finding(FindingKind::LostObject, "limitranges", Some(true)),
            finding(FindingKind::Uncertain, "resourcequotas", Some(false)),
            finding(FindingKind::Uncertain, "networkpolicies.networking.k8s.io", Some(true)),
            finding(FindingKind::LostRecords, "flowschemas.flowcontrol.apiserver.k8s.io", None),
            finding(FindingKind::LostRecords, "configmaps", None),
        ];
        let guards = guards(&losses);
        let names: Vec<&str> = guards.iter().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(names, ["flowschemas.flowcontrol.apiserver.k8s.io", "namespaces", "resourcequotas"]);
    }
}
