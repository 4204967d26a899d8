use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use proptest::prelude::*;
use serde_json::json;

use super::super::test_provider::{ISSUER, NOW, claims, flags};
use super::*;
use crate::config::authentication_file::AuthenticationFile;
use crate::config::oidc::SIGNING_ALGORITHMS;

fn rules(more: &[&str]) -> ClaimMapping {
    ClaimMapping::new(&flags(ISSUER, more)).unwrap()
}

fn claims_of(value: &Value) -> Claims {
    Claims(value.as_object().unwrap().clone())
}

fn identity(more: &[&str], changes: &Value) -> Result<Identity, String> {
    rules(more).identity(&claims_of(&claims(ISSUER, changes)))
}

fn name(more: &[&str], changes: &Value) -> Result<String, String> {
    identity(more, changes).map(|identity| identity.name)
}

/// The error of the checks before the signature.
fn check_error(more: &[&str], algorithm: &str, changes: &Value) -> Option<String> {
    let text = format!("{}.e30.e30", BASE64.encode(json!({"alg": algorithm}).to_string()));
    let (token, now) = (Token::parse(&text).unwrap(), Timestamp(NOW * 1_000_000));
    rules(more).check(&token, &claims_of(&claims(ISSUER, changes)), now).err()
}

#[test]
fn openid_flags_accept_all_signing_algorithms() {
    assert_eq!(Algorithm::ALL.map(Algorithm::name), SIGNING_ALGORITHMS);
    assert_eq!(rules(&[]).algorithms, [Algorithm::Rs256]);
    assert_eq!(rules(&["--oidc-signing-algs=ES512,PS256"]).algorithms, [Algorithm::Es512, Algorithm::Ps256]);
}

#[test]
fn openid_token_of_other_issuer_is_ignored() {
    let applies = |issuer: &str, iss: Value| {
        ClaimMapping::new(&flags(issuer, &[])).unwrap().applies_to(&claims_of(&json!({"iss": iss})))
    };
    assert!(applies(ISSUER, ISSUER.into()));
    for iss in
        [json!("https://kubernetes.default.svc"), json!("https://login.test/realm/"), json!(""), json!(1)]
    {
        assert!(!applies(ISSUER, iss.clone()), "{iss}");
    }
    assert!(applies("https://accounts.google.com", "accounts.google.com".into()));
    assert!(!applies(ISSUER, "login.test/realm".into()));
    assert!(!rules(&[]).applies_to(&claims_of(&json!({}))));
}

#[test]
fn authentication_file_maps_claims_of_several_audiences() {
    let mapping =
        |claim: &str, prefix: &str| Source::Claim(Mapping { claim: claim.into(), prefix: prefix.into() });
    let jwt = Jwt {
        issuer: ISSUER.into(),
        audiences: vec!["c".into(), "d".into()],
        username: mapping("email", "m:"),
        groups: Some(mapping("roles", "r:")),
        uid: Some(mapping("id", "")),
        required: BTreeMap::from([("hd".into(), "x".into())]),
        ..Jwt::default()
    };
    let rules = ClaimMapping::from_jwt(&jwt);
    assert_eq!(rules.algorithms, Algorithm::ALL, "all algorithms are accepted");
    let values = json!({"email": "a@x", "id": "7", "roles": ["b"], "hd": "x"});
    let map = |changes: &Value| {
        let mut all = values.as_object().unwrap().clone();
        all.extend(changes.as_object().unwrap().clone());
        rules.identity(&claims_of(&claims(ISSUER, &all.into())))
    };
    let ann = map(&json!({})).unwrap();
    assert_eq!((&*ann.name, &*ann.uid, &ann.groups[..]), ("m:a@x", "7", &["r:b".to_owned()][..]));
    for (changes, expected) in [
        (json!({"id": null}), "oidc: parse uid claim \"id\": claim not present"),
        (json!({"id": 7}), "oidc: parse uid claim \"id\": claim is not a string"),
        (json!({"email_verified": false}), "oidc: email not verified"),
        (json!({"hd": "y"}), "oidc: required claim hd value does not match"),
    ] {
        assert_eq!(map(&changes).unwrap_err(), expected, "{changes}");
    }
    let text = format!("{}.e30.e30", BASE64.encode(json!({"alg": "ES512"}).to_string()));
    let (token, now) = (Token::parse(&text).unwrap(), Timestamp(NOW * 1_000_000));
    let check =
        |audiences: Value| rules.check(&token, &claims_of(&claims(ISSUER, &json!({"aud": audiences}))), now);
    assert!(check(json!("c")).is_ok() && check(json!(["x", "d"])).is_ok());
    let expected = "oidc: expected audience in [\"c\" \"d\"] got [\"x\" \"y\"]";
    assert_eq!(check(json!(["x", "y"])), Err(expected.to_owned()));
    assert_eq!(
        check_error(&[], "RS256", &json!({"aud": ["x", "y"]})).as_deref(),
        Some("oidc: expected audience \"c\" got [\"x\" \"y\"]")
    );
}

