//! ValidatingAdmissionPolicy: asks the policies of the cluster about what would be stored.

use std::collections::BTreeMap;

use pilothouse_admission::policies::decision::{AuditAnnotation, PolicyInputs, PolicyResult, decide};
use pilothouse_admission::policies::evaluate::Inputs;
use pilothouse_admission::policies::policy::{Binding, Policy, ValidationAction};
use pilothouse_admission::policies::request;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;

use crate::limits::POLICY_NOTE_BYTES;
use crate::metrics::Metrics;

use super::super::attributes::retry_with_decisions;
use super::super::{Outcome, Plugin, Write, versioned};
use super::matcher::{Matched, PolicyMatcher};
use super::table::Hook;
use super::{PolicyDeps, count_conditions};

/// Asks the policies that check.
pub struct ValidatingAdmissionPolicy(pub PolicyDeps);

impl Plugin for ValidatingAdmissionPolicy {
    fn handles(&self, write: &Write<'_>) -> bool {
        self.0.concerns(write)
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        Box::pin(self.ask_all(write, object))
    }

    fn connects(&self) -> bool {
        true
    }
}

/// Why a request is refused: the first reason that was found.
struct Denial {
    message: String,
    reason: &'static str,
}

/// One request, on its way from policy to policy.
struct Evaluation<'a> {
    asking: PolicyMatcher<'a>,
    object: &'a Value,
    denial: Option<Denial>,
    metrics: &'a Metrics,
}

impl ValidatingAdmissionPolicy {
    async fn ask_all(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        let hooks = self.0.hooks().await?;
        if hooks.is_empty() {
            return Ok(());
        }
        let (resource, subresource) = write.call.addressed();
        let others = (self.0.equivalents)(resource, subresource);
        let asking = PolicyMatcher::new(write, object, &others, &self.0.kinds);
        let mut round = Evaluation { asking, object, denial: None, metrics: &self.0.metrics };
        for hook in hooks.iter() {
            round.ask(hook).await?;
        }
        match round.denial {
            None => Ok(()),
            Some(Denial { message, reason }) => {
                Err(Status::denied_by_policy(write.call.of(), write.name(object), &message, reason))
            }
        }
    }
}

impl Evaluation<'_> {
    /// Asks one policy, for each of its bindings.
    async fn ask(&mut self, hook: &Hook) -> Result<()> {
        let policy = &*hook.policy;
        let (matched, of_params) = match self.asking.concerns(policy).await {
            Ok(None) => return Ok(()),
            Ok(Some(found)) => found,
            Err(why) => {
                self.misconfigured(policy, None, &why);
                return Ok(());
            }
        };
        let mut notes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut states = None;
        for binding in &hook.bindings {
            match self.asking.prepare(binding, of_params.as_ref()).await {
                Ok(params) => {
                    for params in params {
                        self.judge(policy, binding, &matched, &mut states, &params, &mut notes).await?;
                    }
                }
                Err(why) => self.misconfigured(policy, Some(binding), &why),
            }
        }
        for (key, values) in notes {
            let key = format!("{}/{key}", policy.name);
            self.asking.write.call.warnings.note(&key, values.join(", "));
        }
        Ok(())
    }

    /// A policy that cannot be asked refuses, unless it says otherwise.
    fn misconfigured(&mut self, policy: &Policy, binding: Option<&Binding>, why: &str) {
        if policy.fails {
            let what = if binding.is_some() { "binding" } else { "policy" };
            self.deny(policy, binding, &format!("failed to configure {what}: {why}"), "Invalid");
        }
    }

    fn deny(&mut self, policy: &Policy, binding: Option<&Binding>, why: &str, reason: &'static str) {
        let with = binding.map(|binding| format!(" with binding '{}'", binding.name)).unwrap_or_default();
        let message = format!("ValidatingAdmissionPolicy '{}'{with} denied request: {why}", policy.name);
        self.denial.get_or_insert(Denial { message, reason });
    }

    /// Asks a policy once, and does what the binding says about what it finds.
    async fn judge(
        &mut self,
        policy: &Policy,
        binding: &Binding,
        matched: &Matched<'_>,
        states: &mut Option<(Value, Value)>,
        params: &Value,
        notes: &mut BTreeMap<String, Vec<String>>,
    ) -> Result<()> {
        if states.is_none() {
            match versioned::states(self.asking.write, self.object, matched.resource).await {
                Ok(both) => *states = Some(both),
                Err(status) => {
                    let why = format!("failed to convert object version: {}", status.message);
                    self.misconfigured(policy, Some(binding), &why);
                    return Ok(());
                }
            }
        }
        let Some((new, old)) = states else { return Ok(()) };
        let context = self.asking.context(matched).await?;
        let namespace = request::namespace(&context.namespace);
        let inputs = Inputs {
            object: new,
            old,
            params,
            request: &context.request,
            namespace: &namespace,
            rights: Some(&self.asking.rights),
        };
        let (write, rights) = (self.asking.write, &self.asking.rights);
        let began = write.backend.clock.moment();
        let case = PolicyInputs { inputs, asked: &context.asked, namespace: &context.namespace };
        let who = format!("policy {:?}", policy.name);
        let judgement = retry_with_decisions(write, rights, &who, || decide(policy, case).ok()).await?;
        let seconds = write.backend.clock.elapsed(began).as_secs_f64();
        let operation = self.asking.asked.operation;
        count_conditions(self.metrics, policy, operation, judgement.condition_errors, seconds);
        self.react(policy, binding, judgement, seconds, notes);
        Ok(())
    }

    fn react(
        &mut self,
        policy: &Policy,
        binding: &Binding,
        judgement: PolicyResult,
        seconds: f64,
        notes: &mut BTreeMap<String, Vec<String>>,
    ) {
        let count = |action: &str, is_admitted: bool, message: &str| {
            let error = error_type(is_admitted, message);
            self.metrics.policies.count(&policy.name, &binding.name, error, action, seconds);
        };
        let mut refused = Vec::new();
        for (place, decision) in judgement.decisions.into_iter().enumerate() {
            let message = &decision.message;
            if !decision.denies {
                if !decision.is_admitted {
                    count("allow", false, message);
                }
                continue;
            }
            for reaction in &binding.validation_actions {
                match reaction {
                    ValidationAction::Deny => {
                        refused.push((message.clone(), decision.reason));
                        count("deny", false, message);
                    }
                    ValidationAction::Warn => {
                        self.asking.write.call.warnings.add(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                            policy.name, binding.name
                        ));
                        count("warn", false, message);
                    }
                    ValidationAction::Audit => {
                        self.asking.write.call.warnings.note(FAILURE, failure(binding, place, message));
                        count("audit", false, message);
                    }
                }
            }
        }
        for note in judgement.notes {
            match note {
                AuditAnnotation::Says(key, mut text) => {
                    text.truncate(boundary(&text, POLICY_NOTE_BYTES));
                    let said = notes.entry(key).or_default();
                    if !said.contains(&text) {
                        said.push(text);
                    }
                }
                AuditAnnotation::Fails(why) => {
                    count("deny", false, &why);
                    refused.push((why, "Invalid"));
                }
            }
        }
        for (message, reason) in refused {
            self.deny(policy, Some(binding), &message, reason);
        }
    }
}

