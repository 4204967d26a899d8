//! Calls to one plugin.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use hyper::http::Uri;
use hyper::http::uri::PathAndQuery;
use pilothouse_types::clock::Clock;
use prost::Message;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tonic::client::Grpc;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::connection::{Connection, Requests};
use super::endpoint::socket_path;
use super::failure::{CallError, code_name};
use super::runtime::KmsRuntime;
use crate::configuration::KmsConfiguration;
use crate::limits::{KMS_CONNECT_PAUSE, KMS_DECRYPT_CALLS, KMS_RESPONSE_BYTES};
use crate::observer::{OK, Observer};

/// Whose calls are counted: the reference counts those of v2.
pub type CallObserver = Option<Arc<dyn Observer>>;

/// A client of one plugin.
pub struct Client {
    provider: String,
    connection: Connection,
    timeout: Duration,
    clock: Clock,
    observer: CallObserver,
    /// Slots for calls that decrypt. The other calls are made one after another by the checks, and must not wait for these.
    decrypt_slots: Semaphore,
    runtime: Arc<KmsRuntime>,
}

impl Client {
    /// A client that connects when it is used.
    pub fn new(
        settings: &KmsConfiguration,
        runtime: Arc<KmsRuntime>,
        clock: Clock,
        observer: CallObserver,
    ) -> Result<Client, String> {
        Ok(Client {
            provider: settings.name.clone(),
            connection: Connection::new(socket_path(&settings.endpoint)?),
            timeout: settings.timeout,
            clock,
            observer,
            decrypt_slots: Semaphore::new(KMS_DECRYPT_CALLS),
            runtime,
        })
    }

    /// The runtime on which [`Client::call`] must be awaited.
    pub fn runtime(&self) -> &Arc<KmsRuntime> {
        &self.runtime
    }

    /// Calls a method.
    pub async fn call<Q, R>(&self, method: &'static str, request: Q) -> Result<R, CallError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let start = self.clock.moment();
        let result = self.call_in_time(method, request).await;
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

    async fn call_in_time<Q, R>(&self, method: &'static str, request: Q) -> Result<R, CallError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let mut connect_error = None;
        let response = async {
            let mut is_repeated = false;
            loop {
                let requests = match self.connection.ready().await {
                    Ok(requests) => requests,
                    // A plugin that is being restarted is waited for.
                    Err(error) => {
                        connect_error = Some(error);
                        sleep(KMS_CONNECT_PAUSE).await;
                        continue;
                    }
                };
                let number = requests.number;
                match send(requests, method, request.clone()).await {
                    // The connection was at its end. All methods may be called twice.
                    Err(status) if status.source().is_some() && !is_repeated => {
                        is_repeated = true;
                        self.connection.discard(number).await;
                    }
                    result => return result,
                }
            }
        };
        let response = timeout(self.timeout, response).await;
        match response {
            Ok(response) => Ok(response?),
            Err(_) => {
                let cause = connect_error.map(|error| format!(": {error}")).unwrap_or_default();
                let message = format!("context deadline exceeded{cause}");
                Err(CallError::new(Code::DeadlineExceeded, &message))
            }
        }
    }
}

async fn send<Q, R>(requests: Requests, method: &'static str, request: Q) -> Result<R, Status>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let mut grpc = Grpc::with_origin(requests, Uri::from_static("http://localhost"))
        .max_decoding_message_size(KMS_RESPONSE_BYTES);
    grpc.ready().await?;
    let codec = ProstCodec::<Q, R>::default();
    let response = grpc.unary(Request::new(request), PathAndQuery::from_static(method), codec).await?;
    Ok(response.into_inner())
}
