//! AES-256-GCM with a key for each value, derived from a seed: info, nonce, ciphertext, tag.
//!
//! The key is what HKDF-Expand with SHA-256 makes of the seed and 32 random bytes, the info. Together with the nonce of AES-GCM a
//! value has 44 random bytes, so a seed may encrypt as many values as anybody can write. The derivation is cheap, so the derived
//! keys are not remembered, as they are in the reference.

use openssl::cipher::Cipher;
use openssl::sha::Sha256;
use zeroize::Zeroizing;

use super::aes_gcm::{self, NONCE_BYTES, TAG_BYTES};
use super::{CipherError, check_size};
use crate::random;
use crate::secret_key::SecretKey;

/// The length of a new seed, and the least length of any.
pub const SEED_BYTES: usize = 32;
const INFO_BYTES: usize = 32;
const KEY_BYTES: usize = 32;
/// The block of SHA-256, which HMAC pads its key to.
const HASH_BLOCK_BYTES: usize = 64;

/// AES-256-GCM with keys that are derived from a seed.
pub struct ExtendedNonceGcm {
    cipher: Cipher,
    /// HMAC with the seed as its key: the states of the inner and the outer hash after the first block, which depends on the seed
    /// alone. The library's own HMAC and HKDF look up their algorithms and set up the key at each use, which takes longer than
    /// encrypting an object does.
    inner: Sha256,
    outer: Sha256,
}

impl ExtendedNonceGcm {
    /// The cipher with a seed of at least [`SEED_BYTES`].
    pub fn new(seed: &SecretKey) -> Result<ExtendedNonceGcm, CipherError> {
        if seed.len() < SEED_BYTES {
            return Err(CipherError::SeedLength(seed.len()));
        }
        let mut block = Zeroizing::new([0; HASH_BLOCK_BYTES]);
        if seed.len() > HASH_BLOCK_BYTES {
            block[..KEY_BYTES].copy_from_slice(&openssl::sha::sha256(seed.bytes()));
        } else {
            block[..seed.len()].copy_from_slice(seed.bytes());
        }
        let start = |padding: u8| {
            let padded = Zeroizing::new(block.map(|byte| byte ^ padding));
            let mut hash = Sha256::new();
            hash.update(padded.as_ref());
            hash
        };
        let (inner, outer) = (start(0x36), start(0x5c));
        Ok(ExtendedNonceGcm { cipher: aes_gcm::fetch(KEY_BYTES)?, inner, outer })
    }

    /// The bytes that a value takes when it is encrypted.
    pub fn encrypted_bytes(plain: &[u8]) -> usize {
        INFO_BYTES + NONCE_BYTES + plain.len() + TAG_BYTES
    }

    /// Appends the encrypted value to `out`.
    pub fn encrypt(&self, plain: &[u8], context: &[u8], out: &mut Vec<u8>) -> Result<(), CipherError> {
        self.encrypt_with(&random::nonce()?, plain, context, out)
    }

    pub(super) fn encrypt_with(
        &self,
        random: &[u8; INFO_BYTES + NONCE_BYTES],
        plain: &[u8],
        context: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), CipherError> {
        let (info, nonce) = random.split_at(INFO_BYTES);
        out.reserve(ExtendedNonceGcm::encrypted_bytes(plain));
        out.extend_from_slice(random);
        aes_gcm::seal(&self.cipher, self.derive(info).as_ref(), nonce, plain, context, out)
    }

    /// Decrypts a value.
    pub fn decrypt(&self, data: &[u8], context: &[u8]) -> Result<Vec<u8>, CipherError> {
        check_size(data)?;
        let (info, data) = data.split_at_checked(INFO_BYTES).ok_or(CipherError::TooShort)?;
        aes_gcm::open(&self.cipher, self.derive(info).as_ref(), data, context)
    }

    /// HKDF-Expand for a key of the length of the hash: one HMAC over the info and the number of the block.
    pub(super) fn derive(&self, info: &[u8]) -> Zeroizing<[u8; KEY_BYTES]> {
        let mut inner = self.inner.clone();
        inner.update(info);
        inner.update(&[1]);
        let mut outer = self.outer.clone();
        outer.update(&inner.finish());
        Zeroizing::new(outer.finish())
    }
}
