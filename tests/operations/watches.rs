//! Lists at a version and watches: options, start, timeout and end of watches, and many watches on one connection.

mod http1;
mod http2;
mod lists;

use std::time::Duration;

use pilothouse::config::Config;
use pilothouse::server::{Handle, Server};
use serde_json::{Value, json};

use crate::support::compare::{revision, text};
use crate::support::wait::{Deadline, TIMEOUT, poll};
use crate::support::{Client, edge};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn start(change: impl FnOnce(&mut Config)) -> (Handle, Client) {
    let mut config = Config::ephemeral();
    // Without controllers, so that the tests create all objects.
    config.controllers.controllers = vec!["-*".to_owned()];
    change(&mut config);
    let server = Server::start(config).unwrap();
    let (address, admin) = (server.address(), server.admin());
    let client =
        Client::new(address, server.ca_pem(), Some((&admin.certificates_pem[..], &admin.key_pem[..])));
    (server, client)
}

fn new_client(server: &Handle) -> Client {
    let admin = server.admin();
    let identity = Some((&admin.certificates_pem[..], &admin.key_pem[..]));
    Client::new(server.address(), server.ca_pem(), identity)
}

fn gate(config: &mut Config, setting: &str) {
    config.api.feature_gates.push(setting.parse().unwrap());
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"test": "watches"}}})
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().expect("items").iter().map(|item| text(item, "/metadata/name")).collect()
}

/// The value of a metric, all its series together.
fn metric(client: &mut Client, name: &str) -> f64 {
    let page = client.get("/metrics").text();
    let is_series_of =
        |line: &&str| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} "));
    page.lines().filter(is_series_of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
