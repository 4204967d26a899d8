//! The providers of a configuration: each has a prefix, and encrypts and decrypts what follows it.

use pilothouse_types::object::EncryptionKeyId;

use crate::ciphers::{AesCbc, AesGcm, CipherError, Secretbox};
use crate::configuration::NamedKey;
use crate::error::{Attempt, EncryptError};
use crate::key_id::{WriteKey, key_id};
use crate::kms::{KmsFailure, Plugin, encrypted_object};
use crate::observer::{NO_GRPC_STATUS, OK};

/// What all encrypted values begin with. No object does: JSON begins with a brace, Protobuf with `k8s` and a zero byte.
pub const ENCRYPTED_PREFIX: &[u8] = b"k8s:enc:";
/// What the values of KMS v2 plugins begin with.
const KMS_V2_PREFIX: &[u8] = b"k8s:enc:kms:v2:";
/// Magic word, mark, provider, version, and the name of the key or of the plugin.
const PREFIX_PARTS: usize = 5;

/// A provider.
pub enum Provider {
    /// Writes values as they are.
    Identity,
    /// Has keys of its own.
    Keyed(KeyedProvider),
    /// Has its keys from a plugin.
    Kms(Plugin),
}

/// A decrypted value.
pub struct Opened {
    /// The value.
    pub plain: Vec<u8>,
    /// Whether the provider would write it otherwise now.
    pub is_stale: bool,
}

impl Provider {
    /// What its values begin with.
    pub fn prefix(&self) -> &str {
        match self {
            Provider::Identity => "",
            Provider::Keyed(provider) => provider.algorithm.prefix(),
            Provider::Kms(Plugin::V1(provider)) => provider.prefix(),
            Provider::Kms(Plugin::V2(provider)) => provider.prefix(),
        }
    }

    /// The name of the key that values are written with, for providers that may have several.
    pub fn write_key(&self) -> Option<&str> {
        match self {
            Provider::Keyed(provider) => provider.keys.first().map(|key| key.prefix.as_str()),
            _ => None,
        }
    }

    /// What values are encrypted with now.
    pub fn write_key_id(&self) -> WriteKey {
        let key_id = match self {
            Provider::Identity => return WriteKey::Clear,
            Provider::Kms(Plugin::V2(provider)) => provider.write_key_id(),
            Provider::Keyed(_) | Provider::Kms(Plugin::V1(_)) => key_id_of_value(
                format!("{}{}", self.prefix(), self.write_key().unwrap_or_default()).as_bytes(),
            ),
        };
        key_id.map_or(WriteKey::Unknown, WriteKey::Key)
    }

    /// Appends the encrypted value to `out`, without the prefix.
    pub fn encrypt(&self, plain: &[u8], context: &[u8], out: &mut Vec<u8>) -> Result<(), EncryptError> {
        match self {
            Provider::Identity => {
                out.extend_from_slice(plain);
                Ok(())
            }
            Provider::Keyed(provider) => provider.encrypt(plain, context, out),
            Provider::Kms(Plugin::V1(provider)) => provider.encrypt(plain, context, out),
            Provider::Kms(Plugin::V2(provider)) => provider.encrypt(plain, context, out),
        }
    }

    /// Decrypts what follows the prefix. `observe` is told the key and status of each attempt.
    pub fn decrypt(
        &self,
        data: &[u8],
        context: &[u8],
        mut observe: impl FnMut(Option<&str>, &str),
    ) -> Result<Opened, Vec<Attempt>> {
        let (name, result) = match self {
            Provider::Identity => return Ok(Opened { plain: data.to_vec(), is_stale: false }),
            Provider::Keyed(provider) => return provider.decrypt(data, context, observe),
            Provider::Kms(Plugin::V1(provider)) => (provider.name(), provider.decrypt(data, context)),
            Provider::Kms(Plugin::V2(provider)) => (provider.name(), provider.decrypt(data, context)),
        };
        observe(None, result.as_ref().map_or_else(KmsFailure::status, |_| OK));
        match result {
            Ok((plain, is_stale)) => Ok(Opened { plain, is_stale }),
            Err(failure) => Err(vec![Attempt {
                provider: format!("kms provider {name:?}"),
                reason: failure.to_string(),
                is_transient: failure.is_transient(),
                status: failure.status(),
            }]),
        }
    }
}

