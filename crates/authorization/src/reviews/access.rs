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
    Oneself,
    /// The user in the spec.
    Anybody,
    /// The user in the spec, in one namespace.
    AnybodyIn,
}

/// Validates a review, in the reference's order.
pub fn validate(review: &Value, about: ReviewedSubject) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = FieldValue::of(review, "spec");
    let (resource, path) = (spec.child("resourceAttributes"), spec.child("nonResourceAttributes"));
    if resource.is_set() && path.is_set() {
        shown(&mut errors, &path, "cannot be specified in combination with resourceAttributes");
    }
    if !resource.is_set() && !path.is_set() {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        errors.push(FieldError::invalid(&resource.path, "\"null\"", why));
    }
    if about != ReviewedSubject::Oneself && spec.child("user").is_empty() && spec.child("groups").is_empty() {
        spec.child("user").invalid_text(&mut errors, "at least one of user or group must be specified");
    }
    check_selector(&resource.child("fieldSelector"), &mut errors, check_field_requirement);
    check_selector(&resource.child("labelSelector"), &mut errors, check_label_requirement);
    check_metadata(review, about, &mut errors);
    if about == ReviewedSubject::AnybodyIn {
        let namespace = resource.child("namespace");
        if resource.is_set() && namespace.text() != meta::of(review).str("namespace") {
            namespace.invalid_text(&mut errors, "must match metadata.namespace");
        }
        if path.is_set() {
            shown(&mut errors, &path, "disallowed on this kind of request");
        }
    }
    errors
}

/// An error whose value is printed in Go syntax.
fn shown(errors: &mut ErrorList, node: &FieldValue<'_>, why: &str) {
    errors.push(FieldError::invalid(&node.path, "authorization.NonResourceAttributes{}", why));
}

