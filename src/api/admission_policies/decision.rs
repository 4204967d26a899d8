//! What a policy makes of a request.

use super::evaluate::{Evaluation, Inputs, ResultValue, StopReason, USED_UP, run};
use super::policy::{Expression, Policy, Validation};
use crate::api::limits::{CONDITIONS_COST, RULE_MESSAGE_BYTES, RULES_COST};
use crate::api::value::Value;

/// What came of one demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is to be refused for it.
    pub denies: bool,
    /// Whether the demand was not met, or could not be evaluated.
    pub is_admitted: bool,
    /// What is wrong.
    pub message: String,
    /// The word for machines.
    pub reason: &'static str,
}

/// What came of a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditAnnotation {
    /// It says this.
    Says(String, String),
    /// It could not be evaluated, for which the request is to be refused.
    Fails(String),
}

/// All that came of asking a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyResult {
    /// Of its demands.
    pub decisions: Vec<Decision>,
    /// Of its notes.
    pub notes: Vec<AuditAnnotation>,
    /// How many of its conditions could not be evaluated.
    pub condition_errors: usize,
}

/// What a policy sees besides what all expressions see.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInputs<'v> {
    /// What most of its expressions see.
    pub inputs: Inputs<'v>,
    /// The request as conditions see it: they know the resource that was asked for, and not the one that was matched.
    pub asked: &'v Value,
    /// The namespace as notes see it, with all of its metadata.
    pub namespace: &'v Value,
}

/// Somebody has to be asked before the policy can say more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthorizationPending;

/// Asks a policy.
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
    // Also of those that were met: saying what would be wrong may cost too much even so.
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

/// What came of a row of conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionsResult {
    /// Whether all of them hold; an error if that is not known and matters.
    pub hold: Result<bool, String>,
    /// How many could not be evaluated.
    pub errors: usize,
}

/// Whether a row of conditions holds. `fails`: it matters if that is not known.
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

/// What a row of conditions comes to: one that does not hold decides, whatever the others say.
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

/// What is said of a demand that was not met: what its expression says if that can be shown, else what stands there.
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
        let expression: &super::policy::Expression = expression;
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
