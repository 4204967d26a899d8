use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use openssl::stack::Stack;
use openssl::x509::X509StoreContext;
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::verify::X509VerifyParam;
use pilothouse_types::clock::Timestamp;

use super::*;
use crate::pki::signatures;

const NOW: Timestamp = Timestamp(1_790_000_000_000_000);

fn bound() -> SocketAddr {
    "127.0.0.1:6443".parse().unwrap()
}

fn config(directory: &Path) -> Config {
    let mut config = Config::default();
    config.storage.data_dir = Some(directory.to_owned());
    config
}

fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(directory.join("pki"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect()
}

/// Whether a client that trusts `ca` would accept `identity` at the time of the test.
fn is_trusted(ca: &[u8], identity: &Identity) -> bool {
    let mut store = X509StoreBuilder::new().unwrap();
    for authority in X509::stack_from_pem(ca).unwrap() {
        store.add_cert(authority).unwrap();
    }
    let mut param = X509VerifyParam::new().unwrap();
    param.set_time(i64::try_from(NOW.seconds()).unwrap());
    store.set_param(&param).unwrap();
    let leaf = X509::from_pem(&identity.certificates_pem).unwrap();
    let chain = Stack::new().unwrap();
    X509StoreContext::new().unwrap().init(&store.build(), &leaf, &chain, signatures::is_chain_valid).unwrap()
}

#[test]
fn first_start_creates_all_files_and_later_starts_keep_them() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(NOW);
    let first = prepare(&config(directory.path()), bound(), &clock).unwrap();
    let files = contents(directory.path());
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    let expected =
        ["admin.crt", "admin.key", "apiserver.crt", "apiserver.key", "ca.crt", "ca.key", "sa.key", "sa.pub"];
    assert_eq!(names, expected);
    for name in ["ca.key", "apiserver.key", "admin.key", "sa.key", "../admin.kubeconfig"] {
        let mode = fs::metadata(directory.path().join("pki").join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert!(is_trusted(&first.serving_ca_pem, &first.serving));
    assert!(is_trusted(&first.client_ca_pem, &first.admin));

    clock.advance(Duration::from_secs(86_400));
    let second = prepare(&config(directory.path()), bound(), &clock).unwrap();
    assert_eq!(contents(directory.path()), files);
    assert_eq!(second.kubeconfig, first.kubeconfig);
    assert!(
        second.tokens.as_ref().unwrap().signing.public_eq(&first.tokens.as_ref().unwrap().signing),
        "tokens outlive a restart"
    );
}

#[test]
fn kubeconfig_has_an_rsa_key_that_every_client_reads() {
    let directory = tempfile::tempdir().unwrap();
    let pki = prepare(&config(directory.path()), bound(), &Clock::manual(NOW)).unwrap();
    let pem = String::from_utf8(pki.admin.key_pem).unwrap();
    assert!(pem.starts_with("-----BEGIN RSA PRIVATE KEY-----\n"), "the form that kubeadm writes");
    // As a reader does that knows nothing else: a sequence of nine integers, the first of them zero.
    let base64: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = openssl::base64::decode_block(&base64).unwrap();
    let mut rest = integers(&der);
    let integers: Vec<&[u8]> = std::iter::from_fn(|| next_integer(&mut rest)).collect();
    assert_eq!((integers.len(), integers[0]), (9, &[0][..]));
    assert_eq!(integers[1].len(), 257, "2,048 bits behind a sign");

    // One that is there already is used, whatever it is.
    let files = directory.path().join("pki");
    fs::remove_file(files.join("admin.crt")).unwrap();
    let other = authority::new_key().unwrap().private_key_to_pem_pkcs8().unwrap();
    fs::write(files.join("admin.key"), &other).unwrap();
    let pki = prepare(&config(directory.path()), bound(), &Clock::manual(NOW)).unwrap();
    assert!(pki.admin.key_pem == other && is_trusted(&pki.client_ca_pem, &pki.admin));
    fs::remove_file(files.join("admin.crt")).unwrap();
    fs::write(files.join("admin.key"), "no key").unwrap();
    assert!(prepare(&config(directory.path()), bound(), &Clock::manual(NOW)).is_err());
}

/// The content of a DER sequence.
fn integers(der: &[u8]) -> &[u8] {
    assert_eq!((der[0], der[1]), (0x30, 0x82));
    assert_eq!(usize::from(u16::from_be_bytes([der[2], der[3]])), der.len() - 4);
    &der[4..]
}

/// The next DER integer.
fn next_integer<'d>(rest: &mut &'d [u8]) -> Option<&'d [u8]> {
    let (tag, tail) = rest.split_first()?;
    assert_eq!(*tag, 2, "an integer");
    let (length, start) = match tail[0] {
        0x82 => (usize::from(u16::from_be_bytes([tail[1], tail[2]])), 3),
        0x81 => (usize::from(tail[1]), 2),
        length => (usize::from(length), 1),
    };
    let (integer, others) = tail[start..].split_at(length);
    *rest = others;
    Some(integer)
}

