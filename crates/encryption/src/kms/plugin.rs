//! A plugin of either version: its checks, and their repetition.

use std::sync::{Arc, Weak};
use std::time::Duration;

use pilothouse_plugins::PluginRuntime;
use pilothouse_types::clock::Clock;
use tokio::time::sleep;

use super::probe::CheckResult;
use super::v1::KmsV1;
use super::v2::KmsV2;
use crate::configuration::KmsConfiguration;
use crate::limits::{KMS_POLL_INTERVAL, KMS_RETRY_INTERVAL};
use crate::observer::Observer;

/// What a provider is made from.
pub struct PluginSettings<'a> {
    /// Its configuration.
    pub configuration: &'a KmsConfiguration,
    /// Where its plugin is called.
    pub runtime: &'a Arc<PluginRuntime>,
    /// Time, for expiry.
    pub clock: &'a Clock,
    /// What counts.
    pub observer: &'a Arc<dyn Observer>,
}

/// A plugin.
#[derive(Clone)]
pub enum Plugin {
    /// Version 1.
    V1(Arc<KmsV1>),
    /// Version 2.
    V2(Arc<KmsV2>),
}

/// A plugin that may be gone.
pub enum WeakPlugin {
    /// Version 1.
    V1(Weak<KmsV1>),
    /// Version 2.
    V2(Weak<KmsV2>),
}

impl WeakPlugin {
    fn upgrade(&self) -> Option<Plugin> {
        match self {
            WeakPlugin::V1(plugin) => plugin.upgrade().map(Plugin::V1),
            WeakPlugin::V2(plugin) => plugin.upgrade().map(Plugin::V2),
        }
    }
}

impl Plugin {
    /// The name of the provider.
    pub fn name(&self) -> &str {
        match self {
            Plugin::V1(plugin) => plugin.name(),
            Plugin::V2(plugin) => plugin.name(),
        }
    }

    /// How long a check may take, by the timeout of its calls.
    pub fn check_timeout(&self, timeout: Duration) -> Duration {
        match self {
            // It encrypts and decrypts.
            Plugin::V1(_) => timeout * 2,
            Plugin::V2(_) => timeout,
        }
    }

    /// The last result of a check; `None` before the first.
    pub fn last_check(&self) -> Option<CheckResult> {
        match self {
            Plugin::V1(plugin) => plugin.probe().last(),
            Plugin::V2(plugin) => plugin.probe().last(),
        }
    }

    /// Checks the plugin, unless that was done a moment ago. May be awaited on any runtime.
    pub async fn check(&self) -> CheckResult {
        let plugin = self.clone();
        let check = self.runtime().spawn(async move { plugin.check_here().await });
        check.await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Checks some plugins at the same time, and waits for the results on the calling thread.
    pub fn check_all(plugins: &[Plugin]) -> Vec<CheckResult> {
        let start = |plugin: &Plugin| {
            let (runtime, plugin) = (plugin.runtime().clone(), plugin.clone());
            runtime.start_task(async move { plugin.check_here().await })
        };
        let started: Vec<_> = plugins.iter().map(start).collect();
        let results = plugins.iter().zip(started);
        results.map(|(plugin, result)| result.recv().unwrap_or_else(|_| Err(plugin.closed()))).collect()
    }

    /// Repeats the check until the plugin is dropped: often while it fails, else now and then.
    pub fn start_polling(&self) {
        let weak = match self {
            Plugin::V1(plugin) => WeakPlugin::V1(Arc::downgrade(plugin)),
            Plugin::V2(plugin) => WeakPlugin::V2(Arc::downgrade(plugin)),
        };
        let mut is_healthy = matches!(self.last_check(), Some(Ok(())));
        self.runtime().spawn(async move {
            loop {
                sleep(if is_healthy { KMS_POLL_INTERVAL } else { KMS_RETRY_INTERVAL }).await;
                let Some(plugin) = weak.upgrade() else { return };
                let result = plugin.check_here().await;
                is_healthy = result.is_ok();
                if let Err(error) = result {
                    tracing::warn!(provider = plugin.name(), error, "a KMS plugin is not healthy");
                }
            }
        });
    }

    async fn check_here(&self) -> CheckResult {
        match self {
            Plugin::V1(plugin) => plugin.check().await,
            Plugin::V2(plugin) => plugin.check().await,
        }
    }

    fn runtime(&self) -> &Arc<PluginRuntime> {
        match self {
            Plugin::V1(plugin) => plugin.client().runtime(),
            Plugin::V2(plugin) => plugin.client().runtime(),
        }
    }

    fn closed(&self) -> String {
        format!("the client of KMS provider {} is closed", self.name())
    }
}
