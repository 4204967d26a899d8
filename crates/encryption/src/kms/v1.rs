//! The provider `kms` with `apiVersion: v1`: the length of the encrypted data key in two bytes, the data key, and the value in
//! AES-GCM.
//!
//! The reference makes a data key for each value and calls the plugin for it. Here each check of the plugin makes one, which is
//! used until the next check: writing does not wait for the plugin, and a changed key of the service is in use a minute later. What
//! is stored has the same form.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use openssl::sha::sha256;
use pilothouse_plugins::{CallError, Code, clipped};
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::lock::Lock;

use super::client::Client;
use super::failure::KmsFailure;
use super::flights::Flights;
use super::key_cache::{CacheKey, KeyCache};
use super::messages::v1beta1::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, VERSION, VersionRequest,
    VersionResponse, methods,
};
use super::plugin::PluginSettings;
use super::probe::{CheckResult, Probe};
use crate::ciphers::{AesCbc, AesGcm, CipherError};
use crate::error::{EncryptError, join};
use crate::limits::{
    KMS_UNUSED_KEY_TTL, KMS_V1_CACHED_KEYS, KMS_V1_DEFAULT_CACHED_KEYS, KMS_V1_ENCRYPTED_KEY_BYTES,
    KMS_WRITE_TTL,
};
use crate::observer::{Direction, Observer};
use crate::random;
use crate::secret_key::SecretKey;

const KEY_BYTES: usize = 32;

/// The provider.
pub struct KmsV1 {
    name: String,
    prefix: String,
    client: Arc<Client>,
    clock: Clock,
    observer: Arc<dyn Observer>,
    probe: Probe,
    /// Whether the plugin has said that it speaks the right version.
    has_version: Arc<AtomicBool>,
    /// What values are encrypted with; `None` until the first good check.
    write_key: ArcSwapOption<WriteKey>,
    keys: KeyCache<DataKey>,
    cache_size: usize,
    flights: Flights<CacheKey, Result<Arc<DataKey>, KmsFailure>>,
    /// When a value was read and written last.
    arrivals: [Lock<Option<Moment>>; 2],
}

/// The data key for writing.
struct WriteKey {
    data_key: Arc<DataKey>,
    encrypted: Vec<u8>,
    expiry: Moment,
    /// Whether something was written with it, and has to be read.
    is_used: AtomicBool,
}

/// A data key. Releases before 1.25 wrote AES-CBC.
struct DataKey {
    gcm: AesGcm,
    cbc: AesCbc,
}

impl DataKey {
    fn new(secret: SecretKey) -> Result<DataKey, CipherError> {
        Ok(DataKey { gcm: AesGcm::new(secret.clone())?, cbc: AesCbc::new(secret)? })
    }

    /// Decrypts a value, and says whether it should be written again.
    fn decrypt(&self, data: &[u8], context: &[u8]) -> Result<(Vec<u8>, bool), KmsFailure> {
        let error = match self.gcm.decrypt(data, context) {
            Ok(plain) => return Ok((plain, false)),
            Err(error) => error,
        };
        match self.cbc.decrypt(data) {
            // Any damaged value passes as AES-CBC now and then, because it is not authenticated. Objects have known beginnings.
            Ok(plain) if [b"k8s\0".as_slice(), b"{"].iter().any(|start| plain.starts_with(start)) => {
                Ok((plain, true))
            }
            Ok(_) => Err(KmsFailure::Cipher(error)),
            Err(cbc_error) => Err(KmsFailure::Malformed(join([error.to_string(), cbc_error.to_string()]))),
        }
    }
}

