//! Priority and fairness seen from outside: who is let in, who waits, who is refused and in which words.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "flows/memory.rs"]
mod memory;
mod support;

use std::thread;

use serde_json::{Value, json};
use support::Server;
use support::client::{Client, JSON};
use support::compare::text;
use support::server::directory;
use support::wait::{CAP, Deadline, poll};
use support::wire::Connection;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const GROUP: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const USER: &str = support::USER_TOKEN;
const REFUSAL: &str = "Too many requests, please try again later.\n";

/// Everybody may do everything, but not all at once: there are ten seats.
fn narrow(arguments: &[&str]) -> Server {
    let few = ["--engine=memory", "--authorization-mode=AlwaysAllow", "--max-requests-inflight=10"];
    Server::with(&[&few[..], &["--max-mutating-requests-inflight=0"], arguments].concat())
}

/// A level of one seat, which borrows none.
fn level(name: &str, response: &Value) -> Value {
    json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
        "metadata": {"name": name}, "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 1, "borrowingLimitPercent": 0, "limitResponse": response}}})
}

/// A schema of all resources for alice.
fn schema(name: &str, level: &str) -> Value {
    json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": name},
        "spec": {"matchingPrecedence": 500, "priorityLevelConfiguration": {"name": level},
            "distinguisherMethod": {"type": "ByUser"}, "rules": [{
                "subjects": [{"kind": "User", "user": {"name": "alice"}}],
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"],
                    "clusterScope": true}]}]}})
}

/// Puts alice to a level of one seat. Answers the uids of schema and level.
fn confine(admin: &mut Client, response: &Value) -> (String, String) {
    let level = admin.post(&format!("{GROUP}/prioritylevelconfigurations"), &level("one", response)).ok();
    let schema = admin.post(&format!("{GROUP}/flowschemas"), &schema("alice", "one")).ok();
    (text(&schema, "/metadata/uid").to_owned(), text(&level, "/metadata/uid").to_owned())
}

/// Waits until it is so.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    assert!(poll(CAP, || is_so().then_some(())).is_some(), "{what}");
}

