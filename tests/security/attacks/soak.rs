//! A server under normal and hostile load: acknowledged writes are not lost, watchers get every event once, normal clients do not
//! starve, and memory stays flat.
//!
//! The load comes in rounds of a fixed number of requests. After each round the responses and events of normal clients are compared
//! with the model, and the memory of the server is read. A few rounds always run. `PILOTHOUSE_SOAK_MINUTES=n` continues for that
//! long; `PILOTHOUSE_LONG=1` for an hour.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::hostile::{ATTACKS, Attacker};
use crate::support::client::{Client, JSON};
use crate::support::compare::{revision, text};
use crate::support::history::{self, MAPS, PINNED, State, Watcher, Writer, read_with_retries};
use crate::support::random::Random;
use crate::support::wait::{Deadline, TIMEOUT, long_tests_enabled};
use crate::support::{Server, USER_TOKEN};

/// The memory limit of the server. A debug build uses a fifth of it when idle.
const LIMIT_KIB: u64 = 512 << 10;
/// Flags of the server under load.
const FLAGS: &[&str] = &["--memory-limit=512Mi"];
const MIRRORS: &str = "/api/v1/namespaces/default/secrets";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const WRITERS: u64 = 4;
/// The rounds of a short run, and the writes of one writer and the lists in a round.
const ROUNDS: usize = 3;
const WRITES: usize = 60;
const WRITES_LONG: usize = 400;
const LISTS: usize = 10;
/// Growth of memory from the middle to the end that is allowed besides a fifth: windows of events may not be full yet.
const SLACK_KIB: u64 = 128 << 10;
/// How often a client repeats a request that was refused with 429 or 503.
const RETRIES: usize = 600;

/// The duration of a long run.
fn duration() -> Duration {
    let minutes = std::env::var("PILOTHOUSE_SOAK_MINUTES").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(60 * minutes.unwrap_or(if long_tests_enabled() { 60 } else { 0 }))
}

/// A role with these rules, for all service accounts of a namespace.
fn grant(admin: &mut Client, namespace: &str, rules: &Value) {
    let name = format!("soak-{namespace}");
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    admin.post(&format!("{RBAC}/clusterroles"), &role).ok();
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": format!("system:serviceaccounts:{namespace}")}]});
    admin.post(&format!("{RBAC}/clusterrolebindings"), &binding).ok();
}

/// The token of a new service account.
fn create_account_token(admin: &mut Client, namespace: &str, name: &str) -> String {
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    admin
        .post(&accounts, &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}))
        .ok();
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86_400}});
    text(&admin.post(&format!("{accounts}/{name}/token"), &request).ok(), "/status/token").to_owned()
}

/// A server with normal and hostile clients of the same priority level.
struct Fixture {
    server: Server,
    /// A client for each writer and watcher, the controller and the lister.
    normal: Vec<Client>,
    attackers: Vec<Attacker>,
}

