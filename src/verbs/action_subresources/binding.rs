//! Binds a pod to a node.

use pilothouse_api::subresources::binding;
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::WriteMode;
use pilothouse_apimachinery::status::{GroupResource, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Object;

use crate::limits::CONFLICT_ATTEMPTS;
use crate::registry::rewrite::WriteTarget;
use crate::registry::{Backend, Call};
use crate::verbs::{Reply, VerbResult};

/// The resource in error messages.
const RESOURCE: GroupResource<'_> = GroupResource { group: "", resource: "pods/binding" };

/// Binds the pod to the node in the body.
pub async fn create(backend: &Backend, call: &Call<'_>, body: &Value, mode: WriteMode) -> VerbResult {
    // Without a name in the path only the name in the body tells the pod; its uid is ignored.
    let is_named_by_body = call.name().is_empty();
    let mut body = body.clone();
    if is_named_by_body {
        body.entry("metadata").remove("uid");
    }
    let name = meta::name(&body);
    if !is_named_by_body && name != call.name() {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let mut errors = ErrorList::new();
    binding::validate(&body, &mut errors);
    if !errors.is_empty() {
        return Err(call.invalid_body(name, &errors));
    }
    super::validate_admission(backend, call, &body).await?;
    if name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    let (store, key) = (&call.stored().store, call.key(name));
    let result = backend.stores.get(store, key.clone(), call.permit()).await;
    let current = result.map_err(|error| Status::from_store(&error, call.group_resource(), name))?;
    let target = WriteTarget { store, permit: call.permit(), attempts: CONFLICT_ATTEMPTS };
    let bind = |current: &Object| {
        let mut pod = backend.objects.load(call, current)?;
        binding::check_preconditions(&pod, &body, call.group_resource(), &call.storage_key(name))?;
        let outcome = binding::bind(&mut pod, &body, &backend.objects.now());
        outcome.map_err(|reason| Status::conflict(RESOURCE, name, &reason))?;
        if backend.admission.labels_bound_pods() {
            for (key, value) in
                meta::metadata(&body).get("labels").and_then(Value::fields).into_iter().flatten()
            {
                pod.entry("metadata").entry("labels").set(key, value.clone());
            }
        }
        if mode.is_dry_run() {
            return Ok(None);
        }
        backend.objects.draft(call, key.clone(), &pod).map(Some)
    };
    backend.rewrite(&target, call.group_resource(), current, bind).await?;
    Ok(Reply::Status(Status::created()))
}
