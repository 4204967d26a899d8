//! One CEL validation rule.

use std::sync::Arc;

use pilothouse_apimachinery::field::ErrorType;
use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::limits::{RULE_COST, RULE_MESSAGE_BYTES};
use pilothouse_cel::types::{DeclType, Type};
use pilothouse_cel::{Environment, Evaluated, Fault, Outcome, Program, Val};

use super::rule_path;
use crate::limits::REQUEST_BYTES_PRICED;

/// The variable for the value.
const SELF: &str = "self";
/// The variable for the old value.
const OLD_SELF: &str = "oldSelf";

/// A compiled rule, with its errors.
#[derive(Debug)]
pub struct CompiledRule {
    /// The program; `None` if there is nothing to evaluate.
    program: Option<Program>,
    /// The compilation error.
    pub wrong: Option<String>,
    /// The estimated maximum cost per evaluation.
    pub most_cost: u64,
    /// The messageExpression and its maximum cost.
    message: Option<(Program, u64)>,
    /// The compilation error of the messageExpression.
    pub message_wrong: Option<String>,
    /// Whether it refers to the old value.
    pub uses_old: bool,
    /// Whether it also applies without an old value.
    old_is_optional: bool,
    /// The type of its field errors.
    pub reason: ErrorType,
    /// The path of its field errors.
    pub field_path: Option<String>,
    /// The rule as messages print it.
    shown: String,
    /// The message of its field errors.
    said: String,
}

/// The result of a rule.
pub enum RuleOutcome {
    /// The value is valid.
    Holds,
    /// The value is invalid.
    Fails,
    /// The rule could not be evaluated.
    Wrong(String),
    /// It exceeded the budget, and no other rule is evaluated.
    TooDear(String),
}

impl CompiledRule {
    /// Compiles a rule of a schema. `shape` is that of its values.
    pub fn of(rule: &Value, schema: &Value, shape: &Arc<DeclType>, patterns: &mut Patterns) -> CompiledRule {
        let (text, message) = (rule.str("rule"), rule.str("message"));
        let old_is_optional = rule.get("optionalOldSelf").and_then(Value::as_bool) == Some(true);
        let shown = if message.is_empty() { text.trim() } else { message.trim() };
        let mut compiled = CompiledRule {
            program: None,
            wrong: None,
            most_cost: 0,
            message: None,
            message_wrong: None,
            uses_old: false,
            old_is_optional,
            reason: match rule.str("reason") {
                "FieldValueForbidden" => ErrorType::Forbidden,
                "FieldValueRequired" => ErrorType::Required,
                "FieldValueDuplicate" => ErrorType::Duplicate,
                _ => ErrorType::Invalid,
            },
            field_path: rule_path::read(rule.str("fieldPath"), schema),
            shown: shown.to_owned(),
            said: if message.is_empty() { format!("failed rule: {shown}") } else { shown.to_owned() },
        };
        if text.trim().is_empty() {
            return compiled;
        }
        let kind = shape.kind();
        let was = if old_is_optional { Type::optional(kind.clone()) } else { kind.clone() };
        let environment = Environment::standard().variable(SELF, kind).variable(OLD_SELF, was);
        let sizes = |path: &[String]| shape.most_at(path.iter().skip(1).map(String::as_str));
        match environment.compile(text, patterns) {
            Err(why) => compiled.wrong = Some(format!("compilation failed: {why}")),
            Ok(program) if program.kind() != Type::Bool => {
                compiled.wrong = Some("cel expression must evaluate to a bool".to_owned());
            }
            Ok(program) => {
                compiled.most_cost = program.most_cost(&sizes);
                compiled.uses_old = program.uses(OLD_SELF);
                compiled.program = Some(program);
            }
        }
        let text = rule.str("messageExpression");
        if compiled.wrong.is_some() || text.is_empty() {
            return compiled;
        }
        match environment.compile(text, patterns) {
            Err(why) => compiled.message_wrong = Some(format!("messageExpression compilation failed: {why}")),
            Ok(program) if program.kind() != Type::String => {
                compiled.message_wrong = Some("messageExpression must evaluate to a string".to_owned());
            }
            Ok(program) => {
                let cost = program.most_cost(&sizes);
                compiled.message = Some((program, cost));
            }
        }
        compiled
    }

