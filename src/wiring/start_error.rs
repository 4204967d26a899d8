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
    /// A flag says what cannot be done, or names a file that cannot be used.
    #[error("{flag}: {why}")]
    Flag {
        /// As it is written on the command line.
        flag: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A part of the server cannot be made.
    #[error("cannot prepare {part}: {why}")]
    Part {
        /// Which one.
        part: &'static str,
        /// What is wrong.
        why: String,
    },
    /// What keeps the objects cannot be opened or read: in use, damaged, or from a newer version.
    #[error("cannot open the store: {0}")]
    Store(String),
    /// Something else of the machine is missing: threads, files.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

impl StartError {
    /// A flag that is at fault, and why.
    pub fn flag(flag: &'static str) -> impl Fn(&dyn Display) -> StartError {
        move |why| StartError::Flag { flag, why: why.to_string() }
    }

    /// A part that cannot be made, and why.
    pub fn part(part: &'static str) -> impl Fn(&dyn Display) -> StartError {
        move |why| StartError::Part { part, why: why.to_string() }
    }

    /// Objects that cannot be opened or read.
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
