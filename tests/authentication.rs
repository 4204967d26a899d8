//! Who is asking, over HTTP: certificates, a proxy that speaks for others, a server that knows tokens, and what reviews say of
//! all of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "authentication/pki.rs"]
mod pki;
mod support;
#[path = "authentication/webhook.rs"]
mod webhook;

use std::fs;

use pki::{Party, Use};
use serde_json::{Value, json};
use support::compare::text;
use support::server::directory;
use support::wait::{CAP, poll};
use support::{ADMIN_TOKEN, Answer, Client, Server, USER_TOKEN};

const ME: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ISSUER: &str = "https://kubernetes.default.svc";

fn question(kind: &str) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": kind})
}

/// Who the server thinks the client is.
fn asks(client: &mut Client, headers: &[(&str, &str)]) -> Answer {
    let body = question("SelfSubjectReview").to_string();
    let headers: Vec<_> = headers.iter().copied().chain([("Content-Type", "application/json")]).collect();
    client.request("POST", ME, &headers, body.as_bytes())
}

fn who(client: &mut Client, headers: &[(&str, &str)]) -> Value {
    asks(client, headers).ok()["status"]["userInfo"].clone()
}

/// What the server says of a token.
fn review(admin: &mut Client, token: &str, audiences: &[&str]) -> Value {
    let mut body = question("TokenReview");
    body["spec"] = json!({"token": token, "audiences": audiences});
    admin.post(TOKENS, &body).ok()
}

/// The body that the reference sends with 401.
fn is_unknown(answer: &Answer) {
    let wanted = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
    assert_eq!((answer.status, answer.json()), (401, wanted), "{}", answer.text());
}

#[test]
fn a_review_says_whose_a_token_is() {
    let server = Server::with(&["--engine=memory", "--enable-bootstrap-token-auth"]);
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
    let missing = admin.post(TOKENS, &question("TokenReview")).refused(400, "BadRequest");
    assert_eq!(text(&missing, "/message"), "token is required for TokenReview in authentication");

    // A token of a service account says what it is meant for.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}});
    admin.post("/api/v1/namespaces/default/serviceaccounts", &account).ok();
    let mut asked = question("TokenRequest");
    asked["spec"] = json!({"audiences": ["vault", "other"]});
    let made = admin.post("/api/v1/namespaces/default/serviceaccounts/sa/token", &asked).ok();
    let token = text(&made, "/status/token");
    let known = review(&mut admin, token, &["other", "vault", "x"]);
    assert_eq!(known["status"]["audiences"], json!(["other", "vault"]), "{known}");
    assert_eq!(known["status"]["user"]["username"], "system:serviceaccount:default:sa");
    let meant = review(&mut admin, token, &[]);
    let why = format!(
        "[invalid bearer token, token audiences [\"vault\" \"other\"] is invalid for the target audiences [\"{ISSUER}\"]]"
    );
    assert_eq!(meant["status"], json!({"user": {}, "error": why}));

    // So does a bootstrap token.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-abcdef"}, "stringData": {"token-id": "abcdef",
        "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}});
    admin.post("/api/v1/namespaces/kube-system/secrets", &secret).ok();
    let known = review(&mut admin, "abcdef.0123456789abcdef", &[]);
    assert_eq!(known["status"]["user"]["username"], "system:bootstrap:abcdef", "{known}");

    let other = review(&mut admin, "abcdef.0123456789abcdee", &[]);
    assert_eq!(
        other["status"],
        json!({"user": {}, "error": "invalid bearer token"}),
        "nothing is told of it"
    );

    // What is wrong with a token of our own is said.
    let (head, signature) = token.rsplit_once('.').unwrap();
    let first = if signature.starts_with('A') { 'B' } else { 'A' };
    let forged = review(&mut admin, &format!("{head}.{first}{}", &signature[1..]), &["vault"]);
    assert_eq!(
        forged["status"]["error"],
        "[invalid bearer token, go-jose/go-jose: error in cryptographic primitive]",
        "{forged}"
    );
    admin.delete("/api/v1/namespaces/default/serviceaccounts/sa").ok();
    let ended = review(&mut admin, token, &["vault"]);
    let why = "[invalid bearer token, serviceaccounts \"sa\" not found]";
    assert_eq!(ended["status"]["error"], why, "{ended}");

    // Not everybody may ask.
    let mut alice = server.anonymous().with_token(Some(USER_TOKEN));
    alice.post(TOKENS, &question("TokenReview")).refused(403, "Forbidden");
    assert!(!server.log().contains(token) && !server.log().contains(USER_TOKEN));
}

