//! Keys and certificates. The first start creates everything that a server needs; later starts use the existing files and
//! issue anew only what no longer fits: a serving certificate that lacks a name of this host or is about to expire.
//!
//! | file | contents |
//! |---|---|
//! | `ca.crt`, `ca.key` | the CA of everything issued here |
//! | `apiserver.crt`, `apiserver.key` | the serving certificate; one of another CA is used unchanged |
//! | `admin.crt`, `admin.key` | the administrator's client certificate |
//! | `sa.key`, `sa.pub` | the key pair of service account tokens |
//!
//! Files are replaced atomically, a key before its certificate: so a certificate without a key is an operator's mistake and not
//! left over from a crash, and a key without a certificate is replaced.
//!
//! The admin kubeconfig trusts the CA that verifies the serving certificate: the root of the chain in its file, the CA of this
//! server, one of `--client-ca-file`, or the last intermediate of the chain. If none does, a certificate that was issued here is
//! issued anew, because its CA was replaced. One of an operator, in the directory or named by a flag, is served nevertheless, and
//! the kubeconfig trusts that certificate alone.

mod authority;
mod files;
pub(crate) mod host;
mod kubeconfig;
pub(crate) mod random;
mod rsa_keys;
mod shared_keys;
pub(crate) mod signatures;
pub mod signers;
pub mod signing;
mod token_keys;
mod trust;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use openssl::pkey::{PKey, Private};
use openssl::x509::X509;

use authority::{Authority, Purpose};
use files::{Folder, PairFiles};

use crate::config::{Config, NamedCertificate, Serving};
pub use host::Names;
pub(crate) use host::url;
use pilothouse_apimachinery::well_known;
use pilothouse_apimachinery::well_known::SERVER_NAME;
use pilothouse_types::clock::Clock;
pub use shared_keys::{SharedKeys, share};
pub use token_keys::TokenKeys;

/// An error about a key, a certificate or its file.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("{action} {path}: {source}")]
    File {
        /// `cannot read` or the like.
        action: &'static str,
        /// The path of the file.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file has the wrong content.
    #[error("{path}: {reason}")]
    Content {
        /// The path of the file.
        path: String,
        /// The problem with its contents.
        reason: &'static str,
    },
    /// OpenSSL failed.
    #[error("cannot make a certificate: {0}")]
    Crypto(#[from] openssl::error::ErrorStack),
}

/// The files of the server's own CA.
const AUTHORITY: PairFiles = PairFiles { certificate: "ca.crt", key: "ca.key" };

/// A certificate chain with the key of its first certificate, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, followed by its intermediates.
    pub certificates_pem: Vec<u8>,
    /// The private key.
    pub key_pem: Vec<u8>,
}

impl std::fmt::Debug for Identity {
    /// Shows no key, because identities may be logged.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// All keys and certificates of a server.
#[derive(Clone, Debug)]
pub struct Pki {
    /// The serving certificate.
    pub serving: Identity,
    /// Serving certificates for certain names (SNI).
    pub sni_certificates: Vec<SniCertificate>,
    /// The CA bundle that clients must trust, as PEM.
    pub serving_ca_pem: Vec<u8>,
    /// The CAs of client certificates, as PEM: the server's own and those of a flag.
    pub client_ca_pem: Vec<u8>,
    /// The CAs of the front proxy, as PEM; `None` without one.
    pub proxy_ca_pem: Option<Vec<u8>>,
    /// The administrator's client certificate.
    pub admin: Identity,
    /// The keys behind service account tokens.
    pub tokens: Option<TokenKeys>,
    /// The server's own CA, which also signs certificate requests.
    pub authority: Identity,
    /// The administrator's kubeconfig, as text.
    pub kubeconfig: String,
    /// The path of the kubeconfig, if the server writes files.
    pub kubeconfig_path: Option<PathBuf>,
}

/// A serving certificate for certain names. The first of several for the same name is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SniCertificate {
    /// The certificate and its key.
    pub identity: Identity,
    /// Lower-case names; `*` stands for any first label, and addresses are for clients without SNI.
    pub names: Vec<String>,
}

/// Loads existing files and creates missing ones. `bound` is the address that the server listens on.
pub fn prepare(config: &Config, bound: SocketAddr, clock: &Clock) -> Result<Pki, PkiError> {
    let mut folder = Folder::open(config.cert_dir())?;
    let authority = match load_authority(&folder)? {
        Some(authority) => authority,
        None => {
            let authority = Authority::create(clock.now())?;
            folder.stage_pair(AUTHORITY, &authority.identity()?);
            authority
        }
    };
    load_or_issue(config, bound, clock, folder, &authority)
}

