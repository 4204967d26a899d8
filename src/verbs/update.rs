//! update: the body replaces the object, if the client's resourceVersion still matches.

use pilothouse_actors::store::write_turns::{BaseState, TurnMode, WriteTurn};
use pilothouse_api::deletion;
use pilothouse_api::stored_defaults::StoredDefaults;
use pilothouse_api::subresources::SubresourceStrategy;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::managed_fields;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::{self, WriteMode, WriteOptions};
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::WriteContext;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Object};

use crate::limits::WRITE_ATTEMPTS;

use super::create::{admit, store_new};
use super::{Reply, Success, VerbResult};
use crate::registry::admission::{Operation, Write};
use crate::registry::objects::Objects;
use crate::registry::request_memory::{MemoryPriority, RequestReservation};
use crate::registry::storage_version::is_stale;
use crate::registry::write_hooks::{WriteEnd, WriteFailure};
use crate::registry::{Backend, Call};

/// Computes the new state of an object.
pub trait NewState {
    /// The new state that replaces `old`, with managedFields. Both are the object or subresource of the path, in the stored
    /// version. Called again after every conflict.
    fn next_state(&self, old: &Value) -> Result<Value>;

    /// The state of an object that is created; `None` if the object must exist.
    fn initial_state(&self) -> Option<Result<Value>> {
        None
    }
}

/// An update with a whole object as its body.
struct FullBody<'a> {
    objects: &'a Objects,
    call: &'a Call<'a>,
    value: Value,
}

impl NewState for FullBody<'_> {
    fn next_state(&self, old: &Value) -> Result<Value> {
        check_uid(self.call, &self.value, old)?;
        let mut value = self.value.clone();
        self.objects.record(self.call, Some(old), &mut value);
        Ok(value)
    }

    fn initial_state(&self) -> Option<Result<Value>> {
        // A body with a uid refers to one particular object, which does not exist.
        if let Err(mismatch) = check_uid(self.call, &self.value, &Value::Null) {
            return Some(Err(mismatch));
        }
        let may_create = self.call.kind().rules.update.allows_create && self.call.subresource().is_empty();
        may_create.then(|| {
            let mut value = self.value.clone();
            self.objects.record(self.call, None, &mut value);
            Ok(value)
        })
    }
}

/// Replaces the object that the path names; creates it if the kind allows that.
pub async fn update(backend: &Backend, call: &Call<'_>) -> VerbResult {
    let options = WriteOptions::update(call.query)?;
    let mut value = backend.objects.decode_body(call, options.field_validation)?;
    let _managed_fields_memory = backend.reserve_set_items(call, &call.stored().version, &value)?;
    meta::ensure_namespace(&mut value, call.namespace())?;
    meta::check_name(&value, call.name())?;
    value.entry("metadata").set("name", call.name());
    meta::dedupe_owners(&mut value).into_iter().for_each(|warning| call.warnings.add(warning));
    store_update(backend, call, &FullBody { objects: &backend.objects, call, value }, options.mode).await
}

