use pilothouse_types::clock::{Clock, Timestamp};
use serde_json::json;

use super::super::test_provider::{Signer, TestProvider, TestResponse, flags};
use super::*;

const METADATA: &str = "/.well-known/openid-configuration";

fn rules(stub: &TestProvider) -> ClaimMapping {
    ClaimMapping::new(&flags(&stub.issuer, &["--oidc-signing-algs=ES256,RS256"])).unwrap()
}

fn provider(stub: &TestProvider, authority_pem: Option<Vec<u8>>) -> (Provider, Arc<Keys>) {
    let keys = Arc::new(Keys::new(Clock::manual(Timestamp(1))));
    let mut provider = Provider::new(
        &rules(stub),
        trust_anchors(authority_pem).unwrap(),
        keys.clone(),
        &Pool::new(Clock::system()),
    )
    .unwrap();
    provider.document_timeout = Duration::from_millis(500);
    (provider, keys)
}

#[actix::test]
async fn openid_keys_are_fetched_from_discovered_jwks_uri() {
    let (first, other) = (Signer::fresh(), Signer::new(Algorithm::Rs256));
    let stub = TestProvider::open(&[&first, &other]).await;
    let (mut provider, keys) = provider(&stub, Some(stub.authority_pem.clone()));
    assert!(keys.key_set().is_none());
    provider.attempt().await.unwrap();
    let key_ids =
        |keys: &Keys| keys.key_set().unwrap().keys().iter().map(|key| key.id.clone()).collect::<Vec<_>>();
    assert_eq!(key_ids(&keys), [first.jwk["kid"].as_str().unwrap(), other.jwk["kid"].as_str().unwrap()]);

    // The discovery document is not fetched again until an attempt fails.
    stub.respond(METADATA, TestResponse::Status(500));
    stub.publish(&[&other]);
    stub.respond(METADATA, TestResponse::Status(500));
    provider.attempt().await.unwrap();
    assert_eq!(key_ids(&keys).len(), 1);
    stub.respond("/keys", TestResponse::Status(404));
    assert_eq!(provider.attempt().await, Err("unexpected HTTP status 404".to_owned()));
    assert_eq!(provider.attempt().await, Err("unexpected HTTP status 500".to_owned()));
    assert_eq!(key_ids(&keys).len(), 1, "the old keys stay valid");
    let moved = json!({"issuer": stub.issuer, "jwks_uri": format!("{}/moved", stub.issuer)});
    stub.respond(METADATA, TestResponse::Document(moved.to_string()));
    stub.respond("/moved", TestResponse::Document(json!({"keys": [first.jwk, other.jwk]}).to_string()));
    provider.attempt().await.unwrap();
    assert_eq!(key_ids(&keys).len(), 2);
}

#[actix::test]
async fn invalid_or_endless_openid_documents_are_refused() {
    let stub = TestProvider::open(&[&Signer::fresh()]).await;
    let document = |value: serde_json::Value| TestResponse::Document(value.to_string());
    let keys_at = |uri: &str| document(json!({"issuer": stub.issuer, "jwks_uri": uri}));
    let jwks_uri = format!("{}/keys", stub.issuer);
    for (metadata, key_response, expected) in [
        (
            document(json!({"issuer": "https://other.test", "jwks_uri": jwks_uri})),
            None,
            "issuer did not match",
        ),
        (
            document(json!({"issuer": format!("{}/", stub.issuer), "jwks_uri": jwks_uri})),
            None,
            "did not match",
        ),
        (document(json!({"jwks_uri": jwks_uri})), None, "issuer did not match"),
        (keys_at(&jwks_uri.replace("https:", "http:")), None, "not published over https"),
        (keys_at(""), None, "not published over https"),
        (document(json!(5)), None, "failed to decode provider discovery object"),
        (TestResponse::Document("<html>".into()), None, "failed to decode provider discovery object"),
        (TestResponse::Status(503), None, "unexpected HTTP status 503"),
        (TestResponse::Status(302), None, "unexpected HTTP status 302"),
        (TestResponse::Stalls, None, "no response within"),
        (TestResponse::Grows, None, "too large"),
        (keys_at(&jwks_uri), Some(TestResponse::Stalls), "no response within"),
        (keys_at(&jwks_uri), Some(TestResponse::Grows), "too large"),
        (keys_at(&jwks_uri), Some(TestResponse::Status(500)), "unexpected HTTP status 500"),
        (keys_at(&jwks_uri), Some(document(json!({"keys": 5}))), "failed to decode keys"),
        (keys_at(&jwks_uri), Some(document(json!({}))), "failed to decode keys"),
    ] {
        stub.respond(METADATA, metadata);
        if let Some(key_response) = key_response {
            stub.respond("/keys", key_response);
        }
        let (mut provider, keys) = provider(&stub, Some(stub.authority_pem.clone()));
        let error = provider.attempt().await.unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(keys.key_set().is_none());
    }
}

