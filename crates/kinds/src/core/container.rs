//! The containers of pods and templates.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;

use super::volume::Volumes;
use super::{env, mount, probe, resources, security, signals};
use crate::allowed::core_v1;

const NOT_FOR_INIT: &str = "may not be set for init containers without restartPolicy=Always";
const NOT_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";
/// The fields that ephemeral containers must not have, in the order of validation.
const NOT_FOR_EPHEMERAL: [&str; 8] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

/// The fields of the pod that the validation of a container depends on.
pub struct PodContext<'a> {
    /// The volumes that may be mounted.
    pub volumes: &'a Volumes<'a>,
    /// terminationGracePeriodSeconds of the pod.
    pub grace: Option<i64>,
    /// restartPolicy of the pod.
    pub restart_policy: &'a str,
    /// Whether the pod uses the user namespace of the host.
    pub host_users: bool,
    /// The names of the resource claims of the pod.
    pub claims: &'a BTreeSet<&'a str>,
    /// `spec.os.name`.
    pub os: Option<&'a str>,
}

/// Checks the main containers.
pub fn validate_main(list: &FieldValue<'_>, pod: &PodContext<'_>, errors: &mut ErrorList) {
    if list.is_empty() {
        list.required(errors, "");
        return;
    }
    let mut names = BTreeSet::new();
    for container in list.items() {
        if errors.is_full() {
            break;
        }
        validate_common(&container, pod, errors);
        if !names.insert(container.str("name")) {
            container.child("name").duplicate(errors);
        }
        validate_probes(&container, pod, errors);
        if let Some(policy) = container.opt("restartPolicy") {
            policy.forbidden(errors, "may not be set for non-init containers");
        }
    }
    let mut used = BTreeSet::new();
    for container in list.items().filter(has_host_ports) {
        validate_host_ports(&container, &mut used, errors);
    }
}

/// Checks init containers, whose names must differ from those of the containers.
pub fn validate_init(
    list: &FieldValue<'_>,
    main: &FieldValue<'_>,
    pod: &PodContext<'_>,
    errors: &mut ErrorList,
) {
    let mut names: BTreeSet<&str> =
        main.value.items().iter().map(|container| container.str("name")).collect();
    for container in list.items() {
        if errors.is_full() {
            break;
        }
        validate_common(&container, pod, errors);
        let policy = container.child("restartPolicy");
        policy.one_of_if_set(errors, &["Always"]);
        let name = container.child("name");
        if !names.insert(name.text()) && !name.is_empty() {
            name.duplicate(errors);
        }
        if has_host_ports(&container) {
            validate_host_ports(&container, &mut BTreeSet::new(), errors);
        }
        if policy.text() == "Always" {
            validate_probes(&container, pod, errors);
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if let Some(field) = container.opt(field) {
                field.forbidden(errors, NOT_FOR_INIT);
            }
        }
    }
}

/// Checks ephemeral containers.
pub fn validate_ephemeral(
    list: &FieldValue<'_>,
    main: &FieldValue<'_>,
    init: &FieldValue<'_>,
    pod: &PodContext<'_>,
    errors: &mut ErrorList,
) {
    let other_names: BTreeSet<&str> =
        main.value.items().iter().chain(init.value.items()).map(|container| container.str("name")).collect();
    let mut names = other_names.clone();
    for container in list.items() {
        if errors.is_full() {
            break;
        }
        validate_common(&container, pod, errors);
        validate_image_whitespace(&container, errors);
        if !names.insert(container.child("name").text()) {
            container.child("name").duplicate(errors);
        }
        let target = container.child("targetContainerName");
        if !target.is_empty() && !other_names.contains(target.text()) {
            errors.push(FieldError::not_found(&target.path, &target.render()));
        }
        for name in NOT_FOR_EPHEMERAL {
            let Some(field) = container.opt(name) else { continue };
            // Empty fields count as present, except for `resources`, which every container has.
            if name != "resources" || !field.is_empty() {
                field.forbidden(errors, NOT_EPHEMERAL);
            }
        }
        for mount in container.child("volumeMounts").items() {
            for path in ["subPath", "subPathExpr"].iter().filter_map(|field| mount.opt(field)) {
                if !path.is_empty() {
                    path.forbidden(errors, NOT_EPHEMERAL);
                }
            }
        }
    }
}

