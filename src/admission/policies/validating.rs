//! ValidatingAdmissionPolicy: policies that check the object as it would be stored.

use std::collections::BTreeMap;
use std::pin::pin;

use pilothouse_admission::policies::decision::{AuditAnnotation, PolicyInputs, PolicyResult, decide};
use pilothouse_admission::policies::evaluate::Inputs;
use pilothouse_admission::policies::policy::{Binding, Policy, ValidationAction};
use pilothouse_admission::policies::request;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;

use crate::limits::POLICY_ANNOTATION_BYTES;
use crate::metrics::Metrics;

use super::super::attributes::retry_with_decisions;
use super::super::{Outcome, Plugin, Write, versioned};
use super::matcher::{Matched, PolicyMatcher};
use super::table::Hook;
use super::{PolicyDeps, count_conditions, policy_attributes};

/// Evaluates ValidatingAdmissionPolicies.
pub struct ValidatingAdmissionPolicy(pub PolicyDeps);

impl Plugin for ValidatingAdmissionPolicy {
    fn handles(&self, write: &Write<'_>) -> bool {
        self.0.may_apply(write)
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        Box::pin(self.evaluate_all(write, object))
    }

    fn connects(&self) -> bool {
        true
    }
}

/// The first reason to refuse the request.
struct Denial {
    message: String,
    reason: &'static str,
}

/// The evaluation of all policies for one request.
struct Evaluation<'a> {
    matcher: PolicyMatcher<'a>,
    object: &'a Value,
    denial: Option<Denial>,
    metrics: &'a Metrics,
}

/// The evaluation of one policy for all its bindings and parameters.
struct PolicyEvaluation<'a> {
    policy: &'a Policy,
    matched: &'a Matched<'a>,
    /// The new and the old state in the version that the policy matches, once one of them is needed.
    states: Option<(Value, Value)>,
    annotations: BTreeMap<String, Vec<String>>,
}

impl ValidatingAdmissionPolicy {
    async fn evaluate_all(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        let hooks = self.0.hooks().await?;
        if hooks.is_empty() {
            return Ok(());
        }
        let (resource, subresource) = write.call.requested_resource();
        let others = (self.0.equivalents)(resource, subresource);
        let matcher = PolicyMatcher::new(write, object, &others, &self.0.kinds);
        let mut evaluation = Evaluation { matcher, object, denial: None, metrics: &self.0.metrics };
        for hook in hooks.iter() {
            evaluation.evaluate_policy(hook).await?;
        }
        match evaluation.denial {
            None => Ok(()),
            Some(Denial { message, reason }) => {
                Err(Status::denied_by_policy(write.group_resource(), write.name(object), &message, reason))
            }
        }
    }
}

