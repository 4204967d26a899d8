//! garbage-collector-controller: deletes objects whose owners are gone, and completes deletions that wait for dependents.
//!
//! The index (`graph.rs`) tells which objects a change may concern; `attempt_to_delete.rs` reads the objects themselves before it
//! acts.

mod attempt_to_delete;
mod graph;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use actix::Addr;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use openssl::sha::sha256;
use pilothouse_actors::snapshot::Snapshot;

use crate::limits::DELETIONS_IN_FLIGHT;

use graph::{DeletionMode, Graph, ObjectLocation, Owner, Task, Uid};
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::meta::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::object::{Object, TypeName};

use super::client::Client;
use super::events::Recorder;
use super::informer::{CatchUp, Informer};
use super::object_meta::{ObjectMeta, OwnerReference};
use super::queue::{Outcome, Queue};
use super::resource_index::ResourceIndex;
use super::runner::{Controller, Follows, ObjectChange};

/// Events are not collected: they are many, own nothing, and expire.
const IGNORED: &str = "events";

/// The garbage collector.
pub struct GarbageCollector {
    client: Client,
    recorder: Recorder,
    informer: Addr<Informer>,
    state: RefCell<State>,
    /// Further tasks that the work so far has found.
    more: RefCell<Vec<Task>>,
}

#[derive(Default)]
struct State {
    graph: Graph,
    /// The types of the graph's nodes, by number.
    types: Vec<TypeName>,
    /// Their numbers: each event asks for one.
    numbers: HashMap<TypeName, u32>,
    /// Owners that a lookup did not find.
    absent: Absent,
}

/// The number of cached absent owners.
const ABSENT_REMEMBERED: usize = 512;

/// Absent owners by their reference, so that a thousand dependents look for one owner once. The UID alone is not enough: another
/// reference may name the same object correctly. Digests, because references have no maximum length.
#[derive(Default)]
struct Absent {
    all: HashSet<[u8; 32]>,
    in_order: VecDeque<[u8; 32]>,
}

impl Absent {
    fn contains(&self, described: &str) -> bool {
        self.all.contains(&sha256(described.as_bytes()))
    }

    fn insert(&mut self, described: &str) {
        let digest = sha256(described.as_bytes());
        if self.all.insert(digest) {
            self.in_order.push_back(digest);
        }
        if self.in_order.len() > ABSENT_REMEMBERED
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}

impl State {
    fn number(&mut self, of: &TypeName) -> u32 {
        if let Some(known) = self.numbers.get(of) {
            return *known;
        }
        let number = u32::try_from(self.types.len()).unwrap_or(u32::MAX);
        self.types.push(of.clone());
        self.numbers.insert(of.clone(), number);
        number
    }

    fn type_of(&self, place: &ObjectLocation) -> Option<&TypeName> {
        self.types.get(usize::try_from(place.of).ok()?)
    }

    /// Whether a reference in `namespace` agrees with the observed owner.
    fn fits(&self, known: &ResourceIndex, reference: &OwnerReference<'_>, namespace: &str) -> bool {
        let Some(place) = self.graph.place(Uid::new(&reference.uid)) else { return true };
        let owner = place.key.namespace();
        let kind = known.of_kind(&reference.api_version, &reference.kind);
        let store = kind.and_then(|resource| resource.stored.as_ref()).map(|stored| &stored.store);
        (owner.is_empty() || owner == namespace)
            && place.key.name() == reference.name
            && self.type_of(place) == store
    }
}

impl GarbageCollector {
    /// A collector that acts as `client`.
    pub fn new(client: Client, informer: Addr<Informer>) -> GarbageCollector {
        let recorder = Recorder::new(client.clone(), "garbage-collector-controller");
        GarbageCollector { client, recorder, informer, state: RefCell::default(), more: RefCell::default() }
    }

    fn observe(&self, of: &TypeName, object: &Arc<Object>, known: &ResourceIndex, tasks: &mut Vec<Task>) {
        let head = ObjectMeta::of(object);
        let mut state = self.state.borrow_mut();
        let place = ObjectLocation { of: state.number(of), key: object.key.clone() };
        let owner = |reference: &OwnerReference<'_>| Owner {
            uid: Uid::new(&reference.uid),
            blocks: reference.blocks(),
            fits: state.fits(known, reference, object.key.namespace()),
        };
        let mut owners: Vec<Owner> = head.owner_references.iter().map(owner).collect();
        merge(&mut owners);
        let uid = Uid::new(&head.uid);
        state.graph.observe(uid, place, &owners, going(&head), tasks);
    }

