//! TLS to kubelets, extension API servers and others: trusted CAs and client certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use openssl::error::ErrorStack;
use openssl::ssl::SslContext;
use openssl::x509::X509;
use openssl::x509::X509VerifyResult;
use pilothouse_api::connect::{Destination, ServerVerification, Trust};
use pilothouse_types::bounded::BoundedCache;
use pilothouse_types::lock::Lock;
use tokio_openssl::SslStream;

use crate::bounded_read;
use crate::client_tls::{self, Digest, HandshakeError, TlsIdentity, TlsPeer, TrustedCas, context};
use crate::failure::Failure;
use crate::limits::{EXTENSION_TLS_CONTEXTS, PKI_FILE_BYTES};
use crate::socket::Socket;
use crate::verification_error::verification_error;

/// The TLS files for connections to kubelets.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// The CA bundle; without it kubelets are not verified.
    pub authority: Option<PathBuf>,
    /// The client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A certificate with its intermediates, and its key, both PEM.
pub type CertificateAndKey = (Vec<u8>, Vec<u8>);

/// The error for files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    /// A file has invalid contents.
    #[error("{0}: {1}")]
    Content(PathBuf, ErrorStack),
    /// OpenSSL refused the settings.
    #[error("cannot set up TLS towards kubelets: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// The TLS settings for one destination.
pub(super) struct TlsSettings {
    pub(super) peer: TlsPeer,
    /// Whether it is an extension API server.
    is_extension: bool,
}

/// One context per way of verification.
pub(super) struct Contexts {
    /// A std lock: it is held for one lookup.
    kubelets: Lock<Kubelets>,
    unverified: SslContext,
    extensions: Lock<Extensions>,
}

/// The TLS settings for kubelets.
#[derive(Clone)]
struct Kubelets {
    verified: SslContext,
    /// Whether kubelets are verified.
    verifies: bool,
    unverified: SslContext,
    authority: Digest,
    identity: Digest,
}

impl Kubelets {
    fn read(files: &TlsFiles) -> Result<Kubelets, TlsError> {
        let authority = match &files.authority {
            Some(path) => Some((path, read(path)?)),
            None => None,
        };
        let identity = match &files.identity {
            Some((certificate, key)) => Some((certificate, (read(certificate)?, read(key)?))),
            None => None,
        };
        let make_context = |authority: Option<&(&PathBuf, Vec<u8>)>| -> Result<SslContext, TlsError> {
            let trusted = match authority {
                None => TrustedCas::Anybody,
                Some((path, pem)) => {
                    let content_error = |error| TlsError::Content((*path).clone(), error);
                    TrustedCas::Authorities(X509::stack_from_pem(pem).map_err(content_error)?)
                }
            };
            let Some((path, identity)) = &identity else { return Ok(context(trusted, None)?) };
            context(trusted, Some(as_slices(identity)))
                .map_err(|error| TlsError::Content((*path).clone(), error))
        };
        let pem = authority.as_ref().map(|(_, pem)| pem.as_slice());
        Ok(Kubelets {
            verified: make_context(authority.as_ref())?,
            verifies: authority.is_some(),
            unverified: make_context(None)?,
            authority: client_tls::authority(pem, pem.is_some()),
            identity: identity_digest(identity.as_ref().map(|(_, identity)| identity)),
        })
    }
}

fn identity_digest(identity: Option<&CertificateAndKey>) -> Digest {
    client_tls::identity_digest(identity.map(as_slices))
}

/// The TLS settings for extension API servers.
#[derive(Default)]
struct Extensions {
    /// The client certificate and key, as PEM.
    identity: Option<CertificateAndKey>,
    /// The contexts made so far, with their keys in the pool. Parsing CAs takes longer than most requests.
    contexts: BoundedCache<Arc<ServerVerification>, (SslContext, TlsIdentity), EXTENSION_TLS_CONTEXTS>,
}

/// The digest of an extension API server's CAs.
pub(super) fn authority(peer: &ServerVerification) -> Digest {
    let pem = Some(peer.authority_pem.as_slice()).filter(|pem| !pem.is_empty());
    client_tls::authority(pem, peer.verifies)
}

impl Contexts {
    pub(super) fn new(files: &TlsFiles) -> Result<Contexts, TlsError> {
        Ok(Contexts {
            kubelets: Lock::new(Kubelets::read(files)?),
            unverified: context(TrustedCas::Anybody, None)?,
            extensions: Lock::default(),
        })
    }

    /// Replaces the TLS settings for kubelets by the contents of the files.
    pub(super) fn set_kubelet_tls(&self, files: &TlsFiles) -> Result<(), TlsError> {
        let kubelets = Kubelets::read(files)?;
        *self.kubelets.lock() = kubelets;
        Ok(())
    }

    /// Replaces the client certificate for extension API servers.
    pub(super) fn set_extension_identity(&self, identity: Option<CertificateAndKey>) -> Result<(), TlsError> {
        // An invalid certificate is detected now, and not by the first request.
        context(TrustedCas::Anybody, identity.as_ref().map(as_slices))?;
        *self.extensions.lock() = Extensions { identity, ..Extensions::default() };
        Ok(())
    }

