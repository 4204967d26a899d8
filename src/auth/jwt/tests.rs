mod vectors;

use std::sync::{Barrier, LazyLock};
use std::thread;

use jsonwebtoken::jwk::Jwk;
use openssl::bn::{BigNum, BigNumContext};
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private, Public};
use openssl::rsa::Rsa;
use openssl::sign::Signer;
use proptest::prelude::*;
use serde_json::{Value, json};

use self::vectors::TEST_VECTORS;
use super::*;

pub(in crate::auth) fn curve(nid: Nid) -> PKey<Private> {
    let group = EcGroup::from_curve_name(nid).unwrap();
    PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
}

/// A key of every kind.
static KEYS: LazyLock<[PKey<Private>; 4]> = LazyLock::new(|| {
    let rsa = PKey::from_rsa(Rsa::generate(2_048).unwrap()).unwrap();
    [curve(Nid::X9_62_PRIME256V1), curve(Nid::SECP384R1), curve(Nid::SECP521R1), rsa]
});

/// Every algorithm with a key and a token of it.
static SIGNED: LazyLock<Vec<(Algorithm, VerifyingKey, String)>> = LazyLock::new(|| {
    let tokens = Algorithm::ALL.map(|algorithm| {
        let key = private_key(algorithm);
        let signing = SigningKey::with_algorithm(key.clone(), algorithm);
        let jwk = jwk(key, Some(algorithm.name()));
        let verifying = VerifyingKey::from_jwk(&jwk, &Algorithm::ALL).unwrap().unwrap();
        (algorithm, verifying, signing.sign(&json!({"a": 1})).unwrap())
    });
    tokens.into()
});

pub(in crate::auth) fn private_key(algorithm: Algorithm) -> &'static PKey<Private> {
    KEYS.iter().find(|key| algorithm.supports_key(key)).unwrap()
}

fn public_key(key: &PKey<Private>) -> PKey<Public> {
    PKey::public_key_from_der(&key.public_key_to_der().unwrap()).unwrap()
}

fn key_pair(key: &PKey<Private>) -> (SigningKey, VerifyingKey) {
    let verifying = VerifyingKey::new(public_key(key)).unwrap().unwrap();
    (SigningKey::new(key.clone()).unwrap().unwrap(), verifying)
}

pub(in crate::auth) fn jwk(key: &PKey<Private>, algorithm: Option<&str>) -> Jwk {
    let number = |number: &openssl::bn::BigNumRef| BASE64.encode(number.to_vec());
    let mut document = if let Ok(rsa) = key.rsa() {
        json!({"kty": "RSA", "n": number(rsa.n()), "e": number(rsa.e())})
    } else {
        let ec = key.ec_key().unwrap();
        let (mut x, mut y) = (BigNum::new().unwrap(), BigNum::new().unwrap());
        let mut context = BigNumContext::new().unwrap();
        ec.public_key().affine_coordinates(ec.group(), &mut x, &mut y, &mut context).unwrap();
        let curve = match ec.group().curve_name().unwrap() {
            Nid::X9_62_PRIME256V1 => "P-256",
            Nid::SECP384R1 => "P-384",
            Nid::SECP521R1 => "P-521",
            _ => "another",
        };
        json!({"kty": "EC", "crv": curve, "x": number(&x), "y": number(&y)})
    };
    document["kid"] = "k".into();
    document["use"] = "sig".into();
    if let Some(algorithm) = algorithm {
        document["alg"] = algorithm.into();
    }
    serde_json::from_value(document).unwrap()
}

fn is_accepted(key: &VerifyingKey, token: &str) -> bool {
    Token::parse(token).is_some_and(|token| key.verify(&token))
}

#[test]
fn token_is_verified_only_with_its_own_algorithm() {
    for (algorithm, _, token) in SIGNED.iter() {
        let parsed = Token::parse(token).unwrap();
        assert_eq!(parsed.algorithm, Some(*algorithm));
        assert_eq!(parsed.claims::<Value>(), Some(json!({"a": 1})));
        for (other, key, _) in SIGNED.iter() {
            assert_eq!(key.verify(&parsed), other == algorithm, "{algorithm:?} by {other:?}");
        }
    }
}

