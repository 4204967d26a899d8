//! Calls that several threads wait for.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar};

use pilothouse_types::lock::{self, Lock};

/// Calls in flight, by what they ask for. Their number is that of the threads that call.
pub struct Flights<K, T> {
    running: Lock<HashMap<K, Arc<Flight<T>>>>,
}

/// One call.
struct Flight<T> {
    outcome: Lock<Outcome<T>>,
    ended: Condvar,
}

/// How far a call is.
enum Outcome<T> {
    Running,
    Done(T),
    /// The thread that made the call is gone without a result.
    Abandoned,
}

impl<K, T> Default for Flights<K, T> {
    fn default() -> Self {
        Flights { running: Lock::new(HashMap::new()) }
    }
}

impl<K: Clone + Eq + Hash, T: Clone> Flights<K, T> {
    /// Makes a call, or waits for the one that another thread makes for the same key and takes its result.
    pub fn run(&self, key: &K, call: impl FnOnce() -> T) -> T {
        loop {
            let flight = {
                let mut running = self.running.lock();
                match running.get(key) {
                    Some(flight) => flight.clone(),
                    None => {
                        let flight =
                            Arc::new(Flight { outcome: Lock::new(Outcome::Running), ended: Condvar::new() });
                        running.insert(key.clone(), flight.clone());
                        drop(running);
                        return Leader { flights: self, key, flight }.run(call);
                    }
                }
            };
            let mut outcome = flight.outcome.lock();
            while matches!(*outcome, Outcome::Running) {
                outcome = lock::wait(&flight.ended, outcome);
            }
            if let Outcome::Done(result) = &*outcome {
                return result.clone();
            }
        }
    }
}

/// The thread that makes a call.
struct Leader<'a, K: Eq + Hash, T> {
    flights: &'a Flights<K, T>,
    key: &'a K,
    flight: Arc<Flight<T>>,
}

impl<K: Eq + Hash, T: Clone> Leader<'_, K, T> {
    fn run(self, call: impl FnOnce() -> T) -> T {
        let result = call();
        *self.flight.outcome.lock() = Outcome::Done(result.clone());
        result
    }
}

impl<K: Eq + Hash, T> Drop for Leader<'_, K, T> {
    fn drop(&mut self) {
        self.flights.running.lock().remove(self.key);
        let mut outcome = self.flight.outcome.lock();
        if matches!(*outcome, Outcome::Running) {
            *outcome = Outcome::Abandoned;
        }
        drop(outcome);
        self.flight.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn threads_that_ask_for_the_same_share_one_call() {
        let flights = Arc::new(Flights::<u8, usize>::default());
        let calls = Arc::new(AtomicUsize::new(0));
        let (started_sender, started) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let (leader_flights, leader_calls) = (flights.clone(), calls.clone());
        let leader = thread::spawn(move || {
            leader_flights.run(&1, || {
                leader_calls.fetch_add(1, Ordering::SeqCst);
                started_sender.send(()).unwrap();
                released.recv().unwrap();
                7
            })
        });
        started.recv().unwrap();
        let follow = |flights: Arc<Flights<u8, usize>>, calls: Arc<AtomicUsize>| {
            thread::spawn(move || flights.run(&1, || calls.fetch_add(1, Ordering::SeqCst) + 100))
        };
        let followers: Vec<_> = (0..4).map(|_| follow(flights.clone(), calls.clone())).collect();
        // Another key does not wait.
        assert_eq!(flights.run(&2, || 9), 9);
        // Followers either wait for the leader or come later and call themselves; they never get something else.
        while flights.running.lock().get(&1).is_some_and(|flight| Arc::strong_count(flight) < 6) {
            thread::yield_now();
        }
        release.send(()).unwrap();
        assert_eq!(leader.join().unwrap(), 7);
        assert!(followers.into_iter().all(|follower| follower.join().unwrap() == 7));
        assert_eq!((calls.load(Ordering::SeqCst), flights.running.lock().len()), (1, 0));
    }

    #[test]
    fn a_call_that_panics_does_not_block_the_next() {
        let flights = Flights::<u8, u8>::default();
        let result = catch_unwind(AssertUnwindSafe(|| flights.run(&1, || panic!("the call failed"))));
        assert!(result.is_err());
        assert_eq!(flights.run(&1, || 3), 3);
    }
}
