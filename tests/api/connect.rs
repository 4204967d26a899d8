//! Connections to kubelets and backends: logs, exec, port forwarding and proxies, with fake kubelets and pods.

mod aggregation;
mod exec;
mod logs;
mod proxy;
mod refusals;
mod websocket;

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_types::lock::Lock;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::kubelet::{Kubelet, ReceivedRequest, RequestHandler, TlsIdentity, Wire};
use crate::support::wait::{Deadline, TIMEOUT, poll};
use crate::support::wire::Connection;
use crate::support::{Client, Server};

const POD: &str = "/api/v1/namespaces/default/pods/p";
const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// A server with one node, whose kubelet is fake, and a pod on it.
struct Fixture {
    server: Server,
    kubelet: Kubelet,
    admin: Client,
    certificate_dir: TempDir,
}

impl Fixture {
    fn new(handler: impl Fn(&ReceivedRequest, &mut Wire) + Send + Sync + 'static) -> Fixture {
        Fixture::with_kubelet_at(LOOPBACK, &[], handler)
    }

    fn with_kubelet_at(
        address: IpAddr,
        flags: &[&str],
        handler: impl Fn(&ReceivedRequest, &mut Wire) + Send + Sync + 'static,
    ) -> Fixture {
        let certificate_dir = crate::support::server::temp_directory();
        let identity = TlsIdentity::new("n1", &[&address.to_string()]);
        let (authority, _) = identity.write(certificate_dir.path(), "kubelet");
        let (certificate, key) = TlsIdentity::new("the-server", &[]).write(certificate_dir.path(), "client");
        let kubelet = Kubelet::start(address, &identity, handler);
        let mut all = vec![
            "--engine=memory".to_owned(),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            format!("--kubelet-certificate-authority={}", authority.display()),
            format!("--kubelet-client-certificate={}", certificate.display()),
            format!("--kubelet-client-key={}", key.display()),
        ];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let server = Server::with_flags(&all.iter().map(String::as_str).collect::<Vec<_>>());
        let mut admin = server.admin();
        node(&mut admin, "n1", &address.to_string(), kubelet.address.port());
        pod(&mut admin, "p", "n1", &["c"]);
        Fixture { server, kubelet, admin, certificate_dir }
    }

    /// Sends an upgrade request and returns the connection after 101.
    fn upgrade(&self, path: &str, headers: &[(&str, &str)]) -> Connection {
        let mut connection = self.admin.raw();
        let head = self.admin.head("POST", path, headers);
        connection.send(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).unwrap();
        let head = connection.head(Deadline::after(TIMEOUT)).unwrap();
        assert_eq!(head.status, 101, "{head:?}");
        connection
    }
}

fn node(admin: &mut Client, name: &str, address: &str, port: u16) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    admin.post("/api/v1/nodes", &node).ok();
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }});
    admin.patch(&format!("/api/v1/nodes/{name}/status"), "merge", &status).ok();
}

fn pod(admin: &mut Client, name: &str, node: &str, containers: &[&str]) {
    let containers: Vec<Value> = containers.iter().map(|name| json!({"name": name, "image": "i"})).collect();
    let mut spec = json!({"containers": containers});
    if !node.is_empty() {
        spec["nodeName"] = json!(node);
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    admin.post("/api/v1/namespaces/default/pods", &pod).ok();
}

const SPDY: [(&str, &str); 3] =
    [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "v4.channel.k8s.io")];
const SPDY_ACCEPTED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
    X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";

/// kubectl as the administrator of a scene.
fn kubectl(fixture: &Fixture, arguments: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command
        .arg("--kubeconfig")
        .arg(fixture.server.kubeconfig())
        .args(arguments)
        .env("HOME", fixture.server.data.as_os_str())
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run_kubectl(fixture: &Fixture, arguments: &[&str]) -> (bool, String, String) {
    let output = kubectl(fixture, arguments).output().expect("kubectl runs: tests/run installs it");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}
