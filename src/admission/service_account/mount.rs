//! The token volume of a pod, and its mounts.

use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{POD_CREDENTIALS, ROOT_CERTIFICATE};

use crate::limits::POD_TOKEN_LIFETIME;

/// The prefix of the volume's name.
pub const VOLUME_PREFIX: &str = "kube-api-access-";
/// The mode of the files: readable for everybody.
const MODE: i64 = 0o644;

/// Mounts the token into every container that has nothing else mounted at its path. An existing volume with the prefix is used as
/// it is; otherwise `name` makes a name for a new one.
pub fn mount_token(spec: &mut Value, name: impl FnOnce() -> String) {
    let volumes = spec.get("volumes").map(Value::items).unwrap_or_default();
    let existing =
        volumes.iter().map(|volume| volume.str("name")).find(|name| name.starts_with(VOLUME_PREFIX));
    let (exists, name) = match existing {
        Some(name) => (true, name.to_owned()),
        None => (false, name()),
    };
    let mut is_mounted = false;
    for list in ["initContainers", "containers"] {
        is_mounted |= mount(spec, list, &name);
    }
    if is_mounted && !exists {
        push(spec, "volumes", volume(&name));
    }
}

/// Mounts the volume into a list of containers. Returns whether any container got it.
fn mount(spec: &mut Value, list: &str, name: &str) -> bool {
    let Some(Value::Array(containers)) = spec.get_mut(list) else { return false };
    let mut has_mounted = false;
    for container in containers {
        let mounts = container.get("volumeMounts").map(Value::items).unwrap_or_default();
        if mounts.iter().any(|mount| mount.str("mountPath") == POD_CREDENTIALS) {
            continue;
        }
        let mut mount = Value::object();
        mount.set("name", name);
        mount.set("readOnly", true);
        mount.set("mountPath", POD_CREDENTIALS);
        push(container, "volumeMounts", mount);
        has_mounted = true;
    }
    has_mounted
}

fn push(value: &mut Value, list: &str, item: Value) {
    match value.get_mut(list) {
        Some(Value::Array(items)) => items.push(item),
        _ => value.set(list, vec![item]),
    }
}

/// A projected volume with the token, the CA bundle and the namespace.
fn volume(name: &str) -> Value {
    let mut token = Value::object();
    let source = token.entry("serviceAccountToken");
    source.set("path", "token");
    source.set("expirationSeconds", i64::try_from(POD_TOKEN_LIFETIME.as_secs()).unwrap_or(i64::MAX));

    let mut item = Value::object();
    item.set("key", "ca.crt");
    item.set("path", "ca.crt");
    let mut authority = Value::object();
    let source = authority.entry("configMap");
    source.set("name", ROOT_CERTIFICATE);
    source.set("items", vec![item]);

    let mut item = Value::object();
    item.set("path", "namespace");
    let field = item.entry("fieldRef");
    field.set("apiVersion", "v1");
    field.set("fieldPath", "metadata.namespace");
    let mut namespace = Value::object();
    namespace.entry("downwardAPI").set("items", vec![item]);

    let mut volume = Value::object();
    volume.set("name", name);
    let projected = volume.entry("projected");
    projected.set("sources", vec![token, authority, namespace]);
    projected.set("defaultMode", MODE);
    volume
}
