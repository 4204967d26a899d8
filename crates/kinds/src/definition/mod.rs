//! CustomResourceDefinitions.
//!
//! A field that is the same in all versions counts as a field of the whole definition: its errors have the path
//! `spec.validation`, `spec.subresources` and so on, whatever the version of the API.

mod approval;
mod conversion;
mod pattern;
mod schema;
mod shown;
pub mod status;
mod structural;
mod versions;

use approval::approval;
use conversion::conversion;
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field_value::{FieldValue, fill_text, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};
use shown::{printer_columns, scale, selectable_fields};
use versions::{deprecation, stored_versions, version_name, version_set};

use self::status::{CLEANUP_FINALIZER, DeletionProgress};
use super::{COUNTED, FirstDeletion, KindRules, MetaRevalidation, WriteContext};

/// The rules of a CustomResourceDefinition.
pub const RULES: KindRules = KindRules {
    own_name,
    known_finalizers: false,
    unconditional_update: false,
    default,
    finish: Some(default),
    prepare_create,
    prepare_update,
    first_deletion: FirstDeletion::Marks,
    terminate,
    validate,
    validate_update,
    validate_status,
    meta_revalidation: MetaRevalidation::Change,
    ..COUNTED
};

/// Defaults: names that are derived from other names.
fn default(definition: &mut Value) {
    let spec = definition.entry("spec");
    let kind = spec.at(&["names", "kind"]).and_then(Value::as_str).unwrap_or_default().to_owned();
    if !kind.is_empty() {
        let names = spec.entry("names");
        fill_text(names, "singular", &kind.to_lowercase());
        fill_text(names, "listKind", &format!("{kind}List"));
    }
    // An empty conversion gets no default: validation refuses it.
    let is_set = spec.get("conversion").is_some_and(|conversion| conversion.fields().is_some());
    if !is_set {
        spec.entry("conversion").set("strategy", "None");
    }
    if definition.at(&["status", "storedVersions"]).is_none_or(|all| all.items().is_empty()) {
        remember_stored(definition);
    }
}

/// A definition that is being deleted stays until its objects are gone: sets the condition and the finalizer for that.
fn terminate(definition: &mut Value) {
    let now = meta::of(definition).str("deletionTimestamp").to_owned();
    let finalizers = definition.entry("metadata").entry("finalizers");
    let mut all = finalizers.items().to_vec();
    if !all.iter().any(|one| one.as_str() == Some(CLEANUP_FINALIZER)) {
        all.push(CLEANUP_FINALIZER.into());
    }
    *finalizers = Value::Array(all.into());
    status::ending(definition, &DeletionProgress::Pending, &now);
}

/// Records the storage version in the status.
fn prepare_create(definition: &mut Value, _: &WriteContext<'_>) {
    remember_stored(definition);
}

/// The same for an update.
fn prepare_update(new: &mut Value, _old: &Value, _: &WriteContext<'_>) {
    remember_stored(new);
}

fn remember_stored(definition: &mut Value) {
    let versions = definition.at(&["spec", "versions"]).map(Value::items).unwrap_or_default();
    let stored =
        versions.iter().find(|version| version.get("storage").and_then(Value::as_bool) == Some(true));
    let Some(name) = stored.map(|version| Value::from(version.str("name"))) else { return };
    let list = definition.entry("status").entry("storedVersions");
    let mut all = list.items().to_vec();
    if !all.contains(&name) {
        all.push(name);
    }
    *list = Value::Array(all.into());
}

/// The error of a name that is not made of plural and group.
pub fn own_name(definition: &Value, name: &str) -> Option<String> {
    let text = |path: &[&str]| definition.at(path).and_then(Value::as_str).unwrap_or_default();
    let wanted = format!("{}.{}", text(&["spec", "names", "plural"]), text(&["spec", "group"]));
    (name != wanted).then(|| "must be spec.names.plural+\".\"+spec.group".to_owned())
}

