//! A signer of tokens: a plugin that speaks the reference's API, and does what a test tells it.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use openssl::bn::BigNumRef;
use openssl::ec::{EcGroup, EcKey};
use openssl::ecdsa::EcdsaSig;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::sha::{sha256, sha384, sha512};
use openssl::sign::Signer;
use pilothouse_plugins::testing::{Call, PluginServer, Reply, Status};
use pilothouse_plugins::{Code, Message};
use pilothouse_types::lock::Lock;

#[derive(Clone, PartialEq, Message)]
pub struct SignJwtRequest {
    #[prost(string, tag = "1")]
    pub claims: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SignJwtResponse {
    #[prost(string, tag = "1")]
    pub header: String,
    #[prost(string, tag = "2")]
    pub signature: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub struct FetchKeysResponse {
    #[prost(message, repeated, tag = "1")]
    pub keys: Vec<PublicKey>,
    #[prost(message, optional, tag = "2")]
    pub data_timestamp: Option<Time>,
    #[prost(int64, tag = "3")]
    pub refresh_hint_seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct PublicKey {
    #[prost(string, tag = "1")]
    pub key_id: String,
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    #[prost(bool, tag = "3")]
    pub exclude_from_oidc_discovery: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Time {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct MetadataResponse {
    #[prost(int64, tag = "1")]
    pub max_token_expiration_seconds: i64,
}

/// A key of the signer.
#[derive(Clone)]
pub struct TokenKey {
    pub id: String,
    pub algorithm: &'static str,
    pub key: PKey<Private>,
}

impl TokenKey {
    /// A new key for this algorithm.
    pub fn new(id: &str, algorithm: &'static str) -> TokenKey {
        let on_curve = |curve| {
            PKey::from_ec_key(EcKey::generate(&EcGroup::from_curve_name(curve).unwrap()).unwrap()).unwrap()
        };
        let key = match algorithm {
            "RS256" => PKey::from_rsa(Rsa::generate(2_048).unwrap()).unwrap(),
            "ES256" => on_curve(Nid::X9_62_PRIME256V1),
            "ES384" => on_curve(Nid::SECP384R1),
            "ES512" => on_curve(Nid::SECP521R1),
            other => panic!("{other}"),
        };
        TokenKey { id: id.to_owned(), algorithm, key }
    }

    /// The header of its tokens.
    pub fn header(&self) -> String {
        BASE64.encode(format!(r#"{{"alg":"{}","kid":"{}","typ":"JWT"}}"#, self.algorithm, self.id))
    }

    /// Signs claims in base64url.
    pub fn sign(&self, claims: &str) -> SignJwtResponse {
        let header = self.header();
        let text = format!("{header}.{claims}");
        let signature = match self.algorithm {
            "RS256" => {
                let mut signer = Signer::new(MessageDigest::sha256(), &self.key).unwrap();
                signer.update(text.as_bytes()).unwrap();
                signer.sign_to_vec().unwrap()
            }
            "ES256" => self.sign_on_curve(&sha256(text.as_bytes()), 32),
            "ES384" => self.sign_on_curve(&sha384(text.as_bytes()), 48),
            _ => self.sign_on_curve(&sha512(text.as_bytes()), 66),
        };
        SignJwtResponse { header, signature: BASE64.encode(signature) }
    }

    fn sign_on_curve(&self, digest: &[u8], bytes: i32) -> Vec<u8> {
        let signature = EcdsaSig::sign(digest, &self.key.ec_key().unwrap()).unwrap();
        let padded = |number: &BigNumRef| number.to_vec_padded(bytes).unwrap();
        [padded(signature.r()), padded(signature.s())].concat()
    }

    /// A token with these claims.
    pub fn token(&self, claims: &serde_json::Value) -> String {
        let claims = BASE64.encode(claims.to_string());
        let SignJwtResponse { header, signature } = self.sign(&claims);
        format!("{header}.{claims}.{signature}")
    }

    /// How FetchKeys returns it.
    pub fn public(&self) -> PublicKey {
        PublicKey {
            key_id: self.id.clone(),
            key: self.key.public_key_to_der().unwrap(),
            exclude_from_oidc_discovery: false,
        }
    }

    /// The same for a key that is not published.
    pub fn excluded(&self) -> PublicKey {
        PublicKey { exclude_from_oidc_discovery: true, ..self.public() }
    }
}

/// What the signer does.
pub struct Behaviour {
    /// The key that signs.
    pub signing: TokenKey,
    /// What Sign returns instead of a signature.
    pub reply: Option<Result<SignJwtResponse, Code>>,
    pub keys: FetchKeysResponse,
    pub max_seconds: i64,
    /// The calls of FetchKeys.
    pub fetches: usize,
}

/// A running signer. It stops when it is dropped.
pub struct TokenSigner {
    pub behaviour: Arc<Lock<Behaviour>>,
    _server: PluginServer,
}

/// A signer that has this key, with a refresh hint of an hour.
pub fn behaviour(key: &TokenKey) -> Arc<Lock<Behaviour>> {
    let data_timestamp = Some(Time { seconds: 1_700_000_000, nanos: 500_000_000 });
    let keys = FetchKeysResponse { keys: vec![key.public()], data_timestamp, refresh_hint_seconds: 3_600 };
    Arc::new(Lock::new(Behaviour { signing: key.clone(), reply: None, keys, max_seconds: 7_200, fetches: 0 }))
}

impl TokenSigner {
    pub fn start(path: &Path, behaviour: Arc<Lock<Behaviour>>) -> TokenSigner {
        let served = behaviour.clone();
        let server = PluginServer::start(path, move |call| answer(served.clone(), call)).unwrap();
        TokenSigner { behaviour, _server: server }
    }

    pub fn start_abstract(name: &str, behaviour: Arc<Lock<Behaviour>>) -> TokenSigner {
        let served = behaviour.clone();
        let server = PluginServer::start_abstract(name, move |call| answer(served.clone(), call)).unwrap();
        TokenSigner { behaviour, _server: server }
    }
}

async fn answer(behaviour: Arc<Lock<Behaviour>>, call: Call) -> Reply {
    match call.method() {
        "/v1alpha1.ExternalJWTSigner/Sign" => {
            let sign = |request: SignJwtRequest| {
                let behaviour = behaviour.lock();
                match behaviour.reply.clone() {
                    None => Ok(behaviour.signing.sign(&request.claims)),
                    Some(reply) => reply.map_err(|code| Status::new(code, "the signer was told to fail")),
                }
            };
            call.answer(sign).await
        }
        "/v1alpha1.ExternalJWTSigner/FetchKeys" => {
            let fetch = |_: Empty| {
                let mut behaviour = behaviour.lock();
                behaviour.fetches += 1;
                Ok(behaviour.keys.clone())
            };
            call.answer(fetch).await
        }
        "/v1alpha1.ExternalJWTSigner/Metadata" => {
            let max_token_expiration_seconds = behaviour.lock().max_seconds;
            call.answer(|_: Empty| Ok(MetadataResponse { max_token_expiration_seconds })).await
        }
        _ => call.unimplemented(),
    }
}