/// Stores a new state of the object that the path names.
pub async fn store_update(
    backend: &Backend,
    call: &Call<'_>,
    state: &dyn NewState,
    mode: WriteMode,
) -> Result<Reply> {
    let update = Update { backend, call, strategy: call.subresource_strategy()?, mode };
    for attempt in 0..WRITE_ATTEMPTS {
        // After a conflict the write takes a turn. Without turns, concurrent writers would keep running into conflicts.
        let turn = if attempt == 0 { TurnMode::IfContended } else { TurnMode::Always };
        let base_state =
            backend.stores.base_state(&call.stored().store, call.key(call.name()), turn, call.permit()).await;
        let to_status = |error: StoreError| Status::from_store(&error, call.group_resource(), call.name());
        let BaseState { object, is_durable, rollbacks, turn } = base_state.map_err(to_status)?;
        let Some(current) = object else {
            if !is_durable {
                update.wait_until_durable(rollbacks).await?;
            }
            let Some(first) = state.initial_state() else { return Err(to_status(StoreError::NotFound)) };
            match update.create_missing(first?).await {
                // A concurrent create came first: then it is an update after all.
                Err(status) if status.is_already_exists() && attempt + 1 < WRITE_ATTEMPTS => continue,
                created => return created,
            }
        };
        call.work().check_bytes(current.bytes.len())?;
        let outcome = update.try_update(state, Current { object: &current, turn }).await;
        // A reply based on a pending write must wait until that write is durable.
        if !is_durable && !matches!(outcome, Ok(Outcome::Stored(_) | Outcome::Gone(_) | Outcome::Conflicted))
        {
            update.wait_until_durable(rollbacks).await?;
        }
        match outcome? {
            Outcome::Stored(reply) | Outcome::Same(reply) | Outcome::Gone(reply) => return Ok(reply),
            // The state is computed again. If the client gave a resourceVersion, that attempt fails.
            Outcome::Conflicted => {}
        }
    }
    Err(Status::stale(call.group_resource(), call.name()))
}

/// The result of one attempt.
enum Outcome {
    /// The new state is stored.
    Stored(Reply),
    /// Nothing is stored: no change, or a dry run.
    Same(Reply),
    /// Somebody else has removed the object, as this write would have.
    Gone(Reply),
    /// A concurrent write came first.
    Conflicted,
}

/// The change of one attempt to the stored object.
enum Change {
    /// The object already has the new state.
    Unchanged,
    /// A new state.
    State(Draft),
    /// The last state of an object that is removed.
    Removal(Draft),
}

/// The stored object that an attempt starts from.
struct Current<'a> {
    object: &'a Object,
    /// The write turn, if there is contention.
    turn: Option<WriteTurn>,
}

/// The context of all attempts of an update.
struct Update<'a> {
    backend: &'a Backend,
    call: &'a Call<'a>,
    /// How the subresource of the path is read and written.
    strategy: &'a SubresourceStrategy,
    mode: WriteMode,
}

