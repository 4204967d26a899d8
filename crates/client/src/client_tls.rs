//! TLS with the peers of outgoing connections. They speak HTTP/1.1, unless HTTP/2 is offered for one.

use std::hash::{Hash, Hasher};
use std::pin::Pin;

use openssl::error::ErrorStack;
use openssl::sha::Sha256;
use openssl::ssl::{Error as SslError, SslContext};
use pilothouse_client_tls::Protocol;
pub use pilothouse_client_tls::{TrustedCas, client, offer_http2, speaks_http2};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_openssl::SslStream;

use crate::verification_error::verification_error;

/// A digest of certificates and keys, so that nobody holds those themselves.
pub type Digest = [u8; 32];

/// Makes the context of connections. `identity` is the client certificate with its intermediates, and its key, as PEM.
pub fn context(trusted: TrustedCas, identity: Option<(&[u8], &[u8])>) -> Result<SslContext, ErrorStack> {
    pilothouse_client_tls::context(trusted, identity, Protocol::Http1)
}

/// What TLS with a peer proves, to both.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TlsIdentity {
    /// The name that the certificate must contain.
    pub server_name: String,
    /// The trusted CAs: see [`authority`].
    pub authority: Digest,
    /// The client certificate and key: see [`identity_digest`].
    pub identity: Digest,
}

fn digest(parts: &[&[u8]]) -> Digest {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finish()
}

/// The digest of trusted CAs: these in PEM, those of the system (`None`), or none at all.
pub fn authority(pem: Option<&[u8]>, verifies: bool) -> Digest {
    match (verifies, pem) {
        (false, _) => digest(&[b"nobody"]),
        (true, None) => digest(&[b"the system"]),
        (true, Some(pem)) => digest(&[b"these", pem]),
    }
}

/// The digest of a certificate and its key.
pub fn identity_digest(identity: Option<(&[u8], &[u8])>) -> Digest {
    identity.map_or_else(|| digest(&[]), |(certificate, key)| digest(&[certificate, key]))
}

/// The settings of TLS with one peer. Cheap to clone. Equal if they prove the same.
#[derive(Clone)]
pub struct TlsPeer {
    /// The trusted CAs and the client certificate.
    pub context: SslContext,
    /// Whether the peer is verified.
    pub verifies: bool,
    /// What the handshake proves.
    pub identity: TlsIdentity,
}

impl PartialEq for TlsPeer {
    fn eq(&self, other: &TlsPeer) -> bool {
        self.identity == other.identity
    }
}

impl Eq for TlsPeer {}

impl Hash for TlsPeer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity.hash(state);
    }
}

/// Why there is no TLS.
pub enum HandshakeError<S> {
    /// The settings cannot be used.
    Settings(ErrorStack),
    /// The handshake failed on this stream.
    Handshake(Box<SslStream<S>>, SslError),
}

impl<S> HandshakeError<S> {
    /// The reference's text about a peer that should have this name.
    pub fn describe(&self, name: &str) -> String {
        match self {
            HandshakeError::Settings(error) => format!("tls: {error}"),
            HandshakeError::Handshake(stream, error) => verification_error(stream.ssl(), name, error),
        }
    }
}

impl TlsPeer {
    /// Performs the handshake, in which the peer may choose HTTP/2 if that is offered.
    pub async fn handshake<S>(&self, io: S, offers_http2: bool) -> Result<SslStream<S>, HandshakeError<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let settings = HandshakeError::Settings;
        let mut ssl = client(&self.context, &self.identity.server_name, self.verifies).map_err(settings)?;
        if offers_http2 {
            offer_http2(&mut ssl).map_err(HandshakeError::Settings)?;
        }
        let mut stream = SslStream::new(ssl, io).map_err(HandshakeError::Settings)?;
        match Pin::new(&mut stream).connect().await {
            Ok(()) => Ok(stream),
            Err(error) => Err(HandshakeError::Handshake(Box::new(stream), error)),
        }
    }

    /// [`TlsPeer::handshake`] with a proxy or a server whose error is passed on as it is.
    pub async fn connect<S>(&self, io: S, offers_http2: bool) -> Result<SslStream<S>, String>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let handshake = self.handshake(io, offers_http2).await;
        handshake.map_err(|error| error.describe(&self.identity.server_name))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use openssl::ssl::{SslAcceptor, SslMethod};

    use super::*;

    /// How HTTP uploads to a slow reader: while a write is pending, data is appended, and the buffer may move.
    #[test]
    fn tls_write_can_be_retried_from_a_longer_buffer() {
        const PIECE: usize = 64 << 10;
        let (near, far) = UnixStream::pair().unwrap();
        let (start, started) = mpsc::channel::<()>();
        let reader = std::thread::spawn(move || {
            let (certificate, key) = crate::testing::self_signed("reader");
            let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).unwrap();
            acceptor.set_certificate(&certificate).unwrap();
            acceptor.set_private_key(&key).unwrap();
            let mut stream = acceptor.build().accept(far).unwrap();
            started.recv().unwrap();
            let mut read = Vec::new();
            let _ended_without_goodbye = stream.read_to_end(&mut read);
            read.len()
        });
        let context = context(TrustedCas::Anybody, None).unwrap();
        let mut stream = client(&context, "reader", false).unwrap().connect(near).unwrap();
        stream.get_ref().set_nonblocking(true).unwrap();
        let mut written = 0;
        let error = loop {
            match stream.write(&[0; PIECE]) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        start.send(()).unwrap();
        stream.get_ref().set_nonblocking(false).unwrap();
        written += stream.write(&[0; 2 * PIECE]).unwrap();
        drop(stream);
        assert_eq!(reader.join().unwrap(), written);
    }
}