#[test]
fn older_versions_of_the_question_who_one_is_are_gone() {
    // To ask for them is no mistake, as in the reference, and has no effect.
    let asked = "--runtime-config=api/all=true,authentication.k8s.io/v1beta1=true,authentication.k8s.io/v1alpha1=true";
    let server = Server::with(&["--engine=memory", asked]);
    for version in ["v1beta1", "v1alpha1"] {
        let mut body = question("SelfSubjectReview");
        body["apiVersion"] = json!(format!("authentication.k8s.io/{version}"));
        assert_eq!(server.admin().post(&ME.replace("v1", version), &body).status, 404, "{version}");
    }
}

#[test]
fn a_header_that_shows_a_token_is_read_as_the_reference_does() {
    let server = Server::with(&["--engine=memory"]);
    let mut nobody = server.anonymous();
    let get = |nobody: &mut Client, header: &str| {
        nobody.request("GET", "/version", &[("Authorization", header)], b"")
    };
    assert_eq!(get(&mut nobody, &format!("Bearer {ADMIN_TOKEN}")).status, 200);
    is_unknown(&get(&mut nobody, "Bearer nonsense"));
    is_unknown(&get(&mut nobody, "bearer nonsense more"));
    is_unknown(&get(&mut nobody, "Bearer ünknown"));
    let spaced = get(&mut nobody, "Bearer  nonsense");
    assert_eq!(spaced.status, 200, "somebody who showed nothing");
    let told =
        "the provided Authorization header contains extra space before the bearer token, and is ignored";
    assert_eq!(spaced.warnings(), [told]);
    // Many bad tokens cost nothing that stays.
    for at in 0..2_000 {
        assert_eq!(get(&mut nobody, &format!("Bearer bad-{at}")).status, 401);
    }
    let metrics = server.admin().get("/metrics").text();
    assert!(metrics.contains("authentication_attempts{result=\"error\"} 200"), "{metrics}");
    assert!(metrics.contains("authenticated_user_requests{username=\"admin\"}"), "{metrics}");
    assert!(!metrics.contains("bad-1"));
}

#[test]
fn certificates_say_who_is_asking() {
    let home = directory();
    let (root, foreign) = (Party::authority("root"), Party::authority("foreign"));
    let file = format!("--client-ca-file={}", root.written(&home.path().join("ca.crt")));
    let server = Server::with(&["--engine=memory", &file]);
    let subject = [("CN", "ann"), ("O", "devs"), ("O", "testers"), ("1.3.6.1.4.1.57683.2", "u-1")];
    let ann = Party::new(&subject, Use::Client, Some(&root));
    let me = who(&mut ann.at(&server, &[]), &[]);
    assert_eq!((&me["username"], &me["uid"]), (&json!("ann"), &json!("u-1")));
    assert_eq!(me["groups"], json!(["devs", "testers", "system:authenticated"]));
    let id = text(&me["extra"]["authentication.kubernetes.io/credential-id"], "/0");
    assert!(id.starts_with("X509SHA256=") && id.len() == 75, "{me}");

    let middle = Party::new(&[("CN", "middle")], Use::Authority, Some(&root));
    let below = Party::new(&[("CN", "bob")], Use::Client, Some(&middle));
    is_unknown(&asks(&mut below.at(&server, &[]), &[]));
    assert_eq!(who(&mut below.at(&server, &[&middle]), &[])["username"], "bob");
    let eve = |purpose, issuer| Party::new(&[("CN", "eve")], purpose, issuer);
    for bad in [
        eve(Use::Client, Some(&foreign)),
        eve(Use::Client, None),
        eve(Use::Expired, Some(&root)),
        eve(Use::Server, Some(&root)),
    ] {
        is_unknown(&asks(&mut bad.at(&server, &[]), &[]));
        // A token may still say who they are.
        let mut with_token = bad.at(&server, &[]).with_token(Some(USER_TOKEN));
        assert_eq!(who(&mut with_token, &[])["username"], "alice");
    }
    let nameless = Party::new(&[("O", "devs")], Use::Client, Some(&root));
    assert_eq!(nameless.at(&server, &[]).get("/version").status, 200, "as anybody");
    // A certificate comes before a token, also a bad one.
    let mut both = ann.at(&server, &[]).with_token(Some("bad"));
    assert_eq!(who(&mut both, &[])["username"], "ann");
}

