use std::time::Duration;

use openssl::asn1::{Asn1Time, Asn1Type};
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, ExtendedKeyUsage};
use openssl::x509::{X509Builder, X509NameBuilder};
use pilothouse_types::clock::Timestamp;

use super::*;
use crate::limits::{CACHED_CERTIFICATES, REFUSED_CERTIFICATE_CACHE_TTL};

pub const NOW: u64 = 1_790_000_000;

/// A private key and its certificate.
pub struct CertifiedKey {
    key: PKey<Private>,
    pub certificate: X509,
}

/// The contents of a test certificate.
pub struct CertificateSpec<'a> {
    pub subject: &'a [(&'a str, &'a str)],
    pub from: u64,
    pub to: u64,
    pub authority: bool,
    pub server: bool,
}

impl Default for CertificateSpec<'_> {
    fn default() -> Self {
        CertificateSpec {
            subject: &[("CN", "ann")],
            from: NOW - 10,
            to: NOW + 100,
            authority: false,
            server: false,
        }
    }
}

pub fn issue(spec: &CertificateSpec<'_>, issuer: Option<&CertifiedKey>) -> CertifiedKey {
    let curve = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    with_key(PKey::from_ec_key(EcKey::generate(&curve).unwrap()).unwrap(), spec, issuer)
}

fn with_key(key: PKey<Private>, spec: &CertificateSpec<'_>, issuer: Option<&CertifiedKey>) -> CertifiedKey {
    let mut name = X509NameBuilder::new().unwrap();
    for (field, value) in spec.subject {
        let field = if *field == "uid" { UID } else { field };
        // With a type, because texts without one may be neither empty nor long.
        name.append_entry_by_text_with_type(field, value, Asn1Type::UTF8STRING).unwrap();
    }
    let name = name.build();
    let mut builder = X509Builder::new().unwrap();
    builder.set_version(2).unwrap();
    builder.set_serial_number(&BigNum::from_u32(7).unwrap().to_asn1_integer().unwrap()).unwrap();
    builder.set_subject_name(&name).unwrap();
    builder.set_issuer_name(issuer.map_or(&name, |issuer| issuer.certificate.subject_name())).unwrap();
    let time = |seconds: u64| Asn1Time::from_unix(i64::try_from(seconds).unwrap()).unwrap();
    builder.set_not_before(&time(spec.from)).unwrap();
    builder.set_not_after(&time(spec.to)).unwrap();
    builder.set_pubkey(&key).unwrap();
    if spec.authority {
        builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
    } else if spec.server {
        builder.append_extension(ExtendedKeyUsage::new().server_auth().build().unwrap()).unwrap();
    } else {
        builder.append_extension(ExtendedKeyUsage::new().client_auth().build().unwrap()).unwrap();
    }
    builder.sign(issuer.map_or(&key, |issuer| &issuer.key), MessageDigest::sha256()).unwrap();
    CertifiedKey { key, certificate: builder.build() }
}

pub fn root(name: &str) -> CertifiedKey {
    issue(
        &CertificateSpec {
            subject: &[("CN", name)],
            authority: true,
            to: NOW + 1_000,
            ..CertificateSpec::default()
        },
        None,
    )
}

fn verdict(verifier: &CertificateVerifier, chain: &[&CertifiedKey]) -> Verification {
    let certificates: Arc<[Vec<u8>]> =
        chain.iter().map(|issued| issued.certificate.to_der().unwrap()).collect();
    match verifier.verify(&Credentials { certificates: Some(certificates), ..Credentials::default() }) {
        Answer::Now(verdict) => verdict,
        Answer::Later(_) => panic!("the answer is not immediate"),
    }
}

fn histogram() -> Histogram {
    Histogram::with_opts(prometheus::HistogramOpts::new("validity", "validity")).unwrap()
}

fn verifier_trusting(root: &CertifiedKey) -> (CertificateVerifier, Clock) {
    let clock = Clock::manual(Timestamp(NOW * 1_000_000));
    let pem = root.certificate.to_pem().unwrap();
    (CertificateVerifier::new(&pem, true, histogram(), clock.clone()).unwrap(), clock)
}

