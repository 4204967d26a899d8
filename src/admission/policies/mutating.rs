//! MutatingAdmissionPolicy: policies that change objects.
//!
//! The policies are matched first, with the object as it is then. They are evaluated one after the other, each with the object as
//! the previous ones have left it.

use std::pin::pin;

use pilothouse_admission::policies::decision::{ConditionsResult, evaluate_conditions};
use pilothouse_admission::policies::evaluate::Inputs;
use pilothouse_admission::policies::mutation::{ObjectMutation, evaluate_mutation};
use pilothouse_admission::policies::policy::{Binding, Mutation, Policy};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::managed_fields::apply_configuration::apply_configuration;
use pilothouse_apimachinery::patch::{PatchError, apply_operations};
use pilothouse_apimachinery::schema::decode::Decoded;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;

use crate::metrics::Metrics;

use super::super::attributes::retry_with_decisions;
use super::super::view::View;
use super::super::{Operation, Outcome, Plugin, Write};
use super::matcher::{Context, Matched, PolicyMatcher};
use super::table::Hook;
use super::{PolicyDeps, count_conditions, policy_attributes};
use crate::registry::admission::Reinvocation;

/// Applies MutatingAdmissionPolicies.
pub struct MutatingAdmissionPolicy(pub PolicyDeps);

impl Plugin for MutatingAdmissionPolicy {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && self.0.may_apply(write)
    }

    fn admit<'a>(
        &'a self,
        write: &'a Write<'a>,
        object: &'a mut Value,
        reinvocation: &'a Reinvocation,
    ) -> Outcome<'a> {
        Box::pin(self.apply_policies(write, object, reinvocation))
    }

    fn connects(&self) -> bool {
        true
    }
}

/// One evaluation of a policy: for one binding and one parameter object.
struct Invocation<'h, 'a> {
    policy: &'h Policy,
    binding: &'h Binding,
    matched: Matched<'a>,
    params: Value,
}

impl Invocation<'_, '_> {
    /// Its key for [`Reinvocation`].
    fn key(&self) -> String {
        let params_meta =
            |field| self.params.get_path(&["metadata", field]).and_then(Value::as_str).unwrap_or("");
        // Names contain no slash.
        [&self.policy.name, &self.binding.name, params_meta("namespace"), params_meta("name")].join("/")
    }

    fn refusal(&self, reason: &str) -> Refusal {
        Refusal { message: denial_message(self.policy, Some(self.binding), reason), reason: "Invalid" }
    }
}

/// A reason to refuse the request.
struct Refusal {
    message: String,
    reason: &'static str,
}

fn denial_message(policy: &Policy, binding: Option<&Binding>, reason: &str) -> String {
    match binding {
        Some(binding) => {
            format!("policy '{}' with binding '{}' denied request: {reason}", policy.name, binding.name)
        }
        None => format!("policy {:?} denied request: {reason}", policy.name),
    }
}

impl MutatingAdmissionPolicy {
    async fn apply_policies(
        &self,
        write: &Write<'_>,
        object: &mut Value,
        reinvocation: &Reinvocation,
    ) -> Result<()> {
        let hooks = self.0.hooks().await?;
        if hooks.is_empty() {
            return Ok(());
        }
        let (resource, subresource) = write.call.requested_resource();
        let others = (self.0.equivalents)(resource, subresource);
        let before = object.clone();
        let mut matcher = PolicyMatcher::new(write, &before, &others, &self.0.kinds);
        let mut refusals = Vec::new();
        let invocations = match_policies(&mut matcher, &hooks, &mut refusals).await;
        if !invocations.is_empty() {
            let (state, metrics) = (&reinvocation.policies, &*self.0.metrics);
            reinvocation.start_turn(state, object);
            let mut run = MutationRun {
                matcher,
                metrics,
                reinvocation,
                object: before.clone(),
                is_changed: false,
                subject: None,
                refusals,
            };
            for invocation in &invocations {
                run.invoke(invocation).await?;
            }
            run.store_subject().await?;
            if run.is_changed {
                *object = run.object;
                reinvocation.mark_patched();
                reinvocation.mark_changed(state);
            }
            refusals = run.refusals;
            reinvocation.end_turn(state, object);
        }
        let Some(first) = refusals.first() else { return Ok(()) };
        let messages = refusals.iter().map(|refusal| refusal.message.as_str());
        Err(Status::denied_by_policies(write.group_resource(), write.name(&before), messages, first.reason))
    }
}

