//! The configuration in use, and its replacement while the server runs.

use std::borrow::Cow;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use openssl::sha::sha256;
use pilothouse_types::clock::Clock;
use pilothouse_types::lock::Lock;

use crate::configuration::Configuration;
use crate::error::{DecryptError, EncryptError, join};
use crate::health::HealthCheck;
use crate::key_id::WriteKey;
use crate::kms::Plugin;
use crate::limits::{RELOAD_PROBE_PAUSE, RELOAD_PROBE_TIMEOUT};
use crate::observer::{NoObserver, Observer, hexadecimal};
use crate::stored_keys::StoredKey;
use crate::transformers::{Decrypted, Encrypted, ResourceNames, Surroundings, Transformers};

/// What does not change with the configuration.
#[derive(Clone)]
pub struct Settings {
    /// Whether the configuration may be replaced: `--encryption-provider-config-automatic-reload`.
    pub is_reloaded: bool,
    /// Whether KMS v1 is allowed: the feature gate `KMSv1`.
    pub allows_kms_v1: bool,
    /// Time.
    pub clock: Clock,
    /// What counts.
    pub observer: Arc<dyn Observer>,
    /// Whether plugins are checked in the background. Tests that check by hand do not want that.
    pub is_polling: bool,
    /// How long a reload waits for plugins.
    pub reload_probe: ReloadProbe,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            is_reloaded: false,
            allows_kms_v1: false,
            clock: Clock::system(),
            observer: Arc::new(NoObserver),
            is_polling: true,
            reload_probe: ReloadProbe::default(),
        }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = f.debug_struct("Settings");
        fields.field("is_reloaded", &self.is_reloaded).field("allows_kms_v1", &self.allows_kms_v1);
        fields.finish_non_exhaustive()
    }
}

/// How long a reload waits until the plugins of a new configuration are healthy.
#[derive(Clone, Copy, Debug)]
pub struct ReloadProbe {
    /// At least this long; twice as long as all their checks may take, if that is more. Zero for one check without waiting.
    pub timeout: Duration,
    /// Between two checks.
    pub pause: Duration,
}

impl Default for ReloadProbe {
    fn default() -> ReloadProbe {
        ReloadProbe { timeout: RELOAD_PROBE_TIMEOUT, pause: RELOAD_PROBE_PAUSE }
    }
}

/// Why a configuration is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The file is wrong.
    #[error("error while parsing file: {0}")]
    Invalid(String),
    /// Its providers cannot be made.
    #[error("error while building transformers: {0}")]
    Unusable(String),
    /// A plugin does not work.
    #[error("health check for new transformers failed, polling error context deadline exceeded: {0}")]
    Unhealthy(String),
    /// Stored values could not be read with it.
    #[error(
        "stored objects could not be read with the changed file: {0}. Write them again first, for example with `pilothouse migrate`"
    )]
    TakesKeys(String),
}

/// What a reload has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The file is the one in use.
    Unchanged,
    /// The new configuration is in use.
    Replaced,
}

/// Encryption at rest.
pub struct Encryption {
    current: Arc<ArcSwap<Transformers>>,
    settings: Settings,
    /// The hash of the file in use.
    content_hash: Lock<String>,
    /// Locked during a reload, so that there is one at a time.
    reload_turn: Lock<()>,
}

/// The hash of a file, to find out whether it has changed without keeping the keys in it. In the form of the reference.
pub fn content_hash(text: &[u8]) -> String {
    format!("k8s:enc:unstable:1:{}", hexadecimal(&sha256(text)))
}

impl Encryption {
    /// Loads a configuration. Each KMS plugin is checked once, so that one that works can be used at once; one that does not is no
    /// error. Waits for these checks on the calling thread.
    pub fn load(text: &[u8], settings: Settings) -> Result<Encryption, LoadError> {
        let transformers = build(text, &settings)?;
        check(&transformers);
        if settings.is_polling {
            start_polling(&transformers);
        }
        let current = Arc::new(ArcSwap::from_pointee(transformers));
        let content_hash = Lock::new(content_hash(text));
        Ok(Encryption { current, settings, content_hash, reload_turn: Lock::default() })
    }

    /// Puts another configuration into use, if it is valid, has the keys of all that is stored, and all its plugins are healthy;
    /// otherwise the previous one stays. Waits on the calling thread, and is not cheap: compare [`Encryption::content_hash`] before.
    ///
    /// The connections of the previous configuration end with the last call that uses it.
    pub fn reload(&self, text: &[u8], stored: &[StoredKey]) -> Result<Reload, LoadError> {
        let _turn = self.reload_turn.lock();
        let hash = content_hash(text);
        if *self.content_hash.lock() == hash {
            return Ok(Reload::Unchanged);
        }
        let result = build(text, &self.settings).and_then(|transformers| {
            self.check_keys(&transformers, stored)?;
            self.probe(&transformers)?;
            Ok(transformers)
        });
        self.settings.observer.reload(result.is_ok());
        let transformers = result?;
        if self.settings.is_polling {
            start_polling(&transformers);
        }
        self.current.store(Arc::new(transformers));
        *self.content_hash.lock() = hash;
        tracing::info!("the changed encryption configuration is in use");
        Ok(Reload::Replaced)
    }

