//! From a data directory into etcd, which has a mark until everything is there.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use pilothouse_actors::engine::EngineError;
use pilothouse_actors::engine::redb::{LiveObject, LiveObjects, LiveType, StoppedStore};
use pilothouse_etcd_log::{CopyTarget, CopyWrite, EncodeError, EtcdLog};
use pilothouse_types::object::{Key, Revision, TypeName};
use tokio::task::spawn_blocking;

use super::etcd_side::EtcdSide;
use super::report::Report;
use super::{Failure, Options};
use crate::commands::progress::count;
use crate::encryption::StoredEncryption;
use crate::limits::COPY_WRITES_IN_FLIGHT;
use crate::live_index::stored_object::CUSTOM_RESOURCE_DEFINITIONS;
use crate::server::STORE_FILE;

/// The type whose objects expire.
const EVENTS: &str = "events";

/// Copies everything from this directory to these servers.
pub(super) async fn copy(options: &Options, servers: Vec<String>, directory: &Path) -> Result<(), Failure> {
    let config = options.encryption_provider_config.as_deref();
    let encryption = StoredEncryption::load(config).map_err(Failure::Settings)?;
    let side = EtcdSide::new(options, servers, encryption.clone())?;
    let mut report = Report::new(options.drop_unreadable);
    report.line(format_args!("reading {}", directory.display()));
    let source = Arc::new(Source::open(directory.join(STORE_FILE), encryption, options.event_ttl).await?);
    source.add_types(&side).await?;
    let (target, removed) = side.log.copy_target().await?;
    if removed > 0 {
        report.line(format_args!("removed {} of an unfinished copy", count(removed, "key")));
    }
    let total = source.live.types.iter().map(|live| live.len() as u64).sum();
    let mut done = 0;
    for (index, live) in source.live.types.iter().enumerate() {
        if side.types.has(&live.name) {
            Copy { source: &source, log: &side.log, target: &target }
                .copy_type(index, &mut report, done, total)
                .await?;
        } else if !live.is_empty() {
            report.add_foreign_type(&live.name, live.len() as u64);
        }
        done += live.len() as u64;
    }
    report.check()?;
    finish(target, &source, &mut report, directory).await
}

/// Completes the copy, and says so.
async fn finish(
    target: CopyTarget,
    source: &Source,
    report: &mut Report,
    directory: &Path,
) -> Result<(), Failure> {
    let highest = source.store.highest_revision();
    let missing = target.raise_above(highest).await?;
    let revision = target.finish(report.copied).await?;
    report.print_left_out();
    writeln!(
        io::stdout(),
        "Copied {} objects of {} into etcd. Its revision is {revision}: clients that continue from before will list again.",
        report.copied,
        directory.display(),
    )?;
    if missing > 0 {
        report.line(revision_warning(highest, revision, missing));
    }
    Ok(())
}

/// What to do if clients may have revisions that etcd has not reached.
fn revision_warning(highest: Revision, revision: Revision, missing: u64) -> String {
    format!(
        "warning: clients of the old server may have resourceVersions up to {highest}, and etcd is at {revision}. A client that continues \
         from a later version than that of etcd gets \"Too large resource version\", and some ask again and again. Restart all clients, \
         controllers and kubelets, or raise the revision of etcd before servers start:\n  \
         etcdctl snapshot save copy.db\n  \
         etcdutl snapshot restore copy.db --bump-revision {missing} --mark-compacted --data-dir DIR\n\
         and start the members on the new directories"
    )
}

/// A data directory.
struct Source {
    store: StoppedStore,
    live: LiveObjects,
    encryption: StoredEncryption,
    /// How long events live after they were written last; zero for ever.
    event_ttl: Duration,
}

/// An object on its way to etcd.
enum Passage {
    /// It has this stored form, and lives so many seconds if it expires.
    Ready {
        key: Key,
        value: Bytes,
        seconds_left: Option<u64>,
    },
    Expired,
    /// It cannot be copied, and why.
    Unreadable {
        key: Key,
        reason: String,
    },
}

impl Source {
    async fn open(
        store: PathBuf,
        encryption: Option<Arc<pilothouse_encryption::Encryption>>,
        event_ttl: Duration,
    ) -> Result<Source, Failure> {
        let opened = run_blocking(move || {
            let store = StoppedStore::open(&store)?;
            let live = store.live_objects()?;
            Ok((store, live))
        });
        let (store, live) = opened.await?;
        Ok(Source { store, live, encryption: StoredEncryption::new(encryption), event_ttl })
    }

