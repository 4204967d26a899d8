//! StorageVersions and StorageVersionMigrations.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::{
    KindRules, MetaRevalidation, MetadataRules, ResetFields, Revalidation, StatusMeta, StatusRules,
    UpdateRules, ValidationRules, messages,
};

/// The rules of a StorageVersionMigration.
pub const STORAGE_VERSION_MIGRATION: KindRules = KindRules {
    update: UpdateRules::CONDITIONAL,
    validation: ValidationRules { validate, revalidation: Revalidation::Once, validate_update },
    status: StatusRules {
        metadata: StatusMeta::ResetForStatus,
        validate: validate_status,
        ..StatusRules::DEFAULT
    },
    reset_fields: ResetFields::STATUS_KEEPS_METADATA,
    ..KindRules::DEFAULT
};

/// The rules of a StorageVersion.
pub const STORAGE_VERSION: KindRules = KindRules {
    metadata: MetadataRules {
        name: names::group_resource_name,
        revalidation: MetaRevalidation::No,
        ..MetadataRules::DEFAULT
    },
    update: UpdateRules::CONDITIONAL,
    status: StatusRules {
        metadata: StatusMeta::ResetForStatus,
        metadata_revalidation: MetaRevalidation::No,
        validate: validate_stored_status,
        ..StatusRules::DEFAULT
    },
    reset_fields: ResetFields::STATUS_KEEPS_METADATA,
    ..KindRules::DEFAULT
};

/// Checks a migration.
fn validate(migration: &Value, errors: &mut ErrorList) {
    let resource = FieldValue::top_level(migration, "spec").child("resource");
    for field in ["resource", "version"] {
        if resource.child(field).is_empty() {
            resource.child(field).required(errors, &format!("{field} is required"));
        }
    }
}

/// Validates an updated migration: its resource is immutable.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let resource = |object| FieldValue::top_level(object, "spec").child("resource");
    for field in ["group", "version", "resource"] {
        let (new_field, old_field) = (resource(new).child(field), resource(old).child(field));
        if new_field.text() != old_field.text() {
            errors.push(FieldError::invalid(
                &FieldPath::new(field),
                &quoted(new_field.text()),
                meta::IMMUTABLE,
            ));
        }
    }
}

/// Validates a status update of a migration.
fn validate_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (status, old_status) = (FieldValue::top_level(new, "status"), FieldValue::top_level(old, "status"));
    let (version, old_version) = (status.child("resourceVersion"), old_status.child("resourceVersion"));
    match version.text().parse::<i64>() {
        Ok(number) if number < 0 => {
            let rendered = number.to_string();
            errors.push(FieldError::invalid(&version.path, &rendered, "must be greater than or equal to 0"));
        }
        Err(_) if !version.is_empty() => {
            let rendered = quoted(version.text());
            let detail = format!(
                "failed to parse resource version {rendered}: strconv.ParseInt: parsing {rendered}: invalid syntax"
            );
            version.invalid(errors, &detail);
        }
        _ => {}
    }
    validate_conditions(&status.child("conditions"), errors);
    if !old_version.is_empty() && old_version.text() != version.text() {
        version.invalid_text(errors, "resourceVersion cannot be updated");
    }
    validate_outcomes(&status, &old_status, errors);
}

fn validate_outcomes(status: &FieldValue<'_>, old_status: &FieldValue<'_>, errors: &mut ErrorList) {
    let is_true = |status: &FieldValue<'_>, kind: &str| {
        let first =
            status.child("conditions").items().find(|condition| condition.child("type").text() == kind);
        first.is_some_and(|condition| condition.child("status").text() == "True")
    };
    let (succeeded, failed, running) =
        (is_true(status, "Succeeded"), is_true(status, "Failed"), is_true(status, "Running"));
    let table = [
        (succeeded && failed, "Both success and failed conditions cannot be true at the same time"),
        (succeeded && running, "Running condition cannot be true when success condition is true"),
        (failed && running, "Running condition cannot be true when failed condition is true"),
        (
            is_true(old_status, "Succeeded") && !succeeded,
            "Success condition cannot be set to false once it is true",
        ),
        (is_true(old_status, "Failed") && !failed, "Failed condition cannot be set to false once it is true"),
    ];
    for (_, detail) in table.into_iter().filter(|(is_violated, _)| *is_violated) {
        let path = status.child("conditions").path;
        messages::invalid_struct(&path, "[]storagemigration.MigrationCondition", errors, detail);
    }
}

/// Validates the conditions of a migration, which are `metav1.Condition` but for the name of the time.
fn validate_conditions(list: &FieldValue<'_>, errors: &mut ErrorList) {
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
    let status = FieldValue::top_level(new, "status");
    let versions = status.child("storageVersions");
    let mut seen = BTreeSet::new();
    for version in versions.items() {
        let id = version.child("apiServerID");
        if !seen.insert(id.text()) {
            errors.push(FieldError::duplicate(&id.path, &quoted(id.text())));
        }
        validate_server_version(&version, errors);
    }
    validate_common_version(&status, errors);
    validate_stored_conditions(&status, errors);
}