impl Update<'_> {
    /// Waits until all earlier writes of the object are durable. Fails if they were rolled back since the base state was read.
    async fn wait_until_durable(&self, rollbacks: u64) -> Result<()> {
        let (call, stores) = (self.call, &self.backend.stores);
        let (store, key) = (&call.stored().store, call.key(call.name()));
        let durable = stores.wait_until_durable(store, key, rollbacks, call.permit()).await;
        durable.map_err(|error| Status::from_store(&error, call.group_resource(), call.name()))
    }

    async fn create_missing(&self, mut value: Value) -> Result<Reply> {
        admit(self.backend, self.call, &mut value).await?;
        value.entry("metadata").remove("resourceVersion");
        store_new(self.backend, self.call, value, self.mode).await
    }

    /// Computes the state that follows the current one, validates and stores it.
    async fn try_update(&self, state: &dyn NewState, current: Current<'_>) -> Result<Outcome> {
        let Update { backend, call, strategy, mode } = *self;
        // Requests of the server and its controllers are never refused, because they free memory.
        let _memory = match call.execution.deadline {
            Some(_) => backend.requests.reserve_for_stored_object(&call.user().name, current.object)?,
            None => None,
        };
        let old = backend.load_converted(call, current.object, call.memory_priority()).await?;
        let current_view = backend.objects.view_with_owners(call, strategy, &old)?;
        let mut body = backend.with_versions(call, || state.next_state(&current_view)).await?;
        // The stored definition is compiled as well: rules may compare both.
        let definition_memory = backend.reserve_definitions(call, &[&body, &current_view])?;
        if strategy.shared_field().is_some() {
            check_view_uid(call, &body, &current_view)?;
        }
        let expected_revision = options::revision(meta::metadata(&body).str("resourceVersion"))?
            .filter(|expected_revision| *expected_revision > 0);
        let write = Write { backend, call, operation: Operation::Update, old: Some(&current_view) };
        backend.admission.mutate(&write, &mut body).await?;
        let write_view = || backend.objects.write_view(call, strategy, &old, body.clone());
        let mut new = backend.with_versions(call, write_view).await?;
        check_version(call, strategy, expected_revision, current.object.revision.0)?;
        let mut pending = backend.write_hooks.begin_update(call, &mut new, &old, mode).await?;
        let change = self.change(&write, current.object, &old, new).await;
        // Dropped before the store responds: the trees may be many times larger than their text, and the response can take as
        // much.
        drop(body);
        drop(current_view);
        drop(old);
        let outcome = match change {
            Ok(change) => {
                pending.propose();
                self.store(current, change, definition_memory).await
            }
            Err(status) => Err(status.into()),
        };
        let is_stored = |outcome: &Outcome| matches!(outcome, Outcome::Stored(_));
        pending.finish(WriteEnd::of_result(&outcome, is_stored)).await;
        Ok(outcome?)
    }

    /// Validates and encodes a new state.
    async fn change(&self, write: &Write<'_>, current: &Object, old: &Value, new: Value) -> Result<Change> {
        let mut new = self.prepare_and_validate(new, old)?;
        managed_fields::keep_times(old, &mut new);
        let view = self.strategy.show(&new)?;
        self.backend.admission.validate(write, &view).await?;
        self.encode(current, old, new).await
    }

    /// Restores fields that the client must not change, and validates.
    fn prepare_and_validate(&self, mut value: Value, old: &Value) -> Result<Value> {
        let (objects, call) = (&self.backend.objects, self.call);
        let now = objects.now();
        let context = WriteContext { now: &now, user: &call.user_info(), features: objects.features };
        // Validation requires a resourceVersion; the current one if the client gave none.
        meta::copy(value.entry("metadata"), meta::metadata(old), "resourceVersion");
        let result = self.strategy.settle(call.kind(), &mut value, old, &context);
        match objects.check_rules(call, &value, Some(old), result) {
            Ok(warnings) => {
                call.warn(warnings);
                Ok(value)
            }
            Err(errors) => Err(call.invalid_object(call.name(), &value, &errors)),
        }
    }

    /// Encodes the new state, unless it is the stored one and stored as it would be now. As in the reference, the bytes decide:
    /// different values may have the same ones.
    async fn encode(&self, current: &Object, old: &Value, mut new: Value) -> Result<Change> {
        let Update { backend, call, mode, .. } = *self;
        if !mode.is_dry_run() {
            meta::drop_self_link(&mut new);
        }
        let is_stale = is_stale(call.resource(), current)
            || !backend.stores.is_encryption_current(&call.stored().store, current);
        if !is_stale && new == *old {
            return Ok(Change::Unchanged);
        }
        let stored_defaults = StoredDefaults::set(&call.kind().rules.defaulting, &mut new);
        let mut draft = backend.stored_draft(call, current.key.clone(), &new, call.memory_priority()).await?;
        stored_defaults.write(&mut draft);
        if !is_stale && !stored_defaults.is_pending() && current.has_bytes_of(&draft) {
            return Ok(Change::Unchanged);
        }
        let is_removed = deletion::is_complete(&call.kind().rules.deletion, &new);
        Ok(if is_removed { Change::Removal(draft) } else { Change::State(draft) })
    }

    /// Stores the change, unless there is none or it is a dry run.
    async fn store(
        &self,
        current: Current<'_>,
        change: Change,
        definition_memory: Option<RequestReservation>,
    ) -> std::result::Result<Outcome, WriteFailure> {
        let Update { backend, call, mode, .. } = *self;
        let Current { object: current, turn } = current;
        let draft = match change {
            Change::Unchanged => return Ok(Outcome::Same(self.reply(current).await?)),
            Change::State(draft) | Change::Removal(draft) if mode.is_dry_run() => {
                return Ok(Outcome::Same(self.reply(&Object::new(draft, current.revision)).await?));
            }
            Change::Removal(draft) => {
                call.work().check()?;
                return self.remove(current, draft).await;
            }
            Change::State(draft) => draft,
        };
        call.work().check()?;
        let store = &call.stored().store;
        match backend.stores.replace_in_turn(store, draft, current.revision, call.permit(), turn).await {
            Ok(object) => {
                if let Some(reservation) = definition_memory {
                    backend.definitions.keep_until_compiled(object.revision, reservation);
                }
                Ok(Outcome::Stored(self.reply(&object).await.map_err(WriteFailure::of_response)?))
            }
            Err(StoreError::Conflict(_) | StoreError::NotFound) => Ok(Outcome::Conflicted),
            Err(error) => Err(WriteFailure::from_store(&error, call.group_resource(), call.name())),
        }
    }

    /// Removes the object, whose deletion was only waiting for its last finalizer.
    async fn remove(
        &self,
        current: &Object,
        last_state: Draft,
    ) -> std::result::Result<Outcome, WriteFailure> {
        let Update { backend, call, .. } = *self;
        let (store, last_state) = (&call.stored().store, Object::new(last_state, current.revision));
        match backend.stores.remove(store, current.key.clone(), current.revision, call.permit()).await {
            Ok(_) => Ok(Outcome::Stored(self.reply(&last_state).await.map_err(WriteFailure::of_response)?)),
            Err(StoreError::NotFound) => Ok(Outcome::Gone(self.reply(&last_state).await?)),
            Err(StoreError::Conflict(_)) => Ok(Outcome::Conflicted),
            Err(error) => Err(WriteFailure::from_store(&error, call.group_resource(), call.name())),
        }
    }

    async fn reply(&self, object: &Object) -> Result<Reply> {
        Ok(Reply::Object(
            Success::Ok,
            self.backend.encode_response(self.call, object, MemoryPriority::Granted).await?,
        ))
    }
}

