//! Checks the CEL validation rules of a definition: whether they compile, and their estimated cost.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::RecentLibraries;
use pilothouse_cel::types::DeclType;

use super::decl_types;
use super::rule::{CompiledRule, RuleLibraries, max_occurrences};
use crate::limits::{RULE_ESTIMATE, RULES_ESTIMATE};

/// How many of the most expensive rules are reported if the total is exceeded.
const MOST_EXPENSIVE_RULES: usize = 4;

/// The expressions of the definition that is stored: they may use functions that new ones may not.
#[derive(Clone, Debug, Default)]
pub struct StoredExpressions<'a> {
    rules: BTreeSet<&'a str>,
    messages: BTreeSet<&'a str>,
}

impl<'a> StoredExpressions<'a> {
    /// Adds the expressions of a schema.
    pub fn add(&mut self, schema: &'a Value) {
        for rule in schema.get("x-kubernetes-validations").map(Value::items).unwrap_or_default() {
            self.rules.insert(rule.str("rule"));
            self.messages.insert(rule.str("messageExpression"));
        }
        for field in ["properties", "items", "additionalProperties"] {
            let Some(inner) = schema.get(field) else { continue };
            match field {
                "properties" => inner.fields().into_iter().flatten().for_each(|(_, part)| self.add(part)),
                _ => self.add(inner),
            }
        }
    }

    fn libraries(&self, rule: &Value, new: RecentLibraries) -> RuleLibraries {
        let choose = |stored: &BTreeSet<&str>, text: &str| match stored.contains(text) {
            true => RecentLibraries::STORED,
            false => new,
        };
        RuleLibraries {
            rule: choose(&self.rules, rule.str("rule")),
            message: choose(&self.messages, rule.str("messageExpression")),
        }
    }
}

/// Checks the rules of a schema that has passed all other checks. `errors` has the problems so far; rules at those fields are
/// skipped.
pub fn check(schema: &Value, path: &FieldPath, stored: &StoredExpressions<'_>, errors: &mut ErrorList) {
    let invalid_paths: Vec<String> = errors.iter().map(|error| error.path.to_string()).collect();
    let features = errors.features();
    let selectors = features.has(Feature::AuthorizeWithSelectors);
    let mut checker = RuleChecker {
        new_libraries: RecentLibraries::of_new_expressions(features.compatibility(), selectors),
        stored,
        invalid_paths,
        errors: Vec::new(),
        total: 0,
        most_expensive: Vec::new(),
        patterns: Patterns::default(),
    };
    let root = SchemaPosition {
        path: path.clone(),
        decl_type: None,
        count: Some(1),
        is_root: true,
        uncorrelated_list: None,
        in_rules: false,
    };
    checker.walk(schema, &root);
    checker.errors.into_iter().for_each(|error| errors.push(error));
    if checker.total > RULES_ESTIMATE {
        for (rule, _) in &checker.most_expensive {
            let message =
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.push(FieldError::forbidden(rule, message));
        }
        let subject = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(FieldError::forbidden(
            path,
            &exceeds_budget_message(subject, checker.total, RULES_ESTIMATE),
        ));
    }
}

struct RuleChecker<'a> {
    /// The libraries of new rules.
    new_libraries: RecentLibraries,
    /// The rules that are not new.
    stored: &'a StoredExpressions<'a>,
    /// The fields with other errors.
    invalid_paths: Vec<String>,
    errors: Vec<FieldError>,
    total: u64,
    most_expensive: Vec<(FieldPath, u64)>,
    patterns: Patterns,
}

/// The position of a schema.
struct SchemaPosition {
    path: FieldPath,
    /// The declared type of its values, if known already.
    decl_type: Option<Arc<DeclType>>,
    /// The maximum number of its values in one object, if everything around it is bounded.
    count: Option<u64>,
    is_root: bool,
    /// The enclosing list in which old values cannot be correlated.
    uncorrelated_list: Option<FieldPath>,
    /// Whether rules around it can refer to it.
    in_rules: bool,
}

