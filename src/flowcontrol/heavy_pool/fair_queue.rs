//! Work that waits for a thread, in turns: priority levels take turns, and within a level its users. So a user with a hundred
//! waiting requests delays another one by one request at a time. Pure; [`super`] has the lock and the threads.

use std::collections::VecDeque;
use std::sync::Arc;

/// The request on whose behalf a piece of work is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkOwner {
    /// The priority level of the request.
    pub level: Arc<str>,
    /// The user name.
    pub user: Arc<str>,
    /// Whether the level is exempt: then the work has a thread of its own.
    pub is_exempt: bool,
}

/// A bounded queue with a turn for each level, and for each user in it. An entry without work is removed.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// In the order of their turns.
    levels: VecDeque<LevelQueue<T>>,
    length: usize,
    capacity: usize,
}

#[derive(Debug)]
struct LevelQueue<T> {
    name: Arc<str>,
    users: VecDeque<UserQueue<T>>,
    length: usize,
}

#[derive(Debug)]
struct UserQueue<T> {
    name: Arc<str>,
    work: VecDeque<T>,
}

/// The outcome of adding work to a queue.
#[derive(Debug, PartialEq, Eq)]
pub enum PushOutcome<T> {
    /// It waits.
    Queued,
    /// It waits. The latest work of the level and user with the most was removed for it, and is returned.
    Displaced(T),
    /// The queue is full, and no other user has much more work in it.
    Refused(T),
}

impl<T> FairQueue<T> {
    /// A queue of at most `capacity` pieces of work.
    pub fn new(capacity: usize) -> FairQueue<T> {
        FairQueue { levels: VecDeque::new(), length: 0, capacity }
    }

    /// The number of waiting pieces of work.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Adds work. If the queue is full, the level and then the user with the most in it lose their latest.
    pub fn push(&mut self, level: &Arc<str>, user: &Arc<str>, work: T) -> PushOutcome<T> {
        if self.length < self.capacity {
            self.append(level, user, work);
            return PushOutcome::Queued;
        }
        let Some(displaced) = self.displace(level, user) else { return PushOutcome::Refused(work) };
        self.append(level, user, work);
        PushOutcome::Displaced(displaced)
    }

    /// Takes the next work of a level and a user that `may_run` allows; returns it with their names.
    pub fn pop(&mut self, may_run: impl Fn(&str, &str) -> bool) -> Option<(Arc<str>, Arc<str>, T)> {
        for level_index in 0..self.levels.len() {
            let Some(level) = self.levels.get_mut(level_index) else { continue };
            let Some(user_index) = level.users.iter().position(|user| may_run(&level.name, &user.name))
            else {
                continue;
            };
            let Some(mut user) = level.users.remove(user_index) else { continue };
            let (level_name, name, work) = (level.name.clone(), user.name.clone(), user.work.pop_front());
            if !user.work.is_empty() {
                level.users.push_back(user);
            }
            level.length -= 1;
            self.length -= 1;
            if let Some(level) = self.levels.remove(level_index).filter(|level| !level.users.is_empty()) {
                self.levels.push_back(level);
            }
            return work.map(|work| (level_name, name, work));
        }
        None
    }

    /// Removes the first work that `is_wanted` selects.
    pub fn remove(&mut self, is_wanted: impl Fn(&T) -> bool) -> Option<T> {
        let FairQueue { levels, length, .. } = self;
        let positions = levels.iter().enumerate().flat_map(|(level_index, level)| {
            level.users.iter().enumerate().map(move |(user_index, user)| (level_index, user_index, user))
        });
        let mut matches = positions.filter_map(|(level_index, user_index, user)| {
            user.work.iter().position(&is_wanted).map(|index| (level_index, user_index, index))
        });
        let (level_index, user_index, index) = matches.next()?;
        drop(matches);
        *length -= 1;
        let level = levels.get_mut(level_index)?;
        level.length -= 1;
        let work = level.users.get_mut(user_index)?.work.remove(index);
        level.users.retain(|user| !user.work.is_empty());
        levels.retain(|level| !level.users.is_empty());
        work
    }

    fn append(&mut self, level: &Arc<str>, user: &Arc<str>, work: T) {
        self.length += 1;
        let index = self.levels.iter().position(|queue| queue.name == *level).unwrap_or_else(|| {
            self.levels.push_back(LevelQueue { name: level.clone(), users: VecDeque::new(), length: 0 });
            self.levels.len() - 1
        });
        let Some(level) = self.levels.get_mut(index) else { return };
        level.length += 1;
        match level.users.iter_mut().find(|queue| queue.name == *user) {
            Some(queue) => queue.work.push_back(work),
            None => level.users.push_back(UserQueue { name: user.clone(), work: [work].into() }),
        }
    }

