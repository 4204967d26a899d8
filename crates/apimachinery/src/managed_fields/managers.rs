//! The managers of an object: the entries of `metadata.managedFields`.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::field_set::FieldSet;
use super::fields_v1;
use crate::value::{Object, Value};

/// The maximum number of Update entries of an object; beyond that the oldest are merged.
const MAX_UPDATE_ENTRIES: usize = 10;
/// The name of merged entries.
const ANCIENT_CHANGES: &str = "ancient-changes";

/// The operation by which a manager owns its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By server-side apply.
    Apply,
    /// By another write.
    Update,
}

impl Operation {
    fn read(entry: &Value) -> Option<Operation> {
        match entry.str("operation") {
            "Apply" => Some(Operation::Apply),
            "Update" => Some(Operation::Update),
            _ => None,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// One manager and its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    /// The name of the manager.
    pub name: String,
    /// The operation by which it owns its fields.
    pub operation: Operation,
    /// The version of the field names.
    pub api_version: String,
    /// The subresource that it wrote, empty for the object itself.
    pub subresource: String,
    /// The time of its last change.
    pub time: Option<String>,
    /// The owned fields.
    pub fields: FieldSet,
}

impl Manager {
    /// Whether both are the same manager. An applier stays the same in another version.
    pub fn is(&self, other: &Manager) -> bool {
        self.name == other.name
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    fn read(entry: &Value) -> Option<Manager> {
        let operation = Operation::read(entry)?;
        if !is_supported(entry) {
            return None;
        }
        let fields = match entry.get("fieldsV1") {
            Some(fields) => fields_v1::read(fields).ok()?,
            None => FieldSet::default(),
        };
        Some(Manager {
            name: entry.str("manager").to_owned(),
            operation,
            api_version: entry.str("apiVersion").to_owned(),
            subresource: entry.str("subresource").to_owned(),
            time: entry.get("time").and_then(Value::as_str).map(str::to_owned),
            fields,
        })
    }

    fn write(&self) -> Value {
        let mut entry = Object::new();
        let mut put = |key: &str, value: Value| entry.insert(key.to_owned(), value);
        if !self.name.is_empty() {
            put("manager", self.name.as_str().into());
        }
        put("operation", self.operation.as_str().into());
        put("apiVersion", self.api_version.as_str().into());
        if let Some(time) = &self.time {
            put("time", time.as_str().into());
        }
        put("fieldsType", "FieldsV1".into());
        put("fieldsV1", fields_v1::write(&self.fields));
        if !self.subresource.is_empty() {
            put("subresource", self.subresource.as_str().into());
        }
        Value::Object(entry)
    }

    /// The order of entries in objects. Times are whole seconds in UTC, so they sort as text.
    fn order(&self, other: &Manager) -> Ordering {
        let key = (self.operation, &self.time).cmp(&(other.operation, &other.time));
        key.then_with(|| self.order_by_name(other))
    }

    fn order_by_name(&self, other: &Manager) -> Ordering {
        let by_name = self.name.cmp(&other.name).then_with(|| self.api_version.cmp(&other.api_version));
        by_name.then_with(|| self.subresource.cmp(&other.subresource))
    }

    /// The properties that [`Manager::is`] compares.
    fn identity(entry: &Value) -> [&str; 4] {
        let operation = entry.str("operation");
        let version = if operation == Operation::Apply.as_str() { "" } else { entry.str("apiVersion") };
        [operation, entry.str("manager"), entry.str("subresource"), version]
    }
}

/// All managers of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managers(pub Vec<Manager>);

impl Managers {
    /// Parses the entries. `None` if any of them is invalid: then all are ignored.
    pub fn read(entries: &[Value]) -> Option<Managers> {
        let mut managers: Vec<Manager> = Vec::with_capacity(entries.len());
        let mut positions: HashMap<[&str; 4], usize> = HashMap::with_capacity(entries.len());
        for entry in entries {
            let manager = Manager::read(entry)?;
            // The last of several equal entries counts.
            let position = *positions.entry(Manager::identity(entry)).or_insert(managers.len());
            match managers.get_mut(position) {
                Some(previous) => *previous = manager,
                None => managers.push(manager),
            }
        }
        Some(Managers(managers))
    }

    /// Writes the entries into an object; without any, the field is removed.
    pub fn store(mut self, object: &mut Value) {
        self.0.sort_by(Manager::order);
        let entries: Vec<Value> = self.0.into_iter().map(|manager| manager.write()).collect();
        if !entries.is_empty() {
            object.entry("metadata").set("managedFields", Value::Array(entries.into()));
        } else if let Some(meta) = object.get_mut("metadata") {
            meta.remove("managedFields");
        }
    }

    /// Whether there are no managers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns the entry of the same manager.
    pub fn take(&mut self, manager: &Manager) -> Option<Manager> {
        let position = self.0.iter().position(|other| other.is(manager))?;
        Some(self.0.swap_remove(position))
    }

    /// Merges the oldest Update entries until few enough are left.
    pub fn cap(&mut self) {
        let count = self.0.iter().filter(|manager| manager.operation == Operation::Update).count();
        let Some(mut surplus) = count.checked_sub(MAX_UPDATE_ENTRIES).filter(|surplus| *surplus > 0) else {
            return;
        };
        let (mut updaters, mut appliers): (Vec<_>, Vec<_>) =
            self.0.drain(..).partition(|manager| manager.operation == Operation::Update);
        updaters.sort_by(|a, b| a.time.cmp(&b.time).then_with(|| a.order_by_name(b)));
        // Fields of different versions cannot be merged.
        let mut buckets: HashMap<String, usize> = HashMap::new();
        let mut merged: Vec<(Manager, Vec<FieldSet>)> = Vec::with_capacity(MAX_UPDATE_ENTRIES);
        for manager in updaters {
            let bucket = buckets.get(&manager.api_version).and_then(|index| merged.get_mut(*index));
            match bucket.filter(|_| surplus > 0) {
                Some((bucket, fields)) => {
                    surplus -= 1;
                    fields.push(manager.fields);
                    bucket.time = manager.time;
                    ANCIENT_CHANGES.clone_into(&mut bucket.name);
                    bucket.subresource.clear();
                }
                None => {
                    buckets.entry(manager.api_version.clone()).or_insert(merged.len());
                    merged.push((manager, Vec::new()));
                }
            }
        }
        appliers.extend(merged.into_iter().map(|(mut manager, mut fields)| {
            if !fields.is_empty() {
                fields.push(std::mem::take(&mut manager.fields));
                manager.fields = FieldSet::union_all(fields);
            }
            manager
        }));
        self.0 = appliers;
    }
}

/// Whether the operation, version and fields type of an entry are supported.
pub(super) fn is_supported(entry: &Value) -> bool {
    let (version, fields_type) = (entry.str("apiVersion"), entry.str("fieldsType"));
    Operation::read(entry).is_some() && !version.is_empty() && fields_type == "FieldsV1"
}

/// Whether a client resets all managers: a list with one empty entry. An empty list has no effect.
pub fn is_reset(entries: Option<&Value>) -> bool {
    match entries {
        Some(Value::Array(entries)) => match entries.as_slice() {
            [entry] => entry.fields().is_none_or(|fields| fields.values().all(Value::is_null)),
            _ => false,
        },
        _ => false,
    }
}
