//! Resource requirements: names of resources, requests and limits.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::{FieldValue, shown_quantity};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::nano_quantity::NanoQuantity;
use pilothouse_apimachinery::resource_list::is_for_whole_pods;

use super::pod_resources;

/// The names that quotas and limit ranges have for compute resources.
pub const COMPUTE: [&str; 9] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
/// Resources whose quantity must be an integer.
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

fn is_standard(name: &str) -> bool {
    COMPUTE.contains(&name) || WHOLE.contains(&name) || matches!(name, "storage" | "requests.storage")
}

/// Whether the resource is huge pages.
pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// The same for names in quotas.
pub fn is_quota_huge_page(name: &str) -> bool {
    is_huge_page(name) || name.starts_with("requests.hugepages-")
}

/// Whether the resource is native: unqualified, or of kubernetes.io.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether the resource may be overcommitted.
pub fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// Whether the resource is a standard one of quotas.
pub fn is_standard_for_quota(name: &str) -> bool {
    (is_standard(name) && name != "storage") || is_quota_huge_page(name)
}

/// Whether the resource is an extended resource.
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Checks a resource name.
pub fn name(name: &str, node: &FieldValue<'_>, errors: &mut ErrorList) -> bool {
    let wrong = names::qualified_name(name);
    if !wrong.is_empty() {
        for wrong in wrong {
            errors.push(FieldError::invalid(&node.path, name, &wrong));
        }
        return false;
    }
    if !name.contains('/') && !is_standard(name) && !is_quota_huge_page(name) {
        let wrong = "must be a standard resource type or fully qualified";
        errors.push(FieldError::invalid(&node.path, name, wrong));
        return false;
    }
    true
}

/// Checks the name of a resource that a container can have.
pub fn container_resource(resource: &str, node: &FieldValue<'_>, errors: &mut ErrorList) {
    name(resource, node, errors);
    of_containers(resource, node, errors);
}

/// Checks that a resource is one that a container can have.
pub fn of_containers(resource: &str, node: &FieldValue<'_>, errors: &mut ErrorList) {
    let wrong = if resource.contains('/') {
        (!is_native(resource) && !is_extended(resource))
            .then_some("doesn't follow extended resource name standard")
    } else {
        let known = matches!(resource, "cpu" | "memory" | "ephemeral-storage") || is_huge_page(resource);
        (!known).then_some("must be a standard resource for containers")
    };
    if let Some(wrong) = wrong {
        errors.push(FieldError::invalid(&node.path, resource, wrong));
    }
}

/// Checks the quantity of a resource.
pub fn amount(resource: &str, node: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(amount) = node.amount() else { return };
    if amount.is_negative() {
        node.invalid(errors, "must be greater than or equal to 0");
    }
    if (WHOLE.contains(&resource) || is_extended(resource)) && !amount.is_whole() {
        errors.push(FieldError::invalid(&node.path, &shown_quantity(node.value), "must be an integer"));
    }
}

/// Checks that huge pages are a multiple of the page size.
fn whole_pages(resource: &str, node: &FieldValue<'_>, errors: &mut ErrorList) {
    let size = resource.strip_prefix("hugepages-").and_then(NanoQuantity::parse);
    let size = size.filter(|size| size.is_whole() && !size.is_negative() && !size.is_zero());
    let whole = match (size, node.amount()) {
        (Some(size), Some(amount)) => amount.ceiling() % size.ceiling() == 0,
        _ => false,
    };
    if !whole {
        let wrong = format!("{} is not positive integer multiple of {resource}", node.text());
        node.invalid(errors, &wrong);
    }
}

/// Checks requests and limits.
pub fn requirements(node: &FieldValue<'_>, errors: &mut ErrorList) {
    both(node, &node.child("limits"), &node.child("requests"), container_resource, errors);
}

/// Checks the requests, limits and resource claims of a container.
pub fn of_container(node: &FieldValue<'_>, claims: &BTreeSet<&str>, errors: &mut ErrorList) {
    requirements(node, errors);
    if let Some(used) = node.opt("claims") {
        pod_resources::used_claims(&used, claims, errors);
    }
}

