//! garbage-collector-controller: deletes objects whose owners are gone, and completes deletions that wait for dependents.
//!
//! The index (`graph.rs`) tells which objects a change may concern; `attempt_to_delete.rs` reads the objects themselves before it
//! acts.

mod attempt_to_delete;
mod graph;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
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
use pilothouse_types::bounded::RecentSet;
use pilothouse_types::object::{Key, Object, TypeName};

use super::client::Client;
use super::events::Recorder;
use super::informer::{CatchUp, Informer};
use super::object_meta::{ObjectMeta, OwnerReference};
use super::queue::{Outcome, Queue};
use super::resource_index::ResourceIndex;
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// Events are not collected: they are many, own nothing, and expire.
const IGNORED_TYPE: &str = "events";

/// The garbage collector.
pub struct GarbageCollector {
    client: Client,
    recorder: Recorder,
    informer: Addr<Informer>,
    state: RefCell<State>,
    /// Tasks that the work so far has produced.
    follow_up: RefCell<Vec<Task>>,
}

#[derive(Default)]
struct State {
    graph: Graph,
    /// The types of the graph's nodes, by number.
    types: Vec<TypeName>,
    /// The number of each type, looked up for each event.
    numbers: HashMap<TypeName, u32>,
    /// Owners that a lookup did not find.
    absent: AbsentOwners,
    /// The objects that cannot be decrypted, by type and hidden key. Nobody knows who owns them.
    undecryptable: HashSet<(TypeName, Key)>,
}

/// The number of cached absent owners.
const MAX_ABSENT_OWNERS: usize = 512;

/// Absent owners by their reference, so that a thousand dependents look for one owner once. The UID alone is not enough: another
/// reference may name the same object correctly. Digests, because references have no maximum length.
#[derive(Default)]
struct AbsentOwners(RecentSet<[u8; 32], MAX_ABSENT_OWNERS>);

impl AbsentOwners {
    fn contains(&self, reference: &str) -> bool {
        self.0.contains(&sha256(reference.as_bytes()))
    }

    fn insert(&mut self, reference: &str) {
        self.0.insert(sha256(reference.as_bytes()));
    }
}

impl State {
    fn type_number(&mut self, type_name: &TypeName) -> u32 {
        if let Some(type_number) = self.numbers.get(type_name) {
            return *type_number;
        }
        let type_number = u32::try_from(self.types.len()).unwrap_or(u32::MAX);
        self.types.push(type_name.clone());
        self.numbers.insert(type_name.clone(), type_number);
        type_number
    }

    fn type_of(&self, location: &ObjectLocation) -> Option<&TypeName> {
        self.types.get(usize::try_from(location.type_number).ok()?)
    }

    /// Whether a reference in `namespace` agrees with the observed owner.
    fn matches(&self, resources: &ResourceIndex, reference: &OwnerReference<'_>, namespace: &str) -> bool {
        let Some(location) = self.graph.location(Uid::new(&reference.uid)) else { return true };
        let owner_namespace = location.key.namespace();
        let resource = resources.for_kind(&reference.api_version, &reference.kind);
        let store = resource.and_then(|resource| resource.stored()).map(|stored| &stored.store);
        (owner_namespace.is_empty() || owner_namespace == namespace)
            && location.key.name() == reference.name
            && self.type_of(location) == store
    }
}

impl GarbageCollector {
    /// A collector that acts as `client`.
    pub fn new(client: Client, informer: Addr<Informer>) -> GarbageCollector {
        let recorder = Recorder::new(client.clone(), "garbage-collector-controller");
        GarbageCollector {
            client,
            recorder,
            informer,
            state: RefCell::default(),
            follow_up: RefCell::default(),
        }
    }

    fn observe(
        &self,
        type_name: &TypeName,
        object: &Arc<Object>,
        resources: &ResourceIndex,
        tasks: &mut Vec<Task>,
    ) {
        let metadata = ObjectMeta::from_object(object);
        let mut state = self.state.borrow_mut();
        let location = ObjectLocation { type_number: state.type_number(type_name), key: object.key.clone() };
        let owner = |reference: &OwnerReference<'_>| Owner {
            uid: Uid::new(&reference.uid),
            blocks: reference.blocks(),
            matches: state.matches(resources, reference, object.key.namespace()),
        };
        let mut owners: Vec<Owner> = metadata.owner_references.iter().map(owner).collect();
        merge(&mut owners);
        let uid = Uid::new(&metadata.uid);
        state.graph.observe(uid, location, &owners, deletion_mode(&metadata), tasks);
    }

    /// Waits until the index knows everything that was acknowledged before. Types are reported one after the other: a dependent
    /// that was created before its owner's deletion may be reported after it.
    async fn catch_up(&self) -> Result<()> {
        match self.informer.send(CatchUp).await {
            Ok(true) => Ok(()),
            _ => Err(Status::internal("the informer did not catch up")),
        }
    }

    fn resource(&self, location: &ObjectLocation) -> Option<Arc<Resource>> {
        let type_name = self.state.borrow().type_of(location)?.clone();
        self.client.resource_index().for_store(&type_name).cloned()
    }
}

