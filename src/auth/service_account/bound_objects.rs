//! Checks that the objects of a token still exist: the service account, and the Secret, pod or node that it is bound to.

use openssl::memcmp;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::well_known::ACCOUNT_PREFIX;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::object::Key;

use super::claims::{Bound, Claims, Reference};
use super::legacy_use::INVALID_SINCE;
use crate::auth::token_objects::{Facts, TokenObjectKind, TokenObjects};
use crate::limits::TOKEN_LEEWAY;

const INVALIDATED: &str = "service account token has been invalidated";

/// The state of a token's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundObjectsState {
    /// All exist, so the result holds until one changes.
    Firm,
    /// All exist, but one is being deleted: the check must be repeated.
    Going,
}

/// Checks the objects of a bound token.
pub async fn of_bound(
    objects: &TokenObjects,
    bound: &Bound,
    now: Timestamp,
) -> Result<BoundObjectsState, String> {
    let namespace = &bound.namespace;
    let account = &bound.serviceaccount;
    let mut standing = BoundObjectsState::Firm;
    let found = objects.get(TokenObjectKind::ServiceAccount, Key::namespaced(namespace, &account.name)).await;
    let found = found.map_err(|error| format!("the service account cannot be looked up: {error}"))?;
    let found = found.ok_or_else(|| format!("serviceaccounts {:?} not found", account.name))?;
    let gone = format!("service account {namespace}/{} has been deleted", account.name);
    let other = |uid: &str| format!("service account UID ({uid}) does not match claim ({})", account.uid);
    weigh(&found, account, now, other, &gone, &mut standing)?;

    // The node of a pod is only informative: the token is bound to the pod.
    let node = bound.node.as_ref().filter(|_| bound.pod.is_none());
    let inside = |reference: &Reference| Key::namespaced(namespace, &reference.name);
    let all = [
        ("secret", TokenObjectKind::Secret, bound.secret.as_ref(), bound.secret.as_ref().map(inside)),
        ("pod", TokenObjectKind::Pod, bound.pod.as_ref(), bound.pod.as_ref().map(inside)),
        ("node", TokenObjectKind::Node, node, node.map(|node| Key::cluster(&node.name))),
    ];
    for (what, kind, reference, key) in all {
        let (Some(reference), Some(key)) = (reference, key) else { continue };
        let found = objects.get(kind, key).await.map_err(|error| format!("{INVALIDATED}: {error}"))?;
        let found = found.ok_or(INVALIDATED)?;
        let other = |uid: &str| {
            format!("{what} UID ({uid}) does not match service account {what} ref claim ({})", reference.uid)
        };
        weigh(&found, reference, now, other, INVALIDATED, &mut standing)?;
    }
    Ok(standing)
}

/// Checks that an object is the referenced one and not deleted for longer than the clock tolerance.
fn weigh(
    found: &Facts,
    meant: &Reference,
    now: Timestamp,
    other: impl FnOnce(&str) -> String,
    gone: &str,
    standing: &mut BoundObjectsState,
) -> Result<(), String> {
    if found.metadata.uid != meant.uid {
        return Err(other(&found.metadata.uid));
    }
    if found.is_terminating() {
        *standing = BoundObjectsState::Going;
    }
    let too_long_ago = now.minus(TOKEN_LEEWAY).unix_seconds();
    if found.went_before(too_long_ago) { Err(gone.to_owned()) } else { Ok(()) }
}

/// Checks that a legacy token has all required claims.
pub fn check_legacy(claims: &Claims) -> Result<(), &'static str> {
    for (text, why) in [
        (&claims.subject, "sub claim is missing"),
        (&claims.namespace, "namespace claim is missing"),
        (&claims.secret_name, "secretName claim is missing"),
        (&claims.account_name, "serviceAccountName claim is missing"),
        (&claims.account_uid, "serviceAccountUID claim is missing"),
    ] {
        if text.is_empty() {
            return Err(why);
        }
    }
    match split_user(&claims.subject) {
        Some((namespace, name)) if namespace == claims.namespace && name == claims.account_name => Ok(()),
        _ => Err("sub claim is invalid"),
    }
}

