//! The type model of all kinds, built-in and custom.
//!
//! A [`Registry`] holds all types of all group versions in one arena. Each traversal of a type and a value has a file of its own:
//! [`decode`], [`encode`], [`default`], [`validate`]. Nothing here knows a kind by name: differences between kinds are data, or
//! functions registered with the kind.

#[cfg(any(test, feature = "testing"))]
pub mod arbitrary;
pub mod base64;
pub mod builtin;
pub mod decode;
pub mod default;
pub mod encode;
pub mod enum_descriptions;
mod notes;
pub mod registry;
pub mod table;
pub mod text_types;
mod untyped;
pub mod validate;

use std::fmt;
use std::sync::Arc;

pub use registry::Registry;
pub use table::{ListFact, PatchFact};
pub use validate::Rules;

use super::value::Value;

/// The full name of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// The group, empty for the core group.
    pub group: String,
    /// The version within the group.
    pub version: String,
    /// The kind within the version.
    pub kind: String,
}

impl GroupVersionKind {
    /// The kind of this group, version and name.
    pub fn new(group: &str, version: &str, kind: &str) -> GroupVersionKind {
        GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }

    /// The group, version and kind.
    pub fn words(&self) -> (&str, &str, &str) {
        (&self.group, &self.version, &self.kind)
    }

    /// The value of the apiVersion field: `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// The type of every object's metadata.
pub const OBJECT_META: &str = "meta/v1.ObjectMeta";
/// The Go name of the anonymous struct with kind and apiVersion, for messages.
const ANONYMOUS: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// A type in the arena of its registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub(super) u32);

/// A type.
#[derive(Clone, Debug)]
pub enum Type {
    /// An object with known fields.
    Struct(Struct),
    /// A list.
    List(List),
    /// An object whose keys are data.
    Map(Map),
    /// An object, or a simpler value instead.
    Either(Either),
    /// A scalar.
    Scalar(Scalar),
}

/// An object with known fields.
#[derive(Clone, Debug, Default)]
pub struct Struct {
    /// The name within its package.
    pub name: Arc<str>,
    /// The package, from which its published name follows.
    pub package: Arc<str>,
    /// Whether it has kind and apiVersion; these are then its first two fields.
    pub object: bool,
    /// Whether it is atomic for server-side apply.
    pub atomic: bool,
    /// `discriminator:field=Value,…` if at most one of its fields may be set.
    pub union: Option<Arc<str>>,
    /// Its fields in JSON order, with those of inlined types in place.
    pub fields: Box<[Field]>,
    /// The type of unnamed fields; `None` if there are none.
    pub open: Option<TypeId>,
    /// The inlined types: JSON does not show them, Protobuf nests them under these numbers.
    pub inlined: Box<[(u32, TypeId)]>,
    /// The Protobuf fields, sorted by number.
    pub wire: Box<[WireField]>,
    /// The indices of fields with a default at or below them: where defaulting must descend.
    pub defaulted: Box<[u16]>,
    /// The indices of fields with rules at or below them.
    pub ruled: Box<[u16]>,
    /// A hash table with open addressing: field indices plus one; zero is free.
    by_name: Box<[u16]>,
}

impl Struct {
    /// The index of the field with this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        // The size is a power of two, and less than half full: the search is short.
        let mask = self.by_name.len().wrapping_sub(1);
        let mut slot = digest(name);
        loop {
            slot &= mask;
            let position = usize::from(self.by_name.get(slot)?.checked_sub(1)?);
            if self.fields.get(position).is_some_and(|field| *field.name == *name) {
                return Some(position);
            }
            slot += 1;
        }
    }

    /// The meaning of this Protobuf number.
    pub fn slot(&self, number: u32) -> Option<WireContent> {
        let index = self.wire.binary_search_by_key(&number, |field| field.number).ok()?;
        self.wire.get(index).map(|field| field.content)
    }

    /// The field with this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.position(name).and_then(|index| self.fields.get(index))
    }

    /// The Go type name in errors: the last part of the package, and the name.
    pub fn type_name(&self) -> String {
        if self.name.is_empty() {
            return ANONYMOUS.to_owned();
        }
        let version = self.package.rsplit('.').next().unwrap_or_default();
        format!("{version}.{}", self.name)
    }
}

/// A Protobuf number of a struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireField {
    /// The field number.
    pub number: u32,
    /// Its meaning.
    pub content: WireContent,
}

impl WireField {
    /// The number and type of an inlined type.
    fn inlined(&self) -> Option<(u32, TypeId)> {
        match self.content {
            WireContent::Inlined(ty, _) => Some((self.number, ty)),
            WireContent::Field(_) => None,
        }
    }
}

/// The meaning of a Protobuf number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireContent {
    /// The field at this index.
    Field(u16),
    /// A message of an inlined type, whose fields are among those of the struct, in order, from this index on.
    Inlined(TypeId, u16),
}

/// A hash of a name: from the length, the first and the last bytes.
fn digest(name: &str) -> usize {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let bytes = name.as_bytes();
    let (head, tail) = match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(head), Some(tail)) => (u64::from_le_bytes(*head), u64::from_le_bytes(*tail)),
        _ => (bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)), 0),
    };
    let mixed = (head ^ tail.rotate_left(29) ^ bytes.len() as u64).wrapping_mul(MIX);
    // The upper bits depend on all others.
    (mixed >> 40) as usize
}

