//! `pilothouse migrate`.

use std::fs;
use std::process::{Command, Output};

use serde_json::json;

use super::*;
use crate::support::server::temp_directory;
use crate::support::{ADMIN_TOKEN, USER_TOKEN};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilothouse"));
    command.arg("migrate").args(arguments).output().expect("the command")
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn succeed(arguments: &[&str]) -> String {
    let output = run(arguments);
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{arguments:?}: {stdout}{stderr}");
    stdout
}

fn fail(arguments: &[&str]) -> String {
    let output = run(arguments);
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stdout}{stderr}");
    stderr
}

/// The flag that names the kubeconfig of a server.
fn kubeconfig(server: &Server) -> String {
    format!("--kubeconfig={}", server.kubeconfig().display())
}

#[test]
fn command_completes_a_change_of_the_storage_version() {
    // The command asks the server to migrate, or rewrites the objects itself.
    let direct: &[&str] = &["--engine=memory"];
    for (flags, expected) in [(direct, "3 objects are current"), (&MIGRATOR, "migrated by the server")] {
        let server = Server::with_flags(flags);
        let mut admin = server.admin();
        define(&mut admin);
        create_stored_as_v1(&mut admin, "a");
        create_stored_as_v1(&mut admin, "b");
        switch_storage(&mut admin);
        create_stored_as_v2(&mut admin, "c");
        let before = revision(&mut admin, "c");
        let stdout = succeed(&["kites.toys.example", &kubeconfig(&server)]);
        assert!(stdout.starts_with(&format!("kites.toys.example: {expected}")), "{stdout}");
        assert!(stdout.ends_with("; no longer stored: v1\n"), "{stdout}");
        for name in ["a", "b", "c"] {
            assert!(is_stored_as_v2(&mut admin, name), "{name}");
        }
        assert_eq!(revision(&mut admin, "c"), before);
        assert_eq!(stored_versions(&mut admin), json!(["v2"]));
        remove_v1(&mut admin);
        let again = succeed(&["kites", &kubeconfig(&server), "--direct"]);
        assert_eq!(
            again,
            "kites.toys.example: 3 objects are current, 0 of them written by others meanwhile\n"
        );
    }
}

#[test]
fn command_migrates_every_resource_of_a_server() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin);
    create_stored_as_v1(&mut admin, "a");
    switch_storage(&mut admin);
    let roles = admin.get("/apis/rbac.authorization.k8s.io/v1/clusterroles").ok();
    let data = format!("--data-dir={}", server.data.display());
    let stdout = succeed(&["--all", &data]);
    let count = |list: &Value| list["items"].as_array().expect("items").len();
    for line in [
        "kites.toys.example: 1 objects are current, 0 of them written by others meanwhile; no longer stored: v1".to_owned(),
        format!(
            "clusterroles.rbac.authorization.k8s.io: {} objects are current, 0 of them written by others meanwhile",
            count(&roles)
        ),
    ] {
        assert!(stdout.lines().any(|found| found == line), "{line} in {stdout}");
    }
    let after = admin.get("/apis/rbac.authorization.k8s.io/v1/clusterroles").ok();
    assert_eq!(after["items"], roles["items"], "nothing was written");
    assert!(is_stored_as_v2(&mut admin, "a"));
}

#[test]
fn command_reads_lists_in_pages() {
    const MAPS: usize = 510;
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    for number in 0..MAPS {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{number}")}});
        admin.post("/api/v1/namespaces/default/configmaps", &map).ok();
    }
    let list = admin.get("/api/v1/configmaps").ok();
    let count = list["items"].as_array().expect("items").len();
    let output = run(&["configmaps", &kubeconfig(&server)]);
    let (stdout, stderr) = texts(&output);
    let expected =
        format!("configmaps: {count} objects are current, 0 of them written by others meanwhile\n");
    assert_eq!(stdout, expected, "{stderr}");
    assert!(
        stderr.contains("configmaps: 250 objects so far, about ") && stderr.contains("500 objects so far"),
        "{stderr}"
    );
    assert_eq!(admin.get("/api/v1/configmaps").ok()["items"], list["items"], "nothing was written");
}

#[test]
fn command_reports_what_it_cannot_do() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let stderr = fail(&["kites.toys.example", &kubeconfig(&server)]);
    assert!(stderr.contains("no resource \"kites.toys.example\" that can be migrated"), "{stderr}");
    let folder = temp_directory();
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).expect("a file");
        path.display().to_string()
    };
    let (ca, token) = (file("ca.crt", &server.ca_pem()), file("token", USER_TOKEN.as_bytes()));
    let url = format!("--server=https://{}", server.address());
    let flags = [url.as_str(), "--certificate-authority", &ca, "--token-file", &token];
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    admin.post("/api/v1/namespaces/default/configmaps", &map).ok();
    let stderr = fail(&[&["configmaps"], &flags[..]].concat());
    assert!(stderr.contains("the server answered 403") && stderr.contains("1 of 1 resources"), "{stderr}");
    let token = file("token", ADMIN_TOKEN.as_bytes());
    let stdout = succeed(&["configmaps", &url, "--certificate-authority", &ca, "--token-file", &token]);
    assert!(stdout.starts_with("configmaps: "), "{stdout}");
    let stderr = fail(&["configmaps", &url]);
    assert!(stderr.contains("certificate"), "{stderr}");
}

#[test]
fn command_reports_refused_objects_and_missing_controllers() {
    let server = Server::with_flags(&["--engine=memory", MIGRATOR[2], MIGRATOR[3]]);
    let mut admin = server.admin();
    define(&mut admin);
    create_stored_as_v1(&mut admin, "a");
    switch_storage(&mut admin);
    let stderr = fail(&["kites", &kubeconfig(&server), "--start-timeout=1"]);
    assert!(stderr.contains("no controller has begun") && stderr.contains("--direct"), "{stderr}");
    assert_eq!(stored_versions(&mut admin), json!(["v1", "v2"]));
    let policies = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": ["toys.example"],
            "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["kites"]}]},
        "validations": [{"expression": "false", "message": "never"}]}});
    admin.post(&format!("{policies}/validatingadmissionpolicies"), &policy).ok();
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    admin.post(&format!("{policies}/validatingadmissionpolicybindings"), &binding).ok();
    let stderr = fail(&["kites", &kubeconfig(&server), "--direct"]);
    assert!(stderr.contains("kites/a") && stderr.contains("never"), "{stderr}");
    assert!(stderr.contains("1 objects could not be rewritten"), "{stderr}");
    assert_eq!(stored_versions(&mut admin), json!(["v1", "v2"]));
}
