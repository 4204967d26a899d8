//! Requests of the server and its controllers are audited under their names, like those of clients.

use openssl::base64::encode_block;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::{X509NameBuilder, X509ReqBuilder};

use super::*;

const ALL: &str = "--controllers=*";
const ACCOUNT: &str = "system:serviceaccount:kube-system:";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// The user of controllers without their own role.
const MANAGER: &str = "system:kube-controller-manager";

/// The RequestReceived and ResponseComplete events of the first successful request like this.
fn wait_for_request(log: &Path, user: &str, verb: &str, uri: &str) -> (Value, Value) {
    let is_match = |record: &Value| {
        record["user"]["username"] == user
            && record["verb"] == verb
            && record["requestURI"] == uri
            && record["responseStatus"]["code"].as_u64().is_none_or(|code| code < 300)
    };
    let request_events = poll(TIMEOUT, || {
        let events: Vec<Value> = records(log).into_iter().filter(is_match).collect();
        let complete = events.iter().find(|record| record["stage"] == "ResponseComplete")?.clone();
        let is_received = |record: &&Value| {
            record["stage"] == "RequestReceived" && record["auditID"] == complete["auditID"]
        };
        Some((events.iter().find(is_received)?.clone(), complete))
    });
    request_events.unwrap_or_else(|| {
        let events = records(log).into_iter().filter(|record| record["user"]["username"] == user);
        let requests: Vec<String> = events
            .map(|record| format!("{} {} {}", record["stage"], record["verb"], record["requestURI"]))
            .collect();
        panic!("{user} {verb} {uri}: {requests:#?}")
    })
}

/// The ResponseComplete event of a request that RBAC has allowed.
fn completed_request(log: &Path, user: &str, verb: &str, uri: &str) -> Value {
    let (received, complete) = wait_for_request(log, user, verb, uri);
    assert_eq!(received["level"], "RequestResponse");
    assert!(
        received.get("requestObject").is_none() && received.get("responseStatus").is_none(),
        "{received}"
    );
    assert_eq!(complete["annotations"]["authorization.k8s.io/decision"], "allow", "{complete}");
    assert_eq!(complete["sourceIPs"], json!(["127.0.0.1"]));
    complete
}

fn csr_for(name: &str) -> String {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut subject = X509NameBuilder::new().unwrap();
    subject.append_entry_by_nid(Nid::ORGANIZATIONNAME, "system:nodes").unwrap();
    subject.append_entry_by_nid(Nid::COMMONNAME, name).unwrap();
    let mut request = X509ReqBuilder::new().unwrap();
    request.set_subject_name(&subject.build()).unwrap();
    request.set_pubkey(&key).unwrap();
    request.sign(&key, MessageDigest::sha256()).unwrap();
    encode_block(&request.build().to_pem().unwrap())
}

#[test]
fn certificate_approval_and_signing_are_audited() {
    let audited = AuditedServer::with("rules: [{level: RequestResponse}]", &[ALL]);
    let mut client = audited.server.admin();
    let body = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "node"}, "spec": {"request": csr_for("system:node:n"),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"]}});
    client.post(REQUESTS, &body).ok();
    let user = format!("{ACCOUNT}certificate-controller");
    let review = completed_request(
        &audited.log,
        &user,
        "create",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    );
    assert_eq!(review["requestObject"]["spec"]["resourceAttributes"]["subresource"], "nodeclient");
    assert_eq!(review["responseObject"]["status"]["allowed"], true, "an administrator asks");
    let approved = completed_request(&audited.log, &user, "update", &format!("{REQUESTS}/node/approval"));
    assert_eq!(
        approved["user"]["groups"],
        json!(["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"])
    );
    assert!(approved["userAgent"].as_str().unwrap().starts_with("kube-controller-manager/"));
    assert_eq!(
        (
            &approved["objectRef"]["resource"],
            &approved["objectRef"]["subresource"],
            &approved["objectRef"]["name"]
        ),
        (&json!("certificatesigningrequests"), &json!("approval"), &json!("node"))
    );
    assert_eq!(approved["requestObject"]["status"]["conditions"][0]["reason"], "AutoApproved");
    assert_eq!(approved["responseObject"]["status"]["conditions"][0]["type"], "Approved");
    let reason = approved["annotations"]["authorization.k8s.io/reason"].as_str().unwrap();
    assert!(reason.contains("\"system:controller:certificate-controller\""), "{reason}");
    let signed = completed_request(&audited.log, &user, "update", &format!("{REQUESTS}/node/status"));
    assert!(signed["responseObject"]["status"]["certificate"].is_string());
}

