//! Services that disagree with what is taken for them.

use std::net::IpAddr;

use pilothouse_actors::ports::CheckPorts;
use pilothouse_apimachinery::json;
use pilothouse_types::object::Pairs;

use super::super::testing::running;
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
async fn what_is_taken_follows_the_services() {
    let (_storage, services) = running();
    let (stored, lost) = (Key::namespaced("n", "stored"), Key::namespaced("n", "lost"));
    assert!(services.findings().await.unwrap().is_empty());
    store(&services, &stored, "10.77.0.5", 30_005).await;
    let leaked: IpAddr = "10.77.0.6".parse().unwrap();
    assert!(services.take_address(leaked, &lost, &Permit::none()).await.unwrap());
    let take = AllocatePorts {
        owner: lost.clone(),
        wants: vec![PortRequest::Exactly(30_006)],
        permit: Permit::none(),
    };
    services.ports.send(take).await.unwrap().unwrap();

    let found = services.findings().await.unwrap();
    let (leaked, rest): (Vec<_>, Vec<_>) =
        found.iter().cloned().partition(|finding| matches!(finding, Finding::Leaked(..)));
    assert!(
        matches!(&leaked[..], [Finding::Leaked(address, owner, _)] if address == "10.77.0.6" && *owner == lost)
    );
    assert_eq!(
        rest,
        [
            Finding::Missing("10.77.0.5".to_owned(), stored.clone()),
            Finding::LeakedPort(30_006, lost),
            Finding::MissingPort(30_005, stored)
        ]
    );
    for finding in &found {
        services.mend(finding).await.unwrap();
    }
    assert!(services.findings().await.unwrap().is_empty());
    let look = |port| services.ports.send(CheckPorts { ports: vec![port], permit: Permit::none() });
    assert!(look(30_005).await.unwrap().is_err() && look(30_006).await.unwrap().is_ok());
}
