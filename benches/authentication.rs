//! What it costs to find out who is asking: a certificate and a token that are remembered, and a token that is not, beside the
//! bare check of its signature as the floor.
//!
//! `cargo bench --bench authentication`. The bounds: what is remembered in 10 µs, what is not in the floor and a fifth of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and prints what it found"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use criterion::Criterion;
use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private, Public};
use openssl::rsa::Rsa;
use openssl::sign::Verifier as Signature;
use openssl::x509::extension::{BasicConstraints, ExtendedKeyUsage};
use openssl::x509::{X509, X509Builder, X509NameBuilder};
use pilothouse::auth::certificate::CertificateVerifier;
use pilothouse::auth::jwt::SigningKey;
use pilothouse::auth::service_account::claims::{Bound, Grant, Reference};
use pilothouse::auth::service_account::keys::Keys;
use pilothouse::auth::service_account::verifier::{ServiceAccountTokens, VerifierSettings};
use pilothouse::auth::token_file::TokenFile;
use pilothouse::auth::token_objects::TokenObjects;
use pilothouse::metrics::Metrics;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Authenticator, AuthenticatorConfig, Verifier};
use pilothouse_actors::directory::{self, Find, Options, Stores};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::Create;
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::identity::{Credentials, Identity};
use pilothouse_types::object::{Draft, Key, Pairs, TypeName};

/// What the binary uses.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NOW: Timestamp = Timestamp(1_790_000_000_000_000);
/// More tokens than are remembered: shown in turn, each one is new.
const TOKENS: usize = 4_200;

/// A certificate; `issuer` is who signed it, nobody: itself.
fn certificate(name: &str, issuer: Option<&(PKey<Private>, X509)>) -> (PKey<Private>, X509) {
    let curve = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&curve).unwrap()).unwrap();
    let mut subject = X509NameBuilder::new().unwrap();
    subject.append_entry_by_text("CN", name).unwrap();
    subject.append_entry_by_text("O", "devs").unwrap();
    let subject = subject.build();
    let mut builder = X509Builder::new().unwrap();
    builder.set_version(2).unwrap();
    builder.set_subject_name(&subject).unwrap();
    builder.set_issuer_name(issuer.map_or(&subject, |(_, issuer)| issuer.subject_name())).unwrap();
    builder.set_not_before(&Asn1Time::from_unix(1_000_000_000).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::from_unix(4_000_000_000).unwrap()).unwrap();
    builder.set_pubkey(&key).unwrap();
    let extension = match issuer {
        None => BasicConstraints::new().critical().ca().build(),
        Some(_) => ExtendedKeyUsage::new().client_auth().build(),
    };
    builder.append_extension(extension.unwrap()).unwrap();
    builder.sign(issuer.map_or(&key, |(key, _)| key), MessageDigest::sha256()).unwrap();
    (key, builder.build())
}

fn token(key: &SigningKey, id: usize) -> String {
    let account = Reference { name: "sa".into(), uid: "u".into() };
    let bound = Bound { namespace: "n".into(), serviceaccount: account, ..Bound::default() };
    let grant = Grant { bound, audiences: vec!["us".into()], seconds: 3_600, warn_after_seconds: None };
    key.sign(&grant.claims("https://us", &id.to_string(), NOW)).unwrap()
}

/// Stores the account that all tokens speak for.
async fn store_account(stores: &Stores) {
    let text = r#"{"metadata":{"name":"sa","namespace":"n","uid":"u","resourceVersion":""}}"#;
    let mark = r#""resourceVersion":""#;
    let draft = Draft {
        key: Key::namespaced("n", "sa"),
        bytes: Bytes::from(text),
        revision_at: text.find(mark).unwrap() + mark.len(),
        item_at: 1,
        labels: Pairs::default(),
        fields: Pairs::default(),
    };
    let found = stores.directory.send(Find { type_name: TypeName::new("serviceaccounts") }).await;
    found.unwrap().unwrap().send(Create { draft, permit: Permit::none() }).await.unwrap().unwrap();
}

/// Everything that a request passes by default.
struct Guard {
    authenticator: Authenticator,
    signing: SigningKey,
    public: PKey<Public>,
    chain: Arc<[Vec<u8>]>,
    _stores: Stores,
}

