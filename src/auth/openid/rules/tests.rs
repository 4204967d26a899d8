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

fn of(value: &Value) -> Claims {
    Claims(value.as_object().unwrap().clone())
}

fn identity(more: &[&str], changes: &Value) -> Result<Identity, String> {
    rules(more).identity(&of(&claims(ISSUER, changes)))
}

fn name(more: &[&str], changes: &Value) -> Result<String, String> {
    identity(more, changes).map(|identity| identity.name)
}

/// Why a token is not worth a look at its signature.
fn refused(more: &[&str], algorithm: &str, changes: &Value) -> Option<String> {
    let text = format!("{}.e30.e30", BASE64.encode(json!({"alg": algorithm}).to_string()));
    let (token, now) = (Token::parse(&text).unwrap(), Timestamp(NOW * 1_000_000));
    rules(more).check(&token, &of(&claims(ISSUER, changes)), now).err()
}

#[test]
fn the_flags_know_the_algorithms_that_there_are() {
    assert_eq!(Algorithm::ALL.map(Algorithm::name), SIGNING_ALGORITHMS);
    assert_eq!(rules(&[]).algorithms, [Algorithm::Rs256]);
    assert_eq!(rules(&["--oidc-signing-algs=ES512,PS256"]).algorithms, [Algorithm::Es512, Algorithm::Ps256]);
}

#[test]
fn tokens_of_others_are_none_of_our_business() {
    let concern = |issuer: &str, said: Value| {
        ClaimMapping::new(&flags(issuer, &[])).unwrap().concern(&of(&json!({"iss": said})))
    };
    assert!(concern(ISSUER, ISSUER.into()));
    for said in
        [json!("https://kubernetes.default.svc"), json!("https://login.test/realm/"), json!(""), json!(1)]
    {
        assert!(!concern(ISSUER, said.clone()), "{said}");
    }
    assert!(concern("https://accounts.google.com", "accounts.google.com".into()));
    assert!(!concern(ISSUER, "login.test/realm".into()));
    assert!(!rules(&[]).concern(&of(&json!({}))));
}

#[test]
fn a_file_says_more_than_flags() {
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
    let rules = ClaimMapping::of(&jwt);
    assert_eq!(rules.algorithms, Algorithm::ALL, "in every way that a key takes");
    let said = json!({"email": "a@x", "id": "7", "roles": ["b"], "hd": "x"});
    let made = |changes: &Value| {
        let mut all = said.as_object().unwrap().clone();
        all.extend(changes.as_object().unwrap().clone());
        rules.identity(&of(&claims(ISSUER, &all.into())))
    };
    let ann = made(&json!({})).unwrap();
    assert_eq!((&*ann.name, &*ann.uid, &ann.groups[..]), ("m:a@x", "7", &["r:b".to_owned()][..]));
    for (changes, why) in [
        (json!({"id": null}), "oidc: parse uid claim \"id\": claim not present"),
        (json!({"id": 7}), "oidc: parse uid claim \"id\": claim is not a string"),
        (json!({"email_verified": false}), "oidc: email not verified"),
        (json!({"hd": "y"}), "oidc: required claim hd value does not match"),
    ] {
        assert_eq!(made(&changes).unwrap_err(), why, "{changes}");
    }
    let text = format!("{}.e30.e30", BASE64.encode(json!({"alg": "ES512"}).to_string()));
    let (token, now) = (Token::parse(&text).unwrap(), Timestamp(NOW * 1_000_000));
    let check = |audiences: Value| rules.check(&token, &of(&claims(ISSUER, &json!({"aud": audiences}))), now);
    assert!(check(json!("c")).is_ok() && check(json!(["x", "d"])).is_ok());
    let why = "oidc: expected audience in [\"c\" \"d\"] got [\"x\" \"y\"]";
    assert_eq!(check(json!(["x", "y"])), Err(why.to_owned()));
    assert_eq!(
        refused(&[], "RS256", &json!({"aud": ["x", "y"]})).as_deref(),
        Some("oidc: expected audience \"c\" got [\"x\" \"y\"]")
    );
}

