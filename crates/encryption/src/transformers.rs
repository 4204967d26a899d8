//! The providers of one configuration, by resource.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_plugins::PluginRuntime;
use pilothouse_types::clock::Clock;
use pilothouse_types::object::EncryptionKeyId;

use crate::configuration::{
    Configuration, GroupResource, KmsConfiguration, KmsVersion, ProviderConfiguration, ResourceProviders,
};
use crate::error::{DecryptError, EncryptError};
use crate::key_id::WriteKey;
use crate::kms::{KmsV1, KmsV2, Plugin, PluginSettings};
use crate::limits::UNKNOWN_PREFIX_BYTES;
use crate::observer::{Direction, NO_GRPC_STATUS, OK, Observer, Transformation};
use crate::providers::{Algorithm, ENCRYPTED_PREFIX, KeyedProvider, Provider};

/// What providers share.
pub(crate) struct Surroundings<'a> {
    /// Time.
    pub clock: &'a Clock,
    /// What counts.
    pub observer: &'a Arc<dyn Observer>,
    /// Whether KMS v1 is allowed: the feature gate `KMSv1`.
    pub allows_kms_v1: bool,
}

/// All providers of one configuration. Dropping it, and what it has given out, ends its connections to KMS plugins.
pub struct Transformers {
    /// By the text of a resource or pattern: `secrets`, `*.apps`.
    chains: HashMap<String, Arc<Chain>>,
    plugins: Vec<Plugin>,
    /// The sum of what the checks of all plugins may take.
    check_timeout: Duration,
    clock: Clock,
    observer: Arc<dyn Observer>,
}

/// The providers of a resource, in order.
struct Chain {
    providers: Vec<Arc<Provider>>,
}

impl Transformers {
    /// Makes the providers of a configuration. Plugins are neither called nor polled yet.
    pub(crate) fn new(
        configuration: &Configuration,
        surroundings: &Surroundings<'_>,
    ) -> Result<Transformers, String> {
        let mut builder = Builder { surroundings, runtime: None, plugins: Vec::new() };
        let by_entry: Result<Vec<Vec<Arc<Provider>>>, String> =
            configuration.resources.iter().map(|entry| builder.providers(entry)).collect();
        let by_entry = by_entry?;
        let chain = |entries: Vec<usize>| {
            let providers = entries.into_iter().filter_map(|entry| by_entry.get(entry));
            Arc::new(Chain { providers: providers.flatten().cloned().collect() })
        };
        let chains = configuration.by_resource()?.into_iter();
        let plugins = builder.plugins;
        Ok(Transformers {
            chains: chains.map(|(resource, entries)| (resource.to_string(), chain(entries))).collect(),
            check_timeout: plugins.iter().map(|(_, timeout)| *timeout).sum(),
            plugins: plugins.into_iter().map(|(plugin, _)| plugin).collect(),
            clock: surroundings.clock.clone(),
            observer: surroundings.observer.clone(),
        })
    }

    /// How objects of a resource are stored: by the entry that names it, by that of all resources of its group, or by that of all.
    /// `None` if there is no such entry: they are stored as they are.
    ///
    /// Whoever keeps this keeps the configuration; [`crate::Encryption::for_resource`] follows changes of it.
    pub fn for_resource(&self, group: &str, resource: &str) -> Option<Arc<ResourceTransformer>> {
        let names = ResourceNames::new(group, resource);
        let chain = self.chain(&names)?.clone();
        let (clock, observer) = (self.clock.clone(), self.observer.clone());
        Some(Arc::new(ResourceTransformer { resource: names.exact, chain, clock, observer }))
    }

