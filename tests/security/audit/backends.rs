//! Audit backends: log files with rotation, and a webhook that accepts events or stalls.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pilothouse_types::lock::Lock;

use super::*;
use crate::support::wait::Deadline;

const EVERYTHING: &str = "rules: [{level: RequestResponse}]";

fn file_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn audit_log_rotates_compresses_and_prunes_backups() {
    let flags = ["--audit-log-maxsize=1", "--audit-log-maxbackup=2", "--audit-log-compress"];
    let audited = AuditedServer::with(EVERYTHING, &flags);
    let mut admin = audited.server.admin();
    let folder = audited.log.parent().unwrap();
    let large = "x".repeat(300 << 10);
    for number in 0..12 {
        admin.request("POST", MAPS, &JSON, map(&format!("m{number}"), &large).as_bytes()).ok();
        assert!(fs::metadata(&audited.log).unwrap().len() <= 1 << 20);
    }
    let is_rotated = |names: &[String]| {
        names.len() == 3 && names.iter().filter(|name| name.ends_with(".log.gz")).count() == 2
    };
    let files = poll(TIMEOUT, || Some(file_names(folder)).filter(|names| is_rotated(names)));
    let files = files.unwrap_or_else(|| panic!("{:?}", file_names(folder)));
    // audit-2006-01-02T15-04-05.000.log.gz
    assert!(
        files[0].starts_with("audit-2") && files[0].len() == "audit-2006-01-02T15-04-05.000.log.gz".len()
    );
    let archive = fs::File::open(folder.join(&files[0])).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(archive).read_to_string(&mut text).unwrap();
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    assert_eq!(files[2], "audit.log");
}

/// How the webhook receiver behaves.
#[derive(Clone, Copy, PartialEq)]
enum ReceiverMode {
    /// Refuses the first batch and accepts the others.
    RefusesOnce,
    /// Accepts connections and never responds.
    Stalls,
}

/// An audit webhook that keeps up to [`MAX_LISTS`] batches.
struct Receiver {
    port: u16,
    lists: Arc<Lock<Vec<Value>>>,
}

const MAX_LISTS: usize = 1_000;

impl Receiver {
    fn start(mode: ReceiverMode) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let lists = Arc::<Lock<Vec<Value>>>::default();
        let recorded = lists.clone();
        thread::spawn(move || {
            let has_refused = Arc::new(AtomicBool::new(false));
            let mut stalled = Vec::new();
            for mut stream in listener.incoming().flatten() {
                if mode == ReceiverMode::Stalls {
                    stalled.push(stream);
                    continue;
                }
                let (recorded, has_refused) = (recorded.clone(), has_refused.clone());
                // The client may open a connection and send its request on another one.
                thread::spawn(move || {
                    let body = read_body(&mut stream);
                    if body.is_empty() {
                        return;
                    }
                    let refuses =
                        mode == ReceiverMode::RefusesOnce && !has_refused.swap(true, Ordering::Relaxed);
                    let status = if refuses { "500 Internal Server Error" } else { "200 OK" };
                    let mut lists = recorded.lock();
                    if !refuses && lists.len() < MAX_LISTS {
                        lists.push(serde_json::from_slice(&body).expect("a list"));
                    }
                    let _ =
                        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                });
            }
        });
        Receiver { port, lists }
    }

    fn kubeconfig(&self, folder: &Path) -> String {
        let path = folder.join("webhook.kubeconfig");
        let port = self.port;
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: x, user: u}}}}]\n\
             clusters: [{{name: x, cluster: {{server: 'http://127.0.0.1:{port}/audit'}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
        );
        fs::write(&path, text).unwrap();
        format!("--audit-webhook-config-file={}", path.to_str().unwrap())
    }

    fn items(&self) -> Vec<Value> {
        let lists = self.lists.lock();
        lists.iter().flat_map(|list| list["items"].as_array().unwrap().clone()).collect()
    }
}

/// The body of a request.
fn read_body(stream: &mut impl std::io::Read) -> Vec<u8> {
    let (mut read, mut chunk) = (Vec::new(), [0; 4_096]);
    loop {
        let count = stream.read(&mut chunk).unwrap_or(0);
        if count == 0 {
            return Vec::new();
        }
        read.extend_from_slice(&chunk[..count]);
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
        assert!(head.starts_with("post /audit "), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if read.len() >= end + 4 + length.trim().parse::<usize>().unwrap() {
            return read.split_off(end + 4);
        }
    }
}

fn start_server(receiver: &Receiver, extra_flags: &[&str]) -> (Server, TempDir) {
    let folder = temp_directory();
    let kubeconfig = receiver.kubeconfig(folder.path());
    let mut all_flags = vec![kubeconfig.as_str()];
    all_flags.extend(extra_flags);
    let flags = flags(folder.path(), EVERYTHING, &all_flags);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    (Server::start_in(&folder.path().join("data"), &flags), folder)
}

#[test]
fn audit_webhook_receives_batches_with_retry() {
    let receiver = Receiver::start(ReceiverMode::RefusesOnce);
    let flags = ["--audit-webhook-batch-max-wait=50ms", "--audit-webhook-initial-backoff=100ms"];
    let (server, folder) = start_server(&receiver, &flags);
    let mut admin = server.admin();
    for number in 0..5 {
        admin.request("POST", MAPS, &JSON, map(&format!("m{number}"), "v").as_bytes()).ok();
    }
    let map_events = |items: &[Value]| items.iter().filter(|item| item["requestURI"] == MAPS).count();
    let all_came = poll(TIMEOUT, || (map_events(&receiver.items()) >= 10).then_some(()));
    assert!(
        all_came.is_some(),
        "{} of 10 events came: {:#?}",
        map_events(&receiver.items()),
        receiver.items()
    );
    let items = receiver.items();
    assert_eq!(map_events(&items), 10, "each event once");
    assert!(items[0].get("kind").is_none() && items[0]["auditID"].is_string());
    let list = receiver.lists.lock()[0].clone();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("audit.k8s.io/v1")));
    // Buffered events are sent when the server stops.
    admin.request("POST", MAPS, &JSON, map("last", "v").as_bytes()).ok();
    server.stop();
    assert_eq!(map_events(&receiver.items()), 12);
    let logged = records(&folder.path().join("logs/audit.log"));
    assert_eq!(map_events(&logged), 12, "the log has them as well");
}