#[test]
fn admin_certificate_has_user_and_masters_group() {
    let pki = prepare(&Config::ephemeral(), bound(), &Clock::manual(NOW)).unwrap();
    let certificate = X509::from_pem(&pki.admin.certificates_pem).unwrap();
    let entry = |nid| {
        let subject = certificate.subject_name();
        let value = subject.entries_by_nid(nid).next().unwrap().data().as_slice().to_vec();
        String::from_utf8(value).unwrap()
    };
    assert_eq!(entry(openssl::nid::Nid::COMMONNAME), "kubernetes-admin");
    assert_eq!(entry(openssl::nid::Nid::ORGANIZATIONNAME), "system:masters");
}

#[test]
fn serving_certificate_is_reissued_for_new_name_or_expiry() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(NOW);
    let mut config = config(directory.path());
    prepare(&config, bound(), &clock).unwrap();
    let before = contents(directory.path());

    config.serving.external_hostname = Some("api.example.org".to_owned());
    prepare(&config, bound(), &clock).unwrap();
    let renamed = contents(directory.path());
    let changed: Vec<_> = before.keys().filter(|name| before[*name] != renamed[*name]).collect();
    assert_eq!(changed, ["apiserver.crt", "apiserver.key"]);

    clock.advance(Duration::from_secs(300 * 86_400));
    prepare(&config, bound(), &clock).unwrap();
    let renewed = contents(directory.path());
    let changed: Vec<_> = before.keys().filter(|name| renamed[*name] != renewed[*name]).collect();
    assert_eq!(changed, ["admin.crt", "admin.key", "apiserver.crt", "apiserver.key"]);
}

#[test]
fn missing_certificates_after_crash_are_reissued() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(NOW);
    prepare(&config(directory.path()), bound(), &clock).unwrap();
    for name in ["ca.crt", "apiserver.crt"] {
        fs::remove_file(directory.path().join("pki").join(name)).unwrap();
    }
    let pki = prepare(&config(directory.path()), bound(), &clock).unwrap();
    assert!(is_trusted(&pki.serving_ca_pem, &pki.serving));
    assert!(is_trusted(&pki.client_ca_pem, &pki.admin));
}

#[test]
fn renew_creates_no_new_ca() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    let first = prepare(&config, bound(), &Clock::system()).unwrap();
    assert_eq!(renew(&config, bound(), &Clock::system()).unwrap().client_ca_pem, first.client_ca_pem);
    let path = config.cert_dir().unwrap().join("ca.crt");
    for is_missing in [true, false] {
        if is_missing {
            std::fs::remove_file(&path).unwrap();
        } else {
            std::fs::write(&path, "").unwrap();
        }
        let before = contents(directory.path());
        let error = renew(&config, bound(), &Clock::system()).unwrap_err().to_string();
        assert!(error.contains("ca.crt"), "{error}");
        assert_eq!(contents(directory.path()), before, "nothing is written");
    }
}

#[test]
fn serving_certificate_of_another_ca_is_used_unchanged() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW));
    let foreign_key = authority::new_key().unwrap();
    let foreign = self_signed("other", &foreign_key);
    let certs = directory.path().join("pki");
    fs::create_dir(&certs).unwrap();
    fs::write(certs.join("apiserver.crt"), foreign.to_pem().unwrap()).unwrap();
    fs::write(certs.join("apiserver.key"), foreign_key.private_key_to_pem_pkcs8().unwrap()).unwrap();
    let pki = prepare(&config(directory.path()), bound(), &clock).unwrap();
    assert_eq!(pki.serving.certificates_pem, foreign.to_pem().unwrap());
    assert_eq!(pki.serving_ca_pem, foreign.to_pem().unwrap());
}

