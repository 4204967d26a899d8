//! The fields that a write cannot set.

/// Paths of fields.
pub type FieldPaths = &'static [&'static [&'static str]];

const SPEC: &[&str] = &["spec"];
const STATUS: &[&str] = &["status"];
const METADATA: &[&str] = &["metadata"];

/// The fields that a write cannot set, because the kind restores them: the writer does not own them. The reference calls these
/// GetResetFields.
#[derive(Clone, Copy, Debug)]
pub struct ResetFields {
    /// Fields that a write to the object cannot set. Only for kinds with a status.
    pub object: FieldPaths,
    /// Fields that a write to the status subresource cannot set.
    pub status: FieldPaths,
    /// The same for other subresources, by name.
    pub subresources: &'static [(&'static str, FieldPaths)],
}

impl ResetFields {
    /// A write to the object keeps the status, and a write to the status keeps the spec.
    pub const DEFAULT: ResetFields = ResetFields { object: &[STATUS], status: &[SPEC], subresources: &[] };
    /// As [`ResetFields::DEFAULT`], and a write to the status keeps the metadata.
    pub const STATUS_KEEPS_METADATA: ResetFields =
        ResetFields { status: &[SPEC, METADATA], ..ResetFields::DEFAULT };
    /// Every write may set every field.
    pub const NONE: ResetFields = ResetFields { object: &[], status: &[], subresources: &[] };

    /// The fields that a write to a subresource cannot set, or a write to the object if its name is empty.
    pub fn for_subresource(&self, subresource: &str, has_status: bool) -> FieldPaths {
        match subresource {
            "" if has_status => self.object,
            "" => &[],
            "status" => self.status,
            other => self.subresources.iter().find(|(name, _)| *name == other).map_or(&[], |row| row.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    #[test]
    fn writes_of_object_and_status_reset_the_other() {
        let reset = |group: &str, kind: &str, subresource: &str, has_status: bool| {
            rules(group, kind).reset_fields.for_subresource(subresource, has_status)
        };
        assert!(reset("", "ConfigMap", "", false).is_empty());
        assert_eq!(reset("apps", "StatefulSet", "", true), [STATUS]);
        assert_eq!(reset("apps", "StatefulSet", "status", true), [SPEC]);
        assert_eq!(reset("apps", "Deployment", "status", true), [SPEC, &["metadata", "labels"]]);
        assert!(reset("apps", "Deployment", "scale", true).is_empty());
        assert_eq!(reset("", "Namespace", "finalize", true), [STATUS]);
    }
}
