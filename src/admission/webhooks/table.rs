//! All configured webhooks, parsed and in order. The table is never older than the last acknowledged write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilothouse_admission::webhooks::Webhook;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::ADMISSION_REGISTRATION_GROUP;
use pilothouse_client::upstream::pool::{KeepAliveHandle, Pool, Purpose};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Key;

use super::Phase;
use crate::live_index::stored_object::{ReadError, StoredObject};
use crate::live_index::{LiveIndex, LiveIndexes, StoreIndex};
use crate::registry::webhook_address::WebhookTarget;

/// The table, kept up to date.
pub type Hooks = LiveIndex<Table>;

/// The configuration resources, in the order of [`Phase`].
const TYPES: [StoredType; 2] = [
    StoredType::v1(
        ADMISSION_REGISTRATION_GROUP,
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
    ),
    StoredType::v1(
        ADMISSION_REGISTRATION_GROUP,
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
    ),
];

/// Reads all configurations.
pub async fn open(indexes: &LiveIndexes, pool: Arc<Pool>) -> std::result::Result<Arc<Hooks>, StoreError> {
    indexes.open(TYPES, Table::new(pool)).await
}

/// The webhooks of one configuration.
struct Configuration {
    hooks: Vec<Arc<Webhook>>,
    /// Keeps connections to these webhooks open while the configuration exists.
    _keep_alive: Vec<KeepAliveHandle>,
}

impl Configuration {
    fn new(hooks: Vec<Webhook>, pool: &Arc<Pool>) -> Configuration {
        let targets =
            hooks.iter().filter_map(|hook| WebhookTarget::new(&hook.client_config, &hook.authority_pem).ok());
        let _keep_alive = targets.map(|target| target.server.keep_alive(pool, Purpose::Admission)).collect();
        Configuration { hooks: hooks.into_iter().map(Arc::new).collect(), _keep_alive }
    }
}

/// The webhooks of one phase.
#[derive(Default)]
struct List {
    /// Sorted by the name of the configuration, which is the order of calls.
    configurations: BTreeMap<String, Configuration>,
    /// Configurations that cannot be read: a webhook of them might refuse or change any request.
    unreadable: BTreeSet<String>,
    all: Option<Arc<[Arc<Webhook>]>>,
}

impl List {
    fn rebuild(&mut self) {
        self.all = Some(
            self.configurations.values().flat_map(|configuration| &configuration.hooks).cloned().collect(),
        );
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

    /// All webhooks of a phase, in the order of calls. An error if a configuration cannot be read.
    pub fn all(&self, phase: Phase) -> Result<Arc<[Arc<Webhook>]>> {
        let list = self.list(phase);
        if list.unreadable.is_empty() {
            return Ok(list.all.clone().unwrap_or_default());
        }
        let [mutating, validating] = &TYPES;
        let followed = match phase {
            Phase::Mutating => mutating,
            Phase::Validating => validating,
        };
        let resource = GroupResource { group: followed.group, resource: followed.resource };
        Err(Status::unreadable_guard(resource, list.unreadable.iter().map(String::as_str)))
    }

    /// Whether a phase has no webhooks.
    pub fn is_empty(&self, phase: Phase) -> bool {
        let list = self.list(phase);
        list.unreadable.is_empty() && list.all.as_ref().is_none_or(|all| all.is_empty())
    }
}

impl Table {
    fn insert(
        &mut self,
        type_index: usize,
        name: &str,
        configuration: CompiledHooks,
    ) -> std::result::Result<(), ReadError> {
        let Some(list) = self.lists.get_mut(type_index) else { return Ok(()) };
        let CompiledHooks { hooks, error } = configuration;
        list.unreadable.remove(name);
        list.configurations.insert(name.to_owned(), Configuration::new(hooks, &self.pool));
        list.rebuild();
        error.map_or(Ok(()), Err)
    }
}

/// The webhooks of a configuration, and the error of a condition that cannot be compiled.
pub struct CompiledHooks {
    hooks: Vec<Webhook>,
    error: Option<ReadError>,
}

impl From<&Value> for CompiledHooks {
    fn from(configuration: &Value) -> CompiledHooks {
        let mut hooks = Webhook::read_all(configuration);
        let error = hooks.iter().find_map(Webhook::first_compile_error).map(ReadError::Part);
        if error.is_some() {
            // Whether its conditions match is unknown, so the failurePolicy Ignore does not apply.
            hooks.iter_mut().for_each(|hook| hook.ignores_failures &= hook.first_compile_error().is_none());
        }
        CompiledHooks { hooks, error }
    }
}

impl StoreIndex for Table {
    const IS_GUARD: bool = true;
    const PREPARES: bool = true;
    type Prepared = CompiledHooks;