#[test]
fn token_garbage_collection_and_namespace_requests_are_audited() {
    let audited = AuditedServer::with("rules: [{level: RequestResponse}]", &[ALL]);
    let (mut client, log) = (audited.server.admin(), &audited.log);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}});
    client.post("/api/v1/namespaces/default/serviceaccounts", &account).ok();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "a", "annotations": {"kubernetes.io/service-account.name": "a"}}});
    client.post(SECRETS, &secret).ok();
    let token_update = completed_request(log, MANAGER, "update", &format!("{SECRETS}/a"));
    assert!(token_update["requestObject"]["data"]["token"].is_string());
    assert!(
        token_update["userAgent"].as_str().unwrap().ends_with("tokens-controller"),
        "{}",
        token_update["userAgent"]
    );

    let owner = client.request("POST", MAPS, &JSON, map("owner", "v").as_bytes()).ok();
    let dependent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dependent",
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}]}});
    client.post(MAPS, &dependent).ok();
    client.delete(&format!("{MAPS}/owner")).ok();
    let collector = format!("{ACCOUNT}generic-garbage-collector");
    let read = completed_request(log, &collector, "get", &format!("{MAPS}/dependent"));
    assert_eq!(read["responseObject"]["metadata"]["name"], "dependent");
    let deletion = completed_request(log, &collector, "delete", &format!("{MAPS}/dependent"));
    assert_eq!(deletion["requestObject"]["propagationPolicy"], "Background");
    assert!(deletion["requestObject"]["preconditions"]["uid"].is_string());
    assert_eq!(deletion["responseStatus"]["status"], "Success");

    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "goes"}})).ok();
    let inside = "/api/v1/namespaces/goes/configmaps";
    client.request("POST", inside, &JSON, map("inside", "v").as_bytes()).ok();
    client.delete("/api/v1/namespaces/goes").ok();
    let deleter = format!("{ACCOUNT}namespace-controller");
    let collection_deletion = completed_request(log, &deleter, "deletecollection", inside);
    assert_eq!(collection_deletion["requestObject"]["propagationPolicy"], "Background");
    assert_eq!(collection_deletion["objectRef"]["namespace"], "goes");
    let names: Vec<&Value> = collection_deletion["responseObject"]["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["metadata"]["name"])
        .collect();
    assert!(names.contains(&&json!("inside")), "{names:?}");
    completed_request(log, &deleter, "list", inside);
    let finalize = completed_request(log, &deleter, "update", "/api/v1/namespaces/goes/finalize");
    assert_eq!(finalize["objectRef"]["subresource"], "finalize");
    // The garbage collector patches owner references, as in the reference.
    let remaining_owner = client.request("POST", MAPS, &JSON, map("left", "v").as_bytes()).ok();
    let owners = json!([
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "left", "uid": remaining_owner["metadata"]["uid"]},
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "00000000-0000-0000-0000-000000000000"}]);
    let partly_owned = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "half", "ownerReferences": owners}});
    client.post(MAPS, &partly_owned).ok();
    let patch = completed_request(log, &collector, "patch", &format!("{MAPS}/half"));
    assert_eq!(patch["requestObject"], json!({"metadata": {"ownerReferences": [owners[0]]}}));
    let is_forbidden = |record: &Value| record["annotations"]["authorization.k8s.io/decision"] == "forbid";
    let refused: Vec<Value> = records(log).into_iter().filter(is_forbidden).collect();
    assert!(refused.is_empty(), "the default roles are enough: {refused:#?}");
}

#[test]
fn quota_charge_is_audited() {
    let audited = AuditedServer::with("rules: [{level: RequestResponse}]", &[ALL]);
    let (mut client, log) = (audited.server.admin(), &audited.log);
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"configmaps": "100"}}});
    client.post(quotas, &quota).ok();
    let status = format!("{quotas}/q/status");
    let count_update =
        completed_request(log, &format!("{ACCOUNT}resourcequota-controller"), "update", &status);
    assert_eq!(count_update["requestObject"]["status"]["hard"]["configmaps"], "100");
    client.request("POST", MAPS, &JSON, map("charged", "v").as_bytes()).ok();
    let charge = completed_request(log, "system:apiserver", "update", &status);
    let used = |object: &str| charge[object]["status"]["used"]["configmaps"].as_str().unwrap().to_owned();
    assert_eq!(used("requestObject"), used("responseObject"));
    assert_eq!(charge["objectRef"]["name"], "q");
}

#[test]
fn apiserver_requests_are_audited_unless_policy_omits_them() {
    let rules =
        "rules: [{level: None, resources: [{group: rbac.authorization.k8s.io}]}, {level: RequestResponse}]";
    let audited = AuditedServer::with(rules, &[]);
    let apiserver = "system:apiserver";
    let created = completed_request(&audited.log, apiserver, "create", "/api/v1/namespaces");
    assert_eq!(created["user"]["groups"], json!(["system:authenticated", "system:masters"]));
    assert_eq!(
        (&created["userAgent"], &created["responseStatus"]["code"]),
        (&json!("kube-apiserver"), &json!(201))
    );
    assert_eq!(created["requestObject"]["kind"], "Namespace");
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    audited.server.admin().post(definitions, &definition).ok();
    let accepted = completed_request(
        &audited.log,
        apiserver,
        "update",
        &format!("{definitions}/things.example.com/status"),
    );
    let conditions = accepted["requestObject"]["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|condition| condition["type"] == "NamesAccepted"), "{accepted}");
    let services = "/apis/apiregistration.k8s.io/v1/apiservices?fieldManager=kube-apiserver";
    completed_request(&audited.log, apiserver, "create", services);
    let is_rbac = |record: &&Value| record["objectRef"]["apiGroup"] == "rbac.authorization.k8s.io";
    assert_eq!(records(&audited.log).iter().filter(is_rbac).count(), 0);
}