    /// Encrypts as [`Transformers::for_resource`] would; a value of a resource without an entry stays as it is.
    pub(crate) fn encrypt<'v>(
        &self,
        names: &ResourceNames,
        plain: &'v [u8],
        context: &[u8],
    ) -> Result<Encrypted<'v>, EncryptError> {
        match self.chain(names) {
            None => Ok(Encrypted { bytes: Cow::Borrowed(plain), key_id: None }),
            Some(chain) => self.call(chain, &names.exact).encrypt(plain, context),
        }
    }

    /// Decrypts as [`Transformers::for_resource`] would; a value of a resource without an entry must not be encrypted.
    pub(crate) fn decrypt<'v>(
        &self,
        names: &ResourceNames,
        stored: &'v [u8],
        context: &[u8],
    ) -> Result<Decrypted<'v>, DecryptError> {
        match self.chain(names) {
            None if stored.starts_with(ENCRYPTED_PREFIX) => Err(DecryptError::Encrypted(format!(
                "no provider is configured for {}, and the data has the prefix {:?}",
                names.exact,
                shown_prefix(stored)
            ))),
            None => Ok(Decrypted { bytes: Cow::Borrowed(stored), is_stale: false, key_id: None }),
            Some(chain) => self.call(chain, &names.exact).decrypt(stored, context),
        }
    }

    /// Whether values of a resource may be in clear text.
    pub(crate) fn check_clear(&self, names: &ResourceNames) -> Result<(), DecryptError> {
        let is_identity = |provider: &Arc<Provider>| matches!(**provider, Provider::Identity);
        match self.chain(names) {
            Some(chain) if !chain.providers.iter().any(is_identity) => Err(not_encrypted(&names.exact)),
            _ => Ok(()),
        }
    }

    /// Whether values of a resource that were encrypted with this key can be read. It must not be the key of a plugin.
    pub(crate) fn has_key(&self, names: &ResourceNames, key: EncryptionKeyId) -> bool {
        self.chain(names).is_some_and(|chain| chain.providers.iter().any(|provider| provider.has_key(key)))
    }

    /// Whether one of the KMS plugins for a resource is also one of `other`.
    pub(crate) fn shares_plugin(&self, names: &ResourceNames, other: &Transformers) -> bool {
        let plugins = |transformers: &Transformers| -> Vec<String> {
            let providers =
                transformers.chain(names).map(|chain| chain.providers.as_slice()).unwrap_or_default();
            let plugins = providers.iter().filter(|provider| matches!(***provider, Provider::Kms(_)));
            plugins.map(|provider| provider.prefix().to_owned()).collect()
        };
        let others = plugins(other);
        plugins(self).iter().any(|prefix| others.contains(prefix))
    }

    /// What values of a resource are encrypted with now.
    pub(crate) fn write_key(&self, names: &ResourceNames) -> WriteKey {
        let provider = self.chain(names).map(|chain| chain.providers.first());
        match provider {
            None => WriteKey::Clear,
            Some(Some(provider)) => provider.write_key(),
            Some(None) => WriteKey::Unknown,
        }
    }

    /// Whether an entry exists for a resource.
    pub(crate) fn has_entry(&self, names: &ResourceNames) -> bool {
        self.chain(names).is_some()
    }

    /// The KMS plugins, in the order of the configuration.
    pub(crate) fn plugins(&self) -> &[Plugin] {
        &self.plugins
    }

    /// How long the checks of all plugins may take, one after another.
    pub(crate) fn check_timeout(&self) -> Duration {
        self.check_timeout
    }

    fn chain(&self, names: &ResourceNames) -> Option<&Arc<Chain>> {
        [names.exact.as_str(), &names.group, "*.*"].into_iter().find_map(|name| self.chains.get(name))
    }

    fn call<'a>(&'a self, chain: &'a Chain, resource: &'a str) -> Call<'a> {
        Call { chain, resource, clock: &self.clock, observer: &*self.observer }
    }
}

impl std::fmt::Debug for Transformers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transformers").field("resources", &self.chains.keys()).finish_non_exhaustive()
    }
}

/// The texts under which a configuration may name a resource.
pub(crate) struct ResourceNames {
    exact: String,
    group: String,
}

impl ResourceNames {
    /// The names of a resource.
    pub fn new(group: &str, resource: &str) -> ResourceNames {
        let resource = GroupResource { group, resource };
        ResourceNames { exact: resource.to_string(), group: resource.any_in_group().to_string() }
    }

    /// The resource, as `deployments.apps`.
    pub fn resource(&self) -> &str {
        &self.exact
    }
}

/// Makes providers.
struct Builder<'a> {
    surroundings: &'a Surroundings<'a>,
    /// Started for the first plugin.
    runtime: Option<Arc<PluginRuntime>>,
    plugins: Vec<(Plugin, Duration)>,
}