/// A CA with another name than those created here.
fn other_authority(name: &str) -> Authority {
    let key = authority::new_key().unwrap();
    Authority::new(self_signed(name, &key), key)
}

#[test]
fn serving_certificate_is_reissued_after_ca_was_replaced() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW));
    let certs = directory.path().join("pki");
    let old = prepare(&config(directory.path()), bound(), &clock).unwrap();
    let new = other_authority("new-ca").identity().unwrap();
    fs::write(certs.join("ca.key"), &new.key_pem).unwrap();
    fs::write(certs.join("ca.crt"), &new.certificates_pem).unwrap();
    for load in [renew, prepare] {
        let pki = load(&config(directory.path()), bound(), &clock).unwrap();
        assert_ne!(pki.serving.certificates_pem, old.serving.certificates_pem);
        assert_eq!(pki.serving_ca_pem, new.certificates_pem, "clients trust only the CA");
        assert!(is_trusted(&pki.serving_ca_pem, &pki.serving));
        assert!(is_trusted(&pki.client_ca_pem, &pki.admin));
    }
}

#[test]
fn kubeconfig_trusts_only_the_ca_that_verifies_serving_certificate() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW));
    let (issuer, unrelated) = (other_authority("other-ca"), other_authority("stranger-ca"));
    let names = Names::from_config(&config(directory.path()), bound());
    let leaf = issuer.issue(&Purpose::Serving(&names), NOW).unwrap();
    let pem = |authority: &Authority| authority.certificate_pem().unwrap();
    let (root, unrelated_pem) = (pem(&issuer), pem(&unrelated));
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let serving_ca = |chain: &[u8], client_ca: Option<&[u8]>| {
        let mut config = Config::ephemeral();
        config.serving.tls_cert_file = Some(write("crt", chain));
        config.serving.tls_private_key_file = Some(write("key", &leaf.key_pem));
        config.authentication.client_ca_file = client_ca.map(|pem| write("client-ca", pem));
        prepare(&config, bound(), &clock).unwrap().serving_ca_pem
    };
    let leaf_pem = &leaf.certificates_pem[..];
    assert_eq!(serving_ca(&[leaf_pem, &root].concat(), None), root);
    assert_eq!(
        serving_ca(&[leaf_pem, &root, &unrelated_pem].concat(), None),
        root,
        "an unrelated CA at the end is skipped"
    );
    assert_eq!(
        serving_ca(leaf_pem, Some(&[&unrelated_pem[..], &root].concat())),
        root,
        "found among the client CAs"
    );
    assert_eq!(serving_ca(leaf_pem, Some(&unrelated_pem)), leaf_pem, "nothing else verifies it");
    // A foreign certificate in the directory is kept with its key, even if it looks like one issued here.
    let certs = directory.path().join("pki");
    fs::create_dir(&certs).unwrap();
    let foreign = issuer.issue(&Purpose::Serving(&Names::default()), NOW).unwrap();
    fs::write(certs.join("apiserver.crt"), &foreign.certificates_pem).unwrap();
    fs::write(certs.join("apiserver.key"), &foreign.key_pem).unwrap();
    for load in [prepare, renew] {
        let pki = load(&config(directory.path()), bound(), &clock).unwrap();
        assert_eq!(pki.serving.certificates_pem, foreign.certificates_pem);
        assert_eq!(pki.serving_ca_pem, X509::from_pem(&foreign.certificates_pem).unwrap().to_pem().unwrap());
        assert_eq!(fs::read(certs.join("apiserver.crt")).unwrap(), foreign.certificates_pem);
        assert_eq!(fs::read(certs.join("apiserver.key")).unwrap(), foreign.key_pem);
    }
}

fn self_signed(name: &str, key: &PKey<Private>) -> X509 {
    let mut subject = openssl::x509::X509Name::builder().unwrap();
    subject.append_entry_by_text("CN", name).unwrap();
    let subject = subject.build();
    let mut draft = X509::builder().unwrap();
    draft.set_subject_name(&subject).unwrap();
    draft.set_issuer_name(&subject).unwrap();
    draft.set_not_before(&openssl::asn1::Asn1Time::from_unix(0).unwrap()).unwrap();
    draft.set_not_after(&openssl::asn1::Asn1Time::from_unix(2_000_000_000).unwrap()).unwrap();
    draft.set_pubkey(key).unwrap();
    draft.sign(key, openssl::hash::MessageDigest::sha256()).unwrap();
    draft.build()
}

