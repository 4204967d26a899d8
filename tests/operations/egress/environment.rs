//! The proxies of the environment, and those of kubeconfigs.

use super::*;

/// A server with these variables in its environment.
fn server(flags: &[&str], variables: &[(&str, &str)]) -> (Server, TempDir) {
    let folder = crate::support::server::temp_directory();
    let server = Server::start_with_environment(&folder.path().join("data"), flags, variables);
    (server, folder)
}

fn add_hook(admin: &mut Client, hook: &HookServer, host: &str) {
    let config = json!({"url": format!("https://{host}/review"), "caBundle": STANDARD.encode(&hook.ca_pem)});
    let webhook = json!({
        "name": "a.example.com", "clientConfig": config,
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
    });
    let body = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "a"}, "webhooks": [webhook]});
    admin.post("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", &body).ok();
}

fn create_map(admin: &mut Client, name: &str) -> (u16, String) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let response = admin.post(MAPS, &map);
    (response.status, response.text())
}

fn user_of(server: &Server, token: &str) -> String {
    let mut client = server.anonymous().with_token(Some(token));
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let response = client.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review);
    response.json()["status"]["userInfo"]["username"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn webhooks_are_called_through_the_proxies_of_the_environment() {
    let hook = HookServer::start("far.test", |_, _| Reply::Review(json!({"allowed": true})));
    let tokens = Kubelet::plain(LOOPBACK, serve_tokens);
    let (hook_address, token_address) = (SocketAddr::new(LOOPBACK, hook.port), tokens.address);
    let proxy = TestProxy::start(ProxyForm::HttpOnTcp(None), move |target| match target {
        "far.test:8443" => Some(hook_address),
        "tokens.test:8080" => Some(token_address),
        _ => None,
    });
    let address = proxy.address.unwrap();
    let folder = crate::support::server::temp_directory();
    let kubeconfig = folder.path().join("tokens.kubeconfig");
    let text = token_kubeconfig(0).replace("127.0.0.1:0", "tokens.test:8080");
    fs::write(&kubeconfig, text).unwrap();
    let url = format!("http://{address}");
    let flags = [
        "--engine=memory".to_owned(),
        format!("--authentication-token-webhook-config-file={}", kubeconfig.display()),
    ];
    let flags = flags.each_ref().map(String::as_str);
    let variables =
        [("HTTPS_PROXY", url.as_str()), ("http_proxy", url.as_str()), ("NO_PROXY", "near.test,10.0.0.0/8")];
    let (server, _data) = server(&flags, &variables);
    let mut admin = server.admin();
    add_hook(&mut admin, &hook, "far.test:8443");
    assert_eq!(create_map(&mut admin, "a").0, 201);
    assert_eq!(hook.targets(), ["/review?timeout=5s"]);
    assert_eq!(user_of(&server, "abc"), "bearer-of-abc");
    assert_eq!(tokens.last_request().target, "/tokens", "the proxy was given the whole URL");
    assert_eq!(proxy.targets(), ["far.test:8443", "tokens.test:8080"]);
}

#[test]
fn hosts_of_no_proxy_and_this_machine_are_reached_directly() {
    let hook = HookServer::start("localhost", |_, _| Reply::Review(json!({"allowed": true})));
    let proxy = TestProxy::start(ProxyForm::HttpOnTcp(None), |_| None);
    let url = format!("http://{}", proxy.address.unwrap());
    let (server, _data) = server(
        &["--engine=memory"],
        &[("HTTPS_PROXY", &url), ("HTTP_PROXY", &url), ("NO_PROXY", ".invalid")],
    );
    let mut admin = server.admin();
    add_hook(&mut admin, &hook, &format!("localhost:{}", hook.port));
    assert_eq!(create_map(&mut admin, "a").0, 201);
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/a";
    admin.delete(path).ok();
    add_hook(&mut admin, &hook, "nobody.invalid");
    wait_for_refusal(|| create_map(&mut admin, "b"), "dial tcp: lookup nobody.invalid: no such host");
    assert!(proxy.targets().is_empty());
    admin.delete(path).ok();
    add_hook(&mut admin, &hook, "nobody.test");
    wait_for_refusal(|| create_map(&mut admin, "c"), "503 Service Unavailable");
    assert_eq!(proxy.targets(), ["nobody.test:443"]);
}

#[test]
fn proxy_url_with_https_is_verified_by_the_authority_of_its_kubeconfig() {
    let tokens = Kubelet::plain(LOOPBACK, serve_tokens);
    let token_address = tokens.address;
    let identity = TlsIdentity::new("proxy", &["127.0.0.1"]);
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
    acceptor.set_certificate(&identity.certificate).unwrap();
    acceptor.set_private_key(&identity.key).unwrap();
    let proxy = TestProxy::start(ProxyForm::HttpOnTcp(Some(acceptor.build())), move |_| Some(token_address));
    let folder = crate::support::server::temp_directory();
    let (authority, _) = identity.write(folder.path(), "proxy");
    let (other, _) = TlsIdentity::new("proxy", &["127.0.0.1"]).write(folder.path(), "other");
    let kubeconfig = folder.path().join("tokens.kubeconfig");
    for (authority, user) in [(authority, "bearer-of-abc"), (other, "")] {
        let cluster = format!(
            "server: 'http://tokens.test/tokens', proxy-url: 'https://{}', certificate-authority: '{}'",
            proxy.address.unwrap(),
            authority.display()
        );
        let text = token_kubeconfig(0).replace("server: 'http://127.0.0.1:0/tokens'", &cluster);
        fs::write(&kubeconfig, text).unwrap();
        let flag = format!("--authentication-token-webhook-config-file={}", kubeconfig.display());
        let server = Server::with_flags(&["--engine=memory", &flag]);
        assert_eq!(user_of(&server, "abc"), user);
    }
    assert_eq!(proxy.targets(), ["tokens.test"]);
}

/// A proxy with TLS, which leads everything to one address, and its certificate.
fn secure_proxy(address: SocketAddr) -> (TestProxy, TlsIdentity) {
    let identity = TlsIdentity::new("proxy", &["127.0.0.1"]);
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
    acceptor.set_certificate(&identity.certificate).unwrap();
    acceptor.set_private_key(&identity.key).unwrap();
    (TestProxy::start(ProxyForm::HttpOnTcp(Some(acceptor.build())), move |_| Some(address)), identity)
}

#[test]
fn proxy_of_the_environment_is_verified_although_the_server_behind_it_is_not() {
    let tokens = Kubelet::plain(LOOPBACK, serve_tokens);
    let (proxy, identity) = secure_proxy(tokens.address);
    let folder = crate::support::server::temp_directory();
    let (authority, _) = identity.write(folder.path(), "proxy");
    let kubeconfig = folder.path().join("tokens.kubeconfig");
    let cluster = "server: 'http://tokens.test/tokens', insecure-skip-tls-verify: true";
    let text = token_kubeconfig(0).replace("server: 'http://127.0.0.1:0/tokens'", cluster);
    fs::write(&kubeconfig, text).unwrap();
    let flag = format!("--authentication-token-webhook-config-file={}", kubeconfig.display());
    let url = format!("https://{}", proxy.address.unwrap());
    let start = |variables: &[(&str, &str)]| server(&["--engine=memory", &flag], variables);
    let (untrusting, _data) = start(&[("HTTP_PROXY", &url)]);
    assert_eq!(user_of(&untrusting, "abc"), "");
    assert!(proxy.targets().is_empty(), "nothing is sent to a proxy that is not verified");
    let (trusting, _data) = start(&[("HTTP_PROXY", &url), ("SSL_CERT_FILE", authority.to_str().unwrap())]);
    assert_eq!(user_of(&trusting, "abc"), "bearer-of-abc");
    assert_eq!(proxy.targets(), ["tokens.test"]);
}

#[test]
fn variable_that_names_no_proxy_refuses_the_start() {
    let folder = crate::support::server::temp_directory();
    for (name, value) in
        [("HTTPS_PROXY", "ftp://user:secret@proxy.test"), ("http_proxy", "http://user:secret@")]
    {
        let data = folder.path().join("data");
        let failure = Server::try_start_with_environment(&data, &["--engine=memory"], &[(name, value)]);
        let log = failure.err().expect("connections would be direct").stderr;
        assert!(log.contains(&format!("the environment variable {name} is not the URL of a proxy")), "{log}");
        assert!(!log.contains("secret"), "{log}");
    }
}