/// The policies and bindings that match a request. A misconfigured one refuses it, unless its failurePolicy is Ignore.
async fn match_policies<'h, 'a>(
    matcher: &mut PolicyMatcher<'a>,
    hooks: &'h [Hook],
    refusals: &mut Vec<Refusal>,
) -> Vec<Invocation<'h, 'a>> {
    let mut invocations = Vec::new();
    for Hook { policy, bindings } in hooks {
        let mut misconfigured = |binding: Option<&Binding>, reason: &str| {
            if policy.fails_on_error {
                let object_kind = if binding.is_some() { "binding" } else { "policy" };
                let message =
                    denial_message(policy, binding, &format!("failed to configure {object_kind}: {reason}"));
                refusals.push(Refusal { message, reason: "Forbidden" });
            }
        };
        let (matched, params_resource) = match matcher.match_policy(policy).await {
            Ok(None) => continue,
            Ok(Some(pair)) => pair,
            Err(reason) => {
                misconfigured(None, &reason);
                continue;
            }
        };
        for binding in bindings {
            match matcher.match_binding(binding, params_resource.as_ref()).await {
                Ok(all) => {
                    invocations.extend(all.into_iter().map(|params| Invocation {
                        policy,
                        binding,
                        matched,
                        params,
                    }));
                }
                Err(reason) => misconfigured(Some(binding), &reason),
            }
        }
    }
    invocations
}

/// The object in the version of a policy.
struct Subject<'a> {
    view: View<'a>,
    /// The changed object with defaults; `None` if no policy of this version has changed it.
    changed: Option<Value>,
    /// The new and the old object for expressions; null if absent.
    states: (Value, Value),
}

/// The evaluation of all matching policies for one request.
struct MutationRun<'a, 'r> {
    matcher: PolicyMatcher<'a>,
    metrics: &'r Metrics,
    reinvocation: &'r Reinvocation,
    /// The object in the stored version, without the changes in [`Subject::changed`].
    object: Value,
    /// Whether a policy has changed `object`.
    is_changed: bool,
    subject: Option<Subject<'a>>,
    refusals: Vec<Refusal>,
}

impl<'a> MutationRun<'a, '_> {
    /// The object in the version that the policy matched.
    async fn subject(&mut self, matched: &Matched<'a>) -> Result<Subject<'a>> {
        let resource = matched.resource;
        let is_same = |subject: &Subject<'_>| {
            (&subject.view.resource.gv, &subject.view.resource.plural) == (&resource.gv, &resource.plural)
        };
        if let Some(subject) = self.subject.take_if(|subject| is_same(subject)) {
            return Ok(subject);
        }
        self.store_subject().await?;
        let view = View::new(self.matcher.write, resource.clone());
        let states = view.states(&self.object).await?;
        Ok(Subject { view, changed: None, states })
    }

    /// Converts the changed object back to the stored version.
    async fn store_subject(&mut self) -> Result<()> {
        if let Some(Subject { view, changed: Some(changed), .. }) = self.subject.take() {
            self.object = view.to_stored(changed).await?;
            self.is_changed = true;
        }
        Ok(())
    }

    async fn invoke(&mut self, invocation: &Invocation<'_, 'a>) -> Result<()> {
        let mut subject = self.subject(&invocation.matched).await?;
        let mut span = self.matcher.write.call.permit().trace().open("Evaluate mutating policy");
        span.describe(|| policy_attributes(invocation.policy, invocation.binding));
        let result = span.run(pin!(self.mutate_subject(invocation, &mut subject))).await;
        span.end();
        self.subject = Some(subject);
        result
    }

    /// Applies the mutations of a policy, if its conditions hold.
    async fn mutate_subject(
        &mut self,
        invocation: &Invocation<'_, 'a>,
        subject: &mut Subject<'a>,
    ) -> Result<()> {
        let Invocation { policy, matched, .. } = invocation;
        let context = self.matcher.context(matched).await?;
        let key = invocation.key();
        let (reinvocation, state) = (self.reinvocation, &self.reinvocation.policies);
        if !self.meets_conditions(invocation, &context, subject).await? || reinvocation.skips(state, &key) {
            return Ok(());
        }
        let before = subject.states.0.clone();
        // There is nothing to change without an object.
        let mutations = policy.mutations.iter().filter(|_| !before.is_null());
        for mutation in mutations {
            match self.evaluate_one(invocation, mutation, &context, subject).await? {
                Ok(changed) => {
                    let changed = subject.view.apply_defaults(changed)?;
                    subject.states.0 = subject.view.complete(&changed)?;
                    subject.changed = Some(changed);
                }
                Err(reason) if policy.fails_on_error => self.refusals.push(invocation.refusal(&reason)),
                Err(_) => {}
            }
        }
        if before != subject.states.0 {
            reinvocation.mark_changed(state);
        }
        reinvocation.mark_invoked(state, &key, policy.reinvoke_if_needed);
        Ok(())
    }

    async fn meets_conditions(
        &mut self,
        invocation: &Invocation<'_, 'a>,
        context: &Context,
        subject: &Subject<'a>,
    ) -> Result<bool> {
        let Invocation { policy, params, .. } = invocation;
        if policy.conditions.is_empty() {
            return Ok(true);
        }
        let (write, authorizer) = (self.matcher.write, &self.matcher.authorizer);
        let inputs = Inputs {
            object: &subject.states.0,
            old: &subject.states.1,
            params,
            request: &context.original_request,
            namespace: &Value::Null,
            authorizer: Some(authorizer),
        };
        let began = write.backend.clock.moment();
        let evaluate =
            || evaluate_conditions(&policy.variables, &policy.conditions, inputs, policy.fails_on_error).ok();
        let ConditionsResult { hold, errors } =
            retry_with_decisions(write, authorizer, &caller_name(policy), evaluate).await?;
        let seconds = write.backend.clock.elapsed(began).as_secs_f64();
        count_conditions(self.metrics, policy, self.matcher.attributes.operation, errors, seconds);
        Ok(hold.unwrap_or_else(|reason| {
            self.refusals.push(invocation.refusal(&reason));
            false
        }))
    }

    /// Evaluates and applies one mutation, in the version of the policy.
    async fn evaluate_one(
        &self,
        invocation: &Invocation<'_, 'a>,
        mutation: &Mutation,
        context: &Context,
        subject: &Subject<'a>,
    ) -> Result<std::result::Result<Value, String>> {
        let (write, authorizer) = (self.matcher.write, &self.matcher.authorizer);
        let inputs = Inputs {
            object: &subject.states.0,
            old: &subject.states.1,
            params: &invocation.params,
            request: &context.request,
            namespace: &context.namespace,
            authorizer: Some(authorizer),
        };
        let evaluate = || evaluate_mutation(invocation.policy, mutation, inputs).ok();
        match retry_with_decisions(write, authorizer, &caller_name(invocation.policy), evaluate).await? {
            Ok(mutation) => apply_mutation(&subject.view, &subject.states.0, mutation),
            Err(reason) => Ok(Err(reason)),
        }
    }
}

