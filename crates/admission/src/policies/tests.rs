//! Evaluates policies over values, without a server.

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::authorization::Target;
use pilothouse_types::identity::Identity;

use super::authorizer::{AuthorizationResult, Authorizer, RequestTarget};
use super::decision::{
    AuditAnnotation, AuthorizationPending, Decision, PolicyInputs, PolicyResult, all_hold, decide,
};
use super::evaluate::{Inputs, USED_UP};
use super::expressions::{Compiler, EnvironmentType, ResultType};
use super::policy::Policy;
use super::request::{RequestInfo, namespace, request};
use crate::matching::AdmissionAttributes;
use crate::policies::evaluate::ResultValue;

fn value(text: &str) -> Value {
    json::read(text.as_bytes()).unwrap()
}

fn policy(spec: &str) -> Policy {
    Policy::read(&value(&format!(r#"{{"metadata":{{"name":"p"}},"spec":{spec}}}"#)))
}

fn asked() -> AdmissionAttributes<'static> {
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

fn judged_with(
    spec: &str,
    object: &str,
    params: &str,
    rights: &Authorizer,
) -> Result<PolicyResult, AuthorizationPending> {
    let (object, params) = (value(object), value(params));
    let user = Identity { name: "alice".to_owned(), groups: vec!["g".to_owned()], ..Identity::default() };
    let kind = ("", "v1", "ConfigMap");
    let told = RequestInfo { asked: asked(), kind, user: &user, is_trial: false, options: &Value::Null };
    let request = request(&told, &asked(), kind);
    let whole =
        value(r#"{"metadata":{"name":"n","labels":{"a":"b"},"managedFields":[]},"spec":{},"status":{}}"#);
    let namespace = namespace(&whole);
    let inputs = Inputs {
        object: &object,
        old: &Value::Null,
        params: &params,
        request: &request,
        namespace: &namespace,
        rights: Some(rights),
    };
    decide(&policy(spec), PolicyInputs { inputs, asked: &request, namespace: &whole })
}

fn judged(spec: &str, object: &str) -> PolicyResult {
    judged_with(spec, object, "null", &Authorizer::new(RequestTarget::default())).unwrap()
}

/// The messages and reasons of failed validations.
fn told(spec: &str, object: &str) -> Vec<(String, &'static str)> {
    let decisions = judged(spec, object).decisions.into_iter().filter(|decision| decision.denies);
    decisions.map(|decision| (decision.message, decision.reason)).collect()
}

#[test]
fn what_expressions_come_to_is_checked_before_there_is_an_object() {
    let check = |text: &str, wanted: ResultType, authorizer: bool| {
        Compiler::new(false, false).compile(text, wanted, authorizer, EnvironmentType::New).map(drop).err()
    };
    for (text, wanted, authorizer, wrong) in [
        ("true", ResultType::Truth, true, None),
        ("object.spec.x == 1 && oldObject == null", ResultType::Truth, true, None),
        ("object.spec.x", ResultType::Truth, true, Some("must evaluate to bool but got dyn")),
        ("1", ResultType::Truth, true, Some("must evaluate to bool but got int")),
        ("[1]", ResultType::Text, true, Some("must evaluate to string but got list(int)")),
        (
            "timestamp('2020-01-01T00:00:00Z')",
            ResultType::Text,
            true,
            Some("must evaluate to string but got google.protobuf.Timestamp"),
        ),
        (
            "true",
            ResultType::TextOrNull,
            true,
            Some("must evaluate to one of [string null_type] but got bool"),
        ),
        ("null", ResultType::TextOrNull, true, None),
        ("request.userInfo.groups[0]", ResultType::Text, true, None),
        ("namespaceObject.metadata.labels['a']", ResultType::Text, true, None),
        ("authorizer.requestResource.check('get').allowed()", ResultType::Truth, true, None),
        (
            "authorizer.serviceAccount('a', 'b').group('').resource('c').check('d').reason()",
            ResultType::Text,
            true,
            None,
        ),
    ] {
        assert_eq!(check(text, wanted, authorizer).as_deref(), wrong, "{text}");
    }
    for (text, authorizer, wrong) in [
        ("params.x == 1", true, "undeclared reference to 'params'"),
        ("variables.x == 1", true, "undeclared reference to 'variables'"),
        ("request.nope == 1", true, "undefined field 'nope'"),
        ("authorizer.path('/x').check('get').allowed()", false, "undeclared reference to 'authorizer'"),
    ] {
        let why = check(text, ResultType::Truth, authorizer).unwrap();
        assert!(why.starts_with("compilation failed: ERROR") && why.contains(wrong), "{why}");
    }
    let newer = "isSemver('1.2.3')";
    let mut compiler = Compiler::new(true, true);
    assert!(
        compiler.compile(newer, ResultType::Truth, true, EnvironmentType::New).is_err(),
        "the release before lacks it"
    );
    assert!(compiler.compile(newer, ResultType::Truth, true, EnvironmentType::Stored).is_ok());
    let program = compiler.compile("size(object)", ResultType::Anything, true, EnvironmentType::New).unwrap();
    compiler.add("n", Some(&program));
    let why = compiler.compile("variables.n", ResultType::Truth, true, EnvironmentType::New).unwrap_err();
    assert_eq!(why, "must evaluate to bool but got int", "variables have types");
    assert!(compiler.compile("has(variables.n)", ResultType::Truth, true, EnvironmentType::New).is_ok());
    let why = compiler.compile("variables.m", ResultType::Truth, true, EnvironmentType::New).unwrap_err();
    assert!(why.contains("undefined field 'm'"), "{why}");
}

#[test]
fn demands_that_are_not_met_are_told_in_the_words_that_fit() {
    let spec = |rest: &str| format!(r#"{{"validations":[{{"expression":" object.x < 3 "{rest}}}]}}"#);
    let one = |rest: &str| told(&spec(rest), r#"{"x":5}"#).remove(0);
    assert_eq!(told(&spec(""), r#"{"x":1}"#), []);
    assert_eq!(one(""), ("failed expression: object.x < 3".to_owned(), "Invalid"));
    assert_eq!(one(r#","message":" too much ","reason":"Forbidden""#), ("too much".to_owned(), "Forbidden"));
    assert_eq!(one(r#","message":"m","messageExpression":"'got ' + string(object.x)""#).0, "got 5");
    for broken in ["'a\\\\nb'", "'  '", "string(object.nope)"] {
        assert_eq!(one(&format!(r#","message":"m","messageExpression":"{broken}""#)).0, "m", "{broken}");
    }
}

#[test]
fn errors_count_unless_the_policy_says_otherwise() {
    let spec = r#"{"validations":[{"expression":"object.nope == 1"}]"#;
    let message = "expression 'object.nope == 1' resulted in error: no such key: nope".to_owned();
    assert_eq!(told(&format!("{spec}}}"), "{}"), [(message.clone(), "Invalid")]);
    let ignored = judged(&format!(r#"{spec},"failurePolicy":"Ignore"}}"#), "{}");
    let admitted = Decision { denies: false, is_admitted: false, message, reason: "Invalid" };
    assert_eq!(ignored.decisions, [admitted]);
    let broken = told(r#"{"validations":[{"expression":"nope("}]}"#, "{}");
    assert!(broken[0].0.starts_with("compilation error: compilation failed: ERROR"), "{broken:?}");
    let gone = told(r#"{"validations":[{"expression":"object.metadata.name == ''"}]}"#, "null");
    assert_eq!(gone[0].0, "expression 'object.metadata.name == ''' resulted in error: no such key: metadata");
}

#[test]
fn conditions_decide_whether_a_policy_is_asked() {
    let spec = |conditions: &str, rest: &str| {
        format!(r#"{{"validations":[{{"expression":"false"}}],"matchConditions":[{conditions}]{rest}}}"#)
    };
    let (yes, no, broken) = (
        r#"{"expression":"true"}"#,
        r#"{"expression":"request.name == 'x'"}"#,
        r#"{"expression":"object.a.b"}"#,
    );
    let broken = &broken.replace("object.a.b", "object.a.b == 1");
    assert_eq!(told(&spec(yes, ""), "{}").len(), 1);
    assert_eq!(told(&spec(&format!("{yes},{no},{broken}"), ""), "{}"), [], "one that does not hold decides");
    let why = "expression 'object.a.b == 1' resulted in error: no such key: a";
    assert_eq!(told(&spec(&format!("{yes},{broken}"), ""), "{}")[0].0, why);
    let ignored = PolicyResult { condition_errors: 1, ..PolicyResult::default() };
    assert_eq!(judged(&spec(broken, r#","failurePolicy":"Ignore""#), "{}"), ignored);
    let two = [Err("a".to_owned()), Ok(ResultValue::Truth(true)), Err("b".to_owned()), Err("a".to_owned())];
    assert_eq!(all_hold(two, true).hold, Err("[a, b]".to_owned()));
    let namespace = r#"{"expression":"namespaceObject == null"}"#;
    assert_eq!(told(&spec(namespace, ""), "{}").len(), 1, "conditions do not see the namespace");
}

#[test]
fn variables_are_worked_out_when_they_are_wanted_and_once() {
    let heavy =
        "[1,2,3,4,5,6,7,8,9].map(a, [1,2,3,4,5,6,7,8,9].map(b, [1,2,3,4,5,6,7,8,9].map(c, a * b * c)))";
    let spec = format!(
        r#"{{"variables":[{{"name":"bad","expression":"object.nope"}},{{"name":"n","expression":"size(object.l)"}},
            {{"name":"m","expression":"variables.n * 2"}},{{"name":"heavy","expression":"{heavy}"}}],
            "validations":[{{"expression":"variables.m == 4"}},{{"expression":"variables.bad == 1"}},
            {{"expression":"has(variables.n)"}},
            {{"expression":"[1,2,3,4,5,6,7,8,9].all(x, size(variables.heavy) == 9)"}}]}}"#
    );
    let why = r#"expression 'variables.bad == 1' resulted in error: composited variable "bad" fails to evaluate: no such key: nope"#;
    assert_eq!(told(&spec, r#"{"l":[1,2]}"#), [(why.to_owned(), "Invalid")]);
}

#[test]
fn what_costs_too_much_ends() {
    let list = "[0,1,2,3,4,5,6,7,8,9]";
    let loops = format!(
        "{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, {list}.all(e, a + b + c + d + e >= 0)))))"
    );
    let one = told(&format!(r#"{{"validations":[{{"expression":"{loops}"}}]}}"#), "{}");
    let why =
        format!("expression '{loops}' resulted in error: operation cancelled: actual cost limit exceeded");
    assert_eq!(one, [(why, "Invalid")]);
    let many = vec![format!(r#"{{"expression":"{loops}"}}"#); 12].join(",");
    assert_eq!(told(&format!(r#"{{"validations":[{many}]}}"#), "{}"), [(USED_UP.to_owned(), "Invalid")]);
    let conditions = vec![format!(r#"{{"expression":"{loops}"}}"#); 3].join(",");
    let spec = format!(r#"{{"validations":[{{"expression":"true"}}],"matchConditions":[{conditions}]}}"#);
    assert_eq!(told(&spec, "{}"), [(USED_UP.to_owned(), "Invalid")], "conditions have less to spend");
}

#[test]
fn notes_say_texts_and_nothing_else() {
    let spec = |expression: &str| {
        format!(r#"{{"auditAnnotations":[{{"key":"k","valueExpression":"{expression}"}}]}}"#)
    };
    let notes = |expression: &str| judged(&spec(expression), r#"{"x":"y","n":1}"#).notes;
    assert_eq!(notes("' a ' + object.x"), [AuditAnnotation::Says("k".to_owned(), "a y".to_owned())]);
    assert_eq!(notes("null"), [], "nothing to say");
    assert_eq!(notes("'  '"), []);
    let why = "expression ''' + object.nope' resulted in error: no such key: nope".to_owned();
    assert_eq!(notes("'' + object.nope"), [AuditAnnotation::Fails(why)]);
    assert_eq!(
        notes("namespaceObject.metadata.name"),
        [AuditAnnotation::Says("k".to_owned(), "n".to_owned())],
        "notes see the namespace"
    );
}

#[test]
fn questions_about_rights_are_answered_before_the_policy_is_asked_again() {
    let spec = r#"{"paramKind":{"apiVersion":"v1","kind":"ConfigMap"},
        "validations":[{"expression":"authorizer.group('apps').resource('deployments').namespace(params.ns).check('get').allowed()"},
        {"expression":"authorizer.requestResource.check('bind').reason() == 'because'"},
        {"expression":"authorizer.serviceAccount('n', 'sa').path('/x').check('get').errored()"},
        {"expression":"authorizer.serviceAccount('N', 'sa').path('/x').check('get').allowed()"},
        {"expression":"authorizer.path(' ').check('get').allowed()"}]}"#;
    let rights =
        Authorizer::new(RequestTarget { resource: "configmaps".to_owned(), ..RequestTarget::default() });
    let mut asked = Vec::new();
    let decisions = loop {
        match judged_with(spec, "{}", r#"{"ns":"m"}"#, &rights) {
            Ok(judgement) => break judgement.decisions,
            Err(AuthorizationPending) => {
                for question in rights.answers.wanted() {
                    asked.push(question.clone());
                    let error = question.account.is_some().then(|| "broken".to_owned());
                    rights.answers.tell(
                        question,
                        AuthorizationResult { allowed: true, reason: "because".to_owned(), error },
                    );
                }
                assert!(asked.len() < 9, "each question is asked once");
            }
        }
    };
    assert_eq!(asked.len(), 3);
    let Target::Resource { namespace, resource, version, .. } = &asked[0].action.target else { panic!() };
    assert_eq!((namespace.as_str(), resource.as_str(), version.as_str()), ("m", "deployments", "*"));
    assert_eq!(asked[2].account, Some(("n".to_owned(), "sa".to_owned())));
    let wrong: Vec<&str> =
        decisions.iter().filter(|one| one.denies).map(|one| one.message.as_str()).collect();
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(wrong[0].ends_with("resulted in error: Invalid service account namespace"));
    assert!(wrong[1].ends_with("resulted in error: path must not be empty"));
}
