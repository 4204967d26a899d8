//! Custom kinds over HTTP: what a definition defines is served like what is built in.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "custom/conversion.rs"]
mod conversion;
#[path = "admission/hook_server.rs"]
#[allow(dead_code, reason = "the tests of admission use the rest")]
mod hook_server;
#[path = "custom/oddities.rs"]
mod oddities;
mod support;

use serde_json::{Value, json};
use support::compare::text;
use support::kubectl::Kubectl;
use support::server::directory;
use support::wait::{CAP, Deadline, poll};
use support::{Answer, Client, Server};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GROUP: &str = "toys.example";
const KITES: &str = "/apis/toys.example/v1/namespaces/default/kites";
const MERGE: &str = "merge";
const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");

/// What a kite may say.
fn schema() -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["color"], "properties": {
            "color": {"type": "string", "enum": ["red", "blue"], "description": "What it looks like."},
            "size": {"type": "integer", "minimum": 1, "maximum": 10, "default": 3},
            "tails": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"],
                    "properties": {"name": {"type": "string"}, "length": {"type": "integer"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "note": {"type": "string", "nullable": true}}},
        "status": {"type": "object", "properties": {"flying": {"type": "boolean"}, "count": {"type": "integer"}}}}})
}

fn version(name: &str, storage: bool) -> Value {
    json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema()}})
}

fn definition(plural: &str, kind: &str, scope: &str, versions: &[Value]) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {"group": GROUP, "scope": scope, "names": {"plural": plural, "singular": kind.to_lowercase(),
            "kind": kind, "shortNames": [&plural[..2]], "categories": ["all", "toys"]}, "versions": versions}})
}

fn kites() -> Value {
    definition("kites", "Kite", "Namespaced", &[version("v1", true)])
}

fn kite(name: &str) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Kite", "metadata": {"name": name}, "spec": {"color": "red"}})
}

fn condition<'a>(definition: &'a Value, kind: &str) -> Option<&'a Value> {
    definition["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == kind)
}

/// Makes a definition and waits until it says that it is served.
fn define(admin: &mut Client, definition: &Value) -> Value {
    let made = admin.post(DEFINITIONS, definition).ok();
    let path = format!("{DEFINITIONS}/{}", text(&made, "/metadata/name"));
    let served = || {
        let found = admin.get(&path).ok();
        let good = condition(&found, "Established").is_some_and(|one| one["status"] == "True");
        good.then_some(found)
    };
    poll(CAP, served).expect("the definition is established")
}

fn gone(admin: &mut Client, path: &str) {
    poll(CAP, || (admin.get(path).status == 404).then_some(())).expect("it goes");
}

#[test]
fn whoever_finds_a_kind_in_discovery_can_change_its_definition() {
    let server = Server::start();
    let (mut admin, mut other) = (server.admin(), server.admin());
    for number in 0..30 {
        let plural = format!("toy{number}s");
        let mut wanted = definition(&plural, &format!("Toy{number}"), "Namespaced", &[version("v1", true)]);
        // Each would want the same ones.
        wanted["spec"]["names"]["shortNames"] = json!([]);
        admin.post(DEFINITIONS, &wanted).ok();
        let listed = || {
            let found = other.get(&format!("/apis/{GROUP}/v1"));
            let lists =
                |list: Value| list["resources"].as_array().unwrap().iter().any(|one| one["name"] == *plural);
            (found.status == 200 && lists(found.json())).then_some(())
        };
        poll(CAP, listed).expect("the kind is in discovery");
        let path = format!("{DEFINITIONS}/{plural}.{GROUP}");
        let mut found = admin.get(&path).ok();
        assert_eq!(
            condition(&found, "Established").map(|one| &one["status"]),
            Some(&json!("True")),
            "{number}"
        );
        found["spec"]["names"]["categories"] = json!(["toys"]);
        admin.put(&path, &found).ok();
    }
}

