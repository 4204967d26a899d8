//! Parses a kubeconfig.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::clock::Clock;

use super::exec_plugin::{Cluster, Exec, ExecPlugin};
use super::{Access, ActingAs, Credentials, IdentityPem, Proxy};
use crate::limits::KUBECONFIG_BYTES;

/// The bytes of a file, up to a limit.
pub(super) fn bytes_of(path: &Path) -> Result<Vec<u8>, String> {
    let broken = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut bytes = Vec::new();
    File::open(path).map_err(broken)?.take(KUBECONFIG_BYTES + 1).read_to_end(&mut bytes).map_err(broken)?;
    if bytes.len() as u64 > KUBECONFIG_BYTES {
        return Err(format!("{}: more than {KUBECONFIG_BYTES} bytes", path.display()));
    }
    Ok(bytes)
}

/// What the entry of this name in a list says. An entry may have a name and nothing else: a user without credentials.
fn named<'a>(config: &'a Value, list: &str, name: &str, field: &str) -> Result<Cow<'a, Value>, String> {
    let all = config.get(list).map(Value::items).unwrap_or_default();
    let found = all.iter().find(|entry| entry.str("name") == name);
    let entry = found.ok_or_else(|| format!("there is no {field} {name:?}"))?;
    Ok(entry.get(field).map_or_else(|| Cow::Owned(Value::object()), Cow::Borrowed))
}

/// Bytes from the file itself, or from another file that it names.
fn bytes(entry: &Value, field: &str, home: &Path) -> Result<Option<Vec<u8>>, String> {
    let data = format!("{field}-data");
    if !entry.str(&data).is_empty() {
        let decoded = STANDARD.decode(entry.str(&data));
        return decoded.map(Some).map_err(|error| format!("{data}: {error}"));
    }
    match entry.str(field) {
        "" => Ok(None),
        path => bytes_of(&home.join(path)).map(Some),
    }
}

fn text(entry: &Value, field: &str) -> Option<String> {
    Some(entry.str(field).to_owned()).filter(|text| !text.is_empty())
}

pub(super) fn texts(entry: &Value, field: &str) -> Vec<String> {
    let all = entry.get(field).map(Value::items).unwrap_or_default();
    all.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn flag(entry: &Value, field: &str) -> bool {
    entry.get(field).and_then(Value::as_bool) == Some(true)
}

/// Parses a kubeconfig in the directory `home`.
pub(super) fn parse(bytes: &[u8], home: &Path) -> Result<Access, String> {
    let config = yaml::read(bytes)?;
    let context = match config.str("current-context") {
        "" => return Err("there is no current-context".to_owned()),
        name => named(&config, "contexts", name, "context")?,
    };
    let cluster = named(&config, "clusters", context.str("cluster"), "cluster")?;
    // A user who is not listed has no credentials.
    let user = match context.str("user") {
        "" => None,
        name => named(&config, "users", name, "user").ok(),
    };
    let user = user.unwrap_or_else(|| Cow::Owned(Value::object()));
    let mut access = of_cluster(&cluster, home)?;
    access.identity_pem = identity(&user, home)?;
    access.acting_as = acting_as(&user)?;
    access.credentials = credentials(&user, &cluster, &access, home)?;
    Ok(access)
}

/// The server and its CA. disable-compression needs no handling, because compression is never requested.
fn of_cluster(cluster: &Value, home: &Path) -> Result<Access, String> {
    let server = text(cluster, "server").ok_or("the cluster has no server")?;
    let access = Access {
        authority_pem: bytes(cluster, "certificate-authority", home)?,
        server_name: text(cluster, "tls-server-name"),
        insecure: flag(cluster, "insecure-skip-tls-verify"),
        proxy: text(cluster, "proxy-url").as_deref().map(Proxy::parse).transpose()?,
        ..Access::to(server)
    };
    if access.insecure && access.authority_pem.is_some() {
        return Err("insecure-skip-tls-verify and a certificate-authority do not go together".to_owned());
    }
    Ok(access)
}

pub(super) fn identity(user: &Value, home: &Path) -> Result<Option<IdentityPem>, String> {
    match (bytes(user, "client-certificate", home)?, bytes(user, "client-key", home)?) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        _ => Err("a client certificate and its key go together".to_owned()),
    }
}

pub(super) fn acting_as(user: &Value) -> Result<ActingAs, String> {
    let extra = user.get("as-user-extra").and_then(Value::fields).into_iter().flatten();
    let acting_as = ActingAs {
        user: user.str("as").to_owned(),
        uid: user.str("as-uid").to_owned(),
        groups: texts(user, "as-groups"),
        extra: extra
            .map(|(key, values)| {
                let values = values.items().iter().filter_map(Value::as_str).map(str::to_owned);
                (key.to_string(), values.collect())
            })
            .collect(),
    };
    if acting_as.user.is_empty() && acting_as != ActingAs::default() {
        return Err("as-uid, as-groups and as-user-extra need a user to act as".to_owned());
    }
    Ok(acting_as)
}

pub(super) fn credentials(
    user: &Value,
    cluster: &Value,
    access: &Access,
    home: &Path,
) -> Result<Credentials, String> {
    if user.get("auth-provider").is_some_and(|provider| !provider.is_null()) {
        return Err("auth-provider is not supported: use exec".to_owned());
    }
    let exec = user.get("exec").filter(|exec| !exec.is_null());
    let own = match (text(user, "tokenFile"), text(user, "token"), text(user, "username")) {
        (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
            return Err("a token and a password do not go together".to_owned());
        }
        (Some(path), ..) => Credentials::TokenFile(home.join(path)),
        (None, Some(token), _) => Credentials::Token(token),
        (None, None, Some(name)) => Credentials::Password(name, user.str("password").to_owned()),
        (None, None, None) => Credentials::None,
    };
    let Some(exec) = exec else { return Ok(own) };
    // It must be valid even if other credentials take precedence.
    let exec = Exec::parse(exec, home)?;
    if own != Credentials::None || access.identity_pem.is_some() {
        return Ok(own);
    }
    let cluster = Cluster {
        server: access.server.clone(),
        server_name: access.server_name.clone(),
        insecure: access.insecure,
        authority_pem: access.authority_pem.clone(),
        proxy: text(cluster, "proxy-url"),
        disable_compression: flag(cluster, "disable-compression"),
        config: plugin_config(cluster),
    };
    Ok(Credentials::Exec(Arc::new(ExecPlugin::new(exec, &cluster, Clock::system()))))
}

/// The plug-in configuration in the cluster's extensions.
fn plugin_config(cluster: &Value) -> Option<Value> {
    let all = cluster.get("extensions").map(Value::items).unwrap_or_default();
    let own = all.iter().find(|entry| entry.str("name") == "client.authentication.k8s.io/exec")?;
    own.get("extension").cloned()
}
