//! MutatingWebhookConfigurations and ValidatingWebhookConfigurations, and the match rules that they share with admission
//! policies.

use std::collections::BTreeSet;

use pilothouse_admission::policies::expressions::{Compiler, EnvironmentType, ResultType};
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, fill, items_mut, present_mut, same};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::{BASE, Generation, KindRules, MetaRevalidation, messages, webhook};
use crate::allowed::admissionregistration_v1 as ar;

/// A kind of the admission group.
pub(super) const GROUP_RULES: KindRules = KindRules {
    unconditional_update: false,
    known_finalizers: false,
    generation: Generation::SPEC,
    default: default_policy,
    meta_revalidation: MetaRevalidation::Whole,
    ..BASE
};

/// The generation counts changes of the whole list of webhooks.
pub const WEBHOOKS: KindRules = KindRules {
    generation: Generation { moves_with: &[&["webhooks"]], empty_lists_count: true, ..Generation::FIRST },
    default: default_webhooks,
    validate: validate_webhooks,
    validate_update: validate_webhooks_update,
    ..GROUP_RULES
};

const LONGEST_TIMEOUT: i64 = 30;

/// The defaults of webhooks: selectors match everything.
fn default_webhooks(configuration: &mut Value) {
    for hook in items_mut(configuration, "webhooks") {
        fill(hook, "namespaceSelector", Value::object());
        fill(hook, "objectSelector", Value::object());
    }
}

/// The defaults of the match constraints of a policy or binding.
pub fn default_policy(policy: &mut Value) {
    let Some(spec) = present_mut(policy, "spec") else { return };
    for field in ["matchConstraints", "matchResources"] {
        if let Some(matched) = present_mut(spec, field) {
            fill(matched, "namespaceSelector", Value::object());
            fill(matched, "objectSelector", Value::object());
        }
    }
}

/// What the old configuration already had, so that an update may keep it although it is invalid today.
#[derive(Clone, Copy, Default)]
struct Allowed {
    side_effects: bool,
    unknown_versions: bool,
    same_names: bool,
    match_conditions: bool,
}

/// Checks the webhooks of a configuration.
fn validate_webhooks(configuration: &Value, errors: &mut ErrorList) {
    validate_all(configuration, Allowed::default(), &BTreeSet::new(), errors);
}

fn validate_all(configuration: &Value, allowed: Allowed, before: &BTreeSet<&str>, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for hook in FieldValue::of(configuration, "webhooks").items() {
        validate_webhook(&hook, allowed, before, errors);
        review_versions(&hook.child("admissionReviewVersions"), allowed, errors);
        let name = hook.child("name");
        if !name.is_empty() && !seen.insert(name.text()) && !allowed.same_names {
            name.duplicate(errors);
        }
    }
}

fn hook_name(name: &FieldValue<'_>, errors: &mut ErrorList) {
    if !name.need(errors) {
        return;
    }
    let wrong = names::dns_subdomain(name.text());
    if !wrong.is_empty() {
        name.invalid(errors, &wrong.join(","));
    } else if name.text().split('.').count() < 3 {
        name.invalid(errors, "should be a domain with at least three segments separated by dots");
    }
}

fn validate_webhook(
    hook: &FieldValue<'_>,
    allowed: Allowed,
    before: &BTreeSet<&str>,
    errors: &mut ErrorList,
) {
    hook_name(&hook.child("name"), errors);
    for rule in hook.child("rules").items() {
        validate_rule(&rule, errors);
    }
    hook.child("failurePolicy").one_of_if_set(errors, ar::ValidatingWebhook::FAILURE_POLICY);
    hook.child("matchPolicy").one_of_if_set(errors, ar::ValidatingWebhook::MATCH_POLICY);
    let effects = hook.child("sideEffects");
    let words: &[&str] =
        if allowed.side_effects { ar::ValidatingWebhook::SIDE_EFFECTS } else { &["None", "NoneOnDryRun"] };
    if effects.is_set() {
        effects.one_of(errors, words);
    } else {
        effects.required(errors, &format!("must specify one of {}", words.join(", ")));
    }
    let timeout = hook.child("timeoutSeconds");
    if timeout.is_set() && !(1..=LONGEST_TIMEOUT).contains(&timeout.number()) {
        timeout.invalid(errors, "the timeout value must be between 1 and 30 seconds");
    }
    label_selector::validate(&hook.child("namespaceSelector"), errors);
    label_selector::validate(&hook.child("objectSelector"), errors);
    hook.child("reinvocationPolicy").one_of_if_set(errors, ar::MutatingWebhook::REINVOCATION_POLICY);
    let config = hook.child("clientConfig");
    let (url, service) = (config.child("url"), config.child("service"));
    if url.is_set() == service.is_set() {
        config.required(errors, "exactly one of url or service is required");
    } else if url.is_set() {
        webhook::url(&url, errors);
    } else {
        webhook::service(&service, true, errors);
    }
    if !allowed.match_conditions {
        match_conditions(&hook.child("matchConditions"), false, before, errors);
    }
}