#[test]
fn expressions_make_users_of_claims() {
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
    let rules = ClaimMapping::of(&AuthenticationFile::parse(file.as_bytes(), &[]).unwrap().jwt[0]);
    let said = json!({"who": "ann", "level": 3, "id": "7", "b": ["p", ""], "jti": "j"});
    let made = |changes: &Value| {
        let mut all = said.as_object().unwrap().clone();
        all.extend(changes.as_object().unwrap().clone());
        rules.identity(&of(&claims(ISSUER, &all.into())))
    };
    let ann = made(&json!({})).unwrap();
    assert_eq!((&*ann.name, &*ann.uid, &ann.groups), ("x:ann", "7", &vec![]));
    assert_eq!(ann.extra["a.test/b"], ["p"]);
    assert_eq!(ann.extra[CREDENTIAL_ID], ["JTI=j"]);
    assert_eq!(made(&json!({"teams": ["a", "b"]})).unwrap().groups, ["a", "b"]);
    assert!(!made(&json!({"b": ""})).unwrap().extra.contains_key("a.test/b"), "what is empty is not there");
    let failed = "resulted in error: no such key: ";
    for (changes, why) in [
        (json!({"who": null}), format!("oidc: error evaluating username claim expression: expression ''x:' + claims.who' {failed}who")),
        (json!({"teams": 1}), "oidc: error evaluating group claim expression: expression must return a string or a list of strings".into()),
        (json!({"id": 7}), "oidc: error evaluating uid claim expression: uid claim expression must return a string".into()),
        (json!({"b": 1}), "oidc: error evaluating extra claim expression: claims.b: expression must return a string or a list of strings".into()),
        (json!({"b": null}), format!("expression 'claims.b' {failed}b")),
        (json!({"level": 1}), "oidc: error evaluating claim validation expression: validation expression 'claims.level > 2' failed: too low".into()),
        (json!({"teams": ["system:masters"]}), "oidc: error evaluating user info validation rule: validation expression 'user.groups.all(g, !g.startsWith('system:'))' failed: reserved".into()),
        (json!({"id": "root"}), "oidc: error evaluating user info validation rule: validation expression 'user.extra.size() < 3 && user.uid != 'root'' failed: ".into()),
    ] {
        assert_eq!(made(&changes).unwrap_err(), why, "{changes}");
    }
    let empty = file.replace("\"'x:' + claims.who\"", "claims.who");
    let rules = ClaimMapping::of(&AuthenticationFile::parse(empty.as_bytes(), &[]).unwrap().jwt[0]);
    let nameless = json!({"who": "", "level": 3, "id": "7", "b": "p"});
    assert_eq!(
        rules.identity(&of(&claims(ISSUER, &nameless))).unwrap_err(),
        "oidc: empty username via CEL expression is not allowed"
    );
}

#[test]
fn a_user_has_a_prefix_unless_the_operator_wants_none() {
    let named = |more: &[&str]| name(more, &json!({"name": "Ann", "email": "a@x"})).unwrap();
    assert_eq!(named(&[]), "https://login.test/realm#ann");
    assert_eq!(named(&["--oidc-username-claim=name"]), "https://login.test/realm#Ann");
    assert_eq!(named(&["--oidc-username-claim=name", "--oidc-username-prefix=-"]), "Ann");
    assert_eq!(named(&["--oidc-username-prefix=oidc:"]), "oidc:ann");
    assert_eq!(named(&["--oidc-username-claim=email"]), "a@x");
    assert_eq!(named(&["--oidc-username-claim=email", "--oidc-username-prefix=e:"]), "e:a@x");
}

#[test]
fn a_user_must_have_a_name() {
    let email = ["--oidc-username-claim=email"];
    for (more, changes, why) in [
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
        assert_eq!(name(more, &changes), Err(why.to_owned()), "{changes}");
    }
    assert_eq!(name(&email, &json!({"email": "a@x", "email_verified": true})).unwrap(), "a@x");
    assert!(
        name(&[], &json!({"email_verified": false})).is_ok(),
        "it matters only to whom the address names"
    );
}

#[test]
fn groups_are_a_text_or_a_list() {
    let groups = |more: &[&str], said: Value| {
        let more: Vec<_> = more.iter().copied().chain(["--oidc-groups-claim=roles"]).collect();
        identity(&more, &json!({ "roles": said })).map(|identity| identity.groups)
    };
    assert_eq!(groups(&[], json!(["a", "b"])).unwrap(), ["a", "b"]);
    assert_eq!(groups(&[], json!("a")).unwrap(), ["a"]);
    assert_eq!(groups(&["--oidc-groups-prefix=g:"], json!(["a", "b"])).unwrap(), ["g:a", "g:b"]);
    assert_eq!(groups(&[], json!([])).unwrap(), [""; 0]);
    assert_eq!(groups(&[], Value::Null).unwrap(), [""; 0]);
    for wrong in [json!(1), json!({"a": "b"}), json!(["a", 1]), json!([["a"]]), json!(true)] {
        let why = groups(&[], wrong.clone()).unwrap_err();
        assert!(why.starts_with("oidc: parse groups claim \"roles\": "), "{wrong}: {why}");
    }
    let nobody_asked = identity(&[], &json!({"groups": ["system:masters"]})).unwrap();
    assert!(nobody_asked.groups.is_empty());
}

