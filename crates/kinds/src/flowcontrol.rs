//! FlowSchemas and PriorityLevelConfigurations.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{AUTHENTICATED, MASTERS, UNAUTHENTICATED};
use pilothouse_apimachinery::{meta, names};

use pilothouse_apimachinery::well_known::flows::{CATCH_ALL, EXEMPT};

use super::{COUNTED, KindRules, MetaRevalidation, Revalidation, StatusMeta, messages};

/// The rules of a FlowSchema.
pub const FLOW_SCHEMA: KindRules = KindRules {
    status_meta: StatusMeta::Kept,
    validate: validate_schema,
    revalidation: Revalidation::Once,
    validate_status,
    meta_revalidation: MetaRevalidation::Whole,
    ..COUNTED
};

/// The rules of a PriorityLevelConfiguration.
pub const PRIORITY_LEVEL_CONFIGURATION: KindRules = KindRules {
    status_meta: StatusMeta::Kept,
    validate: validate_level,
    revalidation: Revalidation::Once,
    validate_status,
    meta_revalidation: MetaRevalidation::Whole,
    ..COUNTED
};

const LARGEST_PRECEDENCE: i64 = 10_000;
const VERBS: [&str; 9] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
/// A version of old that had no other way to say "none" forbids this annotation in all newer ones.
const ZERO_SHARES: &str = "flowcontrol.k8s.io/concurrency-shares-defaults-to-zero";

/// A map of a few fields.
fn map(fields: Vec<(&str, Value)>) -> Value {
    let mut object = Value::object();
    for (field, value) in fields {
        object.set(field, value);
    }
    object
}

/// What the two schemas that must exist say, and nothing else.
fn fixed_schema(name: &str) -> Option<Value> {
    let (precedence, method, groups): (i64, _, &[&str]) = match name {
        EXEMPT => (1, None, &[MASTERS]),
        CATCH_ALL => (LARGEST_PRECEDENCE, Some("ByUser"), &[UNAUTHENTICATED, AUTHENTICATED]),
        _ => return None,
    };
    let all = || Value::from(vec!["*"]);
    let subject =
        |group: &&str| map(vec![("kind", "Group".into()), ("group", map(vec![("name", (*group).into())]))]);
    let resources = map(vec![
        ("verbs", all()),
        ("apiGroups", all()),
        ("resources", all()),
        ("namespaces", all()),
        ("clusterScope", true.into()),
    ]);
    let paths = map(vec![("verbs", all()), ("nonResourceURLs", all())]);
    let rule = map(vec![
        ("subjects", groups.iter().map(subject).collect::<Vec<_>>().into()),
        ("resourceRules", vec![resources].into()),
        ("nonResourceRules", vec![paths].into()),
    ]);
    let mut spec = map(vec![
        ("matchingPrecedence", precedence.into()),
        ("priorityLevelConfiguration", map(vec![("name", name.into())])),
        ("rules", vec![rule].into()),
    ]);
    if let Some(method) = method {
        spec.set("distinguisherMethod", map(vec![("type", method.into())]));
    }
    Some(spec)
}

/// What the level for all the rest says, and nothing else.
fn fixed_level() -> Value {
    map(vec![
        ("type", "Limited".into()),
        (
            "limited",
            map(vec![
                ("nominalConcurrencyShares", 5.into()),
                ("lendablePercent", 0.into()),
                ("limitResponse", map(vec![("type", "Reject".into())])),
            ]),
        ),
    ])
}

