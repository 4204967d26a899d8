//! Audit: the records of each kind of request, the policy, and the backends.

mod backends;
mod controllers;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::client::JSON;
use crate::support::compare::text;
use crate::support::server::{ADMIN_TOKEN, USER_TOKEN, temp_directory};
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

const RELOADS: &str = "pilothouse_audit_policy_reloads_total";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MERGE: &str = "application/merge-patch+json";

/// A server with an audit policy, and its audit log.
struct AuditedServer {
    server: Server,
    log: PathBuf,
    _folder: TempDir,
}

/// The flags of a server with this policy and a log.
fn flags(directory: &Path, rules: &str, extra_flags: &[&str]) -> Vec<String> {
    let policy = directory.join("policy.yaml");
    fs::write(&policy, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let mut flags = vec![format!("--audit-policy-file={}", path(&policy))];
    if !extra_flags.iter().any(|flag| flag.starts_with("--controllers")) {
        flags.push("--controllers=-*".to_owned());
    }
    if !extra_flags.iter().any(|flag| flag.starts_with("--audit-log-path")) {
        flags.push(format!("--audit-log-path={}", path(&directory.join("logs/audit.log"))));
    }
    flags.extend(extra_flags.iter().map(ToString::to_string));
    flags
}

impl AuditedServer {
    fn with(rules: &str, extra_flags: &[&str]) -> AuditedServer {
        let directory = temp_directory();
        let flags = flags(directory.path(), rules, extra_flags);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::start_in(&directory.path().join("data"), &flags);
        AuditedServer { server, log: directory.path().join("logs/audit.log"), _folder: directory }
    }

    /// A client whose records are found by the audit ID of each request.
    fn client_with_token(&self, token: &str) -> AuditClient {
        AuditClient { client: self.server.admin().with_token(Some(token)), log: self.log.clone() }
    }
}

/// All records of a log.
fn records(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let complete_lines = text.rsplit_once('\n').map_or("", |(complete_lines, _)| complete_lines);
    complete_lines.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

struct AuditClient {
    client: Client,
    log: PathBuf,
}

impl AuditClient {
    /// Sends a request and returns its status and its records, whose number must be `expected`.
    fn send(
        &mut self,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: &str,
        expected: usize,
    ) -> (u16, Vec<Value>) {
        static COUNTER: AtomicUsize = AtomicUsize::new(0);
        let id = format!("request-{}", COUNTER.fetch_add(1, Ordering::SeqCst));
        let mut all_headers = vec![("Audit-ID", id.as_str()), ("User-Agent", "test/1 (<x>)")];
        all_headers.extend(headers);
        let response = self.client.request(method, path, &all_headers, body.as_bytes());
        assert_eq!(response.header("audit-id"), Some(id.as_str()));
        (response.status, self.wait_for_records(&id, expected))
    }

    fn wait_for_records(&self, id: &str, expected: usize) -> Vec<Value> {
        let events = poll(TIMEOUT, || {
            let all = records(&self.log).into_iter();
            let events: Vec<Value> = all.filter(|record| record["auditID"] == id).collect();
            (events.len() >= expected).then_some(events)
        });
        let events = events.unwrap_or_else(|| panic!("records of {id}"));
        assert_eq!(events.len(), expected, "{events:?}");
        events
    }

    /// The last record of a request that has two.
    fn last(&mut self, request: (&str, &str), headers: &[(&str, &str)], body: &str) -> Value {
        let (_, mut events) = self.send(request, headers, body, 2);
        assert_eq!(
            (&events[0]["stage"], &events[1]["stage"]),
            (&json!("RequestReceived"), &json!("ResponseComplete"))
        );
        events.remove(1)
    }
}

fn map(name: &str, data: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": data}})
        .to_string()
}

#[test]
fn create_is_audited_in_reference_format() {
    let audited = AuditedServer::with("rules: [{level: RequestResponse}]", &[]);
    let mut admin = audited.client_with_token(ADMIN_TOKEN);
    let (status, events) = admin.send(("POST", MAPS), &JSON, &map("a", "<v>"), 2);
    assert_eq!(status, 201);
    let line = fs::read_to_string(&audited.log).unwrap();
    let line = line
        .lines()
        .find(|line| line.contains("ResponseComplete") && line.contains("\"name\":\"a\""))
        .unwrap();
    let offsets: Vec<usize> = [
        "\"kind\":\"Event\"", "\"apiVersion\":\"audit.k8s.io/v1\"", "\"level\":", "\"auditID\":", "\"stage\":",
        "\"requestURI\":", "\"verb\":", "\"user\":", "\"sourceIPs\":", "\"userAgent\":\"test/1 (\\u003cx\\u003e)\"",
        "\"objectRef\":", "\"responseStatus\":{\"metadata\":{},\"code\":201}",
        "\"requestObject\":{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\",\"creationTimestamp\":null},\"data\":{\"k\":\"\\u003cv\\u003e\"}}",
        "\"responseObject\":", "\"requestReceivedTimestamp\":", "\"stageTimestamp\":", "\"annotations\":",
    ]
    .iter()
    .map(|field| line.find(field).unwrap_or_else(|| panic!("{field} in {line}")))
    .collect();
    assert!(offsets.is_sorted(), "{line}");

    let (received, complete) = (&events[0], &events[1]);
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
fn audit_covers_every_verb_and_encoding() {
    let audited = AuditedServer::with("rules: [{level: RequestResponse}]", &[]);
    let mut admin = audited.client_with_token(ADMIN_TOKEN);
    let object_path = format!("{MAPS}/a");
    let created = admin.last(("POST", MAPS), &JSON, &map("a", "1"));
    let conflict = admin.last(("POST", MAPS), &JSON, &map("a", "1"));
    assert_eq!(
        conflict["responseStatus"],
        json!({"metadata": {}, "status": "Failure", "message": "configmaps \"a\" already exists",
            "reason": "AlreadyExists", "details": {"name": "a", "kind": "configmaps"}, "code": 409})
    );
    assert_eq!(conflict["responseObject"]["kind"], "Status");

    let mut object = created["responseObject"].clone();
    object["data"]["k"] = json!("2");
    let updated = admin.last(("PUT", &object_path), &JSON, &object.to_string());
    for field in ["uid", "resourceVersion"] {
        assert_eq!(updated["objectRef"][field], created["responseObject"]["metadata"][field], "{field}");
    }
    assert_eq!(updated["requestObject"]["data"]["k"], "2");

    let patched =
        admin.last(("PATCH", &object_path), &[("Content-Type", MERGE)], "{ \"data\": {\"z\": \"<\"} }");
    assert_eq!(
        (&patched["verb"], &patched["requestObject"]),
        (&json!("patch"), &json!({"data": {"z": "<"}}))
    );
    let apply = [("Content-Type", "application/apply-patch+yaml")];
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yy}\ndata: {x: z}\n";
    let applied = admin.last(("PATCH", &format!("{MAPS}/yy?fieldManager=m")), &apply, yaml);
    assert_eq!(applied["requestObject"]["data"], json!({"x": "z"}), "{applied}");
    assert_eq!(applied["responseStatus"]["code"], 201);

    check_audited_reads(&mut admin, &object_path);

    let body = r#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#;
    let deleted = admin.last(("DELETE", &object_path), &JSON, body);
    assert_eq!(deleted["requestObject"]["propagationPolicy"], "Background");
    assert_eq!(
        (&deleted["responseStatus"]["status"], &deleted["responseStatus"]["code"]),
        (&json!("Success"), &json!(200))
    );
    let deleted_collection = admin.last(("DELETE", MAPS), &[], "");
    assert_eq!(
        (&deleted_collection["verb"], &deleted_collection["responseObject"]["kind"]),
        (&json!("deletecollection"), &json!("ConfigMapList"))
    );
}

/// Reads an object and its collection of two in several encodings.
fn check_audited_reads(admin: &mut AuditClient, object_path: &str) {
    let read = admin.last(("GET", object_path), &[], "");
    assert!(
        read["responseObject"]["metadata"]["managedFields"].is_array() && read.get("requestObject").is_none()
    );
    let protobuf = [("Accept", "application/vnd.kubernetes.protobuf")];
    assert_eq!(admin.last(("GET", object_path), &protobuf, "")["responseObject"], read["responseObject"]);
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
        let empty = admin.last(("GET", &format!("{MAPS}?labelSelector=none")), &headers, "");
        assert_eq!(empty["responseObject"]["items"].as_array().map(Vec::len), Some(0), "{empty}");
    }
    let missing = admin.last(("GET", &format!("{MAPS}/none")), &[], "");
    assert_eq!(missing["responseStatus"]["reason"], "NotFound");
    let not_acceptable = admin.last(("GET", object_path), &[("Accept", "text/plain")], "");
    assert_eq!(not_acceptable["responseStatus"], json!({"metadata": {}, "code": 406}));
}

#[test]
fn audit_covers_subresources_and_non_resource_paths() {
    let audited = AuditedServer::with("rules: [{level: RequestResponse}]", &[]);
    let mut admin = audited.client_with_token(ADMIN_TOKEN);
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

    let deprecated = admin.last(("GET", "/api/v1/namespaces/default/endpoints"), &[], "");
    assert_eq!(deprecated["annotations"]["k8s.io/deprecated"], "true");
    let event = admin.last(("GET", "/version"), &[("X-Forwarded-For", "1.1.1.1, 2.2.2.2")], "");
    assert!(event.get("objectRef").is_none() && event.get("responseObject").is_none(), "{event}");
    assert_eq!(event["sourceIPs"], json!(["1.1.1.1", "2.2.2.2", "127.0.0.1"]));
    assert_eq!(admin.last(("GET", "/apis/apps"), &[], "")["responseObject"]["kind"], "APIGroup");
    assert_eq!(
        admin.last(("GET", "/nowhere"), &[], "")["responseStatus"],
        json!({"metadata": {}, "code": 404})
    );
}

#[test]
fn audit_records_user_of_refused_and_impersonated_requests() {
    let audited = AuditedServer::with("rules: [{level: RequestResponse}]", &[]);
    let (mut admin, mut alice) =
        (audited.client_with_token(ADMIN_TOKEN), audited.client_with_token(USER_TOKEN));
    let forbidden = alice.last(("GET", MAPS), &[], "");
    assert_eq!(forbidden["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(
        (&forbidden["responseStatus"]["code"], &forbidden["user"]["username"]),
        (&json!(403), &json!("alice"))
    );

    let (status, events) = audited.client_with_token("nobody's").send(("GET", MAPS), &[], "", 1);
    assert_eq!(status, 401);
    assert_eq!((&events[0]["stage"], &events[0]["user"]), (&json!("ResponseStarted"), &json!({})));
    assert_eq!(events[0]["responseStatus"]["reason"], "Unauthorized");
    let (status, events) = admin.send(("GET", "/api/v1/nodes?timeout=5"), &[], "", 1);
    assert_eq!((status, &events[0]["stage"]), (400, &json!("ResponseStarted")));

    let impersonation =
        [("Impersonate-User", "dave"), ("Impersonate-Group", "system:masters"), ("Impersonate-Extra-a", "b")];
    let impersonated = admin.last(("GET", MAPS), &impersonation, "");
    assert_eq!(impersonated["user"]["username"], "admin");
    assert_eq!(
        impersonated["impersonatedUser"],
        json!({"username": "dave", "groups": ["system:masters", "system:authenticated"], "extra": {"a": ["b"]}})
    );
    let refused = alice.last(("GET", MAPS), &impersonation[..1], "");
    assert!(refused.get("impersonatedUser").is_none() && refused.get("annotations").is_none(), "{refused}");
}

#[test]
fn watch_is_audited_at_start_and_end() {
    let audited = AuditedServer::with("rules: [{level: RequestResponse, verbs: [watch]}]", &[]);
    let watch = audited.server.admin().watch(MAPS, "");
    let stages = || -> Vec<String> {
        records(&audited.log).iter().map(|record| text(record, "/stage").to_owned()).collect()
    };
    poll(TIMEOUT, || (stages() == ["RequestReceived", "ResponseStarted"]).then_some(()))
        .expect("it has begun");
    drop(watch);
    poll(TIMEOUT, || (stages().len() == 3).then_some(())).expect("it has ended");
    let last = records(&audited.log).pop().unwrap();
    assert_eq!((&last["stage"], &last["responseStatus"]["code"]), (&json!("ResponseComplete"), &json!(200)));
    assert_eq!(last["annotations"]["authorization.k8s.io/decision"], "allow");

    let mut short = audited.server.admin().watch(MAPS, "timeoutSeconds=1");
    while short.attempt(crate::support::wait::Deadline::after(TIMEOUT)).unwrap().is_some() {}
    poll(TIMEOUT, || (stages().len() == 6).then_some(())).expect("so has one whose time is up");
    let mut server = audited.server;
    let _open = server.admin().watch(MAPS, "");
    server.assert_healthy();
    server.stop();
    assert_eq!(records(&audited.log).len(), 9, "one that the server ends is written down too");
}

#[test]
fn audit_policy_selects_level_and_stages() {
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
    let audited = AuditedServer::with(rules, &[]);
    let mut admin = audited.client_with_token(ADMIN_TOKEN);
    let mut last_record = |method, last_record: &str, body: &str, expected| {
        admin.send((method, last_record), &JSON, body, expected).1.pop()
    };
    assert!(last_record("GET", "/version", "", 0).is_none());
    let secret = r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"k":"hidden"}}"#;
    let record = last_record("POST", "/api/v1/namespaces/default/secrets", secret, 1).unwrap();
    assert!(record.get("requestObject").is_none() && !record.to_string().contains("hidden"), "{record}");
    assert_eq!((&record["level"], &record["objectRef"]["name"]), (&json!("Metadata"), &json!("s")));
    let record = last_record("POST", "/api/v1/namespaces/kube-public/configmaps", &map("a", "1"), 1).unwrap();
    assert!(record.get("requestObject").is_some() && record.get("responseObject").is_none(), "{record}");
    let record = last_record("POST", MAPS, &map("quiet", "1"), 1).unwrap();
    assert_eq!(record["responseObject"]["metadata"]["name"], "quiet");
    assert!(!record.to_string().contains("managedFields"), "{record}");
    assert!(!last_record("GET", MAPS, "", 1).unwrap().to_string().contains("managedFields"));
    assert!(last_record("GET", &format!("{MAPS}/quiet"), "", 0).is_none());
    assert!(last_record("DELETE", &format!("{MAPS}/quiet"), "", 0).is_none());
    let metrics = audited.server.admin().get("/metrics").text();
    for line in [
        r#"apiserver_audit_level_total{level="None"}"#,
        r#"apiserver_audit_level_total{level="RequestResponse"}"#,
        "apiserver_audit_event_total",
        "apiserver_audit_requests_rejected_total 0",
    ] {
        assert!(metrics.lines().any(|last_record| last_record.starts_with(line)), "{line}");
    }
}

