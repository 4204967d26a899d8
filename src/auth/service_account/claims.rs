//! The claims of service account tokens.

use std::collections::BTreeMap;
use std::fmt;

use pilothouse_apimachinery::names;
use pilothouse_apimachinery::well_known::{ACCOUNT_PREFIX, ALL_ACCOUNTS};
use pilothouse_types::clock::Timestamp;
use pilothouse_types::identity::Identity;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::json;

use crate::limits::TOKEN_LEEWAY;

/// The issuer of legacy tokens, which are stored in Secrets.
pub const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

const EXTRA: &str = "authentication.kubernetes.io/";

/// The claims of bound and legacy tokens. Missing claims are empty.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Claims {
    /// `iss`.
    #[serde(rename = "iss")]
    pub issuer: String,
    /// `sub`: the user name of the service account.
    #[serde(rename = "sub")]
    pub subject: String,
    /// `aud`.
    #[serde(rename = "aud", deserialize_with = "one_or_many")]
    pub audiences: Vec<String>,
    /// `exp`: the expiry in seconds.
    #[serde(rename = "exp", deserialize_with = "seconds")]
    pub expires: Option<i64>,
    /// `nbf`: the start of validity in seconds.
    #[serde(rename = "nbf", deserialize_with = "seconds")]
    pub not_before: Option<i64>,
    /// `iat`: the time of issue in seconds.
    #[serde(rename = "iat", deserialize_with = "seconds")]
    pub issued: Option<i64>,
    /// `jti`: the ID of the token.
    #[serde(rename = "jti")]
    pub id: String,
    /// The objects that a bound token refers to.
    #[serde(rename = "kubernetes.io")]
    pub bound: Option<Bound>,
    /// The namespace. This and the following fields are those of legacy tokens.
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    pub namespace: String,
    /// The Secret of the token.
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    pub secret_name: String,
    /// The service account.
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    pub account_name: String,
    /// The UID of the service account.
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    pub account_uid: String,
}

/// The objects that a token is bound to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Bound {
    /// The namespace of all of them but the node.
    pub namespace: String,
    /// The service account.
    pub serviceaccount: Reference,
    /// The pod that the token was issued for.
    pub pod: Option<Reference>,
    /// The Secret whose deletion revokes the token.
    pub secret: Option<Reference>,
    /// The node of the pod; without a pod, the node that the token is bound to.
    pub node: Option<Reference>,
    /// The time after which the bearer should have a new token, in seconds.
    #[serde(deserialize_with = "seconds")]
    pub warnafter: Option<i64>,
}

/// The name and UID of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Reference {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`; empty if the object did not exist.
    pub uid: String,
}

impl Reference {
    fn json(&self) -> serde_json::Value {
        let fields = [("name", &self.name), ("uid", &self.uid)];
        fields
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(key, text)| (key, json!(text)))
            .collect()
    }
}

/// A string or a list of strings. An untagged enum would parse the audiences twice.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Audiences;
    impl<'de> Visitor<'de> for Audiences {
        type Value = Vec<String>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a string or a list of strings")
        }

        fn visit_str<E>(self, audience: &str) -> Result<Vec<String>, E> {
            Ok(vec![audience.to_owned()])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, audiences: A) -> Result<Vec<String>, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(audiences))
        }
    }
    deserializer.deserialize_any(Audiences)
}

/// Seconds since the epoch; fractions are dropped.
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    #[expect(clippy::cast_possible_truncation, reason = "a cast of a double stops at the ends of the range")]
    let truncate = |seconds: f64| seconds as i64;
    Ok(Option::<f64>::deserialize(deserializer)?.map(truncate))
}

impl Claims {
    /// Whether it is a legacy token.
    pub fn is_legacy(&self) -> bool {
        self.issuer == LEGACY_ISSUER && self.bound.is_none()
    }