    fn extension(&self, peer: &Arc<ServerVerification>) -> Result<TlsSettings, Failure> {
        let tls_error = |error: ErrorStack| Failure::Tls(format!("tls: {error}"));
        let settings = |(context, identity)| TlsSettings {
            peer: TlsPeer { context, verifies: peer.verifies, identity },
            is_extension: true,
        };
        let mut extensions = self.extensions.lock();
        if let Some(cached) = extensions.contexts.get(peer) {
            return Ok(settings(cached.clone()));
        }
        let context = extension(peer, extensions.identity.as_ref()).map_err(tls_error)?;
        let context = context.ok_or(Failure::NoAuthorities)?;
        let private = TlsIdentity {
            server_name: peer.server_name.clone(),
            authority: authority(peer),
            identity: identity_digest(extensions.identity.as_ref()),
        };
        let evicted = extensions.contexts.insert(peer.clone(), (context.clone(), private.clone()));
        drop(extensions);
        drop(evicted);
        Ok(settings((context, private)))
    }

    /// The TLS settings of a destination; `None` for plain connections.
    pub(super) fn for_destination(&self, destination: &Destination) -> Result<Option<TlsSettings>, Failure> {
        if !destination.location.secure {
            return Ok(None);
        }
        let unverified_digest = client_tls::authority(None, false);
        let (context, verifies, authority, identity) = match &destination.trust {
            Trust::Extension(peer) => return self.extension(peer).map(Some),
            Trust::Unverified => (self.unverified.clone(), false, unverified_digest, identity_digest(None)),
            Trust::Kubelet | Trust::KubeletUnverified => {
                let kubelets = self.kubelets.lock().clone();
                match destination.trust {
                    Trust::KubeletUnverified => {
                        (kubelets.unverified, false, unverified_digest, kubelets.identity)
                    }
                    _ => (kubelets.verified, kubelets.verifies, kubelets.authority, kubelets.identity),
                }
            }
        };
        let server_name = destination.location.host.clone();
        let identity = TlsIdentity { server_name, authority, identity };
        Ok(Some(TlsSettings { peer: TlsPeer { context, verifies, identity }, is_extension: false }))
    }
}

impl TlsSettings {
    /// Performs the handshake, in which the server may choose HTTP/2 if that is offered.
    pub(super) async fn handshake(
        &self,
        io: Socket,
        offers_http2: bool,
    ) -> Result<SslStream<Socket>, Failure> {
        let (stream, error) = match self.peer.handshake(io, offers_http2).await {
            Ok(stream) => return Ok(stream),
            Err(HandshakeError::Settings(error)) => {
                return Err(Failure::Tls(format!("tls: {}", reason(&error))));
            }
            Err(HandshakeError::Handshake(stream, error)) => (stream, error),
        };
        let verify_result = stream.ssl().verify_result();
        if verify_result != X509VerifyResult::OK || (self.is_extension && self.peer.verifies) {
            let name = &self.peer.identity.server_name;
            return Err(Failure::Tls(verification_error(stream.ssl(), name, &error)));
        }
        let error_text = match (error.ssl_error(), error.io_error()) {
            (Some(stack), _) => reason(stack),
            (None, Some(io_error)) => io_error.to_string(),
            (None, None) => "the connection ended during the handshake".to_owned(),
        };
        Err(Failure::Tls(format!("tls: {error_text}")))
    }
}

/// OpenSSL's reason, without positions in its source.
fn reason(stack: &ErrorStack) -> String {
    match stack.errors().first().and_then(|error| error.reason()) {
        Some("wrong version number" | "packet length too long" | "http request") => {
            "first record does not look like a TLS handshake".to_owned()
        }
        Some(reason) => reason.to_owned(),
        None => "the handshake failed".to_owned(),
    }
}

/// The context for an extension API server; `None` if its CA bundle contains no certificate.
fn extension(
    peer: &ServerVerification,
    identity: Option<&CertificateAndKey>,
) -> Result<Option<SslContext>, ErrorStack> {
    let trusted = match (peer.verifies, peer.authority_pem.as_slice()) {
        (false, _) => TrustedCas::Anybody,
        (true, []) => TrustedCas::Host,
        (true, pem) => match X509::stack_from_pem(pem) {
            Ok(authorities) if !authorities.is_empty() => TrustedCas::Authorities(authorities),
            _ => return Ok(None),
        },
    };
    context(trusted, identity.map(as_slices)).map(Some)
}

fn as_slices((certificate, key): &CertificateAndKey) -> (&[u8], &[u8]) {
    (certificate, key)
}

/// Reads a file of keys or certificates, up to a limit.
pub fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    bounded_read::read_file(path, PKI_FILE_BYTES).map_err(|error| TlsError::File(path.to_owned(), error))
}
