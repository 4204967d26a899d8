//! Why a server did not start.

use std::io;
use std::net::SocketAddr;

use crate::config::ConfigError;
use crate::http::tls::TlsError;
use crate::pki::PkiError;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings do not go together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address is in use, or not of this host.
    #[error("cannot listen on {address}: {}", plainly(source))]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Another server has the data directory.
    #[error("the data directory {0} is in use by another server")]
    Locked(String),
    /// The data directory cannot be used.
    #[error("cannot use the data directory {path}: {source}")]
    DataDirectory {
        /// The directory.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// A key or certificate is missing or broken.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// What keeps the objects cannot be opened: in use, damaged, or from a newer version.
    #[error("cannot open the store: {0}")]
    Store(String),
    /// Something else of the machine is missing: threads, files.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

fn plainly(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the port is in use".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this host has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => "that port needs more privileges".to_owned(),
        _ => error.to_string(),
    }
}
