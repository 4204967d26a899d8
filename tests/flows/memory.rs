//! The memory limit seen from outside: what does not fit is refused, one user leaves room to the others, and those who do not read
//! lose their watches to those who do.

use std::net::TcpListener;
use std::pin::Pin;
use std::thread;

use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode};
use tokio_openssl::SslStream;

use super::*;

const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const LIMITED: [&str; 3] = ["--engine=memory", "--authorization-mode=AlwaysAllow", "--memory-limit=384Mi"];

const REVISIONS: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";

/// An object of a kind that may be as large as a body.
fn revision(name: &str) -> String {
    let object = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": name}, "revision": 1,
        "data": {"a": "x".repeat(2_500_000)}});
    object.to_string()
}

fn large(name: &str, bytes: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "x".repeat(bytes)}})
}

/// The value of a series.
fn series(admin: &mut Client, name: &str) -> f64 {
    let page = admin.get("/metrics").text();
    let line = page.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

/// Watches on one HTTP/2 connection that read nothing: a stream has room for 64 KiB.
struct Unread {
    over: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Unread {
    fn open(server: &Server, token: &'static str, paths: Vec<String>) -> Unread {
        let (address, (over, is_over)) = (server.address(), tokio::sync::oneshot::channel());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let mut connector = SslConnector::builder(SslMethod::tls()).unwrap();
                connector.set_verify(SslVerifyMode::NONE);
                connector.set_alpn_protos(b"\x02h2").unwrap();
                let ssl = connector
                    .build()
                    .configure()
                    .unwrap()
                    .verify_hostname(false)
                    .into_ssl("localhost")
                    .unwrap();
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
                let _ = is_over.await;
                drop(unread);
                connection.abort();
            });
        });
        Unread { over: Some(over), thread: Some(thread) }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        drop(self.over.take());
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// A webhook that accepts connections and never says a word.
fn dead_webhook(admin: &mut Client) -> TcpListener {
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
fn bodies_that_wait_for_a_webhook_are_counted_and_one_user_leaves_room_to_others() {
    let server = Server::with(&LIMITED);
    let mut admin = server.admin();
    let listener = dead_webhook(&mut admin);
    // They take more together than one user may have.
    let begin = |client: &Client, name: &str| {
        let (mut client, body) = (client.again(), revision(name));
        thread::spawn(move || {
            client.attempt("POST", REVISIONS, &JSON, body.as_bytes()).map(|answer| answer.status)
        })
    };
    let alice = admin.with_token(Some(USER));
    let held: Vec<_> = (0..16).map(|number| begin(&alice, &format!("a{number}"))).collect();
    wait_for("some wait and the rest is refused", || {
        held.iter().any(thread::JoinHandle::is_finished)
            && series(&mut admin, r#"pilothouse_memory_reserved_bytes{budget="request_bodies"}"#) > 0.0
    });
    let refused = alice.again().request("POST", REVISIONS, &JSON, revision("b").as_bytes());
    let status = refused.refused(429, "TooManyRequests");
    assert_eq!(
        (refused.header("Retry-After"), &status["details"]["retryAfterSeconds"]),
        (Some("1"), &json!(1))
    );
    // Another user waits for the webhook, too, and is not refused.
    let other = begin(&admin, "other");
    drop(listener);
    let statuses: Vec<u16> = held.into_iter().map(|one| one.join().unwrap().unwrap()).collect();
    assert!(
        statuses.iter().all(|status| [429, 500].contains(status)) && statuses.contains(&500),
        "{statuses:?}"
    );
    assert_eq!(other.join().unwrap().unwrap(), 500, "the server of the webhook is gone");
    admin.delete(&format!("{HOOKS}/dead")).ok();
    wait_for("everything is given back", || {
        series(&mut admin, r#"pilothouse_memory_reserved_bytes{budget="request_bodies"}"#) == 0.0
    });
    alice.again().request("POST", REVISIONS, &JSON, revision("c").as_bytes()).ok();
}

#[test]
fn a_user_has_so_many_watches() {
    let server =
        Server::with(&["--engine=memory", "--authorization-mode=AlwaysAllow", "--max-watches-per-user=2"]);
    let admin = server.admin();
    let alice = admin.with_token(Some(USER));
    let mut open: Vec<_> = (0..2).map(|_| alice.watch(MAPS, "")).collect();
    let refused = alice.again().get(&format!("{MAPS}?watch=true"));
    refused.refused(429, "TooManyRequests");
    assert!(refused.header("Retry-After").is_some());
    admin.watch(MAPS, "");
    open.pop();
    wait_for("the watch that ended makes room", || alice.try_watch(MAPS, "").is_ok());
}

#[test]
fn watches_that_nobody_reads_are_cut_for_those_that_are_read() {
    const WATCHES: usize = 40;
    let server =
        Server::with(&["--engine=memory", "--authorization-mode=AlwaysAllow", "--memory-limit=256Mi"]);
    let mut admin = server.admin();
    // An eighth of the limit is for frames. These objects are more than that, and each stalled watch holds one of them.
    for number in 0..WATCHES {
        admin.post(MAPS, &large(&format!("large{number:02}"), 1 << 20)).ok();
    }
    let paths = (0..WATCHES)
        .map(|number| format!("{MAPS}?watch=true&fieldSelector=metadata.name%3Dlarge{number:02}"))
        .collect();
    let stalled = Unread::open(&server, USER, paths);
    let mut read = admin.watch(MAPS, "");
    for number in 0..WATCHES {
        assert_eq!(text(&read.next(), "/object/metadata/name"), format!("large{number:02}"));
    }
    wait_for("some of those that do not read are cut", || {
        series(&mut admin, "pilothouse_watches_cut_total") > 0.0
    });
    admin.post(MAPS, &large("new", 1 << 20)).ok();
    read.next_of("new");
    drop(stalled);
    wait_for("everything is given back", || {
        series(&mut admin, r#"pilothouse_memory_reserved_bytes{budget="watch_frames"}"#) < f64::from(2 << 20)
    });
}

#[test]
fn writes_are_refused_before_the_memory_is_full_and_deletions_are_not() {
    let server =
        Server::with(&["--engine=memory", "--authorization-mode=AlwaysAllow", "--memory-limit=192Mi"]);
    let mut admin = server.admin();
    let mut stored = 0;
    let refused = loop {
        let answer = admin.again().post(MAPS, &large(&format!("o{stored}"), 900_000));
        if answer.status != 201 {
            break answer;
        }
        stored += 1;
        assert!(stored < 400, "nothing is refused");
    };
    refused.refused(429, "TooManyRequests");
    assert!(stored > 5, "{stored}");
    admin.get(&format!("{MAPS}/o0")).ok();
    for number in 0..stored {
        admin.delete(&format!("{MAPS}/o{number}")).ok();
    }
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A definition whose objects have this spec.
fn definition(plural: &str, spec: &Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": plural, "singular": plural, "kind": plural.to_uppercase()},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
            {"type": "object", "properties": {"spec": spec}}}}]}})
}

