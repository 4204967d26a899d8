//! All APIServices by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_api::aggregation::ApiService;
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_client::upstream;
use pilothouse_client::upstream::pool::{KeepAliveHandle, Pool};
use pilothouse_types::object::Key;

use crate::live_index::StoreIndex;
use crate::live_index::stored_object::{ReadError, StoredObject};

/// All APIServices by name.
pub struct Table {
    by_name: BTreeMap<String, Arc<ApiService>>,
    /// Keeps connections to the extension API servers open while they are registered.
    keep_alive: BTreeMap<String, [KeepAliveHandle; 2]>,
    pool: Arc<Pool>,
    /// How many of them extension API servers serve.
    remote: usize,
    /// Counts all changes.
    changes: u64,
}

impl Table {
    /// The type that the table follows.
    pub const TYPE: StoredType = StoredType::v1("apiregistration.k8s.io", "apiservices", "APIService");

    /// An empty table. `pool` keeps connections to the servers.
    pub fn new(pool: Arc<Pool>) -> Table {
        Table { by_name: BTreeMap::new(), keep_alive: BTreeMap::new(), pool, remote: 0, changes: 0 }
    }

    /// The APIService of this name.
    pub fn get(&self, name: &str) -> Option<Arc<ApiService>> {
        self.by_name.get(name).cloned()
    }

    /// The APIService of this name, if an extension API server serves it.
    pub fn remote(&self, name: &str) -> Option<Arc<ApiService>> {
        self.get(name).filter(|registered| registered.service.is_some())
    }

    /// Whether any APIService is served by an extension API server.
    pub fn has_remotes(&self) -> bool {
        self.remote > 0
    }

    /// All APIServices, sorted by name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<ApiService>> {
        self.by_name.values()
    }

    /// The APIServices that extension API servers serve.
    pub fn remotes(&self) -> impl Iterator<Item = &Arc<ApiService>> {
        let any = self.has_remotes();
        self.by_name.values().filter(move |registered| any && registered.service.is_some())
    }

    /// The names of the APIServices that a Service backs.
    pub fn backed_by(&self, namespace: &str, name: &str) -> Vec<String> {
        let is_backed = |registered: &&Arc<ApiService>| {
            let target = registered.service.as_ref();
            target.is_some_and(|target| target.namespace == namespace && target.name == name)
        };
        self.remotes().filter(is_backed).map(|registered| registered.name.clone()).collect()
    }

    /// The number of changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn set(&mut self, name: &str, new: Option<ApiService>) {
        self.changes += 1;
        let is_remote = |registered: &ApiService| registered.service.is_some();
        self.remote += usize::from(new.as_ref().is_some_and(is_remote));
        let is_readable = |new: &&ApiService| !new.is_unreadable;
        let service = new.as_ref().filter(is_readable).and_then(|new| new.service.as_ref());
        // Take the new handles before dropping the old ones, so that shared connections stay open.
        let _previous = match service.map(|service| upstream::keep_alive(&self.pool, &service.peer)) {
            Some(handles) => self.keep_alive.insert(name.to_owned(), handles),
            None => self.keep_alive.remove(name),
        };
        let old = match new {
            Some(new) => self.by_name.insert(name.to_owned(), Arc::new(new)),
            None => self.by_name.remove(name),
        };
        self.remote -= usize::from(old.as_deref().is_some_and(is_remote));
    }
}

impl StoreIndex for Table {
    const IS_GUARD: bool = true;
    type Prepared = ();

    fn put(&mut self, _: usize, object: &StoredObject<'_>) -> Result<(), ReadError> {
        self.set(object.name(), Some(ApiService::read(&object.value()?)));
        Ok(())
    }

    fn remove(&mut self, _: usize, key: &Key) {
        self.set(key.name(), None);
    }

    /// Blocks the version that the APIService is named after: its server is unknown, and no other may serve it.
    fn fail_closed(&mut self, _: usize, key: &Key) {
        self.set(key.name(), Some(ApiService::unreadable(key.name())));
    }

    fn clear(&mut self, _: usize) {
        *self = Table { changes: self.changes + 1, ..Table::new(self.pool.clone()) };
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;
    use pilothouse_apimachinery::value::Value;

    use super::*;

    fn registration(text: &str) -> Option<ApiService> {
        let object: Value = json::read(text.as_bytes()).unwrap();
        Some(ApiService::read(&object))
    }

    #[test]
    fn table_finds_remote_apiservices_only() {
        let mut table = Table::new(Pool::new(pilothouse_types::clock::Clock::system()));
        table.set(
            "v1.apps",
            registration(r#"{"metadata":{"name":"v1.apps"},"spec":{"group":"apps","version":"v1"}}"#),
        );
        assert!(table.remote("v1.apps").is_none() && table.get("v1.apps").is_some());
        let remote = r#"{"metadata":{"name":"v1.x"},"spec":{"group":"x","version":"v1","service":{"namespace":"n","name":"s"}}}"#;
        table.set("v1.x", registration(remote));
        assert!(table.remote("v1.x").is_some() && table.remote("v1.apps").is_none());
        assert_eq!(table.backed_by("n", "s"), ["v1.x"]);
        assert!(table.backed_by("n", "t").is_empty() && table.backed_by("m", "s").is_empty());
        table.set("v1.x", registration(remote));
        assert_eq!((table.remote, table.changes()), (1, 3));
        table.fail_closed(0, &Key::cluster("v1.x"));
        let unreadable = table.remote("v1.x").unwrap();
        assert!(unreadable.is_unreadable && !unreadable.is_available && unreadable.gv.is("x", "v1"));
        assert!(table.backed_by("n", "s").is_empty() && table.keep_alive.is_empty());
        table.set("v1.x", None);
        assert!(table.remote("v1.x").is_none() && table.backed_by("n", "s").is_empty());
        let changes = table.changes();
        table.clear(0);
        assert!(table.changes() > changes && table.all().next().is_none());
    }
}
