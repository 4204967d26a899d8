//! Patches, denials and audit annotations of webhooks.

use super::*;

#[test]
fn mutating_webhook_patch_is_stored_and_review_is_complete() {
    let hooks = HookServer::start("h", |_, request| match request["operation"].as_str() {
        Some("DELETE") => allow(),
        _ => patch(&json!([{"op": "add", "path": "/data/by", "value": "hook"}])),
    });
    let server = Server::start();
    let mut admin = server.admin();
    configure(&mut admin, "Mutating", "m", &[hook(&hooks, "m.x.io", &json!({}))]);
    let created = admin.post(&format!("{MAPS}?fieldManager=me&fieldValidation=Strict"), &map("a")).ok();
    assert_eq!(created["data"], json!({"a": "b", "by": "hook"}));
    assert_eq!(admin.get(&format!("{MAPS}/a")).ok()["data"]["by"], "hook");
    // Fields changed by admission have no owner.
    let owned = &created["metadata"]["managedFields"][0]["fieldsV1"]["f:data"];
    assert!(owned.get("f:a").is_some() && owned.get("f:by").is_none(), "{owned}");

    let request = hooks.requests().pop().unwrap();
    let mut plain = request.clone();
    for field in ["uid", "object", "userInfo"] {
        plain.as_object_mut().unwrap().remove(field);
    }
    let (kind, resource) = (
        json!({"group": "", "version": "v1", "kind": "ConfigMap"}),
        json!({"group": "", "version": "v1", "resource": "configmaps"}),
    );
    assert_eq!(
        plain,
        json!({"kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource, "name": "a",
            "namespace": "default", "operation": "CREATE", "oldObject": null, "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me",
                "fieldValidation": "Strict"}})
    );
    assert_eq!(request["object"]["kind"], "ConfigMap");
    assert!(request["userInfo"]["groups"].as_array().unwrap().contains(&json!("system:masters")));
    assert_eq!(hooks.targets(), ["/m.x.io?timeout=5s"]);

    // Patches and updates are UPDATE; DELETE has the old object.
    hooks.clear_requests();
    admin.patch(&format!("{MAPS}/a"), "merge", &json!({"data": {"c": "d"}})).ok();
    admin.put(&format!("{MAPS}/a"), &map("a")).ok();
    admin.delete(&format!("{MAPS}/a")).ok();
    let requests = hooks.requests();
    let operations: Vec<&str> = requests.iter().map(|request| text(request, "/operation")).collect();
    assert_eq!(operations, ["UPDATE", "UPDATE", "DELETE"]);
    assert_eq!(requests[0]["oldObject"]["data"], json!({"a": "b", "by": "hook"}));
    assert_eq!(requests[0]["options"]["kind"], "UpdateOptions");
    assert_eq!(
        (&requests[2]["object"], &requests[2]["oldObject"]["data"]["by"]),
        (&Value::Null, &json!("hook"))
    );
    assert_eq!(requests[2]["options"]["kind"], "DeleteOptions");
    assert!(hooks.connections() <= 2, "connections are kept: {}", hooks.connections());
    assert_ne!(idle_connections(&mut admin), "0");

    // Webhook configurations themselves are not reviewed.
    admin.delete(&format!("{GROUP}/mutatingwebhookconfigurations/m")).ok();
    assert_eq!(admin.post(MAPS, &map("b")).ok()["data"], json!({"a": "b"}), "the configuration is gone");
    assert_eq!(idle_connections(&mut admin), "0", "its connections are closed");
}

/// The metric of idle connections to webhooks.
fn idle_connections(admin: &mut Client) -> String {
    let metrics = admin.get("/metrics").text();
    let value = metrics.lines().find_map(|line| line.strip_prefix("pilothouse_connections_kept "));
    value.unwrap().to_owned()
}

#[test]
fn webhook_results_are_audit_annotations() {
    let hooks = HookServer::start("h", |path, _| match path {
        "/m.x.io" => patch(&json!([{"op": "add", "path": "/data/by", "value": "<hook>"}])),
        "/cut.x.io" => Reply::Close,
        _ => Reply::Review(json!({"allowed": true, "auditAnnotations": {"k": "v"}})),
    });
    let directory = temp_directory();
    let (policy, log) = (directory.path().join("policy.json"), directory.path().join("audit.log"));
    let rules = json!([{"level": "Request", "resources": [{"resources": ["configmaps"]}]}]);
    let text = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}).to_string();
    std::fs::write(&policy, text).unwrap();
    let flags =
        [format!("--audit-policy-file={}", policy.display()), format!("--audit-log-path={}", log.display())];
    let server = Server::start_in(&directory.path().join("data"), &[&flags[0], &flags[1]]);
    let mut admin = server.admin();
    let open = json!({"failurePolicy": "Ignore"});
    let mutating = [hook(&hooks, "m.x.io", &json!({})), hook(&hooks, "cut.x.io", &open)];
    configure(&mut admin, "Mutating", "m", &mutating);
    configure(
        &mut admin,
        "Validating",
        "v",
        &[hook(&hooks, "v.x.io", &json!({})), hook(&hooks, "cut.x.io", &open)],
    );
    admin.post(MAPS, &map("a")).ok();
    let records = std::fs::read_to_string(&log).unwrap();
    let last: Value = serde_json::from_str(records.lines().last().unwrap()).unwrap();
    let annotations = &last["annotations"];
    for (key, expected) in [
        (
            "mutation.webhook.admission.k8s.io/round_0_index_0",
            r#"{"configuration":"m","webhook":"m.x.io","mutated":true}"#,
        ),
        (
            "mutation.webhook.admission.k8s.io/round_0_index_1",
            r#"{"configuration":"m","webhook":"cut.x.io","mutated":false}"#,
        ),
        ("failed-open.mutation.webhook.admission.k8s.io/round_0_index_1", "cut.x.io"),
        ("failed-open.validating.webhook.admission.k8s.io/round_0_index_1", "cut.x.io"),
        (
            "patch.webhook.admission.k8s.io/round_0_index_0",
            r#"{"configuration":"m","webhook":"m.x.io","patch":[{"op":"add","path":"/data/by","value":"\u003chook\u003e"}],"patchType":"JSONPatch"}"#,
        ),
        ("v.x.io/k", "v"),
    ] {
        assert_eq!(annotations[key], expected, "{key}: {annotations:#}");
    }
    assert_eq!(last["requestObject"]["data"], json!({"a": "b"}), "as submitted");
}

