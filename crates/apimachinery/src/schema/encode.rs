//! Writes canonical JSON: fields in the order of the type, sorted map keys, and each field present or absent as the type requires.

use bytes::Bytes;
use pilothouse_types::object::{Draft, Key, Pairs};

use super::{Field, Other, Registry, Scalar, Struct, Type, TypeId};
use crate::json;
use crate::value::{Object, Value};

/// The canonical bytes of an object with a gap for its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The JSON, with an empty resourceVersion.
    pub bytes: Vec<u8>,
    /// The offset for the digits of the revision.
    pub revision_offset: usize,
    /// The offset of the fields after kind and apiVersion.
    pub item_offset: usize,
}

impl Encoded {
    /// The draft for a store, with the labels and fields for selectors.
    pub fn into_draft(self, key: Key, labels: Pairs, fields: Pairs) -> Draft {
        let Encoded { bytes, revision_offset, item_offset } = self;
        Draft { key, bytes: Bytes::from(bytes), revision_offset, item_offset, labels, fields }
    }
}

/// Whether an empty list differs from an absent one where a field can express both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyLists {
    /// No: the reference stores objects in Protobuf, which does not distinguish them.
    AsStored,
    /// Yes: decoded values are encoded as they are.
    Exact,
}

/// The canonical JSON of a value.
pub fn encode(registry: &Registry, ty: TypeId, value: &Value) -> Vec<u8> {
    encode_as(registry, ty, value, EmptyLists::AsStored)
}

/// The JSON of a value, with this treatment of empty lists.
pub fn encode_as(registry: &Registry, ty: TypeId, value: &Value, form: EmptyLists) -> Vec<u8> {
    let mut writer = Writer::new(registry, false);
    writer.form = form;
    writer.value(ty, value, Position::Root);
    writer.out
}

/// The canonical JSON of the zero value of a type.
pub fn encode_zero(registry: &Registry, ty: TypeId) -> Vec<u8> {
    let mut writer = Writer::new(registry, false);
    writer.zero(ty, Position::Inside);
    writer.out
}

/// The canonical JSON of an object to store. Its resourceVersion is left empty.
pub fn encode_draft(registry: &Registry, ty: TypeId, value: &Value) -> Encoded {
    let mut writer = Writer::new(registry, true);
    writer.value(ty, value, Position::Root);
    Encoded { bytes: writer.out, revision_offset: writer.revision_offset, item_offset: writer.item_offset }
}

/// The position in the object: the gap belongs to the object's own metadata, not to that of a template.
#[derive(Clone, Copy, PartialEq)]
enum Position {
    Root,
    Metadata,
    Inside,
}

struct Writer<'r> {
    registry: &'r Registry,
    out: Vec<u8>,
    form: EmptyLists,
    draft: bool,
    revision_offset: usize,
    item_offset: usize,
}

/// How to print a field.
pub enum Print<'v> {
    /// Not at all.
    Omit,
    /// As null.
    Null,
    /// As its zero value.
    Zero,
    /// As this value.
    Value(&'v Value),
}

