//! Rules of the status subresource.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::MetaRevalidation;
use crate::WriteContext;

/// The status of an object, and updates of the status subresource.
#[derive(Clone, Copy, Debug)]
pub struct StatusRules {
    /// Whether a new object keeps the status that the client sent.
    pub writable_on_create: bool,
    /// Whether an update of the object may change the status.
    pub writable_on_update: bool,
    /// The metadata that a status update may change.
    pub metadata: StatusMeta,
    /// The metadata validations that a status update repeats.
    pub metadata_revalidation: MetaRevalidation,
    /// PrepareForUpdate of a status update.
    pub prepare: fn(new: &mut Value, old: &Value, context: &WriteContext<'_>),
    /// Validates a status update.
    pub validate: fn(new: &Value, old: &Value, errors: &mut ErrorList),
    /// Warnings about a status update.
    pub warn: fn(new: &Value, warnings: &mut WarningList),
}

impl StatusRules {
    /// Only status updates change the status. They may change the metadata, too.
    pub const DEFAULT: StatusRules = StatusRules {
        writable_on_create: false,
        writable_on_update: false,
        metadata: StatusMeta::Mutable,
        metadata_revalidation: MetaRevalidation::Change,
        prepare: |_, _, _| {},
        validate: |_, _, _| {},
        warn: |_, _| {},
    };
}

/// The metadata that an update of the status subresource may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusMeta {
    /// The same as an update of the object.
    Mutable,
    /// The same, except for these fields.
    MutableExcept(&'static [&'static str]),
    /// Everything but [`KEPT_METADATA_FIELDS`]. The reference calls this ResetObjectMetaForStatus.
    ResetForStatus,
    /// Only managedFields.
    AllKept,
}

/// The metadata that a status update of many kinds keeps.
const KEPT_METADATA_FIELDS: &[&str] =
    &["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp", "selfLink"];

impl StatusMeta {
    /// Copies the metadata from the old object that the update must not change.
    pub(crate) fn keep(self, new: &mut Value, old: &Value) {
        match self {
            StatusMeta::Mutable => {}
            StatusMeta::MutableExcept(fields) => keep_fields(fields, new, old),
            StatusMeta::ResetForStatus => keep_metadata(new, old),
            StatusMeta::AllKept => {
                let meta = new.entry("metadata");
                let mut kept = meta::metadata(old).clone();
                meta::copy(&mut kept, meta, "managedFields");
                *meta = kept;
            }
        }
    }
}

/// Copies the metadata from the old object that most subresources must not change.
pub(crate) fn keep_metadata(new: &mut Value, old: &Value) {
    keep_fields(KEPT_METADATA_FIELDS, new, old);
}

fn keep_fields(fields: &[&str], new: &mut Value, old: &Value) {
    for field in fields {
        meta::copy(new.entry("metadata"), meta::metadata(old), field);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn status_update_with_kept_metadata_changes_only_managed_fields() {
        let old = object(r#"{"metadata":{"name":"a","uid":"u","generation":3,"labels":{"l":"old"}}}"#);
        let mut new = object(
            r#"{"metadata":{"generateName":"g","labels":{"l":"new"},"managedFields":[{"manager":"m"}]}}"#,
        );
        StatusMeta::AllKept.keep(&mut new, &old);
        assert_eq!(new.get_path(&["metadata", "managedFields"]).map(|list| list.items().len()), Some(1));
        new.entry("metadata").remove("managedFields");
        assert_eq!(new, old);
    }
}
