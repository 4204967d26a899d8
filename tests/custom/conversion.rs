//! Webhooks that turn custom objects into other versions: kites that have a color in one version and a paint in the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::hook_server::{Deed, HookServer};
use super::*;

const PAINTED: &str = "/apis/toys.example/v2/namespaces/default/kites";

fn versioned(name: &str, field: &str, storage: bool) -> Value {
    json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object",
        "properties": {"spec": {"type": "object", "properties": {
            field: {"type": "string"}, "size": {"type": "integer", "minimum": 1}}}}}}})
}

/// A definition whose versions a webhook turns into each other.
fn converted(server: &HookServer, reviews: &[&str]) -> Value {
    let versions = [versioned("v1", "color", true), versioned("v2", "paint", false)];
    let mut made = definition("kites", "Kite", "Namespaced", &versions);
    made["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": reviews,
        "clientConfig": {"url": server.url("/convert"), "caBundle": STANDARD.encode(&server.authority_pem)}}});
    made
}

/// Renames the field, and tells by a label who did.
fn renamed(request: &Value) -> Vec<Value> {
    let wanted = text(request, "/desiredAPIVersion");
    let (from, to) = if wanted.ends_with("v2") { ("color", "paint") } else { ("paint", "color") };
    let objects = request["objects"].as_array().unwrap().iter();
    objects
        .map(|object| {
            let mut object = object.clone();
            object["apiVersion"] = json!(wanted);
            object["metadata"]["generation"] = json!(77);
            if let Some(value) = object["spec"].as_object_mut().and_then(|spec| spec.remove(from)) {
                object["spec"][to] = value;
            }
            object
        })
        .collect()
}

fn success(objects: &[Value]) -> Deed {
    Deed::Says(json!({"result": {"status": "Success"}, "convertedObjects": objects}))
}

fn painted(name: &str, paint: &str) -> Value {
    json!({"apiVersion": "toys.example/v2", "kind": "Kite", "metadata": {"name": name}, "spec": {"paint": paint}})
}

