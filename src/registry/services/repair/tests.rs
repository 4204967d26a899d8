//! Services whose addresses and ports do not match the allocations.

use std::net::IpAddr;

use pilothouse_actors::ports::CheckPorts;
use pilothouse_apimachinery::json;
use pilothouse_types::object::Pairs;

use super::super::testing::start_services;
use super::*;

async fn store(services: &Services, owner: &Key, address: &str, port: u16) {
    let text = format!(
        r#"{{"kind":"Service","apiVersion":"v1","metadata":{{"name":"{}","namespace":"n"}},"spec":{{"type":"NodePort",
            "clusterIP":"{address}","clusterIPs":["{address}"],"ports":[{{"port":80,"nodePort":{port}}}]}}}}"#,
        owner.name()
    );
    let value = json::read(text.as_bytes()).unwrap();
    let ty = services.registry.kind("", "v1", "Service").unwrap();
    let encoded = codec::encode_draft(&services.registry, ty, &value);
    let draft = encoded.into_draft(owner.clone(), Pairs::default(), Pairs::default());
    services.stores.create(&TypeName::new(SERVICES), draft, &Permit::none()).await.unwrap();
}

#[actix_rt::test]
async fn findings_cover_leaked_and_missing_addresses_and_ports() {
    let (_storage, services) = start_services();
    let (stored, lost) = (Key::namespaced("n", "stored"), Key::namespaced("n", "lost"));
    assert!(services.findings().await.unwrap().is_empty());
    store(&services, &stored, "10.77.0.5", 30_005).await;
    let leaked: IpAddr = "10.77.0.6".parse().unwrap();
    assert!(services.take_address(leaked, &lost, &Permit::none()).await.unwrap());
    let allocate = AllocatePorts {
        owner: lost.clone(),
        requests: vec![PortRequest::Exactly(30_006)],
        permit: Permit::none(),
    };
    services.ports.send(allocate).await.unwrap().unwrap();

    let findings = services.findings().await.unwrap();
    let (leaked, others): (Vec<_>, Vec<_>) =
        findings.iter().cloned().partition(|finding| matches!(finding, Finding::Leaked(..)));
    assert!(
        matches!(&leaked[..], [Finding::Leaked(address, owner, _)] if address == "10.77.0.6" && *owner == lost)
    );
    assert_eq!(
        others,
        [
            Finding::Missing("10.77.0.5".to_owned(), stored.clone()),
            Finding::LeakedPort(30_006, lost),
            Finding::MissingPort(30_005, stored)
        ]
    );
    for finding in &findings {
        services.repair_finding(finding).await.unwrap();
    }
    assert!(services.findings().await.unwrap().is_empty());
    let check = |port| services.ports.send(CheckPorts { ports: vec![port], permit: Permit::none() });
    assert!(check(30_005).await.unwrap().is_err() && check(30_006).await.unwrap().is_ok());
}
