//! AES-CBC with PKCS#7 padding: initialization vector, ciphertext. Nothing authenticates it: a key, or a changed byte, is found to be
//! wrong only if the padding happens to be.

use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;

use super::{CipherError, check_size};
use crate::random;
use crate::secret_key::SecretKey;

const BLOCK_BYTES: usize = 16;

/// AES-CBC with one key of 16, 24 or 32 bytes.
pub struct AesCbc {
    /// Looked up once: the library would look for it at every use.
    cipher: Cipher,
    key: SecretKey,
}

impl AesCbc {
    /// The cipher with a key.
    pub fn new(key: SecretKey) -> Result<AesCbc, CipherError> {
        let name = match key.len() {
            16 => "AES-128-CBC",
            24 => "AES-192-CBC",
            32 => "AES-256-CBC",
            length => return Err(CipherError::KeyLength(length)),
        };
        Ok(AesCbc { cipher: Cipher::fetch(None, name, None)?, key })
    }

    /// Appends the encrypted value to `out`.
    pub fn encrypt(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), CipherError> {
        let vector = random::nonce::<BLOCK_BYTES>()?;
        self.encrypt_with(&vector, plain, out)
    }

    pub(super) fn encrypt_with(
        &self,
        vector: &[u8; BLOCK_BYTES],
        plain: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), CipherError> {
        check_size(plain)?;
        // The library wants room for a block more than it writes.
        out.reserve(plain.len() + 3 * BLOCK_BYTES);
        out.extend_from_slice(vector);
        let mut state = CipherCtx::new()?;
        state.encrypt_init(Some(&self.cipher), Some(self.key.bytes()), Some(vector))?;
        state.cipher_update_vec(plain, out)?;
        state.cipher_final_vec(out)?;
        Ok(())
    }

    /// Decrypts a value.
    pub fn decrypt(&self, data: &[u8]) -> Result<Vec<u8>, CipherError> {
        check_size(data)?;
        let (vector, data) = data.split_at_checked(BLOCK_BYTES).ok_or(CipherError::TooShort)?;
        if data.len() % BLOCK_BYTES != 0 {
            return Err(CipherError::NotBlocks);
        }
        if data.is_empty() {
            return Err(CipherError::TooShort);
        }
        let mut state = CipherCtx::new()?;
        state.decrypt_init(Some(&self.cipher), Some(self.key.bytes()), Some(vector))?;
        let mut plain = Vec::with_capacity(data.len() + BLOCK_BYTES);
        state.cipher_update_vec(data, &mut plain)?;
        state.cipher_final_vec(&mut plain).map_err(|_| CipherError::Padding)?;
        Ok(plain)
    }
}
