//! Each warning appears for its field, and a pod without dubious fields gives none.

use pilothouse_apimachinery::testing::{object, with};

use super::*;

fn base() -> Value {
    object(
        r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i","ports":[
            {"containerPort":80,"protocol":"TCP"}],"env":[{"name":"A","value":"1"}]}]}}"#,
    )
}

fn warnings(object: &Value) -> WarningList {
    let mut list = WarningList::new();
    warn_pod(object, None, &mut list);
    list
}

#[test]
fn each_dubious_pod_field_gives_one_warning() {
    assert_eq!(warnings(&base()), WarningList::new());
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let term = r#"{"matchExpressions":[{"key":"beta.kubernetes.io/os","operator":"Exists"}]}"#;
    let table: Vec<(&str, String, &str)> = vec![
        ("metadata.name", r#""a.b""#.into(), "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]"),
        ("metadata.annotations", r#"{"seccomp.security.alpha.kubernetes.io/pod":"x"}"#.into(), "metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the \"seccompProfile\" field instead"),
        ("metadata.annotations", r#"{"container.seccomp.security.alpha.kubernetes.io/c":"x"}"#.into(), "metadata.annotations[container.seccomp.security.alpha.kubernetes.io/c]: non-functional in v1.27+; use the \"seccompProfile\" field instead"),
        ("metadata.annotations", r#"{"scheduler.alpha.kubernetes.io/critical-pod":""}"#.into(), "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \"priorityClassName\" field instead"),
        ("spec.nodeSelector", r#"{"beta.kubernetes.io/os":"linux"}"#.into(), "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead"),
        ("spec.affinity", format!(r#"{{"nodeAffinity":{{"{required}":{{"nodeSelectorTerms":[{term}]}}}}}}"#), "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead"),
        ("spec.affinity", format!(r#"{{"nodeAffinity":{{"{preferred}":[{{"preference":{term}}}]}}}}"#), "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead"),
        ("spec.affinity", format!(r#"{{"podAffinity":{{"{required}":[{{"topologyKey":"x"}}]}}}}"#), "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null labelSelector results in matching no pod"),
        ("spec.affinity", format!(r#"{{"podAntiAffinity":{{"{preferred}":[{{"podAffinityTerm":{{"topologyKey":"x"}}}}]}}}}"#), "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: a null labelSelector results in matching no pod"),
        ("spec.topologySpreadConstraints", r#"[{"topologyKey":"x"}]"#.into(), "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod"),
        ("spec.topologySpreadConstraints", r#"[{"topologyKey":"beta.kubernetes.io/arch","labelSelector":{}}]"#.into(), "spec.topologySpreadConstraints[0].topologyKey: beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
        ("spec.volumes", r#"[{"name":"v","gitRepo":{"repository":"r"}}]"#.into(), "spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+"),
        ("spec.volumes", r#"[{"name":"v","storageos":{}}]"#.into(), "spec.volumes[0].storageOS: deprecated in v1.22, non-functional in v1.25+"),
        ("spec.volumes", r#"[{"name":"v","ephemeral":{"volumeClaimTemplate":{"spec":{"resources":{"requests":{"storage":"1500m"}}}}}}]"#.into(), "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer"),
        ("spec.volumes", r#"[{"name":"v","configMap":{"name":"m","items":[{"path":"a"},{"path":"a/b"}]}}]"#.into(), "volume \"v\" (ConfigMap \"m\"): overlapping paths: \"a/b\" with \"a\""),
        ("spec.volumes", r#"[{"name":"v","projected":{"sources":[{"serviceAccountToken":{"path":"a"}},{"secret":{"name":"s","items":[{"path":"a/"}]}}]}}]"#.into(), "volume \"v\" (Projected): overlapping paths: \"a\" (Secret \"s\") with \"a\" (ServiceAccountToken)"),
        ("spec.volumes", r#"[{"name":"v","projected":{"sources":[{}]}}]"#.into(), "volume \"v\" (Projected) has no sources provided"),
        ("spec.hostAliases", r#"[{"ip":"1.1.1.1"},{"ip":"1.1.1.1"}]"#.into(), "spec.hostAliases[1].ip: duplicate ip \"1.1.1.1\""),
        ("spec.hostAliases", r#"[{"ip":"01.1.1.1"}]"#.into(), "spec.hostAliases[0].ip: non-standard IP address \"01.1.1.1\" will be considered invalid in a future Kubernetes release: use \"1.1.1.1\""),
        ("spec.dnsConfig", r#"{"nameservers":["01.1.1.1"]}"#.into(), "spec.dnsConfig.nameservers[0]: non-standard IP address \"01.1.1.1\" will be considered invalid in a future Kubernetes release: use \"1.1.1.1\""),
        ("spec.imagePullSecrets", r#"[{"name":"a"},{"name":"a"}]"#.into(), "spec.imagePullSecrets[1].name: duplicate name \"a\""),
        ("spec.imagePullSecrets", r#"[{}]"#.into(), "spec.imagePullSecrets[0].name: invalid empty name \"\""),
        ("spec.overhead", r#"{"memory":"500m"}"#.into(), "spec.overhead[memory]: fractional byte value \"500m\" is invalid, must be an integer"),
        ("spec.containers.0.resources", r#"{"limits":{"memory":"1500m"}}"#.into(), "spec.containers[0].resources.limits[memory]: fractional byte value \"1500m\" is invalid, must be an integer"),
        ("spec.containers.0.env", r#"[{"name":"A","value":"1"},{"name":"A","value":"2"}]"#.into(), "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply"),
        ("spec.containers.0.ports", r#"[{"containerPort":80},{"containerPort":80}]"#.into(), "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]"),
        ("spec.containers.0.ports", r#"[{"containerPort":80},{"containerPort":80,"hostPort":8}]"#.into(), "spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]"),
        ("spec.containers.0.ports", r#"[{"containerPort":80,"hostPort":8,"hostIP":"1.1.1.1"},{"containerPort":80,"hostPort":8}]"#.into(), "spec.containers[0].ports[1]: dangerously ambiguous port definition with spec.containers[0].ports[0]"),
        ("spec.containers.0.ports", r#"[{"name":"a","containerPort":80},{"name":"a","containerPort":81}]"#.into(), "spec.containers[0].ports[1]: duplicate port name \"a\" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]"),
        ("spec.containers.0.ports.0.hostIP", r#""1.1.1.1""#.into(), "spec.containers[0].ports[0]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:80 Protocol:TCP HostIP:1.1.1.1}"),
        ("spec.terminationGracePeriodSeconds", "-1".into(), "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"),
    ];
    for (path, json, expected) in table {
        assert_eq!(warnings(&with(&base(), path, &json)), [expected], "{path}={json}");
    }
}

#[test]
fn variable_that_extends_its_previous_value_gives_no_warning() {
    let extended =
        with(&base(), "spec.containers.0.env", r#"[{"name":"A","value":"1"},{"name":"A","value":"x $(A)"}]"#);
    assert_eq!(warnings(&extended), WarningList::new());
}

#[test]
fn template_with_apparmor_annotation_gives_a_warning() {
    let template = with(
        &base(),
        "metadata.annotations",
        r#"{"container.apparmor.security.beta.kubernetes.io/c":"runtime/default"}"#,
    );
    let mut list = WarningList::new();
    warn_spec_and_meta(&FieldPath::new("template"), &template, true, &mut list);
    assert_eq!(
        list,
        [
            "template.metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
        ]
    );
    assert_eq!(warnings(&template), WarningList::new());
    let mut on_update = WarningList::new();
    warn_pod(&with(&base(), "metadata.name", r#""a.b""#), Some(&base()), &mut on_update);
    assert_eq!(on_update, WarningList::new(), "an update of a pod warns about nothing");
}

#[test]
fn status_write_warns_about_noncanonical_addresses() {
    let mut pod = base();
    pod.set(
        "status",
        object(r#"{"podIPs":[{"ip":"10.0.0.1"},{"ip":"2001:DB8::1"}],"hostIPs":[{"ip":"010.0.0.1"}]}"#),
    );
    assert_eq!(warnings(&pod), WarningList::new());
    let mut list = WarningList::new();
    warn_status(&pod, &mut list);
    let expected = [
        "status.podIPs[1].ip: IPv6 address \"2001:DB8::1\" should be in RFC 5952 canonical format (\"2001:db8::1\")",
        "status.hostIPs[0].ip: non-standard IP address \"010.0.0.1\" will be considered invalid in a future Kubernetes release: use \"10.0.0.1\"",
    ];
    assert_eq!(list, expected);
}
