//! The work queue of a loop: keys, each at most once, some of them delayed.
//!
//! Pure: the caller passes the time. A key that is added while it is worked on is worked on again afterwards, and never by two
//! workers at the same time. So the queue holds at most as many keys as there are objects.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use pilothouse_actors::limits::CLOCK_SET_BACK;
use pilothouse_types::clock::Timestamp;

/// The first pause of a key whose work failed; doubled after each further failure.
const FIRST_RETRY: Duration = Duration::from_millis(5);
/// Retries per second of one loop, when many keys fail at once.
const RETRIES_PER_SECOND: u32 = 10;
/// The number of retries before that limit applies.
const RETRY_BURST: u32 = 100;

/// The result of work on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The work is done.
    Done,
    /// The work failed for this reason, and is retried after a growing pause.
    Again(String),
    /// The key is checked again after this time.
    After(Duration),
}

/// The queue of one loop.
#[derive(Debug)]
pub struct Queue<K> {
    /// Keys that are ready, in order.
    ready: VecDeque<K>,
    /// All keys in `ready`, and those to be added again when the work on them ends.
    wanted: HashSet<K>,
    working: HashSet<K>,
    /// Delayed keys. The number tells keys with the same time apart.
    later: BTreeMap<(Timestamp, u64), K>,
    /// The place of each key in `later`.
    due: HashMap<K, (Timestamp, u64)>,
    failures: HashMap<K, u32>,
    longest_retry: Duration,
    /// When the next retry would be due at an even rate.
    even: Timestamp,
    /// The time when it was last looked at.
    seen: Timestamp,
    count: u64,
    /// The number of keys ever added.
    pub added: u64,
    /// The number of retries ever made.
    pub retried: u64,
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// An empty queue with a maximum pause between retries.
    pub fn new(longest_retry: Duration) -> Queue<K> {
        Queue {
            ready: VecDeque::new(),
            wanted: HashSet::new(),
            working: HashSet::new(),
            later: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            longest_retry,
            even: Timestamp::default(),
            seen: Timestamp::default(),
            count: 0,
            added: 0,
            retried: 0,
        }
    }

    /// Adds a key.
    pub fn add(&mut self, key: K) {
        if let Some(at) = self.due.remove(&key) {
            self.later.remove(&at);
        }
        if self.wanted.insert(key.clone()) {
            self.added += 1;
            if !self.working.contains(&key) {
                self.ready.push_back(key);
            }
        }
    }

    /// Adds a key at a time, or earlier if it was added for an earlier time before.
    pub fn add_at(&mut self, key: K, at: Timestamp) {
        if self.wanted.contains(&key) {
            return;
        }
        match self.due.get(&key) {
            Some((due, _)) if *due <= at => return,
            Some(due) => {
                self.later.remove(due);
            }
            None => {}
        }
        self.count += 1;
        self.due.insert(key.clone(), (at, self.count));
        self.later.insert((at, self.count), key);
    }

    /// Cancels the timer of a key and forgets its failures; one that is ready stays.
    pub fn forget(&mut self, key: &K) {
        if let Some(at) = self.due.remove(key) {
            self.later.remove(&at);
        }
        self.failures.remove(key);
    }

    /// Where the clock was set back, everything that waits comes earlier by as much: nobody shall wait for the hour to come again.
    fn note_time(&mut self, now: Timestamp) {
        let back = Duration::from_micros(self.seen.0.saturating_sub(now.0));
        self.seen = now;
        if back < CLOCK_SET_BACK {
            return;
        }
        self.even = self.even.minus(back);
        for ((at, count), key) in std::mem::take(&mut self.later) {
            let due = (at.minus(back), count);
            self.due.insert(key.clone(), due);
            self.later.insert(due, key);
        }
    }

