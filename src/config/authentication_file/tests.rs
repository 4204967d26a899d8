use super::*;

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\n";
const ONE: &str = "jwt:
- issuer: {url: https://login.test, audiences: [a]}
  claimMappings: {username: {claim: sub, prefix: ''}}
";

fn parse(rest: &str) -> Result<AuthenticationFile, String> {
    AuthenticationFile::parse(format!("{HEAD}{rest}").as_bytes(), &["https://us".to_owned()])
}

#[test]
fn authentication_file_is_parsed() {
    let pem = pilothouse_client::testing::self_signed("login.test").0.to_pem().unwrap();
    let indented = String::from_utf8(pem.clone()).unwrap().replace('\n', "\n      ");
    let file = parse(&format!(
        "jwt:
- issuer:
    url: https://login.test/realm
    discoveryURL: https://inside.test/.well-known/openid-configuration
    audiences: [a, b]
    audienceMatchPolicy: MatchAny
    certificateAuthority: |
      {indented}
  claimValidationRules:
  - {{claim: hd, requiredValue: example.com}}
  - {{claim: empty}}
  claimMappings:
    username: {{claim: email, prefix: 'mail:'}}
    groups: {{claim: roles, prefix: ''}}
    uid: {{claim: id}}
anonymous: {{enabled: true, conditions: [{{path: /livez}}, {{path: /readyz}}]}}
"
    ));
    let file = file.unwrap();
    let mapping =
        |claim: &str, prefix: &str| Source::Claim(Mapping { claim: claim.into(), prefix: prefix.into() });
    let jwt = &file.jwt[0];
    let certificates = X509::stack_from_pem(jwt.authority_pem.as_ref().unwrap()).unwrap();
    assert_eq!(certificates[0].to_pem().unwrap(), pem);
    let expected = Jwt {
        issuer: "https://login.test/realm".into(),
        discovery: Some("https://inside.test/.well-known/openid-configuration".into()),
        authority_pem: jwt.authority_pem.clone(),
        audiences: vec!["a".into(), "b".into()],
        username: mapping("email", "mail:"),
        groups: Some(mapping("roles", "")),
        uid: Some(mapping("id", "")),
        required: BTreeMap::from([("hd".into(), "example.com".into()), ("empty".into(), String::new())]),
        ..Jwt::default()
    };
    assert_eq!(*jwt, expected);
    let paths = vec!["/livez".to_owned(), "/readyz".to_owned()];
    assert_eq!(file.anonymous, Some(Anonymous { enabled: true, paths }));
    assert_eq!(parse("").unwrap(), AuthenticationFile::default(), "providers are optional");
    assert_eq!(parse(ONE).unwrap().anonymous, None);
    for version in VERSIONS {
        let text = format!("{HEAD}{ONE}").replace(VERSIONS[0], version);
        assert_eq!(AuthenticationFile::parse(text.as_bytes(), &[]).unwrap().jwt.len(), 1);
    }
}

#[test]
fn authentication_file_expressions_are_compiled() {
    let file = parse(
        "jwt:
- issuer: {url: https://login.test, audiences: [a]}
  claimValidationRules: [{expression: claims.email_verified == true, message: unverified}]
  claimMappings:
    username: {expression: claims.email}
    groups: {expression: 'claims.roles.split(\",\")'}
    uid: {expression: claims.id}
    extra: [{key: a.test/b, valueExpression: claims.b}]
  userValidationRules: [{expression: '!user.username.startsWith(\"system:\")', message: reserved}]
",
    );
    let jwt = &file.unwrap().jwt[0];
    let text = |source: &Source| match source {
        Source::Expression(expression) => expression.text().to_owned(),
        Source::Claim(mapping) => panic!("{mapping:?}"),
    };
    assert_eq!(text(&jwt.username), "claims.email");
    assert_eq!(jwt.groups.as_ref().map(text).unwrap(), "claims.roles.split(\",\")");
    assert_eq!(jwt.uid.as_ref().map(text).unwrap(), "claims.id");
    let extra: Vec<_> = jwt.extra.iter().map(|(key, expression)| (key.as_str(), expression.text())).collect();
    assert_eq!(extra, [("a.test/b", "claims.b")]);
    let messages = |rules: &[Rule]| rules.iter().map(|rule| rule.message.clone()).collect::<Vec<_>>();
    assert_eq!(
        (messages(&jwt.claim_rules), messages(&jwt.user_rules)),
        (vec!["unverified".into()], vec!["reserved".into()])
    );
    // An email claim is accepted if any expression checks email_verified.
    for more in [
        "username: {expression: 'claims.email_verified ? claims.email : claims.sub'}",
        "username: {expression: claims.email}, extra: [{key: a.test/v, valueExpression: 'string(claims.email_verified)'}]",
    ] {
        parse(&ONE.replace("username: {claim: sub, prefix: ''}", more)).unwrap();
    }
}

/// The file [`ONE`] with a replacement.
fn with_change(old: &str, new: &str) -> String {
    assert!(ONE.contains(old), "{old}");
    ONE.replace(old, new)
}

/// The file [`ONE`] with another field of its provider.
fn with_field(text: &str) -> String {
    format!("{ONE}  {text}\n")
}

/// The file [`ONE`] with extra attributes.
fn with_extra(text: &str) -> String {
    with_change("prefix: ''}", &format!("prefix: ''}}, extra: [{text}]"))
}

const URL: &str = "https://login.test";
const USERNAME: &str = "{claim: sub, prefix: ''}";

fn assert_errors<const N: usize>(table: [(String, &str); N]) {
    for (text, expected) in table {
        let error = parse(&text).unwrap_err();
        assert!(error.starts_with(expected), "{text}\n{error}\n{expected}");
    }
}

#[test]
fn authentication_file_issuer_errors_name_the_field() {
    assert_errors([
        (with_change(URL, "''"), "jwt[0].issuer.url: Required value: URL is required"),
        (
            with_change(URL, "http://x"),
            "jwt[0].issuer.url: Invalid value: \"http://x\": URL scheme must be https",
        ),
        (
            with_change(URL, "https://us"),
            "jwt[0].issuer.url: Invalid value: \"https://us\": URL must not overlap with disallowed issuers: [https://us]",
        ),
        (
            format!("{ONE}{}", ONE.replace("jwt:\n", "")),
            "jwt[1].issuer.url: Duplicate value: \"https://login.test\"",
        ),
        (
            with_change("audiences", "discoveryURL: https://login.test/, audiences"),
            "jwt[0].issuer.discoveryURL: Invalid value: \"https://login.test/\": discoveryURL must be different from URL",
        ),
        (
            with_change("audiences", "discoveryURL: http://other.test/x, audiences"),
            "jwt[0].issuer.discoveryURL: Invalid value: \"http://other.test/x\": URL scheme must be https",
        ),
        (
            with_change("[a]", "[]"),
            "jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required",
        ),
        (with_change("[a]", "['']"), "jwt[0].issuer.audiences[0]: Required value: audience can't be empty"),
        (
            with_change("[a]", "[a, a], audienceMatchPolicy: MatchAny"),
            "jwt[0].issuer.audiences[1]: Duplicate value: \"a\"",
        ),
        (
            with_change("[a]", "[a, b]"),
            "jwt[0].issuer.audienceMatchPolicy: Invalid value: \"\": audienceMatchPolicy must be MatchAny for multiple audiences",
        ),
        (
            with_change("[a]", "[a], audienceMatchPolicy: All"),
            "jwt[0].issuer.audienceMatchPolicy: Invalid value: \"All\": audienceMatchPolicy must be empty or MatchAny for single audience",
        ),
        (
            with_change("[a]", "[a], certificateAuthority: x"),
            "jwt[0].issuer.certificateAuthority: Invalid value: \"<omitted>\": data does not contain any valid RSA or ECDSA certificates",
        ),
    ]);
}

#[test]
fn authentication_file_claim_mapping_errors_name_the_field() {
    assert_errors([
        (
            with_change(USERNAME, "{}"),
            "jwt[0].claimMappings.username: Required value: claim or expression is required",
        ),
        (
            with_change(USERNAME, "{claim: sub}"),
            "jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing",
        ),
        (
            with_change(USERNAME, "{expression: 'claims.'}"),
            "jwt[0].claimMappings.username.expression: Invalid value: \"claims.\": compilation failed: ERROR: <input>:1:8: ",
        ),
        (
            with_change(USERNAME, "{expression: claims.email, prefix: ''}"),
            "jwt[0].claimMappings.username.prefix: Invalid value: \"\": prefix can't be set when expression is set",
        ),
        (
            with_change(USERNAME, "{expression: claims.email}"),
            "jwt[0].claimMappings.username.expression: Invalid value: \"claims.email\": claims.email_verified must be used in \
             claimMappings.username.expression or claimMappings.extra[*].valueExpression or \
             claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression",
        ),
        (
            with_change(USERNAME, "{claim: sub, prefix: '', expression: claims.sub}"),
            "jwt[0].claimMappings.username: Invalid value: \"\": claim and expression can't both be set",
        ),
        (
            with_change("prefix: ''}", "prefix: ''}, groups: {expression: nobody}"),
            "jwt[0].claimMappings.groups.expression: Invalid value: \"nobody\": compilation failed: ERROR: ",
        ),
        (
            with_change("prefix: ''}", "prefix: ''}, uid: {expression: claims.id, claim: id}"),
            "jwt[0].claimMappings.uid: Invalid value: \"\": claim and expression can't both be set",
        ),
        (
            with_change("prefix: ''}", "prefix: ''}, uid: {expression: nobody}"),
            "jwt[0].claimMappings.uid.expression: Invalid value: \"nobody\": compilation failed: ERROR: ",
        ),
        (with_extra("{valueExpression: claims.b}"), "jwt[0].claimMappings.extra[0].key: Required value"),
        (
            with_extra("{key: b, valueExpression: claims.b}"),
            "jwt[0].claimMappings.extra[0].key: Invalid value: \"b\": must be a domain-prefixed path (such as \"acme.io/foo\")",
        ),
        (
            with_extra("{key: a.test/B, valueExpression: claims.b}"),
            "jwt[0].claimMappings.extra[0].key: Invalid value: \"a.test/B\": key must be lowercase",
        ),
        (
            with_extra("{key: x.k8s.io/b, valueExpression: claims.b}"),
            "jwt[0].claimMappings.extra[0].key: Invalid value: \"x.k8s.io/b\": k8s.io, kubernetes.io and their subdomains are reserved",
        ),
        (
            with_extra("{key: kubernetes.io/b, valueExpression: claims.b}"),
            "jwt[0].claimMappings.extra[0].key: Invalid value: \"kubernetes.io/b\": k8s.io, kubernetes.io and their",
        ),
        (
            with_extra(
                "{key: a.test/b, valueExpression: claims.b}, {key: a.test/b, valueExpression: claims.c}",
            ),
            "jwt[0].claimMappings.extra[1].key: Duplicate value: \"a.test/b\"",
        ),
        (
            with_extra("{key: a.test/b}"),
            "jwt[0].claimMappings.extra[0].valueExpression: Required value: valueExpression is required",
        ),
        (
            with_extra("{key: a.test/b, valueExpression: nobody}"),
            "jwt[0].claimMappings.extra[0].valueExpression: Invalid value: \"nobody\": compilation failed: ERROR: ",
        ),
    ]);
}

#[test]
fn authentication_file_validation_rule_errors_name_the_field() {
    assert_errors([
        (
            with_field("claimValidationRules: [{}]"),
            "jwt[0].claimValidationRules[0]: Required value: claim or expression is required",
        ),
        (
            with_field("claimValidationRules: [{expression: claims.ok}]"),
            "jwt[0].claimValidationRules[0].expression: Invalid value: \"claims.ok\": must evaluate to bool",
        ),
        (
            with_field("claimValidationRules: [{expression: 'true', claim: a}]"),
            "jwt[0].claimValidationRules[0]: Invalid value: \"a\": claim and expression can't both be set",
        ),
        (
            with_field("claimValidationRules: [{expression: 'true', requiredValue: a}]"),
            "jwt[0].claimValidationRules[0].requiredValue: Invalid value: \"a\": requiredValue can't be set when expression is set",
        ),
        (
            with_field("claimValidationRules: [{expression: 'true'}, {expression: 'true'}]"),
            "jwt[0].claimValidationRules[1].expression: Duplicate value: \"true\"",
        ),
        (
            with_field("claimValidationRules: [{claim: a, message: m}]"),
            "jwt[0].claimValidationRules[0].message: Invalid value: \"m\": message can't be set when claim is set",
        ),
        (
            with_field("claimValidationRules: [{claim: a}, {claim: a}]"),
            "jwt[0].claimValidationRules[1].claim: Duplicate value: \"a\"",
        ),
        (
            with_field("userValidationRules: [{message: m}]"),
            "jwt[0].userValidationRules[0].expression: Required value: expression is required",
        ),
        (
            with_field("userValidationRules: [{expression: user.uid}]"),
            "jwt[0].userValidationRules[0].expression: Invalid value: \"user.uid\": must evaluate to bool",
        ),
        (
            with_field("userValidationRules: [{expression: 'true'}, {expression: 'true'}]"),
            "jwt[0].userValidationRules[1].expression: Duplicate value: \"true\"",
        ),
    ]);
}

#[test]
fn authentication_file_unknown_or_mistyped_field_errors_name_the_field() {
    assert_errors([
        (with_field("more: 1"), "unknown field \"jwt[0].more\""),
        (with_change("[a]", "[a], more: 1"), "unknown field \"jwt[0].issuer.more\""),
        (with_change("url: https", "url: [1], more: https"), "[unknown field \"jwt[0].issuer.more\", "),
        ("jwt: {}".to_owned(), "jwt: must be a list"),
        (
            "anonymous: {enabled: false, conditions: [{path: /livez}]}".to_owned(),
            "anonymous.conditions: Invalid value: \"/livez\": enabled should be set to true when conditions are defined",
        ),
        ("anonymous: {enabled: maybe}".to_owned(), "anonymous.enabled: must be true or false"),
    ]);
}

#[test]
fn authentication_file_size_and_kind_are_checked() {
    let many: String = (0..65)
        .map(|index| ONE.replace("jwt:\n", "").replace("login.test", &format!("l{index}.test")))
        .collect();
    assert_eq!(parse(&format!("jwt:\n{many}")).unwrap_err(), "jwt: Too many: 65: must have at most 64 items");
    for (text, expected) in [
        ("", "empty config data"),
        ("[]", "it must be an object"),
        ("apiVersion: v1\nkind: Pod", "no kind \"Pod\" is known in version \"v1\""),
        (
            "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\njwt: []\njwt: []",
            "already set in map",
        ),
    ] {
        let error = AuthenticationFile::parse(text.as_bytes(), &[]).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

proptest::proptest! {
    #[test]
    fn authentication_file_parser_never_panics(text in "[a-z{}\\[\\]:, \n-]{0,80}") {
        let _ = parse(&text);
    }
}
