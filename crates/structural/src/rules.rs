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
use super::rule::{CompiledRule, RuleOutcome};
use super::schema::Schema;
use super::validate::{is_type_field, is_unchanged};
use crate::limits::DEFAULT_RULES;

/// The rules of a schema and its subschemas.
#[derive(Debug)]
pub struct Rules {
    /// `None` in places where the type has no values, such as the items of what is no list.
    shape: Option<Arc<DeclType>>,
    /// The type of its values, as messages print it.
    kind: String,
    own: Vec<CompiledRule>,
    /// Whether there are rules that cannot be compiled, because there is no type to compile them for.
    untyped: bool,
    properties: BTreeMap<String, Rules>,
    others: Option<Box<Rules>>,
    items: Option<Box<Rules>>,
    /// The key fields of a list's items, if they can be correlated.
    keys: Option<Vec<String>>,
}

impl Rules {
    /// The rules of a version's schema; `None` if it has none.
    pub fn of(said: &Value, patterns: &mut Patterns) -> Option<Rules> {
        if !has_rules(said) {
            return None;
        }
        let shape = decl_types::shape(said, true, "selfType")?;
        Rules::read(said, Some(shape), patterns)
    }

    fn read(said: &Value, shape: Option<Arc<DeclType>>, patterns: &mut Patterns) -> Option<Rules> {
        let own = said.get("x-kubernetes-validations").map(Value::items).unwrap_or_default();
        let untyped = shape.is_none() && !own.is_empty();
        let compiled = |shape: &Arc<DeclType>, patterns: &mut Patterns| {
            own.iter().map(|rule| CompiledRule::of(rule, said, shape, patterns)).collect()
        };
        let own: Vec<CompiledRule> =
            shape.as_ref().map(|shape| compiled(shape, patterns)).unwrap_or_default();
        let mut properties = BTreeMap::new();
        for (name, inner) in said.get("properties").and_then(Value::fields).into_iter().flatten() {
            let found = shape.as_ref().and_then(|shape| decl_types::below(shape, Some(name))).cloned();
            // A field that CEL cannot name may still have rules of its own.
            let unnamed = || match pilothouse_cel::escape::escape(name) {
                None => decl_types::shape(inner, decl_types::is_embedded(inner), "selfType"),
                Some(_) => None,
            };
            let Some(inner_shape) = found.or_else(unnamed) else { continue };
            if let Some(rules) = Rules::read(inner, Some(inner_shape), patterns) {
                properties.insert(name.clone(), rules);
            }
        }
        let mut part = |field: &str| {
            let inner = said.get(field).filter(|inner| inner.fields().is_some())?;
            let inner_shape = shape.as_ref().and_then(|shape| decl_types::below(shape, None)).cloned();
            Rules::read(inner, inner_shape, patterns).map(Box::new)
        };
        let (others, items) = (part("additionalProperties"), part("items"));
        if own.is_empty() && !untyped && properties.is_empty() && others.is_none() && items.is_none() {
            return None;
        }
        let keys = (said.str("x-kubernetes-list-type") == "map").then(|| decl_types::keys(said));
        let kind = said.str("type").to_owned();
        Some(Rules { kind, shape, own, untyped, properties, others, items, keys })
    }

