//! Conversion webhooks: kites have a color in one version and a paint in the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::support::hook_server::{HookServer, Reply};

const PAINTED: &str = "/apis/toys.example/v2/namespaces/default/kites";

fn version_with_field(name: &str, field: &str, storage: bool) -> Value {
    json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object",
        "properties": {"spec": {"type": "object", "properties": {
            field: {"type": "string"}, "size": {"type": "integer", "minimum": 1}}}}}}})
}

/// A CRD whose versions a webhook converts.
fn crd_with_webhook(server: &HookServer, reviews: &[&str]) -> Value {
    let versions = [version_with_field("v1", "color", true), version_with_field("v2", "paint", false)];
    let mut created = definition("kites", "Kite", "Namespaced", &versions);
    created["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": reviews,
        "clientConfig": {"url": server.url("/convert"), "caBundle": STANDARD.encode(&server.ca_pem)}}});
    created
}

/// Renames the field as the desired version needs, and sets a generation that must be ignored.
fn convert_fields(request: &Value) -> Vec<Value> {
    let expected = text(request, "/desiredAPIVersion");
    let (old_field, new_field) =
        if expected.ends_with("v2") { ("color", "paint") } else { ("paint", "color") };
    let objects = request["objects"].as_array().unwrap().iter();
    objects
        .map(|object| {
            let mut object = object.clone();
            object["apiVersion"] = json!(expected);
            object["metadata"]["generation"] = json!(77);
            if let Some(value) = object["spec"].as_object_mut().and_then(|spec| spec.remove(old_field)) {
                object["spec"][new_field] = value;
            }
            object
        })
        .collect()
}

fn success(objects: &[Value]) -> Reply {
    Reply::Review(json!({"result": {"status": "Success"}, "convertedObjects": objects}))
}

fn painted_kite(name: &str, paint: &str) -> Value {
    json!({"apiVersion": "toys.example/v2", "kind": "Kite", "metadata": {"name": name}, "spec": {"paint": paint}})
}

