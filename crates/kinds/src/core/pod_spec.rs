//! Validation of PodSpecs.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::{meta, names};

use super::container::{self, PodContext};
use super::volume::Volumes;
use super::{affinity, pod_os, pod_resources, resources, security};
use crate::address;
use crate::allowed::core_v1::{PodSpec, Toleration};

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_LIST_LENGTH: usize = 2048;

/// Checks the spec of a pod of this name, or of a template. With hostNetwork, hostPort must equal containerPort.
pub fn validate(spec: &FieldValue<'_>, pod: Option<&str>, errors: &mut ErrorList) {
    let volumes = Volumes::validate(&spec.child("volumes"), pod.unwrap_or_default(), errors);
    let host_users = spec.read("hostUsers").as_bool() != Some(false);
    let claims = pod_resources::claim_names(spec);
    if let Some(list) = spec.opt("resourceClaims") {
        pod_resources::validate_claims(&list, errors);
    }
    let context = PodContext {
        volumes: &volumes,
        claims: &claims,
        grace: spec.read("terminationGracePeriodSeconds").as_int(),
        restart_policy: spec.str("restartPolicy"),
        host_users,
        os: spec.opt("os").map(|os| os.str("name")),
    };
    let (main, init) = (spec.child("containers"), spec.child("initContainers"));
    container::validate_main(&main, &context, errors);
    container::validate_init(&init, &main, &context, errors);
    if let Some(ephemeral) = spec.opt("ephemeralContainers") {
        container::validate_ephemeral(&ephemeral, &main, &init, &context, errors);
    }
    pod_resources::validate(spec, &claims, errors);
    if spec.read("hostNetwork").as_bool() == Some(true) {
        validate_host_network(&main, pod.is_some(), errors);
    }
    if let Some(policy) = spec.opt("restartPolicy") {
        policy.one_of(errors, PodSpec::RESTART_POLICY);
    }
    if let Some(policy) = spec.opt("dnsPolicy") {
        policy.one_of(errors, PodSpec::DNS_POLICY);
    }
    if let Some(nodes) = spec.opt("nodeSelector") {
        meta::validate_labels(Some(nodes.value), &nodes.path, errors);
    }
    security::validate_pod(spec, errors);
    if let Some(secrets) = spec.opt("imagePullSecrets") {
        validate_pull_secrets(&secrets, errors);
    }
    if let Some(affinity) = spec.opt("affinity") {
        affinity::validate(&affinity, errors);
    }
    validate_dns(spec, errors);
    if let Some(gates) = spec.opt("readinessGates") {
        for gate in gates.items() {
            gate.child("conditionType").syntax(errors, names::qualified_name);
        }
    }
    if let Some(gates) = spec.opt("schedulingGates") {
        validate_scheduling_gates(&gates, errors);
    }
    if let Some(constraints) = spec.opt("topologySpreadConstraints") {
        affinity::validate_spread_constraints(&constraints, errors);
    }
    pod_os::validate_host_process(spec, errors);
    if !host_users {
        validate_user_namespace(spec, errors);
    }
    validate_plain_fields(spec, errors);
    pod_os::validate(spec, errors);
}

fn validate_pull_secrets(secrets: &FieldValue<'_>, errors: &mut ErrorList) {
    for secret in secrets.items() {
        if secret.value.fields().is_some_and(|fields| fields.keys().any(|field| field != "name")) {
            secret.invalid(errors, "only name may be set");
        }
    }
}

/// Checks the host namespaces that hostUsers=false forbids.
fn validate_user_namespace(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    for (field, rendered) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")]
    {
        if spec.read(field).as_bool() == Some(true) {
            let path = spec.path.child(rendered);
            errors.push(FieldError::forbidden(&path, "when `pod.Spec.HostUsers` is false"));
        }
    }
}

