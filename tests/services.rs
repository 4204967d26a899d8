//! The addresses and node ports of services: given, refused, given back, and the same after a restart.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::thread;

use serde_json::{Value, json};
use support::compare::text;
use support::server::directory;
use support::wait::{CAP, poll};
use support::{Client, Server};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const SMALL: &str = "--service-cluster-ip-range=10.77.0.0/24";

fn service(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    if spec["ports"].is_null() {
        spec["ports"] = json!([{"port": 80}]);
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

fn made(client: &mut Client, name: &str, spec: Value) -> Value {
    client.post(SERVICES, &service(name, spec)).ok()
}

fn refusal(client: &mut Client, name: &str, spec: Value) -> String {
    text(&client.post(SERVICES, &service(name, spec)).refused(422, "Invalid"), "/message").to_owned()
}

fn path(name: &str) -> String {
    format!("{SERVICES}/{name}")
}

/// The names of all addresses that are taken.
fn taken(client: &mut Client) -> BTreeSet<String> {
    let list = client.get(ADDRESSES).ok();
    list["items"].as_array().unwrap().iter().map(|item| text(item, "/metadata/name").to_owned()).collect()
}

fn node_port(service: &Value) -> i64 {
    service["spec"]["ports"][0]["nodePort"].as_i64().unwrap_or(0)
}

#[test]
fn an_address_is_taken_with_the_service_and_free_without_it() {
    let server = Server::with(&[SMALL]);
    let mut client = server.admin();
    let one = made(&mut client, "one", json!({}));
    let address = text(&one, "/spec/clusterIP").to_owned();
    assert!(address.starts_with("10.77.0."), "{one}");
    assert_eq!(one["spec"]["clusterIPs"], json!([address]));
    assert_eq!(one["spec"]["ipFamilies"], json!(["IPv4"]));
    assert_eq!(one["spec"]["ipFamilyPolicy"], "SingleStack");

    let object = client.get(&format!("{ADDRESSES}/{address}")).ok();
    let parent = json!({"resource": "services", "namespace": "default", "name": "one"});
    assert_eq!(object["spec"]["parentRef"], parent);
    assert_eq!(object["metadata"]["labels"]["ipaddress.kubernetes.io/managed-by"], "ipallocator.k8s.io");
    assert_eq!(object["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"], "IPv4");

    let message = refusal(&mut client, "two", json!({"clusterIP": address}));
    let wanted = format!(
        "Service \"two\" is invalid: spec.clusterIPs: Invalid value: []string{{\"{address}\"}}: failed to allocate IP \
         {address}: provided IP is already allocated"
    );
    assert_eq!(message, wanted);
    let message = refusal(&mut client, "two", json!({"clusterIP": "10.78.0.1"}));
    assert!(message.ends_with("the provided network does not match the current range"), "{message}");
    // A service that is refused for another reason leaves no address behind.
    refusal(&mut client, "two", json!({"clusterIP": "10.77.0.9", "sessionAffinity": "Sometimes"}));
    made(&mut client, "two", json!({"clusterIP": "10.77.0.9"}));
    client.post(SERVICES, &service("two", json!({}))).refused(409, "AlreadyExists");
    assert_eq!(taken(&mut client), [address.as_str(), "10.77.0.1", "10.77.0.9"].map(str::to_owned).into());

    client.delete(&path("one")).ok();
    assert!(!taken(&mut client).contains(&address));
    made(&mut client, "three", json!({"clusterIP": address}));
}

#[test]
fn services_without_an_address_take_none() {
    let server = Server::with(&[SMALL]);
    let mut client = server.admin();
    let headless = made(&mut client, "headless", json!({"clusterIP": "None"}));
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    assert_eq!(headless["spec"]["ipFamilyPolicy"], "RequireDualStack", "nobody knows what stands behind it");
    let name = made(&mut client, "name", json!({"type": "ExternalName", "externalName": "a.b"}));
    assert_eq!(name["spec"]["clusterIP"], Value::Null);
    assert_eq!(taken(&mut client).len(), 1, "that of the server itself");
}

#[test]
fn a_type_takes_and_gives_back_what_it_needs() {
    let server = Server::with(&[SMALL]);
    let mut client = server.admin();
    let mut object = made(&mut client, "s", json!({"type": "NodePort"}));
    let (address, port) = (text(&object, "/spec/clusterIP").to_owned(), node_port(&object));
    assert!((30_000..=32_767).contains(&port), "{object}");
    let message =
        refusal(&mut client, "t", json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]}));
    let wanted = format!("spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated");
    assert!(message.ends_with(&wanted), "{message}");
    let message =
        refusal(&mut client, "t", json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 80}]}));
    assert!(
        message.ends_with(
            "Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767"
        ),
        "{message}"
    );

    // The same body again, without what the server filled in.
    let again = client.put(&path("s"), &service("s", json!({"type": "NodePort"}))).ok();
    assert_eq!(again["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"]);

    object["spec"]["type"] = json!("ClusterIP");
    object = client.put(&path("s"), &object).ok();
    assert_eq!((node_port(&object), text(&object, "/spec/clusterIP")), (0, address.as_str()));
    made(&mut client, "u", json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]}));

    object["spec"]["type"] = json!("ExternalName");
    object["spec"]["externalName"] = json!("a.b");
    object = client.put(&path("s"), &object).ok();
    assert_eq!(object["spec"]["clusterIP"], Value::Null);
    assert!(!taken(&mut client).contains(&address));

    object["spec"] =
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    object = client.put(&path("s"), &object).ok();
    let health = object["spec"]["healthCheckNodePort"].as_i64().unwrap_or(0);
    assert!(health >= 30_000 && node_port(&object) >= 30_000 && health != node_port(&object), "{object}");
    let busy = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": health}]});
    refusal(&mut client, "v", busy.clone());
    object["spec"]["externalTrafficPolicy"] = json!("Cluster");
    object = client.put(&path("s"), &object).ok();
    assert_eq!(object["spec"]["healthCheckNodePort"], Value::Null);
    made(&mut client, "v", busy);

    let silent = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false});
    assert_eq!(node_port(&made(&mut client, "w", silent)), 0);
    let both = json!({"type": "NodePort", "ports": [
        {"name": "a", "port": 53, "protocol": "TCP"}, {"name": "b", "port": 53, "protocol": "UDP"}]});
    let both = made(&mut client, "x", both);
    assert_eq!(both["spec"]["ports"][0]["nodePort"], both["spec"]["ports"][1]["nodePort"]);
}

