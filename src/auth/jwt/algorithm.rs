//! Signature algorithms of tokens, implemented with OpenSSL.

use openssl::bn::BigNum;
use openssl::ecdsa::EcdsaSig;
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::md::Md;
use openssl::nid::Nid;
use openssl::pkey::{HasPublic, Id, PKeyRef, Private, Public};
use openssl::pkey_ctx::PkeyCtx;
use openssl::rsa::Padding;
use openssl::sha;
use openssl::sign::{RsaPssSaltlen, Signer};

use crate::pki::signatures;

/// An asymmetric signature algorithm. `none` and shared secrets are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// ECDSA on P-256.
    Es256,
    /// ECDSA on P-384.
    Es384,
    /// ECDSA on P-521.
    Es512,
    /// RSA-PSS with SHA-256.
    Ps256,
    /// RSA-PSS with SHA-384.
    Ps384,
    /// RSA-PSS with SHA-512.
    Ps512,
    /// RSA PKCS#1 v1.5 with SHA-256.
    Rs256,
    /// RSA PKCS#1 v1.5 with SHA-384.
    Rs384,
    /// RSA PKCS#1 v1.5 with SHA-512.
    Rs512,
}

/// The type of key that an algorithm needs.
enum Scheme {
    /// ECDSA on this curve; a signature is two integers of this many bytes.
    Curve(Nid, i32),
    Rsa(Padding),
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 9] = [
        Algorithm::Es256,
        Algorithm::Es384,
        Algorithm::Es512,
        Algorithm::Ps256,
        Algorithm::Ps384,
        Algorithm::Ps512,
        Algorithm::Rs256,
        Algorithm::Rs384,
        Algorithm::Rs512,
    ];

    /// The default algorithm of a key: the one of its curve, or RS256. `None` if tokens cannot be signed with such a key.
    pub fn for_key<T: HasPublic>(key: &PKeyRef<T>) -> Option<Algorithm> {
        let defaults = [Algorithm::Es256, Algorithm::Es384, Algorithm::Es512, Algorithm::Rs256];
        defaults.into_iter().find(|algorithm| algorithm.supports_key(key))
    }

    /// The algorithm of a JWT `alg` value.
    pub fn from_name(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// The JWT `alg` value.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Es256 => "ES256",
            Algorithm::Es384 => "ES384",
            Algorithm::Es512 => "ES512",
            Algorithm::Ps256 => "PS256",
            Algorithm::Ps384 => "PS384",
            Algorithm::Ps512 => "PS512",
            Algorithm::Rs256 => "RS256",
            Algorithm::Rs384 => "RS384",
            Algorithm::Rs512 => "RS512",
        }
    }

    /// Whether the algorithm can use such a key.
    pub fn supports_key<T: HasPublic>(self, key: &PKeyRef<T>) -> bool {
        match self.scheme() {
            Scheme::Rsa(_) => key.id() == Id::RSA,
            Scheme::Curve(curve, _) => {
                key.id() == Id::EC && key.ec_key().is_ok_and(|key| key.group().curve_name() == Some(curve))
            }
        }
    }

    /// The curve of the algorithm.
    pub fn curve(self) -> Option<Nid> {
        match self.scheme() {
            Scheme::Curve(curve, _) => Some(curve),
            Scheme::Rsa(_) => None,
        }
    }

    /// The bytes of r and s in an ECDSA signature, and of a key's coordinates; 0 for RSA.
    pub fn number_bytes(self) -> i32 {
        match self.scheme() {
            Scheme::Curve(_, bytes) => bytes,
            Scheme::Rsa(_) => 0,
        }
    }

    fn scheme(self) -> Scheme {
        match self {
            Algorithm::Es256 => Scheme::Curve(Nid::X9_62_PRIME256V1, 32),
            Algorithm::Es384 => Scheme::Curve(Nid::SECP384R1, 48),
            Algorithm::Es512 => Scheme::Curve(Nid::SECP521R1, 66),
            Algorithm::Ps256 | Algorithm::Ps384 | Algorithm::Ps512 => Scheme::Rsa(Padding::PKCS1_PSS),
            Algorithm::Rs256 | Algorithm::Rs384 | Algorithm::Rs512 => Scheme::Rsa(Padding::PKCS1),
        }
    }

    fn digest(self) -> MessageDigest {
        match self {
            Algorithm::Es256 | Algorithm::Ps256 | Algorithm::Rs256 => MessageDigest::sha256(),
            Algorithm::Es384 | Algorithm::Ps384 | Algorithm::Rs384 => MessageDigest::sha384(),
            Algorithm::Es512 | Algorithm::Ps512 | Algorithm::Rs512 => MessageDigest::sha512(),
        }
    }

    /// Signs a text.
    pub(super) fn sign(self, key: &PKeyRef<Private>, text: &[u8]) -> Result<Vec<u8>, ErrorStack> {
        match self.scheme() {
            Scheme::Rsa(padding) => {
                let mut signer = Signer::new(self.digest(), key)?;
                signer.set_rsa_padding(padding)?;
                if padding == Padding::PKCS1_PSS {
                    signer.set_rsa_mgf1_md(self.digest())?;
                    signer.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)?;
                }
                signer.update(text)?;
                signer.sign_to_vec()
            }
            Scheme::Curve(_, bytes) => {
                let signature = EcdsaSig::sign(&self.compute_digest(text), &*key.ec_key()?)?;
                Ok([signature.r().to_vec_padded(bytes)?, signature.s().to_vec_padded(bytes)?].concat())
            }
        }
    }

    /// The digest that is signed in place of a text.
    pub(super) fn compute_digest(self, text: &[u8]) -> Vec<u8> {
        match self {
            Algorithm::Es256 | Algorithm::Ps256 | Algorithm::Rs256 => crate::auth::digest(text).to_vec(),
            Algorithm::Es384 | Algorithm::Ps384 | Algorithm::Rs384 => sha::sha384(text).to_vec(),
            Algorithm::Es512 | Algorithm::Ps512 | Algorithm::Rs512 => sha::sha512(text).to_vec(),
        }
    }

    /// A context that verifies digests with this RSA key; `None` for ECDSA.
    pub(super) fn rsa_context(self, key: &PKeyRef<Public>) -> Result<Option<PkeyCtx<Public>>, ErrorStack> {
        let Scheme::Rsa(padding) = self.scheme() else { return Ok(None) };
        let digest = match self {
            Algorithm::Ps384 | Algorithm::Rs384 => Md::sha384(),
            Algorithm::Ps512 | Algorithm::Rs512 => Md::sha512(),
            _ => Md::sha256(),
        };
        let mut context = PkeyCtx::new(key)?;
        context.verify_init()?;
        context.set_rsa_padding(padding)?;
        context.set_signature_md(digest)?;
        if padding == Padding::PKCS1_PSS {
            context.set_rsa_mgf1_md(digest)?;
            context.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)?;
        }
        Ok(Some(context))
    }

    /// Verifies an ECDSA signature.
    pub(super) fn verify_ecdsa(
        self,
        key: &PKeyRef<Public>,
        digest: &[u8],
        signature: &[u8],
    ) -> Result<bool, ErrorStack> {
        let length = usize::try_from(self.number_bytes()).unwrap_or_default();
        if signature.len() != 2 * length {
            return Ok(false);
        }
        let (r, s) = signature.split_at(length);
        let signature = EcdsaSig::from_private_components(BigNum::from_slice(r)?, BigNum::from_slice(s)?)?;
        let key = key.ec_key()?;
        Ok(signatures::digest_is_signed_by(&signature, digest, &key))
    }
}
