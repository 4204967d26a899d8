//! Rules that depend on `spec.os.name`, and Windows HostProcess containers.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;

const KINDS_OF_CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
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
    let lists: Vec<FieldValue<'a>> = KINDS_OF_CONTAINERS.iter().filter_map(|kind| spec.opt(kind)).collect();
    lists.into_iter().flat_map(|list| list.items().collect::<Vec<_>>())
}

/// Checks the fields that must not be set for the pod's OS.
pub fn validate(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(os) = spec.opt("os") else { return };
    match os.str("name") {
        "linux" => linux(spec, errors),
        "windows" => windows(spec, errors),
        "" => os.child("name").required(errors, "cannot be empty"),
        _ => os.child("name").named(os.path.clone()).one_of(errors, &["linux", "windows"]),
    }
}

fn linux(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut check = |holder: &FieldValue<'_>| {
        if let Some(options) = holder.opt("securityContext").and_then(|context| context.opt("windowsOptions"))
        {
            options.forbidden(errors, "windows options cannot be set for a linux pod");
        }
    };
    check(spec);
    for container in containers(spec) {
        check(&container);
    }
}

fn windows(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let context = spec.child("securityContext");
    for (field, in_context) in LINUX_POD {
        let node = if in_context { context.child(field) } else { spec.child(field) };
        let set = match field {
            "hostPID" | "hostIPC" => node.is_true(),
            "sysctls" => !node.is_empty(),
            _ => node.is_set(),
        };
        if set {
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
pub fn host_process(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let own = |holder: &FieldValue<'_>| {
        holder
            .value
            .at(&["securityContext", "windowsOptions", "hostProcess"])
            .and_then(|value| value.as_bool())
    };
    let pod = own(spec);
    let (mut all, mut on_host) = (0usize, 0usize);
    for kind in KINDS_OF_CONTAINERS {
        for (index, value) in spec.read(kind).items().iter().enumerate() {
            all += 1;
            let one = value
                .at(&["securityContext", "windowsOptions", "hostProcess"])
                .and_then(|value| value.as_bool());
            if let (Some(pod), Some(one)) = (pod, one)
                && pod != one
            {
                let options =
                    spec.path.child(kind).index(index).child("securityContext").child("windowsOptions");
                let wrong =
                    format!("pod hostProcess value must be identical if both are specified, was {pod}");
                errors.push(FieldError::invalid(&options.child("hostProcess"), &one.to_string(), &wrong));
            }
            on_host += usize::from(one.or(pod).unwrap_or_default());
        }
    }
    if on_host == 0 {
        return;
    }
    if on_host != all {
        let wrong =
            "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(FieldError::invalid(&spec.path, "\"\"", wrong));
    }
    if !spec.child("hostNetwork").is_true() {
        let wrong = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(FieldError::invalid(&spec.path.child("hostNetwork"), "false", wrong));
    }
    if !errors.features().allows_privileged() {
        spec.forbidden(errors, "hostProcess containers are disallowed by cluster policy");
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object, said, with};

    use super::*;

    #[test]
    fn each_system_refuses_what_it_does_not_know() {
        let linux = object(
            r#"{"spec":{"os":{"name":"linux"},"containers":[{"name":"c"}],"initContainers":[{"name":"i"}]}}"#,
        );
        let check = |object: &_, errors: &mut ErrorList| validate(&FieldValue::of(object, "spec"), errors);
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
    fn host_processes_come_alone_and_with_the_network() {
        let options = r#"{"windowsOptions":{"hostProcess":true}}"#;
        let mixed = object(&format!(
            r#"{{"spec":{{"containers":[{{"name":"c","securityContext":{options}}},{{"name":"d"}}]}}}}"#
        ));
        let mut errors = ErrorList::new();
        host_process(&FieldValue::of(&mixed, "spec"), &mut errors);
        let wanted = [
            "spec: Invalid value: \"\": If pod contains any hostProcess containers then all containers must be HostProcess containers",
            "spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess containers",
            "spec: Forbidden: hostProcess containers are disallowed by cluster policy",
        ];
        assert_eq!(said(&errors), wanted);
        let differs = with(&mixed, "spec.securityContext.windowsOptions.hostProcess", "false");
        errors.clear();
        host_process(&FieldValue::of(&differs, "spec"), &mut errors);
        assert!(said(&errors)[0].starts_with(
            "spec.containers[0].securityContext.windowsOptions.hostProcess: Invalid value: true: pod hostProcess value must be identical"
        ));
    }
}
