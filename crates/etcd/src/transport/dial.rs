//! Opens connections: socket, TLS, HTTP/2.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use pilothouse_types::host_port::HostPort;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tonic::body::Body;

use super::endpoint::{Address, Endpoint};
use super::tls;
use crate::settings::{Duplex, Settings};

/// The socket to a member.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Dialed(Box<dyn Duplex>),
}

impl Socket {
    async fn connect(address: &Address) -> io::Result<Socket> {
        match address {
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream))
            }
            Address::Unix(path) => Ok(Socket::Unix(UnixStream::connect(path).await?)),
        }
    }
}

macro_rules! delegate {
    ($self:ident, $method:ident, $($argument:expr),*) => {
        match $self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).$method($($argument),*),
            Socket::Unix(stream) => Pin::new(stream).$method($($argument),*),
            Socket::Dialed(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        delegate!(self, poll_read, context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self, poll_write, context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_flush, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_shutdown, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, poll_write_vectored, context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Socket::Tcp(stream) => stream.is_write_vectored(),
            Socket::Unix(stream) => stream.is_write_vectored(),
            Socket::Dialed(stream) => stream.is_write_vectored(),
        }
    }
}

/// Connects to a member. Whether it answers is not known yet.
pub async fn dial(endpoint: &Endpoint, settings: &Settings) -> Result<SendRequest<Body>, String> {
    let io_error = |error: io::Error| match &endpoint.address {
        Address::Tcp(host, port) => format!("dial tcp {}: {error}", HostPort::new(host, *port)),
        Address::Unix(path) => format!("dial unix {}: {error}", path.display()),
    };
    let socket = match (&settings.dialer, &endpoint.address) {
        (None, address) => Socket::connect(address).await.map_err(io_error)?,
        (Some(dialer), Address::Tcp(host, port)) => {
            Socket::Dialed(dialer.dial(HostPort::new(host, *port)).await?)
        }
        // The operator wants no direct connection.
        (Some(_), Address::Unix(path)) => {
            return Err(format!(
                "the socket {} cannot be reached through the egress selector",
                path.display()
            ));
        }
    };
    if !endpoint.is_secure {
        return handshake(socket, settings).await;
    }
    let context = tls::context(&settings.tls)?;
    let name = settings.tls.server_name.as_ref().unwrap_or(&endpoint.host);
    handshake(tls::handshake(&context, name, socket).await?, settings).await
}

async fn handshake<S>(io: S, settings: &Settings) -> Result<SendRequest<Body>, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // No pings while nothing waits: etcd counts them as abuse.
    let handshake = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.keepalive_time)
        .keep_alive_timeout(settings.keepalive_timeout)
        .handshake(TokioIo::new(io));
    let (sender, driver) = handshake.await.map_err(|error| format!("HTTP/2: {error}"))?;
    // Ends with the connection; whoever waits for a response hears of it there.
    tokio::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "a connection to etcd has ended");
        }
    });
    Ok(sender)
}
