//! The conversion settings of a definition.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;

use super::super::admission::named_versions;
use super::super::{pem, webhook};
use super::Lenience;

/// Validates the conversion strategy.
pub(super) fn conversion(
    conversion: &FieldValue<'_>,
    preserves: bool,
    lenience: Lenience,
    errors: &mut ErrorList,
) {
    const NOT_HERE: &str = "should not be set when strategy is not set to Webhook";
    if !conversion.is_set() {
        return;
    }
    let strategy = conversion.child("strategy");
    if strategy.text() != "None" && preserves {
        strategy.invalid(errors, "must be None if spec.preserveUnknownFields is true");
    }
    strategy.need_one_of(errors, &["None", "Webhook"]);
    let hook = conversion.child("webhook");
    let config = FieldValue {
        value: hook.child("clientConfig").value,
        path: conversion.path.child("webhookClientConfig"),
    };
    let versions = FieldValue {
        value: hook.child("conversionReviewVersions").value,
        path: conversion.path.child("conversionReviewVersions"),
    };
    if strategy.text() != "Webhook" {
        if config.is_set() {
            config.forbidden(errors, NOT_HERE);
        }
        if !versions.is_empty() {
            versions.forbidden(errors, NOT_HERE);
        }
        return;
    }
    let (url, service) = (config.child("url"), config.child("service"));
    if !config.is_set() {
        config.required(errors, "required when strategy is set to Webhook");
    } else if url.is_set() == service.is_set() {
        config.required(errors, "exactly one of url or service is required");
    } else if url.is_set() {
        webhook::url(&url, errors);
    } else {
        webhook::service(&service, true, errors);
    }
    if !lenience.takes_any_bundle {
        bundle(&config.child("caBundle"), errors);
    }
    review_versions(&versions, lenience.needs_known_review, errors);
}

/// Whether the CA bundle of the webhook contains no certificate.
pub(super) fn has_bad_bundle(conversion: &FieldValue<'_>) -> bool {
    fault_of(&conversion.child("webhook").child("clientConfig").child("caBundle")).is_some()
}

fn bundle(bundle: &FieldValue<'_>, errors: &mut ErrorList) {
    if let Some((bytes, why)) = fault_of(bundle) {
        let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:#x}")).collect();
        let shown = format!("[]byte{{{}}}", bytes.join(", "));
        errors.push(FieldError::invalid(&bundle.path, &shown, &why));
    }
}

fn fault_of(bundle: &FieldValue<'_>) -> Option<(Vec<u8>, String)> {
    let bytes = STANDARD.decode(bundle.text()).unwrap_or_default();
    let why = pem::no_authority(&bytes)?;
    Some((bytes, format!("unable to load root certificates: {why}")))
}

fn review_versions(versions: &FieldValue<'_>, needs_known: bool, errors: &mut ErrorList) {
    if versions.need(errors) {
        named_versions(versions, needs_known, errors);
    }
}
