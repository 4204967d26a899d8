//! The state of a type at an older revision, computed from a newer one and the events in between. Where these are gone, a shared log
//! may still know the state itself.

use std::collections::HashMap;
use std::sync::Arc;

use pilothouse_types::object::{Key, Object, Revision};

use crate::archive::ArchiveError;
use crate::checkpoints::Origin;
use crate::event::Event;
use crate::limits::EXPIRE_PER_TURN;
use crate::shared_log::past::PastReader;
use crate::shared_log::{PastError, SharedLogError};
use crate::snapshot::Snapshot;
use crate::store::Position;
use crate::window::Read;

/// The reason why an older state is not available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PointInTimeError {
    /// The revision is outside of the history.
    Gone,
    /// It differs too much from the states in memory.
    TooLarge,
    /// The log cannot be read.
    Broken(String),
    /// The log does not answer for now.
    Unavailable(SharedLogError),
}

impl From<ArchiveError> for PointInTimeError {
    fn from(error: ArchiveError) -> PointInTimeError {
        match error {
            ArchiveError::Gone => PointInTimeError::Gone,
            ArchiveError::Broken(reason) => PointInTimeError::Broken(reason),
        }
    }
}

impl From<PastError> for PointInTimeError {
    fn from(error: PastError) -> PointInTimeError {
        match error {
            PastError::Compacted => PointInTimeError::Gone,
            PastError::Log(error) => PointInTimeError::Unavailable(error),
        }
    }
}

/// The state at `revision`. `reserve` is called with the bytes of each batch that was not in memory, and returns whether memory allows
/// to keep it.
pub async fn snapshot_at(
    position: &Position,
    revision: Revision,
    mut reserve: impl FnMut(usize) -> bool,
) -> Result<Snapshot, PointInTimeError> {
    let Position { window, snapshot: current, past, now, .. } = position;
    if revision > current.revision {
        return Err(PointInTimeError::Gone);
    }
    if let Some(checkpoint) = window.checkpoints().at(revision) {
        return Ok(checkpoint);
    }
    let past = match (from_history(position, revision, &mut reserve).await, past) {
        (Err(PointInTimeError::Gone), Some(past)) => past,
        (result, _) => return result,
    };
    let _turn = PastReader::turn().await;
    if let Some(checkpoint) = window.checkpoints().at(revision) {
        return Ok(checkpoint);
    }
    let mut bytes = 0;
    let count = |part: usize| {
        bytes += part;
        reserve(part)
    };
    let state = past.snapshot_at(current, revision, count).await?.ok_or(PointInTimeError::TooLarge)?;
    window.checkpoints().keep(state.clone(), Origin::SharedLog { bytes, read_at: *now });
    Ok(state)
}

/// The state as the window and the archive know it.
///
/// The state of an object at a revision is the one that its first later event superseded. So one walk forward to the nearest
/// known state finds all differences.
async fn from_history(
    position: &Position,
    revision: Revision,
    reserve: &mut impl FnMut(usize) -> bool,
) -> Result<Snapshot, PointInTimeError> {
    let Position { window, snapshot: current, .. } = position;
    if window.gap_around(revision).is_some() {
        return Err(PointInTimeError::Gone);
    }
    let checkpoint = window.checkpoints().nearest(revision).filter(|state| state.revision < current.revision);
    let base = checkpoint.unwrap_or_else(|| current.clone());
    let mut past_objects: HashMap<Key, Option<Arc<Object>>> = HashMap::new();
    let mut cursor = revision;
    let mut archived_bytes = None;
    while cursor < base.revision {
        let (events, archived) = match window.read(cursor, EXPIRE_PER_TURN) {
            Read::Events(events) => (events, false),
            Read::Expired(_) => return Err(PointInTimeError::Gone),
            Read::Archived(archive_reader, through) => {
                // Not only up to `base`: `base` may be at a revision without an event, and a read must end at one.
                let read = archive_reader.read(cursor, through, EXPIRE_PER_TURN).await;
                let events = read.map_err(PointInTimeError::from)?;
                (events, true)
            }
        };
        let (mut last, mut bytes) = (None, 0);
        for event in events.iter().take_while(|event| event.revision() <= base.revision) {
            last = Some(event.revision());
            past_objects.entry(event.object.key.clone()).or_insert_with(|| {
                bytes += weight(event);
                event.previous.clone()
            });
        }
        if archived {
            if !reserve(bytes) {
                return Err(PointInTimeError::TooLarge);
            }
            *archived_bytes.get_or_insert(0) += bytes;
        }
        let Some(last) = last else { break };
        cursor = last;
        tokio::task::yield_now().await;
    }
    let mut objects = base.objects;
    for (key, object) in past_objects {
        match object {
            Some(object) => objects.insert(key, object),
            None => objects.remove(&key),
        };
    }
    let state = Snapshot { revision, objects, written: Arc::clone(&current.written) };
    if revision < current.revision {
        window.checkpoints().keep(state.clone(), archived_bytes.map_or(Origin::Window, Origin::Archive));
    }
    Ok(state)
}

/// The memory of an entry of the old state: the absence of an object is an entry, too.
fn weight(event: &Event) -> usize {
    const OVERHEAD: usize = 256;
    let previous = event.previous.as_ref().map_or(0, |previous| previous.bytes.len());
    OVERHEAD + event.object.key.as_str().len() + previous
}