#[test]
fn openid_expressions_map_claims_to_user() {
    let file = format!(
        "apiVersion: apiserver.config.k8s.io/v1beta1
kind: AuthenticationConfiguration
jwt:
- issuer: {{url: {ISSUER}, audiences: [c]}}
  claimValidationRules: [{{expression: claims.level > 2, message: too low}}]
  claimMappings:
    username: {{expression: \"'x:' + claims.who\"}}
    groups: {{expression: \"claims.?teams.orValue([])\"}}
    uid: {{expression: claims.id}}
    extra: [{{key: a.test/b, valueExpression: claims.b}}]
  userValidationRules:
  - {{expression: \"user.groups.all(g, !g.startsWith('system:'))\", message: reserved}}
  - {{expression: \"user.extra.size() < 3 && user.uid != 'root'\"}}
"
    );
    let rules = ClaimMapping::from_jwt(&AuthenticationFile::parse(file.as_bytes(), &[]).unwrap().jwt[0]);
    let values = json!({"who": "ann", "level": 3, "id": "7", "b": ["p", ""], "jti": "j"});
    let map = |changes: &Value| {
        let mut all = values.as_object().unwrap().clone();
        all.extend(changes.as_object().unwrap().clone());
        rules.identity(&claims_of(&claims(ISSUER, &all.into())))
    };
    let ann = map(&json!({})).unwrap();
    assert_eq!((&*ann.name, &*ann.uid, &ann.groups), ("x:ann", "7", &vec![]));
    assert_eq!(ann.extra["a.test/b"], ["p"]);
    assert_eq!(ann.extra[CREDENTIAL_ID], ["JTI=j"]);
    assert_eq!(map(&json!({"teams": ["a", "b"]})).unwrap().groups, ["a", "b"]);
    assert!(!map(&json!({"b": ""})).unwrap().extra.contains_key("a.test/b"), "empty values are omitted");
    let failed = "resulted in error: no such key: ";
    for (changes, expected) in [
        (json!({"who": null}), format!("oidc: error evaluating username claim expression: expression ''x:' + claims.who' {failed}who")),
        (json!({"teams": 1}), "oidc: error evaluating group claim expression: expression must return a string or a list of strings".into()),
        (json!({"id": 7}), "oidc: error evaluating uid claim expression: uid claim expression must return a string".into()),
        (json!({"b": 1}), "oidc: error evaluating extra claim expression: claims.b: expression must return a string or a list of strings".into()),
        (json!({"b": null}), format!("expression 'claims.b' {failed}b")),
        (json!({"level": 1}), "oidc: error evaluating claim validation expression: validation expression 'claims.level > 2' failed: too low".into()),
        (json!({"teams": ["system:masters"]}), "oidc: error evaluating user info validation rule: validation expression 'user.groups.all(g, !g.startsWith('system:'))' failed: reserved".into()),
        (json!({"id": "root"}), "oidc: error evaluating user info validation rule: validation expression 'user.extra.size() < 3 && user.uid != 'root'' failed: ".into()),
    ] {
        assert_eq!(map(&changes).unwrap_err(), expected, "{changes}");
    }
    let empty = file.replace("\"'x:' + claims.who\"", "claims.who");
    let rules = ClaimMapping::from_jwt(&AuthenticationFile::parse(empty.as_bytes(), &[]).unwrap().jwt[0]);
    let nameless = json!({"who": "", "level": 3, "id": "7", "b": "p"});
    assert_eq!(
        rules.identity(&claims_of(&claims(ISSUER, &nameless))).unwrap_err(),
        "oidc: empty username via CEL expression is not allowed"
    );
}

#[test]
fn openid_username_gets_configured_prefix() {
    let username = |more: &[&str]| name(more, &json!({"name": "Ann", "email": "a@x"})).unwrap();
    assert_eq!(username(&[]), "https://login.test/realm#ann");
    assert_eq!(username(&["--oidc-username-claim=name"]), "https://login.test/realm#Ann");
    assert_eq!(username(&["--oidc-username-claim=name", "--oidc-username-prefix=-"]), "Ann");
    assert_eq!(username(&["--oidc-username-prefix=oidc:"]), "oidc:ann");
    assert_eq!(username(&["--oidc-username-claim=email"]), "a@x");
    assert_eq!(username(&["--oidc-username-claim=email", "--oidc-username-prefix=e:"]), "e:a@x");
}

#[test]
fn openid_token_without_username_is_refused() {
    let email = ["--oidc-username-claim=email"];
    for (more, changes, expected) in [
        (&[][..], json!({"sub": null}), "oidc: parse username claims \"sub\": claim not present"),
        (&[], json!({"sub": 5}), "oidc: parse username claims \"sub\": claim is not a string"),
        (&[], json!({"sub": ["ann"]}), "oidc: parse username claims \"sub\": claim is not a string"),
        (&[], json!({"sub": ""}), "oidc: parse username claims \"sub\": claim is empty"),
        (&email, json!({}), "oidc: parse username claims \"email\": claim not present"),
        (&email, json!({"email": "a@x", "email_verified": false}), "oidc: email not verified"),
        (
            &email,
            json!({"email": "a@x", "email_verified": "true"}),
            "oidc: parse 'email_verified' claim: not a boolean",
        ),
    ] {
        assert_eq!(name(more, &changes), Err(expected.to_owned()), "{changes}");
    }
    assert_eq!(name(&email, &json!({"email": "a@x", "email_verified": true})).unwrap(), "a@x");
    assert!(
        name(&[], &json!({"email_verified": false})).is_ok(),
        "it matters only if the email is the username"
    );
}

#[test]
fn openid_groups_claim_is_string_or_list() {
    let groups = |more: &[&str], roles: Value| {
        let more: Vec<_> = more.iter().copied().chain(["--oidc-groups-claim=roles"]).collect();
        identity(&more, &json!({ "roles": roles })).map(|identity| identity.groups)
    };
    assert_eq!(groups(&[], json!(["a", "b"])).unwrap(), ["a", "b"]);
    assert_eq!(groups(&[], json!("a")).unwrap(), ["a"]);
    assert_eq!(groups(&["--oidc-groups-prefix=g:"], json!(["a", "b"])).unwrap(), ["g:a", "g:b"]);
    assert_eq!(groups(&[], json!([])).unwrap(), [""; 0]);
    assert_eq!(groups(&[], Value::Null).unwrap(), [""; 0]);
    for invalid in [json!(1), json!({"a": "b"}), json!(["a", 1]), json!([["a"]]), json!(true)] {
        let error = groups(&[], invalid.clone()).unwrap_err();
        assert!(error.starts_with("oidc: parse groups claim \"roles\": "), "{invalid}: {error}");
    }
    let unmapped = identity(&[], &json!({"groups": ["system:masters"]})).unwrap();
    assert!(unmapped.groups.is_empty());
}

#[test]
fn openid_token_without_required_claims_is_refused() {
    let more = ["--oidc-required-claim=hd=example.com", "--oidc-required-claim=tier=gold"];
    assert!(name(&more, &json!({"hd": "example.com", "tier": "gold"})).is_ok());
    for (changes, expected) in [
        (json!({"hd": "example.com"}), "oidc: required claim tier not present in ID token"),
        (json!({"hd": "example.org", "tier": "gold"}), "oidc: required claim hd value does not match"),
        (json!({"hd": ["example.com"], "tier": "gold"}), "oidc: parse claim hd: claim is not a string"),
    ] {
        assert_eq!(name(&more, &changes), Err(expected.to_owned()), "{changes}");
    }
}

#[test]
fn openid_distributed_claims_are_located_for_groups_only() {
    let groups = ["--oidc-groups-claim=groups"];
    let distributed = |names: Value| {
        json!({"_claim_names": names, "_claim_sources": {
            "far": {"endpoint": "https://far.test/groups", "access_token": "t"}, "inside": {"JWT": "a.b.c"}}})
    };
    let endpoint = |more: &[&str], changes: &Value| {
        let located = rules(more).distributed_groups(&claims_of(&claims(ISSUER, changes)))?;
        Ok::<_, String>(located.and_then(|(name, source)| Some((name, source.endpoint?))))
    };
    let expected = Some(("groups".to_owned(), "https://far.test/groups".to_owned()));
    assert_eq!(endpoint(&groups, &distributed(json!({"groups": "far"}))), Ok(expected));
    assert_eq!(endpoint(&[], &distributed(json!({"groups": "far"}))), Ok(None), "groups are not mapped");
    assert_eq!(endpoint(&groups, &distributed(json!({"hd": "far"}))), Ok(None), "another claim");
    let error = endpoint(&groups, &distributed(json!({"groups": "inside"}))).unwrap_err();
    assert!(error.contains("aggregated claims are not supported"), "{error}");
    let mut both = distributed(json!({"groups": "far"}));
    both["groups"] = json!(["a"]);
    assert_eq!(endpoint(&groups, &both), Ok(None), "the value in the token is used");
    // Other claims must be in the token.
    let required = name(&["--oidc-required-claim=hd=x"], &distributed(json!({"hd": "far"}))).unwrap_err();
    assert!(required.contains("required claim hd not present"), "{required}");
    let mut nameless = distributed(json!({"sub": "far"}));
    nameless["sub"] = Value::Null;
    assert!(name(&[], &nameless).unwrap_err().contains("parse username claims \"sub\": claim not present"));
    for (names, expected) in [
        (json!({"groups": "gone"}), "oidc: source does not exist"),
        (json!({"groups": ""}), "oidc: failed to obtain source"),
        (json!({"groups": 1}), "oidc: failed to obtain source"),
        (json!(["groups"]), "_claim_names"),
    ] {
        let error = check_error(&[], "RS256", &distributed(names)).unwrap();
        assert!(error.contains(expected), "{error}");
    }
    for sources in [json!([]), json!({"far": {"endpoint": 7}})] {
        let claims = json!({"_claim_names": {"groups": "far"}, "_claim_sources": sources});
        assert!(check_error(&[], "RS256", &claims).unwrap().contains("_claim_sources"));
    }
}

#[test]
fn openid_token_id_becomes_credential_id() {
    let extra = |changes: Value| identity(&[], &changes).unwrap().extra;
    assert_eq!(extra(json!({}))[CREDENTIAL_ID], ["JTI=7"]);
    assert!(extra(json!({"jti": null})).is_empty() && extra(json!({"jti": 7})).is_empty());
}

#[test]
fn openid_claims_are_checked_before_the_signature() {
    assert_eq!(check_error(&[], "RS256", &json!({})), None);
    for (changes, expected) in [
        (json!({"aud": null}), "expected audience \"c\" got []"),
        (json!({"aud": "d"}), "expected audience \"c\" got [\"d\"]"),
        (json!({"aud": ["d", "e"]}), "expected audience"),
        (json!({"aud": 5}), "aud"),
        (json!({"exp": null}), "token is expired"),
        (json!({"exp": NOW - 1}), "token is expired"),
        (json!({"exp": -5}), "token is expired"),
        (json!({"exp": "soon"}), "exp is not a time"),
        (json!({"nbf": NOW + 61}), "before the nbf"),
        (json!({"nbf": []}), "nbf is not a time"),
        (json!({"iat": "x"}), "iat is not a time"),
        (json!({"sub": 1}), "sub is not a string"),
        // kube-apiserver's order: audience, then time, then algorithm.
        (json!({"aud": "d", "exp": 1}), "expected audience"),
    ] {
        let error = check_error(&[], "none", &changes).unwrap_or_default();
        assert!(error.contains(expected), "{changes}: {error}");
    }
    for valid in [
        json!({"aud": ["d", "c"]}),
        json!({"exp": NOW}),
        json!({"exp": NOW as f64 + 0.5}),
        json!({"nbf": NOW + 60}),
        json!({"exp": i64::MAX}),
        json!({"exp": 1e300}),
    ] {
        assert_eq!(check_error(&[], "RS256", &valid), None, "{valid}");
    }
    for algorithm in ["none", "HS256", "RS384", "ES256", "", "rs256"] {
        let error = check_error(&[], algorithm, &json!({})).unwrap_or_default();
        assert!(error.contains("unsupported algorithm, expected [\"RS256\"]"), "{algorithm}: {error}");
    }
    assert_eq!(check_error(&["--oidc-signing-algs=ES256"], "ES256", &json!({})), None);
}

proptest! {
    #[test]
    fn openid_identity_has_exactly_the_groups_of_the_token(groups in proptest::collection::vec(".{0,8}", 0..5)) {
        let more = ["--oidc-groups-claim=g", "--oidc-groups-prefix=p:"];
        let actual = identity(&more, &json!({"g": groups})).unwrap().groups;
        let expected: Vec<_> = groups.iter().map(|group| format!("p:{group}")).collect();
        prop_assert_eq!(actual, expected);
    }
}
