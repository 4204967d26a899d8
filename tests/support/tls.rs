//! The client's side of TLS.
//!
//! Not that of `SslConnector`, which reads all authorities that the system trusts: it takes twenty times as long as everything else that
//! a client needs, and no test trusts them.

use std::net::IpAddr;

use openssl::pkey::PKey;
use openssl::ssl::{Ssl, SslContext, SslMethod, SslVerifyMode};
use openssl::x509::X509;

/// What clients have in common that trust these authorities, or everybody, and have a certificate and its key, or none. All in PEM.
/// `protocols` are those of ALPN, each preceded by its length.
pub fn context(authorities: Option<&[u8]>, identity: Option<(&[u8], &[u8])>, protocols: &[u8]) -> SslContext {
    let mut context = SslContext::builder(SslMethod::tls_client()).expect("TLS");
    context.set_verify(SslVerifyMode::NONE);
    if let Some(authorities) = authorities {
        context.set_verify(SslVerifyMode::PEER);
        for authority in X509::stack_from_pem(authorities).expect("the certificates of authorities") {
            context.cert_store_mut().add_cert(authority).expect("a trusted authority");
        }
    }
    if let Some((certificates, key)) = identity {
        let mut chain = X509::stack_from_pem(certificates).expect("client certificates").into_iter();
        let certificate = chain.next().expect("a client certificate");
        context.set_certificate(&certificate).expect("a usable certificate");
        for intermediate in chain {
            context.add_extra_chain_cert(intermediate).expect("a usable intermediate");
        }
        let key = PKey::private_key_from_pem(key).expect("a client key");
        context.set_private_key(&key).expect("a usable key");
    }
    if !protocols.is_empty() {
        context.set_alpn_protos(protocols).expect("protocols");
    }
    context.build()
}

/// A session with this host, whose certificate must be valid for it.
pub fn session(context: &SslContext, host: &str) -> Ssl {
    let mut session = Ssl::new(context).expect("a session");
    match host.parse::<IpAddr>() {
        Ok(address) => session.param_mut().set_ip(address).expect("an address"),
        Err(_) => {
            session.set_hostname(host).expect("a host name");
            session.param_mut().set_host(host).expect("a host name");
        }
    }
    session
}
