//! FlowSchemas and PriorityLevelConfigurations.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{AUTHENTICATED, MASTERS, UNAUTHENTICATED};
use pilothouse_apimachinery::{meta, names};

use pilothouse_apimachinery::well_known::flows::{CATCH_ALL, EXEMPT};

use super::{
    KindRules, MetaRevalidation, MetadataRules, ResetFields, Revalidation, StatusMeta, StatusRules,
    ValidationRules, messages,
};

/// The rules of a FlowSchema.
pub const FLOW_SCHEMA: KindRules = KindRules {
    metadata: MetadataRules { revalidation: MetaRevalidation::Whole, ..MetadataRules::SPEC_GENERATION },
    validation: ValidationRules {
        validate: validate_schema,
        revalidation: Revalidation::Once,
        ..ValidationRules::DEFAULT
    },
    status: StatusRules { metadata: StatusMeta::AllKept, validate: validate_status, ..StatusRules::DEFAULT },
    reset_fields: ResetFields::STATUS_KEEPS_METADATA,
    ..KindRules::DEFAULT
};

/// The rules of a PriorityLevelConfiguration.
pub const PRIORITY_LEVEL_CONFIGURATION: KindRules = KindRules {
    metadata: MetadataRules { revalidation: MetaRevalidation::Whole, ..MetadataRules::SPEC_GENERATION },
    validation: ValidationRules {
        validate: validate_level,
        revalidation: Revalidation::Once,
        ..ValidationRules::DEFAULT
    },
    status: StatusRules { metadata: StatusMeta::AllKept, validate: validate_status, ..StatusRules::DEFAULT },
    reset_fields: ResetFields::STATUS_KEEPS_METADATA,
    ..KindRules::DEFAULT
};

const MAX_PRECEDENCE: i64 = 10_000;
const VERBS: [&str; 9] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
/// An annotation that an older version used to tell zero shares from absent ones. All newer versions forbid it.
const ZERO_SHARES: &str = "flowcontrol.k8s.io/concurrency-shares-defaults-to-zero";

/// An object with these fields.
fn object_of(fields: Vec<(&str, Value)>) -> Value {
    let mut object = Value::object();
    for (field, value) in fields {
        object.set(field, value);
    }
    object
}

/// The fixed spec of a mandatory FlowSchema.
fn mandatory_schema(name: &str) -> Option<Value> {
    let (precedence, method, groups): (i64, _, &[&str]) = match name {
        EXEMPT => (1, None, &[MASTERS]),
        CATCH_ALL => (MAX_PRECEDENCE, Some("ByUser"), &[UNAUTHENTICATED, AUTHENTICATED]),
        _ => return None,
    };
    let wildcard = || Value::from(vec!["*"]);
    let subject = |group: &&str| {
        object_of(vec![("kind", "Group".into()), ("group", object_of(vec![("name", (*group).into())]))])
    };
    let resources = object_of(vec![
        ("verbs", wildcard()),
        ("apiGroups", wildcard()),
        ("resources", wildcard()),
        ("namespaces", wildcard()),
        ("clusterScope", true.into()),
    ]);
    let paths = object_of(vec![("verbs", wildcard()), ("nonResourceURLs", wildcard())]);
    let rule = object_of(vec![
        ("subjects", groups.iter().map(subject).collect::<Vec<_>>().into()),
        ("resourceRules", vec![resources].into()),
        ("nonResourceRules", vec![paths].into()),
    ]);
    let mut spec = object_of(vec![
        ("matchingPrecedence", precedence.into()),
        ("priorityLevelConfiguration", object_of(vec![("name", name.into())])),
        ("rules", vec![rule].into()),
    ]);
    if let Some(method) = method {
        spec.set("distinguisherMethod", object_of(vec![("type", method.into())]));
    }
    Some(spec)
}

/// The fixed spec of the PriorityLevelConfiguration `catch-all`.
fn catch_all_level() -> Value {
    object_of(vec![
        ("type", "Limited".into()),
        (
            "limited",
            object_of(vec![
                ("nominalConcurrencyShares", 5.into()),
                ("lendablePercent", 0.into()),
                ("limitResponse", object_of(vec![("type", "Reject".into())])),
            ]),
        ),
    ])
}

