//! Work that waits for a thread, in turns: priority levels take turns, and within a level its users. So a user with a hundred
//! waiting requests delays another one by one request at a time. Pure; [`super`] has the lock and the threads.

use std::collections::VecDeque;
use std::sync::Arc;

/// Whom a piece of work is done for.
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
    /// Whose turn is next comes first.
    levels: VecDeque<LevelQueue<T>>,
    length: usize,
    most: usize,
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

/// What became of work that was added to a queue.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<T> {
    /// It waits.
    Queued,
    /// It waits in the place of the latest work of whoever has the most, which is returned.
    Displaced(T),
    /// The queue is full, and nobody has much more in it than the owner of this work.
    Refused(T),
}

impl<T> FairQueue<T> {
    /// A queue of at most so many pieces of work.
    pub fn new(most: usize) -> FairQueue<T> {
        FairQueue { levels: VecDeque::new(), length: 0, most }
    }

    /// The work that waits.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Adds work. If the queue is full, the level and then the user with the most in it lose their latest.
    pub fn push(&mut self, level: &Arc<str>, user: &Arc<str>, work: T) -> Admission<T> {
        if self.length < self.most {
            self.append(level, user, work);
            return Admission::Queued;
        }
        let Some(displaced) = self.displace(level, user) else { return Admission::Refused(work) };
        self.append(level, user, work);
        Admission::Displaced(displaced)
    }

    /// Takes the work whose turn it is, of a level and a user whom `may_run` lets; with their names.
    pub fn pop(&mut self, may_run: impl Fn(&str, &str) -> bool) -> Option<(Arc<str>, Arc<str>, T)> {
        for at in 0..self.levels.len() {
            let Some(level) = self.levels.get_mut(at) else { continue };
            let Some(turn) = level.users.iter().position(|user| may_run(&level.name, &user.name)) else {
                continue;
            };
            let Some(mut user) = level.users.remove(turn) else { continue };
            let (of_level, name, work) = (level.name.clone(), user.name.clone(), user.work.pop_front());
            if !user.work.is_empty() {
                level.users.push_back(user);
            }
            level.length -= 1;
            self.length -= 1;
            if let Some(level) = self.levels.remove(at).filter(|level| !level.users.is_empty()) {
                self.levels.push_back(level);
            }
            return work.map(|work| (of_level, name, work));
        }
        None
    }

    /// Removes the first work that `is_meant` picks.
    pub fn remove(&mut self, is_meant: impl Fn(&T) -> bool) -> Option<T> {
        let FairQueue { levels, length, .. } = self;
        let places = levels.iter().enumerate().flat_map(|(level_at, level)| {
            level.users.iter().enumerate().map(move |(user_at, user)| (level_at, user_at, user))
        });
        let mut found = places.filter_map(|(level_at, user_at, user)| {
            user.work.iter().position(&is_meant).map(|at| (level_at, user_at, at))
        });
        let (level_at, user_at, at) = found.next()?;
        drop(found);
        *length -= 1;
        let level = levels.get_mut(level_at)?;
        level.length -= 1;
        let work = level.users.get_mut(user_at)?.work.remove(at);
        level.users.retain(|user| !user.work.is_empty());
        levels.retain(|level| !level.users.is_empty());
        work
    }

    fn append(&mut self, level: &Arc<str>, user: &Arc<str>, work: T) {
        self.length += 1;
        let at = self.levels.iter().position(|known| known.name == *level).unwrap_or_else(|| {
            self.levels.push_back(LevelQueue { name: level.clone(), users: VecDeque::new(), length: 0 });
            self.levels.len() - 1
        });
        let Some(level) = self.levels.get_mut(at) else { return };
        level.length += 1;
        match level.users.iter_mut().find(|known| known.name == *user) {
            Some(known) => known.work.push_back(work),
            None => level.users.push_back(UserQueue { name: user.clone(), work: [work].into() }),
        }
    }

