//! The CEL validation rules of a custom resource: compiled once, evaluated for every object.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{ErrorType, FieldError, FieldPath, quoted};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::limits::RULES_COST;
use pilothouse_cel::types::DeclType;

use super::decl_types;
use super::rule::{CompiledRule, RuleLibraries, RuleOutcome};
use super::schema::Schema;
use super::validate::{is_type_field, is_unchanged};
use crate::limits::DEFAULT_RULES;

/// The rules of a schema and its subschemas.
#[derive(Debug)]
pub struct Rules {
    /// The declared type of its values; `None` if there is none, as for `items` of a schema that is not a list.
    decl_type: Option<Arc<DeclType>>,
    /// The `type` of the schema, as messages print it.
    kind: String,
    own_rules: Vec<CompiledRule>,
    /// Whether it has rules that cannot be compiled, because there is no declared type.
    untyped: bool,
    properties: BTreeMap<String, Rules>,
    additional_properties: Option<Box<Rules>>,
    items: Option<Box<Rules>>,
    /// The key fields of a list's items, if they can be correlated.
    keys: Option<Vec<String>>,
}

impl Rules {
    /// The rules of a version's schema; `None` if it has none.
    pub fn compile(schema_value: &Value, patterns: &mut Patterns) -> Option<Rules> {
        if !has_rules(schema_value) {
            return None;
        }
        let decl_type = decl_types::from_schema(schema_value, true, "selfType")?;
        Rules::compile_subschema(schema_value, Some(decl_type), patterns)
    }

    fn compile_subschema(
        schema_value: &Value,
        decl_type: Option<Arc<DeclType>>,
        patterns: &mut Patterns,
    ) -> Option<Rules> {
        let own_rules = schema_value.get("x-kubernetes-validations").map(Value::items).unwrap_or_default();
        let untyped = decl_type.is_none() && !own_rules.is_empty();
        let compile_rules = |decl_type: &Arc<DeclType>, patterns: &mut Patterns| {
            own_rules
                .iter()
                .map(|rule| {
                    CompiledRule::compile(rule, schema_value, decl_type, RuleLibraries::STORED, patterns)
                })
                .collect()
        };
        let own_rules: Vec<CompiledRule> =
            decl_type.as_ref().map(|decl_type| compile_rules(decl_type, patterns)).unwrap_or_default();
        let mut properties = BTreeMap::new();
        for (name, inner) in schema_value.get("properties").and_then(Value::fields).into_iter().flatten() {
            let child_type = decl_type
                .as_ref()
                .and_then(|decl_type| decl_types::child_type(decl_type, Some(name)))
                .cloned();
            // A field that CEL cannot name may still have rules of its own.
            let unescapable_type = || match pilothouse_cel::escape::escape(name) {
                None => decl_types::from_schema(inner, decl_types::is_embedded(inner), "selfType"),
                Some(_) => None,
            };
            let Some(child_type) = child_type.or_else(unescapable_type) else { continue };
            if let Some(rules) = Rules::compile_subschema(inner, Some(child_type), patterns) {
                properties.insert(name.clone(), rules);
            }
        }
        let mut compile_part = |field: &str| {
            let inner = schema_value.get(field).filter(|inner| inner.fields().is_some())?;
            let child_type =
                decl_type.as_ref().and_then(|decl_type| decl_types::child_type(decl_type, None)).cloned();
            Rules::compile_subschema(inner, child_type, patterns).map(Box::new)
        };
        let (additional_properties, items) = (compile_part("additionalProperties"), compile_part("items"));
        if own_rules.is_empty()
            && !untyped
            && properties.is_empty()
            && additional_properties.is_none()
            && items.is_none()
        {
            return None;
        }
        let keys =
            (schema_value.str("x-kubernetes-list-type") == "map").then(|| decl_types::keys(schema_value));
        let kind = schema_value.str("type").to_owned();
        Some(Rules { kind, decl_type, own_rules, untyped, properties, additional_properties, items, keys })
    }

