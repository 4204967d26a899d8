//! update: the body replaces the object, if the client's resourceVersion still matches.

use pilothouse_actors::store::write_turns::{BaseState, TurnMode, WriteTurn};
use pilothouse_api::deletion;
use pilothouse_api::subresources::SubresourceStrategy;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::managed_fields;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::{self, WriteMode, WriteOptions};
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::{self as kinds, WriteContext};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Object};

use crate::limits::WRITE_ATTEMPTS;

use super::create::{FILLED_IN, admit, store_new};
use super::{Reply, Success, VerbResult};
use crate::backend::admission::{Operation, Write};
use crate::backend::objects::Objects;
use crate::backend::request_memory::{BodyMemory, Claim};
use crate::backend::{Backend, Call, services};

/// Computes the new state of an object.
pub trait NewState {
    /// The state that follows `old`, with managedFields. Both are the object or subresource of the path, in the stored version.
    /// Called again after every conflict.
    fn after(&self, old: &Value) -> Result<Value>;

    /// The state of an object that does not exist yet; `None` if it must exist.
    fn first(&self) -> Option<Result<Value>> {
        None
    }
}

/// An update with a whole object as its body.
struct Whole<'a> {
    objects: &'a Objects,
    call: &'a Call<'a>,
    value: Value,
}

impl NewState for Whole<'_> {
    fn after(&self, old: &Value) -> Result<Value> {
        check_uid(self.call, &self.value, old)?;
        let mut value = self.value.clone();
        self.objects.record(self.call, Some(old), &mut value);
        Ok(value)
    }

    fn first(&self) -> Option<Result<Value>> {
        // A body with a uid means one particular object, and that does not exist.
        if let Err(other) = check_uid(self.call, &self.value, &Value::Null) {
            return Some(Err(other));
        }
        let creates = self.call.kind().rules.create_on_update && self.call.subresource.is_empty();
        creates.then(|| {
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
    let _owners = backend.reserve_set_items(call, &call.stored.version, &value)?;
    meta::agree_on_namespace(&mut value, call.namespace)?;
    meta::check_name(&value, call.name)?;
    value.entry("metadata").set("name", call.name);
    meta::dedupe_owners(&mut value).into_iter().for_each(|warning| call.warnings.add(warning));
    store_update(backend, call, &Whole { objects: &backend.objects, call, value }, options.mode).await
}

/// Stores a new state of the object that the path names.
pub async fn store_update(
    backend: &Backend,
    call: &Call<'_>,
    state: &dyn NewState,
    mode: WriteMode,
) -> Result<Reply> {
    let update = Update { backend, call, part: call.part()?, mode };
    for attempt in 0..WRITE_ATTEMPTS {
        // After a conflict the write takes a turn. Without turns the losers would keep colliding.
        let turn = if attempt == 0 { TurnMode::IfContended } else { TurnMode::Always };
        let basis = backend.stores.basis(&call.stored.store, call.key(call.name), turn, &call.permit).await;
        let refused = |error: StoreError| Status::from_store(&error, call.of(), call.name);
        let BaseState { object, is_durable, turn } = basis.map_err(refused)?;
        let Some(current) = object else {
            if !is_durable {
                update.settle().await?;
            }
            let Some(first) = state.first() else { return Err(refused(StoreError::NotFound)) };
            match update.create_instead(first?).await {
                // A concurrent create came first: then it is an update after all.
                Err(status) if status.is_taken() && attempt + 1 < WRITE_ATTEMPTS => continue,
                created => return created,
            }
        };
        call.work.check_bytes(current.bytes.len())?;
        let changed = update.follow(state, Current { object: &current, turn }).await;
        // A reply based on a pending write must wait until that write is durable.
        if !is_durable && !matches!(changed, Ok(Outcome::Stored(_) | Outcome::Overtaken)) {
            update.settle().await?;
        }
        match changed? {
            Outcome::Stored(reply) | Outcome::Same(reply) => return Ok(reply),
            // After a conflict the state is computed again. If the client named a version, that attempt is refused.
            Outcome::Overtaken => {}
        }
    }
    Err(Status::stale(call.of(), call.name))
}

/// The result of one attempt.
enum Outcome {
    /// The new state is stored.
    Stored(Reply),
    /// Nothing is stored: no change, or a dry run.
    Same(Reply),
    /// A concurrent write came first.
    Overtaken,
}

/// What an attempt makes of the stored object.
enum Change {
    /// The object is as it shall be.
    Nothing,
    /// Another state.
    State(Draft),
    /// The last state of an object that goes with it.
    Removal(Draft),
}

/// The stored object that an attempt starts from.
struct Current<'a> {
    object: &'a Object,
    /// The right to change it next, if writers contend for it.
    turn: Option<WriteTurn>,
}

/// What all attempts of an update share.
struct Update<'a> {
    backend: &'a Backend,
    call: &'a Call<'a>,
    /// The subresource of the path.
    part: &'a SubresourceStrategy,
    mode: WriteMode,
}

