//! Who holds memory, by the ledger of the server. The allocator samples nothing, so this is no profile of allocations: the accounts of
//! the ledger stand where functions would, and what no account counts is one of its own.

use std::time::Duration;

use pilothouse_types::clock::Timestamp;
use pilothouse_types::memory::MemoryLedger;

use super::builder::{Frame, ProfileBuilder};
use super::profile_proto::Profile;
use crate::metrics::own_process::resident_bytes;

/// The frame of everything that no budget counts.
const UNCOUNTED: &str = "not counted: stored objects, definitions, code, free memory of the allocator";

pub(super) fn profile(ledger: &MemoryLedger, now: Timestamp) -> Profile {
    let mut builder = ProfileBuilder::new(&[("inuse_space", "bytes")], now);
    builder.set_period("space", "bytes", 1, Duration::ZERO);
    builder.add_comment("the accounts of the memory ledger, not stacks of allocations");
    let bytes = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let (counted, resident) = (Frame::named("memory ledger"), Frame::named("resident memory"));
    let mut rest = resident_bytes();
    for account in ledger.budgets() {
        rest = rest.saturating_sub(account.bytes);
        let stack = [Frame::named(account.name), counted.clone(), resident.clone()];
        builder.add(&stack, &[bytes(account.bytes)], &[]);
    }
    builder.add(&[Frame::named(UNCOUNTED), resident], &[bytes(rest)], &[]);
    builder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_of_the_ledger_are_the_functions() {
        let ledger = MemoryLedger::default();
        let budget = ledger.budget("lists", 1 << 20);
        let _reservation = budget.take(4_321).unwrap();
        let profile = profile(&ledger, Timestamp(0));
        let text = profile.to_text();
        assert!(text.contains("\n4321\n  lists\n  memory ledger\n  resident memory\n"), "{text}");
        let rest = profile.sample.last().unwrap().value[0];
        assert!(rest > 1 << 20, "{rest}");
    }
}
