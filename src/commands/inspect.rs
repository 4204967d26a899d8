//! `pilothouse inspect`: shows what a backup holds, without a server.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::PathBuf;

use clap::Parser;
use pilothouse_actors::backup::{About, BackedUpType, BackupError, BackupReader, Entry};
use pilothouse_actors::engine::record::{Operation, Record};
use pilothouse_api::custom::definition::resource_of_store;
use pilothouse_types::object::{Object, Revision};

use super::Command;
use super::backup::verify;

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
}

impl Command for Options {
    const NAME: &str = "inspect";
    type Failure = BackupError;

    fn run(&self) -> Result<(), BackupError> {
        // A backup is whole only if its end is there, so nothing is said about it before.
        verify(BufReader::new(File::open(&self.file)?))?;
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
                        records.add(revision, bytes);
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
        let selected =
            |object: &Object| self.namespace.as_deref().is_none_or(|namespace| object.key.is_in(namespace));
        if self.objects {
            for object in records.objects.values().filter(|object| selected(object)) {
                match object.is_readable() {
                    true => out.write_all(&object.bytes)?,
                    false => write!(out, "{}", serde_json::json!({"unreadable": object.key.as_str()}))?,
                }
                out.write_all(b"\n")?;
            }
        }
        let live = || records.objects.values().filter(|object| selected(object));
        Ok(Some(Summary {
            resource,
            objects: live().count(),
            unreadable: live().filter(|object| !object.is_readable()).count(),
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
    objects: BTreeMap<String, std::sync::Arc<Object>>,
    /// Records of superseded and deleted versions.
    superseded: usize,
    damaged: usize,
}

impl LiveRecords {
    fn new(backed_up: BackedUpType) -> LiveRecords {
        LiveRecords { backed_up, objects: BTreeMap::new(), superseded: 0, damaged: 0 }
    }

    fn add(&mut self, revision: Revision, bytes: &[u8]) {
        let Ok(record) = Record::decode(self.backed_up.id, revision, bytes) else {
            self.damaged += 1;
            return;
        };
        match record.operation {
            Operation::Create(object) | Operation::Replace(object, _) => {
                let before = self.objects.insert(object.key.as_str().to_owned(), object);
                self.superseded += usize::from(before.is_some());
            }
            Operation::Remove(key, _) => {
                self.superseded += 1 + usize::from(self.objects.remove(key.as_str()).is_some());
            }
            Operation::AdvanceRevision(_) => self.superseded += 1,
        }
    }
}

/// A line of the summary.
struct Summary {
    resource: String,
    objects: usize,
    unreadable: usize,
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
        for (count, problem) in [(summary.unreadable, "cannot be read"), (summary.damaged, "are damaged")] {
            if count > 0 {
                writeln!(out, "  {count} of its records {problem}")?;
            }
        }
        (objects, bytes, history) =
            (objects + summary.objects, bytes + summary.bytes, history + summary.history);
    }
    writeln!(out, "{:<64} {objects:>9} {bytes:>13} {history:>9}", "all")
}