impl Update<'_> {
    /// Waits until all earlier writes of the object are durable.
    async fn settle(&self) -> Result<()> {
        let call = self.call;
        let settled =
            self.backend.stores.settled(&call.stored.store, call.key(call.name), &call.permit).await;
        settled.map(drop).map_err(|error| Status::from_store(&error, call.of(), call.name))
    }

    async fn create_instead(&self, mut value: Value) -> Result<Reply> {
        admit(self.backend, self.call, &mut value).await?;
        value.entry("metadata").remove("resourceVersion");
        store_new(self.backend, self.call, value, self.mode).await
    }

    /// Computes the state that follows the current one, validates and stores it.
    async fn follow(&self, state: &dyn NewState, current: Current<'_>) -> Result<Outcome> {
        let Update { backend, call, part, mode } = *self;
        // What the server and its controllers do is never refused: it is what gives memory back.
        let _memory = match call.ends {
            Some(_) => backend.requests.stored(&call.user.name, current.object)?,
            None => None,
        };
        let old = backend.read_in_version(call, current.object, call.claim()).await?;
        let was = backend.objects.show_owned(call, part, &old)?;
        let mut body = backend.with_versions(call, || state.after(&was)).await?;
        // The stored one is compiled as well: rules may compare both.
        let definition_memory = backend.reserve_definitions(call, &[&body, &was])?;
        if part.shared_field().is_some() {
            check_viewed(call, &body, &was)?;
        }
        let named = options::revision(meta::of(&body).str("resourceVersion"))?.filter(|named| *named > 0);
        let write = Write { backend, call, operation: Operation::Update, old: Some(&was) };
        backend.admission.mutate(&write, &mut body).await?;
        let written = || backend.objects.write_owned(call, part, &old, body.clone());
        let mut new = backend.with_versions(call, written).await?;
        check_version(call, part, named, current.object.revision.0)?;
        let claim = services::claim_changed(backend, call, &mut new, &old, mode).await?;
        let change = self.change(&write, current.object, &old, new).await;
        // Let go before the store answers: the trees may be many times their text, and the response can take as much.
        drop(body);
        drop(was);
        drop(old);
        let stored = match change {
            Ok(change) => self.put(current, change, definition_memory).await,
            Err(status) => Err(status),
        };
        claim.end(matches!(stored, Ok(Outcome::Stored(_) | Outcome::Same(_)))).await;
        stored
    }

    /// Validates and encodes a new state.
    async fn change(&self, write: &Write<'_>, current: &Object, old: &Value, new: Value) -> Result<Change> {
        let mut new = self.complete(new, old)?;
        managed_fields::keep_times(old, &mut new);
        let shown = self.part.show(&new)?;
        self.backend.admission.validate(write, &shown).await?;
        self.encode(current, old, new).await
    }

    /// Restores fields that the client must not change, and validates.
    fn complete(&self, mut value: Value, old: &Value) -> Result<Value> {
        let (objects, call) = (&self.backend.objects, self.call);
        let now = objects.now();
        let context = WriteContext { now: &now, user: &call.writer(), features: objects.features };
        // Without a resourceVersion the current one is meant; validation requires it.
        meta::copy(value.entry("metadata"), meta::of(old), "resourceVersion");
        let checked = self.part.settle(call.kind(), &mut value, old, &context);
        match objects.check_rules(call, &value, Some(old), checked) {
            Ok(warned) => {
                call.warn(warned);
                Ok(value)
            }
            Err(errors) => Err(call.invalid_object(call.name, &value, &errors)),
        }
    }

    /// Encodes the new state, unless it is that of the store.
    async fn encode(&self, current: &Object, old: &Value, mut new: Value) -> Result<Change> {
        let Update { backend, call, mode, .. } = *self;
        if !mode.is_dry_run() {
            meta::drop_link(&mut new);
        }
        if current.fields.get(FILLED_IN).is_none() && self.is_same(current, old, &new)? {
            return Ok(Change::Nothing);
        }
        let filled = kinds::finish(call.kind(), &mut new);
        let mut draft = backend.stored_draft(call, current.key.clone(), &new, call.claim()).await?;
        if filled {
            draft.fields = draft.fields.iter().chain([(FILLED_IN, "")]).collect();
        }
        let is_over = deletion::is_over(call.kind().rules, &new);
        Ok(if is_over { Change::Removal(draft) } else { Change::State(draft) })
    }

    /// Writes the new state, unless nothing shall be written.
    async fn put(
        &self,
        current: Current<'_>,
        change: Change,
        definition_memory: Option<BodyMemory>,
    ) -> Result<Outcome> {
        let Update { backend, call, mode, .. } = *self;
        let Current { object: current, turn } = current;
        let draft = match change {
            Change::Nothing => return self.shown(current).await.map(Outcome::Same),
            Change::State(draft) | Change::Removal(draft) if mode.is_dry_run() => {
                return self.shown(&Object::new(draft, current.revision)).await.map(Outcome::Same);
            }
            Change::Removal(draft) => {
                call.work.check()?;
                return self.remove(current, draft).await;
            }
            Change::State(draft) => draft,
        };
        call.work.check()?;
        let store = &call.stored.store;
        match backend.stores.replace_in_turn(store, draft, current.revision, &call.permit, turn).await {
            Ok(object) => {
                if let Some(held) = definition_memory {
                    backend.definitions.keep_until_compiled(object.revision, held);
                }
                self.shown(&object).await.map(Outcome::Stored)
            }
            Err(StoreError::Conflict(_) | StoreError::NotFound) => Ok(Outcome::Overtaken),
            Err(error) => Err(Status::from_store(&error, call.of(), call.name)),
        }
    }

    /// Whether the new state would be stored as the current one is. Different values may have the same encoding.
    fn is_same(&self, current: &Object, old: &Value, new: &Value) -> Result<bool> {
        let draft = |value| self.backend.objects.draft(self.call, current.key.clone(), value);
        Ok(new == old || draft(new)? == draft(old)?)
    }

    /// Removes the object: its last finalizer is gone, and it was waiting only for that.
    async fn remove(&self, current: &Object, last: Draft) -> Result<Outcome> {
        let Update { backend, call, .. } = *self;
        let (store, last) = (&call.stored.store, Object::new(last, current.revision));
        match backend.stores.remove(store, current.key.clone(), current.revision, &call.permit).await {
            Ok(_) | Err(StoreError::NotFound) => self.shown(&last).await.map(Outcome::Stored),
            Err(StoreError::Conflict(_)) => Ok(Outcome::Overtaken),
            Err(error) => Err(Status::from_store(&error, call.of(), call.name)),
        }
    }

    async fn shown(&self, object: &Object) -> Result<Reply> {
        Ok(Reply::Object(Success::Ok, self.backend.encode_response(self.call, object, Claim::Granted).await?))
    }
}