    /// Evaluates the rules for an object. An error that existed before becomes a warning.
    pub fn check(
        &self,
        schema: &Schema,
        (new, old): (&Value, Option<&Value>),
        errors: &mut ErrorList,
        warned: &mut WarningList,
    ) {
        if errors.iter().any(|error| blocks(error.problem)) {
            let why = "some validation rules were not checked because the object was invalid; correct the existing \
                       errors to complete validation";
            errors.push(FieldError::invalid(&FieldPath::new("<nil>"), "\"null\"", why));
            return;
        }
        let mut walk = Walk { budget: RULES_COST, errors, warned };
        let before = Before { current: old.map(|old| (new, old, schema)), above: None };
        // An exceeded budget is reported already.
        let _done = walk.value(self, new, old, before, &FieldPath::root());
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
    said: &Value,
    default: &Value,
    path: &FieldPath,
    left: &mut CostBudget,
    errors: &mut ErrorList,
) {
    let Some(rest) = left.rules.checked_sub(count(said)) else { return };
    if rest == left.rules {
        return;
    }
    left.rules = rest;
    let Some(shape) = decl_types::shape(said, decl_types::is_embedded(said), "selfType") else { return };
    let Some(rules) = Rules::read(said, Some(shape), &mut Patterns::default()) else { return };
    let unknown = Before { current: None, above: None };
    for old in [Some(default), None] {
        let mut found = ErrorList::new();
        let mut walk = Walk { budget: left.cost, errors: &mut found, warned: &mut WarningList::new() };
        let done = walk.value(&rules, default, old, unknown, path);
        left.cost = if done.is_ok() { walk.budget } else { 0 };
        if !found.is_empty() {
            errors.append(&mut found);
            return;
        }
    }
}

/// The number of rules in a schema and its subschemas.
fn count(said: &Value) -> usize {
    let own = said.get("x-kubernetes-validations").map(Value::items).unwrap_or_default().len();
    let parts = ["items", "additionalProperties"].into_iter().filter_map(|field| said.get(field));
    let properties =
        said.get("properties").and_then(Value::fields).into_iter().flatten().map(|(_, inner)| inner);
    own + parts.filter(|part| part.fields().is_some()).chain(properties).map(count).sum::<usize>()
}

fn has_rules(said: &Value) -> bool {
    let inside =
        |field: &str| said.get(field).is_some_and(|inner| inner.fields().is_some() && has_rules(inner));
    let mut properties = said.get("properties").and_then(Value::fields).into_iter().flatten();
    !said.get("x-kubernetes-validations").map(Value::items).unwrap_or_default().is_empty()
        || inside("items")
        || inside("additionalProperties")
        || properties.any(|(_, inner)| has_rules(inner))
}

/// Whether an error of this type prevents the rules from running.
fn blocks(problem: ErrorType) -> bool {
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
struct Before<'v> {
    current: Option<Correlated<'v>>,
    /// The nearest enclosing value with a correlated old value.
    above: Option<Correlated<'v>>,
}

impl<'v> Before<'v> {
    fn is_unchanged(self) -> bool {
        self.current.or(self.above).is_some_and(|(new, old, schema)| is_unchanged(schema, new, old))
    }

    fn field(self, name: &str) -> Before<'v> {
        let Some((new, old, schema)) = self.current else { return self };
        if self.above.is_none() && is_type_field(name) {
            return Before { current: None, above: None };
        }
        let of = |value: &'v Value| value.fields().and_then(|fields| fields.get(name));
        let both = of(new).zip(of(old)).zip(schema.field(name));
        Before { current: both.map(|((new, old), inner)| (new, old, inner)), above: self.current }
    }

    fn item(self, new: &'v Value, old: Option<&'v Value>) -> Before<'v> {
        let Some((_, _, schema)) = self.current else { return self };
        let both = old.zip(schema.items.as_deref());
        Before { current: both.map(|(old, inner)| (new, old, inner)), above: self.current }
    }
}

/// The budget is exceeded and reported.
struct UsedUp;

struct Walk<'w> {
    budget: u64,
    errors: &'w mut ErrorList,
    warned: &'w mut WarningList,
}

