//! The memory of CustomResourceDefinitions that are being compiled: first for validation during the write, then again to serve
//! them.
//!
//! Invariant: the memory of a definition is reserved from before its validation until it is compiled. From then on it is
//! measured.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::lock::Lock;
use pilothouse_types::memory::MemoryBudget;
use pilothouse_types::object::Revision;

use crate::limits::DEFINITION_GROWTH;

use super::request_memory::{MemoryPriority, RequestMemory, RequestReservation};
use super::{Backend, Call};

/// Counts the definitions of all requests in flight, and those that are stored and not compiled yet. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DefinitionMemory {
    memory: RequestMemory,
    stored: Arc<Lock<Stored>>,
}

/// The definitions that are stored and not compiled yet.
#[derive(Debug, Default)]
struct Stored {
    /// The last revision whose definitions are compiled.
    compiled: Revision,
    uncompiled: BTreeMap<Revision, RequestReservation>,
}

impl Backend {
    /// Reserves memory for compiling definitions, if a client writes one: the new one, and the stored one that it replaces. The
    /// size is that of the objects, because the body may be a patch, or YAML whose aliases expand.
    pub fn reserve_definitions(
        &self,
        call: &Call<'_>,
        definitions: &[&Value],
    ) -> Result<Option<RequestReservation>> {
        let bytes = || definitions.iter().map(|definition| json::to_json(definition).len()).sum();
        call.writes_definition()
            .then(|| self.definitions.reserve(bytes(), call.memory_priority()))
            .transpose()
    }
}

impl DefinitionMemory {
    /// Reserves from this budget, of which one user may have half.
    pub fn new(budget: MemoryBudget) -> DefinitionMemory {
        DefinitionMemory { memory: RequestMemory::new(budget), stored: Arc::default() }
    }

    /// Reserves memory for compiling definitions of so many bytes: 429 if the budget is exhausted.
    pub fn reserve(&self, bytes: usize, priority: MemoryPriority<'_>) -> Result<RequestReservation> {
        self.memory.reserve(bytes.saturating_mul(DEFINITION_GROWTH), priority)
    }

    /// Keeps the memory of a definition that was stored at this revision until it is compiled.
    pub fn keep_until_compiled(&self, revision: Revision, held: RequestReservation) {
        let mut stored = self.stored.lock();
        if revision > stored.compiled {
            stored.uncompiled.insert(revision, held);
        }
    }

    /// Notes that all definitions up to this revision are compiled.
    pub fn mark_compiled(&self, revision: Revision) {
        let mut stored = self.stored.lock();
        stored.compiled = stored.compiled.max(revision);
        let compiled = stored.compiled;
        stored.uncompiled.retain(|stored_at, _| *stored_at > compiled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LARGE_BODY_BYTES;

    #[test]
    fn definition_memory_is_held_until_compiled() {
        let budget = MemoryBudget::standalone(3 * DEFINITION_GROWTH);
        let memory = DefinitionMemory::new(budget.clone());
        let [first, second] = [1, 2].map(|bytes| memory.reserve(bytes, MemoryPriority::User("a")).unwrap());
        assert_eq!(memory.reserve(1, MemoryPriority::User("b")).unwrap_err().code, 429);
        memory.keep_until_compiled(Revision(7), first);
        memory.mark_compiled(Revision(6));
        assert_eq!(budget.bytes(), 3 * DEFINITION_GROWTH);
        memory.mark_compiled(Revision(9));
        assert_eq!(budget.bytes(), 2 * DEFINITION_GROWTH);
        memory.keep_until_compiled(Revision(8), second);
        assert_eq!(budget.bytes(), 0, "it was compiled before the write returned");
    }

    #[test]
    fn definition_memory_of_one_user_is_limited_to_half() {
        const LARGE: usize = LARGE_BODY_BYTES / DEFINITION_GROWTH + 1;
        let memory = DefinitionMemory::new(MemoryBudget::standalone(4 * LARGE * DEFINITION_GROWTH));
        let reserve = |user| memory.reserve(LARGE, MemoryPriority::User(user));
        let held: Vec<RequestReservation> = (0..4).filter_map(|_| reserve("greedy").ok()).collect();
        assert_eq!(held.len(), 2);
        for (revision, held) in (1..).zip(held) {
            memory.keep_until_compiled(Revision(revision), held);
        }
        assert_eq!(reserve("greedy").unwrap_err().code, 429, "definitions that are not compiled yet count");
        assert!(reserve("modest").is_ok());
        memory.mark_compiled(Revision(2));
        assert!(reserve("greedy").is_ok());
    }
}
