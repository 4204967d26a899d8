//! The keys of service account tokens: one that signs, and all that verify.

use std::path::Path;

use openssl::ec::EcKey;
use openssl::nid::Nid;
use openssl::pkey::{HasPublic, Id, PKey, PKeyRef, Private, Public};
use openssl::rsa::Rsa;
use openssl::x509::X509;

use super::files::{self, Folder};
use super::shared_keys::DIFFERENT;
use super::{PkiError, authority, content_error};
use crate::config::Config;

/// The shortest accepted RSA key, as in Go.
const SHORTEST_RSA_BITS: u32 = 1_024;

/// The keys of service account tokens. Each is RSA, or ECDSA on P-256, P-384 or P-521.
#[derive(Clone)]
pub struct TokenKeys {
    /// Signs new tokens.
    pub signing: PKey<Private>,
    /// Verify tokens: the public key of the signing key first, then the keys of flags, in order, or else the serving key.
    pub verifying: Vec<PKey<Public>>,
}

impl std::fmt::Debug for TokenKeys {
    /// Shows no key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenKeys").field("verifying", &self.verifying.len()).finish_non_exhaustive()
    }
}

/// Loads the keys that flags name; without a signing key, that of the directory, which the first start creates. `None` with an external
/// signer: then no key of this server may sign or verify tokens.
pub(super) fn prepare(config: &Config, folder: &mut Folder) -> Result<Option<TokenKeys>, PkiError> {
    let accounts = &config.service_accounts;
    if accounts.signing_endpoint().is_some() {
        return Ok(None);
    }
    let (signing, path) = match &accounts.service_account_signing_key_file {
        Some(path) => (private_key(path, &files::read(path)?)?, path.clone()),
        None => (load_signing_key(folder)?, folder.path(SIGNING_KEY)),
    };
    if !can_sign(&signing) {
        return Err(content_error(&path, UNSUPPORTED_KEY));
    }
    let mut verifying = vec![public_key(&signing)?];
    for path in &accounts.service_account_key_file {
        let keys = public_keys(&files::read(path)?);
        if keys.is_empty() {
            return Err(content_error(path, "has no PEM key or certificate"));
        }
        for key in keys {
            if !can_sign(&key) {
                return Err(content_error(path, UNSUPPORTED_KEY));
            }
            if !verifying.iter().any(|other| other.public_eq(&key)) {
                verifying.push(key);
            }
        }
    }
    // Without any key flag, the serving key verifies as well, if its type can. Not beside a signing key: then the holder of the
    // serving key could unexpectedly issue tokens.
    let is_named = accounts.service_account_signing_key_file.is_some();
    let serving_key_file = config.serving.tls_private_key_file.as_ref().filter(|_| !is_named);
    if let Some(path) = serving_key_file.filter(|_| accounts.service_account_key_file.is_empty()) {
        let keys = public_keys(&files::read(path)?).into_iter().take(1).filter(|key| can_sign(key));
        let new: Vec<_> = keys.filter(|key| !verifying.iter().any(|other| other.public_eq(key))).collect();
        verifying.extend(new);
    }
    Ok(Some(TokenKeys { signing, verifying }))
}

const UNSUPPORTED_KEY: &str = "has a key that cannot sign tokens: it must be RSA of at least 1024 bits, or ECDSA on P-256, P-384 or P-521";

/// The file of the key that signs, and of its public half.
const SIGNING_KEY: &str = "sa.key";
const PUBLIC_KEY: &str = "sa.pub";

fn load_signing_key(folder: &mut Folder) -> Result<PKey<Private>, PkiError> {
    let pem = match folder.read(SIGNING_KEY)? {
        Some(pem) => pem,
        None => {
            let pem = new_signing_key()?;
            folder.stage_private(SIGNING_KEY, &pem);
            pem
        }
    };
    let signing = private_key(&folder.path(SIGNING_KEY), &pem)?;
    stage_public_key(folder, &signing)?;
    Ok(signing)
}

/// A new key in the older format, because other API servers read only that one.
fn new_signing_key() -> Result<Vec<u8>, PkiError> {
    Ok(authority::new_key()?.ec_key()?.private_key_to_pem()?)
}

/// Stages the public half of a signing key, unless the directory has it in any form.
fn stage_public_key(folder: &mut Folder, signing: &PKey<Private>) -> Result<(), PkiError> {
    let stored = folder.read(PUBLIC_KEY)?.unwrap_or_default();
    if !public_keys(&stored).iter().any(|key| key.public_eq(signing)) {
        folder.stage_public(PUBLIC_KEY, &signing.public_key_to_pem()?);
    }
    Ok(())
}

/// Stages the same signing key in all directories: the one that any of them has, or a new one.
pub(super) fn share(folders: &mut [Folder]) -> Result<(), PkiError> {
    let mut common: Option<(PKey<Private>, Vec<u8>)> = None;
    for folder in folders.iter() {
        let Some(pem) = folder.read(SIGNING_KEY)? else { continue };
        let key = private_key(&folder.path(SIGNING_KEY), &pem)?;
        match &common {
            Some((other, _)) if !other.public_eq(&key) => {
                return Err(content_error(&folder.path(SIGNING_KEY), DIFFERENT));
            }
            Some(_) => {}
            None => common = Some((key, pem)),
        }
    }
    let (key, pem) = match common {
        Some(common) => common,
        None => {
            let pem = new_signing_key()?;
            (private_key(Path::new(SIGNING_KEY), &pem)?, pem)
        }
    };
    for folder in folders {
        if folder.read(SIGNING_KEY)?.is_none() {
            folder.stage_private(SIGNING_KEY, &pem);
        }
        stage_public_key(folder, &key)?;
    }
    Ok(())
}