impl Walk<'_> {
    fn value<'v>(
        &mut self,
        rules: &'v Rules,
        new: &'v Value,
        old: Option<&'v Value>,
        before: Before<'v>,
        path: &FieldPath,
    ) -> Result<(), UsedUp> {
        // Only enclosing rules can refer to null.
        if new.is_null() || self.errors.is_full() {
            return Ok(());
        }
        let old = old.filter(|old| !old.is_null());
        self.own(rules, new, old, before, path)?;
        match new {
            Value::Array(items) => {
                let Some(inner) = &rules.items else { return Ok(()) };
                let known = keyed(rules.keys.as_deref(), old);
                for (index, item) in items.iter().enumerate() {
                    let keys = rules.keys.as_deref().unwrap_or_default();
                    let was = if known.is_empty() { None } else { known.get(&key_of(keys, item)).copied() };
                    self.value(inner, item, was, before.item(item, was), &path.index(index))?;
                }
            }
            Value::Object(fields) => {
                let was = |name: &str| old.and_then(Value::fields).and_then(|fields| fields.get(name));
                if let Some(inner) = &rules.others {
                    for (name, value) in fields {
                        self.value(inner, value, was(name), before.field(name), &path.key(name))?;
                    }
                }
                for (name, inner) in &rules.properties {
                    if let Some(value) = fields.get(name) {
                        self.value(inner, value, was(name), before.field(name), &path.child(name))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn invalid(&mut self, rules: &Rules, path: &FieldPath, why: &str) {
        self.errors.push(FieldError::invalid(&shown(path), &quoted(&rules.kind), why));
    }

    fn own<'v>(
        &mut self,
        rules: &'v Rules,
        new: &'v Value,
        old: Option<&'v Value>,
        before: Before<'v>,
        path: &FieldPath,
    ) -> Result<(), UsedUp> {
        const EMPTY: &str =
            "validation failed due to running out of cost budget, no further validation rules will be run";
        const UNTYPED: &str =
            "rule compiler initialization error: failed to convert to declType for CEL validation rules";
        let Some(shape) = &rules.shape else {
            if rules.untyped {
                self.invalid(rules, path, UNTYPED);
            }
            return Ok(());
        };
        if !rules.own.is_empty() && self.budget == 0 {
            self.invalid(rules, path, EMPTY);
            return Err(UsedUp);
        }
        for rule in &rules.own {
            let Some((verdict, cost)) = rule.judge(new, old, shape) else { continue };
            let Some(left) = self.budget.checked_sub(cost) else {
                self.invalid(rules, path, EMPTY);
                return Err(UsedUp);
            };
            self.budget = left;
            match verdict {
                RuleOutcome::Holds => {}
                RuleOutcome::Wrong(why) => self.invalid(rules, path, &why),
                RuleOutcome::TooDear(why) => {
                    self.invalid(rules, path, &why);
                    return Err(UsedUp);
                }
                RuleOutcome::Fails => self.failed((rules, shape), rule, (new, old), before, path)?,
            }
        }
        Ok(())
    }

    fn failed<'v>(
        &mut self,
        (rules, shape): (&'v Rules, &'v Arc<DeclType>),
        rule: &'v CompiledRule,
        (new, old): (&'v Value, Option<&'v Value>),
        before: Before<'v>,
        path: &FieldPath,
    ) -> Result<(), UsedUp> {
        let place = rule.field_path.as_deref().map_or_else(|| path.clone(), |field| path.child(field));
        let place = shown(&place);
        let forgiven = !rule.uses_old && before.is_unchanged();
        let (message, used_up) = match rule.message(new, old, shape, &mut self.budget) {
            Ok(message) => (message, false),
            Err(why) => (why, true),
        };
        let kind = quoted(&rules.kind);
        let error = match rule.reason {
            _ if used_up => FieldError::invalid(&place, &kind, &message),
            ErrorType::Forbidden => FieldError::forbidden(&place, &message),
            ErrorType::Required => FieldError::required(&place, &message),
            ErrorType::Duplicate => FieldError::duplicate(&place, &kind),
            _ => FieldError::invalid(&place, &kind, &message),
        };
        if forgiven {
            self.warned.push(error.to_string());
        } else {
            self.errors.push(error);
        }
        if used_up { Err(UsedUp) } else { Ok(()) }
    }
}

/// The path in messages about the whole object.
fn shown(path: &FieldPath) -> FieldPath {
    if path.is_empty() { FieldPath::new("<nil>") } else { path.clone() }
}

/// The old items of a list by their keys.
fn keyed<'v>(keys: Option<&[String]>, old: Option<&'v Value>) -> BTreeMap<Vec<u8>, &'v Value> {
    let Some(keys) = keys else { return BTreeMap::new() };
    old.map(Value::items).unwrap_or_default().iter().map(|item| (key_of(keys, item), item)).collect()
}

fn key_of(keys: &[String], item: &Value) -> Vec<u8> {
    let fields = keys.iter().filter_map(|key| Some((key.clone(), item.fields()?.get(key)?.clone())));
    json::to_json(&Value::Object(fields.collect()))
}

#[cfg(test)]
mod tests;
