use pilothouse_types::clock::Timestamp;
use serde_json::Value as Json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::kubeconfig::Access;
use crate::webhook::testing;

/// Asks a server that gives these answers, one per connection. Answers what that was asked, too.
async fn server(answers: Vec<(u16, String)>) -> (WebhookTokenVerifier, JoinHandle<Vec<Json>>, Clock) {
    let (place, asked) = testing::server(answers).await;
    let access = Access::to(format!("{place}/authenticate"));
    let settings = Settings {
        version: "v1".into(),
        kept_for: Duration::from_secs(120),
        audiences: ["us".to_owned(), "here".to_owned()].into(),
    };
    let clock = Clock::manual(Timestamp(1));
    let metrics = Arc::new(Metrics::new(Timestamp(1)).unwrap());
    let service = Service::alone(&access).unwrap();
    (WebhookTokenVerifier::new(service, settings, metrics, clock.clone()), asked, clock)
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
async fn whoever_is_known_elsewhere_is_known_here_for_a_while() {
    let user = json!({"username": "ann", "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}});
    let (verifier, asked, clock) = server(vec![
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
    assert!(all.iter().all(|other| *other == all[0]), "one question for all");
    assert_eq!(verdict(&verifier, "bad", &[]).await, Verification::NoOpinion);
    assert_eq!(verdict(&verifier, "bad", &[]).await, Verification::NoOpinion, "that is remembered too");
    clock.advance(Duration::from_secs(120));
    assert!(
        matches!(verdict(&verifier, "t", &[]).await, Verification::KnownFor(who) if who.identity.name == "bob")
    );
    let asked = asked.await.unwrap();
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[0]["apiVersion"], "authentication.k8s.io/v1");
    assert_eq!(asked[0]["spec"], json!({"token": "t", "audiences": ["us", "here"]}));
    assert!(verifier.0.open.lock().is_empty(), "nothing is left behind");
}

#[actix::test]
async fn a_token_counts_only_for_those_it_is_meant_for() {
    let known = |audiences: &[&str]| {
        review(&json!({"authenticated": true, "user": {"username": "ann"}, "audiences": audiences}))
    };
    let (verifier, asked, _) = server(vec![known(&["b", "x"]), known(&["z"]), known(&[]), known(&[])]).await;
    let for_whom = |verdict: Verification| match verdict {
        Verification::KnownFor(bearer) => bearer.audiences,
        other => panic!("{other:?}"),
    };
    assert_eq!(for_whom(verdict(&verifier, "t", &["a", "b"]).await), ["b"]);
    assert_eq!(verdict(&verifier, "t", &["c"]).await, Verification::NoOpinion, "another question");
    assert_eq!(for_whom(verdict(&verifier, "t", &["here", "d"]).await), ["here"], "it knows nothing of them");
    assert_eq!(verdict(&verifier, "t", &["e"]).await, Verification::NoOpinion);
    assert_eq!(asked.await.unwrap()[0]["spec"]["audiences"], json!(["a", "b"]));
}

#[actix::test]
async fn whoever_cannot_be_asked_or_lies_makes_nobody_known() {
    let other = json!({"kind": KIND, "apiVersion": "authentication.k8s.io/v1beta1", "status": {"authenticated": true}});
    let (verifier, asked, _) = server(vec![
        (500, String::new()),
        review(&json!({"error": "try later"})),
        review(&json!({"authenticated": true})),
        (200, other.to_string()),
        (200, "nonsense".into()),
        (200, "[".repeat(100_000)),
        (403, String::new()),
    ])
    .await;
    for why in [
        "try later",
        "no name",
        "is no TokenReview",
        "invalid response",
        "invalid response",
        "answered 403",
        "cannot be called",
    ] {
        let Verification::Refused(said) = verdict(&verifier, "t", &[]).await else { panic!("{why}") };
        assert!(said.contains(why), "{said}");
    }
    asked.await.unwrap();
}

#[actix::test]
async fn whoever_hangs_up_leaves_nothing_behind() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (verifier, ..) = server(Vec::new()).await;
    let access = Access::to(format!("http://{}", listener.local_addr().unwrap()));
    let mut inner = Arc::into_inner(verifier.0).unwrap();
    inner.service = Service::alone(&access).unwrap();
    let verifier = WebhookTokenVerifier(Arc::new(inner));
    let one = tokio::time::timeout(Duration::from_millis(50), verdict(&verifier, "t", &[]));
    let two = tokio::time::timeout(Duration::from_millis(100), verdict(&verifier, "t", &[]));
    let (one, two) = tokio::join!(one, two);
    assert!(one.is_err() && two.is_err(), "nobody answers");
    assert!(verifier.0.open.lock().is_empty());
}

#[test]
fn no_two_questions_look_the_same() {
    let of = |token: &str, audiences: &[&str]| {
        digest(token, &audiences.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(of("a", &["b"]), of("a", &["b"]));
    assert_ne!(of("a", &["b"]), of("ab", &[]));
    assert_ne!(of("a", &["b", "c"]), of("a", &["bc"]));
}
