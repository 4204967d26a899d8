use proptest::prelude::*;

use super::claims::{Compiler, ExpressionError, Rule, check_claims, check_user};
use super::match_conditions::{self, Matched, matched};
use super::*;

fn object(json: &str) -> Value {
    pilothouse_apimachinery::json::read(json.as_bytes()).unwrap()
}

fn mapping(text: &str) -> Expression {
    Compiler::default().mapping(text).unwrap_or_else(|why| panic!("{text}: {why}"))
}

#[test]
fn claims_become_texts() {
    let claims = object(
        r#"{"sub":"ann","n":1,"groups":["a","","b"],"mixed":["a",1],"none":null,"deep":{"x":["d"]},"csv":"a,b"}"#,
    );
    for (text, wanted) in [
        ("claims.sub", Ok(Some("ann"))),
        ("'p:' + claims.sub", Ok(Some("p:ann"))),
        ("claims.?email.orValue('nobody')", Ok(Some("nobody"))),
        ("claims.n", Ok(None)),
        ("claims.none", Ok(None)),
        ("claims.email", Err("expression 'claims.email' resulted in error: no such key: email")),
    ] {
        let found = mapping(text).text_of(&claims);
        assert_eq!(found, wanted.map(|text| text.map(str::to_owned)).map_err(str::to_owned), "{text}");
    }
    let no_texts =
        ExpressionError::NoTexts("expression must return a string or a list of strings".to_owned());
    for (text, wanted) in [
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
        ("claims.mixed", Err(no_texts.clone())),
        ("claims.n", Err(no_texts.clone())),
        ("{'a': 'b'}", Err(no_texts)),
    ] {
        let wanted = wanted.map(|texts| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(mapping(text).texts_of(&claims), wanted, "{text}");
    }
    assert!(matches!(mapping("claims.x").texts_of(&claims), Err(ExpressionError::Failed(_))));
}

#[test]
fn what_is_not_an_expression_over_its_variable_is_told() {
    let mut compiler = Compiler::default();
    for (text, wanted) in [
        ("claims.", "compilation failed: ERROR: <input>:1:8: Syntax error"),
        ("user.username", "compilation failed: ERROR: <input>:1:1: undeclared reference to 'user'"),
    ] {
        let said = compiler.mapping(text).unwrap_err();
        assert!(said.starts_with(wanted), "{text}: {said}");
    }
    for text in ["claims.ok", "'text'", "1"] {
        assert_eq!(compiler.claims_rule(text).unwrap_err(), "must evaluate to bool", "{text}");
    }
    assert_eq!(compiler.user_rule("user.groups").unwrap_err(), "must evaluate to bool");
    assert!(compiler.user_rule("user.name == ''").unwrap_err().contains("undefined field 'name'"));
    assert!(compiler.user_rule("claims.sub == ''").unwrap_err().contains("undeclared reference to 'claims'"));
    assert!(compiler.claims_rule("claims.ok == true").is_ok());
    assert!(compiler.mapping("semver('1.2.3').major()").is_ok(), "files may call what objects may not yet");
}

#[test]
fn a_claim_is_used_by_its_name_after_a_dot() {
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
fn rules_that_do_not_hold_are_told_with_their_message() {
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
        "what cannot be evaluated is told first"
    );
    let rule = Compiler::default().user_rule("!user.username.startsWith('system:')").unwrap();
    let rules = [Rule { expression: rule, message: "reserved".to_owned() }];
    assert_eq!(check_user(&rules, &object(r#"{"username":"ann"}"#)), Ok(()));
    assert!(
        check_user(&rules, &object(r#"{"username":"system:x"}"#)).unwrap_err().ends_with("failed: reserved")
    );
}

#[test]
fn expressions_are_the_same_if_their_texts_are() {
    assert_eq!(mapping("claims.sub"), mapping("claims.sub"));
    assert_ne!(mapping("claims.sub"), mapping("claims.sub "));
}

#[test]
fn conditions_say_which_requests_are_meant() {
    let compile = |text: &str| match_conditions::Compiler::default().compile(text);
    let request = object(
        r#"{"user":"ann","uid":"","groups":["g"],"extra":{},
            "resourceAttributes":{"namespace":"ns","verb":"list","group":"","version":"v1","resource":"pods",
            "subresource":"","name":"","labelSelector":{"requirements":[{"key":"a","operator":"In","values":["b"]}]}}}"#,
    );
    let ask = |all: &[&str]| {
        let all: Vec<_> = all.iter().map(|text| compile(text).unwrap()).collect();
        matched(&all, &request)
    };
    assert_eq!(ask(&[]), Matched::Yes);
    assert_eq!(ask(&["request.user == 'ann'", "has(request.resourceAttributes)"]), Matched::Yes);
    assert_eq!(ask(&["'g' in request.groups", "request.user == 'bob'"]), Matched::No { some_failed: false });
    assert_eq!(
        ask(&["request.resourceAttributes.labelSelector.requirements.exists(r, r.key == 'a')"]),
        Matched::Yes
    );
    let fails = "request.nonResourceAttributes.path == '/'";
    let why = format!(
        "cel evaluation error: expression '{fails}' resulted in error: no such key: nonResourceAttributes"
    );
    assert_eq!(ask(&[fails]), Matched::Failed(why.clone()));
    assert_eq!(ask(&[fails, "request.user == 'ann'", fails]), Matched::Failed(why));
    assert_eq!(ask(&[fails, "request.user == 'bob'"]), Matched::No { some_failed: true });
    for (text, wanted) in [
        ("request.user", "must evaluate to bool but got string"),
        ("request.groups", "must evaluate to bool but got list(string)"),
        ("request.name == ''", "compilation failed: ERROR: <input>:1:8: undefined field 'name'"),
        ("user == ''", "compilation failed: ERROR: <input>:1:1: undeclared reference to 'user'"),
    ] {
        let said = compile(text).unwrap_err();
        assert!(said.starts_with(wanted), "{text}: {said}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_fail(text in "[a-z.'()\\[\\]{}?:+=! ]{0,40}") {
        let mut compiler = Compiler::default();
        let _ = compiler.mapping(&format!("claims.{text}")).map(|made| made.texts_of(&Value::object()));
        let _ = compiler.user_rule(&text);
        let _ = match_conditions::Compiler::default().compile(&text);
    }
}
