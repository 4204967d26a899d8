//! Calls to one plugin.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use hyper::http::uri::PathAndQuery;
use prost::Message;
use tokio::time::{sleep, timeout};
use tonic::client::Grpc;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::address::Address;
use crate::connection::{Connection, Dialer, Requests};
use crate::failure::CallError;
use crate::limits::PLUGIN_CONNECT_PAUSE;

/// How long a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTimes {
    /// Until there is a connection: a plugin that is being restarted is waited for.
    pub connect: Duration,
    /// Until there is a response.
    pub response: Duration,
}

impl CallTimes {
    /// One time for both.
    pub fn within(time: Duration) -> CallTimes {
        CallTimes { connect: time, response: time }
    }
}

/// A client of one plugin.
pub struct PluginClient {
    connection: Connection,
    /// Bytes of a response.
    response_bytes: usize,
}

impl PluginClient {
    /// A client that connects when it is used.
    pub fn new(address: impl Into<Address>, response_bytes: usize) -> PluginClient {
        PluginClient { connection: Connection::new(address.into()), response_bytes }
    }

    /// The same, connected by this dialer unless the address is a socket on this machine.
    #[must_use]
    pub fn with_dialer(self, dialer: Option<Arc<dyn Dialer>>) -> PluginClient {
        PluginClient { connection: self.connection.with_dialer(dialer), ..self }
    }

    /// Closes the connection, because the plugin does not answer. The next call makes another one.
    pub async fn disconnect(&self) {
        self.connection.close().await;
    }

    /// Calls a method, which may be called twice. To be awaited on one runtime, which keeps the connection.
    pub async fn call<Q, R>(&self, method: &'static str, request: Q, times: CallTimes) -> Result<R, CallError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let mut connect_error = None;
        let response = async {
            let mut is_repeated = false;
            loop {
                let requests = timeout(times.connect, self.connect(&mut connect_error)).await;
                let Ok(requests) = requests else { return Err(None) };
                let number = requests.number;
                match self.send(requests, method, request.clone()).await {
                    // The connection was at its end.
                    Err(status) if status.source().is_some() && !is_repeated => {
                        is_repeated = true;
                        self.connection.discard(number).await;
                    }
                    result => return result.map_err(Some),
                }
            }
        };
        match timeout(times.response, response).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(Some(status))) => Err(status.into()),
            Ok(Err(None)) | Err(_) => {
                let cause = connect_error.map(|error| format!(": {error}")).unwrap_or_default();
                let message = format!("context deadline exceeded{cause}");
                Err(CallError::new(Code::DeadlineExceeded, &message))
            }
        }
    }

    /// Waits for a connection, and leaves the reason why there is none.
    async fn connect(&self, error: &mut Option<String>) -> Requests {
        loop {
            match self.connection.ready().await {
                Ok(requests) => {
                    *error = None;
                    return requests;
                }
                Err(reason) => *error = Some(reason),
            }
            sleep(PLUGIN_CONNECT_PAUSE).await;
        }
    }

    async fn send<Q, R>(&self, requests: Requests, method: &'static str, request: Q) -> Result<R, Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = Grpc::with_origin(requests, self.connection.address.origin())
            .max_decoding_message_size(self.response_bytes);
        grpc.ready().await?;
        let codec = ProstCodec::<Q, R>::default();
        let response = grpc.unary(Request::new(request), PathAndQuery::from_static(method), codec).await?;
        Ok(response.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PluginRuntime;
    use crate::testing::PluginServer;

    #[derive(Clone, Copy, PartialEq, Eq, Message)]
    struct Empty {}

    #[test]
    fn call_says_why_there_is_no_connection_and_works_once_there_is_a_plugin() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let runtime = PluginRuntime::start("plugins").unwrap();
        let client = Arc::new(PluginClient::new(path.clone(), 1_024));
        let call = |times: CallTimes| {
            let client = client.clone();
            runtime
                .wait_for(async move { client.call::<Empty, Empty>("/a.B/C", Empty {}, times).await })
                .unwrap()
        };
        let long = Duration::from_secs(30);
        for times in [
            CallTimes { connect: Duration::from_millis(10), response: long },
            CallTimes { connect: long, response: Duration::from_millis(10) },
        ] {
            let error = call(times).unwrap_err();
            assert_eq!(error.code, Code::DeadlineExceeded);
            let expected = format!("context deadline exceeded: dial unix {}: ", path.display());
            assert!(error.message.starts_with(&expected), "{error}");
        }
        let server = PluginServer::start(&path, |call| call.answer(|message: Empty| Ok(message))).unwrap();
        assert_eq!(call(CallTimes::within(long)), Ok(Empty {}));
        drop(server);
        // The connection of before is at its end: another is made.
        let _server = PluginServer::start(&path, |call| async move { call.unimplemented() }).unwrap();
        assert_eq!(call(CallTimes::within(long)).unwrap_err().code, Code::Unimplemented);
    }
}
