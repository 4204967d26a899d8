//! Where records go: files that are put aside, a server that gets them, one that does not, and none at all.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pilothouse_types::lock::Lock;

use super::support::wait::Deadline;
use super::*;

const EVERYTHING: &str = "rules: [{level: RequestResponse}]";

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_log_that_is_full_is_put_aside_and_old_ones_go() {
    let more = ["--audit-log-maxsize=1", "--audit-log-maxbackup=2", "--audit-log-compress"];
    let audited = Audited::with(EVERYTHING, &more);
    let mut admin = audited.server.admin();
    let folder = audited.log.parent().unwrap();
    let large = "x".repeat(300 << 10);
    for number in 0..12 {
        admin.request("POST", MAPS, &JSON, map(&format!("m{number}"), &large).as_bytes()).ok();
        assert!(fs::metadata(&audited.log).unwrap().len() <= 1 << 20);
    }
    let settled = |names: &[String]| {
        names.len() == 3 && names.iter().filter(|name| name.ends_with(".log.gz")).count() == 2
    };
    let found = poll(CAP, || Some(names(folder)).filter(|names| settled(names)));
    let found = found.unwrap_or_else(|| panic!("{:?}", names(folder)));
    // audit-2006-01-02T15-04-05.000.log.gz
    assert!(
        found[0].starts_with("audit-2") && found[0].len() == "audit-2006-01-02T15-04-05.000.log.gz".len()
    );
    let packed = fs::File::open(folder.join(&found[0])).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    assert_eq!(found[2], "audit.log");
}

/// What a server that gets records does with them.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Refuses the first time, and then takes them.
    RefusesOnce,
    /// Takes the connection and never answers.
    Stalls,
}

/// A server that gets records. It keeps no more than some of them.
struct Receiver {
    port: u16,
    got: Arc<Lock<Vec<Value>>>,
}

const KEPT: usize = 1_000;

impl Receiver {
    fn start(manner: Manner) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let got = Arc::<Lock<Vec<Value>>>::default();
        let kept = got.clone();
        thread::spawn(move || {
            let has_refused = Arc::new(AtomicBool::new(false));
            let mut stalled = Vec::new();
            for mut stream in listener.incoming().flatten() {
                if manner == Manner::Stalls {
                    stalled.push(stream);
                    continue;
                }
                let (kept, has_refused) = (kept.clone(), has_refused.clone());
                // A client may open a connection and send its request on another one.
                thread::spawn(move || {
                    let body = body(&mut stream);
                    if body.is_empty() {
                        return;
                    }
                    let refuses = manner == Manner::RefusesOnce && !has_refused.swap(true, Ordering::Relaxed);
                    let status = if refuses { "500 Internal Server Error" } else { "200 OK" };
                    let mut kept = kept.lock();
                    if !refuses && kept.len() < KEPT {
                        kept.push(serde_json::from_slice(&body).expect("a list"));
                    }
                    let _ =
                        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                });
            }
        });
        Receiver { port, got }
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
        let got = self.got.lock();
        got.iter().flat_map(|list| list["items"].as_array().unwrap().clone()).collect()
    }
}

/// The body of a request.
fn body(stream: &mut impl std::io::Read) -> Vec<u8> {
    let (mut read, mut piece) = (Vec::new(), [0; 4_096]);
    loop {
        let count = stream.read(&mut piece).unwrap_or(0);
        if count == 0 {
            return Vec::new();
        }
        read.extend_from_slice(&piece[..count]);
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
        assert!(head.starts_with("post /audit "), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if read.len() >= end + 4 + length.trim().parse::<usize>().unwrap() {
            return read.split_off(end + 4);
        }
    }
}

fn started(receiver: &Receiver, more: &[&str]) -> (Server, TempDir) {
    let folder = directory();
    let kubeconfig = receiver.kubeconfig(folder.path());
    let mut all = vec![kubeconfig.as_str()];
    all.extend(more);
    let flags = flags(folder.path(), EVERYTHING, &all);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    (Server::on(&folder.path().join("data"), &flags), folder)
}

#[test]
fn another_server_gets_lists_of_records() {
    let receiver = Receiver::start(Manner::RefusesOnce);
    let more = ["--audit-webhook-batch-max-wait=50ms", "--audit-webhook-initial-backoff=100ms"];
    let (server, folder) = started(&receiver, &more);
    let mut admin = server.admin();
    for number in 0..5 {
        admin.request("POST", MAPS, &JSON, map(&format!("m{number}"), "v").as_bytes()).ok();
    }
    let of_maps = |items: &[Value]| items.iter().filter(|item| item["requestURI"] == MAPS).count();
    poll(CAP, || (of_maps(&receiver.items()) >= 10).then_some(())).expect("all of them come");
    let items = receiver.items();
    assert_eq!(of_maps(&items), 10, "and each of them once");
    assert!(items[0].get("kind").is_none() && items[0]["auditID"].is_string());
    let list = receiver.got.lock()[0].clone();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("audit.k8s.io/v1")));
    // What is not sent yet when the server stops is sent then.
    admin.request("POST", MAPS, &JSON, map("last", "v").as_bytes()).ok();
    server.stop();
    assert_eq!(of_maps(&receiver.items()), 12);
    let logged = records(&folder.path().join("logs/audit.log"));
    assert_eq!(of_maps(&logged), 12, "the log has them as well");
}

