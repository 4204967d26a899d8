//! The actor that knows which port on the nodes belongs to whom.
//!
//! One per server: whoever stores an owner asks here first, so two writers never get the same port, whatever worker they
//! run on. It keeps nothing on disk: what is taken stands in the stored owners, and from those it is made at the start.
//!
//! Order: commands are answered as they come. A port is free again when its owner gave it back, and only its owner can.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use actix::{Actor, Context, Handler, Message, MessageResult};

use crate::fatal::Fatal;
use crate::limits::PORTS_MAILBOX;
use crate::object::Key;
use crate::permit::Permit;

/// The lower band is one part in this many of the range.
const LOWER_PART: u32 = 32;
/// The lower band of a small range. A range of no more ports has none.
const LOWER_LEAST: u32 = 16;
/// The lower band of a large range.
const LOWER_MOST: u32 = 128;

/// One port that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// This one and no other. It may be a number that is no port at all.
    Exactly(i64),
    /// Any that is free, looked for from a number that was drawn at random.
    Any(u32),
}

/// Why a port cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Another has it.
    Taken,
    /// It is not one of those that are given.
    Outside,
    /// All are taken.
    Full,
}

/// Which of the wants could not be had, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The index of the want.
    pub at: usize,
    /// Why.
    pub reason: Reason,
}

/// Asks for ports, all or none.
/// Answers them in the order of the wants, or the first that cannot be had. On Full the sender waits, within its own
/// permit; on Closed the server ends.
#[derive(Message)]
#[rtype(result = "Result<Vec<u16>, Refused>")]
pub struct Take {
    /// Whose they shall be.
    pub owner: Key,
    /// Which.
    pub wants: Vec<Want>,
    /// The place of the request.
    pub permit: Permit,
}

/// Asks whether these could be had now, and takes none.
/// Answers the first that could not. Full and Closed as for [`Take`].
#[derive(Message)]
#[rtype(result = "Result<(), Refused>")]
pub struct Look {
    /// Which.
    pub ports: Vec<i64>,
    /// The place of the request.
    pub permit: Permit,
}

/// Gives ports back. Those that are not the owner's stay as they are.
/// Full and Closed as for [`Take`].
#[derive(Message)]
#[rtype(result = "()")]
pub struct Return {
    /// Whose they were.
    pub owner: Key,
    /// Which.
    pub ports: Vec<u16>,
}

/// Who has which port? Answers all ports that are taken. On Full the sender waits; on Closed the server ends.
#[derive(Clone, Copy, Message)]
#[rtype(result = "BTreeMap<u16, Key>")]
pub struct Owners;

/// The ports of a range and their owners.
#[derive(Debug)]
pub struct Pool {
    first: u16,
    last: u16,
    /// Also ports outside the range: they were given when the range was another, and their owners still have them.
    owners: HashMap<u16, Key>,
    /// Those of the range that have no owner, in order: a search does not walk over the rest.
    free: BTreeSet<u16>,
}

impl Pool {
    /// The ports from `first` to `last`, with those that have owners already.
    pub fn new(first: u16, last: u16, taken: impl IntoIterator<Item = (u16, Key)>) -> Pool {
        let owners: HashMap<u16, Key> = taken.into_iter().collect();
        let free = (first..=last).filter(|port| !owners.contains_key(port)).collect();
        Pool { first, last, owners, free }
    }

    /// Takes all that is wanted, or nothing.
    pub fn take(&mut self, owner: &Key, wants: &[Want]) -> Result<Vec<u16>, Refused> {
        let mut got = Vec::with_capacity(wants.len());
        for (at, want) in wants.iter().enumerate() {
            let found = match *want {
                Want::Exactly(port) => self.find(port),
                Want::Any(random) => self.search(random).ok_or(Reason::Full),
            };
            match found {
                Ok(port) => {
                    self.owners.insert(port, owner.clone());
                    self.free.remove(&port);
                    got.push(port);
                }
                Err(reason) => {
                    self.give_back(owner, &got);
                    return Err(Refused { at, reason });
                }
            }
        }
        Ok(got)
    }

    /// Whether no other owner has these ports. Like the reference's dry run it does not ask where they lie.
    pub fn look(&self, ports: &[i64]) -> Result<(), Refused> {
        let taken = |port: &i64| u16::try_from(*port).is_ok_and(|port| self.owners.contains_key(&port));
        match ports.iter().position(taken) {
            Some(at) => Err(Refused { at, reason: Reason::Taken }),
            None => Ok(()),
        }
    }

    /// Frees what is the owner's.
    pub fn give_back(&mut self, owner: &Key, ports: &[u16]) {
        for port in ports {
            if self.owners.get(port) == Some(owner) {
                self.owners.remove(port);
                if (self.first..=self.last).contains(port) {
                    self.free.insert(*port);
                }
            }
        }
    }

    fn find(&self, port: i64) -> Result<u16, Reason> {
        let inside = u16::try_from(port).ok().filter(|port| (self.first..=self.last).contains(port));
        let port = inside.ok_or(Reason::Outside)?;
        if self.owners.contains_key(&port) { Err(Reason::Taken) } else { Ok(port) }
    }

    /// Once around the upper band, then once around the lower one, which is left to those who choose for themselves.
    fn search(&self, random: u32) -> Option<u16> {
        let size = u32::from(self.last - self.first) + 1;
        let lower = if size <= LOWER_LEAST { 0 } else { (size / LOWER_PART).clamp(LOWER_LEAST, LOWER_MOST) };
        let around = |from: u32, count: u32| {
            let start = from + random.checked_rem(count)?;
            self.next_free(start, from + count).or_else(|| self.next_free(from, start))
        };
        around(lower, size - lower).or_else(|| around(0, lower))
    }

