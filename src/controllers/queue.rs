//! The work queue of a controller: keys, each at most once, some of them delayed.
//!
//! Pure: the caller passes the time, by a clock that nobody sets. A key that is added while it is worked on is worked on again afterwards, and never by two
//! workers at the same time. So the queue holds at most as many keys as there are objects.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use pilothouse_types::clock::Moment;

/// The first pause of a key whose work failed; doubled after each further failure.
const FIRST_RETRY: Duration = Duration::from_millis(5);
/// Retries per second of one controller, when many keys fail at once.
const RETRIES_PER_SECOND: u32 = 10;
/// The number of retries before that limit applies.
const RETRY_BURST: u32 = 100;

/// The result of work on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The work is done.
    Done,
    /// The work failed for this reason, and is retried after a growing pause.
    Retry(String),
    /// The key is checked again after this time.
    RequeueAfter(Duration),
}

/// The queue of one controller.
#[derive(Debug)]
pub struct Queue<K> {
    /// Keys that are ready, in order, and since when.
    ready: VecDeque<(K, Moment)>,
    /// The present time, as the caller has told it last.
    now: Moment,
    /// All keys in `ready`, and those to be added again when the work on them ends.
    dirty: HashSet<K>,
    processing: HashSet<K>,
    /// Delayed keys. The number tells keys with the same time apart.
    delayed: BTreeMap<(Moment, u64), K>,
    /// The position of each key in `delayed`.
    due: HashMap<K, (Moment, u64)>,
    failures: HashMap<K, u32>,
    max_retry_delay: Duration,
    /// When the next retry would be due at an even rate.
    next_retry: Moment,
    sequence: u64,
    /// The number of keys ever added.
    pub added: u64,
    /// The number of retries ever made.
    pub retries: u64,
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// An empty queue with a maximum pause between retries.
    pub fn new(max_retry_delay: Duration) -> Queue<K> {
        Queue {
            ready: VecDeque::new(),
            now: Moment::default(),
            dirty: HashSet::new(),
            processing: HashSet::new(),
            delayed: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            max_retry_delay,
            next_retry: Moment::default(),
            sequence: 0,
            added: 0,
            retries: 0,
        }
    }

    /// Tells the time, from which keys wait that are added now.
    pub fn set_now(&mut self, now: Moment) {
        self.now = now;
    }

    /// Adds a key.
    pub fn add(&mut self, key: K) {
        if let Some(position) = self.due.remove(&key) {
            self.delayed.remove(&position);
        }
        if self.dirty.insert(key.clone()) {
            self.added += 1;
            if !self.processing.contains(&key) {
                self.ready.push_back((key, self.now));
            }
        }
    }

    /// Adds a key at a time, or earlier if it was added for an earlier time before.
    pub fn add_at(&mut self, key: K, time: Moment) {
        if self.dirty.contains(&key) {
            return;
        }
        match self.due.get(&key) {
            Some((due, _)) if *due <= time => return,
            Some(due) => {
                self.delayed.remove(due);
            }
            None => {}
        }
        self.sequence += 1;
        self.due.insert(key.clone(), (time, self.sequence));
        self.delayed.insert((time, self.sequence), key);
    }

    /// Cancels the timer of a key and forgets its failures; one that is ready stays.
    pub fn forget(&mut self, key: &K) {
        if let Some(position) = self.due.remove(key) {
            self.delayed.remove(&position);
        }
        self.failures.remove(key);
    }

    /// Takes the next key, and says how long it was ready. The caller must call [`Queue::done`] afterwards.
    pub fn next(&mut self, now: Moment) -> Option<(K, Duration)> {
        self.now = now;
        while self.delayed.first_key_value().is_some_and(|((time, _), _)| *time <= now) {
            if let Some((_, key)) = self.delayed.pop_first() {
                self.due.remove(&key);
                self.add(key);
            }
        }
        let (key, since) = self.ready.pop_front()?;
        self.dirty.remove(&key);
        self.processing.insert(key.clone());
        Some((key, now.since(since)))
    }

    /// Ends the work on a key.
    pub fn done(&mut self, key: K, outcome: &Outcome, now: Moment) {
        self.now = now;
        self.processing.remove(&key);
        if !matches!(outcome, Outcome::Retry(_)) {
            self.failures.remove(&key);
        }
        if self.dirty.contains(&key) {
            self.ready.push_back((key, now));
            return;
        }
        match outcome {
            Outcome::Done => {}
            Outcome::RequeueAfter(delay) => self.add_at(key, now.plus(*delay)),
            Outcome::Retry(_) => {
                let time = now.plus(self.retry_delay(&key)).max(self.next_retry_time(now));
                self.retries += 1;
                self.add_at(key, time);
            }
        }
    }

