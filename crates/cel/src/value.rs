//! CEL values. Values of objects are borrowed, not copied.

mod collections;
mod constructed;
mod named_format;
mod native;
mod url;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

pub use collections::{Key, List, Map};
pub use constructed::ConstructedObject;
pub use named_format::NamedFormat;
pub use native::{NativeError, SizeBudget};
pub use url::Url;

use pilothouse_apimachinery::quantity::Quantity;
use pilothouse_apimachinery::semver::Semver;
use pilothouse_apimachinery::value::Value;

use crate::timestamps::{self, Instant};
use crate::types::{DeclKind, DeclType, ListKind};

/// An evaluation error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An error, which `&&` and `||` may absorb.
    Error(String),
    /// The cost limit is exceeded. Never absorbed.
    Budget,
}

impl Fault {
    /// An error with this message.
    pub fn error(message: impl Into<String>) -> Fault {
        Fault::Error(message.into())
    }

    /// No overload for these values.
    pub fn no_overload() -> Fault {
        Fault::error("no such overload")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Error(message) => f.write_str(message),
            Fault::Budget => f.write_str("operation cancelled: actual cost limit exceeded"),
        }
    }
}

/// The result of an evaluation step.
pub type Outcome<'v> = Result<Val<'v>, Fault>;

/// A value.
#[derive(Clone, Debug)]
pub enum Val<'v> {
    /// `null`.
    Null,
    /// Boolean.
    Bool(bool),
    /// Integer.
    Int(i64),
    /// Unsigned integer.
    Uint(u64),
    /// Double.
    Double(f64),
    /// String.
    String(Text<'v>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A list.
    List(List<'v>),
    /// A map, or an object.
    Map(Map<'v>),
    /// Timestamp.
    Timestamp(Instant),
    /// Duration in nanoseconds.
    Duration(i64),
    /// A type, by name.
    Type(Arc<str>),
    /// An optional value.
    Optional(Option<Arc<Val<'v>>>),
    /// A quantity.
    Quantity(Arc<Quantity>),
    /// A URL.
    Url(Arc<Url>),
    /// An IP address.
    Ip(IpAddr),
    /// A CIDR: address and prefix length.
    Cidr(IpAddr, u8),
    /// A named string format.
    Format(&'static NamedFormat),
    /// A semantic version.
    Semver(Arc<Semver>),
    /// An object that the expression constructed.
    Constructed(Arc<ConstructedObject<'v>>),
    /// A value of the caller.
    Foreign(Arc<dyn Foreign + 'v>),
}

/// A value that the caller provides, with its own functions.
pub trait Foreign: fmt::Debug + Send + Sync {
    /// The name of its type.
    fn type_name(&self) -> &str;
    /// Calls a function whose first argument is this value.
    fn call(&self, function: &str, args: &[Val<'_>]) -> Result<Val<'static>, Fault>;
}

/// A string: borrowed or owned.
#[derive(Clone, Debug)]
pub enum Text<'v> {
    /// From an object or the program.
    Borrowed(&'v str),
    /// Computed.
    Owned(Arc<str>),
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Owned(text) => text,
        }
    }
}

impl<'v> From<&'v str> for Val<'v> {
    fn from(text: &'v str) -> Val<'v> {
        Val::String(Text::Borrowed(text))
    }
}

impl From<String> for Val<'_> {
    fn from(text: String) -> Self {
        Val::String(Text::Owned(text.into()))
    }
}

impl<'v> From<Vec<Val<'v>>> for Val<'v> {
    fn from(items: Vec<Val<'v>>) -> Val<'v> {
        Val::List(List::Computed(Arc::new(items)))
    }
}

impl<'v> Val<'v> {
    /// Converts a JSON value of a declared type.
    pub fn typed(value: &'v Value, decl_type: &'v DeclType) -> Outcome<'v> {
        let text = || {
            value.as_str().ok_or_else(|| {
                Fault::error(format!("invalid data, expected string, got {}", value.go_type()))
            })
        };
        Ok(match (&decl_type.decl_kind, value) {
            (DeclKind::Dyn, _) => Val::untyped(value),
            (_, Value::Null) => Val::Null,
            (DeclKind::Object(object), Value::Object(fields)) => Val::Map(Map::Object(fields, object)),
            (DeclKind::Map(values), Value::Object(fields)) => Val::Map(Map::Typed(fields, values)),
            (DeclKind::List(items, kind), Value::Array(values)) => {
                Val::List(List::Borrowed(values, items, kind))
            }
            (DeclKind::Bool, Value::Bool(boolean)) => Val::Bool(*boolean),
            (DeclKind::Int, Value::Int(number)) => Val::Int(*number),
            (DeclKind::Double, Value::Int(number)) => Val::Double(*number as f64),
            (DeclKind::Double, Value::Float(number)) => Val::Double(*number),
            (DeclKind::String, _) => Val::from(text()?),
            (DeclKind::Bytes, _) => Val::Bytes(
                timestamps::decode_base64(text()?)
                    .map_err(|error| {
                        Fault::error(format!(
                            "Invalid byte formatted string {}: {error}",
                            value.as_str().unwrap_or_default()
                        ))
                    })?
                    .into(),
            ),
            (DeclKind::Timestamp, _) => Val::Timestamp(Instant::parse(text()?).map_err(|error| {
                Fault::error(format!(
                    "Invalid date-time formatted string {}: {error}",
                    value.as_str().unwrap_or_default()
                ))
            })?),
            (DeclKind::Date, _) => {
                Val::Timestamp(Instant::parse(&format!("{}T00:00:00Z", text()?)).map_err(|error| {
                    Fault::error(format!(
                        "Invalid date formatted string {}: {error}",
                        value.as_str().unwrap_or_default()
                    ))
                })?)
            }
            (DeclKind::Duration, _) => {
                Val::Duration(timestamps::parse_lenient_duration(text()?).map_err(|error| {
                    Fault::error(format!("Invalid duration {}: {error}", value.as_str().unwrap_or_default()))
                })?)
            }
            (DeclKind::Quantity, _) => {
                Val::Quantity(Arc::new(Quantity::parse(text()?).map_err(Fault::error)?))
            }
            (form, _) => {
                let expected = match form {
                    DeclKind::Object(_) | DeclKind::Map(_) => {
                        "a map for the provided schema with type=object"
                    }
                    DeclKind::List(..) => "an array for the provided schema with type=array",
                    DeclKind::Bool => "bool",
                    DeclKind::Int => "int",
                    _ => "float",
                };
                return Err(Fault::error(format!("invalid data, expected {expected}")));
            }
        })
    }

    /// Converts a JSON value without a declared type.
    pub fn untyped(value: &'v Value) -> Val<'v> {
        match value {
            Value::Null => Val::Null,
            Value::Bool(boolean) => Val::Bool(*boolean),
            Value::Int(number) => Val::Int(*number),
            Value::Float(number) => Val::Double(*number),
            Value::String(text) => Val::from(text.as_str()),
            Value::Array(items) => Val::List(List::Borrowed(items, &UNTYPED, &ListKind::Ordered)),
            Value::Object(fields) => Val::Map(Map::Untyped(fields)),
        }
    }

    /// A map with these string keys.
    pub fn from_fields(fields: impl IntoIterator<Item = (&'v str, Val<'v>)>) -> Val<'v> {
        let entry = |(name, value)| (Key::String(Text::Borrowed(name)), (Val::from(name), value));
        Val::Map(Map::Computed(Arc::new(fields.into_iter().map(entry).collect())))
    }

    /// Wraps the value into an optional.
    pub fn some(self) -> Val<'v> {
        Val::Optional(Some(Arc::new(self)))
    }

    /// The name of its type.
    pub fn type_name(&self) -> &str {
        match self {
            Val::Null => "null_type",
            Val::Bool(_) => "bool",
            Val::Int(_) => "int",
            Val::Uint(_) => "uint",
            Val::Double(_) => "double",
            Val::String(_) => "string",
            Val::Bytes(_) => "bytes",
            Val::List(_) => "list",
            Val::Map(_) => "map",
            Val::Timestamp(_) => "google.protobuf.Timestamp",
            Val::Duration(_) => "google.protobuf.Duration",
            Val::Type(_) => "type",
            Val::Optional(_) => "optional_type",
            Val::Quantity(_) => "kubernetes.Quantity",
            Val::Url(_) => "kubernetes.URL",
            Val::Ip(_) => "net.IP",
            Val::Cidr(..) => "net.CIDR",
            Val::Format(_) => "kubernetes.NamedFormat",
            Val::Semver(_) => "kubernetes.Semver",
            Val::Constructed(object) => object.name(),
            Val::Foreign(foreign) => foreign.type_name(),
        }
    }

    /// The number of characters, bytes, items or entries; 1 for scalars.
    pub fn size(&self) -> u64 {
        match self {
            Val::String(text) => text.chars().count() as u64,
            Val::Bytes(bytes) => bytes.len() as u64,
            Val::List(list) => list.len() as u64,
            Val::Map(map) => map.len() as u64,
            Val::Ip(address) => {
                if address.is_ipv4() {
                    4
                } else {
                    16
                }
            }
            Val::Cidr(address, _) => {
                if address.is_ipv4() {
                    4
                } else {
                    16
                }
            }
            Val::Optional(Some(inner)) => inner.size(),
            _ => 1,
        }
    }

    /// The value as a map key, if its type can be one.
    pub fn key(&self) -> Option<Key<'v>> {
        Some(match self {
            Val::Bool(boolean) => Key::Bool(*boolean),
            Val::Int(number) => Key::Number(i128::from(*number)),
            Val::Uint(number) => Key::Number(i128::from(*number)),
            Val::Double(number) if number.fract() == 0.0 && number.abs() < 1e19 => {
                Key::Number(*number as i128)
            }
            Val::String(text) => Key::String(text.clone()),
            _ => return None,
        })
    }

    /// Whether it is the zero value of its type.
    pub fn is_zero(&self) -> bool {
        match self {
            Val::Null => true,
            Val::Bool(boolean) => !boolean,
            Val::Int(number) => *number == 0,
            Val::Uint(number) => *number == 0,
            Val::Double(number) => *number == 0.0,
            Val::Duration(nanos) => *nanos == 0,
            Val::Timestamp(instant) => *instant == Instant::ZERO,
            Val::String(_) | Val::Bytes(_) | Val::List(_) | Val::Map(_) => self.size() == 0,
            Val::Optional(inner) => inner.is_none(),
            Val::Constructed(object) => object.is_empty(),
            _ => false,
        }
    }
}

static UNTYPED: DeclType =
    DeclType { decl_kind: DeclKind::Dyn, max_elements: u64::MAX, min_serialized_size: 1 };

impl fmt::Display for Val<'_> {
    /// The value as error messages print it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Val::Bool(boolean) => write!(f, "{boolean}"),
            Val::Int(number) => write!(f, "{number}"),
            Val::Uint(number) => write!(f, "{number}"),
            Val::Double(number) => write!(f, "{number}"),
            Val::String(text) => f.write_str(text),
            other => f.write_str(other.type_name()),
        }
    }
}
