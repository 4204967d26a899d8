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
fn all_of_it_is_read() {
    let pem = crate::pki::testing::own("login.test").0.to_pem().unwrap();
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
    let found = &file.jwt[0];
    let read = X509::stack_from_pem(found.authority_pem.as_ref().unwrap()).unwrap();
    assert_eq!(read[0].to_pem().unwrap(), pem);
    let wanted = Jwt {
        issuer: "https://login.test/realm".into(),
        discovery: Some("https://inside.test/.well-known/openid-configuration".into()),
        authority_pem: found.authority_pem.clone(),
        audiences: vec!["a".into(), "b".into()],
        username: mapping("email", "mail:"),
        groups: Some(mapping("roles", "")),
        uid: Some(mapping("id", "")),
        required: BTreeMap::from([("hd".into(), "example.com".into()), ("empty".into(), String::new())]),
        ..Jwt::default()
    };
    assert_eq!(*found, wanted);
    let paths = vec!["/livez".to_owned(), "/readyz".to_owned()];
    assert_eq!(file.anonymous, Some(Anonymous { enabled: true, paths }));
    assert_eq!(parse("").unwrap(), AuthenticationFile::default(), "nobody has to be accepted");
    assert_eq!(parse(ONE).unwrap().anonymous, None);
    for version in VERSIONS {
        let text = format!("{HEAD}{ONE}").replace(VERSIONS[0], version);
        assert_eq!(AuthenticationFile::parse(text.as_bytes(), &[]).unwrap().jwt.len(), 1);
    }
}

#[test]
fn expressions_are_read() {
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
        Source::Made(made) => made.text().to_owned(),
        Source::Claim(mapping) => panic!("{mapping:?}"),
    };
    assert_eq!(text(&jwt.username), "claims.email");
    assert_eq!(jwt.groups.as_ref().map(text).unwrap(), "claims.roles.split(\",\")");
    assert_eq!(jwt.uid.as_ref().map(text).unwrap(), "claims.id");
    let extra: Vec<_> = jwt.extra.iter().map(|(key, made)| (key.as_str(), made.text())).collect();
    assert_eq!(extra, [("a.test/b", "claims.b")]);
    let said = |rules: &[Rule]| rules.iter().map(|rule| rule.message.clone()).collect::<Vec<_>>();
    assert_eq!(
        (said(&jwt.claim_rules), said(&jwt.user_rules)),
        (vec!["unverified".into()], vec!["reserved".into()])
    );
    // An address counts if anything looks whether it is verified.
    for more in [
        "username: {expression: 'claims.email_verified ? claims.email : claims.sub'}",
        "username: {expression: claims.email}, extra: [{key: a.test/v, valueExpression: 'string(claims.email_verified)'}]",
    ] {
        parse(&ONE.replace("username: {claim: sub, prefix: ''}", more)).unwrap();
    }
}

