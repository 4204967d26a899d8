//! Tokens of service accounts, from the request for one to its end, and what is no token though it looks like one. Those of
//! OpenID Connect providers stand in `tokens/openid.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "tokens/openid.rs"]
mod openid;
mod support;

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD as BASE64};
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::ecdsa::EcdsaSig;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::sha::sha256;
use openssl::sign::{Signer, Verifier};
use serde_json::{Value, json};
use support::compare::text;
use support::{Client, Server};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const NODES: &str = "/api/v1/nodes";
const ISSUER: &str = "https://kubernetes.default.svc";

fn request(spec: &Value) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
}

fn account(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
}

fn pod(name: &str, account: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"serviceAccountName": account, "containers": [{"name": "c", "image": "i"}]}})
}

fn ask(admin: &mut Client, spec: &Value) -> Value {
    admin.post(&format!("{ACCOUNTS}/sa/token"), &request(spec)).ok()
}

fn token(admin: &mut Client, spec: &Value) -> String {
    text(&ask(admin, spec), "/status/token").to_owned()
}

fn part(token: &str, at: usize) -> Value {
    serde_json::from_slice(&BASE64.decode(token.split('.').nth(at).unwrap()).unwrap()).unwrap()
}

/// What the server makes of a token: the user, or nobody.
fn user(server: &Server, token: &str) -> Option<String> {
    let mut client = server.anonymous().with_token(Some(token));
    let answer = client.get("/api/v1/namespaces/default/configmaps");
    match answer.status {
        401 => None,
        403 => {
            let status = answer.json();
            let message = text(&status, "/message");
            Some(message.split('"').nth(1).expect("a user").to_owned())
        }
        other => panic!("{other}: {}", answer.text()),
    }
}

