//! The checks of the restricted level.

use pilothouse_apimachinery::value::Value;

use super::baseline::{added_capabilities, seccomp_setters};
use super::pod::{Pod, Values, Violation, containers, pluralize, quote_list, security, setters, violation};

/// Containers must set allowPrivilegeEscalation=false.
pub fn escalation(pod: &Pod<'_>) -> Option<Violation> {
    let offenders = pod.offenders(|container| {
        security(container, &["allowPrivilegeEscalation"]).and_then(Value::as_bool) != Some(false)
    });
    let detail =
        || format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&offenders));
    (!offenders.is_empty()).then(|| violation("allowPrivilegeEscalation != false", detail()))
}

/// As of 1.25: Windows pods are exempt.
pub fn escalation_25(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() { None } else { escalation(pod) }
}

/// Containers must drop all capabilities, and may add only NET_BIND_SERVICE.
pub fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    let without_drop = pod.offenders(|container| {
        let dropped = security(container, &["capabilities", "drop"]).map(Value::items).unwrap_or_default();
        !dropped.iter().any(|name| name.as_str() == Some("ALL"))
    });
    let detail =
        || format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&without_drop));
    let mut details: Vec<String> = (!without_drop.is_empty()).then(detail).into_iter().collect();
    details.extend(added_capabilities(pod, &["NET_BIND_SERVICE"]));
    (!details.is_empty()).then(|| violation("unrestricted capabilities", details.join("; ")))
}

/// As of 1.25: Windows pods are exempt.
pub fn capabilities_25(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() { None } else { capabilities(pod) }
}

/// Allowed volume types.
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// Forbidden volume types, in the order in which they are reported.
const OTHER_VOLUMES: [&str; 21] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
];

/// Volumes must be of an allowed type.
pub fn volumes(pod: &Pod<'_>) -> Option<Violation> {
    let volumes = pod.spec().get("volumes").map(Value::items).unwrap_or_default();
    let has_source = |volume: &Value, source: &&str| volume.get(source).is_some();
    let (mut names, mut types) = (Vec::new(), Values::new());
    for volume in volumes.iter().filter(|volume| !VOLUMES.iter().any(|source| has_source(volume, source))) {
        names.push(volume.str("name"));
        types.insert(
            OTHER_VOLUMES.iter().find(|source| has_source(volume, source)).copied().unwrap_or("unknown"),
        );
    }
    if names.is_empty() {
        return None;
    }
    let noun = pluralize("volume", "volumes", names.len());
    let uses = pluralize("uses", "use", names.len());
    let kinds = pluralize("restricted volume type", "restricted volume types", types.len());
    let detail = format!("{noun} {} {uses} {kinds} {}", quote_list(&names), quote_list(&types));
    Some(violation("restricted volume types", detail))
}

/// The pod or all of its containers must set runAsNonRoot.
pub fn not_root(pod: &Pod<'_>) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    if pod.is_relaxed() {
        return None;
    }
    let flag = |value: Option<&Value>| value.and_then(Value::as_bool);
    let pod_value = flag(pod.security(&["runAsNonRoot"]));
    let container_value = |container| flag(security(container, &["runAsNonRoot"]));
    let explicit = pod.offenders(|container| container_value(container) == Some(false));
    if let Some(subject) = setters(pod_value == Some(false), &explicit) {
        return Some(violation(REASON, format!("{subject} must not set securityContext.runAsNonRoot=false")));
    }
    let unset = pod.offenders(|container| pod_value != Some(true) && container_value(container).is_none());
    let detail = || format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&unset));
    (!unset.is_empty()).then(|| violation(REASON, detail()))
}

/// No user ID may be 0.
pub fn user(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_relaxed() {
        return None;
    }
    let is_root = |value: Option<&Value>| value.and_then(Value::as_int) == Some(0);
    let offenders = pod.offenders(|container| is_root(security(container, &["runAsUser"])));
    let subject = setters(is_root(pod.security(&["runAsUser"])), &offenders)?;
    Some(violation("runAsUser=0", format!("{subject} must not set runAsUser=0")))
}

/// The pod or all of its containers must set a confining seccomp profile.
pub fn seccomp(pod: &Pod<'_>) -> Option<Violation> {
    if let Some(violation) = seccomp_setters(pod) {
        return Some(violation);
    }
    // All profiles are allowed ones, so one on the pod covers all its containers.
    let covered = pod.security(&["seccompProfile"]).is_some();
    let unset = pod.offenders(|container| !covered && security(container, &["seccompProfile"]).is_none());
    let detail = || {
        let subject = containers(&unset);
        format!(
            "pod or {subject} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\""
        )
    };
    (!unset.is_empty()).then(|| violation("seccompProfile", detail()))
}

/// As of 1.25: Windows pods are exempt.
pub fn seccomp_25(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() { None } else { seccomp(pod) }
}
