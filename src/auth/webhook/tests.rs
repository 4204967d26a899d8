use pilothouse_client::kubeconfig::Access;
use pilothouse_client::upstream::pool::Pool;
use pilothouse_client::webhook::testing;
use pilothouse_types::clock::Timestamp;

use super::*;
use crate::metrics::Metrics;

/// An authorizer of a server with these responses, one per connection, and the requests that the server receives.
async fn server(
    responses: Vec<(u16, String)>,
) -> (WebhookAuthorizer, tokio::task::JoinHandle<Vec<Json>>, Clock) {
    let (url, requests) = testing::server(responses).await;
    let access = Access::to_server(format!("{url}/authorize"));
    let settings = Settings {
        version: "v1".into(),
        authorized_ttl: Duration::from_secs(300),
        unauthorized_ttl: Duration::from_secs(30),
        timeout: Duration::from_secs(5),
        denies_on_failure: false,
        conditions: Vec::new(),
    };
    let clock = Clock::manual(Timestamp(1));
    let meter = Metrics::new(Timestamp(0)).unwrap().authorization.webhook("w");
    let policy = WebhookAuthorizer::new(
        Service::new(&access, &Pool::new(Clock::system())).unwrap(),
        settings,
        clock.clone(),
        meter,
    );
    (policy, requests, clock)
}

async fn judge(policy: &WebhookAuthorizer, path: &str) -> ExplainedDecision {
    let identity = Identity { name: "u".into(), groups: vec!["g".into()], ..Identity::default() };
    let action = Action { verb: "get".into(), target: Target::Path(path.into()) };
    match policy.judge(&identity, &action, &Selection::default()) {
        Answer::Now(verdict) => verdict,
        Answer::Later(verdict) => verdict.await,
    }
}

fn status(status: &str) -> (u16, String) {
    (200, format!(r#"{{"status":{status}}}"#))
}

#[actix::test]
async fn authorization_webhook_response_is_cached() {
    let responses = vec![
        status(r#"{"allowed":true,"reason":"fine"}"#),
        status(r#"{"allowed":false,"denied":true,"reason":"never"}"#),
        status(r#"{"allowed":true,"denied":true}"#),
        status(r#"{"allowed":false}"#),
    ];
    let (policy, requests, clock) = server(responses).await;
    let allowed = judge(&policy, "/a").await;
    assert_eq!((allowed.decision.clone(), allowed.reason().as_str()), (Decision::Allowed, "fine"));
    assert_eq!(judge(&policy, "/a").await.decision, Decision::Allowed, "not called again");
    assert_eq!(judge(&policy, "/b").await.decision, Decision::Denied("never".into()));
    let contradicting = judge(&policy, "/c").await;
    assert!(
        matches!(contradicting.decision, Decision::Denied(_)) && contradicting.error.is_some(),
        "deny wins"
    );
    clock.advance(Duration::from_secs(60));
    assert_eq!(judge(&policy, "/a").await.decision, Decision::Allowed);
    assert_eq!(judge(&policy, "/b").await.decision, Decision::NoOpinion(String::new()), "called again");
    let requests = requests.await.unwrap();
    assert_eq!(requests.len(), 4);
    assert_eq!(requests[0]["apiVersion"], "authorization.k8s.io/v1");
    assert_eq!(
        requests[0]["spec"],
        json!({"user": "u", "groups": ["g"], "nonResourceAttributes": {"path": "/a", "verb": "get"}})
    );
}

#[actix::test]
async fn authorization_webhook_is_called_only_if_conditions_match() {
    let (policy, requests, _) = server(vec![status(r#"{"allowed":true}"#)]).await;
    let Ok(mut inner) = Arc::try_unwrap(policy.0) else { panic!("the only reference") };
    let mut compiler = pilothouse_admission::auth_expressions::match_conditions::Compiler::default();
    let paths = "request.nonResourceAttributes.path";
    inner.settings.conditions = vec![
        compiler.compile("request.extra['a'] == [] || request.user == 'u'").unwrap(),
        compiler.compile(&format!("{paths} != '/no'")).unwrap(),
        compiler.compile(&format!("{paths} != '/bad' || request.resourceAttributes.name == ''")).unwrap(),
    ];
    inner.settings.denies_on_failure = true;
    let policy = WebhookAuthorizer(Arc::new(inner));
    assert_eq!(judge(&policy, "/no").await.decision, Decision::NoOpinion(String::new()));
    let bad = judge(&policy, "/bad").await;
    assert_eq!(bad.decision, Decision::Denied(String::new()));
    assert!(bad.error.unwrap().ends_with("resulted in error: no such key: resourceAttributes"));
    assert_eq!(judge(&policy, "/yes").await.decision, Decision::Allowed);
    assert_eq!(requests.await.unwrap().len(), 1);
}

#[actix::test]
async fn authorization_webhook_failure_has_no_opinion() {
    let (policy, requests, _) = server(vec![
        (500, String::new()),
        status(r#"{"allowed":true}"#),
        (403, String::new()),
        (200, "x".into()),
    ])
    .await;
    assert_eq!(judge(&policy, "/a").await.decision, Decision::Allowed, "the second attempt");
    for expected in ["unexpected HTTP status 403", "invalid response", "cannot be called"] {
        let failed = judge(&policy, "/b").await;
        assert_eq!(failed.decision, Decision::NoOpinion(String::new()));
        assert!(failed.error.as_ref().unwrap().contains(expected), "{:?}", failed.error);
    }
    requests.await.unwrap();
}

#[test]
fn authorization_webhook_response_type_is_optional_but_must_match() {
    let parse = |text: &str| super::parse_response(text.as_bytes(), "v1").map(|status| status.allowed);
    assert_eq!(parse(r#"{"status":{"allowed":true}}"#), Ok(true));
    let named =
        r#"{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}"#;
    assert_eq!(parse(named), Ok(true));
    assert_eq!(parse("{}"), Ok(false), "no opinion");
    for mismatch in [
        named.replace("k8s.io/v1", "k8s.io/v1beta1"),
        named.replace("SubjectAccess", "Token"),
        named.replace("true", "\"yes\""),
        r#"["SubjectAccessReview","authorization.k8s.io/v1",{"allowed":true}]"#.to_owned(),
        r#"{"status":[true]}"#.to_owned(),
        r#"{"status":true}"#.to_owned(),
        String::new(),
    ] {
        assert!(parse(&mismatch).is_err(), "{mismatch}");
    }
}

#[test]
fn access_review_spec_contains_target_and_selectors() {
    let target = Target::Resource {
        group: "apps".into(),
        version: "v1".into(),
        resource: "deployments".into(),
        subresource: String::new(),
        namespace: "n".into(),
        name: String::new(),
    };
    let selection = Selection {
        fields: vec![FieldRule::Equals("a".into(), "b".into())],
        labels: vec![LabelRule::Exists("l".into()), LabelRule::Above("m".into(), 1)],
    };
    let spec = spec("v1beta1", &Identity::default(), &Action { verb: "list".into(), target }, &selection);
    assert_eq!(
        spec["resourceAttributes"],
        json!({
            "namespace": "n", "verb": "list", "group": "apps", "version": "v1", "resource": "deployments",
            "fieldSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["b"]}]},
            "labelSelector": {"requirements": [{"key": "l", "operator": "Exists"}]},
        })
    );
}
