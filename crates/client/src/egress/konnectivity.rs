//! The protocol of konnectivity: one gRPC stream for each connection, whose packets carry its bytes.
//!
//! As in the reference, a tunnel has one connection: the end of either is the end of both.

mod messages;
mod stream;

use std::error::Error as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::channel::mpsc;
use futures::{SinkExt as _, StreamExt as _};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tonic::Status;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic_prost::ProstCodec;

pub use self::messages::{
    CloseDial, CloseRequest, CloseResponse, Data, DialRequest, DialResponse, Drain, Packet, Payload,
};
pub use self::stream::TunnelStream;
use crate::limits::{KONNECTIVITY_PACKET_BYTES, KONNECTIVITY_PACKETS, KONNECTIVITY_WINDOW_BYTES};

/// The method that carries packets both ways.
pub const METHOD: &str = "/ProxyService/Proxy";

/// A connection to a konnectivity server.
pub struct Tunnel {
    requests: Requests,
}

impl Tunnel {
    /// Starts HTTP/2 on this socket.
    pub async fn open(socket: UnixStream) -> Result<Tunnel, String> {
        let handshake = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(KONNECTIVITY_WINDOW_BYTES)
            .initial_connection_window_size(KONNECTIVITY_WINDOW_BYTES)
            .handshake(TokioIo::new(socket));
        let (sender, driver) = handshake.await.map_err(|error| error.to_string())?;
        // Ends with the connection; whoever waits for a packet hears of it there.
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "a connection to a konnectivity server has ended");
            }
        });
        Ok(Tunnel { requests: Requests(sender) })
    }

    /// Connects to this host and port.
    pub async fn dial(self, address: &str) -> Result<TunnelStream, String> {
        let random = dial_id();
        let (mut sender, packets) = mpsc::channel(KONNECTIVITY_PACKETS);
        let dial = DialRequest { protocol: "tcp".to_owned(), address: address.to_owned(), random };
        // Before the call, because the server begins its response with the first packet.
        sender.send(Packet::from(Payload::DialRequest(dial))).await.map_err(|error| error.to_string())?;
        let mut grpc = Grpc::with_origin(self.requests.clone(), Uri::from_static("http://localhost"))
            .max_decoding_message_size(KONNECTIVITY_PACKET_BYTES);
        grpc.ready().await.map_err(|status| describe(&status))?;
        let codec = ProstCodec::<Packet, Packet>::default();
        let path = PathAndQuery::from_static(METHOD);
        let response = grpc.streaming(tonic::Request::new(packets), path, codec).await;
        let mut responses = response.map_err(|status| describe(&status))?.into_inner();
        loop {
            let packet = match responses.next().await {
                Some(Ok(packet)) => packet,
                Some(Err(status)) => return Err(describe(&status)),
                None => return Err("tunnel closed".to_owned()),
            };
            match packet.payload {
                Some(Payload::DialResponse(response)) if response.random == random => {
                    if !response.error.is_empty() {
                        return Err(response.error);
                    }
                    let connection = response.connect_id;
                    return Ok(TunnelStream::new(connection, sender, responses, self.requests.0));
                }
                Some(Payload::CloseDial(_)) => return Err("dial closed".to_owned()),
                _ => {}
            }
        }
    }
}

fn describe(status: &Status) -> String {
    let cause = status.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("rpc error: code = {:?} desc = {}{cause}", status.code(), status.message())
}

/// A number by which the response to a dial is known. Tunnels have one dial, so it need not be unpredictable.
fn dial_id() -> i64 {
    use std::sync::atomic::{AtomicI64, Ordering};
    static NEXT: AtomicI64 = AtomicI64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Sends requests over the connection.
#[derive(Clone)]
struct Requests(SendRequest<Body>);

impl GrpcService<Body> for Requests {
    type ResponseBody = Incoming;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, Status>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.0.poll_ready(context).map_err(|error| Status::unavailable(error.to_string()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let response = self.0.send_request(request);
        Box::pin(async move { response.await.map_err(|error| Status::unavailable(error.to_string())) })
    }
}