    /// The hash of the file in use; see [`content_hash`].
    pub fn content_hash(&self) -> String {
        self.content_hash.lock().clone()
    }

    /// The providers in use now.
    pub fn transformers(&self) -> Arc<Transformers> {
        self.current.load_full()
    }

    /// How objects of a resource are stored, now and after each reload.
    pub fn for_resource(&self, group: &str, resource: &str) -> ResourceEncryption {
        ResourceEncryption { names: ResourceNames::new(group, resource), current: self.current.clone() }
    }

    /// The health checks. Their number and names do not change by a reload.
    pub fn health_checks(&self) -> Vec<HealthCheck> {
        HealthCheck::all(&self.current, self.settings.is_reloaded)
    }

    /// Checks all plugins, unless that was done a moment ago, and waits for the results.
    pub fn check_plugins(&self) -> Result<(), String> {
        let errors = check(&self.current.load_full());
        if errors.is_empty() { Ok(()) } else { Err(join(errors)) }
    }

    fn check_keys(&self, next: &Transformers, stored: &[StoredKey]) -> Result<(), LoadError> {
        let current = self.current.load_full();
        let losses: Vec<String> = stored.iter().filter_map(|stored| stored.loss(&current, next)).collect();
        if losses.is_empty() { Ok(()) } else { Err(LoadError::TakesKeys(losses.join(", "))) }
    }

    fn probe(&self, transformers: &Transformers) -> Result<(), LoadError> {
        let ReloadProbe { timeout, pause } = self.settings.reload_probe;
        let timeout = match timeout.is_zero() {
            true => timeout,
            false => timeout.max(transformers.check_timeout() * 2),
        };
        let start = self.settings.clock.moment();
        loop {
            let errors = check(transformers);
            if errors.is_empty() {
                return Ok(());
            }
            if self.settings.clock.elapsed(start) >= timeout {
                return Err(LoadError::Unhealthy(join(errors)));
            }
            thread::sleep(pause);
        }
    }
}

impl std::fmt::Debug for Encryption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encryption").field("current", &self.current).finish_non_exhaustive()
    }
}

fn build(text: &[u8], settings: &Settings) -> Result<Transformers, LoadError> {
    let configuration = Configuration::parse(text, settings.is_reloaded).map_err(LoadError::Invalid)?;
    let Settings { clock, observer, allows_kms_v1, .. } = settings;
    let surroundings = Surroundings { clock, observer, allows_kms_v1: *allows_kms_v1 };
    Transformers::new(&configuration, &surroundings).map_err(LoadError::Unusable)
}

/// Checks all plugins at the same time, and returns what is wrong.
fn check(transformers: &Transformers) -> Vec<String> {
    let results = Plugin::check_all(transformers.plugins()).into_iter().enumerate();
    results.filter_map(|(index, result)| Some(format!("kms-provider-{index}: {}", result.err()?))).collect()
}

fn start_polling(transformers: &Transformers) {
    for plugin in transformers.plugins() {
        if let Some(Err(error)) = plugin.last_check() {
            tracing::warn!(provider = plugin.name(), error, "a KMS plugin is not healthy");
        }
        plugin.start_polling();
    }
}

/// How objects of one resource are stored, by the configuration that is in use at each call.
pub struct ResourceEncryption {
    names: ResourceNames,
    current: Arc<ArcSwap<Transformers>>,
}

impl ResourceEncryption {
    /// Whether the configuration has an entry for the resource. Without one its objects are stored as they are.
    pub fn has_entry(&self) -> bool {
        self.current.load().has_entry(&self.names)
    }

    /// Whether values may be in clear text, or why not.
    pub fn check_clear(&self) -> Result<(), DecryptError> {
        self.current.load().check_clear(&self.names)
    }

    /// What values are encrypted with now.
    pub fn write_key(&self) -> WriteKey {
        self.current.load().write_key(&self.names)
    }

    /// Encrypts a value with the first provider. `context` is the path of the object. Never waits.
    pub fn encrypt<'v>(&self, plain: &'v [u8], context: &[u8]) -> Result<Cow<'v, [u8]>, EncryptError> {
        self.encrypt_identified(plain, context).map(|encrypted| encrypted.bytes)
    }

    /// The same, and says what has encrypted the value.
    pub fn encrypt_identified<'v>(
        &self,
        plain: &'v [u8],
        context: &[u8],
    ) -> Result<Encrypted<'v>, EncryptError> {
        self.current.load().encrypt(&self.names, plain, context)
    }

    /// Decrypts a value with the provider that its prefix names. An encrypted value is never returned as it is. The thread waits if
    /// a KMS plugin has to decrypt the data key, so it must not be one that serves others meanwhile.
    pub fn decrypt<'v>(&self, stored: &'v [u8], context: &[u8]) -> Result<Decrypted<'v>, DecryptError> {
        // A call may take seconds: it must not hold the slot of a short read.
        self.current.load_full().decrypt(&self.names, stored, context)
    }
}

impl std::fmt::Debug for ResourceEncryption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResourceEncryption").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