    fn retry_delay(&mut self, key: &K) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let delay = FIRST_RETRY.saturating_mul(1_u32.checked_shl(*failures).unwrap_or(u32::MAX));
        *failures = (*failures + 1).min(31);
        delay.min(self.max_retry_delay)
    }

    /// The time of one more retry, so that a thousand keys that fail together do not retry together.
    fn next_retry_time(&mut self, now: Moment) -> Moment {
        let interval = Duration::from_secs(1) / RETRIES_PER_SECOND;
        let burst = interval * RETRY_BURST;
        self.next_retry = self.next_retry.max(now.minus(burst)).plus(interval);
        self.next_retry
    }

    /// When the first delayed key is due; `None` if there is none.
    pub fn due(&self) -> Option<Moment> {
        self.delayed.first_key_value().map(|((time, _), _)| *time)
    }

    /// The number of ready keys.
    pub fn depth(&self) -> usize {
        self.ready.len()
    }

    /// The number of keys that wait for their time.
    pub fn delayed(&self) -> usize {
        self.delayed.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

    fn at(millis: u64) -> Moment {
        // Not the first one, because the queue looks into the past.
        Moment::default().plus(Duration::from_secs(1_000)).plus(Duration::from_millis(millis))
    }

    /// The next key.
    fn next<K: Clone + Eq + Hash>(queue: &mut Queue<K>, now: Moment) -> Option<K> {
        queue.next(now).map(|(key, _)| key)
    }

    #[test]
    fn keys_tell_how_long_they_were_ready() {
        let mut queue = Queue::new(MAX_RETRY_DELAY);
        queue.set_now(at(10));
        queue.add("a");
        queue.add_at("b", at(20));
        assert_eq!(queue.next(at(15)), Some(("a", Duration::from_millis(5))));
        queue.add("a");
        assert_eq!(queue.next(at(30)), Some(("b", Duration::ZERO)), "it was not ready before");
        queue.done("a", &Outcome::Done, at(40));
        assert_eq!(queue.next(at(47)), Some(("a", Duration::from_millis(7))));
    }

    #[test]
    fn key_added_during_its_work_is_processed_once_more() {
        let mut queue = Queue::new(MAX_RETRY_DELAY);
        queue.add("a");
        queue.add("b");
        queue.add("a");
        assert_eq!(next(&mut queue, at(0)), Some("a"));
        queue.add("a");
        assert_eq!((next(&mut queue, at(0)), next(&mut queue, at(0))), (Some("b"), None));
        queue.done("a", &Outcome::Done, at(0));
        assert_eq!(next(&mut queue, at(0)), Some("a"));
        queue.done("a", &Outcome::Done, at(0));
        queue.done("b", &Outcome::Done, at(0));
        assert_eq!((next(&mut queue, at(0)), queue.due(), queue.added), (None, None, 3));
    }

    #[test]
    fn retry_delay_grows_with_failures_and_resets_on_success() {
        let mut queue = Queue::new(MAX_RETRY_DELAY);
        let failure = Outcome::Retry("no".to_owned());
        queue.add("a");
        for millis in [5, 10, 20, 40] {
            assert_eq!(next(&mut queue, at(0).plus(MAX_RETRY_DELAY)), Some("a"));
            queue.done("a", &failure, at(0));
            assert_eq!(queue.due(), Some(at(millis)));
        }
        for _ in 0..40 {
            queue.add("a");
            next(&mut queue, at(0));
            queue.done("a", &failure, at(0));
        }
        assert_eq!(queue.due(), Some(at(60_000)));
        queue.add("a");
        assert_eq!(next(&mut queue, at(0)), Some("a"));
        queue.done("a", &Outcome::Done, at(0));
        queue.add("a");
        next(&mut queue, at(0));
        queue.done("a", &failure, at(0));
        assert_eq!(queue.due(), Some(at(5)));
    }

    #[test]
    fn retries_of_many_keys_are_rate_limited() {
        let mut queue = Queue::new(MAX_RETRY_DELAY);
        for key in 0..200 {
            queue.add(key);
            next(&mut queue, at(0));
            queue.done(key, &Outcome::Retry(String::new()), at(0));
        }
        let mut retried = 0;
        while queue.next(at(0).plus(Duration::from_secs(1))).is_some() {
            retried += 1;
        }
        assert_eq!(retried, 110);
    }

    #[test]
    fn delayed_key_is_due_at_the_earliest_requested_time() {
        let mut queue = Queue::new(MAX_RETRY_DELAY);
        queue.add_at("a", at(50));
        queue.add_at("a", at(20));
        queue.add_at("a", at(90));
        assert_eq!((next(&mut queue, at(19)), queue.due()), (None, Some(at(20))));
        assert_eq!((next(&mut queue, at(20)), queue.due()), (Some("a"), None));
        queue.done("a", &Outcome::RequeueAfter(Duration::from_millis(5)), at(20));
        assert_eq!(queue.due(), Some(at(25)));
        queue.forget(&"a");
        assert_eq!((queue.due(), next(&mut queue, at(1_000))), (None, None));
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
        fn queue_never_loses_a_key_or_runs_it_twice_at_once(steps in steps()) {
            let mut queue = Queue::new(MAX_RETRY_DELAY);
            let (mut now, mut processing, mut pending) = (at(0), HashSet::new(), HashSet::new());
            for step in steps {
                match step {
                    Step::Add(key) => { queue.add(key); pending.insert(key); }
                    Step::AddAt(key, millis) => {
                        queue.add_at(key, now.plus(Duration::from_millis(millis)));
                        pending.insert(key);
                    }
                    Step::Next => if let Some(key) = next(&mut queue, now) {
                        prop_assert!(processing.insert(key));
                        pending.remove(&key);
                    },
                    Step::Done(key, outcome) => if processing.remove(&key) {
                        let outcome = match outcome {
                            0 => Outcome::Done,
                            1 => Outcome::Retry(String::new()),
                            _ => Outcome::RequeueAfter(Duration::from_millis(3)),
                        };
                        if outcome != Outcome::Done { pending.insert(key); }
                        queue.done(key, &outcome, now);
                    },
                    Step::Wait(millis) => now = now.plus(Duration::from_millis(millis)),
                }
            }
            for key in processing.drain() { queue.done(key, &Outcome::Done, now); }
            now = now.plus(Duration::from_secs(3_600));
            while let Some(key) = next(&mut queue, now) {
                pending.remove(&key);
                queue.done(key, &Outcome::Done, now);
            }
            prop_assert!(pending.is_empty(), "{pending:?}");
            prop_assert!(queue.due().is_none());
        }
    }
}
