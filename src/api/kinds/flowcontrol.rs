//! FlowSchemas and PriorityLevelConfigurations.

use super::Errors;
use super::check::Node;
use crate::api::field::FieldError;
use crate::api::value::Value;
use crate::api::{meta, names};

const LARGEST_PRECEDENCE: i64 = 10_000;
const EXEMPT: &str = "exempt";

/// Checks a FlowSchema.
pub fn validate_schema(schema: &Value, errors: &mut Errors) {
    let spec = Node::of(schema, "spec");
    let precedence = spec.child("matchingPrecedence");
    if precedence.int().is_some_and(|number| number <= 0) {
        precedence.invalid(errors, "must be a positive value");
    }
    if precedence.number() > LARGEST_PRECEDENCE {
        precedence.invalid(errors, &format!("must not be greater than {LARGEST_PRECEDENCE}"));
    }
    if precedence.number() == 1 && meta::name(schema) != EXEMPT {
        precedence.invalid(errors, "only the schema named 'exempt' may have matchingPrecedence 1");
    }
    let method = spec.child("distinguisherMethod");
    if method.is_set() {
        method.child("type").one_of(errors, &["ByNamespace", "ByUser"]);
    }
    let level = spec.child("priorityLevelConfiguration").child("name");
    if level.is_empty() {
        level.required(errors, "must reference a priority level");
    } else {
        level.syntax(errors, names::dns_subdomain);
    }
    for rule in spec.child("rules").items() {
        validate_rule(&rule, errors);
    }
}

