//! Node ports and cluster IPs of several servers, by the records that they share with servers of the reference.

mod late_removals;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_etcd::messages::{KeyValue, PutRequest, RangeRequest};
use pilothouse_etcd_layout::range_allocation::RangeAllocation;
use pilothouse_etcd_layout::values::{ValueCodec, ValueOptions};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::Replicas;
use crate::support::client::{Client, Response};
use crate::support::wait::{TIMEOUT, poll};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const NODE_PORTS: &str = "/registry/ranges/servicenodeports";
const CLUSTER_IPS: &str = "/registry/ranges/serviceips";
const RANGE: &str = "30000-32767";
const ADDRESSES: &str = "--service-cluster-ip-range=10.96.0.0/16";
const TAKEN: &str = "provided port is already allocated";

/// The records as they are in etcd.
struct Records<'a> {
    replicas: &'a Replicas,
    codec: ValueCodec,
    runtime: Runtime,
}

impl Records<'_> {
    fn new(replicas: &Replicas) -> Records<'_> {
        let registry = Arc::new(Registry::builtin().unwrap());
        let codec =
            ValueCodec::new(registry, ValueOptions::default(), EnabledFeatures::new(|_| false, false));
        Records { replicas, codec, runtime: Builder::new_current_thread().enable_all().build().unwrap() }
    }

    fn entry(&self, key: &str) -> Option<KeyValue> {
        let request = RangeRequest::key(key.to_owned());
        let read = async { self.replicas.etcd.client().range(request).await };
        self.runtime.block_on(read).unwrap().kvs.into_iter().next()
    }

    fn read(&self, key: &str) -> RangeAllocation {
        RangeAllocation::decode(&self.codec, &self.entry(key).expect("a record").value).unwrap()
    }

    fn ports(&self) -> BTreeSet<u64> {
        let record = self.read(NODE_PORTS);
        assert_eq!(record.range, RANGE);
        record.allocated.iter().map(|item| 30_000 + item as u64).collect()
    }

    /// Writes a record as a server of the reference does.
    fn write(&self, key: &str, range: &str, number: &[u8]) {
        let put = PutRequest::new(key.to_owned(), reference_record(range, number));
        self.runtime.block_on(async { self.replicas.etcd.client().put(put).await }).unwrap();
    }
}

/// The bytes of a RangeAllocation: the envelope, and a message with empty metadata, the range and the number.
fn reference_record(range: &str, number: &[u8]) -> Vec<u8> {
    let field = |tag: u8, bytes: &[u8]| {
        let mut length = bytes.len();
        let mut field = vec![tag];
        while length >= 0x80 {
            field.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        field.push(u8::try_from(length).unwrap());
        [&field[..], bytes].concat()
    };
    let metadata = [0x0a, 0, 0x12, 0, 0x1a, 0, 0x22, 0, 0x2a, 0, 0x32, 0, 0x38, 0, 0x42, 0];
    let message = [field(0x0a, &metadata), field(0x12, range.as_bytes()), field(0x1a, number)].concat();
    let kind = [field(0x0a, b"v1"), field(0x12, b"RangeAllocation")].concat();
    let unknown = [field(0x0a, &kind), field(0x12, &message), field(0x1a, b""), field(0x22, b"")].concat();
    [&b"k8s\0"[..], &unknown].concat()
}

/// The number in which one item is taken.
fn number(item: usize) -> Vec<u8> {
    let mut bytes = vec![0; item / 8 + 1];
    bytes[0] = 1 << (item % 8);
    bytes
}

fn service(name: &str, node_ports: &[Option<u64>]) -> Value {
    let entries = node_ports.iter().enumerate().map(|(index, node_port)| {
        let mut entry = json!({"name": format!("p{index}"), "port": 80 + index});
        if let Some(node_port) = node_port {
            entry["nodePort"] = json!(node_port);
        }
        entry
    });
    let ports: Vec<Value> = entries.collect();
    json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "selector": {"a": "b"}, "ports": ports}})
}

/// A Service that gets a port for health checks, too.
fn local_service(name: &str) -> Value {
    let mut service = service(name, &[None]);
    service["spec"]["type"] = json!("LoadBalancer");
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    service
}

fn ports_of(service: &Value) -> Vec<u64> {
    let spec = &service["spec"];
    let entries = spec["ports"].as_array().unwrap().iter().map(|entry| &entry["nodePort"]);
    entries.chain([&spec["healthCheckNodePort"]]).filter_map(Value::as_u64).collect()
}

fn refused_as_taken(response: &Response) -> bool {
    response.status == 422 && response.text().contains(TAKEN)
}

/// Creates Services and returns their ports. Explicit ports may be refused, because all ask for the same.
fn create_many(admin: &mut Client, worker: usize) -> Vec<Value> {
    const EACH: usize = 12;
    let mut created = Vec::new();
    for number in 0..EACH {
        let name = format!("s{worker}-{number}");
        let automatic = if number % 4 == 0 { local_service(&name) } else { service(&name, &[None, None]) };
        created.push(admin.post(SERVICES, &automatic).ok());
        let explicit = service(&format!("x{worker}-{number}"), &[Some(30_000 + number as u64)]);
        let response = admin.post(SERVICES, &explicit);
        if !refused_as_taken(&response) {
            created.push(response.ok());
        }
    }
    created
}

