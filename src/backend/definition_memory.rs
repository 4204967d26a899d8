//! The memory of definitions that are compiled: once for validation, while their write goes on, and again by whoever serves them.
//!
//! Invariant: what a definition takes is reserved from before its validation until it is compiled. From then on it is observed.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_actors::lock::Lock;
use pilothouse_actors::memory::{MemoryBudget, Reservation};
use pilothouse_actors::object::Revision;

use crate::api::codec::json;
use crate::api::status::Result;
use crate::api::value::Value;
use crate::limits::DEFINITION_GROWTH;

use super::{Backend, Call};

/// Counts the definitions of all requests in flight, and those that are stored and not compiled yet. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DefinitionMemory {
    budget: MemoryBudget,
    stored: Arc<Lock<Stored>>,
}

/// The definitions that are stored and not compiled yet.
#[derive(Debug, Default)]
struct Stored {
    /// The last revision whose definitions are compiled.
    compiled: Revision,
    waiting: BTreeMap<Revision, Reservation>,
}

impl Backend {
    /// Reserves what a definition takes while it is compiled, if a client writes one. By the object and not by the body, which may
    /// be a patch, or YAML whose aliases make it larger.
    pub fn reserve_definition(&self, call: &Call<'_>, definition: &Value) -> Result<Option<Reservation>> {
        call.writes_definition()
            .then(|| self.definitions.reserve(json::to_json(definition).len()))
            .transpose()
    }
}

impl DefinitionMemory {
    /// Takes what it reserves from this budget.
    pub fn new(budget: MemoryBudget) -> DefinitionMemory {
        DefinitionMemory { budget, stored: Arc::default() }
    }

    /// Reserves what definitions of so many bytes take while they are compiled: 429 if there is no room.
    pub fn reserve(&self, bytes: usize) -> Result<Reservation> {
        Ok(self.budget.take(bytes.saturating_mul(DEFINITION_GROWTH))?)
    }

    /// Keeps the memory of a definition that was stored at this revision until it is compiled.
    pub fn keep_until_compiled(&self, revision: Revision, held: Reservation) {
        let mut stored = self.stored.lock();
        if revision > stored.compiled {
            stored.waiting.insert(revision, held);
        }
    }

    /// Notes that all definitions up to this revision are compiled.
    pub fn note_compiled(&self, revision: Revision) {
        let mut stored = self.stored.lock();
        stored.compiled = stored.compiled.max(revision);
        let compiled = stored.compiled;
        stored.waiting.retain(|of, _| *of > compiled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_keeps_its_memory_until_it_is_compiled() {
        let budget = MemoryBudget::alone(3 * DEFINITION_GROWTH);
        let memory = DefinitionMemory::new(budget.clone());
        let [first, second] = [1, 2].map(|bytes| memory.reserve(bytes).unwrap());
        assert_eq!(memory.reserve(1).unwrap_err().code, 429);
        memory.keep_until_compiled(Revision(7), first);
        memory.note_compiled(Revision(6));
        assert_eq!(budget.bytes(), 3 * DEFINITION_GROWTH);
        memory.note_compiled(Revision(9));
        assert_eq!(budget.bytes(), 2 * DEFINITION_GROWTH);
        memory.keep_until_compiled(Revision(8), second);
        assert_eq!(budget.bytes(), 0, "it was compiled before its writer had its answer");
    }
}
