//! The types of expressions, and what is known of values before there are any.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The type of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// `null`.
    Null,
    /// Truth.
    Bool,
    /// Whole numbers.
    Int,
    /// Whole numbers without a sign.
    Uint,
    /// Numbers with a fraction.
    Double,
    /// Text.
    String,
    /// Bytes.
    Bytes,
    /// A point in time.
    Timestamp,
    /// A length of time.
    Duration,
    /// Known only when it is there.
    Dyn,
    /// What is wrong, and has been told.
    Error,
    /// A type itself, and which.
    Type(Option<Arc<Type>>),
    /// A list.
    List(Arc<Type>),
    /// A map.
    Map(Arc<Type>, Arc<Type>),
    /// A type that is known by its name.
    Opaque(&'static str, Arc<[Type]>),
    /// An object with fields of their own types.
    Object(Arc<ObjectType>),
    /// An object that expressions make, by the name of its type.
    Made(Arc<str>),
    /// What is yet to be found out.
    Var(usize),
    /// What a function leaves open, by its place in the alphabet.
    Param(u8),
}

/// The name of the type of what may not be there.
pub const OPTIONAL: &str = "optional_type";

impl Type {
    /// A list of these.
    pub fn list(items: Type) -> Type {
        Type::List(Arc::new(items))
    }

    /// A map.
    pub fn map(keys: Type, values: Type) -> Type {
        Type::Map(Arc::new(keys), Arc::new(values))
    }

    /// One of these, or nothing.
    pub fn optional(inner: Type) -> Type {
        Type::Opaque(OPTIONAL, Arc::new([inner]))
    }

    /// The type of a type.
    pub fn of(inner: Type) -> Type {
        Type::Type(Some(Arc::new(inner)))
    }

    /// A type without parameters that is known by its name.
    pub fn named(name: &'static str) -> Type {
        Type::Opaque(name, Arc::new([]))
    }

    /// What is inside of an optional.
    pub fn unwrapped(&self) -> Option<&Type> {
        match self {
            Type::Opaque(OPTIONAL, inner) => inner.first(),
            _ => None,
        }
    }

    /// Whether everything fits it.
    pub fn is_dyn_or_error(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }

    /// Whether its values are one thing each, whose size nobody asks.
    pub fn is_scalar(&self) -> bool {
        match self {
            Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
            other => other.unwrapped().is_some_and(Type::is_scalar),
        }
    }

    /// The types right inside of this one.
    pub fn parameters(&self) -> Vec<&Type> {
        match self {
            Type::Type(inner) => inner.as_deref().into_iter().collect(),
            Type::List(items) => vec![items],
            Type::Map(keys, values) => vec![keys, values],
            Type::Opaque(_, inner) => inner.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// The name that the type has when an expression asks for it.
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
            Type::Made(name) => name,
            Type::Var(number) => return write!(f, "_var{number}"),
            Type::Param(letter) => return write!(f, "{}", char::from(b'A' + letter.min(&25))),
        };
        f.write_str(name)?;
        let inner: Vec<String> = self.parameters().into_iter().map(ToString::to_string).collect();
        if inner.is_empty() { Ok(()) } else { write!(f, "({})", inner.join(", ")) }
    }
}

/// The type of objects that a schema describes. Two of them are the same if they are the same description.
#[derive(Debug)]
pub struct ObjectType {
    /// Its name in messages.
    pub name: String,
    /// Its fields, by the names that expressions give them.
    pub fields: BTreeMap<String, Property>,
}

impl ObjectType {
    /// The field that an expression calls so. Words of the language may be said plainly where only a field can stand.
    pub fn field(&self, name: &str) -> Option<&Property> {
        let escaped =
            || super::reserved_words::is_reserved(name).then(|| self.fields.get(&format!("__{name}__")))?;
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
    /// What its values are.
    pub shape: Arc<DeclType>,
}

/// What is known of a value: its type, how it is read, and how large it can be.
#[derive(Debug)]
pub struct DeclType {
    /// What it is.
    pub form: DeclKind,
    /// The most items, entries or bytes that it has; 0 for what has none.
    pub most: u64,
    /// The fewest bytes that it takes when it is written.
    pub least: u64,
}

/// How a value is read.
#[derive(Debug)]
pub enum DeclKind {
    /// As it is.
    Dyn,
    /// A truth value.
    Bool,
    /// A whole number.
    Int,
    /// A number.
    Double,
    /// Text.
    String,
    /// Bytes that are written in base64.
    Bytes,
    /// A point in time that is written as text.
    Timestamp,
    /// A day that is written as text.
    Date,
    /// A length of time that is written as text.
    Duration,
    /// An amount that is written as text.
    Quantity,
    /// A list.
    List(Arc<DeclType>, ListKind),
    /// A map with keys of text.
    Map(Arc<DeclType>),
    /// An object with fields of its own.
    Object(Arc<ObjectType>),
}

/// What makes two lists equal.
#[derive(Debug, PartialEq, Eq)]
pub enum ListKind {
    /// All items in their order.
    Ordered,
    /// All items, whatever their order.
    Set,
    /// All items, which are told apart by these fields.
    Keyed(Vec<String>),
}

impl DeclType {
    /// Of anything.
    pub fn any() -> DeclType {
        DeclType { form: DeclKind::Dyn, most: u64::MAX, least: 1 }
    }

    /// The type of the values.
    pub fn kind(&self) -> Type {
        match &self.form {
            DeclKind::Dyn => Type::Dyn,
            DeclKind::Bool => Type::Bool,
            DeclKind::Int => Type::Int,
            DeclKind::Double => Type::Double,
            DeclKind::String => Type::String,
            DeclKind::Bytes => Type::Bytes,
            DeclKind::Timestamp | DeclKind::Date => Type::Timestamp,
            DeclKind::Duration => Type::Duration,
            DeclKind::Quantity => Type::named("kubernetes.Quantity"),
            DeclKind::List(items, _) => Type::list(items.kind()),
            DeclKind::Map(values) => Type::map(Type::String, values.kind()),
            DeclKind::Object(object) => Type::Object(object.clone()),
        }
    }

    /// The most that the value has at the end of a path through the parts of this one; `None` if there is no such part.
    pub fn most_at<'p>(&self, path: impl IntoIterator<Item = &'p str>) -> Option<u64> {
        let mut place = self;
        for step in path {
            place = match (step, &place.form) {
                ("@items" | "@values", DeclKind::List(items, _) | DeclKind::Map(items)) => items,
                // Keys of maps are texts of which nothing is known.
                ("@keys", DeclKind::Map(_)) => return Some(0),
                (name, DeclKind::Object(object)) => &object.field(name)?.shape,
                _ => return None,
            };
        }
        Some(place.most)
    }
}
