use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier as _};
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::identity::Credentials;
use serde_json::{Value, json};

use super::super::provider::trust_anchors;
use super::super::test_provider::{NOW, Signer, TestProvider, TestResponse, claims, flags};
use super::super::tests::open_id_tokens;
use super::super::{OpenIdTokens, Provider, Shared};
use super::*;
use crate::limits::{OIDC_CLAIM_FAILURE_TTL, OIDC_TOKEN_CACHE_TTL};

/// A verifier of the first provider's tokens that trusts the certificates of all of them.
async fn verifier(providers: &[&TestProvider]) -> (Rc<OpenIdTokens>, Clock) {
    let clock = Clock::manual(Timestamp(NOW * 1_000_000));
    let more = ["--oidc-signing-algs=ES256", "--oidc-groups-claim=groups", "--oidc-groups-prefix=oidc:"];
    let rules = ClaimMapping::new(&flags(&providers[0].issuer, &more)).unwrap();
    let keys = Arc::new(Keys::new(clock.clone()));
    let pem: Vec<u8> = providers.iter().flat_map(|provider| provider.authority_pem.clone()).collect();
    let anchors = trust_anchors(Some(pem)).unwrap();
    let provider = Provider::new(&rules, anchors.clone(), keys.clone(), &Pool::new(Clock::system())).unwrap();
    actix::spawn(provider.run());
    keys.wait_until_available().await;
    (Rc::new(open_id_tokens(rules, keys, anchors, &clock)), clock)
}

async fn verify(verifier: &OpenIdTokens, token: &str) -> Verification {
    let credentials = Credentials { bearer: Some(token.to_owned()), ..Credentials::default() };
    match verifier.verify(&credentials) {
        Answer::Now(verdict) => verdict,
        Answer::Later(verdict) => verdict.await,
    }
}

/// A token of a user whose groups are at `endpoint`.
fn distributed_token(issuer: &str, signer: &Signer, source: &Value) -> String {
    let changes = json!({"_claim_names": {"groups": "src"}, "_claim_sources": {"src": source}});
    signer.sign(&claims(issuer, &changes))
}

fn groups(verdict: &Verification) -> &[String] {
    let Verification::Known(identity) = verdict else { panic!("{verdict:?}") };
    &identity.groups
}

fn reason(verdict: &Verification) -> &str {
    let Verification::Refused(reason) = verdict else { panic!("{verdict:?}") };
    reason
}

#[actix::test]
async fn distributed_groups_are_fetched_with_their_access_token_and_cached() {
    let signer = Signer::fresh();
    let stub = TestProvider::open(&[&signer]).await;
    let (verifier, clock) = verifier(&[&stub]).await;
    let claim_token = signer.sign(&claims(&stub.issuer, &json!({"groups": ["a", "b"]})));
    stub.respond("/groups", TestResponse::Document(claim_token));
    let endpoint = format!("{}/groups", stub.issuer);
    let token =
        distributed_token(&stub.issuer, &signer, &json!({"endpoint": endpoint, "access_token": "s3cret"}));
    assert_eq!(groups(&verify(&verifier, &token).await), ["oidc:a", "oidc:b"]);
    let head = stub.head_of("/groups").expect("the endpoint was called");
    assert!(head.contains("Authorization: Bearer s3cret\r\n"), "{head}");
    assert!(!head.contains("application/json"), "it answers with a token: {head}");

    // Nobody calls again while the result is remembered.
    stub.respond("/groups", TestResponse::Status(500));
    assert_eq!(groups(&verify(&verifier, &token).await).len(), 2);
    clock.advance(OIDC_TOKEN_CACHE_TTL);
    assert!(reason(&verify(&verifier, &token).await).contains("unexpected HTTP status 500"));

    // Without an access token there is no header, and a single group may be a string.
    let claim_token = signer.sign(&claims(&stub.issuer, &json!({"groups": "c"})));
    stub.respond("/groups", TestResponse::Document(format!("{claim_token}\n")));
    let token = distributed_token(&stub.issuer, &signer, &json!({"endpoint": endpoint}));
    assert_eq!(groups(&verify(&verifier, &token).await), ["oidc:c"]);
    assert!(!stub.head_of("/groups").unwrap().contains("Authorization:"));
}