    /// The maximum cost of its messageExpression, if it has one.
    pub fn message_cost(&self) -> Option<u64> {
        self.message.as_ref().map(|(_, cost)| *cost)
    }

    /// Evaluates the rule; `None` if it does not apply. Also answers the cost.
    pub fn judge<'v>(
        &'v self,
        new: &'v Value,
        old: Option<&'v Value>,
        shape: &'v DeclType,
    ) -> Option<(RuleOutcome, u64)> {
        let shown = &self.shown;
        if let Some(why) = &self.wrong {
            return Some((RuleOutcome::Wrong(format!("rule compile error: {why}")), 0));
        }
        let program = self.program.as_ref()?;
        if self.uses_old && old.is_none() && !self.old_is_optional {
            return None;
        }
        let Evaluated { outcome, cost } = self.run(program, new, old, shape);
        let verdict = match outcome {
            Ok(Val::Bool(true)) => RuleOutcome::Holds,
            Ok(_) => RuleOutcome::Fails,
            Err(fault @ Fault::Budget) => RuleOutcome::TooDear(format!(
                "'{fault}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}"
            )),
            Err(Fault::Error(why)) if why.starts_with("no such overload") => RuleOutcome::Wrong(format!(
                "'{why}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
            )),
            Err(Fault::Error(why)) => RuleOutcome::Wrong(format!("{why} evaluating rule: {shown}")),
        };
        Some((verdict, cost))
    }

    fn run<'v>(
        &self,
        program: &'v Program,
        new: &'v Value,
        old: Option<&'v Value>,
        shape: &'v DeclType,
    ) -> Evaluated<'v> {
        let resolve = |name: &str| -> Option<Outcome<'v>> {
            match (name, old) {
                (SELF, _) => Some(Val::given(new, shape)),
                (OLD_SELF, Some(old)) if self.old_is_optional => Some(Val::given(old, shape).map(Val::some)),
                (OLD_SELF, Some(old)) => Some(Val::given(old, shape)),
                (OLD_SELF, None) if self.old_is_optional => Some(Ok(Val::Optional(None))),
                _ => None,
            }
        };
        program.evaluate(&resolve, RULE_COST)
    }

    /// The message for an invalid value; fails if evaluating it exceeds the budget.
    pub fn message<'v>(
        &'v self,
        new: &'v Value,
        old: Option<&'v Value>,
        shape: &'v DeclType,
        budget: &mut u64,
    ) -> Result<String, String> {
        let Some((program, _)) = &self.message else { return Ok(self.said.clone()) };
        let Evaluated { outcome, cost } = self.run(program, new, old, shape);
        let Some(left) = budget.checked_sub(cost) else {
            return Err("messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run".to_owned());
        };
        match outcome {
            Err(Fault::Budget) => Err(format!(
                "no further validation rules will be run due to call cost exceeds limit for messageExpression: {}",
                self.shown
            )),
            Ok(Val::String(text)) => {
                *budget = left;
                let text = text.trim();
                let fits = !text.is_empty() && text.len() <= RULE_MESSAGE_BYTES && !text.contains('\n');
                // An unusable message is replaced by the static one.
                Ok(if fits { text.to_owned() } else { self.said.clone() })
            }
            _ => {
                *budget = left;
                Ok(self.said.clone())
            }
        }
    }
}

/// The maximum number of values of a shape in one object.
pub fn most_often(shape: &DeclType) -> u64 {
    REQUEST_BYTES_PRICED / (shape.least + 1)
}