#[test]
fn tokens_of_other_implementations_are_verified() {
    for (name, jwk, signature) in TEST_VECTORS {
        let jwk: Jwk = serde_json::from_str(jwk).unwrap();
        let key = VerifyingKey::from_jwk(&jwk, &Algorithm::ALL).unwrap().unwrap();
        let header = BASE64.encode(format!(r#"{{"alg":"{name}"}}"#));
        let token = |claims: &str| format!("{header}.{}.{signature}", BASE64.encode(claims));
        assert!(is_accepted(&key, &token(r#"{"a":1}"#)), "{name}");
        assert!(!is_accepted(&key, &token(r#"{"a":2}"#)), "{name}");
    }
}

#[test]
fn key_has_one_default_algorithm_and_key_id() {
    for (key, name) in KEYS.iter().zip(["ES256", "ES384", "ES512", "RS256"]) {
        let (signing, verifying) = key_pair(key);
        let token = signing.sign(&json!({})).unwrap();
        let header = BASE64.decode(token.split('.').next().unwrap()).unwrap();
        let expected = format!(r#"{{"alg":"{name}","kid":"{}"}}"#, verifying.id);
        assert_eq!(String::from_utf8(header).unwrap(), expected, "the header has only alg and kid");
        assert!(is_accepted(&verifying, &token), "{name}");
        for other in KEYS.iter().filter(|other| !other.public_eq(key)) {
            assert!(!is_accepted(&key_pair(other).1, &token), "{name}");
        }
    }
    // The same key with another algorithm than its default.
    let token = SigningKey::with_algorithm(KEYS[3].clone(), Algorithm::Ps256).sign(&json!({})).unwrap();
    assert!(!is_accepted(&key_pair(&KEYS[3]).1, &token));
    for unfit in [curve(Nid::SECP256K1), PKey::generate_ed25519().unwrap()] {
        assert!(SigningKey::new(unfit.clone()).unwrap().is_none());
        assert!(VerifyingKey::new(public_key(&unfit)).unwrap().is_none());
    }
}

#[test]
fn jwk_accepts_only_stated_and_permitted_algorithms() {
    let rsa = &KEYS[3];
    let of_rsa: Vec<_> = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.supports_key(rsa)).collect();
    assert_eq!(of_rsa.len(), 6);
    let algorithms_of = |jwk: &Jwk, permitted: &[Algorithm]| {
        let key = VerifyingKey::from_jwk(jwk, permitted).unwrap();
        key.map(|key| (key.id.clone(), key.algorithms().to_vec()))
    };
    let accepts = |algorithms: &[Algorithm]| Some(("k".to_owned(), algorithms.to_vec()));
    assert_eq!(algorithms_of(&jwk(rsa, None), &Algorithm::ALL), accepts(&of_rsa));
    assert_eq!(algorithms_of(&jwk(rsa, None), &[Algorithm::Rs256]), accepts(&[Algorithm::Rs256]));
    assert_eq!(algorithms_of(&jwk(rsa, Some("PS384")), &Algorithm::ALL), accepts(&[Algorithm::Ps384]));
    assert_eq!(algorithms_of(&jwk(&KEYS[2], None), &Algorithm::ALL), accepts(&[Algorithm::Es512]));
    for (jwk, permitted) in [
        (jwk(rsa, Some("PS384")), &[Algorithm::Rs256][..]),
        (jwk(rsa, Some("RSA-OAEP")), &Algorithm::ALL),
        (jwk(rsa, Some("ES512")), &Algorithm::ALL),
        (jwk(rsa, Some("HS256")), &Algorithm::ALL),
        (jwk(&KEYS[0], Some("ES384")), &Algorithm::ALL),
        (jwk(&KEYS[0], Some("ES512")), &Algorithm::ALL),
        (jwk(&KEYS[2], Some("ES256")), &Algorithm::ALL),
        (jwk(&PKey::from_rsa(Rsa::generate(512).unwrap()).unwrap(), None), &Algorithm::ALL),
        (jwk(&curve(Nid::SECP256K1), None), &Algorithm::ALL),
    ] {
        assert_eq!(algorithms_of(&jwk, permitted), None, "{jwk:?}");
    }
    let changed = |field: &str, value: Value| -> Jwk {
        let mut document = serde_json::to_value(jwk(&KEYS[0], None)).unwrap();
        document[field] = value;
        serde_json::from_value(document).unwrap()
    };
    assert_eq!(algorithms_of(&changed("use", "enc".into()), &Algorithm::ALL), None);
    assert_eq!(algorithms_of(&changed("key_ops", json!(["encrypt"])), &Algorithm::ALL), None);
    assert_eq!(algorithms_of(&changed("x", "=".into()), &Algorithm::ALL), None);
    assert!(algorithms_of(&changed("key_ops", json!(["verify"])), &Algorithm::ALL).is_some());
    assert!(VerifyingKey::from_jwk(&changed("x", "AQAB".into()), &Algorithm::ALL).is_err(), "off the curve");
    let secret = serde_json::from_value(json!({"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"})).unwrap();
    assert_eq!(algorithms_of(&secret, &Algorithm::ALL), None);
}

#[test]
fn token_header_does_not_choose_the_algorithm() {
    let encode = |text: &str| BASE64.encode(text);
    for key in KEYS.iter() {
        let verifying = key_pair(key).1;
        for secret in [key.public_key_to_pem().unwrap(), key.public_key_to_der().unwrap()] {
            let secret = PKey::hmac(&secret).unwrap();
            for algorithm in
                ["none", "None", "HS256", "HS512", "RS256", "PS256", "RS512", "ES256", "ES512", ""]
            {
                let signed = format!("{}.{}", encode(&format!(r#"{{"alg":"{algorithm}"}}"#)), encode("{}"));
                let mut signer = Signer::new(MessageDigest::sha256(), &secret).unwrap();
                signer.update(signed.as_bytes()).unwrap();
                for signature in [Vec::new(), signer.sign_to_vec().unwrap()] {
                    let token = format!("{signed}.{}", BASE64.encode(signature));
                    assert!(Token::parse(&token).is_some(), "{algorithm}: it is well-formed");
                    assert!(!is_accepted(&verifying, &token), "{algorithm}");
                }
            }
        }
    }
}

#[test]
fn forged_signature_leaves_openssl_error_queue_empty() {
    for (algorithm, key, token) in SIGNED.iter() {
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let length = BASE64.decode(signature).unwrap().len();
        for length in [length, 0, 1, length - 1, length + 1] {
            for byte in [0, 1, 255] {
                let forged = format!("{signed}.{}", BASE64.encode(vec![byte; length]));
                assert!(!is_accepted(key, &forged));
                assert!(ErrorStack::get().errors().is_empty(), "{algorithm:?} {length} {byte}");
            }
        }
    }
}

#[test]
fn malformed_token_is_not_parsed() {
    let header = BASE64.encode(r#"{"alg":"ES256"}"#);
    let critical = BASE64.encode(r#"{"alg":"ES256","crit":["x"]}"#);
    for text in [
        "",
        "..",
        "a.b",
        "a.b.c",
        &format!("{header}.e30"),
        &format!("{header}.e30.e30.e30"),
        &format!("{header}.e30.e30="),
        &format!("{critical}.e30.e30"),
    ] {
        assert!(Token::parse(text).is_none(), "{text}");
    }
    let claims = |text: &str| Token::parse(text).and_then(|token| token.claims::<Value>());
    assert_eq!(claims(&format!("{header}.e30=.e30")), None);
    assert_eq!(claims(&format!("{header}.e30.")), Some(json!({})));
}

#[test]
fn signature_verification_ignores_claims() {
    let (signing, verifying) = key_pair(&KEYS[1]);
    for claims in [
        json!({}),
        json!({"exp": 0}),
        json!({"exp": -1, "nbf": -1.5}),
        json!({"exp": 1_000_000_000_000_000_000_i64, "nbf": 1_000_000_000_000_000_000_i64}),
        json!({"aud": []}),
        json!({"aud": "them"}),
        json!({"aud": ["them", "us"], "iss": "somebody", "sub": "somebody"}),
    ] {
        let token = signing.sign(&claims).unwrap();
        let token = Token::parse(&token).unwrap();
        assert!(verifying.verify(&token), "{claims}");
        assert_eq!(token.claims::<Value>(), Some(claims));
    }
}

#[test]
fn key_verifies_valid_and_forged_tokens_on_many_threads() {
    thread::scope(|scope| {
        for index in 0..SIGNED.len() {
            scope.spawn(move || {
                for turn in 0..40 {
                    let (algorithm, key, token) = &SIGNED[(index + turn) % SIGNED.len()];
                    let forged = format!("{}.{}", token.rsplit_once('.').unwrap().0, BASE64.encode([7; 256]));
                    assert!(is_accepted(key, token), "{algorithm:?}");
                    assert!(!is_accepted(key, &forged), "{algorithm:?}");
                    assert!(openssl::error::ErrorStack::get().errors().is_empty(), "{algorithm:?}");
                }
            });
        }
    });
}

#[test]
fn key_set_selects_key_by_key_id() {
    let pairs: Vec<_> = KEYS.iter().map(key_pair).collect();
    let key_set = KeySet::new(pairs.iter().map(|(_, key)| key.clone()).collect());
    let check = |key_set: &KeySet, token: &str| key_set.verify(&Token::parse(token).unwrap());
    for (signing, _) in &pairs {
        assert_eq!(check(&key_set, &signing.sign(&json!({})).unwrap()), Ok(()));
    }
    let (other_signer, mut misnamed) = key_pair(&curve(Nid::X9_62_PRIME256V1));
    let token = other_signer.sign(&json!({})).unwrap();
    assert_eq!(check(&key_set, &token), Err("invalid signature, no keys found"));
    misnamed.id.clone_from(&pairs[0].1.id);
    let (good, key_set) = (pairs[0].0.sign(&json!({})).unwrap(), KeySet::new(vec![misnamed]));
    assert_eq!(check(&key_set, &good), Err("the signature does not match"));
    // Two keys with the same ID: one match suffices.
    let key_set = KeySet::new(vec![key_set.keys()[0].clone(), pairs[0].1.clone()]);
    assert_eq!(check(&key_set, &good), Ok(()));
}

#[test]
fn crypto_provider_is_installed_once_by_concurrent_callers() {
    let barrier = Barrier::new(16);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                barrier.wait();
                provider::install().unwrap();
                let (signing, verifying) = key_pair(&curve(Nid::X9_62_PRIME256V1));
                assert!(is_accepted(&verifying, &signing.sign(&json!({})).unwrap()));
            });
        }
    });
}

proptest! {
    #[test]
    fn token_parser_never_panics(text in "[a-zA-Z0-9_.=-]{0,80}") {
        if let Some(token) = Token::parse(&text) {
            let _ = token.claims::<Value>();
        }
    }

    #[test]
    fn modified_token_is_refused(index in 0usize..9, position in 0usize..1_000, flip in 1u8..64) {
        let (algorithm, key, token) = &SIGNED[index];
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut bytes = token.clone().into_bytes();
        let position = position % bytes.len();
        if let Some(index) = alphabet.iter().position(|letter| *letter == bytes[position]) {
            bytes[position] = alphabet[(index + usize::from(flip)) % 64];
            let changed = String::from_utf8(bytes).unwrap();
            prop_assert!(!is_accepted(key, &changed), "{algorithm:?} {changed}");
        }
        prop_assert!(!is_accepted(key, &token[..position]));
    }
}
