//! What is stored: formats of earlier versions, backups, encryption; full, slow and broken disks, and all of it in turns.

mod backup;
mod cycles;
mod encryption;
mod faulty_disk;
mod formats;
mod full_disk;
mod repair;
mod small_disk;

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::Client;
use crate::support::compare::{revision, text};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, data: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"data": data}})
}

/// The names of the ConfigMaps in the namespace, and the resourceVersion of the list.
fn names(client: &mut Client) -> (Vec<String>, u64) {
    let list = client.get(MAPS).ok();
    let items = list["items"].as_array().expect("items");
    (items.iter().map(|item| text(item, "/metadata/name").to_owned()).collect(), revision(&list))
}

/// Runs a command of the binary.
fn pilothouse(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pilothouse")).args(arguments).output().expect("the binary")
}
