//! Validity of service account, secret-based, bootstrap and forged tokens.

use super::*;

#[test]
fn bound_token_ends_with_its_object() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.post(ACCOUNTS, &account("sa")).ok();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    let account_token = request_token(&mut admin, &json!({}));
    for (kind, collection, object) in
        [("Pod", PODS, pod("p", "sa")), ("Secret", SECRETS, secret), ("Node", NODES, node)]
    {
        let created = admin.post(collection, &object).ok();
        let (name, uid) = (text(&created, "/metadata/name"), text(&created, "/metadata/uid"));
        let bound_reference =
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}});
        let bound = request_token(&mut admin, &bound_reference);
        let kubernetes_claim = &decode_token_part(&bound, 1)["kubernetes.io"];
        assert_eq!(
            kubernetes_claim[kind.to_lowercase()],
            json!({"name": name, "uid": uid}),
            "{kubernetes_claim}"
        );
        for _ in 0..3 {
            assert!(authenticated_user(&server, &bound).is_some(), "{kind}");
        }
        admin.delete_background(&format!("{collection}/{name}")).ok();
        assert_eq!(authenticated_user(&server, &bound), None, "the {kind} is gone");
        admin.post(collection, &object).ok();
        assert_eq!(authenticated_user(&server, &bound), None, "this is another {kind}");
        assert!(authenticated_user(&server, &account_token).is_some(), "this one hangs on no {kind}");
    }
    admin.delete(&format!("{ACCOUNTS}/sa")).ok();
    assert_eq!(authenticated_user(&server, &account_token), None);
    admin.post(ACCOUNTS, &account("sa")).ok();
    assert_eq!(authenticated_user(&server, &account_token), None, "this is another account");
}

/// A token with these claims, signed by `key` on P-256.
fn sign(key: &PKey<Private>, header: &Value, claims: &Value) -> String {
    let signed = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
    let created = EcdsaSig::sign(&sha256(signed.as_bytes()), &*key.ec_key().unwrap()).unwrap();
    let number = |number: &openssl::bn::BigNumRef| number.to_vec_padded(32).unwrap();
    format!("{signed}.{}", BASE64.encode([number(created.r()), number(created.s())].concat()))
}

/// A token of these claims, signed with HS256.
fn sign_with_secret(secret: &[u8], key_id: &Value, claims: &Value) -> String {
    let header = BASE64.encode(json!({"alg": "HS256", "kid": key_id}).to_string());
    let signed = format!("{header}.{}", BASE64.encode(claims.to_string()));
    let secret = PKey::hmac(secret).unwrap();
    let mut signer = Signer::new(MessageDigest::sha256(), &secret).unwrap();
    signer.update(signed.as_bytes()).unwrap();
    format!("{signed}.{}", BASE64.encode(signer.sign_to_vec().unwrap()))
}

#[test]
fn forged_tokens_are_refused() {
    let mut server = Server::start();
    let mut admin = server.admin();
    admin.post(ACCOUNTS, &account("sa")).ok();
    let valid_token = request_token(&mut admin, &json!({}));
    let (header, claims) = (decode_token_part(&valid_token, 0), decode_token_part(&valid_token, 1));
    let now = claims["iat"].as_i64().unwrap();
    let pem = fs::read(server.data.join("pki/sa.key")).unwrap();
    let key = PKey::private_key_from_pem(&pem).unwrap();
    let signed_with = |field: &str, value: Value| {
        let mut claims = claims.clone();
        claims[field] = value;
        sign(&key, &header, &claims)
    };
    assert!(
        authenticated_user(&server, &signed_with("jti", "another".into())).is_some(),
        "the test signs as the server does"
    );

    let unsigned = |alg: &str| {
        format!("{}.{}.", BASE64.encode(json!({"alg": alg}).to_string()), BASE64.encode(claims.to_string()))
    };
    let by_public_key = |public: &[u8]| sign_with_secret(public, &header["kid"], &claims);
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let foreign_key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut other_id = header.clone();
    other_id["kid"] = "another".into();
    let mut header_without_kid = header.clone();
    header_without_kid.as_object_mut().unwrap().remove("kid");
    let zeros = {
        let signed = valid_token.rsplit_once('.').unwrap().0;
        format!("{signed}.{}", BASE64.encode([0; 64]))
    };
    let large = signed_with("padding", "x".repeat(20_000).into());
    let deep = format!("{}.{}.AAAA", BASE64.encode(header.to_string()), BASE64.encode("[".repeat(9_000)));
    for (case, token) in [
        ("alg none", unsigned("none")),
        ("alg NONE", unsigned("NONE")),
        ("no alg", unsigned("")),
        ("the public key as a secret", by_public_key(&key.public_key_to_pem().unwrap())),
        ("the public key as a secret", by_public_key(&key.public_key_to_der().unwrap())),
        ("another key by the same id", sign(&foreign_key, &header, &claims)),
        ("another key without an id", sign(&foreign_key, &header_without_kid, &claims)),
        ("an unknown id", sign(&key, &other_id, &claims)),
        ("expired", signed_with("exp", (now - 61).into())),
        ("not yet valid", signed_with("nbf", (now + 3_600).into())),
        ("issued in the future", signed_with("iat", (now + 3_600).into())),
        ("another audience", signed_with("aud", json!(["them"]))),
        ("another issuer", signed_with("iss", "https://them".into())),
        ("no account", signed_with("kubernetes.io", json!({}))),
        ("zeros for a signature", zeros),
        ("no signature", format!("{}.", valid_token.rsplit_once('.').unwrap().0)),
        ("cut", valid_token[..valid_token.len() - 2].to_owned()),
        ("large", large),
        ("deep", deep),
        ("dots", ".".repeat(2_000)),
        ("garbage", "a.b.c".to_owned()),
    ] {
        assert_eq!(authenticated_user(&server, &token), None, "{case}");
    }
    assert!(
        authenticated_user(&server, &sign(&key, &header_without_kid, &claims)).is_some(),
        "a token need not name its key"
    );
    let log = server.log();
    assert!(log.contains("the credentials are not accepted: "), "{log}");
    assert!(!log.contains(&valid_token) && !log.contains("padding"), "{log}");
    server.assert_healthy();
}

