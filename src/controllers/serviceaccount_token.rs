//! serviceaccount-token-controller: fills token Secrets, and deletes them with their service account.

use std::cell::RefCell;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::ACCOUNT_TOKEN_TYPE;
use pilothouse_apimachinery::well_known::annotations::{ACCOUNT_NAME, ACCOUNT_UID};
use pilothouse_apimachinery::well_known::stores::SECRETS;
use pilothouse_types::object::{Key, Object, TypeName};
use serde_json::json;

use super::attempts;
use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};
use super::start::Authorities;

const ACCOUNTS: &str = "serviceaccounts";

/// Signs a token with claims in JSON.
pub type SignToken = Rc<dyn Fn(&[u8]) -> Option<String>>;

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// A token Secret.
    Secret(Key),
    /// A removed service account.
    Account(Key),
    /// A removed Secret, and the service account that may still list it.
    SecretRemoved(Key, String),
    /// All token Secrets: the removal of service accounts may have been missed.
    All,
}

/// Maintains token Secrets.
pub struct AccountTokens {
    /// Reads and writes objects.
    pub client: Client,
    /// The CA bundle in token Secrets. When it changes, the controller is restarted.
    pub authorities: Arc<Authorities>,
    /// Signs tokens.
    pub sign: SignToken,
    /// Keys that earlier work found.
    pub pending: RefCell<Vec<Work>>,
}

fn annotation<'a>(secret: &'a Value, name: &str) -> &'a str {
    meta::metadata(secret).get("annotations").map(|all| all.str(name)).unwrap_or_default()
}

fn is_token_secret(secret: &Object) -> bool {
    secret.fields.get("type") == Some(ACCOUNT_TOKEN_TYPE)
}

impl AccountTokens {
    async fn secret(&self, key: &Key) -> Result<Outcome> {
        let (secrets, accounts) = (self.client.resource(SECRETS)?, self.client.resource(ACCOUNTS)?);
        let target = ObjectRef::new(&secrets, key);
        let Some(secret) = self.client.read_cached(target).await? else { return Ok(Outcome::Done) };
        let (name, account_uid) = (annotation(&secret, ACCOUNT_NAME), annotation(&secret, ACCOUNT_UID));
        if secret.str("type") != ACCOUNT_TOKEN_TYPE || name.is_empty() || meta::is_terminating(&secret) {
            return Ok(Outcome::Done);
        }
        let account = self
            .client
            .read_cached(ObjectRef { resource: &accounts, namespace: key.namespace(), name })
            .await?;
        let uid = account.map(|account| meta::metadata(&account).str("uid").to_owned());
        let Some(uid) = uid.filter(|uid| account_uid.is_empty() || account_uid == uid) else {
            return self.delete(key, meta::metadata(&secret).str("uid")).await;
        };
        let update = self
            .client
            .edit_if_unchanged(target, "", &secret, |secret| Ok(self.fill(secret, key, name, &uid)));
        update.await.ignore_not_found()?;
        Ok(Outcome::Done)
    }

    /// Adds missing data to a Secret; returns whether any was missing.
    fn fill(&self, secret: &mut Value, key: &Key, account: &str, uid: &str) -> bool {
        let before = secret.clone();
        let missing =
            |field: &str| before.get_path(&["data", field]).and_then(Value::as_str).is_none_or(str::is_empty);
        let authority = STANDARD.encode(&self.authorities.root_pem);
        if !authority.is_empty()
            && before.get_path(&["data", "ca.crt"]).and_then(Value::as_str) != Some(&authority)
        {
            secret.entry("data").set("ca.crt", authority);
        }
        if missing("namespace") {
            secret.entry("data").set("namespace", STANDARD.encode(key.namespace()));
        }
        if missing("token") {
            let claims = claims(key, account, uid);
            if let Some(token) = (self.sign)(claims.as_bytes()) {
                secret.entry("data").set("token", STANDARD.encode(token));
            }
        }
        secret.entry("metadata").entry("annotations").set(ACCOUNT_UID, uid);
        *secret != before
    }

    /// Deletes the token Secrets of a service account that was removed or recreated.
    async fn account(&self, key: &Key) -> Result<Outcome> {
        let secrets = self.client.resource(SECRETS)?;
        let snapshot = self.client.snapshot(&TypeName::new(SECRETS)).await?;
        let secrets_in_namespace = snapshot.scan(Some(key.namespace()), Bound::Unbounded);
        let tokens = secrets_in_namespace.filter(|object| is_token_secret(object));
        let checks = tokens.map(|object| async {
            let secret = self.client.load(&secrets, object)?;
            if annotation(&secret, ACCOUNT_NAME) == key.name() {
                // Decides again by the present state.
                self.secret(&object.key).await?;
            }
            Ok(())
        });
        attempts::all(checks, 1).await.map(|()| Outcome::Done)
    }

