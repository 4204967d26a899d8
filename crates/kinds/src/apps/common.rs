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
pub fn count_or_percent(node: &FieldValue<'_>, errors: &mut ErrorList) {
    if node.value.as_str().is_some() {
        for wrong in names::percent(node.text()) {
            errors.push(FieldError::invalid(&node.path, &shown_share(node), &wrong));
        }
    } else {
        node.not_negative(errors);
    }
}

/// Checks that a percentage is at most 100%.
pub fn at_most_all(node: &FieldValue<'_>, errors: &mut ErrorList) {
    if percent(node).is_some_and(|percent| percent > 100) {
        errors.push(FieldError::invalid(&node.path, &shown_share(node), "must not be greater than 100%"));
    }
}

fn percent(node: &FieldValue<'_>) -> Option<i64> {
    let digits = node.text().strip_suffix('%')?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// The integer of an IntOrString: of a string that is no percentage, the number that it spells, if any.
pub(super) fn count(node: &FieldValue<'_>) -> i64 {
    percent(node)
        .or_else(|| node.value.as_str().map(|text| text.parse().unwrap_or_default()))
        .unwrap_or_else(|| node.number())
}

/// An IntOrString as messages print it: the whole Go struct.
pub(super) fn shown_share(node: &FieldValue<'_>) -> String {
    let (kind, number) = (i64::from(node.value.as_str().is_some()), node.number());
    format!("intstr.IntOrString{{Type:{kind}, IntVal:{number}, StrVal:{}}}", quoted(node.text()))
}

/// Checks that the selector is present and not empty. Answers whether it is usable; if not, `unusable` is reported about it.
pub(super) fn need_selector(
    spec: &FieldValue<'_>,
    kind: &str,
    unusable: &str,
    errors: &mut ErrorList,
) -> bool {
    let chosen = spec.child("selector");
    if !chosen.is_set() {
        chosen.required(errors, "");
        return true;
    }
    let usable = label_selector::check(&chosen, errors);
    if label_selector::is_empty(chosen.value) {
        let wrong = format!("empty selector is invalid for {kind}");
        errors.push(FieldError::invalid(&chosen.path, SELECTOR, &wrong));
    }
    if !usable {
        errors.push(FieldError::invalid(&chosen.path, SELECTOR, unusable));
    }
    usable
}

/// A strategy as messages print it: the Go struct, with only the type set.
pub(super) fn shown_strategy(strategy: &FieldValue<'_>, kind: &str, rolling: &str) -> String {
    format!("{kind}{{Type:{}, RollingUpdate:(*{rolling})(nil)}}", quoted(strategy.str("type")))
}

/// Checks that the selector is immutable.
pub fn same_selector(new: &Value, old: &Value, errors: &mut ErrorList) {
    let at = |object| FieldValue::of(object, "spec").child("selector");
    messages::same_structure(&at(new), &at(old), "v1.LabelSelector", errors);
}

/// Checks the counters of a status: none negative, and none above the total.
pub(super) fn counters(status: &FieldValue<'_>, all: &[&str], of_all: &[&str], errors: &mut ErrorList) {
    for field in all {
        status.child(field).not_negative(errors);
    }
    let total = status.child("replicas").number();
    for field in of_all {
        messages::no_more(&status.child(field), total, errors, "cannot be greater than status.replicas");
    }
}

pub(super) fn no_fewer_collisions(new: &Value, old: &Value, errors: &mut ErrorList) {
    let at = |object| FieldValue::of(object, "status").child("collisionCount");
    let (new, old) = (at(new), at(old));
    // Removing it counts as decreasing it.
    if old.is_set() && (!new.is_set() || new.number() < old.number()) {
        errors.push(FieldError::invalid(&new.path, &new.number().to_string(), "cannot be decremented"));
    }
}

/// Warns about a kind whose name becomes part of pod names.
pub fn warn_named(object: &Value, old: Option<&Value>, warned: &mut WarningList) {
    if old.is_none() {
        messages::pod_names(object, warned);
    }
    template::warn_unless_unchanged(object, old, warned);
}