    /// Removes work in favour of this user, unless nobody has more than the user would have then.
    fn displace(&mut self, level: &Arc<str>, user: &Arc<str>) -> Option<T> {
        let own_queue = self.levels.iter().find(|queue| queue.name == *level);
        let level_length = own_queue.map_or(0, |own_queue| own_queue.length);
        let own_queue =
            own_queue.and_then(|own_queue| own_queue.users.iter().find(|queue| queue.name == *user));
        let user_length = own_queue.map_or(0, |own_queue| own_queue.work.len());
        let longest = self.levels.iter_mut().max_by_key(|queue| queue.length)?;
        let is_other_level = longest.name != *level && longest.length > level_length + 1;
        // Within the user's own level, users are compared; it counts as the longest if it is as long.
        let largest_level = match is_other_level {
            true => longest,
            false => self.levels.iter_mut().find(|queue| queue.name == *level)?,
        };
        let largest_user = largest_level.users.iter_mut().max_by_key(|queue| queue.work.len())?;
        if !is_other_level && (largest_user.name == *user || largest_user.work.len() <= user_length + 1) {
            return None;
        }
        let displaced = largest_user.work.pop_back();
        largest_level.length -= 1;
        self.length -= 1;
        largest_level.users.retain(|user| !user.work.is_empty());
        self.levels.retain(|level| !level.users.is_empty());
        displaced
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Arc<str> {
        text.into()
    }

    fn queue(capacity: usize, entries: &[(&str, &str, u32)]) -> FairQueue<u32> {
        let mut queue = FairQueue::new(capacity);
        for (level, user, work) in entries {
            assert_eq!(queue.push(&name(level), &name(user), *work), PushOutcome::Queued);
        }
        queue
    }

    fn drained(mut queue: FairQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop(|_, _| true).map(|(_, _, work)| work)).collect()
    }

    #[test]
    fn fair_queue_alternates_levels_and_users() {
        let all = [
            ("low", "greedy", 1),
            ("low", "greedy", 2),
            ("low", "greedy", 3),
            ("low", "modest", 4),
            ("high", "admin", 5),
            ("high", "admin", 6),
        ];
        assert_eq!(drained(queue(10, &all)), [1, 5, 4, 6, 2, 3]);
    }

    #[test]
    fn fair_queue_skips_users_that_may_not_run() {
        let mut queue = queue(10, &[("low", "greedy", 1), ("low", "modest", 2)]);
        assert_eq!(
            queue.pop(|_, user| user != "greedy").map(|(_, user, work)| (user, work)),
            Some((name("modest"), 2))
        );
        assert_eq!(queue.pop(|_, user| user != "greedy"), None);
        assert_eq!((queue.len(), drained(queue)), (1, vec![1]));
    }

    #[test]
    fn full_queue_displaces_work_of_the_largest_user() {
        let mut queue = queue(4, &[("low", "a", 1), ("low", "a", 2), ("low", "a", 3), ("low", "b", 4)]);
        assert_eq!(queue.push(&name("low"), &name("a"), 5), PushOutcome::Refused(5));
        assert_eq!(queue.push(&name("low"), &name("c"), 6), PushOutcome::Displaced(3));
        assert_eq!(
            queue.push(&name("low"), &name("c"), 7),
            PushOutcome::Refused(7),
            "all have about as much"
        );
        assert_eq!(
            queue.push(&name("high"), &name("d"), 8),
            PushOutcome::Displaced(2),
            "of the larger level"
        );
        assert_eq!(drained(queue), [1, 8, 4, 6]);
    }

    #[test]
    fn abandoned_work_is_removed_from_the_queue() {
        let mut queue = queue(4, &[("low", "a", 1), ("low", "a", 2), ("high", "b", 3)]);
        assert_eq!((queue.remove(|work| *work == 3), queue.remove(|work| *work == 9)), (Some(3), None));
        assert_eq!((queue.len(), drained(queue)), (2, vec![1, 2]));
    }

    /// The level and the user of each work that waits.
    type Owners = BTreeMap<usize, (Arc<str>, Arc<str>)>;

    proptest! {
        /// The bound holds, no work is lost or duplicated, and no level or user gets two turns in a row while another one waits.
        #[test]
        fn fair_queue_is_bounded_and_starves_nobody(
            arrivals in proptest::collection::vec((0u8..3, 0u8..4, prop::bool::weighted(0.3)), 1..200),
        ) {
            let mut queue: FairQueue<usize> = FairQueue::new(16);
            let mut waiting = Owners::new();
            let mut last: Option<(Arc<str>, Arc<str>, Owners)> = None;
            for (work, (level, user, pops)) in arrivals.into_iter().enumerate() {
                let (level, user) = (name(&format!("l{level}")), name(&format!("l{level}u{user}")));
                match queue.push(&level, &user, work) {
                    PushOutcome::Queued => drop(waiting.insert(work, (level, user))),
                    PushOutcome::Displaced(other) => {
                        prop_assert!(waiting.remove(&other).is_some());
                        waiting.insert(work, (level, user));
                    }
                    PushOutcome::Refused(same) => prop_assert_eq!(same, work),
                }
                prop_assert!(queue.len() <= 16 && queue.len() == waiting.len());
                if pops {
                    let before = waiting.clone();
                    let (popped_level, user, work) = queue.pop(|_, _| true).unwrap();
                    let (level, owner) = waiting.remove(&work).unwrap();
                    prop_assert_eq!((&popped_level, &user), (&level, &owner));
                    if let Some((last_level, last_user, waited)) = &last {
                        let waited = || waited.iter().filter(|(work, _)| before.contains_key(work));
                        let is_other_level = waited().any(|(_, (owner_level, _))| owner_level != last_level);
                        let is_other_user = waited().any(|(_, (owner_level, owner_user))| owner_level == last_level && owner_user != last_user);
                        prop_assert!(!is_other_level || level != *last_level);
                        prop_assert!(!is_other_user || owner != *last_user);
                    }
                    last = Some((level, owner, waiting.clone()));
                }
            }
        }
    }
}