    /// Makes room for work of this user, unless nobody has more than the user would have with it.
    fn displace(&mut self, level: &Arc<str>, user: &Arc<str>) -> Option<T> {
        let own = self.levels.iter().find(|known| known.name == *level);
        let of_level = own.map_or(0, |own| own.length);
        let own = own.and_then(|own| own.users.iter().find(|known| known.name == *user));
        let of_user = own.map_or(0, |own| own.work.len());
        let longest = self.levels.iter_mut().max_by_key(|known| known.length)?;
        let is_other = longest.name != *level && longest.length > of_level + 1;
        // Within one's own level the users are compared; a level with as much as the longest counts as such.
        let largest = match is_other {
            true => longest,
            false => self.levels.iter_mut().find(|known| known.name == *level)?,
        };
        let greedy = largest.users.iter_mut().max_by_key(|known| known.work.len())?;
        if !is_other && (greedy.name == *user || greedy.work.len() <= of_user + 1) {
            return None;
        }
        let displaced = greedy.work.pop_back();
        largest.length -= 1;
        self.length -= 1;
        largest.users.retain(|user| !user.work.is_empty());
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

    fn queue(most: usize, all: &[(&str, &str, u32)]) -> FairQueue<u32> {
        let mut queue = FairQueue::new(most);
        for (level, user, work) in all {
            assert_eq!(queue.push(&name(level), &name(user), *work), Admission::Queued);
        }
        queue
    }

    fn drained(mut queue: FairQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop(|_, _| true).map(|(_, _, work)| work)).collect()
    }

    #[test]
    fn levels_take_turns_and_so_do_the_users_of_each() {
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
    fn a_user_with_enough_running_work_is_passed_over() {
        let mut queue = queue(10, &[("low", "greedy", 1), ("low", "modest", 2)]);
        assert_eq!(
            queue.pop(|_, user| user != "greedy").map(|(_, user, work)| (user, work)),
            Some((name("modest"), 2))
        );
        assert_eq!(queue.pop(|_, user| user != "greedy"), None);
        assert_eq!((queue.len(), drained(queue)), (1, vec![1]));
    }

    #[test]
    fn a_full_queue_takes_room_from_who_has_the_most() {
        let mut queue = queue(4, &[("low", "a", 1), ("low", "a", 2), ("low", "a", 3), ("low", "b", 4)]);
        assert_eq!(queue.push(&name("low"), &name("a"), 5), Admission::Refused(5));
        assert_eq!(queue.push(&name("low"), &name("c"), 6), Admission::Displaced(3));
        assert_eq!(queue.push(&name("low"), &name("c"), 7), Admission::Refused(7), "all have about the same");
        assert_eq!(queue.push(&name("high"), &name("d"), 8), Admission::Displaced(2), "of the larger level");
        assert_eq!(drained(queue), [1, 8, 4, 6]);
    }

    #[test]
    fn work_that_nobody_waits_for_leaves_the_queue() {
        let mut queue = queue(4, &[("low", "a", 1), ("low", "a", 2), ("high", "b", 3)]);
        assert_eq!((queue.remove(|work| *work == 3), queue.remove(|work| *work == 9)), (Some(3), None));
        assert_eq!((queue.len(), drained(queue)), (2, vec![1, 2]));
    }

    /// The level and the user of each work that waits.
    type Owners = BTreeMap<usize, (Arc<str>, Arc<str>)>;

    proptest! {
        /// Whatever comes, the bound holds, nothing is lost or doubled, and nobody is passed over twice in a row: not a level by
        /// another, and not a user by another of the same level.
        #[test]
        fn nothing_is_lost_and_nobody_starves(
            arrivals in proptest::collection::vec((0u8..3, 0u8..4, prop::bool::weighted(0.3)), 1..200),
        ) {
            let mut queue: FairQueue<usize> = FairQueue::new(16);
            let mut waiting = Owners::new();
            let mut last: Option<(Arc<str>, Arc<str>, Owners)> = None;
            for (work, (level, user, pops)) in arrivals.into_iter().enumerate() {
                let (level, user) = (name(&format!("l{level}")), name(&format!("l{level}u{user}")));
                match queue.push(&level, &user, work) {
                    Admission::Queued => drop(waiting.insert(work, (level, user))),
                    Admission::Displaced(other) => {
                        prop_assert!(waiting.remove(&other).is_some());
                        waiting.insert(work, (level, user));
                    }
                    Admission::Refused(same) => prop_assert_eq!(same, work),
                }
                prop_assert!(queue.len() <= 16 && queue.len() == waiting.len());
                if pops {
                    let before = waiting.clone();
                    let (popped_level, user, work) = queue.pop(|_, _| true).unwrap();
                    let (level, owner) = waiting.remove(&work).unwrap();
                    prop_assert_eq!((&popped_level, &user), (&level, &owner));
                    if let Some((last_level, last_user, waited)) = &last {
                        let waited = || waited.iter().filter(|(work, _)| before.contains_key(work));
                        let is_other_level = waited().any(|(_, (of, _))| of != last_level);
                        let is_other_user = waited().any(|(_, (of, who))| of == last_level && who != last_user);
                        prop_assert!(!is_other_level || level != *last_level);
                        prop_assert!(!is_other_user || owner != *last_user);
                    }
                    last = Some((level, owner, waiting.clone()));
                }
            }
        }
    }
}
