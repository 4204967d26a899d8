//! MutatingAdmissionPolicy: lets the policies of the cluster change what would be stored.
//!
//! Which policies mean a request is found out first, by the object as it is then. They are asked one after the other, each for
//! what those before it made of the object.

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
use super::super::reinvocation::Reinvocation;
use super::super::view::View;
use super::super::{Operation, Outcome, Plugin, Write};
use super::matcher::{Context, Matched, PolicyMatcher};
use super::table::Hook;
use super::{PolicyDeps, count_conditions};

/// Asks the policies that change objects.
pub struct MutatingAdmissionPolicy(pub PolicyDeps);

impl Plugin for MutatingAdmissionPolicy {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && self.0.concerns(write)
    }

    fn admit<'a>(
        &'a self,
        write: &'a Write<'a>,
        object: &'a mut Value,
        round: &'a Reinvocation,
    ) -> Outcome<'a> {
        Box::pin(self.change(write, object, round))
    }

    fn connects(&self) -> bool {
        true
    }
}

/// A policy that is asked: for one of its bindings, with one of the parameters of that.
struct Invocation<'h, 'a> {
    policy: &'h Policy,
    binding: &'h Binding,
    matched: Matched<'a>,
    params: Value,
}

impl Invocation<'_, '_> {
    /// What it is known by in the rounds of a write.
    fn key(&self) -> String {
        let of_params = |field| self.params.at(&["metadata", field]).and_then(Value::as_str).unwrap_or("");
        // No name has a slash in it.
        [&self.policy.name, &self.binding.name, of_params("namespace"), of_params("name")].join("/")
    }

    fn refusal(&self, why: &str) -> Refusal {
        Refusal { message: denied(self.policy, Some(self.binding), why), reason: "Invalid" }
    }
}

/// Why a request is refused.
struct Refusal {
    message: String,
    reason: &'static str,
}

fn denied(policy: &Policy, binding: Option<&Binding>, why: &str) -> String {
    match binding {
        Some(binding) => {
            format!("policy '{}' with binding '{}' denied request: {why}", policy.name, binding.name)
        }
        None => format!("policy {:?} denied request: {why}", policy.name),
    }
}

impl MutatingAdmissionPolicy {
    async fn change(&self, write: &Write<'_>, object: &mut Value, round: &Reinvocation) -> Result<()> {
        let hooks = self.0.hooks().await?;
        if hooks.is_empty() {
            return Ok(());
        }
        let (resource, subresource) = write.call.addressed();
        let others = (self.0.equivalents)(resource, subresource);
        let before = object.clone();
        let mut asking = PolicyMatcher::new(write, &before, &others, &self.0.kinds);
        let mut refusals = Vec::new();
        let invocations = find(&mut asking, &hooks, &mut refusals).await;
        if !invocations.is_empty() {
            let (turn, metrics) = (&round.policies, &*self.0.metrics);
            round.begin(turn, object);
            let mut work = Work {
                asking,
                metrics,
                round,
                object: before.clone(),
                is_made: false,
                subject: None,
                refusals,
            };
            for invocation in &invocations {
                work.ask(invocation).await?;
            }
            work.settle().await?;
            if work.is_made {
                *object = work.object;
                round.patched();
                round.changed(turn);
            }
            refusals = work.refusals;
            round.end(turn, object);
        }
        let Some(first) = refusals.first() else { return Ok(()) };
        let messages = refusals.iter().map(|refusal| refusal.message.as_str());
        Err(Status::denied_by_policies(write.call.of(), write.name(&before), messages, first.reason))
    }
}

/// The policies that mean a request. Those of which that is not known refuse, unless they say otherwise.
async fn find<'h, 'a>(
    asking: &mut PolicyMatcher<'a>,
    hooks: &'h [Hook],
    refusals: &mut Vec<Refusal>,
) -> Vec<Invocation<'h, 'a>> {
    let mut found = Vec::new();
    for Hook { policy, bindings } in hooks {
        let mut misconfigured = |binding: Option<&Binding>, why: &str| {
            if policy.fails {
                let what = if binding.is_some() { "binding" } else { "policy" };
                let message = denied(policy, binding, &format!("failed to configure {what}: {why}"));
                refusals.push(Refusal { message, reason: "Forbidden" });
            }
        };
        let (matched, of_params) = match asking.concerns(policy).await {
            Ok(None) => continue,
            Ok(Some(found)) => found,
            Err(why) => {
                misconfigured(None, &why);
                continue;
            }
        };
        for binding in bindings {
            match asking.prepare(binding, of_params.as_ref()).await {
                Ok(all) => {
                    found.extend(all.into_iter().map(|params| Invocation {
                        policy,
                        binding,
                        matched,
                        params,
                    }));
                }
                Err(why) => misconfigured(Some(binding), &why),
            }
        }
    }
    found
}

/// The object as the policies of one version see it.
struct Subject<'a> {
    view: View<'a>,
    /// What they have made of it, in their version; nothing while no policy had anything to say.
    made: Option<Value>,
    /// That as it is shown, and what was there before; null if there is none.
    states: (Value, Value),
}

/// One request, on its way from policy to policy.
struct Work<'a, 'r> {
    asking: PolicyMatcher<'a>,
    metrics: &'r Metrics,
    round: &'r Reinvocation,
    /// The object in the stored version, but for what [`Subject::made`] has of it.
    object: Value,
    /// Whether a policy had anything to say.
    is_made: bool,
    subject: Option<Subject<'a>>,
    refusals: Vec<Refusal>,
}