/// A uid in the body must match the object.
fn check_uid(call: &Call<'_>, value: &Value, old: &Value) -> Result<()> {
    let (wanted, found) = (meta::of(value).str("uid"), meta::of(old).str("uid"));
    if wanted.is_empty() || wanted == found {
        return Ok(());
    }
    Err(Status::wrong_uid(call.of(), &call.registered(call.name), wanted, found))
}

/// A uid in a subresource of another kind must match the object, in a patch too: it can name the uid though it cannot change it.
fn check_viewed(call: &Call<'_>, body: &Value, was: &Value) -> Result<()> {
    let (wanted, found) = (meta::of(body).str("uid"), meta::of(was).str("uid"));
    if wanted.is_empty() || wanted == found {
        return Ok(());
    }
    let resource = format!("{}/{}", call.of().resource, call.subresource);
    let of = GroupResource { group: call.of().group, resource: &resource };
    let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}");
    Err(Status::conflict(of, call.name, &why))
}

fn check_version(
    call: &Call<'_>,
    part: &SubresourceStrategy,
    wanted: Option<u64>,
    current: u64,
) -> Result<()> {
    match wanted {
        Some(wanted) if wanted != current => Err(Status::stale(call.of(), call.name)),
        // A subresource of another kind need not have a resourceVersion, even if its object needs one.
        None if !call.kind().rules.unconditional_update && !part.is_view() => {
            let path = FieldPath::new("metadata").child("resourceVersion");
            let errors = [FieldError::invalid(&path, "0x0", "must be specified for an update")];
            let of = call.of();
            Err(Status::invalid(of.group, of.resource, call.name, &errors))
        }
        _ => Ok(()),
    }
}