    /// The first free one from an offset up to another, without that.
    fn next_free(&self, from: u32, to: u32) -> Option<u16> {
        let port = |offset: u32| u16::try_from(u32::from(self.first) + offset);
        let (from, last) = (port(from).ok()?, port(to.checked_sub(1)?).ok()?);
        if from > last { None } else { self.free.range(from..=last).next().copied() }
    }
}

/// The actor. See the module text.
pub struct Ports {
    pool: Pool,
    /// Raised if this actor dies: without it services could be stored with ports that others have.
    fatal: Fatal,
}

impl Ports {
    /// The actor of these ports.
    pub fn new(pool: Pool, fatal: Fatal) -> Ports {
        Ports { pool, fatal }
    }
}

impl Actor for Ports {
    type Context = Context<Ports>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(PORTS_MAILBOX);
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fatal.raise("the keeper of ports panicked".to_owned());
        }
    }
}

impl Handler<Take> for Ports {
    type Result = Result<Vec<u16>, Refused>;

    fn handle(&mut self, command: Take, _: &mut Self::Context) -> Self::Result {
        self.pool.take(&command.owner, &command.wants)
    }
}

impl Handler<Look> for Ports {
    type Result = Result<(), Refused>;

    fn handle(&mut self, command: Look, _: &mut Self::Context) -> Self::Result {
        self.pool.look(&command.ports)
    }
}

impl Handler<Owners> for Ports {
    type Result = MessageResult<Owners>;

    fn handle(&mut self, _: Owners, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.pool.owners.iter().map(|(port, owner)| (*port, owner.clone())).collect())
    }
}

impl Handler<Return> for Ports {
    type Result = MessageResult<Return>;

    fn handle(&mut self, command: Return, _: &mut Self::Context) -> Self::Result {
        self.pool.give_back(&command.owner, &command.ports);
        MessageResult(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owner(name: &str) -> Key {
        Key::namespaced("n", name)
    }

    #[test]
    fn ports_are_taken_all_or_none_and_only_their_owner_frees_them() {
        let mut pool = Pool::new(30_000, 30_009, [(30_001, owner("old")), (29_000, owner("old"))]);
        let take = |pool: &mut Pool, wants: &[Want]| pool.take(&owner("a"), wants);
        let refused = |at, reason| Err(Refused { at, reason });
        let some = [Want::Exactly(30_002), Want::Exactly(30_001)];
        assert_eq!(take(&mut pool, &some), refused(1, Reason::Taken));
        assert_eq!(take(&mut pool, &[Want::Exactly(30_002)]), Ok(vec![30_002]));
        for outside in [29_999, 30_010, 70_000, -1, 0] {
            assert_eq!(take(&mut pool, &[Want::Exactly(outside)]), refused(0, Reason::Outside), "{outside}");
        }
        assert_eq!(pool.look(&[30_003, 30_002]), Err(Refused { at: 1, reason: Reason::Taken }));
        assert_eq!(pool.look(&[30_003, 70_000]), Ok(()));
        pool.give_back(&owner("b"), &[30_001, 30_002]);
        assert_eq!(take(&mut pool, &[Want::Exactly(30_001)]), refused(0, Reason::Taken));
        pool.give_back(&owner("old"), &[30_001]);
        assert_eq!(take(&mut pool, &[Want::Exactly(30_001)]), Ok(vec![30_001]));
        let rest = [Want::Any(7); 8];
        assert_eq!(take(&mut pool, &rest).map(|got| got.len()), Ok(8));
        assert_eq!(take(&mut pool, &[Want::Any(0)]), refused(0, Reason::Full));
    }

    #[test]
    fn the_lower_band_is_given_last() {
        let mut pool = Pool::new(30_000, 32_767, []);
        let got = pool.take(&owner("a"), &[Want::Any(5); 2_768 - 86]).unwrap();
        assert!(got.iter().all(|port| *port >= 30_086), "2768 / 32 ports are kept for those who choose");
        assert!(pool.take(&owner("a"), &[Want::Any(5)]).unwrap()[0] < 30_086);
    }

    /// One owner may ask for everything, again and again: a search that walked over what is taken would keep all others
    /// waiting.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
    fn a_range_is_emptied_fast() {
        let mut pool = Pool::new(1, u16::MAX, []);
        let began = std::time::Instant::now();
        for _ in 0..8 {
            let refused = pool.take(&owner("a"), &[Want::Any(77); 1 << 16]);
            assert_eq!(refused, Err(Refused { at: 65_535, reason: Reason::Full }));
            assert_eq!((pool.owners.len(), pool.free.len()), (0, 65_535));
        }
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }

    proptest! {
        #[test]
        fn every_port_is_given_once(first in 1u16..60_000, count in 1u16..200, seeds: Vec<u32>) {
            let mut pool = Pool::new(first, first + count - 1, []);
            let mut got = BTreeSet::new();
            for turn in 0..count {
                let seed = seeds.get(usize::from(turn)).copied().unwrap_or(u32::from(turn));
                let port = pool.take(&owner("a"), &[Want::Any(seed)]).unwrap()[0];
                prop_assert!((first..first + count).contains(&port) && got.insert(port));
            }
            prop_assert!(pool.take(&owner("a"), &[Want::Any(0)]).is_err());
        }
    }
}