#[test]
fn a_dry_run_takes_nothing() {
    let server = Server::with(&[SMALL]);
    let mut client = server.admin();
    let before = taken(&mut client);
    let tried =
        client.post(&format!("{SERVICES}?dryRun=All"), &service("s", json!({"type": "NodePort"}))).ok();
    assert_eq!(node_port(&tried), 32_769, "a port that nobody can have");
    assert!(!text(&tried, "/spec/clusterIP").is_empty());
    assert_eq!(taken(&mut client), before);
    let real = made(&mut client, "s", json!({"clusterIP": "10.77.0.20"}));
    let mut gone = real;
    gone["spec"]["type"] = json!("ExternalName");
    gone["spec"]["externalName"] = json!("a.b");
    client.put(&format!("{}?dryRun=All", path("s")), &gone).ok();
    client.delete(&format!("{}?dryRun=All", path("s"))).ok();
    assert!(taken(&mut client).contains("10.77.0.20"));
}

#[test]
fn what_is_taken_stays_taken_over_a_restart() {
    let folder = directory();
    let data = folder.path().join("data");
    let server = Server::on(&data, &[SMALL]);
    let mut client = server.admin();
    let ports = json!([{"port": 1, "nodePort": 30_500}]);
    made(&mut client, "s", json!({"type": "NodePort", "clusterIP": "10.77.0.30", "ports": ports}));
    // As after a crash: an address whose service was never stored, and a service whose address was lost.
    let orphan = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": "10.77.0.31", "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "never"}}});
    client.post(ADDRESSES, &orphan).ok();
    made(&mut client, "t", json!({"clusterIP": "10.77.0.32"}));
    client.delete(&format!("{ADDRESSES}/10.77.0.32")).ok();
    server.kill();

    let server = Server::on(&data, &[SMALL]);
    let mut client = server.admin();
    assert_eq!(taken(&mut client), ["10.77.0.1", "10.77.0.30", "10.77.0.32"].map(str::to_owned).into());
    refusal(&mut client, "u", json!({"clusterIP": "10.77.0.30"}));
    refusal(&mut client, "u", json!({"type": "NodePort", "ports": ports}));
    client.delete(&path("s")).ok();
    made(&mut client, "u", json!({"type": "NodePort", "clusterIP": "10.77.0.30", "ports": ports}));
}