#[test]
fn a_server_that_takes_no_records_slows_nobody_and_costs_no_memory() {
    let receiver = Receiver::start(Manner::Stalls);
    let more = [
        "--audit-webhook-batch-buffer-size=50",
        "--audit-webhook-batch-max-size=10",
        "--audit-webhook-batch-max-wait=10ms",
        "--audit-webhook-batch-throttle-enable=false",
        "--audit-log-mode=batch",
    ];
    let (mut server, _folder) = started(&receiver, &more);
    let mut admin = server.admin();
    let memory = |admin: &mut Client| -> f64 {
        let page = admin.get("/metrics").text();
        let found = page.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
        found.unwrap().parse().unwrap()
    };
    let large = "x".repeat(100 << 10);
    admin.request("POST", MAPS, &JSON, map("m", &large).as_bytes()).ok();
    let round = |admin: &mut Client| {
        let until = Deadline::after(CAP);
        for _ in 0..500 {
            assert_eq!(admin.get(&format!("{MAPS}/m")).status, 200);
        }
        assert!(!until.passed(), "nobody waits for it");
    };
    round(&mut admin);
    let before = memory(&mut admin);
    for _ in 0..4 {
        round(&mut admin);
    }
    let grown = memory(&mut admin) - before;
    assert!(grown < 64e6, "2,000 records of 100 KB each are not kept: {grown}");
    let page = admin.get("/metrics").text();
    let lost =
        page.lines().find_map(|line| line.strip_prefix("apiserver_audit_error_total{plugin=\"buffered\"} "));
    assert!(lost.unwrap().parse::<f64>().unwrap() > 1_000.0, "what is lost is counted: {lost:?}");
    server.unharmed();
}

#[test]
fn a_request_without_a_record_is_refused_where_that_is_asked_for() {
    let full = "--audit-log-path=/dev/full";
    let lenient = Audited::with(EVERYTHING, &[full]);
    assert_eq!(lenient.server.admin().get(MAPS).status, 200);
    let folder = directory();
    // The probes of the test itself are let in, and what the server needs to begin.
    let rules = "rules: [{level: None, nonResourceURLs: ['*']}, {level: None, users: ['system:apiserver']}, \
                 {level: Metadata}]";
    let flags = flags(folder.path(), rules, &[full, "--audit-log-mode=blocking-strict"]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::on(&folder.path().join("data"), &flags);
    let mut admin = server.admin();
    let refused = admin.get(MAPS);
    assert_eq!(refused.status, 500);
    assert_eq!(refused.text(), format!("Internal Server Error: \"{MAPS}\": failed to store audit event\n"));
    let page = admin.get("/metrics").text();
    assert!(page.contains("\napiserver_audit_requests_rejected_total 1\n"));
    assert!(page.contains("\napiserver_audit_error_total{plugin=\"log\"} 1\n"));
}

#[test]
fn records_may_be_lines_on_the_output_and_large_ones_lose_their_bodies() {
    let more = ["--audit-log-path=-", "--audit-log-format=legacy"];
    let audited = Audited::with("rules: [{level: Metadata, resources: [{resources: [configmaps]}]}]", &more);
    assert_eq!(audited.server.admin().get(MAPS).status, 200);
    let line = poll(CAP, || {
        let output = audited.server.output();
        let is_ours =
            |line: &&str| line.contains("stage=\"ResponseComplete\"") && line.contains(" user=\"admin\"");
        output.lines().find(is_ours).map(str::to_owned)
    });
    let line = line.expect("a line");
    assert!(line.contains(" AUDIT: id=\"") && line.contains(" method=\"list\" user=\"admin\""), "{line}");
    assert!(line.ends_with(&format!("uri=\"{MAPS}\" response=\"200\"")), "{line}");

    let more = ["--audit-log-truncate-enabled", "--audit-log-truncate-max-event-size=2000"];
    let audited = Audited::with(EVERYTHING, &more);
    let mut admin = audited.ask(ADMIN_TOKEN);
    let record = admin.last(("POST", MAPS), &JSON, &map("a", &"x".repeat(3_000)));
    assert_eq!(record["annotations"]["audit.k8s.io/truncated"], "true");
    assert!(record.get("requestObject").is_none() && record.get("responseObject").is_none(), "{record}");
}

#[test]
fn without_a_policy_nothing_is_written() {
    let folder = directory();
    let log = folder.path().join("new/audit.log");
    let flag = format!("--audit-log-path={}", log.to_str().unwrap());
    let server = Server::on(&folder.path().join("data"), &[&flag]);
    assert_eq!(server.admin().get(MAPS).status, 200);
    assert_eq!(fs::read(&log).unwrap(), b"", "but the file is there");
    assert!(
        server.log().contains("without --audit-policy-file no requests are written down"),
        "{}",
        server.log()
    );
}