    /// Checks the validity period, with a tolerance for differing clocks.
    pub fn check_time(&self, now: Timestamp) -> Result<(), &'static str> {
        let now = now.unix_seconds();
        let leeway = i64::try_from(TOKEN_LEEWAY.as_secs()).unwrap_or_default();
        let is_future = |time: Option<i64>| time.is_some_and(|time| now.saturating_add(leeway) < time);
        if is_future(self.not_before) {
            return Err("service account token is not valid yet");
        }
        if self.expires.is_some_and(|expiry| now.saturating_sub(leeway) > expiry) {
            return Err("service account token has expired");
        }
        if is_future(self.issued) {
            return Err("service account token is issued in the future");
        }
        Ok(())
    }

    /// The user of the token.
    pub fn identity(&self) -> Identity {
        let Some(bound) = &self.bound else {
            return account(&self.namespace, &self.account_name, &self.account_uid);
        };
        let mut identity = account(&bound.namespace, &bound.serviceaccount.name, &bound.serviceaccount.uid);
        let mut add = |key: &str, value: &str| {
            identity.extra.insert(format!("{EXTRA}{key}"), vec![value.to_owned()]);
        };
        if let Some(pod) = bound.pod.as_ref().filter(|pod| !pod.name.is_empty() && !pod.uid.is_empty()) {
            add("pod-name", &pod.name);
            add("pod-uid", &pod.uid);
        }
        if !self.id.is_empty() {
            add("credential-id", &format!("JTI={}", self.id));
        }
        if let Some(node) = bound.node.as_ref().filter(|node| !node.name.is_empty()) {
            add("node-name", &node.name);
            if !node.uid.is_empty() {
                add("node-uid", &node.uid);
            }
        }
        identity
    }
}

/// The user of a service account.
pub fn account(namespace: &str, name: &str, uid: &str) -> Identity {
    Identity {
        name: user(namespace, name),
        uid: uid.to_owned(),
        groups: vec![ALL_ACCOUNTS.to_owned(), format!("{ALL_ACCOUNTS}:{namespace}")],
        extra: BTreeMap::new(),
    }
}

/// The user name of a service account.
pub fn user(namespace: &str, name: &str) -> String {
    format!("{ACCOUNT_PREFIX}{namespace}:{name}")
}

/// The namespace and name of the service account of a user; `None` for other users.
pub fn parse_user(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(ACCOUNT_PREFIX)?.split_once(':')?;
    let is_valid = names::dns_label(namespace).is_empty() && names::dns_subdomain(name).is_empty();
    is_valid.then_some((namespace, name))
}

/// The contents of a new token.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    /// The service account and the bound objects.
    pub bound: Bound,
    /// `aud`.
    pub audiences: Vec<String>,
    /// The lifetime in seconds.
    pub seconds: i64,
    /// The time after which the bearer should have a new token.
    pub warn_after_seconds: Option<i64>,
}

