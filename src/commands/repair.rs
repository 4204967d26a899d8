//! `pilothouse repair`: makes a new store of everything that can be read of a damaged one.

mod owners;

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use pilothouse_actors::engine::EngineError;
use pilothouse_actors::engine::redb::{Finding, FindingKind, Kept, RestoreError, Restored, Salvage, repair};
use pilothouse_api::custom::definition::resource_of_store;
use pilothouse_types::clock::Clock;
use pilothouse_types::object::Revision;

use self::owners::MissingOwner;
use super::Command;
use super::check::{DAMAGED, describe};
use super::findings::{print_list, sum_up, to_json, to_text, write_report};
use super::restore::LEAST_RISE;
use crate::encryption::StoredEncryption;
use crate::server::STORE_FILE;

/// Make a new store of everything that can be read of a damaged one, and name what is lost. Start the server on it afterwards.
///
/// The damaged store stays as it is. The new one has the live objects and no history: all resourceVersions go on far above the old ones,
/// so that none is used twice, and clients that continue a watch or a list from before get 410 and list again. An object whose last
/// state is lost does not come back in an older one. Objects that may have been changed or deleted by something that is lost are saved
/// and listed.
///
/// Exit code 0 if nothing is lost, 3 if the new store was made and something is lost or uncertain, 1 if there is no new store.
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
        let mut salvage = Salvage::read(&damaged, &encryption)?;
        salvage.reveal_keys(&encryption);
        let now = Clock::system().now();
        let directory = self.to.as_ref().unwrap_or(&self.data_dir);
        fs::create_dir_all(directory)?;
        let aside = damaged.with_extension(format!("{}.damaged", now.0));
        let aside = Some(&*aside).filter(|_| self.replace);
        let kept = Kept { uncertain: !self.drop_uncertain, unreadable: self.keep_unreadable };
        let first_revision = Revision(now.0.max(salvage.highest.0.saturating_add(LEAST_RISE)));
        let owners = if salvage.losses.is_empty() {
            Vec::new()
        } else {
            owners::find_missing(&salvage, kept, &encryption)
        };
        let restored = repair(&salvage, kept, &directory.join(STORE_FILE), aside, first_revision)?;
        if let Some(report) = &self.report {
            let findings = salvage.damage.iter().chain(&salvage.losses).map(to_json);
            write_report(report, findings.chain(owners.iter().map(MissingOwner::to_json)))?;
        }
        let mut out = BufWriter::new(io::stdout().lock());
        writeln!(out, "{}", describe(&damaged, &salvage))?;
        self.print_losses(&mut out, &salvage, &owners)?;
        print_outcome(&mut out, restored, directory, aside)?;
        out.flush()?;
        match sum_up(&salvage.losses) {
            None => Ok(()),
            Some(losses) => Err(Failure::Lost(losses)),
        }
    }

    fn exit_code(failure: &Failure) -> ExitCode {
        match failure {
            Failure::Lost(_) => ExitCode::from(DAMAGED),
            Failure::Store(_) | Failure::Restore(_) | Failure::Io(_) => ExitCode::FAILURE,
        }
    }
}

impl Options {
    fn print_losses(
        &self,
        out: &mut impl Write,
        salvage: &Salvage,
        owners: &[MissingOwner],
    ) -> io::Result<()> {
        let of_kinds = |kinds: &[FindingKind]| -> Vec<String> {
            let selected = salvage.losses.iter().filter(|finding| kinds.contains(&finding.kind));
            selected.map(to_text).collect()
        };
        let lost = match self.keep_unreadable {
            false => "Lost objects",
            true => "Objects that cannot be read and are kept as such",
        };
        print_list(out, lost, &of_kinds(&[FindingKind::LostObject]))?;
        let unknown = [FindingKind::LostRecords, FindingKind::LostType, FindingKind::Transaction];
        print_list(out, "Lost, and nobody knows which objects", &of_kinds(&unknown))?;
        let uncertain = match self.drop_uncertain {
            false => "Saved, but possibly outdated or deleted",
            true => "Left out, because possibly outdated or deleted",
        };
        print_list(out, uncertain, &of_kinds(&[FindingKind::Uncertain]))?;
        let owners: Vec<String> = owners.iter().map(ToString::to_string).collect();
        let title = "Owners that are not there: a garbage collector would delete what they own";
        print_list(out, title, &owners)?;
        print_list(out, "What is lost may have refused or restricted something", &guards(&salvage.losses))
    }
}

fn print_outcome(
    out: &mut impl Write,
    restored: Restored,
    directory: &Path,
    aside: Option<&Path>,
) -> io::Result<()> {
    if let Some(aside) = aside {
        writeln!(out, "\nThe damaged store is kept as {}.", aside.display())?;
    }
    writeln!(
        out,
        "\nSaved {} objects of {} resources into {}.\nRevisions go on from {}: clients that continue from before will list again.",
        restored.totals.records,
        restored.totals.types,
        directory.display(),
        restored.first_revision,
    )
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

/// The resources in [`GUARDS`] of which something is lost.
fn guards(losses: &[Finding]) -> Vec<String> {
    let lost = losses.iter().filter(|finding| finding.kind != FindingKind::Uncertain);
    let resources = lost.filter_map(|finding| finding.type_name.as_ref()).map(resource_of_store);
    let guards: std::collections::BTreeSet<&str> =
        resources.filter(|resource| GUARDS.contains(resource)).collect();
    guards.into_iter().map(|resource| format!("{resource}: apply them again before clients write")).collect()
}
