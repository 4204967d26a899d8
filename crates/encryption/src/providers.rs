//! The providers of a configuration: each has a prefix, and encrypts and decrypts what follows it.

use openssl::sha::sha256;
use pilothouse_types::object::EncryptionKeyId;

use crate::ciphers::{AesCbc, AesGcm, CipherError, Secretbox};
use crate::configuration::NamedKey;
use crate::error::{Attempt, EncryptError};
use crate::key_id::{WriteKey, key_id};
use crate::kms::{KmsFailure, Plugin, encrypted_object};
use crate::observer::{NO_GRPC_STATUS, OK};

/// What all encrypted values begin with. No object does: JSON begins with a brace, Protobuf with `k8s` and a zero byte.
pub const ENCRYPTED_PREFIX: &[u8] = b"k8s:enc:";

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
    /// What had encrypted it; `None` if nothing had.
    pub key_id: Option<EncryptionKeyId>,
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
    pub fn write_key_name(&self) -> Option<&str> {
        match self {
            Provider::Keyed(provider) => provider.keys.first().map(|key| key.prefix.as_str()),
            _ => None,
        }
    }

    /// What values are encrypted with now.
    pub fn write_key(&self) -> WriteKey {
        let key_id = match self {
            Provider::Identity => return WriteKey::Clear,
            Provider::Kms(Plugin::V2(provider)) => provider.write_key_id(),
            Provider::Kms(Plugin::V1(_)) => self.kms_key_id(b""),
            Provider::Keyed(provider) => provider.keys.first().map(|key| key.id),
        };
        key_id.map_or(WriteKey::Unknown, WriteKey::Key)
    }

    /// Whether this is one of the keys that the configuration gives it.
    pub fn has_key(&self, id: EncryptionKeyId) -> bool {
        matches!(self, Provider::Keyed(provider) if provider.keys.iter().any(|key| key.id == id))
    }

    /// What has encrypted a value, of which this is what follows the prefix, on its way to storage.
    pub fn key_id_of_written(&self, data: &[u8]) -> Option<EncryptionKeyId> {
        match self {
            Provider::Identity => None,
            Provider::Kms(_) => self.kms_key_id(data),
            Provider::Keyed(provider) => provider.keys.first().map(|key| key.id),
        }
    }

    /// The key of the plugin, if values name it; else the provider counts.
    fn kms_key_id(&self, data: &[u8]) -> Option<EncryptionKeyId> {
        let prefix = self.prefix().as_bytes();
        match self {
            Provider::Kms(Plugin::V2(_)) => {
                let object = encrypted_object::decode(data).ok()?;
                Some(key_id(prefix, object.key_id.as_bytes(), object.encrypted_dek_source_type))
            }
            _ => Some(key_id(prefix, b"", 0)),
        }
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
            Provider::Identity => return Ok(Opened { plain: data.to_vec(), is_stale: false, key_id: None }),
            Provider::Keyed(provider) => return provider.decrypt(data, context, observe),
            Provider::Kms(Plugin::V1(provider)) => (provider.name(), provider.decrypt(data, context)),
            Provider::Kms(Plugin::V2(provider)) => (provider.name(), provider.decrypt(data, context)),
        };
        observe(None, result.as_ref().map_or_else(KmsFailure::status, |_| OK));
        match result {
            Ok((plain, is_stale)) => Ok(Opened { plain, is_stale, key_id: self.kms_key_id(data) }),
            Err(failure) => Err(vec![Attempt {
                provider: format!("kms provider {name:?}"),
                reason: failure.to_string(),
                is_transient: failure.is_transient(),
                status: failure.status(),
            }]),
        }
    }
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
    /// Two keys may have one name: what counts is the secret.
    id: EncryptionKeyId,
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
                    return Ok(Opened { plain, is_stale: index != 0, key_id: Some(key.id) });
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
        let prefix = format!("{}:", key.name);
        let written_prefix = [algorithm.prefix(), &prefix].concat();
        let id = key_id(written_prefix.as_bytes(), &sha256(key.secret.bytes()), 0);
        Ok(KeyCipher { name: key.name.clone(), prefix, id, cipher })
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
