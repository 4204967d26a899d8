use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use openssl::ec::{EcGroup, EcKey};
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use pilothouse_actors::directory::{self, Find, Options, Stores};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::{Create, Freshness, Get, Remove, Store};
use pilothouse_types::clock::Timestamp;
use pilothouse_types::object::{Draft, Key, Object, Pairs, StoredDraft, TypeName};
use serde_json::{Value, json};

use super::*;
use crate::auth::jwt::SigningKey;
use crate::auth::service_account::claims::{Bound, Grant, Reference};

mod held;

const START: Timestamp = Timestamp(1_790_000_000_000_000);

/// Stores, a signing key, and a verifier that uses both.
struct Fixture {
    stores: Stores,
    key: PKey<Private>,
    clock: Clock,
    verifier: ServiceAccountTokens,
}

fn key() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
}

impl Fixture {
    fn new(lookup: bool) -> Fixture {
        let clock = Clock::manual(START);
        let options = Options { clock: clock.clone(), ..Options::default() };
        let stores = directory::start(Box::new(Memory::new()), options).unwrap();
        Fixture::over(stores, clock, lookup)
    }

    fn over(stores: Stores, clock: Clock, lookup: bool) -> Fixture {
        let key = key();
        let public = PKey::public_key_from_der(&key.public_key_to_der().unwrap()).unwrap();
        let rules = VerifierSettings {
            issuers: vec!["https://us".into(), "https://before".into()],
            audiences: vec!["us".into()],
            lookup,
        };
        let objects = Arc::new(TokenObjects::new(&stores));
        let keys = Arc::new(Keys::new(&[public]).unwrap());
        let metrics = Arc::new(Metrics::new(clock.now()).unwrap());
        let verifier =
            ServiceAccountTokens::new(TrustedKeys::Own(keys), rules, objects, metrics, clock.clone());
        Fixture { stores, key, clock, verifier }
    }

    async fn store(&self, plural: &str) -> Addr<Store> {
        self.stores.directory.send(Find { type_name: TypeName::new(plural) }).await.unwrap().unwrap()
    }

    async fn put(&self, plural: &str, key: &str, object: &Value) {
        self.put_stored(plural, draft(key, object), None).await;
    }

    async fn put_stored(&self, plural: &str, draft: Draft, stored: Option<StoredDraft>) {
        let store = self.store(plural).await;
        store.send(Create { draft, stored, permit: Permit::none() }).await.unwrap().unwrap();
    }

    async fn delete(&self, plural: &str, key: &str) {
        let (store, key) = (self.store(plural).await, Key::from_path(key));
        let permit = Permit::none();
        let result: Arc<Object> = store
            .send(Get { freshness: Freshness::Latest, key: key.clone(), permit: permit.clone() })
            .await
            .unwrap()
            .unwrap();
        store.send(Remove { key, expected: result.revision, permit }).await.unwrap().unwrap();
    }

    fn sign(&self, claims: &Value) -> String {
        SigningKey::new(self.key.clone()).unwrap().unwrap().sign(claims).unwrap()
    }

    fn token(&self, change: impl FnOnce(&mut Value)) -> String {
        let mut claims = grant().claims("https://us", "id", self.clock.now());
        change(&mut claims);
        self.sign(&claims)
    }

    async fn verdict(&self, token: &str) -> Verification {
        let credentials = Credentials { bearer: Some(token.to_owned()), ..Credentials::default() };
        match self.verifier.verify(&credentials) {
            Answer::Now(verdict) => verdict,
            Answer::Later(verdict) => verdict.await,
        }
    }

