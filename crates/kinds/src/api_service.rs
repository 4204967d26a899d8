//! APIServices.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::{
    KindRules, MetadataRules, PreparationRules, ResetFields, Revalidation, StatusMeta, StatusRules,
    UpdateRules, ValidationRules, WriteContext,
};

/// The rules of an APIService.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules {
        name: names::path_segment,
        validate_name,
        requires_standard_finalizers: false,
        ..MetadataRules::DEFAULT
    },
    update: UpdateRules::CONDITIONAL,
    preparation: PreparationRules { prepare_create: prepare_service, ..PreparationRules::DEFAULT },
    validation: ValidationRules {
        validate: validate_service,
        revalidation: Revalidation::Once,
        ..ValidationRules::DEFAULT
    },
    status: StatusRules {
        metadata: StatusMeta::MutableExcept(&["labels", "annotations", "finalizers", "ownerReferences"]),
        validate: validate_service_status,
        ..StatusRules::DEFAULT
    },
    reset_fields: ResetFields::STATUS_KEEPS_METADATA,
    ..KindRules::DEFAULT
};

/// An APIService without a service is served by this server, and available at once.
fn prepare_service(service: &mut Value, context: &WriteContext<'_>) {
    if service.get_path(&["spec", "service"]).is_some() {
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

/// Checks that the name is made of version and group. Names with a syntax error are reported elsewhere.
pub fn validate_name(object: &Value, name: &str) -> Option<String> {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let expected = format!("{}.{}", spec.str("version"), spec.str("group"));
    let is_other_name = name != expected && names::path_segment(name, false).is_empty();
    is_other_name.then(|| format!("must be `spec.version+\".\"+spec.group`: {}", quoted(&expected)))
}

/// Checks an APIService.
fn validate_service(object: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(object, "spec");
    let (group, version) = (spec.child("group"), spec.child("version"));
    if group.is_empty() && version.text() != "v1" {
        group.required(errors, "only v1 may have an empty group and it better be legacy kube");
    }
    group.syntax_if_set(errors, names::dns_subdomain);
    version.syntax(errors, names::dns_1035_label);
    for (field, max) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1_000)] {
        let priority = spec.child(field);
        if !(1..=max).contains(&priority.number()) {
            let detail = format!("must be positive and less than {max}");
            errors.push(FieldError::invalid(&priority.path, &priority.number().to_string(), &detail));
        }
    }
    let (service, bundle, insecure) =
        (spec.child("service"), spec.child("caBundle"), spec.child("insecureSkipTLSVerify"));
    if service.is_set() {
        service.child("namespace").need(errors);
        service.child("name").need(errors);
        let port = service.child("port");
        let details = names::in_range(port.number(), 1, 65_535);
        if !details.is_empty() {
            let detail = format!("port is not valid: {}", details.join(", "));
            errors.push(FieldError::invalid(&port.path, &port.number().to_string(), &detail));
        }
        if insecure.is_true() && !bundle.is_empty() {
            insecure.invalid(errors, "may not be true if caBundle is present");
        }
        return;
    }
    if !bundle.is_empty() {
        // The bundle is in base64 here; the message has the size of the decoded bytes.
        let padding = bundle.text().bytes().rev().take_while(|byte| *byte == b'=').count();
        let rendered = quoted(&format!("{} bytes", (bundle.text().len() / 4 * 3).saturating_sub(padding)));
        errors.push(FieldError::invalid(
            &bundle.path,
            &rendered,
            "local APIServices may not have a caBundle",
        ));
    }
    if insecure.is_true() {
        insecure.invalid(errors, "local APIServices may not have insecureSkipTLSVerify");
    }
}

/// Validates a status update of an APIService.
fn validate_service_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    for condition in FieldValue::top_level(new, "status").child("conditions").items() {
        condition.child("status").one_of(errors, &["True", "False", "Unknown"]);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::super::testing::context;
    use super::*;

    #[test]
    fn api_service_validation_refuses_each_violation() {
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
        assert_eq!(validate_name(&base, "v1.g.example"), None);
        assert_eq!(validate_name(&base, "a/b"), None, "the syntax error is reported instead");
        let expected = "must be `spec.version+\".\"+spec.group`: \"v1.g.example\"";
        assert_eq!(validate_name(&base, "x").as_deref(), Some(expected));
        let mut local = object(r#"{"spec":{}}"#);
        prepare_service(&mut local, &context("t"));
        assert_eq!(local.get_path(&["status", "conditions"]).unwrap().items()[0].str("reason"), "Local");
    }
}
