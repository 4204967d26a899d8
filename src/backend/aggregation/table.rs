//! All APIServices by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_api::aggregation::ApiService;
use pilothouse_types::object::Key;

use crate::auth::live_index::StoreIndex;
use crate::auth::stored_object::{FollowedType, ReadError, StoredObject};
use crate::upstream;
use crate::upstream::pool::{KeepAliveHandle, Pool};

/// All APIServices by name.
pub struct Table {
    by_name: BTreeMap<String, Arc<ApiService>>,
    /// Keeps connections to the extension API servers open while they are registered.
    wanted: BTreeMap<String, [KeepAliveHandle; 2]>,
    pool: Arc<Pool>,
    /// How many of them extension API servers serve.
    remote: usize,
    /// Counts all changes.
    changes: u64,
}

impl Table {
    /// The type that the table follows.
    pub const TYPE: FollowedType = FollowedType::v1("apiregistration.k8s.io", "apiservices", "APIService");

    /// An empty table. `pool` keeps connections to the servers.
    pub fn new(pool: Arc<Pool>) -> Table {
        Table { by_name: BTreeMap::new(), wanted: BTreeMap::new(), pool, remote: 0, changes: 0 }
    }

    /// The APIService of this name.
    pub fn get(&self, name: &str) -> Option<Arc<ApiService>> {
        self.by_name.get(name).cloned()
    }

    /// The APIService of this name, if an extension API server serves it.
    pub fn remote(&self, name: &str) -> Option<Arc<ApiService>> {
        self.get(name).filter(|known| known.service.is_some())
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
        self.by_name.values().filter(move |known| any && known.service.is_some())
    }

    /// The names of the APIServices that a Service backs.
    pub fn behind(&self, namespace: &str, name: &str) -> Vec<String> {
        let is_it = |known: &&Arc<ApiService>| {
            let service = known.service.as_ref();
            service.is_some_and(|service| service.namespace == namespace && service.name == name)
        };
        self.remotes().filter(is_it).map(|known| known.name.clone()).collect()
    }

    /// The number of changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn set(&mut self, name: &str, new: Option<ApiService>) {
        self.changes += 1;
        let is_remote = |known: &ApiService| known.service.is_some();
        self.remote += usize::from(new.as_ref().is_some_and(is_remote));
        let is_readable = |new: &&ApiService| !new.is_unreadable;
        let service = new.as_ref().filter(is_readable).and_then(|new| new.service.as_ref());
        // Take the new handles before dropping the old ones, so that shared connections stay open.
        let _before = match service.map(|service| upstream::wanted(&self.pool, &service.peer)) {
            Some(wanted) => self.wanted.insert(name.to_owned(), wanted),
            None => self.wanted.remove(name),
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

    /// Its name is that of its version. Nobody may serve that, because nobody knows who should.
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
    fn only_what_others_serve_is_led_there() {
        let mut table = Table::new(Pool::new(pilothouse_types::clock::Clock::system()));
        table.set(
            "v1.apps",
            registration(r#"{"metadata":{"name":"v1.apps"},"spec":{"group":"apps","version":"v1"}}"#),
        );
        assert!(table.remote("v1.apps").is_none() && table.get("v1.apps").is_some());
        let remote = r#"{"metadata":{"name":"v1.x"},"spec":{"group":"x","version":"v1","service":{"namespace":"n","name":"s"}}}"#;
        table.set("v1.x", registration(remote));
        assert!(table.remote("v1.x").is_some() && table.remote("v1.apps").is_none());
        assert_eq!(table.behind("n", "s"), ["v1.x"]);
        assert!(table.behind("n", "t").is_empty() && table.behind("m", "s").is_empty());
        table.set("v1.x", registration(remote));
        assert_eq!((table.remote, table.changes()), (1, 3));
        table.fail_closed(0, &Key::cluster("v1.x"));
        let unknown = table.remote("v1.x").unwrap();
        assert!(unknown.is_unreadable && !unknown.is_available && unknown.gv.is("x", "v1"));
        assert!(table.behind("n", "s").is_empty() && table.wanted.is_empty());
        table.set("v1.x", None);
        assert!(table.remote("v1.x").is_none() && table.behind("n", "s").is_empty());
        let changes = table.changes();
        table.clear(0);
        assert!(table.changes() > changes && table.all().next().is_none());
    }
}
