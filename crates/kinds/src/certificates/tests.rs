//! Tests of the rules of certificate kinds.

use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

use super::super::UserInfo;
use super::*;

const NOW: &str = "2024-01-01T00:00:00Z";

fn base() -> Value {
    let mut request =
        object(r#"{"spec":{"username":"root","uid":"0","usages":["client auth"],"signerName":"a.b/c"}}"#);
    request.entry("spec").set("request", STANDARD.encode(pem::samples::REQUEST));
    request
}

#[test]
fn prepare_create_sets_the_authenticated_user() {
    let user = UserInfo { name: "u".into(), groups: vec!["g".into()], ..UserInfo::default() };
    let mut request = base();
    prepare_create(&mut request, &WriteContext { now: "", user: &user, features: EnabledFeatures::RELEASE });
    assert_eq!(request.get_path(&["spec", "username"]), Some(&Value::from("u")));
    assert_eq!(request.get_path(&["spec", "uid"]), None);
    assert_eq!(request.get_path(&["spec", "groups"]), Some(&Value::from(vec!["g"])));
    assert_eq!(parse_request(&request).unwrap().organizations, ["dev"]);
}

#[test]
fn csr_validation_refuses_each_violation() {
    let broken =
        STANDARD.encode("-----BEGIN CERTIFICATE REQUEST-----\nAA==\n-----END CERTIFICATE REQUEST-----\n");
    let broken = format!("\"{broken}\"");
    each_refused(
        &base(),
        validate,
        &[
            ("spec.request", "null", "spec.request: Invalid value: []byte(nil): PEM block"),
            ("spec.request", r#""AA==""#, "PEM block type must be CERTIFICATE REQUEST"),
            (
                "spec.request",
                &broken,
                "spec.request: Invalid value: []byte{}: asn1: syntax error: truncated tag or length",
            ),
            ("spec.usages", "[]", "spec.usages: Required value"),
            (
                "spec.usages",
                r#"["x"]"#,
                "spec.usages[0]: Unsupported value: \"x\": supported values: \"any\", \"cert sign\"",
            ),
            ("spec.usages", r#"["any","any"]"#, "spec.usages[1]: Duplicate value: \"any\""),
            ("spec.signerName", "null", "spec.signerName: Required value"),
            ("spec.signerName", r#""x""#, "must be a fully qualified domain and path of the form"),
            (
                "spec.signerName",
                r#""a/b""#,
                "spec.signerName: Invalid value: \"a\": should be a domain with at least two segments",
            ),
            (
                "spec.signerName",
                r#""a.B/c""#,
                "spec.signerName: Invalid value: \"a.B\": validating label \"B\": a lowercase RFC 1123 label",
            ),
            (
                "spec.signerName",
                r#""a.b/C""#,
                "spec.signerName: Invalid value: \"C\": validating label \"C\"",
            ),
            (
                "spec.signerName",
                r#""kubernetes.io/legacy-unknown""#,
                "the legacy signerName is not allowed via this API version",
            ),
            ("spec.expirationSeconds", "5", "may not specify a duration less than 600 seconds (10 minutes)"),
            (
                "status.conditions",
                r#"[{"type":"Approved","status":"False"}]"#,
                "status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\"",
            ),
            ("status.conditions", r#"[{"status":"True"}]"#, "status.conditions[0].type: Required value"),
            ("status.conditions", r#"[{"type":"X"}]"#, "status.conditions[0].status: Required value"),
            (
                "status.conditions",
                r#"[{"type":"Approved","status":"True"},{"type":"Denied","status":"True"}]"#,
                "Approved and Denied conditions are mutually exclusive",
            ),
            (
                "status.conditions",
                r#"[{"type":"X","status":"True"},{"type":"X","status":"True"}]"#,
                "status.conditions[1].type: Duplicate value: \"X\"",
            ),
            (
                "status.certificate",
                r#""AA==""#,
                "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block",
            ),
        ],
    );
}

#[test]
fn approval_and_certificate_change_only_through_their_subresources() {
    let approved = r#"[{"type":"Approved","status":"True"}]"#;
    let certificate = format!("\"{}\"", STANDARD.encode(pem::samples::LEAF));
    each_change_refused(
        &base(),
        validate_status,
        &[(
            "status.conditions",
            approved,
            "status.conditions: Forbidden: updates may not add a condition of type \"Approved\"",
        )],
    );
    each_change_refused(
        &base(),
        validate_approval,
        &[(
            "status.certificate",
            &certificate,
            "status.certificate: Forbidden: updates may not set certificate content",
        )],
    );
    let mut issued = base();
    issued.entry("status").set("conditions", object(approved));
    issued.entry("status").set("certificate", STANDARD.encode(pem::samples::LEAF));
    let other = format!("\"{}\"", STANDARD.encode(pem::samples::AUTHORITY));
    each_change_refused(
        &issued,
        validate_status,
        &[
            ("status.certificate", &other, "updates may not modify existing certificate content"),
            ("status.conditions", "[]", "updates may not remove a condition of type \"Approved\""),
            (
                "status.conditions.0.message",
                r#""m""#,
                "updates may not modify a condition of type \"Approved\"",
            ),
        ],
    );
    let user = UserInfo::default();
    let mut new = base();
    new.entry("status").set("conditions", object(approved));
    prepare_approval(
        &mut new,
        &base(),
        &WriteContext { now: NOW, user: &user, features: EnabledFeatures::RELEASE },
    );
    let condition = &new.get_path(&["status", "conditions"]).unwrap().items()[0];
    assert_eq!((condition.str("lastUpdateTime"), condition.str("lastTransitionTime")), (NOW, NOW));
    let named = |mut request: Value| {
        for (field, value) in [("name", "a"), ("uid", "u"), ("resourceVersion", "1")] {
            request.entry("metadata").set(field, value);
        }
        request
    };
    let (old, mut approved_request) = (named(base()), named(new.clone()));
    let context = WriteContext { now: NOW, user: &user, features: EnabledFeatures::RELEASE };
    assert!(before_approval(&mut approved_request, &old, &context).is_ok());
    approved_request.entry("status").set("conditions", Value::array());
    let approved = named(new.clone());
    assert!(
        before_approval(&mut approved_request, &approved, &context).is_err(),
        "an approval cannot be withdrawn"
    );
    let mut updated = new.clone();
    updated
        .entry("status")
        .set("conditions", object(r#"[{"type":"Approved","status":"True","message":"m"}]"#));
    prepare_status(
        &mut updated,
        &new,
        &WriteContext { now: "later", user: &user, features: EnabledFeatures::RELEASE },
    );
    assert_eq!(updated.get_path(&["status", "conditions"]), new.get_path(&["status", "conditions"]));
}

#[test]
fn trust_bundle_validation_refuses_each_violation() {
    let mut base = object(r#"{"metadata":{"name":"a.b:c:x"},"spec":{"signerName":"a.b/c"}}"#);
    base.entry("spec").set("trustBundle", pem::samples::AUTHORITY);
    let quote = |text: &str| serde_json::to_string(text).unwrap();
    let (leaf, has_duplicates, request) = (
        quote(pem::samples::LEAF),
        quote(&format!("{0}{0}", pem::samples::AUTHORITY)),
        quote(pem::samples::REQUEST),
    );
    each_refused(
        &base,
        validate_bundle,
        &[
            (
                "metadata.name",
                r#""x""#,
                "ClusterTrustBundle for signerName a.b/c must be named with prefix a.b:c:",
            ),
            (
                "spec.signerName",
                "null",
                "ClusterTrustBundle without signer name must not have \":\" in its name",
            ),
            (
                "spec.trustBundle",
                "null",
                "spec.trustBundle: Invalid value: \"<value omitted>\": at least one trust anchor must be provided",
            ),
            ("spec.trustBundle", &leaf, "entry 0 does not have the CA bit set"),
            ("spec.trustBundle", &request, "entry 0 has bad block type: CERTIFICATE REQUEST"),
            ("spec.trustBundle", &has_duplicates, "duplicate trust anchor (indices [0 1])"),
        ],
    );
    let mut changed = base.clone();
    changed.entry("spec").set("signerName", "a.b/d");
    changed.entry("metadata").set("name", "a.b:d:x");
    let mut errors = ErrorList::new();
    validate_bundle_update(&changed, &base, &mut errors);
    assert_eq!(errors.len(), 1);
}
