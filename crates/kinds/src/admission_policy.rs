//! Admission policies and their bindings. Expressions are compiled to report their errors.

use std::collections::BTreeSet;

use pilothouse_admission::policies::expressions::{Compiler, EnvironmentType, ResultType, UNPLANNED};
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};
use pilothouse_cel::reserved_words;
use pilothouse_structural::json_path::JsonPath;

use super::admission::{GROUP_RULES, match_conditions, validate_rule};
use super::{KindRules, MetaRevalidation, Revalidation, StatusMeta, messages};
use crate::allowed::{admissionregistration_v1 as ar, admissionregistration_v1alpha1 as alpha};

/// The rules of a ValidatingAdmissionPolicy.
pub const VALIDATING_ADMISSION_POLICY: KindRules = KindRules {
    status_meta_revalidation: MetaRevalidation::No,
    status_meta: StatusMeta::Fixed,
    validate: validate_validating,
    validate_update: validate_validating_update,
    validate_status,
    ..GROUP_RULES
};

/// The rules of a ValidatingAdmissionPolicyBinding.
pub const VALIDATING_ADMISSION_POLICY_BINDING: KindRules =
    KindRules { validate: validate_validating_binding, revalidation: Revalidation::Once, ..GROUP_RULES };

/// The rules of a MutatingAdmissionPolicy.
pub const MUTATING_ADMISSION_POLICY: KindRules =
    KindRules { validate: validate_mutating, validate_update: validate_mutating_update, ..GROUP_RULES };

/// The rules of a MutatingAdmissionPolicyBinding.
pub const MUTATING_ADMISSION_POLICY_BINDING: KindRules =
    KindRules { validate: validate_mutating_binding, revalidation: Revalidation::Once, ..GROUP_RULES };

/// Checks a ValidatingAdmissionPolicy.
fn validate_validating(policy: &Value, errors: &mut ErrorList) {
    validating(policy, &Before::default(), errors);
}

/// Checks a changed ValidatingAdmissionPolicy.
fn validate_validating_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validating(new, &Before::of(new, old), errors);
}

/// Checks a MutatingAdmissionPolicy.
fn validate_mutating(policy: &Value, errors: &mut ErrorList) {
    mutating(policy, &Before::default(), errors);
}

/// Checks a changed MutatingAdmissionPolicy.
fn validate_mutating_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    mutating(new, &Before::of(new, old), errors);
}

/// What the old policy had, which stays accepted.
#[derive(Default)]
struct Before<'a> {
    /// Whether the match conditions are unchanged, and thus not checked again.
    same_conditions: bool,
    conditions: BTreeSet<&'a str>,
    validations: BTreeSet<&'a str>,
    messages: BTreeSet<&'a str>,
    annotations: BTreeSet<&'a str>,
    configurations: BTreeSet<&'a str>,
}