#[test]
fn required_claims_must_be_there() {
    let more = ["--oidc-required-claim=hd=example.com", "--oidc-required-claim=tier=gold"];
    assert!(name(&more, &json!({"hd": "example.com", "tier": "gold"})).is_ok());
    for (changes, why) in [
        (json!({"hd": "example.com"}), "oidc: required claim tier not present in ID token"),
        (json!({"hd": "example.org", "tier": "gold"}), "oidc: required claim hd value does not match"),
        (json!({"hd": ["example.com"], "tier": "gold"}), "oidc: parse claim hd: claim is not a string"),
    ] {
        assert_eq!(name(&more, &changes), Err(why.to_owned()), "{changes}");
    }
}

#[test]
fn claims_that_lie_elsewhere_are_refused_where_they_matter() {
    let groups = ["--oidc-groups-claim=groups"];
    let lies = |names: Value| {
        json!({"_claim_names": names, "_claim_sources": {
            "far": {"endpoint": "https://far.test/groups", "access_token": "t"}, "inside": {"JWT": "a.b.c"}}})
    };
    for source in ["far", "inside"] {
        let why = name(&groups, &lies(json!({"groups": source}))).unwrap_err();
        assert!(why.contains("\"groups\" is a distributed or aggregated claim"), "{why}");
        assert!(name(&[], &lies(json!({"groups": source}))).is_ok(), "nobody wants the groups");
    }
    let mut both = lies(json!({"groups": "far"}));
    both["groups"] = json!(["a"]);
    assert_eq!(identity(&groups, &both).unwrap().groups, ["a"], "what the token says itself counts");
    let required = name(&["--oidc-required-claim=hd=x"], &lies(json!({"hd": "far"}))).unwrap_err();
    assert!(required.contains("\"hd\" is a distributed"), "{required}");
    let mut nameless = lies(json!({"sub": "far"}));
    nameless["sub"] = Value::Null;
    assert!(name(&[], &nameless).unwrap_err().contains("\"sub\" is a distributed"));
    for (names, why) in [
        (json!({"groups": "gone"}), "oidc: source does not exist"),
        (json!({"groups": ""}), "oidc: failed to obtain source"),
        (json!({"groups": 1}), "oidc: failed to obtain source"),
        (json!(["groups"]), "_claim_names"),
    ] {
        let said = refused(&[], "RS256", &lies(names)).unwrap();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_token_says_which_it_is() {
    let extra = |changes: Value| identity(&[], &changes).unwrap().extra;
    assert_eq!(extra(json!({}))[CREDENTIAL_ID], ["JTI=7"]);
    assert!(extra(json!({"jti": null})).is_empty() && extra(json!({"jti": 7})).is_empty());
}

#[test]
fn what_costs_nothing_is_checked_before_the_signature() {
    assert_eq!(refused(&[], "RS256", &json!({})), None);
    for (changes, part) in [
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
        // The order of the reference: whom it is for, then when, then how.
        (json!({"aud": "d", "exp": 1}), "expected audience"),
    ] {
        let said = refused(&[], "none", &changes).unwrap_or_default();
        assert!(said.contains(part), "{changes}: {said}");
    }
    for good in [
        json!({"aud": ["d", "c"]}),
        json!({"exp": NOW}),
        json!({"exp": NOW as f64 + 0.5}),
        json!({"nbf": NOW + 60}),
        json!({"exp": i64::MAX}),
        json!({"exp": 1e300}),
    ] {
        assert_eq!(refused(&[], "RS256", &good), None, "{good}");
    }
    for wrong in ["none", "HS256", "RS384", "ES256", "", "rs256"] {
        let said = refused(&[], wrong, &json!({})).unwrap_or_default();
        assert!(said.contains("unsupported algorithm, expected [\"RS256\"]"), "{wrong}: {said}");
    }
    assert_eq!(refused(&["--oidc-signing-algs=ES256"], "ES256", &json!({})), None);
}

proptest! {
    #[test]
    fn a_bearer_has_no_group_that_the_token_does_not_name(groups in proptest::collection::vec(".{0,8}", 0..5)) {
        let more = ["--oidc-groups-claim=g", "--oidc-groups-prefix=p:"];
        let found = identity(&more, &json!({"g": groups})).unwrap().groups;
        let expected: Vec<_> = groups.iter().map(|group| format!("p:{group}")).collect();
        prop_assert_eq!(found, expected);
    }
}
