//! How verifiers read the objects that tokens depend on: by messages to the stores, outside of any request.
//!
//! A verifier may cache a result as long as no object of the type has changed. The window of the type tells that without a
//! message.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use actix::Addr;
use pilothouse_actors::directory::{Directory, Find};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::{Get, OpenWatch, Store};
use pilothouse_actors::window::Window;
use pilothouse_apimachinery::time;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object, Revision, TypeName};
use serde::Deserialize;
use tokio::sync::Semaphore;

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

/// The newest revision of each type; `None` if it was never asked for.
pub type LatestRevisions = [Option<Revision>; KINDS];

/// Reads the objects. Shared by all verifiers and workers.
pub struct TokenObjects {
    directory: Addr<Directory>,
    /// Known stores: they live as long as the server.
    handles: [OnceLock<StoreHandle>; KINDS],
    /// Bounds the concurrent lookups of unauthenticated clients.
    places: Semaphore,
}

struct StoreHandle {
    store: Addr<Store>,
    window: Arc<Window>,
}

impl TokenObjects {
    /// Finds stores through this directory.
    pub fn new(directory: Addr<Directory>) -> TokenObjects {
        TokenObjects { directory, handles: Default::default(), places: Semaphore::new(TOKEN_LOOKUPS) }
    }

    /// The newest revision of each type.
    pub fn heads(&self) -> LatestRevisions {
        std::array::from_fn(|kind| self.handles.get(kind)?.get().map(|handle| handle.window.head()))
    }

    /// The object with this key; `None` if there is none. Waits for a store, with a timeout.
    pub async fn get(&self, kind: TokenObjectKind, key: Key) -> Result<Option<Facts>, StoreError> {
        let found = tokio::time::timeout(TOKEN_LOOKUP_TIMEOUT, async {
            let _place = self.places.acquire().await.map_err(|_| StoreError::Unavailable)?;
            let handle = self.handle(kind).await?;
            // The request has no seat yet, because its user is unknown.
            let permit = Permit::none();
            handle.store.send(Get { key, permit }).await.map_err(|_| StoreError::Unavailable)?
        });
        match found.await {
            Ok(Ok(object)) => Facts::read(&object).map(Some).ok_or(StoreError::Unavailable),
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
        let found = self.directory.send(Find { type_name: TypeName::new(name) }).await;
        let store = found.map_err(|_| StoreError::Unavailable)??;
        let position = store.send(OpenWatch { permit: Permit::none() }).await;
        let window = position.map_err(|_| StoreError::Unavailable)??.window;
        Ok(slot.get_or_init(|| StoreHandle { store, window }))
    }
}

/// The fields of an object that verifiers need.
#[derive(Debug, Default, Deserialize)]
pub struct Facts {
    /// Its metadata.
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
    secrets: Vec<Named>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
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

impl Facts {
    fn read(object: &Object) -> Option<Facts> {
        serde_json::from_slice(&object.bytes).ok()
    }

    /// Whether it is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether its deletion time is before this second.
    pub fn went_before(&self, seconds: i64) -> bool {
        let text = self.metadata.deletion_timestamp.as_deref();
        // An unparsable time counts as past.
        text.is_some_and(|text| time::parse_seconds(text).map_or(true, |at| at < seconds))
    }

    /// Whether a service account lists a Secret of this name.
    pub fn lists(&self, secret: &str) -> bool {
        self.secrets.iter().any(|listed| listed.name == secret)
    }

    /// The decoded data of a Secret under a key; empty if absent.
    pub fn data(&self, key: &str) -> Vec<u8> {
        use base64::Engine as _;
        let text = self.data.get(key).map(String::as_str).unwrap_or_default();
        base64::prelude::BASE64_STANDARD.decode(text).unwrap_or_default()
    }
}

#[cfg(test)]
impl Facts {
    /// Parses an object from JSON.
    pub fn of(json: &serde_json::Value) -> Facts {
        serde_json::from_value(json.clone()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_that_is_going_is_gone_when_its_time_is_up() {
        let facts = |at: &str| Facts::of(&json!({"metadata": {"deletionTimestamp": at}, "spec": {"x": [1]}}));
        let going = facts("1970-01-01T00:16:40Z");
        assert!(going.is_terminating() && going.went_before(1_001) && !going.went_before(1_000));
        assert!(facts("never").went_before(0));
        assert!(!Facts::default().is_terminating() && !Facts::default().went_before(i64::MAX));
    }

    #[test]
    fn what_a_secret_holds_is_decoded() {
        let secret = Facts::of(&json!({"type": "t", "data": {"a": "YWJj", "b": "***"}}));
        assert_eq!(secret.data("a"), b"abc");
        assert!(secret.data("b").is_empty() && secret.data("c").is_empty());
    }
}
