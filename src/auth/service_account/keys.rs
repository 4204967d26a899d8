//! The keys that verify service account tokens, and their JSON Web Key Set.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use openssl::bn::{BigNum, BigNumContext};
use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Public};
use serde::Serialize;

use crate::auth::jwt::{Algorithm, Error, KeySet, MISMATCH, Token, VerifyingKey};

/// kube-apiserver's message, which TokenReviews show.
const BAD_SIGNATURE: &str = "go-jose/go-jose: error in cryptographic primitive";

/// All keys that verify tokens.
pub struct Keys(KeySet);

impl Keys {
    /// These keys, without those of unsupported types.
    pub fn new(keys: &[PKey<Public>]) -> Result<Keys, Error> {
        let keys = keys.iter().filter_map(|key| VerifyingKey::new(key.clone()).transpose());
        Ok(Keys(KeySet::new(keys.collect::<Result<_, _>>()?)))
    }

    /// Whether any key may have signed the token.
    pub fn has_candidate(&self, token: &Token<'_>) -> bool {
        self.0.has_candidate(token)
    }

    /// Verifies that one of the keys signed the token: the one with its key ID, or any if it has none.
    pub fn verify(&self, token: &Token<'_>) -> Result<(), &'static str> {
        self.0.verify(token).map_err(|error| if error == MISMATCH { BAD_SIGNATURE } else { error })
    }

    /// The names of the keys' algorithms, sorted and without duplicates.
    pub fn algorithms(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.keys_with_algorithm().map(|(_, algorithm)| algorithm.name()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The JSON Web Key Set.
    pub fn document(&self) -> Result<String, ErrorStack> {
        #[derive(Serialize)]
        struct Document {
            keys: Vec<PublishedKey>,
        }
        let keys = self
            .keys_with_algorithm()
            .map(|(key, algorithm)| publish(key, algorithm))
            .collect::<Result<_, _>>()?;
        Ok(serde_json::to_string(&Document { keys }).unwrap_or_default())
    }

    /// Each key with its algorithm.
    fn keys_with_algorithm(&self) -> impl Iterator<Item = (&VerifyingKey, Algorithm)> {
        self.0.keys().iter().flat_map(|key| key.algorithms().iter().map(move |algorithm| (key, *algorithm)))
    }
}

impl From<Vec<VerifyingKey>> for Keys {
    fn from(keys: Vec<VerifyingKey>) -> Keys {
        Keys(KeySet::new(keys))
    }
}

/// A published key; its fields are in kube-apiserver's order, which differs from that of `jsonwebtoken`.
#[derive(Serialize)]
struct PublishedKey {
    r#use: &'static str,
    kty: &'static str,
    kid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    crv: Option<&'static str>,
    alg: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    x: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    y: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    e: Option<String>,
}

fn publish(key: &VerifyingKey, algorithm: Algorithm) -> Result<PublishedKey, ErrorStack> {
    let mut jwk = PublishedKey {
        r#use: "sig",
        kty: "RSA",
        kid: key.id.clone(),
        crv: None,
        alg: algorithm.name(),
        x: None,
        y: None,
        n: None,
        e: None,
    };
    let curve = match algorithm {
        Algorithm::Es256 => "P-256",
        Algorithm::Es384 => "P-384",
        Algorithm::Es512 => "P-521",
        _ => {
            let rsa = key.key.rsa()?;
            jwk.n = Some(BASE64.encode(rsa.n().to_vec()));
            jwk.e = Some(BASE64.encode(rsa.e().to_vec()));
            return Ok(jwk);
        }
    };
    let ec = key.key.ec_key()?;
    let (mut x, mut y) = (BigNum::new()?, BigNum::new()?);
    ec.public_key().affine_coordinates(ec.group(), &mut x, &mut y, &mut *BigNumContext::new()?)?;
    let length = algorithm.number_bytes();
    jwk.kty = "EC";
    jwk.crv = Some(curve);
    jwk.x = Some(BASE64.encode(x.to_vec_padded(length)?));
    jwk.y = Some(BASE64.encode(y.to_vec_padded(length)?));
    Ok(jwk)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key with a known JWK: that of RFC 7517, appendix A.1, with the ID that kube-apiserver derives from it.
    const X: &str = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4";
    const Y: &str = "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM";

    fn rfc_key() -> PKey<Public> {
        let number = |text| BigNum::from_slice(&BASE64.decode(text).unwrap()).unwrap();
        let group = openssl::ec::EcGroup::from_curve_name(openssl::nid::Nid::X9_62_PRIME256V1).unwrap();
        let key = openssl::ec::EcKey::from_public_key_affine_coordinates(&group, &number(X), &number(Y));
        PKey::from_ec_key(key.unwrap()).unwrap()
    }

    #[test]
    fn ec_key_is_published_by_its_coordinates() {
        let keys = Keys::new(&[rfc_key()]).unwrap();
        let id = &keys.0.keys()[0].id;
        assert_eq!(
            keys.document().unwrap(),
            format!(
                r#"{{"keys":[{{"use":"sig","kty":"EC","kid":"{id}","crv":"P-256","alg":"ES256","x":"{X}","y":"{Y}"}}]}}"#
            )
        );
        let digest = openssl::sha::sha256(&rfc_key().public_key_to_der().unwrap());
        assert_eq!(*id, BASE64.encode(digest));
    }

    #[test]
    fn rsa_key_is_published_by_modulus_and_exponent() {
        let rsa = openssl::rsa::Rsa::generate(2_048).unwrap();
        let public = PKey::from_rsa(rsa).unwrap().public_key_to_der().unwrap();
        let keys = Keys::new(&[PKey::public_key_from_der(&public).unwrap(), rfc_key()]).unwrap();
        assert_eq!(keys.algorithms(), ["ES256", "RS256"]);
        let document: serde_json::Value = serde_json::from_str(&keys.document().unwrap()).unwrap();
        let first = &document["keys"][0];
        assert_eq!(
            (&first["kty"], &first["alg"], &first["e"]),
            (&"RSA".into(), &"RS256".into(), &"AQAB".into())
        );
        assert!(first.get("crv").is_none());
    }
}
