//! A signer of service account tokens outside of this process, reached by gRPC over a Unix socket
//! (`--service-account-signing-endpoint`).
//!
//! `messages` is the protocol, `client` makes calls, `header` checks what the signer has signed, `keys` are the keys that verify its
//! tokens. Calls run on a thread of their own; a worker only waits for them.

mod client;
mod header;
mod keys;
pub mod messages;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use pilothouse_plugins::PluginRuntime;
use pilothouse_types::clock::Clock;
use tokio_util::task::AbortOnDropHandle;

pub use self::keys::ExternalKeys;

use self::client::{SignerClient, SignerError};
use super::metadata::Discovery;
use crate::limits::SIGNER_SHORTEST_LIFETIME;
use crate::metrics::external_signer::{ExternalSignerMetrics, OK};

/// The settings of the signer.
pub struct SignerSettings {
    /// The path of its socket; that of an abstract one begins with a zero byte.
    pub socket: PathBuf,
    /// How long a signature may take.
    pub sign_timeout: Duration,
    /// What makes the discovery documents, if they are published.
    pub discovery: Option<Discovery>,
    /// Counts calls.
    pub metrics: ExternalSignerMetrics,
    /// The source of time.
    pub clock: Clock,
}

/// The signer. Shared by all workers.
pub struct ExternalSigner {
    client: Arc<SignerClient>,
    keys: Arc<ExternalKeys>,
    max_lifetime: Duration,
    metrics: ExternalSignerMetrics,
    runtime: PluginRuntime,
    /// Fetches the keys.
    _refresh: AbortOnDropHandle<()>,
}

impl ExternalSigner {
    /// Waits for the signer, for its keys and for what it can do.
    pub async fn connect(settings: SignerSettings) -> Result<ExternalSigner, String> {
        let setup = |reason: &str| format!("while setting up external-jwt-signer: {reason}");
        let SignerSettings { socket, sign_timeout, discovery, metrics, clock } = settings;
        let runtime = PluginRuntime::start("token-signer").map_err(|error| setup(&error.to_string()))?;
        let client = Arc::new(SignerClient::new(socket, sign_timeout, clock.clone(), metrics.clone()));
        let (first, first_metrics) = (client.clone(), metrics.clone());
        let response = runtime.spawn(async move {
            let response = keys::fetch(&first, &first_metrics, &clock).await?;
            ExternalKeys::new(response, discovery, first_metrics, clock)
        });
        let keys = ended(response.await).and_then(|keys| keys.map_err(|error| error.to_string()));
        let keys = Arc::new(keys.map_err(|reason| {
            setup(&format!(
                "while initially filling key cache: while performing initial cache fill: \
                 while fetching token verification keys: {reason}"
            ))
        })?);
        let metadata_client = client.clone();
        let metadata = runtime.spawn(async move { metadata_client.metadata().await });
        let metadata = ended(metadata.await).and_then(|metadata| metadata.map_err(|error| error.to_string()));
        let max_seconds = metadata.map_err(|reason| setup(&reason))?.max_token_expiration_seconds;
        let shortest = SIGNER_SHORTEST_LIFETIME.as_secs();
        let max_seconds = u64::try_from(max_seconds).ok().filter(|seconds| *seconds >= shortest).ok_or_else(|| {
            format!("max token life supported by external-jwt-signer ({max_seconds}s) is less than acceptable (min {shortest}s)")
        })?;
        let (refreshed, refresh_client) = (keys.clone(), client.clone());
        let refresh = runtime.spawn(async move { refreshed.refresh(&refresh_client).await });
        Ok(ExternalSigner {
            client,
            keys,
            max_lifetime: Duration::from_secs(max_seconds),
            metrics,
            runtime,
            _refresh: AbortOnDropHandle::new(refresh),
        })
    }

    /// The keys that verify its tokens.
    pub fn keys(&self) -> &Arc<ExternalKeys> {
        &self.keys
    }

    /// The longest lifetime of its tokens.
    pub fn max_lifetime(&self) -> Duration {
        self.max_lifetime
    }

    /// Has a token with these claims signed.
    pub async fn sign(&self, claims: &serde_json::Value) -> Result<String, String> {
        let result = self.sign_and_check(BASE64.encode(claims.to_string())).await;
        self.metrics.count_sign(result.as_ref().map_or_else(SignerError::code, |_| OK));
        result.map_err(|error| error.to_string())
    }

    async fn sign_and_check(&self, claims: String) -> Result<String, SignerError> {
        let (client, sent) = (self.client.clone(), claims.clone());
        // The call ends with the request that waits for it.
        let response = AbortOnDropHandle::new(self.runtime.spawn(async move { client.sign(sent).await }));
        let response = ended(response.await).map_err(SignerError::Response)??;
        let invalid = |reason: String| SignerError::Response(format!("while validating header: {reason}"));
        let key_id = header::check(&response.header).map_err(invalid)?;
        if self.keys.is_excluded(&key_id).await {
            return Err(invalid(format!(
                "key used for signing JWT (kid: {key_id}) is excluded from OIDC discovery docs"
            )));
        }
        if response.signature.is_empty() {
            return Err(SignerError::Response("empty signature returned".to_owned()));
        }
        Ok(format!("{}.{claims}.{}", response.header, response.signature))
    }
}

/// The result of a task of the runtime, which ends only with the server.
fn ended<T>(result: Result<T, tokio::task::JoinError>) -> Result<T, String> {
    result.map_err(|error| io::Error::from(error).to_string())
}

/// Where the signer listens: a path, or `@name` for an abstract socket of Linux, whose path begins with a zero byte.
pub fn socket_path(endpoint: &str) -> PathBuf {
    PathBuf::from(endpoint.strip_prefix('@').map_or_else(|| endpoint.to_owned(), |name| format!("\0{name}")))
}

#[cfg(test)]
mod tests;
