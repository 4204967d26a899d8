//! Pod security levels of namespaces: enforcement, warnings and metrics.

use super::*;

const NAMESPACES: &str = "/api/v1/namespaces";
const MERGE: &str = "merge";

fn pod_security_label(name: &str) -> String {
    format!("pod-security.kubernetes.io/{name}")
}

fn namespace_with_levels(name: &str, labels: &[(&str, &str)]) -> Value {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(key, value)| (pod_security_label(key), json!(value))).collect();
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

fn restricted_pod(name: &str) -> Value {
    let containers = json!([{"name": "c", "image": "i", "securityContext": {"allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]}}}]);
    let context = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    pod(name, &json!({"containers": containers, "securityContext": context}))
}

const VIOLATION: &str = "violate PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"c\" \
     must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set \
     securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set \
     securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set \
     securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")";

#[test]
fn pod_security_enforces_namespace_level_and_warns_for_templates() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.post(NAMESPACES, &namespace_with_levels("strict", &[("enforce", "restricted")])).ok();
    let pods = "/api/v1/namespaces/strict/pods";
    let message = VIOLATION.replacen("violate", "pods \"a\" is forbidden: violates", 1);
    let status = admin.post(pods, &pod("a", &json!({}))).expect_error(403, "Forbidden");
    assert_eq!(text(&status, "/message"), message);
    assert_eq!(status["details"], json!({"name": "a", "kind": "pods"}));
    let created = admin.post(pods, &restricted_pod("good"));
    assert!(created.warnings().is_empty(), "{:?}", created.warnings());
    let created = created.ok();

    // Workloads with a violating template are admitted with a warning.
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let response = admin.post("/apis/apps/v1/namespaces/strict/deployments", &deployment);
    assert_eq!(response.warnings(), [format!("would {VIOLATION}")]);
    response.ok();
    let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": {"schedule":
        "* * * * *", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers":
        [{"name": "c", "image": "i"}]}}}}}});
    let response = admin.post("/apis/batch/v1/namespaces/strict/cronjobs", &cron);
    assert_eq!(response.warnings(), [format!("would {VIOLATION}")]);

    // An update without a new image is not evaluated; an ephemeral container is.
    let labels = admin.patch(&format!("{pods}/good"), MERGE, &json!({"metadata": {"labels": {"a": "b"}}}));
    labels.ok();
    let ephemeral_container = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i", "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always"}]}});
    let path = format!("{pods}/good/ephemeralcontainers");
    let status = admin.patch(&path, "strategic-merge", &ephemeral_container).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").contains("(container \"e\" must set"), "{status}");
    let status = json!({"status": {"phase": "Running"}});
    admin.patch(&format!("{pods}/good/status"), MERGE, &status).ok();
    assert_eq!(created["metadata"]["name"], "good");
}

#[test]
fn pod_security_warn_level_uses_pinned_version() {
    let server = Server::start();
    let mut admin = server.admin();
    admin
        .post(NAMESPACES, &namespace_with_levels("w", &[("warn", "restricted"), ("warn-version", "v1.7")]))
        .ok();
    let response = admin.post("/api/v1/namespaces/w/pods", &pod("a", &json!({})));
    assert_eq!(
        response.warnings(),
        [
            "would violate PodSecurity \"restricted:v1.7\": runAsNonRoot != true (pod or container \"c\" must set \
          securityContext.runAsNonRoot=true)"
        ]
    );
    response.ok();
    let host = admin.post("/api/v1/namespaces/default/pods", &pod("host", &json!({"hostNetwork": true})));
    assert!(host.warnings().is_empty(), "a namespace without labels is not restricted");
    host.ok();
}

#[test]
fn pod_security_labels_are_validated_and_existing_violations_warned() {
    let server = Server::start();
    let mut admin = server.admin();
    let invalid = namespace_with_levels("n", &[("enforce", "strict"), ("warn-version", "1.2")]);
    let status = admin.post(NAMESPACES, &invalid).expect_error(422, "Invalid");
    assert_eq!(
        text(&status, "/message"),
        "Namespace \"n\" is invalid: [metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": \
         must be one of privileged, baseline, restricted, metadata.labels[pod-security.kubernetes.io/warn-version]: \
         Invalid value: \"1.2\": must be \"latest\" or \"v1.x\"]"
    );
    admin.post(NAMESPACES, &namespace_with_levels("n", &[])).ok();
    let pods = "/api/v1/namespaces/n/pods";
    for (name, fields) in [
        ("c", json!({"hostNetwork": true})),
        ("b", json!({"hostNetwork": true})),
        ("a", json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]})),
        ("fine", json!({})),
    ] {
        admin.post(pods, &pod(name, &fields)).ok();
    }
    admin.post("/api/v1/namespaces/default/pods", &pod("elsewhere", &json!({"hostIPC": true}))).ok();
    let path = format!("{NAMESPACES}/n");
    let mut set_enforce_level = |level: &str| {
        let response = admin.patch(
            &path,
            MERGE,
            &json!({"metadata": {"labels": {pod_security_label("enforce"): level}}}),
        );
        response.ok();
        response.warnings()
    };
    assert_eq!(
        set_enforce_level("baseline"),
        [
            "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"",
            "a: hostPath volumes",
            "b (and 1 other pod): host namespaces",
        ]
    );
    assert!(set_enforce_level("baseline").is_empty(), "nothing new");
    assert!(set_enforce_level("privileged").is_empty(), "less");
    // Labels are validated on update, too.
    let status =
        admin.patch(&path, MERGE, &json!({"metadata": {"labels": {pod_security_label("audit"): "x"}}}));
    status.expect_error(422, "Invalid");
}

