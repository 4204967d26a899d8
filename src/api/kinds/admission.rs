//! Webhook configurations and admission policies.

use std::collections::BTreeSet;

use super::Errors;
use super::check::{Node, fill, items_mut, present_mut};
use super::selector;
use crate::api::field::FieldError;
use crate::api::names;
use crate::api::value::Value;

const LONGEST_TIMEOUT: i64 = 30;

/// The defaults of webhooks: they are about everything.
pub fn default_webhooks(configuration: &mut Value) {
    for hook in items_mut(configuration, "webhooks") {
        fill(hook, "namespaceSelector", Value::object());
        fill(hook, "objectSelector", Value::object());
    }
}

/// The defaults of what a policy or binding matches.
pub fn default_policy(policy: &mut Value) {
    let Some(spec) = present_mut(policy, "spec") else { return };
    for field in ["matchConstraints", "matchResources"] {
        if let Some(matched) = present_mut(spec, field) {
            fill(matched, "namespaceSelector", Value::object());
            fill(matched, "objectSelector", Value::object());
            fill(matched, "matchPolicy", "Equivalent");
        }
    }
}

/// Checks the webhooks of a configuration.
pub fn validate_webhooks(configuration: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for hook in Node::of(configuration, "webhooks").items() {
        let name = hook.child("name");
        hook_name(&name, errors);
        if !name.is_empty() && !seen.insert(name.text()) {
            name.duplicate(errors);
        }
        validate_webhook(&hook, errors);
    }
}

fn hook_name(name: &Node<'_>, errors: &mut Errors) {
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

fn validate_webhook(hook: &Node<'_>, errors: &mut Errors) {
    for rule in hook.child("rules").items() {
        for field in ["apiGroups", "apiVersions", "resources", "operations"] {
            rule.child(field).need(errors);
        }
        rule.child("scope").one_of_if_set(errors, &["*", "Cluster", "Namespaced"]);
        for operation in rule.child("operations").items() {
            operation.one_of(errors, &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"]);
        }
    }
    hook.child("failurePolicy").one_of_if_set(errors, &["Fail", "Ignore"]);
    hook.child("matchPolicy").one_of_if_set(errors, &["Equivalent", "Exact"]);
    let effects = hook.child("sideEffects");
    if effects.is_set() {
        effects.one_of(errors, &["None", "NoneOnDryRun"]);
    } else {
        effects.required(errors, "must specify one of None, NoneOnDryRun");
    }
    let timeout = hook.child("timeoutSeconds");
    if timeout.is_set() && !(1..=LONGEST_TIMEOUT).contains(&timeout.number()) {
        timeout.invalid(errors, "the timeout value must be between 1 and 30 seconds");
    }
    selector::validate(&hook.child("namespaceSelector"), errors);
    selector::validate(&hook.child("objectSelector"), errors);
    client(&hook.child("clientConfig"), errors);
    let versions = hook.child("admissionReviewVersions");
    if versions.is_empty() {
        versions.required(errors, "must specify one of v1, v1beta1");
    } else if !versions.items().any(|version| matches!(version.text(), "v1" | "v1beta1")) {
        versions.invalid(errors, "must include at least one of v1, v1beta1");
    }
    hook.child("reinvocationPolicy").one_of_if_set(errors, &["IfNeeded", "Never"]);
}

fn client(config: &Node<'_>, errors: &mut Errors) {
    let (url, service) = (config.child("url"), config.child("service"));
    if url.is_set() == service.is_set() {
        config.required(errors, "exactly one of url or service is required");
        return;
    }
    if url.is_set() && !url.text().starts_with("https://") {
        let scheme = url.text().split_once("://").map_or("", |(scheme, _)| scheme);
        let wrong = "'https' is the only allowed URL scheme; desired format: https://host[/path]";
        errors.push(FieldError::invalid(&url.path, &crate::api::field::quoted(scheme), wrong));
    }
    if service.is_set() {
        for field in ["name", "namespace"] {
            if service.child(field).is_empty() {
                service.child(field).required(errors, &format!("service {field} is required"));
            }
        }
    }
}

/// Checks the webhooks of a changed configuration.
pub fn validate_webhooks_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate_webhooks(new, errors);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{each_refused, object};
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
                ("webhooks.0.rules.0.scope", r#""X""#, "\"*\", \"Cluster\", \"Namespaced\""),
            ],
        );
    }

    #[test]
    fn policies_match_everything_by_default() {
        let mut policy = object(r#"{"spec":{"matchConstraints":{}}}"#);
        default_policy(&mut policy);
        assert_eq!(
            policy.at(&["spec", "matchConstraints"]),
            Some(&object(r#"{"matchPolicy":"Equivalent","namespaceSelector":{},"objectSelector":{}}"#))
        );
    }
}