#[test]
fn whoever_reads_that_a_kind_is_established_finds_it_served() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    assert_eq!(admin.get(KITES).text(), "404 page not found\n");
    for scope in ["Namespaced", "Cluster"] {
        let (plural, kind) = if scope == "Cluster" { ("suns", "Sun") } else { ("kites", "Kite") };
        let defined = define(&mut admin, &definition(plural, kind, scope, &[version("v1", true)]));
        let conditions: Vec<&str> = defined["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| text(one, "/type"))
            .collect();
        assert_eq!(conditions, ["NamesAccepted", "Established"]);
        assert_eq!(defined["status"]["acceptedNames"], defined["spec"]["names"]);
        assert_eq!(defined["status"]["storedVersions"], json!(["v1"]));
        let place = match scope {
            "Cluster" => format!("/apis/{GROUP}/v1/suns"),
            _ => KITES.to_owned(),
        };
        let mut watch = server.admin().watch(&place, "");
        let object = |name: &str| {
            json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name},
            "spec": {"color": "red", "size": 2, "free": {"x": [1, null, 2.5]}}, "status": {"flying": true}})
        };
        let made = admin.post(&place, &object("a")).ok();
        assert_eq!(
            (&made["metadata"]["generation"], &made["spec"]["free"]),
            (&json!(1), &json!({"x": [1, null, 2.5]}))
        );
        assert_eq!(watch.next_of("a")["type"], "ADDED");
        let path = format!("{place}/a");
        let mut read = admin.get(&path).ok();
        assert_eq!(read, made);
        read["spec"]["size"] = json!(0);
        let told = admin.put(&path, &read).refused(422, "Invalid");
        assert!(text(&told, "/message").ends_with(
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"
        ));
        read["spec"]["size"] = json!(7);
        let changed = admin.put(&path, &read).ok();
        assert_eq!(changed["metadata"]["generation"], 2);
        assert_eq!(watch.next_of("a")["object"]["spec"]["size"], 7);
        let merged = admin.patch(&path, MERGE, &json!({"spec": {"free": null, "color": "blue"}})).ok();
        assert_eq!(merged["spec"], json!({"color": "blue", "size": 7}));
        let patch = json!([{"op": "replace", "path": "/spec/size", "value": 9}]);
        assert_eq!(admin.patch(&path, "json", &patch).ok()["spec"]["size"], 9);
        let refused = admin.patch(&path, "strategic-merge", &json!({})).refused(415, "UnsupportedMediaType");
        assert!(text(&refused, "/message").contains("application/merge-patch+json"), "{refused}");
        let applied = object("b");
        let query = format!("{place}/b?fieldManager=me&fieldValidation=Strict");
        let headers = [("content-type", "application/apply-patch+yaml")];
        let applied = admin.request("PATCH", &query, &headers, applied.to_string().as_bytes());
        assert_eq!(applied.status, 201, "{}", applied.text());
        let all = admin.get(&place).ok();
        assert_eq!(
            (text(&all, "/kind"), text(&all, "/items/0/kind")),
            (format!("{kind}List").as_str(), kind)
        );
        assert_eq!(all["metadata"]["continue"], "");
        admin.delete(&path).ok();
        admin.get(&path).refused(404, "NotFound");
        admin.delete(&place).ok();
        assert_eq!(admin.get(&place).ok()["items"], json!([]));
        // Who means the one that was there is told that it is another one.
        admin.put(&path, &read).refused(409, "Conflict");
        read["metadata"].as_object_mut().unwrap().remove("uid");
        admin.put(&path, &read).refused(404, "NotFound");
    }
    let group = admin.get(&format!("/apis/{GROUP}")).ok();
    assert_eq!(group["preferredVersion"]["groupVersion"], format!("{GROUP}/v1"));
    let listed = admin.get(&format!("/apis/{GROUP}/v1")).ok();
    let names: Vec<&str> =
        listed["resources"].as_array().unwrap().iter().map(|one| text(one, "/name")).collect();
    assert_eq!(names, ["kites", "suns"]);
    let accept = ("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let whole = admin.request("GET", "/apis", &[accept], b"").ok();
    assert!(whole["items"].as_array().unwrap().iter().any(|one| one["metadata"]["name"] == GROUP));
    // A path of the other scope, and kinds that nobody defined.
    for path in [
        format!("/apis/{GROUP}/v1/namespaces/default/suns"),
        format!("/apis/{GROUP}/v1/nope"),
        format!("/apis/{GROUP}/v2/kites"),
    ] {
        assert_eq!(admin.get(&path).text(), "404 page not found\n", "{path}");
    }
}