#[test]
fn a_token_is_made_as_asked_and_speaks_for_its_account() {
    let server = Server::start();
    let mut admin = server.admin();
    let made = admin.post(ACCOUNTS, &account("sa")).ok();
    let answer = ask(&mut admin, &json!({}));
    assert_eq!(text(&answer, "/kind"), "TokenRequest");
    assert_eq!(text(&answer, "/metadata/name"), "sa");
    assert_eq!(answer["metadata"].get("uid"), None);
    assert_eq!(
        answer["spec"],
        json!({"audiences": [ISSUER], "expirationSeconds": 3600, "boundObjectRef": null})
    );
    let token = text(&answer, "/status/token");
    let claims = part(token, 1);
    assert_eq!(claims["sub"], "system:serviceaccount:default:sa");
    assert_eq!((&claims["iss"], &claims["aud"]), (&json!(ISSUER), &json!([ISSUER])));
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 3_600);
    assert_eq!(claims["iat"], claims["nbf"]);
    assert_eq!(text(&claims, "/jti").len(), 36);
    assert_eq!(
        claims["kubernetes.io"],
        json!({"namespace": "default", "serviceaccount": {"name": "sa", "uid": made["metadata"]["uid"]}})
    );
    assert_eq!(user(&server, token).as_deref(), Some("system:serviceaccount:default:sa"));
    let mut bearer = server.anonymous().with_token(Some(token));
    bearer.get("/apis").ok();

    // A dry run makes a token all the same, and no two are the same.
    let dry = admin.post(&format!("{ACCOUNTS}/sa/token?dryRun=All"), &request(&json!({}))).ok();
    assert_ne!(text(&dry, "/status/token"), token);
    assert!(user(&server, text(&dry, "/status/token")).is_some());

    // In the other encodings it is the same request.
    let yaml = [("Content-Type", "application/yaml"), ("Accept", "application/yaml")];
    let body = b"apiVersion: authentication.k8s.io/v1\nkind: TokenRequest\n";
    let answer = admin.request("POST", &format!("{ACCOUNTS}/sa/token"), &yaml, body);
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert!(answer.text().contains("kind: TokenRequest"), "{}", answer.text());
    let binary = [("Content-Type", "application/json"), ("Accept", "application/vnd.kubernetes.protobuf")];
    let path = format!("{ACCOUNTS}/sa/token");
    let answer = admin.request("POST", &path, &binary, request(&json!({})).to_string().as_bytes());
    assert!(answer.body.starts_with(b"k8s\0"), "{}", answer.text());
    assert!(!server.log().contains(token));
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.post(ACCOUNTS, &account("sa")).ok();
    admin.post(PODS, &pod("other", "someone")).ok();
    admin.post(PODS, &pod("mine", "sa")).ok();
    let path = format!("{ACCOUNTS}/sa/token");
    let head = "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value";
    let to =
        |kind: &str, name: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}});
    for (spec, code, reason, message) in [
        (
            json!({"expirationSeconds": 599}),
            422,
            "Invalid",
            format!("{head}: 599: may not specify a duration less than 10 minutes"),
        ),
        (
            json!({"expirationSeconds": 4_294_967_297_i64}),
            422,
            "Invalid",
            format!("{head}: 4294967297: may not specify a duration larger than 2^32 seconds"),
        ),
        (to("Pod", "none"), 404, "NotFound", "pods \"none\" not found".into()),
        (to("Secret", "none"), 404, "NotFound", "secrets \"none\" not found".into()),
        (to("Node", "none"), 404, "NotFound", "nodes \"none\" not found".into()),
        (to("Pod", ""), 400, "BadRequest", "Name parameter required.".into()),
        (
            to("Pod", "other"),
            400,
            "BadRequest",
            "cannot bind token for serviceaccount \"sa\" to pod running with different serviceaccount name.".into(),
        ),
        (
            to("ConfigMap", "x"),
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
        let status = admin.post(&path, &request(&spec)).refused(code, reason);
        assert_eq!(text(&status, "/message"), message);
    }
    let status = admin.post(&format!("{ACCOUNTS}/none/token"), &request(&json!({}))).refused(404, "NotFound");
    assert_eq!(text(&status, "/message"), "serviceaccounts \"none\" not found");
    let mut named = request(&json!({}));
    named["metadata"] = json!({"name": "other"});
    let status = admin.post(&path, &named).refused(422, "Invalid");
    assert_eq!(
        text(&status, "/message"),
        "TokenRequest.authentication.k8s.io \"sa\" is invalid: metadata.name: Invalid value: \"other\": must match the service account name if specified"
    );
    named["metadata"] = json!({"namespace": "other"});
    admin.post(&path, &named).refused(400, "BadRequest");
    admin.get(&path).refused(405, "MethodNotAllowed");
    admin.post(&path, &account("sa")).refused(400, "BadRequest");
    // Nobody makes tokens for themselves without a right to.
    server.anonymous().post(&path, &request(&json!({}))).refused(403, "Forbidden");
}

#[test]
fn a_token_ends_with_what_it_hangs_on() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.post(ACCOUNTS, &account("sa")).ok();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    let account_token = token(&mut admin, &json!({}));
    for (kind, place, object) in
        [("Pod", PODS, pod("p", "sa")), ("Secret", SECRETS, secret), ("Node", NODES, node)]
    {
        let made = admin.post(place, &object).ok();
        let (name, uid) = (text(&made, "/metadata/name"), text(&made, "/metadata/uid"));
        let to = json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}});
        let bound = token(&mut admin, &to);
        let said = &part(&bound, 1)["kubernetes.io"];
        assert_eq!(said[kind.to_lowercase()], json!({"name": name, "uid": uid}), "{said}");
        for _ in 0..3 {
            assert!(user(&server, &bound).is_some(), "{kind}");
        }
        admin.delete_background(&format!("{place}/{name}")).ok();
        assert_eq!(user(&server, &bound), None, "the {kind} is gone");
        admin.post(place, &object).ok();
        assert_eq!(user(&server, &bound), None, "this is another {kind}");
        assert!(user(&server, &account_token).is_some(), "this one hangs on no {kind}");
    }
    admin.delete(&format!("{ACCOUNTS}/sa")).ok();
    assert_eq!(user(&server, &account_token), None);
    admin.post(ACCOUNTS, &account("sa")).ok();
    assert_eq!(user(&server, &account_token), None, "this is another account");
}

