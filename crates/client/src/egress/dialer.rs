//! Connections through a proxy.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::Uri;
use openssl::x509::X509;
use pilothouse_types::clock::Clock;
use pilothouse_types::host_port::HostPort;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::configuration::{Connection, TlsPaths};
use super::{http_connect, konnectivity};
use crate::client_tls::{self, TlsIdentity, TlsPeer, TrustedCas};
use crate::direct::dial_tcp;
use crate::failure::describe;
use crate::limits::EGRESS_STEP_TIMEOUT;
use crate::socket::{BoxedStream, Socket};

/// The Host header of CONNECT requests; the reference's.
const CONNECT_HOST: &str = "127.0.0.1";

/// The sort of a proxy, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyKind {
    /// `http_connect` or `grpc`.
    pub protocol: &'static str,
    /// `tcp` or `uds`.
    pub transport: &'static str,
}

/// How far a failed connection came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is no connection to the proxy.
    Connect,
    /// The proxy does not connect.
    Proxy,
}

/// Is told of connections through proxies.
pub trait DialObserver: Send + Sync {
    /// One is begun.
    fn started(&self, kind: ProxyKind);
    /// One is made.
    fn connected(&self, kind: ProxyKind, elapsed: Duration);
    /// One has failed.
    fn failed(&self, kind: ProxyKind, stage: Stage);
}

/// Connects through one proxy.
pub struct TunnelDialer {
    proxy: TunnelProxy,
    clock: Clock,
    observer: OnceLock<Arc<dyn DialObserver>>,
}

enum TunnelProxy {
    HttpOverTcp { address: HostPort, tls: Option<TlsPeer> },
    HttpOverUnix(PathBuf),
    GrpcOverUnix(PathBuf),
}

/// A connection to a proxy that was not asked for anything yet.
enum ProxyConnection {
    Http { stream: BoxedStream, address: String },
    Grpc(konnectivity::Tunnel),
}

impl TunnelDialer {
    /// A dialer for this configuration; `None` if it needs no proxy. Certificates are read now.
    pub(super) fn new(connection: Connection, clock: &Clock) -> Result<Option<TunnelDialer>, String> {
        let proxy = match connection {
            Connection::Direct => return Ok(None),
            Connection::HttpOverUnix(path) => TunnelProxy::HttpOverUnix(path),
            Connection::GrpcOverUnix(path) => TunnelProxy::GrpcOverUnix(path),
            Connection::HttpOverTcp(url, tls) => http_over_tcp(&url, tls.as_ref())?,
        };
        Ok(Some(TunnelDialer { proxy, clock: clock.clone(), observer: OnceLock::new() }))
    }

    pub(super) fn set_observer(&self, observer: &Arc<dyn DialObserver>) {
        // Another one is there already.
        let _ignored = self.observer.set(observer.clone());
    }

    fn kind(&self) -> ProxyKind {
        let (protocol, transport) = match self.proxy {
            TunnelProxy::HttpOverTcp { .. } => ("http_connect", "tcp"),
            TunnelProxy::HttpOverUnix(_) => ("http_connect", "uds"),
            TunnelProxy::GrpcOverUnix(_) => ("grpc", "uds"),
        };
        ProxyKind { protocol, transport }
    }

    fn notify(&self, event: impl FnOnce(&dyn DialObserver, ProxyKind)) {
        if let Some(observer) = self.observer.get() {
            event(&**observer, self.kind());
        }
    }

    /// Connects to this host and port. Errors have the reference's texts.
    pub async fn dial(&self, server: &HostPort) -> Result<Socket, String> {
        self.notify(|observer, kind| observer.started(kind));
        let began = self.clock.moment();
        let failed = |stage: Stage| {
            move |error: String| {
                self.notify(|observer, kind| observer.failed(kind, stage));
                error
            }
        };
        let connecting = timeout(EGRESS_STEP_TIMEOUT, self.connect());
        let connection =
            connecting.await.unwrap_or_else(|_| Err(self.timed_out())).map_err(failed(Stage::Connect))?;
        let server = server.to_string();
        let opening = timeout(EGRESS_STEP_TIMEOUT, connection.open_tunnel(&server));
        let stream = match opening.await {
            Ok(stream) => stream,
            Err(_) => Err("dial timeout, backstop".to_owned()),
        };
        let stream = stream.map_err(failed(Stage::Proxy))?;
        self.notify(|observer, kind| observer.connected(kind, self.clock.elapsed(began)));
        Ok(Socket::Tunnel(stream))
    }

