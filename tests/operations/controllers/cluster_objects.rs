//! Controllers for service accounts, root CAs, bootstrap tokens, finished jobs and claims.

use openssl::base64::{decode_block, encode_block};
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use serde_json::{Value, json};

use super::{server, wait_until, wait_until_gone};

#[test]
fn default_service_account_and_root_ca_are_restored() {
    let server = server(&[]);
    let mut client = server.admin();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}});
    client.post("/api/v1/namespaces", &namespace).ok();
    for name in ["new", "default", "kube-system"] {
        let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
        let first = wait_until(&mut client, &account, |account| account["kind"] == "ServiceAccount");
        let map = format!("/api/v1/namespaces/{name}/configmaps/kube-root-ca.crt");
        let has_root_ca = |map: &Value| {
            map["data"]["ca.crt"].as_str().is_some_and(|pem| pem.starts_with("-----BEGIN CERTIFICATE"))
        };
        wait_until(&mut client, &map, has_root_ca);
        client.delete(&account).ok();
        wait_until(&mut client, &account, |account| {
            account["metadata"]["uid"].is_string() && account["metadata"]["uid"] != first["metadata"]["uid"]
        });
        client.patch(&map, "merge", &json!({"data": {"ca.crt": "x", "y": "z"}})).ok();
        wait_until(&mut client, &map, |map| has_root_ca(map) && map["data"]["y"].is_null());
    }
    let authentication_map =
        client.get("/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication").ok();
    assert!(
        authentication_map["data"]["client-ca-file"].as_str().unwrap().starts_with("-----BEGIN CERTIFICATE")
    );
}

fn bootstrap_token_secret(id: &str, expiration: Option<&str>) -> Value {
    let mut token = json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": format!("bootstrap-token-{id}")},
        "stringData": {"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"}});
    if let Some(expiration) = expiration {
        token["stringData"]["expiration"] = json!(expiration);
    }
    token
}

fn url_safe(bytes: &[u8]) -> String {
    encode_block(bytes).trim_end_matches('=').replace('+', "-").replace('/', "_")
}

#[test]
fn bootstrap_tokens_sign_cluster_info_until_expiration() {
    let server = server(&[]);
    let mut client = server.admin();
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let info = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info"},
        "data": {"kubeconfig": "apiVersion: v1\n"}});
    client.post("/api/v1/namespaces/kube-public/configmaps", &info).ok();
    client.post(secrets, &bootstrap_token_secret("abcdef", None)).ok();
    client.post(secrets, &bootstrap_token_secret("expire", Some("2001-01-01T00:00:00Z"))).ok();
    let path = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
    let signed = wait_until(&mut client, path, |info| info["data"]["jws-kubeconfig-abcdef"].is_string());
    let signature = signed["data"]["jws-kubeconfig-abcdef"].as_str().unwrap();
    let (header, signature_part) = signature.split_once("..").unwrap();
    assert_eq!(header, url_safe(br#"{"alg":"HS256","kid":"abcdef"}"#));
    let key = PKey::hmac(b"abcdef.0123456789abcdef").unwrap();
    let mut signer = Signer::new(MessageDigest::sha256(), &key).unwrap();
    signer.update(format!("{header}.{}", url_safe(b"apiVersion: v1\n")).as_bytes()).unwrap();
    assert_eq!(signature_part, url_safe(&signer.sign_to_vec().unwrap()));

    wait_until_gone(&mut client, &format!("{secrets}/bootstrap-token-expire"));
    assert!(client.get(path).ok()["data"]["jws-kubeconfig-expire"].is_null());
    client.delete(&format!("{secrets}/bootstrap-token-abcdef")).ok();
    wait_until(&mut client, path, |info| info["data"]["jws-kubeconfig-abcdef"].is_null());
}

#[test]
fn finished_job_is_deleted_after_ttl() {
    let server = server(&[]);
    let mut client = server.admin();
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
        "spec": {"ttlSecondsAfterFinished": 0, "template": {"spec": {"restartPolicy": "Never",
            "containers": [{"name": "c", "image": "i"}]}}}});
    client.post(jobs, &job).ok();
    let mut created = client.get(&format!("{jobs}/j")).ok();
    let now = "2024-01-01T00:00:00Z";
    created["status"] = json!({"startTime": now, "completionTime": now, "succeeded": 1, "conditions": [
        {"type": "SuccessCriteriaMet", "status": "True", "lastProbeTime": now, "lastTransitionTime": now},
        {"type": "Complete", "status": "True", "lastProbeTime": now, "lastTransitionTime": now}]});
    client.put(&format!("{jobs}/j/status"), &created).ok();
    wait_until_gone(&mut client, &format!("{jobs}/j"));
}

#[test]
fn claim_in_use_is_protected_until_pod_deletion() {
    let server = server(&[]);
    let mut client = server.admin();
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    client.post(claims, &claim).ok();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}});
    client.post(pods, &pod).ok();
    client.delete(&format!("{claims}/c"));
    let held = wait_until(&mut client, &format!("{claims}/c"), |claim| {
        !claim["metadata"]["deletionTimestamp"].is_null()
    });
    assert_eq!(held["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    client.delete_background(&format!("{pods}/p"));
    wait_until_gone(&mut client, &format!("{claims}/c"));
}

#[test]
fn service_account_token_secrets_are_filled_and_deleted_with_account() {
    let server = server(&[]);
    let mut client = server.admin();
    let (accounts, secrets) =
        ("/api/v1/namespaces/default/serviceaccounts", "/api/v1/namespaces/default/secrets");
    client
        .post(accounts, &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}}))
        .ok();
    let secret = |name: &str, account: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": account}}})
    };
    client.post(secrets, &secret("s", "a")).ok();
    client.post(secrets, &secret("nobody", "no-such-account")).ok();
    let filled =
        wait_until(&mut client, &format!("{secrets}/s"), |secret| secret["data"]["ca.crt"].is_string());
    assert_eq!(filled["data"]["namespace"], encode_block(b"default"));
    assert!(filled["metadata"]["annotations"]["kubernetes.io/service-account.uid"].is_string());
    let token = decode_block(filled["data"]["token"].as_str().expect("a token")).expect("base64");
    let mut bearer = client.with_token(std::str::from_utf8(&token).ok());
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let self_review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let known = bearer.post(reviews, &self_review).ok();
    assert_eq!(known["status"]["userInfo"]["username"], "system:serviceaccount:default:a");
    wait_until_gone(&mut client, &format!("{secrets}/nobody"));

    // Deleted secrets are removed from the account.
    client.post(secrets, &secret("t", "a")).ok();
    let named = json!({"secrets": [{"name": "s"}, {"name": "t"}]});
    client.patch(&format!("{accounts}/a"), "merge", &named).ok();
    client.delete(&format!("{secrets}/t")).ok();
    wait_until(&mut client, &format!("{accounts}/a"), |account| account["secrets"] == json!([{"name": "s"}]));
    client.delete(&format!("{accounts}/a")).ok();
    wait_until_gone(&mut client, &format!("{secrets}/s"));
}
