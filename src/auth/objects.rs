//! The objects that tokens hang on, as verifiers look at them: by messages to their stores, without anybody's request.
//!
//! A verifier that found something out may keep it for as long as nothing of that type has changed, which the window of the
//! type says without a message.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use actix::Addr;
use pilothouse_actors::directory::{Directory, Find};
use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::{Key, Object, Revision, TypeName};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::{Get, OpenWatch, Store};
use pilothouse_actors::window::Window;
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::api::schema::time;
use crate::limits::{TOKEN_LOOKUP, TOKEN_LOOKUPS};

/// The types that tokens hang on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whom tokens speak for.
    ServiceAccount,
    /// Where some tokens lie, and what others end with.
    Secret,
    /// What tokens are made for.
    Pod,
    /// What tokens are made for, too.
    Node,
}

/// How many types there are.
pub const KINDS: usize = 4;
/// Their stores, in the order of [`Kind`].
const STORES: [&str; KINDS] = ["serviceaccounts", "secrets", "pods", "nodes"];

/// The newest revisions of all types at one moment; `None` for a type that was never asked for.
pub type Heads = [Option<Revision>; KINDS];

/// The way to the objects. Shared by all verifiers and workers.
pub struct Objects {
    directory: Addr<Directory>,
    /// What was found before: a store lives as long as the server.
    shelves: [OnceLock<Shelf>; KINDS],
    /// Bounds what callers who are not known yet can ask of the stores at once.
    places: Semaphore,
}

struct Shelf {
    store: Addr<Store>,
    window: Arc<Window>,
}

impl Objects {
    /// Objects found through this directory.
    pub fn new(directory: Addr<Directory>) -> Objects {
        Objects { directory, shelves: Default::default(), places: Semaphore::new(TOKEN_LOOKUPS) }
    }

    /// How far each type has come.
    pub fn heads(&self) -> Heads {
        std::array::from_fn(|kind| self.shelves.get(kind)?.get().map(|shelf| shelf.window.head()))
    }

    /// The object of this key; `None` if there is none. Waits for a store, but not for ever.
    pub async fn get(&self, kind: Kind, key: Key) -> Result<Option<Facts>, StoreError> {
        let found = tokio::time::timeout(TOKEN_LOOKUP, async {
            let _place = self.places.acquire().await.map_err(|_| StoreError::Unavailable)?;
            let shelf = self.shelf(kind).await?;
            // No request has a place yet: it is not known who asks.
            let permit = Permit::none();
            shelf.store.send(Get { key, permit }).await.map_err(|_| StoreError::Unavailable)?
        });
        match found.await {
            Ok(Ok(object)) => Facts::read(&object).map(Some).ok_or(StoreError::Unavailable),
            Ok(Err(StoreError::NotFound)) => Ok(None),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(StoreError::Unavailable),
        }
    }

    async fn shelf(&self, kind: Kind) -> Result<&Shelf, StoreError> {
        let (Some(slot), Some(name)) = (self.shelves.get(kind as usize), STORES.get(kind as usize)) else {
            return Err(StoreError::Unavailable);
        };
        if let Some(shelf) = slot.get() {
            return Ok(shelf);
        }
        let found = self.directory.send(Find { type_name: TypeName::new(name) }).await;
        let store = found.map_err(|_| StoreError::Unavailable)??;
        let position = store.send(OpenWatch { permit: Permit::none() }).await;
        let window = position.map_err(|_| StoreError::Unavailable)??.window;
        Ok(slot.get_or_init(|| Shelf { store, window }))
    }
}

/// What verifiers want to know of an object.
#[derive(Debug, Default, Deserialize)]
pub struct Facts {
    /// The metadata.
    #[serde(default)]
    pub metadata: Metadata,
    /// The type of a secret.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// What a secret holds, in base64.
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

/// What verifiers want to know of metadata.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// Tells it from others that had its name.
    pub uid: String,
    /// Labels.
    pub labels: HashMap<String, String>,
    #[serde(rename = "deletionTimestamp")]
    deletion_timestamp: Option<String>,
}

impl Facts {
    fn read(object: &Object) -> Option<Facts> {
        serde_json::from_slice(&object.bytes).ok()
    }

    /// Whether it is on its way out.
    pub fn is_going(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether its time was up before this second.
    pub fn went_before(&self, seconds: i64) -> bool {
        let text = self.metadata.deletion_timestamp.as_deref();
        // A time that cannot be read is on the safe side.
        text.is_some_and(|text| time::parse_seconds(text).map_or(true, |at| at < seconds))
    }

    /// Whether a service account lists a secret of this name.
    pub fn lists(&self, secret: &str) -> bool {
        self.secrets.iter().any(|listed| listed.name == secret)
    }

    /// What a secret holds under a key; nothing if there is no such key.
    pub fn data(&self, key: &str) -> Vec<u8> {
        use base64::Engine as _;
        let text = self.data.get(key).map(String::as_str).unwrap_or_default();
        base64::prelude::BASE64_STANDARD.decode(text).unwrap_or_default()
    }
}

#[cfg(test)]
impl Facts {
    /// The facts of an object in JSON.
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
        assert!(going.is_going() && going.went_before(1_001) && !going.went_before(1_000));
        assert!(facts("never").went_before(0));
        assert!(!Facts::default().is_going() && !Facts::default().went_before(i64::MAX));
    }

    #[test]
    fn what_a_secret_holds_is_decoded() {
        let secret = Facts::of(&json!({"type": "t", "data": {"a": "YWJj", "b": "***"}}));
        assert_eq!(secret.data("a"), b"abc");
        assert!(secret.data("b").is_empty() && secret.data("c").is_empty());
    }
}