fn start_fixture(normal: usize) -> Fixture {
    let server = Server::with_flags(FLAGS);
    let mut admin = server.admin();
    admin
        .post(
            "/api/v1/namespaces",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hostile"}}),
        )
        .ok();
    grant(
        &mut admin,
        "default",
        &json!([{"verbs": ["*"], "apiGroups": [""], "resources": ["configmaps", "secrets"]}]),
    );
    let reads = json!({"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["configmaps"]});
    let writes = json!({"verbs": ["*"], "apiGroups": ["", "apiextensions.k8s.io"], "resources": ["secrets", "pods", "customresourcedefinitions"]});
    let documents = json!({"verbs": ["get"], "nonResourceURLs": ["/openapi/*"]});
    grant(&mut admin, "hostile", &json!([reads, writes, documents]));
    let anonymous = server.anonymous();
    let normal = (0..normal).map(|number| {
        let token = create_account_token(&mut admin, "default", &format!("normal-{number}"));
        anonymous.with_token(Some(&token))
    });
    let normal = normal.collect();
    let authority = server.ca_pem();
    let attackers = ATTACKS.iter().map(|(name, attack)| {
        let token = create_account_token(&mut admin, "hostile", name);
        Attacker::new(&anonymous, &token, &authority, *attack)
    });
    let attackers = attackers.collect();
    Fixture { server, normal, attackers }
}

/// Repeats a request until it is not refused, and counts the refusals.
fn send_with_retries(
    client: &mut Client,
    refusals: &mut usize,
    method: &str,
    path: &str,
    body: &Value,
) -> (u16, Value) {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    for _ in 0..RETRIES {
        match client.attempt(method, path, &JSON, &body) {
            Ok(response) if !matches!(response.status, 429 | 503) => {
                return (response.status, response.json());
            }
            _ => *refusals += 1,
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("{method} {path}: this client starves");
}

/// Runs a controller that keeps a Secret with the same payload for each ConfigMap. Returns the number of refusals.
fn run_mirror_controller(client: &mut Client, payload: &str) -> usize {
    let mut refusals = 0;
    let (_, list) = send_with_retries(client, &mut refusals, "GET", MAPS, &Value::Null);
    let items = list["items"].as_array().cloned().unwrap_or_default();
    for item in &items {
        write_mirror(client, &mut refusals, item, false);
    }
    let mut last = revision(&list);
    let is_last_state =
        |object: &Value| text(object, "/metadata/name") == PINNED && text(object, "/data/payload") == payload;
    let mut is_finished = items.iter().any(is_last_state);
    while !is_finished {
        let Ok(mut watch) = client.try_watch(MAPS, &format!("resourceVersion={last}")) else {
            refusals += 1;
            assert!(refusals < RETRIES, "the controller starves");
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        while let Ok(Some(event)) = watch.attempt(Deadline::after(TIMEOUT)) {
            assert_ne!(event["type"], "ERROR", "{event}");
            let object = &event["object"];
            last = revision(object);
            write_mirror(client, &mut refusals, object, event["type"] == "DELETED");
            is_finished = is_last_state(object);
            if is_finished {
                break;
            }
        }
    }
    refusals
}

fn write_mirror(client: &mut Client, refusals: &mut usize, map: &Value, deleted: bool) {
    let name = format!("mirror-{}", text(map, "/metadata/name"));
    let path = format!("{MIRRORS}/{name}");
    if deleted {
        let (status, response) = send_with_retries(client, refusals, "DELETE", &path, &Value::Null);
        return assert!(matches!(status, 200 | 404), "{response}");
    }
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
        "stringData": {"payload": map["data"]["payload"]}});
    let (status, response) = send_with_retries(client, refusals, "PUT", &path, &secret);
    if status == 404 {
        let (status, response) = send_with_retries(client, refusals, "POST", MIRRORS, &secret);
        return assert!(matches!(status, 201 | 409), "{response}");
    }
    assert_eq!(status, 200, "{response}");
}

/// Lists in chunks, without repeated names. Returns the number of refusals.
fn list_in_chunks(client: &mut Client) -> usize {
    let mut refusals = 0;
    for _ in 0..LISTS {
        let (mut names, mut next) = (Vec::new(), String::new());
        loop {
            let path = format!("{MAPS}?limit=3&continue={next}");
            let (status, chunk) = send_with_retries(client, &mut refusals, "GET", &path, &Value::Null);
            assert_eq!(status, 200, "{chunk}");
            let items = chunk["items"].as_array().expect("a list");
            names.extend(items.iter().map(|item| text(item, "/metadata/name").to_owned()));
            next = chunk["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if next.is_empty() {
                break;
            }
        }
        assert!(names.is_sorted_by(|left, right| left < right), "{names:?}");
    }
    refusals
}

/// One round of all clients at once. Returns the number of refusals of normal clients.
fn run_round(
    fixture: &mut Fixture,
    writers: &mut [Writer],
    watchers: &mut [Watcher],
    writes: usize,
    end: &str,
) -> usize {
    let normal = &fixture.normal;
    let (first, rest) = normal.split_at(writers.len());
    let (second, rest) = rest.split_at(watchers.len());
    thread::scope(|scope| {
        for attacker in &mut fixture.attackers {
            scope.spawn(move || attacker.round());
        }
        let watcher_threads: Vec<_> = watchers
            .iter_mut()
            .zip(second)
            .map(|(watcher, client)| scope.spawn(move || watcher.follow(std::slice::from_ref(client), end)))
            .collect();
        let mirror_thread = scope.spawn(move || run_mirror_controller(&mut rest[0].new_connection(), end));
        let list_thread = scope.spawn(move || list_in_chunks(&mut rest[1].new_connection()));
        let writer_threads: Vec<_> = writers
            .iter_mut()
            .zip(first)
            .map(|(writer, client)| {
                scope.spawn(move || {
                    let mut client = client.new_connection();
                    for _ in 0..writes {
                        let (name, desired) = writer.choose();
                        writer.write_with_retries(&mut client, &name, desired.as_ref());
                    }
                    writer
                })
            })
            .collect();
        let mut writers: Vec<&mut Writer> =
            writer_threads.into_iter().map(|thread| thread.join().expect("a writer")).collect();
        // The last write is one that every selector matches.
        writers[0].write_with_retries(&mut first[0].new_connection(), PINNED, Some(&State::red(end)));
        let refusals: usize =
            watcher_threads.into_iter().map(|thread| thread.join().expect("a watcher")).sum();
        refusals + mirror_thread.join().expect("the controller") + list_thread.join().expect("the lister")
    })
}

/// Checks that the stored objects are the acknowledged ones, and that the controller has mirrored them.
fn check_stored(server: &Server, writers: &[Writer]) {
    let mut admin = server.admin();
    let encode = |text: &str| openssl::base64::encode_block(text.as_bytes()).replace('\n', "");
    for (name, state) in writers.iter().flat_map(Writer::states) {
        let actual = read_with_retries(&mut admin, &format!("{MAPS}/{name}"));
        assert_eq!(actual.as_ref().map(State::read).as_ref(), state, "{name}");
        let mirror_secret = read_with_retries(&mut admin, &format!("{MIRRORS}/mirror-{name}"));
        let payload = mirror_secret.as_ref().map(|secret| text(secret, "/data/payload").to_owned());
        assert_eq!(payload, state.map(|state| encode(&state.payload)), "the mirror of {name}");
    }
}

#[test]
fn normal_clients_lose_nothing_under_hostile_load() {
    let seed = Random::seed();
    println!("seed {seed}: repeat with PILOTHOUSE_SEED={seed}");
    let (duration, mut memory, mut events, mut refusals) = (duration(), Vec::new(), 0, 0);
    let writes = if duration.is_zero() { WRITES } else { WRITES_LONG };
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, seed)).collect();
    let mut watchers = history::watchers(0);
    let mut fixture = start_fixture(writers.len() + watchers.len() + 2);
    let mut start = revision(&fixture.server.admin().get(MAPS).ok());
    watchers.iter_mut().for_each(|watcher| watcher.last = start);
    let deadline = Deadline::after(duration);
    for count in 0.. {
        if count >= ROUNDS && deadline.has_passed() {
            break;
        }
        let end = format!("the end of round {count}");
        refusals += run_round(&mut fixture, &mut writers, &mut watchers, writes, &end);
        let last = watchers[0].last;
        events += history::check(&writers, &watchers, start, last);
        check_stored(&fixture.server, &writers);
        start = last;
        writers.iter_mut().for_each(Writer::reset_history);
        watchers.iter_mut().for_each(|watcher| watcher.events.clear());
        memory.push(fixture.server.memory_kib("VmRSS"));
        fixture.server.assert_healthy();
    }
    refusals += writers.iter().map(|writer| writer.refusals).sum::<usize>();
    let (middle, last) = (memory[memory.len() / 2], memory[memory.len() - 1]);
    println!("{} rounds, {events} events, {refusals} refusals of normal clients", memory.len());
    println!(
        "memory: {middle} KiB in the middle, {last} KiB at the end, {} KiB at most",
        fixture.server.memory_kib("VmHWM")
    );
    assert!(events >= ROUNDS * writes, "the writers hardly wrote");
    assert!(fixture.server.memory_kib("VmHWM") <= LIMIT_KIB, "the memory limit does not hold");
    assert!(last <= middle + middle / 5 + SLACK_KIB, "memory grows: {memory:?} KiB");
    // Unauthorized requests are refused as before, and the server stops cleanly.
    fixture.server.anonymous().with_token(Some(USER_TOKEN)).get(MAPS).expect_error(403, "Forbidden");
    drop(fixture.attackers);
    fixture.server.stop();
}
