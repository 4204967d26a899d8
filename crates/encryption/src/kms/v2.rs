//! The provider `kms` with `apiVersion: v2`.
//!
//! The checks of the plugin keep a seed for writing: a random seed that the plugin has encrypted with its current key. Objects are
//! encrypted with keys that are derived from it, and carry the encrypted seed. When the plugin changes its key, the next check makes
//! another seed. As long as checks fail, the last seed may be used for [`KMS_WRITE_TTL`], and for reading without limit.

pub(crate) mod encrypted_object;
mod seed;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use pilothouse_plugins::{CallError, Code, clipped};
use pilothouse_types::clock::Clock;
use pilothouse_types::lock::Lock;
use pilothouse_types::object::EncryptionKeyId;

use self::encrypted_object::KeyIdError;
use self::seed::{DataKey, WriteSeed};
use super::client::Client;
use super::failure::KmsFailure;
use super::flights::Flights;
use super::key_cache::{CacheKey, KeyCache};
use super::messages::v2::methods::{DECRYPT, ENCRYPT, STATUS};
use super::messages::v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, EncryptedObject,
    HKDF_SHA256_XNONCE_AES_GCM_SEED, StatusRequest, StatusResponse,
};
use super::plugin::PluginSettings;
use super::probe::{CheckResult, Probe};
use crate::ciphers::SEED_BYTES;
use crate::error::{EncryptError, join};
use crate::key_id::key_id;
use crate::limits::{KMS_UNUSED_KEY_TTL, KMS_V2_CACHED_SEEDS, KMS_WRITE_TTL};
use crate::observer::{Direction, Observer, key_id_hash};
use crate::random;
use crate::secret_key::SecretKey;

/// The versions that a plugin may say it has; both are the same.
const VERSIONS: [&str; 2] = ["v2", "v2beta1"];

/// The provider.
pub struct KmsV2 {
    name: String,
    prefix: String,
    client: Arc<Client>,
    clock: Clock,
    observer: Arc<dyn Observer>,
    probe: Probe,
    /// The version of the plugin at its first good check: it must not change.
    version: Lock<String>,
    /// What objects are encrypted with; `None` until the first good check.
    write_seed: ArcSwapOption<WriteSeed>,
    keys: KeyCache<DataKey>,
    flights: Flights<CacheKey, Result<Arc<DataKey>, KmsFailure>>,
}

impl KmsV2 {
    /// A provider that was not checked yet, and cannot encrypt before it was.
    pub fn new(settings: &PluginSettings<'_>) -> Result<KmsV2, String> {
        let PluginSettings { configuration, runtime, clock, observer } = settings;
        let client =
            Client::new(configuration, (*runtime).clone(), (*clock).clone(), Some((*observer).clone()))?;
        Ok(KmsV2 {
            name: configuration.name.clone(),
            prefix: format!("k8s:enc:kms:v2:{}:", configuration.name),
            client: Arc::new(client),
            clock: (*clock).clone(),
            observer: (*observer).clone(),
            probe: Probe::new((*clock).clone()),
            version: Lock::default(),
            write_seed: ArcSwapOption::empty(),
            keys: KeyCache::new(KMS_V2_CACHED_SEEDS, KMS_UNUSED_KEY_TTL, (*clock).clone()),
            flights: Flights::default(),
        })
    }

    /// The name of the provider.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the values of this provider begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The client, whose runtime makes the checks.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The last check.
    pub fn probe(&self) -> &Probe {
        &self.probe
    }

    /// What values are encrypted with now; `None` before the first good check.
    pub fn write_key_id(&self) -> Option<EncryptionKeyId> {
        let seed = self.write_seed.load();
        let seed = seed.as_deref()?;
        Some(key_id(self.prefix.as_bytes(), seed.key_id.as_bytes(), HKDF_SHA256_XNONCE_AES_GCM_SEED))
    }

