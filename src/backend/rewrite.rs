//! Changes of stored objects that the server makes itself, as part of another request (a binding, an eviction).

use std::sync::Arc;

use pilothouse_actors::permit::Permit;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Object, TypeName};

use super::Backend;

/// Where such an object is, and how often the change is tried.
pub struct RewriteTarget<'a> {
    /// The store of the object.
    pub store: &'a TypeName,
    /// Its resource, as errors name it.
    pub of: GroupResource<'a>,
    /// The seat of the request.
    pub permit: &'a Permit,
    /// The number of attempts after which the client gets a conflict.
    pub attempts: usize,
}

impl Backend {
    /// Replaces an object by what `change` makes of it, or leaves it as it is if that is `None`. If another writer comes first,
    /// the change is computed again from the state that this one has stored.
    pub async fn rewrite(
        &self,
        target: &RewriteTarget<'_>,
        mut current: Arc<Object>,
        change: impl Fn(&Object) -> Result<Option<Draft>>,
    ) -> Result<Arc<Object>> {
        let RewriteTarget { store, of, permit, attempts } = *target;
        // Held until the write that follows is done. Without turns the losers would keep colliding.
        let mut turn = None;
        for _ in 0..attempts {
            let Some(draft) = change(&current)? else { return Ok(current) };
            let refused = |error: StoreError| Status::from_store(&error, of, current.key.name());
            match self.stores.replace(store, draft, current.revision, permit).await {
                Err(StoreError::Conflict(_)) => {}
                replaced => return replaced.map_err(refused),
            }
            drop(turn.take());
            let alone = self.stores.alone(store, current.key.clone(), permit).await;
            (current, turn) = alone.map_err(refused)?;
        }
        Err(Status::stale(of, current.key.name()))
    }
}