fn validate_server_version(version: &FieldValue<'_>, errors: &mut ErrorList) {
    version.child("apiServerID").syntax(errors, names::dns_subdomain);
    let (encoding, decodable) = (version.child("encodingVersion"), version.child("decodableVersions"));
    let check = |node: &FieldValue<'_>, errors: &mut ErrorList| {
        let details = api_version_errors(node.text());
        if !details.is_empty() {
            node.invalid_text(errors, &details.join(","));
        }
    };
    check(&encoding, errors);
    for version in decodable.items() {
        check(&version, errors);
    }
    let decodable_names: BTreeSet<&str> = decodable.items().map(|version| version.text()).collect();
    if !decodable_names.contains(encoding.text()) {
        let rendered = messages::render_strings(&decodable, "string");
        let detail = format!("decodableVersions must include encodingVersion {}", encoding.text());
        errors.push(FieldError::invalid(&decodable.path, &rendered, &detail));
    }
    let listed: Vec<&str> = decodable.items().map(|decoded| decoded.text()).collect();
    for served in version.child("servedVersions").items() {
        check(&served, errors);
        if !decodable_names.contains(served.text()) && !errors.is_full() {
            let detail = format!(
                "individual served version : {} must be included in decodableVersions : [{}]",
                served.text(),
                listed.join(" ")
            );
            served.invalid_text(errors, &detail);
        }
    }
}

/// The errors of an apiVersion.
fn api_version_errors(text: &str) -> Vec<String> {
    const EMPTY: &str = "must be non-empty";
    let parts: Vec<&str> = text.split('/').collect();
    let mut details = Vec::new();
    let mut check = |name: &str, part: &str, rule: names::Check| {
        if part.is_empty() {
            details.push(format!("{name} part: {EMPTY}"));
        } else {
            details.extend(rule(part).into_iter().map(|detail| format!("{name} part: {detail}")));
        }
    };
    match parts.as_slice() {
        [version] => check("version", version, names::dns_1035_label),
        [group, version] => {
            check("group", group, names::dns_subdomain);
            check("version", version, names::dns_1035_label);
        }
        _ => {
            let detail = names::dns_1035_label("-").into_iter().next().unwrap_or_default();
            return vec![format!(
                "an apiVersion is {detail} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyVersion')"
            )];
        }
    }
    details
}

fn validate_common_version(status: &FieldValue<'_>, errors: &mut ErrorList) {
    let versions = status.child("storageVersions");
    let mut encoding_versions = versions.items().map(|version| version.child("encodingVersion").text());
    let common = encoding_versions.next().filter(|first| encoding_versions.all(|other| other == *first));
    let field = status.child("commonEncodingVersion");
    match common {
        None if field.is_set() => {
            let detail = "should be nil if servers do not agree on the same encoding version, or if there is no \
                         server reporting the supported versions yet";
            field.invalid_text(errors, detail);
        }
        Some(common) if !field.is_set() => {
            let detail = format!("the common encoding version is {common}");
            errors.push(FieldError::invalid(&field.path, "\"null\"", &detail));
        }
        Some(common) if common != field.text() => {
            field.invalid_text(errors, &format!("the actual common encoding version is {common}"));
        }
        _ => {}
    }
}

fn validate_stored_conditions(status: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, condition) in status.child("conditions").items().enumerate() {
        // The path lacks the name of the list, as clients know it.
        let path = status.path.index(index);
        let field_at =
            |field: &str| FieldValue { value: condition.child(field).value, path: path.child(field) };
        let kind = field_at("type");
        if let Some(first) = seen.iter().rposition(|known| *known == kind.text()) {
            let detail =
                format!("the type of the condition is not unique, it also appears in conditions[{first}]");
            kind.invalid_text(errors, &detail);
        }
        seen.push(kind.text());
        kind.syntax(errors, names::qualified_name);
        field_at("status").syntax(errors, names::qualified_name);
        for field in ["reason", "message"] {
            if field_at(field).is_empty() {
                field_at(field).required(errors, &format!("{field} cannot be empty"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::*;

    #[test]
    fn storage_version_migration_validation_refuses_each_violation() {
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
        let with_conditions = |kinds: &[&str]| {
            let conditions: Vec<String> = kinds
                .iter()
                .map(|kind| format!(r#"{{"type":"{kind}","status":"True","reason":"R","lastUpdateTime":"2024-01-01T00:00:00Z"}}"#))
                .collect();
            object(&format!(r#"{{"status":{{"conditions":[{}]}}}}"#, conditions.join(",")))
        };
        let table: [(&[&str], &[&str], &str); 5] = [
            (&[], &["Succeeded", "Failed"], "Both success and failed"),
            (&[], &["Succeeded", "Running"], "when success condition is true"),
            (&[], &["Failed", "Running"], "when failed condition is true"),
            (&["Succeeded"], &[], "Success condition cannot be set to false"),
            (&["Failed"], &[], "Failed condition cannot be set to false"),
        ];
        for (old, new, expected) in table {
            let mut errors = ErrorList::new();
            validate_status(&with_conditions(new), &with_conditions(old), &mut errors);
            assert!(errors.len() == 1 && errors[0].message.contains(expected), "{errors:?}");
        }
    }

    #[test]
    fn storage_version_validation_refuses_each_violation() {
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
