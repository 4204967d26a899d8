//! The containers of pods and templates.

use std::collections::BTreeSet;

use super::volume::{Volumes, local_path};
use super::{probe, resources};
use crate::api::field::{FieldError, quoted};
use crate::api::kinds::Errors;
use crate::api::kinds::check::Node;
use crate::api::names;
use crate::api::value::Value;

/// The fields of a pod that a variable may show.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// The fields of a container that a variable or a file may show.
const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
];
/// The fields of a pod that can be named at all.
const POD_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const NOT_FOR_INIT: &str = "may not be set for init containers without restartPolicy=Always";

/// What the containers of one pod share.
pub struct Surroundings<'a> {
    /// The volumes that may be mounted.
    pub volumes: &'a Volumes<'a>,
    /// How long the pod may take to end.
    pub grace: Option<i64>,
    /// When containers start again.
    pub restart_policy: &'a str,
}

/// Checks the main containers.
pub fn main(list: &Node<'_>, around: &Surroundings<'_>, errors: &mut Errors) {
    if list.is_empty() {
        list.required(errors, "");
        return;
    }
    let mut names = BTreeSet::new();
    for container in list.items() {
        common(&container, around, errors);
        if !names.insert(container.child("name").text()) {
            container.child("name").duplicate(errors);
        }
        probe::lifecycle(&container.child("lifecycle"), around.grace, errors);
        probes(&container, around, errors);
        if container.child("restartPolicy").is_set() {
            container.child("restartPolicy").forbidden(errors, "may not be set for non-init containers");
        }
    }
    let mut used = BTreeSet::new();
    for container in list.items() {
        host_ports(&container, &mut used, errors);
    }
}

/// Checks the containers that run first, whose names the main ones may not have.
pub fn init(list: &Node<'_>, main: &Node<'_>, around: &Surroundings<'_>, errors: &mut Errors) {
    let mut names: BTreeSet<&str> = main.items().map(|container| container.child("name").text()).collect();
    for container in list.items() {
        common(&container, around, errors);
        let policy = container.child("restartPolicy");
        policy.one_of_if_set(errors, &["Always"]);
        let name = container.child("name");
        if !names.insert(name.text()) && !name.is_empty() {
            name.duplicate(errors);
        }
        host_ports(&container, &mut BTreeSet::new(), errors);
        if policy.text() == "Always" {
            probe::lifecycle(&container.child("lifecycle"), around.grace, errors);
            probes(&container, around, errors);
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if container.child(field).is_set() {
                container.child(field).forbidden(errors, NOT_FOR_INIT);
            }
        }
    }
}

/// Checks what was added for debugging.
pub fn ephemeral(
    list: &Node<'_>,
    main: &Node<'_>,
    init: &Node<'_>,
    around: &Surroundings<'_>,
    errors: &mut Errors,
) {
    let others: BTreeSet<&str> =
        main.items().chain(init.items()).map(|one| one.child("name").text()).collect();
    let mut names = others.clone();
    for container in list.items() {
        common(&container, around, errors);
        trimmed_image(&container, errors);
        if !names.insert(container.child("name").text()) {
            container.child("name").duplicate(errors);
        }
        let target = container.child("targetContainerName");
        if !target.is_empty() && !others.contains(target.text()) {
            errors.push(FieldError::not_found(&target.path, &target.shown()));
        }
        for field in ["ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resizePolicy"]
        {
            if !container.child(field).is_empty() {
                container.child(field).forbidden(errors, "cannot be set for an Ephemeral Container");
            }
        }
    }
}

/// An image with a space before or after its name is a slip that only pods refuse.
pub fn trimmed_image(container: &Node<'_>, errors: &mut Errors) {
    let image = container.child("image");
    if image.text().trim() != image.text() {
        image.invalid(errors, "must not have leading or trailing whitespace");
    }
}

fn probes(container: &Node<'_>, around: &Surroundings<'_>, errors: &mut Errors) {
    probe::liveness(&container.child("livenessProbe"), around.grace, errors);
    probe::readiness(&container.child("readinessProbe"), around.grace, errors);
    probe::liveness(&container.child("startupProbe"), around.grace, errors);
}

fn common(container: &Node<'_>, around: &Surroundings<'_>, errors: &mut Errors) {
    container.child("name").need_syntax(errors, names::dns_label);
    container.child("image").need(errors);
    container.child("terminationMessagePolicy").one_of_if_set(errors, &["FallbackToLogsOnError", "File"]);
    ports(&container.child("ports"), errors);
    variables(&container.child("env"), errors);
    variable_sources(&container.child("envFrom"), errors);
    mounts(container, around.volumes, errors);
    devices(container, around.volumes, errors);
    container.child("imagePullPolicy").one_of_if_set(errors, &["Always", "IfNotPresent", "Never"]);
    resources::requirements(&container.child("resources"), errors);
    resize_policy(&container.child("resizePolicy"), around.restart_policy, errors);
    security(&container.child("securityContext"), errors);
}

