//! Signed JSON Web Tokens in compact form: three parts in base64url, separated by dots.
//!
//! `jsonwebtoken` parses and writes them, with OpenSSL for signatures (`provider`). ES512, which it does not support, is written
//! here (`es512`), and signatures are verified with prepared keys (`keys`). A key accepts only the algorithms that it was made
//! for, whatever the token's header says. So an unsigned token, or one signed with a public key as a shared secret, is never
//! accepted.

mod algorithm;
mod es512;
mod key_set;
mod keys;
mod provider;
mod verify_contexts;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use openssl::error::ErrorStack;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error as ThisError;

pub use self::algorithm::Algorithm;
pub use self::key_set::{KeySet, MISMATCH, NO_KEYS};
pub use self::keys::{SigningKey, VerifyingKey};

/// Why a key or token cannot be made.
#[derive(Debug, ThisError)]
pub enum Error {
    /// OpenSSL refused a key.
    #[error(transparent)]
    OpenSsl(#[from] ErrorStack),
    /// The library could not make a token.
    #[error(transparent)]
    Library(#[from] jsonwebtoken::errors::Error),
    /// The claims cannot be encoded as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The process uses the library with another cryptography provider.
    #[error("another cryptography provider of jsonwebtoken is installed in this process")]
    OtherProvider,
}

/// A well-formed token. Nothing of it is verified.
pub struct Token<'a> {
    /// The algorithm in its header; `None` for one that no key here accepts.
    pub algorithm: Option<Algorithm>,
    /// The key ID in its header, empty for none.
    pub key_id: String,
    text: &'a str,
    signature: Vec<u8>,
}

/// The header. The library's own type cannot parse ES512.
#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
    /// Critical extensions: none is understood here.
    crit: Option<serde::de::IgnoredAny>,
}

impl<'a> Token<'a> {
    /// Parses a token; `None` if it is malformed.
    pub fn parse(text: &'a str) -> Option<Token<'a>> {
        let mut parts = text.split('.');
        let (header, _, signature) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let header: Header = serde_json::from_slice(&BASE64.decode(header).ok()?).ok()?;
        if header.crit.is_some() {
            return None;
        }
        Some(Token {
            algorithm: Algorithm::from_name(&header.alg),
            key_id: header.kid,
            text,
            signature: BASE64.decode(signature).ok()?,
        })
    }

    /// The unverified claims. They may be used to choose a verifier, and for nothing else until the signature is verified.
    pub fn claims<T: DeserializeOwned>(&self) -> Option<T> {
        jsonwebtoken::dangerous::insecure_decode_claims(self.text).ok()
    }
}

#[cfg(test)]
pub(in crate::auth) mod tests;
