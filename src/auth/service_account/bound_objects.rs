//! Checks that the objects of a token still exist: the service account, and the Secret, pod or node that it is bound to.

use openssl::memcmp;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::well_known::ACCOUNT_PREFIX;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::object::Key;

use super::claims::{Bound, Claims, Reference};
use super::legacy_use::INVALID_SINCE;
use crate::auth::token_objects::{TokenObject, TokenObjectKind, TokenObjects};
use crate::limits::TOKEN_LEEWAY;

const INVALIDATED: &str = "service account token has been invalidated";

/// The state of a token's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundObjectsState {
    /// All exist, so the result holds until one changes.
    Present,
    /// All exist, but one is being deleted: the check must be repeated.
    Terminating,
}

/// Checks that the objects of a bound token exist.
pub async fn check_bound(
    objects: &TokenObjects,
    bound: &Bound,
    now: Timestamp,
) -> Result<BoundObjectsState, String> {
    let namespace = &bound.namespace;
    let account = &bound.serviceaccount;
    let mut state = BoundObjectsState::Present;
    let object =
        objects.get(TokenObjectKind::ServiceAccount, Key::namespaced(namespace, &account.name)).await;
    let object = object.map_err(|error| format!("the service account cannot be looked up: {error}"))?;
    let object = object.ok_or_else(|| format!("serviceaccounts {:?} not found", account.name))?;
    let deleted_error = format!("service account {namespace}/{} has been deleted", account.name);
    let mismatch_error =
        |uid: &str| format!("service account UID ({uid}) does not match claim ({})", account.uid);
    check_object(&object, account, now, mismatch_error, &deleted_error, &mut state)?;

    // The node of a pod is only informative: the token is bound to the pod.
    let node = bound.node.as_ref().filter(|_| bound.pod.is_none());
    let namespaced_key = |reference: &Reference| Key::namespaced(namespace, &reference.name);
    let bound_objects = [
        ("secret", TokenObjectKind::Secret, bound.secret.as_ref(), bound.secret.as_ref().map(namespaced_key)),
        ("pod", TokenObjectKind::Pod, bound.pod.as_ref(), bound.pod.as_ref().map(namespaced_key)),
        ("node", TokenObjectKind::Node, node, node.map(|node| Key::cluster(&node.name))),
    ];
    for (noun, kind, reference, key) in bound_objects {
        let (Some(reference), Some(key)) = (reference, key) else { continue };
        let object = objects.get(kind, key).await.map_err(|error| format!("{INVALIDATED}: {error}"))?;
        let object = object.ok_or(INVALIDATED)?;
        let mismatch_error = |uid: &str| {
            format!("{noun} UID ({uid}) does not match service account {noun} ref claim ({})", reference.uid)
        };
        check_object(&object, reference, now, mismatch_error, INVALIDATED, &mut state)?;
    }
    Ok(state)
}

/// Checks that an object is the referenced one and not deleted for longer than the clock tolerance.
fn check_object(
    object: &TokenObject,
    reference: &Reference,
    now: Timestamp,
    mismatch_error: impl FnOnce(&str) -> String,
    deleted_error: &str,
    state: &mut BoundObjectsState,
) -> Result<(), String> {
    if object.metadata.uid != reference.uid {
        return Err(mismatch_error(&object.metadata.uid));
    }
    if object.is_terminating() {
        *state = BoundObjectsState::Terminating;
    }
    let earliest_deletion = now.minus(TOKEN_LEEWAY).unix_seconds();
    if object.was_deleted_before(earliest_deletion) { Err(deleted_error.to_owned()) } else { Ok(()) }
}

/// Checks that a legacy token has all required claims.
pub fn check_legacy(claims: &Claims) -> Result<(), &'static str> {
    for (text, error) in [
        (&claims.subject, "sub claim is missing"),
        (&claims.namespace, "namespace claim is missing"),
        (&claims.secret_name, "secretName claim is missing"),
        (&claims.account_name, "serviceAccountName claim is missing"),
        (&claims.account_uid, "serviceAccountUID claim is missing"),
    ] {
        if text.is_empty() {
            return Err(error);
        }
    }
    match parse_user(&claims.subject) {
        Some((namespace, name)) if namespace == claims.namespace && name == claims.account_name => Ok(()),
        _ => Err("sub claim is invalid"),
    }
}

/// The namespace and name of a service account's user name.
fn parse_user(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(ACCOUNT_PREFIX)?.split_once(':')?;
    let is_valid =
        names::label_name(namespace, false).is_empty() && names::subdomain_name(name, false).is_empty();
    is_valid.then_some((namespace, name))
}

/// Checks the Secret and the service account of a legacy token. Returns whether the account lists the Secret. `used` is called
/// with the Secret of a matching token, even if the token is marked invalid.
pub async fn check_legacy_objects(
    objects: &TokenObjects,
    claims: &Claims,
    token: &str,
    used: impl FnOnce(&TokenObject),
) -> Result<bool, String> {
    let (namespace, account) = (&claims.namespace, &claims.account_name);
    let secret = objects.get(TokenObjectKind::Secret, Key::namespaced(namespace, &claims.secret_name)).await;
    let secret = secret.ok().flatten().filter(|secret| !secret.is_terminating());
    let secret = secret.ok_or("Token has been invalidated")?;
    let stored_token = secret.data("token");
    if stored_token.len() != token.len() || !memcmp::eq(&stored_token, token.as_bytes()) {
        return Err("Token does not match server's copy".to_owned());
    }
    let object = objects.get(TokenObjectKind::ServiceAccount, Key::namespaced(namespace, account)).await;
    let object = object.map_err(|error| format!("the service account cannot be looked up: {error}"))?;
    let object = object.ok_or_else(|| format!("serviceaccounts {account:?} not found"))?;
    if object.is_terminating() {
        return Err(format!("ServiceAccount {namespace}/{account} has been deleted"));
    }
    if object.metadata.uid != claims.account_uid {
        return Err(format!(
            "ServiceAccount UID ({}) does not match claim ({})",
            object.metadata.uid, claims.account_uid
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
    Ok(object.lists_secret(&claims.secret_name))
}

/// Whether the token of a Secret is marked invalid.
pub fn is_marked_invalid(secret: &TokenObject) -> bool {
    secret.metadata.labels.get(INVALID_SINCE).is_some_and(|since| !since.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bound_object_must_match_uid_and_not_be_deleted() {
        let now = Timestamp(10_000 * 1_000_000);
        let reference = Reference { name: "p".into(), uid: "u".into() };
        let check = |object: &serde_json::Value| {
            let mut state = BoundObjectsState::Present;
            check_object(
                &TokenObject::from_json(object),
                &reference,
                now,
                |uid| format!("other {uid}"),
                "deleted",
                &mut state,
            )
            .map(|()| state)
        };
        assert_eq!(check(&json!({"metadata": {"uid": "u"}})), Ok(BoundObjectsState::Present));
        assert_eq!(check(&json!({"metadata": {"uid": "v"}})), Err("other v".into()));
        let terminating = |seconds: i64| {
            let deletion_time = pilothouse_apimachinery::time::format_seconds(seconds);
            json!({"metadata": {"uid": "u", "deletionTimestamp": deletion_time}})
        };
        assert_eq!(check(&terminating(20_000)), Ok(BoundObjectsState::Terminating));
        assert_eq!(check(&terminating(9_940)), Ok(BoundObjectsState::Terminating));
        assert_eq!(check(&terminating(9_939)), Err("deleted".into()));
    }

    #[test]
    fn legacy_token_without_a_required_claim_is_refused() {
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