#[test]
fn unknown_fields_are_told_as_the_client_wishes() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let mut odd = kite("odd");
    odd["spec"]["nope"] = json!(1);
    odd["spec"]["tails"] = json!([{"name": "a", "knots": 1}]);
    odd["metadata"]["nope"] = json!(1);
    let strict = admin.post(&format!("{KITES}?fieldValidation=Strict"), &odd).refused(400, "BadRequest");
    assert_eq!(
        text(&strict, "/message"),
        r#"Kite in version "v1" cannot be handled as a Kite: strict decoding error: unknown field "metadata.nope", unknown field "spec.nope", unknown field "spec.tails[0].knots""#
    );
    let warned = admin.post(KITES, &odd);
    assert_eq!(warned.warnings().len(), 3, "{:?}", warned.warnings());
    assert_eq!(warned.ok()["spec"], json!({"color": "red", "size": 3, "tails": [{"name": "a"}]}));
    admin.delete(&format!("{KITES}/odd")).ok();
    let silent = admin.post(&format!("{KITES}?fieldValidation=Ignore"), &odd);
    assert!(silent.warnings().is_empty());
    let twice = br#"{"apiVersion":"toys.example/v1","kind":"Kite","metadata":{"name":"t"},"spec":{"color":"red","color":"blue"}}"#;
    let json = ("content-type", "application/json");
    let strict = admin.request("POST", &format!("{KITES}?fieldValidation=Strict"), &[json], twice);
    assert!(strict.text().contains(r#"duplicate field \"spec.color\""#), "{}", strict.text());
    // What it says of itself must be right.
    let mut other = kite("other");
    other["kind"] = json!("Bird");
    let told = admin.post(KITES, &other).refused(422, "Invalid");
    assert!(text(&told, "/message").ends_with(r#"kind: Invalid value: "Bird": must be Kite"#), "{told}");
    other["apiVersion"] = json!("toys.example/v9");
    let told = admin.post(KITES, &other).refused(400, "BadRequest");
    assert!(
        text(&told, "/message").contains("does not match the expected API version (toys.example/v1)"),
        "{told}"
    );
    other.as_object_mut().unwrap().remove("kind");
    admin.post(KITES, &other).refused(400, "BadRequest");
    let mut wrong = kite("wrong");
    wrong["metadata"]["labels"] = json!("x");
    let told = admin.post(KITES, &wrong).refused(400, "BadRequest");
    assert!(
        text(&told, "/message").contains("into Go struct field ObjectMeta.labels of type map[string]string"),
        "{told}"
    );
    let odd = ("metadata.finalizers", "x.example");
    let mut held = kite("held");
    held["metadata"]["finalizers"] = json!([odd.1]);
    assert!(
        admin.post(KITES, &held).warnings()[0]
            .contains("prefer a domain-qualified finalizer name including a path (/)")
    );
}

#[test]
fn a_definition_that_changes_changes_what_is_read_and_asks_nothing_of_what_was_wrong() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    admin.post(KITES, &kite("a")).ok();
    let mut watch = server.admin().watch(KITES, "");
    assert_eq!(watch.next_of("a")["type"], "ADDED");
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let mut changed = admin.get(&path).ok();
    let spec = &mut changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["properties"]["color"]["enum"] = json!(["green"]);
    spec["properties"]["string"] = json!({"type": "string", "default": "long"});
    spec["properties"].as_object_mut().unwrap().remove("size");
    admin.put(&path, &changed).ok();
    // The watch ends: what it would tell is another thing now.
    let end = Deadline::after(CAP);
    while watch.attempt(end).expect("a clean end").is_some() {}
    let read =
        poll(CAP, || Some(admin.get(&format!("{KITES}/a")).ok()).filter(|it| it["spec"]["string"] == "long"));
    let mut read = read.expect("what is read follows the definition");
    assert_eq!(read["spec"], json!({"color": "red", "string": "long"}));
    // A colour that is no longer one may stay, but nobody can choose it.
    read["metadata"]["labels"] = json!({"a": "b"});
    read["spec"]["note"] = json!("hm");
    let kept = admin.put(&format!("{KITES}/a"), &read).ok();
    assert_eq!((&kept["spec"]["color"], &kept["metadata"]["generation"]), (&json!("red"), &json!(2)));
    let told = admin
        .patch(&format!("{KITES}/a"), MERGE, &json!({"spec": {"color": "blue"}}))
        .refused(422, "Invalid");
    assert!(
        text(&told, "/message").contains(r#"Unsupported value: "blue": supported values: "green""#),
        "{told}"
    );
    admin.post(KITES, &kite("b")).refused(422, "Invalid");
    let nulled = admin
        .patch(
            &format!("{KITES}/a"),
            "json",
            &json!([{"op": "replace", "path": "/spec/note", "value": null}]),
        )
        .ok();
    assert_eq!(nulled["spec"].get("note"), Some(&Value::Null), "a null may be said where it may be");
}

#[test]
fn what_was_wrong_before_may_stay_where_a_schema_can_tell_that_it_did() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let mut free = kite("free");
    free["spec"]["free"] = json!({"x": 1});
    admin.post(KITES, &free).ok();
    admin.post(KITES, &kite("plain")).ok();
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let mut changed = admin.get(&path).ok();
    let root = &mut changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    root["properties"]["spec"]["minProperties"] = json!(5);
    admin.put(&path, &changed).ok();
    poll(CAP, || (admin.post(&format!("{KITES}?dryRun=All"), &kite("c")).status == 422).then_some(()))
        .unwrap();
    let label = |admin: &mut Client, name: &str| {
        admin.patch(&format!("{KITES}/{name}"), MERGE, &json!({"metadata": {"labels": {"a": "b"}}}))
    };
    label(&mut admin, "plain").ok();
    let told = label(&mut admin, "free").refused(422, "Invalid");
    let wanted = "spec: Invalid value: 3: spec in body should have at least 5 properties";
    assert!(text(&told, "/message").ends_with(wanted), "{told}");

    // Metadata is not described: an object counts as changed even if nothing is.
    let mut changed = admin.get(&path).ok();
    let root = &mut changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    root["required"] = json!(["top"]);
    admin.put(&path, &changed).ok();
    let same = admin.get(&format!("{KITES}/plain")).ok();
    let refused = || Some(admin.put(&format!("{KITES}/plain"), &same)).filter(|answer| answer.status == 422);
    let told = poll(CAP, refused).unwrap().refused(422, "Invalid");
    assert!(text(&told, "/message").ends_with("top: Required value"), "{told}");
}

#[test]
fn versions_share_their_objects() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    let mut old = version("v1alpha1", false);
    old["deprecated"] = json!(true);
    let mut hidden = version("v1beta1", false);
    hidden["served"] = json!(false);
    define(&mut admin, &definition("kites", "Kite", "Namespaced", &[old, hidden, version("v1", true)]));
    let alpha = format!("/apis/{GROUP}/v1alpha1/namespaces/default/kites");
    let mut object = kite("a");
    object["apiVersion"] = json!(format!("{GROUP}/v1alpha1"));
    let made = admin.post(&alpha, &object);
    assert_eq!(made.warnings(), [format!("{GROUP}/v1alpha1 Kite is deprecated; use {GROUP}/v1 Kite")]);
    let made = made.ok();
    let read = admin.get(&format!("{KITES}/a")).ok();
    assert_eq!(
        (text(&read, "/apiVersion"), &read["metadata"]["uid"]),
        ("toys.example/v1", &made["metadata"]["uid"])
    );
    assert_eq!(text(&read, "/metadata/managedFields/0/apiVersion"), "toys.example/v1alpha1");
    let mut watch = server.admin().watch(&alpha, "");
    assert_eq!(text(&watch.next_of("a"), "/object/apiVersion"), "toys.example/v1alpha1");
    assert_eq!(admin.get(&format!("/apis/{GROUP}/v1beta1/kites")).text(), "404 page not found\n");
    let group = admin.get(&format!("/apis/{GROUP}")).ok();
    let versions: Vec<&str> =
        group["versions"].as_array().unwrap().iter().map(|one| text(one, "/version")).collect();
    assert_eq!(versions, ["v1", "v1alpha1"]);
    // A version that is no longer served is not there, and its watches end.
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let patch = json!([{"op": "replace", "path": "/spec/versions/0/served", "value": false}]);
    admin.patch(&path, "json", &patch).ok();
    let end = Deadline::after(CAP);
    while watch.attempt(end).expect("a clean end").is_some() {}
    gone(&mut admin, &alpha);
    assert_eq!(admin.get(&format!("{KITES}/a")).ok()["spec"], read["spec"]);
}

#[test]
fn custom_objects_have_all_forms_but_protobuf() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    let mut with_columns = kites();
    let columns = json!([{"name": "Color", "type": "string", "jsonPath": ".spec.color"},
        {"name": "First tail", "type": "integer", "jsonPath": ".spec.tails[?(@.name==\"a\")].length", "priority": 1}]);
    with_columns["spec"]["versions"][0]["additionalPrinterColumns"] = columns;
    with_columns["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.color"}]);
    define(&mut admin, &with_columns);
    let yaml = b"apiVersion: toys.example/v1\nkind: Kite\nmetadata:\n  name: yam\nspec:\n  color: blue\n  tails:\n  - name: a\n    length: 4\n";
    let made = admin.request("POST", KITES, &[("content-type", "application/yaml")], yaml).ok();
    assert_eq!(made["spec"]["size"], 3);
    admin.post(KITES, &kite("z")).ok();
    let shown = admin.request("GET", &format!("{KITES}/yam"), &[("accept", "application/yaml")], b"").text();
    assert!(shown.contains("kind: Kite\n") && shown.contains("  color: blue\n"), "{shown}");
    let table = admin.request("GET", KITES, &[TABLE], b"").ok();
    let names: Vec<&str> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|one| text(one, "/name")).collect();
    assert_eq!(names, ["Name", "Color", "First tail"]);
    assert_eq!(table["rows"][0]["cells"], json!(["yam", "blue", 4]));
    assert_eq!(table["rows"][1]["cells"], json!(["z", "red", null]));
    let protobuf = "application/vnd.kubernetes.protobuf";
    let refused = admin.request("GET", &format!("{KITES}/yam"), &[("accept", protobuf)], b"");
    assert_eq!(refused.status, 406, "{}", refused.text());
    let both = format!("{protobuf}, application/json");
    let shown = admin.request("GET", &format!("{KITES}/yam"), &[("accept", &both)], b"");
    assert_eq!(shown.header("content-type"), Some("application/json"));
    let meta = format!("{protobuf};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    let meta = admin.request("GET", KITES, &[("accept", &meta)], b"");
    assert_eq!((meta.status, meta.header("content-type")), (200, Some(protobuf)));
    let body = admin.request("POST", KITES, &[("content-type", protobuf)], b"k8s\0");
    assert_eq!(body.status, 400, "{}", body.text());
    let chosen = admin.get(&format!("{KITES}?fieldSelector=spec.color%3Dblue")).ok();
    assert_eq!(chosen["items"].as_array().unwrap().len(), 1);
    let told = admin.get(&format!("{KITES}?fieldSelector=spec.size%3D3")).refused(400, "BadRequest");
    assert_eq!(text(&told, "/message"), "field label not supported: spec.size");
}

