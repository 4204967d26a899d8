//! Who is at the other end of a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use openssl::ssl::SslRef;

/// The other end of a connection. Every request has one in its extensions, over HTTP/1.1 and HTTP/2 alike.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Where it is, if the system could say.
    pub address: Option<SocketAddr>,
    /// What it showed. The TLS handshake proves that it has the key of the first certificate and nothing more: who
    /// issued it and whether it is still good is for the authenticator to say, so that a bad certificate is answered
    /// with 401 and not with a broken connection.
    pub certificates: PeerCertificates,
}

/// Certificates as DER, the client's own first; empty if it showed none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerCertificates(pub Arc<[Vec<u8>]>);

impl PeerCertificates {
    /// Reads what the peer showed in a handshake that is done.
    pub(super) fn of(ssl: &SslRef) -> PeerCertificates {
        let Some(own) = ssl.peer_certificate() else { return PeerCertificates::default() };
        // On the server's side OpenSSL leaves the client's own certificate out of the chain.
        let rest = ssl.peer_cert_chain().into_iter().flatten();
        let certificates = std::iter::once(own.as_ref()).chain(rest);
        PeerCertificates(certificates.filter_map(|certificate| certificate.to_der().ok()).collect())
    }
}