#[test]
fn stalled_audit_webhook_neither_delays_requests_nor_grows_memory() {
    let receiver = Receiver::start(ReceiverMode::Stalls);
    let flags = [
        "--audit-webhook-batch-buffer-size=50",
        "--audit-webhook-batch-max-size=10",
        "--audit-webhook-batch-max-wait=10ms",
        "--audit-webhook-batch-throttle-enable=false",
        "--audit-log-mode=batch",
    ];
    let (mut server, _folder) = start_server(&receiver, &flags);
    let mut admin = server.admin();
    let resident_memory = |admin: &mut Client| -> f64 {
        let page = admin.get("/metrics").text();
        let files = page.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
        files.unwrap().parse().unwrap()
    };
    let large = "x".repeat(100 << 10);
    admin.request("POST", MAPS, &JSON, map("m", &large).as_bytes()).ok();
    let send_requests = |admin: &mut Client| {
        let deadline = Deadline::after(TIMEOUT);
        for _ in 0..500 {
            assert_eq!(admin.get(&format!("{MAPS}/m")).status, 200);
        }
        assert!(!deadline.has_passed(), "nobody waits for it");
    };
    send_requests(&mut admin);
    let before = resident_memory(&mut admin);
    for _ in 0..4 {
        send_requests(&mut admin);
    }
    let grown = resident_memory(&mut admin) - before;
    assert!(grown < 64e6, "2,000 records of 100 KB each are not kept: {grown}");
    let page = admin.get("/metrics").text();
    let lost_events =
        page.lines().find_map(|line| line.strip_prefix("apiserver_audit_error_total{plugin=\"buffered\"} "));
    assert!(
        lost_events.unwrap().parse::<f64>().unwrap() > 1_000.0,
        "what is lost is counted: {lost_events:?}"
    );
    server.assert_healthy();
}

#[test]
fn blocking_strict_audit_refuses_request_on_write_error() {
    let full = "--audit-log-path=/dev/full";
    let lenient = AuditedServer::with(EVERYTHING, &[full]);
    assert_eq!(lenient.server.admin().get(MAPS).status, 200);
    let folder = temp_directory();
    // Probes of the test and requests of the server itself are not audited.
    let rules = "rules: [{level: None, nonResourceURLs: ['*']}, {level: None, users: ['system:apiserver']}, \
                 {level: Metadata}]";
    let flags = flags(folder.path(), rules, &[full, "--audit-log-mode=blocking-strict"]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start_in(&folder.path().join("data"), &flags);
    let mut admin = server.admin();
    let response = admin.get(MAPS);
    assert_eq!(response.status, 500);
    assert_eq!(response.text(), format!("Internal Server Error: \"{MAPS}\": failed to store audit event\n"));
    let page = admin.get("/metrics").text();
    assert!(page.contains("\napiserver_audit_requests_rejected_total 1\n"));
    assert!(page.contains("\napiserver_audit_error_total{plugin=\"log\"} 1\n"));
}

#[test]
fn audit_log_supports_legacy_format_and_truncation() {
    let flags = ["--audit-log-path=-", "--audit-log-format=legacy"];
    let audited =
        AuditedServer::with("rules: [{level: Metadata, resources: [{resources: [configmaps]}]}]", &flags);
    assert_eq!(audited.server.admin().get(MAPS).status, 200);
    let line = poll(TIMEOUT, || {
        let output = audited.server.output();
        let is_map_event =
            |line: &&str| line.contains("stage=\"ResponseComplete\"") && line.contains(" user=\"admin\"");
        output.lines().find(is_map_event).map(str::to_owned)
    });
    let line = line.expect("a line");
    assert!(line.contains(" AUDIT: id=\"") && line.contains(" method=\"list\" user=\"admin\""), "{line}");
    assert!(line.ends_with(&format!("uri=\"{MAPS}\" response=\"200\"")), "{line}");

    let flags = ["--audit-log-truncate-enabled", "--audit-log-truncate-max-event-size=2000"];
    let audited = AuditedServer::with(EVERYTHING, &flags);
    let mut admin = audited.client_with_token(ADMIN_TOKEN);
    let record = admin.last(("POST", MAPS), &JSON, &map("a", &"x".repeat(3_000)));
    assert_eq!(record["annotations"]["audit.k8s.io/truncated"], "true");
    assert!(record.get("requestObject").is_none() && record.get("responseObject").is_none(), "{record}");
}

#[test]
fn audit_log_stays_empty_without_policy() {
    let folder = temp_directory();
    let log = folder.path().join("new/audit.log");
    let flag = format!("--audit-log-path={}", log.to_str().unwrap());
    let server = Server::start_in(&folder.path().join("data"), &[&flag]);
    assert_eq!(server.admin().get(MAPS).status, 200);
    assert_eq!(fs::read(&log).unwrap(), b"", "but the file is there");
    assert!(server.log().contains("without --audit-policy-file no requests are audited"), "{}", server.log());
}
