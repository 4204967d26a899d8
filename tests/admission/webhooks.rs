//! Webhooks: others change objects, refuse them, hang, lie and die.

use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::hook_server::{Deed, HookServer};
use super::support::kubelet::Papers;
use super::support::wait::{CAP, poll};
use super::*;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
}

fn patch(operations: &Value) -> Deed {
    let text = STANDARD.encode(operations.to_string());
    Deed::Says(json!({"allowed": true, "patchType": "JSONPatch", "patch": text}))
}

fn yes() -> Deed {
    Deed::Says(json!({"allowed": true}))
}

/// A webhook of a configuration; `fields` take the place of the usual ones.
fn hook(server: &HookServer, name: &str, fields: &Value) -> Value {
    let mut hook = json!({
        "name": name,
        "clientConfig": {"url": server.url(&format!("/{name}")), "caBundle": STANDARD.encode(&server.authority_pem)},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
    });
    for (field, value) in fields.as_object().unwrap() {
        hook[field] = value.clone();
    }
    hook
}

fn configure(admin: &mut Client, sort: &str, name: &str, hooks: &[Value]) {
    let path = format!("{GROUP}/{}webhookconfigurations", sort.to_lowercase());
    let body = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{sort}WebhookConfiguration"),
        "metadata": {"name": name}, "webhooks": hooks});
    admin.post(&path, &body).ok();
}

fn message(status: &Value) -> &str {
    text(status, "/message")
}

#[test]
fn a_webhook_changes_what_is_stored() {
    let hooks = HookServer::start("h", |_, request| match request["operation"].as_str() {
        Some("DELETE") => yes(),
        _ => patch(&json!([{"op": "add", "path": "/data/by", "value": "hook"}])),
    });
    let server = Server::start();
    let mut admin = server.admin();
    configure(&mut admin, "Mutating", "m", &[hook(&hooks, "m.x.io", &json!({}))]);
    let made = admin.post(&format!("{MAPS}?fieldManager=me&fieldValidation=Strict"), &map("a")).ok();
    assert_eq!(made["data"], json!({"a": "b", "by": "hook"}));
    assert_eq!(admin.get(&format!("{MAPS}/a")).ok()["data"]["by"], "hook");
    // What the cluster changes belongs to nobody.
    let owned = &made["metadata"]["managedFields"][0]["fieldsV1"]["f:data"];
    assert!(owned.get("f:a").is_some() && owned.get("f:by").is_none(), "{owned}");

    let request = hooks.asked().pop().unwrap();
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

    // Patches, updates and applies are updates; deletions show what goes.
    hooks.forget();
    admin.patch(&format!("{MAPS}/a"), "merge", &json!({"data": {"c": "d"}})).ok();
    admin.put(&format!("{MAPS}/a"), &map("a")).ok();
    admin.delete(&format!("{MAPS}/a")).ok();
    let asked = hooks.asked();
    let words: Vec<&str> = asked.iter().map(|request| text(request, "/operation")).collect();
    assert_eq!(words, ["UPDATE", "UPDATE", "DELETE"]);
    assert_eq!(asked[0]["oldObject"]["data"], json!({"a": "b", "by": "hook"}));
    assert_eq!(asked[0]["options"]["kind"], "UpdateOptions");
    assert_eq!((&asked[2]["object"], &asked[2]["oldObject"]["data"]["by"]), (&Value::Null, &json!("hook")));
    assert_eq!(asked[2]["options"]["kind"], "DeleteOptions");
    assert!(hooks.connections() <= 2, "connections are kept: {}", hooks.connections());
    assert_ne!(kept(&mut admin), "0");

    // The configurations themselves are nobody's business but their author's.
    admin.delete(&format!("{GROUP}/mutatingwebhookconfigurations/m")).ok();
    assert_eq!(admin.post(MAPS, &map("b")).ok()["data"], json!({"a": "b"}), "it counts no more");
    assert_eq!(kept(&mut admin), "0", "and its connections went with it");
}

