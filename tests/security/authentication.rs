//! Authentication over HTTP: client certificates, the front proxy, token webhooks, and token reviews.

mod pki;
mod webhook;

use std::fs;

use pki::{CertifiedKey, Purpose};
use serde_json::{Value, json};

use crate::support::compare::text;
use crate::support::server::temp_directory;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{ADMIN_TOKEN, Client, Response, Server, USER_TOKEN};

const ME: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ISSUER: &str = "https://kubernetes.default.svc";

fn review_object(kind: &str) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": kind})
}

/// Posts a SelfSubjectReview.
fn post_self_review(client: &mut Client, headers: &[(&str, &str)]) -> Response {
    let body = review_object("SelfSubjectReview").to_string();
    let headers: Vec<_> = headers.iter().copied().chain([("Content-Type", "application/json")]).collect();
    client.request("POST", ME, &headers, body.as_bytes())
}

fn whoami(client: &mut Client, headers: &[(&str, &str)]) -> Value {
    post_self_review(client, headers).ok()["status"]["userInfo"].clone()
}

/// Posts a TokenReview.
fn review(admin: &mut Client, token: &str, audiences: &[&str]) -> Value {
    let mut body = review_object("TokenReview");
    body["spec"] = json!({"token": token, "audiences": audiences});
    admin.post(TOKENS, &body).ok()
}

/// Expects 401 with the body of the reference.
fn assert_unauthorized(response: &Response) {
    let expected = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
    assert_eq!((response.status, response.json()), (401, expected), "{}", response.text());
}

#[test]
fn token_review_reports_user_audiences_and_error() {
    let server = Server::with_flags(&["--engine=memory", "--enable-bootstrap-token-auth"]);
    let mut admin = server.admin();
    let known = review(&mut admin, USER_TOKEN, &[]);
    assert_eq!(known["spec"], json!({"token": USER_TOKEN}));
    assert_eq!(
        known["status"],
        json!({"authenticated": true, "audiences": [ISSUER], "user": {"username": "alice", "uid": "uid-alice",
            "groups": ["devs", "testers", "system:authenticated"]}})
    );
    assert_eq!(review(&mut admin, USER_TOKEN, &["x", ISSUER])["status"]["audiences"], json!([ISSUER]));
    for (token, audiences) in [("nobody's", vec![]), (USER_TOKEN, vec!["others"])] {
        let unknown = review(&mut admin, token, &audiences);
        assert_eq!(unknown["status"], json!({"user": {}, "error": "invalid bearer token"}), "{token}");
    }
    let missing = admin.post(TOKENS, &review_object("TokenReview")).expect_error(400, "BadRequest");
    assert_eq!(text(&missing, "/message"), "token is required for TokenReview in authentication");

    // A service account token is valid for its audiences only.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}});
    admin.post("/api/v1/namespaces/default/serviceaccounts", &account).ok();
    let mut token_request = review_object("TokenRequest");
    token_request["spec"] = json!({"audiences": ["vault", "other"]});
    let created = admin.post("/api/v1/namespaces/default/serviceaccounts/sa/token", &token_request).ok();
    let token = text(&created, "/status/token");
    let known = review(&mut admin, token, &["other", "vault", "x"]);
    assert_eq!(known["status"]["audiences"], json!(["other", "vault"]), "{known}");
    assert_eq!(known["status"]["user"]["username"], "system:serviceaccount:default:sa");
    let without_audience = review(&mut admin, token, &[]);
    let reason = format!(
        "[invalid bearer token, token audiences [\"vault\" \"other\"] is invalid for the target audiences [\"{ISSUER}\"]]"
    );
    assert_eq!(without_audience["status"], json!({"user": {}, "error": reason}));

    // Bootstrap tokens are reviewed, too.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-abcdef"}, "stringData": {"token-id": "abcdef",
        "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}});
    admin.post("/api/v1/namespaces/kube-system/secrets", &secret).ok();
    let known = review(&mut admin, "abcdef.0123456789abcdef", &[]);
    assert_eq!(known["status"]["user"]["username"], "system:bootstrap:abcdef", "{known}");

    let unknown_secret = review(&mut admin, "abcdef.0123456789abcdee", &[]);
    assert_eq!(
        unknown_secret["status"],
        json!({"user": {}, "error": "invalid bearer token"}),
        "the error does not name the secret"
    );

    // The error names what is wrong with a service account token.
    let (head, signature) = token.rsplit_once('.').unwrap();
    let first = if signature.starts_with('A') { 'B' } else { 'A' };
    let forged = review(&mut admin, &format!("{head}.{first}{}", &signature[1..]), &["vault"]);
    assert_eq!(
        forged["status"]["error"],
        "[invalid bearer token, go-jose/go-jose: error in cryptographic primitive]",
        "{forged}"
    );
    admin.delete("/api/v1/namespaces/default/serviceaccounts/sa").ok();
    let after_deletion = review(&mut admin, token, &["vault"]);
    let reason = "[invalid bearer token, serviceaccounts \"sa\" not found]";
    assert_eq!(after_deletion["status"]["error"], reason, "{after_deletion}");

    // Reviews need permission.
    let mut alice = server.anonymous().with_token(Some(USER_TOKEN));
    alice.post(TOKENS, &review_object("TokenReview")).expect_error(403, "Forbidden");
    assert!(!server.log().contains(token) && !server.log().contains(USER_TOKEN));
}

