//! Cluster IPs and node ports of services: allocation, refusal, release, and repair after a restart.

use std::collections::BTreeSet;
use std::thread;

use serde_json::{Value, json};

use crate::support::compare::text;
use crate::support::etcd;
use crate::support::server::temp_directory;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

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

fn create_service(client: &mut Client, name: &str, spec: Value) -> Value {
    client.post(SERVICES, &service(name, spec)).ok()
}

fn create_error(client: &mut Client, name: &str, spec: Value) -> String {
    text(&client.post(SERVICES, &service(name, spec)).expect_error(422, "Invalid"), "/message").to_owned()
}

fn service_path(name: &str) -> String {
    format!("{SERVICES}/{name}")
}

/// The names of all allocated IP addresses.
fn allocated_ips(client: &mut Client) -> BTreeSet<String> {
    let list = client.get(ADDRESSES).ok();
    list["items"].as_array().unwrap().iter().map(|item| text(item, "/metadata/name").to_owned()).collect()
}

fn node_port(service: &Value) -> i64 {
    service["spec"]["ports"][0]["nodePort"].as_i64().unwrap_or(0)
}

#[test]
fn cluster_ip_is_allocated_and_released_with_service() {
    let server = Server::with_flags(&[SMALL]);
    let mut client = server.admin();
    let service_object = create_service(&mut client, "one", json!({}));
    let address = text(&service_object, "/spec/clusterIP").to_owned();
    assert!(address.starts_with("10.77.0."), "{service_object}");
    assert_eq!(service_object["spec"]["clusterIPs"], json!([address]));
    assert_eq!(service_object["spec"]["ipFamilies"], json!(["IPv4"]));
    assert_eq!(service_object["spec"]["ipFamilyPolicy"], "SingleStack");

    let object = client.get(&format!("{ADDRESSES}/{address}")).ok();
    let parent = json!({"resource": "services", "namespace": "default", "name": "one"});
    assert_eq!(object["spec"]["parentRef"], parent);
    assert_eq!(object["metadata"]["labels"]["ipaddress.kubernetes.io/managed-by"], "ipallocator.k8s.io");
    assert_eq!(object["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"], "IPv4");

    let message = create_error(&mut client, "two", json!({"clusterIP": address}));
    let expected = format!(
        "Service \"two\" is invalid: spec.clusterIPs: Invalid value: []string{{\"{address}\"}}: failed to allocate IP \
         {address}: provided IP is already allocated"
    );
    assert_eq!(message, expected);
    let message = create_error(&mut client, "two", json!({"clusterIP": "10.78.0.1"}));
    assert!(message.ends_with("the provided network does not match the current range"), "{message}");
    // A service that is refused for another reason leaves no address behind.
    create_error(&mut client, "two", json!({"clusterIP": "10.77.0.9", "sessionAffinity": "Sometimes"}));
    create_service(&mut client, "two", json!({"clusterIP": "10.77.0.9"}));
    client.post(SERVICES, &service("two", json!({}))).expect_error(409, "AlreadyExists");
    assert_eq!(
        allocated_ips(&mut client),
        [address.as_str(), "10.77.0.1", "10.77.0.9"].map(str::to_owned).into()
    );

    client.delete(&service_path("one")).ok();
    assert!(!allocated_ips(&mut client).contains(&address));
    create_service(&mut client, "three", json!({"clusterIP": address}));
}

#[test]
fn headless_and_external_name_services_allocate_no_ip() {
    let server = Server::with_flags(&[SMALL]);
    let mut client = server.admin();
    let headless = create_service(&mut client, "headless", json!({"clusterIP": "None"}));
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    assert_eq!(
        headless["spec"]["ipFamilyPolicy"], "RequireDualStack",
        "the endpoints of a headless service may have both families"
    );
    let name = create_service(&mut client, "name", json!({"type": "ExternalName", "externalName": "a.b"}));
    assert_eq!(name["spec"]["clusterIP"], Value::Null);
    assert_eq!(allocated_ips(&mut client).len(), 1, "only the address of the kubernetes service");
}

