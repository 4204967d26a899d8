//! `pilothouse check`: says what in a store, or in a backup, is not as it was written. It changes nothing.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use pilothouse_actors::backup::{BackupError, BackupReader, Entry};
use pilothouse_actors::engine::EngineError;
use pilothouse_actors::engine::record::RecordHead;
use pilothouse_actors::engine::redb::{Finding, FindingKind, Salvage};

use super::Command;
use super::findings::{Report, ResourceLine, print_list, print_resources, sum_up, to_json, to_text};
use super::progress::count;
use crate::encryption::StoredEncryption;
use crate::server::STORE_FILE;

/// Check the store of a stopped server, or a backup, for damage. Nothing is changed.
///
/// Everything is read: each page of the store, and each record. What is damaged is named, as far as it can be: the object, or else the
/// resource and the revisions.
///
/// Exit code 0 if everything is as it was written, 3 if something is damaged or the newest transaction is left out, 1 if that could not
/// be found out. A crash leaves such a transaction behind, too: then nothing is lost, and the next start of the server removes it.
#[derive(Debug, Parser)]
#[command(bin_name = "pilothouse check", no_binary_name = true)]
pub(super) struct Options {
    /// A store or a backup, instead of a data directory.
    #[arg(value_name = "FILE", conflicts_with = "data_dir")]
    file: Option<PathBuf>,
    /// The data directory of a stopped server.
    #[arg(long, default_value = "./pilothouse-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Write everything that is damaged to this file as well, as JSON lines.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Why the file is not known to be whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{file} is damaged: {}", count(*.findings, "finding"))]
    Damaged { file: String, findings: u64 },
    #[error("{file}: the newest transaction is left out, because it was not complete or is damaged")]
    LeftOut { file: String },
    #[error("cannot read {file}: {error}")]
    File { file: String, error: BackupError },
    #[error("{0}")]
    Store(#[from] EngineError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The exit code for damage.
pub(super) const DAMAGED: u8 = 3;

impl Command for Options {
    const NAME: &str = "check";
    type Failure = Failure;

    fn run(&self) -> Result<(), Failure> {
        let report = Report::create(self.report.as_deref())?;
        let path = self.file.clone().unwrap_or_else(|| self.data_dir.join(STORE_FILE));
        let file = path.display().to_string();
        let open =
            File::open(&path).map_err(|error| Failure::File { file: file.clone(), error: error.into() })?;
        let damage = match BackupReader::open(BufReader::new(open)) {
            Err(BackupError::NotABackup) => self.check_store(&path)?,
            Ok((backup, about)) => {
                let written_by = about.version;
                check_backup(backup, &format!("{file}: a backup, written by version {written_by}"))?
            }
            Err(error) => vec![damage_of_backup(&file, error)?],
        };
        if let Some(report) = report {
            report.write(damage.iter().map(to_json))?;
        }
        match damage.as_slice() {
            [] => Ok(()),
            [Finding { kind: FindingKind::Transaction, .. }] => Err(Failure::LeftOut { file }),
            findings => Err(Failure::Damaged { file, findings: findings.len() as u64 }),
        }
    }

    fn exit_code(failure: &Failure) -> ExitCode {
        match failure {
            Failure::Damaged { .. } | Failure::LeftOut { .. } => ExitCode::from(DAMAGED),
            Failure::File { .. } | Failure::Store(_) | Failure::Io(_) => ExitCode::FAILURE,
        }
    }
}

impl Options {
    fn check_store(&self, path: &Path) -> Result<Vec<Finding>, Failure> {
        let salvage = Salvage::read(path, &StoredEncryption::new(None))?;
        let mut out = BufWriter::new(io::stdout().lock());
        writeln!(out, "{}\n", describe(path, &salvage))?;
        print_resources(&mut out, salvage.types.iter().map(ResourceLine::from))?;
        let records = salvage.types.iter().map(|saved| saved.records).sum::<u64>();
        if let Some(expected) = salvage.about.expected_records.filter(|expected| *expected > records) {
            writeln!(out, "\n{records} of {} can be read.", count(expected, "record"))?;
        }
        print_list(&mut out, "Damage", &salvage.damage.iter().map(to_text).collect::<Vec<_>>())?;
        let losses = sum_up(&salvage.losses);
        match (salvage.is_whole(), &losses) {
            (true, None) => writeln!(out, "\nEverything is as it was written.")?,
            (true, Some(losses)) => {
                let left_out = left_out(&salvage).map(to_text).collect::<Vec<_>>();
                print_list(&mut out, "Left out by a server, too", &left_out)?;
                writeln!(out, "\nEverything that a server would read is as it was written, but {losses}.")?;
            }
            (false, None) => writeln!(out, "\n`pilothouse repair` would save every object.")?,
            (false, Some(losses)) => writeln!(out, "\n`pilothouse repair` would save the rest: {losses}.")?,
        }
        out.flush()?;
        let left_out: Vec<Finding> = left_out(&salvage).cloned().collect();
        Ok(salvage.damage.into_iter().chain(left_out).collect())
    }
}

/// The newest transaction, if a server would start without it, and nothing else is said of it. Whether it was complete and then damaged,
/// nobody can tell.
fn left_out(salvage: &Salvage) -> impl Iterator<Item = &Finding> {
    let is_transaction = |finding: &&Finding| finding.kind == FindingKind::Transaction;
    let is_named = salvage.damage.iter().any(|finding| is_transaction(&finding));
    salvage.losses.iter().filter(move |finding| !is_named && is_transaction(finding))
}

/// The store in one line.
pub(super) fn describe(path: &Path, salvage: &Salvage) -> String {
    let about = &salvage.about;
    let format =
        about.format.map_or_else(|| "unknown format".to_owned(), |format| format!("format {format}"));
    let version = about.version.as_deref().unwrap_or("unknown");
    let closed = if about.is_clean { "closed" } else { "not closed by the server that used it last" };
    format!("{}: {format}, written by version {version}, {} bytes, {closed}", path.display(), about.bytes)
}

/// The damage that keeps a backup from being read any further. Other errors are no damage.
fn damage_of_backup(file: &str, error: BackupError) -> Result<Finding, Failure> {
    match error {
        BackupError::Cut(_) | BackupError::Damaged { .. } => {
            Ok(Finding::new(FindingKind::Page, error.to_string()))
        }
        error => Err(Failure::File { file: file.to_owned(), error }),
    }
}

/// Checks the frames of a backup and the records in them.
fn check_backup(mut backup: BackupReader<impl io::Read>, title: &str) -> Result<Vec<Finding>, Failure> {
    let mut damage = Vec::new();
    let (mut current, mut records, mut bytes) = (None, 0_u64, 0);
    loop {
        match backup.next() {
            Ok(Entry::Type(backed_up)) => current = Some(backed_up),
            Ok(Entry::Record(revision, content)) => {
                (records, bytes) = (records + 1, bytes + content.len());
                let Some(backed_up) = &current else { continue };
                let (kind, key, detail) = match RecordHead::split(backed_up.id, revision, content) {
                    Ok((_, Some(_))) => continue,
                    Ok((head, None)) => {
                        (FindingKind::Object, Some(head.key.as_str().to_owned()), "the object cannot be read")
                    }
                    Err(_) => (FindingKind::Record, None, "a record of which nothing can be read"),
                };
                let (type_name, revisions) = (Some(backed_up.name.clone()), Some(revision.0..=revision.0));
                damage.push(Finding { type_name, key, revisions, ..Finding::new(kind, detail) });
            }
            Ok(Entry::End(_)) => break,
            Err(error) => {
                damage.push(damage_of_backup(title, error)?);
                break;
            }
        }
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{title}, {} of {bytes} bytes", count(records, "record"))?;
    print_list(&mut out, "Damage", &damage.iter().map(to_text).collect::<Vec<_>>())?;
    if damage.is_empty() {
        writeln!(out, "\nEverything is as it was written. `pilothouse inspect` shows what it holds.")?;
    }
    Ok(damage)
}
