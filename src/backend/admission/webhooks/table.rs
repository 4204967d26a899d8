//! All configured webhooks, parsed and in order. The table is never older than the last acknowledged write.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix::Addr;
use pilothouse_actors::directory::Directory;
use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::{Object, TypeName};

use super::Phase;
use crate::api::admission_webhooks::Webhook;
use crate::api::codec::json;
use crate::api::well_known::ADMISSION_REGISTRATION_GROUP;
use crate::auth::live_index::{LiveIndex, StoreIndex};
use crate::backend::webhook_address::WebhookTarget;
use crate::upstream::pool::{KeepAliveHandle, Pool, Purpose};

/// The table, kept up to date.
pub type Hooks = LiveIndex<Table>;

/// The configuration resources, in the order of [`Phase`].
const RESOURCES: [&str; 2] = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];

/// Reads all configurations.
pub async fn open(directory: Addr<Directory>, pool: Arc<Pool>) -> Result<Hooks, StoreError> {
    let types =
        RESOURCES.map(|resource| TypeName::new(&format!("{resource}.{ADMISSION_REGISTRATION_GROUP}")));
    LiveIndex::open(directory, types, Table::new(pool)).await
}

/// The webhooks of one configuration.
struct Configuration {
    hooks: Vec<Arc<Webhook>>,
    /// Keeps connections to these webhooks open while the configuration exists.
    _wanted: Vec<KeepAliveHandle>,
}

impl Configuration {
    fn of(hooks: Vec<Webhook>, pool: &Arc<Pool>) -> Configuration {
        let targets = hooks.iter().filter_map(|hook| WebhookTarget::of(&hook.way, &hook.authority_pem).ok());
        let _wanted = targets.map(|target| target.place.wanted(pool, Purpose::Admission)).collect();
        Configuration { hooks: hooks.into_iter().map(Arc::new).collect(), _wanted }
    }
}

/// The webhooks of one phase.
#[derive(Default)]
struct List {
    /// Sorted by the name of the configuration, which is the order of calls.
    configurations: BTreeMap<String, Configuration>,
    all: Option<Arc<[Arc<Webhook>]>>,
}

impl List {
    fn changed(&mut self) {
        self.all = Some(self.configurations.values().flat_map(|one| &one.hooks).cloned().collect());
    }
}

/// The webhooks of all configurations.
pub struct Table {
    lists: [List; 2],
    pool: Arc<Pool>,
}

impl Table {
    /// An empty table. `pool` keeps connections to webhooks.
    pub fn new(pool: Arc<Pool>) -> Table {
        Table { lists: Default::default(), pool }
    }

    fn list(&self, phase: Phase) -> &List {
        let [mutating, validating] = &self.lists;
        match phase {
            Phase::Mutating => mutating,
            Phase::Validating => validating,
        }
    }

    /// All webhooks of a phase, in the order of calls.
    pub fn all(&self, phase: Phase) -> Arc<[Arc<Webhook>]> {
        self.list(phase).all.clone().unwrap_or_default()
    }

    /// Whether a phase has no webhooks.
    pub fn is_empty(&self, phase: Phase) -> bool {
        self.list(phase).all.as_ref().is_none_or(|all| all.is_empty())
    }
}

impl StoreIndex for Table {
    fn put(&mut self, of: usize, object: &Object) {
        let Some(list) = self.lists.get_mut(of) else { return };
        let name = object.key.name().to_owned();
        match json::read(&object.bytes) {
            Ok(configuration) => {
                let hooks = Configuration::of(Webhook::read_all(&configuration), &self.pool);
                list.configurations.insert(name, hooks);
            }
            // The last readable version stays in force: dropping it would admit requests that it refuses.
            Err(error) => {
                tracing::error!(object = ?object.key, %error, "a webhook configuration cannot be read");
            }
        }
        list.changed();
    }

    fn remove(&mut self, of: usize, object: &Object) {
        if let Some(list) = self.lists.get_mut(of) {
            list.configurations.remove(object.key.name());
            list.changed();
        }
    }

    fn clear(&mut self, of: usize) {
        if let Some(list) = self.lists.get_mut(of) {
            *list = List::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pilothouse_actors::clock::Clock;
    use pilothouse_actors::object::{Draft, Key, Pairs, Revision};

    use super::*;

    fn configuration(name: &str, hooks: &[&str]) -> Object {
        let hooks: Vec<String> = hooks.iter().map(|hook| format!(r#"{{"name":"{hook}"}}"#)).collect();
        let text = format!(
            r#"{{"metadata":{{"name":"{name}","resourceVersion":""}},"webhooks":[{}]}}"#,
            hooks.join(",")
        );
        let draft = Draft {
            key: Key::cluster(name),
            revision_at: text.find(r#"Version":""#).unwrap() + 10,
            item_at: 1,
            bytes: Bytes::from(text),
            labels: Pairs::from_iter([("", ""); 0]),
            fields: Pairs::from_iter([("", ""); 0]),
        };
        Object::new(draft, Revision(7))
    }

    #[test]
    fn configurations_are_asked_in_the_order_of_their_names() {
        let mut table = Table::new(Pool::new(Clock::system()));
        let names = |table: &Table, phase| {
            table.all(phase).iter().map(|hook| hook.name.clone()).collect::<Vec<_>>().join(" ")
        };
        assert!(table.is_empty(Phase::Mutating));
        table.put(0, &configuration("b", &["x", "a"]));
        table.put(0, &configuration("a", &["z"]));
        table.put(1, &configuration("c", &["v"]));
        assert_eq!(names(&table, Phase::Mutating), "z x a");
        assert_eq!(names(&table, Phase::Validating), "v");
        table.put(0, &configuration("b", &["y"]));
        assert_eq!(names(&table, Phase::Mutating), "z y");
        table.remove(0, &configuration("a", &[]));
        table.remove(0, &configuration("b", &[]));
        assert!(table.is_empty(Phase::Mutating) && !table.is_empty(Phase::Validating));
        table.clear(1);
        assert!(table.is_empty(Phase::Validating));
    }
}