    fn put(&mut self, type_index: usize, object: &StoredObject<'_>) -> std::result::Result<(), ReadError> {
        self.insert(type_index, object.name(), CompiledHooks::from(&object.value()?))
    }

    fn prepare(_of: usize, object: &StoredObject<'_>) -> Option<CompiledHooks> {
        object.value().ok().map(|value| CompiledHooks::from(&value))
    }

    fn put_prepared(
        &mut self,
        type_index: usize,
        object: &StoredObject<'_>,
        compiled: CompiledHooks,
    ) -> std::result::Result<(), ReadError> {
        self.insert(type_index, object.name(), compiled)
    }

    fn remove(&mut self, type_index: usize, key: &Key) {
        if let Some(list) = self.lists.get_mut(type_index) {
            list.unreadable.remove(key.name());
            list.configurations.remove(key.name());
            list.rebuild();
        }
    }

    fn fail_closed(&mut self, type_index: usize, key: &Key) {
        self.remove(type_index, key);
        if let Some(list) = self.lists.get_mut(type_index) {
            list.unreadable.insert(key.name().to_owned());
        }
    }

    fn clear(&mut self, type_index: usize) {
        if let Some(list) = self.lists.get_mut(type_index) {
            *list = List::default();
        }
    }
}

#[cfg(test)]
mod tests {

    use pilothouse_apimachinery::json;
    use pilothouse_types::clock::Clock;

    use super::*;

    fn configuration(hooks: &[&str]) -> CompiledHooks {
        let hooks: Vec<String> = hooks.iter().map(|hook| format!(r#"{{"name":"{hook}"}}"#)).collect();
        let value = json::read(format!(r#"{{"webhooks":[{}]}}"#, hooks.join(",")).as_bytes()).unwrap();
        CompiledHooks::from(&value)
    }

    #[test]
    fn webhooks_are_ordered_by_configuration_name() {
        let mut table = Table::new(Pool::new(Clock::system()));
        let names = |table: &Table, phase| {
            table.all(phase).unwrap().iter().map(|hook| hook.name.clone()).collect::<Vec<_>>().join(" ")
        };
        assert!(table.is_empty(Phase::Mutating));
        table.insert(0, "b", configuration(&["x", "a"])).unwrap();
        table.insert(0, "a", configuration(&["z"])).unwrap();
        table.insert(1, "c", configuration(&["v"])).unwrap();
        assert_eq!(names(&table, Phase::Mutating), "z x a");
        assert_eq!(names(&table, Phase::Validating), "v");
        table.insert(0, "b", configuration(&["y"])).unwrap();
        assert_eq!(names(&table, Phase::Mutating), "z y");
        table.remove(0, &Key::cluster("a"));
        table.remove(0, &Key::cluster("b"));
        assert!(table.is_empty(Phase::Mutating) && !table.is_empty(Phase::Validating));
        table.clear(1);
        assert!(table.is_empty(Phase::Validating));
        table.fail_closed(1, &Key::cluster("c"));
        assert!(table.is_empty(Phase::Mutating) && !table.is_empty(Phase::Validating));
        let refused = table.all(Phase::Validating).unwrap_err();
        assert!(refused.message.contains(r#""c" cannot be read"#), "{refused}");
        table.insert(1, "c", configuration(&[])).unwrap();
        assert!(table.is_empty(Phase::Validating), "it was replaced");
    }
}