/// Checks a FlowSchema.
fn validate_schema(schema: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(schema, "spec");
    let precedence = spec.child("matchingPrecedence");
    let mut bad = |why: &str| {
        errors.push(FieldError::invalid(&precedence.path, &precedence.number().to_string(), why));
    };
    if precedence.number() <= 0 {
        bad("must be a positive value");
    }
    if precedence.number() > LARGEST_PRECEDENCE {
        bad(&format!("must not be greater than {LARGEST_PRECEDENCE}"));
    }
    if precedence.number() == 1 && meta::name(schema) != EXEMPT {
        bad("only the schema named 'exempt' may have matchingPrecedence 1");
    }
    let method = spec.child("distinguisherMethod");
    let words = ["ByNamespace", "ByUser"];
    if method.is_set() && !words.contains(&method.child("type").text()) {
        let shown =
            format!("flowcontrol.FlowDistinguisherMethod{{Type:{}}}", quoted(method.child("type").text()));
        errors.push(FieldError::not_supported(&method.child("type").path, &shown, &words));
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
    let name = meta::name(schema);
    if fixed_schema(name).is_some_and(|fixed| !same(Some(&fixed), Some(spec.value))) {
        let wrong = format!("spec of '{name}' must equal the fixed value");
        messages::structure(&spec.path, "flowcontrol.FlowSchemaSpec", errors, &wrong);
    }
    conditions(schema, errors);
}

fn conditions(object: &Value, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for condition in FieldValue::of(object, "status").child("conditions").items() {
        let kind = condition.child("type");
        if !seen.insert(kind.text()) {
            errors.push(FieldError::duplicate(&kind.path, &quoted(kind.text())));
        }
        if kind.is_empty() {
            kind.required(errors, "must not be empty");
        }
    }
}

fn validate_rule(rule: &FieldValue<'_>, errors: &mut ErrorList) {
    let subjects = rule.child("subjects");
    if subjects.is_empty() {
        subjects.required(errors, "subjects must contain at least one value");
    }
    for subject in subjects.items() {
        validate_subject(&subject, errors);
    }
    let (resources, paths) = (rule.child("resourceRules"), rule.child("nonResourceRules"));
    if resources.is_empty() && paths.is_empty() {
        rule.required(errors, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    for part in resources.items() {
        resource_rule(&part, errors);
    }
    for part in paths.items() {
        path_rule(&part, errors);
    }
}

fn validate_subject(subject: &FieldValue<'_>, errors: &mut ErrorList) {
    let kinds = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = subject.child("kind").text();
    let Some((_, field)) = kinds.iter().find(|(word, _)| *word == kind) else {
        subject.child("kind").one_of(errors, &["Group", "ServiceAccount", "User"]);
        return;
    };
    let who = subject.child(field);
    if who.is_set() {
        let (name, namespace) = (who.child("name"), who.child("namespace"));
        name.need(errors);
        if kind == "ServiceAccount" {
            if name.text() != "*" {
                name.syntax_if_set(errors, names::dns_subdomain);
            }
            if namespace.is_empty() {
                namespace.required(errors, "must specify namespace for service account");
            } else {
                namespace.syntax(errors, names::dns_label);
            }
        }
    } else {
        who.required(errors, &format!("{field} is required when subject kind is '{kind}'"));
    }
    for (word, other) in kinds.iter().filter(|(word, other)| *word != kind && subject.child(other).is_set()) {
        let wrong = format!("{other} is forbidden when subject kind is not '{word}'");
        subject.child(other).forbidden(errors, &wrong);
    }
}

/// Whether a list says "all"; then it may say nothing else.
fn says_all(list: &FieldValue<'_>, what: &str, errors: &mut ErrorList) -> bool {
    let all = list.items().any(|item| item.text() == "*");
    if all && list.len() > 1 {
        list.invalid(errors, &format!("if '*' is present, must not specify other {what}"));
    }
    all
}

fn verbs(list: &FieldValue<'_>, errors: &mut ErrorList) {
    if list.is_empty() {
        list.required(errors, "verbs must contain at least one value");
    } else if !says_all(list, "verbs", errors) && list.items().any(|verb| !VERBS.contains(&verb.text())) {
        errors.push(FieldError::not_supported(&list.path, &messages::shown_texts(list, "string"), &VERBS));
    }
}

fn resource_rule(rule: &FieldValue<'_>, errors: &mut ErrorList) {
    verbs(&rule.child("verbs"), errors);
    for (field, what, one) in
        [("apiGroups", "api groups", "api group"), ("resources", "resources", "resource")]
    {
        let list = rule.child(field);
        if list.is_empty() {
            list.required(errors, &format!("resource rules must supply at least one {one}"));
        } else {
            says_all(&list, what, errors);
        }
    }
    let namespaces = rule.child("namespaces");
    if namespaces.is_empty() && !rule.child("clusterScope").is_true() {
        let wrong = "resource rules that are not cluster scoped must supply at least one namespace";
        namespaces.required(errors, wrong);
    } else if !says_all(&namespaces, "namespaces", errors) {
        for namespace in namespaces.items() {
            for wrong in names::dns_label(namespace.text()) {
                let why = format!("each member of this list must be '*' or a DNS-1123 label; {wrong}");
                namespace.invalid_text(errors, &why);
            }
        }
    }
}

fn path_rule(rule: &FieldValue<'_>, errors: &mut ErrorList) {
    verbs(&rule.child("verbs"), errors);
    let urls = rule.child("nonResourceURLs");
    if urls.is_empty() {
        urls.required(errors, "nonResourceURLs must contain at least one value");
    } else if !says_all(&urls, "non-resource URLs", errors) {
        for url in urls.items() {
            if let Some(wrong) = bad_url(url.text()) {
                url.invalid_text(errors, wrong);
            }
        }
    }
}

fn bad_url(path: &str) -> Option<&'static str> {
    let stars = path.matches('*').count();
    match path {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !path.starts_with('/') => Some("must start with slash"),
        _ if path.contains(' ') => Some("must not contain white-space"),
        _ if path.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !path.ends_with("/*")) => {
            Some("wildcard can only do suffix matching")
        }
        _ => None,
    }
}

/// Checks a changed status of either kind.
fn validate_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    conditions(new, errors);
}

