//! Requests for certificates: who signs them, also after the files of the authority were replaced.

use std::path::Path;

use openssl::asn1::Asn1Time;
use openssl::base64::{decode_block, encode_block};
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::BasicConstraints;
use openssl::x509::{X509, X509Name, X509NameBuilder, X509ReqBuilder};
use serde_json::json;

use super::support::server::directory;
use super::support::wait::{CAP, poll};
use super::support::{Client, Server};
use super::{becomes, server};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";

fn new_key() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
}

fn named(name: &str, group: Option<&str>) -> X509Name {
    let mut built = X509NameBuilder::new().unwrap();
    if let Some(group) = group {
        built.append_entry_by_nid(Nid::ORGANIZATIONNAME, group).unwrap();
    }
    built.append_entry_by_nid(Nid::COMMONNAME, name).unwrap();
    built.build()
}

/// Puts a new authority into two files.
fn authority(certificate: &Path, key: &Path, name: &str) -> X509 {
    let (made, name) = (new_key(), named(name, None));
    let mut built = X509::builder().unwrap();
    built.set_version(2).unwrap();
    built.set_serial_number(&BigNum::from_u32(7).unwrap().to_asn1_integer().unwrap()).unwrap();
    built.set_subject_name(&name).unwrap();
    built.set_issuer_name(&name).unwrap();
    built.set_pubkey(&made).unwrap();
    built.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    built.set_not_after(&Asn1Time::days_from_now(2).unwrap()).unwrap();
    built.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
    built.sign(&made, MessageDigest::sha256()).unwrap();
    let built = built.build();
    std::fs::write(key, made.private_key_to_pem_pkcs8().unwrap()).unwrap();
    std::fs::write(certificate, built.to_pem().unwrap()).unwrap();
    built
}

/// Asks for a certificate and approves that.
fn ask(client: &mut Client, name: &str, signer: &str, subject: &X509Name) {
    let key = new_key();
    let mut request = X509ReqBuilder::new().unwrap();
    request.set_subject_name(subject).unwrap();
    request.set_pubkey(&key).unwrap();
    request.sign(&key, MessageDigest::sha256()).unwrap();
    let pem = request.build().to_pem().unwrap();
    let body = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name}, "spec": {"request": encode_block(&pem), "signerName": signer,
            "usages": ["digital signature", "client auth"], "expirationSeconds": 3600}});
    client.post(REQUESTS, &body).ok();
    let yes = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "R", "message": "m"}]});
    client.patch(&format!("{REQUESTS}/{name}/approval"), "merge", &json!({"status": yes})).ok();
}

/// The certificate that a request has got.
fn signed(client: &mut Client, name: &str) -> X509 {
    let answered =
        becomes(client, &format!("{REQUESTS}/{name}"), |one| one["status"]["certificate"].is_string());
    X509::from_pem(&decode_block(answered["status"]["certificate"].as_str().unwrap()).unwrap()).unwrap()
}

#[allow(clippy::disallowed_methods, reason = "what it leaves behind is swept away")]
fn is_by(certificate: &X509, authority: &X509) -> bool {
    let is_by = certificate.verify(&authority.public_key().unwrap()).unwrap();
    // The client of this test would take why it is not for a failure of its connection.
    drop(ErrorStack::get());
    is_by
}

/// Asks until this authority signs.
fn comes_from(client: &mut Client, authority: &X509, prefix: &str) {
    let mut number = 0;
    let found = poll(CAP, || {
        number += 1;
        let name = format!("{prefix}-{number}");
        ask(client, &name, CLIENT, &named("jane", None));
        is_by(&signed(client, &name), authority).then_some(())
    });
    assert!(found.is_some(), "the new authority signs nothing");
}

#[test]
fn approved_requests_get_a_certificate_that_the_server_takes() {
    let server = server(&[]);
    let mut client = server.admin();
    ask(&mut client, "jane", CLIENT, &named("jane", None));
    let certificate = signed(&mut client, "jane");
    let names = certificate.subject_name().entries_by_nid(Nid::COMMONNAME).next().unwrap();
    assert_eq!(names.data().to_string().unwrap(), "jane");
    let folder = server.data.join("pki");
    let own = X509::from_pem(&std::fs::read(folder.join("ca.crt")).unwrap()).unwrap();
    assert!(is_by(&certificate, &own));

    // Another authority in the place of the first: it signs from now on, and pods learn of what clients must trust.
    let new = authority(&folder.join("ca.crt"), &folder.join("ca.key"), "new");
    comes_from(&mut client, &new, "later");
}

#[test]
fn files_that_flags_name_sign_and_are_followed() {
    let directory = directory();
    let (certificate, key) = (directory.path().join("a.crt"), directory.path().join("a.key"));
    let first = authority(&certificate, &key, "first");
    let flags = [
        format!("--cluster-signing-cert-file={}", certificate.display()),
        format!("--cluster-signing-key-file={}", key.display()),
    ];
    let server = server(&[&flags[0], &flags[1]]);
    let mut client = server.admin();
    ask(&mut client, "before", CLIENT, &named("jane", None));
    assert!(is_by(&signed(&mut client, "before"), &first));
    let second = authority(&certificate, &key, "second");
    comes_from(&mut client, &second, "after");
}

#[test]
fn signers_that_have_no_files_sign_nothing_if_others_have_some() {
    let directory = directory();
    let (certificate, key) = (directory.path().join("a.crt"), directory.path().join("a.key"));
    let of_nodes = authority(&certificate, &key, "nodes");
    let flags = [
        format!("--cluster-signing-kubelet-client-cert-file={}", certificate.display()),
        format!("--cluster-signing-kubelet-client-key-file={}", key.display()),
    ];
    let server = Server::with(&[
        "--engine=memory",
        "--controllers=csrsigning",
        "--cluster-signing-duration=20m",
        &flags[0],
        &flags[1],
    ]);
    let mut client = server.admin();
    ask(&mut client, "jane", CLIENT, &named("jane", None));
    let node = named("system:node:n", Some("system:nodes"));
    ask(&mut client, "n", "kubernetes.io/kube-apiserver-client-kubelet", &node);
    let certificate = signed(&mut client, "n");
    assert!(is_by(&certificate, &of_nodes));
    // An hour was asked for; the flag allows less.
    let life = certificate.not_before().diff(certificate.not_after()).unwrap();
    assert_eq!((life.days, life.secs), (0, 25 * 60));
    assert_eq!(client.get(&format!("{REQUESTS}/jane")).ok()["status"]["certificate"], json!(null));
}