#[test]
fn no_port_is_given_twice_by_servers_that_share_etcd() {
    const WORKERS: usize = 16;
    let replicas = Replicas::new(1);
    let records = Records::new(&replicas);
    let servers = ["one", "other"].map(|name| replicas.start_with(name, &[ADDRESSES]));
    let created: Vec<Value> = thread::scope(|scope| {
        let workers = (0..WORKERS).map(|worker| {
            let mut admin = servers[worker % 2].admin();
            scope.spawn(move || create_many(&mut admin, worker))
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(created.len(), WORKERS * 12 + 12, "each explicit port is given once");
    let mut ports: Vec<u64> = created.iter().flat_map(ports_of).collect();
    let all: BTreeSet<u64> = ports.iter().copied().collect();
    ports.sort_unstable();
    assert_eq!(ports, all.iter().copied().collect::<Vec<_>>(), "no port twice");
    assert_eq!(records.ports(), all);
    let addresses = created.iter().map(|service| service["spec"]["clusterIP"].as_str().unwrap());
    // That of the Service `kubernetes`, which may not be there yet, is beside them.
    assert!(records.read(CLUSTER_IPS).allocated.len() >= addresses.collect::<BTreeSet<_>>().len());

    // What is released is given again, by either server.
    let mut admins = servers.each_ref().map(|server| server.admin());
    for (number, service) in created.iter().enumerate() {
        let name = service["metadata"]["name"].as_str().unwrap();
        admins[number % 2].delete(&format!("{SERVICES}/{name}")).ok();
    }
    poll(TIMEOUT, || records.ports().is_empty().then_some(())).expect("all are released");
    for (number, admin) in admins.iter_mut().enumerate() {
        let again = service(&format!("again{number}"), &[Some(30_000 + number as u64)]);
        admin.post(SERVICES, &again).ok();
    }
    assert_eq!(records.ports(), [30_000, 30_001].into());
}

#[test]
fn record_of_another_server_is_respected() {
    let replicas = Replicas::new(1);
    let records = Records::new(&replicas);
    let server = replicas.start_with("one", &[ADDRESSES]);
    let mut admin = server.admin();
    assert_eq!(records.ports(), [].into(), "it is made at the start");
    records.write(NODE_PORTS, RANGE, &number(5));
    records.write(CLUSTER_IPS, "10.96.0.0/16", &number(9));
    let before = records.entry(NODE_PORTS).unwrap();

    let taken = service("taken", &[Some(30_005)]);
    let refusal = admin.post(SERVICES, &taken).expect_error(422, "Invalid");
    let field = "spec.ports[0].nodePort: Invalid value: 30005";
    assert!(refusal["message"].as_str().unwrap().contains(&format!("{field}: {TAKEN}")), "{refusal}");
    assert!(refused_as_taken(&admin.post(&format!("{SERVICES}?dryRun=All"), &taken)));
    admin.post(&format!("{SERVICES}?dryRun=All"), &service("dry", &[Some(30_006), None])).ok();
    let mut headless = service("a", &[]);
    headless["spec"] = json!({"clusterIP": "10.96.0.10", "ports": [{"port": 80}]});
    let refusal = admin.post(SERVICES, &headless).expect_error(422, "Invalid");
    assert!(refusal["message"].as_str().unwrap().contains("provided IP is already allocated"), "{refusal}");
    assert_eq!(records.entry(NODE_PORTS).unwrap(), before, "what was refused or tried has changed nothing");

    let created = admin.post(SERVICES, &service("given", &[Some(30_006), None])).ok();
    let given: BTreeSet<u64> = ports_of(&created).into_iter().collect();
    assert_eq!(records.ports(), given.union(&[30_005].into()).copied().collect());
    // What another server has released can be given here.
    records.write(NODE_PORTS, RANGE, &number(6));
    admin.post(SERVICES, &taken).ok();

    // A record of other flags is not used, until a server with these starts.
    records.write(NODE_PORTS, "20000-20100", &number(6));
    let refusal = admin.post(SERVICES, &service("b", &[Some(30_007)])).expect_error(422, "Invalid");
    let other_range = "the provided range does not match the current range";
    assert!(refusal["message"].as_str().unwrap().contains(other_range), "{refusal}");
    admin.post(SERVICES, &service("b", &[None])).expect_error(500, "InternalError");
    server.stop();
    let server = replicas.start_with("one", &[ADDRESSES]);
    assert_eq!(records.ports(), given.union(&[30_005].into()).copied().collect());
    server.admin().post(SERVICES, &service("b", &[Some(30_007)])).ok();
}

/// As with the gate of the reference.
#[test]
fn records_of_cluster_ips_are_not_kept_if_a_gate_says_so() {
    let replicas = Replicas::new(1);
    let records = Records::new(&replicas);
    let server = replicas.start_with("one", &["--feature-gates=DisableAllocatorDualWrite=true"]);
    server.admin().post(SERVICES, &service("a", &[None])).ok();
    assert_eq!(records.entry(CLUSTER_IPS), None);
    assert_eq!(records.ports().len(), 1);
}

#[test]
fn outage_of_etcd_refuses_services_cleanly() {
    let replicas = Replicas::new(1);
    let records = Records::new(&replicas);
    let server = replicas.start("one");
    let mut admin = server.admin();
    admin.post(SERVICES, &service("a", &[Some(30_001)])).ok();
    replicas.etcd.members[0].pause();
    let refused = admin.post(SERVICES, &service("b", &[Some(30_002)]));
    replicas.etcd.members[0].resume();
    assert!(matches!(refused.status, 503 | 504), "{}", refused.text());
    let again = || (admin.post(SERVICES, &service("c", &[Some(30_003)])).status == 201).then_some(());
    poll(TIMEOUT, again).expect("it goes on by itself");
    assert!(records.ports().is_superset(&[30_001, 30_003].into()), "{:?}", records.ports());
}
