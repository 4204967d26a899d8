//! StorageVersions and StorageVersionMigrations.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::{GUARDED, KindRules, MetaRevalidation, Revalidation, StatusMeta, messages};

/// The rules of a StorageVersionMigration.
pub const STORAGE_VERSION_MIGRATION: KindRules = KindRules {
    status_meta: StatusMeta::Fixed,
    validate,
    revalidation: Revalidation::Once,
    validate_update,
    validate_status,
    ..GUARDED
};

/// The rules of a StorageVersion.
pub const STORAGE_VERSION: KindRules = KindRules {
    name: names::group_resource_name,
    status_meta: StatusMeta::Fixed,
    validate_status: validate_stored_status,
    status_meta_revalidation: MetaRevalidation::No,
    meta_revalidation: MetaRevalidation::No,
    ..GUARDED
};

/// Checks a migration.
fn validate(migration: &Value, errors: &mut ErrorList) {
    let resource = FieldValue::of(migration, "spec").child("resource");
    for field in ["resource", "version"] {
        if resource.child(field).is_empty() {
            resource.child(field).required(errors, &format!("{field} is required"));
        }
    }
}

/// Checks a changed migration: what is migrated stays.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let at = |object| FieldValue::of(object, "spec").child("resource");
    for field in ["group", "version", "resource"] {
        let (now, was) = (at(new).child(field), at(old).child(field));
        if now.text() != was.text() {
            errors.push(FieldError::invalid(&FieldPath::new(field), &quoted(now.text()), meta::IMMUTABLE));
        }
    }
}

/// Checks a changed status of a migration.
fn validate_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (status, was) = (FieldValue::of(new, "status"), FieldValue::of(old, "status"));
    let (version, before) = (status.child("resourceVersion"), was.child("resourceVersion"));
    match version.text().parse::<i64>() {
        Ok(number) if number < 0 => {
            let shown = number.to_string();
            errors.push(FieldError::invalid(&version.path, &shown, "must be greater than or equal to 0"));
        }
        Err(_) if !version.is_empty() => {
            let shown = quoted(version.text());
            let wrong = format!(
                "failed to parse resource version {shown}: strconv.ParseInt: parsing {shown}: invalid syntax"
            );
            version.invalid(errors, &wrong);
        }
        _ => {}
    }
    conditions(&status.child("conditions"), errors);
    if !before.is_empty() && before.text() != version.text() {
        version.invalid_text(errors, "resourceVersion cannot be updated");
    }
    outcomes(&status, &was, errors);
}

fn outcomes(status: &FieldValue<'_>, was: &FieldValue<'_>, errors: &mut ErrorList) {
    let is = |status: &FieldValue<'_>, kind: &str| {
        let first = status.child("conditions").items().find(|one| one.child("type").text() == kind);
        first.is_some_and(|one| one.child("status").text() == "True")
    };
    let (done, failed, running) = (is(status, "Succeeded"), is(status, "Failed"), is(status, "Running"));
    let table = [
        (done && failed, "Both success and failed conditions cannot be true at the same time"),
        (done && running, "Running condition cannot be true when success condition is true"),
        (failed && running, "Running condition cannot be true when failed condition is true"),
        (is(was, "Succeeded") && !done, "Success condition cannot be set to false once it is true"),
        (is(was, "Failed") && !failed, "Failed condition cannot be set to false once it is true"),
    ];
    for (_, wrong) in table.into_iter().filter(|(found, _)| *found) {
        let path = status.child("conditions").path;
        messages::structure(&path, "[]storagemigration.MigrationCondition", errors, wrong);
    }
}

/// Checks the conditions of a migration: the common form, but for the name of the time.
fn conditions(list: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut common = list.value.clone();
    if let Value::Array(items) = &mut common {
        for item in items {
            let time = item.remove("lastUpdateTime").unwrap_or_default();
            item.set("lastTransitionTime", time);
        }
    }
    messages::conditions(&FieldValue { value: &common, path: list.path.clone() }, errors);
}

