use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use openssl::ec::{EcGroup, EcKey};
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use pilothouse_actors::directory::{self, Find, Options, Stores};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::{Create, Get, Remove, Store};
use pilothouse_types::clock::Timestamp;
use pilothouse_types::object::{Draft, Key, Object, Pairs, TypeName};
use serde_json::{Value, json};

use super::*;
use crate::auth::jwt::SigningKey;
use crate::auth::service_account::claims::{Bound, Grant, Reference};

const START: Timestamp = Timestamp(1_790_000_000_000_000);

/// Stores with some objects, a key, and a verifier of both.
struct House {
    stores: Stores,
    key: PKey<Private>,
    clock: Clock,
    verifier: ServiceAccountTokens,
}

fn key() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
}

impl House {
    fn new(lookup: bool) -> House {
        let clock = Clock::manual(START);
        let stores =
            directory::start(Box::new(Memory::new()), Options { clock: clock.clone(), ..Options::default() })
                .unwrap();
        let key = key();
        let public = PKey::public_key_from_der(&key.public_key_to_der().unwrap()).unwrap();
        let rules = VerifierSettings {
            issuers: vec!["https://us".into(), "https://before".into()],
            audiences: vec!["us".into()],
            lookup,
        };
        let objects = Arc::new(TokenObjects::new(stores.directory.clone()));
        let keys = Arc::new(Keys::new(&[public]).unwrap());
        let metrics = Arc::new(Metrics::new(clock.now()).unwrap());
        let verifier = ServiceAccountTokens::new(keys, rules, objects, metrics, clock.clone());
        House { stores, key, clock, verifier }
    }

    async fn store(&self, plural: &str) -> Addr<Store> {
        self.stores.directory.send(Find { type_name: TypeName::new(plural) }).await.unwrap().unwrap()
    }

