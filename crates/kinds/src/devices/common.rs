//! Rules that claims, classes and slices share.

use super::selector;
use crate::allowed::resource_v1beta1;
use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

const MOST_SELECTORS: usize = 32;

pub(super) const MOST_CONFIGS: usize = 32;

const LONGEST_PARAMETERS: usize = 10 * 1_024;

const LONGEST_POOL: usize = 253;

const LONGEST_ID: usize = 32;

pub(super) fn at_most(list: &FieldValue<'_>, most: usize, errors: &mut ErrorList) {
    if list.len() > most {
        errors.push(FieldError::too_many(&list.path, list.len(), most));
    }
}

/// Reports the items of a list whose key is a duplicate.
pub(super) fn unique<'a>(list: &FieldValue<'a>, field: &str, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for item in list.items() {
        let key = if field.is_empty() { item } else { item.child(field) };
        if !seen.insert(key.text()) {
            errors.push(FieldError::duplicate(&key.path, &quoted(key.text())));
        }
    }
}

pub(super) fn driver_name(name: &FieldValue<'_>, errors: &mut ErrorList) {
    const LONGEST: usize = 63;
    name.need(errors);
    if name.text().len() > LONGEST {
        errors.push(FieldError::too_long(&name.path, LONGEST));
    }
    for wrong in names::dns_subdomain(&name.text().to_lowercase()) {
        name.invalid_text(errors, &wrong);
    }
}

pub(super) fn pool_name(name: &FieldValue<'_>, errors: &mut ErrorList) {
    if !name.need(errors) {
        return;
    }
    if name.text().len() > LONGEST_POOL {
        errors.push(FieldError::too_long(&name.path, LONGEST_POOL));
    }
    for part in name.text().split('/') {
        meta::texts(errors, &name.path, part, names::dns_subdomain(part));
    }
}

pub(super) fn validate_taint(taint: &FieldValue<'_>, errors: &mut ErrorList) {
    taint.child("key").syntax(errors, names::qualified_name);
    taint.child("value").syntax_if_set(errors, names::label_value);
    taint.child("effect").need_one_of(errors, resource_v1beta1::DeviceTaint::EFFECT);
}

pub(super) fn selectors(list: &FieldValue<'_>, errors: &mut ErrorList) {
    for selector in list.items() {
        let cel = selector.child("cel");
        if cel.is_set() {
            selector::validate(&cel.child("expression"), errors);
        } else {
            cel.required(errors, "");
        }
    }
    at_most(list, MOST_SELECTORS, errors);
}

pub(super) fn configuration(config: &FieldValue<'_>, errors: &mut ErrorList) {
    let opaque = config.child("opaque");
    if !opaque.is_set() {
        opaque.required(errors, "");
        return;
    }
    driver_name(&opaque.child("driver"), errors);
    raw(&opaque.child("parameters"), LONGEST_PARAMETERS, errors);
}

/// Validates opaque parameters of a driver.
pub(super) fn raw(data: &FieldValue<'_>, longest: usize, errors: &mut ErrorList) {
    match data.value {
        Value::Null => data.required(errors, ""),
        Value::Object(_) if data.shown().len() > longest => {
            errors.push(FieldError::too_long(&data.path, longest));
        }
        Value::Object(_) => {}
        _ => {
            let why = "parameters must be a valid JSON object";
            errors.push(FieldError::invalid(&data.path, &quoted("<value omitted>"), why));
        }
    }
}

/// Validates a name that may be qualified by a domain.
pub(super) fn qualified_name(name: &str, path: &FieldPath, errors: &mut ErrorList) {
    let domain = |part: &str, errors: &mut ErrorList| {
        let value = Value::from(part);
        driver_name(&FieldValue { value: &value, path: path.clone() }, errors);
    };
    let required = |why: &str, errors: &mut ErrorList| errors.push(FieldError::required(path, why));
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [""] => required("name required", errors),
        [id] => identifier(id, path, errors),
        [first, id] => {
            if first.is_empty() {
                required("the domain must not be empty", errors);
            } else {
                domain(first, errors);
            }
            if id.is_empty() {
                required("the name must not be empty", errors);
            } else {
                identifier(id, path, errors);
            }
        }
        _ => {}
    }
}

pub(super) fn identifier(id: &str, path: &FieldPath, errors: &mut ErrorList) {
    const WRONG: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
        alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is \
        '[A-Za-z_][A-Za-z0-9_]*')";
    if id.len() > LONGEST_ID {
        errors.push(FieldError::too_long(path, LONGEST_ID));
    }
    let fits = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !fits || id.bytes().next().is_none_or(|first| first.is_ascii_digit()) {
        errors.push(FieldError::type_invalid(path, &quoted(id), WRONG));
    }
}
