//! Roles and bindings as a policy: one index for all workers, never older than the last write that was answered.
//!
//! A store appends to its window before it answers. So whoever asks compares four numbers first: if a window has moved, the
//! asker reads what is new into the index, which costs microseconds, and goes on. If more has happened than the window
//! remembers, the objects are read anew, and only those who ask meanwhile wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use actix::Addr;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::authorizer::{Action, Decision, Grants, Policy, Selection, Verdict};
use pilothouse_actors::directory::{Directory, Find};
use pilothouse_actors::error::StoreError;
use pilothouse_actors::identity::Identity;
use pilothouse_actors::object::{Object, Revision, TypeName};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::{OpenWatch, Position};
use pilothouse_actors::window::{Change, Read, Window};

use crate::api::rbac::index::{Found, Index, read_binding, read_role};
use crate::api::rbac::{GROUP, RESOURCES};

/// Events that are read from a window at a time.
const EVENTS_PER_READ: usize = 256;
/// How often the objects of a type are read anew before the asker is told that nobody knows.
const ATTEMPTS: usize = 3;

/// One of the four types.
struct Source {
    type_name: TypeName,
    /// Roles are looked up, bindings are found by subject.
    is_role: bool,
    namespaced: bool,
    window: Arc<Window>,
    /// How far the index has come.
    at: AtomicU64,
}

/// The index and how it stays true. See the module text.
pub struct Roles {
    directory: Addr<Directory>,
    sources: Vec<Source>,
    /// A std lock: it is held for one look or one change, never across a wait.
    index: RwLock<Index>,
}

impl Source {
    fn is_behind(&self) -> bool {
        self.window.latest().0 != self.at.load(Ordering::Acquire)
    }

    fn put(&self, index: &mut Index, object: &Object) {
        let (namespace, name) = (object.key.namespace(), object.key.name());
        let known = if self.is_role {
            read_role(&object.bytes).map(|role| index.put_role(namespace, name, role))
        } else {
            read_binding(namespace, name, &object.bytes).map(|binding| index.put_binding(binding))
        };
        if known.is_none() {
            // Whatever it meant to allow is not allowed: the safe side.
            tracing::error!(object = ?object.key, of = %self.type_name, "cannot be read, so it allows nothing");
            self.remove(index, object);
        }
    }

    fn remove(&self, index: &mut Index, object: &Object) {
        let (namespace, name) = (object.key.namespace(), object.key.name());
        if self.is_role {
            index.remove_role(namespace, name);
        } else {
            index.remove_binding(namespace, name);
        }
    }

    /// Reads what is new. Answers whether the window still had all of it.
    fn catch_up(&self, index: &mut Index) -> bool {
        loop {
            let (at, head) = (Revision(self.at.load(Ordering::Acquire)), self.window.latest());
            let events = match self.window.read(at, EVENTS_PER_READ) {
                Read::Events(events) => events,
                Read::Expired(_) => return false,
            };
            let Some(last) = events.last().map(|event| event.revision()) else {
                self.at.store(at.max(head).0, Ordering::Release);
                return true;
            };
            for event in &events {
                match event.change {
                    Change::Removed => self.remove(index, &event.object),
                    Change::Created | Change::Replaced => self.put(index, &event.object),
                }
            }
            self.at.store(last.0, Ordering::Release);
        }
    }

    /// Puts everything that there is in the place of what the index had.
    fn read_anew(&self, index: &mut Index, position: &Position) {
        if self.is_role {
            index.clear_roles(self.namespaced);
        } else {
            index.clear_bindings(self.namespaced);
        }
        position.snapshot.iter().for_each(|object| self.put(index, object));
        self.at.store(position.snapshot.revision.0, Ordering::Release);
    }
}

async fn open(directory: &Addr<Directory>, type_name: &TypeName) -> Result<Position, StoreError> {
    let found = directory.send(Find { type_name: type_name.clone() }).await;
    let store = found.map_err(|_| StoreError::Unavailable)??;
    store.send(OpenWatch { permit: Permit::none() }).await.map_err(|_| StoreError::Unavailable)?
}