/// Whether an object has no owner and is not being deleted, decided without parsing it: such an object only matters when it is
/// removed. Most writes are of this kind, and most objects at the start.
fn is_plain(object: &Object) -> bool {
    let contains = |field: &[u8]| memchr::memmem::find(&object.bytes, field).is_some();
    !contains(b"\"ownerReferences\"") && !contains(b"\"deletionTimestamp\"")
}

/// Merges references to the same owner: an object may name it twice in different ways.
fn merge(owners: &mut Vec<Owner>) {
    owners.sort_by_key(|owner| owner.uid);
    owners.dedup_by(|later, first| {
        let is_same = later.uid == first.uid;
        if is_same {
            first.blocks |= later.blocks;
            first.matches &= later.matches;
        }
        is_same
    });
}

fn deletion_mode(metadata: &ObjectMeta<'_>) -> DeletionMode {
    match (
        metadata.is_terminating(),
        metadata.has_finalizer(ORPHAN_FINALIZER),
        metadata.has_finalizer(FOREGROUND_FINALIZER),
    ) {
        (false, ..) => DeletionMode::None,
        (true, true, _) => DeletionMode::Orphan,
        (true, false, true) => DeletionMode::Foreground,
        (true, false, false) => DeletionMode::Background,
    }
}

impl Controller for GarbageCollector {
    type Key = Task;

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::All
    }

    fn workers(&self) -> usize {
        DELETIONS_IN_FLIGHT
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Task>) {
        let plain = !change.is_deleted
            && is_plain(change.object)
            && change.previous.is_none_or(|previous| is_plain(previous));
        if plain || change.type_name.as_str() == IGNORED_TYPE {
            return;
        }
        let mut tasks = Vec::new();
        if change.object.key.is_hidden() {
            // It was removed: nothing else happens to it.
            let hidden = (change.type_name.clone(), change.object.key.clone());
            self.state.borrow_mut().undecryptable.remove(&hidden);
        } else if change.is_deleted {
            let uid = Uid::new(&ObjectMeta::from_object(change.object).uid);
            self.state.borrow_mut().graph.remove(uid, &mut tasks);
        } else {
            self.observe(change.type_name, change.object, &self.client.resource_index(), &mut tasks);
        }
        tasks.into_iter().for_each(|task| queue.add(task));
    }

    fn on_list(&self, type_name: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Task>) {
        if type_name.as_str() == IGNORED_TYPE {
            return;
        }
        let type_number = self.state.borrow_mut().type_number(type_name);
        let observed = self.state.borrow().graph.observed_of_type(type_number);
        let hidden = snapshot.hidden().map(|object| (type_name.clone(), object.key.clone()));
        self.state.borrow_mut().undecryptable.extend(hidden);
        let (resources, mut tasks) = (self.client.resource_index(), Vec::new());
        let mut listed = HashSet::new();
        let readable = snapshot.iter().filter(|object| object.is_readable());
        for object in readable.filter(|object| !(observed.is_empty() && is_plain(object))) {
            if !observed.is_empty() {
                listed.insert(Uid::new(&ObjectMeta::from_object(object).uid));
            }
            self.observe(type_name, object, &resources, &mut tasks);
        }
        for uid in observed.into_iter().filter(|uid| !listed.contains(uid)) {
            self.state.borrow_mut().graph.remove(uid, &mut tasks);
        }
        tasks.into_iter().for_each(|task| queue.add(task));
    }

    fn reconcile(self: Rc<Self>, task: Task) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move {
            match task {
                Task::Attempt(uid) => self.attempt(uid).await,
                Task::Orphan(uid) => self.orphan(uid).await,
            }
        }
        .boxed_local()
    }

    fn take_follow_ups(&self) -> Vec<Task> {
        self.follow_up.take()
    }
}