/// Checks that an image has no leading or trailing space. Only pods are checked, not templates.
pub fn validate_image_whitespace(container: &FieldValue<'_>, errors: &mut ErrorList) {
    let image = container.str("image");
    if image.trim() != image {
        container.child("image").invalid(errors, "must not have leading or trailing whitespace");
    }
}

fn validate_probes(container: &FieldValue<'_>, pod: &PodContext<'_>, errors: &mut ErrorList) {
    if let Some(hooks) = container.opt("lifecycle") {
        probe::validate_lifecycle(&hooks, pod.grace, errors);
        if let Some(signal) = hooks.opt("stopSignal") {
            signals::validate(&signal, pod.os, errors);
        }
    }
    if let Some(probe) = container.opt("livenessProbe") {
        probe::validate_liveness(&probe, pod.grace, errors);
    }
    if let Some(probe) = container.opt("readinessProbe") {
        probe::validate_readiness(&probe, pod.grace, errors);
    }
    if let Some(probe) = container.opt("startupProbe") {
        probe::validate_liveness(&probe, pod.grace, errors);
    }
}

fn validate_common(container: &FieldValue<'_>, pod: &PodContext<'_>, errors: &mut ErrorList) {
    container.need_text_like("name", errors, names::dns_label);
    container.need_text("image", errors);
    container.text_among("terminationMessagePolicy", errors, core_v1::Container::TERMINATION_MESSAGE_POLICY);
    if let Some(list) = container.opt("ports") {
        validate_ports(&list, errors);
    }
    if let Some(list) = container.opt("env") {
        env::validate_variables(&list, errors);
    }
    if let Some(list) = container.opt("envFrom") {
        env::validate_env_from(&list, errors);
    }
    mount::validate_mounts(container, pod.volumes, errors);
    mount::validate_devices(container, pod.volumes, errors);
    container.text_among("imagePullPolicy", errors, core_v1::Container::IMAGE_PULL_POLICY);
    if let Some(requirements) = container.opt("resources") {
        resources::validate_container(&requirements, pod.claims, errors);
    }
    if let Some(list) = container.opt("resizePolicy") {
        validate_resize_policy(&list, pod.restart_policy, errors);
    }
    if let Some(context) = container.opt("securityContext") {
        security::validate_container(&context, pod.host_users, errors);
    }
}

fn validate_ports(list: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut used = BTreeSet::new();
    for port in list.items() {
        if !port.str("name").is_empty() {
            let name = port.child("name");
            let details = names::port_name(name.text());
            if details.is_empty() && !used.insert(name.text()) {
                name.duplicate(errors);
            }
            pilothouse_apimachinery::meta::add_invalid(errors, &name.path, name.text(), details);
        }
        if port.child("containerPort").need(errors) {
            port.child("containerPort").port(errors);
        }
        if let Some(host) = port.opt("hostPort").filter(|host| host.number() != 0) {
            host.port(errors);
        }
        port.text_among("protocol", errors, core_v1::ContainerPort::PROTOCOL);
    }
}

fn has_host_ports(container: &FieldValue<'_>) -> bool {
    container.read("ports").items().iter().any(|port| port.get("hostPort").is_some())
}

fn validate_host_ports(container: &FieldValue<'_>, used: &mut BTreeSet<String>, errors: &mut ErrorList) {
    for port in container.child("ports").items() {
        let number = port.child("hostPort").number();
        if number == 0 {
            continue;
        }
        let host_port = format!("{}/{}/{number}", port.str("protocol"), port.str("hostIP"));
        if used.contains(&host_port) {
            errors.push(FieldError::duplicate(&port.child("hostPort").path, &quoted(&host_port)));
        }
        used.insert(host_port);
    }
}

fn validate_resize_policy(list: &FieldValue<'_>, restart_policy: &str, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for policy in list.items() {
        let (name, restart) = (policy.str("resourceName"), policy.str("restartPolicy"));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&policy.path, name));
        }
        match name {
            "cpu" | "memory" => {}
            "" => list.required(errors, ""),
            _ => errors.push(FieldError::not_supported(&list.path, name, &["cpu", "memory"])),
        }
        match restart {
            "NotRequired" | "RestartContainer" => {}
            "" => list.required(errors, ""),
            _ => {
                let supported = ["NotRequired", "RestartContainer"];
                errors.push(FieldError::not_supported(&list.path, &quoted(restart), &supported));
            }
        }
        if restart_policy == "Never" && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when `restartPolicy` is 'Never'";
            errors.push(FieldError::invalid(&list.path, &quoted(restart), detail));
        }
    }
}