#[test]
fn pod_security_configuration_sets_defaults_and_exemptions() {
    let directory = temp_directory();
    let file = directory.path().join("admission.yaml");
    let config = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  \
         path: pod-security.yaml\n";
    std::fs::write(&file, config).unwrap();
    let defaults = "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\ndefaults:\n  \
         enforce: baseline\n  warn: baseline\nexemptions:\n  namespaces: [free]\n  runtimeClasses: [kata]\n";
    std::fs::write(directory.path().join("pod-security.yaml"), defaults).unwrap();
    let server = Server::with_flags(&[&format!("--admission-control-config-file={}", file.display())]);
    let mut admin = server.admin();
    let host = |name| pod(name, &json!({"hostPID": true}));
    expect_forbidden(
        &mut admin,
        PODS,
        &host("a"),
        "violates PodSecurity \"baseline:latest\": host namespaces (hostPID=true)",
    );
    let exempt = admin.post(NAMESPACES, &namespace_with_levels("free", &[("enforce", "restricted")]));
    assert_eq!(
        exempt.warnings(),
        [
            "namespace \"free\" is exempt from Pod Security, and the policy (enforce=restricted:latest) will be ignored"
        ]
    );
    exempt.ok();
    let created = admin.post("/api/v1/namespaces/free/pods", &host("a"));
    assert!(created.warnings().is_empty());
    created.ok();
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "k"});
    admin.post("/apis/node.k8s.io/v1/runtimeclasses", &class).ok();
    admin.post(PODS, &pod("k", &json!({"hostPID": true, "runtimeClassName": "kata"}))).ok();
}

#[test]
fn start_refuses_invalid_pod_security_configuration() {
    let directory = temp_directory();
    let file = directory.path().join("admission.yaml");
    std::fs::write(
        &file,
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  \
         configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: \
         {enforce: none}}\n",
    )
    .unwrap();
    let flag = format!("--admission-control-config-file={}", file.display());
    match Server::try_start_in(&directory.path().join("data"), &[&flag]) {
        Ok(_) => panic!("the server started"),
        Err(failure) => assert!(
            failure.stderr.contains("PodSecurity: defaults.enforce: Invalid value: \"none\""),
            "{failure:?}"
        ),
    }
}

#[test]
fn pod_security_evaluations_are_counted() {
    let server = Server::start();
    let mut admin = server.admin();
    let labels = [
        ("enforce", "baseline"),
        ("enforce-version", "v1.30"),
        ("audit", "restricted"),
        ("warn", "restricted"),
        ("warn-version", "v1.99"),
    ];
    admin.post(NAMESPACES, &namespace_with_levels("judged", &labels)).ok();
    let pods = "/api/v1/namespaces/judged/pods";
    admin.post(pods, &restricted_pod("good")).ok();
    admin.post(pods, &pod("plain", &json!({}))).ok();
    admin.post(pods, &pod("bad", &json!({"hostPID": true}))).expect_error(403, "Forbidden");
    admin.patch(&format!("{pods}/plain"), MERGE, &json!({"metadata": {"labels": {"a": "b"}}})).ok();
    let image = json!({"spec": {"containers": [{"name": "c", "image": "j"}]}});
    admin.patch(&format!("{pods}/plain"), "strategic-merge", &image).ok();
    admin.post("/api/v1/namespaces/default/pods", &pod("free", &json!({}))).ok();
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    admin.post("/apis/apps/v1/namespaces/judged/deployments", &deployment).ok();
    let page = admin.get("/metrics").text();
    for (decision, mode, operation, level, version, resource, count) in [
        ("allow", "enforce", "create", "baseline", "v1.30", "pod", 2),
        ("deny", "enforce", "create", "baseline", "v1.30", "pod", 1),
        ("allow", "enforce", "update", "baseline", "v1.30", "pod", 1),
        ("deny", "audit", "create", "restricted", "latest", "pod", 2),
        ("deny", "audit", "update", "restricted", "latest", "pod", 1),
        ("deny", "warn", "create", "restricted", "future", "pod", 1),
        ("deny", "warn", "update", "restricted", "future", "pod", 1),
        ("deny", "audit", "create", "restricted", "latest", "controller", 1),
        ("allow", "enforce", "create", "privileged", "latest", "pod", 1),
        ("allow", "enforce", "update", "privileged", "latest", "pod", 0),
    ] {
        let line = format!(
            "pod_security_evaluations_total{{decision=\"{decision}\",mode=\"{mode}\",policy_level=\"{level}\",\
             policy_version=\"{version}\",request_operation=\"{operation}\",resource=\"{resource}\",subresource=\"\"}} {count}\n"
        );
        assert!(page.contains(&line), "{line}{page}");
    }
    let no_exemptions = "pod_security_exemptions_total{request_operation=\"create\",resource=\"controller\",subresource=\"\"} 0\n";
    assert!(page.contains(no_exemptions) && !page.contains("pod_security_errors_total{"));
}