impl<'a> Before<'a> {
    fn of(new: &Value, old: &'a Value) -> Before<'a> {
        let texts = |list: &str, field: &str| -> BTreeSet<&'a str> {
            let items = old.at(&["spec", list]).map(Value::items).unwrap_or_default();
            items.iter().map(|item| item.str(field)).filter(|text| !text.is_empty()).collect()
        };
        Before {
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
    let mutations = policy.at(&["spec", "mutations"]).map(Value::items).unwrap_or_default();
    let texts = mutations.iter().filter_map(|one| one.at(&["applyConfiguration", "expression"])?.as_str());
    texts.collect()
}

fn age(before: &BTreeSet<&str>, text: &str) -> EnvironmentType {
    if before.contains(text) { EnvironmentType::Stored } else { EnvironmentType::New }
}

/// Whether the match conditions are unchanged.
fn same_conditions(new: &Value, old: &Value) -> bool {
    ["paramKind", "matchConditions"]
        .iter()
        .all(|field| same(new.at(&["spec", field]), old.at(&["spec", field])))
}

/// Checks the fields that both kinds have, and declares the variables for later expressions.
fn common(spec: &FieldValue<'_>, mutates: bool, before: &Before<'_>, errors: &mut ErrorList) -> Compiler {
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
    if !before.same_conditions {
        match_conditions(&spec.child("matchConditions"), has_params, &before.conditions, errors);
    }
    let mut compiler = Compiler::new(has_params, mutates || !spec.child("variables").is_empty());
    for variable in spec.child("variables").items() {
        let (name, expression) = (variable.child("name"), variable.child("expression"));
        if name.text().trim().is_empty() {
            name.required(errors, "name is not specified");
        } else if !is_identifier(name.text()) {
            name.invalid(errors, "name is not a valid CEL identifier");
        }
        if need_expression(&expression, "expression is not specified", errors) {
            let age = age(&before.validations, expression.text());
            let made = compiler.compile(expression.text(), ResultType::Anything, true, age);
            compiler.add(name.text(), made.as_ref().ok());
            if let Err(why) = made {
                expression.invalid_text(errors, &why);
            }
        }
    }
    compiler
}

fn need_expression(expression: &FieldValue<'_>, why: &str, errors: &mut ErrorList) -> bool {
    let is_there = !expression.text().trim().is_empty();
    if !is_there {
        expression.required(errors, why);
    }
    is_there
}

fn is_identifier(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(fits)
        && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
        && !reserved_words::is_reserved(name)
}

fn validating(policy: &Value, before: &Before<'_>, errors: &mut ErrorList) {
    const NONE: &str = "validations or auditAnnotations must contain at least one item";
    let spec = FieldValue::of(policy, "spec");
    let mut compiler = common(&spec, false, before, errors);
    let (validations, annotations) = (spec.child("validations"), spec.child("auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        validations.required(errors, NONE);
        annotations.required(errors, NONE);
        return;
    }
    for validation in validations.items() {
        validate_one(&validation, &mut compiler, before, errors);
    }
    audit_annotations(meta::name(policy), &annotations, &mut compiler, before, errors);
}

fn validate_one(
    validation: &FieldValue<'_>,
    compiler: &mut Compiler,
    before: &Before<'_>,
    errors: &mut ErrorList,
) {
    let expression = validation.child("expression");
    if need_expression(&expression, "expression is not specified", errors) {
        let age = age(&before.validations, expression.text());
        if let Err(why) = compiler.compile(expression.text(), ResultType::Truth, true, age) {
            expression.invalid_text(errors, &why);
        }
    }
    let (computed, message) = (validation.child("messageExpression"), validation.child("message"));
    let blank = |node: &FieldValue<'_>| !node.is_empty() && node.text().trim().is_empty();
    if blank(&computed) {
        computed.invalid(errors, "must be non-empty if specified");
    } else if !computed.is_empty() {
        let age = age(&before.messages, computed.text());
        if let Err(why) = compiler.compile(computed.text(), ResultType::Text, false, age) {
            computed.invalid_text(errors, &why);
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
    before: &Before<'_>,
    errors: &mut ErrorList,
) {
    const MOST: usize = 20;
    const LONGEST: usize = 5 * 1_024;
    if list.len() > MOST {
        let why = format!("must not have more than {MOST} auditAnnotations");
        messages::structure(&list.path, "[]admissionregistration.AuditAnnotation", errors, &why);
    }
    let mut seen = BTreeSet::new();
    for annotation in list.items() {
        let (key, value) = (annotation.child("key"), annotation.child("valueExpression"));
        if policy.is_empty() {
            key.invalid_text(errors, "requires metadata.name be non-empty");
        } else {
            let whole = format!("{policy}/{}", key.text());
            meta::texts(errors, &key.path, &whole, names::qualified_name(&whole));
        }
        let text = value.text().trim();
        if text.len() > LONGEST {
            value.required(errors, &format!("must not exceed {LONGEST} bytes in length"));
        } else if need_expression(&value, "valueExpression is not specified", errors) {
            let age = age(&before.annotations, value.text());
            if let Err(why) = compiler.compile(text, ResultType::TextOrNull, true, age) {
                value.invalid_text(errors, &why);
            }
        }
        if !seen.insert(key.text()) {
            errors.push(FieldError::duplicate(&key.path, &quoted(key.text())));
        }
    }
}

fn mutating(policy: &Value, before: &Before<'_>, errors: &mut ErrorList) {
    let spec = FieldValue::of(policy, "spec");
    let mut compiler = common(&spec, true, before, errors);
    let mutations = spec.child("mutations");
    if mutations.is_empty() {
        mutations.required(errors, "mutations must contain at least one item");
    }
    for mutation in mutations.items() {
        let kinds = [
            ("ApplyConfiguration", "applyConfiguration", ResultType::Object),
            ("JSONPatch", "jsonPatch", ResultType::Operations),
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
        for (word, field, wanted) in kinds.iter().filter(|(word, ..)| *word == kind.text()) {
            if mutation.child(field).is_set() {
                let expression = mutation.child(field).child("expression");
                if need_expression(&expression, "", errors) {
                    let age = age(&before.configurations, expression.text());
                    let text = expression.text().trim();
                    match compiler.compile(text, *wanted, true, age) {
                        Ok(_) => {}
                        Err(why) if why.starts_with(UNPLANNED) => {
                            errors.add(|| FieldError::internal(&expression.path, &why));
                        }
                        Err(why) => {
                            errors.add(|| FieldError::invalid(&expression.path, &quoted(text), &why));
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
                let why = format!("must not be specified when patchType is {}", kind.text());
                let shown = quoted(&format!("{{{field}}}"));
                errors.push(FieldError::invalid(&mutation.child(field).path, &shown, &why));
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
        for operation in rule.child("operations").items().filter(|one| !words.contains(&one.text())) {
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
        let wrong = names::dns_1035_label(&name.text().to_lowercase());
        if !wrong.is_empty() {
            let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
            name.invalid(errors, &why);
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
    let mut part = |value: &str, wrong: Vec<String>| {
        if !wrong.is_empty() {
            errors.push(FieldError::invalid(&node.path, &quoted(value), &wrong.join(",")));
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
        let chosen = matched.child(field);
        if chosen.is_set() {
            label_selector::validate(&chosen, errors);
        } else {
            chosen.required(errors, "");
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
    let spec = FieldValue::of(object, "spec");
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
    let (name, chosen) = (reference.child("name"), reference.child("selector"));
    if !name.is_empty() {
        name.syntax(errors, |name| names::path_segment(name, false));
        if chosen.is_set() {
            name.forbidden(errors, EITHER);
        }
    }
    if chosen.is_set() {
        label_selector::validate(&chosen, errors);
        if !name.is_empty() {
            chosen.forbidden(errors, EITHER);
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
    let actions = FieldValue::of(object, "spec").child("validationActions");
    let mut seen = BTreeSet::new();
    for action in actions.items() {
        action.one_of(errors, ar::ValidatingAdmissionPolicyBindingSpec::VALIDATION_ACTIONS);
        if !seen.insert(action.text()) {
            action.duplicate(errors);
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let shown = messages::shown_texts(&actions, "admissionregistration.ValidationAction");
        errors.push(FieldError::invalid(&actions.path, &shown, BOTH));
    }
    if seen.is_empty() {
        actions.required(errors, "at least one validation action is required");
    }
}

/// Checks a MutatingAdmissionPolicyBinding.
fn validate_mutating_binding(object: &Value, errors: &mut ErrorList) {
    binding(object, errors);
    mutable_operations(&FieldValue::of(object, "spec").child("matchResources"), errors);
}

/// Checks a changed status of a ValidatingAdmissionPolicy.
fn validate_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::of(new, "status");
    for warning in status.child("typeChecking").child("expressionWarnings").items() {
        warning.child("warning").need(errors);
        let place = warning.child("fieldRef");
        match place.text().trim() {
            "" => place.required(errors, ""),
            path => {
                if let Err(why) = JsonPath::parse(path) {
                    let why = format!("invalid JSONPath: {why}");
                    errors.add(|| FieldError::invalid(&place.path, &quoted(path), &why));
                }
            }
        }
    }
    messages::conditions(&status.child("conditions"), errors);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::super::testing::filled;
    use super::*;

    const RULES: &str = r#"{"resourceRules":[{"apiGroups":["*"],"apiVersions":["*"],"resources":["*"],"operations":["CREATE"]}]}"#;

    fn with(spec: &str) -> Value {
        let given = format!(r#"{{"metadata":{{"name":"p"}},"spec":{spec}}}"#);
        filled(("admissionregistration.k8s.io", "v1"), "ValidatingAdmissionPolicy", &given)
    }

    #[test]
    fn each_rule_of_a_validating_policy_refuses() {
        let base = with(&format!(
            r#"{{"failurePolicy":"Fail","matchConstraints":{RULES},"paramKind":{{"apiVersion":"v1","kind":"ConfigMap"}},
                "variables":[{{"name":"x","expression":"1"}}],"validations":[{{"expression":"true"}}],
                "auditAnnotations":[{{"key":"k","valueExpression":"'v'"}}]}}"#
        ));
        each_refused(
            &base,
            validate_validating,
            &[
                ("spec.failurePolicy", "null", "spec.failurePolicy: Required value"),
                ("spec.failurePolicy", r#""X""#, "\"Fail\", \"Ignore\""),
                ("spec.matchConstraints", "null", "spec.matchConstraints: Required value"),
                (
                    "spec.matchConstraints.resourceRules",
                    "[]",
                    "spec.matchConstraints.resourceRules: Required value",
                ),
                ("spec.matchConstraints.matchPolicy", r#""X""#, "\"Equivalent\", \"Exact\""),
                (
                    "spec.matchConstraints.resourceRules.0.resourceNames",
                    r#"["a","a"]"#,
                    "resourceNames[1]: Duplicate value: \"a\"",
                ),
                (
                    "spec.matchConstraints.resourceRules.0.resourceNames",
                    r#"["a/b"]"#,
                    "resourceNames[0]: Invalid value: \"a/b\"",
                ),
                ("spec.paramKind.apiVersion", r#""a/b/c""#, "unexpected GroupVersion string: a/b/c"),
                (
                    "spec.paramKind.apiVersion",
                    r#""a/""#,
                    "spec.paramKind.apiVersion: Invalid value: \"a/\": version must be specified",
                ),
                ("spec.paramKind.apiVersion", r#""A/v1""#, "spec.paramKind.apiVersion: Invalid value: \"A\""),
                (
                    "spec.paramKind.kind",
                    r#""-""#,
                    "may have mixed case, but should otherwise match: a DNS-1035 label",
                ),
                ("spec.variables.0.name", r#""in""#, "name is not a valid CEL identifier"),
                ("spec.variables.0.name", "null", "name is not specified"),
                ("spec.variables.0.expression", r#"" ""#, "expression is not specified"),
                (
                    "spec.validations.0.expression",
                    "null",
                    "validations[0].expression: Required value: expression is not specified",
                ),
                ("spec.validations.0.message", r#""a\nb""#, "message must not contain line breaks"),
                ("spec.validations.0.message", r#"" ""#, "message must be non-empty if specified"),
                (
                    "spec.validations.0.messageExpression",
                    r#"" ""#,
                    "messageExpression: Invalid value: \" \": must be non-empty if specified",
                ),
                (
                    "spec.validations.0.reason",
                    r#""X""#,
                    "\"Forbidden\", \"Invalid\", \"RequestEntityTooLarge\"",
                ),
                ("spec.auditAnnotations.0.key", r#""-""#, "auditAnnotations[0].key: Invalid value: \"p/-\""),
                ("spec.auditAnnotations.0.valueExpression", "null", "valueExpression is not specified"),
                (
                    "spec.matchConditions",
                    r#"[{"name":"a"}]"#,
                    "matchConditions[0].expression: Required value",
                ),
            ],
        );
        let mut none = base.clone();
        for field in ["validations", "auditAnnotations"] {
            none.entry("spec").remove(field);
        }
        let mut errors = ErrorList::new();
        validate_validating(&none, &mut errors);
        assert_eq!(errors.len(), 2);
        each_change_refused(
            &base,
            validate_status,
            &[
                (
                    "status.typeChecking",
                    r#"{"expressionWarnings":[{"fieldRef":"a"}]}"#,
                    "expressionWarnings[0].warning: Required value",
                ),
                (
                    "status.typeChecking",
                    r#"{"expressionWarnings":[{"fieldRef":"spec.x[","warning":"w"}]}"#,
                    "expressionWarnings[0].fieldRef: Invalid value: \"spec.x[\": invalid JSONPath: unterminated array",
                ),
            ],
        );
    }

    #[test]
    fn each_rule_of_a_mutating_policy_refuses() {
        let base = with(&format!(
            r#"{{"failurePolicy":"Fail","matchConstraints":{RULES},"reinvocationPolicy":"Never",
                "mutations":[{{"patchType":"JSONPatch","jsonPatch":{{"expression":"[JSONPatch{{}}]"}}}}]}}"#
        ));
        each_refused(
            &base,
            validate_mutating,
            &[
                (
                    "spec.mutations",
                    "[]",
                    "spec.mutations: Required value: mutations must contain at least one item",
                ),
                ("spec.mutations.0.patchType", "null", "patchType: Required value"),
                ("spec.mutations.0.patchType", r#""X""#, "\"ApplyConfiguration\", \"JSONPatch\""),
                ("spec.mutations.0.jsonPatch", "null", "must be specified when patchType is JSONPatch"),
                ("spec.mutations.0.jsonPatch.expression", "null", "jsonPatch.expression: Required value"),
                (
                    "spec.mutations.0.applyConfiguration",
                    r#"{"expression":"x"}"#,
                    "applyConfiguration: Invalid value: \"{applyConfiguration}\": must not be specified when patchType is JSONPatch",
                ),
                ("spec.reinvocationPolicy", "null", "spec.reinvocationPolicy: Required value"),
                ("spec.reinvocationPolicy", r#""X""#, "\"IfNeeded\", \"Never\""),
                (
                    "spec.matchConstraints.resourceRules.0.operations",
                    r#"["DELETE"]"#,
                    "spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"UPDATE\"",
                ),
            ],
        );
    }

    #[test]
    fn each_rule_of_a_binding_refuses() {
        let given = format!(
            r#"{{"metadata":{{"name":"p"}},"spec":{{"policyName":"p","validationActions":["Deny"],"matchResources":{RULES},
                "paramRef":{{"name":"n","parameterNotFoundAction":"Deny"}}}}}}"#
        );
        let base = filled(("admissionregistration.k8s.io", "v1"), "ValidatingAdmissionPolicyBinding", &given);
        each_refused(
            &base,
            validate_validating_binding,
            &[
                ("spec.policyName", "null", "spec.policyName: Required value"),
                ("spec.policyName", r#""A""#, "spec.policyName: Invalid value: \"A\""),
                ("spec.validationActions", "[]", "at least one validation action is required"),
                ("spec.validationActions", r#"["X"]"#, "\"Audit\", \"Deny\", \"Warn\""),
                (
                    "spec.validationActions",
                    r#"["Deny","Deny"]"#,
                    "spec.validationActions[1]: Duplicate value: \"Deny\"",
                ),
                ("spec.validationActions", r#"["Deny","Warn"]"#, "must not contain both Deny and Warn"),
                ("spec.paramRef.name", "null", "one of name or selector must be specified"),
                ("spec.paramRef.parameterNotFoundAction", "null", "parameterNotFoundAction: Required value"),
                ("spec.paramRef.parameterNotFoundAction", r#""X""#, "supported values: \"Deny\", \"Allow\""),
            ],
        );
        let mut errors = ErrorList::new();
        let both =
            object(r#"{"spec":{"paramRef":{"name":"n","selector":{},"parameterNotFoundAction":"Deny"}}}"#);
        param_reference(&FieldValue::of(&both, "spec").child("paramRef"), &mut errors);
        assert_eq!(errors.len(), 2);
        each_refused(
            &base,
            validate_mutating_binding,
            &[(
                "spec.matchResources.resourceRules.0.operations",
                r#"["DELETE"]"#,
                "spec.matchResources.resourceRules.operations: Unsupported value: \"DELETE\"",
            )],
        );
    }
}