#[test]
fn service_type_change_allocates_and_releases_ports() {
    let server = Server::with_flags(&[SMALL]);
    let mut client = server.admin();
    let mut object = create_service(&mut client, "s", json!({"type": "NodePort"}));
    let (address, port) = (text(&object, "/spec/clusterIP").to_owned(), node_port(&object));
    assert!((30_000..=32_767).contains(&port), "{object}");
    let message =
        create_error(&mut client, "t", json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]}));
    let expected =
        format!("spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated");
    assert!(message.ends_with(&expected), "{message}");
    let message =
        create_error(&mut client, "t", json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 80}]}));
    assert!(
        message.ends_with(
            "Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767"
        ),
        "{message}"
    );

    // The same spec without the allocated fields changes nothing.
    let unchanged = client.put(&service_path("s"), &service("s", json!({"type": "NodePort"}))).ok();
    assert_eq!(unchanged["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"]);

    object["spec"]["type"] = json!("ClusterIP");
    object = client.put(&service_path("s"), &object).ok();
    assert_eq!((node_port(&object), text(&object, "/spec/clusterIP")), (0, address.as_str()));
    create_service(&mut client, "u", json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]}));

    object["spec"]["type"] = json!("ExternalName");
    object["spec"]["externalName"] = json!("a.b");
    object = client.put(&service_path("s"), &object).ok();
    assert_eq!(object["spec"]["clusterIP"], Value::Null);
    assert!(!allocated_ips(&mut client).contains(&address));

    object["spec"] =
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    object = client.put(&service_path("s"), &object).ok();
    let health = object["spec"]["healthCheckNodePort"].as_i64().unwrap_or(0);
    assert!(health >= 30_000 && node_port(&object) >= 30_000 && health != node_port(&object), "{object}");
    let node_port_spec = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": health}]});
    create_error(&mut client, "v", node_port_spec.clone());
    object["spec"]["externalTrafficPolicy"] = json!("Cluster");
    object = client.put(&service_path("s"), &object).ok();
    assert_eq!(object["spec"]["healthCheckNodePort"], Value::Null);
    create_service(&mut client, "v", node_port_spec);

    let without_node_ports = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false});
    assert_eq!(node_port(&create_service(&mut client, "w", without_node_ports)), 0);
    let services_object = json!({"type": "NodePort", "ports": [
        {"name": "a", "port": 53, "protocol": "TCP"}, {"name": "b", "port": 53, "protocol": "UDP"}]});
    let services_object = create_service(&mut client, "x", services_object);
    assert_eq!(
        services_object["spec"]["ports"][0]["nodePort"],
        services_object["spec"]["ports"][1]["nodePort"]
    );
}

#[test]
fn dry_run_allocates_nothing() {
    let server = Server::with_flags(&[SMALL]);
    let mut client = server.admin();
    let before = allocated_ips(&mut client);
    let dry_run =
        client.post(&format!("{SERVICES}?dryRun=All"), &service("s", json!({"type": "NodePort"}))).ok();
    assert_eq!(node_port(&dry_run), 32_769, "a port outside of the range");
    assert!(!text(&dry_run, "/spec/clusterIP").is_empty());
    assert_eq!(allocated_ips(&mut client), before);
    let real = create_service(&mut client, "s", json!({"clusterIP": "10.77.0.20"}));
    let mut external_name = real;
    external_name["spec"]["type"] = json!("ExternalName");
    external_name["spec"]["externalName"] = json!("a.b");
    client.put(&format!("{}?dryRun=All", service_path("s")), &external_name).ok();
    client.delete(&format!("{}?dryRun=All", service_path("s"))).ok();
    assert!(allocated_ips(&mut client).contains("10.77.0.20"));
}

#[test]
fn allocations_are_repaired_on_restart() {
    let folder = temp_directory();
    let data = folder.path().join("data");
    let server = Server::start_in(&data, &[SMALL]);
    let mut client = server.admin();
    let ports = json!([{"port": 1, "nodePort": 30_500}]);
    create_service(&mut client, "s", json!({"type": "NodePort", "clusterIP": "10.77.0.30", "ports": ports}));
    // As after a crash: an address without its service, and a service without its address.
    let orphan = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": "10.77.0.31", "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "never"}}});
    client.post(ADDRESSES, &orphan).ok();
    create_service(&mut client, "t", json!({"clusterIP": "10.77.0.32"}));
    client.delete(&format!("{ADDRESSES}/10.77.0.32")).ok();
    server.kill();

    let server = Server::start_in(&data, &[SMALL]);
    let mut client = server.admin();
    let mut expected: BTreeSet<String> = ["10.77.0.1", "10.77.0.30", "10.77.0.32"].map(str::to_owned).into();
    if etcd::is_used() {
        // Another server might be about to store its service. A later check removes it.
        expected.insert("10.77.0.31".to_owned());
    }
    assert_eq!(allocated_ips(&mut client), expected);
    create_error(&mut client, "u", json!({"clusterIP": "10.77.0.30"}));
    create_error(&mut client, "u", json!({"type": "NodePort", "ports": ports}));
    client.delete(&service_path("s")).ok();
    create_service(&mut client, "u", json!({"type": "NodePort", "clusterIP": "10.77.0.30", "ports": ports}));
}

