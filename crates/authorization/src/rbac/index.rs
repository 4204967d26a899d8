//! An index of bindings by subject and namespace: a decision examines only the bindings of one user and their groups in one
//! namespace. A change of a role or binding updates only its own entries.
//!
//! It mirrors the stored objects. A role that a binding names need not exist: it is looked up for every decision.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::ControlFlow;
use std::sync::Arc;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::well_known::ACCOUNT_PREFIX;
use pilothouse_apimachinery::well_known::RBAC_GROUP;
use pilothouse_types::authorization::{Action, Grants, Target};
use pilothouse_types::identity::Identity;
use serde::Deserialize;

use super::role::Role;
use super::rule::{PreparedAction, Rule, null_is_default};
use crate::limits::MISSING_ROLES_REPORTED;

/// The number of role changes after which unused roles are swept.
const CHANGES_PER_SWEEP: usize = 10_000;

/// A subject of a binding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Subject {
    /// `User`, `Group` or `ServiceAccount`. Other kinds match nobody.
    pub kind: Box<str>,
    /// The name of the subject.
    pub name: Box<str>,
    /// The namespace of a service account; empty for that of the binding.
    pub namespace: Box<str>,
}

/// The role reference of a binding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RoleRef {
    /// `Role` or `ClusterRole`.
    pub kind: Box<str>,
    /// The name of the role.
    pub name: Box<str>,
}

/// A RoleBinding, or a ClusterRoleBinding if it has no namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// The namespace; empty for a ClusterRoleBinding.
    pub namespace: Box<str>,
    /// The name of the binding.
    pub name: Box<str>,
    /// The granted role.
    pub role: RoleRef,
    /// The subjects.
    pub subjects: Box<[Subject]>,
}

/// The key of a subject.
enum SubjectKey {
    User(String),
    Group(Box<str>),
}

impl Subject {
    /// The user or group of a subject in a binding of this namespace; `None` for nobody.
    fn key(&self, namespace: &str) -> Option<SubjectKey> {
        match &*self.kind {
            "User" => Some(SubjectKey::User(self.name.to_string())),
            "Group" => Some(SubjectKey::Group(self.name.clone())),
            "ServiceAccount" => {
                let namespace = if self.namespace.is_empty() { namespace } else { &self.namespace };
                let name = &self.name;
                (!namespace.is_empty())
                    .then(|| SubjectKey::User(format!("{ACCOUNT_PREFIX}{namespace}:{name}")))
            }
            _ => None,
        }
    }

    fn matches(&self, user: &Identity, namespace: &str) -> bool {
        match self.key(namespace) {
            Some(SubjectKey::User(name)) => user.name == name,
            Some(SubjectKey::Group(name)) => user.is_in(&name),
            None => false,
        }
    }
}

/// The relevant fields of a stored role or binding.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Stored {
    #[serde(deserialize_with = "null_is_default")]
    rules: Vec<Rule>,
    #[serde(deserialize_with = "null_is_default")]
    subjects: Box<[Subject]>,
    #[serde(deserialize_with = "null_is_default")]
    role_ref: RoleRef,
}

/// Parses a stored role; `None` if it is invalid.
pub fn read_role(text: &[u8]) -> Option<Role> {
    serde_json::from_slice::<Stored>(text).ok().map(|stored| Role::new(stored.rules))
}

/// Parses a stored binding; `None` if it is invalid.
pub fn read_binding(namespace: &str, name: &str, text: &[u8]) -> Option<Binding> {
    let stored = serde_json::from_slice::<Stored>(text).ok()?;
    Some(Binding {
        namespace: namespace.into(),
        name: name.into(),
        role: stored.role_ref,
        subjects: stored.subjects,
    })
}

/// The bindings of one user or group, sorted by name.
#[derive(Debug, Default)]
struct SubjectBindings {
    cluster_wide: Vec<Arc<Binding>>,
    namespaced: HashMap<Box<str>, Vec<Arc<Binding>>>,
}

impl SubjectBindings {
    fn add(&mut self, binding: &Arc<Binding>) {
        let list = match &*binding.namespace {
            "" => &mut self.cluster_wide,
            namespace => match self.namespaced.get_mut(namespace) {
                Some(list) => list,
                None => self.namespaced.entry(namespace.into()).or_default(),
            },
        };
        // A binding with a duplicate subject is added once.
        if let Err(index) = list.binary_search_by(|known| known.name.cmp(&binding.name)) {
            list.insert(index, Arc::clone(binding));
        }
    }

