//! Reads events back from the log while the engine keeps writing.

use std::path::PathBuf;
use std::sync::Arc;

use pilothouse_types::object::{Object, Revision, TypeName};
use redb::{Database, ReadableDatabase as _};

use super::database::{ReadableHandle, fault};
use super::synced_file::read_apart;
use super::{LOG, TYPES};
use crate::archive::{Archive, ArchiveError, Span};
use crate::encryption::Encryption;
use crate::engine::EngineError;
use crate::engine::record::{Operation, Record, RecordDecoder};
use crate::event::{Change, Event};

/// Reads the log, each time in a transaction of its own.
pub(super) struct Reader {
    path: PathBuf,
    database: ReadableHandle,
    encryption: Arc<dyn Encryption>,
}

impl Reader {
    /// A reader of an open database, which it does not keep open.
    pub(super) fn new(path: PathBuf, database: ReadableHandle, encryption: Arc<dyn Encryption>) -> Reader {
        Reader { path, database, encryption }
    }
}

impl Archive for Reader {
    fn read(&self, type_name: &TypeName, span: Span) -> Result<Vec<Event>, ArchiveError> {
        let database = self.database.database().ok_or(ArchiveError::Gone)?;
        let mut events = Vec::new();
        let is_complete = read_apart(|| self.collect(&database, type_name, span, &mut events));
        match is_complete {
            Ok(true) => Ok(events),
            Ok(false) => Err(ArchiveError::Gone),
            Err(error) => Err(ArchiveError::Broken(error.to_string())),
        }
    }
}

impl Reader {
    /// Collects the events of a span. Returns whether every event is intact and follows the one before.
    fn collect(
        &self,
        database: &Database,
        type_name: &TypeName,
        span: Span,
        events: &mut Vec<Event>,
    ) -> Result<bool, EngineError> {
        let path = &self.path;
        let transaction = database.begin_read().map_err(|error| fault(path, error))?;
        let types = transaction.open_table(TYPES).map_err(|error| fault(path, error))?;
        let Some(id) = types.get(type_name.as_str()).map_err(|error| fault(path, error))? else {
            return Ok(false);
        };
        let id = id.value();
        let decoder = RecordDecoder::new(id, type_name, &*self.encryption);
        let log = transaction.open_table(LOG).map_err(|error| fault(path, error))?;
        let object_at = |revision: Revision| -> Result<Option<Arc<Object>>, EngineError> {
            let record = log.get((id, revision.0)).map_err(|error| fault(path, error))?;
            let Some(bytes) = record else { return Ok(None) };
            Ok(match decoder.decode(revision, bytes.value())?.operation {
                Operation::Create(object) | Operation::Replace(object, _) => Some(object),
                Operation::Remove(..) | Operation::AdvanceRevision(_) => None,
            })
        };
        let (mut last, mut bytes) = (span.after, 0);
        let range = (id, last.next().0)..=(id, span.through.0);
        for entry in log.range(range).map_err(|error| fault(path, error))? {
            self.database.check_open()?;
            let (place, record) = entry.map_err(|error| fault(path, error))?;
            let revision = Revision(place.value().1);
            let record = decoder.decode(revision, record.value())?;
            if record.predecessor(revision) != last {
                return Ok(false);
            }
            last = revision;
            let Record { operation, accepted_at, .. } = record;
            let (change, object, superseded) = match operation {
                Operation::Create(object) => (Change::Created, Some(object), None),
                Operation::Replace(object, superseded) => (Change::Replaced, Some(object), Some(superseded)),
                Operation::Remove(_, superseded) => (Change::Removed, None, Some(superseded)),
                Operation::AdvanceRevision(_) => continue,
            };
            let previous = superseded.map(object_at).transpose()?.flatten();
            if superseded.is_some() && previous.is_none() {
                return Ok(false);
            }
            let last = previous.as_ref().map(|last| Arc::new(last.at_revision(revision)));
            let Some(object) = object.or(last) else { return Ok(false) };
            // Nobody can say whom it concerns: a watch that takes it for somebody else's would miss it. Recovery leaves such events
            // out as well.
            if !object.is_readable() || previous.as_ref().is_some_and(|previous| !previous.is_readable()) {
                return Ok(false);
            }
            bytes += object.bytes.len() + previous.as_ref().map_or(0, |previous| previous.bytes.len());
            events.push(Event::new(change, object, previous, accepted_at));
            if events.len() >= span.max_events || bytes >= span.max_bytes {
                break;
            }
        }
        Ok(true)
    }
}
