//! Attacks through backends: kubelets, pods and aggregated API servers that misuse connections or redirect clients.

use std::net::{IpAddr, Ipv4Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::kubelet::{Kubelet, ReceivedRequest, TlsIdentity, Wire};
use crate::support::wait::{Deadline, TIMEOUT, poll};
use crate::support::{Client, Server};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PODS: &str = "/api/v1/namespaces/default/pods";
const GROUP: &str = "/apis/metrics.k8s.io/v1beta1";
const UPGRADE: [(&str, &str); 3] =
    [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "v4.channel.k8s.io")];

const WEBSOCKET: [(&str, &str); 5] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="),
    ("Sec-WebSocket-Protocol", "v5.channel.k8s.io, SPDY/3.1+portforward.k8s.io"),
];

/// A server with a node and an aggregated API server, both played by one fake kubelet.
struct Fixture {
    server: Server,
    kubelet: Kubelet,
    admin: Client,
    _certificate_dir: TempDir,
}

fn start_fixture(handler: impl Fn(&ReceivedRequest, &mut Wire) + Send + Sync + 'static) -> Fixture {
    let folder = crate::support::server::temp_directory();
    let identity = TlsIdentity::new("metrics.default.svc", &["127.0.0.1"]);
    let (authority, _) = identity.write(folder.path(), "kubelet");
    let kubelet = Kubelet::start(LOOPBACK, &identity, move |request, wire| match request.path() {
        // Probes of the aggregated API server.
        GROUP | "/apis" | "/openapi/v2" | "/openapi/v3" => wire.respond("200 OK", "", b"{}"),
        _ => handler(request, wire),
    });
    let ca = format!("--kubelet-certificate-authority={}", authority.display());
    let server = Server::with_flags(&[
        "--engine=memory",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        &ca,
    ]);
    let mut admin = server.admin();
    let port = kubelet.address.port();
    node(&mut admin, "n1", &json!({"type": "InternalIP", "address": "127.0.0.1"}), port);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}});
    admin.post(PODS, &pod).ok();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics"},
        "spec": {"type": "ExternalName", "externalName": "localhost"}});
    admin.post("/api/v1/namespaces/default/services", &service).ok();
    let bundle = STANDARD.encode(std::fs::read(&authority).unwrap());
    let registration = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": {"group": "metrics.k8s.io", "version": "v1beta1",
        "groupPriorityMinimum": 100, "versionPriority": 100, "caBundle": bundle,
        "service": {"namespace": "default", "name": "metrics", "port": port}}});
    admin.post("/apis/apiregistration.k8s.io/v1/apiservices", &registration).ok();
    Fixture { server, kubelet, admin, _certificate_dir: folder }
}

