//! Changes to stored objects that the server makes as part of a request for another object (a binding, an eviction).

use std::sync::Arc;

use pilothouse_actors::permit::Permit;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Object, TypeName};

use super::Backend;

/// The object to change, and how often to retry.
pub struct RewriteTarget<'a> {
    /// The store of the object.
    pub store: &'a TypeName,
    /// Its resource, for error messages.
    pub resource: GroupResource<'a>,
    /// The permit of the request.
    pub permit: &'a Permit,
    /// The number of attempts after which the client gets a conflict.
    pub attempts: usize,
}

impl Backend {
    /// Replaces an object by the result of `change`; `None` leaves it unchanged. After a conflict the change is computed again
    /// from the current state.
    pub async fn rewrite(
        &self,
        target: &RewriteTarget<'_>,
        mut current: Arc<Object>,
        change: impl Fn(&Object) -> Result<Option<Draft>>,
    ) -> Result<Arc<Object>> {
        let RewriteTarget { store, resource, permit, attempts } = *target;
        // Held until the following write is done. Without a write turn, concurrent writers would keep running into conflicts.
        let mut turn = None;
        for _ in 0..attempts {
            let Some(draft) = change(&current)? else { return Ok(current) };
            let to_status = |error: StoreError| Status::from_store(&error, resource, current.key.name());
            match self.stores.replace(store, draft, current.revision, permit).await {
                Err(StoreError::Conflict(_)) => {}
                result => return result.map_err(to_status),
            }
            drop(turn.take());
            let latest = self.stores.get_with_turn(store, current.key.clone(), permit).await;
            (current, turn) = latest.map_err(to_status)?;
        }
        Err(Status::stale(resource, current.key.name()))
    }
}