#[test]
fn a_token_of_a_pod_names_its_node_and_may_hold_for_a_year() {
    let server = Server::with(&["--service-account-max-token-expiration=2h"]);
    let mut admin = server.admin();
    admin.post(ACCOUNTS, &account("sa")).ok();
    let mut placed = pod("p", "sa");
    placed["spec"]["nodeName"] = "gone".into();
    admin.post(PODS, &placed).ok();
    let to = json!({"apiVersion": "v1", "kind": "Pod", "name": "p"});
    let answer = ask(&mut admin, &json!({"boundObjectRef": to, "expirationSeconds": 3607}));
    let claims = part(text(&answer, "/status/token"), 1);
    assert_eq!(claims["kubernetes.io"]["node"], json!({"name": "gone"}));
    let issued = claims["iat"].as_i64().unwrap();
    assert_eq!(claims["exp"].as_i64().unwrap() - issued, 31_536_000);
    assert_eq!(claims["kubernetes.io"]["warnafter"].as_i64().unwrap() - issued, 3_607);
    assert_eq!(answer["spec"]["expirationSeconds"], 3_607, "the client need not know");
    assert!(user(&server, text(&answer, "/status/token")).is_some());

    let path = format!("{ACCOUNTS}/sa/token");
    let long = admin.post(&path, &request(&json!({"expirationSeconds": 7_201})));
    let warning = long.header("warning").unwrap_or_default();
    assert!(warning.contains("requested expiration of 7201 seconds shortened to 7200 seconds"), "{warning}");
    let claims = part(text(&long.ok(), "/status/token"), 1);
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 7_200);
}

/// A token of these claims, signed by `key` on P-256.
fn sign(key: &PKey<Private>, header: &Value, claims: &Value) -> String {
    let signed = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
    let made = EcdsaSig::sign(&sha256(signed.as_bytes()), &*key.ec_key().unwrap()).unwrap();
    let number = |number: &openssl::bn::BigNumRef| number.to_vec_padded(32).unwrap();
    format!("{signed}.{}", BASE64.encode([number(made.r()), number(made.s())].concat()))
}

