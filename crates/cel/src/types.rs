//! CEL types, and declared types with their maximum sizes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The type of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// `null`.
    Null,
    /// Boolean.
    Bool,
    /// 64-bit integer.
    Int,
    /// 64-bit unsigned integer.
    Uint,
    /// Double.
    Double,
    /// String.
    String,
    /// Bytes.
    Bytes,
    /// Timestamp.
    Timestamp,
    /// Duration.
    Duration,
    /// Dynamic: known at run time.
    Dyn,
    /// The type of an expression with a reported error.
    Error,
    /// The type of a type.
    Type(Option<Arc<Type>>),
    /// A list.
    List(Arc<Type>),
    /// A map.
    Map(Arc<Type>, Arc<Type>),
    /// An abstract type with parameters, such as `optional_type`.
    Opaque(&'static str, Arc<[Type]>),
    /// An object with declared fields.
    Object(Arc<ObjectType>),
    /// An object that expressions construct, by type name.
    Constructed(Arc<str>),
    /// A type variable.
    Var(usize),
    /// A type parameter of a signature, by its letter.
    Param(u8),
}

/// The name of the optional type.
pub const OPTIONAL: &str = "optional_type";

impl Type {
    /// A list of this type.
    pub fn list(items: Type) -> Type {
        Type::List(Arc::new(items))
    }

    /// A map.
    pub fn map(keys: Type, values: Type) -> Type {
        Type::Map(Arc::new(keys), Arc::new(values))
    }

    /// An optional of this type.
    pub fn optional(inner: Type) -> Type {
        Type::Opaque(OPTIONAL, Arc::new([inner]))
    }

    /// The type of a type.
    pub fn type_of(inner: Type) -> Type {
        Type::Type(Some(Arc::new(inner)))
    }

    /// An abstract type without parameters.
    pub fn opaque(name: &'static str) -> Type {
        Type::Opaque(name, Arc::new([]))
    }

    /// The type inside an optional.
    pub fn unwrap_optional(&self) -> Option<&Type> {
        match self {
            Type::Opaque(OPTIONAL, inner) => inner.first(),
            _ => None,
        }
    }

    /// Whether every type is assignable to it.
    pub fn is_dyn_or_error(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }

    /// Whether values have a constant size.
    pub fn is_scalar(&self) -> bool {
        match self {
            Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
            other => other.unwrap_optional().is_some_and(Type::is_scalar),
        }
    }