fn check_metadata(review: &Value, about: ReviewedSubject, errors: &mut ErrorList) {
    let local = about == ReviewedSubject::AnybodyIn;
    let says = meta::of(review).fields().into_iter().flatten();
    let mut extra = says.filter(|(field, value)| {
        let void = value.is_null() || value.as_str() == Some("") || value.as_int() == Some(0);
        let void = void || value.fields().is_some_and(|fields| fields.is_empty());
        let void = void || matches!(value, Value::Array(items) if items.is_empty());
        !void && *field != "managedFields" && !(local && *field == "namespace")
    });
    if extra.next().is_some() {
        let why = if local { "must be empty except for namespace" } else { "must be empty" };
        errors.push(FieldError::invalid(&FieldPath::new("metadata"), "v1.ObjectMeta{}", why));
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

/// The question of a review.
pub struct Question {
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
        groups: words(spec.get("groups")),
        extra: extra.map(|(key, values)| (key.clone(), words(Some(values)))).collect(),
    }
}

fn words(list: Option<&Value>) -> Vec<String> {
    let items = list.map(Value::items).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The question of a valid review. `selectors`: whether selectors count; otherwise they are removed.
pub fn question(review: &mut Value, selectors: bool) -> Question {
    let spec = review.entry("spec");
    if !selectors && let Some(resource) = spec.get_mut("resourceAttributes") {
        resource.remove("fieldSelector");
        resource.remove("labelSelector");
    }
    let Some(resource) = spec.get("resourceAttributes") else {
        let path = spec.get("nonResourceAttributes").unwrap_or(&Value::Null);
        let target = Target::Path(path.str("path").to_owned());
        let action = Action { verb: path.str("verb").to_owned(), target };
        return Question { action, selection: Selection::default(), ignored: Vec::new() };
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
    let (fields, fields_wrong) = field_rules(resource.get("fieldSelector"));
    let (labels, labels_wrong) = label_rules(resource.get("labelSelector"));
    let mut ignored = Vec::new();
    match (fields_wrong, fields.is_empty()) {
        (false, _) => {}
        (true, true) => ignored.push("spec.resourceAttributes.fieldSelector ignored due to parse error"),
        (true, false) => {
            ignored.push("spec.resourceAttributes.fieldSelector partially ignored due to parse error");
        }
    }
    match (labels_wrong, labels.is_empty()) {
        (false, _) => {}
        (true, true) => ignored.push("spec.resourceAttributes.labelSelector ignored due to parse error"),
        (true, false) => {
            ignored.push("spec.resourceAttributes.labelSelector partially ignored due to parse error");
        }
    }
    Question {
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
    let (mut rules, mut wrong) = (Vec::new(), false);
    for requirement in requirements(selector) {
        let (key, values) = (requirement.str("key"), words(requirement.get("values")));
        match (requirement.str("operator"), values.as_slice()) {
            ("In", [value]) => rules.push(FieldRule::Equals(key.into(), value.as_str().into())),
            ("NotIn", [value]) => rules.push(FieldRule::Differs(key.into(), value.as_str().into())),
            _ => wrong = true,
        }
    }
    (rules, wrong)
}

fn label_rules(selector: Option<&Value>) -> (Vec<LabelRule>, bool) {
    let Some(selector) = selector else { return (Vec::new(), false) };
    if requirements(selector).is_empty() {
        return match selectors::parse_labels(selector.str("rawSelector")) {
            Ok(rules) => (rules, false),
            Err(_) => (Vec::new(), true),
        };
    }
    let (mut rules, mut wrong) = (Vec::new(), false);
    for requirement in requirements(selector) {
        let values = words(requirement.get("values"));
        let key = || requirement.str("key").into();
        let set = || values.iter().map(|value| value.as_str().into()).collect::<BTreeSet<Box<str>>>();
        match (requirement.str("operator"), values.is_empty()) {
            ("In", false) => rules.push(LabelRule::In(key(), set())),
            ("NotIn", false) => rules.push(LabelRule::NotIn(key(), set())),
            ("Exists", true) => rules.push(LabelRule::Exists(key())),
            ("DoesNotExist", true) => rules.push(LabelRule::Absent(key())),
            _ => wrong = true,
        }
    }
    (rules, wrong)
}

/// Writes the response into the review. `hint`: what would have to exist, for users who may see it.
pub fn answer(review: &mut Value, question: &Question, verdict: &ExplainedDecision, hint: Option<String>) {
    let mut status = Value::object();
    status.set("allowed", verdict.decision == Decision::Allowed);
    if matches!(verdict.decision, Decision::Denied(_)) {
        status.set("denied", true);
    }
    let reasons: Vec<String> =
        [Some(verdict.reason()), hint].into_iter().flatten().filter(|text| !text.is_empty()).collect();
    if !reasons.is_empty() {
        status.set("reason", reasons.join("\n"));
    }
    let trouble = verdict.error.iter().map(String::as_str).chain(question.ignored.iter().copied());
    let trouble: Vec<&str> = trouble.collect();
    if !trouble.is_empty() {
        status.set("evaluationError", trouble.join("; "));
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

    fn wrong(kind: &str, about: ReviewedSubject, body: &str) -> Vec<String> {
        validate(&review(kind, body), about).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_rule_refuses() {
        let any = |body| wrong("SubjectAccessReview", ReviewedSubject::Anybody, body);
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
        let local =
            r#"{"metadata":{"namespace":"n"},"spec":{"user":"u","resourceAttributes":{"namespace":"m"}}}"#;
        assert_eq!(
            wrong("LocalSubjectAccessReview", ReviewedSubject::AnybodyIn, local),
            ["spec.resourceAttributes.namespace: Invalid value: \"m\": must match metadata.namespace"]
        );
    }

    /// What empty parts of a review mean: a subject of some sort is needed, and what is left out of the question is empty in it.
    #[test]
    fn empty_parts_of_a_review() {
        for (subject, is_refused) in [
            ("", true),
            (r#""user":"","groups":[],"#, true),
            (r#""uid":"u","extra":{"a":["b"]},"#, true),
            (r#""user":"u","#, false),
            (r#""groups":[""],"#, false),
        ] {
            let body = format!(r#"{{"spec":{{{subject}"resourceAttributes":{{}}}}}}"#);
            let errors = wrong("SubjectAccessReview", ReviewedSubject::Anybody, &body);
            assert_eq!(!errors.is_empty(), is_refused, "{subject}: {errors:?}");
        }
        let mut asked = review("SelfSubjectAccessReview", r#"{"spec":{"resourceAttributes":{}}}"#);
        let question = question(&mut asked, true);
        let nothing = String::new;
        let target = Target::Resource {
            group: nothing(),
            version: "*".to_owned(),
            resource: nothing(),
            subresource: nothing(),
            namespace: nothing(),
            name: nothing(),
        };
        assert_eq!(question.action, Action { verb: nothing(), target });
        // A selector that cannot be read counts as none: the question is about more objects, and not about fewer.
        for selector in [
            r#""fieldSelector":{"requirements":[{"key":"a","operator":"In","values":["1","2"]}]}"#,
            r#""fieldSelector":{"requirements":[{"key":"a","operator":"Exists"}]}"#,
            r#""fieldSelector":{"rawSelector":"a"}"#,
            r#""labelSelector":{"rawSelector":"a in ()b"}"#,
            r#""labelSelector":{"requirements":[{"key":"a","operator":""}]}"#,
        ] {
            let body = format!(r#"{{"spec":{{"resourceAttributes":{{{selector}}}}}}}"#);
            let question = super::question(&mut review("SelfSubjectAccessReview", &body), true);
            assert_eq!(question.selection, Selection::default(), "{selector}");
            assert_eq!(question.ignored.len(), 1, "{selector}");
        }
    }

    #[test]
    fn selectors_are_read_as_far_as_they_can_be() {
        let body = r#"{"spec":{"resourceAttributes":{"verb":"list","resource":"pods",
            "fieldSelector":{"requirements":[{"key":"a","operator":"In","values":["1"]},{"key":"b","operator":"Odd"}]},
            "labelSelector":{"rawSelector":"a in ("}}}}"#;
        let mut asked = review("SelfSubjectAccessReview", body);
        let question = question(&mut asked, true);
        assert_eq!(question.selection.fields, [FieldRule::Equals("a".into(), "1".into())]);
        assert_eq!(
            question.ignored,
            [
                "spec.resourceAttributes.fieldSelector partially ignored due to parse error",
                "spec.resourceAttributes.labelSelector ignored due to parse error"
            ]
        );
        let plain = super::question(&mut asked, false);
        assert_eq!(plain.selection, Selection::default());
        assert_eq!(asked.at(&["spec", "resourceAttributes", "fieldSelector"]), None);
    }

    #[test]
    fn the_answer_says_why_and_what_went_wrong() {
        let mut asked =
            review("SelfSubjectAccessReview", r#"{"spec":{"nonResourceAttributes":{"path":"/x"}}}"#);
        let question = question(&mut asked, true);
        let mut verdict = ExplainedDecision::from(Decision::Denied("no".into()));
        verdict.error = Some("lost".into());
        answer(&mut asked, &question, &verdict, Some("ask bob".into()));
        let status = asked.get("status").unwrap();
        assert_eq!(
            (status.get("allowed"), status.get("denied")),
            (Some(&Value::Bool(false)), Some(&Value::Bool(true)))
        );
        assert_eq!((status.str("reason"), status.str("evaluationError")), ("no\nask bob", "lost"));
    }
}
