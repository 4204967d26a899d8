//! Services whose addresses and ports do not match the allocations.

use std::net::IpAddr;

use pilothouse_actors::ports::PortRequest;

use super::super::testing::{start_services, store};
use super::*;

#[actix_rt::test]
async fn findings_cover_leaked_and_missing_addresses_and_ports() {
    let (_storage, services) = start_services();
    let (stored, lost) = (Key::namespaced("n", "stored"), Key::namespaced("n", "lost"));
    assert!(services.findings().await.unwrap().is_empty());
    store(&services, &stored, "10.77.0.5", 30_005).await;
    let leaked: IpAddr = "10.77.0.6".parse().unwrap();
    assert!(services.take_address(leaked, &lost, &Permit::none()).await.unwrap());
    let requests = vec![PortRequest::Exactly(30_006)];
    services.ports.allocate(lost.clone(), requests, Permit::none()).await.unwrap();

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
    let check = |port| services.ports.check(vec![port], Permit::none());
    assert!(check(30_005).await.is_err() && check(30_006).await.is_ok());
}