/// The same at the pod level.
pub fn of_pod(node: &FieldValue<'_>, claims: &BTreeSet<&str>, errors: &mut ErrorList) {
    both(node, &node.child("limits"), &node.child("requests"), pod_resource, errors);
    if let Some(used) = node.opt("claims") {
        pod_resources::used_claims(&used, claims, errors);
    }
}

/// Checks the name of a pod-level resource.
fn pod_resource(resource: &str, node: &FieldValue<'_>, errors: &mut ErrorList) {
    if name(resource, node, errors) && !is_for_whole_pods(resource) {
        let known = ["cpu", "hugepages-", "memory"];
        errors.push(FieldError::not_supported(&node.path, resource, &known));
    }
}

/// Checks the overhead of a pod.
pub fn overhead(node: &FieldValue<'_>, errors: &mut ErrorList) {
    both(node, &node.named(node.path.child("limits")), &node.child(""), container_resource, errors);
}

fn both(
    node: &FieldValue<'_>,
    limits: &FieldValue<'_>,
    requests: &FieldValue<'_>,
    check_name: fn(&str, &FieldValue<'_>, &mut ErrorList),
    errors: &mut ErrorList,
) {
    let (mut has_pages, mut has_basics) = (false, false);
    let mut one = |resource: &str, entry: &FieldValue<'_>, errors: &mut ErrorList| {
        check_name(resource, entry, errors);
        amount(resource, entry, errors);
        has_pages |= is_huge_page(resource);
        has_basics |= matches!(resource, "cpu" | "memory");
    };
    for (resource, entry) in limits.entries() {
        one(resource, &entry, errors);
        if is_huge_page(resource) {
            whole_pages(resource, &entry, errors);
        }
    }
    for (resource, entry) in requests.entries() {
        one(resource, &entry, errors);
        against_limit(resource, &entry, requests, limits, errors);
        if is_huge_page(resource) {
            whole_pages(resource, &entry, errors);
        }
    }
    if has_pages && !has_basics {
        node.forbidden(errors, "HugePages require cpu or memory");
    }
}

/// Checks a request against its limit.
fn against_limit(
    resource: &str,
    request: &FieldValue<'_>,
    requests: &FieldValue<'_>,
    limits: &FieldValue<'_>,
    errors: &mut ErrorList,
) {
    let limit = limits.child(resource);
    let overcommit = may_overcommit(resource);
    let compared = match (limit.amount(), request.amount()) {
        (Some(most), Some(asked)) if asked != most && !overcommit => "equal to",
        (Some(most), Some(asked)) if asked > most => "less than or equal to",
        (None, _) if !overcommit => {
            limits.required(errors, "Limit must be set for non overcommitable resources");
            return;
        }
        _ => return,
    };
    let wrong = format!("must be {compared} {resource} limit of {}", limit.text());
    errors.push(FieldError::invalid(&requests.path, &request.shown(), &wrong));
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn each_rule_of_resources_refuses() {
        let base = object(
            r#"{"resources":{"limits":{"cpu":"1","memory":"1Gi","example.com/gpu":"1"},
                "requests":{"cpu":"500m","example.com/gpu":"1"}}}"#,
        );
        each_refused(
            &base,
            |object, errors| requirements(&FieldValue::of(object, "resources"), errors),
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
                    "resources.limits[storage]: Invalid value: storage: must be a standard resource for containers",
                ),
                (
                    "resources.limits",
                    r#"{"cpu":"1","example.com/gpu":"1","hugepages-2Mi":"3Mi"}"#,
                    "Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
                ),
            ],
        );
        let huge = object(r#"{"resources":{"limits":{"hugepages-2Mi":"2Mi"}}}"#);
        let mut errors = ErrorList::new();
        requirements(&FieldValue::of(&huge, "resources"), &mut errors);
        assert_eq!(errors.len(), 1);
        let whole = object(r#"{"resources":{"limits":{"example.com/gpu":"500m"}}}"#);
        requirements(&FieldValue::of(&whole, "resources"), &mut errors);
        assert!(errors[1].message.ends_with("must be an integer"));
    }
}
