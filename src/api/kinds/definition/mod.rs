//! CustomResourceDefinitions.
//!
//! What all versions say alike counts as said once, of the whole: mistakes in it are told with the path
//! `spec.validation`, `spec.subresources` and so on, whatever the version of the API.

mod pattern;
mod schema;
mod structural;

use std::collections::BTreeSet;

use super::check::{Node, fill, fill_text, present_mut, same};
use super::{Errors, Occasion, say, webhook};
use crate::api::custom::status::{self, CLEANUP_FINALIZER, Ending};
use crate::api::field::{FieldError, Path, quoted};
use crate::api::value::Value;
use crate::api::{meta, names};

const APPROVED: &str = "api-approved.kubernetes.io";

/// The defaults of a definition: names that follow from others.
pub fn default(definition: &mut Value) {
    let spec = definition.entry("spec");
    let kind = spec.at(&["names", "kind"]).and_then(Value::as_str).unwrap_or_default().to_owned();
    if !kind.is_empty() {
        let names = spec.entry("names");
        fill_text(names, "singular", &kind.to_lowercase());
        fill_text(names, "listKind", &format!("{kind}List"));
    }
    // One that is there and says nothing is a mistake.
    let is_said = spec.get("conversion").is_some_and(|conversion| conversion.fields().is_some());
    let conversion = spec.entry("conversion");
    if !is_said {
        fill_text(conversion, "strategy", "None");
    }
    let service = present_mut(conversion, "webhook")
        .and_then(|webhook| present_mut(webhook, "clientConfig"))
        .and_then(|config| present_mut(config, "service"));
    if let Some(service) = service {
        fill(service, "port", 443);
    }
    if definition.at(&["status", "storedVersions"]).is_none_or(|all| all.items().is_empty()) {
        remember_stored(definition);
    }
}

/// A definition whose deletion has just been asked for stays until its objects have gone: it says so, and who lets it go.
pub fn terminate(definition: &mut Value) {
    let now = meta::of(definition).str("deletionTimestamp").to_owned();
    let finalizers = definition.entry("metadata").entry("finalizers");
    let mut all = finalizers.items().to_vec();
    if !all.iter().any(|one| one.as_str() == Some(CLEANUP_FINALIZER)) {
        all.push(CLEANUP_FINALIZER.into());
    }
    *finalizers = Value::Array(all);
    status::ending(definition, &Ending::Pending, &now);
}

/// The version that objects are stored in is written down.
pub fn prepare_create(definition: &mut Value, _: &Occasion<'_>) {
    remember_stored(definition);
}

/// The same when it changes.
pub fn prepare_update(new: &mut Value, _old: &Value, _: &Occasion<'_>) {
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
    *list = Value::Array(all);
}

/// Whether a name is not that of the kind and the group.
pub fn own_name(definition: &Value, name: &str) -> Option<String> {
    let text = |path: &[&str]| definition.at(path).and_then(Value::as_str).unwrap_or_default();
    let wanted = format!("{}.{}", text(&["spec", "names", "plural"]), text(&["spec", "group"]));
    (name != wanted).then(|| "must be spec.names.plural+\".\"+spec.group".to_owned())
}

/// Checks a definition.
pub fn validate(definition: &Value, errors: &mut Errors) {
    let spec = Node::of(definition, "spec");
    validate_spec(&spec, true, errors);
    validate_rest(definition, None, errors);
}

