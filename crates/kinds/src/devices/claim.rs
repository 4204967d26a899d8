//! ResourceClaims and their templates.

use super::super::{KindRules, PLAIN, StatusMeta, gated};
use super::claim_status;
use super::common::{MOST_CONFIGS, at_most, configuration, qualified_name, selectors, unique};
use crate::allowed::resource_v1beta1;
use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::{FieldValue, fill, fill_text, items_mut, present_mut, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

/// The rules of a ResourceClaim.
pub const RESOURCE_CLAIM: KindRules = KindRules {
    status_meta: StatusMeta::Fixed,
    gated: gated::rows::DEVICE_CLAIM,
    default: default_claim,
    validate: validate_claim,
    validate_update: validate_claim_update,
    prepare_status: claim_status::prepare_claim_status,
    validate_status: claim_status::validate_claim_status,
    ..PLAIN
};

/// The rules of a ResourceClaimTemplate.
pub const RESOURCE_CLAIM_TEMPLATE: KindRules = KindRules {
    gated: gated::rows::DEVICE_CLAIM_TEMPLATE,
    default: default_template,
    validate: validate_template,
    validate_update: validate_template_update,
    ..PLAIN
};

const MOST_REQUESTS: usize = 32;

const MOST_CONSTRAINTS: usize = 32;

const MOST_CHOICES: usize = 8;

const NO_REQUEST: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// The defaults of a claim: one device per request.
pub(super) fn default_claim(claim: &mut Value) {
    let devices = present_mut(claim, "spec").and_then(|spec| present_mut(spec, "devices"));
    let Some(devices) = devices else { return };
    for request in items_mut(devices, "requests") {
        // In older versions the fields of the exact request are in the request itself.
        if !request.str("deviceClassName").is_empty() {
            count_one(request);
        }
        if let Some(exactly) = present_mut(request, "exactly") {
            count_one(exactly);
        }
        items_mut(request, "firstAvailable").iter_mut().for_each(count_one);
    }
}

/// The same for templates.
pub(super) fn default_template(template: &mut Value) {
    if let Some(claim) = present_mut(template, "spec") {
        default_claim(claim);
    }
}

fn count_one(choice: &mut Value) {
    fill_text(choice, "allocationMode", "ExactCount");
    if choice.str("allocationMode") == "ExactCount" {
        fill(choice, "count", 1);
    }
}

/// The requests of a claim and their subrequests.
pub(super) struct Requests<'a> {
    choices: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Requests<'a> {
    pub(super) fn of(devices: &FieldValue<'a>) -> Requests<'a> {
        let name = |one: &'a Value| one.str("name");
        let mut choices = BTreeMap::new();
        for request in devices.read("requests").items() {
            // The first of equal names counts.
            choices.entry(name(request)).or_insert_with(|| {
                request.get("firstAvailable").map(Value::items).unwrap_or_default().iter().map(name).collect()
            });
        }
        Requests { choices }
    }

    fn has(&self, name: &str) -> bool {
        let (first, choice) = name.split_once('/').map_or((name, None), |(first, rest)| (first, Some(rest)));
        let choices = self.choices.get(first);
        choices.is_some_and(|choices| choice.is_none_or(|choice| choices.contains(choice)))
    }

    pub(super) fn check_names(&self, list: &FieldValue<'_>, errors: &mut ErrorList) {
        for name in list.items() {
            self.check_name(&name, errors);
        }
        at_most(list, MOST_REQUESTS, errors);
        unique(list, "", errors);
    }

    pub(super) fn check_name(&self, name: &FieldValue<'_>, errors: &mut ErrorList) {
        if name.text().matches('/').count() > 1 {
            name.invalid(errors, NO_REQUEST);
            return;
        }
        for part in name.text().split('/') {
            meta::texts(errors, &name.path, part, names::dns_label(part));
        }
        if !self.has(name.text()) {
            name.invalid_text(errors, NO_REQUEST);
        }
    }
}

fn claim_spec(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let devices = spec.child("devices");
    let requests = devices.child("requests");
    for request in requests.items() {
        validate_request(&request, errors);
    }
    at_most(&requests, MOST_REQUESTS, errors);
    unique(&requests, "name", errors);
    let known = Requests::of(&devices);
    let constraints = devices.child("constraints");
    for constraint in constraints.items() {
        known.check_names(&constraint.child("requests"), errors);
        let attribute = constraint.child("matchAttribute");
        if attribute.is_set() {
            qualified_name(attribute.text(), &attribute.path, errors);
            if !attribute.is_empty() && !attribute.text().contains('/') {
                attribute.invalid(errors, "must include a domain");
            }
        } else {
            attribute.required(errors, "");
        }
    }
    at_most(&constraints, MOST_CONSTRAINTS, errors);
    let configs = devices.child("config");
    for config in configs.items() {
        known.check_names(&config.child("requests"), errors);
        configuration(&config, errors);
    }
    at_most(&configs, MOST_CONFIGS, errors);
}

fn validate_request(request: &FieldValue<'_>, errors: &mut ErrorList) {
    const ONE: &str = "exactly one of `exactly` or `firstAvailable` is required";
    request.child("name").syntax(errors, names::dns_label);
    let choices = request.child("firstAvailable");
    for choice in choices.items() {
        choice.child("name").syntax(errors, names::dns_label);
        one_request(&choice, errors);
    }
    if !choices.is_empty() {
        at_most(&choices, MOST_CHOICES, errors);
        unique(&choices, "name", errors);
    }
    let flat = ["selectors", "count", "adminAccess", "tolerations"];
    let exactly = if request.child("exactly").is_set() {
        Some(request.child("exactly"))
    } else {
        let is_flat = !request.child("deviceClassName").is_empty()
            || flat.iter().any(|field| request.child(field).is_set());
        is_flat.then(|| FieldValue { value: request.value, path: request.path.child("exactly") })
    };
    if let Some(exactly) = &exactly {
        one_request(exactly, errors);
    }
    match (exactly.is_some(), !choices.is_empty()) {
        (false, false) => request.required(errors, ONE),
        (true, true) => {
            let why = format!("{ONE}, but multiple fields are set");
            errors.push(FieldError::invalid(&request.path, "\"null\"", &why));
        }
        _ => {}
    }
}

fn one_request(request: &FieldValue<'_>, errors: &mut ErrorList) {
    request.child("deviceClassName").need_syntax(errors, names::dns_subdomain);
    selectors(&request.child("selectors"), errors);
    let (mode, count) = (request.child("allocationMode"), request.child("count"));
    match mode.text() {
        "All" if count.number() != 0 => {
            count.invalid(errors, "must not be specified when allocationMode is 'All'");
        }
        "All" => {}
        "ExactCount" if count.number() <= 0 => {
            let shown = count.number().to_string();
            errors.push(FieldError::invalid(&count.path, &shown, "must be greater than zero"));
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
    claim_spec(&FieldValue::of(claim, "spec"), errors);
}

/// Validates an update: the spec is immutable. The reference validates the whole object twice.
pub fn validate_claim_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_claim(new, errors);
    same_spec(new, old, "resource.ResourceClaimSpec{}", errors);
    validate_claim(new, errors);
}

/// Validates a ResourceClaimTemplate.
pub(super) fn validate_template(template: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(template, "spec");
    let metadata = spec.child("metadata");
    let labels = metadata.child("labels");
    meta::validate_labels(Some(labels.value), &labels.path, errors);
    let annotations = metadata.child("annotations");
    meta::validate_annotations(Some(annotations.value), &annotations.path, errors);
    claim_spec(&spec.child("spec"), errors);
}

/// Validates an update: the spec is immutable. The reference validates the whole object twice.
fn validate_template_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_template(new, errors);
    same_spec(new, old, "resource.ResourceClaimTemplateSpec{}", errors);
    validate_template(new, errors);
}

/// A spec is always present, even if it is empty.
fn same_spec(new: &Value, old: &Value, shown: &str, errors: &mut ErrorList) {
    if !same(new.get("spec"), old.get("spec")) {
        errors.push(FieldError::invalid(&FieldPath::new("spec"), shown, meta::IMMUTABLE));
    }
}
