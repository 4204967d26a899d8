//! Eviction: a deletion that respects PodDisruptionBudgets.

use std::ops::Bound;
use std::sync::Arc;

use pilothouse_api::deletion;
use pilothouse_api::subresources::eviction::{self, PodState};
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::{DeleteOptions, WriteMode};
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_kinds::{self as kinds, WriteContext};
use pilothouse_types::object::{Object, TypeName};

use crate::limits::EVICTION_ATTEMPTS;
use crate::registry::rewrite::WriteTarget;
use crate::registry::{Backend, Call};
use crate::verbs::{Reply, VerbResult, delete};

const BUDGETS: GroupResource<'_> = GroupResource { group: "policy", resource: "poddisruptionbudgets" };
const BUDGET: &str = "PodDisruptionBudget";

/// Evicts the pod that the path names.
pub async fn create(backend: &Backend, call: &Call<'_>, body: &Value, mode: WriteMode) -> VerbResult {
    if meta::name(body) != call.name() {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut errors = ErrorList::new();
    eviction::validate(body, &mut errors);
    if !errors.is_empty() {
        return Err(call.invalid_body(call.name(), &errors));
    }
    let mut options =
        DeleteOptions::parse(call.query, Some(body.get("deleteOptions").unwrap_or(&Value::Null)), false)?;
    options.dry_run |= mode.is_dry_run();
    super::validate_admission(backend, call, body).await?;
    evict(backend, call, &options).await?;
    Ok(Reply::Status(Status::created()))
}

async fn evict(backend: &Backend, call: &Call<'_>, options: &DeleteOptions) -> Result<()> {
    let mut last_error = Status::stale(call.group_resource(), call.name());
    for _ in 0..EVICTION_ATTEMPTS {
        let pod = backend.objects.load(call, &*backend.read(call).await?)?;
        let pod_state = eviction::pod_state(&pod);
        let result = match pod_state {
            PodState::Finished => mark_and_delete(backend, call, options).await,
            // Only this revision of the pod: if it starts meanwhile, a budget may count it.
            PodState::Pending => mark_and_delete(backend, call, &with_precondition(options, &pod)).await,
            PodState::Unready | PodState::Ready => {
                return evict_counted(backend, call, options, &pod, pod_state).await;
            }
        };
        match result {
            // A conflict with a resourceVersion that the client gave is final.
            Err(status) if status.is_conflict() && options.resource_version.is_none() => last_error = status,
            result => return result,
        }
    }
    Err(last_error)
}

/// The delete options with the pod's version as a precondition, unless the client gave one.
fn with_precondition(options: &DeleteOptions, pod: &Value) -> DeleteOptions {
    let mut options = options.clone();
    options.resource_version.get_or_insert_with(|| meta::metadata(pod).str("resourceVersion").to_owned());
    options
}

/// Evicts a pod that a budget may count.
async fn evict_counted(
    backend: &Backend,
    call: &Call<'_>,
    options: &DeleteOptions,
    pod: &Value,
    pod_state: PodState,
) -> Result<()> {
    let mut budgets = budgets_of(backend, call, pod).await?;
    let Some((object, budget)) = budgets.pop() else { return mark_and_delete(backend, call, options).await };
    if !budgets.is_empty() {
        return Err(eviction::several_budgets());
    }
    if pod_state == PodState::Unready && eviction::allows_unready(&budget) {
        let mut with_version = options.clone();
        with_version.resource_version = Some(meta::metadata(pod).str("resourceVersion").to_owned());
        return match mark_and_delete(backend, call, &with_version).await {
            // The pod may have become ready: then the budget counts it, and the client has to retry.
            Err(status) if status.is_conflict() && options.resource_version.is_none() => {
                Err(eviction::unobserved_budget(meta::name(&budget)))
            }
            result => result,
        };
    }
    decrement_budget(backend, call, object, options).await?;
    mark_and_delete(backend, call, options).await
}

type Budget = (Arc<Object>, Value);

fn budget_store() -> TypeName {
    TypeName::new(&BUDGETS.to_string())
}

fn read_budget(backend: &Backend, object: &Object) -> Result<Value> {
    backend.objects.load_kind(&GroupVersion::new(BUDGETS.group, "v1"), BUDGET, object)
}

/// The budgets that count the pod.
async fn budgets_of(backend: &Backend, call: &Call<'_>, pod: &Value) -> Result<Vec<Budget>> {
    let snapshot = backend.stores.snapshot(&budget_store(), call.permit()).await;
    let snapshot = snapshot.map_err(|error| Status::from_store(&error, BUDGETS, ""))?;
    let mut matching = Vec::new();
    for object in snapshot.scan(Some(call.namespace()), Bound::Unbounded) {
        let budget = read_budget(backend, object)?;
        if eviction::selects_pod(&budget, pod) {
            matching.push((object.clone(), budget));
        }
    }
    Ok(matching)
}

/// Takes one disruption from the budget.
async fn decrement_budget(
    backend: &Backend,
    call: &Call<'_>,
    object: Arc<Object>,
    options: &DeleteOptions,
) -> Result<()> {
    let (store, version) = (budget_store(), GroupVersion::new(BUDGETS.group, "v1"));
    let target = WriteTarget { store: &store, permit: call.permit(), attempts: EVICTION_ATTEMPTS };
    let decrement = |object: &Object| {
        let before = read_budget(backend, object)?;
        let mut budget = before.clone();
        eviction::take_disruption(&mut budget, call.name(), &backend.objects.now())?;
        if options.dry_run {
            return Ok(None);
        }
        backend.objects.record_server_fields(&version, BUDGET, "status", &before, &mut budget);
        backend.objects.draft_kind(&version, BUDGET, object.key.clone(), &budget).map(Some)
    };
    backend.rewrite(&target, BUDGETS, object, decrement).await.map(drop)
}

/// Adds the DisruptionTarget condition to the pod, and deletes it.
async fn mark_and_delete(backend: &Backend, call: &Call<'_>, options: &DeleteOptions) -> Result<()> {
    let mut options = options.clone();
    let mut current = backend.read(call).await?;
    if !options.dry_run {
        let (store, permit) = (&call.stored().store, call.permit());
        let target = WriteTarget { store, permit, attempts: EVICTION_ATTEMPTS };
        let add_condition = |current: &Object| {
            let old = backend.objects.load(call, current)?;
            let rules = &call.kind().rules.deletion;
            deletion::check_preconditions(rules, &options, &old, call.group_resource())?;
            let mut new = old.clone();
            let now = backend.objects.now();
            eviction::add_disruption_target(&mut new, &now);
            let features = backend.objects.features;
            let context = WriteContext { now: &now, user: &call.user_info(), features };
            let result = kinds::before_status_update(call.kind(), &mut new, &old, &context);
            result.map_err(|errors| call.invalid(call.name(), &errors))?;
            backend.objects.draft(call, current.key.clone(), &new).map(Some)
        };
        current = backend.rewrite(&target, call.group_resource(), current, add_condition).await?;
        // The precondition moves on to the version that was just written.
        if let Some(version) = &mut options.resource_version {
            *version = current.revision.to_string();
        }
    }
    delete::delete_object(backend, call, current, &options).await.map(drop)
}
