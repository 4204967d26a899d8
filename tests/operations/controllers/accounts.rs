//! Service accounts and their tokens.

use openssl::base64::decode_block;
use serde_json::{Value, json};

use super::{server, wait_until, wait_until_gone};
use crate::support::Client;
use crate::support::kubectl::Kubectl;

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const TRACKED: &str =
    "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

#[test]
fn kubectl_run_succeeds_right_after_namespace_creation() {
    let server = server(&[]);
    let kubectl = Kubectl::new(&server);
    for number in 0..3 {
        let name = format!("new{number}");
        kubectl.run(&["create", "namespace", &name]);
        kubectl.run(&["run", "-n", &name, "p", "--image=i"]);
        let pod = server.admin().get(&format!("/api/v1/namespaces/{name}/pods/p")).ok();
        assert_eq!(pod["spec"]["serviceAccountName"], "default");
        assert!(pod["spec"]["volumes"][0]["name"].as_str().unwrap().starts_with("kube-api-access-"));
    }
}

#[test]
fn pod_create_succeeds_immediately_after_namespace_creation() {
    let server = server(&[]);
    let mut client = server.admin();
    for number in 0..10 {
        let name = format!("new{number}");
        client
            .post(
                "/api/v1/namespaces",
                &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            )
            .ok();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        client.post(&format!("/api/v1/namespaces/{name}/pods"), &pod).ok();
    }
}

/// Creates an account with a token in a Secret that it lists, and returns the token.
fn account_with_token(client: &mut Client, name: &str) -> String {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name},
        "secrets": [{"name": name}]});
    client.post(ACCOUNTS, &account).ok();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": name}}});
    client.post(SECRETS, &secret).ok();
    let filled =
        wait_until(client, &format!("{SECRETS}/{name}"), |secret| secret["data"]["token"].is_string());
    String::from_utf8(decode_block(filled["data"]["token"].as_str().unwrap()).unwrap()).unwrap()
}

fn label(secret: &Value, name: &str) -> Option<String> {
    secret["metadata"]["labels"][name].as_str().map(str::to_owned)
}

#[test]
fn unused_legacy_tokens_are_invalidated_and_deleted() {
    let server = server(&["--legacy-service-account-token-clean-up-period=1s"]);
    let mut client = server.admin();
    let tracked_since = client.get(TRACKED).ok()["data"]["since"].as_str().unwrap().to_owned();
    assert_eq!(tracked_since.len(), 10, "{tracked_since}");

    let token = account_with_token(&mut client, "used");
    let self_review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    client.with_token(Some(&token)).post(reviews, &self_review).ok();
    let used =
        wait_until(&mut client, &format!("{SECRETS}/used"), |secret| label(secret, LAST_USED).is_some());
    let today = label(&used, LAST_USED).unwrap();

    account_with_token(&mut client, "unused");
    let token = account_with_token(&mut client, "long-unused");
    let marked = json!({"metadata": {"labels": {INVALID_SINCE: "2001-01-01"}}});
    client.patch(&format!("{SECRETS}/long-unused"), "merge", &marked).ok();
    assert_eq!(client.with_token(Some(&token)).post(reviews, &self_review).status, 401);
    wait_until(&mut client, &format!("{SECRETS}/long-unused"), |secret| label(secret, LAST_USED).is_some());
    // The last use is set to long ago.
    let long_ago = json!({"metadata": {"labels": {LAST_USED: "2001-01-01"}}});
    client.patch(&format!("{SECRETS}/long-unused"), "merge", &long_ago).ok();

    // The secrets must be older than the clean-up period.
    std::thread::sleep(std::time::Duration::from_secs(3));
    client.patch(TRACKED, "merge", &json!({"data": {"since": "2001-01-01"}})).ok();
    wait_until_gone(&mut client, &format!("{SECRETS}/long-unused"));
    let unused = wait_until(&mut client, &format!("{SECRETS}/unused"), |secret| {
        label(secret, INVALID_SINCE).is_some()
    });
    assert!(label(&unused, INVALID_SINCE) >= Some(today));
    assert_eq!(label(&client.get(&format!("{SECRETS}/used")).ok(), INVALID_SINCE), None);

    client.patch(TRACKED, "merge", &json!({"data": {"since": "soon"}})).ok();
    wait_until(&mut client, TRACKED, |map| {
        map["data"]["since"].as_str().is_some_and(|tracked_since| tracked_since.len() == 10)
    });
    client.delete(TRACKED).ok();
    wait_until(&mut client, TRACKED, |map| map["data"]["since"].is_string());
}
