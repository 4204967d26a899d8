//! OpenSSL as the cryptography provider of `jsonwebtoken`.
//!
//! The library has one provider per process and panics without one. So it is installed before the first signing key is made.

use std::sync::LazyLock;

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error as SignatureError, Signer};
use jsonwebtoken::{Algorithm as Name, EncodingKey};
use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Private};

use super::{Algorithm, Error};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    // Signatures are verified with prepared keys, and JWKs are written in another field order and support P-521. So these
    // functions are never called. They return an error instead of a panic.
    verifier_factory: |_, _| Err(unsupported()),
    key_utils: KeyUtils {
        rsa_pub_components_from_private_key: |_| Err(unsupported()),
        rsa_pub_components_from_public_key: |_| Err(unsupported()),
        ec_pub_components_from_private_key: |_, _| Err(unsupported()),
        ed_pub_components_from_private_key: |_, _| Err(unsupported()),
        compute_digest: |_, _| Err(unsupported()),
    },
};

/// Whether this provider could be installed.
static IS_INSTALLED: LazyLock<bool> = LazyLock::new(|| PROVIDER.install_default().is_ok());

/// Installs OpenSSL as the provider; only the first call has an effect. Fails if the embedding process has installed another
/// provider: it is unknown what that accepts, or whether it panics.
pub(super) fn install() -> std::result::Result<(), Error> {
    if *IS_INSTALLED { Ok(()) } else { Err(Error::OtherProvider) }
}

impl Algorithm {
    /// The library's name of the algorithm; `None` if it has none.
    pub(super) fn library_name(self) -> Option<Name> {
        self.name().parse().ok()
    }

    fn from_library(name: Name) -> Result<Algorithm> {
        let algorithm = Algorithm::ALL.into_iter().find(|algorithm| algorithm.library_name() == Some(name));
        algorithm.ok_or_else(unsupported)
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
    if !algorithm.supports_key(&key) {
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

fn provider_error(error: &ErrorStack) -> jsonwebtoken::errors::Error {
    new_error(ErrorKind::Provider(error.to_string()))
}
