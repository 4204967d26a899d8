//! The three access reviews: SelfSubjectAccessReview, SubjectAccessReview and LocalSubjectAccessReview.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::label_selector::{check_values, is_set_based};
use pilothouse_apimachinery::limits::SELECTOR_RULES;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::selectors::FieldSelector;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::authorization::{Action, Decision, ExplainedDecision, Selection, Target};
use pilothouse_types::filter::{FieldRule, LabelRule};
use pilothouse_types::identity::Identity;

use pilothouse_apimachinery::selectors;

/// The subject of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewedSubject {
    /// The asking user.
    RequestUser,
    /// The user in the spec.
    SpecUser,
    /// The user in the spec, in one namespace.
    SpecUserInNamespace,
}

/// Validates a review, in the reference's order.
pub fn validate(review: &Value, subject: ReviewedSubject) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = FieldValue::top_level(review, "spec");
    let (resource, path) = (spec.child("resourceAttributes"), spec.child("nonResourceAttributes"));
    if resource.is_set() && path.is_set() {
        push_go_value_error(&mut errors, &path, "cannot be specified in combination with resourceAttributes");
    }
    if !resource.is_set() && !path.is_set() {
        let message = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        errors.push(FieldError::invalid(&resource.path, "\"null\"", message));
    }
    if subject != ReviewedSubject::RequestUser
        && spec.child("user").is_empty()
        && spec.child("groups").is_empty()
    {
        spec.child("user").invalid_text(&mut errors, "at least one of user or group must be specified");
    }
    check_selector(&resource.child("fieldSelector"), &mut errors, check_field_requirement);
    check_selector(&resource.child("labelSelector"), &mut errors, check_label_requirement);
    check_metadata(review, subject, &mut errors);
    if subject == ReviewedSubject::SpecUserInNamespace {
        let namespace = resource.child("namespace");
        if resource.is_set() && namespace.text() != meta::metadata(review).str("namespace") {
            namespace.invalid_text(&mut errors, "must match metadata.namespace");
        }
        if path.is_set() {
            push_go_value_error(&mut errors, &path, "disallowed on this kind of request");
        }
    }
    errors
}

/// An error whose value is printed in Go syntax.
fn push_go_value_error(errors: &mut ErrorList, field: &FieldValue<'_>, message: &str) {
    errors.push(FieldError::invalid(&field.path, "authorization.NonResourceAttributes{}", message));
}

fn check_metadata(review: &Value, subject: ReviewedSubject, errors: &mut ErrorList) {
    let is_local = subject == ReviewedSubject::SpecUserInNamespace;
    let metadata = meta::metadata(review).fields().into_iter().flatten();
    let mut extra = metadata.filter(|(field, value)| {
        let is_empty = value.is_null() || value.as_str() == Some("") || value.as_int() == Some(0);
        let is_empty = is_empty || value.fields().is_some_and(|fields| fields.is_empty());
        let is_empty = is_empty || matches!(value, Value::Array(items) if items.is_empty());
        !is_empty && *field != "managedFields" && !(is_local && *field == "namespace")
    });
    if extra.next().is_some() {
        let message = if is_local { "must be empty except for namespace" } else { "must be empty" };
        errors.push(FieldError::invalid(&FieldPath::new("metadata"), "v1.ObjectMeta{}", message));
    }
}