#[test]
fn pki_errors_name_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(NOW);
    prepare(&config(directory.path()), bound(), &clock).unwrap();
    let pki = directory.path().join("pki");
    let load_error = |config: &Config| prepare(config, bound(), &clock).unwrap_err().to_string();

    fs::copy(pki.join("admin.key"), pki.join("apiserver.key")).unwrap();
    assert!(
        load_error(&config(directory.path()))
            .ends_with("apiserver.key: is not the key of the certificate beside it")
    );
    fs::write(pki.join("ca.crt"), "nonsense").unwrap();
    assert!(load_error(&config(directory.path())).ends_with("ca.crt: has no PEM certificate"));

    let mut named = Config::ephemeral();
    named.authentication.client_ca_file = Some(directory.path().join("absent"));
    assert!(load_error(&named).starts_with("cannot read "));
    let mut named = Config::ephemeral();
    named.service_accounts.service_account_key_file = vec![pki.join("ca.crt")];
    assert!(load_error(&named).ends_with("has no PEM key or certificate"));
}

#[test]
fn keys_of_flags_are_used() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(NOW);
    prepare(&config(directory.path()), bound(), &clock).unwrap();
    let pki = directory.path().join("pki");
    let mut flags = Config::ephemeral();
    flags.service_accounts.service_account_signing_key_file = Some(pki.join("sa.key"));
    flags.service_accounts.service_account_key_file = vec![pki.join("sa.pub")];
    flags.authentication.client_ca_file = Some(pki.join("ca.crt"));
    flags.serving.tls_cert_file = Some(pki.join("apiserver.crt"));
    flags.serving.tls_private_key_file = Some(pki.join("apiserver.key"));
    let pki_of_flags = prepare(&flags, bound(), &clock).unwrap();
    let signing = PKey::private_key_from_pem(&fs::read(pki.join("sa.key")).unwrap()).unwrap();
    assert!(pki_of_flags.tokens.as_ref().unwrap().signing.public_eq(&signing));
    assert_eq!(pki_of_flags.tokens.as_ref().unwrap().verifying.len(), 1, "duplicate keys are dropped");
    assert_eq!(X509::stack_from_pem(&pki_of_flags.client_ca_pem).unwrap().len(), 2);
    assert_eq!(pki_of_flags.serving.certificates_pem, fs::read(pki.join("apiserver.crt")).unwrap());
    assert_eq!(pki_of_flags.kubeconfig_path, None);
    // Without key flags the serving key verifies tokens, too; beside a signing key it does not.
    flags.service_accounts.service_account_key_file = Vec::new();
    assert_eq!(prepare(&flags, bound(), &clock).unwrap().tokens.as_ref().unwrap().verifying.len(), 1);
    flags.service_accounts.service_account_signing_key_file = None;
    let pki_of_flags = prepare(&flags, bound(), &clock).unwrap();
    let serving_key = PKey::private_key_from_pem(&fs::read(pki.join("apiserver.key")).unwrap()).unwrap();
    assert_eq!(pki_of_flags.tokens.as_ref().unwrap().verifying.len(), 2);
    assert!(pki_of_flags.tokens.as_ref().unwrap().verifying[1].public_eq(&serving_key));
}

#[test]
fn debug_output_contains_no_key() {
    let pki = prepare(&Config::ephemeral(), bound(), &Clock::manual(NOW)).unwrap();
    let rendered = format!("{:?} {:?} {:?}", pki.serving, pki.admin, pki.tokens);
    assert!(!rendered.contains("45, 45, 45") && !rendered.contains("PRIVATE"), "{rendered}");
}

#[test]
fn bundle_without_a_certificate_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.crt");
    for content in ["", "nothing", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        std::fs::write(&file, content).unwrap();
        let error = read_bundle(&file).unwrap_err().to_string();
        assert!(error.contains("ca.crt"), "{error}");
    }
    assert!(read_bundle(&folder.path().join("none")).is_err());
}
