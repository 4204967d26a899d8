//! Parses a kubeconfig.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::clock::Clock;

use super::exec_plugin::{Cluster, Exec, ExecPlugin};
use super::{Access, Credentials, IdentityPem, Impersonation, Proxy};
use crate::bounded_read;
use crate::limits::KUBECONFIG_BYTES;

/// Reads a file up to a limit.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    bounded_read::read_file(path, KUBECONFIG_BYTES).map_err(|error| format!("{}: {error}", path.display()))
}

/// The field of the named entry in a list. An entry may have only a name: a user without credentials.
fn find_entry<'a>(config: &'a Value, list: &str, name: &str, field: &str) -> Result<Cow<'a, Value>, String> {
    let entries = config.get(list).map(Value::items).unwrap_or_default();
    let entry = entries.iter().find(|entry| entry.str("name") == name);
    let entry = entry.ok_or_else(|| format!("there is no {field} {name:?}"))?;
    Ok(entry.get(field).map_or_else(|| Cow::Owned(Value::object()), Cow::Borrowed))
}

/// The inline data of a field, or the contents of the file that it names.
fn bytes(entry: &Value, field: &str, directory: &Path) -> Result<Option<Vec<u8>>, String> {
    let data = format!("{field}-data");
    if !entry.str(&data).is_empty() {
        let decoded = STANDARD.decode(entry.str(&data));
        return decoded.map(Some).map_err(|error| format!("{data}: {error}"));
    }
    match entry.str(field) {
        "" => Ok(None),
        path => read_file(&directory.join(path)).map(Some),
    }
}

fn text(entry: &Value, field: &str) -> Option<String> {
    Some(entry.str(field).to_owned()).filter(|text| !text.is_empty())
}

pub(super) fn strings(entry: &Value, field: &str) -> Vec<String> {
    let items = entry.get(field).map(Value::items).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn flag(entry: &Value, field: &str) -> bool {
    entry.get(field).and_then(Value::as_bool) == Some(true)
}

/// Parses one context of a kubeconfig in the directory `directory`; `None` for the current one.
pub(super) fn parse(bytes: &[u8], directory: &Path, context: Option<&str>) -> Result<Access, String> {
    let config = yaml::read(bytes)?;
    let context = match context.unwrap_or_else(|| config.str("current-context")) {
        "" => return Err("there is no current-context".to_owned()),
        name => find_entry(&config, "contexts", name, "context")?,
    };
    let cluster = find_entry(&config, "clusters", context.str("cluster"), "cluster")?;
    // A user who is not listed has no credentials.
    let user = match context.str("user") {
        "" => None,
        name => find_entry(&config, "users", name, "user").ok(),
    };
    let user = user.unwrap_or_else(|| Cow::Owned(Value::object()));
    let mut access = parse_cluster(&cluster, directory)?;
    access.identity_pem = identity(&user, directory)?;
    access.impersonation = impersonation(&user)?;
    access.credentials = credentials(&user, &cluster, &access, directory)?;
    Ok(access)
}

/// The server and its CA. disable-compression needs no handling, because compression is never requested.
fn parse_cluster(cluster: &Value, directory: &Path) -> Result<Access, String> {
    let server = text(cluster, "server").ok_or("the cluster has no server")?;
    let access = Access {
        authority_pem: bytes(cluster, "certificate-authority", directory)?,
        server_name: text(cluster, "tls-server-name"),
        insecure: flag(cluster, "insecure-skip-tls-verify"),
        proxy: text(cluster, "proxy-url").as_deref().map(Proxy::parse).transpose()?,
        ..Access::to_server(server)
    };
    if access.insecure && access.authority_pem.is_some() {
        return Err("insecure-skip-tls-verify and a certificate-authority exclude each other".to_owned());
    }
    Ok(access)
}

pub(super) fn identity(user: &Value, directory: &Path) -> Result<Option<IdentityPem>, String> {
    match (bytes(user, "client-certificate", directory)?, bytes(user, "client-key", directory)?) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        _ => Err("a client certificate and its key must be set together".to_owned()),
    }
}

pub(super) fn impersonation(user: &Value) -> Result<Impersonation, String> {
    let extra = user.get("as-user-extra").and_then(Value::fields).into_iter().flatten();
    let impersonation = Impersonation {
        user: user.str("as").to_owned(),
        uid: user.str("as-uid").to_owned(),
        groups: strings(user, "as-groups"),
        extra: extra
            .map(|(key, values)| {
                let values = values.items().iter().filter_map(Value::as_str).map(str::to_owned);
                (key.to_string(), values.collect())
            })
            .collect(),
    };
    if impersonation.user.is_empty() && impersonation != Impersonation::default() {
        return Err("as-uid, as-groups and as-user-extra need a user to impersonate".to_owned());
    }
    Ok(impersonation)
}

pub(super) fn credentials(
    user: &Value,
    cluster: &Value,
    access: &Access,
    directory: &Path,
) -> Result<Credentials, String> {
    if user.get("auth-provider").is_some_and(|provider| !provider.is_null()) {
        return Err("auth-provider is not supported: use exec".to_owned());
    }
    let exec = user.get("exec").filter(|exec| !exec.is_null());
    let configured = match (text(user, "tokenFile"), text(user, "token"), text(user, "username")) {
        (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
            return Err("a token and a password exclude each other".to_owned());
        }
        (Some(path), ..) => Credentials::TokenFile(directory.join(path)),
        (None, Some(token), _) => Credentials::Token(token),
        (None, None, Some(name)) => Credentials::Password(name, user.str("password").to_owned()),
        (None, None, None) => Credentials::None,
    };
    let Some(exec) = exec else { return Ok(configured) };
    // It must be valid even if other credentials take precedence.
    let exec = Exec::parse(exec, directory)?;
    if configured != Credentials::None || access.identity_pem.is_some() {
        return Ok(configured);
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
    let extensions = cluster.get("extensions").map(Value::items).unwrap_or_default();
    let entry = extensions.iter().find(|entry| entry.str("name") == "client.authentication.k8s.io/exec")?;
    entry.get("extension").cloned()
}
