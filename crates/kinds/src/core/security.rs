//! Security contexts of pods and containers.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::volume_source::validate_relative_path;
use crate::allowed::core_v1::{AppArmorProfile, PodSecurityContext, SeccompProfile, SecurityContext};

const MAX_ID: i64 = i32::MAX as i64;
const SYSCTL_LENGTH: usize = 253;
const SYSCTL_FORMAT: &str = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

/// Checks user and group IDs that are set.
fn validate_ids(context: &FieldValue<'_>, fields: &[&str], errors: &mut ErrorList) {
    for id in fields.iter().filter_map(|field| context.opt(field)) {
        id.in_range(errors, 0, MAX_ID);
    }
}

/// Checks the security context of a pod.
pub fn validate_pod(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(context) = spec.opt("securityContext") else {
        validate_share_process(spec, errors);
        return;
    };
    validate_ids(&context, &["fsGroup", "runAsUser", "runAsGroup"], errors);
    if let Some(groups) = context.opt("supplementalGroups") {
        for group in groups.items() {
            group.in_range(errors, 0, MAX_ID);
        }
    }
    validate_share_process(spec, errors);
    validate_sysctls(&context, spec, errors);
    for (field, supported) in [
        ("fsGroupChangePolicy", PodSecurityContext::FS_GROUP_CHANGE_POLICY),
        ("supplementalGroupsPolicy", PodSecurityContext::SUPPLEMENTAL_GROUPS_POLICY),
    ] {
        if field == "supplementalGroupsPolicy" {
            validate_profiles(&context, errors);
        }
        if let Some(policy) = context.opt(field) {
            policy.one_of(errors, supported);
        }
    }
    if let Some(policy) = context.opt("seLinuxChangePolicy") {
        let may_mount = errors.features().has(Feature::SELinuxMount);
        policy.one_of(errors, if may_mount { &["MountOption", "Recursive"] } else { &["Recursive"] });
    }
}

fn validate_profiles(context: &FieldValue<'_>, errors: &mut ErrorList) {
    if let Some(profile) = context.opt("seccompProfile") {
        validate_seccomp(&profile, errors);
    }
    if let Some(options) = context.opt("windowsOptions") {
        validate_windows_options(&options, errors);
    }
    if let Some(profile) = context.opt("appArmorProfile") {
        validate_apparmor(&profile, errors);
    }
}

fn validate_share_process(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    if spec.read("shareProcessNamespace").as_bool() == Some(true)
        && spec.read("hostPID").as_bool() == Some(true)
    {
        let path = spec.path.child("securityContext").child("shareProcessNamespace");
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(&path, "true", detail));
    }
}

fn is_sysctl_name(name: &str) -> bool {
    let is_valid_part = |part: &str| {
        let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = part.as_bytes();
        bytes.first().is_some_and(|first| is_alphanumeric(*first))
            && bytes.last().is_some_and(|last| is_alphanumeric(*last))
            && bytes.iter().all(|byte| is_alphanumeric(*byte) || matches!(byte, b'-' | b'_'))
    };
    name.len() <= SYSCTL_LENGTH && name.split(['.', '/']).all(is_valid_part)
}

