//! How much of something each user has, so that one user cannot take all of it.

use std::collections::HashMap;
use std::sync::Arc;

use pilothouse_types::lock::Lock;

/// What each user has of one thing (bytes, watches). Cheap to clone. Users who have nothing take no memory.
#[derive(Clone, Debug)]
pub struct UserShares {
    users: Arc<Lock<HashMap<Arc<str>, usize>>>,
    /// The most that one user may have.
    most: usize,
}

impl UserShares {
    /// Shares of at most `most` for each user.
    pub fn new(most: usize) -> UserShares {
        UserShares { users: Arc::default(), most }
    }

    /// Takes so much for a user; `None` if the user would have too much. A user who has nothing may take any amount.
    pub fn take(&self, user: &str, amount: usize) -> Option<UserShare> {
        let mut users = self.users.lock();
        let (user, has) = match users.get_key_value(user) {
            Some((user, has)) => (Arc::clone(user), *has),
            None => (Arc::from(user), 0),
        };
        let sum = has.saturating_add(amount);
        if has > 0 && sum > self.most {
            return None;
        }
        users.insert(Arc::clone(&user), sum);
        Some(UserShare { shares: self.clone(), user, amount })
    }
}

/// What a user has taken, given back on drop.
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
        if let Some(has) = users.get_mut(&self.user) {
            *has = has.saturating_sub(self.amount);
            if *has == 0 {
                users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_share_and_nobody_the_share_of_another() {
        let shares = UserShares::new(3);
        let held: Vec<UserShare> = (0..4).filter_map(|_| shares.take("one", 1)).collect();
        assert_eq!(held.len(), 3);
        let other = shares.take("other", 3).expect("its own share");
        assert!(shares.take("other", 1).is_none());
        drop((held, other));
        assert!(shares.users.lock().is_empty(), "nobody is remembered");
        assert!(shares.take("one", 7).is_some(), "what is too large for a share may come alone");
    }
}
