use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use futures::future::join_all;
use jsonwebtoken::jwk::Jwk;
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::test_provider::{ISSUER, NOW, Signer, TestProvider, TestResponse, claims, flags};
use super::*;
use crate::auth::jwt::tests::private;
use crate::auth::jwt::{Algorithm, KeySet, VerifyingKey};
use crate::limits::OIDC_REFETCHES;

const ALL: &str = "--oidc-signing-algs=RS256,RS384,RS512,ES256,ES384,ES512,PS256,PS384,PS512";

fn now() -> Timestamp {
    Timestamp(NOW * 1_000_000)
}

/// A verifier that has these keys and nobody to ask for more.
fn alone(more: &[&str], signers: &[&Signer]) -> (OpenIdTokens, Clock) {
    let clock = Clock::manual(now());
    let rules = ClaimMapping::new(&flags(ISSUER, more)).unwrap();
    let keys = signers.iter().map(|signer| {
        let jwk: Jwk = serde_json::from_value(signer.published.clone()).unwrap();
        VerifyingKey::from_jwk(&jwk, &rules.algorithms).unwrap()
    });
    let ring = KeySet::new(keys.flatten().collect());
    let shared = Arc::new(Keys::new(clock.clone()));
    shared.begin();
    shared.end(Some(ring));
    (OpenIdTokens::new(rules, shared, clock.clone()), clock)
}

fn shown(token: &str) -> Credentials {
    Credentials { bearer: Some(token.to_owned()), ..Credentials::default() }
}

/// What is said at once: `None` if newer keys would be asked for.
fn at_once(verifier: &OpenIdTokens, token: &str) -> Option<Verification> {
    match verifier.verify(&shown(token)) {
        Answer::Now(verdict) => Some(verdict),
        Answer::Later(_) => None,
    }
}

async fn verdict(verifier: &OpenIdTokens, token: &str) -> Verification {
    match verifier.verify(&shown(token)) {
        Answer::Now(verdict) => verdict,
        Answer::Later(verdict) => verdict.await,
    }
}

fn name(verdict: Option<Verification>) -> Option<String> {
    match verdict {
        Some(Verification::Known(identity)) => Some(identity.name.clone()),
        _ => None,
    }
}

fn good() -> Value {
    claims(ISSUER, &json!({}))
}

fn unsigned(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let part = |value: &Value| BASE64.encode(value.to_string());
    format!("{}.{}.{}", part(header), part(claims), BASE64.encode(signature))
}

#[test]
fn every_algorithm_is_verified_where_it_is_permitted() {
    for algorithm in Algorithm::ALL {
        let signer = Signer::new(algorithm);
        let token = signer.sign(&good());
        let only = format!("--oidc-signing-algs={}", algorithm.name());
        for flag in [ALL, &only] {
            let (verifier, _) = alone(&[flag], &[&signer]);
            assert_eq!(
                name(at_once(&verifier, &token)).as_deref(),
                Some("https://login.test/realm#ann"),
                "{algorithm:?}"
            );
        }
        let others: Vec<_> =
            Algorithm::ALL.iter().filter(|other| **other != algorithm).map(|other| other.name()).collect();
        let (verifier, _) = alone(&[&format!("--oidc-signing-algs={}", others.join(","))], &[&signer]);
        let refused = at_once(&verifier, &token);
        assert!(
            matches!(&refused, Some(Verification::Refused(why)) if why.contains("unsupported algorithm")),
            "{refused:?}"
        );
    }
}

#[test]
fn nothing_unsigned_or_signed_with_what_everybody_knows_is_a_token() {
    let signer = Signer::new(Algorithm::Rs256);
    let (verifier, _) = alone(&[ALL], &[&signer]);
    let key = private(Algorithm::Rs256);
    for algorithm in ["none", "None", "", "HS256", "HS384", "HS512"] {
        for secret in [key.public_key_to_pem().unwrap(), key.public_key_to_der().unwrap()] {
            let header = json!({"alg": algorithm, "kid": signer.published["kid"]});
            let text = unsigned(&header, &good(), b"");
            let text = text.trim_end_matches('.');
            let mut hmac =
                openssl::sign::Signer::new(MessageDigest::sha256(), &PKey::hmac(&secret).unwrap()).unwrap();
            hmac.update(text.as_bytes()).unwrap();
            for signature in [Vec::new(), hmac.sign_to_vec().unwrap()] {
                let token = unsigned(&header, &good(), &signature);
                let refused = at_once(&verifier, &token);
                assert!(matches!(refused, Some(Verification::Refused(_))), "{algorithm}: {refused:?}");
            }
        }
    }
}