/// A token past `warnafter` is valid, but counted and logged.
#[test]
fn stale_token_is_accepted_and_reported() {
    let mut server = Server::start();
    let mut admin = server.admin();
    admin.post(ACCOUNTS, &account("sa")).ok();
    let valid_token = request_token(&mut admin, &json!({}));
    let (header, mut claims) = (decode_token_part(&valid_token, 0), decode_token_part(&valid_token, 1));
    let key = PKey::private_key_from_pem(&fs::read(server.data.join("pki/sa.key")).unwrap()).unwrap();
    claims["kubernetes.io"]["warnafter"] = (claims["iat"].as_i64().unwrap() - 7).into();
    let stale = sign(&key, &header, &claims);
    for _ in 0..3 {
        assert!(authenticated_user(&server, &stale).is_some());
    }
    let metrics = admin.get("/metrics").text();
    assert!(metrics.contains("\nserviceaccount_stale_tokens_total 3\n"), "{metrics}");
    let log = server.log();
    assert_eq!(log.matches("a stale service account token was used").count(), 1, "{log}");
    assert!(!log.contains(&stale) && !log.contains(&valid_token), "{log}");
    server.assert_healthy();
}

#[test]
fn secret_based_token_is_valid_while_secret_holds_it() {
    let server = Server::start();
    let mut admin = server.admin();
    let created = admin.post(ACCOUNTS, &account("sa")).ok();
    let key = PKey::private_key_from_pem(&fs::read(server.data.join("pki/sa.key")).unwrap()).unwrap();
    let header = decode_token_part(&request_token(&mut admin, &json!({})), 0);
    let claim = "kubernetes.io/serviceaccount";
    let token = sign(
        &key,
        &header,
        &json!({
            "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:sa",
            format!("{claim}/namespace"): "default", format!("{claim}/secret.name"): "s",
            format!("{claim}/service-account.name"): "sa",
            format!("{claim}/service-account.uid"): created["metadata"]["uid"],
        }),
    );
    assert_eq!(authenticated_user(&server, &token), None, "there is no secret");
    let secret = |token: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "sa"}},
            "data": {"token": BASE64_STANDARD.encode(token)}})
    };
    admin.post(SECRETS, &secret(&token)).ok();
    assert_eq!(authenticated_user(&server, &token).as_deref(), Some("system:serviceaccount:default:sa"));
    admin.put(&format!("{SECRETS}/s"), &secret("another")).ok();
    assert_eq!(authenticated_user(&server, &token), None, "the secret holds another token");
    admin.put(&format!("{SECRETS}/s"), &secret(&token)).ok();
    assert!(authenticated_user(&server, &token).is_some());
    // The token of a Secret that the account lists counts as auto-generated, and has a warning.
    let mut bearer = server.anonymous().with_token(Some(&token));
    assert!(bearer.get("/version").warnings().is_empty());
    admin.patch(&format!("{ACCOUNTS}/sa"), "merge", &json!({"secrets": [{"name": "s"}]})).ok();
    let warnings = [
        "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated \
                 secret-based tokens.",
    ];
    for _ in 0..2 {
        assert_eq!(bearer.get("/version").warnings(), warnings);
    }
    let mut review = request(&json!({"token": token}));
    review["kind"] = "TokenReview".into();
    let reviewed = admin.post("/apis/authentication.k8s.io/v1/tokenreviews", &review);
    assert_eq!(reviewed.warnings(), warnings);
    assert_eq!(reviewed.ok()["status"]["authenticated"], true);
    let marked = json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": "2024-01-01"}}});
    admin.patch(&format!("{SECRETS}/s"), "merge", &marked).ok();
    assert_eq!(authenticated_user(&server, &token), None, "somebody has marked it");
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
    assert_eq!(authenticated_user(&server, &token), None);
}

#[test]
fn bootstrap_token_authenticates_while_secret_is_valid() {
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let secret = |data: Value| {
        json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": "bootstrap-token-abcdef"}, "stringData": data})
    };
    let data = json!({"token-id": "abcdef", "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true"});
    let token = "abcdef.0123456789abcdef";
    let server = Server::with_flags(&["--enable-bootstrap-token-auth"]);
    let mut admin = server.admin();
    assert_eq!(authenticated_user(&server, token), None);
    admin.post(secrets, &secret(data.clone())).ok();
    assert_eq!(authenticated_user(&server, token).as_deref(), Some("system:bootstrap:abcdef"));
    for invalid_token in ["abcdef.0123456789abcdee", "abcdeg.0123456789abcdef", "abcdef.0123456789abcdef0"] {
        assert_eq!(authenticated_user(&server, invalid_token), None, "{invalid_token}");
    }
    let mut expired = data.clone();
    expired["expiration"] = "2001-01-01T00:00:00Z".into();
    admin.put(&format!("{secrets}/bootstrap-token-abcdef"), &secret(expired)).ok();
    assert_eq!(authenticated_user(&server, token), None);

    let server_without_flag = Server::start();
    server_without_flag.admin().post(secrets, &secret(data)).ok();
    assert_eq!(authenticated_user(&server_without_flag, token), None, "nobody asked for bootstrap tokens");
}