#[test]
fn self_subject_review_is_not_served_in_old_versions() {
    // Enabling them is no error, as in the reference, and has no effect.
    let token_request = "--runtime-config=api/all=true,authentication.k8s.io/v1beta1=true,authentication.k8s.io/v1alpha1=true";
    let server = Server::with_flags(&["--engine=memory", token_request]);
    for version in ["v1beta1", "v1alpha1"] {
        let mut body = review_object("SelfSubjectReview");
        body["apiVersion"] = json!(format!("authentication.k8s.io/{version}"));
        assert_eq!(server.admin().post(&ME.replace("v1", version), &body).status, 404, "{version}");
    }
}

#[test]
fn authorization_header_is_parsed_like_reference() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut anonymous = server.anonymous();
    let get = |anonymous: &mut Client, header: &str| {
        anonymous.request("GET", "/version", &[("Authorization", header)], b"")
    };
    assert_eq!(get(&mut anonymous, &format!("Bearer {ADMIN_TOKEN}")).status, 200);
    assert_unauthorized(&get(&mut anonymous, "Bearer nonsense"));
    assert_unauthorized(&get(&mut anonymous, "bearer nonsense more"));
    assert_unauthorized(&get(&mut anonymous, "Bearer ünknown"));
    let response = get(&mut anonymous, "Bearer  nonsense");
    assert_eq!(response.status, 200, "the header is ignored");
    let warning =
        "the provided Authorization header contains extra space before the bearer token, and is ignored";
    assert_eq!(response.warnings(), [warning]);
    // Many bad tokens add no metric series.
    for number in 0..2_000 {
        assert_eq!(get(&mut anonymous, &format!("Bearer bad-{number}")).status, 401);
    }
    let metrics = server.admin().get("/metrics").text();
    assert!(metrics.contains("authentication_attempts{result=\"error\"} 200"), "{metrics}");
    assert!(metrics.contains("authenticated_user_requests{username=\"admin\"}"), "{metrics}");
    assert!(!metrics.contains("bad-1"));
}