fn ports(list: &Node<'_>, errors: &mut Errors) {
    let mut used = BTreeSet::new();
    for port in list.items() {
        let name = port.child("name");
        if !name.is_empty() {
            let wrong = names::port_name(name.text());
            if wrong.is_empty() && !used.insert(name.text()) {
                name.duplicate(errors);
            }
            crate::api::meta::texts(errors, &name.path, name.text(), wrong);
        }
        if port.child("containerPort").need(errors) {
            port.child("containerPort").port(errors);
        }
        if port.child("hostPort").number() != 0 {
            port.child("hostPort").port(errors);
        }
        port.child("protocol").one_of_if_set(errors, &["SCTP", "TCP", "UDP"]);
    }
}

fn host_ports(container: &Node<'_>, used: &mut BTreeSet<String>, errors: &mut Errors) {
    for port in container.child("ports").items() {
        let number = port.child("hostPort").number();
        if number == 0 {
            continue;
        }
        let place = format!("{}/{}/{number}", port.child("protocol").text(), port.child("hostIP").text());
        if used.contains(&place) {
            errors.push(FieldError::duplicate(&port.child("hostPort").path, &quoted(&place)));
        }
        used.insert(place);
    }
}

fn variables(list: &Node<'_>, errors: &mut Errors) {
    for variable in list.items() {
        variable.child("name").need_syntax(errors, names::env_name);
        let from = variable.child("valueFrom");
        if !from.is_set() {
            continue;
        }
        let mut sources = 0;
        for kind in ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef"] {
            let source = from.child(kind);
            if !source.is_set() {
                continue;
            }
            sources += 1;
            match kind {
                "fieldRef" => field_ref(&source, &ENV_FIELDS, errors),
                "resourceFieldRef" => resource_field_ref(&source, false, errors),
                _ => key_ref(&source, errors),
            }
        }
        let mut wrong = |why| errors.push(FieldError::invalid(&from.path, "\"\"", why));
        if sources == 0 {
            wrong("must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`");
        } else if !variable.child("value").is_empty() {
            wrong("may not be specified when `value` is not empty");
        } else if sources > 1 {
            wrong("may not have more than one field specified at a time");
        }
    }
}

/// Checks which field of the pod is shown.
pub fn field_ref(source: &Node<'_>, allowed: &[&str], errors: &mut Errors) {
    let field = source.child("fieldPath");
    if !field.need(errors) {
        return;
    }
    let text = if field.text() == "spec.host" { "spec.nodeName" } else { field.text() };
    let subscript = text.strip_suffix("']").and_then(|rest| rest.split_once("['"));
    match subscript {
        Some(("metadata.annotations", key)) => {
            crate::api::meta::texts(
                errors,
                &source.path,
                &key.to_lowercase(),
                names::qualified_name(&key.to_lowercase()),
            );
        }
        Some(("metadata.labels", key)) => {
            crate::api::meta::texts(errors, &source.path, key, names::qualified_name(key));
        }
        Some(_) => {
            let wrong = format!("error converting fieldPath: field label does not support subscript: {text}");
            field.invalid(errors, &wrong);
        }
        None if !POD_FIELDS.contains(&text) => {
            field.invalid(errors, &format!("error converting fieldPath: field label not supported: {text}"));
        }
        None if !allowed.contains(&text) => {
            errors.push(FieldError::not_supported(&field.path, &quoted(text), allowed));
        }
        None => {}
    }
}

/// Checks which resource of a container is shown.
pub fn resource_field_ref(source: &Node<'_>, in_volume: bool, errors: &mut Errors) {
    if in_volume && source.child("containerName").is_empty() {
        source.child("containerName").required(errors, "");
        return;
    }
    let resource = source.child("resource");
    let huge = ["requests.hugepages-", "limits.hugepages-"];
    if resource.need(errors) && !huge.iter().any(|prefix| resource.text().starts_with(prefix)) {
        resource.one_of(errors, &RESOURCE_FIELDS);
    }
}

fn key_ref(source: &Node<'_>, errors: &mut Errors) {
    source.child("name").syntax(errors, names::dns_subdomain);
    source.child("key").need_syntax(errors, names::config_key);
}

fn variable_sources(list: &Node<'_>, errors: &mut Errors) {
    for source in list.items() {
        source.child("prefix").syntax_if_set(errors, names::env_name);
        let mut sources = 0;
        for kind in ["configMapRef", "secretRef"] {
            if source.child(kind).is_set() {
                sources += 1;
                source
                    .child(kind)
                    .child("name")
                    .need_syntax(errors, |name| names::subdomain_name(name, true));
            }
        }
        let mut wrong = |why| errors.push(FieldError::invalid(&list.path, "\"\"", why));
        if sources == 0 {
            wrong("must specify one of: `configMapRef` or `secretRef`");
        } else if sources > 1 {
            wrong("may not have more than one field specified at a time");
        }
    }
}