fn private_key(path: &Path, pem: &[u8]) -> Result<PKey<Private>, PkiError> {
    blocks(pem).find_map(decode_private).ok_or_else(|| content_error(path, "has no PEM private key"))
}

/// An encrypted key counts as none. Without an empty passphrase OpenSSL would prompt for one.
fn decode_private(block: &[u8]) -> Option<PKey<Private>> {
    PKey::private_key_from_pem_passphrase(block, b"").ok()
}

/// The public keys of a file of public keys, private keys and certificates.
fn public_keys(pem: &[u8]) -> Vec<PKey<Public>> {
    blocks(pem).filter_map(decode_public).collect()
}

fn decode_public(block: &[u8]) -> Option<PKey<Public>> {
    PKey::public_key_from_pem(block)
        .ok()
        .or_else(|| Rsa::public_key_from_pem_pkcs1(block).and_then(PKey::from_rsa).ok())
        .or_else(|| X509::from_pem(block).and_then(|certificate| certificate.public_key()).ok())
        .or_else(|| public_key(&decode_private(block)?).ok())
}

fn public_key(key: &PKey<Private>) -> Result<PKey<Public>, openssl::error::ErrorStack> {
    PKey::public_key_from_der(&key.public_key_to_der()?)
}

/// The PEM blocks of a file, each with its delimiters. Text between them is ignored.
fn blocks(pem: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = pem;
    std::iter::from_fn(move || {
        let start = memchr::memmem::find(rest, b"-----BEGIN ")?;
        let block = rest.get(start..)?;
        let end = memchr::memmem::find(block, b"-----END ")?;
        let tail = block.get(end..)?;
        let length = end + memchr::memchr(b'\n', tail).map_or(tail.len(), |line| line + 1);
        rest = block.get(length..)?;
        block.get(..length)
    })
}

/// Whether tokens can be signed with this type of key.
fn can_sign<T: HasPublic>(key: &PKeyRef<T>) -> bool {
    match key.id() {
        Id::RSA => key.bits() >= SHORTEST_RSA_BITS,
        Id::EC => key.ec_key().is_ok_and(|key| curve(&key).is_some()),
        _ => false,
    }
}

/// The curve of a key, if tokens can be signed on it.
fn curve<T: HasPublic>(key: &EcKey<T>) -> Option<Nid> {
    let supported = [Nid::X9_62_PRIME256V1, Nid::SECP384R1, Nid::SECP521R1];
    key.group().curve_name().filter(|name| supported.contains(name))
}

#[cfg(test)]
mod tests {
    use openssl::ec::EcGroup;

    use super::*;

    fn ec(curve: Nid) -> PKey<Private> {
        PKey::from_ec_key(EcKey::generate(&EcGroup::from_curve_name(curve).unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn token_key_file_accepts_all_pem_formats() {
        let rsa = Rsa::generate(2_048).unwrap();
        let curves = [Nid::X9_62_PRIME256V1, Nid::SECP384R1, Nid::SECP521R1].map(ec);
        let mut file = b"remarks\n".to_vec();
        file.extend(rsa.public_key_to_pem_pkcs1().unwrap());
        file.extend(rsa.private_key_to_pem().unwrap());
        file.extend(curves[0].public_key_to_pem().unwrap());
        file.extend(b"-----BEGIN NOTHING-----\nAAAA\n-----END NOTHING-----\n");
        file.extend(curves[1].private_key_to_pem_pkcs8().unwrap());
        file.extend(curves[2].ec_key().unwrap().private_key_to_pem().unwrap());
        let keys = public_keys(&file);
        let rsa = PKey::from_rsa(rsa).unwrap();
        let expected = [&rsa, &rsa, &curves[0], &curves[1], &curves[2]];
        assert_eq!(keys.len(), expected.len());
        for (key, expected) in keys.iter().zip(expected) {
            assert!(key.public_eq(expected));
            assert!(can_sign(key) && can_sign(expected));
        }
        assert!(private_key(Path::new("x"), &file).unwrap().public_eq(&rsa));
    }

    #[test]
    fn unsupported_keys_cannot_sign_tokens() {
        assert!(!can_sign(&ec(Nid::SECP256K1)));
        assert!(!can_sign(&PKey::generate_ed25519().unwrap()));
        assert!(!can_sign(&PKey::from_rsa(Rsa::generate(512).unwrap()).unwrap()));
    }

    #[test]
    fn encrypted_token_key_is_ignored_without_prompt() {
        let key = ec(Nid::X9_62_PRIME256V1);
        let encrypted =
            key.private_key_to_pem_pkcs8_passphrase(openssl::symm::Cipher::aes_128_cbc(), b"secret").unwrap();
        assert!(private_key(Path::new("x"), &encrypted).is_err());
        assert!(public_keys(&encrypted).is_empty());
    }

    proptest::proptest! {
        #[test]
        fn token_key_parser_never_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = public_keys(&bytes);
            let framed = [b"-----BEGIN X-----\n".as_slice(), &bytes, b"\n-----END X"].concat();
            assert!(blocks(&framed).all(|block| block.starts_with(b"-----BEGIN ")));
            let _ = public_keys(&framed);
        }
    }
}
