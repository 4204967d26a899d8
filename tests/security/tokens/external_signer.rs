//! Tokens that an external signer signs, over a Unix socket.

mod signer;

use std::path::PathBuf;
use std::sync::Arc;

use pilothouse_plugins::Code;
use pilothouse_types::lock::Lock;
use tempfile::TempDir;

use self::signer::{Behaviour, SignJwtResponse, TokenKey, TokenSigner, behaviour};
use super::*;
use crate::support::wait::{TIMEOUT, poll};

const GATE: &str = "--feature-gates=ExternalServiceAccountTokenSigner=true";

/// A server with a signer that has the key `first`.
struct Fixture {
    server: Server,
    signer: Option<TokenSigner>,
    behaviour: Arc<Lock<Behaviour>>,
    first: TokenKey,
    socket: PathBuf,
    directory: TempDir,
}

impl Fixture {
    fn new(change: impl FnOnce(&mut Behaviour)) -> Fixture {
        let directory = crate::support::server::temp_directory();
        let socket = socket(&directory);
        let first = TokenKey::new("first", "ES256");
        let behaviour = behaviour(&first);
        change(&mut behaviour.lock());
        let signer = TokenSigner::start(&socket, behaviour.clone());
        let data = directory.path().join("data");
        let endpoint = format!("--service-account-signing-endpoint={}", socket.display());
        let server = Server::start_in(&data, &[GATE, &endpoint]);
        server.admin().post(ACCOUNTS, &account("sa")).ok();
        Fixture { server, signer: Some(signer), behaviour, first, socket, directory }
    }

    fn token(&self) -> String {
        request_token(&mut self.server.admin(), &json!({}))
    }

    fn is_known(&self, token: &str) -> bool {
        authenticated_user(&self.server, token).is_some()
    }

    /// The message of a token request that fails.
    fn failure(&self) -> String {
        let response = self.server.admin().post(&format!("{ACCOUNTS}/sa/token"), &request(&json!({})));
        text(&response.expect_error(500, "InternalError"), "/message").to_owned()
    }

    fn published_ids(&self) -> Vec<String> {
        let keys = self.server.admin().get("/openid/v1/jwks").ok();
        keys["keys"].as_array().unwrap().iter().map(|key| text(key, "/kid").to_owned()).collect()
    }
}

/// A path of a socket: these are shorter than those of temporary directories of the build may be.
fn socket(directory: &TempDir) -> PathBuf {
    let name = directory.path().file_name().unwrap().to_str().unwrap();
    std::env::temp_dir().join(format!("pilothouse-{name}.sock"))
}

