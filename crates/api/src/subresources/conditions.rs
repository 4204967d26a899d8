//! Conditions: one per type in a list, each with its last transition time.

use pilothouse_apimachinery::field_value::items_mut;
use pilothouse_apimachinery::value::Value;

/// Sets a condition by its type. Its transition time stays if its status does.
pub fn put(status: &mut Value, mut condition: Value, now: &str) {
    if !matches!(status.get("conditions"), Some(Value::Array(_))) {
        status.set("conditions", Value::array());
    }
    let known =
        items_mut(status, "conditions").iter_mut().find(|known| known.str("type") == condition.str("type"));
    let since = known
        .as_ref()
        .filter(|known| known.str("status") == condition.str("status"))
        .and_then(|known| known.get("lastTransitionTime"))
        .cloned();
    condition.set("lastTransitionTime", since.unwrap_or_else(|| Value::from(now)));
    if let Some(known) = known {
        *known = condition;
    } else if let Some(Value::Array(all)) = status.get_mut("conditions") {
        all.push(condition);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn the_time_moves_with_the_status() {
        let mut status = Value::object();
        let put = |status: &mut Value, json: &str, now: &str| {
            super::put(status, object(json), now);
            status.get("conditions").unwrap().items().to_vec()
        };
        assert_eq!(put(&mut status, r#"{"type":"A","status":"True"}"#, "t1").len(), 1);
        let again = put(&mut status, r#"{"type":"A","status":"True","reason":"R"}"#, "t2");
        assert_eq!(again, [object(r#"{"type":"A","status":"True","reason":"R","lastTransitionTime":"t1"}"#)]);
        let turned = put(&mut status, r#"{"type":"A","status":"False"}"#, "t3");
        assert_eq!(turned, [object(r#"{"type":"A","status":"False","lastTransitionTime":"t3"}"#)]);
        assert_eq!(put(&mut status, r#"{"type":"B","status":"False"}"#, "t4").len(), 2);
    }
}
