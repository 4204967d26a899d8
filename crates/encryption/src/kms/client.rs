//! Calls to one KMS plugin.

use std::sync::Arc;
use std::time::Duration;

use pilothouse_plugins::{CallError, CallTimes, Code, Message, PluginClient, PluginRuntime, code_name};
use pilothouse_types::clock::Clock;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::endpoint::socket_path;
use crate::configuration::KmsConfiguration;
use crate::limits::{KMS_DECRYPT_CALLS, KMS_RESPONSE_BYTES};
use crate::observer::{OK, Observer};

/// Whose calls are counted: the reference counts those of v2.
pub type CallObserver = Option<Arc<dyn Observer>>;

/// A client of one plugin.
pub struct Client {
    provider: String,
    plugin: PluginClient,
    timeout: Duration,
    clock: Clock,
    observer: CallObserver,
    /// Slots for calls that decrypt. The other calls are made one after another by the checks, and must not wait for these.
    decrypt_slots: Semaphore,
    runtime: Arc<PluginRuntime>,
}

impl Client {
    /// A client that connects when it is used.
    pub fn new(
        settings: &KmsConfiguration,
        runtime: Arc<PluginRuntime>,
        clock: Clock,
        observer: CallObserver,
    ) -> Result<Client, String> {
        Ok(Client {
            provider: settings.name.clone(),
            plugin: PluginClient::new(socket_path(&settings.endpoint)?, KMS_RESPONSE_BYTES),
            timeout: settings.timeout,
            clock,
            observer,
            decrypt_slots: Semaphore::new(KMS_DECRYPT_CALLS),
            runtime,
        })
    }

    /// The runtime on which [`Client::call`] must be awaited.
    pub fn runtime(&self) -> &Arc<PluginRuntime> {
        &self.runtime
    }

    /// Calls a method.
    pub async fn call<Q, R>(&self, method: &'static str, request: Q) -> Result<R, CallError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let start = self.clock.moment();
        let result = self.plugin.call(method, request, CallTimes::within(self.timeout)).await;
        if let Some(observer) = &self.observer {
            let status = result.as_ref().map_or_else(|error| code_name(error.code), |_| OK);
            observer.kms_call(&self.provider, method, status, self.clock.elapsed(start));
        }
        result
    }

    /// Calls a method that decrypts, when there is a slot for it.
    pub async fn call_decrypt<Q, R>(&self, method: &'static str, request: Q) -> Result<R, CallError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        // The slots are never closed.
        let Ok(_slot) = timeout(self.timeout, self.decrypt_slots.acquire()).await else {
            return Err(CallError::new(Code::ResourceExhausted, "too many decrypt calls wait"));
        };
        self.call(method, request).await
    }
}
