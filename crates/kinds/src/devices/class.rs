//! DeviceClasses and DeviceTaintRules.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::super::{DeletionRules, KindRules, MetadataRules, Revalidation, ValidationRules};
use super::common::{
    MAX_CONFIGS, limit_items, validate_configuration, validate_driver_name, validate_pool_name,
    validate_selectors, validate_taint,
};

/// The rules of a DeviceClass.
pub const DEVICE_CLASS: KindRules = KindRules {
    metadata: MetadataRules::SPEC_GENERATION,
    validation: ValidationRules {
        validate: validate_class,
        revalidation: Revalidation::Twice,
        ..ValidationRules::DEFAULT
    },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

/// The rules of a DeviceTaintRule.
pub const DEVICE_TAINT_RULE: KindRules = KindRules {
    metadata: MetadataRules::SPEC_GENERATION,
    validation: ValidationRules {
        validate: validate_taint_rule,
        revalidation: Revalidation::Once,
        ..ValidationRules::DEFAULT
    },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

/// Validates a DeviceClass.
pub fn validate_class(class: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(class, "spec");
    validate_selectors(&spec.child("selectors"), errors);
    for config in spec.child("config").items() {
        validate_configuration(&config, errors);
    }
    limit_items(&spec.child("config"), MAX_CONFIGS, errors);
}

/// Validates a DeviceTaintRule.
pub(super) fn validate_taint_rule(rule: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(rule, "spec");
    let selector = spec.child("deviceSelector");
    if selector.child("deviceClassName").is_set() {
        selector.child("deviceClassName").syntax(errors, names::dns_subdomain);
    }
    if selector.child("driver").is_set() {
        validate_driver_name(&selector.child("driver"), errors);
    }
    if selector.child("pool").is_set() {
        validate_pool_name(&selector.child("pool"), errors);
    }
    if selector.child("device").is_set() {
        selector.child("device").syntax(errors, names::dns_label);
    }
    validate_selectors(&selector.child("selectors"), errors);
    validate_taint(&spec.child("taint"), errors);
}