/// Whether the CA bundle of the conversion webhook is invalid: such a definition is not served.
pub fn has_bad_bundle(definition: &Value) -> bool {
    conversion::has_bad_bundle(&FieldValue::of(definition, "spec").child("conversion"))
}

/// Validates a definition.
fn validate(definition: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(definition, "spec");
    validate_spec(&spec, Lenience { needs_known_review: true, takes_any_bundle: true }, errors);
    validate_rest(definition, None, errors);
}

/// Validates an update: names are immutable, and once the definition is served so are kind and scope.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (spec, was) = (FieldValue::of(new, "spec"), FieldValue::of(old, "spec"));
    let versions = was.child("conversion").child("webhook").child("conversionReviewVersions");
    let needs_known_review =
        versions.is_empty() || versions.items().any(|one| matches!(one.text(), "v1" | "v1beta1"));
    let takes_any_bundle = !is_established(old) || conversion::has_bad_bundle(&was.child("conversion"));
    validate_spec(&spec, Lenience { needs_known_review, takes_any_bundle }, errors);
    let unchanged = |now: FieldValue<'_>, was: FieldValue<'_>, errors: &mut ErrorList| {
        if now.text() != was.text() {
            now.invalid_text(errors, meta::IMMUTABLE);
        }
    };
    let (names, had) = (spec.child("names"), was.child("names"));
    if is_established(old) {
        unchanged(spec.child("scope"), was.child("scope"), errors);
        unchanged(names.child("kind"), had.child("kind"), errors);
    }
    unchanged(spec.child("group"), was.child("group"), errors);
    unchanged(names.child("plural"), had.child("plural"), errors);
    validate_rest(new, Some(old), errors);
}

/// Validates an update of the status.
fn validate_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    validate_names(&FieldValue::of(new, "status").child("acceptedNames"), errors);
}

fn is_established(definition: &Value) -> bool {
    FieldValue::of(definition, "status").child("conditions").items().any(|condition| {
        condition.child("type").text() == "Established" && condition.child("status").text() == "True"
    })
}

/// Validates the fields outside of the spec.
fn validate_rest(definition: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    validate_status(definition, definition, errors);
    stored_versions(definition, errors);
    approval(definition, old, errors);
    let preserves = |object: &Value| FieldValue::of(object, "spec").child("preserveUnknownFields").is_true();
    if preserves(definition) && !old.is_some_and(preserves) {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                   spec.versions[*].schema instead";
        FieldValue::of(definition, "spec").child("preserveUnknownFields").invalid(errors, why);
    }
}

/// A field of the versions: one field of the definition if all versions agree, else one of each version.
fn per_version<'a>(spec: &FieldValue<'a>, field: &str, whole: &str) -> Option<FieldValue<'a>> {
    let versions = spec.child("versions");
    let mut all = versions.items().map(|version| version.child(field));
    let first = all.next()?;
    // Comparing an empty field with a missing one is slow, so it is done once and not per version.
    let is_void = same(Some(first.value), None);
    all.all(|other| same(Some(other.value), Some(first.value).filter(|_| !is_void)))
        .then(|| FieldValue { value: first.value, path: spec.path.child(whole) })
}

/// What is tolerated in a conversion webhook because of the previous state of the definition.
#[derive(Clone, Copy)]
struct Lenience {
    /// Whether it must support a known version of ConversionReview.
    needs_known_review: bool,
    /// Whether an invalid CA bundle is tolerated: the version is not served yet, or the bundle was invalid before.
    takes_any_bundle: bool,
}