impl Builder<'_> {
    fn providers(&mut self, entry: &ResourceProviders) -> Result<Vec<Arc<Provider>>, String> {
        entry.providers.iter().map(|provider| Ok(Arc::new(self.provider(provider)?))).collect()
    }

    fn provider(&mut self, configuration: &ProviderConfiguration) -> Result<Provider, String> {
        let keyed = |algorithm, keys| KeyedProvider::new(algorithm, keys).map(Provider::Keyed);
        match configuration {
            ProviderConfiguration::AesCbc(keys) => keyed(Algorithm::AesCbc, keys),
            ProviderConfiguration::AesGcm(keys) => keyed(Algorithm::AesGcm, keys),
            ProviderConfiguration::Secretbox(keys) => keyed(Algorithm::Secretbox, keys),
            ProviderConfiguration::Kms(kms) => Ok(Provider::Kms(self.plugin(kms)?)),
            ProviderConfiguration::Identity => Ok(Provider::Identity),
        }
    }

    fn plugin(&mut self, configuration: &KmsConfiguration) -> Result<Plugin, String> {
        if configuration.version == KmsVersion::V1 && !self.surroundings.allows_kms_v1 {
            return Err("KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead.  \
                        Set --feature-gates=KMSv1=true to use the deprecated KMSv1 feature."
                .to_owned());
        }
        let runtime = match &self.runtime {
            Some(runtime) => runtime.clone(),
            None => {
                let runtime = Arc::new(PluginRuntime::start("kms").map_err(|error| error.to_string())?);
                self.runtime.insert(runtime).clone()
            }
        };
        let Surroundings { clock, observer, .. } = self.surroundings;
        let settings = PluginSettings { configuration, runtime: &runtime, clock, observer };
        let failed = |version: &str, error: String| {
            format!(
                "could not configure KMS{version}-Plugin's probe {:?}, error: {error}",
                configuration.name
            )
        };
        let plugin = match configuration.version {
            KmsVersion::V1 => {
                tracing::warn!(
                    provider = configuration.name,
                    "KMS v1 is deprecated: a plugin that speaks v2 should replace it"
                );
                Plugin::V1(Arc::new(KmsV1::new(&settings).map_err(|error| failed("v1", error))?))
            }
            KmsVersion::V2 => {
                Plugin::V2(Arc::new(KmsV2::new(&settings).map_err(|error| failed("v2", error))?))
            }
        };
        let timeout = plugin.check_timeout(configuration.timeout);
        self.plugins.push((plugin.clone(), timeout));
        Ok(plugin)
    }
}

/// The providers of one resource.
pub struct ResourceTransformer {
    resource: String,
    chain: Arc<Chain>,
    clock: Clock,
    observer: Arc<dyn Observer>,
}

impl ResourceTransformer {
    /// Encrypts a value with the first provider. `context` is the path of the object. Never waits.
    pub fn encrypt<'v>(&self, plain: &'v [u8], context: &[u8]) -> Result<Cow<'v, [u8]>, EncryptError> {
        self.call().encrypt(plain, context).map(|encrypted| encrypted.bytes)
    }

    /// Decrypts a value with the provider that its prefix names. The thread waits if a KMS plugin has to decrypt the data key.
    pub fn decrypt<'v>(&self, stored: &'v [u8], context: &[u8]) -> Result<Decrypted<'v>, DecryptError> {
        self.call().decrypt(stored, context)
    }

    fn call(&self) -> Call<'_> {
        let (chain, resource, clock) = (&*self.chain, self.resource.as_str(), &self.clock);
        Call { chain, resource, clock, observer: &*self.observer }
    }
}

impl std::fmt::Debug for ResourceTransformer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResourceTransformer").field("resource", &self.resource).finish_non_exhaustive()
    }
}

/// A value as it is to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encrypted<'v> {
    /// The value; borrowed if it is not encrypted.
    pub bytes: Cow<'v, [u8]>,
    /// What has encrypted it; `None` if it is not encrypted.
    pub key_id: Option<EncryptionKeyId>,
}

/// A decrypted value.
#[derive(Clone, PartialEq, Eq)]
pub struct Decrypted<'v> {
    /// The value; borrowed if it was not encrypted.
    pub bytes: Cow<'v, [u8]>,
    /// Whether it was not stored as it would be now, so that a write that changes nothing has to store it again.
    pub is_stale: bool,
    /// What had encrypted it; `None` if it was not encrypted.
    pub key_id: Option<EncryptionKeyId>,
}

/// Without the value, which may be a Secret.
impl std::fmt::Debug for Decrypted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decrypted").field("is_stale", &self.is_stale).finish_non_exhaustive()
    }
}

