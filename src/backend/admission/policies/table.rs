//! All policies and bindings, compiled: one table for all workers, never older than the last write that was answered.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use actix::Addr;
use pilothouse_actors::directory::Directory;
use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::{Object, TypeName};

use crate::api::admission_policies::policy::{Binding, Policy};
use crate::api::codec::json;
use crate::api::well_known::ADMISSION_REGISTRATION_GROUP;
use crate::auth::live_index::{LiveIndex, StoreIndex};

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
    fn followed(self) -> [TypeName; 2] {
        let resources = match self {
            PolicyKind::Validating => ["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
            PolicyKind::Mutating => ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"],
        };
        resources.map(|resource| TypeName::new(&format!("{resource}.{ADMISSION_REGISTRATION_GROUP}")))
    }
}

/// The table and how it stays true.
pub type Policies = LiveIndex<Table>;

/// Reads and compiles all policies that there are of a sort.
pub async fn open(directory: Addr<Directory>, sort: PolicyKind) -> Result<Policies, StoreError> {
    LiveIndex::open(directory, sort.followed(), Table::default()).await
}

/// A policy and what puts it to use.
pub struct Hook {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Its bindings, by name.
    pub bindings: Vec<Arc<Binding>>,
}

/// Policies and bindings, by name.
#[derive(Default)]
pub struct Table {
    policies: BTreeMap<String, Arc<Policy>>,
    bindings: BTreeMap<String, Arc<Binding>>,
    /// The policies that have bindings; put together when somebody asks after a change.
    hooks: OnceLock<Arc<Vec<Hook>>>,
}

impl Table {
    /// The policies that count, each with its bindings.
    pub fn hooks(&self) -> Arc<Vec<Hook>> {
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

impl StoreIndex for Table {
    fn put(&mut self, of: usize, object: &Object) {
        self.hooks = OnceLock::new();
        let Ok(value) = json::read(&object.bytes) else {
            tracing::error!(object = ?object.key, "an admission policy object cannot be read and is ignored");
            return self.remove(of, object);
        };
        let name = object.key.name().to_owned();
        match of {
            0 => drop(self.policies.insert(name, Arc::new(Policy::read(&value)))),
            _ => drop(self.bindings.insert(name, Arc::new(Binding::read(&value)))),
        }
    }

    fn remove(&mut self, of: usize, object: &Object) {
        self.hooks = OnceLock::new();
        match of {
            0 => drop(self.policies.remove(object.key.name())),
            _ => drop(self.bindings.remove(object.key.name())),
        }
    }

    fn clear(&mut self, of: usize) {
        self.hooks = OnceLock::new();
        match of {
            0 => self.policies.clear(),
            _ => self.bindings.clear(),
        }
    }
}