fn validate_spec(spec: &FieldValue<'_>, lenience: Lenience, errors: &mut ErrorList) {
    let (group, preserves) = (spec.child("group"), spec.child("preserveUnknownFields").is_true());
    let wrong = names::dns_subdomain(group.text());
    if group.is_empty() {
        group.required(errors, "");
    } else if !wrong.is_empty() {
        group.invalid(errors, &wrong.join(","));
    } else if !group.text().contains('.') {
        group.invalid(errors, "should be a domain with at least one dot");
    }
    spec.child("scope").need_one_of(errors, &["Cluster", "Namespaced"]);
    let versions = spec.child("versions");
    let schema = per_version(spec, "schema", "validation");
    let subresources = per_version(spec, "subresources", "subresources");
    let columns = per_version(spec, "additionalPrinterColumns", "additionalPrinterColumns");
    let selectable = per_version(spec, "selectableFields", "selectableFields");
    let has_schema = |version: &FieldValue<'_>| version.child("schema").child("openAPIV3Schema").is_set();
    for version in versions.items().filter(|version| !has_schema(version)) {
        version.child("schema").child("openAPIV3Schema").required(errors, "schemas are required");
    }
    if preserves
        && versions.items().any(|version| has_default(&version.child("schema").child("openAPIV3Schema")))
    {
        let why = "must be false in order to use defaults in the schema";
        spec.child("preserveUnknownFields").invalid(errors, why);
    }
    for version in versions.items() {
        version_name(&version.child("name"), &version.child("name"), errors);
        deprecation(&version, errors);
        let with_status =
            subresources.as_ref().unwrap_or(&version.child("subresources")).child("status").is_set();
        if schema.is_none() {
            schema::validate(&version.child("schema"), with_status, errors);
        }
        if subresources.is_none() {
            scale(&version.child("subresources"), errors);
        }
        if columns.is_none() {
            printer_columns(&version.child("additionalPrinterColumns"), errors);
        }
        if selectable.is_none() {
            let own = version.child("schema").child("openAPIV3Schema");
            let needed = "version.schema.openAPIV3Schema is not included";
            selectable_fields(&version.child("selectableFields"), &own, needed, errors);
        }
    }
    version_set(spec, &versions, errors);
    for field in ["plural", "singular", "kind", "listKind"] {
        spec.child("names").child(field).need(errors);
    }
    validate_names(&spec.child("names"), errors);
    let any_status = versions.items().any(|version| version.child("subresources").child("status").is_set());
    if let Some(schema) = &schema {
        schema::validate(schema, any_status, errors);
    }
    if let Some(subresources) = &subresources {
        scale(subresources, errors);
    }
    if let Some(columns) = &columns {
        printer_columns(columns, errors);
    }
    if let Some(selectable) = &selectable {
        let first = versions.items().next().map(|version| version.child("schema").child("openAPIV3Schema"));
        if let Some(own) = first {
            selectable_fields(selectable, &own, "validations.schema is included", errors);
        }
    }
    conversion(&spec.child("conversion"), preserves, lenience, errors);
}

fn has_default(schema: &FieldValue<'_>) -> bool {
    schema.child("default").is_set() || structural::below(schema).iter().any(has_default)
}

fn validate_names(all: &FieldValue<'_>, errors: &mut ErrorList) {
    let label = |node: &FieldValue<'_>, text: &str, prefix: &str, errors: &mut ErrorList| {
        let wrong = names::dns_1035_label(text);
        if !text.is_empty() && !wrong.is_empty() {
            node.invalid_text(errors, &format!("{prefix}{}", wrong.join(",")));
        }
    };
    for field in ["plural", "singular"] {
        label(&all.child(field), all.child(field).text(), "", errors);
    }
    for field in ["kind", "listKind"] {
        let node = all.child(field);
        let prefix = "may have mixed case, but should otherwise match: ";
        label(&node, &node.text().to_lowercase(), prefix, errors);
    }
    let each = |field: &str, errors: &mut ErrorList| {
        for node in all.child(field).items() {
            let wrong = names::dns_1035_label(node.text());
            if !wrong.is_empty() {
                node.invalid_text(errors, &wrong.join(","));
            }
        }
    };
    each("shortNames", errors);
    if !all.child("kind").is_empty() && all.child("kind").text() == all.child("listKind").text() {
        all.child("listKind").invalid(errors, "kind and listKind may not be the same");
    }
    each("categories", errors);
}

#[cfg(test)]
mod tests;
