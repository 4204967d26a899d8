//! Merges and compares tolerations.

use pilothouse_apimachinery::value::Value;

use crate::limits::TOLERATIONS_COMPARED;

/// The taint of a node that is not ready.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The taint of a node that is unreachable.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// The effect that evicts pods.
pub const NO_EXECUTE: &str = "NoExecute";

/// Merges two lists without tolerations that another one covers. Of equal ones the first stays.
pub fn merge(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    if all.len() > TOLERATIONS_COMPARED {
        return all.into_iter().cloned().collect();
    }
    let mut merged: Vec<Value> = Vec::new();
    for (index, toleration) in all.iter().enumerate() {
        let is_covered_earlier = merged.iter().any(|other| covers(other, toleration));
        let is_covered_later =
            all.iter().skip(index + 1).any(|other| other != toleration && covers(other, toleration));
        if !is_covered_earlier && !is_covered_later {
            merged.push((*toleration).clone());
        }
    }
    merged
}

/// Whether an allowed toleration covers each of these. Longer lists than [`TOLERATIONS_COMPARED`] are refused: the work grows
/// with the product of both lengths.
pub fn are_allowed(requested: &[Value], allowed: &[Value]) -> bool {
    let is_short =
        requested.len().saturating_mul(allowed.len()) <= TOLERATIONS_COMPARED * TOLERATIONS_COMPARED;
    is_short && requested.iter().all(|toleration| allowed.iter().any(|wide| covers(wide, toleration)))
}

/// Whether `wide` tolerates all that `narrow` does.
fn covers(wide: &Value, narrow: &Value) -> bool {
    if wide == narrow {
        return true;
    }
    let any_key = wide.str("key").is_empty() && wide.str("operator") == "Exists";
    if wide.str("key") != narrow.str("key") && !any_key {
        return false;
    }
    if !wide.str("effect").is_empty() && wide.str("effect") != narrow.str("effect") {
        return false;
    }
    let seconds = |toleration: &Value| toleration.get("tolerationSeconds").and_then(Value::as_int);
    if wide.str("effect") == NO_EXECUTE
        && let Some(limit) = seconds(wide)
        && seconds(narrow).is_none_or(|seconds| seconds > limit)
    {
        return false;
    }
    match wide.str("operator") {
        "Equal" | "" => narrow.str("operator") == "Equal" && narrow.str("value") == wide.str("value"),
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Value {
        let mut toleration = Value::object();
        for (field, text) in [("key", key), ("operator", operator), ("value", value), ("effect", effect)] {
            if !text.is_empty() {
                toleration.set(field, text);
            }
        }
        toleration
    }

    #[test]
    fn merge_drops_covered_tolerations() {
        let narrow = toleration("a", "Equal", "1", "NoSchedule");
        let wide = toleration("a", "Exists", "", "");
        let all = toleration("", "Exists", "", "");
        let other = toleration("b", "Equal", "1", "NoSchedule");
        let merged = |first: &[&Value], second: &[&Value]| {
            let own = |list: &[&Value]| list.iter().copied().cloned().collect::<Vec<_>>();
            merge(&own(first), &own(second))
        };
        let table: [(&[&Value], &[&Value], &[&Value]); 5] = [
            (&[&narrow], &[&other], &[&narrow, &other]),
            (&[&narrow], &[&narrow], &[&narrow]),
            (&[&narrow], &[&wide], &[&wide]),
            (&[&wide], &[&narrow], &[&wide]),
            (&[&narrow, &other], &[&all], &[&all]),
        ];
        for (row, (first, second, expected)) in table.into_iter().enumerate() {
            assert_eq!(merged(first, second).iter().collect::<Vec<_>>(), expected, "row {row}");
        }
        assert_eq!(merge(&vec![narrow; TOLERATIONS_COMPARED], &[wide]).len(), TOLERATIONS_COMPARED + 1);
    }

    #[test]
    fn tolerations_are_allowed_if_each_is_covered() {
        let (a, b) = (toleration("a", "Equal", "1", "NoSchedule"), toleration("b", "Exists", "", ""));
        let any_a = toleration("a", "Exists", "", "");
        assert!(are_allowed(&[], std::slice::from_ref(&a)));
        assert!(are_allowed(&[a.clone(), b.clone()], &[b.clone(), any_a.clone()]));
        assert!(!are_allowed(&[any_a], &[a.clone(), b]));
        assert!(!are_allowed(&vec![a.clone(); TOLERATIONS_COMPARED + 1], &vec![a; TOLERATIONS_COMPARED]));
    }

    #[test]
    fn shorter_toleration_seconds_do_not_cover_longer() {
        let mut short = toleration("a", "Exists", "", NO_EXECUTE);
        let forever = short.clone();
        short.set("tolerationSeconds", 10);
        assert!(covers(&forever, &short) && !covers(&short, &forever));
    }
}
