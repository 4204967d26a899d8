//! `pilothouse inspect`: shows what a backup holds, without a server.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use pilothouse_actors::backup::{About, BackedUpType, BackupError, BackupReader, Entry};
use pilothouse_actors::engine::EngineError;
use pilothouse_actors::engine::record::{Operation, RecordDecoder};
use pilothouse_api::custom::definition::resource_of_store;
use pilothouse_types::object::{Object, Revision};

use super::Command;
use super::backup::verify;
use crate::encryption::StoredEncryption;

/// Show what a backup holds: resources, objects, revisions and sizes, or the objects themselves.
#[derive(Debug, Parser)]
#[command(bin_name = "pilothouse inspect", no_binary_name = true)]
pub(super) struct Options {
    /// The backup.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print the objects as JSON, one in a line, instead of the summary.
    #[arg(long)]
    objects: bool,
    /// Only this resource, such as pods or deployments.apps.
    #[arg(long, value_name = "RESOURCE")]
    resource: Option<String>,
    /// Only objects of this namespace.
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The configuration of the server, for objects that are encrypted.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
}

impl Command for Options {
    const NAME: &str = "inspect";
    type Failure = BackupError;

    fn run(&self) -> Result<(), BackupError> {
        // A backup is whole only if its end is there, so nothing is said about it before.
        verify(BufReader::new(File::open(&self.file)?))?;
        let config = self.encryption_provider_config.as_deref();
        let encryption = StoredEncryption::for_reading(config).map_err(io::Error::other)?;
        let (mut backup, about) = BackupReader::open(BufReader::new(File::open(&self.file)?))?;
        let mut out = BufWriter::new(io::stdout().lock());
        let mut summaries = Vec::new();
        let mut current: Option<LiveRecords> = None;
        loop {
            let entry = backup.next()?;
            if !matches!(entry, Entry::Record(..))
                && let Some(records) = current.take()
            {
                summaries.push(self.finish(&records, &mut out)?);
            }
            match entry {
                Entry::Type(backed_up) => current = Some(LiveRecords::new(backed_up)),
                Entry::Record(revision, bytes) => {
                    if let Some(records) = &mut current {
                        records.add(revision, bytes, &encryption)?;
                    }
                }
                Entry::End(_) => break,
            }
        }
        if !self.objects {
            print_summary(&mut out, &about, summaries.into_iter().flatten())?;
        }
        Ok(out.flush()?)
    }
}

impl Options {
    /// Prints the objects of a type, or returns its summary, if it is selected.
    fn finish(&self, records: &LiveRecords, out: &mut impl Write) -> io::Result<Option<Summary>> {
        let resource = resource_of_store(&records.backed_up.name).to_owned();
        if self.resource.as_ref().is_some_and(|selected| *selected != resource) {
            return Ok(None);
        }
        let selected = |object: &Object| {
            let is_in = |namespace| object.key.is_in(namespace) || object.key.is_hidden();
            self.namespace.as_deref().is_none_or(is_in)
        };
        let live = || records.objects.values().filter(|object| selected(object));
        if self.objects {
            let mut objects: Vec<_> = live().collect();
            objects.sort_by(|a, b| a.key.cmp(&b.key));
            for object in objects {
                match object.unreadable_reason() {
                    None => out.write_all(&object.bytes)?,
                    Some(reason) => {
                        let reason = reason.to_string();
                        let line = serde_json::json!({"unreadable": object.key.as_str(), "reason": reason});
                        write!(out, "{line}")?;
                    }
                }
                out.write_all(b"\n")?;
            }
        }
        Ok(Some(Summary {
            resource,
            objects: live().count(),
            unreadable: unreadable_reasons(live()),
            bytes: live().map(|object| object.bytes.len()).sum(),
            history: records.superseded,
            damaged: records.damaged,
            last: records.backed_up.last,
        }))
    }
}

/// The records of one type, and which of them are live.
struct LiveRecords {
    backed_up: BackedUpType,
    /// By revision, because the keys of encrypted objects may be hidden in some records and known from others.
    objects: BTreeMap<Revision, Arc<Object>>,
    /// Records of superseded and deleted versions.
    superseded: usize,
    damaged: usize,
}

impl LiveRecords {
    fn new(backed_up: BackedUpType) -> LiveRecords {
        LiveRecords { backed_up, objects: BTreeMap::new(), superseded: 0, damaged: 0 }
    }

    fn add(&mut self, revision: Revision, bytes: &[u8], encryption: &StoredEncryption) -> io::Result<()> {
        let decoder = RecordDecoder::new(self.backed_up.id, &self.backed_up.name, encryption);
        let operation = match decoder.decode(revision, bytes) {
            Ok(record) => record.operation,
            Err(error @ EngineError::DecryptionUnavailable(_)) => return Err(io::Error::other(error)),
            Err(_) => {
                self.damaged += 1;
                return Ok(());
            }
        };
        let (object, superseded) = match operation {
            Operation::Create(object) => (Some(object), None),
            Operation::Replace(object, superseded) => (Some(object), Some(superseded)),
            Operation::Remove(_, superseded) => (None, Some(superseded)),
            Operation::AdvanceRevision(_) => (None, None),
        };
        let before = superseded.and_then(|superseded| self.objects.remove(&superseded));
        self.superseded += usize::from(before.is_some()) + usize::from(object.is_none());
        self.objects.extend(object.map(|object| (revision, object)));
        Ok(())
    }
}

fn unreadable_reasons<'a>(objects: impl Iterator<Item = &'a Arc<Object>>) -> BTreeMap<String, usize> {
    let mut reasons = BTreeMap::new();
    for reason in objects.filter_map(|object| object.unreadable_reason()) {
        *reasons.entry(reason.to_string()).or_default() += 1;
    }
    reasons
}

/// A line of the summary.
struct Summary {
    resource: String,
    objects: usize,
    /// How many objects cannot be read, by reason.
    unreadable: BTreeMap<String, usize>,
    bytes: usize,
    history: usize,
    damaged: usize,
    last: Revision,
}

fn print_summary(
    out: &mut impl Write,
    about: &About,
    summaries: impl Iterator<Item = Summary>,
) -> io::Result<()> {
    let created = jiff::Timestamp::from_second(about.created.unix_seconds()).unwrap_or_default();
    writeln!(out, "Backup of {created} by version {}\n", about.version)?;
    writeln!(out, "{:<64} {:>9} {:>13} {:>9} {:>17}", "RESOURCE", "OBJECTS", "BYTES", "HISTORY", "REVISION")?;
    let (mut objects, mut bytes, mut history) = (0, 0, 0);
    for summary in summaries {
        let Summary { resource, last, .. } = &summary;
        writeln!(
            out,
            "{resource:<64} {:>9} {:>13} {:>9} {last:>17}",
            summary.objects, summary.bytes, summary.history
        )?;
        if summary.damaged > 0 {
            writeln!(out, "  {} of its records are damaged", summary.damaged)?;
        }
        for (reason, count) in &summary.unreadable {
            writeln!(out, "  {count} of its objects cannot be read: {reason}")?;
        }
        (objects, bytes, history) =
            (objects + summary.objects, bytes + summary.bytes, history + summary.history);
    }
    writeln!(out, "{:<64} {objects:>9} {bytes:>13} {history:>9}", "all")
}