/// Checks a PriorityLevelConfiguration.
fn validate_level(level: &Value, errors: &mut ErrorList) {
    let (name, spec) = (meta::name(level), FieldValue::of(level, "spec"));
    if meta::of(level).at(&["annotations", ZERO_SHARES]).is_some() {
        let path = FieldPath::new("metadata").child("annotations");
        errors.push(FieldError::forbidden(&path, &format!("annotation '{ZERO_SHARES}' is forbidden")));
    }
    let (kind, limited, exempt) = (spec.child("type"), spec.child("limited"), spec.child("exempt"));
    if (name == EXEMPT) != (kind.text() == "Exempt") {
        kind.invalid_text(errors, "type must be 'Exempt' if and only if name is 'exempt'");
    }
    match kind.text() {
        "Exempt" => {
            if limited.is_set() {
                limited.forbidden(errors, "must be nil if the type is not Limited");
            }
            shares(&exempt, errors);
            lendable(&exempt, errors);
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
    fixed_levels(name, &spec, errors);
    conditions(level, errors);
}

fn fixed_levels(name: &str, spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut wrong = |what: &str| {
        let why = format!("spec of '{name}'{what} must equal the fixed value");
        messages::structure(&spec.path, "flowcontrol.PriorityLevelConfigurationSpec", errors, &why);
    };
    if name == EXEMPT && (spec.child("type").text() != "Exempt" || spec.child("limited").is_set()) {
        wrong(" except the 'spec.exempt' field");
    }
    if name == CATCH_ALL && !same(Some(&fixed_level()), Some(spec.value)) {
        wrong("");
    }
}

fn shares(part: &FieldValue<'_>, errors: &mut ErrorList) {
    let shares = part.child("nominalConcurrencyShares");
    if shares.number() < 0 {
        shares.invalid(errors, "must be a non-negative integer");
    }
}

fn lendable(part: &FieldValue<'_>, errors: &mut ErrorList) {
    let lendable = part.child("lendablePercent");
    if !(0..=100).contains(&lendable.number()) {
        lendable.invalid(errors, "must be between 0 and 100, inclusive");
    }
}

fn validate_limited(limited: &FieldValue<'_>, errors: &mut ErrorList) {
    shares(limited, errors);
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
    lendable(limited, errors);
    let borrowing = limited.child("borrowingLimitPercent");
    if borrowing.number() < 0 {
        borrowing.invalid(errors, "if specified, must be a non-negative integer");
    }
}

fn validate_queuing(queuing: &FieldValue<'_>, errors: &mut ErrorList) {
    const MOST_QUEUES: i64 = 10_000_000;
    /// How many bits of a hash tell the queues of a flow.
    const HASH_BITS: f64 = 60.0;
    let (length, queues, hand) =
        (queuing.child("queueLengthLimit"), queuing.child("queues"), queuing.child("handSize"));
    let mut bad = |node: &FieldValue<'_>, why: &str| {
        errors.push(FieldError::invalid(&node.path, &node.number().to_string(), why));
    };
    if length.number() <= 0 {
        bad(&length, "must be positive");
    }
    if queues.number() <= 0 {
        bad(&queues, "must be positive");
    } else if queues.number() > MOST_QUEUES {
        bad(&queues, &format!("must not be greater than {MOST_QUEUES}"));
    }
    let (of, cards) = (queues.number(), hand.number());
    if cards <= 0 {
        bad(&hand, "must be positive");
    } else if cards > of {
        bad(&hand, &format!("should not be greater than queues ({of})"));
    } else {
        // Both are at most as large as an i32, which a double holds exactly.
        #[allow(clippy::cast_precision_loss, reason = "the numbers are small")]
        let bits = ((of as f64).log2() * cards as f64).ceil();
        if bits > HASH_BITS {
            let why = format!(
                "required entropy bits of deckSize {of} and handSize {cards} should not be greater than {HASH_BITS}"
            );
            bad(&hand, &why);
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn each_rule_of_flow_control_refuses() {
        let schema = object(
            r#"{"metadata":{"name":"a"},"spec":{"matchingPrecedence":1000,"priorityLevelConfiguration":{"name":"x"},
                "distinguisherMethod":{"type":"ByUser"},"rules":[{"subjects":[{"kind":"User","user":{"name":"u"}}],
                "resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"namespaces":["*"]}],
                "nonResourceRules":[{"verbs":["get"],"nonResourceURLs":["/x"]}]}]}}"#,
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
                    "spec.matchingPrecedence",
                    "null",
                    "spec.matchingPrecedence: Invalid value: 0: must be a positive value",
                ),
                (
                    "spec.rules.0.subjects.0.user",
                    "null",
                    "subjects[0].user: Required value: user is required when subject kind is 'User'",
                ),
                ("spec.rules.0.subjects.0.user.name", "null", "subjects[0].user.name: Required value"),
                (
                    "spec.rules.0.subjects.0.group",
                    r#"{"name":"g"}"#,
                    "group is forbidden when subject kind is not 'Group'",
                ),
                (
                    "spec.rules.0.subjects.0",
                    r#"{"kind":"ServiceAccount","serviceAccount":{"name":"*"}}"#,
                    "must specify namespace for service account",
                ),
                (
                    "spec.rules.0.subjects.0",
                    r#"{"kind":"ServiceAccount","serviceAccount":{"name":"A","namespace":"n"}}"#,
                    "serviceAccount.name: Invalid value: \"A\"",
                ),
                (
                    "spec.rules.0.resourceRules.0.verbs",
                    r#"["get","x"]"#,
                    "verbs: Unsupported value: []string{\"get\", \"x\"}: supported values: \"create\"",
                ),
                (
                    "spec.rules.0.resourceRules.0.verbs",
                    r#"["*","get"]"#,
                    "if '*' is present, must not specify other verbs",
                ),
                (
                    "spec.rules.0.resourceRules.0.apiGroups",
                    "[]",
                    "resource rules must supply at least one api group",
                ),
                (
                    "spec.rules.0.resourceRules.0.resources",
                    r#"["*","x"]"#,
                    "if '*' is present, must not specify other resources",
                ),
                (
                    "spec.rules.0.resourceRules.0.namespaces",
                    "[]",
                    "resource rules that are not cluster scoped must supply at least one namespace",
                ),
                (
                    "spec.rules.0.resourceRules.0.namespaces",
                    r#"["A"]"#,
                    "each member of this list must be '*' or a DNS-1123 label; a lowercase",
                ),
                (
                    "spec.rules.0.nonResourceRules.0.nonResourceURLs",
                    "[]",
                    "nonResourceURLs must contain at least one value",
                ),
                ("spec.rules.0.nonResourceRules.0.nonResourceURLs", r#"["x"]"#, "must start with slash"),
                (
                    "spec.rules.0.nonResourceRules.0.nonResourceURLs",
                    r#"["/x*"]"#,
                    "wildcard can only do suffix matching",
                ),
                (
                    "spec.distinguisherMethod.type",
                    r#""X""#,
                    "Unsupported value: flowcontrol.FlowDistinguisherMethod{Type:\"X\"}: supported values: \"ByNamespace\", \"ByUser\"",
                ),
                (
                    "status.conditions",
                    r#"[{"type":"A"},{"type":"A"}]"#,
                    "status.conditions[1].type: Duplicate value: \"A\"",
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
                    "metadata.annotations",
                    r#"{"flowcontrol.k8s.io/concurrency-shares-defaults-to-zero":""}"#,
                    "metadata.annotations: Forbidden: annotation",
                ),
                ("spec.limited.lendablePercent", "101", "must be between 0 and 100, inclusive"),
                (
                    "spec.limited.limitResponse.queuing.queueLengthLimit",
                    "null",
                    "queueLengthLimit: Invalid value: 0: must be positive",
                ),
                (
                    "spec.limited.limitResponse.queuing.handSize",
                    "11",
                    "required entropy bits of deckSize 64 and handSize 11 should not be greater than 60",
                ),
                (
                    "spec.limited.limitResponse.queuing.handSize",
                    "65",
                    "should not be greater than queues (64)",
                ),
            ],
        );
    }

    #[test]
    fn the_objects_that_must_exist_are_what_they_must_be() {
        for name in [EXEMPT, CATCH_ALL] {
            let mut schema = Value::object();
            schema.entry("metadata").set("name", name);
            schema.set("spec", fixed_schema(name).unwrap());
            let mut errors = ErrorList::new();
            validate_schema(&schema, &mut errors);
            assert_eq!(errors, [], "{name}");
            schema.entry("spec").set("distinguisherMethod", map(vec![("type", "ByNamespace".into())]));
            validate_schema(&schema, &mut errors);
            assert_eq!(errors.len(), 1, "{name}");
        }
        let mut level = map(vec![("spec", fixed_level())]);
        level.entry("metadata").set("name", CATCH_ALL);
        each_refused(
            &level,
            validate_level,
            &[(
                "spec.limited.nominalConcurrencyShares",
                "6",
                "spec of 'catch-all' must equal the fixed value",
            )],
        );
        let exempt = object(
            r#"{"metadata":{"name":"exempt"},"spec":{"type":"Exempt","exempt":{"nominalConcurrencyShares":5}}}"#,
        );
        each_refused(
            &exempt,
            validate_level,
            &[("spec.exempt.lendablePercent", "-1", "must be between 0 and 100")],
        );
    }
}
