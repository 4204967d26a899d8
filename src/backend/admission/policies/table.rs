//! All policies and bindings, compiled: one table for all workers, never older than the last write that was answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use pilothouse_admission::policies::policy::{Binding, Policy};
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::ADMISSION_REGISTRATION_GROUP;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Key;

use crate::auth::live_index::{LiveIndex, LiveIndexes, StoreIndex};
use crate::auth::stored_object::{FollowedType, ReadError, StoredObject};

/// Which policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Those that check objects.
    Validating,
    /// Those that change them.
    Mutating,
}

impl PolicyKind {
    /// What is followed: policies and what puts them to use.
    fn followed(self) -> [FollowedType; 2] {
        let (version, types) = match self {
            PolicyKind::Validating => (
                "v1",
                [
                    ("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
                    ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
                ],
            ),
            PolicyKind::Mutating => (
                "v1alpha1",
                [
                    ("mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
                    ("mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"),
                ],
            ),
        };
        let group = ADMISSION_REGISTRATION_GROUP;
        types.map(|(resource, kind)| FollowedType { group, resource, kind, version })
    }
}

/// The table and how it stays true.
pub type Policies = LiveIndex<Table>;

/// Reads and compiles all policies that there are of a sort.
pub async fn open(indexes: &LiveIndexes, sort: PolicyKind) -> std::result::Result<Arc<Policies>, StoreError> {
    indexes.open(sort.followed(), Table::new(sort)).await
}

/// A policy and what puts it to use.
pub struct Hook {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Its bindings, by name.
    pub bindings: Vec<Arc<Binding>>,
}

/// Policies and bindings, by name.
pub struct Table {
    sort: PolicyKind,
    /// The policies and bindings that cannot be read: any of them might refuse or change any request.
    unreadable: [BTreeSet<String>; 2],
    policies: BTreeMap<String, Arc<Policy>>,
    bindings: BTreeMap<String, Arc<Binding>>,
    /// The policies that have bindings; put together when somebody asks after a change.
    hooks: OnceLock<Arc<Vec<Hook>>>,
}

impl Table {
    fn new(sort: PolicyKind) -> Table {
        Table {
            sort,
            unreadable: Default::default(),
            policies: BTreeMap::new(),
            bindings: BTreeMap::new(),
            hooks: OnceLock::new(),
        }
    }

    /// Whether no request is refused or changed.
    pub fn is_idle(&self) -> bool {
        self.unreadable.iter().all(BTreeSet::is_empty) && self.hooks().is_empty()
    }

    /// The policies that count, each with its bindings. An error if some cannot be read.
    pub fn readable_hooks(&self) -> Result<Arc<Vec<Hook>>> {
        for (followed, names) in self.sort.followed().iter().zip(&self.unreadable) {
            if !names.is_empty() {
                let of = GroupResource { group: followed.group, resource: followed.resource };
                return Err(Status::unreadable_guard(of, names.iter().map(String::as_str)));
            }
        }
        Ok(self.hooks())
    }

    fn hooks(&self) -> Arc<Vec<Hook>> {
        let made = self.hooks.get_or_init(|| {
            let mut by_policy: BTreeMap<&str, Vec<Arc<Binding>>> = BTreeMap::new();
            for binding in self.bindings.values() {
                by_policy.entry(&binding.policy).or_default().push(binding.clone());
            }
            let hook = |(name, bindings): (&str, Vec<Arc<Binding>>)| {
                Some(Hook { policy: self.policies.get(name)?.clone(), bindings })
            };
            Arc::new(by_policy.into_iter().filter_map(hook).collect())
        });
        made.clone()
    }
}

/// A policy, and why a part of it cannot be compiled.
pub struct CompiledPolicy {
    policy: Policy,
    broken: Option<ReadError>,
}

impl From<&Value> for CompiledPolicy {
    fn from(value: &Value) -> CompiledPolicy {
        let mut policy = Policy::read(value);
        let broken = policy.first_broken().map(ReadError::Part);
        // What its expressions would say is unknown, whatever becomes of failures otherwise.
        policy.fails |= broken.is_some();
        CompiledPolicy { policy, broken }
    }
}

impl StoreIndex for Table {
    const IS_GUARD: bool = true;
    const PREPARES: bool = true;
    type Prepared = CompiledPolicy;

    fn put(&mut self, of: usize, object: &StoredObject<'_>) -> std::result::Result<(), ReadError> {
        let value = object.value()?;
        if of == 0 {
            return self.put_prepared(of, object, CompiledPolicy::from(&value));
        }
        self.remove(of, &object.object.key);
        self.bindings.insert(object.name().to_owned(), Arc::new(Binding::read(&value)));
        Ok(())
    }

    fn prepare(of: usize, object: &StoredObject<'_>) -> Option<CompiledPolicy> {
        let value = object.value().ok().filter(|_| of == 0)?;
        Some(CompiledPolicy::from(&value))
    }

    fn put_prepared(
        &mut self,
        of: usize,
        object: &StoredObject<'_>,
        compiled: CompiledPolicy,
    ) -> std::result::Result<(), ReadError> {
        self.remove(of, &object.object.key);
        self.policies.insert(object.name().to_owned(), Arc::new(compiled.policy));
        compiled.broken.map_or(Ok(()), Err)
    }

    fn remove(&mut self, of: usize, key: &Key) {
        self.hooks = OnceLock::new();
        if let Some(names) = self.unreadable.get_mut(of) {
            names.remove(key.name());
        }
        match of {
            0 => drop(self.policies.remove(key.name())),
            _ => drop(self.bindings.remove(key.name())),
        }
    }

    fn fail_closed(&mut self, of: usize, key: &Key) {
        self.remove(of, key);
        if let Some(names) = self.unreadable.get_mut(of) {
            names.insert(key.name().to_owned());
        }
    }

    fn clear(&mut self, of: usize) {
        self.hooks = OnceLock::new();
        if let Some(names) = self.unreadable.get_mut(of) {
            names.clear();
        }
        match of {
            0 => self.policies.clear(),
            _ => self.bindings.clear(),
        }
    }
}

#[cfg(test)]
mod tests {

    use pilothouse_apimachinery::schema::Registry;
    use pilothouse_types::object::{Object, Revision};

    use super::*;

    fn put(table: &mut Table, of: usize, json: String) -> std::result::Result<(), ReadError> {
        let mut object = Object::unreadable(Key::cluster("p"), Revision(1));
        object.bytes = json.into();
        let (registry, types) = (Registry::builtin().unwrap(), PolicyKind::Validating.followed());
        let stored = StoredObject::new(&types[of], &object, &registry)?;
        table.put(of, &stored)
    }

    fn policy(expression: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"p"}},"spec":{{"failurePolicy":"Ignore","validations":[{{"expression":"{expression}"}}]}}}}"#
        )
    }

    #[test]
    fn a_policy_with_an_unknown_function_fails_where_it_matches() {
        let mut table = Table::new(PolicyKind::Validating);
        put(&mut table, 1, r#"{"metadata":{"name":"p"},"spec":{"policyName":"p"}}"#.to_owned()).unwrap();
        put(&mut table, 0, policy("true")).unwrap();
        assert!(!table.readable_hooks().unwrap()[0].policy.fails);
        let error = put(&mut table, 0, policy("object.fromTheFuture()")).unwrap_err();
        assert!(matches!(&error, ReadError::Part(reason) if reason.contains("does not compile")), "{error}");
        assert!(table.readable_hooks().unwrap()[0].policy.fails, "whatever its failurePolicy");
    }

    #[test]
    fn a_policy_or_binding_that_cannot_be_read_refuses_everything_until_it_is_replaced() {
        for of in [0, 1] {
            let mut table = Table::new(PolicyKind::Validating);
            assert!(table.is_idle());
            table.fail_closed(of, &Key::cluster("p"));
            let refused = table.readable_hooks().err().unwrap();
            assert!(!table.is_idle() && refused.message.contains(r#""p" cannot be read"#), "{refused}");
            put(&mut table, of, r#"{"metadata":{"name":"p"},"spec":{}}"#.to_owned()).unwrap();
            assert!(table.is_idle() && table.readable_hooks().is_ok());
            table.fail_closed(of, &Key::cluster("p"));
            table.remove(of, &Key::cluster("p"));
            assert!(table.is_idle());
        }
    }
}
