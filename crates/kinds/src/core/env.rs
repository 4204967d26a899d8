//! Environment variables, and the field references of the downward API.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::{meta, names};

/// The pod fields that environment variables may refer to.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// The container resources that the downward API may refer to.
const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
/// The pod fields that have a field label.
const POD_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// The allowed divisors of bytes.
const BYTE_UNITS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// The syntax of variable names.
fn name_syntax(features: EnabledFeatures) -> names::Check {
    match features.has(Feature::RelaxedEnvironmentVariableValidation) {
        true => names::env_name,
        false => names::strict_env_name,
    }
}

/// Whether a name is valid only by the relaxed rules.
pub fn is_relaxed_name(name: &str) -> bool {
    names::env_name(name).is_empty() && !names::strict_env_name(name).is_empty()
}

/// Checks the variables of a container.
pub fn validate_variables(list: &FieldValue<'_>, errors: &mut ErrorList) {
    for variable in list.items() {
        variable.need_text_like("name", errors, name_syntax(errors.features()));
        let Some(from) = variable.opt("valueFrom") else { continue };
        let mut sources = 0;
        for kind in ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef"] {
            let Some(source) = from.opt(kind) else { continue };
            sources += 1;
            match kind {
                "fieldRef" => validate_field_ref(&source, &ENV_FIELDS, errors),
                "resourceFieldRef" => validate_resource_field_ref(&source, false, errors),
                _ => {
                    source.child("name").syntax(errors, names::dns_subdomain);
                    source.child("key").need_syntax(errors, names::config_key);
                }
            }
        }
        let mut invalid = |detail| errors.push(FieldError::invalid(&from.path, "\"\"", detail));
        if sources == 0 {
            invalid(
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
            );
        } else if !variable.str("value").is_empty() {
            invalid("may not be specified when `value` is not empty");
        } else if sources > 1 {
            invalid("may not have more than one field specified at a time");
        }
    }
}

/// Checks a fieldRef.
pub fn validate_field_ref(source: &FieldValue<'_>, allowed: &[&str], errors: &mut ErrorList) {
    let field = source.child("fieldPath");
    if !source.child("apiVersion").need(errors) || !field.need(errors) {
        return;
    }
    let mut invalid_field =
        |detail: String| field.invalid(errors, &format!("error converting fieldPath: {detail}"));
    if source.str("apiVersion") != "v1" {
        invalid_field(format!("unsupported pod version: {}", source.str("apiVersion")));
        return;
    }
    let text = if field.text() == "spec.host" { "spec.nodeName" } else { field.text() };
    let subscript = text.strip_suffix("']").and_then(|rest| rest.split_once("['"));
    match subscript.filter(|(path, _)| !path.is_empty()) {
        Some(("metadata.annotations", key)) => {
            let key = key.to_lowercase();
            meta::add_invalid(errors, &source.path, &key, names::qualified_name(&key));
        }
        Some(("metadata.labels", key)) => {
            meta::add_invalid(errors, &source.path, key, names::qualified_name(key));
        }
        Some(_) => invalid_field(format!("field label does not support subscript: {text}")),
        None if !POD_FIELDS.contains(&text) => invalid_field(format!("field label not supported: {text}")),
        None if !allowed.contains(&text) => {
            errors.push(FieldError::not_supported(&field.path, &quoted(text), allowed));
        }
        None => {}
    }
}

/// Checks a resourceFieldRef.
pub fn validate_resource_field_ref(source: &FieldValue<'_>, in_volume: bool, errors: &mut ErrorList) {
    let resource = source.child("resource");
    let is_huge =
        ["requests.hugepages-", "limits.hugepages-"].iter().any(|prefix| resource.text().starts_with(prefix));
    if in_volume && source.str("containerName").is_empty() {
        source.child("containerName").required(errors, "");
    } else if resource.need(errors) && !is_huge {
        resource.one_of(errors, &RESOURCE_FIELDS);
    }
    let Some(divisor) =
        source.opt("divisor").filter(|divisor| divisor.amount().is_some_and(|amount| !amount.is_zero()))
    else {
        return;
    };
    let (units, resource_name): (&[&str], &str) = match resource.text() {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "cpu"),
        "limits.memory" | "requests.memory" => (&BYTE_UNITS, "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => (&BYTE_UNITS, "local ephemeral storage"),
        _ if is_huge => (&BYTE_UNITS, "hugepages"),
        _ => return,
    };
    let text = divisor.text();
    if !units.contains(&text) {
        let supported = if resource_name == "cpu" { units.join(" and ") } else { units.join(", ") };
        let detail =
            format!("only divisor's values {supported} are supported with the {resource_name} resource");
        errors.push(FieldError::invalid(&divisor.path, &quoted(resource.text()), &detail));
    }
}

/// Checks envFrom.
pub fn validate_env_from(list: &FieldValue<'_>, errors: &mut ErrorList) {
    for source in list.items() {
        source.child("prefix").syntax_if_set(errors, name_syntax(errors.features()));
        let mut sources = 0;
        for from in ["configMapRef", "secretRef"].iter().filter_map(|kind| source.opt(kind)) {
            sources += 1;
            from.child("name").need_syntax(errors, |name| names::subdomain_name(name, true));
        }
        let mut invalid = |detail| errors.push(FieldError::invalid(&list.path, "\"\"", detail));
        if sources == 0 {
            invalid("must specify one of: `configMapRef` or `secretRef`");
        } else if sources > 1 {
            invalid("may not have more than one field specified at a time");
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn variable_validation_refuses_each_violation() {
        let base = object(
            r#"{"e":[{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu","divisor":"1m"}}},
                {"name":"B","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.labels['a/b']"}}},
                {"name":"C","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}]}"#,
        );
        each_refused(
            &base,
            |object, errors| validate_variables(&FieldValue::top_level(object, "e"), errors),
            &[
                (
                    "e.0.valueFrom.resourceFieldRef.divisor",
                    r#""2""#,
                    "divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are supported with the cpu resource",
                ),
                (
                    "e.0.valueFrom.resourceFieldRef",
                    r#"{"resource":"limits.memory","divisor":"1m"}"#,
                    "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource",
                ),
                (
                    "e.0.valueFrom.resourceFieldRef.resource",
                    r#""x""#,
                    "supported values: \"limits.cpu\", \"limits.ephemeral-storage\", \"limits.memory\", \"requests.cpu\"",
                ),
                ("e.1.valueFrom.fieldRef.apiVersion", r#""v2""#, "unsupported pod version: v2"),
                (
                    "e.1.valueFrom.fieldRef.fieldPath",
                    r#""x['y']""#,
                    "field label does not support subscript: x['y']",
                ),
                (
                    "e.1.valueFrom.fieldRef.fieldPath",
                    r#""metadata.labels['-']""#,
                    "e[1].valueFrom.fieldRef: Invalid value: \"-\"",
                ),
                ("e.2.valueFrom.secretKeyRef.name", r#""A""#, "secretKeyRef.name: Invalid value: \"A\""),
                ("e.2.valueFrom.secretKeyRef.key", "null", "secretKeyRef.key: Required value"),
            ],
        );
    }
}