    /// Appends the encrypted value to `out`.
    pub fn encrypt(&self, plain: &[u8], context: &[u8], out: &mut Vec<u8>) -> Result<(), EncryptError> {
        let unavailable = |reason: String| EncryptError::Unavailable { provider: self.name.clone(), reason };
        let seed = self.write_seed.load();
        let Some(seed) = seed.as_deref() else {
            let reason = match self.probe.last() {
                Some(Err(error)) => error,
                _ => "the plugin was not checked yet".to_owned(),
            };
            return Err(unavailable(reason));
        };
        if let Some(expired) = seed.expired_since(self.clock.moment()) {
            return Err(unavailable(format!(
                "encryptedDEKSource with keyID hash \"{}\" expired {} s ago",
                seed.data_key.key_id_hash,
                expired.as_secs()
            )));
        }
        seed.encrypt(plain, context, out).map_err(|error| EncryptError::Cipher {
            provider: format!("kms provider {:?}", self.name),
            reason: error.to_string(),
        })?;
        self.observer.key_id_used(Direction::ToStorage, &self.name, &seed.data_key.key_id_hash);
        Ok(())
    }

    /// Decrypts a value, and says whether it should be written again. Waits for the plugin if the data key is not known.
    pub fn decrypt(&self, data: &[u8], context: &[u8]) -> Result<(Vec<u8>, bool), KmsFailure> {
        let seed = self.write_seed.load();
        if let Some(seed) = seed.as_deref()
            && let Some(encrypted) = seed.encrypted_data(data)
        {
            let plain = seed.data_key.decrypt(encrypted, context)?;
            self.observer.key_id_used(Direction::FromStorage, &self.name, &seed.data_key.key_id_hash);
            return Ok((plain, false));
        }
        let object = encrypted_object::decode(data).map_err(KmsFailure::Malformed)?;
        let data_key = self.data_key(&object)?;
        self.observer.key_id_used(Direction::FromStorage, &self.name, &data_key.key_id_hash);
        let plain = data_key.decrypt(&object.encrypted_data, context)?;
        let is_stale = seed.as_deref().is_some_and(|seed| {
            object.key_id != seed.key_id
                || object.encrypted_dek_source_type != HKDF_SHA256_XNONCE_AES_GCM_SEED
        });
        Ok((plain, is_stale))
    }

    fn data_key(&self, object: &EncryptedObject) -> Result<Arc<DataKey>, KmsFailure> {
        let cache_key = encrypted_object::cache_key(object);
        if let Some(data_key) = self.keys.get(&cache_key) {
            return Ok(data_key);
        }
        self.flights.run(&cache_key, || {
            // Another thread may have had it decrypted in between.
            if let Some(data_key) = self.keys.get(&cache_key) {
                return Ok(data_key);
            }
            self.observer.cache_miss();
            let secret = self.decrypt_seed(object)?;
            let data_key = Arc::new(DataKey::new(&object.key_id, object.encrypted_dek_source_type, secret)?);
            self.remember(cache_key, &data_key);
            Ok(data_key)
        })
    }

    fn decrypt_seed(&self, object: &EncryptedObject) -> Result<SecretKey, KmsFailure> {
        let failed = |message: &str| KmsFailure::Call(CallError::new(Code::Unavailable, message));
        let uid = random::uuid().map_err(|error| failed(&error.to_string()))?;
        tracing::debug!(provider = self.name, uid, "a data key is decrypted by the KMS plugin");
        let request = DecryptRequest {
            ciphertext: object.encrypted_dek_source.clone(),
            uid,
            key_id: object.key_id.clone(),
            annotations: object.annotations.clone(),
        };
        let client = self.client.clone();
        let response = self
            .client
            .runtime()
            .wait_for(async move { client.call_decrypt::<_, DecryptResponse>(DECRYPT, request).await });
        match response {
            None => Err(failed("the client of the plugin is closed")),
            Some(Err(error)) => Err(KmsFailure::Call(error)),
            Some(Ok(response)) => Ok(SecretKey::new(response.plaintext)),
        }
    }

    fn remember(&self, cache_key: CacheKey, data_key: &Arc<DataKey>) {
        let size = self.keys.insert(cache_key, data_key.clone());
        self.observer.dek_source_cache_size(&self.name, size);
    }

    /// Asks the plugin for its state, and makes a new seed if it has another key. On the runtime of the plugins.
    pub async fn check(&self) -> CheckResult {
        self.probe.check(self.check_now()).await
    }

