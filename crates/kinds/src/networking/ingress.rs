//! Ingresses and their classes.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations;
use pilothouse_apimachinery::{meta, names};

use super::super::{KindRules, MetadataRules, StatusRules, ValidationRules, WarningRules};
use crate::address;
use crate::allowed::networking_v1;

/// The rules of an Ingress.
pub const INGRESS: KindRules = KindRules {
    metadata: MetadataRules::SPEC_GENERATION,
    validation: ValidationRules {
        validate: validate_ingress,
        validate_update: validate_ingress_update,
        ..ValidationRules::DEFAULT
    },
    warnings: WarningRules { warn: warn_ingress, ..WarningRules::DEFAULT },
    status: StatusRules {
        validate: validate_ingress_status,
        warn: address::warn_load_balancer,
        ..StatusRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

/// The rules of an IngressClass.
pub const INGRESS_CLASS: KindRules = KindRules {
    metadata: MetadataRules::SPEC_GENERATION,
    validation: ValidationRules {
        validate: validate_ingress_class,
        validate_update: validate_ingress_class_update,
        ..ValidationRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

/// Validates an Ingress.
pub(super) fn validate_ingress(ingress: &Value, errors: &mut ErrorList) {
    validate_spec(ingress, Tolerated::default(), errors);
    let annotation = meta::metadata(ingress).get_path(&["annotations", annotations::INGRESS_CLASS]);
    let class = FieldValue::top_level(ingress, "spec").child("ingressClassName");
    if let Some(value) = annotation.filter(|value| class.is_set() && *value != class.value) {
        let path = FieldPath::new("annotations").child(annotations::INGRESS_CLASS);
        FieldValue { value, path }.invalid(errors, "must match `ingressClassName` when both are specified");
    }
}

/// Invalid values that are tolerated because the stored Ingress has them.
#[derive(Clone, Copy, Default)]
struct Tolerated {
    secret_names: bool,
    wildcard_rules: bool,
}

fn validate_spec(ingress: &Value, tolerated: Tolerated, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(ingress, "spec");
    let (rules, default) = (spec.child("rules"), spec.child("defaultBackend"));
    if rules.is_empty() && !default.is_set() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(&spec.path, "[]networking.IngressRule(nil)", detail));
    }
    if default.is_set() {
        validate_backend(&default, errors);
    }
    for rule in rules.items() {
        let host = rule.child("host");
        if !host.is_empty() {
            if names::parse_ip(host.text()).is_some() {
                host.invalid(errors, "must be a DNS name, not an IP address");
            }
            validate_host(&host, errors);
        }
        if !tolerated.wildcard_rules || !host.text().contains('*') {
            validate_rule(&rule, errors);
        }
    }
    for tls in spec.child("tls").items() {
        for host in tls.child("hosts").items() {
            validate_host(&host, errors);
        }
        if !tolerated.secret_names {
            tls.child("secretName").syntax_if_set(errors, names::dns_subdomain);
        }
    }
    if spec.child("ingressClassName").is_set() {
        spec.child("ingressClassName").syntax(errors, names::dns_subdomain);
    }
}

fn validate_rule(rule: &FieldValue<'_>, errors: &mut ErrorList) {
    let http = rule.child("http");
    if http.is_set() {
        http.child("paths").need(errors);
    }
    for path in http.child("paths").items() {
        validate_path(&path, errors);
    }
}

fn validate_host(host: &FieldValue<'_>, errors: &mut ErrorList) {
    if host.text().contains('*') {
        host.syntax(errors, names::wildcard_subdomain);
    } else {
        host.syntax(errors, names::dns_subdomain);
    }
}

fn validate_path(node: &FieldValue<'_>, errors: &mut ErrorList) {
    let (kind, path) = (node.child("pathType"), node.child("path"));
    let is_absolute = path.text().starts_with('/');
    if !kind.is_set() {
        kind.required(errors, "pathType must be specified");
        return;
    }
    match kind.text() {
        "Exact" | "Prefix" => {
            if !is_absolute {
                path.invalid_text(errors, "must be an absolute path");
            }
            for part in
                ["//", "/./", "/../", "%2f", "%2F"].into_iter().filter(|part| path.text().contains(part))
            {
                path.invalid(errors, &format!("must not contain '{part}'"));
            }
            for end in ["/..", "/."].into_iter().filter(|end| path.text().ends_with(end)) {
                path.invalid(errors, &format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" => {
            if !path.is_empty() && !is_absolute {
                path.invalid(errors, "must be an absolute path");
            }
        }
        _ => kind.one_of(errors, networking_v1::HTTPIngressPath::PATH_TYPE),
    }
    validate_backend(&node.child("backend"), errors);
}

pub(super) fn validate_backend(node: &FieldValue<'_>, errors: &mut ErrorList) {
    let (resource, service) = (node.child("resource"), node.child("service"));
    let mut invalid = |detail| errors.push(FieldError::invalid(&node.path, "\"\"", detail));
    match (resource.is_set(), service.is_set()) {
        (true, true) => invalid("cannot set both resource and service backends"),
        (false, false) => invalid("resource or service backend is required"),
        (true, false) => {
            validate_local_reference(&resource, errors);
        }
        (false, true) => {
            service.child("name").need_syntax(errors, names::dns_1035_label);
            let (name, number) = (service.child("port").child("name"), service.child("port").child("number"));
            match (!name.is_empty(), number.number() != 0) {
                (true, true) => {
                    let detail = "cannot set both port name & port number";
                    errors.push(FieldError::invalid(&node.path, "\"\"", detail));
                }
                (true, false) => name.syntax(errors, names::port_name),
                (false, true) => number.port(errors),
                (false, false) => node.required(errors, "port name or number is required"),
            }
        }
    }
}

/// Validates a reference to an object of any kind in the same namespace.
fn validate_local_reference(reference: &FieldValue<'_>, errors: &mut ErrorList) {
    if reference.child("apiGroup").is_set() {
        reference.child("apiGroup").syntax(errors, names::dns_subdomain);
    }
    for field in ["kind", "name"] {
        let part = reference.child(field);
        if part.is_empty() {
            part.required(errors, &format!("{field} is required"));
        }
        part.syntax_if_set(errors, |name| names::path_segment(name, false));
    }
}

/// Validates an update of an Ingress.
pub(super) fn validate_ingress_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let old_spec = FieldValue::top_level(old, "spec");
    let has_bad_secret_name = |tls: FieldValue<'_>| {
        let name = tls.child("secretName");
        !name.is_empty() && !names::dns_subdomain(name.text()).is_empty()
    };
    let is_bad_wildcard_rule = |rule: FieldValue<'_>| {
        let mut rule_errors = ErrorList::new();
        validate_rule(&rule, &mut rule_errors);
        rule.child("host").text().contains('*') && !rule_errors.is_empty()
    };
    let tolerated = Tolerated {
        secret_names: old_spec.child("tls").items().any(has_bad_secret_name),
        wildcard_rules: old_spec.child("rules").items().any(is_bad_wildcard_rule),
    };
    validate_spec(new, tolerated, errors);
}

/// Validates an update of the status of an Ingress.
pub(super) fn validate_ingress_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let ingress_points =
        |object| FieldValue::top_level(object, "status").child("loadBalancer").child("ingress");
    let old_addresses = address::collect_strings(ingress_points(old).value, "ip");
    for entry in ingress_points(new).items() {
        let (ip, host) = (entry.child("ip"), entry.child("hostname"));
        if !ip.is_empty() {
            address::validate_ip(&ip.path, ip.text(), &old_addresses, errors);
        }
        host.syntax_if_set(errors, names::dns_subdomain);
        if names::parse_ip(host.text()).is_some() {
            host.invalid(errors, "must be a DNS name, not an IP address");
        }
    }
}

