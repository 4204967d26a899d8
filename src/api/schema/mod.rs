//! One model of types for every kind, built in or custom.
//!
//! A [`Registry`] holds all types of all group versions in one arena. The walks over a type and a value each have a
//! file of their own: [`decode`], [`encode`], [`default`], [`validate`]. Nothing here knows a kind by name: what differs between
//! kinds is data, or a function registered beside the kind.

#[cfg(test)]
pub(crate) mod arbitrary;
pub mod base64;
pub mod builtin;
pub mod decode;
pub mod default;
pub mod encode;
mod free;
mod notes;
pub mod quantity;
pub mod registry;
pub mod table;
pub(in crate::api) mod text_types;
pub mod time;
pub mod validate;

use std::fmt;
use std::sync::Arc;

pub use registry::Registry;
pub use table::{ListFact, PatchFact};
pub use validate::Rules;

use super::value::Value;

/// The name of a kind among all kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// The group, empty for the core.
    pub group: String,
    /// The version within the group.
    pub version: String,
    /// The kind.
    pub kind: String,
}

impl GroupVersionKind {
    /// Names a kind.
    pub fn new(group: &str, version: &str, kind: &str) -> GroupVersionKind {
        GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }

    /// Its group, version and kind.
    pub fn words(&self) -> (&str, &str, &str) {
        (&self.group, &self.version, &self.kind)
    }

    /// What stands in the apiVersion field: `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// The type of what every object carries.
pub const OBJECT_META: &str = "meta/v1.ObjectMeta";
/// How messages name the struct without a name that holds kind and apiVersion.
const ANONYMOUS: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// A type in the arena of its registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub(super) u32);

/// What a value may be.
#[derive(Clone, Debug)]
pub enum Type {
    /// An object with known fields.
    Struct(Struct),
    /// A list.
    List(List),
    /// An object whose keys are data.
    Map(Map),
    /// An object, or something simpler in its place.
    Either(Either),
    /// No parts.
    Scalar(Scalar),
}

/// An object with known fields.
#[derive(Clone, Debug, Default)]
pub struct Struct {
    /// Its name within its package.
    pub name: Arc<str>,
    /// The package, from which its published name follows.
    pub package: Arc<str>,
    /// Whether it carries kind and apiVersion; these are then its first two fields.
    pub object: bool,
    /// Whether apply takes or leaves it as a whole.
    pub atomic: bool,
    /// `discriminator:field=Value,…` when at most one of its fields may be set.
    pub union: Option<Arc<str>>,
    /// Its fields in the order of JSON, with those of inlined types where they stand.
    pub fields: Box<[Field]>,
    /// The type of fields that it does not name; `None` if there are no others.
    pub open: Option<TypeId>,
    /// The inlined types: JSON does not show them, Protobuf nests them under these numbers.
    pub inlined: Box<[(u32, TypeId)]>,
    /// What Protobuf has of it, by number.
    pub wire: Box<[Slot]>,
    /// The positions of the fields that have a default, or something below them has: where the walk must go.
    pub defaulted: Box<[u16]>,
    /// The positions of the fields that have rules, or something below them has.
    pub ruled: Box<[u16]>,
    /// The positions of the fields plus one, each at the first free place from its digest on; zero is free.
    by_name: Box<[u16]>,
}

impl Struct {
    /// The position of the field with this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        // The size is a power of two, and less than half of the places are taken: the search ends soon.
        let mask = self.by_name.len().wrapping_sub(1);
        let mut at = digest(name);
        loop {
            at &= mask;
            let position = usize::from(self.by_name.get(at)?.checked_sub(1)?);
            if self.fields.get(position).is_some_and(|field| *field.name == *name) {
                return Some(position);
            }
            at += 1;
        }
    }

    /// What stands under this Protobuf number.
    pub fn slot(&self, number: u32) -> Option<InSlot> {
        let at = self.wire.binary_search_by_key(&number, |slot| slot.number).ok()?;
        self.wire.get(at).map(|slot| slot.what)
    }

    /// The field with this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.position(name).and_then(|at| self.fields.get(at))
    }

    /// The name that type errors print: the last part of the package, and the name.
    pub fn type_name(&self) -> String {
        if self.name.is_empty() {
            return ANONYMOUS.to_owned();
        }
        let version = self.package.rsplit('.').next().unwrap_or_default();
        format!("{version}.{}", self.name)
    }
}

/// What stands under a Protobuf number of a struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The number.
    pub number: u32,
    /// What it is.
    pub what: InSlot,
}

