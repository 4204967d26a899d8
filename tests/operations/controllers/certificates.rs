//! Certificate signing requests: the CA that signs them, also after its files were replaced.

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

use super::{server, wait_until};
use crate::support::server::temp_directory;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";

fn new_key() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
}

fn subject_name(name: &str, group: Option<&str>) -> X509Name {
    let mut builder = X509NameBuilder::new().unwrap();
    if let Some(group) = group {
        builder.append_entry_by_nid(Nid::ORGANIZATIONNAME, group).unwrap();
    }
    builder.append_entry_by_nid(Nid::COMMONNAME, name).unwrap();
    builder.build()
}

/// Writes a new CA into two files.
fn write_ca(certificate: &Path, key: &Path, name: &str) -> X509 {
    let (created, name) = (new_key(), subject_name(name, None));
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_serial_number(&BigNum::from_u32(7).unwrap().to_asn1_integer().unwrap()).unwrap();
    builder.set_subject_name(&name).unwrap();
    builder.set_issuer_name(&name).unwrap();
    builder.set_pubkey(&created).unwrap();
    builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::days_from_now(2).unwrap()).unwrap();
    builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
    builder.sign(&created, MessageDigest::sha256()).unwrap();
    let builder = builder.build();
    std::fs::write(key, created.private_key_to_pem_pkcs8().unwrap()).unwrap();
    std::fs::write(certificate, builder.to_pem().unwrap()).unwrap();
    builder
}

/// Creates and approves a signing request.
fn create_approved_csr(client: &mut Client, name: &str, signer: &str, subject: &X509Name) {
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
    let approval =
        json!({"conditions": [{"type": "Approved", "status": "True", "reason": "R", "message": "m"}]});
    client.patch(&format!("{REQUESTS}/{name}/approval"), "merge", &json!({"status": approval})).ok();
}

/// Waits for the certificate of a signing request.
fn wait_for_certificate(client: &mut Client, name: &str) -> X509 {
    let csr =
        wait_until(client, &format!("{REQUESTS}/{name}"), |csr| csr["status"]["certificate"].is_string());
    X509::from_pem(&decode_block(csr["status"]["certificate"].as_str().unwrap()).unwrap()).unwrap()
}

#[allow(clippy::disallowed_methods, reason = "what it leaves behind is swept away")]
fn is_signed_by(certificate: &X509, authority: &X509) -> bool {
    let is_by = certificate.verify(&authority.public_key().unwrap()).unwrap();
    // The client of this test would take the OpenSSL error for one of its connection.
    drop(ErrorStack::get());
    is_by
}

/// Creates signing requests until this CA signs one.
fn wait_for_signer(client: &mut Client, authority: &X509, prefix: &str) {
    let mut number = 0;
    let signed_by_new = poll(TIMEOUT, || {
        number += 1;
        let name = format!("{prefix}-{number}");
        create_approved_csr(client, &name, CLIENT, &subject_name("jane", None));
        is_signed_by(&wait_for_certificate(client, &name), authority).then_some(())
    });
    assert!(signed_by_new.is_some(), "the new CA signs nothing");
}

#[test]
fn approved_csr_is_signed_by_current_cluster_ca() {
    let server = server(&[]);
    let mut client = server.admin();
    create_approved_csr(&mut client, "jane", CLIENT, &subject_name("jane", None));
    let certificate = wait_for_certificate(&mut client, "jane");
    let names = certificate.subject_name().entries_by_nid(Nid::COMMONNAME).next().unwrap();
    assert_eq!(names.data().to_string().unwrap(), "jane");
    let folder = server.data.join("pki");
    let cluster_ca = X509::from_pem(&std::fs::read(folder.join("ca.crt")).unwrap()).unwrap();
    assert!(is_signed_by(&certificate, &cluster_ca));

    // A replaced CA signs from now on.
    let new = write_ca(&folder.join("ca.crt"), &folder.join("ca.key"), "new");
    wait_for_signer(&mut client, &new, "later");
}

#[test]
fn csr_signing_files_from_flags_are_used_and_reloaded() {
    let directory = temp_directory();
    let (certificate, key) = (directory.path().join("a.crt"), directory.path().join("a.key"));
    let first = write_ca(&certificate, &key, "first");
    let flags = [
        format!("--cluster-signing-cert-file={}", certificate.display()),
        format!("--cluster-signing-key-file={}", key.display()),
    ];
    let server = server(&[&flags[0], &flags[1]]);
    let mut client = server.admin();
    create_approved_csr(&mut client, "before", CLIENT, &subject_name("jane", None));
    assert!(is_signed_by(&wait_for_certificate(&mut client, "before"), &first));
    let second = write_ca(&certificate, &key, "second");
    wait_for_signer(&mut client, &second, "after");
}

#[test]
fn signer_without_files_signs_nothing_when_another_is_configured() {
    let directory = temp_directory();
    let (certificate, key) = (directory.path().join("a.crt"), directory.path().join("a.key"));
    let node_ca = write_ca(&certificate, &key, "nodes");
    let flags = [
        format!("--cluster-signing-kubelet-client-cert-file={}", certificate.display()),
        format!("--cluster-signing-kubelet-client-key-file={}", key.display()),
    ];
    let server = Server::with_flags(&[
        "--engine=memory",
        "--controllers=csrsigning",
        "--cluster-signing-duration=20m",
        &flags[0],
        &flags[1],
    ]);
    let mut client = server.admin();
    create_approved_csr(&mut client, "jane", CLIENT, &subject_name("jane", None));
    let node = subject_name("system:node:n", Some("system:nodes"));
    create_approved_csr(&mut client, "n", "kubernetes.io/kube-apiserver-client-kubelet", &node);
    let certificate = wait_for_certificate(&mut client, "n");
    assert!(is_signed_by(&certificate, &node_ca));
    // An hour was requested; the flag allows less.
    let lifetime = certificate.not_before().diff(certificate.not_after()).unwrap();
    assert_eq!((lifetime.days, lifetime.secs), (0, 25 * 60));
    assert_eq!(client.get(&format!("{REQUESTS}/jane")).ok()["status"]["certificate"], json!(null));
}
