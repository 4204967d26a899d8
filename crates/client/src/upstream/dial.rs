//! Connects to destinations, with TLS.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pilothouse_api::connect::location::is_global_unicast;
use pilothouse_api::connect::{AllowedAddresses, Destination, Location};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;
use tokio_openssl::SslStream;

use crate::client_tls;
use crate::direct::{connect, lookup};
use crate::egress::TunnelDialer;
use crate::failure::Failure;
use crate::kubeconfig::Proxy;
use crate::socket::Socket;
use crate::{limits, tunnel};

use super::pool::Negotiated;
use super::tls::{Contexts, TlsSettings};

/// A connection, with or without TLS.
pub enum Stream {
    /// Without TLS.
    Plain(Socket),
    /// With TLS.
    Private(Box<SslStream<Socket>>),
}

/// The way to a server.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    /// The proxy of the environment, if any.
    pub(super) proxy: Option<&'a Proxy>,
    /// What makes connections; `None` for direct ones.
    pub(super) dialer: Option<&'a Arc<TunnelDialer>>,
    /// Whether the server may choose HTTP/2.
    pub(super) offers_http2: bool,
    /// How long each of the three steps (name, TCP, TLS) may take.
    pub(super) limit: Duration,
}

/// What is connected to.
pub(super) enum Target<'a> {
    /// These addresses, of this server.
    Addresses(&'a Destination, Vec<SocketAddr>),
    /// This server, whose name a proxy resolves.
    Named(&'a Destination),
}

/// What is connected to. If not all addresses are allowed, a proxy is asked for one that was checked.
pub(super) async fn target<'a>(destination: &'a Destination, way: Way<'_>) -> Result<Target<'a>, Failure> {
    let is_proxied = way.proxy.is_some() || way.dialer.is_some();
    if !is_proxied || destination.reach == AllowedAddresses::Any {
        return Ok(Target::Named(destination));
    }
    resolve_within(destination, way.limit).await.map(|addresses| Target::Addresses(destination, addresses))
}

impl Target<'_> {
    fn destination(&self) -> &Destination {
        match self {
            Target::Addresses(destination, _) | Target::Named(destination) => destination,
        }
    }

    fn host(&self) -> String {
        match self {
            Target::Addresses(destination, addresses) => match addresses.first() {
                Some(address) => address.ip().to_string(),
                None => destination.location.host.clone(),
            },
            Target::Named(destination) => destination.location.host.clone(),
        }
    }

    /// Host and port, as a proxy is asked for them.
    pub(super) fn authority(&self) -> String {
        Location { host: self.host(), ..self.destination().location.clone() }.authority()
    }
}

/// Connects.
pub(super) async fn dial(
    contexts: &Contexts,
    tls: Option<&TlsSettings>,
    target: Target<'_>,
    way: Way<'_>,
) -> Result<Stream, Failure> {
    let socket = match (way.proxy, way.dialer) {
        (None, None) => dial_directly(target.destination(), way.limit).await?,
        _ => dial_through(contexts, tls, &target, way).await?,
    };
    let Some(tls) = tls else { return Ok(Stream::Plain(socket)) };
    let handshake = timeout(way.limit, tls.handshake(socket, way.offers_http2)).await;
    Ok(Stream::Private(Box::new(handshake.map_err(|_| Failure::SlowTls)??)))
}

async fn dial_directly(destination: &Destination, limit: Duration) -> Result<Socket, Failure> {
    let addresses = resolve_within(destination, limit).await?;
    let timed_out = |_| Failure::SlowDial(destination.location.authority());
    timeout(limit, connect(&addresses)).await.map_err(timed_out)?.map(Socket::Tcp)
}

async fn dial_through(
    contexts: &Contexts,
    tls: Option<&TlsSettings>,
    target: &Target<'_>,
    way: Way<'_>,
) -> Result<Socket, Failure> {
    let Location { port, secure, .. } = target.destination().location;
    let host = target.host();
    let way = tunnel::Way { proxy: way.proxy, tls: Some(contexts.for_proxy(tls)), dialer: way.dialer };
    let connecting = tunnel::connect(tunnel::Target { host: &host, port, secure }, way);
    let timed_out = |_| Failure::SlowDial(target.authority());
    timeout(2 * limits::EGRESS_STEP_TIMEOUT, connecting).await.map_err(timed_out)?.map_err(Failure::Proxy)
}

async fn resolve_within(destination: &Destination, limit: Duration) -> Result<Vec<SocketAddr>, Failure> {
    let timed_out = |_| Failure::SlowDial(destination.location.authority());
    timeout(limit, resolve(destination)).await.map_err(timed_out)?
}

/// The allowed addresses of a host. The checked addresses are the ones connected to: a name that resolves differently later leads
/// nowhere else.
async fn resolve(destination: &Destination) -> Result<Vec<SocketAddr>, Failure> {
    let Destination { location, reach, .. } = destination;
    let addresses = lookup(&location.host, location.port).await?;
    let all_global = || addresses.iter().all(|address| is_global_unicast(address.ip()));
    if *reach == AllowedAddresses::GlobalUnicast && !all_global() {
        return Err(Failure::NotAllowed);
    }
    Ok(addresses)
}

impl Negotiated for Stream {
    fn speaks_http2(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Private(stream) => client_tls::speaks_http2(stream.ssl()),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Private(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Private(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Private(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Private(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
