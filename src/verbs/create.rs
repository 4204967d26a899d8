//! create: decodes, defaults, admits, validates and stores a new object.

use pilothouse_api::stored_defaults::StoredDefaults;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::{WriteMode, WriteOptions};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::{self as kinds, MetadataRules, WriteContext};
use pilothouse_types::error::StoreError;

use crate::limits::GENERATED_NAME_ATTEMPTS;
use crate::pki::random;

use super::{Reply, Success, VerbResult};
use crate::registry::admission::{Operation, Write};
use crate::registry::objects::Objects;
use crate::registry::request_memory::MemoryPriority;
use crate::registry::write_hooks::{PendingWrite, WriteEnd, WriteFailure};
use crate::registry::{Backend, Call};

/// Creates the object in the body.
pub async fn create(backend: &Backend, call: &Call<'_>) -> VerbResult {
    let options = WriteOptions::create(call.query)?;
    let mut value = backend.objects.decode_body(call, options.field_validation)?;
    let _managed_fields_memory = backend.reserve_set_items(call, &call.stored().version, &value)?;
    meta::ensure_namespace(&mut value, call.namespace())?;
    meta::clear_system_fields(&mut value);
    meta::dedupe_owners(&mut value).into_iter().for_each(|warning| call.warnings.add(warning));
    backend.objects.record(call, None, &mut value);
    admit(backend, call, &mut value).await?;
    store_new(backend, call, value, options.mode).await
}

/// Runs mutating admission on a new object.
pub async fn admit(backend: &Backend, call: &Call<'_>, value: &mut Value) -> Result<()> {
    let write = Write { backend, call, operation: Operation::Create, old: None };
    backend.admission.mutate(&write, value).await
}

/// Validates and stores a new object. Also used by updates that create.
pub async fn store_new(
    backend: &Backend,
    call: &Call<'_>,
    original: Value,
    mode: WriteMode,
) -> Result<Reply> {
    let write = Write { backend, call, operation: Operation::Create, old: None };
    let mut attempts = 0;
    // Only a generated name is retried. Any other object is dropped once it is encoded: the tree may be many times larger than
    // its text, and the response can take as much.
    let (retry_value, mut first_value) =
        (meta::has_generate_name(&original).then(|| original.clone()), Some(original));
    loop {
        attempts += 1;
        let value = first_value.take().or_else(|| retry_value.clone()).unwrap_or_default();
        let (mut value, is_generated) =
            prepare_new_object(&backend.objects, &call.kind().rules.metadata, value);
        let (name, has_prefix) = (meta::name(&value).to_owned(), meta::has_generate_name(&value));
        let mut pending = backend.write_hooks.begin_create(call, &mut value, mode).await?;
        let stored = store_once(&write, value, mode, &mut pending).await;
        pending.finish(WriteEnd::of_result(&stored, Option::is_some)).await;
        match stored? {
            Some(reply) => return Ok(reply),
            None if is_generated && retry_value.is_some() && attempts < GENERATED_NAME_ATTEMPTS => {}
            None => return Err(name_taken_error(backend, call, &name, has_prefix).await),
        }
    }
}

/// Validates and stores an object under its name. `None` means that the name is taken.
async fn store_once(
    write: &Write<'_>,
    value: Value,
    mode: WriteMode,
    pending: &mut PendingWrite,
) -> std::result::Result<Option<Reply>, WriteFailure> {
    let Write { backend, call, .. } = *write;
    let definition_memory = backend.reserve_definitions(call, &[&value])?;
    let (mut value, stored_defaults) = prepare_and_validate(&backend.objects, call, value)?;
    backend.admission.validate(write, &value).await?;
    if mode.is_dry_run() {
        return Ok(dry_run_reply(backend, call, value).await?);
    }
    meta::drop_self_link(&mut value);
    // Last, and not for dry runs: they may carry a resourceVersion.
    meta::check_unversioned(&value)?;
    let name = meta::name(&value).to_owned();
    let mut draft = backend.stored_draft(call, call.key(&name), &value, call.memory_priority()).await?;
    drop(value);
    stored_defaults.write(&mut draft);
    check_served(backend, call)?;
    call.work().check()?;
    pending.propose();
    match backend.stores.create(&call.stored().store, draft, call.permit()).await {
        Ok(object) => {
            if let Some(reservation) = definition_memory {
                backend.definitions.keep_until_compiled(object.revision, reservation);
            }
            let response = backend.encode_response(call, &object, MemoryPriority::Granted).await;
            Ok(Some(Reply::Object(Success::Created, response.map_err(WriteFailure::of_response)?)))
        }
        Err(StoreError::Exists) => Ok(None),
        Err(error) => Err(WriteFailure::from_store(&error, call.group_resource(), &name)),
    }
}

