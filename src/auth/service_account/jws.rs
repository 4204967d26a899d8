//! Signed texts in their compact form: three parts in base64url, between dots.
//!
//! A key has one algorithm and takes no other, whatever a token says of itself: so nothing unsigned, and nothing that is
//! signed with a public key as if it were a shared secret, is ever looked at twice.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use openssl::bn::BigNum;
use openssl::ecdsa::EcdsaSig;
use openssl::error::ErrorStack;
use openssl::hash::{MessageDigest, hash};
use openssl::nid::Nid;
use openssl::pkey::{HasPublic, Id, PKey, PKeyRef, Private, Public};
use openssl::sha::sha256;
use openssl::sign::{Signer, Verifier};
use serde::Deserialize;

/// How a key signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// ECDSA on P-256.
    Es256,
    /// ECDSA on P-384.
    Es384,
    /// ECDSA on P-521.
    Es512,
    /// RSA with the older padding.
    Rs256,
}

impl Algorithm {
    /// The one algorithm of a key; `None` if it has none.
    pub fn of<T: HasPublic>(key: &PKeyRef<T>) -> Option<Algorithm> {
        match key.id() {
            Id::RSA => Some(Algorithm::Rs256),
            Id::EC => match key.ec_key().ok()?.group().curve_name()? {
                Nid::X9_62_PRIME256V1 => Some(Algorithm::Es256),
                Nid::SECP384R1 => Some(Algorithm::Es384),
                Nid::SECP521R1 => Some(Algorithm::Es512),
                _ => None,
            },
            _ => None,
        }
    }

    /// What tokens call it.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Rs256 => "RS256",
            Algorithm::Es256 => "ES256",
            Algorithm::Es384 => "ES384",
            Algorithm::Es512 => "ES512",
        }
    }

    fn digest(self) -> MessageDigest {
        match self {
            Algorithm::Rs256 | Algorithm::Es256 => MessageDigest::sha256(),
            Algorithm::Es384 => MessageDigest::sha384(),
            Algorithm::Es512 => MessageDigest::sha512(),
        }
    }

    /// Bytes of each of the two numbers that a signature on a curve consists of, and of the coordinates of a key.
    pub fn number_bytes(self) -> i32 {
        match self {
            Algorithm::Rs256 => 0,
            Algorithm::Es256 => 32,
            Algorithm::Es384 => 48,
            Algorithm::Es512 => 66,
        }
    }
}

/// What verifies signatures.
#[derive(Clone)]
pub struct VerifyingKey {
    /// The key itself.
    pub key: PKey<Public>,
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// What tokens call it: a digest of the key, as the reference makes it.
    pub id: String,
}

impl VerifyingKey {
    /// `None` if tokens cannot be signed with such a key.
    pub fn new(key: PKey<Public>) -> Result<Option<VerifyingKey>, ErrorStack> {
        let id = id(&key)?;
        Ok(Algorithm::of(&key).map(|algorithm| VerifyingKey { key, algorithm, id }))
    }

    /// Whether this key signed the token.
    pub fn verifies(&self, token: &Compact<'_>) -> bool {
        let good = token.algorithm == self.algorithm.name()
            && self.signed(token.signed.as_bytes(), &token.signature).unwrap_or(false);
        // A signature that is just wrong may leave its reasons in the queue of this thread, where the next TLS connection
        // would find them and take them for its own.
        drop(ErrorStack::get());
        good
    }

    fn signed(&self, text: &[u8], signature: &[u8]) -> Result<bool, ErrorStack> {
        let digest = self.algorithm.digest();
        if self.algorithm == Algorithm::Rs256 {
            let mut verifier = Verifier::new(digest, &self.key)?;
            verifier.update(text)?;
            return verifier.verify(signature);
        }
        let length = usize::try_from(self.algorithm.number_bytes()).unwrap_or_default();
        if signature.len() != 2 * length {
            return Ok(false);
        }
        let (r, s) = signature.split_at(length);
        let signature = EcdsaSig::from_private_components(BigNum::from_slice(r)?, BigNum::from_slice(s)?)?;
        signature.verify(&hash(digest, text)?, &*self.key.ec_key()?)
    }
}

