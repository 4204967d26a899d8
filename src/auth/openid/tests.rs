use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use futures::future::join_all;
use jsonwebtoken::jwk::Jwk;
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use pilothouse_client::upstream::pool::Pool;
use pilothouse_client::webhook::TrustAnchors;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::provider::trust_anchors;
use super::test_provider::{ISSUER, NOW, Signer, TestProvider, TestResponse, claims, flags};
use super::*;
use crate::auth::jwt::tests::private_key;
use crate::auth::jwt::{Algorithm, KeySet, VerifyingKey};
use crate::limits::OIDC_REFETCHES;

/// Read once: there are verifiers in loops.
static SYSTEM_ANCHORS: LazyLock<TrustAnchors> = LazyLock::new(|| trust_anchors(None).unwrap());

const ALL: &str = "--oidc-signing-algs=RS256,RS384,RS512,ES256,ES384,ES512,PS256,PS384,PS512";

/// A verifier with these keys, which fetches claims with these CAs.
pub(super) fn open_id_tokens(
    rules: ClaimMapping,
    keys: Arc<Keys>,
    anchors: TrustAnchors,
    clock: &Clock,
) -> OpenIdTokens {
    let pool = Pool::new(Clock::system());
    let resolver = ClaimResolver::new(keys.clone(), anchors, clock.clone(), pool);
    OpenIdTokens::new(rules, keys, resolver, clock.clone(), None)
}

fn now() -> Timestamp {
    Timestamp(NOW * 1_000_000)
}

/// A verifier with these keys and no provider to fetch others from.
fn offline_verifier(more: &[&str], signers: &[&Signer]) -> (OpenIdTokens, Clock) {
    let clock = Clock::manual(now());
    let rules = ClaimMapping::new(&flags(ISSUER, more)).unwrap();
    let verifying = signers.iter().map(|signer| {
        let jwk: Jwk = serde_json::from_value(signer.jwk.clone()).unwrap();
        VerifyingKey::from_jwk(&jwk, &rules.algorithms).unwrap()
    });
    let key_set = KeySet::new(verifying.flatten().collect());
    let keys = Arc::new(Keys::new(clock.clone()));
    keys.begin_attempt();
    keys.end_attempt(Some(key_set));
    (open_id_tokens(rules, keys, SYSTEM_ANCHORS.clone(), &clock), clock)
}

fn credentials(token: &str) -> Credentials {
    Credentials { bearer: Some(token.to_owned()), ..Credentials::default() }
}

/// The immediate verification; `None` if it would refetch the keys.
fn verify_now(verifier: &OpenIdTokens, token: &str) -> Option<Verification> {
    match verifier.verify(&credentials(token)) {
        Answer::Now(verdict) => Some(verdict),
        Answer::Later(_) => None,
    }
}

