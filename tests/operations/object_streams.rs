//! `pilothouse export` and `pilothouse import`, against real servers.

mod fake_server;
mod input;
mod kubectl;
mod many;
mod owners;
mod round_trip;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::compare::text;
use crate::support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A command of the binary that connects to a server.
fn command(name: &str, server: &Server, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilothouse"));
    command.arg(name).arg("--kubeconfig").arg(server.kubeconfig()).args(arguments).stdin(Stdio::null());
    command
}

/// The end of a command: whether it succeeded, and its standard error.
fn run(mut command: Command) -> (bool, String) {
    let output = command.output().expect("the binary");
    (output.status.success(), String::from_utf8(output.stderr).expect("text"))
}

/// Exports to a file.
fn export(server: &Server, path: &Path, arguments: &[&str]) -> String {
    let path = path.to_str().expect("a path of letters");
    let (success, stderr) = run(command("export", server, &[&["--to", path], arguments].concat()));
    assert!(success, "{stderr}");
    stderr
}

/// Imports a file.
fn import(server: &Server, path: &Path, arguments: &[&str]) -> (bool, String) {
    let path = path.to_str().expect("a path of letters");
    run(command("import", server, &[&[path], arguments].concat()))
}

/// Imports a text from standard input.
fn import_text(server: &Server, input: &str, arguments: &[&str]) -> (bool, String) {
    let directory = crate::support::server::temp_directory();
    let path = directory.path().join("input");
    std::fs::write(&path, input).expect("the input");
    let mut command = command("import", server, arguments);
    command.stdin(File::open(path).expect("the input"));
    run(command)
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// The objects of an export as JSON lines, by kind, namespace and name.
fn objects(path: &Path) -> BTreeMap<String, Value> {
    let lines = std::fs::read_to_string(path).expect("an export");
    let parse =
        |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    lines.lines().map(parse).map(|object| (key(&object), object)).collect()
}

fn key(object: &Value) -> String {
    let field = |pointer| text(object, pointer);
    format!(
        "{} {} {}/{}",
        field("/apiVersion"),
        field("/kind"),
        field("/metadata/namespace"),
        field("/metadata/name")
    )
}

/// A ConfigMap in the namespace default.
fn config_map(name: &str, owners: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default",
        "ownerReferences": owners}, "data": {"name": name}})
}

/// An owner reference to an object.
fn reference(owner: &Value) -> Value {
    json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": true})
}

/// A definition of a custom resource with status, and an object of it.
fn define_ships(client: &mut Client) {
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "ships.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "ships", "singular": "ship", "kind": "Ship", "listKind": "ShipList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).ok();
    let is_served = || (client.get("/apis/example.com/v1/ships").status == 200).then_some(());
    crate::support::wait::poll(crate::support::wait::TIMEOUT, is_served).expect("the kind is served");
}