/// What has encrypted a stored value; `None` if it is in clear text.
pub fn key_id_of_value(stored: &[u8]) -> Option<EncryptionKeyId> {
    stored.strip_prefix(ENCRYPTED_PREFIX)?;
    let (prefix, data) = stored.split_at_checked(prefix_length(stored))?;
    // Only objects of KMS v2 plugins name the key of the plugin. Those of other providers name theirs in the prefix.
    let is_kms_v2 = prefix.starts_with(KMS_V2_PREFIX);
    match is_kms_v2.then(|| encrypted_object::decode(data)) {
        Some(Ok(object)) => Some(key_id(prefix, &object.key_id, object.encrypted_dek_source_type)),
        Some(Err(_)) | None => Some(key_id(prefix, "", 0)),
    }
}

/// The length of the parts that end with a colon.
fn prefix_length(stored: &[u8]) -> usize {
    let colons = stored.iter().enumerate().filter(|(_, byte)| **byte == b':');
    colons.map(|(index, _)| index + 1).nth(PREFIX_PARTS - 1).unwrap_or(stored.len())
}

/// The algorithm of a provider with keys of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// `aescbc`
    AesCbc,
    /// `aesgcm`
    AesGcm,
    /// `secretbox`
    Secretbox,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Algorithm::AesCbc => "aescbc",
            Algorithm::AesGcm => "aesgcm",
            Algorithm::Secretbox => "secretbox",
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Algorithm::AesCbc => "k8s:enc:aescbc:v1:",
            Algorithm::AesGcm => "k8s:enc:aesgcm:v1:",
            Algorithm::Secretbox => "k8s:enc:secretbox:v1:",
        }
    }

    fn no_key(self) -> &'static str {
        match self {
            Algorithm::AesCbc | Algorithm::AesGcm => {
                "no matching key was found for the provided AES transformer"
            }
            Algorithm::Secretbox => "no matching key was found for the provided Secretbox transformer",
        }
    }
}

/// A provider with keys of its own. The first encrypts; each decrypts what carries its name.
pub struct KeyedProvider {
    algorithm: Algorithm,
    keys: Vec<KeyCipher>,
}

struct KeyCipher {
    name: String,
    /// The name and a colon, as values carry it.
    prefix: String,
    cipher: Cipher,
}

enum Cipher {
    AesCbc(AesCbc),
    AesGcm(AesGcm),
    Secretbox(Secretbox),
}

impl KeyedProvider {
    /// The provider with its keys, which the configuration has checked.
    pub fn new(algorithm: Algorithm, keys: &[NamedKey]) -> Result<KeyedProvider, String> {
        let keys: Result<Vec<KeyCipher>, String> =
            keys.iter().map(|key| KeyCipher::new(algorithm, key)).collect();
        Ok(KeyedProvider { algorithm, keys: keys? })
    }

    fn encrypt(&self, plain: &[u8], context: &[u8], out: &mut Vec<u8>) -> Result<(), EncryptError> {
        let failed = |name: &str, reason: String| EncryptError::Cipher {
            provider: format!("{} key {name:?}", self.algorithm.name()),
            reason,
        };
        let key = self.keys.first().ok_or_else(|| failed("", "there is no key".to_owned()))?;
        out.extend_from_slice(key.prefix.as_bytes());
        key.encrypt(plain, context, out).map_err(|error| failed(&key.name, error.to_string()))
    }

