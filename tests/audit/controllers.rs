//! What the server and its controllers do is written down under their names, like the requests of everybody else.

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
/// A controller without a role of its own acts as the manager of all.
const MANAGER: &str = "system:kube-controller-manager";

/// Both records of the first request of this user that is complete.
fn both(log: &Path, user: &str, verb: &str, uri: &str) -> (Value, Value) {
    let is_it = |record: &Value| {
        record["user"]["username"] == user
            && record["verb"] == verb
            && record["requestURI"] == uri
            && record["responseStatus"]["code"].as_u64().is_none_or(|code| code < 300)
    };
    let found = poll(CAP, || {
        let all: Vec<Value> = records(log).into_iter().filter(is_it).collect();
        let complete = all.iter().find(|record| record["stage"] == "ResponseComplete")?.clone();
        let begun = |record: &&Value| {
            record["stage"] == "RequestReceived" && record["auditID"] == complete["auditID"]
        };
        Some((all.iter().find(begun)?.clone(), complete))
    });
    found.unwrap_or_else(|| {
        let all = records(log).into_iter().filter(|record| record["user"]["username"] == user);
        let seen: Vec<String> = all
            .map(|record| format!("{} {} {}", record["stage"], record["verb"], record["requestURI"]))
            .collect();
        panic!("{user} {verb} {uri}: {seen:#?}")
    })
}

/// The last record of a request that RBAC has allowed.
fn complete(log: &Path, user: &str, verb: &str, uri: &str) -> Value {
    let (received, complete) = both(log, user, verb, uri);
    assert_eq!(received["level"], "RequestResponse");
    assert!(
        received.get("requestObject").is_none() && received.get("responseStatus").is_none(),
        "{received}"
    );
    assert_eq!(complete["annotations"]["authorization.k8s.io/decision"], "allow", "{complete}");
    assert_eq!(complete["sourceIPs"], json!(["127.0.0.1"]));
    complete
}

fn request_of(name: &str) -> String {
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
fn the_approval_and_the_signing_of_a_certificate_are_written_down() {
    let audited = Audited::with("rules: [{level: RequestResponse}]", &[ALL]);
    let mut client = audited.server.admin();
    let body = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "node"}, "spec": {"request": request_of("system:node:n"),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"]}});
    client.post(REQUESTS, &body).ok();
    let user = format!("{ACCOUNT}certificate-controller");
    let asked = complete(&audited.log, &user, "create", "/apis/authorization.k8s.io/v1/subjectaccessreviews");
    assert_eq!(asked["requestObject"]["spec"]["resourceAttributes"]["subresource"], "nodeclient");
    assert_eq!(asked["responseObject"]["status"]["allowed"], true, "an administrator asks");
    let approved = complete(&audited.log, &user, "update", &format!("{REQUESTS}/node/approval"));
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
    let signed = complete(&audited.log, &user, "update", &format!("{REQUESTS}/node/status"));
    assert!(signed["responseObject"]["status"]["certificate"].is_string());
}

#[test]
fn tokens_garbage_and_the_contents_of_a_namespace_are_written_down() {
    let audited = Audited::with("rules: [{level: RequestResponse}]", &[ALL]);
    let (mut client, log) = (audited.server.admin(), &audited.log);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}});
    client.post("/api/v1/namespaces/default/serviceaccounts", &account).ok();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "a", "annotations": {"kubernetes.io/service-account.name": "a"}}});
    client.post(SECRETS, &secret).ok();
    let filled = complete(log, MANAGER, "update", &format!("{SECRETS}/a"));
    assert!(filled["requestObject"]["data"]["token"].is_string());
    assert!(filled["userAgent"].as_str().unwrap().ends_with("tokens-controller"), "{}", filled["userAgent"]);

    let owner = client.request("POST", MAPS, &JSON, map("owner", "v").as_bytes()).ok();
    let dependent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dependent",
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}]}});
    client.post(MAPS, &dependent).ok();
    client.delete(&format!("{MAPS}/owner")).ok();
    let collector = format!("{ACCOUNT}generic-garbage-collector");
    let read = complete(log, &collector, "get", &format!("{MAPS}/dependent"));
    assert_eq!(read["responseObject"]["metadata"]["name"], "dependent");
    let collected = complete(log, &collector, "delete", &format!("{MAPS}/dependent"));
    assert_eq!(collected["requestObject"]["propagationPolicy"], "Background");
    assert!(collected["requestObject"]["preconditions"]["uid"].is_string());
    assert_eq!(collected["responseStatus"]["status"], "Success");

    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "goes"}})).ok();
    let inside = "/api/v1/namespaces/goes/configmaps";
    client.request("POST", inside, &JSON, map("inside", "v").as_bytes()).ok();
    client.delete("/api/v1/namespaces/goes").ok();
    let deleter = format!("{ACCOUNT}namespace-controller");
    let cleared = complete(log, &deleter, "deletecollection", inside);
    assert_eq!(cleared["requestObject"]["propagationPolicy"], "Background");
    assert_eq!(cleared["objectRef"]["namespace"], "goes");
    let names: Vec<&Value> = cleared["responseObject"]["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["metadata"]["name"])
        .collect();
    assert!(names.contains(&&json!("inside")), "{names:?}");
    complete(log, &deleter, "list", inside);
    let last = complete(log, &deleter, "update", "/api/v1/namespaces/goes/finalize");
    assert_eq!(last["objectRef"]["subresource"], "finalize");
    // A change that is a patch in the reference is one here, too.
    let orphan = client.request("POST", MAPS, &JSON, map("left", "v").as_bytes()).ok();
    let two = json!([
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "left", "uid": orphan["metadata"]["uid"]},
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "00000000-0000-0000-0000-000000000000"}]);
    let half = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "half", "ownerReferences": two}});
    client.post(MAPS, &half).ok();
    let disowned = complete(log, &collector, "patch", &format!("{MAPS}/half"));
    assert_eq!(disowned["requestObject"], json!({"metadata": {"ownerReferences": [two[0]]}}));
    let is_refused = |record: &Value| record["annotations"]["authorization.k8s.io/decision"] == "forbid";
    let refused: Vec<Value> = records(log).into_iter().filter(is_refused).collect();
    assert!(refused.is_empty(), "the default roles are enough: {refused:#?}");
}

