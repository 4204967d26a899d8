//! Conversion between the served versions of a kind.
//!
//! Every kind has a hub version through which the others are converted. Most versions differ only in their name. Those of another
//! shape are in a [`ConversionTable`], which is made where the kinds are known.

use super::value::Value;
use super::version::GroupVersion;

/// The reason why an object cannot be converted: these are not versions of one kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} cannot be converted from {from} to {to}")]
pub struct ConvertError {
    /// The kind of the object.
    pub kind: String,
    /// The version of the object.
    pub from: String,
    /// The requested version.
    pub to: String,
}

/// A version whose shape differs from the hub version.
#[derive(Debug)]
pub struct VersionShape {
    /// The group of the version.
    pub group: &'static str,
    /// The version within the group.
    pub version: &'static str,
    /// The kind within the version.
    pub kind: &'static str,
    /// The group and version of the hub.
    pub hub: (&'static str, &'static str),
    /// Converts an object of this version to the hub.
    pub to_hub: fn(&mut Value),
    /// Converts an object of the hub to this version.
    pub from_hub: fn(&mut Value),
}

/// The versions that differ in shape from their hubs.
#[derive(Clone, Copy, Debug)]
pub struct ConversionTable(&'static [VersionShape]);

impl ConversionTable {
    /// For kinds whose versions differ only in their names.
    pub const EMPTY: ConversionTable = ConversionTable(&[]);

    /// A table of these versions.
    pub const fn new(shapes: &'static [VersionShape]) -> ConversionTable {
        ConversionTable(shapes)
    }

    fn shape(self, gv: &GroupVersion, kind: &str) -> Option<&'static VersionShape> {
        self.0.iter().find(|shape| shape.kind == kind && gv.is(shape.group, shape.version))
    }

    /// Converts an object of `kind` from version `from`, which it must be in, to version `to`.
    pub fn convert(
        self,
        mut value: Value,
        from: &GroupVersion,
        to: &GroupVersion,
        kind: &str,
    ) -> Result<Value, ConvertError> {
        if from == to {
            return Ok(value);
        }
        let (source, target) = (self.shape(from, kind), self.shape(to, kind));
        let group = |gv: &GroupVersion, shape: Option<&VersionShape>| {
            shape.map_or_else(|| gv.group.to_string(), |shape| shape.hub.0.to_owned())
        };
        if group(from, source) != group(to, target) {
            return Err(ConvertError { kind: kind.to_owned(), from: from.to_string(), to: to.to_string() });
        }
        if let Some(source) = source {
            (source.to_hub)(&mut value);
        }
        if let Some(target) = target {
            (target.from_hub)(&mut value);
        }
        value.set("apiVersion", to.to_string());
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kind that another group serves with a field of another name.
    const TABLE: ConversionTable = ConversionTable::new(&[VersionShape {
        group: "new.example",
        version: "v1",
        kind: "Note",
        hub: ("", "v1"),
        to_hub: |note| rename(note, "text", "message"),
        from_hub: |note| rename(note, "message", "text"),
    }]);

    fn rename(value: &mut Value, from: &str, to: &str) {
        if let Some(field) = value.remove(from) {
            value.set(to, field);
        }
    }

    #[test]
    fn versions_of_the_same_shape_convert_by_name() {
        let mut object = Value::object();
        object.set("apiVersion", "networking.k8s.io/v1");
        object.entry("spec").set("x", 1);
        let v1 = GroupVersion::new("networking.k8s.io", "v1");
        let beta = GroupVersion::new("networking.k8s.io", "v1beta1");
        let converted = TABLE.convert(object.clone(), &v1, &beta, "IPAddress").unwrap();
        assert_eq!(converted.str("apiVersion"), "networking.k8s.io/v1beta1");
        assert_eq!(TABLE.convert(converted, &beta, &v1, "IPAddress").unwrap(), object);
        assert_eq!(TABLE.convert(object.clone(), &v1, &v1, "IPAddress").unwrap(), object);
    }

    #[test]
    fn versions_of_another_shape_convert_through_the_hub() {
        let (core, new) = (GroupVersion::new("", "v1"), GroupVersion::new("new.example", "v1"));
        let mut note = Value::object();
        note.set("apiVersion", "v1");
        note.set("message", "m");
        let converted = TABLE.convert(note.clone(), &core, &new, "Note").unwrap();
        assert_eq!((converted.str("apiVersion"), converted.str("text")), ("new.example/v1", "m"));
        assert_eq!(converted.get("message"), None);
        assert_eq!(TABLE.convert(converted, &new, &core, "Note").unwrap(), note);
    }

    #[test]
    fn conversion_between_unrelated_groups_is_an_error() {
        let (core, new) = (GroupVersion::new("", "v1"), GroupVersion::new("new.example", "v1"));
        let apps = GroupVersion::new("apps", "v1");
        let error = TABLE.convert(Value::object(), &core, &new, "Pod").unwrap_err();
        assert_eq!(error.to_string(), "Pod cannot be converted from v1 to new.example/v1");
        assert!(TABLE.convert(Value::object(), &new, &apps, "Note").is_err());
        assert!(ConversionTable::EMPTY.convert(Value::object(), &core, &new, "Note").is_err());
    }
}
