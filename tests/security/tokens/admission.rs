//! Admission of service accounts into pods.

use super::*;

#[test]
fn service_account_admission_sets_pod_account_and_token_volume() {
    let server = Server::with_flags(&["--enable-admission-plugins=ServiceAccount"]);
    let mut admin = server.admin();
    let mut pod_without_account = pod("bare", "");
    pod_without_account["spec"].as_object_mut().unwrap().remove("serviceAccountName");
    let expect_forbidden = |response: crate::support::Response, reason: &str| {
        let status = response.expect_error(403, "Forbidden");
        assert_eq!(text(&status, "/message"), reason);
    };
    expect_forbidden(
        admin.post(PODS, &pod_without_account),
        "pods \"bare\" is forbidden: error looking up service account default/default: serviceaccount \"default\" not found",
    );
    let mut default = account("default");
    default["imagePullSecrets"] = json!([{"name": "pull"}]);
    admin.post(ACCOUNTS, &default).ok();
    let created = admin.post(PODS, &pod_without_account).ok();
    let spec = &created["spec"];
    assert_eq!((text(spec, "/serviceAccountName"), text(spec, "/serviceAccount")), ("default", "default"));
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
    let name = text(spec, "/volumes/0/name");
    assert!(name.starts_with("kube-api-access-"), "{name}");
    assert_eq!(
        spec["containers"][0]["volumeMounts"],
        json!([{"name": name, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}])
    );
    assert_eq!(
        spec["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"],
        3_607
    );
    assert_eq!(spec["volumes"][0]["projected"]["defaultMode"], 420);

    expect_forbidden(
        admin.post(PODS, &pod("p", "none")),
        "pods \"p\" is forbidden: error looking up service account default/none: serviceaccount \"none\" not found",
    );
    let mut strict = account("strict");
    strict["metadata"]["annotations"] = json!({"kubernetes.io/enforce-mountable-secrets": "true"});
    strict["secrets"] = json!([{"name": "good"}]);
    admin.post(ACCOUNTS, &strict).ok();
    let mut with_secret = pod("p", "strict");
    with_secret["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "bad"}}]);
    expect_forbidden(
        admin.post(PODS, &with_secret),
        "pods \"p\" is forbidden: container c with envFrom referencing secret.secretName=\"bad\" is not allowed because service account strict does not reference that secret",
    );
    with_secret["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "good"}}]);
    admin.post(PODS, &with_secret).ok();
    let path = format!("{PODS}/p/ephemeralcontainers");
    let patch = |secret: &str| {
        json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i",
            "envFrom": [{"secretRef": {"name": secret}}]}]}})
    };
    expect_forbidden(
        admin.patch(&path, "strategic-merge", &patch("bad")),
        "pods \"p\" is forbidden: ephemeral container e with envFrom referencing secret.secretName=\"bad\" is not allowed because service account strict does not reference that secret",
    );
    admin.patch(&path, "strategic-merge", &patch("good")).ok();

    let mut mirror = pod("m", "default");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    mirror["spec"]["nodeName"] = "n".into();
    expect_forbidden(
        admin.post(PODS, &mirror),
        "pods \"m\" is forbidden: a mirror pod may not reference service accounts",
    );
}