#[test]
fn the_charge_of_a_quota_is_written_down() {
    let audited = Audited::with("rules: [{level: RequestResponse}]", &[ALL]);
    let (mut client, log) = (audited.server.admin(), &audited.log);
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"configmaps": "100"}}});
    client.post(quotas, &quota).ok();
    let status = format!("{quotas}/q/status");
    let counted = complete(log, &format!("{ACCOUNT}resourcequota-controller"), "update", &status);
    assert_eq!(counted["requestObject"]["status"]["hard"]["configmaps"], "100");
    client.request("POST", MAPS, &JSON, map("charged", "v").as_bytes()).ok();
    let charged = complete(log, "system:apiserver", "update", &status);
    let used = |object: &str| charged[object]["status"]["used"]["configmaps"].as_str().unwrap().to_owned();
    assert_eq!(used("requestObject"), used("responseObject"));
    assert_eq!(charged["objectRef"]["name"], "q");
}

#[test]
fn what_the_server_does_itself_is_written_down_and_a_policy_can_leave_it_out() {
    let rules =
        "rules: [{level: None, resources: [{group: rbac.authorization.k8s.io}]}, {level: RequestResponse}]";
    let audited = Audited::with(rules, &[]);
    let own = "system:apiserver";
    let made = complete(&audited.log, own, "create", "/api/v1/namespaces");
    assert_eq!(made["user"]["groups"], json!(["system:authenticated", "system:masters"]));
    assert_eq!(
        (&made["userAgent"], &made["responseStatus"]["code"]),
        (&json!("kube-apiserver"), &json!(201))
    );
    assert_eq!(made["requestObject"]["kind"], "Namespace");
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    audited.server.admin().post(definitions, &definition).ok();
    let accepted = complete(&audited.log, own, "update", &format!("{definitions}/things.example.com/status"));
    let conditions = accepted["requestObject"]["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|condition| condition["type"] == "NamesAccepted"), "{accepted}");
    let services = "/apis/apiregistration.k8s.io/v1/apiservices?fieldManager=kube-apiserver";
    complete(&audited.log, own, "create", services);
    let of_roles = |record: &&Value| record["objectRef"]["apiGroup"] == "rbac.authorization.k8s.io";
    assert_eq!(records(&audited.log).iter().filter(of_roles).count(), 0);
}
