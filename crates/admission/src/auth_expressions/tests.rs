use proptest::prelude::*;

use super::claims::{Compiler, ExpressionError, Rule, check_claims, check_user};
use super::match_conditions::{self, ConditionMatch, matched};
use super::*;

fn object(json: &str) -> Value {
    pilothouse_apimachinery::json::read(json.as_bytes()).unwrap()
}

fn mapping(text: &str) -> Expression {
    Compiler::default().mapping(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn claim_mappings_evaluate_to_strings() {
    let claims = object(
        r#"{"sub":"ann","n":1,"groups":["a","","b"],"mixed":["a",1],"none":null,"deep":{"x":["d"]},"csv":"a,b"}"#,
    );
    for (text, expected) in [
        ("claims.sub", Ok(Some("ann"))),
        ("'p:' + claims.sub", Ok(Some("p:ann"))),
        ("claims.?email.orValue('nobody')", Ok(Some("nobody"))),
        ("claims.n", Ok(None)),
        ("claims.none", Ok(None)),
        ("claims.email", Err("expression 'claims.email' resulted in error: no such key: email")),
    ] {
        let result = mapping(text).evaluate_string(&claims);
        assert_eq!(result, expected.map(|text| text.map(str::to_owned)).map_err(str::to_owned), "{text}");
    }
    let not_strings =
        ExpressionError::NotStrings("expression must return a string or a list of strings".to_owned());
    for (text, expected) in [
        ("claims.groups", Ok(&["a", "b"][..])),
        ("claims.sub", Ok(&["ann"])),
        ("''", Ok(&[])),
        ("[]", Ok(&[])),
        ("null", Ok(&[])),
        ("claims.none", Ok(&[])),
        ("claims.groups + [claims.sub]", Ok(&["a", "b", "ann"])),
        ("claims.deep.x", Ok(&["d"])),
        ("claims.csv.split(',')", Ok(&["a", "b"])),
        ("claims.groups.filter(g, g == 'a').map(g, 'x:' + g)", Ok(&["x:a"])),
        ("claims.mixed", Err(not_strings.clone())),
        ("claims.n", Err(not_strings.clone())),
        ("{'a': 'b'}", Err(not_strings)),
    ] {
        let expected = expected.map(|texts| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(mapping(text).evaluate_strings(&claims), expected, "{text}");
    }
    assert!(matches!(mapping("claims.x").evaluate_strings(&claims), Err(ExpressionError::Failed(_))));
}

#[test]
fn invalid_claim_and_user_expressions_are_compile_errors() {
    let mut compiler = Compiler::default();
    for (text, expected) in [
        ("claims.", "compilation failed: ERROR: <input>:1:8: Syntax error"),
        ("user.username", "compilation failed: ERROR: <input>:1:1: undeclared reference to 'user'"),
    ] {
        let error = compiler.mapping(text).unwrap_err();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    for text in ["claims.ok", "'text'", "1"] {
        assert_eq!(compiler.claims_rule(text).unwrap_err(), "must evaluate to bool", "{text}");
    }
    assert_eq!(compiler.user_rule("user.groups").unwrap_err(), "must evaluate to bool");
    assert!(compiler.user_rule("user.name == ''").unwrap_err().contains("undefined field 'name'"));
    assert!(compiler.user_rule("claims.sub == ''").unwrap_err().contains("undeclared reference to 'claims'"));
    assert!(compiler.claims_rule("claims.ok == true").is_ok());
    assert!(
        compiler.mapping("semver('1.2.3').major()").is_ok(),
        "configuration files may use newer functions than stored objects"
    );
}

#[test]
fn uses_claim_detects_field_selection() {
    for text in [
        "claims.email",
        "'p' + claims.email",
        "has(claims.email) ? 'a' : 'b'",
        "claims.?email.orValue('')",
        "claims.email.size() > 1",
        "[claims.email]",
        "{'a': claims.email}",
        "claims.list.map(x, x + claims.email)",
        "claims.email.domain",
    ] {
        assert!(mapping(text).uses_claim("email"), "{text}");
    }
    for text in ["claims.sub", "claims.email_verified", "claims.x.email", "claims['email']", "'claims.email'"]
    {
        assert!(!mapping(text).uses_claim("email"), "{text}");
    }
}

#[test]
fn failed_validation_rules_report_their_message() {
    let rules = |all: &[(&str, &str)]| -> Vec<Rule> {
        let mut compiler = Compiler::default();
        let rule = |(text, message): &(&str, &str)| Rule {
            expression: compiler.claims_rule(text).unwrap(),
            message: (*message).to_owned(),
        };
        all.iter().map(rule).collect()
    };
    let claims = object(r#"{"hd":"x","level":3}"#);
    let check = |all: &[(&str, &str)]| check_claims(&rules(all), &claims);
    assert_eq!(check(&[("claims.hd == 'x'", ""), ("claims.level > 2", "")]), Ok(()));
    assert_eq!(
        check(&[("claims.hd == 'y'", "not ours")]),
        Err("validation expression 'claims.hd == 'y'' failed: not ours".to_owned())
    );
    assert_eq!(
        check(&[("claims.hd == 'y'", "not ours"), ("claims.no == 1", "")]),
        Err("expression 'claims.no == 1' resulted in error: no such key: no".to_owned()),
        "evaluation errors are reported first"
    );
    let rule = Compiler::default().user_rule("!user.username.startsWith('system:')").unwrap();
    let rules = [Rule { expression: rule, message: "reserved".to_owned() }];
    assert_eq!(check_user(&rules, &object(r#"{"username":"ann"}"#)), Ok(()));
    assert!(
        check_user(&rules, &object(r#"{"username":"system:x"}"#)).unwrap_err().ends_with("failed: reserved")
    );
}

#[test]
fn expressions_are_equal_if_their_texts_are() {
    assert_eq!(mapping("claims.sub"), mapping("claims.sub"));
    assert_ne!(mapping("claims.sub"), mapping("claims.sub "));
}

#[test]
fn match_conditions_select_requests() {
    let compile = |text: &str| match_conditions::Compiler::default().compile(text);
    let request = object(
        r#"{"user":"ann","uid":"","groups":["g"],"extra":{},
            "resourceAttributes":{"namespace":"ns","verb":"list","group":"","version":"v1","resource":"pods",
            "subresource":"","name":"","labelSelector":{"requirements":[{"key":"a","operator":"In","values":["b"]}]}}}"#,
    );
    let evaluate = |all: &[&str]| {
        let all: Vec<_> = all.iter().map(|text| compile(text).unwrap()).collect();
        matched(&all, &request)
    };
    assert_eq!(evaluate(&[]), ConditionMatch::Yes);
    assert_eq!(evaluate(&["request.user == 'ann'", "has(request.resourceAttributes)"]), ConditionMatch::Yes);
    assert_eq!(
        evaluate(&["'g' in request.groups", "request.user == 'bob'"]),
        ConditionMatch::No { some_failed: false }
    );
    assert_eq!(
        evaluate(&["request.resourceAttributes.labelSelector.requirements.exists(r, r.key == 'a')"]),
        ConditionMatch::Yes
    );
    let failing = "request.nonResourceAttributes.path == '/'";
    let error = format!(
        "cel evaluation error: expression '{failing}' resulted in error: no such key: nonResourceAttributes"
    );
    assert_eq!(evaluate(&[failing]), ConditionMatch::Failed(error.clone()));
    assert_eq!(evaluate(&[failing, "request.user == 'ann'", failing]), ConditionMatch::Failed(error));
    assert_eq!(evaluate(&[failing, "request.user == 'bob'"]), ConditionMatch::No { some_failed: true });
    for (text, expected) in [
        ("request.user", "must evaluate to bool but got string"),
        ("request.groups", "must evaluate to bool but got list(string)"),
        ("request.name == ''", "compilation failed: ERROR: <input>:1:8: undefined field 'name'"),
        ("user == ''", "compilation failed: ERROR: <input>:1:1: undeclared reference to 'user'"),
    ] {
        let error = compile(text).unwrap_err();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn random_expressions_do_not_panic(text in "[a-z.'()\\[\\]{}?:+=! ]{0,40}") {
        let mut compiler = Compiler::default();
        let _ = compiler.mapping(&format!("claims.{text}")).map(|expression| expression.evaluate_strings(&Value::object()));
        let _ = compiler.user_rule(&text);
        let _ = match_conditions::Compiler::default().compile(&text);
    }
}
