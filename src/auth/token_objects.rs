//! How verifiers read the objects that tokens depend on: by messages to the stores, outside of any request.
//!
//! A verifier may cache a result as long as no object of the type has changed. The window of the type tells that without a
//! message.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use actix::Addr;
use pilothouse_actors::directory::{Directory, Find, Stores};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::shared_log::messages::FollowStatus;
use pilothouse_actors::store::{Freshness, Get, OpenWatch, Store};
use pilothouse_actors::window::Window;
use pilothouse_apimachinery::time;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object, Revision, TypeName};
use serde::Deserialize;
use tokio::sync::{Semaphore, watch};

use crate::limits::{TOKEN_LOOKUP_TIMEOUT, TOKEN_LOOKUPS};

/// The types that tokens depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenObjectKind {
    /// The subject of a token.
    ServiceAccount,
    /// Holds legacy tokens; other tokens are bound to it.
    Secret,
    /// Tokens are bound to it.
    Pod,
    /// Tokens are bound to it.
    Node,
}

/// The number of kinds.
pub const KINDS: usize = 4;
/// The stores, in the order of [`TokenObjectKind`].
const STORES: [&str; KINDS] = ["serviceaccounts", "secrets", "pods", "nodes"];

/// The newest revision of each type; `None` if no object of the type was read yet.
pub type LatestRevisions = [Option<Revision>; KINDS];

/// Reads the objects. Shared by all verifiers and workers.
pub struct TokenObjects {
    directory: Addr<Directory>,
    /// How far the logs were followed, if they are shared.
    follow_statuses: [Option<watch::Receiver<FollowStatus>>; KINDS],
    /// Known stores: they live as long as the server.
    handles: [OnceLock<StoreHandle>; KINDS],
    /// Bounds the concurrent lookups of unauthenticated clients.
    lookup_slots: Semaphore,
}

struct StoreHandle {
    store: Addr<Store>,
    window: Arc<Window>,
}

impl TokenObjects {
    /// Reads these stores.
    pub fn new(stores: &Stores) -> TokenObjects {
        TokenObjects {
            directory: stores.directory.clone(),
            follow_statuses: STORES.map(|name| stores.follow_status_of(&TypeName::new(name))),
            handles: Default::default(),
            lookup_slots: Semaphore::new(TOKEN_LOOKUPS),
        }
    }

    /// The newest revision of each type; `None` as long as this server does not learn what others change.
    pub fn latest_revisions(&self) -> LatestRevisions {
        let is_behind = |(name, status): (&str, &Option<watch::Receiver<FollowStatus>>)| {
            let status = status.as_ref().map(watch::Receiver::borrow);
            // What is held until it can be decrypted may be the deletion of a token.
            status.is_some_and(|status| {
                status.disconnected.is_some() || status.held.contains_key(&TypeName::new(name))
            })
        };
        if STORES.into_iter().zip(&self.follow_statuses).any(is_behind) {
            return LatestRevisions::default();
        }
        std::array::from_fn(|kind| self.handles.get(kind)?.get().map(|handle| handle.window.head()))
    }

    /// The object with this key; `None` if there is none. Waits for a store, with a timeout.
    pub async fn get(&self, kind: TokenObjectKind, key: Key) -> Result<Option<TokenObject>, StoreError> {
        let lookup = tokio::time::timeout(TOKEN_LOOKUP_TIMEOUT, async {
            let _slot = self.lookup_slots.acquire().await.map_err(|_| StoreError::Unavailable)?;
            let handle = self.handle(kind).await?;
            // The request has no seat yet, because its user is unknown.
            let permit = Permit::none();
            handle
                .store
                .send(Get { freshness: Freshness::Latest, key, permit })
                .await
                .map_err(|_| StoreError::Unavailable)?
        });
        match lookup.await {
            Ok(Ok(object)) => TokenObject::parse(&object).map(Some).ok_or(StoreError::Unavailable),
            Ok(Err(StoreError::NotFound)) => Ok(None),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(StoreError::Unavailable),
        }
    }

    async fn handle(&self, kind: TokenObjectKind) -> Result<&StoreHandle, StoreError> {
        let (Some(slot), Some(name)) = (self.handles.get(kind as usize), STORES.get(kind as usize)) else {
            return Err(StoreError::Unavailable);
        };
        if let Some(handle) = slot.get() {
            return Ok(handle);
        }
        let lookup = self.directory.send(Find { type_name: TypeName::new(name) }).await;
        let store = lookup.map_err(|_| StoreError::Unavailable)??;
        let position = store.send(OpenWatch { freshness: Freshness::Seen, permit: Permit::none() }).await;
        let window = position.map_err(|_| StoreError::Unavailable)??.window;
        Ok(slot.get_or_init(|| StoreHandle { store, window }))
    }
}

/// The fields of an object that verifiers need.
#[derive(Debug, Default, Deserialize)]
pub struct TokenObject {
    /// The metadata of the object.
    #[serde(default)]
    pub metadata: Metadata,
    /// The type of a Secret.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// The data of a Secret, in base64.
    #[serde(default)]
    data: HashMap<String, String>,
    /// The secrets of a service account.
    #[serde(default)]
    secrets: Vec<SecretReference>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SecretReference {
    name: String,
}

/// The fields of metadata that verifiers need.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// Tells objects with the same name apart.
    pub uid: String,
    /// All labels.
    pub labels: HashMap<String, String>,
    #[serde(rename = "deletionTimestamp")]
    deletion_timestamp: Option<String>,
}

impl TokenObject {
    fn parse(object: &Object) -> Option<TokenObject> {
        serde_json::from_slice(&object.bytes).ok()
    }

    /// Whether it is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether its deletion time is before this second.
    pub fn was_deleted_before(&self, seconds: i64) -> bool {
        let text = self.metadata.deletion_timestamp.as_deref();
        // An unparsable time counts as past.
        text.is_some_and(|text| time::parse_seconds(text).map_or(true, |deletion| deletion < seconds))
    }

    /// Whether a service account lists a Secret of this name.
    pub fn lists_secret(&self, secret: &str) -> bool {
        self.secrets.iter().any(|reference| reference.name == secret)
    }

    /// The decoded data of a Secret under a key; empty if absent.
    pub fn data(&self, key: &str) -> Vec<u8> {
        use base64::Engine as _;
        let text = self.data.get(key).map(String::as_str).unwrap_or_default();
        base64::prelude::BASE64_STANDARD.decode(text).unwrap_or_default()
    }
}

#[cfg(test)]
impl TokenObject {
    /// Parses an object from JSON.
    pub fn from_json(json: &serde_json::Value) -> TokenObject {
        serde_json::from_value(json.clone()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn terminating_object_counts_as_deleted_after_its_deletion_timestamp() {
        let facts = |time: &str| {
            TokenObject::from_json(&json!({"metadata": {"deletionTimestamp": time}, "spec": {"x": [1]}}))
        };
        let terminating = facts("1970-01-01T00:16:40Z");
        assert!(
            terminating.is_terminating()
                && terminating.was_deleted_before(1_001)
                && !terminating.was_deleted_before(1_000)
        );
        assert!(facts("never").was_deleted_before(0));
        assert!(
            !TokenObject::default().is_terminating() && !TokenObject::default().was_deleted_before(i64::MAX)
        );
    }

    #[test]
    fn secret_data_is_base64_decoded() {
        let secret = TokenObject::from_json(&json!({"type": "t", "data": {"a": "YWJj", "b": "***"}}));
        assert_eq!(secret.data("a"), b"abc");
        assert!(secret.data("b").is_empty() && secret.data("c").is_empty());
    }
}
