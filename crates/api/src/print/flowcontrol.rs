//! Rows of flow schemas and priority levels.

use std::cmp::Ordering;

use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, PrintedObject, cells, condition, int, text};

/// Cells of a flow schema.
pub fn flow_schema(it: &PrintedObject<'_>) -> Vec<Value> {
    let method = it.at("spec.distinguisherMethod").map_or(NONE, |method| method.str("type"));
    let dangling = condition(it.items("status.conditions"), "Dangling");
    cells![
        it.name(),
        it.text("spec.priorityLevelConfiguration.name"),
        it.int("spec.matchingPrecedence"),
        method,
        it.age(),
        dangling.map_or("?", |dangling| dangling.str("status"))
    ]
}

/// The order in which flow schemas are tried, which is the one they are shown in.
pub fn by_precedence(one: &Value, other: &Value) -> Ordering {
    let key = |schema| (int(schema, "spec.matchingPrecedence"), text(schema, "metadata.name"));
    key(one).cmp(&key(other))
}

/// Cells of a priority level.
pub fn priority_level(it: &PrintedObject<'_>) -> Vec<Value> {
    let number = |of: &str, field: &str| match it.at(of) {
        None => Value::from(NONE),
        Some(of) => Value::from(of.get(field).and_then(Value::as_int).unwrap_or_default()),
    };
    const QUEUING: &str = "spec.limited.limitResponse.queuing";
    cells![
        it.name(),
        it.text("spec.type"),
        number("spec.limited", "nominalConcurrencyShares"),
        number(QUEUING, "queues"),
        number(QUEUING, "handSize"),
        number(QUEUING, "queueLengthLimit"),
        it.age()
    ]
}

#[cfg(test)]
mod tests {
    use crate::print::row_order;
    use crate::print::testing::{shows, value};

    const GROUP: &str = "flowcontrol.apiserver.k8s.io";

    #[test]
    fn flow_schemas_tell_whether_their_level_exists() {
        shows(
            GROUP,
            "FlowSchema",
            r#"{"metadata":{"name":"f"},"spec":{"priorityLevelConfiguration":{"name":"l"},"matchingPrecedence":10,
                "distinguisherMethod":{"type":"ByUser"}},"status":{"conditions":[{"type":"Dangling","status":"False"}]}}"#,
            r#"["f","l",10,"ByUser","<unknown>","False"]"#,
        );
        shows(GROUP, "FlowSchema", "{}", r#"["","",0,"<none>","<unknown>","?"]"#);
    }

    #[test]
    fn flow_schemas_are_shown_in_the_order_they_are_tried() {
        let schema = |name: &str, precedence: i64| {
            value(&format!(
                r#"{{"metadata":{{"name":"{name}"}},"spec":{{"matchingPrecedence":{precedence}}}}}"#
            ))
        };
        let mut all = [schema("a", 100), schema("c", 9), schema("b", 9)];
        all.sort_by(row_order(GROUP, "FlowSchema").unwrap());
        assert_eq!(all, [schema("b", 9), schema("c", 9), schema("a", 100)]);
        assert!(row_order(GROUP, "PriorityLevelConfiguration").is_none());
    }

    #[test]
    fn levels_show_numbers_where_they_are_limited() {
        for (spec, rest) in [
            (r#"{"type":"Exempt"}"#, r#""Exempt","<none>","<none>","<none>","<none>""#),
            (
                r#"{"type":"Limited","limited":{"nominalConcurrencyShares":5,"limitResponse":{"type":"Reject"}}}"#,
                r#""Limited",5,"<none>","<none>","<none>""#,
            ),
            (
                r#"{"type":"Limited","limited":{"limitResponse":{"queuing":{"queues":64,"handSize":6,"queueLengthLimit":50}}}}"#,
                r#""Limited",0,64,6,50"#,
            ),
        ] {
            let object = format!(r#"{{"metadata":{{"name":"l"}},"spec":{spec}}}"#);
            shows(GROUP, "PriorityLevelConfiguration", &object, &format!(r#"["l",{rest},"<unknown>"]"#));
        }
    }
}