#[actix::test]
async fn distributed_groups_of_another_issuer_are_verified_by_its_keys() {
    let (signer, other_signer) = (Signer::fresh(), Signer::fresh());
    let (stub, other) = (TestProvider::open(&[&signer]).await, TestProvider::open(&[&other_signer]).await);
    let (verifier, clock) = verifier(&[&stub, &other]).await;
    let endpoint = format!("{}/groups", other.issuer);
    let token = distributed_token(&stub.issuer, &signer, &json!({"endpoint": endpoint}));
    for (claim_signer, accepted) in [(&other_signer, true), (&signer, false)] {
        let claim_token = claim_signer.sign(&claims(&other.issuer, &json!({"groups": ["x"]})));
        other.respond("/groups", TestResponse::Document(claim_token));
        let verdict = verify(&verifier, &token).await;
        match accepted {
            true => assert_eq!(groups(&verdict), ["oidc:x"]),
            false => assert!(reason(&verdict).contains("verify distributed claim token"), "{verdict:?}"),
        }
        clock.advance(OIDC_TOKEN_CACHE_TTL);
    }
    // Keys that rotate are fetched again.
    let rotated = Signer::fresh();
    other.publish(&[&rotated]);
    let claim_token = rotated.sign(&claims(&other.issuer, &json!({"groups": ["y"]})));
    other.respond("/groups", TestResponse::Document(claim_token));
    assert_eq!(groups(&verify(&verifier, &token).await), ["oidc:y"]);
}

#[actix::test]
async fn distributed_groups_that_cannot_be_verified_refuse_the_token() {
    let (signer, unknown) = (Signer::fresh(), Signer::fresh());
    let stub = TestProvider::open(&[&signer]).await;
    let (verifier, _) = verifier(&[&stub]).await;
    let endpoint = format!("{}/groups", stub.issuer);
    let signed = |signer: &Signer, changes: Value| {
        TestResponse::Document(signer.sign(&claims(&stub.issuer, &changes)))
    };
    for (response, expected) in [
        (TestResponse::Status(302), "unexpected HTTP status 302"),
        (TestResponse::Grows, "response body too large"),
        (TestResponse::Document("{}".to_owned()), "malformed token"),
        (signed(&signer, json!({"groups": ["a"], "aud": "d"})), "expected audience"),
        (signed(&signer, json!({"groups": ["a"], "exp": NOW - 1})), "token is expired"),
        (
            signed(&signer, json!({"groups": ["a"], "iss": stub.issuer.replace("https:", "http:")})),
            "neither the provider nor",
        ),
        (signed(&signer, json!({"groups": ["a"], "iss": "https://127.0.0.1:1"})), "neither the provider nor"),
        (
            signed(&signer, json!({"groups": ["a"], "iss": format!("{}/none", stub.issuer)})),
            "verifier not initialized",
        ),
        (signed(&signer, json!({"other": ["a"]})), "did not contain claim: groups"),
        (signed(&signer, json!({"groups": 7})), "neither a string nor a list"),
        (signed(&unknown, json!({"groups": ["a"]})), "failed to verify signature"),
    ] {
        stub.respond("/groups", response);
        let token = distributed_token(&stub.issuer, &signer, &json!({"endpoint": endpoint}));
        let verdict = verify(&verifier, &token).await;
        assert!(reason(&verdict).contains(expected), "{expected}: {verdict:?}");
    }
    let plain = endpoint.replace("https://", "http://");
    for (source, expected) in [
        (json!({"endpoint": plain, "access_token": "t"}), "is not an https URL"),
        (json!({"endpoint": "https://127.0.0.1:1/x"}), "while getting distributed claim \"groups\""),
        (json!({"JWT": "a.b.c"}), "aggregated claims are not supported"),
        (json!({"endpoint": 7}), "_claim_sources"),
    ] {
        let verdict = verify(&verifier, &distributed_token(&stub.issuer, &signer, &source)).await;
        assert!(reason(&verdict).contains(expected), "{source}: {verdict:?}");
    }
}

