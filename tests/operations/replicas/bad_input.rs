//! What servers do about an etcd that is not as it should be.

use std::path::Path;

use pilothouse_etcd::messages::PutRequest;
use pilothouse_etcd::testing::{Certificates, Options};
use tokio::runtime::{Builder, Runtime};

use super::*;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The flags of a server that trusts this authority, and proves that it is the client of these certificates.
fn tls_flags(authority: &Path, certificates: &Certificates) -> Vec<String> {
    let (certificate, key) = &certificates.client;
    vec![
        format!("--etcd-cafile={}", authority.display()),
        format!("--etcd-certfile={}", certificate.display()),
        format!("--etcd-keyfile={}", key.display()),
        "--storage-initialization-timeout=3s".to_owned(),
    ]
}

#[test]
fn etcd_of_another_authority_is_refused() {
    let etcd = runtime().block_on(Cluster::start(Options { has_tls: true, ..Options::default() }));
    let replicas = Replicas { etcd, directory: temp_directory() };
    let certificates = replicas.etcd.certificates.as_ref().unwrap();
    let start = |name: &str, authority: &Path| {
        let flags = [vec![replicas.servers()], tls_flags(authority, certificates)].concat();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Server::try_start_in(&replicas.directory.path().join(name), &flags)
    };
    let folder = temp_directory();
    let foreign = Certificates::create(folder.path());
    let Err(failure) = start("refused", &foreign.authority) else { panic!("it trusts a stranger") };
    assert!(!failure.status.success());
    let text = format!("{}{}", failure.stdout, failure.stderr);
    let member = replicas.etcd.members[0].url();
    assert!(text.contains(&member) && text.contains("the certificate is not valid"), "{text}");

    let Ok(server) = start("accepted", &certificates.authority) else { panic!("it is the right one") };
    server.admin().post(MAPS, &map("a", "")).ok();
}

#[test]
fn values_and_keys_without_meaning_harm_nobody_else() {
    let replicas = Replicas::new(1);
    let put = |key: &str, value: &str| {
        let request = PutRequest::new(key.to_owned(), value.to_owned());
        runtime().block_on(async { replicas.etcd.client().put(request).await }).unwrap();
    };
    let damage = |name: &str| put(&format!("/registry/configmaps/default/{name}"), "no object");
    put("/registry/unknown.example/things/a", "of another program");
    put("/elsewhere", "of another program");
    damage("before");
    let mut server = replicas.start("one");
    let mut admin = server.admin();
    admin.post(MAPS, &map("whole", "")).ok();
    damage("later");
    for name in ["before", "later"] {
        let path = format!("{MAPS}/{name}");
        let refused = || (admin.get(&path).status == 500).then(|| admin.get(&path).text());
        let message = poll(TIMEOUT, refused).expect("it is known that it cannot be read");
        assert!(message.contains(name), "{message}");
    }
    assert_eq!(admin.get(MAPS).status, 500, "a list that leaves objects out would be wrong");
    assert_eq!(admin.get(&format!("{MAPS}/whole")).ok()["metadata"]["name"], "whole");
    admin.get("/api/v1/namespaces/default/secrets").ok();
    server.assert_healthy();
}

#[test]
fn server_ends_when_etcd_lacks_what_it_had() {
    let mut replicas = Replicas::new(1);
    let server = replicas.start("one");
    let mut admin = server.admin();
    let created = version(&admin.post(MAPS, &map("lost", "")).ok());
    let data = replicas.etcd.folder().join("m0");
    let member = &mut replicas.etcd.members[0];
    member.kill();
    std::fs::remove_dir_all(data).unwrap();
    member.start();
    let (status, log) = server.wait_for_exit();
    assert!(!status.success() && log.contains("went back"), "{status}: {log}");

    // Everybody lists again, and nobody continues in a history that is gone.
    let server = replicas.start("one");
    let mut admin = server.admin();
    assert_eq!(admin.get(&format!("{MAPS}/lost")).status, 404);
    let ahead = admin.get(&format!("{MAPS}?resourceVersion={}", created + 1_000_000));
    assert_eq!(ahead.status, 504, "{}", ahead.text());
}
