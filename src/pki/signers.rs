//! The CAs of the built-in signers: the server's own, or those that flags name.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use pilothouse_apimachinery::well_known::signers::{CLIENT, KUBELET, LEGACY, SERVING};

use super::signing::Signer;
use super::{Identity, Pki, PkiError, check_pair, files};
use crate::config::Config;
use crate::config::signing::{SignedBy, SigningFiles};

/// The CA of each signer that has one.
#[derive(PartialEq)]
pub struct Signers(BTreeMap<&'static str, Arc<Signer>>);

impl Signers {
    /// Loads the CAs that the settings name.
    pub fn open(config: &Config, pki: &Pki) -> Result<Signers, PkiError> {
        let for_all = |signer: Arc<Signer>| {
            [SERVING, KUBELET, CLIENT, LEGACY].map(|name| (name, signer.clone())).into()
        };
        let wrong = |why| PkiError::Content { path: "--cluster-signing-*-file".to_owned(), why };
        let signed_by = config.signing.signed_by().map_err(|_| wrong("do not go together"))?;
        let signers = match signed_by {
            SignedBy::Own => for_all(Arc::new(Signer::new(&pki.authority)?)),
            SignedBy::One(certificate, key) => for_all(read(certificate, key)?),
            SignedBy::Each(all) => {
                let mut signers = BTreeMap::new();
                for SigningFiles { signer, pair } in all {
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
    pub fn of(&self, name: &str) -> Option<&Signer> {
        self.0.get(name).map(AsRef::as_ref)
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<Signer>, PkiError> {
    let found = Identity { certificates_pem: files::read(certificate)?, key_pem: files::read(key)? };
    check_pair(certificate, key, &found)?;
    Ok(Arc::new(Signer::new(&found)?))
}
