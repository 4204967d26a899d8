//! The CAs of the built-in signers: the server's own, or those that flags name.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use pilothouse_apimachinery::well_known::signers::{CLIENT, KUBELET, LEGACY, SERVING};

use super::signing::Signer;
use super::{Identity, Pki, PkiError, check_pair, files};
use crate::config::Config;
use crate::config::signing::{SigningAuthority, SigningFiles};

/// The CA of each signer that has one.
#[derive(PartialEq)]
pub struct Signers(BTreeMap<&'static str, Arc<Signer>>);

impl Signers {
    /// Loads the CAs that the flags name.
    pub fn open(config: &Config, pki: &Pki) -> Result<Signers, PkiError> {
        let all_signers = |signer: Arc<Signer>| {
            [SERVING, KUBELET, CLIENT, LEGACY].map(|name| (name, signer.clone())).into()
        };
        let flag_error = |reason| PkiError::Content { path: "--cluster-signing-*-file".to_owned(), reason };
        let signing_authority =
            config.signing.signing_authority().map_err(|_| flag_error("do not go together"))?;
        let signers = match signing_authority {
            SigningAuthority::Own => all_signers(Arc::new(Signer::new(&pki.authority)?)),
            SigningAuthority::Shared(certificate, key) => all_signers(read(certificate, key)?),
            SigningAuthority::Separate(pairs) => {
                let mut signers = BTreeMap::new();
                for SigningFiles { signer, pair } in pairs {
                    if let Some((certificate, key)) = pair {
                        signers.insert(signer, read(certificate, key)?);
                    }
                }
                signers
            }
        };
        Ok(Signers(signers))
    }

    /// The CA of the signer of this name, if it has one.
    pub fn get(&self, name: &str) -> Option<&Signer> {
        self.0.get(name).map(AsRef::as_ref)
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<Signer>, PkiError> {
    let identity = Identity { certificates_pem: files::read(certificate)?, key_pem: files::read(key)? };
    check_pair(certificate, key, &identity)?;
    Ok(Arc::new(Signer::new(&identity)?))
}
