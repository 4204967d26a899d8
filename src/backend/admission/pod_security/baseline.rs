//! The checks of the baseline level.

use std::borrow::Cow;
use std::collections::BTreeSet;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::{APPARMOR, SECCOMP_CONTAINER, SECCOMP_POD};

use super::pod::{Pod, Values, Violation, containers, is_true, listed, plural, security, setters, violation};

/// The type of a profile that is neither RuntimeDefault nor Localhost.
fn bad_profile(profile: Option<&Value>) -> Option<&str> {
    profile.map(|profile| profile.str("type")).filter(|kind| !["RuntimeDefault", "Localhost"].contains(kind))
}

/// AppArmor profiles, from fields or annotations, that do not confine.
pub fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    let mut types = Values::new();
    let of_pod = bad_profile(pod.security(&["appArmorProfile"]));
    types.extend(of_pod);
    let culprits = pod.culprits(|container| {
        let bad = bad_profile(security(container, &["appArmorProfile"]));
        types.extend(bad);
        bad.is_some()
    });
    let mut said: Vec<String> = setters(of_pod.is_some(), &culprits).into_iter().collect();
    let annotations = pod.annotations().filter(|(key, value)| {
        let allowed = value.is_empty() || *value == "runtime/default" || value.starts_with("localhost/");
        key.starts_with(APPARMOR) && !allowed
    });
    let mut annotations: Vec<String> =
        annotations.map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    annotations.sort_unstable();
    if !annotations.is_empty() {
        said.push(plural("annotation", "annotations", annotations.len()).to_owned());
    }
    if said.is_empty() {
        return None;
    }
    let count = types.len() + annotations.len();
    let values = types.iter().copied().chain(annotations.iter().map(String::as_str));
    Some(Violation {
        reason: Cow::Borrowed(plural("forbidden AppArmor profile", "forbidden AppArmor profiles", count)),
        detail: format!("{} must not set AppArmor profile type to {}", said.join(" and "), listed(values)),
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
pub fn adders<'a>(pod: &Pod<'a>, allowed: &[&str]) -> Option<String> {
    let mut found = Values::new();
    let culprits = pod.culprits(|container| {
        let added = security(container, &["capabilities", "add"]).map(Value::items).unwrap_or_default();
        let before = added.iter().filter_map(Value::as_str).filter(|name| !allowed.contains(name));
        let bad: Vec<&'a str> = before.collect();
        found.extend(&bad);
        !bad.is_empty()
    });
    let (who, what) = (containers(&culprits), listed(&found));
    (!culprits.is_empty())
        .then(|| format!("{who} must not include {what} in securityContext.capabilities.add"))
}

/// Capabilities beyond the default ones.
pub fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    Some(violation("non-default capabilities", adders(pod, &CAPABILITIES)?))
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
    let bad = volumes.iter().filter(|volume| volume.get("hostPath").is_some());
    let names: Vec<&str> = bad.map(|volume| volume.str("name")).collect();
    let detail = || format!("{} {}", plural("volume", "volumes", names.len()), listed(&names));
    (!names.is_empty()).then(|| violation("hostPath volumes", detail()))
}

/// Host ports.
pub fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    let mut found = BTreeSet::new();
    let culprits = pod.culprits(|container| {
        let ports = container.get("ports").map(Value::items).unwrap_or_default();
        let taken = ports.iter().filter_map(|port| port.get("hostPort").and_then(Value::as_int));
        let taken: Vec<i64> = taken.filter(|port| *port != 0).collect();
        found.extend(taken.iter().map(ToString::to_string));
        !taken.is_empty()
    });
    if culprits.is_empty() {
        return None;
    }
    let (uses, ports) = (plural("uses", "use", culprits.len()), plural("hostPort", "hostPorts", found.len()));
    let found: Vec<String> = found.into_iter().collect();
    Some(violation("hostPort", format!("{} {uses} {ports} {}", containers(&culprits), found.join(", "))))
}

/// Privileged containers.
pub fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let culprits = pod.culprits(|container| is_true(security(container, &["privileged"])));
    let detail = || format!("{} must not set securityContext.privileged=true", containers(&culprits));
    (!culprits.is_empty()).then(|| violation("privileged", detail()))
}

/// Containers with an unmasked `/proc`.
pub fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_relaxed() {
        return None;
    }
    let mut found = Values::new();
    let culprits = pod.culprits(|container| {
        let set = security(container, &["procMount"]).and_then(Value::as_str);
        let bad = set.filter(|kind| *kind != "Default");
        found.extend(bad);
        bad.is_some()
    });
    let (who, what) = (containers(&culprits), listed(&found));
    let detail = || format!("{who} must not set securityContext.procMount to {what}");
    (!culprits.is_empty()).then(|| violation("procMount", detail()))
}

const SELINUX: [&str; 4] = ["", "container_t", "container_init_t", "container_kvm_t"];
const SELINUX_31: [&str; 5] =
    ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