impl Evaluation<'_> {
    /// Evaluates one policy for each of its bindings.
    async fn evaluate_policy(&mut self, hook: &Hook) -> Result<()> {
        let policy = &*hook.policy;
        let (matched, params_resource) = match self.matcher.match_policy(policy).await {
            Ok(None) => return Ok(()),
            Ok(Some(pair)) => pair,
            Err(reason) => {
                self.report_misconfiguration(policy, None, &reason);
                return Ok(());
            }
        };
        let mut evaluation =
            PolicyEvaluation { policy, matched: &matched, states: None, annotations: BTreeMap::new() };
        for binding in &hook.bindings {
            match self.matcher.match_binding(binding, params_resource.as_ref()).await {
                Ok(params) => {
                    for params in params {
                        self.evaluate_once(&mut evaluation, binding, &params).await?;
                    }
                }
                Err(reason) => self.report_misconfiguration(policy, Some(binding), &reason),
            }
        }
        for (key, values) in evaluation.annotations {
            let key = format!("{}/{key}", policy.name);
            self.matcher.write.call.warnings.annotate(&key, values.join(", "));
        }
        Ok(())
    }

    /// A misconfigured policy refuses the request, unless its failurePolicy is Ignore.
    fn report_misconfiguration(&mut self, policy: &Policy, binding: Option<&Binding>, reason: &str) {
        if policy.fails_on_error {
            let object_kind = if binding.is_some() { "binding" } else { "policy" };
            self.deny(policy, binding, &format!("failed to configure {object_kind}: {reason}"), "Invalid");
        }
    }

    fn deny(&mut self, policy: &Policy, binding: Option<&Binding>, text: &str, reason: &'static str) {
        let binding_text =
            binding.map(|binding| format!(" with binding '{}'", binding.name)).unwrap_or_default();
        let message =
            format!("ValidatingAdmissionPolicy '{}'{binding_text} denied request: {text}", policy.name);
        self.denial.get_or_insert(Denial { message, reason });
    }

    /// Evaluates a policy for one parameter object, and applies the validationActions of the binding.
    async fn evaluate_once(
        &mut self,
        evaluation: &mut PolicyEvaluation<'_>,
        binding: &Binding,
        params: &Value,
    ) -> Result<()> {
        let (policy, matched) = (evaluation.policy, evaluation.matched);
        let PolicyEvaluation { states, annotations, .. } = evaluation;
        if states.is_none() {
            match versioned::states(self.matcher.write, self.object, matched.resource).await {
                Ok(both) => *states = Some(both),
                Err(status) => {
                    let reason = format!("failed to convert object version: {}", status.message);
                    self.report_misconfiguration(policy, Some(binding), &reason);
                    return Ok(());
                }
            }
        }
        let Some((new, old)) = states else { return Ok(()) };
        let context = self.matcher.context(matched).await?;
        let namespace = request::namespace(&context.namespace);
        let inputs = Inputs {
            object: new,
            old,
            params,
            request: &context.request,
            namespace: &namespace,
            authorizer: Some(&self.matcher.authorizer),
        };
        let (write, authorizer) = (self.matcher.write, &self.matcher.authorizer);
        let began = write.backend.clock.moment();
        let policy_inputs = PolicyInputs {
            inputs,
            original_request: &context.original_request,
            namespace: &context.namespace,
        };
        let caller = format!("policy {:?}", policy.name);
        let mut span = write.call.permit().trace().open_at("Evaluate validating policy", began);
        span.describe(|| policy_attributes(policy, binding));
        let deciding =
            retry_with_decisions(write, authorizer, &caller, || decide(policy, policy_inputs).ok());
        let result = span.run(pin!(deciding)).await?;
        let ended = write.backend.clock.moment();
        span.end_at(ended);
        let seconds = ended.since(began).as_secs_f64();
        let operation = self.matcher.attributes.operation;
        count_conditions(self.metrics, policy, operation, result.condition_errors, seconds);
        self.apply_actions(policy, binding, result, seconds, annotations);
        Ok(())
    }

    fn apply_actions(
        &mut self,
        policy: &Policy,
        binding: &Binding,
        result: PolicyResult,
        seconds: f64,
        annotations: &mut BTreeMap<String, Vec<String>>,
    ) {
        let count = |action: &str, is_admitted: bool, message: &str| {
            let error = error_type(is_admitted, message);
            self.metrics.policies.count(&policy.name, &binding.name, error, action, seconds);
        };
        let mut denials = Vec::new();
        for (index, decision) in result.decisions.into_iter().enumerate() {
            let message = &decision.message;
            if !decision.denies {
                if !decision.is_admitted {
                    count("allow", false, message);
                }
                continue;
            }
            for action in &binding.validation_actions {
                match action {
                    ValidationAction::Deny => {
                        denials.push((message.clone(), decision.reason));
                        count("deny", false, message);
                    }
                    ValidationAction::Warn => {
                        self.matcher.write.call.warnings.add(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                            policy.name, binding.name
                        ));
                        count("warn", false, message);
                    }
                    ValidationAction::Audit => {
                        let warnings = self.matcher.write.call.warnings;
                        warnings.annotate(FAILURE_KEY, failure_annotation(binding, index, message));
                        count("audit", false, message);
                    }
                }
            }
        }
        for annotation in result.audit_annotations {
            match annotation {
                AuditAnnotation::Value(key, mut value) => {
                    value.truncate(char_boundary(&value, POLICY_ANNOTATION_BYTES));
                    let values = annotations.entry(key).or_default();
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                AuditAnnotation::Error(reason) => {
                    count("deny", false, &reason);
                    denials.push((reason, "Invalid"));
                }
            }
        }
        for (message, reason) in denials {
            self.deny(policy, Some(binding), &message, reason);
        }
    }
}

/// The audit annotation of failed validations.
const FAILURE_KEY: &str = "validation.policy.admission.k8s.io/validation_failure";

/// The value of the annotation [`FAILURE_KEY`].
fn failure_annotation(binding: &Binding, index: usize, message: &str) -> String {
    let word = |action: &ValidationAction| match action {
        ValidationAction::Deny => "Deny",
        ValidationAction::Warn => "Warn",
        ValidationAction::Audit => "Audit",
    };
    let actions: Vec<Value> =
        binding.validation_actions.iter().map(|action| Value::from(word(action))).collect();
    let to_text = |value: &Value| String::from_utf8_lossy(&json::to_json(value)).into_owned();
    // The order of the fields is that of the reference.
    format!(
        r#"[{{"message":{},"policy":{},"binding":{},"expressionIndex":{index},"validationActions":{}}}]"#,
        to_text(&Value::from(message)),
        to_text(&Value::from(binding.policy.as_str())),
        to_text(&Value::from(binding.name.as_str())),
        to_text(&Value::Array(actions.into())),
    )
}

/// The end of the last character that fits into so many bytes.
fn char_boundary(text: &str, limit: usize) -> usize {
    (0..=limit.min(text.len())).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0)
}

/// The `error_type` label of metrics.
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
    fn validation_failure_annotation_matches_reference() {
        assert_eq!([0, 1, 2, 3, 9].map(|limit| char_boundary("aüb", limit)), [0, 1, 1, 3, 4]);
        let binding = json::read(
            br#"{"metadata":{"name":"b"},"spec":{"policyName":"p","validationActions":["Warn","Audit"]}}"#,
        );
        let binding = Binding::read(&binding.unwrap());
        assert_eq!(
            failure_annotation(&binding, 1, "a \"b\""),
            r#"[{"message":"a \"b\"","policy":"p","binding":"b","expressionIndex":1,"validationActions":["Warn","Audit"]}]"#
        );
        for (is_admitted, message, word) in [
            (true, "", "no_error"),
            (false, "compilation error: x", "compile_error"),
            (false, "no", "invalid_error"),
            (false, pilothouse_admission::policies::evaluate::BUDGET_EXCEEDED, "out_of_budget"),
        ] {
            assert_eq!(error_type(is_admitted, message), word);
        }
    }
}
