//! Why a server did not start.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;

use crate::config::ConfigError;
use crate::http::tls::TlsError;
use crate::pki::PkiError;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Settings contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address is in use, or does not belong to this host.
    #[error("cannot listen on {address}: {}", plainly(source))]
    Listen {
        /// The address that was asked for.
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
    #[error("{flag}: {why}")]
    Flag {
        /// The flag as it is written on the command line.
        flag: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A part of the server cannot be started.
    #[error("cannot prepare {part}: {why}")]
    Part {
        /// The name of the part, as error messages show it.
        part: &'static str,
        /// The error of the part.
        why: String,
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
        move |why| StartError::Flag { flag, why: why.to_string() }
    }

    /// Makes errors that blame a part of the server.
    pub fn part(part: &'static str) -> impl Fn(&dyn Display) -> StartError {
        move |why| StartError::Part { part, why: why.to_string() }
    }

    /// An error of the store.
    pub fn store(why: &dyn Display) -> StartError {
        StartError::Store(why.to_string())
    }
}

fn plainly(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the port is in use".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this host has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => "that port needs more privileges".to_owned(),
        _ => error.to_string(),
    }
}
