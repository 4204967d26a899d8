//! Keys that verify tokens, by the names that tokens call them.

use serde::de::DeserializeOwned;

use super::{Token, VerifyingKey};

/// What is said of a token that none of its keys signed.
pub const MISMATCH: &str = "the signature does not match";

/// All keys of one issuer.
pub struct Ring(Vec<VerifyingKey>);

impl Ring {
    /// The ring of these keys.
    pub fn new(keys: Vec<VerifyingKey>) -> Ring {
        Ring(keys)
    }

    /// All of them, in the order in which they were given.
    pub fn keys(&self) -> &[VerifyingKey] {
        &self.0
    }

    /// What the token says, if one of the keys signed it: the one that it names, or any if it names none. Its times and
    /// audiences are for the caller to check.
    pub fn open<T: DeserializeOwned>(&self, token: &Token<'_>) -> Result<T, &'static str> {
        let mut named = self.named(token).peekable();
        if named.peek().is_none() {
            return Err("invalid signature, no keys found");
        }
        named.find_map(|key| key.open(token)).ok_or(MISMATCH)
    }

    /// Whether one of the keys signed it, in the same sense.
    pub fn signed(&self, token: &Token<'_>) -> bool {
        self.named(token).any(|key| key.signed(token))
    }

    fn named<'a>(&'a self, token: &'a Token<'_>) -> impl Iterator<Item = &'a VerifyingKey> {
        self.0.iter().filter(|key| token.key_id.is_empty() || key.id == token.key_id)
    }
}