async fn verdict(verifier: &OpenIdTokens, token: &str) -> Verification {
    match verifier.verify(&credentials(token)) {
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

fn valid_claims() -> Value {
    claims(ISSUER, &json!({}))
}

fn encode_token(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let encode = |value: &Value| BASE64.encode(value.to_string());
    format!("{}.{}.{}", encode(header), encode(claims), BASE64.encode(signature))
}

#[test]
fn openid_token_is_verified_with_permitted_algorithms_only() {
    for algorithm in Algorithm::ALL {
        let signer = Signer::new(algorithm);
        let token = signer.sign(&valid_claims());
        let only = format!("--oidc-signing-algs={}", algorithm.name());
        for flag in [ALL, &only] {
            let (verifier, _) = offline_verifier(&[flag], &[&signer]);
            assert_eq!(
                name(verify_now(&verifier, &token)).as_deref(),
                Some("https://login.test/realm#ann"),
                "{algorithm:?}"
            );
        }
        let others: Vec<_> =
            Algorithm::ALL.iter().filter(|other| **other != algorithm).map(|other| other.name()).collect();
        let (verifier, _) =
            offline_verifier(&[&format!("--oidc-signing-algs={}", others.join(","))], &[&signer]);
        let refused = verify_now(&verifier, &token);
        assert!(
            matches!(&refused, Some(Verification::Refused(reason)) if reason.contains("unsupported algorithm")),
            "{refused:?}"
        );
    }
}

#[test]
fn openid_token_unsigned_or_signed_with_public_key_is_refused() {
    let signer = Signer::new(Algorithm::Rs256);
    let (verifier, _) = offline_verifier(&[ALL], &[&signer]);
    let key = private_key(Algorithm::Rs256);
    for algorithm in ["none", "None", "", "HS256", "HS384", "HS512"] {
        for secret in [key.public_key_to_pem().unwrap(), key.public_key_to_der().unwrap()] {
            let header = json!({"alg": algorithm, "kid": signer.jwk["kid"]});
            let text = encode_token(&header, &valid_claims(), b"");
            let text = text.trim_end_matches('.');
            let mut hmac =
                openssl::sign::Signer::new(MessageDigest::sha256(), &PKey::hmac(&secret).unwrap()).unwrap();
            hmac.update(text.as_bytes()).unwrap();
            for signature in [Vec::new(), hmac.sign_to_vec().unwrap()] {
                let token = encode_token(&header, &valid_claims(), &signature);
                let refused = verify_now(&verifier, &token);
                assert!(matches!(refused, Some(Verification::Refused(_))), "{algorithm}: {refused:?}");
            }
        }
    }
}

#[test]
fn openid_token_of_unknown_key_refetches_keys_only_if_otherwise_valid() {
    let (known, unknown) = (Signer::fresh(), Signer::fresh());
    let (verifier, _) = offline_verifier(&[ALL], &[&known]);
    assert!(verify_now(&verifier, &unknown.sign(&valid_claims())).is_none());
    let mut forged = known.sign(&valid_claims());
    forged.truncate(forged.rfind('.').unwrap() + 1);
    forged.push_str(&BASE64.encode([7; 64]));
    assert!(verify_now(&verifier, &forged).is_none(), "keys can change and keep their IDs");
    for changes in [json!({"aud": "d"}), json!({"exp": NOW - 1}), json!({"nbf": NOW + 100})] {
        for signer in [&known, &unknown] {
            let refused = verify_now(&verifier, &signer.sign(&claims(ISSUER, &changes)));
            assert!(matches!(refused, Some(Verification::Refused(_))), "{changes}: {refused:?}");
        }
    }
    for other in ["https://kubernetes.default.svc", "https://login.test", "kubernetes/serviceaccount"] {
        let verdict = verify_now(&verifier, &known.sign(&claims(other, &json!({}))));
        assert_eq!(verdict, Some(Verification::NoOpinion), "{other}");
    }
    for text in ["", "x", "a.b.c", "token-of-admin", "abcdef.0123456789abcdef"] {
        assert_eq!(verify_now(&verifier, text), Some(Verification::NoOpinion), "{text}");
    }
    assert!(matches!(verifier.verify(&Credentials::default()), Answer::Now(Verification::NoOpinion)));
}

#[test]
fn openid_token_above_size_limit_is_ignored() {
    let signer = Signer::fresh();
    let (verifier, _) = offline_verifier(&[ALL, "--oidc-groups-claim=groups"], &[&signer]);
    let groups =
        |count: usize| -> Vec<String> { (0..count).map(|index| format!("group-{index:04}")).collect() };
    let large = signer.sign(&claims(ISSUER, &json!({"groups": groups(3_000)})));
    assert!(large.len() < OIDC_TOKEN_BYTES);
    let Some(Verification::Known(identity)) = verify_now(&verifier, &large) else { panic!("known") };
    assert_eq!(identity.groups.len(), 3_000);
    let larger = signer.sign(&claims(ISSUER, &json!({"groups": groups(5_000)})));
    assert!(larger.len() > OIDC_TOKEN_BYTES);
    assert_eq!(verify_now(&verifier, &larger), Some(Verification::NoOpinion));
}

#[test]
fn openid_token_is_cached_but_not_beyond_its_expiry() {
    let signer = Signer::fresh();
    let (verifier, clock) = offline_verifier(&[ALL], &[&signer]);
    let long = signer.sign(&valid_claims());
    let short = signer.sign(&claims(ISSUER, &json!({"exp": NOW + 3})));
    assert!(name(verify_now(&verifier, &long)).is_some() && name(verify_now(&verifier, &short)).is_some());
    // Without keys only the cache can answer.
    verifier.0.keys.begin_attempt();
    verifier.0.keys.end_attempt(Some(KeySet::new(Vec::new())));
    clock.advance(Duration::from_secs(2));
    assert!(name(verify_now(&verifier, &long)).is_some() && name(verify_now(&verifier, &short)).is_some());
    clock.advance(Duration::from_secs(2));
    assert!(
        matches!(verify_now(&verifier, &short), Some(Verification::Refused(reason)) if reason.contains("expired"))
    );
    assert!(name(verify_now(&verifier, &long)).is_some());
    clock.advance(OIDC_TOKEN_CACHE_TTL);
    assert!(verify_now(&verifier, &long).is_none(), "its key was removed");
}

#[test]
fn openid_token_cache_is_bounded() {
    let signer = Signer::fresh();
    let (verifier, clock) = offline_verifier(&[ALL], &[&signer]);
    let cached = || verifier.0.cache.lock().len();
    let fill = |from: usize, count: usize| {
        for index in from..from + count {
            let identity = Arc::new(Identity::default());
            let expiry = verifier.0.clock.now().plus(OIDC_TOKEN_CACHE_TTL);
            verifier.0.insert_cached(crate::auth::digest(&index.to_be_bytes()), identity, expiry);
        }
    };
    fill(0, OIDC_CACHED_TOKENS);
    assert_eq!(cached(), OIDC_CACHED_TOKENS);
    fill(OIDC_CACHED_TOKENS, 1);
    assert_eq!(cached(), 1, "all of them would expire together");
    clock.advance(OIDC_TOKEN_CACHE_TTL);
    fill(0, OIDC_CACHED_TOKENS - 1);
    assert_eq!(cached(), OIDC_CACHED_TOKENS);
    fill(OIDC_CACHED_TOKENS + 5, 1);
    assert_eq!(cached(), OIDC_CACHED_TOKENS, "only the expired one was evicted");
}

/// A verifier that fetches its keys from this provider.
fn verifier_with_provider(provider_stub: &TestProvider) -> (Rc<OpenIdTokens>, Clock) {
    let clock = Clock::manual(now());
    let rules = ClaimMapping::new(&flags(
        &provider_stub.issuer,
        &["--oidc-signing-algs=ES256", "--oidc-username-prefix=-"],
    ))
    .unwrap();
    let keys = Arc::new(Keys::new(clock.clone()));
    let provider = Provider::new(
        &rules,
        trust_anchors(Some(provider_stub.authority_pem.clone())).unwrap(),
        keys.clone(),
        &Pool::new(Clock::system()),
    )
    .unwrap();
    actix::spawn(provider.run());
    (Rc::new(open_id_tokens(rules, keys, SYSTEM_ANCHORS.clone(), &clock)), clock)
}

fn token(provider_stub: &TestProvider, signer: &Signer, user: &str) -> String {
    signer.sign(&claims(&provider_stub.issuer, &json!({"sub": user})))
}

#[actix::test]
async fn openid_keys_are_refetched_on_rotation_at_a_limited_rate() {
    let (old, new, other) = (Signer::fresh(), Signer::fresh(), Signer::fresh());
    let provider_stub = TestProvider::open(&[&old]).await;
    let (verifier, clock) = verifier_with_provider(&provider_stub);
    assert_eq!(
        name(Some(verdict(&verifier, &token(&provider_stub, &old, "ann")).await)).as_deref(),
        Some("ann")
    );
    provider_stub.publish(&[&new]);
    let key_requests = provider_stub.key_requests.get();
    let users: Vec<_> = (0..50).map(|index| token(&provider_stub, &new, &format!("user-{index}"))).collect();
    let all = join_all(users.iter().map(|token| verdict(&verifier, token))).await;
    assert!(all.iter().all(|verdict| matches!(verdict, Verification::Known(_))), "{all:?}");
    assert_eq!(provider_stub.key_requests.get(), key_requests + 1, "one request for all of them");
    clock.advance(OIDC_TOKEN_CACHE_TTL);
    assert!(matches!(
        verdict(&verifier, &token(&provider_stub, &old, "ann")).await,
        Verification::Refused(_)
    ));

    let key_requests = provider_stub.key_requests.get();
    for index in 0..30 {
        let refused = verdict(&verifier, &token(&provider_stub, &other, &format!("x{index}"))).await;
        assert!(matches!(refused, Verification::Refused(_)), "{refused:?}");
    }
    assert!(
        provider_stub.key_requests.get() - key_requests < OIDC_REFETCHES as usize + 1,
        "{}",
        provider_stub.key_requests.get() - key_requests
    );
    assert!(
        name(verify_now(&verifier, &token(&provider_stub, &new, "bob"))).is_some(),
        "other tokens are not affected"
    );
}

#[actix::test]
async fn openid_provider_that_starts_late_is_used() {
    let signer = Signer::fresh();
    let provider_stub = TestProvider::open(&[&signer]).await;
    provider_stub.respond("/.well-known/openid-configuration", TestResponse::Status(503));
    let (verifier, _) = verifier_with_provider(&provider_stub);
    let token = token(&provider_stub, &signer, "ann");
    let refused = verdict(&verifier, &token).await;
    assert_eq!(refused, Verification::Refused("oidc: authenticator not initialized".into()));
    provider_stub.publish(&[&signer]);
    assert_eq!(name(Some(verdict(&verifier, &token).await)).as_deref(), Some("ann"));
    provider_stub.respond("/keys", TestResponse::Status(503));
    assert!(name(verify_now(&verifier, &token)).is_some());
}

#[actix::test]
async fn stalled_openid_provider_delays_only_tokens_of_unknown_keys() {
    let (known, unknown) = (Signer::fresh(), Signer::fresh());
    let provider_stub = TestProvider::open(&[&known]).await;
    let (verifier, clock) = verifier_with_provider(&provider_stub);
    assert!(name(Some(verdict(&verifier, &token(&provider_stub, &known, "ann")).await)).is_some());
    provider_stub.respond("/keys", TestResponse::Stalls);
    let waiting = {
        let (verifier, token) = (Rc::clone(&verifier), token(&provider_stub, &unknown, "bob"));
        actix::spawn(async move { verdict(&verifier, &token).await })
    };
    let key_requests = provider_stub.key_requests.get();
    while provider_stub.key_requests.get() == key_requests {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    clock.advance(OIDC_TOKEN_CACHE_TTL);
    assert!(
        name(verify_now(&verifier, &token(&provider_stub, &known, "ann"))).is_some(),
        "verified without the cache"
    );
    assert!(!waiting.is_finished());
    waiting.abort();
}

proptest! {
    #[test]
    fn random_text_is_not_an_openid_token(text in "[a-zA-Z0-9_.=-]{0,120}") {
        let (verifier, _) = offline_verifier(&[ALL], &[]);
        prop_assert_eq!(verify_now(&verifier, &text), Some(Verification::NoOpinion));
    }
}