impl Grant {
    /// The claims as JSON: sorted keys, no empty values.
    pub fn claims(&self, issuer: &str, id: &str, now: Timestamp) -> serde_json::Value {
        let now = now.unix_seconds();
        let bound = &self.bound;
        let mut private_claims = json!({
            "namespace": bound.namespace,
            "serviceaccount": bound.serviceaccount.json(),
        });
        for (key, reference) in [("pod", &bound.pod), ("secret", &bound.secret), ("node", &bound.node)] {
            if let Some(reference) = reference {
                private_claims[key] = reference.json();
            }
        }
        if let Some(seconds) = self.warn_after_seconds {
            private_claims["warnafter"] = json!(now.saturating_add(seconds));
        }
        json!({
            "iss": issuer,
            "sub": user(&bound.namespace, &bound.serviceaccount.name),
            "aud": self.audiences,
            "exp": now.saturating_add(self.seconds),
            "nbf": now,
            "iat": now,
            "jti": id,
            "kubernetes.io": private_claims,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant() -> Grant {
        let reference = |name: &str| Reference { name: name.to_owned(), uid: format!("uid-{name}") };
        Grant {
            bound: Bound {
                namespace: "n".to_owned(),
                serviceaccount: reference("sa"),
                pod: Some(reference("p")),
                node: Some(Reference { name: "node".to_owned(), uid: String::new() }),
                ..Bound::default()
            },
            audiences: vec!["a".to_owned()],
            seconds: 600,
            warn_after_seconds: Some(60),
        }
    }

    fn timestamp(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    #[test]
    fn token_claims_contain_the_grant() {
        let text = grant().claims("i", "id", timestamp(1_000)).to_string();
        assert_eq!(
            text,
            r#"{"aud":["a"],"exp":1600,"iat":1000,"iss":"i","jti":"id","kubernetes.io":{"namespace":"n","node":{"name":"node"},"pod":{"name":"p","uid":"uid-p"},"serviceaccount":{"name":"sa","uid":"uid-sa"},"warnafter":1060},"nbf":1000,"sub":"system:serviceaccount:n:sa"}"#
        );
        let claims: Claims = serde_json::from_str(&text).unwrap();
        assert!(!claims.is_legacy());
        let identity = claims.identity();
        assert_eq!(identity.name, "system:serviceaccount:n:sa");
        assert_eq!(identity.uid, "uid-sa");
        assert_eq!(identity.groups, ["system:serviceaccounts", "system:serviceaccounts:n"]);
        let extra: Vec<_> = identity.extra.iter().map(|(key, values)| (key.as_str(), &*values[0])).collect();
        assert_eq!(
            extra,
            [
                ("authentication.kubernetes.io/credential-id", "JTI=id"),
                ("authentication.kubernetes.io/node-name", "node"),
                ("authentication.kubernetes.io/pod-name", "p"),
                ("authentication.kubernetes.io/pod-uid", "uid-p"),
            ]
        );
    }

    #[test]
    fn token_is_valid_for_its_period_plus_leeway() {
        let text = grant().claims("i", "id", timestamp(1_000)).to_string();
        let claims: Claims = serde_json::from_str(&text).unwrap();
        for (seconds, expected) in [
            (939, Err("service account token is not valid yet")),
            (940, Ok(())),
            (1_600, Ok(())),
            (1_660, Ok(())),
            (1_661, Err("service account token has expired")),
        ] {
            assert_eq!(claims.check_time(timestamp(seconds)), expected, "{seconds}");
        }
        let early: Claims = serde_json::from_str(r#"{"iat": 2000.7}"#).unwrap();
        assert_eq!(early.check_time(timestamp(1_000)), Err("service account token is issued in the future"));
        assert_eq!(Claims::default().check_time(timestamp(1)), Ok(()));
    }

    #[test]
    fn token_audiences_are_string_or_list() {
        let single: Claims = serde_json::from_str(r#"{"aud": "a"}"#).unwrap();
        let many: Claims = serde_json::from_str(r#"{"aud": ["a", "b"]}"#).unwrap();
        assert_eq!((single.audiences, many.audiences), (vec!["a".to_owned()], vec!["a".into(), "b".into()]));
        assert!(serde_json::from_str::<Claims>(r#"{"aud": 1}"#).is_err());
        assert!(serde_json::from_str::<Claims>(r#"{"exp": "soon"}"#).is_err());
    }

    proptest::proptest! {
        #[test]
        fn new_token_is_valid_until_expiry_plus_leeway(
            now in 0u64..1 << 34, seconds in 600i64..=1 << 32, elapsed in 0u64..1 << 33,
        ) {
            let grant = Grant { seconds, ..grant() };
            let claims: Claims = serde_json::from_value(grant.claims("i", "id", timestamp(now))).unwrap();
            let is_valid = claims.check_time(timestamp(now + elapsed)).is_ok();
            proptest::prop_assert_eq!(is_valid, i64::try_from(elapsed).unwrap() <= seconds + 60);
        }
    }
}
