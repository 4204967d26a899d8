//! token-cleaner-controller and bootstrap-signer-controller: expired bootstrap tokens are deleted, and the others sign the
//! cluster-info ConfigMap that new nodes read before they trust the server.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::stores::{CONFIG_MAPS, SECRETS};
use pilothouse_apimachinery::well_known::{BOOTSTRAP_TOKEN_TYPE, PUBLIC_NAMESPACE, SYSTEM_NAMESPACE};
use pilothouse_types::object::{Key, Object, TypeName};

use super::client::{At, Client};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

const INFO: (&str, &str) = (PUBLIC_NAMESPACE, "cluster-info");
const SIGNATURE: &str = "jws-kubeconfig-";
/// The length of a token ID, as in the name of its Secret.
const ID_LENGTH: usize = 6;

fn is_token(change: &ObjectChange<'_>) -> bool {
    change.of.as_str() == SECRETS
        && change.object.key.namespace() == SYSTEM_NAMESPACE
        && change.object.fields.get("type") == Some(BOOTSTRAP_TOKEN_TYPE)
}

/// A value of a Secret; empty if absent.
fn data(secret: &Value, name: &str) -> String {
    let text = secret.at(&["data", name]).and_then(Value::as_str).unwrap_or_default();
    STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

/// The remaining seconds of a token; `None` if it does not expire. An unparsable time counts as expired.
fn left(secret: &Value, now: i64) -> Option<i64> {
    let expiration = data(secret, "expiration");
    if expiration.is_empty() {
        return None;
    }
    Some(time::parse_seconds(&expiration).map_or(0, |at| (at - now).max(0)))
}

/// The ID of a token that may sign now, and the whole token, which is the signing key.
fn signing(secret: &Value, now: i64) -> Option<(String, String)> {
    let of_name = meta::name(secret).strip_prefix("bootstrap-token-")?;
    let (id, key) = (data(secret, "token-id"), data(secret, "token-secret"));
    let well_formed =
        id.len() == ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let may = well_formed
        && id == of_name
        && !key.is_empty()
        && left(secret, now) != Some(0)
        && data(secret, "usage-bootstrap-signing") == "true";
    may.then(|| {
        let token = format!("{id}.{key}");
        (id, token)
    })
}

/// A detached JWS of `content` with HMAC-SHA256: without the content itself, which the reader has.
fn detached_signature(
    content: &str,
    id: &str,
    key: &str,
) -> std::result::Result<String, openssl::error::ErrorStack> {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let key = PKey::hmac(key.as_bytes())?;
    let mut signer = Signer::new(MessageDigest::sha256(), &key)?;
    signer.update(format!("{header}.{}", URL_SAFE_NO_PAD.encode(content)).as_bytes())?;
    Ok(format!("{header}..{}", URL_SAFE_NO_PAD.encode(signer.sign_to_vec()?)))
}

/// Signs cluster-info.
pub struct BootstrapSigner {
    /// Reads and writes objects.
    pub client: Client,
}

impl BootstrapSigner {
    async fn sign(&self) -> Result<Outcome> {
        let resource = self.client.resource(CONFIG_MAPS)?;
        let at = At { resource: &resource, namespace: INFO.0, name: INFO.1 };
        if self.client.cached(at).await?.is_none() {
            return Ok(Outcome::Done);
        }
        let (tokens, next) = self.tokens().await?;
        let signed = self.client.edit(at, "", |info| Ok(put_signatures(info, &tokens)));
        signed.await.ignore_not_found()?;
        // A signature does not outlive its token, also if nobody removes that.
        Ok(next.map_or(Outcome::Done, Outcome::After))
    }

    /// The signing tokens, and when the first of them expires.
    async fn tokens(&self) -> Result<(BTreeMap<String, String>, Option<Duration>)> {
        let (secrets, now) = (self.client.resource(SECRETS)?, self.client.seconds());
        let snapshot = self.client.snapshot(&TypeName::new(SECRETS)).await?;
        let (mut tokens, mut next) = (BTreeMap::new(), None);
        let in_place = snapshot.scan(Some(SYSTEM_NAMESPACE), std::ops::Bound::Unbounded);
        for object in in_place.filter(|object| object.fields.get("type") == Some(BOOTSTRAP_TOKEN_TYPE)) {
            // A corrupt Secret is skipped; the others still sign.
            let Ok(secret) = self.client.load(&secrets, object) else { continue };
            if let Some((id, key)) = signing(&secret, now) {
                tokens.insert(id, key);
                let seconds = left(&secret, now).and_then(|seconds| u64::try_from(seconds).ok());
                next = next.into_iter().chain(seconds.map(Duration::from_secs)).min();
            }
        }
        Ok((tokens, next))
    }
}

/// Signs the kubeconfig with every token, and removes other signatures.
fn put_signatures(info: &mut Value, tokens: &BTreeMap<String, String>) -> bool {
    let Some(content) = info.at(&["data", "kubeconfig"]).and_then(Value::as_str).map(str::to_owned) else {
        return false;
    };
    let before = info.get("data").cloned().unwrap_or_default();
    let mut after = before.clone();
    after.fields_mut().retain(|name, _| !name.starts_with(SIGNATURE));
    for (id, key) in tokens {
        if let Ok(signature) = detached_signature(&content, id, key) {
            after.set(&format!("{SIGNATURE}{id}"), signature);
        }
    }
    let changed = after != before;
    info.set("data", after);
    changed
}

impl Controller for BootstrapSigner {
    type Key = ();

    fn follows(&self) -> Follows {
        Follows::These(&[SECRETS, CONFIG_MAPS])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<()>) {
        let key = &change.object.key;
        let is_info =
            change.of.as_str() == CONFIG_MAPS && (key.namespace(), key.name()) == INFO && !change.gone;
        if is_info || is_token(change) {
            queue.add(());
        }
    }

    fn on_list(&self, _: &TypeName, _: &Snapshot, queue: &mut Queue<()>) {
        // A token may have gone unheard, and its signature must not stay.
        queue.add(());
    }

    fn work(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Outcome> {
        async move { self.sign().await.unwrap_or_else(|status| Outcome::Again(status.to_string())) }
            .boxed_local()
    }
}

/// Deletes expired tokens.
pub struct TokenCleaner {
    /// Reads and deletes objects.
    pub client: Client,
}

impl TokenCleaner {
    async fn clean(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(SECRETS)?;
        let is_token =
            |object: &std::sync::Arc<Object>| object.fields.get("type") == Some(BOOTSTRAP_TOKEN_TYPE);
        let Some(object) = self.client.cached(At::of(&resource, key)).await?.filter(is_token) else {
            return Ok(Outcome::Done);
        };
        let secret = self.client.load(&resource, &object)?;
        match left(&secret, self.client.seconds()) {
            None => Ok(Outcome::Done),
            Some(0) => {
                let uid = Some(meta::of(&secret).str("uid").to_owned());
                let options = DeleteOptions { uid, ..DeleteOptions::default() };
                self.client.delete(&resource, object, &options).await.ignore_not_found_or_conflict()?;
                Ok(Outcome::Done)
            }
            Some(seconds) => Ok(Outcome::After(Duration::from_secs(u64::try_from(seconds).unwrap_or(1)))),
        }
    }
}

impl Controller for TokenCleaner {
    type Key = Key;

    fn follows(&self) -> Follows {
        Follows::These(&[SECRETS])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        if is_token(change) && !change.gone {
            queue.add(change.object.key.clone());
        }
    }

    fn work(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Outcome> {
        async move { self.clean(&key).await.unwrap_or_else(|status| Outcome::Again(status.to_string())) }
            .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::testing::object;

    /// The expected value was made with `openssl dgst -sha256 -hmac`.
    #[test]
    fn a_signature_is_that_of_any_jws_library() {
        let signature = detached_signature("content", "abcdef", "abcdef.0123456789abcdef").unwrap();
        let parts: Vec<&str> = signature.split('.').collect();
        assert_eq!(URL_SAFE_NO_PAD.decode(parts[0]).unwrap(), br#"{"alg":"HS256","kid":"abcdef"}"#);
        assert_eq!((parts.len(), parts[1]), (3, ""));
        assert_eq!(parts[2], "Fq6A5EJIBI9mw7CGLYV0RbfoogA2BP4cSgkutskZ1PY");
    }

    fn token(more: &str) -> Value {
        object(&format!(
            r#"{{"metadata":{{"name":"bootstrap-token-abcdef"}},"data":{{"token-id":"YWJjZGVm",
                "token-secret":"MDEyMzQ1Njc4OWFiY2RlZg==","usage-bootstrap-signing":"dHJ1ZQ=="{more}}}}}"#
        ))
    }

    #[test]
    fn only_good_tokens_sign() {
        let pair = Some(("abcdef".to_owned(), "abcdef.0123456789abcdef".to_owned()));
        assert_eq!(signing(&token(""), 0), pair);
        let until_2001 = format!(r#","expiration":"{}""#, STANDARD.encode("2001-09-09T01:46:40Z"));
        assert_eq!(left(&token(&until_2001), 999_999_990), Some(10));
        assert_eq!(signing(&token(&until_2001), 999_999_990), pair);
        assert_eq!(signing(&token(&until_2001), 1_000_000_000), None);
        assert_eq!(signing(&token(r#","expiration":"eA==""#), 0), None);
        assert_eq!(signing(&token(r#","usage-bootstrap-signing":"""#), 0), None);
        assert_eq!(signing(&token(r#","token-id":"YWJjZGVn""#), 0), None);
    }

    #[test]
    fn signatures_follow_the_tokens() {
        let mut info = object(r#"{"data":{"kubeconfig":"content","jws-kubeconfig-old123":"x"}}"#);
        let tokens = BTreeMap::from([("abcdef".to_owned(), "abcdef.0123456789abcdef".to_owned())]);
        assert!(put_signatures(&mut info, &tokens));
        assert!(!put_signatures(&mut info, &tokens));
        let names: Vec<&String> = info.get("data").and_then(Value::fields).unwrap().keys().collect();
        assert_eq!(names, ["jws-kubeconfig-abcdef", "kubeconfig"]);
        assert!(put_signatures(&mut info, &BTreeMap::new()));
        assert!(!put_signatures(&mut object(r#"{"data":{"x":"y"}}"#), &tokens));
    }
}