    async fn put(&self, plural: &str, key: &str, object: &Value) {
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = "".into();
        let text = object.to_string();
        let revision_at = text.find(r#""resourceVersion":""#).unwrap() + r#""resourceVersion":""#.len();
        let draft = Draft {
            key: Key::from_path(key),
            bytes: Bytes::from(text),
            revision_at,
            item_at: 1,
            labels: Pairs::default(),
            fields: Pairs::default(),
        };
        let store = self.store(plural).await;
        store.send(Create { draft, permit: Permit::none() }).await.unwrap().unwrap();
    }

    async fn delete(&self, plural: &str, key: &str) {
        let (store, key) = (self.store(plural).await, Key::from_path(key));
        let permit = Permit::none();
        let found: Arc<Object> =
            store.send(Get { key: key.clone(), permit: permit.clone() }).await.unwrap().unwrap();
        store.send(Remove { key, expected: found.revision, permit }).await.unwrap().unwrap();
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

    async fn refused(&self, token: &str) -> String {
        match self.verdict(token).await {
            Verification::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    async fn known(&self, token: &str) -> bool {
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

#[actix::test]
async fn a_good_token_is_known_and_needs_no_message_the_next_time() {
    let house = House::new(true);
    house.put("serviceaccounts", "n/sa", &object("u")).await;
    let token = house.token(|_| {});
    let Verification::KnownFor(Authenticated { identity, .. }) = house.verdict(&token).await else {
        panic!("known")
    };
    assert_eq!(identity.name, "system:serviceaccount:n:sa");
    assert!(house.known(&token).await);
    let now = |token: &str| matches!(house.verifier.examine(token, &[]), Answer::Now(Ok(Some(_))));
    assert!(now(&token), "nothing has changed");
    house.put("pods", "n/p", &object("p")).await;
    assert!(now(&token), "the token hangs on no pod");
    house.put("serviceaccounts", "n/other", &object("v")).await;
    assert!(!now(&token), "an account has changed");
    assert!(house.known(&token).await && now(&token));
    house.delete("serviceaccounts", "n/sa").await;
    assert_eq!(house.refused(&token).await, "serviceaccounts \"sa\" not found");
    house.put("serviceaccounts", "n/sa", &object("w")).await;
    assert_eq!(house.refused(&token).await, "service account UID (w) does not match claim (u)");
}

#[actix::test]
async fn what_is_not_ours_is_nobodys_and_what_is_wrong_is_refused() {
    let house = House::new(true);
    house.put("serviceaccounts", "n/sa", &object("u")).await;
    let long = format!("{}.{}.{}", "a".repeat(9_000), "b".repeat(9_000), "c");
    let strange = house.token(|claims| claims["iss"] = "https://them".into());
    let typed = house.token(|claims| claims["iss"] = 7.into());
    for token in ["", "x", "a.b.c", "abcdef.0123456789abcdef", &long, &strange, &typed] {
        assert_eq!(house.verdict(token).await, Verification::NoOpinion, "{token}");
    }
    assert_eq!(house.verifier.verify(&Credentials::default()).now(), Some(Verification::NoOpinion));

    for (change, part) in [
        (("aud", json!(["them"])), "token audiences [\"them\"] is invalid"),
        (("exp", json!(START.seconds() - 61)), "has expired"),
        (("nbf", json!(START.seconds() + 61)), "is not valid yet"),
        (("iat", json!(START.seconds() + 61)), "issued in the future"),
        (("kubernetes.io", Value::Null), "names no service account"),
    ] {
        let why = house.refused(&house.token(|claims| claims[change.0] = change.1.clone())).await;
        assert!(why.contains(part), "{change:?}: {why}");
    }
    let other = House::new(true);
    assert_eq!(house.refused(&other.token(|_| {})).await, "invalid signature, no keys found");
    assert!(house.known(&house.token(|claims| claims["iss"] = "https://before".into())).await);
    assert!(house.known(&house.token(|claims| claims["aud"] = "us".into())).await);
    assert!(house.known(&house.token(|claims| drop(claims.as_object_mut().unwrap().remove("aud")))).await);
}

/// What empty and absent claims mean.
#[actix::test]
async fn empty_claims_match_no_object_and_no_audience() {
    let house = House::new(true);
    house.put("serviceaccounts", "n/sa", &object("u")).await;
    house.put("pods", "n/p", &object("1")).await;
    let absent = |place: &'static [&'static str]| (place, None);
    let said = |place: &'static [&'static str], value: Value| (place, Some(value));
    for ((place, value), is_known) in [
        // No audience is that of this server, as in legacy tokens; an empty one is another.
        (absent(&["aud"]), true),
        (said(&["aud"], json!([])), true),
        (said(&["aud"], json!([""])), false),
        (said(&["aud"], json!("")), false),
        (said(&["aud"], json!(["", "us"])), true),
        (said(&["iss"], json!("")), false),
        (absent(&["iss"]), false),
        // The issuer of legacy tokens issues no others.
        (said(&["iss"], json!("kubernetes/serviceaccount")), false),
        // An empty uid is not any uid.
        (said(&["kubernetes.io", "serviceaccount", "uid"], json!("")), false),
        (absent(&["kubernetes.io", "serviceaccount", "uid"]), false),
        (said(&["kubernetes.io", "serviceaccount", "name"], json!("")), false),
        (said(&["kubernetes.io", "namespace"], json!("")), false),
        (absent(&["kubernetes.io", "namespace"]), false),
        (absent(&["kubernetes.io"]), false),
        (said(&["kubernetes.io"], json!({})), false),
        // A token that is bound to something unnamed is bound all the same.
        (said(&["kubernetes.io", "pod"], Value::Null), true),
        (said(&["kubernetes.io", "pod"], json!({})), false),
        (said(&["kubernetes.io", "pod"], json!({"name": "p"})), false),
        (said(&["kubernetes.io", "pod"], json!({"uid": "1"})), false),
        (said(&["kubernetes.io", "pod"], json!({"name": "p", "uid": "1"})), true),
        (said(&["kubernetes.io", "secret"], json!({})), false),
        (said(&["kubernetes.io", "node"], json!({})), false),
    ] {
        let token = house.token(|claims| {
            let (last, before) = place.split_last().unwrap();
            let fields = before.iter().fold(claims, |fields, field| &mut fields[*field]);
            match &value {
                Some(value) => fields[*last] = value.clone(),
                None => drop(fields.as_object_mut().unwrap().remove(*last)),
            }
        });
        assert_eq!(house.known(&token).await, is_known, "{place:?} {value:?}");
    }
}

#[actix::test]
async fn a_remembered_token_still_ends() {
    let house = House::new(true);
    house.put("serviceaccounts", "n/sa", &object("u")).await;
    let token = house.token(|_| {});
    assert!(house.known(&token).await && house.known(&token).await);
    house.clock.advance(Duration::from_secs(660));
    assert!(house.known(&token).await);
    house.clock.advance(Duration::from_secs(1));
    assert_eq!(house.refused(&token).await, "service account token has expired");
}

#[actix::test]
async fn a_bound_token_ends_with_its_object() {
    let house = House::new(true);
    house.put("serviceaccounts", "n/sa", &object("u")).await;
    for (field, plural, key) in [("secret", "secrets", "n/x"), ("pod", "pods", "n/x"), ("node", "nodes", "x")]
    {
        let token = house.token(|claims| claims["kubernetes.io"][field] = json!({"name": "x", "uid": "1"}));
        let invalidated = "service account token has been invalidated";
        assert_eq!(house.refused(&token).await, invalidated, "{field}");
        house.put(plural, key, &object("1")).await;
        for _ in 0..3 {
            assert!(house.known(&token).await, "{field}");
        }
        house.delete(plural, key).await;
        assert_eq!(house.refused(&token).await, invalidated, "{field}");
        house.put(plural, key, &object("2")).await;
        let why = house.refused(&token).await;
        assert_eq!(why, format!("{field} UID (2) does not match service account {field} ref claim (1)"));
        house.delete(plural, key).await;
    }
}

#[actix::test]
async fn an_object_that_is_going_takes_its_tokens_along_a_minute_later() {
    let house = House::new(true);
    let deletion_time =
        pilothouse_apimachinery::time::format_seconds(i64::try_from(START.seconds()).unwrap() + 30);
    let going = json!({"metadata": {"uid": "u", "deletionTimestamp": deletion_time}});
    house.put("serviceaccounts", "n/sa", &going).await;
    let token = house.token(|_| {});
    assert!(house.known(&token).await && house.known(&token).await);
    house.clock.advance(Duration::from_secs(90));
    assert!(house.known(&token).await);
    house.clock.advance(Duration::from_secs(1));
    assert_eq!(house.refused(&token).await, "service account n/sa has been deleted");
}

#[actix::test]
async fn the_node_of_a_pod_is_only_a_remark() {
    let house = House::new(true);
    house.put("serviceaccounts", "n/sa", &object("u")).await;
    house.put("pods", "n/p", &object("1")).await;
    let token = house.token(|claims| {
        claims["kubernetes.io"]["pod"] = json!({"name": "p", "uid": "1"});
        claims["kubernetes.io"]["node"] = json!({"name": "gone", "uid": "2"});
    });
    let Verification::KnownFor(Authenticated { identity, .. }) = house.verdict(&token).await else {
        panic!("known")
    };
    assert_eq!(identity.extra["authentication.kubernetes.io/node-name"], ["gone"]);
}

fn of_secret() -> Value {
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
async fn a_token_of_a_secret_is_worth_what_the_secret_says() {
    use base64::Engine as _;
    let house = House::new(true);
    house.put("serviceaccounts", "n/sa", &object("u")).await;
    let token = house.sign(&of_secret());
    let kept = |token: &str, labels: Value| {
        let token = base64::prelude::BASE64_STANDARD.encode(token);
        json!({"metadata": {"labels": labels, "uid": "x"}, "data": {"token": token}})
    };
    assert_eq!(house.refused(&token).await, "Token has been invalidated");
    house.put("secrets", "n/s", &kept(&token, json!({}))).await;
    let Verification::KnownFor(Authenticated { identity, .. }) = house.verdict(&token).await else {
        panic!("known")
    };
    assert_eq!((&*identity.uid, identity.extra.len()), ("u", 0));
    assert!(house.known(&token).await && house.known(&token).await);
    house.delete("secrets", "n/s").await;
    house.put("secrets", "n/s", &kept("another", json!({}))).await;
    assert_eq!(house.refused(&token).await, "Token does not match server's copy");
    house.delete("secrets", "n/s").await;
    let marked = json!({"kubernetes.io/legacy-token-invalid-since": "2024-01-01"});
    house.put("secrets", "n/s", &kept(&token, marked)).await;
    assert!(house.refused(&token).await.contains("has been marked invalid"));
    house.delete("serviceaccounts", "n/sa").await;
    assert_eq!(house.refused(&token).await, "serviceaccounts \"sa\" not found");

    let trusting = House::new(false);
    assert!(trusting.known(&trusting.sign(&of_secret())).await, "nobody looks it up");
    let mut lacking = of_secret();
    lacking["sub"] = "system:serviceaccount:n:other".into();
    assert_eq!(trusting.refused(&trusting.sign(&lacking)).await, "sub claim is invalid");
}

#[actix::test]
async fn a_review_asks_for_other_audiences() {
    let house = House::new(true);
    house.put("serviceaccounts", "n/sa", &object("u")).await;
    let token = house.token(|claims| claims["aud"] = json!(["a", "b"]));
    assert!(house.refused(&token).await.contains("invalid for the target audiences"));
    let wanted = ["b".to_owned(), "c".to_owned()];
    let found = match house.verifier.examine(&token, &wanted) {
        Answer::Now(found) => found,
        Answer::Later(found) => found.await,
    };
    assert_eq!(found.unwrap().unwrap().audiences, ["b"]);
}

#[actix::test]
async fn many_tokens_do_not_grow_the_memory() {
    let house = House::new(false);
    for number in 0..TOKENS_REMEMBERED + 2 {
        let mut claims = of_secret();
        claims["jti"] = number.to_string().into();
        assert!(house.known(&house.sign(&claims)).await);
    }
    assert!(house.verifier.0.remembered.lock().len() <= TOKENS_REMEMBERED);
}

/// What is at hand.
trait Now<T> {
    fn now(self) -> Option<T>;
}

impl<T> Now<T> for Answer<T> {
    fn now(self) -> Option<T> {
        match self {
            Answer::Now(found) => Some(found),
            Answer::Later(_) => None,
        }
    }
}

/// What is said of a token that is good: the warnings, and what is written down.
async fn said(house: &House, token: &str) -> (Vec<&'static str>, Vec<(&'static str, String)>) {
    use pilothouse_types::authentication::Remark;
    let Verification::KnownFor(bearer) = house.verdict(token).await else { panic!("known") };
    let (mut warnings, mut annotations) = (Vec::new(), Vec::new());
    for remark in bearer.remarks {
        match remark {
            Remark::Warning(text) => warnings.push(text),
            Remark::Annotation(key, text) => annotations.push((key, text)),
        }
    }
    (warnings, annotations)
}

#[actix::test]
async fn a_token_grows_stale_also_while_it_is_remembered() {
    let house = House::new(true);
    house.put("serviceaccounts", "n/sa", &object("u")).await;
    let counted = |house: &House| {
        let tokens = &house.verifier.0.metrics.tokens;
        (tokens.valid.get(), tokens.stale.get(), tokens.legacy.get())
    };
    let token = house.token(|claims| claims["kubernetes.io"]["warnafter"] = json!(START.seconds() + 100));
    for _ in 0..2 {
        assert_eq!(said(&house, &token).await, (vec![], vec![]));
    }
    house.clock.advance(Duration::from_secs(100));
    assert_eq!(said(&house, &token).await, (vec![], vec![]), "not yet");
    assert_eq!(counted(&house), (3, 0, 0));
    house.clock.advance(Duration::from_secs(7));
    for _ in 0..2 {
        let text = "subject: system:serviceaccount:n:sa, seconds after warning threshold: 7".to_owned();
        assert_eq!(said(&house, &token).await, (vec![], vec![("authentication.k8s.io/stale-token", text)]));
    }
    assert_eq!(counted(&house), (3, 2, 0));
    house.clock.advance(Duration::from_secs(600));
    assert_eq!(house.refused(&token).await, "service account token has expired", "it ends all the same");
    assert_eq!(counted(&house), (3, 2, 0));
    // Nobody said when this one should be replaced.
    let (plain, zero) =
        (house.token(|_| {}), house.token(|claims| claims["kubernetes.io"]["warnafter"] = 0.into()));
    for token in [&plain, &zero] {
        assert_eq!(said(&house, token).await, (vec![], vec![]));
    }
    let none = house.token(|claims| drop(claims.as_object_mut().unwrap().remove("aud")));
    let text = "system:serviceaccount:n:sa".to_owned();
    assert_eq!(said(&house, &none).await, (vec![], vec![("authentication.k8s.io/legacy-token", text)]));
    assert_eq!(counted(&house), (3, 2, 1));
}

#[actix::test]
async fn whoever_shows_a_token_of_a_secret_is_told_so() {
    use base64::Engine as _;
    let house = House::new(true);
    let token = house.sign(&of_secret());
    let kept = base64::prelude::BASE64_STANDARD.encode(&token);
    let secret = |labels: Value| json!({"metadata": {"uid": "x", "labels": labels}, "data": {"token": kept}});
    house.put("secrets", "n/s", &secret(json!({}))).await;
    house.put("serviceaccounts", "n/sa", &object("u")).await;
    let counted = |house: &House| {
        let tokens = &house.verifier.0.metrics.tokens;
        [&tokens.legacy, &tokens.manual, &tokens.listed, &tokens.invalidated].map(|counter| counter.get())
    };
    let legacy = ("authentication.k8s.io/legacy-token", "system:serviceaccount:n:sa".to_owned());
    let by_hand = ("authentication.k8s.io/legacy-token-manual-secret", "s".to_owned());
    for _ in 0..2 {
        assert_eq!(said(&house, &token).await, (vec![], vec![legacy.clone(), by_hand.clone()]));
    }
    assert_eq!(counted(&house), [2, 2, 0, 0]);
    // The account lists it from now on.
    house.delete("serviceaccounts", "n/sa").await;
    let account = json!({"metadata": {"uid": "u"}, "secrets": [{"name": "other"}, {"name": "s"}]});
    house.put("serviceaccounts", "n/sa", &account).await;
    let listed = ("authentication.k8s.io/legacy-token-autogenerated-secret", "s".to_owned());
    for _ in 0..2 {
        let (warnings, annotations) = said(&house, &token).await;
        assert_eq!(annotations, [legacy.clone(), listed.clone()]);
        assert!(warnings.len() == 1 && warnings[0].starts_with("Use tokens from the TokenRequest API"));
    }
    assert_eq!(counted(&house), [4, 2, 2, 0]);
    house.delete("secrets", "n/s").await;
    house
        .put("secrets", "n/s", &secret(json!({"kubernetes.io/legacy-token-invalid-since": "2024-01-01"})))
        .await;
    assert!(house.refused(&token).await.contains("has been marked invalid"));
    assert_eq!(counted(&house), [5, 2, 2, 1]);
    // Where nobody looks at secrets, nobody knows which they are.
    let trusting = House::new(false);
    let text = "system:serviceaccount:n:sa".to_owned();
    let annotations = vec![("authentication.k8s.io/legacy-token", text)];
    assert_eq!(said(&trusting, &trusting.sign(&of_secret())).await, (vec![], annotations));
}
