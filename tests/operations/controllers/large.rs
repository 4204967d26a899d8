//! Deletion of many objects: its duration, its effect on other requests, and its memory. PILOTHOUSE_LONG=1 creates more.

use std::time::Duration;

use pilothouse_types::clock::{Clock, Timestamp};
use serde_json::{Value, json};

use super::{config_map, reference, server, wait_until_gone};
use crate::support::wait::{TIMEOUT, long_tests_enabled, poll};
use crate::support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Creates many ConfigMaps over a few connections.
fn create_maps(client: &Client, collection: &str, count: usize, owners: &[Value]) {
    let connections = 4;
    std::thread::scope(|scope| {
        for first in 0..connections {
            let mut client = client.new_connection();
            scope.spawn(move || {
                for number in (first..count).step_by(connections) {
                    client.post(collection, &config_map(&format!("m{number:06}"), owners)).ok();
                }
            });
        }
    });
}

fn count(client: &mut Client, collection: &str) -> usize {
    let page = client.get(&format!("{collection}?limit=1")).ok();
    let remaining_count = page["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
    page["items"].as_array().unwrap().len() + usize::try_from(remaining_count).unwrap()
}

fn resident_memory(client: &mut Client) -> f64 {
    let text = client.get("/metrics").text();
    let line =
        text.lines().find(|line| line.starts_with("process_resident_memory_bytes")).expect("the metric");
    line.split_whitespace().last().unwrap().parse().unwrap()
}

/// Waits until `is_done` and returns the time that took, and the longest latency of another client meanwhile.
fn run_until(client: &Client, mut is_done: impl FnMut(&mut Client) -> bool) -> (Duration, Duration) {
    let (mut probe_client, mut other_client) = (client.new_connection(), client.new_connection());
    let clock = Clock::system();
    let since = |start: Timestamp| clock.now().since(start);
    let (start, mut longest, mut number) = (clock.now(), Duration::ZERO, 0);
    let finished = poll(TIMEOUT * if long_tests_enabled() { 10 } else { 1 }, || {
        let request_start = clock.now();
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": format!("l{number}")}});
        other_client.post("/apis/coordination.k8s.io/v1/namespaces/default/leases", &lease).ok();
        number += 1;
        longest = longest.max(since(request_start));
        is_done(&mut probe_client).then_some(())
    });
    assert!(finished.is_some(), "{number}");
    (since(start), longest)
}

#[test]
fn large_namespace_deletion_does_not_delay_other_requests() {
    let object_count = if long_tests_enabled() { 10_000 } else { 2_000 };
    let server = server(&[]);
    let mut client = server.admin();
    client
        .post(
            "/api/v1/namespaces",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "many"}}),
        )
        .ok();
    create_maps(&client, "/api/v1/namespaces/many/configmaps", object_count, &[]);
    client.delete("/api/v1/namespaces/many").ok();
    let (elapsed, longest) = run_until(&client, |client| client.get("/api/v1/namespaces/many").status == 404);
    println!("a namespace of {object_count} objects went in {elapsed:?}; others waited at most {longest:?}");
    // A busy machine is slow in both.
    assert!(longest < Duration::from_secs(5).max(elapsed / 2), "{longest:?} of {elapsed:?}");
}

#[test]
fn a_thousand_dependents_are_collected_after_owner_deletion() {
    let server = server(&[]);
    let mut client = server.admin();
    let owner = client.post(MAPS, &config_map("owner", &[])).ok();
    create_maps(&client, MAPS, 1_000, &[reference(&owner, true)]);
    client.delete_background(&format!("{MAPS}/owner")).ok();
    // Every namespace keeps its root CA.
    let (elapsed, _) = run_until(&client, |client| count(client, MAPS) <= 1);
    println!("a thousand dependents went in {elapsed:?}");
}

