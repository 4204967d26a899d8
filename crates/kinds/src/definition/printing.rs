//! The scale subresource, printer columns and selectable fields of a definition.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;

use super::schema;

fn validate_simple_path(node: &FieldValue<'_>, errors: &mut ErrorList) -> bool {
    let is_simple = node.text().starts_with('.');
    if !is_simple {
        node.invalid_text(errors, "must be a simple json path starting with .");
    }
    is_simple
}

pub(super) fn validate_scale(subresources: &FieldValue<'_>, errors: &mut ErrorList) {
    let scale = subresources.child("scale");
    if !scale.is_set() {
        return;
    }
    let table: [(&str, &[&str], &str); 3] = [
        ("specReplicasPath", &[".spec."], "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."], "should be a json path under .status"),
        ("labelSelectorPath", &[".spec.", ".status."], "should be a json path under either .spec or .status"),
    ];
    for (field, prefixes, detail) in table {
        let node = scale.child(field);
        if node.is_empty() {
            if field != "labelSelectorPath" {
                node.required(errors, "");
            }
        } else if validate_simple_path(&node, errors)
            && !prefixes.iter().any(|prefix| node.text().starts_with(prefix))
        {
            node.invalid(errors, detail);
        }
    }
}

pub(super) fn validate_printer_columns(columns: &FieldValue<'_>, errors: &mut ErrorList) {
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
        let json_path =
            FieldValue { value: column.child("jsonPath").value, path: column.path.child("JSONPath") };
        if json_path.need(errors) {
            validate_simple_path(&json_path, errors);
        }
    }
}

/// Validates the selectable fields. `requirement` is the phrase of the message about a missing schema.
pub(super) fn validate_selectable_fields(
    fields: &FieldValue<'_>,
    schema: &FieldValue<'_>,
    requirement: &str,
    errors: &mut ErrorList,
) {
    const MAX_FIELDS: usize = 8;
    if fields.is_empty() {
        return;
    }
    if !schema.is_set() {
        let detail = format!("selectableFields may only be set when {requirement}");
        errors.push(FieldError::invalid(&fields.path, "\"\"", &detail));
        return;
    }
    let mut seen = BTreeSet::new();
    for field in fields.items() {
        let path = field.child("jsonPath");
        if !path.need(errors) {
            continue;
        }
        match schema::find_schema(path.text(), schema, false) {
            Err(detail) => {
                path.invalid(errors, &format!("is an invalid path: {detail}"));
                continue;
            }
            Ok(field_schema) => {
                if path.text() == ".metadata" || path.text().starts_with(".metadata.") {
                    path.invalid(errors, "must not point to fields in metadata");
                }
                if !matches!(field_schema.child("type").text(), "string" | "boolean" | "integer") {
                    let detail = "must point to a field of type string, boolean or integer. Enum string fields and \
                               strings with formats are allowed.";
                    path.invalid(errors, detail);
                }
            }
        }
        if !seen.insert(path.text()) {
            path.duplicate(errors);
        }
    }
    if seen.len() > MAX_FIELDS {
        errors.push(FieldError::too_many(&fields.path, seen.len(), MAX_FIELDS));
    }
}
