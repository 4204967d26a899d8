//! A shared record in memory, for tests: with the faults of a real one.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt as _};
use pilothouse_types::error::StoreError;
use pilothouse_types::lock::Lock;
use pilothouse_types::object::Revision;

use super::{RangeContent, RangeError, RangeRecord, RangeWrite, SharedRange};

/// What goes wrong with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFault {
    /// It is not written.
    Refused,
    /// It is written, and its answer is lost.
    AnswerLost,
    /// It is lost on its way, and so is its answer.
    Lost,
}

/// The record. Clones share it.
#[derive(Clone, Default)]
pub struct MemoryRange(Arc<Lock<State>>);

#[derive(Default)]
struct State {
    record: Option<RangeRecord>,
    revision: u64,
    writes: usize,
    write_faults: VecDeque<Option<WriteFault>>,
    is_cut_off: bool,
}

impl MemoryRange {
    /// Writes the record as another server would.
    pub fn put(&self, content: RangeContent) {
        self.with(|state| state.put(content));
    }

    /// What the record says.
    pub fn content(&self) -> Option<RangeContent> {
        self.with(|state| state.record.as_ref().map(|record| record.content.clone()))
    }

    /// How often it was written by [`SharedRange::write`].
    pub fn writes(&self) -> usize {
        self.with(|state| state.writes)
    }

    /// The faults of the next writes.
    pub fn fail_writes(&self, faults: impl IntoIterator<Item = Option<WriteFault>>) {
        self.with(|state| state.write_faults = faults.into_iter().collect());
    }

    /// Whether nothing can be read or written.
    pub fn cut_off(&self, is_cut_off: bool) {
        self.with(|state| state.is_cut_off = is_cut_off);
    }

    fn with<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        action(&mut self.0.lock())
    }
}

impl State {
    fn put(&mut self, content: RangeContent) -> Revision {
        self.revision += 1;
        self.record = Some(RangeRecord { revision: Revision(self.revision), content });
        Revision(self.revision)
    }

    fn write(&mut self, expected: Option<Revision>, content: RangeContent) -> RangeWrite {
        let fault = self.write_faults.pop_front().flatten();
        match fault {
            Some(WriteFault::Lost) => return RangeWrite::Unknown,
            Some(WriteFault::Refused) => return RangeWrite::Failed(StoreError::Unreachable.into()),
            Some(WriteFault::AnswerLost) | None => {}
        }
        if self.record.as_ref().map(|record| record.revision) != expected {
            return RangeWrite::Changed(self.record.clone());
        }
        self.writes += 1;
        let revision = self.put(content);
        if fault.is_some() { RangeWrite::Unknown } else { RangeWrite::Written(revision) }
    }
}

impl SharedRange for MemoryRange {
    fn read(&self) -> BoxFuture<'static, Result<Option<RangeRecord>, RangeError>> {
        let range = self.clone();
        async move {
            tokio::task::yield_now().await;
            range.with(|state| match state.is_cut_off {
                true => Err(StoreError::Unreachable.into()),
                false => Ok(state.record.clone()),
            })
        }
        .boxed()
    }

    fn write(&self, expected: Option<Revision>, content: RangeContent) -> BoxFuture<'static, RangeWrite> {
        let range = self.clone();
        async move {
            tokio::task::yield_now().await;
            range.with(|state| match state.is_cut_off {
                true => RangeWrite::Failed(StoreError::Unreachable.into()),
                false => state.write(expected, content),
            })
        }
        .boxed()
    }
}