/// What signs.
pub struct SigningKey {
    key: PKey<Private>,
    algorithm: Algorithm,
    /// The first part of every token: it says nothing but the key.
    header: String,
}

impl SigningKey {
    /// `None` if tokens cannot be signed with such a key.
    pub fn new(key: PKey<Private>) -> Result<Option<SigningKey>, ErrorStack> {
        let Some(algorithm) = Algorithm::of(&key) else { return Ok(None) };
        let header = serde_json::json!({"alg": algorithm.name(), "kid": id(&key)?});
        Ok(Some(SigningKey { key, algorithm, header: BASE64.encode(header.to_string()) }))
    }

    /// A token that says `payload`.
    pub fn sign(&self, payload: &[u8]) -> Result<String, ErrorStack> {
        let mut token = format!("{}.{}", self.header, BASE64.encode(payload));
        let signature = self.signature(token.as_bytes())?;
        token.push('.');
        BASE64.encode_string(signature, &mut token);
        Ok(token)
    }

    fn signature(&self, text: &[u8]) -> Result<Vec<u8>, ErrorStack> {
        let digest = self.algorithm.digest();
        if self.algorithm == Algorithm::Rs256 {
            let mut signer = Signer::new(digest, &self.key)?;
            signer.update(text)?;
            return signer.sign_to_vec();
        }
        let made = EcdsaSig::sign(&hash(digest, text)?, &*self.key.ec_key()?)?;
        let length = self.algorithm.number_bytes();
        Ok([made.r().to_vec_padded(length)?, made.s().to_vec_padded(length)?].concat())
    }
}

fn id<T: HasPublic>(key: &PKeyRef<T>) -> Result<String, ErrorStack> {
    Ok(BASE64.encode(sha256(&key.public_key_to_der()?)))
}

/// A token taken apart. Nobody has checked anything of it.
pub struct Compact<'a> {
    /// How it says that it is signed.
    pub algorithm: String,
    /// The key that it names, empty for none.
    pub key_id: String,
    /// What it says.
    pub payload: Vec<u8>,
    signed: &'a str,
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
    /// What a reader must understand: nothing is understood here.
    crit: Option<serde::de::IgnoredAny>,
}

