//! Limits outgoing connections, in total and per user.

use std::sync::Arc;

use pilothouse_types::user_shares::{UserShare, UserShares};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::CONNECTIONS_PER_USER;

/// A limit of connections in total, and a lower one per user: a user who follows thousands of logs leaves some to others.
#[derive(Clone)]
pub(super) struct ConnectionLimits {
    all: Arc<Semaphore>,
    users: UserShares,
}

/// The slot of one connection, freed on drop.
pub(super) struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
    /// `None` for the server itself.
    _share: Option<UserShare>,
}

impl ConnectionLimits {
    pub(super) fn new(total: usize) -> ConnectionLimits {
        ConnectionLimits {
            all: Arc::new(Semaphore::new(total)),
            users: UserShares::new(CONNECTIONS_PER_USER),
        }
    }

    /// A slot on behalf of a user; an empty name means the server itself.
    pub(super) fn take(&self, user: &str) -> Option<ConnectionSlot> {
        let permit = self.all.clone().try_acquire_owned().ok()?;
        let share = if user.is_empty() { None } else { Some(self.users.take(user, 1)?) };
        Some(ConnectionSlot { _permit: permit, _share: share })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_per_user_are_limited_and_released() {
        let limits = ConnectionLimits::new(2 * CONNECTIONS_PER_USER);
        let greedy: Vec<ConnectionSlot> = std::iter::from_fn(|| limits.take("greedy")).collect();
        assert_eq!(greedy.len(), CONNECTIONS_PER_USER);
        let own: Vec<ConnectionSlot> = std::iter::from_fn(|| limits.take("")).collect();
        assert_eq!(own.len(), CONNECTIONS_PER_USER, "the server has no share");
        drop(own);
        let _other = limits.take("other").unwrap();
        drop(greedy);
        assert!(limits.take("greedy").is_some());
    }
}
