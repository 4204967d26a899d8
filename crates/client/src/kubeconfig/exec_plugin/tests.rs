use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use tempfile::TempDir;

use super::*;

const V1: &str = "client.authentication.k8s.io/v1";

/// A plug-in that runs this shell script, in a directory of its own.
fn plugin(script: &str, more: &str) -> (ExecPlugin, TempDir, Clock) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plugin");
    std::fs::write(&path, format!("#!/bin/sh\ncd '{}'\n{script}\n", directory.path().display())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let text = format!("{{command: ./plugin, apiVersion: {V1}, interactiveMode: IfAvailable{more}}}");
    let exec = Exec::parse(&yaml::read(text.as_bytes()).unwrap(), directory.path()).unwrap();
    let cluster =
        Cluster { server: "https://s".into(), authority_pem: Some(b"a".to_vec()), ..Cluster::default() };
    let clock = Clock::manual(Timestamp(1_790_000_000_000_000));
    (ExecPlugin::new(exec, &cluster, clock.clone()), directory, clock)
}

/// A script that counts its runs and prints a token with the number.
fn counting_script(expires: &str) -> String {
    format!(
        "echo run >> runs\nn=$(wc -l < runs | tr -d ' ')\n\
         echo '{{\"apiVersion\":\"{V1}\",\"kind\":\"ExecCredential\",\"status\":{{{expires}\"token\":\"t'$n'\"}}}}'"
    )
}

async fn token(plugin: &ExecPlugin) -> String {
    plugin.credentials().await.unwrap().token.clone().unwrap()
}

#[actix_rt::test]
async fn exec_credentials_are_cached_until_rejected() {
    let (plugin, _directory, _) = plugin(&counting_script(""), "");
    let tokens = futures::future::join_all((0..8).map(|_| token(&plugin))).await;
    assert_eq!(tokens, ["t1"; 8], "one run for all");
    let old = plugin.credentials().await.unwrap();
    plugin.invalidate(&old).await;
    assert_eq!(token(&plugin).await, "t2");
    plugin.invalidate(&old).await;
    assert_eq!(token(&plugin).await, "t2", "newer credentials are kept");
}

#[actix_rt::test]
async fn exec_credentials_are_cached_until_expiry() {
    let expiry = time::format_seconds(1_790_000_060);
    let (plugin, _directory, clock) =
        plugin(&counting_script(&format!("\"expirationTimestamp\":\"{expiry}\",")), "");
    assert_eq!(token(&plugin).await, "t1");
    clock.advance(Duration::from_secs(60));
    assert_eq!(token(&plugin).await, "t1");
    clock.advance(Duration::from_secs(1));
    assert_eq!(token(&plugin).await, "t2");
}

#[actix_rt::test]
async fn exec_plugin_gets_arguments_environment_and_cluster() {
    let script = format!(
        "printf '%s' \"$KUBERNETES_EXEC_INFO\" > info\nprintf '%s %s' \"$1\" \"$WHO\" > output\n\
         echo '{{\"apiVersion\":\"{V1}\",\"kind\":\"ExecCredential\",\"status\":{{\"token\":\"t\"}}}}'"
    );
    let (plugin_without_cluster, directory, _) =
        plugin(&script, ", args: [one], env: [{name: WHO, value: me}]");
    token(&plugin_without_cluster).await;
    let read =
        |directory: &TempDir, name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    assert_eq!(read(&directory, "output"), "one me");
    let info: serde_json::Value = serde_json::from_str(&read(&directory, "info")).unwrap();
    let expected =
        serde_json::json!({"kind": "ExecCredential", "apiVersion": V1, "spec": {"interactive": false}});
    assert_eq!(info, expected);
    let (plugin_with_cluster, directory, _) = plugin(&script, ", provideClusterInfo: true");
    token(&plugin_with_cluster).await;
    let info: serde_json::Value = serde_json::from_str(&read(&directory, "info")).unwrap();
    assert_eq!(info["spec"]["cluster"]["server"], "https://s");
    assert_eq!(info["spec"]["cluster"]["certificate-authority-data"], "YQ==");
}

#[actix_rt::test]
async fn exec_plugin_failure_is_reported_and_not_cached() {
    let status =
        |status: &str| format!("echo '{{\"apiVersion\":\"{V1}\",\"kind\":\"ExecCredential\"{status}}}'");
    for (script, expected) in [
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
        let (plugin, _directory, _) = plugin(&script, "");
        let error = plugin.credentials().await.unwrap_err();
        assert!(error.contains(expected), "{script}: {error}");
        assert!(plugin.cache.lock().await.is_none());
    }
    let (missing, directory, _) = plugin("true", ", installHint: get it");
    std::fs::remove_file(directory.path().join("plugin")).unwrap();
    assert!(missing.credentials().await.unwrap_err().ends_with("not found: get it"));
    let (mut interactive, _directory, _) = plugin("true", "");
    interactive.exec.requires_terminal = true;
    assert!(interactive.credentials().await.unwrap_err().contains("not a terminal"));
}

#[actix_rt::test]
async fn hanging_exec_plugin_is_killed() {
    let (plugin, directory, _) = plugin("echo $$ > pid; exec sleep 600", "");
    let waiting = tokio::time::timeout(Duration::from_millis(800), plugin.credentials()).await;
    assert!(waiting.is_err(), "the caller gave up");
    let pid = std::fs::read_to_string(directory.path().join("pid")).unwrap();
    let has_ended = || !Path::new(&format!("/proc/{}/cmdline", pid.trim())).exists();
    for _ in 0..100 {
        if has_ended() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the plug-in still runs");
}

/// Whether a process runs. One that has exited may be listed as a zombie.
fn runs(id: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[actix_rt::test]
async fn killed_exec_plugin_takes_its_children_along() {
    let (plugin, directory, _) = plugin("sh -c 'echo $$ > inner; sleep 300' &\nsleep 300", "");
    let inner = directory.path().join("inner");
    let started = async {
        while !std::fs::read_to_string(&inner).is_ok_and(|id| id.ends_with('\n')) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // The caller is cancelled.
    let run = Box::pin(plugin.credentials());
    assert!(matches!(
        futures::future::select(run, Box::pin(started)).await,
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

#[actix_rt::test]
async fn exec_plugin_background_process_survives_normal_exit() {
    let (plugin, directory, _) =
        plugin(&format!("sleep 300 >/dev/null 2>&1 &\necho $! > inner\n{}", counting_script("")), "");
    assert_eq!(token(&plugin).await, "t1");
    let id = std::fs::read_to_string(directory.path().join("inner")).unwrap();
    assert!(runs(&id));
    let ended = nix::sys::signal::kill(Pid::from_raw(id.trim().parse().unwrap()), Signal::SIGKILL);
    assert_eq!(ended, Ok(()));
}