    fn remove(&mut self, binding: &Binding) {
        let drop_from = |list: &mut Vec<Arc<Binding>>| list.retain(|known| known.name != binding.name);
        if binding.namespace.is_empty() {
            drop_from(&mut self.cluster_wide);
        } else if let Some(list) = self.namespaced.get_mut(&binding.namespace) {
            drop_from(list);
            if list.is_empty() {
                self.namespaced.remove(&binding.namespace);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.cluster_wide.is_empty() && self.namespaced.is_empty()
    }

    fn in_namespace(&self, namespace: &str) -> &[Arc<Binding>] {
        match namespace {
            "" => &self.cluster_wide,
            namespace => self.namespaced.get(namespace).map(Vec::as_slice).unwrap_or_default(),
        }
    }
}

/// By namespace, then name; cluster-scoped ones have the empty namespace.
type ByNamespacedName<T> = HashMap<Box<str>, HashMap<Box<str>, Arc<T>>>;

fn put<T>(
    by_namespace: &mut ByNamespacedName<T>,
    namespace: &str,
    name: &str,
    item: Arc<T>,
) -> Option<Arc<T>> {
    match by_namespace.get_mut(namespace) {
        Some(names) => names.insert(name.into(), item),
        None => by_namespace.entry(namespace.into()).or_default().insert(name.into(), item),
    }
}

fn take<T>(by_namespace: &mut ByNamespacedName<T>, namespace: &str, name: &str) -> Option<Arc<T>> {
    let names = by_namespace.get_mut(namespace)?;
    let item = names.remove(name);
    if names.is_empty() {
        by_namespace.remove(namespace);
    }
    item
}

/// Deduplicates roles by their rules. Most namespaces of a large cluster have the same few roles.
#[derive(Debug, Default)]
struct RolePool(HashSet<RoleByRules>);

/// A role, hashed by its rules.
#[derive(Debug)]
struct RoleByRules(Arc<Role>);

impl Borrow<[Rule]> for RoleByRules {
    fn borrow(&self) -> &[Rule] {
        self.0.rules()
    }
}

impl PartialEq for RoleByRules {
    fn eq(&self, other: &RoleByRules) -> bool {
        self.0.rules() == other.0.rules()
    }
}

impl Eq for RoleByRules {}

impl Hash for RoleByRules {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.rules().hash(state);
    }
}

impl RolePool {
    /// The existing role with the same rules, or this one.
    fn share(&mut self, role: Role) -> Arc<Role> {
        if let Some(RoleByRules(known)) = self.0.get(role.rules()) {
            return Arc::clone(known);
        }
        let role = Arc::new(role);
        self.0.insert(RoleByRules(Arc::clone(&role)));
        role
    }

    /// Drops a role after its last use in the index.
    fn release(&mut self, role: Option<Arc<Role>>) {
        // The pool's reference and this one. If another reference exists for a moment, the next sweep drops the role.
        if let Some(role) = role.filter(|role| Arc::strong_count(role) <= 2) {
            self.0.remove(role.rules());
        }
    }

    /// Drops all unused roles.
    fn sweep(&mut self) {
        self.0.retain(|RoleByRules(role)| Arc::strong_count(role) > 1);
    }
}

/// The index. See the module documentation.
#[derive(Debug, Default)]
pub struct Index {
    roles: ByNamespacedName<Role>,
    /// The shared roles.
    pool: RolePool,
    /// Role changes since the last sweep.
    changes: usize,
    bindings: ByNamespacedName<Binding>,
    users: HashMap<Box<str>, SubjectBindings>,
    groups: HashMap<Box<str>, SubjectBindings>,
}

/// A role that a binding names and that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRole(pub RoleRef);

/// The errors of the reference's informer caches.
impl fmt::Display for MissingRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RoleRef { kind, name } = &self.0;
        match &**kind {
            "Role" | "ClusterRole" => {
                write!(f, "{}.{RBAC_GROUP} {} not found", kind.to_lowercase(), quoted(name))
            }
            _ => write!(f, "unsupported role reference kind: {}", quoted(kind)),
        }
    }
}

/// Records a missing role: each once, and only a limited number.
fn add_missing(missing: &mut Vec<MissingRole>, missing_role: MissingRole) {
    if missing.len() < MISSING_ROLES_REPORTED && !missing.contains(&missing_role) {
        missing.push(missing_role);
    }
}

/// The roles that were examined for one decision. Most users have few, which need no hash table.
#[derive(Default)]
struct ExaminedRoles {
    few: [usize; 8],
    count: usize,
    many: HashSet<usize>,
}

impl ExaminedRoles {
    fn is_new(&mut self, role: &Arc<Role>) -> bool {
        let address = Arc::as_ptr(role).addr();
        if self.few.contains(&address) {
            return false;
        }
        match self.few.get_mut(self.count) {
            Some(slot) => *slot = address,
            None => return self.many.insert(address),
        }
        self.count += 1;
        true
    }
}

/// The result of a decision.
#[derive(Debug)]
pub enum RuleLookup {
    /// A binding allows it.
    Allowed(GrantedBy),
    /// No binding allows it; these roles are missing.
    NoMatch(Vec<MissingRole>),
}

