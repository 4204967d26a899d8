//! Ways out of the server: logs, commands, ports and proxies, against kubelets and pods that the tests play.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

#[path = "connect/aggregation.rs"]
mod aggregation;
mod support;

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_types::lock::Lock;
use serde_json::{Value, json};
use support::kubelet::{Deed, Kubelet, Papers, Seen, Wire};
use support::wait::{CAP, Deadline, poll};
use support::wire::Connection;
use support::{Client, Server};
use tempfile::TempDir;

const POD: &str = "/api/v1/namespaces/default/pods/p";
const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// A server with one node, whose kubelet is played, and a pod on it.
struct Scene {
    server: Server,
    kubelet: Kubelet,
    admin: Client,
    papers: TempDir,
}

impl Scene {
    fn new(deed: impl Fn(&Seen, &mut Wire) + Send + Sync + 'static) -> Scene {
        Scene::at(LOOPBACK, &[], deed)
    }

    fn at(address: IpAddr, flags: &[&str], deed: impl Fn(&Seen, &mut Wire) + Send + Sync + 'static) -> Scene {
        let papers = support::server::directory();
        let kubelets = Papers::new("n1", &[&address.to_string()]);
        let (authority, _) = kubelets.write(papers.path(), "kubelet");
        let (certificate, key) = Papers::new("the-server", &[]).write(papers.path(), "client");
        let kubelet = Kubelet::start(address, &kubelets, deed);
        let mut all = vec![
            "--engine=memory".to_owned(),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            format!("--kubelet-certificate-authority={}", authority.display()),
            format!("--kubelet-client-certificate={}", certificate.display()),
            format!("--kubelet-client-key={}", key.display()),
        ];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let server = Server::with(&all.iter().map(String::as_str).collect::<Vec<_>>());
        let mut admin = server.admin();
        node(&mut admin, "n1", &address.to_string(), kubelet.address.port());
        pod(&mut admin, "p", "n1", &["c"]);
        Scene { server, kubelet, admin, papers }
    }

