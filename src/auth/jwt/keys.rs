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
use crate::limits::{RSA_LEAST_BITS, RSA_MOST_BITS};

/// A key that verifies signatures.
#[derive(Clone)]
pub struct VerifyingKey {
    /// The public key.
    pub key: PKey<Public>,
    /// The key ID in token headers.
    pub id: String,
    /// The accepted algorithms; at least one.
    takes: Vec<Algorithm>,
    /// Reusable verification contexts.
    checks: Arc<VerifyContexts>,
}

impl VerifyingKey {
    /// A key with the default algorithm of its type. Its ID is a digest of the key, as in the reference. `None` if tokens cannot
    /// be signed with such a key.
    pub fn new(key: PKey<Public>) -> Result<Option<VerifyingKey>, Error> {
        let Some(algorithm) = Algorithm::of(&key) else { return Ok(None) };
        let id = id(&key)?;
        Ok(Some(VerifyingKey { key, id, takes: vec![algorithm], checks: Arc::default() }))
    }

    /// A key from a JWK. It accepts the algorithm that the JWK states, or any that fit if it states none, limited to `permitted`.
    /// `None` if nothing is left, or if the key is not for signatures.
    pub fn from_jwk(jwk: &Jwk, permitted: &[Algorithm]) -> Result<Option<VerifyingKey>, Error> {
        let common = &jwk.common;
        let for_others =
            common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature);
        let no_verifier =
            common.key_operations.as_ref().is_some_and(|all| !all.contains(&KeyOperations::Verify));
        if for_others || no_verifier {
            return Ok(None);
        }
        let Some(key) = public_key(&jwk.algorithm)? else { return Ok(None) };
        let said = |algorithm: Algorithm| match common.key_algorithm {
            None => true,
            // The library parses ES512 as unknown; nothing else fits a key on P-521.
            Some(KeyAlgorithm::UNKNOWN_ALGORITHM) => algorithm.in_library().is_none(),
            Some(name) => algorithm.in_library().is_some_and(|ours| KeyAlgorithm::from(ours) == name),
        };
        let takes: Vec<_> =
            permitted.iter().copied().filter(|algorithm| algorithm.fits(&key) && said(*algorithm)).collect();
        if takes.is_empty() {
            return Ok(None);
        }
        let id = common.key_id.clone().unwrap_or_default();
        Ok(Some(VerifyingKey { key, id, takes, checks: Arc::default() }))
    }

    /// The accepted algorithms; at least one.
    pub fn algorithms(&self) -> &[Algorithm] {
        &self.takes
    }

    /// Whether this key signed the token. Not done by the library: it would rebuild the key from its numbers for every token,
    /// which costs as much as the verification, and it does not support P-521.
    pub fn signed(&self, token: &Token<'_>) -> bool {
        let algorithm = token.algorithm.filter(|algorithm| self.takes.contains(algorithm));
        let signed = token.text.rsplit_once('.').map(|(signed, _)| signed);
        algorithm.zip(signed).is_some_and(|(algorithm, signed)| {
            self.checks.verifies(algorithm, &self.key, signed.as_bytes(), &token.signature)
        })
    }
}

/// The RSA key of a modulus and an exponent.
fn rsa_key(n: &[u8], e: &[u8]) -> Result<PKey<Public>, ErrorStack> {
    PKey::from_rsa(Rsa::from_public_components(BigNum::from_slice(n)?, BigNum::from_slice(e)?)?)
}

/// The key of a JWK; `None` for another type, or an unsafe size.
fn public_key(parameters: &AlgorithmParameters) -> Result<Option<PKey<Public>>, ErrorStack> {
    let number = |text: &str| BASE64.decode(text).ok();
    match parameters {
        AlgorithmParameters::RSA(rsa) => {
            let (Some(n), Some(e)) = (number(&rsa.n), number(&rsa.e)) else { return Ok(None) };
            let key = rsa_key(&n, &e)?;
            Ok(Some(key).filter(|key| (RSA_LEAST_BITS..=RSA_MOST_BITS).contains(&key.bits())))
        }
        AlgorithmParameters::EllipticCurve(point) => {
            let algorithm = match point.curve {
                EllipticCurve::P256 => Algorithm::Es256,
                EllipticCurve::P384 => Algorithm::Es384,
                EllipticCurve::P521 => Algorithm::Es512,
                _ => return Ok(None),
            };
            let (Some(curve), Some(x), Some(y)) = (algorithm.curve(), number(&point.x), number(&point.y))
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
    form: KeyEncoding,
}

enum KeyEncoding {
    Library(Box<Header>, EncodingKey),
    Es512(PKey<Private>),
}

impl SigningKey {
    /// A key with the default algorithm of its type. `None` if tokens cannot be signed with such a key.
    pub fn new(key: PKey<Private>) -> Result<Option<SigningKey>, Error> {
        Algorithm::of(&key).map(|algorithm| SigningKey::with(key, algorithm)).transpose()
    }

    fn with(key: PKey<Private>, algorithm: Algorithm) -> Result<SigningKey, Error> {
        provider::install()?;
        let id = id(&key)?;
        let Some(name) = algorithm.in_library() else {
            return Ok(SigningKey { id, form: KeyEncoding::Es512(key) });
        };
        let der = match key.rsa() {
            Ok(rsa) => EncodingKey::from_rsa_der(&rsa.private_key_to_der()?),
            Err(_) => EncodingKey::from_ec_der(&key.private_key_to_pkcs8()?),
        };
        let header = Header { typ: None, kid: Some(id.clone()), ..Header::new(name) };
        Ok(SigningKey { id, form: KeyEncoding::Library(Box::new(header), der) })
    }

    /// Signs a token with `claims`.
    pub fn sign<T: Serialize>(&self, claims: &T) -> Result<String, Error> {
        match &self.form {
            KeyEncoding::Library(header, key) => Ok(jsonwebtoken::encode(header, claims, key)?),
            KeyEncoding::Es512(key) => es512::sign(key, &self.id, claims),
        }
    }

    /// A key with another algorithm than the default of its type.
    #[cfg(test)]
    pub fn of_algorithm(key: PKey<Private>, algorithm: Algorithm) -> SigningKey {
        SigningKey::with(key, algorithm).unwrap()
    }
}

fn id<T: HasPublic>(key: &PKeyRef<T>) -> Result<String, ErrorStack> {
    Ok(BASE64.encode(sha256(&key.public_key_to_der()?)))
}
