//! Bootstrap tokens, with which new nodes join: `id.secret`, each stored in a Secret of kube-system.

use std::collections::BTreeSet;
use std::sync::Arc;

use openssl::memcmp;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::well_known::{BOOTSTRAP_TOKEN_TYPE, SYSTEM_NAMESPACE};
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::identity::{Credentials, Identity};
use pilothouse_types::object::Key;

use super::token_objects::{TokenObject, TokenObjectKind, TokenObjects};

/// The group of all bootstrap tokens.
const GROUP: &str = "system:bootstrappers";

/// Verifies bootstrap tokens.
pub struct BootstrapTokens {
    objects: Arc<TokenObjects>,
    clock: Clock,
}

impl BootstrapTokens {
    /// A verifier that reads the Secrets of kube-system.
    pub fn new(objects: Arc<TokenObjects>, clock: Clock) -> BootstrapTokens {
        BootstrapTokens { objects, clock }
    }
}

impl Verifier for BootstrapTokens {
    fn verify(&self, credentials: &Credentials) -> Answer<Verification> {
        let Some((id, secret)) = credentials.bearer.as_deref().and_then(parse_token) else {
            return Answer::Now(Verification::NoOpinion);
        };
        let (id, secret) = (id.to_owned(), secret.to_owned());
        let (objects, clock) = (Arc::clone(&self.objects), self.clock.clone());
        Answer::later(async move {
            let key = Key::namespaced(SYSTEM_NAMESPACE, &format!("bootstrap-token-{id}"));
            match objects.get(TokenObjectKind::Secret, key).await {
                Ok(Some(stored)) => match identify(&stored, &id, &secret, clock.now()) {
                    Ok(identity) => Verification::Known(Arc::new(identity)),
                    // As in kube-apiserver, a bad token gets the same answer as an unknown one, so that the client learns nothing
                    // about the Secrets.
                    Err(reason) => {
                        tracing::debug!(id, reason, "bootstrap token rejected");
                        Verification::NoOpinion
                    }
                },
                Ok(None) => Verification::NoOpinion,
                Err(error) => Verification::Refused(format!("bootstrap tokens cannot be looked up: {error}")),
            }
        })
    }
}

/// The two parts of a well-formed token.
fn parse_token(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let is_lower_alphanumeric =
        |text: &str| text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9'));
    (id.len() == 6 && secret.len() == 16 && is_lower_alphanumeric(id) && is_lower_alphanumeric(secret))
        .then_some((id, secret))
}

/// Checks a token against its Secret and returns the identity it grants, or why it is rejected.
fn identify(stored: &TokenObject, id: &str, secret: &str, now: Timestamp) -> Result<Identity, &'static str> {
    if stored.is_terminating() {
        return Err("is deleted and awaiting removal");
    }
    if stored.kind != BOOTSTRAP_TOKEN_TYPE {
        return Err("lies in a secret of another type");
    }
    let token_secret = stored.data("token-secret");
    if token_secret.len() != secret.len() || !memcmp::eq(&token_secret, secret.as_bytes()) {
        return Err("has another secret");
    }
    if stored.data("token-id") != id.as_bytes() {
        return Err("has another id inside its secret");
    }
    if has_expired(&stored.data("expiration"), now) {
        return Err("has expired");
    }
    if stored.data("usage-bootstrap-authentication") != b"true" {
        return Err("is not marked usage-bootstrap-authentication=true");
    }
    let groups = groups(&stored.data("auth-extra-groups")).ok_or("names a group that it may not")?;
    Ok(Identity { name: format!("system:bootstrap:{id}"), groups, ..Identity::default() })
}

/// An unparsable time counts as expired.
fn has_expired(text: &[u8], now: Timestamp) -> bool {
    if text.is_empty() {
        return false;
    }
    let parsed = std::str::from_utf8(text).ok().and_then(|text| time::parse_seconds(text).ok());
    parsed.is_none_or(|expiry| expiry <= now.unix_seconds())
}

