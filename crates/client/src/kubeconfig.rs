//! Kubeconfigs: address, CA and credentials of another server.
//!
//! Only one context is read, which is the current one unless another is named, with the files that it names. `file` parses, `user` has the credentials, `exec_plugin` runs
//! credential plug-ins.

pub mod exec_plugin;
mod file;
pub mod proxy;
pub mod user;
pub mod users;

use std::path::Path;

pub use self::proxy::Proxy;
pub use self::user::{Credentials, Impersonation, PresentedCredentials};

/// A certificate with its intermediates, and its key; both PEM.
pub type IdentityPem = (Vec<u8>, Vec<u8>);

/// How to reach another server.
#[derive(Clone)]
pub struct Access {
    /// The URL of the server.
    pub server: String,
    /// The CA bundle as PEM; `None` for the CAs of the system.
    pub authority_pem: Option<Vec<u8>>,
    /// The name that its certificate must contain; `None` for that of the URL.
    pub server_name: Option<String>,
    /// Whether its certificate is not verified.
    pub insecure: bool,
    /// The proxy to connect through, if any.
    pub proxy: Option<Proxy>,
    /// The client certificate and key, as PEM.
    pub identity_pem: Option<IdentityPem>,
    /// Other credentials.
    pub credentials: Credentials,
    /// The impersonated user, if any.
    pub impersonation: Impersonation,
}

impl Access {
    /// Access to a server without credentials.
    pub fn to_server(server: impl Into<String>) -> Access {
        Access {
            server: server.into(),
            authority_pem: None,
            server_name: None,
            insecure: false,
            proxy: None,
            identity_pem: None,
            credentials: Credentials::None,
            impersonation: Impersonation::default(),
        }
    }

    /// Reads the file. Paths in it are relative to its directory.
    pub fn read(path: &Path) -> Result<Access, String> {
        Access::parse(&file::read_file(path)?, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads one context of the file; `None` for the current one.
    pub fn read_context(path: &Path, context: Option<&str>) -> Result<Access, String> {
        file::parse(&file::read_file(path)?, path.parent().unwrap_or(Path::new("")), context)
    }

    /// Parses the text of a kubeconfig in the directory `directory`.
    pub fn parse(text: &[u8], directory: &Path) -> Result<Access, String> {
        file::parse(text, directory, None)
    }
}

#[cfg(test)]
mod tests;