#[test]
fn what_only_looks_like_a_token_is_refused() {
    let mut server = Server::start();
    let mut admin = server.admin();
    admin.post(ACCOUNTS, &account("sa")).ok();
    let good = token(&mut admin, &json!({}));
    let (header, claims) = (part(&good, 0), part(&good, 1));
    let now = claims["iat"].as_i64().unwrap();
    let pem = fs::read(server.data.join("pki/sa.key")).unwrap();
    let key = PKey::private_key_from_pem(&pem).unwrap();
    let with = |field: &str, value: Value| {
        let mut claims = claims.clone();
        claims[field] = value;
        sign(&key, &header, &claims)
    };
    assert!(user(&server, &with("jti", "another".into())).is_some(), "the test signs as the server does");

    let unsigned = |alg: &str| {
        format!("{}.{}.", BASE64.encode(json!({"alg": alg}).to_string()), BASE64.encode(claims.to_string()))
    };
    let by_public_key = |public: &[u8]| {
        let header = BASE64.encode(json!({"alg": "HS256", "kid": header["kid"]}).to_string());
        let signed = format!("{header}.{}", BASE64.encode(claims.to_string()));
        let secret = PKey::hmac(public).unwrap();
        let mut signer = Signer::new(MessageDigest::sha256(), &secret).unwrap();
        signer.update(signed.as_bytes()).unwrap();
        format!("{signed}.{}", BASE64.encode(signer.sign_to_vec().unwrap()))
    };
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let stranger = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut other_id = header.clone();
    other_id["kid"] = "another".into();
    let mut nameless = header.clone();
    nameless.as_object_mut().unwrap().remove("kid");
    let zeros = {
        let signed = good.rsplit_once('.').unwrap().0;
        format!("{signed}.{}", BASE64.encode([0; 64]))
    };
    let large = with("padding", "x".repeat(20_000).into());
    let deep = format!("{}.{}.AAAA", BASE64.encode(header.to_string()), BASE64.encode("[".repeat(9_000)));
    for (what, token) in [
        ("alg none", unsigned("none")),
        ("alg NONE", unsigned("NONE")),
        ("no alg", unsigned("")),
        ("the public key as a secret", by_public_key(&key.public_key_to_pem().unwrap())),
        ("the public key as a secret", by_public_key(&key.public_key_to_der().unwrap())),
        ("another key by the same id", sign(&stranger, &header, &claims)),
        ("another key without an id", sign(&stranger, &nameless, &claims)),
        ("an unknown id", sign(&key, &other_id, &claims)),
        ("expired", with("exp", (now - 61).into())),
        ("not yet valid", with("nbf", (now + 3_600).into())),
        ("issued in the future", with("iat", (now + 3_600).into())),
        ("another audience", with("aud", json!(["them"]))),
        ("another issuer", with("iss", "https://them".into())),
        ("no account", with("kubernetes.io", json!({}))),
        ("zeros for a signature", zeros),
        ("no signature", format!("{}.", good.rsplit_once('.').unwrap().0)),
        ("cut", good[..good.len() - 2].to_owned()),
        ("large", large),
        ("deep", deep),
        ("dots", ".".repeat(2_000)),
        ("garbage", "a.b.c".to_owned()),
    ] {
        assert_eq!(user(&server, &token), None, "{what}");
    }
    assert!(user(&server, &sign(&key, &nameless, &claims)).is_some(), "a token need not name its key");
    // One that should have been replaced is good, but it is told.
    let mut about = claims["kubernetes.io"].clone();
    about["warnafter"] = (now - 7).into();
    let stale = with("kubernetes.io", about);
    for _ in 0..3 {
        assert!(user(&server, &stale).is_some());
    }
    let metrics = admin.get("/metrics").text();
    assert!(metrics.contains("\nserviceaccount_stale_tokens_total 3\n"), "{metrics}");
    let log = server.log();
    assert_eq!(log.matches("a stale service account token was used").count(), 1, "{log}");
    assert!(log.contains("the credentials are not accepted: "), "{log}");
    assert!(!log.contains(&stale) && !log.contains(&good) && !log.contains("padding"), "{log}");
    server.unharmed();
}