impl<'a> Compact<'a> {
    /// `None` if the text has another form.
    pub fn parse(token: &'a str) -> Option<Compact<'a>> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        if payload.contains('.') {
            return None;
        }
        let header: Header = serde_json::from_slice(&BASE64.decode(header).ok()?).ok()?;
        if header.crit.is_some() {
            return None;
        }
        Some(Compact {
            algorithm: header.alg,
            key_id: header.kid,
            payload: BASE64.decode(payload).ok()?,
            signed,
            signature: BASE64.decode(signature).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use openssl::ec::{EcGroup, EcKey};
    use openssl::rsa::Rsa;
    use proptest::prelude::*;

    use super::*;

    fn keys() -> Vec<PKey<Private>> {
        let curve = |nid| {
            let group = EcGroup::from_curve_name(nid).unwrap();
            PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
        };
        let mut keys: Vec<_> =
            [Nid::X9_62_PRIME256V1, Nid::SECP384R1, Nid::SECP521R1].into_iter().map(curve).collect();
        keys.push(PKey::from_rsa(Rsa::generate(2_048).unwrap()).unwrap());
        keys
    }

    fn verifying(key: &PKey<Private>) -> VerifyingKey {
        let public = PKey::public_key_from_der(&key.public_key_to_der().unwrap()).unwrap();
        VerifyingKey::new(public).unwrap().unwrap()
    }

    #[test]
    fn what_a_key_signs_it_verifies_and_no_other_does() {
        let keys = keys();
        for (at, key) in keys.iter().enumerate() {
            let token = SigningKey::new(key.clone()).unwrap().unwrap().sign(b"{}").unwrap();
            let compact = Compact::parse(&token).unwrap();
            assert_eq!(compact.payload, b"{}");
            assert_eq!(compact.algorithm, ["ES256", "ES384", "ES512", "RS256"][at]);
            for (other, key) in keys.iter().enumerate() {
                assert_eq!(verifying(key).verifies(&compact), other == at, "{at} by {other}");
            }
            assert_eq!(verifying(key).id, compact.key_id);
        }
    }

    #[test]
    fn the_token_does_not_choose_the_algorithm() {
        let key = &keys()[3];
        let verifying = verifying(key);
        let part = |text: &str| BASE64.encode(text);
        let public = key.public_key_to_pem().unwrap();
        let secret = PKey::hmac(&public).unwrap();
        for algorithm in ["none", "None", "HS256", "RS256", "PS256", "RS512", ""] {
            let signed = format!("{}.{}", part(&format!(r#"{{"alg":"{algorithm}"}}"#)), part("{}"));
            let mut signer = Signer::new(MessageDigest::sha256(), &secret).unwrap();
            signer.update(signed.as_bytes()).unwrap();
            for signature in [Vec::new(), signer.sign_to_vec().unwrap()] {
                let token = format!("{signed}.{}", BASE64.encode(signature));
                assert!(!verifying.verifies(&Compact::parse(&token).unwrap()), "{algorithm}");
            }
        }
    }

    #[test]
    fn a_wrong_signature_leaves_no_error_behind() {
        for key in keys() {
            let token = SigningKey::new(key.clone()).unwrap().unwrap().sign(b"{}").unwrap();
            let (signed, signature) = token.rsplit_once('.').unwrap();
            let length = BASE64.decode(signature).unwrap().len();
            for byte in [0, 1, 255] {
                let wrong = format!("{signed}.{}", BASE64.encode(vec![byte; length]));
                assert!(!verifying(&key).verifies(&Compact::parse(&wrong).unwrap()));
                assert!(ErrorStack::get().errors().is_empty(), "{byte}");
            }
        }
    }

    #[test]
    fn other_forms_are_no_tokens() {
        let header = BASE64.encode(r#"{"alg":"ES256"}"#);
        let critical = BASE64.encode(r#"{"alg":"ES256","crit":["x"]}"#);
        for text in [
            "",
            "..",
            "a.b",
            "a.b.c",
            &format!("{header}.e30"),
            &format!("{header}.e30.e30.e30"),
            &format!("{header}.e30=.e30"),
            &format!("{critical}.e30.e30"),
        ] {
            assert!(Compact::parse(text).is_none(), "{text}");
        }
        assert!(Compact::parse(&format!("{header}.e30.")).is_some());
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_parser(text in "[a-zA-Z0-9_.=-]{0,80}") {
            let _ = Compact::parse(&text);
        }

        #[test]
        fn a_token_that_was_touched_is_refused(at in 0usize..1_000, flip in 1u8..64) {
            use std::sync::LazyLock;
            static MADE: LazyLock<(VerifyingKey, String)> = LazyLock::new(|| {
                let key = &keys()[0];
                (verifying(key), SigningKey::new(key.clone()).unwrap().unwrap().sign(br#"{"a":1}"#).unwrap())
            });
            let (key, token) = &*MADE;
            let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
            let mut bytes = token.clone().into_bytes();
            let at = at % bytes.len();
            if let Some(place) = alphabet.iter().position(|letter| *letter == bytes[at]) {
                bytes[at] = alphabet[(place + usize::from(flip)) % 64];
                let touched = String::from_utf8(bytes).unwrap();
                let accepted = Compact::parse(&touched).is_some_and(|compact| key.verifies(&compact));
                prop_assert!(!accepted, "{touched}");
            }
        }
    }
}
