//! Rules that claims, classes and slices share.

use super::selector;
use crate::allowed::resource_v1beta1;
use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

const MAX_SELECTORS: usize = 32;

pub(super) const MAX_CONFIGS: usize = 32;

const MAX_PARAMETERS_LENGTH: usize = 10 * 1_024;

const MAX_POOL_LENGTH: usize = 253;

const MAX_ID_LENGTH: usize = 32;

pub(super) fn limit_items(list: &FieldValue<'_>, max: usize, errors: &mut ErrorList) {
    if list.len() > max {
        errors.push(FieldError::too_many(&list.path, list.len(), max));
    }
}

/// Reports the items of a list whose key is a duplicate.
pub(super) fn validate_unique<'a>(list: &FieldValue<'a>, field: &str, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for item in list.items() {
        let key = if field.is_empty() { item } else { item.child(field) };
        if !seen.insert(key.text()) {
            errors.push(FieldError::duplicate(&key.path, &quoted(key.text())));
        }
    }
}

pub(super) fn validate_driver_name(name: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_LENGTH: usize = 63;
    name.need(errors);
    if name.text().len() > MAX_LENGTH {
        errors.push(FieldError::too_long(&name.path, MAX_LENGTH));
    }
    for detail in names::dns_subdomain(&name.text().to_lowercase()) {
        name.invalid_text(errors, &detail);
    }
}

pub(super) fn validate_pool_name(name: &FieldValue<'_>, errors: &mut ErrorList) {
    if !name.need(errors) {
        return;
    }
    if name.text().len() > MAX_POOL_LENGTH {
        errors.push(FieldError::too_long(&name.path, MAX_POOL_LENGTH));
    }
    for part in name.text().split('/') {
        meta::add_invalid(errors, &name.path, part, names::dns_subdomain(part));
    }
}

pub(super) fn validate_taint(taint: &FieldValue<'_>, errors: &mut ErrorList) {
    taint.child("key").syntax(errors, names::qualified_name);
    taint.child("value").syntax_if_set(errors, names::label_value);
    taint.child("effect").need_one_of(errors, resource_v1beta1::DeviceTaint::EFFECT);
}

pub(super) fn validate_selectors(list: &FieldValue<'_>, errors: &mut ErrorList) {
    for selector in list.items() {
        let cel = selector.child("cel");
        if cel.is_set() {
            selector::validate(&cel.child("expression"), errors);
        } else {
            cel.required(errors, "");
        }
    }
    limit_items(list, MAX_SELECTORS, errors);
}

pub(super) fn validate_configuration(config: &FieldValue<'_>, errors: &mut ErrorList) {
    let opaque = config.child("opaque");
    if !opaque.is_set() {
        opaque.required(errors, "");
        return;
    }
    validate_driver_name(&opaque.child("driver"), errors);
    validate_raw_object(&opaque.child("parameters"), MAX_PARAMETERS_LENGTH, errors);
}

/// Validates an opaque JSON object of a driver.
pub(super) fn validate_raw_object(data: &FieldValue<'_>, max_length: usize, errors: &mut ErrorList) {
    match data.value {
        Value::Null => data.required(errors, ""),
        Value::Object(_) if data.render().len() > max_length => {
            errors.push(FieldError::too_long(&data.path, max_length));
        }
        Value::Object(_) => {}
        _ => {
            let detail = "parameters must be a valid JSON object";
            errors.push(FieldError::invalid(&data.path, &quoted("<value omitted>"), detail));
        }
    }
}

/// Validates a name that may be qualified by a domain.
pub(super) fn validate_qualified_name(name: &str, path: &FieldPath, errors: &mut ErrorList) {
    let validate_domain = |part: &str, errors: &mut ErrorList| {
        let value = Value::from(part);
        validate_driver_name(&FieldValue { value: &value, path: path.clone() }, errors);
    };
    let required = |detail: &str, errors: &mut ErrorList| errors.push(FieldError::required(path, detail));
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [""] => required("name required", errors),
        [id] => validate_identifier(id, path, errors),
        [first, id] => {
            if first.is_empty() {
                required("the domain must not be empty", errors);
            } else {
                validate_domain(first, errors);
            }
            if id.is_empty() {
                required("the name must not be empty", errors);
            } else {
                validate_identifier(id, path, errors);
            }
        }
        _ => {}
    }
}

pub(super) fn validate_identifier(id: &str, path: &FieldPath, errors: &mut ErrorList) {
    const NOT_AN_IDENTIFIER: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
        alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is \
        '[A-Za-z_][A-Za-z0-9_]*')";
    if id.len() > MAX_ID_LENGTH {
        errors.push(FieldError::too_long(path, MAX_ID_LENGTH));
    }
    let has_valid_bytes = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !has_valid_bytes || id.bytes().next().is_none_or(|first| first.is_ascii_digit()) {
        errors.push(FieldError::type_invalid(path, &quoted(id), NOT_AN_IDENTIFIER));
    }
}