/// Checks the status of a StorageVersion.
fn validate_stored_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::of(new, "status");
    let versions = status.child("storageVersions");
    let mut seen = BTreeSet::new();
    for version in versions.items() {
        let id = version.child("apiServerID");
        if !seen.insert(id.text()) {
            errors.push(FieldError::duplicate(&id.path, &quoted(id.text())));
        }
        server(&version, errors);
    }
    common_version(&status, errors);
    stored_conditions(&status, errors);
}

fn server(version: &FieldValue<'_>, errors: &mut ErrorList) {
    version.child("apiServerID").syntax(errors, names::dns_subdomain);
    let (encoding, decodable) = (version.child("encodingVersion"), version.child("decodableVersions"));
    let check = |node: &FieldValue<'_>, errors: &mut ErrorList| {
        let wrong = api_version(node.text());
        if !wrong.is_empty() {
            node.invalid_text(errors, &wrong.join(","));
        }
    };
    check(&encoding, errors);
    for one in decodable.items() {
        check(&one, errors);
    }
    let known: BTreeSet<&str> = decodable.items().map(|one| one.text()).collect();
    if !known.contains(encoding.text()) {
        let shown = messages::shown_texts(&decodable, "string");
        let wrong = format!("decodableVersions must include encodingVersion {}", encoding.text());
        errors.push(FieldError::invalid(&decodable.path, &shown, &wrong));
    }
    let all: Vec<&str> = decodable.items().map(|one| one.text()).collect();
    for served in version.child("servedVersions").items() {
        check(&served, errors);
        if !known.contains(served.text()) && !errors.is_full() {
            let wrong = format!(
                "individual served version : {} must be included in decodableVersions : [{}]",
                served.text(),
                all.join(" ")
            );
            served.invalid_text(errors, &wrong);
        }
    }
}

/// What is wrong with a group and version.
fn api_version(text: &str) -> Vec<String> {
    const EMPTY: &str = "must be non-empty";
    let parts: Vec<&str> = text.split('/').collect();
    let mut wrong = Vec::new();
    let mut check = |name: &str, part: &str, rule: names::Check| {
        if part.is_empty() {
            wrong.push(format!("{name} part: {EMPTY}"));
        } else {
            wrong.extend(rule(part).into_iter().map(|why| format!("{name} part: {why}")));
        }
    };
    match parts.as_slice() {
        [version] => check("version", version, names::dns_1035_label),
        [group, version] => {
            check("group", group, names::dns_subdomain);
            check("version", version, names::dns_1035_label);
        }
        _ => {
            let why = names::dns_1035_label("-").into_iter().next().unwrap_or_default();
            return vec![format!(
                "an apiVersion is {why} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyVersion')"
            )];
        }
    }
    wrong
}

fn common_version(status: &FieldValue<'_>, errors: &mut ErrorList) {
    let versions = status.child("storageVersions");
    let mut all = versions.items().map(|one| one.child("encodingVersion").text());
    let common = all.next().filter(|first| all.all(|other| other == *first));
    let said = status.child("commonEncodingVersion");
    match common {
        None if said.is_set() => {
            let wrong = "should be nil if servers do not agree on the same encoding version, or if there is no \
                         server reporting the supported versions yet";
            said.invalid_text(errors, wrong);
        }
        Some(common) if !said.is_set() => {
            let wrong = format!("the common encoding version is {common}");
            errors.push(FieldError::invalid(&said.path, "\"null\"", &wrong));
        }
        Some(common) if common != said.text() => {
            said.invalid_text(errors, &format!("the actual common encoding version is {common}"));
        }
        _ => {}
    }
}