    /// Evaluates the rules for an object. An error that existed before becomes a warning.
    pub fn check(
        &self,
        schema: &Schema,
        new: &Value,
        old: Option<&Value>,
        errors: &mut ErrorList,
        warnings: &mut WarningList,
    ) {
        if errors.iter().any(|error| prevents_rules(error.problem)) {
            let message = "some validation rules were not checked because the object was invalid; correct the existing \
                       errors to complete validation";
            errors.push(FieldError::invalid(&FieldPath::new("<nil>"), "\"null\"", message));
            return;
        }
        let mut evaluator = RuleEvaluator { budget: RULES_COST, errors, warnings };
        let correlation = Correlation { current: old.map(|old| (new, old, schema)), ancestor: None };
        // An exceeded budget is reported already.
        let root = Node { rules: self, new, old, correlation, path: FieldPath::root() };
        let _result = evaluator.evaluate_value(root);
    }
}

/// The remaining budget for checking the defaults of one schema. Each may need all rules within it.
#[derive(Debug)]
pub struct CostBudget {
    cost: u64,
    rules: usize,
}

impl Default for CostBudget {
    fn default() -> CostBudget {
        CostBudget { cost: RULES_COST, rules: DEFAULT_RULES }
    }
}

/// Evaluates the rules of a schema for its default: as an old value and as a new one. Beyond the budget nothing is checked: the
/// same rules will refuse defaulted objects.
pub fn check_default(
    schema_value: &Value,
    default: &Value,
    path: &FieldPath,
    budget: &mut CostBudget,
    errors: &mut ErrorList,
) {
    let Some(remaining) = budget.rules.checked_sub(count_rules(schema_value)) else { return };
    if remaining == budget.rules {
        return;
    }
    budget.rules = remaining;
    let Some(decl_type) =
        decl_types::from_schema(schema_value, decl_types::is_embedded(schema_value), "selfType")
    else {
        return;
    };
    let Some(rules) = Rules::compile_subschema(schema_value, Some(decl_type), &mut Patterns::default())
    else {
        return;
    };
    let uncorrelated = Correlation { current: None, ancestor: None };
    for old in [Some(default), None] {
        let mut default_errors = ErrorList::new();
        let mut evaluator = RuleEvaluator {
            budget: budget.cost,
            errors: &mut default_errors,
            warnings: &mut WarningList::new(),
        };
        let path = path.clone();
        let node = Node { rules: &rules, new: default, old, correlation: uncorrelated, path };
        let result = evaluator.evaluate_value(node);
        budget.cost = if result.is_ok() { evaluator.budget } else { 0 };
        if !default_errors.is_empty() {
            errors.append(&mut default_errors);
            return;
        }
    }
}

/// The number of rules in a schema and its subschemas.
fn count_rules(schema_value: &Value) -> usize {
    let own_count = schema_value.get("x-kubernetes-validations").map(Value::items).unwrap_or_default().len();
    let parts = ["items", "additionalProperties"].into_iter().filter_map(|field| schema_value.get(field));
    let properties =
        schema_value.get("properties").and_then(Value::fields).into_iter().flatten().map(|(_, inner)| inner);
    own_count + parts.filter(|part| part.fields().is_some()).chain(properties).map(count_rules).sum::<usize>()
}

fn has_rules(schema_value: &Value) -> bool {
    let has_inner_rules = |field: &str| {
        schema_value.get(field).is_some_and(|inner| inner.fields().is_some() && has_rules(inner))
    };
    let mut properties = schema_value.get("properties").and_then(Value::fields).into_iter().flatten();
    !schema_value.get("x-kubernetes-validations").map(Value::items).unwrap_or_default().is_empty()
        || has_inner_rules("items")
        || has_inner_rules("additionalProperties")
        || properties.any(|(_, inner)| has_rules(inner))
}