#[actix::test]
async fn openid_discovery_url_may_differ_from_issuer() {
    let stub = TestProvider::open(&[&Signer::fresh()]).await;
    let discovery = |issuer: &str| {
        TestResponse::Document(
            json!({"issuer": issuer, "jwks_uri": format!("{}/keys", stub.issuer)}).to_string(),
        )
    };
    stub.respond(METADATA, TestResponse::Status(404));
    stub.respond("/inside", discovery(&stub.issuer));
    let mut rules = rules(&stub);
    rules.discovery = Some(format!("{}/inside", stub.issuer));
    let keys = Arc::new(Keys::new(Clock::manual(Timestamp(1))));
    let (anchors, pool) =
        (trust_anchors(Some(stub.authority_pem.clone())).unwrap(), Pool::new(Clock::system()));
    let mut provider = Provider::new(&rules, anchors.clone(), keys.clone(), &pool).unwrap();
    provider.attempt().await.unwrap();
    assert_eq!(keys.key_set().unwrap().keys().len(), 1);
    // The document must still name the issuer of the tokens.
    stub.respond("/inside", discovery(&format!("{}/inside", stub.issuer)));
    let mut provider = Provider::new(&rules, anchors, keys, &pool).unwrap();
    assert!(provider.attempt().await.unwrap_err().contains("issuer did not match"));
}

#[actix::test]
async fn openid_provider_certificate_is_verified() {
    let stub = TestProvider::open(&[&Signer::fresh()]).await;
    let other = TestProvider::open(&[]).await;
    for authority in [None, Some(other.authority_pem.clone())] {
        let (mut provider, _) = provider(&stub, authority);
        let error = provider.attempt().await.unwrap_err();
        assert!(error.contains("failed to verify certificate"), "{error}");
    }
    for (pem, expected) in [("", "does not contain any valid"), ("no PEM", "does not contain any valid")] {
        let refused = trust_anchors(Some(pem.into())).err().unwrap();
        assert!(refused.contains(expected), "{pem}: {refused}");
    }
}

#[test]
fn unusable_openid_keys_are_skipped() {
    let usable = Signer::fresh().jwk;
    let unusable = [
        json!(5),
        json!({"kty": "new"}),
        json!({"kty": "oct", "k": "c2VjcmV0"}),
        json!({"kty": "RSA", "n": "AQ", "e": "AQAB"}),
    ];
    let all: Vec<_> = unusable.into_iter().chain([usable.clone()]).collect();
    let parsed = key_set(json!({"keys": all}).to_string().as_bytes(), &Algorithm::ALL).unwrap();
    assert_eq!(parsed.keys().len(), 1);
    let many = vec![usable; OIDC_KEYS + 20];
    let parsed = key_set(json!({"keys": many}).to_string().as_bytes(), &Algorithm::ALL).unwrap();
    assert_eq!(parsed.keys().len(), OIDC_KEYS);
    assert_eq!(key_set(br#"{"keys":[]}"#, &Algorithm::ALL).unwrap().keys().len(), 0);
}

#[test]
fn urls_have_the_same_origin_if_host_and_port_are_equal() {
    for (url, other, expected) in [
        ("https://a.test/x", "https://A.test:443/y?z", true),
        ("https://a.test:8443", "https://a.test:8443/groups", true),
        ("https://a.test:8443", "https://a.test/groups", false),
        ("https://a.test", "https://b.test", false),
        ("https://a.test", "https://a.test.b.test", false),
        ("https://a.test@b.test", "https://a.test", false),
        ("http://a.test:443", "https://a.test", false),
        ("http://a.test", "http://a.test", false),
        ("", "", false),
        ("no url", "no url", false),
    ] {
        assert_eq!(is_same_origin(url, other), expected, "{url} {other}");
    }
}
