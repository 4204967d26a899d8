//! CustomResourceDefinitions and custom resources: verbs, encodings, permissions and restarts.

use super::*;

#[test]
fn crd_is_established_when_kind_is_in_discovery() {
    let server = Server::start();
    let (mut admin, mut other_client) = (server.admin(), server.admin());
    for number in 0..30 {
        let plural = format!("toy{number}s");
        let mut crd_object =
            definition(&plural, &format!("Toy{number}"), "Namespaced", &[version("v1", true)]);
        // Short names would conflict.
        crd_object["spec"]["names"]["shortNames"] = json!([]);
        admin.post(DEFINITIONS, &crd_object).ok();
        let is_listed = || {
            let crd = other_client.get(&format!("/apis/{GROUP}/v1"));
            let has_plural = |list: Value| {
                list["resources"].as_array().unwrap().iter().any(|resource| resource["name"] == *plural)
            };
            (crd.status == 200 && has_plural(crd.json())).then_some(())
        };
        poll(TIMEOUT, is_listed).expect("the kind is in discovery");
        let path = format!("{DEFINITIONS}/{plural}.{GROUP}");
        let mut crd = admin.get(&path).ok();
        assert_eq!(
            condition(&crd, "Established").map(|resource| &resource["status"]),
            Some(&json!("True")),
            "{number}"
        );
        crd["spec"]["names"]["categories"] = json!(["toys"]);
        admin.put(&path, &crd).ok();
    }
}

#[test]
fn established_crd_serves_all_verbs() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    assert_eq!(admin.get(KITES).text(), "404 page not found\n");
    for scope in ["Namespaced", "Cluster"] {
        let (plural, kind) = if scope == "Cluster" { ("suns", "Sun") } else { ("kites", "Kite") };
        let defined = define(&mut admin, &definition(plural, kind, scope, &[version("v1", true)]));
        let conditions: Vec<&str> = defined["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| text(item, "/type"))
            .collect();
        assert_eq!(conditions, ["NamesAccepted", "Established"]);
        assert_eq!(defined["status"]["acceptedNames"], defined["spec"]["names"]);
        assert_eq!(defined["status"]["storedVersions"], json!(["v1"]));
        let collection = match scope {
            "Cluster" => format!("/apis/{GROUP}/v1/suns"),
            _ => KITES.to_owned(),
        };
        check_verbs(&server, &collection, kind);
    }
    check_discovery(&mut admin);
}

/// Creates, reads, updates, patches, applies, lists, watches and deletes objects of a kind.
fn check_verbs(server: &Server, collection: &str, kind: &str) {
    let mut admin = server.admin();
    let mut watch = server.admin().watch(collection, "");
    let object = |name: &str| {
        json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name},
            "spec": {"color": "red", "size": 2, "free": {"x": [1, null, 2.5]}}, "status": {"flying": true}})
    };
    let created = admin.post(collection, &object("a")).ok();
    assert_eq!(
        (&created["metadata"]["generation"], &created["spec"]["free"]),
        (&json!(1), &json!({"x": [1, null, 2.5]}))
    );
    assert_eq!(watch.next_for("a")["type"], "ADDED");
    let path = format!("{collection}/a");
    let mut read = admin.get(&path).ok();
    assert_eq!(read, created);
    read["spec"]["size"] = json!(0);
    let status = admin.put(&path, &read).expect_error(422, "Invalid");
    assert!(
        text(&status, "/message")
            .ends_with("spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1")
    );
    read["spec"]["size"] = json!(7);
    let changed = admin.put(&path, &read).ok();
    assert_eq!(changed["metadata"]["generation"], 2);
    assert_eq!(watch.next_for("a")["object"]["spec"]["size"], 7);
    let merged = admin.patch(&path, MERGE, &json!({"spec": {"free": null, "color": "blue"}})).ok();
    assert_eq!(merged["spec"], json!({"color": "blue", "size": 7}));
    let patch = json!([{"op": "replace", "path": "/spec/size", "value": 9}]);
    assert_eq!(admin.patch(&path, "json", &patch).ok()["spec"]["size"], 9);
    let status = admin.patch(&path, "strategic-merge", &json!({})).expect_error(415, "UnsupportedMediaType");
    assert!(text(&status, "/message").contains("application/merge-patch+json"), "{status}");
    let query = format!("{collection}/b?fieldManager=me&fieldValidation=Strict");
    let headers = [("content-type", "application/apply-patch+yaml")];
    let response = admin.request("PATCH", &query, &headers, object("b").to_string().as_bytes());
    assert_eq!(response.status, 201, "{}", response.text());
    let list = admin.get(collection).ok();
    assert_eq!((text(&list, "/kind"), text(&list, "/items/0/kind")), (format!("{kind}List").as_str(), kind));
    assert_eq!(list["metadata"]["continue"], "");
    admin.delete(&path).ok();
    admin.get(&path).expect_error(404, "NotFound");
    admin.delete(collection).ok();
    assert_eq!(admin.get(collection).ok()["items"], json!([]));
    // An update with the UID of the deleted object conflicts.
    admin.put(&path, &read).expect_error(409, "Conflict");
    read["metadata"].as_object_mut().unwrap().remove("uid");
    admin.put(&path, &read).expect_error(404, "NotFound");
}