fn validate_sysctls(context: &FieldValue<'_>, spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(list) = context.opt("sysctls") else { return };
    let mut seen = BTreeSet::new();
    for sysctl in list.items() {
        let name = sysctl.child("name");
        if name.need(errors) {
            if !is_sysctl_name(name.text()) {
                let detail =
                    format!("must have at most {SYSCTL_LENGTH} characters and match regex {SYSCTL_FORMAT}");
                name.invalid(errors, &detail);
            } else if seen.contains(name.text()) {
                name.duplicate(errors);
            }
        }
        match sysctl_namespace(name.text()) {
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
fn sysctl_namespace(sysctl: &str) -> Option<&'static str> {
    let has_slashes =
        sysctl.find(['.', '/']).is_some_and(|index| sysctl.as_bytes().get(index) == Some(&b'/'));
    let name = if has_slashes { sysctl.replace('/', ".") } else { sysctl.to_owned() };
    if name.starts_with("net.") {
        return Some("net");
    }
    let ipc = name == "kernel.sem"
        || ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|prefix| name.starts_with(prefix));
    ipc.then_some("ipc")
}

/// Checks the security context of a container. `host_users`: the pod uses the user namespace of the host.
pub fn validate_container(context: &FieldValue<'_>, host_users: bool, errors: &mut ErrorList) {
    let privileged = context.read("privileged").as_bool() == Some(true);
    if privileged && !errors.features().allows_privileged() {
        context.child("privileged").forbidden(errors, "disallowed by cluster policy");
    }
    validate_ids(context, &["runAsUser", "runAsGroup"], errors);
    if let Some(mount) = context.opt("procMount") {
        mount.one_of(errors, SecurityContext::PROC_MOUNT);
        if host_users && mount.text() == "Unmasked" {
            mount.invalid(errors, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    if let Some(profile) = context.opt("seccompProfile") {
        validate_seccomp(&profile, errors);
    }
    if context.read("allowPrivilegeEscalation").as_bool() == Some(false) {
        if privileged {
            context
                .invalid(errors, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
        }
        let added = context.value.get_path(&["capabilities", "add"]).map(Value::items).unwrap_or_default();
        for _ in added.iter().filter(|capability| capability.as_str() == Some("CAP_SYS_ADMIN")) {
            let detail =
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            context.invalid(errors, detail);
        }
    }
    if let Some(options) = context.opt("windowsOptions") {
        validate_windows_options(&options, errors);
    }
    if let Some(profile) = context.opt("appArmorProfile") {
        validate_apparmor(&profile, errors);
    }
}

/// Checks a seccomp profile.
pub fn validate_seccomp(profile: &FieldValue<'_>, errors: &mut ErrorList) {
    let (kind, file) = (profile.child("type"), profile.child("localhostProfile"));
    if kind.is_empty() {
        kind.required(errors, "type is required when seccompProfile is set");
    } else {
        kind.one_of(errors, SeccompProfile::TYPE);
    }
    match (kind.text(), file.is_set()) {
        ("Localhost", false) => file.required(errors, "must be set when seccomp type is Localhost"),
        ("Localhost", true) => validate_relative_path(&file, errors),
        (_, true) => {
            let detail = "can only be set when seccomp type is Localhost";
            errors.push(FieldError::invalid(&file.path, &profile.render(), detail));
        }
        _ => {}
    }
}

/// Checks an AppArmor profile.
pub fn validate_apparmor(profile: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_LENGTH: usize = 4095;
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
            if text.len() > MAX_LENGTH {
                errors.push(FieldError::too_long(&file.path, MAX_LENGTH));
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
fn validate_windows_options(options: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_CREDENTIAL_KIB: usize = 64;
    if let Some(name) = options.opt("gmsaCredentialSpecName") {
        name.syntax(errors, names::dns_subdomain);
    }
    if let Some(credential) = options.opt("gmsaCredentialSpec") {
        if credential.is_empty() {
            credential.invalid(errors, "gmsaCredentialSpec cannot be an empty string");
        } else if credential.text().len() > MAX_CREDENTIAL_KIB * 1024 {
            let detail = format!("gmsaCredentialSpec size must be under {MAX_CREDENTIAL_KIB} KiB");
            credential.invalid(errors, &detail);
        }
    }
    if let Some(name) = options.opt("runAsUserName") {
        validate_windows_user(&name, errors);
    }
}

fn validate_windows_user(name: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_DOMAIN_LENGTH: usize = 256;
    const MAX_USER_LENGTH: usize = 104;
    let text = name.text();
    let mut parts = text.split('\\');
    let (first, second, has_more) = (parts.next().unwrap_or_default(), parts.next(), parts.next().is_some());
    if text.is_empty() {
        return name.invalid(errors, "runAsUserName cannot be an empty string");
    }
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return name.invalid(errors, "runAsUserName cannot contain control characters");
    }
    if has_more {
        return name.invalid(errors, "runAsUserName cannot contain more than one backslash");
    }
    let (domain, user) = second.map_or((None, first), |user| (Some(first), user));
    let mut invalid = |detail: &str| name.invalid(errors, detail);
    if domain.is_some_and(|domain| domain.len() >= MAX_DOMAIN_LENGTH) {
        invalid(&format!("runAsUserName's Domain length must be under {MAX_DOMAIN_LENGTH} characters"));
    }
    if domain.is_some_and(|domain| !is_net_bios(domain) && !is_windows_domain(domain)) {
        invalid("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
    }
    if user.is_empty() {
        invalid("runAsUserName's User cannot be empty");
    } else if user.len() > MAX_USER_LENGTH {
        invalid(&format!("runAsUserName's User length must not be longer than {MAX_USER_LENGTH} characters"));
    }
    if !user.is_empty() && user.chars().all(|c| c == '.' || c == ' ') {
        invalid("runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        invalid("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
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
