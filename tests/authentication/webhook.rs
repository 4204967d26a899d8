//! A server that knows tokens: a process of its own, which works, hangs, lies and talks nonsense.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::server::directory;
use super::support::{Client, Server, USER_TOKEN};
use super::{ISSUER, asks, is_unknown, review, who};

/// The process. Dropped, it is ended.
struct Webhook {
    child: Child,
    port: u16,
    home: TempDir,
}

impl Webhook {
    /// A server to which this token must be shown.
    fn start(token: Option<&str>) -> Webhook {
        let home = directory();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/token_webhook.py");
        let mut child = Command::new("python3")
            .arg(script)
            .arg(home.path().join("log"))
            .args(token)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs: tests/run installs it");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Webhook { child, port: line.trim().parse().expect("a port"), home }
    }

    /// A client configuration that leads to it, as a flag.
    fn flag(&self, user: &Value) -> String {
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": format!("http://127.0.0.1:{}/x", self.port)}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]});
        let path = self.home.path().join("config");
        fs::write(&path, config.to_string()).unwrap();
        format!("--authentication-token-webhook-config-file={}", path.display())
    }

    /// What it was asked, in order.
    fn asked(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// A plug-in that prints this token, and counts how often.
    fn plugin(&self, token: &str) -> PathBuf {
        let path = self.home.path().join("plugin");
        let credential = json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": {"token": token}});
        let runs = self.home.path().join("runs");
        fs::write(&path, format!("#!/bin/sh\necho run >> '{}'\necho '{credential}'\n", runs.display()))
            .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn with(server: &Server, token: &str) -> Client {
    server.anonymous().with_token(Some(token))
}

#[test]
fn whoever_another_server_knows_is_known() {
    let webhook = Webhook::start(None);
    let version = "--authentication-token-webhook-version=v1";
    let server = Server::with(&["--engine=memory", &webhook.flag(&json!({"as": "reviewer"})), version]);
    let me = who(&mut with(&server, "ann"), &[]);
    let wanted = json!({"username": "ann", "uid": "u", "groups": ["g", "system:authenticated"], "extra": {"k": ["v"]}});
    assert_eq!(me, wanted);
    who(&mut with(&server, "ann"), &[]);
    let asked = webhook.asked();
    assert_eq!(asked.len(), 1, "remembered: {asked:?}");
    assert_eq!(asked[0]["as"], "reviewer");
    assert_eq!(asked[0]["body"]["kind"], "TokenReview");
    assert_eq!(asked[0]["body"]["apiVersion"], "authentication.k8s.io/v1");
    assert_eq!(asked[0]["body"]["spec"], json!({"token": "ann", "audiences": [ISSUER]}));
    // Those whom somebody here knows are not asked for.
    assert_eq!(who(&mut with(&server, USER_TOKEN), &[])["username"], "alice");
    assert_eq!(webhook.asked().len(), 1);
    // A second attempt helps.
    assert_eq!(who(&mut with(&server, "moody"), &[])["username"], "moody");
    assert_eq!(webhook.asked().len(), 3);

    for token in ["bad", "nobody", "liar", "nonsense", "huge", "cut", "gone", "meant-for-others"] {
        is_unknown(&asks(&mut with(&server, token), &[]));
    }
    let mut admin = server.admin();
    let known = review(&mut admin, "meant-for-others", &["others", "x"]);
    assert_eq!(
        (&known["status"]["authenticated"], &known["status"]["audiences"]),
        (&json!(true), &json!(["others"]))
    );
    let refused = review(&mut admin, "liar", &[]);
    assert!(
        refused["status"]["error"].as_str().is_some_and(|why| why.contains("invalid response")),
        "{refused}"
    );
    let metrics = admin.get("/metrics").text();
    for line in [
        "authentication_token_cache_request_total{status=\"hit\"}",
        "authentication_token_cache_request_total{status=\"miss\"}",
        "authentication_token_cache_fetch_total{status=\"ok\"}",
        "authentication_token_cache_fetch_total{status=\"error\"}",
        "authentication_token_cache_active_fetch_count{status=\"in_flight\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(!metrics.contains("moody") && !server.log().contains("moody"), "no token is told");
}

#[test]
fn a_server_that_hangs_holds_nobody_else() {
    let webhook = Webhook::start(None);
    let mut server = Server::with(&["--engine=memory", &webhook.flag(&json!({})), "--request-timeout=5s"]);
    let mut hanging = with(&server, "hang").raw();
    let head = with(&server, "hang").head("GET", "/version", &[]);
    hanging.send(format!("{head}\r\n").as_bytes()).unwrap();
    for token in ["ann", "bob"] {
        assert_eq!(who(&mut with(&server, token), &[])["username"], token);
    }
    assert_eq!(server.admin().get("/version").status, 200);
    assert_eq!(with(&server, "hang").get("/version").status, 504);
    // The older version is the default, as in the reference.
    assert_eq!(webhook.asked()[0]["body"]["apiVersion"], "authentication.k8s.io/v1beta1");
    drop(webhook);
    is_unknown(&asks(&mut with(&server, "carl"), &[]));
    assert_eq!(who(&mut with(&server, "ann"), &[])["username"], "ann", "remembered");
    server.unharmed();
}

#[test]
fn a_plugin_makes_what_the_other_server_wants_to_see() {
    let webhook = Webhook::start(Some("first"));
    let plugin = webhook.plugin("wrong");
    let exec = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": plugin, "interactiveMode": "Never"}});
    let server = Server::with(&["--engine=memory", &webhook.flag(&exec)]);
    let runs = || fs::read_to_string(webhook.home.path().join("runs")).unwrap_or_default().lines().count();
    is_unknown(&asks(&mut with(&server, "ann"), &[]));
    assert_eq!(runs(), 1);
    // What was refused is made anew.
    webhook.plugin("first");
    assert_eq!(who(&mut with(&server, "ann"), &[])["username"], "ann");
    assert_eq!(who(&mut with(&server, "bob"), &[])["username"], "bob");
    assert_eq!(runs(), 2, "kept from then on");
    assert_eq!(webhook.asked().last().unwrap()["shown"], "Bearer first");

    let broken =
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}});
    let home = directory();
    let refused = Server::try_on(&home.path().join("data"), &["--engine=memory", &webhook.flag(&broken)])
        .err()
        .unwrap();
    assert!(format!("{}{}", refused.stdout, refused.stderr).contains("command is missing"), "{refused:?}");
}
