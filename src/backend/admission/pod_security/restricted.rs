//! The checks of the restricted level.

use pilothouse_apimachinery::value::Value;

use super::baseline::{adders, seccomp_setters};
use super::pod::{Pod, Values, Violation, containers, listed, plural, security, setters, violation};

/// Containers must set allowPrivilegeEscalation=false.
pub fn escalation(pod: &Pod<'_>) -> Option<Violation> {
    let culprits = pod.culprits(|container| {
        security(container, &["allowPrivilegeEscalation"]).and_then(Value::as_bool) != Some(false)
    });
    let detail =
        || format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&culprits));
    (!culprits.is_empty()).then(|| violation("allowPrivilegeEscalation != false", detail()))
}

/// As of 1.25: Windows pods are exempt.
pub fn escalation_25(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() { None } else { escalation(pod) }
}

/// Containers must drop all capabilities, and may add only NET_BIND_SERVICE.
pub fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    let keepers = pod.culprits(|container| {
        let dropped = security(container, &["capabilities", "drop"]).map(Value::items).unwrap_or_default();
        !dropped.iter().any(|name| name.as_str() == Some("ALL"))
    });
    let kept = || format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&keepers));
    let mut details: Vec<String> = (!keepers.is_empty()).then(kept).into_iter().collect();
    details.extend(adders(pod, &["NET_BIND_SERVICE"]));
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
    let has = |volume: &Value, source: &&str| volume.get(source).is_some();
    let (mut names, mut types) = (Vec::new(), Values::new());
    for volume in volumes.iter().filter(|volume| !VOLUMES.iter().any(|source| has(volume, source))) {
        names.push(volume.str("name"));
        types.insert(OTHER_VOLUMES.iter().find(|source| has(volume, source)).copied().unwrap_or("unknown"));
    }
    if names.is_empty() {
        return None;
    }
    let volumes = plural("volume", "volumes", names.len());
    let uses = plural("uses", "use", names.len());
    let kinds = plural("restricted volume type", "restricted volume types", types.len());
    let detail = format!("{volumes} {} {uses} {kinds} {}", listed(&names), listed(&types));
    Some(violation("restricted volume types", detail))
}

/// The pod or all of its containers must set runAsNonRoot.
pub fn not_root(pod: &Pod<'_>) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    if pod.is_relaxed() {
        return None;
    }
    let said = |value: Option<&Value>| value.and_then(Value::as_bool);
    let of_pod = said(pod.security(&["runAsNonRoot"]));
    let of_container = |container| said(security(container, &["runAsNonRoot"]));
    let explicit = pod.culprits(|container| of_container(container) == Some(false));
    if let Some(who) = setters(of_pod == Some(false), &explicit) {
        return Some(violation(REASON, format!("{who} must not set securityContext.runAsNonRoot=false")));
    }
    let silent = pod.culprits(|container| of_pod != Some(true) && of_container(container).is_none());
    let detail = || format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&silent));
    (!silent.is_empty()).then(|| violation(REASON, detail()))
}

/// No user ID may be 0.
pub fn user(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_relaxed() {
        return None;
    }
    let is_root = |value: Option<&Value>| value.and_then(Value::as_int) == Some(0);
    let culprits = pod.culprits(|container| is_root(security(container, &["runAsUser"])));
    let who = setters(is_root(pod.security(&["runAsUser"])), &culprits)?;
    Some(violation("runAsUser=0", format!("{who} must not set runAsUser=0")))
}

/// The pod or all of its containers must set a confining seccomp profile.
pub fn seccomp(pod: &Pod<'_>) -> Option<Violation> {
    if let Some(wrong) = seccomp_setters(pod) {
        return Some(wrong);
    }
    // No profile is wrong, so one on the pod covers all its containers.
    let covered = pod.security(&["seccompProfile"]).is_some();
    let silent = pod.culprits(|container| !covered && security(container, &["seccompProfile"]).is_none());
    let detail = || {
        let who = containers(&silent);
        format!(
            "pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\""
        )
    };
    (!silent.is_empty()).then(|| violation("seccompProfile", detail()))
}

/// As of 1.25: Windows pods are exempt.
pub fn seccomp_25(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() { None } else { seccomp(pod) }
}
