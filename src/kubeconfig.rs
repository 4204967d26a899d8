//! Reads kubeconfig files: where another server is, whom to believe that it is, and what to show it.
//!
//! What the current context names is read, and the files that it names in turn. Plug-ins that make credentials are not run.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::api::codec::yaml;
use crate::api::value::Value;
use crate::limits::KUBECONFIG_BYTES;

/// What somebody shows of themselves besides a certificate.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// Nothing.
    None,
    /// A token.
    Token(String),
    /// A token that is read anew for every connection, because others replace it.
    TokenFile(PathBuf),
    /// A name and a password.
    Password(String, String),
}

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
    /// The certificate and key to show, in PEM.
    pub identity_pem: Option<(Vec<u8>, Vec<u8>)>,
    /// What else to show.
    pub credentials: Credentials,
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let broken = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut bytes = Vec::new();
    File::open(path).map_err(broken)?.take(KUBECONFIG_BYTES + 1).read_to_end(&mut bytes).map_err(broken)?;
    if bytes.len() as u64 > KUBECONFIG_BYTES {
        return Err(format!("{}: more than {KUBECONFIG_BYTES} bytes", path.display()));
    }
    Ok(bytes)
}

/// The entry of this name in a list of named things.
fn named<'a>(config: &'a Value, list: &str, name: &str, field: &str) -> Result<&'a Value, String> {
    let all = config.get(list).map(Value::items).unwrap_or_default();
    let found = all.iter().find(|entry| entry.str("name") == name).and_then(|entry| entry.get(field));
    found.ok_or_else(|| format!("there is no {field} {name:?}"))
}

/// Bytes that stand in the file itself, or in another that it names.
fn bytes(entry: &Value, field: &str, home: &Path) -> Result<Option<Vec<u8>>, String> {
    let data = format!("{field}-data");
    if !entry.str(&data).is_empty() {
        let decoded = STANDARD.decode(entry.str(&data));
        return decoded.map(Some).map_err(|error| format!("{data}: {error}"));
    }
    match entry.str(field) {
        "" => Ok(None),
        path => read_file(&home.join(path)).map(Some),
    }
}

impl Access {
    /// Reads the file. Paths in it are meant from where it lies.
    pub fn read(path: &Path) -> Result<Access, String> {
        Access::parse(&read_file(path)?, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads the text of such a file that lies in `home`.
    pub fn parse(text: &[u8], home: &Path) -> Result<Access, String> {
        let config = yaml::read(text)?;
        let context = match config.str("current-context") {
            "" => return Err("there is no current-context".to_owned()),
            name => named(&config, "contexts", name, "context")?,
        };
        let cluster = named(&config, "clusters", context.str("cluster"), "cluster")?;
        let nobody = Value::object();
        let user = match context.str("user") {
            "" => &nobody,
            name => named(&config, "users", name, "user")?,
        };
        if cluster.str("server").is_empty() {
            return Err("the cluster has no server".to_owned());
        }
        if user.get("exec").is_some() || user.get("auth-provider").is_some() {
            return Err("plug-ins that make credentials are not run here".to_owned());
        }
        let certificate = bytes(user, "client-certificate", home)?;
        let key = bytes(user, "client-key", home)?;
        let identity_pem = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err("a client certificate and its key go together".to_owned()),
        };
        let text =
            |entry: &Value, field: &str| Some(entry.str(field).to_owned()).filter(|text| !text.is_empty());
        let credentials = match (text(user, "tokenFile"), text(user, "token"), text(user, "username")) {
            (Some(path), ..) => Credentials::TokenFile(home.join(path)),
            (None, Some(token), _) => Credentials::Token(token),
            (None, None, Some(name)) => Credentials::Password(name, user.str("password").to_owned()),
            (None, None, None) => Credentials::None,
        };
        Ok(Access {
            server: cluster.str("server").to_owned(),
            authority_pem: bytes(cluster, "certificate-authority", home)?,
            server_name: text(cluster, "tls-server-name"),
            insecure: cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool) == Some(true),
            identity_pem,
            credentials,
        })
    }
}

impl Credentials {
    /// The header that shows them.
    pub fn header(&self) -> Result<Option<String>, String> {
        Ok(match self {
            Credentials::None => None,
            Credentials::Token(token) => Some(format!("Bearer {token}")),
            Credentials::TokenFile(path) => {
                let token = String::from_utf8(read_file(path)?).map_err(|error| error.to_string())?;
                Some(format!("Bearer {}", token.trim()))
            }
            Credentials::Password(name, password) => {
                Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
apiVersion: v1
kind: Config
current-context: c
clusters:
- name: k
  cluster: {server: 'https://h:1/x', certificate-authority-data: YQ==, tls-server-name: host.test}
users:
- name: u
  user: {username: a, password: b}
contexts:
- name: c
  context: {cluster: k, user: u}
";

    fn parse(text: &str) -> Result<Access, String> {
        Access::parse(text.as_bytes(), Path::new("/nowhere"))
    }

    #[test]
    fn the_current_context_counts() {
        let access = parse(FILE).unwrap();
        assert_eq!(
            (access.server.as_str(), access.server_name.as_deref()),
            ("https://h:1/x", Some("host.test"))
        );
        assert_eq!(access.authority_pem.as_deref(), Some(&b"a"[..]));
        assert_eq!(access.credentials.header().unwrap().as_deref(), Some("Basic YTpi"));
        let token = parse(&FILE.replace("username: a, password: b", "token: t")).unwrap();
        assert_eq!(token.credentials.header().unwrap().as_deref(), Some("Bearer t"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let wrong = |from: &str, to: &str| parse(&FILE.replace(from, to)).err().unwrap();
        assert_eq!(wrong("current-context: c", ""), "there is no current-context");
        assert_eq!(wrong("cluster: k, user: u", "cluster: z, user: u"), "there is no cluster \"z\"");
        assert!(wrong("YQ==", "'!'").starts_with("certificate-authority-data: "));
        assert!(wrong("username: a", "tokenFile: t, client-key: k").contains("/nowhere/k"));
        assert_eq!(
            wrong("username: a", "exec: {command: x}, username: a"),
            "plug-ins that make credentials are not run here"
        );
    }
}
