//! Opens the socket of `--debug-socket-path`, and removes it at the end.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::http::debug_socket::{DebugServer, serve};
use crate::profiles::Profiles;

/// The open socket. Removes its file when it is dropped.
pub(super) struct DebugSocket {
    path: PathBuf,
    server: DebugServer,
}

impl DebugSocket {
    /// Opens it, unless the path is empty. As in the reference, the server starts without it if that fails.
    pub(super) fn open(path: &str, profiles: &Arc<Profiles>) -> Option<DebugSocket> {
        if path.is_empty() {
            return None;
        }
        let opened = bind(Path::new(path)).and_then(|listener| {
            Ok(DebugSocket { path: PathBuf::from(path), server: serve(listener, Arc::clone(profiles))? })
        });
        opened.inspect_err(|error| tracing::error!(%error, path, "the debug socket cannot be opened")).ok()
    }

    /// Serves no more requests.
    pub(super) async fn close(self) {
        self.server.stop().await;
    }
}

impl Drop for DebugSocket {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "the debug socket cannot be removed");
        }
    }
}

/// Replaces the socket that a server left behind that was killed, and nothing else.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::other("there is a file of this name that is no socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    UnixListener::bind(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("debug.sock");
        drop(bind(&path).unwrap());
        drop(bind(&path).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(bind(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