    /// Sends the head of a request to switch, and answers the connection once the other end has agreed.
    fn switch(&self, path: &str, headers: &[(&str, &str)]) -> Connection {
        let mut connection = self.admin.raw();
        let head = self.admin.head("POST", path, headers);
        connection.send(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).unwrap();
        let head = connection.head(Deadline::after(CAP)).unwrap();
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
const AGREED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
    X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";

#[test]
fn a_log_is_asked_of_the_kubelet_with_everything_that_the_client_said() {
    let mut scene = Scene::new(|seen, wire| match seen.query() {
        query if query.contains("previous=true") => wire.answer("200 OK", "", b"before\n"),
        query if query.contains("tailLines=7") => {
            wire.answer("400 Bad Request", "", b"container \"c\" in pod \"p\" is waiting to start");
        }
        query if query.contains("tailLines=8") => wire.answer("404 Not Found", "", b"gone"),
        _ => wire.answer("200 OK", "Content-Type: text/plain\r\n", b"one\ntwo\n"),
    });
    let admin = &mut scene.admin;
    let answer = admin.get(&format!("{POD}/log?tailLines=2&timestamps=true&limitBytes=100&sinceSeconds=5"));
    assert_eq!((answer.status, answer.text().as_str()), (200, "one\ntwo\n"));
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    let seen = scene.kubelet.last();
    assert_eq!((seen.method.as_str(), seen.path()), ("GET", "/containerLogs/default/p/c"));
    assert_eq!(seen.query(), "limitBytes=100&sinceSeconds=5&tailLines=2&timestamps=true");
    assert_eq!(seen.client.as_deref(), Some("the-server"), "the server shows its certificate");
    assert_eq!(seen.header("authorization"), None, "the client's token stays here");
    assert_eq!(admin.get(&format!("{POD}/log?previous=true&container=c")).text(), "before\n");
    let status = admin.get(&format!("{POD}/log?tailLines=7")).refused(400, "BadRequest");
    assert_eq!(status["message"], "container \"c\" in pod \"p\" is waiting to start");
    let status = admin.get(&format!("{POD}/log?tailLines=8")).refused(404, "NotFound");
    assert_eq!(status["message"], "the server could not find the requested resource ( pods/log p)");
    assert_eq!(status["details"]["kind"], "pods/log");
}

#[test]
fn a_log_that_is_followed_comes_as_it_is_written_and_the_kubelet_learns_when_nobody_reads_it() {
    let (next, turns) = mpsc::channel::<()>();
    let (gone, hung_up) = mpsc::channel();
    let (turns, gone) = (Lock::new(turns), Lock::new(gone));
    let scene = Scene::new(move |_, wire| {
        wire.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n").unwrap();
        turns.lock().recv().unwrap();
        wire.say(b"4\r\ntwo\n\r\n").unwrap();
        wire.until_hung_up();
        gone.lock().send(()).unwrap();
    });
    let mut connection = scene.admin.raw();
    let head = scene.admin.head("GET", &format!("{POD}/log?follow=true"), &[]);
    connection.send(format!("{head}\r\n").as_bytes()).unwrap();
    let deadline = Deadline::after(CAP);
    assert_eq!(connection.head(deadline).unwrap().status, 200);
    assert_eq!(connection.chunk(deadline).unwrap().unwrap(), b"one\n", "before there is more");
    next.send(()).unwrap();
    assert_eq!(connection.chunk(deadline).unwrap().unwrap(), b"two\n");
    drop(connection);
    hung_up.recv_timeout(CAP).expect("the connection to the kubelet is cut");
    assert_eq!(scene.kubelet.last().query(), "follow=true");
}

#[test]
fn logs_that_are_followed_and_conversations_end_when_the_server_stops() {
    let scene = Scene::new(|seen, wire| {
        let log = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n";
        wire.say(if seen.method == "GET" { log } else { AGREED }).unwrap();
        wire.until_hung_up();
    });
    let mut connection = scene.admin.raw();
    let head = scene.admin.head("GET", &format!("{POD}/log?follow=true"), &[]);
    connection.send(format!("{head}\r\n").as_bytes()).unwrap();
    let deadline = Deadline::after(CAP);
    connection.head(deadline).unwrap();
    connection.chunk(deadline).unwrap().unwrap();
    let mut talking = scene.switch(&format!("{POD}/exec?command=x&stdin=1"), &SPDY);
    scene.server.stop();
    assert_eq!(connection.chunk(deadline).unwrap(), None, "a clean end");
    assert!(talking.rest_to_end(deadline).unwrap().is_empty(), "and no conversation is waited for");
}

#[test]
fn a_conversation_is_written_down_when_it_begins_and_when_it_ends() {
    let folder = support::server::directory();
    let (policy, log) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
    let rules = "rules: [{level: Metadata, resources: [{resources: ['pods/*']}]}]";
    std::fs::write(&policy, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}\n")).unwrap();
    let flags =
        [format!("--audit-policy-file={}", policy.display()), format!("--audit-log-path={}", log.display())];
    let scene = Scene::at(LOOPBACK, &[&flags[0], &flags[1]], |_, wire| {
        wire.say(AGREED).unwrap();
        wire.until_hung_up();
    });
    let stages = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap();
        let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_exec = records.filter(|record| record["objectRef"]["subresource"] == "exec");
        of_exec.map(|record| json!([record["stage"], record["responseStatus"]["code"]])).collect()
    };
    // More than one: whoever writes the record must not be overtaken by the connection that leaves.
    for round in 0..20 {
        let before = round * 3;
        let talking = scene.switch(&format!("{POD}/exec?command=x&stdin=1"), &SPDY);
        let begun = [json!(["RequestReceived", null]), json!(["ResponseStarted", 101])];
        assert_eq!(stages()[before..], begun);
        drop(talking);
        support::wait::poll(CAP, || (stages().len() == before + 3).then_some(())).expect("it has ended");
        assert_eq!(stages()[before + 2], json!(["ResponseComplete", 101]));
    }
}

#[test]
fn requests_that_make_no_sense_are_refused_before_anybody_is_asked() {
    let mut scene = Scene::new(|_, wire| wire.answer("200 OK", "", b""));
    let admin = &mut scene.admin;
    pod(admin, "two", "n1", &["a", "b"]);
    pod(admin, "nowhere", "", &["c"]);
    pod(admin, "lost", "n2", &["c"]);
    let pods = "/api/v1/namespaces/default/pods";
    for (method, path, code, reason, message) in [
        (
            "GET",
            "two/log",
            400,
            "BadRequest",
            "a container name must be specified for pod two, choose one of: [a b]",
        ),
        ("GET", "p/log?container=x", 400, "BadRequest", "container x is not valid for pod p"),
        (
            "GET",
            "p/log?tailLines=-1",
            422,
            "Invalid",
            "PodLogOptions \"p\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0",
        ),
        ("GET", "none/log", 404, "NotFound", "pods \"none\" not found"),
        ("GET", "lost/log", 404, "NotFound", "pods \"n2\" not found"),
        ("POST", "nowhere/exec?command=x", 400, "BadRequest", "pod nowhere does not have a host assigned"),
        ("POST", "nowhere/portforward", 400, "BadRequest", "pod nowhere does not have a host assigned"),
        ("POST", "p/exec?command=x", 400, "BadRequest", "Upgrade request required"),
        ("GET", "p/attach", 400, "BadRequest", "Upgrade request required"),
        (
            "POST",
            "p/portforward?ports=x",
            400,
            "BadRequest",
            "cannot convert to []int32: strconv.ParseUint: parsing \"x\": invalid syntax",
        ),
        ("POST", "p/exec?dryRun=All", 400, "BadRequest", "dryRun is not supported"),
        ("GET", "p/proxy/x", 400, "BadRequest", "address not allowed"),
        ("GET", "a:b:c:d/proxy/", 400, "BadRequest", "invalid pod request \"a:b:c:d\""),
        (
            "PUT",
            "p/exec",
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
        (
            "POST",
            "p/log",
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
    ] {
        let status = admin.request(method, &format!("{pods}/{path}"), &[], b"").refused(code, reason);
        assert_eq!(status["message"], message, "{path}");
    }
    assert_eq!(admin.get(&format!("{pods}/nowhere/log")).status, 204);
    let status = admin.get("/api/v1/nodes/n1/proxy/healthz").refused(400, "BadRequest");
    assert_eq!(status["message"], "address not allowed", "a node on the loopback");
    assert!(scene.kubelet.seen().is_empty(), "{:?}", scene.kubelet.seen());
}

#[test]
fn whoever_may_not_is_refused_before_anybody_is_asked() {
    let scene = Scene::new(|_, wire| wire.answer("200 OK", "", b""));
    let mut alice = scene.server.anonymous().with_token(Some(support::USER_TOKEN));
    for (method, path, verb) in [
        ("GET", format!("{POD}/log"), "get resource \"pods/log\""),
        ("POST", format!("{POD}/exec?command=x"), "create resource \"pods/exec\""),
        ("GET", format!("{POD}/attach"), "get resource \"pods/attach\""),
        ("POST", format!("{POD}/portforward"), "create resource \"pods/portforward\""),
        ("DELETE", format!("{POD}/proxy/x"), "delete resource \"pods/proxy\""),
        ("PUT", "/api/v1/nodes/n1/proxy/x".to_owned(), "update resource \"nodes/proxy\""),
        (
            "PATCH",
            "/api/v1/namespaces/default/services/s:80/proxy/".to_owned(),
            "patch resource \"services/proxy\"",
        ),
    ] {
        let status = alice.request(method, &path, &SPDY, b"").refused(403, "Forbidden");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains(&format!("cannot {verb}")), "{message}");
        alice = alice.again();
    }
    assert!(scene.kubelet.seen().is_empty());
}

#[test]
fn a_command_runs_over_spdy_byte_for_byte() {
    let (gone, hung_up) = mpsc::channel();
    let gone = Lock::new(gone);
    let scene = Scene::new(move |_, wire| {
        wire.say(&[AGREED, b"\x80early"].concat()).unwrap();
        while let Ok(bytes) = wire.exactly(1) {
            wire.say(&[!bytes[0]]).unwrap();
        }
        gone.lock().send(()).unwrap();
    });
    let path = format!("{POD}/exec?command=sh&command=-c&command=a%20b&stdin=true&stdout=true&container=c");
    let mut connection = scene.switch(&path, &SPDY);
    let deadline = Deadline::after(CAP);
    assert_eq!(connection.exactly(6, deadline).unwrap(), b"\x80early", "what came with the agreement");
    let bytes: Vec<u8> = (0..=255).collect();
    connection.send(&bytes).unwrap();
    let back: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    assert_eq!(connection.exactly(256, deadline).unwrap(), back);
    let seen = scene.kubelet.last();
    assert_eq!((seen.method.as_str(), seen.path()), ("POST", "/exec/default/p/c"));
    assert_eq!(seen.query(), "command=sh&command=-c&command=a+b&input=1&output=1");
    assert_eq!(seen.header("upgrade"), Some("SPDY/3.1"));
    assert_eq!(seen.header("x-stream-protocol-version"), Some("v4.channel.k8s.io"));
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("authorization"), None);
    drop(connection);
    hung_up.recv_timeout(CAP).expect("the kubelet learns that the client has gone");
}

#[test]
fn a_switch_works_on_a_connection_that_was_used_before() {
    let scene = Scene::new(|_, wire| {
        wire.say(AGREED).unwrap();
        wire.say(b"bye").unwrap();
    });
    let mut connection = scene.admin.raw();
    let deadline = Deadline::after(CAP);
    let head = scene.admin.head("GET", "/version", &[]);
    connection.send(format!("{head}\r\n").as_bytes()).unwrap();
    let answer = connection.head(deadline).unwrap();
    connection.body(Connection::framing(&answer, "GET"), deadline).unwrap();
    let head = scene.admin.head("POST", &format!("{POD}/attach?stdout=1"), &SPDY);
    connection.send(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(connection.head(deadline).unwrap().status, 101);
    assert_eq!(connection.rest_to_end(deadline).unwrap(), b"bye", "and ends with the kubelet");
    assert_eq!(scene.kubelet.last().target, "/attach/default/p/c?output=1");
}

#[test]
fn what_the_kubelet_says_instead_of_switching_reaches_the_client() {
    let mut scene = Scene::new(|seen, wire| match seen.path() {
        path if path.starts_with("/exec") => {
            wire.answer("403 Forbidden", "Content-Type: text/plain\r\nX-Why: nodes\r\n", b"not you");
        }
        _ => wire.answer("200 OK", "", b"fine"),
    });
    let answer = scene.admin.request("POST", &format!("{POD}/exec?command=x"), &SPDY, b"");
    assert_eq!((answer.status, answer.text().as_str()), (403, "not you"));
    assert_eq!(answer.header("x-why"), Some("nodes"));
    let mut admin = scene.admin.again();
    let status = admin.request("POST", &format!("{POD}/portforward"), &SPDY, b"").json();
    assert_eq!(
        (&status["code"], &status["message"]),
        (&json!(500), &json!("invalid upgrade response: status code 200"))
    );
}

#[test]
fn a_kubelet_that_is_absent_silent_or_somebody_else_is_told_apart() {
    let mut scene =
        Scene::at(LOOPBACK, &["--kubelet-timeout=3s"], |_, wire| wire.answer("200 OK", "", b"log"));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // Bound and not listening: nobody else gets the port, and nobody answers there.
    let nobody = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    nobody.bind(&std::net::SocketAddr::new(LOOPBACK, 0).into()).unwrap();
    let absent = nobody.local_addr().unwrap().as_socket().unwrap();
    let stranger = Kubelet::start(LOOPBACK, &Papers::new("n9", &["127.0.0.1"]), |_, wire| {
        wire.answer("200 OK", "", b"a stranger's log");
    });
    let admin = &mut scene.admin;
    for (name, port) in [
        ("absent", absent.port()),
        ("silent", silent.local_addr().unwrap().port()),
        ("stranger", stranger.address.port()),
    ] {
        node(admin, name, "127.0.0.1", port);
        pod(admin, name, name, &["c"]);
    }
    let at = |name: &str| format!("/api/v1/namespaces/default/pods/{name}");
    let said = |admin: &mut Client, path: String| {
        let answer = admin.request("GET", &path, &[], b"");
        (answer.status, answer.json()["message"].as_str().unwrap().to_owned())
    };
    let (code, message) = said(admin, format!("{}/log", at("absent")));
    let port = absent.port();
    let wanted = format!(
        "Get \"https://127.0.0.1:{port}/containerLogs/default/absent/c\": dial tcp 127.0.0.1:{port}: connect: connection refused"
    );
    assert_eq!((code, message), (500, wanted));
    let status = admin.request("POST", &format!("{}/exec?command=x", at("absent")), &SPDY, b"").json();
    let wanted = format!("error dialing backend: dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!((&status["code"], &status["message"]), (&json!(500), &json!(wanted)));
    let admin = &mut admin.again();
    let (code, message) = said(admin, format!("{}/log", at("silent")));
    assert!(code == 500 && message.ends_with("TLS handshake timeout"), "{code} {message}");
    let (code, message) = said(admin, format!("{}/log", at("stranger")));
    let wanted = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    assert!(code == 500 && message.ends_with(wanted), "{code} {message}");
    assert!(stranger.seen().is_empty());
    let answer = admin.get(&format!("{}/log?insecureSkipTLSVerifyBackend=true", at("stranger")));
    assert_eq!((answer.status, answer.text().as_str()), (200, "a stranger's log"));
}

/// Runs a test again in a network of its own, where an address that counts as another machine's leads back here. Says
/// whether this is that run.
fn in_own_network(test: &str) -> bool {
    const MARK: &str = "PILOTHOUSE_TEST_NETWORK";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let possible = Command::new("unshare").args(["-rn", "ip", "link", "set", "lo", "up"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        eprintln!("{test} is skipped: there is no way to a network of its own (unshare -rn)");
        return false;
    }
    let script =
        "ip link set lo up && ip addr add 192.0.2.7/32 dev lo && exec \"$0\" --exact \"$1\" --nocapture";
    let status = Command::new("unshare")
        .args(["-rn", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(MARK, "1")
        .status()
        .unwrap();
    assert!(status.success(), "{test} failed in its own network");
    false
}

const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

/// A server, and a pod with a service at an address that proxies lead to.
fn behind(deed: impl Fn(&Seen, &mut Wire) + Send + Sync + 'static) -> (Scene, Kubelet) {
    let deed: Arc<Deed> = Arc::new(deed);
    let same = Arc::clone(&deed);
    let mut scene = Scene::at(ELSEWHERE, &[], move |seen, wire| same(seen, wire));
    let web = Kubelet::plain(ELSEWHERE, move |seen, wire| deed(seen, wire));
    let admin = &mut scene.admin;
    let port = web.address.port();
    let status = json!({"status": {"podIP": "192.0.2.7", "podIPs": [{"ip": "192.0.2.7"}]}});
    admin.patch(&format!("{POD}/status"), "merge", &status).ok();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"name": "web", "port": 80}]}});
    admin.post("/api/v1/namespaces/default/services", &service).ok();
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "s"}, "subsets": [{
        "addresses": [{"ip": "192.0.2.7", "targetRef": {"kind": "Pod", "namespace": "default", "name": "p"}},
            {"ip": "192.0.2.9"}],
        "ports": [{"name": "web", "port": port}],
    }]});
    admin.post("/api/v1/namespaces/default/endpoints", &endpoints).ok();
    (scene, web)
}

