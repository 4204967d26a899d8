//! Events. Both groups are stored in the form of the core group; events.k8s.io has stricter validation.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::meta::{self, IMMUTABLE};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::SYSTEM_NAMESPACE;

use crate::{BASE, KindRules, MetaRevalidation, Revalidation};

/// Events of the core group: any name, and hardly any metadata validation.
pub const RULES: KindRules = KindRules {
    name: names::path_segment,
    known_finalizers: false,
    meta_last: true,
    create_on_update: true,
    meta_revalidation: MetaRevalidation::No,
    garbage_collected: false,
    validate,
    revalidation: Revalidation::Once,
    ..BASE
};

/// Events of events.k8s.io.
pub const NEW_RULES: KindRules = KindRules {
    create_on_update: true,
    garbage_collected: false,
    validate_first: validate_reported,
    validate: validate_new,
    validate_update: validate_new_update,
    ..BASE
};

const LONGEST_WORD: usize = 128;
const LONGEST_NOTE: usize = 1024;
const ELSEWHERE: &str = "does not match event.namespace";

/// Checks an event of the core group.
fn validate(event: &Value, errors: &mut ErrorList) {
    common(event, "reportingComponent", errors);
}

/// Checks what both groups require of an event of events.k8s.io.
fn validate_reported(event: &Value, errors: &mut ErrorList) {
    common(event, "reportingController", errors);
}

/// Checks what only events.k8s.io requires.
fn validate_new(event: &Value, errors: &mut ErrorList) {
    series(event, errors);
    if event.get("eventTime").is_none() {
        errors.push(FieldError::required(&FieldPath::new("eventTime"), ""));
    }
    let mut wrong =
        |field: &str, why: &str| errors.push(FieldError::invalid(&FieldPath::new(field), "\"\"", why));
    let kind = event.str("type");
    if !matches!(kind, "Normal" | "Warning") {
        wrong("type", &format!("has invalid value: {kind}"));
    }
    for field in ["firstTimestamp", "lastTimestamp", "count"] {
        if event.get(field).is_some_and(|value| *value != Value::Int(0)) {
            wrong(field, "needs to be unset");
        }
    }
    let source = event.get("source");
    if source.is_some_and(|source| !source.str("component").is_empty() || !source.str("host").is_empty()) {
        wrong("source", "needs to be unset");
    }
}

/// Checks an updated event of events.k8s.io: only its series may change.
fn validate_new_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    common(new, "reportingController", errors);
    if new.get("series") != old.get("series") {
        series(new, errors);
    }
    let fixed = [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    for (field, shown) in fixed {
        let (now, before) = (FieldValue::of(new, field), FieldValue::of(old, field));
        // An absent string equals an empty one.
        let is_same = match (now.value, before.value) {
            (Value::String(_) | Value::Null, Value::String(_) | Value::Null) => now.text() == before.text(),
            (now, before) => pilothouse_apimachinery::field_value::same(Some(now), Some(before)),
        };
        if !is_same {
            errors.push(FieldError::invalid(&FieldPath::new(shown), &printed(field, &now), IMMUTABLE));
        }
    }
}

/// A value as messages about events print it: times in long form, absent values as empty.
fn printed(field: &str, node: &FieldValue<'_>) -> String {
    match field {
        "firstTimestamp" | "lastTimestamp" | "eventTime" => {
            let text = if node.is_set() { node.text() } else { "0001-01-01T00:00:00Z" };
            let (date, time) = text.trim_end_matches('Z').split_once('T').unwrap_or((text, ""));
            let time =
                if time.contains('.') { time.trim_end_matches('0').trim_end_matches('.') } else { time };
            format!("{date} {time} +0000 UTC")
        }
        "count" => node.number().to_string(),
        "involvedObject" | "source" if !node.is_set() => "{}".to_owned(),
        "related" => node.shown(),
        _ if node.is_set() => node.shown(),
        _ => quoted(""),
    }
}

fn series(event: &Value, errors: &mut ErrorList) {
    let Some(series) = event.get("series") else { return };
    if series.get("count").and_then(Value::as_int).unwrap_or_default() < 2 {
        errors.push(FieldError::invalid(&FieldPath::new("series.count"), "\"\"", "should be at least 2"));
    }
    if series.get("lastObservedTime").is_none() {
        errors.push(FieldError::required(&FieldPath::new("series.lastObservedTime"), ""));
    }
}

