//! Token requests, and the tokens that they issue.

use super::*;

#[test]
fn token_request_issues_token_for_account() {
    let server = Server::start();
    let mut admin = server.admin();
    let created = admin.post(ACCOUNTS, &account("sa")).ok();
    let response = request_token_object(&mut admin, &json!({}));
    assert_eq!(text(&response, "/kind"), "TokenRequest");
    assert_eq!(text(&response, "/metadata/name"), "sa");
    assert_eq!(response["metadata"].get("uid"), None);
    assert_eq!(
        response["spec"],
        json!({"audiences": [ISSUER], "expirationSeconds": 3600, "boundObjectRef": null})
    );
    let token = text(&response, "/status/token");
    let claims = decode_token_part(token, 1);
    assert_eq!(claims["sub"], "system:serviceaccount:default:sa");
    assert_eq!((&claims["iss"], &claims["aud"]), (&json!(ISSUER), &json!([ISSUER])));
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 3_600);
    assert_eq!(claims["iat"], claims["nbf"]);
    assert_eq!(text(&claims, "/jti").len(), 36);
    assert_eq!(
        claims["kubernetes.io"],
        json!({"namespace": "default", "serviceaccount": {"name": "sa", "uid": created["metadata"]["uid"]}})
    );
    assert_eq!(authenticated_user(&server, token).as_deref(), Some("system:serviceaccount:default:sa"));
    let mut bearer = server.anonymous().with_token(Some(token));
    bearer.get("/apis").ok();

    // A dry run issues a token, too, and tokens are unique.
    let dry = admin.post(&format!("{ACCOUNTS}/sa/token?dryRun=All"), &request(&json!({}))).ok();
    assert_ne!(text(&dry, "/status/token"), token);
    assert!(authenticated_user(&server, text(&dry, "/status/token")).is_some());

    // Other encodings are supported.
    let yaml = [("Content-Type", "application/yaml"), ("Accept", "application/yaml")];
    let body = b"apiVersion: authentication.k8s.io/v1\nkind: TokenRequest\n";
    let response = admin.request("POST", &format!("{ACCOUNTS}/sa/token"), &yaml, body);
    assert_eq!(response.status, 201, "{}", response.text());
    assert!(response.text().contains("kind: TokenRequest"), "{}", response.text());
    let binary = [("Content-Type", "application/json"), ("Accept", "application/vnd.kubernetes.protobuf")];
    let path = format!("{ACCOUNTS}/sa/token");
    let response = admin.request("POST", &path, &binary, request(&json!({})).to_string().as_bytes());
    assert!(response.body.starts_with(b"k8s\0"), "{}", response.text());
    assert!(!server.log().contains(token));
}

#[test]
fn invalid_token_requests_are_refused() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.post(ACCOUNTS, &account("sa")).ok();
    admin.post(PODS, &pod("other", "someone")).ok();
    admin.post(PODS, &pod("mine", "sa")).ok();
    let path = format!("{ACCOUNTS}/sa/token");
    let message_prefix =
        "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value";
    let bound_to =
        |kind: &str, name: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}});
    for (spec, code, reason, message) in [
        (
            json!({"expirationSeconds": 599}),
            422,
            "Invalid",
            format!("{message_prefix}: 599: may not specify a duration less than 10 minutes"),
        ),
        (
            json!({"expirationSeconds": 4_294_967_297_i64}),
            422,
            "Invalid",
            format!("{message_prefix}: 4294967297: may not specify a duration larger than 2^32 seconds"),
        ),
        (bound_to("Pod", "none"), 404, "NotFound", "pods \"none\" not found".into()),
        (bound_to("Secret", "none"), 404, "NotFound", "secrets \"none\" not found".into()),
        (bound_to("Node", "none"), 404, "NotFound", "nodes \"none\" not found".into()),
        (bound_to("Pod", ""), 400, "BadRequest", "Name parameter required.".into()),
        (
            bound_to("Pod", "other"),
            400,
            "BadRequest",
            "cannot bind token for serviceaccount \"sa\" to pod running with different serviceaccount name.".into(),
        ),
        (
            bound_to("ConfigMap", "x"),
            400,
            "BadRequest",
            "cannot bind token to object of type /v1, Kind=ConfigMap".into(),
        ),
        (
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "mine", "uid": "other"}}),
            409,
            "Conflict",
            "Operation cannot be fulfilled on Pod \"mine\": the UID in the bound object reference (other) does not match the UID in record. The object might have been deleted and then recreated".into(),
        ),
    ] {
        let status = admin.post(&path, &request(&spec)).expect_error(code, reason);
        assert_eq!(text(&status, "/message"), message);
    }
    let status =
        admin.post(&format!("{ACCOUNTS}/none/token"), &request(&json!({}))).expect_error(404, "NotFound");
    assert_eq!(text(&status, "/message"), "serviceaccounts \"none\" not found");
    let mut named = request(&json!({}));
    named["metadata"] = json!({"name": "other"});
    let status = admin.post(&path, &named).expect_error(422, "Invalid");
    assert_eq!(
        text(&status, "/message"),
        "TokenRequest.authentication.k8s.io \"sa\" is invalid: metadata.name: Invalid value: \"other\": must match the service account name if specified"
    );
    named["metadata"] = json!({"namespace": "other"});
    admin.post(&path, &named).expect_error(400, "BadRequest");
    admin.get(&path).expect_error(405, "MethodNotAllowed");
    admin.post(&path, &account("sa")).expect_error(400, "BadRequest");
    // Token requests need permission.
    server.anonymous().post(&path, &request(&json!({}))).expect_error(403, "Forbidden");
}

#[test]
fn pod_token_names_node_and_is_extended() {
    let server = Server::with_flags(&["--service-account-max-token-expiration=2h"]);
    let mut admin = server.admin();
    admin.post(ACCOUNTS, &account("sa")).ok();
    let mut pod_on_node = pod("p", "sa");
    pod_on_node["spec"]["nodeName"] = "gone".into();
    admin.post(PODS, &pod_on_node).ok();
    let bound_reference = json!({"apiVersion": "v1", "kind": "Pod", "name": "p"});
    let response = request_token_object(
        &mut admin,
        &json!({"boundObjectRef": bound_reference, "expirationSeconds": 3607}),
    );
    let claims = decode_token_part(text(&response, "/status/token"), 1);
    assert_eq!(claims["kubernetes.io"]["node"], json!({"name": "gone"}));
    let issued = claims["iat"].as_i64().unwrap();
    assert_eq!(claims["exp"].as_i64().unwrap() - issued, 31_536_000);
    assert_eq!(claims["kubernetes.io"]["warnafter"].as_i64().unwrap() - issued, 3_607);
    assert_eq!(response["spec"]["expirationSeconds"], 3_607, "the client need not know");
    assert!(authenticated_user(&server, text(&response, "/status/token")).is_some());

    let path = format!("{ACCOUNTS}/sa/token");
    let long = admin.post(&path, &request(&json!({"expirationSeconds": 7_201})));
    let warning = long.header("warning").unwrap_or_default();
    assert!(warning.contains("requested expiration of 7201 seconds shortened to 7200 seconds"), "{warning}");
    let claims = decode_token_part(text(&long.ok(), "/status/token"), 1);
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 7_200);
}
