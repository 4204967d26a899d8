//! One HTTP/2 connection to a member that has proved to be alive.
//!
//! As for KMS plugins, neither tonic's channel nor its balancer is used: which member is asked, and when another one is, depends on
//! whether a call may be repeated, and that only this crate knows.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use hyper::http::Uri;
use hyper::http::uri::PathAndQuery;
use prost::Message;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::dial::dial;
use super::endpoint::Endpoint;
use super::grpc::{Origin, Requests};
use super::liveness::{Liveness, pair};
use crate::messages::{StatusRequest, StatusResponse};
use crate::methods::{Method, STATUS};
use crate::settings::Settings;

/// By which etcd refuses calls at members that know no leader.
const REQUIRES_LEADER: &str = "hasleader";

/// What is needed to send calls; cheap to clone.
#[derive(Clone)]
struct Channel {
    requests: Requests,
    origin: Uri,
    max_response_bytes: usize,
}

impl Channel {
    fn grpc(&self) -> Grpc<Requests> {
        Grpc::with_origin(self.requests.clone(), self.origin.clone())
            .max_decoding_message_size(self.max_response_bytes)
    }

    async fn unary<Q, R>(&self, method: &Method, message: Q, limit: Duration) -> Result<R, Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut request = request(method, message);
        // The member gives up as well, and does not work for nobody.
        request.set_timeout(limit);
        let mut grpc = self.grpc();
        grpc.ready().await?;
        let codec = ProstCodec::<Q, R>::default();
        grpc.unary(request, PathAndQuery::from_static(method.path), codec).await.map(Response::into_inner)
    }
}

fn request<M>(method: &Method, message: M) -> Request<M> {
    let mut request = Request::new(message);
    if method.needs_leader {
        request.metadata_mut().insert(REQUIRES_LEADER, MetadataValue::from_static("true"));
    }
    request
}

/// A connection to a member.
pub struct Connection {
    /// The member.
    pub endpoint: Arc<Endpoint>,
    /// Its position in the settings.
    pub index: usize,
    /// How the member was when the connection was made, unless it does not tell this client.
    pub status: Option<StatusResponse>,
    channel: Channel,
    liveness: Liveness,
    _monitor: AbortOnDropHandle<()>,
}

impl Connection {
    /// Connects to a member and asks for its status: a member that is paused accepts connections, and only an answer shows that it
    /// lives.
    pub async fn open(
        endpoint: Arc<Endpoint>,
        index: usize,
        settings: &Settings,
    ) -> Result<Connection, String> {
        let limit = settings.dial_timeout;
        match timeout(limit, Connection::open_slowly(endpoint, index, settings)).await {
            Ok(result) => result,
            Err(_) => Err(format!("no connection within {limit:?}")),
        }
    }

    async fn open_slowly(
        endpoint: Arc<Endpoint>,
        index: usize,
        settings: &Settings,
    ) -> Result<Connection, String> {
        let channel = Channel {
            requests: Requests(dial(&endpoint, settings).await?),
            origin: endpoint.origin.clone(),
            max_response_bytes: settings.max_response_bytes,
        };
        let status = match channel.unary(&STATUS, StatusRequest {}, settings.dial_timeout).await {
            Ok(status) => Some(status),
            // It need not tell everybody how it is; it lives.
            Err(status) if Origin::of_status(&status) == Some(&Origin::Member) => None,
            Err(status) => return Err(status.message().to_owned()),
        };
        let (liveness, monitor) = pair();
        let (prober, patience) = (channel.clone(), settings.silence);
        let monitor = tokio::spawn(async move {
            let is_answered = || async {
                let result = prober.unary::<_, StatusResponse>(&STATUS, StatusRequest {}, patience).await;
                result
                    .err()
                    .is_none_or(|status| Origin::of_status(&status).is_none_or(|o| *o == Origin::Member))
            };
            monitor.run(patience, is_answered).await;
        });
        let _monitor = AbortOnDropHandle::new(monitor);
        Ok(Connection { endpoint, index, status, channel, liveness, _monitor })
    }

    /// The address of the member.
    pub fn url(&self) -> &str {
        &self.endpoint.url
    }

    /// Whether the member has no vote yet. It refuses nearly all calls.
    pub fn is_learner(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.is_learner)
    }

    /// Whether new calls should be sent over it.
    pub fn is_usable(&self) -> bool {
        !self.channel.requests.0.is_closed() && !self.liveness.is_silent()
    }

    /// Waits for something from the member, but not for longer than it is alive. Meanwhile it is probed if it sends nothing.
    pub async fn unless_silent<T>(
        &self,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let call = self.liveness.begin_call();
        let result = tokio::select! {
            biased;
            result = answer => result,
            () = self.liveness.silence() => return Err(Origin::silence()),
        };
        call.answered();
        result
    }

    /// Sends a call and waits for its answer, as [`Connection::unless_silent`] does if it may be repeated elsewhere.
    pub async fn unary<Q, R>(&self, method: &Method, message: Q, limit: Duration) -> Result<R, Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let answer = self.channel.unary(method, message, limit);
        if method.is_repeatable {
            return self.unless_silent(answer).await;
        }
        // A write waits on: its answer may still come, and nobody else has it.
        let call = self.liveness.begin_call();
        let result = answer.await;
        call.answered();
        result
    }

    /// Opens a stream. Members answer only after the first request.
    pub async fn stream<S, Q, R>(&self, method: &Method, requests: S) -> Result<Streaming<R>, Status>
    where
        S: Stream<Item = Q> + Send + 'static,
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.channel.grpc();
        grpc.ready().await?;
        let codec = ProstCodec::<Q, R>::default();
        let path = PathAndQuery::from_static(method.path);
        grpc.streaming(request(method, requests), path, codec).await.map(Response::into_inner)
    }
}
