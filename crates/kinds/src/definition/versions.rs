//! The versions of a definition: their names, the storage version, and former storage versions.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::super::messages;

/// Validates the name of a version; errors have the path `place`.
pub(super) fn version_name(name: &FieldValue<'_>, place: &FieldValue<'_>, errors: &mut ErrorList) {
    let wrong = names::dns_1035_label(name.text());
    if !wrong.is_empty() {
        place.invalid_text(errors, &wrong.join(","));
    }
}

pub(super) fn version_set(spec: &FieldValue<'_>, versions: &FieldValue<'_>, errors: &mut ErrorList) {
    let shown = if versions.is_set() {
        "[]apiextensions.CustomResourceDefinitionVersion{}"
    } else {
        "[]apiextensions.CustomResourceDefinitionVersion(nil)"
    };
    let mut bad = |why: &str| errors.push(FieldError::invalid(&versions.path, shown, why));
    let all: BTreeSet<&str> = versions.items().map(|version| version.child("name").text()).collect();
    if all.len() < versions.len() {
        bad("must contain unique version names");
    }
    if versions.items().filter(|version| version.child("storage").is_true()).count() != 1 {
        bad("must have exactly one version marked as storage version");
    }
    // The reference converts the first version to the older form of this kind and validates it there again.
    if let Some(first) = versions.items().next() {
        let name = first.child("name");
        if !name.is_empty() {
            version_name(&name, &FieldValue { value: name.value, path: spec.path.child("version") }, errors);
        }
    }
}

pub(super) fn deprecation(version: &FieldValue<'_>, errors: &mut ErrorList) {
    const LONGEST: usize = 256;
    let warning = version.child("deprecationWarning");
    if !warning.is_set() {
        return;
    }
    if !version.child("deprecated").is_true() {
        warning.invalid(errors, "can only be set for deprecated versions");
        return;
    }
    if warning.text().len() > LONGEST {
        warning.invalid(errors, "must be <= 256 characters long");
    }
    if warning.is_empty() {
        warning.invalid(errors, "must not be an empty string");
    }
    if let Some((at, _)) = warning.text().char_indices().find(|(_, c)| c.is_control()) {
        let why = format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {at}"
        );
        warning.invalid(errors, &why);
    }
}

pub(super) fn stored_versions(definition: &Value, errors: &mut ErrorList) {
    let stored = FieldValue::of(definition, "status").child("storedVersions");
    let shown = messages::shown_texts(&stored, "string");
    if stored.is_empty() {
        let why = "must have at least one stored version";
        errors.push(FieldError::invalid(&stored.path, &shown, why));
        return;
    }
    let versions = FieldValue::of(definition, "spec").child("versions");
    let mut in_storage: BTreeSet<&str> = stored.items().map(|one| one.text()).collect();
    for version in versions.items() {
        let name = version.child("name").text();
        // A duplicate name is looked up twice but reported once.
        if !in_storage.remove(name) && version.child("storage").is_true() {
            let why = format!("must have the storage version {name}");
            errors.add(|| FieldError::invalid(&stored.path, &shown, &why));
        }
    }
    let in_spec: BTreeSet<&str> = versions.items().map(|version| version.child("name").text()).collect();
    for one in stored.items() {
        let name = one.text();
        if !in_spec.contains(name) {
            let why = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in \
                 spec.versions until a storage migration ensures no data remains persisted in {name} and removes \
                 {name} from status.storedVersions"
            );
            one.invalid(errors, &why);
        }
    }
}