impl<'r> Writer<'r> {
    fn new(registry: &'r Registry, draft: bool) -> Writer<'r> {
        Writer {
            registry,
            out: Vec::with_capacity(1024),
            form: EmptyLists::AsStored,
            draft,
            revision_offset: 0,
            item_offset: 0,
        }
    }

    fn value(&mut self, ty: TypeId, value: &Value, position: Position) {
        match (self.registry.get(ty), value) {
            (Type::Struct(structure), Value::Object(fields)) => {
                self.fields(structure, Some(fields), position);
            }
            (Type::Struct(structure), Value::Null) => self.fields(structure, None, position),
            (Type::List(list), Value::Array(items)) => self.items(list.item, items),
            (Type::Map(map), Value::Object(entries)) => self.entries(map.value, entries),
            (Type::Either(either), Value::Object(_)) => self.value(either.object, value, position),
            (Type::Either(either), Value::Array(_)) => match either.other {
                Other::List(list) => self.value(list, value, position),
                Other::Bool => json::write_value(&mut self.out, value),
            },
            // As an item: stored objects do not distinguish empty and absent bytes.
            (Type::Scalar(Scalar::Bytes), Value::Null) if self.form == EmptyLists::AsStored => {
                self.out.extend_from_slice(b"\"\"");
            }
            _ => json::write_value(&mut self.out, value),
        }
    }

    fn fields(&mut self, structure: &'r Struct, fields: Option<&Object>, position: Position) {
        self.out.push(b'{');
        let mut first = true;
        for (index, field) in structure.fields.iter().enumerate() {
            let is_revision_gap =
                self.draft && position == Position::Metadata && &*field.name == "resourceVersion";
            let print =
                if is_revision_gap { Print::Zero } else { printed(self.registry, field, fields, self.form) };
            if matches!(print, Print::Omit) {
                continue;
            }
            if !first {
                self.out.push(b',');
            }
            first = false;
            // Kind and apiVersion are the first two fields of an object.
            if position == Position::Root && structure.object && index >= 2 && self.item_offset == 0 {
                self.item_offset = self.out.len();
            }
            self.out.push(b'"');
            self.out.extend_from_slice(field.name.as_bytes());
            self.out.extend_from_slice(b"\":");
            let inner = if position == Position::Root && &*field.name == "metadata" {
                Position::Metadata
            } else {
                Position::Inside
            };
            match print {
                Print::Value(value) => self.value(field.ty, value, inner),
                Print::Zero => self.zero(field.ty, inner),
                Print::Null | Print::Omit => self.out.extend_from_slice(b"null"),
            }
            if is_revision_gap {
                self.revision_offset = self.out.len() - 1;
            }
        }
        if let (Some(ty), Some(fields)) = (structure.open, fields) {
            let others = fields.iter().filter(|(name, _)| structure.position(name).is_none());
            for (name, value) in others {
                if !first {
                    self.out.push(b',');
                }
                first = false;
                json::write_string(&mut self.out, name);
                self.out.push(b':');
                self.value(ty, value, Position::Inside);
            }
        }
        self.out.push(b'}');
    }

    fn zero(&mut self, ty: TypeId, position: Position) {
        let text: &[u8] = match self.registry.get(ty) {
            Type::Struct(structure) => return self.fields(structure, None, position),
            Type::Scalar(Scalar::String) => b"\"\"",
            Type::Scalar(Scalar::Quantity) => b"\"0\"",
            Type::Scalar(Scalar::Bool) => b"false",
            Type::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Double | Scalar::IntOrString) => b"0",
            _ => b"null",
        };
        self.out.extend_from_slice(text);
    }

    fn items(&mut self, ty: TypeId, items: &[Value]) {
        self.out.push(b'[');
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            self.value(ty, item, Position::Inside);
        }
        self.out.push(b']');
    }

    fn entries(&mut self, ty: TypeId, entries: &Object) {
        self.out.push(b'{');
        for (index, (key, value)) in entries.iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            json::write_string(&mut self.out, key);
            self.out.push(b':');
            self.value(ty, value, Position::Inside);
        }
        self.out.push(b'}');
    }
}

/// How a field of a struct is printed.
pub fn printed<'v>(
    registry: &Registry,
    field: &Field,
    fields: Option<&'v Object>,
    form: EmptyLists,
) -> Print<'v> {
    let value = fields.and_then(|fields| fields.get(&field.name));
    if field.nullable && value.is_some_and(Value::is_null) {
        return Print::Null;
    }
    let value = value.filter(|value| !value.is_null());
    let Some(value) = value else {
        return match registry.get(field.ty) {
            _ if field.pointer => {
                if field.emit {
                    Print::Null
                } else {
                    Print::Omit
                }
            }
            Type::Struct(_) => Print::Zero,
            Type::Scalar(scalar) if scalar.always_printed() || field.emit => Print::Zero,
            _ if field.emit => Print::Null,
            _ => Print::Omit,
        };
    };
    let is_always_printed =
        || matches!(registry.get(field.ty), Type::Scalar(scalar) if scalar.always_printed());
    let is_zero = match value {
        Value::Array(items)
            if form == EmptyLists::AsStored && field.emit && !field.pointer && items.is_empty() =>
        {
            return Print::Null;
        }
        _ if field.pointer || field.emit => false,
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty() && matches!(registry.get(field.ty), Type::Map(_)),
        Value::String(text) => text.is_empty() && !is_always_printed(),
        Value::Int(number) => *number == 0 && !is_always_printed(),
        Value::Float(number) => *number == 0.0,
        Value::Bool(boolean) => !boolean && !is_always_printed(),
        Value::Null => true,
    };
    if is_zero { Print::Omit } else { Print::Value(value) }
}
