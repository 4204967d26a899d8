//! Resolves names and connects, for all outgoing connections.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use pilothouse_api::connect::location::is_global_unicast;
use pilothouse_api::connect::{AllowedAddresses, Destination, Location};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_openssl::SslStream;

use crate::egress::TunnelDialer;
use crate::kubeconfig::Proxy;
use crate::socket::Socket;
use crate::{limits, socket, tunnel};

use super::client_tls;
use super::failure::Failure;
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

/// Connects to a host without TLS. The caller sets the timeout.
pub async fn dial_tcp(host: &str, port: u16) -> Result<TcpStream, Failure> {
    connect(&lookup(host, port).await?).await
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

/// The addresses of a host: at least one.
async fn lookup(host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let addresses = lookup_host((host, port)).await.map_err(|_| Failure::Lookup(host.to_owned()))?;
    let addresses: Vec<SocketAddr> = addresses.take(limits::UPSTREAM_ADDRESSES).collect();
    if addresses.is_empty() { Err(Failure::Lookup(host.to_owned())) } else { Ok(addresses) }
}

async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, Failure> {
    let tcp = connect_first(addresses, TcpStream::connect).await?;
    if let Err(error) = socket::prepare(&tcp) {
        tracing::debug!(%error, "TCP options cannot be set");
    }
    Ok(tcp)
}

/// The first connection of those to any of the addresses. The next address is tried when the one before has failed, or after a
/// moment beside it: one that drops packets must not take the time of the others.
async fn connect_first<T, F>(
    addresses: &[SocketAddr],
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = io::Result<T>>,
{
    let mut next = addresses.iter().copied();
    let mut attempts = FuturesUnordered::new();
    let mut first_error = None;
    loop {
        let is_last = match next.next() {
            Some(address) => {
                let connecting = attempt(address);
                attempts
                    .push(async move { connecting.await.map_err(|error| Failure::dial(address, &error)) });
                false
            }
            None => true,
        };
        let outcome = match is_last {
            true => attempts.next().await,
            false => match timeout(limits::NEXT_ADDRESS_DELAY, attempts.next()).await {
                Ok(outcome) => outcome,
                Err(_) => continue,
            },
        };
        match outcome {
            Some(Ok(connected)) => return Ok(connected),
            Some(Err(failure)) => first_error = first_error.or(Some(failure)),
            None => return Err(first_error.unwrap_or(Failure::NotAllowed)),
        }
    }
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

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures::FutureExt as _;

    use super::*;

    fn addresses(count: u16) -> Vec<SocketAddr> {
        (1..=count).map(|port| SocketAddr::from(([192, 0, 2, 1], port))).collect()
    }

    fn refused() -> io::Error {
        io::ErrorKind::ConnectionRefused.into()
    }

    #[actix_rt::test]
    async fn unresponsive_address_delays_the_next_only_briefly() {
        let attempt = |address: SocketAddr| match address.port() {
            3 => ready(Ok(address.port())).left_future(),
            _ => pending().right_future(),
        };
        let addresses = addresses(5);
        let connecting = timeout(limits::NEXT_ADDRESS_DELAY * 20, connect_first(&addresses, attempt));
        assert_eq!(connecting.await.expect("not that long").unwrap(), 3);
    }

    #[actix_rt::test]
    async fn slow_address_is_still_waited_for() {
        let attempt = |address: SocketAddr| async move {
            if address.port() == 1 {
                tokio::time::sleep(limits::NEXT_ADDRESS_DELAY * 3).await;
                return Ok(address.port());
            }
            Err(refused())
        };
        assert_eq!(connect_first(&addresses(2), attempt).await.unwrap(), 1);
    }

    #[actix_rt::test]
    async fn first_error_is_returned_if_all_addresses_fail() {
        let result = connect_first(&addresses(3), |_| ready(io::Result::<()>::Err(refused()))).now_or_never();
        let error = result.expect("nothing to wait for").unwrap_err().to_string();
        assert_eq!(error, "dial tcp 192.0.2.1:1: connect: connection refused");
    }
}
