//! The records of live servers, in a real etcd.

#![allow(clippy::unwrap_used, reason = "in a test it is how it fails")]

use std::sync::Arc;

use pilothouse_api::catalog::build::Builtin;
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_etcd::messages::{PutRequest, RangeRequest};
use pilothouse_etcd::testing::{Cluster, Options};
use pilothouse_etcd_layout::endpoint_lease::{EndpointLease, Peer};
use pilothouse_etcd_layout::prefix::EtcdPrefix;
use pilothouse_etcd_layout::values::{ValueCodec, ValueOptions};
use pilothouse_etcd_log::{EtcdLog, EtcdLogOptions, PeerEndpoint, Types};
use pilothouse_types::clock::Clock;

fn codec() -> ValueCodec {
    let registry = Arc::new(Registry::builtin().unwrap());
    ValueCodec::new(registry, ValueOptions::default(), EnabledFeatures::RELEASE)
}

fn endpoint(server: &str) -> PeerEndpoint {
    PeerEndpoint { server: server.to_owned(), address: "fd00::1".to_owned(), port: 6443 }
}

#[tokio::test]
async fn server_is_found_while_it_keeps_its_record() {
    let cluster = Cluster::start(Options::default()).await;
    let types = Arc::new(Types::new(EtcdPrefix::default(), &Builtin::load().unwrap()));
    let log = EtcdLog::new(cluster.client(), types, EtcdLogOptions::new(codec(), Clock::system()));
    let (one, other) = (log.peer_leases(endpoint("one")), log.peer_leases(endpoint("other")));
    assert_eq!(other.find("one").await.unwrap(), None);
    one.renew().await.unwrap();
    assert_eq!(other.find("one").await.unwrap(), Some(endpoint("one")));
    assert_eq!(other.find("on").await.unwrap(), None);

    // A renewal writes, because one that changes nothing would not be one for a server of the reference.
    let record = async || {
        let request = RangeRequest::key("/registry/peerserverleases/one");
        let entry = cluster.client().range(request).await.unwrap().kvs.remove(0);
        (EndpointLease::decode(&codec(), &entry.value).unwrap().unwrap().generation, entry.lease)
    };
    let (first, second) = (record().await, one.renew().await.map(|()| record()).unwrap().await);
    assert_eq!((first.0, second.0), (1, 2));
    assert!(first.1 != 0 && second.1 != first.1, "each is under a lease of its own");

    // A record under the key of another server says nothing about it.
    let stray = Peer { server: "stray".to_owned(), port: 1 };
    for lease in [EndpointLease::new("10.0.0.1", Some(stray)), EndpointLease::new("10.0.0.1", None)] {
        let put = PutRequest::new("/registry/peerserverleases/one", lease.encode(&codec()).unwrap());
        cluster.client().put(put).await.unwrap();
        assert_eq!(other.find("one").await.unwrap(), None);
    }
    one.renew().await.unwrap();
    one.remove().await.unwrap();
    assert_eq!(other.find("one").await.unwrap(), None);
    one.remove().await.unwrap();

    // They are no endpoints of the Service.
    other.renew().await.unwrap();
    let endpoints = log.endpoint_leases("10.0.0.9".to_owned());
    assert!(endpoints.list().await.unwrap().is_empty());
    endpoints.renew().await.unwrap();
    assert_eq!(endpoints.list().await.unwrap(), ["10.0.0.9".to_owned()].into());
}
