//! Randomness: nonces, keys, and the ids of calls. The source is OpenSSL, as for all other keys of the server.

use openssl::error::ErrorStack;
use openssl::rand::{rand_bytes, rand_priv_bytes};
use uuid::Builder;

use crate::secret_key::SecretKey;

/// Fills a nonce.
pub fn fill(nonce: &mut [u8]) -> Result<(), ErrorStack> {
    rand_bytes(nonce)
}

/// A new key, from the generator that OpenSSL keeps apart from the one whose output everybody sees.
pub fn key(length: usize) -> Result<SecretKey, ErrorStack> {
    let mut bytes = vec![0; length];
    rand_priv_bytes(&mut bytes)?;
    Ok(SecretKey::new(bytes))
}

/// A random UUID, version 4: the id of a call to a plugin.
pub fn uuid() -> Result<String, ErrorStack> {
    let mut bytes = [0; 16];
    rand_bytes(&mut bytes)?;
    Ok(Builder::from_random_bytes(bytes).into_uuid().hyphenated().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_ids_differ() {
        let (first, second) = (key(32).unwrap(), key(32).unwrap());
        assert_eq!((first.len(), second.len()), (32, 32));
        assert_ne!(first, second);
        let (first, second) = (uuid().unwrap(), uuid().unwrap());
        assert_eq!((first.len(), &first[14..15]), (36, "4"));
        assert_ne!(first, second);
    }
}
