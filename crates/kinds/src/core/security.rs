//! Security contexts of pods and containers.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::volume_source::local_path;
use crate::allowed::core_v1::{AppArmorProfile, PodSecurityContext, SeccompProfile, SecurityContext};

const LARGEST_ID: i64 = i32::MAX as i64;
const SYSCTL_LENGTH: usize = 253;
const SYSCTL_FORMAT: &str = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

/// Checks user and group IDs that are set.
fn ids(context: &FieldValue<'_>, fields: &[&str], errors: &mut ErrorList) {
    for id in fields.iter().filter_map(|field| context.opt(field)) {
        id.in_range(errors, 0, LARGEST_ID);
    }
}

/// Checks the security context of a pod.
pub fn pod(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(context) = spec.opt("securityContext") else {
        share_process(spec, errors);
        return;
    };
    ids(&context, &["fsGroup", "runAsUser", "runAsGroup"], errors);
    if let Some(groups) = context.opt("supplementalGroups") {
        for group in groups.items() {
            group.in_range(errors, 0, LARGEST_ID);
        }
    }
    share_process(spec, errors);
    sysctls(&context, spec, errors);
    for (field, words) in [
        ("fsGroupChangePolicy", PodSecurityContext::FS_GROUP_CHANGE_POLICY),
        ("supplementalGroupsPolicy", PodSecurityContext::SUPPLEMENTAL_GROUPS_POLICY),
    ] {
        if field == "supplementalGroupsPolicy" {
            profiles(&context, errors);
        }
        if let Some(policy) = context.opt(field) {
            policy.one_of(errors, words);
        }
    }
    if let Some(policy) = context.opt("seLinuxChangePolicy") {
        let any = errors.features().has(Feature::SELinuxMount);
        policy.one_of(errors, if any { &["MountOption", "Recursive"] } else { &["Recursive"] });
    }
}

fn profiles(context: &FieldValue<'_>, errors: &mut ErrorList) {
    if let Some(profile) = context.opt("seccompProfile") {
        seccomp(&profile, errors);
    }
    if let Some(options) = context.opt("windowsOptions") {
        windows_options(&options, errors);
    }
    if let Some(profile) = context.opt("appArmorProfile") {
        app_armor(&profile, errors);
    }
}

fn share_process(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    if spec.read("shareProcessNamespace").as_bool() == Some(true)
        && spec.read("hostPID").as_bool() == Some(true)
    {
        let path = spec.path.child("securityContext").child("shareProcessNamespace");
        let wrong = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(&path, "true", wrong));
    }
}

fn is_sysctl_name(name: &str) -> bool {
    let part = |part: &str| {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = part.as_bytes();
        bytes.first().is_some_and(|first| fits(*first))
            && bytes.last().is_some_and(|last| fits(*last))
            && bytes.iter().all(|byte| fits(*byte) || matches!(byte, b'-' | b'_'))
    };
    name.len() <= SYSCTL_LENGTH && name.split(['.', '/']).all(part)
}

fn sysctls(context: &FieldValue<'_>, spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(list) = context.opt("sysctls") else { return };
    let mut seen = BTreeSet::new();
    for sysctl in list.items() {
        let name = sysctl.child("name");
        if name.need(errors) {
            if !is_sysctl_name(name.text()) {
                let wrong =
                    format!("must have at most {SYSCTL_LENGTH} characters and match regex {SYSCTL_FORMAT}");
                name.invalid(errors, &wrong);
            } else if seen.contains(name.text()) {
                name.duplicate(errors);
            }
        }
        match namespace_of(name.text()) {
            Some("net") if spec.child("hostNetwork").is_true() => {
                name.invalid_text(errors, "may not be specified when 'hostNetwork' is true");
            }
            Some("ipc") if spec.child("hostIPC").is_true() => {
                name.invalid_text(errors, "may not be specified when 'hostIPC' is true");
            }
            _ => {}
        }
        seen.insert(name.text());
    }
}

/// The kernel namespace of a sysctl, if it has one. In the notation with slashes, dots are part of a name.
fn namespace_of(sysctl: &str) -> Option<&'static str> {
    let slashed = sysctl.find(['.', '/']).is_some_and(|at| sysctl.as_bytes().get(at) == Some(&b'/'));
    let name = if slashed { sysctl.replace('/', ".") } else { sysctl.to_owned() };
    if name.starts_with("net.") {
        return Some("net");
    }
    let ipc = name == "kernel.sem"
        || ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|prefix| name.starts_with(prefix));
    ipc.then_some("ipc")
}

