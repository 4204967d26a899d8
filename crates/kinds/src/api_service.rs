//! APIServices.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::{KindRules, PLAIN, Revalidation, StatusMeta, WriteContext};

/// The rules of an APIService.
pub const RULES: KindRules = KindRules {
    own_name,
    name: names::path_segment,
    known_finalizers: false,
    unconditional_update: false,
    status_meta: StatusMeta::Without(&["labels", "annotations", "finalizers", "ownerReferences"]),
    prepare_create: prepare_service,
    validate: validate_service,
    revalidation: Revalidation::Once,
    validate_status: validate_service_status,
    ..PLAIN
};

/// What this server serves itself is available at once.
fn prepare_service(service: &mut Value, context: &WriteContext<'_>) {
    if service.at(&["spec", "service"]).is_some() {
        return;
    }
    let mut condition = Value::object();
    condition.set("type", "Available");
    condition.set("status", "True");
    condition.set("reason", "Local");
    condition.set("message", "Local APIServices are always available");
    condition.set("lastTransitionTime", context.now);
    service.entry("status").set("conditions", vec![condition]);
}

/// Whether a name that fits in a path is not that of the version and the group.
pub fn own_name(object: &Value, name: &str) -> Option<String> {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let wanted = format!("{}.{}", spec.str("version"), spec.str("group"));
    let wrong = name != wanted && names::path_segment(name, false).is_empty();
    wrong.then(|| format!("must be `spec.version+\".\"+spec.group`: {}", quoted(&wanted)))
}

/// Checks an APIService.
fn validate_service(object: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(object, "spec");
    let (group, version) = (spec.child("group"), spec.child("version"));
    if group.is_empty() && version.text() != "v1" {
        group.required(errors, "only v1 may have an empty group and it better be legacy kube");
    }
    group.syntax_if_set(errors, names::dns_subdomain);
    version.syntax(errors, names::dns_1035_label);
    for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1_000)] {
        let priority = spec.child(field);
        if !(1..=most).contains(&priority.number()) {
            let wrong = format!("must be positive and less than {most}");
            errors.push(FieldError::invalid(&priority.path, &priority.number().to_string(), &wrong));
        }
    }
    let (service, bundle, insecure) =
        (spec.child("service"), spec.child("caBundle"), spec.child("insecureSkipTLSVerify"));
    if service.is_set() {
        service.child("namespace").need(errors);
        service.child("name").need(errors);
        let port = service.child("port");
        let wrong = names::in_range(port.number(), 1, 65_535);
        if !wrong.is_empty() {
            let why = format!("port is not valid: {}", wrong.join(", "));
            errors.push(FieldError::invalid(&port.path, &port.number().to_string(), &why));
        }
        if insecure.is_true() && !bundle.is_empty() {
            insecure.invalid(errors, "may not be true if caBundle is present");
        }
        return;
    }
    if !bundle.is_empty() {
        // The bundle is in base64 here; what counts are the bytes that it stands for.
        let padding = bundle.text().bytes().rev().take_while(|byte| *byte == b'=').count();
        let shown = quoted(&format!("{} bytes", (bundle.text().len() / 4 * 3).saturating_sub(padding)));
        errors.push(FieldError::invalid(&bundle.path, &shown, "local APIServices may not have a caBundle"));
    }
    if insecure.is_true() {
        insecure.invalid(errors, "local APIServices may not have insecureSkipTLSVerify");
    }
}

/// Checks a changed status of an APIService.
fn validate_service_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    for condition in FieldValue::of(new, "status").child("conditions").items() {
        condition.child("status").one_of(errors, &["True", "False", "Unknown"]);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::super::testing::context;
    use super::*;

    #[test]
    fn each_rule_of_an_api_service_refuses() {
        let base = object(
            r#"{"metadata":{"name":"v1.g.example"},"spec":{"group":"g.example","version":"v1","groupPriorityMinimum":1,
                "versionPriority":1,"service":{"namespace":"n","name":"s","port":443},"insecureSkipTLSVerify":true}}"#,
        );
        each_refused(
            &base,
            validate_service,
            &[
                ("spec.groupPriorityMinimum", "0", "must be positive and less than 20000"),
                ("spec.versionPriority", "1001", "must be positive and less than 1000"),
                ("spec.service.name", "null", "spec.service.name: Required value"),
                ("spec.service.port", "0", "port is not valid: must be between 1 and 65535, inclusive"),
                ("spec.caBundle", r#""AA==""#, "may not be true if caBundle is present"),
                ("spec.service", "null", "local APIServices may not have insecureSkipTLSVerify"),
            ],
        );
        assert_eq!(own_name(&base, "v1.g.example"), None);
        assert_eq!(own_name(&base, "a/b"), None, "the syntax is told instead");
        let wanted = "must be `spec.version+\".\"+spec.group`: \"v1.g.example\"";
        assert_eq!(own_name(&base, "x").as_deref(), Some(wanted));
        let mut local = object(r#"{"spec":{}}"#);
        prepare_service(&mut local, &context("t"));
        assert_eq!(local.at(&["status", "conditions"]).unwrap().items()[0].str("reason"), "Local");
    }
}
