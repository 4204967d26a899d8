//! Signature checks by OpenSSL that leave its error queue empty.
//!
//! OpenSSL reports a wrong signature in the result, but also leaves its reasons in the error queue of the thread. The next TLS
//! connection on that thread with nothing to read would take them for its own errors and close: a client with a bad signature
//! would end other clients' connections. So only this module calls OpenSSL's checks; a lint refuses other callers.
//! (`PkeyCtx::verify`, which checks tokens, empties the queue itself.)

#![allow(clippy::disallowed_methods, reason = "this is where they are called")]

use openssl::ec::EcKeyRef;
use openssl::ecdsa::EcdsaSigRef;
use openssl::error::ErrorStack;
use openssl::pkey::{PKeyRef, Public};
use openssl::x509::{X509Ref, X509ReqRef, X509StoreContextRef};

/// Whether this key signed the certificate.
pub(crate) fn certificate_is_signed_by(certificate: &X509Ref, key: &PKeyRef<Public>) -> bool {
    clear_errors(certificate.verify(key)).unwrap_or(false)
}

/// Whether this key signed the certificate signing request.
pub(crate) fn request_is_signed_by(request: &X509ReqRef, key: &PKeyRef<Public>) -> bool {
    clear_errors(request.verify(key)).unwrap_or(false)
}

/// Whether this EC key signed the digest.
pub(crate) fn digest_is_signed_by(signature: &EcdsaSigRef, digest: &[u8], key: &EcKeyRef<Public>) -> bool {
    clear_errors(signature.verify(digest, key)).unwrap_or(false)
}

/// Whether the certificate chain of the context is valid.
pub(crate) fn is_chain_valid(context: &mut X509StoreContextRef) -> Result<bool, ErrorStack> {
    clear_errors(context.verify_cert())
}

/// Empties the error queue of this thread.
fn clear_errors(result: Result<bool, ErrorStack>) -> Result<bool, ErrorStack> {
    drop(ErrorStack::get());
    result
}

#[cfg(test)]
mod tests {
    use openssl::ec::{EcGroup, EcKey};
    use openssl::ecdsa::EcdsaSig;
    use openssl::hash::MessageDigest;
    use openssl::nid::Nid;
    use openssl::pkey::{PKey, Private};
    use openssl::stack::Stack;
    use openssl::x509::store::X509StoreBuilder;
    use openssl::x509::{X509, X509Name, X509NameBuilder, X509Req, X509StoreContext};

    use super::*;

    fn key() -> PKey<Private> {
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
    }

    fn public(key: &PKey<Private>) -> PKey<Public> {
        PKey::public_key_from_der(&key.public_key_to_der().unwrap()).unwrap()
    }

    fn name(text: &str) -> X509Name {
        let mut name = X509NameBuilder::new().unwrap();
        name.append_entry_by_text("CN", text).unwrap();
        name.build()
    }

    /// A certificate whose issuer name is that of the authority.
    fn certificate(subject: &str, subject_key: &PKey<Private>, signing: &PKey<Private>) -> X509 {
        let mut builder = X509::builder().unwrap();
        builder.set_version(2).unwrap();
        builder.set_subject_name(&name(subject)).unwrap();
        builder.set_issuer_name(&name("authority")).unwrap();
        builder.set_pubkey(subject_key).unwrap();
        builder.set_not_before(&openssl::asn1::Asn1Time::days_from_now(0).unwrap()).unwrap();
        builder.set_not_after(&openssl::asn1::Asn1Time::days_from_now(1).unwrap()).unwrap();
        builder.sign(signing, MessageDigest::sha256()).unwrap();
        builder.build()
    }

    #[test]
    fn failed_verification_leaves_the_error_queue_empty() {
        let (own, other) = (key(), key());
        let request = |signing: &PKey<Private>| {
            let mut request = X509Req::builder().unwrap();
            request.set_version(0).unwrap();
            request.set_subject_name(&name("leaf")).unwrap();
            request.set_pubkey(&own).unwrap();
            request.sign(signing, MessageDigest::sha256()).unwrap();
            request.build()
        };
        let (good, bad) = (certificate("authority", &own, &own), certificate("leaf", &other, &other));
        let signature = EcdsaSig::sign(&[1; 32], &other.ec_key().unwrap()).unwrap();
        let assert_queue_empty = || assert!(ErrorStack::get().errors().is_empty());

        assert!(!request_is_signed_by(&request(&other), &public(&own)));
        assert_queue_empty();
        assert!(!certificate_is_signed_by(&bad, &public(&own)));
        assert_queue_empty();
        assert!(!digest_is_signed_by(&signature, &[1; 32], &public(&own).ec_key().unwrap()));
        assert_queue_empty();
        let mut trusted = X509StoreBuilder::new().unwrap();
        trusted.add_cert(good.clone()).unwrap();
        let mut context = X509StoreContext::new().unwrap();
        let is_valid = context.init(&trusted.build(), &bad, &Stack::new().unwrap(), is_chain_valid);
        assert!(!is_valid.unwrap());
        assert_queue_empty();

        assert!(request_is_signed_by(&request(&own), &public(&own)));
        assert!(certificate_is_signed_by(&good, &public(&own)));
        assert!(digest_is_signed_by(&signature, &[1; 32], &public(&other).ec_key().unwrap()));
    }
}
