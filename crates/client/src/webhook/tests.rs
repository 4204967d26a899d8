use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::pin::Pin;

use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{Ssl, SslAcceptor, SslMethod, SslVerifyMode};
use openssl::x509::X509;
use pilothouse_types::clock::Clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_openssl::SslStream;

use super::*;
use crate::testing::self_signed;

fn service(access: &Access) -> Result<Service, Failure> {
    Service::new(access, &Pool::new(Clock::system()))
}

/// Answers each connection with the name of the certificate that it presented; refuses the first one.
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
        let peer_certificate = stream.ssl().peer_certificate();
        let name = peer_certificate.map_or_else(String::new, |peer_certificate| {
            let entry = peer_certificate.subject_name().entries_by_nid(Nid::COMMONNAME).next().unwrap();
            entry.data().to_string().unwrap()
        });
        let mut request = [0; 4_096];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        let response = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{name}", name.len());
        stream.write_all(response.as_bytes()).await.unwrap();
        let _ = stream.shutdown().await;
    }
}

/// A plug-in that prints a certificate.
fn plugin(home: &Path, name: &str) {
    let (certificate, key) = self_signed(name);
    let text = |pem: Vec<u8>| String::from_utf8(pem).unwrap();
    let credential = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {
            "clientCertificateData": text(certificate.to_pem().unwrap()),
            "clientKeyData": text(key.private_key_to_pem_pkcs8().unwrap()),
        },
    });
    std::fs::write(home.join("made"), credential.to_string()).unwrap();
    std::fs::write(home.join("plugin"), format!("#!/bin/sh\ncat '{}'\n", home.join("made").display()))
        .unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(home.join("plugin"), executable).unwrap();
}

#[actix_rt::test]
async fn certificate_of_exec_plugin_is_presented_until_refused() {
    let home = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = self_signed("host.test");
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
    let service = service(&Access::parse(config.as_bytes(), home.path()).unwrap()).unwrap();
    let serving = tokio::task::spawn_local(serve(listener, server));
    assert!(matches!(service.send("{}".into()).await, Err(Failure::Refused(401))));
    plugin(home.path(), "second");
    assert_eq!(
        service.send("{}".into()).await.unwrap(),
        b"second",
        "fetched again, and presented in the handshake"
    );
    plugin(home.path(), "third");
    assert_eq!(service.send("{}".into()).await.unwrap(), b"second", "cached");
    serving.await.unwrap();
}

#[actix_rt::test]
async fn webhook_calls_share_a_connection_and_reconnect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::task::spawn_local(async move {
        let mut counts = Vec::new();
        for requests in [50, 3] {
            let (mut stream, _) = listener.accept().await.unwrap();
            for number in 1..=requests {
                let mut request = [0; 4_096];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                stream.write_all(b"HTTP/1.1 200 Yes\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
                if number == requests {
                    counts.push(number);
                }
            }
        }
        counts
    });
    let service = service(&Access::to_server(url)).unwrap();
    for _ in 0..53 {
        assert_eq!(service.send("{}".to_owned()).await.unwrap(), b"{}");
    }
    assert_eq!(serving.await.unwrap(), [50, 3]);
}

#[actix_rt::test]
async fn webhook_call_without_free_slot_waits() {
    let (url, requests) = testing::server(vec![(200, "{}".to_owned())]).await;
    let service = service(&Access::to_server(url)).unwrap();
    let permits = service.slots.try_acquire_many(WEBHOOK_CALLS as u32).unwrap();
    let mut call = Box::pin(service.send("{}".to_owned()));
    for _ in 0..10 {
        assert!(futures::poll!(&mut call).is_pending(), "a refusal would be taken for one of the server");
        tokio::task::yield_now().await;
    }
    drop(permits);
    assert_eq!(call.await.unwrap(), b"{}");
    assert_eq!(requests.await.unwrap().len(), 1);
}

#[actix_rt::test]
async fn server_that_speaks_http2_alone_is_called_over_one_connection() {
    let (certificate, key) = self_signed("127.0.0.1");
    let start = |text: &'static str| {
        crate::http2_testing::Http2Server::start((&certificate, &key), move |_, body| {
            (200, format!("{text}{}", String::from_utf8_lossy(body)))
        })
    };
    let server = start("heard ");
    let url = format!("https://{}/a?b", server.address);
    let access = Access { authority_pem: Some(certificate.to_pem().unwrap()), ..Access::to_server(url) };
    let service = service(&access).unwrap();
    for body in ["one", "two"] {
        assert_eq!(service.send(body.to_owned()).await.unwrap(), format!("heard {body}").into_bytes());
    }
    assert_eq!((server.targets(), server.connections()), (vec!["/a?b".to_owned(); 2], 1));
    assert_eq!(service.get(100, WEBHOOK_TIMEOUT).await.unwrap(), b"heard ");
    drop(server);
    assert!(matches!(service.send(String::new()).await, Err(Failure::Broken(_))), "it is gone");
}