/// Checks the security context of a container. `host_users`: the pod uses the user namespace of the host.
pub fn container(context: &FieldValue<'_>, host_users: bool, errors: &mut ErrorList) {
    let privileged = context.read("privileged").as_bool() == Some(true);
    if privileged && !errors.features().allows_privileged() {
        context.child("privileged").forbidden(errors, "disallowed by cluster policy");
    }
    ids(context, &["runAsUser", "runAsGroup"], errors);
    if let Some(mount) = context.opt("procMount") {
        mount.one_of(errors, SecurityContext::PROC_MOUNT);
        if host_users && mount.text() == "Unmasked" {
            mount.invalid(errors, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    if let Some(profile) = context.opt("seccompProfile") {
        seccomp(&profile, errors);
    }
    if context.read("allowPrivilegeEscalation").as_bool() == Some(false) {
        if privileged {
            context
                .invalid(errors, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
        }
        let added = context.value.at(&["capabilities", "add"]).map(Value::items).unwrap_or_default();
        for _ in added.iter().filter(|capability| capability.as_str() == Some("CAP_SYS_ADMIN")) {
            let wrong = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            context.invalid(errors, wrong);
        }
    }
    if let Some(options) = context.opt("windowsOptions") {
        windows_options(&options, errors);
    }
    if let Some(profile) = context.opt("appArmorProfile") {
        app_armor(&profile, errors);
    }
}

/// Checks a seccomp profile.
pub fn seccomp(profile: &FieldValue<'_>, errors: &mut ErrorList) {
    let (kind, file) = (profile.child("type"), profile.child("localhostProfile"));
    if kind.is_empty() {
        kind.required(errors, "type is required when seccompProfile is set");
    } else {
        kind.one_of(errors, SeccompProfile::TYPE);
    }
    match (kind.text(), file.is_set()) {
        ("Localhost", false) => file.required(errors, "must be set when seccomp type is Localhost"),
        ("Localhost", true) => local_path(&file, errors),
        (_, true) => {
            let wrong = "can only be set when seccomp type is Localhost";
            errors.push(FieldError::invalid(&file.path, &profile.shown(), wrong));
        }
        _ => {}
    }
}

/// Checks an AppArmor profile.
pub fn app_armor(profile: &FieldValue<'_>, errors: &mut ErrorList) {
    const LONGEST: usize = 4095;
    let (kind, file) = (profile.child("type"), profile.child("localhostProfile"));
    match kind.text() {
        "Localhost" if !file.is_set() => file.required(errors, "must be set when AppArmor type is Localhost"),
        "Localhost" => {
            let text = file.text();
            if text.trim() != text {
                file.invalid(errors, "must not be padded with whitespace");
            } else if text.is_empty() {
                file.required(errors, "must be set when AppArmor type is Localhost");
            }
            if text.len() > LONGEST {
                errors.push(FieldError::too_long(&file.path, LONGEST));
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if file.is_set() {
                file.invalid(errors, "can only be set when AppArmor type is Localhost");
            }
        }
        "" => kind.required(errors, "type is required when appArmorProfile is set"),
        _ => kind.one_of(errors, AppArmorProfile::TYPE),
    }
}

/// Checks Windows options.
fn windows_options(options: &FieldValue<'_>, errors: &mut ErrorList) {
    const LARGEST_CREDENTIAL_KIB: usize = 64;
    if let Some(name) = options.opt("gmsaCredentialSpecName") {
        name.syntax(errors, names::dns_subdomain);
    }
    if let Some(credential) = options.opt("gmsaCredentialSpec") {
        if credential.is_empty() {
            credential.invalid(errors, "gmsaCredentialSpec cannot be an empty string");
        } else if credential.text().len() > LARGEST_CREDENTIAL_KIB * 1024 {
            let wrong = format!("gmsaCredentialSpec size must be under {LARGEST_CREDENTIAL_KIB} KiB");
            credential.invalid(errors, &wrong);
        }
    }
    if let Some(name) = options.opt("runAsUserName") {
        windows_user(&name, errors);
    }
}

fn windows_user(name: &FieldValue<'_>, errors: &mut ErrorList) {
    const LONGEST_DOMAIN: usize = 256;
    const LONGEST_USER: usize = 104;
    let text = name.text();
    let mut parts = text.split('\\');
    let (first, second, more) = (parts.next().unwrap_or_default(), parts.next(), parts.next().is_some());
    if text.is_empty() {
        return name.invalid(errors, "runAsUserName cannot be an empty string");
    }
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return name.invalid(errors, "runAsUserName cannot contain control characters");
    }
    if more {
        return name.invalid(errors, "runAsUserName cannot contain more than one backslash");
    }
    let (domain, user) = second.map_or((None, first), |user| (Some(first), user));
    let mut wrong = |why: &str| name.invalid(errors, why);
    if domain.is_some_and(|domain| domain.len() >= LONGEST_DOMAIN) {
        wrong(&format!("runAsUserName's Domain length must be under {LONGEST_DOMAIN} characters"));
    }
    if domain.is_some_and(|domain| !is_net_bios(domain) && !is_windows_domain(domain)) {
        wrong("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
    }
    if user.is_empty() {
        wrong("runAsUserName's User cannot be empty");
    } else if user.len() > LONGEST_USER {
        wrong(&format!("runAsUserName's User length must not be longer than {LONGEST_USER} characters"));
    }
    if !user.is_empty() && user.chars().all(|c| c == '.' || c == ' ') {
        wrong("runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        wrong("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
}

fn is_net_bios(domain: &str) -> bool {
    let length = domain.chars().count();
    (1..=15).contains(&length)
        && !domain.starts_with('.')
        && !domain.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|'])
}

fn is_windows_domain(domain: &str) -> bool {
    domain.split('.').all(|label| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

#[cfg(test)]
mod tests;