    /// Makes the types of all definitions known.
    async fn add_types(self: &Arc<Source>, side: &EtcdSide) -> Result<(), Failure> {
        let definitions = CUSTOM_RESOURCE_DEFINITIONS.type_name();
        let Some(index) = self.live.types.iter().position(|live| live.name == definitions) else {
            return Ok(());
        };
        let mut from = 0;
        loop {
            let source = Arc::clone(self);
            let page = run_blocking(move || Ok(source.read(index, from)?)).await?;
            if page.is_empty() {
                return Ok(());
            }
            from += page.len();
            page.iter().for_each(|live| side.add_type(&live.object));
        }
    }

    fn read(&self, index: usize, from: usize) -> Result<Vec<LiveObject>, EngineError> {
        let Some(live) = self.live.types.get(index) else { return Ok(Vec::new()) };
        self.store.read_live(live, from, &self.encryption)
    }

    /// Reads objects of a type, from this one on, and makes what etcd gets of them.
    fn prepare(&self, log: &EtcdLog, index: usize, from: usize) -> Result<Vec<Passage>, Failure> {
        let Some(LiveType { name, .. }) = self.live.types.get(index) else { return Ok(Vec::new()) };
        self.read(index, from)?.into_iter().map(|live| self.passage(log, name, &live)).collect()
    }

    fn passage(&self, log: &EtcdLog, type_name: &TypeName, live: &LiveObject) -> Result<Passage, Failure> {
        let key = live.object.key.clone();
        if let Some(reason) = live.object.unreadable_reason() {
            return Ok(Passage::Unreadable { key, reason: reason.to_string() });
        }
        let seconds_left = match type_name.as_str() {
            EVENTS if !self.event_ttl.is_zero() => {
                let age = self.live.newest.since(live.written);
                match self.event_ttl.saturating_sub(age).as_secs() {
                    0 => return Ok(Passage::Expired),
                    seconds => Some(seconds),
                }
            }
            _ => None,
        };
        match log.encode(type_name, &live.object.to_draft()) {
            Ok(Some(stored)) => Ok(Passage::Ready { key, value: stored.bytes, seconds_left }),
            Ok(None) => Ok(Passage::Unreadable {
                key,
                reason: "etcd has no key for an object of this name".to_owned(),
            }),
            Err(EncodeError::Value(error)) => Ok(Passage::Unreadable { key, reason: error.to_string() }),
            // It concerns all objects of the type.
            Err(error @ (EncodeError::Encryption(_) | EncodeError::UnknownKey)) => {
                Err(Failure::NotEncrypted(error.to_string()))
            }
        }
    }
}

/// Copies types, one after the other.
struct Copy<'a> {
    source: &'a Arc<Source>,
    log: &'a EtcdLog,
    target: &'a CopyTarget,
}

impl Copy<'_> {
    async fn copy_type(
        &self,
        index: usize,
        report: &mut Report,
        before: u64,
        total: u64,
    ) -> Result<(), Failure> {
        let Some(live) = self.source.live.types.get(index) else { return Ok(()) };
        let mut from = 0;
        while from < live.len() {
            let (source, log) = (Arc::clone(self.source), self.log.clone());
            let page = run_blocking(move || source.prepare(&log, index, from)).await?;
            if page.is_empty() {
                break;
            }
            from += page.len();
            self.write(&live.name, page, report).await?;
            report.show(before + from as u64, total);
        }
        Ok(())
    }

    async fn write(
        &self,
        type_name: &TypeName,
        page: Vec<Passage>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let write = async |passage| match passage {
            Passage::Ready { key, value, seconds_left } => {
                let written = self.target.write(type_name, &key, value, seconds_left).await;
                written.map(|written| (Some(key), written))
            }
            Passage::Expired => Ok((None, CopyWrite::Expired)),
            Passage::Unreadable { key, reason } => Ok((Some(key), CopyWrite::Refused(reason))),
        };
        let mut writes = stream::iter(page).map(write).buffer_unordered(COPY_WRITES_IN_FLIGHT);
        while let Some(outcome) = writes.next().await {
            match outcome? {
                (_, CopyWrite::Written) => report.copied += 1,
                (_, CopyWrite::Expired) => report.expired += 1,
                (Some(key), CopyWrite::Refused(reason)) => report.add_unreadable(type_name, &key, &reason),
                (None, CopyWrite::Refused(_)) => {}
            }
        }
        Ok(())
    }
}

/// Does what takes long, or waits for a disk or a KMS plugin, on another thread: a signal is noticed meanwhile.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    spawn_blocking(work).await.map_err(|error| Failure::Io(io::Error::other(error)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_names_the_revisions_that_are_missing() {
        let warning = revision_warning(Revision(9_000_000), Revision(5_000), 8_995_001);
        assert!(
            warning.contains("up to 9000000") && warning.contains("--bump-revision 8995001 --mark-compacted")
        );
    }
}
