//! The live objects of a stopped store, for a copy of them: first which there are, then a few of them at a time.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilothouse_types::object::{Object, Revision, TypeName};
use redb::{Database, ReadableDatabase as _, ReadableTable as _};

use super::database::{catch_panic, fault};
use super::stopped::StoppedStore;
use super::{LOG, LOG_TIME_KEY, META, TYPES};
use crate::encryption::Encryption;
use crate::engine::EngineError;
use crate::engine::record::{Operation, Record, RecordDecoder, RecordHead};
use crate::limits::{LIVE_PAGE_BYTES, LIVE_PAGE_OBJECTS};
use crate::log_time::LogTime;

/// Which objects a store has.
#[derive(Clone, Debug, Default)]
pub struct LiveObjects {
    /// Its types, in the order of their numbers in the file.
    pub types: Vec<LiveType>,
    /// When the log was used last.
    pub newest: LogTime,
}

/// Which objects a store has of one type.
#[derive(Clone, Debug)]
pub struct LiveType {
    /// Its name.
    pub name: TypeName,
    /// Its number in the file.
    id: u32,
    /// Where the objects were written last, in order. Their keys may be encrypted.
    revisions: Vec<u64>,
}

impl LiveType {
    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.revisions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.revisions.is_empty()
    }
}

/// An object, and when it was written last.
#[derive(Clone, Debug)]
pub struct LiveObject {
    /// The object. It may be one that cannot be read.
    pub object: Arc<Object>,
    /// When it was written.
    pub written: LogTime,
}

impl StoppedStore {
    /// Which objects there are. It reads the whole log, and keeps eight bytes of each object.
    pub fn live_objects(&self) -> Result<LiveObjects, EngineError> {
        catch_panic(|| self.find_live())
    }

    /// Reads objects of a type, from this one on: as many as fit into a page, and at least one if there is one.
    pub fn read_live(
        &self,
        live: &LiveType,
        from: usize,
        encryption: &dyn Encryption,
    ) -> Result<Vec<LiveObject>, EngineError> {
        catch_panic(|| self.read_page(live, from, encryption))
    }

    fn find_live(&self) -> Result<LiveObjects, EngineError> {
        let path = self.path();
        let transaction = self.database().begin_read().map_err(|error| fault(path, error))?;
        let meta = transaction.open_table(META).map_err(|error| fault(path, error))?;
        let noted = meta.get(LOG_TIME_KEY).map_err(|error| fault(path, error))?;
        let mut newest = noted.map_or(LogTime::ZERO, |noted| LogTime(noted.value()));
        let log = transaction.open_table(LOG).map_err(|error| fault(path, error))?;
        let mut types = read_types(self.database(), self)?;
        for live in &mut types {
            let mut revisions = BTreeSet::new();
            for entry in log.range((live.id, 0)..=(live.id, u64::MAX)).map_err(|error| fault(path, error))? {
                let (place, bytes) = entry.map_err(|error| fault(path, error))?;
                let revision = place.value().1;
                let (head, _) = RecordHead::split(live.id, Revision(revision), bytes.value())?;
                newest = newest.max(head.accepted_at.log);
                if head.is_step() {
                    continue;
                }
                revisions.remove(&head.superseded.0);
                if head.has_content() {
                    revisions.insert(revision);
                }
            }
            live.revisions = revisions.into_iter().collect();
        }
        Ok(LiveObjects { types, newest })
    }

    fn read_page(
        &self,
        live: &LiveType,
        from: usize,
        encryption: &dyn Encryption,
    ) -> Result<Vec<LiveObject>, EngineError> {
        let path = self.path();
        let transaction = self.database().begin_read().map_err(|error| fault(path, error))?;
        let log = transaction.open_table(LOG).map_err(|error| fault(path, error))?;
        let decoder = RecordDecoder::new(live.id, &live.name, encryption);
        let (mut page, mut page_bytes) = (Vec::new(), 0);
        for revision in live.revisions.iter().skip(from).take(LIVE_PAGE_OBJECTS) {
            let bytes = log.get((live.id, *revision)).map_err(|error| fault(path, error))?;
            let missing = || {
                let name = &live.name;
                EngineError::Damaged(format!("the record at revision {revision} of {name} is gone"))
            };
            let bytes = bytes.ok_or_else(missing)?;
            page_bytes += bytes.value().len();
            let Record { operation, accepted_at, .. } = decoder.decode(Revision(*revision), bytes.value())?;
            if let Operation::Create(object) | Operation::Replace(object, _) = operation {
                page.push(LiveObject { object, written: accepted_at.log });
            }
            if page_bytes >= LIVE_PAGE_BYTES {
                break;
            }
        }
        Ok(page)
    }
}

/// The types of a store, in the order of their numbers, without objects.
fn read_types(database: &Database, store: &StoppedStore) -> Result<Vec<LiveType>, EngineError> {
    let path = store.path();
    let transaction = database.begin_read().map_err(|error| fault(path, error))?;
    let names = transaction.open_table(TYPES).map_err(|error| fault(path, error))?;
    let mut types = Vec::new();
    for entry in names.iter().map_err(|error| fault(path, error))? {
        let (name, id) = entry.map_err(|error| fault(path, error))?;
        let (name, id) = (TypeName::new(name.value()), id.value());
        types.push(LiveType { name, id, revisions: Vec::new() });
    }
    types.sort_by_key(|live| live.id);
    Ok(types)
}
