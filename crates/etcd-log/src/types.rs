//! The types whose objects are in etcd. Definitions add and remove some while others read.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pilothouse_actors::shared_log::SharedChange;
use pilothouse_api::catalog::build::Builtin;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_etcd::messages::{Event, EventType};
use pilothouse_etcd_layout::keys::{KeyLayout, Location, Record};
use pilothouse_etcd_layout::prefix::EtcdPrefix;
use pilothouse_types::object::{Key, TypeName};

use crate::convert::from_etcd;

/// The types. See the module documentation.
pub struct Types(ArcSwap<TypeTable>);

#[derive(Clone)]
struct TypeTable {
    layout: KeyLayout,
    resources: HashMap<TypeName, Arc<Resource>>,
}

impl Types {
    /// The built-in types, below this prefix.
    pub fn new(prefix: EtcdPrefix, builtin: &Builtin) -> Types {
        let stored = builtin.resources().iter().filter_map(|resource| Some((resource.stored()?, resource)));
        let resources =
            stored.map(|(stored, resource)| (stored.store.clone(), Arc::clone(resource))).collect();
        Types(ArcSwap::from_pointee(TypeTable { layout: KeyLayout::new(prefix, builtin), resources }))
    }

    /// Adds a custom type, or replaces it by its new definition. Returns false if its keys could be those of another type.
    pub fn add(&self, resource: &Arc<Resource>) -> bool {
        let Some(stored) = resource.stored() else { return false };
        let mut is_added = false;
        // Others may add and remove types at the same time: then it is done again to what they have made.
        self.0.rcu(|known| {
            let mut known = TypeTable::clone(known);
            is_added = known.layout.add(resource);
            if is_added {
                known.resources.insert(stored.store.clone(), Arc::clone(resource));
            }
            known
        });
        is_added
    }

    /// Removes a custom type.
    pub fn remove(&self, type_name: &TypeName) {
        self.0.rcu(|known| {
            let mut known = TypeTable::clone(known);
            known.layout.remove(type_name);
            known.resources.remove(type_name);
            known
        });
    }

    /// What the keys of all objects begin with.
    pub(crate) fn prefix(&self) -> String {
        self.0.load().layout.prefix().as_str().to_owned()
    }

    /// What the keys of all objects of a type begin with.
    pub(crate) fn type_prefix(&self, type_name: &TypeName) -> Option<String> {
        self.0.load().layout.type_prefix(type_name)
    }

    /// The key of a record that is no object.
    pub(crate) fn record_key(&self, record: &Record) -> String {
        self.0.load().layout.record_key(record)
    }

    /// What the keys of the records of live servers begin with.
    pub(crate) fn endpoint_leases_prefix(&self) -> String {
        self.0.load().layout.endpoint_leases_prefix()
    }

    /// Whether this type is known.
    pub fn has(&self, type_name: &TypeName) -> bool {
        self.0.load().resources.contains_key(type_name)
    }

    /// A resource of this type.
    pub(crate) fn resource(&self, type_name: &TypeName) -> Option<Arc<Resource>> {
        self.0.load().resources.get(type_name).cloned()
    }

    /// The etcd key of an object.
    pub(crate) fn etcd_key(&self, type_name: &TypeName, key: &Key) -> Option<String> {
        self.0.load().layout.object_key(type_name, key)
    }

    /// What has this etcd key; `None` for keys of other programs and of unknown types.
    pub(crate) fn locate(&self, etcd_key: &[u8]) -> Option<Location> {
        self.0.load().layout.locate(etcd_key)
    }

    /// The object with this etcd key.
    pub(crate) fn locate_object(&self, etcd_key: &[u8]) -> Option<(TypeName, Key)> {
        match self.locate(etcd_key)? {
            Location::Object(type_name, key) => Some((type_name, key)),
            Location::Record(_) => None,
        }
    }

    /// What an event changes, if it is an object.
    pub(crate) fn change(&self, event: Event) -> Option<SharedChange> {
        let kind = event.kind();
        let entry = event.kv?;
        let (type_name, key) = self.locate_object(&entry.key)?;
        let revision = from_etcd(entry.mod_revision);
        let value = (kind == EventType::Put).then_some(entry.value);
        Some(SharedChange { type_name, key, revision, value })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn changes_of_several_threads_are_all_kept() {
        let builtin = Builtin::load().unwrap();
        let types = &Types::new(EtcdPrefix::default(), &builtin);
        let name = |resource: &Arc<Resource>| resource.stored().map(|stored| stored.store.clone());
        let stored: Vec<(TypeName, &Arc<Resource>)> =
            builtin.resources().iter().filter_map(|resource| Some((name(resource)?, resource))).collect();
        thread::scope(|scope| {
            for (type_name, _) in &stored {
                scope.spawn(move || types.remove(type_name));
            }
        });
        assert!(stored.iter().all(|(type_name, _)| types.resource(type_name).is_none()));
        assert_eq!(types.locate(b"/registry/configmaps/default/a"), None);
        thread::scope(|scope| {
            for (_, resource) in &stored {
                scope.spawn(move || assert!(types.add(resource)));
            }
        });
        for (type_name, _) in &stored {
            assert!(types.resource(type_name).is_some() && types.type_prefix(type_name).is_some());
        }
    }
}