/// How many connections wait for the next question.
fn kept(admin: &mut Client) -> String {
    let metrics = admin.get("/metrics").text();
    let found = metrics.lines().find_map(|line| line.strip_prefix("pilothouse_connections_kept "));
    found.unwrap().to_owned()
}

#[test]
fn nobody_waits_longer_for_a_webhook_than_the_client_does() {
    let hooks = HookServer::start("h", |_, _| yes());
    let server = Server::start();
    let mut admin = server.admin();
    configure(&mut admin, "Mutating", "m", &[hook(&hooks, "m.x.io", &json!({}))]);
    admin.post(&format!("{MAPS}?timeout=3s"), &map("a")).ok();
    admin.post(&format!("{MAPS}?timeout=30s"), &map("b")).ok();
    assert_eq!(hooks.targets(), ["/m.x.io?timeout=3s", "/m.x.io?timeout=5s"]);
}

#[test]
fn whoever_has_the_name_of_the_server_is_not_the_server() {
    let hooks = HookServer::start("h", |_, _| Deed::Says(json!({"allowed": false})));
    let server = Server::start();
    let mut admin = server.admin();
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "v.x.io", &json!({}))]);
    let group = ("Impersonate-Group", "system:masters");
    let headers = [("Content-Type", "application/json"), ("Impersonate-User", "system:apiserver"), group];
    let answer = admin.request("POST", MAPS, &headers, map("a").to_string().as_bytes());
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(hooks.asked()[0]["userInfo"]["username"], "system:apiserver");
}

#[test]
fn bindings_are_asked_about_as_they_were_addressed() {
    let hooks = HookServer::start("h", |_, _| yes());
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
    let asked = hooks.asked();
    let seen = asked.iter().map(|request| {
        assert_eq!(request["kind"]["kind"], "Binding");
        assert_eq!(request["resource"], request["requestResource"]);
        (text(request, "/name"), text(request, "/resource/resource"), request["subResource"].as_str())
    });
    assert_eq!(seen.collect::<Vec<_>>(), [("a", "bindings", None), ("b", "pods", Some("binding"))]);
}

#[test]
fn what_webhooks_do_stands_in_the_record_of_a_request() {
    let hooks = HookServer::start("h", |path, _| match path {
        "/m.x.io" => patch(&json!([{"op": "add", "path": "/data/by", "value": "<hook>"}])),
        "/cut.x.io" => Deed::Cuts,
        _ => Deed::Says(json!({"allowed": true, "auditAnnotations": {"k": "v"}})),
    });
    let folder = directory();
    let (policy, log) = (folder.path().join("policy.json"), folder.path().join("audit.log"));
    let rules = json!([{"level": "Request", "resources": [{"resources": ["configmaps"]}]}]);
    let text = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}).to_string();
    std::fs::write(&policy, text).unwrap();
    let flags =
        [format!("--audit-policy-file={}", policy.display()), format!("--audit-log-path={}", log.display())];
    let server = Server::on(&folder.path().join("data"), &[&flags[0], &flags[1]]);
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
    let notes = &last["annotations"];
    for (key, wanted) in [
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
        assert_eq!(notes[key], wanted, "{key}: {notes:#}");
    }
    assert_eq!(last["requestObject"]["data"], json!({"a": "b"}), "as it came");
}

