//! ConfigMaps of any size, and a server that has many.

use super::load::{Measured, Until, request, run};

/// Where they are.
pub const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";

/// The text of one.
pub fn config_map(number: u64, bytes: usize) -> String {
    let filling = "x".repeat(bytes);
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"c-{number}"}},"data":{{"k":"{filling}"}}}}"#
    )
}

/// Creates so many of 1 KiB over HTTP.
pub fn fill(port: u16, objects: u64) -> Measured {
    run(port, 64, Until::Count(objects), 201, |number| {
        request("POST", COLLECTION, &config_map(number, 1_024))
    })
}

/// Gets one of the first `objects` of them.
pub fn get_request(number: u64, objects: u64) -> Vec<u8> {
    request("GET", &format!("{COLLECTION}/c-{}", number % objects), "")
}