impl RuleChecker<'_> {
    fn walk(&mut self, schema: &Value, position: &SchemaPosition) {
        let rules = schema.get("x-kubernetes-validations").map(Value::items).unwrap_or_default();
        let in_rules = position.in_rules || !rules.is_empty();
        let derive_type = || {
            decl_types::from_schema(schema, position.is_root || decl_types::is_embedded(schema), "selfType")
        };
        let decl_type = if in_rules { position.decl_type.clone().or_else(derive_type) } else { None };
        let count = position.count.and_then(|count| Some(count.saturating_mul(max_children(schema)?)));
        let child =
            |path: FieldPath, decl_type: Option<&Arc<DeclType>>, uncorrelated_list: Option<FieldPath>| {
                SchemaPosition {
                    path,
                    decl_type: decl_type.cloned(),
                    count,
                    is_root: false,
                    uncorrelated_list,
                    in_rules,
                }
            };
        if let Some(values) = schema.get("additionalProperties").filter(|values| values.fields().is_some()) {
            let child_type =
                decl_type.as_deref().and_then(|decl_type| decl_types::child_type(decl_type, None));
            self.walk(
                values,
                &child(
                    position.path.child("additionalProperties"),
                    child_type,
                    position.uncorrelated_list.clone(),
                ),
            );
        }
        for (name, property) in schema.get("properties").and_then(Value::fields).into_iter().flatten() {
            let child_type =
                decl_type.as_deref().and_then(|decl_type| decl_types::child_type(decl_type, Some(name)));
            let path = position.path.child("properties").key(name);
            self.walk(property, &child(path, child_type, position.uncorrelated_list.clone()));
        }
        if let Some(items) = schema.get("items").filter(|items| items.fields().is_some()) {
            let is_map = schema.str("x-kubernetes-list-type") == "map";
            let uncorrelated_list =
                if is_map { position.uncorrelated_list.clone() } else { Some(position.path.clone()) };
            let child_type =
                decl_type.as_deref().and_then(|decl_type| decl_types::child_type(decl_type, None));
            self.walk(items, &child(position.path.child("items"), child_type, uncorrelated_list));
        }
        if !rules.is_empty() && !self.has_other_error(&position.path) {
            self.check_own_rules(schema, rules, decl_type.as_ref(), position);
        }
    }

    /// Compiles the rules of the schema itself.
    fn check_own_rules(
        &mut self,
        schema: &Value,
        rules: &[Value],
        decl_type: Option<&Arc<DeclType>>,
        position: &SchemaPosition,
    ) {
        let rules_path = position.path.child("x-kubernetes-validations");
        let Some(decl_type) = decl_type else {
            let message = "Internal error: internal error: failed to construct type information for \
                       x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
            self.errors.push(FieldError::with_message(
                &rules_path,
                pilothouse_apimachinery::field::ErrorType::Internal,
                message.to_owned(),
            ));
            return;
        };
        for (index, rule) in rules.iter().enumerate() {
            let libraries = self.stored.libraries(rule, self.new_libraries);
            let compiled = CompiledRule::compile(rule, schema, decl_type, libraries, &mut self.patterns);
            let max_count = position.count.unwrap_or_else(|| max_occurrences(decl_type));
            self.rule(
                rule,
                &compiled,
                max_count,
                &rules_path.index(index),
                position.uncorrelated_list.as_ref(),
            );
        }
    }

    /// Whether a field, or one inside of it, has another error.
    fn has_other_error(&self, path: &FieldPath) -> bool {
        let path = path.to_string();
        let is_inside = |invalid: &String| {
            invalid
                .strip_prefix(path.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.invalid_paths.iter().any(is_inside)
    }

    fn rule(
        &mut self,
        rule_value: &Value,
        rule: &CompiledRule,
        max_count: u64,
        path: &FieldPath,
        uncorrelated_list: Option<&FieldPath>,
    ) {
        let rule_path = path.child("rule");
        self.charge("estimated rule cost", &rule_path, rule.max_cost.saturating_mul(max_count));
        if let Some(message) = &rule.compile_error {
            self.errors.push(FieldError::invalid(&rule_path, &render_rule(rule_value), message));
        }
        let message_path = path.child("messageExpression");
        if let Some(message) = &rule.message_compile_error {
            self.errors.push(FieldError::invalid(&message_path, &render_rule(rule_value), message));
        } else if let Some(cost) = rule.message_cost() {
            self.charge("estimated messageExpression cost", &message_path, cost);
        }
        match (rule.uses_old, uncorrelated_list, rule_value.get("optionalOldSelf").and_then(Value::as_bool)) {
            (true, Some(list), _) => {
                let message = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {list}"
                );
                self.errors.push(FieldError::invalid(&rule_path, &quoted(rule_value.str("rule")), &message));
            }
            (false, _, Some(optional)) => {
                let message = "may not be set if oldSelf is not used in rule";
                self.errors.push(FieldError::invalid(
                    &path.child("optionalOldSelf"),
                    &optional.to_string(),
                    message,
                ));
            }
            _ => {}
        }
    }

    fn charge(&mut self, subject: &str, path: &FieldPath, cost: u64) {
        if cost > RULE_ESTIMATE {
            self.errors
                .push(FieldError::forbidden(path, &exceeds_budget_message(subject, cost, RULE_ESTIMATE)));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= RULES_ESTIMATE / 100 {
            self.most_expensive.push((path.clone(), cost));
            self.most_expensive.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
            self.most_expensive.truncate(MOST_EXPENSIVE_RULES);
        }
    }
}

/// The maximum number of direct parts of a value; `None` if unbounded.
fn max_children(schema: &Value) -> Option<u64> {
    let limit = |field: &str| {
        schema.get(field).and_then(Value::as_int).map(|limit| u64::try_from(limit).unwrap_or(0))
    };
    match schema.str("type") {
        "object" if schema.get("additionalProperties").is_some() => limit("maxProperties"),
        "array" => limit("maxItems"),
        _ => Some(1),
    }
}

fn exceeds_budget_message(subject: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{subject} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// A rule in Go's `%#v` format, as messages print it.
fn render_rule(rule: &Value) -> String {
    let quoted_field = |field: &str| quoted(rule.str(field));
    let reason = match rule.get("reason") {
        Some(_) => "(*apiextensions.FieldValueErrorReason)(0xc000000000)",
        None => "(*apiextensions.FieldValueErrorReason)(nil)",
    };
    let optional =
        if rule.get("optionalOldSelf").is_some() { "(*bool)(0xc000000000)" } else { "(*bool)(nil)" };
    format!(
        "apiextensions.ValidationRule{{Rule:{}, Message:{}, MessageExpression:{}, Reason:{reason}, FieldPath:{}, OptionalOldSelf:{optional}}}",
        quoted_field("rule"),
        quoted_field("message"),
        quoted_field("messageExpression"),
        quoted_field("fieldPath")
    )
}
