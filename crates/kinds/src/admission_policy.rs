//! Admission policies and their bindings. Expressions are compiled to report their errors.

use std::collections::BTreeSet;

use pilothouse_admission::policies::expressions::{
    Compiler, EnvironmentType, PROGRAM_ERROR, ResultType, new_libraries,
};
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};
use pilothouse_cel::reserved_words;
use pilothouse_structural::json_path::JsonPath;

use super::admission::{GROUP_RULES, match_conditions, validate_rule};
use super::{
    KindRules, MetaRevalidation, ResetFields, Revalidation, StatusMeta, StatusRules, ValidationRules,
    messages,
};
use crate::allowed::{admissionregistration_v1 as ar, admissionregistration_v1alpha1 as alpha};

/// The rules of a ValidatingAdmissionPolicy.
pub const VALIDATING_ADMISSION_POLICY: KindRules = KindRules {
    validation: ValidationRules {
        validate: validate_validating,
        validate_update: validate_validating_update,
        ..ValidationRules::DEFAULT
    },
    status: StatusRules {
        metadata: StatusMeta::ResetForStatus,
        metadata_revalidation: MetaRevalidation::No,
        validate: validate_status,
        ..StatusRules::DEFAULT
    },
    reset_fields: ResetFields::STATUS_KEEPS_METADATA,
    ..GROUP_RULES
};

/// The rules of a ValidatingAdmissionPolicyBinding.
pub const VALIDATING_ADMISSION_POLICY_BINDING: KindRules = KindRules {
    validation: ValidationRules {
        validate: validate_validating_binding,
        revalidation: Revalidation::Once,
        ..ValidationRules::DEFAULT
    },
    ..GROUP_RULES
};

/// The rules of a MutatingAdmissionPolicy.
pub const MUTATING_ADMISSION_POLICY: KindRules = KindRules {
    validation: ValidationRules {
        validate: validate_mutating,
        validate_update: validate_mutating_update,
        ..ValidationRules::DEFAULT
    },
    ..GROUP_RULES
};

/// The rules of a MutatingAdmissionPolicyBinding.
pub const MUTATING_ADMISSION_POLICY_BINDING: KindRules = KindRules {
    validation: ValidationRules {
        validate: validate_mutating_binding,
        revalidation: Revalidation::Once,
        ..ValidationRules::DEFAULT
    },
    ..GROUP_RULES
};

/// Checks a ValidatingAdmissionPolicy.
fn validate_validating(policy: &Value, errors: &mut ErrorList) {
    validating(policy, &OldPolicy::default(), errors);
}

/// Validates an updated ValidatingAdmissionPolicy.
fn validate_validating_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validating(new, &OldPolicy::collect(new, old), errors);
}

/// Checks a MutatingAdmissionPolicy.
fn validate_mutating(policy: &Value, errors: &mut ErrorList) {
    mutating(policy, &OldPolicy::default(), errors);
}

/// Validates an updated MutatingAdmissionPolicy.
fn validate_mutating_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    mutating(new, &OldPolicy::collect(new, old), errors);
}

/// What the old policy had and an update may keep.
#[derive(Default)]
struct OldPolicy<'a> {
    /// Whether the match conditions are unchanged, and thus not validated again.
    same_conditions: bool,
    conditions: BTreeSet<&'a str>,
    validations: BTreeSet<&'a str>,
    messages: BTreeSet<&'a str>,
    annotations: BTreeSet<&'a str>,
    configurations: BTreeSet<&'a str>,
}

impl<'a> OldPolicy<'a> {
    fn collect(new: &Value, old: &'a Value) -> OldPolicy<'a> {
        let texts = |list: &str, field: &str| -> BTreeSet<&'a str> {
            let items = old.get_path(&["spec", list]).map(Value::items).unwrap_or_default();
            items.iter().map(|item| item.str(field)).filter(|text| !text.is_empty()).collect()
        };
        OldPolicy {
            same_conditions: same_conditions(new, old),
            conditions: texts("matchConditions", "expression"),
            validations: texts("validations", "expression"),
            messages: texts("validations", "messageExpression"),
            annotations: texts("auditAnnotations", "valueExpression"),
            configurations: configurations(old),
        }
    }
}

/// The ApplyConfiguration expressions of a policy.
fn configurations(policy: &Value) -> BTreeSet<&str> {
    let mutations = policy.get_path(&["spec", "mutations"]).map(Value::items).unwrap_or_default();
    let texts = mutations
        .iter()
        .filter_map(|mutation| mutation.get_path(&["applyConfiguration", "expression"])?.as_str());
    texts.collect()
}

