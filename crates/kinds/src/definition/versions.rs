//! The versions of a definition: their names, the storage version, and former storage versions.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::super::messages;

/// Validates the name of a version; errors have the path of `reported`.
pub(super) fn validate_version_name(
    name: &FieldValue<'_>,
    reported: &FieldValue<'_>,
    errors: &mut ErrorList,
) {
    let details = names::dns_1035_label(name.text());
    if !details.is_empty() {
        reported.invalid_text(errors, &details.join(","));
    }
}

pub(super) fn validate_version_set(spec: &FieldValue<'_>, versions: &FieldValue<'_>, errors: &mut ErrorList) {
    let rendered = if versions.is_set() {
        "[]apiextensions.CustomResourceDefinitionVersion{}"
    } else {
        "[]apiextensions.CustomResourceDefinitionVersion(nil)"
    };
    let mut invalid = |detail: &str| errors.push(FieldError::invalid(&versions.path, rendered, detail));
    let names_seen: BTreeSet<&str> = versions.items().map(|version| version.child("name").text()).collect();
    if names_seen.len() < versions.len() {
        invalid("must contain unique version names");
    }
    if versions.items().filter(|version| version.child("storage").is_true()).count() != 1 {
        invalid("must have exactly one version marked as storage version");
    }
    // The reference converts the first version to the older form of this kind and validates it there again.
    if let Some(first) = versions.items().next() {
        let name = first.child("name");
        if !name.is_empty() {
            validate_version_name(
                &name,
                &FieldValue { value: name.value, path: spec.path.child("version") },
                errors,
            );
        }
    }
}

pub(super) fn validate_deprecation(version: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_LENGTH: usize = 256;
    let warning = version.child("deprecationWarning");
    if !warning.is_set() {
        return;
    }
    if !version.child("deprecated").is_true() {
        warning.invalid(errors, "can only be set for deprecated versions");
        return;
    }
    if warning.text().len() > MAX_LENGTH {
        warning.invalid(errors, "must be <= 256 characters long");
    }
    if warning.is_empty() {
        warning.invalid(errors, "must not be an empty string");
    }
    if let Some((index, _)) = warning.text().char_indices().find(|(_, c)| c.is_control()) {
        let detail = format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {index}"
        );
        warning.invalid(errors, &detail);
    }
}

pub(super) fn validate_stored_versions(definition: &Value, errors: &mut ErrorList) {
    let stored = FieldValue::top_level(definition, "status").child("storedVersions");
    let rendered = messages::render_strings(&stored, "string");
    if stored.is_empty() {
        let detail = "must have at least one stored version";
        errors.push(FieldError::invalid(&stored.path, &rendered, detail));
        return;
    }
    let versions = FieldValue::top_level(definition, "spec").child("versions");
    let mut in_storage: BTreeSet<&str> = stored.items().map(|version| version.text()).collect();
    for version in versions.items() {
        let name = version.child("name").text();
        // A duplicate name is looked up twice but reported once.
        if !in_storage.remove(name) && version.child("storage").is_true() {
            let detail = format!("must have the storage version {name}");
            errors.add(|| FieldError::invalid(&stored.path, &rendered, &detail));
        }
    }
    let in_spec: BTreeSet<&str> = versions.items().map(|version| version.child("name").text()).collect();
    for version in stored.items() {
        let name = version.text();
        if !in_spec.contains(name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in \
                 spec.versions until a storage migration ensures no data remains persisted in {name} and removes \
                 {name} from status.storedVersions"
            );
            version.invalid(errors, &detail);
        }
    }
}