#[test]
fn converted_list_is_counted_until_sent() {
    const KITES_MADE: usize = 16;
    let paint = "x".repeat(900 << 10);
    let hooks = HookServer::start("h", |_, request| success(&convert_fields(request)));
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &crd_with_webhook(&hooks, &["v1"]));
    for number in 0..KITES_MADE {
        let mut kite = kite(&format!("k{number}"));
        kite["spec"]["color"] = json!(paint);
        admin.post(KITES, &kite).ok();
    }
    let reserved_bytes = |admin: &mut Client| {
        let page = admin.get("/metrics").text();
        let line = page.lines().find(|line| line.starts_with("pilothouse_list_bytes_inflight ")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let mut connection = admin.raw();
    connection.send(format!("{}\r\n", admin.head("GET", PAINTED, &[])).as_bytes()).unwrap();
    let total_bytes = (KITES_MADE * paint.len()) as f64;
    poll(TIMEOUT, || (reserved_bytes(&mut admin) >= total_bytes).then_some(()))
        .expect("its objects are counted");
    drop(connection);
    poll(TIMEOUT, || (reserved_bytes(&mut admin) == 0.0).then_some(())).expect("they are given back");
}

#[test]
fn conversion_webhook_payloads_are_counted() {
    let paint = "x".repeat(500 << 10);
    let release = Arc::new(AtomicBool::new(false));
    let may_respond = Arc::clone(&release);
    let hooks = HookServer::start("h", move |_, request| {
        poll(TIMEOUT, || may_respond.load(Ordering::SeqCst).then_some(())).expect("the webhook may answer");
        success(&convert_fields(request))
    });
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &crd_with_webhook(&hooks, &["v1"]));
    let mut kite = kite("k");
    kite["spec"]["color"] = json!(paint);
    admin.post(KITES, &kite).ok();
    let reserved_bytes = |admin: &mut Client| {
        let page = admin.get("/metrics").text();
        let name = r#"pilothouse_memory_reserved_bytes{budget="request_bodies"}"#;
        let line = page.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let mut reader = admin.new_connection();
    let read_thread = std::thread::spawn(move || reader.get(&format!("{PAINTED}/k")).status);
    // The decoded object, the copy that is sent, and as much for the response.
    let least = (2 * paint.len()) as f64;
    poll(TIMEOUT, || (reserved_bytes(&mut admin) > least).then_some(()))
        .expect("what waits for the webhook is counted");
    release.store(true, Ordering::SeqCst);
    assert_eq!(read_thread.join().unwrap(), 200);
    poll(TIMEOUT, || (reserved_bytes(&mut admin) == 0.0).then_some(())).expect("it is given back");
}

#[test]
fn conversion_webhook_converts_on_every_verb() {
    let hooks = HookServer::start("h", |_, request| success(&convert_fields(request)));
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &crd_with_webhook(&hooks, &["v9", "v1"]));
    admin.post(KITES, &kite("a")).ok();
    assert!(hooks.requests().is_empty(), "what is stored as it came needs nobody");

    let mut watches =
        [server.admin().watch(PAINTED, ""), server.admin().watch(PAINTED, "labelSelector=x%3Dy")];
    assert_eq!(watches[0].next_for("a")["object"]["spec"], json!({"paint": "red"}));
    let read = admin.get(&format!("{PAINTED}/a")).ok();
    assert_eq!((&read["spec"], &read["apiVersion"]), (&json!({"paint": "red"}), &json!("toys.example/v2")));
    assert_eq!(read["metadata"]["generation"], 1, "metadata stay as they are");
    assert_eq!(hooks.requests().len(), 1, "what was made is kept with the object");
    assert!(hooks.targets()[0].ends_with("/convert?timeout=30s"), "{:?}", hooks.targets());

    let created = admin.post(PAINTED, &painted_kite("b", "blue")).ok();
    assert_eq!(created["spec"], json!({"paint": "blue"}));
    assert_eq!(admin.get(&format!("{KITES}/b")).ok()["spec"], json!({"color": "blue"}));
    assert_eq!(watches[0].next_for("b")["object"]["spec"], json!({"paint": "blue"}));

    let mut changed = created;
    changed["spec"]["paint"] = json!("red");
    changed["metadata"]["labels"] = json!({"x": "y"});
    let updated = admin.put(&format!("{PAINTED}/b"), &changed).ok();
    assert_eq!((&updated["spec"]["paint"], &updated["metadata"]["generation"]), (&json!("red"), &json!(2)));
    let event = watches[0].next_for("b");
    assert_eq!((&event["type"], &event["object"]["spec"]["paint"]), (&json!("MODIFIED"), &json!("red")));
    assert_eq!(watches[1].next_for("b")["type"], "ADDED");
    admin.put(&format!("{PAINTED}/b"), &updated).ok();
    assert_eq!(
        admin.get(&format!("{PAINTED}/b")).ok()["metadata"]["resourceVersion"],
        updated["metadata"]["resourceVersion"]
    );

    let patched = admin.patch(
        &format!("{PAINTED}/b"),
        MERGE,
        &json!({"spec": {"size": 4}, "metadata": {"labels": null}}),
    );
    assert_eq!(patched.ok()["spec"], json!({"paint": "red", "size": 4}));
    let event = watches[1].next_for("b");
    assert_eq!(
        (&event["type"], &event["object"]["spec"]),
        (&json!("DELETED"), &json!({"paint": "red"})),
        "as it was in the view"
    );
    let refused = admin.patch(&format!("{PAINTED}/b"), MERGE, &json!({"spec": {"size": 0}}));
    refused.expect_error(422, "Invalid");
    let applied = admin.request(
        "PATCH",
        &format!("{PAINTED}/b?fieldManager=me&force=true"),
        &[("content-type", "application/apply-patch+yaml")],
        painted_kite("b", "green").to_string().as_bytes(),
    );
    assert_eq!(applied.ok()["spec"], json!({"paint": "green", "size": 4}));
    assert_eq!(admin.get(&format!("{KITES}/b")).ok()["spec"], json!({"color": "green", "size": 4}));

    assert_eq!(admin.delete(&format!("{PAINTED}/b")).ok()["status"], "Success");
    check_conversion_metrics(&mut admin);
}