#[test]
fn webhook_denial_status_is_returned_to_client() {
    let hooks = HookServer::start("h", |path, _| match path {
        "/bare.x.io" => Reply::Review(json!({"allowed": false})),
        _ => Reply::Review(json!({"allowed": false, "warnings": ["careful"], "auditAnnotations": {"k": "v"},
            "status": {"code": 418, "reason": "Teapot", "message": "too hot", "details": {"name": "n"}}})),
    });
    let server = Server::start();
    let mut admin = server.admin();
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "v.x.io", &json!({}))]);
    let response = admin.post(MAPS, &map("a"));
    assert_eq!(response.status, 418);
    assert_eq!(response.warnings(), ["careful"]);
    assert_eq!(
        response.json(),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "admission webhook \"v.x.io\" denied the request: too hot", "reason": "Teapot",
            "details": {"name": "n"}, "code": 418})
    );
    configure(&mut admin, "Mutating", "b", &[hook(&hooks, "bare.x.io", &json!({}))]);
    let response_without_status = admin.post(MAPS, &map("a")).json();
    assert_eq!(
        message(&response_without_status),
        "admission webhook \"bare.x.io\" denied the request without explanation"
    );
    assert_eq!(response_without_status["code"], 400);
    let metrics = admin.get("/metrics").text();
    for line in [
        "apiserver_admission_webhook_rejection_count{error_type=\"no_error\",name=\"v.x.io\",operation=\"CREATE\",\
         rejection_code=\"418\",type=\"validating\"} 1",
        "apiserver_admission_webhook_request_total{code=\"400\",name=\"bare.x.io\",operation=\"CREATE\",\
         rejected=\"true\",type=\"admit\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

#[test]
fn mutating_webhook_is_reinvoked_after_later_change() {
    let hooks = HookServer::start("h", |path, request| match path {
        "/1.x.io" if request["object"]["data"]["late"] == "yes" => {
            patch(&json!([{"op": "add", "path": "/data/seen", "value": "yes"}]))
        }
        "/2.x.io" => patch(&json!([{"op": "add", "path": "/data/late", "value": "yes"}])),
        _ => allow(),
    });
    let server = Server::start();
    let mut admin = server.admin();
    let reinvoked = json!({"reinvocationPolicy": "IfNeeded"});
    configure(
        &mut admin,
        "Mutating",
        "m",
        &[
            hook(&hooks, "1.x.io", &reinvoked),
            hook(&hooks, "2.x.io", &json!({})),
            hook(&hooks, "3.x.io", &reinvoked),
        ],
    );
    let created = admin.post(MAPS, &map("a")).ok();
    assert_eq!(created["data"], json!({"a": "b", "late": "yes", "seen": "yes"}));
    let order: Vec<String> = hooks.targets().iter().map(|target| target[1..2].to_owned()).collect();
    assert_eq!(order.join(""), "12313", "webhooks before the second change are reinvoked, too");
}

#[test]
fn webhook_patched_object_is_defaulted_and_validated() {
    let hooks = HookServer::start("h", |_, request| match request["name"].as_str() {
        Some("bad") => patch(&json!([{"op": "add", "path": "/metadata/labels", "value": {"-": "x"}}])),
        Some("moved") => {
            patch(&json!([{"op": "add", "path": "/metadata/namespace", "value": "kube-system"}]))
        }
        _ => patch(
            &json!([{"op": "add", "path": "/spec/containers/-", "value": {"name": "side", "image": "i"}}]),
        ),
    });
    let server = Server::start();
    let mut admin = server.admin();
    let pods = json!({"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]});
    configure(&mut admin, "Mutating", "m", &[hook(&hooks, "m.x.io", &pods)]);
    let created = admin.post(PODS, &pod("good", &json!({}))).ok();
    assert_eq!(created["spec"]["containers"][1]["imagePullPolicy"], "Always");
    admin.post(PODS, &pod("bad", &json!({}))).expect_error(422, "Invalid");
    admin.post(PODS, &pod("moved", &json!({}))).expect_error(400, "BadRequest");
}
