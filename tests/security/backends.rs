//! Servers behind this one: kubelets, pods and aggregated API servers that lead clients on, and clients that want more of
//! them than they may.

use std::net::{IpAddr, Ipv4Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::kubelet::{Kubelet, Papers, Seen, Wire};
use super::support::wait::{CAP, Deadline, poll};
use super::support::{Client, Server};

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

/// A server with a node, whose kubelet is played, and an aggregated API server that is the same process.
struct Scene {
    server: Server,
    kubelet: Kubelet,
    admin: Client,
    _papers: TempDir,
}

fn scene(deed: impl Fn(&Seen, &mut Wire) + Send + Sync + 'static) -> Scene {
    let folder = super::support::server::directory();
    let papers = Papers::new("metrics.default.svc", &["127.0.0.1"]);
    let (authority, _) = papers.write(folder.path(), "kubelet");
    let kubelet = Kubelet::start(LOOPBACK, &papers, move |seen, wire| match seen.path() {
        // Probes of the aggregated API server.
        GROUP | "/apis" | "/openapi/v2" | "/openapi/v3" => wire.answer("200 OK", "", b"{}"),
        _ => deed(seen, wire),
    });
    let ca = format!("--kubelet-certificate-authority={}", authority.display());
    let server =
        Server::with(&["--engine=memory", "--kubelet-preferred-address-types=InternalIP,Hostname", &ca]);
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
    Scene { server, kubelet, admin, _papers: folder }
}

fn node(admin: &mut Client, name: &str, address: &Value, port: u16) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    admin.post("/api/v1/nodes", &node).ok();
    let status =
        json!({"status": {"addresses": [address], "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    admin.patch(&format!("/api/v1/nodes/{name}/status"), "merge", &status).ok();
}

/// The requests that somebody made, without the probes.
fn asked(kubelet: &Kubelet) -> Vec<String> {
    let probes = [GROUP, "/apis", "/openapi/v2", "/openapi/v3"];
    kubelet.seen().into_iter().filter(|seen| !probes.contains(&seen.path())).map(|seen| seen.target).collect()
}

impl Scene {
    /// The aggregated API server is probed at its own pace. Until it counts as available, requests are refused.
    fn wait_for_aggregation(&mut self) {
        let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io";
        let admin = &mut self.admin;
        poll(CAP, || {
            let object = admin.get(path).ok();
            (object.pointer("/status/conditions/0/status") == Some(&json!("True"))).then_some(())
        })
        .expect("the aggregated API server is available");
    }

    /// The paths that lead out of the server with an upgrade.
    fn ways_out(&self) -> [String; 4] {
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
fn a_refused_upgrade_leaves_no_connection_to_the_backend() {
    let mut scene = scene(|seen, wire| match seen.path() {
        "/stolen" => wire.answer("200 OK", "", b"all the pods"),
        _ => wire.answer("400 Bad Request", "Content-Type: text/plain\r\n", b"no upgrade"),
    });
    scene.wait_for_aggregation();
    // The backend would take more requests.
    scene.kubelet.keep();
    let second = "GET /stolen HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    for (count, path) in scene.ways_out().iter().enumerate() {
        // Afterwards, and together with the upgrade; as it is passed on, and as it is translated.
        for (together, method, upgrade) in [
            (false, "POST", &UPGRADE[..]),
            (true, "POST", &UPGRADE),
            (false, "GET", &WEBSOCKET),
            (true, "GET", &WEBSOCKET),
        ] {
            let deadline = Deadline::after(CAP);
            let mut connection = scene.admin.raw();
            let head = scene.admin.head(method, path, upgrade);
            let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
            let mut request = format!("{head}{length}\r\n");
            if together {
                request.push_str(second);
            }
            connection.send(request.as_bytes()).unwrap();
            let head = connection.head(deadline).unwrap();
            assert!(head.status >= 400, "{path}: {head:?}");
            if !together {
                // A server that has closed the connection has done enough.
                let _ = connection.send(second.as_bytes());
            }
            connection.close_writing();
            let rest = connection.rest_to_end(deadline).unwrap();
            let rest = String::from_utf8_lossy(&rest).into_owned();
            assert!(!rest.contains("all the pods"), "{path}: {rest}");
        }
        let asked = asked(&scene.kubelet);
        assert!(asked.len() <= 4 * (count + 1) && !asked.iter().any(|path| path == "/stolen"), "{asked:?}");
    }
    scene.server.unharmed();
}

/// CVE-2020-8559 and CVE-2022-3172: a backend sends the client, or this server, somewhere else with credentials.
#[test]
fn redirects_of_backends_are_neither_followed_nor_passed_on() {
    let elsewhere = Kubelet::plain(LOOPBACK, |_, wire| wire.answer("200 OK", "", b"stolen"));
    let place = format!("Location: http://{}/x\r\n", elsewhere.address);
    let mut scene = scene(move |_, wire| wire.answer("302 Found", &place, b"go there"));
    scene.wait_for_aggregation();
    for path in scene.ways_out() {
        for (method, upgrade) in [("POST", &UPGRADE[..]), ("GET", &WEBSOCKET)] {
            let answer = scene.admin.again().request(method, &path, upgrade, b"");
            assert!(answer.status >= 400 && answer.header("location").is_none(), "{path}: {}", answer.status);
            assert!(!answer.text().contains("stolen"));
        }
    }
    for path in [format!("{PODS}/p/log"), format!("{GROUP}/nodes"), format!("{GROUP}/nodes?watch=true")] {
        let answer = scene.admin.again().get(&path);
        assert!(answer.status >= 400 && answer.header("location").is_none(), "{path}: {}", answer.status);
    }
    assert!(elsewhere.seen().is_empty(), "{:?}", elsewhere.seen());
    scene.server.unharmed();
}

/// CVE-2020-8562: a proxy reaches services that listen on the machine of this server alone, by an address or by a name that
/// leads there when it is resolved.
#[test]
fn proxies_do_not_reach_the_machine_of_the_server() {
    let mut scene = scene(|_, wire| wire.answer("200 OK", "", b"stolen"));
    let inner = Kubelet::plain(LOOPBACK, |_, wire| wire.answer("200 OK", "", b"stolen"));
    let port = inner.address.port();
    let admin = &mut scene.admin;
    node(admin, "n2", &json!({"type": "Hostname", "address": "localhost"}), port);
    for (ip, name) in [("127.0.0.1", "q"), ("169.254.169.254", "r"), ("0.0.0.0", "s")] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        admin.post(PODS, &pod).ok();
        let status = json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
        // An address that validation refuses is no way out either.
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
        let answer = admin.again().get(&path);
        assert!(answer.status >= 400 && !answer.text().contains("stolen"), "{path}: {}", answer.text());
    }
    assert!(inner.seen().is_empty(), "{:?}", inner.seen());
    assert_eq!(asked(&scene.kubelet), [""; 0]);
    scene.server.unharmed();
}
