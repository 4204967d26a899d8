//! The memory of definitions that are compiled: once for validation, while their write goes on, and again by whoever serves them.
//!
//! Invariant: what a definition takes is reserved from before its validation until it is compiled. From then on it is observed.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::lock::Lock;
use pilothouse_types::memory::MemoryBudget;
use pilothouse_types::object::Revision;

use crate::limits::DEFINITION_GROWTH;

use super::request_memory::{BodyMemory, Claim, RequestMemory};
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
    waiting: BTreeMap<Revision, BodyMemory>,
}

impl Backend {
    /// Reserves what definitions take while they are compiled, if a client writes one: the new one, and the stored one that it
    /// replaces. By the objects and not by the body, which may be a patch, or YAML whose aliases make it larger.
    pub fn reserve_definitions(&self, call: &Call<'_>, definitions: &[&Value]) -> Result<Option<BodyMemory>> {
        let bytes = || definitions.iter().map(|definition| json::to_json(definition).len()).sum();
        call.writes_definition().then(|| self.definitions.reserve(bytes(), call.claim())).transpose()
    }
}

impl DefinitionMemory {
    /// Takes what it reserves from this budget, of which one user may have half.
    pub fn new(budget: MemoryBudget) -> DefinitionMemory {
        DefinitionMemory { memory: RequestMemory::new(budget), stored: Arc::default() }
    }

    /// Reserves what definitions of so many bytes take while they are compiled: 429 if there is no room.
    pub fn reserve(&self, bytes: usize, claim: Claim<'_>) -> Result<BodyMemory> {
        self.memory.reserve(bytes.saturating_mul(DEFINITION_GROWTH), claim)
    }

    /// Keeps the memory of a definition that was stored at this revision until it is compiled.
    pub fn keep_until_compiled(&self, revision: Revision, held: BodyMemory) {
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
    use crate::limits::LARGE_BODY_BYTES;

    #[test]
    fn a_definition_keeps_its_memory_until_it_is_compiled() {
        let budget = MemoryBudget::alone(3 * DEFINITION_GROWTH);
        let memory = DefinitionMemory::new(budget.clone());
        let [first, second] = [1, 2].map(|bytes| memory.reserve(bytes, Claim::User("a")).unwrap());
        assert_eq!(memory.reserve(1, Claim::User("b")).unwrap_err().code, 429);
        memory.keep_until_compiled(Revision(7), first);
        memory.note_compiled(Revision(6));
        assert_eq!(budget.bytes(), 3 * DEFINITION_GROWTH);
        memory.note_compiled(Revision(9));
        assert_eq!(budget.bytes(), 2 * DEFINITION_GROWTH);
        memory.keep_until_compiled(Revision(8), second);
        assert_eq!(budget.bytes(), 0, "it was compiled before its writer had its answer");
    }

    #[test]
    fn a_user_with_many_definitions_leaves_half_to_others() {
        const LARGE: usize = LARGE_BODY_BYTES / DEFINITION_GROWTH + 1;
        let memory = DefinitionMemory::new(MemoryBudget::alone(4 * LARGE * DEFINITION_GROWTH));
        let reserve = |user| memory.reserve(LARGE, Claim::User(user));
        let held: Vec<BodyMemory> = (0..4).filter_map(|_| reserve("greedy").ok()).collect();
        assert_eq!(held.len(), 2);
        for (revision, held) in (1..).zip(held) {
            memory.keep_until_compiled(Revision(revision), held);
        }
        assert_eq!(reserve("greedy").unwrap_err().code, 429, "what is not compiled yet counts");
        assert!(reserve("modest").is_ok());
        memory.note_compiled(Revision(2));
        assert!(reserve("greedy").is_ok());
    }
}