/// Whether an error of this type prevents the rules from running.
fn prevents_rules(problem: ErrorType) -> bool {
    matches!(
        problem,
        ErrorType::NotSupported
            | ErrorType::Required
            | ErrorType::TooLong
            | ErrorType::TooMany
            | ErrorType::TypeInvalid
    )
}

/// A value, its old value, and their schema.
type Correlated<'v> = (&'v Value, &'v Value, &'v Schema);

/// The old value, if it can be correlated: errors of unchanged values are forgiven (ratcheting).
#[derive(Clone, Copy)]
struct Correlation<'v> {
    current: Option<Correlated<'v>>,
    /// The nearest enclosing value with a correlated old value.
    ancestor: Option<Correlated<'v>>,
}

impl<'v> Correlation<'v> {
    fn is_unchanged(self) -> bool {
        self.current.or(self.ancestor).is_some_and(|(new, old, schema)| is_unchanged(schema, new, old))
    }

    fn field(self, name: &str) -> Correlation<'v> {
        let Some((new, old, schema)) = self.current else { return self };
        if self.ancestor.is_none() && is_type_field(name) {
            return Correlation { current: None, ancestor: None };
        }
        let field_value = |value: &'v Value| value.fields().and_then(|fields| fields.get(name));
        let both = field_value(new).zip(field_value(old)).zip(schema.field(name));
        Correlation { current: both.map(|((new, old), inner)| (new, old, inner)), ancestor: self.current }
    }

    fn item(self, new: &'v Value, old: Option<&'v Value>) -> Correlation<'v> {
        let Some((_, _, schema)) = self.current else { return self };
        let both = old.zip(schema.items.as_deref());
        Correlation { current: both.map(|(old, inner)| (new, old, inner)), ancestor: self.current }
    }
}

/// A value, and the rules that it must satisfy.
struct Node<'v> {
    rules: &'v Rules,
    new: &'v Value,
    old: Option<&'v Value>,
    correlation: Correlation<'v>,
    path: FieldPath,
}

/// The cost budget is exceeded, and the error is reported.
struct BudgetExceeded;

struct RuleEvaluator<'w> {
    budget: u64,
    errors: &'w mut ErrorList,
    warnings: &'w mut WarningList,
}

