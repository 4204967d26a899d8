//! The rules of `metadata`: which fields clients set, which the server sets, and which never change.

use std::collections::{BTreeSet, HashSet};

use super::codec;
use super::error_list::ErrorList;
use super::field::{FieldError, FieldPath, quoted};
use super::names::{self, NameRule};
use super::options;
use super::status::Status;
use super::value::Value;

/// The total size of an object's annotations, keys and values.
pub const ANNOTATION_BYTES: usize = 256 << 10;
/// The maximum length of a generated name, so that it still is a DNS label.
const NAME_LENGTH: usize = 63;
/// The deprecated link of an object to itself.
const SELF_LINK: &str = "selfLink";
/// The grace period of a terminating object.
const GRACE_PERIOD: &str = "deletionGracePeriodSeconds";
const SUFFIX_LENGTH: usize = 5;
/// The characters of a generated suffix: no vowels or similar digits, so that no words come out.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// The maximum length of a field manager's name.
const MANAGER_LENGTH: usize = 128;
/// The maximum length of a subresource's name.
const SUBRESOURCE_LENGTH: usize = 256;

/// A part of the warning about duplicate owner references.
const DUPLICATE_OWNERS_WARNING: &str = "API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; \
                       please fix your requests";

/// The finalizer of orphaning deletions.
pub const ORPHAN_FINALIZER: &str = "orphan";
/// The finalizer of foreground deletions.
pub const FOREGROUND_FINALIZER: &str = "foregroundDeletion";
/// The error for changes of immutable fields.
pub const IMMUTABLE: &str = "field is immutable";

/// The metadata, null if absent.
pub fn metadata(object: &Value) -> &Value {
    object.get("metadata").unwrap_or(&Value::Null)
}

/// The name of an object, empty if it has none.
pub fn name(object: &Value) -> &str {
    metadata(object).str("name")
}

/// Whether an object is being deleted.
pub fn is_terminating(object: &Value) -> bool {
    metadata(object).get("deletionTimestamp").is_some()
}

/// The generation, 0 if the kind has none.
pub fn generation(object: &Value) -> i64 {
    metadata(object).get("generation").and_then(Value::as_int).unwrap_or_default()
}

/// Generates a name from `generateName` if an object has none. `random` returns numbers below its argument. Returns whether a
/// name was generated: then a collision is worth another try.
pub fn generate_name(object: &mut Value, random: &mut dyn FnMut(usize) -> usize) -> bool {
    let meta = metadata(object);
    if !meta.str("name").is_empty() || meta.str("generateName").is_empty() {
        return false;
    }
    let base = meta.str("generateName");
    let mut end = base.len().min(NAME_LENGTH - SUFFIX_LENGTH);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = base.get(..end).unwrap_or_default().to_owned();
    for _ in 0..SUFFIX_LENGTH {
        let index = random(SUFFIX_ALPHABET.len());
        name.push(SUFFIX_ALPHABET.get(index).copied().map_or('x', char::from));
    }
    object.entry("metadata").set("name", name);
    true
}

/// Whether an object has a generateName, needed or not.
pub fn has_generate_name(object: &Value) -> bool {
    !metadata(object).str("generateName").is_empty()
}

/// Unshares the labels that an object has copied from its own pod template. Each generated name is tried on a copy of the
/// object, where both must be independent.
pub fn unshare_labels(object: &mut Value) {
    let labels = metadata(object).get("labels").and_then(Value::fields).cloned();
    if let Some(labels) = labels {
        object.entry("metadata").set("labels", Value::Object(labels.into_fields().into()));
    }
}

/// Uses `generateName` as the name. Returns false: another try would give the same name.
pub fn take_prefix_as_name(object: &mut Value) -> bool {
    let meta = metadata(object);
    let prefix = meta.str("generateName");
    if meta.str("name").is_empty() && !prefix.is_empty() {
        let prefix = prefix.to_owned();
        object.entry("metadata").set("name", prefix);
    }
    false
}

/// Checks that a new object has no resourceVersion. Version 0 counts as none, and so does a text that is no number:
/// clients write such texts (`v1`) into manifests, and the reference accepts them.
pub fn check_unversioned(object: &Value) -> Result<(), Box<Status>> {
    if !matches!(options::revision(metadata(object).str("resourceVersion")), Ok(Some(1..))) {
        return Ok(());
    }
    Err(Status::bad_request("resourceVersion should not be set on objects to be created"))
}

