//! Signed tokens in their compact form: three parts in base64url, between dots.
//!
//! `jsonwebtoken` reads and writes them, with OpenSSL for the signatures (`provider`); what it does not know has its own way
//! (`es512`), and signatures are verified with keys that are at hand (`keys`). A key takes the algorithms that it was made for and no other, whatever a token says of itself: so nothing
//! unsigned, and nothing that is signed with a public key as if it were a shared secret, is ever looked at twice.

mod algorithm;
mod checks;
mod es512;
mod keys;
mod provider;
mod ring;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use openssl::error::ErrorStack;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error as ThisError;

pub use self::algorithm::Algorithm;
pub use self::keys::{SigningKey, VerifyingKey};
pub use self::ring::{MISMATCH, Ring};

/// Why there is no key or no token.
#[derive(Debug, ThisError)]
pub enum Error {
    /// OpenSSL refused a key.
    #[error(transparent)]
    OpenSsl(#[from] ErrorStack),
    /// The library could not make a token.
    #[error(transparent)]
    Library(#[from] jsonwebtoken::errors::Error),
    /// Claims are not JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The process uses the library with other cryptography.
    #[error("another cryptography provider of jsonwebtoken is installed in this process")]
    OtherProvider,
}

/// A token whose form is right. Nobody has checked anything of it.
pub struct Token<'a> {
    /// How it says that it is signed; `None` for a way that no key here takes.
    pub algorithm: Option<Algorithm>,
    /// The key that it names, empty for none.
    pub key_id: String,
    text: &'a str,
    signature: Vec<u8>,
}

/// What decides who reads the rest. The library's own type cannot read a header that names ES512.
#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
    /// What a reader must understand: nothing is understood here.
    crit: Option<serde::de::IgnoredAny>,
}

impl<'a> Token<'a> {
    /// `None` if the text has another form.
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
            algorithm: Algorithm::named(&header.alg),
            key_id: header.kid,
            text,
            signature: BASE64.decode(signature).ok()?,
        })
    }

    /// What it says, without a look at the signature: until that is known to be good, it is good for choosing who shall verify
    /// it and for nothing else.
    pub fn claims<T: DeserializeOwned>(&self) -> Option<T> {
        jsonwebtoken::dangerous::insecure_decode_claims(self.text).ok()
    }
}

#[cfg(test)]
pub(in crate::auth) mod tests;