impl RuleEvaluator<'_> {
    fn evaluate_value(&mut self, mut node: Node<'_>) -> Result<(), BudgetExceeded> {
        // Only enclosing rules can refer to null.
        if node.new.is_null() || self.errors.is_full() {
            return Ok(());
        }
        node.old = node.old.filter(|old| !old.is_null());
        self.evaluate_own(&node)?;
        let Node { rules, new, old, correlation, path } = node;
        match new {
            Value::Array(items) => {
                let Some(inner) = &rules.items else { return Ok(()) };
                let old_items = items_by_key(rules.keys.as_deref(), old);
                for (index, item) in items.iter().enumerate() {
                    let keys = rules.keys.as_deref().unwrap_or_default();
                    let old_item =
                        if old_items.is_empty() { None } else { old_items.get(&key_of(keys, item)).copied() };
                    self.evaluate_value(Node {
                        rules: inner,
                        new: item,
                        old: old_item,
                        correlation: correlation.item(item, old_item),
                        path: path.index(index),
                    })?;
                }
            }
            Value::Object(fields) => {
                let field_node = |rules, name: &str, new, path| {
                    let old = old.and_then(Value::fields).and_then(|fields| fields.get(name));
                    Node { rules, new, old, correlation: correlation.field(name), path }
                };
                if let Some(inner) = &rules.additional_properties {
                    for (name, value) in fields {
                        self.evaluate_value(field_node(inner, name, value, path.key(name)))?;
                    }
                }
                for (name, inner) in &rules.properties {
                    if let Some(value) = fields.get(name) {
                        self.evaluate_value(field_node(inner, name, value, path.child(name)))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn invalid(&mut self, rules: &Rules, path: &FieldPath, message: &str) {
        self.errors.push(FieldError::invalid(&message_path(path), &quoted(&rules.kind), message));
    }

    fn evaluate_own(&mut self, node: &Node<'_>) -> Result<(), BudgetExceeded> {
        const BUDGET_MESSAGE: &str =
            "validation failed due to running out of cost budget, no further validation rules will be run";
        const UNTYPED_MESSAGE: &str =
            "rule compiler initialization error: failed to convert to declType for CEL validation rules";
        let Node { rules, new, old, path, .. } = node;
        let Some(decl_type) = &rules.decl_type else {
            if rules.untyped {
                self.invalid(rules, path, UNTYPED_MESSAGE);
            }
            return Ok(());
        };
        if !rules.own_rules.is_empty() && self.budget == 0 {
            self.invalid(rules, path, BUDGET_MESSAGE);
            return Err(BudgetExceeded);
        }
        for rule in &rules.own_rules {
            let Some((outcome, cost)) = rule.evaluate(new, *old, decl_type) else { continue };
            let Some(remaining) = self.budget.checked_sub(cost) else {
                self.invalid(rules, path, BUDGET_MESSAGE);
                return Err(BudgetExceeded);
            };
            self.budget = remaining;
            match outcome {
                RuleOutcome::Valid => {}
                RuleOutcome::Error(message) => self.invalid(rules, path, &message),
                RuleOutcome::BudgetExceeded(message) => {
                    self.invalid(rules, path, &message);
                    return Err(BudgetExceeded);
                }
                RuleOutcome::Invalid => self.report_failure(node, rule, decl_type)?,
            }
        }
        Ok(())
    }

    fn report_failure(
        &mut self,
        node: &Node<'_>,
        rule: &CompiledRule,
        decl_type: &Arc<DeclType>,
    ) -> Result<(), BudgetExceeded> {
        let path = &node.path;
        let error_path = rule.field_path.as_deref().map_or_else(|| path.clone(), |field| path.child(field));
        let error_path = message_path(&error_path);
        let is_ratcheted = !rule.uses_old && node.correlation.is_unchanged();
        let (message, budget_exceeded) = match rule.message(node.new, node.old, decl_type, &mut self.budget) {
            Ok(message) => (message, false),
            Err(message) => (message, true),
        };
        let kind = quoted(&node.rules.kind);
        let error = match rule.reason {
            _ if budget_exceeded => FieldError::invalid(&error_path, &kind, &message),
            ErrorType::Forbidden => FieldError::forbidden(&error_path, &message),
            ErrorType::Required => FieldError::required(&error_path, &message),
            ErrorType::Duplicate => FieldError::duplicate(&error_path, &kind),
            _ => FieldError::invalid(&error_path, &kind, &message),
        };
        if is_ratcheted {
            self.warnings.push(error.to_string());
        } else {
            self.errors.push(error);
        }
        if budget_exceeded { Err(BudgetExceeded) } else { Ok(()) }
    }
}

/// The path in messages about the whole object.
fn message_path(path: &FieldPath) -> FieldPath {
    if path.is_empty() { FieldPath::new("<nil>") } else { path.clone() }
}

/// The old items of a list by their keys.
fn items_by_key<'v>(keys: Option<&[String]>, old: Option<&'v Value>) -> BTreeMap<Vec<u8>, &'v Value> {
    let Some(keys) = keys else { return BTreeMap::new() };
    old.map(Value::items).unwrap_or_default().iter().map(|item| (key_of(keys, item), item)).collect()
}

fn key_of(keys: &[String], item: &Value) -> Vec<u8> {
    let fields = keys.iter().filter_map(|key| Some((key.clone(), item.fields()?.get(key)?.clone())));
    json::to_json(&Value::Object(fields.collect()))
}

#[cfg(test)]
mod tests;
