//! Atomic file replacement, and files that only their owner can read.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use openssl::pkey::{PKey, Private};

use super::{Identity, PkiError};
use pilothouse_client::limits::PKI_FILE_BYTES;

/// The read permission of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secrecy {
    /// Readable by all users.
    Public,
    /// Readable by its owner only.
    Private,
}

/// The file names of a certificate and its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairFiles {
    pub certificate: &'static str,
    pub key: &'static str,
}

/// The directory of keys and certificates; without one, everything stays in memory. Staged files are written together by
/// [`Folder::commit`].
pub(super) struct Folder {
    directory: Option<PathBuf>,
    staged: Vec<(PathBuf, Vec<u8>, Secrecy)>,
}

impl Folder {
    pub(super) fn open(directory: Option<PathBuf>) -> Result<Folder, PkiError> {
        if let Some(path) = &directory {
            make_directory(path)?;
        }
        Ok(Folder { directory, staged: Vec::new() })
    }

    /// The path of a file.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.as_deref().unwrap_or(Path::new("")).join(name)
    }

    /// The contents of a file; `None` if it is missing, or empty after a power failure.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, PkiError> {
        let Some(directory) = &self.directory else { return Ok(None) };
        match read(&directory.join(name)) {
            Ok(content) if content.is_empty() => Ok(None),
            Ok(content) => Ok(Some(content)),
            Err(PkiError::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether files are read and written.
    pub(super) fn has_directory(&self) -> bool {
        self.directory.is_some()
    }

    /// The key of a pair whose certificate is missing: from before a crash, or put there to be used.
    pub(super) fn key_without_certificate(
        &self,
        files: PairFiles,
    ) -> Result<Option<PKey<Private>>, PkiError> {
        let (None, Some(key_pem)) = (self.read(files.certificate)?, self.read(files.key)?) else {
            return Ok(None);
        };
        let invalid = |_| PkiError::Content {
            path: self.path(files.key).display().to_string(),
            reason: "has no PEM private key",
        };
        // One that is encrypted is none: nobody could be asked for its password.
        PKey::private_key_from_pem_callback(&key_pem, |_| Ok(0)).map(Some).map_err(invalid)
    }

    /// A certificate and its key. There is no pair without a certificate.
    pub(super) fn pair(&self, files: PairFiles) -> Result<Option<Identity>, PkiError> {
        match (self.read(files.certificate)?, self.read(files.key)?) {
            (Some(certificates_pem), Some(key_pem)) => Ok(Some(Identity { certificates_pem, key_pem })),
            (None, _) => Ok(None),
            (Some(_), None) => Err(PkiError::Content {
                path: self.path(files.key).display().to_string(),
                reason: "is missing, though its certificate is there",
            }),
        }
    }

    pub(super) fn stage_pair(&mut self, files: PairFiles, identity: &Identity) {
        self.stage_private(files.key, &identity.key_pem);
        self.stage_public(files.certificate, &identity.certificates_pem);
    }

    pub(super) fn stage_private(&mut self, name: &str, content: &[u8]) {
        self.staged.push((self.path(name), content.to_vec(), Secrecy::Private));
    }

    pub(super) fn stage_public(&mut self, name: &str, content: &[u8]) {
        self.staged.push((self.path(name), content.to_vec(), Secrecy::Public));
    }

    pub(super) fn commit(self) -> Result<(), PkiError> {
        if self.directory.is_some() { replace(&self.staged) } else { Ok(()) }
    }
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> PkiError {
    move |source| PkiError::File { action, path: path.display().to_string(), source }
}

/// Creates a directory with its parents, for the owner only.
pub(super) fn make_directory(path: &Path) -> Result<(), PkiError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(file_error("cannot make the directory", path))
}

/// Reads a file up to a limit.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, PkiError> {
    let mut content = Vec::new();
    File::open(path)
        .and_then(|file| file.take(PKI_FILE_BYTES).read_to_end(&mut content))
        .map_err(file_error("cannot read", path))?;
    Ok(content)
}

/// Writes temporary files, syncs them, then renames each, in order.
pub(super) fn replace(files: &[(PathBuf, Vec<u8>, Secrecy)]) -> Result<(), PkiError> {
    for (path, content, secrecy) in files {
        let draft = draft_path(path);
        let write = || {
            // A temporary file from a crash may have another mode.
            match fs::remove_file(&draft) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mode = if *secrecy == Secrecy::Private { 0o600 } else { 0o644 };
            let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
            file.write_all(content)?;
            file.sync_data()
        };
        write().map_err(file_error("cannot write", path))?;
    }
    for (path, ..) in files {
        fs::rename(draft_path(path), path).map_err(file_error("cannot write", path))?;
    }
    if let Some(directory) = files.first().and_then(|(path, ..)| path.parent()) {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(file_error("cannot write", directory))?;
    }
    Ok(())
}

fn draft_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.draft"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn private_file_replaces_readable_leftover_draft() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(draft_path(&path), "left by a crash, readable by all").unwrap();
        replace(&[(path.clone(), b"new".to_vec(), Secrecy::Private)]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!draft_path(&path).exists());
    }

    #[test]
    fn key_without_certificate_is_ignored_and_certificate_without_key_fails() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(Some(directory.path().to_owned())).unwrap();
        let [first, second] =
            [("a.crt", "a.key"), ("b.crt", "b.key")].map(|(certificate, key)| PairFiles { certificate, key });
        assert!(folder.pair(first).unwrap().is_none());
        fs::write(directory.path().join("a.key"), "key").unwrap();
        assert!(folder.pair(first).unwrap().is_none());
        fs::write(directory.path().join("b.crt"), "certificate").unwrap();
        assert!(folder.pair(second).unwrap_err().to_string().contains("b.key: is missing"));
    }

    #[test]
    fn pki_file_error_names_the_path() {
        let error = read(Path::new("no/such/file")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read no/such/file: "), "{error}");
    }
}
