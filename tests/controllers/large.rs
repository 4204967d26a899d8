//! Many objects: how long it takes, what others notice of it, and what it costs. PILOTHOUSE_LONG=1 makes them many.

use std::time::Duration;

use pilothouse_types::clock::{Clock, Timestamp};
use serde_json::{Value, json};

use super::support::wait::{CAP, is_long, poll};
use super::support::{Client, Server};
use super::{config_map, gone, reference, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Makes many ConfigMaps over a few connections.
fn fill(client: &Client, collection: &str, count: usize, owners: &[Value]) {
    let connections = 4;
    std::thread::scope(|scope| {
        for first in 0..connections {
            let mut client = client.again();
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
    let more = page["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
    page["items"].as_array().unwrap().len() + usize::try_from(more).unwrap()
}

fn resident(client: &mut Client) -> f64 {
    let text = client.get("/metrics").text();
    let line =
        text.lines().find(|line| line.starts_with("process_resident_memory_bytes")).expect("the metric");
    line.split_whitespace().last().unwrap().parse().unwrap()
}

/// Does something until `done` answers, and tells how long it took and how long others waited for an answer at most.
fn meanwhile(client: &Client, mut done: impl FnMut(&mut Client) -> bool) -> (Duration, Duration) {
    let (mut asker, mut other) = (client.again(), client.again());
    let clock = Clock::system();
    let since = |begun: Timestamp| clock.now().since(begun);
    let (begun, mut longest, mut number) = (clock.now(), Duration::ZERO, 0);
    let over = poll(CAP * if is_long() { 10 } else { 1 }, || {
        let asked = clock.now();
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": format!("l{number}")}});
        other.post("/apis/coordination.k8s.io/v1/namespaces/default/leases", &lease).ok();
        number += 1;
        longest = longest.max(since(asked));
        done(&mut asker).then_some(())
    });
    assert!(over.is_some(), "{number}");
    (since(begun), longest)
}

#[test]
fn a_namespace_of_many_objects_goes_in_seconds_while_others_are_served() {
    let many = if is_long() { 10_000 } else { 2_000 };
    let server = server(&[]);
    let mut client = server.admin();
    client
        .post(
            "/api/v1/namespaces",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "many"}}),
        )
        .ok();
    fill(&client, "/api/v1/namespaces/many/configmaps", many, &[]);
    client.delete("/api/v1/namespaces/many").ok();
    let (took, longest) = meanwhile(&client, |client| client.get("/api/v1/namespaces/many").status == 404);
    println!("a namespace of {many} objects went in {took:?}; others waited at most {longest:?}");
    // A machine that is busy with other things is slow for all of it.
    assert!(longest < Duration::from_secs(5).max(took / 2), "{longest:?} of {took:?}");
}

#[test]
fn a_thousand_dependents_go_soon_after_their_owner() {
    let server = server(&[]);
    let mut client = server.admin();
    let owner = client.post(MAPS, &config_map("owner", &[])).ok();
    fill(&client, MAPS, 1_000, &[reference(&owner, true)]);
    client.delete_background(&format!("{MAPS}/owner")).ok();
    // What is left is what every namespace has.
    let (took, _) = meanwhile(&client, |client| count(client, MAPS) <= 1);
    println!("a thousand dependents went in {took:?}");
}

#[test]
fn a_cascade_goes_on_after_a_kill() {
    let directory = super::support::server::directory();
    let data = directory.path().join("data");
    let server = Server::on(&data, &["--controllers=garbagecollector"]);
    let mut client = server.admin();
    let owner = client.post(MAPS, &config_map("owner", &[])).ok();
    let waits = client.post(MAPS, &config_map("waits", &[])).ok();
    let kept = client.post(MAPS, &config_map("kept", &[])).ok();
    fill(&client, MAPS, 600, &[reference(&owner, true)]);
    for number in 0..20 {
        client.post(MAPS, &config_map(&format!("w{number}"), &[reference(&waits, true)])).ok();
        client.post(MAPS, &config_map(&format!("k{number}"), &[reference(&kept, true)])).ok();
    }
    let options = |policy: &str| json!({"propagationPolicy": policy}).to_string();
    for (name, policy) in [("kept", "Orphan"), ("waits", "Foreground"), ("owner", "Background")] {
        let path = format!("{MAPS}/{name}");
        let sent = [("content-type", "application/json")];
        client.request("DELETE", &path, &sent, options(policy).as_bytes()).ok();
    }
    poll(CAP, || (count(&mut client, MAPS) < 600).then_some(()));
    server.kill();

    let server = Server::on(&data, &["--controllers=garbagecollector"]);
    let mut client = server.admin();
    let done = poll(CAP, || (count(&mut client, MAPS) <= 20).then_some(()));
    assert!(done.is_some(), "{}", count(&mut client, MAPS));
    let left = client.get(MAPS).ok()["items"].as_array().unwrap().clone();
    assert!(left.iter().all(|map| map["metadata"]["name"].as_str().unwrap().starts_with('k')), "{left:?}");
    assert!(left.iter().all(|map| map["metadata"]["ownerReferences"].is_null()), "orphans have no owner");
    assert_eq!(left.len(), 20);
}

#[test]
fn what_stands_in_no_namespace_goes_if_nothing_may() {
    let directory = super::support::server::directory();
    let data = directory.path().join("data");
    let careless = ["--disable-admission-plugins=NamespaceLifecycle", "--controllers=*"];
    let ghost = "/api/v1/namespaces/ghost/configmaps";
    let server = Server::on(&data, &careless);
    let mut client = server.admin();
    client.post(ghost, &config_map("a", &[])).ok();
    client
        .post(
            "/api/v1/namespaces",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "short"}}),
        )
        .ok();
    client.delete("/api/v1/namespaces/short").ok();
    gone(&mut client, "/api/v1/namespaces/short");
    assert_eq!(client.get(&format!("{ghost}/a")).status, 200, "somebody allows that");
    server.stop();
    let server = Server::on(&data, &["--controllers=*"]);
    gone(&mut server.admin(), &format!("{ghost}/a"));
}

/// The index of owners beside the objects themselves: the same load with and without the loop that has it.
#[test]
fn a_cascade_over_a_hundred_thousand_objects_needs_little_memory() {
    if !is_long() {
        return;
    }
    let many = 100_000;
    let mut grown = Vec::new();
    for loops in ["--controllers=-*", "--controllers=garbagecollector"] {
        let server = Server::with(&["--engine=memory", loops]);
        let mut client = server.admin();
        let owner = client.post(MAPS, &config_map("owner", &[])).ok();
        let before = resident(&mut client);
        fill(&client, MAPS, many, &[reference(&owner, true)]);
        // That took so long that the server has closed the idle connection.
        let mut client = client.again();
        grown.push((resident(&mut client) - before) / 100_000.0);
        if loops.ends_with("collector") {
            client.delete_background(&format!("{MAPS}/owner")).ok();
            let (took, longest) = meanwhile(&client, |client| count(client, MAPS) == 0);
            println!("{many} dependents went in {took:?}; others waited at most {longest:?}");
        }
    }
    println!("bytes an object, without and with the index: {grown:?}");
    assert!(grown[1] - grown[0] < 200.0, "{grown:?}");
}