#[test]
fn client_certificate_authenticates_user() {
    let home = temp_directory();
    let (root, foreign) = (CertifiedKey::authority("root"), CertifiedKey::authority("foreign"));
    let file = format!("--client-ca-file={}", root.write_pem(&home.path().join("ca.crt")));
    let server = Server::with_flags(&["--engine=memory", &file]);
    let subject = [("CN", "ann"), ("O", "devs"), ("O", "testers"), ("1.3.6.1.4.1.57683.2", "u-1")];
    let ann = CertifiedKey::new(&subject, Purpose::Client, Some(&root));
    let user_info = whoami(&mut ann.client(&server, &[]), &[]);
    assert_eq!((&user_info["username"], &user_info["uid"]), (&json!("ann"), &json!("u-1")));
    assert_eq!(user_info["groups"], json!(["devs", "testers", "system:authenticated"]));
    let id = text(&user_info["extra"]["authentication.kubernetes.io/credential-id"], "/0");
    assert!(id.starts_with("X509SHA256=") && id.len() == 75, "{user_info}");

    let middle = CertifiedKey::new(&[("CN", "middle")], Purpose::Authority, Some(&root));
    let leaf = CertifiedKey::new(&[("CN", "bob")], Purpose::Client, Some(&middle));
    assert_unauthorized(&post_self_review(&mut leaf.client(&server, &[]), &[]));
    assert_eq!(whoami(&mut leaf.client(&server, &[&middle]), &[])["username"], "bob");
    let certificate_for = |purpose, issuer| CertifiedKey::new(&[("CN", "eve")], purpose, issuer);
    for client in [
        certificate_for(Purpose::Client, Some(&foreign)),
        certificate_for(Purpose::Client, None),
        certificate_for(Purpose::Expired, Some(&root)),
        certificate_for(Purpose::Server, Some(&root)),
    ] {
        assert_unauthorized(&post_self_review(&mut client.client(&server, &[]), &[]));
        // A valid token still authenticates.
        let mut with_token = client.client(&server, &[]).with_token(Some(USER_TOKEN));
        assert_eq!(whoami(&mut with_token, &[])["username"], "alice");
    }
    let without_name = CertifiedKey::new(&[("O", "devs")], Purpose::Client, Some(&root));
    assert_eq!(without_name.client(&server, &[]).get("/version").status, 200, "as the anonymous user");
    // A certificate comes before a token, also a bad one.
    let mut with_bad_token = ann.client(&server, &[]).with_token(Some("bad"));
    assert_eq!(whoami(&mut with_bad_token, &[])["username"], "ann");
}

