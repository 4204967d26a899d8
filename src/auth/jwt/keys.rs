//! The keys that sign and verify tokens.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{EncodingKey, Header};
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::pkey::{HasPublic, PKey, PKeyRef, Private, Public};
use openssl::rsa::Rsa;
use openssl::sha::sha256;
use serde::Serialize;

use super::verify_contexts::VerifyContexts;
use super::{Algorithm, Error, Token, es512, provider};
use crate::limits::{MAX_RSA_BITS, MIN_RSA_BITS};

/// A key that verifies signatures.
#[derive(Clone)]
pub struct VerifyingKey {
    /// The public key.
    pub key: PKey<Public>,
    /// The key ID in token headers.
    pub id: String,
    /// The accepted algorithms; at least one.
    algorithms: Vec<Algorithm>,
    /// Reusable verification contexts.
    contexts: Arc<VerifyContexts>,
}

impl VerifyingKey {
    /// A key with the default algorithm of its type. Its ID is a digest of the key, as in kube-apiserver. `None` if tokens
    /// cannot be signed with such a key.
    pub fn new(key: PKey<Public>) -> Result<Option<VerifyingKey>, Error> {
        let id = id(&key)?;
        Ok(VerifyingKey::with_id(key, id))
    }

    /// The same, with an ID that its owner gave it.
    pub fn with_id(key: PKey<Public>, id: String) -> Option<VerifyingKey> {
        let algorithm = Algorithm::for_key(&key)?;
        Some(VerifyingKey { key, id, algorithms: vec![algorithm], contexts: Arc::default() })
    }

    /// A key from a JWK. It accepts the algorithm that the JWK states, or any that fit if it states none, limited to `permitted`.
    /// `None` if nothing is left, or if the key is not for signatures.
    pub fn from_jwk(jwk: &Jwk, permitted: &[Algorithm]) -> Result<Option<VerifyingKey>, Error> {
        let common = &jwk.common;
        let is_other_use =
            common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature);
        let forbids_verify = common
            .key_operations
            .as_ref()
            .is_some_and(|operations| !operations.contains(&KeyOperations::Verify));
        if is_other_use || forbids_verify {
            return Ok(None);
        }
        let Some(key) = public_key(&jwk.algorithm)? else { return Ok(None) };
        let is_stated = |algorithm: Algorithm| match common.key_algorithm {
            None => true,
            // The library parses ES512 as unknown; nothing else fits a key on P-521.
            Some(KeyAlgorithm::UNKNOWN_ALGORITHM) => algorithm.library_name().is_none(),
            Some(stated) => algorithm.library_name().is_some_and(|name| KeyAlgorithm::from(name) == stated),
        };
        let algorithms: Vec<_> = permitted
            .iter()
            .copied()
            .filter(|algorithm| algorithm.supports_key(&key) && is_stated(*algorithm))
            .collect();
        if algorithms.is_empty() {
            return Ok(None);
        }
        let id = common.key_id.clone().unwrap_or_default();
        Ok(Some(VerifyingKey { key, id, algorithms, contexts: Arc::default() }))
    }

    /// The accepted algorithms; at least one.
    pub fn algorithms(&self) -> &[Algorithm] {
        &self.algorithms
    }

    /// Whether this key signed the token. Not done by the library: it would rebuild the key from its numbers for every token,
    /// which costs as much as the verification, and it does not support P-521.
    pub fn verify(&self, token: &Token<'_>) -> bool {
        let algorithm = token.algorithm.filter(|algorithm| self.algorithms.contains(algorithm));
        let message = token.text.rsplit_once('.').map(|(message, _)| message);
        algorithm.zip(message).is_some_and(|(algorithm, message)| {
            self.contexts.verify(algorithm, &self.key, message.as_bytes(), &token.signature)
        })
    }
}

