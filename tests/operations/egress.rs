//! Connections through the proxies of `--egress-selector-config-file`: who takes which, and that nobody passes one by.

mod environment;

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::ssl::{SslAcceptor, SslMethod};
use pilothouse_client::egress::testing::{ProxyForm, TestProxy};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::collector::Collector;
use crate::support::hook_server::{HookServer, Reply};
use crate::support::kubelet::{Kubelet, ReceivedRequest, TlsIdentity, Wire};
use crate::support::wait::{Deadline, TIMEOUT, poll};
use crate::support::wire::Connection;
use crate::support::{Client, Server};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const POD: &str = "/api/v1/namespaces/default/pods/p";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";
const SPDY: [(&str, &str); 3] =
    [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "v4.channel.k8s.io")];

/// The forms of proxies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    HttpOnTcp,
    HttpOnUnix,
    GrpcOnUnix,
}

/// Where servers seem to be: whoever connects there passes a proxy by.
struct DirectWay {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl DirectWay {
    fn new() -> DirectWay {
        let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let (port, connections) = (listener.local_addr().unwrap().port(), Arc::<AtomicUsize>::default());
        let count = connections.clone();
        thread::spawn(move || {
            for _stream in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        DirectWay { port, connections }
    }

    fn is_unused(&self) -> bool {
        self.connections.load(Ordering::SeqCst) == 0
    }
}

/// A proxy, and its entry in the file of the egress selector.
fn proxy(folder: &Path, name: &str, form: Form, routes: BTreeMap<u16, SocketAddr>) -> (TestProxy, String) {
    let resolve = move |target: &str| {
        let port = target.rsplit_once(':')?.1.parse().ok()?;
        routes.get(&port).copied()
    };
    let socket = folder.join(format!("{name}.sock"));
    let (proxy, protocol, transport) = match form {
        Form::HttpOnUnix | Form::GrpcOnUnix => {
            let (form, protocol) = match form {
                Form::GrpcOnUnix => (ProxyForm::GrpcOnUnix(&socket), "GRPC"),
                _ => (ProxyForm::HttpOnUnix(&socket), "HTTPConnect"),
            };
            let transport = json!({"uds": {"udsName": socket}});
            (TestProxy::start(form, resolve), protocol, transport)
        }
        Form::HttpOnTcp => {
            let identity = TlsIdentity::new(name, &["127.0.0.1"]);
            let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
            acceptor.set_certificate(&identity.certificate).unwrap();
            acceptor.set_private_key(&identity.key).unwrap();
            let proxy = TestProxy::start(ProxyForm::HttpOnTcp(Some(acceptor.build())), resolve);
            let (authority, _) = identity.write(folder, name);
            let (certificate, key) = TlsIdentity::new("the-server", &[]).write(folder, "egress-client");
            let tls = json!({"caBundle": authority, "clientCert": certificate, "clientKey": key});
            let url = format!("https://{}", proxy.address.unwrap());
            (proxy, "HTTPConnect", json!({"tcp": {"url": url, "tlsConfig": tls}}))
        }
    };
    let connection = json!({"proxyProtocol": protocol, "transport": transport});
    (proxy, json!({"name": name, "connection": connection}).to_string())
}

fn write_selector(folder: &Path, selections: &[String]) -> PathBuf {
    let path = folder.join("egress.yaml");
    let text = format!(
        "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections: [{}]\n",
        selections.join(", ")
    );
    fs::write(&path, text).unwrap();
    path
}

/// A server, and the others that it reaches through proxies alone.
struct Scene {
    server: Server,
    admin: Client,
    /// By the name of the selection.
    proxies: BTreeMap<&'static str, TestProxy>,
    hook: HookServer,
    kubelet_way: DirectWay,
    hook_way: DirectWay,
    service_way: DirectWay,
    extension_way: DirectWay,
    token_way: DirectWay,
    extension_authority: String,
    _folder: TempDir,
}

impl Scene {
    fn new(cluster: Form, controlplane: Form) -> Scene {
        let folder = crate::support::server::temp_directory();
        let kubelet = Kubelet::start(LOOPBACK, &TlsIdentity::new("n1", &["127.0.0.1"]), serve_kubelet);
        let hook = HookServer::start("hook.default.svc", |_, _| Reply::Review(json!({"allowed": true})));
        let identity = TlsIdentity::new("metrics.default.svc", &[]);
        let extension_authority = STANDARD.encode(identity.certificate.to_pem().unwrap());
        let extension = Kubelet::start(LOOPBACK, &identity, serve_extension);
        let tokens = Kubelet::plain(LOOPBACK, serve_tokens);
        let [kubelet_way, hook_way, service_way, extension_way, token_way] =
            [(); 5].map(|()| DirectWay::new());
        let hook_address = SocketAddr::new(LOOPBACK, hook.port);
        let cluster_routes = BTreeMap::from([
            (kubelet_way.port, kubelet.address),
            (service_way.port, hook_address),
            (extension_way.port, extension.address),
        ]);
        let controlplane_routes =
            BTreeMap::from([(hook_way.port, hook_address), (token_way.port, tokens.address)]);
        let (cluster, first) = proxy(folder.path(), "cluster", cluster, cluster_routes);
        let (controlplane, second) = proxy(folder.path(), "controlplane", controlplane, controlplane_routes);
        let selector = write_selector(folder.path(), &[first, second]);
        let kubeconfig = folder.path().join("tokens.kubeconfig");
        fs::write(&kubeconfig, token_kubeconfig(token_way.port)).unwrap();
        let server = Server::with_flags(&[
            "--engine=memory",
            "--kubelet-preferred-address-types=InternalIP",
            &format!("--egress-selector-config-file={}", selector.display()),
            &format!("--authentication-token-webhook-config-file={}", kubeconfig.display()),
        ]);
        let mut admin = server.admin();
        create_pod(&mut admin, kubelet_way.port);
        let proxies = BTreeMap::from([("cluster", cluster), ("controlplane", controlplane)]);
        Scene {
            server,
            admin,
            proxies,
            hook,
            kubelet_way,
            hook_way,
            service_way,
            extension_way,
            token_way,
            extension_authority,
            _folder: folder,
        }
    }

    /// A webhook for the creation of objects whose name begins with this.
    fn add_hook(&mut self, prefix: &str, client: &Value) {
        let mut client = client.clone();
        client["caBundle"] = json!(STANDARD.encode(&self.hook.ca_pem));
        let hook = json!({
            "name": format!("{prefix}.example.com"), "clientConfig": client,
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "matchConditions": [{"name": "prefix", "expression": format!("object.metadata.name.startsWith('{prefix}')")}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
        });
        let body = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": prefix}, "webhooks": [hook]});
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        self.admin.post(path, &body).ok();
    }

    fn add_service(&mut self, name: &str) {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": "ExternalName", "externalName": "localhost"}});
        self.admin.post("/api/v1/namespaces/default/services", &service).ok();
    }

    fn create_map(&mut self, name: &str) -> (u16, String) {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let response = self.admin.post(MAPS, &map);
        (response.status, response.text())
    }

    fn register_extension(&mut self) {
        let spec = json!({"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "caBundle": self.extension_authority,
            "service": {"namespace": "default", "name": "metrics", "port": self.extension_way.port}});
        let object = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": spec});
        self.admin.post("/apis/apiregistration.k8s.io/v1/apiservices", &object).ok();
    }

    fn read_extension(&mut self) -> (u16, String) {
        let response = self.admin.get(&format!("{METRICS}/nodes"));
        (response.status, response.text())
    }

    /// Runs a command that repeats its input.
    fn exec(&self) {
        let mut connection = self.admin.raw();
        let head = self.admin.head("POST", &format!("{POD}/exec?command=cat&stdin=1&stdout=1"), &SPDY);
        connection.send(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).unwrap();
        let deadline = Deadline::after(TIMEOUT);
        assert_eq!(connection.head(deadline).unwrap().status, 101);
        connection.send(b"once more").unwrap();
        assert_eq!(Connection::read_bytes(&mut connection, 9, deadline).unwrap(), b"once more");
    }

    /// Whom the token webhook takes the bearer of a token for.
    fn user_of(&self, token: &str) -> String {
        let mut client = self.server.anonymous().with_token(Some(token));
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let response = client.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review);
        let user = response.json()["status"]["userInfo"]["username"].clone();
        user.as_str().unwrap_or_default().to_owned()
    }

    fn assert_no_direct_connection(&self) {
        let ways =
            [&self.kubelet_way, &self.hook_way, &self.service_way, &self.extension_way, &self.token_way];
        assert!(ways.iter().all(|way| way.is_unused()), "a connection passed its proxy by");
    }

    /// The ports that a proxy was asked for.
    fn ports(&self, proxy: &str) -> Vec<u16> {
        let targets = self.proxies[proxy].targets();
        targets.iter().map(|target| target.rsplit_once(':').unwrap().1.parse().unwrap()).collect()
    }
}

fn create_pod(admin: &mut Client, kubelet_port: u16) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    admin.post("/api/v1/nodes", &node).ok();
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
    }});
    admin.patch("/api/v1/nodes/n1/status", "merge", &status).ok();
    let spec = json!({"containers": [{"name": "c", "image": "i"}], "nodeName": "n1"});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
    admin.post("/api/v1/namespaces/default/pods", &pod).ok();
}