fn validate_plain_fields(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let syntax: [(&str, names::Check); 5] = [
        ("serviceAccountName", names::dns_subdomain),
        ("nodeName", names::dns_subdomain),
        ("activeDeadlineSeconds", names::dns_subdomain),
        ("hostname", names::dns_label),
        ("subdomain", names::dns_label),
    ];
    for (field, check) in syntax {
        let Some(node) = spec.opt(field) else { continue };
        if field == "activeDeadlineSeconds" {
            node.in_range(errors, 1, i64::from(i32::MAX));
        } else {
            node.syntax_if_set(errors, check);
        }
    }
    if let Some(list) = spec.opt("tolerations") {
        validate_tolerations(&list, errors);
    }
    if let Some(aliases) = spec.opt("hostAliases") {
        for alias in aliases.items() {
            let ip = alias.child("ip");
            address::validate_ip(&ip.path, ip.text(), address::NOTHING_KNOWN, errors);
            for name in alias.child("hostnames").items() {
                name.syntax(errors, names::dns_subdomain);
            }
        }
    }
    if let Some(class) = spec.opt("priorityClassName") {
        class.syntax_if_set(errors, names::dns_subdomain);
    }
    if let Some(class) = spec.opt("runtimeClassName") {
        class.syntax(errors, names::dns_subdomain);
    }
    if let Some(policy) = spec.opt("preemptionPolicy") {
        policy.need_one_of(errors, PodSpec::PREEMPTION_POLICY);
    }
    if let Some(overhead) = spec.opt("overhead") {
        resources::validate_overhead(&overhead, errors);
    }
}

fn validate_host_network(containers: &FieldValue<'_>, is_pod: bool, errors: &mut ErrorList) {
    for container in containers.items() {
        for port in container.child("ports").items() {
            let (host, container_port) =
                (port.child("hostPort").number(), port.child("containerPort").number());
            if (is_pod || host != 0) && host != container_port {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(&port.child("hostPort").path, &host.to_string(), detail));
            }
        }
    }
}

fn validate_dns(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let has_no_policy = spec.str("dnsPolicy") == "None";
    let Some(config) = spec.opt("dnsConfig") else {
        if has_no_policy {
            spec.child("dnsConfig").required(errors, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        return;
    };
    let servers = config.child("nameservers");
    if has_no_policy && servers.is_empty() {
        servers.required(errors, "must provide at least one DNS nameserver when `dnsPolicy` is None");
        return;
    }
    if servers.len() > MAX_NAMESERVERS {
        servers.invalid(errors, &format!("must not have more than {MAX_NAMESERVERS} nameservers"));
    }
    for server in servers.items() {
        address::validate_ip(&server.path, server.text(), address::NOTHING_KNOWN, errors);
    }
    validate_searches(&config.child("searches"), errors);
    for option in config.child("options").items() {
        if option.child("name").is_empty() {
            option.required(errors, "must not be empty");
        }
    }
}

fn validate_searches(list: &FieldValue<'_>, errors: &mut ErrorList) {
    if list.len() > MAX_SEARCHES {
        list.invalid(errors, &format!("must not have more than {MAX_SEARCHES} search paths"));
    }
    let length: usize = list.items().map(|search| search.text().len() + 1).sum();
    if length > MAX_SEARCH_LIST_LENGTH + 1 {
        let detail = format!(
            "must not have more than {MAX_SEARCH_LIST_LENGTH} characters (including spaces) in the search list"
        );
        list.invalid(errors, &detail);
    }
    let is_relaxed = errors.features().has(Feature::RelaxedDNSSearchValidation);
    let check = if is_relaxed { names::underscored_subdomain } else { names::dns_subdomain };
    for search in list.items().filter(|search| !is_relaxed || search.text() != ".") {
        let domain = search.text().strip_suffix('.').unwrap_or(search.text());
        meta::add_invalid(errors, &search.path, domain, check(domain));
    }
}

fn validate_scheduling_gates(list: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for gate in list.items() {
        let name = gate.child("name").text();
        meta::add_invalid(errors, &gate.path, name, names::qualified_name(name));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&gate.path, &quoted(name)));
        }
    }
}

