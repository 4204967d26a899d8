//! Resolves names and connects.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_openssl::SslStream;

use crate::api::connect::location::is_global_unicast;
use crate::api::connect::{AllowedAddresses, Destination, Location};
use crate::{limits, socket};

use super::failure::Failure;
use super::tls::TlsSettings;

/// A connection, with or without TLS.
pub enum Stream {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS.
    Private(Box<SslStream<TcpStream>>),
}

/// Connects. Each of the three steps (name, TCP, TLS) may take `within`.
pub(super) async fn dial(
    tls: Option<&TlsSettings>,
    to: &Destination,
    within: Duration,
) -> Result<Stream, Failure> {
    let Destination { location, reach, .. } = to;
    let addresses = timeout(within, resolve(location, *reach))
        .await
        .map_err(|_| Failure::SlowDial(location.authority()))??;
    let slow = || Failure::SlowDial(location.authority());
    let tcp = timeout(within, connect(&addresses, within, slow)).await.map_err(|_| slow())??;
    if let Err(error) = socket::prepare(&tcp) {
        tracing::debug!(%error, "TCP options cannot be set");
    }
    let Some(tls) = tls else { return Ok(Stream::Plain(tcp)) };
    let handshake = timeout(within, tls.handshake(tcp)).await;
    Ok(Stream::Private(Box::new(handshake.map_err(|_| Failure::SlowTls)??)))
}

/// The addresses of a host. The checked addresses are the ones connected to: a name that resolves differently later leads nowhere
/// else.
async fn resolve(location: &Location, reach: AllowedAddresses) -> Result<Vec<SocketAddr>, Failure> {
    let found: Vec<SocketAddr> = match location.host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, location.port)],
        Err(_) => {
            let unknown = |_| Failure::Lookup(location.host.clone());
            let found = lookup_host((location.host.as_str(), location.port)).await.map_err(unknown)?;
            found.take(limits::UPSTREAM_ADDRESSES).collect()
        }
    };
    if found.is_empty() {
        return Err(Failure::Lookup(location.host.clone()));
    }
    let all = || found.iter().all(|address| is_global_unicast(address.ip()));
    if reach == AllowedAddresses::GlobalUnicast && !all() {
        return Err(Failure::NotAllowed);
    }
    Ok(found)
}

/// Tries one address after the other. Each has its share of the time, so that one that drops packets leaves some to the next.
async fn connect(
    addresses: &[SocketAddr],
    within: Duration,
    slow: impl Fn() -> Failure,
) -> Result<TcpStream, Failure> {
    let share = within / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut failed = None;
    for address in addresses {
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = failed.or(Some(Failure::dial(*address, &error))),
            Err(_) => failed = failed.or_else(|| Some(slow())),
        }
    }
    Err(failed.unwrap_or(Failure::NotAllowed))
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
