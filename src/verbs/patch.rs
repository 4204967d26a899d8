//! patch: changes an existing object.
//!
//! The patch is applied to the object in the version of the path, as the client sees it. The result is processed like the body of
//! an update. If the object changes concurrently, the patch is applied again to the new state.

use pilothouse_apimachinery::media::PatchType;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::{FieldValidation, PatchOptions};
use pilothouse_apimachinery::patch::{self, Coerce, Patched, Target};
use pilothouse_apimachinery::schema::GroupVersionKind;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;

use super::VerbResult;
use super::apply::apply;
use super::update::{NewState, store_update};
use crate::registry::audit_body;
use crate::registry::{Backend, Call};

/// Patches the object that the path names.
pub async fn patch(backend: &Backend, call: &Call<'_>) -> VerbResult {
    let Some(patch_type) = call.body.patch else { return Err(Status::unsupported_patch("")) };
    let options = PatchOptions::parse(call.query, patch_type == PatchType::Apply)?;
    audit_body::record_patch(call, patch_type);
    if patch_type == PatchType::Apply {
        return apply(backend, call, &options).await;
    }
    let (gv, kind) = call.body_kind();
    let change = PatchState {
        backend,
        call,
        patch_type,
        validation: options.write.field_validation,
        kind: GroupVersionKind::new(&gv.group, &gv.version, kind),
    };
    store_update(backend, call, &change, options.write.mode).await
}

/// A patch that is not server-side apply.
struct PatchState<'a> {
    backend: &'a Backend,
    call: &'a Call<'a>,
    patch_type: PatchType,
    validation: FieldValidation,
    kind: GroupVersionKind,
}

impl NewState for PatchState<'_> {
    fn next_state(&self, old: &Value) -> Result<Value> {
        let PatchState { backend, call, .. } = *self;
        let objects = &backend.objects;
        let current = objects.to_requested(call, old.clone())?;
        let custom = call.custom().map(|custom| custom as &dyn Coerce);
        let target = Target { registry: objects.registry_of(call.resource()), kind: &self.kind, custom };
        let Patched { value, warnings } =
            patch::apply(self.patch_type, &call.body.bytes, self.validation, target, &current)?;
        warnings.into_iter().for_each(|warning| call.warnings.add(warning));
        let mut value = objects.to_stored(call, value)?;
        meta::ensure_namespace(&mut value, call.namespace())?;
        meta::check_name(&value, call.name())?;
        meta::dedupe_changed_owners(&mut value).into_iter().for_each(|warning| call.warnings.add(warning));
        let _managed_fields_memory = backend.reserve_set_items(call, &call.stored().version, &value)?;
        objects.record(call, Some(old), &mut value);
        Ok(value)
    }
}