impl Guard {
    async fn new() -> Guard {
        let clock = Clock::manual(NOW);
        let metrics = Arc::new(Metrics::new(NOW).unwrap());
        let root = certificate("root", None);
        let (_, own) = certificate("ann", Some(&root));
        let left = metrics.authentication.certificate_left.clone();
        let pem = root.1.to_pem().unwrap();
        let certificates = CertificateVerifier::new(&pem, true, left, clock.clone()).unwrap();
        let stores =
            directory::start(Box::new(Memory::new()), Options { clock: clock.clone(), ..Options::default() });
        let stores = stores.unwrap();
        store_account(&stores).await;
        let key = PKey::from_rsa(Rsa::generate(2_048).unwrap()).unwrap();
        let public = PKey::public_key_from_der(&key.public_key_to_der().unwrap()).unwrap();
        let rules = VerifierSettings {
            issuers: vec!["https://us".into()],
            audiences: vec!["us".into()],
            lookup: true,
        };
        let objects = Arc::new(TokenObjects::new(stores.directory.clone()));
        let keys = Arc::new(Keys::new(std::slice::from_ref(&public)).unwrap());
        let accounts = ServiceAccountTokens::new(keys, rules, objects, metrics, clock);
        let verifiers: [Arc<dyn Verifier>; 3] =
            [Arc::new(certificates), Arc::new(TokenFile::default()), Arc::new(accounts)];
        let config = AuthenticatorConfig {
            anonymous: Arc::new(Identity::default()),
            admits_anonymous: false,
            authenticated_group: "system:authenticated".into(),
            audiences: ["us".to_owned()].into(),
        };
        Guard {
            authenticator: Authenticator::new(Arc::new(verifiers), Arc::new(config)),
            signing: SigningKey::new(key).unwrap().unwrap(),
            public,
            chain: [own.to_der().unwrap()].into(),
            _stores: stores,
        }
    }

    async fn who(&self, credentials: Credentials) -> Arc<Identity> {
        match self.authenticator.authenticate(credentials) {
            Answer::Now(found) => found.unwrap().identity,
            Answer::Later(found) => found.await.unwrap().identity,
        }
    }

    /// The least that a token costs.
    fn check_signature(&self, token: &str) {
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = decoded(signature);
        let mut verifier = Signature::new(MessageDigest::sha256(), &self.public).unwrap();
        assert!(verifier.verify_oneshot(&signature, signed.as_bytes()).unwrap());
    }

    /// The same for somebody whose answer must be at hand.
    fn at_once(&self, credentials: Credentials) -> Arc<Identity> {
        match self.authenticator.authenticate(credentials) {
            Answer::Now(found) => found.unwrap().identity,
            Answer::Later(_) => panic!("nothing has changed: the answer is at hand"),
        }
    }
}

fn bearer(token: &str) -> Credentials {
    Credentials { bearer: Some(token.to_owned()), ..Credentials::default() }
}

fn main() {
    let system = actix::System::new();
    let guard = system.block_on(Guard::new());
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("authentication");

    let certificates = Credentials { certificates: Some(guard.chain.clone()), ..Credentials::default() };
    group.bench_function("certificate, remembered", |bencher| {
        bencher.iter(|| black_box(guard.at_once(certificates.clone())));
    });

    let tokens: Vec<String> = (0..TOKENS).map(|id| token(&guard.signing, id)).collect();
    let known = bearer(&tokens[0]);
    // The first look finds the stores, the second one finds everything in place.
    for _ in 0..2 {
        system.block_on(guard.who(known.clone()));
    }
    group.bench_function("service account token, remembered", |bencher| {
        bencher.iter(|| black_box(guard.at_once(known.clone())));
    });

    let mut shown = tokens.iter().cycle();
    group.bench_function("service account token RS256, new", |bencher| {
        // The account is looked up as well, for which the store is asked: only the part on this thread counts.
        bencher.iter(|| black_box(guard.authenticator.authenticate(bearer(shown.next().unwrap()))));
    });

    let mut shown = tokens.iter().cycle();
    group.bench_function("floor: the signature alone, RS256", |bencher| {
        bencher.iter(|| guard.check_signature(shown.next().unwrap()));
    });
    group.finish();
    criterion.final_summary();
    compare(&guard, &tokens);
}

/// A new token against its floor, by turns: whatever else the machine does meets both.
fn compare(guard: &Guard, tokens: &[String]) {
    const ROUNDS: usize = 41;
    let timed = |act: &dyn Fn(&str)| {
        let began = Instant::now();
        tokens.iter().for_each(|token| act(token));
        began.elapsed().as_secs_f64()
    };
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let floor = timed(&|token| guard.check_signature(token));
            timed(&|token| drop(black_box(guard.authenticator.authenticate(bearer(token))))) / floor
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("a new RS256 token costs {:.2} of the signature alone (goal 1.2)", ratios[ROUNDS / 2]);
}

/// The bytes of a text in the alphabet of tokens.
fn decoded(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(text).unwrap()
}