fn validate_rule(rule: &Node<'_>, errors: &mut Errors) {
    let subjects = rule.child("subjects");
    if subjects.is_empty() {
        subjects.required(errors, "subjects must contain at least one value");
    }
    for subject in subjects.items() {
        subject.child("kind").one_of(errors, &["Group", "ServiceAccount", "User"]);
    }
    let (resources, paths) = (rule.child("resourceRules"), rule.child("nonResourceRules"));
    if resources.is_empty() && paths.is_empty() {
        rule.required(errors, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    for part in resources.items().chain(paths.items()) {
        if part.child("verbs").is_empty() {
            part.child("verbs").required(errors, "verbs must contain at least one value");
        }
    }
}

/// Checks a changed FlowSchema.
pub fn validate_schema_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate_schema(new, errors);
}

/// Checks a PriorityLevelConfiguration.
pub fn validate_level(level: &Value, errors: &mut Errors) {
    let spec = Node::of(level, "spec");
    let (kind, limited, exempt) = (spec.child("type"), spec.child("limited"), spec.child("exempt"));
    if (meta::name(level) == EXEMPT) != (kind.text() == "Exempt") {
        kind.invalid_text(errors, "type must be 'Exempt' if and only if name is 'exempt'");
    }
    match kind.text() {
        "Exempt" => {
            if limited.is_set() {
                limited.forbidden(errors, "must be nil if the type is not Limited");
            }
            shares(&exempt, errors);
        }
        "Limited" => {
            if exempt.is_set() {
                exempt.forbidden(errors, "must be nil if the type is Limited");
            }
            if limited.is_set() {
                validate_limited(&limited, errors);
            } else {
                limited.required(errors, "must not be empty when type is Limited");
            }
        }
        _ => kind.one_of(errors, &["Exempt", "Limited"]),
    }
}

fn shares(part: &Node<'_>, errors: &mut Errors) {
    let shares = part.child("nominalConcurrencyShares");
    if shares.number() < 0 {
        shares.invalid(errors, "must be a non-negative integer");
    }
    let lendable = part.child("lendablePercent");
    if lendable.is_set() {
        lendable.in_range(errors, 0, 100);
    }
}

fn validate_limited(limited: &Node<'_>, errors: &mut Errors) {
    let response = limited.child("limitResponse");
    let queuing = response.child("queuing");
    match response.child("type").text() {
        "Reject" if queuing.is_set() => {
            queuing.forbidden(errors, "must be nil if limited.limitResponse.type is not Limited");
        }
        "Reject" => {}
        "Queue" if !queuing.is_set() => {
            queuing.required(errors, "must not be empty if limited.limitResponse.type is Limited");
        }
        "Queue" => validate_queuing(&queuing, errors),
        _ => response.child("type").one_of(errors, &["Queue", "Reject"]),
    }
    shares(limited, errors);
    let borrowing = limited.child("borrowingLimitPercent");
    if borrowing.number() < 0 {
        borrowing.invalid(errors, "if specified, must be a non-negative integer");
    }
}

fn validate_queuing(queuing: &Node<'_>, errors: &mut Errors) {
    const MOST_QUEUES: i64 = 10_000_000;
    for field in ["queueLengthLimit", "queues", "handSize"] {
        let node = queuing.child(field);
        if node.int().is_some_and(|number| number <= 0) {
            node.invalid(errors, "must be positive");
        }
    }
    let (queues, hand) = (queuing.child("queues"), queuing.child("handSize"));
    if queues.number() > MOST_QUEUES {
        queues.invalid(errors, &format!("must not be greater than {MOST_QUEUES}"));
    }
    if queues.is_set() && hand.number() > queues.number() {
        let wrong = format!("should not be greater than queues ({})", queues.number());
        errors.push(FieldError::invalid(&hand.path, &hand.shown(), &wrong));
    }
}

/// Checks a changed PriorityLevelConfiguration.
pub fn validate_level_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate_level(new, errors);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{each_refused, object};
    use super::*;

    #[test]
    fn each_rule_of_flow_control_refuses() {
        let schema = object(
            r#"{"metadata":{"name":"a"},"spec":{"matchingPrecedence":1000,"priorityLevelConfiguration":{"name":"x"},
                "distinguisherMethod":{"type":"ByUser"},"rules":[{"subjects":[{"kind":"User"}],"resourceRules":[{"verbs":["*"]}]}]}}"#,
        );
        each_refused(
            &schema,
            validate_schema,
            &[
                (
                    "spec.matchingPrecedence",
                    "20000",
                    "spec.matchingPrecedence: Invalid value: 20000: must not be greater than 10000",
                ),
                ("spec.matchingPrecedence", "-1", "must be a positive value"),
                (
                    "spec.matchingPrecedence",
                    "1",
                    "only the schema named 'exempt' may have matchingPrecedence 1",
                ),
                ("spec.distinguisherMethod.type", r#""X""#, "supported values: \"ByNamespace\", \"ByUser\""),
                (
                    "spec.priorityLevelConfiguration.name",
                    "null",
                    "Required value: must reference a priority level",
                ),
                ("spec.rules.0.subjects", "[]", "subjects must contain at least one value"),
                ("spec.rules.0.subjects.0.kind", r#""X""#, "\"Group\", \"ServiceAccount\", \"User\""),
                (
                    "spec.rules.0.resourceRules",
                    "[]",
                    "at least one of resourceRules and nonResourceRules has to be non-empty",
                ),
                ("spec.rules.0.resourceRules.0.verbs", "[]", "verbs must contain at least one value"),
            ],
        );
        let level = object(
            r#"{"metadata":{"name":"a"},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":0,
                "limitResponse":{"type":"Queue","queuing":{"queues":64,"handSize":8,"queueLengthLimit":50}}}}}"#,
        );
        each_refused(
            &level,
            validate_level,
            &[
                (
                    "spec.limited",
                    "null",
                    "spec.limited: Required value: must not be empty when type is Limited",
                ),
                ("spec.exempt", "{}", "spec.exempt: Forbidden: must be nil if the type is Limited"),
                ("spec.limited.nominalConcurrencyShares", "-1", "must be a non-negative integer"),
                ("spec.limited.lendablePercent", "101", "must be between 0 and 100, inclusive"),
                (
                    "spec.limited.limitResponse.type",
                    r#""Reject""#,
                    "must be nil if limited.limitResponse.type is not Limited",
                ),
                ("spec.limited.limitResponse.type", r#""X""#, "supported values: \"Queue\", \"Reject\""),
                (
                    "spec.limited.limitResponse.queuing.handSize",
                    "65",
                    "should not be greater than queues (64)",
                ),
                ("metadata.name", r#""exempt""#, "type must be 'Exempt' if and only if name is 'exempt'"),
            ],
        );
    }
}