/// Checks the metrics of the webhook, and that its connections are kept alive until the CRD is deleted.
fn check_conversion_metrics(admin: &mut Client) {
    let counted = admin.get("/metrics").text();
    assert!(
        counted.contains(r#"apiserver_conversion_webhook_request_total{failure_type="",result="success"}"#)
    );
    let by_definition = r#"apiserver_crd_conversion_webhook_duration_seconds_count{crd_name="kites.toys.example",from_version="v1",succeeded="true",to_version="v2"}"#;
    assert!(counted.contains(by_definition), "{counted}");
    assert!(!counted.contains("pilothouse_connections_kept 0"), "{counted}");
    admin.delete(&format!("{DEFINITIONS}/kites.toys.example")).ok();
    let is_closed = poll(TIMEOUT, || {
        admin.get("/metrics").text().contains("pilothouse_connections_kept 0\n").then_some(())
    });
    assert!(is_closed.is_some());
}

#[test]
fn list_is_converted_in_one_webhook_call() {
    let hooks = HookServer::start("h", |_, request| success(&convert_fields(request)));
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &crd_with_webhook(&hooks, &["v1"]));
    for name in 0..20 {
        admin.post(KITES, &kite(&format!("many-{name:02}"))).ok();
    }
    admin.post(PAINTED, &painted_kite("other", "green")).ok();
    hooks.clear_requests();
    let listed = admin.get(PAINTED).ok();
    let paints: Vec<&str> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|kite_object| text(kite_object, "/spec/paint"))
        .collect();
    assert_eq!((paints.len(), paints[0], paints[19], paints[20]), (21, "red", "red", "green"));
    let requests = hooks.requests();
    assert_eq!(
        (requests.len(), requests[0]["objects"].as_array().unwrap().len()),
        (1, 20),
        "all but what is known"
    );
    let rows = admin.request("GET", PAINTED, &[TABLE], b"").ok();
    assert_eq!(rows["rows"].as_array().unwrap().len(), 21);
    assert_eq!(hooks.requests().len(), 1);
}

#[test]
fn field_selectors_use_fields_of_requested_version() {
    let hooks = HookServer::start("h", |_, request| success(&convert_fields(request)));
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let mut definition = crd_with_webhook(&hooks, &["v1"]);
    definition["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.color"}]);
    definition["spec"]["versions"][1]["selectableFields"] = json!([{"jsonPath": ".spec.paint"}]);
    define(&mut admin, &definition);
    admin.post(PAINTED, &painted_kite("first", "blue")).ok();
    let blue = "fieldSelector=spec.paint%3Dblue";
    let mut watch = server.admin().watch(PAINTED, blue);
    let type_and_paint = |type_and_paint: &Value| {
        (text(type_and_paint, "/type").to_owned(), text(type_and_paint, "/object/spec/paint").to_owned())
    };
    let expected_event = |kind: &str| (kind.to_owned(), "blue".to_owned());
    assert_eq!(type_and_paint(&watch.next_for("first")), expected_event("ADDED"), "from the present state");

    for (name, color) in [("second", "blue"), ("third", "red")] {
        let mut kite = kite(name);
        kite["spec"]["color"] = json!(color);
        admin.post(KITES, &kite).ok();
    }
    assert_eq!(type_and_paint(&watch.next_for("second")), expected_event("ADDED"));
    let mut names = |path: &str, selector: &str| -> Vec<String> {
        let listed = admin.get(&format!("{path}?{selector}")).ok();
        let items = listed["items"].as_array().unwrap();
        items.iter().map(|item| text(item, "/metadata/name").to_owned()).collect()
    };
    assert_eq!(names(PAINTED, blue), ["first", "second"]);
    assert_eq!(names(PAINTED, "fieldSelector=spec.paint!%3Dblue"), ["third"]);
    assert_eq!(names(KITES, "fieldSelector=spec.color%3Dblue"), ["first", "second"]);
    assert_eq!(names(PAINTED, &format!("{blue}&limit=1")), ["first"]);

    // Objects enter and leave the selection.
    let third = format!("{KITES}/third");
    admin.patch(&third, MERGE, &json!({"spec": {"color": "blue"}})).ok();
    assert_eq!(type_and_paint(&watch.next_for("third")), expected_event("ADDED"));
    admin.patch(&third, MERGE, &json!({"spec": {"size": 2}})).ok();
    assert_eq!(type_and_paint(&watch.next_for("third")), expected_event("MODIFIED"));
    admin.patch(&third, MERGE, &json!({"spec": {"color": "red"}})).ok();
    assert_eq!(type_and_paint(&watch.next_for("third")), expected_event("DELETED"));

    let deleted = admin.delete(&format!("{PAINTED}?{blue}")).ok();
    assert_eq!(deleted["items"].as_array().unwrap().len(), 2);
    assert_eq!(type_and_paint(&watch.next_for("first")), expected_event("DELETED"));
    assert_eq!(type_and_paint(&watch.next_for("second")), expected_event("DELETED"));
    let remaining = admin.get(PAINTED).ok();
    assert_eq!(text(&remaining["items"][0], "/metadata/name"), "third");
}

