//! A server under a mix of normal and hostile load: nothing that was acknowledged is lost, every watcher is told everything once,
//! nobody starves, and memory stays flat.
//!
//! The load comes in rounds, each of a fixed number of requests. After each round everything that normal clients were told is
//! held against the model, and the memory of the server is read. A few rounds run always. `PILOTHOUSE_SOAK_MINUTES=n` goes on for
//! that long; `PILOTHOUSE_LONG=1` for an hour.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::hostile::{ATTACKS, Attacker};
use super::support::client::{Client, JSON};
use super::support::compare::{revision, text};
use super::support::history::{self, MAPS, PINNED, State, Watcher, Writer, read_patiently};
use super::support::random::Random;
use super::support::wait::{CAP, Deadline, is_long};
use super::support::{Server, USER_TOKEN};

/// What the server under load may use. The debug build that tests run takes a fifth of it by itself.
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
/// How far memory at the end may be above that in the middle: a fifth, and what a window of events takes that is not full yet.
const SLACK_KIB: u64 = 128 << 10;
/// How often a client repeats a request that was refused for lack of room.
const RETRIES: usize = 600;

/// How long to go on after the rounds of a short run.
fn duration() -> Duration {
    let minutes = std::env::var("PILOTHOUSE_SOAK_MINUTES").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(60 * minutes.unwrap_or(if is_long() { 60 } else { 0 }))
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
fn account(admin: &mut Client, namespace: &str, name: &str) -> String {
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    admin
        .post(&accounts, &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}))
        .ok();
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86_400}});
    text(&admin.post(&format!("{accounts}/{name}/token"), &request).ok(), "/status/token").to_owned()
}

/// A server and its users. Normal and hostile ones are of the same priority level.
struct Scene {
    server: Server,
    /// A client for each writer and watcher, the controller and the lister.
    normal: Vec<Client>,
    attackers: Vec<Attacker>,
}

fn scene(normal: usize) -> Scene {
    let server = Server::with(FLAGS);
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
    let normal = (0..normal).map(|at| {
        let token = account(&mut admin, "default", &format!("normal-{at}"));
        anonymous.with_token(Some(&token))
    });
    let normal = normal.collect();
    let authority = server.authority();
    let attackers = ATTACKS.iter().map(|(name, attack)| {
        let token = account(&mut admin, "hostile", name);
        Attacker::new(&anonymous, &token, &authority, *attack)
    });
    let attackers = attackers.collect();
    Scene { server, normal, attackers }
}