/// Checks a FlowSchema.
fn validate_schema(schema: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(schema, "spec");
    let precedence = spec.child("matchingPrecedence");
    let mut invalid = |detail: &str| {
        errors.push(FieldError::invalid(&precedence.path, &precedence.number().to_string(), detail));
    };
    if precedence.number() <= 0 {
        invalid("must be a positive value");
    }
    if precedence.number() > MAX_PRECEDENCE {
        invalid(&format!("must not be greater than {MAX_PRECEDENCE}"));
    }
    if precedence.number() == 1 && meta::name(schema) != EXEMPT {
        invalid("only the schema named 'exempt' may have matchingPrecedence 1");
    }
    let method = spec.child("distinguisherMethod");
    let supported = ["ByNamespace", "ByUser"];
    if method.is_set() && !supported.contains(&method.child("type").text()) {
        let rendered =
            format!("flowcontrol.FlowDistinguisherMethod{{Type:{}}}", quoted(method.child("type").text()));
        errors.push(FieldError::not_supported(&method.child("type").path, &rendered, &supported));
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
    if mandatory_schema(name).is_some_and(|fixed| !same(Some(&fixed), Some(spec.value))) {
        let detail = format!("spec of '{name}' must equal the fixed value");
        messages::invalid_struct(&spec.path, "flowcontrol.FlowSchemaSpec", errors, &detail);
    }
    validate_conditions(schema, errors);
}

fn validate_conditions(object: &Value, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for condition in FieldValue::top_level(object, "status").child("conditions").items() {
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
        validate_resource_rule(&part, errors);
    }
    for part in paths.items() {
        validate_path_rule(&part, errors);
    }
}

fn validate_subject(subject: &FieldValue<'_>, errors: &mut ErrorList) {
    let kinds = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = subject.child("kind").text();
    let Some((_, field)) = kinds.iter().find(|(word, _)| *word == kind) else {
        subject.child("kind").one_of(errors, &["Group", "ServiceAccount", "User"]);
        return;
    };
    let identity = subject.child(field);
    if identity.is_set() {
        let (name, namespace) = (identity.child("name"), identity.child("namespace"));
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
        identity.required(errors, &format!("{field} is required when subject kind is '{kind}'"));
    }
    for (word, other) in kinds.iter().filter(|(word, other)| *word != kind && subject.child(other).is_set()) {
        let detail = format!("{other} is forbidden when subject kind is not '{word}'");
        subject.child(other).forbidden(errors, &detail);
    }
}

/// Whether a list contains the wildcard, next to which no other items are allowed.
fn validate_wildcard(list: &FieldValue<'_>, items: &str, errors: &mut ErrorList) -> bool {
    let has_wildcard = list.items().any(|item| item.text() == "*");
    if has_wildcard && list.len() > 1 {
        list.invalid(errors, &format!("if '*' is present, must not specify other {items}"));
    }
    has_wildcard
}

fn validate_verbs(list: &FieldValue<'_>, errors: &mut ErrorList) {
    if list.is_empty() {
        list.required(errors, "verbs must contain at least one value");
    } else if !validate_wildcard(list, "verbs", errors)
        && list.items().any(|verb| !VERBS.contains(&verb.text()))
    {
        errors.push(FieldError::not_supported(&list.path, &messages::render_strings(list, "string"), &VERBS));
    }
}

fn validate_resource_rule(rule: &FieldValue<'_>, errors: &mut ErrorList) {
    validate_verbs(&rule.child("verbs"), errors);
    for (field, items, singular) in
        [("apiGroups", "api groups", "api group"), ("resources", "resources", "resource")]
    {
        let list = rule.child(field);
        if list.is_empty() {
            list.required(errors, &format!("resource rules must supply at least one {singular}"));
        } else {
            validate_wildcard(&list, items, errors);
        }
    }
    let namespaces = rule.child("namespaces");
    if namespaces.is_empty() && !rule.child("clusterScope").is_true() {
        let detail = "resource rules that are not cluster scoped must supply at least one namespace";
        namespaces.required(errors, detail);
    } else if !validate_wildcard(&namespaces, "namespaces", errors) {
        for namespace in namespaces.items() {
            for detail in names::dns_label(namespace.text()) {
                let detail = format!("each member of this list must be '*' or a DNS-1123 label; {detail}");
                namespace.invalid_text(errors, &detail);
            }
        }
    }
}

fn validate_path_rule(rule: &FieldValue<'_>, errors: &mut ErrorList) {
    validate_verbs(&rule.child("verbs"), errors);
    let urls = rule.child("nonResourceURLs");
    if urls.is_empty() {
        urls.required(errors, "nonResourceURLs must contain at least one value");
    } else if !validate_wildcard(&urls, "non-resource URLs", errors) {
        for url in urls.items() {
            if let Some(detail) = url_error(url.text()) {
                url.invalid_text(errors, detail);
            }
        }
    }
}

fn url_error(path: &str) -> Option<&'static str> {
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

/// Validates a status update of either kind.
fn validate_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    validate_conditions(new, errors);
}

