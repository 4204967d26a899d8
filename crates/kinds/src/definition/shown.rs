//! The scale, the table columns and the selectable fields of a definition.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;

use super::schema;

fn simple_path(node: &FieldValue<'_>, errors: &mut ErrorList) -> bool {
    let good = node.text().starts_with('.');
    if !good {
        node.invalid_text(errors, "must be a simple json path starting with .");
    }
    good
}

pub(super) fn scale(subresources: &FieldValue<'_>, errors: &mut ErrorList) {
    let scale = subresources.child("scale");
    if !scale.is_set() {
        return;
    }
    let table: [(&str, &[&str], &str); 3] = [
        ("specReplicasPath", &[".spec."], "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."], "should be a json path under .status"),
        ("labelSelectorPath", &[".spec.", ".status."], "should be a json path under either .spec or .status"),
    ];
    for (field, starts, why) in table {
        let node = scale.child(field);
        if node.is_empty() {
            if field != "labelSelectorPath" {
                node.required(errors, "");
            }
        } else if simple_path(&node, errors) && !starts.iter().any(|start| node.text().starts_with(start)) {
            node.invalid(errors, why);
        }
    }
}

pub(super) fn printer_columns(columns: &FieldValue<'_>, errors: &mut ErrorList) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    for column in columns.items() {
        column.child("name").need(errors);
        let (kind, format) = (column.child("type"), column.child("format"));
        let one_of = format!("must be one of {}", TYPES.join(","));
        if kind.is_empty() {
            kind.required(errors, &one_of);
        } else if !TYPES.contains(&kind.text()) {
            kind.invalid(errors, &one_of);
        }
        if !format.is_empty() && !FORMATS.contains(&format.text()) {
            format.invalid(errors, &format!("must be one of {}", FORMATS.join(",")));
        }
        let place = FieldValue { value: column.child("jsonPath").value, path: column.path.child("JSONPath") };
        if place.need(errors) {
            simple_path(&place, errors);
        }
    }
}

/// Validates the selectable fields. `needed` names the schema in the words of the reference.
pub(super) fn selectable_fields(
    fields: &FieldValue<'_>,
    schema: &FieldValue<'_>,
    needed: &str,
    errors: &mut ErrorList,
) {
    const MOST: usize = 8;
    if fields.is_empty() {
        return;
    }
    if !schema.is_set() {
        let why = format!("selectableFields may only be set when {needed}");
        errors.push(FieldError::invalid(&fields.path, "\"\"", &why));
        return;
    }
    let mut seen = BTreeSet::new();
    for field in fields.items() {
        let path = field.child("jsonPath");
        if !path.need(errors) {
            continue;
        }
        match schema::find(path.text(), schema, false) {
            Err(why) => {
                path.invalid(errors, &format!("is an invalid path: {why}"));
                continue;
            }
            Ok(found) => {
                if path.text() == ".metadata" || path.text().starts_with(".metadata.") {
                    path.invalid(errors, "must not point to fields in metadata");
                }
                if !matches!(found.child("type").text(), "string" | "boolean" | "integer") {
                    let why = "must point to a field of type string, boolean or integer. Enum string fields and \
                               strings with formats are allowed.";
                    path.invalid(errors, why);
                }
            }
        }
        if !seen.insert(path.text()) {
            path.duplicate(errors);
        }
    }
    if seen.len() > MOST {
        errors.push(FieldError::too_many(&fields.path, seen.len(), MOST));
    }
}
