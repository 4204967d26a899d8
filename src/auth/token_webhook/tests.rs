use pilothouse_client::kubeconfig::Access;
use pilothouse_client::upstream::pool::Pool;
use pilothouse_client::webhook::testing;
use pilothouse_types::clock::Timestamp;
use serde_json::Value as Json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;

/// A verifier of a server with these responses, one per connection, and the requests that the server receives.
async fn server(responses: Vec<(u16, String)>) -> (WebhookTokenVerifier, JoinHandle<Vec<Json>>, Clock) {
    let (url, requests) = testing::server(responses).await;
    let access = Access::to_server(format!("{url}/authenticate"));
    let settings = Settings {
        version: "v1".into(),
        cache_ttl: Duration::from_secs(120),
        audiences: ["us".to_owned(), "here".to_owned()].into(),
    };
    let clock = Clock::manual(Timestamp(1));
    let metrics = Arc::new(Metrics::new(Timestamp(1)).unwrap());
    let service = Service::new(&access, &Pool::new(Clock::system())).unwrap();
    (WebhookTokenVerifier::new(service, settings, metrics, clock.clone()), requests, clock)
}

fn review(status: &Json) -> (u16, String) {
    let review = json!({"kind": KIND, "apiVersion": "authentication.k8s.io/v1", "status": status});
    (200, review.to_string())
}

async fn verdict(verifier: &WebhookTokenVerifier, token: &str, audiences: &[&str]) -> Verification {
    let audiences = audiences.iter().copied().map(String::from).collect();
    let credentials = Credentials { bearer: Some(token.into()), audiences, ..Credentials::default() };
    match verifier.verify(&credentials) {
        Answer::Now(verdict) => verdict,
        Answer::Later(verdict) => verdict.await,
    }
}

#[actix::test]
async fn token_webhook_response_is_cached_and_shared() {
    let user = json!({"username": "ann", "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}});
    let (verifier, requests, clock) = server(vec![
        review(&json!({"authenticated": true, "user": user})),
        review(&json!({"authenticated": false})),
        review(&json!({"authenticated": true, "user": {"username": "bob"}})),
    ])
    .await;
    let all = futures::future::join_all((0..4).map(|_| verdict(&verifier, "t", &[]))).await;
    let Verification::KnownFor(Authenticated { identity, audiences, .. }) = &all[0] else {
        panic!("{:?}", all[0])
    };
    assert_eq!((identity.name.as_str(), identity.uid.as_str(), identity.is_in("g")), ("ann", "u", true));
    assert_eq!((&identity.extra["k"], audiences), (&vec!["v".to_owned()], &vec!["us".into(), "here".into()]));
    assert!(all.iter().all(|other| *other == all[0]), "one call for all");
    assert_eq!(verdict(&verifier, "bad", &[]).await, Verification::NoOpinion);
    assert_eq!(verdict(&verifier, "bad", &[]).await, Verification::NoOpinion, "that is cached, too");
    clock.advance(Duration::from_secs(120));
    assert!(
        matches!(verdict(&verifier, "t", &[]).await, Verification::KnownFor(user) if user.identity.name == "bob")
    );
    let requests = requests.await.unwrap();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0]["apiVersion"], "authentication.k8s.io/v1");
    assert_eq!(requests[0]["spec"], json!({"token": "t", "audiences": ["us", "here"]}));
    assert!(verifier.0.calls.lock().is_empty(), "no call is left");
}

#[actix::test]
async fn token_webhook_audiences_are_intersected() {
    let authenticated_for = |audiences: &[&str]| {
        review(&json!({"authenticated": true, "user": {"username": "ann"}, "audiences": audiences}))
    };
    let (verifier, requests, _) = server(vec![
        authenticated_for(&["b", "x"]),
        authenticated_for(&["z"]),
        authenticated_for(&[]),
        authenticated_for(&[]),
    ])
    .await;
    let audiences_of = |verdict: Verification| match verdict {
        Verification::KnownFor(authenticated) => authenticated.audiences,
        other => panic!("{other:?}"),
    };
    assert_eq!(audiences_of(verdict(&verifier, "t", &["a", "b"]).await), ["b"]);
    assert_eq!(verdict(&verifier, "t", &["c"]).await, Verification::NoOpinion, "another call");
    assert_eq!(
        audiences_of(verdict(&verifier, "t", &["here", "d"]).await),
        ["here"],
        "the webhook returns no audiences"
    );
    assert_eq!(verdict(&verifier, "t", &["e"]).await, Verification::NoOpinion);
    assert_eq!(requests.await.unwrap()[0]["spec"]["audiences"], json!(["a", "b"]));
}

#[actix::test]
async fn token_webhook_failure_or_invalid_response_refuses_token() {
    let other = json!({"kind": KIND, "apiVersion": "authentication.k8s.io/v1beta1", "status": {"authenticated": true}});
    let (verifier, requests, _) = server(vec![
        (500, String::new()),
        review(&json!({"error": "try later"})),
        review(&json!({"authenticated": true})),
        (200, other.to_string()),
        (200, "nonsense".into()),
        (200, "[".repeat(100_000)),
        (403, String::new()),
    ])
    .await;
    for expected in [
        "try later",
        "has no name",
        "is not a TokenReview",
        "invalid response",
        "invalid response",
        "unexpected HTTP status 403",
        "cannot be called",
    ] {
        let Verification::Refused(reason) = verdict(&verifier, "t", &[]).await else { panic!("{expected}") };
        assert!(reason.contains(expected), "{reason}");
    }
    requests.await.unwrap();
}

#[actix::test]
async fn cancelled_token_webhook_call_is_removed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (verifier, ..) = server(Vec::new()).await;
    let access = Access::to_server(format!("http://{}", listener.local_addr().unwrap()));
    let mut inner = Arc::into_inner(verifier.0).unwrap();
    inner.service = Service::new(&access, &Pool::new(Clock::system())).unwrap();
    let verifier = WebhookTokenVerifier(Arc::new(inner));
    let first = tokio::time::timeout(Duration::from_millis(50), verdict(&verifier, "t", &[]));
    let second = tokio::time::timeout(Duration::from_millis(100), verdict(&verifier, "t", &[]));
    let (first, second) = tokio::join!(first, second);
    assert!(first.is_err() && second.is_err(), "the server does not respond");
    assert!(verifier.0.calls.lock().is_empty());
}

#[test]
fn token_webhook_cache_keys_are_unambiguous() {
    let key = |token: &str, audiences: &[&str]| {
        digest(token, &audiences.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(key("a", &["b"]), key("a", &["b"]));
    assert_ne!(key("a", &["b"]), key("ab", &[]));
    assert_ne!(key("a", &["b", "c"]), key("a", &["bc"]));
}
