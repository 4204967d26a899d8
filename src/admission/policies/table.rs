//! All policies and bindings, compiled. One table for all workers, never older than the last acknowledged write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use pilothouse_admission::policies::policy::{Binding, Policy};
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::ADMISSION_REGISTRATION_GROUP;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Key;

use crate::live_index::stored_object::{ReadError, StoredObject};
use crate::live_index::{LiveIndex, LiveIndexes, StoreIndex};

/// A kind of policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// ValidatingAdmissionPolicy.
    Validating,
    /// MutatingAdmissionPolicy.
    Mutating,
}

impl PolicyKind {
    /// The followed types: policies, and their bindings.
    fn stored_types(self) -> [StoredType; 2] {
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
        types.map(|(resource, kind)| StoredType { group, resource, kind, version })
    }
}

/// The table, kept up to date.
pub type Policies = LiveIndex<Table>;

/// Reads and compiles all policies of a kind.
pub async fn open(indexes: &LiveIndexes, kind: PolicyKind) -> std::result::Result<Arc<Policies>, StoreError> {
    indexes.open(kind.stored_types(), Table::new(kind)).await
}

/// A policy with its bindings.
pub struct Hook {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Its bindings, by name.
    pub bindings: Vec<Arc<Binding>>,
}

/// Policies and bindings, by name.
pub struct Table {
    kind: PolicyKind,
    /// The policies and bindings that cannot be read: any of them might refuse or change any request.
    unreadable: [BTreeSet<String>; 2],
    policies: BTreeMap<String, Arc<Policy>>,
    bindings: BTreeMap<String, Arc<Binding>>,
    /// The policies that have bindings; built at the first use after a change.
    hooks: OnceLock<Arc<Vec<Hook>>>,
}

impl Table {
    fn new(kind: PolicyKind) -> Table {
        Table {
            kind,
            unreadable: Default::default(),
            policies: BTreeMap::new(),
            bindings: BTreeMap::new(),
            hooks: OnceLock::new(),
        }
    }

    /// Whether no policy can refuse or change a request.
    pub fn is_idle(&self) -> bool {
        self.unreadable.iter().all(BTreeSet::is_empty) && self.hooks().is_empty()
    }

    /// The policies that have bindings. An error if some cannot be read.
    pub fn readable_hooks(&self) -> Result<Arc<Vec<Hook>>> {
        for (followed, names) in self.kind.stored_types().iter().zip(&self.unreadable) {
            if !names.is_empty() {
                let resource = GroupResource { group: followed.group, resource: followed.resource };
                return Err(Status::unreadable_guard(resource, names.iter().map(String::as_str)));
            }
        }
        Ok(self.hooks())
    }

    fn hooks(&self) -> Arc<Vec<Hook>> {
        let hooks = self.hooks.get_or_init(|| {
            let mut by_policy: BTreeMap<&str, Vec<Arc<Binding>>> = BTreeMap::new();
            for binding in self.bindings.values() {
                by_policy.entry(&binding.policy).or_default().push(binding.clone());
            }
            let hook = |(name, bindings): (&str, Vec<Arc<Binding>>)| {
                Some(Hook { policy: self.policies.get(name)?.clone(), bindings })
            };
            Arc::new(by_policy.into_iter().filter_map(hook).collect())
        });
        hooks.clone()
    }
}

/// A policy, and the error of a part that cannot be compiled.
pub struct CompiledPolicy {
    policy: Policy,
    error: Option<ReadError>,
}

impl From<&Value> for CompiledPolicy {
    fn from(value: &Value) -> CompiledPolicy {
        let mut policy = Policy::read(value);
        let error = policy.first_compile_error().map(ReadError::Part);
        // The result of its expressions is unknown, so it must refuse whatever its failurePolicy.
        policy.fails_on_error |= error.is_some();
        CompiledPolicy { policy, error }
    }
}

impl StoreIndex for Table {
    const IS_GUARD: bool = true;
    const PREPARES: bool = true;
    type Prepared = CompiledPolicy;

    fn put(&mut self, type_index: usize, object: &StoredObject<'_>) -> std::result::Result<(), ReadError> {
        let value = object.value()?;
        if type_index == 0 {
            return self.put_prepared(type_index, object, CompiledPolicy::from(&value));
        }
        self.remove(type_index, &object.object.key);
        self.bindings.insert(object.name().to_owned(), Arc::new(Binding::read(&value)));
        Ok(())
    }