/// What is needed for one value.
struct Call<'a> {
    chain: &'a Chain,
    resource: &'a str,
    clock: &'a Clock,
    observer: &'a dyn Observer,
}

impl Call<'_> {
    fn encrypt<'v>(&self, plain: &'v [u8], context: &[u8]) -> Result<Encrypted<'v>, EncryptError> {
        let start = self.clock.moment();
        // A valid configuration has a provider for each of its resources. If one is missing all the same, nothing is stored in
        // clear text.
        let Some(provider) = self.chain.providers.first() else {
            return Err(EncryptError::NoProvider { resource: self.resource.to_owned() });
        };
        let result = match &**provider {
            Provider::Identity => Ok(Encrypted { bytes: Cow::Borrowed(plain), key_id: None }),
            provider => {
                let prefix = provider.prefix();
                let mut out = Vec::from(prefix);
                provider.encrypt(plain, context, &mut out).map(|()| {
                    let key_id = provider.key_id_of_written(out.get(prefix.len()..).unwrap_or_default());
                    Encrypted { bytes: Cow::Owned(out), key_id }
                })
            }
        };
        self.observer.transformation(&Transformation {
            resource: self.resource,
            direction: Direction::ToStorage,
            prefix: provider.prefix(),
            key: provider.write_key_name(),
            status: if result.is_ok() { OK } else { NO_GRPC_STATUS },
            elapsed: self.clock.elapsed(start),
        });
        result
    }

    fn decrypt<'v>(&self, stored: &'v [u8], context: &[u8]) -> Result<Decrypted<'v>, DecryptError> {
        let start = self.clock.moment();
        let observe = |prefix: &str, key: Option<&str>, status: &str| {
            self.observer.transformation(&Transformation {
                resource: self.resource,
                direction: Direction::FromStorage,
                prefix,
                key,
                status,
                elapsed: self.clock.elapsed(start),
            });
        };
        let mut attempts = Vec::new();
        for (index, provider) in self.chain.providers.iter().enumerate() {
            if matches!(**provider, Provider::Identity) {
                // What is encrypted is never taken for an object: the next provider may know it.
                if stored.starts_with(ENCRYPTED_PREFIX) {
                    continue;
                }
                observe("identity", None, OK);
                return Ok(Decrypted { bytes: Cow::Borrowed(stored), is_stale: index != 0, key_id: None });
            }
            let prefix = provider.prefix();
            let Some(data) = stored.strip_prefix(prefix.as_bytes()) else { continue };
            match provider.decrypt(data, context, |key, status| observe(prefix, key, status)) {
                Ok(opened) => {
                    let is_stale = opened.is_stale || index != 0;
                    let (bytes, key_id) = (Cow::Owned(opened.plain), opened.key_id);
                    return Ok(Decrypted { bytes, is_stale, key_id });
                }
                // A later provider of the same kind may have the key.
                Err(failed) => attempts.extend(failed),
            }
        }
        if !attempts.is_empty() {
            return Err(DecryptError::Failed(attempts));
        }
        observe("unknown", None, NO_GRPC_STATUS);
        Err(match stored.starts_with(ENCRYPTED_PREFIX) {
            true => DecryptError::NoMatchingPrefix(format!(
                "no provider of {} has the prefix {:?}",
                self.resource,
                shown_prefix(stored)
            )),
            false => not_encrypted(self.resource),
        })
    }
}

fn not_encrypted(resource: &str) -> DecryptError {
    DecryptError::NoMatchingPrefix(format!(
        "the data is not encrypted, and {resource} has no identity provider"
    ))
}

/// The prefix of an encrypted value, as far as it may be shown: `k8s:enc:aescbc:v1:key1:`.
fn shown_prefix(stored: &[u8]) -> String {
    // Magic word, mark, provider, version, name.
    const PARTS: usize = 5;
    let beginning = stored.get(..UNKNOWN_PREFIX_BYTES).unwrap_or(stored);
    let parts = beginning.split_inclusive(|byte| *byte == b':').take(PARTS);
    let parts =
        parts.take_while(|part| part.ends_with(b":") && part.iter().all(|byte| byte.is_ascii_graphic()));
    parts.flat_map(|part| part.iter().copied().map(char::from)).collect()
}

#[cfg(test)]
mod tests;
