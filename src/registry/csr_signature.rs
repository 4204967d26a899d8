//! Verifies that a certificate request is signed by its own key.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::pkey::Id;
use openssl::x509::X509Req;
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::value::Value;

use crate::pki::signatures;

/// Adds an error if a new CertificateSigningRequest is not signed by its key. The rules of the kind cannot do cryptography, so
/// the check stands beside them. The error is placed after those of the metadata, as in the reference.
pub fn check(request: &Value, errors: ErrorList) -> ErrorList {
    let Some(reason) = signature_error(request) else { return errors };
    let path = FieldPath::new("spec").child("request");
    let error = FieldError::invalid(&path, "[]byte{}", reason);
    let (mut all, mut error) = (ErrorList::new(), Some(error));
    for other in errors {
        if !other.path.to_string().starts_with("metadata") {
            all.extend(error.take());
        }
        all.push(other);
    }
    all.extend(error);
    all
}

/// The error of a parsable request whose signature does not verify.
fn signature_error(request: &Value) -> Option<&'static str> {
    let text = request.get_path(&["spec", "request"]).and_then(Value::as_str).unwrap_or_default();
    // The rules of the kind report unparsable requests.
    let request = X509Req::from_pem(&STANDARD.decode(text).ok()?).ok()?;
    let key = request.public_key().ok()?;
    if signatures::request_is_signed_by(&request, &key) {
        return None;
    }
    Some(match key.id() {
        Id::RSA => "crypto/rsa: verification error",
        Id::EC => "x509: ECDSA verification failure",
        Id::ED25519 => "x509: Ed25519 verification failure",
        _ => "x509: cannot verify signature: algorithm unimplemented",
    })
}

#[cfg(test)]
mod tests {
    use openssl::hash::MessageDigest;
    use openssl::nid::Nid;
    use openssl::pkey::{PKey, Private};

    use super::*;

    fn keys() -> [(PKey<Private>, &'static str); 2] {
        let curve = openssl::ec::EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let ec = PKey::from_ec_key(openssl::ec::EcKey::generate(&curve).unwrap()).unwrap();
        let rsa = PKey::from_rsa(openssl::rsa::Rsa::generate(2048).unwrap()).unwrap();
        [(ec, "x509: ECDSA verification failure"), (rsa, "crypto/rsa: verification error")]
    }

    fn object(pem: &[u8]) -> Value {
        let mut object = Value::object();
        object.entry("spec").set("request", STANDARD.encode(pem));
        object
    }

    #[test]
    fn certificate_request_signed_by_other_key_is_invalid() {
        for (key, expected) in keys() {
            let other = PKey::from_rsa(openssl::rsa::Rsa::generate(2048).unwrap()).unwrap();
            let signed_by = |signer: &PKey<Private>| {
                let mut request = X509Req::builder().unwrap();
                request.set_pubkey(&key).unwrap();
                request.sign(signer, MessageDigest::sha256()).unwrap();
                object(&request.build().to_pem().unwrap())
            };
            assert_eq!(signature_error(&signed_by(&key)), None);
            assert_eq!(signature_error(&signed_by(&other)), Some(expected));
            let mut errors = ErrorList::new();
            for field in ["metadata", "spec"] {
                errors.push(FieldError::required(&FieldPath::new(field).child("x"), ""));
            }
            let all: Vec<String> =
                check(&signed_by(&other), errors).iter().map(|error| error.path.to_string()).collect();
            assert_eq!(all, ["metadata.x", "spec.request", "spec.x"]);
        }
        assert_eq!(signature_error(&object(b"hello")), None);
    }
}
