//! What the reference does with custom kinds and not with others.

use std::sync::mpsc;
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_types::lock::Lock;

use super::hook_server::{Deed, HookServer};
use super::*;

fn counted() -> Value {
    let mut version = version("v1", true);
    version["subresources"] = json!({"status": {},
        "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.count"}});
    definition("kites", "Kite", "Namespaced", &[version])
}

/// HEAD and a POST to the path of an object were refused with 405.
#[test]
fn heads_are_read_and_the_name_in_the_path_of_a_post_means_nothing() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &counted());
    admin.post(&format!("{KITES}/other"), &kite("a")).ok();
    admin.get(&format!("{KITES}/a")).ok();
    admin.get(&format!("{KITES}/other")).refused(404, "NotFound");
    admin.post(&format!("{KITES}/other"), &kite("a")).refused(409, "AlreadyExists");
    admin.post(&format!("{KITES}/a/status"), &kite("a")).refused(405, "MethodNotAllowed");
    for (path, wanted) in [("", 200), ("/a", 200), ("/a/status", 200), ("/a/scale", 200), ("/none", 404)] {
        let answer = admin.request("HEAD", &format!("{KITES}{path}"), &[], b"");
        assert_eq!((answer.status, answer.body.len()), (wanted, 0), "{path}");
    }
    assert_eq!(admin.request("HEAD", "/apis/toys.example/v1", &[], b"").status, 200);
    assert_eq!(admin.request("HEAD", "/api/v1/namespaces/default/configmaps", &[], b"").status, 405);
}

/// The scale of a custom kind had the columns of others.
#[test]
fn scales_have_columns_of_their_own() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &counted());
    admin.post(KITES, &kite("a")).ok();
    let scale = format!("{KITES}/a/scale");
    let table = admin.request("GET", &scale, &[TABLE], b"").ok();
    let columns = table["columnDefinitions"].as_array().unwrap();
    let of = |at: usize| {
        let column = &columns[at];
        (text(column, "/type"), text(column, "/format"), text(column, "/description"))
    };
    assert_eq!((of(0).0, of(0).1), ("string", "name"));
    assert_eq!(of(1), ("integer", "", "Number of desired replicas"));
    assert_eq!(of(2), ("integer", "", "Number of actual replicas"));
    assert_eq!((columns.len(), of(3).0), (4, "date"));
    assert_eq!(table["rows"][0]["cells"][1], 3);
    let list = ("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");
    for (path, kind) in [(scale, "v1.Scale"), (format!("{KITES}/a"), "unstructured.Unstructured")] {
        let refused = admin.request("GET", &path, &[list], b"").refused(406, "NotAcceptable");
        assert!(text(&refused, "/message").ends_with(&format!("is not a list (*{kind})")), "{refused}");
    }
}

/// A definition whose webhook cannot be trusted by anybody was served.
#[test]
fn whom_nobody_can_trust_converts_nothing() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    let mut kites = kites();
    let hook = |bundle: &str| {
        json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/x", "caBundle": bundle}}})
    };
    kites["spec"]["conversion"] = hook("YWJj");
    admin.post(DEFINITIONS, &kites).ok();
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let told = || {
        let found = admin.get(&path).ok();
        condition(&found, "Established").filter(|one| one["reason"] == "InvalidCABundle").cloned()
    };
    assert_eq!(poll(CAP, told).expect("it is told")["status"], "False");
    assert_eq!(admin.get(KITES).text(), "404 page not found\n");
    let none = json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}});
    admin.patch(&path, MERGE, &none).ok();
    poll(CAP, || (admin.get(KITES).status == 200).then_some(())).expect("it is served");
    let refused = admin.patch(&path, MERGE, &json!({"spec": {"conversion": hook("YWJj")}}));
    assert_eq!(
        text(&refused.refused(422, "Invalid"), "/details/causes/0/message"),
        "Invalid value: []byte{0x61, 0x62, 0x63}: unable to load root certificates: unable to parse bytes as PEM block"
    );
}

