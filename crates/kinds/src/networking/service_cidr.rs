//! IPAddresses and ServiceCIDRs.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::super::{
    KindRules, MetaRevalidation, MetadataRules, ResetFields, Revalidation, StatusMeta, StatusRules,
    ValidationRules, messages,
};

/// The rules of an IPAddress.
pub const IP_ADDRESS: KindRules = KindRules {
    metadata: MetadataRules {
        name: names::ip_name,
        // With a random suffix it would be no address.
        generate_name: |object, _| meta::take_prefix_as_name(object),
        ..MetadataRules::DEFAULT
    },
    validation: ValidationRules {
        validate: validate_address,
        revalidation: Revalidation::Once,
        validate_update: validate_address_update,
    },
    ..KindRules::DEFAULT
};

/// The rules of a ServiceCIDR.
pub const SERVICE_CIDR: KindRules = KindRules {
    metadata: MetadataRules { revalidation: MetaRevalidation::Change, ..MetadataRules::DEFAULT },
    validation: ValidationRules {
        validate: validate_service_cidr,
        validate_update: validate_service_cidr_update,
        ..ValidationRules::DEFAULT
    },
    status: StatusRules {
        // No field is reset on create or update.
        writable_on_create: true,
        writable_on_update: true,
        metadata: StatusMeta::ResetForStatus,
        ..StatusRules::DEFAULT
    },
    reset_fields: ResetFields::NONE,
    ..KindRules::DEFAULT
};

/// Validates an IPAddress.
pub fn validate_address(address: &Value, errors: &mut ErrorList) {
    let parent = FieldValue::top_level(address, "spec").child("parentRef");
    if !parent.is_set() {
        parent.required(errors, "");
        return;
    }
    for (field, check) in [
        ("group", names::dns_subdomain as names::Check),
        ("resource", |text| names::path_segment(text, false)),
        ("name", |text| names::path_segment(text, false)),
        ("namespace", |text| names::path_segment(text, false)),
    ] {
        let part = parent.child(field);
        if part.is_empty() && matches!(field, "resource" | "name") {
            part.required(errors, "");
        }
        part.syntax_if_set(errors, check);
    }
}

/// Validates an update: the parent reference is immutable.
pub(super) fn validate_address_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let parent = |object| FieldValue::top_level(object, "spec").child("parentRef");
    messages::validate_struct_unchanged(&parent(new), &parent(old), "networking.ParentReference", errors);
}

/// Validates a ServiceCIDR.
pub(super) fn validate_service_cidr(object: &Value, errors: &mut ErrorList) {
    validate_ranges(&FieldValue::top_level(object, "spec").child("cidrs"), errors);
}

fn validate_ranges(ranges: &FieldValue<'_>, errors: &mut ErrorList) {
    if ranges.is_empty() {
        ranges.required(errors, "at least one CIDR required");
        return;
    }
    if ranges.len() > 2 {
        messages::invalid_struct(
            &ranges.path,
            "networking.ServiceCIDRSpec",
            errors,
            "may only hold up to 2 values",
        );
        return;
    }
    let mut families = Vec::new();
    for range in ranges.items() {
        messages::validate_canonical_cidr(&range, errors);
        families.extend(names::parse_cidr(range.text()).map(|range| range.addr().is_ipv4()));
    }
    if matches!(families.as_slice(), [first, second] if first == second) {
        let detail =
            "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        ranges.invalid(errors, detail);
    }
}

/// Validates an update: CIDRs are immutable, but a second one may be added.
pub(super) fn validate_service_cidr_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let cidrs = |object| FieldValue::top_level(object, "spec").child("cidrs");
    let (ranges, old_ranges) = (cidrs(new), cidrs(old));
    let pairs = ranges.items().zip(old_ranges.items());
    match (old_ranges.len(), ranges.len()) {
        (old_len, new_len) if old_len == new_len || (old_len, new_len) == (1, 2) => {
            for (range, _) in pairs.filter(|(range, old_range)| range.text() != old_range.text()) {
                range.invalid(errors, meta::IMMUTABLE);
            }
            if old_len != new_len {
                validate_ranges(&ranges, errors);
            }
        }
        _ => {
            let rendered = if ranges.is_set() && ranges.is_empty() {
                "[]string{}".to_owned()
            } else {
                messages::render_strings(&ranges, "string")
            };
            errors.push(FieldError::invalid(&ranges.path, &rendered, meta::IMMUTABLE));
        }
    }
}
