//! ResourceClaims and their templates.

use super::super::{
    DefaultingRules, DeletionRules, KindRules, StatusMeta, StatusRules, ValidationRules, gated,
};
use super::claim_status;
use super::common::{
    MAX_CONFIGS, limit_items, validate_configuration, validate_qualified_name, validate_selectors,
    validate_unique,
};
use crate::allowed::resource_v1beta1;
use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::{FieldValue, fill, fill_text, items_mut, present_mut, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

/// The rules of a ResourceClaim.
pub const RESOURCE_CLAIM: KindRules = KindRules {
    defaulting: DefaultingRules { default: default_claim, ..DefaultingRules::DEFAULT },
    gated: gated::rows::DEVICE_CLAIM,
    validation: ValidationRules {
        validate: validate_claim,
        validate_update: validate_claim_update,
        ..ValidationRules::DEFAULT
    },
    status: StatusRules {
        metadata: StatusMeta::ResetForStatus,
        prepare: claim_status::prepare_claim_status,
        validate: claim_status::validate_claim_status,
        ..StatusRules::DEFAULT
    },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

/// The rules of a ResourceClaimTemplate.
pub const RESOURCE_CLAIM_TEMPLATE: KindRules = KindRules {
    defaulting: DefaultingRules { default: default_template, ..DefaultingRules::DEFAULT },
    gated: gated::rows::DEVICE_CLAIM_TEMPLATE,
    validation: ValidationRules {
        validate: validate_template,
        validate_update: validate_template_update,
        ..ValidationRules::DEFAULT
    },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

const MAX_REQUESTS: usize = 32;

const MAX_CONSTRAINTS: usize = 32;

const MAX_CHOICES: usize = 8;

const NO_REQUEST: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// The defaults of a claim: one device per request.
pub(super) fn default_claim(claim: &mut Value) {
    let devices = present_mut(claim, "spec").and_then(|spec| present_mut(spec, "devices"));
    let Some(devices) = devices else { return };
    for request in items_mut(devices, "requests") {
        // In older versions the fields of the exact request are in the request itself.
        if !request.str("deviceClassName").is_empty() {
            default_count(request);
        }
        if let Some(exactly) = present_mut(request, "exactly") {
            default_count(exactly);
        }
        items_mut(request, "firstAvailable").iter_mut().for_each(default_count);
    }
}

/// The same for templates.
pub(super) fn default_template(template: &mut Value) {
    if let Some(claim) = present_mut(template, "spec") {
        default_claim(claim);
    }
}

fn default_count(alternative: &mut Value) {
    fill_text(alternative, "allocationMode", "ExactCount");
    if alternative.str("allocationMode") == "ExactCount" {
        fill(alternative, "count", 1);
    }
}

/// The requests of a claim and their subrequests.
pub(super) struct Requests<'a> {
    alternatives: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Requests<'a> {
    pub(super) fn collect(devices: &FieldValue<'a>) -> Requests<'a> {
        let name = |item: &'a Value| item.str("name");
        let mut alternatives = BTreeMap::new();
        for request in devices.read("requests").items() {
            // The first of equal names counts.
            alternatives.entry(name(request)).or_insert_with(|| {
                request.get("firstAvailable").map(Value::items).unwrap_or_default().iter().map(name).collect()
            });
        }
        Requests { alternatives }
    }

    fn contains(&self, name: &str) -> bool {
        let (first, alternative) =
            name.split_once('/').map_or((name, None), |(first, rest)| (first, Some(rest)));
        let alternatives = self.alternatives.get(first);
        alternatives.is_some_and(|alternatives| {
            alternative.is_none_or(|alternative| alternatives.contains(alternative))
        })
    }

    pub(super) fn validate_names(&self, list: &FieldValue<'_>, errors: &mut ErrorList) {
        for name in list.items() {
            self.validate_name(&name, errors);
        }
        limit_items(list, MAX_REQUESTS, errors);
        validate_unique(list, "", errors);
    }

    pub(super) fn validate_name(&self, name: &FieldValue<'_>, errors: &mut ErrorList) {
        if name.text().matches('/').count() > 1 {
            name.invalid(errors, NO_REQUEST);
            return;
        }
        for part in name.text().split('/') {
            meta::add_invalid(errors, &name.path, part, names::dns_label(part));
        }
        if !self.contains(name.text()) {
            name.invalid_text(errors, NO_REQUEST);
        }
    }
}

fn validate_claim_spec(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let devices = spec.child("devices");
    let requests = devices.child("requests");
    for request in requests.items() {
        validate_request(&request, errors);
    }
    limit_items(&requests, MAX_REQUESTS, errors);
    validate_unique(&requests, "name", errors);
    let request_names = Requests::collect(&devices);
    let constraints = devices.child("constraints");
    for constraint in constraints.items() {
        request_names.validate_names(&constraint.child("requests"), errors);
        let attribute = constraint.child("matchAttribute");
        if attribute.is_set() {
            validate_qualified_name(attribute.text(), &attribute.path, errors);
            if !attribute.is_empty() && !attribute.text().contains('/') {
                attribute.invalid(errors, "must include a domain");
            }
        } else {
            attribute.required(errors, "");
        }
    }
    limit_items(&constraints, MAX_CONSTRAINTS, errors);
    let configs = devices.child("config");
    for config in configs.items() {
        request_names.validate_names(&config.child("requests"), errors);
        validate_configuration(&config, errors);
    }
    limit_items(&configs, MAX_CONFIGS, errors);
}

fn validate_request(request: &FieldValue<'_>, errors: &mut ErrorList) {
    const EXACTLY_ONE: &str = "exactly one of `exactly` or `firstAvailable` is required";
    request.child("name").syntax(errors, names::dns_label);
    let alternatives = request.child("firstAvailable");
    for alternative in alternatives.items() {
        alternative.child("name").syntax(errors, names::dns_label);
        validate_exact_request(&alternative, errors);
    }
    if !alternatives.is_empty() {
        limit_items(&alternatives, MAX_CHOICES, errors);
        validate_unique(&alternatives, "name", errors);
    }
    let flat_fields = ["selectors", "count", "adminAccess", "tolerations"];
    let exactly = if request.child("exactly").is_set() {
        Some(request.child("exactly"))
    } else {
        let is_flat = !request.child("deviceClassName").is_empty()
            || flat_fields.iter().any(|field| request.child(field).is_set());
        is_flat.then(|| FieldValue { value: request.value, path: request.path.child("exactly") })
    };
    if let Some(exactly) = &exactly {
        validate_exact_request(exactly, errors);
    }
    match (exactly.is_some(), !alternatives.is_empty()) {
        (false, false) => request.required(errors, EXACTLY_ONE),
        (true, true) => {
            let detail = format!("{EXACTLY_ONE}, but multiple fields are set");
            errors.push(FieldError::invalid(&request.path, "\"null\"", &detail));
        }
        _ => {}
    }
}

fn validate_exact_request(request: &FieldValue<'_>, errors: &mut ErrorList) {
    request.child("deviceClassName").need_syntax(errors, names::dns_subdomain);
    validate_selectors(&request.child("selectors"), errors);
    let (mode, count) = (request.child("allocationMode"), request.child("count"));
    match mode.text() {
        "All" if count.number() != 0 => {
            count.invalid(errors, "must not be specified when allocationMode is 'All'");
        }
        "All" => {}
        "ExactCount" if count.number() <= 0 => {
            let rendered = count.number().to_string();
            errors.push(FieldError::invalid(&count.path, &rendered, "must be greater than zero"));
        }
        "ExactCount" => {}
        _ => mode.one_of(errors, &["All", "ExactCount"]),
    }
    for toleration in request.child("tolerations").items() {
        validate_toleration(&toleration, errors);
    }
}

fn validate_toleration(toleration: &FieldValue<'_>, errors: &mut ErrorList) {
    let (key, value) = (toleration.child("key"), toleration.child("value"));
    key.syntax_if_set(errors, names::qualified_name);
    match toleration.child("operator").text() {
        "Exists" if !value.is_empty() => value.invalid(errors, "must be empty for operator `Exists`"),
        "Exists" => {}
        "Equal" => value.syntax(errors, names::label_value),
        _ => toleration.child("operator").need_one_of(errors, resource_v1beta1::DeviceToleration::OPERATOR),
    }
    if !toleration.child("effect").is_empty() {
        toleration.child("effect").one_of(errors, resource_v1beta1::DeviceToleration::EFFECT);
    }
}

/// Validates a ResourceClaim.
pub fn validate_claim(claim: &Value, errors: &mut ErrorList) {
    validate_claim_spec(&FieldValue::top_level(claim, "spec"), errors);
}

/// Validates an update: the spec is immutable. The reference validates the whole object twice.
pub fn validate_claim_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_claim(new, errors);
    validate_spec_unchanged(new, old, "resource.ResourceClaimSpec{}", errors);
    validate_claim(new, errors);
}

/// Validates a ResourceClaimTemplate.
pub(super) fn validate_template(template: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(template, "spec");
    let metadata = spec.child("metadata");
    let labels = metadata.child("labels");
    meta::validate_labels(Some(labels.value), &labels.path, errors);
    let annotations = metadata.child("annotations");
    meta::validate_annotations(Some(annotations.value), &annotations.path, errors);
    validate_claim_spec(&spec.child("spec"), errors);
}

/// Validates an update: the spec is immutable. The reference validates the whole object twice.
fn validate_template_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_template(new, errors);
    validate_spec_unchanged(new, old, "resource.ResourceClaimTemplateSpec{}", errors);
    validate_template(new, errors);
}

/// A spec is always present, even if it is empty.
fn validate_spec_unchanged(new: &Value, old: &Value, rendered: &str, errors: &mut ErrorList) {
    if !same(new.get("spec"), old.get("spec")) {
        errors.push(FieldError::invalid(&FieldPath::new("spec"), rendered, meta::IMMUTABLE));
    }
}
