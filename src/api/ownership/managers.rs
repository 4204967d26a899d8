//! The owners of the fields of one object: the entries of `metadata.managedFields`.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::fields_v1;
use super::set::Set;
use crate::api::value::{Object, Value};

/// The most owners by update that one object remembers; the oldest are put together beyond.
const UPDATERS: usize = 10;
/// The owner that the oldest ones become.
const ANCIENT: &str = "ancient-changes";

/// How an owner came to its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// It says what they shall be.
    Apply,
    /// It changed them.
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

    pub(super) fn word(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// One owner and its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    /// Its name.
    pub name: String,
    /// How it came to its fields.
    pub operation: Operation,
    /// The version in which the fields are named.
    pub api_version: String,
    /// The sub-resource that it wrote, empty for the object itself.
    pub subresource: String,
    /// When it last changed something.
    pub time: Option<String>,
    /// Its fields.
    pub fields: Set,
}

impl Manager {
    /// Whether both are the same owner. One that applies stays the same in another version.
    pub fn is(&self, other: &Manager) -> bool {
        self.name == other.name
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    fn read(entry: &Value) -> Option<Manager> {
        let operation = Operation::read(entry)?;
        if !is_known_form(entry) {
            return None;
        }
        let fields = match entry.get("fieldsV1") {
            Some(fields) => fields_v1::read(fields).ok()?,
            None => Set::default(),
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
        put("operation", self.operation.word().into());
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

    /// The order of entries in objects. Times are whole seconds of one zone: their texts are in the order of time.
    fn order(&self, other: &Manager) -> Ordering {
        let key = (self.operation, &self.time).cmp(&(other.operation, &other.time));
        key.then_with(|| self.order_by_name(other))
    }

    fn order_by_name(&self, other: &Manager) -> Ordering {
        let by_name = self.name.cmp(&other.name).then_with(|| self.api_version.cmp(&other.api_version));
        by_name.then_with(|| self.subresource.cmp(&other.subresource))
    }

    /// What [`Manager::is`] compares.
    fn identity(entry: &Value) -> [&str; 4] {
        let operation = entry.str("operation");
        let version = if operation == Operation::Apply.word() { "" } else { entry.str("apiVersion") };
        [operation, entry.str("manager"), entry.str("subresource"), version]
    }
}

/// All owners of the fields of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managers(pub Vec<Manager>);

impl Managers {
    /// Reads the entries. `None` if one of them is wrong: then none is to be believed.
    pub fn read(entries: &[Value]) -> Option<Managers> {
        let mut managers: Vec<Manager> = Vec::with_capacity(entries.len());
        let mut places: HashMap<[&str; 4], usize> = HashMap::with_capacity(entries.len());
        for entry in entries {
            let manager = Manager::read(entry)?;
            // The last of several entries of one owner counts.
            let at = *places.entry(Manager::identity(entry)).or_insert(managers.len());
            match managers.get_mut(at) {
                Some(known) => *known = manager,
                None => managers.push(manager),
            }
        }
        Some(Managers(managers))
    }

    /// Writes the entries into an object; none leaves no trace.
    pub fn store(mut self, object: &mut Value) {
        self.0.sort_by(Manager::order);
        let entries: Vec<Value> = self.0.iter().map(Manager::write).collect();
        if !entries.is_empty() {
            object.entry("metadata").set("managedFields", Value::Array(entries));
        } else if let Some(meta) = object.get_mut("metadata") {
            meta.remove("managedFields");
        }
    }

    /// Whether nobody owns anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes out the owner that is the same as this one.
    pub fn take(&mut self, manager: &Manager) -> Option<Manager> {
        let at = self.0.iter().position(|known| known.is(manager))?;
        Some(self.0.swap_remove(at))
    }

    /// Puts the oldest owners by update together until few enough are left.
    pub fn cap(&mut self) {
        let count = self.0.iter().filter(|manager| manager.operation == Operation::Update).count();
        let Some(mut surplus) = count.checked_sub(UPDATERS).filter(|surplus| *surplus > 0) else { return };
        let (mut updaters, mut kept): (Vec<_>, Vec<_>) =
            self.0.drain(..).partition(|manager| manager.operation == Operation::Update);
        updaters.sort_by(|a, b| a.time.cmp(&b.time).then_with(|| a.order_by_name(b)));
        // Fields of different versions have nothing to do with each other.
        let mut buckets: HashMap<String, usize> = HashMap::new();
        let mut merged: Vec<(Manager, Vec<Set>)> = Vec::with_capacity(UPDATERS);
        for manager in updaters {
            let bucket = buckets.get(&manager.api_version).and_then(|at| merged.get_mut(*at));
            match bucket.filter(|_| surplus > 0) {
                Some((bucket, fields)) => {
                    surplus -= 1;
                    fields.push(manager.fields);
                    bucket.time = manager.time;
                    ANCIENT.clone_into(&mut bucket.name);
                    bucket.subresource.clear();
                }
                None => {
                    buckets.entry(manager.api_version.clone()).or_insert(merged.len());
                    merged.push((manager, Vec::new()));
                }
            }
        }
        kept.extend(merged.into_iter().map(|(mut manager, mut fields)| {
            if !fields.is_empty() {
                fields.push(std::mem::take(&mut manager.fields));
                manager.fields = Set::union_all(fields);
            }
            manager
        }));
        self.0 = kept;
    }
}

/// Whether an entry has the form that this server knows, its fields apart.
pub(super) fn is_known_form(entry: &Value) -> bool {
    let (version, form) = (entry.str("apiVersion"), entry.str("fieldsType"));
    Operation::read(entry).is_some() && !version.is_empty() && form == "FieldsV1"
}

/// Whether a client asks to forget all owners: a list of one entry that says nothing. A list of none says nothing itself.
pub fn is_reset(entries: Option<&Value>) -> bool {
    match entries {
        Some(Value::Array(entries)) => match entries.as_slice() {
            [entry] => entry.fields().is_none_or(|fields| fields.values().all(Value::is_null)),
            _ => false,
        },
        _ => false,
    }
}