/// A uid in the body must match the object.
fn check_uid(call: &Call<'_>, value: &Value, old: &Value) -> Result<()> {
    let (expected, actual) = (meta::metadata(value).str("uid"), meta::metadata(old).str("uid"));
    if expected.is_empty() || expected == actual {
        return Ok(());
    }
    Err(Status::wrong_uid(call.group_resource(), &call.storage_key(call.name()), expected, actual))
}

/// A uid in a subresource of another kind must match the object. In a patch, too: it can contain the uid, though it cannot change
/// it.
fn check_view_uid(call: &Call<'_>, body: &Value, current_view: &Value) -> Result<()> {
    let (expected, actual) = (meta::metadata(body).str("uid"), meta::metadata(current_view).str("uid"));
    if expected.is_empty() || expected == actual {
        return Ok(());
    }
    let name = format!("{}/{}", call.group_resource().resource, call.subresource());
    let resource = GroupResource { group: call.group_resource().group, resource: &name };
    let reason =
        format!("Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}");
    Err(Status::conflict(resource, call.name(), &reason))
}

fn check_version(
    call: &Call<'_>,
    strategy: &SubresourceStrategy,
    expected: Option<u64>,
    current: u64,
) -> Result<()> {
    match expected {
        Some(expected) if expected != current => Err(Status::stale(call.group_resource(), call.name())),
        // A subresource of another kind need not have a resourceVersion, even if its object needs one.
        None if !call.kind().rules.update.allows_unconditional && !strategy.is_view() => {
            let path = FieldPath::new("metadata").child("resourceVersion");
            let errors = [FieldError::invalid(&path, "0x0", "must be specified for an update")];
            let resource = call.group_resource();
            Err(Status::invalid(resource.group, resource.resource, call.name(), &errors))
        }
        _ => Ok(()),
    }
}
