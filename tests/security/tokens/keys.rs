//! Signing keys, issuers and their discovery documents.

use super::*;

#[test]
fn token_keys_and_issuers_come_from_flags_and_survive_restart() {
    let directory = crate::support::server::temp_directory();
    let data = directory.path().join("data");
    let rsa = PKey::from_rsa(Rsa::generate(2_048).unwrap()).unwrap();
    let first = Server::start_in(&data, &[]);
    first.admin().post(ACCOUNTS, &account("sa")).ok();
    let old_token = request_token(&mut first.admin(), &json!({}));
    let old_key = data.join("pki/sa.pub").to_str().unwrap().to_owned();
    first.stop();
    let restarted = Server::start_in(&data, &[]);
    assert!(authenticated_user(&restarted, &old_token).is_some(), "the key is kept");
    restarted.stop();

    let signing = write_file(directory.path(), "rsa.key", &rsa.private_key_to_pem_pkcs8().unwrap());
    let flags = [
        format!("--service-account-signing-key-file={signing}"),
        format!("--service-account-key-file={old_key}"),
        "--service-account-issuer=https://new".to_owned(),
        format!("--service-account-issuer={ISSUER}"),
        "--api-audiences=api".to_owned(),
        format!("--api-audiences={ISSUER}"),
    ];
    let server = Server::start_in(&data, &flags.each_ref().map(String::as_str));
    let new_token = request_token(&mut server.admin(), &json!({}));
    assert_eq!(decode_token_part(&new_token, 0)["alg"], "RS256");
    assert_eq!(decode_token_part(&new_token, 1)["iss"], "https://new");
    assert_eq!(decode_token_part(&new_token, 1)["aud"], json!(["api", ISSUER]));
    assert!(authenticated_user(&server, &new_token).is_some());
    assert!(authenticated_user(&server, &old_token).is_some(), "the old key and issuer are still known");

    check_published_keys(&server, &new_token);
    server.stop();

    // An issuer that is no https URL has no discovery documents.
    let server = Server::start_in(&data, &["--service-account-issuer=plain"]);
    assert_eq!(server.admin().get("/.well-known/openid-configuration").status, 404);
    assert!(authenticated_user(&server, &request_token(&mut server.admin(), &json!({}))).is_some());
    server.stop();
}

/// Checks that the token can be verified with the published keys.
fn check_published_keys(server: &Server, new_token: &str) {
    let mut bearer = server.anonymous().with_token(Some(new_token));
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
    let jwk = published.iter().find(|key| key["kid"] == decode_token_part(new_token, 0)["kid"]).unwrap();
    let number = |name: &str| BigNum::from_slice(&BASE64.decode(text(jwk, name)).unwrap()).unwrap();
    let public = Rsa::from_public_components(number("/n"), number("/e")).unwrap();
    let public = PKey::from_rsa(public).unwrap();
    let mut verifier = Verifier::new(MessageDigest::sha256(), &public).unwrap();
    let (signed, signature) = new_token.rsplit_once('.').unwrap();
    verifier.update(signed.as_bytes()).unwrap();
    assert!(verifier.verify(&BASE64.decode(signature).unwrap()).unwrap());

    let response = bearer.request("GET", "/openid/v1/jwks", &[("Accept", "application/json")], b"");
    response.expect_error(406, "NotAcceptable");
    server.anonymous().get("/openid/v1/jwks").expect_error(403, "Forbidden");
}

#[test]
fn start_refuses_unusable_token_keys() {
    let directory = crate::support::server::temp_directory();
    let data = directory.path().join("data");
    let first = Server::start_in(&data, &[]);
    let old_key = data.join("pki/sa.pub").to_str().unwrap().to_owned();
    first.stop();
    let write_file = |name: &str, content: &[u8]| write_file(directory.path(), name, content);
    expect_start_error(
        &data,
        &[&format!("--service-account-signing-key-file={}", data.display())],
        "cannot read",
    );
    let invalid_file = write_file("odd.pem", b"nothing");
    expect_start_error(
        &data,
        &[&format!("--service-account-key-file={invalid_file}")],
        "has no PEM key or certificate",
    );
    expect_start_error(
        &data,
        &[&format!("--service-account-signing-key-file={old_key}")],
        "has no PEM private key",
    );
    let group = EcGroup::from_curve_name(Nid::SECP256K1).unwrap();
    let unsupported_key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let unsupported_key = write_file("unfit.pem", &unsupported_key.private_key_to_pem_pkcs8().unwrap());
    expect_start_error(
        &data,
        &[&format!("--service-account-signing-key-file={unsupported_key}")],
        "P-256, P-384 or P-521",
    );
}

/// Writes a file and returns its path.
fn write_file(folder: &Path, name: &str, content: &[u8]) -> String {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

fn expect_start_error(data: &Path, flags: &[&str], reason: &str) {
    let failure = Server::try_start_in(data, flags).err().expect("no server");
    assert!(failure.stderr.contains(reason), "{flags:?}: {}", failure.stderr);
}

#[test]
fn token_signing_key_supports_every_curve() {
    let directory = crate::support::server::temp_directory();
    for (name, curve) in [("ES384", Nid::SECP384R1), ("ES512", Nid::SECP521R1)] {
        let key = PKey::from_ec_key(EcKey::generate(&EcGroup::from_curve_name(curve).unwrap()).unwrap());
        let path = directory.path().join(name);
        fs::write(&path, key.unwrap().private_key_to_pem_pkcs8().unwrap()).unwrap();
        let flag = format!("--service-account-signing-key-file={}", path.display());
        let server = Server::with_flags(&[&flag, "--engine=memory"]);
        let mut admin = server.admin();
        admin.post(ACCOUNTS, &account("sa")).ok();
        let token = request_token(&mut admin, &json!({}));
        assert_eq!(decode_token_part(&token, 0)["alg"], name);
        assert!(authenticated_user(&server, &token).is_some(), "{name}");
    }
}
