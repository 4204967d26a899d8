//! Connects to destinations, with TLS.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pilothouse_api::connect::location::is_global_unicast;
use pilothouse_api::connect::{AllowedAddresses, Destination};
use pilothouse_types::host_port::HostPort;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;
use tokio_openssl::SslStream;

use crate::client_tls;
use crate::direct::{connect, lookup};
use crate::failure::Failure;
use crate::limits::EGRESS_STEP_TIMEOUT;
use crate::routes::{Endpoint, Route, Routes};
use crate::socket::Socket;

use super::pool::Negotiated;
use super::tls::TlsSettings;

/// A connection, with or without TLS.
pub enum Stream {
    /// Without TLS.
    Plain(Socket),
    /// With TLS.
    Private(Box<SslStream<Socket>>),
}

/// A destination with the route there.
pub(super) struct Dialer<'a> {
    destination: &'a Destination,
    routes: &'a Routes,
    route: Route,
    /// The server as a proxy is asked for it.
    server: HostPort,
    /// How long each of the three steps (name, TCP, TLS) may take.
    limit: Duration,
}

impl<'a> Dialer<'a> {
    /// Over this route. If not all addresses are allowed, a proxy is asked for one that was checked.
    pub(super) async fn new(
        destination: &'a Destination,
        routes: &'a Routes,
        route: Route,
        limit: Duration,
    ) -> Result<Dialer<'a>, Failure> {
        let server = destination.location.host_port();
        let mut dialer = Dialer { destination, routes, route, server, limit };
        if destination.reach != AllowedAddresses::Any
            && !routes.is_direct(&dialer.route)
            && let Some(checked) = dialer.resolve().await?.first()
        {
            dialer.server.host = checked.ip().to_string();
        }
        Ok(dialer)
    }

    /// The route.
    pub(super) fn route(&self) -> &Route {
        &self.route
    }

    /// The server as a proxy is asked for it.
    pub(super) fn server(&self) -> &HostPort {
        &self.server
    }

    /// Connects.
    pub(super) async fn connect(
        &self,
        tls: Option<&TlsSettings>,
        offers_http2: bool,
    ) -> Result<Stream, Failure> {
        let socket = match self.routes.is_direct(&self.route) {
            true => self.connect_directly().await?,
            false => self.connect_through_proxies().await?,
        };
        let Some(tls) = tls else { return Ok(Stream::Plain(socket)) };
        let handshake = timeout(self.limit, tls.handshake(socket, offers_http2)).await;
        Ok(Stream::Private(Box::new(handshake.map_err(|_| Failure::SlowTls)??)))
    }

    async fn connect_directly(&self) -> Result<Socket, Failure> {
        let addresses = self.resolve().await?;
        let connecting = timeout(self.limit, connect(&addresses)).await;
        connecting.map_err(|_| self.timed_out())?.map(Socket::Tcp)
    }

    async fn connect_through_proxies(&self) -> Result<Socket, Failure> {
        let server = Endpoint { address: &self.server, secure: self.destination.location.secure };
        let connecting = timeout(2 * EGRESS_STEP_TIMEOUT, self.routes.connect(&self.route, server)).await;
        connecting.map_err(|_| self.timed_out())?.map_err(Failure::Proxy)
    }

    fn timed_out(&self) -> Failure {
        Failure::SlowDial(self.server.to_string())
    }

    async fn resolve(&self) -> Result<Vec<SocketAddr>, Failure> {
        timeout(self.limit, resolve(self.destination)).await.map_err(|_| self.timed_out())?
    }
}

/// The allowed addresses of a host. The checked addresses are the ones connected to: a name that resolves differently later leads
/// nowhere else.
async fn resolve(destination: &Destination) -> Result<Vec<SocketAddr>, Failure> {
    let Destination { location, reach, .. } = destination;
    let addresses = lookup(&location.host_port()).await?;
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
