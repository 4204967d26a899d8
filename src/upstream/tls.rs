//! TLS towards others: whom to believe, and what to show them.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use openssl::error::ErrorStack;
use openssl::pkey::PKey;
use openssl::ssl::{Ssl, SslContext, SslContextBuilder, SslMethod, SslVerifyMode, SslVersion};
use openssl::x509::X509;
use openssl::x509::X509VerifyResult;
use openssl::x509::store::X509StoreBuilder;
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

use crate::api::connect::{Peer, Trust};
use crate::limits::{EXTENSIONS_REMEMBERED, PKI_FILE_BYTES};
use crate::webhook::kept::unproven;

use super::failure::Failure;

const HTTP1: &[u8] = b"\x08http/1.1";

/// The files that the operator names for connections to kubelets. They are read once, at start.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// Whom to believe; without it nobody has to prove anything.
    pub authority: Option<PathBuf>,
    /// What to show, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A certificate with those that vouch for it, and its key, both PEM.
pub type Shown = (Vec<u8>, Vec<u8>);

/// Files that make no TLS client.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// One cannot be read.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    /// One holds something else.
    #[error("{0}: {1}")]
    Content(PathBuf, ErrorStack),
    /// OpenSSL refuses.
    #[error("cannot set up TLS towards kubelets: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// One context for each way to trust.
pub(super) struct Contexts {
    kubelet: SslContext,
    /// Whether a kubelet has to prove who it is.
    verifies: bool,
    unverified: SslContext,
    nobody: SslContext,
    extensions: Mutex<Extensions>,
}

/// What connections to servers that extend this API are made of.
#[derive(Default)]
struct Extensions {
    /// What they are shown: a certificate and its key, PEM.
    identity: Option<Shown>,
    /// The contexts made so far. Reading authorities takes longer than most of their answers.
    contexts: HashMap<Arc<Peer>, SslContext>,
}

impl Contexts {
    pub(super) fn new(files: &TlsFiles) -> Result<Contexts, TlsError> {
        Ok(Contexts {
            kubelet: context(files.authority.as_deref(), files.identity.as_ref())?,
            verifies: files.authority.is_some(),
            unverified: context(None, files.identity.as_ref())?,
            nobody: context(None, None)?,
            extensions: Mutex::default(),
        })
    }

    /// Shows this to extensions from now on.
    pub(super) fn show_to_extensions(&self, identity: Option<Shown>) -> Result<(), TlsError> {
        if let Some((certificate, key)) = &identity {
            // What cannot be shown is found out now, and not by the first client.
            show(&mut builder()?, certificate, key)?;
        }
        let contexts = HashMap::new();
        *self.extensions.lock().unwrap_or_else(PoisonError::into_inner) = Extensions { identity, contexts };
        Ok(())
    }

    fn extension(&self, peer: &Arc<Peer>) -> Result<SslContext, Failure> {
        let refused = |error: ErrorStack| Failure::Tls(format!("tls: {error}"));
        let mut extensions = self.extensions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = extensions.contexts.get(peer) {
            return Ok(known.clone());
        }
        let context = extension(peer, extensions.identity.as_ref()).map_err(refused)?;
        let context = context.ok_or(Failure::NoAuthorities)?;
        if extensions.contexts.len() >= EXTENSIONS_REMEMBERED {
            extensions.contexts.clear();
        }
        extensions.contexts.insert(peer.clone(), context.clone());
        Ok(context)
    }

    /// Makes a connection private.
    pub(super) async fn handshake(
        &self,
        trust: &Trust,
        host: &str,
        io: TcpStream,
    ) -> Result<SslStream<TcpStream>, Failure> {
        let refused = |error: ErrorStack| Failure::Tls(format!("tls: {}", reason(&error)));
        let ssl = match trust {
            Trust::Kubelet => client(&self.kubelet, host, self.verifies),
            Trust::KubeletUnverified => client(&self.unverified, host, false),
            Trust::Nobody => client(&self.nobody, host, false),
            Trust::Extension(peer) => client(&self.extension(peer)?, &peer.server_name, peer.verifies),
        };
        let ssl = ssl.map_err(refused)?;
        let mut stream = SslStream::new(ssl, io).map_err(refused)?;
        match Pin::new(&mut stream).connect().await {
            Ok(()) => Ok(stream),
            Err(error) => {
                let verified = stream.ssl().verify_result();
                if let Trust::Extension(peer) = trust
                    && peer.verifies
                {
                    return Err(Failure::Tls(unproven(verified, &peer.server_name, &error)));
                }
                if verified != X509VerifyResult::OK {
                    let why = verified.error_string();
                    return Err(Failure::Tls(format!("tls: failed to verify certificate: x509: {why}")));
                }
                let why = match (error.ssl_error(), error.io_error()) {
                    (Some(stack), _) => reason(stack),
                    (None, Some(broken)) => broken.to_string(),
                    (None, None) => "the connection ended during the handshake".to_owned(),
                };
                Err(Failure::Tls(format!("tls: {why}")))
            }
        }
    }
}

