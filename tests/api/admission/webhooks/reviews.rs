//! Contents of reviews, and which requests are reviewed.

use super::*;

#[test]
fn impersonated_apiserver_user_is_still_reviewed() {
    let hooks = HookServer::start("h", |_, _| Reply::Review(json!({"allowed": false})));
    let server = Server::start();
    let mut admin = server.admin();
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "v.x.io", &json!({}))]);
    let group = ("Impersonate-Group", "system:masters");
    let headers = [("Content-Type", "application/json"), ("Impersonate-User", "system:apiserver"), group];
    let response = admin.request("POST", MAPS, &headers, map("a").to_string().as_bytes());
    assert_eq!(response.status, 400, "{}", response.text());
    assert_eq!(hooks.requests()[0]["userInfo"]["username"], "system:apiserver");
}

#[test]
fn binding_reviews_name_the_requested_resource() {
    let hooks = HookServer::start("h", |_, _| allow());
    let server = Server::start();
    let mut admin = server.admin();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    admin.post("/api/v1/nodes", &node).ok();
    let resources = json!(["bindings", "pods/binding"]);
    let rules = json!({"rules": [
        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": resources}]});
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "v.x.io", &rules)]);
    for (name, path) in [("a", "bindings"), ("b", "pods/b/binding")] {
        admin.post("/api/v1/namespaces/default/pods", &pod(name, &json!({}))).ok();
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"kind": "Node", "name": "n"}});
        admin.post(&format!("/api/v1/namespaces/default/{path}"), &binding).ok();
    }
    let requests = hooks.requests();
    let bindings = requests.iter().map(|request| {
        assert_eq!(request["kind"]["kind"], "Binding");
        assert_eq!(request["resource"], request["requestResource"]);
        (text(request, "/name"), text(request, "/resource/resource"), request["subResource"].as_str())
    });
    assert_eq!(bindings.collect::<Vec<_>>(), [("a", "bindings", None), ("b", "pods", Some("binding"))]);
}

#[test]
fn refused_binding_is_one_of_the_requested_resource() {
    let server = Server::start();
    let mut admin = server.admin();
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "b"}, "spec": {"validations": [{"expression": "false", "message": "not that way"}],
            "matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["bindings"]}]}}});
    admin.post(&format!("{GROUP}/validatingadmissionpolicies"), &policy).ok();
    let policy_binding = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "b"},
        "spec": {"policyName": "b", "validationActions": ["Deny"]}});
    admin.post(&format!("{GROUP}/validatingadmissionpolicybindings"), &policy_binding).ok();
    admin.post("/api/v1/namespaces/default/pods", &pod("a", &json!({}))).ok();
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"},
        "target": {"kind": "Node", "name": "n"}});
    let refused = admin.post("/api/v1/namespaces/default/bindings", &binding).expect_error(422, "Invalid");
    assert!(message(&refused).starts_with("bindings \"a\" is forbidden: "), "{refused}");
    admin.post("/api/v1/namespaces/default/pods/a/binding", &binding).ok();
}

#[test]
fn eviction_sends_its_disruption_budget_through_admission() {
    let hooks =
        HookServer::start("h", |_, request| match request["object"]["status"]["disruptedPods"]["a"] {
            Value::Null => allow(),
            _ => Reply::Review(json!({"allowed": false, "status": {"message": "a stays"}})),
        });
    let server = Server::start();
    let mut admin = server.admin();
    let rules = json!({"rules": [{"operations": ["UPDATE"], "apiGroups": ["policy"], "apiVersions": ["v1"],
        "resources": ["poddisruptionbudgets/status"]}]});
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "v.x.io", &rules)]);
    let pods = "/api/v1/namespaces/default/pods";
    for name in ["a", "b"] {
        let mut running = pod(name, &json!({"nodeName": "n"}));
        running["metadata"]["labels"] = json!({"app": "a"});
        let mut running = admin.post(pods, &running).ok();
        running["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        admin.put(&format!("{pods}/{name}/status"), &running).ok();
    }
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guard"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}});
    let mut budget = admin.post(budgets, &budget).ok();
    budget["status"] = json!({"observedGeneration": 1, "disruptionsAllowed": 2, "currentHealthy": 2,
        "desiredHealthy": 1, "expectedPods": 2});
    admin.put(&format!("{budgets}/guard/status"), &budget).ok();
    hooks.clear_requests();
    let evict = |admin: &mut Client, name: &str| {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        admin.post(&format!("{pods}/{name}/eviction"), &eviction)
    };
    let refused = evict(&mut admin, "a");
    assert_eq!(refused.status, 400);
    let refused = refused.json();
    assert!(message(&refused).ends_with("denied the request: a stays"), "{refused}");
    assert_eq!(admin.get(&format!("{pods}/a")).status, 200);
    assert_eq!(admin.get(&format!("{budgets}/guard")).ok()["status"]["disruptionsAllowed"], 2);
    assert_eq!(evict(&mut admin, "b").status, 201);
    let request = hooks.requests().pop().unwrap();
    assert_eq!(text(&request, "/userInfo/username"), "system:apiserver");
    assert_eq!((text(&request, "/name"), text(&request, "/subResource")), ("guard", "status"));
    let status = admin.get(&format!("{budgets}/guard")).ok()["status"].clone();
    assert_eq!((&status["disruptionsAllowed"], status["disruptedPods"].get("a")), (&json!(1), None));
    assert!(status["disruptedPods"]["b"].is_string(), "{status}");
}

