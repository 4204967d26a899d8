//! What is written down of requests: the records of each kind of request, the files they lie in, and another server that
//! gets them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "audit/controllers.rs"]
mod controllers;
#[path = "audit/places.rs"]
mod places;
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use support::client::JSON;
use support::compare::text;
use support::server::{ADMIN_TOKEN, USER_TOKEN, directory};
use support::wait::{CAP, poll};
use support::{Client, Server};
use tempfile::TempDir;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MERGE: &str = "application/merge-patch+json";

/// A server that writes down what a policy says, and where.
struct Audited {
    server: Server,
    log: PathBuf,
    _folder: TempDir,
}

/// The command line of a server with this policy and a log.
fn flags(folder: &Path, rules: &str, more: &[&str]) -> Vec<String> {
    let policy = folder.join("policy.yaml");
    fs::write(&policy, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let mut flags = vec![format!("--audit-policy-file={}", path(&policy))];
    if !more.iter().any(|flag| flag.starts_with("--controllers")) {
        flags.push("--controllers=-*".to_owned());
    }
    if !more.iter().any(|flag| flag.starts_with("--audit-log-path")) {
        flags.push(format!("--audit-log-path={}", path(&folder.join("logs/audit.log"))));
    }
    flags.extend(more.iter().map(ToString::to_string));
    flags
}

impl Audited {
    fn with(rules: &str, more: &[&str]) -> Audited {
        let folder = directory();
        let flags = flags(folder.path(), rules, more);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::on(&folder.path().join("data"), &flags);
        Audited { server, log: folder.path().join("logs/audit.log"), _folder: folder }
    }

    /// A client of which the records are told by the id that each request has.
    fn ask(&self, token: &str) -> Asker {
        Asker { client: self.server.admin().with_token(Some(token)), log: self.log.clone() }
    }
}

/// All records of a log.
fn records(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

struct Asker {
    client: Client,
    log: PathBuf,
}

impl Asker {
    /// Sends a request and answers its status and its records, of which there are `wanted`.
    fn send(
        &mut self,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: &str,
        wanted: usize,
    ) -> (u16, Vec<Value>) {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let id = format!("request-{}", ASKED.fetch_add(1, Ordering::SeqCst));
        let mut all = vec![("Audit-ID", id.as_str()), ("User-Agent", "test/1 (<x>)")];
        all.extend(headers);
        let answer = self.client.request(method, path, &all, body.as_bytes());
        assert_eq!(answer.header("audit-id"), Some(id.as_str()));
        (answer.status, self.of(&id, wanted))
    }

    fn of(&self, id: &str, wanted: usize) -> Vec<Value> {
        let found = poll(CAP, || {
            let all = records(&self.log).into_iter();
            let found: Vec<Value> = all.filter(|record| record["auditID"] == id).collect();
            (found.len() >= wanted).then_some(found)
        });
        let found = found.unwrap_or_else(|| panic!("records of {id}"));
        assert_eq!(found.len(), wanted, "{found:?}");
        found
    }

    /// The last record of a request that has two.
    fn last(&mut self, request: (&str, &str), headers: &[(&str, &str)], body: &str) -> Value {
        let (_, mut found) = self.send(request, headers, body, 2);
        assert_eq!(
            (&found[0]["stage"], &found[1]["stage"]),
            (&json!("RequestReceived"), &json!("ResponseComplete"))
        );
        found.remove(1)
    }
}

fn map(name: &str, data: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": data}})
        .to_string()
}

#[test]
fn a_create_is_written_down_in_the_form_of_the_reference() {
    let audited = Audited::with("rules: [{level: RequestResponse}]", &[]);
    let mut admin = audited.ask(ADMIN_TOKEN);
    let (status, found) = admin.send(("POST", MAPS), &JSON, &map("a", "<v>"), 2);
    assert_eq!(status, 201);
    let line = fs::read_to_string(&audited.log).unwrap();
    let line = line
        .lines()
        .find(|line| line.contains("ResponseComplete") && line.contains("\"name\":\"a\""))
        .unwrap();
    let places: Vec<usize> = [
        "\"kind\":\"Event\"", "\"apiVersion\":\"audit.k8s.io/v1\"", "\"level\":", "\"auditID\":", "\"stage\":",
        "\"requestURI\":", "\"verb\":", "\"user\":", "\"sourceIPs\":", "\"userAgent\":\"test/1 (\\u003cx\\u003e)\"",
        "\"objectRef\":", "\"responseStatus\":{\"metadata\":{},\"code\":201}",
        "\"requestObject\":{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\",\"creationTimestamp\":null},\"data\":{\"k\":\"\\u003cv\\u003e\"}}",
        "\"responseObject\":", "\"requestReceivedTimestamp\":", "\"stageTimestamp\":", "\"annotations\":",
    ]
    .iter()
    .map(|part| line.find(part).unwrap_or_else(|| panic!("{part} in {line}")))
    .collect();
    assert!(places.is_sorted(), "{line}");

    let (received, complete) = (&found[0], &found[1]);
    assert_eq!(
        received["objectRef"],
        json!({"resource": "configmaps", "namespace": "default", "apiVersion": "v1"})
    );
    assert_eq!(received["stageTimestamp"], received["requestReceivedTimestamp"]);
    assert_eq!(
        received["requestReceivedTimestamp"].as_str().unwrap().len(),
        "2006-01-02T15:04:05.000000Z".len()
    );
    assert!(received.get("annotations").is_none() && received.get("requestObject").is_none());
    assert_eq!(complete["objectRef"]["name"], "a");
    assert_eq!(
        complete["user"],
        json!({"username": "admin", "uid": "uid-admin", "groups": ["system:masters", "system:authenticated"]})
    );
    assert_eq!(complete["sourceIPs"], json!(["127.0.0.1"]));
    assert_eq!(complete["responseObject"]["metadata"]["namespace"], "default");
    assert_eq!(
        complete["annotations"],
        json!({"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": ""})
    );
}

#[test]
fn every_kind_of_request_has_its_records() {
    let audited = Audited::with("rules: [{level: RequestResponse}]", &[]);
    let mut admin = audited.ask(ADMIN_TOKEN);
    let one = format!("{MAPS}/a");
    let made = admin.last(("POST", MAPS), &JSON, &map("a", "1"));
    let taken = admin.last(("POST", MAPS), &JSON, &map("a", "1"));
    assert_eq!(
        taken["responseStatus"],
        json!({"metadata": {}, "status": "Failure", "message": "configmaps \"a\" already exists",
            "reason": "AlreadyExists", "details": {"name": "a", "kind": "configmaps"}, "code": 409})
    );
    assert_eq!(taken["responseObject"]["kind"], "Status");

    let mut object = made["responseObject"].clone();
    object["data"]["k"] = json!("2");
    let updated = admin.last(("PUT", &one), &JSON, &object.to_string());
    for (field, of) in [("uid", "uid"), ("resourceVersion", "resourceVersion")] {
        assert_eq!(updated["objectRef"][field], made["responseObject"]["metadata"][of], "{field}");
    }
    assert_eq!(updated["requestObject"]["data"]["k"], "2");

    let patched = admin.last(("PATCH", &one), &[("Content-Type", MERGE)], "{ \"data\": {\"z\": \"<\"} }");
    assert_eq!(
        (&patched["verb"], &patched["requestObject"]),
        (&json!("patch"), &json!({"data": {"z": "<"}}))
    );
    let apply = [("Content-Type", "application/apply-patch+yaml")];
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yy}\ndata: {x: z}\n";
    let applied = admin.last(("PATCH", &format!("{MAPS}/yy?fieldManager=m")), &apply, yaml);
    assert_eq!(applied["requestObject"]["data"], json!({"x": "z"}), "{applied}");
    assert_eq!(applied["responseStatus"]["code"], 201);

    let got = admin.last(("GET", &one), &[], "");
    assert!(
        got["responseObject"]["metadata"]["managedFields"].is_array() && got.get("requestObject").is_none()
    );
    let protobuf = [("Accept", "application/vnd.kubernetes.protobuf")];
    assert_eq!(admin.last(("GET", &one), &protobuf, "")["responseObject"], got["responseObject"]);
    let table = [("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
    assert_eq!(admin.last(("GET", MAPS), &table, "")["responseObject"]["kind"], "Table");
    let (yaml, indented) = ([("Accept", "application/yaml")], [("User-Agent", "curl/8")]);
    for headers in [&[][..], &protobuf, &yaml, &indented] {
        let list = admin.last(("GET", MAPS), headers, "");
        assert_eq!(
            (&list["verb"], &list["responseObject"]["kind"]),
            (&json!("list"), &json!("ConfigMapList"))
        );
        assert_eq!(list["responseObject"]["items"].as_array().unwrap().len(), 2, "{list}");
    }
    for headers in [yaml, indented] {
        let none = admin.last(("GET", &format!("{MAPS}?labelSelector=none")), &headers, "");
        assert_eq!(none["responseObject"]["items"].as_array().map(Vec::len), Some(0), "{none}");
    }
    let missing = admin.last(("GET", &format!("{MAPS}/none")), &[], "");
    assert_eq!(missing["responseStatus"]["reason"], "NotFound");
    let unreadable = admin.last(("GET", &one), &[("Accept", "text/plain")], "");
    assert_eq!(unreadable["responseStatus"], json!({"metadata": {}, "code": 406}));

    let body = r#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#;
    let gone = admin.last(("DELETE", &one), &JSON, body);
    assert_eq!(gone["requestObject"]["propagationPolicy"], "Background");
    assert_eq!(
        (&gone["responseStatus"]["status"], &gone["responseStatus"]["code"]),
        (&json!("Success"), &json!(200))
    );
    let all = admin.last(("DELETE", MAPS), &[], "");
    assert_eq!(
        (&all["verb"], &all["responseObject"]["kind"]),
        (&json!("deletecollection"), &json!("ConfigMapList"))
    );

    let account = r#"{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"s"}}"#;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    admin.last(("POST", accounts), &JSON, account);
    let token = admin.last(("POST", &format!("{accounts}/s/token")), &JSON, "{\"spec\":{}}");
    assert_eq!(
        (&token["objectRef"]["subresource"], &token["objectRef"]["name"]),
        (&json!("token"), &json!("s"))
    );
    let issued = &token["annotations"]["authentication.kubernetes.io/issued-credential-id"];
    assert!(issued.as_str().is_some_and(|issued| issued.starts_with("JTI=")), "{token}");

    let old = admin.last(("GET", "/api/v1/namespaces/default/endpoints"), &[], "");
    assert_eq!(old["annotations"]["k8s.io/deprecated"], "true");
    let path = admin.last(("GET", "/version"), &[("X-Forwarded-For", "1.1.1.1, 2.2.2.2")], "");
    assert!(path.get("objectRef").is_none() && path.get("responseObject").is_none(), "{path}");
    assert_eq!(path["sourceIPs"], json!(["1.1.1.1", "2.2.2.2", "127.0.0.1"]));
    assert_eq!(admin.last(("GET", "/apis/apps"), &[], "")["responseObject"]["kind"], "APIGroup");
    assert_eq!(
        admin.last(("GET", "/nowhere"), &[], "")["responseStatus"],
        json!({"metadata": {}, "code": 404})
    );
}

#[test]
fn who_asks_is_written_down_however_it_ends() {
    let audited = Audited::with("rules: [{level: RequestResponse}]", &[]);
    let (mut admin, mut alice) = (audited.ask(ADMIN_TOKEN), audited.ask(USER_TOKEN));
    let forbidden = alice.last(("GET", MAPS), &[], "");
    assert_eq!(forbidden["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(
        (&forbidden["responseStatus"]["code"], &forbidden["user"]["username"]),
        (&json!(403), &json!("alice"))
    );

    let (status, found) = audited.ask("nobody's").send(("GET", MAPS), &[], "", 1);
    assert_eq!(status, 401);
    assert_eq!((&found[0]["stage"], &found[0]["user"]), (&json!("ResponseStarted"), &json!({})));
    assert_eq!(found[0]["responseStatus"]["reason"], "Unauthorized");
    let (status, found) = admin.send(("GET", "/api/v1/nodes?timeout=5"), &[], "", 1);
    assert_eq!((status, &found[0]["stage"]), (400, &json!("ResponseStarted")));

    let other =
        [("Impersonate-User", "dave"), ("Impersonate-Group", "system:masters"), ("Impersonate-Extra-a", "b")];
    let acted = admin.last(("GET", MAPS), &other, "");
    assert_eq!(acted["user"]["username"], "admin");
    assert_eq!(
        acted["impersonatedUser"],
        json!({"username": "dave", "groups": ["system:masters", "system:authenticated"], "extra": {"a": ["b"]}})
    );
    let refused = alice.last(("GET", MAPS), &other[..1], "");
    assert!(refused.get("impersonatedUser").is_none() && refused.get("annotations").is_none(), "{refused}");
}

#[test]
fn a_watch_is_written_down_when_it_begins_and_when_it_ends() {
    let audited = Audited::with("rules: [{level: RequestResponse, verbs: [watch]}]", &[]);
    let watch = audited.server.admin().watch(MAPS, "");
    let stages = || -> Vec<String> {
        records(&audited.log).iter().map(|record| text(record, "/stage").to_owned()).collect()
    };
    poll(CAP, || (stages() == ["RequestReceived", "ResponseStarted"]).then_some(())).expect("it has begun");
    drop(watch);
    poll(CAP, || (stages().len() == 3).then_some(())).expect("it has ended");
    let last = records(&audited.log).pop().unwrap();
    assert_eq!((&last["stage"], &last["responseStatus"]["code"]), (&json!("ResponseComplete"), &json!(200)));
    assert_eq!(last["annotations"]["authorization.k8s.io/decision"], "allow");

    let mut short = audited.server.admin().watch(MAPS, "timeoutSeconds=1");
    while short.attempt(support::wait::Deadline::after(CAP)).unwrap().is_some() {}
    poll(CAP, || (stages().len() == 6).then_some(())).expect("so has one whose time is up");
    let mut server = audited.server;
    let _open = server.admin().watch(MAPS, "");
    server.unharmed();
    server.stop();
    assert_eq!(records(&audited.log).len(), 9, "one that the server ends is written down too");
}

#[test]
fn a_policy_says_how_much_and_when() {
    let rules = "omitStages: [RequestReceived]
rules:
- {level: None, nonResourceURLs: ['/*'], users: [admin]}
- {level: Metadata, resources: [{resources: [secrets]}]}
- {level: Request, namespaces: [kube-public]}
- {level: RequestResponse, omitManagedFields: true, verbs: [create, list]}
- {level: None, verbs: [get], resources: [{resources: [configmaps], resourceNames: [quiet]}]}
- {level: Metadata, omitStages: [ResponseComplete], verbs: [delete]}
- {level: RequestResponse}
";
    let audited = Audited::with(rules, &[]);
    let mut admin = audited.ask(ADMIN_TOKEN);
    let mut one =
        |method, path: &str, body: &str, wanted| admin.send((method, path), &JSON, body, wanted).1.pop();
    assert!(one("GET", "/version", "", 0).is_none());
    let secret = r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"k":"hidden"}}"#;
    let record = one("POST", "/api/v1/namespaces/default/secrets", secret, 1).unwrap();
    assert!(record.get("requestObject").is_none() && !record.to_string().contains("hidden"), "{record}");
    assert_eq!((&record["level"], &record["objectRef"]["name"]), (&json!("Metadata"), &json!("s")));
    let record = one("POST", "/api/v1/namespaces/kube-public/configmaps", &map("a", "1"), 1).unwrap();
    assert!(record.get("requestObject").is_some() && record.get("responseObject").is_none(), "{record}");
    let record = one("POST", MAPS, &map("quiet", "1"), 1).unwrap();
    assert_eq!(record["responseObject"]["metadata"]["name"], "quiet");
    assert!(!record.to_string().contains("managedFields"), "{record}");
    assert!(!one("GET", MAPS, "", 1).unwrap().to_string().contains("managedFields"));
    assert!(one("GET", &format!("{MAPS}/quiet"), "", 0).is_none());
    assert!(one("DELETE", &format!("{MAPS}/quiet"), "", 0).is_none());
    let metrics = audited.server.admin().get("/metrics").text();
    for line in [
        r#"apiserver_audit_level_total{level="None"}"#,
        r#"apiserver_audit_level_total{level="RequestResponse"}"#,
        "apiserver_audit_event_total",
        "apiserver_audit_requests_rejected_total 0",
    ] {
        assert!(metrics.lines().any(|one| one.starts_with(line)), "{line}");
    }
}

#[test]
fn a_policy_that_makes_no_sense_is_refused_at_the_start() {
    for (rules, why) in [
        ("rules: []", "loading audit policy file: loaded illegal policy with 0 rules: from file "),
        ("rules: [{level: Much}]", "rules[0].level: Unsupported value: \"Much\""),
        ("rules: [", "failed decoding: "),
    ] {
        let folder = directory();
        let flags = flags(folder.path(), rules, &[]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let refusal = Server::try_on(&folder.path().join("data"), &flags).err().expect("a refusal");
        assert!(refusal.stderr.contains(why), "{}", refusal.stderr);
    }
    let folder = directory();
    let missing =
        Server::try_on(folder.path(), &["--audit-policy-file=/none/such"]).err().expect("a refusal");
    assert!(missing.stderr.contains("failed to read file path \"/none/such\""), "{}", missing.stderr);
    let wrong = ["--audit-log-path=-", "--audit-log-mode=never"];
    let refusal = Server::try_on(folder.path(), &wrong).err().expect("a refusal");
    assert!(refusal.stderr.contains("invalid audit log mode never"), "{}", refusal.stderr);
}