/// Reloads files at run time, and creates missing ones except for the CA: a new CA would invalidate all issued certificates, and
/// a file that is being replaced is missing for a moment.
pub fn renew(config: &Config, bound: SocketAddr, clock: &Clock) -> Result<Pki, PkiError> {
    let folder = Folder::open(config.cert_dir())?;
    let Some(authority) = load_authority(&folder)? else {
        let path = config.cert_dir().unwrap_or_default().join(AUTHORITY.certificate);
        return Err(content_error(&path, "is missing or empty"));
    };
    load_or_issue(config, bound, clock, folder, &authority)
}

/// Loads the remaining keys and certificates, or issues them.
fn load_or_issue(
    config: &Config,
    bound: SocketAddr,
    clock: &Clock,
    mut folder: Folder,
    authority: &Authority,
) -> Result<Pki, PkiError> {
    let names = Names::from_config(config, bound);
    let (serving, serving_ca_pem) = serving(config, &mut folder, authority, &names, clock)?;
    let admin = admin(&mut folder, authority, clock)?;
    let tokens = token_keys::prepare(config, &mut folder)?;
    let mut client_ca_pem = authority.certificate_pem()?;
    if let Some(path) = &config.authentication.client_ca_file {
        client_ca_pem.extend_from_slice(&read_bundle(path)?);
    }
    let proxy_ca_pem =
        config.front_proxy.requestheader_client_ca_file.as_deref().map(read_bundle).transpose()?;
    let sni_certificates = sni_certificates(&config.serving)?;
    folder.commit()?;

    let kubeconfig = kubeconfig::render(&host::url(bound), &serving_ca_pem, &admin);
    let kubeconfig_path = config.storage.data_dir.as_ref().map(|data| data.join("admin.kubeconfig"));
    if let Some(path) = &kubeconfig_path
        && std::fs::read(path).ok().as_deref() != Some(kubeconfig.as_bytes())
    {
        path.parent().map_or(Ok(()), files::make_directory)?;
        files::replace(&[(path.clone(), kubeconfig.clone().into_bytes(), files::Secrecy::Private)])?;
    }
    let authority = authority.identity()?;
    Ok(Pki {
        serving,
        sni_certificates,
        serving_ca_pem,
        client_ca_pem,
        proxy_ca_pem,
        admin,
        tokens,
        authority,
        kubeconfig,
        kubeconfig_path,
    })
}

/// The certificates of `--tls-sni-cert-key`: those with names in the flag before those without.
fn sni_certificates(flags: &Serving) -> Result<Vec<SniCertificate>, PkiError> {
    let (with_names, without): (Vec<_>, Vec<_>) =
        flags.tls_sni_cert_key.iter().partition(|certificate| !certificate.names.is_empty());
    let read = |flag: &NamedCertificate| {
        let certificates_pem = files::read(&flag.certificate)?;
        let identity = Identity { certificates_pem, key_pem: files::read(&flag.key)? };
        let (leaf, _) = check_pair(&flag.certificate, &flag.key, &identity)?;
        let mut names = flag.names.clone();
        if names.is_empty() {
            names = host::certificate_names(&leaf);
        }
        names.iter_mut().for_each(|name| name.make_ascii_lowercase());
        Ok(SniCertificate { identity, names })
    };
    with_names.into_iter().chain(without).map(read).collect()
}

/// Reads the CA bundle that a flag names. One without a certificate is refused: it would leave the choice to the CAs of the system.
pub(crate) fn read_bundle(path: &Path) -> Result<Vec<u8>, PkiError> {
    let pem = files::read(path)?;
    match X509::stack_from_pem(&pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(pem),
        _ => Err(content_error(path, "has no PEM certificate")),
    }
}

fn content_error(path: &Path, reason: &'static str) -> PkiError {
    PkiError::Content { path: path.display().to_string(), reason }
}

fn load_authority(folder: &Folder) -> Result<Option<Authority>, PkiError> {
    let Some(identity) = folder.pair(AUTHORITY)? else { return Ok(None) };
    let (certificate, key) = parse_pair(folder, AUTHORITY, &identity)?;
    Ok(Some(Authority::new(certificate, key)))
}