#[test]
fn dry_run_calls_webhook_without_side_effects_and_stores_nothing() {
    let hooks = HookServer::start("h", |_, _| allow());
    let server = Server::start();
    let mut admin = server.admin();
    let no_side_effects = json!({"sideEffects": "NoneOnDryRun"});
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "d.x.io", &no_side_effects)]);
    admin.post(&format!("{MAPS}?dryRun=All"), &map("a")).ok();
    let request = hooks.requests().pop().unwrap();
    assert_eq!((&request["dryRun"], &request["options"]["dryRun"]), (&json!(true), &json!(["All"])));
    admin.get(&format!("{MAPS}/a")).expect_error(404, "NotFound");
}

#[test]
fn webhook_is_called_by_rules_selectors_and_equivalent_versions() {
    let hooks = HookServer::start("h", |_, _| allow());
    // Without controllers, which write into every new namespace.
    let server = Server::with_flags(&["--engine=memory", "--controllers=-*"]);
    let mut admin = server.admin();
    let namespaces = json!({"matchPolicy": "Exact", "namespaceSelector": {"matchLabels": {"watched": "yes"}},
        "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]});
    let objects = json!({"objectSelector": {"matchLabels": {"o": "1"}}});
    let equivalent = json!({"rules": [{"operations": ["*"], "apiGroups": ["events.k8s.io"], "apiVersions": ["v1"],
        "resources": ["events"]}]});
    configure(
        &mut admin,
        "Validating",
        "v",
        &[
            hook(&hooks, "n.x.io", &namespaces),
            hook(&hooks, "o.x.io", &objects),
            hook(&hooks, "e.x.io", &equivalent),
        ],
    );
    let called_webhooks = |admin: &mut Client, path: &str, object: &Value| {
        hooks.clear_requests();
        admin.post(path, object).ok();
        let mut targets: Vec<String> =
            hooks.targets().iter().map(|target| target.split('?').next().unwrap().to_owned()).collect();
        targets.sort();
        targets.join(" ")
    };
    let namespace = |name: &str, label: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"watched": label}}});
    assert_eq!(called_webhooks(&mut admin, "/api/v1/namespaces", &namespace("w", "yes")), "/n.x.io");
    assert_eq!(called_webhooks(&mut admin, "/api/v1/namespaces", &namespace("u", "no")), "");
    assert_eq!(called_webhooks(&mut admin, "/api/v1/namespaces/w/configmaps", &map("a")), "/n.x.io");
    assert_eq!(called_webhooks(&mut admin, "/api/v1/namespaces/u/configmaps", &map("a")), "");
    let mut labelled = map("l");
    labelled["metadata"]["labels"] = json!({"o": "1"});
    assert_eq!(called_webhooks(&mut admin, "/api/v1/namespaces/u/configmaps", &labelled), "/o.x.io");
    hooks.clear_requests();
    admin.patch("/api/v1/namespaces/u/configmaps/l", "merge", &json!({"metadata": {"labels": null}})).ok();
    assert_eq!(hooks.requests().len(), 1, "the old object is matched too");

    // The same resource in another group: sent in the group of the rule.
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "reason": "r",
        "involvedObject": {"kind": "Pod", "namespace": "u", "name": "x"}, "message": "note", "type": "Normal"});
    assert_eq!(called_webhooks(&mut admin, "/api/v1/namespaces/u/events", &event), "/e.x.io");
    let request = hooks.requests().pop().unwrap();
    assert_eq!(
        (&request["kind"]["group"], &request["requestKind"]["group"]),
        (&json!("events.k8s.io"), &json!(""))
    );
    assert_eq!(request["object"]["note"], "note");
    assert_eq!(request["object"]["apiVersion"], "events.k8s.io/v1");
}

