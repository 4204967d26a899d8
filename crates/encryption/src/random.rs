//! Randomness: nonces, keys, and the ids of calls. The source is OpenSSL, as for all other keys of the server.

use std::cell::RefCell;

use openssl::error::ErrorStack;
use openssl::rand::{rand_bytes, rand_priv_bytes};
use uuid::Builder;

use crate::secret_key::SecretKey;

/// Bytes that are drawn at once: every value needs a nonce, and a draw costs nearly the same for twelve bytes as for a thousand, about
/// as much as encrypting an object. Only for what everybody may see: keys are drawn by themselves.
const BUFFER_BYTES: usize = 1 << 10;

/// Random bytes that are not handed out yet.
struct Buffer {
    bytes: [u8; BUFFER_BYTES],
    used: usize,
}

thread_local! {
    static BUFFER: RefCell<Buffer> = const { RefCell::new(Buffer { bytes: [0; BUFFER_BYTES], used: BUFFER_BYTES }) };
}

/// A nonce.
pub fn nonce<const N: usize>() -> Result<[u8; N], ErrorStack> {
    const { assert!(N <= BUFFER_BYTES) };
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.used + N > BUFFER_BYTES {
            rand_bytes(&mut buffer.bytes)?;
            buffer.used = 0;
        }
        let mut nonce = [0; N];
        nonce.copy_from_slice(&buffer.bytes[buffer.used..buffer.used + N]);
        buffer.used += N;
        Ok(nonce)
    })
}

/// A new key, from the generator that OpenSSL keeps apart from the one whose output everybody sees.
pub fn key(length: usize) -> Result<SecretKey, ErrorStack> {
    let mut bytes = vec![0; length];
    rand_priv_bytes(&mut bytes)?;
    Ok(SecretKey::new(bytes))
}

/// A random UUID, version 4: the id of a call to a plugin.
pub fn uuid() -> Result<String, ErrorStack> {
    Ok(Builder::from_random_bytes(nonce()?).into_uuid().hyphenated().to_string())
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

    #[test]
    fn nonces_are_unique_over_many_refills() {
        let nonces: std::collections::HashSet<[u8; 12]> = (0..1_000).map(|_| nonce().unwrap()).collect();
        assert_eq!(nonces.len(), 1_000);
        assert!(nonces.iter().all(|nonce| nonce.iter().any(|byte| *byte != 0)));
    }
}
