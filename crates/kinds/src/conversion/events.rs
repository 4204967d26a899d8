//! Events of events.k8s.io: the same fields under newer names.

use pilothouse_apimachinery::value::Value;

use super::rename;

/// The name of a field in the core group, and its name in events.k8s.io.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("source", "deprecatedSource"),
    ("message", "note"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Fields that the core group encodes even when they are empty.
const PRINTED_EMPTY: [&str; 2] = ["reportingComponent", "reportingInstance"];

/// From events.k8s.io to the core group.
pub(super) fn to_core(event: &mut Value) {
    for (core, new) in NAMES {
        rename(event, new, core);
    }
    for field in PRINTED_EMPTY {
        if event.get(field).is_none() {
            event.set(field, "");
        }
    }
}

/// From the core group to events.k8s.io.
pub(super) fn from_core(event: &mut Value) {
    for field in PRINTED_EMPTY {
        if event.str(field).is_empty() {
            event.remove(field);
        }
    }
    for (core, new) in NAMES {
        rename(event, core, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_round_trips_through_core() {
        let mut event = Value::object();
        event.entry("regarding").set("name", "p");
        event.set("note", "n");
        event.set("reportingController", "c");
        event.set("deprecatedCount", 3);
        event.set("eventTime", "2024-01-01T00:00:00.000000Z");
        let original = event.clone();
        to_core(&mut event);
        assert_eq!(event.get_path(&["involvedObject", "name"]).and_then(Value::as_str), Some("p"));
        assert_eq!((event.str("message"), event.str("reportingComponent")), ("n", "c"));
        assert_eq!(event.get("count"), Some(&Value::Int(3)));
        assert_eq!(event.get("reportingInstance"), Some(&Value::from("")));
        assert_eq!(event.get("note"), None);
        from_core(&mut event);
        assert_eq!(event, original);
    }
}
