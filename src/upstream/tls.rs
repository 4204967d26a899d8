//! TLS towards others: whom to believe, and what to show them.

use std::fs;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use openssl::error::ErrorStack;
use openssl::pkey::PKey;
use openssl::ssl::{Ssl, SslContext, SslContextBuilder, SslMethod, SslVerifyMode, SslVersion};
use openssl::x509::X509;
use openssl::x509::X509VerifyResult;
use openssl::x509::store::X509StoreBuilder;
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

use crate::api::connect::Trust;
use crate::limits::PKI_FILE_BYTES;

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
}

impl Contexts {
    pub(super) fn new(files: &TlsFiles) -> Result<Contexts, TlsError> {
        Ok(Contexts {
            kubelet: context(files.authority.as_deref(), files.identity.as_ref())?,
            verifies: files.authority.is_some(),
            unverified: context(None, files.identity.as_ref())?,
            nobody: context(None, None)?,
        })
    }

    /// Makes a connection private.
    pub(super) async fn handshake(
        &self,
        trust: Trust,
        host: &str,
        io: TcpStream,
    ) -> Result<SslStream<TcpStream>, Failure> {
        let (context, verifies) = match trust {
            Trust::Kubelet => (&self.kubelet, self.verifies),
            Trust::KubeletUnverified => (&self.unverified, false),
            Trust::Nobody => (&self.nobody, false),
        };
        let refused = |error: ErrorStack| Failure::Tls(format!("tls: {}", reason(&error)));
        let ssl = client(context, host, verifies).map_err(refused)?;
        let mut stream = SslStream::new(ssl, io).map_err(refused)?;
        match Pin::new(&mut stream).connect().await {
            Ok(()) => Ok(stream),
            Err(error) => {
                let verified = stream.ssl().verify_result();
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
fn context(authority: Option<&Path>, identity: Option<&(PathBuf, PathBuf)>) -> Result<SslContext, TlsError> {
    let mut context = SslContextBuilder::new(SslMethod::tls_client())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    context.set_alpn_protos(HTTP1)?;
    match authority {
        None => context.set_verify(SslVerifyMode::NONE),
        Some(path) => {
            let wrong = |error| TlsError::Content(path.to_owned(), error);
            let mut believed = X509StoreBuilder::new()?;
            for authority in X509::stack_from_pem(&read(path)?).map_err(wrong)? {
                believed.add_cert(authority)?;
            }
            context.set_cert_store(believed.build());
            context.set_verify(SslVerifyMode::PEER);
        }
    }
    if let Some((certificate, key)) = identity {
        let wrong = |error| TlsError::Content(certificate.clone(), error);
        let mut chain = X509::stack_from_pem(&read(certificate)?).map_err(wrong)?.into_iter();
        if let Some(own) = chain.next() {
            context.set_certificate(&own)?;
        }
        for intermediate in chain {
            context.add_extra_chain_cert(intermediate)?;
        }
        let wrong = |error| TlsError::Content(key.clone(), error);
        let key = PKey::private_key_from_pem(&read(key)?).map_err(wrong)?;
        context.set_private_key(&key)?;
        context.check_private_key()?;
    }
    Ok(context.build())
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let wrong = |error| TlsError::File(path.to_owned(), error);
    let mut bytes = Vec::new();
    fs::File::open(path).map_err(wrong)?.take(PKI_FILE_BYTES).read_to_end(&mut bytes).map_err(wrong)?;
    Ok(bytes)
}