    fn prepare(type_index: usize, object: &StoredObject<'_>) -> Option<CompiledPolicy> {
        let value = object.value().ok().filter(|_| type_index == 0)?;
        Some(CompiledPolicy::from(&value))
    }

    fn put_prepared(
        &mut self,
        type_index: usize,
        object: &StoredObject<'_>,
        compiled: CompiledPolicy,
    ) -> std::result::Result<(), ReadError> {
        self.remove(type_index, &object.object.key);
        self.policies.insert(object.name().to_owned(), Arc::new(compiled.policy));
        compiled.error.map_or(Ok(()), Err)
    }

    fn remove(&mut self, type_index: usize, key: &Key) {
        self.hooks = OnceLock::new();
        if let Some(names) = self.unreadable.get_mut(type_index) {
            names.remove(key.name());
        }
        match type_index {
            0 => drop(self.policies.remove(key.name())),
            _ => drop(self.bindings.remove(key.name())),
        }
    }

    fn fail_closed(&mut self, type_index: usize, key: &Key) {
        self.remove(type_index, key);
        if let Some(names) = self.unreadable.get_mut(type_index) {
            names.insert(key.name().to_owned());
        }
    }

    fn clear(&mut self, type_index: usize) {
        self.hooks = OnceLock::new();
        if let Some(names) = self.unreadable.get_mut(type_index) {
            names.clear();
        }
        match type_index {
            0 => self.policies.clear(),
            _ => self.bindings.clear(),
        }
    }
}

#[cfg(test)]
mod tests {

    use bytes::Bytes;
    use pilothouse_apimachinery::schema::Registry;
    use pilothouse_types::object::{Draft, Object, Pairs, Revision};

    use super::*;

    fn put(table: &mut Table, type_index: usize, json: String) -> std::result::Result<(), ReadError> {
        let (bytes, labels, fields) = (Bytes::from_static(b"1"), Pairs::default(), Pairs::default());
        let key = Key::cluster("p");
        let draft = Draft { key, bytes, revision_offset: 0, item_offset: 0, labels, fields };
        let mut object = Object::restored(draft, Revision(1)).unwrap();
        object.bytes = json.into();
        let (registry, types) = (Registry::builtin().unwrap(), PolicyKind::Validating.stored_types());
        let stored = StoredObject::new(&types[type_index], &object, &registry)?;
        table.put(type_index, &stored)
    }

    fn policy(expression: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"p"}},"spec":{{"failurePolicy":"Ignore","validations":[{{"expression":"{expression}"}}]}}}}"#
        )
    }

    #[test]
    fn policy_that_does_not_compile_ignores_failure_policy() {
        let mut table = Table::new(PolicyKind::Validating);
        put(&mut table, 1, r#"{"metadata":{"name":"p"},"spec":{"policyName":"p"}}"#.to_owned()).unwrap();
        put(&mut table, 0, policy("true")).unwrap();
        assert!(!table.readable_hooks().unwrap()[0].policy.fails_on_error);
        let error = put(&mut table, 0, policy("object.fromTheFuture()")).unwrap_err();
        assert!(matches!(&error, ReadError::Part(reason) if reason.contains("does not compile")), "{error}");
        assert!(table.readable_hooks().unwrap()[0].policy.fails_on_error, "whatever its failurePolicy");
    }

    #[test]
    fn unreadable_policy_or_binding_refuses_until_replaced() {
        for type_index in [0, 1] {
            let mut table = Table::new(PolicyKind::Validating);
            assert!(table.is_idle());
            table.fail_closed(type_index, &Key::cluster("p"));
            let refused = table.readable_hooks().err().unwrap();
            assert!(!table.is_idle() && refused.message.contains(r#""p" cannot be read"#), "{refused}");
            put(&mut table, type_index, r#"{"metadata":{"name":"p"},"spec":{}}"#.to_owned()).unwrap();
            assert!(table.is_idle() && table.readable_hooks().is_ok());
            table.fail_closed(type_index, &Key::cluster("p"));
            table.remove(type_index, &Key::cluster("p"));
            assert!(table.is_idle());
        }
    }
}
