//! Checks that the kinds of apps share: IntOrString counts, selectors, status counters.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::super::core::template;
use super::super::messages;

pub(super) const ROLLING: &str = "RollingUpdate";
const SELECTOR: &str = "v1.LabelSelector{}";

/// Checks an IntOrString: a number or a percentage.
pub fn validate_count_or_percent(node: &FieldValue<'_>, errors: &mut ErrorList) {
    if node.value.as_str().is_some() {
        for detail in names::percent(node.text()) {
            errors.push(FieldError::invalid(&node.path, &render_int_or_string(node), &detail));
        }
    } else {
        node.not_negative(errors);
    }
}

/// Checks that a percentage is at most 100%.
pub fn validate_at_most_100_percent(node: &FieldValue<'_>, errors: &mut ErrorList) {
    if percent(node).is_some_and(|percent| percent > 100) {
        errors.push(FieldError::invalid(
            &node.path,
            &render_int_or_string(node),
            "must not be greater than 100%",
        ));
    }
}

fn percent(node: &FieldValue<'_>) -> Option<i64> {
    let digits = node.text().strip_suffix('%')?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// The integer of an IntOrString. A string that is no percentage counts as the number that it spells, or 0.
pub(super) fn int_value(node: &FieldValue<'_>) -> i64 {
    percent(node)
        .or_else(|| node.value.as_str().map(|text| text.parse().unwrap_or_default()))
        .unwrap_or_else(|| node.number())
}

/// An IntOrString as Go prints the struct.
pub(super) fn render_int_or_string(node: &FieldValue<'_>) -> String {
    let (kind, number) = (i64::from(node.value.as_str().is_some()), node.number());
    format!("intstr.IntOrString{{Type:{kind}, IntVal:{number}, StrVal:{}}}", quoted(node.text()))
}

/// Checks that the selector is present and not empty, and returns whether it is usable. If it is not, `unusable` is reported.
pub(super) fn require_selector(
    spec: &FieldValue<'_>,
    kind: &str,
    unusable: &str,
    errors: &mut ErrorList,
) -> bool {
    let selector = spec.child("selector");
    if !selector.is_set() {
        selector.required(errors, "");
        return true;
    }
    let is_usable = label_selector::check(&selector, errors);
    if label_selector::is_empty(selector.value) {
        let detail = format!("empty selector is invalid for {kind}");
        errors.push(FieldError::invalid(&selector.path, SELECTOR, &detail));
    }
    if !is_usable {
        errors.push(FieldError::invalid(&selector.path, SELECTOR, unusable));
    }
    is_usable
}

/// A strategy as Go prints the struct, with only the type set.
pub(super) fn render_strategy(strategy: &FieldValue<'_>, kind: &str, rolling: &str) -> String {
    format!("{kind}{{Type:{}, RollingUpdate:(*{rolling})(nil)}}", quoted(strategy.str("type")))
}

/// Checks that the selector is immutable.
pub fn validate_selector_unchanged(new: &Value, old: &Value, errors: &mut ErrorList) {
    let selector = |object| FieldValue::top_level(object, "spec").child("selector");
    messages::validate_struct_unchanged(&selector(new), &selector(old), "v1.LabelSelector", errors);
}

pub(super) fn validate_collision_count(new: &Value, old: &Value, errors: &mut ErrorList) {
    let collision_count = |object| FieldValue::top_level(object, "status").child("collisionCount");
    let (new, old) = (collision_count(new), collision_count(old));
    // Removing it counts as decreasing it.
    if old.is_set() && (!new.is_set() || new.number() < old.number()) {
        errors.push(FieldError::invalid(&new.path, &new.number().to_string(), "cannot be decremented"));
    }
}

/// Warnings of kinds whose names become part of pod names.
pub fn warn_name_and_template(object: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    if old.is_none() {
        messages::warn_pod_name(object, warnings);
    }
    template::warn_unless_unchanged(object, old, warnings);
}
