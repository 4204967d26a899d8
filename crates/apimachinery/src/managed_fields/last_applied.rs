//! The last-applied annotation of client-side `kubectl apply`. Fields of an object written that way can be applied without
//! conflicts, and the annotation is kept up to date for clients that still apply on their side.

use super::applied_fields::owned_fields;
use super::compare::compare;
use super::field_set::FieldSet;
use super::{Versions, Write};
use crate::json;
use crate::meta::ANNOTATION_BYTES;
use crate::schema::TypeId;
use crate::value::Value;
use crate::well_known::annotations::LAST_APPLIED as ANNOTATION;

/// The field manager whose applies read and write it.
const OWNER: &str = "kubectl";

fn annotation(object: &Value) -> &str {
    object.get_path(&["metadata", "annotations"]).map(|all| all.str(ANNOTATION)).unwrap_or_default()
}

/// The fields that the annotation states with their current values: kubectl may apply them again without conflicts.
pub(super) fn allowed(
    versions: &Versions<'_>,
    write: &Write<'_>,
    ty: TypeId,
    live: &Value,
) -> Option<FieldSet> {
    if write.manager != OWNER {
        return None;
    }
    let stated = json::read(annotation(live).as_bytes()).ok()?;
    if stated.str("apiVersion") != write.version.to_string() {
        return None;
    }
    let fields = owned_fields(versions.registry, ty, &stated).ok()?;
    let comparison = compare(versions.registry, ty, Some(&stated), live).ok()?;
    Some(
        fields.difference(&comparison.modified).difference(&comparison.added).difference(&comparison.removed),
    )
}

/// Whether an apply of this manager updates the annotation.
pub(super) fn is_maintained(manager: &str, object: &Value) -> bool {
    manager == OWNER && !annotation(object).is_empty()
}

/// Updates the annotation, if the object has it, to the applied configuration. Returns whether it has.
pub(super) fn update(manager: &str, config: &Value, object: &mut Value) -> bool {
    if !is_maintained(manager, object) {
        return false;
    }
    let mut config = config.clone();
    let annotations = config.get_mut("metadata").and_then(|meta| meta.get_mut("annotations"));
    if let Some(annotations) = annotations {
        annotations.remove(ANNOTATION);
    }
    let mut text = String::from_utf8(json::to_json(&config)).unwrap_or_default();
    text.push('\n');
    let annotations = object.entry("metadata").entry("annotations");
    let size = |all: &Value| -> usize {
        let entries = all.fields().into_iter().flatten().filter(|(key, _)| *key != ANNOTATION);
        entries.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum()
    };
    if size(annotations) + ANNOTATION.len() + text.len() > ANNOTATION_BYTES {
        annotations.remove(ANNOTATION);
    } else {
        annotations.set(ANNOTATION, text);
    }
    true
}