impl Slot {
    /// The number and type, if what stands there is inlined.
    fn inlined(&self) -> Option<(u32, TypeId)> {
        match self.what {
            InSlot::Inlined(ty, _) => Some((self.number, ty)),
            InSlot::Field(_) => None,
        }
    }
}

/// What a Protobuf number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InSlot {
    /// The field at this position.
    Field(u16),
    /// A message of an inlined type, whose fields stand among those of the struct itself, in their order, from this
    /// position on.
    Inlined(TypeId, u16),
}

/// A number that nearly tells names apart: from the length, the first and the last bytes.
fn digest(name: &str) -> usize {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let bytes = name.as_bytes();
    let (head, tail) = match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(head), Some(tail)) => (u64::from_le_bytes(*head), u64::from_le_bytes(*tail)),
        _ => (bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)), 0),
    };
    let mixed = (head ^ tail.rotate_left(29) ^ bytes.len() as u64).wrapping_mul(MIX);
    // The upper bits depend on all the others.
    (mixed >> 40) as usize
}

/// Where the names of fields are found again; see [`Struct::position`].
fn by_name(fields: &[Field]) -> Box<[u16]> {
    let mut places = vec![0u16; (2 * fields.len() + 1).next_power_of_two()];
    let mask = places.len() - 1;
    for (field, position) in fields.iter().zip(1u16..) {
        let mut at = digest(&field.name) & mask;
        while places.get(at).is_some_and(|place| *place > 0) {
            at = (at + 1) & mask;
        }
        if let Some(place) = places.get_mut(at) {
            *place = position;
        }
    }
    places.into()
}

/// A field of a struct.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its JSON name.
    pub name: Arc<str>,
    /// Its Protobuf number within the message that declares it; 0 for what Protobuf carries elsewhere.
    pub number: u32,
    /// What it holds.
    pub ty: TypeId,
    /// Whether absent and zero differ.
    pub pointer: bool,
    /// Whether it is printed even when zero.
    pub emit: bool,
    /// Whether an empty list or map that a client sends is told from none until it is stored.
    pub given: bool,
    /// Whether null is a value of it, and not its absence.
    pub nullable: bool,
    /// Whether the published schema requires it.
    pub required: bool,
    /// Whether the published schema advises against it.
    pub deprecated: bool,
    /// Whether it comes from an inlined type.
    pub inlined: bool,
    /// Whether apply takes or leaves it as a whole, where the field says so itself.
    pub map_atomic: Option<bool>,
    /// Whether the published schema calls it an atomic list though it is no list.
    pub list_atomic: bool,
    /// How a strategic merge patch treats it.
    pub patch: Option<Box<PatchFact>>,
    /// The published default.
    pub default: Option<Box<Value>>,
    /// The default that the server sets without publishing it.
    pub fill: Option<Box<Value>>,
    /// The values it may have; empty for any.
    pub values: Box<[Arc<str>]>,
    /// The values its items may have; empty for any.
    pub item_values: Box<[Arc<str>]>,
    /// What its values must be like.
    pub rules: Option<Box<Rules>>,
}

/// A list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct List {
    /// What it holds.
    pub item: TypeId,
    /// How apply merges it.
    pub merge: ListFact,
    /// The name that type errors print, where the list type has one.
    pub name: Option<Arc<str>>,
}

/// An object whose keys are data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Map {
    /// What it holds.
    pub value: TypeId,
}

/// An object, or something simpler in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Either {
    /// The object.
    pub object: TypeId,
    /// What may stand in its place.
    pub other: Other,
}

/// What may stand in the place of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Other {
    /// A truth value.
    Bool,
    /// A list.
    List(TypeId),
}

/// What has no parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// Text.
    String,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// A truth value.
    Bool,
    /// A double.
    Double,
    /// Bytes, as base64 text.
    Bytes,
    /// An instant to the second, as RFC 3339 text.
    Time,
    /// An instant to the microsecond, as RFC 3339 text.
    MicroTime,
    /// A number with a unit, as text.
    Quantity,
    /// A 32-bit integer, or text.
    IntOrString,
    /// Any object of any kind.
    Raw,
    /// Any value.
    RawJson,
    /// Any value, and nobody has said more of it: what is found inside is reported and owned part by part. Only custom
    /// resources have these.
    Free,
}

impl Scalar {
    /// The scalar that the table calls by this word.
    pub fn named(word: &str) -> Option<Scalar> {
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

    /// The name that type errors print.
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

    /// Whether a value of this type is printed even when nothing was set, because the API's own types know no empty
    /// form of it.
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