    /// Waits until the index knows everything that was acknowledged before. Types are reported one after the other: a dependent
    /// that was created before its owner's deletion may be reported after it.
    async fn catch_up(&self) -> Result<()> {
        match self.informer.send(CatchUp).await {
            Ok(true) => Ok(()),
            _ => Err(Status::internal("what happened until now cannot be heard")),
        }
    }

    fn resource(&self, place: &ObjectLocation) -> Option<Arc<Resource>> {
        let of = self.state.borrow().type_of(place)?.clone();
        self.client.known().of_store(&of).cloned()
    }
}

/// Whether an object has no owner and is not being deleted, seen without parsing it: then it concerns nobody until it is removed.
/// Most writes are of this kind, and most objects at the start.
fn is_plain(object: &Object) -> bool {
    let names = |field: &[u8]| memchr::memmem::find(&object.bytes, field).is_some();
    !names(b"\"ownerReferences\"") && !names(b"\"deletionTimestamp\"")
}

/// Merges references to the same owner: an object may name it twice in different ways.
fn merge(owners: &mut Vec<Owner>) {
    owners.sort_by_key(|owner| owner.uid);
    owners.dedup_by(|later, first| {
        let same = later.uid == first.uid;
        if same {
            first.blocks |= later.blocks;
            first.fits &= later.fits;
        }
        same
    });
}

fn going(head: &ObjectMeta<'_>) -> DeletionMode {
    match (
        head.is_terminating(),
        head.has_finalizer(ORPHAN_FINALIZER),
        head.has_finalizer(FOREGROUND_FINALIZER),
    ) {
        (false, ..) => DeletionMode::No,
        (true, true, _) => DeletionMode::Orphaning,
        (true, false, true) => DeletionMode::Foreground,
        (true, false, false) => DeletionMode::Plainly,
    }
}

impl Controller for GarbageCollector {
    type Key = Task;

    fn follows(&self) -> Follows {
        Follows::Every
    }

    fn workers(&self) -> usize {
        DELETIONS_IN_FLIGHT
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Task>) {
        let plain = !change.gone
            && is_plain(change.object)
            && change.previous.is_none_or(|previous| is_plain(previous));
        if plain || change.of.as_str() == IGNORED {
            return;
        }
        let mut tasks = Vec::new();
        if change.gone {
            let uid = Uid::new(&ObjectMeta::of(change.object).uid);
            self.state.borrow_mut().graph.remove(uid, &mut tasks);
        } else {
            self.observe(change.of, change.object, &self.client.known(), &mut tasks);
        }
        tasks.into_iter().for_each(|task| queue.add(task));
    }

    fn on_list(&self, of: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Task>) {
        if of.as_str() == IGNORED {
            return;
        }
        let number = self.state.borrow_mut().number(of);
        let seen = self.state.borrow().graph.seen_of(number);
        let (known, mut tasks) = (self.client.known(), Vec::new());
        let mut there = HashSet::new();
        let readable = snapshot.iter().filter(|object| object.is_readable());
        for object in readable.filter(|object| !(seen.is_empty() && is_plain(object))) {
            if !seen.is_empty() {
                there.insert(Uid::new(&ObjectMeta::of(object).uid));
            }
            self.observe(of, object, &known, &mut tasks);
        }
        for uid in seen.into_iter().filter(|uid| !there.contains(uid)) {
            self.state.borrow_mut().graph.remove(uid, &mut tasks);
        }
        tasks.into_iter().for_each(|task| queue.add(task));
    }

    fn work(self: Rc<Self>, task: Task) -> LocalBoxFuture<'static, Outcome> {
        async move {
            let done = match task {
                Task::Attempt(uid) => self.attempt(uid).await,
                Task::Orphan(uid) => self.orphan(uid).await,
            };
            done.unwrap_or_else(|status| Outcome::Again(status.to_string()))
        }
        .boxed_local()
    }

    fn more(&self) -> Vec<Task> {
        self.more.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_absent_owners_are_remembered() {
        let mut absent = Absent::default();
        for number in 0..=ABSENT_REMEMBERED {
            absent.insert(&number.to_string());
            absent.insert(&number.to_string());
        }
        assert_eq!((absent.all.len(), absent.in_order.len()), (ABSENT_REMEMBERED, ABSENT_REMEMBERED));
        assert!(!absent.contains("0") && absent.contains("1") && absent.contains("512"));
    }
}
