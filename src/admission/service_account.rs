//! ServiceAccount: every pod has a service account and gets its token.

use std::time::Duration;

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::MIRROR;

use crate::limits::DEFAULT_ACCOUNT_ATTEMPTS;
use crate::pki::random;

use super::lookup::SERVICE_ACCOUNTS;
use super::{Operation, Outcome, Plugin, Write, done};

mod mount;
mod secrets;

/// The service account of pods that name none.
const DEFAULT: &str = "default";

/// Sets the service account of pods with its pull secrets and token volume, and refuses secrets that the account does not allow.
pub struct ServiceAccount;

impl Plugin for ServiceAccount {
    fn handles(&self, write: &Write<'_>) -> bool {
        match write.operation {
            Operation::Create => write.is_of("", "pods"),
            Operation::Update => write.is_of_subresource("", "pods", "ephemeralcontainers"),
            Operation::Delete | Operation::Connect => false,
        }
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, pod: &'a mut Value) -> Outcome<'a> {
        if write.operation != Operation::Create {
            return done(Ok(()));
        }
        // A node deletes its mirror pod if it finds it changed.
        if is_mirror(pod) {
            return done(check_mirror(pod).map_err(|reason| write.forbidden(pod, reason)));
        }
        Box::pin(async {
            let spec = pod.entry("spec");
            if spec.str("serviceAccountName").is_empty() {
                spec.set("serviceAccountName", DEFAULT);
                // The deprecated name of the same field.
                spec.set("serviceAccount", DEFAULT);
            }
            let account = account_of(write, pod).await?;
            add_token_and_pull_secrets(pod, &account);
            check_secrets(write, pod, &account)
        })
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, pod: &'a Value) -> Outcome<'a> {
        if write.operation == Operation::Create && is_mirror(pod) {
            return done(check_mirror(pod).map_err(|reason| write.forbidden(pod, reason)));
        }
        Box::pin(async {
            let account = account_of(write, pod).await?;
            check_secrets(write, pod, &account)
        })
    }
}

fn is_mirror(pod: &Value) -> bool {
    pod.get_path(&["metadata", "annotations", MIRROR]).is_some()
}

/// A mirror pod has no service account, and references nothing that needs one.
fn check_mirror(pod: &Value) -> std::result::Result<(), &'static str> {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    if !spec.str("serviceAccountName").is_empty() {
        return Err("a mirror pod may not reference service accounts");
    }
    if secrets::references_secret(spec) {
        return Err("a mirror pod may not reference secrets");
    }
    let projects_token = items(spec, "volumes").iter().any(|volume| {
        let projected = volume.get("projected").unwrap_or(&Value::Null);
        items(projected, "sources").iter().any(|source| source.get("serviceAccountToken").is_some())
    });
    if projects_token {
        return Err("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

fn items<'a>(value: &'a Value, list: &str) -> &'a [Value] {
    value.get(list).map(Value::items).unwrap_or_default()
}

/// The service account that the pod names; it must exist.
async fn account_of(write: &Write<'_>, pod: &Value) -> Result<Value> {
    let namespace = write.call.namespace();
    let name = pod.get("spec").unwrap_or(&Value::Null).str("serviceAccountName");
    if name.is_empty() {
        let reason = format!("no service account specified for pod {namespace}/{}", meta::name(pod));
        return Err(write.forbidden(pod, &reason));
    }
    let failed = |status: &Status| {
        let reason = format!("error looking up service account {namespace}/{name}: {}", status.message);
        write.forbidden(pod, &reason)
    };
    let attempts = if name == DEFAULT { DEFAULT_ACCOUNT_ATTEMPTS } else { 1 };
    // The pause is random, so that pods that wait for the same account do not all retry at once.
    let pause = Duration::from_millis(100 + u64::try_from(random::below(100)).unwrap_or_default());
    for attempt in 0..attempts {
        if attempt > 0 {
            tokio::time::sleep(pause).await;
        }
        let result = SERVICE_ACCOUNTS.get_in(write, namespace, name).await;
        if let Some(account) = result.map_err(|status| failed(&status))? {
            return Ok(account);
        }
    }
    Err(failed(&Status::not_found(GroupResource { group: "", resource: "serviceaccount" }, name)))
}

/// Adds the token volume and the pull secrets of the account.
fn add_token_and_pull_secrets(pod: &mut Value, account: &Value) {
    let automount = |value: &Value| value.get("automountServiceAccountToken").and_then(Value::as_bool);
    let spec = pod.entry("spec");
    if automount(spec).or(automount(account)).unwrap_or(true) {
        mount::mount_token(spec, || generate_name(mount::VOLUME_PREFIX));
    }
    if items(spec, "imagePullSecrets").is_empty() {
        let reference_to = |secret: &Value| {
            let mut reference = Value::object();
            if !secret.str("name").is_empty() {
                reference.set("name", secret.str("name"));
            }
            reference
        };
        let secrets: Vec<Value> = items(account, "imagePullSecrets").iter().map(reference_to).collect();
        if !secrets.is_empty() {
            spec.set("imagePullSecrets", secrets);
        }
    }
}

/// A random name with this prefix.
fn generate_name(base: &str) -> String {
    let mut object = Value::object();
    object.entry("metadata").set("generateName", base);
    meta::generate_name(&mut object, &mut random::below);
    meta::name(&object).to_owned()
}

fn check_secrets(write: &Write<'_>, pod: &Value, account: &Value) -> Result<()> {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let result = match write.operation {
        _ if !secrets::restricts_secrets(account) => return Ok(()),
        Operation::Create => secrets::check(spec, account),
        _ => secrets::check_ephemeral(spec, account),
    };
    result.map_err(|reason| write.forbidden(pod, &reason))
}

#[cfg(test)]
mod tests;