/// Checks a changed definition: what it is called stays, and once it is served so do its kind and scope.
pub fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    let (spec, was) = (Node::of(new, "spec"), Node::of(old, "spec"));
    let versions = was.child("conversion").child("webhook").child("conversionReviewVersions");
    let recognized =
        versions.is_empty() || versions.items().any(|one| matches!(one.text(), "v1" | "v1beta1"));
    validate_spec(&spec, recognized, errors);
    let unchanged = |now: Node<'_>, was: Node<'_>, errors: &mut Errors| {
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

/// Checks a changed status.
pub fn validate_status(new: &Value, _old: &Value, errors: &mut Errors) {
    validate_names(&Node::of(new, "status").child("acceptedNames"), errors);
}

fn is_established(definition: &Value) -> bool {
    Node::of(definition, "status").child("conditions").items().any(|condition| {
        condition.child("type").text() == "Established" && condition.child("status").text() == "True"
    })
}

/// Checks what stands outside of the spec.
fn validate_rest(definition: &Value, old: Option<&Value>, errors: &mut Errors) {
    validate_status(definition, definition, errors);
    stored_versions(definition, errors);
    approval(definition, old, errors);
    let preserves = |object: &Value| Node::of(object, "spec").child("preserveUnknownFields").is_true();
    if preserves(definition) && !old.is_some_and(preserves) {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                   spec.versions[*].schema instead";
        Node::of(definition, "spec").child("preserveUnknownFields").invalid(errors, why);
    }
}

fn stored_versions(definition: &Value, errors: &mut Errors) {
    let stored = Node::of(definition, "status").child("storedVersions");
    let shown = say::shown_texts(&stored, "string");
    if stored.is_empty() {
        let why = "must have at least one stored version";
        errors.push(FieldError::invalid(&stored.path, &shown, why));
        return;
    }
    let versions = Node::of(definition, "spec").child("versions");
    let mut in_storage: BTreeSet<&str> = stored.items().map(|one| one.text()).collect();
    for version in versions.items() {
        let name = version.child("name").text();
        // A name that stands twice is looked for twice, and there only once.
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

/// The state of the annotation that the community's groups need: 0 none, 1 wrong, 2 good, 3 openly without.
fn approval_state(definition: &Value) -> u8 {
    let text =
        meta::of(definition).at(&["annotations", APPROVED]).and_then(Value::as_str).unwrap_or_default();
    let is_url = text.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty()
            && !rest.is_empty()
            && !rest.starts_with('/')
            && !text.contains(char::is_whitespace)
    });
    match text {
        "" => 0,
        _ if text.starts_with("unapproved") => 3,
        _ if is_url => 2,
        _ => 1,
    }
}

fn approval(definition: &Value, old: Option<&Value>, errors: &mut Errors) {
    let group = Node::of(definition, "spec").child("group").text();
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')));
    let state = approval_state(definition);
    if !protected || old.is_some_and(|old| approval_state(old) == state) {
        return;
    }
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let path = Path::new("metadata").child("annotations").key(APPROVED);
    match state {
        0 => {
            let why = format!("protected groups must have approval annotation \"{APPROVED}\", {SEE}");
            errors.push(FieldError::required(&path, &why));
        }
        1 => {
            let text = meta::of(definition).at(&["annotations", APPROVED]).and_then(Value::as_str);
            let why = format!(
                "protected groups must have approval annotation \"{APPROVED}\" with either a URL or a reason \
                 starting with \"unapproved\", {SEE}"
            );
            errors.push(FieldError::invalid(&path, &quoted(text.unwrap_or_default()), &why));
        }
        _ => {}
    }
}

/// A field of all versions: said once if all say the same, and by each otherwise.
fn per_version<'a>(spec: &Node<'a>, field: &str, whole: &str) -> Option<Node<'a>> {
    let versions = spec.child("versions");
    let mut all = versions.items().map(|version| version.child(field));
    let first = all.next()?;
    // One without content is long to tell from nothing: it is looked at once, not once for each version.
    let is_void = same(Some(first.value), None);
    all.all(|other| same(Some(other.value), Some(first.value).filter(|_| !is_void)))
        .then(|| Node { value: first.value, path: spec.path.child(whole) })
}

fn validate_spec(spec: &Node<'_>, recognized: bool, errors: &mut Errors) {
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
    let has_schema = |version: &Node<'_>| version.child("schema").child("openAPIV3Schema").is_set();
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
    conversion(&spec.child("conversion"), preserves, recognized, errors);
}

fn has_default(schema: &Node<'_>) -> bool {
    schema.child("default").is_set() || structural::below(schema).iter().any(has_default)
}

/// Checks the name of a version, told at `place`.
fn version_name(name: &Node<'_>, place: &Node<'_>, errors: &mut Errors) {
    let wrong = names::dns_1035_label(name.text());
    if !wrong.is_empty() {
        place.invalid_text(errors, &wrong.join(","));
    }
}