#[test]
fn a_token_of_an_unknown_key_wants_newer_keys_but_only_if_all_else_is_right() {
    let (ours, theirs) = (Signer::fresh(), Signer::fresh());
    let (verifier, _) = alone(&[ALL], &[&ours]);
    assert!(at_once(&verifier, &theirs.sign(&good())).is_none());
    let mut forged = ours.sign(&good());
    forged.truncate(forged.rfind('.').unwrap() + 1);
    forged.push_str(&BASE64.encode([7; 64]));
    assert!(at_once(&verifier, &forged).is_none(), "keys can change and keep their names");
    for changes in [json!({"aud": "d"}), json!({"exp": NOW - 1}), json!({"nbf": NOW + 100})] {
        for signer in [&ours, &theirs] {
            let refused = at_once(&verifier, &signer.sign(&claims(ISSUER, &changes)));
            assert!(matches!(refused, Some(Verification::Refused(_))), "{changes}: {refused:?}");
        }
    }
    for other in ["https://kubernetes.default.svc", "https://login.test", "kubernetes/serviceaccount"] {
        let verdict = at_once(&verifier, &ours.sign(&claims(other, &json!({}))));
        assert_eq!(verdict, Some(Verification::NoOpinion), "{other}");
    }
    for text in ["", "x", "a.b.c", "token-of-admin", "abcdef.0123456789abcdef"] {
        assert_eq!(at_once(&verifier, text), Some(Verification::NoOpinion), "{text}");
    }
    assert!(matches!(verifier.verify(&Credentials::default()), Answer::Now(Verification::NoOpinion)));
}

#[test]
fn a_token_has_a_size() {
    let signer = Signer::fresh();
    let (verifier, _) = alone(&[ALL, "--oidc-groups-claim=groups"], &[&signer]);
    let groups = |count: usize| -> Vec<String> { (0..count).map(|at| format!("group-{at:04}")).collect() };
    let large = signer.sign(&claims(ISSUER, &json!({"groups": groups(3_000)})));
    assert!(large.len() < OIDC_TOKEN_BYTES);
    let Some(Verification::Known(identity)) = at_once(&verifier, &large) else { panic!("known") };
    assert_eq!(identity.groups.len(), 3_000);
    let larger = signer.sign(&claims(ISSUER, &json!({"groups": groups(5_000)})));
    assert!(larger.len() > OIDC_TOKEN_BYTES);
    assert_eq!(at_once(&verifier, &larger), Some(Verification::NoOpinion));
}

#[test]
fn a_token_is_remembered_for_a_moment_and_not_beyond_its_end() {
    let signer = Signer::fresh();
    let (verifier, clock) = alone(&[ALL], &[&signer]);
    let long = signer.sign(&good());
    let short = signer.sign(&claims(ISSUER, &json!({"exp": NOW + 3})));
    assert!(name(at_once(&verifier, &long)).is_some() && name(at_once(&verifier, &short)).is_some());
    // Without keys only memory can tell.
    verifier.0.keys.begin();
    verifier.0.keys.end(Some(KeySet::new(Vec::new())));
    clock.advance(Duration::from_secs(2));
    assert!(name(at_once(&verifier, &long)).is_some() && name(at_once(&verifier, &short)).is_some());
    clock.advance(Duration::from_secs(2));
    assert!(
        matches!(at_once(&verifier, &short), Some(Verification::Refused(why)) if why.contains("expired"))
    );
    assert!(name(at_once(&verifier, &long)).is_some());
    clock.advance(OIDC_TOKEN_REMEMBERED);
    assert!(at_once(&verifier, &long).is_none(), "its key was withdrawn");
}

#[test]
fn memory_is_bounded() {
    let signer = Signer::fresh();
    let (verifier, clock) = alone(&[ALL], &[&signer]);
    let kept = || verifier.0.remembered.lock().len();
    let fill = |from: usize, count: usize| {
        for at in from..from + count {
            let identity = Arc::new(Identity::default());
            let until = verifier.0.clock.now().plus(OIDC_TOKEN_REMEMBERED);
            verifier.0.remember(crate::auth::digest(&at.to_be_bytes()), Remembered { identity, until });
        }
    };
    fill(0, OIDC_TOKENS_REMEMBERED);
    assert_eq!(kept(), OIDC_TOKENS_REMEMBERED);
    fill(OIDC_TOKENS_REMEMBERED, 1);
    assert_eq!(kept(), 1, "it starts anew");
    clock.advance(OIDC_TOKEN_REMEMBERED);
    fill(0, OIDC_TOKENS_REMEMBERED - 1);
    assert_eq!(kept(), OIDC_TOKENS_REMEMBERED);
    fill(OIDC_TOKENS_REMEMBERED + 5, 1);
    assert_eq!(kept(), OIDC_TOKENS_REMEMBERED, "only the one that had run out went");
}

