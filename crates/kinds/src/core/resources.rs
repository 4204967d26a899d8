//! Resource requirements: names of resources, requests and limits.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::{FieldValue, render_quantity};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::nano_quantity::NanoQuantity;
use pilothouse_apimachinery::resource_list::is_pod_level_resource;

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
const INTEGER_RESOURCES: [&str; 9] = [
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
    COMPUTE.contains(&name)
        || INTEGER_RESOURCES.contains(&name)
        || matches!(name, "storage" | "requests.storage")
}

/// Whether the resource is huge pages.
pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Whether the resource is huge pages, by its name in quotas.
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
pub fn validate_name(name: &str, node: &FieldValue<'_>, errors: &mut ErrorList) -> bool {
    let details = names::qualified_name(name);
    if !details.is_empty() {
        for detail in details {
            errors.push(FieldError::invalid(&node.path, name, &detail));
        }
        return false;
    }
    if !name.contains('/') && !is_standard(name) && !is_quota_huge_page(name) {
        let detail = "must be a standard resource type or fully qualified";
        errors.push(FieldError::invalid(&node.path, name, detail));
        return false;
    }
    true
}

/// Checks the name of a resource that a container can have.
pub fn validate_container_resource(resource: &str, node: &FieldValue<'_>, errors: &mut ErrorList) {
    validate_name(resource, node, errors);
    validate_supported_by_containers(resource, node, errors);
}

/// Checks that a resource is one that a container can have.
pub fn validate_supported_by_containers(resource: &str, node: &FieldValue<'_>, errors: &mut ErrorList) {
    let detail = if resource.contains('/') {
        (!is_native(resource) && !is_extended(resource))
            .then_some("doesn't follow extended resource name standard")
    } else {
        let is_known = matches!(resource, "cpu" | "memory" | "ephemeral-storage") || is_huge_page(resource);
        (!is_known).then_some("must be a standard resource for containers")
    };
    if let Some(detail) = detail {
        errors.push(FieldError::invalid(&node.path, resource, detail));
    }
}

/// Checks the quantity of a resource.
pub fn validate_amount(resource: &str, node: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(amount) = node.amount() else { return };
    if amount.is_negative() {
        node.invalid(errors, "must be greater than or equal to 0");
    }
    if (INTEGER_RESOURCES.contains(&resource) || is_extended(resource)) && !amount.is_whole() {
        errors.push(FieldError::invalid(&node.path, &render_quantity(node.value), "must be an integer"));
    }
}

/// Checks that huge pages are a multiple of the page size.
fn validate_huge_pages(resource: &str, node: &FieldValue<'_>, errors: &mut ErrorList) {
    let size = resource.strip_prefix("hugepages-").and_then(NanoQuantity::parse);
    let size = size.filter(|size| size.is_whole() && !size.is_negative() && !size.is_zero());
    let is_multiple = match (size, node.amount()) {
        (Some(size), Some(amount)) => amount.ceiling() % size.ceiling() == 0,
        _ => false,
    };
    if !is_multiple {
        let detail = format!("{} is not positive integer multiple of {resource}", node.text());
        node.invalid(errors, &detail);
    }
}

/// Checks requests and limits.
pub fn validate_requirements(node: &FieldValue<'_>, errors: &mut ErrorList) {
    validate_limits_and_requests(
        node,
        &node.child("limits"),
        &node.child("requests"),
        validate_container_resource,
        errors,
    );
}

/// Checks the requests, limits and resource claims of a container.
pub fn validate_container(node: &FieldValue<'_>, claims: &BTreeSet<&str>, errors: &mut ErrorList) {
    validate_requirements(node, errors);
    if let Some(claims_used) = node.opt("claims") {
        pod_resources::validate_used_claims(&claims_used, claims, errors);
    }
}