/// The RSA key of a modulus and an exponent.
fn rsa_key(n: &[u8], e: &[u8]) -> Result<PKey<Public>, ErrorStack> {
    PKey::from_rsa(Rsa::from_public_components(BigNum::from_slice(n)?, BigNum::from_slice(e)?)?)
}

/// The key of a JWK; `None` for another type, or an unsafe size.
fn public_key(parameters: &AlgorithmParameters) -> Result<Option<PKey<Public>>, ErrorStack> {
    let decode = |text: &str| BASE64.decode(text).ok();
    match parameters {
        AlgorithmParameters::RSA(rsa) => {
            let (Some(n), Some(e)) = (decode(&rsa.n), decode(&rsa.e)) else { return Ok(None) };
            let key = rsa_key(&n, &e)?;
            Ok(Some(key).filter(|key| (MIN_RSA_BITS..=MAX_RSA_BITS).contains(&key.bits())))
        }
        AlgorithmParameters::EllipticCurve(point) => {
            let algorithm = match point.curve {
                EllipticCurve::P256 => Algorithm::Es256,
                EllipticCurve::P384 => Algorithm::Es384,
                EllipticCurve::P521 => Algorithm::Es512,
                _ => return Ok(None),
            };
            let (Some(curve), Some(x), Some(y)) = (algorithm.curve(), decode(&point.x), decode(&point.y))
            else {
                return Ok(None);
            };
            let (x, y) = (BigNum::from_slice(&x)?, BigNum::from_slice(&y)?);
            // Fails for points that are not on the curve.
            let key = EcKey::from_public_key_affine_coordinates(&*EcGroup::from_curve_name(curve)?, &x, &y)?;
            PKey::from_ec_key(key).map(Some)
        }
        _ => Ok(None),
    }
}

/// A key that signs tokens. Their headers contain only the algorithm and the key ID.
pub struct SigningKey {
    id: String,
    encoding: KeyEncoding,
}

enum KeyEncoding {
    Library(Box<Header>, EncodingKey),
    Es512(PKey<Private>),
}

impl SigningKey {
    /// A key with the default algorithm of its type. `None` if tokens cannot be signed with such a key.
    pub fn new(key: PKey<Private>) -> Result<Option<SigningKey>, Error> {
        Algorithm::for_key(&key).map(|algorithm| SigningKey::for_algorithm(key, algorithm)).transpose()
    }

    fn for_algorithm(key: PKey<Private>, algorithm: Algorithm) -> Result<SigningKey, Error> {
        provider::install()?;
        let id = id(&key)?;
        let Some(name) = algorithm.library_name() else {
            return Ok(SigningKey { id, encoding: KeyEncoding::Es512(key) });
        };
        let der = match key.rsa() {
            Ok(rsa) => EncodingKey::from_rsa_der(&rsa.private_key_to_der()?),
            Err(_) => EncodingKey::from_ec_der(&key.private_key_to_pkcs8()?),
        };
        let header = Header { typ: None, kid: Some(id.clone()), ..Header::new(name) };
        Ok(SigningKey { id, encoding: KeyEncoding::Library(Box::new(header), der) })
    }

    /// Signs a token with `claims`.
    pub fn sign<T: Serialize>(&self, claims: &T) -> Result<String, Error> {
        match &self.encoding {
            KeyEncoding::Library(header, key) => Ok(jsonwebtoken::encode(header, claims, key)?),
            KeyEncoding::Es512(key) => es512::sign(key, &self.id, claims),
        }
    }

    /// A key with another algorithm than the default of its type.
    #[cfg(test)]
    pub fn with_algorithm(key: PKey<Private>, algorithm: Algorithm) -> SigningKey {
        SigningKey::for_algorithm(key, algorithm).unwrap()
    }
}

/// The key ID: a digest of the public key.
fn id<T: HasPublic>(key: &PKeyRef<T>) -> Result<String, ErrorStack> {
    Ok(BASE64.encode(sha256(&key.public_key_to_der()?)))
}
