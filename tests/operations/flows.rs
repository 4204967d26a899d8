//! Priority and fairness from outside: execution, queuing and rejection of requests.

mod memory;

use std::thread;

use serde_json::{Value, json};

use crate::support::Server;
use crate::support::client::{Client, JSON};
use crate::support::compare::text;
use crate::support::server::temp_directory;
use crate::support::wait::{Deadline, TIMEOUT, poll};
use crate::support::wire::Connection;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const GROUP: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const USER: &str = crate::support::USER_TOKEN;
const REFUSAL: &str = "Too many requests, please try again later.\n";

/// A server that allows everything, with ten seats in all.
fn server_with_ten_seats(arguments: &[&str]) -> Server {
    let few = ["--engine=memory", "--authorization-mode=AlwaysAllow", "--max-requests-inflight=10"];
    Server::with_flags(&[&few[..], &["--max-mutating-requests-inflight=0"], arguments].concat())
}

/// A priority level with one seat, which borrows none.
fn level(name: &str, response: &Value) -> Value {
    json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
        "metadata": {"name": name}, "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 1, "borrowingLimitPercent": 0, "limitResponse": response}}})
}

/// A flow schema for all requests of alice.
fn schema(name: &str, level: &str) -> Value {
    json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": name},
        "spec": {"matchingPrecedence": 500, "priorityLevelConfiguration": {"name": level},
            "distinguisherMethod": {"type": "ByUser"}, "rules": [{
                "subjects": [{"kind": "User", "user": {"name": "alice"}}],
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"],
                    "clusterScope": true}]}]}})
}

/// Assigns alice to a level with one seat. Returns the UIDs of schema and level.
fn limit_alice(admin: &mut Client, response: &Value) -> (String, String) {
    let level = admin.post(&format!("{GROUP}/prioritylevelconfigurations"), &level("one", response)).ok();
    let schema = admin.post(&format!("{GROUP}/flowschemas"), &schema("alice", "one")).ok();
    (text(&schema, "/metadata/uid").to_owned(), text(&level, "/metadata/uid").to_owned())
}

/// Waits until a condition holds.
fn wait_for(description: &str, mut condition: impl FnMut() -> bool) {
    assert!(poll(TIMEOUT, || condition().then_some(())).is_some(), "{description}");
}