#[test]
fn a_refusal_is_told_in_the_webhooks_words() {
    let hooks = HookServer::start("h", |path, _| match path {
        "/bare.x.io" => Deed::Says(json!({"allowed": false})),
        _ => Deed::Says(json!({"allowed": false, "warnings": ["careful"], "auditAnnotations": {"k": "v"},
            "status": {"code": 418, "reason": "Teapot", "message": "too hot", "details": {"name": "n"}}})),
    });
    let server = Server::start();
    let mut admin = server.admin();
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "v.x.io", &json!({}))]);
    let answer = admin.post(MAPS, &map("a"));
    assert_eq!(answer.status, 418);
    assert_eq!(answer.warnings(), ["careful"]);
    assert_eq!(
        answer.json(),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "admission webhook \"v.x.io\" denied the request: too hot", "reason": "Teapot",
            "details": {"name": "n"}, "code": 418})
    );
    configure(&mut admin, "Mutating", "b", &[hook(&hooks, "bare.x.io", &json!({}))]);
    let bare = admin.post(MAPS, &map("a")).json();
    assert_eq!(message(&bare), "admission webhook \"bare.x.io\" denied the request without explanation");
    assert_eq!(bare["code"], 400);
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
fn a_webhook_that_fails_refuses_or_is_left_out() {
    let hooks = HookServer::start("h", |path, request| match path {
        "/hangs.x.io" => Deed::Hangs,
        "/cuts.x.io" => Deed::Cuts,
        "/text.x.io" => Deed::Raw("200 OK", "hello".to_owned()),
        "/empty.x.io" => Deed::Raw("200 OK", String::new()),
        "/broken.x.io" => Deed::Raw("500 No", "out of order".to_owned()),
        "/uid.x.io" => Deed::Says(json!({"uid": "other", "allowed": true})),
        "/half.x.io" => Deed::Says(json!({"allowed": true, "patch": "W10="})),
        "/patch.x.io" => patch(&json!([{"op": "replace", "path": "/x/y", "value": 1}])),
        "/long.x.io" => Deed::Raw("200 OK", "x".repeat(9 << 20)),
        _ => panic!("{request}"),
    });
    let server = Server::start();
    let mut admin = server.admin();
    let one_second = json!({"timeoutSeconds": 1});
    let ignored = json!({"timeoutSeconds": 1, "failurePolicy": "Ignore"});
    for (name, why) in [
        ("hangs.x.io", "failed to call webhook: Post \"URL\": context deadline exceeded"),
        ("cuts.x.io", "failed to call webhook: Post \"URL\": EOF"),
        (
            "text.x.io",
            "failed to call webhook: couldn't get version/kind; json parse error: invalid character 'h' looking for beginning of value",
        ),
        (
            "empty.x.io",
            "failed to call webhook: 0-length response with status code: 200 and content type: application/json",
        ),
        (
            "broken.x.io",
            "failed to call webhook: an error on the server (\"out of order\") has prevented the request from succeeding",
        ),
        ("uid.x.io", "received invalid webhook response: expected response.uid="),
        (
            "half.x.io",
            "received invalid webhook response: webhook returned response.patch but not response.patchType",
        ),
        ("long.x.io", "failed to call webhook: Post \"URL\": the answer has more than"),
    ] {
        let path = format!("{GROUP}/mutatingwebhookconfigurations/f");
        configure(&mut admin, "Mutating", "f", &[hook(&hooks, name, &one_second)]);
        let status = admin.post(MAPS, &map("a")).refused(500, "InternalError");
        let why = why.replace("URL", &hooks.url(&format!("/{name}?timeout=1s")));
        let wanted = format!("Internal error occurred: failed calling webhook \"{name}\": {why}");
        assert!(message(&status).starts_with(&wanted), "{}\n{wanted}", message(&status));
        admin.delete(&path).ok();
        configure(&mut admin, "Mutating", "f", &[hook(&hooks, name, &ignored)]);
        admin.post(&format!("{MAPS}?dryRun=All"), &map("a")).ok();
        admin.delete(&path).ok();
    }
    // A patch that does not apply is no failure to ask.
    configure(&mut admin, "Mutating", "f", &[hook(&hooks, "patch.x.io", &ignored)]);
    let status = admin.post(MAPS, &map("a")).refused(500, "InternalError");
    assert_eq!(
        message(&status),
        "Internal error occurred: replace operation does not apply: doc is missing path: /x/y: missing value"
    );
    let metrics = admin.get("/metrics").text();
    assert!(
        metrics.contains("apiserver_admission_webhook_fail_open_count{name=\"cuts.x.io\",type=\"admit\"} 1")
    );
}

