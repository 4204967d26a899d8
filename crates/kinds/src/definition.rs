//! CustomResourceDefinitions.
//!
//! A field that is the same in all versions counts as a field of the whole definition: its errors have the path
//! `spec.validation`, `spec.subresources` and so on, whatever the version of the API.

mod approval;
mod conversion;
mod pattern;
mod printing;
mod schema;
pub mod status;
mod structural;
mod versions;

use approval::validate_approval;
use conversion::validate_conversion;
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field_value::{FieldValue, fill_text, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};
use pilothouse_structural::StoredExpressions;
use printing::{validate_printer_columns, validate_scale, validate_selectable_fields};
use versions::{validate_deprecation, validate_stored_versions, validate_version_name, validate_version_set};

use self::status::{CLEANUP_FINALIZER, DeletionProgress};
use super::{
    DefaultingRules, DeletionRules, FirstDeletion, KindRules, MetaRevalidation, MetadataRules,
    PreparationRules, ResetFields, StatusRules, UpdateRules, ValidationRules, WriteContext,
};

/// The rules of a CustomResourceDefinition.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules {
        validate_name,
        requires_standard_finalizers: false,
        revalidation: MetaRevalidation::Change,
        ..MetadataRules::SPEC_GENERATION
    },
    update: UpdateRules::CONDITIONAL,
    defaulting: DefaultingRules { default, default_stored: Some(default), ..DefaultingRules::DEFAULT },
    preparation: PreparationRules { prepare_create, prepare_update },
    validation: ValidationRules { validate, validate_update, ..ValidationRules::DEFAULT },
    status: StatusRules { validate: validate_status, ..StatusRules::DEFAULT },
    reset_fields: ResetFields::STATUS_KEEPS_METADATA,
    deletion: DeletionRules {
        first_deletion: FirstDeletion::SetsDeletionTimestamp,
        terminate,
        ..DeletionRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

/// Defaults: names that are derived from other names.
fn default(definition: &mut Value) {
    let spec = definition.entry("spec");
    let kind = spec.get_path(&["names", "kind"]).and_then(Value::as_str).unwrap_or_default().to_owned();
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
    if definition.get_path(&["status", "storedVersions"]).is_none_or(|all| all.items().is_empty()) {
        record_storage_version(definition);
    }
}

/// A definition that is being deleted stays until its objects are deleted: sets the condition and the finalizer for that.
fn terminate(definition: &mut Value) {
    let now = meta::metadata(definition).str("deletionTimestamp").to_owned();
    let list = definition.entry("metadata").entry("finalizers");
    let mut finalizers = list.items().to_vec();
    if !finalizers.iter().any(|finalizer| finalizer.as_str() == Some(CLEANUP_FINALIZER)) {
        finalizers.push(CLEANUP_FINALIZER.into());
    }
    *list = Value::Array(finalizers.into());
    status::set_deletion_progress(definition, &DeletionProgress::Pending, &now);
}

/// Records the storage version in the status.
fn prepare_create(definition: &mut Value, _: &WriteContext<'_>) {
    record_storage_version(definition);
}

/// The same for an update.
fn prepare_update(new: &mut Value, _old: &Value, _: &WriteContext<'_>) {
    record_storage_version(new);
}

fn record_storage_version(definition: &mut Value) {
    let versions = definition.get_path(&["spec", "versions"]).map(Value::items).unwrap_or_default();
    let stored =
        versions.iter().find(|version| version.get("storage").and_then(Value::as_bool) == Some(true));
    let Some(name) = stored.map(|version| Value::from(version.str("name"))) else { return };
    let list = definition.entry("status").entry("storedVersions");
    let mut stored_versions = list.items().to_vec();
    if !stored_versions.contains(&name) {
        stored_versions.push(name);
    }
    *list = Value::Array(stored_versions.into());
}

/// The error of a name that is not made of plural and group.
pub fn validate_name(definition: &Value, name: &str) -> Option<String> {
    let text = |path: &[&str]| definition.get_path(path).and_then(Value::as_str).unwrap_or_default();
    let expected = format!("{}.{}", text(&["spec", "names", "plural"]), text(&["spec", "group"]));
    (name != expected).then(|| "must be spec.names.plural+\".\"+spec.group".to_owned())
}

/// Whether the CA bundle of the conversion webhook is invalid: such a definition is not served.
pub fn has_invalid_ca_bundle(definition: &Value) -> bool {
    conversion::has_invalid_ca_bundle(&FieldValue::top_level(definition, "spec").child("conversion"))
}

/// Validates a definition.
fn validate(definition: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(definition, "spec");
    let stored = &StoredExpressions::default();
    let tolerance = Tolerance { needs_known_review: true, allows_invalid_bundle: true, stored };
    validate_spec(&spec, tolerance, errors);
    validate_outside_spec(definition, None, errors);
}

/// Validates an update: names are immutable, and once the definition is served so are kind and scope.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (spec, old_spec) = (FieldValue::top_level(new, "spec"), FieldValue::top_level(old, "spec"));
    let versions = old_spec.child("conversion").child("webhook").child("conversionReviewVersions");
    let needs_known_review =
        versions.is_empty() || versions.items().any(|version| matches!(version.text(), "v1" | "v1beta1"));
    let allows_invalid_bundle =
        !is_established(old) || conversion::has_invalid_ca_bundle(&old_spec.child("conversion"));
    let mut stored = StoredExpressions::default();
    for version in old_spec.child("versions").value.items() {
        if let Some(schema) = version.get_path(&["schema", "openAPIV3Schema"]) {
            stored.add(schema);
        }
    }
    let tolerance = Tolerance { needs_known_review, allows_invalid_bundle, stored: &stored };
    validate_spec(&spec, tolerance, errors);
    let validate_unchanged = |new: FieldValue<'_>, old: FieldValue<'_>, errors: &mut ErrorList| {
        if new.text() != old.text() {
            new.invalid_text(errors, meta::IMMUTABLE);
        }
    };
    let (names, old_names) = (spec.child("names"), old_spec.child("names"));
    if is_established(old) {
        validate_unchanged(spec.child("scope"), old_spec.child("scope"), errors);
        validate_unchanged(names.child("kind"), old_names.child("kind"), errors);
    }
    validate_unchanged(spec.child("group"), old_spec.child("group"), errors);
    validate_unchanged(names.child("plural"), old_names.child("plural"), errors);
    validate_outside_spec(new, Some(old), errors);
}