/// Field owners are compared by the field names of each version.
#[test]
fn apply_compares_field_owners_in_their_versions() {
    let hooks = HookServer::start("h", |_, request| success(&convert_fields(request)));
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &crd_with_webhook(&hooks, &["v1"]));
    let apply = |admin: &mut Client, collection: &str, object: &Value, query: &str| {
        let path = format!("{collection}/a?{query}");
        admin.request(
            "PATCH",
            &path,
            &[("content-type", "application/apply-patch+yaml")],
            object.to_string().as_bytes(),
        )
    };
    apply(&mut admin, PAINTED, &painted_kite("a", "red"), "fieldManager=painter").ok();
    let mut colored_kite = kite("a");
    colored_kite["spec"] = json!({"color": "blue"});
    let refused = apply(&mut admin, KITES, &colored_kite, "fieldManager=dyer").expect_error(409, "Conflict");
    assert_eq!(
        text(&refused, "/message"),
        "Apply failed with 1 conflict: conflict with \"painter\": .spec.paint"
    );
    let applied = apply(&mut admin, KITES, &colored_kite, "fieldManager=dyer&force=true").ok();
    let owners = applied["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(owners.len(), 1, "who lost all fields is forgotten: {owners:?}");
    let patched = admin.patch(&format!("{PAINTED}/a"), MERGE, &json!({"spec": {"paint": "green"}})).ok();
    let owners = patched["metadata"]["managedFields"].as_array().unwrap();
    let owns = |owner: &Value| {
        owner["fieldsV1"]["f:spec"]
            .as_object()
            .is_some_and(|spec| spec.keys().any(|key| key.starts_with("f:")))
    };
    assert_eq!(owners.iter().filter(|owner| owns(owner)).count(), 1, "{owners:?}");
}

#[test]
fn conversion_webhook_failure_is_reported_and_stored_version_still_served() {
    let hooks = HookServer::start("h", |_, request| match text(request, "/objects/0/metadata/name") {
        "refused" => Reply::Review(json!({"result": {"status": "Failed", "message": "no such paint"}})),
        "fewer" => success(&[]),
        "renamed" => {
            let mut objects = convert_fields(request);
            objects[0]["metadata"]["name"] = json!("x");
            success(&objects)
        }
        "broken" => Reply::Raw("500 Internal Server Error", "oops".to_owned()),
        _ => success(&convert_fields(request)),
    });
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &crd_with_webhook(&hooks, &["v1beta1"]));
    for (name, expected) in [
        ("refused", "conversion webhook for toys.example/v1, Kind=Kite failed: no such paint"),
        ("fewer", "conversion webhook for toys.example/v1, Kind=Kite returned 0 objects, expected 1"),
        (
            "renamed",
            "conversion webhook for toys.example/v1, Kind=Kite returned invalid object: must have the same name: renamed != x",
        ),
        (
            "broken",
            "conversion webhook for toys.example/v1, Kind=Kite failed: an error on the server (\"oops\") has prevented the \
             request from succeeding",
        ),
    ] {
        let mut watch = server.admin().watch(PAINTED, &format!("fieldSelector=metadata.name%3D{name}"));
        admin.post(KITES, &kite(name)).ok();
        let response = admin.get(&format!("{PAINTED}/{name}"));
        assert_eq!((response.status, text(&response.json(), "/message")), (500, expected));
        let event = watch.next();
        assert_eq!((&event["type"], text(&event["object"], "/message")), (&json!("ERROR"), expected));
        assert_eq!(
            admin.get(&format!("{KITES}/{name}")).ok()["spec"]["color"],
            "red",
            "the stored version needs nobody"
        );
        let response_to_put = admin.put(&format!("{PAINTED}/{name}"), &painted_kite(name, "red"));
        assert_eq!(response_to_put.status, 500);
        admin.delete(&format!("{KITES}/{name}")).ok();
    }
    hooks.kill();
    admin.post(KITES, &kite("b")).ok();
    let response = admin.get(&format!("{PAINTED}/b"));
    let event = response.json();
    assert_eq!(response.status, 500);
    assert!(
        text(&event, "/message").starts_with(
            "conversion webhook for toys.example/v1, Kind=Kite failed: Post \"https://127.0.0.1:"
        ),
        "{event}"
    );
}