/// Sends until there is room for it; counts the refusals.
fn patiently(
    client: &mut Client,
    refusals: &mut usize,
    method: &str,
    path: &str,
    body: &Value,
) -> (u16, Value) {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    for _ in 0..RETRIES {
        match client.attempt(method, path, &JSON, &body) {
            Ok(answer) if !matches!(answer.status, 429 | 503) => return (answer.status, answer.json()),
            _ => *refusals += 1,
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("{method} {path}: this client starves");
}

/// A controller: for each ConfigMap it keeps a Secret with the same payload.
fn mirror(client: &mut Client, payload: &str) -> usize {
    let mut refusals = 0;
    let (_, list) = patiently(client, &mut refusals, "GET", MAPS, &Value::Null);
    let items = list["items"].as_array().cloned().unwrap_or_default();
    for item in &items {
        write_mirror(client, &mut refusals, item, false);
    }
    let mut last = revision(&list);
    let is_end =
        |object: &Value| text(object, "/metadata/name") == PINNED && text(object, "/data/payload") == payload;
    let mut ended = items.iter().any(is_end);
    while !ended {
        let Ok(mut watch) = client.try_watch(MAPS, &format!("resourceVersion={last}")) else {
            refusals += 1;
            assert!(refusals < RETRIES, "the controller starves");
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        while let Ok(Some(event)) = watch.attempt(Deadline::after(CAP)) {
            assert_ne!(event["type"], "ERROR", "{event}");
            let object = &event["object"];
            last = revision(object);
            write_mirror(client, &mut refusals, object, event["type"] == "DELETED");
            ended = is_end(object);
            if ended {
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
        let (status, answer) = patiently(client, refusals, "DELETE", &path, &Value::Null);
        return assert!(matches!(status, 200 | 404), "{answer}");
    }
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
        "stringData": {"payload": map["data"]["payload"]}});
    let (status, answer) = patiently(client, refusals, "PUT", &path, &secret);
    if status == 404 {
        let (status, answer) = patiently(client, refusals, "POST", MIRRORS, &secret);
        return assert!(matches!(status, 201 | 409), "{answer}");
    }
    assert_eq!(status, 200, "{answer}");
}

/// Lists in chunks: every chunk of a list is of one version, and no name comes twice.
fn list(client: &mut Client) -> usize {
    let mut refusals = 0;
    for _ in 0..LISTS {
        let (mut names, mut next) = (Vec::new(), String::new());
        loop {
            let path = format!("{MAPS}?limit=3&continue={next}");
            let (status, chunk) = patiently(client, &mut refusals, "GET", &path, &Value::Null);
            assert_eq!(status, 200, "{chunk}");
            let items = chunk["items"].as_array().expect("a list");
            names.extend(items.iter().map(|item| text(item, "/metadata/name").to_owned()));
            next = chunk["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if next.is_empty() {
                break;
            }
        }
        assert!(names.is_sorted_by(|one, other| one < other), "{names:?}");
    }
    refusals
}

/// One round of everything at once. Says how often normal clients were asked to come back later.
fn round(
    scene: &mut Scene,
    writers: &mut [Writer],
    watchers: &mut [Watcher],
    writes: usize,
    end: &str,
) -> usize {
    let normal = &scene.normal;
    let (first, rest) = normal.split_at(writers.len());
    let (second, rest) = rest.split_at(watchers.len());
    thread::scope(|scope| {
        for attacker in &mut scene.attackers {
            scope.spawn(move || attacker.round());
        }
        let following: Vec<_> = watchers
            .iter_mut()
            .zip(second)
            .map(|(watcher, client)| scope.spawn(move || watcher.follow(client, end)))
            .collect();
        let mirroring = scope.spawn(move || mirror(&mut rest[0].again(), end));
        let listing = scope.spawn(move || list(&mut rest[1].again()));
        let writing: Vec<_> = writers
            .iter_mut()
            .zip(first)
            .map(|(writer, client)| {
                scope.spawn(move || {
                    let mut client = client.again();
                    for _ in 0..writes {
                        let (name, wanted) = writer.choose();
                        writer.write_patiently(&mut client, &name, wanted.as_ref());
                    }
                    writer
                })
            })
            .collect();
        let mut writers: Vec<&mut Writer> =
            writing.into_iter().map(|thread| thread.join().expect("a writer")).collect();
        // The last word is one that every selector sees.
        writers[0].write_patiently(&mut first[0].again(), PINNED, Some(&State::red(end)));
        let refusals: usize = following.into_iter().map(|thread| thread.join().expect("a watcher")).sum();
        refusals + mirroring.join().expect("the controller") + listing.join().expect("the lister")
    })
}

/// What is stored must be what was acknowledged, and the controller must have followed.
fn stored(server: &Server, writers: &[Writer]) {
    let mut admin = server.admin();
    let encode = |text: &str| openssl::base64::encode_block(text.as_bytes()).replace('\n', "");
    for (name, state) in writers.iter().flat_map(Writer::states) {
        let found = read_patiently(&mut admin, &format!("{MAPS}/{name}"));
        assert_eq!(found.as_ref().map(State::read).as_ref(), state, "{name}");
        let mirrored = read_patiently(&mut admin, &format!("{MIRRORS}/mirror-{name}"));
        let payload = mirrored.as_ref().map(|secret| text(secret, "/data/payload").to_owned());
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
    let mut scene = scene(writers.len() + watchers.len() + 2);
    let mut start = revision(&scene.server.admin().get(MAPS).ok());
    watchers.iter_mut().for_each(|watcher| watcher.last = start);
    let deadline = Deadline::after(duration);
    for count in 0.. {
        if count >= ROUNDS && deadline.passed() {
            break;
        }
        let end = format!("the end of round {count}");
        refusals += round(&mut scene, &mut writers, &mut watchers, writes, &end);
        let last = watchers[0].last;
        events += history::check(&writers, &watchers, start, last);
        stored(&scene.server, &writers);
        start = last;
        writers.iter_mut().for_each(Writer::begin_anew);
        watchers.iter_mut().for_each(|watcher| watcher.told.clear());
        memory.push(scene.server.memory_kib("VmRSS"));
        scene.server.unharmed();
    }
    refusals += writers.iter().map(|writer| writer.refusals).sum::<usize>();
    let (middle, last) = (memory[memory.len() / 2], memory[memory.len() - 1]);
    println!("{} rounds, {events} events, {refusals} refusals of normal clients", memory.len());
    println!(
        "memory: {middle} KiB in the middle, {last} KiB at the end, {} KiB at most",
        scene.server.memory_kib("VmHWM")
    );
    assert!(events >= ROUNDS * writes, "the writers hardly wrote");
    assert!(scene.server.memory_kib("VmHWM") <= LIMIT_KIB, "the memory limit does not hold");
    assert!(last <= middle + middle / 5 + SLACK_KIB, "memory grows: {memory:?} KiB");
    // Who has no rights is refused as before, and the server stops as it should.
    scene.server.anonymous().with_token(Some(USER_TOKEN)).get(MAPS).refused(403, "Forbidden");
    drop(scene.attackers);
    scene.server.stop();
}
