//! Which values are encrypted, and how. The etcd key of an object is the associated data, as in the reference, so that a value that was
//! moved to another key cannot be decrypted, unless its cipher knows no associated data.

use std::borrow::Cow;
use std::sync::Arc;

use pilothouse_api::custom::definition::group_resource_of_store;
use pilothouse_encryption::{
    DecryptError, Decrypted, ENCRYPTED_PREFIX, Encryption, ResourceEncryption, WriteKey,
};
use pilothouse_types::object::{EncryptionKeyId, TypeName};

use super::EncodeError;

/// What values begin with whose keys KMS plugins protect.
const KMS_PREFIX: &[u8] = b"k8s:enc:kms:";

/// Whether a KMS plugin may have the key of a value.
pub(crate) fn may_need_plugin(value: &[u8]) -> bool {
    value.starts_with(KMS_PREFIX)
}

/// The encryption of values.
pub(crate) struct ValueEncryption {
    /// The configuration in use, if there is one.
    configured: Option<Arc<Encryption>>,
}

impl ValueEncryption {
    /// Encrypts as configured; nothing without a configuration.
    pub(crate) fn new(configured: Option<Arc<Encryption>>) -> ValueEncryption {
        ValueEncryption { configured }
    }

    /// What values of a type are encrypted with now.
    pub(crate) fn write_key(&self, type_name: &TypeName) -> WriteKey {
        self.resource(type_name).map_or(WriteKey::Clear, |resource| resource.write_key())
    }

    /// The encrypted value, and what has encrypted it; `None` if it is stored as it is. Never waits.
    pub(crate) fn encrypt(
        &self,
        type_name: &TypeName,
        etcd_key: &str,
        plain: &[u8],
    ) -> Result<Option<(Vec<u8>, EncryptionKeyId)>, EncodeError> {
        let Some(resource) = self.resource(type_name) else { return Ok(None) };
        let encrypted = resource.encrypt_identified(plain, etcd_key.as_bytes())?;
        match (encrypted.bytes, encrypted.key_id) {
            (Cow::Owned(bytes), Some(key_id)) => Ok(Some((bytes, key_id))),
            (Cow::Owned(_), None) => Err(EncodeError::UnknownKey),
            (Cow::Borrowed(_), _) => Ok(None),
        }
    }

    /// The clear text of a value. One that is not encrypted is that already, if the configuration allows it. The thread waits if a KMS
    /// plugin has to decrypt the data key.
    pub(crate) fn decrypt<'v>(
        &self,
        type_name: &TypeName,
        etcd_key: &str,
        value: &'v [u8],
    ) -> Result<Decrypted<'v>, DecryptError> {
        match self.resource(type_name) {
            Some(resource) => resource.decrypt(value, etcd_key.as_bytes()),
            None if value.starts_with(ENCRYPTED_PREFIX) => Err(DecryptError::Encrypted(
                "it is encrypted, and --encryption-provider-config is not set".to_owned(),
            )),
            None => Ok(Decrypted { bytes: Cow::Borrowed(value), is_stale: false, key_id: None }),
        }
    }

    fn resource(&self, type_name: &TypeName) -> Option<ResourceEncryption> {
        let resource = group_resource_of_store(type_name);
        Some(self.configured.as_ref()?.for_resource(resource.group, resource.resource))
    }
}
