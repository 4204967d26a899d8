//! States of a type from before its window, read from the shared log for as long as that knows them.

use std::sync::Arc;

use futures::stream::StreamExt as _;
use pilothouse_types::object::{Key, Object, Revision, TypeName};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::decoding::object;
use super::{PastError, SharedEntry, SharedLog, SharedLogError};
use crate::limits::{BARRIER_TIMEOUT, PAST_OBJECTS_PER_TURN, PAST_READERS};
use crate::snapshot::Snapshot;
use crate::yield_every::YieldEvery;

/// Reads older states of one type. Cheap to clone.
#[derive(Clone)]
pub struct PastReader {
    log: Arc<dyn SharedLog>,
    type_name: TypeName,
}

/// One bound for all types and servers of the process, as for the archive.
static READERS: Semaphore = Semaphore::const_new(PAST_READERS);

impl PastReader {
    pub(crate) fn new(log: Arc<dyn SharedLog>, type_name: TypeName) -> PastReader {
        PastReader { log, type_name }
    }

    /// Waits for a turn to read. Somebody else may have read the same state meanwhile.
    pub(crate) async fn turn() -> Option<SemaphorePermit<'static>> {
        READERS.acquire().await.ok()
    }

    /// The state at a revision that is older than `current`, which shares with it what has not changed since. `reserve` is called with
    /// the bytes of each part without what it shares, and returns whether memory allows to keep it: if not, there is no state.
    pub(crate) async fn snapshot_at(
        &self,
        current: &Snapshot,
        revision: Revision,
        mut reserve: impl FnMut(usize) -> bool,
    ) -> Result<Option<Snapshot>, PastError> {
        let mut state = Snapshot { written: Arc::clone(&current.written), ..Snapshot::empty(revision) };
        let mut parts = self.log.load_type_at(&self.type_name, revision);
        let mut yield_every = YieldEvery::new(PAST_OBJECTS_PER_TURN);
        while let Some(entries) = parts.next().await {
            let (mut changed, mut bytes) = (Vec::new(), 0);
            for entry in entries? {
                bytes += ENTRY_BYTES;
                match current.get(entry.key.as_str()).filter(|object| object.revision == entry.revision) {
                    Some(object) => drop(state.objects.insert(entry.key, Arc::clone(object))),
                    None => changed.push(entry),
                }
                yield_every.worked(1).await;
            }
            let changed = self.decode(changed).await?;
            bytes +=
                changed.iter().map(|object| object.key.as_str().len() + object.bytes.len()).sum::<usize>();
            if !reserve(bytes) {
                return Ok(None);
            }
            for object in changed {
                state.objects.insert(object.key.clone(), Arc::new(object));
                yield_every.worked(1).await;
            }
        }
        Ok(Some(state))
    }

    async fn decode(&self, entries: Vec<SharedEntry>) -> Result<Vec<Object>, PastError> {
        let (places, values): (Vec<(Key, Revision)>, Vec<_>) = entries
            .into_iter()
            .map(|entry| ((entry.key.clone(), entry.revision), (entry.key, entry.value)))
            .unzip();
        // A KMS plugin may not answer. It gets as long as the log, because others wait for this reader.
        let decoded = timeout(BARRIER_TIMEOUT, self.log.decode_all(&self.type_name, values)).await;
        let silent = |_| SharedLogError::Unavailable("values cannot be decrypted for now".into());
        let decoded = decoded.map_err(|elapsed| PastError::Log(silent(elapsed)))?;
        let objects = places.into_iter().zip(decoded);
        Ok(objects.map(|((key, revision), decoded)| object(key, revision, decoded)).collect())
    }
}

/// The memory of an entry of the map, also of one whose object is shared.
const ENTRY_BYTES: usize = 64;
