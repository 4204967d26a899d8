//! `pilothouse restore`: makes a new data directory from a backup.

use std::fs::File;
use std::io::{self, BufReader, Write as _};
use std::path::{Path, PathBuf};

use clap::Parser;
use pilothouse_actors::backup::{BackupError, BackupReader};
use pilothouse_actors::engine::EngineError;
use pilothouse_actors::engine::redb::{RestoreError, Restored, StoppedStore, restore};
use pilothouse_types::clock::Clock;
use pilothouse_types::object::Revision;

use super::Command;
use crate::server::{STORE_FILE, create_data_directory};

/// Make a new store from a backup. Start the server on it afterwards.
///
/// All resourceVersions go on far above those of the backup, so that none is used twice. Clients that continue a watch or a list from
/// before the restoration get 410 and list again.
#[derive(Debug, Parser)]
#[command(bin_name = "pilothouse restore", no_binary_name = true)]
pub(super) struct Options {
    /// The backup.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The directory of the new store; it is created if it does not exist.
    #[arg(long, default_value = "./pilothouse-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Keep a store that is in the directory already, under another name, instead of refusing.
    #[arg(long)]
    replace: bool,
}

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("cannot read {file}: {error}")]
    File { file: String, error: BackupError },
    #[error("{0}")]
    Restore(#[from] RestoreError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{file} cannot be replaced: {error}")]
    Present { file: String, error: EngineError },
    #[error("the new store was made, but it may not stay")]
    NotDurable,
}

/// By how much revisions rise at least: more than a server gives between two backups.
pub(super) const LEAST_RISE: u64 = 1_000_000_000;

impl Command for Options {
    const NAME: &str = "restore";
    type Failure = Failure;

    fn run(&self) -> Result<(), Failure> {
        let name = self.file.display().to_string();
        let unreadable = |error| Failure::File { file: name.clone(), error };
        let file = File::open(&self.file).map_err(|error| unreadable(error.into()))?;
        let (backup, about) = BackupReader::open(BufReader::new(file)).map_err(unreadable)?;
        create_data_directory(&self.data_dir)?;
        let store = self.data_dir.join(STORE_FILE);
        let present = self.present_revision(&store)?;
        let now = Clock::system().now();
        // By the clock, because a backup may be restored more than once, and each restoration must begin above what servers gave after
        // the one before. None gives a million revisions a second.
        let first_revision = |highest: Revision| {
            Revision(now.0.max(highest.max(present.unwrap_or(highest)).0.saturating_add(LEAST_RISE)))
        };
        let aside = store.with_extension(format!("{}.before-restore", now.0));
        let aside = Some(&*aside).filter(|_| self.replace);
        let restored = restore(&store, aside, backup, first_revision)?;
        if let Some(aside) = aside.filter(|aside| aside.exists()) {
            let _closed = writeln!(io::stderr(), "the store that was there is kept as {}", aside.display());
        }
        print_warnings(&restored);
        let mut out = io::stdout();
        writeln!(
            out,
            "Restored {} records of {} resources from {name}, which version {} wrote, into {}.\n\
             Revisions go on from {}: clients that continue from before will list again.",
            restored.totals.records,
            restored.totals.types,
            about.version,
            self.data_dir.display(),
            restored.first_revision,
        )?;
        if restored.is_durable { Ok(()) } else { Err(Failure::NotDurable) }
    }
}

/// Prints what else there is to know of a new store.
pub(super) fn print_warnings(restored: &Restored) {
    for warning in &restored.warnings {
        let _closed = writeln!(io::stderr(), "warning: {warning}");
    }
}

impl Options {
    /// The highest revision of a store that is there already and is to be replaced.
    fn present_revision(&self, store: &Path) -> Result<Option<Revision>, Failure> {
        if !self.replace || !store.exists() {
            return Ok(None);
        }
        // A damaged store may be the reason for the restoration. A running server is no reason to go on.
        match StoppedStore::open(store) {
            Ok(present) => Ok(Some(present.highest_revision())),
            Err(error @ EngineError::Locked(_)) => {
                Err(Failure::Present { file: store.display().to_string(), error })
            }
            Err(error) => {
                let _closed = writeln!(io::stderr(), "the present store cannot be read: {error}");
                Ok(None)
            }
        }
    }
}