/// The key of the note about what a policy found wrong.
const FAILURE: &str = "validation.policy.admission.k8s.io/validation_failure";

/// What such a note says.
fn failure(binding: &Binding, place: usize, message: &str) -> String {
    let word = |reaction: &ValidationAction| match reaction {
        ValidationAction::Deny => "Deny",
        ValidationAction::Warn => "Warn",
        ValidationAction::Audit => "Audit",
    };
    let actions: Vec<Value> =
        binding.validation_actions.iter().map(|reaction| Value::from(word(reaction))).collect();
    let text = |value: &Value| String::from_utf8_lossy(&json::to_json(value)).into_owned();
    // In this order, which readers of records know.
    format!(
        r#"[{{"message":{},"policy":{},"binding":{},"expressionIndex":{place},"validationActions":{}}}]"#,
        text(&Value::from(message)),
        text(&Value::from(binding.policy.as_str())),
        text(&Value::from(binding.name.as_str())),
        text(&Value::Array(actions.into())),
    )
}

/// The end of the last character that fits into so many bytes.
fn boundary(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// How metrics name what went wrong.
fn error_type(is_admitted: bool, message: &str) -> &'static str {
    if is_admitted {
        "no_error"
    } else if message.starts_with("compilation") {
        "compile_error"
    } else if message.starts_with("validation failed due to running out of cost budget") {
        "out_of_budget"
    } else {
        "invalid_error"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_cut_between_characters_and_failures_are_told_in_order() {
        assert_eq!([0, 1, 2, 3, 9].map(|most| boundary("aüb", most)), [0, 1, 1, 3, 4]);
        let binding = json::read(
            br#"{"metadata":{"name":"b"},"spec":{"policyName":"p","validationActions":["Warn","Audit"]}}"#,
        );
        let binding = Binding::read(&binding.unwrap());
        assert_eq!(
            failure(&binding, 1, "a \"b\""),
            r#"[{"message":"a \"b\"","policy":"p","binding":"b","expressionIndex":1,"validationActions":["Warn","Audit"]}]"#
        );
        for (is_admitted, message, word) in [
            (true, "", "no_error"),
            (false, "compilation error: x", "compile_error"),
            (false, "no", "invalid_error"),
            (false, pilothouse_admission::policies::evaluate::USED_UP, "out_of_budget"),
        ] {
            assert_eq!(error_type(is_admitted, message), word);
        }
    }
}