/// Refuses a custom object whose definition was deleted or changed scope during admission. Stored without a definition, the
/// object would be invisible, and would appear under the next definition of that name.
fn check_served(backend: &Backend, call: &Call<'_>) -> Result<()> {
    let current = (backend.current_resource)(call.resource());
    match current.filter(|current| current.namespaced == call.resource().namespaced) {
        None => Err(Status::no_such_resource()),
        Some(current) if current.custom.as_ref().is_some_and(|custom| custom.is_terminating) => {
            Err(Status::definition_terminating(call.group_resource()))
        }
        Some(_) => Ok(()),
    }
}

/// The error for a taken name. If the existing object is being deleted, the message says so. With generateName set, it says that
/// no unique name was found, even if a name was given.
async fn name_taken_error(backend: &Backend, call: &Call<'_>, name: &str, has_prefix: bool) -> Box<Status> {
    let existing = backend.stores.get(&call.stored().store, call.key(name), call.permit()).await;
    let is_terminating = existing
        .ok()
        .and_then(|object| backend.objects.load(call, &object).ok())
        .is_some_and(|old| meta::is_terminating(&old));
    let status = Status::already_exists(call.group_resource(), name);
    let status = if has_prefix { status.without_unique_name() } else { status };
    if is_terminating { status.existing_is_terminating() } else { status }
}

/// Sets the metadata that the server owns. Also returns whether the name was generated.
fn prepare_new_object(objects: &Objects, rules: &MetadataRules, mut value: Value) -> (Value, bool) {
    meta::set_system_fields(&mut value, &random::uuid(), &objects.now());
    let is_generated = (rules.generate_name)(&mut value, &mut random::below);
    if is_generated {
        meta::unshare_labels(&mut value);
    }
    (value, is_generated)
}

/// Sets the other fields that the server owns, validates, and sets the stored defaults.
fn prepare_and_validate(
    objects: &Objects,
    call: &Call<'_>,
    mut value: Value,
) -> Result<(Value, StoredDefaults)> {
    let now = objects.now();
    let context = WriteContext { now: &now, user: &call.user_info(), features: objects.features };
    call.warn(call.kind().rules.warnings.early_warnings(&value));
    let result = kinds::before_create(call.kind(), &mut value, &context);
    match objects.check_rules(call, &value, None, result) {
        Ok(warnings) => {
            call.warn(warnings);
            let stored_defaults = StoredDefaults::set(&call.kind().rules.defaulting, &mut value);
            Ok((value, stored_defaults))
        }
        Err(errors) => Err(call.invalid_object(meta::name(&value), &value, &errors)),
    }
}

/// The response of a dry run. `None` means that the name is taken.
async fn dry_run_reply(backend: &Backend, call: &Call<'_>, value: Value) -> Result<Option<Reply>> {
    let name = meta::name(&value).to_owned();
    match backend.stores.get(&call.stored().store, call.key(&name), call.permit()).await {
        Err(StoreError::NotFound) => {
            Ok(Some(Reply::Object(Success::Created, backend.objects.encode_unstored(call, &value)?)))
        }
        Ok(_) | Err(StoreError::Unreadable(_)) => Ok(None),
        Err(error) => Err(Status::from_store(&error, call.group_resource(), &name)),
    }
}
