//! A server that is busy and forgets, which a real one cannot be made to do on demand.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use pilothouse_types::lock::Lock;
use serde_json::{Value, json};

use crate::support::wait::TIMEOUT;

/// A response: its status line, further headers and its body.
type Response = (&'static str, &'static str, Value);

/// A plain HTTP server. `respond` gets the request line and the number of requests like it before.
struct FakeServer {
    url: String,
    requests: Arc<Lock<Vec<String>>>,
}

impl FakeServer {
    fn start(respond: impl Fn(&str, usize) -> Response + Send + Sync + 'static) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::<Lock<Vec<String>>>::default();
        let (received, respond) = (requests.clone(), Arc::new(respond));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (received, respond) = (received.clone(), respond.clone());
                thread::spawn(move || serve(stream, &received, &*respond));
            }
        });
        FakeServer { url, requests }
    }

    /// Runs a command against it, and returns whether it succeeded, standard output and standard error.
    fn run(&self, name: &str, arguments: &[&str], input: &str) -> (bool, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pilothouse"));
        command.args([name, "--server", &self.url]).args(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    }
}

fn serve(mut stream: TcpStream, received: &Lock<Vec<String>>, respond: &dyn Fn(&str, usize) -> Response) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut buffer = Vec::new();
    let mut chunk = [0; 4_096];
    loop {
        let end = loop {
            if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            match stream.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(read) => buffer.extend_from_slice(&chunk[..read]),
            }
        };
        let head = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
        while buffer.len() < end + length {
            match stream.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(read) => buffer.extend_from_slice(&chunk[..read]),
            }
        }
        let line = String::from_utf8_lossy(&buffer).lines().next().unwrap_or_default().to_owned();
        buffer.drain(..end + length);
        let before = {
            let mut received = received.lock();
            let before = received.iter().filter(|other| **other == line).count();
            received.push(line.clone());
            before
        };
        let (status, headers, body) = respond(&line, before);
        let body = body.to_string();
        let length = body.len();
        let response = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        if stream.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

/// Discovery of ConfigMaps.
fn discovery(line: &str) -> Option<Response> {
    let resources = json!([{"resource": "configmaps", "responseKind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "scope": "Namespaced", "verbs": ["create", "list"]}]);
    let group = json!({"metadata": {}, "versions": [{"version": "v1", "freshness": "Current", "resources": resources}]});
    let items = match line.split(' ').nth(1)? {
        "/api" => json!([group]),
        "/apis" => json!([]),
        "/apis/apiregistration.k8s.io/v1/apiservices" => json!([]),
        _ => return None,
    };
    Some(("200 OK", "", json!({"kind": "APIGroupDiscoveryList", "items": items})))
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "m"})
}

fn list(names: &[&str], token: &str) -> Value {
    let items: Vec<Value> = names.iter().map(|name| json!({"metadata": {"name": name}})).collect();
    json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"continue": token}, "items": items})
}

#[test]
fn export_waits_for_busy_server_and_continues_expired_list() {
    let server = FakeServer::start(|line, before| {
        if let Some(response) = discovery(line) {
            return response;
        }
        match line.split(' ').nth(1).unwrap() {
            "/api/v1/configmaps?limit=500" if before == 0 => {
                ("429 Too Many Requests", "Retry-After: 0\r\n", status(429, "TooManyRequests"))
            }
            "/api/v1/configmaps?limit=500" => ("200 OK", "", list(&["a", "b"], "first")),
            "/api/v1/configmaps?limit=500&continue=first" => {
                let mut expired = status(410, "Expired");
                expired["metadata"] = json!({"continue": "second"});
                ("410 Gone", "", expired)
            }
            "/api/v1/configmaps?limit=500&continue=second" => ("200 OK", "", list(&["c"], "")),
            _ => ("404 Not Found", "", status(404, "NotFound")),
        }
    });
    let (success, stdout, stderr) = server.run("export", &[], "");
    assert!(success, "{stderr}");
    let names: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = names.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(stdout.starts_with(r#"{"apiVersion":"v1","kind":"ConfigMap","#), "{stdout}");
    assert!(stderr.contains("the later objects are newer: configmaps"), "{stderr}");
}

#[test]
fn import_waits_for_busy_server_a_bounded_number_of_times() {
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"n"}}"#;
    for (busy, expected) in [(3, true), (usize::MAX, false)] {
        let server = FakeServer::start(move |line, before| {
            discovery(line).unwrap_or_else(|| match before < busy {
                true => ("429 Too Many Requests", "Retry-After: 0\r\n", status(429, "TooManyRequests")),
                false => ("201 Created", "", json!({"metadata": {"name": "a", "uid": "u"}})),
            })
        });
        let (success, _, stderr) = server.run("import", &["-"], object);
        assert_eq!(success, expected, "{stderr}");
        let creates = server.requests.lock().iter().filter(|line| line.starts_with("POST")).count();
        assert_eq!(creates, if expected { 4 } else { 8 }, "{stderr}");
        assert_eq!(stderr.contains("failed: ConfigMap n/a: m"), !expected, "{stderr}");
    }
}

#[test]
fn write_is_not_repeated_if_its_response_is_lost() {
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"n"}}"#;
    // A response that cannot be read: it has two lengths.
    let server = FakeServer::start(|line, _| {
        discovery(line).unwrap_or((
            "201 Created",
            "Content-Length: 100000\r\nConnection: close\r\n",
            json!({}),
        ))
    });
    let (success, _, stderr) = server.run("import", &["-"], object);
    assert!(!success && stderr.contains("failed: ConfigMap n/a:"), "{stderr}");
    assert_eq!(server.requests.lock().iter().filter(|line| line.starts_with("POST")).count(), 1, "{stderr}");
}