#[test]
fn start_refuses_invalid_audit_policy() {
    for (rules, reason) in [
        ("rules: []", "loading audit policy file: loaded illegal policy with 0 rules: from file "),
        ("rules: [{level: Much}]", "rules[0].level: Unsupported value: \"Much\""),
        ("rules: [", "failed decoding: "),
    ] {
        let directory = temp_directory();
        let flags = flags(directory.path(), rules, &[]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let failure = Server::try_start_in(&directory.path().join("data"), &flags).err().expect("a refusal");
        assert!(failure.stderr.contains(reason), "{}", failure.stderr);
    }
    let directory = temp_directory();
    let missing =
        Server::try_start_in(directory.path(), &["--audit-policy-file=/none/such"]).err().expect("a refusal");
    assert!(missing.stderr.contains("failed to read file path \"/none/such\""), "{}", missing.stderr);
    let flags = ["--audit-log-path=-", "--audit-log-mode=never"];
    let failure = Server::try_start_in(directory.path(), &flags).err().expect("a refusal");
    assert!(failure.stderr.contains("invalid audit log mode never"), "{}", failure.stderr);
}

#[test]
fn changed_audit_policy_is_used_and_a_wrong_one_is_not() {
    let folder = temp_directory();
    let flags = flags(folder.path(), "rules: [{level: None}]", &[]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start_in(&folder.path().join("data"), &flags);
    let log = folder.path().join("logs/audit.log");
    let write = |text: &str| {
        // At once, because the server may read the file at any moment.
        let draft = folder.path().join("draft.yaml");
        fs::write(&draft, text).unwrap();
        fs::rename(&draft, folder.path().join("policy.yaml")).unwrap();
    };
    let reloads = |status: &str, count: u32| {
        let line = format!("{RELOADS}{{status=\"{status}\"}} {count}");
        poll(TIMEOUT, || server.admin().get("/metrics").text().contains(&line).then_some(()))
            .expect("a reload");
    };
    let mut admin = server.admin();
    admin.get(MAPS).ok();
    assert!(records(&log).is_empty());
    write("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, verbs: [list]}]");
    reloads("success", 1);
    admin.get(MAPS).ok();
    let lists = || records(&log).iter().filter(|record| record["requestURI"] == MAPS).count();
    poll(TIMEOUT, || (lists() == 2).then_some(())).expect("both stages of the list");
    write("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Sometimes}]");
    reloads("failure", 1);
    assert!(server.log().contains("the changed audit policy is invalid; the previous one stays in force"));
    admin.get(MAPS).ok();
    poll(TIMEOUT, || (lists() == 4).then_some(())).expect("the previous policy is in force");
    write("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None}]");
    reloads("success", 2);
    admin.get(MAPS).ok();
    assert_eq!(lists(), 4);
}