    async fn check_now(&self) -> CheckResult {
        let name = &self.name;
        let status: StatusResponse =
            self.client.call(STATUS, StatusRequest {}).await.map_err(|error| {
                format!(
                    "failed to perform status section of the healthz check for KMS Provider {name}, error: {error}"
                )
            })?;
        let mut errors = Vec::new();
        if status.healthz != "ok" {
            errors.push(format!("got unexpected healthz status: {}", clipped(&status.healthz)));
        }
        errors.extend(self.version_error(&status.version));
        match encrypted_object::check_key_id(&status.key_id) {
            Ok(()) => {
                self.observer.key_id_from_status(name, &key_id_hash(&status.key_id));
                errors.extend(self.renew_seed(&status.key_id).await.err());
            }
            Err(error) => {
                self.observer.invalid_key_id_from_status(name, error.code());
                let hash = key_id_hash(&status.key_id);
                errors.push(format!("got invalid KMSv2 KeyID hash \"{hash}\": {error}"));
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        Err(format!("kmsv2 Provider {name} is not healthy, error: {}", join(errors)))
    }

    fn version_error(&self, version: &str) -> Option<String> {
        if !VERSIONS.contains(&version) {
            return Some(format!("expected KMSv2 API version {}, got {}", VERSIONS[0], clipped(version)));
        }
        let mut first = self.version.lock();
        if first.is_empty() {
            version.clone_into(&mut first);
        }
        (*first != version).then(|| {
            format!(
                "KMSv2 API version should not change after the initial status response version {first}, got {version}"
            )
        })
    }

    /// Extends the use of the seed for writing if the key is still the same, or makes another.
    async fn renew_seed(&self, key_id: &str) -> Result<(), String> {
        // From before the calls, so that it is an upper bound.
        let expiry = self.clock.moment().plus(KMS_WRITE_TTL);
        let current = self.write_seed.load_full();
        if let Some(current) = current.as_ref().filter(|current| current.key_id == key_id) {
            self.write_seed.store(Some(Arc::new(current.with_expiry(expiry))));
            return Ok(());
        }
        let uid = random::uuid().map_err(|error| error.to_string())?;
        let failed = |reason: &str, encrypt_key_id: &str| {
            let current_key_id = current.as_ref().map(|current| current.key_id.as_str()).unwrap_or_default();
            format!(
                "failed to rotate DEK uid={uid:?}, statusKeyIDHash={:?}, encryptKeyIDHash={:?}, stateKeyIDHash={:?}: \
                 {reason}",
                key_id_hash(key_id),
                key_id_hash(encrypt_key_id),
                key_id_hash(current_key_id),
            )
        };
        let seed = self.new_seed().map_err(|error| failed(&error, ""))?;
        let request = EncryptRequest { plaintext: seed.bytes().to_vec(), uid: uid.clone() };
        let response: EncryptResponse = self
            .client
            .call(ENCRYPT, request)
            .await
            .map_err(|error| failed(&format!("failed to encrypt DEK, error: {error}"), ""))?;
        if response.key_id != key_id {
            return Err(failed(
                "the plugin encrypted with another key than its status names",
                &response.key_id,
            ));
        }
        let seed = WriteSeed::new(response, &seed, expiry).map_err(|error| failed(&error, key_id))?;
        if let Some(current) = &current {
            // It is read from the cache from now on.
            self.remember(current.cache_key, &current.data_key);
        }
        self.remember(seed.cache_key, &seed.data_key);
        tracing::info!(
            provider = self.name,
            uid,
            key_id_hash = seed.data_key.key_id_hash,
            "objects are encrypted with a new seed from now on"
        );
        self.write_seed.store(Some(Arc::new(seed)));
        Ok(())
    }

    fn new_seed(&self) -> Result<SecretKey, String> {
        let start = self.clock.moment();
        let seed = random::key(SEED_BYTES);
        self.observer.data_key_generation(seed.is_ok().then(|| self.clock.elapsed(start)));
        seed.map_err(|error| error.to_string())
    }
}

impl KeyIdError {
    /// The label `error` of metrics.
    fn code(&self) -> &'static str {
        match self {
            KeyIdError::Empty => "empty",
            KeyIdError::TooLong(_) => "too_long",
        }
    }
}