/// Another service could have it for minutes.
#[test]
fn an_address_that_somebody_takes_from_a_service_is_taken_again_at_once() {
    let server = Server::with(&[SMALL, "--engine=memory"]);
    let mut client = server.admin();
    made(&mut client, "s", json!({"clusterIP": "10.77.0.40"}));
    let path = format!("{ADDRESSES}/10.77.0.40");
    let first = client.get(&path).ok();
    client.delete(&path).ok();
    let back =
        poll(CAP, || Some(client.get(&path)).filter(|answer| answer.status == 200)).expect("it is back").ok();
    assert_ne!(first["metadata"]["uid"], back["metadata"]["uid"]);
    assert_eq!(first["spec"], back["spec"]);
    assert_eq!(first["metadata"]["labels"], back["metadata"]["labels"]);
    refusal(&mut client, "t", json!({"clusterIP": "10.77.0.40"}));
    // The service itself lets go of it as always.
    client.delete(&self::path("s")).ok();
    made(&mut client, "t", json!({"clusterIP": "10.77.0.40"}));
}

#[test]
fn writers_at_once_never_share() {
    let server =
        Server::with(&["--service-cluster-ip-range=10.77.0.0/26", "--service-node-port-range=30000-30039"]);
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let mut client = server.admin();
            thread::spawn(move || {
                (0..10)
                    .map(|turn| {
                        let name = format!("s-{writer}-{turn}");
                        let object = made(&mut client, &name, json!({"type": "NodePort"}));
                        (text(&object, "/spec/clusterIP").to_owned(), node_port(&object))
                    })
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    let got: Vec<(String, i64)> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    let addresses: BTreeSet<&String> = got.iter().map(|(address, _)| address).collect();
    let ports: BTreeSet<i64> = got.iter().map(|(_, port)| *port).collect();
    assert_eq!((addresses.len(), ports.len()), (40, 40), "{got:?}");
    let mut client = server.admin();
    let full = client.post(SERVICES, &service("more", json!({"type": "NodePort"})));
    let full = full.refused(500, "InternalError");
    assert_eq!(
        text(&full, "/message"),
        "Internal error occurred: failed to allocate a nodePort: range is full"
    );
    for spare in 0..21 {
        made(&mut client, &format!("spare-{spare}"), json!({}));
    }
    let full = client.post(SERVICES, &service("more", json!({}))).refused(500, "InternalError");
    assert_eq!(
        text(&full, "/message"),
        "Internal error occurred: failed to allocate a serviceIP: range is full"
    );
    // All at once, and every address comes back.
    client.request("DELETE", &format!("{SERVICES}?fieldSelector=metadata.name!=kubernetes"), &[], b"").ok();
    assert_eq!(taken(&mut client).len(), 1);
}

#[test]
fn a_cluster_with_two_families_gives_both() {
    let server = Server::with(&["--service-cluster-ip-range=10.77.0.0/24,fd77::/112"]);
    let mut client = server.admin();
    let mut object = made(&mut client, "s", json!({"ipFamilyPolicy": "PreferDualStack"}));
    assert_eq!(object["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    let second = text(&object, "/spec/clusterIPs/1").to_owned();
    assert!(second.starts_with("fd77::"), "{object}");
    assert!(taken(&mut client).contains(&second));
    object["spec"]["ipFamilyPolicy"] = json!("SingleStack");
    object = client.put(&path("s"), &object).ok();
    assert_eq!(object["spec"]["clusterIPs"].as_array().map(Vec::len), Some(1), "{object}");
    assert!(!taken(&mut client).contains(&second));
    object["spec"]["ipFamilyPolicy"] = json!("RequireDualStack");
    object["spec"]["clusterIPs"] = json!([text(&object, "/spec/clusterIP"), "fd77::7"]);
    object = client.put(&path("s"), &object).ok();
    assert_eq!(object["spec"]["clusterIPs"][1], "fd77::7");
    let six = made(&mut client, "six", json!({"ipFamilies": ["IPv6"]}));
    assert!(text(&six, "/spec/clusterIP").starts_with("fd77::"), "{six}");
    let range = client.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").ok();
    assert_eq!(range["spec"]["cidrs"], json!(["10.77.0.0/24", "fd77::/112"]));
    assert_eq!(range["status"]["conditions"][0]["type"], "Ready");
}

#[test]
fn a_range_that_a_client_adds_is_used() {
    let server = Server::with(&[SMALL]);
    let mut client = server.admin();
    refusal(&mut client, "s", json!({"clusterIP": "10.79.0.5"}));
    let range = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.79.0.0/28"]}});
    client.post("/apis/networking.k8s.io/v1/servicecidrs", &range).ok();
    made(&mut client, "s", json!({"clusterIP": "10.79.0.5"}));
}

#[test]
fn a_default_range_that_is_being_deleted_gives_no_addresses() {
    const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";
    let server = Server::with(&[SMALL]);
    let mut client = server.admin();
    let default = format!("{RANGES}/kubernetes");
    let mut range = client.get(&default).ok();
    range["metadata"]["finalizers"] = json!(["example.com/addresses-in-use"]);
    client.put(&default, &range).ok();
    let more = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.79.0.0/28"]}});
    client.post(RANGES, &more).ok();
    client.delete(&default);
    for name in ["a", "b", "c"] {
        let moved = made(&mut client, name, json!({}));
        assert!(text(&moved, "/spec/clusterIP").starts_with("10.79.0."), "{moved}");
    }
    refusal(&mut client, "chosen", json!({"clusterIP": "10.77.0.5"}));
}

#[test]
fn the_cluster_finds_its_server() {
    let server = Server::with(&[SMALL]);
    let mut client = server.admin();
    let own = client.get(&path("kubernetes")).ok();
    assert_eq!(own["spec"]["clusterIP"], "10.77.0.1");
    assert_eq!(own["metadata"]["labels"], json!({"component": "apiserver", "provider": "kubernetes"}));
    let port = server.address().port();
    let ports = json!([{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}]);
    assert_eq!(own["spec"]["ports"], ports);
    assert_eq!(own["spec"]["sessionAffinity"], "None");
    let endpoints = client.get("/api/v1/namespaces/default/endpoints/kubernetes");
    if endpoints.status == 200 {
        assert_eq!(endpoints.json()["subsets"][0]["ports"][0]["port"], port);
        let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        let slice = client.get(&format!("{slices}/kubernetes")).ok();
        assert_eq!(
            slice["endpoints"][0]["addresses"][0],
            endpoints.json()["subsets"][0]["addresses"][0]["ip"]
        );
    }
    // It comes back, with the same address.
    client.delete(&path("kubernetes")).ok();
    let back = poll(CAP, || Some(client.get(&path("kubernetes"))).filter(|answer| answer.status == 200));
    assert_eq!(back.expect("the service is made anew").json()["spec"]["clusterIP"], "10.77.0.1");
}

#[test]
fn a_client_that_hangs_up_leaves_nothing_taken() {
    let server = Server::with(&["--service-cluster-ip-range=10.77.0.0/26"]);
    let client = server.admin();
    for turn in 0..30 {
        let body = service(&format!("s{turn}"), json!({"type": "NodePort"})).to_string();
        let head = client.head("POST", SERVICES, &[("Content-Type", "application/json")]);
        let mut connection = client.raw();
        connection.send(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
        drop(connection);
    }
    // What was stored has its address, and no other address is taken.
    let mut client = server.admin();
    let agree = poll(CAP, || {
        let list = client.get(SERVICES).ok();
        let said: BTreeSet<String> =
            list["items"].as_array()?.iter().map(|item| text(item, "/spec/clusterIP").to_owned()).collect();
        (said == taken(&mut client)).then_some(said.len())
    });
    assert!(agree.is_some(), "{:?}", taken(&mut client));
}

fn endpoints(client: &mut Client, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": name}});
    client.post(ENDPOINTS, &object).ok();
}

fn has_endpoints(client: &mut Client, name: &str) -> bool {
    client.get(&format!("{ENDPOINTS}/{name}")).status == 200
}

#[test]
fn endpoints_go_with_their_service_and_only_then() {
    let server = Server::with(&[SMALL]);
    let mut client = server.admin();
    // A service that was never stored takes nothing of that name with it.
    endpoints(&mut client, "refused");
    refusal(&mut client, "refused", json!({"ports": [{"name": "Bad!", "port": 1}]}));
    refusal(&mut client, "refused", json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 80}]}));
    assert!(has_endpoints(&mut client, "refused"));

    let table = [
        ("plain", json!({})),
        ("headless", json!({"clusterIP": "None"})),
        ("name", json!({"type": "ExternalName", "externalName": "a.b"})),
    ];
    for (name, spec) in table {
        endpoints(&mut client, name);
        let mut object = made(&mut client, name, spec.clone());
        object["spec"]["sessionAffinity"] = json!("Sometimes");
        client.put(&path(name), &object).refused(422, "Invalid");
        assert!(has_endpoints(&mut client, name), "{name} is still there");
        client.delete(&format!("{}?dryRun=All", path(name))).ok();
        assert!(has_endpoints(&mut client, name), "{name} is still there");
        client.delete(&path(name)).ok();
        assert!(!has_endpoints(&mut client, name), "{name} is gone");

        // The same when the last finalizer goes.
        endpoints(&mut client, name);
        let mut object = service(name, spec);
        object["metadata"]["finalizers"] = json!(["a.b/c"]);
        client.post(SERVICES, &object).ok();
        object = client.delete(&path(name)).ok();
        assert!(has_endpoints(&mut client, name), "{name} waits for its finalizer");
        object["metadata"]["finalizers"] = json!([]);
        client.put(&path(name), &object).ok();
        assert!(!has_endpoints(&mut client, name), "{name} is gone");
    }
}

#[test]
fn a_write_that_lets_a_service_go_keeps_nothing_of_what_it_took() {
    let server = Server::with(&[SMALL]);
    let mut client = server.admin();
    let mut object = service("s", json!({"type": "ExternalName", "externalName": "a.b"}));
    object["metadata"]["finalizers"] = json!(["a.b/c"]);
    client.post(SERVICES, &object).ok();
    object = client.delete(&path("s")).ok();
    let before = taken(&mut client);
    let wanted =
        json!({"type": "NodePort", "clusterIP": "10.77.0.40", "ports": [{"port": 1, "nodePort": 30_600}]});
    object["metadata"]["finalizers"] = json!([]);
    object["spec"] = wanted.clone();
    client.put(&path("s"), &object).ok();
    client.get(&path("s")).refused(404, "NotFound");
    assert_eq!(taken(&mut client), before);
    made(&mut client, "t", wanted);
}