/// A verifier with a provider behind it.
fn wired(stage: &TestProvider) -> (Rc<OpenIdTokens>, Clock) {
    let clock = Clock::manual(now());
    let rules =
        ClaimMapping::new(&flags(&stage.issuer, &["--oidc-signing-algs=ES256", "--oidc-username-prefix=-"]))
            .unwrap();
    let keys = Arc::new(Keys::new(clock.clone()));
    let provider = Provider::new(&rules, Some(stage.authority_pem.clone()), keys.clone()).unwrap();
    actix::spawn(provider.keep());
    (Rc::new(OpenIdTokens::new(rules, keys, clock.clone())), clock)
}

fn token(stage: &TestProvider, signer: &Signer, user: &str) -> String {
    signer.sign(&claims(&stage.issuer, &json!({"sub": user})))
}

#[actix::test]
async fn keys_that_change_are_found_and_strangers_cause_few_questions() {
    let (old, new, stranger) = (Signer::fresh(), Signer::fresh(), Signer::fresh());
    let stage = TestProvider::open(&[&old]).await;
    let (verifier, clock) = wired(&stage);
    assert_eq!(name(Some(verdict(&verifier, &token(&stage, &old, "ann")).await)).as_deref(), Some("ann"));
    stage.publish(&[&new]);
    let asked = stage.asked.get();
    let users: Vec<_> = (0..50).map(|at| token(&stage, &new, &format!("user-{at}"))).collect();
    let all = join_all(users.iter().map(|token| verdict(&verifier, token))).await;
    assert!(all.iter().all(|verdict| matches!(verdict, Verification::Known(_))), "{all:?}");
    assert_eq!(stage.asked.get(), asked + 1, "one question for all of them");
    clock.advance(OIDC_TOKEN_REMEMBERED);
    assert!(matches!(verdict(&verifier, &token(&stage, &old, "ann")).await, Verification::Refused(_)));

    let asked = stage.asked.get();
    for at in 0..30 {
        let refused = verdict(&verifier, &token(&stage, &stranger, &format!("x{at}"))).await;
        assert!(matches!(refused, Verification::Refused(_)), "{refused:?}");
    }
    assert!(stage.asked.get() - asked < OIDC_REFETCHES as usize + 1, "{}", stage.asked.get() - asked);
    assert!(name(at_once(&verifier, &token(&stage, &new, "bob"))).is_some(), "others do not notice");
}

#[actix::test]
async fn a_provider_that_comes_late_is_found() {
    let signer = Signer::fresh();
    let stage = TestProvider::open(&[&signer]).await;
    stage.say("/.well-known/openid-configuration", TestResponse::Status(503));
    let (verifier, _) = wired(&stage);
    let token = token(&stage, &signer, "ann");
    let refused = verdict(&verifier, &token).await;
    assert_eq!(refused, Verification::Refused("oidc: authenticator not initialized".into()));
    stage.publish(&[&signer]);
    assert_eq!(name(Some(verdict(&verifier, &token).await)).as_deref(), Some("ann"));
    stage.say("/keys", TestResponse::Status(503));
    assert!(name(at_once(&verifier, &token)).is_some());
}

#[actix::test]
async fn a_provider_that_stalls_keeps_only_those_waiting_who_need_it() {
    let (known, other) = (Signer::fresh(), Signer::fresh());
    let stage = TestProvider::open(&[&known]).await;
    let (verifier, clock) = wired(&stage);
    assert!(name(Some(verdict(&verifier, &token(&stage, &known, "ann")).await)).is_some());
    stage.say("/keys", TestResponse::Stalls);
    let waiting = {
        let (verifier, token) = (Rc::clone(&verifier), token(&stage, &other, "bob"));
        actix::spawn(async move { verdict(&verifier, &token).await })
    };
    let asked = stage.asked.get();
    while stage.asked.get() == asked {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    clock.advance(OIDC_TOKEN_REMEMBERED);
    assert!(name(at_once(&verifier, &token(&stage, &known, "ann"))).is_some(), "not even remembered");
    assert!(!waiting.is_finished());
    waiting.abort();
}

proptest! {
    #[test]
    fn no_text_is_a_token_by_chance(text in "[a-zA-Z0-9_.=-]{0,120}") {
        let (verifier, _) = alone(&[ALL], &[]);
        prop_assert_eq!(at_once(&verifier, &text), Some(Verification::NoOpinion));
    }
}
