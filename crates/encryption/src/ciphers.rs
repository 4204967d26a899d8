//! The algorithms. Each knows the layout of its bytes, without the prefix that names the provider and the key.
//!
//! The context is the path under which a value is stored. Ciphers with associated data authenticate it, so that a value cannot be
//! moved to another object; AES-CBC and secretbox ignore it, as in the reference.

mod aes_cbc;
mod aes_gcm;
mod extended_nonce;
mod secretbox;

use openssl::error::ErrorStack;

pub use aes_cbc::AesCbc;
pub use aes_gcm::AesGcm;
pub use extended_nonce::{ExtendedNonceGcm, SEED_BYTES};
pub use secretbox::Secretbox;

use crate::limits::VALUE_BYTES;

/// Why a cipher refuses its input. The texts are the reference's where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CipherError {
    /// There is not even room for the nonce and the tag.
    #[error("the stored data was shorter than the required size")]
    TooShort,
    /// CBC works on whole blocks.
    #[error("the stored data is not a multiple of the block size")]
    NotBlocks,
    /// The end of the decrypted text is no padding: wrong key, or changed data.
    #[error("invalid padding on input")]
    Padding,
    /// The data was changed, was encrypted with another key, or belongs to another object.
    #[error("cipher: message authentication failed")]
    NotAuthentic,
    /// The algorithm has no keys of this length.
    #[error("invalid key size {0}")]
    KeyLength(usize),
    /// A seed is too short for its purpose.
    #[error("invalid seed length {0} used for key generation")]
    SeedLength(usize),
    /// The value is larger than all that a server stores.
    #[error("the value has more than {VALUE_BYTES} bytes")]
    TooLarge,
    /// The library failed, which has no reason in the data.
    #[error("OpenSSL failed: {0}")]
    Library(String),
}

impl From<ErrorStack> for CipherError {
    fn from(errors: ErrorStack) -> CipherError {
        CipherError::Library(errors.to_string())
    }
}

/// Refuses values that are too large for the arithmetic of the library.
fn check_size(value: &[u8]) -> Result<(), CipherError> {
    if value.len() > VALUE_BYTES { Err(CipherError::TooLarge) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