/// Checks the discovery of the group, and paths that are not served.
fn check_discovery(admin: &mut Client) {
    let group = admin.get(&format!("/apis/{GROUP}")).ok();
    assert_eq!(group["preferredVersion"]["groupVersion"], format!("{GROUP}/v1"));
    let listed = admin.get(&format!("/apis/{GROUP}/v1")).ok();
    let names: Vec<&str> =
        listed["resources"].as_array().unwrap().iter().map(|item| text(item, "/name")).collect();
    assert_eq!(names, ["kites", "suns"]);
    let accept = ("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let whole = admin.request("GET", "/apis", &[accept], b"").ok();
    assert!(whole["items"].as_array().unwrap().iter().any(|item| item["metadata"]["name"] == GROUP));
    // A path of the other scope, and undefined resources and versions.
    for path in [
        format!("/apis/{GROUP}/v1/namespaces/default/suns"),
        format!("/apis/{GROUP}/v1/nope"),
        format!("/apis/{GROUP}/v2/kites"),
    ] {
        assert_eq!(admin.get(&path).text(), "404 page not found\n", "{path}");
    }
}

#[test]
fn field_validation_of_custom_resource_follows_request() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let mut invalid_kite = kite("odd");
    invalid_kite["spec"]["nope"] = json!(1);
    invalid_kite["spec"]["tails"] = json!([{"name": "a", "knots": 1}]);
    invalid_kite["metadata"]["nope"] = json!(1);
    let strict =
        admin.post(&format!("{KITES}?fieldValidation=Strict"), &invalid_kite).expect_error(400, "BadRequest");
    assert_eq!(
        text(&strict, "/message"),
        r#"Kite in version "v1" cannot be handled as a Kite: strict decoding error: unknown field "metadata.nope", unknown field "spec.nope", unknown field "spec.tails[0].knots""#
    );
    let response = admin.post(KITES, &invalid_kite);
    assert_eq!(response.warnings().len(), 3, "{:?}", response.warnings());
    assert_eq!(response.ok()["spec"], json!({"color": "red", "size": 3, "tails": [{"name": "a"}]}));
    admin.delete(&format!("{KITES}/odd")).ok();
    let response_without_warnings = admin.post(&format!("{KITES}?fieldValidation=Ignore"), &invalid_kite);
    assert!(response_without_warnings.warnings().is_empty());
    let twice = br#"{"apiVersion":"toys.example/v1","kind":"Kite","metadata":{"name":"t"},"spec":{"color":"red","color":"blue"}}"#;
    let json = ("content-type", "application/json");
    let strict = admin.request("POST", &format!("{KITES}?fieldValidation=Strict"), &[json], twice);
    assert!(strict.text().contains(r#"duplicate field \"spec.color\""#), "{}", strict.text());
    // kind and apiVersion must match the path.
    let mut wrong_kind = kite("other");
    wrong_kind["kind"] = json!("Bird");
    let status = admin.post(KITES, &wrong_kind).expect_error(422, "Invalid");
    assert!(text(&status, "/message").ends_with(r#"kind: Invalid value: "Bird": must be Kite"#), "{status}");
    wrong_kind["apiVersion"] = json!("toys.example/v9");
    let status = admin.post(KITES, &wrong_kind).expect_error(400, "BadRequest");
    assert!(
        text(&status, "/message").contains("does not match the expected API version (toys.example/v1)"),
        "{status}"
    );
    wrong_kind.as_object_mut().unwrap().remove("kind");
    admin.post(KITES, &wrong_kind).expect_error(400, "BadRequest");
    let mut wrong_labels = kite("wrong");
    wrong_labels["metadata"]["labels"] = json!("x");
    let status = admin.post(KITES, &wrong_labels).expect_error(400, "BadRequest");
    assert!(
        text(&status, "/message")
            .contains("into Go struct field ObjectMeta.labels of type map[string]string"),
        "{status}"
    );
    let invalid_kite = ("metadata.finalizers", "x.example");
    let mut held = kite("held");
    held["metadata"]["finalizers"] = json!([invalid_kite.1]);
    assert!(
        admin.post(KITES, &held).warnings()[0]
            .contains("prefer a domain-qualified finalizer name including a path (/)")
    );
}

#[test]
fn custom_resource_is_served_as_yaml_and_table_but_not_protobuf() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let mut with_columns = kites();
    let columns = json!([{"name": "Color", "type": "string", "jsonPath": ".spec.color"},
        {"name": "First tail", "type": "integer", "jsonPath": ".spec.tails[?(@.name==\"a\")].length", "priority": 1}]);
    with_columns["spec"]["versions"][0]["additionalPrinterColumns"] = columns;
    with_columns["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.color"}]);
    define(&mut admin, &with_columns);
    let yaml = b"apiVersion: toys.example/v1\nkind: Kite\nmetadata:\n  name: yam\nspec:\n  color: blue\n  tails:\n  - name: a\n    length: 4\n";
    let created = admin.request("POST", KITES, &[("content-type", "application/yaml")], yaml).ok();
    assert_eq!(created["spec"]["size"], 3);
    admin.post(KITES, &kite("z")).ok();
    let output = admin.request("GET", &format!("{KITES}/yam"), &[("accept", "application/yaml")], b"").text();
    assert!(output.contains("kind: Kite\n") && output.contains("  color: blue\n"), "{output}");
    let table = admin.request("GET", KITES, &[TABLE], b"").ok();
    let names: Vec<&str> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|column| text(column, "/name")).collect();
    assert_eq!(names, ["Name", "Color", "First tail"]);
    assert_eq!(table["rows"][0]["cells"], json!(["yam", "blue", 4]));
    assert_eq!(table["rows"][1]["cells"], json!(["z", "red", null]));
    let protobuf = "application/vnd.kubernetes.protobuf";
    let refused = admin.request("GET", &format!("{KITES}/yam"), &[("accept", protobuf)], b"");
    assert_eq!(refused.status, 406, "{}", refused.text());
    let list = format!("{protobuf}, application/json");
    let output = admin.request("GET", &format!("{KITES}/yam"), &[("accept", &list)], b"");
    assert_eq!(output.header("content-type"), Some("application/json"));
    let metadata = format!("{protobuf};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    let metadata = admin.request("GET", KITES, &[("accept", &metadata)], b"");
    assert_eq!((metadata.status, metadata.header("content-type")), (200, Some(protobuf)));
    let body = admin.request("POST", KITES, &[("content-type", protobuf)], b"k8s\0");
    assert_eq!(body.status, 400, "{}", body.text());
    let chosen = admin.get(&format!("{KITES}?fieldSelector=spec.color%3Dblue")).ok();
    assert_eq!(chosen["items"].as_array().unwrap().len(), 1);
    let status = admin.get(&format!("{KITES}?fieldSelector=spec.size%3D3")).expect_error(400, "BadRequest");
    assert_eq!(text(&status, "/message"), "field label not supported: spec.size");
}

#[test]
fn crd_with_conflicting_names_is_not_accepted() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let second = definition("birds", "Kite", "Namespaced", &[version("v1", true)]);
    admin.post(DEFINITIONS, &second).ok();
    let path = format!("{DEFINITIONS}/birds.{GROUP}");
    let names_condition =
        poll(TIMEOUT, || condition(&admin.get(&path).ok(), "NamesAccepted").cloned()).expect("it is judged");
    assert_eq!(
        (text(&names_condition, "/status"), text(&names_condition, "/reason")),
        ("False", "ListKindConflict")
    );
    assert_eq!(text(&names_condition, "/message"), r#""KiteList" is already in use"#);
    assert_eq!(admin.get(&format!("/apis/{GROUP}/v1/birds")).text(), "404 page not found\n");
    // A CRD whose names become free is served.
    admin.delete(&format!("{DEFINITIONS}/kites.{GROUP}")).ok();
    wait_until_gone(&mut admin, &format!("{DEFINITIONS}/kites.{GROUP}"));
    let is_served = || (admin.get(&format!("/apis/{GROUP}/v1/birds")).status == 200).then_some(());
    poll(TIMEOUT, is_served).expect("the names are free");
}

#[test]
fn crd_in_built_in_group_has_its_own_objects() {
    const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    admin.post(POLICIES, &json!({"metadata": {"name": "real"}, "spec": {"podSelector": {}}})).ok();
    let mut crd = definition("networkpolicies", "NetworkPolicy", "Namespaced", &[version("v99", true)]);
    crd["metadata"] = json!({"name": "networkpolicies.networking.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}});
    crd["spec"]["group"] = "networking.k8s.io".into();
    let created = admin.post(DEFINITIONS, &crd).ok();
    let path = format!("{DEFINITIONS}/{}", text(&created, "/metadata/name"));
    let custom = POLICIES.replace("/v1/", "/v99/");
    let response = poll(TIMEOUT, || Some(admin.get(&custom)).filter(|response| response.status == 200));
    assert_eq!(response.expect("it is served").ok()["items"], json!([]));
    admin.delete(&path).ok();
    wait_until_gone(&mut admin, &path);
    assert_eq!(admin.get(POLICIES).ok()["items"].as_array().unwrap().len(), 1);
}

#[test]
fn crd_and_objects_survive_kill() {
    let folder = temp_directory();
    let data = folder.path().join("data");
    let server = Server::start_in(&data, &[]);
    let mut admin = server.admin();
    define(&mut admin, &kites());
    let created = admin.post(KITES, &kite("a")).ok();
    server.kill();
    let server = Server::start_in(&data, &[]);
    // A ready server serves it with the first request.
    let read = server.admin().get(&format!("{KITES}/a")).ok();
    assert_eq!(read, created);
}

#[test]
fn rbac_and_quota_apply_to_custom_resources() {
    let server = Server::with_flags(&["--engine=memory"]);
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
    let created = admin.request("POST", KITES, &[kid, json], kite("a").to_string().as_bytes());
    assert_eq!(created.status, 201, "{}", created.text());
    assert_eq!(admin.request("GET", KITES, &[kid], b"").status, 403);
    assert_eq!(admin.request("GET", &format!("{KITES}/a"), &[kid], b"").status, 200);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"count/kites.toys.example": "1"}}});
    admin.post("/api/v1/namespaces/default/resourcequotas", &quota).ok();
    let counted = json!({"status": {"hard": {"count/kites.toys.example": "1"}, "used": {"count/kites.toys.example": "1"}}});
    admin.patch("/api/v1/namespaces/default/resourcequotas/q/status", MERGE, &counted).ok();
    let status = admin.post(KITES, &kite("b")).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").contains("exceeded quota: q"), "{status}");
    admin
        .post(&format!("/apis/{GROUP}/v1/namespaces/nowhere/kites"), &kite("c"))
        .expect_error(404, "NotFound");
}