#[actix::test]
async fn stalled_claim_endpoint_delays_only_its_token_and_waiting_tokens_are_bounded() {
    let signer = Signer::fresh();
    let stub = TestProvider::open(&[&signer]).await;
    let (verifier, _) = verifier(&[&stub]).await;
    stub.respond("/groups", TestResponse::Stalls);
    let endpoint = format!("{}/groups", stub.issuer);
    let token = distributed_token(&stub.issuer, &signer, &json!({"endpoint": endpoint}));
    let waiting = {
        let (verifier, token) = (Rc::clone(&verifier), token.clone());
        actix::spawn(async move { verify(&verifier, &token).await })
    };
    while stub.head_of("/groups").is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let plain = signer.sign(&claims(&stub.issuer, &json!({})));
    assert!(matches!(verify(&verifier, &plain).await, Verification::Known(_)));
    assert!(!waiting.is_finished());
    waiting.abort();
    let _gone = waiting.await;

    let resolver = &verifier.0.resolver;
    let all = resolver
        .waiting
        .try_acquire_many(u32::try_from(OIDC_CLAIM_WAITING).unwrap())
        .expect("none waits any more");
    assert!(reason(&verify(&verifier, &token).await).contains("too many tokens wait"));
    drop(all);
}

#[actix::test]
async fn waiting_token_uses_the_result_of_an_equal_one() {
    let signer = Signer::fresh();
    let stub = TestProvider::open(&[&signer]).await;
    let (verifier, _) = verifier(&[&stub]).await;
    let claim_token = signer.sign(&claims(&stub.issuer, &json!({"groups": ["a"]})));
    stub.respond("/groups", TestResponse::Document(claim_token));
    let endpoint = format!("{}/groups", stub.issuer);
    let token = distributed_token(&stub.issuer, &signer, &json!({"endpoint": endpoint}));
    // One call at a time, so that all but the first wait.
    let others =
        verifier.0.resolver.calls.try_acquire_many(u32::try_from(OIDC_CLAIM_CALLS).unwrap() - 1).unwrap();
    let all = futures::future::join_all((0..20).map(|_| verify(&verifier, &token))).await;
    assert!(all.iter().all(|verdict| groups(verdict) == ["oidc:a"]));
    assert_eq!(stub.count_of("/groups"), 1);
    drop(others);
}

#[actix::test]
async fn issuer_elsewhere_than_its_endpoint_is_not_asked_for_keys() {
    const METADATA: &str = "/.well-known/openid-configuration";
    let (signer, inside_signer) = (Signer::fresh(), Signer::fresh());
    let stub = TestProvider::open(&[&signer]).await;
    // A server that only this server reaches, with the claims that an attacker wants.
    let inside = TestProvider::open(&[&inside_signer]).await;
    let hostile = TestProvider::open(&[&signer]).await;
    let (verifier, _) = verifier(&[&stub, &inside, &hostile]).await;
    let endpoint = format!("{}/groups", hostile.issuer);
    let refused_for = async |reason_part: &str| {
        let token = distributed_token(&stub.issuer, &signer, &json!({"endpoint": endpoint}));
        let verdict = verify(&verifier, &token).await;
        assert!(reason(&verdict).contains(reason_part), "{reason_part}: {verdict:?}");
    };
    let claim_token = inside_signer.sign(&claims(&inside.issuer, &json!({"groups": ["admins"]})));
    hostile.respond("/groups", TestResponse::Document(claim_token));
    refused_for("neither the provider nor at the https host of the endpoint").await;
    assert_eq!(inside.count_of(METADATA), 0, "nobody asked");

    // Nor does the document of an issuer lead elsewhere.
    let metadata = json!({"issuer": hostile.issuer, "jwks_uri": format!("{}/keys", inside.issuer)});
    hostile.respond(METADATA, TestResponse::Document(metadata.to_string()));
    let claim_token = inside_signer.sign(&claims(&hostile.issuer, &json!({"groups": ["admins"]})));
    hostile.respond("/groups", TestResponse::Document(claim_token));
    refused_for("verifier not initialized").await;
    assert!(hostile.count_of(METADATA) > 0);
    assert_eq!(inside.key_requests.get(), 0, "nobody asked");
}