/// The groups of the bearer, sorted and without duplicates; `None` if a token must not grant one of them.
fn groups(extra: &[u8]) -> Option<Vec<String>> {
    let mut groups = BTreeSet::from([GROUP.to_owned()]);
    let extra = std::str::from_utf8(extra).ok()?;
    for group in extra.split(',').filter(|_| !extra.is_empty()) {
        let rest = group.strip_prefix(GROUP)?.strip_prefix(':')?;
        let (last, before) = rest.as_bytes().split_last()?;
        let is_lower_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_valid = is_lower_alphanumeric(last)
            && before.len() <= 255
            && before.iter().all(|byte| is_lower_alphanumeric(byte) || matches!(byte, b':' | b'-'));
        if !is_valid {
            return None;
        }
        groups.insert(group.to_owned());
    }
    Some(groups.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const NOW: Timestamp = Timestamp(1_790_000_000_000_000);

    fn token_secret(changes: &[(&str, Option<&str>)]) -> Value {
        let mut data = json!({});
        let defaults = [
            ("token-id", Some("abcdef")),
            ("token-secret", Some("0123456789abcdef")),
            ("usage-bootstrap-authentication", Some("true")),
        ];
        for (key, text) in defaults.iter().chain(changes) {
            match text {
                Some(text) => data[key] = base64::prelude::BASE64_STANDARD.encode(text).into(),
                None => drop(data.as_object_mut().unwrap().remove(*key)),
            }
        }
        json!({"type": BOOTSTRAP_TOKEN_TYPE, "data": data})
    }

    fn authenticate(secret: &Value) -> Result<Identity, &'static str> {
        identify(&TokenObject::from_json(secret), "abcdef", "0123456789abcdef", NOW)
    }

    #[test]
    fn bootstrap_token_grants_user_and_extra_groups() {
        let groups = ("auth-extra-groups", Some("system:bootstrappers:b,system:bootstrappers:a:x-1"));
        let identity =
            authenticate(&token_secret(&[groups, ("expiration", Some("2040-01-01T00:00:00Z"))])).unwrap();
        assert_eq!(identity.name, "system:bootstrap:abcdef");
        assert_eq!(
            identity.groups,
            ["system:bootstrappers", "system:bootstrappers:a:x-1", "system:bootstrappers:b"]
        );
        assert_eq!(authenticate(&token_secret(&[])).unwrap().groups, ["system:bootstrappers"]);
    }

    #[test]
    fn bootstrap_token_is_rejected_if_any_field_mismatches() {
        for (change, reason) in [
            (("token-secret", Some("0123456789abcdee")), "has another secret"),
            (("token-secret", None), "has another secret"),
            (("token-id", Some("abcdeg")), "has another id inside its secret"),
            (("expiration", Some("2020-01-01T00:00:00Z")), "has expired"),
            (("expiration", Some("tomorrow")), "has expired"),
            (
                ("usage-bootstrap-authentication", Some("yes")),
                "is not marked usage-bootstrap-authentication=true",
            ),
            (("auth-extra-groups", Some("system:masters")), "names a group that it may not"),
            (("auth-extra-groups", Some("system:bootstrappers:")), "names a group that it may not"),
            (("auth-extra-groups", Some("system:bootstrappers:A")), "names a group that it may not"),
            (("auth-extra-groups", Some("system:bootstrappers:a,")), "names a group that it may not"),
        ] {
            assert_eq!(authenticate(&token_secret(&[change])), Err(reason), "{change:?}");
        }
        let mut opaque = token_secret(&[]);
        opaque["type"] = "Opaque".into();
        assert_eq!(authenticate(&opaque), Err("lies in a secret of another type"));
        let mut terminating = token_secret(&[]);
        terminating["metadata"] = json!({"deletionTimestamp": "2040-01-01T00:00:00Z"});
        assert_eq!(authenticate(&terminating), Err("is deleted and awaiting removal"));
    }

    #[test]
    fn bootstrap_token_parses_only_id_dot_secret() {
        assert_eq!(parse_token("abc123.0123456789abcdef"), Some(("abc123", "0123456789abcdef")));
        for text in ["", ".", "abcde.0123456789abcdef", "abcdef.0123456789abcde", "Abcdef.0123456789abcdef"] {
            assert_eq!(parse_token(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn bootstrap_token_grants_only_bootstrapper_groups(extra in "(system:bootstrappers:)?[a-zA-Z0-9:,-]{0,40}") {
            for group in groups(extra.as_bytes()).unwrap_or_default() {
                prop_assert!(group.starts_with("system:bootstrappers"), "{group}");
            }
        }
    }
}
