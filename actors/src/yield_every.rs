//! Leaves the thread to others after every so much work.

use tokio::task::yield_now;

/// Counts the work of a loop on a thread that serves others as well.
#[derive(Debug)]
pub struct YieldEvery {
    most: usize,
    done: usize,
}

impl YieldEvery {
    /// Others have their turn after this much work, in whatever unit the loop counts.
    pub fn new(most: usize) -> YieldEvery {
        YieldEvery { most, done: 0 }
    }

    /// Counts work that was done, and yields if it is enough.
    pub async fn worked(&mut self, amount: usize) {
        self.done = self.done.saturating_add(amount);
        if self.done >= self.most {
            self.done = 0;
            yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn others_have_their_turn_after_enough_work() {
        let mut turn = YieldEvery::new(3);
        let mut is_through = |amount| turn.worked(amount).now_or_never().is_some();
        assert_eq!([1, 1, 1, 1, 5, 2].map(&mut is_through), [true, true, false, true, false, true]);
    }
}