/// Another service could allocate the address for minutes.
#[test]
fn deleted_ip_address_of_service_is_restored() {
    let server = Server::with_flags(&[SMALL, "--engine=memory"]);
    let mut client = server.admin();
    create_service(&mut client, "s", json!({"clusterIP": "10.77.0.40"}));
    let path = format!("{ADDRESSES}/10.77.0.40");
    let first = client.get(&path).ok();
    client.delete(&path).ok();
    let restored = poll(TIMEOUT, || Some(client.get(&path)).filter(|response| response.status == 200))
        .expect("it is back")
        .ok();
    assert_ne!(first["metadata"]["uid"], restored["metadata"]["uid"]);
    assert_eq!(first["spec"], restored["spec"]);
    assert_eq!(first["metadata"]["labels"], restored["metadata"]["labels"]);
    create_error(&mut client, "t", json!({"clusterIP": "10.77.0.40"}));
    // Deleting the service releases it.
    client.delete(&self::service_path("s")).ok();
    create_service(&mut client, "t", json!({"clusterIP": "10.77.0.40"}));
}

#[test]
fn concurrent_services_never_share_allocations() {
    let server = Server::with_flags(&[
        "--service-cluster-ip-range=10.77.0.0/26",
        "--service-node-port-range=30000-30039",
    ]);
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let mut client = server.admin();
            thread::spawn(move || {
                (0..10)
                    .map(|number| {
                        let name = format!("s-{writer}-{number}");
                        let object = create_service(&mut client, &name, json!({"type": "NodePort"}));
                        (text(&object, "/spec/clusterIP").to_owned(), node_port(&object))
                    })
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    let allocations: Vec<(String, i64)> =
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    let addresses: BTreeSet<&String> = allocations.iter().map(|(address, _)| address).collect();
    let ports: BTreeSet<i64> = allocations.iter().map(|(_, port)| *port).collect();
    assert_eq!((addresses.len(), ports.len()), (40, 40), "{allocations:?}");
    let mut client = server.admin();
    let status = client.post(SERVICES, &service("more", json!({"type": "NodePort"})));
    let status = status.expect_error(500, "InternalError");
    assert_eq!(
        text(&status, "/message"),
        "Internal error occurred: failed to allocate a nodePort: range is full"
    );
    for number in 0..21 {
        create_service(&mut client, &format!("spare-{number}"), json!({}));
    }
    let status = client.post(SERVICES, &service("more", json!({}))).expect_error(500, "InternalError");
    assert_eq!(
        text(&status, "/message"),
        "Internal error occurred: failed to allocate a serviceIP: range is full"
    );
    // A collection delete releases every address.
    client.request("DELETE", &format!("{SERVICES}?fieldSelector=metadata.name!=kubernetes"), &[], b"").ok();
    assert_eq!(allocated_ips(&mut client).len(), 1);
}

#[test]
fn dual_stack_service_gets_both_families() {
    let server = Server::with_flags(&["--service-cluster-ip-range=10.77.0.0/24,fd77::/112"]);
    let mut client = server.admin();
    let mut object = create_service(&mut client, "s", json!({"ipFamilyPolicy": "PreferDualStack"}));
    assert_eq!(object["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    let second = text(&object, "/spec/clusterIPs/1").to_owned();
    assert!(second.starts_with("fd77::"), "{object}");
    assert!(allocated_ips(&mut client).contains(&second));
    object["spec"]["ipFamilyPolicy"] = json!("SingleStack");
    object = client.put(&service_path("s"), &object).ok();
    assert_eq!(object["spec"]["clusterIPs"].as_array().map(Vec::len), Some(1), "{object}");
    assert!(!allocated_ips(&mut client).contains(&second));
    object["spec"]["ipFamilyPolicy"] = json!("RequireDualStack");
    object["spec"]["clusterIPs"] = json!([text(&object, "/spec/clusterIP"), "fd77::7"]);
    object = client.put(&service_path("s"), &object).ok();
    assert_eq!(object["spec"]["clusterIPs"][1], "fd77::7");
    let ipv6_service = create_service(&mut client, "six", json!({"ipFamilies": ["IPv6"]}));
    assert!(text(&ipv6_service, "/spec/clusterIP").starts_with("fd77::"), "{ipv6_service}");
    let range = client.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").ok();
    assert_eq!(range["spec"]["cidrs"], json!(["10.77.0.0/24", "fd77::/112"]));
    assert_eq!(range["status"]["conditions"][0]["type"], "Ready");
}

#[test]
fn added_service_cidr_is_used() {
    let server = Server::with_flags(&[SMALL]);
    let mut client = server.admin();
    create_error(&mut client, "s", json!({"clusterIP": "10.79.0.5"}));
    let range = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.79.0.0/28"]}});
    client.post("/apis/networking.k8s.io/v1/servicecidrs", &range).ok();
    create_service(&mut client, "s", json!({"clusterIP": "10.79.0.5"}));
}

#[test]
fn terminating_service_cidr_allocates_nothing() {
    const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";
    let server = Server::with_flags(&[SMALL]);
    let mut client = server.admin();
    let default = format!("{RANGES}/kubernetes");
    let mut range = client.get(&default).ok();
    range["metadata"]["finalizers"] = json!(["example.com/addresses-in-use"]);
    client.put(&default, &range).ok();
    let service_cidr = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.79.0.0/28"]}});
    client.post(RANGES, &service_cidr).ok();
    client.delete(&default);
    for name in ["a", "b", "c"] {
        let service_object = create_service(&mut client, name, json!({}));
        assert!(text(&service_object, "/spec/clusterIP").starts_with("10.79.0."), "{service_object}");
    }
    create_error(&mut client, "chosen", json!({"clusterIP": "10.77.0.5"}));
}

#[test]
fn kubernetes_service_and_endpoints_point_to_server() {
    let server = Server::with_flags(&[SMALL]);
    let mut client = server.admin();
    let kubernetes_service = client.get(&service_path("kubernetes")).ok();
    assert_eq!(kubernetes_service["spec"]["clusterIP"], "10.77.0.1");
    assert_eq!(
        kubernetes_service["metadata"]["labels"],
        json!({"component": "apiserver", "provider": "kubernetes"})
    );
    let port = server.address().port();
    let ports = json!([{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}]);
    assert_eq!(kubernetes_service["spec"]["ports"], ports);
    assert_eq!(kubernetes_service["spec"]["sessionAffinity"], "None");
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
    // The service is restored with the same address.
    client.delete(&service_path("kubernetes")).ok();
    let restored = poll(TIMEOUT, || {
        Some(client.get(&service_path("kubernetes"))).filter(|response| response.status == 200)
    });
    assert_eq!(restored.expect("the service is made anew").json()["spec"]["clusterIP"], "10.77.0.1");
}

#[test]
fn disconnected_create_leaks_no_allocation() {
    let server = Server::with_flags(&["--service-cluster-ip-range=10.77.0.0/26"]);
    let client = server.admin();
    for number in 0..30 {
        let body = service(&format!("s{number}"), json!({"type": "NodePort"})).to_string();
        let head = client.head("POST", SERVICES, &[("Content-Type", "application/json")]);
        let mut connection = client.raw();
        connection.send(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
        drop(connection);
    }
    // Stored services have their addresses, and no other address is allocated.
    let mut client = server.admin();
    let is_consistent = poll(TIMEOUT, || {
        let list = client.get(SERVICES).ok();
        let cluster_ips: BTreeSet<String> =
            list["items"].as_array()?.iter().map(|item| text(item, "/spec/clusterIP").to_owned()).collect();
        (cluster_ips == allocated_ips(&mut client)).then_some(cluster_ips.len())
    });
    assert!(is_consistent.is_some(), "{:?}", allocated_ips(&mut client));
}

fn create_endpoints(client: &mut Client, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": name}});
    client.post(ENDPOINTS, &object).ok();
}

fn has_endpoints(client: &mut Client, name: &str) -> bool {
    client.get(&format!("{ENDPOINTS}/{name}")).status == 200
}

#[test]
fn endpoints_are_deleted_only_with_their_service() {
    let server = Server::with_flags(&[SMALL]);
    let mut client = server.admin();
    // A refused service does not delete endpoints of its name.
    create_endpoints(&mut client, "refused");
    create_error(&mut client, "refused", json!({"ports": [{"name": "Bad!", "port": 1}]}));
    create_error(&mut client, "refused", json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 80}]}));
    assert!(has_endpoints(&mut client, "refused"));

    let table = [
        ("plain", json!({})),
        ("headless", json!({"clusterIP": "None"})),
        ("name", json!({"type": "ExternalName", "externalName": "a.b"})),
    ];
    for (name, spec) in table {
        create_endpoints(&mut client, name);
        let mut object = create_service(&mut client, name, spec.clone());
        object["spec"]["sessionAffinity"] = json!("Sometimes");
        client.put(&service_path(name), &object).expect_error(422, "Invalid");
        assert!(has_endpoints(&mut client, name), "{name} is still there");
        client.delete(&format!("{}?dryRun=All", service_path(name))).ok();
        assert!(has_endpoints(&mut client, name), "{name} is still there");
        client.delete(&service_path(name)).ok();
        assert!(!has_endpoints(&mut client, name), "{name} is gone");

        // The same when the last finalizer is removed.
        create_endpoints(&mut client, name);
        let mut object = service(name, spec);
        object["metadata"]["finalizers"] = json!(["a.b/c"]);
        client.post(SERVICES, &object).ok();
        object = client.delete(&service_path(name)).ok();
        assert!(has_endpoints(&mut client, name), "{name} waits for its finalizer");
        object["metadata"]["finalizers"] = json!([]);
        client.put(&service_path(name), &object).ok();
        assert!(!has_endpoints(&mut client, name), "{name} is gone");
    }
}

#[test]
fn update_that_finalizes_service_keeps_no_allocation() {
    let server = Server::with_flags(&[SMALL]);
    let mut client = server.admin();
    let mut object = service("s", json!({"type": "ExternalName", "externalName": "a.b"}));
    object["metadata"]["finalizers"] = json!(["a.b/c"]);
    client.post(SERVICES, &object).ok();
    object = client.delete(&service_path("s")).ok();
    let before = allocated_ips(&mut client);
    let expected =
        json!({"type": "NodePort", "clusterIP": "10.77.0.40", "ports": [{"port": 1, "nodePort": 30_600}]});
    object["metadata"]["finalizers"] = json!([]);
    object["spec"] = expected.clone();
    client.put(&service_path("s"), &object).ok();
    client.get(&service_path("s")).expect_error(404, "NotFound");
    assert_eq!(allocated_ips(&mut client), before);
    create_service(&mut client, "t", expected);
}

#[test]
fn kubernetes_service_has_the_node_port_of_the_flag_if_it_is_created() {
    let directory = temp_directory();
    let start = |flags: &[&str]| Server::start_in(directory.path(), flags);
    let kubernetes = |server: &Server| server.admin().get(&service_path("kubernetes")).ok();
    let server = start(&["--kubernetes-service-node-port=30443"]);
    let created = kubernetes(&server);
    assert_eq!((&created["spec"]["type"], node_port(&created)), (&json!("NodePort"), 30_443));
    assert!(
        create_error(
            &mut server.admin(),
            "other",
            json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30_443}]})
        )
        .contains("provided port is already allocated")
    );
    server.stop();
    let server = start(&["--kubernetes-service-node-port=30444"]);
    assert_eq!(node_port(&kubernetes(&server)), 30_443, "an existing service is not changed");

    let refused =
        Server::try_start_in(&directory.path().join("other"), &["--kubernetes-service-node-port=99999"]);
    let stderr = refused.err().expect("it is no port").stderr;
    let range = "kubernetes service node port range 30000-32767 doesn't contain 99999";
    assert!(stderr.contains("must be between 0 and 65535, inclusive") && stderr.contains(range), "{stderr}");
}
