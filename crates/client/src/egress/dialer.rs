//! Connections through a proxy.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::Uri;
use openssl::ssl::SslContext;
use openssl::x509::X509;
use pilothouse_types::clock::Clock;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_openssl::SslStream;

use super::configuration::{Connection, TlsPaths};
use super::{http_connect, konnectivity};
use crate::client_tls::{self, TrustedCas};
use crate::direct::dial_tcp;
use crate::failure::describe;
use crate::limits::EGRESS_STEP_TIMEOUT;
use crate::socket::{BoxedStream, Socket};
use crate::verification_error::verification_error;

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
    HttpOverTcp { host: String, port: u16, tls: Option<SslContext> },
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

    pub(super) fn observe(&self, observer: &Arc<dyn DialObserver>) {
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

    fn tell(&self, event: impl FnOnce(&dyn DialObserver, ProxyKind)) {
        if let Some(observer) = self.observer.get() {
            event(&**observer, self.kind());
        }
    }

    /// Connects to this host and port. Errors have the reference's texts.
    pub async fn dial(&self, address: &str) -> Result<Socket, String> {
        self.tell(|observer, kind| observer.started(kind));
        let began = self.clock.moment();
        let failed = |stage: Stage| {
            move |error: String| {
                self.tell(|observer, kind| observer.failed(kind, stage));
                error
            }
        };
        let connecting = timeout(EGRESS_STEP_TIMEOUT, self.connect());
        let connection =
            connecting.await.unwrap_or_else(|_| Err(self.timed_out())).map_err(failed(Stage::Connect))?;
        let asking = timeout(EGRESS_STEP_TIMEOUT, connection.ask(address));
        let stream = match asking.await {
            Ok(stream) => stream,
            Err(_) => Err("dial timeout, backstop".to_owned()),
        };
        let stream = stream.map_err(failed(Stage::Proxy))?;
        self.tell(|observer, kind| observer.connected(kind, self.clock.elapsed(began)));
        Ok(Socket::Tunnel(stream))
    }

    fn timed_out(&self) -> String {
        match &self.proxy {
            TunnelProxy::HttpOverTcp { host, port, .. } => format!("dial tcp {host}:{port}: i/o timeout"),
            TunnelProxy::HttpOverUnix(path) | TunnelProxy::GrpcOverUnix(path) => {
                format!("dial unix {}: i/o timeout", path.display())
            }
        }
    }

    async fn connect(&self) -> Result<ProxyConnection, String> {
        match &self.proxy {
            TunnelProxy::HttpOverTcp { host, port, tls } => {
                let tcp = dial_tcp(host, *port).await.map_err(|failure| failure.to_string())?;
                let address = format!("{host}:{port}");
                let Some(context) = tls else {
                    return Ok(ProxyConnection::Http { stream: Box::new(tcp), address });
                };
                let ssl = client_tls::client(context, host, true).map_err(|error| format!("tls: {error}"))?;
                let mut stream = SslStream::new(ssl, tcp).map_err(|error| format!("tls: {error}"))?;
                if let Err(error) = Pin::new(&mut stream).connect().await {
                    return Err(verification_error(stream.ssl(), host, &error));
                }
                Ok(ProxyConnection::Http { stream: Box::new(stream), address })
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
    async fn ask(self, target: &str) -> Result<BoxedStream, String> {
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
    let context = tls.map(tls_context).transpose()?;
    let invalid = |reason: &dyn std::fmt::Display| format!("invalid proxy server url {url:?}: {reason}");
    let uri: Uri = url.parse().map_err(|error| invalid(&error))?;
    let authority = uri.authority().ok_or_else(|| invalid(&"it has no host"))?;
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    let port = authority.port_u16().ok_or_else(|| invalid(&"missing port in address"))?;
    Ok(TunnelProxy::HttpOverTcp { host, port, tls: context })
}

fn tls_context(paths: &TlsPaths) -> Result<SslContext, String> {
    let TlsPaths { authority, certificate, key } = paths;
    let unpaired = |error: &dyn std::fmt::Display| {
        format!("failed to read key pair {} & {}, got {error}", certificate.display(), key.display())
    };
    let read = |path: &Path| fs::read(path).map_err(|error| unpaired(&error));
    let identity = (read(certificate)?, read(key)?);
    let trusted = match authority {
        None => TrustedCas::Host,
        Some(path) => {
            let unread = |error| format!("failed to read cert file {}, got {error}", path.display());
            let pem = fs::read(path).map_err(unread)?;
            let authorities = X509::stack_from_pem(&pem).unwrap_or_default();
            if authorities.is_empty() {
                return Err("failed to append CA cert to the cert pool".to_owned());
            }
            TrustedCas::Authorities(authorities)
        }
    };
    client_tls::context(trusted, Some((&identity.0, &identity.1))).map_err(|error| unpaired(&error))
}
