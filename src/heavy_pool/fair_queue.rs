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
    /// The work that may be refused, of which at most `most` waits.
    refusable: usize,
    most: usize,
}

#[derive(Debug)]
struct LevelQueue<T> {
    name: Arc<str>,
    users: VecDeque<UserQueue<T>>,
    /// The work of these users that may be refused.
    refusable: usize,
}

#[derive(Debug)]
struct UserQueue<T> {
    name: Arc<str>,
    work: VecDeque<Entry<T>>,
}

impl<T> UserQueue<T> {
    fn refusable(&self) -> usize {
        self.work.iter().filter(|entry| entry.is_refusable).count()
    }
}

#[derive(Debug)]
struct Entry<T> {
    work: T,
    is_refusable: bool,
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
    /// A queue of at most so many pieces of work that may be refused.
    pub fn new(most: usize) -> FairQueue<T> {
        FairQueue { levels: VecDeque::new(), length: 0, refusable: 0, most }
    }

    /// The work that waits.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Adds work. If the queue is full, the level and then the user with the most in it lose their latest.
    pub fn push(&mut self, level: &Arc<str>, user: &Arc<str>, work: T) -> Admission<T> {
        let entry = Entry { work, is_refusable: true };
        if self.refusable < self.most {
            self.append(level, user, entry);
            return Admission::Queued;
        }
        let Some(displaced) = self.displace(level, user) else { return Admission::Refused(entry.work) };
        self.append(level, user, entry);
        Admission::Displaced(displaced)
    }

    /// Adds work that nobody can refuse any more, because a part of its result is sent: it waits for its turn, and is never
    /// displaced. The caller keeps the number of such pieces small.
    pub fn push_unrefusable(&mut self, level: &Arc<str>, user: &Arc<str>, work: T) {
        self.append(level, user, Entry { work, is_refusable: false });
    }

    /// Takes the work whose turn it is, of a level and a user whom `may_run` lets; with their names.
    pub fn pop(&mut self, may_run: impl Fn(&str, &str) -> bool) -> Option<(Arc<str>, Arc<str>, T)> {
        for at in 0..self.levels.len() {
            let Some(level) = self.levels.get_mut(at) else { continue };
            let Some(turn) = level.users.iter().position(|user| may_run(&level.name, &user.name)) else {
                continue;
            };
            let Some(mut user) = level.users.remove(turn) else { continue };
            let (of_level, name, entry) = (level.name.clone(), user.name.clone(), user.work.pop_front());
            if !user.work.is_empty() {
                level.users.push_back(user);
            }
            let refusable = usize::from(entry.as_ref().is_some_and(|entry| entry.is_refusable));
            level.refusable -= refusable;
            self.refusable -= refusable;
            self.length -= 1;
            if let Some(level) = self.levels.remove(at).filter(|level| !level.users.is_empty()) {
                self.levels.push_back(level);
            }
            return entry.map(|entry| (of_level, name, entry.work));
        }
        None
    }

    /// Removes the first work that `is_meant` picks.
    pub fn remove(&mut self, is_meant: impl Fn(&T) -> bool) -> Option<T> {
        let FairQueue { levels, length, refusable, .. } = self;
        let places = levels.iter().enumerate().flat_map(|(level_at, level)| {
            level.users.iter().enumerate().map(move |(user_at, user)| (level_at, user_at, user))
        });
        let mut found = places.filter_map(|(level_at, user_at, user)| {
            user.work.iter().position(|entry| is_meant(&entry.work)).map(|at| (level_at, user_at, at))
        });
        let (level_at, user_at, at) = found.next()?;
        drop(found);
        let level = levels.get_mut(level_at)?;
        let entry = level.users.get_mut(user_at)?.work.remove(at)?;
        *length -= 1;
        *refusable -= usize::from(entry.is_refusable);
        level.refusable -= usize::from(entry.is_refusable);
        level.users.retain(|user| !user.work.is_empty());
        levels.retain(|level| !level.users.is_empty());
        Some(entry.work)
    }

    fn append(&mut self, level: &Arc<str>, user: &Arc<str>, entry: Entry<T>) {
        self.length += 1;
        self.refusable += usize::from(entry.is_refusable);
        let at = self.levels.iter().position(|known| known.name == *level).unwrap_or_else(|| {
            self.levels.push_back(LevelQueue { name: level.clone(), users: VecDeque::new(), refusable: 0 });
            self.levels.len() - 1
        });
        let Some(level) = self.levels.get_mut(at) else { return };
        level.refusable += usize::from(entry.is_refusable);
        match level.users.iter_mut().find(|known| known.name == *user) {
            Some(known) => known.work.push_back(entry),
            None => level.users.push_back(UserQueue { name: user.clone(), work: [entry].into() }),
        }
    }

    /// Makes room for work of this user, unless nobody has more than the user would have with it.
    fn displace(&mut self, level: &Arc<str>, user: &Arc<str>) -> Option<T> {
        let own = self.levels.iter().find(|known| known.name == *level);
        let of_level = own.map_or(0, |own| own.refusable);
        let own = own.and_then(|own| own.users.iter().find(|known| known.name == *user));
        let of_user = own.map_or(0, UserQueue::refusable);
        let longest = self.levels.iter_mut().max_by_key(|known| known.refusable)?;
        let is_other = longest.name != *level && longest.refusable > of_level + 1;
        // Within one's own level the users are compared; a level with as much as the longest counts as such.
        let largest = match is_other {
            true => longest,
            false => self.levels.iter_mut().find(|known| known.name == *level)?,
        };
        let greedy = largest.users.iter_mut().max_by_key(|known| known.refusable())?;
        if !is_other && (greedy.name == *user || greedy.refusable() <= of_user + 1) {
            return None;
        }
        let latest = greedy.work.iter().rposition(|entry| entry.is_refusable)?;
        let displaced = greedy.work.remove(latest)?;
        largest.refusable -= 1;
        self.refusable -= 1;
        self.length -= 1;
        largest.users.retain(|user| !user.work.is_empty());
        self.levels.retain(|level| !level.users.is_empty());
        Some(displaced.work)
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

    #[test]
    fn work_that_cannot_be_refused_waits_in_a_full_queue_and_keeps_its_place() {
        let mut queue = queue(2, &[("low", "a", 1), ("low", "a", 2)]);
        let (low, a) = (name("low"), name("a"));
        queue.push_unrefusable(&low, &a, 3);
        queue.push_unrefusable(&low, &a, 4);
        assert_eq!((queue.len(), queue.push(&low, &a, 5)), (4, Admission::Refused(5)));
        assert_eq!(
            queue.push(&name("high"), &name("b"), 6),
            Admission::Displaced(2),
            "not 4, which is later"
        );
        assert_eq!(queue.remove(|work| *work == 4), Some(4));
        assert_eq!((queue.len(), drained(queue)), (3, vec![1, 6, 3]));
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