#[test]
fn webhook_reviews_connect_and_virtual_resources() {
    let hooks = HookServer::start("h", |path, _| match path {
        "/exec.x.io" => Reply::Review(json!({"allowed": false, "status": {"message": "no shells"}})),
        _ => allow(),
    });
    let server = Server::start();
    let mut admin = server.admin();
    admin.post(PODS, &pod("p", &json!({}))).ok();
    let exec = json!({"rules": [{"operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/exec"]}]});
    let review = json!({"rules": [{"operations": ["*"], "apiGroups": ["authentication.k8s.io"], "apiVersions": ["*"], "resources": ["*"]}]});
    configure(
        &mut admin,
        "Validating",
        "v",
        &[hook(&hooks, "exec.x.io", &exec), hook(&hooks, "review.x.io", &review)],
    );
    let status = admin.post(&format!("{PODS}/p/exec?command=sh&command=-c&stdin=true"), &json!({})).json();
    assert_eq!(message(&status), "admission webhook \"exec.x.io\" denied the request: no shells");
    let request = hooks.requests().pop().unwrap();
    assert_eq!(
        request["object"],
        json!({"kind": "PodExecOptions", "apiVersion": "v1", "stdin": true, "command": ["sh", "-c"]})
    );
    assert_eq!((text(&request, "/subResource"), text(&request, "/operation")), ("exec", "CONNECT"));
    assert_eq!((&request["options"], text(&request, "/kind/kind")), (&Value::Null, "PodExecOptions"));
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    admin.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review).ok();
    assert_eq!(text(&hooks.requests()[1], "/kind/kind"), "SelfSubjectReview");
}

#[test]
fn webhook_match_conditions_filter_requests() {
    let hooks = HookServer::start("h", |_, _| allow());
    let server = Server::start();
    let mut admin = server.admin();
    let configure_conditions = |admin: &mut Client, conditions: Value, failures: &str| {
        let named: Vec<Value> = (0..)
            .zip(conditions.as_array().unwrap())
            .map(|(index, text)| json!({"name": format!("c{index}"), "expression": text}))
            .collect();
        let _absent = admin.delete(&format!("{GROUP}/validatingwebhookconfigurations/v"));
        let fields = json!({"matchConditions": named, "failurePolicy": failures});
        configure(admin, "Validating", "v", &[hook(&hooks, "v.x.io", &fields)]);
        hooks.clear_requests();
    };
    let conditions = json!([
        "request.operation == 'CREATE' && request.resource.resource == 'configmaps'",
        "object.metadata.name.startsWith('a') && oldObject == null",
        "authorizer.group('').resource('pods').namespace('default').check('get').allowed()",
        "request.userInfo.username != '' && !request.dryRun"
    ]);
    configure_conditions(&mut admin, conditions, "Fail");
    admin.post(MAPS, &map("b")).ok();
    assert!(hooks.requests().is_empty(), "a condition does not hold");
    admin.post(MAPS, &map("a1")).ok();
    assert_eq!(hooks.requests().len(), 1);
    let broken = json!(["true", "object.data.none == 'x'"]);
    configure_conditions(&mut admin, broken.clone(), "Fail");
    let refused = admin.post(MAPS, &map("a2"));
    refused.expect_error(403, "Forbidden");
    assert_eq!(
        refused.json()["message"],
        "configmaps \"a2\" is forbidden: expression 'object.data.none == 'x'' resulted in error: no such key: none"
    );
    configure_conditions(&mut admin, broken, "Ignore");
    admin.post(MAPS, &map("a2")).ok();
    configure_conditions(&mut admin, json!(["object.data.none == 'x'", "false"]), "Fail");
    admin.post(MAPS, &map("a3")).ok();
    assert!(
        hooks.requests().is_empty(),
        "a false condition excludes the request despite an error in another"
    );
    let invalid = json!([{"name": "c", "expression": "object.nope("}]);
    let _absent = admin.delete(&format!("{GROUP}/validatingwebhookconfigurations/v"));
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "v"}, "webhooks": [hook(&hooks, "v.x.io", &json!({"matchConditions": invalid}))]
    });
    let refused = admin.post(&format!("{GROUP}/validatingwebhookconfigurations"), &configuration);
    refused.expect_error(422, "Invalid");
    let metrics = admin.get("/metrics").text();
    for expected in [
        r#"apiserver_admission_match_condition_exclusions_total{kind="webhook",name="v.x.io",operation="CREATE",type="validating"} 3"#,
        r#"apiserver_admission_match_condition_evaluation_errors_total{kind="webhook",name="v.x.io",operation="CREATE",type="validating"} 3"#,
        r#"apiserver_admission_match_condition_evaluation_seconds_count{kind="webhook",name="v.x.io",operation="CREATE",type="validating"} 5"#,
    ] {
        assert!(metrics.contains(expected), "{expected} is not in {metrics}");
    }
}

