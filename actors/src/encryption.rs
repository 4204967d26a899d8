//! Encryption at rest, as the log sees it.
//!
//! A draft of an encrypted resource comes to its store with its encrypted form, and only that is written to the log. Which resources
//! are encrypted, and how, is decided by an implementation of [`Encryption`] above this crate. The engine has it, because it has to
//! read its records.
//!
//! The content of an encrypted record is, integers little endian, texts and bytes preceded by their length as u32:
//!
//! ```text
//! key · offset of the revision u32 · offset of the item u32 · labels · fields · body without its revision
//! ```
//!
//! It has no revision, because it is encrypted before a store gives it one.

use std::fmt;

use pilothouse_types::object::{
    Draft, EncryptionKeyId, HIDDEN_KEY_BYTES, Key, Object, StoredDraft, TypeName,
};

/// Encrypts and decrypts records. Its methods may be called from any thread.
pub trait Encryption: Send + Sync {
    /// Encrypts a draft for the log; `None` if its type is stored in clear text. It does not wait.
    fn encrypt(&self, type_name: &TypeName, draft: &Draft) -> Result<Option<StoredDraft>, String>;

    /// Whether the stored form of an object has the encryption, or none, that it would get if it were written now.
    fn is_current(&self, type_name: &TypeName, object: &Object) -> bool;

    /// What stands for a key in the log, where it must not be legible.
    fn hidden_key(&self, type_name: &TypeName, key: &Key) -> Key;

    /// Decrypts the content of a record. Blocks while the service that has the key is asked.
    fn decrypt(
        &self,
        type_name: &TypeName,
        hidden_key: &Key,
        content: &[u8],
    ) -> Result<Decrypted, DecryptionError>;

    /// Whether the type may have records in clear text, or why not.
    fn check_clear(&self, type_name: &TypeName) -> Result<(), String>;

    /// Whether a server may start although an object of this type cannot be decrypted.
    fn may_be_unreadable(&self, type_name: &TypeName) -> bool;

    /// Blocks until it is time to repeat an attempt that was [`DecryptionError::Unavailable`] during a start.
    fn wait(&self, reason: &str);
}

/// A decrypted content.
pub struct Decrypted {
    /// The content.
    pub content: Vec<u8>,
    /// What had encrypted it.
    pub key_id: EncryptionKeyId,
}

/// Without the content, which may be a Secret.
impl fmt::Debug for Decrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decrypted").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

/// Why a content was not decrypted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecryptionError {
    /// The service that has the key did not answer. The same attempt may succeed later.
    #[error("{0}")]
    Unavailable(String),
    /// The key is missing or another one, or the content was changed.
    #[error("{0}")]
    Impossible(String),
}

/// For logs without encrypted records.
pub struct NoEncryption;

impl Encryption for NoEncryption {
    fn encrypt(&self, _: &TypeName, _: &Draft) -> Result<Option<StoredDraft>, String> {
        Ok(None)
    }

    fn is_current(&self, _: &TypeName, _: &Object) -> bool {
        true
    }

    fn hidden_key(&self, _: &TypeName, _: &Key) -> Key {
        Key::hidden(&[0; HIDDEN_KEY_BYTES])
    }

    fn decrypt(&self, _: &TypeName, _: &Key, _: &[u8]) -> Result<Decrypted, DecryptionError> {
        Err(DecryptionError::Impossible("no encryption is configured".to_owned()))
    }

    fn check_clear(&self, _: &TypeName) -> Result<(), String> {
        Ok(())
    }

    fn may_be_unreadable(&self, _: &TypeName) -> bool {
        true
    }

    fn wait(&self, _: &str) {}
}