fn mounts(container: &Node<'_>, volumes: &Volumes<'_>, errors: &mut Errors) {
    let list = container.child("volumeMounts");
    let mut paths = BTreeSet::new();
    let privileged = container.child("securityContext").child("privileged").is_true();
    for mount in list.items() {
        let (name, path) = (mount.child("name"), mount.child("mountPath"));
        name.need(errors);
        if !volumes.contains(name.text()) {
            errors.push(FieldError::not_found(&name.path, &quoted(name.text())));
        }
        path.need(errors);
        if !paths.insert(path.text()) {
            path.invalid_text(errors, "must be unique");
        }
        let (sub, expression) = (mount.child("subPath"), mount.child("subPathExpr"));
        if !sub.is_empty() {
            local_path(&Node { value: sub.value, path: list.path.child("subPath") }, errors);
        }
        if !expression.is_empty() {
            if !sub.is_empty() {
                expression.invalid(errors, "subPathExpr and subPath are mutually exclusive");
            }
            local_path(&Node { value: expression.value, path: list.path.child("subPathExpr") }, errors);
        }
        let propagation =
            Node { value: mount.child("mountPropagation").value, path: list.path.child("mountPropagation") };
        propagation.one_of_if_set(errors, &["Bidirectional", "HostToContainer", "None"]);
        if propagation.text() == "Bidirectional" && !privileged {
            let wrong = "Bidirectional mount propagation is available only to privileged containers";
            propagation.forbidden(errors, wrong);
        }
    }
}

fn devices(container: &Node<'_>, volumes: &Volumes<'_>, errors: &mut Errors) {
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for device in container.child("volumeDevices").items() {
        let (name, path) = (device.child("name"), device.child("devicePath"));
        name.need(errors);
        if !names.insert(name.text()) {
            name.invalid_text(errors, "must be unique");
        }
        match volumes.source(name.text()) {
            Some("persistentVolumeClaim" | "ephemeral") => {}
            Some(_) => {
                let wrong =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                name.invalid_text(errors, wrong);
            }
            None => errors.push(FieldError::not_found(&name.path, &quoted(name.text()))),
        }
        path.need(errors);
        if !paths.insert(path.text()) {
            path.invalid_text(errors, "must be unique");
        }
        if path.text().split('/').any(|part| part == "..") {
            path.invalid_text(errors, "can not contain backsteps ('..')");
        }
    }
}

fn resize_policy(list: &Node<'_>, restart_policy: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for policy in list.items() {
        let name = policy.child("resourceName");
        if !seen.insert(name.text()) {
            errors.push(FieldError::duplicate(&policy.path, &quoted(name.text())));
        }
        let restart = policy.child("restartPolicy");
        for (node, words) in [(&name, ["cpu", "memory"]), (&restart, ["NotRequired", "RestartContainer"])] {
            Node { value: node.value, path: list.path.clone() }.need_one_of(errors, &words);
        }
        if restart_policy == "Never" && restart.text() != "NotRequired" {
            let wrong = "must be 'NotRequired' when `restartPolicy` is 'Never'";
            errors.push(FieldError::invalid(&list.path, &quoted(restart.text()), wrong));
        }
    }
}

fn security(context: &Node<'_>, errors: &mut Errors) {
    for field in ["runAsUser", "runAsGroup"] {
        if context.child(field).is_set() {
            context.child(field).in_range(errors, 0, i64::from(i32::MAX));
        }
    }
    context.child("procMount").one_of_if_set(errors, &["Default", "Unmasked"]);
    seccomp(&context.child("seccompProfile"), errors);
    if context.child("allowPrivilegeEscalation").value.as_bool() == Some(false) {
        if context.child("privileged").is_true() {
            context
                .invalid(errors, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
        }
        let added = context.child("capabilities").child("add");
        if added.value.items().contains(&Value::from("CAP_SYS_ADMIN")) {
            let wrong = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            context.invalid(errors, wrong);
        }
    }
}

/// Checks which system calls are filtered.
pub fn seccomp(profile: &Node<'_>, errors: &mut Errors) {
    if !profile.is_set() {
        return;
    }
    let (kind, file) = (profile.child("type"), profile.child("localhostProfile"));
    match kind.text() {
        "Localhost" if !file.is_set() => {
            file.required(errors, "must be set when seccomp type is Localhost ");
        }
        "Localhost" => local_path(&file, errors),
        "RuntimeDefault" | "Unconfined" if file.is_set() => {
            file.invalid(errors, "can only be set when seccomp type is Localhost");
        }
        "" => kind.required(errors, "type is required when seccompProfile is set"),
        _ => kind.one_of(errors, &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}