#[test]
fn keys_and_issuers_come_from_flags_and_outlive_a_restart() {
    let directory = support::server::directory();
    let data = directory.path().join("data");
    let rsa = PKey::from_rsa(Rsa::generate(2_048).unwrap()).unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let first = Server::on(&data, &[]);
    first.admin().post(ACCOUNTS, &account("sa")).ok();
    let old = token(&mut first.admin(), &json!({}));
    let old_key = data.join("pki/sa.pub").to_str().unwrap().to_owned();
    first.stop();
    let again = Server::on(&data, &[]);
    assert!(user(&again, &old).is_some(), "the key is kept");
    again.stop();

    let signing = file("rsa.key", &rsa.private_key_to_pem_pkcs8().unwrap());
    let flags = [
        format!("--service-account-signing-key-file={signing}"),
        format!("--service-account-key-file={old_key}"),
        "--service-account-issuer=https://new".to_owned(),
        format!("--service-account-issuer={ISSUER}"),
        "--api-audiences=api".to_owned(),
        format!("--api-audiences={ISSUER}"),
    ];
    let server = Server::on(&data, &flags.each_ref().map(String::as_str));
    let new = token(&mut server.admin(), &json!({}));
    assert_eq!(part(&new, 0)["alg"], "RS256");
    assert_eq!(part(&new, 1)["iss"], "https://new");
    assert_eq!(part(&new, 1)["aud"], json!(["api", ISSUER]));
    assert!(user(&server, &new).is_some());
    assert!(user(&server, &old).is_some(), "the old key and issuer are still known");

    // Anybody can verify the token with what is published.
    let mut bearer = server.anonymous().with_token(Some(&new));
    let configuration = bearer.get("/.well-known/openid-configuration");
    assert_eq!(configuration.header("content-type"), Some("application/json"));
    assert_eq!(configuration.header("cache-control"), Some("public, max-age=3600"));
    let configuration = configuration.ok();
    assert_eq!(text(&configuration, "/issuer"), "https://new");
    assert!(text(&configuration, "/jwks_uri").ends_with("/openid/v1/jwks"));
    assert_eq!(configuration["id_token_signing_alg_values_supported"], json!(["ES256", "RS256"]));
    let keys = bearer.get("/openid/v1/jwks");
    assert_eq!(keys.header("content-type"), Some("application/jwk-set+json"));
    assert_eq!(keys.header("cache-control"), Some("public, max-age=3600"));
    let keys = keys.ok();
    let published = keys["keys"].as_array().unwrap();
    assert_eq!(published.len(), 2);
    let found = published.iter().find(|key| key["kid"] == part(&new, 0)["kid"]).unwrap();
    let number = |name: &str| BigNum::from_slice(&BASE64.decode(text(found, name)).unwrap()).unwrap();
    let public = Rsa::from_public_components(number("/n"), number("/e")).unwrap();
    let public = PKey::from_rsa(public).unwrap();
    let mut verifier = Verifier::new(MessageDigest::sha256(), &public).unwrap();
    let (signed, signature) = new.rsplit_once('.').unwrap();
    verifier.update(signed.as_bytes()).unwrap();
    assert!(verifier.verify(&BASE64.decode(signature).unwrap()).unwrap());

    let wrong = bearer.request("GET", "/openid/v1/jwks", &[("Accept", "application/json")], b"");
    wrong.refused(406, "NotAcceptable");
    server.anonymous().get("/openid/v1/jwks").refused(403, "Forbidden");
    server.stop();

    // An issuer that is no https URL has no documents.
    let server = Server::on(&data, &["--service-account-issuer=plain"]);
    assert_eq!(server.admin().get("/.well-known/openid-configuration").status, 404);
    assert!(user(&server, &token(&mut server.admin(), &json!({}))).is_some());
    server.stop();
    refused_at_start(
        &data,
        &[&format!("--service-account-signing-key-file={}", data.display())],
        "cannot read",
    );
    let odd = file("odd.pem", b"nothing");
    refused_at_start(&data, &[&format!("--service-account-key-file={odd}")], "has no PEM key or certificate");
    refused_at_start(
        &data,
        &[&format!("--service-account-signing-key-file={old_key}")],
        "has no PEM private key",
    );
    let group = EcGroup::from_curve_name(Nid::SECP256K1).unwrap();
    let unfit = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let unfit = file("unfit.pem", &unfit.private_key_to_pem_pkcs8().unwrap());
    refused_at_start(
        &data,
        &[&format!("--service-account-signing-key-file={unfit}")],
        "P-256, P-384 or P-521",
    );
}

fn refused_at_start(data: &Path, flags: &[&str], why: &str) {
    let refusal = Server::try_on(data, flags).err().expect("no server");
    assert!(refusal.stderr.contains(why), "{flags:?}: {}", refusal.stderr);
}