/// SELinux options other than those for containers.
pub fn se_linux(pod: &Pod<'_>) -> Option<Violation> {
    se_linux_of(pod, &SELINUX)
}

/// SELinux options as of 1.31, which allows one more type.
pub fn se_linux_31(pod: &Pod<'_>) -> Option<Violation> {
    se_linux_of(pod, &SELINUX_31)
}

fn se_linux_of<'a>(pod: &Pod<'a>, allowed: &[&str]) -> Option<Violation> {
    let (mut types, mut user, mut role) = (Values::new(), false, false);
    let mut bad = |options: Option<&'a Value>| {
        let Some(options) = options else { return false };
        let bad_type = !allowed.contains(&options.str("type"));
        if bad_type {
            types.insert(options.str("type"));
        }
        let (sets_user, sets_role) = (!options.str("user").is_empty(), !options.str("role").is_empty());
        user |= sets_user;
        role |= sets_role;
        bad_type || sets_user || sets_role
    };
    let pod_is_bad = bad(pod.security(&["seLinuxOptions"]));
    let culprits = pod.culprits(|container| bad(security(container, &["seLinuxOptions"])));
    let who = setters(pod_is_bad, &culprits)?;
    let mut what = Vec::new();
    if !types.is_empty() {
        what.push(format!("{} {}", plural("type", "types", types.len()), listed(&types)));
    }
    what.extend(user.then(|| "user may not be set".to_owned()));
    what.extend(role.then(|| "role may not be set".to_owned()));
    let what = what.join("; ");
    Some(violation("seLinuxOptions", format!("{who} set forbidden securityContext.seLinuxOptions: {what}")))
}

/// Seccomp profiles in annotations, from before there was a field.
pub fn seccomp_annotations(pod: &Pod<'_>) -> Option<Violation> {
    let mut found = BTreeSet::new();
    let of_containers =
        pod.containers().map(|container| format!("{SECCOMP_CONTAINER}{}", container.str("name")));
    for key in std::iter::once(SECCOMP_POD.to_owned()).chain(of_containers) {
        let Some(value) = pod.annotation(&key) else { continue };
        let known = ["runtime/default", "docker/default"].contains(&value);
        if !known && !value.starts_with("localhost/") {
            found.insert(format!("{key}={}", quoted(value)));
        }
    }
    let word = plural("annotation", "annotations", found.len());
    let found: Vec<String> = found.into_iter().collect();
    (!found.is_empty()).then(|| violation("seccompProfile", format!("forbidden {word} {}", found.join(", "))))
}

/// Seccomp profiles that do not confine.
pub fn seccomp_setters(pod: &Pod<'_>) -> Option<Violation> {
    let mut types = Values::new();
    let of_pod = bad_profile(pod.security(&["seccompProfile"]));
    types.extend(of_pod);
    let culprits = pod.culprits(|container| {
        let bad = bad_profile(security(container, &["seccompProfile"]));
        types.extend(bad);
        bad.is_some()
    });
    let who = setters(of_pod.is_some(), &culprits)?;
    let what = listed(&types);
    Some(violation(
        "seccompProfile",
        format!("{who} must not set securityContext.seccompProfile.type to {what}"),
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
    sysctls_of(pod, 5)
}

/// As of 1.27, with one more safe sysctl.
pub fn sysctls_27(pod: &Pod<'_>) -> Option<Violation> {
    sysctls_of(pod, 6)
}

/// As of 1.29, with the safe sysctls for TCP keepalive and timeouts.
pub fn sysctls_29(pod: &Pod<'_>) -> Option<Violation> {
    sysctls_of(pod, 10)
}

/// As of 1.32, with the safe sysctls for TCP buffers.
pub fn sysctls_32(pod: &Pod<'_>) -> Option<Violation> {
    sysctls_of(pod, SYSCTLS.len())
}

fn sysctls_of(pod: &Pod<'_>, known: usize) -> Option<Violation> {
    let set = pod.security(&["sysctls"]).map(Value::items).unwrap_or_default();
    let names = set.iter().map(|one| one.str("name"));
    let bad: Vec<&str> = names.filter(|name| !SYSCTLS.iter().take(known).any(|safe| safe == name)).collect();
    (!bad.is_empty()).then(|| violation("forbidden sysctls", bad.join(", ")))
}

/// Windows HostProcess containers.
pub fn host_process(pod: &Pod<'_>) -> Option<Violation> {
    const FIELD: [&str; 2] = ["windowsOptions", "hostProcess"];
    let culprits = pod.culprits(|container| is_true(security(container, &FIELD)));
    let who = setters(is_true(pod.security(&FIELD)), &culprits)?;
    Some(violation(
        "hostProcess",
        format!("{who} must not set securityContext.windowsOptions.hostProcess=true"),
    ))
}
