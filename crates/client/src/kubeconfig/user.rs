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
    /// No credentials.
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
            (Credentials::Token(token), Credentials::Token(other)) => token == other,
            (Credentials::TokenFile(path), Credentials::TokenFile(other)) => path == other,
            (Credentials::Password(name, password), Credentials::Password(other, other_password)) => {
                name == other && password == other_password
            }
            (Credentials::Exec(plugin), Credentials::Exec(other)) => Arc::ptr_eq(plugin, other),
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
    pub exec: Option<Arc<ExecCredentials>>,
}

impl Credentials {
    /// The current credentials. Files are read and programs run outside of this thread.
    pub async fn present(&self) -> Result<PresentedCredentials, String> {
        let header = match self {
            Credentials::None => None,
            Credentials::Token(token) => Some(format!("Bearer {token}")),
            Credentials::TokenFile(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || file::read_file(&path)).await;
                let bytes = read.map_err(|error| error.to_string())??;
                let token = String::from_utf8(bytes).map_err(|error| error.to_string())?;
                Some(format!("Bearer {}", token.trim()))
            }
            Credentials::Password(name, password) => {
                Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
            }
            Credentials::Exec(plugin) => {
                let credentials = plugin.credentials().await?;
                let header = credentials.token.as_ref().map(|token| format!("Bearer {token}"));
                return Ok(PresentedCredentials { header, exec: Some(credentials) });
            }
        };
        Ok(PresentedCredentials { header, exec: None })
    }

    /// Handles rejected credentials: a plug-in runs again for the next connection.
    pub async fn invalidate(&self, presented: &PresentedCredentials) {
        if let (Credentials::Exec(plugin), Some(rejected)) = (self, &presented.exec) {
            plugin.invalidate(rejected).await;
        }
    }
}

/// The impersonated user, if any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// The user name; empty for no impersonation.
    pub user: String,
    /// The UID.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
    /// The extra attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Impersonation {
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
            let name = format!("Impersonate-Extra-{}", escape_header_key(key));
            headers.extend(values.iter().map(|value| (name.clone(), value.clone())));
        }
        headers
    }
}

/// Encodes a key as part of a header name: invalid characters are percent-encoded.
pub fn escape_header_key(key: &str) -> String {
    let mut name = String::new();
    for byte in key.bytes() {
        let is_valid = byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
        match is_valid {
            true => name.push(char::from(byte)),
            false => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name
}
