//! MutatingWebhookConfigurations and ValidatingWebhookConfigurations, and the match rules that they share with admission
//! policies.

use std::collections::BTreeSet;

use pilothouse_admission::policies::expressions::{Compiler, EnvironmentType, ResultType, new_libraries};
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, fill, items_mut, present_mut, same};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::{
    DefaultingRules, Generation, KindRules, MetaRevalidation, MetadataRules, UpdateRules, ValidationRules,
    messages, webhook,
};
use crate::allowed::admissionregistration_v1 as ar;

/// A kind of the admission group.
pub(super) const GROUP_RULES: KindRules = KindRules {
    metadata: MetadataRules {
        requires_standard_finalizers: false,
        revalidation: MetaRevalidation::Whole,
        ..MetadataRules::SPEC_GENERATION
    },
    update: UpdateRules::CONDITIONAL,
    defaulting: DefaultingRules { default: default_policy, ..DefaultingRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// The generation counts changes of the whole list of webhooks.
pub const WEBHOOKS: KindRules = KindRules {
    metadata: MetadataRules {
        generation: Generation {
            increased_by: &[&["webhooks"]],
            counts_empty_lists: true,
            ..Generation::FIRST
        },
        ..GROUP_RULES.metadata
    },
    defaulting: DefaultingRules { default: default_webhooks, ..GROUP_RULES.defaulting },
    validation: ValidationRules {
        validate: validate_webhooks,
        validate_update: validate_webhooks_update,
        ..ValidationRules::DEFAULT
    },
    ..GROUP_RULES
};

const MAX_TIMEOUT: i64 = 30;

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

/// Rules that the old configuration already broke, so that an update may keep breaking them.
#[derive(Clone, Copy, Default)]
struct Tolerated {
    side_effects: bool,
    unknown_versions: bool,
    same_names: bool,
    match_conditions: bool,
}

/// Checks the webhooks of a configuration.
fn validate_webhooks(configuration: &Value, errors: &mut ErrorList) {
    validate_all(configuration, Tolerated::default(), &BTreeSet::new(), errors);
}

fn validate_all(
    configuration: &Value,
    tolerated: Tolerated,
    old_expressions: &BTreeSet<&str>,
    errors: &mut ErrorList,
) {
    let mut seen = BTreeSet::new();
    for hook in FieldValue::top_level(configuration, "webhooks").items() {
        validate_webhook(&hook, tolerated, old_expressions, errors);
        review_versions(&hook.child("admissionReviewVersions"), tolerated, errors);
        let name = hook.child("name");
        if !name.is_empty() && !seen.insert(name.text()) && !tolerated.same_names {
            name.duplicate(errors);
        }
    }
}

fn hook_name(name: &FieldValue<'_>, errors: &mut ErrorList) {
    if !name.need(errors) {
        return;
    }
    let details = names::dns_subdomain(name.text());
    if !details.is_empty() {
        name.invalid(errors, &details.join(","));
    } else if name.text().split('.').count() < 3 {
        name.invalid(errors, "should be a domain with at least three segments separated by dots");
    }
}

fn validate_webhook(
    hook: &FieldValue<'_>,
    tolerated: Tolerated,
    old_expressions: &BTreeSet<&str>,
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
        if tolerated.side_effects { ar::ValidatingWebhook::SIDE_EFFECTS } else { &["None", "NoneOnDryRun"] };
    if effects.is_set() {
        effects.one_of(errors, words);
    } else {
        effects.required(errors, &format!("must specify one of {}", words.join(", ")));
    }
    let timeout = hook.child("timeoutSeconds");
    if timeout.is_set() && !(1..=MAX_TIMEOUT).contains(&timeout.number()) {
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
        webhook::validate_url(&url, errors);
    } else {
        webhook::validate_service(&service, true, errors);
    }
    if !tolerated.match_conditions {
        match_conditions(&hook.child("matchConditions"), false, old_expressions, errors);
    }
}

fn review_versions(versions: &FieldValue<'_>, tolerated: Tolerated, errors: &mut ErrorList) {
    if versions.is_empty() {
        versions.required(errors, "must specify one of v1, v1beta1");
        return;
    }
    validate_review_version_list(versions, !tolerated.unknown_versions, errors);
}

/// Checks admissionReviewVersions: no duplicates, and where required at least one that this server supports.
pub(crate) fn validate_review_version_list(
    versions: &FieldValue<'_>,
    needs_known: bool,
    errors: &mut ErrorList,
) {
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
    wildcard_alone(&operations, "operations", errors);
    for operation in operations.items() {
        operation.one_of(errors, ar::RuleWithOperations::OPERATIONS);
    }
    let (groups, versions) = (rule.child("apiGroups"), rule.child("apiVersions"));
    groups.need(errors);
    wildcard_alone(&groups, "API groups", errors);
    versions.need(errors);
    wildcard_alone(&versions, "API versions", errors);
    for version in versions.items() {
        version.need(errors);
    }
    validate_resources(&rule.child("resources"), errors);
    rule.child("scope").one_of_if_set(errors, &["*", "Cluster", "Namespaced"]);
}

/// Checks that a list with the wildcard has no other items.
fn wildcard_alone(list: &FieldValue<'_>, what: &str, errors: &mut ErrorList) {
    if list.len() > 1 && list.items().any(|item| item.text() == "*") {
        let kind = if what == "operations" { "admissionregistration.OperationType" } else { "string" };
        let rendered = messages::render_strings(list, kind);
        let detail = format!("if '*' is present, must not specify other {what}");
        errors.push(FieldError::invalid(&list.path, &rendered, &detail));
    }
}

fn validate_resources(list: &FieldValue<'_>, errors: &mut ErrorList) {
    list.need(errors);
    let (mut wildcard_subresources, mut wildcard_resources) = (BTreeSet::new(), BTreeSet::new());
    let (mut has_wildcard_pair, mut has_wildcard, mut has_plain_resource) = (false, false, false);
    for item in list.items() {
        if !item.need(errors) {
            continue;
        }
        has_wildcard_pair |= item.text() == "*/*";
        has_wildcard |= item.text() == "*";
        let Some((resource, below)) = item.text().split_once('/') else {
            has_plain_resource = item.text() != "*";
            continue;
        };
        if wildcard_subresources.contains(resource) {
            item.invalid(errors, &format!("if '{resource}/*' is present, must not specify {}", item.text()));
        }
        if wildcard_resources.contains(below) {
            item.invalid(errors, &format!("if '*/{below}' is present, must not specify {}", item.text()));
        }
        if below == "*" {
            wildcard_subresources.insert(resource);
        }
        if resource == "*" {
            wildcard_resources.insert(below);
        }
    }
    let rendered = messages::render_strings(list, "string");
    if list.len() > 1 && has_wildcard_pair {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.push(FieldError::invalid(&list.path, &rendered, detail));
    }
    if has_wildcard && has_plain_resource {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(&list.path, &rendered, detail));
    }
}

/// Checks match conditions. `old_expressions` are the expressions of the old object, which compile in the environment of stored
/// expressions.
pub fn match_conditions(
    list: &FieldValue<'_>,
    has_params: bool,
    old_expressions: &BTreeSet<&str>,
    errors: &mut ErrorList,
) {
    const MAX_CONDITIONS: usize = 64;
    if list.len() > MAX_CONDITIONS {
        errors.push(FieldError::too_many(&list.path, list.len(), MAX_CONDITIONS));
    }
    let mut compiler = Compiler::new(new_libraries(errors.features()), has_params, false);
    let mut seen = BTreeSet::new();
    for condition in list.items() {
        let (name, expression) = (condition.child("name"), condition.child("expression"));
        match expression.text().trim() {
            "" => expression.required(errors, ""),
            text => {
                let environment = if old_expressions.contains(text) {
                    EnvironmentType::Stored
                } else {
                    EnvironmentType::New
                };
                if let Err(detail) = compiler.compile(text, ResultType::Bool, true, environment) {
                    errors.push(FieldError::invalid(&expression.path, &quoted(text), &detail));
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
    let (hooks, old_hooks) = (FieldValue::top_level(new, "webhooks"), FieldValue::top_level(old, "webhooks"));
    let conditions = |list: &FieldValue<'_>| -> Vec<Value> {
        list.items().map(|hook| hook.child("matchConditions").value.clone()).collect()
    };
    let (new_conditions, old_conditions) =
        (Value::from(conditions(&hooks)), Value::from(conditions(&old_hooks)));
    let unknown = |hook: &FieldValue<'_>| {
        let versions = hook.child("admissionReviewVersions");
        !versions.is_empty() && !versions.items().any(|version| matches!(version.text(), "v1" | "v1beta1"))
    };
    let names: BTreeSet<&str> = old_hooks.items().map(|hook| hook.child("name").text()).collect();
    let tolerated = Tolerated {
        side_effects: old_hooks
            .items()
            .any(|hook| !matches!(hook.child("sideEffects").text(), "None" | "NoneOnDryRun")),
        unknown_versions: old_hooks.items().any(|hook| unknown(&hook)),
        same_names: names.len() < old_hooks.len(),
        match_conditions: same(Some(&new_conditions), Some(&old_conditions)),
    };
    let conditions = old_hooks.items().flat_map(|hook| hook.read("matchConditions").items());
    let accepted: BTreeSet<&str> = conditions.map(|condition| condition.str("expression")).collect();
    validate_all(new, tolerated, &accepted, errors);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::super::testing::filled;
    use super::*;

    #[test]
    fn webhook_validation_refuses_each_violation() {
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
    fn webhook_update_tolerates_violations_of_the_old_object() {
        let invalid = object(
            r#"{"webhooks":[{"name":"a.b.c","sideEffects":"Some","admissionReviewVersions":["v9"],"clientConfig":{"url":"https://x/y"},
                "matchConditions":[{"name":"a"}]},{"name":"a.b.c","sideEffects":"Some","admissionReviewVersions":["v9"],
                "clientConfig":{"url":"https://x/y"}}]}"#,
        );
        let mut errors = ErrorList::new();
        validate_webhooks_update(&invalid, &invalid, &mut errors);
        assert_eq!(errors, []);
        validate_webhooks(&invalid, &mut errors);
        assert_eq!(errors.len(), 6);
    }

    #[test]
    fn policy_selectors_default_to_everything() {
        let json = r#"{"spec":{"matchConstraints":{}}}"#;
        let policy = filled(("admissionregistration.k8s.io", "v1"), "ValidatingAdmissionPolicy", json);
        assert_eq!(
            policy.get_path(&["spec", "matchConstraints"]),
            Some(&object(r#"{"matchPolicy":"Equivalent","namespaceSelector":{},"objectSelector":{}}"#))
        );
    }
}