#[test]
fn webhook_reviews_subresources_delete_collection_and_apply() {
    let hooks = HookServer::start("h", |path, request| match (path, request["operation"].as_str()) {
        ("/scale.x.io", Some("UPDATE")) => {
            patch(&json!([{"op": "replace", "path": "/spec/replicas", "value": 7}]))
        }
        _ => allow(),
    });
    let server = Server::with_flags(&["--engine=memory", "--controllers=-*"]);
    let mut admin = server.admin();
    let scale = json!({"rules": [{"operations": ["*"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["*/scale"]}]});
    configure(
        &mut admin,
        "Mutating",
        "m",
        &[hook(&hooks, "maps.x.io", &json!({})), hook(&hooks, "scale.x.io", &scale)],
    );
    let body =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"l": "1"}}});
    let apply = [("Content-Type", "application/apply-patch+yaml")];
    let path = format!("{MAPS}/a?fieldManager=me&force=true");
    admin.request("PATCH", &path, &apply, body.to_string().as_bytes()).ok();
    admin.delete(&format!("{MAPS}?labelSelector=l%3D1")).ok();
    let requests = hooks.requests();
    assert_eq!((text(&requests[0], "/operation"), text(&requests[0], "/name")), ("CREATE", "a"));
    let options = json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me"});
    assert_eq!(requests[0]["options"], options);
    assert_eq!((text(&requests[1], "/operation"), requests[1].get("name")), ("DELETE", None));
    assert_eq!(text(&requests[1], "/oldObject/metadata/name"), "a");

    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    admin.post(deployments, &deployment).ok();
    hooks.clear_requests();
    let scaled =
        admin.patch(&format!("{deployments}/d/scale"), "merge", &json!({"spec": {"replicas": 3}})).ok();
    assert_eq!(scaled["spec"]["replicas"], 7);
    assert_eq!(admin.get(&format!("{deployments}/d")).ok()["spec"]["replicas"], 7);
    let request = hooks.requests().pop().unwrap();
    assert_eq!(request["kind"], json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}));
    assert_eq!((text(&request, "/subResource"), text(&request, "/resource/group")), ("scale", "apps"));
    assert_eq!(
        (&request["object"]["spec"]["replicas"], &request["oldObject"]["spec"]["replicas"]),
        (&json!(3), &json!(1))
    );
}

#[test]
fn webhook_receives_custom_resource_in_rule_version() {
    let hooks =
        HookServer::start("h", |_, _| patch(&json!([{"op": "add", "path": "/spec/by", "value": "hook"}])));
    let server = Server::with_flags(&["--engine=memory", "--controllers=-*"]);
    let mut admin = server.admin();
    let version = |name: &str, storage: bool| {
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        json!({"name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open}}}})
    };
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.x.io"}, "spec": {"group": "x.io", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"}, "versions": [version("v1", true), version("v2", false)]}});
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).ok();
    let collection = "/apis/x.io/v1/namespaces/default/things";
    poll(TIMEOUT, || (admin.get(collection).status == 200).then_some(())).expect("it is served");
    let v2 = json!({"rules": [{"operations": ["*"], "apiGroups": ["x.io"], "apiVersions": ["v2"], "resources": ["things"]}]});
    let exact = json!({"rules": v2["rules"], "matchPolicy": "Exact"});
    configure(&mut admin, "Mutating", "m", &[hook(&hooks, "m.x.io", &v2), hook(&hooks, "e.x.io", &exact)]);
    let custom_object =
        json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"a": 1}});
    let created = admin.post(collection, &custom_object).ok();
    assert_eq!(
        (text(&created, "/apiVersion"), &created["spec"]),
        ("x.io/v1", &json!({"a": 1, "by": "hook"}))
    );
    assert_eq!(hooks.targets(), ["/m.x.io?timeout=5s"]);
    let request = hooks.requests().pop().unwrap();
    assert_eq!((text(&request, "/kind/version"), text(&request, "/requestKind/version")), ("v2", "v1"));
    assert_eq!(text(&request, "/object/apiVersion"), "x.io/v2");
}
