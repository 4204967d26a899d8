//! Schemas: changes, ratcheting, CEL rules, versions and OpenAPI.

use super::*;

#[test]
fn schema_change_applies_to_reads_and_ratchets_invalid_values() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    admin.post(KITES, &kite("a")).ok();
    let mut watch = server.admin().watch(KITES, "");
    assert_eq!(watch.next_for("a")["type"], "ADDED");
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let mut changed = admin.get(&path).ok();
    let spec = &mut changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["properties"]["color"]["enum"] = json!(["green"]);
    spec["properties"]["string"] = json!({"type": "string", "default": "long"});
    spec["properties"].as_object_mut().unwrap().remove("size");
    admin.put(&path, &changed).ok();
    // The watch ends, because its objects have another schema now.
    let end = Deadline::after(TIMEOUT);
    while watch.attempt(end).expect("a clean end").is_some() {}
    let read = poll(TIMEOUT, || {
        Some(admin.get(&format!("{KITES}/a")).ok())
            .filter(|kite_object| kite_object["spec"]["string"] == "long")
    });
    let mut read = read.expect("what is read follows the definition");
    assert_eq!(read["spec"], json!({"color": "red", "string": "long"}));
    // A value that became invalid may stay, but not be set.
    read["metadata"]["labels"] = json!({"a": "b"});
    read["spec"]["note"] = json!("hm");
    let stored = admin.put(&format!("{KITES}/a"), &read).ok();
    assert_eq!((&stored["spec"]["color"], &stored["metadata"]["generation"]), (&json!("red"), &json!(2)));
    let status = admin
        .patch(&format!("{KITES}/a"), MERGE, &json!({"spec": {"color": "blue"}}))
        .expect_error(422, "Invalid");
    assert!(
        text(&status, "/message").contains(r#"Unsupported value: "blue": supported values: "green""#),
        "{status}"
    );
    admin.post(KITES, &kite("b")).expect_error(422, "Invalid");
    let with_null = admin
        .patch(
            &format!("{KITES}/a"),
            "json",
            &json!([{"op": "replace", "path": "/spec/note", "value": null}]),
        )
        .ok();
    assert_eq!(
        with_null["spec"].get("note"),
        Some(&Value::Null),
        "null is stored where the schema allows it"
    );
}

#[test]
fn ratcheting_needs_comparable_schema() {
    let server = Server::with_flags(&["--engine=memory"]);
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
    poll(TIMEOUT, || (admin.post(&format!("{KITES}?dryRun=All"), &kite("c")).status == 422).then_some(()))
        .unwrap();
    let label = |admin: &mut Client, name: &str| {
        admin.patch(&format!("{KITES}/{name}"), MERGE, &json!({"metadata": {"labels": {"a": "b"}}}))
    };
    label(&mut admin, "plain").ok();
    let status = label(&mut admin, "free").expect_error(422, "Invalid");
    let expected = "spec: Invalid value: 3: spec in body should have at least 5 properties";
    assert!(text(&status, "/message").ends_with(expected), "{status}");

    // The root is not comparable because of its metadata: the object counts as changed.
    let mut changed = admin.get(&path).ok();
    let root = &mut changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    root["required"] = json!(["top"]);
    admin.put(&path, &changed).ok();
    let unchanged = admin.get(&format!("{KITES}/plain")).ok();
    let put_unchanged =
        || Some(admin.put(&format!("{KITES}/plain"), &unchanged)).filter(|response| response.status == 422);
    let status = poll(TIMEOUT, put_unchanged).unwrap().expect_error(422, "Invalid");
    assert!(text(&status, "/message").ends_with("top: Required value"), "{status}");
}

