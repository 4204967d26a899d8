//! Encrypted connections with client certificates.

use pilothouse_etcd::messages::{RangeRequest, WatchCreateRequest};
use pilothouse_etcd::testing::{Cluster, Options};
use pilothouse_etcd::{Client, Error, Settings, TlsFiles};
use std::time::Duration;
use tokio::runtime::Handle;

use crate::support::{next_revision, put};

#[tokio::test]
async fn members_and_clients_prove_who_they_are() {
    let cluster = Cluster::start(Options { has_tls: true, ..Options::default() }).await;
    let client = cluster.client();
    let written = put(&client, "k", "1").await;
    let mut watch = client.resumable_watch(WatchCreateRequest::key("k", written));
    assert_eq!(next_revision(&mut watch).await.revision, written);

    let files = cluster.certificates.as_ref().unwrap();
    let right = files.client_files();
    let reason = async |tls: TlsFiles| {
        let mut settings = Settings::new([cluster.members[0].url()]);
        settings.tls = tls;
        settings.request_timeout = Duration::from_secs(2);
        let client = Client::new(settings, Handle::current()).unwrap();
        let Err(Error::NotReachable(failures)) = client.range(RangeRequest::key("k")).await else {
            panic!("it is reachable, or fails otherwise")
        };
        failures[0].reason.clone()
    };
    let untrusted = reason(TlsFiles { authority: None, ..right.clone() }).await;
    assert!(untrusted.contains("certificate is not valid for 127.0.0.1"), "{untrusted}");
    let misnamed = TlsFiles { server_name: Some("etcd.example".to_owned()), ..right.clone() };
    let misnamed = reason(misnamed).await;
    assert!(misnamed.contains("not valid for etcd.example: hostname mismatch"), "{misnamed}");
    // Under TLS 1.3, a client learns that its certificate is refused only when it reads.
    let anonymous = reason(TlsFiles { identity: None, ..right.clone() }).await;
    assert!(!anonymous.is_empty());

    let refused = |tls: TlsFiles| {
        let mut settings = Settings::new([cluster.members[0].url()]);
        settings.tls = tls;
        Client::new(settings, Handle::current()).map(|_| ()).unwrap_err().to_string()
    };
    let missing = refused(TlsFiles { authority: Some("/nowhere/ca.crt".into()), ..right.clone() });
    assert!(missing.contains("/nowhere/ca.crt: No such file"), "{missing}");
    let key = files.client.1.clone();
    let no_certificate = refused(TlsFiles { authority: Some(key), ..right.clone() });
    assert!(no_certificate.contains("contains no certificate"), "{no_certificate}");
    let swapped =
        refused(TlsFiles { identity: Some((files.client.0.clone(), files.server.1.clone())), ..right });
    assert!(swapped.contains("are no certificate with its key"), "{swapped}");
}