/// The policy, as errors name it.
fn caller_name(policy: &Policy) -> String {
    format!("policy {:?}", policy.name)
}

/// Applies an evaluated mutation to an object.
fn apply_mutation(
    view: &View<'_>,
    object: &Value,
    mutation: ObjectMutation,
) -> Result<std::result::Result<Value, String>> {
    let original = json::to_json(object);
    Ok(match mutation {
        ObjectMutation::Patch(patch) => {
            match apply_operations(&patch, &String::from_utf8_lossy(&original)) {
                Ok(Some(text)) => Ok(require_known_fields(view.decode(text.as_bytes())?)?),
                // A failing test operation skips the whole patch.
                Ok(None) | Err(PatchError::Test(_)) => Ok(view.decode(&original)?.value),
                Err(PatchError::Other(reason)) => Err(format!("JSON Patch: {reason}")),
            }
        }
        ObjectMutation::Configuration(mut partial) => {
            let kind = &view.kind;
            partial.set("apiVersion", kind.api_version());
            partial.set("kind", kind.kind.as_str());
            let unknown = || {
                let (group, version, kind) = kind.words();
                let gvk = format!("{group}/{version}, Kind={kind}");
                format!("failed to convert patch object to typed object: no corresponding type for {gvk}")
            };
            let merged = view.configuration_type().ok_or_else(unknown);
            let merged = merged.and_then(|ty| apply_configuration(view.registry(), ty, object, &partial));
            match merged {
                Ok(merged) => {
                    view.decode(&json::to_json(&merged)).map(|decoded| decoded.value).map_err(|status| {
                        let (group, version, kind) = kind.words();
                        let reason = status
                            .details
                            .as_ref()
                            .and_then(|details| details.causes.first())
                            .map_or("", |cause| &cause.message);
                        format!(
                            "unable to convert unstructured object to {group}/{version}, Kind={kind}: {reason}"
                        )
                    })
                }
                Err(reason) => Err(format!("error applying patch: {reason}")),
            }
        }
    })
}

/// The decoded value, if it has no unknown or duplicate fields.
fn require_known_fields(decoded: Decoded) -> Result<Value> {
    match decoded.strict.as_slice() {
        [] => Ok(decoded.value),
        errors => Err(Status::internal(format!("strict decoding error: {}", errors.join(", ")))),
    }
}