/// Why an action is allowed.
#[derive(Clone, Debug)]
pub struct GrantedBy {
    binding: Arc<Binding>,
    /// The first of its subjects that matches the user.
    subject: Subject,
}

impl fmt::Display for GrantedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RBAC: allowed by {} to {}", RenderedBinding(&self.binding), self.subject.kind)?;
        let Subject { kind, name, namespace } = &self.subject;
        if &**kind != "ServiceAccount" {
            return write!(f, " {}", quoted(name));
        }
        let namespace = if namespace.is_empty() { &self.binding.namespace } else { namespace };
        write!(f, " {}", quoted(&format!("{name}/{namespace}")))
    }
}

/// A binding and its role, as messages print them.
struct RenderedBinding<'a>(&'a Binding);

impl fmt::Display for RenderedBinding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Binding { namespace, name, role, .. } = self.0;
        match &**namespace {
            "" => write!(f, "ClusterRoleBinding {}", quoted(name))?,
            namespace => write!(f, "RoleBinding {}", quoted(&format!("{name}/{namespace}")))?,
        }
        write!(f, " of {} {}", role.kind, quoted(&role.name))
    }
}

impl Index {
    /// Adds a role, or replaces the one of its name.
    pub fn put_role(&mut self, namespace: &str, name: &str, role: Role) {
        let role = self.pool.share(role);
        let old = put(&mut self.roles, namespace, name, role);
        self.release_role(old);
    }

    fn release_role(&mut self, old: Option<Arc<Role>>) {
        self.pool.release(old);
        self.changes += 1;
        if self.changes >= CHANGES_PER_SWEEP {
            self.changes = 0;
            self.pool.sweep();
        }
    }

    /// Removes a role.
    pub fn remove_role(&mut self, namespace: &str, name: &str) {
        let old = take(&mut self.roles, namespace, name);
        self.release_role(old);
    }

    /// Adds a binding, or replaces the one of its name.
    pub fn put_binding(&mut self, binding: Binding) {
        self.remove_binding(&binding.namespace, &binding.name);
        let binding = Arc::new(binding);
        for subject in &binding.subjects {
            match subject.key(&binding.namespace) {
                Some(SubjectKey::User(name)) => self.users.entry(name.into()).or_default().add(&binding),
                Some(SubjectKey::Group(name)) => self.groups.entry(name).or_default().add(&binding),
                None => {}
            }
        }
        let (namespace, name) = (binding.namespace.clone(), binding.name.clone());
        put(&mut self.bindings, &namespace, &name, binding);
    }

    /// Removes a binding.
    pub fn remove_binding(&mut self, namespace: &str, name: &str) {
        let Some(binding) = take(&mut self.bindings, namespace, name) else { return };
        let remove_from = |bindings: &mut HashMap<Box<str>, SubjectBindings>, name: &str| {
            if let Some(subject_bindings) = bindings.get_mut(name) {
                subject_bindings.remove(&binding);
                if subject_bindings.is_empty() {
                    bindings.remove(name);
                }
            }
        };
        for subject in &binding.subjects {
            match subject.key(namespace) {
                Some(SubjectKey::User(name)) => remove_from(&mut self.users, &name),
                Some(SubjectKey::Group(name)) => remove_from(&mut self.groups, &name),
                None => {}
            }
        }
    }

    /// Removes all namespaced roles, or all cluster roles, before they are read again.
    pub fn clear_roles(&mut self, namespaced: bool) {
        self.roles.retain(|namespace, _| namespace.is_empty() == namespaced);
        self.pool.sweep();
    }

    /// Like [`Index::clear_roles`], for bindings.
    pub fn clear_bindings(&mut self, namespaced: bool) {
        let removed = self.bindings.iter().filter(|(namespace, _)| namespace.is_empty() != namespaced);
        let removed: Vec<Arc<Binding>> = removed.flat_map(|(_, names)| names.values().cloned()).collect();
        removed.iter().for_each(|binding| self.remove_binding(&binding.namespace, &binding.name));
    }

    /// The role that a binding of this namespace names.
    pub fn role(&self, namespace: &str, role: &RoleRef) -> Result<&Arc<Role>, MissingRole> {
        let role_namespace = match &*role.kind {
            "ClusterRole" => "",
            "Role" if !namespace.is_empty() => namespace,
            _ => return Err(MissingRole(role.clone())),
        };
        let existing = self.roles.get(role_namespace).and_then(|names| names.get(&role.name));
        existing.ok_or_else(|| MissingRole(role.clone()))
    }