    async fn queue_all(&self) -> Result<Outcome> {
        let snapshot = self.client.snapshot(&TypeName::new(SECRETS)).await?;
        let tokens = snapshot.iter().filter(|object| is_token_secret(object));
        self.pending.borrow_mut().extend(tokens.map(|object| Work::Secret(object.key.clone())));
        Ok(Outcome::Done)
    }

    /// Removes a deleted Secret from its service account.
    async fn remove_reference(&self, secret: &Key, account: &str) -> Result<Outcome> {
        let (secrets, accounts) = (self.client.resource(SECRETS)?, self.client.resource(ACCOUNTS)?);
        if self.client.cached(ObjectRef::new(&secrets, secret)).await?.is_some() {
            return Ok(Outcome::Done);
        }
        let target = ObjectRef { resource: &accounts, namespace: secret.namespace(), name: account };
        let update = self.client.edit(target, "", |account| {
            let references = account.get("secrets").map(Value::items).unwrap_or_default();
            let remaining: Vec<Value> = references
                .iter()
                .filter(|reference| reference.str("name") != secret.name())
                .cloned()
                .collect();
            let is_changed = remaining.len() < references.len();
            match remaining.is_empty() {
                _ if !is_changed => {}
                true => drop(account.remove("secrets")),
                false => account.set("secrets", remaining),
            }
            Ok(is_changed)
        });
        update.await.ignore_not_found()?;
        Ok(Outcome::Done)
    }

    async fn delete(&self, key: &Key, uid: &str) -> Result<Outcome> {
        let secrets = self.client.resource(SECRETS)?;
        let Some(object) = self.client.cached(ObjectRef::new(&secrets, key)).await? else {
            return Ok(Outcome::Done);
        };
        let options = DeleteOptions { uid: Some(uid.to_owned()), ..DeleteOptions::default() };
        self.client.delete(&secrets, object, &options).await.ignore_not_found_or_conflict()?;
        Ok(Outcome::Done)
    }
}

/// The claims of a legacy token: it does not expire, and is valid while its Secret exists.
fn claims(secret: &Key, account: &str, uid: &str) -> String {
    let namespace = secret.namespace();
    json!({
        "iss": "kubernetes/serviceaccount",
        "kubernetes.io/serviceaccount/namespace": namespace,
        "kubernetes.io/serviceaccount/secret.name": secret.name(),
        "kubernetes.io/serviceaccount/service-account.name": account,
        "kubernetes.io/serviceaccount/service-account.uid": uid,
        "sub": format!("system:serviceaccount:{namespace}:{account}"),
    })
    .to_string()
}

impl Controller for AccountTokens {
    type Key = Work;

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[SECRETS, ACCOUNTS])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        let key = change.object.key.clone();
        match (change.type_name.as_str(), change.is_deleted) {
            (SECRETS, false) if is_token_secret(change.object) => queue.add(Work::Secret(key)),
            (SECRETS, true) if is_token_secret(change.object) => {
                let secrets = self.client.resource(SECRETS);
                let last = secrets.and_then(|secrets| self.client.load(&secrets, change.object));
                let account =
                    last.map(|secret| annotation(&secret, ACCOUNT_NAME).to_owned()).unwrap_or_default();
                if !account.is_empty() {
                    queue.add(Work::SecretRemoved(key, account));
                }
            }
            (ACCOUNTS, true) => queue.add(Work::Account(key)),
            _ => {}
        }
    }

    fn on_list(&self, type_name: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Work>) {
        if type_name.as_str() == ACCOUNTS {
            return queue.add(Work::All);
        }
        self.on_each_object(type_name, snapshot, queue);
    }

    fn reconcile(self: Rc<Self>, work: Work) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move {
            match &work {
                Work::Secret(key) => self.secret(key).await,
                Work::Account(key) => self.account(key).await,
                Work::SecretRemoved(key, account) => self.remove_reference(key, account).await,
                Work::All => self.queue_all().await,
            }
        }
        .boxed_local()
    }

    fn take_follow_ups(&self) -> Vec<Work> {
        self.pending.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_token_claims_match_the_reference() {
        let claims = claims(&Key::namespaced("n", "s"), "a", "u");
        assert_eq!(
            claims,
            r#"{"iss":"kubernetes/serviceaccount","kubernetes.io/serviceaccount/namespace":"n","kubernetes.io/serviceaccount/secret.name":"s","kubernetes.io/serviceaccount/service-account.name":"a","kubernetes.io/serviceaccount/service-account.uid":"u","sub":"system:serviceaccount:n:a"}"#
        );
    }
}