#[actix::test]
async fn token_whose_claims_cannot_be_resolved_causes_one_call_for_some_time() {
    let (signer, unknown) = (Signer::fresh(), Signer::fresh());
    let stub = TestProvider::open(&[&signer]).await;
    let (verifier, clock) = verifier(&[&stub]).await;
    let endpoint = format!("{}/groups", stub.issuer);
    let document = |signer: &Signer, changes: Value| {
        TestResponse::Document(signer.sign(&claims(&stub.issuer, &changes)))
    };
    let responses = [
        TestResponse::Status(500),
        document(&unknown, json!({"groups": ["a"]})),
        document(&signer, json!({"groups": 7})),
    ];
    for response in responses {
        let calls = stub.count_of("/groups");
        stub.respond("/groups", response);
        let token = distributed_token(&stub.issuer, &signer, &json!({"endpoint": endpoint}));
        let first = verify(&verifier, &token).await;
        assert_eq!(verify(&verifier, &token).await, first);
        assert_eq!(stub.count_of("/groups"), calls + 1, "{first:?}");
        stub.respond("/groups", document(&signer, json!({"groups": ["a"]})));
        assert_eq!(verify(&verifier, &token).await, first, "for a while");
        clock.advance(OIDC_CLAIM_FAILURE_TTL);
        assert_eq!(groups(&verify(&verifier, &token).await), ["oidc:a"], "not for good");
    }
}

#[actix::test]
async fn issuers_of_claims_are_bounded_and_those_that_have_verified_stay() {
    let stub = TestProvider::open(&[&Signer::fresh()]).await;
    let (verifier, clock) = verifier(&[&stub]).await;
    let Shared { resolver, rules, .. } = &*verifier.0;
    let issuer_name = |name: &str| format!("https://127.0.0.1:1/{name}");
    let use_issuer = |name: &str| {
        clock.advance(Duration::from_millis(1));
        let used = resolver.keys_of_issuer(rules, &issuer_name(name), "https://127.0.0.1:1/groups").unwrap();
        used.issuer.expect("it is not the provider")
    };
    let is_kept =
        |name: &str| resolver.issuers.lock().iter().any(|(issuer, _)| issuer.name == issuer_name(name));
    for name in ["good", "better"] {
        let issuer = use_issuer(name);
        assert!(Arc::ptr_eq(&issuer, &use_issuer(name)), "its keys are fetched once");
        resolver.keep_verified(issuer);
    }
    // A flood of issuers that never verify anything.
    for index in 0..4 * OIDC_CLAIM_ISSUERS {
        use_issuer(&index.to_string());
    }
    assert_eq!(resolver.issuers.lock().len(), OIDC_CLAIM_ISSUERS);
    assert!(is_kept("good") && is_kept("better"));
    assert!(!is_kept("0") && is_kept(&(4 * OIDC_CLAIM_ISSUERS - 1).to_string()), "used longest ago first");

    // If all have verified claims, only another such issuer replaces one.
    for index in 0..OIDC_CLAIM_ISSUERS {
        resolver.keep_verified(use_issuer(&format!("verified-{index}")));
    }
    assert!(!is_kept("good"), "it was used longest ago");
    let newcomer = use_issuer("newcomer");
    assert!(!is_kept("newcomer") && is_kept("verified-0"));
    resolver.keep_verified(newcomer);
    assert!(is_kept("newcomer") && !is_kept("verified-0"));
    assert_eq!(resolver.issuers.lock().len(), OIDC_CLAIM_ISSUERS);
}
