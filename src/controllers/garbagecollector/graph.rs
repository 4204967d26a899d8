//! The ownership graph: an index by UID.
//!
//! Pure. Only objects that own, are owned, or wait for the garbage collector have a node. A node without a place stands for an
//! owner that was never observed, only referenced. Each such dependent is checked by the reference it has: the owner is found and
//! confirmed, or the dependent is deleted.
//!
//! A node takes about a hundred and fifty bytes: it shares its key with the store, and owners are sixteen bytes each.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use pilothouse_types::object::Key;

/// Cached UIDs of removed objects without known dependents. Types are told one after the other: a dependent may be seen after the
/// removal of its owner, and of the owner's kind.
const GONE_REMEMBERED: usize = 4_096;

/// A UID in sixteen bytes. Texts that are no canonical UUID, which only references can contain, become a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid([u8; 16]);

impl Uid {
    /// The UID of this text.
    pub fn new(text: &str) -> Uid {
        Uid(canonical(text).unwrap_or_else(|| {
            let digest = openssl::sha::sha256(text.as_bytes());
            let mut short = [0; 16];
            short.copy_from_slice(&digest[..16]);
            // No version 4 UUID has this variant, so no digest can equal one.
            short[8] |= 0xc0;
            short
        }))
    }
}

fn canonical(text: &str) -> Option<[u8; 16]> {
    let bytes = text.as_bytes();
    if bytes.len() != 36 || [8, 13, 18, 23].iter().any(|at| bytes.get(*at) != Some(&b'-')) {
        return None;
    }
    let mut digits = bytes.iter().enumerate().filter(|(at, _)| !matches!(at, 8 | 13 | 18 | 23));
    let mut uid = [0; 16];
    for byte in &mut uid {
        let mut digit = || match digits.next()?.1 {
            digit @ b'0'..=b'9' => Some(digit - b'0'),
            digit @ b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        *byte = digit()? << 4 | digit()?;
    }
    Some(uid)
}

/// The place of an object: its type, by a number that the collector assigns, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectLocation {
    /// The number of the type.
    pub of: u32,
    /// The key of the object.
    pub key: Key,
}

/// One owner reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The UID of the owner.
    pub uid: Uid,
    /// Whether a foreground deletion of the owner waits for the dependent.
    pub blocks: bool,
    /// Whether the reference agrees with the observed owner. Not part of the node.
    pub fits: bool,
}

/// How a pending deletion treats dependents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionMode {
    /// The object is not being deleted.
    #[default]
    No,
    /// It does not wait for dependents.
    Plainly,
    /// It waits until dependents are deleted.
    Foreground,
    /// It waits until dependents are orphaned.
    Orphaning,
    /// It has gone. The node stays until the last of them no longer names it: they need not ask for their owner one by one,
    /// and the kind of the owner, which could say that it is not there, may itself be gone when their turn comes.
    Gone,
}

/// A work item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// Decide whether this object is deleted.
    Attempt(Uid),
    /// Orphan the dependents of this object.
    Orphan(Uid),
}

#[derive(Debug, Default)]
struct Node {
    place: Option<ObjectLocation>,
    owners: Owners,
    /// Absent for most objects, so it takes only a pointer.
    #[expect(
        clippy::box_collection,
        reason = "a pointer is a third of an empty set, and there is one per object"
    )]
    dependents: Option<Box<BTreeSet<Uid>>>,
    going: DeletionMode,
}

/// Most objects have one owner.
#[derive(Debug, Default)]
enum Owners {
    #[default]
    None,
    One(Uid, bool),
    Many(Box<[(Uid, bool)]>),
}

impl Owners {
    fn new(all: &[Owner]) -> Owners {
        match all {
            [] => Owners::None,
            [one] => Owners::One(one.uid, one.blocks),
            many => Owners::Many(many.iter().map(|owner| (owner.uid, owner.blocks)).collect()),
        }
    }

    fn all(&self) -> Vec<(Uid, bool)> {
        match self {
            Owners::None => Vec::new(),
            Owners::One(uid, blocks) => vec![(*uid, *blocks)],
            Owners::Many(all) => all.to_vec(),
        }
    }

    fn blocks(&self, owner: Uid) -> bool {
        match self {
            Owners::None => false,
            Owners::One(uid, blocks) => *uid == owner && *blocks,
            Owners::Many(all) => all.iter().any(|(uid, blocks)| *uid == owner && *blocks),
        }
    }
}

impl Node {
    /// Whether the node contains no information.
    fn is_idle(&self) -> bool {
        matches!(self.owners, Owners::None)
            && self.dependents.is_none()
            && matches!(self.going, DeletionMode::No | DeletionMode::Plainly | DeletionMode::Gone)
    }
}

/// The index. See the module documentation.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: BTreeMap<Uid, Node>,
    /// The last uids that went without a node to remember it; in order of their going, too.
    gone: BTreeSet<Uid>,
    gone_in_order: VecDeque<Uid>,
}