fn stored_conditions(status: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, condition) in status.child("conditions").items().enumerate() {
        // The path lacks the name of the list, as clients know it.
        let path = status.path.index(index);
        let at = |field: &str| FieldValue { value: condition.child(field).value, path: path.child(field) };
        let kind = at("type");
        if let Some(first) = seen.iter().rposition(|known| *known == kind.text()) {
            let wrong =
                format!("the type of the condition is not unique, it also appears in conditions[{first}]");
            kind.invalid_text(errors, &wrong);
        }
        seen.push(kind.text());
        kind.syntax(errors, names::qualified_name);
        at("status").syntax(errors, names::qualified_name);
        for field in ["reason", "message"] {
            if at(field).is_empty() {
                at(field).required(errors, &format!("{field} cannot be empty"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::*;

    #[test]
    fn each_rule_of_a_migration_refuses() {
        let base = object(
            r#"{"spec":{"resource":{"group":"g","version":"v1","resource":"r"}},"status":{"resourceVersion":"5","conditions":[
                {"type":"Running","status":"False","reason":"R","lastUpdateTime":"2024-01-01T00:00:00Z"}]}}"#,
        );
        each_refused(
            &base,
            validate,
            &[
                (
                    "spec.resource.resource",
                    "null",
                    "spec.resource.resource: Required value: resource is required",
                ),
                (
                    "spec.resource.version",
                    "null",
                    "spec.resource.version: Required value: version is required",
                ),
            ],
        );
        each_change_refused(
            &base,
            validate_update,
            &[("spec.resource.group", r#""h""#, "group: Invalid value: \"h\": field is immutable")],
        );
        each_change_refused(
            &base,
            validate_status,
            &[
                ("status.resourceVersion", r#""6""#, "resourceVersion cannot be updated"),
                (
                    "status.conditions.0.lastUpdateTime",
                    "null",
                    "lastTransitionTime: Required value: must be set",
                ),
                ("status.conditions.0.status", r#""X""#, "\"False\", \"True\", \"Unknown\""),
            ],
        );
        let with = |kinds: &[&str]| {
            let all: Vec<String> = kinds
                .iter()
                .map(|kind| format!(r#"{{"type":"{kind}","status":"True","reason":"R","lastUpdateTime":"2024-01-01T00:00:00Z"}}"#))
                .collect();
            object(&format!(r#"{{"status":{{"conditions":[{}]}}}}"#, all.join(",")))
        };
        let table: [(&[&str], &[&str], &str); 5] = [
            (&[], &["Succeeded", "Failed"], "Both success and failed"),
            (&[], &["Succeeded", "Running"], "when success condition is true"),
            (&[], &["Failed", "Running"], "when failed condition is true"),
            (&["Succeeded"], &[], "Success condition cannot be set to false"),
            (&["Failed"], &[], "Failed condition cannot be set to false"),
        ];
        for (old, new, wanted) in table {
            let mut errors = ErrorList::new();
            validate_status(&with(new), &with(old), &mut errors);
            assert!(errors.len() == 1 && errors[0].message.contains(wanted), "{errors:?}");
        }
    }

    #[test]
    fn each_rule_of_a_stored_version_refuses() {
        let base = object(
            r#"{"status":{"commonEncodingVersion":"g/v1","storageVersions":[{"apiServerID":"a","encodingVersion":"g/v1",
                "decodableVersions":["g/v1"],"servedVersions":["g/v1"]}],
                "conditions":[{"type":"A","status":"True","reason":"r","message":"m"}]}}"#,
        );
        each_change_refused(
            &base,
            validate_stored_status,
            &[
                (
                    "status.storageVersions.0.apiServerID",
                    r#""A""#,
                    "storageVersions[0].apiServerID: Invalid value: \"A\"",
                ),
                (
                    "status.storageVersions.0.decodableVersions",
                    r#"["g/v1","/v2"]"#,
                    "decodableVersions[1]: Invalid value: \"/v2\": group part: must be non-empty",
                ),
                (
                    "status.storageVersions.0.servedVersions",
                    r#"["v2"]"#,
                    "individual served version : v2 must be included in decodableVersions : [g/v1]",
                ),
                (
                    "status.commonEncodingVersion",
                    "null",
                    "commonEncodingVersion: Invalid value: \"null\": the common encoding version is g/v1",
                ),
                ("status.commonEncodingVersion", r#""v2""#, "the actual common encoding version is g/v1"),
                ("status.storageVersions", "[]", "should be nil if servers do not agree"),
                (
                    "status.conditions.0.reason",
                    "null",
                    "status[0].reason: Required value: reason cannot be empty",
                ),
                ("status.conditions.0.type", r#""-""#, "status[0].type: Invalid value: \"-\""),
            ],
        );
    }
}
