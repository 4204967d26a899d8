//! Keys and certificates. On the first start everything a server needs is made; later starts use what is there, and
//! make anew only what no longer fits: a serving certificate that lacks a name of this host or is about to expire.
//!
//! | file | what it is |
//! |---|---|
//! | `ca.crt`, `ca.key` | the authority of everything made here |
//! | `apiserver.crt`, `apiserver.key` | the serving certificate; one that another authority issued is used as it is, if it is known who verifies it |
//! | `admin.crt`, `admin.key` | client certificate of an administrator |
//! | `sa.key`, `sa.pub` | what signs the tokens of service accounts |
//!
//! Each file appears whole or not at all, a key before its certificate: so a certificate without a key is an
//! operator's mistake and not the trace of a crash, and a key alone is simply replaced.
//!
//! Clients are told to trust what verifies the serving certificate: the end of the chain in its file, the authority of this
//! server, one of `--client-ca-file`, or as much of the chain as there is. If nothing does, a certificate that was made
//! here is made anew: its authority was replaced. Another one in the folder is refused, because nobody could verify it. One that
//! a flag names is served all the same, and clients are told to trust it and nothing else.

mod authority;
mod files;
pub(crate) mod host;
mod kubeconfig;
pub mod signers;
pub mod signing;
#[cfg(test)]
pub mod testing;
mod token_keys;
mod trust;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use openssl::pkey::{PKey, Private};
use openssl::x509::X509;

use authority::{Authority, Purpose};
use files::Folder;

use crate::config::{Config, NamedCertificate, Serving};
pub use host::Names;
pub(crate) use host::url;
use pilothouse_apimachinery::well_known;
use pilothouse_apimachinery::well_known::SERVER_NAME;
use pilothouse_types::clock::Clock;
pub use token_keys::TokenKeys;

/// An error about a key, a certificate or its file.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("{doing} {path}: {source}")]
    File {
        /// `cannot read` or the like.
        doing: &'static str,
        /// The path of the file.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file has the wrong content.
    #[error("{path}: {why}")]
    Content {
        /// The path of the file.
        path: String,
        /// The expected contents.
        why: &'static str,
    },
    /// OpenSSL failed.
    #[error("cannot make a certificate: {0}")]
    Crypto(#[from] openssl::error::ErrorStack),
}

/// The files of the server's own CA.
const AUTHORITY: (&str, &str) = ("ca.crt", "ca.key");

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
    pub named: Vec<Named>,
    /// The CA bundle that clients must trust, as PEM.
    pub serving_ca_pem: Vec<u8>,
    /// The CAs of client certificates, as PEM: the server's own and those of a flag.
    pub client_ca_pem: Vec<u8>,
    /// The CAs of the front proxy, as PEM; `None` without one.
    pub proxy_ca_pem: Option<Vec<u8>>,
    /// The administrator's client certificate.
    pub admin: Identity,
    /// The keys behind service account tokens.
    pub tokens: TokenKeys,
    /// The server's own CA, which also signs certificate requests.
    pub authority: Identity,
    /// The administrator's kubeconfig, as text.
    pub kubeconfig: String,
    /// The path of the kubeconfig, if the server writes files.
    pub kubeconfig_path: Option<PathBuf>,
}

/// A serving certificate for certain names. The first of several for one name counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The certificate and its key.
    pub identity: Identity,
    /// Lower-case names; a star stands for any first label, and addresses are for clients without SNI.
    pub names: Vec<String>,
}

/// Loads existing files and creates missing ones. `bound` is the address that the server listens on.
pub fn prepare(config: &Config, bound: SocketAddr, clock: &Clock) -> Result<Pki, PkiError> {
    let mut folder = Folder::open(config.cert_dir())?;
    let authority = match own_authority(&folder)? {
        Some(authority) => authority,
        None => {
            let authority = Authority::create(clock.now())?;
            folder.stage_pair(AUTHORITY, &authority.identity()?);
            authority
        }
    };
    complete(config, bound, clock, folder, &authority)
}

/// Reloads files at run time, and creates missing ones except for the CA: a new CA would invalidate all issued certificates, and
/// a file that is being replaced is missing for a moment.
pub fn renew(config: &Config, bound: SocketAddr, clock: &Clock) -> Result<Pki, PkiError> {
    let folder = Folder::open(config.cert_dir())?;
    let Some(authority) = own_authority(&folder)? else {
        let path = config.cert_dir().unwrap_or_default().join(AUTHORITY.0);
        return Err(content(&path, "is missing or empty"));
    };
    complete(config, bound, clock, folder, &authority)
}