/// Warns about the annotation that `ingressClassName` has replaced.
pub(super) fn warn_ingress(ingress: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    let has_annotation =
        meta::metadata(ingress).get_path(&["annotations", annotations::INGRESS_CLASS]).is_some();
    if old.is_none()
        && has_annotation
        && !FieldValue::top_level(ingress, "spec").child("ingressClassName").is_set()
    {
        warnings.push(format!(
            "annotation \"{}\" is deprecated, please use 'spec.ingressClassName' instead",
            annotations::INGRESS_CLASS
        ));
    }
}

/// Validates an IngressClass.
pub(super) fn validate_ingress_class(class: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(class, "spec");
    const MAX_LENGTH: usize = 250;
    let controller = spec.child("controller");
    if controller.text().len() > MAX_LENGTH {
        errors.push(FieldError::too_long(&controller.path, MAX_LENGTH));
    }
    if controller.need(errors) {
        for (detail, part) in names::domain_prefixed_path(controller.text()) {
            errors.push(FieldError::invalid(
                &controller.path,
                &pilothouse_apimachinery::field::quoted(&part),
                &detail,
            ));
        }
    }
    let parameters = spec.child("parameters");
    if !parameters.is_set() {
        return;
    }
    validate_local_reference(&parameters, errors);
    let (scope, namespace) = (parameters.child("scope"), parameters.child("namespace"));
    match scope.text() {
        "" if !scope.is_set() => scope.required(errors, ""),
        "Namespace" if !namespace.is_set() => {
            namespace.required(errors, "`parameters.scope` is set to 'Namespace'");
        }
        "Namespace" => namespace.syntax(errors, names::dns_label),
        "Cluster" if namespace.is_set() => {
            namespace.forbidden(errors, "`parameters.scope` is set to 'Cluster'");
        }
        "Cluster" => {}
        _ => scope.one_of(errors, &["Cluster", "Namespace"]),
    }
}

/// Validates an update of an IngressClass.
pub(super) fn validate_ingress_class_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let controller = |object| FieldValue::top_level(object, "spec").child("controller");
    if controller(new).text() != controller(old).text() {
        controller(new).invalid_text(errors, meta::IMMUTABLE);
    }
    validate_ingress_class(new, errors);
}
