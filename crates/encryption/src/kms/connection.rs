//! One HTTP/2 connection to a plugin, made again when it breaks.
//!
//! Neither tonic's channel nor its server is used: they bring a load balancer, a router and their own way to connect, and this is one
//! connection to one socket.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::http::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tonic::Status;
use tonic::body::Body;
use tonic::client::GrpcService;

/// The connection to one socket. Its methods are called on the runtime of the plugins.
pub struct Connection {
    path: PathBuf,
    /// How requests are sent, while there is a connection. Locked while one is made, so that only one is.
    sender: Mutex<Option<SendRequest<Body>>>,
}

impl Connection {
    /// A connection that is made when it is needed.
    pub fn new(path: PathBuf) -> Connection {
        Connection { path, sender: Mutex::new(None) }
    }

    /// A way to send one request, over a new connection if there is none.
    pub async fn ready(&self) -> Result<Requests, String> {
        let mut sender = self.sender.lock().await;
        if let Some(open) = sender.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(Requests(open.clone()));
        }
        *sender = None;
        let path = || self.path.display().to_string().replace('\0', "@");
        let failed = |error: &dyn std::fmt::Display| format!("dial unix {}: {error}", path());
        let stream = UnixStream::connect(&self.path).await.map_err(|error| failed(&error))?;
        let (open, driver) = http2::Builder::new(TokioExecutor::new())
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| failed(&error))?;
        // Ends with the connection; whoever waits for a response hears of it there.
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "the connection to a KMS plugin has ended");
            }
        });
        *sender = Some(open.clone());
        Ok(Requests(open))
    }
}

/// Sends requests over a connection.
pub struct Requests(SendRequest<Body>);

impl GrpcService<Body> for Requests {
    type ResponseBody = Incoming;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, Status>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.0.poll_ready(context).map_err(|error| unavailable(&error))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let response = self.0.send_request(request);
        Box::pin(async move { response.await.map_err(|error| unavailable(&error)) })
    }
}

fn unavailable(error: &hyper::Error) -> Status {
    use std::error::Error as _;
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    Status::unavailable(format!("{error}{cause}"))
}
