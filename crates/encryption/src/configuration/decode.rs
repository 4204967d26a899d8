//! The fields of the file, before any rule but their types was applied.

use pilothouse_apimachinery::document::{FieldReader, present};
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::value::Value;

use super::duration::{self, SignedDuration};
use crate::limits::{KMS_DEFAULT_TIMEOUT, KMS_V1_DEFAULT_CACHED_KEYS};

/// An entry of the file.
pub struct RawResource {
    pub resources: Vec<String>,
    pub providers: Vec<RawProvider>,
}

/// A provider, with every kind of settings that is given.
#[derive(Default)]
pub struct RawProvider {
    pub aesgcm: Option<Vec<RawKey>>,
    pub aescbc: Option<Vec<RawKey>>,
    pub secretbox: Option<Vec<RawKey>>,
    pub identity: bool,
    pub kms: Option<RawKms>,
}

/// A key; the secret is in base64. No `Debug`: it must not be printed.
pub struct RawKey {
    pub name: String,
    pub secret: String,
}

/// A plugin, with defaults.
pub struct RawKms {
    pub version: String,
    pub name: String,
    pub cache_size: Option<i32>,
    pub endpoint: String,
    pub timeout: SignedDuration,
    /// As it is printed.
    pub timeout_text: String,
}

/// Reads all fields and refuses unknown ones.
pub fn decode(file: &Value) -> Result<Vec<RawResource>, String> {
    let mut decoder = Decoder::default();
    let root = FieldPath::root();
    decoder.reader.check_fields(file, &root, &["apiVersion", "kind", "resources"]);
    let entries = decoder.reader.list(file, "resources", &root);
    let path = FieldPath::new("resources");
    let entries = entries.iter().enumerate();
    let resources = entries.map(|(index, entry)| decoder.resource(entry, &path.index(index))).collect();
    decoder.reader.result()?;
    Ok(resources)
}

#[derive(Default)]
struct Decoder {
    reader: FieldReader,
}

impl Decoder {
    fn resource(&mut self, entry: &Value, path: &FieldPath) -> RawResource {
        self.reader.check_fields(entry, path, &["resources", "providers"]);
        let resources = self.reader.texts(entry, "resources", path);
        let providers = self.reader.list(entry, "providers", path);
        let path = path.child("providers");
        let providers = providers.iter().enumerate();
        let providers = providers.map(|(index, value)| self.provider(value, &path.index(index))).collect();
        RawResource { resources, providers }
    }

    fn provider(&mut self, value: &Value, path: &FieldPath) -> RawProvider {
        self.reader.check_fields(value, path, &["aesgcm", "aescbc", "secretbox", "identity", "kms"]);
        let identity = present(value, "identity");
        if let Some(identity) = identity {
            self.reader.check_fields(identity, &path.child("identity"), &[]);
        }
        RawProvider {
            aesgcm: self.keys(value, "aesgcm", path),
            aescbc: self.keys(value, "aescbc", path),
            secretbox: self.keys(value, "secretbox", path),
            identity: identity.is_some(),
            kms: present(value, "kms").map(|kms| self.kms(kms, &path.child("kms"))),
        }
    }

    fn keys(&mut self, provider: &Value, field: &str, path: &FieldPath) -> Option<Vec<RawKey>> {
        let settings = present(provider, field)?;
        let path = path.child(field);
        self.reader.check_fields(settings, &path, &["keys"]);
        let keys = self.reader.list(settings, "keys", &path).iter().enumerate();
        let path = path.child("keys");
        Some(keys.map(|(index, key)| self.key(key, &path.index(index))).collect())
    }

    fn key(&mut self, key: &Value, path: &FieldPath) -> RawKey {
        self.reader.check_fields(key, path, &["name", "secret"]);
        let name = self.reader.text(key, "name", path).to_owned();
        RawKey { name, secret: self.reader.text(key, "secret", path).to_owned() }
    }

    fn kms(&mut self, kms: &Value, path: &FieldPath) -> RawKms {
        self.reader.check_fields(kms, path, &["apiVersion", "name", "cachesize", "endpoint", "timeout"]);
        let version = match self.reader.text(kms, "apiVersion", path) {
            "" => "v1".to_owned(),
            version => version.to_owned(),
        };
        let given_size = present(kms, "cachesize").map(|_| self.reader.integer(kms, "cachesize", path));
        let given_size = given_size.and_then(|size| match i32::try_from(size) {
            Ok(size) => Some(size),
            Err(_) => {
                self.reader.push_message(format!("{}: must be a number of 32 bits", path.child("cachesize")));
                None
            }
        });
        let default_size = (version == "v1").then_some(KMS_V1_DEFAULT_CACHED_KEYS);
        let (timeout, timeout_text) = self.timeout(kms, path);
        RawKms {
            version,
            name: self.reader.text(kms, "name", path).to_owned(),
            cache_size: given_size.or(default_size),
            endpoint: self.reader.text(kms, "endpoint", path).to_owned(),
            timeout,
            timeout_text,
        }
    }

    fn timeout(&mut self, kms: &Value, path: &FieldPath) -> (SignedDuration, String) {
        let default = SignedDuration { length: KMS_DEFAULT_TIMEOUT, is_negative: false };
        let Some(text) = self.reader.optional_text(kms, "timeout", path) else {
            return (default, String::new());
        };
        match duration::parse(text) {
            Ok(timeout) if timeout.length.is_zero() => (timeout, "0s".to_owned()),
            Ok(timeout) => (timeout, text.to_owned()),
            Err(error) => {
                self.reader.push_message(format!("{}: {error}", path.child("timeout")));
                (default, String::new())
            }
        }
    }
}
