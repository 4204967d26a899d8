//! The keys that several servers have in common: what one of them issues or signs, the others must accept.

use std::path::{Path, PathBuf};

use pilothouse_apimachinery::well_known;
use pilothouse_types::clock::Clock;

use super::authority::{Authority, Purpose};
use super::files::{self, Folder, Secrecy};
use super::{AUTHORITY, Identity, PkiError, content_error, kubeconfig, load_authority, token_keys};

/// The CA that servers have in common.
pub struct SharedKeys {
    authority: Authority,
}

/// Gives all directories the same CA and the same key of service account tokens: those that one of them has, or else new ones. Keys
/// that are there are never replaced: directories with different ones are refused.
pub fn share(directories: &[PathBuf], clock: &Clock) -> Result<SharedKeys, PkiError> {
    let folders = directories.iter().map(|directory| Folder::open(Some(directory.clone())));
    let mut folders = folders.collect::<Result<Vec<Folder>, PkiError>>()?;
    let authority = share_authority(&mut folders, clock)?;
    token_keys::share(&mut folders)?;
    folders.into_iter().try_for_each(Folder::commit)?;
    Ok(SharedKeys { authority })
}

fn share_authority(folders: &mut [Folder], clock: &Clock) -> Result<Authority, PkiError> {
    let mut common: Option<(Authority, Identity)> = None;
    for folder in folders.iter() {
        let Some(identity) = folder.pair(AUTHORITY)? else { continue };
        match (&common, load_authority(folder)?) {
            (Some((_, other)), _) if *other != identity => {
                return Err(content_error(&folder.path(AUTHORITY.certificate), DIFFERENT));
            }
            (None, Some(authority)) => common = Some((authority, identity)),
            _ => {}
        }
    }
    let (authority, identity) = match common {
        Some(common) => common,
        None => {
            let authority = Authority::create(clock.now())?;
            let identity = authority.identity()?;
            (authority, identity)
        }
    };
    for folder in folders {
        if folder.pair(AUTHORITY)?.is_none() {
            folder.stage_pair(AUTHORITY, &identity);
        }
    }
    Ok(authority)
}

/// Why keys are not replaced.
pub(super) const DIFFERENT: &str = "differs from the file of the same name in another directory; delete the keys of the directory whose clients and tokens may become invalid";

impl SharedKeys {
    /// Writes a kubeconfig for an administrator of the servers behind this URL. Every call issues a new certificate.
    pub fn write_admin_kubeconfig(&self, path: &Path, server: &str, clock: &Clock) -> Result<(), PkiError> {
        let purpose = Purpose::Client { user: "kubernetes-admin", group: well_known::MASTERS };
        let admin = self.authority.issue(&purpose, clock.now())?;
        let text = kubeconfig::render(server, &self.authority.certificate_pem()?, &admin);
        files::replace(&[(path.to_owned(), text.into_bytes(), Secrecy::Private)])
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use openssl::rsa::Rsa;

    use super::*;

    const FILES: [&str; 4] = ["ca.crt", "ca.key", "sa.key", "sa.pub"];

    fn contents(directory: &Path) -> [Vec<u8>; 4] {
        FILES.map(|name| fs::read(directory.join(name)).unwrap())
    }

    #[test]
    fn new_keys_are_the_same_everywhere_and_stay() {
        let home = tempfile::tempdir().unwrap();
        let directories = ["one", "other", "third"].map(|name| home.path().join(name).join("pki"));
        share(&directories[..2], &Clock::system()).unwrap();
        let keys = contents(&directories[0]);
        assert!(keys.iter().all(|content| !content.is_empty()));
        assert_eq!(contents(&directories[1]), keys);
        // The new directory comes first: what the others have decides nevertheless.
        let later = [directories[2].clone(), directories[0].clone()];
        share(&later, &Clock::system()).unwrap();
        assert_eq!((contents(&directories[2]), contents(&directories[0])), (keys.clone(), keys));
    }

    #[test]
    fn missing_half_is_added_and_no_key_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| home.path().join(name));
        share(std::slice::from_ref(&one), &Clock::system()).unwrap();
        let keys = contents(&one);
        fs::remove_file(one.join("sa.key")).unwrap();
        share(std::slice::from_ref(&other), &Clock::system()).unwrap();
        let error = share(&[one.clone(), other.clone()], &Clock::system()).err().unwrap().to_string();
        assert!(error.contains("other/ca.crt: differs from the file of the same name"), "{error}");
        for name in ["ca.crt", "ca.key"] {
            fs::copy(one.join(name), other.join(name)).unwrap();
        }
        share(&[one.clone(), other.clone()], &Clock::system()).unwrap();
        assert_eq!(contents(&one)[..2], keys[..2]);
        assert_eq!(contents(&one), contents(&other), "the missing key came from the other directory");
        fs::write(other.join("sa.key"), &keys[2]).unwrap();
        let error = share(&[one, other], &Clock::system()).err().unwrap().to_string();
        assert!(error.contains("other/sa.key: differs from the file of the same name"), "{error}");
    }

    /// As on a node of kubeadm: RSA, and a folder that the server may only read.
    #[test]
    fn complete_directory_is_only_read() {
        let home = tempfile::tempdir().unwrap();
        let [cluster, own] = ["cluster", "own"].map(|name| home.path().join(name));
        share(std::slice::from_ref(&cluster), &Clock::system()).unwrap();
        let key = Rsa::generate(2048).unwrap();
        let public = [b"# of the cluster\n".as_slice(), &key.public_key_to_pem().unwrap()].concat();
        fs::write(cluster.join("sa.key"), key.private_key_to_pem().unwrap()).unwrap();
        fs::write(cluster.join("sa.pub"), &public).unwrap();
        let keys = contents(&cluster);
        share(&[cluster.clone(), own.clone()], &Clock::system()).unwrap();
        assert_eq!(contents(&cluster), keys);
        assert_eq!(contents(&own)[..3], keys[..3]);
        assert_eq!(contents(&own)[3], key.public_key_to_pem().unwrap());
    }

    #[test]
    fn admin_kubeconfig_has_the_shared_authority_and_the_url() {
        let home = tempfile::tempdir().unwrap();
        let keys = share(&[home.path().join("pki")], &Clock::system()).unwrap();
        let path = home.path().join("admin.kubeconfig");
        keys.write_admin_kubeconfig(&path, "https://api.example:6443", &Clock::system()).unwrap();
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains("server: https://api.example:6443\n"), "{text}");
    }
}