fn token_kubeconfig(port: u16) -> String {
    format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: c}}}}]\n\
         clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}/tokens'}}}}]\n"
    )
}

fn serve_kubelet(request: &ReceivedRequest, wire: &mut Wire) {
    if request.path().starts_with("/containerLogs/") {
        return wire.respond("200 OK", "Content-Type: text/plain\r\n", b"a line\n");
    }
    let upgraded = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
        X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";
    wire.send(upgraded).unwrap();
    while let Ok(bytes) = wire.read_bytes(1) {
        wire.send(&bytes).unwrap();
    }
}

fn serve_extension(request: &ReceivedRequest, wire: &mut Wire) {
    let resource = json!({"name": "nodes", "singularName": "node", "namespaced": false, "kind": "NodeMetrics", "verbs": ["list"]});
    let body = match request.path() {
        METRICS => {
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "metrics.k8s.io/v1beta1",
            "resources": [resource]})
        }
        path if path.ends_with("/nodes") => json!({"kind": "NodeMetricsList", "items": []}),
        _ => return wire.respond("404 Not Found", "", b""),
    };
    wire.respond("200 OK", "Content-Type: application/json\r\n", body.to_string().as_bytes());
}

fn serve_tokens(request: &ReceivedRequest, wire: &mut Wire) {
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let review: Value = serde_json::from_slice(&wire.read_bytes(length).unwrap()).unwrap();
    let user = json!({"username": format!("bearer-of-{}", review["spec"]["token"].as_str().unwrap())});
    let body = json!({"apiVersion": review["apiVersion"], "kind": "TokenReview",
        "status": {"authenticated": true, "user": user}});
    wire.respond("200 OK", "Content-Type: application/json\r\n", body.to_string().as_bytes());
}

