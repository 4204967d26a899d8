//! Connects to another server, with its TLS settings.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::Uri;
use openssl::error::ErrorStack;
use openssl::ssl::SslContext;
use openssl::x509::X509;
use pilothouse_types::host_port::HostPort;

use crate::client_tls::{self, Digest, TlsIdentity, TlsPeer, TrustedCas};
use crate::egress::Egress;
use crate::kubeconfig::proxy::ProxyProtocol;
use crate::kubeconfig::{Access, IdentityPem, PresentedCredentials, Proxy};
use crate::routes::{Endpoint, ProxyHop, Route, Routes};
use crate::upstream::Stream;
use crate::upstream::pool::{Origin, Purpose};

/// The TLS context. `identity_pem` is the client certificate and its key.
pub(super) fn context(access: &Access, identity_pem: Option<&IdentityPem>) -> Result<SslContext, ErrorStack> {
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

/// What TLS with this server proves. `identity_pem` is the client certificate and its key.
fn tls_identity(access: &Access, host: &str, identity_pem: Option<&IdentityPem>) -> TlsIdentity {
    TlsIdentity {
        server_name: access.server_name.clone().unwrap_or_else(|| host.to_owned()),
        authority: client_tls::authority(access.authority_pem.as_deref(), !access.insecure),
        identity: identity_digest(identity_pem),
    }
}

fn identity_digest(identity: Option<&IdentityPem>) -> Digest {
    client_tls::identity_digest(identity.map(|(certificate, key)| (certificate.as_slice(), key.as_slice())))
}

/// The plug-in's certificate, which replaces that of the file.
fn plugin_identity(presented: &PresentedCredentials) -> Option<&IdentityPem> {
    presented.exec.as_ref()?.identity_pem.as_ref()
}

/// Connects to one server.
pub(crate) struct Connector {
    /// The context for the certificate of the file; `None` without TLS.
    context: Option<SslContext>,
    origin: Arc<Origin>,
}

impl Connector {
    /// The server at this address. The error says which TLS setting is invalid.
    pub(crate) fn new(
        purpose: Purpose,
        secure: bool,
        server: HostPort,
        access: &Access,
    ) -> Result<Connector, String> {
        Connector::with_context(purpose, secure, server, access, || {
            context(access, access.identity_pem.as_ref())
        })
    }

    /// The same with TLS contexts of the caller.
    fn with_context(
        purpose: Purpose,
        secure: bool,
        server: HostPort,
        access: &Access,
        context: impl Fn() -> Result<SslContext, ErrorStack>,
    ) -> Result<Connector, String> {
        let tls = |host: &str| -> Result<TlsPeer, String> {
            let context = context().map_err(|error| error.to_string())?;
            let identity = tls_identity(access, host, access.identity_pem.as_ref());
            Ok(TlsPeer { context, verifies: !access.insecure, identity })
        };
        let peer = if secure { Some(tls(&server.host)?) } else { None };
        let (context, private) = peer.map(|peer| (peer.context, peer.identity)).unzip();
        // As in the reference, the settings of a kubeconfig count for its proxy as well.
        let hop = |proxy: &Proxy| -> Result<ProxyHop, String> {
            let tls = (proxy.protocol == ProxyProtocol::Https).then(|| tls(&proxy.address.host));
            Ok(ProxyHop { proxy: proxy.clone(), tls: tls.transpose()? })
        };
        let proxy = access.proxy.as_ref().map(hop).transpose()?;
        let may_choose_http2 = match purpose {
            Purpose::Service | Purpose::ImagePolicy | Purpose::OpenId => true,
            // As in the reference, so that requests are spread over the servers behind an address.
            Purpose::Admission | Purpose::Conversion => is_this_machine(&server.host),
            Purpose::Kubelet | Purpose::Extension | Purpose::ApiServer => false,
        };
        let route = Route { proxy, egress: purpose.egress() };
        let offers_http2 = may_choose_http2 && private.is_some();
        let origin = Arc::new(Origin { purpose, server, private, route, offers_http2 });
        Ok(Connector { context, origin })
    }

    /// The server of this kubeconfig, and its URL.
    pub(crate) fn for_access(purpose: Purpose, access: &Access) -> Result<(Uri, Connector), String> {
        Connector::for_access_with(purpose, access, || context(access, access.identity_pem.as_ref()))
    }

    /// [`Connector::for_access`] with a context of the caller.
    pub(super) fn for_access_with(
        purpose: Purpose,
        access: &Access,
        context: impl Fn() -> Result<SslContext, ErrorStack>,
    ) -> Result<(Uri, Connector), String> {
        let server = &access.server;
        let uri: Uri = server.parse().map_err(|error| format!("{server}: {error}"))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(format!("{server}: neither http nor https")),
        };
        let Some(host) = uri.host() else { return Err(format!("{server}: no host")) };
        let address = HostPort::new(host, uri.port_u16().unwrap_or(if secure { 443 } else { 80 }));
        let connector = Connector::with_context(purpose, secure, address, access, context)?;
        Ok((uri, connector))
    }

    /// How to connect with these credentials. `address` is that of a service of the cluster, if it
    /// is one.
    pub(crate) fn prepare<'a>(
        &'a self,
        routes: &'a Routes,
        access: &'a Access,
        presented: &'a PresentedCredentials,
        address: Option<HostPort>,
    ) -> Dial<'a> {
        let mut origin = self.origin.clone();
        let plugin_identity = plugin_identity(presented);
        let proxy = match &origin.route.proxy {
            None => routes.environment.proxy(origin.private.is_some(), &origin.server),
            Some(_) => None,
        };
        if address.is_some() || plugin_identity.is_some() || proxy.is_some() {
            let variant = Arc::make_mut(&mut origin);
            if let Some(address) = address {
                variant.route.egress = Some(Egress::Cluster);
                // A proxy is asked for the name of a service, and finds its address itself.
                if proxy.is_none() {
                    variant.server = address;
                }
            }
            if let Some(proxy) = proxy {
                variant.route.proxy = Some(proxy.clone());
            }
            if let (Some(private), Some(_)) = (&mut variant.private, plugin_identity) {
                private.identity = identity_digest(plugin_identity);
            }
        }
        Dial { connector: self, routes, access, plugin_identity, origin }
    }
}

/// How to connect to a server with some credentials.
pub(crate) struct Dial<'a> {
    connector: &'a Connector,
    routes: &'a Routes,
    access: &'a Access,
    plugin_identity: Option<&'a IdentityPem>,
    /// The key of such connections in the pool.
    pub(crate) origin: Arc<Origin>,
}

impl Dial<'_> {
    /// Makes a connection.
    pub(crate) async fn connect(&self) -> Result<Stream, String> {
        let Dial { connector, routes, access, plugin_identity, origin } = self;
        let server = Endpoint { address: &origin.server, secure: origin.private.is_some() };
        let socket = routes.connect(&origin.route, server).await?;
        let (Some(file_context), Some(identity)) = (&connector.context, &origin.private) else {
            return Ok(Stream::Plain(socket));
        };
        let plugin_context = plugin_identity.map(|identity| context(access, Some(identity))).transpose();
        let plugin_context = plugin_context.map_err(|error| error.to_string())?;
        let context = plugin_context.unwrap_or_else(|| file_context.clone());
        let peer = TlsPeer { context, verifies: !access.insecure, identity: identity.clone() };
        Ok(Stream::Private(Box::new(peer.connect(socket, origin.offers_http2).await?)))
    }
}

/// Whether a host is this machine by its name.
fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
