//! Conditions: one per type in a list, each with its last transition time.

use pilothouse_apimachinery::field_value::items_mut;
use pilothouse_apimachinery::value::Value;

/// Sets a condition by its type. Its transition time stays if its status does.
pub fn set(status: &mut Value, mut condition: Value, now: &str) {
    if !matches!(status.get("conditions"), Some(Value::Array(_))) {
        status.set("conditions", Value::array());
    }
    let current = items_mut(status, "conditions")
        .iter_mut()
        .find(|current| current.str("type") == condition.str("type"));
    let since = current
        .as_ref()
        .filter(|current| current.str("status") == condition.str("status"))
        .and_then(|current| current.get("lastTransitionTime"))
        .cloned();
    condition.set("lastTransitionTime", since.unwrap_or_else(|| Value::from(now)));
    if let Some(current) = current {
        *current = condition;
    } else if let Some(Value::Array(conditions)) = status.get_mut("conditions") {
        conditions.push(condition);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn transition_time_changes_with_the_status() {
        let mut status = Value::object();
        let set = |status: &mut Value, json: &str, now: &str| {
            super::set(status, object(json), now);
            status.get("conditions").unwrap().items().to_vec()
        };
        assert_eq!(set(&mut status, r#"{"type":"A","status":"True"}"#, "t1").len(), 1);
        let unchanged = set(&mut status, r#"{"type":"A","status":"True","reason":"R"}"#, "t2");
        assert_eq!(
            unchanged,
            [object(r#"{"type":"A","status":"True","reason":"R","lastTransitionTime":"t1"}"#)]
        );
        let changed = set(&mut status, r#"{"type":"A","status":"False"}"#, "t3");
        assert_eq!(changed, [object(r#"{"type":"A","status":"False","lastTransitionTime":"t3"}"#)]);
        assert_eq!(set(&mut status, r#"{"type":"B","status":"False"}"#, "t4").len(), 2);
    }
}
