use pilothouse_types::clock::Timestamp;

use super::*;
use crate::kubeconfig::Access;
use crate::metrics::Metrics;
use crate::webhook::testing;

/// Asks a server that gives these answers, one per connection. Answers what that was asked, too.
async fn server(
    answers: Vec<(u16, String)>,
) -> (WebhookAuthorizer, tokio::task::JoinHandle<Vec<Json>>, Clock) {
    let (place, asked) = testing::server(answers).await;
    let access = Access::to(format!("{place}/authorize"));
    let settings = Settings {
        version: "v1".into(),
        allowed_for: Duration::from_secs(300),
        refused_for: Duration::from_secs(30),
        timeout: Duration::from_secs(5),
        denies_on_failure: false,
        conditions: Vec::new(),
    };
    let clock = Clock::manual(Timestamp(1));
    let meter = Metrics::new(Timestamp(0)).unwrap().authorization.webhook("w");
    let policy = WebhookAuthorizer::new(Service::alone(&access).unwrap(), settings, clock.clone(), meter);
    (policy, asked, clock)
}

async fn judged(policy: &WebhookAuthorizer, path: &str) -> ExplainedDecision {
    let who = Identity { name: "u".into(), groups: vec!["g".into()], ..Identity::default() };
    let action = Action { verb: "get".into(), target: Target::Path(path.into()) };
    match policy.judge(&who, &action, &Selection::default()) {
        Answer::Now(verdict) => verdict,
        Answer::Later(verdict) => verdict.await,
    }
}

fn status(status: &str) -> (u16, String) {
    (200, format!(r#"{{"status":{status}}}"#))
}

#[actix::test]
async fn answers_count_and_are_remembered_for_a_while() {
    let answers = vec![
        status(r#"{"allowed":true,"reason":"fine"}"#),
        status(r#"{"allowed":false,"denied":true,"reason":"never"}"#),
        status(r#"{"allowed":true,"denied":true}"#),
        status(r#"{"allowed":false}"#),
    ];
    let (policy, asked, clock) = server(answers).await;
    let yes = judged(&policy, "/a").await;
    assert_eq!((yes.decision.clone(), yes.reason().as_str()), (Decision::Allowed, "fine"));
    assert_eq!(judged(&policy, "/a").await.decision, Decision::Allowed, "not asked again");
    assert_eq!(judged(&policy, "/b").await.decision, Decision::Denied("never".into()));
    let both = judged(&policy, "/c").await;
    assert!(matches!(both.decision, Decision::Denied(_)) && both.error.is_some(), "in doubt no");
    clock.advance(Duration::from_secs(60));
    assert_eq!(judged(&policy, "/a").await.decision, Decision::Allowed);
    assert_eq!(judged(&policy, "/b").await.decision, Decision::NoOpinion(String::new()), "asked again");
    let asked = asked.await.unwrap();
    assert_eq!(asked.len(), 4);
    assert_eq!(asked[0]["apiVersion"], "authorization.k8s.io/v1");
    assert_eq!(
        asked[0]["spec"],
        json!({"user": "u", "groups": ["g"], "nonResourceAttributes": {"path": "/a", "verb": "get"}})
    );
}

#[actix::test]
async fn conditions_decide_what_is_asked() {
    let (policy, asked, _) = server(vec![status(r#"{"allowed":true}"#)]).await;
    let Ok(mut inner) = Arc::try_unwrap(policy.0) else { panic!("nobody else has it") };
    let mut compiler = pilothouse_admission::auth_expressions::match_conditions::Compiler::default();
    let paths = "request.nonResourceAttributes.path";
    inner.settings.conditions = vec![
        compiler.compile("request.extra['a'] == [] || request.user == 'u'").unwrap(),
        compiler.compile(&format!("{paths} != '/no'")).unwrap(),
        compiler.compile(&format!("{paths} != '/bad' || request.resourceAttributes.name == ''")).unwrap(),
    ];
    inner.settings.denies_on_failure = true;
    let policy = WebhookAuthorizer(Arc::new(inner));
    assert_eq!(judged(&policy, "/no").await.decision, Decision::NoOpinion(String::new()));
    let bad = judged(&policy, "/bad").await;
    assert_eq!(bad.decision, Decision::Denied(String::new()));
    assert!(bad.error.unwrap().ends_with("resulted in error: no such key: resourceAttributes"));
    assert_eq!(judged(&policy, "/yes").await.decision, Decision::Allowed);
    assert_eq!(asked.await.unwrap().len(), 1);
}

#[actix::test]
async fn who_cannot_be_asked_has_no_opinion() {
    let (policy, asked, _) = server(vec![
        (500, String::new()),
        status(r#"{"allowed":true}"#),
        (403, String::new()),
        (200, "x".into()),
    ])
    .await;
    assert_eq!(judged(&policy, "/a").await.decision, Decision::Allowed, "the second attempt");
    for why in ["answered 403", "invalid response", "cannot be called"] {
        let failed = judged(&policy, "/b").await;
        assert_eq!(failed.decision, Decision::NoOpinion(String::new()));
        assert!(failed.error.as_ref().unwrap().contains(why), "{:?}", failed.error);
    }
    asked.await.unwrap();
}

#[test]
fn an_answer_may_leave_out_what_it_is_but_not_lie() {
    let read = |text: &str| super::read(text.as_bytes(), "v1").map(|said| said.allowed);
    assert_eq!(read(r#"{"status":{"allowed":true}}"#), Ok(true));
    let named =
        r#"{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}"#;
    assert_eq!(read(named), Ok(true));
    assert_eq!(read("{}"), Ok(false), "no opinion");
    for lie in [
        named.replace("k8s.io/v1", "k8s.io/v1beta1"),
        named.replace("SubjectAccess", "Token"),
        named.replace("true", "\"yes\""),
        r#"["SubjectAccessReview","authorization.k8s.io/v1",{"allowed":true}]"#.to_owned(),
        r#"{"status":[true]}"#.to_owned(),
        r#"{"status":true}"#.to_owned(),
        String::new(),
    ] {
        assert!(read(&lie).is_err(), "{lie}");
    }
}

#[test]
fn the_question_says_everything_that_matters() {
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
    let asked = spec("v1beta1", &Identity::default(), &Action { verb: "list".into(), target }, &selection);
    assert_eq!(
        asked["resourceAttributes"],
        json!({
            "namespace": "n", "verb": "list", "group": "apps", "version": "v1", "resource": "deployments",
            "fieldSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["b"]}]},
            "labelSelector": {"requirements": [{"key": "l", "operator": "Exists"}]},
        })
    );
}
