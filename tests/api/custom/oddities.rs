//! Behaviour of the reference that custom resources have and built-in ones do not.

use std::sync::mpsc;
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_types::lock::Lock;

use super::*;
use crate::support::hook_server::{HookServer, Reply};

fn crd_with_scale() -> Value {
    let mut version = version("v1", true);
    version["subresources"] = json!({"status": {},
        "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.count"}});
    definition("kites", "Kite", "Namespaced", &[version])
}

/// HEAD and a POST to the path of an object were refused with 405.
#[test]
fn custom_resource_accepts_head_and_post_to_named_path() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &crd_with_scale());
    admin.post(&format!("{KITES}/other"), &kite("a")).ok();
    admin.get(&format!("{KITES}/a")).ok();
    admin.get(&format!("{KITES}/other")).expect_error(404, "NotFound");
    admin.post(&format!("{KITES}/other"), &kite("a")).expect_error(409, "AlreadyExists");
    admin.post(&format!("{KITES}/a/status"), &kite("a")).expect_error(405, "MethodNotAllowed");
    for (path, expected) in [("", 200), ("/a", 200), ("/a/status", 200), ("/a/scale", 200), ("/none", 404)] {
        let response = admin.request("HEAD", &format!("{KITES}{path}"), &[], b"");
        assert_eq!((response.status, response.body.len()), (expected, 0), "{path}");
    }
    assert_eq!(admin.request("HEAD", "/apis/toys.example/v1", &[], b"").status, 200);
    assert_eq!(admin.request("HEAD", "/api/v1/namespaces/default/configmaps", &[], b"").status, 405);
}

/// The scale of a custom kind had the columns of others.
#[test]
fn custom_scale_has_its_own_table_columns() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &crd_with_scale());
    admin.post(KITES, &kite("a")).ok();
    let scale = format!("{KITES}/a/scale");
    let table = admin.request("GET", &scale, &[TABLE], b"").ok();
    let columns = table["columnDefinitions"].as_array().unwrap();
    let column = |index: usize| {
        let column = &columns[index];
        (text(column, "/type"), text(column, "/format"), text(column, "/description"))
    };
    assert_eq!((column(0).0, column(0).1), ("string", "name"));
    assert_eq!(column(1), ("integer", "", "Number of desired replicas"));
    assert_eq!(column(2), ("integer", "", "Number of actual replicas"));
    assert_eq!((columns.len(), column(3).0), (4, "date"));
    assert_eq!(table["rows"][0]["cells"][1], 3);
    let list = ("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");
    for (path, kind) in [(scale, "v1.Scale"), (format!("{KITES}/a"), "unstructured.Unstructured")] {
        let refused = admin.request("GET", &path, &[list], b"").expect_error(406, "NotAcceptable");
        assert!(text(&refused, "/message").ends_with(&format!("is not a list (*{kind})")), "{refused}");
    }
}

/// A CRD with an invalid CA bundle was served.
#[test]
fn crd_with_invalid_conversion_ca_bundle_is_not_established() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let mut kites = kites();
    let hook = |bundle: &str| {
        json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/x", "caBundle": bundle}}})
    };
    kites["spec"]["conversion"] = hook("YWJj");
    admin.post(DEFINITIONS, &kites).ok();
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let condition_with_reason = || {
        let crd = admin.get(&path).ok();
        condition(&crd, "Established")
            .filter(|condition_object| condition_object["reason"] == "InvalidCABundle")
            .cloned()
    };
    assert_eq!(poll(TIMEOUT, condition_with_reason).expect("it is told")["status"], "False");
    assert_eq!(admin.get(KITES).text(), "404 page not found\n");
    let no_conversion = json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}});
    admin.patch(&path, MERGE, &no_conversion).ok();
    poll(TIMEOUT, || (admin.get(KITES).status == 200).then_some(())).expect("it is served");
    let refused = admin.patch(&path, MERGE, &json!({"spec": {"conversion": hook("YWJj")}}));
    assert_eq!(
        text(&refused.expect_error(422, "Invalid"), "/details/causes/0/message"),
        "Invalid value: []byte{0x61, 0x62, 0x63}: unable to load root certificates: unable to parse bytes as PEM block"
    );
}

