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
use crate::backend::audit_body;
use crate::backend::{Backend, Call};

/// Patches the object that the path names.
pub async fn patch(backend: &Backend, call: &Call<'_>) -> VerbResult {
    let Some(language) = call.patch else { return Err(Status::unsupported_patch("")) };
    let options = PatchOptions::parse(call.query, language == PatchType::Apply)?;
    audit_body::note_patch(call, language);
    if language == PatchType::Apply {
        return apply(backend, call, &options).await;
    }
    let (gv, kind) = call.shown_kind();
    let change = Change {
        backend,
        call,
        language,
        validation: options.write.field_validation,
        kind: GroupVersionKind::new(&gv.group, &gv.version, kind),
    };
    store_update(backend, call, &change, options.write.mode).await
}

/// A patch that is not server-side apply.
struct Change<'a> {
    backend: &'a Backend,
    call: &'a Call<'a>,
    language: PatchType,
    validation: FieldValidation,
    kind: GroupVersionKind,
}

impl NewState for Change<'_> {
    fn after(&self, old: &Value) -> Result<Value> {
        let Change { backend, call, .. } = *self;
        let objects = &backend.objects;
        let current = objects.to_shown(call, old.clone())?;
        let custom = call.custom().map(|custom| custom as &dyn Coerce);
        let target = Target { registry: objects.registry_of(call.resource), kind: &self.kind, custom };
        let Patched { value, warnings } =
            patch::apply(self.language, &call.body, self.validation, target, &current)?;
        warnings.into_iter().for_each(|warning| call.warnings.add(warning));
        let mut value = objects.to_stored(call, value)?;
        meta::agree_on_namespace(&mut value, call.namespace)?;
        meta::check_name(&value, call.name)?;
        meta::dedupe_changed_owners(&mut value).into_iter().for_each(|warning| call.warnings.add(warning));
        let _owners = backend.reserve_set_items(call, &call.stored.version, &value)?;
        objects.record(call, Some(old), &mut value);
        Ok(value)
    }
}
