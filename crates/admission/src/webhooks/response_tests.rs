use super::*;

const HEAD: &str = r#""kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1""#;

fn read_v1(response: &str, mutating: bool) -> Result<AdmissionResponse, InvalidResponse> {
    read(format!("{{{HEAD},\"response\":{response}}}").as_bytes(), ReviewVersion::V1, "u", mutating)
}

fn error_of(body: &str, mutating: bool) -> String {
    read(body.as_bytes(), ReviewVersion::V1, "u", mutating).unwrap_err().message
}

#[test]
fn response_fields_are_parsed() {
    let response = read_v1(
        r#"{"uid":"u","allowed":true,"patch":"W10=","patchType":"JSONPatch","warnings":["a","b"],
            "auditAnnotations":{"k":"v"},"status":{"code":403}}"#,
        true,
    )
    .unwrap();
    assert!(response.allowed);
    assert_eq!(response.patch.as_deref(), Some(&b"[]"[..]));
    assert_eq!(response.warnings, ["a", "b"]);
    assert_eq!(response.annotations, [("k".to_owned(), "v".to_owned())]);
    assert!(!read_v1(r#"{"uid":"u"}"#, false).unwrap().allowed);
}

#[test]
fn v1beta1_responses_need_no_uid_or_patch_type() {
    let read_v1beta1 = |body: &str| read(body.as_bytes(), ReviewVersion::V1beta1, "u", true);
    let response = read_v1beta1(r#"{"response":{"uid":"other","allowed":true,"patch":"W10="}}"#).unwrap();
    assert!(response.allowed && response.patch.is_some());
    assert!(read_v1beta1(r#"{"response":{"uid":"u","patchType":"X"}}"#).is_ok());
    assert!(read_v1beta1("{}").unwrap_err().message.ends_with("webhook response was absent"));
}

#[test]
fn invalid_responses_match_the_reference() {
    let response = |response: &str| format!("{{{HEAD},\"response\":{response}}}");
    let invalid = "received invalid webhook response: ";
    for (body, mutating, expected) in [
        (format!("{{{HEAD}}}"), true, format!("{invalid}webhook response was absent")),
        (response(r#"{"uid":"x"}"#), true, format!("{invalid}expected response.uid=\"u\", got \"x\"")),
        (
            r#"{"response":{"uid":"u","allowed":true}}"#.to_owned(),
            true,
            format!(
                "{invalid}expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind="
            ),
        ),
        (
            response(r#"{"uid":"u","patch":"W10="}"#),
            true,
            format!("{invalid}webhook returned response.patch but not response.patchType"),
        ),
        (
            response(r#"{"uid":"u","patchType":"JSONPatch"}"#),
            true,
            format!("{invalid}webhook returned response.patchType but not response.patch"),
        ),
        (
            response(r#"{"uid":"u","patch":"W10=","patchType":""}"#),
            true,
            format!("{invalid}webhook returned invalid response.patchType of \"\""),
        ),
        (
            response(r#"{"uid":"u","patch":"W10=","patchType":"X"}"#),
            true,
            "unsupported patch type \"X\"".to_owned(),
        ),
        (
            response(r#"{"uid":"u","patch":"W10=","patchType":"JSONPatch"}"#),
            false,
            format!("{invalid}validating webhook may not return response.patch"),
        ),
        (
            response(r#"{"uid":"u","patchType":"JSONPatch"}"#),
            false,
            format!("{invalid}validating webhook may not return response.patchType"),
        ),
        (
            response(r#"{"uid":"u","allowed":"yes"}"#),
            false,
            "failed to call webhook: json: cannot unmarshal string into Go struct field \
             AdmissionResponse.response.allowed of type bool"
                .to_owned(),
        ),
    ] {
        assert_eq!(error_of(&body, mutating), expected, "{body}");
    }
    for body in ["hello", "", "[]", "3", r#"{"kind":"Pod","apiVersion":"v1"}"#, "{\"response\":[]}"] {
        assert!(error_of(body, true).starts_with("failed to call webhook: "), "{body}");
    }
}

#[test]
fn failure_codes_match_the_reference() {
    let refused_with = |code, body: &str| from_http_error(code, true, body.as_bytes());
    assert_eq!(
        refused_with(500, " no\n").message,
        "an error on the server (\"no\") has prevented the request from succeeding"
    );
    assert_eq!(refused_with(404, "x").message, "the server could not find the requested resource");
    assert_eq!(refused_with(302, "x").code, 302);
    let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"m","code":418}"#;
    let expected = InvalidResponse { message: "m".into(), code: 418 };
    assert_eq!(refused_with(500, status), expected);
}

#[test]
fn denial_contains_the_status_of_the_webhook() {
    let denial_json = |status: &str| {
        let value = json::read(status.as_bytes()).unwrap();
        let json = String::from_utf8(denial("w", Some(&value)).to_json()).unwrap();
        serde_json::from_str::<serde_json::Value>(&json).unwrap()
    };
    let all = denial_json(
        r#"{"message":"no","reason":"Quirk","code":418,"details":{"causes":[{"field":"f","message":"m"}]}}"#,
    );
    assert_eq!(all["message"], "admission webhook \"w\" denied the request: no");
    assert_eq!((&all["reason"], &all["code"]), (&serde_json::json!("Quirk"), &serde_json::json!(418)));
    assert_eq!(all["details"]["causes"][0]["field"], "f");
    assert_eq!(
        denial_json(r#"{"reason":"R","code":200}"#)["message"],
        "admission webhook \"w\" denied the request: R"
    );
    assert_eq!(denial_json(r#"{"code":99999}"#)["code"], 999);
    let bare = denial("w", None);
    assert_eq!(bare.message, "admission webhook \"w\" denied the request without explanation");
    assert_eq!((bare.code, bare.details), (400, None));
}