    fn decrypt(
        &self,
        data: &[u8],
        context: &[u8],
        mut observe: impl FnMut(Option<&str>, &str),
    ) -> Result<Opened, Vec<Attempt>> {
        let attempt = |provider: String, reason: String| Attempt {
            provider,
            reason,
            is_transient: false,
            status: NO_GRPC_STATUS,
        };
        let algorithm = self.algorithm.name();
        let mut attempts = Vec::new();
        for (index, key) in self.keys.iter().enumerate() {
            let Some(rest) = data.strip_prefix(key.prefix.as_bytes()) else { continue };
            match key.decrypt(rest, context) {
                Ok(plain) => {
                    observe(Some(&key.prefix), OK);
                    return Ok(Opened { plain, is_stale: index != 0 });
                }
                // Another key of the same name, or of one that begins with it, may fit.
                Err(error) => {
                    observe(Some(&key.prefix), NO_GRPC_STATUS);
                    attempts.push(attempt(format!("{algorithm} key {:?}", key.name), error.to_string()));
                }
            }
        }
        if attempts.is_empty() {
            observe(None, NO_GRPC_STATUS);
            let reason = match shown_name(data) {
                Some(name) => format!("{}: {name:?}", self.algorithm.no_key()),
                None => self.algorithm.no_key().to_owned(),
            };
            attempts.push(attempt(algorithm.to_owned(), reason));
        }
        Err(attempts)
    }
}

/// The name of the key that a value carries, if it is one that may be shown.
pub fn shown_name(data: &[u8]) -> Option<&str> {
    use crate::limits::UNKNOWN_PREFIX_BYTES;
    let beginning = data.get(..UNKNOWN_PREFIX_BYTES).unwrap_or(data);
    let end = beginning.iter().position(|byte| *byte == b':')?;
    let name = std::str::from_utf8(&beginning[..end]).ok()?;
    (!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic())).then_some(name)
}

impl KeyCipher {
    fn new(algorithm: Algorithm, key: &NamedKey) -> Result<KeyCipher, String> {
        let secret = key.secret.clone();
        let cipher = match algorithm {
            Algorithm::AesCbc => AesCbc::new(secret).map(Cipher::AesCbc),
            Algorithm::AesGcm => AesGcm::new(secret).map(Cipher::AesGcm),
            Algorithm::Secretbox => Secretbox::new(&secret).map(Cipher::Secretbox),
        };
        let cipher = cipher
            .map_err(|error| format!("error while creating cipher for named key {}: {error}", key.name))?;
        Ok(KeyCipher { name: key.name.clone(), prefix: format!("{}:", key.name), cipher })
    }

    fn encrypt(&self, plain: &[u8], context: &[u8], out: &mut Vec<u8>) -> Result<(), CipherError> {
        match &self.cipher {
            Cipher::AesCbc(cipher) => cipher.encrypt(plain, out),
            Cipher::AesGcm(cipher) => cipher.encrypt(plain, context, out),
            Cipher::Secretbox(cipher) => cipher.encrypt(plain, out),
        }
    }

    fn decrypt(&self, data: &[u8], context: &[u8]) -> Result<Vec<u8>, CipherError> {
        match &self.cipher {
            Cipher::AesCbc(cipher) => cipher.decrypt(data),
            Cipher::AesGcm(cipher) => cipher.decrypt(data, context),
            Cipher::Secretbox(cipher) => cipher.decrypt(data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_different_keys_have_different_ids() {
        let values: [&[u8]; 5] = [
            b"k8s:enc:aescbc:v1:one:xyz",
            b"k8s:enc:aescbc:v1:two:xyz",
            b"k8s:enc:aesgcm:v1:one:xyz",
            b"k8s:enc:kms:v1:one:xyz",
            b"k8s:enc:kms:v2:one:",
        ];
        let ids: Vec<_> = values.iter().map(|value| key_id_of_value(value).unwrap()).collect();
        for (index, id) in ids.iter().enumerate() {
            assert!(!ids[..index].contains(id), "{index}");
        }
        assert_eq!(key_id_of_value(b"k8s:enc:aescbc:v1:one:other data"), Some(ids[0]));
        assert_eq!(key_id_of_value(b"{\"kind\":\"k8s:enc:\"}"), None);
    }
}
