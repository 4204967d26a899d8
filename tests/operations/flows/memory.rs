//! The memory limit from outside: requests over the limit are refused, one user cannot use it all, and unread watches are cut first.

use std::net::TcpListener;
use std::pin::Pin;
use std::thread;

use tokio_openssl::SslStream;

use super::*;
use crate::support::tls;

const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
/// etcd takes no objects of the size that these tests send.
const LIMITED: [&str; 3] = ["--engine=redb", "--authorization-mode=AlwaysAllow", "--memory-limit=384Mi"];

const REVISIONS: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";

/// An object of a kind that may be as large as a body.
fn large_revision(name: &str) -> String {
    let object = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": name}, "revision": 1,
        "data": {"a": "x".repeat(2_500_000)}});
    object.to_string()
}

fn large_map(name: &str, bytes: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "x".repeat(bytes)}})
}

/// The value of a series.
fn metric_value(admin: &mut Client, name: &str) -> f64 {
    let page = admin.get("/metrics").text();
    let line = page.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

/// Unread watches on one HTTP/2 connection; the window of a stream is 64 KiB.
struct UnreadWatches {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl UnreadWatches {
    fn open(server: &Server, token: &'static str, paths: Vec<String>) -> UnreadWatches {
        let (address, (stop, stopped)) = (server.address(), tokio::sync::oneshot::channel());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let ssl = tls::session(&tls::context(None, None, b"\x02h2"), "localhost");
                let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
                let mut stream = SslStream::new(ssl, tcp).unwrap();
                Pin::new(&mut stream).connect().await.unwrap();
                let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
                let connection = tokio::spawn(connection);
                let mut unread = Vec::new();
                for path in paths {
                    let request = http::Request::get(format!("https://localhost{path}"))
                        .header("Authorization", format!("Bearer {token}"))
                        .body(())
                        .unwrap();
                    unread.push(requests.send_request(request, true).unwrap().0);
                }
                let _ = stopped.await;
                drop(unread);
                connection.abort();
            });
        });
        UnreadWatches { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for UnreadWatches {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Configures a webhook that accepts connections and never responds.
fn create_hanging_webhook(admin: &mut Client) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let hook = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "dead"}, "webhooks": [{"name": "dead.example.com", "clientConfig": {"url": url},
            "rules": [{"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["controllerrevisions"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 30}]});
    admin.post(HOOKS, &hook).ok();
    listener
}

#[test]
fn request_bodies_are_limited_per_user_while_webhook_hangs() {
    let server = Server::with_flags(&LIMITED);
    let mut admin = server.admin();
    let listener = create_hanging_webhook(&mut admin);
    // Together they exceed the limit of one user.
    let begin = |client: &Client, name: &str| {
        let (mut client, body) = (client.new_connection(), large_revision(name));
        thread::spawn(move || {
            client.attempt("POST", REVISIONS, &JSON, body.as_bytes()).map(|response| response.status)
        })
    };
    let alice = admin.with_token(Some(USER));
    let request_threads: Vec<_> = (0..16).map(|number| begin(&alice, &format!("a{number}"))).collect();
    wait_for("some wait and the rest is refused", || {
        request_threads.iter().any(thread::JoinHandle::is_finished)
            && metric_value(&mut admin, r#"pilothouse_memory_reserved_bytes{budget="request_bodies"}"#) > 0.0
    });
    let response = alice.new_connection().request("POST", REVISIONS, &JSON, large_revision("b").as_bytes());
    let status = response.expect_error(429, "TooManyRequests");
    assert_eq!(
        (response.header("Retry-After"), &status["details"]["retryAfterSeconds"]),
        (Some("1"), &json!(1))
    );
    // A request of another user is not refused.
    let other_request = begin(&admin, "other");
    drop(listener);
    let statuses: Vec<u16> =
        request_threads.into_iter().map(|request_thread| request_thread.join().unwrap().unwrap()).collect();
    assert!(
        statuses.iter().all(|status| [429, 500].contains(status)) && statuses.contains(&500),
        "{statuses:?}"
    );
    assert_eq!(other_request.join().unwrap().unwrap(), 500, "the server of the webhook is gone");
    admin.delete(&format!("{HOOKS}/dead")).ok();
    wait_for("everything is given back", || {
        metric_value(&mut admin, r#"pilothouse_memory_reserved_bytes{budget="request_bodies"}"#) == 0.0
    });
    alice.new_connection().request("POST", REVISIONS, &JSON, large_revision("c").as_bytes()).ok();
}

#[test]
fn watches_per_user_are_limited() {
    let server = Server::with_flags(&[
        "--engine=memory",
        "--authorization-mode=AlwaysAllow",
        "--max-watches-per-user=2",
    ]);
    let admin = server.admin();
    let alice = admin.with_token(Some(USER));
    let mut watches: Vec<_> = (0..2).map(|_| alice.watch(MAPS, "")).collect();
    let response = alice.new_connection().get(&format!("{MAPS}?watch=true"));
    response.expect_error(429, "TooManyRequests");
    assert!(response.header("Retry-After").is_some());
    admin.watch(MAPS, "");
    watches.pop();
    wait_for("the watch that ended makes room", || alice.try_watch(MAPS, "").is_ok());
}

#[test]
fn unread_watches_are_cut_for_read_ones() {
    const WATCHES: usize = 40;
    let server =
        Server::with_flags(&["--engine=redb", "--authorization-mode=AlwaysAllow", "--memory-limit=256Mi"]);
    let mut admin = server.admin();
    // An eighth of the limit is for watch frames. Each stalled watch holds one of these objects, which together exceed that.
    for number in 0..WATCHES {
        admin.post(MAPS, &large_map(&format!("large{number:02}"), 1 << 20)).ok();
    }
    let paths = (0..WATCHES)
        .map(|number| format!("{MAPS}?watch=true&fieldSelector=metadata.name%3Dlarge{number:02}"))
        .collect();
    let stalled = UnreadWatches::open(&server, USER, paths);
    let mut read = admin.watch(MAPS, "");
    for number in 0..WATCHES {
        assert_eq!(text(&read.next(), "/object/metadata/name"), format!("large{number:02}"));
    }
    wait_for("some of those that do not read are cut", || {
        metric_value(&mut admin, "pilothouse_watches_cut_total") > 0.0
    });
    admin.post(MAPS, &large_map("new", 1 << 20)).ok();
    read.next_for("new");
    drop(stalled);
    wait_for("everything is given back", || {
        metric_value(&mut admin, r#"pilothouse_memory_reserved_bytes{budget="watch_frames"}"#)
            < f64::from(2 << 20)
    });
}

#[test]
fn writes_near_memory_limit_are_refused_and_deletes_allowed() {
    let server =
        Server::with_flags(&["--engine=memory", "--authorization-mode=AlwaysAllow", "--memory-limit=192Mi"]);
    let mut admin = server.admin();
    let mut count = 0;
    let response = loop {
        let response = admin.new_connection().post(MAPS, &large_map(&format!("o{count}"), 900_000));
        if response.status != 201 {
            break response;
        }
        count += 1;
        assert!(count < 400, "nothing is refused");
    };
    response.expect_error(429, "TooManyRequests");
    assert!(count > 5, "{count}");
    admin.get(&format!("{MAPS}/o0")).ok();
    for number in 0..count {
        admin.delete(&format!("{MAPS}/o{number}")).ok();
    }
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A definition whose objects have this spec.
fn crd_with_spec(plural: &str, spec: &Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": plural, "singular": plural, "kind": plural.to_uppercase()},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
            {"type": "object", "properties": {"spec": spec}}}}]}})
}

#[test]
fn crd_over_memory_limit_is_refused_before_compilation() {
    let server =
        Server::with_flags(&["--engine=memory", "--authorization-mode=AlwaysAllow", "--memory-limit=192Mi"]);
    let mut admin = server.admin();
    let fields = |count: usize| {
        let fields: serde_json::Map<String, Value> = (0..count)
            .map(|field| {
                (format!("f{field}"), json!({"type": "object", "properties": {"a": {"type": "integer"}}}))
            })
            .collect();
        json!({"type": "object", "properties": fields})
    };
    let response = admin.new_connection().post(DEFINITIONS, &crd_with_spec("larges", &fields(22_000)));
    assert_eq!((response.status, response.header("Retry-After")), (429, Some("1")));
    assert!(metric_value(&mut admin, r#"pilothouse_memory_refusals_total{budget="definitions"}"#) > 0.0);
    let large = crd_with_spec("larges", &fields(5_000)).to_string();
    let writers: Vec<_> = (0..10)
        .map(|number| {
            let (mut client, body) = (admin.new_connection(), large.replace("larges", &format!("l{number}")));
            let body = body.replace("LARGES", &format!("L{number}"));
            thread::spawn(move || client.request("POST", DEFINITIONS, &JSON, body.as_bytes()).status)
        })
        .collect();
    let statuses: Vec<u16> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    assert!(statuses.iter().all(|status| [201, 429].contains(status)), "{statuses:?}");
    assert!(server.memory_kib("VmHWM") < 192 << 10, "{} KiB", server.memory_kib("VmHWM"));
    wait_for("what is compiled is observed and no longer reserved", || {
        metric_value(&mut admin, r#"pilothouse_memory_reserved_bytes{budget="definitions"}"#) == 0.0
    });
    admin.post(DEFINITIONS, &crd_with_spec("smalls", &fields(1))).ok();
}

#[test]
fn set_item_owners_are_counted() {
    let server =
        Server::with_flags(&["--engine=redb", "--authorization-mode=AlwaysAllow", "--memory-limit=256Mi"]);
    let mut admin = server.admin();
    let integers = |kind: &str| {
        json!({"type": "object", "properties": {"x":
        {"type": "array", "x-kubernetes-list-type": kind, "items": {"type": "integer"}}}})
    };
    let items: Vec<u32> = (0..300_000).collect();
    for (kind, status) in [("atomic", 201), ("set", 429)] {
        let path = format!("/apis/example.com/v1/namespaces/default/{kind}s");
        admin.post(DEFINITIONS, &crd_with_spec(&format!("{kind}s"), &integers(kind))).ok();
        wait_for("the kind is served", || admin.get(&path).status == 200);
        let object = json!({"apiVersion": "example.com/v1", "kind": format!("{kind}s").to_uppercase(),
            "metadata": {"name": "a"}, "spec": {"x": items}});
        assert_eq!(admin.new_connection().post(&path, &object).status, status, "{kind}");
    }
}

#[test]
fn yaml_response_is_counted_until_sent() {
    let server = Server::with_flags(&["--engine=memory", "--authorization-mode=AlwaysAllow"]);
    let mut admin = server.admin();
    admin.post(MAPS, &large_map("large", 900_000)).ok();
    let path = format!("{MAPS}/large");
    let reserved = r#"pilothouse_memory_reserved_bytes{budget="lists"}"#;
    let mut connection = admin.raw();
    let head = admin.head("GET", &path, &[("Accept", "application/yaml")]);
    connection.send(format!("{head}\r\n").as_bytes()).unwrap();
    wait_for("its tree is counted", || metric_value(&mut admin, reserved) > 900_000.0);
    drop(connection);
    wait_for("it is given back", || metric_value(&mut admin, reserved) == 0.0);
}

#[test]
fn open_connections_are_counted_in_memory_budget() {
    let server =
        Server::with_flags(&["--engine=redb", "--authorization-mode=AlwaysAllow", "--memory-limit=256Mi"]);
    let mut admin = server.admin();
    let reserved = r#"pilothouse_memory_reserved_bytes{budget="connections"}"#;
    let before = metric_value(&mut admin, reserved);
    let connections: Vec<Client> = (0..20)
        .map(|_| {
            let mut client = admin.new_connection();
            client.get("/version").ok();
            client
        })
        .collect();
    let all = before + f64::from(20 * (24 << 10));
    wait_for("they are counted", || metric_value(&mut admin, reserved) >= all);
    drop(connections);
    wait_for("they are given back", || metric_value(&mut admin, reserved) <= before);
}

#[test]
fn openapi_document_is_refused_without_memory() {
    let server =
        Server::with_flags(&["--engine=memory", "--authorization-mode=AlwaysAllow", "--memory-limit=192Mi"]);
    let mut admin = server.admin();
    let mut count = 0;
    wait_for("there is no room for the document", || {
        while admin.new_connection().post(MAPS, &large_map(&format!("o{count}"), 900_000)).status == 201 {
            count += 1;
        }
        // A document that was encoded is cached, and needs no memory from then on.
        ["v2", "v3/api/v1", "v3/apis/apps/v1", "v3/apis/batch/v1"].iter().any(|document| {
            let response = admin.get(&format!("/openapi/{document}"));
            (response.status, response.header("Retry-After")) == (429, Some("1"))
        })
    });
    for number in 0..count {
        admin.delete(&format!("{MAPS}/o{number}")).ok();
    }
}

#[test]
fn start_refuses_memory_limit_below_minimum() {
    let directory = temp_directory();
    for (limit, message) in [("1Mi", "must be at least 64Mi"), ("much", "is not an amount of memory")] {
        let failure =
            Server::try_start_in(directory.path(), &[&format!("--memory-limit={limit}")]).err().unwrap();
        assert!(failure.stderr.contains(message), "{}", failure.stderr);
    }
}