#[test]
fn names_belong_to_one_definition_of_a_group() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let second = definition("birds", "Kite", "Namespaced", &[version("v1", true)]);
    admin.post(DEFINITIONS, &second).ok();
    let path = format!("{DEFINITIONS}/birds.{GROUP}");
    let told =
        poll(CAP, || condition(&admin.get(&path).ok(), "NamesAccepted").cloned()).expect("it is judged");
    assert_eq!((text(&told, "/status"), text(&told, "/reason")), ("False", "ListKindConflict"));
    assert_eq!(text(&told, "/message"), r#""KiteList" is already in use"#);
    assert_eq!(admin.get(&format!("/apis/{GROUP}/v1/birds")).text(), "404 page not found\n");
    // One that never was served goes at once, and one whose names are free again is served.
    admin.delete(&format!("{DEFINITIONS}/kites.{GROUP}")).ok();
    gone(&mut admin, &format!("{DEFINITIONS}/kites.{GROUP}"));
    let served = || (admin.get(&format!("/apis/{GROUP}/v1/birds")).status == 200).then_some(());
    poll(CAP, served).expect("the names are free");
}

#[test]
fn a_definition_waits_for_its_objects() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let mut held = kite("held");
    held["metadata"]["finalizers"] = json!(["toys.example/hand"]);
    admin.post(KITES, &held).ok();
    admin.post(KITES, &kite("free")).ok();
    let mut watch = server.admin().watch(KITES, "");
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let going = admin.delete(&path).ok();
    assert_eq!(going["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    assert_eq!(text(condition(&going, "Terminating").unwrap(), "/reason"), "InstanceDeletionPending");
    loop {
        let event = watch.next_of("free");
        if event["type"] == "DELETED" {
            break;
        }
    }
    let refused = poll(CAP, || Some(admin.post(KITES, &kite("late"))).filter(|answer| answer.status == 405));
    let told = refused.expect("nothing new is made").refused(405, "MethodNotAllowed");
    assert_eq!(text(&told, "/message"), "create not allowed while custom resource definition is terminating");
    let left = admin.get(KITES).ok();
    assert_eq!(
        left["items"].as_array().unwrap().iter().map(|one| text(one, "/metadata/name")).collect::<Vec<_>>(),
        ["held"]
    );
    let marked = || {
        admin.get(&format!("{KITES}/held")).ok()["metadata"]["deletionTimestamp"].is_string().then_some(())
    };
    poll(CAP, marked).expect("what is held is told to go");
    let condition = condition(&admin.get(&path).ok(), "Terminating").cloned().unwrap();
    assert_eq!(text(&condition, "/reason"), "InstanceDeletionInProgress");
    admin.patch(&format!("{KITES}/held"), MERGE, &json!({"metadata": {"finalizers": null}})).ok();
    gone(&mut admin, &path);
    let end = Deadline::after(CAP);
    while watch.attempt(end).expect("a clean end").is_some() {}
    assert_eq!(admin.get(KITES).text(), "404 page not found\n");
    // The same once more, and nothing of before is there.
    define(&mut admin, &kites());
    assert_eq!(admin.get(KITES).ok()["items"], json!([]));
}

#[test]
fn watches_tell_of_every_object_that_goes_with_its_definition() {
    const MANY: usize = 300;
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    for number in 0..MANY {
        admin.post(KITES, &kite(&format!("k{number}"))).ok();
    }
    let version = text(&admin.get(KITES).ok(), "/metadata/resourceVersion").to_owned();
    let mut watch = server.admin().watch(KITES, &format!("resourceVersion={version}"));
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    admin.delete(&path).ok();
    gone(&mut admin, &path);
    // Nobody can watch the kind again to hear of the rest.
    let end = Deadline::after(CAP);
    let mut told = 0;
    while let Some(event) = watch.attempt(end).expect("a clean end") {
        told += usize::from(event["type"] == "DELETED");
    }
    assert_eq!(told, MANY);
}

#[test]
fn a_definition_that_goes_holds_up_no_other() {
    const MANY: usize = 400;
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    std::thread::scope(|scope| {
        for part in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let mut admin = server.admin();
                for at in 0..MANY / 4 {
                    admin.post(KITES, &kite(&format!("k{part}-{at}"))).ok();
                }
            });
        }
    });
    let mut held = kite("held");
    held["metadata"]["finalizers"] = json!(["toys.example/hand"]);
    admin.post(KITES, &held).ok();
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    admin.delete(&path).ok();
    define(&mut admin, &definition("suns", "Sun", "Cluster", &[version("v1", true)]));
    let all_but_one = || (admin.get(KITES).ok()["items"].as_array().unwrap().len() == 1).then_some(());
    poll(CAP, all_but_one).expect("they go");
    define(&mut admin, &definition("moons", "Moon", "Cluster", &[version("v1", true)]));
    // What is held comes under another schema meanwhile; it goes as soon as nobody holds it.
    admin.patch(&format!("{KITES}/held"), MERGE, &json!({"metadata": {"finalizers": null}})).ok();
    gone(&mut admin, &path);
}

