//! Checks the CEL validation rules of a definition: whether they compile, and their estimated cost.

use std::sync::Arc;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::types::DeclType;

use super::decl_types;
use super::rule::{CompiledRule, most_often};
use crate::limits::{RULE_ESTIMATE, RULES_ESTIMATE};

/// How many of the most expensive rules are named if the total is exceeded.
const DEAREST: usize = 4;

/// Checks the rules of a schema that has passed all other checks. `errors` has the problems so far; rules at those fields are
/// skipped.
pub fn check(schema: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let wrong: Vec<String> = errors.iter().map(|error| error.path.to_string()).collect();
    let mut check =
        Check { wrong, found: Vec::new(), total: 0, dearest: Vec::new(), patterns: Patterns::default() };
    let place = SchemaPosition {
        path: path.clone(),
        shape: None,
        count: Some(1),
        is_root: true,
        unknown: None,
        in_rules: false,
    };
    check.walk(schema, &place);
    check.found.into_iter().for_each(|error| errors.push(error));
    if check.total > RULES_ESTIMATE {
        for (rule, _) in &check.dearest {
            let why =
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.push(FieldError::forbidden(rule, why));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(FieldError::forbidden(path, &too_dear(what, check.total, RULES_ESTIMATE)));
    }
}

struct Check {
    /// The fields with other errors.
    wrong: Vec<String>,
    found: Vec<FieldError>,
    total: u64,
    dearest: Vec<(FieldPath, u64)>,
    patterns: Patterns,
}

/// The position of a schema.
struct SchemaPosition {
    path: FieldPath,
    /// The shape of its values, if known already.
    shape: Option<Arc<DeclType>>,
    /// The maximum number of its values in one object, if everything around it is bounded.
    count: Option<u64>,
    is_root: bool,
    /// The enclosing list in which old values cannot be correlated.
    unknown: Option<FieldPath>,
    /// Whether rules around it can refer to it.
    in_rules: bool,
}

impl Check {
    fn walk(&mut self, schema: &Value, place: &SchemaPosition) {
        let rules = schema.get("x-kubernetes-validations").map(Value::items).unwrap_or_default();
        let in_rules = place.in_rules || !rules.is_empty();
        let own = || decl_types::shape(schema, place.is_root || decl_types::is_embedded(schema), "selfType");
        let shape = if in_rules { place.shape.clone().or_else(own) } else { None };
        let count = place.count.and_then(|count| Some(count.saturating_mul(most_inside(schema)?)));
        let inner = |path: FieldPath, shape: Option<&Arc<DeclType>>, unknown: Option<FieldPath>| {
            SchemaPosition { path, shape: shape.cloned(), count, is_root: false, unknown, in_rules }
        };
        if let Some(values) = schema.get("additionalProperties").filter(|values| values.fields().is_some()) {
            let below = shape.as_deref().and_then(|shape| decl_types::below(shape, None));
            self.walk(values, &inner(place.path.child("additionalProperties"), below, place.unknown.clone()));
        }
        for (name, property) in schema.get("properties").and_then(Value::fields).into_iter().flatten() {
            let below = shape.as_deref().and_then(|shape| decl_types::below(shape, Some(name)));
            let path = place.path.child("properties").key(name);
            self.walk(property, &inner(path, below, place.unknown.clone()));
        }
        if let Some(items) = schema.get("items").filter(|items| items.fields().is_some()) {
            let is_map = schema.str("x-kubernetes-list-type") == "map";
            let unknown = if is_map { place.unknown.clone() } else { Some(place.path.clone()) };
            let below = shape.as_deref().and_then(|shape| decl_types::below(shape, None));
            self.walk(items, &inner(place.path.child("items"), below, unknown));
        }
        if rules.is_empty() || self.is_wrong(&place.path) {
            return;
        }
        let all = place.path.child("x-kubernetes-validations");
        let Some(shape) = shape else {
            let why = "Internal error: internal error: failed to construct type information for \
                       x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
            self.found.push(FieldError::worded(
                &all,
                pilothouse_apimachinery::field::ErrorType::Internal,
                why.to_owned(),
            ));
            return;
        };
        for (index, rule) in rules.iter().enumerate() {
            let compiled = CompiledRule::of(rule, schema, &shape, &mut self.patterns);
            let often = place.count.unwrap_or_else(|| most_often(&shape));
            self.rule(rule, &compiled, often, &all.index(index), place.unknown.as_ref());
        }
    }

    /// Whether a field, or one inside of it, has another error.
    fn is_wrong(&self, path: &FieldPath) -> bool {
        let path = path.to_string();
        let within = |wrong: &String| {
            wrong
                .strip_prefix(path.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.wrong.iter().any(within)
    }

    fn rule(
        &mut self,
        said: &Value,
        rule: &CompiledRule,
        often: u64,
        path: &FieldPath,
        unknown: Option<&FieldPath>,
    ) {
        let place = path.child("rule");
        self.price("estimated rule cost", &place, rule.most_cost.saturating_mul(often));
        if let Some(why) = &rule.wrong {
            self.found.push(FieldError::invalid(&place, &shown(said), why));
        }
        let place_of_message = path.child("messageExpression");
        if let Some(why) = &rule.message_wrong {
            self.found.push(FieldError::invalid(&place_of_message, &shown(said), why));
        } else if let Some(cost) = rule.message_cost() {
            self.price("estimated messageExpression cost", &place_of_message, cost);
        }
        match (rule.uses_old, unknown, said.get("optionalOldSelf").and_then(Value::as_bool)) {
            (true, Some(list), _) => {
                let why = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {list}"
                );
                self.found.push(FieldError::invalid(&place, &quoted(said.str("rule")), &why));
            }
            (false, _, Some(optional)) => {
                let why = "may not be set if oldSelf is not used in rule";
                self.found.push(FieldError::invalid(
                    &path.child("optionalOldSelf"),
                    &optional.to_string(),
                    why,
                ));
            }
            _ => {}
        }
    }

    fn price(&mut self, what: &str, path: &FieldPath, cost: u64) {
        if cost > RULE_ESTIMATE {
            self.found.push(FieldError::forbidden(path, &too_dear(what, cost, RULE_ESTIMATE)));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= RULES_ESTIMATE / 100 {
            self.dearest.push((path.clone(), cost));
            self.dearest.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
            self.dearest.truncate(DEAREST);
        }
    }
}

/// The maximum number of direct parts of a value; `None` if unbounded.
fn most_inside(schema: &Value) -> Option<u64> {
    let most =
        |field: &str| schema.get(field).and_then(Value::as_int).map(|most| u64::try_from(most).unwrap_or(0));
    match schema.str("type") {
        "object" if schema.get("additionalProperties").is_some() => most("maxProperties"),
        "array" => most("maxItems"),
        _ => Some(1),
    }
}

fn too_dear(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// A rule in Go's `%#v` format, as messages print it.
fn shown(rule: &Value) -> String {
    let text = |field: &str| quoted(rule.str(field));
    let reason = match rule.get("reason") {
        Some(_) => "(*apiextensions.FieldValueErrorReason)(0xc000000000)",
        None => "(*apiextensions.FieldValueErrorReason)(nil)",
    };
    let optional =
        if rule.get("optionalOldSelf").is_some() { "(*bool)(0xc000000000)" } else { "(*bool)(nil)" };
    format!(
        "apiextensions.ValidationRule{{Rule:{}, Message:{}, MessageExpression:{}, Reason:{reason}, FieldPath:{}, OptionalOldSelf:{optional}}}",
        text("rule"),
        text("message"),
        text("messageExpression"),
        text("fieldPath")
    )
}
