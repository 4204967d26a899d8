//! Names of built-in types as they are stored.

use pilothouse_types::object::TypeName;

use crate::status::GroupResource;

/// A built-in type as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredType {
    /// The group, empty for the core group.
    pub group: &'static str,
    /// The plural.
    pub resource: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// The version of objects that do not name theirs.
    pub version: &'static str,
}

impl StoredType {
    /// A type of version 1.
    pub const fn v1(group: &'static str, resource: &'static str, kind: &'static str) -> StoredType {
        StoredType { group, resource, kind, version: "v1" }
    }

    /// The name that errors report.
    pub fn group_resource(&self) -> GroupResource<'static> {
        GroupResource { group: self.group, resource: self.resource }
    }

    /// The name of its store.
    pub fn type_name(&self) -> TypeName {
        match self.group {
            "" => TypeName::new(self.resource),
            group => TypeName::new(&format!("{}.{group}", self.resource)),
        }
    }
}
