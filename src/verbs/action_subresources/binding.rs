//! Binds a pod to a node.

use pilothouse_actors::error::StoreError;

use crate::api::kinds::ErrorList;
use crate::api::meta;
use crate::api::options::WriteMode;
use crate::api::status::{GroupResource, Status};
use crate::api::subresources::binding;
use crate::api::value::Value;
use crate::backend::{Backend, Call};
use crate::limits::CONFLICT_ATTEMPTS;
use crate::verbs::{Reply, VerbResult};

/// The resource as errors name it.
const OF: GroupResource<'_> = GroupResource { group: "", resource: "pods/binding" };

/// Binds the pod to the node in the body.
pub async fn create(backend: &Backend, call: &Call<'_>, body: &Value, mode: WriteMode) -> VerbResult {
    // Without a name in the path only the name in the body tells the pod; its uid is ignored.
    let by_body = call.name.is_empty();
    let mut body = body.clone();
    if by_body {
        body.entry("metadata").remove("uid");
    }
    let name = meta::name(&body);
    if !by_body && name != call.name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let mut errors = ErrorList::new();
    binding::validate(&body, &mut errors);
    if !errors.is_empty() {
        return Err(call.invalid_body(name, &errors));
    }
    super::admitted(backend, call, &body).await?;
    if name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    let (store, key) = (&call.stored.store, call.key(name));
    for attempt in 0..CONFLICT_ATTEMPTS {
        let found = match attempt {
            0 => backend.stores.get(store, key.clone(), &call.permit).await.map(|found| (found, None)),
            _ => backend.stores.alone(store, key.clone(), &call.permit).await,
        };
        let (current, _turn) = found.map_err(|error| Status::from_store(&error, call.of(), name))?;
        let mut pod = backend.objects.load(call, &current)?;
        binding::check_preconditions(&pod, &body, call.of(), &call.registered(name))?;
        let bound = binding::bind(&mut pod, &body, &backend.objects.now());
        bound.map_err(|why| Status::conflict(OF, name, &why))?;
        if backend.admission.labels_bound_pods() {
            for (key, value) in meta::of(&body).get("labels").and_then(Value::fields).into_iter().flatten() {
                pod.entry("metadata").entry("labels").set(key, value.clone());
            }
        }
        if mode.is_dry_run() {
            return Ok(Reply::Status(Status::created()));
        }
        let draft = backend.objects.draft(call, key.clone(), &pod)?;
        match backend.stores.replace(store, draft, current.revision, &call.permit).await {
            Ok(_) => return Ok(Reply::Status(Status::created())),
            Err(StoreError::Conflict(_)) => {}
            Err(error) => return Err(Status::from_store(&error, call.of(), name)),
        }
    }
    Err(Status::stale(call.of(), name))
}