#[test]
fn kubectl_works_with_custom_resources() {
    let server = Server::with_flags(&["--engine=memory"]);
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
    let mut invalid = kite("odd");
    invalid["spec"]["nope"] = json!(1);
    std::fs::write(file, invalid.to_string()).unwrap();
    let output_of_create = kubectl.try_run(&["create", "-f", file]);
    assert!(String::from_utf8_lossy(&output_of_create.stderr).contains("unknown field \"spec.nope\""));
    assert!(
        kubectl
            .run(&["patch", "kite", "a", "--type=merge", "-p", r#"{"spec":{"size":5}}"#])
            .contains("patched")
    );
    assert!(kubectl.run(&["delete", "kites", "--all"]).contains("deleted"));
    assert!(kubectl.run(&["delete", "crd", "kites.toys.example"]).contains("deleted"));
}

/// The error of an unsupported verb on a subresource named the path instead of the resource.
#[test]
fn unsupported_verb_on_custom_subresource_names_resource() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let mut with_status = version("v1", true);
    with_status["subresources"] = json!({"status": {}});
    client.post(DEFINITIONS, &definition("kites", "Kite", "Namespaced", &[with_status])).ok();
    poll(TIMEOUT, || Some(client.get(KITES)).filter(|response| response.status == 200)).expect("kites");
    client.post(KITES, &kite("a")).ok();
    let status = client.delete(&format!("{KITES}/a/status")).expect_error(405, "MethodNotAllowed");
    assert_eq!(
        text(&status, "/message"),
        format!("delete is not supported on resources of kind \"kites.{GROUP}\"")
    );
    assert_eq!(status["details"], json!({"group": GROUP, "kind": "kites"}));
}

/// A field that the schema preserves without naming it has a field owner.
#[test]
fn preserved_unknown_fields_have_field_owners() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let mut open = version("v1", true);
    open["schema"]["openAPIV3Schema"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    client.post(DEFINITIONS, &definition("kites", "Kite", "Namespaced", &[open])).ok();
    poll(TIMEOUT, || Some(client.get(KITES)).filter(|response| response.status == 200)).expect("kites");
    let headers = [("Content-Type", "application/apply-patch+yaml")];
    let body = serde_json::to_vec(&kite("a")).unwrap();
    let applied = client.request("PATCH", &format!("{KITES}/a?fieldManager=m"), &headers, &body).ok();
    let owned = &applied["metadata"]["managedFields"][0]["fieldsV1"];
    assert_eq!(*owned, json!({"f:spec": {".": {}, "f:color": {}}}));
}
