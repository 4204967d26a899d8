//! What is shown to another server, and whom it is asked for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::file;
use super::plugin::{Made, Plugin};

/// What somebody shows of themselves besides a certificate.
#[derive(Clone)]
pub enum Credentials {
    /// Nothing.
    None,
    /// A token.
    Token(String),
    /// A token that is read anew for every connection, because others replace it.
    TokenFile(PathBuf),
    /// A name and a password.
    Password(String, String),
    /// Whatever a program makes.
    Exec(Arc<Plugin>),
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

/// What is shown on one connection.
#[derive(Default)]
pub struct Shown {
    /// The Authorization header.
    pub header: Option<String>,
    /// What a program made, which may hold a certificate.
    pub made: Option<Arc<Made>>,
}

impl Credentials {
    /// What to show now. Files are read and programs run aside: the thread that asks goes on with other work.
    pub async fn show(&self) -> Result<Shown, String> {
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
                return Ok(Shown { header, made: Some(made) });
            }
        };
        Ok(Shown { header, made: None })
    }

    /// What was shown is not accepted: what can be made anew is.
    pub async fn refused(&self, shown: &Shown) {
        if let (Credentials::Exec(plugin), Some(made)) = (self, &shown.made) {
            plugin.forget(made).await;
        }
    }
}

/// Whom somebody asks for, if not for themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActingAs {
    /// The user; empty: themselves.
    pub user: String,
    /// Their uid.
    pub uid: String,
    /// Their groups.
    pub groups: Vec<String>,
    /// What else is known of them.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl ActingAs {
    /// The headers that say so.
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

/// A key as part of the name of a header: what no name may hold is written as numbers.
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
