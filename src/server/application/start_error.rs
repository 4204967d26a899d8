//! The errors that keep a server from starting.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;

use crate::config::ConfigError;
use crate::http::tls::TlsError;
use crate::pki::PkiError;

/// An error that keeps a server from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Settings contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address is in use, or does not belong to this host.
    #[error("cannot listen on {address}: {}", describe(source))]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another server uses the data directory.
    #[error("the data directory {0} is in use by another server")]
    Locked(String),
    /// The data directory cannot be used.
    #[error("cannot use the data directory {path}: {source}")]
    DataDirectory {
        /// The path of the directory.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A key or certificate is missing or broken.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A flag has a value that cannot be used, or names a file that cannot be used.
    #[error("{flag}: {error}")]
    Flag {
        /// The flag as it is written on the command line.
        flag: &'static str,
        /// The problem with the value or the file.
        error: String,
    },
    /// A part of the server cannot be started.
    #[error("cannot prepare {part}: {error}")]
    Part {
        /// The name of the part, as error messages show it.
        part: &'static str,
        /// The error of the part.
        error: String,
    },
    /// The store cannot be opened or read: it is in use, damaged, or from a newer version.
    #[error("cannot open the store: {0}")]
    Store(String),
    /// The operating system refused a resource: threads, files.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

impl StartError {
    /// Makes errors that blame a flag.
    pub fn flag(flag: &'static str) -> impl Fn(&dyn Display) -> StartError {
        move |error| StartError::Flag { flag, error: error.to_string() }
    }

    /// Makes errors that blame a part of the server.
    pub fn part(part: &'static str) -> impl Fn(&dyn Display) -> StartError {
        move |error| StartError::Part { part, error: error.to_string() }
    }

    /// An error of the store.
    pub fn store(error: &dyn Display) -> StartError {
        StartError::Store(error.to_string())
    }
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the port is in use".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this host has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => "that port needs more privileges".to_owned(),
        _ => error.to_string(),
    }
}
