//! update: the body replaces the object, if the client's resourceVersion still matches.

use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::Object;
use pilothouse_actors::write_turns::{BaseState, TurnMode, WriteTurn};

use crate::api::deletion;
use crate::api::field::{FieldError, FieldPath};
use crate::api::kinds::{self, WriteContext};
use crate::api::managed_fields;
use crate::api::meta;
use crate::api::options::{self, WriteOptions};
use crate::api::status::{GroupResource, Result, Status};
use crate::api::subresources::SubresourceStrategy;
use crate::api::value::Value;
use crate::limits::WRITE_ATTEMPTS;

use super::create::{FILLED_IN, admit, store_new};
use super::{Reply, VerbResult};
use crate::backend::admission::{Operation, Write};
use crate::backend::objects::Objects;
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
    meta::agree_on_namespace(&mut value, call.namespace)?;
    meta::check_name(&value, call.name)?;
    value.entry("metadata").set("name", call.name);
    meta::dedupe_owners(&mut value).into_iter().for_each(|warning| call.warnings.add(warning));
    store_update(backend, call, &Whole { objects: &backend.objects, call, value }, options.dry_run).await
}

/// Stores a new state of the object that the path names.
pub async fn store_update(
    backend: &Backend,
    call: &Call<'_>,
    state: &dyn NewState,
    dry_run: bool,
) -> Result<Reply> {
    let part = call.part()?;
    for attempt in 0..WRITE_ATTEMPTS {
        // After a conflict the write takes a turn. Without turns the losers would keep colliding.
        let turn = if attempt == 0 { TurnMode::IfContended } else { TurnMode::Always };
        let basis = backend.stores.basis(&call.stored.store, call.key(call.name), turn, &call.permit).await;
        let refused = |error: StoreError| Status::from_store(&error, call.of(), call.name);
        let BaseState { object, is_durable, turn } = basis.map_err(refused)?;
        let Some(current) = object else {
            if !is_durable {
                settle(backend, call).await?;
            }
            let Some(first) = state.first() else { return Err(refused(StoreError::NotFound)) };
            match create_instead(backend, call, first?, dry_run).await {
                // A concurrent create came first: then it is an update after all.
                Err(status) if status.is_taken() && attempt + 1 < WRITE_ATTEMPTS => continue,
                created => return created,
            }
        };
        let changed = follow(backend, call, part, state, (&current, turn), dry_run).await;
        // A reply based on a pending write must wait until that write is durable.
        if !is_durable && !matches!(changed, Ok(Outcome::Stored(_) | Outcome::Overtaken)) {
            settle(backend, call).await?;
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

/// Waits until all earlier writes of the object are durable.
async fn settle(backend: &Backend, call: &Call<'_>) -> Result<()> {
    let settled = backend.stores.settled(&call.stored.store, call.key(call.name), &call.permit).await;
    settled.map(drop).map_err(|error| Status::from_store(&error, call.of(), call.name))
}

/// Computes the state that follows `current`, validates and stores it.
async fn follow(
    backend: &Backend,
    call: &Call<'_>,
    part: &SubresourceStrategy,
    state: &dyn NewState,
    (current, turn): (&Object, Option<WriteTurn>),
    dry_run: bool,
) -> Result<Outcome> {
    let old = backend.read_in_version(call, current).await?;
    let was = backend.objects.show_owned(call, part, &old)?;
    let mut body = backend.with_versions(call, || state.after(&was)).await?;
    if part.shared_field().is_some() {
        check_viewed(call, &body, &was)?;
    }
    let wanted = options::revision(meta::of(&body).str("resourceVersion"))?.filter(|wanted| *wanted > 0);
    let write = Write { backend, call, operation: Operation::Update, old: Some(&was) };
    backend.admission.mutate(&write, &mut body).await?;
    let written = || backend.objects.write_owned(call, part, &old, body.clone());
    let mut new = backend.with_versions(call, written).await?;
    check_version(call, part, wanted, current.revision.0)?;
    let claim = services::claim_changed(backend, call, &mut new, &old, dry_run).await?;
    let stored = change(&write, part, (current, turn), (new, &old), dry_run).await;
    claim.end(matches!(stored, Ok(Outcome::Stored(_) | Outcome::Same(_)))).await;
    stored
}

/// Validates and stores a new state.
async fn change(
    write: &Write<'_>,
    part: &SubresourceStrategy,
    (current, turn): (&Object, Option<WriteTurn>),
    (new, old): (Value, &Value),
    dry_run: bool,
) -> Result<Outcome> {
    let Write { backend, call, .. } = *write;
    let mut new = complete(&backend.objects, call, part, new, old)?;
    managed_fields::keep_times(old, &mut new);
    let shown = part.show(&new)?;
    backend.admission.validate(write, &shown).await?;
    put(backend, call, (current, turn), (new, old), dry_run).await
}

async fn create_instead(
    backend: &Backend,
    call: &Call<'_>,
    mut value: Value,
    dry_run: bool,
) -> Result<Reply> {
    admit(backend, call, &mut value).await?;
    value.entry("metadata").remove("resourceVersion");
    store_new(backend, call, &value, dry_run).await
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

/// Restores fields that the client must not change, and validates.
fn complete(
    objects: &Objects,
    call: &Call<'_>,
    part: &SubresourceStrategy,
    mut value: Value,
    old: &Value,
) -> Result<Value> {
    let now = objects.now();
    let context = WriteContext { now: &now, user: &call.writer(), features: objects.features };
    // Without a resourceVersion the current one is meant; validation requires it.
    meta::copy(value.entry("metadata"), meta::of(old), "resourceVersion");
    let checked = part.settle(call.kind(), &mut value, old, &context);
    match objects.check_rules(call, &value, Some(old), checked) {
        Ok(warned) => {
            call.warn(warned);
            Ok(value)
        }
        Err(errors) => Err(call.invalid_object(call.name, &value, &errors)),
    }
}

/// Writes the new state.
async fn put(
    backend: &Backend,
    call: &Call<'_>,
    (current, turn): (&Object, Option<WriteTurn>),
    (mut new, old): (Value, &Value),
    dry_run: bool,
) -> Result<Outcome> {
    let shown =
        async |object: &Object| backend.tell(call, object).await.map(|bytes| Reply::Object(200, bytes));
    let is_written = current.fields.get(FILLED_IN).is_none();
    if !dry_run {
        meta::drop_link(&mut new);
    }
    if is_written && new == *old {
        return shown(current).await.map(Outcome::Same);
    }
    // Different values may have the same encoding.
    if is_written
        && backend.objects.draft(call, current.key.clone(), &new)?
            == backend.objects.draft(call, current.key.clone(), old)?
    {
        return shown(current).await.map(Outcome::Same);
    }
    let filled = kinds::finish(call.kind(), &mut new);
    let mut draft = backend.stored_draft(call, current.key.clone(), &new).await?;
    if filled {
        draft.fields = draft.fields.iter().chain([(FILLED_IN, "")]).collect();
    }
    if dry_run {
        return shown(&Object::new(draft, current.revision)).await.map(Outcome::Same);
    }
    let store = &call.stored.store;
    if deletion::is_over(call.kind().rules, &new) {
        // The last finalizer is gone, and the object was waiting only for that.
        let last = Object::new(draft, current.revision);
        return match backend.stores.remove(store, current.key.clone(), current.revision, &call.permit).await {
            Ok(_) | Err(StoreError::NotFound) => shown(&last).await.map(Outcome::Stored),
            Err(StoreError::Conflict(_)) => Ok(Outcome::Overtaken),
            Err(error) => Err(Status::from_store(&error, call.of(), call.name)),
        };
    }
    match backend.stores.replace_in_turn(store, draft, current.revision, &call.permit, turn).await {
        Ok(object) => shown(&object).await.map(Outcome::Stored),
        Err(StoreError::Conflict(_) | StoreError::NotFound) => Ok(Outcome::Overtaken),
        Err(error) => Err(Status::from_store(&error, call.of(), call.name)),
    }
}
