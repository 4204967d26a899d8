//! The keys of an issuer by key ID.

use super::{Token, VerifyingKey};

/// The error for a token whose signature matches no key.
pub const MISMATCH: &str = "the signature does not match";
/// The error for a token that names a key which is not there.
pub const NO_KEYS: &str = "invalid signature, no keys found";

/// All keys of one issuer.
pub struct KeySet(Vec<VerifyingKey>);

impl KeySet {
    /// A set of these keys.
    pub fn new(keys: Vec<VerifyingKey>) -> KeySet {
        KeySet(keys)
    }

    /// All keys, in the given order.
    pub fn keys(&self) -> &[VerifyingKey] {
        &self.0
    }

    /// Verifies that one of the keys signed the token: the one with its key ID, or any if it has none. The caller checks times
    /// and audiences: with an injected clock, and again for every use of a cached token.
    pub fn verify(&self, token: &Token<'_>) -> Result<(), &'static str> {
        let mut candidates = self.candidates(token).peekable();
        if candidates.peek().is_none() {
            return Err(NO_KEYS);
        }
        if candidates.any(|key| key.verify(token)) { Ok(()) } else { Err(MISMATCH) }
    }

    /// Whether any key may have signed the token.
    pub fn has_candidate(&self, token: &Token<'_>) -> bool {
        self.candidates(token).next().is_some()
    }

    fn candidates(&self, token: &Token<'_>) -> impl Iterator<Item = &VerifyingKey> {
        self.0.iter().filter(|key| token.key_id.is_empty() || key.id == token.key_id)
    }
}
