//! Violations of the standards of many releases.

use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::value::Value;
use proptest::prelude::*;

use super::checks::Findings;
use super::is_significant;
use super::levels::{Level, Standard, Version};
use super::pod::Pod;

fn value(text: &str) -> Value {
    yaml::read(text.as_bytes()).unwrap()
}

fn standard(level: Level, version: &str) -> Standard {
    Standard { level, version: Version::parse(version).unwrap() }
}

fn details(level: Level, version: &str, pod: &str) -> String {
    Findings::evaluate(&Pod::new(&value(pod), false), standard(level, version)).details()
}

fn baseline(pod: &str) -> String {
    details(Level::Baseline, "latest", pod)
}

fn restricted(pod: &str) -> String {
    details(Level::Restricted, "latest", pod)
}

/// A pod that meets the restricted standard, except for the given additions.
fn hardened(context: &str, more: &str) -> String {
    format!(
        "spec: {{securityContext: {{runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}}}, \
         containers: [{{name: a, securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}\
         {context}}}}}]{more}}}"
    )
}

#[test]
fn restricted_lists_all_violations_of_plain_pod() {
    let pod = "spec: {containers: [{name: a}]}";
    assert_eq!(baseline(pod), "");
    assert_eq!(
        restricted(pod),
        "allowPrivilegeEscalation != false (container \"a\" must set \
         securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"a\" must set \
         securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"a\" must set \
         securityContext.runAsNonRoot=true), seccompProfile (pod or container \"a\" must set \
         securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
    let two = "spec: {initContainers: [{name: b}], containers: [{name: a}]}";
    assert!(restricted(two).starts_with(
        "allowPrivilegeEscalation != false (containers \"b\", \"a\" must set \
         securityContext.allowPrivilegeEscalation=false), "
    ));
    assert_eq!(restricted(&hardened("", "")), "");
}

#[test]
fn baseline_violations_match_reference_messages() {
    for (pod, expected) in [
        (
            "metadata: {annotations: {container.apparmor.security.beta.kubernetes.io/a: unconfined, \
             container.apparmor.security.beta.kubernetes.io/b: localhost/x}}\nspec: {}",
            "forbidden AppArmor profile (annotation must not set AppArmor profile type to \
             \"container.apparmor.security.beta.kubernetes.io/a=\"unconfined\"\")",
        ),
        (
            "spec: {securityContext: {appArmorProfile: {type: Unconfined}}, containers: [{name: a, securityContext: \
             {appArmorProfile: {type: Other}}}, {name: b, securityContext: {appArmorProfile: {type: Localhost}}}]}",
            "forbidden AppArmor profiles (pod and container \"a\" must not set AppArmor profile type to \"Other\", \
             \"Unconfined\")",
        ),
        (
            "spec: {containers: [{name: a, securityContext: {capabilities: {add: [NET_RAW, CHOWN, BPF]}}}]}",
            "non-default capabilities (container \"a\" must not include \"BPF\", \"NET_RAW\" in \
             securityContext.capabilities.add)",
        ),
        (
            "spec: {hostNetwork: true, hostPID: true, hostIPC: true}",
            "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)",
        ),
        (
            "spec: {volumes: [{name: a, hostPath: {path: /}}, {name: b, emptyDir: {}}]}",
            "hostPath volumes (volume \"a\")",
        ),
        (
            "spec: {containers: [{name: a, ports: [{hostPort: 90}, {hostPort: 1}, {containerPort: 8}]}]}",
            "hostPort (container \"a\" uses hostPorts 1, 90)",
        ),
        (
            "spec: {containers: [{name: a, ports: [{hostPort: 9}]}, {name: b, ports: [{hostPort: 9}]}]}",
            "hostPort (containers \"a\", \"b\" use hostPort 9)",
        ),
        (
            "spec: {initContainers: [{name: a, securityContext: {privileged: true}}], containers: [{name: b, \
             securityContext: {privileged: false}}]}",
            "privileged (container \"a\" must not set securityContext.privileged=true)",
        ),
        (
            "spec: {containers: [{name: a, securityContext: {procMount: Unmasked}}, {name: b, securityContext: \
             {procMount: Default}}]}",
            "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            "spec: {securityContext: {seLinuxOptions: {type: bad, user: u}}, containers: [{name: a, \
             securityContext: {seLinuxOptions: {type: worse, role: r}}}, {name: b, securityContext: \
             {seLinuxOptions: {type: container_engine_t}}}]}",
            "seLinuxOptions (pod and container \"a\" set forbidden securityContext.seLinuxOptions: types \"bad\", \
             \"worse\"; user may not be set; role may not be set)",
        ),
        (
            "spec: {securityContext: {seccompProfile: {type: Unconfined}}, containers: [{name: a, securityContext: \
             {seccompProfile: {type: Unconfined}}}]}",
            "seccompProfile (pod and container \"a\" must not set securityContext.seccompProfile.type to \
             \"Unconfined\")",
        ),
        (
            "spec: {securityContext: {sysctls: [{name: kernel.a}, {name: kernel.shm_rmid_forced}, {name: b.c}]}}",
            "forbidden sysctls (kernel.a, b.c)",
        ),
        (
            "spec: {securityContext: {windowsOptions: {hostProcess: true}}, ephemeralContainers: [{name: e, \
             securityContext: {windowsOptions: {hostProcess: true}}}]}",
            "hostProcess (pod and container \"e\" must not set securityContext.windowsOptions.hostProcess=true)",
        ),
    ] {
        assert_eq!(baseline(pod), expected, "{pod}");
    }
}

#[test]
fn restricted_violations_match_reference_messages() {
    for (pod, expected) in [
        (
            hardened(", runAsNonRoot: false", ""),
            "runAsNonRoot != true (container \"a\" must not set securityContext.runAsNonRoot=false)",
        ),
        (hardened(", runAsUser: 0", ""), "runAsUser=0 (container \"a\" must not set runAsUser=0)"),
        (
            hardened(", seccompProfile: {type: Unconfined}", ""),
            "seccompProfile (container \"a\" must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            hardened("", ", volumes: [{name: v, nfs: {}}, {name: w, hostPath: {}}, {name: x, secret: {}}, {name: z}]"),
            "restricted volume types (volumes \"v\", \"w\", \"z\" use restricted volume types \"hostPath\", \"nfs\", \
             \"unknown\")",
        ),
        (
            hardened("", ", volumes: [{name: v, image: {}}, {name: w, gitRepo: {}}]"),
            "restricted volume types (volume \"w\" uses restricted volume type \"gitRepo\")",
        ),
        (
            "spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: Localhost}}, containers: [{name: a, \
             securityContext: {allowPrivilegeEscalation: false, capabilities: {add: [NET_BIND_SERVICE, CHOWN]}}}]}"
                .to_owned(),
            "unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]; \
             container \"a\" must not include \"CHOWN\" in securityContext.capabilities.add)",
        ),
    ] {
        assert_eq!(restricted(&pod), expected, "{pod}");
    }
    // Settings of the pod stand for its containers, but only good ones.
    let silent = "spec: {securityContext: {runAsNonRoot: false}, containers: [{name: a}]}";
    assert!(restricted(silent).contains("(pod must not set securityContext.runAsNonRoot=false)"));
    let unmasked = hardened(", procMount: Unmasked", "");
    assert!(restricted(&unmasked).starts_with("procMount ("), "baseline counts too");
}

#[test]
fn checks_depend_on_version() {
    let annotated = "metadata: {annotations: {seccomp.security.alpha.kubernetes.io/pod: unconfined, \
         container.seccomp.security.alpha.kubernetes.io/a: x, container.seccomp.security.alpha.kubernetes.io/b: y}}\n\
         spec: {containers: [{name: a}]}";
    let by_annotation = "seccompProfile (forbidden annotations \
         container.seccomp.security.alpha.kubernetes.io/a=\"x\", seccomp.security.alpha.kubernetes.io/pod=\"unconfined\")";
    let engine = "spec: {securityContext: {seLinuxOptions: {type: container_engine_t}}}";
    let sysctl = |name: &str| format!("spec: {{securityContext: {{sysctls: [{{name: net.ipv4.{name}}}]}}}}");
    let windows =
        "spec: {os: {name: windows}, securityContext: {runAsNonRoot: true}, containers: [{name: a}]}";
    let root = "spec: {securityContext: {runAsNonRoot: true, runAsUser: 0}}";
    let table: [(Level, &str, &str, bool); 18] = [
        (Level::Baseline, annotated, "v1.18", false),
        (Level::Baseline, annotated, "v1.19", true),
        (Level::Baseline, engine, "v1.30", false),
        (Level::Baseline, engine, "v1.31", true),
        (Level::Baseline, &sysctl("ip_local_reserved_ports"), "v1.26", false),
        (Level::Baseline, &sysctl("ip_local_reserved_ports"), "v1.27", true),
        (Level::Baseline, &sysctl("tcp_fin_timeout"), "v1.28", false),
        (Level::Baseline, &sysctl("tcp_fin_timeout"), "v1.29", true),
        (Level::Baseline, &sysctl("tcp_rmem"), "v1.31", false),
        (Level::Baseline, &sysctl("tcp_rmem"), "v1.32", true),
        (Level::Baseline, &sysctl("tcp_rmem"), "v1.99", true),
        (Level::Restricted, root, "v1.22", true),
        (Level::Restricted, root, "v1.23", false),
        (Level::Restricted, windows, "v1.7", true),
        (Level::Restricted, windows, "v1.8", false),
        (Level::Restricted, windows, "v1.24", false),
        (Level::Restricted, windows, "v1.25", true),
        (Level::Privileged, annotated, "v1.0", true),
    ];
    for (level, pod, version, allowed) in table {
        let messages = details(level, version, pod);
        assert_eq!(messages.is_empty(), allowed, "{level:?} {version} {pod}: {messages}");
    }
    assert_eq!(details(Level::Baseline, "v1.0", annotated), by_annotation);
    // A baseline check that a restricted one supersedes is not reported; before that release it is.
    let adds = "spec: {containers: [{name: a, securityContext: {allowPrivilegeEscalation: false, runAsNonRoot: true, \
         capabilities: {add: [BPF]}}}]}";
    assert!(details(Level::Restricted, "v1.10", adds).starts_with("non-default capabilities ("));
    assert!(details(Level::Restricted, "v1.22", adds).starts_with("unrestricted capabilities ("));
    assert!(!details(Level::Restricted, "v1.22", adds).contains("non-default"));
}

#[test]
fn user_namespace_relaxes_restricted_checks_if_gate_is_on() {
    let pod = value(
        "spec: {hostUsers: false, securityContext: {runAsUser: 0, runAsNonRoot: false}, containers: [{name: a, \
         securityContext: {procMount: Unmasked}}]}",
    );
    let reasons =
        |relax| Findings::evaluate(&Pod::new(&pod, relax), standard(Level::Restricted, "latest")).reasons();
    assert!(reasons(false).contains("runAsUser=0") && reasons(false).contains("procMount"));
    let relaxed = reasons(true);
    assert_eq!(relaxed, "allowPrivilegeEscalation != false, unrestricted capabilities, seccompProfile");
}

#[test]
fn pod_update_is_evaluated_only_if_images_or_containers_change() {
    let old = value(
        "spec: {containers: [{name: a, image: i}], initContainers: [{name: b, image: i}], ephemeralContainers: \
         [{name: e, image: i}]}",
    );
    for (change, expected) in [
        ("spec: {containers: [{name: a, image: i}], initContainers: [{name: b, image: i}]}", false),
        ("spec: {containers: [{name: a, image: j}], initContainers: [{name: b, image: i}]}", true),
        ("spec: {containers: [{name: a, image: i}]}", true),
        (
            "spec: {containers: [{name: a, image: i}], initContainers: [{name: b, image: i}], hostPID: true, \
             ephemeralContainers: [{name: e, image: i}]}",
            false,
        ),
        (
            "spec: {containers: [{name: a, image: i}], initContainers: [{name: b, image: i}], \
             ephemeralContainers: [{name: f, image: i}]}",
            true,
        ),
        (
            "spec: {containers: [{name: a, image: i}], initContainers: [{name: b, image: i}], \
             ephemeralContainers: [{name: e, image: j}]}",
            true,
        ),
    ] {
        assert_eq!(is_significant(&value(change), &old), expected, "{change}");
    }
}

/// One of the texts, chosen by number.
fn pick_one(list: &[&str], choice: usize) -> String {
    list[choice % list.len()].to_owned()
}

proptest! {
    /// A pod that meets the restricted standard meets the baseline, and every pod meets the privileged standard.
    #[test]
    fn pod_security_levels_are_nested(choices in prop::collection::vec(0usize..12, 9), version in 0i64..40, relax: bool) {
        let pick = |index: usize, list: &[&str]| pick_one(list, choices[index]);
        let pod = format!(
            "metadata: {{annotations: {{{}}}}}\nspec: {{{} {} securityContext: {{{} {} {}}}, volumes: [{}], \
             containers: [{{name: a, {} securityContext: {{allowPrivilegeEscalation: false, {}}}}}]}}",
            pick(0, &["", "container.apparmor.security.beta.kubernetes.io/a: x",
                "seccomp.security.alpha.kubernetes.io/pod: x"]),
            pick(1, &["", "hostPID: true,", "hostUsers: false,"]),
            // On Windows the fields of Linux are refused by the rules of pods, which the restricted level relies on.
            pick(2, &["", "os: {name: linux},"]),
            pick(3, &["runAsNonRoot: true,", "", "runAsUser: 0,"]),
            pick(4, &["seccompProfile: {type: RuntimeDefault},", "seccompProfile: {type: Unconfined},", ""]),
            pick(5, &["", "sysctls: [{name: net.ipv4.tcp_rmem}]", "seLinuxOptions: {type: container_engine_t}"]),
            pick(6, &["", "{name: v, hostPath: {path: /}}", "{name: v, nfs: {}}"]),
            pick(7, &["", "ports: [{hostPort: 3}],"]),
            pick(8, &["capabilities: {drop: [ALL]}", "capabilities: {drop: [ALL], add: [CHOWN]}", "procMount: Unmasked",
                "capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}", "privileged: true"]),
        );
        let pod = value(&pod);
        let pod = Pod::new(&pod, relax);
        let version = if version > 33 { Version::Latest } else { Version::Minor(version) };
        let violations = |level| Findings::evaluate(&pod, Standard { level, version });
        if violations(Level::Restricted).is_empty() {
            prop_assert!(violations(Level::Baseline).is_empty());
        }
        prop_assert!(violations(Level::Privileged).is_empty());
    }
}