#[test]
fn requests_pass_through_proxies_with_their_paths_queries_and_headers() {
    if !in_own_network("requests_pass_through_proxies_with_their_paths_queries_and_headers") {
        return;
    }
    let (mut scene, web) = behind(|seen, wire| match seen.path() {
        "/moved" => wire.answer("302 Found", "Location: /to/here?x=1\r\n", b""),
        "/page" => {
            wire.answer("200 OK", "Content-Type: text/html\r\n", b"<a href=\"/x\">x</a><a href=\"y\">");
        }
        "/broken" => {}
        _ => wire.answer("418 Teapot", "X-From: there\r\nConnection: X-Hop\r\nX-Hop: 1\r\n", b"tea"),
    });
    let port = web.address.port();
    let admin = &mut scene.admin;
    let headers = [
        ("X-Kept", "1"),
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
        ("Impersonate-User", "root"),
        ("Impersonate-Group", "system:masters"),
    ];
    let by_pod = format!("/api/v1/namespaces/default/pods/p:{port}/proxy");
    let answer = admin.request("GET", &format!("{by_pod}/a%20b/../c//d/?q=%2F&r"), &headers, b"");
    assert_eq!((answer.status, answer.text().as_str()), (418, "tea"));
    assert_eq!((answer.header("x-from"), answer.header("x-hop")), (Some("there"), None));
    let seen = web.last();
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("GET", "/c/d/?q=%2F&r"));
    assert_eq!((seen.header("x-kept"), seen.header("x-hop")), (Some("1"), None));
    assert_eq!((seen.header("authorization"), seen.header("impersonate-user")), (None, None));
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-uri"), Some(format!("{by_pod}/c/d/").as_str()));
    for service in ["s:web", "s:80", "http:s:80"] {
        let path = format!("/api/v1/namespaces/default/services/{service}/proxy/via/service");
        assert_eq!(admin.request("DELETE", &path, &[], b"").status, 418, "{service}");
        assert_eq!((web.last().method.as_str(), web.last().path()), ("DELETE", "/via/service"));
    }
    let services = "/api/v1/namespaces/default/services";
    let status = admin.get(&format!("{services}/s:81/proxy/")).refused(503, "ServiceUnavailable");
    assert_eq!(status["message"], "no service port 81 found for service \"s\"");
    let status = admin.get(&format!("{services}/s:other/proxy/")).refused(503, "ServiceUnavailable");
    assert_eq!(status["message"], "no endpoints available for service \"s:other\"");
    admin.get(&format!("{services}/none/proxy/")).refused(404, "NotFound");
    let answer = admin.get("/api/v1/nodes/n1/proxy/stats");
    assert_eq!((answer.status, scene.kubelet.last().path()), (418, "/stats"));
    assert_eq!(scene.kubelet.last().client.as_deref(), Some("the-server"));
    let answer = admin.get(&format!("{by_pod}?x=1"));
    assert_eq!((answer.status, answer.header("location")), (301, Some(format!("{by_pod}/?x=1").as_str())));
    let answer = admin.get(&format!("{by_pod}/moved"));
    assert_eq!(
        (answer.status, answer.header("location")),
        (302, Some(format!("{by_pod}/to/here?x=1").as_str()))
    );
    let page = admin.get(&format!("{by_pod}/page")).text();
    assert_eq!(page, format!("<a href=\"{by_pod}/x\">x</a><a href=\"y\">"));
    let (done, said, complained) = run(&scene, &["get", "--raw", &format!("{by_pod}/page")]);
    assert!(done && said == page, "{said} {complained}");
    let admin = &mut scene.admin;
    let answer = admin.request("HEAD", &format!("{by_pod}/head"), &[], b"");
    assert_eq!((answer.status, answer.header("content-length")), (418, Some("3")));
    assert_eq!(admin.request("OPTIONS", &format!("{by_pod}/options"), &[], b"").status, 418);
    let status = admin.get(&format!("{by_pod}/broken")).refused(503, "ServiceUnavailable");
    assert_eq!(status["message"], "error trying to reach service: EOF");
    let status = admin.get("/api/v1/namespaces/default/pods/p:1/proxy/").refused(503, "ServiceUnavailable");
    let wanted = "error trying to reach service: dial tcp 192.0.2.7:1: connect: connection refused";
    assert_eq!(status["message"], wanted);
    scene.server.unharmed();
}

