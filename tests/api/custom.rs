//! CustomResourceDefinitions and custom resources over HTTP.

mod conversion;
mod deletion;
mod oddities;
mod schemas;
mod serving;

use serde_json::{Value, json};

use crate::support::compare::text;
use crate::support::kubectl::Kubectl;
use crate::support::server::temp_directory;
use crate::support::wait::{Deadline, TIMEOUT, poll};
use crate::support::{Client, Response, Server};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GROUP: &str = "toys.example";
const KITES: &str = "/apis/toys.example/v1/namespaces/default/kites";
const MERGE: &str = "merge";
const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");

/// The schema of a kite.
fn schema() -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["color"], "properties": {
            "color": {"type": "string", "enum": ["red", "blue"], "description": "What it looks like."},
            "size": {"type": "integer", "minimum": 1, "maximum": 10, "default": 3},
            "tails": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"],
                    "properties": {"name": {"type": "string"}, "length": {"type": "integer"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "note": {"type": "string", "nullable": true}}},
        "status": {"type": "object", "properties": {"flying": {"type": "boolean"}, "count": {"type": "integer"}}}}})
}

fn version(name: &str, storage: bool) -> Value {
    json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema()}})
}

fn definition(plural: &str, kind: &str, scope: &str, versions: &[Value]) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {"group": GROUP, "scope": scope, "names": {"plural": plural, "singular": kind.to_lowercase(),
            "kind": kind, "shortNames": [&plural[..2]], "categories": ["all", "toys"]}, "versions": versions}})
}

fn kites() -> Value {
    definition("kites", "Kite", "Namespaced", &[version("v1", true)])
}

fn kite(name: &str) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Kite", "metadata": {"name": name}, "spec": {"color": "red"}})
}

fn condition<'a>(definition: &'a Value, kind: &str) -> Option<&'a Value> {
    definition["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition_object| condition_object["type"] == kind)
}

/// Creates a CRD and waits until it is established.
fn define(admin: &mut Client, definition: &Value) -> Value {
    let created = admin.post(DEFINITIONS, definition).ok();
    let path = format!("{DEFINITIONS}/{}", text(&created, "/metadata/name"));
    let established_crd = || {
        let crd = admin.get(&path).ok();
        let is_established = condition(&crd, "Established")
            .is_some_and(|condition_object| condition_object["status"] == "True");
        is_established.then_some(crd)
    };
    poll(TIMEOUT, established_crd).expect("the definition is established")
}

fn wait_until_gone(admin: &mut Client, path: &str) {
    poll(TIMEOUT, || (admin.get(path).status == 404).then_some(())).expect("it goes");
}