/// Checks the resources of a pod.
pub fn validate_pod(node: &FieldValue<'_>, claims: &BTreeSet<&str>, errors: &mut ErrorList) {
    validate_limits_and_requests(
        node,
        &node.child("limits"),
        &node.child("requests"),
        validate_pod_resource,
        errors,
    );
    if let Some(claims_used) = node.opt("claims") {
        pod_resources::validate_used_claims(&claims_used, claims, errors);
    }
}

/// Checks the name of a pod-level resource.
fn validate_pod_resource(resource: &str, node: &FieldValue<'_>, errors: &mut ErrorList) {
    if validate_name(resource, node, errors) && !is_pod_level_resource(resource) {
        let supported = ["cpu", "hugepages-", "memory"];
        errors.push(FieldError::not_supported(&node.path, resource, &supported));
    }
}

/// Checks the overhead of a pod.
pub fn validate_overhead(node: &FieldValue<'_>, errors: &mut ErrorList) {
    validate_limits_and_requests(
        node,
        &node.named(node.path.child("limits")),
        &node.child(""),
        validate_container_resource,
        errors,
    );
}

fn validate_limits_and_requests(
    node: &FieldValue<'_>,
    limits: &FieldValue<'_>,
    requests: &FieldValue<'_>,
    check_name: fn(&str, &FieldValue<'_>, &mut ErrorList),
    errors: &mut ErrorList,
) {
    let (mut has_pages, mut has_basics) = (false, false);
    let mut validate_entry = |resource: &str, entry: &FieldValue<'_>, errors: &mut ErrorList| {
        check_name(resource, entry, errors);
        validate_amount(resource, entry, errors);
        has_pages |= is_huge_page(resource);
        has_basics |= matches!(resource, "cpu" | "memory");
    };
    for (resource, entry) in limits.entries() {
        validate_entry(resource, &entry, errors);
        if is_huge_page(resource) {
            validate_huge_pages(resource, &entry, errors);
        }
    }
    for (resource, entry) in requests.entries() {
        validate_entry(resource, &entry, errors);
        validate_request_below_limit(resource, &entry, requests, limits, errors);
        if is_huge_page(resource) {
            validate_huge_pages(resource, &entry, errors);
        }
    }
    if has_pages && !has_basics {
        node.forbidden(errors, "HugePages require cpu or memory");
    }
}

/// Checks a request against its limit.
fn validate_request_below_limit(
    resource: &str,
    request: &FieldValue<'_>,
    requests: &FieldValue<'_>,
    limits: &FieldValue<'_>,
    errors: &mut ErrorList,
) {
    let limit = limits.child(resource);
    let overcommit = may_overcommit(resource);
    let relation = match (limit.amount(), request.amount()) {
        (Some(limit_amount), Some(requested)) if requested != limit_amount && !overcommit => "equal to",
        (Some(limit_amount), Some(requested)) if requested > limit_amount => "less than or equal to",
        (None, _) if !overcommit => {
            limits.required(errors, "Limit must be set for non overcommitable resources");
            return;
        }
        _ => return,
    };
    let detail = format!("must be {relation} {resource} limit of {}", limit.text());
    errors.push(FieldError::invalid(&requests.path, &request.render(), &detail));
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn resource_requirement_validation_refuses_each_violation() {
        let base = object(
            r#"{"resources":{"limits":{"cpu":"1","memory":"1Gi","example.com/gpu":"1"},
                "requests":{"cpu":"500m","example.com/gpu":"1"}}}"#,
        );
        each_refused(
            &base,
            |object, errors| validate_requirements(&FieldValue::top_level(object, "resources"), errors),
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
        validate_requirements(&FieldValue::top_level(&huge, "resources"), &mut errors);
        assert_eq!(errors.len(), 1);
        let is_multiple = object(r#"{"resources":{"limits":{"example.com/gpu":"500m"}}}"#);
        validate_requirements(&FieldValue::top_level(&is_multiple, "resources"), &mut errors);
        assert!(errors[1].message.ends_with("must be an integer"));
    }
}