impl KmsV1 {
    /// A provider that was not checked yet, and cannot encrypt before it was.
    pub fn new(settings: &PluginSettings<'_>) -> Result<KmsV1, String> {
        let PluginSettings { configuration, runtime, clock, observer } = settings;
        let client = Client::new(configuration, (*runtime).clone(), (*clock).clone(), None)?;
        let cache_size = configuration.cache_size.unwrap_or(KMS_V1_DEFAULT_CACHED_KEYS);
        let cache_size = usize::try_from(cache_size).unwrap_or(0).min(KMS_V1_CACHED_KEYS);
        Ok(KmsV1 {
            name: configuration.name.clone(),
            prefix: format!("k8s:enc:kms:v1:{}:", configuration.name),
            client: Arc::new(client),
            clock: (*clock).clone(),
            observer: (*observer).clone(),
            probe: Probe::new((*clock).clone()),
            has_version: Arc::default(),
            write_key: ArcSwapOption::empty(),
            keys: KeyCache::new(cache_size, KMS_UNUSED_KEY_TTL, (*clock).clone()),
            cache_size,
            flights: Flights::default(),
            arrivals: [Lock::new(None), Lock::new(None)],
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

    /// Appends the encrypted value to `out`.
    pub fn encrypt(&self, plain: &[u8], context: &[u8], out: &mut Vec<u8>) -> Result<(), EncryptError> {
        self.record_arrival(Direction::ToStorage);
        let unavailable = |reason: String| EncryptError::Unavailable { provider: self.name.clone(), reason };
        let key = self.write_key.load();
        let Some(key) = key.as_deref() else {
            let reason = match self.probe.last() {
                Some(Err(error)) => error,
                _ => "the plugin was not checked yet".to_owned(),
            };
            return Err(unavailable(reason));
        };
        if self.clock.moment() > key.expiry {
            return Err(unavailable("the plugin has not been healthy for too long".to_owned()));
        }
        key.is_used.store(true, Ordering::Release);
        let length = u16::try_from(key.encrypted.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&key.encrypted);
        key.data_key.gcm.encrypt(plain, context, out).map_err(|error| EncryptError::Cipher {
            provider: format!("kms provider {:?}", self.name),
            reason: error.to_string(),
        })
    }

    /// Decrypts a value, and says whether it should be written again. Waits for the plugin if the data key is not known.
    pub fn decrypt(&self, data: &[u8], context: &[u8]) -> Result<(Vec<u8>, bool), KmsFailure> {
        self.record_arrival(Direction::FromStorage);
        let malformed = || {
            let reason = "invalid data encountered by envelope transformer: failed to read uint16 length prefixed data";
            KmsFailure::Malformed(reason.to_owned())
        };
        let (length, rest) = data.split_first_chunk::<2>().ok_or_else(malformed)?;
        let length = usize::from(u16::from_be_bytes(*length));
        let (encrypted_key, value) = rest.split_at_checked(length).ok_or_else(malformed)?;
        let write_key = self.write_key.load();
        if let Some(key) = write_key.as_deref().filter(|key| key.encrypted == encrypted_key) {
            return key.data_key.decrypt(value, context);
        }
        self.data_key(encrypted_key)?.decrypt(value, context)
    }

    fn data_key(&self, encrypted_key: &[u8]) -> Result<Arc<DataKey>, KmsFailure> {
        let cache_key = sha256(encrypted_key);
        if let Some(data_key) = self.keys.get(&cache_key) {
            return Ok(data_key);
        }
        self.flights.run(&cache_key, || {
            if let Some(data_key) = self.keys.get(&cache_key) {
                return Ok(data_key);
            }
            if self.cache_size > 0 {
                self.observer.cache_miss();
            }
            let (client, has_version) = (self.client.clone(), self.has_version.clone());
            let cipher = encrypted_key.to_vec();
            let secret = self
                .client
                .runtime()
                .wait_for(async move { decrypt_key(&client, &has_version, cipher).await });
            let closed = || CallError::new(Code::Unavailable, "the client of the plugin is closed");
            let secret = secret.unwrap_or_else(|| Err(closed())).map_err(KmsFailure::Call)?;
            let data_key = Arc::new(DataKey::new(secret)?);
            self.remember(cache_key, &data_key);
            Ok(data_key)
        })
    }

    fn remember(&self, cache_key: CacheKey, data_key: &Arc<DataKey>) {
        let size = self.keys.insert(cache_key, data_key.clone());
        if self.cache_size > 0 {
            self.observer.dek_cache_fill(size as f64 / self.cache_size as f64);
        }
    }

    fn record_arrival(&self, direction: Direction) {
        let now = self.clock.moment();
        let [read, write] = &self.arrivals;
        let last = match direction {
            Direction::FromStorage => read,
            Direction::ToStorage => write,
        };
        let last = last.lock().replace(now);
        self.observer.dek_cache_arrival(direction, now.since(last.unwrap_or(now)));
    }

    /// Has the plugin encrypt and decrypt a new data key, and writes with it from then on. On the runtime of the plugins.
    pub async fn check(&self) -> CheckResult {
        self.probe.check(self.check_now()).await
    }

    async fn check_now(&self) -> CheckResult {
        let failed = |section: &str, error: &dyn std::fmt::Display| {
            let name = &self.name;
            format!(
                "failed to perform {section} section of the healthz check for KMS Provider {name}, error: {error}"
            )
        };
        let expiry = self.clock.moment().plus(KMS_WRITE_TTL);
        let start = self.clock.moment();
        let secret = random::key(KEY_BYTES);
        self.observer.data_key_generation(secret.is_ok().then(|| self.clock.elapsed(start)));
        let secret = secret.map_err(|error| failed("encrypt", &error))?;
        let encrypted = self.encrypt_key(&secret).await.map_err(|error| failed("encrypt", &error))?;
        if encrypted.len() > KMS_V1_ENCRYPTED_KEY_BYTES {
            return Err(failed("encrypt", &format!("a data key of {} bytes", encrypted.len())));
        }
        let decrypted = decrypt_key(&self.client, &self.has_version, encrypted.clone())
            .await
            .map_err(|error| failed("decrypt", &error))?;
        if decrypted != secret {
            return Err(failed("decrypt", &"the plugin returned another data key than it was given"));
        }
        let data_key = Arc::new(DataKey::new(secret).map_err(|error| failed("encrypt", &error))?);
        let is_used = AtomicBool::new(false);
        let next = WriteKey { data_key, encrypted, expiry, is_used };
        let previous = self.write_key.swap(Some(Arc::new(next)));
        if let Some(previous) = previous.filter(|previous| previous.is_used.load(Ordering::Acquire)) {
            self.remember(sha256(&previous.encrypted), &previous.data_key);
        }
        Ok(())
    }

    async fn encrypt_key(&self, secret: &SecretKey) -> Result<Vec<u8>, CallError> {
        check_version(&self.client, &self.has_version).await?;
        let request = EncryptRequest { version: VERSION.to_owned(), plain: secret.bytes().to_vec() };
        let response: EncryptResponse = self.client.call(methods::ENCRYPT, request).await?;
        Ok(response.cipher)
    }
}

async fn decrypt_key(
    client: &Client,
    has_version: &AtomicBool,
    cipher: Vec<u8>,
) -> Result<SecretKey, CallError> {
    check_version(client, has_version).await?;
    let request = DecryptRequest { version: VERSION.to_owned(), cipher };
    let response: DecryptResponse = client.call_decrypt(methods::DECRYPT, request).await?;
    Ok(SecretKey::new(response.plain))
}

/// Asks for the version once.
async fn check_version(client: &Client, has_version: &AtomicBool) -> Result<(), CallError> {
    if has_version.load(Ordering::Acquire) {
        return Ok(());
    }
    let request = VersionRequest { version: VERSION.to_owned() };
    let response: VersionResponse = client.call(methods::VERSION, request).await?;
    if response.version != VERSION {
        let message = format!(
            "KMS provider api version {} is not supported, only {VERSION} is supported now",
            clipped(&response.version)
        );
        return Err(CallError::new(Code::Unknown, &message));
    }
    has_version.store(true, Ordering::Release);
    Ok(())
}