/// Waits until a request is refused with this in the text: a connection from before may be at its end.
fn wait_for_refusal(mut request: impl FnMut() -> (u16, String), reason: &str) {
    let mut last = String::new();
    let refused = poll(TIMEOUT, || {
        let (status, text) = request();
        let is_expected = status >= 500 && text.contains(reason);
        last = format!("{status}: {text}");
        is_expected.then_some(())
    });
    assert!(refused.is_some(), "{last} lacks {reason:?}");
}

fn check(cluster: Form, controlplane: Form, reasons: [&str; 2]) {
    let mut scene = Scene::new(cluster, controlplane);
    let (kubelet, hook, service) = (scene.kubelet_way.port, scene.hook_way.port, scene.service_way.port);
    let (extension, tokens) = (scene.extension_way.port, scene.token_way.port);
    assert_eq!(scene.admin.get(&format!("{POD}/log")).text(), "a line\n");
    scene.exec();
    scene.add_hook("by-url", &json!({"url": format!("https://127.0.0.1:{hook}/by-url")}));
    scene.add_service("hook");
    scene.add_hook(
        "by-service",
        &json!({"service": {"namespace": "default", "name": "hook", "port": service, "path": "/by-service"}}),
    );
    assert_eq!(scene.create_map("by-url-1").0, 201);
    assert_eq!(scene.create_map("by-service-1").0, 201);
    assert_eq!(scene.hook.targets(), ["/by-url?timeout=5s", "/by-service?timeout=5s"]);
    scene.add_service("metrics");
    scene.register_extension();
    poll(TIMEOUT, || (scene.read_extension().0 == 200).then_some(())).expect("the extension server answers");
    assert_eq!(scene.user_of("abc"), "bearer-of-abc");

    let of_cluster = scene.ports("cluster");
    assert!([kubelet, service, extension].iter().all(|port| of_cluster.contains(port)), "{of_cluster:?}");
    assert!(![hook, tokens].iter().any(|port| of_cluster.contains(port)), "{of_cluster:?}");
    let of_controlplane = scene.ports("controlplane");
    assert!([hook, tokens].iter().all(|port| of_controlplane.contains(port)), "{of_controlplane:?}");
    assert!(![kubelet, service, extension].iter().any(|port| of_controlplane.contains(port)));
    let page = scene.admin.get("/metrics").text();
    for name in ["apiserver_egress_dialer_dial_start_total", "apiserver_egress_dialer_dial_duration_seconds"]
    {
        assert!(page.contains(&format!("{name}_bucket{{")) || page.contains(&format!("{name}{{")), "{name}");
    }

    scene.proxies.remove("cluster");
    let [cluster_reason, controlplane_reason] = reasons;
    let mut admin = scene.server.admin();
    wait_for_refusal(
        || {
            let response = admin.get(&format!("{POD}/log"));
            (response.status, response.text())
        },
        cluster_reason,
    );
    wait_for_refusal(|| scene.create_map("by-service-2"), cluster_reason);
    wait_for_refusal(|| scene.read_extension(), "");
    assert_eq!(scene.create_map("by-url-2").0, 201);
    scene.proxies.remove("controlplane");
    wait_for_refusal(|| scene.create_map("by-url-3"), controlplane_reason);
    assert_ne!(scene.user_of("def"), "bearer-of-def");
    let page = scene.admin.get("/metrics").text();
    assert!(page.contains("apiserver_egress_dialer_dial_failure_count{"), "failures are counted");
    scene.assert_no_direct_connection();
}