#[test]
fn external_signer_signs_tokens_and_its_keys_verify_them() {
    let retired = TokenKey::new("retired", "RS256");
    let fixture = Fixture::new(|signer| signer.keys.keys.push(retired.excluded()));
    let mut admin = fixture.server.admin();
    let token = fixture.token();
    assert_eq!(
        decode_token_part(&token, 0),
        json!({"alg": "ES256", "kid": "first", "typ": "JWT"}),
        "the signer's header"
    );
    let claims = decode_token_part(&token, 1);
    assert_eq!((&claims["iss"], &claims["aud"]), (&json!(ISSUER), &json!([ISSUER])));
    let user = "system:serviceaccount:default:sa";
    assert_eq!(authenticated_user(&fixture.server, &token).as_deref(), Some(user));

    // What another key of the signer, or none of its keys, has signed.
    assert!(fixture.is_known(&retired.token(&claims)));
    assert!(!fixture.is_known(&TokenKey::new("first", "ES256").token(&claims)), "another key of that name");
    assert!(!fixture.is_known(&TokenKey::new("unknown", "ES256").token(&claims)));
    assert!(!fixture.directory.path().join("data/pki/sa.key").exists(), "the server has no key of its own");

    // The signer bounds the lifetime.
    let long = admin.post(&format!("{ACCOUNTS}/sa/token"), &request(&json!({"expirationSeconds": 10_000})));
    let warning = "requested expiration of 10000 seconds shortened to 7200 seconds";
    assert!(long.warnings().iter().any(|text| text.contains(warning)), "{:?}", long.warnings());
    let claims = decode_token_part(text(&long.ok(), "/status/token"), 1);
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 7_200);

    // Others verify with the published keys, without the one that is excluded.
    assert_eq!(fixture.published_ids(), ["first"]);
    let configuration = admin.get("/.well-known/openid-configuration");
    let cached = configuration.header("cache-control").unwrap().strip_prefix("public, max-age=").unwrap();
    assert!((1..=3_600).contains(&cached.parse::<u32>().unwrap()), "{cached}");
    assert_eq!(configuration.ok()["id_token_signing_alg_values_supported"], json!(["ES256"]));

    let metrics = admin.get("/metrics").text();
    for line in [
        "apiserver_externaljwt_sign_request_total{code=\"OK\"} 2",
        "apiserver_externaljwt_fetch_keys_request_total{code=\"OK\"} 2",
        "apiserver_externaljwt_fetch_keys_data_timestamp 1700000000.5",
        "apiserver_externaljwt_fetch_keys_success_timestamp ",
        "apiserver_externaljwt_request_duration_seconds_count{code=\"OK\",method=\"/v1alpha1.ExternalJWTSigner/Metadata\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

#[test]
fn rotation_of_external_keys_is_followed() {
    let fixture = Fixture::new(|signer| signer.keys.refresh_hint_seconds = 1);
    let old_token = fixture.token();
    assert!(fixture.is_known(&old_token));
    for algorithm in ["RS256", "ES384", "ES512"] {
        let next = TokenKey::new(algorithm, algorithm);
        {
            let mut signer = fixture.behaviour.lock();
            signer.keys.keys.push(next.public());
            signer.signing = next;
        }
        let token = fixture.token();
        assert_eq!(decode_token_part(&token, 0)["alg"], algorithm);
        assert!(fixture.is_known(&token), "{algorithm}");
    }
    assert!(fixture.is_known(&old_token));
    assert_eq!(fixture.published_ids(), ["first", "RS256", "ES384", "ES512"]);
    // A key that is withdrawn verifies no token any more, not even one that was verified before.
    fixture.behaviour.lock().keys.keys.remove(0);
    assert!(poll(TIMEOUT, || (!fixture.is_known(&old_token)).then_some(())).is_some());
    assert_eq!(fixture.published_ids(), ["RS256", "ES384", "ES512"]);
}

#[test]
fn tokens_with_invented_keys_do_not_load_the_signer() {
    let fixture = Fixture::new(|_| {});
    let claims = decode_token_part(&fixture.token(), 1);
    let before = fixture.behaviour.lock().fetches;
    let mut client = fixture.server.anonymous();
    for number in 0..200 {
        let token = TokenKey { id: format!("invented-{number}"), ..fixture.first.clone() }.token(&claims);
        client = client.with_token(Some(&token));
        client.get(SECRETS).expect_error(401, "Unauthorized");
    }
    let fetches = fixture.behaviour.lock().fetches - before;
    assert!((1..200).contains(&fetches), "{fetches}");
}

#[test]
fn tokens_stay_valid_while_the_signer_is_down() {
    let mut fixture = Fixture::new(|_| {});
    let token = fixture.token();
    drop(fixture.signer.take());
    let failure = fixture.failure();
    assert!(
        failure.starts_with(
            "Internal error occurred: failed to generate token: while signing jwt: rpc error: code = DeadlineExceeded"
        ),
        "{failure}"
    );
    assert!(fixture.is_known(&token), "its keys are known");
    let metrics = fixture.server.admin().get("/metrics").text();
    assert!(
        metrics.contains("apiserver_externaljwt_sign_request_total{code=\"DeadlineExceeded\"} 1"),
        "{metrics}"
    );
    fixture.signer = Some(TokenSigner::start(&fixture.socket, fixture.behaviour.clone()));
    assert!(fixture.is_known(&fixture.token()), "it is back");
}

#[test]
fn bad_answers_of_the_signer_are_refused() {
    let retired = TokenKey::new("retired", "ES256");
    let fixture = Fixture::new(|signer| signer.keys.keys.push(retired.excluded()));
    let header = |json: &str| SignJwtResponse { header: BASE64.encode(json), signature: "c2ln".to_owned() };
    let excluded = SignJwtResponse { header: retired.header(), signature: "c2ln".to_owned() };
    let unsigned = SignJwtResponse { header: fixture.first.header(), signature: String::new() };
    for (reply, expected) in [
        (
            Err(Code::PermissionDenied),
            "while signing jwt: rpc error: code = PermissionDenied desc = the signer",
        ),
        (
            Ok(SignJwtResponse { header: "*".to_owned(), ..unsigned.clone() }),
            "while validating header: while unwrapping",
        ),
        (Ok(header("{}")), "while validating header: bad type"),
        (
            Ok(header(r#"{"typ":"JWT","x":1}"#)),
            "while validating header: while parsing header JSON: json: unknown",
        ),
        (Ok(header(r#"{"typ":"JWT","alg":"none"}"#)), "while validating header: key id missing"),
        (
            Ok(header(r#"{"typ":"JWT","alg":"none","kid":"first"}"#)),
            "while validating header: bad signing algorithm \"none\"",
        ),
        (
            Ok(excluded),
            "while validating header: key used for signing JWT (kid: retired) is excluded from OIDC",
        ),
        (Ok(unsigned), "empty signature returned"),
    ] {
        fixture.behaviour.lock().reply = Some(reply);
        let failure = fixture.failure();
        let expected = format!("Internal error occurred: failed to generate token: {expected}");
        assert!(failure.starts_with(&expected), "{failure}");
    }
    let metrics = fixture.server.admin().get("/metrics").text();
    assert!(
        metrics.contains("apiserver_externaljwt_sign_request_total{code=\"unknown-non-grpc\"} 7"),
        "{metrics}"
    );
    fixture.behaviour.lock().reply = None;
    assert!(fixture.is_known(&fixture.token()));
}

#[test]
fn wrong_settings_of_a_signer_are_refused_without_waiting_for_it() {
    let directory = crate::support::server::temp_directory();
    for (flags, expected) in [
        (
            vec!["--service-account-signing-endpoint=/nowhere"],
            "requires enabling ExternalServiceAccountTokenSigner",
        ),
        (
            vec![GATE, "--service-account-signing-endpoint=nowhere"],
            "should be a valid location on the filesystem",
        ),
        (
            vec![GATE, "--service-account-signing-endpoint=/nowhere", "--service-account-key-file=x"],
            "(They are mutually exclusive)",
        ),
        (
            vec![GATE, "--service-account-signing-endpoint=/nowhere", "--service-account-signing-key-file=x"],
            "are mutually exclusive and cannot be set at the same time",
        ),
    ] {
        let failure = Server::try_start_in(directory.path(), &flags).err().expect("no server");
        assert!(failure.stderr.contains(expected), "{flags:?}: {}", failure.stderr);
    }
}

#[test]
fn start_refuses_unusable_signer() {
    type Change = fn(&mut Behaviour);
    let cases: [(Change, &[&str], &str); 5] = [
        (|signer| signer.keys.keys.clear(), &[], "while fetching token verification keys: found no keys"),
        (|signer| signer.keys.refresh_hint_seconds = 0, &[], "found invalid refresh hint (0s)"),
        (
            |signer| signer.max_seconds = 599,
            &[],
            "max token life supported by external-jwt-signer (599s) is less than acceptable (min 600s)",
        ),
        (
            |signer| signer.max_seconds = 86_400,
            &["--service-account-max-token-expiration=48h"],
            "cannot be set longer than the token expiration supported by service-account-signing-endpoint: 48h0m0s > 24h0m0s",
        ),
        (|signer| signer.keys.keys[0].key.truncate(9), &[], "while parsing external public keys: "),
    ];
    let directory = crate::support::server::temp_directory();
    let name = directory.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_owned();
    for (change, flags, expected) in cases {
        let behaviour = behaviour(&TokenKey::new("first", "ES256"));
        change(&mut behaviour.lock());
        let signer = TokenSigner::start_abstract(&name, behaviour);
        let endpoint = format!("--service-account-signing-endpoint=@{name}");
        let flags = [&[GATE, &endpoint], flags].concat();
        let failure = Server::try_start_in(directory.path(), &flags).err().expect("no server");
        assert!(failure.stderr.contains(expected), "{expected}: {}", failure.stderr);
        assert!(signer.behaviour.lock().fetches > 0);
    }
}
