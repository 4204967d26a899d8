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

use crate::api::connect::{Destination, Peer, Trust};
use crate::limits::{EXTENSIONS_REMEMBERED, PKI_FILE_BYTES};

use super::failure::Failure;
use super::pool::{self, Digest, Private};

const HTTP1: &[u8] = b"\x08http/1.1";

/// The files that the operator names for connections to kubelets.
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

/// How connections to one end are made private.
pub(super) struct Way {
    context: SslContext,
    /// Whether the other end has to prove who it is.
    verifies: bool,
    /// Whether it is one that extends this API.
    extends: bool,
    /// By which connections are known that were made so.
    pub(super) private: Private,
}

/// One context for each way to trust.
pub(super) struct Contexts {
    /// A std lock: it is held for one look.
    kubelets: Mutex<Kubelets>,
    nobody: SslContext,
    extensions: Mutex<Extensions>,
}

/// What connections to kubelets are made of.
#[derive(Clone)]
struct Kubelets {
    verified: SslContext,
    /// Whether a kubelet has to prove who it is.
    verifies: bool,
    unverified: SslContext,
    authority: Digest,
    shown: Digest,
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
        let context = |authority: Option<&(&PathBuf, Vec<u8>)>| -> Result<SslContext, TlsError> {
            let mut context = builder()?;
            match authority {
                None => context.set_verify(SslVerifyMode::NONE),
                Some((path, pem)) => {
                    let wrong = |error| TlsError::Content((*path).clone(), error);
                    believe(&mut context, X509::stack_from_pem(pem).map_err(wrong)?)?;
                }
            }
            if let Some((path, (certificate, key))) = &identity {
                let wrong = |error| TlsError::Content((*path).clone(), error);
                show(&mut context, certificate, key).map_err(wrong)?;
            }
            Ok(context.build())
        };
        let pem = authority.as_ref().map(|(_, pem)| pem.as_slice());
        Ok(Kubelets {
            verified: context(authority.as_ref())?,
            verifies: authority.is_some(),
            unverified: context(None)?,
            authority: pool::authority(pem, pem.is_some()),
            shown: shown(identity.as_ref().map(|(_, identity)| identity)),
        })
    }
}

fn shown(identity: Option<&Shown>) -> Digest {
    pool::shown(identity.map(|(certificate, key)| (certificate.as_slice(), key.as_slice())))
}

/// What connections to servers that extend this API are made of.
#[derive(Default)]
struct Extensions {
    /// What they are shown: a certificate and its key, PEM.
    identity: Option<Shown>,
    /// The contexts made so far, and what connections that were made of them are known by. Reading authorities takes longer than most
    /// of their answers.
    contexts: HashMap<Arc<Peer>, (SslContext, Private)>,
}

/// What stands for whom an extension server must be known to.
pub(super) fn authority(peer: &Peer) -> Digest {
    let pem = Some(peer.authority_pem.as_slice()).filter(|pem| !pem.is_empty());
    pool::authority(pem, peer.verifies)
}

impl Contexts {
    pub(super) fn new(files: &TlsFiles) -> Result<Contexts, TlsError> {
        let mut nobody = builder()?;
        nobody.set_verify(SslVerifyMode::NONE);
        Ok(Contexts {
            kubelets: Mutex::new(Kubelets::read(files)?),
            nobody: nobody.build(),
            extensions: Mutex::default(),
        })
    }

    /// Believes and shows to kubelets from now on what the files hold.
    pub(super) fn show_to_kubelets(&self, files: &TlsFiles) -> Result<(), TlsError> {
        let found = Kubelets::read(files)?;
        *self.kubelets.lock().unwrap_or_else(PoisonError::into_inner) = found;
        Ok(())
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

    fn extension(&self, peer: &Arc<Peer>) -> Result<Way, Failure> {
        let refused = |error: ErrorStack| Failure::Tls(format!("tls: {error}"));
        let way = |(context, private)| Way { context, verifies: peer.verifies, extends: true, private };
        let mut extensions = self.extensions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = extensions.contexts.get(peer) {
            return Ok(way(known.clone()));
        }
        let context = extension(peer, extensions.identity.as_ref()).map_err(refused)?;
        let context = context.ok_or(Failure::NoAuthorities)?;
        if extensions.contexts.len() >= EXTENSIONS_REMEMBERED {
            extensions.contexts.clear();
        }
        let private = Private {
            server_name: peer.server_name.clone(),
            authority: authority(peer),
            shown: shown(extensions.identity.as_ref()),
        };
        extensions.contexts.insert(peer.clone(), (context.clone(), private.clone()));
        Ok(way((context, private)))
    }

    /// How a connection to somebody is made private; `None`: it is not.
    pub(super) fn to(&self, to: &Destination) -> Result<Option<Way>, Failure> {
        if !to.location.secure {
            return Ok(None);
        }
        let anybody = pool::authority(None, false);
        let (context, verifies, authority, shown) = match &to.trust {
            Trust::Extension(peer) => return self.extension(peer).map(Some),
            Trust::Nobody => (self.nobody.clone(), false, anybody, shown(None)),
            Trust::Kubelet | Trust::KubeletUnverified => {
                let kubelets = self.kubelets.lock().unwrap_or_else(PoisonError::into_inner).clone();
                match to.trust {
                    Trust::KubeletUnverified => (kubelets.unverified, false, anybody, kubelets.shown),
                    _ => (kubelets.verified, kubelets.verifies, kubelets.authority, kubelets.shown),
                }
            }
        };
        let server_name = to.location.host.clone();
        let private = Private { server_name, authority, shown };
        Ok(Some(Way { context, verifies, extends: false, private }))
    }
}

impl Way {
    /// Makes a connection private.
    pub(super) async fn handshake(&self, io: TcpStream) -> Result<SslStream<TcpStream>, Failure> {
        let refused = |error: ErrorStack| Failure::Tls(format!("tls: {}", reason(&error)));
        let name = &self.private.server_name;
        let ssl = client(&self.context, name, self.verifies).map_err(refused)?;
        let mut stream = SslStream::new(ssl, io).map_err(refused)?;
        match Pin::new(&mut stream).connect().await {
            Ok(()) => Ok(stream),
            Err(error) => {
                let verified = stream.ssl().verify_result();
                if self.extends && self.verifies {
                    return Err(Failure::Tls(unproven(verified, name, &error)));
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

/// Why nobody proved who they are, in the words that clients know.
pub fn unproven(verified: X509VerifyResult, name: &str, error: &dyn std::fmt::Display) -> String {
    let why = match verified.as_raw() {
        0 => return format!("tls: {error}"),
        // No issuer, or one that nobody believes.
        2 | 18..=21 => "certificate signed by unknown authority".to_owned(),
        9 | 10 => "certificate has expired or is not yet valid".to_owned(),
        62..=64 => format!("certificate is not valid for {name}"),
        _ => verified.error_string().to_owned(),
    };
    format!("tls: failed to verify certificate: x509: {why}")
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

/// Reads a file of keys or certificates.
pub fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let wrong = |error| TlsError::File(path.to_owned(), error);
    let mut bytes = Vec::new();
    fs::File::open(path).map_err(wrong)?.take(PKI_FILE_BYTES).read_to_end(&mut bytes).map_err(wrong)?;
    Ok(bytes)
}
