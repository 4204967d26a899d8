//! The client of a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use openssl::ssl::SslRef;

use super::connections::ConnectionState;

/// The client of a connection. Every request has one in its extensions, over HTTP/1.1 and HTTP/2 alike.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Its address, if the system knows it.
    pub address: Option<SocketAddr>,
    /// The certificates that it presented. The TLS handshake only proves that the peer has the key of the first one. The
    /// authenticator checks issuer and validity, so that a bad certificate gets a 401 and not a broken connection.
    pub certificates: PeerCertificates,
    /// The connection itself, in the table of all.
    pub connection: Option<ConnectionState>,
}

/// Certificates as DER, the client's own first; empty if it presented none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerCertificates(pub Arc<[Vec<u8>]>);

impl PeerCertificates {
    /// Reads the peer's certificates after a handshake.
    pub(super) fn from_ssl(ssl: &SslRef) -> PeerCertificates {
        let Some(own) = ssl.peer_certificate() else { return PeerCertificates::default() };
        // On the server side, OpenSSL leaves the client's own certificate out of the chain.
        let rest = ssl.peer_cert_chain().into_iter().flatten();
        let certificates = std::iter::once(own.as_ref()).chain(rest);
        PeerCertificates(certificates.filter_map(|certificate| certificate.to_der().ok()).collect())
    }
}
