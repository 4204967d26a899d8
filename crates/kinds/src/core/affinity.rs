//! Affinity, anti-affinity and topology spread constraints.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use crate::allowed::core_v1::TopologySpreadConstraint;

/// The field of required terms.
pub(super) const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Checks the affinity of a pod to nodes and other pods.
pub fn validate(affinity: &FieldValue<'_>, errors: &mut ErrorList) {
    let nodes = affinity.child("nodeAffinity");
    if nodes.child(REQUIRED).is_set() {
        validate_node_selector(&nodes.child(REQUIRED), errors);
    }
    for term in nodes.child(PREFERRED).items() {
        validate_weight(&term, errors);
        validate_node_term(&term.child("preference"), false, errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let pods = affinity.child(kind);
        for term in pods.child(REQUIRED).items() {
            validate_pod_term(&term, errors);
        }
        for term in pods.child(PREFERRED).items() {
            validate_weight(&term, errors);
            validate_pod_term(&term.child("podAffinityTerm"), errors);
        }
    }
}

fn validate_weight(term: &FieldValue<'_>, errors: &mut ErrorList) {
    let weight = term.child("weight").number();
    if !(1..=100).contains(&weight) {
        let path = term.child("weight").path;
        errors.push(FieldError::invalid(&path, &weight.to_string(), "must be in the range 1-100"));
    }
}

/// Checks a selector of nodes.
pub fn validate_node_selector(selector: &FieldValue<'_>, errors: &mut ErrorList) {
    let terms = selector.child("nodeSelectorTerms");
    if terms.is_empty() {
        terms.required(errors, "must have at least one node selector term");
    }
    for term in terms.items() {
        validate_node_term(&term, true, errors);
    }
}

/// The values of preferred terms need not be valid label values.
fn validate_node_term(term: &FieldValue<'_>, is_required: bool, errors: &mut ErrorList) {
    for requirement in term.child("matchExpressions").items() {
        let values = requirement.child("values");
        match requirement.child("operator").text() {
            operator if label_selector::is_set_based(operator) => {
                label_selector::check_values(operator, &values, errors);
            }
            "Gt" | "Lt" if values.len() != 1 => {
                values.required(errors, "must be specified single value when `operator` is 'Lt' or 'Gt'");
            }
            "Gt" | "Lt" => {}
            _ => requirement.child("operator").invalid_text(errors, "not a valid selector operator"),
        }
        requirement.child("key").syntax(errors, names::qualified_name);
        for value in values.items().filter(|_| is_required) {
            value.syntax(errors, names::label_value);
        }
    }
    for requirement in term.child("matchFields").items() {
        let values = requirement.child("values");
        match requirement.child("operator").text() {
            "In" | "NotIn" if values.len() == 1 => {}
            "In" | "NotIn" => {
                let detail =
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                values.required(errors, detail);
            }
            _ => requirement.child("operator").invalid_text(errors, "not a valid selector operator"),
        }
        if requirement.child("key").text() == "metadata.name" {
            for value in values.items() {
                value.syntax(errors, names::dns_subdomain);
            }
        } else {
            requirement.child("key").invalid_text(errors, "not a valid field selector key");
        }
    }
}

fn validate_pod_term(term: &FieldValue<'_>, errors: &mut ErrorList) {
    label_selector::validate(&term.child("labelSelector"), errors);
    label_selector::validate(&term.child("namespaceSelector"), errors);
    for namespace in term.child("namespaces").items() {
        FieldValue { value: namespace.value, path: term.child("namespace").path }
            .syntax(errors, names::dns_label);
    }
    validate_label_keys(term, errors);
    let key = term.child("topologyKey");
    if key.is_empty() {
        key.required(errors, "can not be empty");
    }
    key.syntax(errors, names::qualified_name);
}

/// Checks matchLabelKeys and mismatchLabelKeys.
fn validate_label_keys(term: &FieldValue<'_>, errors: &mut ErrorList) {
    for keys in ["matchLabelKeys", "mismatchLabelKeys"].iter().filter_map(|field| term.opt(field)) {
        if keys.is_empty() {
            continue;
        }
        if !term.has("labelSelector") {
            keys.forbidden(errors, "must not be specified when labelSelector is not set");
            continue;
        }
        for key in keys.items() {
            key.syntax(errors, names::qualified_name);
        }
    }
    let matched = term.read("matchLabelKeys").items();
    if let Some(selector) = term.opt("labelSelector") {
        let labels = selector.read("matchLabels");
        let last: BTreeMap<&str, usize> =
            matched.iter().enumerate().filter_map(|(index, key)| Some((key.as_str()?, index))).collect();
        let mut seen = BTreeSet::new();
        for expression in selector.read("matchExpressions").items() {
            let key = expression.str("key");
            let is_known = labels.get(key).is_some() || !seen.insert(key);
            if let Some(index) = last.get(key).filter(|_| is_known) {
                let detail = "exists in both matchLabelKeys and labelSelector";
                errors.push(FieldError::invalid(&term.path.index(*index), &quoted(key), detail));
            }
        }
    }
    let mismatched: BTreeSet<&str> =
        term.read("mismatchLabelKeys").items().iter().filter_map(Value::as_str).collect();
    for (index, key) in matched.iter().enumerate() {
        let Some(key) = key.as_str().filter(|key| mismatched.contains(key)) else { continue };
        let path = term.path.child("matchLabelKeys").index(index);
        let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
        errors.push(FieldError::invalid(&path, &quoted(key), detail));
    }
}

/// Checks topology spread constraints.
pub fn validate_spread_constraints(list: &FieldValue<'_>, errors: &mut ErrorList) {
    let pair = |constraint: &Value| {
        (constraint.str("topologyKey").to_owned(), constraint.str("whenUnsatisfiable").to_owned())
    };
    let last: BTreeMap<_, usize> =
        list.value.items().iter().enumerate().map(|(index, constraint)| (pair(constraint), index)).collect();
    for (index, constraint) in list.items().enumerate() {
        require_positive(&constraint.child("maxSkew"), errors);
        let (key, action) = (constraint.child("topologyKey"), constraint.child("whenUnsatisfiable"));
        if key.is_empty() {
            key.required(errors, "can not be empty");
        }
        action.one_of(errors, TopologySpreadConstraint::WHEN_UNSATISFIABLE);
        if last.get(&pair(constraint.value)).is_some_and(|last| *last > index) {
            let path = constraint.child("{topologyKey, whenUnsatisfiable}").path;
            let pair = quoted(&format!("{{{}, {}}}", key.text(), action.text()));
            errors.push(FieldError::duplicate(&path, &pair));
        }
        let domains = constraint.child("minDomains");
        if domains.is_set() {
            require_positive(&domains, errors);
            if action.text() != "DoNotSchedule" {
                let detail = "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ";
                domains.invalid(errors, &format!("{detail}{}", action.text()));
            }
        }
        constraint
            .child("nodeAffinityPolicy")
            .one_of_if_set(errors, TopologySpreadConstraint::NODE_AFFINITY_POLICY);
        constraint
            .child("nodeTaintsPolicy")
            .one_of_if_set(errors, TopologySpreadConstraint::NODE_TAINTS_POLICY);
        validate_spread_label_keys(&constraint, errors);
        label_selector::validate(&constraint.child("labelSelector"), errors);
    }
}

fn require_positive(number: &FieldValue<'_>, errors: &mut ErrorList) {
    if number.number() <= 0 {
        let rendered = number.number().to_string();
        errors.push(FieldError::invalid(&number.path, &rendered, "must be greater than zero"));
    }
}

fn validate_spread_label_keys(constraint: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(keys) = constraint.opt("matchLabelKeys").filter(|keys| !keys.is_empty()) else { return };
    let selector = constraint.child("labelSelector");
    if !selector.is_set() {
        keys.forbidden(errors, "must not be specified when labelSelector is not set");
    }
    let expression_keys: BTreeSet<&str> =
        selector.read("matchExpressions").items().iter().map(|expression| expression.str("key")).collect();
    for key in keys.items() {
        key.syntax(errors, names::qualified_name);
        if selector.read("matchLabels").get(key.text()).is_some() || expression_keys.contains(key.text()) {
            key.invalid(errors, "exists in both matchLabelKeys and labelSelector");
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn affinity_validation_refuses_each_violation() {
        let base = object(&format!(
            r#"{{"a":{{"nodeAffinity":{{"{REQUIRED}":{{"nodeSelectorTerms":[{{"matchExpressions":[
                    {{"key":"k","operator":"In","values":["v"]}}],
                    "matchFields":[{{"key":"metadata.name","operator":"In","values":["n"]}}]}}]}},
                "{PREFERRED}":[{{"weight":1,"preference":{{}}}}]}},
              "podAffinity":{{"{REQUIRED}":[{{"topologyKey":"z"}}]}}}}}}"#
        ));
        let field_path = |rest: &str| format!("a.nodeAffinity.{REQUIRED}.{rest}");
        let expression = |field: &str| field_path(&format!("nodeSelectorTerms.0.matchExpressions.0.{field}"));
        let fields = |field: &str| field_path(&format!("nodeSelectorTerms.0.matchFields.0.{field}"));
        let (terms, values, operator, key) = (
            field_path("nodeSelectorTerms"),
            expression("values"),
            expression("operator"),
            expression("key"),
        );
        let (field_values, field_key) = (fields("values"), fields("key"));
        let weight = format!("a.nodeAffinity.{PREFERRED}.0.weight");
        let topology = format!("a.podAffinity.{REQUIRED}.0.topologyKey");
        let keys = format!("a.podAffinity.{REQUIRED}.0.matchLabelKeys");
        each_refused(
            &base,
            |object, errors| validate(&FieldValue::top_level(object, "a"), errors),
            &[
                (&terms, "[]", "Required value: must have at least one node selector term"),
                (&values, "[]", "must be specified when `operator` is 'In' or 'NotIn'"),
                (&operator, r#""Exists""#, "may not be specified when `operator` is 'Exists'"),
                (&operator, r#""X""#, "not a valid selector operator"),
                (&key, r#""-""#, "name part must consist of"),
                (&field_values, "[]", "must be only one value"),
                (&field_key, r#""x""#, "not a valid field selector key"),
                (&weight, "0", "must be in the range 1-100"),
                (&topology, r#""-""#, "topologyKey: Invalid value"),
                (&values, r#"["-"]"#, "values[0]: Invalid value: \"-\": a valid label"),
                (
                    &keys,
                    r#"["a"]"#,
                    "matchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
                ),
            ],
        );
    }

    #[test]
    fn spread_constraint_validation_refuses_each_violation() {
        let base = object(
            r#"{"s":[{"maxSkew":1,"topologyKey":"z","whenUnsatisfiable":"DoNotSchedule","minDomains":1,
                "labelSelector":{"matchLabels":{"a":"b"}}}]}"#,
        );
        each_refused(
            &base,
            |object, errors| validate_spread_constraints(&FieldValue::top_level(object, "s"), errors),
            &[
                ("s.0.maxSkew", "0", "s[0].maxSkew: Invalid value: 0: must be greater than zero"),
                ("s.0.topologyKey", "null", "s[0].topologyKey: Required value: can not be empty"),
                ("s.0.minDomains", "0", "must be greater than zero"),
                ("s.0.whenUnsatisfiable", r#""ScheduleAnyway""#, "can only use minDomains if"),
                (
                    "s.0.matchLabelKeys",
                    r#"["a"]"#,
                    "matchLabelKeys[0]: Invalid value: \"a\": exists in both matchLabelKeys and labelSelector",
                ),
                ("s.0.matchLabelKeys", r#"["-"]"#, "matchLabelKeys[0]: Invalid value: \"-\": name part"),
                ("s.0.nodeTaintsPolicy", r#""X""#, "supported values: \"Honor\", \"Ignore\""),
            ],
        );
        let constraint = r#"{"maxSkew":1,"topologyKey":"z","whenUnsatisfiable":"DoNotSchedule"}"#;
        let duplicate = object(&format!(r#"{{"s":[{constraint},{constraint}]}}"#));
        let mut errors = ErrorList::new();
        validate_spread_constraints(&FieldValue::top_level(&duplicate, "s"), &mut errors);
        assert_eq!(
            errors[0].to_string(),
            "s[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{z, DoNotSchedule}\""
        );
    }
}