fn environment_of(old: &BTreeSet<&str>, text: &str) -> EnvironmentType {
    if old.contains(text) { EnvironmentType::Stored } else { EnvironmentType::New }
}

/// Whether the match conditions are unchanged.
fn same_conditions(new: &Value, old: &Value) -> bool {
    ["paramKind", "matchConditions"]
        .iter()
        .all(|field| same(new.get_path(&["spec", field]), old.get_path(&["spec", field])))
}

/// Checks the fields that both kinds have, and declares the variables for later expressions.
fn common(spec: &FieldValue<'_>, mutates: bool, old: &OldPolicy<'_>, errors: &mut ErrorList) -> Compiler {
    let failure = spec.child("failurePolicy");
    if failure.is_set() {
        failure.one_of(errors, ar::ValidatingAdmissionPolicySpec::FAILURE_POLICY);
    } else {
        failure.required(errors, "");
    }
    let has_params = spec.child("paramKind").is_set();
    if has_params {
        param_kind(&spec.child("paramKind"), errors);
    }
    let matched = spec.child("matchConstraints");
    if matched.is_set() {
        match_resources(&matched, errors);
        matched.child("resourceRules").need(errors);
        if mutates {
            mutable_operations(&matched, errors);
        }
    } else {
        matched.required(errors, "");
    }
    if !old.same_conditions {
        match_conditions(&spec.child("matchConditions"), has_params, &old.conditions, errors);
    }
    let mut compiler = Compiler::new(
        new_libraries(errors.features()),
        has_params,
        mutates || !spec.child("variables").is_empty(),
    );
    for variable in spec.child("variables").items() {
        let (name, expression) = (variable.child("name"), variable.child("expression"));
        if name.text().trim().is_empty() {
            name.required(errors, "name is not specified");
        } else if !is_identifier(name.text()) {
            name.invalid(errors, "name is not a valid CEL identifier");
        }
        if need_expression(&expression, "expression is not specified", errors) {
            let environment = environment_of(&old.validations, expression.text());
            let compiled = compiler.compile(expression.text(), ResultType::Any, true, environment);
            compiler.add(name.text(), compiled.as_ref().ok());
            if let Err(detail) = compiled {
                expression.invalid_text(errors, &detail);
            }
        }
    }
    compiler
}

fn need_expression(expression: &FieldValue<'_>, detail: &str, errors: &mut ErrorList) -> bool {
    let is_present = !expression.text().trim().is_empty();
    if !is_present {
        expression.required(errors, detail);
    }
    is_present
}

fn is_identifier(name: &str) -> bool {
    let is_identifier_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(is_identifier_byte)
        && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
        && !reserved_words::is_reserved(name)
}

