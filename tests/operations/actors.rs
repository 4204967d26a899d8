//! /debug/actors and the health checks: what the server tells about its parts.

use serde_json::Value;

use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn activity(client: &mut Client) -> Value {
    let response = client.request("GET", "/debug/actors", &[("Accept", "application/json")], b"");
    assert_eq!(response.header("content-type"), Some("application/json"));
    response.ok()
}

fn actors<'a>(activity: &'a Value, kind: &str) -> Vec<&'a Value> {
    let actors = activity["actors"].as_array().unwrap().iter();
    actors.filter(|actor| actor["kind"] == kind).collect()
}

#[test]
fn actors_queues_and_threads_are_shown() {
    let server = Server::with_flags(&["--engine=memory", "--controllers=*"]);
    let mut client = server.admin();
    client.post(MAPS, &serde_json::json!({"metadata": {"name": "a"}})).ok();
    let _watch = client.watch(MAPS, "resourceVersion=0");
    let activity = activity(&mut client);
    let stores = actors(&activity, "store");
    let maps = stores.iter().find(|store| store["name"] == "configmaps").expect("the store of config maps");
    assert!(maps["numbers"]["objects"].as_u64().unwrap() > 0, "{maps}");
    assert!(maps["answeredInSeconds"].as_f64().is_some(), "{maps}");
    for kind in ["committer", "directory", "broadcaster", "authenticator", "authorizer", "controller"] {
        assert!(!actors(&activity, kind).is_empty(), "{kind}: {activity}");
    }
    let watches = actors(&activity, "broadcaster").into_iter();
    let watches: u64 = watches.filter_map(|actor| actor["numbers"]["watches"].as_u64()).sum();
    assert!(watches > 0, "{activity}");
    let namespaces = actors(&activity, "controller").into_iter();
    let mut named = namespaces.filter(|actor| actor["name"] == "namespace-controller");
    assert!(named.any(|actor| actor["queues"][2]["bound"].is_u64()), "{activity}");
    let queues = activity["queues"].as_array().unwrap();
    for part in
        ["writes that are not durable", "heavy work that waits", "requests that wait", "bytes of watches"]
    {
        let is_there = queues.iter().any(|queue| queue["name"].as_str().unwrap().starts_with(part));
        assert!(is_there, "{part}: {activity}");
    }
    let threads = activity["threads"].as_array().unwrap();
    assert!(threads.iter().any(|thread| thread["name"] == "log"), "{activity}");

    let text = client.get("/debug/actors");
    assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"));
    let text = text.text();
    for part in ["ACTORS\n", "\nQUEUES\n", "\nTHREADS\n", "configmaps"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn actors_that_ended_are_not_shown() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    // Those that only the start needed.
    let without_unanswered = poll(TIMEOUT, || {
        let activity = activity(&mut client);
        let actors = activity["actors"].as_array().unwrap();
        actors.iter().all(|actor| !actor["answeredInSeconds"].is_null()).then_some(())
    });
    assert!(without_unanswered.is_some());
}

/// The names of the checks of a page.
fn checks(client: &mut Client, path: &str) -> Vec<String> {
    let page = client.get(&format!("{path}?verbose"));
    assert_eq!(page.status, 200, "{}", page.text());
    let lines = page.text();
    let names = lines.lines().filter_map(|line| line.strip_prefix("[+]")?.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn every_listed_check_has_a_page_and_those_that_are_off_are_not_listed() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    for path in ["/healthz", "/livez", "/readyz"] {
        let names = checks(&mut client, path);
        assert!(names.len() > 20, "{names:?}");
        for name in &names {
            assert_eq!(client.get(&format!("{path}/{name}")).text(), "ok", "{path}/{name}");
        }
    }
    let filter = "poststarthook/priority-and-fairness-filter".to_owned();
    let cidrs = "poststarthook/start-kubernetes-service-cidr-controller".to_owned();
    let names = checks(&mut client, "/readyz");
    assert!(names.contains(&filter) && names.contains(&cidrs), "{names:?}");
    let off = "--runtime-config=networking.k8s.io/v1=false";
    let server = Server::with_flags(&["--engine=memory", "--enable-priority-and-fairness=false", off]);
    let names = checks(&mut server.admin(), "/readyz");
    assert!(!names.contains(&filter) && !names.contains(&cidrs), "{names:?}");
}
