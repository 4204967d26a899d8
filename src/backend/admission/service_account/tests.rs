use pilothouse_apimachinery::testing::object;

use super::*;

fn pod(spec: &str) -> Value {
    object(&format!(r#"{{"metadata":{{"name":"p"}},"spec":{spec}}}"#))
}

fn limited() -> Value {
    object(
        r#"{"metadata":{"name":"sa","annotations":{"kubernetes.io/enforce-mountable-secrets":"true"}},
            "secrets":[{"name":"good"}],"imagePullSecrets":[{"name":"pull"}]}"#,
    )
}

#[test]
fn every_container_gets_the_token_and_the_pod_its_volume() {
    let mut pod = pod(
        r#"{"initContainers":[{"name":"i"}],"containers":[{"name":"a","volumeMounts":[{"name":"v","mountPath":"/v"}]},
            {"name":"b","volumeMounts":[{"name":"v","mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}]}],
            "volumes":[{"name":"v","emptyDir":{}}]}"#,
    );
    equip(&mut pod, &Value::object());
    let spec = pod.get("spec").unwrap();
    let volume = items(spec, "volumes").last().unwrap();
    let name = volume.str("name");
    assert!(name.starts_with("kube-api-access-") && name.len() == 21, "{name}");
    let mount = object(&format!(
        r#"{{"name":"{name}","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}}"#
    ));
    assert_eq!(items(&items(spec, "initContainers")[0], "volumeMounts"), std::slice::from_ref(&mount));
    assert_eq!(items(&items(spec, "containers")[0], "volumeMounts")[1], mount);
    assert_eq!(items(&items(spec, "containers")[1], "volumeMounts").len(), 1, "its own mount stays");
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
fn a_volume_of_that_name_is_used_and_a_pod_may_do_without() {
    let spec = r#"{"containers":[{"name":"a"}],"volumes":[{"name":"kube-api-access-mine"}]}"#;
    let mut own = pod(spec);
    equip(&mut own, &Value::object());
    assert_eq!(own.at(&["spec", "volumes"]).unwrap().items().len(), 1);
    let mounted = &items(own.get("spec").unwrap(), "containers")[0];
    assert_eq!(items(mounted, "volumeMounts")[0].str("name"), "kube-api-access-mine");

    let says = |value: &str| object(&format!(r#"{{"automountServiceAccountToken":{value}}}"#));
    for (pod_says, account_says, mounts) in
        [(None, "false", false), (Some("true"), "false", true), (Some("false"), "true", false)]
    {
        let mut pod = pod(r#"{"containers":[{"name":"a"}]}"#);
        if let Some(said) = pod_says {
            pod.entry("spec").set("automountServiceAccountToken", said == "true");
        }
        equip(&mut pod, &says(account_says));
        assert_eq!(pod.at(&["spec", "volumes"]).is_some(), mounts, "{pod_says:?} {account_says}");
    }
}

#[test]
fn pull_secrets_come_from_the_account_unless_the_pod_has_some() {
    let account = object(r#"{"imagePullSecrets":[{"name":"a"},{"name":"b"}]}"#);
    let mut bare = pod(r#"{"containers":[]}"#);
    equip(&mut bare, &account);
    assert_eq!(bare.at(&["spec", "imagePullSecrets"]), account.get("imagePullSecrets"));
    let mut own = pod(r#"{"imagePullSecrets":[{"name":"c"}]}"#);
    equip(&mut own, &account);
    assert_eq!(own.at(&["spec", "imagePullSecrets"]), Some(&object(r#"[{"name":"c"}]"#)));
}

#[test]
fn a_limited_account_names_the_secrets_of_its_pods() {
    assert!(secrets::are_limited(&limited()));
    assert!(!secrets::are_limited(&object(r#"{"secrets":[{"name":"x"}]}"#)));
    let tail = "is not allowed because service account sa does not reference that";
    for (spec, why) in [
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
        assert_eq!(secrets::check(&object(spec), &limited()).err(), why, "{spec}");
    }
    let spec = r#"{"ephemeralContainers":[{"name":"e","envFrom":[{"secretRef":{"name":"bad"}}]}]}"#;
    assert_eq!(
        secrets::check_ephemeral(&object(spec), &limited()).unwrap_err(),
        format!("ephemeral container e with envFrom referencing secret.secretName=\"bad\" {tail} secret")
    );
    assert_eq!(secrets::check(&object(spec), &limited()), Ok(()), "those come later");
}

#[test]
fn a_mirror_pod_has_nothing_that_needs_an_account() {
    const SECRETS: &str = "a mirror pod may not reference secrets";
    for (spec, why) in [
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
        assert_eq!(check_mirror(&pod(spec)).err(), why, "{spec}");
    }
}
