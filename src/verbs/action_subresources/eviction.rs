//! Eviction: a deletion that respects PodDisruptionBudgets.

use std::ops::Bound;

use pilothouse_api::deletion;
use pilothouse_api::subresources::eviction::{self, PodState};
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::{DeleteOptions, WriteMode};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::verb::Verb;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::SERVER_NAME;
use pilothouse_kinds::{self as kinds, WriteContext};
use pilothouse_types::object::{Object, TypeName};

use crate::limits::EVICTION_ATTEMPTS;
use crate::registry::loopback::own_identity;
use crate::registry::objects::Objects;
use crate::registry::rewrite::WriteTarget;
use crate::registry::{Backend, Call, CallTarget, Execution, Origin, Requester, Warnings};
use crate::verbs::update::{self, NewState};
use crate::verbs::{Reply, VerbResult, delete, end_request};

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
    let Some(budget) = budgets.pop() else { return mark_and_delete(backend, call, options).await };
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
    decrement_budget(backend, call, budget, options).await?;
    mark_and_delete(backend, call, options).await
}

/// The budgets that count the pod.
async fn budgets_of(backend: &Backend, call: &Call<'_>, pod: &Value) -> Result<Vec<Value>> {
    let version = GroupVersion::new(BUDGETS.group, "v1");
    let snapshot = backend.stores.snapshot(&TypeName::new(&BUDGETS.to_string()), call.permit()).await;
    let snapshot = snapshot.map_err(|error| Status::from_store(&error, BUDGETS, ""))?;
    let mut matching = Vec::new();
    for object in snapshot.scan(Some(call.namespace()), Bound::Unbounded) {
        let budget = backend.objects.load_kind(&version, BUDGET, object)?;
        if eviction::selects_pod(&budget, pod) {
            matching.push(budget);
        }
    }
    Ok(matching)
}

/// Takes one disruption from the budget. It is a request of the server to itself, so that admission and audit see it.
async fn decrement_budget(
    backend: &Backend,
    call: &Call<'_>,
    mut budget: Value,
    options: &DeleteOptions,
) -> Result<()> {
    let name = meta::name(&budget).to_owned();
    // A budget that does not allow a disruption needs no request.
    eviction::take_disruption(&mut budget, call.name(), &backend.objects.now())?;
    if options.dry_run {
        return Ok(());
    }
    let resource = (backend.find_resource)(&GroupVersion::new(BUDGETS.group, "v1"), BUDGETS.resource);
    let resource = resource.ok_or_else(Status::no_such_resource)?;
    let (user, query, warnings) = (own_identity(), Query::default(), Warnings::default());
    let target = CallTarget {
        namespace: call.namespace(),
        name: &name,
        subresource: "status",
        ..CallTarget::stored(&resource)?
    };
    let requester = Requester { user: &user, origin: Origin::Client, user_agent: SERVER_NAME };
    let execution = Execution { permit: call.permit().clone(), ..Execution::unlimited() };
    let budget_call = Call { execution, ..Call::new(target, requester, &query, &warnings) };
    let admitted = backend.admit_call(Verb::Update, &user, &budget_call, "").await?;
    backend.objects.record_body(&budget_call, &budget);
    let state = TakenDisruption { objects: &backend.objects, call: &budget_call, pod: call.name() };
    let result = update::store_update(backend, &budget_call, &state, WriteMode::Store).await;
    end_request(admitted, &budget_call, result).await.map(drop)
}

/// The state of a budget after one more disruption.
struct TakenDisruption<'a> {
    objects: &'a Objects,
    call: &'a Call<'a>,
    pod: &'a str,
}

impl NewState for TakenDisruption<'_> {
    fn next_state(&self, old: &Value) -> Result<Value> {
        let mut budget = old.clone();
        eviction::take_disruption(&mut budget, self.pod, &self.objects.now())?;
        self.objects.record(self.call, Some(old), &mut budget);
        Ok(budget)
    }
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