#[test]
fn a_converted_list_counts_in_the_budget_until_it_is_read() {
    const KITES_MADE: usize = 16;
    let paint = "x".repeat(900 << 10);
    let hooks = HookServer::start("h", |_, request| success(&renamed(request)));
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &converted(&hooks, &["v1"]));
    for turn in 0..KITES_MADE {
        let mut kite = kite(&format!("k{turn}"));
        kite["spec"]["color"] = json!(paint);
        admin.post(KITES, &kite).ok();
    }
    let held = |admin: &mut Client| {
        let page = admin.get("/metrics").text();
        let line = page.lines().find(|line| line.starts_with("pilothouse_list_bytes_inflight ")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let mut reading = admin.raw();
    reading.send(format!("{}\r\n", admin.head("GET", PAINTED, &[])).as_bytes()).unwrap();
    let whole = (KITES_MADE * paint.len()) as f64;
    poll(CAP, || (held(&mut admin) >= whole).then_some(())).expect("its objects are counted");
    drop(reading);
    poll(CAP, || (held(&mut admin) == 0.0).then_some(())).expect("they are given back");
}

#[test]
fn what_is_sent_to_a_webhook_and_comes_back_counts_in_the_budget() {
    let paint = "x".repeat(500 << 10);
    let is_awake = Arc::new(AtomicBool::new(false));
    let wakes = Arc::clone(&is_awake);
    let hooks = HookServer::start("h", move |_, request| {
        poll(CAP, || wakes.load(Ordering::SeqCst).then_some(())).expect("the webhook may answer");
        success(&renamed(request))
    });
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &converted(&hooks, &["v1"]));
    let mut kite = kite("k");
    kite["spec"]["color"] = json!(paint);
    admin.post(KITES, &kite).ok();
    let held = |admin: &mut Client| {
        let page = admin.get("/metrics").text();
        let name = r#"pilothouse_memory_reserved_bytes{budget="request_bodies"}"#;
        let line = page.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let mut reader = admin.again();
    let reading = std::thread::spawn(move || reader.get(&format!("{PAINTED}/k")).status);
    // The decoded object, the copy that is sent, and as much for the response.
    let least = (2 * paint.len()) as f64;
    poll(CAP, || (held(&mut admin) > least).then_some(())).expect("what waits for the webhook is counted");
    is_awake.store(true, Ordering::SeqCst);
    assert_eq!(reading.join().unwrap(), 200);
    poll(CAP, || (held(&mut admin) == 0.0).then_some(())).expect("it is given back");
}

#[test]
fn a_webhook_turns_objects_into_the_version_that_is_asked_for() {
    let hooks = HookServer::start("h", |_, request| success(&renamed(request)));
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &converted(&hooks, &["v9", "v1"]));
    admin.post(KITES, &kite("a")).ok();
    assert!(hooks.asked().is_empty(), "what is stored as it came needs nobody");

    let mut watches =
        [server.admin().watch(PAINTED, ""), server.admin().watch(PAINTED, "labelSelector=x%3Dy")];
    assert_eq!(watches[0].next_of("a")["object"]["spec"], json!({"paint": "red"}));
    let read = admin.get(&format!("{PAINTED}/a")).ok();
    assert_eq!((&read["spec"], &read["apiVersion"]), (&json!({"paint": "red"}), &json!("toys.example/v2")));
    assert_eq!(read["metadata"]["generation"], 1, "metadata stay as they are");
    assert_eq!(hooks.asked().len(), 1, "what was made is kept with the object");
    assert!(hooks.targets()[0].ends_with("/convert?timeout=30s"), "{:?}", hooks.targets());

    let made = admin.post(PAINTED, &painted("b", "blue")).ok();
    assert_eq!(made["spec"], json!({"paint": "blue"}));
    assert_eq!(admin.get(&format!("{KITES}/b")).ok()["spec"], json!({"color": "blue"}));
    assert_eq!(watches[0].next_of("b")["object"]["spec"], json!({"paint": "blue"}));

    let mut changed = made;
    changed["spec"]["paint"] = json!("red");
    changed["metadata"]["labels"] = json!({"x": "y"});
    let updated = admin.put(&format!("{PAINTED}/b"), &changed).ok();
    assert_eq!((&updated["spec"]["paint"], &updated["metadata"]["generation"]), (&json!("red"), &json!(2)));
    let told = watches[0].next_of("b");
    assert_eq!((&told["type"], &told["object"]["spec"]["paint"]), (&json!("MODIFIED"), &json!("red")));
    assert_eq!(watches[1].next_of("b")["type"], "ADDED");
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
    let told = watches[1].next_of("b");
    assert_eq!(
        (&told["type"], &told["object"]["spec"]),
        (&json!("DELETED"), &json!({"paint": "red"})),
        "as it was in the view"
    );
    let refused = admin.patch(&format!("{PAINTED}/b"), MERGE, &json!({"spec": {"size": 0}}));
    refused.refused(422, "Invalid");
    let applied = admin.request(
        "PATCH",
        &format!("{PAINTED}/b?fieldManager=me&force=true"),
        &[("content-type", "application/apply-patch+yaml")],
        painted("b", "green").to_string().as_bytes(),
    );
    assert_eq!(applied.ok()["spec"], json!({"paint": "green", "size": 4}));
    assert_eq!(admin.get(&format!("{KITES}/b")).ok()["spec"], json!({"color": "green", "size": 4}));

    assert_eq!(admin.delete(&format!("{PAINTED}/b")).ok()["status"], "Success");
    let counted = admin.get("/metrics").text();
    assert!(
        counted.contains(r#"apiserver_conversion_webhook_request_total{failure_type="",result="success"}"#)
    );
    let by_definition = r#"apiserver_crd_conversion_webhook_duration_seconds_count{crd_name="kites.toys.example",from_version="v1",succeeded="true",to_version="v2"}"#;
    assert!(counted.contains(by_definition), "{counted}");
    // Connections are kept, and go with what they are for.
    assert!(!counted.contains("pilothouse_connections_kept 0"), "{counted}");
    admin.delete(&format!("{DEFINITIONS}/kites.toys.example")).ok();
    let gone =
        poll(CAP, || admin.get("/metrics").text().contains("pilothouse_connections_kept 0\n").then_some(()));
    assert!(gone.is_some());
}

#[test]
fn a_list_is_converted_at_once() {
    let hooks = HookServer::start("h", |_, request| success(&renamed(request)));
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &converted(&hooks, &["v1"]));
    for name in 0..20 {
        admin.post(KITES, &kite(&format!("many-{name:02}"))).ok();
    }
    admin.post(PAINTED, &painted("other", "green")).ok();
    hooks.forget();
    let listed = admin.get(PAINTED).ok();
    let paints: Vec<&str> =
        listed["items"].as_array().unwrap().iter().map(|one| text(one, "/spec/paint")).collect();
    assert_eq!((paints.len(), paints[0], paints[19], paints[20]), (21, "red", "red", "green"));
    let asked = hooks.asked();
    assert_eq!(
        (asked.len(), asked[0]["objects"].as_array().unwrap().len()),
        (1, 20),
        "all but what is known"
    );
    let rows = admin.request("GET", PAINTED, &[TABLE], b"").ok();
    assert_eq!(rows["rows"].as_array().unwrap().len(), 21);
    assert_eq!(hooks.asked().len(), 1);
}

