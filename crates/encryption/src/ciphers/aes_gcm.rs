//! AES-GCM with a random nonce: nonce, ciphertext, tag.

use openssl::cipher::{Cipher, CipherRef};
use openssl::cipher_ctx::CipherCtx;

use super::{CipherError, check_size};
use crate::random;
use crate::secret_key::SecretKey;

pub(super) const NONCE_BYTES: usize = 12;
pub(super) const TAG_BYTES: usize = 16;

/// AES-GCM with one key of 16, 24 or 32 bytes. Nonces are random, so the key must not encrypt more than 2^32 values.
pub struct AesGcm {
    /// Looked up once: the library would look for it at every use.
    cipher: Cipher,
    key: SecretKey,
}

impl AesGcm {
    /// The cipher with a key.
    pub fn new(key: SecretKey) -> Result<AesGcm, CipherError> {
        Ok(AesGcm { cipher: fetch(key.len())?, key })
    }

    /// Appends the encrypted value to `out`.
    pub fn encrypt(&self, plain: &[u8], context: &[u8], out: &mut Vec<u8>) -> Result<(), CipherError> {
        let nonce = random::nonce::<NONCE_BYTES>()?;
        out.reserve(NONCE_BYTES + plain.len() + TAG_BYTES);
        out.extend_from_slice(&nonce);
        seal(&self.cipher, self.key.bytes(), &nonce, plain, context, out)
    }

    /// Decrypts a value.
    pub fn decrypt(&self, data: &[u8], context: &[u8]) -> Result<Vec<u8>, CipherError> {
        open(&self.cipher, self.key.bytes(), data, context)
    }
}

/// The algorithm for keys of a length.
pub(super) fn fetch(key_bytes: usize) -> Result<Cipher, CipherError> {
    let name = match key_bytes {
        16 => "AES-128-GCM",
        24 => "AES-192-GCM",
        32 => "AES-256-GCM",
        _ => return Err(CipherError::KeyLength(key_bytes)),
    };
    Ok(Cipher::fetch(None, name, None)?)
}

/// Appends ciphertext and tag. The key has the length of the cipher, the nonce has [`NONCE_BYTES`].
pub(super) fn seal(
    cipher: &CipherRef,
    key: &[u8],
    nonce: &[u8],
    plain: &[u8],
    context: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), CipherError> {
    check_size(plain)?;
    let mut state = CipherCtx::new()?;
    state.encrypt_init(Some(cipher), Some(key), Some(nonce))?;
    if !context.is_empty() {
        state.cipher_update(context, None)?;
    }
    if !plain.is_empty() {
        state.cipher_update_vec(plain, out)?;
    }
    state.cipher_final(&mut [])?;
    let mut tag = [0; TAG_BYTES];
    state.tag(&mut tag)?;
    out.extend_from_slice(&tag);
    Ok(())
}

/// Decrypts nonce, ciphertext and tag.
pub(super) fn open(
    cipher: &CipherRef,
    key: &[u8],
    data: &[u8],
    context: &[u8],
) -> Result<Vec<u8>, CipherError> {
    check_size(data)?;
    let (nonce, data) = data.split_at_checked(NONCE_BYTES).ok_or(CipherError::TooShort)?;
    // The reference finds data without a tag not authentic, and only data without a nonce too short.
    let (ciphertext, tag) = data.split_last_chunk::<TAG_BYTES>().ok_or(CipherError::NotAuthentic)?;
    let mut state = CipherCtx::new()?;
    state.decrypt_init(Some(cipher), Some(key), Some(nonce))?;
    if !context.is_empty() {
        state.cipher_update(context, None)?;
    }
    let mut plain = Vec::with_capacity(ciphertext.len());
    if !ciphertext.is_empty() {
        state.cipher_update_vec(ciphertext, &mut plain)?;
    }
    state.set_tag(tag)?;
    state.cipher_final(&mut []).map_err(|_| CipherError::NotAuthentic)?;
    Ok(plain)
}