/// Checks a PriorityLevelConfiguration.
fn validate_level(level: &Value, errors: &mut ErrorList) {
    let (name, spec) = (meta::name(level), FieldValue::top_level(level, "spec"));
    if meta::metadata(level).get_path(&["annotations", ZERO_SHARES]).is_some() {
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
            validate_shares(&exempt, errors);
            validate_lendable(&exempt, errors);
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
    validate_mandatory_levels(name, &spec, errors);
    validate_conditions(level, errors);
}

fn validate_mandatory_levels(name: &str, spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut invalid = |exception: &str| {
        let detail = format!("spec of '{name}'{exception} must equal the fixed value");
        messages::invalid_struct(&spec.path, "flowcontrol.PriorityLevelConfigurationSpec", errors, &detail);
    };
    if name == EXEMPT && (spec.child("type").text() != "Exempt" || spec.child("limited").is_set()) {
        invalid(" except the 'spec.exempt' field");
    }
    if name == CATCH_ALL && !same(Some(&catch_all_level()), Some(spec.value)) {
        invalid("");
    }
}

fn validate_shares(level: &FieldValue<'_>, errors: &mut ErrorList) {
    let shares = level.child("nominalConcurrencyShares");
    if shares.number() < 0 {
        shares.invalid(errors, "must be a non-negative integer");
    }
}

fn validate_lendable(level: &FieldValue<'_>, errors: &mut ErrorList) {
    let lendable = level.child("lendablePercent");
    if !(0..=100).contains(&lendable.number()) {
        lendable.invalid(errors, "must be between 0 and 100, inclusive");
    }
}

fn validate_limited(limited: &FieldValue<'_>, errors: &mut ErrorList) {
    validate_shares(limited, errors);
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
    validate_lendable(limited, errors);
    let borrowing = limited.child("borrowingLimitPercent");
    if borrowing.number() < 0 {
        borrowing.invalid(errors, "if specified, must be a non-negative integer");
    }
}

fn validate_queuing(queuing: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_QUEUES: i64 = 10_000_000;
    /// The bits of a hash that select the queues of a flow.
    const HASH_BITS: f64 = 60.0;
    let (length, queues, hand) =
        (queuing.child("queueLengthLimit"), queuing.child("queues"), queuing.child("handSize"));
    let mut invalid = |node: &FieldValue<'_>, detail: &str| {
        errors.push(FieldError::invalid(&node.path, &node.number().to_string(), detail));
    };
    if length.number() <= 0 {
        invalid(&length, "must be positive");
    }
    if queues.number() <= 0 {
        invalid(&queues, "must be positive");
    } else if queues.number() > MAX_QUEUES {
        invalid(&queues, &format!("must not be greater than {MAX_QUEUES}"));
    }
    let (deck_size, hand_size) = (queues.number(), hand.number());
    if hand_size <= 0 {
        invalid(&hand, "must be positive");
    } else if hand_size > deck_size {
        invalid(&hand, &format!("should not be greater than queues ({deck_size})"));
    } else {
        // Both fit an i32, which an f64 represents exactly.
        #[allow(clippy::cast_precision_loss, reason = "the numbers are small")]
        let bits = ((deck_size as f64).log2() * hand_size as f64).ceil();
        if bits > HASH_BITS {
            let detail = format!(
                "required entropy bits of deckSize {deck_size} and handSize {hand_size} should not be greater than {HASH_BITS}"
            );
            invalid(&hand, &detail);
        }
    }
}

#[cfg(test)]
mod tests;