fn validating(policy: &Value, old: &OldPolicy<'_>, errors: &mut ErrorList) {
    const NONE: &str = "validations or auditAnnotations must contain at least one item";
    let spec = FieldValue::top_level(policy, "spec");
    let mut compiler = common(&spec, false, old, errors);
    let (validations, annotations) = (spec.child("validations"), spec.child("auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        validations.required(errors, NONE);
        annotations.required(errors, NONE);
        return;
    }
    for validation in validations.items() {
        validate_validation(&validation, &mut compiler, old, errors);
    }
    audit_annotations(meta::name(policy), &annotations, &mut compiler, old, errors);
}

fn validate_validation(
    validation: &FieldValue<'_>,
    compiler: &mut Compiler,
    old: &OldPolicy<'_>,
    errors: &mut ErrorList,
) {
    let expression = validation.child("expression");
    if need_expression(&expression, "expression is not specified", errors) {
        let environment = environment_of(&old.validations, expression.text());
        if let Err(detail) = compiler.compile(expression.text(), ResultType::Bool, true, environment) {
            expression.invalid_text(errors, &detail);
        }
    }
    let (computed, message) = (validation.child("messageExpression"), validation.child("message"));
    let blank = |node: &FieldValue<'_>| !node.is_empty() && node.text().trim().is_empty();
    if blank(&computed) {
        computed.invalid(errors, "must be non-empty if specified");
    } else if !computed.is_empty() {
        let environment = environment_of(&old.messages, computed.text());
        if let Err(detail) = compiler.compile(computed.text(), ResultType::String, false, environment) {
            computed.invalid_text(errors, &detail);
        }
    }
    if blank(&message) {
        message.invalid(errors, "message must be non-empty if specified");
    } else if message.text().trim().contains(['\n', '\r']) {
        message.invalid(errors, "message must not contain line breaks");
    }
    validation.child("reason").one_of_if_set(errors, &["Forbidden", "Invalid", "RequestEntityTooLarge"]);
}

fn audit_annotations(
    policy: &str,
    list: &FieldValue<'_>,
    compiler: &mut Compiler,
    old: &OldPolicy<'_>,
    errors: &mut ErrorList,
) {
    const MAX_ANNOTATIONS: usize = 20;
    const MAX_LENGTH: usize = 5 * 1_024;
    if list.len() > MAX_ANNOTATIONS {
        let detail = format!("must not have more than {MAX_ANNOTATIONS} auditAnnotations");
        messages::invalid_struct(&list.path, "[]admissionregistration.AuditAnnotation", errors, &detail);
    }
    let mut seen = BTreeSet::new();
    for annotation in list.items() {
        let (key, value) = (annotation.child("key"), annotation.child("valueExpression"));
        if policy.is_empty() {
            key.invalid_text(errors, "requires metadata.name be non-empty");
        } else {
            let qualified = format!("{policy}/{}", key.text());
            meta::add_invalid(errors, &key.path, &qualified, names::qualified_name(&qualified));
        }
        let text = value.text().trim();
        if text.len() > MAX_LENGTH {
            value.required(errors, &format!("must not exceed {MAX_LENGTH} bytes in length"));
        } else if need_expression(&value, "valueExpression is not specified", errors) {
            let environment = environment_of(&old.annotations, value.text());
            if let Err(detail) = compiler.compile(text, ResultType::StringOrNull, true, environment) {
                value.invalid_text(errors, &detail);
            }
        }
        if !seen.insert(key.text()) {
            errors.push(FieldError::duplicate(&key.path, &quoted(key.text())));
        }
    }
}

fn mutating(policy: &Value, old: &OldPolicy<'_>, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(policy, "spec");
    let mut compiler = common(&spec, true, old, errors);
    let mutations = spec.child("mutations");
    if mutations.is_empty() {
        mutations.required(errors, "mutations must contain at least one item");
    }
    for mutation in mutations.items() {
        let kinds = [
            ("ApplyConfiguration", "applyConfiguration", ResultType::Object),
            ("JSONPatch", "jsonPatch", ResultType::JsonPatch),
        ];
        let kind = mutation.child("patchType");
        if !kind.need(errors) {
            continue;
        }
        kind.one_of(errors, &kinds.map(|(word, ..)| word));
        if kinds.iter().all(|(word, ..)| *word != kind.text()) {
            continue;
        }
        // The missing field is reported first.
        for (word, field, result_type) in kinds.iter().filter(|(word, ..)| *word == kind.text()) {
            if mutation.child(field).is_set() {
                let expression = mutation.child(field).child("expression");
                if need_expression(&expression, "", errors) {
                    let environment = environment_of(&old.configurations, expression.text());
                    let text = expression.text().trim();
                    match compiler.compile(text, *result_type, true, environment) {
                        Ok(_) => {}
                        Err(detail) if detail.starts_with(PROGRAM_ERROR) => {
                            errors.add(|| FieldError::internal(&expression.path, &detail));
                        }
                        Err(detail) => {
                            errors.add(|| FieldError::invalid(&expression.path, &quoted(text), &detail));
                        }
                    }
                }
            } else {
                mutation
                    .child(field)
                    .required(errors, &format!("must be specified when patchType is {word}"));
            }
        }
        for (_, field, _) in kinds.iter().filter(|(word, ..)| *word != kind.text()) {
            if mutation.child(field).is_set() {
                let detail = format!("must not be specified when patchType is {}", kind.text());
                let rendered = quoted(&format!("{{{field}}}"));
                errors.push(FieldError::invalid(&mutation.child(field).path, &rendered, &detail));
            }
        }
    }
    spec.child("reinvocationPolicy")
        .need_one_of(errors, alpha::MutatingAdmissionPolicySpec::REINVOCATION_POLICY);
}

/// A mutating policy cannot match DELETE.
fn mutable_operations(matched: &FieldValue<'_>, errors: &mut ErrorList) {
    let words = ["*", "CONNECT", "CREATE", "UPDATE"];
    let path = matched.child("resourceRules").child("operations").path;
    for rule in matched.child("resourceRules").items() {
        for operation in
            rule.child("operations").items().filter(|operation| !words.contains(&operation.text()))
        {
            errors.push(FieldError::not_supported(&path, &quoted(operation.text()), &words));
        }
    }
}

fn param_kind(kind: &FieldValue<'_>, errors: &mut ErrorList) {
    let (version, name) = (kind.child("apiVersion"), kind.child("kind"));
    if version.need(errors) {
        param_version(&version, errors);
    }
    if name.need(errors) {
        let details = names::dns_1035_label(&name.text().to_lowercase());
        if !details.is_empty() {
            let detail = format!("may have mixed case, but should otherwise match: {}", details.join(","));
            name.invalid(errors, &detail);
        }
    }
}

fn param_version(node: &FieldValue<'_>, errors: &mut ErrorList) {
    let text = node.text();
    if text.matches('/').count() > 1 {
        node.invalid(errors, &format!("unexpected GroupVersion string: {text}"));
        return;
    }
    let (group, version) = text.split_once('/').unwrap_or(("", text));
    let mut part = |value: &str, details: Vec<String>| {
        if !details.is_empty() {
            errors.push(FieldError::invalid(&node.path, &quoted(value), &details.join(",")));
        }
    };
    if !group.is_empty() {
        part(group, names::dns_subdomain(group));
    }
    if version.is_empty() {
        part(text, vec!["version must be specified".to_owned()]);
    } else {
        part(version, names::dns_1035_label(version));
    }
}

fn match_resources(matched: &FieldValue<'_>, errors: &mut ErrorList) {
    let policy = matched.child("matchPolicy");
    if policy.is_set() {
        policy.one_of(errors, ar::MatchResources::MATCH_POLICY);
    } else {
        policy.required(errors, "");
    }
    for field in ["namespaceSelector", "objectSelector"] {
        let selector = matched.child(field);
        if selector.is_set() {
            label_selector::validate(&selector, errors);
        } else {
            selector.required(errors, "");
        }
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        for rule in matched.child(list).items() {
            let mut seen = BTreeSet::new();
            for name in rule.child("resourceNames").items() {
                name.syntax(errors, |name| names::path_segment(name, false));
                if !seen.insert(name.text()) {
                    name.duplicate(errors);
                }
            }
            validate_rule(&rule, errors);
        }
    }
}

fn binding(object: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(object, "spec");
    spec.child("policyName").need_syntax(errors, names::dns_subdomain);
    param_reference(&spec.child("paramRef"), errors);
    if spec.child("matchResources").is_set() {
        match_resources(&spec.child("matchResources"), errors);
    }
}

fn param_reference(reference: &FieldValue<'_>, errors: &mut ErrorList) {
    const EITHER: &str = "name and selector are mutually exclusive";
    if !reference.is_set() {
        return;
    }
    let (name, selector) = (reference.child("name"), reference.child("selector"));
    if !name.is_empty() {
        name.syntax(errors, |name| names::path_segment(name, false));
        if selector.is_set() {
            name.forbidden(errors, EITHER);
        }
    }
    if selector.is_set() {
        label_selector::validate(&selector, errors);
        if !name.is_empty() {
            selector.forbidden(errors, EITHER);
        }
    } else if name.is_empty() {
        reference.required(errors, "one of name or selector must be specified");
    }
    reference
        .child("parameterNotFoundAction")
        .need_one_of(errors, alpha::ParamRef::PARAMETER_NOT_FOUND_ACTION);
}

/// Checks a ValidatingAdmissionPolicyBinding.
fn validate_validating_binding(object: &Value, errors: &mut ErrorList) {
    const BOTH: &str = "must not contain both Deny and Warn (repeating the same validation failure information in \
                        the API response and headers serves no purpose)";
    binding(object, errors);
    let actions = FieldValue::top_level(object, "spec").child("validationActions");
    let mut seen = BTreeSet::new();
    for action in actions.items() {
        action.one_of(errors, ar::ValidatingAdmissionPolicyBindingSpec::VALIDATION_ACTIONS);
        if !seen.insert(action.text()) {
            action.duplicate(errors);
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let rendered = messages::render_strings(&actions, "admissionregistration.ValidationAction");
        errors.push(FieldError::invalid(&actions.path, &rendered, BOTH));
    }
    if seen.is_empty() {
        actions.required(errors, "at least one validation action is required");
    }
}

/// Checks a MutatingAdmissionPolicyBinding.
fn validate_mutating_binding(object: &Value, errors: &mut ErrorList) {
    binding(object, errors);
    mutable_operations(&FieldValue::top_level(object, "spec").child("matchResources"), errors);
}

/// Validates a status update of a ValidatingAdmissionPolicy.
fn validate_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::top_level(new, "status");
    for warning in status.child("typeChecking").child("expressionWarnings").items() {
        warning.child("warning").need(errors);
        let field_ref = warning.child("fieldRef");
        match field_ref.text().trim() {
            "" => field_ref.required(errors, ""),
            path => {
                if let Err(detail) = JsonPath::parse(path) {
                    let detail = format!("invalid JSONPath: {detail}");
                    errors.add(|| FieldError::invalid(&field_ref.path, &quoted(path), &detail));
                }
            }
        }
    }
    messages::conditions(&status.child("conditions"), errors);
}

#[cfg(test)]
mod tests;
