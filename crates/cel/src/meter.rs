//! A bound on the cost of all expressions that a piece of code evaluates, beside the budgets of the API.
//!
//! A thread that others wait for evaluates cheap expressions only. The bound belongs to the thread and not to a parameter,
//! because rules, policies and conditions evaluate in many places, and what they answer must not depend on it: when it is
//! exceeded, whoever set it evaluates everything again elsewhere.

use std::cell::Cell;

thread_local! {
    /// The cost that is left; `None` without a bound.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Restores the bound around another one, also when the code within panics.
struct Restore(Option<u64>);

impl Drop for Restore {
    fn drop(&mut self) {
        LEFT.set(self.0);
    }
}

/// Evaluates within a bound. Also answers what is left of it; `None` if it was exceeded, so that the result is of no use.
pub fn within<T>(most: u64, evaluate: impl FnOnce() -> T) -> (T, Option<u64>) {
    // One more than may be spent: nothing left means exceeded.
    let _outer = Restore(LEFT.replace(Some(most.saturating_add(1))));
    let evaluated = evaluate();
    let rest = LEFT.get().and_then(|left| left.checked_sub(1));
    (evaluated, rest)
}

/// What one expression may cost: its own limit, or less where a bound says so.
pub(super) fn limit(own: u64) -> u64 {
    LEFT.get().map_or(own, |left| left.min(own))
}

/// Counts what was evaluated.
pub fn spend(cost: u64) {
    LEFT.set(LEFT.get().map(|left| left.saturating_sub(cost)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_covers_all_expressions_and_ends_with_its_code() {
        assert_eq!(within(10, || (spend(4), limit(100)).1), (7, Some(6)));
        assert_eq!(within(10, || spend(10)).1, Some(0), "all of it may be spent");
        assert_eq!(within(10, || spend(11)).1, None);
        assert_eq!(limit(100), 100, "no bound outside");
        let panicked = std::panic::catch_unwind(|| within(10, || panic!("inside")));
        assert!(panicked.is_err());
        assert_eq!(limit(100), 100);
    }
}
