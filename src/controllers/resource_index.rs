//! The served resources by store and by kind. Rebuilt when the catalog is replaced.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use pilothouse_api::catalog::Catalog;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::verb::Verb;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_types::object::TypeName;

/// A published catalog.
pub type Published = Arc<dyn AsRef<Catalog> + Send + Sync>;

/// Gives controllers an index of the current catalog.
pub struct ResourceIndexes {
    current_catalog: Box<dyn Fn() -> Published>,
    cached: RefCell<Option<(Published, Rc<ResourceIndex>)>>,
}

/// The resources of one catalog.
#[derive(Default)]
pub struct ResourceIndex {
    /// One resource per store: that of the stored version if it is served.
    by_store: BTreeMap<TypeName, Arc<Resource>>,
    /// The resource of each `apiVersion` and kind.
    by_kind: HashMap<(Arc<str>, Arc<str>), Arc<Resource>>,
    /// The same for kinds whose objects are not stored, such as reviews.
    reviews: HashMap<(Arc<str>, Arc<str>), Arc<Resource>>,
    /// Each namespaced, deletable resource in the preferred version of its group.
    pub deletable: Vec<Arc<Resource>>,
    /// The names of definitions that cannot be read.
    pub unreadable: Arc<BTreeSet<String>>,
}

impl ResourceIndexes {
    /// Gets catalogs from this function.
    pub fn new(current_catalog: impl Fn() -> Published + 'static) -> ResourceIndexes {
        ResourceIndexes { current_catalog: Box::new(current_catalog), cached: RefCell::default() }
    }

    /// The current catalog.
    pub fn now(&self) -> Rc<ResourceIndex> {
        let current_catalog = (self.current_catalog)();
        let mut cached = self.cached.borrow_mut();
        match &*cached {
            Some((catalog, index)) if Arc::ptr_eq(catalog, &current_catalog) => index.clone(),
            _ => {
                let index = Rc::new(ResourceIndex::new((*current_catalog).as_ref()));
                *cached = Some((current_catalog, index.clone()));
                index
            }
        }
    }
}

impl ResourceIndex {
    fn new(catalog: &Catalog) -> ResourceIndex {
        let mut index =
            ResourceIndex { unreadable: catalog.unreadable().clone(), ..ResourceIndex::default() };
        for group in catalog.groups() {
            let mut deletable: BTreeMap<Arc<str>, Arc<Resource>> = BTreeMap::new();
            for resource in group.versions.iter().flat_map(|version| &version.resources) {
                let kind = (resource.api_version.clone(), resource.kind.clone());
                let Some(stored) = resource.stored() else {
                    index.reviews.insert(kind, resource.clone());
                    continue;
                };
                let entry = index.by_store.entry(stored.store.clone()).or_insert_with(|| resource.clone());
                if resource.is_storage_version() {
                    *entry = resource.clone();
                }
                index.by_kind.insert(kind, resource.clone());
                if resource.namespaced && resource.verbs.contains(Verb::Delete) {
                    deletable.entry(resource.plural.clone()).or_insert_with(|| resource.clone());
                }
            }
            index.deletable.extend(deletable.into_values());
        }
        index
    }

    /// The resource whose objects this store has.
    pub fn for_store(&self, store: &TypeName) -> Option<&Arc<Resource>> {
        self.by_store.get(store)
    }

    /// All resources whose objects are stored, in no order.
    pub fn stored(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.by_kind.values()
    }

    /// The resource with this plural.
    pub fn plural(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.by_kind.values().find(|resource| resource.gv.is(group, version) && *resource.plural == *plural)
    }

    /// Whether a definition in this group cannot be read.
    pub fn has_unreadable(&self, group: &str) -> bool {
        let is_in = |name: &String| name.split_once('.').is_some_and(|(_, name_group)| name_group == group);
        self.unreadable.iter().any(is_in)
    }

    /// Whether a CustomResourceDefinition defines this version.
    pub fn defines(&self, group: &str, version: &str) -> bool {
        let is_custom =
            |resource: &&Arc<Resource>| resource.custom.is_some() && resource.gv.is(group, version);
        self.by_kind.values().any(|resource| is_custom(&resource))
    }

    /// The versions that CustomResourceDefinitions define.
    pub fn defined(&self) -> impl Iterator<Item = &GroupVersion> {
        let custom = self.by_kind.values().filter(|resource| resource.custom.is_some());
        custom.map(|resource| &resource.gv)
    }

    /// Whether this version has built-in resources.
    pub fn has_builtin(&self, group: &str, version: &str) -> bool {
        let is_builtin =
            |resource: &&Arc<Resource>| resource.custom.is_none() && resource.gv.is(group, version);
        self.by_kind.values().any(|resource| is_builtin(&resource))
    }

    /// The resource of a kind whose objects are not stored.
    pub fn review(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.reviews.get(&(api_version.into(), kind.into()))
    }

    /// The resource of a kind.
    pub fn for_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.by_kind.get(&(api_version.into(), kind.into()))
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_api::catalog::build::Builtin;
    use pilothouse_api::catalog::runtime_config::RuntimeConfig;

    use super::*;

    struct Holder(Catalog);

    impl AsRef<Catalog> for Holder {
        fn as_ref(&self) -> &Catalog {
            &self.0
        }
    }

    #[test]
    fn resource_index_finds_resources_by_store_and_by_kind() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let published: Published = Arc::new(Holder(catalog));
        let catalogs = ResourceIndexes::new(move || published.clone());
        let index = catalogs.now();
        assert!(Rc::ptr_eq(&index, &catalogs.now()));
        assert_eq!(&*index.for_store(&TypeName::new("pods")).unwrap().kind, "Pod");
        let autoscaler = index.for_kind("autoscaling/v1", "HorizontalPodAutoscaler").unwrap();
        assert_eq!(&*autoscaler.gv.version, "v1");
        assert!(index.for_kind("apps/v1", "Pod").is_none());
        assert_eq!(&*index.plural("apps", "v1", "deployments").unwrap().kind, "Deployment");
        let deletable: Vec<String> = index
            .deletable
            .iter()
            .map(|resource| format!("{} {}", resource.api_version, resource.plural))
            .collect();
        assert!(deletable.contains(&"autoscaling/v2 horizontalpodautoscalers".to_owned()));
        assert!(
            deletable.contains(&"events.k8s.io/v1 events".to_owned())
                && deletable.contains(&"v1 events".to_owned())
        );
        assert!(!deletable.iter().any(|name| name.ends_with(" nodes") || name.ends_with(" bindings")));
    }
}
