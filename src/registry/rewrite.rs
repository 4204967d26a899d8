//! Changes to one stored object that begin again after a conflict with another writer.
//!
//! Three writes have loops of their own, because they do not begin with one durable object. Updates of clients
//! (`verbs/update.rs`) start from the newest state, durable or not, and may create the object. Quotas are charged several at a
//! time (`admission/quota/charging.rs`). An eviction repeats a whole sequence of writes (`verbs/action_subresources/eviction.rs`).

use std::sync::Arc;

use pilothouse_actors::permit::Permit;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Object, TypeName};

use super::Backend;
use super::stores::{StoreResult, Stores};

/// Where an object is stored, and how often its change is attempted.
pub struct WriteTarget<'a> {
    /// The store of the object.
    pub store: &'a TypeName,
    /// The permit of the request.
    pub permit: &'a Permit,
    /// The number of attempts. The conflict of the last one is the result, unless the object is gone by then.
    pub attempts: usize,
}

impl Stores {
    /// Attempts to write an object, at first in the state that the caller has read. After a conflict the object is read again,
    /// with a write turn: otherwise concurrent writers would keep running into conflicts. The outer error of `attempt` ends the
    /// attempts, the inner one is that of the store.
    pub async fn retry_on_conflict<T, E>(
        &self,
        target: &WriteTarget<'_>,
        mut current: Arc<Object>,
        mut attempt: impl AsyncFnMut(&Arc<Object>) -> std::result::Result<StoreResult<T>, E>,
    ) -> std::result::Result<StoreResult<T>, E> {
        let WriteTarget { store, permit, attempts } = *target;
        let mut attempts_left = attempts;
        // Held until the following write is done.
        let mut turn = None;
        loop {
            attempts_left = attempts_left.saturating_sub(1);
            let conflict = match attempt(&current).await? {
                Err(conflict @ StoreError::Conflict(_)) => conflict,
                result => return Ok(result),
            };
            drop(turn.take());
            let key = current.key.clone();
            if attempts_left == 0 {
                let is_gone = matches!(self.get_settled(store, key, permit).await, Ok(None));
                return Ok(Err(if is_gone { StoreError::NotFound } else { conflict }));
            }
            match self.get_with_turn(store, key, permit).await {
                Ok(latest) => (current, turn) = latest,
                Err(error) => return Ok(Err(error)),
            }
        }
    }
}

impl Backend {
    /// Replaces an object by the result of `change`; `None` leaves it unchanged. `resource`: for error messages.
    pub async fn rewrite(
        &self,
        target: &WriteTarget<'_>,
        resource: GroupResource<'_>,
        current: Arc<Object>,
        change: impl Fn(&Object) -> Result<Option<Draft>>,
    ) -> Result<Arc<Object>> {
        let key = current.key.clone();
        let attempt = async |object: &Arc<Object>| -> Result<StoreResult<Arc<Object>>> {
            let Some(draft) = change(object)? else { return Ok(Ok(object.clone())) };
            Ok(self.stores.replace(target.store, draft, object.revision, target.permit).await)
        };
        let written = self.stores.retry_on_conflict(target, current, attempt).await?;
        written.map_err(|error| Status::from_store(&error, resource, key.name()))
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_actors::directory::{Options, start};
    use pilothouse_actors::engine::memory::Memory;
    use pilothouse_types::object::{Key, Pairs};

    use super::*;

    fn draft(key: &Key) -> Draft {
        let head = r#"{"metadata":{"resourceVersion":""#;
        let (labels, fields) = (Pairs::default(), Pairs::default());
        let bytes = format!(r#"{head}"}}}}"#).into();
        Draft { key: key.clone(), bytes, revision_offset: head.len(), item_offset: 1, labels, fields }
    }

    /// The errors of attempts of which each is preceded by another write, up to `others` of them.
    async fn attempts_among(others: usize, removes: bool) -> (usize, StoreResult<Arc<Object>>) {
        let storage = start(Box::new(Memory::new()), Options::default()).unwrap();
        let (stores, permit) = (Stores::new(&storage), &Permit::none());
        let (store, key) = (&TypeName::new("things"), Key::cluster("a"));
        let first = stores.create(store, draft(&key), permit).await.unwrap();
        let mut made = 0;
        let attempt = async |object: &Arc<Object>| {
            made += 1;
            if made <= others {
                stores.replace(store, draft(&key), object.revision, permit).await?;
            }
            if removes {
                let current = stores.get(store, key.clone(), permit).await?;
                stores.remove(store, key.clone(), current.revision, permit).await?;
            }
            Ok::<_, StoreError>(stores.replace(store, draft(&key), object.revision, permit).await)
        };
        let target = WriteTarget { store, permit, attempts: 3 };
        let result = stores.retry_on_conflict(&target, first, attempt).await.unwrap();
        (made, result)
    }

    #[actix_rt::test]
    async fn write_begins_again_after_conflicts() {
        for others in 0..3 {
            let (made, result) = attempts_among(others, false).await;
            assert!(result.is_ok());
            assert_eq!(made, others + 1);
        }
        let (made, result) = attempts_among(3, false).await;
        assert!(matches!(result, Err(StoreError::Conflict(_))), "of the last attempt");
        assert_eq!(made, 3);
    }

    #[actix_rt::test]
    async fn object_removed_after_the_last_conflict_is_not_found() {
        let storage = start(Box::new(Memory::new()), Options::default()).unwrap();
        let (stores, permit) = (Stores::new(&storage), &Permit::none());
        let (store, key) = (&TypeName::new("things"), Key::cluster("a"));
        let first = stores.create(store, draft(&key), permit).await.unwrap();
        let attempt = async |object: &Arc<Object>| {
            let newer = stores.replace(store, draft(&key), object.revision, permit).await?;
            let conflict = stores.replace(store, draft(&key), object.revision, permit).await;
            stores.remove(store, key.clone(), newer.revision, permit).await?;
            Ok::<_, StoreError>(conflict)
        };
        let target = WriteTarget { store, permit, attempts: 1 };
        let result = stores.retry_on_conflict(&target, first, attempt).await.unwrap();
        assert!(matches!(result, Err(StoreError::NotFound)), "{result:?}");
    }

    #[actix_rt::test]
    async fn removed_object_ends_the_attempts() {
        let (made, result) = attempts_among(0, true).await;
        assert!(matches!(result, Err(StoreError::NotFound)));
        assert_eq!(made, 1);
    }
}