/// Checks tolerations.
pub fn validate_tolerations(list: &FieldValue<'_>, errors: &mut ErrorList) {
    for toleration in list.items() {
        let (key, operator, value, effect) = (
            toleration.child("key"),
            toleration.child("operator"),
            toleration.child("value"),
            toleration.child("effect"),
        );
        key.syntax_if_set(errors, names::qualified_name);
        if key.is_empty() && operator.text() != "Exists" {
            let detail =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            operator.invalid_text(errors, detail);
        }
        if toleration.child("tolerationSeconds").is_set() && effect.text() != "NoExecute" {
            effect.invalid_text(errors, "effect must be 'NoExecute' when `tolerationSeconds` is set");
        }
        let at_operator = value.named(operator.path.clone());
        match operator.text() {
            "" | "Equal" => {
                let details = names::label_value(value.text());
                if !details.is_empty() {
                    at_operator.invalid_text(errors, &details.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                at_operator.invalid_text(errors, "value must be empty when `operator` is 'Exists'");
            }
            "Exists" => {}
            _ => operator.one_of(errors, Toleration::OPERATOR),
        }
        if !effect.is_empty() {
            effect.one_of(errors, Toleration::EFFECT);
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    fn base() -> pilothouse_apimachinery::value::Value {
        object(
            r#"{"spec":{"containers":[{"name":"c","image":"i:1","ports":[{"containerPort":80,"protocol":"TCP"}],
                "env":[{"name":"E","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.name"}}}],
                "envFrom":[{"secretRef":{"name":"s"}}],
                "volumeMounts":[{"name":"v","mountPath":"/v"}],"volumeDevices":[{"name":"p","devicePath":"/d"}]}],
              "initContainers":[{"name":"i","image":"i:1"}],
              "volumes":[{"name":"v","emptyDir":{}},{"name":"w","emptyDir":{}},{"name":"p","persistentVolumeClaim":{"claimName":"c"}}],
              "restartPolicy":"Always","dnsPolicy":"ClusterFirst","securityContext":{},"terminationGracePeriodSeconds":30,
              "tolerations":[{"key":"k","operator":"Exists","effect":"NoExecute","tolerationSeconds":1}]}}"#,
        )
    }

    fn check(object: &pilothouse_apimachinery::value::Value, errors: &mut ErrorList) {
        validate(&FieldValue::top_level(object, "spec"), Some("p"), errors);
    }

    #[test]
    fn container_validation_refuses_each_violation() {
        each_refused(
            &base(),
            check,
            &[
                ("spec.containers", "[]", "spec.containers: Required value"),
                ("spec.containers.0.name", "null", "spec.containers[0].name: Required value"),
                ("spec.containers.0.name", r#""A""#, "spec.containers[0].name: Invalid value: \"A\""),
                ("spec.containers.0.image", "null", "spec.containers[0].image: Required value"),
                (
                    "spec.containers.0.terminationMessagePolicy",
                    r#""X""#,
                    "\"File\", \"FallbackToLogsOnError\"",
                ),
                ("spec.containers.0.imagePullPolicy", r#""X""#, "\"Always\", \"IfNotPresent\", \"Never\""),
                ("spec.containers.0.restartPolicy", r#""Always""#, "may not be set for non-init containers"),
                ("spec.containers.0.ports.0.containerPort", "0", "containerPort: Required value"),
                (
                    "spec.containers.0.ports.0.containerPort",
                    "70000",
                    "must be between 1 and 65535, inclusive",
                ),
                ("spec.containers.0.ports.0.hostPort", "70000", "hostPort: Invalid value: 70000"),
                ("spec.containers.0.ports.0.protocol", r#""X""#, "\"SCTP\", \"TCP\", \"UDP\""),
                ("spec.containers.0.ports.0.name", r#""-a""#, "must not begin or end with a hyphen"),
                ("spec.containers.0.env.0.name", "null", "env[0].name: Required value"),
                ("spec.containers.0.env.0.name", r#""a=b""#, "env[0].name: Invalid value: \"a=b\""),
                ("spec.containers.0.env.0.value", r#""x""#, "may not be specified when `value` is not empty"),
                ("spec.containers.0.env.0.valueFrom", r#"{"x":1}"#, "must specify one of: `fieldRef`"),
                (
                    "spec.containers.0.env.0.valueFrom.secretKeyRef",
                    r#"{"name":"s","key":"k"}"#,
                    "more than one field",
                ),
                (
                    "spec.containers.0.env.0.valueFrom.fieldRef.fieldPath",
                    r#""x""#,
                    "field label not supported: x",
                ),
                (
                    "spec.containers.0.env.0.valueFrom.fieldRef.fieldPath",
                    r#""metadata.labels""#,
                    "supported values: \"metadata.name\"",
                ),
                (
                    "spec.containers.0.envFrom.0.secretRef",
                    "null",
                    "must specify one of: `configMapRef` or `secretRef`",
                ),
                ("spec.containers.0.envFrom.0.secretRef.name", "null", "secretRef.name: Required value"),
                ("spec.containers.0.volumeMounts.0.name", r#""x""#, "volumeMounts[0].name: Not found: \"x\""),
                ("spec.containers.0.volumeMounts.0.mountPath", "null", "mountPath: Required value"),
                (
                    "spec.containers.0.volumeMounts.0.subPath",
                    r#""/x""#,
                    "volumeMounts.subPath: Invalid value: \"/x\": must be a relative path",
                ),
                (
                    "spec.containers.0.volumeMounts.0.mountPropagation",
                    r#""Bidirectional""#,
                    "available only to privileged",
                ),
                (
                    "spec.containers.0.volumeDevices.0.name",
                    r#""w""#,
                    "can only use volume source type of PersistentVolumeClaim",
                ),
                ("spec.containers.0.volumeDevices.0.devicePath", r#""/a/..""#, "can not contain backsteps"),
                (
                    "spec.containers.0.resizePolicy",
                    r#"[{"resourceName":"x","restartPolicy":"NotRequired"}]"#,
                    "supported values: \"cpu\", \"memory\"",
                ),
                (
                    "spec.containers.0.securityContext.runAsUser",
                    "-1",
                    "must be between 0 and 2147483647, inclusive",
                ),
                (
                    "spec.containers.0.securityContext.seccompProfile",
                    r#"{"type":"Localhost"}"#,
                    "must be set when seccomp type is Localhost",
                ),
                (
                    "spec.initContainers.0.name",
                    r#""c""#,
                    "spec.initContainers[0].name: Duplicate value: \"c\"",
                ),
                (
                    "spec.initContainers.0.livenessProbe",
                    r#"{"exec":{"command":["x"]}}"#,
                    "without restartPolicy=Always",
                ),
                ("spec.initContainers.0.restartPolicy", r#""Never""#, "supported values: \"Always\""),
                (
                    "spec.ephemeralContainers",
                    r#"[{"name":"e","image":"i","targetContainerName":"x"}]"#,
                    "targetContainerName: Not found: \"x\"",
                ),
                (
                    "spec.ephemeralContainers",
                    r#"[{"name":"e","image":"i","ports":[]}]"#,
                    "ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
                ),
                (
                    "spec.ephemeralContainers",
                    r#"[{"name":"e","image":"i","ports":[{"containerPort":1}]}]"#,
                    "cannot be set for an Ephemeral Container",
                ),
            ],
        );
    }

    #[test]
    fn pod_spec_validation_refuses_each_violation() {
        each_refused(
            &base(),
            check,
            &[
                ("spec.restartPolicy", r#""X""#, "spec.restartPolicy: Unsupported value: \"X\""),
                ("spec.dnsPolicy", r#""X""#, "spec.dnsPolicy: Unsupported value"),
                ("spec.dnsPolicy", r#""None""#, "spec.dnsConfig: Required value: must provide `dnsConfig`"),
                (
                    "spec.dnsConfig",
                    r#"{"nameservers":["x"]}"#,
                    "spec.dnsConfig.nameservers[0]: Invalid value: \"x\"",
                ),
                (
                    "spec.dnsConfig",
                    r#"{"nameservers":["1.1.1.1","1.1.1.2","1.1.1.3","1.1.1.4"]}"#,
                    "more than 3 nameservers",
                ),
                (
                    "spec.dnsConfig",
                    r#"{"options":[{}]}"#,
                    "spec.dnsConfig.options[0]: Required value: must not be empty",
                ),
                (
                    "spec.dnsConfig",
                    r#"{"searches":["-"]}"#,
                    "spec.dnsConfig.searches[0]: Invalid value: \"-\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.'",
                ),
                (
                    "spec.overhead",
                    r#"{"storage":"1"}"#,
                    "spec.overhead.limits[storage]: Invalid value: storage",
                ),
                ("spec.imagePullSecrets", r#"[{"name":"a","x":"y"}]"#, "only name may be set"),
                ("spec.hostNetwork", "true", "must match `containerPort` when `hostNetwork` is true"),
                (
                    "spec",
                    r#"{"hostUsers":false,"hostPID":true,"containers":[{"name":"c","image":"i"}]}"#,
                    "spec.HostPID: Forbidden: when `pod.Spec.HostUsers` is false",
                ),
                ("spec.nodeSelector", r#"{"a":"-"}"#, "spec.nodeSelector: Invalid value: \"-\""),
                ("spec.securityContext.runAsUser", "-1", "spec.securityContext.runAsUser"),
                (
                    "spec.securityContext.supplementalGroups",
                    "[-1]",
                    "supplementalGroups[0]: Invalid value: -1",
                ),
                ("spec.securityContext.fsGroupChangePolicy", r#""X""#, "\"Always\", \"OnRootMismatch\""),
                ("spec.securityContext.sysctls", "[{}]", "sysctls[0].name: Required value"),
                ("spec.serviceAccountName", r#""A""#, "spec.serviceAccountName: Invalid value: \"A\""),
                ("spec.nodeName", r#""A""#, "spec.nodeName: Invalid value"),
                ("spec.activeDeadlineSeconds", "0", "must be between 1 and 2147483647, inclusive"),
                ("spec.hostname", r#""a.b""#, "spec.hostname: Invalid value: \"a.b\": must not contain dots"),
                ("spec.hostAliases", r#"[{"ip":"x"}]"#, "spec.hostAliases[0].ip: Invalid value"),
                ("spec.priorityClassName", r#""A""#, "spec.priorityClassName: Invalid value"),
                ("spec.preemptionPolicy", r#""X""#, "\"PreemptLowerPriority\", \"Never\""),
                (
                    "spec.os",
                    r#"{"name":"x"}"#,
                    "spec.os: Unsupported value: \"x\": supported values: \"linux\", \"windows\"",
                ),
                ("spec.readinessGates", r#"[{"conditionType":"-"}]"#, "spec.readinessGates[0].conditionType"),
                (
                    "spec.schedulingGates",
                    r#"[{"name":"a"},{"name":"a"}]"#,
                    "spec.schedulingGates[1]: Duplicate value: \"a\"",
                ),
                ("spec.tolerations.0.value", r#""x""#, "value must be empty when `operator` is 'Exists'"),
                ("spec.tolerations.0.operator", r#""X""#, "supported values: \"Equal\", \"Exists\""),
                (
                    "spec.tolerations.0.effect",
                    r#""NoSchedule""#,
                    "effect must be 'NoExecute' when `tolerationSeconds` is set",
                ),
            ],
        );
    }
}
