//! Rows of flow schemas and priority levels.

use std::cmp::Ordering;

use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, PrintedObject, cells, condition, int, text};

/// Cells of a flow schema.
pub fn flow_schema(object: &PrintedObject<'_>) -> Vec<Value> {
    let method = object.field("spec.distinguisherMethod").map_or(NONE, |method| method.str("type"));
    let dangling = condition(object.items("status.conditions"), "Dangling");
    cells![
        object.name(),
        object.text("spec.priorityLevelConfiguration.name"),
        object.int("spec.matchingPrecedence"),
        method,
        object.age(),
        dangling.map_or("?", |dangling| dangling.str("status"))
    ]
}

/// The matching order of flow schemas, in which rows are sorted.
pub fn by_precedence(a: &Value, b: &Value) -> Ordering {
    let key = |schema| (int(schema, "spec.matchingPrecedence"), text(schema, "metadata.name"));
    key(a).cmp(&key(b))
}

/// Cells of a priority level.
pub fn priority_level(object: &PrintedObject<'_>) -> Vec<Value> {
    let number = |path: &str, field: &str| match object.field(path) {
        None => Value::from(NONE),
        Some(parent) => Value::from(parent.get(field).and_then(Value::as_int).unwrap_or_default()),
    };
    const QUEUING: &str = "spec.limited.limitResponse.queuing";
    cells![
        object.name(),
        object.text("spec.type"),
        number("spec.limited", "nominalConcurrencyShares"),
        number(QUEUING, "queues"),
        number(QUEUING, "handSize"),
        number(QUEUING, "queueLengthLimit"),
        object.age()
    ]
}

#[cfg(test)]
mod tests {
    use crate::print::row_order;
    use crate::print::testing::{assert_cells, value};

    const GROUP: &str = "flowcontrol.apiserver.k8s.io";

    #[test]
    fn flow_schema_cells_show_level_and_dangling_condition() {
        assert_cells(
            GROUP,
            "FlowSchema",
            r#"{"metadata":{"name":"f"},"spec":{"priorityLevelConfiguration":{"name":"l"},"matchingPrecedence":10,
                "distinguisherMethod":{"type":"ByUser"}},"status":{"conditions":[{"type":"Dangling","status":"False"}]}}"#,
            r#"["f","l",10,"ByUser","<unknown>","False"]"#,
        );
        assert_cells(GROUP, "FlowSchema", "{}", r#"["","",0,"<none>","<unknown>","?"]"#);
    }

    #[test]
    fn flow_schema_rows_are_sorted_by_precedence() {
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
    fn priority_level_cells_show_limits() {
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
            assert_cells(
                GROUP,
                "PriorityLevelConfiguration",
                &object,
                &format!(r#"["l",{rest},"<unknown>"]"#),
            );
        }
    }
}
