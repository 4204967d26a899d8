use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::pin::Pin;

use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{Ssl, SslAcceptor, SslMethod, SslVerifyMode};
use openssl::x509::X509;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_openssl::SslStream;

use super::*;
use crate::pki::testing::own;

/// Answers each connection with the name of the certificate that it showed; after the first it asks for another one.
async fn serve(listener: TcpListener, (certificate, key): (X509, PKey<Private>)) {
    let mut acceptor = SslAcceptor::mozilla_modern_v5(SslMethod::tls_server()).unwrap();
    acceptor.set_private_key(&key).unwrap();
    acceptor.set_certificate(&certificate).unwrap();
    acceptor.set_verify_callback(SslVerifyMode::PEER, |_, _| true);
    let context = acceptor.build().into_context();
    for status in ["401 No", "200 Yes", "200 Yes"] {
        let (tcp, _) = listener.accept().await.unwrap();
        let mut stream = SslStream::new(Ssl::new(&context).unwrap(), tcp).unwrap();
        Pin::new(&mut stream).accept().await.unwrap();
        let shown = stream.ssl().peer_certificate();
        let name = shown.map_or_else(String::new, |shown| {
            let entry = shown.subject_name().entries_by_nid(Nid::COMMONNAME).next().unwrap();
            entry.data().to_string().unwrap()
        });
        let mut question = [0; 4_096];
        assert!(stream.read(&mut question).await.unwrap() > 0);
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{name}", name.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
        let _ = stream.shutdown().await;
    }
}

/// A plug-in that prints a certificate.
fn plugin(home: &Path, name: &str) {
    let (certificate, key) = own(name);
    let text = |pem: Vec<u8>| String::from_utf8(pem).unwrap();
    let made = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {
            "clientCertificateData": text(certificate.to_pem().unwrap()),
            "clientKeyData": text(key.private_key_to_pem_pkcs8().unwrap()),
        },
    });
    std::fs::write(home.join("made"), made.to_string()).unwrap();
    std::fs::write(home.join("plugin"), format!("#!/bin/sh\ncat '{}'\n", home.join("made").display()))
        .unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(home.join("plugin"), executable).unwrap();
}

#[actix::test]
async fn a_certificate_that_a_plugin_makes_is_shown_from_then_on() {
    let home = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = own("host.test");
    let authority = openssl::base64::encode_block(&server.0.to_pem().unwrap()).replace('\n', "");
    let config = format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}], \
         clusters: [{{name: k, cluster: {{server: 'https://{}/', tls-server-name: host.test, \
         certificate-authority-data: {authority}}}}}], \
         users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: ./plugin, \
         interactiveMode: Never}}}}}}]}}",
        listener.local_addr().unwrap()
    );
    plugin(home.path(), "first");
    let service = Service::alone(&Access::parse(config.as_bytes(), home.path()).unwrap()).unwrap();
    let serving = tokio::task::spawn_local(serve(listener, server));
    assert!(matches!(service.ask("{}".into()).await, Err(Failure::Refused(401))));
    plugin(home.path(), "second");
    assert_eq!(service.ask("{}".into()).await.unwrap(), b"second", "made anew, and shown in the handshake");
    plugin(home.path(), "third");
    assert_eq!(service.ask("{}".into()).await.unwrap(), b"second", "kept");
    serving.await.unwrap();
}

#[actix::test]
async fn questions_go_over_one_connection_and_nobody_notices_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::task::spawn_local(async move {
        let mut asked = Vec::new();
        for turns in [50, 3] {
            let (mut stream, _) = listener.accept().await.unwrap();
            for turn in 1..=turns {
                let mut question = [0; 4_096];
                assert!(stream.read(&mut question).await.unwrap() > 0);
                stream.write_all(b"HTTP/1.1 200 Yes\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
                if turn == turns {
                    asked.push(turn);
                }
            }
        }
        asked
    });
    let service = Service::alone(&Access::to(place)).unwrap();
    for _ in 0..53 {
        assert_eq!(service.ask("{}".to_owned()).await.unwrap(), b"{}");
    }
    assert_eq!(serving.await.unwrap(), [50, 3]);
}

#[actix::test]
async fn whoever_finds_no_place_waits_for_one() {
    let (place, asked) = testing::server(vec![(200, "{}".to_owned())]).await;
    let service = Service::alone(&Access::to(place)).unwrap();
    let taken = service.places.try_acquire_many(WEBHOOK_QUESTIONS as u32).unwrap();
    let mut answer = Box::pin(service.ask("{}".to_owned()));
    for _ in 0..10 {
        assert!(futures::poll!(&mut answer).is_pending(), "a refusal would be taken for one of the server");
        tokio::task::yield_now().await;
    }
    drop(taken);
    assert_eq!(answer.await.unwrap(), b"{}");
    assert_eq!(asked.await.unwrap().len(), 1);
}
