//! Each violation in a security context is refused.

use pilothouse_apimachinery::testing::{each_refused, object};

use super::*;

#[test]
fn pod_security_context_validation_refuses_each_violation() {
    let base = object(
        r#"{"spec":{"hostNetwork":true,"hostIPC":true,"hostPID":true,"securityContext":{"runAsUser":1,"sysctls":[{"name":"kernel.pid_max"}],
            "windowsOptions":{"runAsUserName":"d\\u","gmsaCredentialSpecName":"a"},"seccompProfile":{"type":"RuntimeDefault"},
            "appArmorProfile":{"type":"Localhost","localhostProfile":"p"}}}}"#,
    );
    each_refused(
        &base,
        |object, errors| validate_pod(&FieldValue::top_level(object, "spec"), errors),
        &[
            ("spec.securityContext.fsGroup", "-1", "spec.securityContext.fsGroup: Invalid value: -1"),
            (
                "spec.shareProcessNamespace",
                "true",
                "spec.securityContext.shareProcessNamespace: Invalid value: true",
            ),
            (
                "spec.securityContext.sysctls.0.name",
                r#""A""#,
                "must have at most 253 characters and match regex ^(",
            ),
            (
                "spec.securityContext.sysctls.0.name",
                r#""net.core.somaxconn""#,
                "may not be specified when 'hostNetwork' is true",
            ),
            (
                "spec.securityContext.sysctls.0.name",
                r#""net/ipv4/conf/eth0.1/forwarding""#,
                "'hostNetwork' is true",
            ),
            (
                "spec.securityContext.sysctls.0.name",
                r#""kernel.shmmax""#,
                "may not be specified when 'hostIPC' is true",
            ),
            (
                "spec.securityContext.sysctls",
                r#"[{"name":"a"},{"name":"a"}]"#,
                "sysctls[1].name: Duplicate value: \"a\"",
            ),
            ("spec.securityContext.supplementalGroupsPolicy", r#""X""#, "\"Merge\", \"Strict\""),
            (
                "spec.securityContext.seLinuxChangePolicy",
                r#""MountOption""#,
                "supported values: \"Recursive\"",
            ),
            ("spec.securityContext.seccompProfile", "{}", "type is required when seccompProfile is set"),
            (
                "spec.securityContext.seccompProfile.localhostProfile",
                r#""x""#,
                "can only be set when seccomp type is Localhost",
            ),
            (
                "spec.securityContext.seccompProfile.type",
                r#""X""#,
                "\"Localhost\", \"RuntimeDefault\", \"Unconfined\"",
            ),
            (
                "spec.securityContext.appArmorProfile",
                r#"{"type":"Localhost"}"#,
                "must be set when AppArmor type is Localhost",
            ),
            (
                "spec.securityContext.appArmorProfile.localhostProfile",
                r#"" p""#,
                "must not be padded with whitespace",
            ),
            (
                "spec.securityContext.appArmorProfile.localhostProfile",
                r#""""#,
                "must be set when AppArmor type",
            ),
            (
                "spec.securityContext.appArmorProfile.type",
                r#""Unconfined""#,
                "can only be set when AppArmor type is Localhost",
            ),
            (
                "spec.securityContext.appArmorProfile.type",
                r#""X""#,
                "appArmorProfile.type: Unsupported value: \"X\"",
            ),
            (
                "spec.securityContext.appArmorProfile.type",
                "null",
                "type is required when appArmorProfile is set",
            ),
            (
                "spec.securityContext.windowsOptions.gmsaCredentialSpecName",
                r#""A""#,
                "gmsaCredentialSpecName: Invalid value",
            ),
            ("spec.securityContext.windowsOptions.gmsaCredentialSpec", r#""""#, "cannot be an empty string"),
            (
                "spec.securityContext.windowsOptions.runAsUserName",
                r#""""#,
                "runAsUserName cannot be an empty string",
            ),
            (
                "spec.securityContext.windowsOptions.runAsUserName",
                r#""a\u0001""#,
                "cannot contain control characters",
            ),
            ("spec.securityContext.windowsOptions.runAsUserName", r#""a\\b\\c""#, "more than one backslash"),
            ("spec.securityContext.windowsOptions.runAsUserName", r#""a\\""#, "User cannot be empty"),
            (
                "spec.securityContext.windowsOptions.runAsUserName",
                r#""?\\b""#,
                "doesn't match the NetBios nor the DNS format",
            ),
            ("spec.securityContext.windowsOptions.runAsUserName", r#""..""#, "only periods or spaces"),
            (
                "spec.securityContext.windowsOptions.runAsUserName",
                r#""a@b""#,
                "cannot contain the following characters",
            ),
        ],
    );
}

#[test]
fn container_security_context_validation_refuses_each_violation() {
    each_refused(
        &object(r#"{"c":{"allowPrivilegeEscalation":false,"runAsUser":5}}"#),
        |object, errors| validate_container(&FieldValue::top_level(object, "c"), true, errors),
        &[
            (
                "c.runAsGroup",
                "2147483648",
                "c.runAsGroup: Invalid value: 2147483648: must be between 0 and 2147483647",
            ),
            ("c.procMount", r#""X""#, "supported values: \"Default\", \"Unmasked\""),
            (
                "c.procMount",
                r#""Unmasked""#,
                "c.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false",
            ),
            (
                "c.capabilities",
                r#"{"add":["CAP_SYS_ADMIN"]}"#,
                "to false and `capabilities.Add` CAP_SYS_ADMIN",
            ),
            ("c", r#"{"privileged":true}"#, "c.privileged: Forbidden: disallowed by cluster policy"),
        ],
    );
    let both = object(r#"{"c":{"allowPrivilegeEscalation":false,"privileged":true}}"#);
    let mut errors = ErrorList::new();
    validate_container(&FieldValue::top_level(&both, "c"), true, &mut errors);
    assert_eq!(errors.len(), 2);
    assert!(
        errors[1].message.contains("cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
    );
}