#[test]
fn request_header_user_is_accepted_only_from_front_proxy() {
    let home = temp_directory();
    let authority = CertifiedKey::authority("front");
    let file = home.path().join("front.crt");
    let flags = [
        "--engine=memory".to_owned(),
        format!("--requestheader-client-ca-file={}", authority.write_pem(&file)),
        "--requestheader-allowed-names=front-proxy,other".to_owned(),
        "--requestheader-username-headers=X-Remote-User,X-Name".to_owned(),
        "--requestheader-uid-headers=X-Remote-Uid".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::with_flags(&flags);
    let mut proxy =
        CertifiedKey::new(&[("CN", "front-proxy")], Purpose::Client, Some(&authority)).client(&server, &[]);
    let headers = [
        ("X-Remote-User", "ann"),
        ("x-remote-USER", "eve"),
        ("X_Remote_User", "eve"),
        ("X-Remote-Uid", "u"),
        ("X-Remote-Group", "devs"),
        ("X-Remote-Group", "testers"),
        ("X-Remote-Extra-Acme.com%2FProject", "p"),
        ("X-Remote-Extra-Scopes", "a"),
        ("X-Remote-Extra-Scopes", "b"),
    ];
    let expected = json!({"username": "ann", "uid": "u", "groups": ["devs", "testers", "system:authenticated"],
        "extra": {"acme.com/project": ["p"], "scopes": ["a", "b"]}});
    assert_eq!(whoami(&mut proxy, &headers), expected);
    assert_eq!(whoami(&mut proxy, &[("X-Name", "bob"), ("X-Remote-User", "")])["username"], "bob");
    assert_unauthorized(&post_self_review(&mut proxy, &[]));
    assert_unauthorized(&post_self_review(&mut proxy, &[("X-Remote-Group", "system:masters")]));

    let other_authority = CertifiedKey::authority("front");
    check_untrusted_proxies(&server, &authority, &other_authority);

    // Impersonation needs the rights of the user that the proxy names.
    let as_bob = [("X-Remote-User", "ann"), ("Impersonate-User", "bob")];
    post_self_review(&mut proxy, &as_bob).expect_error(403, "Forbidden");

    // The settings are published for extension API servers.
    let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let data = server.admin().get(path).ok()["data"].clone();
    assert_eq!(data["requestheader-allowed-names"], "[\"front-proxy\",\"other\"]");
    assert_eq!(data["requestheader-username-headers"], "[\"X-Remote-User\",\"X-Name\"]");
    assert_eq!(data["requestheader-uid-headers"], "[\"X-Remote-Uid\"]");
    assert_eq!(data["requestheader-extra-headers-prefix"], "[\"X-Remote-Extra-\"]");
    assert_eq!(text(&data, "/requestheader-client-ca-file").as_bytes(), authority.pem());

    // A new CA is loaded without a restart.
    other_authority.write_pem(&file);
    let mut new_proxy = CertifiedKey::new(&[("CN", "front-proxy")], Purpose::Client, Some(&other_authority))
        .client(&server, &[]);
    poll(TIMEOUT, || {
        (post_self_review(&mut new_proxy, &[("X-Remote-User", "ann")]).status == 201).then_some(())
    })
    .expect("the new authority counts");
    assert_unauthorized(&post_self_review(&mut proxy, &[("X-Remote-User", "ann")]));
}

/// Clients without a certificate, or with one of another name, authority or purpose, cannot name a user in headers.
fn check_untrusted_proxies(server: &Server, authority: &CertifiedKey, other_authority: &CertifiedKey) {
    let user = [("X-Remote-User", "admin"), ("X-Remote-Group", "system:masters")];
    assert_eq!(whoami(&mut server.admin(), &user)["username"], "admin");
    let mut alice = server.anonymous().with_token(Some(USER_TOKEN));
    assert_eq!(whoami(&mut alice, &user)["username"], "alice");
    post_self_review(&mut server.anonymous(), &user).expect_error(403, "Forbidden");
    for certified_key in [
        CertifiedKey::new(&[("CN", "stranger")], Purpose::Client, Some(authority)),
        CertifiedKey::new(&[("CN", "front-proxy")], Purpose::Server, Some(authority)),
        CertifiedKey::new(&[("CN", "front-proxy")], Purpose::Expired, Some(authority)),
        CertifiedKey::new(&[("CN", "front-proxy")], Purpose::Client, Some(other_authority)),
    ] {
        assert_unauthorized(&post_self_review(&mut certified_key.client(server, &[]), &user));
    }
    let own_client = whoami(&mut server.kubeconfig_client(), &user);
    assert_ne!(own_client["username"], "admin", "the client of its own name: {own_client}");
}

#[test]
fn anonymous_auth_is_off_with_always_allow() {
    let open = Server::with_flags(&["--engine=memory", "--authorization-mode=AlwaysAllow"]);
    assert_unauthorized(&open.anonymous().get("/version"));
    assert!(open.log().contains("--anonymous-auth is off"), "{}", open.log());
    let closed = Server::with_flags(&["--engine=memory", "--anonymous-auth=false"]);
    assert_unauthorized(&closed.anonymous().get("/version"));
    let metrics = closed.admin().get("/metrics").text();
    assert!(metrics.contains("authentication_attempts{result=\"failure\"} 1"), "{metrics}");
}

#[test]
fn token_file_error_names_line() {
    let home = temp_directory();
    let file = home.path().join("tokens");
    fs::write(&file, "t,u,1\n\nx,y\n").unwrap();
    let flag = format!("--token-auth-file={}", file.display());
    let failure = Server::try_start_in(&home.path().join("data"), &["--engine=memory", &flag]).err().unwrap();
    let output = format!("{}{}", failure.stdout, failure.stderr);
    assert!(output.contains("line 3: a token needs at least 3 columns"), "{output}");
    assert!(!failure.status.success());
}

#[test]
fn refused_credentials_are_logged_with_address_and_path() {
    let server = Server::start();
    let mut client = server.anonymous().with_token(Some("wrong"));
    assert_eq!(client.get("/api/v1/secrets?limit=1").status, 401);
    let line = poll(TIMEOUT, || {
        let log = server.log();
        log.lines().find(|line| line.contains("authentication failed")).map(str::to_owned)
    });
    let line = line.expect("a line of the log");
    assert!(line.contains("address=\"127.0.0.1:") && line.contains("path=\"/api/v1/secrets\""), "{line}");
    assert!(!line.contains("wrong") && !line.contains("limit"), "neither the token nor the query: {line}");
}
