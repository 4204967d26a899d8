//! Serving and client certificates.

use super::*;

/// A certificate with its key: a CA, or a client certificate signed by one.
fn certificate(name: &str, issuer: Option<&(X509, PKey<Private>)>) -> (X509, PKey<Private>) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("a curve");
    let key = PKey::from_ec_key(EcKey::generate(&group).expect("a key")).expect("a key");
    let mut subject = X509Name::builder().expect("a name");
    subject.append_entry_by_text("CN", name).expect("a name");
    subject.append_entry_by_text("O", "system:masters").expect("a group");
    let subject = subject.build();
    let mut builder = X509::builder().expect("a certificate");
    builder.set_version(2).expect("version 3");
    builder.set_subject_name(&subject).expect("a subject");
    builder.set_issuer_name(issuer.map_or(&*subject, |issuer| issuer.0.subject_name())).expect("an issuer");
    builder.set_not_before(&Asn1Time::days_from_now(0).expect("now")).expect("a beginning");
    builder.set_not_after(&Asn1Time::days_from_now(2).expect("later")).expect("an end");
    builder.set_pubkey(&key).expect("a key");
    if issuer.is_none() {
        let basic = BasicConstraints::new().critical().ca().build().expect("an extension");
        builder.append_extension(basic).expect("an authority");
    } else {
        let usage = ExtendedKeyUsage::new().client_auth().build().expect("an extension");
        builder.append_extension(usage).expect("a client");
    }
    builder.sign(issuer.map_or(&key, |issuer| &issuer.1), MessageDigest::sha256()).expect("a signature");
    (builder.build(), key)
}

#[test]
fn client_ca_and_serving_certificate_are_reloaded() {
    let directory = temp_directory();
    let (data, bundle) = (directory.path().join("data"), directory.path().join("clients.crt"));
    let [first, second] = ["first", "second"].map(|name| certificate(name, None));
    let write_file = |authority: &X509| fs::write(&bundle, authority.to_pem().expect("PEM")).expect("a file");
    write_file(&first.0);
    let server = Server::start_in(&data, &["--client-ca-file", bundle.to_str().expect("a path")]);
    let trusted = fs::read(data.join("pki/ca.crt")).expect("the authority");
    let request_status = |issuer: &(X509, PKey<Private>)| {
        let (certificate, key) = certificate("somebody", Some(issuer));
        let pem = (certificate.to_pem().expect("PEM"), key.private_key_to_pem_pkcs8().expect("PEM"));
        Client::new(server.address(), &trusted, Some((&pem.0, &pem.1))).get("/api/v1/namespaces").status
    };
    assert_eq!((request_status(&first), request_status(&second)), (200, 401));
    write_file(&second.0);
    poll(TIMEOUT, || (request_status(&second) == 200).then_some(())).expect("the new authority is believed");
    assert_eq!(request_status(&first), 401, "the old one is not");
    // A missing serving certificate is created and used.
    let serving = data.join("pki/apiserver.crt");
    let before = fs::read(&serving).expect("a certificate");
    fs::remove_file(&serving).expect("it is gone");
    let new_certificate =
        poll(TIMEOUT, || fs::read(&serving).ok().filter(|new_certificate| *new_certificate != before))
            .expect("a new one");
    let new_certificate = X509::from_pem(&new_certificate).expect("PEM").to_der().expect("DER");
    poll(TIMEOUT, || (server.anonymous().raw().certificate() == new_certificate).then_some(()))
        .expect("it is shown");
    let ready = server.admin().get("/readyz");
    assert_eq!((ready.status, ready.header("strict-transport-security")), (200, None));
}

/// The certificate that a server presents for a host name, DER.
fn presented_certificate(address: SocketAddr, host: Option<&str>) -> Vec<u8> {
    let stream = std::net::TcpStream::connect(address).expect("a connection");
    // An address is not sent as the name of the server.
    let session = tls::session(&tls::context(None, None, &[]), host.unwrap_or("127.0.0.1"));
    let stream = session.connect(stream).expect("a handshake");
    stream.ssl().peer_certificate().expect("a certificate").to_der().expect("DER")
}

#[test]
fn sni_selects_serving_certificate() {
    let directory = temp_directory();
    let path_of = |name: &str| directory.path().join(name);
    let write_file = |name: &str, (certificate, key): &(X509, PKey<Private>)| {
        fs::write(path_of(&format!("{name}.key")), key.private_key_to_pem_pkcs8().expect("PEM"))
            .expect("a file");
        fs::write(path_of(&format!("{name}.crt")), certificate.to_pem().expect("PEM")).expect("a file");
    };
    let flag = |name: &str, names: &str| {
        format!(
            "{},{}{names}",
            path_of(&format!("{name}.crt")).display(),
            path_of(&format!("{name}.key")).display()
        )
    };
    let [listed_identity, own_identity, new_identity] =
        ["said", "own.example.com", "later"].map(|name| certificate(name, None));
    write_file("said", &listed_identity);
    write_file("own", &own_identity);
    let data = directory.path().join("data");
    let (listed_flag, own_name_flag) = (flag("said", ":api.example.com,*.more.example.com"), flag("own", ""));
    let hsts = "--strict-transport-security-directives=max-age=31536000,includeSubDomains,preload";
    let server = Server::start_in(
        &data,
        &["--tls-sni-cert-key", &own_name_flag, "--tls-sni-cert-key", &listed_flag, hsts],
    );
    let der = |pair: &(X509, PKey<Private>)| pair.0.to_der().expect("DER");
    for host in ["api.example.com", "API.example.com", "one.more.example.com"] {
        assert_eq!(presented_certificate(server.address(), Some(host)), der(&listed_identity), "{host}");
    }
    assert_eq!(presented_certificate(server.address(), Some("own.example.com")), der(&own_identity));
    let serving = presented_certificate(server.address(), None);
    for host in ["said", "two.one.more.example.com", "elsewhere.example.com", "localhost"] {
        assert_eq!(presented_certificate(server.address(), Some(host)), serving, "{host}");
    }
    write_file("said", &new_identity);
    poll(TIMEOUT, || {
        (presented_certificate(server.address(), Some("api.example.com")) == der(&new_identity)).then_some(())
    })
    .expect("the new one");
    let expected_header = "max-age=31536000; includeSubDomains; preload";
    for path in ["/healthz", "/api/v1/namespaces/none", "/nonsense"] {
        let response = server.admin().get(path);
        assert_eq!(response.header("strict-transport-security"), Some(expected_header), "{path}");
    }
    // A certificate for an address is used without SNI.
    let mut config = Config::ephemeral();
    config.serving.tls_sni_cert_key = vec![flag("own", ":127.0.0.1").parse().expect("files and a name")];
    let server = Embedded::start(config).expect("an embedded server");
    assert_eq!(presented_certificate(server.address(), None), der(&own_identity));
    assert_ne!(presented_certificate(server.address(), Some("localhost")), der(&own_identity));
}
