//! Connects to another server, with its TLS settings.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use hyper::Uri;
use openssl::error::ErrorStack;
use openssl::ssl::SslContext;
use openssl::x509::X509;
use tokio_openssl::SslStream;

use crate::client_tls::{self, TrustedCas};
use crate::egress::Egress;
use crate::kubeconfig::{Access, IdentityPem, PresentedCredentials};
use crate::routes::Routes;
use crate::socket::Socket;
use crate::tunnel::{self, ProxyTls, Target, Way};
use crate::upstream::pool::{self, Digest, Origin, Purpose, TlsIdentity};
use crate::upstream::{Stream, verification_error};

/// The TLS context. `identity_pem` is the client certificate and its key.
fn context(access: &Access, identity_pem: Option<&IdentityPem>) -> Result<SslContext, ErrorStack> {
    let trusted = match &access.authority_pem {
        _ if access.insecure => TrustedCas::Anybody,
        Some(pem) => TrustedCas::Authorities(X509::stack_from_pem(pem)?),
        None => TrustedCas::Host,
    };
    client_tls::context(
        trusted,
        identity_pem.map(|(certificates, key)| (certificates.as_slice(), key.as_slice())),
    )
}

fn identity_digest(identity: Option<&IdentityPem>) -> Digest {
    pool::identity_digest(identity.map(|(certificate, key)| (certificate.as_slice(), key.as_slice())))
}

/// The plug-in's certificate, which replaces that of the file.
fn plugin_identity(presented: &PresentedCredentials) -> Option<&IdentityPem> {
    presented.exec.as_ref()?.identity_pem.as_ref()
}

/// Connects to one server.
pub(crate) struct Connector {
    tls: Option<SslContext>,
    offers_http2: bool,
    origin: Arc<Origin>,
}

impl Connector {
    /// The server at this address. The error says which TLS setting is invalid.
    pub(crate) fn new(
        purpose: Purpose,
        secure: bool,
        (host, port): (String, u16),
        access: &Access,
    ) -> Result<Connector, String> {
        let tls = context(access, access.identity_pem.as_ref());
        // Without TLS with the server, only a proxy may want it.
        let tls = if secure { Some(tls.map_err(|error| error.to_string())?) } else { tls.ok() };
        let private = secure.then(|| TlsIdentity {
            server_name: access.server_name.clone().unwrap_or_else(|| host.clone()),
            authority: pool::authority(access.authority_pem.as_deref(), !access.insecure),
            identity: identity_digest(access.identity_pem.as_ref()),
        });
        let egress = purpose.egress();
        let offers_http2 = match purpose {
            Purpose::Service => true,
            // As in the reference, so that requests are spread over the servers behind an address.
            Purpose::Admission | Purpose::Conversion => is_this_machine(&host),
            Purpose::Kubelet | Purpose::Extension | Purpose::ApiServer => false,
        };
        let origin = Origin { purpose, host, port, private, proxy: access.proxy.clone(), egress };
        Ok(Connector { tls, offers_http2, origin: Arc::new(origin) })
    }

    /// The server of this kubeconfig, and its URL.
    pub(crate) fn for_access(purpose: Purpose, access: &Access) -> Result<(Uri, Connector), String> {
        let server = &access.server;
        let uri: Uri = server.parse().map_err(|error| format!("{server}: {error}"))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(format!("{server}: neither http nor https")),
        };
        let Some(host) = uri.host().map(|host| host.trim_matches(['[', ']']).to_owned()) else {
            return Err(format!("{server}: no host"));
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let connector = Connector::new(purpose, secure, (host, port), access)?;
        Ok((uri, connector))
    }

    /// The pool key of a connection with these credentials, and how to make one. `address` is that of a service of the cluster, if it
    /// is one.
    pub(crate) fn prepare<'a>(
        &'a self,
        routes: &'a Routes,
        access: &'a Access,
        presented: &'a PresentedCredentials,
        address: Option<(String, u16)>,
    ) -> (Arc<Origin>, impl Future<Output = Result<Stream, String>> + use<'a>) {
        let mut origin = self.origin.clone();
        let plugin_identity = plugin_identity(presented);
        let proxy = match &origin.proxy {
            None => routes.environment.proxy(origin.private.is_some(), &origin.host, origin.port),
            Some(_) => None,
        };
        if address.is_some() || plugin_identity.is_some() || proxy.is_some() {
            let mut variant = Origin::clone(&origin);
            if let Some((host, port)) = address {
                variant.egress = Some(Egress::Cluster);
                // A proxy is asked for the name of a service, and finds its address itself.
                if proxy.is_none() {
                    (variant.host, variant.port) = (host, port);
                }
            }
            variant.proxy = variant.proxy.or_else(|| proxy.cloned());
            if let (Some(private), Some(_)) = (&mut variant.private, plugin_identity) {
                private.identity = identity_digest(plugin_identity);
            }
            origin = Arc::new(variant);
        }
        (origin.clone(), self.connect(routes, access, plugin_identity, origin))
    }

    async fn connect(
        &self,
        routes: &Routes,
        access: &Access,
        plugin_identity: Option<&IdentityPem>,
        origin: Arc<Origin>,
    ) -> Result<Stream, String> {
        let (host, port) = (origin.host.as_str(), origin.port);
        let plugin_context = plugin_identity.map(|identity| context(access, Some(identity))).transpose();
        let plugin_context = plugin_context.map_err(|error| error.to_string())?;
        let context = plugin_context.as_ref().or(self.tls.as_ref());
        let way = Way {
            proxy: origin.proxy.as_ref(),
            tls: context.map(|context| ProxyTls {
                context,
                server_name: access.server_name.as_deref(),
                verifies: !access.insecure,
            }),
            dialer: origin.egress.and_then(|egress| routes.egress.dialer(egress)),
        };
        let target = Target { host, port, secure: origin.private.is_some() };
        let socket = tunnel::connect(target, way).await?;
        let (Some(context), Some(private)) = (context, &origin.private) else {
            return Ok(Stream::Plain(socket));
        };
        let stream =
            handshake(context, &private.server_name, !access.insecure, self.offers_http2, socket).await?;
        Ok(Stream::Private(Box::new(stream)))
    }
}

/// Whether a host is this machine by its name.
fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

async fn handshake(
    context: &SslContext,
    name: &str,
    verifies: bool,
    offers_http2: bool,
    socket: Socket,
) -> Result<SslStream<Socket>, String> {
    let ssl = client_tls::client(context, name, verifies);
    let mut ssl = ssl.map_err(|error| format!("tls: {error}"))?;
    if offers_http2 {
        client_tls::offer_http2(&mut ssl).map_err(|error| format!("tls: {error}"))?;
    }
    let mut stream = SslStream::new(ssl, socket).map_err(|error| format!("tls: {error}"))?;
    match Pin::new(&mut stream).connect().await {
        Ok(()) => Ok(stream),
        Err(error) => Err(verification_error(stream.ssl(), name, &error)),
    }
}