#[test]
fn client_certificate_yields_user_groups_and_uid() {
    let root = root("root");
    let (verifier, _) = verifier_trusting(&root);
    let subject = &[("CN", "first"), ("O", "devs"), ("CN", "ann"), ("O", "testers"), ("uid", "u-1")];
    let ann = issue(&CertificateSpec { subject, ..CertificateSpec::default() }, Some(&root));
    let Verification::Known(identity) = verdict(&verifier, &[&ann]) else { panic!("known") };
    assert_eq!((identity.name.as_str(), identity.uid.as_str()), ("ann", "u-1"));
    assert_eq!(identity.groups, ["devs", "testers"]);
    let digest = openssl::sha::sha256(&ann.certificate.to_der().unwrap());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(identity.extra[CREDENTIAL_ID], [format!("X509SHA256={hex}")]);
    // Without the feature gate the UID is ignored.
    let clock = Clock::manual(Timestamp(NOW * 1_000_000));
    let without_uid =
        CertificateVerifier::new(&root.certificate.to_pem().unwrap(), false, histogram(), clock).unwrap();
    let Verification::Known(identity) = verdict(&without_uid, &[&ann]) else { panic!("known") };
    assert_eq!(identity.uid, "");
}

#[test]
fn invalid_client_certificate_is_refused_and_nameless_one_ignored() {
    let (root, other) = (root("root"), root("other"));
    let (verifier, _) = verifier_trusting(&root);
    let issue_by = |spec: CertificateSpec<'_>, issuer: &CertifiedKey| issue(&spec, Some(issuer));
    for (case, certificate) in [
        ("foreign", issue_by(CertificateSpec::default(), &other)),
        ("expired", issue_by(CertificateSpec { to: NOW - 1, ..CertificateSpec::default() }, &root)),
        ("early", issue_by(CertificateSpec { from: NOW + 1, ..CertificateSpec::default() }, &root)),
        ("for servers", issue_by(CertificateSpec { server: true, ..CertificateSpec::default() }, &root)),
        (
            "two uids",
            issue_by(
                CertificateSpec {
                    subject: &[("CN", "a"), ("uid", "1"), ("uid", "2")],
                    ..CertificateSpec::default()
                },
                &root,
            ),
        ),
    ] {
        assert!(matches!(verdict(&verifier, &[&certificate]), Verification::Refused(_)), "{case}");
    }
    let nobody = issue_by(CertificateSpec { subject: &[("O", "devs")], ..CertificateSpec::default() }, &root);
    assert_eq!(verdict(&verifier, &[&nobody]), Verification::NoOpinion);
    assert_eq!(verdict(&verifier, &[]), Verification::NoOpinion);
    let garbage: Arc<[Vec<u8>]> = [vec![1, 2, 3]].into();
    let credentials = Credentials { certificates: Some(garbage), ..Credentials::default() };
    assert!(matches!(verifier.verify(&credentials), Answer::Now(Verification::Refused(_))));
    assert!(ErrorStack::get().errors().is_empty(), "the OpenSSL error queue is empty");
}

#[test]
fn intermediate_certificate_is_used_until_it_expires() {
    let root = root("root");
    let (verifier, clock) = verifier_trusting(&root);
    let middle = CertificateSpec {
        subject: &[("CN", "middle")],
        authority: true,
        to: NOW + 50,
        ..CertificateSpec::default()
    };
    let middle = issue(&middle, Some(&root));
    let ann = issue(&CertificateSpec::default(), Some(&middle));
    assert!(matches!(verdict(&verifier, &[&ann]), Verification::Refused(_)), "the issuer is unknown");
    assert!(matches!(verdict(&verifier, &[&ann, &middle]), Verification::Known(_)));
    assert!(matches!(verdict(&verifier, &[&ann, &middle]), Verification::Known(_)), "cached");
    clock.advance(Duration::from_secs(60));
    assert!(
        matches!(verdict(&verifier, &[&ann, &middle]), Verification::Refused(_)),
        "the intermediate has expired"
    );
}