fn review_versions(versions: &FieldValue<'_>, allowed: Allowed, errors: &mut ErrorList) {
    if versions.is_empty() {
        versions.required(errors, "must specify one of v1, v1beta1");
        return;
    }
    named_versions(versions, !allowed.unknown_versions, errors);
}

/// Checks admissionReviewVersions: no duplicates, and where required at least one that this server supports.
pub(crate) fn named_versions(versions: &FieldValue<'_>, needs_known: bool, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for version in versions.items() {
        if seen.insert(version.text()) {
            version.syntax(errors, names::dns_1035_label);
        } else {
            version.invalid_text(errors, "duplicate version");
        }
    }
    if needs_known && !seen.contains("v1") && !seen.contains("v1beta1") {
        versions.invalid(errors, "must include at least one of v1, v1beta1");
    }
}

/// Checks a match rule: groups, versions, resources, operations.
pub fn validate_rule(rule: &FieldValue<'_>, errors: &mut ErrorList) {
    let operations = rule.child("operations");
    operations.need(errors);
    alone(&operations, "operations", errors);
    for operation in operations.items() {
        operation.one_of(errors, ar::RuleWithOperations::OPERATIONS);
    }
    let (groups, versions) = (rule.child("apiGroups"), rule.child("apiVersions"));
    groups.need(errors);
    alone(&groups, "API groups", errors);
    versions.need(errors);
    alone(&versions, "API versions", errors);
    for version in versions.items() {
        version.need(errors);
    }
    resources(&rule.child("resources"), errors);
    rule.child("scope").one_of_if_set(errors, &["*", "Cluster", "Namespaced"]);
}

/// Checks that a list with the wildcard has no other items.
fn alone(list: &FieldValue<'_>, what: &str, errors: &mut ErrorList) {
    if list.len() > 1 && list.items().any(|item| item.text() == "*") {
        let kind = if what == "operations" { "admissionregistration.OperationType" } else { "string" };
        let shown = messages::shown_texts(list, kind);
        let why = format!("if '*' is present, must not specify other {what}");
        errors.push(FieldError::invalid(&list.path, &shown, &why));
    }
}

fn resources(list: &FieldValue<'_>, errors: &mut ErrorList) {
    list.need(errors);
    let (mut all_below, mut all_with) = (BTreeSet::new(), BTreeSet::new());
    let (mut everything, mut all, mut plain) = (false, false, false);
    for item in list.items() {
        if !item.need(errors) {
            continue;
        }
        everything |= item.text() == "*/*";
        all |= item.text() == "*";
        let Some((resource, below)) = item.text().split_once('/') else {
            plain = item.text() != "*";
            continue;
        };
        if all_below.contains(resource) {
            item.invalid(errors, &format!("if '{resource}/*' is present, must not specify {}", item.text()));
        }
        if all_with.contains(below) {
            item.invalid(errors, &format!("if '*/{below}' is present, must not specify {}", item.text()));
        }
        if below == "*" {
            all_below.insert(resource);
        }
        if resource == "*" {
            all_with.insert(below);
        }
    }
    let shown = messages::shown_texts(list, "string");
    if list.len() > 1 && everything {
        let why = "if '*/*' is present, must not specify other resources";
        errors.push(FieldError::invalid(&list.path, &shown, why));
    }
    if all && plain {
        let why = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(&list.path, &shown, why));
    }
}

