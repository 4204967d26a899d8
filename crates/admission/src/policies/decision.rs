//! The result of a ValidatingAdmissionPolicy for a request.

use pilothouse_apimachinery::value::Value;
use pilothouse_cel::limits::{RULE_MESSAGE_BYTES, RULES_COST};

use super::evaluate::{BUDGET_EXCEEDED, Evaluation, Inputs, ResultValue, StopReason, evaluate_all};
use super::policy::{Expression, Policy, Validation};
use crate::limits::CONDITIONS_COST;

/// The result of one validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is denied.
    pub denies: bool,
    /// Whether the validation passed. False if it failed or could not be evaluated.
    pub is_admitted: bool,
    /// The message.
    pub message: String,
    /// The status reason.
    pub reason: &'static str,
}

/// The result of an audit annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditAnnotation {
    /// Key and value.
    Value(String, String),
    /// The error, for which the request is denied.
    Error(String),
}

/// The result of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyResult {
    /// The results of its validations.
    pub decisions: Vec<Decision>,
    /// The results of its audit annotations.
    pub audit_annotations: Vec<AuditAnnotation>,
    /// The number of match conditions with errors.
    pub condition_errors: usize,
}

/// The inputs of a policy.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInputs<'v> {
    /// The inputs of most expressions.
    pub inputs: Inputs<'v>,
    /// The `request` variable of match conditions, which has the original resource and not the matched one.
    pub original_request: &'v Value,
    /// The namespace of audit annotations, with all metadata.
    pub namespace: &'v Value,
}

/// An authorization check is pending; see [`crate::policies::authorizer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthorizationPending;

/// Evaluates a policy.
pub fn decide(
    policy: &Policy,
    policy_inputs: PolicyInputs<'_>,
) -> Result<PolicyResult, AuthorizationPending> {
    let inputs =
        Inputs { request: policy_inputs.original_request, namespace: &Value::Null, ..policy_inputs.inputs };
    let ConditionsResult { hold, errors: condition_errors } =
        evaluate_conditions(&policy.variables, &policy.conditions, inputs, policy.fails_on_error)?;
    match hold {
        Err(message) => {
            return Ok(PolicyResult {
                decisions: vec![failure(policy, message)],
                audit_annotations: Vec::new(),
                condition_errors,
            });
        }
        Ok(false) => return Ok(PolicyResult { condition_errors, ..PolicyResult::default() }),
        Ok(true) => {}
    }
    let mut budget = RULES_COST;
    let validations = policy.validations.iter().map(|validation| Some(&validation.expression));
    let results = match evaluate_all(&policy.variables, validations, policy_inputs.inputs, &mut budget) {
        Ok(results) => results,
        Err(StopReason::AuthorizationPending) => return Err(AuthorizationPending),
        Err(StopReason::BudgetExceeded) => return Ok(budget_exceeded(policy)),
    };
    // Also of passed validations: evaluating their messages may exceed the budget.
    let messages = policy.validations.iter().map(|validation| validation.message_expression.as_ref());
    let without_authorizer = Inputs { authorizer: None, ..policy_inputs.inputs };
    let messages = evaluate_all(&policy.variables, messages, without_authorizer, &mut budget);
    let mut decisions = Vec::with_capacity(results.len());
    for (index, (validation, result)) in policy.validations.iter().zip(results).enumerate() {
        let message = messages.as_ref().ok().and_then(|all| all.get(index)).and_then(Option::as_ref);
        decisions.push(match result {
            None => continue,
            Some(Err(message)) => failure(policy, message),
            Some(Ok(_)) if messages.is_err() => {
                failure(policy, format!("failed messageExpression: {BUDGET_EXCEEDED}"))
            }
            Some(Ok(ResultValue::Bool(true))) => {
                Decision { denies: false, is_admitted: true, message: String::new(), reason: "" }
            }
            Some(Ok(_)) => Decision {
                denies: true,
                is_admitted: false,
                message: failure_message(validation, message),
                reason: reason(&validation.reason),
            },
        });
    }
    match audit_annotations(policy, Inputs { namespace: policy_inputs.namespace, ..without_authorizer }) {
        Ok(audit_annotations) => Ok(PolicyResult { decisions, audit_annotations, condition_errors }),
        Err(StopReason::AuthorizationPending) => Err(AuthorizationPending),
        Err(StopReason::BudgetExceeded) => Ok(budget_exceeded(policy)),
    }
}