#[test]
fn replaced_client_ca_applies_to_cached_certificates() {
    let (first, second) = (root("first"), root("second"));
    let (verifier, _) = verifier_trusting(&first);
    let ann = issue(&CertificateSpec::default(), Some(&first));
    assert!(matches!(verdict(&verifier, &[&ann]), Verification::Known(_)));
    verifier.trust(&second.certificate.to_pem().unwrap()).unwrap();
    assert!(matches!(verdict(&verifier, &[&ann]), Verification::Refused(_)));
}

#[test]
fn renewed_ca_is_trusted_beside_its_predecessor() {
    let ca_spec = |to| CertificateSpec {
        subject: &[("CN", "root")],
        authority: true,
        to,
        ..CertificateSpec::default()
    };
    let expired = issue(&ca_spec(NOW - 1), None);
    let renewed = with_key(expired.key.clone(), &ca_spec(NOW + 1_000), None);
    let other = issue(&ca_spec(NOW + 1_000), None);
    let verifier_of = |authorities: &[&CertifiedKey]| {
        let pem =
            authorities.iter().flat_map(|issued| issued.certificate.to_pem().unwrap()).collect::<Vec<u8>>();
        let clock = Clock::manual(Timestamp(NOW * 1_000_000));
        CertificateVerifier::new(&pem, true, histogram(), clock).unwrap()
    };
    for (case, authorities) in [
        ("the expired one first", [&expired, &renewed, &other]),
        ("the renewed one first", [&renewed, &expired, &other]),
        ("one with the same name and another key first", [&other, &expired, &renewed]),
    ] {
        let verifier = verifier_of(&authorities);
        for issuer in [&renewed, &other] {
            let ann = issue(&CertificateSpec::default(), Some(issuer));
            assert!(matches!(verdict(&verifier, &[&ann]), Verification::Known(_)), "{case}");
        }
    }
    let ann = issue(&CertificateSpec::default(), Some(&expired));
    let Verification::Refused(reason) = verdict(&verifier_of(&[&expired]), &[&ann]) else {
        panic!("the CA has expired")
    };
    assert_eq!(reason, "the client certificate has expired or is not yet valid");
    let foreign = issue(&CertificateSpec::default(), Some(&root("foreign")));
    let Verification::Refused(reason) = verdict(&verifier_of(&[&expired]), &[&foreign]) else {
        panic!("unknown")
    };
    assert_eq!(reason, "the client certificate is not valid: unable to get local issuer certificate");
}

fn is_refused(verifier: &CertificateVerifier, chain: &[&CertifiedKey]) -> bool {
    matches!(verdict(verifier, chain), Verification::Refused(_))
}

#[test]
fn refused_chain_is_cached_and_verified_again_after_expiry() {
    let (root, other) = (root("root"), root("other"));
    let (verifier, clock) = verifier_trusting(&root);
    let stranger = issue(&CertificateSpec::default(), Some(&other));
    let two_uids = &[("CN", "a"), ("uid", "1"), ("uid", "2")];
    let unreadable = issue(&CertificateSpec { subject: two_uids, ..CertificateSpec::default() }, Some(&root));
    for _ in 0..5 {
        assert!(is_refused(&verifier, &[&stranger]) && is_refused(&verifier, &[&unreadable]));
    }
    assert_eq!(verifier.chains.verifications(), 2);
    // Another chain with the same first certificate is another chain.
    assert!(is_refused(&verifier, &[&stranger, &other]));
    assert_eq!(verifier.chains.verifications(), 3);
    clock.advance(REFUSED_CERTIFICATE_CACHE_TTL);
    assert!(is_refused(&verifier, &[&stranger]) && is_refused(&verifier, &[&stranger]));
    assert_eq!(verifier.chains.verifications(), 4);
}

#[test]
fn refused_chain_is_accepted_once_its_ca_is_trusted() {
    let (first, second) = (root("first"), root("second"));
    let (verifier, _) = verifier_trusting(&first);
    let ann = issue(&CertificateSpec::default(), Some(&second));
    assert!(is_refused(&verifier, &[&ann]));
    let both = [first.certificate.to_pem().unwrap(), second.certificate.to_pem().unwrap()].concat();
    verifier.trust(&both).unwrap();
    assert!(matches!(verdict(&verifier, &[&ann]), Verification::Known(_)));
}

