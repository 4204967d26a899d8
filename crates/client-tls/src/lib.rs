//! The TLS settings of all outgoing connections: trusted CAs and client certificates.
//!
//! Not the library's connector: it would trust the system's CAs in addition to the named ones.

use std::net::IpAddr;
use std::path::Path;

use openssl::error::ErrorStack;
use openssl::pkey::PKey;
use openssl::ssl::{
    Ssl, SslContext, SslContextBuilder, SslMethod, SslMode, SslRef, SslVerifyMode, SslVersion,
};
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::verify::{X509CheckFlags, X509VerifyFlags};

/// Where systems keep their CA bundles. A statically linked OpenSSL does not know these paths; it always reads SSL_CERT_FILE and
/// SSL_CERT_DIR.
const HOST_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The CAs that the peer is verified against.
pub enum TrustedCas {
    /// The peer is not verified.
    Anybody,
    /// The CAs of the system.
    Host,
    /// Only these CAs.
    Authorities(Vec<X509>),
}

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

impl Protocol {
    /// The name by which servers are asked for it, with its length.
    fn wire_name(self) -> &'static [u8] {
        match self {
            Protocol::Http1 => b"\x08http/1.1",
            Protocol::Http2 => b"\x02h2",
        }
    }
}

/// Makes the context of connections. `identity` is the client certificate with its intermediates, and its key, as PEM.
pub fn context(
    trusted: TrustedCas,
    identity: Option<(&[u8], &[u8])>,
    protocol: Protocol,
) -> Result<SslContext, ErrorStack> {
    let mut context = SslContextBuilder::new(SslMethod::tls_client())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    context.set_alpn_protos(protocol.wire_name())?;
    // HTTP keeps gathering data while a write is pending, and then retries from another buffer. Without these two modes that is
    // an error, which would end uploads to slow readers.
    context.set_mode(
        SslMode::AUTO_RETRY
            | SslMode::ACCEPT_MOVING_WRITE_BUFFER
            | SslMode::ENABLE_PARTIAL_WRITE
            | SslMode::RELEASE_BUFFERS,
    );
    match trusted {
        TrustedCas::Anybody => context.set_verify(SslVerifyMode::NONE),
        TrustedCas::Host => {
            context.set_default_verify_paths()?;
            if let Some(file) = HOST_AUTHORITIES.iter().find(|file| Path::new(file).is_file()) {
                context.set_ca_file(file)?;
            }
            context.set_verify(SslVerifyMode::PEER);
        }
        TrustedCas::Authorities(authorities) => {
            let mut store = X509StoreBuilder::new()?;
            for authority in authorities {
                store.add_cert(authority)?;
            }
            // A listed certificate is trusted even if it is not a CA but that of the server itself: test harnesses put that one
            // into the caBundle of their webhooks.
            store.set_flags(X509VerifyFlags::PARTIAL_CHAIN)?;
            context.set_cert_store(store.build());
            context.set_verify(SslVerifyMode::PEER);
        }
    }
    if let Some((certificate, key)) = identity {
        set_identity(&mut context, certificate, key)?;
    }
    Ok(context.build())
}

/// Offers HTTP/2 beside HTTP/1.1 on one connection, whatever its context offers.
pub fn offer_http2(ssl: &mut SslRef) -> Result<(), ErrorStack> {
    ssl.set_alpn_protos(b"\x02h2\x08http/1.1")
}

/// Whether the server has chosen HTTP/2.
pub fn speaks_http2(ssl: &SslRef) -> bool {
    ssl.selected_alpn_protocol() == Some(b"h2")
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

/// One connection to a server of this name, which its certificate must contain if `verifies`, as one of its alternative names. As
/// in the reference, the Common Name does not count, and a wildcard stands for a whole label.
pub fn client(context: &SslContext, name: &str, verifies: bool) -> Result<Ssl, ErrorStack> {
    let mut ssl = Ssl::new(context)?;
    let address = name.parse::<IpAddr>().ok();
    if address.is_none() {
        ssl.set_hostname(name)?;
    }
    if verifies {
        let alternatives_only = X509CheckFlags::NEVER_CHECK_SUBJECT | X509CheckFlags::NO_PARTIAL_WILDCARDS;
        ssl.param_mut().set_hostflags(alternatives_only);
        match address {
            Some(address) => ssl.param_mut().set_ip(address)?,
            None => ssl.param_mut().set_host(name)?,
        }
    }
    Ok(ssl)
}