/// The serving certificate, and the CA bundle that verifies it.
fn serving(
    config: &Config,
    folder: &mut Folder,
    authority: &Authority,
    names: &Names,
    clock: &Clock,
) -> Result<(Identity, Vec<u8>), PkiError> {
    if let (Some(certificate), Some(key)) =
        (&config.serving.tls_cert_file, &config.serving.tls_private_key_file)
    {
        let identity = Identity { certificates_pem: files::read(certificate)?, key_pem: files::read(key)? };
        let (leaf, _) = check_pair(certificate, key, &identity)?;
        let trusted = match find_trust_anchor(config, authority, &identity)? {
            Some(trusted) => trusted,
            None => trust_leaf_only(certificate, &leaf)?,
        };
        return Ok((identity, trusted));
    }
    let own_ca_pem = authority.certificate_pem()?;
    let pair = PairFiles { certificate: "apiserver.crt", key: "apiserver.key" };
    if let Some(identity) = folder.pair(pair)? {
        let (certificate, _) = parse_pair(folder, pair, &identity)?;
        if !authority.has_issuer_name(&certificate) {
            if let Some(trusted) = find_trust_anchor(config, authority, &identity)? {
                return Ok((identity, trusted));
            }
            // A certificate that an operator put here is served as it is.
            if !trust::was_issued_here(&certificate, SERVER_NAME, authority::AUTHORITY_NAME) {
                let trusted = trust_leaf_only(&folder.path(pair.certificate), &certificate)?;
                return Ok((identity, trusted));
            }
        }
        if authority.has_issued(&certificate)
            && authority::is_valid_for_names(&certificate, names, clock.now())?
        {
            return Ok((identity, own_ca_pem));
        }
    }
    let issued = authority.issue(&Purpose::Serving(names), clock.now())?;
    folder.stage_pair(pair, &issued);
    Ok((issued, own_ca_pem))
}

/// Trusts the serving certificate itself, because no known CA verifies it.
fn trust_leaf_only(path: &Path, leaf: &X509) -> Result<Vec<u8>, PkiError> {
    let path = path.display();
    tracing::warn!(%path, "the serving certificate has no issuer in its file: the admin kubeconfig trusts this one certificate. Add its chain to the file");
    Ok(leaf.to_pem()?)
}

/// The CA bundle that verifies an operator's serving certificate; `None` if it is unknown.
fn find_trust_anchor(
    config: &Config,
    authority: &Authority,
    identity: &Identity,
) -> Result<Option<Vec<u8>>, PkiError> {
    let chain = X509::stack_from_pem(&identity.certificates_pem)?;
    let mut candidates = vec![authority.certificate()];
    if let Some(path) = &config.authentication.client_ca_file {
        candidates.extend(X509::stack_from_pem(&read_bundle(path)?)?);
    }
    Ok(trust::find_anchor(&chain, &candidates)?.map(|root| root.to_pem()).transpose()?)
}

fn admin(folder: &mut Folder, authority: &Authority, clock: &Clock) -> Result<Identity, PkiError> {
    let pair = PairFiles { certificate: "admin.crt", key: "admin.key" };
    if let Some(identity) = folder.pair(pair)? {
        let (certificate, _) = parse_pair(folder, pair, &identity)?;
        if authority.has_issued(&certificate) && authority::is_valid_with_margin(&certificate, clock.now())? {
            return Ok(identity);
        }
    }
    let key = match folder.key_without_certificate(pair)? {
        Some(key) => {
            let path = folder.path(pair.key);
            tracing::info!(path = %path.display(), "the administrator gets a certificate for the key that is there");
            key
        }
        None if folder.has_directory() => PKey::from_rsa(rsa_keys::generate()?)?,
        // Nobody reads it from a file, so it may be of a kind that is made faster.
        None => authority::new_key()?,
    };
    let purpose = Purpose::Client { user: "kubernetes-admin", group: well_known::MASTERS };
    let issued = authority.issue_for(&key, &purpose, clock.now())?;
    folder.stage_pair(pair, &issued);
    Ok(issued)
}

fn parse_pair(
    folder: &Folder,
    pair: PairFiles,
    identity: &Identity,
) -> Result<(X509, PKey<Private>), PkiError> {
    check_pair(&folder.path(pair.certificate), &folder.path(pair.key), identity)
}

fn check_pair(
    certificate_path: &Path,
    key_path: &Path,
    identity: &Identity,
) -> Result<(X509, PKey<Private>), PkiError> {
    let certificate = X509::from_pem(&identity.certificates_pem)
        .map_err(|_| content_error(certificate_path, "has no PEM certificate"))?;
    let key = PKey::private_key_from_pem(&identity.key_pem)
        .map_err(|_| content_error(key_path, "has no PEM private key"))?;
    if !certificate.public_key()?.public_eq(&key) {
        return Err(content_error(key_path, "is not the key of the certificate beside it"));
    }
    Ok((certificate, key))
}

#[cfg(test)]
mod tests;