#[test]
fn tokens_that_lie_in_secrets_are_worth_what_the_secret_says() {
    let server = Server::start();
    let mut admin = server.admin();
    let made = admin.post(ACCOUNTS, &account("sa")).ok();
    let key = PKey::private_key_from_pem(&fs::read(server.data.join("pki/sa.key")).unwrap()).unwrap();
    let header = part(&token(&mut admin, &json!({})), 0);
    let claim = "kubernetes.io/serviceaccount";
    let token = sign(
        &key,
        &header,
        &json!({
            "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:sa",
            format!("{claim}/namespace"): "default", format!("{claim}/secret.name"): "s",
            format!("{claim}/service-account.name"): "sa",
            format!("{claim}/service-account.uid"): made["metadata"]["uid"],
        }),
    );
    assert_eq!(user(&server, &token), None, "there is no secret");
    let secret = |token: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "sa"}},
            "data": {"token": BASE64_STANDARD.encode(token)}})
    };
    admin.post(SECRETS, &secret(&token)).ok();
    assert_eq!(user(&server, &token).as_deref(), Some("system:serviceaccount:default:sa"));
    admin.put(&format!("{SECRETS}/s"), &secret("another")).ok();
    assert_eq!(user(&server, &token), None, "the secret holds another token");
    admin.put(&format!("{SECRETS}/s"), &secret(&token)).ok();
    assert!(user(&server, &token).is_some());
    // A Secret that the account lists was made by a controller: whoever shows its token is told that there are better ones.
    let mut bearer = server.anonymous().with_token(Some(&token));
    assert!(bearer.get("/version").warnings().is_empty());
    admin.patch(&format!("{ACCOUNTS}/sa"), "merge", &json!({"secrets": [{"name": "s"}]})).ok();
    let told = [
        "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated \
                 secret-based tokens.",
    ];
    for _ in 0..2 {
        assert_eq!(bearer.get("/version").warnings(), told);
    }
    let mut review = request(&json!({"token": token}));
    review["kind"] = "TokenReview".into();
    let reviewed = admin.post("/apis/authentication.k8s.io/v1/tokenreviews", &review);
    assert_eq!(reviewed.warnings(), told);
    assert_eq!(reviewed.ok()["status"]["authenticated"], true);
    let marked = json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": "2024-01-01"}}});
    admin.patch(&format!("{SECRETS}/s"), "merge", &marked).ok();
    assert_eq!(user(&server, &token), None, "somebody has marked it");
    let metrics = admin.get("/metrics").text();
    for (name, used) in [
        ("legacy_auto_token_uses", 3),
        ("invalid_legacy_auto_token_uses", 1),
        ("stale_tokens", 0),
        ("valid_tokens", 0),
    ] {
        let line = format!("\nserviceaccount_{name}_total {used}\n");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    for name in ["legacy_manual_token_uses", "legacy_tokens"] {
        let line = format!("\nserviceaccount_{name}_total ");
        assert!(metrics.contains(&line) && !metrics.contains(&format!("{line}0\n")), "{line}: {metrics}");
    }
    admin.delete(&format!("{SECRETS}/s")).ok();
    assert_eq!(user(&server, &token), None);
}

#[test]
fn bootstrap_tokens_are_secrets_of_the_system() {
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let secret = |data: Value| {
        json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": "bootstrap-token-abcdef"}, "stringData": data})
    };
    let data = json!({"token-id": "abcdef", "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true"});
    let token = "abcdef.0123456789abcdef";
    let server = Server::with(&["--enable-bootstrap-token-auth"]);
    let mut admin = server.admin();
    assert_eq!(user(&server, token), None);
    admin.post(secrets, &secret(data.clone())).ok();
    assert_eq!(user(&server, token).as_deref(), Some("system:bootstrap:abcdef"));
    for wrong in ["abcdef.0123456789abcdee", "abcdeg.0123456789abcdef", "abcdef.0123456789abcdef0"] {
        assert_eq!(user(&server, wrong), None, "{wrong}");
    }
    let mut over = data.clone();
    over["expiration"] = "2001-01-01T00:00:00Z".into();
    admin.put(&format!("{secrets}/bootstrap-token-abcdef"), &secret(over)).ok();
    assert_eq!(user(&server, token), None);

    let without = Server::start();
    without.admin().post(secrets, &secret(data)).ok();
    assert_eq!(user(&without, token), None, "nobody asked for bootstrap tokens");
}

