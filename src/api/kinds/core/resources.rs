//! Requests and limits: which resources there are, and how much of them may be asked for.

use crate::api::field::{FieldError, quoted};
use crate::api::kinds::Errors;
use crate::api::kinds::check::Node;
use crate::api::names;

const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];
const WHOLE: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether the resource is one that vendors define.
fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Checks the name of a resource, anywhere.
pub fn name(name: &str, node: &Node<'_>, errors: &mut Errors) -> bool {
    let wrong = names::qualified_name(name);
    if !wrong.is_empty() {
        for wrong in wrong {
            errors.push(FieldError::invalid(&node.path, &quoted(name), &wrong));
        }
        return false;
    }
    if !name.contains('/') && !STANDARD.contains(&name) && !is_huge_page(name) {
        let wrong = "must be a standard resource type or fully qualified";
        errors.push(FieldError::invalid(&node.path, &quoted(name), wrong));
        return false;
    }
    true
}

/// Checks the name of a resource that a container can have.
pub fn container_resource(resource: &str, node: &Node<'_>, errors: &mut Errors) {
    name(resource, node, errors);
    let wrong = if resource.contains('/') {
        (!is_native(resource) && !is_extended(resource))
            .then_some("doesn't follow extended resource name standard")
    } else {
        let known = matches!(resource, "cpu" | "memory" | "ephemeral-storage") || is_huge_page(resource);
        (!known).then_some("must be a standard resource for containers")
    };
    if let Some(wrong) = wrong {
        errors.push(FieldError::invalid(&node.path, &quoted(resource), wrong));
    }
}

/// Checks an amount of a resource.
pub fn amount(resource: &str, node: &Node<'_>, errors: &mut Errors) {
    let Some(amount) = node.amount() else { return };
    if amount.is_negative() {
        node.invalid(errors, "must be greater than or equal to 0");
    }
    if (WHOLE.contains(&resource) || is_extended(resource)) && !amount.is_whole() {
        node.invalid(errors, "must be an integer");
    }
}

/// Checks what a container requests and where its limits are.
pub fn requirements(node: &Node<'_>, errors: &mut Errors) {
    let (limits, requests) = (node.child("limits"), node.child("requests"));
    for (resource, entry) in limits.entries() {
        container_resource(resource, &entry, errors);
        amount(resource, &entry, errors);
    }
    for (resource, entry) in requests.entries() {
        container_resource(resource, &entry, errors);
        amount(resource, &entry, errors);
        let overcommit = is_native(resource) && !is_huge_page(resource);
        let limit = limits.value.get(resource).and_then(|value| value.as_str());
        let limit_node = limits.child(resource);
        match (limit_node.amount(), entry.amount()) {
            (Some(most), Some(asked)) if asked != most && !overcommit => {
                let wrong = format!("must be equal to {resource} limit of {}", limit.unwrap_or_default());
                errors.push(FieldError::invalid(&requests.path, &entry.shown(), &wrong));
            }
            (Some(most), Some(asked)) if asked > most => {
                let wrong = format!(
                    "must be less than or equal to {resource} limit of {}",
                    limit.unwrap_or_default()
                );
                errors.push(FieldError::invalid(&requests.path, &entry.shown(), &wrong));
            }
            (None, _) if !overcommit => {
                limits.required(errors, "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
    }
    let any =
        |matching: fn(&str) -> bool| limits.entries().chain(requests.entries()).any(|(key, _)| matching(key));
    if any(is_huge_page) && !any(|name| matches!(name, "cpu" | "memory")) {
        node.forbidden(errors, "HugePages require cpu or memory");
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{each_refused, object};
    use super::*;

    #[test]
    fn each_rule_of_resources_refuses() {
        let base = object(
            r#"{"resources":{"limits":{"cpu":"1","memory":"1Gi","example.com/gpu":"1"},
                "requests":{"cpu":"500m","example.com/gpu":"1"}}}"#,
        );
        each_refused(
            &base,
            |object, errors| requirements(&Node::of(object, "resources"), errors),
            &[
                (
                    "resources.limits.memory",
                    r#""-1""#,
                    "resources.limits[memory]: Invalid value: \"-1\": must be greater",
                ),
                (
                    "resources.requests.cpu",
                    r#""2""#,
                    "resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
                ),
                (
                    "resources.requests",
                    r#"{"example.com/gpu":"2"}"#,
                    "must be equal to example.com/gpu limit of 1",
                ),
                (
                    "resources.requests",
                    r#"{"example.com/x":"2"}"#,
                    "resources.limits: Required value: Limit must be set",
                ),
                (
                    "resources.limits",
                    r#"{"cpu":"1","example.com/gpu":"1","storage":"1"}"#,
                    "must be a standard resource for containers",
                ),
            ],
        );
        let huge = object(r#"{"resources":{"limits":{"hugepages-2Mi":"2Mi"}}}"#);
        let mut errors = Errors::new();
        requirements(&Node::of(&huge, "resources"), &mut errors);
        assert_eq!(errors.len(), 1);
        let whole = object(r#"{"resources":{"limits":{"example.com/gpu":"500m"}}}"#);
        requirements(&Node::of(&whole, "resources"), &mut errors);
        assert!(errors[1].message.ends_with("must be an integer"));
    }
}