/// Validates an update of the status.
fn validate_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    validate_names(&FieldValue::top_level(new, "status").child("acceptedNames"), errors);
}

fn is_established(definition: &Value) -> bool {
    FieldValue::top_level(definition, "status").child("conditions").items().any(|condition| {
        condition.child("type").text() == "Established" && condition.child("status").text() == "True"
    })
}

/// Validates the fields outside of the spec.
fn validate_outside_spec(definition: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    validate_status(definition, definition, errors);
    validate_stored_versions(definition, errors);
    validate_approval(definition, old, errors);
    let preserves_unknown =
        |object: &Value| FieldValue::top_level(object, "spec").child("preserveUnknownFields").is_true();
    if preserves_unknown(definition) && !old.is_some_and(preserves_unknown) {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                   spec.versions[*].schema instead";
        FieldValue::top_level(definition, "spec").child("preserveUnknownFields").invalid(errors, detail);
    }
}

/// A field of the versions as a field of the definition, if all versions agree.
fn common_field<'a>(spec: &FieldValue<'a>, field: &str, name: &str) -> Option<FieldValue<'a>> {
    let versions = spec.child("versions");
    let mut values = versions.items().map(|version| version.child(field));
    let first = values.next()?;
    // Comparing an empty field with a missing one is slow, so it is done once and not per version.
    let is_absent = same(Some(first.value), None);
    values
        .all(|other| same(Some(other.value), Some(first.value).filter(|_| !is_absent)))
        .then(|| FieldValue { value: first.value, path: spec.path.child(name) })
}

/// What is tolerated because of the previous state of the definition.
#[derive(Clone, Copy)]
struct Tolerance<'a> {
    /// Whether the webhook must support a known version of ConversionReview.
    needs_known_review: bool,
    /// Whether an invalid CA bundle is tolerated: the version is not served yet, or the bundle was invalid before.
    allows_invalid_bundle: bool,
    /// The expressions that it had.
    stored: &'a StoredExpressions<'a>,
}

fn validate_group(group: &FieldValue<'_>, errors: &mut ErrorList) {
    let details = names::dns_subdomain(group.text());
    if group.is_empty() {
        group.required(errors, "");
    } else if !details.is_empty() {
        group.invalid(errors, &details.join(","));
    } else if !group.text().contains('.') {
        group.invalid(errors, "should be a domain with at least one dot");
    }
}

