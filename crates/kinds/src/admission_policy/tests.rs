//! Tests of the rules of admission policies and bindings.

use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

use super::super::testing::filled;
use super::*;

const RULES: &str = r#"{"resourceRules":[{"apiGroups":["*"],"apiVersions":["*"],"resources":["*"],"operations":["CREATE"]}]}"#;

fn policy_with_spec(spec: &str) -> Value {
    let json = format!(r#"{{"metadata":{{"name":"p"}},"spec":{spec}}}"#);
    filled(("admissionregistration.k8s.io", "v1"), "ValidatingAdmissionPolicy", &json)
}

#[test]
fn validating_policy_validation_refuses_each_violation() {
    let base = policy_with_spec(&format!(
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
            ("spec.validations.0.reason", r#""X""#, "\"Forbidden\", \"Invalid\", \"RequestEntityTooLarge\""),
            ("spec.auditAnnotations.0.key", r#""-""#, "auditAnnotations[0].key: Invalid value: \"p/-\""),
            ("spec.auditAnnotations.0.valueExpression", "null", "valueExpression is not specified"),
            ("spec.matchConditions", r#"[{"name":"a"}]"#, "matchConditions[0].expression: Required value"),
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
fn mutating_policy_validation_refuses_each_violation() {
    let base = policy_with_spec(&format!(
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
fn binding_validation_refuses_each_violation() {
    let json = format!(
        r#"{{"metadata":{{"name":"p"}},"spec":{{"policyName":"p","validationActions":["Deny"],"matchResources":{RULES},
                "paramRef":{{"name":"n","parameterNotFoundAction":"Deny"}}}}}}"#
    );
    let base = filled(("admissionregistration.k8s.io", "v1"), "ValidatingAdmissionPolicyBinding", &json);
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
    let both = object(r#"{"spec":{"paramRef":{"name":"n","selector":{},"parameterNotFoundAction":"Deny"}}}"#);
    param_reference(&FieldValue::top_level(&both, "spec").child("paramRef"), &mut errors);
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
