//! The Retry-After of rejected requests: the more rejections, the longer.

use std::collections::VecDeque;

use pilothouse_types::clock::Timestamp;

/// The maximum Retry-After in seconds; the reference's value.
const MAX_RETRY_AFTER: u64 = 32;
/// The rate of rejections per second, over the current Retry-After, from which on it is doubled; the reference's value.
const DOUBLING_RATE: u64 = 3;

/// Counts the recent rejections of one level, and derives its Retry-After from them.
#[derive(Debug)]
pub struct DropTracker {
    /// Recent seconds with rejections, and their numbers; none is older than the maximum Retry-After.
    seconds: VecDeque<(u64, u64)>,
    retry_after: u64,
    /// The second of the last doubling.
    last_doubled: u64,
}

impl Default for DropTracker {
    fn default() -> DropTracker {
        DropTracker { seconds: VecDeque::new(), retry_after: 1, last_doubled: 0 }
    }
}

impl DropTracker {
    /// Counts a rejection. Returns the Retry-After in seconds.
    pub fn record(&mut self, now: Timestamp) -> u64 {
        let now = now.seconds();
        match self.seconds.back_mut() {
            Some((last, count)) if *last >= now => *count += 1,
            _ => {
                // Updated once a second, based on the previous seconds.
                self.update_retry_after(now);
                self.seconds.push_back((now, 1));
            }
        }
        self.retry_after
    }

    fn update_retry_after(&mut self, now: u64) {
        self.seconds.retain(|(second, _)| now.saturating_sub(*second) <= MAX_RETRY_AFTER);
        let recent =
            self.seconds.iter().filter(|(second, _)| now.saturating_sub(*second) <= self.retry_after);
        let dropped: u64 = recent.map(|(_, count)| count).sum();
        if dropped >= DOUBLING_RATE * self.retry_after
            && now.saturating_sub(self.last_doubled) >= self.retry_after
        {
            self.retry_after = (2 * self.retry_after).min(MAX_RETRY_AFTER);
            self.last_doubled = now;
        } else if dropped < self.retry_after && self.retry_after > 1 {
            self.retry_after -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_doubles_under_many_rejections_and_falls_slowly() {
        let mut tracker = DropTracker::default();
        let mut record = |second: u64, times: u32| {
            (0..times).map(|_| tracker.record(Timestamp(second * 1_000_000))).last().unwrap()
        };
        assert_eq!(record(100, 3), 1, "the current second does not count yet");
        assert_eq!(record(101, 6), 2);
        assert_eq!(record(102, 50), 2, "doubles at most once per Retry-After");
        assert_eq!(record(103, 50), 4);
        for second in 104..300 {
            assert!(record(second, 200) <= MAX_RETRY_AFTER);
        }
        assert_eq!(record(300, 1), MAX_RETRY_AFTER);
        assert_eq!(record(400, 1), MAX_RETRY_AFTER - 1, "it falls by one");
        assert_eq!(record(500, 1), MAX_RETRY_AFTER - 2);
    }
}