    fn timed_out(&self) -> String {
        match &self.proxy {
            TunnelProxy::HttpOverTcp { address, .. } => format!("dial tcp {address}: i/o timeout"),
            TunnelProxy::HttpOverUnix(path) | TunnelProxy::GrpcOverUnix(path) => {
                format!("dial unix {}: i/o timeout", path.display())
            }
        }
    }

    async fn connect(&self) -> Result<ProxyConnection, String> {
        match &self.proxy {
            TunnelProxy::HttpOverTcp { address, tls } => {
                let tcp = dial_tcp(address).await.map_err(|failure| failure.to_string())?;
                let stream: BoxedStream = match tls {
                    None => Box::new(tcp),
                    Some(tls) => Box::new(tls.connect(tcp, false).await?),
                };
                Ok(ProxyConnection::Http { stream, address: address.to_string() })
            }
            TunnelProxy::HttpOverUnix(path) => {
                let stream = dial_unix(path).await?;
                Ok(ProxyConnection::Http { stream: Box::new(stream), address: path.display().to_string() })
            }
            TunnelProxy::GrpcOverUnix(path) => {
                konnectivity::Tunnel::open(dial_unix(path).await?).await.map(ProxyConnection::Grpc)
            }
        }
    }
}

impl ProxyConnection {
    /// Asks the proxy for a connection to this host and port.
    async fn open_tunnel(self, target: &str) -> Result<BoxedStream, String> {
        let (mut stream, address) = match self {
            ProxyConnection::Grpc(tunnel) => return Ok(Box::new(tunnel.dial(target).await?)),
            ProxyConnection::Http { stream, address } => (stream, address),
        };
        let request = http_connect::ConnectRequest { target, host: CONNECT_HOST, credentials: None };
        let unread = |reason: &dyn std::fmt::Display| {
            format!("reading HTTP response from CONNECT to {target} via proxy {address} failed: {reason}")
        };
        let line = match http_connect::request(&mut stream, request).await {
            Ok(line) => line,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(unread(&"unexpected EOF"));
            }
            Err(error) => return Err(unread(&error)),
        };
        match http_connect::status(&line) {
            Some((200, _)) => Ok(stream),
            Some((code, status)) => {
                Err(format!("proxy error from {address} while dialing {target}, code {code}: {status}"))
            }
            None => Err(unread(&format_args!("malformed HTTP response {line:?}"))),
        }
    }
}

async fn dial_unix(path: &Path) -> Result<UnixStream, String> {
    UnixStream::connect(path)
        .await
        .map_err(|error| format!("dial unix {}: connect: {}", path.display(), describe(&error)))
}

fn http_over_tcp(url: &str, tls: Option<&TlsPaths>) -> Result<TunnelProxy, String> {
    let invalid = |reason: &dyn std::fmt::Display| format!("invalid proxy server url {url:?}: {reason}");
    let uri: Uri = url.parse().map_err(|error| invalid(&error))?;
    let authority = uri.authority().ok_or_else(|| invalid(&"it has no host"))?;
    let port = authority.port_u16().ok_or_else(|| invalid(&"missing port in address"))?;
    let address = HostPort::new(authority.host(), port);
    let tls = tls.map(|paths| tls_peer(paths, &address.host)).transpose()?;
    Ok(TunnelProxy::HttpOverTcp { address, tls })
}

/// TLS with the proxy on this host.
fn tls_peer(paths: &TlsPaths, host: &str) -> Result<TlsPeer, String> {
    let TlsPaths { authority, certificate, key } = paths;
    let unpaired = |error: &dyn std::fmt::Display| {
        format!("failed to read key pair {} & {}, got {error}", certificate.display(), key.display())
    };
    let read = |path: &Path| fs::read(path).map_err(|error| unpaired(&error));
    let identity = (read(certificate)?, read(key)?);
    let (trusted, authority) = match authority {
        None => (TrustedCas::Host, client_tls::authority(None, true)),
        Some(path) => {
            let unread = |error| format!("failed to read cert file {}, got {error}", path.display());
            let pem = fs::read(path).map_err(unread)?;
            let authorities = X509::stack_from_pem(&pem).unwrap_or_default();
            if authorities.is_empty() {
                return Err("failed to append CA cert to the cert pool".to_owned());
            }
            (TrustedCas::Authorities(authorities), client_tls::authority(Some(&pem), true))
        }
    };
    let pair = Some((identity.0.as_slice(), identity.1.as_slice()));
    let context = client_tls::context(trusted, pair).map_err(|error| unpaired(&error))?;
    let identity = client_tls::identity_digest(pair);
    let identity = TlsIdentity { server_name: host.to_owned(), authority, identity };
    Ok(TlsPeer { context, verifies: true, identity })
}