#[test]
fn large_bodies_pass_both_ways_and_conversations_too() {
    if !in_own_network("large_bodies_pass_both_ways_and_conversations_too") {
        return;
    }
    let (mut scene, web) = behind(|seen, wire| {
        if seen.header("upgrade").is_some() {
            wire.say(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n")
                .unwrap();
            let said = wire.exactly(2).unwrap();
            return wire.say(&said).unwrap();
        }
        let length: usize = seen.header("content-length").unwrap().parse().unwrap();
        let body = wire.exactly(length).unwrap();
        wire.answer("200 OK", "", &body);
    });
    let path = format!("/api/v1/namespaces/default/pods/p:{}/proxy/echo", web.address.port());
    let body: Vec<u8> = (0..20 << 20).map(|at: usize| (at % 251) as u8).collect();
    let answer = scene.admin.request("PUT", &path, &[], &body);
    assert_eq!(answer.status, 200);
    assert!(answer.body == body, "20 MiB came back as they went");
    let mut connection = scene.admin.raw();
    let headers = [("Connection", "Upgrade"), ("Upgrade", "chat")];
    let head = scene.admin.head("GET", &format!("{path}?q=1"), &headers);
    connection.send(format!("{head}\r\n").as_bytes()).unwrap();
    let deadline = Deadline::after(CAP);
    assert_eq!(connection.head(deadline).unwrap().status, 101);
    connection.send(b"hi").unwrap();
    assert_eq!(connection.rest_to_end(deadline).unwrap(), b"hi");
    assert_eq!(web.last().target, "/echo?q=1");
    scene.server.unharmed();
}

/// kubectl as the administrator of a scene.
fn kubectl(scene: &Scene, arguments: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command
        .arg("--kubeconfig")
        .arg(scene.server.kubeconfig())
        .args(arguments)
        .env("HOME", scene.server.data.as_os_str())
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(scene: &Scene, arguments: &[&str]) -> (bool, String, String) {
    let output = kubectl(scene, arguments).output().expect("kubectl runs: tests/run installs it");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn kubectl_reads_and_follows_logs() {
    let scene = Scene::new(|seen, wire| {
        if !seen.query().contains("follow=true") {
            return wire.answer("200 OK", "", b"one\ntwo\n");
        }
        wire.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n").unwrap();
        wire.say(b"6\r\nthree\n\r\n0\r\n\r\n").unwrap();
    });
    let (done, said, complained) = run(&scene, &["logs", "p", "--tail=2"]);
    assert!(done && said == "one\ntwo\n", "{said} {complained}");
    assert_eq!(scene.kubelet.last().query(), "tailLines=2");
    let (done, said, complained) = run(&scene, &["logs", "-f", "p", "-c", "c"]);
    assert!(done && said == "one\nthree\n", "{said} {complained}");
    let (done, said, complained) = run(&scene, &["get", "--raw", &format!("{POD}/log?previous=true")]);
    assert!(done && said == "one\ntwo\n", "{said} {complained}");
    let (done, _, complained) = run(&scene, &["logs", "p", "-c", "x"]);
    assert!(!done && complained.contains("container x is not valid for pod p"), "{complained}");
}

#[test]
fn logs_are_asked_for_over_one_connection() {
    let mut scene = Scene::new(|_, wire| wire.answer("200 OK", "", b"one\n"));
    scene.kubelet.keep();
    for _ in 0..10 {
        assert_eq!(scene.admin.get(&format!("{POD}/log")).text(), "one\n");
    }
    assert!(scene.kubelet.seen().iter().all(|seen| seen.connection == 0));
    let kept = |scene: &mut Scene| {
        let metrics = scene.admin.get("/metrics").text();
        let found = metrics.lines().find_map(|line| line.strip_prefix("pilothouse_connections_kept "));
        found.map(str::to_owned)
    };
    assert_eq!(kept(&mut scene).as_deref(), Some("1"));
    scene.kubelet.hang_up();
    assert_eq!(scene.admin.get(&format!("{POD}/log")).text(), "one\n");
    assert_eq!(scene.kubelet.last().connection, 1);
    scene.kubelet.hang_up();
    assert!(poll(CAP, || kept(&mut scene).filter(|kept| kept == "0")).is_some());
}

#[test]
fn certificates_for_kubelets_are_followed() {
    let mut scene = Scene::new(|_, wire| wire.answer("200 OK", "", b"one\n"));
    scene.kubelet.keep();
    let log = format!("{POD}/log");
    scene.admin.get(&log);
    assert_eq!(scene.kubelet.last().client.as_deref(), Some("the-server"));
    let folder = scene.papers.path().to_owned();
    Papers::new("another", &[]).write(&folder, "client");
    let found = poll(CAP, || {
        assert_eq!(scene.admin.get(&log).text(), "one\n");
        (scene.kubelet.last().client.as_deref() == Some("another")).then_some(())
    });
    assert!(found.is_some(), "the old certificate is still shown");
    // What is broken is not used.
    std::fs::write(folder.join("client.key"), "nonsense").unwrap();
    Papers::new("somebody", &[]).write(&folder, "kubelet");
    assert_eq!(scene.admin.get(&log).text(), "one\n");
    Papers::new("third", &[]).write(&folder, "client");
    let refused = poll(CAP, || Some(scene.admin.get(&log).status).filter(|status| *status == 500));
    assert!(refused.is_some(), "the kubelet is believed by whom nobody believes any more");
}

#[test]
fn a_log_over_websocket_comes_in_messages() {
    let (next, turns) = mpsc::channel::<()>();
    let turns = Lock::new(turns);
    let mut scene = Scene::new(move |seen, wire| {
        if seen.query().contains("tailLines=7") {
            return wire.answer("404 Not Found", "", b"gone");
        }
        wire.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n").unwrap();
        turns.lock().recv().unwrap();
        let long = [b"c00\r\n".as_slice(), &[b'x'; 0xc00], b"\r\n0\r\n\r\n"].concat();
        wire.say(&long).unwrap();
    });
    let path = format!("{POD}/log?follow=true");
    let long = vec![b'x'; 3_072];
    for (proposed, agreed, kind) in [
        ("binary.k8s.io", "binary.k8s.io", 2),
        ("x, base64.binary.k8s.io", "base64.binary.k8s.io", 1),
        ("", "", 2),
    ] {
        let (mut connection, protocol) = scene.open_websocket(&path, proposed);
        assert_eq!(protocol, agreed);
        let mut said = || match received(&mut connection) {
            (1, text) => (1, STANDARD.decode(text).unwrap()),
            other => other,
        };
        assert_eq!(said(), (kind, Vec::new()), "the first message says nothing");
        assert_eq!(said(), (kind, b"one\n".to_vec()), "before there is more");
        next.send(()).unwrap();
        let mut rest = Vec::new();
        while rest.len() < long.len() {
            let (found, bytes) = said();
            assert!(found == kind && bytes.len() <= 2_048, "{found} {}", bytes.len());
            rest.extend(bytes);
        }
        assert_eq!(rest, long);
        assert_eq!(said(), (8, vec![0x03, 0xe8]));
    }
    // Whoever goes takes the log along, and pings are answered meanwhile.
    let (mut connection, _) = scene.open_websocket(&path, "binary.k8s.io");
    received(&mut connection);
    received(&mut connection);
    connection.send(&[0x89, 0x81, 0, 0, 0, 0, b'?']).unwrap();
    assert_eq!(received(&mut connection), (10, b"?".to_vec()));
    connection.send(&[0x88, 0x80, 0, 0, 0, 0]).unwrap();
    assert_eq!(received(&mut connection).0, 8);
    next.send(()).unwrap();
    // What cannot be spoken is refused, and so is what the kubelet refuses.
    let refused = |scene: &mut Scene, path: &str, protocol: &str| {
        let mut connection = scene.admin.raw();
        let head = scene.admin.head("GET", path, &websocket(protocol));
        connection.send(format!("{head}\r\n").as_bytes()).unwrap();
        connection.head(Deadline::after(CAP)).unwrap().status
    };
    assert_eq!(refused(&mut scene, &path, "v4.channel.k8s.io"), 403);
    assert_eq!(refused(&mut scene, &format!("{POD}/log?tailLines=7"), "binary.k8s.io"), 404);
    next.send(()).unwrap();
}

/// A frame of SPDY: its kind, or none for data; the stream; its flags; its content.
fn spdy_frame(wire: &mut Wire) -> std::io::Result<(Option<u8>, u32, u8, Vec<u8>)> {
    let head = wire.exactly(8)?;
    let length = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
    let body = wire.exactly(length)?;
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
    Ok(match head[0] & 0x80 {
        0 => (None, number(&head), head[4], body),
        _ => (Some(head[3]), number(&body), head[4], body[4..].to_vec()),
    })
}

fn spdy_data(wire: &mut Wire, stream: u32, bytes: &[u8], last: bool) {
    let length = (bytes.len() as u32).to_be_bytes();
    let head = [&stream.to_be_bytes()[..], &[u8::from(last), length[1], length[2], length[3]]].concat();
    // Whoever asked may have gone.
    let _ = wire.say(&[&head, bytes].concat());
}

/// A kubelet that runs one command: it writes its input in capitals to its output, a word to its errors, and exits with
/// the code that the command names.
fn run_command(seen: &Seen, wire: &mut Wire) {
    assert_eq!(seen.header("upgrade"), Some("SPDY/3.1"));
    wire.say(AGREED).unwrap();
    let wanted = 1 + seen.query().matches("=1").count();
    let mut streams = std::collections::BTreeMap::new();
    while streams.len() < wanted {
        let (kind, stream, _, header) = spdy_frame(wire).unwrap();
        assert_eq!(kind, Some(1), "a new stream");
        let word = ["error", "stdin", "stdout", "stderr", "resize"]
            .into_iter()
            .find(|word| header.ends_with(&[word.as_bytes(), &[0, 0, 0, 0xff, 0xff]].concat()));
        streams.insert(word.expect("a known stream"), stream);
        wire.say(&[&[0x80, 3, 0, 2, 0, 0, 0, 4][..], &stream.to_be_bytes()].concat()).unwrap();
        // A ping in between must not confuse anybody.
        wire.say(&[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2]).unwrap();
    }
    while let (Some(stdin), Ok((kind, stream, flags, bytes))) = (streams.get("stdin"), spdy_frame(wire)) {
        if kind.is_none() && stream == *stdin {
            spdy_data(wire, streams["stdout"], &bytes.to_ascii_uppercase(), false);
            if flags & 1 != 0 {
                break;
            }
        }
    }
    if let Some(stderr) = streams.get("stderr") {
        spdy_data(wire, *stderr, b"done\n", true);
    }
    if let Some(stdout) = streams.get("stdout") {
        spdy_data(wire, *stdout, b"", true);
    }
    let code = seen.query().split("exit+").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or("0");
    let status = match code {
        "0" => json!({"status": "Success"}),
        code => json!({"status": "Failure", "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code}]}}),
    };
    spdy_data(wire, streams["error"], status.to_string().as_bytes(), true);
    wire.until_hung_up();
}

/// A masked frame of WebSocket.
fn message(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x82];
    match u8::try_from(bytes.len()) {
        Ok(short @ 0..=125) => frame.push(0x80 | short),
        _ => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[9, 8, 7, 6]);
    frame.extend(bytes.iter().zip([9, 8, 7, 6].iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

/// The next frame that the server sends: its kind and content.
fn received(connection: &mut Connection) -> (u8, Vec<u8>) {
    let deadline = Deadline::after(CAP);
    let head = connection.exactly(2, deadline).unwrap();
    let length = match head[1] {
        126 => usize::from(u16::from_be_bytes(connection.exactly(2, deadline).unwrap().try_into().unwrap())),
        short => usize::from(short),
    };
    (head[0] & 15, connection.exactly(length, deadline).unwrap())
}

fn websocket(protocol: &str) -> [(&str, &str); 5] {
    [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", protocol),
    ]
}

impl Scene {
    fn open_websocket(&self, path: &str, protocol: &str) -> (Connection, String) {
        let mut connection = self.admin.raw();
        let head = self.admin.head("GET", path, &websocket(protocol));
        connection.send(format!("{head}\r\n").as_bytes()).unwrap();
        let head = connection.head(Deadline::after(CAP)).unwrap();
        assert_eq!(head.status, 101, "{head:?}");
        assert_eq!(head.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        let protocol = head.header("sec-websocket-protocol").unwrap_or_default().to_owned();
        (connection, protocol)
    }
}

#[test]
fn a_command_over_websocket_reaches_a_kubelet_that_speaks_spdy() {
    let scene = Scene::new(run_command);
    let path = format!("{POD}/exec?command=exit%203&stdin=true&stdout=true&stderr=true");
    let (mut connection, protocol) = scene.open_websocket(&path, "v5.channel.k8s.io, v4.channel.k8s.io");
    assert_eq!(protocol, "v5.channel.k8s.io");
    assert_eq!(received(&mut connection), (2, vec![1]), "the first message says nothing");
    connection.send(&message(b"\x00hello ")).unwrap();
    connection.send(&[0x89, 0x81, 0, 0, 0, 0, b'?']).unwrap();
    let long = [&[0][..], &[b'x'; 40_000]].concat();
    connection.send(&message(&long)).unwrap();
    connection.send(&message(&[255, 0])).unwrap();
    let (mut out, mut err, mut last, mut pongs) = (Vec::new(), Vec::new(), Vec::new(), 0);
    loop {
        let (kind, bytes) = received(&mut connection);
        match (kind, bytes.split_first()) {
            (2, Some((1, rest))) => out.extend_from_slice(rest),
            (2, Some((2, rest))) => err.extend_from_slice(rest),
            (2, Some((3, rest))) => last.extend_from_slice(rest),
            (10, _) => pongs += 1,
            (8, _) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((out.len(), &out[..7]), (40_006, &b"HELLO X"[..]));
    assert_eq!((err.as_slice(), pongs), (&b"done\n"[..], 1));
    let status: Value = serde_json::from_slice(&last).unwrap();
    assert_eq!(
        (&status["reason"], &status["details"]["causes"][0]["message"]),
        (&json!("NonZeroExitCode"), &json!("3"))
    );
    let seen = scene.kubelet.last();
    assert_eq!((seen.method.as_str(), seen.path()), ("POST", "/exec/default/p/c"));
}

#[test]
fn a_websocket_client_that_goes_takes_its_command_along() {
    let (gone, hung_up) = mpsc::channel();
    let gone = Lock::new(gone);
    let scene = Scene::new(move |seen, wire| {
        run_command(seen, wire);
        gone.lock().send(()).unwrap();
    });
    let path = format!("{POD}/attach?stdin=true&stdout=true&tty=true");
    for politely in [true, false] {
        let (mut connection, _) = scene.open_websocket(&path, "v5.channel.k8s.io");
        received(&mut connection);
        connection.send(&message(b"\x04{\"Width\":80,\"Height\":24}")).unwrap();
        connection.send(&message(b"\x00a")).unwrap();
        assert_eq!(received(&mut connection), (2, b"\x01A".to_vec()));
        if politely {
            connection.send(&[0x88, 0x82, 0, 0, 0, 0, 3, 0xe8]).unwrap();
            assert_eq!(received(&mut connection).0, 8, "a close is answered");
        }
        drop(connection);
        hung_up.recv_timeout(CAP).expect("the kubelet learns that the client has gone");
    }
}

#[test]
fn an_older_websocket_passes_byte_for_byte_and_a_tunnel_is_unpacked() {
    let scene = Scene::new(|seen, wire| {
        if seen.header("upgrade") == Some("websocket") {
            let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n";
            wire.say(agreed.as_bytes()).unwrap();
        } else {
            assert_eq!(seen.header("x-stream-protocol-version"), Some("portforward.k8s.io"));
            wire.say(AGREED).unwrap();
        }
        while let Ok(bytes) = wire.exactly(4) {
            wire.say(&bytes).unwrap();
        }
    });
    let (mut connection, protocol) =
        scene.open_websocket(&format!("{POD}/exec?command=x&stdout=1"), "v4.channel.k8s.io");
    assert_eq!(protocol, "v4.channel.k8s.io");
    connection.send(b"\x82\x81raw!...").unwrap();
    assert_eq!(connection.exactly(8, Deadline::after(CAP)).unwrap(), b"\x82\x81raw!..");
    drop(connection);
    let (mut connection, protocol) =
        scene.open_websocket(&format!("{POD}/portforward"), "SPDY/3.1+portforward.k8s.io");
    assert_eq!(protocol, "SPDY/3.1+v4.channel.k8s.io", "as the kubelet chose");
    connection.send(&message(b"\x80\x03ab")).unwrap();
    assert_eq!(received(&mut connection), (2, b"\x80\x03ab".to_vec()));
    let seen = scene.kubelet.last();
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/portForward/default/p"));
    assert_eq!((seen.header("sec-websocket-key"), seen.header("upgrade")), (None, Some("SPDY/3.1")));
}

#[test]
fn kubectl_runs_commands() {
    let scene = Scene::new(run_command);
    let (done, said, complained) = run(&scene, &["exec", "p", "--", "exit 0"]);
    assert!(done && said.is_empty() && complained == "done\n", "{said} {complained}");
    let (done, _, complained) = run(&scene, &["exec", "p", "--", "exit 7"]);
    assert!(!done && complained.contains("command terminated with exit code 7"), "{complained}");
    let mut child =
        kubectl(&scene, &["exec", "-i", "p", "--", "exit 0"]).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"from kubectl\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "FROM KUBECTL\n", "{output:?}");
    let asked: Vec<_> = scene.kubelet.seen().into_iter().map(|seen| seen.method).collect();
    assert_eq!(asked, ["POST", "POST", "POST"], "WebSocket was spoken, and nobody fell back");
}