/// Checks the common rules of both groups. An event with eventTime needs a reporting controller, an action and a reason.
fn common(event: &Value, reporter: &str, errors: &mut ErrorList) {
    let own = meta::of(event).str("namespace");
    let about = FieldValue::of(event, "involvedObject").child("namespace");
    let is_new = event.get("eventTime").is_some();
    let beside = match (about.is_empty(), is_new) {
        (true, true) => matches!(own, "default" | SYSTEM_NAMESPACE),
        (true, false) => matches!(own, "" | "default"),
        (false, true) => true,
        (false, false) => about.text() == own,
    };
    if !beside {
        about.invalid_text(errors, ELSEWHERE);
    }
    if is_new {
        let component = FieldValue::of(event, "reportingComponent").named(FieldPath::new(reporter));
        component.need(errors);
        component.syntax(errors, names::qualified_name);
        for field in ["reportingInstance", "action", "reason"] {
            let node = FieldValue::of(event, field);
            node.need(errors);
            at_most(&node, LONGEST_WORD, errors);
        }
        at_most(&FieldValue::of(event, "message"), LONGEST_NOTE, errors);
    }
    meta::texts(errors, &FieldPath::new("namespace"), own, names::dns_subdomain(own));
}

fn at_most(node: &FieldValue<'_>, most: usize, errors: &mut ErrorList) {
    if node.text().len() > most {
        let wrong = format!("can have at most {most} characters");
        errors.push(FieldError::invalid(&node.path, "\"\"", &wrong));
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object, with};

    use super::*;

    #[test]
    fn an_event_lives_beside_what_it_is_about() {
        each_refused(
            &object(r#"{"metadata":{"namespace":"a"},"involvedObject":{"namespace":"a"}}"#),
            validate,
            &[
                (
                    "involvedObject.namespace",
                    r#""b""#,
                    "involvedObject.namespace: Invalid value: \"b\": does not match event.namespace",
                ),
                ("involvedObject.namespace", "null", "Invalid value: \"\": does not match event.namespace"),
            ],
        );
        each_refused(&object(r#"{"metadata":{"namespace":"default"},"involvedObject":{}}"#), validate, &[]);
    }

    fn new() -> Value {
        object(
            r#"{"metadata":{"namespace":"kube-system"},"eventTime":"2024-01-01T00:00:00.500000Z","type":"Normal","reason":"r",
                "action":"a","reportingComponent":"c","reportingInstance":"i","series":{"count":2,"lastObservedTime":"2024-01-01T00:00:00.000000Z"}}"#,
        )
    }

    #[test]
    fn a_text_that_is_not_there_is_an_empty_one() {
        let (mut old, mut new) = (new(), new());
        old.remove("reportingInstance");
        new.set("reportingInstance", "");
        let mut errors = ErrorList::new();
        validate_new_update(&new, &old, &mut errors);
        assert!(!errors.iter().any(|error| error.to_string().contains("immutable")));
    }

    #[test]
    fn each_rule_of_a_new_event_refuses() {
        let long = format!("\"{}\"", "x".repeat(129));
        let note = format!("\"{}\"", "x".repeat(1025));
        let whole = |event: &Value, errors: &mut ErrorList| {
            validate_reported(event, errors);
            validate_new(event, errors);
        };
        each_refused(
            &new(),
            whole,
            &[
                ("metadata.namespace", r#""a""#, "does not match event.namespace"),
                ("reportingComponent", r#""-""#, "reportingController: Invalid value: \"-\""),
                ("reportingInstance", "null", "reportingInstance: Required value"),
                (
                    "reportingInstance",
                    &long,
                    "reportingInstance: Invalid value: \"\": can have at most 128 characters",
                ),
                ("action", "null", "action: Required value"),
                ("reason", "null", "reason: Required value"),
                ("message", &note, "message: Invalid value: \"\": can have at most 1024 characters"),
                ("type", r#""X""#, "type: Invalid value: \"\": has invalid value: X"),
                ("count", "1", "count: Invalid value: \"\": needs to be unset"),
                (
                    "firstTimestamp",
                    r#""2024-01-01T00:00:00Z""#,
                    "firstTimestamp: Invalid value: \"\": needs to be unset",
                ),
                ("source", r#"{"host":"h"}"#, "source: Invalid value: \"\": needs to be unset"),
                ("series.count", "1", "series.count: Invalid value: \"\": should be at least 2"),
                ("series.lastObservedTime", "null", "series.lastObservedTime: Required value"),
            ],
        );
        let mut errors = ErrorList::new();
        validate(&with(&new(), "count", "1"), &mut errors);
        assert_eq!(errors, [], "the core takes what the newer group does not");
    }

    #[test]
    fn only_the_series_of_a_new_event_goes_on() {
        each_change_refused(
            &new(),
            validate_new_update,
            &[
                ("message", r#""m""#, "message: Invalid value: \"m\": field is immutable"),
                ("type", r#""Warning""#, "type: Invalid value: \"Warning\": field is immutable"),
                ("action", r#""b""#, "action: Invalid value: \"b\": field is immutable"),
                (
                    "eventTime",
                    r#""2024-01-01T00:00:01.250000Z""#,
                    "eventTime: Invalid value: 2024-01-01 00:00:01.25 +0000 UTC: field is immutable",
                ),
            ],
        );
    }
}