#[test]
fn crd_versions_share_objects() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let mut old = version("v1alpha1", false);
    old["deprecated"] = json!(true);
    let mut hidden = version("v1beta1", false);
    hidden["served"] = json!(false);
    define(&mut admin, &definition("kites", "Kite", "Namespaced", &[old, hidden, version("v1", true)]));
    let alpha = format!("/apis/{GROUP}/v1alpha1/namespaces/default/kites");
    let mut object = kite("a");
    object["apiVersion"] = json!(format!("{GROUP}/v1alpha1"));
    let created = admin.post(&alpha, &object);
    assert_eq!(created.warnings(), [format!("{GROUP}/v1alpha1 Kite is deprecated; use {GROUP}/v1 Kite")]);
    let created = created.ok();
    let read = admin.get(&format!("{KITES}/a")).ok();
    assert_eq!(
        (text(&read, "/apiVersion"), &read["metadata"]["uid"]),
        ("toys.example/v1", &created["metadata"]["uid"])
    );
    assert_eq!(text(&read, "/metadata/managedFields/0/apiVersion"), "toys.example/v1alpha1");
    let mut watch = server.admin().watch(&alpha, "");
    assert_eq!(text(&watch.next_for("a"), "/object/apiVersion"), "toys.example/v1alpha1");
    assert_eq!(admin.get(&format!("/apis/{GROUP}/v1beta1/kites")).text(), "404 page not found\n");
    let group = admin.get(&format!("/apis/{GROUP}")).ok();
    let versions: Vec<&str> = group["versions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|version_object| text(version_object, "/version"))
        .collect();
    assert_eq!(versions, ["v1", "v1alpha1"]);
    // A version that is no longer served is not found, and its watches end.
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let patch = json!([{"op": "replace", "path": "/spec/versions/0/served", "value": false}]);
    admin.patch(&path, "json", &patch).ok();
    let end = Deadline::after(TIMEOUT);
    while watch.attempt(end).expect("a clean end").is_some() {}
    wait_until_gone(&mut admin, &alpha);
    assert_eq!(admin.get(&format!("{KITES}/a")).ok()["spec"], read["spec"]);
}

