//! The Python client against the server: scripts of `tests/python`, in a virtual environment below the build folder.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::support::python::{environment, run, script};
use crate::support::server::{lasting_port, temp_directory};
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

/// The client release for Kubernetes 1.33, and an independent library for signatures. Created by the first test that needs it.
static PYTHON: LazyLock<PathBuf> =
    LazyLock::new(|| environment("kubernetes", &["kubernetes==33.1.0", "jwcrypto==1.5.6"]));

#[test]
fn python_client_creates_lists_watches_and_deletes() {
    let server = Server::start();
    let script = script("client.py");
    run(Command::new(&*PYTHON).arg(script).arg(server.kubeconfig()).env_remove("KUBECONFIG"));
}

#[test]
fn python_client_sees_dependents_deleted() {
    let server = Server::with_flags(&["--engine=memory", "--controllers=*"]);
    let script = script("owners.py");
    run(Command::new(&*PYTHON).arg(script).arg(server.kubeconfig()).env_remove("KUBECONFIG"));
}

#[test]
fn cluster_info_signature_verifies_with_jwcrypto() {
    let common = ["--engine=memory", "--controllers=*"];
    for (flags, key) in [(&[][..], "token"), (&["--cluster-info-signing-key=secret"], "secret")] {
        let server = Server::with_flags(&[&common[..], flags].concat());
        let mut client = Command::new(&*PYTHON);
        run(client.arg(script("cluster_info.py")).arg(server.kubeconfig()).arg(key).env_remove("KUBECONFIG"));
    }
}

/// The first release of the client with informers is for Kubernetes 1.36.
static PYTHON_WITH_INFORMERS: LazyLock<PathBuf> =
    LazyLock::new(|| environment("informers", &["kubernetes==36.0.3"]));

/// Informers in another process.
struct Informers {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Informers {
    fn start(kubeconfig: &Path) -> Informers {
        let mut command = Command::new(&*PYTHON_WITH_INFORMERS);
        command.arg(script("informers.py")).arg(kubeconfig).env_remove("KUBECONFIG");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python runs");
        let lines = BufReader::new(child.stdout.take().expect("stdout"));
        Informers { child, lines }
    }

    /// Waits until each informer has what the server has, and compares that: names with values, and how often the informer has listed.
    fn expect(&mut self, objects: &Value, lists: u64) {
        self.child.stdin.as_mut().expect("stdin").write_all(b"\n").expect("it reads");
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        let caches: Vec<Value> = serde_json::from_str(&line).expect("what is in the caches");
        assert_eq!(caches, vec![json!({"objects": objects, "lists": lists}); COLLECTIONS.len()]);
    }
}

impl Drop for Informers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const COLLECTIONS: [&str; 3] = [
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/secrets",
    "/apis/sea.example/v1/namespaces/default/anchors",
];

fn create_definition(admin: &mut Client) {
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "anchors.sea.example"},
        "spec": {"group": "sea.example", "scope": "Namespaced", "names": {"plural": "anchors", "kind": "Anchor"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).ok();
    let served = poll(TIMEOUT, || (admin.get(COLLECTIONS[2]).status == 200).then_some(()));
    served.expect("the definition is served");
}

fn create(admin: &mut Client, name: &str, value: &str) {
    for (collection, kind) in COLLECTIONS.iter().zip(["ConfigMap", "Secret", "Anchor"]) {
        let api_version = if kind == "Anchor" { "sea.example/v1" } else { "v1" };
        let metadata = json!({"name": name, "annotations": {"value": value}});
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
        admin.post(collection, &object).ok();
    }
}

fn change(admin: &mut Client, name: &str, value: &str) {
    for collection in COLLECTIONS {
        let patch = json!({"metadata": {"annotations": {"value": value}}});
        admin.patch(&format!("{collection}/{name}"), "merge", &patch).ok();
    }
}

fn delete(admin: &mut Client, name: &str) {
    for collection in COLLECTIONS {
        admin.delete(&format!("{collection}/{name}")).ok();
    }
}

#[test]
fn python_informers_have_what_the_server_has_after_restart_and_restoration() {
    let directory = temp_directory();
    let (data, file) = (directory.path().join("data"), directory.path().join("backup"));
    let port = lasting_port();
    let start = || Server::start_in(&data, &[&port, "--engine=redb"]);
    let server = start();
    let mut admin = server.admin();
    create_definition(&mut admin);
    for name in ["changed", "deleted", "kept"] {
        create(&mut admin, name, "before");
    }
    let mut informers = Informers::start(&server.kubeconfig());
    informers.expect(&json!({"changed": "before", "deleted": "before", "kept": "before"}), 1);

    server.stop();
    let server = start();
    let mut admin = server.admin();
    change(&mut admin, "kept", "restarted");
    informers.expect(&json!({"changed": "before", "deleted": "before", "kept": "restarted"}), 1);

    fs::write(&file, admin.get("/backup").body).expect("the backup");
    create(&mut admin, "new", "after");
    change(&mut admin, "changed", "after");
    delete(&mut admin, "deleted");
    informers.expect(&json!({"changed": "after", "kept": "restarted", "new": "after"}), 1);

    server.stop();
    let mut restore = Command::new(env!("CARGO_BIN_EXE_pilothouse"));
    run(restore.arg("restore").arg(&file).arg("--data-dir").arg(&data).arg("--replace"));
    let server = start();
    let mut admin = server.admin();
    informers.expect(&json!({"changed": "before", "deleted": "before", "kept": "restarted"}), 2);
    create(&mut admin, "new", "restored");
    change(&mut admin, "changed", "restored");
    delete(&mut admin, "kept");
    informers.expect(&json!({"changed": "restored", "deleted": "before", "new": "restored"}), 2);
}
