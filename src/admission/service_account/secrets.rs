//! The secrets that a pod references, and whether its service account allows them.

use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::ENFORCE_MOUNTABLE_SECRETS;

use super::items;

const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
/// Volume sources that reference a secret, and the path of the reference.
const SOURCES: [(&str, &[&str]); 10] = [
    ("azureFile", &["secretName"]),
    ("cephfs", &["secretRef", "name"]),
    ("cinder", &["secretRef", "name"]),
    ("flexVolume", &["secretRef", "name"]),
    ("rbd", &["secretRef", "name"]),
    ("secret", &["secretName"]),
    ("scaleIO", &["secretRef", "name"]),
    ("iscsi", &["secretRef", "name"]),
    ("storageos", &["secretRef", "name"]),
    ("csi", &["nodePublishSecretRef", "name"]),
];

/// Whether the account restricts the secrets that its pods may mount.
pub fn restricts_secrets(account: &Value) -> bool {
    let value =
        account.get_path(&["metadata", "annotations", ENFORCE_MOUNTABLE_SECRETS]).and_then(Value::as_str);
    value.is_some_and(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"))
}

/// Whether the pod references any secret.
pub fn references_secret(spec: &Value) -> bool {
    let has_name = |value: &Value, path: &[&str]| {
        value.get_path(path).and_then(Value::as_str).is_some_and(|name| !name.is_empty())
    };
    let in_volume = |volume: &Value| {
        SOURCES.iter().any(|(source, path)| volume.get(source).is_some_and(|source| has_name(source, path)))
            || volume.get("projected").is_some_and(|projected| {
                items(projected, "sources").iter().any(|source| has_name(source, &["secret", "name"]))
            })
    };
    let in_container = |container: &Value| {
        items(container, "envFrom").iter().any(|from| has_name(from, &["secretRef", "name"]))
            || items(container, "env").iter().any(|env| has_name(env, &["valueFrom", "secretKeyRef", "name"]))
    };
    items(spec, "imagePullSecrets").iter().any(|secret| has_name(secret, &["name"]))
        || LISTS.iter().any(|list| items(spec, list).iter().any(in_container))
        || items(spec, "volumes").iter().any(in_volume)
}

/// Whether this list of the account contains a secret.
fn allows(account: &Value, list: &str, name: &str) -> bool {
    items(account, list).iter().any(|secret| secret.str("name") == name)
}

/// Refuses a new pod that references secrets which its account does not list.
pub fn check(spec: &Value, account: &Value) -> Result<(), String> {
    let owner = account.get("metadata").unwrap_or(&Value::Null).str("name");
    for volume in items(spec, "volumes") {
        let Some(secret) = volume.get("secret") else { continue };
        let name = secret.str("secretName");
        if !allows(account, "secrets", name) {
            return Err(format!("volume with secret.secretName={}", not_allowed(name, owner)));
        }
    }
    check_containers(items(spec, "initContainers"), "init container", account)?;
    check_containers(items(spec, "containers"), "container", account)?;
    for (index, secret) in items(spec, "imagePullSecrets").iter().enumerate() {
        let name = secret.str("name");
        if !allows(account, "imagePullSecrets", name) {
            return Err(format!(
                "imagePullSecrets[{index}].name=\"{name}\" is not allowed because service account {owner} does not \
                 reference that imagePullSecret"
            ));
        }
    }
    Ok(())
}

/// Refuses ephemeral containers that reference secrets which the account does not list.
pub fn check_ephemeral(spec: &Value, account: &Value) -> Result<(), String> {
    check_containers(items(spec, "ephemeralContainers"), "ephemeral container", account)
}

fn check_containers(containers: &[Value], container_type: &str, account: &Value) -> Result<(), String> {
    let owner = account.get("metadata").unwrap_or(&Value::Null).str("name");
    for container in containers {
        let container_name = || format!("{container_type} {}", container.str("name"));
        for env in items(container, "env") {
            let Some(secret) = env.get_path(&["valueFrom", "secretKeyRef"]) else { continue };
            let name = secret.str("name");
            if !allows(account, "secrets", name) {
                return Err(format!(
                    "{} with envVar {} referencing secret.secretName={}",
                    container_name(),
                    env.str("name"),
                    not_allowed(name, owner)
                ));
            }
        }
        for from in items(container, "envFrom") {
            let Some(secret) = from.get("secretRef") else { continue };
            let name = secret.str("name");
            if !allows(account, "secrets", name) {
                return Err(format!(
                    "{} with envFrom referencing secret.secretName={}",
                    container_name(),
                    not_allowed(name, owner)
                ));
            }
        }
    }
    Ok(())
}

fn not_allowed(secret: &str, owner: &str) -> String {
    format!("\"{secret}\" is not allowed because service account {owner} does not reference that secret")
}
