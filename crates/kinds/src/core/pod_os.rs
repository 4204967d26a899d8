//! Rules that depend on `spec.os.name`, and Windows HostProcess containers.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;

const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
const NOT_ON_WINDOWS: &str = "cannot be set for a windows pod";
/// Fields of the spec and its security context that Windows pods must not have, in the order of validation.
const LINUX_POD: [(&str, bool); 15] = [
    ("appArmorProfile", true),
    ("seLinuxOptions", true),
    ("hostUsers", false),
    ("hostPID", false),
    ("hostIPC", false),
    ("seccompProfile", true),
    ("fsGroup", true),
    ("fsGroupChangePolicy", true),
    ("sysctls", true),
    ("shareProcessNamespace", false),
    ("runAsUser", true),
    ("runAsGroup", true),
    ("supplementalGroups", true),
    ("supplementalGroupsPolicy", true),
    ("seLinuxChangePolicy", true),
];
const LINUX_CONTAINER: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// All containers of a spec, in the order in which they are visited.
fn containers<'a>(spec: &FieldValue<'a>) -> impl Iterator<Item = FieldValue<'a>> {
    let lists: Vec<FieldValue<'a>> = CONTAINER_LISTS.iter().filter_map(|kind| spec.opt(kind)).collect();
    lists.into_iter().flat_map(|list| list.items().collect::<Vec<_>>())
}

/// Checks the fields that must not be set for the pod's OS.
pub fn validate(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(os) = spec.opt("os") else { return };
    match os.str("name") {
        "linux" => validate_linux(spec, errors),
        "windows" => validate_windows(spec, errors),
        "" => os.child("name").required(errors, "cannot be empty"),
        _ => os.child("name").named(os.path.clone()).one_of(errors, &["linux", "windows"]),
    }
}

fn validate_linux(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut check = |object: &FieldValue<'_>| {
        if let Some(options) = object.opt("securityContext").and_then(|context| context.opt("windowsOptions"))
        {
            options.forbidden(errors, "windows options cannot be set for a linux pod");
        }
    };
    check(spec);
    for container in containers(spec) {
        check(&container);
    }
}

fn validate_windows(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let context = spec.child("securityContext");
    for (field, in_context) in LINUX_POD {
        let node = if in_context { context.child(field) } else { spec.child(field) };
        let is_set = match field {
            "hostPID" | "hostIPC" => node.is_true(),
            "sysctls" => !node.is_empty(),
            _ => node.is_set(),
        };
        if is_set {
            node.forbidden(errors, NOT_ON_WINDOWS);
        }
    }
    for container in containers(spec) {
        let Some(context) = container.opt("securityContext") else { continue };
        for field in LINUX_CONTAINER.iter().filter_map(|field| context.opt(field)) {
            field.forbidden(errors, NOT_ON_WINDOWS);
        }
    }
}

/// Checks HostProcess pods: all containers or none, with hostNetwork.
pub fn validate_host_process(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let host_process_of = |object: &FieldValue<'_>| {
        object
            .value
            .get_path(&["securityContext", "windowsOptions", "hostProcess"])
            .and_then(|value| value.as_bool())
    };
    let pod_value = host_process_of(spec);
    let (mut total, mut host_process_count) = (0usize, 0usize);
    for kind in CONTAINER_LISTS {
        for (index, value) in spec.read(kind).items().iter().enumerate() {
            total += 1;
            let container_value = value
                .get_path(&["securityContext", "windowsOptions", "hostProcess"])
                .and_then(|value| value.as_bool());
            if let (Some(pod_value), Some(container_value)) = (pod_value, container_value)
                && pod_value != container_value
            {
                let options =
                    spec.path.child(kind).index(index).child("securityContext").child("windowsOptions");
                let detail =
                    format!("pod hostProcess value must be identical if both are specified, was {pod_value}");
                errors.push(FieldError::invalid(
                    &options.child("hostProcess"),
                    &container_value.to_string(),
                    &detail,
                ));
            }
            host_process_count += usize::from(container_value.or(pod_value).unwrap_or_default());
        }
    }
    if host_process_count == 0 {
        return;
    }
    if host_process_count != total {
        let detail =
            "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(FieldError::invalid(&spec.path, "\"\"", detail));
    }
    if !spec.child("hostNetwork").is_true() {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(FieldError::invalid(&spec.path.child("hostNetwork"), "false", detail));
    }
    if !errors.features().allows_privileged() {
        spec.forbidden(errors, "hostProcess containers are disallowed by cluster policy");
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, error_messages, object, with};

    use super::*;

    #[test]
    fn os_validation_refuses_fields_of_the_other_os() {
        let linux = object(
            r#"{"spec":{"os":{"name":"linux"},"containers":[{"name":"c"}],"initContainers":[{"name":"i"}]}}"#,
        );
        let check =
            |object: &_, errors: &mut ErrorList| validate(&FieldValue::top_level(object, "spec"), errors);
        each_refused(
            &linux,
            check,
            &[
                ("spec.os.name", "null", "spec.os.name: Required value: cannot be empty"),
                ("spec.os.name", r#""bsd""#, "spec.os: Unsupported value: \"bsd\""),
                (
                    "spec.securityContext.windowsOptions",
                    r#"{"x":1}"#,
                    "spec.securityContext.windowsOptions: Forbidden: windows options",
                ),
                (
                    "spec.initContainers.0.securityContext.windowsOptions",
                    r#"{"x":1}"#,
                    "spec.initContainers[0].securityContext.windowsOptions: Forbidden",
                ),
            ],
        );
        each_refused(
            &with(&linux, "spec.os.name", r#""windows""#),
            check,
            &[
                ("spec.hostPID", "true", "spec.hostPID: Forbidden: cannot be set for a windows pod"),
                ("spec.securityContext.runAsUser", "1", "spec.securityContext.runAsUser: Forbidden"),
                (
                    "spec.containers.0.securityContext.procMount",
                    r#""Default""#,
                    "spec.containers[0].securityContext.procMount: Forbidden",
                ),
            ],
        );
    }

    #[test]
    fn host_process_needs_all_containers_and_host_network() {
        let options = r#"{"windowsOptions":{"hostProcess":true}}"#;
        let mixed = object(&format!(
            r#"{{"spec":{{"containers":[{{"name":"c","securityContext":{options}}},{{"name":"d"}}]}}}}"#
        ));
        let mut errors = ErrorList::new();
        validate_host_process(&FieldValue::top_level(&mixed, "spec"), &mut errors);
        let expected = [
            "spec: Invalid value: \"\": If pod contains any hostProcess containers then all containers must be HostProcess containers",
            "spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess containers",
            "spec: Forbidden: hostProcess containers are disallowed by cluster policy",
        ];
        assert_eq!(error_messages(&errors), expected);
        let differs = with(&mixed, "spec.securityContext.windowsOptions.hostProcess", "false");
        errors.clear();
        validate_host_process(&FieldValue::top_level(&differs, "spec"), &mut errors);
        assert!(error_messages(&errors)[0].starts_with(
            "spec.containers[0].securityContext.windowsOptions.hostProcess: Invalid value: true: pod hostProcess value must be identical"
        ));
    }
}
