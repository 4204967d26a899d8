//! Calls to the signer.

use std::path::PathBuf;
use std::time::Duration;

use pilothouse_plugins::{CallError, CallTimes, Message, PluginClient, code_name};
use pilothouse_types::clock::Clock;

use super::messages::methods::{FETCH_KEYS, METADATA, SIGN};
use super::messages::{
    FetchKeysRequest, FetchKeysResponse, MetadataRequest, MetadataResponse, SignRequest, SignResponse,
};
use crate::limits::{
    SIGNER_CONNECT_TIMEOUT, SIGNER_FETCH_TIMEOUT, SIGNER_METADATA_TIMEOUT, SIGNER_RESPONSE_BYTES,
};
use crate::metrics::external_signer::{ExternalSignerMetrics, NO_GRPC_STATUS, OK};

/// Why the signer gave nothing usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignerError {
    /// A call failed.
    #[error("{doing}: {error}")]
    Call {
        /// What it was for.
        doing: &'static str,
        /// What went wrong.
        error: CallError,
    },
    /// A response breaks the rules.
    #[error("{0}")]
    Response(String),
}

impl SignerError {
    /// The label of the status in metrics.
    pub fn code(&self) -> &'static str {
        match self {
            SignerError::Call { error, .. } => code_name(error.code),
            SignerError::Response(_) => NO_GRPC_STATUS,
        }
    }
}

/// A client of the signer. Its methods are awaited on the runtime of the signer.
pub struct SignerClient {
    plugin: PluginClient,
    sign_times: CallTimes,
    clock: Clock,
    metrics: ExternalSignerMetrics,
}

impl SignerClient {
    /// A client that connects when it is used.
    pub fn new(
        socket: PathBuf,
        sign_timeout: Duration,
        clock: Clock,
        metrics: ExternalSignerMetrics,
    ) -> SignerClient {
        let connect = SIGNER_CONNECT_TIMEOUT.min(sign_timeout);
        SignerClient {
            plugin: PluginClient::new(socket, SIGNER_RESPONSE_BYTES),
            sign_times: CallTimes { connect, response: sign_timeout },
            clock,
            metrics,
        }
    }

    /// Has claims in base64url signed.
    pub async fn sign(&self, claims: String) -> Result<SignResponse, SignerError> {
        let response = self.call(SIGN, SignRequest { claims }, self.sign_times).await;
        response.map_err(|error| SignerError::Call { doing: "while signing jwt", error })
    }

    /// Fetches the keys.
    pub async fn fetch_keys(&self) -> Result<FetchKeysResponse, SignerError> {
        let times = CallTimes::within(SIGNER_FETCH_TIMEOUT);
        let doing = "while getting externally supported jwt signing keys";
        let response = self.call(FETCH_KEYS, FetchKeysRequest {}, times).await;
        response.map_err(|error| SignerError::Call { doing, error })
    }

    /// Asks what the signer can do.
    pub async fn metadata(&self) -> Result<MetadataResponse, CallError> {
        self.call(METADATA, MetadataRequest {}, CallTimes::within(SIGNER_METADATA_TIMEOUT)).await
    }

    async fn call<Q, R>(&self, method: &'static str, request: Q, times: CallTimes) -> Result<R, CallError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let start = self.clock.moment();
        let result = self.plugin.call(method, request, times).await;
        let code = result.as_ref().map_or_else(|error| code_name(error.code), |_| OK);
        self.metrics.count_call(method, code, self.clock.elapsed(start));
        result
    }
}
