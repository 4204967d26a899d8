//! Token webhooks: a separate process that works, hangs, and sends wrong or malformed responses.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{ISSUER, assert_unauthorized, post_self_review, review, whoami};
use crate::support::server::temp_directory;
use crate::support::{Client, Server, USER_TOKEN};

/// The webhook process, killed on drop.
struct Webhook {
    child: Child,
    port: u16,
    home: TempDir,
}

impl Webhook {
    /// A webhook that requires this token, if any.
    fn start(token: Option<&str>) -> Webhook {
        let home = temp_directory();
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

    /// The flag with a kubeconfig for the webhook.
    fn flag(&self, user: &Value) -> String {
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": format!("http://127.0.0.1:{}/x", self.port)}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]});
        let path = self.home.path().join("config");
        fs::write(&path, config.to_string()).unwrap();
        format!("--authentication-token-webhook-config-file={}", path.display())
    }

    /// The requests so far, in order.
    fn requests(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// An exec plug-in that prints this token and counts its runs.
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

fn client_with_token(server: &Server, token: &str) -> Client {
    server.anonymous().with_token(Some(token))
}

#[test]
fn token_webhook_authenticates_user_and_caches_result() {
    let webhook = Webhook::start(None);
    let version = "--authentication-token-webhook-version=v1";
    let server = Server::with_flags(&["--engine=memory", &webhook.flag(&json!({"as": "reviewer"})), version]);
    let user_info = whoami(&mut client_with_token(&server, "ann"), &[]);
    let expected = json!({"username": "ann", "uid": "u", "groups": ["g", "system:authenticated"], "extra": {"k": ["v"]}});
    assert_eq!(user_info, expected);
    whoami(&mut client_with_token(&server, "ann"), &[]);
    let requests = webhook.requests();
    assert_eq!(requests.len(), 1, "remembered: {requests:?}");
    assert_eq!(requests[0]["as"], "reviewer");
    assert_eq!(requests[0]["body"]["kind"], "TokenReview");
    assert_eq!(requests[0]["body"]["apiVersion"], "authentication.k8s.io/v1");
    assert_eq!(requests[0]["body"]["spec"], json!({"token": "ann", "audiences": [ISSUER]}));
    // Tokens of other authenticators are not sent to the webhook.
    assert_eq!(whoami(&mut client_with_token(&server, USER_TOKEN), &[])["username"], "alice");
    assert_eq!(webhook.requests().len(), 1);
    // A failed call is retried.
    assert_eq!(whoami(&mut client_with_token(&server, "moody"), &[])["username"], "moody");
    assert_eq!(webhook.requests().len(), 3);

    for token in ["bad", "nobody", "liar", "nonsense", "huge", "cut", "gone", "meant-for-others"] {
        assert_unauthorized(&post_self_review(&mut client_with_token(&server, token), &[]));
    }
    let mut admin = server.admin();
    let known = review(&mut admin, "meant-for-others", &["others", "x"]);
    assert_eq!(
        (&known["status"]["authenticated"], &known["status"]["audiences"]),
        (&json!(true), &json!(["others"]))
    );
    let review_result = review(&mut admin, "liar", &[]);
    assert!(
        review_result["status"]["error"].as_str().is_some_and(|reason| reason.contains("invalid response")),
        "{review_result}"
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
    assert!(!metrics.contains("moody") && !server.log().contains("moody"), "tokens are not exposed");
}

#[test]
fn hanging_token_webhook_does_not_block_other_requests() {
    let webhook = Webhook::start(None);
    let mut server =
        Server::with_flags(&["--engine=memory", &webhook.flag(&json!({})), "--request-timeout=5s"]);
    let mut hanging_connection = client_with_token(&server, "hang").raw();
    let head = client_with_token(&server, "hang").head("GET", "/version", &[]);
    hanging_connection.send(format!("{head}\r\n").as_bytes()).unwrap();
    for token in ["ann", "bob"] {
        assert_eq!(whoami(&mut client_with_token(&server, token), &[])["username"], token);
    }
    assert_eq!(server.admin().get("/version").status, 200);
    assert_eq!(client_with_token(&server, "hang").get("/version").status, 504);
    // The older version is the default, as in the reference.
    assert_eq!(webhook.requests()[0]["body"]["apiVersion"], "authentication.k8s.io/v1beta1");
    drop(webhook);
    assert_unauthorized(&post_self_review(&mut client_with_token(&server, "carl"), &[]));
    assert_eq!(whoami(&mut client_with_token(&server, "ann"), &[])["username"], "ann", "remembered");
    server.assert_healthy();
}

#[test]
fn token_webhook_kubeconfig_exec_plugin_provides_credentials() {
    let webhook = Webhook::start(Some("first"));
    let plugin = webhook.plugin("wrong");
    let exec = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": plugin, "interactiveMode": "Never"}});
    let server = Server::with_flags(&["--engine=memory", &webhook.flag(&exec)]);
    let runs = || fs::read_to_string(webhook.home.path().join("runs")).unwrap_or_default().lines().count();
    assert_unauthorized(&post_self_review(&mut client_with_token(&server, "ann"), &[]));
    assert_eq!(runs(), 1);
    // The plug-in runs again after a refusal.
    webhook.plugin("first");
    assert_eq!(whoami(&mut client_with_token(&server, "ann"), &[])["username"], "ann");
    assert_eq!(whoami(&mut client_with_token(&server, "bob"), &[])["username"], "bob");
    assert_eq!(runs(), 2, "kept from then on");
    assert_eq!(webhook.requests().last().unwrap()["shown"], "Bearer first");

    let without_command =
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}});
    let home = temp_directory();
    let failure = Server::try_start_in(
        &home.path().join("data"),
        &["--engine=memory", &webhook.flag(&without_command)],
    )
    .err()
    .unwrap();
    assert!(format!("{}{}", failure.stdout, failure.stderr).contains("command is missing"), "{failure:?}");
}