#[test]
fn nobody_is_believed_whom_the_bundle_does_not_know() {
    let (hooks, others) = (HookServer::start("h", |_, _| yes()), HookServer::start("h", |_, _| yes()));
    let server = Server::start();
    let mut admin = server.admin();
    let wrong =
        json!({"clientConfig": {"url": hooks.url("/w"), "caBundle": STANDARD.encode(&others.authority_pem)}});
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "w.x.io", &wrong)]);
    let status = admin.post(MAPS, &map("a")).refused(500, "InternalError");
    let why = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    assert!(message(&status).ends_with(why), "{status}");
    assert!(hooks.asked().is_empty());
}

/// As test harnesses do it, which have no CA at hand.
#[test]
fn a_webhook_is_believed_whose_own_certificate_is_in_the_bundle() {
    let hooks = HookServer::with(&Papers::issued("h", &["127.0.0.1"]), |_, _| yes());
    let server = Server::start();
    let mut admin = server.admin();
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "w.x.io", &json!({}))]);
    admin.post(MAPS, &map("a")).ok();
    // The server itself may be making ConfigMaps.
    assert_eq!(hooks.asked().iter().filter(|asked| asked["name"] == "a").count(), 1);
}

#[test]
fn a_trial_asks_only_those_who_do_nothing_else() {
    let hooks = HookServer::start("h", |_, _| yes());
    let server = Server::start();
    let mut admin = server.admin();
    let dry = json!({"sideEffects": "NoneOnDryRun"});
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "d.x.io", &dry)]);
    admin.post(&format!("{MAPS}?dryRun=All"), &map("a")).ok();
    let request = hooks.asked().pop().unwrap();
    assert_eq!((&request["dryRun"], &request["options"]["dryRun"]), (&json!(true), &json!(["All"])));
    admin.get(&format!("{MAPS}/a")).refused(404, "NotFound");
}

#[test]
fn selectors_and_rules_choose_what_a_webhook_hears() {
    let hooks = HookServer::start("h", |_, _| yes());
    // Without control loops, which write into every new namespace.
    let server = Server::with(&["--engine=memory", "--controllers=-*"]);
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
    let heard = |admin: &mut Client, path: &str, object: &Value| {
        hooks.forget();
        admin.post(path, object).ok();
        let mut targets: Vec<String> =
            hooks.targets().iter().map(|target| target.split('?').next().unwrap().to_owned()).collect();
        targets.sort();
        targets.join(" ")
    };
    let namespace = |name: &str, label: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"watched": label}}});
    assert_eq!(heard(&mut admin, "/api/v1/namespaces", &namespace("w", "yes")), "/n.x.io");
    assert_eq!(heard(&mut admin, "/api/v1/namespaces", &namespace("u", "no")), "");
    assert_eq!(heard(&mut admin, "/api/v1/namespaces/w/configmaps", &map("a")), "/n.x.io");
    assert_eq!(heard(&mut admin, "/api/v1/namespaces/u/configmaps", &map("a")), "");
    let mut labelled = map("l");
    labelled["metadata"]["labels"] = json!({"o": "1"});
    assert_eq!(heard(&mut admin, "/api/v1/namespaces/u/configmaps", &labelled), "/o.x.io");
    hooks.forget();
    admin.patch("/api/v1/namespaces/u/configmaps/l", "merge", &json!({"metadata": {"labels": null}})).ok();
    assert_eq!(hooks.asked().len(), 1, "the old state counts too");

    // The same events under another name: sent as the rule knows them.
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "reason": "r",
        "involvedObject": {"kind": "Pod", "namespace": "u", "name": "x"}, "message": "note", "type": "Normal"});
    assert_eq!(heard(&mut admin, "/api/v1/namespaces/u/events", &event), "/e.x.io");
    let request = hooks.asked().pop().unwrap();
    assert_eq!(
        (&request["kind"]["group"], &request["requestKind"]["group"]),
        (&json!("events.k8s.io"), &json!(""))
    );
    assert_eq!(request["object"]["note"], "note");
    assert_eq!(request["object"]["apiVersion"], "events.k8s.io/v1");
}

