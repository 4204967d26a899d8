//! The result of a ValidatingAdmissionPolicy for a request.

use pilothouse_apimachinery::value::Value;
use pilothouse_cel::limits::{RULE_MESSAGE_BYTES, RULES_COST};

use super::evaluate::{Evaluation, Inputs, ResultValue, StopReason, USED_UP, run};
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
    Says(String, String),
    /// The error, for which the request is denied.
    Fails(String),
}

/// The result of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyResult {
    /// The results of its validations.
    pub decisions: Vec<Decision>,
    /// The results of its audit annotations.
    pub notes: Vec<AuditAnnotation>,
    /// The number of match conditions with errors.
    pub condition_errors: usize,
}

/// The inputs of a policy.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInputs<'v> {
    /// The inputs of most expressions.
    pub inputs: Inputs<'v>,
    /// The `request` variable of match conditions, which has the original resource and not the matched one.
    pub asked: &'v Value,
    /// The namespace of audit annotations, with all metadata.
    pub namespace: &'v Value,
}

/// An authorization check is pending; see [`crate::policies::authorizer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthorizationPending;

/// Evaluates a policy.
pub fn decide(policy: &Policy, case: PolicyInputs<'_>) -> Result<PolicyResult, AuthorizationPending> {
    let inputs = Inputs { request: case.asked, namespace: &Value::Null, ..case.inputs };
    let ConditionsResult { hold, errors: condition_errors } =
        evaluate_conditions(&policy.variables, &policy.conditions, inputs, policy.fails)?;
    match hold {
        Err(why) => {
            return Ok(PolicyResult {
                decisions: vec![failed(policy, why)],
                notes: Vec::new(),
                condition_errors,
            });
        }
        Ok(false) => return Ok(PolicyResult { condition_errors, ..PolicyResult::default() }),
        Ok(true) => {}
    }
    let mut budget = RULES_COST;
    let demands = policy.validations.iter().map(|one| Some(&one.expression));
    let found = match run(&policy.variables, demands, case.inputs, &mut budget) {
        Ok(found) => found,
        Err(StopReason::Unanswered) => return Err(AuthorizationPending),
        Err(StopReason::UsedUp) => return Ok(used_up(policy)),
    };
    // Also of passed validations: evaluating their messages may exceed the budget.
    let messages = policy.validations.iter().map(|one| one.message_expression.as_ref());
    let unasked = Inputs { rights: None, ..case.inputs };
    let messages = run(&policy.variables, messages, unasked, &mut budget);
    let mut decisions = Vec::with_capacity(found.len());
    for (place, (validation, found)) in policy.validations.iter().zip(found).enumerate() {
        let message = messages.as_ref().ok().and_then(|all| all.get(place)).and_then(Option::as_ref);
        decisions.push(match found {
            None => continue,
            Some(Err(why)) => failed(policy, why),
            Some(Ok(_)) if messages.is_err() => {
                failed(policy, format!("failed messageExpression: {USED_UP}"))
            }
            Some(Ok(ResultValue::Truth(true))) => {
                Decision { denies: false, is_admitted: true, message: String::new(), reason: "" }
            }
            Some(Ok(_)) => Decision {
                denies: true,
                is_admitted: false,
                message: wrong(validation, message),
                reason: reason(&validation.reason),
            },
        });
    }
    match notes(policy, Inputs { namespace: case.namespace, ..unasked }) {
        Ok(notes) => Ok(PolicyResult { decisions, notes, condition_errors }),
        Err(StopReason::Unanswered) => Err(AuthorizationPending),
        Err(StopReason::UsedUp) => Ok(used_up(policy)),
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
    match run(variables, conditions.into_iter().map(Some), inputs, &mut budget) {
        Ok(found) => Ok(all_hold(found.into_iter().flatten(), fails)),
        Err(StopReason::Unanswered) => Err(AuthorizationPending),
        Err(StopReason::UsedUp) => {
            let hold = if fails { Err(USED_UP.to_owned()) } else { Ok(false) };
            Ok(ConditionsResult { hold, errors: 0 })
        }
    }
}

/// Combines the results of match conditions: one false condition decides, whatever the others are.
pub fn all_hold(found: impl IntoIterator<Item = Evaluation>, fails: bool) -> ConditionsResult {
    let (mut told, mut errors): (Vec<String>, usize) = (Vec::new(), 0);
    for one in found {
        match one {
            Ok(ResultValue::Truth(false)) => return ConditionsResult { hold: Ok(false), errors },
            Ok(_) => {}
            Err(why) => {
                errors += 1;
                if !told.contains(&why) {
                    told.push(why);
                }
            }
        }
    }
    let hold = match (told.as_slice(), fails) {
        ([], _) => Ok(true),
        (_, false) => Ok(false),
        ([one], true) => Err(one.clone()),
        (several, true) => Err(format!("[{}]", several.join(", "))),
    };
    ConditionsResult { hold, errors }
}

fn failed(policy: &Policy, message: String) -> Decision {
    Decision { denies: policy.fails, is_admitted: false, message, reason: "Invalid" }
}

fn used_up(policy: &Policy) -> PolicyResult {
    PolicyResult { decisions: vec![failed(policy, USED_UP.to_owned())], ..PolicyResult::default() }
}

fn reason(word: &str) -> &'static str {
    match word {
        "Forbidden" => "Forbidden",
        "Unauthorized" => "Unauthorized",
        "RequestEntityTooLarge" => "RequestEntityTooLarge",
        _ => "Invalid",
    }
}

/// The message of a failed validation: the result of messageExpression if usable, else the message.
fn wrong(validation: &Validation, worked_out: Option<&Evaluation>) -> String {
    if let Some(Ok(ResultValue::Text(text))) = worked_out {
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

fn notes(policy: &Policy, inputs: Inputs<'_>) -> Result<Vec<AuditAnnotation>, StopReason> {
    let mut budget = RULES_COST;
    let expressions = policy.annotations.iter().map(|(_, expression)| Some(expression));
    let found = run(&policy.variables, expressions, inputs, &mut budget)?;
    let note = |((key, expression), found): (&(String, _), Option<Evaluation>)| {
        let expression: &crate::policies::policy::Expression = expression;
        match found? {
            Ok(ResultValue::Null) => None,
            Ok(ResultValue::Text(text)) => {
                let text = text.trim();
                (!text.is_empty()).then(|| AuditAnnotation::Says(key.clone(), text.to_owned()))
            }
            Ok(other) => {
                let kind = match other {
                    ResultValue::Truth(_) => "bool".to_owned(),
                    ResultValue::Other(kind) => kind,
                    _ => String::new(),
                };
                Some(AuditAnnotation::Fails(format!(
                    "valueExpression '{}' resulted in unsupported return type: {kind}. Return type must be either string or null.",
                    expression.text
                )))
            }
            Err(why) => policy.fails.then_some(AuditAnnotation::Fails(why)),
        }
    };
    Ok(policy.annotations.iter().zip(found).filter_map(note).collect())
}