/// What a series of the level of alice says; nothing if it is not told.
fn told(admin: &mut Client, name: &str) -> f64 {
    let page = admin.get("/metrics").text();
    let of = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(r#"priority_level="one""#);
    page.lines().filter(of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn until(admin: &mut Client, name: &str, value: f64) {
    wait_for(&format!("{name} is {value}"), || {
        (told(admin, &format!("apiserver_flowcontrol_{name}")) - value).abs() < 0.1
    });
}

/// A request that takes its seat and does not end: its body is not sent yet.
struct Held {
    connection: Connection,
    body: String,
}

impl Held {
    fn begin(client: &Client, name: &str) -> Held {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let (mut connection, body) = (client.raw(), object.to_string());
        let head = client.head("POST", MAPS, &JSON);
        connection.send(format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes()).unwrap();
        Held { connection, body }
    }

    fn end(mut self) -> u16 {
        self.connection.send(self.body.as_bytes()).unwrap();
        self.connection.head(Deadline::after(CAP)).unwrap().status
    }
}

#[test]
fn a_level_that_is_full_refuses_and_disturbs_nobody_else() {
    let server = narrow(&[]);
    let mut admin = server.admin();
    let mut alice = admin.with_token(Some(USER));
    let (schema, level) = confine(&mut admin, &json!({"type": "Reject"}));
    alice.get(MAPS).ok();
    let held = Held::begin(&alice, "held");
    until(&mut admin, "current_executing_requests", 1.0);
    for _ in 0..2 {
        let refused = alice.get(MAPS);
        assert_eq!((refused.status, refused.text().as_str()), (429, REFUSAL));
        for (header, value) in [
            ("Retry-After", "1"),
            ("Content-Type", "text/plain; charset=utf-8"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-cache, private"),
            ("X-Kubernetes-PF-FlowSchema-UID", &schema),
            ("X-Kubernetes-PF-PriorityLevel-UID", &level),
        ] {
            assert_eq!(refused.header(header), Some(value), "{header}");
        }
    }
    assert!(alice.try_watch(MAPS, "").is_err(), "a watch needs a seat to begin");
    // Another level, those who ask for its health, and those who may do everything.
    admin.request("GET", MAPS, &[("Impersonate-User", "bob")], b"").ok();
    assert_eq!(alice.get("/readyz").text(), "ok");
    let more: Vec<Held> = (0..15).map(|n| Held::begin(&admin, &format!("more{n}"))).collect();
    admin.again().get(MAPS).ok();
    assert!(more.into_iter().all(|held| held.end() == 201), "masters are never limited");
    assert_eq!(told(&mut admin, "apiserver_flowcontrol_rejected_requests_total"), 3.0);
    assert_eq!(told(&mut admin, "apiserver_flowcontrol_current_limit_seats"), 1.0);
    assert_eq!(held.end(), 201);
    until(&mut admin, "current_executing_requests", 0.0);
    // Watches hold a seat no longer than they take to begin.
    let watches: Vec<_> = (0..3).map(|_| alice.watch(MAPS, "")).collect();
    alice.get(MAPS).ok();
    drop(watches);
    // What is deleted is told no more, and alice is where she was before.
    admin.delete(&format!("{GROUP}/flowschemas/alice")).ok();
    admin.delete(&format!("{GROUP}/prioritylevelconfigurations/one")).ok();
    assert_ne!(alice.get(MAPS).header("X-Kubernetes-PF-FlowSchema-UID"), Some(schema.as_str()));
    wait_for("nothing is told of the level", || {
        !admin.get("/metrics").text().contains(r#"priority_level="one""#)
    });
}

#[test]
fn a_list_that_is_read_slowly_keeps_its_seat_until_its_time_is_over() {
    let server = narrow(&[]);
    let mut admin = server.admin();
    let alice = admin.with_token(Some(USER));
    confine(&mut admin, &json!({"type": "Reject"}));
    fill(&mut admin);
    let mut slow = alice.raw();
    slow.send(format!("{}\r\n", alice.head("GET", &format!("{MAPS}?timeout=6s"), &[])).as_bytes()).unwrap();
    until(&mut admin, "current_executing_requests", 1.0);
    assert_eq!(alice.again().get(MAPS).status, 429, "nobody else gets the seat meanwhile");
    until(&mut admin, "current_executing_requests", 0.0);
    let page = admin.get("/metrics").text();
    assert!(
        page.contains("\npilothouse_list_bytes_inflight 0\n"),
        "nor is anything of the list left: {page}"
    );
    let read = slow.rest_to_end(Deadline::after(CAP)).unwrap_or_default();
    assert!(!read.ends_with(b"0\r\n\r\n"), "the client sees that it has not read everything");
    alice.again().get(MAPS).ok();
}

/// Makes more objects than fit into the buffers of a connection.
fn fill(admin: &mut Client) {
    let large = "x".repeat(1_000_000);
    for turn in 0..20 {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("large{turn}")},
            "data": {"text": large}});
        admin.post(MAPS, &object).ok();
    }
}

#[test]
fn those_who_find_no_seat_wait_for_one_and_leave_when_they_hang_up() {
    let server = narrow(&[]);
    let mut admin = server.admin();
    let alice = admin.with_token(Some(USER));
    let queuing = json!({"queues": 1, "handSize": 1, "queueLengthLimit": 3});
    confine(&mut admin, &json!({"type": "Queue", "queuing": queuing}));
    let held = Held::begin(&alice, "held");
    until(&mut admin, "current_executing_requests", 1.0);
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let mut client = alice.again();
            thread::spawn(move || client.get(MAPS).status)
        })
        .collect();
    until(&mut admin, "current_inqueue_requests", 2.0);
    let gone = Held::begin(&alice, "gone");
    until(&mut admin, "current_inqueue_requests", 3.0);
    let refused = alice.again().get(MAPS);
    assert_eq!((refused.status, refused.text().as_str()), (429, REFUSAL), "the queue is full");
    drop(gone);
    until(&mut admin, "current_inqueue_requests", 2.0);
    // A quarter of the time that it has is all that a request waits.
    let late = alice.again().get(&format!("{MAPS}?timeout=400ms"));
    assert_eq!((late.status, late.header("Retry-After")), (429, Some("1")));
    assert!(waiting.iter().all(|request| !request.is_finished()));
    assert_eq!(held.end(), 201);
    for request in waiting {
        assert_eq!(request.join().unwrap(), 200, "served when there was a seat");
    }
    let page = admin.get("/metrics").text();
    for reason in ["queue-full", "time-out"] {
        let one = format!(
            r#"rejected_requests_total{{flow_schema="alice",priority_level="one",reason="{reason}"}} 1"#
        );
        assert!(page.contains(&one), "{reason}: {page}");
    }
    assert!(!page.contains(r#"configmaps/gone"#) && admin.get(&format!("{MAPS}/gone")).status == 404);
}

/// The rows of a table of what is in the levels, those of one level only; the first is the heading.
fn dumped(client: &mut Client, table: &str, of: &str) -> Vec<Vec<String>> {
    let answer = client.get(&format!("/debug/api_priority_and_fairness/{table}"));
    assert_eq!(answer.header("Content-Type"), Some("text/plain; charset=utf-8"), "{}", answer.text());
    let text = answer.text();
    let mut lines = text.lines().map(|line| line.split(',').map(|cell| cell.trim().to_owned()));
    let head: Vec<String> = lines.next().unwrap().collect();
    let rows = lines.map(Iterator::collect::<Vec<String>>).filter(|row| row[0] == of);
    std::iter::once(head).chain(rows).collect()
}

#[test]
fn what_is_in_the_levels_is_told_to_who_asks() {
    let server = narrow(&[]);
    let mut admin = server.admin();
    let alice = admin.with_token(Some(USER));
    let queuing = json!({"queues": 2, "handSize": 1, "queueLengthLimit": 1});
    confine(&mut admin, &json!({"type": "Queue", "queuing": queuing}));
    let held = Held::begin(&alice, "held");
    until(&mut admin, "current_executing_requests", 1.0);
    let mut client = alice.again();
    let waiting = thread::spawn(move || client.get(&format!("{MAPS}?limit=1")).status);
    until(&mut admin, "current_inqueue_requests", 1.0);
    assert_eq!(alice.again().get(MAPS).status, 429);
    let levels = dumped(&mut admin, "dump_priority_levels", "one");
    assert_eq!(levels[0][..3], ["PriorityLevelName", "ActiveQueues", "IsIdle"]);
    assert_eq!(
        levels[1..],
        [["one", "1", "false", "false", "1", "1", "1", "1", "0", "0"].map(str::to_owned)]
    );
    let own = dumped(&mut admin, "dump_priority_levels", "exempt");
    assert_eq!(own[1][2..6], ["false", "false", "0", "1"], "the question itself is there");
    let queues = dumped(&mut admin, "dump_queues", "one");
    assert_eq!((queues.len(), queues[0].len()), (3, 9), "an empty queue is there, too: {queues:?}");
    let used = queues.iter().find(|row| row[2] == "1").unwrap();
    assert_eq!(
        (&used[3..5], &used[6..]),
        (&["1", "1"].map(str::to_owned)[..], &["1", "1", "0.00300000ss"].map(str::to_owned)[..])
    );
    let index = used[1].clone();
    let requests = dumped(&mut admin, "dump_requests", "one");
    let [head, waits, works] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((head.len(), head[4].as_str()), (10, "FlowDistingsher"));
    assert_eq!(waits[1..5], ["alice", &index, "0", "alice"]);
    assert_eq!(waits[6..], ["1", "0", "0s", "0001-01-01T00:00:00Z"]);
    assert_eq!(works[1..5], ["alice", &index, "-1", "alice"]);
    assert!(works[5].starts_with("20") && works[9].starts_with("20"), "{works:?}");
    let detailed = dumped(&mut admin, "dump_requests?includeRequestDetails=1", "one");
    assert_eq!(detailed[0].len(), 18);
    assert_eq!(detailed[1][10..], ["alice", "list", MAPS, "default", "", "v1", "configmaps", ""]);
    assert_eq!(detailed[2][10..], ["alice", "create", MAPS, "default", "", "v1", "configmaps", ""]);
    let own = dumped(&mut admin, "dump_requests?includeRequestDetails=1", "exempt");
    assert_eq!(own[1][1..4], ["exempt", "-1", "-1"]);
    assert_eq!(own[1][11..13], ["get", "/debug/api_priority_and_fairness/dump_requests"]);
    assert_eq!(held.end(), 201);
    assert_eq!(waiting.join().unwrap(), 200);
    wait_for("nobody is there", || {
        let levels = dumped(&mut admin, "dump_priority_levels", "one");
        levels[1][1..] == ["0", "true", "false", "0", "0", "2", "1", "0", "0"].map(str::to_owned)
    });
    assert_eq!(dumped(&mut admin, "dump_requests", "one").len(), 1);
    assert_eq!(admin.get("/debug/api_priority_and_fairness/dump_nothing").status, 404);
}

#[test]
fn what_is_in_the_levels_is_told_to_nobody_else() {
    let path = "/debug/api_priority_and_fairness/dump_requests";
    let server = Server::start();
    assert_eq!(server.admin().with_token(Some(USER)).get(path).status, 403);
    assert!(!server.admin().get("/").text().contains("/debug/"), "it is not among the paths");
}

#[test]
fn a_level_that_grows_lets_those_in_who_wait() {
    let server = narrow(&[]);
    let mut admin = server.admin();
    let alice = admin.with_token(Some(USER));
    let queuing = json!({"queues": 8, "handSize": 2, "queueLengthLimit": 3});
    confine(&mut admin, &json!({"type": "Queue", "queuing": queuing}));
    let held = Held::begin(&alice, "held");
    until(&mut admin, "current_executing_requests", 1.0);
    let mut client = alice.again();
    let waiting = thread::spawn(move || client.get(MAPS).status);
    until(&mut admin, "current_inqueue_requests", 1.0);
    let more = json!({"spec": {"limited": {"nominalConcurrencyShares": 200}}});
    admin.patch(&format!("{GROUP}/prioritylevelconfigurations/one"), "merge", &more).ok();
    assert_eq!(waiting.join().unwrap(), 200);
    assert_eq!(held.end(), 201);
}

fn dangling(admin: &mut Client, status: &str) -> Value {
    let path = format!("{GROUP}/flowschemas/alice");
    let mut found = Value::Null;
    wait_for("the condition", || {
        found = admin.get(&path).ok();
        found["status"]["conditions"][0]["status"] == status
    });
    found
}

#[test]
fn a_flow_schema_says_whether_its_level_is_there() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    admin.post(&format!("{GROUP}/flowschemas"), &schema("alice", "one")).ok();
    let lost = dangling(&mut admin, "True");
    let condition = &lost["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("Dangling"), &json!("NotFound")));
    let message = "This FlowSchema references the PriorityLevelConfiguration object named \"one\" but there is no such object";
    assert_eq!(condition["message"], message);
    let managers = lost["metadata"]["managedFields"].as_array().unwrap();
    let consumer = "api-priority-and-fairness-config-consumer-v1";
    let entry = managers.iter().find(|entry| entry["manager"] == consumer).expect("an owner of the status");
    assert_eq!((&entry["operation"], &entry["subresource"]), (&json!("Apply"), &json!("status")));
    admin
        .post(&format!("{GROUP}/prioritylevelconfigurations"), &level("one", &json!({"type": "Reject"})))
        .ok();
    let found = dangling(&mut admin, "False");
    let condition = &found["status"]["conditions"][0];
    let message =
        "This FlowSchema references the PriorityLevelConfiguration object named \"one\" and it exists";
    assert_eq!((&condition["reason"], &condition["message"]), (&json!("Found"), &json!(message)));
    // Whoever writes something else into it is corrected.
    let wrong =
        json!({"status": {"conditions": [{"type": "Dangling", "status": "True", "reason": "Why not"}]}});
    admin.patch(&format!("{GROUP}/flowschemas/alice/status"), "merge", &wrong).ok();
    dangling(&mut admin, "False");
    admin.delete(&format!("{GROUP}/prioritylevelconfigurations/one")).ok();
    dangling(&mut admin, "True");
}

#[test]
fn what_a_fresh_cluster_has_is_looked_after_unless_somebody_wants_it_otherwise() {
    let data = directory();
    let at = |what: &str| format!("{GROUP}/{what}");
    let shares = |admin: &mut Client, name: &str| {
        admin.get(&at(&format!("prioritylevelconfigurations/{name}"))).ok()["spec"]["limited"]
            ["nominalConcurrencyShares"]
            .clone()
    };
    {
        let server = Server::on(data.path(), &[]);
        let mut admin = server.admin();
        let more = json!({"spec": {"limited": {"nominalConcurrencyShares": 77}}});
        admin.patch(&at("prioritylevelconfigurations/system"), "merge", &more).ok();
        let meant = json!({"metadata": {"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}},
            "spec": {"limited": {"nominalConcurrencyShares": 78}}});
        admin.patch(&at("prioritylevelconfigurations/node-high"), "merge", &meant).ok();
        admin.delete(&at("flowschemas/probes")).ok();
        let mut left = schema("left", "system");
        left["metadata"]["annotations"] = json!({"apf.kubernetes.io/autoupdate-spec": "true"});
        admin.post(&at("flowschemas"), &left).ok();
    }
    let server = Server::on(data.path(), &[]);
    let mut admin = server.admin();
    assert_eq!((shares(&mut admin, "system"), shares(&mut admin, "node-high")), (json!(30), json!(78)));
    admin.get(&at("flowschemas/probes")).ok();
    admin.get(&at("flowschemas/left")).refused(404, "NotFound");
    let before = admin.get(&at("prioritylevelconfigurations")).ok();
    drop(server);
    let server = Server::on(data.path(), &[]);
    let after = server.admin().get(&at("prioritylevelconfigurations")).ok();
    assert_eq!(before["items"], after["items"], "what is as it should be is not written");
}

#[test]
fn without_priority_and_fairness_there_are_two_plain_limits() {
    let server = Server::with(&[
        "--engine=memory",
        "--authorization-mode=AlwaysAllow",
        "--enable-priority-and-fairness=false",
        "--max-requests-inflight=400",
        "--max-mutating-requests-inflight=1",
    ]);
    let mut admin = server.admin();
    let mut alice = admin.with_token(Some(USER));
    let held = Held::begin(&alice, "held");
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}});
    let writing = r#"apiserver_current_inflight_requests{request_kind="mutating"} 1"#;
    wait_for("the request is there", || admin.get("/metrics").text().contains(writing));
    let refused = alice.post(MAPS, &object);
    assert_eq!((refused.status, refused.text().as_str()), (429, REFUSAL));
    assert_eq!(refused.header("Retry-After"), Some("1"));
    assert_eq!(refused.header("X-Kubernetes-PF-FlowSchema-UID"), None);
    assert_eq!(admin.get("/debug/api_priority_and_fairness/dump_requests").status, 404);
    alice.get(MAPS).ok();
    admin.post(MAPS, &object).ok();
    assert_eq!(held.end(), 201);
}