#[test]
fn those_before_a_change_are_asked_again() {
    let hooks = HookServer::start("h", |path, request| match path {
        "/1.x.io" if request["object"]["data"]["late"] == "yes" => {
            patch(&json!([{"op": "add", "path": "/data/seen", "value": "yes"}]))
        }
        "/2.x.io" => patch(&json!([{"op": "add", "path": "/data/late", "value": "yes"}])),
        _ => yes(),
    });
    let server = Server::start();
    let mut admin = server.admin();
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    configure(
        &mut admin,
        "Mutating",
        "m",
        &[hook(&hooks, "1.x.io", &again), hook(&hooks, "2.x.io", &json!({})), hook(&hooks, "3.x.io", &again)],
    );
    let made = admin.post(MAPS, &map("a")).ok();
    assert_eq!(made["data"], json!({"a": "b", "late": "yes", "seen": "yes"}));
    let order: Vec<String> = hooks.targets().iter().map(|target| target[1..2].to_owned()).collect();
    assert_eq!(order.join(""), "12313", "and those that had been asked before the second change, too");
}

#[test]
fn a_patched_object_is_defaulted_and_checked() {
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
    let made = admin.post(PODS, &pod("good", &json!({}))).ok();
    assert_eq!(made["spec"]["containers"][1]["imagePullPolicy"], "Always");
    admin.post(PODS, &pod("bad", &json!({}))).refused(422, "Invalid");
    admin.post(PODS, &pod("moved", &json!({}))).refused(400, "BadRequest");
}

#[test]
fn a_service_is_found_and_shown_what_the_operator_says() {
    let hooks = HookServer::start("s.default.svc", |_, _| yes());
    let home = directory();
    let users = home.path().join("users");
    std::fs::write(&users, "users: [{name: '*', user: {token: secret}}]\n").unwrap();
    let file = home.path().join("admission.yaml");
    let document = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n\
         - name: ValidatingAdmissionWebhook\n  configuration: {{apiVersion: apiserver.config.k8s.io/v1, \
         kind: WebhookAdmissionConfiguration, kubeConfigFile: {}}}\n",
        users.display()
    );
    std::fs::write(&file, document).unwrap();
    let flag = format!("--admission-control-config-file={}", file.display());
    let server = Server::with(&["--engine=memory", &flag]);
    let mut admin = server.admin();
    let service = |port: u16| {
        json!({"clientConfig": {"service": {"namespace": "default", "name": "s", "path": "/p", "port": port},
            "caBundle": STANDARD.encode(&hooks.authority_pem)}})
    };
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "v.x.io", &service(hooks.port))]);
    let status = admin.post(MAPS, &map("a")).refused(500, "InternalError");
    let wanted =
        format!("Post \"https://s.default.svc:{}/p?timeout=5s\": service \"s\" not found", hooks.port);
    assert!(message(&status).ends_with(&wanted), "{status}");
    let services = "/api/v1/namespaces/default/services";
    let body = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"type": "ExternalName", "externalName": "localhost"}});
    admin.post(services, &body).ok();
    admin.post(MAPS, &map("a")).ok();
    let head = hooks.last_head();
    for line in [
        "post /p?timeout=5s http/1.1".to_owned(),
        format!("host: s.default.svc:{}", hooks.port),
        "authorization: bearer secret".to_owned(),
        "user-agent: kube-apiserver-admission".to_owned(),
    ] {
        assert!(head.lines().any(|found| found == line), "{line}\n{head}");
    }
}

