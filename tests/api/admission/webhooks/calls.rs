//! Connections, timeouts, trust and failures of webhook calls.

use super::*;

#[test]
fn webhook_timeout_is_capped_by_request_timeout() {
    let hooks = HookServer::start("h", |_, _| allow());
    let server = Server::start();
    let mut admin = server.admin();
    configure(&mut admin, "Mutating", "m", &[hook(&hooks, "m.x.io", &json!({}))]);
    admin.post(&format!("{MAPS}?timeout=3s"), &map("a")).ok();
    admin.post(&format!("{MAPS}?timeout=30s"), &map("b")).ok();
    assert_eq!(hooks.targets(), ["/m.x.io?timeout=3s", "/m.x.io?timeout=5s"]);
}

#[test]
fn failing_webhook_follows_failure_policy() {
    let hooks = HookServer::start("h", |path, request| match path {
        "/hangs.x.io" => Reply::Hang,
        "/cuts.x.io" => Reply::Close,
        "/text.x.io" => Reply::Raw("200 OK", "hello".to_owned()),
        "/empty.x.io" => Reply::Raw("200 OK", String::new()),
        "/broken.x.io" => Reply::Raw("500 No", "out of order".to_owned()),
        "/uid.x.io" => Reply::Review(json!({"uid": "other", "allowed": true})),
        "/half.x.io" => Reply::Review(json!({"allowed": true, "patch": "W10="})),
        "/patch.x.io" => patch(&json!([{"op": "replace", "path": "/x/y", "value": 1}])),
        "/long.x.io" => Reply::Raw("200 OK", "x".repeat(9 << 20)),
        _ => panic!("{request}"),
    });
    let server = Server::start();
    let mut admin = server.admin();
    let one_second = json!({"timeoutSeconds": 1});
    let ignored = json!({"timeoutSeconds": 1, "failurePolicy": "Ignore"});
    for (name, reason) in [
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
        ("long.x.io", "failed to call webhook: Post \"URL\": the response has more than"),
    ] {
        let path = format!("{GROUP}/mutatingwebhookconfigurations/f");
        configure(&mut admin, "Mutating", "f", &[hook(&hooks, name, &one_second)]);
        let status = admin.post(MAPS, &map("a")).expect_error(500, "InternalError");
        let reason = reason.replace("URL", &hooks.url(&format!("/{name}?timeout=1s")));
        let expected = format!("Internal error occurred: failed calling webhook \"{name}\": {reason}");
        assert!(message(&status).starts_with(&expected), "{}\n{expected}", message(&status));
        admin.delete(&path).ok();
        configure(&mut admin, "Mutating", "f", &[hook(&hooks, name, &ignored)]);
        admin.post(&format!("{MAPS}?dryRun=All"), &map("a")).ok();
        admin.delete(&path).ok();
    }
    // A patch that does not apply is not a webhook failure.
    configure(&mut admin, "Mutating", "f", &[hook(&hooks, "patch.x.io", &ignored)]);
    let status = admin.post(MAPS, &map("a")).expect_error(500, "InternalError");
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
fn webhook_with_untrusted_certificate_fails() {
    let (hooks, other_hooks) =
        (HookServer::start("h", |_, _| allow()), HookServer::start("h", |_, _| allow()));
    let server = Server::start();
    let mut admin = server.admin();
    let invalid =
        json!({"clientConfig": {"url": hooks.url("/w"), "caBundle": STANDARD.encode(&other_hooks.ca_pem)}});
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "w.x.io", &invalid)]);
    let status = admin.post(MAPS, &map("a")).expect_error(500, "InternalError");
    let reason = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    assert!(message(&status).ends_with(reason), "{status}");
    assert!(hooks.requests().is_empty());
}

/// Test harnesses without a CA put the webhook's own certificate into the bundle.
#[test]
fn webhook_leaf_certificate_in_ca_bundle_is_trusted() {
    let hooks = HookServer::with_identity(&TlsIdentity::by_unknown_ca("h", &["127.0.0.1"]), |_, _| allow());
    let server = Server::start();
    let mut admin = server.admin();
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "w.x.io", &json!({}))]);
    admin.post(MAPS, &map("a")).ok();
    // The server itself may create ConfigMaps, too.
    assert_eq!(hooks.requests().iter().filter(|requests| requests["name"] == "a").count(), 1);
}

#[test]
fn webhook_service_is_resolved_and_sent_kubeconfig_credentials() {
    let hooks = HookServer::start("s.default.svc", |_, _| allow());
    let home = temp_directory();
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
    let server = Server::with_flags(&["--engine=memory", &flag]);
    let mut admin = server.admin();
    let service = |port: u16| {
        json!({"clientConfig": {"service": {"namespace": "default", "name": "s", "path": "/p", "port": port},
            "caBundle": STANDARD.encode(&hooks.ca_pem)}})
    };
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "v.x.io", &service(hooks.port))]);
    let status = admin.post(MAPS, &map("a")).expect_error(500, "InternalError");
    let expected =
        format!("Post \"https://s.default.svc:{}/p?timeout=5s\": service \"s\" not found", hooks.port);
    assert!(message(&status).ends_with(&expected), "{status}");
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
        assert!(head.lines().any(|header_line| header_line == line), "{line}\n{head}");
    }
}

#[test]
fn stopped_webhook_fails_only_its_own_requests() {
    let hooks = HookServer::start("h", |_, _| allow());
    let server = Server::start();
    let mut admin = server.admin();
    configure(&mut admin, "Validating", "v", &[hook(&hooks, "v.x.io", &json!({}))]);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let mut admin = server.admin();
                scope.spawn(move || {
                    let responses =
                        (0..50).map(|index| admin.post(MAPS, &map(&format!("m{writer}-{index}"))).status);
                    responses.collect::<Vec<u16>>()
                })
            })
            .collect();
        while hooks.requests().len() < 20 {
            thread::yield_now();
        }
        hooks.kill();
        for writer in writers {
            let responses = writer.join().unwrap();
            assert!(responses.iter().all(|status| matches!(status, 201 | 500)), "{responses:?}");
            assert_eq!(responses.last(), Some(&500));
        }
    });
    // Other resources are not affected.
    admin.post(PODS, &pod("p", &json!({}))).ok();
}