/// Null was taken for the default of a key, or for none.
#[test]
fn null_is_a_key_like_others() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    let path = "/api/v1/namespaces/default/services/s?fieldManager=m";
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80, "protocol": null}]}});
    let apply = ("Content-Type", "application/apply-patch+yaml");
    let made = admin.request("PATCH", path, &[apply], service.to_string().as_bytes()).ok();
    let owned = &made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:ports"];
    assert!(owned[r#"k:{"port":80,"protocol":null}"#].is_object(), "{owned}");
    assert_eq!(made["spec"]["ports"][0]["protocol"], "TCP");
}

/// The object was stored after the definition had gone, and a later definition of the name found it, whatever its scope.
#[test]
fn what_is_admitted_too_late_is_not_stored_for_a_kind_that_has_gone() {
    let (answer, answers) = mpsc::channel::<()>();
    let answers = Lock::new(answers);
    let hooks = HookServer::start("h", move |_, _| {
        let _late = answers.lock().recv_timeout(CAP);
        Deed::Says(json!({"allowed": true}))
    });
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let hook = json!({"name": "slow.x.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": hooks.url("/"), "caBundle": STANDARD.encode(&hooks.authority_pem)},
        "rules": [{"operations": ["CREATE"], "apiGroups": [GROUP], "apiVersions": ["*"], "resources": ["*"]}]});
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "slow"}, "webhooks": [hook]});
    admin.post(path, &configuration).ok();
    let mut other = server.admin();
    let late = thread::spawn(move || other.post(KITES, &kite("late")));
    poll(CAP, || (!hooks.asked().is_empty()).then_some(())).expect("the webhook is asked");
    admin.delete(&format!("{DEFINITIONS}/kites.{GROUP}")).ok();
    gone(&mut admin, KITES);
    answer.send(()).unwrap();
    late.join().unwrap().refused(404, "NotFound");
    define(&mut admin, &definition("kites", "Kite", "Cluster", &[version("v1", true)]));
    let listed = admin.get(&format!("/apis/{GROUP}/v1/kites")).ok();
    assert_eq!(listed["items"], json!([]), "nobody has left anything");
}

/// The scale of a custom kind was offered in forms and patched in ways that custom kinds do not have.
#[test]
fn scales_are_as_odd_as_their_objects() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &counted());
    admin.post(KITES, &kite("a")).ok();
    let scale = format!("{KITES}/a/scale");
    let protobuf = ("accept", "application/vnd.kubernetes.protobuf");
    assert_eq!(admin.request("GET", &scale, &[protobuf], b"").status, 406);
    let patch = json!({"spec": {"replicas": 4}});
    admin.patch(&scale, "strategic-merge", &patch).refused(415, "UnsupportedMediaType");
    admin.patch(&scale, MERGE, &patch).ok();
    let other = json!({"apiVersion": "v1", "kind": "Scale", "metadata": {"name": "a"}});
    let status = admin.put(&scale, &other).refused(400, "BadRequest");
    assert!(text(&status, "/message").starts_with("no kind is registered for the type v1.Scale in scheme"));
    // What follows a subresource is ignored.
    assert_eq!(admin.get(&format!("{scale}/more")).ok()["spec"]["replicas"], 4);
}

/// Requests for custom kinds do not pass the router of built-in ones, which has its own words and its own order.
#[test]
fn what_nobody_offers_is_refused_in_other_words() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &counted());
    for (path, built_in) in [(KITES, false), ("/api/v1/namespaces/default/configmaps", true)] {
        let status =
            admin.request("GET", path, &[("accept", "application/cbor")], b"").refused(406, "NotAcceptable");
        assert_eq!(text(&status, "/message").starts_with("406: "), built_in, "{status}");
        assert_eq!(status.get("details").is_some(), built_in, "{status}");
    }
    let plain = [("content-type", "application/json")];
    admin.request("PATCH", KITES, &plain, b"{}").refused(415, "UnsupportedMediaType");
    admin.patch(KITES, MERGE, &json!({})).refused(400, "BadRequest");
}

/// After a wrong kind nothing else was looked at, and a wrong version hid what is unknown in it.
#[test]
fn a_wrong_kind_is_not_all_that_is_wrong() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &counted());
    let mut wrong = kite("a");
    wrong["kind"] = json!("KiteList");
    wrong["spec"] = json!({"color": "green", "tails": [{"name": "x"}, {"name": "x"}]});
    let status = admin.post(KITES, &wrong).refused(422, "Invalid");
    let causes: Vec<&str> =
        status["details"]["causes"].as_array().unwrap().iter().map(|cause| text(cause, "/field")).collect();
    assert_eq!(causes, ["kind", "spec.tails[1]"]);
    let mut other = kite("a");
    other["apiVersion"] = json!(format!("{GROUP}/v9"));
    let answer = admin.post(KITES, &other);
    answer.refused(400, "BadRequest");
    assert_eq!(answer.warnings(), ["unknown field \"spec\""]);
    let strict = admin.post(&format!("{KITES}?fieldValidation=Strict"), &other).refused(400, "BadRequest");
    assert!(text(&strict, "/message").ends_with("strict decoding error: unknown field \"spec\""), "{strict}");
}

/// Owners stayed though the object no longer fits the version in which they wrote.
#[test]
fn owners_end_with_the_version_that_an_object_does_not_fit() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    let mut wider = version("v2", false);
    wider["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["new"] =
        json!({"type": "integer"});
    define(&mut admin, &definition("kites", "Kite", "Namespaced", &[version("v1", true), wider]));
    admin.post(KITES, &kite("a")).ok();
    let newer = "/apis/toys.example/v2/namespaces/default/kites/a";
    let known = admin.patch(newer, MERGE, &json!({"spec": {"size": 5}})).ok();
    assert_eq!(known["metadata"]["managedFields"].as_array().map(Vec::len), Some(2));
    let unknown = admin.patch(newer, MERGE, &json!({"spec": {"new": 1}})).ok();
    assert_eq!(unknown["metadata"].get("managedFields"), None, "{unknown}");
}
