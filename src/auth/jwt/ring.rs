//! Keys that verify tokens, by the names that tokens call them.

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

    /// Whether one of the keys signed the token, the one that it names or any if it names none; or why not. Its times and
    /// audiences are for the caller to check: by a clock that is given, and again each time a remembered token is used.
    pub fn signed(&self, token: &Token<'_>) -> Result<(), &'static str> {
        let mut named =
            self.0.iter().filter(|key| token.key_id.is_empty() || key.id == token.key_id).peekable();
        if named.peek().is_none() {
            return Err("invalid signature, no keys found");
        }
        if named.any(|key| key.signed(token)) { Ok(()) } else { Err(MISMATCH) }
    }
}