/// Sets the namespace of the request path in the object; an error if the object has another one. It is empty for cluster-scoped
/// kinds.
pub fn ensure_namespace(object: &mut Value, namespace: &str) -> Result<(), Box<Status>> {
    let current = metadata(object).str("namespace");
    if current == namespace {
        return Ok(());
    }
    if namespace.is_empty() {
        object.entry("metadata").remove("namespace");
        return Ok(());
    }
    if current.is_empty() {
        object.entry("metadata").set("namespace", namespace);
        return Ok(());
    }
    Err(Status::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    ))
}

/// Checks that the name in the object is that of the path.
pub fn check_name(object: &Value, name: &str) -> Result<(), Box<Status>> {
    match metadata(object).str("name") {
        "" => Err(Status::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        own if own == name => Ok(()),
        own => Err(Status::bad_request(format!(
            "the name of the object ({own}) does not match the name on the URL ({name})"
        ))),
    }
}

/// Sets the fields that only the server sets on a new object. The selfLink stays: responses of unstored objects have it, and it
/// is removed before storing. So does a grace period: a POST has removed it by then, but a PUT or an apply that creates keeps it.
pub fn set_system_fields(object: &mut Value, uid: &str, now: &str) {
    let retained = [SELF_LINK, GRACE_PERIOD].map(|field| (field, metadata(object).get(field).cloned()));
    clear_system_fields(object);
    let meta = object.entry("metadata");
    for (field, value) in retained {
        if let Some(value) = value {
            meta.set(field, value);
        }
    }
    meta.set("uid", uid);
    meta.set("creationTimestamp", now);
}

/// Removes the fields that only the server sets.
pub fn clear_system_fields(object: &mut Value) {
    let fields = ["uid", "creationTimestamp", "deletionTimestamp", GRACE_PERIOD, SELF_LINK];
    let meta = object.entry("metadata");
    fields.iter().for_each(|field| {
        meta.remove(field);
    });
}

/// Removes duplicate owner references. Returns the warning for the client.
pub fn dedupe_owners(object: &mut Value) -> Option<String> {
    let mut duplicates = Vec::new();
    let owners = object.get_mut("metadata").and_then(|meta| meta.get_mut("ownerReferences"));
    if let Some(Value::Array(owners)) = owners {
        let mut seen = HashSet::with_capacity(owners.len());
        owners.retain(|owner| {
            let first = seen.insert(codec::to_json(owner));
            if !first {
                duplicates.push(owner.str("uid").to_owned());
            }
            first
        });
    }
    (!duplicates.is_empty()).then(|| {
        format!(
            ".metadata.ownerReferences contains duplicate entries; {DUPLICATE_OWNERS_WARNING}; duplicate UID(s) observed: {}",
            duplicates.join(", ")
        )
    })
}

/// Removes duplicate owner references after admission or a patch, with another warning.
pub fn dedupe_changed_owners(object: &mut Value) -> Option<String> {
    let warning = dedupe_owners(object)?;
    Some(warning.replacen("duplicate entries;", "duplicate entries after mutating admission happens;", 1))
}

/// Restores the fields that an update cannot change.
pub fn keep_system_fields(new: &mut Value, old: &Value) {
    let old = metadata(old);
    let meta = new.entry("metadata");
    if meta.str("uid").is_empty() {
        copy(meta, old, "uid");
    }
    if old.get("creationTimestamp").is_some() {
        copy(meta, old, "creationTimestamp");
    }
    if old.get("deletionTimestamp").is_some() {
        copy(meta, old, "deletionTimestamp");
    }
    if meta.get(GRACE_PERIOD).is_none() {
        copy(meta, old, GRACE_PERIOD);
    }
}

/// Removes the selfLink, which is not stored.
pub fn drop_self_link(object: &mut Value) {
    if metadata(object).get(SELF_LINK).is_some() {
        object.entry("metadata").remove(SELF_LINK);
    }
}

/// Copies a field, or its absence.
pub fn copy(target: &mut Value, source: &Value, field: &str) {
    match source.get(field) {
        Some(value) => target.set(field, value.clone()),
        None => {
            target.remove(field);
        }
    }
}

/// The `validate_name` of kinds without an additional check.
pub fn any_name(_: &Value, _: &str) -> Option<String> {
    None
}

/// How the metadata of a kind is validated.
#[derive(Clone, Copy)]
pub struct MetaRules {
    /// The syntax of the name.
    pub name: NameRule,
    /// An additional check of a name or prefix that depends on the object.
    pub validate_name: fn(&Value, &str) -> Option<String>,
    /// Whether the kind is namespaced.
    pub namespaced: bool,
    /// Whether a finalizer without a domain must be a standard one.
    pub requires_standard_finalizers: bool,
}

/// Validates the metadata of an object.
pub fn validate(object: &Value, rules: MetaRules, errors: &mut ErrorList) {
    let path = FieldPath::new("metadata");
    let meta = metadata(object);
    let (prefix, name, namespace) = (meta.str("generateName"), meta.str("name"), meta.str("namespace"));
    if !prefix.is_empty() {
        let mut messages = (rules.name)(prefix, true);
        messages.extend((rules.validate_name)(object, prefix));
        add_invalid(errors, &path.child("generateName"), prefix, messages);
    }
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "name or generateName is required"));
    } else {
        let mut messages = (rules.name)(name, false);
        messages.extend((rules.validate_name)(object, name));
        add_invalid(errors, &path.child("name"), name, messages);
    }
    if rules.namespaced {
        if namespace.is_empty() {
            errors.push(FieldError::required(&path.child("namespace"), ""));
        } else {
            add_invalid(errors, &path.child("namespace"), namespace, names::dns_label(namespace));
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden(&path.child("namespace"), "not allowed on this type"));
    }
    let generation = generation(object);
    if generation < 0 {
        errors.push(FieldError::invalid(
            &path.child("generation"),
            &generation.to_string(),
            "must be greater than or equal to 0",
        ));
    }
    validate_descriptions(meta, &path, errors);
    validate_finalizers(meta, &path.child("finalizers"), errors);
    if rules.requires_standard_finalizers {
        validate_standard_finalizers(meta, &path.child("finalizers"), errors);
    }
}