impl Graph {
    /// An object exists or has changed. Adds tasks.
    pub fn observe(
        &mut self,
        uid: Uid,
        place: ObjectLocation,
        owners: &[Owner],
        going: DeletionMode,
        tasks: &mut Vec<Task>,
    ) {
        let known = self.nodes.contains_key(&uid);
        if !known && owners.is_empty() && matches!(going, DeletionMode::No | DeletionMode::Plainly) {
            return;
        }
        let node = self.nodes.entry(uid).or_default();
        node.place = Some(place);
        let was = std::mem::replace(&mut node.going, going);
        let before = std::mem::replace(&mut node.owners, Owners::new(owners)).all();
        self.let_go(uid, &before, owners, tasks);
        let known: HashSet<Uid> = before.iter().map(|(known, _)| *known).collect();
        let is_new = |owner: &Owner| !known.contains(&owner.uid);
        let mut doubtful = false;
        for owner in owners.iter().filter(|owner| is_new(owner)) {
            doubtful |= !self.attach(uid, owner);
        }
        if doubtful {
            tasks.push(Task::Attempt(uid));
        }
        match going {
            DeletionMode::Orphaning if was != going => tasks.push(Task::Orphan(uid)),
            DeletionMode::Foreground if was != going => {
                tasks.extend(self.dependents(uid).into_iter().map(Task::Attempt));
                tasks.push(Task::Attempt(uid));
            }
            _ => {}
        }
        self.prune(uid);
    }

    /// Detaches a dependent from owners that it no longer names, and adds tasks for owners that waited for it.
    fn let_go(&mut self, uid: Uid, before: &[(Uid, bool)], now: &[Owner], tasks: &mut Vec<Task>) {
        let now: HashMap<Uid, bool> =
            now.iter().rev().map(|reference| (reference.uid, reference.blocks)).collect();
        for (owner, blocked) in before {
            let still = now.get(owner);
            if *blocked && still != Some(&true) && self.nodes.contains_key(owner) {
                tasks.push(Task::Attempt(*owner));
            }
            if still.is_none() {
                self.detach(uid, *owner);
            }
        }
    }

    /// Attaches a dependent to its owner. Answers whether the owner was observed as the reference says.
    fn attach(&mut self, uid: Uid, owner: &Owner) -> bool {
        let went = self.gone.contains(&owner.uid);
        let node = self.nodes.entry(owner.uid).or_default();
        if went {
            node.going = DeletionMode::Gone;
        }
        node.dependents.get_or_insert_default().insert(uid);
        node.place.is_some() && owner.fits
    }

    fn detach(&mut self, uid: Uid, owner: Uid) {
        let Some(node) = self.nodes.get_mut(&owner) else { return };
        if let Some(dependents) = &mut node.dependents {
            dependents.remove(&uid);
            if dependents.is_empty() {
                node.dependents = None;
            }
        }
        self.prune(owner);
    }

    fn prune(&mut self, uid: Uid) {
        if !self.nodes.get(&uid).is_some_and(Node::is_idle) {
            return;
        }
        if self.nodes.remove(&uid).is_some_and(|node| node.going == DeletionMode::Gone) {
            self.remember_gone(uid);
        }
    }

    /// An object was removed. Adds tasks for its dependents, and for owners that waited for it.
    pub fn remove(&mut self, uid: Uid, tasks: &mut Vec<Task>) {
        let Some(node) = self.nodes.get_mut(&uid) else { return self.remember_gone(uid) };
        (node.place, node.going) = (None, DeletionMode::Gone);
        for (owner, _) in std::mem::take(&mut node.owners).all() {
            if self.going(owner) == DeletionMode::Foreground {
                tasks.push(Task::Attempt(owner));
            }
            self.detach(uid, owner);
        }
        tasks.extend(self.dependents(uid).into_iter().map(Task::Attempt));
        self.prune(uid);
    }

    fn remember_gone(&mut self, uid: Uid) {
        if self.gone.insert(uid) {
            self.gone_in_order.push_back(uid);
        }
        if self.gone_in_order.len() > GONE_REMEMBERED
            && let Some(oldest) = self.gone_in_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }

    /// Whether an object of this uid was there and is no more. Nobody serves its kind any more, perhaps: it is gone all the same.
    pub fn is_gone(&self, uid: Uid) -> bool {
        self.going(uid) == DeletionMode::Gone || self.gone.contains(&uid)
    }

    /// A lookup has found an owner here.
    pub fn confirm(&mut self, uid: Uid, place: ObjectLocation) {
        // What was found may have been heard to go meanwhile.
        if let Some(node) = self.nodes.get_mut(&uid).filter(|node| node.going != DeletionMode::Gone) {
            node.place.get_or_insert(place);
        }
    }

    /// The place of an object, if it was observed.
    pub fn place(&self, uid: Uid) -> Option<&ObjectLocation> {
        self.nodes.get(&uid)?.place.as_ref()
    }

    /// How a pending deletion of it treats dependents.
    pub fn going(&self, uid: Uid) -> DeletionMode {
        self.nodes.get(&uid).map(|node| node.going).unwrap_or_default()
    }

    /// The objects that name it as an owner.
    pub fn dependents(&self, uid: Uid) -> Vec<Uid> {
        let dependents = self.nodes.get(&uid).and_then(|node| node.dependents.as_deref());
        dependents.into_iter().flatten().copied().collect()
    }

    /// The dependents that its foreground deletion waits for.
    pub fn blocking(&self, uid: Uid) -> Vec<Uid> {
        let blocks = |dependent: &Uid| self.nodes.get(dependent).is_some_and(|node| node.owners.blocks(uid));
        self.dependents(uid).into_iter().filter(blocks).collect()
    }

    /// The observed UIDs of one type, to compare with a new list of the type.
    pub fn seen_of(&self, of: u32) -> Vec<Uid> {
        let is_of = |node: &Node| node.place.as_ref().is_some_and(|place| place.of == of);
        self.nodes.iter().filter(|(_, node)| is_of(node)).map(|(uid, _)| *uid).collect()
    }

    /// How many nodes there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
}

#[cfg(test)]
mod tests;
