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

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

const INFO: (&str, &str) = (PUBLIC_NAMESPACE, "cluster-info");
const SIGNATURE: &str = "jws-kubeconfig-";
/// The length of a token ID, as in the name of its Secret.
const ID_LENGTH: usize = 6;

/// The part of a token that is the key of its signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The whole token, `id.secret`.
    Token,
    /// What is behind the dot.
    Secret,
}

fn is_token(change: &ObjectChange<'_>) -> bool {
    change.type_name.as_str() == SECRETS
        && change.object.key.namespace() == SYSTEM_NAMESPACE
        && change.object.fields.get("type") == Some(BOOTSTRAP_TOKEN_TYPE)
}

/// A value of a Secret; empty if absent.
fn data(secret: &Value, name: &str) -> String {
    let text = secret.get_path(&["data", name]).and_then(Value::as_str).unwrap_or_default();
    STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

/// The remaining seconds of a token; `None` if it does not expire. An unparsable time counts as expired.
fn remaining_seconds(secret: &Value, now: i64) -> Option<i64> {
    let expiration = data(secret, "expiration");
    if expiration.is_empty() {
        return None;
    }
    Some(time::parse_seconds(&expiration).map_or(0, |expiry| (expiry - now).max(0)))
}

/// The ID of a token that may sign now, and the key with which it signs.
fn signing_token(secret: &Value, key_part: KeyPart, now: i64) -> Option<(String, String)> {
    let id_in_name = meta::name(secret).strip_prefix("bootstrap-token-")?;
    let (id, key) = (data(secret, "token-id"), data(secret, "token-secret"));
    let well_formed =
        id.len() == ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let may_sign = well_formed
        && id == id_in_name
        && !key.is_empty()
        && remaining_seconds(secret, now) != Some(0)
        && data(secret, "usage-bootstrap-signing") == "true";
    may_sign.then(|| match key_part {
        KeyPart::Token => {
            let token = format!("{id}.{key}");
            (id, token)
        }
        KeyPart::Secret => (id, key),
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
    /// The part of a token that is the key of its signature.
    pub key_part: KeyPart,
}

impl BootstrapSigner {
    async fn sign(&self) -> Result<Outcome> {
        let resource = self.client.resource(CONFIG_MAPS)?;
        let target = ObjectRef { resource: &resource, namespace: INFO.0, name: INFO.1 };
        if self.client.cached(target).await?.is_none() {
            return Ok(Outcome::Done);
        }
        let (tokens, next) = self.tokens().await?;
        let update = self.client.edit(target, "", |info| Ok(sign_kubeconfig(info, &tokens)));
        update.await.ignore_not_found()?;
        // A signature does not outlive its token, even if the token's Secret stays.
        Ok(next.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// The signing tokens, and when the first of them expires.
    async fn tokens(&self) -> Result<(BTreeMap<String, String>, Option<Duration>)> {
        let (secrets, now) = (self.client.resource(SECRETS)?, self.client.seconds());
        let snapshot = self.client.snapshot(&TypeName::new(SECRETS)).await?;
        let (mut tokens, mut next_expiry) = (BTreeMap::new(), None);
        let secrets_in_namespace = snapshot.scan(Some(SYSTEM_NAMESPACE), std::ops::Bound::Unbounded);
        for object in
            secrets_in_namespace.filter(|object| object.fields.get("type") == Some(BOOTSTRAP_TOKEN_TYPE))
        {
            // A corrupt Secret is skipped; the others still sign.
            let Ok(secret) = self.client.load(&secrets, object) else { continue };
            if let Some((id, key)) = signing_token(&secret, self.key_part, now) {
                tokens.insert(id, key);
                let seconds = remaining_seconds(&secret, now).and_then(|seconds| u64::try_from(seconds).ok());
                next_expiry = next_expiry.into_iter().chain(seconds.map(Duration::from_secs)).min();
            }
        }
        Ok((tokens, next_expiry))
    }
}

/// Signs the kubeconfig with every token, and removes other signatures.
fn sign_kubeconfig(info: &mut Value, tokens: &BTreeMap<String, String>) -> bool {
    let Some(content) = info.get_path(&["data", "kubeconfig"]).and_then(Value::as_str).map(str::to_owned)
    else {
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

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[SECRETS, CONFIG_MAPS])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<()>) {
        let key = &change.object.key;
        let is_info = change.type_name.as_str() == CONFIG_MAPS
            && (key.namespace(), key.name()) == INFO
            && !change.is_deleted;
        if is_info || is_token(change) {
            queue.add(());
        }
    }

    fn on_list(&self, _: &TypeName, _: &Snapshot, queue: &mut Queue<()>) {
        // The deletion of a token may have been missed, and its signature must not stay.
        queue.add(());
    }

    fn reconcile(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.sign().await }.boxed_local()
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
        let is_bootstrap_token =
            |object: &std::sync::Arc<Object>| object.fields.get("type") == Some(BOOTSTRAP_TOKEN_TYPE);
        let Some(object) =
            self.client.cached(ObjectRef::new(&resource, key)).await?.filter(is_bootstrap_token)
        else {
            return Ok(Outcome::Done);
        };
        let secret = self.client.load(&resource, &object)?;
        match remaining_seconds(&secret, self.client.seconds()) {
            None => Ok(Outcome::Done),
            Some(0) => {
                let uid = Some(meta::metadata(&secret).str("uid").to_owned());
                let options = DeleteOptions { uid, ..DeleteOptions::default() };
                self.client.delete(&resource, object, &options).await.ignore_not_found_or_conflict()?;
                Ok(Outcome::Done)
            }
            Some(seconds) => {
                Ok(Outcome::RequeueAfter(Duration::from_secs(u64::try_from(seconds).unwrap_or(1))))
            }
        }
    }
}

impl Controller for TokenCleaner {
    type Key = Key;

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[SECRETS])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        if is_token(change) && !change.is_deleted {
            queue.add(change.object.key.clone());
        }
    }

    fn reconcile(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.clean(&key).await }.boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    /// The expected value was made with `openssl dgst -sha256 -hmac`.
    #[test]
    fn detached_signature_is_a_valid_jws() {
        let signature = detached_signature("content", "abcdef", "abcdef.0123456789abcdef").unwrap();
        let parts: Vec<&str> = signature.split('.').collect();
        assert_eq!(URL_SAFE_NO_PAD.decode(parts[0]).unwrap(), br#"{"alg":"HS256","kid":"abcdef"}"#);
        assert_eq!((parts.len(), parts[1]), (3, ""));
        assert_eq!(parts[2], "Fq6A5EJIBI9mw7CGLYV0RbfoogA2BP4cSgkutskZ1PY");
    }

    fn token(extra: &str) -> Value {
        object(&format!(
            r#"{{"metadata":{{"name":"bootstrap-token-abcdef"}},"data":{{"token-id":"YWJjZGVm",
                "token-secret":"MDEyMzQ1Njc4OWFiY2RlZg==","usage-bootstrap-signing":"dHJ1ZQ=="{extra}}}}}"#
        ))
    }

    #[test]
    fn only_valid_tokens_sign() {
        let pair = Some(("abcdef".to_owned(), "abcdef.0123456789abcdef".to_owned()));
        assert_eq!(signing_token(&token(""), KeyPart::Token, 0), pair);
        let secret = Some(("abcdef".to_owned(), "0123456789abcdef".to_owned()));
        assert_eq!(signing_token(&token(""), KeyPart::Secret, 0), secret);
        let until_2001 = format!(r#","expiration":"{}""#, STANDARD.encode("2001-09-09T01:46:40Z"));
        assert_eq!(remaining_seconds(&token(&until_2001), 999_999_990), Some(10));
        assert_eq!(signing_token(&token(&until_2001), KeyPart::Token, 999_999_990), pair);
        assert_eq!(signing_token(&token(&until_2001), KeyPart::Token, 1_000_000_000), None);
        assert_eq!(signing_token(&token(r#","expiration":"eA==""#), KeyPart::Token, 0), None);
        assert_eq!(signing_token(&token(r#","usage-bootstrap-signing":"""#), KeyPart::Token, 0), None);
        assert_eq!(signing_token(&token(r#","token-id":"YWJjZGVn""#), KeyPart::Token, 0), None);
    }

    #[test]
    fn cluster_info_signatures_follow_the_tokens() {
        let mut info = object(r#"{"data":{"kubeconfig":"content","jws-kubeconfig-old123":"x"}}"#);
        let tokens = BTreeMap::from([("abcdef".to_owned(), "abcdef.0123456789abcdef".to_owned())]);
        assert!(sign_kubeconfig(&mut info, &tokens));
        assert!(!sign_kubeconfig(&mut info, &tokens));
        let names: Vec<&String> = info.get("data").and_then(Value::fields).unwrap().keys().collect();
        assert_eq!(names, ["jws-kubeconfig-abcdef", "kubeconfig"]);
        assert!(sign_kubeconfig(&mut info, &BTreeMap::new()));
        assert!(!sign_kubeconfig(&mut object(r#"{"data":{"x":"y"}}"#), &tokens));
    }
}
