use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use openssl::ssl::{SslAcceptor, SslMethod};
use pilothouse_types::host_port::HostPort;
use pilothouse_types::lock::Lock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::testing::{ProxyForm, TestProxy};
use super::*;

#[derive(Default)]
struct Events(Lock<Vec<String>>);

impl DialObserver for Events {
    fn started(&self, kind: ProxyKind) {
        self.0.lock().push(format!("started {} {}", kind.protocol, kind.transport));
    }

    fn connected(&self, _: ProxyKind, _: Duration) {
        self.0.lock().push("connected".to_owned());
    }

    fn failed(&self, _: ProxyKind, stage: Stage) {
        self.0.lock().push(format!("failed {stage:?}"));
    }
}

/// A selector whose cluster is reached like this, and what it has told.
fn selector(directory: &Path, connection: &str) -> (EgressSelector, Arc<Events>) {
    let path = directory.join("egress.yaml");
    let text = format!(
        "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n\
         egressSelections: [{{name: cluster, connection: {{{connection}}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    let selector = EgressSelector::read(&path, &Clock::system()).unwrap();
    let events = Arc::<Events>::default();
    let observer: Arc<dyn DialObserver> = events.clone();
    selector.set_observer(&observer);
    (selector, events)
}

/// A server that repeats what it reads, until it has read `end`.
async fn echo(end: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    actix_rt::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut buffer, mut read) = (vec![0; 8_192], Vec::new());
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                stream.write_all(&buffer[..count]).await.unwrap();
                read.extend_from_slice(&buffer[..count]);
                if read.ends_with(end) {
                    break;
                }
            }
        }
    });
    address
}

/// Connects to `far.test:443`, which is the echo, and sends more than any buffer on the way holds.
async fn exchange(selector: &EgressSelector) {
    const PIECES: usize = 64;
    let socket =
        selector.dialer(Egress::Cluster).unwrap().dial(&HostPort::new("far.test", 443)).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(socket);
    let writing = actix_rt::spawn(async move {
        for _ in 0..PIECES {
            writer.write_all(&[b'x'; 50_000]).await.unwrap();
        }
        writer.write_all(b"END").await.unwrap();
        writer.flush().await.unwrap();
        writer
    });
    let mut read = Vec::new();
    reader.read_to_end(&mut read).await.unwrap();
    assert_eq!((read.len(), read.ends_with(b"END")), (PIECES * 50_000 + 3, true));
    drop(writing.await.unwrap());
}

fn forms(directory: &Path) -> [(ProxyForm<'_>, PathBuf, &'static str, &'static str); 2] {
    let (http, grpc) = (directory.join("http"), directory.join("grpc"));
    [
        (
            ProxyForm::HttpOnUnix(Box::leak(http.clone().into_boxed_path())),
            http,
            "HTTPConnect",
            "http_connect",
        ),
        (ProxyForm::GrpcOnUnix(Box::leak(grpc.clone().into_boxed_path())), grpc, "GRPC", "grpc"),
    ]
}

#[actix_rt::test]
async fn connections_go_through_proxies_on_sockets() {
    let address = echo(b"END").await;
    let directory = tempfile::tempdir().unwrap();
    for (form, path, protocol, name) in forms(directory.path()) {
        let connection =
            format!("proxyProtocol: {protocol}, transport: {{uds: {{udsName: '{}'}}}}", path.display());
        let (selector, events) = selector(directory.path(), &connection);
        let dialer = selector.dialer(Egress::Cluster).unwrap();
        let error = dialer.dial(&HostPort::new("far.test", 443)).await.err().unwrap();
        assert_eq!(error, format!("dial unix {}: connect: no such file or directory", path.display()));
        let proxy = TestProxy::start(form, move |target| (target == "far.test:443").then_some(address));
        exchange(&selector).await;
        let error = dialer.dial(&HostPort::new("other.test", 1)).await.err().unwrap();
        let expected = match protocol {
            "GRPC" => "no route to other.test:1".to_owned(),
            _ => format!(
                "proxy error from {} while dialing other.test:1, code 503: 503 Service Unavailable",
                path.display()
            ),
        };
        assert_eq!(error, expected);
        assert_eq!(proxy.targets(), ["far.test:443", "other.test:1"]);
        let started = format!("started {name} uds");
        assert_eq!(
            *events.0.lock(),
            [&*started, "failed Connect", &*started, "connected", &*started, "failed Proxy"]
        );
        assert!(selector.dialer(Egress::Etcd).is_none(), "what is not configured is direct");
    }
}

#[actix_rt::test]
async fn connections_go_through_a_proxy_with_tls_that_is_verified() {
    let address = echo(b"END").await;
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, pem: Vec<u8>| {
        let path = directory.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path.display().to_string()
    };
    let (certificate, key) = crate::testing::self_signed("127.0.0.1");
    let (own, own_key) = crate::testing::self_signed("the-server");
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).unwrap();
    acceptor.set_certificate(&certificate).unwrap();
    acceptor.set_private_key(&key).unwrap();
    let proxy = TestProxy::start(ProxyForm::HttpOnTcp(Some(acceptor.build())), move |_| Some(address));
    let url = format!("https://{}", proxy.address.unwrap());
    let client =
        (write("cert", own.to_pem().unwrap()), write("key", own_key.private_key_to_pem_pkcs8().unwrap()));
    let connection = |authority: &str| {
        format!(
            "proxyProtocol: HTTPConnect, transport: {{tcp: {{url: '{url}', tlsConfig: \
             {{caBundle: '{authority}', clientCert: '{}', clientKey: '{}'}}}}}}",
            client.0, client.1
        )
    };
    let (trusting, events) =
        selector(directory.path(), &connection(&write("ca", certificate.to_pem().unwrap())));
    exchange(&trusting).await;
    assert_eq!(*events.0.lock(), ["started http_connect tcp", "connected"]);
    let (other, events) = selector(directory.path(), &connection(&write("other", own.to_pem().unwrap())));
    let error =
        other.dialer(Egress::Cluster).unwrap().dial(&HostPort::new("far.test", 443)).await.err().unwrap();
    assert!(error.contains("x509: certificate signed by unknown authority"), "{error}");
    assert_eq!(events.0.lock().last().unwrap(), "failed Connect");
    assert_eq!(proxy.targets(), ["far.test:443"]);
}

#[test]
fn unreadable_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let absent = directory.path().join("absent");
    let error = EgressSelector::read(&absent, &Clock::system()).err().unwrap();
    assert_eq!(error, format!("egress-selector-config-file {} does not exist", absent.display()));
    let (path, empty) = (directory.path().join("file"), directory.path().join("empty"));
    std::fs::write(&empty, "").unwrap();
    let read = |tcp: &str| {
        let text = format!(
            "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n\
             - {{name: etcd, connection: {{proxyProtocol: HTTPConnect, transport: {{tcp: {{{tcp}}}}}}}}}\n"
        );
        std::fs::write(&path, text).unwrap();
        EgressSelector::read(&path, &Clock::system()).err().unwrap()
    };
    let error = read("url: 'http://proxy'");
    assert!(
        error.ends_with(
            "egressSelection \"etcd\": invalid proxy server url \"http://proxy\": missing port in address"
        ),
        "{error}"
    );
    let tls = format!("clientCert: '{0}', clientKey: '{0}'", empty.display());
    let error = read(&format!("url: 'https://proxy:1', tlsConfig: {{{tls}}}"));
    assert!(error.contains("failed to read key pair "), "{error}");
}