    /// Takes the next key. The caller must call [`Queue::done`] afterwards.
    pub fn next(&mut self, now: Timestamp) -> Option<K> {
        self.note_time(now);
        while self.later.first_key_value().is_some_and(|((at, _), _)| *at <= now) {
            if let Some((_, key)) = self.later.pop_first() {
                self.due.remove(&key);
                self.add(key);
            }
        }
        let key = self.ready.pop_front()?;
        self.wanted.remove(&key);
        self.working.insert(key.clone());
        Some(key)
    }

    /// Ends the work on a key.
    pub fn done(&mut self, key: K, outcome: &Outcome, now: Timestamp) {
        self.note_time(now);
        self.working.remove(&key);
        if !matches!(outcome, Outcome::Again(_)) {
            self.failures.remove(&key);
        }
        if self.wanted.contains(&key) {
            self.ready.push_back(key);
            return;
        }
        match outcome {
            Outcome::Done => {}
            Outcome::After(pause) => self.add_at(key, now.plus(*pause)),
            Outcome::Again(_) => {
                let at = now.plus(self.pause(&key)).max(self.even_pace(now));
                self.retried += 1;
                self.add_at(key, at);
            }
        }
    }

    fn pause(&mut self, key: &K) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let pause = FIRST_RETRY.saturating_mul(1_u32.checked_shl(*failures).unwrap_or(u32::MAX));
        *failures = (*failures + 1).min(31);
        pause.min(self.longest_retry)
    }

    /// The time of one more retry, so that a thousand keys that fail together do not retry together.
    fn even_pace(&mut self, now: Timestamp) -> Timestamp {
        let step = Duration::from_secs(1) / RETRIES_PER_SECOND;
        let slack = step * RETRY_BURST;
        self.even = self.even.max(now.minus(slack)).plus(step);
        self.even
    }

    /// When the first delayed key is due; `None` if there is none.
    pub fn due(&self) -> Option<Timestamp> {
        self.later.first_key_value().map(|((at, _), _)| *at)
    }

    /// The number of ready keys.
    pub fn depth(&self) -> usize {
        self.ready.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    fn at(millis: u64) -> Timestamp {
        // Not at the epoch, because the queue looks into the past.
        Timestamp(1_000_000_000_000 + millis * 1_000)
    }

    #[test]
    fn a_key_is_worked_on_once_and_once_more_if_it_was_wanted_meanwhile() {
        let mut queue = Queue::new(LONGEST);
        queue.add("a");
        queue.add("b");
        queue.add("a");
        assert_eq!(queue.next(at(0)), Some("a"));
        queue.add("a");
        assert_eq!((queue.next(at(0)), queue.next(at(0))), (Some("b"), None));
        queue.done("a", &Outcome::Done, at(0));
        assert_eq!(queue.next(at(0)), Some("a"));
        queue.done("a", &Outcome::Done, at(0));
        queue.done("b", &Outcome::Done, at(0));
        assert_eq!((queue.next(at(0)), queue.due(), queue.added), (None, None, 3));
    }

    #[test]
    fn failures_wait_longer_and_longer_and_success_forgets_them() {
        let mut queue = Queue::new(LONGEST);
        let again = Outcome::Again("no".to_owned());
        queue.add("a");
        for millis in [5, 10, 20, 40] {
            assert_eq!(queue.next(at(0).plus(LONGEST)), Some("a"));
            queue.done("a", &again, at(0));
            assert_eq!(queue.due(), Some(at(millis)));
        }
        for _ in 0..40 {
            queue.add("a");
            queue.next(at(0));
            queue.done("a", &again, at(0));
        }
        assert_eq!(queue.due(), Some(at(60_000)));
        queue.add("a");
        assert_eq!(queue.next(at(0)), Some("a"));
        queue.done("a", &Outcome::Done, at(0));
        queue.add("a");
        queue.next(at(0));
        queue.done("a", &again, at(0));
        assert_eq!(queue.due(), Some(at(5)));
    }

    #[test]
    fn nothing_waits_for_an_hour_that_comes_twice() {
        let mut queue = Queue::new(LONGEST);
        let hour = Duration::from_secs(3_600);
        queue.add("a");
        queue.next(at(0).plus(hour));
        queue.done("a", &Outcome::Again(String::new()), at(0).plus(hour));
        queue.add_at("b", at(0).plus(hour).plus(LONGEST));
        assert_eq!((queue.next(at(0)), queue.next(at(5))), (None, Some("a")), "its pause is what it was");
        queue.done("a", &Outcome::Again(String::new()), at(5));
        assert!(queue.due().is_some_and(|due| due <= at(100)), "retries do not keep to the old pace");
        assert_eq!((queue.next(at(59_000)).is_some(), queue.next(at(59_000))), (true, None));
        assert_eq!(queue.next(at(61_000)), Some("b"));
    }

    #[test]
    fn many_failures_come_back_evenly() {
        let mut queue = Queue::new(LONGEST);
        for key in 0..200 {
            queue.add(key);
            queue.next(at(0));
            queue.done(key, &Outcome::Again(String::new()), at(0));
        }
        let mut back = 0;
        while queue.next(at(0).plus(Duration::from_secs(1))).is_some() {
            back += 1;
        }
        assert_eq!(back, 110);
    }

    #[test]
    fn the_earlier_time_counts() {
        let mut queue = Queue::new(LONGEST);
        queue.add_at("a", at(50));
        queue.add_at("a", at(20));
        queue.add_at("a", at(90));
        assert_eq!((queue.next(at(19)), queue.due()), (None, Some(at(20))));
        assert_eq!((queue.next(at(20)), queue.due()), (Some("a"), None));
        queue.done("a", &Outcome::After(Duration::from_millis(5)), at(20));
        assert_eq!(queue.due(), Some(at(25)));
        queue.forget(&"a");
        assert_eq!((queue.due(), queue.next(at(1_000))), (None, None));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8),
        AddAt(u8, u64),
        Next,
        Done(u8, u8),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let key = 0_u8..4;
        let step = prop_oneof![
            key.clone().prop_map(Step::Add),
            (key.clone(), 0_u64..100).prop_map(|(key, millis)| Step::AddAt(key, millis)),
            Just(Step::Next),
            (key, 0_u8..3).prop_map(|(key, outcome)| Step::Done(key, outcome)),
            (0_u64..50).prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// No key is ever with two workers, and no added key is lost.
        #[test]
        fn nothing_is_lost_and_nothing_is_done_twice_at_once(steps in steps()) {
            let mut queue = Queue::new(LONGEST);
            let (mut now, mut working, mut owed) = (at(0), HashSet::new(), HashSet::new());
            for step in steps {
                match step {
                    Step::Add(key) => { queue.add(key); owed.insert(key); }
                    Step::AddAt(key, millis) => {
                        queue.add_at(key, now.plus(Duration::from_millis(millis)));
                        owed.insert(key);
                    }
                    Step::Next => if let Some(key) = queue.next(now) {
                        prop_assert!(working.insert(key));
                        owed.remove(&key);
                    },
                    Step::Done(key, outcome) => if working.remove(&key) {
                        let outcome = match outcome {
                            0 => Outcome::Done,
                            1 => Outcome::Again(String::new()),
                            _ => Outcome::After(Duration::from_millis(3)),
                        };
                        if outcome != Outcome::Done { owed.insert(key); }
                        queue.done(key, &outcome, now);
                    },
                    Step::Wait(millis) => now = now.plus(Duration::from_millis(millis)),
                }
            }
            for key in working.drain() { queue.done(key, &Outcome::Done, now); }
            now = now.plus(Duration::from_secs(3_600));
            while let Some(key) = queue.next(now) {
                owed.remove(&key);
                queue.done(key, &Outcome::Done, now);
            }
            prop_assert!(owed.is_empty(), "{owed:?}");
            prop_assert!(queue.due().is_none());
        }
    }
}
