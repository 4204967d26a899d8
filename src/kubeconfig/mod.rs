//! Client configurations: where another server is, whom to believe that it is, and what to show it.
//!
//! What the current context names is read, and the files that it names in turn. `file` reads, `user` has what is shown,
//! `plugin` runs the programs that make credentials.

mod file;
pub mod plugin;
pub mod proxy;
pub mod user;
pub mod users;

use std::path::Path;

pub use self::proxy::Proxy;
pub use self::user::{ActingAs, Credentials, Shown};

/// A certificate, with those that lead to its authority behind it, and its key; both PEM.
pub type IdentityPem = (Vec<u8>, Vec<u8>);

/// Everything that is needed to talk to another server.
#[derive(Clone)]
pub struct Access {
    /// Its URL.
    pub server: String,
    /// The certificate authorities it must be known to, in PEM; `None`: those of the system.
    pub authority_pem: Option<Vec<u8>>,
    /// The name that its certificate must have; `None`: that of the URL.
    pub server_name: Option<String>,
    /// Whether its certificate is not looked at.
    pub insecure: bool,
    /// Who leads there; `None`: the way is free.
    pub proxy: Option<Proxy>,
    /// The certificate and key to show, in PEM.
    pub identity_pem: Option<IdentityPem>,
    /// What else to show.
    pub credentials: Credentials,
    /// Whom to ask for, if not for oneself.
    pub acting_as: ActingAs,
}

impl Access {
    /// A server that is shown nothing.
    pub fn to(server: impl Into<String>) -> Access {
        Access {
            server: server.into(),
            authority_pem: None,
            server_name: None,
            insecure: false,
            proxy: None,
            identity_pem: None,
            credentials: Credentials::None,
            acting_as: ActingAs::default(),
        }
    }

    /// Reads the file. Paths in it are meant from where it lies.
    pub fn read(path: &Path) -> Result<Access, String> {
        Access::parse(&file::bytes_of(path)?, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads the text of such a file that lies in `home`.
    pub fn parse(text: &[u8], home: &Path) -> Result<Access, String> {
        file::parse(text, home)
    }
}

#[cfg(test)]
mod tests;