fn validate_spec(spec: &FieldValue<'_>, tolerance: Tolerance<'_>, errors: &mut ErrorList) {
    let preserves_unknown = spec.child("preserveUnknownFields").is_true();
    validate_group(&spec.child("group"), errors);
    spec.child("scope").need_one_of(errors, &["Cluster", "Namespaced"]);
    let versions = spec.child("versions");
    let schema = common_field(spec, "schema", "validation");
    let subresources = common_field(spec, "subresources", "subresources");
    let columns = common_field(spec, "additionalPrinterColumns", "additionalPrinterColumns");
    let selectable = common_field(spec, "selectableFields", "selectableFields");
    let has_schema = |version: &FieldValue<'_>| version.child("schema").child("openAPIV3Schema").is_set();
    for version in versions.items().filter(|version| !has_schema(version)) {
        version.child("schema").child("openAPIV3Schema").required(errors, "schemas are required");
    }
    if preserves_unknown
        && versions.items().any(|version| has_default(&version.child("schema").child("openAPIV3Schema")))
    {
        let detail = "must be false in order to use defaults in the schema";
        spec.child("preserveUnknownFields").invalid(errors, detail);
    }
    for version in versions.items() {
        validate_version_name(&version.child("name"), &version.child("name"), errors);
        validate_deprecation(&version, errors);
        let has_status =
            subresources.as_ref().unwrap_or(&version.child("subresources")).child("status").is_set();
        if schema.is_none() {
            schema::validate(&version.child("schema"), has_status, tolerance.stored, errors);
        }
        if subresources.is_none() {
            validate_scale(&version.child("subresources"), errors);
        }
        if columns.is_none() {
            validate_printer_columns(&version.child("additionalPrinterColumns"), errors);
        }
        if selectable.is_none() {
            let version_schema = version.child("schema").child("openAPIV3Schema");
            let requirement = "version.schema.openAPIV3Schema is not included";
            validate_selectable_fields(
                &version.child("selectableFields"),
                &version_schema,
                requirement,
                errors,
            );
        }
    }
    validate_version_set(spec, &versions, errors);
    for field in ["plural", "singular", "kind", "listKind"] {
        spec.child("names").child(field).need(errors);
    }
    validate_names(&spec.child("names"), errors);
    let has_any_status =
        versions.items().any(|version| version.child("subresources").child("status").is_set());
    if let Some(schema) = &schema {
        schema::validate(schema, has_any_status, tolerance.stored, errors);
    }
    if let Some(subresources) = &subresources {
        validate_scale(subresources, errors);
    }
    if let Some(columns) = &columns {
        validate_printer_columns(columns, errors);
    }
    if let Some(selectable) = &selectable {
        let first = versions.items().next().map(|version| version.child("schema").child("openAPIV3Schema"));
        if let Some(version_schema) = first {
            validate_selectable_fields(selectable, &version_schema, "validations.schema is included", errors);
        }
    }
    validate_conversion(&spec.child("conversion"), preserves_unknown, tolerance, errors);
}

fn has_default(schema: &FieldValue<'_>) -> bool {
    schema.child("default").is_set() || structural::subschemas(schema).iter().any(has_default)
}

fn validate_names(names_of: &FieldValue<'_>, errors: &mut ErrorList) {
    let validate_label = |node: &FieldValue<'_>, text: &str, prefix: &str, errors: &mut ErrorList| {
        let details = names::dns_1035_label(text);
        if !text.is_empty() && !details.is_empty() {
            node.invalid_text(errors, &format!("{prefix}{}", details.join(",")));
        }
    };
    for field in ["plural", "singular"] {
        validate_label(&names_of.child(field), names_of.child(field).text(), "", errors);
    }
    for field in ["kind", "listKind"] {
        let node = names_of.child(field);
        let prefix = "may have mixed case, but should otherwise match: ";
        validate_label(&node, &node.text().to_lowercase(), prefix, errors);
    }
    let validate_each = |field: &str, errors: &mut ErrorList| {
        for node in names_of.child(field).items() {
            let details = names::dns_1035_label(node.text());
            if !details.is_empty() {
                node.invalid_text(errors, &details.join(","));
            }
        }
    };
    validate_each("shortNames", errors);
    if !names_of.child("kind").is_empty()
        && names_of.child("kind").text() == names_of.child("listKind").text()
    {
        names_of.child("listKind").invalid(errors, "kind and listKind may not be the same");
    }
    validate_each("categories", errors);
}

#[cfg(test)]
mod tests;
