//! What the kinds have in common: shares of pods, selectors, counters.

use super::super::field_value::FieldValue;
use super::super::{ErrorList, WarningList, messages, selector};
use crate::api::field::{FieldError, quoted};
use crate::api::names;
use crate::api::value::Value;

pub(super) const ROLLING: &str = "RollingUpdate";
const SELECTOR: &str = "v1.LabelSelector{}";

/// Checks a number, or a share of all in percent.
pub fn count_or_percent(node: &FieldValue<'_>, errors: &mut ErrorList) {
    if node.value.as_str().is_some() {
        for wrong in names::percent(node.text()) {
            errors.push(FieldError::invalid(&node.path, &shown_share(node), &wrong));
        }
    } else {
        node.not_negative(errors);
    }
}

/// Checks that a share is not more than all.
pub fn at_most_all(node: &FieldValue<'_>, errors: &mut ErrorList) {
    if percent(node).is_some_and(|percent| percent > 100) {
        errors.push(FieldError::invalid(&node.path, &shown_share(node), "must not be greater than 100%"));
    }
}

fn percent(node: &FieldValue<'_>) -> Option<i64> {
    let digits = node.text().strip_suffix('%')?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// How many there are: of a text that is no share, the number that it spells, if any.
pub(super) fn count(node: &FieldValue<'_>) -> i64 {
    percent(node)
        .or_else(|| node.value.as_str().map(|text| text.parse().unwrap_or_default()))
        .unwrap_or_else(|| node.number())
}

/// A number-or-text as messages print it: the whole structure.
pub(super) fn shown_share(node: &FieldValue<'_>) -> String {
    let (kind, number) = (i64::from(node.value.as_str().is_some()), node.number());
    format!("intstr.IntOrString{{Type:{kind}, IntVal:{number}, StrVal:{}}}", quoted(node.text()))
}

/// Checks that pods are chosen, and not all of them. Answers whether labels can be compared with the selector; if not,
/// `unusable` is said of it as a whole.
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
    let usable = selector::check(&chosen, errors);
    if selector::is_empty(chosen.value) {
        let wrong = format!("empty selector is invalid for {kind}");
        errors.push(FieldError::invalid(&chosen.path, SELECTOR, &wrong));
    }
    if !usable {
        errors.push(FieldError::invalid(&chosen.path, SELECTOR, unusable));
    }
    usable
}

/// A strategy as messages print it: the whole structure, where all that it says is its type.
pub(super) fn shown_strategy(strategy: &FieldValue<'_>, kind: &str, rolling: &str) -> String {
    format!("{kind}{{Type:{}, RollingUpdate:(*{rolling})(nil)}}", quoted(strategy.str("type")))
}

/// Checks that a changed controller still selects the same pods.
pub fn same_selector(new: &Value, old: &Value, errors: &mut ErrorList) {
    let at = |object| FieldValue::of(object, "spec").child("selector");
    messages::same_structure(&at(new), &at(old), "v1.LabelSelector", errors);
}

/// Checks the counters of a status: none below zero, and none above the number that there are.
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
    // One that is gone counts as fewer than none.
    if old.is_set() && (!new.is_set() || new.number() < old.number()) {
        errors.push(FieldError::invalid(&new.path, &new.number().to_string(), "cannot be decremented"));
    }
}

/// Warns of what is dubious in a kind whose name becomes part of the names of pods.
pub fn warn_named(object: &Value, old: Option<&Value>, warned: &mut WarningList) {
    if old.is_none() {
        messages::pod_names(object, warned);
    }
    messages::template_of(object, old, warned);
}