#[test]
fn what_a_definition_leaves_is_let_go_and_versions_of_before_are_refused() {
    let folder = directory();
    let data = folder.path().join("data");
    let server = Server::on(&data, &[]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let version_of = |value: &Value| text(value, "/metadata/resourceVersion").parse::<u64>().unwrap();
    let first = version_of(&admin.post(KITES, &kite("a")).ok());
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    admin.delete(&path).ok();
    gone(&mut admin, &path);
    define(&mut admin, &definition("suns", "Sun", "Cluster", &[version("v1", true)]));
    admin.get(&format!("/apis/{GROUP}/v1/suns")).ok();
    // The history stays for a while for the watches that end. Whoever was about to look at the store may start it again.
    let counts = || {
        let told = server.admin().get("/metrics").text();
        assert!(told.contains("suns.toys.example"), "a store that is there is counted");
        (!told.contains("kites.toys.example")).then_some(())
    };
    let left = || {
        let told = server.admin().get("/metrics").text();
        told.lines().filter(|line| line.contains("kites.toys.example")).collect::<Vec<_>>().join("\n")
    };
    // A store that somebody starts again is let go with the next turn of the timer.
    poll(3 * CAP, counts).unwrap_or_else(|| panic!("one that is not is not:\n{}", left()));
    let check = |server: &Server, after: u64| {
        let mut admin = server.admin();
        let list = admin.get(KITES).ok();
        assert_eq!(list["items"], json!([]));
        assert!(version_of(&list) > after, "versions go on");
        let mut watch = server.admin().watch(KITES, &format!("resourceVersion={after}"));
        let told = watch.next();
        assert_eq!((&told["type"], &told["object"]["code"]), (&json!("ERROR"), &json!(410)), "{told}");
    };
    define(&mut admin, &kites());
    check(&server, first);
    let second = version_of(&admin.post(KITES, &kite("a")).ok());
    assert!(second > first + 1);
    admin.delete(&path).ok();
    gone(&mut admin, &path);
    poll(CAP, counts).expect("it is let go again");
    // The second one is written after what the store of the kites has let go of: so that is on disk, too.
    define(&mut admin, &definition("stars", "Star", "Cluster", &[version("v1", true)]));
    define(&mut admin, &definition("hills", "Hill", "Cluster", &[version("v1", true)]));
    server.kill();
    let server = Server::on(&data, &[]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    check(&server, second);
    admin.post(KITES, &kite("a")).ok();
}

#[test]
fn the_version_that_is_stored_says_what_objects_leave_out() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    let mut other = version("v2", false);
    let spec = &mut other["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    spec["size"]["default"] = json!(9);
    spec["string"] = json!({"type": "string", "default": "long"});
    spec.as_object_mut().unwrap().remove("note");
    define(&mut admin, &definition("kites", "Kite", "Namespaced", &[version("v1", true), other]));
    let second = KITES.replace("/v1/", "/v2/");
    let mut noted = kite("a");
    noted["spec"]["note"] = json!("hm");
    admin.post(KITES, &noted).ok();
    // Shown in the second: what the first fills in, without what the second does not know, and nothing that it would fill in.
    assert_eq!(admin.get(&format!("{second}/a")).ok()["spec"], json!({"color": "red", "size": 3}));
    // Made in the second: it fills in what is its own; what the first does not know is not stored.
    let mut made = kite("b");
    made["apiVersion"] = json!("toys.example/v2");
    let made = admin.post(&second, &made).ok();
    assert_eq!(made["spec"], json!({"color": "red", "size": 9}));
    assert_eq!(admin.get(&format!("{KITES}/b")).ok()["spec"], json!({"color": "red", "size": 9}));
    // Stored in the second from now on: objects of before are still those of the first.
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let turn = json!([{"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true}]);
    let turned = admin.patch(&path, "json", &turn).ok();
    assert_eq!(turned["status"]["storedVersions"], json!(["v1", "v2"]));
    let mut third = kite("c");
    third["apiVersion"] = json!("toys.example/v2");
    let stored = || {
        let made = admin.post(&second, &third).ok();
        if made["spec"]["string"] == "long" {
            return Some(());
        }
        admin.delete(&format!("{second}/c")).ok();
        None
    };
    poll(CAP, stored).expect("the second is stored");
    assert_eq!(
        admin.get(&format!("{KITES}/a")).ok()["spec"],
        json!({"color": "red", "size": 3, "note": "hm"})
    );
    assert_eq!(admin.get(&format!("{second}/a")).ok()["spec"], json!({"color": "red", "size": 3}));
    assert_eq!(admin.get(&format!("{KITES}/c")).ok()["spec"], json!({"color": "red", "size": 9}));
}

#[test]
fn fields_become_selectable_for_what_is_stored_already() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    admin.post(KITES, &kite("a")).ok();
    let mut blue = kite("b");
    blue["spec"]["color"] = json!("blue");
    admin.post(KITES, &blue).ok();
    let selected = format!("{KITES}?fieldSelector=spec.color%3Dblue");
    admin.get(&selected).refused(400, "BadRequest");
    let fields = json!([{"op": "add", "path": "/spec/versions/0/selectableFields",
        "value": [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}]}]);
    admin.patch(&format!("{DEFINITIONS}/kites.{GROUP}"), "json", &fields).ok();
    let found = poll(CAP, || Some(admin.get(&selected)).filter(|answer| answer.status == 200));
    let names = |list: &Value| -> Vec<String> {
        list["items"].as_array().unwrap().iter().map(|one| text(one, "/metadata/name").to_owned()).collect()
    };
    assert_eq!(names(&found.expect("it can be selected by").ok()), ["b"]);
    // Also by what nobody said and the schema fills in, and by what is not.
    let both = admin.get(&format!("{KITES}?fieldSelector=spec.size%3D3,spec.color!%3Dred")).ok();
    assert_eq!(names(&both), ["b"]);
    let mut watch = server.admin().watch(KITES, "fieldSelector=spec.color%3Dblue");
    let told = watch.next();
    assert_eq!((&told["type"], text(&told, "/object/metadata/name")), (&json!("ADDED"), "b"));
    admin.patch(&format!("{KITES}/a"), MERGE, &json!({"spec": {"color": "blue"}})).ok();
    let told = watch.next();
    assert_eq!((&told["type"], text(&told, "/object/metadata/name")), (&json!("ADDED"), "a"));
    admin.patch(&format!("{KITES}/b"), MERGE, &json!({"spec": {"color": "red"}})).ok();
    let told = watch.next();
    assert_eq!((&told["type"], text(&told, "/object/metadata/name")), (&json!("DELETED"), "b"));
}

#[test]
fn a_definition_beside_a_built_in_kind_has_objects_of_its_own() {
    const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    admin.post(POLICIES, &json!({"metadata": {"name": "real"}, "spec": {"podSelector": {}}})).ok();
    let mut beside = definition("networkpolicies", "NetworkPolicy", "Namespaced", &[version("v99", true)]);
    beside["metadata"] = json!({"name": "networkpolicies.networking.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}});
    beside["spec"]["group"] = "networking.k8s.io".into();
    let made = admin.post(DEFINITIONS, &beside).ok();
    let path = format!("{DEFINITIONS}/{}", text(&made, "/metadata/name"));
    let custom = POLICIES.replace("/v1/", "/v99/");
    let shown = poll(CAP, || Some(admin.get(&custom)).filter(|answer| answer.status == 200));
    assert_eq!(shown.expect("it is served").ok()["items"], json!([]));
    admin.delete(&path).ok();
    gone(&mut admin, &path);
    assert_eq!(admin.get(POLICIES).ok()["items"].as_array().unwrap().len(), 1);
}

#[test]
fn objects_that_no_version_serves_go_with_their_definition() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    admin.post(KITES, &kite("hidden")).ok();
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let hide = json!([{"op": "replace", "path": "/spec/versions/0/served", "value": false}]);
    admin.patch(&path, "json", &hide).ok();
    poll(CAP, || (admin.get(KITES).status == 404).then_some(())).expect("it is served no more");
    admin.delete(&path).ok();
    gone(&mut admin, &path);
    define(&mut admin, &kites());
    assert_eq!(admin.get(KITES).ok()["items"], json!([]));
}

#[test]
fn what_was_defined_is_there_after_a_crash() {
    let folder = directory();
    let data = folder.path().join("data");
    let server = Server::on(&data, &[]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let made = admin.post(KITES, &kite("a")).ok();
    server.kill();
    let server = Server::on(&data, &[]);
    // Ready means that it is served: the first request finds it.
    let read = server.admin().get(&format!("{KITES}/a")).ok();
    assert_eq!(read, made);
}

#[test]
fn rights_and_quotas_know_custom_kinds() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r", "namespace": "default"},
        "rules": [{"apiGroups": [GROUP], "resources": ["kites"], "verbs": ["get", "create"]}]});
    admin.post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", &role).ok();
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "r", "namespace": "default"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "kid"}]});
    admin.post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", &binding).ok();
    let kid = ("impersonate-user", "kid");
    let json = ("content-type", "application/json");
    let made = admin.request("POST", KITES, &[kid, json], kite("a").to_string().as_bytes());
    assert_eq!(made.status, 201, "{}", made.text());
    assert_eq!(admin.request("GET", KITES, &[kid], b"").status, 403);
    assert_eq!(admin.request("GET", &format!("{KITES}/a"), &[kid], b"").status, 200);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"count/kites.toys.example": "1"}}});
    admin.post("/api/v1/namespaces/default/resourcequotas", &quota).ok();
    let counted = json!({"status": {"hard": {"count/kites.toys.example": "1"}, "used": {"count/kites.toys.example": "1"}}});
    admin.patch("/api/v1/namespaces/default/resourcequotas/q/status", MERGE, &counted).ok();
    let told = admin.post(KITES, &kite("b")).refused(403, "Forbidden");
    assert!(text(&told, "/message").contains("exceeded quota: q"), "{told}");
    admin.post(&format!("/apis/{GROUP}/v1/namespaces/nowhere/kites"), &kite("c")).refused(404, "NotFound");
}