/// Why the library refuses, without the places in its own source, which mean nothing to whoever reads it.
fn reason(stack: &ErrorStack) -> String {
    match stack.errors().first().and_then(|error| error.reason()) {
        Some("wrong version number" | "packet length too long" | "http request") => {
            "first record does not look like a TLS handshake".to_owned()
        }
        Some(reason) => reason.to_owned(),
        None => "the handshake failed".to_owned(),
    }
}

fn client(context: &SslContext, host: &str, verifies: bool) -> Result<Ssl, ErrorStack> {
    let mut ssl = Ssl::new(context)?;
    let address = host.parse::<IpAddr>().ok();
    if address.is_none() {
        ssl.set_hostname(host)?;
    }
    if verifies {
        match address {
            Some(address) => ssl.param_mut().set_ip(address)?,
            None => ssl.param_mut().set_host(host)?,
        }
    }
    Ok(ssl)
}

/// Not a connector of the library: that one would believe the authorities of the system as well.
fn builder() -> Result<SslContextBuilder, ErrorStack> {
    let mut context = SslContextBuilder::new(SslMethod::tls_client())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    context.set_alpn_protos(HTTP1)?;
    Ok(context)
}

fn believe(context: &mut SslContextBuilder, authorities: Vec<X509>) -> Result<(), ErrorStack> {
    let mut believed = X509StoreBuilder::new()?;
    for authority in authorities {
        believed.add_cert(authority)?;
    }
    context.set_cert_store(believed.build());
    context.set_verify(SslVerifyMode::PEER);
    Ok(())
}

fn show(context: &mut SslContextBuilder, certificate: &[u8], key: &[u8]) -> Result<(), ErrorStack> {
    let mut chain = X509::stack_from_pem(certificate)?.into_iter();
    if let Some(own) = chain.next() {
        context.set_certificate(&own)?;
    }
    for intermediate in chain {
        context.add_extra_chain_cert(intermediate)?;
    }
    context.set_private_key(&*PKey::private_key_from_pem(key)?)?;
    context.check_private_key()
}

/// What connections to an extension are made of; `None` if nobody is named whom it could be known to.
fn extension(peer: &Peer, identity: Option<&Shown>) -> Result<Option<SslContext>, ErrorStack> {
    let mut context = builder()?;
    match (peer.verifies, peer.authority_pem.as_slice()) {
        (false, _) => context.set_verify(SslVerifyMode::NONE),
        (true, []) => {
            context.set_default_verify_paths()?;
            context.set_verify(SslVerifyMode::PEER);
        }
        (true, pem) => match X509::stack_from_pem(pem) {
            Ok(authorities) if !authorities.is_empty() => believe(&mut context, authorities)?,
            _ => return Ok(None),
        },
    }
    if let Some((certificate, key)) = identity {
        show(&mut context, certificate, key)?;
    }
    Ok(Some(context.build()))
}

fn context(authority: Option<&Path>, identity: Option<&(PathBuf, PathBuf)>) -> Result<SslContext, TlsError> {
    let mut context = builder()?;
    match authority {
        None => context.set_verify(SslVerifyMode::NONE),
        Some(path) => {
            let wrong = |error| TlsError::Content(path.to_owned(), error);
            believe(&mut context, X509::stack_from_pem(&read(path)?).map_err(wrong)?)?;
        }
    }
    if let Some((certificate, key)) = identity {
        let wrong = |error| TlsError::Content(certificate.clone(), error);
        show(&mut context, &read(certificate)?, &read(key)?).map_err(wrong)?;
    }
    Ok(context.build())
}

/// Reads a file of keys or certificates.
pub fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let wrong = |error| TlsError::File(path.to_owned(), error);
    let mut bytes = Vec::new();
    fs::File::open(path).map_err(wrong)?.take(PKI_FILE_BYTES).read_to_end(&mut bytes).map_err(wrong)?;
    Ok(bytes)
}
