//! Events. Both groups are stored in the form of the core group; events.k8s.io has stricter validation.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::meta::{self, IMMUTABLE};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::SYSTEM_NAMESPACE;

use crate::{
    DeletionRules, GarbageCollection, KindRules, MetaRevalidation, MetadataOrder, MetadataRules,
    Revalidation, UpdateRules, ValidationRules,
};

/// Events of the core group: any name, and hardly any metadata validation.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules {
        name: names::path_segment,
        requires_standard_finalizers: false,
        validation_order: MetadataOrder::Last,
        revalidation: MetaRevalidation::No,
        ..MetadataRules::DEFAULT
    },
    update: UpdateRules::CREATE_ON_UPDATE,
    validation: ValidationRules { validate, revalidation: Revalidation::Once, ..ValidationRules::DEFAULT },
    deletion: DeletionRules { garbage_collection: GarbageCollection::Unsupported, ..DeletionRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// Events of events.k8s.io.
pub const EVENTS_V1_RULES: KindRules = KindRules {
    metadata: MetadataRules {
        validation_order: MetadataOrder::After(validate_reported),
        revalidation: MetaRevalidation::Change,
        ..MetadataRules::DEFAULT
    },
    update: UpdateRules::CREATE_ON_UPDATE,
    validation: ValidationRules {
        validate: validate_new,
        validate_update: validate_new_update,
        ..ValidationRules::DEFAULT
    },
    deletion: DeletionRules { garbage_collection: GarbageCollection::Unsupported, ..DeletionRules::DEFAULT },
    ..KindRules::DEFAULT
};

const MAX_WORD_LENGTH: usize = 128;
const MAX_NOTE_LENGTH: usize = 1024;
const OTHER_NAMESPACE: &str = "does not match event.namespace";

/// Checks an event of the core group.
fn validate(event: &Value, errors: &mut ErrorList) {
    validate_common(event, "reportingComponent", errors);
}

/// Checks what both groups require of an event of events.k8s.io.
fn validate_reported(event: &Value, errors: &mut ErrorList) {
    validate_common(event, "reportingController", errors);
}

/// Checks what only events.k8s.io requires.
fn validate_new(event: &Value, errors: &mut ErrorList) {
    validate_series(event, errors);
    if event.get("eventTime").is_none() {
        errors.push(FieldError::required(&FieldPath::new("eventTime"), ""));
    }
    let mut invalid =
        |field: &str, detail: &str| errors.push(FieldError::invalid(&FieldPath::new(field), "\"\"", detail));
    let kind = event.str("type");
    if !matches!(kind, "Normal" | "Warning") {
        invalid("type", &format!("has invalid value: {kind}"));
    }
    for field in ["firstTimestamp", "lastTimestamp", "count"] {
        if event.get(field).is_some_and(|value| *value != Value::Int(0)) {
            invalid(field, "needs to be unset");
        }
    }
    let source = event.get("source");
    if source.is_some_and(|source| !source.str("component").is_empty() || !source.str("host").is_empty()) {
        invalid("source", "needs to be unset");
    }
}

/// Checks an updated event of events.k8s.io: only its series may change.
fn validate_new_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_common(new, "reportingController", errors);
    if new.get("series") != old.get("series") {
        validate_series(new, errors);
    }
    let immutable = [
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
    for (field, published) in immutable {
        let (new_value, old_value) = (FieldValue::top_level(new, field), FieldValue::top_level(old, field));
        // An absent string equals an empty one.
        let is_same = match (new_value.value, old_value.value) {
            (Value::String(_) | Value::Null, Value::String(_) | Value::Null) => {
                new_value.text() == old_value.text()
            }
            (new_value, old_value) => {
                pilothouse_apimachinery::field_value::same(Some(new_value), Some(old_value))
            }
        };
        if !is_same {
            errors.push(FieldError::invalid(
                &FieldPath::new(published),
                &render_field(field, &new_value),
                IMMUTABLE,
            ));
        }
    }
}

/// A value as the reference prints it in messages about events: times in long form, absent values as empty.
fn render_field(field: &str, node: &FieldValue<'_>) -> String {
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
        "related" => node.render(),
        _ if node.is_set() => node.render(),
        _ => quoted(""),
    }
}

fn validate_series(event: &Value, errors: &mut ErrorList) {
    let Some(series) = event.get("series") else { return };
    if series.get("count").and_then(Value::as_int).unwrap_or_default() < 2 {
        errors.push(FieldError::invalid(&FieldPath::new("series.count"), "\"\"", "should be at least 2"));
    }
    if series.get("lastObservedTime").is_none() {
        errors.push(FieldError::required(&FieldPath::new("series.lastObservedTime"), ""));
    }
}

/// Checks the common rules of both groups. An event with eventTime needs a reporting controller, an action and a reason.
fn validate_common(event: &Value, reporter: &str, errors: &mut ErrorList) {
    let namespace = meta::metadata(event).str("namespace");
    let involved_namespace = FieldValue::top_level(event, "involvedObject").child("namespace");
    let is_new = event.get("eventTime").is_some();
    let is_allowed = match (involved_namespace.is_empty(), is_new) {
        (true, true) => matches!(namespace, "default" | SYSTEM_NAMESPACE),
        (true, false) => matches!(namespace, "" | "default"),
        (false, true) => true,
        (false, false) => involved_namespace.text() == namespace,
    };
    if !is_allowed {
        involved_namespace.invalid_text(errors, OTHER_NAMESPACE);
    }
    if is_new {
        let component = FieldValue::top_level(event, "reportingComponent").named(FieldPath::new(reporter));
        component.need(errors);
        component.syntax(errors, names::qualified_name);
        for field in ["reportingInstance", "action", "reason"] {
            let node = FieldValue::top_level(event, field);
            node.need(errors);
            limit_length(&node, MAX_WORD_LENGTH, errors);
        }
        limit_length(&FieldValue::top_level(event, "message"), MAX_NOTE_LENGTH, errors);
    }
    meta::add_invalid(errors, &FieldPath::new("namespace"), namespace, names::dns_subdomain(namespace));
}

fn limit_length(node: &FieldValue<'_>, max: usize, errors: &mut ErrorList) {
    if node.text().len() > max {
        let detail = format!("can have at most {max} characters");
        errors.push(FieldError::invalid(&node.path, "\"\"", &detail));
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object, with};

    use super::*;

    #[test]
    fn event_namespace_must_match_the_involved_object() {
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
    fn event_update_treats_absent_string_as_empty() {
        let (mut old, mut new) = (new(), new());
        old.remove("reportingInstance");
        new.set("reportingInstance", "");
        let mut errors = ErrorList::new();
        validate_new_update(&new, &old, &mut errors);
        assert!(!errors.iter().any(|error| error.to_string().contains("immutable")));
    }

    #[test]
    fn events_v1_validation_refuses_each_violation() {
        let long = format!("\"{}\"", "x".repeat(129));
        let note = format!("\"{}\"", "x".repeat(1025));
        let validate_all = |event: &Value, errors: &mut ErrorList| {
            validate_reported(event, errors);
            validate_new(event, errors);
        };
        each_refused(
            &new(),
            validate_all,
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
        assert_eq!(errors, [], "the core group is less strict");
    }

    #[test]
    fn events_v1_update_may_change_only_the_series() {
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