#[test]
fn definitions_that_do_not_fit_are_refused_before_they_are_compiled() {
    let server =
        Server::with(&["--engine=memory", "--authorization-mode=AlwaysAllow", "--memory-limit=192Mi"]);
    let mut admin = server.admin();
    let fields = |count: usize| {
        let fields: serde_json::Map<String, Value> = (0..count)
            .map(|field| {
                (format!("f{field}"), json!({"type": "object", "properties": {"a": {"type": "integer"}}}))
            })
            .collect();
        json!({"type": "object", "properties": fields})
    };
    let refused = admin.again().post(DEFINITIONS, &definition("larges", &fields(22_000)));
    assert_eq!((refused.status, refused.header("Retry-After")), (429, Some("1")));
    assert!(series(&mut admin, r#"pilothouse_memory_refusals_total{budget="definitions"}"#) > 0.0);
    let large = definition("larges", &fields(5_000)).to_string();
    let writers: Vec<_> = (0..10)
        .map(|number| {
            let (mut client, body) = (admin.again(), large.replace("larges", &format!("l{number}")));
            let body = body.replace("LARGES", &format!("L{number}"));
            thread::spawn(move || client.request("POST", DEFINITIONS, &JSON, body.as_bytes()).status)
        })
        .collect();
    let statuses: Vec<u16> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    assert!(statuses.iter().all(|status| [201, 429].contains(status)), "{statuses:?}");
    assert!(server.memory_kib("VmHWM") < 192 << 10, "{} KiB", server.memory_kib("VmHWM"));
    wait_for("what is compiled is observed and no longer reserved", || {
        series(&mut admin, r#"pilothouse_memory_reserved_bytes{budget="definitions"}"#) == 0.0
    });
    admin.post(DEFINITIONS, &definition("smalls", &fields(1))).ok();
}

#[test]
fn the_owners_of_the_items_of_a_set_are_counted() {
    let server =
        Server::with(&["--engine=memory", "--authorization-mode=AlwaysAllow", "--memory-limit=256Mi"]);
    let mut admin = server.admin();
    let integers = |kind: &str| {
        json!({"type": "object", "properties": {"x":
        {"type": "array", "x-kubernetes-list-type": kind, "items": {"type": "integer"}}}})
    };
    let items: Vec<u32> = (0..300_000).collect();
    for (kind, status) in [("atomic", 201), ("set", 429)] {
        let path = format!("/apis/example.com/v1/namespaces/default/{kind}s");
        admin.post(DEFINITIONS, &definition(&format!("{kind}s"), &integers(kind))).ok();
        wait_for("the kind is served", || admin.get(&path).status == 200);
        let object = json!({"apiVersion": "example.com/v1", "kind": format!("{kind}s").to_uppercase(),
            "metadata": {"name": "a"}, "spec": {"x": items}});
        assert_eq!(admin.again().post(&path, &object).status, status, "{kind}");
    }
}

#[test]
fn a_large_object_in_yaml_is_counted_until_it_is_sent() {
    let server = Server::with(&["--engine=memory", "--authorization-mode=AlwaysAllow"]);
    let mut admin = server.admin();
    admin.post(MAPS, &large("large", 900_000)).ok();
    let path = format!("{MAPS}/large");
    let reserved = r#"pilothouse_memory_reserved_bytes{budget="lists"}"#;
    let mut reading = admin.raw();
    let head = admin.head("GET", &path, &[("Accept", "application/yaml")]);
    reading.send(format!("{head}\r\n").as_bytes()).unwrap();
    wait_for("its tree is counted", || series(&mut admin, reserved) > 900_000.0);
    drop(reading);
    wait_for("it is given back", || series(&mut admin, reserved) == 0.0);
}

#[test]
fn open_connections_are_counted() {
    let server =
        Server::with(&["--engine=memory", "--authorization-mode=AlwaysAllow", "--memory-limit=256Mi"]);
    let mut admin = server.admin();
    let reserved = r#"pilothouse_memory_reserved_bytes{budget="connections"}"#;
    let before = series(&mut admin, reserved);
    let open: Vec<Client> = (0..20)
        .map(|_| {
            let mut client = admin.again();
            client.get("/version").ok();
            client
        })
        .collect();
    assert!(series(&mut admin, reserved) >= before + f64::from(20 * (24 << 10)));
    drop(open);
    wait_for("they are given back", || series(&mut admin, reserved) <= before);
}

#[test]
fn an_openapi_document_is_refused_if_there_is_no_memory_to_write_it() {
    let server =
        Server::with(&["--engine=memory", "--authorization-mode=AlwaysAllow", "--memory-limit=192Mi"]);
    let mut admin = server.admin();
    let mut stored = 0;
    wait_for("there is no room for the document", || {
        while admin.again().post(MAPS, &large(&format!("o{stored}"), 900_000)).status == 201 {
            stored += 1;
        }
        // One that was written after all is kept, and needs no memory from then on.
        ["v2", "v3/api/v1", "v3/apis/apps/v1", "v3/apis/batch/v1"].iter().any(|document| {
            let response = admin.get(&format!("/openapi/{document}"));
            (response.status, response.header("Retry-After")) == (429, Some("1"))
        })
    });
    for number in 0..stored {
        admin.delete(&format!("{MAPS}/o{number}")).ok();
    }
}

#[test]
fn a_limit_that_is_too_small_is_refused_at_the_start() {
    let directory = directory();
    for (limit, message) in [("1Mi", "must be at least 64Mi"), ("much", "is no amount of memory")] {
        let refusal = Server::try_on(directory.path(), &[&format!("--memory-limit={limit}")]).err().unwrap();
        assert!(refusal.stderr.contains(message), "{}", refusal.stderr);
    }
}
