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
    for (index, one) in all.iter().enumerate() {
        let earlier = merged.iter().any(|other| covers(other, one));
        let later = all.iter().skip(index + 1).any(|other| other != one && covers(other, one));
        if !earlier && !later {
            merged.push((*one).clone());
        }
    }
    merged
}

/// Whether an allowed toleration covers each of these. Lists longer than [`TOLERATIONS_COMPARED`] never pass: nobody needs them,
/// and the work grows with the product of both lengths.
pub fn all_within(asked: &[Value], allowed: &[Value]) -> bool {
    let few = asked.len().saturating_mul(allowed.len()) <= TOLERATIONS_COMPARED * TOLERATIONS_COMPARED;
    few && asked.iter().all(|one| allowed.iter().any(|wide| covers(wide, one)))
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
        && let Some(most) = seconds(wide)
        && seconds(narrow).is_none_or(|seconds| seconds > most)
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
    fn what_another_covers_is_left_out() {
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
        for (row, (first, second, wanted)) in table.into_iter().enumerate() {
            assert_eq!(merged(first, second).iter().collect::<Vec<_>>(), wanted, "row {row}");
        }
        assert_eq!(merge(&vec![narrow; TOLERATIONS_COMPARED], &[wide]).len(), TOLERATIONS_COMPARED + 1);
    }

    #[test]
    fn each_must_be_covered_by_one_that_is_allowed() {
        let (a, b) = (toleration("a", "Equal", "1", "NoSchedule"), toleration("b", "Exists", "", ""));
        let any_a = toleration("a", "Exists", "", "");
        assert!(all_within(&[], std::slice::from_ref(&a)));
        assert!(all_within(&[a.clone(), b.clone()], &[b.clone(), any_a.clone()]));
        assert!(!all_within(&[any_a], &[a.clone(), b]));
        assert!(!all_within(&vec![a.clone(); TOLERATIONS_COMPARED + 1], &vec![a; TOLERATIONS_COMPARED]));
    }

    #[test]
    fn a_shorter_stay_covers_no_longer_one() {
        let mut short = toleration("a", "Exists", "", NO_EXECUTE);
        let forever = short.clone();
        short.set("tolerationSeconds", 10);
        assert!(covers(&forever, &short) && !covers(&short, &forever));
    }
}
