//! The cost of authentication: a cached certificate, a cached token, and a token that is not cached, beside the bare check of its
//! signature as the floor.
//!
//! `cargo bench --bench authentication`. The bounds: 10 µs for cached credentials, 1.2 times the floor for others.

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
use pilothouse::auth::service_account::verifier::{ServiceAccountTokens, TrustedKeys, VerifierSettings};
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
/// More tokens than the cache holds: used in turn, none is cached.
const TOKENS: usize = 4_200;

/// A certificate signed by `issuer`, or self-signed.
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

/// Stores the service account of all tokens.
async fn store_account(stores: &Stores) {
    let text = r#"{"metadata":{"name":"sa","namespace":"n","uid":"u","resourceVersion":""}}"#;
    let mark = r#""resourceVersion":""#;
    let draft = Draft {
        key: Key::namespaced("n", "sa"),
        bytes: Bytes::from(text),
        revision_offset: text.find(mark).unwrap() + mark.len(),
        item_offset: 1,
        labels: Pairs::default(),
        fields: Pairs::default(),
    };
    let store = stores.directory.send(Find { type_name: TypeName::new("serviceaccounts") }).await;
    store
        .unwrap()
        .unwrap()
        .send(Create { draft, stored: None, permit: Permit::none() })
        .await
        .unwrap()
        .unwrap();
}

/// The default authenticators, and credentials for them.
struct Bench {
    authenticator: Authenticator,
    signing: SigningKey,
    public: PKey<Public>,
    chain: Arc<[Vec<u8>]>,
    _stores: Stores,
}

impl Bench {
    async fn new() -> Bench {
        let clock = Clock::manual(NOW);
        let metrics = Arc::new(Metrics::new(NOW).unwrap());
        let root = certificate("root", None);
        let (_, client_certificate) = certificate("ann", Some(&root));
        let certificate_left = metrics.authentication.certificate_left.clone();
        let pem = root.1.to_pem().unwrap();
        let certificates = CertificateVerifier::new(&pem, true, certificate_left, clock.clone()).unwrap();
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
        let objects = Arc::new(TokenObjects::new(&stores));
        let keys = Arc::new(Keys::new(std::slice::from_ref(&public)).unwrap());
        let accounts = ServiceAccountTokens::new(TrustedKeys::Own(keys), rules, objects, metrics, clock);
        let verifiers: [Arc<dyn Verifier>; 3] =
            [Arc::new(certificates), Arc::new(TokenFile::default()), Arc::new(accounts)];
        let config = AuthenticatorConfig {
            anonymous: Arc::new(Identity::default()),
            admits_anonymous: false,
            authenticated_group: "system:authenticated".into(),
            audiences: ["us".to_owned()].into(),
        };
        Bench {
            authenticator: Authenticator::new(Arc::new(verifiers), Arc::new(config)),
            signing: SigningKey::new(key).unwrap().unwrap(),
            public,
            chain: [client_certificate.to_der().unwrap()].into(),
            _stores: stores,
        }
    }

    async fn authenticate(&self, credentials: Credentials) -> Arc<Identity> {
        match self.authenticator.authenticate(credentials) {
            Answer::Now(authentication) => authentication.unwrap().identity,
            Answer::Later(authentication) => authentication.await.unwrap().identity,
        }
    }

    /// The floor of a token.
    fn check_signature(&self, token: &str) {
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = decode_base64url(signature);
        let mut verifier = Signature::new(MessageDigest::sha256(), &self.public).unwrap();
        assert!(verifier.verify_oneshot(&signature, signed.as_bytes()).unwrap());
    }

    /// Authenticates with credentials that must be cached.
    fn authenticate_cached(&self, credentials: Credentials) -> Arc<Identity> {
        match self.authenticator.authenticate(credentials) {
            Answer::Now(authentication) => authentication.unwrap().identity,
            Answer::Later(_) => panic!("the credentials are not cached"),
        }
    }
}

fn bearer(token: &str) -> Credentials {
    Credentials { bearer: Some(token.to_owned()), ..Credentials::default() }
}

fn main() {
    let system = actix::System::new();
    let bench = system.block_on(Bench::new());
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("authentication");

    let certificates = Credentials { certificates: Some(bench.chain.clone()), ..Credentials::default() };
    group.bench_function("certificate, remembered", |bencher| {
        bencher.iter(|| black_box(bench.authenticate_cached(certificates.clone())));
    });

    let tokens: Vec<String> = (0..TOKENS).map(|id| token(&bench.signing, id)).collect();
    let cached = bearer(&tokens[0]);
    // The first call finds the stores, the second one fills the cache.
    for _ in 0..2 {
        system.block_on(bench.authenticate(cached.clone()));
    }
    group.bench_function("service account token, remembered", |bencher| {
        bencher.iter(|| black_box(bench.authenticate_cached(cached.clone())));
    });

    let mut token_cycle = tokens.iter().cycle();
    group.bench_function("service account token RS256, new", |bencher| {
        // The account is looked up in its store as well: only the part on this thread counts.
        bencher.iter(|| black_box(bench.authenticator.authenticate(bearer(token_cycle.next().unwrap()))));
    });

    let mut token_cycle = tokens.iter().cycle();
    group.bench_function("floor: the signature alone, RS256", |bencher| {
        bencher.iter(|| bench.check_signature(token_cycle.next().unwrap()));
    });
    group.finish();
    criterion.final_summary();
    compare(&bench, &tokens);
}

/// Measures a new token and its floor in turn, so that other load on the machine affects both.
fn compare(bench: &Bench, tokens: &[String]) {
    const ROUNDS: usize = 41;
    let timed = |act: &dyn Fn(&str)| {
        let start = Instant::now();
        tokens.iter().for_each(|token| act(token));
        start.elapsed().as_secs_f64()
    };
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let floor = timed(&|token| bench.check_signature(token));
            timed(&|token| drop(black_box(bench.authenticator.authenticate(bearer(token))))) / floor
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("a new RS256 token costs {:.2} of the signature alone (goal 1.2)", ratios[ROUNDS / 2]);
}

/// The bytes of a text in the alphabet of tokens.
fn decode_base64url(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(text).unwrap()
}