/// The sum of a metric over the series of alice's level.
fn metric_sum(admin: &mut Client, name: &str) -> f64 {
    let page = admin.get("/metrics").text();
    let is_of_level =
        |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(r#"priority_level="one""#);
    page.lines().filter(is_of_level).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn wait_for_metric(admin: &mut Client, name: &str, value: f64) {
    wait_for(&format!("{name} is {value}"), || {
        (metric_sum(admin, &format!("apiserver_flowcontrol_{name}")) - value).abs() < 0.1
    });
}

/// A request that occupies a seat, because its body is not sent yet.
struct PendingRequest {
    connection: Connection,
    body: String,
}

impl PendingRequest {
    fn begin(client: &Client, name: &str) -> PendingRequest {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let (mut connection, body) = (client.raw(), object.to_string());
        let head = client.head("POST", MAPS, &JSON);
        connection.send(format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes()).unwrap();
        PendingRequest { connection, body }
    }

    fn end(mut self) -> u16 {
        self.connection.send(self.body.as_bytes()).unwrap();
        self.connection.head(Deadline::after(TIMEOUT)).unwrap().status
    }
}

#[test]
fn full_priority_level_rejects_without_affecting_others() {
    let server = server_with_ten_seats(&[]);
    let mut admin = server.admin();
    let mut alice = admin.with_token(Some(USER));
    let (schema, level) = limit_alice(&mut admin, &json!({"type": "Reject"}));
    alice.get(MAPS).ok();
    let pending = PendingRequest::begin(&alice, "held");
    wait_for_metric(&mut admin, "current_executing_requests", 1.0);
    for _ in 0..2 {
        let response = alice.get(MAPS);
        assert_eq!((response.status, response.text().as_str()), (429, REFUSAL));
        for (header, value) in [
            ("Retry-After", "1"),
            ("Content-Type", "text/plain; charset=utf-8"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-cache, private"),
            ("X-Kubernetes-PF-FlowSchema-UID", &schema),
            ("X-Kubernetes-PF-PriorityLevel-UID", &level),
        ] {
            assert_eq!(response.header(header), Some(value), "{header}");
        }
    }
    assert!(alice.try_watch(MAPS, "").is_err(), "a watch needs a seat to begin");
    // Other levels, health checks and exempt users are not affected.
    admin.request("GET", MAPS, &[("Impersonate-User", "bob")], b"").ok();
    assert_eq!(alice.get("/readyz").text(), "ok");
    let pending_requests: Vec<PendingRequest> =
        (0..15).map(|n| PendingRequest::begin(&admin, &format!("more{n}"))).collect();
    admin.new_connection().get(MAPS).ok();
    assert!(pending_requests.into_iter().all(|pending| pending.end() == 201), "masters are never limited");
    assert_eq!(metric_sum(&mut admin, "apiserver_flowcontrol_rejected_requests_total"), 3.0);
    assert_eq!(metric_sum(&mut admin, "apiserver_flowcontrol_current_limit_seats"), 1.0);
    assert_eq!(pending.end(), 201);
    wait_for_metric(&mut admin, "current_executing_requests", 0.0);
    // Watches hold a seat only while they start.
    let watches: Vec<_> = (0..3).map(|_| alice.watch(MAPS, "")).collect();
    alice.get(MAPS).ok();
    drop(watches);
    // A deleted level has no metrics, and alice gets her previous level.
    admin.delete(&format!("{GROUP}/flowschemas/alice")).ok();
    admin.delete(&format!("{GROUP}/prioritylevelconfigurations/one")).ok();
    assert_ne!(alice.get(MAPS).header("X-Kubernetes-PF-FlowSchema-UID"), Some(schema.as_str()));
    wait_for("nothing is told of the level", || {
        !admin.get("/metrics").text().contains(r#"priority_level="one""#)
    });
}

#[test]
fn slowly_read_list_holds_seat_until_timeout() {
    let server = server_with_ten_seats(&[]);
    let mut admin = server.admin();
    let alice = admin.with_token(Some(USER));
    limit_alice(&mut admin, &json!({"type": "Reject"}));
    fill(&mut admin);
    let mut slow = alice.raw();
    slow.send(format!("{}\r\n", alice.head("GET", &format!("{MAPS}?timeout=6s"), &[])).as_bytes()).unwrap();
    wait_for_metric(&mut admin, "current_executing_requests", 1.0);
    assert_eq!(alice.new_connection().get(MAPS).status, 429, "nobody else gets the seat meanwhile");
    wait_for_metric(&mut admin, "current_executing_requests", 0.0);
    let page = admin.get("/metrics").text();
    assert!(
        page.contains("\npilothouse_list_bytes_inflight 0\n"),
        "nor is anything of the list left: {page}"
    );
    let read = slow.read_to_end(Deadline::after(TIMEOUT)).unwrap_or_default();
    assert!(!read.ends_with(b"0\r\n\r\n"), "the client sees that it has not read everything");
    alice.new_connection().get(MAPS).ok();
}

/// Creates more objects than fit into the buffers of a connection.
fn fill(admin: &mut Client) {
    let large = "x".repeat(1_000_000);
    for number in 0..20 {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("large{number}")},
            "data": {"text": large}});
        admin.post(MAPS, &object).ok();
    }
}

#[test]
fn requests_without_seat_queue_and_leave_on_disconnect() {
    let server = server_with_ten_seats(&[]);
    let mut admin = server.admin();
    let alice = admin.with_token(Some(USER));
    let queuing = json!({"queues": 1, "handSize": 1, "queueLengthLimit": 3});
    limit_alice(&mut admin, &json!({"type": "Queue", "queuing": queuing}));
    let pending = PendingRequest::begin(&alice, "held");
    wait_for_metric(&mut admin, "current_executing_requests", 1.0);
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let mut client = alice.new_connection();
            thread::spawn(move || client.get(MAPS).status)
        })
        .collect();
    wait_for_metric(&mut admin, "current_inqueue_requests", 2.0);
    let disconnected = PendingRequest::begin(&alice, "gone");
    wait_for_metric(&mut admin, "current_inqueue_requests", 3.0);
    let response = alice.new_connection().get(MAPS);
    assert_eq!((response.status, response.text().as_str()), (429, REFUSAL), "the queue is full");
    drop(disconnected);
    wait_for_metric(&mut admin, "current_inqueue_requests", 2.0);
    // A request waits at most a quarter of its timeout.
    let timed_out = alice.new_connection().get(&format!("{MAPS}?timeout=400ms"));
    assert_eq!((timed_out.status, timed_out.header("Retry-After")), (429, Some("1")));
    assert!(waiting.iter().all(|request| !request.is_finished()));
    assert_eq!(pending.end(), 201);
    for request in waiting {
        assert_eq!(request.join().unwrap(), 200, "served when there was a seat");
    }
    let page = admin.get("/metrics").text();
    for reason in ["queue-full", "time-out"] {
        let line = format!(
            r#"rejected_requests_total{{flow_schema="alice",priority_level="one",reason="{reason}"}} 1"#
        );
        assert!(page.contains(&line), "{reason}: {page}");
    }
    assert!(!page.contains(r#"configmaps/gone"#) && admin.get(&format!("{MAPS}/gone")).status == 404);
}

/// The header and the rows of one level of a debug table.
fn debug_dump(client: &mut Client, table: &str, level: &str) -> Vec<Vec<String>> {
    let response = client.get(&format!("/debug/api_priority_and_fairness/{table}"));
    assert_eq!(response.header("Content-Type"), Some("text/plain; charset=utf-8"), "{}", response.text());
    let text = response.text();
    let mut lines = text.lines().map(|line| line.split(',').map(|cell| cell.trim().to_owned()));
    let head: Vec<String> = lines.next().unwrap().collect();
    let rows = lines.map(Iterator::collect::<Vec<String>>).filter(|row| row[0] == level);
    std::iter::once(head).chain(rows).collect()
}

#[test]
fn debug_endpoints_dump_levels_queues_and_requests() {
    let server = server_with_ten_seats(&[]);
    let mut admin = server.admin();
    let alice = admin.with_token(Some(USER));
    let queuing = json!({"queues": 2, "handSize": 1, "queueLengthLimit": 1});
    limit_alice(&mut admin, &json!({"type": "Queue", "queuing": queuing}));
    let pending = PendingRequest::begin(&alice, "held");
    wait_for_metric(&mut admin, "current_executing_requests", 1.0);
    let mut client = alice.new_connection();
    let waiting = thread::spawn(move || client.get(&format!("{MAPS}?limit=1")).status);
    wait_for_metric(&mut admin, "current_inqueue_requests", 1.0);
    assert_eq!(alice.new_connection().get(MAPS).status, 429);
    let levels = debug_dump(&mut admin, "dump_priority_levels", "one");
    assert_eq!(levels[0][..3], ["PriorityLevelName", "ActiveQueues", "IsIdle"]);
    assert_eq!(
        levels[1..],
        [["one", "1", "false", "false", "1", "1", "1", "1", "0", "0"].map(str::to_owned)]
    );
    let exempt_rows = debug_dump(&mut admin, "dump_priority_levels", "exempt");
    assert_eq!(exempt_rows[1][2..6], ["false", "false", "0", "1"], "the question itself is there");
    let queues = debug_dump(&mut admin, "dump_queues", "one");
    assert_eq!((queues.len(), queues[0].len()), (3, 9), "an empty queue is there, too: {queues:?}");
    let used = queues.iter().find(|row| row[2] == "1").unwrap();
    assert_eq!(
        (&used[3..5], &used[6..]),
        (&["1", "1"].map(str::to_owned)[..], &["1", "1", "0.00300000ss"].map(str::to_owned)[..])
    );
    let index = used[1].clone();
    let requests = debug_dump(&mut admin, "dump_requests", "one");
    let [head, waits, works] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((head.len(), head[4].as_str()), (10, "FlowDistingsher"));
    assert_eq!(waits[1..5], ["alice", &index, "0", "alice"]);
    assert_eq!(waits[6..], ["1", "0", "0s", "0001-01-01T00:00:00Z"]);
    assert_eq!(works[1..5], ["alice", &index, "-1", "alice"]);
    assert!(works[5].starts_with("20") && works[9].starts_with("20"), "{works:?}");
    let detailed = debug_dump(&mut admin, "dump_requests?includeRequestDetails=1", "one");
    assert_eq!(detailed[0].len(), 18);
    assert_eq!(detailed[1][10..], ["alice", "list", MAPS, "default", "", "v1", "configmaps", ""]);
    assert_eq!(detailed[2][10..], ["alice", "create", MAPS, "default", "", "v1", "configmaps", ""]);
    let exempt_rows = debug_dump(&mut admin, "dump_requests?includeRequestDetails=1", "exempt");
    assert_eq!(exempt_rows[1][1..4], ["exempt", "-1", "-1"]);
    assert_eq!(exempt_rows[1][11..13], ["get", "/debug/api_priority_and_fairness/dump_requests"]);
    assert_eq!(pending.end(), 201);
    assert_eq!(waiting.join().unwrap(), 200);
    wait_for("nobody is there", || {
        let levels = debug_dump(&mut admin, "dump_priority_levels", "one");
        levels[1][1..] == ["0", "true", "false", "0", "0", "2", "1", "0", "0"].map(str::to_owned)
    });
    assert_eq!(debug_dump(&mut admin, "dump_requests", "one").len(), 1);
    assert_eq!(admin.get("/debug/api_priority_and_fairness/dump_nothing").status, 404);
}

#[test]
fn debug_dump_is_forbidden_without_permission() {
    let path = "/debug/api_priority_and_fairness/dump_requests";
    let server = Server::start();
    assert_eq!(server.admin().with_token(Some(USER)).get(path).status, 403);
    assert!(!server.admin().get("/").text().contains("/debug/"), "it is not among the paths");
}

#[test]
fn growing_priority_level_dispatches_queued_requests() {
    let server = server_with_ten_seats(&[]);
    let mut admin = server.admin();
    let alice = admin.with_token(Some(USER));
    let queuing = json!({"queues": 8, "handSize": 2, "queueLengthLimit": 3});
    limit_alice(&mut admin, &json!({"type": "Queue", "queuing": queuing}));
    let pending = PendingRequest::begin(&alice, "held");
    wait_for_metric(&mut admin, "current_executing_requests", 1.0);
    let mut client = alice.new_connection();
    let waiting = thread::spawn(move || client.get(MAPS).status);
    wait_for_metric(&mut admin, "current_inqueue_requests", 1.0);
    let larger = json!({"spec": {"limited": {"nominalConcurrencyShares": 200}}});
    admin.patch(&format!("{GROUP}/prioritylevelconfigurations/one"), "merge", &larger).ok();
    assert_eq!(waiting.join().unwrap(), 200);
    assert_eq!(pending.end(), 201);
}

fn wait_for_dangling(admin: &mut Client, status: &str) -> Value {
    let path = format!("{GROUP}/flowschemas/alice");
    let mut schema = Value::Null;
    wait_for("the condition", || {
        schema = admin.get(&path).ok();
        schema["status"]["conditions"][0]["status"] == status
    });
    schema
}

#[test]
fn flow_schema_dangling_condition_follows_priority_level() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    admin.post(&format!("{GROUP}/flowschemas"), &schema("alice", "one")).ok();
    let dangling_schema = wait_for_dangling(&mut admin, "True");
    let condition = &dangling_schema["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("Dangling"), &json!("NotFound")));
    let message = "This FlowSchema references the PriorityLevelConfiguration object named \"one\" but there is no such object";
    assert_eq!(condition["message"], message);
    let managers = dangling_schema["metadata"]["managedFields"].as_array().unwrap();
    let consumer = "api-priority-and-fairness-config-consumer-v1";
    let entry = managers.iter().find(|entry| entry["manager"] == consumer).expect("an owner of the status");
    assert_eq!((&entry["operation"], &entry["subresource"]), (&json!("Apply"), &json!("status")));
    admin
        .post(&format!("{GROUP}/prioritylevelconfigurations"), &level("one", &json!({"type": "Reject"})))
        .ok();
    let schema = wait_for_dangling(&mut admin, "False");
    let condition = &schema["status"]["conditions"][0];
    let message =
        "This FlowSchema references the PriorityLevelConfiguration object named \"one\" and it exists";
    assert_eq!((&condition["reason"], &condition["message"]), (&json!("Found"), &json!(message)));
    // A foreign change of the condition is corrected.
    let wrong_condition =
        json!({"status": {"conditions": [{"type": "Dangling", "status": "True", "reason": "Why not"}]}});
    admin.patch(&format!("{GROUP}/flowschemas/alice/status"), "merge", &wrong_condition).ok();
    wait_for_dangling(&mut admin, "False");
    admin.delete(&format!("{GROUP}/prioritylevelconfigurations/one")).ok();
    wait_for_dangling(&mut admin, "True");
}

#[test]
fn default_flow_configuration_is_reconciled_unless_opted_out() {
    let data = temp_directory();
    let flow_path = |resource: &str| format!("{GROUP}/{resource}");
    let shares = |admin: &mut Client, name: &str| {
        admin.get(&flow_path(&format!("prioritylevelconfigurations/{name}"))).ok()["spec"]["limited"]
            ["nominalConcurrencyShares"]
            .clone()
    };
    {
        let server = Server::start_in(data.path(), &[]);
        let mut admin = server.admin();
        let larger = json!({"spec": {"limited": {"nominalConcurrencyShares": 77}}});
        admin.patch(&flow_path("prioritylevelconfigurations/system"), "merge", &larger).ok();
        let opted_out = json!({"metadata": {"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}},
            "spec": {"limited": {"nominalConcurrencyShares": 78}}});
        admin.patch(&flow_path("prioritylevelconfigurations/node-high"), "merge", &opted_out).ok();
        admin.delete(&flow_path("flowschemas/probes")).ok();
        let mut obsolete = schema("left", "system");
        obsolete["metadata"]["annotations"] = json!({"apf.kubernetes.io/autoupdate-spec": "true"});
        admin.post(&flow_path("flowschemas"), &obsolete).ok();
    }
    let server = Server::start_in(data.path(), &[]);
    let mut admin = server.admin();
    assert_eq!((shares(&mut admin, "system"), shares(&mut admin, "node-high")), (json!(30), json!(78)));
    admin.get(&flow_path("flowschemas/probes")).ok();
    admin.get(&flow_path("flowschemas/left")).expect_error(404, "NotFound");
    let before = admin.get(&flow_path("prioritylevelconfigurations")).ok();
    drop(server);
    let server = Server::start_in(data.path(), &[]);
    let after = server.admin().get(&flow_path("prioritylevelconfigurations")).ok();
    assert_eq!(before["items"], after["items"], "what is as it should be is not written");
}

#[test]
fn without_priority_and_fairness_inflight_limits_apply() {
    let server = Server::with_flags(&[
        "--engine=memory",
        "--authorization-mode=AlwaysAllow",
        "--enable-priority-and-fairness=false",
        "--max-requests-inflight=400",
        "--max-mutating-requests-inflight=1",
    ]);
    let mut admin = server.admin();
    let mut alice = admin.with_token(Some(USER));
    let pending = PendingRequest::begin(&alice, "held");
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}});
    let metric = r#"apiserver_current_inflight_requests{request_kind="mutating"} 1"#;
    wait_for("the request is there", || admin.get("/metrics").text().contains(metric));
    let response = alice.post(MAPS, &object);
    assert_eq!((response.status, response.text().as_str()), (429, REFUSAL));
    assert_eq!(response.header("Retry-After"), Some("1"));
    assert_eq!(response.header("X-Kubernetes-PF-FlowSchema-UID"), None);
    assert_eq!(admin.get("/debug/api_priority_and_fairness/dump_requests").status, 404);
    alice.get(MAPS).ok();
    admin.post(MAPS, &object).ok();
    assert_eq!(pending.end(), 201);
}