/// Validates a change of metadata.
pub fn validate_update(new: &Value, old: &Value, requires_standard_finalizers: bool, errors: &mut ErrorList) {
    let path = FieldPath::new("metadata");
    let terminating = is_terminating(old);
    let (new, old) = (metadata(new), metadata(old));
    if terminating {
        validate_no_new_finalizers(new, old, &path.child("finalizers"), errors);
    }
    if new.str("resourceVersion").is_empty() {
        let detail = "must be specified for an update";
        errors.push(FieldError::invalid(&path.child("resourceVersion"), "\"\"", detail));
    }
    let number = |meta: &Value| meta.get("generation").and_then(Value::as_int).unwrap_or_default();
    if number(new) < number(old) {
        let detail = "must not be decremented";
        errors.push(FieldError::invalid(&path.child("generation"), &number(new).to_string(), detail));
    }
    for field in ["name", "namespace", "uid"] {
        if new.str(field) != old.str(field) {
            errors.push(FieldError::invalid(&path.child(field), &quoted(new.str(field)), IMMUTABLE));
        }
    }
    for field in ["creationTimestamp", "deletionTimestamp"] {
        if new.get(field) != old.get(field) {
            errors.push(FieldError::invalid(&path.child(field), &render_time(new.str(field)), IMMUTABLE));
        }
    }
    if new.get(GRACE_PERIOD) != old.get(GRACE_PERIOD) {
        let value = new
            .get(GRACE_PERIOD)
            .and_then(Value::as_int)
            .map_or("null".to_owned(), |value| value.to_string());
        errors.push(FieldError::invalid(&path.child(GRACE_PERIOD), &value, IMMUTABLE));
    }
    validate_descriptions(new, &path, errors);
    if requires_standard_finalizers {
        validate_standard_finalizers(new, &path.child("finalizers"), errors);
    }
}

/// A time as messages print it.
fn render_time(text: &str) -> String {
    match text.strip_suffix('Z') {
        Some(time) => format!("{} +0000 UTC", time.replacen('T', " ", 1)),
        None if text.is_empty() => "null".to_owned(),
        None => text.to_owned(),
    }
}

/// Labels, annotations, owners and managers: validated on create and update.
fn validate_descriptions(meta: &Value, path: &FieldPath, errors: &mut ErrorList) {
    validate_labels(meta.get("labels"), &path.child("labels"), errors);
    validate_annotations(meta.get("annotations"), &path.child("annotations"), errors);
    validate_owners(meta.get("ownerReferences"), &path.child("ownerReferences"), errors);
    validate_managers(meta.get("managedFields"), &path.child("managedFields"), errors);
}

/// Adds an Invalid error about a string for each message.
pub fn add_invalid(errors: &mut ErrorList, path: &FieldPath, value: &str, messages: Vec<String>) {
    for message in messages {
        errors.add(|| FieldError::invalid(path, &quoted(value), &message));
    }
}

/// Checks keys and values of labels.
pub fn validate_labels(labels: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    for (key, value) in labels.and_then(Value::fields).into_iter().flatten() {
        add_invalid(errors, path, key, names::qualified_name(key));
        let value = value.as_str().unwrap_or_default();
        add_invalid(errors, path, value, names::label_value(value));
    }
}