impl<'a> Work<'a, '_> {
    /// The object in the version that a policy names.
    async fn subject(&mut self, matched: &Matched<'a>) -> Result<Subject<'a>> {
        let resource = matched.resource;
        let is_same = |subject: &Subject<'_>| {
            (&subject.view.resource.gv, &subject.view.resource.plural) == (&resource.gv, &resource.plural)
        };
        if let Some(subject) = self.subject.take_if(|subject| is_same(subject)) {
            return Ok(subject);
        }
        self.settle().await?;
        let view = View::new(self.asking.write, resource.clone());
        let states = view.states(&self.object).await?;
        Ok(Subject { view, made: None, states })
    }

    /// Brings what was made of the object back to the stored version.
    async fn settle(&mut self) -> Result<()> {
        if let Some(Subject { view, made: Some(made), .. }) = self.subject.take() {
            self.object = view.stored(made).await?;
            self.is_made = true;
        }
        Ok(())
    }

    async fn ask(&mut self, invocation: &Invocation<'_, 'a>) -> Result<()> {
        let mut subject = self.subject(&invocation.matched).await?;
        let asked = self.change(invocation, &mut subject).await;
        self.subject = Some(subject);
        asked
    }

    /// Lets a policy change the object, if its conditions hold.
    async fn change(&mut self, invocation: &Invocation<'_, 'a>, subject: &mut Subject<'a>) -> Result<()> {
        let Invocation { policy, matched, .. } = invocation;
        let context = self.asking.context(matched).await?;
        let key = invocation.key();
        let (round, turn) = (self.round, &self.round.policies);
        if !self.meets_conditions(invocation, &context, subject).await? || round.passes_over(turn, &key) {
            return Ok(());
        }
        let before = subject.states.0.clone();
        // What is not there cannot be changed.
        let mutations = policy.mutations.iter().filter(|_| !before.is_null());
        for mutation in mutations {
            match self.made(invocation, mutation, &context, subject).await? {
                Ok(made) => {
                    let made = subject.view.filled(made)?;
                    subject.states.0 = subject.view.shown(&made)?;
                    subject.made = Some(made);
                }
                Err(why) if policy.fails => self.refusals.push(invocation.refusal(&why)),
                Err(_) => {}
            }
        }
        if before != subject.states.0 {
            round.changed(turn);
        }
        round.asked(turn, &key, policy.reinvoke_if_needed);
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
        let (write, rights) = (self.asking.write, &self.asking.rights);
        let inputs = Inputs {
            object: &subject.states.0,
            old: &subject.states.1,
            params,
            request: &context.asked,
            namespace: &Value::Null,
            rights: Some(rights),
        };
        let began = write.backend.clock.moment();
        let evaluate =
            || evaluate_conditions(&policy.variables, &policy.conditions, inputs, policy.fails).ok();
        let ConditionsResult { hold, errors } =
            retry_with_decisions(write, rights, &who(policy), evaluate).await?;
        let seconds = write.backend.clock.elapsed(began).as_secs_f64();
        count_conditions(self.metrics, policy, self.asking.asked.operation, errors, seconds);
        Ok(hold.unwrap_or_else(|why| {
            self.refusals.push(invocation.refusal(&why));
            false
        }))
    }

    /// What a mutation makes of the object, in the version of the policy; an error if it cannot.
    async fn made(
        &self,
        invocation: &Invocation<'_, 'a>,
        mutation: &Mutation,
        context: &Context,
        subject: &Subject<'a>,
    ) -> Result<std::result::Result<Value, String>> {
        let (write, rights) = (self.asking.write, &self.asking.rights);
        let inputs = Inputs {
            object: &subject.states.0,
            old: &subject.states.1,
            params: &invocation.params,
            request: &context.request,
            namespace: &context.namespace,
            rights: Some(rights),
        };
        let evaluate = || evaluate_mutation(invocation.policy, mutation, inputs).ok();
        match retry_with_decisions(write, rights, &who(invocation.policy), evaluate).await? {
            Ok(change) => applied(&subject.view, &subject.states.0, change),
            Err(why) => Ok(Err(why)),
        }
    }
}

/// Who asks for more rights than it may.
fn who(policy: &Policy) -> String {
    format!("policy {:?}", policy.name)
}

/// What a change makes of an object as it is shown.
fn applied(
    view: &View<'_>,
    object: &Value,
    change: ObjectMutation,
) -> Result<std::result::Result<Value, String>> {
    let original = json::to_json(object);
    Ok(match change {
        ObjectMutation::Patch(patch) => {
            let text = String::from_utf8_lossy(&original);
            match apply_operations(&patch, &text) {
                Ok(Some(patched)) => Ok(strictly(view.decoded(patched.as_bytes())?)?),
                // A test that fails keeps the others from doing anything.
                Ok(None) | Err(PatchError::Test(_)) => Ok(view.decoded(&original)?.value),
                Err(PatchError::Other(why)) => Err(format!("JSON Patch: {why}")),
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
            let merged = view.described().ok_or_else(unknown);
            let merged = merged.and_then(|ty| apply_configuration(view.registry(), ty, object, &partial));
            match merged {
                Ok(merged) => {
                    view.decoded(&json::to_json(&merged)).map(|decoded| decoded.value).map_err(|why| {
                        let (group, version, kind) = kind.words();
                        let why = why
                            .details
                            .as_ref()
                            .and_then(|details| details.causes.first())
                            .map_or("", |cause| &cause.message);
                        format!(
                            "unable to convert unstructured object to {group}/{version}, Kind={kind}: {why}"
                        )
                    })
                }
                Err(why) => Err(format!("error applying patch: {why}")),
            }
        }
    })
}

/// What was read, if nothing in it is unknown.
fn strictly(decoded: Decoded) -> Result<Value> {
    match decoded.strict.as_slice() {
        [] => Ok(decoded.value),
        wrong => Err(Status::internal(format!("strict decoding error: {}", wrong.join(", ")))),
    }
}