#[test]
fn garbage_collection_resumes_after_kill() {
    let directory = crate::support::server::temp_directory();
    let data = directory.path().join("data");
    let server = Server::start_in(&data, &["--controllers=garbagecollector"]);
    let mut client = server.admin();
    let owner = client.post(MAPS, &config_map("owner", &[])).ok();
    let foreground_owner = client.post(MAPS, &config_map("waits", &[])).ok();
    let orphaned_owner = client.post(MAPS, &config_map("kept", &[])).ok();
    create_maps(&client, MAPS, 600, &[reference(&owner, true)]);
    for number in 0..20 {
        client.post(MAPS, &config_map(&format!("w{number}"), &[reference(&foreground_owner, true)])).ok();
        client.post(MAPS, &config_map(&format!("k{number}"), &[reference(&orphaned_owner, true)])).ok();
    }
    let options = |policy: &str| json!({"propagationPolicy": policy}).to_string();
    for (name, policy) in [("kept", "Orphan"), ("waits", "Foreground"), ("owner", "Background")] {
        let path = format!("{MAPS}/{name}");
        let headers = [("content-type", "application/json")];
        client.request("DELETE", &path, &headers, options(policy).as_bytes()).ok();
    }
    poll(TIMEOUT, || (count(&mut client, MAPS) < 600).then_some(()));
    server.kill();

    let server = Server::start_in(&data, &["--controllers=garbagecollector"]);
    let mut client = server.admin();
    let is_done = poll(TIMEOUT, || (count(&mut client, MAPS) <= 20).then_some(()));
    assert!(is_done.is_some(), "{}", count(&mut client, MAPS));
    let remaining = client.get(MAPS).ok()["items"].as_array().unwrap().clone();
    assert!(
        remaining.iter().all(|map| map["metadata"]["name"].as_str().unwrap().starts_with('k')),
        "{remaining:?}"
    );
    assert!(
        remaining.iter().all(|map| map["metadata"]["ownerReferences"].is_null()),
        "orphans have no owner"
    );
    assert_eq!(remaining.len(), 20);
}

#[test]
fn objects_of_missing_namespace_are_deleted_on_start() {
    let directory = crate::support::server::temp_directory();
    let data = directory.path().join("data");
    let without_lifecycle = ["--disable-admission-plugins=NamespaceLifecycle", "--controllers=*"];
    let missing_namespace = "/api/v1/namespaces/ghost/configmaps";
    let server = Server::start_in(&data, &without_lifecycle);
    let mut client = server.admin();
    client.post(missing_namespace, &config_map("a", &[])).ok();
    client
        .post(
            "/api/v1/namespaces",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "short"}}),
        )
        .ok();
    client.delete("/api/v1/namespaces/short").ok();
    wait_until_gone(&mut client, "/api/v1/namespaces/short");
    assert_eq!(
        client.get(&format!("{missing_namespace}/a")).status,
        200,
        "admission allows it without NamespaceLifecycle"
    );
    server.stop();
    let server = Server::start_in(&data, &["--controllers=*"]);
    wait_until_gone(&mut server.admin(), &format!("{missing_namespace}/a"));
}

/// The memory of the owner index: the same load with and without the garbage collector.
#[test]
#[ignore = "creates 200,000 objects: takes minutes and PILOTHOUSE_LONG=1"]
fn garbage_collector_index_memory_is_bounded_per_object() {
    let object_count = 100_000;
    let mut growth_per_object = Vec::new();
    for controllers_flag in ["--controllers=-*", "--controllers=garbagecollector"] {
        let server = Server::with_flags(&["--engine=memory", controllers_flag]);
        let mut client = server.admin();
        let owner = client.post(MAPS, &config_map("owner", &[])).ok();
        let before = resident_memory(&mut client);
        create_maps(&client, MAPS, object_count, &[reference(&owner, true)]);
        // The server has closed the idle connection meanwhile.
        let mut client = client.new_connection();
        growth_per_object.push((resident_memory(&mut client) - before) / 100_000.0);
        if controllers_flag.ends_with("collector") {
            client.delete_background(&format!("{MAPS}/owner")).ok();
            let (elapsed, longest) = run_until(&client, |client| count(client, MAPS) == 0);
            println!("{object_count} dependents went in {elapsed:?}; others waited at most {longest:?}");
        }
    }
    println!("bytes an object, without and with the index: {growth_per_object:?}");
    assert!(growth_per_object[1] - growth_per_object[0] < 200.0, "{growth_per_object:?}");
}
