//! The Retry-After of rejected requests: the more rejections, the longer.

use std::collections::VecDeque;

use pilothouse_types::clock::Timestamp;

/// The maximum pause in seconds; the reference's value.
const LONGEST: u64 = 32;
/// The number of rejections per second of the pause above which the pause is doubled.
const TOO_MANY: u64 = 3;

/// The rejections of one level.
#[derive(Debug)]
pub struct Drops {
    /// Recent seconds with rejections, and their numbers; none is older than the maximum pause.
    seconds: VecDeque<(u64, u64)>,
    pause: u64,
    /// The time of the last doubling.
    raised: u64,
}

impl Default for Drops {
    fn default() -> Drops {
        Drops { seconds: VecDeque::new(), pause: 1, raised: 0 }
    }
}

impl Drops {
    /// Counts a rejection. Answers the Retry-After in seconds.
    pub fn refuse(&mut self, now: Timestamp) -> u64 {
        let now = now.seconds();
        match self.seconds.back_mut() {
            Some((last, count)) if *last >= now => *count += 1,
            _ => {
                // Once a second, based on the previous seconds.
                self.revise(now);
                self.seconds.push_back((now, 1));
            }
        }
        self.pause
    }

    fn revise(&mut self, now: u64) {
        self.seconds.retain(|(second, _)| now.saturating_sub(*second) <= LONGEST);
        let recent = self.seconds.iter().filter(|(second, _)| now.saturating_sub(*second) <= self.pause);
        let dropped: u64 = recent.map(|(_, count)| count).sum();
        if dropped >= TOO_MANY * self.pause && now.saturating_sub(self.raised) >= self.pause {
            self.pause = (2 * self.pause).min(LONGEST);
            self.raised = now;
        } else if dropped < self.pause && self.pause > 1 {
            self.pause -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_refused_in_a_crowd_comes_back_later() {
        let mut drops = Drops::default();
        let mut refuse = |second: u64, times: u32| {
            (0..times).map(|_| drops.refuse(Timestamp(second * 1_000_000))).last().unwrap()
        };
        assert_eq!(refuse(100, 3), 1, "the first second is told nothing of itself");
        assert_eq!(refuse(101, 6), 2);
        assert_eq!(refuse(102, 50), 2, "not twice within the pause");
        assert_eq!(refuse(103, 50), 4);
        for second in 104..300 {
            assert!(refuse(second, 200) <= LONGEST);
        }
        assert_eq!(refuse(300, 1), LONGEST);
        assert_eq!(refuse(400, 1), LONGEST - 1, "it falls by one");
        assert_eq!(refuse(500, 1), LONGEST - 2);
    }
}
