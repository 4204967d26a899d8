//! The checks of the baseline level.

use std::borrow::Cow;
use std::collections::BTreeSet;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::{APPARMOR, SECCOMP_CONTAINER, SECCOMP_POD};

use super::pod::{
    Pod, Values, Violation, containers, is_true, pluralize, quote_list, security, setters, violation,
};

/// The type of a profile that is neither RuntimeDefault nor Localhost.
fn forbidden_profile(profile: Option<&Value>) -> Option<&str> {
    profile.map(|profile| profile.str("type")).filter(|kind| !["RuntimeDefault", "Localhost"].contains(kind))
}

/// AppArmor profiles, from fields or annotations, that do not confine.
pub fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    let mut types = Values::new();
    let pod_type = forbidden_profile(pod.security(&["appArmorProfile"]));
    types.extend(pod_type);
    let offenders = pod.offenders(|container| {
        let kind = forbidden_profile(security(container, &["appArmorProfile"]));
        types.extend(kind);
        kind.is_some()
    });
    let mut setters_text: Vec<String> = setters(pod_type.is_some(), &offenders).into_iter().collect();
    let annotations = pod.annotations().filter(|(key, value)| {
        let allowed = value.is_empty() || *value == "runtime/default" || value.starts_with("localhost/");
        key.starts_with(APPARMOR) && !allowed
    });
    let mut annotations: Vec<String> =
        annotations.map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    annotations.sort_unstable();
    if !annotations.is_empty() {
        setters_text.push(pluralize("annotation", "annotations", annotations.len()).to_owned());
    }
    if setters_text.is_empty() {
        return None;
    }
    let count = types.len() + annotations.len();
    let values = types.iter().copied().chain(annotations.iter().map(String::as_str));
    Some(Violation {
        reason: Cow::Borrowed(pluralize("forbidden AppArmor profile", "forbidden AppArmor profiles", count)),
        detail: format!(
            "{} must not set AppArmor profile type to {}",
            setters_text.join(" and "),
            quote_list(values)
        ),
    })
}

/// The default capabilities, which are allowed.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The containers that add other capabilities, and which.
pub fn added_capabilities<'a>(pod: &Pod<'a>, allowed: &[&str]) -> Option<String> {
    let mut capabilities = Values::new();
    let offenders = pod.offenders(|container| {
        let added = security(container, &["capabilities", "add"]).map(Value::items).unwrap_or_default();
        let forbidden: Vec<&'a str> =
            added.iter().filter_map(Value::as_str).filter(|name| !allowed.contains(name)).collect();
        capabilities.extend(&forbidden);
        !forbidden.is_empty()
    });
    let (subject, values) = (containers(&offenders), quote_list(&capabilities));
    (!offenders.is_empty())
        .then(|| format!("{subject} must not include {values} in securityContext.capabilities.add"))
}

/// Capabilities beyond the default ones.
pub fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    Some(violation("non-default capabilities", added_capabilities(pod, &CAPABILITIES)?))
}

/// Host network, PID and IPC namespaces.
pub fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let fields = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|field| pod.is_set(field));
    let set: Vec<String> = fields.map(|field| format!("{field}=true")).collect();
    (!set.is_empty()).then(|| violation("host namespaces", set.join(", ")))
}

/// HostPath volumes.
pub fn host_paths(pod: &Pod<'_>) -> Option<Violation> {
    let volumes = pod.spec().get("volumes").map(Value::items).unwrap_or_default();
    let host_paths = volumes.iter().filter(|volume| volume.get("hostPath").is_some());
    let names: Vec<&str> = host_paths.map(|volume| volume.str("name")).collect();
    let detail = || format!("{} {}", pluralize("volume", "volumes", names.len()), quote_list(&names));
    (!names.is_empty()).then(|| violation("hostPath volumes", detail()))
}

/// Host ports.
pub fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    let mut numbers_used = BTreeSet::new();
    let offenders = pod.offenders(|container| {
        let ports = container.get("ports").map(Value::items).unwrap_or_default();
        let numbers = ports.iter().filter_map(|port| port.get("hostPort").and_then(Value::as_int));
        let numbers: Vec<i64> = numbers.filter(|port| *port != 0).collect();
        numbers_used.extend(numbers.iter().map(ToString::to_string));
        !numbers.is_empty()
    });
    if offenders.is_empty() {
        return None;
    }
    let (uses, ports) =
        (pluralize("uses", "use", offenders.len()), pluralize("hostPort", "hostPorts", numbers_used.len()));
    let numbers_used: Vec<String> = numbers_used.into_iter().collect();
    Some(violation(
        "hostPort",
        format!("{} {uses} {ports} {}", containers(&offenders), numbers_used.join(", ")),
    ))
}

/// Privileged containers.
pub fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let offenders = pod.offenders(|container| is_true(security(container, &["privileged"])));
    let detail = || format!("{} must not set securityContext.privileged=true", containers(&offenders));
    (!offenders.is_empty()).then(|| violation("privileged", detail()))
}

/// Containers with an unmasked `/proc`.
pub fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_relaxed() {
        return None;
    }
    let mut types = Values::new();
    let offenders = pod.offenders(|container| {
        let set = security(container, &["procMount"]).and_then(Value::as_str);
        let other = set.filter(|kind| *kind != "Default");
        types.extend(other);
        other.is_some()
    });
    let (subject, values) = (containers(&offenders), quote_list(&types));
    let detail = || format!("{subject} must not set securityContext.procMount to {values}");
    (!offenders.is_empty()).then(|| violation("procMount", detail()))
}