#[test]
fn connections_take_konnectivity_and_an_http_proxy_on_a_socket() {
    check(
        Form::GrpcOnUnix,
        Form::HttpOnUnix,
        [
            "cluster.sock: connect: no such file or directory",
            "controlplane.sock: connect: no such file or directory",
        ],
    );
}

#[test]
fn connections_take_an_http_proxy_with_tls_and_konnectivity() {
    check(
        Form::HttpOnTcp,
        Form::GrpcOnUnix,
        ["connect: connection refused", "controlplane.sock: connect: no such file or directory"],
    );
}

/// A traced request, and the collector as the proxy of the control plane is asked for it.
fn check_collector(form: Form) {
    let (collector, way) = (Collector::start(), DirectWay::new());
    let folder = crate::support::server::temp_directory();
    let routes = BTreeMap::from([(way.port, collector.address)]);
    let (proxy, selection) = proxy(folder.path(), "controlplane", form, routes);
    let selector = write_selector(folder.path(), &[selection]);
    let traces = folder.path().join("traces.yaml");
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n\
         endpoint: 127.0.0.1:{}\nsamplingRatePerMillion: 1000000\n",
        way.port
    );
    fs::write(&traces, text).unwrap();
    let server = Server::with_flags(&[
        "--engine=memory",
        &format!("--egress-selector-config-file={}", selector.display()),
        &format!("--tracing-config-file={}", traces.display()),
    ]);
    server.admin().get(MAPS).ok();
    let arrived = poll(TIMEOUT, || (!collector.spans().is_empty()).then_some(()));
    assert!(arrived.is_some() && way.is_unused(), "{:?}", proxy.targets());
    assert!(proxy.targets().contains(&format!("127.0.0.1:{}", way.port)), "{:?}", proxy.targets());
}

#[test]
fn collector_of_traces_is_reached_through_konnectivity() {
    check_collector(Form::GrpcOnUnix);
}

#[test]
fn collector_of_traces_is_reached_through_an_http_proxy() {
    check_collector(Form::HttpOnTcp);
}

#[test]
fn etcd_is_reached_through_its_proxy_alone() {
    let cluster = crate::support::etcd::cluster(1);
    let member = cluster.members.first().unwrap().url();
    let address: SocketAddr = member.trim_start_matches("http://").parse().unwrap();
    let (folder, way) = (crate::support::server::temp_directory(), DirectWay::new());
    let routes = BTreeMap::from([(way.port, address)]);
    let (proxy, selection) = proxy(folder.path(), "etcd", Form::GrpcOnUnix, routes);
    let selector = write_selector(folder.path(), &[selection]);
    let flags = [
        format!("--etcd-servers=http://127.0.0.1:{}", way.port),
        format!("--egress-selector-config-file={}", selector.display()),
    ];
    let flags = flags.each_ref().map(String::as_str);
    let data = folder.path().join("data");
    let server = Server::start_in(&data, &flags);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    server.admin().post(MAPS, &map).ok();
    assert!(proxy.targets().contains(&format!("127.0.0.1:{}", way.port)));
    drop(server);
    drop(proxy);
    let failure =
        Server::try_start_in(&data, &[&flags[..], &["--storage-initialization-timeout=1s"]].concat());
    let failure = failure.err().expect("etcd cannot be reached");
    assert!(failure.stderr.contains("cannot prepare etcd"), "{failure:?}");
    assert!(way.is_unused(), "a connection passed the proxy by");
}

#[test]
fn wrong_file_is_refused_at_the_start() {
    let folder = crate::support::server::temp_directory();
    let selection = json!({"name": "nodes", "connection": {"proxyProtocol": "Direct"}}).to_string();
    let selector = write_selector(folder.path(), &[selection]);
    let start = |path: &Path| {
        let flag = format!("--egress-selector-config-file={}", path.display());
        Server::try_start_in(&folder.path().join("data"), &[&flag]).err().expect("it is refused").stderr
    };
    let error = start(&selector);
    assert!(error.contains("--egress-selector-config-file"), "{error}");
    assert!(
        error.contains("service.connection: Unsupported value: \"nodes\": supported values: \"cluster\", "),
        "{error}"
    );
    let error = start(&folder.path().join("absent"));
    assert!(error.contains("does not exist"), "{error}");
}