fn version_set(spec: &Node<'_>, versions: &Node<'_>, errors: &mut Errors) {
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
    // The first version is also the one of the older form of this kind, and is looked at there again.
    if let Some(first) = versions.items().next() {
        let name = first.child("name");
        if !name.is_empty() {
            version_name(&name, &Node { value: name.value, path: spec.path.child("version") }, errors);
        }
    }
}

fn deprecation(version: &Node<'_>, errors: &mut Errors) {
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

fn validate_names(all: &Node<'_>, errors: &mut Errors) {
    let label = |node: &Node<'_>, text: &str, prefix: &str, errors: &mut Errors| {
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
    let each = |field: &str, errors: &mut Errors| {
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

fn simple_path(node: &Node<'_>, errors: &mut Errors) -> bool {
    let good = node.text().starts_with('.');
    if !good {
        node.invalid_text(errors, "must be a simple json path starting with .");
    }
    good
}

fn scale(subresources: &Node<'_>, errors: &mut Errors) {
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

fn printer_columns(columns: &Node<'_>, errors: &mut Errors) {
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
        let place = Node { value: column.child("jsonPath").value, path: column.path.child("JSONPath") };
        if place.need(errors) {
            simple_path(&place, errors);
        }
    }
}

/// Checks the fields that selectors may name. `needed` says where the schema was looked for, in the words of the reference.
fn selectable_fields(fields: &Node<'_>, schema: &Node<'_>, needed: &str, errors: &mut Errors) {
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

fn conversion(conversion: &Node<'_>, preserves: bool, recognized: bool, errors: &mut Errors) {
    const NOT_HERE: &str = "should not be set when strategy is not set to Webhook";
    if !conversion.is_set() {
        return;
    }
    let strategy = conversion.child("strategy");
    if strategy.text() != "None" && preserves {
        strategy.invalid(errors, "must be None if spec.preserveUnknownFields is true");
    }
    strategy.need_one_of(errors, &["None", "Webhook"]);
    let hook = conversion.child("webhook");
    let config =
        Node { value: hook.child("clientConfig").value, path: conversion.path.child("webhookClientConfig") };
    let versions = Node {
        value: hook.child("conversionReviewVersions").value,
        path: conversion.path.child("conversionReviewVersions"),
    };
    if strategy.text() != "Webhook" {
        if config.is_set() {
            config.forbidden(errors, NOT_HERE);
        }
        if !versions.is_empty() {
            versions.forbidden(errors, NOT_HERE);
        }
        return;
    }
    let (url, service) = (config.child("url"), config.child("service"));
    if !config.is_set() {
        config.required(errors, "required when strategy is set to Webhook");
    } else if url.is_set() == service.is_set() {
        config.required(errors, "exactly one of url or service is required");
    } else if url.is_set() {
        webhook::url(&url, errors);
    } else {
        webhook::service(&service, true, errors);
    }
    review_versions(&versions, recognized, errors);
}

fn review_versions(versions: &Node<'_>, recognized: bool, errors: &mut Errors) {
    if !versions.need(errors) {
        return;
    }
    let mut seen = BTreeSet::new();
    for version in versions.items() {
        if seen.insert(version.text()) {
            version.syntax(errors, names::dns_1035_label);
        } else {
            version.invalid_text(errors, "duplicate version");
        }
    }
    if recognized && !seen.contains("v1") && !seen.contains("v1beta1") {
        versions.invalid(errors, "must include at least one of v1, v1beta1");
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOBODY, each_change_refused, each_refused, object, said};
    use super::*;

    fn base() -> Value {
        let mut definition = object(
            r#"{"metadata":{"name":"kites.a.b"},"spec":{"group":"a.b","scope":"Namespaced","names":{"plural":"kites","kind":"Kite"},
                "versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
                "spec":{"type":"object","properties":{"size":{"type":"string"},"list":{"type":"array","items":{"type":"string"}}}}}}}}]}}"#,
        );
        default(&mut definition);
        prepare_create(&mut definition, &Occasion { now: "t", user: &NOBODY });
        definition
    }

    #[test]
    fn a_definition_remembers_what_it_stored() {
        let mut definition = object(
            r#"{"spec":{"names":{"kind":"Kite"},"versions":[{"name":"v1","storage":true}]},"status":{"storedVersions":["v0"]}}"#,
        );
        default(&mut definition);
        prepare_create(&mut definition, &Occasion { now: "t", user: &NOBODY });
        assert_eq!(definition.at(&["status", "storedVersions"]), Some(&object(r#"["v0","v1"]"#)));
        assert_eq!(
            definition.at(&["spec", "names"]),
            Some(&object(r#"{"kind":"Kite","singular":"kite","listKind":"KiteList"}"#))
        );
        assert_eq!(definition.at(&["spec", "conversion", "strategy"]), Some(&Value::from("None")));
        let mut silent = object(r#"{"spec":{"versions":[{"name":"v1"},{"name":"v2","storage":true}]}}"#);
        default(&mut silent);
        assert_eq!(silent.at(&["status", "storedVersions"]), Some(&object(r#"["v2"]"#)));
    }

    #[test]
    fn a_definition_is_named_after_what_it_defines() {
        let definition = object(r#"{"spec":{"group":"y.z","names":{"plural":"x"}}}"#);
        assert_eq!(own_name(&definition, "x.y.z"), None);
        let wrong = "must be spec.names.plural+\".\"+spec.group";
        assert_eq!(own_name(&definition, "x").as_deref(), Some(wrong));
    }

    #[test]
    fn an_empty_definition_says_all_that_it_lacks() {
        let mut empty = object(r#"{"metadata":{"name":"x.y.z"}}"#);
        default(&mut empty);
        let mut errors = Errors::new();
        validate(&empty, &mut errors);
        assert_eq!(
            said(&errors),
            [
                "spec.group: Required value",
                "spec.scope: Required value",
                "spec.versions: Invalid value: []apiextensions.CustomResourceDefinitionVersion(nil): must have exactly one version marked as storage version",
                "spec.names.plural: Required value",
                "spec.names.singular: Required value",
                "spec.names.kind: Required value",
                "spec.names.listKind: Required value",
                "status.storedVersions: Invalid value: []string(nil): must have at least one stored version",
            ]
        );
    }

    #[test]
    fn each_rule_of_a_definition_refuses() {
        let column =
            |rest: &str| format!("[{{\"name\":\"c\",\"type\":\"string\",\"jsonPath\":\".a\",{rest}}}]");
        let (format, kind) = (column("\"format\":\"x\""), column("\"type\":\"x\""));
        each_refused(
            &base(),
            validate,
            &[
                (
                    "spec.scope",
                    r#""X""#,
                    "spec.scope: Unsupported value: \"X\": supported values: \"Cluster\", \"Namespaced\"",
                ),
                ("spec.names.listKind", r#""Kite""#, "kind and listKind may not be the same"),
                (
                    "spec.names.kind",
                    r#""a b""#,
                    "may have mixed case, but should otherwise match: a DNS-1035 label",
                ),
                ("spec.names.shortNames", r#"["A"]"#, "spec.names.shortNames[0]: Invalid value: \"A\""),
                ("spec.names.categories", r#"["A"]"#, "spec.names.categories[0]: Invalid value: \"A\""),
                (
                    "spec.versions.0.schema",
                    "null",
                    "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required",
                ),
                (
                    "spec.versions.0.schema.openAPIV3Schema.type",
                    r#""string""#,
                    "spec.validation.openAPIV3Schema.type: Invalid value: \"string\": must be object at the root",
                ),
                ("spec.versions.0.deprecationWarning", r#""x""#, "can only be set for deprecated versions"),
                (
                    "spec.versions.0.subresources",
                    r#"{"scale":{"statusReplicasPath":".status.a"}}"#,
                    "spec.subresources.scale.specReplicasPath: Required value",
                ),
                (
                    "spec.versions.0.subresources",
                    r#"{"scale":{"specReplicasPath":".a","statusReplicasPath":".status.a"}}"#,
                    "should be a json path under .spec",
                ),
                (
                    "spec.versions.0.subresources",
                    r#"{"scale":{"specReplicasPath":"x","statusReplicasPath":".status.a"}}"#,
                    "must be a simple json path starting with .",
                ),
                (
                    "spec.versions.0.additionalPrinterColumns",
                    r#"[{"name":"c","type":"string"}]"#,
                    "spec.additionalPrinterColumns[0].JSONPath: Required value",
                ),
                (
                    "spec.versions.0.additionalPrinterColumns",
                    &kind,
                    "must be one of boolean,date,integer,number,string",
                ),
                (
                    "spec.versions.0.additionalPrinterColumns",
                    &format,
                    "must be one of byte,date,date-time,double,float,int32,int64,password",
                ),
                (
                    "spec.versions.0.selectableFields",
                    r#"[{"jsonPath":".spec.x"}]"#,
                    "spec.selectableFields[0].jsonPath: Invalid value: \".spec.x\": is an invalid path: does not refer to a valid field",
                ),
                (
                    "spec.versions.0.selectableFields",
                    r#"[{"jsonPath":".spec.list"}]"#,
                    "must point to a field of type string, boolean or integer",
                ),
                (
                    "spec.versions.0.selectableFields",
                    r#"[{"jsonPath":".spec.size"},{"jsonPath":".spec.size"}]"#,
                    "selectableFields[1].jsonPath: Duplicate value",
                ),
                (
                    "spec.conversion.webhook",
                    r#"{"conversionReviewVersions":["v1"]}"#,
                    "spec.conversion.conversionReviewVersions: Forbidden: should not be set when",
                ),
                ("spec.conversion", r#"{"strategy":"X"}"#, "supported values: \"None\", \"Webhook\""),
                (
                    "spec.conversion",
                    r#"{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"]}}"#,
                    "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
                ),
                (
                    "spec.conversion",
                    r#"{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v9"],"clientConfig":{"url":"https://x"}}}"#,
                    "must include at least one of v1, v1beta1",
                ),
                (
                    "spec.preserveUnknownFields",
                    "true",
                    "cannot set to true, set x-kubernetes-preserve-unknown-fields",
                ),
                (
                    "status.storedVersions",
                    r#"["v1","v0"]"#,
                    "status.storedVersions[1]: Invalid value: \"v0\": missing from spec.versions; v0 was previously",
                ),
                (
                    "status.acceptedNames",
                    r#"{"plural":"A"}"#,
                    "status.acceptedNames.plural: Invalid value: \"A\"",
                ),
            ],
        );
        let mut both = base();
        let second = object(r#"{"name":"v1","served":true,"schema":{"openAPIV3Schema":{"type":"object"}}}"#);
        if let Some(Value::Array(versions)) = both.entry("spec").get_mut("versions") {
            versions.push(second);
        }
        let mut errors = Errors::new();
        validate(&both, &mut errors);
        assert!(said(&errors)[0].ends_with("must contain unique version names"));
        let mut ours = base();
        ours.entry("spec").set("group", "x.k8s.io");
        ours.entry("metadata").set("name", "kites.x.k8s.io");
        let mut errors = Errors::new();
        validate(&ours, &mut errors);
        assert!(said(&errors)[0].starts_with(
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups"
        ));
    }

    #[test]
    fn a_served_definition_keeps_its_names() {
        let mut old = base();
        old.entry("status").set("conditions", object(r#"[{"type":"Established","status":"True"}]"#));
        each_change_refused(
            &old,
            validate_update,
            &[
                ("spec.scope", r#""Cluster""#, "spec.scope: Invalid value: \"Cluster\": field is immutable"),
                (
                    "spec.names.kind",
                    r#""Kate""#,
                    "spec.names.kind: Invalid value: \"Kate\": field is immutable",
                ),
                ("spec.group", r#""a.c""#, "spec.group: Invalid value: \"a.c\": field is immutable"),
                (
                    "spec.names.plural",
                    r#""kates""#,
                    "spec.names.plural: Invalid value: \"kates\": field is immutable",
                ),
            ],
        );
    }
}