    /// Visits every binding of a user in a namespace, cluster-wide ones first. One that the user has through two groups is
    /// visited twice.
    fn bindings_of<'a, B>(
        &'a self,
        user: &Identity,
        namespace: &str,
        mut visit: impl FnMut(&'a Arc<Binding>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let namespaces: &[&str] = if namespace.is_empty() { &[""] } else { &["", namespace] };
        for namespace in namespaces {
            let groups = user.groups.iter().filter_map(|group| self.groups.get(group.as_str()));
            for bindings in self.users.get(user.name.as_str()).into_iter().chain(groups) {
                bindings.in_namespace(namespace).iter().try_for_each(&mut visit)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Decides whether a user may do this.
    pub fn decide(&self, user: &Identity, action: &Action) -> RuleLookup {
        let prepared = PreparedAction::from(action);
        let mut missing = Vec::new();
        // A role that is bound a thousand times is evaluated once.
        let mut examined = ExaminedRoles::default();
        let allowed = self.bindings_of(user, namespace_of(action), |binding| {
            match self.role(&binding.namespace, &binding.role) {
                Ok(role) if !examined.is_new(role) => {}
                Ok(role) if role.allows(&prepared) => return ControlFlow::Break(binding),
                Ok(_) => {}
                Err(missing_role) => add_missing(&mut missing, missing_role),
            }
            ControlFlow::Continue(())
        });
        let ControlFlow::Break(binding) = allowed else { return RuleLookup::NoMatch(missing) };
        let mut subjects = binding.subjects.iter();
        let subject = subjects.find(|subject| subject.matches(user, &binding.namespace));
        let subject = subject.cloned().unwrap_or_default();
        RuleLookup::Allowed(GrantedBy { binding: Arc::clone(binding), subject })
    }

    /// The roles of a user in a namespace, and the missing ones.
    pub fn roles_of(&self, user: &Identity, namespace: &str) -> (Vec<Arc<Role>>, Vec<MissingRole>) {
        let (mut roles, mut missing) = (Vec::new(), Vec::new());
        let (mut seen, mut added) = (HashSet::new(), HashSet::new());
        let _all: ControlFlow<()> = self.bindings_of(user, namespace, |binding| {
            if seen.insert(Arc::as_ptr(binding)) {
                match self.role(&binding.namespace, &binding.role) {
                    // A role may be bound a thousand times.
                    Ok(role) if !added.insert(Arc::as_ptr(role)) => {}
                    Ok(role) => roles.push(Arc::clone(role)),
                    Err(missing_role) => add_missing(&mut missing, missing_role),
                }
            }
            ControlFlow::Continue(())
        });
        (roles, missing)
    }

    /// All rights of a user in a namespace.
    pub fn grants(&self, user: &Identity, namespace: &str) -> Grants {
        let (roles, missing) = self.roles_of(user, namespace);
        Grants {
            grants: roles.iter().flat_map(|role| role.rules()).map(Rule::to_grant).collect(),
            incomplete: false,
            errors: missing.iter().map(MissingRole::to_string).collect(),
        }
    }

    /// The binding that lacks only this user or, if there is none, the smallest role that would allow this.
    pub fn nearest(&self, action: &Action) -> Option<String> {
        let (prepared, namespace) = (PreparedAction::from(action), namespace_of(action));
        let namespaces = if namespace.is_empty() { vec![""] } else { vec![namespace, ""] };
        let bindings =
            namespaces.iter().filter_map(|namespace| self.bindings.get(*namespace)).flat_map(HashMap::values);
        let candidates = bindings.filter_map(|binding| {
            let role =
                self.role(&binding.namespace, &binding.role).ok().filter(|role| role.allows(&prepared))?;
            Some((role.rules().len(), binding))
        });
        let nearest = candidates.min_by(|(a, left), (b, right)| (a, &left.name).cmp(&(b, &right.name)));
        if let Some((_, binding)) = nearest {
            return Some(format!(
                "{} would allow it, but does not name this subject",
                RenderedBinding(binding)
            ));
        }
        let roles_in = |namespace: &&str| {
            let kind = if namespace.is_empty() { "ClusterRole" } else { "Role" };
            let names = self.roles.get(*namespace).into_iter().flatten();
            names.map(move |(name, role)| (role.rules().len(), kind, name, role)).collect::<Vec<_>>()
        };
        let allowing_roles = namespaces.iter().flat_map(roles_in).filter(|(.., role)| role.allows(&prepared));
        let (_, kind, name, _) =
            allowing_roles.min_by_key(|(rules, kind, name, _)| (*rules, *kind, *name))?;
        Some(format!("{kind} {} would allow it, but no binding gives it here", quoted(name)))
    }
}

/// The namespace of an action; empty for the whole cluster.
fn namespace_of(action: &Action) -> &str {
    match &action.target {
        Target::Resource { namespace, .. } => namespace,
        Target::Path(_) => "",
    }
}

#[cfg(test)]
mod tests;
