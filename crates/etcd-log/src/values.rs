//! The values of objects in etcd: encoded and encrypted as the reference does both.

mod encryption;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use pilothouse_actors::shared_log::Decoded;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_encryption::{EncryptError, Encryption, WriteKey};
use pilothouse_etcd_layout::values::{ValueCodec, ValueError, ValueErrorReason};
use pilothouse_types::object::{Draft, Key, StoredDraft, TypeName, UnreadableReason};

use self::encryption::ValueEncryption;
pub(crate) use self::encryption::may_need_plugin;
use crate::types::Types;

/// Why an object has no form for etcd. Then it is not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// It cannot be encoded.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// It cannot be encrypted.
    #[error(transparent)]
    Encryption(#[from] EncryptError),
    /// It was encrypted, and the provider does not say with which key: nobody could tell whether that is still the current one.
    #[error("nobody knows what has encrypted the object")]
    UnknownKey,
}

/// Why a value was not decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// The KMS plugin that has its key does not answer. The same attempt may succeed later.
    Unavailable(String),
    /// It cannot be decoded.
    Impossible(UnreadableReason),
}

/// Makes values of objects, and objects of values. Any thread may use it.
pub(crate) struct Values {
    types: Arc<Types>,
    codec: ValueCodec,
    encryption: ValueEncryption,
}

impl Values {
    /// The values of objects of these types. Without a configuration, none of them is encrypted.
    pub(crate) fn new(types: Arc<Types>, codec: ValueCodec, encryption: Option<Arc<Encryption>>) -> Values {
        Values { types, codec, encryption: ValueEncryption::new(encryption) }
    }

    /// What encodes records that are no objects.
    pub(crate) fn codec(&self) -> &ValueCodec {
        &self.codec
    }

    /// The value of an object; `None` if its type is not known, or has no objects with such a key.
    pub(crate) fn encode(
        &self,
        type_name: &TypeName,
        draft: &Draft,
    ) -> Result<Option<StoredDraft>, EncodeError> {
        let Some((resource, etcd_key)) = self.locate(type_name, &draft.key) else { return Ok(None) };
        let plain = self.codec.encode(&resource, draft)?;
        Ok(Some(match self.encryption.encrypt(type_name, &etcd_key, &plain)? {
            Some((bytes, key_id)) => StoredDraft { bytes: bytes.into(), key_id: Some(key_id) },
            None => StoredDraft { bytes: plain.into(), key_id: None },
        }))
    }

    /// The object of a value. The thread waits if a KMS plugin has to decrypt the data key.
    pub(crate) fn decode(
        &self,
        type_name: &TypeName,
        key: &Key,
        value: &[u8],
    ) -> Result<Decoded, DecodeError> {
        let (resource, etcd_key) = self.locate(type_name, key).ok_or(DecodeError::DAMAGED)?;
        let decrypted = self.encryption.decrypt(type_name, &etcd_key, value).map_err(|error| {
            if error.is_transient() {
                return DecodeError::Unavailable(error.to_string());
            }
            tracing::error!(etcd_key, %error, "an object in etcd cannot be decrypted");
            DecodeError::Impossible(UnreadableReason::Undecryptable(error.to_string()))
        })?;
        let error = match self.codec.decode(&resource, key, &decrypted.bytes) {
            Ok(decoded) => return Ok(Decoded { draft: decoded.draft, key_id: decrypted.key_id }),
            Err(error) => error,
        };
        if let (None, ValueErrorReason::Malformed(_)) = (&decrypted.key_id, &error.reason) {
            // The error may quote it, and it may be a Secret.
            tracing::error!(etcd_key, "an object in etcd is malformed");
            return Err(DecodeError::DAMAGED);
        }
        if matches!(error.reason, ValueErrorReason::Malformed(_)) {
            // Not every cipher notices that a wrong key has made noise of a value. The error may quote that, too.
            let reason = "it was decrypted to something else than an object";
            tracing::error!(etcd_key, reason, "an object in etcd cannot be read");
            return Err(DecodeError::Impossible(UnreadableReason::Undecryptable(reason.to_owned())));
        }
        tracing::error!(etcd_key, %error, "an object in etcd cannot be read");
        Err(DecodeError::DAMAGED)
    }

    /// The value of a record that is no object and is encrypted like objects of this type.
    pub(crate) fn encrypt_record(
        &self,
        type_name: &TypeName,
        etcd_key: &str,
        plain: Vec<u8>,
    ) -> Result<Vec<u8>, EncodeError> {
        let encrypted = self.encryption.encrypt(type_name, etcd_key, &plain)?;
        Ok(encrypted.map_or(plain, |(bytes, _)| bytes))
    }

    /// The bytes of such a record. The thread waits if a KMS plugin has to decrypt the data key.
    pub(crate) fn decrypt_record(
        &self,
        type_name: &TypeName,
        etcd_key: &str,
        value: &[u8],
    ) -> Result<Vec<u8>, String> {
        let decrypted = self.encryption.decrypt(type_name, etcd_key, value);
        decrypted.map(|decrypted| decrypted.bytes.into_owned()).map_err(|error| error.to_string())
    }

    /// What objects of a type are encrypted with now.
    pub(crate) fn write_key(&self, type_name: &TypeName) -> WriteKey {
        self.encryption.write_key(type_name)
    }

    /// A resource of the type and the etcd key of the object.
    fn locate(&self, type_name: &TypeName, key: &Key) -> Option<(Arc<Resource>, String)> {
        Some((self.types.resource(type_name)?, self.types.etcd_key(type_name, key)?))
    }
}

impl DecodeError {
    const DAMAGED: DecodeError = DecodeError::Impossible(UnreadableReason::Damaged);
}

impl From<DecodeError> for UnreadableReason {
    fn from(error: DecodeError) -> UnreadableReason {
        match error {
            DecodeError::Unavailable(reason) => UnreadableReason::Undecryptable(reason),
            DecodeError::Impossible(reason) => reason,
        }
    }
}
