//! The ownership graph: an index by UID.
//!
//! Pure. Only objects that own, are owned, or wait for the garbage collector have a node. A node without a place stands for an
//! owner that was never observed, only referenced. Each such dependent is checked by the reference it has: the owner is found and
//! confirmed, or the dependent is deleted.
//!
//! A node takes about a hundred and fifty bytes: it shares its key with the store, and owners are sixteen bytes each.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use pilothouse_types::bounded::RecentSet;
use pilothouse_types::object::Key;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

/// Cached UIDs of removed objects without known dependents. Types are reported one after the other: a dependent may be observed
/// after the removal of its owner, and of the owner's kind.
const MAX_DELETED_UIDS: usize = 4_096;

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

/// The bytes of a UUID in its usual spelling. Others of the same UUID are other texts, and so other UIDs.
fn canonical(text: &str) -> Option<[u8; 16]> {
    let uuid = Uuid::try_parse(text).ok()?;
    let mut buffer = [0; Hyphenated::LENGTH];
    (*uuid.hyphenated().encode_lower(&mut buffer) == *text).then(|| uuid.into_bytes())
}

/// The place of an object: its type, by a number that the collector assigns, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectLocation {
    /// The number of the type.
    pub type_number: u32,
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
    pub matches: bool,
}

/// How a pending deletion treats dependents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionMode {
    /// The object is not being deleted.
    #[default]
    None,
    /// It does not wait for dependents.
    Background,
    /// It waits until dependents are deleted.
    Foreground,
    /// It waits until dependents are orphaned.
    Orphan,
    /// It is deleted. The node stays while any dependent still references it, so that the owner is not looked up once per
    /// dependent: its kind may no longer be served by then, and a lookup could not tell that it is absent.
    Deleted,
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
    location: Option<ObjectLocation>,
    owners: Owners,
    /// Absent for most objects, so it takes only a pointer.
    #[expect(
        clippy::box_collection,
        reason = "a pointer is a third of an empty set, and there is one per object"
    )]
    dependents: Option<Box<BTreeSet<Uid>>>,
    deletion_mode: DeletionMode,
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
    fn new(owners: &[Owner]) -> Owners {
        match owners {
            [] => Owners::None,
            [owner] => Owners::One(owner.uid, owner.blocks),
            owners => Owners::Many(owners.iter().map(|owner| (owner.uid, owner.blocks)).collect()),
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
            && matches!(
                self.deletion_mode,
                DeletionMode::None | DeletionMode::Background | DeletionMode::Deleted
            )
    }
}

/// The index. See the module documentation.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: BTreeMap<Uid, Node>,
    /// The UIDs of the last objects that were deleted without a node.
    deleted: RecentSet<Uid, MAX_DELETED_UIDS>,
}

impl Graph {
    /// An object exists or has changed. Adds tasks.
    pub fn observe(
        &mut self,
        uid: Uid,
        location: ObjectLocation,
        owners: &[Owner],
        deletion_mode: DeletionMode,
        tasks: &mut Vec<Task>,
    ) {
        let is_known = self.nodes.contains_key(&uid);
        if !is_known
            && owners.is_empty()
            && matches!(deletion_mode, DeletionMode::None | DeletionMode::Background)
        {
            return;
        }
        let node = self.nodes.entry(uid).or_default();
        node.location = Some(location);
        let previous_mode = std::mem::replace(&mut node.deletion_mode, deletion_mode);
        let previous_owners = std::mem::replace(&mut node.owners, Owners::new(owners)).all();
        self.detach_from_former_owners(uid, &previous_owners, owners, tasks);
        let previous: HashSet<Uid> = previous_owners.iter().map(|(owner, _)| *owner).collect();
        let is_new = |owner: &Owner| !previous.contains(&owner.uid);
        let mut has_unconfirmed_owner = false;
        for owner in owners.iter().filter(|owner| is_new(owner)) {
            has_unconfirmed_owner |= !self.attach(uid, owner);
        }
        if has_unconfirmed_owner {
            tasks.push(Task::Attempt(uid));
        }
        match deletion_mode {
            DeletionMode::Orphan if previous_mode != deletion_mode => tasks.push(Task::Orphan(uid)),
            DeletionMode::Foreground if previous_mode != deletion_mode => {
                tasks.extend(self.dependents(uid).into_iter().map(Task::Attempt));
                tasks.push(Task::Attempt(uid));
            }
            _ => {}
        }
        self.prune(uid);
    }