/// The result of match conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionsResult {
    /// Whether all match; an error if one failed and the failure policy is Fail.
    pub hold: Result<bool, String>,
    /// The number of conditions with errors.
    pub errors: usize,
}

/// Evaluates match conditions. `fails`: the failure policy is Fail.
pub fn evaluate_conditions<'v>(
    variables: &'v [(String, Expression)],
    conditions: impl IntoIterator<Item = &'v Expression>,
    inputs: Inputs<'v>,
    fails: bool,
) -> Result<ConditionsResult, AuthorizationPending> {
    let mut budget = CONDITIONS_COST;
    match evaluate_all(variables, conditions.into_iter().map(Some), inputs, &mut budget) {
        Ok(results) => Ok(combine_conditions(results.into_iter().flatten(), fails)),
        Err(StopReason::AuthorizationPending) => Err(AuthorizationPending),
        Err(StopReason::BudgetExceeded) => {
            let hold = if fails { Err(BUDGET_EXCEEDED.to_owned()) } else { Ok(false) };
            Ok(ConditionsResult { hold, errors: 0 })
        }
    }
}

/// Combines the results of match conditions: one false condition decides, whatever the others are.
pub fn combine_conditions(results: impl IntoIterator<Item = Evaluation>, fails: bool) -> ConditionsResult {
    let (mut messages, mut errors): (Vec<String>, usize) = (Vec::new(), 0);
    for result in results {
        match result {
            Ok(ResultValue::Bool(false)) => return ConditionsResult { hold: Ok(false), errors },
            Ok(_) => {}
            Err(error) => {
                errors += 1;
                if !messages.contains(&error) {
                    messages.push(error);
                }
            }
        }
    }
    let hold = match (messages.as_slice(), fails) {
        ([], _) => Ok(true),
        (_, false) => Ok(false),
        ([message], true) => Err(message.clone()),
        (several, true) => Err(format!("[{}]", several.join(", "))),
    };
    ConditionsResult { hold, errors }
}

fn failure(policy: &Policy, message: String) -> Decision {
    Decision { denies: policy.fails_on_error, is_admitted: false, message, reason: "Invalid" }
}

fn budget_exceeded(policy: &Policy) -> PolicyResult {
    PolicyResult { decisions: vec![failure(policy, BUDGET_EXCEEDED.to_owned())], ..PolicyResult::default() }
}

fn reason(reason: &str) -> &'static str {
    match reason {
        "Forbidden" => "Forbidden",
        "Unauthorized" => "Unauthorized",
        "RequestEntityTooLarge" => "RequestEntityTooLarge",
        _ => "Invalid",
    }
}

/// The message of a failed validation: the result of messageExpression if usable, else the message.
fn failure_message(validation: &Validation, message_result: Option<&Evaluation>) -> String {
    if let Some(Ok(ResultValue::String(text))) = message_result {
        let text = text.trim();
        if !text.is_empty() && text.len() <= RULE_MESSAGE_BYTES && !text.contains('\n') {
            return text.to_owned();
        }
    }
    match validation.message.trim() {
        "" => format!("failed expression: {}", validation.expression.text.trim()),
        message => message.to_owned(),
    }
}

fn audit_annotations(policy: &Policy, inputs: Inputs<'_>) -> Result<Vec<AuditAnnotation>, StopReason> {
    let mut budget = RULES_COST;
    let expressions = policy.annotations.iter().map(|(_, expression)| Some(expression));
    let results = evaluate_all(&policy.variables, expressions, inputs, &mut budget)?;
    let annotation = |((key, expression), result): (&(String, _), Option<Evaluation>)| {
        let expression: &crate::policies::policy::Expression = expression;
        match result? {
            Ok(ResultValue::Null) => None,
            Ok(ResultValue::String(text)) => {
                let text = text.trim();
                (!text.is_empty()).then(|| AuditAnnotation::Value(key.clone(), text.to_owned()))
            }
            Ok(other) => {
                let kind = match other {
                    ResultValue::Bool(_) => "bool".to_owned(),
                    ResultValue::Other(kind) => kind,
                    _ => String::new(),
                };
                Some(AuditAnnotation::Error(format!(
                    "valueExpression '{}' resulted in unsupported return type: {kind}. Return type must be either string or null.",
                    expression.text
                )))
            }
            Err(error) => policy.fails_on_error.then_some(AuditAnnotation::Error(error)),
        }
    };
    Ok(policy.annotations.iter().zip(results).filter_map(annotation).collect())
}