#[test]
fn a_proxy_speaks_for_others_and_nobody_else_does() {
    let home = directory();
    let authority = Party::authority("front");
    let file = home.path().join("front.crt");
    let flags = [
        "--engine=memory".to_owned(),
        format!("--requestheader-client-ca-file={}", authority.written(&file)),
        "--requestheader-allowed-names=front-proxy,other".to_owned(),
        "--requestheader-username-headers=X-Remote-User,X-Name".to_owned(),
        "--requestheader-uid-headers=X-Remote-Uid".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::with(&flags);
    let mut proxy = Party::new(&[("CN", "front-proxy")], Use::Client, Some(&authority)).at(&server, &[]);
    let sent = [
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
    let wanted = json!({"username": "ann", "uid": "u", "groups": ["devs", "testers", "system:authenticated"],
        "extra": {"acme.com/project": ["p"], "scopes": ["a", "b"]}});
    assert_eq!(who(&mut proxy, &sent), wanted);
    assert_eq!(who(&mut proxy, &[("X-Name", "bob"), ("X-Remote-User", "")])["username"], "bob");
    is_unknown(&asks(&mut proxy, &[]));
    is_unknown(&asks(&mut proxy, &[("X-Remote-Group", "system:masters")]));

    // Nobody else is believed: no certificate, one of somebody else, one of another authority, one that is no client's.
    let user = [("X-Remote-User", "admin"), ("X-Remote-Group", "system:masters")];
    assert_eq!(who(&mut server.admin(), &user)["username"], "admin");
    let mut alice = server.anonymous().with_token(Some(USER_TOKEN));
    assert_eq!(who(&mut alice, &user)["username"], "alice");
    asks(&mut server.anonymous(), &user).refused(403, "Forbidden");
    let other = Party::authority("front");
    for bad in [
        Party::new(&[("CN", "stranger")], Use::Client, Some(&authority)),
        Party::new(&[("CN", "front-proxy")], Use::Server, Some(&authority)),
        Party::new(&[("CN", "front-proxy")], Use::Expired, Some(&authority)),
        Party::new(&[("CN", "front-proxy")], Use::Client, Some(&other)),
    ] {
        is_unknown(&asks(&mut bad.at(&server, &[]), &user));
    }
    let own = who(&mut server.by_certificate(), &user);
    assert_ne!(own["username"], "admin", "the client of its own name: {own}");

    // Who may be asked for further is asked of the one the proxy names.
    let as_bob = [("X-Remote-User", "ann"), ("Impersonate-User", "bob")];
    asks(&mut proxy, &as_bob).refused(403, "Forbidden");

    // Extensions are told.
    let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let told = server.admin().get(path).ok()["data"].clone();
    assert_eq!(told["requestheader-allowed-names"], "[\"front-proxy\",\"other\"]");
    assert_eq!(told["requestheader-username-headers"], "[\"X-Remote-User\",\"X-Name\"]");
    assert_eq!(told["requestheader-uid-headers"], "[\"X-Remote-Uid\"]");
    assert_eq!(told["requestheader-extra-headers-prefix"], "[\"X-Remote-Extra-\"]");
    assert_eq!(text(&told, "/requestheader-client-ca-file").as_bytes(), authority.pem());

    // Another authority counts without a restart.
    other.written(&file);
    let mut late = Party::new(&[("CN", "front-proxy")], Use::Client, Some(&other)).at(&server, &[]);
    poll(CAP, || (asks(&mut late, &[("X-Remote-User", "ann")]).status == 201).then_some(()))
        .expect("the new authority counts");
    is_unknown(&asks(&mut proxy, &[("X-Remote-User", "ann")]));
}

#[test]
fn nobody_is_anonymous_where_everybody_may_do_everything() {
    let open = Server::with(&["--engine=memory", "--authorization-mode=AlwaysAllow"]);
    is_unknown(&open.anonymous().get("/version"));
    assert!(open.log().contains("--anonymous-auth is off"), "{}", open.log());
    let closed = Server::with(&["--engine=memory", "--anonymous-auth=false"]);
    is_unknown(&closed.anonymous().get("/version"));
    let metrics = closed.admin().get("/metrics").text();
    assert!(metrics.contains("authentication_attempts{result=\"failure\"} 1"), "{metrics}");
}

#[test]
fn a_token_file_with_a_mistake_is_named_with_its_line() {
    let home = directory();
    let file = home.path().join("tokens");
    fs::write(&file, "t,u,1\n\nx,y\n").unwrap();
    let flag = format!("--token-auth-file={}", file.display());
    let refused = Server::try_on(&home.path().join("data"), &["--engine=memory", &flag]).err().unwrap();
    let said = format!("{}{}", refused.stdout, refused.stderr);
    assert!(said.contains("line 3: a token needs at least 3 columns"), "{said}");
    assert!(!refused.status.success());
}
