//! One CEL validation rule.

use std::sync::Arc;

use pilothouse_apimachinery::field::ErrorType;
use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::limits::{RULE_COST, RULE_MESSAGE_BYTES};
use pilothouse_cel::types::{DeclType, Type};
use pilothouse_cel::{Environment, EvaluationResult, Fault, Outcome, Program, RecentLibraries, Val};

use super::rule_path;
use crate::limits::ESTIMATED_OBJECT_BYTES;

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
    pub compile_error: Option<String>,
    /// The estimated maximum cost per evaluation.
    pub max_cost: u64,
    /// The messageExpression and its maximum cost.
    message: Option<(Program, u64)>,
    /// The compilation error of the messageExpression.
    pub message_compile_error: Option<String>,
    /// Whether it refers to the old value.
    pub uses_old: bool,
    /// Whether it also applies without an old value.
    old_is_optional: bool,
    /// The type of its field errors.
    pub reason: ErrorType,
    /// The path of its field errors.
    pub field_path: Option<String>,
    /// Its message, or else its expression, as other messages print it.
    description: String,
    /// The message of its field errors.
    static_message: String,
}

/// The result of a rule.
pub enum RuleOutcome {
    /// The value is valid.
    Valid,
    /// The value is invalid.
    Invalid,
    /// The rule could not be evaluated.
    Error(String),
    /// It exceeded the budget, and no other rule is evaluated.
    BudgetExceeded(String),
}

/// The recent libraries that the expressions of a rule may use.
#[derive(Clone, Copy)]
pub struct RuleLibraries {
    /// For the rule.
    pub rule: RecentLibraries,
    /// For its messageExpression.
    pub message: RecentLibraries,
}

impl RuleLibraries {
    /// For rules that are stored.
    pub const STORED: RuleLibraries =
        RuleLibraries { rule: RecentLibraries::STORED, message: RecentLibraries::STORED };
}

/// The environment of the rules of a type.
fn environment(recent: RecentLibraries, decl_type: &DeclType, old_is_optional: bool) -> Environment {
    let kind = decl_type.kind();
    let old_type = if old_is_optional { Type::optional(kind.clone()) } else { kind.clone() };
    Environment::with_recent(recent).variable(SELF, kind).variable(OLD_SELF, old_type)
}

impl CompiledRule {
    /// Compiles a rule of a schema. `decl_type` is the declared type of its values.
    pub fn compile(
        rule: &Value,
        schema: &Value,
        decl_type: &Arc<DeclType>,
        libraries: RuleLibraries,
        patterns: &mut Patterns,
    ) -> CompiledRule {
        let (text, message) = (rule.str("rule"), rule.str("message"));
        let old_is_optional = rule.get("optionalOldSelf").and_then(Value::as_bool) == Some(true);
        let description = if message.is_empty() { text.trim() } else { message.trim() };
        let mut compiled = CompiledRule {
            program: None,
            compile_error: None,
            max_cost: 0,
            message: None,
            message_compile_error: None,
            uses_old: false,
            old_is_optional,
            reason: match rule.str("reason") {
                "FieldValueForbidden" => ErrorType::Forbidden,
                "FieldValueRequired" => ErrorType::Required,
                "FieldValueDuplicate" => ErrorType::Duplicate,
                _ => ErrorType::Invalid,
            },
            field_path: rule_path::resolve(rule.str("fieldPath"), schema),
            description: description.to_owned(),
            static_message: if message.is_empty() {
                format!("failed rule: {description}")
            } else {
                description.to_owned()
            },
        };
        if text.trim().is_empty() {
            return compiled;
        }
        let environment = |recent| environment(recent, decl_type, old_is_optional);
        let sizes = |path: &[String]| decl_type.max_elements_at(path.iter().skip(1).map(String::as_str));
        match environment(libraries.rule).compile(text, patterns) {
            Err(error) => compiled.compile_error = Some(format!("compilation failed: {error}")),
            Ok(program) if program.result_type() != Type::Bool => {
                compiled.compile_error = Some("cel expression must evaluate to a bool".to_owned());
            }
            Ok(program) => {
                compiled.max_cost = program.max_cost(&sizes);
                compiled.uses_old = program.uses(OLD_SELF);
                compiled.program = Some(program);
            }
        }
        let text = rule.str("messageExpression");
        if compiled.compile_error.is_some() || text.is_empty() {
            return compiled;
        }
        match environment(libraries.message).compile(text, patterns) {
            Err(error) => {
                compiled.message_compile_error =
                    Some(format!("messageExpression compilation failed: {error}"));
            }
            Ok(program) if program.result_type() != Type::String => {
                compiled.message_compile_error =
                    Some("messageExpression must evaluate to a string".to_owned());
            }
            Ok(program) => {
                let cost = program.max_cost(&sizes);
                compiled.message = Some((program, cost));
            }
        }
        compiled
    }