#[test]
fn loops_look_after_kinds_that_were_defined_while_they_ran() {
    let server = Server::with(&["--controllers=*", "--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "sky"}})).ok();
    let sky = format!("/apis/{GROUP}/v1/namespaces/sky/kites");
    let owner = admin.post(&sky, &kite("owner")).ok();
    let owned_by = |uid: &Value, api: &str, kind: &str, name: &str| json!([{"apiVersion": api, "kind": kind, "name": name, "uid": uid}]);
    let map = json!({"metadata": {"name": "m", "ownerReferences":
        owned_by(&owner["metadata"]["uid"], "toys.example/v1", "Kite", "owner")}});
    let map = admin.post("/api/v1/namespaces/sky/configmaps", &map).ok();
    let mut below = kite("below");
    below["metadata"]["ownerReferences"] = owned_by(&map["metadata"]["uid"], "v1", "ConfigMap", "m");
    admin.post(&sky, &below).ok();
    admin.delete(&format!("{sky}/owner")).ok();
    gone(&mut admin, "/api/v1/namespaces/sky/configmaps/m");
    gone(&mut admin, &format!("{sky}/below"));
    // Everything goes with its namespace, and what is held holds it.
    let mut held = kite("held");
    held["metadata"]["finalizers"] = json!(["toys.example/hand"]);
    admin.post(&sky, &held).ok();
    admin.post(&sky, &kite("plain")).ok();
    admin.delete("/api/v1/namespaces/sky").ok();
    gone(&mut admin, &format!("{sky}/plain"));
    // The definition goes too, and waits for the same object.
    admin.delete(&format!("{DEFINITIONS}/kites.{GROUP}")).ok();
    let told = || {
        let namespace = admin.get("/api/v1/namespaces/sky").ok();
        let conditions = namespace["status"]["conditions"].as_array()?.clone();
        conditions
            .into_iter()
            .find(|one| one["type"] == "NamespaceFinalizersRemaining" && one["status"] == "True")
    };
    let told = poll(CAP, told).expect("it is said what the namespace waits for");
    assert!(text(&told, "/message").contains("toys.example/hand in 1 resource instances"), "{told}");
    admin.patch(&format!("{sky}/held"), MERGE, &json!({"metadata": {"finalizers": null}})).ok();
    gone(&mut admin, "/api/v1/namespaces/sky");
    gone(&mut admin, &format!("{DEFINITIONS}/kites.{GROUP}"));
}

#[test]
fn kubectl_knows_custom_kinds() {
    let server = Server::with(&["--engine=memory"]);
    define(&mut server.admin(), &kites());
    let kubectl = Kubectl::new(&server);
    let file = kubectl.home.path().join("kite.json");
    std::fs::write(&file, kite("a").to_string()).unwrap();
    let file = file.to_str().unwrap();
    assert!(kubectl.run(&["apply", "-f", file]).contains("kite.toys.example/a created"));
    assert!(kubectl.run(&["apply", "-f", file]).contains("unchanged"));
    assert!(
        kubectl
            .run(&["apply", "--server-side", "--force-conflicts", "-f", file])
            .contains("serverside-applied")
    );
    assert!(kubectl.run(&["get", "ki"]).contains("AGE"), "by its short name");
    assert!(kubectl.run(&["get", "all"]).contains("kite.toys.example/a"), "by a category");
    assert!(kubectl.run(&["api-resources", "--api-group", GROUP]).contains("kites"));
    let explained = kubectl.run(&["explain", "kites.spec.color"]);
    assert!(explained.contains("What it looks like."), "{explained}");
    assert!(kubectl.run(&["explain", "kites"]).contains("KIND:       Kite"));
    let mut odd = kite("odd");
    odd["spec"]["nope"] = json!(1);
    std::fs::write(file, odd.to_string()).unwrap();
    let refused = kubectl.try_run(&["create", "-f", file]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("unknown field \"spec.nope\""));
    assert!(
        kubectl
            .run(&["patch", "kite", "a", "--type=merge", "-p", r#"{"spec":{"size":5}}"#])
            .contains("patched")
    );
    assert!(kubectl.run(&["delete", "kites", "--all"]).contains("deleted"));
    assert!(kubectl.run(&["delete", "crd", "kites.toys.example"]).contains("deleted"));
}

/// Kites whose rules say how long tails may be, and that colors stay.
fn ruled() -> Value {
    let mut version = version("v1", true);
    version["subresources"] = json!({"status": {}});
    let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["x-kubernetes-validations"] = json!([
        {"rule": "self.color == oldSelf.color", "message": "a kite keeps its color", "fieldPath": ".color",
            "reason": "FieldValueForbidden"},
        {"rule": "!has(self.note) || self.note.size() <= self.size", "message": "too long",
            "messageExpression": "'a note of %d is too long for a size of %d'.format([self.note.size(), self.size])"}]);
    spec["properties"]["note"]["maxLength"] = json!(100);
    spec["properties"]["tails"]["items"]["x-kubernetes-validations"] =
        json!([{"rule": "!has(self.length) || self.length < 100"}]);
    spec["properties"]["tails"]["maxItems"] = json!(10);
    version["schema"]["openAPIV3Schema"]["properties"]["status"]["x-kubernetes-validations"] =
        json!([{"rule": "!has(self.count) || self.count >= 0", "message": "no debts"}]);
    definition("kites", "Kite", "Namespaced", &[version])
}

#[test]
fn rules_decide_over_objects() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &ruled());
    let with = |spec: Value| {
        let mut object = kite("a");
        object["spec"] = spec;
        object
    };
    let refused = |answer: &Answer| -> (u16, Vec<String>) {
        let causes = answer.json()["details"]["causes"].as_array().cloned().unwrap_or_default();
        let told = |cause: &Value| format!("{}: {}", text(cause, "/field"), text(cause, "/message"));
        (answer.status, causes.iter().map(told).collect())
    };
    let long =
        with(json!({"color": "red", "size": 2, "note": "hello", "tails": [{"name": "t", "length": 100}]}));
    assert_eq!(
        refused(&admin.post(KITES, &long)),
        (
            422,
            vec![
                "spec: Invalid value: \"object\": a note of 5 is too long for a size of 2".to_owned(),
                "spec.tails[0]: Invalid value: \"object\": failed rule: !has(self.length) || self.length < 100"
                    .to_owned()
            ]
        )
    );
    let wrong = with(json!({"color": "green"}));
    let (_, causes) = refused(&admin.post(KITES, &wrong));
    assert!(causes.last().unwrap().contains("some validation rules were not checked"), "{causes:?}");
    admin.post(KITES, &with(json!({"color": "red", "note": "hi"}))).ok();
    let path = format!("{KITES}/a");
    let blue = admin.patch(&path, MERGE, &json!({"spec": {"color": "blue"}}));
    assert_eq!(refused(&blue), (422, vec!["spec.color: Forbidden: a kite keeps its color".to_owned()]));
    let debts = admin.patch(&format!("{path}/status"), MERGE, &json!({"status": {"count": -1}}));
    assert_eq!(refused(&debts), (422, vec!["status: Invalid value: \"object\": no debts".to_owned()]));
    admin.patch(&format!("{path}/status"), MERGE, &json!({"status": {"count": 1}})).ok();

    // A rule that comes later lets pass what is there, but tells of it.
    let definition_path = format!("{DEFINITIONS}/kites.{GROUP}");
    let mut stricter = admin.get(&definition_path).ok();
    let rules = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations/1/rule";
    *stricter.pointer_mut(rules).unwrap() = json!("!has(self.note) || self.note == 'no'");
    admin.put(&definition_path, &stricter).ok();
    let mut tick = 0;
    let warned = poll(CAP, || {
        tick += 1;
        let answer = admin.patch(&path, MERGE, &json!({"metadata": {"labels": {"tick": tick.to_string()}}}));
        answer.ok();
        let warnings = answer.warnings();
        (!warnings.is_empty()).then_some(warnings)
    });
    let wanted = "spec: Invalid value: \"object\": a note of 2 is too long for a size of 3";
    assert_eq!(warned.expect("the new rule is known in time"), [wanted]);
    let mut broken = ruled();
    broken["metadata"]["name"] = json!(format!("birds.{GROUP}"));
    broken["spec"]["names"] = json!({"plural": "birds", "kind": "Bird"});
    *broken.pointer_mut(rules).unwrap() = json!("self.wings == 2");
    let (status, causes) = refused(&admin.post(DEFINITIONS, &broken));
    assert_eq!(status, 422);
    assert!(
        causes[0].contains(
            "compilation failed: ERROR: <input>:1:5: undefined field 'wings'\n | self.wings == 2\n | ....^"
        ),
        "{causes:?}"
    );
}

/// Parts of custom objects said of what cannot be done with them what paths say.
#[test]
fn what_cannot_be_done_with_custom_objects_is_named() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let mut with_status = version("v1", true);
    with_status["subresources"] = json!({"status": {}});
    client.post(DEFINITIONS, &definition("kites", "Kite", "Namespaced", &[with_status])).ok();
    poll(CAP, || Some(client.get(KITES)).filter(|answer| answer.status == 200)).expect("kites");
    client.post(KITES, &kite("a")).ok();
    let refused = client.delete(&format!("{KITES}/a/status")).refused(405, "MethodNotAllowed");
    assert_eq!(
        text(&refused, "/message"),
        format!("delete is not supported on resources of kind \"kites.{GROUP}\"")
    );
    assert_eq!(refused["details"], json!({"group": GROUP, "kind": "kites"}));
}

/// A field that a schema allows without naming it has an owner, as an entry of a map has.
#[test]
fn fields_that_no_schema_names_are_owned_as_entries() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let mut open = version("v1", true);
    open["schema"]["openAPIV3Schema"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    client.post(DEFINITIONS, &definition("kites", "Kite", "Namespaced", &[open])).ok();
    poll(CAP, || Some(client.get(KITES)).filter(|answer| answer.status == 200)).expect("kites");
    let headers = [("Content-Type", "application/apply-patch+yaml")];
    let body = serde_json::to_vec(&kite("a")).unwrap();
    let applied = client.request("PATCH", &format!("{KITES}/a?fieldManager=m"), &headers, &body).ok();
    let owned = &applied["metadata"]["managedFields"][0]["fieldsV1"];
    assert_eq!(*owned, json!({"f:spec": {".": {}, "f:color": {}}}));
}

/// Documents about custom kinds are written by somebody else in the reference, who says other things about them.
#[test]
fn documents_about_custom_kinds_are_their_own() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let mut scaled = version("v1", true);
    scaled["subresources"] = json!({"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.count"}});
    client.post(DEFINITIONS, &definition("kites", "Kite", "Namespaced", &[scaled])).ok();
    let path = format!("/openapi/v3/apis/{GROUP}/v1");
    let document = poll(CAP, || Some(client.get(&path)).filter(|answer| answer.status == 200));
    let document = document.expect("the document").json();
    assert_eq!(document["info"], json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}));
    assert_eq!(client.get(&format!("/openapi/v3/apis/{GROUP}")).status, 404);
    assert_eq!(document["components"]["securitySchemes"], Value::Null);
    let paths = &document["paths"];
    assert_eq!(paths[format!("/apis/{GROUP}/v1/")], Value::Null);
    let collection = &paths[format!("/apis/{GROUP}/v1/namespaces/{{namespace}}/kites")];
    assert_eq!(collection["get"]["description"], "list objects of kind Kite");
    let bodies: Vec<&String> =
        collection["post"]["requestBody"]["content"].as_object().unwrap().keys().collect();
    assert_eq!(bodies, ["application/json", "application/yaml"]);
    assert_eq!(collection["delete"]["requestBody"], Value::Null);
    let one = &paths[format!("/apis/{GROUP}/v1/namespaces/{{namespace}}/kites/{{name}}")];
    assert_eq!(one["get"]["parameters"][0]["name"], "resourceVersion");
    assert_eq!(one["patch"]["responses"]["201"], Value::Null);
    let scale = &paths[format!("/apis/{GROUP}/v1/namespaces/{{namespace}}/kites/{{name}}/scale")]["get"];
    assert_eq!(scale["x-kubernetes-group-version-kind"]["kind"], "Kite");
    let schemas = &document["components"]["schemas"];
    let known =
        schemas["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"]["x-kubernetes-group-version-kind"]
            .as_array()
            .unwrap();
    assert!(known.iter().all(|one| one["group"] != "apiextensions.k8s.io"));
    let second = client.get("/openapi/v2").json();
    assert_eq!(second["paths"][format!("/apis/{GROUP}/")], Value::Null);
    let size = &second["definitions"]["example.toys.v1.Kite"]["properties"]["spec"]["properties"]["size"];
    assert_eq!(size["default"], Value::Null);
}