#[test]
fn connections_and_reviews_are_asked_about() {
    let hooks = HookServer::start("h", |path, _| match path {
        "/exec.x.io" => Deed::Says(json!({"allowed": false, "status": {"message": "no shells"}})),
        _ => yes(),
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
    let request = hooks.asked().pop().unwrap();
    assert_eq!(
        request["object"],
        json!({"kind": "PodExecOptions", "apiVersion": "v1", "stdin": true, "command": ["sh", "-c"]})
    );
    assert_eq!((text(&request, "/subResource"), text(&request, "/operation")), ("exec", "CONNECT"));
    assert_eq!((&request["options"], text(&request, "/kind/kind")), (&Value::Null, "PodExecOptions"));
    let me = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    admin.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &me).ok();
    assert_eq!(text(&hooks.asked()[1], "/kind/kind"), "SelfSubjectReview");
}

#[test]
fn conditions_decide_who_is_asked() {
    let hooks = HookServer::start("h", |_, _| yes());
    let server = Server::start();
    let mut admin = server.admin();
    let configured = |admin: &mut Client, conditions: Value, failures: &str| {
        let named: Vec<Value> = (0..)
            .zip(conditions.as_array().unwrap())
            .map(|(place, text)| json!({"name": format!("c{place}"), "expression": text}))
            .collect();
        let _absent = admin.delete(&format!("{GROUP}/validatingwebhookconfigurations/v"));
        let fields = json!({"matchConditions": named, "failurePolicy": failures});
        configure(admin, "Validating", "v", &[hook(&hooks, "v.x.io", &fields)]);
        hooks.forget();
    };
    let all = json!([
        "request.operation == 'CREATE' && request.resource.resource == 'configmaps'",
        "object.metadata.name.startsWith('a') && oldObject == null",
        "authorizer.group('').resource('pods').namespace('default').check('get').allowed()",
        "request.userInfo.username != '' && !request.dryRun"
    ]);
    configured(&mut admin, all, "Fail");
    admin.post(MAPS, &map("b")).ok();
    assert!(hooks.asked().is_empty(), "a condition does not hold");
    admin.post(MAPS, &map("a1")).ok();
    assert_eq!(hooks.asked().len(), 1);
    let broken = json!(["true", "object.data.none == 'x'"]);
    configured(&mut admin, broken.clone(), "Fail");
    let refused = admin.post(MAPS, &map("a2"));
    refused.refused(403, "Forbidden");
    assert_eq!(
        refused.json()["message"],
        "configmaps \"a2\" is forbidden: expression 'object.data.none == 'x'' resulted in error: no such key: none"
    );
    configured(&mut admin, broken, "Ignore");
    admin.post(MAPS, &map("a2")).ok();
    configured(&mut admin, json!(["object.data.none == 'x'", "false"]), "Fail");
    admin.post(MAPS, &map("a3")).ok();
    assert!(hooks.asked().is_empty(), "one that does not hold decides");
    let wrong = json!([{"name": "c", "expression": "object.nope("}]);
    let _absent = admin.delete(&format!("{GROUP}/validatingwebhookconfigurations/v"));
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "v"}, "webhooks": [hook(&hooks, "v.x.io", &json!({"matchConditions": wrong}))]
    });
    let refused = admin.post(&format!("{GROUP}/validatingwebhookconfigurations"), &configuration);
    refused.refused(422, "Invalid");
    let counted = admin.get("/metrics").text();
    for wanted in [
        r#"apiserver_admission_match_condition_exclusions_total{kind="webhook",name="v.x.io",operation="CREATE",type="validating"} 3"#,
        r#"apiserver_admission_match_condition_evaluation_errors_total{kind="webhook",name="v.x.io",operation="CREATE",type="validating"} 3"#,
        r#"apiserver_admission_match_condition_evaluation_seconds_count{kind="webhook",name="v.x.io",operation="CREATE",type="validating"} 5"#,
    ] {
        assert!(counted.contains(wanted), "{wanted} is not in {counted}");
    }
}

