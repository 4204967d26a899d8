use pilothouse_types::clock::{Clock, Timestamp};
use serde_json::json;

use super::super::test_provider::{Signer, TestProvider, TestResponse, flags};
use super::*;

const METADATA: &str = "/.well-known/openid-configuration";

fn rules(stage: &TestProvider) -> ClaimMapping {
    ClaimMapping::new(&flags(&stage.issuer, &["--oidc-signing-algs=ES256,RS256"])).unwrap()
}

fn provider(stage: &TestProvider, authority_pem: Option<Vec<u8>>) -> (Provider, Arc<Keys>) {
    let keys = Arc::new(Keys::new(Clock::manual(Timestamp(1))));
    let mut provider = Provider::new(&rules(stage), authority_pem, keys.clone()).unwrap();
    provider.document_within = Duration::from_millis(500);
    (provider, keys)
}

#[actix::test]
async fn the_keys_are_where_the_provider_says() {
    let (one, other) = (Signer::fresh(), Signer::new(Algorithm::Rs256));
    let stage = TestProvider::open(&[&one, &other]).await;
    let (mut provider, keys) = provider(&stage, Some(stage.authority_pem.clone()));
    assert!(keys.ring().is_none());
    provider.attempt().await.unwrap();
    let names =
        |keys: &Keys| keys.ring().unwrap().keys().iter().map(|key| key.id.clone()).collect::<Vec<_>>();
    assert_eq!(
        names(&keys),
        [one.published["kid"].as_str().unwrap(), other.published["kid"].as_str().unwrap()]
    );

    // Once it is known where they are nobody looks for that again, until something goes wrong.
    stage.say(METADATA, TestResponse::Status(500));
    stage.publish(&[&other]);
    stage.say(METADATA, TestResponse::Status(500));
    provider.attempt().await.unwrap();
    assert_eq!(names(&keys).len(), 1);
    stage.say("/keys", TestResponse::Status(404));
    assert_eq!(provider.attempt().await, Err("the server answered 404".to_owned()));
    assert_eq!(provider.attempt().await, Err("the server answered 500".to_owned()));
    assert_eq!(names(&keys).len(), 1, "what was known before still counts");
    let moved = json!({"issuer": stage.issuer, "jwks_uri": format!("{}/moved", stage.issuer)});
    stage.say(METADATA, TestResponse::Document(moved.to_string()));
    stage
        .say("/moved", TestResponse::Document(json!({"keys": [one.published, other.published]}).to_string()));
    provider.attempt().await.unwrap();
    assert_eq!(names(&keys).len(), 2);
}

#[actix::test]
async fn what_makes_no_sense_or_no_end_is_not_taken() {
    let stage = TestProvider::open(&[&Signer::fresh()]).await;
    let document = |value: serde_json::Value| TestResponse::Document(value.to_string());
    let keys_at = |place: &str| document(json!({"issuer": stage.issuer, "jwks_uri": place}));
    let here = format!("{}/keys", stage.issuer);
    for (metadata, published, part) in [
        (document(json!({"issuer": "https://other.test", "jwks_uri": here})), None, "issuer did not match"),
        (document(json!({"issuer": format!("{}/", stage.issuer), "jwks_uri": here})), None, "did not match"),
        (document(json!({"jwks_uri": here})), None, "issuer did not match"),
        (keys_at(&here.replace("https:", "http:")), None, "not published over https"),
        (keys_at(""), None, "not published over https"),
        (document(json!(5)), None, "failed to decode provider discovery object"),
        (TestResponse::Document("<html>".into()), None, "failed to decode provider discovery object"),
        (TestResponse::Status(503), None, "answered 503"),
        (TestResponse::Status(302), None, "answered 302"),
        (TestResponse::Stalls, None, "no answer within"),
        (TestResponse::Grows, None, "too long"),
        (keys_at(&here), Some(TestResponse::Stalls), "no answer within"),
        (keys_at(&here), Some(TestResponse::Grows), "too long"),
        (keys_at(&here), Some(TestResponse::Status(500)), "answered 500"),
        (keys_at(&here), Some(document(json!({"keys": 5}))), "failed to decode keys"),
        (keys_at(&here), Some(document(json!({}))), "failed to decode keys"),
    ] {
        stage.say(METADATA, metadata);
        if let Some(published) = published {
            stage.say("/keys", published);
        }
        let (mut provider, keys) = provider(&stage, Some(stage.authority_pem.clone()));
        let why = provider.attempt().await.unwrap_err();
        assert!(why.contains(part), "{part}: {why}");
        assert!(keys.ring().is_none());
    }
}

#[actix::test]
async fn a_provider_may_tell_of_itself_at_another_place() {
    let stage = TestProvider::open(&[&Signer::fresh()]).await;
    let told = |issuer: &str| {
        TestResponse::Document(
            json!({"issuer": issuer, "jwks_uri": format!("{}/keys", stage.issuer)}).to_string(),
        )
    };
    stage.say(METADATA, TestResponse::Status(404));
    stage.say("/inside", told(&stage.issuer));
    let mut rules = rules(&stage);
    rules.discovery = Some(format!("{}/inside", stage.issuer));
    let keys = Arc::new(Keys::new(Clock::manual(Timestamp(1))));
    let mut provider = Provider::new(&rules, Some(stage.authority_pem.clone()), keys.clone()).unwrap();
    provider.attempt().await.unwrap();
    assert_eq!(keys.ring().unwrap().keys().len(), 1);
    // It must still be the one that tokens name.
    stage.say("/inside", told(&format!("{}/inside", stage.issuer)));
    let mut provider = Provider::new(&rules, Some(stage.authority_pem.clone()), keys).unwrap();
    assert!(provider.attempt().await.unwrap_err().contains("issuer did not match"));
}

#[actix::test]
async fn a_provider_must_prove_who_it_is() {
    let stage = TestProvider::open(&[&Signer::fresh()]).await;
    let other = TestProvider::open(&[]).await;
    for authority in [None, Some(other.authority_pem.clone())] {
        let (mut provider, _) = provider(&stage, authority);
        let why = provider.attempt().await.unwrap_err();
        assert!(why.contains("failed to verify certificate"), "{why}");
    }
    for (pem, part) in [("", "does not contain any valid"), ("no PEM", "does not contain any valid")] {
        let keys = Arc::new(Keys::new(Clock::manual(Timestamp(1))));
        let refused = Provider::new(&rules(&stage), Some(pem.into()), keys).err().unwrap();
        assert!(refused.contains(part), "{pem}: {refused}");
    }
}

#[test]
fn keys_that_are_of_no_use_cost_the_others_nothing() {
    let good = Signer::fresh().published;
    let odd = [
        json!(5),
        json!({"kty": "new"}),
        json!({"kty": "oct", "k": "c2VjcmV0"}),
        json!({"kty": "RSA", "n": "AQ", "e": "AQAB"}),
    ];
    let all: Vec<_> = odd.into_iter().chain([good.clone()]).collect();
    let found = ring(json!({"keys": all}).to_string().as_bytes(), &Algorithm::ALL).unwrap();
    assert_eq!(found.keys().len(), 1);
    let many = vec![good; OIDC_KEYS + 20];
    let found = ring(json!({"keys": many}).to_string().as_bytes(), &Algorithm::ALL).unwrap();
    assert_eq!(found.keys().len(), OIDC_KEYS);
    assert_eq!(ring(br#"{"keys":[]}"#, &Algorithm::ALL).unwrap().keys().len(), 0);
}
