//! OpenSSL as what `jsonwebtoken` signs and verifies with.
//!
//! The library has one provider of cryptography per process and panics if it is used without one. So whoever makes a key in
//! this module installs it first, and a key is needed for everything else.

use std::sync::LazyLock;

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error as SignatureError, Signer, Verifier};
use jsonwebtoken::{Algorithm as Name, DecodingKey, DecodingKeyKind, EncodingKey};
use openssl::bn::{BigNum, BigNumContext};
use openssl::ec::{EcGroup, EcKey, EcPoint};
use openssl::error::ErrorStack;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private, Public};
use openssl::rsa::Rsa;

use super::{Algorithm, Error};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    // The library asks for these when it makes documents of keys. Ours have another order of fields and know P-521, so
    // nothing asks; whoever does it nevertheless gets an error instead of the library's panic.
    key_utils: KeyUtils {
        rsa_pub_components_from_private_key: |_| Err(unsupported()),
        rsa_pub_components_from_public_key: |_| Err(unsupported()),
        ec_pub_components_from_private_key: |_, _| Err(unsupported()),
        ed_pub_components_from_private_key: |_, _| Err(unsupported()),
        compute_digest: |_, _| Err(unsupported()),
    },
};

/// Whether the provider of this process is ours.
static OURS: LazyLock<bool> = LazyLock::new(|| PROVIDER.install_default().is_ok());

/// Makes OpenSSL what the library uses in this process. Only the first call does something. An error if the process that we
/// are embedded in has chosen another provider before: nobody knows what that one accepts, or whether it is the one that
/// panics.
pub(super) fn install() -> std::result::Result<(), Error> {
    if *OURS { Ok(()) } else { Err(Error::OtherProvider) }
}

impl Algorithm {
    /// What the library calls it; `None` if the library does not know it.
    pub(super) fn in_library(self) -> Option<Name> {
        self.name().parse().ok()
    }

    fn from_library(name: Name) -> Result<Algorithm> {
        let found = Algorithm::ALL.into_iter().find(|algorithm| algorithm.in_library() == Some(name));
        found.ok_or_else(unsupported)
    }
}

fn unsupported() -> jsonwebtoken::errors::Error {
    new_error(ErrorKind::UnsupportedAlgorithm)
}

struct OpenSslSigner {
    key: PKey<Private>,
    algorithm: Algorithm,
    name: Name,
}

fn signer(name: &Name, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    let algorithm = Algorithm::from_library(*name)?;
    let key = PKey::private_key_from_der(key.as_bytes()).map_err(|error| provider_error(&error))?;
    if !algorithm.fits(&key) {
        return Err(new_error(ErrorKind::InvalidKeyFormat));
    }
    Ok(Box::new(OpenSslSigner { key, algorithm, name: *name }))
}

impl Signer<Vec<u8>> for OpenSslSigner {
    fn try_sign(&self, text: &[u8]) -> std::result::Result<Vec<u8>, SignatureError> {
        self.algorithm.sign(&self.key, text).map_err(SignatureError::from_source)
    }
}

impl JwtSigner for OpenSslSigner {
    fn algorithm(&self) -> Name {
        self.name
    }
}

struct OpenSslVerifier {
    key: PKey<Public>,
    algorithm: Algorithm,
    name: Name,
}

fn verifier(name: &Name, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    let algorithm = Algorithm::from_library(*name)?;
    if name.family() != key.family() {
        return Err(new_error(ErrorKind::InvalidKeyFormat));
    }
    let key = match (key.kind(), algorithm.curve()) {
        (DecodingKeyKind::SecretOrDer(point), Some(curve)) => curve_key(curve, point),
        (DecodingKeyKind::SecretOrDer(der), None) => {
            Rsa::public_key_from_der_pkcs1(der).and_then(PKey::from_rsa)
        }
        (DecodingKeyKind::RsaModulusExponent { n, e }, _) => rsa_key(n, e),
    };
    Ok(Box::new(OpenSslVerifier {
        key: key.map_err(|error| provider_error(&error))?,
        algorithm,
        name: *name,
    }))
}

/// The key of an uncompressed point, which is how the library holds keys on curves. A point of another curve is an error.
fn curve_key(curve: Nid, point: &[u8]) -> std::result::Result<PKey<Public>, ErrorStack> {
    let group = EcGroup::from_curve_name(curve)?;
    let point = EcPoint::from_bytes(&group, point, &mut *BigNumContext::new()?)?;
    PKey::from_ec_key(EcKey::from_public_key(&group, &point)?)
}

/// The key of these two numbers.
pub(super) fn rsa_key(n: &[u8], e: &[u8]) -> std::result::Result<PKey<Public>, ErrorStack> {
    PKey::from_rsa(Rsa::from_public_components(BigNum::from_slice(n)?, BigNum::from_slice(e)?)?)
}

impl Verifier<Vec<u8>> for OpenSslVerifier {
    fn verify(&self, text: &[u8], signature: &Vec<u8>) -> std::result::Result<(), SignatureError> {
        if self.algorithm.verifies(&self.key, text, signature) { Ok(()) } else { Err(SignatureError::new()) }
    }
}

impl JwtVerifier for OpenSslVerifier {
    fn algorithm(&self) -> Name {
        self.name
    }
}

fn provider_error(error: &ErrorStack) -> jsonwebtoken::errors::Error {
    new_error(ErrorKind::Provider(error.to_string()))
}
