use pilothouse_apimachinery::document::parse;

use super::*;

const POD: &str = "
metadata: {name: p, annotations: {a.image-policy.k8s.io/ticket: '7', image-policy.k8s.io/x: no, other: x}}
spec:
  containers: [{name: a, image: one}, {name: b}]
  initContainers: [{name: c, image: two}]
  ephemeralContainers: [{name: d, image: three}]
";

#[test]
fn image_review_names_images_and_marked_annotations() {
    let pod = parse(POD.as_bytes()).unwrap();
    assert_eq!(
        review_spec(&pod, "", "default"),
        json!({"containers": [{"image": "one"}, {}, {"image": "two"}],
            "annotations": {"a.image-policy.k8s.io/ticket": "7"}, "namespace": "default"})
    );
    assert_eq!(
        review_spec(&pod, "ephemeralcontainers", "default")["containers"],
        json!([{"image": "three"}])
    );
    assert_eq!(review_spec(&Value::object(), "", ""), json!({}));
}

#[test]
fn image_review_response_is_checked() {
    let status = |review: Json| ReviewStatus::parse(review.to_string().as_bytes());
    let annotations = Some(BTreeMap::from([("audit-required".to_owned(), "true".to_owned())]));
    assert_eq!(
        status(json!({"kind": KIND, "apiVersion": API_VERSION,
            "status": {"allowed": true, "reason": "r", "auditAnnotations": {"audit-required": "true"}}})),
        Ok(ReviewStatus { allowed: true, reason: "r".to_owned(), audit_annotations: annotations })
    );
    assert_eq!(status(json!({})), Ok(ReviewStatus::default()), "what does not allow refuses");
    for review in [
        json!([]),
        json!({"kind": "Pod"}),
        json!({"apiVersion": "v1"}),
        json!({"status": "ok"}),
        json!({"status": {"allowed": "yes"}}),
    ] {
        assert!(status(review.clone()).is_err(), "{review}");
    }
}
