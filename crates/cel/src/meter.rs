//! A limit on the total cost of all expressions that a closure evaluates, beside the cost budgets of the API.
//!
//! Threads that serve many connections evaluate only cheap expressions. The limit is thread-local and not a parameter, because
//! rules, policies and conditions are evaluated in many places, and their results must not depend on it: if it is exceeded, the
//! caller that set it discards the result and evaluates everything again on another thread.

use std::cell::Cell;

thread_local! {
    /// The remaining cost plus one; `None` without a limit.
    static REMAINING: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Restores the enclosing limit, also if the closure panics.
struct Restore(Option<u64>);

impl Drop for Restore {
    fn drop(&mut self) {
        REMAINING.set(self.0);
    }
}

/// Runs a closure with a limit on the cost of its evaluations. Also returns the remaining cost; `None` if the limit was exceeded, so
/// that the result must be discarded.
pub fn with_limit<T>(max_cost: u64, evaluate: impl FnOnce() -> T) -> (T, Option<u64>) {
    // Zero is left only if more than the limit was spent.
    let _outer = Restore(REMAINING.replace(Some(max_cost.saturating_add(1))));
    let result = evaluate();
    let remaining = REMAINING.get().and_then(|left| left.checked_sub(1));
    (result, remaining)
}

/// The limit of one evaluation: its own, or the remaining cost if that is less.
pub(super) fn limit(own_limit: u64) -> u64 {
    REMAINING.get().map_or(own_limit, |left| left.min(own_limit))
}

/// Subtracts the cost of an evaluation.
pub fn spend(cost: u64) {
    REMAINING.set(REMAINING.get().map(|left| left.saturating_sub(cost)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_limit_covers_all_evaluations_and_ends_with_its_scope() {
        assert_eq!(with_limit(10, || (spend(4), limit(100)).1), (7, Some(6)));
        assert_eq!(with_limit(10, || spend(10)).1, Some(0), "the limit itself is allowed");
        assert_eq!(with_limit(10, || spend(11)).1, None);
        assert_eq!(limit(100), 100, "no limit outside");
        let panicked = std::panic::catch_unwind(|| with_limit(10, || panic!("inside")));
        assert!(panicked.is_err());
        assert_eq!(limit(100), 100);
    }
}
