//! How another server is reached: the connection and its TLS settings.

use std::pin::Pin;
use std::sync::Arc;

use openssl::error::ErrorStack;
use openssl::ssl::SslContext;
use openssl::x509::X509;
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

use super::tunnel;
use crate::kubeconfig::{Access, IdentityPem, PresentedCredentials};
use crate::upstream::client_tls::{self, TrustedCas};
use crate::upstream::pool::{self, Digest, Origin, Purpose, TlsIdentity};
use crate::upstream::{Stream, unproven};

/// The TLS context. `identity_pem` is the client certificate and its key.
fn context(access: &Access, identity_pem: Option<&IdentityPem>) -> Result<SslContext, ErrorStack> {
    let believed = match &access.authority_pem {
        _ if access.insecure => TrustedCas::Anybody,
        Some(pem) => TrustedCas::Authorities(X509::stack_from_pem(pem)?),
        None => TrustedCas::Host,
    };
    client_tls::context(
        believed,
        identity_pem.map(|(certificates, key)| (certificates.as_slice(), key.as_slice())),
    )
}

fn shown(identity: Option<&IdentityPem>) -> Digest {
    pool::shown(identity.map(|(certificate, key)| (certificate.as_slice(), key.as_slice())))
}

/// The plug-in's certificate, which replaces that of the file.
fn made(shown: &PresentedCredentials) -> Option<&IdentityPem> {
    shown.made.as_ref()?.identity_pem.as_ref()
}

/// How one server is reached.
pub(super) struct Connector {
    tls: Option<SslContext>,
    origin: Arc<Origin>,
}

impl Connector {
    /// The server at this address. The error says which TLS setting is invalid.
    pub(super) fn new(
        purpose: Purpose,
        secure: bool,
        (host, port): (String, u16),
        access: &Access,
    ) -> Result<Connector, String> {
        let tls = secure.then(|| context(access, access.identity_pem.as_ref())).transpose();
        let tls = tls.map_err(|error| error.to_string())?;
        let private = secure.then(|| TlsIdentity {
            server_name: access.server_name.clone().unwrap_or_else(|| host.clone()),
            authority: pool::authority(access.authority_pem.as_deref(), !access.insecure),
            shown: shown(access.identity_pem.as_ref()),
        });
        let origin = Origin { purpose, host, port, private, proxy: access.proxy.clone() };
        Ok(Connector { tls, origin: Arc::new(origin) })
    }

    /// The pool key of a connection with these credentials, and how to make one. `at` is the address to connect to, if it
    /// differs.
    pub(super) fn to<'a>(
        &'a self,
        access: &'a Access,
        shown: &'a PresentedCredentials,
        at: Option<(String, u16)>,
    ) -> (Arc<Origin>, impl Future<Output = Result<Stream, String>> + use<'a>) {
        let mut origin = self.origin.clone();
        let made = made(shown);
        if at.is_some() || made.is_some() {
            let mut other = Origin::clone(&origin);
            if let Some((host, port)) = at {
                (other.host, other.port) = (host, port);
            }
            if let (Some(private), Some(_)) = (&mut other.private, made) {
                private.shown = self::shown(made);
            }
            origin = Arc::new(other);
        }
        (origin.clone(), self.connect(access, made, origin))
    }

    async fn connect(
        &self,
        access: &Access,
        made: Option<&IdentityPem>,
        to: Arc<Origin>,
    ) -> Result<Stream, String> {
        let (host, port) = (to.host.as_str(), to.port);
        let tcp = tunnel::connect(host, port, to.proxy.as_ref()).await?;
        let (Some(tls), Some(private)) = (&self.tls, &to.private) else { return Ok(Stream::Plain(tcp)) };
        let own = made.map(|identity| context(access, Some(identity))).transpose();
        let own = own.map_err(|error| error.to_string())?;
        let context = own.as_ref().unwrap_or(tls);
        let stream = handshake(context, &private.server_name, !access.insecure, tcp).await?;
        Ok(Stream::Private(Box::new(stream)))
    }
}

async fn handshake(
    context: &SslContext,
    name: &str,
    verifies: bool,
    tcp: TcpStream,
) -> Result<SslStream<TcpStream>, String> {
    let ssl = client_tls::client(context, name, verifies);
    let ssl = ssl.map_err(|error| format!("tls: {error}"))?;
    let mut stream = SslStream::new(ssl, tcp).map_err(|error| format!("tls: {error}"))?;
    match Pin::new(&mut stream).connect().await {
        Ok(()) => Ok(stream),
        Err(error) => Err(unproven(stream.ssl(), name, &error)),
    }
}
