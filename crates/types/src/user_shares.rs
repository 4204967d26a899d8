//! Limits how much of a resource each user holds, so that one user cannot exhaust it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::lock::Lock;

/// The amount of one resource (bytes, watches) that each user holds. Cheap to clone. Users who hold nothing take no memory.
#[derive(Clone, Debug)]
pub struct UserShares {
    users: Arc<Lock<HashMap<Arc<str>, usize>>>,
    /// The maximum amount of one user.
    max: usize,
}

impl UserShares {
    /// Limits each user to `max`.
    pub fn new(max: usize) -> UserShares {
        UserShares { users: Arc::default(), max }
    }

    /// Takes an amount for a user; `None` if it exceeds the limit. A user who holds nothing may take any amount.
    pub fn take(&self, user: &str, amount: usize) -> Option<UserShare> {
        let mut users = self.users.lock();
        let (user, held) = match users.get_key_value(user) {
            Some((user, held)) => (Arc::clone(user), *held),
            None => (Arc::from(user), 0),
        };
        let sum = held.saturating_add(amount);
        if held > 0 && sum > self.max {
            return None;
        }
        users.insert(Arc::clone(&user), sum);
        Some(UserShare { shares: self.clone(), user, amount })
    }
}

/// An amount that a user holds, released on drop.
#[derive(Debug)]
pub struct UserShare {
    shares: UserShares,
    user: Arc<str>,
    amount: usize,
}

impl UserShare {
    /// The name of the user.
    pub fn user(&self) -> &Arc<str> {
        &self.user
    }
}

impl Drop for UserShare {
    fn drop(&mut self) {
        let mut users = self.shares.users.lock();
        if let Some(held) = users.get_mut(&self.user) {
            *held = held.saturating_sub(self.amount);
            if *held == 0 {
                users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_shares_limit_each_user_separately() {
        let shares = UserShares::new(3);
        let taken: Vec<UserShare> = (0..4).filter_map(|_| shares.take("one", 1)).collect();
        assert_eq!(taken.len(), 3);
        let other = shares.take("other", 3).expect("its own share");
        assert!(shares.take("other", 1).is_none());
        drop((taken, other));
        assert!(shares.users.lock().is_empty(), "users who hold nothing are removed");
        assert!(
            shares.take("one", 7).is_some(),
            "an amount above the limit is allowed for a user who holds nothing"
        );
    }
}
