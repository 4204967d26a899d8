//! Label selectors inside of objects: their syntax, and whether labels match.

use super::field_value::FieldValue;
use crate::error_list::ErrorList;
use crate::meta;
use crate::names;
use crate::value::Value;

/// Validates a label selector; an absent one is valid.
pub fn validate(selector: &FieldValue<'_>, errors: &mut ErrorList) {
    let labels = selector.child("matchLabels");
    meta::validate_labels(Some(labels.value), &labels.path, errors);
    for requirement in selector.child("matchExpressions").items() {
        let values = requirement.child("values");
        match requirement.child("operator").text() {
            operator if is_set_based(operator) => check_values(operator, &values, errors),
            _ => requirement.child("operator").invalid_text(errors, "not a valid selector operator"),
        }
        requirement.child("key").syntax(errors, names::qualified_name);
        for value in values.items() {
            value.syntax(errors, names::label_value);
        }
    }
}

/// Like [`validate`], but returns whether the selector is valid.
pub fn check(selector: &FieldValue<'_>, errors: &mut ErrorList) -> bool {
    let before = errors.len();
    validate(selector, errors);
    errors.len() == before
}

/// Whether an operator is one of those that label selectors and node selectors have in common.
pub fn is_set_based(operator: &str) -> bool {
    matches!(operator, "In" | "NotIn" | "Exists" | "DoesNotExist")
}

/// Checks that such an operator has the values it needs, and none that it cannot use.
pub fn check_values(operator: &str, values: &FieldValue<'_>, errors: &mut ErrorList) {
    let needs_values = matches!(operator, "In" | "NotIn");
    if needs_values && values.is_empty() {
        values.required(errors, "must be specified when `operator` is 'In' or 'NotIn'");
    }
    if !needs_values && !values.is_empty() {
        values.forbidden(errors, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
    }
}

/// Whether the selector has no requirements, and so matches everything.
pub fn is_empty(selector: &Value) -> bool {
    let is_empty = |field| {
        selector.get(field).is_none_or(|part: &Value| {
            part.items().is_empty() && part.fields().is_none_or(|fields| fields.is_empty())
        })
    };
    is_empty("matchLabels") && is_empty("matchExpressions")
}

/// Whether the labels match. An absent selector matches nothing.
pub fn matches(selector: Option<&Value>, labels: Option<&Value>) -> bool {
    let Some(selector) = selector.filter(|selector| !selector.is_null()) else { return false };
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
    let expected = selector.get("matchLabels").and_then(Value::fields).into_iter().flatten();
    expected.into_iter().all(|(key, value)| label(key) == value.as_str())
        && selector.get("matchExpressions").map(Value::items).unwrap_or_default().iter().all(|requirement| {
            let actual = label(requirement.str("key"));
            let values = requirement.get("values").map(Value::items).unwrap_or_default();
            let is_listed =
                actual.is_some_and(|actual| values.iter().any(|value| value.as_str() == Some(actual)));
            match requirement.str("operator") {
                "In" => is_listed,
                "NotIn" => !is_listed,
                "Exists" => actual.is_some(),
                _ => actual.is_none(),
            }
        })
}

/// Whether labels contain all pairs of a plain set.
pub fn contains(labels: Option<&Value>, subset: Option<&Value>) -> bool {
    subset
        .and_then(Value::fields)
        .into_iter()
        .flatten()
        .all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

/// The selector in the syntax of the query parameter, sorted by key; empty for an absent one. `None` if the selector is invalid.
pub fn to_text(selector: Option<&Value>) -> Option<String> {
    let Some(selector) = selector else { return Some(String::new()) };
    let mut terms: Vec<(&str, String)> = Vec::new();
    for (key, value) in selector.get("matchLabels").and_then(Value::fields).into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if !is_valid_requirement(key, [value]) {
            return None;
        }
        terms.push((key, format!("{key}={value}")));
    }
    for expression in selector.get("matchExpressions").map(Value::items).unwrap_or_default() {
        let key = expression.str("key");
        let mut values = expression.sorted_strings("values");
        values.dedup();
        if !is_valid_requirement(key, values.iter().copied()) {
            return None;
        }
        let text = match (expression.str("operator"), values.is_empty()) {
            ("In", false) => format!("{key} in ({})", values.join(",")),
            ("NotIn", false) => format!("{key} notin ({})", values.join(",")),
            ("Exists", true) => key.to_owned(),
            ("DoesNotExist", true) => format!("!{key}"),
            _ => return None,
        };
        terms.push((key, text));
    }
    terms.sort_by_key(|(key, _)| *key);
    Some(terms.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(","))
}

fn is_valid_requirement<'a>(key: &str, values: impl IntoIterator<Item = &'a str>) -> bool {
    names::qualified_name(key).is_empty()
        && values.into_iter().all(|value| names::label_value(value).is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{each_refused, object};
    use super::*;

    #[test]
    fn invalid_label_selectors_are_refused() {
        let base = object(
            r#"{"selector":{"matchLabels":{"a":"b"},"matchExpressions":[
                {"key":"k","operator":"In","values":["v"]}]}}"#,
        );
        each_refused(
            &base,
            |object, errors| validate(&FieldValue::top_level(object, "selector"), errors),
            &[
                ("selector.matchLabels", r#"{"a":"-"}"#, "selector.matchLabels: Invalid value: \"-\""),
                (
                    "selector.matchExpressions.0.values",
                    "[]",
                    "must be specified when `operator` is 'In' or 'NotIn'",
                ),
                (
                    "selector.matchExpressions.0.operator",
                    "\"Exists\"",
                    "values: Forbidden: may not be specified when",
                ),
                (
                    "selector.matchExpressions.0.operator",
                    "\"X\"",
                    "Invalid value: \"X\": not a valid selector operator",
                ),
                ("selector.matchExpressions.0.key", "\"-\"", "matchExpressions[0].key: Invalid value"),
                (
                    "selector.matchExpressions.0.values",
                    "[\"-\"]",
                    "matchExpressions[0].values[0]: Invalid value",
                ),
            ],
        );
    }

    #[test]
    fn labels_match_by_operator() {
        let labels = object(r#"{"a":"1"}"#);
        let table = [
            (r#"{}"#, true),
            (r#"{"matchLabels":{"a":"1"}}"#, true),
            (r#"{"matchLabels":{"a":"2"}}"#, false),
            (r#"{"matchExpressions":[{"key":"a","operator":"In","values":["1","2"]}]}"#, true),
            (r#"{"matchExpressions":[{"key":"a","operator":"NotIn","values":["1"]}]}"#, false),
            (r#"{"matchExpressions":[{"key":"b","operator":"NotIn","values":["1"]}]}"#, true),
            (r#"{"matchExpressions":[{"key":"a","operator":"Exists"}]}"#, true),
            (r#"{"matchExpressions":[{"key":"a","operator":"DoesNotExist"}]}"#, false),
        ];
        for (selector, expected) in table {
            assert_eq!(matches(Some(&object(selector)), Some(&labels)), expected, "{selector}");
        }
        assert!(!matches(None, Some(&labels)));
        assert!(is_empty(&object(r#"{"matchLabels":{}}"#)));
        assert!(contains(Some(&labels), Some(&labels)) && !contains(None, Some(&labels)));
    }
}