/// Checks match conditions. `before` are the expressions of the old object, which compile in the environment of stored
/// expressions.
pub fn match_conditions(
    list: &FieldValue<'_>,
    has_params: bool,
    before: &BTreeSet<&str>,
    errors: &mut ErrorList,
) {
    const MOST: usize = 64;
    if list.len() > MOST {
        errors.push(FieldError::too_many(&list.path, list.len(), MOST));
    }
    let mut compiler = Compiler::new(has_params, false);
    let mut seen = BTreeSet::new();
    for condition in list.items() {
        let (name, expression) = (condition.child("name"), condition.child("expression"));
        match expression.text().trim() {
            "" => expression.required(errors, ""),
            text => {
                let age = if before.contains(text) { EnvironmentType::Stored } else { EnvironmentType::New };
                if let Err(why) = compiler.compile(text, ResultType::Truth, true, age) {
                    errors.push(FieldError::invalid(&expression.path, &quoted(text), &why));
                }
            }
        }
        name.need_syntax(errors, names::qualified_name);
        if !name.is_empty() && !seen.insert(name.text()) {
            name.duplicate(errors);
        }
    }
}

/// Checks the webhooks of an updated configuration. Errors that the old one had are forgiven.
fn validate_webhooks_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (hooks, was) = (FieldValue::of(new, "webhooks"), FieldValue::of(old, "webhooks"));
    let conditions = |list: &FieldValue<'_>| -> Vec<Value> {
        list.items().map(|hook| hook.child("matchConditions").value.clone()).collect()
    };
    let (now, before) = (Value::from(conditions(&hooks)), Value::from(conditions(&was)));
    let unknown = |hook: &FieldValue<'_>| {
        let versions = hook.child("admissionReviewVersions");
        !versions.is_empty() && !versions.items().any(|one| matches!(one.text(), "v1" | "v1beta1"))
    };
    let names: BTreeSet<&str> = was.items().map(|hook| hook.child("name").text()).collect();
    let allowed = Allowed {
        side_effects: was
            .items()
            .any(|hook| !matches!(hook.child("sideEffects").text(), "None" | "NoneOnDryRun")),
        unknown_versions: was.items().any(|hook| unknown(&hook)),
        same_names: names.len() < was.len(),
        match_conditions: same(Some(&now), Some(&before)),
    };
    let conditions = was.items().flat_map(|hook| hook.read("matchConditions").items());
    let accepted: BTreeSet<&str> = conditions.map(|condition| condition.str("expression")).collect();
    validate_all(new, allowed, &accepted, errors);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::super::testing::filled;
    use super::*;

    #[test]
    fn each_rule_of_a_webhook_refuses() {
        let mut base = object(
            r#"{"webhooks":[{"name":"a.b.c","sideEffects":"None","admissionReviewVersions":["v1"],"timeoutSeconds":10,
                "clientConfig":{"url":"https://x/y"},"rules":[{"apiGroups":["*"],"apiVersions":["*"],"resources":["*"],
                "operations":["*"],"scope":"*"}]}]}"#,
        );
        default_webhooks(&mut base);
        each_refused(
            &base,
            validate_webhooks,
            &[
                (
                    "webhooks.0.name",
                    r#""a.b""#,
                    "should be a domain with at least three segments separated by dots",
                ),
                ("webhooks.0.name", "null", "webhooks[0].name: Required value"),
                ("webhooks.0.sideEffects", "null", "must specify one of None, NoneOnDryRun"),
                ("webhooks.0.sideEffects", r#""Some""#, "supported values: \"None\", \"NoneOnDryRun\""),
                ("webhooks.0.admissionReviewVersions", "[]", "must specify one of v1, v1beta1"),
                (
                    "webhooks.0.admissionReviewVersions",
                    r#"["v9"]"#,
                    "must include at least one of v1, v1beta1",
                ),
                ("webhooks.0.timeoutSeconds", "31", "the timeout value must be between 1 and 30 seconds"),
                ("webhooks.0.failurePolicy", r#""X""#, "\"Fail\", \"Ignore\""),
                ("webhooks.0.matchPolicy", r#""X""#, "\"Equivalent\", \"Exact\""),
                ("webhooks.0.reinvocationPolicy", r#""X""#, "\"IfNeeded\", \"Never\""),
                ("webhooks.0.clientConfig", "{}", "exactly one of url or service is required"),
                ("webhooks.0.clientConfig.url", r#""http://x""#, "'https' is the only allowed URL scheme"),
                ("webhooks.0.rules.0.resources", "[]", "webhooks[0].rules[0].resources: Required value"),
                (
                    "webhooks.0.rules.0.operations",
                    r#"["X"]"#,
                    "\"*\", \"CONNECT\", \"CREATE\", \"DELETE\", \"UPDATE\"",
                ),
                (
                    "webhooks.0.rules.0.operations",
                    r#"["*","CREATE"]"#,
                    "[]admissionregistration.OperationType{\"*\", \"CREATE\"}: if '*' is present, must not specify other operations",
                ),
                (
                    "webhooks.0.rules.0.apiGroups",
                    r#"["*","a"]"#,
                    "if '*' is present, must not specify other API groups",
                ),
                (
                    "webhooks.0.rules.0.apiVersions",
                    r#"[""]"#,
                    "webhooks[0].rules[0].apiVersions[0]: Required value",
                ),
                (
                    "webhooks.0.rules.0.resources",
                    r#"["*","pods"]"#,
                    "if '*' is present, must not specify other resources without subresources",
                ),
                (
                    "webhooks.0.rules.0.resources",
                    r#"["pods/*","pods/exec"]"#,
                    "resources[1]: Invalid value: \"pods/exec\": if 'pods/*' is present, must not specify pods/exec",
                ),
                (
                    "webhooks.0.rules.0.resources",
                    r#"["*/scale","a/scale"]"#,
                    "if '*/scale' is present, must not specify a/scale",
                ),
                (
                    "webhooks.0.rules.0.resources",
                    r#"["*/*","pods"]"#,
                    "if '*/*' is present, must not specify other resources",
                ),
                (
                    "webhooks.0.admissionReviewVersions",
                    r#"["v1","v1"]"#,
                    "admissionReviewVersions[1]: Invalid value: \"v1\": duplicate version",
                ),
                (
                    "webhooks.0.admissionReviewVersions",
                    r#"["v1","1"]"#,
                    "admissionReviewVersions[1]: Invalid value: \"1\": a DNS-1035 label",
                ),
                (
                    "webhooks.0.matchConditions",
                    r#"[{"name":"a"}]"#,
                    "matchConditions[0].expression: Required value",
                ),
                (
                    "webhooks.0.matchConditions",
                    r#"[{"expression":"true"}]"#,
                    "matchConditions[0].name: Required value",
                ),
                (
                    "webhooks.0.matchConditions",
                    r#"[{"expression":"true","name":"-"}]"#,
                    "matchConditions[0].name: Invalid value: \"-\"",
                ),
                (
                    "webhooks.0.matchConditions",
                    r#"[{"expression":"true","name":"a"},{"expression":"true","name":"a"}]"#,
                    "matchConditions[1].name: Duplicate value: \"a\"",
                ),
                ("webhooks.0.rules.0.scope", r#""X""#, "\"*\", \"Cluster\", \"Namespaced\""),
            ],
        );
    }

    #[test]
    fn what_was_wrong_before_may_stay() {
        let odd = object(
            r#"{"webhooks":[{"name":"a.b.c","sideEffects":"Some","admissionReviewVersions":["v9"],"clientConfig":{"url":"https://x/y"},
                "matchConditions":[{"name":"a"}]},{"name":"a.b.c","sideEffects":"Some","admissionReviewVersions":["v9"],
                "clientConfig":{"url":"https://x/y"}}]}"#,
        );
        let mut errors = ErrorList::new();
        validate_webhooks_update(&odd, &odd, &mut errors);
        assert_eq!(errors, []);
        validate_webhooks(&odd, &mut errors);
        assert_eq!(errors.len(), 6);
    }

    #[test]
    fn policies_match_everything_by_default() {
        let given = r#"{"spec":{"matchConstraints":{}}}"#;
        let policy = filled(("admissionregistration.k8s.io", "v1"), "ValidatingAdmissionPolicy", given);
        assert_eq!(
            policy.at(&["spec", "matchConstraints"]),
            Some(&object(r#"{"matchPolicy":"Equivalent","namespaceSelector":{},"objectSelector":{}}"#))
        );
    }
}
