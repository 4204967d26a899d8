//! Limits outgoing connections, in total and per user.

use std::collections::HashMap;
use std::sync::Arc;

use pilothouse_actors::lock::Lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::CONNECTIONS_OF_ONE;

/// A limit of connections in total, and a lower one per user: a user who follows thousands of logs leaves some to others.
#[derive(Clone)]
pub(super) struct ConnectionLimits {
    all: Arc<Semaphore>,
    /// The connections per user. A std lock: it is held for one lookup or one change.
    taken: Arc<Lock<HashMap<String, usize>>>,
}

/// The place of one connection, freed on drop.
pub(super) struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
    asker: String,
    taken: Arc<Lock<HashMap<String, usize>>>,
}

impl ConnectionLimits {
    pub(super) fn new(most: usize) -> ConnectionLimits {
        ConnectionLimits { all: Arc::new(Semaphore::new(most)), taken: Arc::default() }
    }

    /// A place on behalf of a user; an empty name means the server itself.
    pub(super) fn take(&self, asker: &str) -> Option<ConnectionSlot> {
        let permit = self.all.clone().try_acquire_owned().ok()?;
        if !asker.is_empty() {
            let mut taken = self.taken.lock();
            let count = taken.entry(asker.to_owned()).or_default();
            if *count >= CONNECTIONS_OF_ONE {
                return None;
            }
            *count += 1;
        }
        Some(ConnectionSlot { _permit: permit, asker: asker.to_owned(), taken: self.taken.clone() })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        if self.asker.is_empty() {
            return;
        }
        let mut taken = self.taken.lock();
        if let Some(count) = taken.get_mut(&self.asker) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.asker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_places_to_the_others_and_gets_theirs_back() {
        let places = ConnectionLimits::new(2 * CONNECTIONS_OF_ONE);
        let greedy: Vec<ConnectionSlot> = std::iter::from_fn(|| places.take("greedy")).collect();
        assert_eq!(greedy.len(), CONNECTIONS_OF_ONE);
        let own: Vec<ConnectionSlot> = std::iter::from_fn(|| places.take("")).collect();
        assert_eq!(own.len(), CONNECTIONS_OF_ONE, "the server is nobody's guest");
        drop(own);
        let _other = places.take("other").unwrap();
        drop(greedy);
        assert!(places.take("greedy").is_some());
        assert_eq!(places.taken.lock().len(), 1, "nobody is remembered without a place");
    }
}