fn check_selector(
    selector: &FieldValue<'_>,
    errors: &mut ErrorList,
    check: fn(&FieldValue<'_>, &mut ErrorList),
) {
    if !selector.is_set() {
        return;
    }
    let (raw, requirements) = (selector.child("rawSelector"), selector.child("requirements"));
    match (raw.is_empty(), requirements.is_empty()) {
        (false, false) => raw.invalid_text(errors, "may not specified at the same time as requirements"),
        (true, true) => requirements.required(
            errors,
            &format!("when {} is specified, requirements or rawSelector is required", selector.path),
        ),
        _ => {}
    }
    requirements.items().for_each(|requirement| check(&requirement, errors));
}

fn check_operator(requirement: &FieldValue<'_>, errors: &mut ErrorList) {
    let operator = requirement.child("operator").text();
    if is_set_based(operator) {
        check_values(operator, &requirement.child("values"), errors);
    }
}

fn check_field_requirement(requirement: &FieldValue<'_>, errors: &mut ErrorList) {
    if requirement.child("key").is_empty() {
        requirement.child("key").required(errors, "must be specified");
    }
    check_operator(requirement, errors);
}

fn check_label_requirement(requirement: &FieldValue<'_>, errors: &mut ErrorList) {
    check_operator(requirement, errors);
    requirement.child("key").syntax(errors, names::qualified_name);
    requirement.child("values").items().for_each(|value| value.syntax(errors, names::label_value));
}

/// The attributes that a review asks to authorize.
pub struct ReviewAttributes {
    /// The action to authorize.
    pub action: Action,
    /// The selectors.
    pub selection: Selection,
    /// The selectors that could not be parsed, for the response.
    pub ignored: Vec<&'static str>,
}

/// The user in the spec.
pub fn subject(review: &Value) -> Identity {
    let spec = review.get("spec").unwrap_or(&Value::Null);
    let extra = spec.get("extra").and_then(Value::fields).into_iter().flatten();
    Identity {
        name: spec.str("user").to_owned(),
        uid: spec.str("uid").to_owned(),
        groups: strings(spec.get("groups")),
        extra: extra.map(|(key, values)| (key.clone(), strings(Some(values)))).collect(),
    }
}

fn strings(list: Option<&Value>) -> Vec<String> {
    let items = list.map(Value::items).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The attributes of a valid review. `selectors`: whether selectors are supported; otherwise they are removed.
pub fn parse(review: &mut Value, selectors: bool) -> ReviewAttributes {
    let spec = review.entry("spec");
    if !selectors && let Some(resource) = spec.get_mut("resourceAttributes") {
        resource.remove("fieldSelector");
        resource.remove("labelSelector");
    }
    let Some(resource) = spec.get("resourceAttributes") else {
        let path = spec.get("nonResourceAttributes").unwrap_or(&Value::Null);
        let target = Target::Path(path.str("path").to_owned());
        let action = Action { verb: path.str("verb").to_owned(), target };
        return ReviewAttributes { action, selection: Selection::default(), ignored: Vec::new() };
    };
    let text = |field: &str| resource.str(field).to_owned();
    let version = if resource.str("version").is_empty() { "*".to_owned() } else { text("version") };
    let target = Target::Resource {
        group: text("group"),
        version,
        resource: text("resource"),
        subresource: text("subresource"),
        namespace: text("namespace"),
        name: text("name"),
    };
    let (fields, fields_invalid) = field_rules(resource.get("fieldSelector"));
    let (labels, labels_invalid) = label_rules(resource.get("labelSelector"));
    let mut ignored = Vec::new();
    match (fields_invalid, fields.is_empty()) {
        (false, _) => {}
        (true, true) => ignored.push("spec.resourceAttributes.fieldSelector ignored due to parse error"),
        (true, false) => {
            ignored.push("spec.resourceAttributes.fieldSelector partially ignored due to parse error");
        }
    }
    match (labels_invalid, labels.is_empty()) {
        (false, _) => {}
        (true, true) => ignored.push("spec.resourceAttributes.labelSelector ignored due to parse error"),
        (true, false) => {
            ignored.push("spec.resourceAttributes.labelSelector partially ignored due to parse error");
        }
    }
    ReviewAttributes {
        action: Action { verb: text("verb"), target },
        selection: Selection { fields, labels },
        ignored,
    }
}

fn requirements(selector: &Value) -> &[Value] {
    let all = selector.get("requirements").map(Value::items).unwrap_or_default();
    all.get(..SELECTOR_RULES).unwrap_or(all)
}

/// Parses a raw field selector; `None` if it is invalid.
pub fn parse_fields(raw: &str) -> Option<Vec<FieldRule>> {
    let parsed = FieldSelector::parse(raw).ok()?;
    let rule = |term: &selectors::Term| {
        let (field, value) = (term.field.as_str().into(), term.value.as_str().into());
        if term.equals { FieldRule::Equals(field, value) } else { FieldRule::Differs(field, value) }
    };
    Some(parsed.terms().iter().map(rule).collect())
}

/// The rules of a field selector, and whether any part was invalid.
fn field_rules(selector: Option<&Value>) -> (Vec<FieldRule>, bool) {
    let Some(selector) = selector else { return (Vec::new(), false) };
    if requirements(selector).is_empty() {
        return match parse_fields(selector.str("rawSelector")) {
            Some(rules) => (rules, false),
            None => (Vec::new(), true),
        };
    }
    let (mut rules, mut is_invalid) = (Vec::new(), false);
    for requirement in requirements(selector) {
        let (key, values) = (requirement.str("key"), strings(requirement.get("values")));
        match (requirement.str("operator"), values.as_slice()) {
            ("In", [value]) => rules.push(FieldRule::Equals(key.into(), value.as_str().into())),
            ("NotIn", [value]) => rules.push(FieldRule::Differs(key.into(), value.as_str().into())),
            _ => is_invalid = true,
        }
    }
    (rules, is_invalid)
}

fn label_rules(selector: Option<&Value>) -> (Vec<LabelRule>, bool) {
    let Some(selector) = selector else { return (Vec::new(), false) };
    if requirements(selector).is_empty() {
        return match selectors::parse_labels(selector.str("rawSelector")) {
            Ok(rules) => (rules, false),
            Err(_) => (Vec::new(), true),
        };
    }
    let (mut rules, mut is_invalid) = (Vec::new(), false);
    for requirement in requirements(selector) {
        let values = strings(requirement.get("values"));
        let key = || requirement.str("key").into();
        let set = || values.iter().map(|value| value.as_str().into()).collect::<BTreeSet<Box<str>>>();
        match (requirement.str("operator"), values.is_empty()) {
            ("In", false) => rules.push(LabelRule::In(key(), set())),
            ("NotIn", false) => rules.push(LabelRule::NotIn(key(), set())),
            ("Exists", true) => rules.push(LabelRule::Exists(key())),
            ("DoesNotExist", true) => rules.push(LabelRule::Absent(key())),
            _ => is_invalid = true,
        }
    }
    (rules, is_invalid)
}

/// Sets the status of the review. `hint`: the binding or role that would allow the action, for users who may see it.
pub fn set_status(
    review: &mut Value,
    attributes: &ReviewAttributes,
    decision: &ExplainedDecision,
    hint: Option<String>,
) {
    let mut status = Value::object();
    status.set("allowed", decision.decision == Decision::Allowed);
    if matches!(decision.decision, Decision::Denied(_)) {
        status.set("denied", true);
    }
    let reasons: Vec<String> =
        [Some(decision.reason()), hint].into_iter().flatten().filter(|text| !text.is_empty()).collect();
    if !reasons.is_empty() {
        status.set("reason", reasons.join("\n"));
    }
    let errors = decision.error.iter().map(String::as_str).chain(attributes.ignored.iter().copied());
    let errors: Vec<&str> = errors.collect();
    if !errors.is_empty() {
        status.set("evaluationError", errors.join("; "));
    }
    review.set("status", status);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec;
    use pilothouse_apimachinery::schema::{GroupVersionKind, Registry};

    use super::*;

    fn review(kind: &str, body: &str) -> Value {
        let registry = Registry::builtin().unwrap();
        let kind = GroupVersionKind::new("authorization.k8s.io", "v1", kind);
        codec::decode_object(body.as_bytes(), &kind, &registry).unwrap().value
    }

    fn errors_of(kind: &str, subject: ReviewedSubject, body: &str) -> Vec<String> {
        validate(&review(kind, body), subject).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn invalid_reviews_are_refused() {
        let any = |body| errors_of("SubjectAccessReview", ReviewedSubject::SpecUser, body);
        assert_eq!(
            any("{}"),
            [
                "spec.resourceAttributes: Invalid value: \"null\": exactly one of nonResourceAttributes or \
                 resourceAttributes must be specified",
                "spec.user: Invalid value: \"\": at least one of user or group must be specified",
            ]
        );
        assert_eq!(any(r#"{"spec":{"groups":["g"],"resourceAttributes":{}}}"#), [""; 0]);
        assert_eq!(
            any(r#"{"metadata":{"labels":{"a":"b"}},"spec":{"user":"u","resourceAttributes":{}}}"#),
            ["metadata: Invalid value: v1.ObjectMeta{}: must be empty"]
        );
        let selectors = r#"{"spec":{"user":"u","resourceAttributes":{
            "fieldSelector":{"rawSelector":"a=b","requirements":[{"operator":"In"}]},
            "labelSelector":{}}}}"#;
        assert_eq!(
            any(selectors),
            [
                "spec.resourceAttributes.fieldSelector.rawSelector: Invalid value: \"a=b\": may not specified at the \
                 same time as requirements",
                "spec.resourceAttributes.fieldSelector.requirements[0].key: Required value: must be specified",
                "spec.resourceAttributes.fieldSelector.requirements[0].values: Required value: must be specified when \
                 `operator` is 'In' or 'NotIn'",
                "spec.resourceAttributes.labelSelector.requirements: Required value: when \
                 spec.resourceAttributes.labelSelector is specified, requirements or rawSelector is required",
            ]
        );
        let local_review =
            r#"{"metadata":{"namespace":"n"},"spec":{"user":"u","resourceAttributes":{"namespace":"m"}}}"#;
        assert_eq!(
            errors_of("LocalSubjectAccessReview", ReviewedSubject::SpecUserInNamespace, local_review),
            ["spec.resourceAttributes.namespace: Invalid value: \"m\": must match metadata.namespace"]
        );
    }

    /// A user or group is required; other absent fields are empty in the action.
    #[test]
    fn empty_fields_of_a_review_are_empty_in_the_action() {
        for (subject, is_refused) in [
            ("", true),
            (r#""user":"","groups":[],"#, true),
            (r#""uid":"u","extra":{"a":["b"]},"#, true),
            (r#""user":"u","#, false),
            (r#""groups":[""],"#, false),
        ] {
            let body = format!(r#"{{"spec":{{{subject}"resourceAttributes":{{}}}}}}"#);
            let errors = errors_of("SubjectAccessReview", ReviewedSubject::SpecUser, &body);
            assert_eq!(!errors.is_empty(), is_refused, "{subject}: {errors:?}");
        }
        let mut review_value = review("SelfSubjectAccessReview", r#"{"spec":{"resourceAttributes":{}}}"#);
        let attributes = parse(&mut review_value, true);
        let empty = String::new;
        let target = Target::Resource {
            group: empty(),
            version: "*".to_owned(),
            resource: empty(),
            subresource: empty(),
            namespace: empty(),
            name: empty(),
        };
        assert_eq!(attributes.action, Action { verb: empty(), target });
        // An invalid selector counts as none: the action is then for more objects, and not for fewer.
        for selector in [
            r#""fieldSelector":{"requirements":[{"key":"a","operator":"In","values":["1","2"]}]}"#,
            r#""fieldSelector":{"requirements":[{"key":"a","operator":"Exists"}]}"#,
            r#""fieldSelector":{"rawSelector":"a"}"#,
            r#""labelSelector":{"rawSelector":"a in ()b"}"#,
            r#""labelSelector":{"requirements":[{"key":"a","operator":""}]}"#,
        ] {
            let body = format!(r#"{{"spec":{{"resourceAttributes":{{{selector}}}}}}}"#);
            let attributes = super::parse(&mut review("SelfSubjectAccessReview", &body), true);
            assert_eq!(attributes.selection, Selection::default(), "{selector}");
            assert_eq!(attributes.ignored.len(), 1, "{selector}");
        }
    }

    #[test]
    fn invalid_selector_requirements_are_ignored_and_reported() {
        let body = r#"{"spec":{"resourceAttributes":{"verb":"list","resource":"pods",
            "fieldSelector":{"requirements":[{"key":"a","operator":"In","values":["1"]},{"key":"b","operator":"Odd"}]},
            "labelSelector":{"rawSelector":"a in ("}}}}"#;
        let mut review_value = review("SelfSubjectAccessReview", body);
        let attributes = parse(&mut review_value, true);
        assert_eq!(attributes.selection.fields, [FieldRule::Equals("a".into(), "1".into())]);
        assert_eq!(
            attributes.ignored,
            [
                "spec.resourceAttributes.fieldSelector partially ignored due to parse error",
                "spec.resourceAttributes.labelSelector ignored due to parse error"
            ]
        );
        let plain = super::parse(&mut review_value, false);
        assert_eq!(plain.selection, Selection::default());
        assert_eq!(review_value.get_path(&["spec", "resourceAttributes", "fieldSelector"]), None);
    }

    #[test]
    fn review_status_has_reason_hint_and_error() {
        let mut review_value =
            review("SelfSubjectAccessReview", r#"{"spec":{"nonResourceAttributes":{"path":"/x"}}}"#);
        let attributes = parse(&mut review_value, true);
        let mut decision = ExplainedDecision::from(Decision::Denied("no".into()));
        decision.error = Some("lost".into());
        set_status(&mut review_value, &attributes, &decision, Some("ask bob".into()));
        let status = review_value.get("status").unwrap();
        assert_eq!(
            (status.get("allowed"), status.get("denied")),
            (Some(&Value::Bool(false)), Some(&Value::Bool(true)))
        );
        assert_eq!((status.str("reason"), status.str("evaluationError")), ("no\nask bob", "lost"));
    }
}