    /// The type parameters.
    pub fn parameters(&self) -> Vec<&Type> {
        match self {
            Type::Type(inner) => inner.as_deref().into_iter().collect(),
            Type::List(items) => vec![items],
            Type::Map(keys, values) => vec![keys, values],
            Type::Opaque(_, inner) => inner.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// The name of the type as a value (`type(x)`).
    pub fn name(&self) -> String {
        match self {
            Type::Null => "null_type".to_owned(),
            Type::Timestamp => "google.protobuf.Timestamp".to_owned(),
            Type::Duration => "google.protobuf.Duration".to_owned(),
            Type::Type(_) => "type".to_owned(),
            Type::List(_) => "list".to_owned(),
            Type::Map(..) => "map".to_owned(),
            Type::Opaque(name, _) => (*name).to_owned(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Type {
    /// The type as messages name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Type::Null => "null",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Timestamp => "timestamp",
            Type::Duration => "duration",
            Type::Dyn => "dyn",
            Type::Error => "!error!",
            Type::Type(_) => "type",
            Type::List(_) => "list",
            Type::Map(..) => "map",
            Type::Opaque(name, _) => name,
            Type::Object(object) => &object.name,
            Type::Constructed(name) => name,
            Type::Var(number) => return write!(f, "_var{number}"),
            Type::Param(letter) => return write!(f, "{}", char::from(b'A' + letter.min(&25))),
        };
        f.write_str(name)?;
        let inner: Vec<String> = self.parameters().into_iter().map(ToString::to_string).collect();
        if inner.is_empty() { Ok(()) } else { write!(f, "({})", inner.join(", ")) }
    }
}

/// An object type from a schema. Compared by identity.
#[derive(Debug)]
pub struct ObjectType {
    /// Its name in messages.
    pub name: String,
    /// Its fields by their escaped names.
    pub fields: BTreeMap<String, Property>,
}

impl ObjectType {
    /// The field of this name. A reserved word needs no escape in a selection.
    pub fn field(&self, name: &str) -> Option<&Property> {
        let escaped =
            || crate::reserved_words::is_reserved(name).then(|| self.fields.get(&format!("__{name}__")))?;
        self.fields.get(name).or_else(escaped)
    }
}

impl PartialEq for ObjectType {
    fn eq(&self, other: &ObjectType) -> bool {
        std::ptr::eq(self, other)
    }
}

/// A field of an object.
#[derive(Debug)]
pub struct Property {
    /// Its name in the object.
    pub name: String,
    /// The declared type.
    pub decl_type: Arc<DeclType>,
}

/// A declared type: how a JSON value is converted to a CEL value, and its size limits. The reference calls this DeclType.
#[derive(Debug)]
pub struct DeclType {
    /// The kind.
    pub decl_kind: DeclKind,
    /// The maximum number of items, entries or bytes; 0 for scalars.
    pub max_elements: u64,
    /// The minimum serialized size in bytes.
    pub min_serialized_size: u64,
}

/// How a JSON value is converted to a CEL value.
#[derive(Debug)]
pub enum DeclKind {
    /// By its JSON type.
    Dyn,
    /// A boolean.
    Bool,
    /// An integer.
    Int,
    /// A double.
    Double,
    /// String.
    String,
    /// Bytes, from base64.
    Bytes,
    /// A timestamp, from a string.
    Timestamp,
    /// A timestamp, from a date string.
    Date,
    /// A duration, from a string.
    Duration,
    /// A quantity, from a string.
    Quantity,
    /// A list.
    List(Arc<DeclType>, ListKind),
    /// A map with string keys.
    Map(Arc<DeclType>),
    /// An object with declared fields.
    Object(Arc<ObjectType>),
}

/// How lists are compared and concatenated (`x-kubernetes-list-type`).
#[derive(Debug, PartialEq, Eq)]
pub enum ListKind {
    /// Atomic: by order.
    Ordered,
    /// A set.
    Set,
    /// A map, with these key fields.
    Keyed(Vec<String>),
}

impl DeclType {
    /// A dynamic type.
    pub fn any() -> DeclType {
        DeclType { decl_kind: DeclKind::Dyn, max_elements: u64::MAX, min_serialized_size: 1 }
    }

    /// The CEL type.
    pub fn kind(&self) -> Type {
        match &self.decl_kind {
            DeclKind::Dyn => Type::Dyn,
            DeclKind::Bool => Type::Bool,
            DeclKind::Int => Type::Int,
            DeclKind::Double => Type::Double,
            DeclKind::String => Type::String,
            DeclKind::Bytes => Type::Bytes,
            DeclKind::Timestamp | DeclKind::Date => Type::Timestamp,
            DeclKind::Duration => Type::Duration,
            DeclKind::Quantity => Type::opaque("kubernetes.Quantity"),
            DeclKind::List(items, _) => Type::list(items.kind()),
            DeclKind::Map(values) => Type::map(Type::String, values.kind()),
            DeclKind::Object(object) => Type::Object(object.clone()),
        }
    }

    /// The maximum size of the value at a path below this type; `None` if the path does not exist.
    pub fn max_elements_at<'p>(&self, path: impl IntoIterator<Item = &'p str>) -> Option<u64> {
        let mut current = self;
        for step in path {
            current = match (step, &current.decl_kind) {
                ("@items" | "@values", DeclKind::List(items, _) | DeclKind::Map(items)) => items,
                // Keys of maps are strings of unknown size.
                ("@keys", DeclKind::Map(_)) => return Some(0),
                (name, DeclKind::Object(object)) => &object.field(name)?.decl_type,
                _ => return None,
            };
        }
        Some(current.max_elements)
    }
}