const SELINUX: [&str; 4] = ["", "container_t", "container_init_t", "container_kvm_t"];
const SELINUX_31: [&str; 5] =
    ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

/// SELinux options other than those for containers.
pub fn se_linux(pod: &Pod<'_>) -> Option<Violation> {
    check_se_linux(pod, &SELINUX)
}

/// SELinux options as of 1.31, which allows one more type.
pub fn se_linux_31(pod: &Pod<'_>) -> Option<Violation> {
    check_se_linux(pod, &SELINUX_31)
}

fn check_se_linux<'a>(pod: &Pod<'a>, allowed: &[&str]) -> Option<Violation> {
    let (mut types, mut user, mut role) = (Values::new(), false, false);
    let mut is_bad = |options: Option<&'a Value>| {
        let Some(options) = options else { return false };
        let is_bad_type = !allowed.contains(&options.str("type"));
        if is_bad_type {
            types.insert(options.str("type"));
        }
        let (sets_user, sets_role) = (!options.str("user").is_empty(), !options.str("role").is_empty());
        user |= sets_user;
        role |= sets_role;
        is_bad_type || sets_user || sets_role
    };
    let is_pod_bad = is_bad(pod.security(&["seLinuxOptions"]));
    let offenders = pod.offenders(|container| is_bad(security(container, &["seLinuxOptions"])));
    let subject = setters(is_pod_bad, &offenders)?;
    let mut values = Vec::new();
    if !types.is_empty() {
        values.push(format!("{} {}", pluralize("type", "types", types.len()), quote_list(&types)));
    }
    values.extend(user.then(|| "user may not be set".to_owned()));
    values.extend(role.then(|| "role may not be set".to_owned()));
    let values = values.join("; ");
    Some(violation(
        "seLinuxOptions",
        format!("{subject} set forbidden securityContext.seLinuxOptions: {values}"),
    ))
}

/// Seccomp profiles in annotations, from before there was a field.
pub fn seccomp_annotations(pod: &Pod<'_>) -> Option<Violation> {
    let mut forbidden = BTreeSet::new();
    let container_keys =
        pod.containers().map(|container| format!("{SECCOMP_CONTAINER}{}", container.str("name")));
    for key in std::iter::once(SECCOMP_POD.to_owned()).chain(container_keys) {
        let Some(value) = pod.annotation(&key) else { continue };
        let is_default = ["runtime/default", "docker/default"].contains(&value);
        if !is_default && !value.starts_with("localhost/") {
            forbidden.insert(format!("{key}={}", quoted(value)));
        }
    }
    let noun = pluralize("annotation", "annotations", forbidden.len());
    let forbidden: Vec<String> = forbidden.into_iter().collect();
    (!forbidden.is_empty())
        .then(|| violation("seccompProfile", format!("forbidden {noun} {}", forbidden.join(", "))))
}

/// Seccomp profiles that do not confine.
pub fn seccomp_setters(pod: &Pod<'_>) -> Option<Violation> {
    let mut types = Values::new();
    let pod_type = forbidden_profile(pod.security(&["seccompProfile"]));
    types.extend(pod_type);
    let offenders = pod.offenders(|container| {
        let kind = forbidden_profile(security(container, &["seccompProfile"]));
        types.extend(kind);
        kind.is_some()
    });
    let subject = setters(pod_type.is_some(), &offenders)?;
    let values = quote_list(&types);
    Some(violation(
        "seccompProfile",
        format!("{subject} must not set securityContext.seccompProfile.type to {values}"),
    ))
}

/// Safe sysctls, in the order in which releases added them.
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    // 1.27
    "net.ipv4.ip_local_reserved_ports",
    // 1.29
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    // 1.32
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Sysctls that are not safe.
pub fn sysctls(pod: &Pod<'_>) -> Option<Violation> {
    check_sysctls(pod, 5)
}

/// As of 1.27, with one more safe sysctl.
pub fn sysctls_27(pod: &Pod<'_>) -> Option<Violation> {
    check_sysctls(pod, 6)
}

/// As of 1.29, with the safe sysctls for TCP keepalive and timeouts.
pub fn sysctls_29(pod: &Pod<'_>) -> Option<Violation> {
    check_sysctls(pod, 10)
}

/// As of 1.32, with the safe sysctls for TCP buffers.
pub fn sysctls_32(pod: &Pod<'_>) -> Option<Violation> {
    check_sysctls(pod, SYSCTLS.len())
}

fn check_sysctls(pod: &Pod<'_>, allowed_count: usize) -> Option<Violation> {
    let set = pod.security(&["sysctls"]).map(Value::items).unwrap_or_default();
    let names = set.iter().map(|sysctl| sysctl.str("name"));
    let forbidden: Vec<&str> =
        names.filter(|name| !SYSCTLS.iter().take(allowed_count).any(|safe| safe == name)).collect();
    (!forbidden.is_empty()).then(|| violation("forbidden sysctls", forbidden.join(", ")))
}

/// Windows HostProcess containers.
pub fn host_process(pod: &Pod<'_>) -> Option<Violation> {
    const FIELD: [&str; 2] = ["windowsOptions", "hostProcess"];
    let offenders = pod.offenders(|container| is_true(security(container, &FIELD)));
    let subject = setters(is_true(pod.security(&FIELD)), &offenders)?;
    Some(violation(
        "hostProcess",
        format!("{subject} must not set securityContext.windowsOptions.hostProcess=true"),
    ))
}
