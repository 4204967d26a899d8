//! The stored form of an object: canonical JSON in the stored version, with the labels and fields that selectors see.

use pilothouse_apimachinery::codec::{self, Encoded};
use pilothouse_apimachinery::limits::OBJECT_PARTS;
use pilothouse_apimachinery::schema::{Registry, TypeId};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::{Draft, Key, Pairs};

use crate::select;

/// Builds a draft with the labels of the object and its indexed fields.
pub fn build_draft(encoded: Encoded, key: Key, value: &Value, fields: Pairs) -> Draft {
    let labels = value.get_path(&["metadata", "labels"]).and_then(Value::fields);
    let labels: Pairs = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
        .collect();
    encoded.into_draft(key, labels, fields)
}

/// Builds the draft of a built-in object, which has the stored version, from its type, group and kind.
pub fn builtin_draft(
    registry: &Registry,
    ty: TypeId,
    (group, kind): (&str, &str),
    key: Key,
    value: &Value,
) -> Draft {
    let encoded = codec::encode_draft(registry, ty, value);
    build_draft(encoded, key, value, select::selectable_fields(group, kind, value))
}

/// Refuses an object with so many nested objects that its defaults could exceed any bound. Metadata is not counted: it has no
/// defaults, and managedFields has many nested objects.
pub fn check_size(value: &Value) -> Result<()> {
    let fields = value.fields().into_iter().flatten().filter(|(name, _)| *name != "metadata");
    let parts =
        fields.fold(0, |parts: usize, (_, value)| parts + value.objects(OBJECT_PARTS.saturating_sub(parts)));
    if parts > OBJECT_PARTS {
        return Err(Status::too_large(format!("the object has more than {OBJECT_PARTS} parts")));
    }
    Ok(())
}