    /// Detaches a dependent from owners that it no longer names, and adds tasks for owners that waited for it.
    fn detach_from_former_owners(
        &mut self,
        uid: Uid,
        previous: &[(Uid, bool)],
        current: &[Owner],
        tasks: &mut Vec<Task>,
    ) {
        let current: HashMap<Uid, bool> =
            current.iter().rev().map(|reference| (reference.uid, reference.blocks)).collect();
        for (owner, blocked) in previous {
            let blocks_now = current.get(owner);
            if *blocked && blocks_now != Some(&true) && self.nodes.contains_key(owner) {
                tasks.push(Task::Attempt(*owner));
            }
            if blocks_now.is_none() {
                self.detach(uid, *owner);
            }
        }
    }

    /// Attaches a dependent to its owner. Returns whether the owner was observed as the reference describes it.
    fn attach(&mut self, uid: Uid, owner: &Owner) -> bool {
        let was_deleted = self.deleted.contains(&owner.uid);
        let node = self.nodes.entry(owner.uid).or_default();
        if was_deleted {
            node.deletion_mode = DeletionMode::Deleted;
        }
        node.dependents.get_or_insert_default().insert(uid);
        node.location.is_some() && owner.matches
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
        if self.nodes.remove(&uid).is_some_and(|node| node.deletion_mode == DeletionMode::Deleted) {
            self.deleted.insert(uid);
        }
    }

    /// An object was removed. Adds tasks for its dependents, and for owners that waited for it.
    pub fn remove(&mut self, uid: Uid, tasks: &mut Vec<Task>) {
        let Some(node) = self.nodes.get_mut(&uid) else { return self.deleted.insert(uid) };
        (node.location, node.deletion_mode) = (None, DeletionMode::Deleted);
        for (owner, _) in std::mem::take(&mut node.owners).all() {
            if self.deletion_mode(owner) == DeletionMode::Foreground {
                tasks.push(Task::Attempt(owner));
            }
            self.detach(uid, owner);
        }
        tasks.extend(self.dependents(uid).into_iter().map(Task::Attempt));
        self.prune(uid);
    }

    /// Whether an object of this UID was deleted. Its kind may no longer be served.
    pub fn is_deleted(&self, uid: Uid) -> bool {
        self.deletion_mode(uid) == DeletionMode::Deleted || self.deleted.contains(&uid)
    }

    /// A lookup has found an owner here.
    pub fn confirm(&mut self, uid: Uid, location: ObjectLocation) {
        // Its deletion may have been observed since the lookup.
        if let Some(node) =
            self.nodes.get_mut(&uid).filter(|node| node.deletion_mode != DeletionMode::Deleted)
        {
            node.location.get_or_insert(location);
        }
    }

    /// The place of an object, if it was observed.
    pub fn location(&self, uid: Uid) -> Option<&ObjectLocation> {
        self.nodes.get(&uid)?.location.as_ref()
    }

    /// How a pending deletion of it treats dependents.
    pub fn deletion_mode(&self, uid: Uid) -> DeletionMode {
        self.nodes.get(&uid).map(|node| node.deletion_mode).unwrap_or_default()
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
    pub fn observed_of_type(&self, type_number: u32) -> Vec<Uid> {
        let has_type =
            |node: &Node| node.location.as_ref().is_some_and(|location| location.type_number == type_number);
        self.nodes.iter().filter(|(_, node)| has_type(node)).map(|(uid, _)| *uid).collect()
    }

    /// The number of nodes.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
}

#[cfg(test)]
mod tests;
