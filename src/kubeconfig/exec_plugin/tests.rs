use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use tempfile::TempDir;

use super::*;

const V1: &str = "client.authentication.k8s.io/v1";

/// A plug-in that is this shell script, in a folder of its own.
fn plugin(script: &str, more: &str) -> (ExecPlugin, TempDir, Clock) {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("plugin");
    std::fs::write(&path, format!("#!/bin/sh\ncd '{}'\n{script}\n", home.path().display())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let text = format!("{{command: ./plugin, apiVersion: {V1}, interactiveMode: IfAvailable{more}}}");
    let exec = Exec::parse(&yaml::read(text.as_bytes()).unwrap(), home.path()).unwrap();
    let cluster =
        Cluster { server: "https://s".into(), authority_pem: Some(b"a".to_vec()), ..Cluster::default() };
    let clock = Clock::manual(Timestamp(1_790_000_000_000_000));
    (ExecPlugin::new(exec, &cluster, clock.clone()), home, clock)
}

/// A script that counts its runs and prints a token with the number.
fn counting(expires: &str) -> String {
    format!(
        "echo run >> runs\nn=$(wc -l < runs | tr -d ' ')\n\
         echo '{{\"apiVersion\":\"{V1}\",\"kind\":\"ExecCredential\",\"status\":{{{expires}\"token\":\"t'$n'\"}}}}'"
    )
}

async fn token(plugin: &ExecPlugin) -> String {
    plugin.credentials().await.unwrap().token.clone().unwrap()
}

#[actix::test]
async fn what_was_made_is_kept_until_somebody_refuses_it() {
    let (plugin, _home, _) = plugin(&counting(""), "");
    let all = futures::future::join_all((0..8).map(|_| token(&plugin))).await;
    assert_eq!(all, ["t1"; 8], "one run for all");
    let old = plugin.credentials().await.unwrap();
    plugin.forget(&old).await;
    assert_eq!(token(&plugin).await, "t2");
    plugin.forget(&old).await;
    assert_eq!(token(&plugin).await, "t2", "others have been made already");
}

#[actix::test]
async fn what_was_made_is_kept_until_its_time_is_up() {
    let at = time::format_seconds(1_790_000_060);
    let (plugin, _home, clock) = plugin(&counting(&format!("\"expirationTimestamp\":\"{at}\",")), "");
    assert_eq!(token(&plugin).await, "t1");
    clock.advance(Duration::from_secs(60));
    assert_eq!(token(&plugin).await, "t1");
    clock.advance(Duration::from_secs(1));
    assert_eq!(token(&plugin).await, "t2");
}

#[actix::test]
async fn a_plugin_is_told_what_it_needs() {
    let script = format!(
        "printf '%s' \"$KUBERNETES_EXEC_INFO\" > info\nprintf '%s %s' \"$1\" \"$WHO\" > said\n\
         echo '{{\"apiVersion\":\"{V1}\",\"kind\":\"ExecCredential\",\"status\":{{\"token\":\"t\"}}}}'"
    );
    let (plain, home, _) = plugin(&script, ", args: [one], env: [{name: WHO, value: me}]");
    token(&plain).await;
    let read = |home: &TempDir, name: &str| std::fs::read_to_string(home.path().join(name)).unwrap();
    assert_eq!(read(&home, "said"), "one me");
    let info: serde_json::Value = serde_json::from_str(&read(&home, "info")).unwrap();
    let wanted =
        serde_json::json!({"kind": "ExecCredential", "apiVersion": V1, "spec": {"interactive": false}});
    assert_eq!(info, wanted);
    let (informed, home, _) = plugin(&script, ", provideClusterInfo: true");
    token(&informed).await;
    let info: serde_json::Value = serde_json::from_str(&read(&home, "info")).unwrap();
    assert_eq!(info["spec"]["cluster"]["server"], "https://s");
    assert_eq!(info["spec"]["cluster"]["certificate-authority-data"], "YQ==");
}

#[actix::test]
async fn what_goes_wrong_is_named_and_not_kept() {
    let status =
        |status: &str| format!("echo '{{\"apiVersion\":\"{V1}\",\"kind\":\"ExecCredential\"{status}}}'");
    for (script, part) in [
        ("exit 3".to_owned(), "failed with exit code 3"),
        ("kill -9 $$".to_owned(), "was killed"),
        ("echo hello".to_owned(), "decoding stdout"),
        ("head -c 2000000 /dev/zero".to_owned(), "prints more than"),
        (status(""), "didn't return a status field"),
        (status(",\"status\":{}"), "didn't return a token or cert/key pair"),
        (status(",\"status\":{\"clientKeyData\":\"k\"}"), "only certificate or key"),
        (
            status(",\"status\":{\"clientKeyData\":\"k\",\"clientCertificateData\":\"c\"}"),
            "failed parsing client key/certificate",
        ),
        (status(",\"status\":{\"token\":\"t\",\"expirationTimestamp\":\"soon\"}"), "expirationTimestamp"),
        (status(",\"status\":{\"token\":\"t\"}").replace("k8s.io/v1", "k8s.io/v1beta1"), "returned version"),
    ] {
        let (plugin, _home, _) = plugin(&script, "");
        let said = plugin.credentials().await.unwrap_err();
        assert!(said.contains(part), "{script}: {said}");
        assert!(plugin.made.lock().await.is_none());
    }
    let (missing, home, _) = plugin("true", ", installHint: get it");
    std::fs::remove_file(home.path().join("plugin")).unwrap();
    assert!(missing.credentials().await.unwrap_err().ends_with("not found: get it"));
    let (mut talker, _home, _) = plugin("true", "");
    talker.exec.wants_terminal = true;
    assert!(talker.credentials().await.unwrap_err().contains("not a terminal"));
}

#[actix::test]
async fn a_plugin_that_hangs_is_ended() {
    let (plugin, home, _) = plugin("echo $$ > pid; exec sleep 600", "");
    let waiting = tokio::time::timeout(Duration::from_millis(800), plugin.credentials()).await;
    assert!(waiting.is_err(), "nobody waits any more");
    let pid = std::fs::read_to_string(home.path().join("pid")).unwrap();
    let gone = || !Path::new(&format!("/proc/{}/cmdline", pid.trim())).exists();
    for _ in 0..100 {
        if gone() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it still runs");
}

/// Whether a process runs. One that has ended may still be listed until somebody asks how.
fn runs(id: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[actix::test]
async fn a_plugin_that_is_ended_takes_along_what_it_started() {
    let (plugin, home, _) = plugin("sh -c 'echo $$ > inner; sleep 300' &\nsleep 300", "");
    let inner = home.path().join("inner");
    let started = async {
        while !std::fs::read_to_string(&inner).is_ok_and(|id| id.ends_with('\n')) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // Whoever waited goes away.
    let waited = Box::pin(plugin.credentials());
    assert!(matches!(
        futures::future::select(waited, Box::pin(started)).await,
        futures::future::Either::Right(_)
    ));
    let id = std::fs::read_to_string(&inner).unwrap();
    for _ in 0..500 {
        if !runs(&id) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{id} still runs");
}

#[actix::test]
async fn what_a_plugin_leaves_running_is_left_alone() {
    let (plugin, home, _) =
        plugin(&format!("sleep 300 >/dev/null 2>&1 &\necho $! > inner\n{}", counting("")), "");
    assert_eq!(token(&plugin).await, "t1");
    let id = std::fs::read_to_string(home.path().join("inner")).unwrap();
    assert!(runs(&id));
    let ended = nix::sys::signal::kill(Pid::from_raw(id.trim().parse().unwrap()), Signal::SIGKILL);
    assert_eq!(ended, Ok(()));
}