#[test]
fn field_selectors_select_by_the_fields_of_the_version_that_is_asked_for() {
    let hooks = HookServer::start("h", |_, request| success(&renamed(request)));
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    let mut definition = converted(&hooks, &["v1"]);
    definition["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.color"}]);
    definition["spec"]["versions"][1]["selectableFields"] = json!([{"jsonPath": ".spec.paint"}]);
    define(&mut admin, &definition);
    admin.post(PAINTED, &painted("first", "blue")).ok();
    let blue = "fieldSelector=spec.paint%3Dblue";
    let mut watch = server.admin().watch(PAINTED, blue);
    let told =
        |event: &Value| (text(event, "/type").to_owned(), text(event, "/object/spec/paint").to_owned());
    let event_of = |kind: &str| (kind.to_owned(), "blue".to_owned());
    assert_eq!(told(&watch.next_of("first")), event_of("ADDED"), "from the present state");

    for (name, color) in [("second", "blue"), ("third", "red")] {
        let mut kite = kite(name);
        kite["spec"]["color"] = json!(color);
        admin.post(KITES, &kite).ok();
    }
    assert_eq!(told(&watch.next_of("second")), event_of("ADDED"));
    let mut names = |path: &str, selector: &str| -> Vec<String> {
        let listed = admin.get(&format!("{path}?{selector}")).ok();
        let items = listed["items"].as_array().unwrap();
        items.iter().map(|item| text(item, "/metadata/name").to_owned()).collect()
    };
    assert_eq!(names(PAINTED, blue), ["first", "second"]);
    assert_eq!(names(PAINTED, "fieldSelector=spec.paint!%3Dblue"), ["third"]);
    assert_eq!(names(KITES, "fieldSelector=spec.color%3Dblue"), ["first", "second"]);
    assert_eq!(names(PAINTED, &format!("{blue}&limit=1")), ["first"]);

    // Into the view and out of it.
    let third = format!("{KITES}/third");
    admin.patch(&third, MERGE, &json!({"spec": {"color": "blue"}})).ok();
    assert_eq!(told(&watch.next_of("third")), event_of("ADDED"));
    admin.patch(&third, MERGE, &json!({"spec": {"size": 2}})).ok();
    assert_eq!(told(&watch.next_of("third")), event_of("MODIFIED"));
    admin.patch(&third, MERGE, &json!({"spec": {"color": "red"}})).ok();
    assert_eq!(told(&watch.next_of("third")), event_of("DELETED"));

    let deleted = admin.delete(&format!("{PAINTED}?{blue}")).ok();
    assert_eq!(deleted["items"].as_array().unwrap().len(), 2);
    assert_eq!(told(&watch.next_of("first")), event_of("DELETED"));
    assert_eq!(told(&watch.next_of("second")), event_of("DELETED"));
    let left = admin.get(PAINTED).ok();
    assert_eq!(text(&left["items"][0], "/metadata/name"), "third");
}

/// Who owns a field is known by the name that each version has for it.
#[test]
fn owners_are_compared_in_the_versions_that_they_speak() {
    let hooks = HookServer::start("h", |_, request| success(&renamed(request)));
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &converted(&hooks, &["v1"]));
    let apply = |admin: &mut Client, place: &str, object: &Value, query: &str| {
        let path = format!("{place}/a?{query}");
        admin.request(
            "PATCH",
            &path,
            &[("content-type", "application/apply-patch+yaml")],
            object.to_string().as_bytes(),
        )
    };
    apply(&mut admin, PAINTED, &painted("a", "red"), "fieldManager=painter").ok();
    let mut colored = kite("a");
    colored["spec"] = json!({"color": "blue"});
    let refused = apply(&mut admin, KITES, &colored, "fieldManager=dyer").refused(409, "Conflict");
    assert_eq!(
        text(&refused, "/message"),
        "Apply failed with 1 conflict: conflict with \"painter\": .spec.paint"
    );
    let applied = apply(&mut admin, KITES, &colored, "fieldManager=dyer&force=true").ok();
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
fn a_webhook_that_fails_is_told_of() {
    let hooks = HookServer::start("h", |_, request| match text(request, "/objects/0/metadata/name") {
        "refused" => Deed::Says(json!({"result": {"status": "Failed", "message": "no such paint"}})),
        "fewer" => success(&[]),
        "renamed" => {
            let mut objects = renamed(request);
            objects[0]["metadata"]["name"] = json!("x");
            success(&objects)
        }
        "broken" => Deed::Raw("500 Internal Server Error", "oops".to_owned()),
        _ => success(&renamed(request)),
    });
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &converted(&hooks, &["v1beta1"]));
    for (name, wanted) in [
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
        let answer = admin.get(&format!("{PAINTED}/{name}"));
        assert_eq!((answer.status, text(&answer.json(), "/message")), (500, wanted));
        let told = watch.next();
        assert_eq!((&told["type"], text(&told["object"], "/message")), (&json!("ERROR"), wanted));
        assert_eq!(
            admin.get(&format!("{KITES}/{name}")).ok()["spec"]["color"],
            "red",
            "the stored version needs nobody"
        );
        let refused = admin.put(&format!("{PAINTED}/{name}"), &painted(name, "red"));
        assert_eq!(refused.status, 500);
        admin.delete(&format!("{KITES}/{name}")).ok();
    }
    hooks.kill();
    admin.post(KITES, &kite("b")).ok();
    let answer = admin.get(&format!("{PAINTED}/b"));
    let told = answer.json();
    assert_eq!(answer.status, 500);
    assert!(
        text(&told, "/message").starts_with(
            "conversion webhook for toys.example/v1, Kind=Kite failed: Post \"https://127.0.0.1:"
        ),
        "{told}"
    );
}