#[test]
fn storage_version_defaults_and_prunes() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let mut v2 = version("v2", false);
    let spec = &mut v2["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    spec["size"]["default"] = json!(9);
    spec["string"] = json!({"type": "string", "default": "long"});
    spec.as_object_mut().unwrap().remove("note");
    define(&mut admin, &definition("kites", "Kite", "Namespaced", &[version("v1", true), v2]));
    let second = KITES.replace("/v1/", "/v2/");
    let mut noted = kite("a");
    noted["spec"]["note"] = json!("hm");
    admin.post(KITES, &noted).ok();
    // Read in v2: with the defaults of v1, without fields that v2 lacks, and without the defaults of v2.
    assert_eq!(admin.get(&format!("{second}/a")).ok()["spec"], json!({"color": "red", "size": 3}));
    // Created in v2: with the defaults of v2; fields that v1 lacks are not stored.
    let mut created = kite("b");
    created["apiVersion"] = json!("toys.example/v2");
    let created = admin.post(&second, &created).ok();
    assert_eq!(created["spec"], json!({"color": "red", "size": 9}));
    assert_eq!(admin.get(&format!("{KITES}/b")).ok()["spec"], json!({"color": "red", "size": 9}));
    // Stored as v2 from now on: older objects are still stored as v1.
    let path = format!("{DEFINITIONS}/kites.{GROUP}");
    let switch_storage = json!([{"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true}]);
    let crd_after_switch = admin.patch(&path, "json", &switch_storage).ok();
    assert_eq!(crd_after_switch["status"]["storedVersions"], json!(["v1", "v2"]));
    let mut third = kite("c");
    third["apiVersion"] = json!("toys.example/v2");
    let is_stored = || {
        let created = admin.post(&second, &third);
        // It met the change of the storage version: a client tries again.
        if created.status == 429 {
            return None;
        }
        if created.ok()["spec"]["string"] == "long" {
            return Some(());
        }
        admin.delete(&format!("{second}/c")).ok();
        None
    };
    poll(TIMEOUT, is_stored).expect("the second is stored");
    assert_eq!(
        admin.get(&format!("{KITES}/a")).ok()["spec"],
        json!({"color": "red", "size": 3, "note": "hm"})
    );
    assert_eq!(admin.get(&format!("{second}/a")).ok()["spec"], json!({"color": "red", "size": 3}));
    assert_eq!(admin.get(&format!("{KITES}/c")).ok()["spec"], json!({"color": "red", "size": 9}));
}

#[test]
fn selectable_fields_apply_to_stored_objects() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    admin.post(KITES, &kite("a")).ok();
    let mut blue = kite("b");
    blue["spec"]["color"] = json!("blue");
    admin.post(KITES, &blue).ok();
    let selected = format!("{KITES}?fieldSelector=spec.color%3Dblue");
    admin.get(&selected).expect_error(400, "BadRequest");
    let fields = json!([{"op": "add", "path": "/spec/versions/0/selectableFields",
        "value": [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}]}]);
    admin.patch(&format!("{DEFINITIONS}/kites.{GROUP}"), "json", &fields).ok();
    let response = poll(TIMEOUT, || Some(admin.get(&selected)).filter(|response| response.status == 200));
    let names = |list: &Value| -> Vec<String> {
        list["items"].as_array().unwrap().iter().map(|item| text(item, "/metadata/name").to_owned()).collect()
    };
    assert_eq!(names(&response.expect("it can be selected by").ok()), ["b"]);
    // Also by defaulted fields, and by inequality.
    let list = admin.get(&format!("{KITES}?fieldSelector=spec.size%3D3,spec.color!%3Dred")).ok();
    assert_eq!(names(&list), ["b"]);
    let mut watch = server.admin().watch(KITES, "fieldSelector=spec.color%3Dblue");
    let event = watch.next();
    assert_eq!((&event["type"], text(&event, "/object/metadata/name")), (&json!("ADDED"), "b"));
    admin.patch(&format!("{KITES}/a"), MERGE, &json!({"spec": {"color": "blue"}})).ok();
    let event = watch.next();
    assert_eq!((&event["type"], text(&event, "/object/metadata/name")), (&json!("ADDED"), "a"));
    admin.patch(&format!("{KITES}/b"), MERGE, &json!({"spec": {"color": "red"}})).ok();
    let event = watch.next();
    assert_eq!((&event["type"], text(&event, "/object/metadata/name")), (&json!("DELETED"), "b"));
}

/// A CRD with CEL rules: the color is immutable, and tails have a maximum length.
fn kites_with_rules() -> Value {
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

fn status_and_causes(response: &Response) -> (u16, Vec<String>) {
    let causes = response.json()["details"]["causes"].as_array().cloned().unwrap_or_default();
    let render_cause = |cause: &Value| format!("{}: {}", text(cause, "/field"), text(cause, "/message"));
    (response.status, causes.iter().map(render_cause).collect())
}

#[test]
fn cel_rules_validate_custom_resources() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites_with_rules());
    let kite_with_spec = |spec: Value| {
        let mut object = kite("a");
        object["spec"] = spec;
        object
    };
    let too_long = kite_with_spec(
        json!({"color": "red", "size": 2, "note": "hello", "tails": [{"name": "t", "length": 100}]}),
    );
    assert_eq!(
        status_and_causes(&admin.post(KITES, &too_long)),
        (
            422,
            vec![
                "spec: Invalid value: \"object\": a note of 5 is too long for a size of 2".to_owned(),
                "spec.tails[0]: Invalid value: \"object\": failed rule: !has(self.length) || self.length < 100"
                    .to_owned()
            ]
        )
    );
    let wrong_color = kite_with_spec(json!({"color": "green"}));
    let (_, causes) = status_and_causes(&admin.post(KITES, &wrong_color));
    assert!(causes.last().unwrap().contains("some validation rules were not checked"), "{causes:?}");
    admin.post(KITES, &kite_with_spec(json!({"color": "red", "note": "hi"}))).ok();
    let path = format!("{KITES}/a");
    let blue = admin.patch(&path, MERGE, &json!({"spec": {"color": "blue"}}));
    assert_eq!(
        status_and_causes(&blue),
        (422, vec!["spec.color: Forbidden: a kite keeps its color".to_owned()])
    );
    let negative_count = admin.patch(&format!("{path}/status"), MERGE, &json!({"status": {"count": -1}}));
    assert_eq!(
        status_and_causes(&negative_count),
        (422, vec!["status: Invalid value: \"object\": no debts".to_owned()])
    );
    admin.patch(&format!("{path}/status"), MERGE, &json!({"status": {"count": 1}})).ok();

    // A new rule ratchets existing values with a warning.
    let definition_path = format!("{DEFINITIONS}/kites.{GROUP}");
    let mut stricter = admin.get(&definition_path).ok();
    let rules = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations/1/rule";
    *stricter.pointer_mut(rules).unwrap() = json!("!has(self.note) || self.note == 'no'");
    admin.put(&definition_path, &stricter).ok();
    let mut number = 0;
    let warnings = poll(TIMEOUT, || {
        number += 1;
        let response =
            admin.patch(&path, MERGE, &json!({"metadata": {"labels": {"tick": number.to_string()}}}));
        response.ok();
        let warnings = response.warnings();
        (!warnings.is_empty()).then_some(warnings)
    });
    let expected = "spec: Invalid value: \"object\": a note of 2 is too long for a size of 3";
    assert_eq!(warnings.expect("the new rule is loaded"), [expected]);
    let mut broken = kites_with_rules();
    broken["metadata"]["name"] = json!(format!("birds.{GROUP}"));
    broken["spec"]["names"] = json!({"plural": "birds", "kind": "Bird"});
    *broken.pointer_mut(rules).unwrap() = json!("self.wings == 2");
    let (status, causes) = status_and_causes(&admin.post(DEFINITIONS, &broken));
    assert_eq!(status, 422);
    assert!(
        causes[0].contains(
            "compilation failed: ERROR: <input>:1:5: undefined field 'wings'\n | self.wings == 2\n | ....^"
        ),
        "{causes:?}"
    );
}

