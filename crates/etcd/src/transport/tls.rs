//! TLS to members: trusted CAs, the client certificate, and what the certificate of a member must contain.

use std::fs;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;

use openssl::error::ErrorStack;
use openssl::pkey::PKey;
use openssl::ssl::{Ssl, SslContext, SslContextBuilder, SslMethod, SslMode, SslVerifyMode, SslVersion};
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::verify::{X509CheckFlags, X509VerifyFlags};
use openssl::x509::{X509, X509VerifyResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_openssl::SslStream;

use crate::limits::PKI_FILE_BYTES;
use crate::settings::TlsFiles;

const ALPN_HTTP2: &[u8] = b"\x02h2";

/// Where systems keep their CAs. A statically linked OpenSSL does not know.
const SYSTEM_AUTHORITIES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Reads the files, and makes the context of a connection.
pub fn context(files: &TlsFiles) -> Result<SslContext, String> {
    let refused = |error: ErrorStack| format!("tls: {error}");
    let mut context = SslContextBuilder::new(SslMethod::tls_client()).map_err(refused)?;
    prepare(&mut context).map_err(refused)?;
    match &files.authority {
        None => trust_system(&mut context).map_err(refused)?,
        Some(path) => {
            let authorities = X509::stack_from_pem(&read(path)?).unwrap_or_default();
            if authorities.is_empty() {
                return Err(format!("{} contains no certificate", path.display()));
            }
            trust(&mut context, authorities).map_err(refused)?;
        }
    }
    if let Some((certificate, key)) = &files.identity {
        let names = format!("{} and {}", certificate.display(), key.display());
        set_identity(&mut context, &read(certificate)?, &read(key)?)
            .map_err(|error| format!("{names} are no certificate with its key: {error}"))?;
    }
    Ok(context.build())
}

fn prepare(context: &mut SslContextBuilder) -> Result<(), ErrorStack> {
    context.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    context.set_alpn_protos(ALPN_HTTP2)?;
    context.set_verify(SslVerifyMode::PEER);
    // HTTP/2 gathers data while a write is pending, and retries from another buffer.
    context.set_mode(
        SslMode::AUTO_RETRY
            | SslMode::ACCEPT_MOVING_WRITE_BUFFER
            | SslMode::ENABLE_PARTIAL_WRITE
            | SslMode::RELEASE_BUFFERS,
    );
    Ok(())
}

fn trust_system(context: &mut SslContextBuilder) -> Result<(), ErrorStack> {
    context.set_default_verify_paths()?;
    match SYSTEM_AUTHORITIES.iter().find(|file| Path::new(file).is_file()) {
        Some(file) => context.set_ca_file(file),
        None => Ok(()),
    }
}

/// Trusts these certificates alone, also if one is that of a member itself and no CA.
fn trust(context: &mut SslContextBuilder, authorities: Vec<X509>) -> Result<(), ErrorStack> {
    let mut store = X509StoreBuilder::new()?;
    for authority in authorities {
        store.add_cert(authority)?;
    }
    store.set_flags(X509VerifyFlags::PARTIAL_CHAIN)?;
    context.set_cert_store(store.build());
    Ok(())
}

fn set_identity(context: &mut SslContextBuilder, certificate: &[u8], key: &[u8]) -> Result<(), ErrorStack> {
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
    let refused = |error: ErrorStack| format!("tls: {error}");
    let ssl = client(context, name).map_err(refused)?;
    let mut stream = SslStream::new(ssl, io).map_err(refused)?;
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

fn client(context: &SslContext, name: &str) -> Result<Ssl, ErrorStack> {
    let mut ssl = Ssl::new(context)?;
    ssl.param_mut().set_hostflags(X509CheckFlags::NEVER_CHECK_SUBJECT | X509CheckFlags::NO_PARTIAL_WILDCARDS);
    match name.parse::<IpAddr>() {
        Ok(address) => ssl.param_mut().set_ip(address)?,
        Err(_) => {
            ssl.set_hostname(name)?;
            ssl.param_mut().set_host(name)?;
        }
    }
    Ok(ssl)
}