fn complete(
    config: &Config,
    bound: SocketAddr,
    clock: &Clock,
    mut folder: Folder,
    authority: &Authority,
) -> Result<Pki, PkiError> {
    let names = Names::of(config, bound);
    let (serving, serving_ca_pem) = serving(config, &mut folder, authority, &names, clock)?;
    let admin = admin(&mut folder, authority, clock)?;
    let tokens = token_keys::prepare(config, &mut folder)?;
    let mut client_ca_pem = authority.certificate_pem()?;
    if let Some(path) = &config.authentication.client_ca_file {
        client_ca_pem.extend_from_slice(&bundle(path)?);
    }
    let proxy_ca_pem = config.front_proxy.requestheader_client_ca_file.as_deref().map(bundle).transpose()?;
    let named = named(&config.serving)?;
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
        named,
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
fn named(flags: &Serving) -> Result<Vec<Named>, PkiError> {
    let (said, own): (Vec<_>, Vec<_>) = flags.tls_sni_cert_key.iter().partition(|one| !one.names.is_empty());
    let read = |flag: &NamedCertificate| {
        let certificates_pem = files::read(&flag.certificate)?;
        let identity = Identity { certificates_pem, key_pem: files::read(&flag.key)? };
        let (leaf, _) = check_pair(&flag.certificate, &flag.key, &identity)?;
        let mut names = flag.names.clone();
        if names.is_empty() {
            names = host::names_of(&leaf);
        }
        names.iter_mut().for_each(|name| name.make_ascii_lowercase());
        Ok(Named { identity, names })
    };
    said.into_iter().chain(own).map(read).collect()
}

/// The CA bundle that a flag names.
fn bundle(path: &Path) -> Result<Vec<u8>, PkiError> {
    let bundle = files::read(path)?;
    match X509::stack_from_pem(&bundle) {
        Ok(found) if !found.is_empty() => Ok(bundle),
        _ => Err(content(path, "has no PEM certificate")),
    }
}

fn content(path: &Path, why: &'static str) -> PkiError {
    PkiError::Content { path: path.display().to_string(), why }
}

fn own_authority(folder: &Folder) -> Result<Option<Authority>, PkiError> {
    let Some(found) = folder.pair(AUTHORITY.0, AUTHORITY.1)? else { return Ok(None) };
    let (certificate, key) = parse(folder, AUTHORITY, &found)?;
    Ok(Some(Authority::new(certificate, key)))
}

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
        let found = Identity { certificates_pem: files::read(certificate)?, key_pem: files::read(key)? };
        let (leaf, _) = check_pair(certificate, key, &found)?;
        let trusted = match verifier(config, authority, &found)? {
            Some(trusted) => trusted,
            None => itself(certificate, &leaf)?,
        };
        return Ok((found, trusted));
    }
    let own = authority.certificate_pem()?;
    let pair = ("apiserver.crt", "apiserver.key");
    if let Some(found) = folder.pair(pair.0, pair.1)? {
        let (certificate, _) = parse(folder, pair, &found)?;
        if !authority.claims(&certificate) {
            if let Some(trusted) = verifier(config, authority, &found)? {
                return Ok((found, trusted));
            }
            // A certificate that an operator put here is served as it is.
            if !trust::was_made_here(&certificate, SERVER_NAME, authority::AUTHORITY_NAME) {
                let trusted = itself(&folder.path(pair.0), &certificate)?;
                return Ok((found, trusted));
            }
        }
        if authority.issued(&certificate) && authority::serves(&certificate, names, clock.now())? {
            return Ok((found, own));
        }
    }
    let made = authority.issue(&Purpose::Serving(names), clock.now())?;
    folder.stage_pair(pair, &made);
    Ok((made, own))
}

/// Tells clients to trust the serving certificate itself, because nothing else verifies it.
fn itself(path: &Path, leaf: &X509) -> Result<Vec<u8>, PkiError> {
    let path = path.display();
    tracing::warn!(%path, "the serving certificate has no issuer in its file: the admin kubeconfig trusts this one certificate. Add its chain to the file");
    Ok(leaf.to_pem()?)
}

/// The CA bundle that verifies an operator's serving certificate; `None` if it is unknown.
fn verifier(config: &Config, authority: &Authority, found: &Identity) -> Result<Option<Vec<u8>>, PkiError> {
    let chain = X509::stack_from_pem(&found.certificates_pem)?;
    let mut known = vec![authority.certificate()];
    if let Some(path) = &config.authentication.client_ca_file {
        known.extend(X509::stack_from_pem(&bundle(path)?)?);
    }
    Ok(trust::root_of(&chain, &known)?.map(|root| root.to_pem()).transpose()?)
}

fn admin(folder: &mut Folder, authority: &Authority, clock: &Clock) -> Result<Identity, PkiError> {
    let pair = ("admin.crt", "admin.key");
    if let Some(found) = folder.pair(pair.0, pair.1)? {
        let (certificate, _) = parse(folder, pair, &found)?;
        if authority.issued(&certificate) && authority::lasts(&certificate, clock.now())? {
            return Ok(found);
        }
    }
    let purpose = Purpose::Client { user: "kubernetes-admin", group: well_known::MASTERS };
    let made = authority.issue(&purpose, clock.now())?;
    folder.stage_pair(pair, &made);
    Ok(made)
}

fn parse(folder: &Folder, pair: (&str, &str), found: &Identity) -> Result<(X509, PKey<Private>), PkiError> {
    check_pair(&folder.path(pair.0), &folder.path(pair.1), found)
}

fn check_pair(
    certificate_path: &Path,
    key_path: &Path,
    found: &Identity,
) -> Result<(X509, PKey<Private>), PkiError> {
    let certificate = X509::from_pem(&found.certificates_pem)
        .map_err(|_| content(certificate_path, "has no PEM certificate"))?;
    let key = PKey::private_key_from_pem(&found.key_pem)
        .map_err(|_| content(key_path, "has no PEM private key"))?;
    if !certificate.public_key()?.public_eq(&key) {
        return Err(content(key_path, "is not the key of the certificate beside it"));
    }
    Ok((certificate, key))
}

#[cfg(test)]
mod tests;
