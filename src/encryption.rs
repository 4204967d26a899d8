//! Encryption at rest: which records of the log are encrypted, and how.
//!
//! `crates/encryption/` has the configuration and the providers. Here is what the log needs of them ([`StoredEncryption`]), and the
//! task that follows changes of the file ([`reload`]).

pub mod reload;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use openssl::sha::Sha256;
use pilothouse_actors::encryption::{Decrypted, DecryptionError, Encryption as LogEncryption};
use pilothouse_actors::engine::record::encode_content;
use pilothouse_api::custom::definition::group_resource_of_store;
use pilothouse_apimachinery::status::GroupResource;
use pilothouse_encryption::{Encryption, ResourceEncryption, Settings, WriteKey};
use pilothouse_types::object::{Draft, HIDDEN_KEY_BYTES, Key, Object, StoredDraft, TypeName};

use crate::limits::DECRYPTION_RETRY_PAUSE;

/// Types without whose objects nobody can say which API is served, or which addresses and ports are in use. A server does not start if
/// one of them cannot be decrypted.
const ALWAYS_READABLE: [&str; 3] =
    ["customresourcedefinitions.apiextensions.k8s.io", "apiservices.apiregistration.k8s.io", "services"];
/// What the hashes of keys begin with, so that they are not those of other texts.
const HIDDEN_KEY_CONTEXT: &[u8] = b"pilothouse hidden key\0";

/// The encryption of the log.
pub struct StoredEncryption {
    /// The configuration in use, if there is one.
    configured: Option<Arc<Encryption>>,
}

impl StoredEncryption {
    /// Encrypts as configured; nothing without a configuration.
    pub fn new(configured: Option<Arc<Encryption>>) -> StoredEncryption {
        StoredEncryption { configured }
    }

    /// Decrypts with the configuration of a file, for commands that read a log or a backup without a server.
    pub fn for_reading(config: Option<&Path>) -> Result<StoredEncryption, String> {
        let settings = Settings { allows_kms_v1: true, is_polling: false, ..Settings::default() };
        Ok(StoredEncryption::new(load(config, settings)?))
    }

    /// The configuration of a file, for a command that also encrypts: for how long a KMS plugin lets it use a key, it has to ask again.
    pub fn load(config: Option<&Path>) -> Result<Option<Arc<Encryption>>, String> {
        load(config, Settings { allows_kms_v1: true, ..Settings::default() })
    }

    fn resource(&self, type_name: &TypeName) -> Option<ResourceEncryption> {
        let configured = self.configured.as_ref()?;
        let GroupResource { group, resource } = group_resource_of_store(type_name);
        Some(configured.for_resource(group, resource))
    }
}

fn load(config: Option<&Path>, settings: Settings) -> Result<Option<Arc<Encryption>>, String> {
    let Some(path) = config else { return Ok(None) };
    let text = reload::read_file(path)?;
    let encryption = Encryption::load(&text, settings).map_err(|error| error.to_string())?;
    Ok(Some(Arc::new(encryption)))
}

/// What an encrypted content is bound to: its place in the log.
fn context(type_name: &TypeName, hidden_key: &Key) -> Vec<u8> {
    [type_name.as_str(), hidden_key.as_str()].concat().into_bytes()
}

impl LogEncryption for StoredEncryption {
    fn encrypt(&self, type_name: &TypeName, draft: &Draft) -> Result<Option<StoredDraft>, String> {
        let Some(resource) =
            self.resource(type_name).filter(|resource| resource.write_key() != WriteKey::Clear)
        else {
            return Ok(None);
        };
        let context = context(type_name, &self.hidden_key(type_name, &draft.key));
        let content = encode_content(draft);
        let encrypted = resource.encrypt_identified(&content, &context).map_err(|error| error.to_string())?;
        match (encrypted.bytes, encrypted.key_id) {
            (Cow::Owned(bytes), Some(key_id)) => {
                Ok(Some(StoredDraft { bytes: bytes.into(), key_id: Some(key_id) }))
            }
            (Cow::Owned(_), None) => Err("nobody knows what has encrypted the object".to_owned()),
            // A reload has turned encryption off meanwhile.
            (Cow::Borrowed(_), _) => Ok(None),
        }
    }

    fn is_current(&self, type_name: &TypeName, object: &Object) -> bool {
        let stored = object.encryption_key_id();
        let write_key = self.resource(type_name).map_or(WriteKey::Clear, |resource| resource.write_key());
        !object.is_readable() || write_key.is_current(stored)
    }

    fn hidden_key(&self, type_name: &TypeName, key: &Key) -> Key {
        let mut hash = Sha256::new();
        for part in [HIDDEN_KEY_CONTEXT, type_name.as_str().as_bytes(), b"\0", key.as_str().as_bytes()] {
            hash.update(part);
        }
        let mut hidden = [0; HIDDEN_KEY_BYTES];
        hidden.iter_mut().zip(hash.finish()).for_each(|(out, byte)| *out = byte);
        Key::hidden(&hidden)
    }

    fn decrypt(
        &self,
        type_name: &TypeName,
        hidden_key: &Key,
        content: &[u8],
    ) -> Result<Decrypted, DecryptionError> {
        let impossible = |reason: &str| Err(DecryptionError::Impossible(reason.to_owned()));
        let Some(resource) = self.resource(type_name) else {
            return impossible("it is encrypted, and --encryption-provider-config is not set");
        };
        match resource.decrypt(content, &context(type_name, hidden_key)) {
            Ok(decrypted) => match decrypted.key_id {
                Some(key_id) => Ok(Decrypted { content: decrypted.bytes.into_owned(), key_id }),
                None => impossible("it is not encrypted"),
            },
            Err(error) if error.is_transient() => Err(DecryptionError::Unavailable(error.to_string())),
            Err(error) => impossible(&error.to_string()),
        }
    }

    fn check_clear(&self, type_name: &TypeName) -> Result<(), String> {
        match self.resource(type_name) {
            None => Ok(()),
            Some(resource) => resource.check_clear().map_err(|error| error.to_string()),
        }
    }

    fn may_be_unreadable(&self, type_name: &TypeName) -> bool {
        !ALWAYS_READABLE.contains(&type_name.as_str())
    }

    fn wait(&self, reason: &str) {
        tracing::warn!(reason, "the store cannot be decrypted yet; trying again");
        thread::sleep(DECRYPTION_RETRY_PAUSE);
    }
}

#[cfg(test)]
mod tests;
