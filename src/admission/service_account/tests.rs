use pilothouse_apimachinery::testing::object;

use super::*;

fn pod(spec: &str) -> Value {
    object(&format!(r#"{{"metadata":{{"name":"p"}},"spec":{spec}}}"#))
}

fn restricted_account() -> Value {
    object(
        r#"{"metadata":{"name":"sa","annotations":{"kubernetes.io/enforce-mountable-secrets":"true"}},
            "secrets":[{"name":"good"}],"imagePullSecrets":[{"name":"pull"}]}"#,
    )
}

#[test]
fn service_account_token_is_mounted_into_every_container() {
    let mut pod = pod(
        r#"{"initContainers":[{"name":"i"}],"containers":[{"name":"a","volumeMounts":[{"name":"v","mountPath":"/v"}]},
            {"name":"b","volumeMounts":[{"name":"v","mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}]}],
            "volumes":[{"name":"v","emptyDir":{}}]}"#,
    );
    add_token_and_pull_secrets(&mut pod, &Value::object());
    let spec = pod.get("spec").unwrap();
    let volume = items(spec, "volumes").last().unwrap();
    let name = volume.str("name");
    assert!(name.starts_with("kube-api-access-") && name.len() == 21, "{name}");
    let mount = object(&format!(
        r#"{{"name":"{name}","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}}"#
    ));
    assert_eq!(items(&items(spec, "initContainers")[0], "volumeMounts"), std::slice::from_ref(&mount));
    assert_eq!(items(&items(spec, "containers")[0], "volumeMounts")[1], mount);
    assert_eq!(items(&items(spec, "containers")[1], "volumeMounts").len(), 1, "an existing mount stays");
    assert_eq!(
        volume.get("projected"),
        Some(&object(
            r#"{"defaultMode":420,"sources":[
                {"serviceAccountToken":{"path":"token","expirationSeconds":3607}},
                {"configMap":{"name":"kube-root-ca.crt","items":[{"key":"ca.crt","path":"ca.crt"}]}},
                {"downwardAPI":{"items":[{"path":"namespace",
                    "fieldRef":{"apiVersion":"v1","fieldPath":"metadata.namespace"}}]}}]}"#
        ))
    );
    assert_eq!(spec.get("imagePullSecrets"), None);
}

#[test]
fn service_account_token_volume_is_reused_or_disabled() {
    let spec = r#"{"containers":[{"name":"a"}],"volumes":[{"name":"kube-api-access-mine"}]}"#;
    let mut pod_with_volume = pod(spec);
    add_token_and_pull_secrets(&mut pod_with_volume, &Value::object());
    assert_eq!(pod_with_volume.get_path(&["spec", "volumes"]).unwrap().items().len(), 1);
    let mounted = &items(pod_with_volume.get("spec").unwrap(), "containers")[0];
    assert_eq!(items(mounted, "volumeMounts")[0].str("name"), "kube-api-access-mine");

    let account_with_automount =
        |value: &str| object(&format!(r#"{{"automountServiceAccountToken":{value}}}"#));
    for (pod_automount, account_automount, mounts) in
        [(None, "false", false), (Some("true"), "false", true), (Some("false"), "true", false)]
    {
        let mut pod = pod(r#"{"containers":[{"name":"a"}]}"#);
        if let Some(automount) = pod_automount {
            pod.entry("spec").set("automountServiceAccountToken", automount == "true");
        }
        add_token_and_pull_secrets(&mut pod, &account_with_automount(account_automount));
        assert_eq!(
            pod.get_path(&["spec", "volumes"]).is_some(),
            mounts,
            "{pod_automount:?} {account_automount}"
        );
    }
}

#[test]
fn image_pull_secrets_come_from_account_unless_pod_has_some() {
    let account = object(r#"{"imagePullSecrets":[{"name":"a"},{"name":"b"}]}"#);
    let mut bare = pod(r#"{"containers":[]}"#);
    add_token_and_pull_secrets(&mut bare, &account);
    assert_eq!(bare.get_path(&["spec", "imagePullSecrets"]), account.get("imagePullSecrets"));
    let mut pod_with_volume = pod(r#"{"imagePullSecrets":[{"name":"c"}]}"#);
    add_token_and_pull_secrets(&mut pod_with_volume, &account);
    assert_eq!(pod_with_volume.get_path(&["spec", "imagePullSecrets"]), Some(&object(r#"[{"name":"c"}]"#)));
}

#[test]
fn service_account_restricts_secrets_of_its_pods() {
    assert!(secrets::restricts_secrets(&restricted_account()));
    assert!(!secrets::restricts_secrets(&object(r#"{"secrets":[{"name":"x"}]}"#)));
    let tail = "is not allowed because service account sa does not reference that";
    for (spec, expected) in [
        (r#"{"volumes":[{"secret":{"secretName":"good"}}],"imagePullSecrets":[{"name":"pull"}]}"#, None),
        (
            r#"{"volumes":[{"secret":{"secretName":"bad"}}]}"#,
            Some(format!("volume with secret.secretName=\"bad\" {tail} secret")),
        ),
        (
            r#"{"initContainers":[{"name":"i","env":[{"name":"E","valueFrom":{"secretKeyRef":{"name":"bad","key":"k"}}}]}]}"#,
            Some(format!(
                "init container i with envVar E referencing secret.secretName=\"bad\" {tail} secret"
            )),
        ),
        (
            r#"{"containers":[{"name":"c","envFrom":[{"secretRef":{"name":"good"}},{"secretRef":{"name":"bad"}}]}]}"#,
            Some(format!("container c with envFrom referencing secret.secretName=\"bad\" {tail} secret")),
        ),
        (
            r#"{"imagePullSecrets":[{"name":"pull"},{"name":"good"}]}"#,
            Some(format!("imagePullSecrets[1].name=\"good\" {tail} imagePullSecret")),
        ),
    ] {
        assert_eq!(secrets::check(&object(spec), &restricted_account()).err(), expected, "{spec}");
    }
    let spec = r#"{"ephemeralContainers":[{"name":"e","envFrom":[{"secretRef":{"name":"bad"}}]}]}"#;
    assert_eq!(
        secrets::check_ephemeral(&object(spec), &restricted_account()).unwrap_err(),
        format!("ephemeral container e with envFrom referencing secret.secretName=\"bad\" {tail} secret")
    );
    assert_eq!(
        secrets::check(&object(spec), &restricted_account()),
        Ok(()),
        "ephemeral containers are checked on their own"
    );
}

#[test]
fn mirror_pod_may_not_reference_account_or_secrets() {
    const SECRETS: &str = "a mirror pod may not reference secrets";
    for (spec, expected) in [
        (r#"{"containers":[{"name":"c"}],"volumes":[{"hostPath":{"path":"/"}}]}"#, None),
        (r#"{"serviceAccountName":"x"}"#, Some("a mirror pod may not reference service accounts")),
        (r#"{"imagePullSecrets":[{"name":"s"}]}"#, Some(SECRETS)),
        (r#"{"imagePullSecrets":[{}]}"#, None),
        (r#"{"volumes":[{"csi":{"driver":"d","nodePublishSecretRef":{"name":"s"}}}]}"#, Some(SECRETS)),
        (r#"{"volumes":[{"projected":{"sources":[{"secret":{"name":"s"}}]}}]}"#, Some(SECRETS)),
        (r#"{"ephemeralContainers":[{"name":"e","envFrom":[{"secretRef":{"name":"s"}}]}]}"#, Some(SECRETS)),
        (
            r#"{"volumes":[{"projected":{"sources":[{"serviceAccountToken":{"path":"t"}}]}}]}"#,
            Some("a mirror pod may not use ServiceAccountToken volume projections"),
        ),
    ] {
        assert_eq!(check_mirror(&pod(spec)).err(), expected, "{spec}");
    }
}
