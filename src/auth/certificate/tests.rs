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
use crate::limits::{CERTIFICATES_REMEMBERED, REFUSED_CERTIFICATE_REMEMBERED};

pub const NOW: u64 = 1_790_000_000;

/// Somebody with a key, and the certificate of it.
pub struct Party {
    key: PKey<Private>,
    pub certificate: X509,
}

/// What a certificate says.
pub struct Says<'a> {
    pub subject: &'a [(&'a str, &'a str)],
    pub from: u64,
    pub to: u64,
    pub authority: bool,
    pub server: bool,
}

impl Default for Says<'_> {
    fn default() -> Self {
        Says { subject: &[("CN", "ann")], from: NOW - 10, to: NOW + 100, authority: false, server: false }
    }
}

pub fn party(says: &Says<'_>, issuer: Option<&Party>) -> Party {
    let curve = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    with_key(PKey::from_ec_key(EcKey::generate(&curve).unwrap()).unwrap(), says, issuer)
}

fn with_key(key: PKey<Private>, says: &Says<'_>, issuer: Option<&Party>) -> Party {
    let mut name = X509NameBuilder::new().unwrap();
    for (field, value) in says.subject {
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
    let at = |seconds: u64| Asn1Time::from_unix(i64::try_from(seconds).unwrap()).unwrap();
    builder.set_not_before(&at(says.from)).unwrap();
    builder.set_not_after(&at(says.to)).unwrap();
    builder.set_pubkey(&key).unwrap();
    if says.authority {
        builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
    } else if says.server {
        builder.append_extension(ExtendedKeyUsage::new().server_auth().build().unwrap()).unwrap();
    } else {
        builder.append_extension(ExtendedKeyUsage::new().client_auth().build().unwrap()).unwrap();
    }
    builder.sign(issuer.map_or(&key, |issuer| &issuer.key), MessageDigest::sha256()).unwrap();
    Party { key, certificate: builder.build() }
}

pub fn root(name: &str) -> Party {
    party(&Says { subject: &[("CN", name)], authority: true, to: NOW + 1_000, ..Says::default() }, None)
}

fn verdict(verifier: &CertificateVerifier, chain: &[&Party]) -> Verification {
    let certificates: Arc<[Vec<u8>]> = chain.iter().map(|one| one.certificate.to_der().unwrap()).collect();
    match verifier.verify(&Credentials { certificates: Some(certificates), ..Credentials::default() }) {
        Answer::Now(verdict) => verdict,
        Answer::Later(_) => panic!("at once"),
    }
}

fn left() -> Histogram {
    Histogram::with_opts(prometheus::HistogramOpts::new("left", "left")).unwrap()
}

fn house(root: &Party) -> (CertificateVerifier, Clock) {
    let clock = Clock::manual(Timestamp(NOW * 1_000_000));
    let pem = root.certificate.to_pem().unwrap();
    (CertificateVerifier::new(&pem, true, left(), clock.clone()).unwrap(), clock)
}

#[test]
fn a_certificate_says_who_shows_it() {
    let root = root("root");
    let (verifier, _) = house(&root);
    let subject = &[("CN", "first"), ("O", "devs"), ("CN", "ann"), ("O", "testers"), ("uid", "u-1")];
    let ann = party(&Says { subject, ..Says::default() }, Some(&root));
    let Verification::Known(identity) = verdict(&verifier, &[&ann]) else { panic!("known") };
    assert_eq!((identity.name.as_str(), identity.uid.as_str()), ("ann", "u-1"));
    assert_eq!(identity.groups, ["devs", "testers"]);
    let digest = openssl::sha::sha256(&ann.certificate.to_der().unwrap());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(identity.extra[CREDENTIAL_ID], [format!("X509SHA256={hex}")]);
    // Without the gate nobody reads it.
    let clock = Clock::manual(Timestamp(NOW * 1_000_000));
    let blind = CertificateVerifier::new(&root.certificate.to_pem().unwrap(), false, left(), clock).unwrap();
    let Verification::Known(identity) = verdict(&blind, &[&ann]) else { panic!("known") };
    assert_eq!(identity.uid, "");
}

#[test]
fn what_does_not_hold_is_refused_and_what_names_nobody_is_no_opinion() {
    let (root, other) = (root("root"), root("other"));
    let (verifier, _) = house(&root);
    let of = |says: Says<'_>, issuer: &Party| party(&says, Some(issuer));
    for (what, bad) in [
        ("foreign", of(Says::default(), &other)),
        ("expired", of(Says { to: NOW - 1, ..Says::default() }, &root)),
        ("early", of(Says { from: NOW + 1, ..Says::default() }, &root)),
        ("for servers", of(Says { server: true, ..Says::default() }, &root)),
        (
            "two uids",
            of(Says { subject: &[("CN", "a"), ("uid", "1"), ("uid", "2")], ..Says::default() }, &root),
        ),
    ] {
        assert!(matches!(verdict(&verifier, &[&bad]), Verification::Refused(_)), "{what}");
    }
    let nobody = of(Says { subject: &[("O", "devs")], ..Says::default() }, &root);
    assert_eq!(verdict(&verifier, &[&nobody]), Verification::NoOpinion);
    assert_eq!(verdict(&verifier, &[]), Verification::NoOpinion);
    let garbage: Arc<[Vec<u8>]> = [vec![1, 2, 3]].into();
    let shown = Credentials { certificates: Some(garbage), ..Credentials::default() };
    assert!(matches!(verifier.verify(&shown), Answer::Now(Verification::Refused(_))));
    assert!(ErrorStack::get().errors().is_empty(), "nothing is left for the next connection");
}

#[test]
fn intermediates_count_while_they_hold() {
    let root = root("root");
    let (verifier, clock) = house(&root);
    let middle = Says { subject: &[("CN", "middle")], authority: true, to: NOW + 50, ..Says::default() };
    let middle = party(&middle, Some(&root));
    let ann = party(&Says::default(), Some(&middle));
    assert!(matches!(verdict(&verifier, &[&ann]), Verification::Refused(_)), "nobody knows who issued it");
    assert!(matches!(verdict(&verifier, &[&ann, &middle]), Verification::Known(_)));
    assert!(matches!(verdict(&verifier, &[&ann, &middle]), Verification::Known(_)), "remembered");
    clock.advance(Duration::from_secs(60));
    assert!(
        matches!(verdict(&verifier, &[&ann, &middle]), Verification::Refused(_)),
        "the middle one has ended"
    );
}

#[test]
fn other_authorities_count_at_once() {
    let (first, second) = (root("first"), root("second"));
    let (verifier, _) = house(&first);
    let ann = party(&Says::default(), Some(&first));
    assert!(matches!(verdict(&verifier, &[&ann]), Verification::Known(_)));
    verifier.trust(&second.certificate.to_pem().unwrap()).unwrap();
    assert!(matches!(verdict(&verifier, &[&ann]), Verification::Refused(_)));
}

#[test]
fn a_renewed_authority_counts_beside_its_predecessor() {
    let says = |to| Says { subject: &[("CN", "root")], authority: true, to, ..Says::default() };
    let expired = party(&says(NOW - 1), None);
    let renewed = with_key(expired.key.clone(), &says(NOW + 1_000), None);
    let other = party(&says(NOW + 1_000), None);
    let of = |authorities: &[&Party]| {
        let pem = authorities.iter().flat_map(|one| one.certificate.to_pem().unwrap()).collect::<Vec<u8>>();
        let clock = Clock::manual(Timestamp(NOW * 1_000_000));
        CertificateVerifier::new(&pem, true, left(), clock).unwrap()
    };
    for (what, authorities) in [
        ("the expired one first", [&expired, &renewed, &other]),
        ("the renewed one first", [&renewed, &expired, &other]),
        ("one with the same name and another key first", [&other, &expired, &renewed]),
    ] {
        let verifier = of(&authorities);
        for issuer in [&renewed, &other] {
            let ann = party(&Says::default(), Some(issuer));
            assert!(matches!(verdict(&verifier, &[&ann]), Verification::Known(_)), "{what}");
        }
    }
    let ann = party(&Says::default(), Some(&expired));
    let Verification::Refused(why) = verdict(&of(&[&expired]), &[&ann]) else { panic!("its time is over") };
    assert_eq!(why, "the client certificate has expired or is not yet valid");
    let foreign = party(&Says::default(), Some(&root("foreign")));
    let Verification::Refused(why) = verdict(&of(&[&expired]), &[&foreign]) else { panic!("unknown") };
    assert_eq!(why, "the client certificate is not valid: unable to get local issuer certificate");
}

fn is_refused(verifier: &CertificateVerifier, chain: &[&Party]) -> bool {
    matches!(verdict(verifier, chain), Verification::Refused(_))
}

#[test]
fn a_refused_chain_is_verified_once_in_a_while_and_not_once_per_request() {
    let (root, other) = (root("root"), root("other"));
    let (verifier, clock) = house(&root);
    let stranger = party(&Says::default(), Some(&other));
    let two_uids = &[("CN", "a"), ("uid", "1"), ("uid", "2")];
    let unreadable = party(&Says { subject: two_uids, ..Says::default() }, Some(&root));
    for _ in 0..5 {
        assert!(is_refused(&verifier, &[&stranger]) && is_refused(&verifier, &[&unreadable]));
    }
    assert_eq!(verifier.chains.verifications(), 2);
    // Another chain with the same first certificate is another chain.
    assert!(is_refused(&verifier, &[&stranger, &other]));
    assert_eq!(verifier.chains.verifications(), 3);
    clock.advance(REFUSED_CERTIFICATE_REMEMBERED);
    assert!(is_refused(&verifier, &[&stranger]) && is_refused(&verifier, &[&stranger]));
    assert_eq!(verifier.chains.verifications(), 4);
}

#[test]
fn a_refused_chain_counts_once_its_authority_does() {
    let (first, second) = (root("first"), root("second"));
    let (verifier, _) = house(&first);
    let ann = party(&Says::default(), Some(&second));
    assert!(is_refused(&verifier, &[&ann]));
    let both = [first.certificate.to_pem().unwrap(), second.certificate.to_pem().unwrap()].concat();
    verifier.trust(&both).unwrap();
    assert!(matches!(verdict(&verifier, &[&ann]), Verification::Known(_)));
}

#[test]
fn a_refused_chain_counts_from_the_second_on_at_which_all_of_it_is_valid() {
    let says = |subject, from, authority| Says { subject, from, authority, to: NOW + 50, ..Says::default() };
    // Which of them begins late: the certificate itself, the one between, or the trusted one.
    for late in 0..3 {
        let from = |place| if place == late { NOW + 5 } else { NOW - 10 };
        let root = party(&says(&[("CN", "root")], from(0), true), None);
        let middle = party(&says(&[("CN", "middle")], from(1), true), Some(&root));
        let ann = party(&says(&[("CN", "ann")], from(2), false), Some(&middle));
        let clock = Clock::manual(Timestamp(NOW * 1_000_000 + 500_000));
        let pem = root.certificate.to_pem().unwrap();
        let verifier = CertificateVerifier::new(&pem, true, left(), clock.clone()).unwrap();
        for _ in 0..9 {
            assert!(is_refused(&verifier, &[&ann, &middle]), "{late}");
            clock.advance(Duration::from_millis(500));
        }
        assert_eq!((clock.now(), verifier.chains.verifications()), (Timestamp((NOW + 5) * 1_000_000), 1));
        assert!(matches!(verdict(&verifier, &[&ann, &middle]), Verification::Known(_)), "{late}");
    }
}

#[test]
fn refused_chains_are_bounded_and_drive_out_no_valid_one() {
    let root = root("root");
    let (verifier, _) = house(&root);
    let ann = party(&Says::default(), Some(&root));
    assert!(matches!(verdict(&verifier, &[&ann]), Verification::Known(_)));
    for garbage in 0..u16::try_from(CERTIFICATES_REMEMBERED).unwrap() * 2 {
        let certificates: Arc<[Vec<u8>]> = [garbage.to_be_bytes().to_vec()].into();
        let shown = Credentials { certificates: Some(certificates), ..Credentials::default() };
        assert!(matches!(verifier.verify(&shown), Answer::Now(Verification::Refused(_))));
    }
    let before = verifier.chains.verifications();
    assert!(matches!(verdict(&verifier, &[&ann]), Verification::Known(_)));
    assert_eq!(verifier.chains.verifications(), before, "it is still remembered");
    assert!(verifier.chains.refused() <= CERTIFICATES_REMEMBERED);
}

/// What empty and odd fields of a subject mean.
#[test]
fn empty_fields_of_a_subject_name_nobody_and_no_group_of_others() {
    let root = root("root");
    let (verifier, _) = house(&root);
    let of = |subject: &[(&str, &str)]| {
        verdict(&verifier, &[&party(&Says { subject, ..Says::default() }, Some(&root))])
    };
    for nobody in [&[][..], &[("O", "devs")], &[("CN", "")], &[("CN", "ann"), ("CN", "")]] {
        assert_eq!(of(nobody), Verification::NoOpinion, "{nobody:?}");
    }
    assert!(
        matches!(of(&[("CN", "ann"), ("uid", "")]), Verification::Refused(_)),
        "an empty uid is an error"
    );
    for (subject, name, groups) in [
        (&[("CN", "ann")][..], "ann", &[][..]),
        // The group without a name is a group like others. No binding can name it.
        (&[("CN", "ann"), ("O", "")], "ann", &[""]),
        (&[("CN", "*"), ("O", "*")], "*", &["*"]),
        // A text does not end where a zero byte is.
        (&[("CN", "admin\0x"), ("O", "system:masters\0x")], "admin\0x", &["system:masters\0x"]),
        (&[("CN", " admin")], " admin", &[]),
        (&[("CN", "system:node:")], "system:node:", &[]),
    ] {
        let Verification::Known(identity) = of(subject) else { panic!("{subject:?}") };
        assert_eq!(identity.name, name);
        assert_eq!(identity.groups, groups);
        assert_eq!(identity.uid, "");
    }
}