#[test]
fn a_webhook_that_dies_refuses_what_it_cannot_judge_and_nothing_else() {
    let hooks = HookServer::start("h", |_, _| yes());
    let server = Server::start();
    let mut admin = server.admin();
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "v.x.io", &json!({}))]);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let mut admin = server.admin();
                scope.spawn(move || {
                    let answers =
                        (0..50).map(|index| admin.post(MAPS, &map(&format!("m{writer}-{index}"))).status);
                    answers.collect::<Vec<u16>>()
                })
            })
            .collect();
        while hooks.asked().len() < 20 {
            thread::yield_now();
        }
        hooks.kill();
        for writer in writers {
            let answers = writer.join().unwrap();
            assert!(answers.iter().all(|status| matches!(status, 201 | 500)), "{answers:?}");
            assert_eq!(answers.last(), Some(&500));
        }
    });
    // Others go on.
    admin.post(PODS, &pod("p", &json!({}))).ok();
}

#[test]
fn parts_collections_and_applied_objects_are_asked_about() {
    let hooks = HookServer::start("h", |path, request| match (path, request["operation"].as_str()) {
        ("/scale.x.io", Some("UPDATE")) => {
            patch(&json!([{"op": "replace", "path": "/spec/replicas", "value": 7}]))
        }
        _ => yes(),
    });
    let server = Server::with(&["--engine=memory", "--controllers=-*"]);
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
    let asked = hooks.asked();
    assert_eq!((text(&asked[0], "/operation"), text(&asked[0], "/name")), ("CREATE", "a"));
    let options = json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me"});
    assert_eq!(asked[0]["options"], options);
    assert_eq!((text(&asked[1], "/operation"), asked[1].get("name")), ("DELETE", None));
    assert_eq!(text(&asked[1], "/oldObject/metadata/name"), "a");

    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    admin.post(deployments, &deployment).ok();
    hooks.forget();
    let scaled =
        admin.patch(&format!("{deployments}/d/scale"), "merge", &json!({"spec": {"replicas": 3}})).ok();
    assert_eq!(scaled["spec"]["replicas"], 7);
    assert_eq!(admin.get(&format!("{deployments}/d")).ok()["spec"]["replicas"], 7);
    let request = hooks.asked().pop().unwrap();
    assert_eq!(request["kind"], json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}));
    assert_eq!((text(&request, "/subResource"), text(&request, "/resource/group")), ("scale", "apps"));
    assert_eq!(
        (&request["object"]["spec"]["replicas"], &request["oldObject"]["spec"]["replicas"]),
        (&json!(3), &json!(1))
    );
}

#[test]
fn custom_objects_are_sent_in_the_version_that_rules_name() {
    let hooks =
        HookServer::start("h", |_, _| patch(&json!([{"op": "add", "path": "/spec/by", "value": "hook"}])));
    let server = Server::with(&["--engine=memory", "--controllers=-*"]);
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
    let things = "/apis/x.io/v1/namespaces/default/things";
    poll(CAP, || (admin.get(things).status == 200).then_some(())).expect("it is served");
    let v2 = json!({"rules": [{"operations": ["*"], "apiGroups": ["x.io"], "apiVersions": ["v2"], "resources": ["things"]}]});
    let exact = json!({"rules": v2["rules"], "matchPolicy": "Exact"});
    configure(&mut admin, "Mutating", "m", &[hook(&hooks, "m.x.io", &v2), hook(&hooks, "e.x.io", &exact)]);
    let thing =
        json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"a": 1}});
    let made = admin.post(things, &thing).ok();
    assert_eq!((text(&made, "/apiVersion"), &made["spec"]), ("x.io/v1", &json!({"a": 1, "by": "hook"})));
    assert_eq!(hooks.targets(), ["/m.x.io?timeout=5s"]);
    let request = hooks.asked().pop().unwrap();
    assert_eq!((text(&request, "/kind/version"), text(&request, "/requestKind/version")), ("v2", "v1"));
    assert_eq!(text(&request, "/object/apiVersion"), "x.io/v2");
}
