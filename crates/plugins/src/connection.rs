//! One HTTP/2 connection, made again when it breaks.
//!
//! Neither tonic's channel nor its server is used: they bring a load balancer, a router and their own way to connect, and this is one
//! connection to one address.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::http::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pilothouse_types::host_port::HostPort;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tonic::Status;
use tonic::body::Body;
use tonic::client::GrpcService;

use crate::address::Address;

/// A stream of bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

/// A connection that is being made.
pub type Dialing<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Duplex>, String>> + Send + 'a>>;

/// Connects in another way than directly, such as through a proxy.
pub trait Dialer: Send + Sync {
    /// Connects to this address.
    fn dial<'a>(&'a self, address: &'a HostPort) -> Dialing<'a>;
}

/// The connection to one address. Its methods are called on the runtime of the plugins.
pub struct Connection {
    /// Where it goes.
    pub address: Address,
    /// How an address on the network is connected to, unless directly.
    dialer: Option<Arc<dyn Dialer>>,
    /// Locked while a connection is made, so that only one is.
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    /// How requests are sent, while there is a connection.
    sender: Option<SendRequest<Body>>,
    /// The number of the connection.
    number: u64,
}

impl Connection {
    /// A connection that is made when it is needed.
    pub fn new(address: Address) -> Connection {
        Connection { address, dialer: None, current: Mutex::default() }
    }

    /// The same, made by this dialer.
    pub fn with_dialer(self, dialer: Option<Arc<dyn Dialer>>) -> Connection {
        Connection { dialer, ..self }
    }

    /// A way to send one request, over a new connection if there is none.
    pub async fn ready(&self) -> Result<Requests, String> {
        let mut current = self.current.lock().await;
        if let Some(sender) = current.sender.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(Requests { sender: sender.clone(), number: current.number });
        }
        current.sender = None;
        let sender = self.connect().await.map_err(|error| format!("dial {}: {error}", self.address))?;
        current.number += 1;
        current.sender = Some(sender.clone());
        Ok(Requests { sender, number: current.number })
    }

    /// Gives a connection up that has failed. Another one may have been made since.
    pub async fn discard(&self, number: u64) {
        let mut current = self.current.lock().await;
        if current.number == number {
            current.sender = None;
        }
    }

    /// Gives the present connection up, whichever it is.
    pub async fn close(&self) {
        self.current.lock().await.sender = None;
    }

    async fn connect(&self) -> Result<SendRequest<Body>, Box<dyn Error + Send + Sync>> {
        match &self.address {
            Address::Unix(path) => handshake(UnixStream::connect(path).await?).await,
            Address::Tcp(address) => {
                if let Some(dialer) = &self.dialer {
                    return handshake(dialer.dial(address).await?).await;
                }
                let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
                stream.set_nodelay(true)?;
                handshake(stream).await
            }
        }
    }
}

async fn handshake<S>(stream: S) -> Result<SendRequest<Body>, Box<dyn Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, driver) = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await?;
    // Ends with the connection; whoever waits for a response hears of it there.
    tokio::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "the connection to a plugin has ended");
        }
    });
    Ok(sender)
}

/// Sends requests over a connection. Errors of the connection have a source, those of the plugin have none.
pub struct Requests {
    sender: SendRequest<Body>,
    /// The number of the connection.
    pub number: u64,
}

impl GrpcService<Body> for Requests {
    type ResponseBody = Incoming;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, Status>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.sender.poll_ready(context).map_err(unavailable)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let response = self.sender.send_request(request);
        Box::pin(async move { response.await.map_err(unavailable) })
    }
}

fn unavailable(error: hyper::Error) -> Status {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    let mut status = Status::unavailable(format!("{error}{cause}"));
    status.set_source(Arc::new(error));
    status
}