fn node(admin: &mut Client, name: &str, address: &Value, port: u16) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    admin.post("/api/v1/nodes", &node).ok();
    let status =
        json!({"status": {"addresses": [address], "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    admin.patch(&format!("/api/v1/nodes/{name}/status"), "merge", &status).ok();
}

/// The targets of all requests, without the probes.
fn requests_without_probes(kubelet: &Kubelet) -> Vec<String> {
    let probes = [GROUP, "/apis", "/openapi/v2", "/openapi/v3"];
    kubelet
        .requests()
        .into_iter()
        .filter(|request| !probes.contains(&request.path()))
        .map(|request| request.target)
        .collect()
}

impl Fixture {
    /// Waits until the aggregated API server is available; before that, requests are refused.
    fn wait_for_aggregation(&mut self) {
        let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io";
        let admin = &mut self.admin;
        poll(TIMEOUT, || {
            let object = admin.get(path).ok();
            (object.pointer("/status/conditions/0/status") == Some(&json!("True"))).then_some(())
        })
        .expect("the aggregated API server is available");
    }

    /// The paths that forward an upgrade.
    fn upgrade_paths(&self) -> [String; 4] {
        [
            format!("{PODS}/p/exec?command=x"),
            format!("{PODS}/p/portforward"),
            format!("{PODS}/p/attach"),
            format!("{GROUP}/namespaces/default/talk"),
        ]
    }
}

/// CVE-2018-1002105: after an upgrade that the backend refused, the connection to the backend stayed, with the rights of
/// this server, and the client could go on to send requests over it.
#[test]
fn refused_upgrade_closes_backend_connection() {
    let mut fixture = start_fixture(|request, wire| match request.path() {
        "/stolen" => wire.respond("200 OK", "", b"all the pods"),
        _ => wire.respond("400 Bad Request", "Content-Type: text/plain\r\n", b"no upgrade"),
    });
    fixture.wait_for_aggregation();
    // The backend would accept more requests.
    fixture.kubelet.enable_keep_alive();
    let second = "GET /stolen HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    for (count, path) in fixture.upgrade_paths().iter().enumerate() {
        // After and together with the upgrade; for forwarded and for translated upgrades.
        for (together, method, upgrade) in [
            (false, "POST", &UPGRADE[..]),
            (true, "POST", &UPGRADE),
            (false, "GET", &WEBSOCKET),
            (true, "GET", &WEBSOCKET),
        ] {
            let deadline = Deadline::after(TIMEOUT);
            let mut connection = fixture.admin.raw();
            let head = fixture.admin.head(method, path, upgrade);
            let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
            let mut request = format!("{head}{length}\r\n");
            if together {
                request.push_str(second);
            }
            connection.send(request.as_bytes()).unwrap();
            let head = connection.head(deadline).unwrap();
            assert!(head.status >= 400, "{path}: {head:?}");
            if !together {
                // The server may have closed the connection.
                let _ = connection.send(second.as_bytes());
            }
            connection.close_writing();
            let rest = connection.read_to_end(deadline).unwrap();
            let rest = String::from_utf8_lossy(&rest).into_owned();
            assert!(!rest.contains("all the pods"), "{path}: {rest}");
        }
        let targets = requests_without_probes(&fixture.kubelet);
        assert!(
            targets.len() <= 4 * (count + 1) && !targets.iter().any(|path| path == "/stolen"),
            "{targets:?}"
        );
    }
    fixture.server.assert_healthy();
}

/// CVE-2020-8559 and CVE-2022-3172: a backend sends the client, or this server, somewhere else with credentials.
#[test]
fn backend_redirects_are_neither_followed_nor_forwarded() {
    let redirect_target = Kubelet::plain(LOOPBACK, |_, wire| wire.respond("200 OK", "", b"stolen"));
    let location = format!("Location: http://{}/x\r\n", redirect_target.address);
    let mut fixture = start_fixture(move |_, wire| wire.respond("302 Found", &location, b"go there"));
    fixture.wait_for_aggregation();
    for path in fixture.upgrade_paths() {
        for (method, upgrade) in [("POST", &UPGRADE[..]), ("GET", &WEBSOCKET)] {
            let response = fixture.admin.new_connection().request(method, &path, upgrade, b"");
            assert!(
                response.status >= 400 && response.header("location").is_none(),
                "{path}: {}",
                response.status
            );
            assert!(!response.text().contains("stolen"));
        }
    }
    for path in [format!("{PODS}/p/log"), format!("{GROUP}/nodes"), format!("{GROUP}/nodes?watch=true")] {
        let response = fixture.admin.new_connection().get(&path);
        assert!(
            response.status >= 400 && response.header("location").is_none(),
            "{path}: {}",
            response.status
        );
    }
    assert!(redirect_target.requests().is_empty(), "{:?}", redirect_target.requests());
    fixture.server.assert_healthy();
}

/// CVE-2020-8562: a proxy reaches services that listen on the machine of this server alone, by an address or by a name that
/// leads there when it is resolved.
#[test]
fn proxies_refuse_loopback_and_link_local_targets() {
    let mut fixture = start_fixture(|_, wire| wire.respond("200 OK", "", b"stolen"));
    let local_service = Kubelet::plain(LOOPBACK, |_, wire| wire.respond("200 OK", "", b"stolen"));
    let port = local_service.address.port();
    let admin = &mut fixture.admin;
    node(admin, "n2", &json!({"type": "Hostname", "address": "localhost"}), port);
    for (ip, name) in [("127.0.0.1", "q"), ("169.254.169.254", "r"), ("0.0.0.0", "s")] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        admin.post(PODS, &pod).ok();
        let status = json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
        // Validation may refuse the address, which is as good.
        admin.patch(&format!("{PODS}/{name}/status"), "merge", &status);
    }
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "inner"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}});
    admin.post("/api/v1/namespaces/default/services", &service).ok();
    for path in [
        format!("/api/v1/nodes/n1:{port}/proxy/x"),
        format!("/api/v1/nodes/http:n1:{port}/proxy/x"),
        format!("/api/v1/nodes/n2:{port}/proxy/x"),
        format!("/api/v1/nodes/http:n2:{port}/proxy/x"),
        "/api/v1/nodes/n2/proxy/x".to_owned(),
        format!("{PODS}/q:{port}/proxy/x"),
        format!("{PODS}/r:{port}/proxy/x"),
        format!("{PODS}/s:{port}/proxy/x"),
        format!("/api/v1/namespaces/default/services/inner:{port}/proxy/x"),
    ] {
        let response = admin.new_connection().get(&path);
        assert!(response.status >= 400 && !response.text().contains("stolen"), "{path}: {}", response.text());
    }
    assert!(local_service.requests().is_empty(), "{:?}", local_service.requests());
    assert_eq!(requests_without_probes(&fixture.kubelet), [""; 0]);
    fixture.server.assert_healthy();
}