    /// The maximum cost of its messageExpression, if it has one.
    pub fn message_cost(&self) -> Option<u64> {
        self.message.as_ref().map(|(_, cost)| *cost)
    }

    /// Evaluates the rule; `None` if it does not apply. Also returns the cost.
    pub fn evaluate<'v>(
        &'v self,
        new: &'v Value,
        old: Option<&'v Value>,
        decl_type: &'v DeclType,
    ) -> Option<(RuleOutcome, u64)> {
        let description = &self.description;
        if let Some(error) = &self.compile_error {
            return Some((RuleOutcome::Error(format!("rule compile error: {error}")), 0));
        }
        let program = self.program.as_ref()?;
        if self.uses_old && old.is_none() && !self.old_is_optional {
            return None;
        }
        let EvaluationResult { outcome, cost } = self.run_program(program, new, old, decl_type);
        let result = match outcome {
            Ok(Val::Bool(true)) => RuleOutcome::Valid,
            Ok(_) => RuleOutcome::Invalid,
            Err(fault @ Fault::Budget) => RuleOutcome::BudgetExceeded(format!(
                "'{fault}': no further validation rules will be run due to call cost exceeds limit for rule: {description}"
            )),
            Err(Fault::Error(error)) if error.starts_with("no such overload") => RuleOutcome::Error(format!(
                "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {description}"
            )),
            Err(Fault::Error(error)) => RuleOutcome::Error(format!("{error} evaluating rule: {description}")),
        };
        Some((result, cost))
    }

    fn run_program<'v>(
        &self,
        program: &'v Program,
        new: &'v Value,
        old: Option<&'v Value>,
        decl_type: &'v DeclType,
    ) -> EvaluationResult<'v> {
        let resolve = |name: &str| -> Option<Outcome<'v>> {
            match (name, old) {
                (SELF, _) => Some(Val::typed(new, decl_type)),
                (OLD_SELF, Some(old)) if self.old_is_optional => {
                    Some(Val::typed(old, decl_type).map(Val::some))
                }
                (OLD_SELF, Some(old)) => Some(Val::typed(old, decl_type)),
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
        decl_type: &'v DeclType,
        budget: &mut u64,
    ) -> Result<String, String> {
        let Some((program, _)) = &self.message else { return Ok(self.static_message.clone()) };
        let EvaluationResult { outcome, cost } = self.run_program(program, new, old, decl_type);
        let Some(remaining) = budget.checked_sub(cost) else {
            return Err("messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run".to_owned());
        };
        match outcome {
            Err(Fault::Budget) => Err(format!(
                "no further validation rules will be run due to call cost exceeds limit for messageExpression: {}",
                self.description
            )),
            Ok(Val::String(text)) => {
                *budget = remaining;
                let text = text.trim();
                let is_usable = !text.is_empty() && text.len() <= RULE_MESSAGE_BYTES && !text.contains('\n');
                // An unusable message is replaced by the static one.
                Ok(if is_usable { text.to_owned() } else { self.static_message.clone() })
            }
            _ => {
                *budget = remaining;
                Ok(self.static_message.clone())
            }
        }
    }
}

/// The maximum number of values of a declared type in one object.
pub fn max_occurrences(decl_type: &DeclType) -> u64 {
    ESTIMATED_OBJECT_BYTES / (decl_type.min_serialized_size + 1)
}