#[test]
fn refused_chain_is_accepted_once_all_certificates_are_valid() {
    let chain_spec = |subject, from, authority| CertificateSpec {
        subject,
        from,
        authority,
        to: NOW + 50,
        ..CertificateSpec::default()
    };
    // Index of the certificate that becomes valid late: root, intermediate, leaf.
    for late in 0..3 {
        let from = |index| if index == late { NOW + 5 } else { NOW - 10 };
        let root = issue(&chain_spec(&[("CN", "root")], from(0), true), None);
        let middle = issue(&chain_spec(&[("CN", "middle")], from(1), true), Some(&root));
        let ann = issue(&chain_spec(&[("CN", "ann")], from(2), false), Some(&middle));
        let clock = Clock::manual(Timestamp(NOW * 1_000_000 + 500_000));
        let pem = root.certificate.to_pem().unwrap();
        let verifier = CertificateVerifier::new(&pem, true, histogram(), clock.clone()).unwrap();
        for _ in 0..9 {
            assert!(is_refused(&verifier, &[&ann, &middle]), "{late}");
            clock.advance(Duration::from_millis(500));
        }
        assert_eq!((clock.now(), verifier.chains.verifications()), (Timestamp((NOW + 5) * 1_000_000), 1));
        assert!(matches!(verdict(&verifier, &[&ann, &middle]), Verification::Known(_)), "{late}");
    }
}

#[test]
fn refused_chains_are_bounded_and_evict_no_valid_one() {
    let root = root("root");
    let (verifier, _) = verifier_trusting(&root);
    let ann = issue(&CertificateSpec::default(), Some(&root));
    assert!(matches!(verdict(&verifier, &[&ann]), Verification::Known(_)));
    for garbage in 0..u16::try_from(CACHED_CERTIFICATES).unwrap() * 2 {
        let certificates: Arc<[Vec<u8>]> = [garbage.to_be_bytes().to_vec()].into();
        let credentials = Credentials { certificates: Some(certificates), ..Credentials::default() };
        assert!(matches!(verifier.verify(&credentials), Answer::Now(Verification::Refused(_))));
    }
    let before = verifier.chains.verifications();
    assert!(matches!(verdict(&verifier, &[&ann]), Verification::Known(_)));
    assert_eq!(verifier.chains.verifications(), before, "it is still cached");
    assert!(verifier.chains.refused() <= CACHED_CERTIFICATES);
}

#[test]
fn empty_subject_fields_yield_no_user_and_no_other_group() {
    let root = root("root");
    let (verifier, _) = verifier_trusting(&root);
    let verify_subject = |subject: &[(&str, &str)]| {
        verdict(&verifier, &[&issue(&CertificateSpec { subject, ..CertificateSpec::default() }, Some(&root))])
    };
    for nobody in [&[][..], &[("O", "devs")], &[("CN", "")], &[("CN", "ann"), ("CN", "")]] {
        assert_eq!(verify_subject(nobody), Verification::NoOpinion, "{nobody:?}");
    }
    assert!(
        matches!(verify_subject(&[("CN", "ann"), ("uid", "")]), Verification::Refused(_)),
        "an empty uid is an error"
    );
    for (subject, name, groups) in [
        (&[("CN", "ann")][..], "ann", &[][..]),
        // The empty group is kept, but no binding can name it.
        (&[("CN", "ann"), ("O", "")], "ann", &[""]),
        (&[("CN", "*"), ("O", "*")], "*", &["*"]),
        // A NUL byte does not end a text.
        (&[("CN", "admin\0x"), ("O", "system:masters\0x")], "admin\0x", &["system:masters\0x"]),
        (&[("CN", " admin")], " admin", &[]),
        (&[("CN", "system:node:")], "system:node:", &[]),
    ] {
        let Verification::Known(identity) = verify_subject(subject) else { panic!("{subject:?}") };
        assert_eq!(identity.name, name);
        assert_eq!(identity.groups, groups);
        assert_eq!(identity.uid, "");
    }
}
