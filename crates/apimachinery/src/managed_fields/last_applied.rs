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

/// The annotation.
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The owner for whom it is read and written.
const OWNER: &str = "kubectl";

fn annotation(object: &Value) -> &str {
    object.at(&["metadata", "annotations"]).map(|all| all.str(ANNOTATION)).unwrap_or_default()
}

/// The fields that the annotation states as they are: whoever applied them then may do so again.
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
    let differs = compare(versions.registry, ty, Some(&stated), live).ok()?;
    Some(fields.difference(&differs.modified).difference(&differs.added).difference(&differs.removed))
}

/// Whether the annotation is to be written whatever is applied.
pub(super) fn is_kept_up(manager: &str, object: &Value) -> bool {
    manager == OWNER && !annotation(object).is_empty()
}

/// Makes the annotation say what is applied now, where there is one. Answers whether there is.
pub(super) fn keep_up(manager: &str, config: &Value, object: &mut Value) -> bool {
    if !is_kept_up(manager, object) {
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
    let weight = |all: &Value| -> usize {
        let entries = all.fields().into_iter().flatten().filter(|(key, _)| *key != ANNOTATION);
        entries.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum()
    };
    if weight(annotations) + ANNOTATION.len() + text.len() > ANNOTATION_BYTES {
        annotations.remove(ANNOTATION);
    } else {
        annotations.set(ANNOTATION, text);
    }
    true
}