impl Roles {
    /// Reads all roles and bindings.
    pub async fn open(directory: Addr<Directory>) -> Result<Roles, StoreError> {
        let mut index = Index::default();
        let mut sources = Vec::new();
        for resource in RESOURCES {
            let type_name = TypeName::new(&format!("{resource}.{GROUP}"));
            let position = open(&directory, &type_name).await?;
            let source = Source {
                type_name,
                is_role: resource.ends_with("roles"),
                namespaced: !resource.starts_with("cluster"),
                window: position.window.clone(),
                at: AtomicU64::new(0),
            };
            source.read_anew(&mut index, &position);
            sources.push(source);
        }
        Ok(Roles { directory, sources, index: RwLock::new(index) })
    }

    /// What the index says now. An error means that nobody knows.
    pub fn look<T: 'static>(
        self: &Arc<Self>,
        look: impl Fn(&Index) -> T + 'static,
    ) -> Answer<Result<T, StoreError>> {
        if self.is_fresh() {
            return Answer::Now(Ok(look(&self.read())));
        }
        let roles = Arc::clone(self);
        Answer::later(async move {
            roles.read_anew().await?;
            let index = roles.read();
            Ok(look(&index))
        })
    }

    /// Brings the index up to date. Answers whether that was possible.
    fn is_fresh(&self) -> bool {
        if !self.sources.iter().any(Source::is_behind) {
            return true;
        }
        let mut index = self.write();
        let behind = self.sources.iter().filter(|source| source.is_behind());
        // All of them, also behind one that has lost its way.
        behind.fold(true, |fresh, source| source.catch_up(&mut index) && fresh)
    }

    async fn read_anew(&self) -> Result<(), StoreError> {
        for _ in 0..ATTEMPTS {
            for source in self.sources.iter().filter(|source| source.is_behind()) {
                let position = open(&self.directory, &source.type_name).await?;
                let mut index = self.write();
                // Somebody else may have been quicker and come further.
                if position.snapshot.revision.0 > source.at.load(Ordering::Acquire) {
                    source.read_anew(&mut index, &position);
                }
            }
            if self.is_fresh() {
                return Ok(());
            }
        }
        Err(StoreError::Unavailable)
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Allows what roles and bindings allow.
pub struct Rbac(pub Arc<Roles>);

fn verdict(found: Found) -> Verdict {
    match found {
        Found::Allowed(allowance) => {
            Verdict { decision: Decision::Allowed, grounds: Some(Arc::new(allowance)), error: None }
        }
        Found::Nothing(missing) => {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            let reason = match missing.as_slice() {
                [] => String::new(),
                [one] => format!("RBAC: {one}"),
                several => format!("RBAC: [{}]", several.join(", ")),
            };
            Decision::NoOpinion(reason).into()
        }
    }
}

fn unknown(error: StoreError) -> Verdict {
    let error = Some(format!("roles and bindings cannot be read: {error}"));
    Verdict { decision: Decision::NoOpinion(String::new()), grounds: None, error }
}

impl Policy for Rbac {
    fn decide(&self, identity: &Identity, action: &Action) -> Answer<Decision> {
        self.judge(identity, action, &Selection::default()).map(|verdict| verdict.decision)
    }

    fn judge(&self, identity: &Identity, action: &Action, _: &Selection) -> Answer<Verdict> {
        // Nearly always: without a copy of the question.
        if self.0.is_fresh() {
            return Answer::Now(verdict(self.0.read().decide(identity, action)));
        }
        let (identity, action) = (identity.clone(), action.clone());
        let found = self.0.look(move |index| index.decide(&identity, &action));
        found.map(|found| found.map_or_else(unknown, verdict))
    }

    fn grants(&self, identity: &Identity, namespace: &str) -> Answer<Grants> {
        let (identity, namespace) = (identity.clone(), namespace.to_owned());
        let found = self.0.look(move |index| index.grants(&identity, &namespace));
        found.map(|found| {
            found.unwrap_or_else(|error| Grants {
                incomplete: true,
                errors: unknown(error).error.into_iter().collect(),
                ..Grants::default()
            })
        })
    }

    fn hint(&self, _: &Identity, action: &Action) -> Option<String> {
        self.0.read().nearest(action)
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_actors::authorizer::Target;
    use pilothouse_actors::directory::{self, Options, Stores};
    use pilothouse_actors::engine::memory::Memory;
    use pilothouse_actors::object::{Draft, Key, Pairs};
    use pilothouse_actors::store::{Create, Remove, Store};

    use super::*;

    fn draft(key: Key, fields: &str) -> Draft {
        let head = r#"{"metadata":{"resourceVersion":""#;
        let bytes = format!(r#"{head}"}},{fields}}}"#).into();
        let (labels, fields) = (Pairs::default(), Pairs::default());
        Draft { key, bytes, revision_at: head.len(), item_at: 1, labels, fields }
    }

    async fn store(stores: &Stores, resource: &str) -> Addr<Store> {
        let type_name = TypeName::new(&format!("{resource}.{GROUP}"));
        stores.directory.send(Find { type_name }).await.unwrap().unwrap()
    }

    async fn create(stores: &Stores, resource: &str, key: Key, fields: &str) {
        let create = Create { draft: draft(key, fields), permit: Permit::none() };
        store(stores, resource).await.send(create).await.unwrap().unwrap();
    }

    const RULES: &str = r#""rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]"#;
    const GIVEN: &str =
        r#""roleRef":{"kind":"ClusterRole","name":"r"},"subjects":[{"kind":"User","name":"u"}]"#;

    async fn allowed(policy: &Rbac, namespace: &str) -> bool {
        let target = Target::Resource {
            group: String::new(),
            version: "v1".into(),
            resource: "pods".into(),
            subresource: String::new(),
            namespace: namespace.into(),
            name: "a".into(),
        };
        let who = Identity { name: "u".into(), ..Identity::default() };
        let decision = match policy.decide(&who, &Action { verb: "get".into(), target }) {
            Answer::Now(decision) => decision,
            Answer::Later(decision) => decision.await,
        };
        decision == Decision::Allowed
    }

    #[actix::test]
    async fn a_write_that_was_answered_counts() {
        let stores = directory::start(Box::new(Memory::new()), Options::default()).unwrap();
        create(&stores, "clusterroles", Key::cluster("r"), RULES).await;
        let policy = Rbac(Arc::new(Roles::open(stores.directory.clone()).await.unwrap()));
        assert!(!allowed(&policy, "n").await);
        create(&stores, "rolebindings", Key::namespaced("n", "b"), GIVEN).await;
        assert!(allowed(&policy, "n").await && !allowed(&policy, "m").await);
        create(&stores, "clusterrolebindings", Key::cluster("b"), GIVEN).await;
        assert!(allowed(&policy, "m").await);
        let gone = Remove { key: Key::cluster("r"), expected: Revision(2), permit: Permit::none() };
        store(&stores, "clusterroles").await.send(gone).await.unwrap().unwrap();
        assert!(!allowed(&policy, "m").await);
    }

    #[actix::test]
    async fn what_the_window_has_forgotten_is_read_anew() {
        let options = Options { window_bytes: 1, ..Options::default() };
        let stores = directory::start(Box::new(Memory::new()), options).unwrap();
        let policy = Rbac(Arc::new(Roles::open(stores.directory.clone()).await.unwrap()));
        create(&stores, "clusterroles", Key::cluster("r"), RULES).await;
        for name in ["a", "b", "c"] {
            create(&stores, "rolebindings", Key::namespaced("n", name), GIVEN).await;
        }
        assert!(allowed(&policy, "n").await);
        assert!(policy.0.is_fresh(), "it has caught up for everybody");
    }
}
