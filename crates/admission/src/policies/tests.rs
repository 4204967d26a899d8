//! Evaluates policies over values, without a server.

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::RecentLibraries;
use pilothouse_types::authorization::Target;
use pilothouse_types::identity::Identity;

use super::authorizer::{AuthorizationResult, Authorizer, RequestTarget};
use super::decision::{
    AuditAnnotation, AuthorizationPending, Decision, PolicyInputs, PolicyResult, combine_conditions, decide,
};
use super::evaluate::{BUDGET_EXCEEDED, Inputs};
use super::expressions::{Compiler, EnvironmentType, ResultType};
use super::policy::Policy;
use super::request::{KindRef, RequestInfo, namespace, request};
use crate::matching::AdmissionAttributes;
use crate::policies::evaluate::ResultValue;

fn value(text: &str) -> Value {
    json::read(text.as_bytes()).unwrap()
}

fn policy(spec: &str) -> Policy {
    Policy::read(&value(&format!(r#"{{"metadata":{{"name":"p"}},"spec":{spec}}}"#)))
}

fn attributes() -> AdmissionAttributes<'static> {
    AdmissionAttributes {
        group: "",
        version: "v1",
        resource: "configmaps",
        subresource: "",
        namespace: "n",
        name: "c",
        operation: "CREATE",
    }
}

fn decide_with(
    spec: &str,
    object: &str,
    params: &str,
    authorizer: &Authorizer,
) -> Result<PolicyResult, AuthorizationPending> {
    let (object, params) = (value(object), value(params));
    let user = Identity { name: "alice".to_owned(), groups: vec!["g".to_owned()], ..Identity::default() };
    let kind = KindRef { group: "", version: "v1", kind: "ConfigMap" };
    let info =
        RequestInfo { attributes: attributes(), kind, user: &user, is_trial: false, options: &Value::Null };
    let request = request(&info, &attributes(), kind);
    let stored =
        value(r#"{"metadata":{"name":"n","labels":{"a":"b"},"managedFields":[]},"spec":{},"status":{}}"#);
    let namespace = namespace(&stored);
    let inputs = Inputs {
        object: &object,
        old: &Value::Null,
        params: &params,
        request: &request,
        namespace: &namespace,
        authorizer: Some(authorizer),
    };
    decide(&policy(spec), PolicyInputs { inputs, original_request: &request, namespace: &stored })
}

fn decide_for(spec: &str, object: &str) -> PolicyResult {
    decide_with(spec, object, "null", &Authorizer::new(RequestTarget::default())).unwrap()
}

/// The messages and reasons of failed validations.
fn denials(spec: &str, object: &str) -> Vec<(String, &'static str)> {
    let decisions = decide_for(spec, object).decisions.into_iter().filter(|decision| decision.denies);
    decisions.map(|decision| (decision.message, decision.reason)).collect()
}

#[test]
fn compiler_checks_result_types_and_variables() {
    let check = |text: &str, result_type: ResultType, authorizer: bool| {
        Compiler::new(RecentLibraries::default(), false, false)
            .compile(text, result_type, authorizer, EnvironmentType::New)
            .map(drop)
            .err()
    };
    for (text, result_type, authorizer, error) in [
        ("true", ResultType::Bool, true, None),
        ("object.spec.x == 1 && oldObject == null", ResultType::Bool, true, None),
        ("object.spec.x", ResultType::Bool, true, Some("must evaluate to bool but got dyn")),
        ("1", ResultType::Bool, true, Some("must evaluate to bool but got int")),
        ("[1]", ResultType::String, true, Some("must evaluate to string but got list(int)")),
        (
            "timestamp('2020-01-01T00:00:00Z')",
            ResultType::String,
            true,
            Some("must evaluate to string but got google.protobuf.Timestamp"),
        ),
        (
            "true",
            ResultType::StringOrNull,
            true,
            Some("must evaluate to one of [string null_type] but got bool"),
        ),
        ("null", ResultType::StringOrNull, true, None),
        ("request.userInfo.groups[0]", ResultType::String, true, None),
        ("namespaceObject.metadata.labels['a']", ResultType::String, true, None),
        ("authorizer.requestResource.check('get').allowed()", ResultType::Bool, true, None),
        (
            "authorizer.serviceAccount('a', 'b').group('').resource('c').check('d').reason()",
            ResultType::String,
            true,
            None,
        ),
    ] {
        assert_eq!(check(text, result_type, authorizer).as_deref(), error, "{text}");
    }
    for (text, authorizer, error) in [
        ("params.x == 1", true, "undeclared reference to 'params'"),
        ("variables.x == 1", true, "undeclared reference to 'variables'"),
        ("request.nope == 1", true, "undefined field 'nope'"),
        ("authorizer.path('/x').check('get').allowed()", false, "undeclared reference to 'authorizer'"),
    ] {
        let message = check(text, ResultType::Bool, authorizer).unwrap();
        assert!(message.starts_with("compilation failed: ERROR") && message.contains(error), "{message}");
    }
    let newer = "isSemver('1.2.3')";
    let mut compiler = Compiler::new(RecentLibraries::default(), true, true);
    assert!(
        compiler.compile(newer, ResultType::Bool, true, EnvironmentType::New).is_err(),
        "the previous release lacks this function"
    );
    assert!(compiler.compile(newer, ResultType::Bool, true, EnvironmentType::Stored).is_ok());
    let program = compiler.compile("size(object)", ResultType::Any, true, EnvironmentType::New).unwrap();
    compiler.add("n", Some(&program));
    let message = compiler.compile("variables.n", ResultType::Bool, true, EnvironmentType::New).unwrap_err();
    assert_eq!(message, "must evaluate to bool but got int", "variables have types");
    assert!(compiler.compile("has(variables.n)", ResultType::Bool, true, EnvironmentType::New).is_ok());
    let message = compiler.compile("variables.m", ResultType::Bool, true, EnvironmentType::New).unwrap_err();
    assert!(message.contains("undefined field 'm'"), "{message}");
}

#[test]
fn failed_validations_report_message_and_reason() {
    let spec = |rest: &str| format!(r#"{{"validations":[{{"expression":" object.x < 3 "{rest}}}]}}"#);
    let denial = |rest: &str| denials(&spec(rest), r#"{"x":5}"#).remove(0);
    assert_eq!(denials(&spec(""), r#"{"x":1}"#), []);
    assert_eq!(denial(""), ("failed expression: object.x < 3".to_owned(), "Invalid"));
    assert_eq!(
        denial(r#","message":" too much ","reason":"Forbidden""#),
        ("too much".to_owned(), "Forbidden")
    );
    assert_eq!(denial(r#","message":"m","messageExpression":"'got ' + string(object.x)""#).0, "got 5");
    for broken in ["'a\\\\nb'", "'  '", "string(object.nope)"] {
        assert_eq!(denial(&format!(r#","message":"m","messageExpression":"{broken}""#)).0, "m", "{broken}");
    }
}

#[test]
fn failure_policy_decides_about_evaluation_errors() {
    let spec = r#"{"validations":[{"expression":"object.nope == 1"}]"#;
    let message = "expression 'object.nope == 1' resulted in error: no such key: nope".to_owned();
    assert_eq!(denials(&format!("{spec}}}"), "{}"), [(message.clone(), "Invalid")]);
    let ignored = decide_for(&format!(r#"{spec},"failurePolicy":"Ignore"}}"#), "{}");
    let admitted = Decision { denies: false, is_admitted: false, message, reason: "Invalid" };
    assert_eq!(ignored.decisions, [admitted]);
    let broken = denials(r#"{"validations":[{"expression":"nope("}]}"#, "{}");
    assert!(broken[0].0.starts_with("compilation error: compilation failed: ERROR"), "{broken:?}");
    let deleted = denials(r#"{"validations":[{"expression":"object.metadata.name == ''"}]}"#, "null");
    assert_eq!(
        deleted[0].0,
        "expression 'object.metadata.name == ''' resulted in error: no such key: metadata"
    );
}

#[test]
fn match_conditions_decide_whether_a_policy_applies() {
    let spec = |conditions: &str, rest: &str| {
        format!(r#"{{"validations":[{{"expression":"false"}}],"matchConditions":[{conditions}]{rest}}}"#)
    };
    let (matching, excluding, failing) = (
        r#"{"expression":"true"}"#,
        r#"{"expression":"request.name == 'x'"}"#,
        r#"{"expression":"object.a.b"}"#,
    );
    let failing = &failing.replace("object.a.b", "object.a.b == 1");
    assert_eq!(denials(&spec(matching, ""), "{}").len(), 1);
    assert_eq!(
        denials(&spec(&format!("{matching},{excluding},{failing}"), ""), "{}"),
        [],
        "one false condition decides"
    );
    let error = "expression 'object.a.b == 1' resulted in error: no such key: a";
    assert_eq!(denials(&spec(&format!("{matching},{failing}"), ""), "{}")[0].0, error);
    let ignored = PolicyResult { condition_errors: 1, ..PolicyResult::default() };
    assert_eq!(decide_for(&spec(failing, r#","failurePolicy":"Ignore""#), "{}"), ignored);
    let two = [Err("a".to_owned()), Ok(ResultValue::Bool(true)), Err("b".to_owned()), Err("a".to_owned())];
    assert_eq!(combine_conditions(two, true).hold, Err("[a, b]".to_owned()));
    let namespace = r#"{"expression":"namespaceObject == null"}"#;
    assert_eq!(denials(&spec(namespace, ""), "{}").len(), 1, "conditions do not see the namespace");
}

#[test]
fn variables_are_evaluated_lazily_and_once() {
    let expensive =
        "[1,2,3,4,5,6,7,8,9].map(a, [1,2,3,4,5,6,7,8,9].map(b, [1,2,3,4,5,6,7,8,9].map(c, a * b * c)))";
    let spec = format!(
        r#"{{"variables":[{{"name":"bad","expression":"object.nope"}},{{"name":"n","expression":"size(object.l)"}},
            {{"name":"m","expression":"variables.n * 2"}},{{"name":"heavy","expression":"{expensive}"}}],
            "validations":[{{"expression":"variables.m == 4"}},{{"expression":"variables.bad == 1"}},
            {{"expression":"has(variables.n)"}},
            {{"expression":"[1,2,3,4,5,6,7,8,9].all(x, size(variables.heavy) == 9)"}}]}}"#
    );
    let error = r#"expression 'variables.bad == 1' resulted in error: composited variable "bad" fails to evaluate: no such key: nope"#;
    assert_eq!(denials(&spec, r#"{"l":[1,2]}"#), [(error.to_owned(), "Invalid")]);
}

#[test]
fn policy_evaluation_stops_at_cost_budget() {
    let list = "[0,1,2,3,4,5,6,7,8,9]";
    let expensive = format!(
        "{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, {list}.all(e, a + b + c + d + e >= 0)))))"
    );
    let single_validation = denials(&format!(r#"{{"validations":[{{"expression":"{expensive}"}}]}}"#), "{}");
    let error = format!(
        "expression '{expensive}' resulted in error: operation cancelled: actual cost limit exceeded"
    );
    assert_eq!(single_validation, [(error, "Invalid")]);
    let many = vec![format!(r#"{{"expression":"{expensive}"}}"#); 12].join(",");
    assert_eq!(
        denials(&format!(r#"{{"validations":[{many}]}}"#), "{}"),
        [(BUDGET_EXCEEDED.to_owned(), "Invalid")]
    );
    let conditions = vec![format!(r#"{{"expression":"{expensive}"}}"#); 3].join(",");
    let spec = format!(r#"{{"validations":[{{"expression":"true"}}],"matchConditions":[{conditions}]}}"#);
    assert_eq!(
        denials(&spec, "{}"),
        [(BUDGET_EXCEEDED.to_owned(), "Invalid")],
        "conditions have a smaller budget"
    );
}

#[test]
fn audit_annotations_evaluate_to_strings() {
    let spec = |expression: &str| {
        format!(r#"{{"auditAnnotations":[{{"key":"k","valueExpression":"{expression}"}}]}}"#)
    };
    let annotations =
        |expression: &str| decide_for(&spec(expression), r#"{"x":"y","n":1}"#).audit_annotations;
    assert_eq!(annotations("' a ' + object.x"), [AuditAnnotation::Value("k".to_owned(), "a y".to_owned())]);
    assert_eq!(annotations("null"), [], "null gives no annotation");
    assert_eq!(annotations("'  '"), []);
    let error = "expression ''' + object.nope' resulted in error: no such key: nope".to_owned();
    assert_eq!(annotations("'' + object.nope"), [AuditAnnotation::Error(error)]);
    assert_eq!(
        annotations("namespaceObject.metadata.name"),
        [AuditAnnotation::Value("k".to_owned(), "n".to_owned())],
        "audit annotations see the namespace"
    );
}

#[test]
fn pending_authorization_checks_are_made_once() {
    let spec = r#"{"paramKind":{"apiVersion":"v1","kind":"ConfigMap"},
        "validations":[{"expression":"authorizer.group('apps').resource('deployments').namespace(params.ns).check('get').allowed()"},
        {"expression":"authorizer.requestResource.check('bind').reason() == 'because'"},
        {"expression":"authorizer.serviceAccount('n', 'sa').path('/x').check('get').errored()"},
        {"expression":"authorizer.serviceAccount('N', 'sa').path('/x').check('get').allowed()"},
        {"expression":"authorizer.path(' ').check('get').allowed()"}]}"#;
    let authorizer =
        Authorizer::new(RequestTarget { resource: "configmaps".to_owned(), ..RequestTarget::default() });
    let mut checks = Vec::new();
    let decisions = loop {
        match decide_with(spec, "{}", r#"{"ns":"m"}"#, &authorizer) {
            Ok(result) => break result.decisions,
            Err(AuthorizationPending) => {
                for check in authorizer.cache.pending() {
                    checks.push(check.clone());
                    let error = check.account.is_some().then(|| "broken".to_owned());
                    authorizer.cache.record(
                        check,
                        AuthorizationResult { allowed: true, reason: "because".to_owned(), error },
                    );
                }
                assert!(checks.len() < 9, "each check is made once");
            }
        }
    };
    assert_eq!(checks.len(), 3);
    let Target::Resource { namespace, resource, version, .. } = &checks[0].action.target else { panic!() };
    assert_eq!((namespace.as_str(), resource.as_str(), version.as_str()), ("m", "deployments", "*"));
    assert_eq!(checks[2].account, Some(("n".to_owned(), "sa".to_owned())));
    let denials: Vec<&str> = decisions
        .iter()
        .filter(|decision| decision.denies)
        .map(|decision| decision.message.as_str())
        .collect();
    assert_eq!(denials.len(), 2, "{denials:?}");
    assert!(denials[0].ends_with("resulted in error: Invalid service account namespace"));
    assert!(denials[1].ends_with("resulted in error: path must not be empty"));
}