/// Null was taken for the default of a key, or for none.
#[test]
fn apply_treats_null_list_map_key_as_value() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let path = "/api/v1/namespaces/default/services/s?fieldManager=m";
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80, "protocol": null}]}});
    let apply = ("Content-Type", "application/apply-patch+yaml");
    let created = admin.request("PATCH", path, &[apply], service.to_string().as_bytes()).ok();
    let owned = &created["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:ports"];
    assert!(owned[r#"k:{"port":80,"protocol":null}"#].is_object(), "{owned}");
    assert_eq!(created["spec"]["ports"][0]["protocol"], "TCP");
}

/// The object was stored after the definition had gone, and a later definition of the name found it, whatever its scope.
#[test]
fn create_admitted_after_crd_deletion_is_not_stored() {
    let (reply_sender, reply_signal) = mpsc::channel::<()>();
    let reply_signal = Lock::new(reply_signal);
    let hooks = HookServer::start("h", move |_, _| {
        let _timeout = reply_signal.lock().recv_timeout(TIMEOUT);
        Reply::Review(json!({"allowed": true}))
    });
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let hook = json!({"name": "slow.x.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": hooks.url("/"), "caBundle": STANDARD.encode(&hooks.ca_pem)},
        "rules": [{"operations": ["CREATE"], "apiGroups": [GROUP], "apiVersions": ["*"], "resources": ["*"]}]});
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "slow"}, "webhooks": [hook]});
    admin.post(path, &configuration).ok();
    let mut other_client = server.admin();
    let late_create = thread::spawn(move || other_client.post(KITES, &kite("late")));
    poll(TIMEOUT, || (!hooks.requests().is_empty()).then_some(())).expect("the webhook is asked");
    admin.delete(&format!("{DEFINITIONS}/kites.{GROUP}")).ok();
    wait_until_gone(&mut admin, KITES);
    reply_sender.send(()).unwrap();
    late_create.join().unwrap().expect_error(404, "NotFound");
    define(&mut admin, &definition("kites", "Kite", "Cluster", &[version("v1", true)]));
    let listed = admin.get(&format!("/apis/{GROUP}/v1/kites")).ok();
    assert_eq!(listed["items"], json!([]), "nobody has left anything");
}

/// The scale of a custom kind was offered in forms and patched in ways that custom kinds do not have.
#[test]
fn custom_scale_refuses_protobuf_and_strategic_merge() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &crd_with_scale());
    admin.post(KITES, &kite("a")).ok();
    let scale = format!("{KITES}/a/scale");
    let protobuf = ("accept", "application/vnd.kubernetes.protobuf");
    assert_eq!(admin.request("GET", &scale, &[protobuf], b"").status, 406);
    let patch = json!({"spec": {"replicas": 4}});
    admin.patch(&scale, "strategic-merge", &patch).expect_error(415, "UnsupportedMediaType");
    admin.patch(&scale, MERGE, &patch).ok();
    let wrong_scale = json!({"apiVersion": "v1", "kind": "Scale", "metadata": {"name": "a"}});
    let status = admin.put(&scale, &wrong_scale).expect_error(400, "BadRequest");
    assert!(text(&status, "/message").starts_with("no kind is registered for the type v1.Scale in scheme"));
    // What follows a subresource is ignored.
    assert_eq!(admin.get(&format!("{scale}/more")).ok()["spec"]["replicas"], 4);
}

/// Requests for custom resources do not pass the router of built-in ones, which has other messages and another order.
#[test]
fn custom_resource_refusals_differ_from_built_in_ones() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &crd_with_scale());
    for (path, built_in) in [(KITES, false), ("/api/v1/namespaces/default/configmaps", true)] {
        let status = admin
            .request("GET", path, &[("accept", "application/cbor")], b"")
            .expect_error(406, "NotAcceptable");
        assert_eq!(text(&status, "/message").starts_with("406: "), built_in, "{status}");
        assert_eq!(status.get("details").is_some(), built_in, "{status}");
    }
    let plain = [("content-type", "application/json")];
    admin.request("PATCH", KITES, &plain, b"{}").expect_error(415, "UnsupportedMediaType");
    admin.patch(KITES, MERGE, &json!({})).expect_error(400, "BadRequest");
}

/// After a wrong kind nothing else was validated, and a wrong version hid unknown fields.
#[test]
fn custom_resource_with_wrong_kind_reports_other_errors_too() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &crd_with_scale());
    let mut invalid = kite("a");
    invalid["kind"] = json!("KiteList");
    invalid["spec"] = json!({"color": "green", "tails": [{"name": "x"}, {"name": "x"}]});
    let status = admin.post(KITES, &invalid).expect_error(422, "Invalid");
    let causes: Vec<&str> =
        status["details"]["causes"].as_array().unwrap().iter().map(|cause| text(cause, "/field")).collect();
    assert_eq!(causes, ["kind", "spec.tails[1]"]);
    let mut wrong_version = kite("a");
    wrong_version["apiVersion"] = json!(format!("{GROUP}/v9"));
    let response = admin.post(KITES, &wrong_version);
    response.expect_error(400, "BadRequest");
    assert_eq!(response.warnings(), ["unknown field \"spec\""]);
    let strict = admin
        .post(&format!("{KITES}?fieldValidation=Strict"), &wrong_version)
        .expect_error(400, "BadRequest");
    assert!(text(&strict, "/message").ends_with("strict decoding error: unknown field \"spec\""), "{strict}");
}

/// Owners stayed though the object no longer fits the version in which they wrote.
#[test]
fn managed_fields_are_dropped_when_object_does_not_fit_version() {
    let server = Server::with_flags(&["--engine=memory"]);
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
