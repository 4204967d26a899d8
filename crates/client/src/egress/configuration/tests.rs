use super::*;

fn parse(selections: &str) -> Result<Configuration, String> {
    let text = format!(
        "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections: {selections}\n"
    );
    Configuration::parse(text.as_bytes())
}

/// A selection in flow style.
fn selection(name: &str, connection: &str) -> String {
    format!("{{name: {name}, connection: {{{connection}}}}}")
}

#[test]
fn valid_selections_are_read() {
    let this_file = file!();
    let directory = tempfile::tempdir().unwrap();
    let pem = directory.path().join("pem");
    std::fs::write(&pem, this_file).unwrap();
    let pem = pem.display().to_string();
    let direct = selection("Cluster", "proxyProtocol: Direct");
    let grpc = selection("etcd", "proxyProtocol: GRPC, transport: {uds: {udsName: /run/k.sock}}");
    let tls = format!("{{caBundle: '{pem}', clientCert: '{pem}', clientKey: '{pem}'}}");
    let tcp = format!("{{url: 'https://proxy:8131', tlsConfig: {tls}}}");
    let http = selection("master", &format!("proxyProtocol: HTTPConnect, transport: {{tcp: {tcp}}}"));
    let paths =
        TlsPaths { authority: Some(pem.clone().into()), certificate: pem.clone().into(), key: pem.into() };
    assert_eq!(
        parse(&format!("[{direct}, {grpc}, {http}]")).unwrap().selections,
        [
            (Egress::Cluster, Connection::Direct),
            (Egress::Etcd, Connection::GrpcOverUnix("/run/k.sock".into())),
            (Egress::ControlPlane, Connection::HttpOverTcp("https://proxy:8131".to_owned(), Some(paths))),
        ]
    );
    let http = selection("cluster", "proxyProtocol: HTTPConnect, transport: {uds: {udsName: /run/h.sock}}");
    let plain =
        selection("etcd", "proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://127.0.0.1:3128'}}");
    assert_eq!(
        parse(&format!("[{http}, {plain}]")).unwrap().selections,
        [
            (Egress::Cluster, Connection::HttpOverUnix("/run/h.sock".into())),
            (Egress::Etcd, Connection::HttpOverTcp("http://127.0.0.1:3128".to_owned(), None)),
        ]
    );
    assert_eq!(parse("null").unwrap().selections, []);
    let earlier = "{apiVersion: apiserver.k8s.io/v1alpha1, kind: EgressSelectorConfiguration}";
    assert_eq!(Configuration::parse(earlier.as_bytes()).unwrap().selections, []);
}

#[test]
fn wrong_files_are_refused_with_the_reason() {
    let connection = "service.connection";
    for (file, reason) in [
        ("[", "failed to read egress selector config: "),
        ("{}", "no kind \"\" is known in version \"\""),
        ("{apiVersion: apiserver.k8s.io/v1, kind: EgressSelectorConfiguration}", "is known in version"),
        ("{apiVersion: apiserver.k8s.io/v1beta1, kind: TracingConfiguration}", "is known in version"),
    ] {
        let error = Configuration::parse(file.as_bytes()).unwrap_err();
        assert!(error.contains(reason), "{file}: {error}");
    }
    for (protocol, reason) in [
        ("", format!("{connection}.protocol: Unsupported value: \"\": supported values: \"Direct\", ")),
        ("proxyProtocol: http", format!("{connection}.protocol: Unsupported value: \"http\"")),
        (
            "proxyProtocol: Direct, transport: {}",
            format!("{connection}.transport: Invalid value: \"direct\": Transport config should be absent"),
        ),
        (
            "proxyProtocol: HTTPConnect",
            format!("{connection}.transport: Required value: transport must be set for HTTPConnect"),
        ),
        (
            "proxyProtocol: GRPC",
            format!("{connection}.transport: Required value: transport must be set for GRPC"),
        ),
        (
            "proxyProtocol: HTTPConnect, transport: {}",
            format!("{connection}.tcp: Required value: One of TCP or UDS must be set"),
        ),
        (
            "proxyProtocol: HTTPConnect, transport: {tcp: {url: x}, uds: {udsName: /y}}",
            "TCP and UDS cannot both be set".to_owned(),
        ),
        (
            "proxyProtocol: GRPC, transport: {tcp: {url: 'http://x:1'}}",
            format!("{connection}.uds: Required value: UDS must be set with GRPC"),
        ),
        (
            "proxyProtocol: GRPC, transport: {uds: {}}",
            format!("{connection}.udsName: Invalid value: \"nil\": UDSName should be present"),
        ),
        (
            "proxyProtocol: HTTPConnect, transport: {tcp: {url: 'tcp://x:1'}}",
            format!("{connection}.url: Invalid value: \"tcp://x:1\": supported connection protocols are"),
        ),
        (
            "proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://x:1'}}",
            format!("{connection}.tlsConfig: Required value: TLSConfig must be present when using HTTPS"),
        ),
        (
            "proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://x:1', tlsConfig: {}}}",
            "TLSConfig config should not be present when using HTTP".to_owned(),
        ),
        (
            "proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://x:1', tlsConfig: {clientKey: /no}}}",
            format!(
                "[{connection}.tlsConfig.clientCert: Invalid value: \"nil\": Using TLS requires clientCert, \
                 {connection}.tlsConfig.clientKey: Invalid value: \"/no\": TLS client key does not exist]"
            ),
        ),
        ("proxyProtocol: Direct, proxyUrl: x", "unknown field".to_owned()),
        ("proxyProtocol: 1", "must be a text".to_owned()),
    ] {
        let error = parse(&format!("[{}]", selection("cluster", protocol))).unwrap_err();
        assert!(error.contains(&reason), "{protocol}: {error}");
    }
}

#[test]
fn names_of_selections_are_known_and_unique() {
    let direct = "proxyProtocol: Direct";
    let error = parse(&format!("[{}]", selection("nodes", direct))).unwrap_err();
    assert_eq!(
        error,
        "failed to validate egress selector configuration: service.connection: Unsupported value: \"nodes\": \
         supported values: \"cluster\", \"controlplane\", \"etcd\""
    );
    let (first, second) = (selection("Cluster", direct), selection("cluster", direct));
    let error = parse(&format!("[{first}, {second}]")).unwrap_err();
    assert!(error.ends_with("service.connection[1]: Duplicate value: \"cluster\""), "{error}");
}
