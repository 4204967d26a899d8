//! TLS to members: the files that name trusted CAs and the client certificate, and the handshake.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::pin::Pin;

use openssl::error::ErrorStack;
use openssl::ssl::SslContext;
use openssl::x509::{X509, X509VerifyResult};
use pilothouse_client_tls::{Protocol, TrustedCas, client};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_openssl::SslStream;

use crate::limits::PKI_FILE_BYTES;
use crate::settings::TlsFiles;

/// Reads the files, and makes the context of a connection.
pub fn context(files: &TlsFiles) -> Result<SslContext, String> {
    let trusted = match &files.authority {
        None => TrustedCas::Host,
        Some(path) => {
            let authorities = X509::stack_from_pem(&read(path)?).unwrap_or_default();
            if authorities.is_empty() {
                return Err(format!("{} contains no certificate", path.display()));
            }
            TrustedCas::Authorities(authorities)
        }
    };
    let identity = match &files.identity {
        Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
        None => None,
    };
    let identity = identity.as_ref().map(|(certificate, key)| (certificate.as_slice(), key.as_slice()));
    pilothouse_client_tls::context(trusted, identity, Protocol::Http2).map_err(|error| {
        match &files.identity {
            Some((certificate, key)) => {
                let names = format!("{} and {}", certificate.display(), key.display());
                format!("{names} are no certificate with its key: {error}")
            }
            None => refused(&error),
        }
    })
}

fn refused(error: &ErrorStack) -> String {
    format!("tls: {error}")
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(PKI_FILE_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Performs the handshake with a member of this name, which must be one of the alternative names of its certificate.
pub async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    context: &SslContext,
    name: &str,
    io: S,
) -> Result<SslStream<S>, String> {
    let ssl = client(context, name, true).map_err(|error| refused(&error))?;
    let mut stream = SslStream::new(ssl, io).map_err(|error| refused(&error))?;
    match Pin::new(&mut stream).connect().await {
        Ok(()) => Ok(stream),
        Err(error) => {
            let verified = stream.ssl().verify_result();
            Err(match verified {
                X509VerifyResult::OK => format!("tls: {error}"),
                _ => format!("tls: the certificate is not valid for {name}: {}", verified.error_string()),
            })
        }
    }
}