/// The hash table of field names; see [`Struct::position`].
fn by_name(fields: &[Field]) -> Box<[u16]> {
    let mut slots = vec![0u16; (2 * fields.len() + 1).next_power_of_two()];
    let mask = slots.len() - 1;
    for (field, position) in fields.iter().zip(1u16..) {
        let mut index = digest(&field.name) & mask;
        while slots.get(index).is_some_and(|slot| *slot > 0) {
            index = (index + 1) & mask;
        }
        if let Some(slot) = slots.get_mut(index) {
            *slot = position;
        }
    }
    slots.into()
}

/// A field of a struct.
#[derive(Clone, Debug)]
pub struct Field {
    /// The JSON name.
    pub name: Arc<str>,
    /// The Protobuf number within the message that declares it; 0 if the field is not in that message.
    pub number: u32,
    /// The type of its value.
    pub ty: TypeId,
    /// Whether absent and zero differ.
    pub pointer: bool,
    /// Whether it is printed even if zero.
    pub emit: bool,
    /// Whether an empty list or map from a client differs from an absent one until it is stored.
    pub given: bool,
    /// Whether null is a value, and not absence.
    pub nullable: bool,
    /// Whether the published schema requires it.
    pub required: bool,
    /// Whether the published schema marks it as deprecated.
    pub deprecated: bool,
    /// Whether it comes from an inlined type.
    pub inlined: bool,
    /// Whether it is atomic for server-side apply, if the field itself specifies that.
    pub map_atomic: Option<bool>,
    /// Whether the published schema calls it an atomic list though it is no list.
    pub list_atomic: bool,
    /// The strategic merge patch settings.
    pub patch: Option<Box<PatchFact>>,
    /// The published default.
    pub default: Option<Box<Value>>,
    /// A default that the server sets but does not publish.
    pub fill: Option<Box<Value>>,
    /// The allowed values; empty for any.
    pub values: Box<[Arc<str>]>,
    /// The allowed values of its items; empty for any.
    pub item_values: Box<[Arc<str>]>,
    /// The validation rules of its values.
    pub rules: Option<Box<Rules>>,
}

/// A list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct List {
    /// The type of the items.
    pub item: TypeId,
    /// How server-side apply merges it.
    pub merge: ListFact,
    /// The Go type name in errors, if the list type has one.
    pub name: Option<Arc<str>>,
}

/// An object whose keys are data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Map {
    /// The type of the values.
    pub value: TypeId,
}

/// An object, or a simpler value instead, as in the unions of JSON schemas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Either {
    /// The type of the object.
    pub object: TypeId,
    /// The alternative.
    pub other: Other,
}

/// The alternative of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Other {
    /// A boolean.
    Bool,
    /// A list.
    List(TypeId),
}

/// A scalar type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// Text.
    String,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// A boolean.
    Bool,
    /// A double.
    Double,
    /// Bytes, as base64 text.
    Bytes,
    /// A time in seconds, as RFC 3339 text.
    Time,
    /// A time in microseconds, as RFC 3339 text.
    MicroTime,
    /// A quantity, as text.
    Quantity,
    /// A 32-bit integer, or text.
    IntOrString,
    /// Any object of any kind.
    Raw,
    /// Any JSON value.
    RawJson,
    /// Any value without a schema: its contents are reported and owned part by part. Only custom resources have these.
    Free,
}

impl Scalar {
    /// The scalar type with this name in the table.
    pub fn from_name(word: &str) -> Option<Scalar> {
        Some(match word {
            "string" => Scalar::String,
            "int32" => Scalar::Int32,
            "int64" => Scalar::Int64,
            "bool" => Scalar::Bool,
            "double" => Scalar::Double,
            "bytes" => Scalar::Bytes,
            "time" => Scalar::Time,
            "microtime" => Scalar::MicroTime,
            "quantity" => Scalar::Quantity,
            "intorstring" => Scalar::IntOrString,
            "raw" => Scalar::Raw,
            "rawjson" => Scalar::RawJson,
            _ => return None,
        })
    }

    /// The Go type name in errors.
    pub fn type_name(self) -> &'static str {
        match self {
            Scalar::String => "string",
            Scalar::Int32 => "int32",
            Scalar::Int64 => "int64",
            Scalar::Bool => "bool",
            Scalar::Double => "float64",
            Scalar::Bytes => "[]uint8",
            Scalar::Time => "v1.Time",
            Scalar::MicroTime => "v1.MicroTime",
            Scalar::Quantity => "resource.Quantity",
            Scalar::IntOrString => "intstr.IntOrString",
            Scalar::Raw => "runtime.RawExtension",
            Scalar::RawJson => "v1.JSON",
            Scalar::Free => "interface {}",
        }
    }

    /// Whether a value of this type is printed even if unset, because its Go type has no empty form.
    pub fn always_printed(self) -> bool {
        matches!(
            self,
            Scalar::Time | Scalar::MicroTime | Scalar::Quantity | Scalar::IntOrString | Scalar::Raw
        )
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Kind={}", self.api_version(), self.kind)
    }
}
