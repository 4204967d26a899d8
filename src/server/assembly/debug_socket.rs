//! Opens the socket of `--debug-socket-path`, and removes it at the end.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::stat::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::http::debug_socket::{DebugServer, serve};
use crate::limits::LISTEN_BACKLOG;
use crate::profiles::Profiles;
use crate::server::application::StartError;

/// The open socket. Removes its file when it is dropped.
pub(super) struct DebugSocket {
    bound: BoundSocket,
    server: DebugServer,
}

/// Why there is no socket.
#[derive(Debug)]
enum BindError {
    /// Another process answers on it.
    InUse,
    /// It cannot be made.
    Failed(io::Error),
}

impl From<io::Error> for BindError {
    fn from(error: io::Error) -> BindError {
        BindError::Failed(error)
    }
}

impl DebugSocket {
    /// Opens it, unless the path is empty. A path on which another process answers is an error: its socket would be lost to it. After any
    /// other failure the server starts without the socket, as the reference does.
    pub(super) fn open(path: &str, profiles: &Arc<Profiles>) -> Result<Option<DebugSocket>, StartError> {
        if path.is_empty() {
            return Ok(None);
        }
        let opened = BoundSocket::bind(Path::new(path)).and_then(|bound| {
            let server = serve(bound.listener.try_clone()?, Arc::clone(profiles))?;
            Ok(DebugSocket { bound, server })
        });
        match opened {
            Ok(socket) => Ok(Some(socket)),
            Err(BindError::InUse) => {
                let error = format!("another process listens on {path}");
                Err(StartError::flag("--debug-socket-path")(&error))
            }
            Err(BindError::Failed(error)) => {
                tracing::error!(%error, path, "the debug socket cannot be opened");
                Ok(None)
            }
        }
    }

    /// Serves no more requests.
    pub(super) async fn close(self) {
        self.server.stop().await;
        // Only now: who finds the file finds somebody who listens.
        drop(self.bound);
    }
}

/// A socket and its file, which is removed when this is dropped.
struct BoundSocket {
    path: PathBuf,
    /// Device and number of the file. No other file gets them as long as the listener is open.
    file: (u64, u64),
    listener: UnixListener,
}

impl BoundSocket {
    /// Replaces the socket that a server left behind that was killed, and nothing else.
    fn bind(path: &Path) -> Result<BoundSocket, BindError> {
        match fs::symlink_metadata(path) {
            Ok(file) if file.file_type().is_socket() => remove_stale(path)?,
            Ok(_) => return Err(io::Error::other("there is a file of this name that is no socket").into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // The file gets the mode of the socket. A change of its mode after that would come too late for somebody who is quick.
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR).map_err(io::Error::from)?;
        socket.bind(&SockAddr::unix(path)?)?;
        let file = identity(path)?;
        socket.listen(LISTEN_BACKLOG)?;
        Ok(BoundSocket { path: path.to_owned(), file, listener: UnixListener::from(socket) })
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        let removed = match identity(&self.path) {
            Ok(file) if file == self.file => fs::remove_file(&self.path),
            Ok(_) => return tracing::debug!("the debug socket was replaced by somebody else's"),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::debug!(%error, "the debug socket cannot be removed");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Removes a socket on which nobody listens.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    let found = identity(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A process that accepts no connections must not stop this one.
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(()) => return Err(BindError::InUse),
        // Its queue of connections is full.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(BindError::InUse),
        Err(error) => return Err(error.into()),
    }
    // Another server that starts now may have replaced it.
    if identity(path)? == found {
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn bind(path: &Path) -> Result<BoundSocket, BindError> {
        BoundSocket::bind(path)
    }

    #[test]
    fn only_a_stale_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("debug.sock");
        drop(UnixListener::bind(&path).unwrap());
        let bound = bind(&path).expect("nobody listens on what is there");
        assert!(matches!(bind(&path), Err(BindError::InUse)));
        assert!(UnixStream::connect(&path).is_ok(), "the first one still listens");
        drop(bound);
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path), Err(BindError::Failed(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn socket_with_a_full_queue_is_in_use() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("debug.sock");
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        socket.listen(0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        assert!(matches!(bind(&path), Err(BindError::InUse)));
    }

    #[test]
    fn only_the_owner_may_connect() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("debug.sock");
        let _bound = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn only_the_own_socket_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("debug.sock");
        let bound = bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let other = bind(&path).unwrap();
        drop(bound);
        assert!(UnixStream::connect(&path).is_ok(), "that of somebody else stays");
        drop(other);
        assert!(!path.exists());
    }
}
