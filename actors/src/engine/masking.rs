//! An encryption for tests.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pilothouse_types::object::{
    Draft, EncryptionKeyId, HIDDEN_KEY_BYTES, Key, Object, StoredDraft, TypeName,
};

use crate::encryption::{Decrypted, DecryptionError, Encryption};
use crate::engine::record::encode_content;

const KEY: EncryptionKeyId = EncryptionKeyId(7);
const MASK: u8 = 0x5a;

/// Encrypts all types, legibly for nobody who looks for a text. Its key can be lost, and its service can be away.
#[derive(Default)]
pub struct MaskingEncryption {
    /// Whether the key is lost.
    pub is_lost: AtomicBool,
    /// How many decryptions fail because the service is away.
    pub unavailable: AtomicUsize,
    /// Whether new drafts stay clear.
    pub is_off: AtomicBool,
}

impl Encryption for MaskingEncryption {
    fn encrypt(&self, _: &TypeName, draft: &Draft) -> Result<Option<StoredDraft>, String> {
        if self.is_off.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let bytes: Vec<u8> = encode_content(draft).iter().map(|byte| byte ^ MASK).collect();
        Ok(Some(StoredDraft { bytes: bytes.into(), key_id: Some(KEY) }))
    }

    fn is_current(&self, _: &TypeName, object: &Object) -> bool {
        object.encryption_key_id() == Some(KEY)
    }

    fn hidden_key(&self, _: &TypeName, key: &Key) -> Key {
        let mut hash = [0; HIDDEN_KEY_BYTES];
        let checksum = u64::from(crc32fast::hash(key.as_str().as_bytes()));
        let seed = checksum * 0x1_0001 + key.as_str().len() as u64;
        hash.iter_mut().zip(seed.to_le_bytes()).for_each(|(out, byte)| *out = byte);
        Key::hidden(&hash)
    }

    fn decrypt(&self, _: &TypeName, _: &Key, content: &[u8]) -> Result<Decrypted, DecryptionError> {
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(DecryptionError::Impossible("the key is lost".to_owned()));
        }
        let fewer = |left: usize| left.checked_sub(1);
        if self.unavailable.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok() {
            return Err(DecryptionError::Unavailable("the service is away".to_owned()));
        }
        Ok(Decrypted { content: content.iter().map(|byte| byte ^ MASK).collect(), key_id: KEY })
    }

    fn check_clear(&self, _: &TypeName) -> Result<(), String> {
        Ok(())
    }

    fn may_be_unreadable(&self, type_name: &TypeName) -> bool {
        type_name.as_str() != "guards"
    }

    fn wait(&self, _: &str) {}
}