#[test]
fn pods_get_what_their_account_has() {
    let server = Server::with(&["--enable-admission-plugins=ServiceAccount"]);
    let mut admin = server.admin();
    let mut bare = pod("bare", "");
    bare["spec"].as_object_mut().unwrap().remove("serviceAccountName");
    let forbidden = |answer: support::Answer, why: &str| {
        let status = answer.refused(403, "Forbidden");
        assert_eq!(text(&status, "/message"), why);
    };
    forbidden(
        admin.post(PODS, &bare),
        "pods \"bare\" is forbidden: error looking up service account default/default: serviceaccount \"default\" not found",
    );
    let mut default = account("default");
    default["imagePullSecrets"] = json!([{"name": "pull"}]);
    admin.post(ACCOUNTS, &default).ok();
    let made = admin.post(PODS, &bare).ok();
    let spec = &made["spec"];
    assert_eq!((text(spec, "/serviceAccountName"), text(spec, "/serviceAccount")), ("default", "default"));
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
    let name = text(spec, "/volumes/0/name");
    assert!(name.starts_with("kube-api-access-"), "{name}");
    assert_eq!(
        spec["containers"][0]["volumeMounts"],
        json!([{"name": name, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}])
    );
    assert_eq!(
        spec["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"],
        3_607
    );
    assert_eq!(spec["volumes"][0]["projected"]["defaultMode"], 420);

    forbidden(
        admin.post(PODS, &pod("p", "none")),
        "pods \"p\" is forbidden: error looking up service account default/none: serviceaccount \"none\" not found",
    );
    let mut strict = account("strict");
    strict["metadata"]["annotations"] = json!({"kubernetes.io/enforce-mountable-secrets": "true"});
    strict["secrets"] = json!([{"name": "good"}]);
    admin.post(ACCOUNTS, &strict).ok();
    let mut with_secret = pod("p", "strict");
    with_secret["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "bad"}}]);
    forbidden(
        admin.post(PODS, &with_secret),
        "pods \"p\" is forbidden: container c with envFrom referencing secret.secretName=\"bad\" is not allowed because service account strict does not reference that secret",
    );
    with_secret["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "good"}}]);
    admin.post(PODS, &with_secret).ok();
    let path = format!("{PODS}/p/ephemeralcontainers");
    let patch = |secret: &str| {
        json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i",
            "envFrom": [{"secretRef": {"name": secret}}]}]}})
    };
    forbidden(
        admin.patch(&path, "strategic-merge", &patch("bad")),
        "pods \"p\" is forbidden: ephemeral container e with envFrom referencing secret.secretName=\"bad\" is not allowed because service account strict does not reference that secret",
    );
    admin.patch(&path, "strategic-merge", &patch("good")).ok();

    let mut mirror = pod("m", "default");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    mirror["spec"]["nodeName"] = "n".into();
    forbidden(
        admin.post(PODS, &mirror),
        "pods \"m\" is forbidden: a mirror pod may not reference service accounts",
    );
}

#[test]
fn the_server_takes_every_curve() {
    let directory = support::server::directory();
    for (name, curve) in [("ES384", Nid::SECP384R1), ("ES512", Nid::SECP521R1)] {
        let key = PKey::from_ec_key(EcKey::generate(&EcGroup::from_curve_name(curve).unwrap()).unwrap());
        let path = directory.path().join(name);
        fs::write(&path, key.unwrap().private_key_to_pem_pkcs8().unwrap()).unwrap();
        let flag = format!("--service-account-signing-key-file={}", path.display());
        let server = Server::with(&[&flag, "--engine=memory"]);
        let mut admin = server.admin();
        admin.post(ACCOUNTS, &account("sa")).ok();
        let token = token(&mut admin, &json!({}));
        assert_eq!(part(&token, 0)["alg"], name);
        assert!(user(&server, &token).is_some(), "{name}");
    }
}