/// Checks the keys and the total size of annotations.
pub fn validate_annotations(annotations: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    let mut size = 0;
    for (key, value) in annotations.and_then(Value::fields).into_iter().flatten() {
        add_invalid(errors, path, key, names::qualified_name(&key.to_lowercase()));
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATION_BYTES {
        errors.push(FieldError::too_long(path, ANNOTATION_BYTES));
    }
}

/// Group and version of an `apiVersion`; both empty if it has too many parts.
fn group_version(api_version: &str) -> (&str, &str) {
    match api_version.split_once('/') {
        None => ("", api_version),
        Some((_, version)) if version.contains('/') => ("", ""),
        Some(parts) => parts,
    }
}

fn validate_owners(owners: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    let mut controller: Option<String> = None;
    for owner in owners.map(Value::items).unwrap_or_default() {
        let (group, version) = group_version(owner.str("apiVersion"));
        let checks = [
            ("apiVersion", version, "version"),
            ("kind", owner.str("kind"), "kind"),
            ("name", owner.str("name"), "name"),
        ];
        for (field, part, word) in checks.into_iter().chain([("uid", owner.str("uid"), "uid")]) {
            if part.is_empty() {
                let detail = format!("{word} must not be empty");
                errors.push(FieldError::invalid(&path.child(field), &quoted(owner.str(field)), &detail));
            }
        }
        if (group, version, owner.str("kind")) == ("", "v1", "Event") {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(path, "v1.OwnerReference{}", detail));
        }
        if owner.get("controller").and_then(Value::as_bool) == Some(true) {
            let this = format!("{}/{}", owner.str("kind"), owner.str("name"));
            if let Some(first) = &controller {
                errors.add(|| {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for \
                         {first} and {this}"
                    );
                    FieldError::invalid(path, "[]v1.OwnerReference{}", &detail)
                });
            } else {
                controller = Some(this);
            }
        }
    }
}

fn finalizers(meta: &Value) -> impl Iterator<Item = &str> {
    meta.get("finalizers").map(Value::items).unwrap_or_default().iter().filter_map(Value::as_str)
}

fn validate_finalizers(meta: &Value, path: &FieldPath, errors: &mut ErrorList) {
    for finalizer in finalizers(meta) {
        add_invalid(errors, path, finalizer, names::qualified_name(finalizer));
    }
    if finalizers(meta).any(|name| name == ORPHAN_FINALIZER)
        && finalizers(meta).any(|name| name == FOREGROUND_FINALIZER)
    {
        let all: Vec<String> = finalizers(meta).map(quoted).collect();
        let detail = format!("finalizer {ORPHAN_FINALIZER} and {FOREGROUND_FINALIZER} cannot be both set");
        errors.push(FieldError::invalid(path, &format!("[]string{{{}}}", all.join(", ")), &detail));
    }
}

fn validate_standard_finalizers(meta: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let known = [super::well_known::NAMESPACE_FINALIZER, ORPHAN_FINALIZER, FOREGROUND_FINALIZER];
    for (index, finalizer) in finalizers(meta).enumerate() {
        if !finalizer.contains('/') && !known.contains(&finalizer) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(&path.index(index), &quoted(finalizer), detail));
        }
    }
}

fn validate_no_new_finalizers(new: &Value, old: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let known: BTreeSet<&str> = finalizers(old).collect();
    let added: BTreeSet<&str> = finalizers(new).filter(|name| !known.contains(name)).collect();
    if added.is_empty() {
        return;
    }
    let added: Vec<String> = added.into_iter().map(quoted).collect();
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        added.join(", ")
    );
    errors.push(FieldError::forbidden(path, &detail));
}

fn validate_managers(entries: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    for (index, entry) in entries.map(Value::items).unwrap_or_default().iter().enumerate() {
        let path = path.index(index);
        if !matches!(entry.str("operation"), "Apply" | "Update") {
            let value = quoted(entry.str("operation"));
            errors.push(FieldError::invalid(&path.child("operation"), &value, "must be `Apply` or `Update`"));
        }
        if !matches!(entry.str("fieldsType"), "" | "FieldsV1") {
            let value = quoted(entry.str("fieldsType"));
            errors.push(FieldError::invalid(&path.child("fieldsType"), &value, "must be `FieldsV1`"));
        }
        if entry.str("manager").len() > MANAGER_LENGTH {
            errors.push(FieldError::too_long(&path.child("manager"), MANAGER_LENGTH));
        }
        if entry.str("subresource").len() > SUBRESOURCE_LENGTH {
            errors.push(FieldError::too_long(&path.child("subresource"), SUBRESOURCE_LENGTH));
        }
    }
}

#[cfg(test)]
mod tests;