/// The namespace and name of a service account's user name.
fn split_user(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(ACCOUNT_PREFIX)?.split_once(':')?;
    let good =
        names::label_name(namespace, false).is_empty() && names::subdomain_name(name, false).is_empty();
    good.then_some((namespace, name))
}

/// Checks the Secret and the service account of a legacy token. Answers whether the account lists the Secret. `used` is called
/// with the Secret of a matching token, even if the token is marked invalid.
pub async fn of_legacy(
    objects: &TokenObjects,
    claims: &Claims,
    token: &str,
    used: impl FnOnce(&Facts),
) -> Result<bool, String> {
    let (namespace, account) = (&claims.namespace, &claims.account_name);
    let secret = objects.get(TokenObjectKind::Secret, Key::namespaced(namespace, &claims.secret_name)).await;
    let secret = secret.ok().flatten().filter(|secret| !secret.is_terminating());
    let secret = secret.ok_or("Token has been invalidated")?;
    let kept = secret.data("token");
    if kept.len() != token.len() || !memcmp::eq(&kept, token.as_bytes()) {
        return Err("Token does not match server's copy".to_owned());
    }
    let found = objects.get(TokenObjectKind::ServiceAccount, Key::namespaced(namespace, account)).await;
    let found = found.map_err(|error| format!("the service account cannot be looked up: {error}"))?;
    let found = found.ok_or_else(|| format!("serviceaccounts {account:?} not found"))?;
    if found.is_terminating() {
        return Err(format!("ServiceAccount {namespace}/{account} has been deleted"));
    }
    if found.metadata.uid != claims.account_uid {
        return Err(format!(
            "ServiceAccount UID ({}) does not match claim ({})",
            found.metadata.uid, claims.account_uid
        ));
    }
    used(&secret);
    if is_marked_invalid(&secret) {
        return Err(format!(
            "the token in secret {namespace}/{} for service account {namespace}/{account} has been marked invalid. Use tokens from \
             the TokenRequest API or manually created secret-based tokens, or remove the '{INVALID_SINCE}' label from the secret \
             to temporarily allow use of this token",
            claims.secret_name
        ));
    }
    Ok(found.lists(&claims.secret_name))
}

/// Whether the token of a Secret is marked invalid.
pub fn is_marked_invalid(secret: &Facts) -> bool {
    secret.metadata.labels.get(INVALID_SINCE).is_some_and(|since| !since.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_must_be_the_one_that_is_meant() {
        let now = Timestamp(10_000 * 1_000_000);
        let meant = Reference { name: "p".into(), uid: "u".into() };
        let weighed = |object: &serde_json::Value| {
            let mut standing = BoundObjectsState::Firm;
            weigh(&Facts::of(object), &meant, now, |uid| format!("other {uid}"), "gone", &mut standing)
                .map(|()| standing)
        };
        assert_eq!(weighed(&json!({"metadata": {"uid": "u"}})), Ok(BoundObjectsState::Firm));
        assert_eq!(weighed(&json!({"metadata": {"uid": "v"}})), Err("other v".into()));
        let at = |seconds: i64| {
            let deletion_time = pilothouse_apimachinery::time::format_seconds(seconds);
            json!({"metadata": {"uid": "u", "deletionTimestamp": deletion_time}})
        };
        assert_eq!(weighed(&at(20_000)), Ok(BoundObjectsState::Going));
        assert_eq!(weighed(&at(9_940)), Ok(BoundObjectsState::Going));
        assert_eq!(weighed(&at(9_939)), Err("gone".into()));
    }

    #[test]
    fn a_token_of_a_secret_must_say_everything() {
        let mut claims = Claims {
            subject: "system:serviceaccount:n:sa".into(),
            namespace: "n".into(),
            secret_name: "s".into(),
            account_name: "sa".into(),
            account_uid: "u".into(),
            ..Claims::default()
        };
        assert_eq!(check_legacy(&claims), Ok(()));
        for subject in
            ["system:serviceaccount:n:other", "system:serviceaccount:N:sa", "system:sa:n:sa", "n:sa"]
        {
            let claims = Claims { subject: subject.into(), ..claims.clone() };
            assert_eq!(check_legacy(&claims), Err("sub claim is invalid"), "{subject}");
        }
        claims.secret_name.clear();
        assert_eq!(check_legacy(&claims), Err("secretName claim is missing"));
    }
}