#[test]
fn what_is_wrong_is_named() {
    let one = |from: &str, to: &str| {
        assert!(ONE.contains(from), "{from}");
        ONE.replace(from, to)
    };
    let username = "{claim: sub, prefix: ''}";
    let more = |text: &str| format!("{ONE}  {text}\n");
    let extra = |text: &str| one("prefix: ''}", &format!("prefix: ''}}, extra: [{text}]"));
    let url = "https://login.test";
    for (text, wanted) in [
        (one(url, "''"), "jwt[0].issuer.url: Required value: URL is required"),
        (one(url, "http://x"), "jwt[0].issuer.url: Invalid value: \"http://x\": URL scheme must be https"),
        (
            one(url, "https://us"),
            "jwt[0].issuer.url: Invalid value: \"https://us\": URL must not overlap with disallowed issuers: [https://us]",
        ),
        (
            format!("{ONE}{}", ONE.replace("jwt:\n", "")),
            "jwt[1].issuer.url: Duplicate value: \"https://login.test\"",
        ),
        (
            one("audiences", "discoveryURL: https://login.test/, audiences"),
            "jwt[0].issuer.discoveryURL: Invalid value: \"https://login.test/\": discoveryURL must be different from URL",
        ),
        (
            one("audiences", "discoveryURL: http://other.test/x, audiences"),
            "jwt[0].issuer.discoveryURL: Invalid value: \"http://other.test/x\": URL scheme must be https",
        ),
        (
            one("[a]", "[]"),
            "jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required",
        ),
        (one("[a]", "['']"), "jwt[0].issuer.audiences[0]: Required value: audience can't be empty"),
        (
            one("[a]", "[a, a], audienceMatchPolicy: MatchAny"),
            "jwt[0].issuer.audiences[1]: Duplicate value: \"a\"",
        ),
        (
            one("[a]", "[a, b]"),
            "jwt[0].issuer.audienceMatchPolicy: Invalid value: \"\": audienceMatchPolicy must be MatchAny for multiple audiences",
        ),
        (
            one("[a]", "[a], audienceMatchPolicy: All"),
            "jwt[0].issuer.audienceMatchPolicy: Invalid value: \"All\": audienceMatchPolicy must be empty or MatchAny for single audience",
        ),
        (
            one("[a]", "[a], certificateAuthority: x"),
            "jwt[0].issuer.certificateAuthority: Invalid value: \"<omitted>\": data does not contain any valid RSA or ECDSA certificates",
        ),
        (
            one(username, "{}"),
            "jwt[0].claimMappings.username: Required value: claim or expression is required",
        ),
        (
            one(username, "{claim: sub}"),
            "jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing",
        ),
        (
            one(username, "{expression: 'claims.'}"),
            "jwt[0].claimMappings.username.expression: Invalid value: \"claims.\": compilation failed: ERROR: <input>:1:8: ",
        ),
        (
            one(username, "{expression: claims.email, prefix: ''}"),
            "jwt[0].claimMappings.username.prefix: Invalid value: \"\": prefix can't be set when expression is set",
        ),
        (
            one(username, "{expression: claims.email}"),
            "jwt[0].claimMappings.username.expression: Invalid value: \"claims.email\": claims.email_verified must be used in \
             claimMappings.username.expression or claimMappings.extra[*].valueExpression or \
             claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression",
        ),
        (
            one(username, "{claim: sub, prefix: '', expression: claims.sub}"),
            "jwt[0].claimMappings.username: Invalid value: \"\": claim and expression can't both be set",
        ),
        (
            one("prefix: ''}", "prefix: ''}, groups: {expression: nobody}"),
            "jwt[0].claimMappings.groups.expression: Invalid value: \"nobody\": compilation failed: ERROR: ",
        ),
        (
            one("prefix: ''}", "prefix: ''}, uid: {expression: claims.id, claim: id}"),
            "jwt[0].claimMappings.uid: Invalid value: \"\": claim and expression can't both be set",
        ),
        (
            one("prefix: ''}", "prefix: ''}, uid: {expression: nobody}"),
            "jwt[0].claimMappings.uid.expression: Invalid value: \"nobody\": compilation failed: ERROR: ",
        ),
        (extra("{valueExpression: claims.b}"), "jwt[0].claimMappings.extra[0].key: Required value"),
        (
            extra("{key: b, valueExpression: claims.b}"),
            "jwt[0].claimMappings.extra[0].key: Invalid value: \"b\": must be a domain-prefixed path (such as \"acme.io/foo\")",
        ),
        (
            extra("{key: a.test/B, valueExpression: claims.b}"),
            "jwt[0].claimMappings.extra[0].key: Invalid value: \"a.test/B\": key must be lowercase",
        ),
        (
            extra("{key: x.k8s.io/b, valueExpression: claims.b}"),
            "jwt[0].claimMappings.extra[0].key: Invalid value: \"x.k8s.io/b\": k8s.io, kubernetes.io and their subdomains are reserved",
        ),
        (
            extra("{key: kubernetes.io/b, valueExpression: claims.b}"),
            "jwt[0].claimMappings.extra[0].key: Invalid value: \"kubernetes.io/b\": k8s.io, kubernetes.io and their",
        ),
        (
            extra("{key: a.test/b, valueExpression: claims.b}, {key: a.test/b, valueExpression: claims.c}"),
            "jwt[0].claimMappings.extra[1].key: Duplicate value: \"a.test/b\"",
        ),
        (
            extra("{key: a.test/b}"),
            "jwt[0].claimMappings.extra[0].valueExpression: Required value: valueExpression is required",
        ),
        (
            extra("{key: a.test/b, valueExpression: nobody}"),
            "jwt[0].claimMappings.extra[0].valueExpression: Invalid value: \"nobody\": compilation failed: ERROR: ",
        ),
        (
            more("claimValidationRules: [{}]"),
            "jwt[0].claimValidationRules[0]: Required value: claim or expression is required",
        ),
        (
            more("claimValidationRules: [{expression: claims.ok}]"),
            "jwt[0].claimValidationRules[0].expression: Invalid value: \"claims.ok\": must evaluate to bool",
        ),
        (
            more("claimValidationRules: [{expression: 'true', claim: a}]"),
            "jwt[0].claimValidationRules[0]: Invalid value: \"a\": claim and expression can't both be set",
        ),
        (
            more("claimValidationRules: [{expression: 'true', requiredValue: a}]"),
            "jwt[0].claimValidationRules[0].requiredValue: Invalid value: \"a\": requiredValue can't be set when expression is set",
        ),
        (
            more("claimValidationRules: [{expression: 'true'}, {expression: 'true'}]"),
            "jwt[0].claimValidationRules[1].expression: Duplicate value: \"true\"",
        ),
        (
            more("claimValidationRules: [{claim: a, message: m}]"),
            "jwt[0].claimValidationRules[0].message: Invalid value: \"m\": message can't be set when claim is set",
        ),
        (
            more("claimValidationRules: [{claim: a}, {claim: a}]"),
            "jwt[0].claimValidationRules[1].claim: Duplicate value: \"a\"",
        ),
        (
            more("userValidationRules: [{message: m}]"),
            "jwt[0].userValidationRules[0].expression: Required value: expression is required",
        ),
        (
            more("userValidationRules: [{expression: user.uid}]"),
            "jwt[0].userValidationRules[0].expression: Invalid value: \"user.uid\": must evaluate to bool",
        ),
        (
            more("userValidationRules: [{expression: 'true'}, {expression: 'true'}]"),
            "jwt[0].userValidationRules[1].expression: Duplicate value: \"true\"",
        ),
        (more("more: 1"), "unknown field \"jwt[0].more\""),
        (one("[a]", "[a], more: 1"), "unknown field \"jwt[0].issuer.more\""),
        (one("url: https", "url: [1], more: https"), "[unknown field \"jwt[0].issuer.more\", "),
        ("jwt: {}".to_owned(), "jwt: must be a list"),
        (
            "anonymous: {enabled: false, conditions: [{path: /livez}]}".to_owned(),
            "anonymous.conditions: Invalid value: \"/livez\": enabled should be set to true when conditions are defined",
        ),
        ("anonymous: {enabled: maybe}".to_owned(), "anonymous.enabled: must be true or false"),
    ] {
        let said = parse(&text).unwrap_err();
        assert!(said.starts_with(wanted), "{text}\n{said}\n{wanted}");
    }
    let many: String =
        (0..65).map(|at| ONE.replace("jwt:\n", "").replace("login.test", &format!("l{at}.test"))).collect();
    assert_eq!(parse(&format!("jwt:\n{many}")).unwrap_err(), "jwt: Too many: 65: must have at most 64 items");
    for (text, part) in [
        ("", "empty config data"),
        ("[]", "it must be an object"),
        ("apiVersion: v1\nkind: Pod", "no kind \"Pod\" is known in version \"v1\""),
        (
            "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\njwt: []\njwt: []",
            "already set in map",
        ),
    ] {
        let said = AuthenticationFile::parse(text.as_bytes(), &[]).unwrap_err();
        assert!(said.contains(part), "{text}: {said}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_fail(text in "[a-z{}\\[\\]:, \n-]{0,80}") {
        let _ = parse(&text);
    }
}
