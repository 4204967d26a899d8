//! DeviceClasses and DeviceTaintRules.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::super::{COUNTED, KindRules, Revalidation};
use super::common::{
    MOST_CONFIGS, at_most, configuration, driver_name, pool_name, selectors, validate_taint,
};

/// The rules of a DeviceClass.
pub const DEVICE_CLASS: KindRules =
    KindRules { validate: validate_class, revalidation: Revalidation::Twice, ..COUNTED };

/// The rules of a DeviceTaintRule.
pub const DEVICE_TAINT_RULE: KindRules =
    KindRules { validate: validate_taint_rule, revalidation: Revalidation::Once, ..COUNTED };

/// Validates a DeviceClass.
pub fn validate_class(class: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(class, "spec");
    selectors(&spec.child("selectors"), errors);
    for config in spec.child("config").items() {
        configuration(&config, errors);
    }
    at_most(&spec.child("config"), MOST_CONFIGS, errors);
}

/// Validates a DeviceTaintRule.
pub(super) fn validate_taint_rule(rule: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(rule, "spec");
    let chosen = spec.child("deviceSelector");
    if chosen.child("deviceClassName").is_set() {
        chosen.child("deviceClassName").syntax(errors, names::dns_subdomain);
    }
    if chosen.child("driver").is_set() {
        driver_name(&chosen.child("driver"), errors);
    }
    if chosen.child("pool").is_set() {
        pool_name(&chosen.child("pool"), errors);
    }
    if chosen.child("device").is_set() {
        chosen.child("device").syntax(errors, names::dns_label);
    }
    selectors(&chosen.child("selectors"), errors);
    validate_taint(&spec.child("taint"), errors);
}