    async fn refusal(&self, token: &str) -> String {
        match self.verdict(token).await {
            Verification::Refused(reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    async fn is_known(&self, token: &str) -> bool {
        matches!(self.verdict(token).await, Verification::KnownFor(..))
    }
}

fn grant() -> Grant {
    let account = Reference { name: "sa".into(), uid: "u".into() };
    let bound = Bound { namespace: "n".into(), serviceaccount: account, ..Bound::default() };
    Grant { bound, audiences: vec!["us".into()], seconds: 600, warn_after_seconds: None }
}

fn object(uid: &str) -> Value {
    json!({"metadata": {"uid": uid}})
}

fn draft(key: &str, object: &Value) -> Draft {
    let mut object = object.clone();
    object["metadata"]["resourceVersion"] = "".into();
    let text = object.to_string();
    let revision_offset = text.find(r#""resourceVersion":""#).unwrap() + r#""resourceVersion":""#.len();
    Draft {
        key: Key::from_path(key),
        bytes: Bytes::from(text),
        revision_offset,
        item_offset: 1,
        labels: Pairs::default(),
        fields: Pairs::default(),
    }
}

#[actix::test]
async fn verified_token_is_cached_until_its_objects_change() {
    let fixture = Fixture::new(true);
    fixture.put("serviceaccounts", "n/sa", &object("u")).await;
    let token = fixture.token(|_| {});
    let Verification::KnownFor(Authenticated { identity, .. }) = fixture.verdict(&token).await else {
        panic!("known")
    };
    assert_eq!(identity.name, "system:serviceaccount:n:sa");
    assert!(fixture.is_known(&token).await);
    let is_immediate = |token: &str| matches!(fixture.verifier.examine(token, &[]), Answer::Now(Ok(Some(_))));
    assert!(is_immediate(&token), "nothing has changed");
    fixture.put("pods", "n/p", &object("p")).await;
    assert!(is_immediate(&token), "the token is not bound to a pod");
    fixture.put("serviceaccounts", "n/other", &object("v")).await;
    assert!(!is_immediate(&token), "an account has changed");
    assert!(fixture.is_known(&token).await && is_immediate(&token));
    fixture.delete("serviceaccounts", "n/sa").await;
    assert_eq!(fixture.refusal(&token).await, "serviceaccounts \"sa\" not found");
    fixture.put("serviceaccounts", "n/sa", &object("w")).await;
    assert_eq!(fixture.refusal(&token).await, "service account UID (w) does not match claim (u)");
}

#[actix::test]
async fn foreign_token_is_ignored_and_invalid_one_refused() {
    let fixture = Fixture::new(true);
    fixture.put("serviceaccounts", "n/sa", &object("u")).await;
    let long = format!("{}.{}.{}", "a".repeat(9_000), "b".repeat(9_000), "c");
    let foreign = fixture.token(|claims| claims["iss"] = "https://them".into());
    let mistyped = fixture.token(|claims| claims["iss"] = 7.into());
    for token in ["", "x", "a.b.c", "abcdef.0123456789abcdef", &long, &foreign, &mistyped] {
        assert_eq!(fixture.verdict(token).await, Verification::NoOpinion, "{token}");
    }
    assert_eq!(fixture.verifier.verify(&Credentials::default()).immediate(), Some(Verification::NoOpinion));

    for (change, expected) in [
        (("aud", json!(["them"])), "token audiences [\"them\"] is invalid"),
        (("exp", json!(START.seconds() - 61)), "has expired"),
        (("nbf", json!(START.seconds() + 61)), "is not valid yet"),
        (("iat", json!(START.seconds() + 61)), "issued in the future"),
        (("kubernetes.io", Value::Null), "names no service account"),
    ] {
        let reason = fixture.refusal(&fixture.token(|claims| claims[change.0] = change.1.clone())).await;
        assert!(reason.contains(expected), "{change:?}: {reason}");
    }
    let other = Fixture::new(true);
    assert_eq!(fixture.refusal(&other.token(|_| {})).await, "invalid signature, no keys found");
    assert!(fixture.is_known(&fixture.token(|claims| claims["iss"] = "https://before".into())).await);
    assert!(fixture.is_known(&fixture.token(|claims| claims["aud"] = "us".into())).await);
    assert!(
        fixture.is_known(&fixture.token(|claims| drop(claims.as_object_mut().unwrap().remove("aud")))).await
    );
}

#[actix::test]
async fn empty_claims_match_no_object_and_no_audience() {
    let fixture = Fixture::new(true);
    fixture.put("serviceaccounts", "n/sa", &object("u")).await;
    fixture.put("pods", "n/p", &object("1")).await;
    let absent = |path: &'static [&'static str]| (path, None);
    let present = |path: &'static [&'static str], value: Value| (path, Some(value));
    for ((path, value), is_known) in [
        // A token without audiences is for this server, like legacy tokens; an empty audience is another one.
        (absent(&["aud"]), true),
        (present(&["aud"], json!([])), true),
        (present(&["aud"], json!([""])), false),
        (present(&["aud"], json!("")), false),
        (present(&["aud"], json!(["", "us"])), true),
        (present(&["iss"], json!("")), false),
        (absent(&["iss"]), false),
        // The issuer of legacy tokens issues no others.
        (present(&["iss"], json!("kubernetes/serviceaccount")), false),
        // An empty UID matches no object.
        (present(&["kubernetes.io", "serviceaccount", "uid"], json!("")), false),
        (absent(&["kubernetes.io", "serviceaccount", "uid"]), false),
        (present(&["kubernetes.io", "serviceaccount", "name"], json!("")), false),
        (present(&["kubernetes.io", "namespace"], json!("")), false),
        (absent(&["kubernetes.io", "namespace"]), false),
        (absent(&["kubernetes.io"]), false),
        (present(&["kubernetes.io"], json!({})), false),
        // A token with an empty bound object is still bound.
        (present(&["kubernetes.io", "pod"], Value::Null), true),
        (present(&["kubernetes.io", "pod"], json!({})), false),
        (present(&["kubernetes.io", "pod"], json!({"name": "p"})), false),
        (present(&["kubernetes.io", "pod"], json!({"uid": "1"})), false),
        (present(&["kubernetes.io", "pod"], json!({"name": "p", "uid": "1"})), true),
        (present(&["kubernetes.io", "secret"], json!({})), false),
        (present(&["kubernetes.io", "node"], json!({})), false),
    ] {
        let token = fixture.token(|claims| {
            let (last, before) = path.split_last().unwrap();
            let fields = before.iter().fold(claims, |fields, field| &mut fields[*field]);
            match &value {
                Some(value) => fields[*last] = value.clone(),
                None => drop(fields.as_object_mut().unwrap().remove(*last)),
            }
        });
        assert_eq!(fixture.is_known(&token).await, is_known, "{path:?} {value:?}");
    }
}

#[actix::test]
async fn cached_token_expires() {
    let fixture = Fixture::new(true);
    fixture.put("serviceaccounts", "n/sa", &object("u")).await;
    let token = fixture.token(|_| {});
    assert!(fixture.is_known(&token).await && fixture.is_known(&token).await);
    fixture.clock.advance(Duration::from_secs(660));
    assert!(fixture.is_known(&token).await);
    fixture.clock.advance(Duration::from_secs(1));
    assert_eq!(fixture.refusal(&token).await, "service account token has expired");
}

#[actix::test]
async fn bound_token_is_invalid_after_its_object_is_deleted() {
    let fixture = Fixture::new(true);
    fixture.put("serviceaccounts", "n/sa", &object("u")).await;
    for (field, plural, key) in [("secret", "secrets", "n/x"), ("pod", "pods", "n/x"), ("node", "nodes", "x")]
    {
        let token = fixture.token(|claims| claims["kubernetes.io"][field] = json!({"name": "x", "uid": "1"}));
        let invalidated = "service account token has been invalidated";
        assert_eq!(fixture.refusal(&token).await, invalidated, "{field}");
        fixture.put(plural, key, &object("1")).await;
        for _ in 0..3 {
            assert!(fixture.is_known(&token).await, "{field}");
        }
        fixture.delete(plural, key).await;
        assert_eq!(fixture.refusal(&token).await, invalidated, "{field}");
        fixture.put(plural, key, &object("2")).await;
        let reason = fixture.refusal(&token).await;
        assert_eq!(reason, format!("{field} UID (2) does not match service account {field} ref claim (1)"));
        fixture.delete(plural, key).await;
    }
}

#[actix::test]
async fn token_is_invalid_after_deletion_of_its_account_plus_leeway() {
    let fixture = Fixture::new(true);
    let deletion_time =
        pilothouse_apimachinery::time::format_seconds(i64::try_from(START.seconds()).unwrap() + 30);
    let terminating = json!({"metadata": {"uid": "u", "deletionTimestamp": deletion_time}});
    fixture.put("serviceaccounts", "n/sa", &terminating).await;
    let token = fixture.token(|_| {});
    assert!(fixture.is_known(&token).await && fixture.is_known(&token).await);
    fixture.clock.advance(Duration::from_secs(90));
    assert!(fixture.is_known(&token).await);
    fixture.clock.advance(Duration::from_secs(1));
    assert_eq!(fixture.refusal(&token).await, "service account n/sa has been deleted");
}

#[actix::test]
async fn missing_node_of_a_bound_pod_does_not_invalidate_token() {
    let fixture = Fixture::new(true);
    fixture.put("serviceaccounts", "n/sa", &object("u")).await;
    fixture.put("pods", "n/p", &object("1")).await;
    let token = fixture.token(|claims| {
        claims["kubernetes.io"]["pod"] = json!({"name": "p", "uid": "1"});
        claims["kubernetes.io"]["node"] = json!({"name": "gone", "uid": "2"});
    });
    let Verification::KnownFor(Authenticated { identity, .. }) = fixture.verdict(&token).await else {
        panic!("known")
    };
    assert_eq!(identity.extra["authentication.kubernetes.io/node-name"], ["gone"]);
}

fn legacy_claims() -> Value {
    json!({
        "iss": "kubernetes/serviceaccount",
        "sub": "system:serviceaccount:n:sa",
        "kubernetes.io/serviceaccount/namespace": "n",
        "kubernetes.io/serviceaccount/secret.name": "s",
        "kubernetes.io/serviceaccount/service-account.name": "sa",
        "kubernetes.io/serviceaccount/service-account.uid": "u",
    })
}

#[actix::test]
async fn legacy_token_must_match_its_secret() {
    use base64::Engine as _;
    let fixture = Fixture::new(true);
    fixture.put("serviceaccounts", "n/sa", &object("u")).await;
    let token = fixture.sign(&legacy_claims());
    let secret = |token: &str, labels: Value| {
        let token = base64::prelude::BASE64_STANDARD.encode(token);
        json!({"metadata": {"labels": labels, "uid": "x"}, "data": {"token": token}})
    };
    assert_eq!(fixture.refusal(&token).await, "Token has been invalidated");
    fixture.put("secrets", "n/s", &secret(&token, json!({}))).await;
    let Verification::KnownFor(Authenticated { identity, .. }) = fixture.verdict(&token).await else {
        panic!("known")
    };
    assert_eq!((&*identity.uid, identity.extra.len()), ("u", 0));
    assert!(fixture.is_known(&token).await && fixture.is_known(&token).await);
    fixture.delete("secrets", "n/s").await;
    fixture.put("secrets", "n/s", &secret("another", json!({}))).await;
    assert_eq!(fixture.refusal(&token).await, "Token does not match server's copy");
    fixture.delete("secrets", "n/s").await;
    let marked = json!({"kubernetes.io/legacy-token-invalid-since": "2024-01-01"});
    fixture.put("secrets", "n/s", &secret(&token, marked)).await;
    assert!(fixture.refusal(&token).await.contains("has been marked invalid"));
    fixture.delete("serviceaccounts", "n/sa").await;
    assert_eq!(fixture.refusal(&token).await, "serviceaccounts \"sa\" not found");

    let without_lookup = Fixture::new(false);
    assert!(
        without_lookup.is_known(&without_lookup.sign(&legacy_claims())).await,
        "objects are not looked up"
    );
    let mut mismatched = legacy_claims();
    mismatched["sub"] = "system:serviceaccount:n:other".into();
    assert_eq!(without_lookup.refusal(&without_lookup.sign(&mismatched)).await, "sub claim is invalid");
}

#[actix::test]
async fn token_review_verifies_requested_audiences() {
    let fixture = Fixture::new(true);
    fixture.put("serviceaccounts", "n/sa", &object("u")).await;
    let token = fixture.token(|claims| claims["aud"] = json!(["a", "b"]));
    assert!(fixture.refusal(&token).await.contains("invalid for the target audiences"));
    let requested = ["b".to_owned(), "c".to_owned()];
    let result = match fixture.verifier.examine(&token, &requested) {
        Answer::Now(result) => result,
        Answer::Later(result) => result.await,
    };
    assert_eq!(result.unwrap().unwrap().audiences, ["b"]);
}

#[actix::test]
async fn token_cache_is_bounded() {
    let fixture = Fixture::new(false);
    for number in 0..CACHED_TOKENS + 2 {
        let mut claims = legacy_claims();
        claims["jti"] = number.to_string().into();
        assert!(fixture.is_known(&fixture.sign(&claims)).await);
    }
    assert!(fixture.verifier.0.cache.lock().len() <= CACHED_TOKENS);
}

/// The value of an immediate answer.
trait Immediate<T> {
    fn immediate(self) -> Option<T>;
}

impl<T> Immediate<T> for Answer<T> {
    fn immediate(self) -> Option<T> {
        match self {
            Answer::Now(result) => Some(result),
            Answer::Later(_) => None,
        }
    }
}

/// The warnings and audit annotations of a valid token.
async fn remarks(fixture: &Fixture, token: &str) -> (Vec<&'static str>, Vec<(&'static str, String)>) {
    use pilothouse_types::authentication::Remark;
    let Verification::KnownFor(authenticated) = fixture.verdict(token).await else { panic!("known") };
    let (mut warnings, mut annotations) = (Vec::new(), Vec::new());
    for remark in authenticated.remarks {
        match remark {
            Remark::Warning(text) => warnings.push(text),
            Remark::Annotation(key, text) => annotations.push((key, text)),
        }
    }
    (warnings, annotations)
}

#[actix::test]
async fn cached_token_becomes_stale() {
    let fixture = Fixture::new(true);
    fixture.put("serviceaccounts", "n/sa", &object("u")).await;
    let counters = |fixture: &Fixture| {
        let tokens = &fixture.verifier.0.metrics.tokens;
        (tokens.valid.get(), tokens.stale.get(), tokens.legacy.get())
    };
    let token = fixture.token(|claims| claims["kubernetes.io"]["warnafter"] = json!(START.seconds() + 100));
    for _ in 0..2 {
        assert_eq!(remarks(&fixture, &token).await, (vec![], vec![]));
    }
    fixture.clock.advance(Duration::from_secs(100));
    assert_eq!(remarks(&fixture, &token).await, (vec![], vec![]), "not yet");
    assert_eq!(counters(&fixture), (3, 0, 0));
    fixture.clock.advance(Duration::from_secs(7));
    for _ in 0..2 {
        let text = "subject: system:serviceaccount:n:sa, seconds after warning threshold: 7".to_owned();
        assert_eq!(
            remarks(&fixture, &token).await,
            (vec![], vec![("authentication.k8s.io/stale-token", text)])
        );
    }
    assert_eq!(counters(&fixture), (3, 2, 0));
    fixture.clock.advance(Duration::from_secs(600));
    assert_eq!(fixture.refusal(&token).await, "service account token has expired", "it expires nevertheless");
    assert_eq!(counters(&fixture), (3, 2, 0));
    // These tokens have no warning threshold.
    let (plain, zero) =
        (fixture.token(|_| {}), fixture.token(|claims| claims["kubernetes.io"]["warnafter"] = 0.into()));
    for token in [&plain, &zero] {
        assert_eq!(remarks(&fixture, token).await, (vec![], vec![]));
    }
    let without_audience = fixture.token(|claims| drop(claims.as_object_mut().unwrap().remove("aud")));
    let text = "system:serviceaccount:n:sa".to_owned();
    assert_eq!(
        remarks(&fixture, &without_audience).await,
        (vec![], vec![("authentication.k8s.io/legacy-token", text)])
    );
    assert_eq!(counters(&fixture), (3, 2, 1));
}

#[actix::test]
async fn legacy_token_gets_warning_and_annotations() {
    use base64::Engine as _;
    let fixture = Fixture::new(true);
    let token = fixture.sign(&legacy_claims());
    let encoded = base64::prelude::BASE64_STANDARD.encode(&token);
    let secret =
        |labels: Value| json!({"metadata": {"uid": "x", "labels": labels}, "data": {"token": encoded}});
    fixture.put("secrets", "n/s", &secret(json!({}))).await;
    fixture.put("serviceaccounts", "n/sa", &object("u")).await;
    let counters = |fixture: &Fixture| {
        let tokens = &fixture.verifier.0.metrics.tokens;
        [&tokens.legacy, &tokens.manual, &tokens.listed, &tokens.invalidated].map(|counter| counter.get())
    };
    let legacy = ("authentication.k8s.io/legacy-token", "system:serviceaccount:n:sa".to_owned());
    let manual = ("authentication.k8s.io/legacy-token-manual-secret", "s".to_owned());
    for _ in 0..2 {
        assert_eq!(remarks(&fixture, &token).await, (vec![], vec![legacy.clone(), manual.clone()]));
    }
    assert_eq!(counters(&fixture), [2, 2, 0, 0]);
    // Now the account lists the Secret.
    fixture.delete("serviceaccounts", "n/sa").await;
    let account = json!({"metadata": {"uid": "u"}, "secrets": [{"name": "other"}, {"name": "s"}]});
    fixture.put("serviceaccounts", "n/sa", &account).await;
    let listed = ("authentication.k8s.io/legacy-token-autogenerated-secret", "s".to_owned());
    for _ in 0..2 {
        let (warnings, annotations) = remarks(&fixture, &token).await;
        assert_eq!(annotations, [legacy.clone(), listed.clone()]);
        assert!(warnings.len() == 1 && warnings[0].starts_with("Use tokens from the TokenRequest API"));
    }
    assert_eq!(counters(&fixture), [4, 2, 2, 0]);
    fixture.delete("secrets", "n/s").await;
    fixture
        .put("secrets", "n/s", &secret(json!({"kubernetes.io/legacy-token-invalid-since": "2024-01-01"})))
        .await;
    assert!(fixture.refusal(&token).await.contains("has been marked invalid"));
    assert_eq!(counters(&fixture), [5, 2, 2, 1]);
    // Without lookup the kind of Secret is unknown.
    let without_lookup = Fixture::new(false);
    let text = "system:serviceaccount:n:sa".to_owned();
    let annotations = vec![("authentication.k8s.io/legacy-token", text)];
    assert_eq!(remarks(&without_lookup, &without_lookup.sign(&legacy_claims())).await, (vec![], annotations));
}
