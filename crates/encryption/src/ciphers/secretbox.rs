//! XSalsa20 and Poly1305, as NaCl's secretbox has them: nonce, tag, ciphertext.

use crypto_secretbox::aead::AeadInPlace as _;
use crypto_secretbox::{KeyInit as _, Nonce, Tag, XSalsa20Poly1305};

use super::{CipherError, check_size};
use crate::random;
use crate::secret_key::SecretKey;

const NONCE_BYTES: usize = XSalsa20Poly1305::NONCE_SIZE;
const TAG_BYTES: usize = XSalsa20Poly1305::TAG_SIZE;

/// Secretbox with one key of 32 bytes.
pub struct Secretbox {
    cipher: XSalsa20Poly1305,
}

impl Secretbox {
    /// The cipher with a key.
    pub fn new(key: &SecretKey) -> Result<Secretbox, CipherError> {
        let cipher = XSalsa20Poly1305::new_from_slice(key.bytes());
        Ok(Secretbox { cipher: cipher.map_err(|_| CipherError::KeyLength(key.len()))? })
    }

    /// Appends the encrypted value to `out`.
    pub fn encrypt(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), CipherError> {
        let nonce = random::nonce::<NONCE_BYTES>()?;
        self.encrypt_with(&nonce, plain, out)
    }

    pub(super) fn encrypt_with(
        &self,
        nonce: &[u8; NONCE_BYTES],
        plain: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), CipherError> {
        check_size(plain)?;
        out.reserve(NONCE_BYTES + TAG_BYTES + plain.len());
        out.extend_from_slice(nonce);
        let tag_start = out.len();
        out.extend_from_slice(&[0; TAG_BYTES]);
        out.extend_from_slice(plain);
        let (tag_place, text) = out[tag_start..].split_at_mut(TAG_BYTES);
        let tag = self.cipher.encrypt_in_place_detached(&Nonce::from(*nonce), &[], text);
        tag_place.copy_from_slice(&tag.map_err(|_| CipherError::TooLarge)?);
        Ok(())
    }

    /// Decrypts a value.
    pub fn decrypt(&self, data: &[u8]) -> Result<Vec<u8>, CipherError> {
        check_size(data)?;
        let (nonce, data) = data.split_first_chunk::<NONCE_BYTES>().ok_or(CipherError::TooShort)?;
        let (tag, ciphertext) = data.split_first_chunk::<TAG_BYTES>().ok_or(CipherError::TooShort)?;
        let mut text = ciphertext.to_vec();
        self.cipher
            .decrypt_in_place_detached(&Nonce::from(*nonce), &[], &mut text, &Tag::from(*tag))
            .map_err(|_| CipherError::NotAuthentic)?;
        Ok(text)
    }
}
