//! Credentials and impersonation for another server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::exec_plugin::{ExecCredentials, ExecPlugin};
use super::file;

/// Credentials besides a certificate.
#[derive(Clone)]
pub enum Credentials {
    /// None.
    None,
    /// A bearer token.
    Token(String),
    /// A token file that is read for every connection, because the token is rotated.
    TokenFile(PathBuf),
    /// A user name and a password.
    Password(String, String),
    /// A credential plug-in.
    Exec(Arc<ExecPlugin>),
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Credentials) -> bool {
        match (self, other) {
            (Credentials::None, Credentials::None) => true,
            (Credentials::Token(one), Credentials::Token(other)) => one == other,
            (Credentials::TokenFile(one), Credentials::TokenFile(other)) => one == other,
            (Credentials::Password(name, word), Credentials::Password(other, theirs)) => {
                name == other && word == theirs
            }
            (Credentials::Exec(one), Credentials::Exec(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// The credentials of one connection.
#[derive(Default)]
pub struct PresentedCredentials {
    /// The Authorization header.
    pub header: Option<String>,
    /// The credentials of a plug-in, which may contain a certificate.
    pub made: Option<Arc<ExecCredentials>>,
}

impl Credentials {
    /// The current credentials. Files are read and programs run outside of this thread.
    pub async fn show(&self) -> Result<PresentedCredentials, String> {
        let header = match self {
            Credentials::None => None,
            Credentials::Token(token) => Some(format!("Bearer {token}")),
            Credentials::TokenFile(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || file::bytes_of(&path)).await;
                let bytes = read.map_err(|error| error.to_string())??;
                let token = String::from_utf8(bytes).map_err(|error| error.to_string())?;
                Some(format!("Bearer {}", token.trim()))
            }
            Credentials::Password(name, password) => {
                Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
            }
            Credentials::Exec(plugin) => {
                let made = plugin.credentials().await?;
                let header = made.token.as_ref().map(|token| format!("Bearer {token}"));
                return Ok(PresentedCredentials { header, made: Some(made) });
            }
        };
        Ok(PresentedCredentials { header, made: None })
    }

    /// The credentials were rejected: those of a plug-in are made again.
    pub async fn refused(&self, shown: &PresentedCredentials) {
        if let (Credentials::Exec(plugin), Some(made)) = (self, &shown.made) {
            plugin.forget(made).await;
        }
    }
}

/// The impersonated user, if any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActingAs {
    /// The user name; empty for no impersonation.
    pub user: String,
    /// The UID.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
    /// The extra attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl ActingAs {
    /// The impersonation headers.
    pub fn headers(&self) -> Vec<(String, String)> {
        if self.user.is_empty() {
            return Vec::new();
        }
        let mut headers = vec![("Impersonate-User".to_owned(), self.user.clone())];
        if !self.uid.is_empty() {
            headers.push(("Impersonate-Uid".to_owned(), self.uid.clone()));
        }
        headers.extend(self.groups.iter().map(|group| ("Impersonate-Group".to_owned(), group.clone())));
        for (key, values) in &self.extra {
            let name = format!("Impersonate-Extra-{}", escaped(key));
            headers.extend(values.iter().map(|value| (name.clone(), value.clone())));
        }
        headers
    }
}

/// A key as part of a header name: invalid characters are percent-encoded.
pub fn escaped(key: &str) -> String {
    let mut name = String::new();
    for byte in key.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
        match plain {
            true => name.push(char::from(byte)),
            false => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name
}
