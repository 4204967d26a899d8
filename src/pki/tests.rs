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
use crate::signatures;

const NOW: Timestamp = Timestamp(1_790_000_000_000_000);

fn bound() -> SocketAddr {
    "127.0.0.1:6443".parse().unwrap()
}

fn config(home: &Path) -> Config {
    let mut config = Config::default();
    config.storage.data_dir = Some(home.to_owned());
    config
}

fn contents(home: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(home.join("pki"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect()
}

/// Whether a client that trusts `ca` would believe `identity` at the time of the test.
fn trusted(ca: &[u8], identity: &Identity) -> bool {
    let mut store = X509StoreBuilder::new().unwrap();
    for authority in X509::stack_from_pem(ca).unwrap() {
        store.add_cert(authority).unwrap();
    }
    let mut param = X509VerifyParam::new().unwrap();
    param.set_time(i64::try_from(NOW.seconds()).unwrap());
    store.set_param(&param).unwrap();
    let leaf = X509::from_pem(&identity.certificates_pem).unwrap();
    let chain = Stack::new().unwrap();
    X509StoreContext::new().unwrap().init(&store.build(), &leaf, &chain, signatures::chain_holds).unwrap()
}

#[test]
fn the_first_start_makes_everything_and_later_ones_change_nothing() {
    let home = tempfile::tempdir().unwrap();
    let clock = Clock::manual(NOW);
    let first = prepare(&config(home.path()), bound(), &clock).unwrap();
    let files = contents(home.path());
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    let expected =
        ["admin.crt", "admin.key", "apiserver.crt", "apiserver.key", "ca.crt", "ca.key", "sa.key", "sa.pub"];
    assert_eq!(names, expected);
    for name in ["ca.key", "apiserver.key", "admin.key", "sa.key", "../admin.kubeconfig"] {
        let mode = fs::metadata(home.path().join("pki").join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert!(trusted(&first.serving_ca_pem, &first.serving));
    assert!(trusted(&first.client_ca_pem, &first.admin));

    clock.advance(Duration::from_secs(86_400));
    let second = prepare(&config(home.path()), bound(), &clock).unwrap();
    assert_eq!(contents(home.path()), files);
    assert_eq!(second.kubeconfig, first.kubeconfig);
    assert!(second.tokens.signing.public_eq(&first.tokens.signing), "tokens outlive a restart");
}

#[test]
fn the_admin_certificate_names_the_user_and_the_group() {
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
fn a_serving_certificate_that_lacks_a_name_or_grows_old_is_made_anew() {
    let home = tempfile::tempdir().unwrap();
    let clock = Clock::manual(NOW);
    let mut config = config(home.path());
    prepare(&config, bound(), &clock).unwrap();
    let before = contents(home.path());

    config.serving.external_hostname = Some("api.example.org".to_owned());
    prepare(&config, bound(), &clock).unwrap();
    let renamed = contents(home.path());
    let changed: Vec<_> = before.keys().filter(|name| before[*name] != renamed[*name]).collect();
    assert_eq!(changed, ["apiserver.crt", "apiserver.key"]);

    clock.advance(Duration::from_secs(300 * 86_400));
    prepare(&config, bound(), &clock).unwrap();
    let renewed = contents(home.path());
    let changed: Vec<_> = before.keys().filter(|name| renamed[*name] != renewed[*name]).collect();
    assert_eq!(changed, ["admin.crt", "admin.key", "apiserver.crt", "apiserver.key"]);
}

#[test]
fn a_crash_between_key_and_certificate_is_healed() {
    let home = tempfile::tempdir().unwrap();
    let clock = Clock::manual(NOW);
    prepare(&config(home.path()), bound(), &clock).unwrap();
    for name in ["ca.crt", "apiserver.crt"] {
        fs::remove_file(home.path().join("pki").join(name)).unwrap();
    }
    let pki = prepare(&config(home.path()), bound(), &clock).unwrap();
    assert!(trusted(&pki.serving_ca_pem, &pki.serving));
    assert!(trusted(&pki.client_ca_pem, &pki.admin));
}

#[test]
fn a_running_server_makes_no_new_authority() {
    let home = tempfile::tempdir().unwrap();
    let config = config(home.path());
    let first = prepare(&config, bound(), &Clock::system()).unwrap();
    assert_eq!(renew(&config, bound(), &Clock::system()).unwrap().client_ca_pem, first.client_ca_pem);
    let path = config.cert_dir().unwrap().join("ca.crt");
    for gone in [true, false] {
        if gone {
            std::fs::remove_file(&path).unwrap();
        } else {
            std::fs::write(&path, "").unwrap();
        }
        let before = contents(home.path());
        let error = renew(&config, bound(), &Clock::system()).unwrap_err().to_string();
        assert!(error.contains("ca.crt"), "{error}");
        assert_eq!(contents(home.path()), before, "nothing is written");
    }
}

#[test]
fn a_serving_certificate_of_another_authority_is_used_as_it_is() {
    let (home, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW));
    let foreign_key = authority::new_key().unwrap();
    let foreign = self_signed("other", &foreign_key);
    let certs = home.path().join("pki");
    fs::create_dir(&certs).unwrap();
    fs::write(certs.join("apiserver.crt"), foreign.to_pem().unwrap()).unwrap();
    fs::write(certs.join("apiserver.key"), foreign_key.private_key_to_pem_pkcs8().unwrap()).unwrap();
    let pki = prepare(&config(home.path()), bound(), &clock).unwrap();
    assert_eq!(pki.serving.certificates_pem, foreign.to_pem().unwrap());
    assert_eq!(pki.serving_ca_pem, foreign.to_pem().unwrap());
}

/// Another authority than those made here, of another name.
fn other_authority(name: &str) -> Authority {
    let key = authority::new_key().unwrap();
    Authority::new(self_signed(name, &key), key)
}

#[test]
fn after_the_authority_was_replaced_by_one_of_another_name_a_certificate_made_here_is_made_anew() {
    let (home, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW));
    let certs = home.path().join("pki");
    let old = prepare(&config(home.path()), bound(), &clock).unwrap();
    let new = other_authority("new-ca").identity().unwrap();
    fs::write(certs.join("ca.key"), &new.key_pem).unwrap();
    fs::write(certs.join("ca.crt"), &new.certificates_pem).unwrap();
    for take in [renew, prepare] {
        let pki = take(&config(home.path()), bound(), &clock).unwrap();
        assert_ne!(pki.serving.certificates_pem, old.serving.certificates_pem);
        assert_eq!(pki.serving_ca_pem, new.certificates_pem, "and only the authority is told to others");
        assert!(trusted(&pki.serving_ca_pem, &pki.serving));
        assert!(trusted(&pki.client_ca_pem, &pki.admin));
    }
}

#[test]
fn only_what_verifies_the_serving_certificate_is_told_to_others() {
    let (home, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW));
    let (other, stranger) = (other_authority("other-ca"), other_authority("stranger-ca"));
    let names = Names::of(&config(home.path()), bound());
    let leaf = other.issue(&Purpose::Serving(&names), NOW).unwrap();
    let pem = |authority: &Authority| authority.certificate_pem().unwrap();
    let (root, strange) = (pem(&other), pem(&stranger));
    let write = |name: &str, bytes: &[u8]| {
        let path = home.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let with = |chain: &[u8], client_ca: Option<&[u8]>| {
        let mut config = Config::ephemeral();
        config.serving.tls_cert_file = Some(write("crt", chain));
        config.serving.tls_private_key_file = Some(write("key", &leaf.key_pem));
        config.authentication.client_ca_file = client_ca.map(|pem| write("client-ca", pem));
        prepare(&config, bound(), &clock).unwrap().serving_ca_pem
    };
    let own = &leaf.certificates_pem[..];
    assert_eq!(with(&[own, &root].concat(), None), root);
    assert_eq!(with(&[own, &root, &strange].concat(), None), root, "a stranger at the end verifies nothing");
    assert_eq!(with(own, Some(&[&strange[..], &root].concat())), root, "found among those of clients");
    assert_eq!(with(own, Some(&strange)), own, "nothing else verifies it");
    // In the folder as well, also if it looks much like one that was made here: it stays, with its key.
    let certs = home.path().join("pki");
    fs::create_dir(&certs).unwrap();
    let foreign = other.issue(&Purpose::Serving(&Names::default()), NOW).unwrap();
    fs::write(certs.join("apiserver.crt"), &foreign.certificates_pem).unwrap();
    fs::write(certs.join("apiserver.key"), &foreign.key_pem).unwrap();
    for take in [prepare, renew] {
        let pki = take(&config(home.path()), bound(), &clock).unwrap();
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
fn bad_files_are_named() {
    let home = tempfile::tempdir().unwrap();
    let clock = Clock::manual(NOW);
    prepare(&config(home.path()), bound(), &clock).unwrap();
    let pki = home.path().join("pki");
    let refused = |config: &Config| prepare(config, bound(), &clock).unwrap_err().to_string();

    fs::copy(pki.join("admin.key"), pki.join("apiserver.key")).unwrap();
    assert!(
        refused(&config(home.path())).ends_with("apiserver.key: is not the key of the certificate beside it")
    );
    fs::write(pki.join("ca.crt"), "nonsense").unwrap();
    assert!(refused(&config(home.path())).ends_with("ca.crt: has no PEM certificate"));

    let mut named = Config::ephemeral();
    named.authentication.client_ca_file = Some(home.path().join("absent"));
    assert!(refused(&named).starts_with("cannot read "));
    let mut named = Config::ephemeral();
    named.service_accounts.service_account_key_file = vec![pki.join("ca.crt")];
    assert!(refused(&named).ends_with("has no PEM key or certificate"));
}

#[test]
fn keys_that_flags_name_are_used() {
    let home = tempfile::tempdir().unwrap();
    let clock = Clock::manual(NOW);
    prepare(&config(home.path()), bound(), &clock).unwrap();
    let pki = home.path().join("pki");
    let mut other = Config::ephemeral();
    other.service_accounts.service_account_signing_key_file = Some(pki.join("sa.key"));
    other.service_accounts.service_account_key_file = vec![pki.join("sa.pub")];
    other.authentication.client_ca_file = Some(pki.join("ca.crt"));
    other.serving.tls_cert_file = Some(pki.join("apiserver.crt"));
    other.serving.tls_private_key_file = Some(pki.join("apiserver.key"));
    let made = prepare(&other, bound(), &clock).unwrap();
    let signing = PKey::private_key_from_pem(&fs::read(pki.join("sa.key")).unwrap()).unwrap();
    assert!(made.tokens.signing.public_eq(&signing));
    assert_eq!(made.tokens.verifying.len(), 1, "a key that is named twice counts once");
    assert_eq!(X509::stack_from_pem(&made.client_ca_pem).unwrap().len(), 2);
    assert_eq!(made.serving.certificates_pem, fs::read(pki.join("apiserver.crt")).unwrap());
    assert_eq!(made.kubeconfig_path, None);
    // Without keys for tokens, the one that the server shows verifies; beside one that signs it does not.
    other.service_accounts.service_account_key_file = Vec::new();
    assert_eq!(prepare(&other, bound(), &clock).unwrap().tokens.verifying.len(), 1);
    other.service_accounts.service_account_signing_key_file = None;
    let made = prepare(&other, bound(), &clock).unwrap();
    let shown = PKey::private_key_from_pem(&fs::read(pki.join("apiserver.key")).unwrap()).unwrap();
    assert_eq!(made.tokens.verifying.len(), 2);
    assert!(made.tokens.verifying[1].public_eq(&shown));
}

#[test]
fn debug_output_shows_no_key() {
    let pki = prepare(&Config::ephemeral(), bound(), &Clock::manual(NOW)).unwrap();
    let shown = format!("{:?} {:?} {:?}", pki.serving, pki.admin, pki.tokens);
    assert!(!shown.contains("45, 45, 45") && !shown.contains("PRIVATE"), "{shown}");
}