/// The reference builds the OpenAPI documents of custom resources separately, with other contents.
#[test]
fn openapi_of_custom_resources_matches_reference() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let mut scaled = version("v1", true);
    scaled["subresources"] = json!({"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.count"}});
    client.post(DEFINITIONS, &definition("kites", "Kite", "Namespaced", &[scaled])).ok();
    let path = format!("/openapi/v3/apis/{GROUP}/v1");
    let document = poll(TIMEOUT, || Some(client.get(&path)).filter(|response| response.status == 200));
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
    let object_path = &paths[format!("/apis/{GROUP}/v1/namespaces/{{namespace}}/kites/{{name}}")];
    assert_eq!(object_path["get"]["parameters"][0]["name"], "resourceVersion");
    assert_eq!(object_path["patch"]["responses"]["201"], Value::Null);
    let scale = &paths[format!("/apis/{GROUP}/v1/namespaces/{{namespace}}/kites/{{name}}/scale")]["get"];
    assert_eq!(scale["x-kubernetes-group-version-kind"]["kind"], "Kite");
    let schemas = &document["components"]["schemas"];
    let kinds =
        schemas["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"]["x-kubernetes-group-version-kind"]
            .as_array()
            .unwrap();
    assert!(kinds.iter().all(|object_path| object_path["group"] != "apiextensions.k8s.io"));
    let second = client.get("/openapi/v2").json();
    assert_eq!(second["paths"][format!("/apis/{GROUP}/")], Value::Null);
    let size = &second["definitions"]["example.toys.v1.Kite"]["properties"]["spec"]["properties"]["size"];
    assert_eq!(size["default"], Value::Null);
}
